/* parser.c - tokens to a syntax tree: jinja2's grammar and operator precedences, rule by rule. Here: the cursor over the tokens and the making
 * of nodes; the rules are in parser_expr.c and parser_stmt.c.
 *
 * Names are not resolved here (scope.c). */
#include <string.h>

#include "api/jinja/parser_priv.h"

const char *const jx_special_names[3] = {"caller", "kwargs", "varargs"};

/* ---- tokens ---- */

/* Fails with the lexer's error if that is what comes now. */
static void fail_at_error(parser *p)
{
    if (p->t->kind == T_ERROR)
        longjmp(p->c->jump, 1);
}

void jp_take(parser *p)
{
    if (p->t->kind != T_EOF)
        p->t++;
    fail_at_error(p);
    p->c->line = p->t->line;
}

bool jp_is_op(const parser *p, const char *op)
{
    return p->t->kind == T_OP && !strcmp(p->t->op, op);
}

bool jp_is_name(const jx_token *t, const char *name)
{
    return t->kind == T_NAME && jx_str_is(t->s, name);
}

bool jp_skip_op(parser *p, const char *op)
{
    if (!jp_is_op(p, op))
        return false;
    jp_take(p);
    return true;
}

bool jp_skip_name(parser *p, const char *name)
{
    if (!jp_is_name(p->t, name))
        return false;
    jp_take(p);
    return true;
}

_Noreturn void jp_unexpected(parser *p, const char *wanted)
{
    if (p->t->kind == T_EOF)
        jx_error(p->c, "unexpected end of template, expected '%s'.", wanted);
    jx_error(p->c, "expected token '%s', got '%s'", wanted, jx_token_text(p->c, p->t));
}

void jp_expect_op(parser *p, const char *op)
{
    if (!jp_skip_op(p, op))
        jp_unexpected(p, op);
}

const jx_str *jp_expect_name(parser *p)
{
    if (p->t->kind != T_NAME)
        jp_unexpected(p, "name");
    const jx_str *s = p->t->s;
    jp_take(p);
    return s;
}

void jp_expect_word(parser *p, const char *word)
{
    if (!jp_skip_name(p, word))
        jp_unexpected(p, word);
}

void jp_expect_kind(parser *p, jx_token_kind kind)
{
    if (p->t->kind != kind)
        jp_unexpected(p, jx_token_text(p->c, &(jx_token){.kind = (uint8_t)kind}));
    jp_take(p);
}

/* ---- nodes ---- */

jx_node *jp_node(parser *p, jx_node_kind kind)
{
    jx_node *n = JX_NEW(p->c, jx_node);
    n->kind = (uint8_t)kind;
    n->line = p->c->line;
    return n;
}

void jp_raise_height(parser *p, jx_node *n, const jx_node *child)
{
    if (!child)
        return;
    if (child->height >= JX_MAX_EXPR_DEPTH)
        jx_error(p->c, "the expression is nested too deeply");
    n->height = (uint16_t)XD_MAX(n->height, child->height + 1);
}

jx_node *jp_expr_node(parser *p, jx_node_kind kind, jx_node *a, jx_node *b, jx_node *c)
{
    jx_node *n = jp_node(p, kind);
    n->a = a;
    n->b = b;
    n->c = c;
    jp_raise_height(p, n, a);
    jp_raise_height(p, n, b);
    jp_raise_height(p, n, c);
    return n;
}

void jp_push(parser *p, node_list *l, jx_node *n)
{
    if (l->n == l->cap) {
        uint32_t cap = l->cap ? 2 * l->cap : 4;
        l->v = jx_realloc(p->c, l->v, l->cap * sizeof *l->v, cap * sizeof *l->v);
        l->cap = cap;
    }
    l->v[l->n++] = n;
}

jx_body jp_done(const node_list *l)
{
    return (jx_body){l->v, l->n};
}

jx_node *jp_list_node(parser *p, jx_node_kind kind, const node_list *l)
{
    jx_node *n = jp_node(p, kind);
    n->items = jp_done(l);
    for (uint32_t i = 0; i < l->n; i++)
        jp_raise_height(p, n, l->v[i]);
    return n;
}

jx_node *jp_constant(parser *p, jx_value v)
{
    jx_node *n = jp_node(p, N_CONST);
    n->value = v;
    return n;
}

void jx_parse(jx *c, const jx_token *tokens, jx_body *ret)
{
    parser p = {.c = c, .t = tokens};
    fail_at_error(&p);
    c->line = tokens->line;
    *ret = jp_body(&p, NULL);
}
