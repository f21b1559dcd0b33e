/* safetensors.h - the safetensors container: a header of names, types, shapes and ranges over a mapped file.
 * Format: github.com/huggingface/safetensors (8-byte little-endian header length, JSON header, data). */
#ifndef ENGINE_SAFETENSORS_H
#define ENGINE_SAFETENSORS_H

#include <stdbool.h>
#include <stdint.h>

#include "config/error.h"
#include "config/util.h"
#include "engine/model/map_file.h"

#define SAFETENSORS_MAX_DIMS         8
#define SAFETENSORS_MAX_HEADER_BYTES (100u << 20) /* the reference implementation's own limit */

typedef struct safetensors safetensors;

typedef struct safetensors_entry {
    const char *name; /* owned by the safetensors */
    char dtype[16];   /* "BF16", "F32", ... as in the file */
    uint32_t n_dims;
    uint64_t shape[SAFETENSORS_MAX_DIMS];
    const void *data; /* inside the mapping */
    uint64_t bytes;
    bool taken; /* by safetensors_take() */
} safetensors_entry;

/* Maps the file read-only and shared, and checks every entry: known dtype, begin <= end <= file size, span == shape x dtype,
 * no overlap and no holes, as the reference does. XD_BAD_MODEL names file and tensor. */
xd_status safetensors_open(const char *path, safetensors **ret, xd_err *err) XD_MUST_CHECK;
void safetensors_free(safetensors *s);
XD_DEFINE_CLEANUP(safetensors, safetensors_free)

/* All that these return is borrowed from s. */
uint32_t safetensors_count(const safetensors *s);
const safetensors_entry *safetensors_at(const safetensors *s, uint32_t idx);       /* sorted by name */
const safetensors_entry *safetensors_find(const safetensors *s, const char *name); /* NULL: none */
/* As safetensors_find(), and notes that somebody has a use for it. */
const safetensors_entry *safetensors_take(safetensors *s, const char *name);
/* "[6, 64]", for messages. */
const char *safetensors_shape(const safetensors_entry *e, char *out, size_t cap);
const char *safetensors_path(const safetensors *s);
const mapped_file *safetensors_map(const safetensors *s);

#endif
