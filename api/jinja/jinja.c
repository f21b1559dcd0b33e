/* jinja.c - the public face: compile once, render many times. See jinja.h. */
#include <string.h>

#include "api/jinja/jinja_priv.h"

enum { MAX_SOURCE = 4 << 20, COMPILE_MEMORY = 128 << 20 };
/* A step takes some 15 ns: the limits of steps are those of half a second of work, and are reached first on a fast machine. The clock is the
 * thread's CPU time, so that a busy machine fails nobody. A thousand turns of the templates that look back at all messages from
 * each one take 15 million steps. */
#define COMPILE_STEPS   30000000u
#define COMPILE_TIME_NS 800000000u
#define RENDER_STEPS    40000000u
#define RENDER_TIME_NS  800000000u

static xd_status compile(jx *c, const char *source, size_t len, jinja_template *t)
{
    if (setjmp(c->jump))
        return c->status;
    jx_parse(c, jx_lex(c, source, len), &t->body);
    jx_resolve_names(c, t);
    return XD_OK;
}

xd_status jinja_compile(const char *source, size_t len, const char *name, jinja_template **ret, xd_err *err)
{
    if (len > MAX_SOURCE)
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: the template is larger than %d MiB", name, MAX_SOURCE >> 20);
    if (!xd_utf8_valid(source, len))
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: the template is not UTF-8 text", name);
    jinja_template *t = calloc(1, sizeof *t);
    xd_err own;
    jx *c = calloc(1, sizeof *c);
    if (!t || !c) {
        free(t);
        free(c);
        return xd_fail(err, XD_NOMEM, 0, "%s: out of memory", name);
    }
    snprintf(t->name, sizeof t->name, "%s", name);
    *c = (jx){.err = err ? err : &own, .name = t->name, .compiling = true, .line = 1};
    c->arena.max_bytes = COMPILE_MEMORY;
    c->max_steps = COMPILE_STEPS;
    c->deadline_ns = jx_cpu_ns() + COMPILE_TIME_NS;
    xd_status status = compile(c, source, len, t);
    t->arena = c->arena;
    free(c);
    if (status) {
        jinja_free(t);
        return status;
    }
    *ret = t;
    return XD_OK;
}

void jinja_free(jinja_template *t)
{
    if (!t)
        return;
    jx_arena_free(&t->arena);
    free(t);
}

bool jinja_uses(const jinja_template *t, const char *name)
{
    for (size_t i = 0; i < t->n_names; i++)
        if (jx_str_is(t->names[i], name))
            return true;
    return false;
}

static bool is_untrusted(const jinja_options *o, const char *key)
{
    if (!o->untrusted)
        return true;
    for (const char *const *u = o->untrusted; *u; u++)
        if (!strcmp(*u, key))
            return true;
    return false;
}

static xd_status render(jx *c, const jinja_template *t, const json_t *vars, const jinja_options *o, jx_sb *out)
{
    if (setjmp(c->jump))
        return c->status;
    c->out = out;
    c->vars = jx_dict_new(c, json_object_size(vars));
    const char *key;
    json_t *item;
    json_object_foreach ((json_t *)(uintptr_t)vars, key, item) /* jansson's iterators take no const */
        jx_dict_set(c, c->vars, JX_STRV(jx_str_lit(c, key)), jx_from_json(c, item, c->track && is_untrusted(o, key)));
    jx_exec_template(c, t);
    return XD_OK;
}

static xd_status deliver(const jx_sb *b, const jinja_options *o, xd_buf *out, xd_err *err)
{
    uint8_t *trusted = NULL;
    if (o->ret_trusted) {
        trusted = malloc(b->len + 1);
        if (!trusted)
            return xd_fail(err, XD_NOMEM, 0, "out of memory");
        if (b->map)
            memcpy(trusted, b->map, b->len);
        else
            memset(trusted, !b->any_client, b->len);
    }
    if (!xd_buf_append(out, b->data, b->len)) {
        free(trusted);
        return xd_fail(err, XD_NOMEM, 0, "out of memory");
    }
    if (o->ret_trusted)
        *o->ret_trusted = trusted;
    return XD_OK;
}

xd_status jinja_render(const jinja_template *t, const json_t *vars, const jinja_options *opt, xd_buf *out, xd_err *err)
{
    static const jinja_options defaults;
    const jinja_options *o = opt ? opt : &defaults;
    xd_err own;
    jx *c = calloc(1, sizeof *c);
    jx_sb *text = calloc(1, sizeof *text);
    if (!c || !text) {
        free(c);
        free(text);
        return xd_fail(err, XD_NOMEM, 0, "out of memory");
    }
    *c = (jx){.err = err ? err : &own, .name = t->name, .line = 1, .track = o->ret_trusted != NULL, .now = o->now};
    c->arena.max_bytes = o->max_memory_bytes ? o->max_memory_bytes : (size_t)64 << 20;
    c->max_steps = o->max_steps ? o->max_steps : RENDER_STEPS;
    c->deadline_ns = jx_cpu_ns() + (o->max_time_ns ? o->max_time_ns : RENDER_TIME_NS);
    text->max_len = o->max_output_bytes ? o->max_output_bytes : (size_t)16 << 20;
    xd_status status = render(c, t, vars, o, text);
    if (!status)
        status = deliver(text, o, out, err);
    if (o->ret_cost)
        *o->ret_cost = (jinja_cost){c->steps, c->arena.used_bytes};
    jx_arena_free(&c->arena);
    free(text);
    free(c);
    return status;
}
