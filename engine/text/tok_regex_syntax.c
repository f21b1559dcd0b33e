/* tok_regex_syntax.c - Oniguruma's syntax, in which tokenizer files are written, as pcre2's. The two engines agree on most of it; what
 * they do not agree on is translated here, and what can not be translated is refused, never guessed:
 *   \s \w \h \v, POSIX brackets     spelled out (pcre2's \s takes U+180E, its \w lacks marks, its \h is blank space)
 *   \p{Han}                         the Script property (pcre2 would take Script_Extensions), long names made short
 *   [a[bc]] [A&&[^B]]               nested classes are flattened, intersections become lookaheads
 *   X{1,3}+ X{2}?                   not possessive and not lazy in Oniguruma: a repeated group
 *   (?m:...)                        is pcre2's (?s:...); ^ and $ always stand at lines
 *   \p{L} ...                       members that Unicode 15 and 16 added are appended (pcre2 before 10.43 has Unicode 14)
 * There is no recursion on the C stack. Callouts stand before and after everything that is repeated or grouped, so that each step of
 * backtracking passes one. */
#include <ctype.h>
#include <string.h>

#include "engine/text/tok_regex_priv.h"
#include "engine/text/tok_unicode_new.h"

enum { MAX_GROUPS = 64 };

#define SPACE_MEMBERS \
    "\\x09-\\x0d\\x20\\x85\\xa0\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define NOT_SPACE_MEMBERS                                                                                        \
    "\\x00-\\x08\\x0e-\\x1f\\x21-\\x84\\x86-\\x9f\\xa1-\\x{167f}\\x{1681}-\\x{1fff}\\x{200b}-\\x{2027}\\x{202a}" \
    "-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{d7ff}\\x{e000}-\\x{10ffff}"
#define ALPHA_MEMBERS "\\p{Alphabetic}" TOK_NEW_L TOK_NEW_Nl TOK_NEW_Alpha
#define WORD_PROPERTY "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}" TOK_NEW_L TOK_NEW_M TOK_NEW_Nd TOK_NEW_Nl
/* \w outside a class, unlike the property, also takes Latin-1's superscripts and fractions. */
#define WORD_MEMBERS  WORD_PROPERTY "\\xb2\\xb3\\xb9\\xbc-\\xbe"
#define LOWER_MEMBERS "\\p{Lowercase}" TOK_NEW_Ll "\\x{10fc}\\x{a7f2}-\\x{a7f4}\\x{ab69}\\x{1e030}-\\x{1e06d}"
#define HEX_MEMBERS   "0-9A-Fa-f"

/* Property names. `members` is what a class holds for it; NULL: \p{short_name} as it is. */
typedef struct property {
    const char *name, *members, *complement;
} property;
#define CAT(name, n)                          \
    {                                         \
        name, "\\p{" #n "}" TOK_NEW_##n, NULL \
    }
#define OLD(name, n)                       \
    {                                      \
        name, "\\p{" #n "}", "\\P{" #n "}" \
    }
static const property properties[] = {
    CAT("L", L),
    CAT("Letter", L),
    CAT("Lu", Lu),
    CAT("Uppercase_Letter", Lu),
    CAT("Ll", Ll),
    CAT("Lowercase_Letter", Ll),
    OLD("Lt", Lt),
    OLD("Titlecase_Letter", Lt),
    CAT("Lm", Lm),
    CAT("Modifier_Letter", Lm),
    CAT("Lo", Lo),
    CAT("Other_Letter", Lo),
    CAT("M", M),
    CAT("Mark", M),
    CAT("Mn", Mn),
    CAT("Nonspacing_Mark", Mn),
    CAT("Mc", Mc),
    CAT("Spacing_Mark", Mc),
    OLD("Me", Me),
    OLD("Enclosing_Mark", Me),
    CAT("N", N),
    CAT("Number", N),
    CAT("Nd", Nd),
    CAT("Decimal_Number", Nd),
    CAT("Digit", Nd),
    CAT("Nl", Nl),
    CAT("Letter_Number", Nl),
    CAT("No", No),
    CAT("Other_Number", No),
    CAT("P", P),
    CAT("Punctuation", P),
    OLD("Pc", Pc),
    OLD("Connector_Punctuation", Pc),
    CAT("Pd", Pd),
    CAT("Dash_Punctuation", Pd),
    CAT("Ps", Ps),
    CAT("Open_Punctuation", Ps),
    CAT("Pe", Pe),
    CAT("Close_Punctuation", Pe),
    OLD("Pi", Pi),
    OLD("Initial_Punctuation", Pi),
    OLD("Pf", Pf),
    OLD("Final_Punctuation", Pf),
    CAT("Po", Po),
    CAT("Other_Punctuation", Po),
    CAT("S", S),
    CAT("Symbol", S),
    CAT("Sm", Sm),
    CAT("Math_Symbol", Sm),
    CAT("Sc", Sc),
    CAT("Currency_Symbol", Sc),
    CAT("Sk", Sk),
    CAT("Modifier_Symbol", Sk),
    CAT("So", So),
    CAT("Other_Symbol", So),
    OLD("Z", Z),
    OLD("Separator", Z),
    OLD("Zs", Zs),
    OLD("Space_Separator", Zs),
    OLD("Zl", Zl),
    OLD("Line_Separator", Zl),
    OLD("Zp", Zp),
    OLD("Paragraph_Separator", Zp),
    OLD("Cc", Cc),
    OLD("Control", Cc),
    OLD("Cntrl", Cc),
    CAT("Cf", Cf),
    CAT("Format", Cf),
    OLD("Co", Co),
    OLD("Private_Use", Co),
    OLD("Any", Any),
    {"Space", SPACE_MEMBERS, NOT_SPACE_MEMBERS},
    {"White_Space", SPACE_MEMBERS, NOT_SPACE_MEMBERS},
    {"Alpha", ALPHA_MEMBERS, NULL},
    {"Alphabetic", ALPHA_MEMBERS, NULL},
    {"Alnum", ALPHA_MEMBERS "\\p{Nd}" TOK_NEW_Nd, NULL},
    {"Word", WORD_PROPERTY, NULL},
    {"Upper", "\\p{Uppercase}" TOK_NEW_Lu, NULL},
    {"Uppercase", "\\p{Uppercase}" TOK_NEW_Lu, NULL},
    {"Lower", LOWER_MEMBERS, NULL},
    {"Lowercase", LOWER_MEMBERS, NULL},
    {"XDigit", HEX_MEMBERS, NULL},
    {"Punct", "\\p{P}" TOK_NEW_P, NULL},
};
/* Scripts that tokenizer patterns name, and what Unicode 15 and 16 added to them. */
static const struct script {
    const char *name, *newer;
} scripts[] = {
    {"Han", "\\x{2b739}\\x{2ebf0}-\\x{2ee5d}\\x{31350}-\\x{323af}"},
    {"Hiragana", "\\x{1b132}"},
    {"Katakana", "\\x{1b155}"},
    {"Latin", "\\x{a7cb}-\\x{a7cd}\\x{a7da}-\\x{a7dc}\\x{1df25}-\\x{1df2a}"},
    {"Cyrillic", "\\x{1c89}-\\x{1c8a}\\x{1e030}-\\x{1e06d}\\x{1e08f}"},
    {"Arabic", "\\x{897}\\x{10ec2}-\\x{10ec4}\\x{10efc}-\\x{10eff}"},
    {"Hangul", ""},
    {"Greek", ""},
    {"Hebrew", ""},
    {"Thai", ""},
};

/* The translation of one pattern under way. */
typedef struct trans {
    const char *s;
    size_t n, i;
    xd_buf out;
    size_t atom; /* where the last atom starts in out; SIZE_MAX: nothing to repeat */
    size_t group[MAX_GROUPS];
    unsigned depth;
    bool branch_start; /* nothing yet in this alternative's group: inline flags may stand here */
    xd_err *err;
} trans;

static xd_status refuse(trans *t, const char *what)
{
    return xd_fail(t->err, XD_UNSUPPORTED, 0, "regular expression '%.200s': %s at byte %zu is not supported", t->s,
                   what, t->i);
}

static bool names_equal(const char *a, const char *b, size_t b_len)
{
    size_t i = 0, j = 0;
    for (;;) { /* case, spaces, '-' and '_' do not count */
        while (a[i] == '_' || a[i] == ' ' || a[i] == '-')
            i++;
        while (j < b_len && (b[j] == '_' || b[j] == ' ' || b[j] == '-'))
            j++;
        if (!a[i] || j == b_len)
            return !a[i] && j == b_len;
        if (tolower((unsigned char)a[i++]) != tolower((unsigned char)b[j++]))
            return false;
    }
}

/* Reads "\p{...}" / "\P{...}" at i (on the letter). *ret_script is set for a script, else *ret_prop. */
static xd_status read_property(trans *t, const property **ret_prop, const struct script **ret_script, bool *ret_negated)
{
    bool negated = t->s[t->i] == 'P';
    t->i++;
    if (t->i >= t->n || t->s[t->i] != '{')
        return refuse(t, "a property without braces");
    size_t a = ++t->i;
    if (a < t->n && t->s[a] == '^') {
        negated = !negated;
        a++;
    }
    const char *close = memchr(t->s + t->i, '}', t->n - t->i);
    if (!close)
        return refuse(t, "an unclosed property");
    size_t len = (size_t)(close - t->s) - a;
    *ret_prop = NULL;
    *ret_script = NULL;
    *ret_negated = negated;
    for (size_t k = 0; k < XD_ARRAY_LEN(properties); k++)
        if (names_equal(properties[k].name, t->s + a, len))
            *ret_prop = &properties[k];
    for (size_t k = 0; !*ret_prop && k < XD_ARRAY_LEN(scripts); k++)
        if (names_equal(scripts[k].name, t->s + a, len))
            *ret_script = &scripts[k];
    if (!*ret_prop && !*ret_script)
        return refuse(t, "an unknown property");
    t->i = (size_t)(close - t->s) + 1;
    return XD_OK;
}

static size_t char_len(const trans *t)
{
    int n = xd_utf8_seq(t->s + t->i, t->n - t->i);
    return n > 0 ? (size_t)n : 1;
}

/* \xHH, \x{H...}, \uHHHH at i (on the letter): appends pcre2's spelling. */
static xd_status copy_hex(trans *t)
{
    bool u = t->s[t->i] == 'u', brace;
    size_t a = ++t->i, n = 0;
    brace = !u && a < t->n && t->s[a] == '{';
    a += brace;
    while (a + n < t->n && isxdigit((unsigned char)t->s[a + n]) && n < (u ? 4u : brace ? 6u : 2u))
        n++;
    if (!n || (u && n != 4) || (brace && (a + n >= t->n || t->s[a + n] != '}')))
        return refuse(t, "a broken character number");
    xd_buf_printf(&t->out, "\\x{%.*s}", (int)n, t->s + a);
    t->i = a + n + brace;
    return XD_OK;
}

static xd_status class_items(trans *t, unsigned depth, bool *ret_and);

/* One escape inside a class, at i (after the backslash). */
static xd_status class_escape(trans *t)
{
    if (t->i >= t->n)
        return refuse(t, "a backslash at the end");
    const char *members = NULL;
    switch (t->s[t->i]) {
    case 's': members = SPACE_MEMBERS; break;
    case 'S': members = NOT_SPACE_MEMBERS; break;
    case 'w': members = WORD_PROPERTY; break;
    case 'd': members = "\\p{Nd}" TOK_NEW_Nd; break;
    case 'h': members = HEX_MEMBERS; break;
    case 'p':
    case 'P': {
        const property *p;
        const struct script *script;
        bool negated;
        xd_status st = read_property(t, &p, &script, &negated);
        if (st)
            return st;
        if (script && negated && *script->newer)
            return refuse(t, "a negated script inside a class");
        else if (script)
            xd_buf_printf(&t->out, "\\%c{sc:%s}%s", negated ? 'P' : 'p', script->name, script->newer);
        else if (negated && !p->complement)
            return refuse(t, "a negated property inside a class");
        else
            xd_buf_puts(&t->out, negated ? p->complement : p->members);
        break;
    }
    case 'x':
    case 'u': return copy_hex(t);
    case 'v':
        xd_buf_puts(&t->out, "\\x0b");
        t->i++;
        return XD_OK;
    default:
        if (isalnum((unsigned char)t->s[t->i]) && !strchr("abefnrt01234567", t->s[t->i]))
            return refuse(t, "this escape inside a class");
        if (!isalnum((unsigned char)t->s[t->i]) && (unsigned char)t->s[t->i] >= 0x80) {
            size_t n = char_len(t);
            xd_buf_append(&t->out, t->s + t->i, n);
            t->i += n;
            return XD_OK;
        }
        xd_buf_putc(&t->out, '\\');
        xd_buf_putc(&t->out, t->s[t->i++]);
        return XD_OK;
    }
    if (members) {
        xd_buf_puts(&t->out, members);
        t->i++;
    }
    if (t->i + 1 < t->n && t->s[t->i] == '-' &&
        t->s[t->i + 1] != ']') { /* a set can not begin a range: the hyphen is itself */
        xd_buf_puts(&t->out, "\\-");
        t->i++;
    }
    return XD_OK;
}

/* "[:name:]" inside a class, at i (on its '['). */
static xd_status class_posix(trans *t)
{
    const char *a = t->s + t->i + 2, *close = memchr(a, ':', t->n - t->i - 2);
    if (!close || (size_t)(close - t->s) + 1 >= t->n || close[1] != ']')
        return refuse(t, "a broken POSIX bracket");
    if (close - a == 5 && !memcmp(a, "punct", 5)) { /* unlike the property, symbols too */
        xd_buf_puts(&t->out, "\\p{P}\\p{S}" TOK_NEW_P TOK_NEW_S);
        t->i = (size_t)(close - t->s) + 2;
        return XD_OK;
    }
    for (size_t k = 0; k < XD_ARRAY_LEN(properties); k++)
        if (names_equal(properties[k].name, a, (size_t)(close - a)) ||
            ((size_t)(close - a) == 5 && !memcmp(a, "digit", 5) && !strcmp(properties[k].name, "Nd"))) {
            xd_buf_puts(&t->out, properties[k].members);
            t->i = (size_t)(close - t->s) + 2;
            return XD_OK;
        }
    return refuse(t, "this POSIX bracket");
}

/* The members of a class up to its ']' or to "&&" (then *ret_and). Leaves i on what ended it. */
static xd_status class_items(trans *t, unsigned depth, bool *ret_and)
{
    *ret_and = false;
    bool first = true;
    xd_status st;
    for (; t->i < t->n; first = false) {
        char c = t->s[t->i];
        if (c == ']' && !first)
            return XD_OK;
        if (c == '&' && t->i + 1 < t->n && t->s[t->i + 1] == '&') {
            *ret_and = true;
            return XD_OK;
        }
        if (c == '[' && t->i + 1 < t->n && t->s[t->i + 1] == ':') {
            if ((st = class_posix(t)))
                return st;
        } else if (c == '[') {
            bool and_found;
            if (depth >= TOK_MAX_NESTING || (t->i + 1 < t->n && t->s[t->i + 1] == '^'))
                return refuse(t, "this nested class");
            t->i++;
            if ((st = class_items(t, depth + 1, &and_found)))
                return st;
            if (and_found || t->i >= t->n)
                return refuse(t, "this nested class");
            t->i++;
        } else if (c == '\\') {
            t->i++;
            if ((st = class_escape(t)))
                return st;
        } else if (c == ']') {
            xd_buf_puts(&t->out, "\\]");
            t->i++;
        } else {
            size_t n = char_len(t);
            bool before_set =
                c == '-' && t->i + 2 < t->n && t->s[t->i + 1] == '\\' && strchr("sSwdhpP", t->s[t->i + 2]);
            if (before_set || (c == '[') || (c == '^'))
                xd_buf_putc(&t->out, '\\');
            xd_buf_append(&t->out, t->s + t->i, n);
            t->i += n;
        }
    }
    return refuse(t, "an unclosed class");
}

/* A class at i (on its '['). "[A&&B]" is a character of A that a lookahead finds in B. */
static xd_status translate_class(trans *t)
{
    xd_status st;
    size_t start = t->out.len;
    t->i++;
    bool negated = t->i < t->n && t->s[t->i] == '^', more;
    t->i += negated;
    xd_buf_puts(&t->out, negated ? "[^" : "[");
    if ((st = class_items(t, 0, &more)))
        return st;
    xd_buf_putc(&t->out, ']');
    if (more) {
        if (negated)
            return refuse(t, "a negated intersection");
        char *first = strdup(t->out.data ? t->out.data + start : "");
        t->out.len = start;
        xd_buf_puts(&t->out, "(?:");
        while (more && !st) {
            t->i += 2;
            bool nested_not = t->i + 1 < t->n && t->s[t->i] == '[' && t->s[t->i + 1] == '^';
            xd_buf_puts(&t->out, nested_not ? "(?=[^" : "(?=[");
            if (nested_not) {
                t->i += 2;
                st = class_items(t, 1, &more);
                if (!st && (more || t->i + 1 >= t->n))
                    st = refuse(t, "this intersection");
                t->i++;
                more = !st && t->s[t->i] == '&';
                if (!st && !more && t->s[t->i] != ']')
                    st = refuse(t, "this intersection");
            } else {
                st = class_items(t, 1, &more);
            }
            xd_buf_puts(&t->out, "])");
        }
        xd_buf_puts(&t->out, first ? first : "");
        xd_buf_putc(&t->out, ')');
        t->out.failed |= !first;
        free(first);
        if (st)
            return st;
    }
    t->i++;
    return XD_OK;
}

/* An escape outside a class, at i (after the backslash). */
static xd_status translate_escape(trans *t)
{
    if (t->i >= t->n)
        return refuse(t, "a backslash at the end");
    static const char word[] = "[" WORD_MEMBERS "]";
    char c = t->s[t->i];
    switch (c) {
    case 's': xd_buf_puts(&t->out, "[" SPACE_MEMBERS "]"); break;
    case 'S': xd_buf_puts(&t->out, "[^" SPACE_MEMBERS "]"); break;
    case 'w': xd_buf_puts(&t->out, "[" WORD_MEMBERS "]"); break;
    case 'W': xd_buf_puts(&t->out, "[^" WORD_MEMBERS "]"); break;
    case 'd': xd_buf_puts(&t->out, "[\\p{Nd}" TOK_NEW_Nd "]"); break;
    case 'D': xd_buf_puts(&t->out, "[^\\p{Nd}" TOK_NEW_Nd "]"); break;
    case 'h': xd_buf_puts(&t->out, "[" HEX_MEMBERS "]"); break;
    case 'H': xd_buf_puts(&t->out, "[^" HEX_MEMBERS "]"); break;
    case 'v': xd_buf_puts(&t->out, "\\x0b"); break;
    case 'O': xd_buf_puts(&t->out, "(?s:.)"); break;
    case 'b': /* word | other, or other | word */
        xd_buf_printf(&t->out, "(?:(?<=%s)(?!%s)|(?<!%s)(?=%s))", word, word, word, word);
        break;
    case 'B': xd_buf_printf(&t->out, "(?:(?<=%s)(?=%s)|(?<!%s)(?!%s))", word, word, word, word); break;
    case 'p':
    case 'P': {
        const property *p;
        const struct script *script;
        bool negated;
        xd_status st = read_property(t, &p, &script, &negated);
        if (st)
            return st;
        if (script)
            xd_buf_printf(&t->out, "[%s\\p{sc:%s}%s]", negated ? "^" : "", script->name, script->newer);
        else
            xd_buf_printf(&t->out, "[%s%s]", negated ? "^" : "", p->members);
        return XD_OK;
    }
    case 'x':
    case 'u': return copy_hex(t);
    default:
        if ((unsigned char)c >= 0x80) {
            size_t n = char_len(t);
            xd_buf_append(&t->out, t->s + t->i, n);
            t->i += n;
            return XD_OK;
        }
        if (isalnum((unsigned char)c) && !strchr("aefnrtAzZGKNR123456789", c))
            return refuse(t, "this escape");
        if (isdigit((unsigned char)c))
            xd_buf_puts(&t->out, TOK_CALL_BACK);
        xd_buf_putc(&t->out, '\\');
        xd_buf_putc(&t->out, c);
    }
    t->i++;
    return XD_OK;
}

/* "(" at i: copies the group's opening. */
static xd_status translate_open(trans *t)
{
    if (t->depth == MAX_GROUPS)
        return refuse(t, "nesting so deep");
    bool at_start = t->branch_start;
    xd_buf_puts(&t->out, TOK_CALL_STEP);
    size_t start = t->out.len;
    t->i++;
    xd_buf_putc(&t->out, '(');
    if (t->i < t->n && t->s[t->i] == '?') {
        size_t a = t->i + 1;
        static const char *const plain[] = {"?:", "?=", "?!", "?>", "?<=", "?<!"};
        size_t k = 0;
        while (k < XD_ARRAY_LEN(plain) && strncmp(t->s + t->i, plain[k], strlen(plain[k])))
            k++;
        if (k < XD_ARRAY_LEN(plain)) {
            xd_buf_puts(&t->out, plain[k]);
            t->i += strlen(plain[k]);
        } else if (a < t->n && t->s[a] == '<') {
            const char *close = memchr(t->s + a, '>', t->n - a);
            if (!close)
                return refuse(t, "an unclosed name");
            xd_buf_append(&t->out, t->s + t->i, (size_t)(close + 1 - (t->s + t->i)));
            t->i = (size_t)(close + 1 - t->s);
        } else {
            xd_buf_putc(&t->out, '?');
            for (; a < t->n && strchr("im-", t->s[a]) && t->s[a]; a++)
                xd_buf_putc(&t->out, t->s[a] == 'm' ? 's' : t->s[a]);
            if (a >= t->n || (t->s[a] != ':' && t->s[a] != ')'))
                return refuse(t, "this kind of group");
            if (t->s[a] == ')' && !at_start) /* (?i) within a branch also ends the branch's scope in Oniguruma */
                return refuse(t, "a flag in the middle of a group");
            xd_buf_putc(&t->out, t->s[a]);
            t->i = a + 1;
            if (t->s[a] == ')') {
                t->atom = SIZE_MAX;
                return XD_OK;
            }
        }
    }
    t->group[t->depth++] = start;
    t->atom = SIZE_MAX;
    t->branch_start = true;
    return XD_OK;
}

/* Puts text in at position `at` of out. */
static void insert(trans *t, size_t at, const char *text)
{
    size_t n = strlen(text);
    if (!xd_buf_append(&t->out, text, n))
        return;
    memmove(t->out.data + at + n, t->out.data + at, t->out.len - n - at);
    memcpy(t->out.data + at, text, n);
}

/* Callouts around the repeated atom that out ends with. One character's + has none in front: where it fails, it fails at once. */
static void count_repeat(trans *t, bool interval)
{
    if (t->atom == SIZE_MAX || t->out.failed)
        return; /* pcre2 will say so */
    if (interval || t->out.data[t->atom] == '(')
        insert(t, t->atom, TOK_CALL_STEP);
    xd_buf_puts(&t->out, TOK_CALL_STEP);
}

/* "{" at i: an interval after an atom, else itself. */
static void translate_brace(trans *t)
{
    size_t a = t->i + 1, lo = 0, hi = 0;
    while (a + lo < t->n && isdigit((unsigned char)t->s[a + lo]))
        lo++;
    size_t b = a + lo;
    bool comma = b < t->n && t->s[b] == ',';
    b += comma;
    while (b + hi < t->n && isdigit((unsigned char)t->s[b + hi]))
        hi++;
    bool closed = b + hi < t->n && t->s[b + hi] == '}' && (lo || hi);
    if (!closed || t->atom == SIZE_MAX) {
        t->atom = t->out.len;
        xd_buf_puts(&t->out, "\\{");
        t->i++;
        return;
    }
    xd_buf_printf(&t->out, "{%.*s%s%.*s}", lo ? (int)lo : 1, lo ? t->s + a : "0", comma ? "," : "", (int)hi, t->s + b);
    t->i = b + hi + 1;
    if (t->i < t->n && (t->s[t->i] == '+' || (t->s[t->i] == '?' && !comma))) {
        insert(t, t->atom, "(?:");
        xd_buf_putc(&t->out, ')');
        xd_buf_putc(&t->out, t->s[t->i++]);
    } else if (t->i < t->n && t->s[t->i] == '?') {
        xd_buf_putc(&t->out, t->s[t->i++]);
    }
    count_repeat(t, true);
}

static xd_status translate(trans *t)
{
    xd_status st = XD_OK;
    t->atom = SIZE_MAX;
    t->branch_start = true;
    xd_buf_puts(&t->out, TOK_CALL_START);
    while (!st && t->i < t->n && !t->out.failed) {
        size_t start = t->out.len;
        bool was_start = t->branch_start;
        t->branch_start = false;
        char c = t->s[t->i];
        switch (c) {
        case '\\':
            t->i++;
            st = translate_escape(t);
            t->atom = start;
            break;
        case '[':
            st = translate_class(t);
            t->atom = start;
            break;
        case '(':
            t->branch_start = was_start;
            st = translate_open(t);
            break;
        case ')':
            if (!t->depth)
                return refuse(t, "an unopened group's end");
            t->atom = t->group[--t->depth];
            xd_buf_putc(&t->out, ')');
            t->i++;
            break;
        case '*':
        case '+':
        case '?':
            xd_buf_putc(&t->out, c);
            t->i++;
            if (t->i < t->n && (t->s[t->i] == '?' || t->s[t->i] == '+'))
                xd_buf_putc(&t->out, t->s[t->i++]);
            count_repeat(t, false);
            break;
        case '{': translate_brace(t); break;
        case '|':
            xd_buf_putc(&t->out, c);
            t->i++;
            t->atom = SIZE_MAX;
            break;
        default: {
            size_t n = char_len(t);
            xd_buf_append(&t->out, t->s + t->i, n);
            t->i += n;
            t->atom = start;
        }
        }
    }
    if (!st && t->depth)
        return refuse(t, "an unclosed group");
    return st;
}

xd_status tok_regex_translate(const char *pattern, size_t len, xd_buf *out, xd_err *err)
{
    trans t = {.s = pattern, .n = len, .err = err};
    xd_status st = translate(&t);
    if (!st && t.out.failed)
        st = xd_fail(err, XD_NOMEM, 0, "regular expression");
    *out = t.out;
    return st;
}
