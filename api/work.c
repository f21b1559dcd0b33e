/* work.c - the threads for what takes long: parse a large body, render a template, turn megabytes of text into tokens, write an answer
 * with a hundred thousand log-probabilities.
 *
 * DESIGN. An HTTP thread writes the streams of many clients, so nothing that takes longer than a few milliseconds may run on it. A job
 * about more than WORK_HERE_BYTES is given away with its connection suspended; a thread of this pool runs it, which touches neither
 * libmicrohttpd nor another request, and wakes the connection.
 *
 *   NONE --given--> WAITING --a thread is free--> RUNNING --it is through--> DONE --seen--> NONE
 *      \____ a small one: runs at once ____/
 *
 * 1. While an exchange is RUNNING it belongs to the pool's thread; in every other state to its HTTP thread. The states change under
 *    work.lock only.
 * 2. A thread says DONE and wakes the connection under work.lock: who has seen DONE may free exchange and connection.
 * 3. An exchange is taken back before it is freed: from the line at once, from a thread when that is through. What a job may take is
 *    bounded (the tokenizer and the template engine count their steps).
 * 4. The shortest goes first, so that a long one does not hold up the others.
 * 5. Lock order: work.lock, conn.lock. */
#include "api/api_priv.h"

struct work {
    pthread_mutex_t lock; /* all below */
    pthread_cond_t given, done;
    exchange *waiting;
    bool stop;
    unsigned n_threads;
    pthread_t threads[];
};

static exchange *take_shortest_locked(work *w)
{
    exchange **at = &w->waiting;
    for (exchange **i = at; *i; i = &(*i)->next_waiting)
        if ((*i)->job_bytes < (*at)->job_bytes)
            at = i;
    exchange *x = *at;
    *at = x->next_waiting;
    return x;
}

static void *run(void *arg)
{
    work *w = arg;
    pthread_mutex_lock(&w->lock);
    while (!w->stop) {
        if (!w->waiting) {
            pthread_cond_wait(&w->given, &w->lock);
            continue;
        }
        exchange *x = take_shortest_locked(w);
        x->work = WORK_RUNNING;
        pthread_mutex_unlock(&w->lock);
        if (!conn_peer_gone(x->c)) /* its HTTP thread finds that out too */
            x->early.status = x->job(x, &x->early);
        pthread_mutex_lock(&w->lock);
        x->work = WORK_DONE;
        conn_wake(x->c);
        pthread_cond_broadcast(&w->done);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

xd_status work_start(unsigned n_threads, work **ret, xd_err *err)
{
    work *w = calloc(1, sizeof *w + n_threads * sizeof w->threads[0]);
    if (!w)
        return xd_fail(err, XD_NOMEM, 0, "the HTTP server");
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->given, NULL);
    pthread_cond_init(&w->done, NULL);
    for (; w->n_threads < n_threads; w->n_threads++) {
        int rc = pthread_create(&w->threads[w->n_threads], NULL, run, w);
        if (rc) {
            work_free(w);
            return xd_fail(err, XD_NOMEM, rc, "starting a thread for long requests");
        }
        pthread_setname_np(w->threads[w->n_threads], "http-work");
    }
    *ret = w;
    return XD_OK;
}

void work_free(work *w)
{
    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_cond_broadcast(&w->given);
    pthread_mutex_unlock(&w->lock);
    for (unsigned i = 0; i < w->n_threads; i++)
        pthread_join(w->threads[i], NULL);
    pthread_cond_destroy(&w->given);
    pthread_cond_destroy(&w->done);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

/* Has the job run? Begins it if nothing has begun. */
static bool is_done(work *w, exchange *x, api_prepare job, size_t bytes)
{
    pthread_mutex_lock(&w->lock);
    bool begin = x->work == WORK_NONE, here = begin && bytes <= WORK_HERE_BYTES, done = x->work == WORK_DONE;
    if (begin && !here) {
        x->work = WORK_WAITING;
        x->job = job;
        x->job_bytes = bytes;
        x->next_waiting = w->waiting;
        w->waiting = x;
        pthread_cond_signal(&w->given);
    }
    if (done)
        x->work = WORK_NONE; /* for the next one */
    pthread_mutex_unlock(&w->lock);
    if (here)
        x->early.status = job(x, &x->early);
    return done || here;
}

bool work_run(work *w, exchange *x, api_prepare job, size_t bytes, enum MHD_Result *ret)
{
    while (!is_done(w, x, job, bytes)) {
        if (conn_peer_gone(x->c)) {
            *ret = MHD_NO; /* exchange_completed() takes it back */
            return false;
        }
        if (conn_sleep(x->c)) {
            *ret = MHD_YES;
            return false;
        }
    }
    *ret = MHD_NO;
    return !conn_peer_gone(x->c);
}

void work_take_back(work *w, exchange *x)
{
    pthread_mutex_lock(&w->lock);
    for (exchange **i = &w->waiting; *i && x->work == WORK_WAITING; i = &(*i)->next_waiting) {
        if (*i == x) {
            *i = x->next_waiting;
            x->work = WORK_NONE;
            break;
        }
    }
    while (x->work == WORK_RUNNING)
        pthread_cond_wait(&w->done, &w->lock);
    pthread_mutex_unlock(&w->lock);
}
