/* kc.h - the frame of kerncheck: devices, random values, guarded buffers, comparison. */
#ifndef TESTS_KERN_KC_H
#define TESTS_KERN_KC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/kernels.h"

#define KC_MIN(a, b) ((a) < (b) ? (a) : (b))
#define KC_MAX(a, b) ((a) > (b) ? (a) : (b))

/* Relative error a backend may show against the scalar reference. */
typedef struct kc_tolerance {
    const char *op;
    float cpu, cuda;
    const char *reason;
} kc_tolerance;

typedef struct kc {
    kern_dev *ref;   /* scalar CPU backend, one thread */
    kern_dev *dev;   /* what is checked */
    kern_dev *other; /* the same rows with another number of threads (CPU), or dev itself */
    bool cuda;
    uint64_t seed, rng;
    const char *set; /* of rows that dev has */
    char what[256];  /* op and parameters of the case, for messages */
    uint32_t n_cases, n_failed, n_unsupported;
    bool case_failed, case_unsupported;
    void *memory; /* host memory of the case */
} kc;

/* --- random values ---------------------------------------------------------------------------------------------- */
uint32_t kc_below(kc *k, uint32_t n);                 /* 0 .. n - 1 */
uint32_t kc_between(kc *k, uint32_t lo, uint32_t hi); /* both included */
float kc_uniform(kc *k);                              /* [0, 1) */
/* Values of one temper a call: bell-shaped, or zeros, tiny (subnormal products), large, sparse, one sign. */
void kc_fill(kc *k, float *x, size_t n);
void kc_fill_scaled(kc *k, float *x, size_t n, float scale); /* bell-shaped only */
/* Encodes rows of weights; cols is a multiple of the block. Returns [rows][row_bytes], memory of the case. */
uint8_t *kc_weights(kc *k, kern_fmt fmt, uint32_t rows, uint32_t cols);

/* --- memory of a case: zeroed, freed when the case ends ----------------------------------------------------------- */
void *kc_alloc(kc *k, size_t bytes);

/* --- one operation on one device ---------------------------------------------------------------------------------- */
typedef struct kc_run {
    kc *k;
    kern_dev *d;
    struct kc_buffer *buffers;
    uint32_t n_buffers;
} kc_run;

kc_run kc_begin(kc *k, kern_dev *d);
/* Device copy of a host buffer. Where device memory is host memory, an inaccessible page lies right behind the buffer or right
 * before it, by turns. */
void *kc_put(kc_run *r, const void *src, size_t bytes);
void *kc_room(kc_run *r, size_t bytes); /* output or scratch, filled with NaN patterns */
void kc_get(kc_run *r, void *dst, const void *device, size_t bytes);
void kc_end(kc_run *r);
/* Takes note of an operation's result. */
void kc_status(kc_run *r, kern_status st);

/* --- verdicts ------------------------------------------------------------------------------------------------------ */
void kc_case(kc *k, const char *fmt, ...) __attribute__((format(printf, 2, 3))); /* begins a case */
void kc_fail(kc *k, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* |got - want| <= tol * magnitude[i] + floor; magnitude NULL: the root mean square of each row of `width`. */
void kc_compare(kc *k, const char *name, const float *got, const float *want, const float *magnitude, size_t n,
                uint32_t width, float tol);
void kc_same_bits(kc *k, const char *name, const float *got, const float *want, size_t n);
float kc_tol(const kc *k, const char *op);

/* Runs `op` for the given tokens of a case and yields `width` floats a token. */
typedef void kc_op(kc *k, kern_dev *d, const void *c, const uint32_t *tokens, uint32_t n, float *out);
/* The whole check of an operation that treats tokens one by one: against the reference; alone, in reverse order, with other threads:
 * the same bits. magnitude as in kc_compare; NULL op name in tolerance table means bits. */
void kc_check_op(kc *k, kc_op *op, const void *c, uint32_t n_tokens, uint32_t width, const float *magnitude, float tol);

/* --- cases ---------------------------------------------------------------------------------------------------------- */
typedef struct kc_case_row {
    const char *name;
    void (*fn)(kc *k);
} kc_case_row;
extern const kc_case_row kc_cases[]; /* ends with {0} */
void case_linear(kc *k);
void case_linear_few(kc *k);
void case_linear_tiny(kc *k);
void case_linear_heads(kc *k);
void case_rope(kc *k);
void case_rope_latent(kc *k);
void case_attention(kc *k);
void case_attention_latent(kc *k);
void case_attention_chosen(kc *k);
void case_index_rope(kc *k);
void case_index(kc *k);
void case_router(kc *k);
void case_copies(kc *k);
void case_kv_stage(kc *k);
void case_moe(kc *k);
void case_moe_tiny(kc *k);
void case_moe_groups(kc *k);
void case_moe_many(kc *k);
void case_route(kc *k);
void case_delta(kc *k);
void case_delta_long(kc *k);
void case_shortconv(kc *k);
void case_shortconv_long(kc *k);
void case_ssm(kc *k);
void case_ssm_long(kc *k);
void case_gate(kc *k);

/* --- what cases share ------------------------------------------------------------------------------------------------ */
#define KC_NEW(k, n, T) ((T *)kc_alloc(k, (size_t)(n) * sizeof(T)))
kern_fmt kc_any_fmt(kc *k);
uint32_t kc_block(const kc *k, kern_fmt fmt); /* columns come in multiples of this */
uint32_t kc_any_tokens(kc *k);                /* one, few, or many */
uint32_t kc_any_cols(kc *k, kern_fmt fmt);
kern_mat kc_any_mat(kc *k, kern_fmt fmt, uint32_t rows, uint32_t cols); /* on the host */
kern_mat kc_put_mat(kc_run *r, kern_mat m);
/* CUDA refuses some shapes. It is seen to do so with single tokens; the other cases are worth more: they get only what it takes. */
bool kc_takes_all(const kc *k, uint32_t n_tokens);
/* Rows of `table`, picked by tokens, as a packed host matrix. */
void *kc_gather(kc *k, const void *table, size_t row_bytes, const uint32_t *tokens, uint32_t n);
/* Values of encoded weights, by the reference's embedding (which the numpy vectors check). */
float *kc_decoded(kc *k, kern_mat host);
/* The matrix units take both operands in parts of BF16, whose smallest number is 2^-133: where an operand is not much larger than that,
 * what its last part cannot hold is up to half of it, times the other operand. This half, as a magnitude: divided by the tolerance. */
double kc_lost_when_split(const kc *k, const char *op);

/* Replays the vectors that numpy computed; false when the file cannot be read. */
bool kc_vectors(kc *k, const char *path);
void kc_bench(kern_dev *d, const char *only);

#endif
