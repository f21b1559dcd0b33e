/* gpubench.h - the frame of gpubench: the device, random values, recorded runs, comparison bit by bit; and what its parts check and time. One thread. A
 * call that fails ends the program. */
#ifndef TESTS_KERN_GPUBENCH_H
#define TESTS_KERN_GPUBENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/kernels.h"

#define D_MODEL   2048u
#define N_EXPERTS 128u
#define TOP_K     8u
#define MAX_TOK   16384u

extern kern_dev *gb_dev;
extern int gb_failed; /* checks */

void gb_ok(kern_status st, const char *what);
uint64_t gb_next(void); /* random; the same numbers in every run */

/* Device memory; to be freed with gb_dev's free. */
void *gb_room(uint64_t bytes);
void *gb_put(const void *src, uint64_t bytes);
void gb_get(void *dst, const void *src, uint64_t bytes);
/* Host memory, in whole pages; to be freed with munmap(). */
void *gb_big(uint64_t bytes);
float *gb_floats(size_t n, float scale); /* -scale .. scale */
void gb_weights(uint8_t *w, uint64_t bytes, kern_fmt fmt);

/* What is recorded between the two runs `turns` times, the first not counted: seconds of one of its `reps` repetitions. */
void gb_record(void);
double gb_replay(uint32_t reps, uint32_t turns);

void gb_same(const char *what, const float *p, const float *q, size_t n);

/* gpubench_experts.c. x: [MAX_TOK][D_MODEL] */
typedef struct gb_experts gb_experts; /* two layers of experts, in host memory and in VRAM */
gb_experts *gb_experts_load(kern_fmt fmt);
void gb_experts_free(gb_experts *e);
void gb_check_moe(const gb_experts *e, kern_dev *stream_only, const float *x); /* stream_only: has no tiled kernels */
void gb_time_moe(const gb_experts *e, const float *x, uint32_t max_tokens);
void gb_time_misses(const gb_experts *e, const float *x);

/* gpubench_attn.c */
typedef struct gb_heads {
    uint32_t heads, kv_heads, dim, rot;
    kern_fmt fmt; /* of the KV cache */
} gb_heads;
void gb_check_attention(const gb_heads *h);
void gb_time_attention(const gb_heads *h);
void gb_check_delta(void);
void gb_time_delta(void);

/* gpubench_trunk.c */
void gb_check_trunk(const float *x); /* linear, route */
void gb_time_linear(kern_fmt fmt, const float *x);
void gb_time_small(const float *x);

#endif
