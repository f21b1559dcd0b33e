/* hf_config.c - see hf_config.h. Knows JSON and ranges, nothing about models. */
#include "engine/model/hf_config.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define MAX_JSON_BYTES (64 << 20)

xd_status hf_load(const char *path, json_t **ret, xd_err *err)
{
    struct stat sb;
    if (stat(path, &sb))
        return xd_fail(err, errno == ENOENT || errno == ENOTDIR ? XD_NOT_FOUND : XD_IO, errno, "open '%s'", path);
    if (!S_ISREG(sb.st_mode) || sb.st_size > MAX_JSON_BYTES)
        return xd_fail(err, XD_BAD_MODEL, 0, "'%s' is not a regular file of at most %d MiB", path,
                       MAX_JSON_BYTES >> 20);
    FILE *f = fopen(path, "r");
    if (!f)
        return xd_fail(err, XD_IO, errno, "open '%s'", path);
    json_error_t je;
    json_t *o = json_loadf(f, 0, &je);
    (void)fclose(f);
    if (!o)
        return xd_fail(err, XD_BAD_MODEL, 0, "%s:%d: not valid JSON: %s", path, je.line, je.text);
    if (!json_is_object(o)) {
        json_decref(o);
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: not a JSON object", path);
    }
    *ret = o;
    return XD_OK;
}

bool hf_has(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    return v && !json_is_null(v);
}

/* Names lie in the object itself, so that they go where it goes. */
static const char *name_key(char *out, size_t cap, const char *key)
{
    snprintf(out, cap, "name of %s", key);
    return out;
}

xd_status hf_call(json_t *o, const char *key, const char *name, xd_err *err)
{
    char at[96];
    /* Names are for messages alone, which take what is not UTF-8, too: that of a damaged file's architecture. */
    return json_object_set_new(o, name_key(at, sizeof at, key), json_string_nocheck(name))
               ? xd_fail(err, XD_NOMEM, 0, "name of '%s'", name)
               : XD_OK;
}

const char *hf_name(const json_t *o, const char *key)
{
    char at[96];
    const char *name = hf_string(o, name_key(at, sizeof at, key));
    return name ? name : key;
}

xd_status hf_real(const json_t *o, const char *file, const char *key, double fallback, double min, double max,
                  double *ret, xd_err *err)
{
    const json_t *v = json_object_get(o, key);
    if (!v || json_is_null(v)) {
        *ret = fallback;
        return XD_OK;
    }
    double x = json_is_number(v) ? json_number_value(v) : NAN;
    if (!(x >= min && x <= max))
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: '%s' must be a number from %g to %g", file, hf_name(o, key), min,
                       max);
    *ret = x;
    return XD_OK;
}

xd_status hf_u32(const json_t *o, const char *file, const char *key, uint32_t fallback, uint32_t min, uint32_t max,
                 uint32_t *ret, xd_err *err)
{
    double x;
    xd_status st =
        hf_real(o, file, key, fallback, hf_has(o, key) ? min : 0, hf_has(o, key) ? max : UINT32_MAX, &x, err);
    if (st)
        return st;
    if (x != floor(x))
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: '%s' must be a whole number", file, hf_name(o, key));
    *ret = (uint32_t)x;
    return XD_OK;
}

xd_status hf_bool(const json_t *o, const char *file, const char *key, bool fallback, bool *ret, xd_err *err)
{
    const json_t *v = json_object_get(o, key);
    if (v && !json_is_null(v) && !json_is_boolean(v))
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: '%s' must be true or false", file, hf_name(o, key));
    *ret = !v || json_is_null(v) ? fallback : json_is_true(v);
    return XD_OK;
}

const char *hf_string(const json_t *o, const char *key)
{
    return json_string_value(json_object_get(o, key));
}
