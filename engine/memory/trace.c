/* trace.c - the trace file: writing beside the engine, reading with every bound checked. Replays are in trace_replay.c. */
#include "engine/memory/trace.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <pthread.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "config/log.h"

#define TRACE_MAGIC   0x3145434152544458ull /* "XDTRACE1" */
#define TRACE_VERSION 1u
#define BUFFER_BYTES  (1u << 20)
/* Limits of what is accepted from a file: far above any model, far below an overflow. */
#define MAX_LAYERS  4096u
#define MAX_EXPERTS (1u << 20)
#define MAX_FILE    (8ull << 30)

typedef struct trace_header {
    uint64_t magic, fingerprint;
    uint32_t version, n_layers;
} trace_header;
_Static_assert(sizeof(trace_header) == 24, "file layout");

/* --- recording --------------------------------------------------------------------------------------------------- */

struct trace_writer {
    int fd;
    uint32_t n_experts, record_bytes;
    uint64_t left_bytes;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    uint8_t *fill, *flush; /* the engine fills one buffer while the thread writes the other */
    uint32_t fill_n, flush_n;
    bool stop, cut, failed; /* failed: a write did */
    char *path;
    uint64_t n_steps; /* recorded */
    char why[PATH_MAX + 128];
};

static bool write_all(int fd, const void *data, size_t n)
{
    const char *p = data;
    while (n) {
        ssize_t k = write(fd, p, n);
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return false;
        p += k;
        n -= (size_t)k;
    }
    return true;
}

/* Call with the lock held, once. */
static void cut(trace_writer *w, const char *why)
{
    if (w->cut)
        return;
    w->cut = true;
    snprintf(w->why, sizeof w->why, "the trace '%s' ends before this: %s", w->path, why);
    xd_log_warn("%s", w->why);
}

static void *writer_main(void *arg)
{
    trace_writer *w = arg;
    pthread_mutex_lock(&w->lock);
    for (;;) {
        while (!w->flush_n && !w->stop)
            pthread_cond_wait(&w->wake, &w->lock);
        if (!w->flush_n)
            break;
        uint32_t n = w->flush_n;
        pthread_mutex_unlock(&w->lock);
        bool ok = write_all(w->fd, w->flush, n);
        int e = errno;
        char text[96];
        pthread_mutex_lock(&w->lock);
        w->flush_n = 0;
        w->failed = w->failed || !ok;
        if (!ok)
            cut(w, strerror_r(e, text, sizeof text));
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

static xd_status not_created(const char *path, xd_err *err)
{
    /* what another try would not mend is the configuration's fault */
    return xd_fail(err, errno == EIO || errno == ENOSPC || errno == ENOMEM ? XD_IO : XD_BAD_CONFIG, errno,
                   "creating the trace '%s' (pager.trace_file)", path);
}

xd_status trace_check_path(const char *path, xd_err *err)
{
    char dir[PATH_MAX];
    if (!xd_is_own_file(path, TRACE_MAGIC))
        return xd_fail(err, XD_BAD_CONFIG, 0, "pager.trace_file '%s' holds something else: it is not overwritten",
                       path);
    snprintf(dir, sizeof dir, "%s", path);
    bool can = access(path, F_OK) ? !access(dirname(dir), W_OK | X_OK) : !access(path, W_OK);
    return can ? XD_OK : not_created(path, err);
}

xd_status trace_writer_open(const char *path, uint64_t fingerprint, uint32_t n_layers, const uint32_t *layer_experts,
                            uint64_t max_bytes, trace_writer **ret, xd_err *err)
{
    uint32_t n_experts = 0;
    for (uint32_t l = 0; l < n_layers; l++)
        n_experts += layer_experts[l];
    uint32_t record = 1 + (n_experts + 7) / 8;
    if (n_layers > MAX_LAYERS || n_experts > MAX_EXPERTS)
        return xd_fail(err, XD_UNSUPPORTED, 0, "a trace holds at most %u layers and %u experts", MAX_LAYERS,
                       MAX_EXPERTS);
    trace_writer *w = calloc(1, sizeof *w);
    if (!w)
        return xd_fail(err, XD_NOMEM, 0, "trace writer");
    *w = (trace_writer){.fd = -1, .n_experts = n_experts, .record_bytes = record, .left_bytes = max_bytes};
    w->fill = malloc(BUFFER_BYTES);
    w->flush = malloc(BUFFER_BYTES);
    w->path = strdup(path);
    xd_status st = trace_check_path(path, err);
    w->fd = st ? -1 : open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    bool busy = w->fd >= 0 && flock(w->fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK;
    trace_header h = {TRACE_MAGIC, fingerprint, TRACE_VERSION, n_layers};
    if (!st && (!w->fill || !w->flush || !w->path))
        st = xd_fail(err, XD_NOMEM, 0, "trace writer");
    else if (!st && w->fd < 0)
        st = not_created(path, err);
    else if (!st && busy)
        st = xd_fail(err, XD_UNAVAILABLE, 0, "the trace '%s' is being recorded by another process", path);
    else if (!st && (ftruncate(w->fd, 0) || !write_all(w->fd, &h, sizeof h) ||
                     !write_all(w->fd, layer_experts, n_layers * sizeof *layer_experts)))
        st = xd_fail(err, XD_IO, errno, "writing the trace '%s'", path);
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->wake, NULL);
    int e = st ? 0 : pthread_create(&w->thread, NULL, writer_main, w);
    if (e)
        st = xd_fail(err, XD_NOMEM, e, "starting the trace writer");
    if (st) {
        if (w->fd >= 0)
            close(w->fd);
        free(w->fill);
        free(w->flush);
        free(w->path);
        free(w);
        return st;
    }
    *ret = w;
    return XD_OK;
}

/* Call with the lock held. */
static void swap_buffers(trace_writer *w)
{
    uint8_t *t = w->fill;
    w->fill = w->flush;
    w->flush = t;
    w->flush_n = w->fill_n;
    w->fill_n = 0;
    pthread_cond_signal(&w->wake);
}

void trace_writer_step(trace_writer *w, const uint32_t *counts, bool prefill)
{
    pthread_mutex_lock(&w->lock);
    if (w->fill_n + w->record_bytes > BUFFER_BYTES && !w->flush_n)
        swap_buffers(w);
    /* A record that has no room would leave a gap; a trace with a gap would lie about locality, so it ends there. */
    if (w->record_bytes > w->left_bytes)
        cut(w, "it has reached its largest size");
    else if (w->fill_n + w->record_bytes > BUFFER_BYTES)
        cut(w, "the disk could not follow");
    if (w->cut) {
        pthread_mutex_unlock(&w->lock);
        return;
    }
    uint8_t *r = w->fill + w->fill_n;
    r[0] = prefill ? TRACE_PREFILL : 0;
    memset(r + 1, 0, w->record_bytes - 1);
    for (uint32_t x = 0; x < w->n_experts; x++)
        if (counts[x])
            r[1 + x / 8] |= (uint8_t)(1u << (x % 8));
    w->fill_n += w->record_bytes;
    w->left_bytes -= w->record_bytes;
    w->n_steps++;
    pthread_mutex_unlock(&w->lock);
}

void trace_writer_close(trace_writer *w)
{
    if (!w)
        return;
    char text[96];
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    /* What waits in the buffer follows upon what was written unless that failed; the reader copes with a cut end. */
    bool whole = !w->failed && write_all(w->fd, w->fill, w->fill_n);
    if (close(w->fd) || (!whole && !w->failed))
        cut(w, strerror_r(errno, text, sizeof text));
    if (w->cut)
        xd_log_warn("%s; %llu steps had been recorded until then", w->why, (unsigned long long)w->n_steps);
    else
        xd_log_info("the trace '%s' holds %llu steps", w->path, (unsigned long long)w->n_steps);
    pthread_mutex_destroy(&w->lock);
    pthread_cond_destroy(&w->wake);
    free(w->fill);
    free(w->flush);
    free(w->path);
    free(w);
}

void trace_writer_why_cut(trace_writer *w, char *out, size_t cap)
{
    pthread_mutex_lock(&w->lock);
    snprintf(out, cap, "%.*s", (int)cap - 1, w->why);
    pthread_mutex_unlock(&w->lock);
}

/* --- reading ----------------------------------------------------------------------------------------------------- */

void trace_free(trace *t)
{
    if (!t)
        return;
    free(t->layer_experts);
    free(t->flags);
    free(t->starts);
    free(t->ids);
    free(t);
}

static xd_status unpack(trace *t, const uint8_t *records, uint32_t record_bytes, const char *path, xd_err *err)
{
    uint64_t n = 0;
    for (uint32_t s = 0; s < t->n_steps; s++)
        for (uint32_t b = 1; b < record_bytes; b++)
            n += (uint64_t)__builtin_popcount(records[(uint64_t)s * record_bytes + b]);
    t->flags = malloc(t->n_steps ? t->n_steps : 1);
    t->starts = malloc((t->n_steps + 1ull) * sizeof *t->starts);
    t->ids = malloc((n ? n : 1) * sizeof *t->ids);
    if (!t->flags || !t->starts || !t->ids)
        return xd_fail(err, XD_NOMEM, 0, "trace '%s'", path);
    n = 0;
    for (uint32_t s = 0; s < t->n_steps; s++) {
        const uint8_t *r = records + (uint64_t)s * record_bytes;
        t->flags[s] = r[0];
        t->starts[s] = n;
        for (uint32_t x = 0; x < t->n_experts; x++)
            if (r[1 + x / 8] >> (x % 8) & 1)
                t->ids[n++] = x;
    }
    t->starts[t->n_steps] = n;
    return XD_OK;
}

xd_status trace_load(const char *path, trace **ret, xd_err *err)
{
    XD_CLEANUP(trace_freep) trace *t = calloc(1, sizeof *t);
    XD_CLEANUP(xd_fclosep) FILE *f = fopen(path, "re");
    struct stat sb;
    trace_header h;
    if (!t)
        return xd_fail(err, XD_NOMEM, 0, "trace '%s'", path);
    if (!f || fstat(fileno(f), &sb))
        return xd_fail(err, errno == ENOENT ? XD_NOT_FOUND : XD_IO, errno, "opening the trace '%s'", path);
    if (fread(&h, sizeof h, 1, f) != 1 || h.magic != TRACE_MAGIC)
        return xd_fail(err, XD_BAD_REQUEST, 0, "'%s' is not a routing trace", path);
    if (h.version != TRACE_VERSION || !h.n_layers || h.n_layers > MAX_LAYERS || (uint64_t)sb.st_size > MAX_FILE)
        return xd_fail(err, XD_BAD_REQUEST, 0, "trace '%s': version %u, %u layers, %lld bytes are not accepted", path,
                       h.version, h.n_layers, (long long)sb.st_size);
    t->fingerprint = h.fingerprint;
    t->n_layers = h.n_layers;
    t->layer_experts = malloc(h.n_layers * sizeof *t->layer_experts);
    if (!t->layer_experts)
        return xd_fail(err, XD_NOMEM, 0, "trace '%s'", path);
    if (fread(t->layer_experts, sizeof *t->layer_experts, h.n_layers, f) != h.n_layers)
        return xd_fail(err, XD_BAD_REQUEST, 0, "trace '%s' ends in its header", path);
    for (uint32_t l = 0; l < h.n_layers; l++) {
        if (t->layer_experts[l] > MAX_EXPERTS || t->n_experts + t->layer_experts[l] > MAX_EXPERTS)
            return xd_fail(err, XD_BAD_REQUEST, 0, "trace '%s': with layer %u's %u experts there are more than %d",
                           path, l, t->layer_experts[l], MAX_EXPERTS);
        t->n_experts += t->layer_experts[l];
    }
    uint64_t at = sizeof h + h.n_layers * sizeof *t->layer_experts;
    uint32_t record_bytes = 1 + (t->n_experts + 7) / 8;
    uint64_t n_steps = ((uint64_t)sb.st_size - at) / record_bytes;
    if (n_steps > UINT32_MAX - 1)
        return xd_fail(err, XD_BAD_REQUEST, 0, "trace '%s' has too many steps", path);
    t->n_steps = (uint32_t)n_steps;
    XD_CLEANUP(xd_freep) uint8_t *records = malloc(n_steps * record_bytes + 1);
    if (!records)
        return xd_fail(err, XD_NOMEM, 0, "trace '%s'", path);
    if (fread(records, record_bytes, n_steps, f) != n_steps)
        return xd_fail(err, XD_IO, errno, "reading the trace '%s'", path);
    xd_status st = unpack(t, records, record_bytes, path, err);
    if (!st)
        *ret = XD_TAKE(t);
    return st;
}
