/* bus_error.c - last words when mapped memory cannot be read.
 *
 * Model files are used where they lie, in the page cache. When such a file is cut short, or its disk fails, the next read of the missing
 * page is a SIGBUS in whatever thread computes. The weights are gone for every request, so the process ends; but it says which file
 * and where, and ends with a status after which the service manager starts it again. Requests are not saved one by one: workers are in
 * the middle of kernels then, and jumping out of them would leave their state behind.
 *
 * Everything here runs in a signal handler: system calls and own memory only. The file is found in /proc/self/maps, so that nobody has
 * to keep a list. A fault that belongs to no file is left to the default action. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#include "daemon/daemon_priv.h"

static int log_format; /* set before the handler is: a handler has no other place to find it */

typedef struct line_reader {
    int fd;
    ssize_t at, n;
    char buf[1024];
} line_reader;

static int next_char(line_reader *r)
{
    if (r->at == r->n) {
        do
            r->n = read(r->fd, r->buf, sizeof r->buf);
        while (r->n < 0 && errno == EINTR);
        r->at = 0;
        if (r->n <= 0)
            return -1;
    }
    return (unsigned char)r->buf[r->at++];
}

/* A hexadecimal number; *ret_end is the character behind it. */
static uintptr_t hex(line_reader *r, int *ret_end)
{
    uintptr_t v = 0;
    for (;;) {
        int c = next_char(r);
        int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
        if (digit < 0) {
            *ret_end = c;
            return v;
        }
        v = v * 16 + (uintptr_t)digit;
    }
}

/* The file mapped at `address`, and the place in it. Lines are "from-to perms offset device inode   path". */
static bool mapped_file(uintptr_t address, char *path, size_t cap, uintptr_t *ret_offset)
{
    line_reader r = {.fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC)};
    if (r.fd < 0)
        return false;
    bool found = false;
    for (int c = 0; c >= 0 && !found;) {
        uintptr_t from = hex(&r, &c), to = c == '-' ? hex(&r, &c) : 0;
        for (int spaces = 1; c >= 0 && c != '\n' && spaces < 2;) /* over the permissions */
            spaces += (c = next_char(&r)) == ' ';
        uintptr_t offset = c == ' ' ? hex(&r, &c) : 0;
        while (c >= 0 && c != '\n' && c != '/')
            c = next_char(&r);
        size_t n = 0;
        for (; c >= 0 && c != '\n'; c = next_char(&r))
            if (n + 1 < cap)
                path[n++] = (char)c;
        path[n] = 0;
        found = address >= from && address < to && n;
        *ret_offset = offset + (address - from);
    }
    close(r.fd);
    return found;
}

/* One line of the log, put together by hand. */
typedef struct line {
    char text[2 * PATH_MAX + 512];
    size_t n;
} line;

static void put(line *l, const char *s)
{
    for (; *s && l->n < sizeof l->text - 1; s++)
        l->text[l->n++] = *s;
}

static void put_number(line *l, uint64_t v, int width)
{
    char digits[24], *p = digits + sizeof digits - 1;
    *p = 0;
    do
        *--p = (char)('0' + v % 10), width--;
    while ((v /= 10) || width > 0);
    put(l, p);
}

/* A path in a JSON string: what such a string cannot hold as it is becomes a question mark. */
static void put_path(line *l, const char *path)
{
    for (char one[3] = ""; *path; path++) {
        bool quoted = *path == '"' || *path == '\\', bad = (unsigned char)*path < ' ';
        one[0] = bad ? '?' : quoted && log_format == CONF_LOGFMT_JSON ? '\\' : *path;
        one[1] = quoted && log_format == CONF_LOGFMT_JSON ? *path : 0;
        put(l, one);
    }
}

/* The date of a day since 1970, in the proleptic Gregorian calendar, as H. Hinnant, "chrono-compatible low-level date algorithms", has it:
 * gmtime_r() may not be called here. */
static void put_time(line *l)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    uint64_t s = (uint64_t)t.tv_sec % 86400, z = (uint64_t)t.tv_sec / 86400 + 719468, era = z / 146097,
             doe = z % 146097;
    uint64_t yoe = (doe - doe / 1460 + doe / 36524 - doe / 146096) / 365, doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    uint64_t mp = (5 * doy + 2) / 153, month = mp < 10 ? mp + 3 : mp - 9;
    const struct {
        uint64_t v;
        int width;
        const char *after;
    } parts[] = {{yoe + era * 400 + (month <= 2), 4, "-"},
                 {month, 2, "-"},
                 {doy - (153 * mp + 2) / 5 + 1, 2, "T"},
                 {s / 3600, 2, ":"},
                 {s / 60 % 60, 2, ":"},
                 {s % 60, 2, "."},
                 {(uint64_t)t.tv_nsec / 1000000, 3, "Z"}};
    for (size_t i = 0; i < XD_ARRAY_LEN(parts); i++) {
        put_number(l, parts[i].v, parts[i].width);
        put(l, parts[i].after);
    }
}

static void begin_line(line *l)
{
    l->n = 0;
    if (log_format == CONF_LOGFMT_JOURNAL) { /* sd-daemon(3): the journal reads stderr, too */
        put(l, "<3>");
    } else if (log_format == CONF_LOGFMT_JSON) {
        put(l, "{\"time\":\"");
        put_time(l);
        put(l, "\",\"level\":\"error\",\"message\":\"");
    } else {
        put_time(l);
        put(l, " error ");
    }
}

static void write_line(line *l)
{
    if (log_format == CONF_LOGFMT_JSON)
        put(l, "\"}");
    put(l, "\n");
    ssize_t n = write(STDERR_FILENO, l->text, l->n);
    (void)n; /* nowhere left to say so */
}

static void on_bus_error(int signo, siginfo_t *info, void *context)
{
    (void)context;
    static atomic_flag met = ATOMIC_FLAG_INIT; /* a handler has no other place to be first in */
    if (atomic_flag_test_and_set(&met))
        for (;;) /* another thread is ending the process */
            pause();
    static char path[PATH_MAX]; /* of the one thread that comes here, whose stack may be small */
    static line l;
    uintptr_t offset = 0;
    begin_line(&l);
    if (!mapped_file((uintptr_t)info->si_addr, path, sizeof path, &offset)) {
        put(&l, "bus error outside of any file: memory that went bad, or a fault of this program");
        write_line(&l);
        signal(signo, SIG_DFL);
        raise(signo);
        return;
    }
    put(&l, "cannot read '");
    put_path(&l, path);
    put(&l, "' at byte ");
    put_number(&l, offset, 0);
    put(&l, ": the file became shorter while it was in use, or its disk failed. Stopping, since its weights are lost.");
    write_line(&l);
    _exit(1);
}

void bus_error_setup(int format)
{
    log_format = format;
    struct sigaction sa = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO};
    sigemptyset(&sa.sa_mask);
    sigaction(SIGBUS, &sa, NULL); /* cannot fail with these arguments */
}
