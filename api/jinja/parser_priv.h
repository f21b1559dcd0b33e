/* parser_priv.h - what the parser's files share: the token cursor, and making nodes (parser.c); expressions (parser_expr.c) for
 * statements (parser_stmt.c). */
#ifndef API_JINJA_PARSER_PRIV_H
#define API_JINJA_PARSER_PRIV_H

#include "api/jinja/jinja_priv.h"

enum { JP_MAX_NAMES = 1000 }; /* of a signature or a call; searched linearly */

typedef struct parser {
    jx *c;
    const jx_token *t;   /* current token */
    unsigned loops;      /* enclosing for loops within this function-like body: break and continue are allowed */
    unsigned all_loops;  /* enclosing for loops at all: `loop` may not be assigned */
    unsigned special[3]; /* how often caller, kwargs and varargs were named so far */
} parser;

/* A list of nodes while it grows. */
typedef struct node_list {
    jx_node **v;
    uint32_t n, cap;
} node_list;

/* jp_tuple(): one expression, or several with commas between them. */
typedef struct tuple_rule {
    bool targets, with_namespace, no_cond, parentheses;
    const char *end_word;
} tuple_rule;

/* Tokens and nodes */
void jp_take(parser *p);
bool jp_is_op(const parser *p, const char *op);
bool jp_is_name(const jx_token *t, const char *name);
bool jp_skip_op(parser *p, const char *op);
bool jp_skip_name(parser *p, const char *name);
_Noreturn void jp_unexpected(parser *p, const char *wanted);
void jp_expect_op(parser *p, const char *op);
const jx_str *jp_expect_name(parser *p);
void jp_expect_word(parser *p, const char *word);
void jp_expect_kind(parser *p, jx_token_kind kind);
jx_node *jp_node(parser *p, jx_node_kind kind);
void jp_raise_height(parser *p, jx_node *n, const jx_node *child);
jx_node *jp_expr_node(parser *p, jx_node_kind kind, jx_node *a, jx_node *b, jx_node *c);
void jp_push(parser *p, node_list *l, jx_node *n);
jx_body jp_done(const node_list *l);
jx_node *jp_list_node(parser *p, jx_node_kind kind, const node_list *l);
jx_node *jp_constant(parser *p, jx_value v);

/* Expressions */
jx_node *jp_expr(parser *p);
jx_node *jp_tuple(parser *p, tuple_rule rule);
jx_node *jp_filter(parser *p, jx_node *of); /* one filter after its "|"; `of` NULL: applied to a block's text */

/* Statements up to one of the end words (NULL: up to the template's end), which becomes the current token. */
jx_body jp_body(parser *p, const char *const *ends);

#endif
