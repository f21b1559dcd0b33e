/* files.c - are the model's files still those that were loaded?
 *
 * Their mappings are the weights: what is written into such a file changes answers, what is cut off ends the process. Nothing can be
 * done about either here; that it happened can be said. Whoever asks for /health or /metrics does the looking, at most every few
 * seconds, so that a file system that hangs holds up one thread of the HTTP server, no step and no watchdog. */
#include <string.h>

#include "config/log.h"
#include "engine/engine_priv.h"

#define LOOK_NS 5000000000ull

static const char *const changes[] = {
    [MODEL_FILE_SAME] = "",
    [MODEL_FILE_GONE] = "was removed or renamed: the next start will not find it",
    [MODEL_FILE_REPLACED] = "was replaced by another file: the next start will load that one",
    [MODEL_FILE_WRITTEN] = "was written to while it is in use: answers may be wrong until a restart",
    [MODEL_FILE_CUT] = "became shorter while it is in use: reading beyond its end will stop the daemon",
};

static void look(engine *e, uint32_t *ret_n_changed, char *text, size_t cap)
{
    uint32_t n;
    const model_file *files = model_files(e->c.m, &n);
    int worst = MODEL_FILE_SAME;
    const char *path = "";
    *ret_n_changed = 0;
    for (uint32_t i = 0; i < n; i++) {
        int change = model_file_look(&files[i]);
        *ret_n_changed += change != MODEL_FILE_SAME;
        if (change > worst) {
            worst = change;
            path = files[i].path;
        }
    }
    *text = 0;
    if (worst != MODEL_FILE_SAME)
        snprintf(text, cap, "model file '%s' %s%s", path, changes[worst],
                 *ret_n_changed > 1 ? " (others changed, too)" : "");
}

uint32_t engine_look_at_files(engine *e, xd_buf *ret_warning)
{
    files_seen *f = &e->files;
    pthread_mutex_lock(&f->lock);
    uint64_t now = xd_now_ns();
    if (!f->looking && (!f->looked_ns || now - f->looked_ns >= LOOK_NS)) {
        /* One looks, without the lock: where that hangs, the others tell what was last known. */
        f->looking = true;
        pthread_mutex_unlock(&f->lock);
        uint32_t n;
        char text[sizeof f->warning];
        look(e, &n, text, sizeof text);
        if (*text && strcmp(text, f->warning) != 0) /* only who looks writes it */
            xd_log_warn("%s", text);
        pthread_mutex_lock(&f->lock);
        snprintf(f->warning, sizeof f->warning, "%s", text);
        f->n_changed = n;
        f->looked_ns = xd_now_ns();
        f->looking = false;
    }
    uint32_t n_changed = f->n_changed;
    if (ret_warning)
        xd_buf_puts(ret_warning, f->warning);
    pthread_mutex_unlock(&f->lock);
    return n_changed;
}
