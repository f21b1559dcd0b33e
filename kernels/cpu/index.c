/* index.c - the choice of positions that attention sees (DeepSeek Sparse Attention).
 *
 * Scores of a few tokens lie in scratch: tasks are (token, KERN_ATTN_SPLIT positions), and then the choice for each token. A score is
 * made of products of the one row function and a sum over heads in order, so it does not matter who computes it beside what. */
#include "kernels/cpu/cpu_priv.h"

#define INDEX_TOKENS 16 /* at a time */

typedef struct index_job {
    const kern_index_args *a;
    const cpu_rows *rows;
    uint32_t first; /* token */
    uint32_t n_splits;
    float *scores;  /* [INDEX_TOKENS][max_context] */
    float *by_head; /* [workers][n_heads][KERN_ATTN_SPLIT] */
} index_job;

/* Tokens that may choose all positions have no scores. */
static bool chooses(const kern_index_args *a, uint32_t t)
{
    return a->token_seq[t] != UINT32_MAX && a->token_pos[t] >= a->top_k;
}

static void score_task(void *ctx, uint32_t task, uint32_t worker)
{
    const index_job *j = ctx;
    const kern_index_args *a = j->a;
    const kern_kv *kv = &a->kv;
    const uint32_t row = task / j->n_splits, t = j->first + row, begin = task % j->n_splits * KERN_ATTN_SPLIT;
    if (!chooses(a, t) || begin > a->token_pos[t])
        return;
    const uint32_t end = MIN(begin + KERN_ATTN_SPLIT, a->token_pos[t] + 1);
    const uint32_t *blocks = kv->block_table + (size_t)a->token_seq[t] * kv->max_blocks;
    const size_t row_bytes = kern_row_bytes(kv->fmt, kv->index_dim);
    const float *q[CPU_MAX_GROUP], *weights = a->weights + (size_t)t * a->n_heads;
    for (uint32_t h = 0; h < a->n_heads; h++)
        q[h] = a->q + ((size_t)t * a->n_heads + h) * kv->index_dim;
    float *by_head = j->by_head + (size_t)worker * a->n_heads * KERN_ATTN_SPLIT;
    for (uint32_t i = begin, n; i < end; i += n) {
        n = MIN(end - i, kv->block_size - i % kv->block_size);
        const uint8_t *k = (const uint8_t *)(uintptr_t)kv->block_addr[blocks[i / kv->block_size]] +
                           a->layer * kv->layer_bytes + kern_kv_index_at(kv) + i % kv->block_size * row_bytes;
        j->rows->dot[kv->fmt](by_head + (i - begin), KERN_ATTN_SPLIT, k, row_bytes, n, q, a->n_heads, kv->index_dim,
                              NULL);
    }
    float *scores = j->scores + (size_t)row * a->max_context + begin;
    for (uint32_t i = 0; i < end - begin; i++) {
        float sum = 0;
        for (uint32_t h = 0; h < a->n_heads; h++) {
            const float v = by_head[(size_t)h * KERN_ATTN_SPLIT + i];
            sum += v < 0 ? 0 : v * weights[h]; /* NaN stays */
        }
        scores[i] = sum;
    }
}

/* A number for each score, in their order; NaN is the least, and both zeros are one. */
static uint32_t rank_of(float score)
{
    const uint32_t bits = bits_of_f32(score + 0.0f);
    return score != score ? 0 : bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/* The top_k-th largest rank, digit by digit; *ret_left: how many of that rank are chosen. */
static uint32_t least_chosen(const float *scores, uint32_t n, uint32_t top_k, uint32_t *ret_left)
{
    uint32_t known = 0, left = top_k;
    for (int shift = 24; shift >= 0; shift -= 8) {
        uint32_t count[256] = {0}, digit = 255;
        for (uint32_t i = 0; i < n; i++) {
            const uint32_t rank = rank_of(scores[i]);
            if (shift == 24 || rank >> (shift + 8) == known)
                count[rank >> shift & 255]++;
        }
        for (; count[digit] < left; digit--)
            left -= count[digit];
        known = known << 8 | digit;
    }
    *ret_left = left;
    return known;
}

static void choose_task(void *ctx, uint32_t row, uint32_t worker)
{
    (void)worker;
    const index_job *j = ctx;
    const kern_index_args *a = j->a;
    const uint32_t t = j->first + row;
    if (a->token_seq[t] == UINT32_MAX)
        return;
    uint32_t *to = a->chosen + (size_t)t * a->top_k, left;
    if (!chooses(a, t)) {
        for (uint32_t i = 0; i <= a->token_pos[t]; i++)
            to[i] = i;
        return;
    }
    const float *scores = j->scores + (size_t)row * a->max_context;
    const uint32_t least = least_chosen(scores, a->token_pos[t] + 1, a->top_k, &left);
    for (uint32_t i = 0, n = 0; n < a->top_k; i++) {
        const uint32_t rank = rank_of(scores[i]);
        if (rank > least || (rank == least && left))
            to[n++] = i;
        left -= rank == least && left;
    }
}

uint64_t cpu_index_scratch_bytes(kern_dev *dev, uint32_t max_tokens, uint32_t n_heads, uint32_t max_context)
{
    return ((uint64_t)MIN(max_tokens, (uint32_t)INDEX_TOKENS) * max_context +
            (uint64_t)pool_count(cpu_of(dev)->pool) * n_heads * KERN_ATTN_SPLIT) *
           sizeof(float);
}

kern_status cpu_index(kern_dev *dev, const kern_index_args *a)
{
    cpu_dev *d = cpu_of(dev);
    if (!cpu_index_takes(a->n_heads, a->kv.index_dim) || !a->top_k || !kern_kv_is_known(&a->kv))
        return cpu_fail(d, KERN_UNSUPPORTED, "an indexer of %u heads of %u columns for %u positions", a->n_heads,
                        a->kv.index_dim, a->top_k);
    uint32_t longest = 0;
    for (uint32_t t = 0; t < a->n_tokens; t++)
        if (a->token_seq[t] != UINT32_MAX)
            longest = MAX(longest, a->token_pos[t] + 1);
    if (longest > a->max_context)
        return cpu_fail(d, KERN_ARG, "index: position %u in a context of %u", longest - 1, a->max_context);
    index_job j = {.a = a, .rows = &d->rows, .by_head = a->scratch};
    j.n_splits = (longest + KERN_ATTN_SPLIT - 1) / KERN_ATTN_SPLIT;
    j.scores = j.by_head + (size_t)pool_count(d->pool) * a->n_heads * KERN_ATTN_SPLIT;
    for (; j.first < a->n_tokens; j.first += INDEX_TOKENS) {
        const uint32_t n = MIN(a->n_tokens - j.first, (uint32_t)INDEX_TOKENS);
        if (longest > a->top_k)
            pool_run(d->pool, n * j.n_splits, score_task, &j);
        pool_run(d->pool, n, choose_task, &j);
    }
    return KERN_OK;
}

bool cpu_index_takes(uint32_t n_heads, uint32_t dim)
{
    return n_heads && n_heads <= CPU_MAX_GROUP && dim && dim <= CPU_MAX_HEAD_DIM;
}
