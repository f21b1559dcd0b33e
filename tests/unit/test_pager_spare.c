/* Device memory beyond the arena: what a fallback takes, holds and gives back. */
#include <criterion/criterion.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

#include "in_time.h"
#include "pager_rig.h"

/* A device whose allocations fail from the one on that the test says; blocks are counted. */
static struct {
    const kern_ops *real;
    kern_ops ops;
    int64_t before_failure; /* allocations that still succeed; negative: all */
    int live;
} dev;

static uint64_t slot_bytes; /* of the open pager */

static kern_status alloc_or_fail(kern_dev *d, uint64_t bytes, void **ret)
{
    if (!dev.before_failure)
        return KERN_NOMEM;
    dev.before_failure -= dev.before_failure > 0;
    kern_status st = dev.real->alloc(d, bytes, ret);
    dev.live += !st;
    return st;
}

static void free_counted(kern_dev *d, void *p)
{
    dev.live--;
    dev.real->free(d, p);
}

static void watch_allocations(rig *r)
{
    dev.real = r->dev->ops;
    dev.ops = *dev.real;
    dev.ops.alloc = alloc_or_fail;
    dev.ops.free = free_counted;
    dev.before_failure = -1;
    dev.live = 0;
    r->dev->ops = &dev.ops;
}

static void open_pager(rig *r, double arena_share)
{
    rig_open(r, (uint64_t)(arena_share * (double)model_expert_bytes(r->m)));
    slot_bytes = stats(r).slot_bytes;
}

static void open_rig(rig *r, double arena_share)
{
    *r = (rig){0};
    rig_open_model(r, 20000);
    r->cfg->test.allow = true;
    watch_allocations(r);
    open_pager(r, arena_share);
}

/* The copy thread is another: the loop waits for it. */
static void wait_for_fill(rig *r)
{
    for (uint64_t begin = xd_now_ns(); stats(r).filling; in_time(begin, "the end of the fill")) {
        pager_idle(r->p);
        sched_yield();
    }
}

/* Steps go on meanwhile, and it ends even without steps. */
static void fill(rig *r)
{
    for (int s = 0; s < 20 && stats(r).filling; s++)
        step(r, s % 5 == 0);
    wait_for_fill(r);
}

static void steps(rig *r, int n)
{
    for (int s = 0; s < n; s++)
        step(r, s % 5 == 0);
}

Test(pager_spare, everything_is_loaded_where_it_fits_and_given_back)
{
    rig r;
    xd_err err = {0};
    open_rig(&r, 1. / 3);
    pager_stats before = stats(&r), st;
    int live = dev.live;
    r.cfg->test.vram_free = (before.pages_total - before.slots_total) * slot_bytes;
    for (int round = 0; round < 3; round++) {
        cr_assert_eq(pager_set_mode(r.p, round % 2 ? PAGER_STAGED : PAGER_DIRECT, &err), XD_OK, "%s", err.msg);
        steps(&r, 20);
        cr_assert(pager_take_spare(r.p, &err), "%s", err.msg);
        cr_assert_eq(dev.live, live + 1, "one piece");
        cr_assert_eq(pager_set_mode(r.p, PAGER_FULL, &err), XD_OK, "%s", err.msg);
        st = stats(&r);
        cr_assert_eq(st.slots_total, st.pages_total);
        cr_assert_eq(st.slots_spare, st.slots_total - before.slots_total);
        fill(&r);
        st = stats(&r);
        cr_assert_eq(st.slots_used, st.pages_total);
        cr_assert_eq(st.vram_bytes, st.expert_bytes_total);
        step(&r, false);
        cr_assert_eq(stats(&r).step_bytes_host, 0);
        pager_give_back_spare(r.p);
        st = stats(&r);
        cr_assert_eq(pager_get_mode(r.p), PAGER_DIRECT);
        cr_assert_eq(st.slots_total, before.slots_total);
        cr_assert_eq(st.slots_spare, 0);
        cr_assert_leq(st.slots_used, st.slots_total);
        cr_assert_eq(dev.live, live);
        steps(&r, 20);
    }
    rig_close(&r);
}

/* From a fall to the return: all slots that fit are taken and filled, misses are staged, and bytes are right all the time. */
static void one_fallback(rig *r, uint64_t want_slots)
{
    xd_err why = {0}, err = {0};
    uint64_t arena = stats(r).slots_total;
    cr_assert(!pager_take_spare(r->p, &why));
    pager_stats st = stats(r);
    cr_assert_eq(st.slots_total, want_slots, "%llu slots", (unsigned long long)st.slots_total);
    cr_assert_eq(st.slots_spare, want_slots - arena);
    cr_assert_eq(pager_set_mode(r->p, PAGER_FULL, &err), XD_UNSUPPORTED);
    cr_assert_eq(pager_set_mode(r->p, PAGER_STAGED, &err), XD_OK, "%s", err.msg);
    fill(r);
    steps(r, 30);
    /* Staging needs some of the slots. What steps promote and what leaves is whole, so a few may be empty between two steps. */
    st = stats(r);
    cr_assert_leq(st.slots_used, st.slots_total);
    cr_assert_geq(st.slots_used, st.slots_total / 2);
    pager_give_back_spare(r->p);
    st = stats(r);
    cr_assert_eq(st.slots_total, arena);
    cr_assert_leq(st.slots_used, arena);
    steps(r, 20);
}

Test(pager_spare, a_part_is_taken_where_not_all_fits)
{
    static const int eviction[] = {CONF_EVICT_LRU, CONF_EVICT_LFU, CONF_EVICT_LFRU, CONF_EVICT_STATIC};
    static const double arenas[] = {0, 0.1, 0.4}, floors[] = {0, 0.25, 1};
    for (size_t k = 0; k < XD_ARRAY_LEN(eviction); k++)
        for (size_t a = 0; a < XD_ARRAY_LEN(arenas); a++) {
            rig r = {0};
            rig_open_model(&r, 20000);
            r.cfg->test.allow = true;
            r.cfg->pager.eviction = eviction[k];
            r.cfg->pager.layer_floor = floors[(k + a) % XD_ARRAY_LEN(floors)];
            watch_allocations(&r);
            open_pager(&r, arenas[a]);
            int live = dev.live;
            steps(&r, 10);
            uint64_t slots = stats(&r).slots_total;
            for (int round = 0; round < 3; round++) {
                uint64_t more = 20 + 40u * (unsigned)round;
                r.cfg->test.vram_free = more * slot_bytes + slot_bytes / 2;
                one_fallback(&r, slots + more);
                cr_assert_eq(dev.live, live);
            }
            rig_close(&r);
        }
}

/* Of whole experts in VRAM and others. */
static void hottest_are_in(rig *r)
{
    uint32_t n = model_get_params(r->m)->n_layers * model_get_params(r->m)->n_experts_max;
    uint8_t *tier = malloc(n), *heat = malloc(n);
    cr_assert(pager_get_map(r->p, tier, heat));
    uint32_t coldest_in = 255, hottest_out = 0, n_in = 0;
    for (uint32_t i = 0; i < n; i++) {
        n_in += tier[i] == 2;
        if (tier[i] == 2)
            coldest_in = XD_MIN(coldest_in, heat[i]);
        else
            hottest_out = XD_MAX(hottest_out, heat[i]);
    }
    cr_assert_gt(n_in, 0);
    cr_assert_geq(coldest_in, hottest_out, "%u is in, %u is not", coldest_in, hottest_out);
    free(tier);
    free(heat);
}

Test(pager_spare, the_hottest_experts_come_first_and_stay_last)
{
    for (int full = 0; full < 2; full++) {
        rig r = {0};
        xd_err err = {0};
        rig_open_model(&r, 20000);
        r.cfg->test.allow = true;
        r.cfg->pager.eviction = CONF_EVICT_LFU; /* goes by heat alone */
        r.cfg->pager.layer_floor = 0;
        watch_allocations(&r);
        open_pager(&r, 0);
        steps(&r, 60); /* a quarter of the experts are picked in more than half of the cases */
        r.cfg->test.vram_free = stats(&r).pages_total / 2 * slot_bytes;
        pager_take_spare(r.p, &err);
        wait_for_fill(&r);
        hottest_are_in(&r);
        pager_free(r.p);

        /* The other way round: an arena in which others lie. */
        open_pager(&r, 0.3);
        steps(&r, 100);
        r.cfg->test.vram_free = full ? 1ull << 30 : 60 * slot_bytes;
        cr_assert_eq(pager_take_spare(r.p, &err), full);
        cr_assert_eq(pager_set_mode(r.p, full ? PAGER_FULL : PAGER_STAGED, &err), XD_OK, "%s", err.msg);
        wait_for_fill(&r);
        steps(&r, 50);
        pager_stats before = stats(&r);
        pager_give_back_spare(r.p);
        pager_stats st = stats(&r);
        if (full) /* all were there to choose from */
            hottest_are_in(&r);
        cr_assert_leq(st.slots_used, st.slots_total);
        cr_assert_geq(st.slots_used + 2 * 12, st.slots_total, "whole experts leave: no more than that is empty");
        cr_assert_eq(before.slots_used - st.slots_used, st.evictions - before.evictions);
        steps(&r, 50);
        rig_close(&r);
    }
}

/* What cannot be moved goes with the memory. */
static kern_status no_copy(kern_dev *d, void *dst, const void *src, uint64_t bytes)
{
    (void)d;
    memset(dst, 0xa5, bytes);
    (void)src;
    return KERN_DEVICE;
}

Test(pager_spare, a_return_may_fail_to_move_pages)
{
    rig r;
    xd_err err = {0};
    open_rig(&r, 0.3);
    uint64_t arena = stats(&r).slots_total;
    r.cfg->test.vram_free = 1ull << 30;
    for (int round = 0; round < 3; round++) {
        steps(&r, 20);
        cr_assert(pager_take_spare(r.p, &err), "%s", err.msg);
        cr_assert_eq(pager_set_mode(r.p, PAGER_FULL, &err), XD_OK, "%s", err.msg);
        fill(&r);
        dev.ops.copy_async = no_copy;
        pager_give_back_spare(r.p);
        cr_assert_eq(stats(&r).slots_total, arena);
        cr_assert_leq(stats(&r).slots_used, arena);
        steps(&r, 20);
        dev.ops.copy_async = dev.real->copy_async;
    }
    rig_close(&r);
}

Test(pager_spare, the_configured_share_is_a_limit)
{
    rig r;
    xd_err why = {0};
    open_rig(&r, 0.25);
    uint64_t arena = stats(&r).slots_total;
    r.cfg->test.vram_free = 1ull << 30;
    r.cfg->memory.expert_vram_share = 0.6;
    uint64_t most = (uint64_t)(0.6 * (double)model_expert_bytes(r.m)) / slot_bytes;
    cr_assert_gt(most, arena);
    one_fallback(&r, most);
    cr_assert(!pager_take_spare(r.p, &why));
    cr_assert(strstr(why.msg, "memory.expert_vram_share"), "%s", why.msg);
    pager_give_back_spare(r.p);
    r.cfg->memory.expert_vram_share = 0.1; /* less than there is already */
    cr_assert(!pager_take_spare(r.p, &why));
    cr_assert_eq(stats(&r).slots_total, arena);
    r.cfg->memory.expert_vram_share = 1;
    r.cfg->test.vram_free = slot_bytes - 1;
    cr_assert(!pager_take_spare(r.p, &why));
    cr_assert(strstr(why.msg, "are free"), "%s", why.msg);
    cr_assert_eq(stats(&r).slots_total, arena);
    rig_close(&r);
}

/* No piece may be larger than so many slots: as many pieces are taken as are needed, or as there may be. */
Test(pager_spare, memory_in_small_pieces_serves_as_well)
{
    static const uint64_t slots[] = {1, 3, 10, 40, 100};
    for (size_t i = 0; i < XD_ARRAY_LEN(slots); i++) {
        rig r;
        xd_err err = {0};
        open_rig(&r, 0.25);
        pager_stats before = stats(&r);
        int live = dev.live;
        r.cfg->test.vram_free = 1ull << 30;
        r.cfg->test.vram_piece = slots[i] * slot_bytes;
        for (int round = 0; round < 2; round++) {
            bool all = pager_take_spare(r.p, &err);
            pager_stats st = stats(&r);
            cr_assert_gt(dev.live, live + 1);
            cr_assert_eq(all, st.slots_total == st.pages_total);
            if (slots[i] >= 40)
                cr_assert(all, "%s", err.msg);
            cr_assert_gt(st.slots_spare, 0);
            cr_assert_eq(pager_set_mode(r.p, all ? PAGER_FULL : PAGER_STAGED, &err), XD_OK, "%s", err.msg);
            fill(&r);
            steps(&r, 30);
            pager_give_back_spare(r.p);
            cr_assert_eq(stats(&r).slots_total, before.slots_total);
            cr_assert_eq(dev.live, live);
            steps(&r, 20);
        }
        rig_close(&r);
    }
}

/* A GPU with others on it: what is free is another figure whenever it is asked for. */
static uint32_t asked;

static void unsteady_info(kern_dev *d, kern_dev_info *ret)
{
    static const uint64_t slots[] = {3, 1000000, 2};
    dev.real->info(d, ret);
    ret->unified = false;
    ret->memory_free_bytes = (512ull << 20) + slots[asked++ % XD_ARRAY_LEN(slots)] * slot_bytes; /* less the headroom */
}

Test(pager_spare, no_more_is_taken_than_there_are_pages_while_others_come_and_go)
{
    rig r = {0};
    xd_err err = {0};
    rig_open_model(&r, 20000);
    watch_allocations(&r);
    dev.ops.info = unsteady_info;
    open_pager(&r, 0.95);
    for (int round = 0; round < 6; round++) {
        asked = (uint32_t)round;
        pager_take_spare(r.p, &err);
        cr_assert_leq(stats(&r).slots_total, stats(&r).pages_total);
        fill(&r);
        steps(&r, 10);
        pager_give_back_spare(r.p);
    }
    rig_close(&r);
}

/* Each allocation in turn is the first that fails, for good. */
Test(pager_spare, any_allocation_may_fail)
{
    for (int64_t n = 0; n < 8; n++) {
        rig r;
        xd_err err = {0};
        open_rig(&r, 0.25);
        pager_stats before = stats(&r);
        int live = dev.live;
        r.cfg->test.vram_free = 1ull << 30;
        r.cfg->test.vram_piece = 30 * slot_bytes;
        for (int round = 0; round < 2; round++) {
            dev.before_failure = n;
            bool all = pager_take_spare(r.p, &err);
            pager_stats st = stats(&r);
            cr_assert_eq(all, st.slots_total == st.pages_total);
            cr_assert_eq(dev.live, live + XD_MIN(n, dev.live - live));
            cr_assert_eq(st.slots_spare != 0, n != 0);
            if (!n)
                cr_assert(strstr(err.msg, "not all expert pages fit"), "%s", err.msg);
            cr_assert_eq(pager_set_mode(r.p, all ? PAGER_FULL : PAGER_STAGED, &err), XD_OK, "%s", err.msg);
            fill(&r);
            steps(&r, 20);
            /* Later there may be more. */
            dev.before_failure = -1;
            if (pager_take_spare(r.p, &err))
                cr_assert_eq(pager_set_mode(r.p, PAGER_FULL, &err), XD_OK, "%s", err.msg);
            fill(&r);
            steps(&r, 20);
            pager_give_back_spare(r.p);
            cr_assert_eq(dev.live, live);
            cr_assert_eq(stats(&r).slots_total, before.slots_total);
            steps(&r, 20);
        }
        rig_close(&r);
    }
}

/* The way back begins while copies are under way: those that have not begun are dropped, and nothing is taken for there. */
Test(pager_spare, a_return_does_not_wait_for_the_load)
{
    rig r;
    xd_err err = {0};
    open_rig(&r, 0.25);
    uint64_t arena = stats(&r).slots_total;
    int live = dev.live;
    for (int round = 0; round < 40; round++) {
        r.cfg->test.vram_free = round % 2 ? 1ull << 30 : 60 * slot_bytes;
        bool all = pager_take_spare(r.p, &err);
        cr_assert_eq(all, round % 2);
        cr_assert_eq(pager_set_mode(r.p, all ? PAGER_FULL : PAGER_STAGED, &err), XD_OK, "%s", err.msg);
        steps(&r, round % 4);
        pager_give_back_spare(r.p);
        cr_assert_eq(dev.live, live);
        cr_assert_eq(stats(&r).slots_total, arena);
        cr_assert(!stats(&r).filling);
        steps(&r, round % 3);
    }
    rig_close(&r);
}

/* Where tokens are quicker so, missing pages are read in place although the link is bad: what lies in VRAM stays there. */
Test(pager_spare, a_part_is_kept_when_misses_are_read_in_place)
{
    rig r;
    xd_err err = {0};
    open_rig(&r, 0.2);
    r.cfg->test.vram_free = 80 * slot_bytes;
    cr_assert(!pager_take_spare(r.p, &err));
    cr_assert_eq(pager_set_mode(r.p, PAGER_STAGED, &err), XD_OK, "%s", err.msg);
    steps(&r, 10);
    cr_assert_eq(pager_set_mode(r.p, PAGER_DIRECT, &err), XD_OK, "%s", err.msg);
    pager_stats st = stats(&r);
    cr_assert_eq(st.slots_spare, 80);
    fill(&r);
    steps(&r, 100);
    st = stats(&r);
    cr_assert_geq(st.slots_used, st.slots_total * 3 / 4);
    pager_give_back_spare(r.p);
    steps(&r, 20);
    rig_close(&r);
}

Test(pager_spare, over_a_disk_a_part_holds_what_steps_bring)
{
    char dir[] = "/tmp/xd-spare-XXXXXX", path[64];
    cr_assert(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/pages", dir);
    rig r = {0};
    xd_err err = {0};
    rig_open_model(&r, 20000);
    r.cfg->test.allow = true;
    free(r.cfg->memory.nvme_path);
    r.cfg->memory.nvme_path = strdup(path);
    r.cfg->memory.host_budget = model_expert_bytes(r.m) * 2 / 5;
    watch_allocations(&r);
    open_pager(&r, 0.1);
    pager_stats before = stats(&r), st;
    int live = dev.live;
    steps(&r, 20);
    for (int round = 0; round < 3; round++) {
        /* The last one: as many slots as there are pages, and still some pages are on disk at first. */
        uint64_t more = round < 2 ? 60 : before.pages_total;
        r.cfg->test.vram_free = more * slot_bytes;
        cr_assert(!pager_take_spare(r.p, &err));
        if (round == 2)
            cr_assert(strstr(err.msg, "disk"), "%s", err.msg);
        cr_assert_eq(pager_set_mode(r.p, PAGER_FULL, &err), XD_UNSUPPORTED);
        cr_assert_eq(pager_set_mode(r.p, PAGER_STAGED, &err), XD_OK, "%s", err.msg);
        fill(&r);
        steps(&r, 200);
        st = stats(&r);
        cr_assert_eq(st.slots_spare, XD_MIN(more, before.pages_total - before.slots_total));
        cr_assert_geq(st.slots_used, round < 2 ? 40 : st.pages_total / 2);
        pager_give_back_spare(r.p);
        cr_assert_eq(dev.live, live);
        st = stats(&r);
        cr_assert_eq(st.vram_bytes + st.host_bytes + st.disk_bytes, st.expert_bytes_total);
        steps(&r, 20);
    }
    rig_close(&r);
    unlink(path);
    rmdir(dir);
}
