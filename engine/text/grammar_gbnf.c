/* grammar_gbnf.c - the text of a grammar in llama.cpp's GBNF, read into parts.
 *
 * The notation is that of llama.cpp's grammars/README.md. Where other servers are more liberal, so is this: a line may end anywhere within a
 * rule, which ends where the next one's name and ::= stand (xgrammar's EBNF, which vLLM and SGLang read); names may have underscores;
 * there are a few more escapes. Tokens (<think>, <[1000]>) are refused: a grammar here is about text, however it is cut.
 * A group that is repeated often becomes a rule of its own, so that it can be called instead of copied: grammar_net.c. */
#include "engine/text/grammar_gbnf.h"

#include <stdio.h>
#include <string.h>

#include "engine/text/tok_priv.h"

enum {
    MAX_BYTES = 256 << 10,
    MAX_RULES = 10000,
    MAX_NESTING = 50,
    MAX_REPEAT = 5000,
    MAX_SHOWN = 40, /* bytes of a name in messages */
};

typedef struct reader {
    gbnf *g;
    nfa *n;
    tok_vocab names;   /* id: the rule */
    const char **seen; /* [rules] where it is first named */
    const char **made; /* [rules] where it is defined; NULL: nowhere yet */
    size_t seen_cap, made_cap;
    uint32_t rule; /* under way */
    int nesting;
    xd_status st;
} reader;

xd_status gbnf_fault(gbnf *g, const char *at, const char *fmt, ...)
{
    char text[200], where[64] = "";
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (at) {
        size_t line = 1, column = 1;
        for (const char *p = g->text; p < at; p++) {
            column += (*p & 0xC0) != 0x80;
            if (*p == '\n' && !g->is_regex) {
                line++;
                column = 1;
            }
        }
        if (g->is_regex)
            snprintf(where, sizeof where, "character %zu: ", column);
        else
            snprintf(where, sizeof where, "line %zu, column %zu: ", line, column);
    }
    return xd_fail_field(g->err, XD_BAD_REQUEST, NULL, g->is_regex ? "invalid_regex" : "invalid_grammar", "%s%s", where,
                         text);
}

xd_status gbnf_why(gbnf *g, const char *name, size_t name_len)
{
    if (g->n.nomem)
        return xd_fail(g->err, XD_NOMEM, 0, "out of memory for a grammar");
    if (g->is_regex)
        return gbnf_fault(g, g->n.at, "the regular expression %s", g->n.why);
    if (name)
        return gbnf_fault(g, name, "the rule '%.*s' %s", (int)XD_MIN(name_len, (size_t)MAX_SHOWN), name, g->n.why);
    return gbnf_fault(g, NULL, "the grammar %s", g->n.why);
}

static bool is_well(const reader *r)
{
    return !r->st && !r->n->why;
}

/* "expected WHAT, not X". */
static void expected(reader *r, const char *what)
{
    if (!is_well(r))
        return;
    const char *p = r->n->p;
    char found[16] = "the end";
    if (p < r->n->end && (*p == '\n' || *p == '\r')) {
        snprintf(found, sizeof found, "the line's end");
    } else if (p < r->n->end) {
        size_t len;
        tok_cp(p, &len);
        snprintf(found, sizeof found, "'%.*s'", (int)len, p);
    }
    r->st = gbnf_fault(r->g, p, "expected %s, not %s", what, found);
}

static bool is_name_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

static char peek(const reader *r)
{
    return r->n->p < r->n->end ? *r->n->p : 0;
}

static const char *after_blanks(const reader *r, const char *p)
{
    for (; p < r->n->end && strchr(" \t\r\n#", *p); p++)
        if (*p == '#')
            while (p + 1 < r->n->end && p[1] != '\n' && p[1] != '\r')
                p++;
    return p;
}

static void skip_blanks(reader *r)
{
    r->n->p = after_blanks(r, r->n->p);
}

static size_t name_len(const reader *r)
{
    size_t len = 0;
    while (r->n->p + len < r->n->end && is_name_char(r->n->p[len]))
        len++;
    return len;
}

/* A name and ::= stand here. */
static bool at_rule(const reader *r)
{
    size_t len = name_len(r);
    const char *p = after_blanks(r, r->n->p + len);
    return len && r->n->end - p >= 3 && !memcmp(p, "::=", 3);
}

static uint32_t new_rule(reader *r, const char *name, size_t len, const char *at)
{
    gbnf *g = r->g;
    if (g->n_rules >= MAX_RULES && is_well(r))
        r->st = gbnf_fault(g, at, "there are more than %d rules and groups", MAX_RULES);
    if (!is_well(r) || !nfa_room(r->n, &g->rule, &g->rule_cap, g->n_rules + 1, sizeof *g->rule) ||
        !nfa_room(r->n, &g->of, &g->of_cap, g->n_rules + 1, sizeof *g->of) ||
        !nfa_room(r->n, &r->seen, &r->seen_cap, g->n_rules + 1, sizeof *r->seen) ||
        !nfa_room(r->n, &r->made, &r->made_cap, g->n_rules + 1, sizeof *r->made))
        return 0;
    g->rule[g->n_rules] = (gbnf_rule){.name = name, .name_len = (uint32_t)len};
    g->of[g->n_rules] = (nfa_rule){.part = GRAM_NONE, .net = GRAM_NONE};
    r->seen[g->n_rules] = at;
    r->made[g->n_rules] = NULL;
    return (uint32_t)g->n_rules++;
}

/* The rule whose name stands here. */
static uint32_t named_rule(reader *r)
{
    size_t len = name_len(r);
    const char *name = r->n->p;
    uint32_t id = tok_vocab_get(&r->names, name, len);
    r->n->p += len;
    if (id != TOK_NONE)
        return id;
    id = new_rule(r, name, len, name);
    if (is_well(r) && !tok_vocab_put(&r->names, name, len, id)) {
        r->n->nomem = true;
        r->n->why = "out of memory";
    }
    return id;
}

/* ---- characters ---- */

static uint32_t hex(reader *r, int digits)
{
    uint32_t v = 0;
    for (int i = 0; i < digits && is_well(r); i++) {
        char c = peek(r);
        bool letter = (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
        if (!letter && !(c >= '0' && c <= '9')) {
            expected(r, digits == 2   ? "2 hexadecimal digits"
                        : digits == 4 ? "4 hexadecimal digits"
                                      : "8 hexadecimal digits");
            return 0;
        }
        v = v << 4 | (uint32_t)(letter ? (c | 32) - 'a' + 10 : c - '0');
        r->n->p++;
    }
    return v;
}

static uint32_t one_char(reader *r)
{
    static const char letters[] = "nrtabfve0", means[] = "\n\r\t\a\b\f\v\x1B";
    const char *at = r->n->p;
    size_t len;
    uint32_t cp = tok_cp(at, &len);
    r->n->p += len;
    if (cp != '\\')
        return cp;
    char c = peek(r);
    const char *letter = c ? strchr(letters, c) : NULL;
    if (letter) {
        r->n->p++;
        return (unsigned char)means[letter - letters]; /* of 0: the one that ends them */
    }
    if (c && strchr("\\\"'[]-^?", c)) {
        r->n->p++;
        return (unsigned char)c;
    }
    if (c != 'x' && c != 'u' && c != 'U') {
        expected(r, "an escape: \\n \\r \\t \\\\ \\\" \\[ \\] \\- \\^ \\xXX \\uXXXX \\UXXXXXXXX");
        return 0;
    }
    r->n->p++;
    cp = hex(r, c == 'x' ? 2 : c == 'u' ? 4 : 8);
    if (is_well(r) && (cp > NFA_LAST_CHAR || (cp >= 0xD800 && cp <= 0xDFFF)))
        r->st =
            gbnf_fault(r->g, at, "%.*s is no character: those beyond U+FFFF are \\UXXXXXXXX", (int)(r->n->p - at), at);
    return cp;
}

static uint32_t literal(reader *r)
{
    const char *open = r->n->p++;
    uint32_t ret = nfa_add_part(r->n, (nfa_part){.kind = PART_EMPTY});
    bool any = false;
    while (is_well(r) && r->n->p < r->n->end && *r->n->p != '"') {
        uint32_t from = (uint32_t)r->n->n_sets, cp = one_char(r);
        nfa_add_range(r->n, cp, cp);
        uint32_t one = nfa_add_part(r->n, (nfa_part){.kind = PART_SET, .a = from, .b = from + 1});
        ret = any ? nfa_add_part(r->n, (nfa_part){.kind = PART_CAT, .a = ret, .b = one}) : one;
        any = true;
    }
    if (is_well(r) && r->n->p >= r->n->end)
        r->st = gbnf_fault(r->g, open, "this \" has no \" that ends it");
    r->n->p++;
    return ret;
}

static uint32_t class(reader *r)
{
    const char *open = r->n->p++;
    const bool negate = peek(r) == '^';
    const uint32_t from = (uint32_t)r->n->n_sets;
    r->n->p += negate;
    while (is_well(r) && r->n->p < r->n->end && *r->n->p != ']') {
        const char *at = r->n->p;
        uint32_t lo = one_char(r), hi = lo;
        if (is_well(r) && r->n->end - r->n->p >= 2 && r->n->p[0] == '-' && r->n->p[1] != ']') {
            r->n->p++;
            hi = one_char(r);
            if (is_well(r) && hi < lo)
                r->st = gbnf_fault(r->g, at, "the range ends before it begins");
        }
        nfa_add_range(r->n, lo, hi);
    }
    if (is_well(r) && r->n->p >= r->n->end)
        r->st = gbnf_fault(r->g, open, "this [ has no ] that ends it");
    if (is_well(r) && r->n->n_sets == from)
        r->st = gbnf_fault(r->g, open, "there is no character between [ and ]");
    r->n->p++;
    nfa_tidy(r->n, from, negate);
    return nfa_add_part(r->n, (nfa_part){.kind = PART_SET, .a = from, .b = (uint32_t)r->n->n_sets});
}

/* ---- rules ---- */

static uint32_t either(reader *r);

static uint32_t item(reader *r)
{
    char c = peek(r);
    uint32_t from = (uint32_t)r->n->n_sets;
    if (is_name_char(c))
        return nfa_add_part(r->n, (nfa_part){.kind = PART_RULE, .a = named_rule(r)});
    switch (c) {
    case '"': return literal(r);
    case '[': return class(r);
    case '.':
        r->n->p++;
        nfa_add_range(r->n, 0, NFA_LAST_CHAR);
        return nfa_add_part(r->n, (nfa_part){.kind = PART_SET, .a = from, .b = from + 1});
    case '(': {
        const char *open = r->n->p++;
        if (++r->nesting > MAX_NESTING && is_well(r))
            r->st = gbnf_fault(r->g, open, "more than %d groups within each other", MAX_NESTING);
        uint32_t ret = either(r);
        r->nesting--;
        if (is_well(r) && at_rule(r))
            r->st = gbnf_fault(r->g, open, "this ( has no ) before the next rule");
        if (is_well(r) && r->n->p >= r->n->end)
            r->st = gbnf_fault(r->g, open, "this ( has no )");
        if (is_well(r) && *r->n->p != ')')
            expected(r, "')', '|', a name, a text or a class of characters");
        r->n->p++;
        return ret;
    }
    case '<':
    case '!':
        if (is_well(r))
            r->st = gbnf_fault(r->g, r->n->p,
                               "tokens (<name>, <[id]>, !<...>) are not supported: say the text that they stand for");
        return 0;
    case '*':
    case '+':
    case '?':
    case '{':
        if (is_well(r))
            r->st = gbnf_fault(r->g, r->n->p, "'%c' repeats what stands before it, and there is nothing", c);
        return 0;
    default:
        expected(r, r->nesting ? "')', '|', a name, a text or a class of characters"
                               : "'|', a name, a text, a class of characters or a group");
        return 0;
    }
}

static uint32_t number(reader *r)
{
    const char *at = r->n->p;
    uint32_t v = 0;
    if (!(peek(r) >= '0' && peek(r) <= '9'))
        expected(r, "a number");
    for (; peek(r) >= '0' && peek(r) <= '9'; r->n->p++)
        v = XD_MIN(v * 10 + (uint32_t)(peek(r) - '0'), 1u << 24);
    if (is_well(r) && v > MAX_REPEAT)
        r->st =
            gbnf_fault(r->g, at, "more than %d repetitions: leave the number out for any number of them", MAX_REPEAT);
    return v;
}

/* "{m}", "{m,}", "{m,n}" */
static void counts(reader *r, uint32_t *min, uint32_t *max)
{
    const char *open = r->n->p++;
    skip_blanks(r);
    *min = *max = number(r);
    skip_blanks(r);
    if (peek(r) == ',') {
        r->n->p++;
        skip_blanks(r);
        *max = peek(r) == '}' ? UINT32_MAX : number(r);
        skip_blanks(r);
    }
    if (peek(r) != '}')
        expected(r, "'}'");
    r->n->p++;
    if (is_well(r) && *max < *min)
        r->st = gbnf_fault(r->g, open, "at least %u repetitions, and at most %u", *min, *max);
}

/* What is repeated often is named rather than copied, if it is more than a class or a name. */
static uint32_t named_group(reader *r, uint32_t part, uint32_t first)
{
    nfa_part_kind kind = r->n->part[part].kind;
    if (kind == PART_SET || kind == PART_RULE)
        return part;
    uint32_t rule = new_rule(r, r->g->rule[r->rule].name, r->g->rule[r->rule].name_len, r->n->p);
    if (!is_well(r))
        return 0;
    r->g->of[rule].part = part;
    r->g->rule[rule].first = first;
    r->g->rule[rule].end = (uint32_t)r->n->n_parts;
    r->made[rule] = r->n->p;
    return nfa_add_part(r->n, (nfa_part){.kind = PART_RULE, .a = rule});
}

static uint32_t repeated(reader *r)
{
    uint32_t first = (uint32_t)r->n->n_parts, ret = item(r);
    for (skip_blanks(r); is_well(r) && r->n->p < r->n->end && strchr("*+?{", *r->n->p); skip_blanks(r)) {
        uint32_t min = *r->n->p == '+', max = *r->n->p == '?' ? 1 : UINT32_MAX;
        if (*r->n->p == '{')
            counts(r, &min, &max);
        else
            r->n->p++;
        if (is_well(r) && XD_MAX(min, max == UINT32_MAX ? 0 : max) > 1)
            ret = named_group(r, ret, first);
        ret = nfa_add_part(r->n, (nfa_part){.kind = PART_REPEAT, .a = ret, .min = min, .max = max});
    }
    return ret;
}

static uint32_t either(reader *r)
{
    uint32_t ret = GRAM_NONE;
    for (bool more = true; more && is_well(r);) {
        uint32_t cat = GRAM_NONE;
        skip_blanks(r);
        while (is_well(r) && r->n->p < r->n->end && *r->n->p != '|' && *r->n->p != ')' && !at_rule(r)) {
            uint32_t one = repeated(r);
            cat = cat == GRAM_NONE ? one : nfa_add_part(r->n, (nfa_part){.kind = PART_CAT, .a = cat, .b = one});
        }
        if (cat == GRAM_NONE)
            cat = nfa_add_part(r->n, (nfa_part){.kind = PART_EMPTY});
        ret = ret == GRAM_NONE ? cat : nfa_add_part(r->n, (nfa_part){.kind = PART_ALT, .a = ret, .b = cat});
        more = peek(r) == '|';
        r->n->p += more;
    }
    return ret;
}

static void rule(reader *r)
{
    gbnf *g = r->g;
    const char *name = r->n->p;
    size_t len = name_len(r);
    if (!len) {
        expected(r, "a rule's name");
        return;
    }
    uint32_t id = named_rule(r);
    skip_blanks(r);
    if (is_well(r) && (r->n->end - r->n->p < 3 || memcmp(r->n->p, "::=", 3) != 0))
        expected(r, "'::=' after a rule's name");
    if (!is_well(r))
        return;
    if (r->made[id]) {
        r->st = gbnf_fault(g, name, "the rule '%.*s' is there already", (int)XD_MIN(len, (size_t)MAX_SHOWN), name);
        return;
    }
    r->made[id] = g->rule[id].name = name;
    r->n->p += 3;
    r->rule = id;
    uint32_t first = (uint32_t)r->n->n_parts, part = either(r);
    g->of[id].part = part;
    g->rule[id].first = first;
    g->rule[id].end = (uint32_t)r->n->n_parts;
    if (is_well(r) && peek(r) == ')')
        expected(r, "'|', a name, a text, a class of characters or a group");
}

static void check_names(reader *r)
{
    const gbnf *g = r->g;
    if (is_well(r) && !r->made[0])
        r->st = gbnf_fault(r->g, NULL, "there is no rule 'root', which says what the whole answer is");
    for (size_t i = 0; i < g->n_rules && is_well(r); i++)
        if (!r->made[i])
            r->st = gbnf_fault(r->g, r->seen[i], "there is no rule '%.*s'",
                               (int)XD_MIN(g->rule[i].name_len, (uint32_t)MAX_SHOWN), g->rule[i].name);
}

/* The one rule that a regular expression is. */
static void read_regex(reader *r)
{
    gbnf *g = r->g;
    uint32_t part = gram_regex_parse(r->n);
    if (!is_well(r))
        return;
    g->of[0].part = part;
    g->rule[0].end = (uint32_t)r->n->n_parts;
}

static void read_rules(reader *r)
{
    if (!tok_vocab_reserve(&r->names, MAX_RULES) || !tok_vocab_put(&r->names, "root", 4, 0))
        r->st = xd_fail(r->g->err, XD_NOMEM, 0, "out of memory for a grammar");
    for (skip_blanks(r); is_well(r) && r->n->p < r->n->end; skip_blanks(r))
        rule(r);
    check_names(r);
    tok_vocab_clear(&r->names);
}

xd_status gbnf_read(gbnf *g, const char *text, size_t len, xd_err *err)
{
    reader r = {.g = g, .n = &g->n};
    const char *what = g->is_regex ? "regular expression" : "grammar";
    g->text = text;
    g->err = err;
    g->n.p = text;
    g->n.end = text + len;
    g->n.raw = true;
    if (len > MAX_BYTES)
        return gbnf_fault(g, NULL, "the %s has %zu bytes: at most %d are allowed", what, len, MAX_BYTES);
    if (memchr(text, 0, len))
        return gbnf_fault(g, memchr(text, 0, len), "a character NUL");
    new_rule(&r, "root", 4, text); /* the first, wherever it is defined */
    if (is_well(&r) && g->is_regex)
        read_regex(&r);
    else if (is_well(&r))
        read_rules(&r);
    free(r.seen);
    free(r.made);
    return r.st ? r.st : g->n.why ? gbnf_why(g, NULL, 0) : XD_OK;
}

void gbnf_free(gbnf *g)
{
    nfa_free(&g->n);
    free(g->rule);
    free(g->of);
}
