/* error.c - filling and reading xd_err. Messages leave here as one line of well-formed UTF-8, so that a log line, a JSON
 * string or a terminal can take them as they are, whatever bytes a file or a client sent. */
#include "config/error.h"

#include <string.h>

#include "config/util.h"

static void set_msg(xd_err *err, const char *text, size_t len)
{
    size_t out = 0;
    for (size_t i = 0; i < len;) {
        int n = xd_utf8_seq(text + i, len - i);
        const char *piece = text + i;
        size_t piece_len = n > 0 ? (size_t)n : 1;
        if (n <= 0) {
            piece = "\xEF\xBF\xBD";
            n = 3;
        } else if ((unsigned char)*piece < 0x20 || *piece == 0x7F) {
            piece = *piece == '\n' || *piece == '\t' ? " " : "?";
        }
        if (out + (size_t)n >= sizeof err->msg)
            break;
        memcpy(err->msg + out, piece, (size_t)n);
        out += (size_t)n;
        i += piece_len;
    }
    err->msg[out] = 0;
}

xd_status xd_vfail(xd_err *err, xd_status status, int sys_errno, const char *fmt, va_list ap)
{
    if (!err)
        return status;
    char raw[sizeof err->msg];
    int n = vsnprintf(raw, sizeof raw, fmt, ap);
    size_t len = n < 0 ? 0 : XD_MIN((size_t)n, sizeof raw - 1);
    if (sys_errno) {
        char text[128];
        /* GNU strerror_r returns the text, which may lie outside the buffer. */
        const char *why = strerror_r(sys_errno, text, sizeof text);
        n = snprintf(raw + len, sizeof raw - len, ": %s", why);
        if (n > 0)
            len = XD_MIN(len + (size_t)n, sizeof raw - 1);
    }
    /* Who tried to allocate names what for; who reads it should not have to guess. */
    if (status == XD_NOMEM && !sys_errno && !strstr(raw, "memory") && !strstr(raw, "room") && !strstr(raw, "VRAM")) {
        n = snprintf(raw + len, sizeof raw - len, ": out of memory");
        len = XD_MIN(len + (size_t)n, sizeof raw - 1);
    }
    err->status = status;
    err->sys_errno = sys_errno;
    err->param[0] = err->code[0] = 0;
    set_msg(err, raw, len);
    return status;
}

xd_status xd_fail(xd_err *err, xd_status status, int sys_errno, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    xd_vfail(err, status, sys_errno, fmt, ap);
    va_end(ap);
    return status;
}

xd_status xd_fail_field(xd_err *err, xd_status status, const char *param, const char *code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    xd_vfail(err, status, 0, fmt, ap);
    va_end(ap);
    if (err) {
        snprintf(err->param, sizeof err->param, "%s", param ? param : "");
        snprintf(err->code, sizeof err->code, "%s", code ? code : "");
    }
    return status;
}

xd_status xd_wrap(xd_err *err, const char *fmt, ...)
{
    if (!err)
        return XD_INTERNAL;
    char text[sizeof err->msg], old[sizeof err->msg], raw[2 * sizeof err->msg + 2];
    memcpy(old, err->msg, sizeof old);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    int n = snprintf(raw, sizeof raw, "%s: %s", text, old);
    set_msg(err, raw, n < 0 ? 0 : XD_MIN((size_t)n, sizeof raw - 1));
    return err->status;
}

static const struct {
    const char *name;
    int http;
} statuses[] = {
#define X(code, name, http) {name, http},
    XD_STATUS_MAP(X)
#undef X
};

const char *xd_status_name(xd_status status)
{
    return statuses[(size_t)status < XD_ARRAY_LEN(statuses) ? status : XD_INTERNAL].name;
}

int xd_status_http(xd_status status)
{
    return statuses[(size_t)status < XD_ARRAY_LEN(statuses) ? status : XD_INTERNAL].http;
}
