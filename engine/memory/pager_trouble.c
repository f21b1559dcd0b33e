/* pager_trouble.c - what goes wrong behind the scenes and fails nobody's request at once: told in the log, and to who asks for /health.
 *
 * One text for each kind of trouble, kept while it lasts. The log hears of it when it begins and when it ends; while it lasts, and its
 * text changes, once a minute at most. Any thread; the lock is held for copying a text. */
#include <stdarg.h>
#include <string.h>

#include "config/log.h"
#include "engine/memory/pager_priv.h"

#define REPEAT_NS 60000000000u

void pager_trouble_begin(pager *p, int kind, const char *fmt, ...)
{
    char text[PAGER_TROUBLE_BYTES];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    pager_trouble *t = &p->troubles[kind];
    uint64_t now = xd_now_ns();
    pthread_mutex_lock(&p->trouble_lock);
    bool is_new = !*t->text || (strcmp(text, t->text) != 0 && now - t->told_ns > REPEAT_NS);
    memcpy(t->text, text, sizeof text);
    if (is_new)
        t->told_ns = now;
    pthread_mutex_unlock(&p->trouble_lock);
    if (is_new)
        xd_log_warn("%s", text);
}

void pager_trouble_end(pager *p, int kind, const char *how)
{
    pthread_mutex_lock(&p->trouble_lock);
    bool was = *p->troubles[kind].text;
    *p->troubles[kind].text = 0;
    pthread_mutex_unlock(&p->trouble_lock);
    if (was)
        xd_log_info("%s", how);
}

bool pager_get_trouble(pager *p, int kind, char out[PAGER_TROUBLE_BYTES])
{
    pthread_mutex_lock(&p->trouble_lock);
    memcpy(out, p->troubles[kind].text, PAGER_TROUBLE_BYTES);
    pthread_mutex_unlock(&p->trouble_lock);
    if (kind == PAGER_TROUBLE_TRACE && p->tracer)
        trace_writer_why_cut(p->tracer, out, PAGER_TROUBLE_BYTES);
    return *out;
}
