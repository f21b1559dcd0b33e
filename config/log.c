/* log.c - hands messages to the one sink that the daemon has set.
 *
 * This is the process's only mutable global besides libc's own: a log that had to be passed through every call would be
 * passed by nobody. Formatting happens here, so every sink gets one clean line: broken UTF-8 becomes U+FFFD and control
 * characters '?', since messages quote what clients send. */
#include <stdatomic.h>

#include "config/log.h"

static xd_log_sink log_sink;
static void *log_ctx;
static atomic_int log_level = CONF_LOG_INFO; /* relaxed: a message more or less at the moment of change is harmless */

void xd_log_set_sink(xd_log_sink sink, void *ctx)
{
    log_sink = sink;
    log_ctx = ctx;
}

void xd_log_set_level(int level)
{
    atomic_store_explicit(&log_level, level, memory_order_relaxed);
}

bool xd_log_enabled(int level)
{
    return log_sink && level <= atomic_load_explicit(&log_level, memory_order_relaxed);
}

static void vlog(int level, const xd_log_field *fields, size_t fields_count, const char *fmt, va_list ap)
{
    char text[4096];
    int n = vsnprintf(text, sizeof text, fmt, ap);
    if (n < 0)
        return;
    XD_CLEANUP(xd_buf_free) xd_buf clean = {0};
    xd_utf8_sanitize(&clean, text, XD_MIN((size_t)n, sizeof text - 1));
    for (size_t i = 0; i < clean.len; i++)
        if ((unsigned char)clean.data[i] < 32 || clean.data[i] == 127)
            clean.data[i] = clean.data[i] == '\n' || clean.data[i] == '\t' ? ' ' : '?';
    log_sink(log_ctx, level, clean.data ? clean.data : "(out of memory while logging)", fields, fields_count);
}

void xd_log(int level, const char *fmt, ...)
{
    if (!xd_log_enabled(level))
        return;
    va_list ap;
    va_start(ap, fmt);
    vlog(level, NULL, 0, fmt, ap);
    va_end(ap);
}

void xd_log_with(int level, const xd_log_field *fields, size_t fields_count, const char *fmt, ...)
{
    if (!xd_log_enabled(level))
        return;
    va_list ap;
    va_start(ap, fmt);
    vlog(level, fields, fields_count, fmt, ap);
    va_end(ap);
}
