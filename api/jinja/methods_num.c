/* methods_num.c - Python's int and float methods that make sense without bytes and complex numbers. */
#include <math.h>

#include "api/jinja/jinja_priv.h"

static jx_value conjugate(jx *c, jx_value self, jx_args *a)
{
    (void)c;
    (void)a;
    return self.kind == JX_FLOAT ? self : JX_INTV(jx_as_int(self));
}

static jx_uint magnitude(jx_value v)
{
    jx_int i = jx_as_int(v);
    return i < 0 ? -(jx_uint)i : (jx_uint)i;
}

static jx_value int_bit_length(jx *c, jx_value self, jx_args *a)
{
    (void)c;
    (void)a;
    jx_int n = 0;
    for (jx_uint u = magnitude(self); u; u >>= 1)
        n++;
    return JX_INTV(n);
}

static jx_value int_bit_count(jx *c, jx_value self, jx_args *a)
{
    (void)c;
    (void)a;
    jx_int n = 0;
    for (jx_uint u = magnitude(self); u; u &= u - 1)
        n++;
    return JX_INTV(n);
}

static jx_value int_ratio(jx *c, jx_value self, jx_args *a)
{
    (void)a;
    return jx_tuple(c, 2, JX_INTV(jx_as_int(self)), JX_INTV(1));
}

static jx_value float_ratio(jx *c, jx_value self, jx_args *a)
{
    (void)a;
    if (!isfinite(self.f))
        jx_error(c, "cannot convert %s to integer ratio", isnan(self.f) ? "NaN" : "Infinity");
    int exponent;
    double f = frexp(self.f, &exponent);
    for (; f != floor(f); exponent--)
        f *= 2;
    if (exponent > 72 || exponent < -125)
        jx_error(c, "the integer result is too large");
    jx_int unit = (jx_int)1 << abs(exponent);
    return jx_tuple(c, 2, JX_INTV((jx_int)f * (exponent > 0 ? unit : 1)), JX_INTV(exponent < 0 ? unit : 1));
}

static jx_value float_is_integer(jx *c, jx_value self, jx_args *a)
{
    (void)c;
    (void)a;
    return JX_BOOLV(isfinite(self.f) && floor(self.f) == self.f);
}

const jx_func jx_int_methods[] = {
    {"as_integer_ratio", int_ratio, "/"},
    {"bit_count", int_bit_count, "/"},
    {"bit_length", int_bit_length, "/"},
    {"conjugate", conjugate, "/"},
    {NULL, NULL, NULL},
};
const jx_func jx_float_methods[] = {
    {"as_integer_ratio", float_ratio, "/"},
    {"conjugate", conjugate, "/"},
    {"is_integer", float_is_integer, "/"},
    {NULL, NULL, NULL},
};
