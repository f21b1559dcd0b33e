/* parser.c - tokens to a syntax tree: jinja2's grammar and operator precedences, rule by rule.
 *
 * Names are not resolved here (scope.c). Tags that need other templates (include, import, extends) are refused: a chat template is
 * one file. */
#include <string.h>

#include "api/jinja/jinja_priv.h"

enum { MAX_NAMES = 1000 }; /* of a signature or a call; searched linearly */

typedef struct parser {
    jx *c;
    const jx_token *t;   /* current token */
    unsigned loops;      /* enclosing for loops within this function-like body: break and continue are allowed */
    unsigned all_loops;  /* enclosing for loops at all: `loop` may not be assigned */
    unsigned special[3]; /* how often caller, kwargs and varargs were named so far */
} parser;

static jx_node *parse_expr(parser *p);
static jx_node *parse_unary(parser *p, bool with_filter);
static jx_node *parse_primary(parser *p, bool with_namespace);
static jx_body parse_body(parser *p, const char *const *ends);

const char *const jx_special_names[3] = {"caller", "kwargs", "varargs"};

/* ---- tokens ---- */

static void take(parser *p)
{
    if (p->t->kind != T_EOF)
        p->t++;
    p->c->line = p->t->line;
}

static bool is_op(const parser *p, const char *op)
{
    return p->t->kind == T_OP && !strcmp(p->t->op, op);
}

static bool is_name(const jx_token *t, const char *name)
{
    return t->kind == T_NAME && jx_str_is(t->s, name);
}

static bool skip_op(parser *p, const char *op)
{
    if (!is_op(p, op))
        return false;
    take(p);
    return true;
}

static bool skip_name(parser *p, const char *name)
{
    if (!is_name(p->t, name))
        return false;
    take(p);
    return true;
}

_Noreturn static void unexpected(parser *p, const char *wanted)
{
    if (p->t->kind == T_EOF)
        jx_error(p->c, "unexpected end of template, expected '%s'.", wanted);
    jx_error(p->c, "expected token '%s', got '%s'", wanted, jx_token_text(p->c, p->t));
}

static void expect_op(parser *p, const char *op)
{
    if (!skip_op(p, op))
        unexpected(p, op);
}

static const jx_str *expect_name(parser *p)
{
    if (p->t->kind != T_NAME)
        unexpected(p, "name");
    const jx_str *s = p->t->s;
    take(p);
    return s;
}

static void expect_word(parser *p, const char *word)
{
    if (!skip_name(p, word))
        unexpected(p, word);
}

static void expect_kind(parser *p, jx_token_kind kind)
{
    if (p->t->kind != kind)
        unexpected(p, jx_token_text(p->c, &(jx_token){.kind = (uint8_t)kind}));
    take(p);
}

/* ---- nodes ---- */

static jx_node *node(parser *p, jx_node_kind kind)
{
    jx_node *n = JX_NEW(p->c, jx_node);
    n->kind = (uint8_t)kind;
    n->line = p->c->line;
    return n;
}

static void raise_height(parser *p, jx_node *n, const jx_node *child)
{
    if (!child)
        return;
    if (child->height >= JX_MAX_EXPR_DEPTH)
        jx_error(p->c, "the expression is nested too deeply");
    n->height = (uint16_t)XD_MAX(n->height, child->height + 1);
}

static jx_node *expr_node(parser *p, jx_node_kind kind, jx_node *a, jx_node *b, jx_node *c)
{
    jx_node *n = node(p, kind);
    n->a = a;
    n->b = b;
    n->c = c;
    raise_height(p, n, a);
    raise_height(p, n, b);
    raise_height(p, n, c);
    return n;
}

/* A list of nodes while it grows. */
typedef struct node_list {
    jx_node **v;
    uint32_t n, cap;
} node_list;

static void push(parser *p, node_list *l, jx_node *n)
{
    if (l->n == l->cap) {
        uint32_t cap = l->cap ? 2 * l->cap : 4;
        l->v = jx_realloc(p->c, l->v, l->cap * sizeof *l->v, cap * sizeof *l->v);
        l->cap = cap;
    }
    l->v[l->n++] = n;
}

static jx_body done(const node_list *l)
{
    return (jx_body){l->v, l->n};
}

static jx_node *list_node(parser *p, jx_node_kind kind, const node_list *l)
{
    jx_node *n = node(p, kind);
    n->items = done(l);
    for (uint32_t i = 0; i < l->n; i++)
        raise_height(p, n, l->v[i]);
    return n;
}

static jx_node *constant(parser *p, jx_value v)
{
    jx_node *n = node(p, N_CONST);
    n->value = v;
    return n;
}

/* ---- expressions ---- */

static jx_node *parse_or(parser *p);

static jx_node *parse_cond(parser *p)
{
    JX_ENTER(p->c);
    jx_node *then = parse_or(p);
    while (skip_name(p, "if")) {
        jx_node *test = parse_or(p);
        jx_node *other = skip_name(p, "else") ? parse_cond(p) : NULL;
        then = expr_node(p, N_COND, test, then, other);
    }
    JX_LEAVE(p->c);
    return then;
}

static jx_node *parse_expr(parser *p)
{
    return parse_cond(p);
}

static jx_node *parse_subscript_part(parser *p)
{
    jx_node *start = NULL, *stop = NULL, *step = NULL;
    if (!is_op(p, ":")) {
        start = parse_expr(p);
        if (!is_op(p, ":"))
            return start;
    }
    take(p);
    if (!is_op(p, ":") && !is_op(p, "]") && !is_op(p, ","))
        stop = parse_expr(p);
    if (skip_op(p, ":") && !is_op(p, "]") && !is_op(p, ","))
        step = parse_expr(p);
    return expr_node(p, N_SLICE, start, stop, step);
}

static jx_node *parse_subscript(parser *p, jx_node *of)
{
    if (skip_op(p, ".")) {
        if (p->t->kind == T_NAME) {
            jx_node *n = expr_node(p, N_GETATTR, of, NULL, NULL);
            n->name = p->t->s;
            take(p);
            return n;
        }
        if (p->t->kind != T_INT)
            jx_error(p->c, "expected name or number");
        jx_node *key = constant(p, JX_INTV(p->t->i));
        take(p);
        return expr_node(p, N_GETITEM, of, key, NULL);
    }
    expect_op(p, "[");
    node_list l = {0};
    while (!is_op(p, "]")) {
        if (l.n)
            expect_op(p, ",");
        push(p, &l, parse_subscript_part(p));
    }
    expect_op(p, "]");
    if (l.n > 1)
        for (uint32_t i = 0; i < l.n; i++)
            if (l.v[i]->kind == N_SLICE)
                jx_error(p->c, "slices inside a tuple index are not supported");
    return expr_node(p, N_GETITEM, of, l.n == 1 ? l.v[0] : list_node(p, N_TUPLE, &l), NULL);
}

static jx_call_args *parse_args(parser *p, jx_node *owner)
{
    jx_call_args *a = JX_NEW(p->c, jx_call_args);
    node_list pos = {0}, kw = {0};
    size_t cap = 0;
    expect_op(p, "(");
    bool comma = false;
    while (!is_op(p, ")")) {
        if (comma) {
            expect_op(p, ",");
            if (is_op(p, ")"))
                break;
        }
        comma = true;
        bool bad;
        if (skip_op(p, "*")) {
            bad = a->star || a->star_star;
            a->star = parse_expr(p);
        } else if (skip_op(p, "**")) {
            bad = a->star_star;
            a->star_star = parse_expr(p);
        } else if (p->t->kind == T_NAME && p->t[1].kind == T_OP && !strcmp(p->t[1].op, "=")) {
            bad = a->star_star;
            if (kw.n == cap) {
                size_t grown = cap ? 2 * cap : 4;
                a->kw_names = jx_realloc(p->c, a->kw_names, cap * sizeof *a->kw_names, grown * sizeof *a->kw_names);
                cap = grown;
            }
            if (kw.n == MAX_NAMES)
                jx_error(p->c, "more than %d keyword arguments", MAX_NAMES);
            a->kw_names[kw.n] = p->t->s;
            for (uint32_t i = 0; i < kw.n; i++)
                if (jx_str_eq(a->kw_names[i], p->t->s))
                    jx_error(p->c, "keyword argument repeated");
            take(p);
            take(p);
            push(p, &kw, parse_expr(p));
        } else {
            bad = a->star || a->star_star || kw.n;
            push(p, &pos, parse_expr(p));
        }
        if (bad)
            jx_error(p->c, "invalid syntax for function call expression");
    }
    expect_op(p, ")");
    a->v = pos.v;
    a->n = pos.n;
    a->kw_values = kw.v;
    a->n_kw = kw.n;
    for (uint32_t i = 0; i < pos.n; i++)
        raise_height(p, owner, pos.v[i]);
    for (uint32_t i = 0; i < kw.n; i++)
        raise_height(p, owner, kw.v[i]);
    raise_height(p, owner, a->star);
    raise_height(p, owner, a->star_star);
    return a;
}

static jx_node *parse_call(parser *p, jx_node *callee)
{
    jx_node *n = expr_node(p, N_CALL, callee, NULL, NULL);
    n->args = parse_args(p, n);
    return n;
}

static const jx_str *parse_dotted_name(parser *p)
{
    const jx_str *name = expect_name(p);
    while (skip_op(p, "."))
        name = jx_str_concat(p->c, jx_str_concat(p->c, name, jx_str_lit(p->c, ".")), expect_name(p));
    return name;
}

/* One filter after its "|"; `of` NULL: applied to a block's text. */
static jx_node *parse_filter(parser *p, jx_node *of)
{
    jx_node *n = expr_node(p, N_FILTER, of, NULL, NULL);
    n->name = parse_dotted_name(p);
    n->args = is_op(p, "(") ? parse_args(p, n) : JX_NEW(p->c, jx_call_args);
    n->fn = jx_find_filter(n->name);
    return n;
}

static jx_node *parse_postfix(parser *p, jx_node *n)
{
    for (;;) {
        if (is_op(p, ".") || is_op(p, "["))
            n = parse_subscript(p, n);
        else if (is_op(p, "("))
            n = parse_call(p, n);
        else
            return n;
    }
}

static jx_node *parse_test(parser *p, jx_node *of)
{
    bool negated = skip_name(p, "not");
    jx_node *n = expr_node(p, N_TEST, of, NULL, NULL);
    n->name = parse_dotted_name(p);
    n->fn = jx_find_test(n->name);
    bool starts_operand =
        p->t->kind == T_STRING || p->t->kind == T_INT || p->t->kind == T_FLOAT || is_op(p, "[") || is_op(p, "{") ||
        (p->t->kind == T_NAME && !is_name(p->t, "else") && !is_name(p->t, "or") && !is_name(p->t, "and"));
    if (is_op(p, "(")) {
        n->args = parse_args(p, n);
    } else {
        n->args = JX_NEW(p->c, jx_call_args);
        if (starts_operand) {
            if (is_name(p->t, "is"))
                jx_error(p->c, "You cannot chain multiple tests with is");
            n->args->v = JX_NEW(p->c, jx_node *);
            n->args->v[0] = parse_postfix(p, parse_primary(p, false));
            n->args->n = 1;
            raise_height(p, n, n->args->v[0]);
        }
    }
    return negated ? expr_node(p, N_NOT, n, NULL, NULL) : n;
}

/* parse_tuple(): one expression, or several with commas between them. */
typedef struct tuple_rule {
    bool targets, with_namespace, no_cond, parentheses;
    const char *end_word;
} tuple_rule;

static bool tuple_ends(const parser *p, const char *end_word)
{
    return p->t->kind == T_VAR_END || p->t->kind == T_BLOCK_END || is_op(p, ")") ||
           (end_word && is_name(p->t, end_word));
}

static jx_node *parse_tuple(parser *p, tuple_rule rule)
{
    node_list l = {0};
    bool tuple = false;
    for (;;) {
        if (l.n)
            expect_op(p, ",");
        if (tuple_ends(p, rule.end_word))
            break;
        push(p, &l, rule.targets ? parse_primary(p, rule.with_namespace) : rule.no_cond ? parse_or(p) : parse_expr(p));
        if (!is_op(p, ","))
            break;
        tuple = true;
    }
    if (!tuple) {
        if (l.n)
            return l.v[0];
        if (!rule.parentheses)
            jx_error(p->c, "Expected an expression, got '%s'", jx_token_text(p->c, p->t));
    }
    return list_node(p, N_TUPLE, &l);
}

static jx_node *parse_name(parser *p, bool with_namespace)
{
    static const struct {
        const char *word;
        jx_value v;
    } words[] = {
        {"true", {.kind = JX_BOOL, .b = true}},
        {"True", {.kind = JX_BOOL, .b = true}},
        {"false", {.kind = JX_BOOL, .b = false}},
        {"False", {.kind = JX_BOOL, .b = false}},
        {"none", {.kind = JX_NONE}},
        {"None", {.kind = JX_NONE}},
    };
    for (size_t i = 0; i < XD_ARRAY_LEN(words); i++)
        if (is_name(p->t, words[i].word)) {
            jx_node *n = constant(p, words[i].v);
            take(p);
            return n;
        }
    for (size_t i = 0; i < XD_ARRAY_LEN(p->special); i++)
        p->special[i] += is_name(p->t, jx_special_names[i]);
    jx_node *n = node(p, N_NAME);
    n->name = p->t->s;
    take(p);
    if (with_namespace && skip_op(p, ".")) {
        n->kind = N_NSREF;
        n->attr = expect_name(p);
    }
    return n;
}

static jx_node *parse_strings(parser *p)
{
    const jx_str *s = p->t->s;
    take(p);
    if (p->t->kind == T_STRING) {
        jx_sb b = {0};
        jx_sb_str(p->c, &b, s);
        for (; p->t->kind == T_STRING; take(p))
            jx_sb_str(p->c, &b, p->t->s);
        s = jx_sb_done(p->c, &b);
    }
    return constant(p, JX_STRV(s));
}

static jx_node *parse_list(parser *p)
{
    node_list l = {0};
    take(p);
    while (!is_op(p, "]")) {
        if (l.n)
            expect_op(p, ",");
        if (is_op(p, "]"))
            break;
        push(p, &l, parse_expr(p));
    }
    expect_op(p, "]");
    return list_node(p, N_LIST, &l);
}

static jx_node *parse_dict(parser *p)
{
    node_list l = {0};
    take(p);
    while (!is_op(p, "}")) {
        if (l.n)
            expect_op(p, ",");
        if (is_op(p, "}"))
            break;
        push(p, &l, parse_expr(p));
        expect_op(p, ":");
        push(p, &l, parse_expr(p));
    }
    expect_op(p, "}");
    return list_node(p, N_DICT, &l);
}

static jx_node *parse_primary(parser *p, bool with_namespace)
{
    jx_node *n;
    switch (p->t->kind) {
    case T_NAME: return parse_name(p, with_namespace);
    case T_STRING: return parse_strings(p);
    case T_INT:
        n = constant(p, JX_INTV(p->t->i));
        take(p);
        return n;
    case T_FLOAT:
        n = constant(p, JX_FLOATV(p->t->f));
        take(p);
        return n;
    default: break;
    }
    if (is_op(p, "[") || is_op(p, "{"))
        return is_op(p, "[") ? parse_list(p) : parse_dict(p);
    if (!skip_op(p, "("))
        jx_error(p->c, "unexpected '%s'", jx_token_text(p->c, p->t));
    n = parse_tuple(p, (tuple_rule){.parentheses = true});
    expect_op(p, ")");
    return n;
}

static jx_node *parse_unary(parser *p, bool with_filter)
{
    JX_ENTER(p->c);
    jx_node *n;
    if (is_op(p, "-") || is_op(p, "+")) {
        jx_node_kind kind = is_op(p, "-") ? N_NEG : N_POS;
        take(p);
        n = expr_node(p, kind, parse_unary(p, false), NULL, NULL);
    } else {
        n = parse_primary(p, false);
    }
    n = parse_postfix(p, n);
    while (with_filter) {
        if (skip_op(p, "|"))
            n = parse_filter(p, n);
        else if (skip_name(p, "is"))
            n = parse_test(p, n);
        else if (is_op(p, "("))
            n = parse_call(p, n);
        else
            break;
    }
    JX_LEAVE(p->c);
    return n;
}

static jx_node *binary(parser *p, jx_op op, jx_node *a, jx_node *b)
{
    jx_node *n = expr_node(p, N_BINARY, a, b, NULL);
    n->op = (uint8_t)op;
    return n;
}

static jx_node *parse_pow(parser *p)
{
    jx_node *n = parse_unary(p, true);
    while (skip_op(p, "**"))
        n = binary(p, JX_POW, n, parse_unary(p, true));
    return n;
}

static jx_node *parse_product(parser *p)
{
    jx_node *n = parse_pow(p);
    for (;;) {
        if (skip_op(p, "*"))
            n = binary(p, JX_MUL, n, parse_pow(p));
        else if (skip_op(p, "/"))
            n = binary(p, JX_DIV, n, parse_pow(p));
        else if (skip_op(p, "//"))
            n = binary(p, JX_FLOORDIV, n, parse_pow(p));
        else if (skip_op(p, "%"))
            n = binary(p, JX_MOD, n, parse_pow(p));
        else
            return n;
    }
}

static jx_node *parse_concat(parser *p)
{
    jx_node *first = parse_product(p);
    if (!is_op(p, "~"))
        return first;
    node_list l = {0};
    push(p, &l, first);
    while (skip_op(p, "~"))
        push(p, &l, parse_product(p));
    return list_node(p, N_CONCAT, &l);
}

static jx_node *parse_sum(parser *p)
{
    jx_node *n = parse_concat(p);
    for (;;) {
        if (skip_op(p, "+"))
            n = binary(p, JX_ADD, n, parse_concat(p));
        else if (skip_op(p, "-"))
            n = binary(p, JX_SUB, n, parse_concat(p));
        else
            return n;
    }
}

static bool take_compare_op(parser *p, uint8_t *ret)
{
    static const struct {
        const char *text;
        jx_op op;
    } ops[] = {{"==", JX_EQ}, {"!=", JX_NE}, {"<", JX_LT}, {"<=", JX_LE}, {">", JX_GT}, {">=", JX_GE}};
    for (size_t i = 0; i < XD_ARRAY_LEN(ops); i++)
        if (skip_op(p, ops[i].text)) {
            *ret = (uint8_t)ops[i].op;
            return true;
        }
    if (skip_name(p, "in")) {
        *ret = JX_IN;
        return true;
    }
    if (is_name(p->t, "not") && is_name(p->t + 1, "in")) {
        take(p);
        take(p);
        *ret = JX_NOTIN;
        return true;
    }
    return false;
}

static jx_node *parse_compare(parser *p)
{
    jx_node *first = parse_sum(p);
    node_list l = {0};
    uint8_t *ops = NULL, op;
    while (take_compare_op(p, &op)) {
        ops = jx_realloc(p->c, ops, l.n, l.n + 1);
        ops[l.n] = op;
        push(p, &l, parse_sum(p));
    }
    if (!l.n)
        return first;
    jx_node *n = list_node(p, N_COMPARE, &l);
    n->a = first;
    raise_height(p, n, first);
    n->ops = ops;
    return n;
}

static jx_node *parse_not(parser *p)
{
    if (!skip_name(p, "not"))
        return parse_compare(p);
    JX_ENTER(p->c);
    jx_node *n = expr_node(p, N_NOT, parse_not(p), NULL, NULL);
    JX_LEAVE(p->c);
    return n;
}

static jx_node *parse_and(parser *p)
{
    jx_node *n = parse_not(p);
    while (skip_name(p, "and"))
        n = expr_node(p, N_AND, n, parse_not(p), NULL);
    return n;
}

static jx_node *parse_or(parser *p)
{
    jx_node *n = parse_and(p);
    while (skip_name(p, "or"))
        n = expr_node(p, N_OR, n, parse_and(p), NULL);
    return n;
}

/* ---- statements ---- */

static void check_target(parser *p, const jx_node *n)
{
    if (n->kind == N_TUPLE)
        for (uint32_t i = 0; i < n->items.n; i++)
            check_target(p, n->items.v[i]);
    else if (n->kind != N_NAME && n->kind != N_NSREF)
        jx_error(p->c, "can't assign to this expression");
    else if (n->kind == N_NAME && p->all_loops && jx_str_is(n->name, "loop"))
        jx_error(p->c, "Can't assign to special loop variable in for-loop target");
}

static jx_node *parse_target(parser *p, bool with_namespace, const char *end_word)
{
    jx_node *n = parse_tuple(p, (tuple_rule){.targets = true, .with_namespace = with_namespace, .end_word = end_word});
    check_target(p, n);
    return n;
}

static jx_node *parse_name_target(parser *p)
{
    jx_node *n = node(p, N_NAME);
    n->name = expect_name(p);
    static const char *const reserved[] = {"true", "True", "false", "False", "none", "None"};
    for (size_t i = 0; i < XD_ARRAY_LEN(reserved); i++)
        if (jx_str_is(n->name, reserved[i]))
            jx_error(p->c, "can't assign to '%s'", reserved[i]);
    return n;
}

static void end_tag(parser *p)
{
    if (p->t->kind != T_BLOCK_END)
        unexpected(p, "end of statement block");
    take(p);
}

/* After "{%": a body that ends before one of the words, which becomes the current token. */
static jx_body parse_statements(parser *p, const char *const *ends)
{
    skip_op(p, ":");
    end_tag(p);
    jx_body b = parse_body(p, ends);
    if (p->t->kind == T_EOF)
        jx_error(p->c, "Unexpected end of template. Jinja was looking for the following tags: '%s'.", ends[0]);
    return b;
}

static jx_body parse_until(parser *p, const char *end)
{
    const char *const ends[] = {end, NULL};
    jx_body b = parse_statements(p, ends);
    take(p);
    return b;
}

/* The body of something that jinja2 compiles to a function of its own: a loop outside it cannot be left from inside. n->special says
 * afterwards which of the special parameters the body asks for. */
static void parse_function_body(parser *p, jx_node *n, const char *end)
{
    unsigned loops = p->loops, before[XD_ARRAY_LEN(p->special)];
    memcpy(before, p->special, sizeof before);
    p->loops = 0;
    n->body = parse_until(p, end);
    p->loops = loops;
    for (size_t i = 0; i < XD_ARRAY_LEN(before); i++)
        n->special[i] = p->special[i] > before[i] ? 0 : -1;
}

static jx_node *parse_set(parser *p)
{
    jx_node *n = node(p, N_SET);
    n->target = parse_target(p, true, NULL);
    if (skip_op(p, "=")) {
        n->expr = parse_tuple(p, (tuple_rule){0});
        return n;
    }
    n->kind = N_SET_BLOCK;
    while (skip_op(p, "|"))
        n->expr = parse_filter(p, n->expr);
    n->body = parse_until(p, "endset");
    return n;
}

static jx_node *parse_for(parser *p)
{
    jx_node *n = node(p, N_FOR);
    p->all_loops++;
    n->target = parse_target(p, false, "in");
    expect_word(p, "in");
    n->expr = parse_tuple(p, (tuple_rule){.no_cond = true, .end_word = "recursive"});
    if (skip_name(p, "if"))
        n->test = parse_expr(p);
    n->op = skip_name(p, "recursive");
    static const char *const ends[] = {"endfor", "else", NULL};
    p->loops++;
    n->body = parse_statements(p, ends);
    p->loops--;
    bool has_else = is_name(p->t, "else");
    take(p);
    if (has_else)
        n->other = parse_until(p, "endfor");
    p->all_loops--;
    return n;
}

static jx_node *parse_if(parser *p)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    jx_node *first = node(p, N_IF), *n = first;
    for (;;) {
        n->test = parse_tuple(p, (tuple_rule){.no_cond = true});
        n->body = parse_statements(p, ends);
        if (skip_name(p, "elif")) {
            jx_node *next = node(p, N_IF);
            next->op = 1;
            node_list l = {0};
            push(p, &l, next);
            n->other = done(&l);
            n = next;
            continue;
        }
        if (skip_name(p, "else"))
            n->other = parse_until(p, "endif");
        else
            take(p);
        return first;
    }
}

static void parse_signature(parser *p, jx_node *n)
{
    node_list params = {0}, defaults = {0};
    expect_op(p, "(");
    while (!is_op(p, ")")) {
        if (params.n)
            expect_op(p, ",");
        jx_node *param = parse_name_target(p);
        if (params.n == MAX_NAMES)
            jx_error(p->c, "more than %d parameters", MAX_NAMES);
        for (uint32_t i = 0; i < params.n; i++)
            if (jx_str_eq(params.v[i]->name, param->name))
                jx_error(p->c, "duplicate argument in a macro's signature");
        if (skip_op(p, "="))
            push(p, &defaults, parse_expr(p));
        else if (defaults.n)
            jx_error(p->c, "non-default argument follows default argument");
        push(p, &params, param);
    }
    expect_op(p, ")");
    n->params = done(&params);
    n->defaults = done(&defaults);
}

static jx_node *parse_macro(parser *p)
{
    jx_node *n = node(p, N_MACRO);
    n->text = parse_name_target(p)->name;
    parse_signature(p, n);
    parse_function_body(p, n, "endmacro");
    return n;
}

static jx_node *parse_call_block(parser *p)
{
    jx_node *n = node(p, N_CALL_BLOCK);
    if (is_op(p, "("))
        parse_signature(p, n);
    n->expr = parse_expr(p);
    if (n->expr->kind != N_CALL)
        jx_error(p->c, "expected call");
    parse_function_body(p, n, "endcall");
    return n;
}

static jx_node *parse_filter_block(parser *p)
{
    jx_node *n = node(p, N_FILTER_BLOCK);
    n->expr = parse_filter(p, NULL);
    while (skip_op(p, "|"))
        n->expr = parse_filter(p, n->expr);
    n->body = parse_until(p, "endfilter");
    return n;
}

static jx_node *parse_with(parser *p)
{
    jx_node *n = node(p, N_WITH);
    node_list targets = {0}, values = {0};
    while (p->t->kind != T_BLOCK_END) {
        if (targets.n)
            expect_op(p, ",");
        push(p, &targets, parse_target(p, false, NULL));
        expect_op(p, "=");
        push(p, &values, parse_expr(p));
    }
    n->params = done(&targets);
    n->defaults = done(&values);
    n->body = parse_until(p, "endwith");
    return n;
}

static jx_node *parse_block(parser *p)
{
    jx_node *n = node(p, N_BLOCK);
    n->text = expect_name(p);
    n->op = skip_name(p, "scoped");
    skip_name(p, "required");
    parse_function_body(p, n, "endblock");
    if (p->t->kind == T_NAME && jx_str_eq(p->t->s, n->text))
        take(p);
    return n;
}

static jx_node *parse_generation(parser *p)
{
    /* transformers' tag for training masks; its body is a scope of its own */
    jx_node *n = node(p, N_SCOPE);
    parse_function_body(p, n, "endgeneration");
    return n;
}

static jx_node *parse_loop_control(parser *p, jx_node_kind kind)
{
    if (!p->loops)
        jx_error(p->c, "'%s' outside loop", kind == N_BREAK ? "break" : "continue");
    return node(p, kind);
}

static jx_node *parse_break(parser *p)
{
    return parse_loop_control(p, N_BREAK);
}
static jx_node *parse_continue(parser *p)
{
    return parse_loop_control(p, N_CONTINUE);
}

static jx_node *parse_print(parser *p)
{
    jx_node *n = node(p, N_SCOPE); /* without a scope: a plain group */
    node_list l = {0};
    while (p->t->kind != T_BLOCK_END) {
        if (l.n)
            expect_op(p, ",");
        jx_node *out = node(p, N_OUTPUT);
        out->expr = parse_expr(p);
        push(p, &l, out);
    }
    n->body = done(&l);
    n->op = 1;
    return n;
}

static jx_node *parse_statement(parser *p)
{
    static const struct {
        const char *tag;
        jx_node *(*parse)(parser *p);
    } tags[] = {
        {"if", parse_if},           {"set", parse_set},
        {"for", parse_for},         {"macro", parse_macro},
        {"call", parse_call_block}, {"filter", parse_filter_block},
        {"with", parse_with},       {"block", parse_block},
        {"print", parse_print},     {"generation", parse_generation},
        {"break", parse_break},     {"continue", parse_continue},
    };
    static const char *const refused[] = {"include", "import", "from", "extends", "autoescape"};
    if (p->t->kind != T_NAME)
        jx_error(p->c, "tag name expected");
    for (size_t i = 0; i < XD_ARRAY_LEN(tags); i++)
        if (skip_name(p, tags[i].tag)) {
            JX_ENTER(p->c);
            jx_node *n = tags[i].parse(p);
            JX_LEAVE(p->c);
            return n;
        }
    for (size_t i = 0; i < XD_ARRAY_LEN(refused); i++)
        if (is_name(p->t, refused[i]))
            jx_error(p->c, "the tag '%s' is not supported: a chat template stands alone and is not escaped",
                     refused[i]);
    jx_error(p->c, "Encountered unknown tag '%s'.", jx_token_text(p->c, p->t));
}

static jx_body parse_body(parser *p, const char *const *ends)
{
    node_list l = {0};
    while (p->t->kind != T_EOF) {
        jx_node *n;
        if (p->t->kind == T_DATA) {
            n = node(p, N_DATA);
            n->text = p->t->s;
            take(p);
        } else if (p->t->kind == T_VAR_BEGIN) {
            take(p);
            n = node(p, N_OUTPUT);
            n->expr = parse_tuple(p, (tuple_rule){0});
            expect_kind(p, T_VAR_END);
        } else {
            take(p);
            for (const char *const *e = ends; e && *e; e++)
                if (is_name(p->t, *e))
                    return done(&l);
            n = parse_statement(p);
            end_tag(p);
        }
        push(p, &l, n);
    }
    return done(&l);
}

void jx_parse(jx *c, const jx_token *tokens, jx_body *ret)
{
    parser p = {.c = c, .t = tokens};
    c->line = tokens->line;
    *ret = parse_body(&p, NULL);
}
