/* fields.c - parsing of request bodies and the table-driven field reader: see fields.h.
 *
 * Types are exact, as OpenAI's are: "true" is not true and 1.5 is not an integer, so that a client's mistake is told where it is
 * made instead of being guessed at. */
#include "api/fields.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "api/jinja/jinja.h"
#include "config/log.h"
#include "config/util.h"

enum {
    MAX_DEPTH = 100,
    MAX_VALUES = 2000000 /* jansson needs about 40 bytes a value: a body of "0,0,0,..." must not become gigabytes */
};

const char *json_kind_name(const json_t *v)
{
    static const char *const names[] = {
        [JSON_OBJECT] = "an object",   [JSON_ARRAY] = "an array", [JSON_STRING] = "a string",
        [JSON_INTEGER] = "an integer", [JSON_REAL] = "a number",  [JSON_TRUE] = "a boolean",
        [JSON_FALSE] = "a boolean",    [JSON_NULL] = "null"};
    const char *text = json_string_value(v);
    if (json_string_length(v) && !*text &&
        (!strncmp(text + 1, "a number", 8) || strchr("-0123456789", text[1]))) /* replace_unheld() made it */
        return "a number that is out of range";
    return v ? names[json_typeof(v)] : "nothing";
}

/* Depth and number of values, counted before anything is built. */
static xd_status check_shape(const char *what, const char *s, size_t len, xd_err *err)
{
    size_t depth = 0, values = 0;
    bool in_string = false;
    for (size_t i = 0; i < len; i++) {
        char c = s[i];
        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = false;
            continue;
        }
        if (c == '"')
            in_string = true;
        else if (c == '[' || c == '{')
            depth++, values++;
        else if (c == ',')
            values++;
        else if ((c == ']' || c == '}') && depth)
            depth--;
        if (depth > MAX_DEPTH)
            return xd_fail(err, XD_BAD_REQUEST, 0, "%s is nested more than %d levels deep", what, MAX_DEPTH);
        if (values > MAX_VALUES)
            return xd_fail(err, XD_BAD_REQUEST, 0, "%s holds more than %d values", what, MAX_VALUES);
    }
    return XD_OK;
}

static int hex4(const char *s, size_t len)
{
    int v = 0;
    if (len < 6 || s[0] != '\\' || s[1] != 'u')
        return -1;
    for (int i = 2; i < 6; i++) {
        const char *digit = s[i] ? memchr("0123456789abcdefABCDEF", s[i], 22) : NULL;
        if (!digit)
            return -1;
        int d = (int)(digit - "0123456789abcdefABCDEF");
        v = v * 16 + (d < 16 ? d : d - 6);
    }
    return v;
}

/* A client that cuts a text between the two halves of an emoji sends one half as an escape ("\ud83d"): it becomes U+FFFD, as bytes
 * that are no UTF-8 do. */
static void mend_surrogates(char *s, size_t len)
{
    for (size_t i = 0; i + 1 < len; i++) {
        if (s[i] != '\\')
            continue;
        int a = hex4(s + i, len - i), b = a >= 0xd800 && a < 0xdc00 ? hex4(s + i + 6, len - i - 6) : -1;
        if (b >= 0xdc00 && b < 0xe000)
            i += 11; /* a pair */
        else if (a >= 0xd800 && a < 0xe000) {
            memcpy(s + i + 2, "fffd", 4);
            i += 5;
        } else
            i++; /* over what is escaped, which may be a backslash */
    }
}

static bool is_json_number(const char *s, size_t n, bool *ret_integer)
{
    static const char digits[] = "0123456789";
    const char *p = s + (*s == '-');
    size_t whole = strspn(p, digits);
    bool ok = whole == 1 || (whole && *p != '0');
    p += whole;
    *ret_integer = p == s + n;
    if (*p == '.') {
        ok = ok && strspn(p + 1, digits);
        p += 1 + strspn(p + 1, digits);
    }
    if (*p == 'e' || *p == 'E') {
        p += 1 + (p[1] == '+' || p[1] == '-');
        ok = ok && strspn(p, digits);
        p += strspn(p, digits);
    }
    return ok && p == s + n;
}

/* A number that JSON allows and our types do not hold. */
static bool is_too_large(const char *s, size_t n, bool *ret_integer)
{
    if (!is_json_number(s, n, ret_integer))
        return false;
    errno = 0;
    if (*ret_integer)
        return strtoll(s, NULL, 10) && errno == ERANGE;
    return !isfinite(strtod(s, NULL));
}

/* The character behind a string that begins at s[i]. NUL characters in it become U+FFFD; says whether there was one. */
static size_t end_of_string(char *s, size_t i, size_t len, bool *ret_nul)
{
    for (i++; i < len && s[i] != '"'; i++) {
        if (s[i] != '\\')
            continue;
        if (hex4(s + i, len - i) == 0) {
            memcpy(s + i + 2, "fffd", 4);
            *ret_nul = true;
        }
        i++;
    }
    return XD_MIN(i + 1, len);
}

/* JSON may hold what we cannot: a number beyond our types, a NUL character. Where nobody reads them they do no harm, so each becomes a value
 * that no client can make: a string that begins with NUL, then the digits of an integer that the template engine may hold, or what is
 * wrong. A NUL in a name is an error wherever it stands: jansson has no such names. */
static xd_status replace_unheld(const char *whole, char *s, size_t len, xd_buf *out, xd_err *err)
{
    size_t line = 1, line_begin = 0, next;
    for (size_t i = 0; i < len; i = next) {
        const char *what = NULL;
        bool integer = false;
        next = i + 1;
        if (s[i] == '\n') {
            line++;
            line_begin = next;
        } else if (s[i] == '"') {
            bool nul = false;
            next = end_of_string(s, i, len, &nul);
            if (nul && s[next + strspn(s + next, " \t\r\n")] == ':')
                return xd_fail_field(err, XD_BAD_REQUEST, NULL, "invalid_json",
                                     "a name in %s holds a NUL character (\\u0000) (line %zu, column %zu)", whole, line,
                                     i - line_begin + 1);
            if (nul)
                what = "a NUL character (\\\\u0000)";
        } else if (s[i] && strchr("-0123456789", s[i])) {
            next = i + strspn(s + i, "+-.eE0123456789");
            if (is_too_large(s + i, next - i, &integer))
                what = "a number that is out of range";
        }
        if (!what)
            xd_buf_append(out, s + i, next - i);
        else if (integer && next - i <= JINJA_INT_DIGITS)
            xd_buf_printf(out, "\"\\u0000%.*s\"", (int)(next - i), s + i);
        else
            xd_buf_printf(out, "\"\\u0000%s (line %zu, column %zu)\"", what, line, i - line_begin + 1);
    }
    return out->failed ? xd_fail(err, XD_NOMEM, 0, "out of memory for %s", whole) : XD_OK;
}

/* What is wrong with the value or with one inside, in words; NULL: nothing. */
static const char *unheld_in(const json_t *v, bool may_be_large)
{
    const char *key, *found = NULL;
    size_t i;
    json_t *item;
    if (json_is_string(v) && json_string_length(v) && !json_string_value(v)[0]) {
        found = json_string_value(v) + 1;
        return !strchr("-0123456789", *found) ? found : may_be_large ? NULL : "a number that is out of range";
    }
    if (json_is_array(v))
        json_array_foreach ((json_t *)(uintptr_t)v, i, item)
            if ((found = unheld_in(item, may_be_large)))
                break;
    if (json_is_object(v))
        json_object_foreach ((json_t *)(uintptr_t)v, key, item)
            if ((found = unheld_in(item, may_be_large)))
                break;
    return found;
}

/* What shells make of a text that was JSON; NULL: something else. */
static const char *shell_fault(const char *text, size_t len)
{
    if (text[0] == '\'') /* cmd.exe's only quotes are double ones */
        return "begins with a single quote, which Windows' cmd.exe passes on: put it between double quotes, and \\ "
               "before those within";
    if (len >= 2 && (!memcmp(text, "\xff\xfe", 2) || !memcmp(text, "\xfe\xff", 2) || !text[0] || !text[1]))
        return "is UTF-16, as PowerShell's > writes files: send it as UTF-8";
    return NULL;
}

static xd_status syntax_error(const char *what, const json_error_t *e, xd_err *err)
{
    if (json_error_code(e) == json_error_out_of_memory)
        return xd_fail(err, XD_NOMEM, 0, "out of memory for %s", what);
    return xd_fail_field(err, XD_BAD_REQUEST, NULL, "invalid_json", "%s is not valid JSON: %s (line %d, column %d)",
                         what, e->text, e->line, e->column);
}

/* what: the text's name, for messages. */
static xd_status parse_object(const char *what, const char *text, size_t len, json_t **ret, xd_err *err)
{
    if (len >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) /* some editors and shells begin every text with it */
        text += 3, len -= 3;
    if (!len)
        return xd_fail_field(err, XD_BAD_REQUEST, NULL, "invalid_json", "%s is empty: a JSON object is expected", what);
    const char *shell = shell_fault(text, len);
    if (shell)
        return xd_fail_field(err, XD_BAD_REQUEST, NULL, "invalid_json", "%s %s", what, shell);
    XD_CLEANUP(xd_buf_free) xd_buf clean = {0};
    if (!xd_utf8_sanitize(&clean, text, len))
        return xd_fail(err, XD_NOMEM, 0, "out of memory for %s", what);
    xd_status st = check_shape(what, clean.data, clean.len, err);
    if (st)
        return st;
    mend_surrogates(clean.data, clean.len);
    json_error_t e;
    const size_t flags = JSON_REJECT_DUPLICATES | JSON_DECODE_ANY;
    json_t *root = json_loadb(clean.data, clean.len, flags, &e);
    enum json_error_code code = root ? json_error_unknown : json_error_code(&e);
    if (code == json_error_numeric_overflow || code == json_error_null_character ||
        code == json_error_null_byte_in_key) {
        XD_CLEANUP(xd_buf_free) xd_buf held = {0};
        if ((st = replace_unheld(what, clean.data, clean.len, &held, err)))
            return st;
        root = json_loadb(held.data, held.len, flags | JSON_ALLOW_NUL, &e);
    }
    if (!root)
        return syntax_error(what, &e, err);
    if (!json_is_object(root)) {
        xd_fail_field(err, XD_BAD_REQUEST, NULL, "invalid_json", "%s must be a JSON object, not %s", what,
                      json_kind_name(root));
        json_decref(root);
        return XD_BAD_REQUEST;
    }
    *ret = root;
    return XD_OK;
}

xd_status body_parse(const char *body, size_t len, json_t **ret, xd_err *err)
{
    return parse_object("the body", body, len, ret, err);
}

static xd_status check_held(const char *name, const json_t *v, bool may_be_large, xd_err *err)
{
    const char *wrong = unheld_in(v, may_be_large);
    return wrong ? xd_fail_field(err, XD_BAD_REQUEST, name, "invalid_value", "'%s' holds %s", name, wrong) : XD_OK;
}

xd_status fields_parse_text(const char *name, const char *text, json_t **ret, xd_err *err)
{
    char what[64];
    snprintf(what, sizeof what, "'%s'", name);
    json_t *root = NULL;
    xd_status st = parse_object(what, text, strlen(text), &root, err);
    if (!st)
        st = check_held(name, root, false, err);
    if (st == XD_BAD_REQUEST)
        snprintf(err->param, sizeof err->param, "%s", name);
    if (st) {
        json_decref(root);
        return st;
    }
    *ret = root;
    return XD_OK;
}

xd_status fields_wrong_type(xd_err *err, const char *name, const char *want, const json_t *v)
{
    if (!v)
        return xd_fail_field(err, XD_BAD_REQUEST, name, "missing_required_parameter", "'%s' is missing", name);
    return xd_fail_field(err, XD_BAD_REQUEST, name, "invalid_type", "'%s' must be %s, not %s", name, want,
                         json_kind_name(v));
}

static xd_status wrong_type(const field *f, const char *want, const json_t *v, xd_err *err)
{
    return xd_fail_field(err, XD_BAD_REQUEST, f->name, "invalid_type", "'%s' must be %s, not %s%s", f->name, want,
                         json_kind_name(v),
                         f->kind == FIELD_INT && json_is_real(v) ? " with a fraction or beyond 2^53" : "");
}

static xd_status read_int(const field *f, const json_t *v, int64_t *dst, xd_err *err)
{
    double real = json_real_value(v);
    bool integral =
        json_is_real(v) && trunc(real) == real && fabs(real) <= 0x1p53; /* 40.0, as some languages write 40 */
    if (!json_is_integer(v) && !integral)
        return wrong_type(f, "an integer", v, err);
    int64_t n = integral ? (int64_t)real : json_integer_value(v);
    if ((double)n < f->min && f->max >= INT32_MAX) /* the upper end is no limit that anybody meets */
        return xd_fail_field(err, XD_BAD_REQUEST, f->name, "invalid_value", "'%s' must be at least %.0f, not %lld",
                             f->name, f->min, (long long)n);
    if ((double)n < f->min || (double)n > f->max)
        return xd_fail_field(err, XD_BAD_REQUEST, f->name, "invalid_value",
                             "'%s' must be between %.0f and %.0f, not %lld", f->name, f->min, f->max, (long long)n);
    *dst = n;
    return XD_OK;
}

static xd_status read_real(const field *f, const json_t *v, double *dst, xd_err *err)
{
    if (!json_is_number(v))
        return wrong_type(f, "a number", v, err);
    double n = json_number_value(v);
    if (!isfinite(n) || n < f->min || n > f->max)
        return xd_fail_field(err, XD_BAD_REQUEST, f->name, "invalid_value", "'%s' must be between %g and %g, not %g",
                             f->name, f->min, f->max, n);
    *dst = n;
    return XD_OK;
}

/* Clients send many fields they know with the value that switches them off. */
static bool is_without_effect(const field *f, const json_t *v, const json_t *obj)
{
    if (json_is_false(v) || (json_is_string(v) && !json_string_length(v)) || (json_is_array(v) && !json_array_size(v)))
        return true;
    if (f->kind != FIELD_REFUSED && json_is_number(v) && json_number_value(v) >= f->min &&
        json_number_value(v) <= f->max)
        return true;
    if (f->kind == FIELD_OFF)
        return json_is_object(v) && !json_object_size(v);
    const json_t *same = f->kind == FIELD_OTHER ? json_object_get(obj, f->why) : NULL;
    return json_equal(v, same) ||
           (json_is_number(v) && json_is_number(same) && json_number_value(v) == json_number_value(same));
}

static xd_status read_one(const field *f, const json_t *v, const json_t *obj, void *dst, xd_err *err)
{
    void *at = (char *)dst + f->offset;
    switch (f->kind) {
    case FIELD_BOOL:
        if (!json_is_boolean(v))
            return wrong_type(f, "a boolean", v, err);
        *(bool *)at = json_is_true(v);
        return XD_OK;
    case FIELD_INT: return read_int(f, v, at, err);
    case FIELD_REAL: return read_real(f, v, at, err);
    case FIELD_STRING:
        if (!json_is_string(v))
            return wrong_type(f, "a string", v, err);
        *(const char **)at = json_string_value(v);
        return XD_OK;
    case FIELD_ARRAY:
    case FIELD_EXACT_ARRAY:
        if (!json_is_array(v))
            return wrong_type(f, "an array", v, err);
        *(const json_t **)at = v;
        return XD_OK;
    case FIELD_OBJECT:
    case FIELD_EXACT_OBJECT:
        if (!json_is_object(v))
            return wrong_type(f, "an object", v, err);
        *(const json_t **)at = v;
        return XD_OK;
    case FIELD_ANY: *(const json_t **)at = v; return XD_OK;
    case FIELD_OFF:
    case FIELD_REFUSED:
    case FIELD_OTHER:
        return is_without_effect(f, v, obj) ? XD_OK
                                            : xd_fail_field(err, XD_BAD_REQUEST, f->name, "unsupported_parameter",
                                                            "'%s' is not supported%s%s", f->name,
                                                            !f->why                  ? ""
                                                            : f->kind == FIELD_OTHER ? ": use "
                                                                                     : ": ",
                                                            f->why ? f->why : "");
    }
    return XD_OK;
}

static bool is_refused(const field *f)
{
    return f->kind == FIELD_OFF || f->kind == FIELD_REFUSED || f->kind == FIELD_OTHER;
}

/* What the client may have meant. */
static const char *nearest(const char *name, const field *table, size_t n, unsigned where)
{
    const char *best = NULL;
    size_t least = strlen(name) / 4 + 1;
    for (size_t i = 0; i < n; i++) {
        size_t d = (table[i].where & where) && !is_refused(&table[i]) ? xd_edit_distance(name, table[i].name) : least;
        if (d < least) {
            least = d;
            best = table[i].name;
        }
    }
    return best;
}

static void log_unknown(const char *name, const char *near)
{
    if (near)
        xd_log_info("a client's field '%s' is not known and ignored; did you mean '%s'?", name, near);
    else
        xd_log_info("a client's field '%s' is not known and ignored", name);
}

xd_status fields_read(const json_t *obj, const field *table, size_t n, unsigned where, notes *said, void *dst,
                      xd_err *err)
{
    const char *key;
    json_t *value;
    json_object_foreach ((json_t *)(uintptr_t)obj, key, value) {
        const field *f = NULL;
        for (size_t i = 0; i < n && !f; i++)
            if ((table[i].where & where) && strcmp(table[i].name, key) == 0)
                f = &table[i];
        if (!f) {
            if (said && !json_is_null(value) && notes_first_field(said, key))
                log_unknown(key, nearest(key, table, n, where));
            continue;
        }
        if (json_is_null(value))
            continue;
        xd_status st = check_held(f->name, value, f->kind == FIELD_EXACT_ARRAY || f->kind == FIELD_EXACT_OBJECT, err);
        if (!st)
            st = read_one(f, value, obj, dst, err);
        if (st)
            return st;
    }
    return XD_OK;
}
