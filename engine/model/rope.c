/* rope.c - rotary frequencies: see rope.h. Computed in double and rounded once.
 * Sources: RoFormer (arXiv 2104.09864), YaRN (arXiv 2309.00071), LongRoPE (arXiv 2402.13753), Llama 3.1's frequency bands, as transformers
 * applies them. */
#include "engine/model/rope.h"

#include <math.h>
#include <string.h>

static double yarn_mscale(double factor, double mscale)
{
    return factor <= 1 ? 1.0 : 0.1 * mscale * log(factor) + 1.0;
}

static double yarn_dim(double rotations, double dim, double base, double positions)
{
    return dim * log(positions / (rotations * 2 * M_PI)) / (2 * log(base));
}

static xd_status yarn(const json_t *r, const char *file, double theta, double factor, double original, model_rope *p,
                      xd_err *err)
{
    double fast, slow, attention, mscale, mscale_all;
    bool truncate;
    xd_status st;
    if ((st = hf_real(r, file, "beta_fast", 32, 0, 1e6, &fast, err)) ||
        (st = hf_real(r, file, "beta_slow", 1, 0, 1e6, &slow, err)) ||
        (st = hf_real(r, file, "attention_factor", 0, 0, 1e3, &attention, err)) ||
        (st = hf_real(r, file, "mscale", 0, 0, 1e3, &mscale, err)) ||
        (st = hf_real(r, file, "mscale_all_dim", 0, 0, 1e3, &mscale_all, err)) ||
        (st = hf_bool(r, file, "truncate", true, &truncate, err)))
        return st;
    fast = fast > 0 ? fast : 32; /* 0 says nothing, as null */
    slow = slow > 0 ? slow : 1;
    if (attention > 0)
        p->scale = (float)attention;
    else if (mscale > 0 && mscale_all > 0)
        p->scale = (float)(yarn_mscale(factor, mscale) / yarn_mscale(factor, mscale_all));
    else
        p->scale = (float)yarn_mscale(factor, 1);

    double low = yarn_dim(fast, p->rot_dim, theta, original), high = yarn_dim(slow, p->rot_dim, theta, original);
    if (truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, p->rot_dim - 1);
    if (low == high)
        high += 0.001;
    for (uint32_t i = 0; i < p->rot_dim / 2; i++) {
        double f = pow(theta, -2.0 * i / p->rot_dim), ramp = fmin(fmax((i - low) / (high - low), 0), 1);
        p->inv_freq[i] = (float)(f / factor * ramp + f * (1 - ramp));
    }
    return XD_OK;
}

static xd_status llama3(const json_t *r, const char *file, double theta, double factor, double original, model_rope *p,
                        xd_err *err)
{
    double low, high;
    xd_status st;
    if ((st = hf_real(r, file, "low_freq_factor", 1, 1e-6, 1e6, &low, err)) ||
        (st = hf_real(r, file, "high_freq_factor", 4, 1e-6, 1e6, &high, err)))
        return st;
    if (high < low)
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: high_freq_factor must not be below low_freq_factor", file);
    for (uint32_t i = 0; i < p->rot_dim / 2; i++) {
        double f = pow(theta, -2.0 * i / p->rot_dim), wavelen = 2 * M_PI / f, beyond = original / wavelen - low;
        /* Llama 4 Scout has no band between the two */
        double smooth = high > low ? fmin(fmax(beyond / (high - low), 0), 1) : beyond >= 0;
        p->inv_freq[i] = (float)((1 - smooth) * f / factor + smooth * f);
    }
    return XD_OK;
}

static const char *const places[] = {"rope_scaling", "rope_parameters"};

/* rope_scaling comes before rope_parameters, and an empty object says nothing. */
static const json_t *find_parameters(const json_t *config)
{
    for (size_t i = 0; i < XD_ARRAY_LEN(places); i++) {
        const json_t *r = json_object_get(config, places[i]);
        if (json_object_size(r))
            return r;
    }
    return NULL;
}

/* What has another JSON type than it must is no default. */
static xd_status check_places(const json_t *config, const char *file, xd_err *err)
{
    for (size_t i = 0; i < XD_ARRAY_LEN(places); i++)
        if (hf_has(config, places[i]) && !json_is_object(json_object_get(config, places[i])))
            return xd_fail(err, XD_BAD_MODEL, 0, "%s: '%s' must be an object or null", file, places[i]);
    return XD_OK;
}

/* Parameters of each layer type in objects of their own: few families have them. */
static xd_status refuse_unknown(const json_t *r, const char *file, xd_err *err)
{
    static const char *const names[] = {"rope_type", "type"};
    for (size_t i = 0; r && i < XD_ARRAY_LEN(names); i++)
        if (hf_has(r, names[i]) && !hf_string(r, names[i]))
            return xd_fail(err, XD_BAD_MODEL, 0, "%s: '%s' of the rotary embedding must be a text", file, names[i]);
    const char *key;
    json_t *value;
    json_object_foreach ((json_t *)r, key, value)
        if (json_is_object(value))
            return xd_fail(err, XD_UNSUPPORTED, 0, "%s: rope parameters by layer types ('%s') are not known", file,
                           key);
    return XD_OK;
}

/* The part of a head that is rotated. */
static xd_status read_partial(const json_t *config, const json_t *r, const char *file, bool known, uint32_t whole,
                              const model_params *p, model_rope *to, xd_err *err)
{
    const double of_latent = (double)p->latent.rope_dim / XD_MAX(p->latent.rope_dim + p->latent.nope_dim, 1u);
    double partial;
    uint32_t rotary = whole;
    /* Published MiniMax-M2 has rotary_dim. Where a file has rope_parameters these say it all: transformers 5.17, which wrote such files, left
     * rotary_dim in them and did not go by it; later versions write the factor. */
    xd_status st = known && !json_object_size(json_object_get(config, "rope_parameters"))
                       ? hf_u32(config, file, "rotary_dim", whole, 1, whole, &rotary, err)
                       : XD_OK;
    if (!st)
        st = hf_real(config, file, "partial_rotary_factor", (double)rotary / whole, 0, 1, &partial, err);
    if (!st && r)
        st = hf_real(r, file, "partial_rotary_factor", partial, 0, 1, &partial, err);
    if (st)
        return st;
    if (known && p->latent.kv_rank && fabs(partial - of_latent) < 1e-6) /* another way to say qk_rope_head_dim */
        partial = 1;
    if (partial != 1 && (!known || p->latent.kv_rank))
        return xd_fail(err, XD_UNSUPPORTED, 0, "%s: partial_rotary_factor %g is not known for this model_type", file,
                       partial);
    to->rot_dim = (uint32_t)(whole * partial);
    if (to->rot_dim < 2 || to->rot_dim % 2 || to->rot_dim > MODEL_MAX_ROT)
        return xd_fail(err, XD_UNSUPPORTED, 0, "%s: rotary embedding over %u dimensions; 2, 4, to %d are possible",
                       file, to->rot_dim, MODEL_MAX_ROT);
    return XD_OK;
}

/* Whole heads are rotated, but most of their dimensions by nothing: unlike in a rotation of a part, these lie among the others. */
static xd_status proportional(const json_t *config, const json_t *r, const char *file, double theta, uint32_t whole,
                              model_rope *to, xd_err *err)
{
    double partial, factor;
    xd_status st;
    if ((st = hf_real(config, file, "partial_rotary_factor", 1, 0, 1, &partial, err)) ||
        (st = hf_real(r, file, "partial_rotary_factor", partial, 0, 1, &partial, err)) ||
        (st = hf_real(r, file, "factor", 1, 1e-3, 1e6, &factor, err)))
        return st;
    if (whole > MODEL_MAX_ROT)
        return xd_fail(err, XD_UNSUPPORTED, 0, "%s: rotary embedding over %u dimensions; at most %d are possible", file,
                       whole, MODEL_MAX_ROT);
    *to = (model_rope){.rot_dim = whole, .scale = 1};
    for (uint32_t i = 0; i < (uint32_t)(partial * whole / 2); i++)
        to->inv_freq[i] = (float)(pow(theta, -2.0 * i / whole) / factor);
    return XD_OK;
}

static const char *type_of(const json_t *r)
{
    const char *type = r ? hf_string(r, "rope_type") : NULL;
    if (r && !type)
        type = hf_string(r, "type");
    if (type && !strcmp(type, "deepseek_yarn")) /* so Sarvam's files call it */
        type = "yarn";
    return type ? type : "default";
}

xd_status rope_latent_factor(const json_t *config, const char *file, double *ret, xd_err *err)
{
    const json_t *r = find_parameters(config);
    double all, factor;
    xd_status st;
    *ret = 1;
    if (!strcmp(type_of(r), "default"))
        return XD_OK;
    if ((st = hf_real(r, file, "mscale_all_dim", 0, 0, 1e3, &all, err)) ||
        (st = hf_real(r, file, "factor", 0, 1e-3, 1e6, &factor, err)))
        return st;
    if (all > 0 && factor == 0)
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: mscale_all_dim needs a factor", file);
    *ret = all > 0 ? yarn_mscale(factor, all) : 1;
    return XD_OK;
}

/* to's frequencies, which are the plain ones of base theta, divided by the list under `key`. */
static xd_status divide_by_list(const json_t *r, const char *file, const char *key, double theta, model_rope *to,
                                xd_err *err)
{
    const json_t *list = json_object_get(r, key);
    if (!json_is_array(list) || json_array_size(list) != to->rot_dim / 2)
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: '%s' must list %u numbers, one for two rotated dimensions", file,
                       hf_name(r, key), to->rot_dim / 2);
    for (uint32_t i = 0; i < to->rot_dim / 2; i++) {
        const double by = json_number_value(json_array_get(list, i));
        if (!(by >= 1e-3 && by <= 1e6))
            return xd_fail(err, XD_BAD_MODEL, 0, "%s: '%s' must hold numbers from 0.001 to 1e+06; not so at %u", file,
                           hf_name(r, key), i);
        to->inv_freq[i] = (float)(pow(theta, -2.0 * i / to->rot_dim) / by);
    }
    return XD_OK;
}

/* Short factors for sequences of up to the original length, long ones beyond. */
static xd_status longrope(const json_t *config, const json_t *r, const char *file, double theta, model_params *p,
                          model_rope *to, xd_err *err)
{
    static const char original[] = "original_max_position_embeddings", *const scales[] = {"short_mscale",
                                                                                          "long_mscale"};
    model_rope *longer = &p->long_rope.rope;
    double scale[2];
    xd_status st;
    /* The value beside rope_scaling comes before the one inside. */
    if ((st = hf_u32(r, file, original, p->max_positions, 1, 1u << 30, &p->long_rope.beyond, err)) ||
        (st = hf_u32(config, file, original, p->long_rope.beyond, 1, 1u << 30, &p->long_rope.beyond, err)))
        return st;
    for (uint32_t i = 0; i < XD_ARRAY_LEN(scales); i++) {
        if (!hf_has(r, scales[i]))
            return xd_fail(err, XD_BAD_MODEL, 0, "%s: rope type 'longrope' needs a '%s' here", file, scales[i]);
        if ((st = hf_real(r, file, scales[i], 1, 1e-3, 1e3, &scale[i], err)))
            return st;
    }
    *longer = *to;
    if ((st = divide_by_list(r, file, "short_factor", theta, to, err)) ||
        (st = divide_by_list(r, file, "long_factor", theta, longer, err)))
        return st;
    to->scale = (float)scale[0];
    longer->scale = (float)scale[1];
    return XD_OK;
}

static xd_status read_one(const json_t *config, const json_t *r, const char *file, double default_theta, unsigned known,
                          uint32_t whole, model_params *p, model_rope *to, xd_err *err)
{
    const char *type = type_of(r);
    double theta, factor, original;
    xd_status st;
    if ((st = refuse_unknown(r, file, err)) ||
        (st = hf_real(config, file, "rope_theta", default_theta, 1, 1e12, &theta, err)) ||
        (r && (st = hf_real(r, file, "rope_theta", theta, 1, 1e12, &theta, err))))
        return st;
    if (!strcmp(type, "proportional") && !(known & ROPE_LONG))
        return proportional(config, r, file, theta, whole, to, err);
    if ((st = read_partial(config, r, file, known & ROPE_PARTIAL, whole, p, to, err)))
        return st;
    to->scale = 1;
    for (uint32_t i = 0; i < to->rot_dim / 2; i++)
        to->inv_freq[i] = (float)pow(theta, -2.0 * i / to->rot_dim);
    if (!strcmp(type, "default"))
        return XD_OK;
    if (known & ROPE_LONG)
        return !strcmp(type, "longrope")
                   ? longrope(config, r, file, theta, p, to, err)
                   : xd_fail(err, XD_UNSUPPORTED, 0, "%s: rope type '%s' is not known here; default and longrope are",
                             file, type);
    /* The base grows with a text that is longer than the model was made for; up to there it is the plain one. */
    if (!strcmp(type, "dynamic")) {
        p->rope_grows = true;
        return XD_OK;
    }

    bool is_yarn = !strcmp(type, "yarn");
    if (!is_yarn && strcmp(type, "linear") && strcmp(type, "llama3"))
        return xd_fail(err, XD_UNSUPPORTED, 0,
                       "%s: rope type '%s' is not known; default, dynamic, linear, llama3, proportional and yarn are",
                       file, type);
    /* The value beside rope_scaling comes before the one inside. */
    if ((st = hf_real(r, file, "original_max_position_embeddings", p->max_positions, 1, 1e9, &original, err)) ||
        (st = hf_real(config, file, "original_max_position_embeddings", original, 1, 1e9, &original, err)) ||
        (st = hf_real(r, file, "factor", p->max_positions / original, 1e-3, 1e6, &factor, err)))
        return st;
    if (!is_yarn && !hf_has(r, "factor"))
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: rope type '%s' needs a factor", file, type);
    if (is_yarn)
        return yarn(r, file, theta, factor, original, to, err);
    if (!strcmp(type, "llama3"))
        return llama3(r, file, theta, factor, original, to, err);
    for (uint32_t i = 0; i < to->rot_dim / 2; i++)
        to->inv_freq[i] = (float)(pow(theta, -2.0 * i / to->rot_dim) / factor);
    return XD_OK;
}

static xd_status read_types(const json_t *config, const json_t *parameters, const char *file, unsigned known,
                            model_params *p, xd_err *err)
{
    static const char *const types[] = {"full_attention", "sliding_attention"};
    for (uint32_t i = 0; i < XD_ARRAY_LEN(types); i++) {
        const json_t *r = json_object_get(parameters, types[i]);
        if (!r || json_is_null(r))
            continue;
        if (!json_is_object(r))
            return xd_fail(err, XD_BAD_MODEL, 0, "%s: '%s' of the rotary embedding must be an object", file, types[i]);
        if (!hf_has(r, "rope_theta"))
            return xd_fail(err, XD_BAD_MODEL, 0, "%s: '%s' of the rotary embedding needs a rope_theta", file, types[i]);
        xd_status st = read_one(config, r, file, 1, known, i ? p->head_dim : p->full_head_dim, p, &p->ropes[i], err);
        if (st)
            return st;
    }
    return XD_OK;
}

xd_status rope_plain_queries(const json_t *config, const char *file, uint32_t *ret, xd_err *err)
{
    const json_t *r = find_parameters(config);
    double beta;
    if (!r || !hf_has(r, "llama_4_scaling_beta") || !hf_has(r, "original_max_position_embeddings"))
        return xd_fail(err, XD_BAD_MODEL, 0,
                       "%s: llama_4_scaling_beta and original_max_position_embeddings are needed among the rope "
                       "parameters",
                       file);
    *ret = 0;
    xd_status st = hf_real(r, file, "llama_4_scaling_beta", 0, 0, 1e3, &beta, err);
    return st || beta == 0 ? st : hf_u32(r, file, "original_max_position_embeddings", 0, 1, 1u << 30, ret, err);
}

/* Of a head, if it is not a part of them. */
static uint32_t rotated_dims(const model_params *p)
{
    return p->latent.kv_rank ? p->latent.rope_dim : p->head_dim;
}

xd_status rope_read(const json_t *config, const char *file, double default_theta, unsigned known, model_params *p,
                    xd_err *err)
{
    const json_t *r = find_parameters(config);
    xd_status st = check_places(config, file, err);
    if (st)
        return st;
    return known & ROPE_BY_TYPE
               ? read_types(config, r, file, known, p, err)
               : read_one(config, r, file, default_theta, known, rotated_dims(p), p, &p->ropes[0], err);
}

xd_status rope_read_based(const json_t *config, const char *file, double theta, bool partial, model_params *p,
                          uint32_t n, xd_err *err)
{
    const json_t *r = find_parameters(config);
    XD_CLEANUP(json_decrefp) json_t *with = r ? json_copy((json_t *)r) : json_object();
    if (!with || json_object_set_new(with, "rope_theta", json_real(theta)))
        return xd_fail(err, XD_NOMEM, 0, "rope parameters");
    return read_one(config, with, file, theta, partial ? ROPE_PARTIAL : 0, rotated_dims(p), p, &p->ropes[n], err);
}

xd_status rope_read_alpha(const json_t *config, const char *file, double default_theta, model_params *p, xd_err *err)
{
    const json_t *r = find_parameters(config);
    const double dim = p->head_dim;
    double alpha, theta;
    xd_status st;
    if (strcmp(type_of(r), "dynamic"))
        return XD_OK;
    if ((st = hf_real(r, file, "alpha", 0, 0, 1e9, &alpha, err)) ||
        (st = hf_real(config, file, "rope_theta", default_theta, 1, 1e12, &theta, err)) ||
        (st = hf_real(r, file, "rope_theta", theta, 1, 1e12, &theta, err)) || alpha == 0)
        return st;
    if (p->head_dim == 2)
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: an alpha of the rotary embedding needs heads of more than two", file);
    st = rope_read_based(config, file, theta * pow(alpha, dim / (dim - 2)), false, p, 0, err);
    p->rope_grows = false;
    return st;
}

/* A rotation by nothing gives every number as it was, to the bit. */
void rope_make_still(model_params *p, uint32_t n)
{
    const uint32_t rot_dim = p->ropes[0].rot_dim;
    p->ropes[n] = (model_rope){.rot_dim = rot_dim, .scale = 1};
}
