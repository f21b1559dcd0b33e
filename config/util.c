/* util.c - byte buffer, UTF-8, sizes in words and names that are alike: see util.h. */
#include "config/util.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

bool xd_buf_reserve(xd_buf *b, size_t extra)
{
    if (b->failed)
        return false;
    size_t need;
    if (!xd_add_size(&need, b->len, extra) || !xd_add_size(&need, need, 1)) {
        b->failed = true;
        return false;
    }
    if (need <= b->cap)
        return true;
    size_t cap = XD_MAX(need, XD_MAX(b->cap + b->cap / 2, (size_t)64));
    char *data = realloc(b->data, cap);
    if (!data) {
        b->failed = true;
        return false;
    }
    b->data = data;
    b->cap = cap;
    return true;
}

bool xd_buf_append(xd_buf *b, const void *data, size_t len)
{
    if (!xd_buf_reserve(b, len))
        return false;
    if (len)
        memcpy(b->data + b->len, data, len);
    b->len += len;
    b->data[b->len] = 0;
    return true;
}

bool xd_buf_puts(xd_buf *b, const char *s)
{
    return xd_buf_append(b, s, strlen(s));
}
bool xd_buf_putc(xd_buf *b, char c)
{
    return xd_buf_append(b, &c, 1);
}

bool xd_buf_printf(xd_buf *b, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0 || !xd_buf_reserve(b, (size_t)n)) {
        b->failed = true;
        return false;
    }
    va_start(ap, fmt);
    vsnprintf(b->data + b->len, (size_t)n + 1, fmt, ap);
    va_end(ap);
    b->len += (size_t)n;
    return true;
}

void xd_buf_clear(xd_buf *b)
{
    b->len = 0;
    b->failed = false;
    if (b->data)
        b->data[0] = 0;
}

void xd_buf_free(xd_buf *b)
{
    free(b->data);
    *b = (xd_buf){0};
}

char *xd_buf_steal(xd_buf *b, size_t *ret_len)
{
    if (!xd_buf_append(b, "", 0)) {
        xd_buf_free(b);
        return NULL;
    }
    char *data = b->data;
    if (ret_len)
        *ret_len = b->len;
    *b = (xd_buf){0};
    return data;
}

int xd_utf8_seq(const char *s, size_t len)
{
    const unsigned char *u = (const unsigned char *)s;
    unsigned char c = u[0];
    if (c < 0x80)
        return 1;
    size_t n;
    unsigned char lo = 0x80, hi = 0xBF; /* allowed range of the second byte: table 3-7 */
    if (c >= 0xC2 && c <= 0xDF) {
        n = 2;
    } else if (c >= 0xE0 && c <= 0xEF) {
        n = 3;
        lo = c == 0xE0 ? 0xA0 : 0x80;
        hi = c == 0xED ? 0x9F : 0xBF;
    } else if (c >= 0xF0 && c <= 0xF4) {
        n = 4;
        lo = c == 0xF0 ? 0x90 : 0x80;
        hi = c == 0xF4 ? 0x8F : 0xBF;
    } else {
        return 0;
    }
    for (size_t i = 1; i < n; i++) {
        if (i >= len)
            return -1;
        if (u[i] < lo || u[i] > hi)
            return 0;
        lo = 0x80;
        hi = 0xBF;
    }
    return (int)n;
}

/* Length of the maximal ill-formed subpart at s: the bytes that one U+FFFD stands for (at least 1). */
static size_t bad_subpart(const char *s, size_t len)
{
    for (size_t n = XD_MIN(len, (size_t)3); n > 1; n--)
        if (xd_utf8_seq(s, n) < 0)
            return n;
    return 1;
}

size_t xd_utf8_count(const char *s, size_t len)
{
    size_t n = 0;
    for (size_t i = 0; i < len; i++)
        n += ((unsigned char)s[i] & 0xC0) != 0x80;
    return n;
}

bool xd_utf8_valid(const char *s, size_t len)
{
    for (size_t i = 0; i < len;) {
        int n = (unsigned char)s[i] < 0x80 ? 1 : xd_utf8_seq(s + i, len - i);
        if (n <= 0)
            return false;
        i += (size_t)n;
    }
    return true;
}

bool xd_utf8_sanitize(xd_buf *out, const char *s, size_t len)
{
    size_t i = 0;
    while (i < len) {
        size_t good = i;
        int n;
        while (good < len && (n = xd_utf8_seq(s + good, len - good)) > 0)
            good += (size_t)n;
        xd_buf_append(out, s + i, good - i);
        i = good;
        if (i < len) {
            xd_buf_puts(out, "\xEF\xBF\xBD");
            i += bad_subpart(s + i, len - i);
        }
    }
    return !out->failed;
}

size_t xd_utf8_incomplete_tail(const char *s, size_t len)
{
    for (size_t n = 1; n <= 3 && n <= len; n++) {
        unsigned char c = (unsigned char)s[len - n];
        if ((c & 0xC0) == 0x80)
            continue;
        return xd_utf8_seq(s + len - n, n) < 0 ? n : 0;
    }
    return 0;
}

bool xd_parse_bytes(const char *text, uint64_t *ret)
{
    static const struct {
        const char *unit;
        double factor;
    } units[] = {
        {"", 1},
        {"B", 1},
        {"K", 1024.},
        {"KiB", 1024.},
        {"KB", 1e3},
        {"M", 1048576.},
        {"MiB", 1048576.},
        {"MB", 1e6},
        {"G", 1073741824.},
        {"GiB", 1073741824.},
        {"GB", 1e9},
        {"T", 1099511627776.},
        {"TiB", 1099511627776.},
        {"TB", 1e12},
    };
    if (!isdigit((unsigned char)*text))
        return false;
    char *end;
    errno = 0;
    unsigned long long whole = strtoull(text, &end, 10);
    double value = (double)whole;
    bool exact = *end != '.';
    if (errno)
        return false;
    if (!exact) {
        char *fraction = end + 1;
        if (!isdigit((unsigned char)*fraction))
            return false;
        double scale = 0.1;
        for (end = fraction; isdigit((unsigned char)*end); end++, scale /= 10)
            value += (*end - '0') * scale;
    }
    while (*end == ' ')
        end++;
    for (size_t i = 0; i < XD_ARRAY_LEN(units); i++) {
        if (strcasecmp(end, units[i].unit))
            continue;
        if (exact)
            return xd_mul_u64(ret, whole, (uint64_t)units[i].factor);
        value *= units[i].factor;
        if (value >= 18446744073709551615.0)
            return false;
        *ret = (uint64_t)llround(value);
        return true;
    }
    return false;
}

char *xd_format_bytes(char *out, size_t cap, uint64_t bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    double v = (double)bytes;
    size_t u = 0;
    while (v >= 1024 && u + 1 < XD_ARRAY_LEN(units)) {
        v /= 1024;
        u++;
    }
    snprintf(out, cap, u ? "%.2f %s" : "%.0f %s", v, units[u]);
    return out;
}

bool xd_is_own_file(const char *path, uint64_t magic)
{
    struct stat sb;
    if (stat(path, &sb)) /* nothing there, or opening it will say what is wrong */
        return true;
    if (!S_ISREG(sb.st_mode)) /* not opened: a pipe would wait, and a device may act on it */
        return false;
    uint64_t first;
    XD_CLEANUP(xd_closep) int fd = open(path, O_RDONLY | O_CLOEXEC);
    return sb.st_size == 0 || (fd >= 0 && read(fd, &first, sizeof first) == sizeof first && first == magic);
}

void xd_cond_init(pthread_cond_t *c)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(c, &attr);
    pthread_condattr_destroy(&attr);
}

size_t xd_edit_distance(const char *a, const char *b)
{
    enum { LIMIT = 48 };
    size_t la = strnlen(a, LIMIT), lb = strnlen(b, LIMIT);
    unsigned char d[LIMIT + 1][LIMIT + 1];
    for (size_t i = 0; i <= la; i++)
        d[i][0] = (unsigned char)i;
    for (size_t j = 0; j <= lb; j++)
        d[0][j] = (unsigned char)j;
    for (size_t i = 1; i <= la; i++)
        for (size_t j = 1; j <= lb; j++) {
            size_t best = d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
            best = XD_MIN(best, d[i - 1][j] + 1u);
            best = XD_MIN(best, d[i][j - 1] + 1u);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                best = XD_MIN(best, d[i - 2][j - 2] + 1u);
            d[i][j] = (unsigned char)best;
        }
    return d[la][lb];
}

bool xd_is_lfs_pointer(const void *data, size_t n)
{
    static const char head[] = "version https://git-lfs.github.com/spec/";
    return n >= sizeof head - 1 && !memcmp(data, head, sizeof head - 1);
}
