/* json_scan.c - reading one JSON object byte by byte. See json_scan.h.
 *
 * Jansson reads whole texts only; arguments of a call are handed on while they are written. This knows RFC 8259's grammar and
 * nothing of values: duplicate keys pass, and so do numbers that no C type holds. What has been handed on is always the beginning of a valid
 * object, and no escape is cut, so that readers of unfinished JSON can read it at any time. */
#include "api/json_scan.h"

#include <string.h>

enum state {
    BEFORE,    /* the object */
    VALUE,     /* of a member, or an item */
    FIRST,     /* an item or ] */
    FIRST_KEY, /* a key or } */
    KEY,
    COLON,
    BEHIND, /* a value: a comma or the end of what it is in */
    STRING,
    ESCAPE, /* behind its backslash */
    HEX,    /* held has \u and 0 to 3 digits of the first or the second half */
    PAIR,   /* held has a first half: a second may follow */
    PAIR_U, /* and its backslash is there */
    LITERAL,
    MINUS,
    ZERO,
    DIGITS,
    DOT,
    FRACTION,
    EXPONENT,
    SIGN,
    POWER,
    DONE,
    BAD
};

void json_scan_begin(json_scan *s)
{
    memset(s, 0, sizeof *s);
    s->state = BEFORE;
}

void json_scan_begin_rest(json_scan *s)
{
    json_scan_begin(s);
    s->state = BEHIND;
    s->depth = 1;
}

bool json_scan_done(const json_scan *s)
{
    return s->state == DONE;
}

bool json_scan_bad(const json_scan *s)
{
    return s->state == BAD;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_hex(char c)
{
    return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

static void put(xd_buf *out, const char *text, size_t len)
{
    if (out)
        xd_buf_append(out, text, len);
}

/* --- objects and arrays --- */

static bool in_array(const json_scan *s)
{
    uint32_t level = s->depth - 1;
    return s->in_array[level / 64] >> level % 64 & 1;
}

static enum state open_level(json_scan *s, bool array)
{
    if (s->depth == JSON_SCAN_MAX_DEPTH)
        return BAD;
    uint64_t bit = (uint64_t)1 << s->depth % 64, *word = &s->in_array[s->depth / 64];
    *word = array ? *word | bit : *word & ~bit;
    s->depth++;
    return array ? FIRST : FIRST_KEY;
}

static enum state close_level(json_scan *s, bool array)
{
    if (in_array(s) != array)
        return BAD;
    return --s->depth ? BEHIND : DONE;
}

static enum state behind_value(json_scan *s, char c)
{
    if (c == ',')
        return in_array(s) ? VALUE : KEY;
    return c == '}' || c == ']' ? close_level(s, c == ']') : BAD;
}

static enum state begin_value(json_scan *s, char c)
{
    static const char *const words[] = {"true", "false", "null"};
    for (size_t i = 0; i < XD_ARRAY_LEN(words); i++)
        if (c == words[i][0]) {
            s->literal = words[i];
            s->n_literal = 1;
            return LITERAL;
        }
    s->is_key = false;
    switch (c) {
    case '{': return open_level(s, false);
    case '[': return open_level(s, true);
    case '"': return STRING;
    case '-': return MINUS;
    case '0': return ZERO;
    default: return is_digit(c) ? DIGITS : BAD;
    }
}

static enum state begin_key(json_scan *s, char c)
{
    s->is_key = true;
    return c == '"' ? STRING : BAD;
}

/* --- numbers --- */

/* The state behind one more byte; BEHIND: the number has ended before it. */
static enum state number(enum state at, char c)
{
    bool digit = is_digit(c), e = c == 'e' || c == 'E';
    switch (at) {
    case MINUS: return c == '0' ? ZERO : digit ? DIGITS : BAD;
    case ZERO: return c == '.' ? DOT : e ? EXPONENT : digit ? BAD : BEHIND;
    case DIGITS: return digit ? DIGITS : c == '.' ? DOT : e ? EXPONENT : BEHIND;
    case DOT: return digit ? FRACTION : BAD;
    case FRACTION: return digit ? FRACTION : e ? EXPONENT : BEHIND;
    case EXPONENT: return c == '+' || c == '-' ? SIGN : digit ? POWER : BAD;
    case SIGN: return digit ? POWER : BAD;
    default: return digit ? POWER : BEHIND;
    }
}

/* --- strings --- */

static unsigned half(const char *digits)
{
    unsigned v = 0;
    for (int i = 0; i < 4; i++) {
        char c = digits[i];
        v = v << 4 | (unsigned)(is_digit(c) ? c - '0' : (c | 0x20) - 'a' + 10);
    }
    return v;
}

static void hold(json_scan *s, char c)
{
    s->held[s->n_held++] = c;
}

static void let_go(json_scan *s, xd_buf *out)
{
    put(out, s->held, s->n_held);
    s->n_held = 0;
}

/* Four digits are there. */
static enum state end_hex(json_scan *s, xd_buf *out)
{
    bool second = s->n_held == 12;
    unsigned v = half(s->held + (second ? 8 : 2));
    bool high = v >= 0xD800 && v < 0xDC00, low = v >= 0xDC00 && v < 0xE000;
    if (second && !low) { /* the first half was alone; this one may be a pair's first */
        put(out, "\\ufffd", 6);
        memmove(s->held, s->held + 6, 6);
        s->n_held = 6;
    }
    if (high)
        return PAIR;
    if (low && !second) {
        put(out, "\\ufffd", 6);
        s->n_held = 0;
    } else {
        let_go(s, out);
    }
    return STRING;
}

static void give_up_pair(json_scan *s, xd_buf *out)
{
    put(out, "\\ufffd", 6);
    memmove(s->held, s->held + 6, s->n_held - 6u);
    s->n_held = (uint8_t)(s->n_held - 6);
}

static enum state in_string(json_scan *s, char c, xd_buf *out)
{
    if (c == '\\') {
        hold(s, c);
        return ESCAPE;
    }
    if (c == '\n' || c == '\t' || c == '\r') {
        put(out, c == '\n' ? "\\n" : c == '\t' ? "\\t" : "\\r", 2);
    } else if ((unsigned char)c < 0x20) {
        char text[8];
        snprintf(text, sizeof text, "\\u%04x", (unsigned)c);
        put(out, text, 6);
    } else {
        put(out, &c, 1);
    }
    return c != '"' ? STRING : s->is_key ? COLON : BEHIND;
}

static enum state in_escape(json_scan *s, char c, xd_buf *out)
{
    if (!c || !strchr("\"\\/bfnrtu", c))
        return BAD;
    hold(s, c);
    if (c == 'u')
        return HEX;
    let_go(s, out);
    return STRING;
}

/* Plain bytes of a string go as a whole: there are many. */
static size_t plain_bytes(const char *text, size_t len)
{
    size_t n = 0;
    while (n < len && (unsigned char)text[n] >= 0x20 && text[n] != '"' && text[n] != '\\')
        n++;
    return n;
}

/* One byte; false: it is the next state's. */
static bool step(json_scan *s, char c, xd_buf *out)
{
    enum state at = s->state;
    switch (at) {
    case STRING: s->state = in_string(s, c, out); return true;
    case ESCAPE: s->state = in_escape(s, c, out); return true;
    case HEX:
        if (!is_hex(c)) {
            s->state = BAD;
            return true;
        }
        hold(s, c);
        if (s->n_held == 6 || s->n_held == 12)
            s->state = end_hex(s, out);
        return true;
    case PAIR:
        if (c != '\\') {
            give_up_pair(s, out);
            s->state = STRING;
            return false;
        }
        hold(s, c);
        s->state = PAIR_U;
        return true;
    case PAIR_U:
        if (c != 'u') {
            give_up_pair(s, out);
            s->state = ESCAPE;
            return false;
        }
        hold(s, c);
        s->state = HEX;
        return true;
    case LITERAL:
        if (c != s->literal[s->n_literal]) {
            s->state = BAD;
            return true;
        }
        put(out, &c, 1);
        if (!s->literal[++s->n_literal])
            s->state = BEHIND;
        return true;
    case MINUS:
    case ZERO:
    case DIGITS:
    case DOT:
    case FRACTION:
    case EXPONENT:
    case SIGN:
    case POWER:
        s->state = number(at, c);
        if (s->state == BEHIND)
            return false;
        if (s->state != BAD)
            put(out, &c, 1);
        return true;
    default: break;
    }
    if (json_scan_is_space(c)) {
        put(out, &c, 1);
        return true;
    }
    switch (at) {
    case BEFORE: s->state = c == '{' ? open_level(s, false) : BAD; break;
    case FIRST: s->state = c == ']' ? close_level(s, true) : begin_value(s, c); break;
    case FIRST_KEY: s->state = c == '}' ? close_level(s, false) : begin_key(s, c); break;
    case KEY: s->state = begin_key(s, c); break;
    case COLON: s->state = c == ':' ? VALUE : BAD; break;
    case BEHIND: s->state = behind_value(s, c); break;
    default: s->state = begin_value(s, c); break;
    }
    if (s->state != BAD)
        put(out, &c, 1);
    return true;
}

size_t json_scan_feed(json_scan *s, const char *text, size_t len, xd_buf *out)
{
    size_t i = 0;
    while (i < len && s->state != DONE && s->state != BAD) {
        size_t n = s->state == STRING ? plain_bytes(text + i, len - i) : 0;
        put(out, text + i, n);
        i += n;
        if (i == len)
            break;
        while (!step(s, text[i], out))
            ;
        i += s->state != BAD;
    }
    return i;
}
