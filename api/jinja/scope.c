/* scope.c - which variable a name means: jinja2's idtracking.
 *
 * Each frame (template, macro, loop body, with, set block ...) has slots for the names that it defines or that nothing around it
 * knows. First a scope's own statements are searched for names, without entering inner frames; then its names are resolved and the
 * inner frames are treated the same way. How a slot starts is decided by its first mention: read first (or written inside an if):
 * looked up in the render's variables; written first: undefined; known outside and written here: a copy of the outer one. */
#include <string.h>

#include "api/jinja/jinja_priv.h"

enum { MAX_NAMES = 1000 }; /* in one scope; searched linearly */

typedef struct resolver {
    jx *c;
    jinja_template *t;
    size_t names_cap, blocks_cap;
    bool resolving; /* second pass: write hops and slots */
    bool soft;      /* directly in an if: an unknown filter is an error only when it is reached */
    unsigned ifs;
} resolver;

static void visit_expr(resolver *r, jx_scope *s, jx_node *n);
static void resolve_scope(resolver *r, jx_scope *s, jx_body body);

static bool find_own(const jx_scope *s, const jx_str *name, uint32_t *slot)
{
    for (uint32_t i = 0; i < s->n; i++)
        if (jx_str_eq(s->v[i].name, name)) {
            *slot = i;
            return true;
        }
    return false;
}

static bool find(const jx_scope *s, const jx_str *name, uint32_t *hops, uint32_t *slot)
{
    *hops = 0;
    for (; s; s = s->parent, (*hops)++)
        if (find_own(s, name, slot))
            return true;
    return false;
}

static jx_symbol *define(resolver *r, jx_scope *s, const jx_str *name)
{
    if (s->n == MAX_NAMES)
        jx_error(r->c, "more than %d variables in one scope", MAX_NAMES);
    if (s->n == s->cap) {
        uint32_t cap = s->cap ? 2 * s->cap : 8;
        s->v = jx_realloc(r->c, s->v, s->cap * sizeof *s->v, cap * sizeof *s->v);
        s->cap = cap;
    }
    s->v[s->n] = (jx_symbol){.name = name};
    return &s->v[s->n++];
}

static uint32_t declare_param(resolver *r, jx_scope *s, const jx_str *name)
{
    uint32_t slot;
    if (!find_own(s, name, &slot)) {
        define(r, s, name);
        slot = s->n - 1;
    }
    s->v[slot].load = JX_SYM_PARAM;
    return slot;
}

static void note_variable(resolver *r, const jx_str *name)
{
    jinja_template *t = r->t;
    for (size_t i = 0; i < t->n_names; i++)
        if (jx_str_eq(t->names[i], name))
            return;
    if (t->n_names == MAX_NAMES)
        jx_error(r->c, "more than %d variables", MAX_NAMES);
    if (t->n_names == r->names_cap) {
        size_t cap = r->names_cap ? 2 * r->names_cap : 16;
        t->names = jx_realloc(r->c, t->names, r->names_cap * sizeof *t->names, cap * sizeof *t->names);
        r->names_cap = cap;
    }
    t->names[t->n_names++] = name;
}

static void load(resolver *r, jx_scope *s, jx_node *n)
{
    jx_charge(r->c, 1 + s->n / 16);
    uint32_t hops, slot;
    if (!find(s, n->name, &hops, &slot)) {
        define(r, s, n->name)->load = JX_SYM_RESOLVE;
        note_variable(r, n->name);
        hops = 0;
        slot = s->n - 1;
    }
    n->hops = hops;
    n->slot = slot;
}

static uint32_t store(resolver *r, jx_scope *s, const jx_str *name)
{
    jx_charge(r->c, 1 + s->n / 16);
    uint32_t hops, slot;
    if (find_own(s, name, &slot))
        return slot;
    bool outer = s->parent && find(s->parent, name, &hops, &slot);
    jx_symbol *sym = define(r, s, name);
    if (outer) {
        sym->load = JX_SYM_ALIAS;
        sym->hops = hops + 1;
        sym->slot = slot;
    } else if (r->ifs) {
        sym->load = JX_SYM_RESOLVE;
        note_variable(r, name);
    } else {
        sym->load = JX_SYM_UNDEFINED;
    }
    return s->n - 1;
}

static void visit_target(resolver *r, jx_scope *s, jx_node *n)
{
    if (n->kind == N_TUPLE) {
        for (uint32_t i = 0; i < n->items.n; i++)
            visit_target(r, s, n->items.v[i]);
    } else if (n->kind == N_NSREF) {
        load(r, s, n);
    } else {
        n->slot = store(r, s, n->name);
        n->hops = 0;
    }
}

/* A target whose names belong to the new scope s, as a loop's do. */
static void declare_target(resolver *r, jx_scope *s, jx_node *n)
{
    if (n->kind == N_TUPLE) {
        for (uint32_t i = 0; i < n->items.n; i++)
            declare_target(r, s, n->items.v[i]);
    } else {
        n->slot = declare_param(r, s, n->name);
        n->hops = 0;
    }
}

static void visit_list(resolver *r, jx_scope *s, jx_body b)
{
    for (uint32_t i = 0; i < b.n; i++)
        visit_expr(r, s, b.v[i]);
}

static void visit_args(resolver *r, jx_scope *s, const jx_call_args *a)
{
    for (uint32_t i = 0; i < a->n; i++)
        visit_expr(r, s, a->v[i]);
    for (uint32_t i = 0; i < a->n_kw; i++)
        visit_expr(r, s, a->kw_values[i]);
    visit_expr(r, s, a->star);
    visit_expr(r, s, a->star_star);
}

static void visit_expr(resolver *r, jx_scope *s, jx_node *n)
{
    if (!n)
        return;
    bool soft = r->soft;
    switch (n->kind) {
    case N_NAME: load(r, s, n); return;
    case N_COND: r->soft = true; break;
    case N_AND:
    case N_OR: /* behind a constant that decides, jinja2 generates no code */
        r->soft = soft || (n->a->kind == N_CONST && jx_truth(r->c, n->a->value) == (n->kind == N_OR));
        break;
    case N_FILTER:
    case N_TEST:
        if (!n->fn && !soft && r->resolving) {
            r->c->line = n->line;
            jx_error(r->c, "No %s named '%.*s'.", n->kind == N_FILTER ? "filter" : "test",
                     (int)XD_MIN(n->name->len, (size_t)100), n->name->data);
        }
        break;
    default: break;
    }
    visit_expr(r, s, n->a);
    visit_expr(r, s, n->b);
    visit_expr(r, s, n->c);
    visit_list(r, s, n->items);
    if (n->args)
        visit_args(r, s, n->args);
    r->soft = soft;
}

/* ---- first pass: the names of one scope, without entering inner frames ---- */

static void collect(resolver *r, jx_scope *s, jx_body body)
{
    for (uint32_t i = 0; i < body.n; i++) {
        jx_node *n = body.v[i];
        switch (n->kind) {
        case N_OUTPUT:
        case N_OTHER_TEMPLATE:
        case N_FOR:
        case N_CALL_BLOCK:
        case N_FILTER_BLOCK: visit_expr(r, s, n->expr); break;
        case N_SET:
            visit_expr(r, s, n->expr);
            visit_target(r, s, n->target);
            break;
        case N_SET_BLOCK: visit_target(r, s, n->target); break;
        case N_IF:
            JX_ENTER(r->c);
            for (jx_node *branch = n; branch;) {
                visit_expr(r, s, branch->test);
                r->ifs++;
                collect(r, s, branch->body);
                r->ifs--;
                jx_node *next = branch->other.n == 1 && branch->other.v[0]->kind == N_IF && branch->other.v[0]->op
                                    ? branch->other.v[0]
                                    : NULL;
                if (!next) {
                    r->ifs++;
                    collect(r, s, branch->other);
                    r->ifs--;
                }
                branch = next;
            }
            JX_LEAVE(r->c);
            break;
        case N_MACRO: n->self_slot = store(r, s, n->text); break;
        case N_WITH: visit_list(r, s, n->defaults); break;
        case N_SCOPE:
            if (n->op)
                collect(r, s, n->body);
            break;
        default: break;
        }
    }
}

/* ---- second pass ---- */

static jx_scope *new_scope(resolver *r, jx_scope *parent)
{
    jx_scope *s = JX_NEW(r->c, jx_scope);
    s->parent = parent;
    return s;
}

/* Searches and resolves a body as the statements of s, whose parameters are declared already. */
static void finish_scope(resolver *r, jx_scope *s, jx_body body)
{
    resolver saved = *r;
    r->ifs = 0;
    r->soft = false;
    r->resolving = false;
    collect(r, s, body);
    r->resolving = true;
    resolve_scope(r, s, body);
    r->soft = saved.soft;
    r->ifs = saved.ifs;
}

static jx_scope *function_scope(resolver *r, jx_scope *outer, jx_node *n)
{
    jx_scope *s = new_scope(r, outer);
    for (uint32_t i = 0; i < n->params.n; i++)
        declare_target(r, s, n->params.v[i]);
    bool soft = r->soft;
    r->soft = false;
    visit_list(r, s, n->defaults);
    for (size_t i = 0; i < XD_ARRAY_LEN(n->special); i++) {
        uint32_t slot;
        const jx_str *name = jx_str_lit(r->c, jx_special_names[i]);
        bool own = find_own(s, name, &slot) && slot < n->params.n;
        if (n->special[i] >= 0)
            n->special[i] = own ? -1 : (int32_t)declare_param(r, s, name);
    }
    finish_scope(r, s, n->body);
    r->soft = soft;
    return s;
}

static void resolve_for(resolver *r, jx_scope *s, jx_node *n)
{
    visit_expr(r, s, n->expr);
    const jx_str *hidden = jx_str_lit(r->c, "");
    if (n->test) {
        /* The same slots as in the body's scope, so that one target serves both; but `loop` is the outer one here. */
        n->test_scope = new_scope(r, s);
        declare_param(r, n->test_scope, hidden);
        declare_target(r, n->test_scope, n->target);
        bool soft = r->soft;
        r->soft = false;
        visit_expr(r, n->test_scope, n->test);
        r->soft = soft;
    }
    n->scope = new_scope(r, s);
    n->special[0] = (int32_t)declare_param(r, n->scope, jx_str_lit(r->c, "loop"));
    declare_target(r, n->scope, n->target);
    finish_scope(r, n->scope, n->body);
    n->else_scope = new_scope(r, s);
    finish_scope(r, n->else_scope, n->other);
}

static void note_block(resolver *r, jx_node *n)
{
    jx_body *b = &r->t->blocks;
    r->c->line = n->line;
    for (uint32_t i = 0; i < b->n; i++)
        if (jx_str_eq(b->v[i]->text, n->text))
            jx_error(r->c, "block '%.*s' defined twice", (int)XD_MIN(n->text->len, (size_t)100), n->text->data);
    if (b->n == MAX_NAMES)
        jx_error(r->c, "more than %d blocks", MAX_NAMES);
    if (b->n == r->blocks_cap) {
        uint32_t cap = b->n ? 2 * b->n : 8;
        b->v = jx_realloc(r->c, b->v, b->n * sizeof(jx_node *), cap * sizeof(jx_node *));
        r->blocks_cap = cap;
    }
    b->v[b->n++] = n;
}

static void resolve_statement(resolver *r, jx_scope *s, jx_node *n)
{
    bool soft = r->soft;
    switch (n->kind) {
    case N_OTHER_TEMPLATE:
        if (s->parent && jx_str_is(n->text, "extends")) {
            r->c->line = n->line;
            jx_error(r->c, "cannot use extend from a non top-level scope");
        }
        visit_expr(r, s, n->expr);
        break;
    case N_OUTPUT: visit_expr(r, s, n->expr); break;
    case N_SET:
        visit_expr(r, s, n->expr);
        visit_target(r, s, n->target);
        break;
    case N_SET_BLOCK:
        visit_target(r, s, n->target);
        n->scope = new_scope(r, s);
        finish_scope(r, n->scope, n->body);
        r->soft = false;
        visit_expr(r, n->scope, n->expr);
        break;
    case N_FOR: resolve_for(r, s, n); break;
    case N_IF:
        r->soft = true;
        for (jx_node *branch = n; branch;) {
            visit_expr(r, s, branch->test);
            resolve_scope(r, s, branch->body);
            jx_node *next = branch->other.n == 1 && branch->other.v[0]->kind == N_IF && branch->other.v[0]->op
                                ? branch->other.v[0]
                                : NULL;
            if (!next)
                resolve_scope(r, s, branch->other);
            branch = next;
        }
        break;
    case N_MACRO: n->scope = function_scope(r, s, n); break;
    case N_CALL_BLOCK:
        visit_expr(r, s, n->expr);
        n->scope = function_scope(r, s, n);
        break;
    case N_FILTER_BLOCK:
        n->scope = new_scope(r, s);
        finish_scope(r, n->scope, n->body);
        r->soft = false;
        visit_expr(r, n->scope, n->expr);
        break;
    case N_WITH:
        visit_list(r, s, n->defaults);
        n->scope = new_scope(r, s);
        for (uint32_t i = 0; i < n->params.n; i++)
            declare_target(r, n->scope, n->params.v[i]);
        finish_scope(r, n->scope, n->body);
        break;
    case N_SCOPE:
        if (n->op) {
            resolve_scope(r, s, n->body);
        } else {
            n->scope = new_scope(r, s);
            finish_scope(r, n->scope, n->body);
        }
        break;
    case N_BLOCK:
        note_block(r, n);
        n->scope = new_scope(r, n->op & JX_BLOCK_SCOPED ? s : r->t->scope);
        finish_scope(r, n->scope, n->body);
        break;
    default: break;
    }
    r->soft = soft;
}

static void resolve_scope(resolver *r, jx_scope *s, jx_body body)
{
    JX_ENTER(r->c);
    for (uint32_t i = 0; i < body.n; i++)
        resolve_statement(r, s, body.v[i]);
    JX_LEAVE(r->c);
}

void jx_resolve_names(jx *c, jinja_template *t)
{
    resolver r = {.c = c, .t = t};
    t->scope = new_scope(&r, NULL);
    finish_scope(&r, t->scope, t->body);
}
