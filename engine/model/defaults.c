/* defaults.c - what a checkpoint says of how it wants to be sampled, and where an answer ends. generation_config.json refines
 * config.json: eos ids and the sampling defaults. GGUF files have no defaults, and their ends in the vocabulary (model_gguf.c). */
#include <math.h>

#include "engine/model/hf_config.h"
#include "engine/model/model_priv.h"

static xd_status read_ids(const json_t *v, const char *file, model_params *p, xd_err *err)
{
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    if (n > XD_ARRAY_LEN(p->eos_ids))
        return xd_fail(err, XD_UNSUPPORTED, 0, "%s: %zu eos_token_ids; at most %zu are possible", file, n,
                       XD_ARRAY_LEN(p->eos_ids));
    p->n_eos = 0;
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_is_array(v) ? json_array_get(v, i) : v;
        if (!json_is_integer(id))
            return xd_fail(err, XD_BAD_MODEL, 0, "%s: eos_token_id must be an id or a list of ids", file);
        /* Others are never sampled: small models keep the ids of a large one's vocabulary. */
        if (json_integer_value(id) >= 0 && json_integer_value(id) < (json_int_t)p->vocab)
            p->eos_ids[p->n_eos++] = (uint32_t)json_integer_value(id);
    }
    return XD_OK;
}

void model_clear_defaults(model_params *p)
{
    p->defaults.temperature = p->defaults.top_p = p->defaults.min_p = p->defaults.typical_p =
        p->defaults.repetition_penalty = NAN;
    p->defaults.top_k = -1;
}

xd_status model_read_defaults(model *m, const json_t *config, const char *file, xd_err *err)
{
    model_params *p = &m->params;
    model_clear_defaults(p);
    xd_status st = XD_OK;
    if (hf_has(config, "eos_token_id") && (st = read_ids(json_object_get(config, "eos_token_id"), file, p, err)))
        return st;
    json_t *bos = json_object_get(config, "bos_token_id");
    if (json_is_integer(bos) && json_integer_value(bos) >= 0 && json_integer_value(bos) < (json_int_t)p->vocab)
        p->bos_id = json_integer_value(bos);

    char path[4200];
    snprintf(path, sizeof path, "%s/generation_config.json", m->dir);
    json_t *g;
    xd_err missing;
    st = hf_load(path, &g, &missing);
    if (st == XD_NOT_FOUND)
        return XD_OK;
    if (st) {
        *err = missing;
        return st;
    }
    json_t *k = json_object_get(g, "top_k");
    if (json_is_integer(k) && json_integer_value(k) == -1) /* another way to say that there is no limit */
        json_integer_set(k, 0);
    double temperature, top_p, min_p, typical_p, repetition;
    uint32_t top_k;
    bool sample;
    if (!(st = hf_real(g, path, "temperature", NAN, 0, 100, &temperature, err)) &&
        !(st = hf_real(g, path, "top_p", NAN, 0, 1, &top_p, err)) &&
        !(st = hf_real(g, path, "min_p", NAN, 0, 1, &min_p, err)) &&
        !(st = hf_real(g, path, "typical_p", NAN, 0, 1, &typical_p, err)) &&
        !(st = hf_real(g, path, "repetition_penalty", NAN, 0.01, 100, &repetition, err)) &&
        !(st = hf_u32(g, path, "top_k", 0, 0, INT32_MAX, &top_k, err)) &&
        !(st = hf_bool(g, path, "do_sample", true, &sample, err))) {
        p->defaults.temperature = (float)temperature;
        p->defaults.top_p = (float)top_p;
        p->defaults.min_p = (float)min_p;
        if (!isnan(typical_p))
            p->defaults.typical_p = (float)XD_MAX(typical_p, 1e-9); /* 0: the most typical token alone */
        p->defaults.repetition_penalty = (float)repetition;
        p->defaults.top_k = hf_has(g, "top_k") ? (int32_t)top_k : -1;
        p->defaults.do_sample_off = !sample;
        if (hf_has(g, "eos_token_id"))
            st = read_ids(json_object_get(g, "eos_token_id"), path, p, err);
    }
    json_decref(g);
    return st;
}
