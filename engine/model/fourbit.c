/* fourbit.c - checkpoints whose matrices are numbers of 4 bits: what quantization_config says of them, and which tensors make up a matrix.
 *
 * INT4: GPTQ, AWQ and compressed-tensors (pack-quantized) say the same in three orders: a value is (q - zero) * scale, scale and zero being
 * those of a group of columns of its row. NVFP4, as ModelOpt and compressed-tensors write it: E2M1 times a scale in E4M3 for 16 columns, and
 * one in float32 for the matrix, by which the former multiplies and the latter divides.
 *
 * A matrix is stored so when it has such tensors, whatever config.json's lists of modules say. Activations are never quantised here, nor is
 * the KV cache as a file would have it, so what is said of them is not needed. Rows as kernels read them are made in repack.c.
 * Sources: compressed-tensors, compressors/pack_quantized; AutoGPTQ and GPTQModel, qlinear; AutoAWQ, utils/packing_utils; AutoRound,
 * export_to_autoround; vLLM, modelopt.py. */
#include <string.h>
#include <strings.h>

#include "engine/model/hf_config.h"
#include "engine/model/model_priv.h"

/* Columns of config.json's that have a scale in common; none, null or -1: all of a row. */
static xd_status read_group_size(const json_t *o, const char *key, const char *file, uint32_t *ret, xd_err *err)
{
    const json_t *size = json_object_get(o, key);
    const json_int_t n = json_is_integer(size) ? json_integer_value(size) : 0;
    if ((hf_has(o, key) && !json_is_integer(size)) || n < -1 || n > 1 << 20)
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: %s of quantization_config is no size", file, key);
    if (n > 0 && n % 32)
        return xd_fail(err, XD_UNSUPPORTED, 0,
                       "%s: %s %lld of quantization_config: multiples of 32, and a scale a row (-1), can be read", file,
                       key, (long long)n);
    *ret = n > 0 ? (uint32_t)n : 0;
    return XD_OK;
}

static xd_status read_bits(const json_t *q, const char *key, const char *file, xd_err *err)
{
    uint32_t bits;
    xd_status st = hf_u32(q, file, key, 4, 1, 32, &bits, err);
    return st || bits == 4
               ? st
               : xd_fail(err, XD_UNSUPPORTED, 0, "%s: quantization_config: %s in %u bits cannot be read; in 4 it can",
                         file, hf_string(q, "quant_method"), bits);
}

static xd_status read_gptq(const json_t *q, const char *file, model_four *ret, xd_err *err)
{
    const char *key = hf_has(q, "checkpoint_format") ? "checkpoint_format" : "format", *form = hf_string(q, key);
    bool symmetric, sorted, marlin;
    xd_status st;
    if ((st = read_bits(q, "bits", file, err)) || (st = read_group_size(q, "group_size", file, &ret->group, err)) ||
        (st = hf_bool(q, file, "sym", false, &symmetric, err)) ||
        (st = hf_bool(q, file, "desc_act", false, &sorted, err)) ||
        (st = hf_bool(q, file, "is_marlin_format", false, &marlin, err)))
        return st;
    if (marlin || (hf_has(q, key) && (!form || (strcmp(form, "gptq") && strcmp(form, "gptq_v2")))))
        return xd_fail(err, XD_UNSUPPORTED, 0,
                       "%s: quantization_config: gptq in the form '%s' cannot be read; 'gptq' and 'gptq_v2' can", file,
                       form     ? form
                       : marlin ? "marlin"
                                : "(no text)");
    ret->order = MODEL_INT4_GPTQ;
    ret->zeros = true;
    ret->zeros_less_1 = !form || !strcmp(form, "gptq");
    ret->zeros_may_wrap = ret->zeros_less_1 && !symmetric;
    ret->needs_columns = sorted;
    return XD_OK;
}

static xd_status read_awq(const json_t *q, const char *file, model_four *ret, xd_err *err)
{
    const char *version = hf_string(q, "version");
    bool zeros;
    xd_status st;
    if ((st = read_bits(q, hf_has(q, "w_bit") ? "w_bit" : "bits", file, err)) ||
        (st = read_group_size(q, hf_has(q, "q_group_size") ? "q_group_size" : "group_size", file, &ret->group, err)) ||
        (st = hf_bool(q, file, "zero_point", true, &zeros, err)))
        return st;
    if ((hf_has(q, "version") && (!version || strcasecmp(version, "gemm"))) || !zeros)
        return xd_fail(err, XD_UNSUPPORTED, 0,
                       "%s: quantization_config: awq of version '%s'%s cannot be read; 'gemm' with zeros can", file,
                       version ? version : "gemm", zeros ? "" : " without zeros (zero_point false)");
    ret->order = MODEL_INT4_AWQ;
    ret->zeros = true;
    return XD_OK;
}

/* AutoRound's own way to say what GPTQ or AWQ would. */
static xd_status read_auto_round(const json_t *q, const char *file, model_four *ret, xd_err *err)
{
    const char *packing = hf_string(q, "packing_format"), *type = hf_string(q, "data_type");
    if ((!type || !strcmp(type, "int")) && packing && !strcmp(packing, "auto_round:auto_gptq"))
        return read_gptq(q, file, ret, err);
    if ((!type || !strcmp(type, "int")) && packing && !strcmp(packing, "auto_round:auto_awq"))
        return read_awq(q, file, ret, err);
    return xd_fail(err, XD_UNSUPPORTED, 0,
                   "%s: quantization_config: auto-round of type '%s' with packing_format '%s' cannot be read; int with "
                   "auto_round:auto_gptq and auto_round:auto_awq can",
                   file, type ? type : "int", packing ? packing : "(none)");
}

/* One group of compressed-tensors' config_groups: all must be alike. */
static xd_status read_group(const json_t *weights, const char *file, bool first, model_four *ret, xd_err *err)
{
    const char *type = hf_string(weights, "type"), *strategy = hf_string(weights, "strategy");
    const json_int_t bits = json_integer_value(json_object_get(weights, "num_bits"));
    const bool by_group = strategy && !strcmp(strategy, "group");
    model_four one = {.order = MODEL_INT4_ROWS};
    bool symmetric, dynamic;
    xd_status st;
    if ((st = hf_bool(weights, file, "symmetric", true, &symmetric, err)) ||
        (st = hf_bool(weights, file, "dynamic", false, &dynamic, err)))
        return st;
    if (!type || strcmp(type, "int") || bits != 4 || dynamic || !strategy || (!by_group && strcmp(strategy, "channel")))
        return xd_fail(err, XD_UNSUPPORTED, 0,
                       "%s: quantization_config: weights of type '%s' in %lld bits with strategy '%s' cannot be read; "
                       "int in 4 with a scale a group or channel can",
                       file, type ? type : "(none)", (long long)bits, strategy ? strategy : "(none)");
    if (by_group && (st = read_group_size(weights, "group_size", file, &one.group, err)))
        return st;
    one.zeros = !symmetric;
    if (!first && (one.group != ret->group || one.zeros != ret->zeros))
        return xd_fail(err, XD_UNSUPPORTED, 0,
                       "%s: quantization_config: groups of different sizes, or some with zeros, cannot be read", file);
    *ret = one;
    return XD_OK;
}

/* The same of NVFP4. */
static xd_status read_group_nvfp4(const json_t *weights, const char *file, xd_err *err)
{
    const char *type = hf_string(weights, "type"), *strategy = hf_string(weights, "strategy");
    const json_int_t bits = json_integer_value(json_object_get(weights, "num_bits"));
    uint32_t group;
    bool symmetric;
    xd_status st;
    if ((st = hf_u32(weights, file, "group_size", 16, 1, 1u << 20, &group, err)) ||
        (st = hf_bool(weights, file, "symmetric", true, &symmetric, err)))
        return st;
    return type && !strcmp(type, "float") && bits == 4 && group == 16 && symmetric &&
                   (!strategy || !strcmp(strategy, "tensor_group"))
               ? XD_OK
               : xd_fail(err, XD_UNSUPPORTED, 0,
                         "%s: quantization_config: weights of type '%s' in %lld bits in groups of %u cannot be read as "
                         "NVFP4; float in 4 in symmetric groups of 16 can",
                         file, type ? type : "(none)", (long long)bits, group);
}

static bool is_packed_nvfp4(const json_t *q)
{
    const char *format = hf_string(q, "format");
    return format && !strcmp(format, "nvfp4-pack-quantized");
}

static xd_status read_compressed(const json_t *q, const char *file, model_four *ret, xd_err *err)
{
    const char *name;
    json_t *group;
    bool first = true;
    xd_status st = model_check_compressed(q, file, err);
    json_object_foreach (json_object_get(q, "config_groups"), name, group)
        if (!st) {
            const json_t *weights = json_object_get(group, "weights");
            st = is_packed_nvfp4(q) ? read_group_nvfp4(weights, file, err) : read_group(weights, file, first, ret, err);
            first = false;
        }
    return st || !first ? st : xd_fail(err, XD_BAD_MODEL, 0, "%s: quantization_config has no config_groups", file);
}

bool model_is_four_bits(const json_t *q)
{
    const char *method = hf_string(q, "quant_method"), *format = hf_string(q, "format"),
               *algorithm = hf_string(q, "quant_algo");
    return method && (!strcmp(method, "gptq") || !strcmp(method, "awq") || !strcmp(method, "auto-round") ||
                      (!strcmp(method, "modelopt") && algorithm && !strcmp(algorithm, "NVFP4")) ||
                      (!strcmp(method, "compressed-tensors") && format &&
                       (!strcmp(format, "pack-quantized") || is_packed_nvfp4(q))));
}

static xd_status read_modelopt(const json_t *q, const char *file, model_four *ret, xd_err *err)
{
    uint32_t group;
    xd_status st = hf_u32(q, file, "group_size", 16, 1, 1u << 20, &group, err);
    if (st)
        return st;
    ret->order = MODEL_NVFP4;
    return group == 16
               ? XD_OK
               : xd_fail(err, XD_UNSUPPORTED, 0,
                         "%s: quantization_config: NVFP4 in groups of %u cannot be read; of 16 it can", file, group);
}

xd_status model_read_four_bits(const json_t *q, const char *file, model_four *ret, xd_err *err)
{
    const char *method = hf_string(q, "quant_method");
    model_four found = {0};
    xd_status st = !strcmp(method, "gptq")         ? read_gptq(q, file, &found, err)
                   : !strcmp(method, "awq")        ? read_awq(q, file, &found, err)
                   : !strcmp(method, "auto-round") ? read_auto_round(q, file, &found, err)
                   : !strcmp(method, "modelopt")   ? read_modelopt(q, file, &found, err)
                                                   : read_compressed(q, file, &found, err);
    if (!st && !strcmp(method, "compressed-tensors") && is_packed_nvfp4(q))
        found.order = MODEL_NVFP4_DIVIDED;
    if (!st)
        *ret = found;
    return st;
}

/* Tensors that make up a matrix: all have the stem of its name. */
typedef struct parts {
    const model *m;
    const char *path, *name; /* of the quants, or of what was found last */
    int stem;
    char of[224]; /* the name of what was looked for last, as the file has it */
} parts;

static const safetensors_entry *find_part(parts *p, const char *suffix)
{
    char plain[224], stored[256];
    snprintf(plain, sizeof plain, "%.*s.%s", p->stem, p->name, suffix);
    snprintf(p->of, sizeof p->of, "%s", model_stored_name(p->m, plain, stored, sizeof stored));
    return model_find_tensor(p->m, plain, &p->path);
}

static xd_status missing(const parts *p, xd_err *err)
{
    return xd_fail(err, XD_BAD_MODEL, 0, "%s: tensor '%s' is missing, a part of '%.*s' in four bits", p->m->dir, p->of,
                   p->stem, p->name);
}

static xd_status check_part(const parts *p, const safetensors_entry *e, const char *dtype, uint64_t rows, uint64_t cols,
                            xd_err *err)
{
    char shape[192];
    if (dtype && strcmp(e->dtype, dtype))
        return xd_fail(err, XD_UNSUPPORTED, 0, "%s: tensor '%s' is %s; %s can be read", p->path, p->of, e->dtype,
                       dtype);
    const bool fits =
        cols ? e->n_dims == 2 && e->shape[0] == rows && e->shape[1] == cols : e->n_dims == 1 && e->shape[0] == rows;
    if (fits)
        return XD_OK;
    char needs[64];
    snprintf(needs, sizeof needs, cols ? "[%llu, %llu]" : "[%llu]", (unsigned long long)rows, (unsigned long long)cols);
    return xd_fail(err, XD_BAD_MODEL, 0,
                   "%s: tensor '%s' has the wrong shape: %s, config.json (with the group_size and bits of "
                   "quantization_config) needs %s",
                   p->path, p->of, safetensors_shape(e, shape, sizeof shape), needs);
}

/* The scales; which group each column is of, where that is told; zeros. */
static xd_status take_groups(parts *p, uint32_t rows, uint32_t cols, model_tensor *t, xd_err *err)
{
    const model_four *how = &p->m->four;
    const bool by_rows = how->order == MODEL_INT4_ROWS;
    const uint32_t groups = how->group ? (cols + how->group - 1) / how->group : 1;
    const safetensors_entry *e = find_part(p, by_rows ? "weight_scale" : "scales");
    if (!e)
        return missing(p, err);
    xd_status st = check_part(p, e, NULL, by_rows ? rows : groups, by_rows ? groups : rows, err);
    if (st)
        return st;
    if (strcmp(e->dtype, "F16") && strcmp(e->dtype, "BF16"))
        return xd_fail(err, XD_UNSUPPORTED, 0, "%s: tensor '%s' is %s; scales in F16 and BF16 can be read", p->path,
                       p->of, e->dtype);
    t->scales = e->data;
    t->scale.fmt = strcmp(e->dtype, "F16") ? FMT_BF16 : FMT_F16;
    t->scale.rows = 1;
    t->scale.cols = how->group ? how->group : cols;
    if (how->zeros) {
        e = find_part(p, by_rows ? "weight_zero_point" : "qzeros");
        if (!e)
            return missing(p, err);
        if ((st = check_part(p, e, "I32", by_rows ? (rows + 7) / 8 : groups, by_rows ? groups : rows / 8, err)))
            return st;
        t->four.zeros = e->data;
    }
    e = find_part(p, by_rows ? "weight_g_idx" : "g_idx");
    if (!e)
        return how->needs_columns ? missing(p, err) : XD_OK;
    if ((st = check_part(p, e, "I32", cols, 0, err)))
        return st;
    t->four.columns = e->data;
    return XD_OK;
}

/* One number. */
static xd_status check_factor(const parts *p, const safetensors_entry *e, xd_err *err)
{
    char shape[192];
    return !strcmp(e->dtype, "F32") && e->bytes == 4
               ? XD_OK
               : xd_fail(err, XD_UNSUPPORTED, 0, "%s: tensor '%s' is %s %s; one number in F32 can be read", p->path,
                         p->of, e->dtype, safetensors_shape(e, shape, sizeof shape));
}

/* Of the quants e. */
static xd_status take_nvfp4(parts *p, const safetensors_entry *e, uint32_t rows, uint32_t cols, model_tensor *ret,
                            xd_err *err)
{
    const bool divided = p->m->four.order == MODEL_NVFP4_DIVIDED;
    if (cols % 16)
        return xd_fail(err, XD_UNSUPPORTED, 0, "%s: tensor '%s' is of rows of %u; multiples of 16 can be read", p->path,
                       p->of, cols);
    model_tensor t = {.data = e->data,
                      .bytes = kern_row_bytes(FMT_NVFP4, cols) * rows,
                      .rows = rows,
                      .cols = cols,
                      .fmt = FMT_NVFP4,
                      .scale = {.rows = 1, .cols = 16},
                      .four = {.order = p->m->four.order}};
    xd_status st = check_part(p, e, "U8", rows, cols / 2, err);
    if (st)
        return st;
    e = find_part(p, "weight_scale");
    if (!e)
        return missing(p, err);
    if ((st = check_part(p, e, "F8_E4M3", rows, cols / 16, err)))
        return st;
    t.scales = e->data;
    e = find_part(p, divided ? "weight_global_scale" : "weight_scale_2");
    if (!e)
        return missing(p, err);
    if ((st = check_factor(p, e, err)))
        return st;
    t.four.factor = e->data;
    (void)find_part(p, divided ? "input_global_scale" : "input_scale");
    *ret = t;
    return XD_OK;
}

xd_status model_take_four_bits(const model *m, const char *name, uint32_t rows, uint32_t cols, model_tensor *ret,
                               bool *ret_found, xd_err *err)
{
    static const char tail[] = ".weight";
    const size_t n = strlen(name) - XD_MIN(strlen(name), strlen(tail));
    const model_four *how = &m->four;
    const bool by_rows = how->order == MODEL_INT4_ROWS;
    parts p = {.m = m, .name = name, .stem = (int)n};
    *ret_found = false;
    if (how->order == MODEL_FOUR_NONE || strcmp(name + n, tail))
        return XD_OK;
    const bool nvfp4 = how->order >= MODEL_NVFP4;
    const safetensors_entry *e = find_part(&p, how->order == MODEL_NVFP4                      ? "weight"
                                               : by_rows || how->order == MODEL_NVFP4_DIVIDED ? "weight_packed"
                                                                                              : "qweight");
    if (!e || (how->order == MODEL_NVFP4 && strcmp(e->dtype, "U8")))
        return XD_OK;
    if (nvfp4) {
        *ret_found = true;
        return take_nvfp4(&p, e, rows, cols, ret, err);
    }
    if (cols % 8 || (!by_rows && rows % 8))
        return xd_fail(err, XD_UNSUPPORTED, 0, "%s: tensor '%s' is of a matrix of %u x %u; multiples of 8 can be read",
                       p.path, p.of, rows, cols);
    xd_status st = by_rows                         ? check_part(&p, e, "I32", rows, cols / 8, err)
                   : how->order == MODEL_INT4_GPTQ ? check_part(&p, e, "I32", cols / 8, rows, err)
                                                   : check_part(&p, e, "I32", cols, rows / 8, err);
    if (st)
        return st;
    model_tensor t = {
        .data = e->data,
        .rows = rows,
        .cols = cols,
        .fmt = how->group % 128 ? FMT_INT4_G32 : FMT_INT4_G128,
        .four = {.order = how->order, .zeros_less_1 = how->zeros_less_1, .zeros_may_wrap = how->zeros_may_wrap}};
    if ((st = take_groups(&p, rows, cols, &t, err)))
        return st;
    /* the shape once more, and for activations in 8 bits */
    static const char *const others[] = {"weight_shape", "input_scale", "input_global_scale"};
    for (size_t i = 0; by_rows && i < XD_ARRAY_LEN(others); i++)
        (void)find_part(&p, others[i]);
    t.bytes = kern_row_bytes(t.fmt, cols) * rows;
    *ret = t;
    *ret_found = true;
    return XD_OK;
}

static bool ends_in(const char *name, const char *tail)
{
    const size_t n = strlen(name), len = strlen(tail);
    return n >= len && !strcmp(name + n - len, tail);
}

bool model_is_of_no_use(const model *m, const safetensors_entry *e)
{
    const char *bytes = e->data;
    if (m->four.order >= MODEL_NVFP4 || m->fp8.suffix)
        return ends_in(e->name, ".k_scale") || ends_in(e->name, ".v_scale");
    if (m->four.order != MODEL_INT4_GPTQ || !ends_in(e->name, ".bias"))
        return false;
    for (uint64_t i = 0; i < e->bytes; i++)
        if (bytes[i])
            return false;
    return true;
}
