/* grammar_string.c - what a schema says of texts: patterns, formats and lengths, made one automaton over characters.
 *
 * A format is a pattern of ours, narrower than its RFC where that is easier to read: what comes is always of the format. Beside a pattern both
 * hold; where no text can, or where that is too much, the pattern alone does, since JSON Schema takes formats for annotations. */
#include <string.h>

#include "engine/text/grammar_build.h"
#include "engine/text/tok_priv.h"

uint32_t string_next_char(const char **p)
{
    const unsigned char *s = (const unsigned char *)*p;
    uint32_t c = *s, more = c < 0x80 ? 0 : c < 0xE0 ? 1 : c < 0xF0 ? 2 : 3;
    c = more ? c & (0x3Fu >> more) : c;
    for (uint32_t i = 1; i <= more; i++)
        c = c << 6 | (s[i] & 0x3F);
    *p += more + 1;
    return c;
}

bool string_pattern_has(const gram_dfa *d, const char *s, const char *end)
{
    uint32_t state = 0;
    while (s < end && state != GRAM_NONE) {
        uint32_t c = string_next_char(&s);
        state = gram_dfa_go(d, state, c, c);
    }
    return state != GRAM_NONE && d->end[state];
}

#define DAY_OF_ANY_MONTH                                                               \
    "((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-" \
    "(0[1-9]|1[0-9]|2[0-8]))" /* no 29 February: it depends on the year */
#define DATE      "(0[1-9]|[1-9][0-9])[0-9]{2}-" DAY_OF_ANY_MONTH
#define CLOCK     "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
#define BYTE_OF_4 "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define LABEL     "[A-Za-z0-9]+(-[A-Za-z0-9]+)*"
#define COUNT     "[0-9]{1,4}"
#define SPAN      "(" COUNT "H(" COUNT "M(" COUNT "S)?)?|" COUNT "M(" COUNT "S)?|" COUNT "S)"
#define HOST      "[A-Za-z0-9]{1,30}(-[A-Za-z0-9]{1,30})?" /* at most 63, and four of them at most 253 */
/* Few states, since lengths of thousands stand beside it; users and hosts in brackets are left out. */
#define URI_REST "([!$&-;=?-Z_a-z~]|%[0-9A-Fa-f]{2})*"
#define URI_HOST "[A-Za-z0-9]+([.-][A-Za-z0-9]+)*(:[0-9]+)?"
#define HEX_OF_6 "[0-9a-f]{1,4}"

static const struct {
    const char *format, *pattern;
} formats[] = {
    {"date", "^" DATE "$"},
    {"date-time", "^" DATE "T" CLOCK "$"},
    {"time", "^" CLOCK "$"},
    {"uuid", "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"},
    {"ipv4", "^" BYTE_OF_4 "(\\." BYTE_OF_4 "){3}$"},
    {"email", "^[A-Za-z0-9_+-]+(\\.[A-Za-z0-9_+-]+)*@" LABEL "(\\." LABEL ")*\\.[A-Za-z]{2,10}$"},
    {"duration",
     "^P((" COUNT "D|" COUNT "M(" COUNT "D)?|" COUNT "Y(" COUNT "M(" COUNT "D)?)?)(T" SPAN ")?|T" SPAN "|" COUNT "W)$"},
    {"hostname", "^" HOST "(\\." HOST "){0,2}(\\.[A-Za-z]{2,30})?$"},
    {"uri", "^[A-Za-z][A-Za-z0-9+.-]*:(//(" URI_HOST "([/?]" URI_REST ")?|/" URI_REST ")|/?[!$&-.0-;=@-Z_a-z~]" URI_REST
            ")(#" URI_REST ")?$"},
    {"ipv6", "^((" HEX_OF_6 ":){7}" HEX_OF_6 "|::|(" HEX_OF_6 ":){1,7}:|(" HEX_OF_6 ":){1,6}:" HEX_OF_6 "|(" HEX_OF_6
             ":){1,5}(:" HEX_OF_6 "){2}|(" HEX_OF_6 ":){1,4}(:" HEX_OF_6 "){3}|:(:" HEX_OF_6 "){1,7})$"},
};

/* What Zod 4 writes beside a format, with look-ahead: all that our pattern of that format takes, it takes. */
static const struct {
    const char *format, *pattern;
} wider[] = {
    {"email",
     "^(?!\\.)(?!.*\\.\\.)([A-Za-z0-9_'+\\-\\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\\-]*\\.)+[A-Za-z]{2,}$"},
    {"duration",
     "^P(?:(\\d+W)|(?!.*W)(?=\\d|T\\d)(\\d+Y)?(\\d+M)?(\\d+D)?(T(?=\\d)(\\d+H)?(\\d+M)?(\\d+([.,]\\d+)?S)?)?)$"},
};

static const char *pattern_of_format(const char *format)
{
    for (size_t i = 0; i < XD_ARRAY_LEN(formats); i++)
        if (!strcmp(formats[i].format, format))
            return formats[i].pattern;
    return NULL;
}

static bool is_wider(const json_t *pattern, const json_t *format)
{
    for (size_t i = 0; i < XD_ARRAY_LEN(wider); i++)
        if (build_is_text(pattern, wider[i].pattern) && build_is_text(format, wider[i].format))
            return true;
    return false;
}

/* d becomes what it takes of the pattern's texts; the first one all of them. */
static const char *narrow(build *b, gram_dfa *d, bool *any, const char *pattern, size_t len)
{
    gram_dfa more = {0};
    const char *why = gram_regex_compile(pattern, len, &b->work_left, *any ? &more : d);
    if (!why && *any)
        why = gram_dfa_both(d, &more, &b->work_left);
    gram_dfa_clear(&more);
    *any = *any || !why;
    return why;
}

xd_status string_pattern(build *b, const build_job *j, bool with_format, gram_dfa *ret, bool *ret_any)
{
    json_t *pattern = json_object_get(j->schema, "pattern"), *format = json_object_get(j->schema, "format"), *v;
    const char *known = with_format && json_is_string(format) ? pattern_of_format(json_string_value(format)) : NULL;
    const char *why = NULL, *key = pattern ? "pattern" : "format";
    gram_dfa d = {0};
    size_t i;
    *ret_any = false;
    if (pattern && !json_is_string(pattern) && !schema_is_made(b, pattern))
        return build_fault(b, j->place, "pattern", "must be a string");
    if (json_is_string(pattern) && !(known && is_wider(pattern, format)))
        why = narrow(b, &d, ret_any, json_string_value(pattern), json_string_length(pattern));
    json_array_foreach (pattern, i, v)
        why = why ? why : narrow(b, &d, ret_any, json_string_value(v), json_string_length(v));
    if (!why && known)
        why = narrow(b, &d, ret_any, known, strlen(known));
    if (!why) {
        *ret = d;
        return XD_OK;
    }
    gram_dfa_clear(&d);
    return !strcmp(why, GRAM_REGEX_NOMEM) ? build_nomem(b) : build_fault(b, j->place, key, "%s", why);
}

static xd_status make_node(build *b, const build_job *j, bool with_format, uint64_t most, gram_node *ret)
{
    grammar *g = b->g;
    gram_node n = {.kind = GRAM_STRING, .dfa = GRAM_NONE};
    gram_dfa d = {0};
    bool any;
    xd_status st = schema_read_counts(b, j, "minLength", "maxLength", &n);
    n.max = XD_MIN(n.max, most);
    if (!st)
        st = string_pattern(b, j, with_format, &d, &any);
    if (st)
        return st;
    if (any) {
        const char *why = gram_dfa_finish(&d, n.min, n.max, &b->work_left);
        if (!why && !tok_grow(&g->dfa, &g->dfa_cap, g->n_dfas + 1, sizeof *g->dfa))
            why = GRAM_REGEX_NOMEM;
        if (why) {
            gram_dfa_clear(&d);
            return !strcmp(why, GRAM_REGEX_NOMEM)
                       ? build_nomem(b)
                       : build_fault(b, j->place, json_object_get(j->schema, "pattern") ? "pattern" : "format", "%s",
                                     why);
        }
        g->dfa[g->n_dfas] = d;
        n = (gram_node){.kind = GRAM_STRING, .max = GRAM_INF, .dfa = (uint32_t)g->n_dfas++};
    }
    *ret = n;
    return XD_OK;
}

xd_status string_node(build *b, const build_job *j, uint32_t node)
{
    gram_node n;
    const json_t *pattern = json_object_get(j->schema, "pattern"), *format = json_object_get(j->schema, "format");
    xd_status st = make_node(b, j, true, GRAM_INF, &n);
    /* An address of at most 2083 characters may as well have at most 1000. */
    for (uint64_t most = 1000; st == XD_BAD_REQUEST && !pattern && format && most > 100; most /= 2) {
        xd_err first = *b->err;
        *b->err = (xd_err){0};
        st = make_node(b, j, true, most, &n);
        if (st == XD_BAD_REQUEST)
            *b->err = first;
    }
    if (st == XD_BAD_REQUEST && pattern && format) {
        *b->err = (xd_err){0};
        st = make_node(b, j, false, GRAM_INF, &n);
    }
    if (!st)
        b->g->node[node] = n;
    return st;
}
