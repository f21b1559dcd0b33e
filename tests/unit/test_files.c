#include <criterion/criterion.h>
#include <pthread.h>
#include <string.h>

#include "engine/files.h"
#include "in_time.h"

static const uint64_t EVERY_NS = 1000000;

static int says[2];
static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER; /* held: the file system does not answer */

static int look(const model_file *f)
{
    pthread_mutex_lock(&gate);
    int change = says[f->bytes];
    pthread_mutex_unlock(&gate);
    return change;
}

static files_watch *start(void)
{
    char a[] = "/a", b[] = "/b"; /* nothing is borrowed */
    const model_file files[] = {{.path = a, .bytes = 0}, {.path = b, .bytes = 1}};
    files_watch *w = NULL;
    cr_assert(!files_watch_start(files, 2, EVERY_NS, look, &w, NULL));
    return w;
}

static void say(int a, int b)
{
    pthread_mutex_lock(&gate);
    says[0] = a;
    says[1] = b;
    pthread_mutex_unlock(&gate);
}

static void wait_for(files_watch *w, const char *warning, files_seen *ret)
{
    *ret = (files_seen){0};
    for (uint64_t begin = xd_now_ns(); !strstr(ret->warning, warning); in_time(begin, warning))
        files_watch_peek(w, ret);
}

Test(files, the_worst_change_is_named)
{
    files_watch *w = start();
    files_seen s;
    say(MODEL_FILE_GONE, MODEL_FILE_SAME);
    wait_for(w, "'/a' was removed", &s);
    cr_assert_eq(s.n_changed, 1);
    cr_assert(!strstr(s.warning, "others"));
    say(MODEL_FILE_GONE, MODEL_FILE_CUT);
    wait_for(w, "'/b' became shorter", &s);
    cr_assert_eq(s.n_changed, 2);
    cr_assert(strstr(s.warning, "(others changed, too)"));
    files_watch_free(w);
}

/* A file system that hangs held up an HTTP thread for every /health. */
Test(files, a_file_system_that_hangs_holds_nobody_up)
{
    files_watch *w = start();
    files_seen s, later;
    pthread_mutex_lock(&gate);
    bool grows = false;
    for (int i = 0; i < 2 && !grows; i++) { /* one look may have ended before the gate closed and be noted behind it */
        wait_for(w, "their file system does not answer", &s);
        cr_assert_eq(s.n_changed, 0);
        cr_assert_gt(s.age_ns, EVERY_NS);
        files_watch_peek(w, &later);
        grows = later.age_ns >= s.age_ns;
    }
    cr_assert(grows);
    pthread_mutex_unlock(&gate);
    for (uint64_t begin = xd_now_ns(); *s.warning; in_time(begin, "a look that ended"))
        files_watch_peek(w, &s);
    pthread_mutex_lock(&gate);
    wait_for(w, "does not answer", &s);
    files_watch_free(w); /* the thread is left behind */
    pthread_mutex_unlock(&gate);
}

Test(files, what_was_loaded_from_a_file_that_was_written_is_refused)
{
    const model_file f[] = {{.path = "/a", .bytes = 0}, {.path = "/b", .bytes = 1}};
    static const struct {
        int change;
        bool refused;
    } rows[] = {{MODEL_FILE_SAME, false},
                {MODEL_FILE_GONE, false},
                {MODEL_FILE_REPLACED, false}, /* the old one is mapped */
                {MODEL_FILE_WRITTEN, true},
                {MODEL_FILE_CUT, true}};
    for (size_t i = 0; i < XD_ARRAY_LEN(rows); i++) {
        xd_err err = {0};
        say(MODEL_FILE_SAME, rows[i].change);
        xd_status st = files_check_loaded(f, 2, look, &err);
        cr_assert_eq(st, rows[i].refused ? XD_IO : XD_OK);
        cr_assert(!rows[i].refused || strstr(err.msg, "'/b' was written to while it was being loaded"), "%s", err.msg);
    }
}

Test(files, nothing_to_watch_is_fine)
{
    files_seen s;
    files_watch_peek(NULL, &s);
    cr_assert(!s.n_changed && !s.age_ns && !*s.warning);
    files_watch_free(NULL);
}
