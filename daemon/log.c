/* log.c - where log messages go: the journal with fields, coloured lines on a terminal, plain lines, or JSON lines.
 *
 * `auto` takes the journal when stderr is connected to it (JOURNAL_STREAM names the same socket, as systemd documents), so a
 * redirected or piped stderr gets lines. One write() a message: lines of several threads do not mix. */
#include <jansson.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <syslog.h>
#include <systemd/sd-journal.h>
#include <time.h>
#include <unistd.h>

#include "daemon/daemon_priv.h"

#define JOURNAL_SOCKET "/run/systemd/journal/socket"

static const char *const level_names[] = {"error", "warn", "info", "debug"};

static bool stderr_is_journal(void)
{
    const char *stream = getenv("JOURNAL_STREAM");
    unsigned long long dev, ino;
    struct stat st;
    return stream && sscanf(stream, "%llu:%llu", &dev, &ino) == 2 && !fstat(STDERR_FILENO, &st) && st.st_dev == dev &&
           st.st_ino == ino;
}

static void write_all(const xd_buf *line)
{
    if (line->data && write(STDERR_FILENO, line->data, line->len) < 0)
        return; /* nowhere left to say so */
}

static void sink_journal(void *ctx, int level, const char *message, const xd_log_field *fields, size_t fields_count)
{
    (void)ctx;
    static const int priorities[] = {LOG_ERR, LOG_WARNING, LOG_INFO, LOG_DEBUG};
    enum { MAX_FIELDS = 24 };
    xd_buf parts[MAX_FIELDS + 2] = {{0}};
    struct iovec iov[MAX_FIELDS + 2];
    size_t n = 0;
    xd_buf_printf(&parts[n++], "MESSAGE=%s", message);
    xd_buf_printf(&parts[n++], "PRIORITY=%d", priorities[level]);
    for (size_t i = 0; i < fields_count && i < MAX_FIELDS; i++)
        xd_buf_printf(&parts[n++], "EXPERTD_%s=%s", fields[i].key, fields[i].value);
    bool ok = true;
    for (size_t i = 0; i < n; i++) {
        ok = ok && !parts[i].failed;
        iov[i] = (struct iovec){parts[i].data, parts[i].len};
    }
    if (!ok || sd_journal_sendv(iov, (int)n) < 0) {
        xd_buf line = {0};
        xd_buf_printf(&line, "<%d>%s\n", priorities[level],
                      message); /* sd-daemon(3) prefix: the journal reads stderr too */
        write_all(&line);
        xd_buf_free(&line);
    }
    for (size_t i = 0; i < n; i++)
        xd_buf_free(&parts[i]);
}

static void put_time(xd_buf *out)
{
    struct timespec ts;
    struct tm tm;
    char text[40];
    clock_gettime(CLOCK_REALTIME, &ts);
    gmtime_r(&ts.tv_sec, &tm);
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &tm);
    xd_buf_printf(out, "%s.%03ldZ", text, ts.tv_nsec / 1000000);
}

static void sink_plain(void *ctx, int level, const char *message, const xd_log_field *fields, size_t fields_count)
{
    static const char *const colours[] = {"\033[31m", "\033[33m", "", "\033[2m"};
    bool colour = *(const bool *)ctx;
    xd_buf line = {0};
    put_time(&line);
    xd_buf_printf(&line, " %s%-5s%s %s", colour ? colours[level] : "", level_names[level],
                  colour && *colours[level] ? "\033[0m" : "", message);
    for (size_t i = 0; i < fields_count; i++) {
        if (fields[i].is_said)
            continue;
        xd_buf_putc(&line, ' ');
        for (const char *k = fields[i].key; *k; k++)
            xd_buf_putc(&line, *k >= 'A' && *k <= 'Z' ? (char)(*k - 'A' + 'a') : *k);
        xd_buf_printf(&line, "=%s", fields[i].value);
    }
    xd_buf_putc(&line, '\n');
    write_all(&line);
    xd_buf_free(&line);
}

static void sink_json(void *ctx, int level, const char *message, const xd_log_field *fields, size_t fields_count)
{
    (void)ctx;
    xd_buf when = {0};
    put_time(&when);
    json_t *o = json_pack("{s:s, s:s, s:s}", "time", when.data ? when.data : "", "level", level_names[level], "message",
                          message);
    for (size_t i = 0; o && i < fields_count; i++)
        json_object_set_new(o, fields[i].key,
                            fields[i].is_number ? json_loads(fields[i].value, JSON_DECODE_ANY, NULL)
                                                : json_string(fields[i].value));
    char *text = o ? json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(15)) : NULL;
    if (text) {
        xd_buf line = {0};
        xd_buf_printf(&line, "%s\n", text);
        write_all(&line);
        xd_buf_free(&line);
    }
    free(text);
    json_decref(o);
    xd_buf_free(&when);
}

int log_setup(const config *cfg)
{
    static const bool coloured = true, plain = false;
    int format = cfg->log.format;
    if (format == CONF_LOGFMT_AUTO)
        format = stderr_is_journal() ? CONF_LOGFMT_JOURNAL : CONF_LOGFMT_PLAIN;
    /* sd_journal_sendv() says that all went well where there is no journal, in a container say. */
    bool no_journal = format == CONF_LOGFMT_JOURNAL && access(JOURNAL_SOCKET, W_OK);
    xd_log_set_level(cfg->log.level);
    if (format == CONF_LOGFMT_JOURNAL && !no_journal)
        xd_log_set_sink(sink_journal, NULL);
    else if (format == CONF_LOGFMT_JSON)
        xd_log_set_sink(sink_json, NULL);
    else
        xd_log_set_sink(sink_plain, (void *)(isatty(STDERR_FILENO) && !getenv("NO_COLOR") ? &coloured : &plain));
    if (no_journal)
        xd_log_warn("log.format = journal, and there is no journal here (" JOURNAL_SOCKET "): plain lines instead");
    return no_journal ? CONF_LOGFMT_PLAIN : format;
}
