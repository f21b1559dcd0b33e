/* ops.c - operators, subscripts and attributes, with Python's results: floor division towards minus infinity, true division to
 * float, True as 1. Integers beyond 127 bits are an error. */
#include <math.h>
#include <string.h>

#include "api/jinja/jinja_priv.h"

static const char *const op_text[] = {
    [JX_ADD] = "+",       [JX_SUB] = "-", [JX_MUL] = "*",           [JX_DIV] = "/",
    [JX_FLOORDIV] = "//", [JX_MOD] = "%", [JX_POW] = "** or pow()", [JX_EQ] = "==",
    [JX_NE] = "!=",       [JX_LT] = "<",  [JX_LE] = "<=",           [JX_GT] = ">",
    [JX_GE] = ">=",       [JX_IN] = "in", [JX_NOTIN] = "not in",
};

_Noreturn static void bad_operands(jx *c, jx_op op, jx_value a, jx_value b)
{
    if (a.kind == JX_UNDEFINED || b.kind == JX_UNDEFINED)
        jx_throw_undefined(c, a.kind == JX_UNDEFINED ? a : b);
    jx_error(c, "unsupported operand type(s) for %s: '%s' and '%s'", op_text[op], jx_type_name(a), jx_type_name(b));
}

_Noreturn static void too_large(jx *c)
{
    jx_error(c, "the integer result is too large");
}

static jx_int int_pow(jx *c, jx_int base, jx_int exp)
{
    jx_int r = 1;
    if (base == 0 || base == 1 || base == -1)
        return exp == 0 ? 1 : base == -1 && exp % 2 == 0 ? 1 : base;
    if (exp > 127)
        too_large(c);
    for (; exp; exp--)
        if (__builtin_mul_overflow(r, base, &r))
            too_large(c);
    return r;
}

/* a / b rounded once. A quotient of 60 bits and more, with a last bit that says whether anything was cut off, is rounded right by
 * the conversion. */
static double int_divide(jx_int a, jx_int b)
{
    if (a == 0)
        return b < 0 ? -0.0 : 0.0;
    jx_uint n = a < 0 ? -(jx_uint)a : (jx_uint)a, d = b < 0 ? -(jx_uint)b : (jx_uint)b;
    jx_uint q = n / d, rest = n % d;
    int exponent = 0;
    for (; q < (jx_uint)1 << 60 && rest; exponent--) {
        rest <<= 1;
        q = q << 1 | (rest >= d);
        rest -= rest >= d ? d : 0;
    }
    double f = ldexp((double)(q << 1 | (rest != 0)), exponent - 1);
    return (a < 0) != (b < 0) ? -f : f;
}

static jx_value int_binary(jx *c, jx_op op, jx_int a, jx_int b)
{
    jx_int r = 0;
    bool overflow = false;
    switch (op) {
    case JX_ADD: overflow = __builtin_add_overflow(a, b, &r); break;
    case JX_SUB: overflow = __builtin_sub_overflow(a, b, &r); break;
    case JX_MUL: overflow = __builtin_mul_overflow(a, b, &r); break;
    case JX_DIV:
        if (!b)
            jx_error(c, "division by zero");
        return JX_FLOATV(int_divide(a, b));
    case JX_FLOORDIV:
    case JX_MOD: {
        if (!b)
            jx_error(c, op == JX_MOD ? "integer modulo by zero" : "integer division or modulo by zero");
        if (b == -1) { /* the one quotient that may not fit */
            overflow = __builtin_sub_overflow((jx_int)0, a, &r);
            if (op == JX_MOD) {
                overflow = false;
                r = 0;
            }
            break;
        }
        jx_int q = a / b, m = a % b;
        if (m && (m < 0) != (b < 0)) {
            q--;
            m += b;
        }
        r = op == JX_MOD ? m : q;
        break;
    }
    default:
        if (b < 0) {
            if (!a)
                jx_error(c, "0.0 cannot be raised to a negative power");
            return JX_FLOATV(pow((double)a, (double)b));
        }
        r = int_pow(c, a, b);
        break;
    }
    if (overflow)
        too_large(c);
    return JX_INTV(r);
}

static double float_mod(double a, double b)
{
    double m = fmod(a, b);
    if (m == 0)
        return copysign(0.0, b);
    return (m < 0) != (b < 0) ? m + b : m;
}

static jx_value float_binary(jx *c, jx_op op, double a, double b)
{
    switch (op) {
    case JX_ADD: return JX_FLOATV(a + b);
    case JX_SUB: return JX_FLOATV(a - b);
    case JX_MUL: return JX_FLOATV(a * b);
    case JX_DIV:
        if (b == 0)
            jx_error(c, "float division by zero");
        return JX_FLOATV(a / b);
    case JX_FLOORDIV:
    case JX_MOD: {
        if (b == 0)
            jx_error(c, op == JX_MOD ? "float modulo" : "float floor division by zero");
        double m = float_mod(a, b);
        if (op == JX_MOD)
            return JX_FLOATV(m);
        double q = (a - m) / b, whole = floor(q);
        if (q == 0)
            return JX_FLOATV(copysign(0.0, a / b));
        return JX_FLOATV(q - whole > 0.5 ? whole + 1 : whole);
    }
    default: {
        if (a == 0 && b < 0)
            jx_error(c, "0.0 cannot be raised to a negative power");
        if (a < 0 && b != floor(b) && isfinite(a) && isfinite(b))
            jx_error(c, "complex numbers are not supported");
        double r = pow(a, b);
        if (isinf(r) && isfinite(a) && isfinite(b))
            jx_error(c, "Numerical result out of range");
        return JX_FLOATV(r);
    }
    }
}

static jx_value repeat(jx *c, jx_value of, jx_value times)
{
    jx_int n = jx_as_int(times);
    size_t len = of.kind == JX_STR ? of.s->len : of.l->n;
    size_t all;
    if (n <= 0 || !len)
        n = 0;
    if (n > (jx_int)1 << 40 || !xd_mul_size(&all, len, (size_t)n) || all > (size_t)1 << 40)
        jx_error(c, "the repeated value is too large");
    jx_charge(c, (uint64_t)n);
    if (of.kind == JX_STR) {
        jx_sb b = {0};
        for (jx_int i = 0; i < n; i++)
            jx_sb_str(c, &b, of.s);
        return JX_STRV(jx_str_markup(c, jx_sb_done(c, &b), of.s->markup));
    }
    jx_list *l = jx_list_new(c, all);
    for (size_t i = 0; i < (size_t)n; i++)
        memcpy(l->v + i * len, of.l->v, len * sizeof *l->v);
    return (jx_value){.kind = of.kind, .client = of.client, .l = l};
}

static bool is_int(jx_value v)
{
    return v.kind == JX_INT || v.kind == JX_BOOL;
}

static bool is_sequence(jx_value v)
{
    return v.kind == JX_STR || v.kind == JX_LIST || v.kind == JX_TUPLE;
}

static jx_value add(jx *c, jx_value a, jx_value b)
{
    if (b.kind == JX_UNDEFINED)
        bad_operands(c, JX_ADD, a, b);
    if (a.kind == JX_STR) {
        if (b.kind != JX_STR)
            jx_error(c, "can only concatenate str (not \"%s\") to str", jx_type_name(b));
        return JX_STRV(jx_str_concat(c, a.s, b.s));
    }
    if (a.kind != JX_LIST && a.kind != JX_TUPLE)
        bad_operands(c, JX_ADD, a, b);
    if (a.kind != b.kind)
        jx_error(c, "can only concatenate %s (not \"%s\") to %s", jx_type_name(a), jx_type_name(b), jx_type_name(a));
    jx_list *l = jx_list_new(c, a.l->n + b.l->n);
    if (a.l->n)
        memcpy(l->v, a.l->v, a.l->n * sizeof *l->v);
    if (b.l->n)
        memcpy(l->v + a.l->n, b.l->v, b.l->n * sizeof *l->v);
    return (jx_value){.kind = a.kind, .l = l};
}

jx_value jx_binary(jx *c, jx_op op, jx_value a, jx_value b)
{
    if (jx_is_number(a) && jx_is_number(b)) {
        if (a.kind == JX_FLOAT || b.kind == JX_FLOAT)
            return float_binary(c, op, jx_as_float(a), jx_as_float(b));
        return int_binary(c, op, jx_as_int(a), jx_as_int(b));
    }
    if (op == JX_ADD)
        return add(c, a, b);
    if (op == JX_SUB && a.kind != JX_UNDEFINED &&
        ((jx_is_setlike(a) && jx_is_setlike(b)) || (jx_is_setlike(a) && a.kind == JX_VIEW) ||
         (jx_is_setlike(b) && b.kind == JX_VIEW)))
        return jx_set_minus(c, a, b);
    if (op == JX_MUL && is_sequence(a) && is_int(b))
        return repeat(c, a, b);
    if (op == JX_MUL && is_int(a) && is_sequence(b))
        return repeat(c, b, a);
    if (op == JX_MOD && a.kind == JX_STR)
        return JX_STRV(jx_format_percent(c, a.s, b));
    bad_operands(c, op, a, b);
}

bool jx_compare_op(jx *c, jx_op op, jx_value a, jx_value b)
{
    int r; /* 2: unordered (NaN, sets) */
    switch (op) {
    case JX_EQ: return jx_equal(c, a, b);
    case JX_NE: return !jx_equal(c, a, b);
    case JX_IN: return jx_contains(c, b, a);
    case JX_NOTIN: return !jx_contains(c, b, a);
    case JX_LT: return jx_compare(c, a, b, "<") < 0;
    case JX_LE: return jx_compare(c, a, b, "<=") <= 0;
    case JX_GT: return jx_compare(c, a, b, ">") == 1;
    default: r = jx_compare(c, a, b, ">="); return r == 0 || r == 1;
    }
}

jx_value jx_negate(jx *c, jx_value v, bool minus)
{
    if (v.kind == JX_UNDEFINED)
        jx_throw_undefined(c, v);
    if (v.kind == JX_FLOAT)
        return JX_FLOATV(minus ? -v.f : v.f);
    if (!is_int(v))
        jx_error(c, "bad operand type for unary %c: '%s'", minus ? '-' : '+', jx_type_name(v));
    return minus ? int_binary(c, JX_SUB, 0, jx_as_int(v)) : JX_INTV(jx_as_int(v));
}

/* ---- subscripts ---- */

/* Python's slice.indices(): [*start, *stop) by *step within n items. */
static void slice_indices(jx *c, size_t n, jx_value part[3], int64_t *start, int64_t *stop, int64_t *step)
{
    int64_t len = (int64_t)n;
    for (size_t i = 0; i < 3; i++) {
        if (part[i].kind == JX_UNDEFINED || (part[i].kind != JX_NONE && !is_int(part[i])))
            jx_error(c, "slice indices must be integers or None or have an __index__ method");
    }
    *step = part[2].kind == JX_NONE ? 1 : jx_need_index(c, part[2]);
    if (!*step)
        jx_error(c, "slice step cannot be zero");
    if (*step < -INT64_MAX)
        *step = -INT64_MAX;
    int64_t low = *step < 0 ? -1 : 0, high = *step < 0 ? len - 1 : len;
    int64_t *to[2] = {start, stop};
    for (size_t i = 0; i < 2; i++) {
        if (part[i].kind == JX_NONE) {
            *to[i] = (*step < 0) == (i == 0) ? high : low;
            continue;
        }
        int64_t at = jx_need_index(c, part[i]);
        if (at < 0)
            at = at < -len ? low : at + len;
        else if (at > high)
            at = high;
        *to[i] = XD_MAX(at, low);
    }
}

static size_t slice_count(int64_t start, int64_t stop, int64_t step)
{
    if (step > 0)
        return start < stop ? (size_t)((stop - start - 1) / step + 1) : 0;
    return start > stop ? (size_t)((start - stop - 1) / -step + 1) : 0;
}

static jx_value slice_str(jx *c, const jx_str *s, int64_t start, int64_t step, size_t count)
{
    if (step == 1 || count <= 1) {
        size_t from = jx_str_offset(s, (size_t)start), to = jx_str_offset(s, (size_t)start + count);
        jx_charge(c, s->chars == s->len ? 1 : s->len / 64);
        return JX_STRV(jx_str_sub(c, s, from, count ? to : from));
    }
    jx_sb b = {0};
    const char *at = s->data + jx_str_offset(s, (size_t)start), *end = s->data + s->len;
    for (size_t i = 0; i < count; i++) {
        const char *next = at;
        jx_charge(c, 1);
        jx_char(&next, end);
        jx_sb_sub(c, &b, s, (size_t)(at - s->data), (size_t)(next - s->data));
        for (int64_t k = 0; i + 1 < count && k < (step > 0 ? step : -step); k++) {
            if (step > 0)
                jx_char(&at, end);
            else
                jx_char_back(s->data, &at);
        }
    }
    return JX_STRV(jx_str_markup(c, jx_sb_done(c, &b), s->markup));
}

jx_value jx_slice(jx *c, jx_value of, jx_value first, jx_value last, jx_value by)
{
    jx_value part[3] = {first, last, by};
    if (of.kind == JX_UNDEFINED)
        jx_throw_undefined(c, of);
    if (of.kind == JX_DICT)
        jx_error(c, "unhashable type: 'slice'");
    size_t n;
    if ((!is_sequence(of) && of.kind != JX_RANGE) || !jx_len(of, &n))
        jx_error(c, "'%s' object is not subscriptable", jx_type_name(of));
    int64_t start, stop, step;
    slice_indices(c, n, part, &start, &stop, &step);
    size_t count = slice_count(start, stop, step);
    if (of.kind == JX_STR)
        return slice_str(c, of.s, start, step, count);
    if (of.kind == JX_RANGE) {
        jx_int base = of.r->start, stride = of.r->step;
        return (jx_value){.kind = JX_RANGE,
                          .r = jx_range_new(c, base + stride * start, base + stride * stop, stride * step)};
    }
    jx_list *l = JX_NEW(c, jx_list);
    l->n = count;
    if (step == 1 || count <= 1) {
        l->v = count ? of.l->v + start : NULL; /* shared: lists never change */
    } else {
        l->v = jx_alloc_array(c, count, sizeof *l->v);
        for (size_t i = 0; i < count; i++)
            l->v[i] = of.l->v[start + (int64_t)i * step];
        jx_charge(c, count / 16);
    }
    return (jx_value){.kind = of.kind, .client = of.client, .l = l};
}

/* obj[i]; JX_MISSING where Python raises IndexError. */
static jx_value item_at(jx *c, jx_value of, jx_value key)
{
    size_t n = 0;
    jx_len(of, &n);
    int64_t at = jx_need_index(c, key);
    if (at < 0)
        at += (int64_t)n;
    if (at < 0 || (uint64_t)at >= n)
        return JX_ABSENT;
    if (of.kind == JX_STR)
        return slice_str(c, of.s, at, 1, 1);
    if (of.kind == JX_RANGE)
        return JX_INTV(of.r->start + at * of.r->step);
    return of.l->v[at];
}

static bool hashable(jx_value v)
{
    if (v.kind == JX_TUPLE)
        for (size_t i = 0; i < v.l->n; i++)
            if (v.l->v[i].kind == JX_LIST || v.l->v[i].kind == JX_DICT)
                return false;
    return v.kind != JX_LIST && v.kind != JX_DICT;
}

/* obj[key]; JX_MISSING where Python raises TypeError or LookupError. */
static jx_value subscript(jx *c, jx_value of, jx_value key)
{
    if (of.kind == JX_DICT) {
        const jx_value *v = hashable(key) ? jx_dict_get(c, of.d, key) : NULL;
        return v ? *v : JX_ABSENT;
    }
    if ((is_sequence(of) || of.kind == JX_RANGE) && is_int(key))
        return item_at(c, of, key);
    return JX_ABSENT;
}

/* real, imag, numerator, denominator */
static jx_value number_part(jx_value of, const jx_str *name)
{
    bool is_float = of.kind == JX_FLOAT;
    if (jx_str_is(name, "real"))
        return is_float ? of : JX_INTV(jx_as_int(of));
    if (jx_str_is(name, "imag"))
        return is_float ? JX_FLOATV(0.0) : JX_INTV(0);
    if (!is_float && jx_str_is(name, "numerator"))
        return JX_INTV(jx_as_int(of));
    return !is_float && jx_str_is(name, "denominator") ? JX_INTV(1) : JX_ABSENT;
}

static jx_value macro_attribute(jx *c, const jx_node *n, const jx_str *name)
{
    static const char *const flags[3] = {"caller", "catch_kwargs", "catch_varargs"}; /* in the order of n->special */
    for (size_t i = 0; i < XD_ARRAY_LEN(flags); i++)
        if (jx_str_is(name, flags[i]))
            return JX_BOOLV(n->special[i] >= 0);
    if (jx_str_is(name, "name"))
        return n->kind == N_MACRO ? JX_STRV(n->text) : JX_NIL;
    if (!jx_str_is(name, "arguments"))
        return JX_ABSENT;
    jx_list *l = jx_list_new(c, n->params.n);
    for (uint32_t i = 0; i < n->params.n; i++)
        l->v[i] = JX_STRV(n->params.v[i]->name);
    return (jx_value){.kind = JX_TUPLE, .l = l};
}

/* getattr(obj, name); JX_MISSING where Python raises AttributeError. */
static jx_value attribute(jx *c, jx_value of, const jx_str *name)
{
    if (of.kind == JX_NAMESPACE) {
        const jx_value *v = jx_dict_get(c, of.d, JX_STRV(name));
        return v ? *v : JX_ABSENT;
    }
    if (of.kind == JX_LOOP)
        return jx_loop_attr(c, of.loop, name);
    if (of.kind == JX_TUPLE && of.l->group && jx_str_is(name, "grouper"))
        return of.l->v[0];
    if (of.kind == JX_TUPLE && of.l->group && jx_str_is(name, "list"))
        return of.l->v[1];
    if (of.kind == JX_CYCLER && jx_str_is(name, "current"))
        return of.cycle->v[of.cycle->pos];
    if (of.kind == JX_MACRO) {
        jx_value v = macro_attribute(c, of.macro->node, name);
        if (v.kind != JX_MISSING)
            return v;
    }
    if (of.kind == JX_RANGE && (jx_str_is(name, "start") || jx_str_is(name, "stop") || jx_str_is(name, "step")))
        return JX_INTV(name->data[2] == 'a' ? of.r->start : name->data[2] == 'o' ? of.r->stop : of.r->step);
    if (of.kind == JX_SELF)
        for (uint32_t i = 0; i < c->t->blocks.n; i++)
            if (jx_str_eq(c->t->blocks.v[i]->text, name))
                return (jx_value){.kind = JX_BLOCK, .block = c->t->blocks.v[i]};
    if (jx_is_number(of)) {
        jx_value part = number_part(of, name);
        if (part.kind != JX_MISSING)
            return part;
    }
    const jx_func *f = jx_find_method(of, name);
    return f ? jx_bind(c, f, of) : JX_ABSENT;
}

/* Python's list and dict methods that change them: the immutable sandbox makes them undefined, with a message of its own. */
static bool is_mutator(jx_value of, const jx_str *name)
{
    static const char *const list[] = {"append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove"};
    static const char *const dict[] = {"clear", "pop", "popitem", "setdefault", "update"};
    static const char *const set[] = {"add", "clear",  "difference_update",           "discard",
                                      "pop", "remove", "symmetric_difference_update", "update"};
    for (size_t i = 0; of.kind == JX_SET && i < XD_ARRAY_LEN(set); i++)
        if (jx_str_is(name, set[i]))
            return true;
    for (size_t i = 0; of.kind == JX_LIST && i < XD_ARRAY_LEN(list); i++)
        if (jx_str_is(name, list[i]))
            return true;
    for (size_t i = 0; of.kind == JX_DICT && i < XD_ARRAY_LEN(dict); i++)
        if (jx_str_is(name, dict[i]))
            return true;
    return false;
}

static jx_value unsafe_attribute(jx *c, jx_value of, const jx_str *name)
{
    jx_undef *u = JX_NEW(c, jx_undef);
    *u = (jx_undef){.of = jx_type_name(of), .name = name, .security = true};
    return (jx_value){.kind = JX_UNDEFINED, .u = u};
}

jx_value jx_getattr(jx *c, jx_value of, const jx_str *name)
{
    if (of.kind == JX_UNDEFINED)
        jx_throw_undefined(c, of);
    jx_value v = attribute(c, of, name);
    if (v.kind != JX_MISSING)
        return v;
    if (is_mutator(of, name))
        return unsafe_attribute(c, of, name);
    v = subscript(c, of, JX_STRV(name));
    return v.kind == JX_MISSING ? jx_undefined_attr(c, of, JX_STRV(name)) : v;
}

jx_value jx_attr_only(jx *c, jx_value of, const jx_str *name)
{
    if (of.kind == JX_UNDEFINED)
        jx_throw_undefined(c, of);
    jx_value v = attribute(c, of, name);
    if (v.kind != JX_MISSING)
        return v;
    return is_mutator(of, name) ? unsafe_attribute(c, of, name) : jx_undefined_attr(c, of, JX_STRV(name));
}

jx_value jx_getitem(jx *c, jx_value of, jx_value key)
{
    if (of.kind == JX_UNDEFINED)
        jx_throw_undefined(c, of);
    jx_value v = subscript(c, of, key);
    if (v.kind == JX_MISSING && key.kind == JX_STR) {
        v = attribute(c, of, key.s);
        if (v.kind == JX_MISSING && is_mutator(of, key.s))
            return unsafe_attribute(c, of, key.s);
    }
    return v.kind == JX_MISSING ? jx_undefined_attr(c, of, key) : v;
}
