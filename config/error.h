/* error.h - the one error type of expertd.
 *
 * A function that can fail returns an xd_status (0 is XD_OK) and fills the optional `xd_err *err`, always its last
 * parameter. Results are the `ret` / `ret_*` parameters just before it and are untouched on failure. The bottom of the
 * call chain says what was tried and on what; the layers between may put a few words in front with xd_wrap().
 * Libraries never print, log errors or exit. */
#ifndef XD_ERROR_H
#define XD_ERROR_H

#include <stdarg.h>

/*    code          wire name ("type")          http  */
#define XD_STATUS_MAP(X)                         \
    X(OK, "ok", 200)                             \
    X(BAD_REQUEST, "invalid_request_error", 400) \
    X(UNAUTHORIZED, "authentication_error", 401) \
    X(FORBIDDEN, "permission_error", 403)        \
    X(NOT_FOUND, "not_found_error", 404)         \
    X(BAD_METHOD, "invalid_request_error", 405)  \
    X(TIMEOUT, "timeout_error", 408)             \
    X(TOO_LARGE, "invalid_request_error", 413)   \
    X(MEDIA_TYPE, "invalid_request_error", 415)  \
    X(BUSY, "rate_limit_error", 429)             \
    X(CANCELLED, "request_cancelled", 499)       \
    X(INTERNAL, "server_error", 500)             \
    X(IO, "server_error", 500)                   \
    X(UNSUPPORTED, "invalid_request_error", 400) \
    X(BAD_CONFIG, "configuration_error", 500)    \
    X(BAD_MODEL, "model_error", 500)             \
    X(NOMEM, "server_error", 503)                \
    X(UNAVAILABLE, "service_unavailable", 503)

typedef enum xd_status {
#define X(code, name, http) XD_##code,
    XD_STATUS_MAP(X)
#undef X
} xd_status;

typedef struct xd_err {
    xd_status status;
    int sys_errno;  /* 0 when no system call failed */
    char param[64]; /* the request field or configuration key at fault, or "" */
    char code[48];  /* OpenAI's error code ("context_length_exceeded"), or "" */
    char msg[768];  /* one line of UTF-8: what was tried, on what, and what would be right */
} xd_err;

#define XD_MUST_CHECK   __attribute__((warn_unused_result))
#define XD_PRINTF(f, a) __attribute__((format(printf, f, a)))

/* Fills *err (may be NULL) and returns `status`. With sys_errno != 0 its text is appended after ": "; to an
 * XD_NOMEM whose text says nothing of memory, VRAM or room, ": out of memory".
 * Broken UTF-8 in the text is replaced by U+FFFD and control characters by '?', so a message may be sent or logged as is. */
xd_status xd_fail(xd_err *err, xd_status status, int sys_errno, const char *fmt, ...) XD_PRINTF(4, 5);
xd_status xd_vfail(xd_err *err, xd_status status, int sys_errno, const char *fmt, va_list ap) XD_PRINTF(4, 0);

/* Names the field at fault and OpenAI's code of an error that xd_fail() has filled; either may be NULL. Returns err->status
 * (XD_INTERNAL when err is NULL, so a caller that cares keeps its own status). */
xd_status xd_fail_field(xd_err *err, xd_status status, const char *param, const char *code, const char *fmt, ...)
    XD_PRINTF(5, 6);

/* Puts "text: " in front of the message. Returns err->status, or XD_INTERNAL when err is NULL. */
xd_status xd_wrap(xd_err *err, const char *fmt, ...) XD_PRINTF(2, 3);

const char *xd_status_name(xd_status status); /* wire name, e.g. "invalid_request_error" */
int xd_status_http(xd_status status);         /* HTTP status code */

#endif
