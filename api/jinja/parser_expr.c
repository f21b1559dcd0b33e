/* parser_expr.c - expressions: from the inline if down to names and literals, in the order of their precedence.
 *
 * The height of each tree is bounded (jp_raise_height), since evaluation recurses over it. */
#include <string.h>

#include "api/jinja/parser_priv.h"

static jx_node *parse_unary(parser *p, bool with_filter);
static jx_node *parse_primary(parser *p, bool with_namespace);
static jx_node *parse_or(parser *p);

static jx_node *parse_cond(parser *p)
{
    JX_ENTER(p->c);
    jx_node *then = parse_or(p);
    while (jp_skip_name(p, "if")) {
        jx_node *test = parse_or(p);
        jx_node *other = jp_skip_name(p, "else") ? parse_cond(p) : NULL;
        then = jp_expr_node(p, N_COND, test, then, other);
    }
    JX_LEAVE(p->c);
    return then;
}

jx_node *jp_expr(parser *p)
{
    return parse_cond(p);
}

static jx_node *parse_subscript_part(parser *p)
{
    jx_node *start = NULL, *stop = NULL, *step = NULL;
    if (!jp_is_op(p, ":")) {
        start = jp_expr(p);
        if (!jp_is_op(p, ":"))
            return start;
    }
    jp_take(p);
    if (!jp_is_op(p, ":") && !jp_is_op(p, "]") && !jp_is_op(p, ","))
        stop = jp_expr(p);
    if (jp_skip_op(p, ":") && !jp_is_op(p, "]") && !jp_is_op(p, ","))
        step = jp_expr(p);
    return jp_expr_node(p, N_SLICE, start, stop, step);
}

static jx_node *parse_subscript(parser *p, jx_node *of)
{
    if (jp_skip_op(p, ".")) {
        if (p->t->kind == T_NAME) {
            jx_node *n = jp_expr_node(p, N_GETATTR, of, NULL, NULL);
            n->name = p->t->s;
            jp_take(p);
            return n;
        }
        if (p->t->kind != T_INT)
            jx_error(p->c, "expected name or number");
        jx_node *key = jp_constant(p, JX_INTV(p->t->i));
        jp_take(p);
        return jp_expr_node(p, N_GETITEM, of, key, NULL);
    }
    jp_expect_op(p, "[");
    node_list l = {0};
    while (!jp_is_op(p, "]")) {
        if (l.n)
            jp_expect_op(p, ",");
        jp_push(p, &l, parse_subscript_part(p));
    }
    jp_expect_op(p, "]");
    if (l.n > 1)
        for (uint32_t i = 0; i < l.n; i++)
            if (l.v[i]->kind == N_SLICE)
                jx_error(p->c, "slices inside a tuple index are not supported");
    return jp_expr_node(p, N_GETITEM, of, l.n == 1 ? l.v[0] : jp_list_node(p, N_TUPLE, &l), NULL);
}

static jx_call_args *parse_args(parser *p, jx_node *owner)
{
    jx_call_args *a = JX_NEW(p->c, jx_call_args);
    node_list pos = {0}, kw = {0};
    size_t cap = 0;
    jp_expect_op(p, "(");
    bool comma = false;
    while (!jp_is_op(p, ")")) {
        if (comma) {
            jp_expect_op(p, ",");
            if (jp_is_op(p, ")"))
                break;
        }
        comma = true;
        bool bad;
        if (jp_skip_op(p, "*")) {
            bad = a->star || a->star_star;
            a->star = jp_expr(p);
        } else if (jp_skip_op(p, "**")) {
            bad = a->star_star;
            a->star_star = jp_expr(p);
        } else if (p->t->kind == T_NAME && p->t[1].kind == T_OP && !strcmp(p->t[1].op, "=")) {
            bad = a->star_star;
            if (kw.n == cap) {
                size_t grown = cap ? 2 * cap : 4;
                a->kw_names = jx_realloc(p->c, a->kw_names, cap * sizeof *a->kw_names, grown * sizeof *a->kw_names);
                cap = grown;
            }
            if (kw.n == JP_MAX_NAMES)
                jx_error(p->c, "more than %d keyword arguments", JP_MAX_NAMES);
            a->kw_names[kw.n] = p->t->s;
            for (uint32_t i = 0; i < kw.n; i++)
                if (jx_str_eq(a->kw_names[i], p->t->s))
                    jx_error(p->c, "keyword argument repeated");
            jp_take(p);
            jp_take(p);
            jp_push(p, &kw, jp_expr(p));
        } else {
            bad = a->star || a->star_star || kw.n;
            jp_push(p, &pos, jp_expr(p));
        }
        if (bad)
            jx_error(p->c, "invalid syntax for function call expression");
    }
    jp_expect_op(p, ")");
    a->v = pos.v;
    a->n = pos.n;
    a->kw_values = kw.v;
    a->n_kw = kw.n;
    for (uint32_t i = 0; i < pos.n; i++)
        jp_raise_height(p, owner, pos.v[i]);
    for (uint32_t i = 0; i < kw.n; i++)
        jp_raise_height(p, owner, kw.v[i]);
    jp_raise_height(p, owner, a->star);
    jp_raise_height(p, owner, a->star_star);
    return a;
}

static jx_node *parse_call(parser *p, jx_node *callee)
{
    jx_node *n = jp_expr_node(p, N_CALL, callee, NULL, NULL);
    n->args = parse_args(p, n);
    return n;
}

static const jx_str *parse_dotted_name(parser *p)
{
    const jx_str *name = jp_expect_name(p);
    while (jp_skip_op(p, "."))
        name = jx_str_concat(p->c, jx_str_concat(p->c, name, jx_str_lit(p->c, ".")), jp_expect_name(p));
    return name;
}

/* One filter after its "|"; `of` NULL: applied to a block's text. */
jx_node *jp_filter(parser *p, jx_node *of)
{
    jx_node *n = jp_expr_node(p, N_FILTER, of, NULL, NULL);
    n->name = parse_dotted_name(p);
    n->args = jp_is_op(p, "(") ? parse_args(p, n) : JX_NEW(p->c, jx_call_args);
    n->fn = jx_find_filter(n->name);
    return n;
}

static jx_node *parse_postfix(parser *p, jx_node *n)
{
    for (;;) {
        if (jp_is_op(p, ".") || jp_is_op(p, "["))
            n = parse_subscript(p, n);
        else if (jp_is_op(p, "("))
            n = parse_call(p, n);
        else
            return n;
    }
}

static jx_node *parse_test(parser *p, jx_node *of)
{
    bool negated = jp_skip_name(p, "not");
    jx_node *n = jp_expr_node(p, N_TEST, of, NULL, NULL);
    n->name = parse_dotted_name(p);
    n->fn = jx_find_test(n->name);
    bool starts_operand =
        p->t->kind == T_STRING || p->t->kind == T_INT || p->t->kind == T_FLOAT || jp_is_op(p, "[") ||
        jp_is_op(p, "{") ||
        (p->t->kind == T_NAME && !jp_is_name(p->t, "else") && !jp_is_name(p->t, "or") && !jp_is_name(p->t, "and"));
    if (jp_is_op(p, "(")) {
        n->args = parse_args(p, n);
    } else {
        n->args = JX_NEW(p->c, jx_call_args);
        if (starts_operand) {
            if (jp_is_name(p->t, "is"))
                jx_error(p->c, "You cannot chain multiple tests with is");
            n->args->v = JX_NEW(p->c, jx_node *);
            n->args->v[0] = parse_postfix(p, parse_primary(p, false));
            n->args->n = 1;
            jp_raise_height(p, n, n->args->v[0]);
        }
    }
    return negated ? jp_expr_node(p, N_NOT, n, NULL, NULL) : n;
}

static bool tuple_ends(const parser *p, const char *end_word)
{
    return p->t->kind == T_VAR_END || p->t->kind == T_BLOCK_END || jp_is_op(p, ")") ||
           (end_word && jp_is_name(p->t, end_word));
}

jx_node *jp_tuple(parser *p, tuple_rule rule)
{
    node_list l = {0};
    bool tuple = false;
    for (;;) {
        if (l.n)
            jp_expect_op(p, ",");
        if (tuple_ends(p, rule.end_word))
            break;
        jp_push(p, &l, rule.targets ? parse_primary(p, rule.with_namespace) : rule.no_cond ? parse_or(p) : jp_expr(p));
        if (!jp_is_op(p, ","))
            break;
        tuple = true;
    }
    if (!tuple) {
        if (l.n)
            return l.v[0];
        if (!rule.parentheses)
            jx_error(p->c, "Expected an expression, got '%s'", jx_token_text(p->c, p->t));
    }
    return jp_list_node(p, N_TUPLE, &l);
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
        if (jp_is_name(p->t, words[i].word)) {
            jx_node *n = jp_constant(p, words[i].v);
            jp_take(p);
            return n;
        }
    for (size_t i = 0; i < XD_ARRAY_LEN(p->special); i++)
        p->special[i] += jp_is_name(p->t, jx_special_names[i]);
    jx_node *n = jp_node(p, N_NAME);
    n->name = p->t->s;
    jp_take(p);
    if (with_namespace && jp_skip_op(p, ".")) {
        n->kind = N_NSREF;
        n->attr = jp_expect_name(p);
    }
    return n;
}

static jx_node *parse_strings(parser *p)
{
    const jx_str *s = p->t->s;
    jp_take(p);
    if (p->t->kind == T_STRING) {
        jx_sb b = {0};
        jx_sb_str(p->c, &b, s);
        for (; p->t->kind == T_STRING; jp_take(p))
            jx_sb_str(p->c, &b, p->t->s);
        s = jx_sb_done(p->c, &b);
    }
    return jp_constant(p, JX_STRV(s));
}

static jx_node *parse_list(parser *p)
{
    node_list l = {0};
    jp_take(p);
    while (!jp_is_op(p, "]")) {
        if (l.n)
            jp_expect_op(p, ",");
        if (jp_is_op(p, "]"))
            break;
        jp_push(p, &l, jp_expr(p));
    }
    jp_expect_op(p, "]");
    return jp_list_node(p, N_LIST, &l);
}

static jx_node *parse_dict(parser *p)
{
    node_list l = {0};
    jp_take(p);
    while (!jp_is_op(p, "}")) {
        if (l.n)
            jp_expect_op(p, ",");
        if (jp_is_op(p, "}"))
            break;
        jp_push(p, &l, jp_expr(p));
        jp_expect_op(p, ":");
        jp_push(p, &l, jp_expr(p));
    }
    jp_expect_op(p, "}");
    return jp_list_node(p, N_DICT, &l);
}

static jx_node *parse_primary(parser *p, bool with_namespace)
{
    jx_node *n;
    switch (p->t->kind) {
    case T_NAME: return parse_name(p, with_namespace);
    case T_STRING: return parse_strings(p);
    case T_INT:
        n = jp_constant(p, JX_INTV(p->t->i));
        jp_take(p);
        return n;
    case T_FLOAT:
        n = jp_constant(p, JX_FLOATV(p->t->f));
        jp_take(p);
        return n;
    default: break;
    }
    if (jp_is_op(p, "[") || jp_is_op(p, "{"))
        return jp_is_op(p, "[") ? parse_list(p) : parse_dict(p);
    if (!jp_skip_op(p, "("))
        jx_error(p->c, "unexpected '%s'", jx_token_text(p->c, p->t));
    n = jp_tuple(p, (tuple_rule){.parentheses = true});
    jp_expect_op(p, ")");
    return n;
}

static jx_node *parse_unary(parser *p, bool with_filter)
{
    JX_ENTER(p->c);
    jx_node *n;
    if (jp_is_op(p, "-") || jp_is_op(p, "+")) {
        jx_node_kind kind = jp_is_op(p, "-") ? N_NEG : N_POS;
        jp_take(p);
        n = jp_expr_node(p, kind, parse_unary(p, false), NULL, NULL);
    } else {
        n = parse_primary(p, false);
    }
    n = parse_postfix(p, n);
    while (with_filter) {
        if (jp_skip_op(p, "|"))
            n = jp_filter(p, n);
        else if (jp_skip_name(p, "is"))
            n = parse_test(p, n);
        else if (jp_is_op(p, "("))
            n = parse_call(p, n);
        else
            break;
    }
    JX_LEAVE(p->c);
    return n;
}

static jx_node *binary(parser *p, jx_op op, jx_node *a, jx_node *b)
{
    jx_node *n = jp_expr_node(p, N_BINARY, a, b, NULL);
    n->op = (uint8_t)op;
    return n;
}

static jx_node *parse_pow(parser *p)
{
    jx_node *n = parse_unary(p, true);
    while (jp_skip_op(p, "**"))
        n = binary(p, JX_POW, n, parse_unary(p, true));
    return n;
}

static jx_node *parse_product(parser *p)
{
    jx_node *n = parse_pow(p);
    for (;;) {
        if (jp_skip_op(p, "*"))
            n = binary(p, JX_MUL, n, parse_pow(p));
        else if (jp_skip_op(p, "/"))
            n = binary(p, JX_DIV, n, parse_pow(p));
        else if (jp_skip_op(p, "//"))
            n = binary(p, JX_FLOORDIV, n, parse_pow(p));
        else if (jp_skip_op(p, "%"))
            n = binary(p, JX_MOD, n, parse_pow(p));
        else
            return n;
    }
}

static jx_node *parse_concat(parser *p)
{
    jx_node *first = parse_product(p);
    if (!jp_is_op(p, "~"))
        return first;
    node_list l = {0};
    jp_push(p, &l, first);
    while (jp_skip_op(p, "~"))
        jp_push(p, &l, parse_product(p));
    return jp_list_node(p, N_CONCAT, &l);
}

static jx_node *parse_sum(parser *p)
{
    jx_node *n = parse_concat(p);
    for (;;) {
        if (jp_skip_op(p, "+"))
            n = binary(p, JX_ADD, n, parse_concat(p));
        else if (jp_skip_op(p, "-"))
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
        if (jp_skip_op(p, ops[i].text)) {
            *ret = (uint8_t)ops[i].op;
            return true;
        }
    if (jp_skip_name(p, "in")) {
        *ret = JX_IN;
        return true;
    }
    if (jp_is_name(p->t, "not") && jp_is_name(p->t + 1, "in")) {
        jp_take(p);
        jp_take(p);
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
        jp_push(p, &l, parse_sum(p));
    }
    if (!l.n)
        return first;
    jx_node *n = jp_list_node(p, N_COMPARE, &l);
    n->a = first;
    jp_raise_height(p, n, first);
    n->ops = ops;
    return n;
}

static jx_node *parse_not(parser *p)
{
    if (!jp_skip_name(p, "not"))
        return parse_compare(p);
    JX_ENTER(p->c);
    jx_node *n = jp_expr_node(p, N_NOT, parse_not(p), NULL, NULL);
    JX_LEAVE(p->c);
    return n;
}

static jx_node *parse_and(parser *p)
{
    jx_node *n = parse_not(p);
    while (jp_skip_name(p, "and"))
        n = jp_expr_node(p, N_AND, n, parse_not(p), NULL);
    return n;
}

static jx_node *parse_or(parser *p)
{
    jx_node *n = parse_and(p);
    while (jp_skip_name(p, "or"))
        n = jp_expr_node(p, N_OR, n, parse_and(p), NULL);
    return n;
}
