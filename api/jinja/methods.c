/* methods.c - which methods a value has: one table a type, and here those of lists, tuples, dicts and cyclers, as Python has them. Methods
 * that change a list or a dict are not here: the immutable sandbox refuses them (ops.c). */
#include "api/jinja/jinja_priv.h"

/* ---- list, tuple, range ---- */

static jx_value seq_count(jx *c, jx_value self, jx_args *a)
{
    size_t n = 0;
    jx_iter it = jx_iter_open(c, self);
    jx_value item;
    while (jx_iter_next(c, &it, &item))
        n += jx_equal(c, item, a->v[0]);
    return JX_INTV((jx_int)n);
}

static jx_value seq_index(jx *c, jx_value self, jx_args *a)
{
    size_t n = 0;
    jx_len(self, &n);
    int64_t len = (int64_t)n, from = jx_given(a->v[1]) ? jx_need_index(c, a->v[1]) : 0,
            to = jx_given(a->v[2]) ? jx_need_index(c, a->v[2]) : len;
    from = from < 0 ? XD_MAX(from + len, 0) : from;
    to = to < 0 ? to + len : to;
    jx_iter it = jx_iter_open(c, self);
    jx_value item;
    for (int64_t i = 0; jx_iter_next(c, &it, &item); i++)
        if (i >= from && i < to && jx_equal(c, item, a->v[0]))
            return JX_INTV(i);
    jx_error(c, "%s is not in %s", jx_repr_text(c, a->v[0]), jx_type_name(self));
}

static jx_value list_copy(jx *c, jx_value self, jx_args *a)
{
    (void)c;
    (void)a;
    return self; /* lists never change */
}

static const jx_func seq_methods[] = {
    {"count", seq_count, "/ value"},
    {"index", seq_index, "/ value | start stop"},
    {NULL, NULL, NULL},
};
static const jx_func list_methods[] = {
    {"copy", list_copy, "/"},
    {"count", seq_count, "/ value"},
    {"index", seq_index, "/ value | start stop"},
    {NULL, NULL, NULL},
};

/* ---- dict ---- */

static jx_value view(jx *c, jx_value self, int what)
{
    jx_view *v = JX_NEW(c, jx_view);
    v->d = self.d;
    v->what = what;
    return (jx_value){.kind = JX_VIEW, .client = self.client, .view = v};
}
static jx_value dict_keys(jx *c, jx_value self, jx_args *a)
{
    (void)a;
    return view(c, self, JX_KEYS);
}
static jx_value dict_values(jx *c, jx_value self, jx_args *a)
{
    (void)a;
    return view(c, self, JX_VALUES);
}
static jx_value dict_items(jx *c, jx_value self, jx_args *a)
{
    (void)a;
    return view(c, self, JX_ITEMS);
}

static jx_value dict_get(jx *c, jx_value self, jx_args *a)
{
    if (a->n_kw)
        jx_error(c, "dict.get() takes no keyword arguments");
    if (!a->n || a->n > 2)
        jx_error(c, "get expected 1 or 2 arguments, got %zu", a->n);
    const jx_value *v = jx_dict_get(c, self.d, a->v[0]);
    return v ? *v : a->n > 1 ? a->v[1] : JX_NIL;
}

static jx_value dict_fromkeys(jx *c, jx_value self, jx_args *a)
{
    (void)self;
    jx_dict *d = jx_dict_new(c, 0);
    jx_iter it = jx_iter_open(c, a->v[0]);
    jx_value key;
    while (jx_iter_next(c, &it, &key))
        jx_dict_set(c, d, key, jx_given(a->v[1]) ? a->v[1] : JX_NIL);
    return (jx_value){.kind = JX_DICT, .d = d};
}

static const jx_func dict_methods[] = {
    {"fromkeys", dict_fromkeys, "/ iterable | value"},
    {"copy", list_copy, "/"},
    {"get", dict_get, NULL},
    {"items", dict_items, "/"},
    {"keys", dict_keys, "/"},
    {"values", dict_values, "/"},
    {NULL, NULL, NULL},
};

/* ---- cycler ---- */

static jx_value cycler_next(jx *c, jx_value self, jx_args *a)
{
    (void)c;
    (void)a;
    jx_value v = self.cycle->v[self.cycle->pos];
    self.cycle->pos = (self.cycle->pos + 1) % self.cycle->n;
    return v;
}
static jx_value cycler_reset(jx *c, jx_value self, jx_args *a)
{
    (void)c;
    (void)a;
    self.cycle->pos = 0;
    return JX_NIL;
}

static const jx_func cycler_methods[] = {
    {"next", cycler_next, ""},
    {"reset", cycler_reset, ""},
    {NULL, NULL, NULL},
};

const jx_func *jx_find_method(jx_value of, const jx_str *name)
{
    const jx_func *f;
    switch ((jx_kind)of.kind) {
    case JX_STR: f = jx_str_methods; break;
    case JX_LIST: f = list_methods; break;
    case JX_TUPLE:
    case JX_RANGE: f = seq_methods; break;
    case JX_DICT: f = dict_methods; break;
    case JX_CYCLER: f = cycler_methods; break;
    case JX_BOOL:
    case JX_INT: f = jx_int_methods; break;
    case JX_FLOAT: f = jx_float_methods; break;
    case JX_SET: f = jx_set_methods; break;
    case JX_VIEW:
        if (!jx_is_setlike(of))
            return NULL;
        f = jx_view_methods;
        break;
    default: return NULL;
    }
    for (; f->name; f++)
        if (jx_str_is(name, f->name))
            return f;
    return NULL;
}
