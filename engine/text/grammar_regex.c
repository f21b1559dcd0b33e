/* grammar_regex.c - a pattern of a schema to an automaton over characters.
 *
 * ECMA-262's regular expressions as far as they are regular: no look-around, no references back, no word boundaries, no properties. A pattern
 * is searched for, so that anything may stand around it unless ^ and $ say no. Parsed to a tree, the tree to a nondeterministic automaton
 * (Thompson), that to sets of its places (the subset construction); grammar_dfa.c goes on from there. All of it pays from one budget: a
 * pattern that would cost more is refused.
 * Control characters that JSON has no short escape for are no characters here. */
#include <string.h>
#include <xxhash.h>

#include "engine/text/grammar_build.h"
#include "engine/text/tok_priv.h"

enum {
    MAX_NESTING = 50,
    MAX_PLACES = 10000, /* of the nondeterministic automaton */
    MAX_STATES = 20000,
    MAX_REPEAT = 1000,
    LAST_CHAR = 0x10FFFF,
};

typedef struct range {
    uint32_t lo, hi;
} range;

typedef enum part_kind { PART_EMPTY, PART_SET, PART_BEGIN, PART_END, PART_CAT, PART_ALT, PART_REPEAT } part_kind;
typedef struct part {
    part_kind kind;
    uint32_t a, b;     /* CAT, ALT: parts; REPEAT: a; SET: ranges [a, b) */
    uint32_t min, max; /* REPEAT; max UINT32_MAX: no limit */
} part;

typedef enum place_kind { PLACE_SPLIT, PLACE_SET, PLACE_BEGIN, PLACE_END, PLACE_MATCH } place_kind;
typedef struct nfa_place {
    place_kind kind;
    uint32_t a, b, to, other; /* SET: ranges [a, b); SPLIT: to and other (GRAM_NONE: none) */
} nfa_place;

typedef struct regex {
    const char *p, *end;
    part *part;
    range *set;
    nfa_place *place;
    size_t n_parts, part_cap, n_sets, set_cap, n_places, place_cap;
    /* states: sets of places, flat */
    uint32_t *member, *first, *slot;
    size_t n_members, member_cap, n_states, first_cap, n_slots;
    gram_edge *edge;
    size_t n_edges, edge_cap;
    uint32_t *edge_first; /* [n_states + 1], as first */
    size_t edge_first_cap;
    bool *accepts;
    size_t accepts_cap;
    uint32_t *mark, stamp, *todo; /* [n_places] */
    int nesting;
    uint64_t *left; /* of what it may cost, see BUILD_WORK */
    bool nomem;
    const char *why; /* NULL: all is well */
} regex;

static bool spend(regex *r, uint64_t n)
{
    if (n > *r->left && !r->why)
        r->why = "is too complex";
    if (!r->why)
        *r->left -= n;
    return !r->why;
}

static bool room(regex *r, void *array, size_t *cap, size_t need, size_t bytes)
{
    if (tok_grow(array, cap, need, bytes))
        return true;
    r->nomem = true;
    r->why = "out of memory";
    return false;
}

/* ---- parsing ---- */

static uint32_t add_part(regex *r, part p)
{
    if (!spend(r, 1) || !room(r, &r->part, &r->part_cap, r->n_parts + 1, sizeof *r->part))
        return 0;
    r->part[r->n_parts] = p;
    return (uint32_t)r->n_parts++;
}

static void add_range(regex *r, uint32_t lo, uint32_t hi)
{
    if (lo <= hi && spend(r, 1) && room(r, &r->set, &r->set_cap, r->n_sets + 1, sizeof *r->set))
        r->set[r->n_sets++] = (range){lo, hi};
}

static int by_lo(const void *x, const void *y)
{
    const range *a = x, *b = y;
    return a->lo < b->lo ? -1 : a->lo > b->lo;
}

/* Makes the ranges from `from` on sorted and apart, and turns them round where asked. */
static void tidy(regex *r, size_t from, bool negate)
{
    if (r->why)
        return;
    if (r->n_sets > from)
        qsort(r->set + from, r->n_sets - from, sizeof *r->set, by_lo);
    size_t to = from;
    for (size_t i = from; i < r->n_sets; i++) {
        if (to > from && r->set[i].lo <= r->set[to - 1].hi + 1)
            r->set[to - 1].hi = XD_MAX(r->set[to - 1].hi, r->set[i].hi);
        else
            r->set[to++] = r->set[i];
    }
    r->n_sets = to;
    if (!negate)
        return;
    uint32_t next = 0;
    for (size_t i = from; i < to; i++) {
        range one = r->set[i];
        if (one.lo > next)
            add_range(r, next, one.lo - 1);
        next = one.hi + 1;
    }
    add_range(r, next, LAST_CHAR);
    if (r->why)
        return;
    memmove(r->set + from, r->set + to, (r->n_sets - to) * sizeof *r->set);
    r->n_sets -= to - from;
}

/* \d \w \s and their opposites. Blanks: what ECMA and Unicode agree on; no blank: what neither takes for one. */
static bool add_class(regex *r, char c)
{
    static const range digits[] = {{'0', '9'}}, word[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
    static const range space[] = {{9, 13},          {' ', ' '},       {0xA0, 0xA0},
                                  {0x1680, 0x1680}, {0x2000, 0x200A}, {0x2028, 0x2029},
                                  {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}};
    static const range maybe_space[] = {{0x1C, 0x1F}, {0x85, 0x85}, {0xFEFF, 0xFEFF}};
    const range *of = NULL;
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
        add_range(r, of[i].lo, of[i].hi);
    for (size_t i = 0; i < XD_ARRAY_LEN(maybe_space) && c == 'S'; i++)
        add_range(r, maybe_space[i].lo, maybe_space[i].hi);
    tidy(r, from, c < 'a');
    return true;
}

static bool hex_digits(regex *r, size_t n, uint32_t *ret)
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
static uint32_t escaped_char(regex *r, bool in_class)
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
        for (r->p++; r->p < r->end && *r->p != '}' && v <= LAST_CHAR && hex_digits(r, 1, &low);)
            v = v << 4 | low;
        if (r->p < r->end && *r->p++ == '}' && v <= LAST_CHAR)
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

static uint32_t plain_char(regex *r)
{
    size_t n;
    uint32_t cp = tok_cp(r->p, &n);
    r->p += n;
    return cp;
}

static uint32_t parse_class(regex *r)
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
        add_range(r, lo, hi);
    }
    if (r->p >= r->end && !r->why)
        r->why = "has a [ without its ]";
    r->p++;
    tidy(r, from, negate);
    return add_part(r, (part){.kind = PART_SET, .a = (uint32_t)from, .b = (uint32_t)r->n_sets});
}

static uint32_t parse_either(regex *r);

static uint32_t parse_group(regex *r)
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

static uint32_t parse_one(regex *r)
{
    static const range any[] = {{0, 9}, {11, 12}, {14, 0x2027}, {0x202A, LAST_CHAR}}; /* no line ends */
    char c = *r->p;
    size_t from = r->n_sets;
    if (c == '\\') {
        char next = r->p + 1 < r->end ? r->p[1] : 0;
        if (next && add_class(r, next)) {
            r->p += 2;
        } else {
            r->p++;
            uint32_t cp = escaped_char(r, false);
            add_range(r, cp, cp);
        }
        return add_part(r, (part){.kind = PART_SET, .a = (uint32_t)from, .b = (uint32_t)r->n_sets});
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
        return add_part(r, (part){.kind = c == '^' ? PART_BEGIN : PART_END});
    }
    if (c == '.') {
        r->p++;
        for (size_t i = 0; i < XD_ARRAY_LEN(any); i++)
            add_range(r, any[i].lo, any[i].hi);
    } else {
        uint32_t cp = plain_char(r);
        add_range(r, cp, cp);
    }
    return add_part(r, (part){.kind = PART_SET, .a = (uint32_t)from, .b = (uint32_t)r->n_sets});
}

/* "{m}", "{m,}", "{m,n}"; anything else is text. */
static bool parse_counts(regex *r, uint32_t *min, uint32_t *max)
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

static uint32_t parse_repeated(regex *r)
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
    return add_part(r, (part){.kind = PART_REPEAT, .a = one, .min = min, .max = max});
}

static uint32_t parse_either(regex *r)
{
    if (++r->nesting > MAX_NESTING)
        r->why = "has too many groups within each other";
    uint32_t ret = GRAM_NONE;
    for (bool more = true; more && !r->why;) {
        uint32_t cat = add_part(r, (part){.kind = PART_EMPTY});
        while (r->p < r->end && *r->p != '|' && *r->p != ')' && !r->why)
            cat = add_part(r, (part){.kind = PART_CAT, .a = cat, .b = parse_repeated(r)});
        ret = ret == GRAM_NONE ? cat : add_part(r, (part){.kind = PART_ALT, .a = ret, .b = cat});
        more = r->p < r->end && *r->p == '|';
        r->p += more;
    }
    r->nesting--;
    return ret;
}

/* ---- places ---- */

static uint32_t add_place(regex *r, nfa_place p)
{
    if (r->n_places >= MAX_PLACES && !r->why)
        r->why = "is too large";
    if (!spend(r, 1) || !room(r, &r->place, &r->place_cap, r->n_places + 1, sizeof *r->place))
        return 0;
    r->place[r->n_places] = p;
    return (uint32_t)r->n_places++;
}

/* The places of a part that goes on at `to`; built from the end. Concatenations and alternatives are lists to the left, which are walked:
 * calls are only as deep as groups are. */
static uint32_t emit(regex *r, uint32_t i, uint32_t to)
{
    while (spend(r, 1)) {
        const part p = r->part[i];
        switch (p.kind) {
        case PART_EMPTY: return to;
        case PART_SET: return add_place(r, (nfa_place){.kind = PLACE_SET, .a = p.a, .b = p.b, .to = to});
        case PART_BEGIN: return add_place(r, (nfa_place){.kind = PLACE_BEGIN, .to = to});
        case PART_END: return add_place(r, (nfa_place){.kind = PLACE_END, .to = to});
        case PART_CAT:
            to = emit(r, p.b, to);
            i = p.a;
            continue;
        case PART_ALT: {
            uint32_t others = emit(r, p.b, to);
            for (i = p.a; !r->why && r->part[i].kind == PART_ALT; i = r->part[i].a)
                others =
                    add_place(r, (nfa_place){.kind = PLACE_SPLIT, .to = emit(r, r->part[i].b, to), .other = others});
            return add_place(r, (nfa_place){.kind = PLACE_SPLIT, .to = emit(r, i, to), .other = others});
        }
        case PART_REPEAT:
            if (p.max == UINT32_MAX) {
                uint32_t loop = add_place(r, (nfa_place){.kind = PLACE_SPLIT, .other = to});
                uint32_t body = emit(r, p.a, loop);
                if (!r->why)
                    r->place[loop].to = body;
                to = p.min ? body : loop; /* one of `min` is in the loop */
            } else {
                uint32_t end = to;
                for (uint32_t k = p.min; k < p.max && !r->why; k++)
                    to = add_place(r, (nfa_place){.kind = PLACE_SPLIT, .to = emit(r, p.a, to), .other = end});
            }
            for (uint32_t k = p.max == UINT32_MAX; k < p.min && !r->why; k++)
                to = emit(r, p.a, to);
            return to;
        }
    }
    return 0;
}

/* ---- states ---- */

/* Adds to the set under way what is reached from place i without a character. True: the match. */
static bool reach(regex *r, uint32_t i, bool begin, bool end, uint32_t *set, size_t *n)
{
    bool match = false;
    size_t n_todo = 0;
    r->todo[n_todo++] = i;
    while (n_todo && spend(r, 1)) {
        uint32_t at = r->todo[--n_todo];
        const nfa_place *p = &r->place[at];
        if (r->mark[at] == r->stamp)
            continue;
        r->mark[at] = r->stamp;
        match = match || p->kind == PLACE_MATCH;
        if (p->kind == PLACE_SPLIT) {
            r->todo[n_todo++] = p->other;
            r->todo[n_todo++] = p->to;
        } else if (p->kind == PLACE_BEGIN ? begin : p->kind == PLACE_END && end) {
            r->todo[n_todo++] = p->to;
        } else if (p->kind != PLACE_BEGIN) {
            set[(*n)++] = at; /* an END waits: it passes at the end only */
        }
    }
    return match;
}

static int by_id(const void *x, const void *y)
{
    uint32_t a = *(const uint32_t *)x, b = *(const uint32_t *)y;
    return a < b ? -1 : a > b;
}

/* The state of a set of places; a new one where there is none yet. */
static uint32_t state_of(regex *r, uint32_t *set, size_t n)
{
    qsort(set, n, sizeof *set, by_id);
    spend(r, n * 4);
    uint64_t h = XXH3_64bits(set, n * sizeof *set);
    for (size_t i = h & (r->n_slots - 1); r->slot[i]; i = (i + 1) & (r->n_slots - 1)) {
        uint32_t s = r->slot[i] - 1;
        if (r->first[s + 1] - r->first[s] == n && !memcmp(r->member + r->first[s], set, n * sizeof *set))
            return s;
    }
    if (r->n_states >= MAX_STATES && !r->why)
        r->why = "is too complex";
    if (r->why || !room(r, &r->member, &r->member_cap, r->n_members + n, sizeof *r->member) ||
        !room(r, &r->first, &r->first_cap, r->n_states + 2, sizeof *r->first) ||
        !room(r, &r->accepts, &r->accepts_cap, r->n_states + 1, sizeof *r->accepts))
        return 0;
    uint32_t s = (uint32_t)r->n_states++;
    if (n)
        memcpy(r->member + r->n_members, set, n * sizeof *set);
    r->first[0] = 0;
    r->first[s + 1] = (uint32_t)(r->n_members += n);
    size_t at = h & (r->n_slots - 1);
    while (r->slot[at])
        at = (at + 1) & (r->n_slots - 1);
    r->slot[at] = s + 1;
    return s;
}

static bool accepts(regex *r, uint32_t s)
{
    bool match = false;
    size_t n = 0;
    uint32_t *scratch = r->todo + 3 * r->n_places;
    r->stamp++;
    for (uint32_t i = r->first[s]; i < r->first[s + 1]; i++)
        match |= reach(r, r->member[i], false, true, scratch, &n);
    return match;
}

static bool is_spellable(uint32_t cp)
{
    return cp >= 0x20 ? cp < 0xD800 || cp > 0xDFFF : cp == '\b' || cp == '\t' || cp == '\n' || cp == '\f' || cp == '\r';
}

static void add_edge(regex *r, size_t first, uint32_t lo, uint32_t hi, uint32_t to)
{
    if (r->n_edges > first && r->edge[r->n_edges - 1].to == to && r->edge[r->n_edges - 1].hi + 1 == lo) {
        r->edge[r->n_edges - 1].hi = hi;
        return;
    }
    if (spend(r, BUILD_WORK_OF_EDGE) && room(r, &r->edge, &r->edge_cap, r->n_edges + 1, sizeof *r->edge))
        r->edge[r->n_edges++] = (gram_edge){lo, hi, to};
}

/* Where state s goes by which characters: the limits of all its ranges cut the characters into stretches that are all alike. */
static void expand(regex *r, uint32_t s, uint32_t **cuts, size_t *cuts_cap, uint32_t *set)
{
    static const uint32_t fixed[] = {0, 8, 9, 10, 11, 12, 13, 14, 0x20, 0xD800, 0xE000};
    size_t n = 0, first_edge = r->n_edges;
    if (!room(r, cuts, cuts_cap, XD_ARRAY_LEN(fixed) + 1, sizeof **cuts))
        return;
    memcpy(*cuts, fixed, sizeof fixed);
    n = XD_ARRAY_LEN(fixed);
    for (uint32_t m = r->first[s]; m < r->first[s + 1]; m++) {
        const nfa_place *p = &r->place[r->member[m]];
        for (uint32_t i = p->a; p->kind == PLACE_SET && i < p->b; i++) {
            if (!room(r, cuts, cuts_cap, n + 3, sizeof **cuts))
                return;
            (*cuts)[n++] = r->set[i].lo;
            (*cuts)[n++] = r->set[i].hi + 1;
        }
    }
    if (!spend(r, r->first[s + 1] - r->first[s] + n * 8))
        return;
    qsort(*cuts, n, sizeof **cuts, by_id);
    (*cuts)[n] = LAST_CHAR + 1;
    for (size_t c = 0; c < n && spend(r, 1); c++) {
        uint32_t lo = (*cuts)[c], hi = (*cuts)[c + 1] - 1;
        if (lo >= (*cuts)[c + 1] || lo > LAST_CHAR || !is_spellable(lo))
            continue;
        size_t size = 0;
        r->stamp++;
        for (uint32_t m = r->first[s]; m < r->first[s + 1]; m++) {
            const nfa_place *p = &r->place[r->member[m]];
            bool in = false;
            for (uint32_t i = p->a; p->kind == PLACE_SET && i < p->b && !in; i++)
                in = lo >= r->set[i].lo && lo <= r->set[i].hi;
            spend(r, 1 + (p->kind == PLACE_SET ? p->b - p->a : 0));
            if (p->kind == PLACE_MATCH) /* found: anything may follow */
                reach(r, r->member[m], false, false, set, &size);
            else if (in)
                reach(r, p->to, false, false, set, &size);
        }
        if (size)
            add_edge(r, first_edge, lo, hi, state_of(r, set, size));
    }
}

static void determinise(regex *r, uint32_t start)
{
    r->n_slots = 65536;
    r->mark = calloc(r->n_places, sizeof *r->mark);
    r->todo = calloc(r->n_places, 4 * sizeof *r->todo);
    r->slot = calloc(r->n_slots, sizeof *r->slot);
    uint32_t *cuts = NULL, *set = calloc(r->n_places * 2 + 2, sizeof *set);
    size_t cuts_cap = 0, n = 0;
    if (!r->mark || !r->todo || !r->slot || !set) {
        r->nomem = true;
        r->why = "out of memory";
    } else {
        r->stamp = 1;
        reach(r, start, true, false, set, &n);
        state_of(r, set, n);
    }
    for (uint32_t s = 0; s < r->n_states && !r->why; s++) {
        if (!room(r, &r->edge_first, &r->edge_first_cap, s + 2, sizeof *r->edge_first))
            break;
        r->edge_first[s] = (uint32_t)r->n_edges;
        expand(r, s, &cuts, &cuts_cap, set);
        r->accepts[s] = accepts(r, s);
        r->edge_first[s + 1] = (uint32_t)r->n_edges;
    }
    free(cuts);
    free(set);
}

static void regex_free(regex *r)
{
    free(r->part);
    free(r->set);
    free(r->place);
    free(r->member);
    free(r->first);
    free(r->slot);
    free(r->edge);
    free(r->edge_first);
    free(r->accepts);
    free(r->mark);
    free(r->todo);
}

const char *gram_regex_compile(const char *pattern, size_t len, uint64_t *work_left, gram_dfa *ret)
{
    regex r = {.p = pattern, .end = pattern + len, .left = work_left};
    uint32_t top = parse_either(&r);
    if (r.p < r.end && !r.why)
        r.why = "has a ) without its (";
    size_t any = r.n_sets;
    add_range(&r, 0, LAST_CHAR);
    uint32_t match = add_place(&r, (nfa_place){.kind = PLACE_MATCH});
    uint32_t found = emit(&r, top, match);
    uint32_t start = add_place(&r, (nfa_place){.kind = PLACE_SPLIT, .to = found});
    uint32_t skip =
        add_place(&r, (nfa_place){.kind = PLACE_SET, .a = (uint32_t)any, .b = (uint32_t)r.n_sets, .to = start});
    if (!r.why) {
        r.place[start].other = skip;
        determinise(&r, start);
    }
    if (!r.why)
        *ret = (gram_dfa){.n_states = (uint32_t)r.n_states,
                          .first = XD_TAKE(r.edge_first),
                          .edge = XD_TAKE(r.edge),
                          .end = XD_TAKE(r.accepts)};
    const char *why = r.nomem ? GRAM_REGEX_NOMEM : r.why;
    regex_free(&r);
    return why;
}
