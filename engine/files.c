/* files.c - are the model's files still those that were loaded?
 *
 * Their mappings are the weights: what is written into such a file changes answers, what is cut off ends the process. Nothing can be
 * done about either here; that it happened can be said.
 *
 * Looking at a file may take for ever (a network file system whose server is gone). So a thread that does nothing else looks, without a
 * lock, and notes what it saw and when; who asks for /health or /metrics is told the note and its age. The watch owns copies of all it
 * needs and counts its two users, because a thread that hangs in the kernel cannot be joined: it is left behind, and frees the watch
 * if it ever comes back. */
#include "engine/files.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "config/log.h"

enum { OVERDUE_ROUNDS = 6, FREE_WAIT_S = 1 };

struct files_watch {
    model_file *files; /* paths are owned */
    uint32_t n;
    uint64_t every_ns;
    files_look_fn *look;
    pthread_t thread;

    pthread_mutex_t lock; /* all below */
    pthread_cond_t wake, ended;
    uint32_t refs;
    bool stop, has_ended;
    uint64_t looked_ns;
    uint32_t n_changed;
    char warning[sizeof(((files_seen *)0)->warning)];
};

static const char *const changes[] = {
    [MODEL_FILE_SAME] = "",
    [MODEL_FILE_GONE] = "was removed or renamed: the next start will not find it",
    [MODEL_FILE_REPLACED] = "was replaced by another file: the next start will load that one",
    [MODEL_FILE_WRITTEN] =
        "was written to, or touched, while it is in use: if its content changed, answers may be wrong until a restart",
    [MODEL_FILE_CUT] = "became shorter while it is in use: reading beyond its end will stop the daemon",
};

/* The worst change and how many there are; *ret_path is the first file with the worst. */
static int look_at_all(const model_file *files, uint32_t n, files_look_fn *look, uint32_t *ret_n_changed,
                       const char **ret_path)
{
    int worst = MODEL_FILE_SAME;
    *ret_path = "";
    *ret_n_changed = 0;
    for (uint32_t i = 0; i < n; i++) {
        int change = look(&files[i]);
        *ret_n_changed += change != MODEL_FILE_SAME;
        if (change > worst) {
            worst = change;
            *ret_path = files[i].path;
        }
    }
    return worst;
}

xd_status files_check_loaded(const model_file *files, uint32_t n, files_look_fn *look, xd_err *err)
{
    uint32_t n_changed;
    const char *path;
    if (look_at_all(files, n, look, &n_changed, &path) < MODEL_FILE_WRITTEN)
        return XD_OK; /* a file that was removed or replaced is still the one that is mapped */
    return xd_fail(err, XD_IO, 0,
                   "model file '%s' was written to while it was being loaded: start again when it is whole", path);
}

/* --- the watch ------------------------------------------------------------------------------------------------------ */

static void unref(files_watch *w)
{
    pthread_mutex_lock(&w->lock);
    bool last = --w->refs == 0;
    pthread_mutex_unlock(&w->lock);
    if (!last)
        return;
    for (uint32_t i = 0; i < w->n; i++)
        free((char *)w->files[i].path);
    free(w->files);
    pthread_cond_destroy(&w->wake);
    pthread_cond_destroy(&w->ended);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

static void look_once(files_watch *w)
{
    char text[sizeof w->warning] = "";
    const char *path;
    uint32_t n_changed;
    uint64_t began = xd_now_ns();
    int worst = look_at_all(w->files, w->n, w->look, &n_changed, &path);
    uint64_t took = xd_now_ns() - began;
    if (worst != MODEL_FILE_SAME)
        snprintf(text, sizeof text, "model file '%s' %s%s", path, changes[worst],
                 n_changed > 1 ? " (others changed, too)" : "");
    pthread_mutex_lock(&w->lock);
    bool is_new = *text && strcmp(text, w->warning) != 0, stopped = w->stop;
    memcpy(w->warning, text, sizeof text);
    w->n_changed = n_changed;
    w->looked_ns = xd_now_ns();
    pthread_mutex_unlock(&w->lock);
    if (stopped)
        return;
    if (is_new)
        xd_log_warn("%s", text);
    if (took > OVERDUE_ROUNDS * w->every_ns)
        xd_log_warn("the file system of the model's files did not answer for %.0f s", (double)took * 1e-9);
}

static struct timespec at(uint64_t ns)
{
    return (struct timespec){.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
}

static void *watch_main(void *arg)
{
    files_watch *w = arg;
    pthread_setname_np(pthread_self(), "xd-files");
    pthread_mutex_lock(&w->lock);
    while (!w->stop) {
        struct timespec until = at(w->looked_ns + w->every_ns);
        if (!pthread_cond_timedwait(&w->wake, &w->lock, &until))
            continue; /* woken: to stop, or for nothing */
        pthread_mutex_unlock(&w->lock);
        look_once(w);
        pthread_mutex_lock(&w->lock);
    }
    w->has_ended = true;
    pthread_cond_signal(&w->ended);
    pthread_mutex_unlock(&w->lock);
    unref(w);
    return NULL;
}

xd_status files_watch_start(const model_file *files, uint32_t n, uint64_t every_ns, files_look_fn *look,
                            files_watch **ret, xd_err *err)
{
    files_watch *w = calloc(1, sizeof *w);
    if (!w)
        return xd_fail(err, XD_NOMEM, 0, "watching the model's files");
    w->every_ns = every_ns;
    w->look = look;
    w->looked_ns = xd_now_ns();
    w->refs = 1;
    pthread_mutex_init(&w->lock, NULL);
    xd_cond_init(&w->wake);
    xd_cond_init(&w->ended);
    w->files = calloc(n ? n : 1, sizeof *w->files);
    bool ok = w->files != NULL;
    for (uint32_t i = 0; i < n && ok; i++) {
        w->files[i] = files[i];
        w->files[i].path = strdup(files[i].path);
        w->n++;
        ok = w->files[i].path != NULL;
    }
    w->refs += ok;
    int rc = ok ? pthread_create(&w->thread, NULL, watch_main, w) : 0;
    if (!ok || rc) {
        w->refs = 1;
        unref(w);
        return xd_fail(err, XD_NOMEM, rc, "watching the model's files");
    }
    *ret = w;
    return XD_OK;
}

void files_watch_peek(files_watch *w, files_seen *ret)
{
    *ret = (files_seen){0};
    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    ret->n_changed = w->n_changed;
    uint64_t now = xd_now_ns();
    ret->age_ns = now - w->looked_ns;
    if (!*w->warning && ret->age_ns > OVERDUE_ROUNDS * w->every_ns)
        snprintf(ret->warning, sizeof ret->warning,
                 "the model's files could not be looked at for %.0f s: their file system does not answer",
                 (double)ret->age_ns * 1e-9);
    else
        memcpy(ret->warning, w->warning, sizeof ret->warning);
    pthread_mutex_unlock(&w->lock);
}

void files_watch_free(files_watch *w)
{
    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_cond_signal(&w->wake);
    struct timespec until = at(xd_now_ns() + FREE_WAIT_S * 1000000000ull);
    while (!w->has_ended && !pthread_cond_timedwait(&w->ended, &w->lock, &until))
        ;
    bool ended = w->has_ended;
    pthread_mutex_unlock(&w->lock);
    if (ended)
        pthread_join(w->thread, NULL);
    else
        pthread_detach(w->thread);
    unref(w);
}
