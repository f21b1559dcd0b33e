/* Decode steps of which the CPU computes a part of the experts, against the same steps undivided. */
#include <criterion/criterion.h>
#include <math.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "engine/core.h"
#include "engine/exec/exec_priv.h"
#include "engine/memory/pager_priv.h"
#include "kernels/cpu/cpu_priv.h"
#include "tests/unit/late_graph.h"

/* VRAM is filled by WARM steps in place: copies behind the steps' backs may come at any time. */
enum { N_SEQS = 3, PROMPT = 21, STEPS = 12, WARM = 4 };
/* Of the largest logit. Sums in another order, in float32: what is seen is 2e-7. */
#define TOLERANCE 1e-5

/* The device's experts run on a thread, as a GPU's do, until the next operation that uses what they write. The CPU's run on another
 * device. */
enum { END_OF_EXPERTS = 4, MARKS = 5 }; /* split.c */
static struct {
    cpu_dev dev; /* the core's with other operations: the pager's threads go on with the core's */
    kern_dev *other;
    const kern_ops *real, *real_other;
    kern_ops ops, other_ops;
    kern_moe_args moe;
    uint32_t end_mark, n_beside;
    kern_status status;
    bool waits, runs; /* for its mark; as a thread */
    bool fails;       /* the CPU's part, the next time: half a layer is then under way on the device */
    pthread_t thread;
} beside;

static void *run_beside(void *arg)
{
    (void)arg;
    beside.status = beside.real->moe(&beside.dev.base, &beside.moe);
    if (!beside.status)
        beside.status = beside.real->mark(&beside.dev.base, beside.end_mark);
    return NULL;
}

static kern_status moe_beside(kern_dev *d, const kern_moe_args *a)
{
    (void)d;
    cr_assert(!beside.runs && !beside.waits);
    beside.moe = *a;
    beside.waits = true;
    return KERN_OK;
}

static kern_status moe_of_cpu(kern_dev *d, const kern_moe_args *a)
{
    beside.n_beside += beside.runs;
    if (beside.fails && beside.runs) {
        beside.fails = false;
        return KERN_NOMEM;
    }
    return beside.real_other->moe(d, a);
}

static kern_status mark_beside(kern_dev *d, uint32_t slot)
{
    if (!beside.waits)
        return beside.real->mark(d, slot);
    cr_assert_eq(slot % MARKS, END_OF_EXPERTS);
    beside.end_mark = slot;
    beside.waits = false;
    beside.runs = !pthread_create(&beside.thread, NULL, run_beside, NULL);
    return beside.runs ? KERN_OK : KERN_NOMEM;
}

static kern_status add_behind(kern_dev *d, const kern_add_args *a)
{
    if (beside.runs)
        pthread_join(beside.thread, NULL);
    beside.runs = false;
    return beside.status ? beside.status : beside.real->add(d, a);
}

/* What is under way must have ended before slots that it fills are given to others. */
static kern_status sync_beside(kern_dev *d)
{
    if (beside.runs)
        pthread_join(beside.thread, NULL);
    beside.runs = false;
    return beside.status ? beside.status : beside.real->sync(d);
}

static void put_beside(core *c)
{
    cr_assert_eq(kern_cpu_open(&(kern_options){.n_threads = 2, .numa_node = -1}, &beside.other), KERN_OK);
    beside.real = c->dev->ops;
    beside.dev = *cpu_of(c->dev);
    beside.ops = *beside.real;
    beside.ops.moe = moe_beside;
    beside.ops.mark = mark_beside;
    beside.ops.add = add_behind;
    beside.ops.sync = sync_beside;
    beside.dev.base.ops = &beside.ops;
    beside.real_other = beside.other->ops;
    beside.other_ops = *beside.real_other;
    beside.other_ops.moe = moe_of_cpu;
    beside.other->ops = &beside.other_ops;
    beside.n_beside = 0;
    c->x->dev = &beside.dev.base;
    c->x->split.cpu = beside.other;
}

/* The device as one that records. The CPU's part is another's, as beside a GPU. */
static void record(core *c)
{
    cr_assert_eq(kern_cpu_open(&(kern_options){.n_threads = 2, .numa_node = -1}, &beside.other), KERN_OK);
    c->x->dev = c->pg->dev = late_open(c->dev);
    c->x->info.can_record = true;
    c->x->split.cpu = beside.other;
}

static void stop_recording(core *c)
{
    cr_assert_gt(late.n_recorded, 0);
    cr_assert_gt(late.n_replayed, 2 * late.n_recorded);
    exec_split_forget(c->x);
    c->x->dev = c->pg->dev = c->x->split.cpu = c->dev;
    beside.other->ops->close(beside.other);
}

static void put_back(core *c)
{
    c->x->dev = c->x->split.cpu = c->dev;
    beside.other->ops = beside.real_other;
    beside.other->ops->close(beside.other);
}

typedef struct setup {
    const char *model, *dtype;
    double arena, host; /* shares of the experts; host 0: all */
    int mode;
    enum { IN_TURN, BESIDE, RECORDED } how;
    bool fails; /* each step once */
} setup;

typedef struct run {
    float *logits; /* [STEPS][N_SEQS][vocab] */
    uint32_t vocab;
    pager_stats stats;
    uint64_t cpu_ns;
    uint32_t n_failed;
} run;

static void open_core(core *c, config **cfg, const setup *s, const char *pages_path)
{
    xd_err err = {0};
    cr_assert_eq(conf_defaults(cfg, &err), XD_OK, "%s", err.msg);
    const char *const rows[][2] = {{"engine.backend", "cpu"},
                                   {"engine.threads", "2"},
                                   {"engine.deterministic", s->mode == PAGER_SHARED ? "no" : "yes"},
                                   {"engine.max_num_seqs", "4"},
                                   {"engine.max_num_batched_tokens", "64"},
                                   {"model.max_model_len", "128"},
                                   {"model.dtype", s->dtype},
                                   {"memory.page_size", "64KiB"},
                                   {"pager.warm_start", "no"}};
    for (size_t i = 0; i < XD_ARRAY_LEN(rows); i++)
        cr_assert_eq(conf_set(*cfg, rows[i][0], rows[i][1], &err), XD_OK, "%s", err.msg);
    model *m;
    model_options mo = {.path = s->model, .dtype = s->dtype, .seed = (*cfg)->model.seed};
    cr_assert_eq(model_open(&mo, &m, &err), XD_OK, "%s", err.msg);
    double bytes = (double)model_expert_bytes(m);
    model_free(m);
    (*cfg)->memory.vram_budget = (uint64_t)(s->arena * bytes);
    if (s->host > 0) {
        (*cfg)->memory.host_budget = (uint64_t)(s->host * bytes);
        cr_assert_eq(conf_set(*cfg, "memory.nvme_path", pages_path, &err), XD_OK, "%s", err.msg);
    }
    cr_assert_eq(core_open(c, *cfg, s->model, NULL, NULL, &err), XD_OK, "%s", err.msg);
}

/* The same ids in every run: what is compared are logits, not choices. */
static uint32_t id_at(uint32_t seq, uint32_t pos, uint32_t vocab)
{
    return (seq * 7919 + pos * 104729 + 17) % vocab;
}

static xd_status try_forward(core *c, kv_seq **seq, uint32_t pos, uint32_t n, float *logits, xd_err *err)
{
    exec_run_seq q[N_SEQS];
    uint32_t ids[N_SEQS][PROMPT], rows[N_SEQS];
    for (uint32_t i = 0; i < N_SEQS; i++) {
        cr_assert_eq(kv_seq_reserve(c->kv, seq[i], pos + n), XD_OK);
        for (uint32_t j = 0; j < n; j++)
            ids[i][j] = id_at(i, pos + j, c->hp->vocab);
        q[i] = (exec_run_seq){.ids = ids[i], .pos = pos, .n_tokens = n, .n_rows = 1, .want = EXEC_WANT_LOGITS};
        q[i].blocks = kv_seq_blocks(seq[i], &q[i].n_blocks);
        q[i].stride = kv_seq_stride(seq[i]);
        rows[i] = i;
    }
    exec_result res;
    const float *row[N_SEQS];
    exec_batch b = {.seqs = q, .n_seqs = N_SEQS, .prefill = n > 1};
    xd_status st = exec_run(c->x, &b, &res, err);
    if (st)
        return st;
    cr_assert_eq(exec_fetch_rows(c->x, rows, N_SEQS, row, err), XD_OK, "%s", err->msg);
    for (uint32_t i = 0; logits && i < N_SEQS; i++)
        memcpy(logits + (size_t)i * c->hp->vocab, row[i], c->hp->vocab * sizeof *logits);
    return XD_OK;
}

static void forward(core *c, kv_seq **seq, uint32_t pos, uint32_t n, float *logits)
{
    xd_err err = {0};
    cr_assert_eq(try_forward(c, seq, pos, n, logits, &err), XD_OK, "%s", err.msg);
}

/* Every slot has a page or is free. */
static void check_slots(core *c)
{
    pager_copier_drain(&c->pg->copier);
    pager_idle(c->pg);
    pager_copier_drain(&c->pg->copier);
    pager_idle(c->pg);
    uint32_t used = 0;
    for (uint32_t i = 0; i < c->pg->n_slots; i++)
        used += c->pg->slot_page[i] != PG_NONE;
    cr_assert_eq(used + c->pg->n_free_slots, c->pg->n_slots);
}

static run decode(const setup *s)
{
    char dir[] = "/tmp/xd-split-XXXXXX", pages_path[64];
    cr_assert(mkdtemp(dir));
    snprintf(pages_path, sizeof pages_path, "%s/pages", dir);
    core c;
    config *cfg;
    open_core(&c, &cfg, s, pages_path);
    run r = {.vocab = c.hp->vocab};
    r.logits = malloc((size_t)STEPS * N_SEQS * r.vocab * sizeof *r.logits);
    xd_err err = {0};
    kv_seq *seq[N_SEQS];
    for (uint32_t i = 0; i < N_SEQS; i++)
        cr_assert_eq(kv_seq_new(c.kv, &seq[i], &err), XD_OK, "%s", err.msg);
    forward(&c, seq, 0, PROMPT, NULL);
    uint64_t warm_hits = 0, warm_host = 0;
    for (uint32_t t = 0; t < STEPS; t++) {
        if (t == WARM) {
            pager_get_stats(c.pg, &r.stats);
            warm_hits = r.stats.hits_vram;
            warm_host = r.stats.bytes_host;
            cr_assert_eq(pager_set_mode(c.pg, s->mode, &err), XD_OK, "%s", err.msg);
            if (s->how == BESIDE)
                put_beside(&c);
            if (s->how == RECORDED)
                record(&c);
        }
        float *logits = r.logits + (size_t)t * N_SEQS * r.vocab;
        if (s->fails && t >= WARM) {
            beside.fails = true;
            xd_status st = try_forward(&c, seq, PROMPT + t, 1, logits, &err);
            r.n_failed += st == XD_NOMEM;
            cr_assert(st == XD_NOMEM || (st == XD_OK && beside.fails), "%s", err.msg);
            beside.fails = false;
        }
        forward(&c, seq, PROMPT + t, 1, logits);
        exec_times times;
        exec_get_times(c.x, &times);
        r.cpu_ns += times.cpu_ns;
        cr_assert_leq(times.cpu_ns, times.total_ns);
    }
    if (s->how == BESIDE)
        put_back(&c);
    if (s->how == RECORDED)
        stop_recording(&c);
    check_slots(&c);
    pager_get_stats(c.pg, &r.stats);
    r.stats.hits_vram -= warm_hits;
    r.stats.bytes_host -= warm_host;
    for (uint32_t i = 0; i < N_SEQS; i++)
        kv_seq_free(c.kv, seq[i]);
    core_close(&c);
    conf_free(cfg);
    unlink(pages_path);
    rmdir(dir);
    return r;
}

static double worst_error(const run *a, const run *b)
{
    double most = 0, worst = 0;
    for (size_t i = 0; i < (size_t)STEPS * N_SEQS * a->vocab; i++) {
        cr_assert(isfinite(b->logits[i]));
        most = fmax(most, fabs((double)a->logits[i]));
        worst = fmax(worst, fabs((double)a->logits[i] - (double)b->logits[i]));
    }
    return worst / most;
}

static void compare(const char *name, const char *dtype, int how)
{
    static const struct {
        double arena, host;
    } tiers[] = {{0, 0}, {0.1, 0}, {0.5, 0}, {0, 0.5}, {0.2, 0.5}};
    run whole = decode(&(setup){.model = name, .dtype = dtype, .mode = PAGER_DIRECT});
    cr_assert_eq(whole.stats.bytes_cpu, 0);
    cr_assert_eq(whole.cpu_ns, 0);
    for (size_t i = 0; i < XD_ARRAY_LEN(tiers); i++) {
        run split = decode(&(setup){name, dtype, tiers[i].arena, tiers[i].host, PAGER_SHARED, how, false});
        double e = worst_error(&whole, &split);
        printf("%s %s, %2.0f %% in VRAM, %3.0f %% in RAM: %.2e of the largest logit, CPU %llu KiB, link %llu KiB\n",
               name, dtype, 100 * tiers[i].arena, tiers[i].host > 0 ? 100 * tiers[i].host : 100, e,
               (unsigned long long)split.stats.bytes_cpu / 1024, (unsigned long long)split.stats.bytes_host / 1024);
        cr_assert_lt(e, TOLERANCE);
        cr_assert_gt(split.stats.bytes_cpu, 0);
        cr_assert_gt(split.cpu_ns, 0);
        cr_assert_gt(split.stats.bytes_host, 0);
        cr_assert(how != BESIDE || beside.n_beside);
        if (tiers[i].arena >= 0.5)
            cr_assert_gt(split.stats.hits_vram, 0);
        free(split.logits);
    }
    free(whole.logits);
}

Test(split, a_divided_layer_gives_the_undivided_ones_numbers)
{
    compare("synthetic:tiny", "bf16", IN_TURN);
    compare("synthetic:tiny", "q8_0", IN_TURN);
}

Test(split, both_sides_may_run_at_once)
{
    compare("synthetic:tiny", "bf16", BESIDE);
}

Test(split, segments_are_recorded_once_and_replayed)
{
    compare("synthetic:tiny", "bf16", RECORDED);
    compare("synthetic:tiny", "q8_0", RECORDED);
}

/* Memory runs out on the CPU while the device fills slots: the step is given up, no slot is lost, and the next one is right. */
Test(split, a_step_whose_cpu_part_fails_leaves_nothing_behind)
{
    run whole = decode(&(setup){.model = "synthetic:tiny", .dtype = "bf16", .mode = PAGER_DIRECT});
    for (int i = 0; i < 2; i++) {
        run split = decode(&(setup){.model = "synthetic:tiny",
                                    .dtype = "bf16",
                                    .arena = 0.2,
                                    .host = i ? 0.5 : 0,
                                    .mode = PAGER_SHARED,
                                    .how = BESIDE,
                                    .fails = true});
        cr_assert_gt(split.n_failed, 0);
        cr_assert_lt(worst_error(&whole, &split), TOLERANCE);
        free(split.logits);
    }
    free(whole.logits);
}
