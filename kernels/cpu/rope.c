/* rope.c - per-head norm, rotary embedding, and the store of K and V into the paged cache.
 *
 * Angles are float32 products of position and frequency, as the reference implementations of the model families compute them. */
#include "kernels/cpu/cpu_priv.h"

typedef struct rope_job {
    const kern_rope_kv_args *a;
    const cpu_rows *rows;
} rope_job;

static void find_angles(float *cos_of, float *sin_of, uint32_t pos, const float *inv_freq, uint32_t rot_dim,
                        float scale)
{
    for (uint32_t i = 0; i < rot_dim / 2; i++) {
        float angle = (float)pos * inv_freq[i];
        cos_of[i] = cosf(angle) * scale;
        sin_of[i] = sinf(angle) * scale;
    }
}

static void rotate(float *head, uint32_t rot_dim, bool interleaved, const float *cos_of, const float *sin_of)
{
    /* Pair i is (i * step, i * step + apart). */
    uint32_t half = rot_dim / 2, step = interleaved ? 2 : 1, apart = interleaved ? 1 : half;
    for (uint32_t i = 0; i < half; i++) {
        float *first = &head[i * step], a = first[0], b = first[apart];
        first[0] = a * cos_of[i] - b * sin_of[i];
        first[apart] = b * cos_of[i] + a * sin_of[i];
    }
}

/* As kern_kv says. The magnitudes are compared as whole numbers, since NaN is the largest then. */
static void to_q8_0(uint8_t *dst, const float *src, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 32, src += 32, dst += sizeof(kern_q8_0_block)) {
        kern_q8_0_block b = {0};
        uint32_t most = 0;
        for (uint32_t k = 0; k < 32; k++)
            most = MAX(most, bits_of_f32(src[k]) & 0x7fffffffu);
        b.d = f16_of_f32(f32_of_bits(most) / 127.0f);
        if ((b.d & 0x7c00u) == 0x7c00u) {
            b.d = 0x7e00;
        } else if (b.d) {
            const float d = f32_of_f16(b.d);
            for (uint32_t k = 0; k < 32; k++)
                b.qs[k] = (int8_t)MAX(-127.0f, MIN(127.0f, rintf(src[k] / d)));
        }
        memcpy(dst, &b, sizeof b); /* which has no alignment in a row */
    }
}

static void store(void *dst, const float *src, uint32_t n, kern_fmt fmt, const cpu_rows *rows)
{
    if (fmt == FMT_F32)
        memcpy(dst, src, n * sizeof *src);
    else if (fmt == FMT_Q8_0)
        to_q8_0(dst, src, n);
    else
        rows->to_f16(dst, src, n);
}

static void rope_task(void *ctx, uint32_t t, uint32_t worker)
{
    (void)worker;
    const rope_job *j = ctx;
    const kern_rope_kv_args *a = j->a;
    const kern_kv *kv = &a->kv;
    if (a->token_seq[t] == UINT32_MAX)
        return;

    /* Latent attention: what is V too is normed, and what lies behind it is rotated. */
    uint32_t pos = a->token_pos[t], hd = kv->head_dim, k_normed = kv->v_dim ? kv->v_dim : hd;
    float cos_of[CPU_MAX_HEAD_DIM / 2], sin_of[CPU_MAX_HEAD_DIM / 2], kv_head[CPU_MAX_HEAD_DIM];
    find_angles(cos_of, sin_of, pos, a->inv_freq, a->rot_dim, a->rope_scale);

    const float grown = a->grow != 0 ? 1 + a->grow * log1pf(floorf(((float)pos + 1) / a->grow_every)) : 1;
    float *q = a->qkv + (size_t)t * (a->n_heads + (kv->v_dim ? 1 : 2) * kv->n_kv_heads) * hd;
    for (uint32_t h = 0; h < a->n_heads; h++) {
        float *head = q + (size_t)h * hd;
        if (a->q_norm && !a->norm_last)
            j->rows->rmsnorm(head, head, a->q_norm, hd, a->norm_eps);
        rotate(head + kv->v_dim, a->rot_dim, a->interleaved, cos_of, sin_of);
        if (a->q_norm && a->norm_last)
            j->rows->rmsnorm(head, head, a->q_norm, hd, a->norm_eps);
        for (uint32_t i = 0; i < hd && grown != 1; i++)
            head[i] *= grown;
    }

    uint32_t block = kv->block_table[(size_t)a->token_seq[t] * kv->max_blocks + pos / kv->block_size];
    size_t head_bytes = kern_row_bytes(kv->fmt, hd), matrix_bytes = head_bytes * kv->block_size * kv->n_kv_heads;
    uint8_t *layer = (uint8_t *)(uintptr_t)kv->block_addr[block] + a->layer * kv->layer_bytes;
    const float *k = q + (size_t)a->n_heads * hd, *v = k + (size_t)kv->n_kv_heads * hd;
    for (uint32_t h = 0; h < kv->n_kv_heads; h++) {
        uint8_t *slot = layer + ((size_t)h * kv->block_size + pos % kv->block_size) * head_bytes;
        memcpy(kv_head, k + (size_t)h * hd, hd * sizeof *k);
        if (a->k_norm && !a->norm_last)
            j->rows->rmsnorm(kv_head, kv_head, a->k_norm, k_normed, a->norm_eps);
        rotate(kv_head + kv->v_dim, a->rot_dim, a->interleaved, cos_of, sin_of);
        if (a->k_norm && a->norm_last)
            j->rows->rmsnorm(kv_head, kv_head, a->k_norm, hd, a->norm_eps);
        store(slot, kv_head, hd, kv->fmt, j->rows);
        if (kv->v_dim)
            continue;
        const float *v_head = v + (size_t)h * hd;
        if (a->v_norm) {
            j->rows->rmsnorm(kv_head, v_head, a->v_norm, hd, a->norm_eps);
            v_head = kv_head;
        }
        store(slot + matrix_bytes, v_head, hd, kv->fmt, j->rows);
    }
}

kern_status cpu_rope_kv(kern_dev *dev, const kern_rope_kv_args *a)
{
    cpu_dev *d = cpu_of(dev);
    if (a->kv.v_dim > a->kv.head_dim || a->rot_dim > a->kv.head_dim - a->kv.v_dim || a->rot_dim % 2 ||
        a->kv.head_dim > CPU_MAX_HEAD_DIM)
        return cpu_fail(d, KERN_UNSUPPORTED, "rope: %u of %u dimensions", a->rot_dim, a->kv.head_dim);
    if ((a->norm_last || a->grow != 0) && a->kv.v_dim)
        return KERN_ARG;
    if (!kern_kv_is_known(&a->kv))
        return cpu_fail(d, KERN_UNSUPPORTED, "rope: heads of %u in a KV cache of %s", a->kv.head_dim,
                        kern_fmt_get(a->kv.fmt).name);
    rope_job j = {.a = a, .rows = &d->rows};
    pool_run(d->pool, a->n_tokens, rope_task, &j);
    return KERN_OK;
}

typedef struct index_rope_job {
    const kern_index_rope_args *a;
    const cpu_rows *rows;
} index_rope_job;

static void index_rope_task(void *ctx, uint32_t t, uint32_t worker)
{
    (void)worker;
    const index_rope_job *j = ctx;
    const kern_index_rope_args *a = j->a;
    const kern_kv *kv = &a->kv;
    if (a->token_seq[t] == UINT32_MAX)
        return;
    const uint32_t dim = kv->index_dim, pos = a->token_pos[t];
    float cos_of[CPU_MAX_HEAD_DIM / 2], sin_of[CPU_MAX_HEAD_DIM / 2], key[CPU_MAX_HEAD_DIM];
    find_angles(cos_of, sin_of, pos, a->inv_freq, a->rot_dim, a->rope_scale);
    for (uint32_t h = 0; h < a->n_heads; h++)
        rotate(a->q + ((size_t)t * a->n_heads + h) * dim, a->rot_dim, a->interleaved, cos_of, sin_of);
    memcpy(key, a->k + (size_t)t * dim, dim * sizeof *key);
    rotate(key, a->rot_dim, a->interleaved, cos_of, sin_of);
    const uint32_t block = kv->block_table[(size_t)a->token_seq[t] * kv->max_blocks + pos / kv->block_size];
    uint8_t *keys = (uint8_t *)(uintptr_t)kv->block_addr[block] + a->layer * kv->layer_bytes + kern_kv_index_at(kv);
    store(keys + pos % kv->block_size * kern_row_bytes(kv->fmt, dim), key, dim, kv->fmt, j->rows);
}

kern_status cpu_index_rope(kern_dev *dev, const kern_index_rope_args *a)
{
    cpu_dev *d = cpu_of(dev);
    if (!a->kv.index_dim || a->kv.index_dim > CPU_MAX_HEAD_DIM || a->rot_dim > a->kv.index_dim || a->rot_dim % 2 ||
        !kern_kv_is_known(&a->kv))
        return cpu_fail(d, KERN_UNSUPPORTED, "an indexer of %u columns, %u of them rotated, in a KV cache of %s",
                        a->kv.index_dim, a->rot_dim, kern_fmt_get(a->kv.fmt).name);
    index_rope_job j = {.a = a, .rows = &d->rows};
    pool_run(d->pool, a->n_tokens, index_rope_task, &j);
    return KERN_OK;
}
