/* value.c - one option's value: from text into the struct and back.
 *
 * Every type reads strictly (the whole text must be consumed, numbers must be in the row's range) and is written in the form
 * that reads back to the same value; the tests run every row through both. Percentages of RAM are resolved when they are read:
 * what --print-config shows is what will be used. */
#include <errno.h>
#include <math.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "config/options_priv.h"

static void *field(config *c, const conf_option *o)
{
    return (char *)c + o->offset;
}

static const void *field_const(const config *c, const conf_option *o)
{
    return (const char *)c + o->offset;
}

/* ---- text to value ---- */

static bool parse_bool(const char *text, bool *ret)
{
    static const char *const yes[] = {"yes", "true", "on", "1"}, *const no[] = {"no", "false", "off", "0"};
    for (size_t i = 0; i < XD_ARRAY_LEN(yes); i++) {
        if (!strcasecmp(text, yes[i])) {
            *ret = true;
            return true;
        }
        if (!strcasecmp(text, no[i])) {
            *ret = false;
            return true;
        }
    }
    return false;
}

static bool parse_int(const char *text, int64_t *ret)
{
    char *end;
    errno = 0;
    long long n = strtoll(text, &end, 10);
    if (end == text || *end || errno || !(*text == '-' || (*text >= '0' && *text <= '9')))
        return false;
    *ret = n;
    return true;
}

/* A decimal number at the start of `text` ("1.5s"): digits with at most one point; *ret_end is what follows. */
static bool parse_decimal(const char *text, double *ret, const char **ret_end)
{
    size_t digits = strspn(text, "0123456789");
    size_t n = digits;
    if (text[n] == '.') {
        size_t fraction = strspn(text + n + 1, "0123456789");
        digits += fraction;
        n += 1 + fraction;
    }
    char copy[64];
    if (!digits || n >= sizeof copy)
        return false;
    memcpy(copy, text, n);
    copy[n] = 0;
    *ret = strtod(copy, NULL);
    *ret_end = text + n;
    return isfinite(*ret);
}

static bool parse_real(const char *text, double *ret)
{
    const char *end;
    return parse_decimal(text, ret, &end) && !*end;
}

static bool parse_seconds(const char *text, double *ret)
{
    static const struct {
        const char *unit;
        double seconds;
    } units[] = {{"", 1}, {"s", 1}, {"sec", 1}, {"ms", 1e-3}, {"min", 60}, {"m", 60}, {"h", 3600}};
    const char *end;
    if (!parse_decimal(text, ret, &end))
        return false;
    while (*end == ' ')
        end++;
    for (size_t i = 0; i < XD_ARRAY_LEN(units); i++)
        if (!strcmp(end, units[i].unit)) {
            *ret *= units[i].seconds;
            return true;
        }
    return false;
}

static bool parse_ratio(const char *text, double *ret)
{
    const char *end;
    if (!parse_decimal(text, ret, &end))
        return false;
    while (*end == ' ')
        end++;
    if (!strcmp(end, "%"))
        *ret /= 100;
    else if (*end)
        return false;
    return true;
}

static uint64_t memory_total_bytes(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
    return pages > 0 && page_bytes > 0 ? (uint64_t)pages * (uint64_t)page_bytes : 0;
}

static bool parse_size(const conf_option *o, const char *text, uint64_t *ret)
{
    if ((o->flags & CONF_OF_MEMORY) && strchr(text, '%')) {
        double ratio;
        uint64_t total = memory_total_bytes();
        if (!parse_ratio(text, &ratio) || ratio > 1 || !total)
            return false;
        *ret = (uint64_t)(ratio * (double)total) & ~(uint64_t)4095;
        return true;
    }
    return xd_parse_bytes(text, ret) && *ret != CONF_AUTO_BYTES;
}

static int find_name(const char *const *names, const char *text)
{
    for (int i = 0; names[i]; i++)
        if (!strcasecmp(names[i], text))
            return i;
    return -1;
}

static bool in_range(const conf_option *o, double value)
{
    return value >= o->min && value <= o->max;
}

static xd_status set_string(config *c, const conf_option *o, const char *text)
{
    char *copy = strdup(text);
    if (!copy)
        return XD_NOMEM;
    char **slot = field(c, o);
    free(*slot);
    *slot = copy;
    return XD_OK;
}

bool conf_value_is_home(const char *text)
{
    return *text == '~' && (!text[1] || text[1] == '/');
}

static bool clean_text(const char *text, bool lines)
{
    for (const char *p = text; *p; p++)
        if ((unsigned char)*p < 32 && *p != '\t' && !(lines && *p == '\n'))
            return false;
    return true;
}

static xd_status set_special(config *c, const conf_option *o)
{
    switch (o->type) {
    case CONF_BYTES: *(uint64_t *)field(c, o) = CONF_AUTO_BYTES; return XD_OK;
    case CONF_I32: *(int32_t *)field(c, o) = (int32_t)o->special_value; return XD_OK;
    case CONF_U32:
    case CONF_SECONDS: *(uint32_t *)field(c, o) = (uint32_t)o->special_value; return XD_OK;
    default: *(double *)field(c, o) = o->special_value; return XD_OK;
    }
}

static xd_status bad(const conf_option *o, xd_buf *why)
{
    if (why) {
        xd_buf_puts(why, "must be ");
        conf_value_allowed(o, why);
    }
    return XD_BAD_CONFIG;
}

xd_status conf_value_set(config *c, const conf_option *o, const char *text, xd_buf *why)
{
    bool flag;
    int64_t whole;
    double real;
    uint64_t bytes;
    if (o->special && !strcasecmp(text, o->special))
        return set_special(c, o);
    switch (o->type) {
    case CONF_STRING:
        if (!clean_text(text, (o->flags & CONF_TEMPLATE) != 0)) {
            if (why)
                xd_buf_puts(why, "must not hold control characters");
            return XD_BAD_CONFIG;
        }
        if ((o->flags & (CONF_PATH | CONF_TEMPLATE)) && conf_value_is_home(text)) {
            if (why)
                xd_buf_puts(why, "~ is known to the shell alone, and not behind a =: write the whole path");
            return XD_BAD_CONFIG;
        }
        return set_string(c, o, text);
    case CONF_CHOICE: {
        int i = find_name(o->names, text);
        return i < 0 ? bad(o, why) : set_string(c, o, o->names[i]);
    }
    case CONF_ENUM: {
        int i = find_name(o->names, text);
        if (i < 0)
            return bad(o, why);
        *(int *)field(c, o) = i;
        return XD_OK;
    }
    case CONF_BOOL:
        if (!parse_bool(text, &flag))
            return bad(o, why);
        *(bool *)field(c, o) = flag;
        return XD_OK;
    case CONF_U32:
    case CONF_I32:
        if (!parse_int(text, &whole))
            return bad(o, why);
        if (o->special && (double)whole == o->special_value) /* the stored form reads back too: 0 for auto */
            return set_special(c, o);
        if (!in_range(o, (double)whole))
            return bad(o, why);
        if (o->type == CONF_U32)
            *(uint32_t *)field(c, o) = (uint32_t)whole;
        else
            *(int32_t *)field(c, o) = (int32_t)whole;
        return XD_OK;
    case CONF_SECONDS:
    case CONF_REAL:
    case CONF_REAL_SECONDS:
    case CONF_RATIO:
        if (!(o->type == CONF_REAL    ? parse_real(text, &real)
              : o->type == CONF_RATIO ? parse_ratio(text, &real)
                                      : parse_seconds(text, &real)) ||
            (o->type == CONF_SECONDS && real != floor(real)))
            return bad(o, why);
        if (o->special && real == o->special_value)
            return set_special(c, o);
        if (!in_range(o, real))
            return bad(o, why);
        if (o->type == CONF_SECONDS)
            *(uint32_t *)field(c, o) = (uint32_t)real;
        else
            *(double *)field(c, o) = real;
        return XD_OK;
    case CONF_BYTES:
        if (!parse_size(o, text, &bytes))
            return bad(o, why);
        /* "swap_space = 4" means gigabytes to users of other servers; four bytes help nobody. */
        if (bytes && bytes < 1024 && !strpbrk(text, "%")) {
            if (why)
                xd_buf_printf(why, "needs a unit: %lluGiB or %lluMiB, say", (unsigned long long)bytes,
                              (unsigned long long)bytes);
            return XD_BAD_CONFIG;
        }
        if (!in_range(o, (double)bytes))
            return bad(o, why);
        *(uint64_t *)field(c, o) = bytes;
        return XD_OK;
    }
    return XD_INTERNAL;
}

/* ---- value to text ---- */

/* The shortest of the forms with 6 to 17 digits that reads back to the same number. */
static void put_real(xd_buf *out, double value)
{
    char text[64];
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    if (strchr(text, 'e')) {
        snprintf(text, sizeof text, "%.17f", value);
        char *end = text + strlen(text);
        while (end[-1] == '0')
            *--end = 0;
        if (end[-1] == '.')
            end[-1] = 0;
    }
    xd_buf_puts(out, text);
}

static void put_ratio(xd_buf *out, double value)
{
    double pct = value * 100;
    if (pct == floor(pct) && pct / 100 == value)
        xd_buf_printf(out, "%.0f%%", pct);
    else
        put_real(out, value);
}

/* The largest binary unit that divides the size. */
static void put_bytes(xd_buf *out, uint64_t bytes)
{
    static const char *const units[] = {"", "KiB", "MiB", "GiB", "TiB"};
    size_t u = 0;
    while (bytes && bytes % 1024 == 0 && u + 1 < XD_ARRAY_LEN(units)) {
        bytes /= 1024;
        u++;
    }
    xd_buf_printf(out, "%llu%s", (unsigned long long)bytes, units[u]);
}

static void put_seconds(xd_buf *out, double s)
{
    if (s >= 3600 && fmod(s, 3600) == 0)
        xd_buf_printf(out, "%.0fh", s / 3600);
    else if (s >= 60 && fmod(s, 60) == 0)
        xd_buf_printf(out, "%.0fmin", s / 60);
    else if (s == floor(s))
        xd_buf_printf(out, "%.0f%s", s, s > 0 ? "s" : "");
    else {
        double ms = s * 1000;
        if (ms == floor(ms) && ms * 1e-3 == s) {
            xd_buf_printf(out, "%.0fms", ms);
        } else {
            put_real(out, s);
            xd_buf_puts(out, "s");
        }
    }
}

static bool is_special(const config *c, const conf_option *o)
{
    if (!o->special)
        return false;
    switch (o->type) {
    case CONF_BYTES: return *(const uint64_t *)field_const(c, o) == CONF_AUTO_BYTES;
    case CONF_I32: return *(const int32_t *)field_const(c, o) == (int32_t)o->special_value;
    case CONF_U32:
    case CONF_SECONDS: return *(const uint32_t *)field_const(c, o) == (uint32_t)o->special_value;
    default: return *(const double *)field_const(c, o) == o->special_value;
    }
}

void conf_value_format(const config *c, const conf_option *o, xd_buf *out)
{
    const void *p = field_const(c, o);
    if (is_special(c, o)) {
        xd_buf_puts(out, o->special);
        return;
    }
    switch (o->type) {
    case CONF_STRING:
    case CONF_CHOICE: xd_buf_puts(out, *(char *const *)p); break;
    case CONF_ENUM: xd_buf_puts(out, o->names[*(const int *)p]); break;
    case CONF_BOOL: xd_buf_puts(out, *(const bool *)p ? "yes" : "no"); break;
    case CONF_U32: xd_buf_printf(out, "%u", *(const uint32_t *)p); break;
    case CONF_I32: xd_buf_printf(out, "%d", *(const int32_t *)p); break;
    case CONF_SECONDS: put_seconds(out, *(const uint32_t *)p); break;
    case CONF_REAL: put_real(out, *(const double *)p); break;
    case CONF_REAL_SECONDS: put_seconds(out, *(const double *)p); break;
    case CONF_RATIO: put_ratio(out, *(const double *)p); break;
    case CONF_BYTES: put_bytes(out, *(const uint64_t *)p); break;
    }
}

void conf_value_allowed(const conf_option *o, xd_buf *out)
{
    switch (o->type) {
    case CONF_STRING: xd_buf_puts(out, o->flags & CONF_PATH ? "a path" : "text"); break;
    case CONF_CHOICE:
    case CONF_ENUM:
        xd_buf_puts(out, "one of ");
        for (size_t i = 0; o->names[i]; i++)
            xd_buf_printf(out, "%s%s", i ? ", " : "", o->names[i]);
        break;
    case CONF_BOOL: xd_buf_puts(out, "yes or no"); break;
    case CONF_U32:
    case CONF_I32: xd_buf_printf(out, "a whole number from %.0f to %.0f", o->min, o->max); break;
    case CONF_SECONDS:
    case CONF_REAL_SECONDS:
        xd_buf_puts(out, "a time from ");
        put_seconds(out, o->min);
        xd_buf_puts(out, " to ");
        put_seconds(out, o->max);
        xd_buf_puts(out, o->type == CONF_SECONDS ? " in whole seconds (30s, 5min, 1h)" : " (500ms, 30s, 5min)");
        break;
    case CONF_REAL:
        xd_buf_puts(out, "a number from ");
        put_real(out, o->min);
        xd_buf_puts(out, " to ");
        put_real(out, o->max);
        break;
    case CONF_RATIO:
        xd_buf_puts(out, "a share from ");
        put_ratio(out, o->min);
        xd_buf_puts(out, " to ");
        put_ratio(out, o->max);
        xd_buf_puts(out, " (90% or 0.9)");
        break;
    case CONF_BYTES:
        xd_buf_puts(out, "a size from ");
        put_bytes(out, (uint64_t)o->min);
        xd_buf_puts(out, " to ");
        put_bytes(out, (uint64_t)o->max);
        xd_buf_puts(out, o->flags & CONF_OF_MEMORY ? " (24GiB, 512MiB, or 80% of the RAM)" : " (24GiB, 512MiB)");
        break;
    }
    if (o->special)
        xd_buf_printf(out, ", or %s", o->special);
}

bool conf_value_equal(const config *a, const config *b, const conf_option *o)
{
    const void *pa = field_const(a, o), *pb = field_const(b, o);
    switch (o->type) {
    case CONF_STRING:
    case CONF_CHOICE: return !strcmp(*(char *const *)pa, *(char *const *)pb);
    case CONF_ENUM: return *(const int *)pa == *(const int *)pb;
    case CONF_BOOL: return *(const bool *)pa == *(const bool *)pb;
    case CONF_U32:
    case CONF_SECONDS: return *(const uint32_t *)pa == *(const uint32_t *)pb;
    case CONF_I32: return *(const int32_t *)pa == *(const int32_t *)pb;
    case CONF_BYTES: return *(const uint64_t *)pa == *(const uint64_t *)pb;
    default: return *(const double *)pa == *(const double *)pb;
    }
}
