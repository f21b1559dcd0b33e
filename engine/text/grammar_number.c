/* grammar_number.c - numbers, digit by digit, so that each beginning can still become a number that is allowed.
 *
 * A number is counted in units of its last possible digit, and what has been written stands for the range of all numbers that it can
 * become. A digit passes if this range holds a multiple of `multiple` within the bounds. The digits are few enough (grammar_schema.c)
 * that different texts are different doubles: readers judge by these. */
#include <string.h>

#include "engine/text/grammar_priv.h"

/* frame.state: phase, sign, digits before and after the point; frame.a and .b: their values. */
typedef enum num_phase {
    NUM_OPEN,
    NUM_MINUS,
    NUM_ZERO,
    NUM_INT,
    NUM_DOT,
    NUM_FRAC,
    NUM_E,
    NUM_SIGN,
    NUM_EXP
} num_phase;
enum { PHASE_BITS = 0xF, NEGATIVE = 0x10, INT_SHIFT = 8, FRAC_SHIFT = 16, EXP_SHIFT = 24, MAX_EXP_DIGITS = 2 };

static gram_int power10(uint32_t n)
{
    gram_int p = 1;
    while (n--)
        p *= 10;
    return p;
}

static gram_int floor_div(gram_int a, gram_int b) /* b > 0 */
{
    return a / b - (a % b < 0);
}

/* Is a multiple among the numbers of these magnitudes? Zero has no sign. */
static bool holds(const gram_number *n, bool negative, gram_int lo, gram_int hi)
{
    gram_int from = lo, to = hi;
    if (negative) {
        to = -XD_MAX(lo, 1);
        from = -hi;
    }
    from = XD_MAX(from, n->lo);
    to = XD_MIN(to, n->hi);
    return from <= to && floor_div(to, n->multiple) * n->multiple >= from;
}

static bool is_possible(const gram_number *n, const gram_frame *f)
{
    bool negative = f->state & NEGATIVE;
    uint32_t digits = f->state >> INT_SHIFT & 0xFF, after = f->state >> FRAC_SHIFT & 0xFF;
    gram_int unit = power10(n->frac_digits), whole = (gram_int)f->a * unit, more = 1;
    switch ((num_phase)(f->state & PHASE_BITS)) {
    case NUM_MINUS: return holds(n, true, 1, power10(n->int_digits) * unit - 1);
    case NUM_ZERO: return holds(n, negative, 0, unit - 1);
    case NUM_INT:
        for (uint32_t k = digits; k <= n->int_digits; k++, more *= 10)
            if (holds(n, negative, whole * more, (whole + unit) * more - 1))
                return true;
        return false;
    case NUM_DOT: return n->frac_digits && holds(n, negative, whole, whole + unit - 1);
    case NUM_FRAC: {
        gram_int left = power10(n->frac_digits - after), at = whole + (gram_int)f->b * left;
        return holds(n, negative, at, at + left - 1);
    }
    default: return true;
    }
}

bool gram_number_may_end(const gram_number *n, const gram_frame *f)
{
    gram_int at = (gram_int)f->a * power10(n->frac_digits);
    switch ((num_phase)(f->state & PHASE_BITS)) {
    case NUM_ZERO:
    case NUM_INT: break;
    case NUM_FRAC: at += (gram_int)f->b * power10(n->frac_digits - (f->state >> FRAC_SHIFT & 0xFF)); break;
    case NUM_EXP: return true;
    default: return false;
    }
    return holds(n, f->state & NEGATIVE, at, at);
}

static uint32_t with_phase(uint32_t state, num_phase p)
{
    return (state & ~(uint32_t)PHASE_BITS) | p;
}

static bool take_digit(const gram_number *n, gram_frame *f, unsigned digit)
{
    switch ((num_phase)(f->state & PHASE_BITS)) {
    case NUM_OPEN:
    case NUM_MINUS:
        f->a = digit;
        f->state = with_phase(f->state, digit ? NUM_INT : NUM_ZERO) + (1u << INT_SHIFT);
        return true;
    case NUM_INT:
        f->a = f->a * 10 + digit;
        f->state += 1u << INT_SHIFT;
        return (f->state >> INT_SHIFT & 0xFF) <= n->int_digits;
    case NUM_DOT:
    case NUM_FRAC:
        f->b = f->b * 10 + digit;
        f->state = with_phase(f->state, NUM_FRAC) + (1u << FRAC_SHIFT);
        return (f->state >> FRAC_SHIFT & 0xFF) <= n->frac_digits;
    case NUM_E:
    case NUM_SIGN:
    case NUM_EXP:
        f->state = with_phase(f->state, NUM_EXP) + (1u << EXP_SHIFT);
        return f->state >> EXP_SHIFT <= MAX_EXP_DIGITS;
    default: return false;
    }
}

bool gram_number_step(const gram_number *n, gram_frame *f, unsigned char byte)
{
    gram_frame next = *f;
    num_phase p = f->state & PHASE_BITS;
    bool ok = false;
    if (byte >= '0' && byte <= '9') {
        ok = take_digit(n, &next, byte - '0');
    } else if (byte == '-' && p == NUM_OPEN) {
        next.state = NUM_MINUS | NEGATIVE;
        ok = true;
    } else if (byte == '.' && (p == NUM_ZERO || p == NUM_INT)) {
        next.state = with_phase(next.state, NUM_DOT);
        ok = n->frac_digits > 0;
    } else if ((byte == 'e' || byte == 'E') && (p == NUM_ZERO || p == NUM_INT || p == NUM_FRAC)) {
        next.state = with_phase(next.state, NUM_E);
        ok = n->exponent && gram_number_may_end(n, f);
    } else if ((byte == '-' || byte == '+') && p == NUM_E) {
        next.state = with_phase(next.state, NUM_SIGN);
        ok = true;
    }
    if (!ok || !is_possible(n, &next))
        return false;
    *f = next;
    return true;
}

bool gram_number_possible(const gram_number *n)
{
    gram_int most = power10(n->int_digits) * power10(n->frac_digits) - 1;
    return holds(n, false, 0, most) || holds(n, true, 1, most);
}

bool gram_number_scale(const char *text, uint32_t digits, gram_int *ret, bool *ret_exact)
{
    const gram_int limit = power10(36);
    bool negative = *text == '-', point = false;
    long exponent = (long)digits;
    gram_int v = 0;
    const char *p = text + negative;
    for (; (*p >= '0' && *p <= '9') || *p == '.'; p++) {
        if (*p == '.') {
            point = true;
            continue;
        }
        if (v >= limit / 10)
            return false;
        v = v * 10 + (*p - '0');
        exponent -= point;
    }
    if (*p == 'e' || *p == 'E')
        exponent += strtol(p + 1, NULL, 10);
    for (; exponent > 0 && v; exponent--) {
        if (v >= limit / 10)
            return false;
        v *= 10;
    }
    *ret_exact = true;
    if (negative)
        v = -v;
    for (; exponent < 0 && v; exponent++) {
        *ret_exact = *ret_exact && v % 10 == 0;
        v = floor_div(v, 10);
        if (v == -1 && !*ret_exact)
            break; /* rounding down stays there */
    }
    *ret = v;
    return true;
}
