/* pager_copy.c - the copy thread: bulk promotions through the device's copy engine, behind the engine thread's back.
 *
 * It knows nothing of residency. It copies what it is told in batches, and reports what has arrived; the engine thread adopts that
 * between two steps. A job's slot was unmapped before the job was queued and stays unmapped until the job is taken back, so nobody
 * reads a half-copied page. */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "engine/memory/pager_priv.h"

#define SAVE_RETRY_NS 20000000u

/* Copies handed to the device at once: enough to keep the copy engine busy (16 MiB reach its full rate), few enough that a stop, an
 * adoption or a probe does not wait long, over a slow link either. */
#define BATCH_BYTES (32ull << 20)
#define BATCH_NS    4e6

static struct timespec timespec_of(uint64_t ns)
{
    return (struct timespec){.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
}

/* Waits for a job; when the interval has passed, saves the statistics: file I/O is not for the engine thread. Who holds the pager's
 * lock may be waiting for this thread's copies, so that lock is never waited for here, and no copy is taken that would wait for a disk:
 * neither one that comes while they are saved, nor one that came just as the interval had passed, or is held back. */
static void wait_or_save(pager_copier *c)
{
    if (c->n_queue || !c->save_at_ns) {
        pthread_cond_wait(&c->wake, &c->lock);
        return;
    }
    struct timespec at = timespec_of(c->save_at_ns);
    if (pthread_cond_timedwait(&c->wake, &c->lock, &at) != ETIMEDOUT || c->n_queue || c->stop)
        return;
    c->saving = true;
    pthread_mutex_unlock(&c->lock);
    bool busy = !pager_try_save_stats(c->owner); /* an error: tried again after the next interval, and at the end */
    pthread_mutex_lock(&c->lock);
    c->saving = false;
    c->save_at_ns = xd_now_ns() + (busy ? SAVE_RETRY_NS : c->save_interval_ns);
}

static void *copier_main(void *arg)
{
    pager_copier *c = arg;
    pthread_mutex_lock(&c->lock);
    for (;;) {
        while (!c->stop && (!c->n_queue || c->held)) {
            c->busy = false;
            pthread_cond_broadcast(&c->idle);
            wait_or_save(c);
        }
        if (c->stop)
            break;
        c->busy = true;
        /* The queue's front stays in place while it is copied: only this thread removes from there. */
        uint32_t n = 0;
        uint64_t bytes = 0;
        while (n < c->n_queue && (!n || bytes + c->queue[n].bytes <= c->batch_bytes))
            bytes += c->queue[n++].bytes;
        c->n_running = n;
        pthread_mutex_unlock(&c->lock);
        kern_status st = KERN_OK;
        for (uint32_t i = 0; i < n && !st; i++)
            st = c->dev->ops->copy_async(c->dev, c->queue[i].dst, c->queue[i].src, c->queue[i].bytes);
        if (c->dev->ops->copy_wait(c->dev) != KERN_OK)
            st = KERN_DEVICE;
        pthread_mutex_lock(&c->lock);
        for (uint32_t i = 0; i < n; i++) {
            c->done[c->n_done] = c->queue[i];
            c->done[c->n_done++].failed = st != KERN_OK;
        }
        memmove(c->queue, c->queue + n, (c->n_queue - n) * sizeof *c->queue);
        c->n_queue -= n;
        c->n_running = 0;
    }
    c->busy = false;
    pthread_cond_broadcast(&c->idle);
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

xd_status pager_copier_start(pager *p, uint32_t cap, xd_err *err)
{
    pager_copier *c = &p->copier;
    c->dev = p->dev;
    c->owner = p;
    c->save_interval_ns = (uint64_t)XD_MAX(p->cfg->pager.stats_interval_s, 1u) * 1000000000u;
    c->cap = cap;
    c->batch_bytes = BATCH_BYTES;
    c->queue = malloc(cap * sizeof *c->queue);
    c->done = malloc(cap * sizeof *c->done);
    if (!c->queue || !c->done)
        return xd_fail(err, XD_NOMEM, 0, "pager: copy queue");
    pthread_mutex_init(&c->lock, NULL);
    xd_cond_init(&c->wake);
    pthread_cond_init(&c->idle, NULL);
    int e = pthread_create(&c->thread, NULL, copier_main, c);
    if (e) {
        pthread_mutex_destroy(&c->lock);
        pthread_cond_destroy(&c->wake);
        pthread_cond_destroy(&c->idle);
        return xd_fail(err, XD_NOMEM, e, "pager: starting the copy thread");
    }
    pthread_setname_np(c->thread, "xd-pager");
    c->started = true;
    return XD_OK;
}

void pager_copier_save_from_now_on(pager_copier *c)
{
    pthread_mutex_lock(&c->lock);
    c->save_at_ns = xd_now_ns() + c->save_interval_ns;
    pthread_cond_signal(&c->wake);
    pthread_mutex_unlock(&c->lock);
}

void pager_copier_stop(pager_copier *c)
{
    if (c->started) {
        pthread_mutex_lock(&c->lock);
        c->stop = true;
        pthread_cond_signal(&c->wake);
        pthread_mutex_unlock(&c->lock);
        pthread_join(c->thread, NULL);
        pthread_mutex_destroy(&c->lock);
        pthread_cond_destroy(&c->wake);
        pthread_cond_destroy(&c->idle);
    }
    free(c->queue);
    free(c->done);
    *c = (pager_copier){0};
}

bool pager_copier_push(pager_copier *c, const pager_copy_job *jobs, uint32_t n)
{
    pthread_mutex_lock(&c->lock);
    bool ok = !c->saving && c->n_queue + c->n_done + n <= c->cap;
    if (ok) {
        memcpy(c->queue + c->n_queue, jobs, n * sizeof *jobs);
        c->n_queue += n;
        pthread_cond_signal(&c->wake);
    }
    pthread_mutex_unlock(&c->lock);
    return ok;
}

uint32_t pager_copier_take(pager_copier *c, pager_copy_job *out, uint32_t cap)
{
    pthread_mutex_lock(&c->lock);
    uint32_t n = XD_MIN(cap, c->n_done);
    memcpy(out, c->done, n * sizeof *out);
    memmove(c->done, c->done + n, (c->n_done - n) * sizeof *c->done);
    c->n_done -= n;
    pthread_mutex_unlock(&c->lock);
    return n;
}

uint32_t pager_copier_pending(pager_copier *c)
{
    pthread_mutex_lock(&c->lock);
    uint32_t n = c->n_queue + c->n_done;
    pthread_mutex_unlock(&c->lock);
    return n;
}

void pager_copier_cancel(pager_copier *c)
{
    pthread_mutex_lock(&c->lock);
    for (uint32_t i = c->n_running; i < c->n_queue; i++) {
        c->done[c->n_done] = c->queue[i];
        c->done[c->n_done++].failed = true;
    }
    c->n_queue = c->n_running;
    pthread_mutex_unlock(&c->lock);
    pager_copier_drain(c);
}

void pager_copier_drain(pager_copier *c)
{
    pthread_mutex_lock(&c->lock);
    while (c->n_queue || c->busy)
        pthread_cond_wait(&c->idle, &c->lock);
    pthread_mutex_unlock(&c->lock);
}

void pager_copier_hold(pager_copier *c)
{
    pthread_mutex_lock(&c->lock);
    c->held = true;
    while (c->busy)
        pthread_cond_wait(&c->idle, &c->lock);
    pthread_mutex_unlock(&c->lock);
}

void pager_copier_go_on(pager_copier *c, double link_gbps)
{
    pthread_mutex_lock(&c->lock);
    c->batch_bytes = link_gbps > 0 ? (uint64_t)fmin(link_gbps * BATCH_NS, BATCH_BYTES) : BATCH_BYTES;
    c->held = false;
    pthread_cond_signal(&c->wake);
    pthread_mutex_unlock(&c->lock);
}
