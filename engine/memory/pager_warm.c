/* pager_warm.c - warm start: how hot every expert was, kept from run to run.
 *
 * File: header, one float of heat for each expert, XXH3 of all before. It is written beside its place and renamed over it, synced
 * before and after, so that a crash leaves either the old file or the new one. On reading, the length follows from the model, not
 * from the file, and anything that does not fit this very model is ignored: a cold start is never wrong, only slower. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <limits.h>
#include <math.h>
#include <string.h>
#include <xxhash.h>

#include "engine/memory/pager_priv.h"

#define WARM_MAGIC   0x3154414548584458ull /* "XDXHEAT1" */
#define WARM_VERSION 1u
/* Where a service keeps its state (StateDirectory=expertd); without the directory nothing is kept unless a file is named. */
#define STATE_DIR "/var/lib/expertd"

typedef struct warm_header {
    uint64_t magic, fingerprint;
    uint32_t version, n_experts;
} warm_header;
_Static_assert(sizeof(warm_header) == 24, "file layout");

static bool warm_path(const config *cfg, uint64_t fingerprint, char *out, size_t cap)
{
    const char *named = cfg->pager.stats_file;
    if (!cfg->pager.warm_start)
        return false;
    if (named && *named)
        return (size_t)snprintf(out, cap, "%s", named) < cap;
    if (access(STATE_DIR, W_OK))
        return false;
    return (size_t)snprintf(out, cap, STATE_DIR "/heat-%016" PRIx64, fingerprint) < cap;
}

static uint64_t file_bytes(const pager *p)
{
    return sizeof(warm_header) + p->n_experts * sizeof(float) + sizeof(uint64_t);
}

static bool write_synced(const char *path, const void *data, uint64_t bytes)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0)
        return false;
    const char *at = data;
    bool ok = true;
    while (ok && bytes) {
        ssize_t n = write(fd, at, bytes);
        if (n < 0 && errno == EINTR)
            continue;
        ok = n > 0;
        if (ok) {
            at += n;
            bytes -= (uint64_t)n;
        }
    }
    ok = ok && !fsync(fd);
    int e = errno;
    ok = !close(fd) && ok;
    errno = e;
    return ok;
}

static void sync_directory(const char *path)
{
    char dir[PATH_MAX];
    snprintf(dir, sizeof dir, "%s", path);
    XD_CLEANUP(xd_closep) int fd = open(dirname(dir), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0)
        fsync(fd);
}

xd_status pager_check_stats(const config *cfg, uint64_t fingerprint, xd_err *err)
{
    char path[PATH_MAX];
    if (!warm_path(cfg, fingerprint, path, sizeof path))
        return XD_OK;
    if (!xd_is_own_file(path, WARM_MAGIC))
        return xd_fail(err, XD_BAD_CONFIG, 0, "'%s' holds something else: it is not overwritten", path);
    char dir[PATH_MAX];
    snprintf(dir, sizeof dir, "%s", path);
    if (access(dirname(dir), W_OK | X_OK))
        return xd_fail(err, XD_IO, errno, "'%s' cannot be written", path);
    return XD_OK;
}

/* `wait`: for the lock; else *ret_busy is set when somebody holds it. */
static xd_status save(pager *p, bool wait, bool *ret_busy, xd_err *err)
{
    char path[PATH_MAX], tmp[PATH_MAX + 8];
    if (!warm_path(p->cfg, model_fingerprint(p->m), path, sizeof path))
        return XD_OK;
    xd_status st = pager_check_stats(p->cfg, model_fingerprint(p->m), err);
    if (st)
        return st;
    uint64_t bytes = file_bytes(p);
    XD_CLEANUP(xd_freep) char *buf = malloc(bytes);
    if (!buf)
        return xd_fail(err, XD_NOMEM, 0, "saving hit statistics");
    warm_header h = {WARM_MAGIC, model_fingerprint(p->m), WARM_VERSION, p->n_experts};
    memcpy(buf, &h, sizeof h);
    *ret_busy = !wait && pthread_mutex_trylock(&p->lock);
    if (*ret_busy)
        return XD_OK;
    if (wait)
        pthread_mutex_lock(&p->lock);
    for (uint32_t x = 0; x < p->n_experts; x++) {
        float heat = policy_heat(p->pol, x);
        memcpy(buf + sizeof h + x * sizeof heat, &heat, sizeof heat);
    }
    pthread_mutex_unlock(&p->lock);
    uint64_t sum = XXH3_64bits(buf, bytes - sizeof(uint64_t));
    memcpy(buf + bytes - sizeof sum, &sum, sizeof sum);

    snprintf(tmp, sizeof tmp, "%s.new", path);
    if (!write_synced(tmp, buf, bytes) || rename(tmp, path)) {
        int e = errno;
        unlink(tmp);
        return xd_fail(err, XD_IO, e, "saving hit statistics to '%s'", path);
    }
    sync_directory(path);
    return XD_OK;
}

static xd_status save_and_tell(pager *p, bool wait, bool *ret_busy, xd_err *err)
{
    xd_err why = {0};
    xd_status st = save(p, wait, ret_busy, &why);
    if (st) {
        atomic_fetch_add(&p->stats_errors, 1);
        pager_trouble_begin(p, PAGER_TROUBLE_STATS, "pager.stats_file: %s; the next start will be cold", why.msg);
        if (err)
            *err = why;
    } else if (!*ret_busy)
        pager_trouble_end(p, PAGER_TROUBLE_STATS, "pager.stats_file: hit statistics are saved again");
    return st;
}

xd_status pager_save_stats(pager *p, xd_err *err)
{
    bool busy = false;
    return save_and_tell(p, true, &busy, err);
}

bool pager_try_save_stats(pager *p)
{
    bool busy = false;
    (void)!save_and_tell(p, false, &busy, NULL);
    return !busy;
}

bool pager_load_stats(pager *p)
{
    char path[PATH_MAX];
    if (!warm_path(p->cfg, model_fingerprint(p->m), path, sizeof path))
        return false;
    XD_CLEANUP(xd_fclosep) FILE *f = fopen(path, "re");
    uint64_t bytes = file_bytes(p), sum;
    XD_CLEANUP(xd_freep) char *buf = f ? malloc(bytes + 1) : NULL;
    if (!buf || fread(buf, 1, bytes + 1, f) != bytes) /* one byte more: a longer file is another model's */
        return false;
    warm_header h;
    memcpy(&h, buf, sizeof h);
    memcpy(&sum, buf + bytes - sizeof sum, sizeof sum);
    if (h.magic != WARM_MAGIC || h.version != WARM_VERSION || h.fingerprint != model_fingerprint(p->m) ||
        h.n_experts != p->n_experts || sum != XXH3_64bits(buf, bytes - sizeof sum))
        return false;
    for (uint32_t x = 0; x < p->n_experts; x++) {
        float heat;
        memcpy(&heat, buf + sizeof h + x * sizeof heat, sizeof heat);
        policy_set_heat(p->pol, x, heat);
    }
    return true;
}
