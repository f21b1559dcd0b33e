/* grammar_regex.c - a pattern of a schema to an automaton over characters.
 *
 * ECMA-262's regular expressions as far as they are regular: no look-around, no references back, no word boundaries, no properties. A pattern
 * is searched for, so that anything may stand around it unless ^ and $ say no. Parsed to a tree of parts; grammar_nfa.c goes on from there. */
#include <string.h>

#include "engine/text/grammar_nfa.h"
#include "engine/text/tok_priv.h"

enum {
    MAX_NESTING = 50,
    MAX_REPEAT = 1000,
};

/* ---- parsing ---- */

/* \d \w \s and their opposites. Blanks: what ECMA and Unicode agree on; no blank: what neither takes for one. */
static bool add_class(nfa *r, char c)
{
    static const nfa_range digits[] = {{'0', '9'}}, word[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
    static const nfa_range space[] = {{9, 13},          {' ', ' '},       {0xA0, 0xA0},
                                      {0x1680, 0x1680}, {0x2000, 0x200A}, {0x2028, 0x2029},
                                      {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}};
    static const nfa_range maybe_space[] = {{0x1C, 0x1F}, {0x85, 0x85}, {0xFEFF, 0xFEFF}};
    const nfa_range *of = NULL;
    size_t n = 0;
    switch (c | 32) {
    case 'd':
        of = digits;
        n = XD_ARRAY_LEN(digits);
        break;
    case 'w':
        of = word;
        n = XD_ARRAY_LEN(word);
        break;
    case 's':
        of = space;
        n = XD_ARRAY_LEN(space);
        break;
    default: return false;
    }
    size_t from = r->n_sets;
    for (size_t i = 0; i < n; i++)
        nfa_add_range(r, of[i].lo, of[i].hi);
    for (size_t i = 0; i < XD_ARRAY_LEN(maybe_space) && c == 'S'; i++)
        nfa_add_range(r, maybe_space[i].lo, maybe_space[i].hi);
    nfa_tidy(r, from, c < 'a');
    return true;
}

static bool hex_digits(nfa *r, size_t n, uint32_t *ret)
{
    *ret = 0;
    for (size_t i = 0; i < n; i++, r->p++) {
        char c = r->p < r->end ? *r->p : 0;
        int v = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
        if (v < 0)
            return false;
        *ret = *ret << 4 | (uint32_t)v;
    }
    return true;
}

/* One character behind a backslash. */
static uint32_t escaped_char(nfa *r, bool in_class)
{
    static const char letters[] = "nrtfv", means[] = "\n\r\t\f\v";
    char c = r->p < r->end ? *r->p++ : 0;
    uint32_t v = 0, low = 0;
    const char *at = c ? strchr(letters, c) : NULL;
    if (at)
        return (unsigned char)means[at - letters];
    if (c == 'b' && in_class)
        return '\b';
    if (c == 'x' && hex_digits(r, 2, &v))
        return v;
    if (c == 'u' && r->p < r->end && *r->p == '{') {
        for (r->p++; r->p < r->end && *r->p != '}' && v <= NFA_LAST_CHAR && hex_digits(r, 1, &low);)
            v = v << 4 | low;
        if (r->p < r->end && *r->p++ == '}' && v <= NFA_LAST_CHAR)
            return v;
    } else if (c == 'u' && hex_digits(r, 4, &v)) {
        if (v >= 0xD800 && v < 0xDC00 && r->end - r->p >= 6 && r->p[0] == '\\' && r->p[1] == 'u') {
            r->p += 2;
            if (hex_digits(r, 4, &low) && low >= 0xDC00 && low <= 0xDFFF)
                return 0x10000 + ((v - 0xD800) << 10) + (low - 0xDC00);
        }
        if (v < 0xD800 || v > 0xDFFF)
            return v;
    } else if (c && !(c & 0x80) && strchr("^$\\.*+?()[]{}|/-,:;=!@#%&~`'\"<> _", c)) {
        return (unsigned char)c;
    }
    r->why = "has an escape that is not supported";
    return 0;
}

static uint32_t plain_char(nfa *r)
{
    size_t n;
    uint32_t cp = tok_cp(r->p, &n);
    r->p += n;
    return cp;
}

static uint32_t parse_class(nfa *r)
{
    bool negate = r->p < r->end && *r->p == '^';
    size_t from = r->n_sets;
    r->p += negate;
    while (r->p < r->end && *r->p != ']' && !r->why) {
        if (*r->p == '\\' && r->p + 1 < r->end && add_class(r, r->p[1])) {
            r->p += 2;
            continue;
        }
        uint32_t lo = 0, hi;
        if (*r->p == '\\') {
            r->p++;
            lo = escaped_char(r, true);
        } else {
            lo = plain_char(r);
        }
        hi = lo;
        if (r->end - r->p >= 2 && r->p[0] == '-' && r->p[1] != ']') {
            r->p++;
            if (*r->p == '\\') {
                r->p++;
                hi = escaped_char(r, true);
            } else {
                hi = plain_char(r);
            }
            if (hi < lo && !r->why)
                r->why = "has a range whose end is before its beginning";
        }
        nfa_add_range(r, lo, hi);
    }
    if (r->p >= r->end && !r->why)
        r->why = "has a [ without its ]";
    r->p++;
    nfa_tidy(r, from, negate);
    return nfa_add_part(r, (nfa_part){.kind = PART_SET, .a = (uint32_t)from, .b = (uint32_t)r->n_sets});
}

static uint32_t parse_either(nfa *r);

static uint32_t parse_group(nfa *r)
{
    if (r->p < r->end && *r->p == '?') {
        if (r->end - r->p >= 2 && r->p[1] == ':') {
            r->p += 2;
        } else if (r->end - r->p >= 3 && r->p[1] == '<' && r->p[2] != '=' && r->p[2] != '!') {
            const char *close = memchr(r->p, '>', (size_t)(r->end - r->p));
            r->p = close ? close + 1 : r->end;
        } else {
            r->why = "looks around or sets flags, which is not supported";
            return 0;
        }
    }
    uint32_t inner = parse_either(r);
    if ((r->p >= r->end || *r->p != ')') && !r->why)
        r->why = "has a ( without its )";
    r->p++;
    return inner;
}

static uint32_t parse_one(nfa *r)
{
    static const nfa_range any[] = {{0, 9}, {11, 12}, {14, 0x2027}, {0x202A, NFA_LAST_CHAR}}; /* no line ends */
    char c = *r->p;
    size_t from = r->n_sets;
    if (c == '\\') {
        char next = r->p + 1 < r->end ? r->p[1] : 0;
        if (next && add_class(r, next)) {
            r->p += 2;
        } else {
            r->p++;
            uint32_t cp = escaped_char(r, false);
            nfa_add_range(r, cp, cp);
        }
        return nfa_add_part(r, (nfa_part){.kind = PART_SET, .a = (uint32_t)from, .b = (uint32_t)r->n_sets});
    }
    if (strchr("*+?", c)) {
        r->why = "repeats nothing";
        return 0;
    }
    if (c == '(' || c == '[' || c == '^' || c == '$') {
        r->p++;
        if (c == '(')
            return parse_group(r);
        if (c == '[')
            return parse_class(r);
        return nfa_add_part(r, (nfa_part){.kind = c == '^' ? PART_BEGIN : PART_END});
    }
    if (c == '.') {
        r->p++;
        for (size_t i = 0; i < XD_ARRAY_LEN(any); i++)
            nfa_add_range(r, any[i].lo, any[i].hi);
    } else {
        uint32_t cp = plain_char(r);
        nfa_add_range(r, cp, cp);
    }
    return nfa_add_part(r, (nfa_part){.kind = PART_SET, .a = (uint32_t)from, .b = (uint32_t)r->n_sets});
}

/* "{m}", "{m,}", "{m,n}"; anything else is text. */
static bool parse_counts(nfa *r, uint32_t *min, uint32_t *max)
{
    const char *p = r->p + 1;
    uint64_t v[2] = {0, 0};
    bool comma = false, digits[2] = {false, false};
    for (; p < r->end && *p != '}'; p++) {
        if (*p == ',' && !comma) {
            comma = true;
        } else if (*p >= '0' && *p <= '9') {
            v[comma] = XD_MIN(v[comma] * 10 + (uint64_t)(*p - '0'), 1u << 30);
            digits[comma] = true;
        } else {
            return false;
        }
    }
    if (p < r->end && !digits[0] && digits[1])
        r->why = "has {,n}, which is text to some and a count to others";
    if (p >= r->end || !digits[0])
        return false;
    *min = (uint32_t)v[0];
    *max = !comma ? *min : digits[1] ? (uint32_t)v[1] : UINT32_MAX;
    if (*min > MAX_REPEAT || (*max != UINT32_MAX && (*max > MAX_REPEAT || *max < *min)))
        r->why = "repeats a part too often, or at least more often than at most";
    r->p = p + 1;
    return true;
}

static uint32_t parse_repeated(nfa *r)
{
    uint32_t one = parse_one(r), min = 0, max = UINT32_MAX;
    char c = r->p < r->end && !r->why ? *r->p : 0;
    if (c == '*' || c == '+' || c == '?') {
        min = c == '+';
        max = c == '?' ? 1 : UINT32_MAX;
        r->p++;
    } else if (c != '{' || !parse_counts(r, &min, &max)) {
        return one;
    }
    if (r->p < r->end && *r->p == '?') /* lazy: the same texts */
        r->p++;
    return nfa_add_part(r, (nfa_part){.kind = PART_REPEAT, .a = one, .min = min, .max = max});
}

static uint32_t parse_either(nfa *r)
{
    if (++r->nesting > MAX_NESTING)
        r->why = "has too many groups within each other";
    uint32_t ret = GRAM_NONE;
    for (bool more = true; more && !r->why;) {
        uint32_t cat = nfa_add_part(r, (nfa_part){.kind = PART_EMPTY});
        while (r->p < r->end && *r->p != '|' && *r->p != ')' && !r->why)
            cat = nfa_add_part(r, (nfa_part){.kind = PART_CAT, .a = cat, .b = parse_repeated(r)});
        ret = ret == GRAM_NONE ? cat : nfa_add_part(r, (nfa_part){.kind = PART_ALT, .a = ret, .b = cat});
        more = r->p < r->end && *r->p == '|';
        r->p += more;
    }
    r->nesting--;
    return ret;
}
const char *gram_regex_compile(const char *pattern, size_t len, uint64_t *work_left, gram_dfa *ret)
{
    nfa r = {.p = pattern, .end = pattern + len, .left = work_left};
    uint32_t top = parse_either(&r);
    if (r.p < r.end && !r.why)
        r.why = "has a ) without its (";
    size_t any = r.n_sets;
    nfa_add_range(&r, 0, NFA_LAST_CHAR);
    uint32_t match = nfa_add_place(&r, (nfa_place){.kind = PLACE_MATCH});
    uint32_t found = nfa_emit(&r, top, match);
    uint32_t start = nfa_add_place(&r, (nfa_place){.kind = PLACE_SPLIT, .to = found});
    uint32_t skip =
        nfa_add_place(&r, (nfa_place){.kind = PLACE_SET, .a = (uint32_t)any, .b = (uint32_t)r.n_sets, .to = start});
    if (!r.why)
        r.place[start].other = skip;
    nfa_determinise(&r, start, match, 0, ret);
    const char *why = r.nomem ? GRAM_REGEX_NOMEM : r.why;
    nfa_free(&r);
    return why;
}
