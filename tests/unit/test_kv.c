#include <criterion/criterion.h>
#include <string.h>

#include "engine/memory/kv.h"

/* One layer, one head, 8 floats, 4 tokens a block: 256 bytes. On the CPU a device address is a host pointer, so the tests play the
 * model: they "compute" KV by writing, for each token, a hash of all tokens up to it, and check what a sequence later finds. */
enum { BS = 4, DIM = 8 };

typedef struct rig {
    kern_dev *dev;
    kv_cache *kv;
    kern_kv d;
} rig;

static rig rig_open(uint32_t n_blocks, uint32_t n_swap, bool prefix, bool cold)
{
    rig r = {0};
    kern_options ko = {.n_threads = 1, .numa_node = -1};
    cr_assert_eq(kern_cpu_open(&ko, &r.dev), KERN_OK);
    kv_options o = {.dev = r.dev,
                    .n_layers = 1,
                    .n_kv_heads = 1,
                    .head_dim = DIM,
                    .block_size = BS,
                    .fmt = FMT_F32,
                    .n_blocks = n_blocks,
                    .swap_bytes = n_swap * 4096ull,
                    .prefix_caching = prefix,
                    .allow_cold = cold};
    cr_assert_eq(kv_block_bytes(&o), 256);
    xd_err err = {0};
    cr_assert_eq(kv_open(&o, &r.kv, &err), XD_OK, "%s", err.msg);
    kv_describe(r.kv, 0, &r.d);
    return r;
}

static void rig_close(rig *r)
{
    kv_free(r->kv);
    r->dev->ops->close(r->dev);
}

static uint64_t chain(const uint32_t *ids, uint32_t n)
{
    uint64_t h = 1469598103934665603u;
    for (uint32_t i = 0; i < n; i++)
        h = (h ^ (ids[i] + 1)) * 1099511628211u;
    return h;
}

static float *slot(const rig *r, const kv_seq *s, uint32_t t)
{
    uint32_t n;
    const uint32_t *b = kv_seq_blocks(s, &n);
    cr_assert_lt(t / BS, n);
    cr_assert_lt(b[t / BS], kv_n_ids(r->kv));
    return (float *)(uintptr_t)r->d.block_addr[b[t / BS]] + (t % BS) * DIM;
}

static void compute(const rig *r, const kv_seq *s, const uint32_t *ids, uint32_t from, uint32_t to)
{
    for (uint32_t t = from; t < to; t++) {
        uint64_t h = chain(ids, t + 1);
        memcpy(slot(r, s, t), &h, sizeof h);
    }
}

static void check(const rig *r, const kv_seq *s, const uint32_t *ids, uint32_t n)
{
    for (uint32_t t = 0; t < n; t++) {
        uint64_t h = chain(ids, t + 1), got;
        memcpy(&got, slot(r, s, t), sizeof got);
        cr_assert_eq(got, h, "token %u of %u has another prefix's KV", t, n);
    }
}

static kv_seq *seq_new(const rig *r)
{
    kv_seq *s;
    cr_assert_eq(kv_seq_new(r->kv, &s, NULL), XD_OK);
    return s;
}

static kv_seq *seq_run(const rig *r, const uint32_t *ids, uint32_t n, uint32_t *ret_matched)
{
    kv_seq *s = seq_new(r);
    uint32_t m = kv_seq_match(r->kv, s, ids, n);
    check(r, s, ids, m);
    cr_assert_eq(kv_seq_reserve(r->kv, s, n), XD_OK);
    compute(r, s, ids, m, n);
    kv_seq_commit(r->kv, s, ids, n);
    if (ret_matched)
        *ret_matched = m;
    return s;
}

Test(kv, finds_the_longest_whole_block_prefix_but_never_the_last_token)
{
    rig r = rig_open(32, 0, true, false);
    uint32_t ids[20], m;
    for (uint32_t i = 0; i < 20; i++)
        ids[i] = i * 7;
    kv_seq *a = seq_run(&r, ids, 16, &m);
    cr_assert_eq(m, 0);
    kv_seq *b = seq_run(&r, ids, 16, &m);
    cr_assert_eq(m, 12, "a prompt that is cached whole still computes its last token");
    kv_seq *c = seq_run(&r, ids, 17, &m);
    cr_assert_eq(m, 16);
    kv_seq_free(r.kv, a), kv_seq_free(r.kv, b), kv_seq_free(r.kv, c);
    kv_seq *d = seq_run(&r, ids, 20, &m);
    cr_assert_eq(m, 16, "blocks without an owner stay cached");
    ids[0]++; /* all later blocks have the same tokens but another beginning */
    kv_seq *e = seq_run(&r, ids, 20, &m);
    cr_assert_eq(m, 0);
    kv_stats st;
    kv_get_stats(r.kv, &st);
    cr_assert_eq(st.prefix_hits_tokens, 12 + 16 + 16);
    cr_assert_eq(st.prefix_queries_tokens, 16 + 16 + 17 + 20 + 20);
    kv_seq_free(r.kv, d), kv_seq_free(r.kv, e);
    rig_close(&r);
}

Test(kv, busy_changes_nothing)
{
    rig r = rig_open(4, 0, false, false);
    kv_seq *a = seq_new(&r), *b = seq_new(&r);
    cr_assert_eq(kv_seq_reserve(r.kv, a, 9), XD_OK);
    cr_assert_eq(kv_seq_reserve(r.kv, b, 5), XD_BUSY);
    cr_assert_eq(kv_seq_swap_out(r.kv, a), XD_BUSY);
    kv_stats st;
    kv_get_stats(r.kv, &st);
    cr_assert_eq(st.blocks_used, 3);
    cr_assert_eq(kv_seq_reserve(r.kv, b, 4), XD_OK);
    kv_seq_drop(r.kv, a);
    cr_assert_eq(kv_seq_reserve(r.kv, b, 16), XD_OK);
    kv_seq_free(r.kv, a), kv_seq_free(r.kv, b);
    rig_close(&r);
}

Test(kv, evicts_the_end_of_the_oldest_prefix_first)
{
    rig r = rig_open(4, 0, true, false);
    uint32_t ids[13], other[9], m;
    for (uint32_t i = 0; i < 13; i++)
        ids[i] = i, other[i % 9] = 100 + i % 9;
    kv_seq_free(r.kv, seq_run(&r, ids, 13, NULL));  /* three full blocks stay */
    kv_seq_free(r.kv, seq_run(&r, other, 8, NULL)); /* takes the free one and the end of the first */
    kv_seq *s = seq_new(&r);
    m = kv_seq_match(r.kv, s, ids, 13);
    cr_assert_eq(m, 8);
    kv_seq_free(r.kv, s);
    kv_drop_cached(r.kv);
    s = seq_new(&r);
    cr_assert_eq(kv_seq_match(r.kv, s, ids, 13), 0);
    kv_seq_free(r.kv, s);
    rig_close(&r);
}

Test(kv, evicted_prefixes_come_back_from_the_swap_space)
{
    rig r = rig_open(4, 8, true, false);
    uint32_t ids[13], other[16], m;
    for (uint32_t i = 0; i < 16; i++)
        ids[i % 13] = i % 13, other[i] = 100 + i;
    kv_seq_free(r.kv, seq_run(&r, ids, 13, NULL));
    kv_seq_free(r.kv, seq_run(&r, other, 16, NULL));
    kv_seq *s = seq_run(&r, ids, 13, &m);
    cr_assert_eq(m, 12);
    check(&r, s, ids, 13);
    kv_seq_free(r.kv, s);
    rig_close(&r);
}

/* Random requests over a two-token vocabulary (so that prefixes are shared all the time), against a model that knows only which
 * tokens each sequence has. */
static void soak(uint32_t n_blocks, uint32_t n_swap, bool prefix, bool cold, uint32_t rounds)
{
    enum { SEQS = 8, LEN = 60 };
    rig r = rig_open(n_blocks, n_swap, prefix, cold);
    kv_seq *s[SEQS] = {0};
    uint32_t ids[SEQS][LEN], n[SEQS] = {0};
    uint64_t rng = n_blocks * 1000003u + n_swap * 7u + prefix * 2u + cold;
#define RND(k) ((uint32_t)((rng = rng * 6364136223846793005u + 1442695040888963407u) >> 33) % (k))
    for (uint32_t round = 0; round < rounds; round++) {
        uint32_t i = RND(SEQS), op = RND(10);
        if (!s[i]) {
            s[i] = seq_new(&r);
            n[i] = 0;
            for (uint32_t t = 0; t < LEN; t++)
                ids[i][t] = RND(8) == 0;
            uint32_t want = 1 + RND(30), m = kv_seq_match(r.kv, s[i], ids[i], want);
            cr_assert_leq(m, want - 1);
            check(&r, s[i], ids[i], m);
            n[i] = m;
        } else if (op < 5 && !kv_seq_is_swapped(s[i])) {
            uint32_t to = n[i] + 1 + RND(9);
            to = XD_MIN(to, (uint32_t)LEN);
            xd_status st = kv_seq_reserve(r.kv, s[i], to);
            cr_assert(st == XD_OK || st == XD_BUSY);
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
            cr_assert(st == XD_BUSY || (st == XD_OK && !cold));
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
                cr_assert_eq(n[j], kv_seq_is_swapped(s[i]) ? 0 : n[i] / BS * BS);
            }
        }
        bool used[256] = {0};
        uint32_t n_used = 0, nb;
        for (uint32_t k = 0; k < SEQS; k++) {
            if (!s[k] || kv_seq_is_swapped(s[k]))
                continue;
            check(&r, s[k], ids[k], n[k]);
            const uint32_t *b = kv_seq_blocks(s[k], &nb);
            for (uint32_t q = 0; q < nb; q++)
                n_used += !used[b[q]], used[b[q]] = true;
        }
        kv_stats st;
        kv_get_stats(r.kv, &st);
        cr_assert_eq(st.blocks_used, n_used, "round %u", round);
        cr_assert_leq(st.blocks_used + st.blocks_cached, st.blocks_total);
    }
    for (uint32_t k = 0; k < SEQS; k++)
        kv_seq_free(r.kv, s[k]);
    kv_drop_cached(r.kv);
    kv_stats st;
    kv_get_stats(r.kv, &st);
    cr_assert_eq(st.blocks_used + st.blocks_cached + st.swap_blocks_used, 0);
    rig_close(&r);
}

Test(kv, every_sequence_finds_its_own_kv_after_random_operations)
{
    soak(40, 0, true, false, 20000);
    soak(40, 0, false, false, 5000);
    soak(30, 40, true, false, 20000);
    soak(30, 8, true, false, 20000);
    soak(12, 60, true, true, 20000);
    soak(30, 10, true, true, 20000);
    soak(1, 100, false, true, 5000);
}

Test(kv, no_room_at_all_is_a_configuration_error)
{
    kern_dev *dev;
    cr_assert_eq(kern_cpu_open(NULL, &dev), KERN_OK);
    kv_options o = {.dev = dev, .n_layers = 1, .n_kv_heads = 1, .head_dim = 8, .block_size = 16, .fmt = FMT_F16};
    kv_cache *kv = NULL;
    xd_err err = {0};
    cr_assert_eq(kv_open(&o, &kv, &err), XD_BAD_CONFIG);
    cr_assert(strstr(err.msg, "kv.kv_budget"));
    cr_assert_null(kv);
    dev->ops->close(dev);
}

/* DeepSeek-V3 by its paper (arXiv 2412.19437): 512 numbers and 64 rotated ones a token and layer, and nothing else. */
Test(kv, latent_attention_keeps_one_vector_a_token)
{
    kern_dev *dev;
    cr_assert_eq(kern_cpu_open(&(kern_options){.n_threads = 1, .numa_node = -1}, &dev), KERN_OK);
    kv_options o = {.dev = dev,
                    .n_layers = 61,
                    .n_kv_heads = 1,
                    .head_dim = 576,
                    .v_dim = 512,
                    .block_size = 16,
                    .fmt = FMT_F16,
                    .n_blocks = 2};
    cr_assert_eq(kv_block_bytes(&o), 61ull * 16 * (512 + 64) * 2);
    kv_cache *kv = NULL;
    kern_kv d;
    xd_err err = {0};
    cr_assert_eq(kv_open(&o, &kv, &err), XD_OK, "%s", err.msg);
    kv_describe(kv, 0, &d);
    cr_assert_eq(d.v_dim, 512);
    cr_assert_eq(d.layer_bytes, 16 * 576 * 2);
    kv_free(kv);
    dev->ops->close(dev);
}

/* DeepSeek-V3.2: the key of its indexer, 128 numbers, too. */
Test(kv, an_indexer_keeps_a_key_beside_it)
{
    kern_dev *dev;
    cr_assert_eq(kern_cpu_open(&(kern_options){.n_threads = 1, .numa_node = -1}, &dev), KERN_OK);
    kv_options o = {.dev = dev,
                    .n_layers = 61,
                    .n_kv_heads = 1,
                    .head_dim = 576,
                    .v_dim = 512,
                    .index_dim = 128,
                    .block_size = 16,
                    .fmt = FMT_F16,
                    .n_blocks = 2};
    cr_assert_eq(kv_block_bytes(&o), 61ull * 16 * (512 + 64 + 128) * 2);
    kv_cache *kv = NULL;
    kern_kv d;
    xd_err err = {0};
    cr_assert_eq(kv_open(&o, &kv, &err), XD_OK, "%s", err.msg);
    kv_describe(kv, 0, &d);
    cr_assert_eq(d.index_dim, 128);
    cr_assert_eq(d.layer_bytes, 16 * 704 * 2);
    cr_assert_eq(kern_kv_index_at(&d), 16 * 576 * 2);
    o.index_top_k = 2048; /* a token reads all keys, and as many latent vectors */
    cr_assert_eq(kv_seen_bytes(&o, 999, 1), 61ull * 1000 * 704 * 2);
    cr_assert_eq(kv_seen_bytes(&o, 99999, 1), 61ull * (100000 * 128 + 2048 * 576) * 2);
    cr_assert_eq(kv_seen_bytes(&o, 8000, 4), 61ull * 8004 * 704 * 2);
    kv_free(kv);
    dev->ops->close(dev);
    o.fmt = FMT_Q8_0;
    cr_assert_eq(kv_block_bytes(&o), xd_align_up(61ull * 16 * 704 / 32 * 34, 256));
}

/* GGUF's Q8_0: 34 bytes for 32 numbers. A layer is copied in pieces of 16 bytes when blocks are staged. */
Test(kv, q8_0_takes_34_bytes_for_32_numbers)
{
    kv_options o = {.n_layers = 48, .n_kv_heads = 4, .head_dim = 128, .block_size = 16, .fmt = FMT_Q8_0};
    cr_assert_eq(kv_block_bytes(&o), 48ull * 2 * 4 * 16 * 128 / 32 * 34);
    kv_options latent = {
        .n_layers = 1, .n_kv_heads = 1, .head_dim = 576, .v_dim = 512, .block_size = 16, .fmt = FMT_Q8_0};
    cr_assert_eq(kv_block_bytes(&latent), xd_align_up(16ull * 576 / 32 * 34, 256));
    cr_assert_gt(kv_stage_fit(&o, 64u << 20), 0);
    cr_assert_gt(kv_stage_fit(&latent, 64u << 20), 0);
}
