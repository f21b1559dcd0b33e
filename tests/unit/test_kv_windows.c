/* test_kv_windows.c - the KV cache where groups of layers have windows: what a sequence needs is there, what no window reaches is given back, and
 * sizes are what running sequences come to; also where blocks of some groups hold more tokens than those of others. */
#include <criterion/criterion.h>
#include <string.h>

#include "engine/memory/kv_priv.h"

/* One layer a group, one head, 8 floats, 4 tokens a block: 256 bytes, and a page of swap space. A span makes that 8 tokens of 4 floats, or 16 of 2. The
 * tests play the model: for each token and group they
 * write a hash of all tokens up to it, and look for it wherever a later token would. */
enum { BS = 4, DIM = 8, MOST_GROUPS = 4 };

typedef struct rig {
    kern_dev *dev;
    kv_cache *kv;
    kern_kv d;
    uint32_t n_groups;
    const uint32_t *window;
    uint32_t whole; /* tokens */
} rig;

typedef struct rig_options {
    uint32_t n_blocks, n_swap, window[MOST_GROUPS], span[MOST_GROUPS], n_groups;
    bool no_prefix, cold;
} rig_options;

static kv_options options_of(const rig_options *z)
{
    kv_options o = {.n_layers = 1,
                    .n_groups = z->n_groups,
                    .step_tokens = 1u << 20,
                    .n_kv_heads = 1,
                    .head_dim = DIM,
                    .block_size = BS,
                    .fmt = FMT_F32,
                    .n_blocks = z->n_blocks,
                    .swap_bytes = z->n_swap * 4096ull,
                    .prefix_caching = !z->no_prefix,
                    .allow_cold = z->cold};
    memcpy(o.window, z->window, sizeof z->window);
    memcpy(o.span, z->span, sizeof z->span);
    return o;
}

static rig rig_open(rig_options z)
{
    rig r = {.n_groups = z.n_groups};
    cr_assert_eq(kern_cpu_open(&(kern_options){.n_threads = 1, .numa_node = -1}, &r.dev), KERN_OK);
    kv_options o = options_of(&z);
    o.dev = r.dev;
    xd_err err = {0};
    cr_assert_eq(kv_open(&o, &r.kv, &err), XD_OK, "%s", err.msg);
    kv_describe(r.kv, 0, &r.d);
    r.window = kv_get_options(r.kv)->window;
    r.whole = BS * XD_MAX(XD_MAX(z.span[0], z.span[1]), XD_MAX(XD_MAX(z.span[2], z.span[3]), 1u));
    return r;
}

static void rig_close(rig *r)
{
    kv_free(r->kv);
    r->dev->ops->close(r->dev);
}

static uint64_t chain(const uint32_t *ids, uint32_t n, uint32_t group)
{
    uint64_t h = 1469598103934665603u + group;
    for (uint32_t i = 0; i < n; i++)
        h = (h ^ (ids[i] + 1)) * 1099511628211u;
    return h;
}

static uint32_t n_blocks_of(const rig *r, const kv_seq *s, uint32_t group)
{
    uint32_t n;
    kv_seq_blocks(s, &n);
    const uint32_t tokens = kv_block_tokens(kv_get_options(r->kv), group);
    return (n * BS + tokens - 1) / tokens;
}

static uint32_t block_of(const rig *r, const kv_seq *s, uint32_t group, uint32_t i)
{
    uint32_t n;
    const uint32_t *b = kv_seq_blocks(s, &n);
    cr_assert_lt(i, n_blocks_of(r, s, group));
    return b[group * kv_seq_stride(s) + i];
}

static float *slot(const rig *r, const kv_seq *s, uint32_t group, uint32_t t)
{
    const uint32_t tokens = kv_block_tokens(kv_get_options(r->kv), group), b = block_of(r, s, group, t / tokens);
    cr_assert_lt(b, kv_n_ids(r->kv), "token %u of group %u has no block", t, group);
    return (float *)(uintptr_t)r->d.block_addr[b] + (t % tokens) * (DIM * BS / tokens);
}

static void compute(const rig *r, const kv_seq *s, const uint32_t *ids, uint32_t from, uint32_t to)
{
    for (uint32_t g = 0; g < r->n_groups; g++)
        for (uint32_t t = from; t < to; t++) {
            uint64_t h = chain(ids, t + 1, g);
            memcpy(slot(r, s, g, t), &h, sizeof h);
        }
}

/* All that token n sees. */
static void check(const rig *r, const kv_seq *s, const uint32_t *ids, uint32_t n)
{
    for (uint32_t g = 0; g < r->n_groups; g++)
        for (uint32_t t = r->window[g] && n + 1 > r->window[g] ? n + 1 - r->window[g] : 0; t < n; t++) {
            uint64_t h = chain(ids, t + 1, g), got;
            memcpy(&got, slot(r, s, g, t), sizeof got);
            cr_assert_eq(got, h, "token %u of %u, group %u, has another prefix's KV", t, n, g);
        }
}

static kv_seq *seq_new(const rig *r)
{
    kv_seq *s;
    cr_assert_eq(kv_seq_new(r->kv, &s, NULL), XD_OK);
    return s;
}

/* Tokens [from, to) in steps of `chunk`. */
static void go_on(const rig *r, kv_seq *s, const uint32_t *ids, uint32_t from, uint32_t to, uint32_t chunk)
{
    for (uint32_t next; from < to; from = next) {
        next = XD_MIN(from + chunk, to);
        cr_assert_eq(kv_seq_reserve(r->kv, s, next), XD_OK, "tokens %u to %u", from, next);
        check(r, s, ids, from);
        compute(r, s, ids, from, next);
        kv_seq_commit(r->kv, s, ids, next);
    }
}

static kv_stats stats(const rig *r)
{
    kv_stats st;
    kv_get_stats(r->kv, &st);
    return st;
}

static void count_up(uint32_t *ids, uint32_t n, uint32_t first)
{
    for (uint32_t i = 0; i < n; i++)
        ids[i] = first + i;
}

/* Invariants 1, 2 and 4 of kv.c, as far as they can be seen: each place is in one list of its kind or has owners, lists are as long as they say, and
 * nodes and places name each other. */
static void check_places(const kv_cache *kv)
{
    const uint32_t n = kv->n_dev + kv->n_host;
    uint8_t *seen = calloc(n, 1);
    for (int t = 0; t < 2; t++) {
        uint32_t n_free = 0, n_lru = 0, before = KV_NONE;
        for (uint32_t b = kv->tier[t].free_head; b != KV_NONE; b = kv->places[b].next, n_free++) {
            cr_assert(!seen[b]++ && !kv->places[b].refs && kv_place_is_host(kv, b) == t);
            cr_assert_eq(kv->places[b].node, KV_NONE);
        }
        for (uint32_t b = kv->tier[t].lru.head; b != KV_NONE; before = b, b = kv->places[b].next, n_lru++) {
            cr_assert(!seen[b]++ && !kv->places[b].refs && kv_place_is_host(kv, b) == t);
            cr_assert_neq(kv->places[b].node, KV_NONE);
            cr_assert_eq(kv->places[b].prev, before);
        }
        cr_assert(n_free == kv->tier[t].n_free && n_lru == kv->tier[t].lru.count && before == kv->tier[t].lru.tail);
    }
    for (uint32_t b = 0; b < n; b++) {
        const kv_place *p = &kv->places[b];
        cr_assert_eq(seen[b], !p->refs, "place %u is in %u lists and has %u owners", b, seen[b], p->refs);
        if (p->node != KV_NONE)
            cr_assert_eq(kv_prefix_place(kv->prefix, p->node, p->group), b);
    }
    free(seen);
}

Test(kv_windows, blocks_behind_the_window_are_given_back_and_none_before)
{
    rig r = rig_open((rig_options){.n_blocks = 64, .window = {0, 6}, .n_groups = 2, .no_prefix = true});
    uint32_t ids[48];
    count_up(ids, 48, 0);
    kv_seq *s = seq_new(&r);
    for (uint32_t n = 1; n <= 48; n++) {
        go_on(&r, s, ids, n - 1, n, 1);
        check(&r, s, ids, n);
        for (uint32_t i = 0; i < (n + BS - 1) / BS; i++) {
            cr_assert_neq(block_of(&r, s, 0, i), KV_NONE);
            /* The first token of the last block sees five tokens more. */
            const uint32_t last = (n - 1) / BS * BS, first = last + 1 > 6 ? last + 1 - 6 : 0;
            cr_assert_eq(block_of(&r, s, 1, i) == KV_NONE, i < first / BS, "block %u of %u tokens", i, n);
        }
    }
    cr_assert_eq(stats(&r).window_released, 9);
    cr_assert_eq(stats(&r).blocks_used, 12 + 3);
    check_places(r.kv);
    kv_seq_free(r.kv, s);
    cr_assert_eq(stats(&r).blocks_used, 0);
    rig_close(&r);
}

Test(kv_windows, what_is_given_back_serves_others)
{
    rig r = rig_open((rig_options){.n_blocks = 16, .window = {0, 4}, .n_groups = 2});
    uint32_t ids[40], other[8];
    count_up(ids, 40, 0), count_up(other, 8, 100);
    kv_seq *a = seq_new(&r), *b = seq_new(&r);
    go_on(&r, a, ids, 0, 40, BS); /* 10 blocks and 3: without windows there would be room for 32 tokens */
    go_on(&r, b, other, 0, 4, BS);
    check(&r, a, ids, 40);
    check(&r, b, other, 4);
    kv_seq_free(r.kv, a), kv_seq_free(r.kv, b);
    rig_close(&r);
}

Test(kv_windows, a_prefix_is_found_where_all_that_its_next_token_sees_is_there)
{
    rig r = rig_open((rig_options){.n_blocks = 32, .window = {0, 8}, .n_groups = 2});
    uint32_t ids[41], parted[41], other[24];
    count_up(ids, 41, 0), count_up(parted, 41, 0), count_up(parted + 20, 21, 500), count_up(other, 24, 1000);
    kv_seq *s = seq_new(&r);
    go_on(&r, s, ids, 0, 40, BS);
    kv_seq_free(r.kv, s);
    s = seq_new(&r);
    cr_assert_eq(kv_seq_match(r.kv, s, parted, 41), 20, "what was given back is still cached");
    check(&r, s, ids, 20);
    cr_assert_eq(block_of(&r, s, 1, 2), KV_NONE, "token 20 sees tokens 13 to 20");
    cr_assert_neq(block_of(&r, s, 1, 3), KV_NONE);
    go_on(&r, s, parted, 20, 41, 7);
    check(&r, s, parted, 41);
    kv_seq_free(r.kv, s);

    /* Others take what has not been asked for longest: the beginnings of windows. */
    kv_drop_cached(r.kv);
    s = seq_new(&r);
    go_on(&r, s, ids, 0, 40, BS);
    kv_seq_free(r.kv, s); /* 20 blocks are cached */
    s = seq_new(&r);
    go_on(&r, s, other, 0, 24, 24); /* 12 that were free */
    kv_seq *t = seq_new(&r);
    cr_assert_eq(kv_seq_reserve(r.kv, t, 12), XD_OK); /* 6 are lost: those of the window before token 24 */
    kv_seq_free(r.kv, t);
    t = seq_new(&r);
    cr_assert_eq(kv_seq_match(r.kv, t, parted, 41), 0,
                 "K and V of all tokens, but not of what token 20 sees in its window");
    cr_assert_eq(kv_seq_match(r.kv, t, ids, 41), 40);
    check(&r, t, ids, 40);
    check_places(r.kv);
    kv_seq_free(r.kv, s), kv_seq_free(r.kv, t);
    rig_close(&r);
}

static void fork_behind_prompts(rig_options z)
{
    rig r = rig_open(z);
    uint32_t ids[48];
    count_up(ids, 48, 0);
    /* Behind a prompt of n tokens, the last of which is computed anew, as sched_fork() asks. */
    for (uint32_t n = 1; n <= 40; n++) {
        kv_seq *from = seq_new(&r), *to = seq_new(&r), *late = seq_new(&r);
        const uint32_t there = (n - 1) / r.whole * r.whole;
        go_on(&r, from, ids, 0, n, 5);
        const uint32_t shared = kv_seq_fork(r.kv, from, to, n - 1);
        cr_assert_eq(shared, there, "%u tokens", n);
        check(&r, to, ids, shared);
        go_on(&r, from, ids, n, n + 8, 3);
        const bool gone = there + 1 > 6; /* a window that begins beyond the first token has moved on */
        cr_assert(!gone || kv_seq_fork(r.kv, from, late, n - 1) == 0, "%u tokens", n);
        check(&r, to, ids, shared);
        go_on(&r, to, ids, shared, n + 3, 2);
        check_places(r.kv);
        kv_seq_free(r.kv, from), kv_seq_free(r.kv, to), kv_seq_free(r.kv, late);
        cr_assert_eq(stats(&r).blocks_used, 0);
    }
    rig_close(&r);
}

Test(kv_windows, a_fork_begins_where_all_is_there_or_not_at_all)
{
    fork_behind_prompts((rig_options){.n_blocks = 64, .window = {0, 6}, .n_groups = 2, .no_prefix = true});
    fork_behind_prompts(
        (rig_options){.n_blocks = 64, .window = {0, 6}, .span = {2, 1}, .n_groups = 2, .no_prefix = true});
    fork_behind_prompts(
        (rig_options){.n_blocks = 64, .window = {0, 6}, .span = {1, 2}, .n_groups = 2, .no_prefix = true});
}

Test(kv_windows, only_what_is_left_is_swapped)
{
    rig r = rig_open((rig_options){.n_blocks = 24, .n_swap = 13, .window = {0, 4}, .n_groups = 2, .no_prefix = true});
    uint32_t ids[44];
    count_up(ids, 44, 0);
    kv_seq *s = seq_new(&r);
    go_on(&r, s, ids, 0, 40, BS);
    cr_assert_eq(stats(&r).blocks_used, 10 + 2);
    cr_assert_eq(kv_seq_swap_out(r.kv, s), XD_OK);
    cr_assert_eq(stats(&r).blocks_used, 0);
    cr_assert_eq(stats(&r).swapped_out, 12);
    kv_seq *other = seq_new(&r);
    uint32_t theirs[20];
    count_up(theirs, 20, 100);
    go_on(&r, other, theirs, 0, 20, 20);
    cr_assert_eq(kv_seq_swap_in(r.kv, s), XD_OK);
    check(&r, s, ids, 40);
    go_on(&r, s, ids, 40, 44, 1);
    check_places(r.kv);
    kv_seq_free(r.kv, s), kv_seq_free(r.kv, other);
    rig_close(&r);
}

/* Random requests over a two-token vocabulary, so that prefixes are shared all the time. */
static void soak(rig_options z, uint32_t rounds)
{
    enum { SEQS = 8, LEN = 60 };
    rig r = rig_open(z);
    kv_seq *s[SEQS] = {0};
    uint32_t ids[SEQS][LEN], n[SEQS] = {0}, n_matched = 0, n_forked = 0;
    uint64_t rng = z.n_blocks * 1000003u + z.n_swap * 7u + z.window[1];
#define RND(k) ((uint32_t)((rng = rng * 6364136223846793005u + 1442695040888963407u) >> 33) % (k))
    for (uint32_t round = 0; round < rounds; round++) {
        uint32_t i = RND(SEQS), op = RND(10);
        if (!s[i]) {
            s[i] = seq_new(&r);
            for (uint32_t t = 0; t < LEN; t++)
                ids[i][t] = RND(8) == 0;
            uint32_t want = 1 + RND(LEN - 1);
            n[i] = kv_seq_match(r.kv, s[i], ids[i], want);
            cr_assert_leq(n[i], want - 1);
            n_matched += n[i];
        } else if (op < 5 && !kv_seq_is_swapped(s[i])) {
            uint32_t to = n[i] + 1 + RND(9);
            to = XD_MIN(to, (uint32_t)LEN);
            const bool fits = to <= kv_seq_most(r.kv, s[i]);
            xd_status st = kv_seq_reserve(r.kv, s[i], to);
            cr_assert_eq(st, fits ? XD_OK : XD_BUSY);
            if (st == XD_OK) {
                compute(&r, s[i], ids[i], n[i], to);
                n[i] = to;
                if (RND(4))
                    kv_seq_commit(r.kv, s[i], ids[i], to);
            }
        } else if (op == 5) {
            kv_seq_free(r.kv, s[i]);
            s[i] = NULL;
        } else if (op == 6) {
            xd_status st = kv_seq_swap_out(r.kv, s[i]);
            cr_assert(st == XD_BUSY || (st == XD_OK && !z.cold));
        } else if (op == 7) {
            xd_status st = kv_seq_swap_in(r.kv, s[i]);
            cr_assert(st == XD_OK || st == XD_BUSY);
        } else if (op == 8) {
            kv_seq_drop(r.kv, s[i]);
            n[i] = 0;
        } else if (op == 9 && n[i]) {
            uint32_t j = RND(SEQS);
            if (!s[j]) {
                s[j] = seq_new(&r);
                memcpy(ids[j], ids[i], sizeof ids[i]);
                n[j] = kv_seq_fork(r.kv, s[i], s[j], n[i]);
                cr_assert(!n[j] || n[j] == n[i] / r.whole * r.whole);
                n_forked += n[j] > 0;
            }
        }
        bool used[256] = {0};
        uint32_t n_used = 0;
        for (uint32_t k = 0; k < SEQS; k++) {
            if (!s[k] || kv_seq_is_swapped(s[k]))
                continue;
            check(&r, s[k], ids[k], n[k]);
            for (uint32_t g = 0; g < r.n_groups; g++)
                for (uint32_t q = 0; q < n_blocks_of(&r, s[k], g); q++) {
                    const uint32_t b = block_of(&r, s[k], g, q);
                    n_used += b != KV_NONE && !used[b];
                    if (b != KV_NONE)
                        used[b] = true;
                }
        }
        kv_stats st = stats(&r);
        cr_assert_eq(st.blocks_used, n_used, "round %u", round);
        cr_assert_leq(st.blocks_used + st.blocks_cached, st.blocks_total);
        if (round % 16 == 0)
            check_places(r.kv);
    }
    for (uint32_t k = 0; k < SEQS; k++)
        kv_seq_free(r.kv, s[k]);
    check_places(r.kv);
    cr_assert_gt(stats(&r).window_released, 0);
    cr_assert_gt(n_forked, 0);
    cr_assert(z.no_prefix || n_matched > 0);
    kv_drop_cached(r.kv);
    kv_stats st = stats(&r);
    cr_assert_eq(st.blocks_used + st.blocks_cached + st.swap_blocks_used, 0);
    for (uint32_t first = 0; first < 2; first++) /* no node is left behind either */
        cr_assert_eq(kv_prefix_find(r.kv->prefix, KV_NONE, (uint32_t[BS]){first}), KV_NONE);
    rig_close(&r);
}

Test(kv_windows, every_sequence_finds_what_it_sees_after_random_operations)
{
    soak((rig_options){.n_blocks = 80, .window = {0, 6}, .n_groups = 2}, 20000);
    soak((rig_options){.n_blocks = 80, .window = {0, 6}, .n_groups = 2, .no_prefix = true}, 5000);
    soak((rig_options){.n_blocks = 60, .n_swap = 80, .window = {0, 5}, .n_groups = 2}, 20000);
    soak((rig_options){.n_blocks = 60, .n_swap = 16, .window = {0, 8, 8, 17}, .n_groups = 4}, 20000);
    soak((rig_options){.n_blocks = 20, .n_swap = 100, .window = {0, 9}, .n_groups = 2, .cold = true}, 20000);
    soak((rig_options){.n_blocks = 60, .n_swap = 20, .window = {0, 0, 4}, .n_groups = 3, .cold = true}, 20000);
    soak((rig_options){.n_blocks = 30, .n_swap = 8, .window = {7}, .n_groups = 1}, 20000);
    soak((rig_options){.n_blocks = 40, .window = {1, 2}, .n_groups = 2}, 10000);
    soak((rig_options){.n_blocks = 80, .window = {0, 6}, .span = {2, 1}, .n_groups = 2}, 20000);
    soak((rig_options){.n_blocks = 50, .window = {0, 6}, .span = {1, 4}, .n_groups = 2, .no_prefix = true}, 5000);
    soak((rig_options){.n_blocks = 40, .n_swap = 60, .window = {0, 5}, .span = {1, 2}, .n_groups = 2}, 20000);
    soak((rig_options){.n_blocks = 50, .n_swap = 12, .window = {0, 8, 8, 17}, .span = {4, 1, 1, 2}, .n_groups = 4},
         20000);
    soak((rig_options){.n_blocks = 16, .n_swap = 80, .window = {0, 9}, .span = {2, 1}, .n_groups = 2, .cold = true},
         20000);
    soak((rig_options){.n_blocks = 40, .window = {1, 2}, .span = {4, 1}, .n_groups = 2}, 10000);
}

/* Columns of K in layers without a window, and with one. */
typedef struct widths {
    uint32_t full, windowed;
} widths;

static kv_options dealt_of(uint32_t n, uint32_t (*window_of)(uint32_t layer), widths w)
{
    uint32_t window[64] = {0}, width[64] = {0};
    kv_options o = {.block_size = 16, .step_tokens = 16384, .n_kv_heads = 1, .head_dim = XD_MAX(w.full, w.windowed)};
    for (uint32_t i = 0; i < n; i++) {
        window[i] = window_of(i);
        width[i] = window[i] ? w.windowed : w.full;
    }
    kv_set_groups(&o, window, width, n);
    kv_layer at[64];
    bool taken[KV_MAX_GROUPS][64] = {0};
    kv_deal_layers(&o, window, n, at);
    for (uint32_t i = 0; i < n; i++) {
        cr_assert(at[i].group < o.n_groups && at[i].idx < o.n_layers && !taken[at[i].group][at[i].idx]);
        taken[at[i].group][at[i].idx] = true;
        cr_assert(o.n_groups == 1 || o.window[at[i].group] == window[i]);
    }
    return o;
}

static kv_options dealt(uint32_t n, uint32_t (*window_of)(uint32_t layer))
{
    return dealt_of(n, window_of, (widths){64, 64});
}

static uint32_t none(uint32_t layer)
{
    (void)layer;
    return 0;
}
static uint32_t gpt_oss(uint32_t layer)
{
    return layer % 2 ? 0 : 128;
}
static uint32_t gemma(uint32_t layer)
{
    return layer % 6 == 5 ? 0 : 1024;
}
static uint32_t all_alike(uint32_t layer)
{
    (void)layer;
    return 4096;
}
static uint32_t one_full(uint32_t layer)
{
    return layer ? 512 : 0;
}
static uint32_t two_windows(uint32_t layer)
{
    return layer % 4 < 2 ? 0 : layer % 4 == 2 ? 128 : 512;
}

Test(kv_windows, layers_are_dealt_into_the_largest_groups_that_leave_no_place_empty)
{
    static const struct {
        uint32_t n, (*window_of)(uint32_t), n_groups, n_layers, n_full;
    } cases[] = {{48, none, 1, 48, 1},      {24, gpt_oss, 2, 12, 1},    {30, gemma, 6, 5, 1},
                 {32, all_alike, 1, 32, 0}, {16, two_windows, 4, 4, 2}, {16, one_full, 16, 1, 1},
                 {40, one_full, 1, 40, 1}}; /* 40 groups would be too many: one, and no windows */
    for (size_t i = 0; i < XD_ARRAY_LEN(cases); i++) {
        const kv_options o = dealt(cases[i].n, cases[i].window_of);
        uint32_t n_full = 0;
        for (uint32_t g = 0; g < o.n_groups; g++)
            n_full += !o.window[g];
        cr_assert(o.n_groups == cases[i].n_groups && o.n_layers == cases[i].n_layers && n_full == cases[i].n_full,
                  "case %zu: %u groups of %u layers, %u without a window", i, o.n_groups, o.n_layers, n_full);
    }
}

Test(kv_windows, the_same_bytes_never_hold_a_shorter_context_than_without_windows)
{
    uint32_t (*const models[])(uint32_t) = {gpt_oss, gemma, all_alike, two_windows, one_full};
    for (size_t m = 0; m < XD_ARRAY_LEN(models); m++) {
        const kv_options with = dealt_of(m == 1 ? 30 : 16, models[m], (widths){m == 1 ? 32 : 64, m == 3 ? 16 : 64});
        for (uint64_t blocks = 1; blocks < 20000; blocks += 1 + blocks / 7) {
            const uint64_t tokens = kv_context_tokens(&with, blocks * with.n_groups);
            cr_assert_geq(tokens, blocks * 16);
            cr_assert_leq(kv_context_blocks(&with, tokens), blocks * with.n_groups);
        }
    }
}

/* By hand, for gpt-oss-20b (24 layers, every other one with a window of 128): of 131072 tokens, 8192 blocks without a window; with one 8 that are seen,
 * one more since the last may be partly filled, and 1024 for a step of 16384 tokens. */
Test(kv_windows, a_context_costs_its_tokens_where_there_is_no_window_and_a_window_and_a_step_where_there_is)
{
    const kv_options o = dealt(24, gpt_oss);
    cr_assert_eq(kv_chunk(&o, 131072), 16384);
    cr_assert_eq(kv_context_blocks(&o, 131072), 8192 + 8 + 1 + 1024);
    cr_assert_eq(kv_chunk(&o, 16384), 2048);
    cr_assert_eq(kv_chunk(&o, 1000), 512);
    cr_assert_eq(kv_context_blocks(&o, 96), 6 + 6, "shorter than the window");
    cr_assert_eq(kv_blocks_of(&o, 32, 4096, 16384), 32 * 256 + 32 * 10 - 1 + 1024);
    const kv_options plain = dealt(48, none);
    cr_assert_eq(kv_chunk(&plain, 131072), UINT32_MAX);
    cr_assert_eq(kv_context_blocks(&plain, 1000), 63);
    cr_assert_eq(kv_context_tokens(&plain, 63), 1008);
}

/* By hand, for Gemma 4 26B-A4B: 25 layers with a window of 1024 and 8 KV heads of 256 columns, 5 without and 2 of 512. 65536 tokens are 2048 blocks of
 * 32 of these; of each of the other five groups, in steps of 819 (an eighth of 1 in 10, in blocks), 64 blocks of 16 that are seen, two that hold the
 * last 32 tokens, and 52 for the step. */
Test(kv_windows, a_block_holds_more_tokens_of_layers_that_are_half_as_wide)
{
    const widths gemma_4 = {1024, 2048};
    const kv_options o = dealt_of(30, gemma, gemma_4);
    cr_assert(kv_block_tokens(&o, 0) == 32 && kv_block_tokens(&o, 1) == 16 && kv_block_tokens(&o, 5) == 16);
    cr_assert_eq(kv_whole_tokens(&o), 32);
    cr_assert_eq(kv_block_bytes(&o), 5 * 2 * 2048 * 16 * sizeof(float));
    cr_assert_eq(kv_token_bytes(&o), (5 * 1024 + 25 * 2048) * 2 * sizeof(float));
    cr_assert_eq(kv_context_blocks(&o, 65536), 2048 + 5 * (64 + 2 + 52));
    cr_assert_eq(kv_seen_bytes(&o, 2000, 1), (5 * 1024 * 2001 + 25 * 2048 * 1024) * 2 * sizeof(float));

    static const struct {
        widths w;
        uint32_t full, windowed;
    } cases[] = {{{64, 64}, 16, 16}, {{64, 33}, 16, 16}, {{64, 32}, 16, 32},  {{192, 64}, 16, 32}, {{256, 64}, 16, 64},
                 {{32, 64}, 32, 16}, {{16, 64}, 64, 16}, {{2048, 1}, 16, 64}, {{40, 64}, 16, 16}};
    for (size_t i = 0; i < XD_ARRAY_LEN(cases); i++) {
        const kv_options c = dealt_of(24, gpt_oss, cases[i].w);
        cr_assert(kv_block_tokens(&c, 0) == cases[i].full && kv_block_tokens(&c, 1) == cases[i].windowed, "case %zu",
                  i);
    }
}

/* A token behind 1000 sees 1001 positions, or 128 through a window; 50 tokens from position 100 on see 150 together, the first of them all of
 * those before it; and 50 behind 1000 see 177 through the window. */
Test(kv_windows, attention_reads_what_it_sees)
{
    kv_options o = dealt(24, gpt_oss);
    const uint64_t layer = 2ull * o.n_kv_heads * kern_row_bytes(o.fmt, o.head_dim);
    cr_assert_eq(kv_seen_bytes(&o, 1000, 1), 12 * layer * (1001 + 128));
    cr_assert_eq(kv_seen_bytes(&o, 100, 50), 12 * layer * (150 + 150));
    cr_assert_eq(kv_seen_bytes(&o, 1000, 50), 12 * layer * (1050 + 177));
    o = dealt(48, none);
    cr_assert_eq(kv_seen_bytes(&o, 1000, 1), 48 * layer * 1001);
}

/* Sequences run in the blocks that they are said to need, whatever their steps. */
Test(kv_windows, contexts_fit_into_the_blocks_that_they_are_said_to_take)
{
    static const uint32_t windows[][MOST_GROUPS] = {{0, 1},     {0, 4}, {0, 7, 7}, {0, 13},   {9},
                                                    {0, 5, 16}, {0, 4}, {0, 7, 7}, {0, 5, 16}};
    static const uint32_t spans[][MOST_GROUPS] = {{0}, {0}, {0}, {0}, {0}, {0}, {2, 1}, {1, 2, 2}, {4, 1, 2}};
    static const uint32_t counts[] = {2, 2, 3, 2, 1, 3, 2, 3, 3};
    for (size_t w = 0; w < XD_ARRAY_LEN(windows); w++)
        for (uint32_t chunk = 1; chunk < 20; chunk += 3)
            for (uint32_t tokens = 5; tokens <= 60; tokens += 11) {
                rig_options z = {.n_groups = counts[w], .no_prefix = true};
                memcpy(z.window, windows[w], sizeof z.window);
                memcpy(z.span, spans[w], sizeof z.span);
                const kv_options o = options_of(&z);
                enum { SEQS = 3 };
                const uint64_t one = kv_blocks_of(&o, 1, tokens, chunk);
                z.n_blocks = (uint32_t)kv_blocks_of(&o, SEQS, tokens, chunk);
                cr_assert_leq(one, z.n_blocks);
                rig r = rig_open(z);
                uint32_t ids[60], n[SEQS] = {0}, most = 0;
                count_up(ids, 60, 0);
                kv_seq *s[SEQS];
                for (uint32_t i = 0; i < SEQS; i++)
                    s[i] = seq_new(&r);
                /* A step's tokens go to the sequences in turn, in uneven parts; the first runs alone at the end. */
                for (uint32_t turn = 0; n[0] + n[1] + n[2] < SEQS * tokens; turn++) {
                    uint32_t left = chunk, to[SEQS];
                    for (uint32_t i = 0; i < SEQS; i++) {
                        const uint32_t k = (i + turn) % SEQS, part = i + 1 < SEQS ? (left + turn % 2) / 2 : left;
                        to[k] = XD_MIN(tokens, n[k] + part);
                        left -= to[k] - n[k];
                        cr_assert_eq(kv_seq_reserve(r.kv, s[k], to[k]), XD_OK, "windows %zu, %u tokens in steps of %u",
                                     w, tokens, chunk);
                    }
                    most = XD_MAX(most, (uint32_t)stats(&r).blocks_used);
                    for (uint32_t k = 0; k < SEQS; k++)
                        kv_seq_commit(r.kv, s[k], ids, n[k] = to[k]);
                }
                cr_assert_leq(most, z.n_blocks);
                for (uint32_t i = 0; i < SEQS; i++)
                    kv_seq_free(r.kv, s[i]);
                rig_close(&r);
                z.n_blocks = (uint32_t)one;
                r = rig_open(z);
                kv_seq *alone = seq_new(&r);
                go_on(&r, alone, ids, 0, tokens, chunk);
                kv_seq_free(r.kv, alone);
                rig_close(&r);
            }
}
