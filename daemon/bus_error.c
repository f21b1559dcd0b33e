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
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "daemon/daemon_priv.h"

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

static void say(const char *s)
{
    ssize_t n = write(STDERR_FILENO, s, strlen(s));
    (void)n; /* nowhere left to say so */
}

static void say_number(uintptr_t v)
{
    char digits[24], *p = digits + sizeof digits - 1;
    *p = 0;
    do
        *--p = (char)('0' + v % 10);
    while (v /= 10);
    say(p);
}

static void on_bus_error(int signo, siginfo_t *info, void *context)
{
    (void)context;
    static atomic_flag met = ATOMIC_FLAG_INIT; /* a handler has no other place to be first in */
    if (atomic_flag_test_and_set(&met))
        for (;;) /* another thread is ending the process */
            pause();
    char path[4096];
    uintptr_t offset = 0;
    if (!mapped_file((uintptr_t)info->si_addr, path, sizeof path, &offset)) {
        say("expertd: bus error outside of any file: memory that went bad, or a fault of this program\n");
        signal(signo, SIG_DFL);
        raise(signo);
        return;
    }
    say("expertd: cannot read '");
    say(path);
    say("' at byte ");
    say_number(offset);
    say(": the file became shorter while it was in use, or its disk failed. Stopping, since its weights are lost.\n");
    _exit(1);
}

void bus_error_setup(void)
{
    struct sigaction sa = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO};
    sigemptyset(&sa.sa_mask);
    sigaction(SIGBUS, &sa, NULL); /* cannot fail with these arguments */
}
