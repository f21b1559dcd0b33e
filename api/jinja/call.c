/* call.c - calling things: arguments are matched to the names of a function's table row; macros and loops go to eval.c. Also the
 * global functions of transformers' environment. */
#include <string.h>

#include "api/jinja/jinja_priv.h"

enum { MAX_PARAMS = 8 };

/* Splits "a b | c d" into names; returns how many, and how many of them are required. */
static size_t parse_params(const char *params, const char **names, size_t *lens, size_t *ret_required)
{
    size_t n = 0;
    params += *params == '/';
    *ret_required = SIZE_MAX;
    for (const char *p = params; *p;) {
        size_t len = strcspn(p, " ");
        if (len == 1 && *p == '|') {
            *ret_required = n;
        } else if (len && n < MAX_PARAMS) {
            names[n] = p;
            lens[n++] = len;
        }
        p += len + (p[len] == ' ');
    }
    *ret_required = XD_MIN(*ret_required, n);
    return n;
}

jx_value jx_call_func(jx *c, const jx_func *f, const char *what, jx_value self, jx_args *a)
{
    if (!f->params)
        return f->fn(c, self, a);
    const char *names[MAX_PARAMS];
    size_t lens[MAX_PARAMS], required;
    size_t n = parse_params(f->params, names, lens, &required);
    jx_value bound[MAX_PARAMS];
    if (a->n_kw && *f->params == '/')
        jx_error(c, "%s '%s' takes no keyword arguments", what, f->name);
    if (a->n > n)
        jx_error(c, "%s '%s' takes at most %zu arguments (%zu given)", what, f->name, n, a->n);
    for (size_t i = 0; i < n; i++)
        bound[i] = i < a->n ? a->v[i] : JX_ABSENT;
    for (size_t k = 0; k < a->n_kw; k++) {
        const jx_str *key = a->kw[k].key.s;
        size_t i = 0;
        while (i < n && (key->len != lens[i] || memcmp(key->data, names[i], lens[i])))
            i++;
        if (i == n)
            jx_error(c, "%s '%s' got an unexpected keyword argument %s", what, f->name, jx_repr_text(c, a->kw[k].key));
        if (bound[i].kind != JX_MISSING)
            jx_error(c, "%s '%s' got multiple values for argument %s", what, f->name, jx_repr_text(c, a->kw[k].key));
        bound[i] = a->kw[k].value;
    }
    for (size_t i = 0; i < required; i++)
        if (bound[i].kind == JX_MISSING)
            jx_error(c, "%s '%s' is missing argument '%.*s'", what, f->name, (int)lens[i], names[i]);
    jx_args b = {.v = bound, .n = n};
    return f->fn(c, self, &b);
}

jx_value jx_bind(jx *c, const jx_func *f, jx_value self)
{
    jx_bound *b = JX_NEW(c, jx_bound);
    b->fn = f;
    b->self = self;
    return (jx_value){.kind = JX_FUNC, .fn = b};
}

jx_value jx_call(jx *c, jx_value callee, jx_args *a)
{
    switch ((jx_kind)callee.kind) {
    case JX_UNDEFINED: jx_throw_undefined(c, callee);
    case JX_MACRO: return jx_macro_call(c, callee.macro, a);
    case JX_FUNC: return jx_call_func(c, callee.fn->fn, "function", callee.fn->self, a);
    case JX_LOOP:
        if (a->n != 1 || a->n_kw)
            jx_error(c, "loop() takes one argument");
        return jx_loop_call(c, callee.loop, a->v[0]);
    case JX_BLOCK:
        if (a->n || a->n_kw)
            jx_error(c, "a block takes no arguments");
        return jx_block_call(c, callee.block);
    case JX_JOINER:
        if (a->n || a->n_kw)
            jx_error(c, "a joiner takes no arguments");
        if (!callee.cycle->pos) {
            callee.cycle->pos = 1;
            return JX_STRV(jx_str_lit(c, ""));
        }
        return callee.cycle->v[0];
    default: jx_error(c, "'%s' object is not callable", jx_type_name(callee));
    }
}

/* ---- global functions ---- */

static jx_value global_raise(jx *c, jx_value self, jx_args *a)
{
    (void)self;
    const jx_str *s = jx_to_str(c, a->v[0]);
    c->status = XD_BAD_REQUEST;
    xd_fail_field(c->err, XD_BAD_REQUEST, NULL, "template_raise", "%.*s", (int)XD_MIN(s->len, (size_t)4096), s->data);
    longjmp(c->jump, 1);
}

static jx_value global_range(jx *c, jx_value self, jx_args *a)
{
    (void)self;
    if (!a->n || a->n > 3 || a->n_kw)
        jx_error(c, "range expected 1 to 3 arguments, got %zu", a->n);
    jx_int first = jx_need_int(c, a->v[0]);
    jx_range *r = jx_range_new(c, a->n > 1 ? first : 0, a->n > 1 ? jx_need_int(c, a->v[1]) : first,
                               a->n > 2 ? jx_need_int(c, a->v[2]) : 1);
    if (r->n > JX_MAX_RANGE)
        jx_error(c, "Range too big. The sandbox blocks ranges larger than MAX_RANGE (%d).", JX_MAX_RANGE);
    return (jx_value){.kind = JX_RANGE, .r = r};
}

/* dict(mapping or pairs, **kwargs) */
static jx_dict *make_dict(jx *c, const char *what, const jx_args *a)
{
    jx_dict *d = jx_dict_new(c, a->n_kw);
    if (a->n > 1)
        jx_error(c, "%s expected at most 1 argument, got %zu", what, a->n);
    if (a->n && a->v[0].kind == JX_UNDEFINED) /* Python asks it for keys() */
        jx_throw_undefined(c, a->v[0]);
    if (a->n && (a->v[0].kind == JX_DICT || a->v[0].kind == JX_NAMESPACE)) {
        for (size_t i = 0; i < a->v[0].d->n; i++)
            jx_dict_set(c, d, a->v[0].d->v[i].key, a->v[0].d->v[i].value);
    } else if (a->n) {
        jx_iter it = jx_iter_open(c, a->v[0]);
        jx_value item;
        while (jx_iter_next(c, &it, &item)) {
            jx_value pair = jx_to_list(c, item, JX_LIST);
            if (pair.l->n != 2)
                jx_error(c, "dictionary update sequence element has length %zu; 2 is required", pair.l->n);
            jx_dict_set(c, d, pair.l->v[0], pair.l->v[1]);
        }
    }
    for (size_t i = 0; i < a->n_kw; i++)
        jx_dict_set(c, d, a->kw[i].key, a->kw[i].value);
    return d;
}

static jx_value global_dict(jx *c, jx_value self, jx_args *a)
{
    (void)self;
    return (jx_value){.kind = JX_DICT, .d = make_dict(c, "dict", a)};
}

static jx_value global_namespace(jx *c, jx_value self, jx_args *a)
{
    (void)self;
    return (jx_value){.kind = JX_NAMESPACE, .d = make_dict(c, "namespace", a)};
}

static jx_value global_cycler(jx *c, jx_value self, jx_args *a)
{
    (void)self;
    if (!a->n || a->n_kw)
        jx_error(c, "at least one item has to be provided");
    jx_cycle *cy = JX_NEW(c, jx_cycle);
    *cy = (jx_cycle){.v = a->v, .n = a->n};
    return (jx_value){.kind = JX_CYCLER, .cycle = cy};
}

static jx_value global_joiner(jx *c, jx_value self, jx_args *a)
{
    (void)self;
    jx_cycle *cy = JX_NEW(c, jx_cycle);
    cy->v = JX_NEW(c, jx_value);
    cy->v[0] = a->v[0].kind == JX_MISSING ? JX_STRV(jx_str_lit(c, ", ")) : a->v[0];
    cy->n = 1;
    return (jx_value){.kind = JX_JOINER, .cycle = cy};
}

static jx_value global_lipsum(jx *c, jx_value self, jx_args *a)
{
    (void)self;
    (void)a;
    jx_error(c, "lipsum() writes random text: it is not supported");
}

/* Python's strftime on a naive local time: %f is microseconds, %z and %Z are empty, the rest is the C library's. */
static jx_value global_strftime_now(jx *c, jx_value self, jx_args *a)
{
    (void)self;
    const jx_str *s = jx_need_str(c, a->v[0], "strftime() argument 1");
    struct tm tm;
    time_t now = c->now ? c->now : time(NULL);
    if (!(c->now ? gmtime_r(&now, &tm) : localtime_r(&now, &tm)))
        jx_error(c, "the clock cannot be read");
    jx_sb format = {0};
    for (size_t i = 0; i < s->len; i++) {
        bool percent = s->data[i] == '%' && i + 1 < s->len;
        char next = percent ? s->data[i + 1] : 0;
        if (next == 'f')
            jx_sb_lit(c, &format, "000000");
        else if (next && next != 'z' && next != 'Z')
            jx_sb_add(c, &format, s->data + i, 2, true);
        else if (!percent && s->data[i])
            jx_sb_add(c, &format, s->data + i, 1, true);
        i += percent;
    }
    jx_sb_lit(c, &format, "."); /* so that an empty result and a full buffer differ */
    jx_sb_add(c, &format, "", 1, true);
    if (format.len > 4096)
        jx_error(c, "the time format is too long");
    char out[32768];
    size_t n = strftime(out, sizeof out, format.data, &tm);
    if (!n)
        jx_error(c, "the time format makes too long a text");
    return JX_STRV(jx_str_copy(c, out, n - 1, jx_str_trusted(s)));
}

const jx_func *jx_find_global(const jx_str *name)
{
    static const jx_func globals[] = {
        {"cycler", global_cycler, NULL},       {"dict", global_dict, NULL},
        {"lipsum", global_lipsum, NULL},       {"joiner", global_joiner, "| sep"},
        {"namespace", global_namespace, NULL}, {"raise_exception", global_raise, "message"},
        {"range", global_range, NULL},         {"strftime_now", global_strftime_now, "format"},
    };
    for (size_t i = 0; i < XD_ARRAY_LEN(globals); i++)
        if (jx_str_is(name, globals[i].name))
            return &globals[i];
    return NULL;
}
