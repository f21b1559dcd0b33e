#include <criterion/criterion.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "engine/memory/trace.h"
#include "in_time.h"
#include "pager_rig.h"

Test(pager, cuts_matrices_into_equal_pages_of_whole_rows)
{
    model_layer l = {.d_ff = 768, .expert_fmt = {FMT_BF16, FMT_BF16, FMT_BF16}, .n_experts = 1};
    kern_expert_geom g;
    cr_assert_eq(pager_geometry(&l, 2048, 2 << 20, &g, NULL), XD_OK);
    /* 768 rows of 4096 bytes: 512 would fit, two equal pages of 384 waste nothing. 2048 rows of 1536 bytes: two of 1024. */
    cr_assert_eq(g.page_rows[0], 384);
    cr_assert_eq(g.page_rows[2], 1024);
    cr_assert_eq(g.pages, 6);
    cr_assert_eq(g.first_page[1], 2);
    cr_assert_eq(g.first_page[2], 4);
    cr_assert_eq(pager_geometry(&l, 2048, 1000, &g, NULL), XD_OK);
    cr_assert_eq(g.page_rows[0], 1, "a row larger than a page is a page");
    cr_assert_eq(g.pages, 768 + 768 + 2048);
}

Test(pager, all_bytes_are_right_whatever_is_cached)
{
    static const double shares[] = {0, 0.02, 0.1, 0.5, 1, 2};
    for (size_t i = 0; i < XD_ARRAY_LEN(shares); i++)
        for (int tier = CONF_TIER_IN_PLACE; tier <= CONF_TIER_POOL; tier++) {
            rig r = {0};
            rig_open_model(&r, 20000);
            r.cfg->memory.host_tier = tier;
            rig_open(&r, (uint64_t)(shares[i] * (double)model_expert_bytes(r.m)));
            for (int s = 0; s < 200; s++)
                step(&r, s % 7 == 3);
            pager_stats st;
            pager_get_stats(r.p, &st);
            cr_assert_eq(st.in_place, tier == CONF_TIER_IN_PLACE);
            cr_assert_leq(st.slots_used, st.slots_total);
            if (shares[i] >= 0.1)
                cr_assert_gt(st.hits_vram, 0);
            if (shares[i] == 0.1)
                cr_assert_gt(st.evictions, 0);
            if (shares[i] >= 2)
                cr_assert_eq(st.hits_host, 0, "everything fits: nothing crosses the link");
            rig_close(&r);
        }
}

Test(pager, keeps_pages_still_while_a_step_runs)
{
    rig r = {0};
    rig_open_model(&r, 20000);
    rig_open(&r, model_expert_bytes(r.m) / 4);
    for (int s = 0; s < 20; s++)
        step(&r, false);
    uint64_t table[4096];
    for (int s = 0; s < 50; s++) {
        const pager_view *v;
        cr_assert_eq(pager_step_begin(r.p, false, &v, NULL), XD_OK);
        pager_stats st;
        pager_get_stats(r.p, &st);
        memcpy(table, v->layers[0].page_addr, st.pages_total * sizeof *table);
        for (uint32_t l = 0; l < model_get_params(r.m)->n_layers; l++) {
            pick(&r, l);
            plan(&r, v, l);
            read_layer(&r, v, l);
            cr_assert_eq(memcmp(table, v->layers[0].page_addr, st.pages_total * sizeof *table), 0);
            /* No slot that a page lies in is handed out to be filled. */
            for (uint32_t i = *v->free_used; i < v->n_free; i++)
                for (uint32_t pg = 0; pg < st.pages_total; pg++)
                    cr_assert_neq(v->free_slots[i], table[pg]);
        }
        cr_assert_eq(pager_step_fetch(r.p, NULL), XD_OK);
        cr_assert_eq(pager_step_end(r.p, NULL), XD_OK);
    }
    rig_close(&r);
}

typedef struct map_reader {
    pager *p;
    atomic_uint maps;
    atomic_bool stop;
} map_reader;

static void *read_maps(void *arg)
{
    map_reader *m = arg;
    uint8_t tier[64], heat[64];
    while (!atomic_load(&m->stop)) {
        atomic_fetch_add(&m->maps, pager_get_map(m->p, tier, heat));
        sched_yield(); /* the lock is for the others, too */
    }
    return NULL;
}

/* For a thread sanitizer: what pager_settle() does without the lock is nothing that the status page reads. */
Test(pager, the_map_may_be_read_while_the_next_step_is_prepared)
{
    rig r = {0};
    rig_open_model(&r, 20000);
    rig_open(&r, model_expert_bytes(r.m) / 3);
    map_reader m = {.p = r.p};
    pthread_t thread;
    cr_assert_eq(pthread_create(&thread, NULL, read_maps, &m), 0);
    for (int s = 0; s < 40; s++) {
        step(&r, false);
        pager_settle(r.p);
        for (unsigned before = atomic_load(&m.maps); atomic_load(&m.maps) < before + 2;)
            sched_yield();
    }
    atomic_store(&m.stop, true);
    pthread_join(thread, NULL);
    rig_close(&r);
}

Test(pager, a_step_that_was_given_up_leaves_no_wrong_bytes)
{
    rig r = {0};
    rig_open_model(&r, 20000);
    rig_open(&r, model_expert_bytes(r.m) / 4);
    for (int s = 0; s < 100; s++) {
        const pager_view *v;
        cr_assert_eq(pager_step_begin(r.p, false, &v, NULL), XD_OK);
        pick(&r, 0);
        plan(&r, v, 0); /* slots were promised, but the experts never ran */
        pager_step_abort(r.p);
        step(&r, false);
    }
    rig_close(&r);
}

Test(pager, counts_what_a_step_touched_by_tier)
{
    rig r = {0};
    rig_open_model(&r, 20000);
    rig_open(&r, model_expert_bytes(r.m) / 3);
    uint64_t least = UINT64_MAX, most = 0;
    cr_assert_eq(pager_read_in_place(r.p), UINT64_MAX);
    for (int s = 0; s < 60; s++) {
        const pager_view *v;
        pager_stats before, after;
        pager_get_stats(r.p, &before);
        cr_assert_eq(pager_step_begin(r.p, false, &v, NULL), XD_OK);
        uint64_t vram = 0, host = 0;
        for (uint32_t l = 0; l < model_get_params(r.m)->n_layers; l++) {
            pick(&r, l);
            plan(&r, v, l);
            read_layer(&r, v, l);
            const pager_layer_view *y = &v->layers[l];
            for (uint32_t i = 0; i < y->n_experts * y->geom.pages; i++) {
                uint64_t bytes;
                page_of_file(&r, l, i / y->geom.pages, i % y->geom.pages, &bytes);
                if (y->expert_count[i / y->geom.pages])
                    *(y->page_addr[i] >= v->arena_begin && y->page_addr[i] < v->arena_end ? &vram : &host) += bytes;
            }
        }
        cr_assert_eq(pager_step_fetch(r.p, NULL), XD_OK);
        cr_assert_eq(pager_step_end(r.p, NULL), XD_OK);
        pager_get_stats(r.p, &after);
        cr_assert_eq(after.step_bytes_vram, vram);
        cr_assert_eq(after.step_bytes_host, host);
        cr_assert_eq(after.bytes_host - before.bytes_host, host);
        least = XD_MIN(least, host);
        most = XD_MAX(most, host);
        cr_assert_geq(pager_read_in_place(r.p), least);
        cr_assert_leq(pager_read_in_place(r.p), most);
    }
    cr_assert_lt(least, most);
    uint64_t lately = pager_read_in_place(r.p);
    step(&r, true); /* what a prompt reads says nothing of the steps after it */
    cr_assert_eq(pager_read_in_place(r.p), lately);
    cr_assert_eq(pager_set_mode(r.p, PAGER_STAGED, NULL), XD_OK);
    cr_assert_eq(pager_read_in_place(r.p), 0);
    rig_close(&r);
}

Test(pager, bytes_stay_right_while_modes_change)
{
    static const int eviction[] = {CONF_EVICT_LRU, CONF_EVICT_LFU, CONF_EVICT_LFRU, CONF_EVICT_STATIC};
    for (size_t k = 0; k < XD_ARRAY_LEN(eviction); k++) {
        rig r = {0};
        rig_open_model(&r, 20000);
        r.cfg->pager.eviction = eviction[k];
        rig_open(&r, model_expert_bytes(r.m) / 3);
        for (int s = 0; s < 300; s++) {
            if (s % 25 == 0) {
                xd_err err = {0};
                cr_assert_eq(pager_set_mode(r.p, rnd(&r, 2) ? PAGER_STAGED : PAGER_DIRECT, &err), XD_OK, "%s", err.msg);
            }
            step(&r, s % 5 == 0);
            pager_idle(r.p);
        }
        pager_stats st;
        pager_get_stats(r.p, &st);
        cr_assert_gt(st.hits_host, 0);
        cr_assert_leq(st.slots_used, st.slots_total);
        rig_close(&r);
    }
}

/* By what a byte takes on the device and on the CPU. Also without any slot, where nothing can be staged. */
Test(pager, decode_steps_are_divided_between_kernels_and_the_cpu)
{
    static const struct {
        double arena, device, cpu;
    } rows[] = {{0, 0, 0}, {0.02, 1, 1}, {0.3, 1, 2}, {0.3, 1000, 1}, {0.3, 1, 1000}, {2, 1, 1}};
    for (size_t k = 0; k < XD_ARRAY_LEN(rows); k++) {
        rig r = {0};
        xd_err err = {0};
        rig_open_model(&r, 20000);
        rig_open(&r, (uint64_t)(rows[k].arena * (double)model_expert_bytes(r.m)));
        r.costs = (share_costs){.ns = {rows[k].device, rows[k].cpu}};
        pager_stats st;
        uint64_t cpu_bytes = 0, link_bytes = 0, fills = 0;
        for (int s = 0; s < 300; s++) {
            if (s % 50 == 10)
                cr_assert_eq(pager_set_mode(r.p, PAGER_SHARED, &err), XD_OK, "%s", err.msg);
            if (s % 50 == 40)
                cr_assert_eq(
                    pager_set_mode(r.p, s % 100 == 40 && rows[k].arena >= 0.3 ? PAGER_STAGED : PAGER_DIRECT, &err),
                    XD_OK, "%s", err.msg);
            r.cpu_bytes = r.link_bytes = 0;
            pager_get_stats(r.p, &st);
            uint64_t filled = st.fills;
            step(&r, s % 5 == 0);
            pager_get_stats(r.p, &st);
            cr_assert_eq(st.step_bytes_cpu, r.cpu_bytes);
            if (pager_get_mode(r.p) == PAGER_SHARED && s % 5) {
                cr_assert_eq(st.step_bytes_host, r.link_bytes);
                fills += st.fills - filled;
            }
            cpu_bytes += r.cpu_bytes;
            link_bytes += r.link_bytes;
            pager_idle(r.p);
        }
        cr_assert_eq(st.bytes_cpu, cpu_bytes);
        bool all_on_cpu = rows[k].device <= 0 || rows[k].device >= 1000;
        cr_assert_eq(cpu_bytes > 0, rows[k].cpu < 1000, "row %zu", k);
        cr_assert_eq(link_bytes > 0, !all_on_cpu, "row %zu", k);
        cr_assert_eq(fills > 0, !all_on_cpu && rows[k].arena > 0, "row %zu: what the device reads is kept", k);
        cr_assert_leq(st.slots_used, st.slots_total);
        rig_close(&r);
    }
}

/* Steps on the CPU fill no slots: copies beside them have to. */
Test(pager, vram_follows_the_traffic_while_the_cpu_computes)
{
    rig r = {0};
    rig_open_model(&r, 20000);
    rig_open(&r, model_expert_bytes(r.m) / 2);
    cr_assert_eq(pager_set_mode(r.p, PAGER_SHARED, NULL), XD_OK);
    r.n_tokens = 1;
    uint64_t first = 0, last = 0, begin = xd_now_ns();
    /* The copies are another thread's, which comes when it comes. */
    for (int s = 0; s < 400 || last >= first; s++, in_time(begin, "what the CPU computes in VRAM")) {
        r.rng = 7; /* the same experts over and over */
        r.cpu_bytes = 0;
        step(&r, false);
        first = s ? first : r.cpu_bytes;
        last = r.cpu_bytes;
    }
    pager_stats st;
    pager_get_stats(r.p, &st);
    cr_assert_gt(first, 0);
    cr_assert_lt(last, first);
    cr_assert_gt(st.promotions, 0);
    cr_assert_eq(st.fills, 0);
    rig_close(&r);
}

Test(pager, full_mode_ends_with_everything_in_vram)
{
    rig r = {0};
    rig_open_model(&r, 20000);
    rig_open(&r, model_expert_bytes(r.m) / 2);
    xd_err err = {0};
    cr_assert_eq(pager_set_mode(r.p, PAGER_FULL, &err), XD_UNSUPPORTED);
    cr_assert(strstr(err.msg, "have a place"), "%s", err.msg);
    cr_assert_eq(pager_get_mode(r.p), PAGER_DIRECT);
    pager_free(r.p);
    rig_open(&r, model_expert_bytes(r.m) * 2);
    cr_assert_eq(pager_set_mode(r.p, PAGER_STAGED, &err), XD_OK);
    for (int s = 0; s < 20; s++)
        step(&r, s == 3);
    cr_assert_eq(pager_set_mode(r.p, PAGER_FULL, &err), XD_OK);
    pager_stats st = {.pages_total = 1};
    uint64_t begin = xd_now_ns();
    for (int s = 0; st.slots_used != st.pages_total; s++, in_time(begin, "all pages in VRAM")) {
        step(&r, s % 3 == 0);
        pager_get_stats(r.p, &st);
    }
    step(&r, false);
    pager_get_stats(r.p, &st);
    cr_assert_eq(st.step_bytes_host, 0);
    rig_close(&r);
}

static void write_byte(const char *path, long at, int value)
{
    FILE *f = fopen(path, "r+");
    cr_assert(f);
    fseek(f, at, SEEK_SET);
    fputc(value, f);
    fclose(f);
}

Test(pager, a_warm_start_brings_back_what_was_hot)
{
    char dir[] = "/tmp/xd-warm-XXXXXX", path[64];
    cr_assert(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/heat", dir);
    rig r = {0};
    rig_open_model(&r, 20000);
    r.cfg->pager.warm_start = true;
    free(r.cfg->pager.stats_file);
    r.cfg->pager.stats_file = strdup(path);
    rig_open(&r, model_expert_bytes(r.m) / 3);
    pager_stats st;
    uint8_t tier[64], heat[64], tier2[64], heat2[64], cold[64] = {0};
    pager_get_map(r.p, cold, heat);
    pager_get_stats(r.p, &st);
    cr_assert_eq(st.slots_used, st.slots_total, "nothing is known: any expert is better than an empty slot");
    for (int s = 0; s < 100; s++)
        step(&r, false);
    pager_get_map(r.p, tier, heat);
    cr_assert(memcmp(tier, cold, sizeof tier), "those of which nothing was known have given way");
    pager_free(r.p);

    rig_open(&r, model_expert_bytes(r.m) / 3);
    pager_get_stats(r.p, &st);
    cr_assert_eq(st.slots_used, st.slots_total, "filled before the first step");
    pager_get_map(r.p, tier2, heat2);
    uint32_t hottest = 0;
    for (uint32_t i = 0; i < 64; i++)
        hottest = heat[i] > heat[hottest] ? i : hottest;
    cr_assert_eq(tier2[hottest], 2);
    step(&r, false);
    pager_get_stats(r.p, &st);
    cr_assert_gt(st.hits_vram, 0);
    pager_free(r.p);

    /* Not what was saved: a start of which nothing is known, no error. */
    write_byte(path, 100, 0x55);
    rig_open(&r, model_expert_bytes(r.m) / 3);
    pager_get_map(r.p, tier2, heat2);
    cr_assert_arr_eq(tier2, cold, sizeof cold);
    pager_free(r.p);
    cr_assert_eq(truncate(path, 10), 0);
    rig_open(&r, model_expert_bytes(r.m) / 3);
    pager_get_map(r.p, tier2, heat2);
    cr_assert_arr_eq(tier2, cold, sizeof cold);
    xd_err err = {0};
    free(r.cfg->pager.stats_file);
    r.cfg->pager.stats_file = strdup("/nonexistent/heat");
    cr_assert_eq(pager_save_stats(r.p, &err), XD_IO);
    cr_assert(strstr(err.msg, "/nonexistent/heat"));
    /* What holds something else stays as it is. */
    static const char text[] = "somebody's notes, longer than a header\n";
    FILE *f = fopen(path, "w");
    cr_assert(f && fputs(text, f) >= 0 && !fclose(f));
    free(r.cfg->pager.stats_file);
    r.cfg->pager.stats_file = strdup(path);
    cr_assert_eq(pager_save_stats(r.p, &err), XD_BAD_CONFIG);
    cr_assert(strstr(err.msg, "not overwritten"), "%s", err.msg);
    char kept[64] = "";
    f = fopen(path, "r");
    cr_assert(f && fgets(kept, sizeof kept, f) && !strcmp(kept, text));
    fclose(f);
    cr_assert_eq(truncate(path, 0), 0);
    cr_assert_eq(pager_save_stats(r.p, &err), XD_OK, "%s", err.msg);
    free(r.cfg->pager.stats_file); /* a device would be replaced by a file */
    r.cfg->pager.stats_file = strdup("/dev/null");
    cr_assert_eq(pager_save_stats(r.p, &err), XD_BAD_CONFIG);
    pager_free(r.p);
    r.cfg->pager.warm_start = false;
    rig_open(&r, model_expert_bytes(r.m) / 3);
    pager_get_stats(r.p, &st);
    cr_assert_eq(st.slots_used, 0);
    rig_close(&r);
    unlink(path);
    rmdir(dir);
}

/* The replay of a recorded trace tells what the pager does: the same policy, used in the same way. It counts experts where the pager
 * counts pages, so the two differ a little. */
Test(pager, hits_as_the_replay_of_its_own_trace_says)
{
    static const int kinds[] = {CONF_EVICT_LRU, CONF_EVICT_LFU, CONF_EVICT_LFRU};
    for (size_t i = 0; i < XD_ARRAY_LEN(kinds); i++) {
        char path[] = "/tmp/xd-pager-trace-XXXXXX";
        int fd = mkstemp(path);
        cr_assert_geq(fd, 0);
        close(fd);
        rig r = {0};
        xd_err err = {0};
        rig_open_model(&r, 2u << 20); /* a page a matrix */
        r.n_tokens = 1;
        r.cfg->pager.eviction = kinds[i];
        cr_assert_eq(conf_set(r.cfg, "pager.trace_file", path, &err), XD_OK, "%s", err.msg);
        rig_open(&r, model_expert_bytes(r.m) * 3 / 10);
        for (int s = 0; s < 3000; s++)
            step(&r, false);
        pager_stats st;
        pager_get_stats(r.p, &st);
        double got = (double)st.hits_vram / (double)(st.hits_vram + st.hits_host) * 100;
        uint32_t capacity = (uint32_t)st.slots_total / MODEL_MATRICES;
        double floor = r.cfg->pager.layer_floor;
        uint32_t inserts = r.cfg->pager.max_inserts;
        rig_close(&r);

        trace *t;
        cr_assert_eq(trace_load(path, &t, &err), XD_OK, "%s", err.msg);
        trace_options o = {.policy = kinds[i],
                           .capacity = capacity,
                           .max_inserts = XD_MAX(inserts / MODEL_MATRICES, 1u),
                           .layer_floor = floor};
        trace_result res;
        cr_assert_eq(trace_replay(t, &o, NULL, NULL, &res, &err), XD_OK, "%s", err.msg);
        trace_free(t);
        unlink(path);
        printf("%d: the pager hit %.1f %%, its replay %.1f %%\n", kinds[i], got, res.hit_rate * 100);
        cr_assert_float_eq(got, res.hit_rate * 100, 3);
    }
}

static uint32_t count_admitted(rig *r)
{
    const pager_view *v;
    uint32_t n = 0;
    cr_assert_eq(pager_step_begin(r->p, false, &v, NULL), XD_OK);
    for (uint32_t l = 0; l < model_get_params(r->m)->n_layers; l++)
        for (uint32_t e = 0; e < v->layers[l].n_experts; e++)
            n += v->layers[l].admit[e];
    pager_step_abort(r->p);
    return n;
}

Test(pager, everybody_is_admitted_where_everybody_has_a_slot)
{
    rig r = {0};
    xd_err err = {0};
    rig_open_model(&r, 2u << 20);
    r.n_tokens = 1;
    r.cfg->test.allow = true;
    r.cfg->test.vram_free = 1u << 30;
    rig_open(&r, model_expert_bytes(r.m) * 3 / 10);
    uint32_t all = 0;
    for (uint32_t l = 0; l < model_get_params(r.m)->n_layers; l++)
        all += model_get_layer(r.m, l)->n_experts;
    cr_assert_eq(count_admitted(&r), all, "an empty cache takes everybody");
    for (int s = 0; s < 400; s++)
        step(&r, false);
    cr_assert_lt(count_admitted(&r), all);
    cr_assert(pager_take_spare(r.p, &err), "%s", err.msg);
    cr_assert_eq(pager_set_mode(r.p, PAGER_FULL, &err), XD_OK, "%s", err.msg);
    cr_assert_eq(count_admitted(&r), all);
    pager_give_back_spare(r.p);
    for (int s = 0; s < 40; s++)
        step(&r, false);
    cr_assert_lt(count_admitted(&r), all);
    rig_close(&r);
}

static const kern_ops *cpu_ops;

static void say_discrete(kern_dev *d, kern_dev_info *ret)
{
    cpu_ops->info(d, ret);
    ret->unified = false;
}

/* The safetensors header's length may be odd, and then every weight lies across the boundaries of numbers: a GPU faults on them. */
Test(pager, copies_weights_that_a_gpu_could_not_read_in_place)
{
    char dir[] = "/tmp/xd_odd_XXXXXX", path[4200];
    const char *root = getenv("EXPERTD_SOURCE_ROOT");
    cr_assert(mkdtemp(dir));
    char cmd[9000];
    snprintf(cmd, sizeof cmd, "cp %s/tests/data/golden/mixtral-swa/config.json %s", root ? root : ".", dir);
    cr_assert_eq(system(cmd), 0);
    snprintf(path, sizeof path, "%s/tests/data/golden/mixtral-swa/model.safetensors", root ? root : ".");
    FILE *in = fopen(path, "rb");
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    FILE *out = fopen(path, "wb");
    uint64_t header;
    cr_assert(in && out && fread(&header, 8, 1, in) == 1);
    header++;
    fwrite(&header, 8, 1, out);
    for (int c, at = 8; (c = fgetc(in)) != EOF; at++) {
        fputc(c, out);
        if (at == 8) /* behind the first brace */
            fputc(' ', out);
    }
    fclose(in);
    cr_assert_eq(fclose(out), 0);

    xd_err err;
    rig r = {.rng = 1};
    cr_assert_eq(kern_cpu_open(&(kern_options){.n_threads = 1, .numa_node = -1}, &r.dev), KERN_OK);
    cpu_ops = r.dev->ops;
    kern_ops discrete = *cpu_ops;
    discrete.info = say_discrete;
    r.dev->ops = &discrete;
    cr_assert_eq(model_open(&(model_options){.path = dir}, &r.m, &err), XD_OK, "%s", err.msg);
    cr_assert_eq(conf_defaults(&r.cfg, &err), XD_OK);
    r.cfg->pager.warm_start = false;
    r.cfg->memory.host_tier = CONF_TIER_IN_PLACE;
    pager_options po = {.dev = r.dev, .m = r.m, .cfg = r.cfg};
    cr_assert_eq(pager_open(&po, &r.p, &err), XD_UNSUPPORTED);
    cr_assert(strstr(err.msg, "begin at an odd place"), "%s", err.msg);
    r.cfg->memory.host_tier = CONF_TIER_POOL;
    cr_assert_eq(pager_open(&po, &r.p, &err), XD_OK, "%s", err.msg);
    rig_close(&r);
    snprintf(cmd, sizeof cmd, "rm -r %s", dir);
    cr_assert_eq(system(cmd), 0);
}
