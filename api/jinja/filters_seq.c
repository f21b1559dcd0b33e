/* filters_seq.c - filters over sequences: selecting, mapping, sorting, grouping. What is a generator in jinja2 is one here. */
#include <string.h>

#include "api/jinja/jinja_priv.h"

#define FILTER(name) static jx_value filter_##name(jx *c, jx_value v, jx_args *a)

/* ---- attribute getters ---- */

/* "a.b.0": one attribute after the other, numbers as indices. */
static jx_value get_path(jx *c, jx_value item, jx_value path, jx_value other)
{
    if (path.kind == JX_NONE || path.kind == JX_MISSING)
        return item;
    if (path.kind != JX_STR) {
        item = jx_getitem(c, item, path);
        return item.kind == JX_UNDEFINED && other.kind != JX_NONE && other.kind != JX_MISSING ? other : item;
    }
    for (size_t from = 0; from <= path.s->len;) {
        const char *dot = memchr(path.s->data + from, '.', path.s->len - from);
        size_t to = dot ? (size_t)(dot - path.s->data) : path.s->len;
        const jx_str *part = jx_str_sub(c, path.s, from, to);
        jx_int index;
        bool number = part->len > 0;
        for (size_t i = 0; i < part->len; i++)
            number = number && part->data[i] >= '0' && part->data[i] <= '9';
        item = jx_getitem(c, item, number && jx_parse_int(part, 10, &index) ? JX_INTV(index) : JX_STRV(part));
        if (item.kind == JX_UNDEFINED && other.kind != JX_NONE && other.kind != JX_MISSING)
            item = other;
        from = to + 1;
    }
    return item;
}

static jx_value ignore_case(jx *c, jx_value v, bool case_sensitive)
{
    return v.kind == JX_STR && !case_sensitive ? JX_STRV(jx_str_case(c, v.s, JX_LOWER)) : v;
}

/* The sort key of "a,b.c": a list with one value a path. */
static jx_value sort_key(jx *c, jx_value item, jx_value paths, bool case_sensitive)
{
    jx_vec l = {0};
    if (paths.kind != JX_STR) {
        jx_push(c, &l, ignore_case(c, get_path(c, item, paths, JX_ABSENT), case_sensitive));
        return jx_vec_list(c, &l, JX_LIST);
    }
    for (size_t from = 0; from <= paths.s->len;) {
        const char *comma = memchr(paths.s->data + from, ',', paths.s->len - from);
        size_t to = comma ? (size_t)(comma - paths.s->data) : paths.s->len;
        jx_value path = JX_STRV(jx_str_sub(c, paths.s, from, to));
        jx_push(c, &l, ignore_case(c, get_path(c, item, path, JX_ABSENT), case_sensitive));
        from = to + 1;
    }
    return jx_vec_list(c, &l, JX_LIST);
}

static bool is_more(jx *c, jx_value a, jx_value b)
{
    return jx_less(c, b, a);
}

static jx_pair *with_room(jx *c, size_t n)
{
    return jx_alloc_array(c, n, 2 * sizeof(jx_pair)); /* the second half is for sorting */
}

static jx_value sorted_list(jx *c, jx_pair *pairs, size_t n, bool reverse)
{
    jx_sort_pairs(c, pairs, n, reverse ? is_more : jx_less);
    jx_list *l = jx_list_new(c, n);
    for (size_t i = 0; i < n; i++)
        l->v[i] = pairs[i].value;
    return JX_LISTV(l);
}

/* sorted()'s own argument: it takes nothing but integers. */
static bool is_reverse(jx *c, jx_value v)
{
    jx_int i = v.kind == JX_MISSING ? 0 : jx_need_int(c, v);
    if (i > INT32_MAX || i < INT32_MIN)
        jx_error(c, "Python int too large to convert to C int");
    return i != 0;
}

FILTER(sort)
{
    jx_value items = jx_to_list(c, v, JX_LIST);
    size_t n = items.l->n;
    jx_pair *pairs = with_room(c, n);
    for (size_t i = 0; i < n; i++)
        pairs[i] = (jx_pair){sort_key(c, items.l->v[i], a->v[2], jx_given_true(c, a->v[1])), items.l->v[i]};
    return sorted_list(c, pairs, n, is_reverse(c, a->v[0]));
}

FILTER(dictsort)
{
    const jx_str *by = a->v[1].kind == JX_MISSING ? jx_str_lit(c, "key") : jx_need_str(c, a->v[1], "by");
    bool by_value = jx_str_is(by, "value");
    if (!by_value && !jx_str_is(by, "key"))
        jx_error(c, "You can only sort by either \"key\" or \"value\"");
    if (v.kind == JX_UNDEFINED)
        jx_throw_undefined(c, v);
    if (v.kind != JX_DICT)
        jx_error(c, "'%s' object has no attribute 'items'", jx_type_name(v));
    size_t n = v.d->n;
    jx_pair *pairs = with_room(c, n);
    for (size_t i = 0; i < n; i++) {
        jx_value key = by_value ? v.d->v[i].value : v.d->v[i].key;
        pairs[i] =
            (jx_pair){ignore_case(c, key, jx_given_true(c, a->v[0])), jx_tuple(c, 2, v.d->v[i].key, v.d->v[i].value)};
    }
    return sorted_list(c, pairs, n, is_reverse(c, a->v[2]));
}

FILTER(groupby)
{
    jx_value items = jx_to_list(c, v, JX_LIST), path = a->v[0], other = a->v[1];
    bool case_sensitive = jx_given_true(c, a->v[2]);
    size_t n = items.l->n;
    jx_pair *pairs = with_room(c, n);
    for (size_t i = 0; i < n; i++)
        pairs[i] = (jx_pair){ignore_case(c, get_path(c, items.l->v[i], path, other), case_sensitive), items.l->v[i]};
    jx_sort_pairs(c, pairs, n, jx_less);
    jx_vec groups = {0};
    for (size_t i = 0, j; i < n; i = j) {
        jx_vec members = {0};
        for (j = i; j < n && jx_equal(c, pairs[j].key, pairs[i].key); j++)
            jx_push(c, &members, pairs[j].value);
        if (j == i) /* a key that does not equal itself: NaN */
            jx_push(c, &members, pairs[j++].value);
        jx_list *pair = jx_list_new(c, 2);
        pair->v[0] = get_path(c, members.v[0], path, other);
        pair->v[1] = jx_vec_list(c, &members, JX_LIST);
        pair->group = true;
        jx_push(c, &groups, (jx_value){.kind = JX_TUPLE, .l = pair});
    }
    return jx_vec_list(c, &groups, JX_LIST);
}

/* ---- generators ----
 *
 * As in jinja2 they compute an item only when it is asked for: a fault in an item that nobody looks at is none. */

typedef struct gen {
    jx_value of, arg[2];
    jx_args args;
    bool started, attribute, keep;
    jx_iter it;
    jx_dict *seen;
    jx_value path, other;
    size_t at;
} gen;

static jx_value make_gen(jx *c, jx_step step, gen g)
{
    gen *copy = JX_NEW(c, gen);
    *copy = g;
    return jx_lazy(c, step, copy);
}

static bool unique_next(jx *c, void *state, jx_value *ret)
{
    gen *g = state;
    if (!g->started) {
        g->it = jx_iter_open(c, g->of);
        g->seen = jx_dict_new(c, 0);
        g->started = true;
    }
    while (jx_iter_next(c, &g->it, ret)) {
        jx_value key = ignore_case(c, get_path(c, *ret, g->arg[1], JX_ABSENT), jx_given_true(c, g->arg[0]));
        if (jx_dict_get(c, g->seen, key))
            continue;
        jx_dict_set(c, g->seen, key, JX_NIL);
        return true;
    }
    return false;
}

FILTER(unique)
{
    return make_gen(c, unique_next, (gen){.of = v, .arg = {a->v[0], a->v[1]}});
}

static jx_value extreme(jx *c, jx_value v, jx_args *a, bool largest)
{
    jx_iter it = jx_iter_open(c, v);
    jx_value best, item;
    bool case_sensitive = jx_given_true(c, a->v[0]);
    if (!jx_iter_next(c, &it, &best))
        return jx_undefined(c, "No aggregated item, sequence was empty.");
    jx_value best_key = ignore_case(c, get_path(c, best, a->v[1], JX_ABSENT), case_sensitive);
    while (jx_iter_next(c, &it, &item)) {
        jx_value key = ignore_case(c, get_path(c, item, a->v[1], JX_ABSENT), case_sensitive);
        if (jx_compare_op(c, largest ? JX_GT : JX_LT, key, best_key)) {
            best = item;
            best_key = key;
        }
    }
    return best;
}
FILTER(max)
{
    return extreme(c, v, a, true);
}
FILTER(min)
{
    return extreme(c, v, a, false);
}

FILTER(sum)
{
    jx_value total = a->v[1].kind == JX_MISSING ? JX_INTV(0) : a->v[1], item;
    if (total.kind == JX_STR)
        jx_error(c, "sum() can't sum strings [use ''.join(seq) instead]");
    jx_iter it = jx_iter_open(c, v);
    while (jx_iter_next(c, &it, &item))
        total = jx_binary(c, JX_ADD, total, get_path(c, item, a->v[0], JX_ABSENT));
    return total;
}

/* ---- map, select ---- */

/* Calls filter or test `name` on item with what is left of the arguments. */
static jx_value apply(jx *c, bool test, jx_value name, jx_value item, const jx_args *rest)
{
    const jx_str *s = jx_need_str(c, name, "a filter or test name");
    const jx_func *f = test ? jx_find_test(s) : jx_find_filter(s);
    if (!f)
        jx_error(c, "No %s named %s.", test ? "test" : "filter", jx_repr_text(c, name));
    jx_args a = *rest;
    return jx_call_func(c, f, test ? "test" : "filter", item, &a);
}

static bool map_start(jx *c, gen *g)
{
    const jx_args *a = &g->args;
    g->started = true;
    if (!jx_truth(c, g->of))
        return false;
    for (size_t i = 0; i < a->n_kw && !a->n; i++)
        if (jx_str_is(a->kw[i].key.s, "attribute"))
            g->path = a->kw[i].value;
    if (!a->n && g->path.kind == JX_MISSING)
        jx_error(c, "map requires a filter argument");
    for (size_t i = 0; i < a->n_kw && !a->n; i++) {
        if (jx_str_is(a->kw[i].key.s, "default"))
            g->other = a->kw[i].value;
        else if (!jx_str_is(a->kw[i].key.s, "attribute"))
            jx_error(c, "Unexpected keyword argument %s", jx_repr_text(c, a->kw[i].key));
    }
    g->it = jx_iter_open(c, g->of);
    return true;
}

/* The arguments behind the first `used` ones. */
static jx_args rest_of(const jx_args *a, size_t used)
{
    return (jx_args){
        .v = a->n > used ? a->v + used : NULL, .n = a->n > used ? a->n - used : 0, .kw = a->kw, .n_kw = a->n_kw};
}

static bool map_next(jx *c, void *state, jx_value *ret)
{
    gen *g = state;
    if (!g->started && !map_start(c, g))
        return false;
    if (!jx_iter_next(c, &g->it, ret))
        return false;
    jx_args rest = rest_of(&g->args, 1);
    *ret = g->args.n ? apply(c, false, g->args.v[0], *ret, &rest) : get_path(c, *ret, g->path, g->other);
    return true;
}

FILTER(map)
{
    return make_gen(c, map_next, (gen){.of = v, .args = *a});
}

static bool choose_next(jx *c, void *state, jx_value *ret)
{
    gen *g = state;
    const jx_args *a = &g->args;
    size_t used = g->attribute;
    if (!g->started) {
        g->started = true;
        if (!jx_truth(c, g->of))
            return false;
        if (a->n < used)
            jx_error(c, "Missing parameter for attribute name");
        g->it = jx_iter_open(c, g->of);
    }
    jx_args rest = rest_of(a, used + 1);
    while (jx_iter_next(c, &g->it, ret)) {
        jx_value what = g->attribute ? get_path(c, *ret, a->v[0], JX_ABSENT) : *ret;
        if (jx_truth(c, a->n > used ? apply(c, true, a->v[used], what, &rest) : what) == g->keep)
            return true;
    }
    return false;
}

static jx_value choose(jx *c, jx_value v, jx_args *a, bool attribute, bool keep)
{
    return make_gen(c, choose_next, (gen){.of = v, .args = *a, .attribute = attribute, .keep = keep});
}
FILTER(select)
{
    return choose(c, v, a, false, true);
}
FILTER(reject)
{
    return choose(c, v, a, false, false);
}
FILTER(selectattr)
{
    return choose(c, v, a, true, true);
}
FILTER(rejectattr)
{
    return choose(c, v, a, true, false);
}

/* ---- the rest ---- */

static bool batch_next(jx *c, void *state, jx_value *ret)
{
    gen *g = state;
    jx_vec now = {0};
    jx_value item = g->path; /* the one that did not fit in the batch before */
    if (!g->started) {
        g->it = jx_iter_open(c, g->of);
        g->started = true;
    }
    g->path = JX_ABSENT;
    while (item.kind != JX_MISSING || jx_iter_next(c, &g->it, &item)) {
        if (now.n ? jx_compare_op(c, JX_EQ, JX_INTV((jx_int)now.n), g->arg[0])
                  : !g->at && jx_compare_op(c, JX_EQ, JX_INTV(0), g->arg[0])) {
            g->path = item;
            g->at = 1; /* a batch of none comes once at most */
            *ret = jx_vec_list(c, &now, JX_LIST);
            return true;
        }
        jx_push(c, &now, item);
        item = JX_ABSENT;
    }
    if (!now.n)
        return false;
    if (jx_given_not_none(g->arg[1]) && jx_compare(c, JX_INTV((jx_int)now.n), g->arg[0], "<") < 0)
        for (int64_t missing = jx_need_index(c, g->arg[0]) - (int64_t)now.n; missing > 0; missing--)
            jx_push(c, &now, g->arg[1]);
    *ret = jx_vec_list(c, &now, JX_LIST);
    return true;
}

FILTER(batch)
{
    return make_gen(c, batch_next, (gen){.of = v, .arg = {a->v[0], a->v[1]}});
}

static bool slice_next(jx *c, void *state, jx_value *ret)
{
    gen *g = state;
    if (!g->started) {
        g->of = jx_to_list(c, g->of, JX_LIST);
        g->started = true;
    }
    int64_t slices = jx_need_index(c, g->arg[0]), n = (int64_t)g->of.l->n, at = (int64_t)g->at;
    if (!slices)
        jx_error(c, "integer division or modulo by zero");
    if (at >= slices)
        return false;
    int64_t per = n / slices, extra = n % slices;
    int64_t start = at * per + XD_MIN(at, extra), end = start + per + (at < extra);
    jx_vec part = {0};
    for (int64_t i = start; i < end; i++)
        jx_push(c, &part, g->of.l->v[i]);
    if (jx_given_not_none(g->arg[1]) && at >= extra)
        jx_push(c, &part, g->arg[1]);
    g->at++;
    *ret = jx_vec_list(c, &part, JX_LIST);
    return true;
}

FILTER(slice)
{
    return make_gen(c, slice_next, (gen){.of = v, .arg = {a->v[0], a->v[1]}});
}

FILTER(first)
{
    (void)a;
    jx_iter it = jx_iter_open(c, v);
    jx_value item;
    return jx_iter_next(c, &it, &item) ? item : jx_undefined(c, "No first item, sequence was empty.");
}

static jx_value last_char(jx *c, const jx_str *s)
{
    const char *at = s->data + s->len;
    jx_char_back(s->data, &at);
    return JX_STRV(jx_str_sub(c, s, (size_t)(at - s->data), s->len));
}

FILTER(last)
{
    (void)a;
    size_t n;
    if (!jx_iterable(v) || !jx_len(v, &n))
        jx_error(c, "'%s' object is not reversible", jx_type_name(v));
    if (!n)
        return jx_undefined(c, "No last item, sequence was empty.");
    if (v.kind == JX_STR)
        return last_char(c, v.s);
    if (v.kind == JX_LIST || v.kind == JX_TUPLE)
        return v.l->v[n - 1];
    jx_value all = jx_to_list(c, v, JX_LIST);
    return all.l->v[n - 1];
}

/* Any one item, by the clock's last digits: as in the reference, which one cannot be foretold. A clock that was set makes it repeatable. */
FILTER(random)
{
    (void)a;
    size_t n;
    if (!jx_len(v, &n) || v.kind == JX_SET || v.kind == JX_VIEW)
        jx_error(c, "'%s' object is not subscriptable", jx_type_name(v));
    if (!n)
        return jx_undefined(c, "No random item, sequence was empty.");
    uint64_t z = (c->now ? (uint64_t)c->now : xd_now_ns()) + XD_MIX64_STEP * ++c->randoms;
    jx_value at = JX_INTV((jx_int)(xd_mix64(z) % n));
    if (v.kind != JX_DICT)
        return jx_getitem(c, v, at);
    const jx_value *found = jx_dict_get(c, v.d, at);
    if (!found)
        jx_error(c, "KeyError: %lld", (long long)at.i);
    return *found;
}

FILTER(reverse)
{
    (void)a;
    if (v.kind == JX_STR)
        return jx_slice(c, v, JX_NIL, JX_NIL, JX_INTV(-1));
    if (!jx_iterable(v))
        jx_error(c, "argument must be iterable");
    jx_value all = jx_slice(c, jx_to_list(c, v, JX_LIST), JX_NIL, JX_NIL, JX_INTV(-1));
    return v.kind == JX_ITER ? all : jx_generator(c, all, "list_reverseiterator");
}

static bool items_next(jx *c, void *state, jx_value *ret)
{
    gen *g = state;
    if (g->of.kind != JX_UNDEFINED && g->of.kind != JX_DICT)
        jx_error(c, "Can only get item pairs from a mapping.");
    if (g->of.kind == JX_UNDEFINED || g->at == g->of.d->n)
        return false;
    const jx_pair *p = &g->of.d->v[g->at++];
    *ret = jx_tuple(c, 2, p->key, p->value);
    return true;
}

FILTER(items)
{
    (void)a;
    return make_gen(c, items_next, (gen){.of = v});
}

FILTER(join)
{
    const jx_str *sep = a->v[0].kind == JX_MISSING ? jx_str_lit(c, "") : jx_to_str(c, a->v[0]);
    jx_sb b = {0};
    jx_iter it = jx_iter_open(c, v);
    jx_value item;
    for (size_t i = 0; jx_iter_next(c, &it, &item); i++) {
        if (i)
            jx_sb_str(c, &b, sep);
        jx_print(c, &b, get_path(c, item, a->v[1], JX_ABSENT));
    }
    return JX_STRV(jx_sb_done(c, &b));
}

FILTER(length)
{
    (void)a;
    size_t n;
    if (!jx_len(v, &n))
        jx_error(c, "object of type '%s' has no len()", jx_type_name(v));
    return JX_INTV((jx_int)n);
}

FILTER(list)
{
    (void)a;
    return jx_to_list(c, v, JX_LIST);
}

const jx_func jx_seq_filters[] = {
    {"batch", filter_batch, "linecount | fill_with"},
    {"count", filter_length, ""},
    {"dictsort", filter_dictsort, "| case_sensitive by reverse"},
    {"first", filter_first, ""},
    {"groupby", filter_groupby, "attribute | default case_sensitive"},
    {"items", filter_items, ""},
    {"join", filter_join, "| d attribute"},
    {"last", filter_last, ""},
    {"length", filter_length, ""},
    {"list", filter_list, ""},
    {"map", filter_map, NULL},
    {"max", filter_max, "| case_sensitive attribute"},
    {"min", filter_min, "| case_sensitive attribute"},
    {"random", filter_random, ""},
    {"reject", filter_reject, NULL},
    {"rejectattr", filter_rejectattr, NULL},
    {"reverse", filter_reverse, ""},
    {"select", filter_select, NULL},
    {"selectattr", filter_selectattr, NULL},
    {"slice", filter_slice, "slices | fill_with"},
    {"sort", filter_sort, "| reverse case_sensitive attribute"},
    {"sum", filter_sum, "| attribute start"},
    {"unique", filter_unique, "| case_sensitive attribute"},
    {NULL, NULL, NULL},
};
