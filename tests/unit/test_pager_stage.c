/* Staging: what a prompt's next layer will want is copied while the present one computes. Bytes are compared by every step. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <sched.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "in_time.h"
#include "pager_rig.h"

enum { MANY = 64 }; /* tokens that need nearly all experts of a layer */

/* A device whose background copies take their time, leave rubbish until they are done, and fail now and then. */
static struct {
    const kern_ops *real;
    kern_ops ops;
    uint32_t fail_every, n_copies, yields;
} dev;

static kern_status slow_copy(kern_dev *d, void *dst, const void *src, uint64_t bytes)
{
    memset(dst, 0xa5, bytes);
    for (uint32_t i = 0; i < dev.yields; i++)
        sched_yield();
    if (dev.fail_every && ++dev.n_copies % dev.fail_every == 0)
        return KERN_DEVICE;
    return dev.real->copy_async(d, dst, src, bytes);
}

static void open_rig(rig *r, double arena_share, uint32_t fail_every)
{
    xd_err err = {0};
    *r = (rig){0};
    rig_open_model(r, 20000);
    r->n_tokens = MANY;
    r->cfg->pager.warm_start = true; /* the arena is full from the start */
    free(r->cfg->pager.stats_file);
    r->cfg->pager.stats_file = strdup("/nonexistent/heat");
    rig_open(r, (uint64_t)(arena_share * (double)model_expert_bytes(r->m)));
    dev.real = r->dev->ops;
    dev.ops = *dev.real;
    dev.ops.copy_async = slow_copy;
    dev.fail_every = fail_every;
    dev.n_copies = 0;
    dev.yields = 100;
    r->dev->ops = &dev.ops;
    cr_assert_eq(pager_set_mode(r->p, PAGER_STAGED, &err), XD_OK, "%s", err.msg);
}

Test(pager_stage, a_prompt_finds_the_next_layer_copied)
{
    static const double arenas[] = {0.05, 0.4, 0.7, 0.8, 0.9};
    for (size_t i = 0; i < XD_ARRAY_LEN(arenas); i++) {
        rig r;
        open_rig(&r, arenas[i], 0);
        for (int s = 0; s < 30; s++)
            step(&r, true);
        pager_stats st = stats(&r);
        printf("%2.0f %%: %llu of %llu KiB were copied ahead, %llu in vain\n", arenas[i] * 100,
               (unsigned long long)st.staged_ahead_useful_bytes >> 10, (unsigned long long)st.bytes_host >> 10,
               (unsigned long long)st.staged_ahead_wasted_bytes >> 10);
        cr_assert_leq(st.staged_ahead_useful_bytes, st.bytes_host);
        cr_assert_leq(st.staged_ahead_wasted_bytes, st.staged_ahead_useful_bytes / 2);
        /* A quarter of the slots is for staging: here that is more than one layer misses only when most has a slot. */
        cr_assert_eq(st.staged_ahead_useful_bytes > st.bytes_host / 4, arenas[i] >= 0.7);
        rig_close(&r);
    }
}

Test(pager_stage, nothing_is_copied_ahead_for_few_tokens)
{
    rig r;
    open_rig(&r, 0.8, 0);
    for (int s = 0; s < 30; s++)
        step(&r, false);
    r.n_tokens = 1;
    for (int s = 0; s < 30; s++)
        step(&r, true);
    pager_stats st = stats(&r);
    cr_assert_eq(st.staged_ahead_useful_bytes + st.staged_ahead_wasted_bytes, 0);
    rig_close(&r);
}

Test(pager_stage, a_copy_that_fails_is_made_again)
{
    rig r;
    open_rig(&r, 0.8, 101); /* the copies that were begun with it fail as well */
    for (int s = 0; s < 60; s++)
        step(&r, s % 3 != 0);
    cr_assert_gt(stats(&r).staged_ahead_useful_bytes, 0);
    cr_assert_gt(dev.n_copies, 101);
    rig_close(&r);
    open_rig(&r, 0.8, 1);
    for (int s = 0; s < 20; s++)
        step(&r, true);
    cr_assert_eq(stats(&r).staged_ahead_useful_bytes, 0);
    rig_close(&r);
}

/* A step that ends before its last layer leaves copies under way in slots that the next step uses. */
Test(pager_stage, a_step_may_be_given_up_at_any_layer)
{
    rig r;
    xd_err err = {0};
    open_rig(&r, 0.8, 0);
    uint32_t n_layers = model_get_params(r.m)->n_layers;
    for (uint32_t s = 0; s < 60; s++) {
        const pager_view *v;
        cr_assert_eq(pager_step_begin(r.p, true, &v, &err), XD_OK, "%s", err.msg);
        for (uint32_t l = 0; l < s % n_layers; l++) {
            pick(&r, l);
            plan(&r, v, l);
            cr_assert_eq(pager_require(r.p, l, v->layers[l].expert_count, &err), XD_OK, "%s", err.msg);
            read_layer(&r, v, l);
        }
        pager_step_abort(r.p);
        step(&r, s % 2);
    }
    rig_close(&r);
}

Test(pager_stage, bytes_stay_right_while_modes_policies_and_memory_change)
{
    static const int eviction[] = {CONF_EVICT_LRU, CONF_EVICT_LFU, CONF_EVICT_LFRU, CONF_EVICT_STATIC};
    static const int modes[] = {PAGER_STAGED, PAGER_DIRECT, PAGER_SHARED, PAGER_FULL};
    for (size_t k = 0; k < XD_ARRAY_LEN(eviction); k++) {
        rig r = {0};
        open_rig(&r, 0.8, 11);
        pager_free(r.p);
        r.cfg->pager.eviction = eviction[k];
        r.cfg->test.allow = true;
        rig_open(&r, model_expert_bytes(r.m) * 8 / 10);
        for (uint32_t s = 0; s < 200; s++) {
            if (s % 10 == 0) {
                xd_err err = {0};
                r.cfg->test.vram_free = rnd(&r, 3) * stats(&r).slot_bytes * 80;
                if (rnd(&r, 2))
                    pager_give_back_spare(r.p);
                else
                    pager_take_spare(r.p, &err);
                (void)!pager_set_mode(r.p, modes[rnd(&r, 4)], &err); /* FULL where it can be had */
            }
            r.n_tokens = rnd(&r, 3) ? MANY : 2;
            step(&r, rnd(&r, 2));
            pager_idle(r.p);
        }
        pager_stats st = stats(&r);
        cr_assert_gt(st.staged_ahead_useful_bytes, 0);
        cr_assert_leq(st.slots_used, st.slots_total);
        rig_close(&r);
    }
}

/* Staged, and saving statistics to `path` every second. */
static void open_saving(rig *r, const char *path)
{
    open_rig(r, 0.8, 0);
    pager_free(r->p);
    r->cfg->pager.stats_interval_s = 1;
    free(r->cfg->pager.stats_file);
    r->cfg->pager.stats_file = strdup(path);
    rig_open(r, model_expert_bytes(r->m) * 8 / 10);
    cr_assert_eq(pager_set_mode(r->p, PAGER_STAGED, NULL), XD_OK);
}

/* The copy thread saves them, too. It does not wait for the lock that steps hold while they wait for its copies, and gets it all the same. */
Test(pager_stage, statistics_are_saved_between_steps)
{
    char dir[] = "/tmp/xd-stage-XXXXXX", path[64];
    cr_assert(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/heat", dir);
    rig r;
    open_saving(&r, path);
    for (uint64_t begin = xd_now_ns(); access(path, F_OK); in_time(begin, "a file of statistics"))
        step(&r, true);
    cr_assert_gt(stats(&r).staged_ahead_useful_bytes, 0);
    rig_close(&r);
    unlink(path);
    rmdir(dir);
}

/* A disk that takes its time to save them holds up no step: here it does not answer before somebody reads the pipe. Steps that waited
 * for it would wait for ever. */
Test(pager_stage, a_slow_save_holds_up_nobody)
{
    char dir[] = "/tmp/xd-stage-XXXXXX", path[64], slow[80];
    cr_assert(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/heat", dir);
    snprintf(slow, sizeof slow, "%s.new", path);
    cr_assert_eq(mkfifo(slow, 0600), 0);
    rig r;
    open_saving(&r, path);
    uint64_t before = 0, after = 0, begin = xd_now_ns(), since_ns = begin;
    /* Until nothing is copied ahead any more: the thread is writing, or about to. */
    for (; !after || xd_now_ns() - since_ns < 200000000u; in_time(begin, "a save")) {
        before = after;
        step(&r, true);
        after = stats(&r).staged_ahead_useful_bytes;
        if (after > before)
            since_ns = xd_now_ns();
    }
    int fd = open(slow, O_RDONLY | O_NONBLOCK); /* it fails: a pipe cannot be synced */
    cr_assert_geq(fd, 0);
    unlink(
        slow); /* on a busy machine the thread may not have come to open it: no later save, the last one least, is to wait there */
    for (begin = xd_now_ns(); after == before; in_time(begin, "copies ahead")) {
        step(&r, true);
        after = stats(&r).staged_ahead_useful_bytes;
    }
    rig_close(&r);
    close(fd);
    unlink(path);
    rmdir(dir);
}
