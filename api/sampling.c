/* sampling.c - the fields of samplers that llama.cpp and its front ends have: what clients say under several names or in several forms
 * becomes one value each. Ranges are in the table of request.c; what the values do is in engine/text/sample.h. */
#include <math.h>
#include <string.h>

#include "api/generate.h"

/* As many breakers as there may be, every byte written as \u00xx. More would be parsed for nothing, past the bounds of a body. */
enum { MAX_LIST_BYTES = ENGINE_MAX_DRY_BREAKERS * (6 * ENGINE_MAX_DRY_BREAKER_BYTES + 8) };

/* llama.cpp's */
static const char *const default_breakers[] = {"\n", ":", "\"", "*"};

static xd_status merge(double *dst, double other, const char *name, const char *other_name, xd_err *err)
{
    if (!isnan(*dst) && !isnan(other) && *dst != other)
        return gen_bad_value(err, other_name, "'%s' (%g) and '%s' (%g) are the same and must not differ", other_name,
                             other, name, *dst);
    if (isnan(*dst))
        *dst = other;
    return XD_OK;
}

/* text-generation-webui says the ends of the range, llama.cpp its middle and half its width; SillyTavern all of them. */
static xd_status read_dynatemp(gen_params *p, xd_err *err)
{
    if (p->dynamic_temperature && isnan(p->dynatemp_range)) {
        if (isnan(p->dynatemp_low) || isnan(p->dynatemp_high))
            return gen_bad_value(err, "dynamic_temperature",
                                 "'dynamic_temperature' needs 'dynatemp_low' and 'dynatemp_high', or 'dynatemp_range'");
        if (p->dynatemp_low > p->dynatemp_high)
            return gen_bad_value(err, "dynatemp_low", "'dynatemp_low' (%g) is above 'dynatemp_high' (%g)",
                                 p->dynatemp_low, p->dynatemp_high);
        p->temperature = (p->dynatemp_low + p->dynatemp_high) / 2;
        if (p->temperature > 2)
            return gen_bad_value(err, "dynatemp_high",
                                 "'dynatemp_low' and 'dynatemp_high' must have a middle of at most 2, not %g",
                                 p->temperature);
        p->dynatemp_range = (p->dynatemp_high - p->dynatemp_low) / 2;
    }
    if (isnan(p->dynatemp_range))
        p->dynatemp_range = 0;
    return XD_OK;
}

/* An array, or its text as text-generation-webui's clients send it, with or without the brackets. *ret is owned; NULL: none was said. */
static xd_status read_breaker_list(const json_t *said, json_t **ret, xd_err *err)
{
    json_t *list = NULL;
    if (json_is_array(said)) {
        list = json_incref((json_t *)(uintptr_t)said);
    } else if (json_is_string(said)) {
        XD_CLEANUP(xd_buf_free) xd_buf text = {0};
        const char *s = json_string_value(said);
        bool whole = s[strspn(s, " \t\r\n")] == '[';
        if (json_string_length(said) > MAX_LIST_BYTES)
            return gen_bad_value(err, "dry_sequence_breakers",
                                 "'dry_sequence_breakers' has %zu bytes: at most %d are allowed",
                                 json_string_length(said), MAX_LIST_BYTES);
        if (!xd_buf_printf(&text, whole ? "%s" : "[%s]", s))
            return xd_fail(err, XD_NOMEM, 0, "out of memory for dry_sequence_breakers");
        list = json_loadb(text.data, text.len, 0, NULL);
    }
    if (said && !list)
        return xd_fail_field(err, XD_BAD_REQUEST, "dry_sequence_breakers", "invalid_type",
                             "'dry_sequence_breakers' must be an array of strings%s",
                             json_is_string(said) ? ", or the JSON of one" : "");
    *ret = list;
    return XD_OK;
}

static xd_status read_breakers(const gen_context *ctx, gen_params *p, xd_err *err)
{
    xd_status st = read_breaker_list(p->dry_sequence_breakers, &p->dry_list, err);
    if (st)
        return st;
    const bool said = p->dry_list;
    size_t n = said ? json_array_size(p->dry_list) : ctx->tok ? XD_ARRAY_LEN(default_breakers) : 0;
    if (n > ENGINE_MAX_DRY_BREAKERS)
        return gen_bad_value(err, "dry_sequence_breakers",
                             "'dry_sequence_breakers' has %zu strings: at most %d are allowed", n,
                             ENGINE_MAX_DRY_BREAKERS);
    p->dry_breakers = calloc(n + 1, sizeof *p->dry_breakers);
    if (!p->dry_breakers)
        return xd_fail(err, XD_NOMEM, 0, "out of memory for dry_sequence_breakers");
    for (size_t i = 0; i < n; i++) {
        char name[48];
        snprintf(name, sizeof name, "dry_sequence_breakers[%zu]", i);
        const json_t *s = said ? json_array_get(p->dry_list, i) : NULL;
        if (said && !json_is_string(s))
            return fields_wrong_type(err, name, "a string", s);
        const char *text = said ? json_string_value(s) : default_breakers[i];
        size_t len = strlen(text);
        if (!len || len > ENGINE_MAX_DRY_BREAKER_BYTES)
            return gen_bad_value(err, name, "'%s' must have 1 to %d bytes, not %zu", name, ENGINE_MAX_DRY_BREAKER_BYTES,
                                 len);
        p->dry_breakers[i] = text;
    }
    p->n_dry_breakers = (uint32_t)n;
    return n && p->dry_multiplier > 0 ? gen_need_tokenizer(ctx, "dry_sequence_breakers", err) : XD_OK;
}

xd_status gen_read_sampling(const gen_context *ctx, gen_params *p, xd_err *err)
{
    if (p->top_n_sigma < 0)
        p->top_n_sigma = 0;
    if (p->nsigma < 0)
        p->nsigma = 0;
    xd_status st = merge(&p->typical_p, p->typical, "typical_p", "typical", err);
    if (st || (st = merge(&p->typical_p, p->typ_p, "typical_p", "typ_p", err)))
        return st;
    if ((st = merge(&p->top_n_sigma, p->nsigma, "top_n_sigma", "nsigma", err)))
        return st;
    if (!isnan(p->typical_p))
        p->typical_p = XD_MAX(p->typical_p, 1e-9); /* 0: the most typical token alone; the engine knows 0 as off */
    p->top_n_sigma = isnan(p->top_n_sigma) ? 0 : p->top_n_sigma;
    if ((st = read_dynatemp(p, err)))
        return st;
    return read_breakers(ctx, p, err);
}
