/* eval.c - walking the tree: statements write to c->out, expressions yield values.
 *
 * Variables live in frames laid out by scope.c. A loop uses one frame for all its iterations, whose variables start afresh in each,
 * as in the Python that jinja2 compiles to. */
#include <string.h>

#include "api/jinja/jinja_priv.h"

typedef enum flow { FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE } flow;

struct jx_loop {
    const jx_node *node;
    jx_frame *parent, *test_frame;
    jx_iter it;
    jx_value after, current, before, changed; /* JX_MISSING: none */
    jx_int index0, length;                    /* length -1: not asked for yet */
    jx_int depth0;
};

static jx_value eval(jx *c, jx_frame *f, const jx_node *n);
static flow exec_body(jx *c, jx_frame *f, jx_body b);

/* ---- frames ---- */

static jx_value resolve(jx *c, const jx_str *name)
{
    const jx_value *v = jx_dict_get(c, c->vars, JX_STRV(name));
    if (jx_str_is(name, "self"))
        return (jx_value){.kind = JX_SELF};
    if (v)
        return *v;
    const jx_func *fn = jx_find_global(name);
    return fn ? jx_bind(c, fn, JX_ABSENT) : JX_ABSENT;
}

static jx_frame *outer_frame(jx_frame *f, uint32_t hops)
{
    while (hops--)
        f = f->parent;
    return f;
}

/* Gives every variable but the parameters its first value. */
static void start_frame(jx *c, jx_frame *f, const jx_scope *s)
{
    jx_charge(c, s->n / 4);
    for (uint32_t i = 0; i < s->n; i++) {
        const jx_symbol *sym = &s->v[i];
        switch (sym->load) {
        case JX_SYM_PARAM: break;
        case JX_SYM_RESOLVE: f->slots[i] = resolve(c, sym->name); break;
        case JX_SYM_ALIAS: f->slots[i] = outer_frame(f, sym->hops)->slots[sym->slot]; break;
        case JX_SYM_UNDEFINED: f->slots[i] = JX_ABSENT; break;
        }
    }
}

static jx_frame *new_frame(jx *c, const jx_scope *s, jx_frame *parent)
{
    jx_frame *f = jx_alloc_array(c, 1, sizeof *f + s->n * sizeof f->slots[0]);
    f->parent = parent;
    return f;
}

static jx_frame *enter(jx *c, const jx_scope *s, jx_frame *parent)
{
    jx_frame *f = new_frame(c, s, parent);
    start_frame(c, f, s);
    return f;
}

static void assign(jx *c, jx_frame *f, const jx_node *target, jx_value v)
{
    if (target->kind == N_NAME) {
        f->slots[target->slot] = v;
        return;
    }
    if (target->kind == N_NSREF) {
        jx_value ns = outer_frame(f, target->hops)->slots[target->slot];
        if (ns.kind != JX_NAMESPACE)
            jx_error(c, "cannot assign attribute on non-namespace object");
        jx_dict_set(c, ns.d, JX_STRV(target->attr), v);
        return;
    }
    if (v.kind == JX_UNDEFINED && target->items.n)
        jx_error(c, "not enough values to unpack (expected %u, got 0)", target->items.n);
    if (!jx_iterable(v))
        jx_error(c, "cannot unpack non-iterable %s object", jx_type_name(v));
    jx_vec values = {0};
    jx_iter it = jx_iter_open(c, v);
    jx_value item;
    while (values.n <= target->items.n && jx_iter_next(c, &it, &item))
        jx_push(c, &values, item);
    if (values.n > target->items.n)
        jx_error(c, "too many values to unpack (expected %u)", target->items.n);
    if (values.n < target->items.n)
        jx_error(c, "not enough values to unpack (expected %u, got %zu)", target->items.n, values.n);
    JX_ENTER(c);
    for (uint32_t i = 0; i < target->items.n; i++)
        assign(c, f, target->items.v[i], values.v[i]);
    JX_LEAVE(c);
}

/* ---- expressions ---- */

static jx_args eval_args(jx *c, jx_frame *f, const jx_call_args *n, const jx_value *caller)
{
    jx_vec pos = {0};
    jx_args a = {0};
    for (uint32_t i = 0; i < n->n; i++)
        jx_push(c, &pos, eval(c, f, n->v[i]));
    jx_value item;
    if (n->star) {
        jx_iter it = jx_iter_open(c, eval(c, f, n->star));
        while (jx_iter_next(c, &it, &item))
            jx_push(c, &pos, item);
    }
    a.v = pos.v;
    a.n = pos.n;
    if (!n->n_kw && !n->star_star && !caller)
        return a;
    jx_dict *kw = jx_dict_new(c, n->n_kw);
    for (uint32_t i = 0; i < n->n_kw; i++)
        jx_dict_set(c, kw, JX_STRV(n->kw_names[i]), eval(c, f, n->kw_values[i]));
    if (caller)
        jx_dict_set(c, kw, JX_STRV(jx_str_lit(c, "caller")), *caller);
    if (n->star_star) {
        jx_value more = eval(c, f, n->star_star);
        if (more.kind != JX_DICT)
            jx_error(c, "argument after ** must be a mapping, not %s", jx_type_name(more));
        for (size_t i = 0; i < more.d->n; i++) {
            jx_pair p = more.d->v[i];
            jx_need_str(c, p.key, "keywords");
            if (jx_dict_get(c, kw, p.key))
                jx_error(c, "got multiple values for a keyword argument");
            jx_dict_set(c, kw, p.key, p.value);
        }
    }
    a.kw = kw->v;
    a.n_kw = kw->n;
    return a;
}

static jx_value eval_compare(jx *c, jx_frame *f, const jx_node *n)
{
    jx_value left = eval(c, f, n->a);
    for (uint32_t i = 0; i < n->items.n; i++) {
        jx_value right = eval(c, f, n->items.v[i]);
        if (!jx_compare_op(c, (jx_op)n->ops[i], left, right))
            return JX_BOOLV(false);
        left = right;
    }
    return JX_BOOLV(true);
}

static jx_value eval_list(jx *c, jx_frame *f, const jx_node *n)
{
    jx_list *l = jx_list_new(c, n->items.n);
    for (uint32_t i = 0; i < n->items.n; i++)
        l->v[i] = eval(c, f, n->items.v[i]);
    return (jx_value){.kind = n->kind == N_TUPLE ? JX_TUPLE : JX_LIST, .l = l};
}

static jx_value eval_dict(jx *c, jx_frame *f, const jx_node *n)
{
    jx_dict *d = jx_dict_new(c, n->items.n / 2);
    for (uint32_t i = 0; i + 1 < n->items.n; i += 2) {
        jx_value key = eval(c, f, n->items.v[i]);
        jx_dict_set(c, d, key, eval(c, f, n->items.v[i + 1]));
    }
    return (jx_value){.kind = JX_DICT, .d = d};
}

static jx_value eval_concat(jx *c, jx_frame *f, const jx_node *n)
{
    const jx_str *s = jx_str_lit(c, "");
    for (uint32_t i = 0; i < n->items.n; i++)
        s = jx_str_concat(c, s, jx_str_markup(c, jx_to_str(c, eval(c, f, n->items.v[i])), false));
    return JX_STRV(s);
}

static jx_value eval_getitem(jx *c, jx_frame *f, const jx_node *n)
{
    jx_value of = eval(c, f, n->a);
    if (n->b->kind != N_SLICE)
        return jx_getitem(c, of, eval(c, f, n->b));
    jx_value part[3];
    const jx_node *nodes[3] = {n->b->a, n->b->b, n->b->c};
    for (size_t i = 0; i < 3; i++)
        part[i] = nodes[i] ? eval(c, f, nodes[i]) : JX_NIL;
    return jx_slice(c, of, part[0], part[1], part[2]);
}

static jx_value eval_filter(jx *c, jx_frame *f, const jx_node *n)
{
    bool test = n->kind == N_TEST;
    jx_value of = n->a ? eval(c, f, n->a) : c->filter_input;
    if (!n->fn)
        jx_error(c, "No %s named '%.*s' found.", test ? "test" : "filter", (int)XD_MIN(n->name->len, (size_t)100),
                 n->name->data);
    jx_args a = eval_args(c, f, n->args, NULL);
    return jx_call_func(c, n->fn, test ? "test" : "filter", of, &a);
}

static jx_value eval_call(jx *c, jx_frame *f, const jx_node *n, const jx_value *caller)
{
    jx_value callee = eval(c, f, n->a);
    jx_args a = eval_args(c, f, n->args, caller);
    c->line = n->line;
    return jx_call(c, callee, &a);
}

static jx_value eval_cond(jx *c, jx_frame *f, const jx_node *n)
{
    if (jx_truth(c, eval(c, f, n->a)))
        return eval(c, f, n->b);
    if (n->c)
        return eval(c, f, n->c);
    return jx_undefined(c, "the inline if-expression evaluated to false and no else section was defined.");
}

static jx_value eval_name(jx *c, jx_frame *f, const jx_node *n)
{
    jx_value v = outer_frame(f, n->hops)->slots[n->slot];
    return v.kind == JX_MISSING ? jx_undefined_name(c, n->name) : v;
}

static jx_value eval(jx *c, jx_frame *f, const jx_node *n)
{
    jx_charge(c, 1);
    jx_value v = JX_NIL;
    switch (n->kind) { /* leaves first: they need no depth */
    case N_CONST: return n->value;
    case N_NAME: return eval_name(c, f, n);
    default: break;
    }
    JX_ENTER(c);
    c->line = n->line;
    switch (n->kind) {
    case N_TUPLE:
    case N_LIST: v = eval_list(c, f, n); break;
    case N_DICT: v = eval_dict(c, f, n); break;
    case N_COND: v = eval_cond(c, f, n); break;
    case N_AND:
        v = eval(c, f, n->a);
        if (jx_truth(c, v))
            v = eval(c, f, n->b);
        break;
    case N_OR:
        v = eval(c, f, n->a);
        if (!jx_truth(c, v))
            v = eval(c, f, n->b);
        break;
    case N_NOT: v = JX_BOOLV(!jx_truth(c, eval(c, f, n->a))); break;
    case N_COMPARE: v = eval_compare(c, f, n); break;
    case N_BINARY: {
        jx_value a = eval(c, f, n->a), b = eval(c, f, n->b);
        v = jx_binary(c, (jx_op)n->op, a, b);
        v.client = a.client || b.client;
        break;
    }
    case N_NEG:
    case N_POS: v = jx_negate(c, eval(c, f, n->a), n->kind == N_NEG); break;
    case N_CONCAT: v = eval_concat(c, f, n); break;
    case N_GETATTR: v = jx_getattr(c, eval(c, f, n->a), n->name); break;
    case N_GETITEM: v = eval_getitem(c, f, n); break;
    case N_CALL: v = eval_call(c, f, n, NULL); break;
    case N_FILTER:
    case N_TEST: v = eval_filter(c, f, n); break;
    default: jx_error(c, "not an expression");
    }
    JX_LEAVE(c);
    return v;
}

/* ---- loops ---- */

static bool loop_fetch(jx *c, jx_loop *l, jx_value *ret)
{
    const jx_node *n = l->node;
    while (jx_iter_next(c, &l->it, ret)) {
        if (!l->test_frame)
            return true;
        assign(c, l->test_frame, n->target, *ret);
        if (jx_truth(c, eval(c, l->test_frame, n->test)))
            return true;
    }
    return false;
}

static jx_value loop_peek(jx *c, jx_loop *l)
{
    if (l->after.kind == JX_MISSING && !loop_fetch(c, l, &l->after))
        l->after = JX_ABSENT;
    return l->after;
}

static bool loop_next(jx *c, jx_loop *l, jx_value *ret)
{
    if (l->after.kind != JX_MISSING) {
        *ret = l->after;
        l->after = JX_ABSENT;
    } else if (!loop_fetch(c, l, ret)) {
        return false;
    }
    l->index0++;
    l->before = l->current;
    l->current = *ret;
    return true;
}

static jx_int loop_length(jx *c, jx_loop *l)
{
    size_t n;
    if (l->length >= 0)
        return l->length;
    if (!l->test_frame && jx_len(l->it.of, &n)) {
        l->length = (jx_int)n;
        return l->length;
    }
    jx_vec rest = {0}; /* the items that are left must be known to be counted */
    jx_value item;
    while (loop_fetch(c, l, &item))
        jx_push(c, &rest, item);
    l->length = (jx_int)rest.n + l->index0 + 1 + (l->after.kind != JX_MISSING);
    l->it = jx_iter_open(c, jx_vec_list(c, &rest, JX_LIST));
    l->test_frame = NULL; /* they have passed the test */
    return l->length;
}

static jx_value loop_cycle(jx *c, jx_value self, jx_args *a)
{
    if (!a->n || a->n_kw)
        jx_error(c, "no items for cycling given");
    return a->v[self.loop->index0 % (jx_int)a->n];
}

static jx_value loop_changed(jx *c, jx_value self, jx_args *a)
{
    jx_vec l = {.v = a->v, .n = a->n};
    jx_value now = jx_vec_list(c, &l, JX_TUPLE);
    if (self.loop->changed.kind != JX_MISSING && jx_equal(c, self.loop->changed, now))
        return JX_BOOLV(false);
    self.loop->changed = now;
    return JX_BOOLV(true);
}

jx_value jx_loop_attr(jx *c, jx_loop *l, const jx_str *name)
{
    static const jx_func cycle = {"cycle", loop_cycle, NULL}, changed = {"changed", loop_changed, NULL};
    jx_value self = {.kind = JX_LOOP, .loop = l};
    if (jx_str_is(name, "index"))
        return JX_INTV(l->index0 + 1);
    if (jx_str_is(name, "index0"))
        return JX_INTV(l->index0);
    if (jx_str_is(name, "first"))
        return JX_BOOLV(l->index0 == 0);
    if (jx_str_is(name, "last"))
        return JX_BOOLV(loop_peek(c, l).kind == JX_MISSING);
    if (jx_str_is(name, "length"))
        return JX_INTV(loop_length(c, l));
    if (jx_str_is(name, "revindex"))
        return JX_INTV(loop_length(c, l) - l->index0);
    if (jx_str_is(name, "revindex0"))
        return JX_INTV(loop_length(c, l) - l->index0 - 1);
    if (jx_str_is(name, "previtem"))
        return l->index0 == 0 ? jx_undefined(c, "there is no previous item") : l->before;
    if (jx_str_is(name, "nextitem")) {
        jx_value next = loop_peek(c, l);
        return next.kind == JX_MISSING ? jx_undefined(c, "there is no next item") : next;
    }
    if (jx_str_is(name, "depth"))
        return JX_INTV(l->depth0 + 1);
    if (jx_str_is(name, "depth0"))
        return JX_INTV(l->depth0);
    if (jx_str_is(name, "cycle"))
        return jx_bind(c, &cycle, self);
    if (jx_str_is(name, "changed"))
        return jx_bind(c, &changed, self);
    return jx_undefined_attr(c, self, JX_STRV(name));
}

static flow run_loop(jx *c, jx_frame *f, const jx_node *n, jx_value iterable, jx_int depth0)
{
    jx_loop *l = JX_NEW(c, jx_loop);
    l->node = n;
    l->parent = f;
    l->it = jx_iter_open(c, iterable);
    l->index0 = -1;
    l->length = -1;
    l->depth0 = depth0;
    if (n->test)
        l->test_frame = enter(c, n->test_scope, f);
    jx_frame *body = new_frame(c, n->scope, f);
    body->slots[n->special[0]] = (jx_value){.kind = JX_LOOP, .loop = l};
    jx_value item;
    bool finished_one = false; /* `continue` and `break` skip what jinja2 does at the end of a body: then "else" runs */
    while (loop_next(c, l, &item)) {
        start_frame(c, body, n->scope);
        assign(c, body, n->target, item);
        flow how = exec_body(c, body, n->body);
        if (how == FLOW_BREAK)
            break;
        if (how == FLOW_NEXT)
            finished_one = true;
    }
    if (finished_one || !n->other.n)
        return FLOW_NEXT;
    return exec_body(c, enter(c, n->else_scope, f), n->other);
}

jx_value jx_loop_call(jx *c, jx_loop *l, jx_value iterable)
{
    if (!l->node->op)
        jx_error(c, "The loop must have the 'recursive' marker to be called recursively.");
    jx_sb b = {0}, *out = c->out;
    c->out = &b;
    JX_ENTER(c);
    run_loop(c, l->parent, l->node, iterable, l->depth0 + 1);
    JX_LEAVE(c);
    c->out = out;
    return JX_STRV(jx_sb_done(c, &b));
}

/* ---- macros ---- */

static const char *macro_name(jx *c, const jx_node *n)
{
    return n->kind == N_MACRO ? jx_repr_text(c, JX_STRV(n->text)) : "None";
}

jx_value jx_macro_call(jx *c, const jx_macro *m, jx_args *a)
{
    const jx_node *n = m->node;
    jx_frame *f = new_frame(c, n->scope, m->frame);
    uint32_t n_params = n->params.n;
    jx_dict *rest = jx_dict_new(c, a->n_kw);
    bool found_caller = false;
    for (uint32_t i = 0; i < n_params; i++)
        f->slots[i] = i < a->n ? a->v[i] : JX_ABSENT;
    for (size_t k = 0; k < a->n_kw; k++) {
        bool taken = false;
        for (uint32_t i = (uint32_t)XD_MIN(a->n, n_params); i < n_params && !taken; i++)
            if (jx_str_eq(n->params.v[i]->name, a->kw[k].key.s)) {
                f->slots[i] = a->kw[k].value;
                taken = true;
            }
        if (!taken && n->special[0] >= 0 && jx_str_is(a->kw[k].key.s, "caller")) {
            f->slots[n->special[0]] = a->kw[k].value;
            found_caller = taken = true;
        }
        if (!taken)
            jx_dict_set(c, rest, a->kw[k].key, a->kw[k].value);
    }
    if (n->special[0] >= 0 && (!found_caller || f->slots[n->special[0]].kind == JX_NONE))
        f->slots[n->special[0]] = jx_undefined(c, "No caller defined");
    if (n->special[1] >= 0)
        f->slots[n->special[1]] = (jx_value){.kind = JX_DICT, .d = rest};
    else if (rest->n)
        jx_error(c, "macro %s takes no keyword argument %s", macro_name(c, n), jx_repr_text(c, rest->v[0].key));
    jx_vec extra = {0};
    for (size_t i = n_params; i < a->n; i++)
        jx_push(c, &extra, a->v[i]);
    if (n->special[2] >= 0)
        f->slots[n->special[2]] = jx_vec_list(c, &extra, JX_TUPLE);
    else if (extra.n)
        jx_error(c, "macro %s takes not more than %u argument(s)", macro_name(c, n), n_params);

    JX_ENTER(c);
    start_frame(c, f, n->scope);
    for (uint32_t i = 0; i < n_params; i++) {
        if (f->slots[i].kind != JX_MISSING)
            continue;
        uint32_t without = n_params - n->defaults.n;
        f->slots[i] =
            i >= without ? eval(c, f, n->defaults.v[i - without]) : jx_undefined_name(c, n->params.v[i]->name);
    }
    jx_sb b = {0}, *out = c->out;
    c->out = &b;
    exec_body(c, f, n->body);
    c->out = out;
    JX_LEAVE(c);
    return JX_STRV(jx_sb_done(c, &b));
}

static jx_value make_macro(jx *c, jx_frame *f, const jx_node *n)
{
    jx_macro *m = JX_NEW(c, jx_macro);
    m->node = n;
    m->frame = f;
    return (jx_value){.kind = JX_MACRO, .macro = m};
}

/* ---- statements ---- */

/* What the calls and filters of blocks yield is joined with the rest of the output: Python's join takes nothing but str. */
static void put_str(jx *c, jx_value v)
{
    if (v.kind != JX_STR)
        jx_error(c, "sequence item: expected str instance, %s found", jx_type_name(v));
    jx_sb_str(c, c->out, v.s);
}

/* Runs a body into a string. */
static flow capture(jx *c, jx_frame *f, jx_body body, const jx_str **ret)
{
    jx_sb b = {0}, *out = c->out;
    c->out = &b;
    flow how = exec_body(c, f, body);
    c->out = out;
    *ret = jx_sb_done(c, &b);
    return how;
}

static flow exec_set_block(jx *c, jx_frame *f, const jx_node *n)
{
    jx_frame *inner = enter(c, n->scope, f);
    const jx_str *text;
    flow how = capture(c, inner, n->body, &text);
    if (how != FLOW_NEXT)
        return how;
    jx_value v = JX_STRV(text);
    if (n->expr) {
        c->filter_input = v;
        v = eval(c, inner, n->expr);
    }
    assign(c, f, n->target, v);
    return FLOW_NEXT;
}

static flow exec_filter_block(jx *c, jx_frame *f, const jx_node *n)
{
    jx_frame *inner = enter(c, n->scope, f);
    const jx_str *text;
    flow how = capture(c, inner, n->body, &text);
    if (how != FLOW_NEXT)
        return how;
    c->filter_input = JX_STRV(text);
    put_str(c, eval(c, inner, n->expr));
    return FLOW_NEXT;
}

static flow exec_if(jx *c, jx_frame *f, const jx_node *n)
{
    for (;;) {
        c->line = n->line;
        if (jx_truth(c, eval(c, f, n->test)))
            return exec_body(c, f, n->body);
        if (n->other.n != 1 || n->other.v[0]->kind != N_IF || !n->other.v[0]->op)
            return exec_body(c, f, n->other);
        n = n->other.v[0];
    }
}

static flow exec_for(jx *c, jx_frame *f, const jx_node *n)
{
    jx_value iterable = eval(c, f, n->expr);
    return run_loop(c, f, n, iterable, 0);
}

static flow exec_with(jx *c, jx_frame *f, const jx_node *n)
{
    jx_frame *inner = enter(c, n->scope, f);
    for (uint32_t i = 0; i < n->params.n; i++)
        assign(c, inner, n->params.v[i], eval(c, f, n->defaults.v[i]));
    return exec_body(c, inner, n->body);
}

static void exec_call_block(jx *c, jx_frame *f, const jx_node *n)
{
    jx_value caller = make_macro(c, f, n);
    put_str(c, eval_call(c, f, n->expr, &caller));
}

static flow exec(jx *c, jx_frame *f, const jx_node *n)
{
    jx_charge(c, 1);
    c->line = n->line;
    switch (n->kind) {
    case N_DATA: jx_sb_str(c, c->out, n->text); return FLOW_NEXT;
    case N_OUTPUT: jx_print(c, c->out, eval(c, f, n->expr)); return FLOW_NEXT;
    case N_SET: assign(c, f, n->target, eval(c, f, n->expr)); return FLOW_NEXT;
    case N_SET_BLOCK: return exec_set_block(c, f, n);
    case N_FOR: return exec_for(c, f, n);
    case N_IF: return exec_if(c, f, n);
    case N_MACRO: f->slots[n->self_slot] = make_macro(c, f, n); return FLOW_NEXT;
    case N_CALL_BLOCK: exec_call_block(c, f, n); return FLOW_NEXT;
    case N_FILTER_BLOCK: return exec_filter_block(c, f, n);
    case N_WITH: return exec_with(c, f, n);
    case N_SCOPE: return exec_body(c, n->op ? f : enter(c, n->scope, f), n->body);
    case N_BLOCK:
        if (n->op & JX_BLOCK_REQUIRED)
            jx_error(c, "Required block '%.*s' not found", (int)XD_MIN(n->text->len, (size_t)100), n->text->data);
        return exec_body(c, enter(c, n->scope, n->op & JX_BLOCK_SCOPED ? f : c->root), n->body);
    case N_BREAK: return FLOW_BREAK;
    case N_CONTINUE: return FLOW_CONTINUE;
    case N_OTHER_TEMPLATE:
        eval(c, f, n->expr);
        jx_error(c, "the tag '%.*s' is not supported: a chat template stands alone", (int)n->text->len, n->text->data);
    default: jx_error(c, "not a statement");
    }
}

jx_value jx_block_call(jx *c, const jx_node *block)
{
    if (block->op & JX_BLOCK_SCOPED)
        jx_error(c, "self.%.*s(): a scoped block is not supported here", (int)XD_MIN(block->text->len, (size_t)100),
                 block->text->data);
    const jx_str *text;
    capture(c, enter(c, block->scope, c->root), block->body, &text);
    return JX_STRV(text);
}

static flow exec_body(jx *c, jx_frame *f, jx_body b)
{
    flow how = FLOW_NEXT;
    JX_ENTER(c);
    for (uint32_t i = 0; i < b.n && how == FLOW_NEXT; i++)
        how = exec(c, f, b.v[i]);
    JX_LEAVE(c);
    return how;
}

void jx_exec_template(jx *c, const jinja_template *t)
{
    c->t = t;
    c->root = new_frame(c, t->scope, NULL);
    start_frame(c, c->root, t->scope);
    exec_body(c, c->root, t->body);
}
