/* gguf_heads.c - families in GGUF whose layers without a window have other heads than those with one (gemma4): what metadata list by layers, and
 * say of both kinds, as config.json would. Names and meanings as llama.cpp's converter (conversion/gemma.py) writes them: plain keys are of
 * layers without a window, those ending in _swa of the others, and `rope_freqs` divides the frequencies of the former. */
#include <string.h>

#include "engine/model/hf_config.h"
#include "engine/model/model_priv.h"

/* A key of one kind of layers; where it is not 0 it must be `must`. */
static xd_status check(const gguf *g, const char *arch, const char *key, int64_t must, xd_err *err)
{
    char full[96];
    int64_t v;
    snprintf(full, sizeof full, "%s.%s", arch, key);
    xd_status st = gguf_int(g, full, must, 0, UINT32_MAX, &v, err);
    if (!st && v != must)
        return xd_fail(err, XD_UNSUPPORTED, 0, "%s: '%s' = %lld is not known beside heads of %lld", gguf_path(g), full,
                       (long long)v, (long long)must);
    return st;
}

static xd_status read_ropes(const gguf *g, const char *arch, json_t *config, xd_err *err)
{
    char key[96];
    double theta[2], factor;
    xd_status st;
    snprintf(key, sizeof key, "%s.rope.freq_base", arch);
    if ((st = gguf_real(g, key, 1e6, 1, 1e12, &theta[0], err)))
        return st;
    snprintf(key, sizeof key, "%s.rope.freq_base_swa", arch);
    if ((st = gguf_real(g, key, 1e4, 1, 1e12, &theta[1], err)))
        return st;
    snprintf(key, sizeof key, "%s.rope.scaling.factor", arch);
    if ((st = gguf_real(g, key, 1, 0, 1e6, &factor, err)))
        return st;
    if (factor != 1)
        return xd_fail(err, XD_UNSUPPORTED, 0, "%s: '%s' = %g is not known for %s models", gguf_path(g), key, factor,
                       arch);
    json_t *ropes = json_pack("{s:{s:f}, s:{s:f}}", "full_attention", "rope_theta", theta[0], "sliding_attention",
                              "rope_theta", theta[1]);
    return json_object_set_new(config, "rope_parameters", ropes) ? xd_fail(err, XD_NOMEM, 0, "rope parameters") : XD_OK;
}

xd_status model_gguf_heads(const gguf *g, json_t *config, xd_err *err)
{
    const char *arch = gguf_string(g, "general.architecture");
    const json_int_t n_layers = json_integer_value(json_object_get(config, "num_hidden_layers"));
    const uint8_t *sliding;
    const int32_t *listed;
    char key[96], number[16];
    int64_t dims[2], kv_heads; /* of layers without a window, and with one */
    xd_status st;
    snprintf(key, sizeof key, "%s.attention.sliding_window_pattern", arch);
    if ((json_int_t)gguf_bools(g, key, &sliding) != n_layers)
        return xd_fail(err, XD_UNSUPPORTED, 0, "%s: '%s' must say of each layer whether it has a window", gguf_path(g),
                       key);
    snprintf(key, sizeof key, "%s.attention.key_length", arch);
    if ((st = gguf_int(g, key, 0, 2, MODEL_MAX_HEAD, &dims[0], err)))
        return st;
    snprintf(key, sizeof key, "%s.attention.key_length_swa", arch);
    if ((st = gguf_int(g, key, 0, 2, MODEL_MAX_HEAD, &dims[1], err)))
        return st;
    if (!dims[0] || !dims[1])
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: %s.attention.key_length and key_length_swa are needed", gguf_path(g),
                       arch);
    if ((st = check(g, arch, "attention.value_length", dims[0], err)) ||
        (st = check(g, arch, "attention.value_length_swa", dims[1], err)) ||
        (st = check(g, arch, "rope.dimension_count", dims[0], err)) ||
        (st = check(g, arch, "rope.dimension_count_swa", dims[1], err)))
        return st;
    snprintf(key, sizeof key, "%s.attention.head_count_kv", arch);
    const json_int_t n_listed = (json_int_t)gguf_i32s(g, key, &listed);
    if (n_listed && n_listed != n_layers)
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: '%s' must list %lld layers", gguf_path(g), key, (long long)n_layers);
    if (!n_listed && (st = gguf_int(g, key, 0, 1, 1024, &kv_heads, err)))
        return st;

    json_t *types = json_array(), *layers = json_object();
    if (json_object_set_new(config, "layer_types", types) || json_object_set_new(config, "per_layer_config", layers) ||
        json_object_set_new(config, "head_dim", json_integer(dims[1])))
        return xd_fail(err, XD_NOMEM, 0, "layers of '%s'", gguf_path(g));
    for (json_int_t l = 0; l < n_layers; l++) {
        const json_int_t heads = n_listed ? listed[l] : kv_heads;
        snprintf(number, sizeof number, "%d", (int)l);
        json_t *of =
            json_pack("{s:I, s:I}", "head_dim", (json_int_t)dims[sliding[l] != 0], "num_key_value_heads", heads);
        if (sliding[l]) /* as all that are not listed */
            json_object_set_new(config, "num_key_value_heads", json_integer(heads));
        if (json_array_append_new(types, json_string(sliding[l] ? "sliding_attention" : "full_attention")) ||
            json_object_set_new(layers, number, of))
            return xd_fail(err, XD_NOMEM, 0, "layers of '%s'", gguf_path(g));
    }
    return read_ropes(g, arch, config, err);
}
