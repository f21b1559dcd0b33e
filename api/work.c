/* work.c - the threads that prepare long requests: parse a large body, render a template, turn megabytes of text into tokens.
 *
 * DESIGN. An HTTP thread writes the streams of many clients, so nothing that takes longer than a few milliseconds may run on it. A
 * request whose body is larger than WORK_BODY_BYTES is given away with its connection suspended; a thread of this pool runs the route's
 * prepare(), which touches neither libmicrohttpd nor another request, and wakes the connection.
 *
 *   NONE --given--> WAITING --a thread is free--> RUNNING --prepared--> DONE
 *      \____________ a small body: prepared at once ___________________/
 *
 * 1. While an exchange is RUNNING it belongs to the pool's thread; in every other state to its HTTP thread. The states change under
 *    work.lock only.
 * 2. A thread says DONE and wakes the connection under work.lock: who has seen DONE may free exchange and connection.
 * 3. An exchange is taken back before it is freed: from the line at once, from a thread when that is through. What prepare() may take is
 *    bounded (the tokenizer and the template engine count their steps).
 * 4. The shortest body goes first, so that a long one does not hold up the others.
 * 5. Lock order: work.lock, conn.lock. */
#include <string.h>

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
        if ((*i)->body.len < (*at)->body.len)
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
            x->early.status = x->route->prepare(x, &x->early);
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
            return xd_fail(err, XD_NOMEM, rc, "starting a thread that prepares requests");
        }
        pthread_setname_np(w->threads[w->n_threads], "prepare");
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

bool work_done(work *w, exchange *x)
{
    pthread_mutex_lock(&w->lock);
    bool begin = x->work == WORK_NONE, here = begin && x->body.len <= WORK_BODY_BYTES;
    if (here) {
        x->work = WORK_DONE;
    } else if (begin) {
        x->work = WORK_WAITING;
        x->next_waiting = w->waiting;
        w->waiting = x;
        pthread_cond_signal(&w->given);
    }
    bool done = x->work == WORK_DONE;
    pthread_mutex_unlock(&w->lock);
    if (here)
        x->early.status = x->route->prepare(x, &x->early);
    return done;
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
