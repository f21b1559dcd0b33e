/* gguf.c - parses a mapped GGUF file: see gguf.h. One cursor reads everything and can never leave the file; what must outlive the
 * parse in another form (NUL-terminated strings, aligned arrays) is copied once into small allocations. */
#include "engine/model/gguf.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define MAX_ENTRIES   (1u << 20) /* keys, tensors: far above any model, far below what could exhaust memory */
#define MAX_ELEMENTS  (1u << 24) /* of one array: vocabularies have 2^18 */
#define MAX_ALIGNMENT (1u << 20)

typedef struct entry {
    char *key;
    gguf_type type; /* of the value, or of the array's elements */
    bool is_array;
    uint64_t n; /* elements */
    union {
        int64_t i;
        double f;
        char *s;
        char **strings; /* [n], all in one allocation behind the pointers */
        float *f32s;
        int32_t *i32s;
        uint8_t *bools;
    } v;
} entry;

struct gguf {
    char *path;
    mapped_file map;
    entry *entries;
    uint32_t n_entries;
    gguf_tensor *tensors;
    uint32_t n_tensors;
};

typedef struct cursor {
    const gguf *g;
    const unsigned char *at, *end;
    const char *what; /* being read, for messages */
    xd_err *err;
} cursor;

static xd_status broken(cursor *c, const char *why)
{
    return xd_fail(c->err, XD_BAD_MODEL, 0, "%s: %s at byte %llu (%s)", c->g->path, why,
                   (unsigned long long)(c->at - (const unsigned char *)c->g->map.base), c->what);
}

static xd_status take(cursor *c, void *to, size_t n)
{
    if ((size_t)(c->end - c->at) < n)
        return broken(c, "the file ends too early (was it downloaded whole?)");
    memcpy(to, c->at, n);
    c->at += n;
    return XD_OK;
}

/* A string as a view into the file. */
static xd_status take_string(cursor *c, const char **ret, uint64_t *ret_len)
{
    xd_status st = take(c, ret_len, 8);
    if (st)
        return st;
    if (*ret_len > (uint64_t)(c->end - c->at))
        return broken(c, "a string is longer than the file (was it downloaded whole?)");
    *ret = (const char *)c->at;
    c->at += *ret_len;
    return XD_OK;
}

static xd_status take_owned(cursor *c, char **ret)
{
    const char *s = NULL;
    uint64_t n = 0;
    xd_status st = take_string(c, &s, &n);
    if (st)
        return st;
    *ret = strndup(s, n);
    return *ret ? XD_OK : xd_fail(c->err, XD_NOMEM, 0, "%s: a string of %llu bytes", c->g->path, (unsigned long long)n);
}

static size_t scalar_bytes(gguf_type t)
{
    static const uint8_t sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return (size_t)t < sizeof sizes ? sizes[t] : 0;
}

static xd_status take_scalar(cursor *c, gguf_type t, int64_t *i, double *f)
{
    unsigned char raw[8] = {0};
    xd_status st = take(c, raw, scalar_bytes(t));
    if (st)
        return st;
    uint64_t u;
    float f32;
    memcpy(&u, raw, 8);
    memcpy(&f32, raw, 4);
    switch (t) {
    case GGUF_I8: *i = (int8_t)u; break;
    case GGUF_I16: *i = (int16_t)u; break;
    case GGUF_I32: *i = (int32_t)u; break;
    case GGUF_F32: *f = (double)f32; return XD_OK;
    case GGUF_F64: memcpy(f, raw, 8); return XD_OK;
    case GGUF_U64: *i = u > INT64_MAX ? INT64_MAX : (int64_t)u; break;
    default: *i = (int64_t)u; break;
    }
    *f = (double)*i;
    return XD_OK;
}

static xd_status take_strings(cursor *c, entry *e)
{
    /* First pass: lengths, so that one allocation holds pointers and text. */
    const unsigned char *start = c->at;
    uint64_t total = e->n * sizeof(char *);
    const char *s = NULL;
    uint64_t len = 0;
    xd_status st;
    for (uint64_t i = 0; i < e->n; i++) {
        if ((st = take_string(c, &s, &len)))
            return st;
        total += len + 1;
    }
    e->v.strings = malloc(total + 1);
    if (!e->v.strings)
        return xd_fail(c->err, XD_NOMEM, 0, "%s: %llu bytes for %s", c->g->path, (unsigned long long)total, e->key);
    char *text = (char *)(e->v.strings + e->n);
    c->at = start;
    for (uint64_t i = 0; i < e->n; i++) {
        if ((st = take_string(c, &s, &len)))
            return st;
        memcpy(text, s, len);
        text[len] = 0;
        e->v.strings[i] = text;
        text += len + 1;
    }
    return XD_OK;
}

static xd_status take_array(cursor *c, entry *e)
{
    uint32_t type = 0;
    xd_status st;
    if ((st = take(c, &type, 4)) || (st = take(c, &e->n, 8)))
        return st;
    if (type > GGUF_F64 || type == GGUF_ARRAY)
        return broken(c, "an array of an unknown type");
    if (e->n > MAX_ELEMENTS)
        return broken(c, "an array is too long");
    e->type = (gguf_type)type;
    e->is_array = true;
    if (e->type == GGUF_STRING)
        return take_strings(c, e);
    size_t size = scalar_bytes(e->type);
    if ((uint64_t)(c->end - c->at) / size < e->n)
        return broken(c, "an array is longer than the file");
    if (e->type == GGUF_F32 || e->type == GGUF_I32 || e->type == GGUF_U32 || e->type == GGUF_BOOL) {
        e->v.f32s = malloc(e->n * size + 1);
        if (!e->v.f32s)
            return xd_fail(c->err, XD_NOMEM, 0, "%s: array %s", c->g->path, e->key);
        return take(c, e->v.f32s, e->n * size);
    }
    c->at += e->n * size; /* no other element type is asked for */
    return XD_OK;
}

static xd_status take_entry(cursor *c, entry *e)
{
    uint32_t type = 0;
    xd_status st;
    if ((st = take_owned(c, &e->key)))
        return st;
    c->what = e->key;
    if ((st = take(c, &type, 4)))
        return st;
    if (type > GGUF_F64)
        return broken(c, "a value of an unknown type");
    e->type = (gguf_type)type;
    if (type == GGUF_ARRAY)
        return take_array(c, e);
    if (type == GGUF_STRING)
        return take_owned(c, &e->v.s);
    double f = 0;
    int64_t i = 0;
    st = take_scalar(c, e->type, &i, &f);
    if (e->type == GGUF_F32 || e->type == GGUF_F64)
        e->v.f = f;
    else
        e->v.i = i;
    return st;
}

/* enum ggml_type of ggml.h */
static const struct {
    const char *name;
    kern_fmt fmt; /* FMT_COUNT: cannot be read */
} types[] = {
    [0] = {"F32", FMT_F32},          [1] = {"F16", FMT_F16},        [2] = {"Q4_0", FMT_Q4_0},
    [3] = {"Q4_1", FMT_Q4_1},        [6] = {"Q5_0", FMT_Q5_0},      [7] = {"Q5_1", FMT_Q5_1},
    [8] = {"Q8_0", FMT_Q8_0},        [10] = {"Q2_K", FMT_Q2_K},     [11] = {"Q3_K", FMT_Q3_K},
    [12] = {"Q4_K", FMT_Q4_K},       [13] = {"Q5_K", FMT_Q5_K},     [14] = {"Q6_K", FMT_Q6_K},
    [16] = {"IQ2_XXS", FMT_IQ2_XXS}, [17] = {"IQ2_XS", FMT_IQ2_XS}, [18] = {"IQ3_XXS", FMT_IQ3_XXS},
    [19] = {"IQ1_S", FMT_IQ1_S},     [20] = {"IQ4_NL", FMT_IQ4_NL}, [21] = {"IQ3_S", FMT_IQ3_S},
    [22] = {"IQ2_S", FMT_IQ2_S},     [23] = {"IQ4_XS", FMT_IQ4_XS}, [29] = {"IQ1_M", FMT_IQ1_M},
    [30] = {"BF16", FMT_BF16},       [34] = {"TQ1_0", FMT_COUNT},   [35] = {"TQ2_0", FMT_COUNT},
    [39] = {"MXFP4", FMT_MXFP4},     [40] = {"NVFP4", FMT_COUNT},   [41] = {"Q1_0", FMT_COUNT},
};

const char *gguf_type_name(uint32_t ggml_type)
{
    return ggml_type < XD_ARRAY_LEN(types) && types[ggml_type].name ? types[ggml_type].name : "unknown";
}

const char *gguf_known_types(char *out, size_t cap)
{
    size_t n = 0;
    for (size_t i = 0; i < XD_ARRAY_LEN(types); i++)
        if (types[i].name && types[i].fmt != FMT_COUNT && n < cap)
            n += (size_t)snprintf(out + n, cap - n, "%s%s", n ? ", " : "", types[i].name);
    return out;
}

static kern_fmt fmt_of(uint32_t ggml_type)
{
    return ggml_type < XD_ARRAY_LEN(types) && types[ggml_type].name ? types[ggml_type].fmt : FMT_COUNT;
}

static xd_status take_tensor(cursor *c, gguf_tensor *t, uint64_t *ret_offset)
{
    xd_status st;
    char *name = NULL;
    if ((st = take_owned(c, &name)))
        return st;
    t->name = name;
    c->what = name;
    if ((st = take(c, &t->n_dims, 4)))
        return st;
    if (t->n_dims < 1 || t->n_dims > 4)
        return broken(c, "a tensor needs 1 to 4 dimensions");
    uint64_t count = 1;
    for (uint32_t i = 0; i < 4; i++) {
        t->dims[i] = 1;
        if (i < t->n_dims && (st = take(c, &t->dims[i], 8)))
            return st;
        if (!t->dims[i] || t->dims[i] > INT64_MAX || !xd_mul_u64(&count, count, t->dims[i]))
            return broken(c, "a tensor's size overflows or is zero");
    }
    if ((st = take(c, &t->ggml_type, 4)) || (st = take(c, ret_offset, 8)))
        return st;
    t->fmt = fmt_of(t->ggml_type);
    if (t->fmt == FMT_COUNT)
        return XD_OK;
    kern_fmt_info f = kern_fmt_get(t->fmt);
    if (t->dims[0] % f.block_len)
        return broken(c, "a row is not a whole number of blocks");
    if (!xd_mul_u64(&t->bytes, count / f.block_len, f.block_bytes))
        return broken(c, "a tensor's size overflows");
    return XD_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const gguf_tensor *)a)->name, ((const gguf_tensor *)b)->name);
}

static xd_status parse(gguf *g, xd_err *err)
{
    cursor c = {.g = g,
                .at = g->map.base,
                .end = (const unsigned char *)g->map.base + g->map.bytes,
                .what = "header",
                .err = err};
    uint32_t magic = 0, version = 0;
    uint64_t n_tensors = 0, n_entries = 0;
    xd_status st;
    if ((st = take(&c, &magic, 4)) || (st = take(&c, &version, 4)) || (st = take(&c, &n_tensors, 8)) ||
        (st = take(&c, &n_entries, 8)))
        return st;
    if (magic != 0x46554747)
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: not a GGUF file", g->path);
    if (__builtin_bswap32(version) <= 3)
        return xd_fail(err, XD_UNSUPPORTED, 0, "%s: a big-endian GGUF file; only little-endian ones can be read",
                       g->path);
    if (version != 2 && version != 3)
        return xd_fail(err, XD_UNSUPPORTED, 0, "%s: GGUF version %u; 2 and 3 can be read", g->path, version);
    if (n_tensors > MAX_ENTRIES || n_entries > MAX_ENTRIES)
        return broken(&c, "too many tensors or keys");
    g->entries = calloc(n_entries + 1, sizeof *g->entries);
    g->tensors = calloc(n_tensors + 1, sizeof *g->tensors);
    XD_CLEANUP(xd_freep) uint64_t *offsets = calloc(n_tensors + 1, sizeof *offsets);
    if (!g->entries || !g->tensors || !offsets)
        return xd_fail(err, XD_NOMEM, 0, "%s: tables of %llu keys and %llu tensors", g->path,
                       (unsigned long long)n_entries, (unsigned long long)n_tensors);
    while (g->n_entries < n_entries)
        if ((st = take_entry(&c, &g->entries[g->n_entries++])))
            return st;
    for (; g->n_tensors < n_tensors; g->n_tensors++)
        if ((st = take_tensor(&c, &g->tensors[g->n_tensors], &offsets[g->n_tensors])))
            return st;

    int64_t align;
    if ((st = gguf_int(g, "general.alignment", 32, 1, MAX_ALIGNMENT, &align, err)))
        return st;
    if (align & (align - 1))
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: general.alignment %lld is not a power of two", g->path,
                       (long long)align);
    uint64_t data = xd_align_up((uint64_t)(c.at - (const unsigned char *)g->map.base), (uint64_t)align);
    for (uint32_t i = 0; i < g->n_tensors; i++) {
        gguf_tensor *t = &g->tensors[i];
        uint64_t end;
        if (offsets[i] % (uint64_t)align || !xd_add_u64(&end, data, offsets[i]) || !xd_add_u64(&end, end, t->bytes) ||
            end > g->map.bytes)
            return xd_fail(err, XD_BAD_MODEL, 0,
                           "%s: tensor '%s' lies outside the file or is not aligned: truncated download?", g->path,
                           t->name);
        t->data = t->fmt == FMT_COUNT ? NULL : (const char *)g->map.base + data + offsets[i];
    }
    qsort(g->tensors, g->n_tensors, sizeof *g->tensors, by_name);
    for (uint32_t i = 1; i < g->n_tensors; i++)
        if (!by_name(&g->tensors[i - 1], &g->tensors[i]))
            return xd_fail(err, XD_BAD_MODEL, 0, "%s: tensor '%s' occurs twice", g->path, g->tensors[i].name);
    return XD_OK;
}

xd_status gguf_open(const char *path, gguf **ret, xd_err *err)
{
    XD_CLEANUP(gguf_freep) gguf *g = calloc(1, sizeof *g);
    if (!g || !(g->path = strdup(path)))
        return xd_fail(err, XD_NOMEM, 0, "handle for '%s'", path);
    xd_status st = model_map_file(path, &g->map, err);
    if (st || (st = parse(g, err)))
        return st;
    *ret = XD_TAKE(g);
    return XD_OK;
}

void gguf_free(gguf *g)
{
    if (!g)
        return;
    for (uint32_t i = 0; g->entries && i < g->n_entries; i++) {
        entry *e = &g->entries[i];
        free(e->key);
        if (e->is_array || e->type == GGUF_STRING)
            free(e->v.s);
    }
    /* One past the last whole tensor may hold a name when the parse broke off inside it. */
    for (uint32_t i = 0; g->tensors && i <= g->n_tensors; i++)
        free((char *)g->tensors[i].name);
    free(g->entries);
    free(g->tensors);
    if (g->map.base)
        munmap(g->map.base, g->map.bytes);
    free(g->path);
    free(g);
}

const char *gguf_path(const gguf *g)
{
    return g->path;
}
uint32_t gguf_tensor_count(const gguf *g)
{
    return g->n_tensors;
}
const gguf_tensor *gguf_tensor_at(const gguf *g, uint32_t idx)
{
    return &g->tensors[idx];
}

const mapped_file *gguf_map(const gguf *g)
{
    return &g->map;
}

static gguf_tensor *find_tensor(const gguf *g, const char *name)
{
    gguf_tensor key = {.name = name};
    return g->n_tensors ? bsearch(&key, g->tensors, g->n_tensors, sizeof *g->tensors, by_name) : NULL;
}

const gguf_tensor *gguf_tensor_find(const gguf *g, const char *name)
{
    return find_tensor(g, name);
}

const gguf_tensor *gguf_tensor_take(gguf *g, const char *name)
{
    gguf_tensor *t = find_tensor(g, name);
    if (t)
        t->taken = true;
    return t;
}

static const entry *find(const gguf *g, const char *key)
{
    for (uint32_t i = 0; i < g->n_entries; i++)
        if (!strcmp(g->entries[i].key, key))
            return &g->entries[i];
    return NULL;
}

bool gguf_has(const gguf *g, const char *key)
{
    return find(g, key) != NULL;
}

static bool is_real(const entry *e)
{
    return !e->is_array && (e->type == GGUF_F32 || e->type == GGUF_F64);
}
static bool is_int(const entry *e)
{
    return !e->is_array && !is_real(e) && e->type != GGUF_STRING;
}

xd_status gguf_int(const gguf *g, const char *key, int64_t fallback, int64_t min, int64_t max, int64_t *ret,
                   xd_err *err)
{
    const entry *e = find(g, key);
    if (e && (!is_int(e) || e->v.i < min || e->v.i > max))
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: '%s' must be a whole number from %lld to %lld", g->path, key,
                       (long long)min, (long long)max);
    *ret = e ? e->v.i : fallback;
    return XD_OK;
}

xd_status gguf_real(const gguf *g, const char *key, double fallback, double min, double max, double *ret, xd_err *err)
{
    const entry *e = find(g, key);
    double v = !e ? fallback : is_real(e) ? e->v.f : (double)e->v.i;
    if (e && ((!is_real(e) && !is_int(e)) || !(v >= min && v <= max)))
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: '%s' must be a number from %g to %g", g->path, key, min, max);
    *ret = v;
    return XD_OK;
}

const char *gguf_string(const gguf *g, const char *key)
{
    const entry *e = find(g, key);
    return e && !e->is_array && e->type == GGUF_STRING ? e->v.s : NULL;
}

static const entry *find_array(const gguf *g, const char *key, gguf_type type)
{
    const entry *e = find(g, key);
    return e && e->is_array && e->type == type ? e : NULL;
}

uint64_t gguf_strings(const gguf *g, const char *key, const char *const **ret)
{
    const entry *e = find_array(g, key, GGUF_STRING);
    *ret = e ? (const char *const *)e->v.strings : NULL;
    return e ? e->n : 0;
}

uint64_t gguf_f32s(const gguf *g, const char *key, const float **ret)
{
    const entry *e = find_array(g, key, GGUF_F32);
    *ret = e ? e->v.f32s : NULL;
    return e ? e->n : 0;
}

uint64_t gguf_i32s(const gguf *g, const char *key, const int32_t **ret)
{
    const entry *e = find_array(g, key, GGUF_I32);
    if (!e)
        e = find_array(g, key, GGUF_U32);
    *ret = e ? e->v.i32s : NULL;
    return e ? e->n : 0;
}

uint64_t gguf_bools(const gguf *g, const char *key, const uint8_t **ret)
{
    const entry *e = find_array(g, key, GGUF_BOOL);
    *ret = e ? e->v.bools : NULL;
    return e ? e->n : 0;
}
