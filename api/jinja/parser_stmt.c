/* parser_stmt.c - statements: template data, print tags and what may stand in {% %}, one function a tag.
 *
 * Tags that need other templates (include, import, extends) fail when they are reached, as in the reference, which has no loader either: a
 * chat template is one file. */
#include <string.h>

#include "api/jinja/parser_priv.h"

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
    jx_node *n = jp_tuple(p, (tuple_rule){.targets = true, .with_namespace = with_namespace, .end_word = end_word});
    check_target(p, n);
    return n;
}

static jx_node *parse_name_target(parser *p)
{
    jx_node *n = jp_node(p, N_NAME);
    n->name = jp_expect_name(p);
    static const char *const reserved[] = {"true", "True", "false", "False", "none", "None"};
    for (size_t i = 0; i < XD_ARRAY_LEN(reserved); i++)
        if (jx_str_is(n->name, reserved[i]))
            jx_error(p->c, "can't assign to '%s'", reserved[i]);
    return n;
}

static void end_tag(parser *p)
{
    if (p->t->kind != T_BLOCK_END)
        jp_unexpected(p, "end of statement block");
    jp_take(p);
}

/* After "{%": a body that ends before one of the words, which becomes the current token. */
static jx_body parse_statements(parser *p, const char *const *ends)
{
    jp_skip_op(p, ":");
    end_tag(p);
    jx_body b = jp_body(p, ends);
    if (p->t->kind == T_EOF)
        jx_error(p->c, "Unexpected end of template. Jinja was looking for the following tags: '%s'.", ends[0]);
    return b;
}

static jx_body parse_until(parser *p, const char *end)
{
    const char *const ends[] = {end, NULL};
    jx_body b = parse_statements(p, ends);
    jp_take(p);
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
    jx_node *n = jp_node(p, N_SET);
    n->target = parse_target(p, true, NULL);
    if (jp_skip_op(p, "=")) {
        n->expr = jp_tuple(p, (tuple_rule){0});
        return n;
    }
    n->kind = N_SET_BLOCK;
    while (jp_skip_op(p, "|"))
        n->expr = jp_filter(p, n->expr);
    n->body = parse_until(p, "endset");
    return n;
}

static jx_node *parse_for(parser *p)
{
    jx_node *n = jp_node(p, N_FOR);
    p->all_loops++;
    n->target = parse_target(p, false, "in");
    jp_expect_word(p, "in");
    n->expr = jp_tuple(p, (tuple_rule){.no_cond = true, .end_word = "recursive"});
    if (jp_skip_name(p, "if"))
        n->test = jp_expr(p);
    n->op = jp_skip_name(p, "recursive");
    static const char *const ends[] = {"endfor", "else", NULL};
    p->loops++;
    n->body = parse_statements(p, ends);
    p->loops--;
    bool has_else = jp_is_name(p->t, "else");
    jp_take(p);
    if (has_else)
        n->other = parse_until(p, "endfor");
    p->all_loops--;
    return n;
}

static jx_node *parse_if(parser *p)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    jx_node *first = jp_node(p, N_IF), *n = first;
    for (;;) {
        n->test = jp_tuple(p, (tuple_rule){.no_cond = true});
        n->body = parse_statements(p, ends);
        if (jp_skip_name(p, "elif")) {
            jx_node *next = jp_node(p, N_IF);
            next->op = 1;
            node_list l = {0};
            jp_push(p, &l, next);
            n->other = jp_done(&l);
            n = next;
            continue;
        }
        if (jp_skip_name(p, "else"))
            n->other = parse_until(p, "endif");
        else
            jp_take(p);
        return first;
    }
}

static void parse_signature(parser *p, jx_node *n)
{
    node_list params = {0}, defaults = {0};
    jp_expect_op(p, "(");
    while (!jp_is_op(p, ")")) {
        if (params.n)
            jp_expect_op(p, ",");
        jx_node *param = parse_name_target(p);
        if (params.n == JP_MAX_NAMES)
            jx_error(p->c, "more than %d parameters", JP_MAX_NAMES);
        for (uint32_t i = 0; i < params.n; i++)
            if (jx_str_eq(params.v[i]->name, param->name))
                jx_error(p->c, "duplicate argument in a macro's signature");
        if (jp_skip_op(p, "="))
            jp_push(p, &defaults, jp_expr(p));
        else if (defaults.n)
            jx_error(p->c, "non-default argument follows default argument");
        jp_push(p, &params, param);
    }
    jp_expect_op(p, ")");
    n->params = jp_done(&params);
    n->defaults = jp_done(&defaults);
}

static jx_node *parse_macro(parser *p)
{
    jx_node *n = jp_node(p, N_MACRO);
    n->text = parse_name_target(p)->name;
    parse_signature(p, n);
    parse_function_body(p, n, "endmacro");
    return n;
}

static jx_node *parse_call_block(parser *p)
{
    jx_node *n = jp_node(p, N_CALL_BLOCK);
    if (jp_is_op(p, "("))
        parse_signature(p, n);
    n->expr = jp_expr(p);
    if (n->expr->kind != N_CALL)
        jx_error(p->c, "expected call");
    parse_function_body(p, n, "endcall");
    return n;
}

static jx_node *parse_filter_block(parser *p)
{
    jx_node *n = jp_node(p, N_FILTER_BLOCK);
    n->expr = jp_filter(p, NULL);
    while (jp_skip_op(p, "|"))
        n->expr = jp_filter(p, n->expr);
    n->body = parse_until(p, "endfilter");
    return n;
}

static jx_node *parse_with(parser *p)
{
    jx_node *n = jp_node(p, N_WITH);
    node_list targets = {0}, values = {0};
    while (p->t->kind != T_BLOCK_END) {
        if (targets.n)
            jp_expect_op(p, ",");
        jp_push(p, &targets, parse_target(p, false, NULL));
        jp_expect_op(p, "=");
        jp_push(p, &values, jp_expr(p));
    }
    n->params = jp_done(&targets);
    n->defaults = jp_done(&values);
    n->body = parse_until(p, "endwith");
    return n;
}

static jx_node *parse_block(parser *p)
{
    jx_node *n = jp_node(p, N_BLOCK);
    n->text = jp_expect_name(p);
    n->op = jp_skip_name(p, "scoped") ? JX_BLOCK_SCOPED : 0;
    if (jp_skip_name(p, "required"))
        n->op |= JX_BLOCK_REQUIRED;
    parse_function_body(p, n, "endblock");
    for (uint32_t i = 0; (n->op & JX_BLOCK_REQUIRED) && i < n->body.n; i++)
        if (n->body.v[i]->kind != N_DATA || jx_strip(p->c, n->body.v[i]->text, JX_ABSENT, 1)->len)
            jx_error(p->c, "Required blocks can only contain comments or whitespace");
    if (p->t->kind == T_NAME && jx_str_eq(p->t->s, n->text))
        jp_take(p);
    return n;
}

/* Output is never escaped here, so only "false" says something that is true. */
static jx_node *parse_autoescape(parser *p)
{
    jx_node *n = jp_node(p, N_SCOPE);
    const jx_node *on = jp_expr(p);
    if (on->kind != N_CONST || (on->value.kind != JX_NONE && (on->value.kind != JX_BOOL || on->value.b)))
        jx_error(p->c, "the tag 'autoescape' is not supported but with 'false': a chat template is not escaped");
    n->body = parse_until(p, "endautoescape");
    return n;
}

static jx_node *parse_generation(parser *p)
{
    /* transformers' tag for training masks; its body is a scope of its own */
    jx_node *n = jp_node(p, N_SCOPE);
    parse_function_body(p, n, "endgeneration");
    return n;
}

static jx_node *parse_loop_control(parser *p, jx_node_kind kind)
{
    if (!p->loops)
        jx_error(p->c, "'%s' outside loop", kind == N_BREAK ? "break" : "continue");
    return jp_node(p, kind);
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
    jx_node *n = jp_node(p, N_SCOPE); /* without a scope: a plain group */
    node_list l = {0};
    while (p->t->kind != T_BLOCK_END) {
        if (l.n)
            jp_expect_op(p, ",");
        jx_node *out = jp_node(p, N_OUTPUT);
        out->expr = jp_expr(p);
        jp_push(p, &l, out);
    }
    n->body = jp_done(&l);
    n->op = 1;
    return n;
}

static bool skip_context(parser *p)
{
    if ((!jp_is_name(p->t, "with") && !jp_is_name(p->t, "without")) || !jp_is_name(p->t + 1, "context"))
        return false;
    jp_take(p);
    jp_take(p);
    return true;
}

static jx_node *other_template(parser *p, const char *tag)
{
    jx_node *n = jp_node(p, N_OTHER_TEMPLATE);
    n->text = jx_str_lit(p->c, tag);
    n->expr = jp_expr(p);
    return n;
}

static jx_node *parse_include(parser *p)
{
    jx_node *n = other_template(p, "include");
    if (jp_is_name(p->t, "ignore") && jp_is_name(p->t + 1, "missing")) {
        jp_take(p);
        jp_take(p);
    }
    skip_context(p);
    return n;
}

static jx_node *parse_extends(parser *p)
{
    return other_template(p, "extends");
}

static jx_node *parse_import(parser *p)
{
    jx_node *n = other_template(p, "import");
    jp_expect_word(p, "as");
    parse_name_target(p);
    skip_context(p);
    return n;
}

static jx_node *parse_from(parser *p)
{
    jx_node *n = other_template(p, "from");
    jp_expect_word(p, "import");
    for (bool first = true;; first = false) {
        if (!first)
            jp_expect_op(p, ",");
        if (skip_context(p))
            return n;
        const jx_str *name = parse_name_target(p)->name;
        if (*name->data == '_')
            jx_error(p->c, "names starting with an underline can not be imported");
        if (jp_skip_name(p, "as"))
            parse_name_target(p);
        if (skip_context(p) || !jp_is_op(p, ","))
            return n;
    }
}

static jx_node *parse_statement(parser *p)
{
    static const struct {
        const char *tag;
        jx_node *(*parse)(parser *p);
    } tags[] = {
        {"if", parse_if},
        {"set", parse_set},
        {"for", parse_for},
        {"macro", parse_macro},
        {"call", parse_call_block},
        {"filter", parse_filter_block},
        {"with", parse_with},
        {"block", parse_block},
        {"print", parse_print},
        {"generation", parse_generation},
        {"break", parse_break},
        {"continue", parse_continue},
        {"autoescape", parse_autoescape},
        {"include", parse_include},
        {"extends", parse_extends},
        {"import", parse_import},
        {"from", parse_from},
    };
    if (p->t->kind != T_NAME)
        jx_error(p->c, "tag name expected");
    for (size_t i = 0; i < XD_ARRAY_LEN(tags); i++)
        if (jp_skip_name(p, tags[i].tag)) {
            JX_ENTER(p->c);
            jx_node *n = tags[i].parse(p);
            JX_LEAVE(p->c);
            return n;
        }
    jx_error(p->c, "Encountered unknown tag '%s'.", jx_token_text(p->c, p->t));
}

jx_body jp_body(parser *p, const char *const *ends)
{
    node_list l = {0};
    while (p->t->kind != T_EOF) {
        jx_node *n;
        if (p->t->kind == T_DATA) {
            n = jp_node(p, N_DATA);
            n->text = p->t->s;
            jp_take(p);
        } else if (p->t->kind == T_VAR_BEGIN) {
            jp_take(p);
            n = jp_node(p, N_OUTPUT);
            n->expr = jp_tuple(p, (tuple_rule){0});
            jp_expect_kind(p, T_VAR_END);
        } else {
            jp_take(p);
            for (const char *const *e = ends; e && *e; e++)
                if (jp_is_name(p->t, *e))
                    return jp_done(&l);
            n = parse_statement(p);
            end_tag(p);
        }
        jp_push(p, &l, n);
    }
    return jp_done(&l);
}
