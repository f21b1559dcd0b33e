/* tests.c - what may follow "is": jinja2's tests, one table. */
#include <string.h>

#include "api/jinja/jinja_priv.h"

#define TEST(name) static jx_value test_##name(jx *c, jx_value v, jx_args *a)
#define UNUSED     ((void)c, (void)a)

static jx_value number_mod(jx *c, jx_value v, jx_value by, int rest)
{
    return JX_BOOLV(jx_equal(c, jx_binary(c, JX_MOD, v, by), JX_INTV(rest)));
}

TEST(odd)
{
    UNUSED;
    return number_mod(c, v, JX_INTV(2), 1);
}
TEST(even)
{
    UNUSED;
    return number_mod(c, v, JX_INTV(2), 0);
}
TEST(divisibleby)
{
    return number_mod(c, v, a->v[0], 0);
}
TEST(defined)
{
    UNUSED;
    return JX_BOOLV(v.kind != JX_UNDEFINED);
}
TEST(undefined)
{
    UNUSED;
    return JX_BOOLV(v.kind == JX_UNDEFINED);
}
TEST(none)
{
    UNUSED;
    return JX_BOOLV(v.kind == JX_NONE);
}
TEST(boolean)
{
    UNUSED;
    return JX_BOOLV(v.kind == JX_BOOL);
}
TEST(true)
{
    UNUSED;
    return JX_BOOLV(v.kind == JX_BOOL && v.b);
}
TEST(false)
{
    UNUSED;
    return JX_BOOLV(v.kind == JX_BOOL && !v.b);
}
TEST(integer)
{
    UNUSED;
    return JX_BOOLV(v.kind == JX_INT);
}
TEST(float)
{
    UNUSED;
    return JX_BOOLV(v.kind == JX_FLOAT);
}
TEST(number)
{
    UNUSED;
    return JX_BOOLV(jx_is_number(v));
}
TEST(string)
{
    UNUSED;
    return JX_BOOLV(v.kind == JX_STR);
}
TEST(mapping)
{
    UNUSED;
    return JX_BOOLV(v.kind == JX_DICT);
}
TEST(sequence)
{
    UNUSED;
    return JX_BOOLV(v.kind == JX_STR || v.kind == JX_LIST || v.kind == JX_TUPLE || v.kind == JX_DICT ||
                    v.kind == JX_RANGE || v.kind == JX_UNDEFINED);
}
TEST(iterable)
{
    UNUSED;
    return JX_BOOLV(jx_iterable(v) || v.kind == JX_LOOP);
}
TEST(callable)
{
    UNUSED;
    return JX_BOOLV(v.kind == JX_FUNC || v.kind == JX_MACRO || v.kind == JX_JOINER || v.kind == JX_LOOP ||
                    v.kind == JX_BLOCK || v.kind == JX_UNDEFINED);
}
TEST(escaped)
{
    UNUSED;
    return JX_BOOLV(v.kind == JX_STR && v.s->markup);
}
TEST(lower)
{
    (void)a;
    bool yes = false;
    const jx_str *s = jx_to_str(c, v);
    jx_charge(c, s->len / 4);
    jx_str_class(s, "islower", &yes);
    return JX_BOOLV(yes);
}
TEST(upper)
{
    (void)a;
    bool yes = false;
    const jx_str *s = jx_to_str(c, v);
    jx_charge(c, s->len / 4);
    jx_str_class(s, "isupper", &yes);
    return JX_BOOLV(yes);
}
/* Python looks the value up in a dict. */
static bool is_key_of(jx *c, jx_value v, const jx_func *(*find)(const jx_str *name))
{
    jx_dict_set(c, jx_dict_new(c, 0), v, JX_NIL); /* fails for what cannot be a key */
    return v.kind == JX_STR && find(v.s);
}

TEST(filter)
{
    UNUSED;
    return JX_BOOLV(is_key_of(c, v, jx_find_filter));
}
TEST(test)
{
    UNUSED;
    return JX_BOOLV(is_key_of(c, v, jx_find_test));
}
TEST(in)
{
    return JX_BOOLV(jx_contains(c, a->v[0], v));
}

/* Identity. Python shares None, True, False, small integers and constants; other objects are the same if they are one value here. */
TEST(sameas)
{
    jx_value o = a->v[0];
    if (v.kind != o.kind)
        return JX_BOOLV(false);
    if (v.kind == JX_STR)
        return JX_BOOLV(v.s == o.s || jx_str_eq(v.s, o.s));
    if (v.kind == JX_LIST || v.kind == JX_TUPLE)
        return JX_BOOLV(v.l == o.l || (v.kind == JX_TUPLE && !v.l->n && !o.l->n));
    if (v.kind == JX_DICT || v.kind == JX_UNDEFINED)
        return JX_BOOLV(v.d == o.d);
    return JX_BOOLV(jx_equal(c, v, o));
}

TEST(eq)
{
    return JX_BOOLV(jx_compare_op(c, JX_EQ, v, a->v[0]));
}
TEST(ne)
{
    return JX_BOOLV(jx_compare_op(c, JX_NE, v, a->v[0]));
}
TEST(lt)
{
    return JX_BOOLV(jx_compare_op(c, JX_LT, v, a->v[0]));
}
TEST(le)
{
    return JX_BOOLV(jx_compare_op(c, JX_LE, v, a->v[0]));
}
TEST(gt)
{
    return JX_BOOLV(jx_compare_op(c, JX_GT, v, a->v[0]));
}
TEST(ge)
{
    return JX_BOOLV(jx_compare_op(c, JX_GE, v, a->v[0]));
}

const jx_func *jx_find_test(const jx_str *name)
{
    static const jx_func tests[] = {
        {"!=", test_ne, "other"},
        {"<", test_lt, "other"},
        {"<=", test_le, "other"},
        {"==", test_eq, "other"},
        {">", test_gt, "other"},
        {">=", test_ge, "other"},
        {"boolean", test_boolean, ""},
        {"callable", test_callable, ""},
        {"defined", test_defined, ""},
        {"divisibleby", test_divisibleby, "num"},
        {"eq", test_eq, "other"},
        {"equalto", test_eq, "other"},
        {"escaped", test_escaped, ""},
        {"even", test_even, ""},
        {"false", test_false, ""},
        {"filter", test_filter, ""},
        {"float", test_float, ""},
        {"ge", test_ge, "other"},
        {"greaterthan", test_gt, "other"},
        {"gt", test_gt, "other"},
        {"in", test_in, "seq"},
        {"integer", test_integer, ""},
        {"iterable", test_iterable, ""},
        {"le", test_le, "other"},
        {"lessthan", test_lt, "other"},
        {"lower", test_lower, ""},
        {"lt", test_lt, "other"},
        {"mapping", test_mapping, ""},
        {"ne", test_ne, "other"},
        {"none", test_none, ""},
        {"number", test_number, ""},
        {"odd", test_odd, ""},
        {"sameas", test_sameas, "other"},
        {"sequence", test_sequence, ""},
        {"string", test_string, ""},
        {"test", test_test, ""},
        {"true", test_true, ""},
        {"undefined", test_undefined, ""},
        {"upper", test_upper, ""},
    };
    for (size_t i = 0; i < XD_ARRAY_LEN(tests); i++)
        if (jx_str_is(name, tests[i].name))
            return &tests[i];
    return NULL;
}
