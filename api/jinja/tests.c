/* tests.c - what may follow "is": jinja2's tests, one table. */
#include <string.h>

#include "api/jinja/jinja_priv.h"

#define TEST(name) static jx_value test_##name(jx *c, jx_value v, jx_args *a)
/* One that looks at nothing but the value. */
#define TEST_IF(name, holds)                                   \
    static jx_value test_##name(jx *c, jx_value v, jx_args *a) \
    {                                                          \
        (void)c, (void)a;                                      \
        return JX_BOOLV(holds);                                \
    }

static jx_value number_mod(jx *c, jx_value v, jx_value by, int rest)
{
    return JX_BOOLV(jx_equal(c, jx_binary(c, JX_MOD, v, by), JX_INTV(rest)));
}

TEST(odd)
{
    (void)a;
    return number_mod(c, v, JX_INTV(2), 1);
}
TEST(even)
{
    (void)a;
    return number_mod(c, v, JX_INTV(2), 0);
}
TEST(divisibleby)
{
    return number_mod(c, v, a->v[0], 0);
}
TEST_IF(defined, v.kind != JX_UNDEFINED)
TEST_IF(undefined, v.kind == JX_UNDEFINED)
TEST_IF(none, v.kind == JX_NONE)
TEST_IF(boolean, v.kind == JX_BOOL)
TEST_IF(true, v.kind == JX_BOOL && v.b)
TEST_IF(false, v.kind == JX_BOOL && !v.b)
TEST_IF(integer, v.kind == JX_INT)
TEST_IF(float, v.kind == JX_FLOAT)
TEST_IF(number, jx_is_number(v))
TEST_IF(string, v.kind == JX_STR)
TEST_IF(mapping, v.kind == JX_DICT)
TEST_IF(sequence, v.kind == JX_STR || v.kind == JX_LIST || v.kind == JX_TUPLE || v.kind == JX_DICT ||
                      v.kind == JX_RANGE || v.kind == JX_UNDEFINED)
TEST_IF(iterable, jx_iterable(v) || v.kind == JX_LOOP)
TEST_IF(callable, v.kind == JX_FUNC || v.kind == JX_MACRO || v.kind == JX_JOINER || v.kind == JX_LOOP ||
                      v.kind == JX_BLOCK || v.kind == JX_UNDEFINED)
TEST_IF(escaped, v.kind == JX_STR && v.s->markup)

static jx_value is_cased(jx *c, jx_value v, const char *how)
{
    bool yes = false;
    const jx_str *s = jx_to_str(c, v);
    jx_charge(c, s->len / 4);
    jx_str_class(s, how, &yes);
    return JX_BOOLV(yes);
}

TEST(lower)
{
    (void)a;
    return is_cased(c, v, "islower");
}
TEST(upper)
{
    (void)a;
    return is_cased(c, v, "isupper");
}

/* Python looks the value up in a dict. */
static bool is_key_of(jx *c, jx_value v, const jx_func *(*find)(const jx_str *name))
{
    jx_dict_set(c, jx_dict_new(c, 0), v, JX_NIL); /* fails for what cannot be a key */
    return v.kind == JX_STR && find(v.s);
}

TEST_IF(filter, is_key_of(c, v, jx_find_filter))
TEST_IF(test, is_key_of(c, v, jx_find_test))
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
