/* mem.c - the arena that a compilation or a rendering lives in, its limits (memory, steps, time, depth), and how it fails.
 *
 * The arena hands out memory that is freed as a whole. Pieces of JX_BIG bytes and more are chunks of their own, so that the buffer
 * of a growing string can be reallocated in place. Steps are counted everywhere work is done in proportion to data; the clock is
 * read only now and then. */
#include <string.h>

#include "api/jinja/jinja_priv.h"

enum { JX_FIRST_CHUNK = 4 * 1024, JX_CHUNK = 64 * 1024, JX_BIG = 16 * 1024, JX_ALIGN = 16, JX_CLOCK_STEPS = 16384 };

struct jx_chunk {
    jx_chunk *next, *prev;
    size_t bytes;
    char pad[8];
    char data[];
};
_Static_assert(sizeof(jx_chunk) % JX_ALIGN == 0, "chunk data must keep malloc's alignment");

void jx_arena_free(jx_arena *a)
{
    for (jx_chunk *k = a->chunks, *next; k; k = next) {
        next = k->next;
        free(k);
    }
    a->chunks = NULL;
    a->at = a->end = NULL;
    a->used_bytes = 0;
}

static void account(jx *c, size_t bytes)
{
    if (bytes > c->arena.max_bytes - c->arena.used_bytes)
        jx_throw(c, c->compiling ? XD_BAD_MODEL : XD_TOO_LARGE, "template_error", "needs more than %zu MiB of memory",
                 c->arena.max_bytes >> 20);
    c->arena.used_bytes += bytes;
}

static jx_chunk *add_chunk(jx *c, size_t bytes)
{
    account(c, bytes);
    jx_chunk *k = malloc(sizeof *k + bytes);
    if (!k)
        jx_throw(c, XD_NOMEM, "", "out of memory");
    jx_arena *a = &c->arena;
    *k = (jx_chunk){.next = a->chunks, .bytes = bytes};
    if (a->chunks)
        a->chunks->prev = k;
    a->chunks = k;
    return k;
}

void *jx_alloc(jx *c, size_t bytes)
{
    jx_arena *a = &c->arena;
    if (bytes > SIZE_MAX - JX_ALIGN)
        jx_throw(c, XD_TOO_LARGE, "template_error", "needs too much memory");
    if (bytes >= JX_BIG)
        return add_chunk(c, bytes)->data;
    bytes = (bytes + JX_ALIGN - 1) & ~(size_t)(JX_ALIGN - 1);
    if (bytes > (size_t)(a->end - a->at)) {
        size_t size = XD_MAX(XD_MIN(XD_MAX(a->used_bytes, (size_t)JX_FIRST_CHUNK), (size_t)JX_CHUNK), bytes);
        jx_chunk *k = add_chunk(c, size); /* they grow: most renderings are small */
        a->at = k->data;
        a->end = k->data + size;
    }
    void *p = a->at;
    a->at += bytes;
    return p;
}

void *jx_alloc_array(jx *c, size_t n, size_t size)
{
    size_t bytes;
    if (!xd_mul_size(&bytes, n, size))
        jx_throw(c, XD_TOO_LARGE, "template_error", "needs too much memory");
    void *p = jx_alloc(c, bytes);
    memset(p, 0, bytes);
    return p;
}

void *jx_realloc(jx *c, void *p, size_t old_bytes, size_t new_bytes)
{
    if (old_bytes < JX_BIG || !p || new_bytes < old_bytes) {
        void *q = jx_alloc(c, new_bytes);
        if (p)
            memcpy(q, p, XD_MIN(old_bytes, new_bytes));
        return q;
    }
    jx_chunk *k = (jx_chunk *)(void *)((char *)p - offsetof(jx_chunk, data));
    account(c, new_bytes - old_bytes);
    jx_chunk *grown = realloc(k, sizeof *k + new_bytes);
    if (!grown)
        jx_throw(c, XD_NOMEM, "", "out of memory");
    grown->bytes = new_bytes;
    if (grown->prev)
        grown->prev->next = grown;
    else
        c->arena.chunks = grown;
    if (grown->next)
        grown->next->prev = grown;
    return grown->data;
}

uint64_t jx_cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void jx_charge_slow(jx *c)
{
    c->next_clock_step = c->steps + JX_CLOCK_STEPS;
    if (c->steps > c->max_steps)
        jx_throw(c, XD_TOO_LARGE, "template_error", "takes more than %llu steps", (unsigned long long)c->max_steps);
    if (jx_cpu_ns() > c->deadline_ns)
        jx_throw(c, XD_TIMEOUT, "template_error", "takes too long");
}

void jx_too_deep(jx *c)
{
    jx_error(c, "nested too deeply (maximum recursion depth exceeded)");
}

void jx_throw(jx *c, xd_status status, const char *code, const char *fmt, ...)
{
    char text[sizeof c->err->msg];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    c->status = status;
    if (status == XD_NOMEM)
        xd_fail(c->err, status, 0, "%s: %s", c->name, text);
    else
        xd_fail_field(c->err, status, NULL, code, "%s, line %u: %s", c->name, c->line, text);
    longjmp(c->jump, 1);
}
