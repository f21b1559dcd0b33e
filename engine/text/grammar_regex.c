/* grammar_regex.c - a regular expression to an automaton over characters: a pattern of a schema, or what a whole answer must match.
 *
 * Regular expressions as far as they are regular: no look-around, no references back, no word boundaries, no properties. A schema's pattern is
 * ECMA-262's and searched for, so that anything may stand around it unless ^ and $ say no. What an answer must match (`raw`) is Python's, in which
 * clients of vLLM write it, and is the whole text. Where readers differ on what \w is, see grammar_classes.h. Parsed to a tree of parts;
 * grammar_nfa.c goes on from there. */
#include <string.h>

#include "engine/text/grammar_classes.h"
#include "engine/text/tok_priv.h"

enum {
    MAX_NESTING = 50, /* messages below say these */
    MAX_REPEAT = 1000,
    MAX_RAW_REPEAT = 5000, /* as in GBNF */
};

/* ---- parsing ---- */

static uint32_t fault(nfa *r, const char *at, const char *why)
{
    if (!r->why) {
        r->why = why;
        r->at = at;
    }
    return 0;
}

static char peek(const nfa *r, size_t ahead)
{
    return r->p < r->end && (size_t)(r->end - r->p) > ahead ? r->p[ahead] : 0;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static void add_ranges(nfa *r, const nfa_range *of, size_t n)
{
    for (size_t i = 0; i < n; i++)
        nfa_add_range(r, of[i].lo, of[i].hi);
}

/* \d \w \s and their opposites. negated: for a class of which the opposite is meant. */
static bool add_class(nfa *r, char c, bool negated)
{
    const bool opposite = c < 'a', wide = opposite != negated; /* what is turned round has what may be in it */
    size_t from = r->n_sets;
    switch (c | 32) {
    case 'd':
        add_ranges(r, class_digits, XD_ARRAY_LEN(class_digits));
        if (wide && r->raw)
            add_ranges(r, class_other_digits, XD_ARRAY_LEN(class_other_digits));
        break;
    case 'w':
        if (r->raw)
            add_ranges(r, class_word, XD_ARRAY_LEN(class_word));
        else
            add_ranges(r, class_ascii_word, XD_ARRAY_LEN(class_ascii_word));
        if (wide && r->raw)
            add_ranges(r, class_maybe_word, XD_ARRAY_LEN(class_maybe_word));
        break;
    case 's':
        add_ranges(r, class_space, XD_ARRAY_LEN(class_space));
        if (wide)
            add_ranges(r, class_maybe_space, XD_ARRAY_LEN(class_maybe_space));
        break;
    default: return false;
    }
    nfa_tidy(r, from, opposite);
    return true;
}

static bool hex_digits(nfa *r, size_t n, uint32_t *ret)
{
    *ret = 0;
    for (size_t i = 0; i < n; i++, r->p++) {
        char c = peek(r, 0);
        int v = is_digit(c) ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
        if (v < 0)
            return false;
        *ret = *ret << 4 | (uint32_t)v;
    }
    return true;
}

static uint32_t plain_char(nfa *r)
{
    size_t n;
    uint32_t cp = tok_cp(r->p, &n);
    r->p += n;
    return cp;
}

/* Why what stands behind a backslash is no character that can be had. */
static const char *why_no_char(char c, bool in_class)
{
    if (!c)
        return "ends with a backslash";
    if ((c >= '1' && c <= '9' && !in_class) || c == 'k')
        return "refers back to a group, which is not supported";
    if (is_digit(c))
        return "has an octal escape, which is not supported: write \\x and two hexadecimal digits";
    if ((c | 32) == 'p')
        return "has a character property (\\p), which is not supported: write its ranges, as in [A-Za-z\\u00C0-\\u024F]";
    if ((c | 32) == 'b' && !in_class)
        return "has a word boundary (\\b), which is not supported";
    return "has an escape that is not supported";
}

/* One character behind a backslash. */
static uint32_t escaped_char(nfa *r, bool in_class)
{
    static const char letters[] = "nrtfva", means[] = "\n\r\t\f\v\a";
    const char *start = r->p - 1;
    const char c = peek(r, 0);
    uint32_t v = 0, low = 0;
    if (c && (r->raw ? !is_letter(c) && !is_digit(c)
                     : !(c & 0x80) && strchr("^$\\.*+?()[]{}|/-,:;=!@#%&~`'\"<> _", c) != NULL))
        return plain_char(r);
    r->p += c != 0;
    const char *at = c && (c != 'a' || r->raw) ? strchr(letters, c) : NULL;
    if (at)
        return (unsigned char)means[at - letters];
    if (c == 'b' && in_class)
        return '\b';
    if (c == 'x' && hex_digits(r, 2, &v))
        return v;
    if (c == 'U' && r->raw && hex_digits(r, 8, &v) && v <= NFA_LAST_CHAR)
        return v;
    if (c == 'u' && peek(r, 0) == '{') {
        for (r->p++; r->p < r->end && *r->p != '}' && v <= NFA_LAST_CHAR && hex_digits(r, 1, &low);)
            v = v << 4 | low;
        if (r->p < r->end && *r->p++ == '}' && v <= NFA_LAST_CHAR)
            return v;
    } else if (c == 'u' && hex_digits(r, 4, &v)) {
        if (v >= 0xD800 && v < 0xDC00 && peek(r, 0) == '\\' && peek(r, 1) == 'u') {
            r->p += 2;
            if (hex_digits(r, 4, &low) && low >= 0xDC00 && low <= 0xDFFF)
                return 0x10000 + ((v - 0xD800) << 10) + (low - 0xDC00);
        }
        if (v < 0xD800 || v > 0xDFFF)
            return v;
    }
    return fault(r, start, why_no_char(c, in_class));
}

/* One character of a class; behind a backslash too. */
static uint32_t class_char(nfa *r)
{
    if (*r->p != '\\')
        return plain_char(r);
    r->p++;
    return escaped_char(r, true);
}

/* [:alpha:] */
static bool is_named_class(const nfa *r)
{
    if (peek(r, 0) != '[' || peek(r, 1) != ':')
        return false;
    size_t n = 2;
    while (is_letter(peek(r, n)))
        n++;
    return peek(r, n) == ':' && peek(r, n + 1) == ']';
}

static uint32_t parse_class(nfa *r)
{
    static const char of_class[] = "has a range that begins or ends with \\d, \\w or \\s";
    const char *open = r->p - 1;
    bool negate = peek(r, 0) == '^';
    size_t from = r->n_sets;
    r->p += negate;
    bool first = r->raw; /* a ] there is one of the characters */
    while (r->p < r->end && (*r->p != ']' || first) && !r->why) {
        const char *start = r->p;
        first = false;
        if (r->raw && is_named_class(r))
            fault(r, start,
                  "has a class by name ([:alpha:]), which is not supported: write its ranges, as in [A-Za-z]");
        if (*r->p == '\\' && add_class(r, peek(r, 1), negate)) {
            r->p += 2;
            if (r->raw && peek(r, 0) == '-' && peek(r, 1) && peek(r, 1) != ']')
                fault(r, start, of_class);
            continue;
        }
        uint32_t lo = class_char(r), hi = lo;
        if (r->end - r->p >= 2 && r->p[0] == '-' && r->p[1] != ']') {
            r->p++;
            if (*r->p == '\\' && peek(r, 1) && strchr("dDwWsS", peek(r, 1)))
                fault(r, start, of_class);
            hi = class_char(r);
            if (hi < lo)
                fault(r, start, "has a range whose end is before its beginning");
        }
        nfa_add_range(r, lo, hi);
    }
    if (r->p >= r->end)
        fault(r, open, "has a [ without its ]");
    r->p++;
    nfa_tidy(r, from, negate);
    return nfa_add_part(r, (nfa_part){.kind = PART_SET, .a = (uint32_t)from, .b = (uint32_t)r->n_sets});
}

static uint32_t parse_either(nfa *r);

/* Goes over what stands behind a ( that begins with ?; why it cannot be had, or NULL. */
static const char *group_head(nfa *r)
{
    static const char no_group[] = "has a (? that begins no group: (?:...) and (?P<name>...) do";
    const char kind = peek(r, 1), more = peek(r, 2);
    switch (kind) {
    case ':': r->p += 2; return NULL;
    case '=':
    case '!': return "looks ahead ((?= or (?!), which is not supported";
    case '>': return "has an atomic group ((?>), which is not supported";
    case '(': return "has a condition on a group ((?(1)), which is not supported";
    case '#': return "has a comment ((?#), which is not supported: leave it out";
    case '<':
        if (more == '=' || more == '!')
            return "looks behind ((?<= or (?<!), which is not supported";
        break;
    case 'P':
        if (more == '=')
            return "refers back to a group ((?P=), which is not supported";
        if (more != '<')
            return no_group;
        break;
    default:
        return kind != '-' && !is_letter(kind)
                   ? no_group
                   : "sets flags ((?i), (?s:...)), which is not supported: write [Aa] for either case, [\\s\\S] "
                     "for any character";
    }
    const char *close = memchr(r->p, '>', (size_t)(r->end - r->p));
    r->p = close ? close + 1 : r->end;
    return NULL;
}

static uint32_t parse_group(nfa *r)
{
    const char *open = r->p - 1, *why = peek(r, 0) == '?' ? group_head(r) : NULL;
    if (why)
        return fault(r, open, why);
    uint32_t inner = parse_either(r);
    if (r->p >= r->end || *r->p != ')')
        fault(r, open, "has a ( without its )");
    r->p++;
    return inner;
}

static bool parse_counts(nfa *r, uint32_t *min, uint32_t *max);

static uint32_t parse_one(nfa *r)
{
    static const nfa_range no_line_ends[] = {{0, 9}, {11, 12}, {14, 0x2027}, {0x202A, NFA_LAST_CHAR}};
    static const nfa_range no_newline[] = {{0, 9}, {11, NFA_LAST_CHAR}};
    const char *start = r->p;
    char c = *r->p;
    size_t from = r->n_sets;
    uint32_t min, max;
    if (c == '*' || c == '+' || c == '?' || (r->raw && c == '{' && parse_counts(r, &min, &max)))
        return fault(r, start, "repeats nothing");
    if (c == '\\' && r->raw && peek(r, 1) && strchr("AZz", peek(r, 1))) {
        r->p += 2;
        return nfa_add_part(r, (nfa_part){.kind = start[1] == 'A' ? PART_BEGIN : PART_END});
    }
    if (c == '\\') {
        if (add_class(r, peek(r, 1), false)) {
            r->p += 2;
        } else {
            r->p++;
            uint32_t cp = escaped_char(r, false);
            nfa_add_range(r, cp, cp);
        }
        return nfa_add_part(r, (nfa_part){.kind = PART_SET, .a = (uint32_t)from, .b = (uint32_t)r->n_sets});
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
        if (r->raw)
            add_ranges(r, no_newline, XD_ARRAY_LEN(no_newline));
        else
            add_ranges(r, no_line_ends, XD_ARRAY_LEN(no_line_ends));
    } else {
        uint32_t cp = plain_char(r);
        nfa_add_range(r, cp, cp);
    }
    return nfa_add_part(r, (nfa_part){.kind = PART_SET, .a = (uint32_t)from, .b = (uint32_t)r->n_sets});
}

/* "{m}", "{m,}", "{m,n}", of Python also "{,n}"; anything else is text. */
static bool parse_counts(nfa *r, uint32_t *min, uint32_t *max)
{
    const char *p = r->p + 1;
    uint64_t v[2] = {0, 0};
    bool comma = false, digits[2] = {false, false};
    for (; p < r->end && *p != '}'; p++) {
        if (*p == ',' && !comma) {
            comma = true;
        } else if (is_digit(*p)) {
            v[comma] = XD_MIN(v[comma] * 10 + (uint64_t)(*p - '0'), 1u << 30);
            digits[comma] = true;
        } else {
            return false;
        }
    }
    if (p < r->end && !digits[0] && digits[1] && !r->raw)
        fault(r, r->p, "has {,n}, which is text to some and a count to others");
    if (p >= r->end || (!digits[0] && !(comma && r->raw)))
        return false;
    const uint32_t most = r->raw ? MAX_RAW_REPEAT : MAX_REPEAT;
    *min = (uint32_t)v[0];
    *max = !comma ? *min : digits[1] ? (uint32_t)v[1] : UINT32_MAX;
    if (*min > most || (*max != UINT32_MAX && *max > most))
        fault(r, r->p,
              r->raw ? "repeats a part more than 5000 times: leave the number out for any number of them"
                     : "repeats a part more than 1000 times: leave the number out for any number of them");
    if (*max < *min)
        fault(r, r->p, "repeats a part at least more often than at most");
    r->p = p + 1;
    return true;
}

/* *, +, ?, {m,n}. */
static bool parse_repeat(nfa *r, uint32_t *min, uint32_t *max)
{
    char c = r->why ? 0 : peek(r, 0);
    if (c == '{')
        return parse_counts(r, min, max);
    if (c != '*' && c != '+' && c != '?')
        return false;
    *min = c == '+';
    *max = c == '?' ? 1 : UINT32_MAX;
    r->p++;
    return true;
}

static uint32_t parse_repeated(nfa *r)
{
    uint32_t one = parse_one(r), min, max, other;
    if (!parse_repeat(r, &min, &max))
        return one;
    const char *more = r->p;
    if (peek(r, 0) == '+')
        fault(r, more, "repeats possessively (*+, ++, ?+, }+), which is not supported");
    r->p += peek(r, 0) == '?'; /* lazy: the same texts */
    more = r->p;
    if (parse_repeat(r, &other, &other))
        fault(r, more, "repeats what is repeated already: put it in a group first, as in (?:a{2}){3}");
    return nfa_add_part(r, (nfa_part){.kind = PART_REPEAT, .a = one, .min = min, .max = max});
}

static uint32_t parse_either(nfa *r)
{
    if (++r->nesting > MAX_NESTING)
        fault(r, r->p, "has more than 50 groups within each other");
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

uint32_t gram_regex_parse(nfa *r)
{
    uint32_t top = parse_either(r);
    if (r->p < r->end)
        fault(r, r->p, "has a ) without its (");
    return top;
}

const char *gram_regex_compile(const char *pattern, size_t len, uint64_t *work_left, gram_dfa *ret)
{
    nfa r = {.p = pattern, .end = pattern + len, .left = work_left};
    uint32_t top = gram_regex_parse(&r);
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
