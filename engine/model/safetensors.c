/* safetensors.c - reads the header of a mapped safetensors file and proves every range before anyone may use it.
 *
 * The file is mapped MAP_SHARED and PROT_READ: the page cache is the only copy, and a device can register the mapping as it is.
 * It does not know what tensors mean; model.c does. A file that shrinks while it is mapped ends in SIGBUS like any mapping
 * (daemon/bus_error.c): model files must not be truncated in place while served (replace them by rename). */
#include "engine/model/safetensors.h"

#include <jansson.h>
#include <string.h>
#include <sys/mman.h>

struct safetensors {
    char *path;
    mapped_file map;
    uint32_t n;
    safetensors_entry *entries;
};

static const struct {
    const char *name;
    uint32_t bytes;
} dtypes[] = {
    {"BOOL", 1}, {"U8", 1},   {"I8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1}, {"F8_E8M0", 1}, {"I16", 2}, {"U16", 2},
    {"F16", 2},  {"BF16", 2}, {"I32", 4}, {"U32", 4},     {"F32", 4},     {"F64", 8},     {"I64", 8}, {"U64", 8},
};

static xd_status read_entry(safetensors *s, const char *name, json_t *value, const char *data, uint64_t data_bytes,
                            xd_err *err)
{
    safetensors_entry *e = &s->entries[s->n];
    json_t *dtype = json_object_get(value, "dtype"), *shape = json_object_get(value, "shape"),
           *offsets = json_object_get(value, "data_offsets");
    if (!json_is_string(dtype) || !json_is_array(shape) || !json_is_array(offsets) || json_array_size(offsets) != 2)
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: tensor '%s' needs dtype, shape and two data_offsets", s->path, name);

    uint32_t item = 0;
    for (size_t i = 0; i < XD_ARRAY_LEN(dtypes); i++)
        if (!strcmp(dtypes[i].name, json_string_value(dtype)))
            item = dtypes[i].bytes;
    if (!item)
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: tensor '%s' has unknown dtype '%s'", s->path, name,
                       json_string_value(dtype));
    if (json_array_size(shape) > SAFETENSORS_MAX_DIMS)
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: tensor '%s' has %zu dimensions, at most %d are allowed", s->path,
                       name, json_array_size(shape), SAFETENSORS_MAX_DIMS);

    uint64_t span = item;
    size_t i;
    json_t *dim;
    json_array_foreach (shape, i, dim) {
        if (!json_is_integer(dim) || json_integer_value(dim) < 0)
            return xd_fail(err, XD_BAD_MODEL, 0, "%s: tensor '%s' has a dimension that is not a size", s->path, name);
        e->shape[i] = (uint64_t)json_integer_value(dim);
        if (!xd_mul_u64(&span, span, e->shape[i]))
            return xd_fail(err, XD_BAD_MODEL, 0, "%s: the size of tensor '%s' overflows", s->path, name);
    }
    json_t *begin = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);
    if (!json_is_integer(begin) || !json_is_integer(end) || json_integer_value(begin) < 0 ||
        json_integer_value(end) < json_integer_value(begin) || (uint64_t)json_integer_value(end) > data_bytes)
        return xd_fail(err, XD_BAD_MODEL, 0,
                       "%s: tensor '%s' lies outside the file (%llu bytes of data): truncated download?", s->path, name,
                       (unsigned long long)data_bytes);
    e->data = data + json_integer_value(begin);
    e->bytes = (uint64_t)(json_integer_value(end) - json_integer_value(begin));
    if (e->bytes != span)
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: tensor '%s' spans %llu bytes, its shape and dtype need %llu", s->path,
                       name, (unsigned long long)e->bytes, (unsigned long long)span);
    e->n_dims = (uint32_t)json_array_size(shape);
    memcpy(e->dtype, json_string_value(dtype), strlen(json_string_value(dtype)) + 1); /* a known name: fits */
    e->name = strdup(name);
    if (!e->name)
        return xd_fail(err, XD_NOMEM, 0, "names of %s", s->path);
    s->n++;
    return XD_OK;
}

static int by_data(const void *a, const void *b)
{
    const safetensors_entry *x = a, *y = b;
    if (x->data != y->data)
        return x->data < y->data ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const safetensors_entry *)a)->name, ((const safetensors_entry *)b)->name);
}

static xd_status read_header(safetensors *s, xd_err *err)
{
    if (s->map.bytes < 8)
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: too short for a safetensors file (%llu bytes)", s->path,
                       (unsigned long long)s->map.bytes);
    uint64_t header;
    memcpy(&header, s->map.base, 8);
    if (header > SAFETENSORS_MAX_HEADER_BYTES && *(const char *)s->map.base == '<')
        return xd_fail(err, XD_BAD_MODEL, 0,
                       "%s: this is a web page, not a safetensors file: what was downloaded is an error or a login",
                       s->path);
    if (header > SAFETENSORS_MAX_HEADER_BYTES || header > s->map.bytes - 8)
        return xd_fail(
            err, XD_BAD_MODEL, 0,
            "%s: header of %llu bytes does not fit the file (%llu bytes, at most %u allowed): was it downloaded whole?",
            s->path, (unsigned long long)header, (unsigned long long)s->map.bytes, SAFETENSORS_MAX_HEADER_BYTES);
    json_error_t je;
    json_t *root = json_loadb((const char *)s->map.base + 8, header, JSON_REJECT_DUPLICATES, &je);
    if (!root || !json_is_object(root)) {
        json_decref(root);
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: the header is not a JSON object: %s", s->path, je.text);
    }
    xd_status st = XD_OK;
    s->entries = calloc(json_object_size(root) + 1, sizeof *s->entries);
    if (!s->entries)
        st = xd_fail(err, XD_NOMEM, 0, "entries of %s", s->path);
    const char *name;
    json_t *value;
    json_object_foreach (root, name, value) {
        if (st)
            break;
        if (strcmp(name, "__metadata__"))
            st = read_entry(s, name, value, (const char *)s->map.base + 8 + header, s->map.bytes - 8 - header, err);
    }
    json_decref(root);
    if (st)
        return st;

    qsort(s->entries, s->n, sizeof *s->entries, by_data);
    const char *at = (const char *)s->map.base + 8 + header;
    for (uint32_t i = 0; i < s->n; i++) {
        if (s->entries[i].data != at)
            return xd_fail(err, XD_BAD_MODEL, 0, "%s: tensor '%s' overlaps another or leaves a hole", s->path,
                           s->entries[i].name);
        at += s->entries[i].bytes;
    }
    if (at != (const char *)s->map.base + s->map.bytes)
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: %llu bytes at the end belong to no tensor", s->path,
                       (unsigned long long)((const char *)s->map.base + s->map.bytes - at));
    qsort(s->entries, s->n, sizeof *s->entries, by_name);
    return XD_OK;
}

xd_status safetensors_open(const char *path, safetensors **ret, xd_err *err)
{
    XD_CLEANUP(safetensors_freep) safetensors *s = calloc(1, sizeof *s);
    if (!s || !(s->path = strdup(path)))
        return xd_fail(err, XD_NOMEM, 0, "handle for '%s'", path);
    xd_status st = model_map_file(path, &s->map, err);
    if (st || (st = read_header(s, err)))
        return st;
    *ret = XD_TAKE(s);
    return XD_OK;
}

void safetensors_free(safetensors *s)
{
    if (!s)
        return;
    for (uint32_t i = 0; s->entries && i < s->n; i++)
        free((char *)s->entries[i].name);
    free(s->entries);
    if (s->map.base)
        munmap(s->map.base, s->map.bytes);
    free(s->path);
    free(s);
}

uint32_t safetensors_count(const safetensors *s)
{
    return s->n;
}
const safetensors_entry *safetensors_at(const safetensors *s, uint32_t idx)
{
    return &s->entries[idx];
}
const char *safetensors_shape(const safetensors_entry *e, char *out, size_t cap)
{
    size_t n = (size_t)snprintf(out, cap, "[");
    for (uint32_t i = 0; i < e->n_dims && n < cap; i++)
        n += (size_t)snprintf(out + n, cap - n, "%s%llu", i ? ", " : "", (unsigned long long)e->shape[i]);
    if (n < cap)
        snprintf(out + n, cap - n, "]");
    return out;
}
const char *safetensors_path(const safetensors *s)
{
    return s->path;
}

static safetensors_entry *find(const safetensors *s, const char *name)
{
    safetensors_entry key = {.name = name};
    return s->n ? bsearch(&key, s->entries, s->n, sizeof *s->entries, by_name) : NULL;
}

const safetensors_entry *safetensors_find(const safetensors *s, const char *name)
{
    return find(s, name);
}

const safetensors_entry *safetensors_take(safetensors *s, const char *name)
{
    safetensors_entry *e = find(s, name);
    if (e)
        e->taken = true;
    return e;
}

const mapped_file *safetensors_map(const safetensors *s)
{
    return &s->map;
}
