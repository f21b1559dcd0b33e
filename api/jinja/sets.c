/* sets.c - what set-like values can do: sets, and the keys() and items() of a dict. A template gets a set only from "-" with such a view or
 * from a method; "|" and "&" between values are not in jinja2's grammar.
 *
 * A set is a dict whose values do not matter, so it is walked in the order of insertion, where Python's order is that of hashes. */

#include "api/jinja/jinja_priv.h"

bool jx_is_setlike(jx_value v)
{
    return v.kind == JX_SET || (v.kind == JX_VIEW && v.view->what != JX_VALUES);
}

static jx_value new_set(jx *c)
{
    return (jx_value){.kind = JX_SET, .d = jx_dict_new(c, 0)};
}

static void add_all(jx *c, jx_value set, jx_value from)
{
    jx_iter it = jx_iter_open(c, from);
    jx_value item;
    while (jx_iter_next(c, &it, &item))
        jx_dict_set(c, set.d, item, JX_NIL);
}

static jx_value to_set(jx *c, jx_value v)
{
    jx_value set = new_set(c);
    add_all(c, set, v);
    return set;
}

/* The items of a that are in b, or those that are not. */
static jx_value filtered(jx *c, jx_value a, jx_value b, bool in)
{
    jx_value set = new_set(c), other = b.kind == JX_SET ? b : to_set(c, b), item;
    jx_iter it = jx_iter_open(c, a);
    while (jx_iter_next(c, &it, &item))
        if ((jx_dict_get(c, other.d, item) != NULL) == in)
            jx_dict_set(c, set.d, item, JX_NIL);
    return set;
}

jx_value jx_set_minus(jx *c, jx_value a, jx_value b)
{
    return filtered(c, a, b, false);
}

static bool is_subset(jx *c, jx_value a, jx_value b)
{
    jx_iter it = jx_iter_open(c, a);
    jx_value item;
    while (jx_iter_next(c, &it, &item))
        if (!jx_contains(c, b, item))
            return false;
    return true;
}

/* Python's order of sets is inclusion: -1 a in b, 1 b in a, 0 the same, 2 neither. */
int jx_set_compare(jx *c, jx_value a, jx_value b)
{
    size_t n = 0, m = 0;
    jx_len(a, &n);
    jx_len(b, &m);
    if (n > m)
        return is_subset(c, b, a) ? 1 : 2;
    return !is_subset(c, a, b) ? 2 : n == m ? 0 : -1;
}

/* ---- methods ---- */

static jx_value set_copy(jx *c, jx_value self, jx_args *a)
{
    (void)a;
    return to_set(c, self);
}
static jx_value set_union(jx *c, jx_value self, jx_args *a)
{
    jx_value set = to_set(c, self);
    for (size_t i = 0; i < a->n; i++)
        add_all(c, set, a->v[i]);
    return set;
}
static jx_value set_difference(jx *c, jx_value self, jx_args *a)
{
    jx_value set = to_set(c, self);
    for (size_t i = 0; i < a->n; i++)
        set = filtered(c, set, a->v[i], false);
    return set;
}
static jx_value set_intersection(jx *c, jx_value self, jx_args *a)
{
    jx_value set = to_set(c, self);
    for (size_t i = 0; i < a->n; i++)
        set = filtered(c, set, a->v[i], true);
    return set;
}
static jx_value set_symmetric_difference(jx *c, jx_value self, jx_args *a)
{
    jx_value set = filtered(c, self, a->v[0], false);
    add_all(c, set, filtered(c, a->v[0], self, false));
    return set;
}
static jx_value set_isdisjoint(jx *c, jx_value self, jx_args *a)
{
    return JX_BOOLV(!filtered(c, self, a->v[0], true).d->n);
}
static jx_value set_issubset(jx *c, jx_value self, jx_args *a)
{
    return JX_BOOLV(is_subset(c, self, to_set(c, a->v[0])));
}
static jx_value set_issuperset(jx *c, jx_value self, jx_args *a)
{
    return JX_BOOLV(is_subset(c, to_set(c, a->v[0]), self));
}

const jx_func jx_set_methods[] = {
    {"copy", set_copy, "/"},
    {"difference", set_difference, NULL},
    {"intersection", set_intersection, NULL},
    {"isdisjoint", set_isdisjoint, "/ other"},
    {"issubset", set_issubset, "/ other"},
    {"issuperset", set_issuperset, "/ other"},
    {"symmetric_difference", set_symmetric_difference, "/ other"},
    {"union", set_union, NULL},
    {NULL, NULL, NULL},
};
const jx_func jx_view_methods[] = {
    {"isdisjoint", set_isdisjoint, "/ other"},
    {NULL, NULL, NULL},
};
