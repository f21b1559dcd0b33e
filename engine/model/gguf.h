/* gguf.h - the GGUF container: typed metadata and tensor ranges over a mapped file.
 * Format: ggml/docs/gguf.md (versions 2 and 3, little-endian). */
#ifndef ENGINE_GGUF_H
#define ENGINE_GGUF_H

#include <stdbool.h>
#include <stdint.h>

#include "config/error.h"
#include "config/util.h"
#include "engine/model/map_file.h"
#include "kernels/quant.h"

typedef struct gguf gguf;

typedef enum gguf_type {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
} gguf_type;

typedef struct gguf_tensor {
    const char *name; /* NUL-terminated, owned by the gguf */
    uint32_t n_dims;
    uint64_t dims[4];   /* innermost first, as in the file: dims[0] is the row length */
    uint32_t ggml_type; /* as in the file */
    kern_fmt fmt;       /* FMT_COUNT: a type that cannot be read */
    const void *data;
    uint64_t bytes;
    bool taken; /* by gguf_tensor_take() */
} gguf_tensor;

/* Maps the file read-only and shared and checks everything in it: counts, lengths, types, alignment (a power of two up to 1 MiB),
 * every tensor's range. XD_BAD_MODEL names file and place. Tensors of a type that cannot be read have no data. */
xd_status gguf_open(const char *path, gguf **ret, xd_err *err) XD_MUST_CHECK;
void gguf_free(gguf *g);
XD_DEFINE_CLEANUP(gguf, gguf_free)

/* All that these return is borrowed from g. Tensors are sorted by name. */
const char *gguf_path(const gguf *g);
const mapped_file *gguf_map(const gguf *g);
uint32_t gguf_tensor_count(const gguf *g);
const gguf_tensor *gguf_tensor_at(const gguf *g, uint32_t idx);
const gguf_tensor *gguf_tensor_find(const gguf *g, const char *name); /* NULL: none */
/* As gguf_tensor_find(), and notes that somebody has a use for it. */
const gguf_tensor *gguf_tensor_take(gguf *g, const char *name);

const char *gguf_type_name(uint32_t ggml_type); /* "Q4_K"; "?" */
/* The types that can be read, comma-separated. Returns out. */
const char *gguf_known_types(char *out, size_t cap);

bool gguf_has(const gguf *g, const char *key); /* of any type */
/* Any integer type (and bool) within [min, max]; absent gives fallback. Else XD_BAD_MODEL. */
xd_status gguf_int(const gguf *g, const char *key, int64_t fallback, int64_t min, int64_t max, int64_t *ret,
                   xd_err *err) XD_MUST_CHECK;
/* Any number within [min, max]; absent gives fallback. */
xd_status gguf_real(const gguf *g, const char *key, double fallback, double min, double max, double *ret,
                    xd_err *err) XD_MUST_CHECK;
const char *gguf_string(const gguf *g,
                        const char *key); /* NULL when absent or another type; NUL-terminated, owned by the gguf */
/* Arrays: the number of elements, 0 when absent or of another element type. */
uint64_t gguf_strings(const gguf *g, const char *key, const char *const **ret); /* NUL-terminated */
uint64_t gguf_f32s(const gguf *g, const char *key, const float **ret);
uint64_t gguf_i32s(const gguf *g, const char *key, const int32_t **ret);
uint64_t gguf_bools(const gguf *g, const char *key, const uint8_t **ret);

#endif
