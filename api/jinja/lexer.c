/* lexer.c - template text to tokens, with the whitespace rules of trim_blocks and lstrip_blocks.
 *
 * Follows jinja2's lexer state by state: data up to the next "{{", "{%" or "{#"; inside a tag names, numbers, strings and
 * operators, where a closing "}}" or "%}" counts only while no bracket is open. Newlines become "\n"; one at the very end is
 * dropped. */
#include <string.h>

#include "api/jinja/jinja_priv.h"

typedef struct lexer {
    jx *c;
    const char *at, *end;
    jx_token *tokens;
    size_t n, cap;
    bool line_starting; /* the last match ended a line */
} lexer;

static jx_token *add(lexer *l, jx_token_kind kind)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 64;
        l->tokens = jx_realloc(l->c, l->tokens, l->cap * sizeof *l->tokens, cap * sizeof *l->tokens);
        l->cap = cap;
    }
    l->tokens[l->n] = (jx_token){.kind = (uint8_t)kind, .line = l->c->line};
    return &l->tokens[l->n++];
}

/* Moves on to `to`, counting lines. */
static void advance(lexer *l, const char *to)
{
    for (const char *p = l->at; p < to; p++)
        l->c->line += *p == '\n';
    if (to > l->at)
        l->line_starting = to[-1] == '\n';
    l->at = to;
}

static bool starts(const lexer *l, const char *at, const char *text)
{
    size_t n = strlen(text);
    return (size_t)(l->end - at) >= n && !memcmp(at, text, n);
}

static const char *skip_space(const lexer *l, const char *at)
{
    while (at < l->end) {
        const char *next = at;
        if (!jx_is_space(jx_char(&next, l->end)))
            break;
        at = next;
    }
    return at;
}

static const char *rstrip(const char *start, const char *end)
{
    while (end > start) {
        const char *prev = end;
        if (!jx_is_space(jx_char_back(start, &prev)))
            break;
        end = prev;
    }
    return end;
}

/* The end of a tag at `at` whose bare form is `close`: "-" eats all white space after it, "+" none, and the bare form one newline
 * if `trim`. NULL: no end here. */
static const char *tag_end(const lexer *l, const char *at, const char *close, bool trim)
{
    if (at < l->end && *at == '-' && starts(l, at + 1, close))
        return skip_space(l, at + 3);
    if (trim && at < l->end && *at == '+' && starts(l, at + 1, close))
        return at + 3;
    if (!starts(l, at, close))
        return NULL;
    at += 2;
    return trim && at < l->end && *at == '\n' ? at + 1 : at;
}

/* Emits the text before a tag, stripped as the tag's sign says. Moves to the tag. */
static void add_data(lexer *l, const char *tag, char sign, bool variable)
{
    const char *text = l->at, *end = tag;
    if (sign == '-') {
        end = rstrip(text, tag);
    } else if (sign != '+' && !variable) {
        const char *line = tag;
        while (line > text && line[-1] != '\n')
            line--;
        if ((line > text || l->line_starting) && rstrip(line, tag) == line)
            end = line;
    }
    if (end > text)
        add(l, T_DATA)->s =
            jx_str_view(l->c, text, (size_t)(end - text), xd_utf8_count(text, (size_t)(end - text)), true);
    advance(l, tag);
}

static char sign_at(const lexer *l, const char *at)
{
    return at < l->end && (*at == '-' || *at == '+') ? *at : 0;
}

static int hex_digit(char ch)
{
    if (ch >= '0' && ch <= '9')
        return ch - '0';
    ch |= 0x20;
    return ch >= 'a' && ch <= 'f' ? ch - 'a' + 10 : -1;
}

static void unescape_hex(lexer *l, jx_sb *b, const char **at, const char *end, int digits)
{
    uint32_t ch = 0;
    for (int i = 0; i < digits; i++, (*at)++) {
        int d = *at < end ? hex_digit(**at) : -1;
        if (d < 0)
            jx_error(l->c, "truncated escape in a string");
        ch = ch << 4 | (uint32_t)d;
    }
    if (ch > 0x10FFFF || (ch >= 0xD800 && ch <= 0xDFFF))
        jx_error(l->c, "illegal Unicode character in a string");
    jx_sb_char(l->c, b, (int32_t)ch, true);
}

/* Python's "unicode-escape" after ascii/backslashreplace, which is what jinja2 does to a literal. */
static const jx_str *unescape(lexer *l, const char *at, const char *end)
{
    if (!memchr(at, '\\', (size_t)(end - at)))
        return jx_str_view(l->c, at, (size_t)(end - at), xd_utf8_count(at, (size_t)(end - at)), true);
    jx_sb b = {0};
    while (at < end) {
        const char *slash = memchr(at, '\\', (size_t)(end - at));
        if (!slash) {
            jx_sb_add(l->c, &b, at, (size_t)(end - at), true);
            break;
        }
        jx_sb_add(l->c, &b, at, (size_t)(slash - at), true);
        at = slash + 1;
        static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
        const char *simple = *at ? strchr(from, *at) : NULL;
        if (simple) {
            jx_sb_add(l->c, &b, &to[simple - from], 1, true);
            at++;
        } else if (*at == '\n') {
            at++;
        } else if (*at >= '0' && *at <= '7') {
            int32_t ch = 0;
            for (int i = 0; i < 3 && at < end && *at >= '0' && *at <= '7'; i++)
                ch = ch * 8 + (*at++ - '0');
            jx_sb_char(l->c, &b, ch, true);
        } else if (*at == 'x' || *at == 'u' || *at == 'U') {
            int digits = *at == 'x' ? 2 : *at == 'u' ? 4 : 8;
            at++;
            unescape_hex(l, &b, &at, end, digits);
        } else if (*at == 'N') {
            jx_error(l->c, "character names (\\N{...}) are not supported in strings");
        } else if ((unsigned char)*at >= 0x80) {
            /* backslashreplace turned the character into \xe9, \u20ac or \U0001f600, so the backslash before it escapes that
             * backslash and the digits stay */
            int32_t ch = jx_char(&at, end);
            char digits[16];
            int n = snprintf(digits, sizeof digits,
                             ch < 0x100     ? "\\x%02x"
                             : ch < 0x10000 ? "\\u%04x"
                                            : "\\U%08x",
                             (unsigned)ch);
            jx_sb_add(l->c, &b, digits, (size_t)n, true);
        } else {
            jx_sb_lit(l->c, &b, "\\");
        }
    }
    return jx_sb_done(l->c, &b);
}

/* Digits with single underscores between them. NULL: none at `at`. */
static const char *digits(const lexer *l, const char *at)
{
    const char *p = at;
    while (p < l->end &&
           ((*p >= '0' && *p <= '9') || (*p == '_' && p > at && p + 1 < l->end && p[1] >= '0' && p[1] <= '9')))
        p++;
    return p > at ? p : NULL;
}

static const char *float_end(const lexer *l)
{
    const char *whole = digits(l, l->at), *p = whole;
    if (!whole || (l->n && l->tokens[l->n - 1].kind == T_OP && l->tokens[l->n - 1].op[0] == '.' && l->at[-1] == '.'))
        return NULL;
    bool real = false;
    const char *d;
    if (p + 1 < l->end && *p == '.' && (d = digits(l, p + 1))) {
        p = d;
        real = true;
    }
    if (p + 1 < l->end && (*p == 'e' || *p == 'E')) {
        const char *e = p + 1;
        if (e < l->end && (*e == '+' || *e == '-'))
            e++;
        if (e < l->end && (d = digits(l, e))) {
            p = d;
            real = true;
        }
    }
    return real ? p : NULL;
}

static size_t copy_number(const lexer *l, const char *end, char *out, size_t cap)
{
    size_t n = 0;
    for (const char *p = l->at; p < end; p++)
        if (*p != '_') {
            if (n + 1 >= cap)
                jx_error(l->c, "the number is too long");
            out[n++] = *p;
        }
    out[n] = 0;
    return n;
}

static bool lex_number(lexer *l)
{
    char text[400];
    const char *end = float_end(l);
    if (end) {
        copy_number(l, end, text, sizeof text);
        add(l, T_FLOAT)->f = strtod(text, NULL);
        advance(l, end);
        return true;
    }
    if (*l->at < '0' || *l->at > '9')
        return false;
    int base = 10;
    const char *p = l->at;
    if (*p == '0' && p + 1 < l->end) {
        int kind = p[1] | 0x20;
        base = kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 10;
    }
    if (base != 10) {
        p += 2;
        const char *start = p;
        for (;;) {
            const char *d = p < l->end && *p == '_' ? p + 1 : p;
            int v = d < l->end ? hex_digit(*d) : -1;
            if (v < 0 || v >= base)
                break;
            p = d + 1;
        }
        if (p == start) {
            base = 10;
            p = l->at + 1; /* a zero, then a name */
        }
    } else if (*p == '0') {
        for (p++; p < l->end && (*p == '0' || (*p == '_' && p + 1 < l->end && p[1] == '0'));)
            p++;
    } else {
        p = digits(l, p);
    }
    size_t n = copy_number(l, p, text, sizeof text);
    jx_int value = 0;
    for (size_t i = base == 10 ? 0 : 2; i < n; i++)
        if (__builtin_mul_overflow(value, base, &value) || __builtin_add_overflow(value, hex_digit(text[i]), &value))
            jx_error(l->c, "the integer %s is too large", text);
    add(l, T_INT)->i = value;
    advance(l, p);
    return true;
}

static bool lex_name(lexer *l)
{
    const char *p = l->at;
    while (p < l->end) {
        const char *next = p;
        if (!jx_is_word(jx_char(&next, l->end)))
            break;
        p = next;
    }
    if (p == l->at)
        return false;
    size_t n = (size_t)(p - l->at);
    const jx_str *name = jx_str_view(l->c, l->at, n, xd_utf8_count(l->at, n), true);
    bool identifier = true;
    if (name->chars != n) /* in ASCII every \w+ that is no number is one */
        jx_str_class(name, "isidentifier", &identifier);
    if (!identifier)
        jx_error(l->c, "Invalid character in identifier");
    add(l, T_NAME)->s = name;
    advance(l, p);
    return true;
}

static bool lex_string(lexer *l)
{
    char quote = *l->at;
    if (quote != '"' && quote != '\'')
        return false;
    const char *p = l->at + 1;
    while (p < l->end && *p != quote)
        p += *p == '\\' ? 2 : 1;
    if (p >= l->end)
        return false;
    const jx_str *s = unescape(l, l->at + 1, p);
    add(l, T_STRING)->s = s;
    advance(l, p + 1);
    return true;
}

/* Tokens of one tag up to and with its end. */
static void lex_tag(lexer *l, bool variable)
{
    const char *close = variable ? "}}" : "%}";
    char open[JX_MAX_NESTING];
    size_t n_open = 0;
    for (;;) {
        const char *end = n_open ? NULL : tag_end(l, l->at, close, !variable);
        if (end) {
            add(l, variable ? T_VAR_END : T_BLOCK_END);
            advance(l, end);
            return;
        }
        if (l->at == l->end)
            return; /* the parser reports it */
        const char *space = skip_space(l, l->at);
        if (space > l->at) {
            advance(l, space);
            continue;
        }
        if (lex_number(l) || lex_name(l) || lex_string(l))
            continue;
        static const char *const pairs[] = {"//", "**", "==", "!=", ">=", "<="};
        size_t len = 0;
        for (size_t i = 0; i < XD_ARRAY_LEN(pairs) && !len; i++)
            len = starts(l, l->at, pairs[i]) ? 2 : 0;
        char ch = *l->at;
        if (!len && ch && strchr("+-/*%~[](){}><=.:|,;", ch))
            len = 1;
        if (!len)
            jx_error(l->c, "unexpected character '%.*s'", (unsigned char)ch < 0x80 ? 1 : 4, l->at);
        if (ch == '(' || ch == '[' || ch == '{') {
            if (n_open == sizeof open)
                jx_too_deep(l->c);
            open[n_open++] = ch == '(' ? ')' : ch == '[' ? ']' : '}';
        } else if (ch == ')' || ch == ']' || ch == '}') {
            if (!n_open)
                jx_error(l->c, "unexpected '%c'", ch);
            if (open[--n_open] != ch)
                jx_error(l->c, "unexpected '%c', expected '%c'", ch, open[n_open]);
        }
        memcpy(add(l, T_OP)->op, l->at, len);
        advance(l, l->at + len);
    }
}

/* "{%- raw -%}" at `at`: where its content begins, else NULL. */
static const char *raw_tag(const lexer *l, const char *at, const char *word, bool trim)
{
    at += 2;
    if (sign_at(l, at))
        at++;
    at = skip_space(l, at);
    if (!starts(l, at, word))
        return NULL;
    return tag_end(l, skip_space(l, at + strlen(word)), "%}", trim);
}

static void lex_raw(lexer *l, const char *content)
{
    advance(l, content);
    for (const char *p = content; (p = memmem(p, (size_t)(l->end - p), "{%", 2)); p += 2) {
        const char *end = raw_tag(l, p, "endraw", true);
        if (end) {
            add_data(l, p, sign_at(l, p + 2), false);
            advance(l, end);
            return;
        }
    }
    if (content < l->end) /* jinja2 does not look beyond the end */
        jx_error(l->c, "Missing end of raw directive");
}

static void lex_comment(lexer *l, const char *content)
{
    advance(l, content);
    const char *p = memmem(content, (size_t)(l->end - content), "#}", 2);
    if (!p && content == l->end) /* jinja2 does not look beyond the end */
        return;
    if (!p)
        jx_error(l->c, "Missing end of comment tag");
    if (p > content && (p[-1] == '-' || p[-1] == '+'))
        p--;
    advance(l, tag_end(l, p, "#}", true));
}

static char *normalized(jx *c, const char *source, size_t len, size_t *ret_len)
{
    char *text = jx_alloc(c, len + 1);
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        if (source[i] == '\r' && i + 1 < len && source[i + 1] == '\n')
            continue;
        text[n++] = source[i] == '\r' ? '\n' : source[i];
    }
    if (n && text[n - 1] == '\n')
        n--;
    text[n] = 0;
    *ret_len = n;
    return text;
}

static void lex(lexer *l)
{
    while (l->at < l->end) {
        const char *tag = l->at;
        while ((tag = memchr(tag, '{', (size_t)(l->end - tag))) &&
               !(tag + 1 < l->end && strchr("{%#", tag[1]) && tag[1]))
            tag++;
        if (!tag) {
            add_data(l, l->end, '+', false);
            return;
        }
        char sign = sign_at(l, tag + 2);
        const char *raw = tag[1] == '%' ? raw_tag(l, tag, "raw", false) : NULL;
        add_data(l, tag, sign, tag[1] == '{');
        const char *content = tag + 2 + (sign != 0);
        if (raw) {
            lex_raw(l, raw);
        } else if (tag[1] == '#') {
            lex_comment(l, content);
        } else {
            add(l, tag[1] == '{' ? T_VAR_BEGIN : T_BLOCK_BEGIN);
            advance(l, content);
            lex_tag(l, tag[1] == '{');
        }
    }
}

/* jinja2 reads tokens as its parser asks for them, so what the parser finds wrong before a bad character is what is reported. Here a
 * failure becomes the last token, T_ERROR: the parser fails with it when it comes to it (c->err is filled already). */
jx_token *jx_lex(jx *c, const char *source, size_t len)
{
    c->line = 1;
    size_t n;
    const char *text = normalized(c, source, len, &n);
    lexer *l = JX_NEW(c, lexer);
    *l = (lexer){.c = c, .at = text, .end = text + n, .line_starting = true};
    jmp_buf outer;
    memcpy(&outer, &c->jump, sizeof outer);
    if (setjmp(c->jump)) {
        memcpy(&c->jump, &outer, sizeof outer);
        if (c->status != XD_BAD_MODEL)
            longjmp(c->jump, 1);
        add(l, T_ERROR);
        return l->tokens;
    }
    lex(l);
    add(l, T_EOF);
    memcpy(&c->jump, &outer, sizeof outer);
    return l->tokens;
}

const char *jx_token_text(jx *c, const jx_token *t)
{
    static const char *const kinds[] = {
        [T_EOF] = "end of template",
        [T_DATA] = "template data / text",
        [T_VAR_BEGIN] = "begin of print statement",
        [T_VAR_END] = "end of print statement",
        [T_BLOCK_BEGIN] = "begin of statement block",
        [T_BLOCK_END] = "end of statement block",
        [T_STRING] = "string",
        [T_INT] = "integer",
        [T_FLOAT] = "float",
    };
    if (t->kind == T_OP)
        return t->op;
    if (t->kind != T_NAME)
        return kinds[t->kind];
    size_t n = XD_MIN(t->s->len, (size_t)60);
    char *text = jx_alloc(c, n + 1);
    memcpy(text, t->s->data, n);
    text[n] = 0;
    return text;
}
