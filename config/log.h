/* log.h - how any room says something to the operator without knowing where it goes.
 *
 * The daemon sets one sink at start (journal, terminal, JSON); until then nothing is said, so libraries and their tests are
 * quiet. Errors of libraries are returned, not logged: only daemon/ and api/ report them, once. Any thread may log. */
#ifndef CONFIG_LOG_H
#define CONFIG_LOG_H

#include <stdbool.h>
#include <stddef.h>

#include "config/config.h"

/* A structured field beside the message; key in upper case ("REQUEST_ID"). */
typedef struct xd_log_field {
    const char *key, *value;
    bool is_number; /* the value is one, as JSON writes it */
    bool is_said;   /* the message holds it already */
} xd_log_field;

/* `message` is one line of clean UTF-8. Called by any thread, one at a time for a given sink's own locking. */
typedef void (*xd_log_sink)(void *ctx, int level, const char *message, const xd_log_field *fields, size_t fields_count);

/* Sets where messages go and how much is said (CONF_LOG_*); the sink must outlive all logging. NULL: nowhere. Set it before
 * other threads start; the level may change at any time. */
void xd_log_set_sink(xd_log_sink sink, void *ctx);
void xd_log_set_level(int level);
bool xd_log_enabled(int level);

/* One message, without a line end; any thread. What is above the level is not formatted. Fields go to sinks that have a place for them. */
void xd_log(int level, const char *fmt, ...) XD_PRINTF(2, 3);
void xd_log_with(int level, const xd_log_field *fields, size_t fields_count, const char *fmt, ...) XD_PRINTF(4, 5);

#define xd_log_error(...) xd_log(CONF_LOG_ERROR, __VA_ARGS__)
#define xd_log_warn(...)  xd_log(CONF_LOG_WARN, __VA_ARGS__)
#define xd_log_info(...)  xd_log(CONF_LOG_INFO, __VA_ARGS__)
/* Arguments are evaluated only when debug messages are on. */
#define xd_log_debug(...)                        \
    do {                                         \
        if (xd_log_enabled(CONF_LOG_DEBUG))      \
            xd_log(CONF_LOG_DEBUG, __VA_ARGS__); \
    } while (0)

#endif
