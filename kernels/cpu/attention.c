/* attention.c - causal attention over the paged KV cache.
 *
 * DESIGN. The definition: positions are cut at multiples of KERN_ATTN_SPLIT. Within a split: scores, their maximum, exp(score - maximum),
 * the sum of those, and the weighted sum of V in order of position. Splits are then merged in order of position. Everything
 * else is a choice of how to walk:
 *  - A tile is up to TILE_QUERIES queries (tokens of one sequence that lie side by side x the heads of one KV head), so that K and V are
 *    read once for them. Scores are the matrix product of K rows with the queries, by the same row function as any other product.
 *  - Tasks are (tile, KV head); for few tokens with a long past (decode) they are (token, KV head, split), and the
 *    parts are merged by a second loop. Parts and merges are the same functions, so the bits are too.
 *
 * Causality, windows and chunks clip a query's range of positions; what lies outside is never multiplied by a zero weight (its memory may
 * hold anything). */
#include "kernels/cpu/cpu_priv.h"

#define TILE_QUERIES 64
/* Up to so many tokens are worth splitting by position; it bounds the scratch for parts. */
#define SPLIT_TOKENS 4
/* Entry of `tiles`: first token and their number. */
typedef struct tile {
    uint32_t first, count;
} tile;

typedef struct attn_job {
    const kern_attn_args *a;
    const cpu_rows *rows;
    uint32_t group; /* query heads a KV head */
    uint32_t v_dim; /* columns of V, and of the result */
    uint32_t n_splits;
    tile *tiles;
    uint32_t n_tiles;
    float *parts;     /* [n_tokens][n_heads][n_splits][v_dim + 2] */
    float *workspace; /* [workers][workspace_floats()] */
    size_t workspace_floats;
} attn_job;

/* Result of one split or of several merged: maximum, sum of exponentials, weighted sum of V; arrays over the queries of a tile. */
typedef struct part {
    float *max, *sum, *acc;
} part;

static uint32_t tile_queries(uint32_t n_heads)
{
    return MAX(n_heads, (uint32_t)TILE_QUERIES); /* a group is at most all heads */
}

static size_t workspace_floats(uint32_t n_heads, uint32_t head_dim)
{
    return (size_t)tile_queries(n_heads) * (KERN_ATTN_SPLIT + 2 * (size_t)head_dim + 4);
}

/* Where a token's range ends: of positions, or of those that it has chosen. */
static uint32_t range_end(const kern_attn_args *a, uint32_t t)
{
    return kern_attn_seen(a, a->token_pos[t]);
}

static uint32_t range_begin(const kern_attn_args *a, uint32_t t)
{
    uint32_t pos = a->token_pos[t];
    if (a->window && a->chunked)
        return pos - pos % a->window;
    return a->window && pos >= a->window ? pos - a->window + 1 : 0;
}

/* Entry i of token t's range, up to `end`, and those behind it that lie side by side in a block: returns how many, and the position of the first. */
static uint32_t run_at(const kern_attn_args *a, uint32_t t, uint32_t i, uint32_t end, uint32_t *ret_pos)
{
    const uint32_t *chosen = a->chosen ? a->chosen + (size_t)t * a->top_k + i : NULL;
    const uint32_t pos = chosen ? chosen[0] : i, most = MIN(end - i, a->kv.block_size - pos % a->kv.block_size);
    uint32_t n = chosen ? 1 : most;
    while (n < most && chosen[n] == pos + n)
        n++;
    *ret_pos = pos;
    return n;
}

/* One split of positions [s * KERN_ATTN_SPLIT, ...) for all queries of a tile. Queries without a position in it get max -inf. */
static void attend_split(const attn_job *j, tile tl, uint32_t kv_head, uint32_t split, float *scores, part out)
{
    const kern_attn_args *a = j->a;
    const kern_kv *kv = &a->kv;
    const uint32_t hd = kv->head_dim, vd = j->v_dim, group = j->group, n_q = tl.count * group;
    const size_t row_bytes = kern_row_bytes(kv->fmt, hd);
    const size_t v_begin = kv->v_dim ? 0 : row_bytes * kv->block_size * kv->n_kv_heads;
    const uint32_t *blocks = kv->block_table + (size_t)a->token_seq[tl.first] * kv->max_blocks;
    const uint32_t base = split * KERN_ATTN_SPLIT;

    uint32_t begin = UINT32_MAX, end = 0;
    const float *q[TILE_QUERIES + CPU_MAX_GROUP];
    for (uint32_t t = 0; t < tl.count; t++) {
        begin = MIN(begin, range_begin(a, tl.first + t));
        end = MAX(end, range_end(a, tl.first + t));
        for (uint32_t g = 0; g < group; g++)
            q[t * group + g] = a->qkv + (size_t)(tl.first + t) * a->qkv_stride + (size_t)(kv_head * group + g) * hd;
    }
    begin = MAX(begin, base);
    end = MIN(end, base + KERN_ATTN_SPLIT);

    for (uint32_t i = begin, n, pos; i < end; i += n) {
        n = run_at(a, tl.first, i, end, &pos);
        const uint8_t *k = (const uint8_t *)(uintptr_t)kv->block_addr[blocks[pos / kv->block_size]] +
                           a->layer * kv->layer_bytes +
                           ((size_t)kv_head * kv->block_size + pos % kv->block_size) * row_bytes;
        j->rows->dot[kv->fmt](scores + (i - base), KERN_ATTN_SPLIT, k, row_bytes, n, q, n_q, hd, NULL);
    }

    for (uint32_t t = 0; t < tl.count; t++) {
        uint32_t lo = MAX(range_begin(a, tl.first + t), base);
        uint32_t hi = MIN(range_end(a, tl.first + t), base + KERN_ATTN_SPLIT);
        for (uint32_t g = 0; g < group; g++) {
            uint32_t i = t * group + g;
            float *s = scores + (size_t)i * KERN_ATTN_SPLIT + (lo - base);
            out.max[i] = -INFINITY;
            out.sum[i] = 0;
            if (lo < hi) {
                out.max[i] = j->rows->max(s, hi - lo) * a->scale;
                out.sum[i] = j->rows->exp(s, s, hi - lo, a->scale, out.max[i]);
            }
        }
    }

    memset(out.acc, 0, (size_t)n_q * vd * sizeof *out.acc);
    for (uint32_t i = begin, n, pos; i < end; i += n) {
        n = run_at(a, tl.first, i, end, &pos);
        const uint8_t *v = (const uint8_t *)(uintptr_t)kv->block_addr[blocks[pos / kv->block_size]] +
                           a->layer * kv->layer_bytes + v_begin +
                           ((size_t)kv_head * kv->block_size + pos % kv->block_size) * row_bytes;
        /* Neighbours whose range covers the whole run go together; the others go alone, clipped. */
        for (uint32_t t = 0, together; t < tl.count; t += together) {
            uint32_t lo = i, hi = i + n;
            for (together = 0; t + together < tl.count; together++)
                if (range_begin(a, tl.first + t + together) > i || range_end(a, tl.first + t + together) < i + n)
                    break;
            if (together == 0) {
                together = 1;
                lo = MAX(lo, range_begin(a, tl.first + t));
                hi = MIN(hi, range_end(a, tl.first + t));
            }
            if (lo < hi)
                j->rows->attn_pv[kv->fmt](out.acc + (size_t)t * group * vd,
                                          scores + (size_t)t * group * KERN_ATTN_SPLIT + (lo - base), KERN_ATTN_SPLIT,
                                          v + (lo - i) * row_bytes, row_bytes, hi - lo, together * group, vd);
        }
    }
}

/* into = into merged with the split that follows it; into->max is -inf while it is empty. */
static void merge(float *into_max, float *into_sum, float *into_acc, float max, float sum, const float *acc,
                  uint32_t vd)
{
    if (max == -INFINITY)
        return;
    if (*into_max == -INFINITY) {
        *into_max = max;
        *into_sum = sum;
        memcpy(into_acc, acc, vd * sizeof *acc);
        return;
    }
    float top = MAX(*into_max, max), a = expf(*into_max - top), b = expf(max - top);
    *into_max = top;
    *into_sum = *into_sum * a + sum * b;
    for (uint32_t d = 0; d < vd; d++)
        into_acc[d] = into_acc[d] * a + acc[d] * b;
}

static void finish(const attn_job *j, uint32_t t, uint32_t head, float max, float sum, const float *acc)
{
    const kern_attn_args *a = j->a;
    float *o = a->o + ((size_t)t * a->n_heads + head) * j->v_dim;
    float shrink = 1;
    if (a->sinks) {
        float top = MAX(max, a->sinks[head]);
        shrink = expf(max - top);
        sum = sum * shrink + expf(a->sinks[head] - top);
    }
    for (uint32_t d = 0; d < j->v_dim; d++)
        o[d] = acc[d] * shrink / sum;
}

static float *take_floats(float **space, size_t n)
{
    float *p = *space;
    *space += n;
    return p;
}

static void tile_task(void *ctx, uint32_t task, uint32_t worker)
{
    const attn_job *j = ctx;
    const kern_attn_args *a = j->a;
    const uint32_t vd = j->v_dim, kv_head = task % a->kv.n_kv_heads;
    /* Later tokens have the longer past: begin with them, so that the last tasks are short. */
    const tile tl = j->tiles[j->n_tiles - 1 - task / a->kv.n_kv_heads];
    const uint32_t n_q = tl.count * j->group;

    float *space = j->workspace + worker * j->workspace_floats;
    float *scores = take_floats(&space, (size_t)n_q * KERN_ATTN_SPLIT);
    part one = {.max = take_floats(&space, n_q), .sum = take_floats(&space, n_q)};
    part all = {.max = take_floats(&space, n_q), .sum = take_floats(&space, n_q)};
    one.acc = take_floats(&space, (size_t)n_q * vd);
    all.acc = take_floats(&space, (size_t)n_q * vd);

    uint32_t first = UINT32_MAX, last = 0;
    for (uint32_t t = tl.first; t < tl.first + tl.count; t++) {
        first = MIN(first, range_begin(a, t) / KERN_ATTN_SPLIT);
        last = MAX(last, (range_end(a, t) - 1) / KERN_ATTN_SPLIT);
    }
    for (uint32_t i = 0; i < n_q; i++)
        all.max[i] = -INFINITY;
    for (uint32_t s = first; s <= last; s++) {
        attend_split(j, tl, kv_head, s, scores, one);
        for (uint32_t i = 0; i < n_q; i++)
            merge(&all.max[i], &all.sum[i], all.acc + (size_t)i * vd, one.max[i], one.sum[i], one.acc + (size_t)i * vd,
                  vd);
    }
    for (uint32_t i = 0; i < n_q; i++)
        finish(j, tl.first + i / j->group, kv_head * j->group + i % j->group, all.max[i], all.sum[i],
               all.acc + (size_t)i * vd);
}

static float *part_of(const attn_job *j, uint32_t t, uint32_t head, uint32_t split)
{
    return j->parts + (((size_t)t * j->a->n_heads + head) * j->n_splits + split) * (j->v_dim + 2);
}

static void split_task(void *ctx, uint32_t task, uint32_t worker)
{
    const attn_job *j = ctx;
    const kern_attn_args *a = j->a;
    const uint32_t vd = j->v_dim, split = task % j->n_splits, kv_head = task / j->n_splits % a->kv.n_kv_heads,
                   t = task / j->n_splits / a->kv.n_kv_heads;
    if (a->token_seq[t] == UINT32_MAX || split < range_begin(a, t) / KERN_ATTN_SPLIT ||
        split > (range_end(a, t) - 1) / KERN_ATTN_SPLIT)
        return;

    float *space = j->workspace + worker * j->workspace_floats;
    float *scores = take_floats(&space, (size_t)j->group * KERN_ATTN_SPLIT);
    part one = {.max = take_floats(&space, j->group), .sum = take_floats(&space, j->group)};
    one.acc = take_floats(&space, (size_t)j->group * vd);
    attend_split(j, (tile){.first = t, .count = 1}, kv_head, split, scores, one);
    for (uint32_t g = 0; g < j->group; g++) {
        float *p = part_of(j, t, kv_head * j->group + g, split);
        p[0] = one.max[g];
        p[1] = one.sum[g];
        memcpy(p + 2, one.acc + (size_t)g * vd, vd * sizeof *p);
    }
}

static void merge_task(void *ctx, uint32_t task, uint32_t worker)
{
    const attn_job *j = ctx;
    const kern_attn_args *a = j->a;
    const uint32_t t = task / a->n_heads, head = task % a->n_heads;
    if (a->token_seq[t] == UINT32_MAX)
        return;
    float *acc = j->workspace + worker * j->workspace_floats, max = -INFINITY, sum = 0;
    for (uint32_t s = range_begin(a, t) / KERN_ATTN_SPLIT; s <= (range_end(a, t) - 1) / KERN_ATTN_SPLIT; s++) {
        const float *p = part_of(j, t, head, s);
        merge(&max, &sum, acc, p[0], p[1], p + 2, j->v_dim);
    }
    finish(j, t, head, max, sum, acc);
}

static uint32_t splits_of(uint32_t max_context)
{
    return max_context / KERN_ATTN_SPLIT + (max_context % KERN_ATTN_SPLIT != 0);
}

uint64_t cpu_attn_scratch_bytes(kern_dev *dev, uint32_t max_tokens, uint32_t n_heads, uint32_t head_dim,
                                uint32_t max_context)
{
    uint64_t parts =
        (uint64_t)MIN(max_tokens, (uint32_t)SPLIT_TOKENS) * n_heads * splits_of(max_context) * (head_dim + 2);
    uint64_t work = pool_count(cpu_of(dev)->pool) * (uint64_t)workspace_floats(n_heads, head_dim);
    return max_tokens * sizeof(tile) + (parts + work) * sizeof(float);
}

/* Cuts the tokens into tiles: neighbours of one sequence, padding rows left out. */
static void make_tiles(attn_job *j)
{
    const kern_attn_args *a = j->a;
    uint32_t most = a->chosen ? 1 : MAX(1u, TILE_QUERIES / j->group); /* what one has chosen is its own */
    for (uint32_t t = 0; t < a->n_tokens; t++) {
        if (a->token_seq[t] == UINT32_MAX)
            continue;
        tile *last = j->n_tiles ? &j->tiles[j->n_tiles - 1] : NULL;
        if (last && last->first + last->count == t && a->token_seq[t] == a->token_seq[last->first] &&
            last->count < most)
            last->count++;
        else
            j->tiles[j->n_tiles++] = (tile){.first = t, .count = 1};
    }
}

kern_status cpu_attention(kern_dev *dev, const kern_attn_args *a)
{
    cpu_dev *d = cpu_of(dev);
    if (!kern_kv_is_known(&a->kv))
        return cpu_fail(d, KERN_UNSUPPORTED, "attention: heads of %u in a KV cache of %s", a->kv.head_dim,
                        kern_fmt_get(a->kv.fmt).name);
    if (a->kv.n_kv_heads == 0 || a->n_heads % a->kv.n_kv_heads || a->n_heads / a->kv.n_kv_heads > CPU_MAX_GROUP)
        return cpu_fail(d, KERN_UNSUPPORTED, "attention: %u heads over %u KV heads", a->n_heads, a->kv.n_kv_heads);
    if (a->n_tokens == 0)
        return KERN_OK;
    kern_status st = a->rope ? cpu_rope_kv(dev, a->rope) : KERN_OK;
    if (st)
        return st;

    attn_job j = {.a = a, .rows = &d->rows, .group = a->n_heads / a->kv.n_kv_heads};
    j.v_dim = a->kv.v_dim ? a->kv.v_dim : a->kv.head_dim;
    if (j.v_dim > a->kv.head_dim)
        return cpu_fail(d, KERN_ARG, "attention: V of %u of %u columns", j.v_dim, a->kv.head_dim);
    if (a->chosen && (!a->kv.v_dim || a->window || !a->top_k))
        return cpu_fail(d, KERN_ARG, "attention: %u chosen positions", a->top_k);
    uint32_t longest = 0, seen = 0; /* what is there, not what might be: max_context is a bound */
    for (uint32_t t = 0; t < a->n_tokens; t++)
        if (a->token_seq[t] != UINT32_MAX) {
            longest = MAX(longest, a->token_pos[t] + 1);
            seen = MAX(seen, range_end(a, t));
        }
    if (longest > a->max_context)
        return cpu_fail(d, KERN_ARG, "attention: position %u in a context of %u", longest - 1, a->max_context);
    j.n_splits = splits_of(seen);
    j.workspace_floats = workspace_floats(a->n_heads, a->kv.head_dim);
    j.tiles = a->scratch;
    j.workspace = (float *)(void *)(j.tiles + a->n_tokens);
    j.parts = j.workspace + pool_count(d->pool) * j.workspace_floats;

    if (a->n_tokens <= SPLIT_TOKENS && j.n_splits > 1 && pool_count(d->pool) > 1) {
        pool_run(d->pool, a->n_tokens * a->kv.n_kv_heads * j.n_splits, split_task, &j);
        pool_run(d->pool, a->n_tokens * a->n_heads, merge_task, &j);
        return KERN_OK;
    }
    make_tiles(&j);
    pool_run(d->pool, j.n_tiles * a->kv.n_kv_heads, tile_task, &j);
    return KERN_OK;
}

/* There is nothing to gain where device memory is host memory: it is the definition, and lets tests run the whole path. */
kern_status cpu_kv_stage(kern_dev *dev, const kern_kv_stage_args *a)
{
    cpu_dev *d = cpu_of(dev);
    if (a->slot > 1 || a->layer_bytes % 16)
        return cpu_fail(d, KERN_ARG, "staging: slot %u, %llu bytes a layer", a->slot,
                        (unsigned long long)a->layer_bytes);
    for (uint32_t i = a->range[0]; i < a->range[1]; i++) {
        const kern_kv_stage_entry *e = &a->list[i];
        if (a->window && (uint64_t)e->first_pos + a->block_size + a->window <= (uint64_t)e->query_pos + 1)
            continue;
        const uint64_t off = a->layer * a->layer_bytes;
        memcpy((void *)(uintptr_t)(a->to_addr[a->to_first + i] + off),
               (const void *)(uintptr_t)(a->from_addr[e->block] + off), a->layer_bytes);
    }
    return KERN_OK;
}
