/* hf_config.c - see hf_config.h. Knows JSON and ranges, nothing about models. */
#include "engine/model/hf_config.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "config/util.h"

#define MAX_JSON_BYTES (64 << 20)

/* Python writes numbers for which JSON has no word as NaN, Infinity and -Infinity. Here they become what later files of transformers have for them:
 * {"__float__": "Infinity"}. False: no memory. */
static bool tag_floats(const char *s, size_t n, xd_buf *ret)
{
    static const char *const words[] = {"NaN", "Infinity", "-Infinity"};
    size_t from = 0; /* of what is still to be taken as it is */
    bool text = false;
    for (size_t i = 0; i < n; i++) {
        if (text && s[i] == '\\')
            i++;
        else if (s[i] == '"')
            text = !text;
        for (size_t w = 0; !text && i < n && w < XD_ARRAY_LEN(words); w++) {
            const size_t len = strlen(words[w]);
            if (s[i] != words[w][0] || len > n - i || memcmp(s + i, words[w], len) != 0)
                continue;
            xd_buf_append(ret, s + from, i - from);
            xd_buf_printf(ret, "{\"__float__\": \"%s\"}", words[w]);
            from = i + len;
            i = from - 1;
            break;
        }
    }
    return xd_buf_append(ret, s + from, n - from);
}

static xd_status read_text(FILE *f, const char *path, xd_buf *ret, xd_err *err)
{
    char piece[16384];
    for (size_t n; (n = fread(piece, 1, sizeof piece, f)) > 0;) {
        if (ret->len + n > MAX_JSON_BYTES)
            return xd_fail(err, XD_BAD_MODEL, 0, "'%s' grew beyond %d MiB", path, MAX_JSON_BYTES >> 20);
        if (!xd_buf_append(ret, piece, n))
            return xd_fail(err, XD_NOMEM, 0, "'%s'", path);
    }
    return ferror(f) ? xd_fail(err, XD_IO, errno, "read '%s'", path) : XD_OK;
}

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
    XD_CLEANUP(xd_buf_free) xd_buf text = {0};
    XD_CLEANUP(xd_buf_free) xd_buf tagged = {0};
    xd_status st = read_text(f, path, &text, err);
    (void)fclose(f);
    if (st)
        return st;
    if (!tag_floats(text.data ? text.data : "", text.len, &tagged))
        return xd_fail(err, XD_NOMEM, 0, "'%s'", path);
    json_error_t je;
    json_t *o = json_loadb(tagged.data ? tagged.data : "", tagged.len, 0, &je);
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
