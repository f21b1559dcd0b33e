/* kc.c - the frame of kerncheck (see kc.h). */
#include "tests/kern/kc.h"

#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define EPS32 1.1920929e-7f

/* Error bounds. cpu: float32 sums in another order than the reference's doubles; a lane adds K / 16 products one after
 * the other, so the bound is some tens of units in the last place of the sum of magnitudes. cuda: the same where it adds in float32;
 * where tensor cores take activations in two halves of BF16 the product itself is rounded to about 2^-16. */
static const kc_tolerance tolerances[] = {
    {"embed", 0, EPS32, "decoding is exact; one product with the scale"},
    {"rmsnorm", 2e-6f, 4e-6f, "float32 sum of squares and a square root"},
    {"layernorm", 4e-6f, 8e-6f, "the same of what differs from a mean that is itself rounded"},
    {"linear", 2e-6f, 2e-5f, "of the sum of |w x|"},
    {"swiglu", 1e-6f, 4e-6f, "of |gate * up|: expf within 2 ulp"},
    {"rope_kv", 2e-6f, 1e-5f, "norm, cosf/sinf within 2 ulp; F16 stores may differ by one rounding"},
    {"attention", 5e-7f, 1e-3f,
     "of the order of V: exp within 2 ulp, and sums; besides the room of scores, attention.c"},
    {"attention of rounded values", 5e-7f, 8e-3f, "matrix units take K and V of Q8_0 rounded to F16, 2^-12 of each"},
    {"router", 2e-6f, 4e-6f, "exp and one division; the choice is exact"},
    {"moe", 2e-6f, 2e-5f, "as linear, carried through silu and down"},
    {"delta", 1e-6f, 2e-6f,
     "of what was added and multiplied, each step's errors kept, and of what short convolutions add: delta.c"},
    {"logsumexp", 2e-6f, 4e-6f, "exp, sum and log in float32"},
};

float kc_tol(const kc *k, const char *op)
{
    for (size_t i = 0; i < sizeof tolerances / sizeof *tolerances; i++)
        if (strcmp(tolerances[i].op, op) == 0)
            return k->cuda ? tolerances[i].cuda : tolerances[i].cpu;
    return 0;
}

/* splitmix64 */
static uint64_t next(kc *k)
{
    uint64_t z = k->rng += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

uint32_t kc_below(kc *k, uint32_t n)
{
    return (uint32_t)((next(k) >> 32) * n >> 32);
}

uint32_t kc_between(kc *k, uint32_t lo, uint32_t hi)
{
    return lo + kc_below(k, hi - lo + 1);
}

float kc_uniform(kc *k)
{
    return (float)(next(k) >> 40) * 0x1p-24f;
}

static float bell(kc *k)
{
    float s = 0;
    for (int i = 0; i < 6; i++)
        s += kc_uniform(k) - 0.5f;
    return s * 1.4142135f;
}

void kc_fill_scaled(kc *k, float *x, size_t n, float scale)
{
    for (size_t i = 0; i < n; i++)
        x[i] = bell(k) * scale;
}

void kc_fill(kc *k, float *x, size_t n)
{
    uint32_t temper = kc_below(k, 10);
    for (size_t i = 0; i < n; i++) {
        switch (temper) {
        case 0: x[i] = 0; break;
        case 1: x[i] = bell(k) * 1e-38f; break;
        case 2: x[i] = bell(k) * 1e12f; break;
        case 3: x[i] = kc_below(k, 8) ? 0 : bell(k); break;
        case 4: x[i] = fabsf(bell(k)); break;
        case 5: x[i] = bell(k) * (kc_below(k, 50) ? 1.0f : 1e4f); break;
        default: x[i] = bell(k); break;
        }
    }
}

static uint16_t half_bits(kc *k)
{
    for (;;) {
        uint16_t h = (uint16_t)next(k);
        /* around 1 mostly; sometimes any finite half, subnormals included */
        if (kc_below(k, 64))
            h = (uint16_t)((h & 0x83ffu) | kc_between(k, 11, 15) << 10);
        if ((h >> 10 & 31) != 31)
            return h;
    }
}

/* A scale, some 2^-shift of a weight, that most of the blocks' quants make ordinary weights of. */
static void put_scale(kc *k, uint8_t *p, uint32_t shift)
{
    uint16_t d = half_bits(k);
    d = (d >> 10 & 31) > shift ? (uint16_t)(d - (shift << 10)) : d;
    memcpy(p, &d, 2);
}

static void fill_block(kc *k, uint8_t *w, kern_fmt fmt, uint32_t bytes)
{
    for (uint32_t i = 0; i < bytes; i++)
        w[i] = (uint8_t)next(k);
    uint16_t h;
    switch (fmt) {
    case FMT_F16:
        h = half_bits(k);
        memcpy(w, &h, 2);
        break;
    case FMT_BF16:
        h = (uint16_t)next(k);
        h = kc_below(k, 64) ? (uint16_t)((h & 0x807fu) | kc_between(k, 122, 127) << 7) : (uint16_t)(h & 0xbfffu);
        memcpy(w, &h, 2);
        break;
    case FMT_MXFP4: w[0] = (uint8_t)kc_between(k, 118, 126); break;
    case FMT_Q4_1:
    case FMT_Q5_1:
        put_scale(k, w + 2, 0);
        put_scale(k, w, 4);
        break;
    case FMT_Q4_K:
    case FMT_Q5_K:
        put_scale(k, w + 2, 6);
        put_scale(k, w, 9);
        break;
    case FMT_Q2_K:
        put_scale(k, w + 82, 4);
        put_scale(k, w + 80, 5);
        break;
    case FMT_Q3_K: put_scale(k, w + 108, 6); break;
    case FMT_FP8: {
        const float d = ldexpf(1 + kc_uniform(k), -(int)kc_between(k, 6, 9)) * (kc_below(k, 9) ? 1 : -1);
        memcpy(w, &d, sizeof d);
        for (uint32_t i = 4; i < bytes; i++)
            if ((w[i] & 0x7f) == 0x7f) /* NaN */
                w[i] ^= kc_below(k, 2) ? 0x7f : 1;
        break;
    }
    case FMT_INT4_G32:
    case FMT_INT4_G128: { /* scales of BF16, or of F16, which have three bits more */
        for (uint32_t g = 0; g < (fmt == FMT_INT4_G32 ? 4u : 1u); g++) {
            const uint32_t exponent = kc_below(k, 64) ? kc_between(k, 117, 121) : kc_below(k, 122);
            const uint32_t head = ((uint32_t)next(k) & (kc_below(k, 2) ? 0x807f0000u : 0x807fe000u)) | exponent << 23 |
                                  (kc_below(k, 3) ? 8 : kc_below(k, 32)) << 8;
            if (fmt == FMT_INT4_G128) {
                memcpy(w, &head, 4);
            } else {
                memcpy(w + 2 * g, (const char *)&head + 2, 2);
                w[8 + g] = (uint8_t)(head >> 8);
            }
        }
        break;
    }
    case FMT_NVFP4: {
        const float d = ldexpf(1 + kc_uniform(k), -(int)kc_between(k, 8, 11)) * (kc_below(k, 9) ? 1 : -1);
        memcpy(w, &d, sizeof d);
        for (uint32_t i = 4; i < 12; i++) /* around 1 mostly; not NaN */
            w[i] = (uint8_t)(kc_below(k, 9) ? 0x28 + kc_below(k, 0x20) : kc_below(k, 0x7f));
        break;
    }
    case FMT_IQ4_XS: put_scale(k, w, 11); break;
    case FMT_IQ2_XXS:
    case FMT_IQ2_XS:
    case FMT_IQ2_S: put_scale(k, w, 7); break;
    case FMT_IQ3_XXS: put_scale(k, w, 8); break;
    case FMT_IQ3_S: put_scale(k, w, 7); break;
    case FMT_IQ1_S: put_scale(k, w, 3); break;
    case FMT_IQ1_M: { /* a quarter of the scale in each of four words */
        put_scale(k, w, 3);
        const uint32_t d = w[0] | (uint32_t)w[1] << 8;
        for (uint32_t i = 0; i < 4; i++)
            w[49 + 2 * i] = (uint8_t)((w[49 + 2 * i] & 15) | (d >> 4 * i & 15) << 4);
        break;
    }
    case FMT_Q6_K: put_scale(k, w + 208, 11); break;
    case FMT_Q4_0: put_scale(k, w, 3); break;
    case FMT_Q5_0: put_scale(k, w, 4); break;
    default: put_scale(k, w, 7); break;
    }
}

uint8_t *kc_weights(kc *k, kern_fmt fmt, uint32_t rows, uint32_t cols)
{
    size_t row_bytes = kern_row_bytes(fmt, cols);
    uint8_t *w = kc_alloc(k, rows * row_bytes);
    bool zeros = kc_below(k, 20) == 0;
    if (zeros)
        return w;
    if (fmt == FMT_F32) {
        float *f = kc_alloc(k, (size_t)rows * cols * sizeof *f);
        kc_fill(k, f, (size_t)rows * cols);
        memcpy(w, f, rows * row_bytes);
        return w;
    }
    uint32_t bytes = kern_fmt_get(fmt).block_bytes;
    for (size_t i = 0; i < rows * row_bytes / bytes; i++)
        fill_block(k, w + i * bytes, fmt, bytes);
    return w;
}

/* Blocks of a case form a list: the first word of each is the next one. */
void *kc_alloc(kc *k, size_t bytes)
{
    void **p = calloc(1, 64 + bytes);
    if (!p) {
        fprintf(stderr, "kerncheck: no memory\n");
        exit(1);
    }
    *p = k->memory;
    k->memory = p;
    return (char *)p + 64;
}

static void free_memory(kc *k)
{
    while (k->memory) {
        void *next_block = *(void **)k->memory;
        free(k->memory);
        k->memory = next_block;
    }
}

void kc_case(kc *k, const char *fmt, ...)
{
    free_memory(k);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(k->what, sizeof k->what, fmt, ap);
    va_end(ap);
    k->n_cases++;
    k->case_failed = k->case_unsupported = false;
}

void kc_fail(kc *k, const char *fmt, ...)
{
    if (k->case_failed || k->case_unsupported)
        return;
    k->case_failed = true;
    k->n_failed++;
    printf("FAIL %s, seed %llu: %s: ", k->set, (unsigned long long)k->seed, k->what);
    va_list ap;
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    printf("\n");
}

/* ---- buffers -------------------------------------------------------------------------------------------------------- */

typedef struct kc_buffer {
    void *p;   /* what operations see */
    void *map; /* NULL: of the device's allocator */
    size_t map_bytes;
} kc_buffer;

#define MAX_BUFFERS 4096

kc_run kc_begin(kc *k, kern_dev *d)
{
    return (kc_run){.k = k, .d = d, .buffers = kc_alloc(k, MAX_BUFFERS * sizeof(kc_buffer))};
}

static void die(const char *what)
{
    fprintf(stderr, "kerncheck: %s\n", what);
    exit(1);
}

static void *device_buffer(kc_run *r, size_t bytes)
{
    if (r->n_buffers == MAX_BUFFERS)
        die("too many buffers in a case");
    kc_buffer *b = &r->buffers[r->n_buffers++];
    kern_dev_info info;
    r->d->ops->info(r->d, &info);
    if (!info.unified) {
        if (r->d->ops->alloc(r->d, bytes ? bytes : 1, &b->p) != KERN_OK)
            die(r->d->ops->error(r->d));
        return b->p;
    }
    size_t page = (size_t)sysconf(_SC_PAGESIZE), inner = (bytes + page - 1) / page * page;
    b->map_bytes = inner + 2 * page;
    b->map = mmap(NULL, b->map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (b->map == MAP_FAILED || (inner && mprotect((char *)b->map + page, inner, PROT_READ | PROT_WRITE) < 0))
        die("no memory for a guarded buffer");
    /* Even buffers end at the guard, odd ones begin at it; the next case has them the other way round. */
    bool at_end = (r->n_buffers + r->k->n_cases) % 2;
    size_t slack = inner - bytes;
    slack -= slack % 4 && bytes % 4 == 0 ? slack % 4 : 0;
    b->p = (char *)b->map + page + (at_end ? slack : 0);
    return b->p;
}

void *kc_put(kc_run *r, const void *src, size_t bytes)
{
    void *p = device_buffer(r, bytes);
    if (r->d->ops->upload(r->d, p, src, bytes) != KERN_OK)
        die(r->d->ops->error(r->d));
    return p;
}

void *kc_room(kc_run *r, size_t bytes)
{
    uint8_t *pattern = kc_alloc(r->k, bytes);
    memset(pattern, 0xff, bytes); /* NaN as float, an id out of range as integer */
    return kc_put(r, pattern, bytes);
}

void kc_get(kc_run *r, void *dst, const void *device, size_t bytes)
{
    if (r->k->case_unsupported)
        return;
    if (r->d->ops->download(r->d, dst, device, bytes) != KERN_OK || r->d->ops->sync(r->d) != KERN_OK)
        die(r->d->ops->error(r->d));
}

void kc_end(kc_run *r)
{
    if (r->d->ops->sync(r->d) != KERN_OK)
        die(r->d->ops->error(r->d));
    for (uint32_t i = 0; i < r->n_buffers; i++) {
        kc_buffer *b = &r->buffers[i];
        if (b->map)
            munmap(b->map, b->map_bytes);
        else
            r->d->ops->free(r->d, b->p);
    }
    r->n_buffers = 0;
}

void kc_status(kc_run *r, kern_status st)
{
    if (st == KERN_OK || r->k->case_unsupported)
        return;
    if (st == KERN_UNSUPPORTED && r->k->cuda && r->d == r->k->dev) {
        r->k->case_unsupported = true;
        r->k->n_unsupported++;
        printf("unsupported: %s: %s\n", r->k->what, r->d->ops->error(r->d));
        return;
    }
    kc_fail(r->k, "status %d: %s", (int)st, r->d->ops->error(r->d));
}

/* ---- comparison ------------------------------------------------------------------------------------------------------ */

void kc_compare(kc *k, const char *name, const float *got, const float *want, const float *magnitude, size_t n,
                uint32_t width, float tol)
{
    for (size_t row = 0; row < n / KC_MAX(width, 1u) && !k->case_failed; row++) {
        double squares = 0;
        for (size_t i = row * width; i < (row + 1) * width; i++)
            squares += (double)want[i] * (double)want[i];
        float rms = (float)sqrt(squares / width);
        for (size_t i = row * width; i < (row + 1) * width; i++) {
            float room = tol * (magnitude ? magnitude[i] : KC_MAX(rms, fabsf(want[i]))) + (tol > 0 ? 64 * FLT_MIN : 0);
            if (got[i] == want[i] || (isnan(got[i]) && isnan(want[i])) || fabsf(got[i] - want[i]) <= room)
                continue;
            kc_fail(k, "%s[%zu][%zu] is %.9g instead of %.9g (allowed %.3g)", name, row, i % width, (double)got[i],
                    (double)want[i], (double)room);
            return;
        }
    }
}

void kc_same_bits(kc *k, const char *name, const float *got, const float *want, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(&got[i], &want[i], sizeof *got) != 0) {
            kc_fail(k, "%s: bits of [%zu] differ: %.9g and %.9g", name, i, (double)got[i], (double)want[i]);
            return;
        }
}

void kc_check_op(kc *k, kc_op *op, const void *c, uint32_t n_tokens, uint32_t width, const float *magnitude, float tol)
{
    size_t n = (size_t)n_tokens * width;
    float *want = kc_alloc(k, n * sizeof *want), *got = kc_alloc(k, n * sizeof *got);
    float *again = kc_alloc(k, n * sizeof *again);
    uint32_t *tokens = kc_alloc(k, n_tokens * sizeof *tokens);
    for (uint32_t t = 0; t < n_tokens; t++)
        tokens[t] = t;
    op(k, k->ref, c, tokens, n_tokens, want);
    op(k, k->dev, c, tokens, n_tokens, got);
    if (k->case_unsupported)
        return;
    kc_compare(k, "result", got, want, magnitude, n, width, tol);

    op(k, k->other, c, tokens, n_tokens, again);
    kc_same_bits(k, "another number of threads", again, got, n);
    for (uint32_t i = 0; i < KC_MIN(n_tokens, 3u); i++) {
        uint32_t t = i == 0 ? 0 : i == 1 ? n_tokens - 1 : kc_below(k, n_tokens);
        op(k, k->dev, c, &t, 1, again);
        kc_same_bits(k, "a token alone", again, got + (size_t)t * width, width);
    }
    for (uint32_t t = 0; t < n_tokens; t++)
        tokens[t] = n_tokens - 1 - t;
    op(k, k->dev, c, tokens, n_tokens, again);
    for (uint32_t t = 0; t < n_tokens; t++)
        kc_same_bits(k, "another place in the batch", again + (size_t)t * width, got + (size_t)tokens[t] * width,
                     width);
}
