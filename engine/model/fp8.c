/* fp8.c - checkpoints in FP8 (E4M3): what quantization_config says of the scales, and which tensor has those of a matrix.
 *
 * A matrix is in FP8 when its tensor is F8_E4M3, whatever config.json's lists of modules say; what is left in BF16 has no scales. Values
 * are weight * scale. Activations are never quantised here, so what is said of them (activation_scheme, input_scale) is not
 * needed. Rows as kernels read them are made in repack.c. Sources: transformers, quantizers/finegrained_fp8; vLLM, fp8.py;
 * compressed-tensors, float-quantized. */
#include <string.h>

#include "engine/model/hf_config.h"
#include "engine/model/model_priv.h"

enum { BLOCK = sizeof(((kern_fp8_block *)0)->q) };

/* `key` of q: rows and columns that share a scale. */
static xd_status read_block(const json_t *q, const char *key, const char *file, model_fp8 *ret, xd_err *err)
{
    const json_t *size = json_object_get(q, key);
    const json_int_t rows = json_integer_value(json_array_get(size, 0)),
                     cols = json_integer_value(json_array_get(size, 1));
    if (json_array_size(size) != 2 || rows < 1 || cols < 1 || rows > 1 << 20 || cols > 1 << 20)
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: %s of quantization_config needs two sizes", file, key);
    if (cols % BLOCK)
        return xd_fail(err, XD_UNSUPPORTED, 0,
                       "%s: %s [%lld, %lld] of quantization_config: scales of multiples of %d columns can be read",
                       file, key, (long long)rows, (long long)cols, BLOCK);
    ret->block_rows = (uint32_t)rows;
    ret->block_cols = (uint32_t)cols;
    return XD_OK;
}

/* One group of compressed-tensors' config_groups; all must have scales of one kind. */
static xd_status read_group(const json_t *weights, const char *file, model_fp8 *ret, xd_err *err)
{
    const char *type = hf_string(weights, "type"), *strategy = hf_string(weights, "strategy");
    const json_int_t bits = json_integer_value(json_object_get(weights, "num_bits"));
    const bool block = strategy && !strcmp(strategy, "block");
    if (!type || strcmp(type, "float") || bits != 8 || json_is_true(json_object_get(weights, "dynamic")) || !strategy ||
        (!block && strcmp(strategy, "channel") && strcmp(strategy, "tensor")))
        return xd_fail(err, XD_UNSUPPORTED, 0,
                       "%s: quantization_config: weights of type '%s' in %lld bits with strategy '%s' cannot be read; "
                       "float in 8 with a scale a tensor, channel or block can",
                       file, type ? type : "(none)", (long long)bits, strategy ? strategy : "(none)");
    model_fp8 one = {.suffix = "weight_scale"};
    xd_status st = block ? read_block(weights, "block_structure", file, &one, err) : XD_OK;
    if (st)
        return st;
    if (ret->suffix && (ret->block_rows != one.block_rows || ret->block_cols != one.block_cols))
        return xd_fail(err, XD_UNSUPPORTED, 0, "%s: quantization_config: groups with and without blocks", file);
    *ret = one;
    return XD_OK;
}

xd_status model_check_compressed(const json_t *q, const char *file, xd_err *err)
{
    const char *sparse = hf_string(json_object_get(q, "sparsity_config"), "format");
    if (sparse && strcmp(sparse, "dense"))
        return xd_fail(err, XD_UNSUPPORTED, 0, "%s: quantization_config: sparsity_config of format '%s'", file, sparse);
    if (json_object_size(json_object_get(q, "transform_config")))
        return xd_fail(err, XD_UNSUPPORTED, 0, "%s: quantization_config: transform_config is not known", file);
    return XD_OK;
}

static xd_status read_compressed(const json_t *q, const char *file, model_fp8 *ret, xd_err *err)
{
    const char *format = hf_string(q, "format");
    if (!format || strcmp(format, "float-quantized"))
        return xd_fail(err, XD_UNSUPPORTED, 0,
                       "%s: quantization_config: compressed-tensors in format '%s' cannot be read; float-quantized, "
                       "pack-quantized and nvfp4-pack-quantized can",
                       file, format ? format : "(none)");
    const char *name;
    json_t *group;
    xd_status st = model_check_compressed(q, file, err);
    json_object_foreach (json_object_get(q, "config_groups"), name, group)
        if (!st)
            st = read_group(json_object_get(group, "weights"), file, ret, err);
    if (!st && !ret->suffix)
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: quantization_config has no config_groups", file);
    return st;
}

xd_status model_read_fp8(const json_t *q, const char *file, model_fp8 *ret, xd_err *err)
{
    const char *method = hf_string(q, "quant_method"), *fmt = hf_string(q, "fmt");
    const char *algorithm = hf_string(q, "quant_algo");
    if (method && !strcmp(method, "modelopt") && (!algorithm || strcmp(algorithm, "FP8")))
        return xd_fail(err, XD_UNSUPPORTED, 0,
                       "%s: quantization_config: modelopt with quant_algo '%s' cannot be read; FP8 and NVFP4 can", file,
                       algorithm ? algorithm : "(none)");
    if (!method || (strcmp(method, "fp8") && strcmp(method, "compressed-tensors") && strcmp(method, "modelopt")))
        return xd_fail(
            err, XD_UNSUPPORTED, 0,
            "%s: quantized checkpoints (quantization_config, quant_method '%s') cannot be read, but for 'fp8', "
            "'gptq', 'awq', 'auto-round', 'compressed-tensors' and 'modelopt' in FP8 and four bits, and gpt_oss in 'mxfp4'; use a BF16, F16 or F32 one, or a GGUF file",
            file, method ? method : "(none)");
    model_fp8 found = {0};
    xd_status st = XD_OK;
    if (!strcmp(method, "compressed-tensors")) {
        st = read_compressed(q, file, &found, err);
    } else if (fmt && strcmp(fmt, "e4m3") && strcmp(fmt, "float8_e4m3fn")) {
        st = xd_fail(err, XD_UNSUPPORTED, 0, "%s: quantization_config: fmt '%s' cannot be read; e4m3 can", file, fmt);
    } else if (hf_has(q, "weight_block_size")) {
        found.suffix = "weight_scale_inv";
        st = read_block(q, "weight_block_size", file, &found, err);
    } else {
        found.suffix = "weight_scale";
    }
    if (!st)
        *ret = found;
    return st;
}

static bool has_shape(const safetensors_entry *e, uint64_t rows, uint64_t cols)
{
    return e->n_dims == 2 && e->shape[0] == rows && e->shape[1] == cols;
}

/* F32 or BF16 */
static xd_status format_of_scales(const safetensors_entry *e, const char *path, kern_fmt *ret, xd_err *err)
{
    *ret = !strcmp(e->dtype, "F32") ? FMT_F32 : FMT_BF16;
    return *ret == FMT_BF16 && strcmp(e->dtype, "BF16")
               ? xd_fail(err, XD_UNSUPPORTED, 0, "%s: tensor '%s' is %s; scales in F32 and BF16 can be read", path,
                         e->name, e->dtype)
               : XD_OK;
}

xd_status model_take_stacked_scales(const model *m, const char *name, const char *path, uint32_t n, uint32_t stride,
                                    model_tensor *ret, xd_err *err)
{
    const uint32_t block_rows = m->fp8.block_rows, block_cols = m->fp8.block_cols;
    char of[224], shape[192];
    snprintf(of, sizeof of, "%.*s%s", (int)(strlen(name) - strlen("weight")), name, m->fp8.suffix);
    const safetensors_entry *e = block_rows ? model_find_tensor(m, of, &path) : NULL;
    if (!e)
        return xd_fail(err, XD_UNSUPPORTED, 0,
                       "%s: tensor '%s' is missing, with scales for blocks of '%s', which is F8_E4M3", path, of, name);
    const uint64_t down = (ret->rows + block_rows - 1) / block_rows, across = (ret->cols + block_cols - 1) / block_cols;
    xd_status st = format_of_scales(e, path, &ret->scale.fmt, err);
    if (st)
        return st;
    if (e->n_dims != 3 || e->shape[0] != n || e->shape[1] != down || e->shape[2] != across)
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: tensor '%s' has the wrong shape: %s, that of '%s' needs [%u, %u, %u]",
                       path, of, safetensors_shape(e, shape, sizeof shape), name, n, (uint32_t)down, (uint32_t)across);
    const kern_fmt fmt = ret->scale.fmt;
    for (uint32_t i = 0; i < n; i++) {
        model_tensor *t = &ret[(size_t)i * stride];
        t->scales = (const char *)e->data + i * down * across * kern_fmt_get(fmt).block_bytes;
        t->scale.fmt = fmt;
        t->scale.rows = block_rows;
        t->scale.cols = block_cols;
    }
    return XD_OK;
}

xd_status model_take_scales(const model *m, const char *name, const char *path, model_tensor *t, xd_err *err)
{
    static const char tail[] = ".weight";
    const size_t n = strlen(name) - XD_MIN(strlen(name), strlen(tail));
    const uint32_t block_rows = m->fp8.block_rows, block_cols = m->fp8.block_cols;
    char of[224], shape[192];
    if (strcmp(name + n, tail))
        return xd_fail(err, XD_UNSUPPORTED, 0, "%s: tensor '%s' is F8_E4M3, and nothing tells its scales", path, name);
    /* for activations in FP8 */
    snprintf(of, sizeof of, "%.*s.input_scale", (int)n, name);
    (void)model_find_tensor(m, of, &path);
    snprintf(of, sizeof of, "%.*s.%s", (int)n, name, m->fp8.suffix);
    const safetensors_entry *e = model_find_tensor(m, of, &path);
    if (!e)
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: tensor '%s' is missing: the scales of '%s', which is F8_E4M3", m->dir,
                       of, name);
    xd_status st = format_of_scales(e, path, &t->scale.fmt, err);
    if (st)
        return st;
    const uint32_t down = block_rows ? (t->rows + block_rows - 1) / block_rows : t->rows,
                   across = block_rows ? (t->cols + block_cols - 1) / block_cols : 1;
    const bool one = !block_rows && (e->n_dims == 0 || (e->n_dims == 1 && e->shape[0] == 1) || has_shape(e, 1, 1));
    if (!one && !has_shape(e, down, across) && (block_rows || e->n_dims != 1 || e->shape[0] != t->rows))
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: tensor '%s' has the wrong shape: %s, that of '%s' needs [%u, %u]%s",
                       path, of, safetensors_shape(e, shape, sizeof shape), name, down, across,
                       block_rows ? "" : " or [1]");
    t->scales = e->data;
    t->scale.rows = one ? t->rows : block_rows ? block_rows : 1;
    t->scale.cols = block_rows ? block_cols : t->cols;
    t->bytes = kern_row_bytes(FMT_FP8, t->cols) * t->rows;
    return XD_OK;
}
