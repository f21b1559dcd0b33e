/* grammar_net.c - rules of GBNF to networks: automata over characters and calls of networks. A regular expression is one that calls none.
 *
 * A rule that needs itself, or that is large, becomes a network of its own; all others are copied where they are named, so that what is regular
 * in a grammar is one automaton, and only what is not needs frames (grammar_step.c). In each ring of rules one is enough: where the walk
 * from root comes back to. A network that begins with itself is turned into a repetition (grammar_nfa.c); networks that begin with each
 * other are refused, since to follow them would never take a byte.
 * What comes to no end is no way: rules without one are left out, and what a state needs at least, in frames, is known (height). */
#include <string.h>

#include "engine/text/grammar_gbnf.h"
#include "engine/text/tok_priv.h"

enum {
    COPIED_PLACES = 200, /* a larger rule is called */
    MAX_PLACES = 4000,   /* of a network, before more of what it names is called */
    JOINING_WORK =
        500000, /* for as few states as can be: what counts to thousands has none to spare, and would take long to say so */
    MAX_BEGINNINGS = 200 /* networks that begin with one another: calls of C are as deep */
};

typedef struct net_build {
    gbnf b;
    grammar *g;
    uint32_t *size;   /* [parts] places */
    uint8_t *state;   /* [rules] NEW, OPEN, DONE; then [nets] */
    uint32_t *of_net; /* [nets] its rule */
    uint32_t n_nets;
    uint64_t left;
    xd_err *err;
} net_build;

enum { NEW, OPEN, DONE };

static xd_status fault(net_build *n, uint32_t rule)
{
    return gbnf_why(&n->b, n->b.rule[rule].name, n->b.rule[rule].name_len);
}

static xd_status nomem(net_build *n)
{
    return xd_fail(n->err, XD_NOMEM, 0, "out of memory for a grammar");
}

/* ---- what comes to an end, and what may be nothing ---- */

static bool has_char(const nfa *n, const nfa_part *p)
{
    for (uint32_t i = p->a; i < p->b; i++)
        if (n->set[i].hi > 0 && (n->set[i].lo < 0xD800 || n->set[i].hi > 0xDFFF))
            return true;
    return false;
}

/* Parts come after those of which they are made: one walk a round. Only what names rules may need more. */
static xd_status find_ends(net_build *n)
{
    enum { NULLABLE = 1, PRODUCTIVE = 2 };
    nfa *r = &n->b.n;
    uint8_t *is = calloc(r->n_parts + 1, 1);
    if (!is)
        return nomem(n);
    for (bool changed = true; changed && nfa_spend(r, r->n_parts + n->b.n_rules);) {
        changed = false;
        for (size_t i = 0; i < r->n_parts; i++) {
            const nfa_part *p = &r->part[i];
            const nfa_rule *rule = p->kind == PART_RULE ? &n->b.of[p->a] : NULL;
            switch (p->kind) {
            case PART_SET: is[i] = has_char(r, p) ? PRODUCTIVE : 0; break;
            case PART_CAT: is[i] = is[p->a] & is[p->b]; break;
            case PART_ALT: is[i] = is[p->a] | is[p->b]; break;
            case PART_REPEAT: is[i] = p->min ? is[p->a] : NULLABLE | PRODUCTIVE; break;
            case PART_RULE: is[i] = (rule->nullable ? NULLABLE : 0) | (rule->productive ? PRODUCTIVE : 0); break;
            default: is[i] = NULLABLE | PRODUCTIVE; break;
            }
        }
        for (size_t i = 0; i < n->b.n_rules; i++) {
            nfa_rule *rule = &n->b.of[i];
            bool nullable = is[rule->part] & NULLABLE, productive = is[rule->part] & PRODUCTIVE;
            changed |= nullable != rule->nullable || productive != rule->productive;
            rule->nullable = nullable;
            rule->productive = productive;
        }
    }
    free(is);
    if (r->why)
        return gbnf_why(&n->b, NULL, 0);
    if (!n->b.of[0].productive && n->b.is_regex)
        return gbnf_fault(&n->b, NULL, "the regular expression matches no text");
    return n->b.of[0].productive ? XD_OK : gbnf_fault(&n->b, NULL, "no text of the rule 'root' ever comes to an end");
}

/* ---- which rules are called ---- */

static uint32_t size_of(const net_build *n, const nfa_part *p)
{
    uint64_t a = p->kind >= PART_CAT && p->kind != PART_RULE ? n->size[p->a] : 0, size = 0;
    const nfa_rule *rule = p->kind == PART_RULE ? &n->b.of[p->a] : NULL;
    switch (p->kind) {
    case PART_EMPTY: break;
    case PART_CAT: size = a + n->size[p->b]; break;
    case PART_ALT: size = a + n->size[p->b] + 1; break;
    case PART_REPEAT: size = p->max == UINT32_MAX ? a * XD_MAX(p->min, 1u) + 1 : (a + 1) * p->max; break;
    case PART_RULE: size = rule->net == GRAM_NONE ? n->size[rule->part] + (uint64_t)1 : 2; break;
    default: size = 1; break;
    }
    return (uint32_t)XD_MIN(size, 1u << 30);
}

/* The places that a rule will have. It names rules that are DONE, or that are called. */
static uint32_t measure(net_build *n, uint32_t rule)
{
    const gbnf_rule *r = &n->b.rule[rule];
    nfa_spend(&n->b.n, r->end - r->first);
    for (uint32_t i = r->first; i < r->end; i++)
        n->size[i] = size_of(n, &n->b.n.part[i]);
    return n->size[n->b.of[rule].part];
}

/* All that it names is DONE or OPEN. */
static void close_rule(net_build *n, uint32_t rule)
{
    const gbnf_rule *r = &n->b.rule[rule];
    uint32_t size = measure(n, rule);
    for (uint32_t copied = COPIED_PLACES; size > MAX_PLACES && copied > 4 && !n->b.n.why; copied /= 2) {
        for (uint32_t i = r->first; i < r->end; i++) {
            const nfa_part *p = &n->b.n.part[i];
            if (p->kind == PART_RULE && n->b.of[p->a].net == GRAM_NONE && n->size[n->b.of[p->a].part] > copied)
                n->b.of[p->a].net = 0;
        }
        size = measure(n, rule);
    }
    if (size > COPIED_PLACES)
        n->b.of[rule].net = 0;
    n->state[rule] = DONE;
}

/* Marks (net 0, for now) the rules that are called: those to which the walk from root comes back while it is in them, and large ones. */
static xd_status choose(net_build *n)
{
    struct {
        uint32_t rule, part;
    } *todo = calloc(n->b.n_rules + 1, sizeof *todo);
    if (!todo)
        return nomem(n);
    size_t n_todo = 1;
    n->b.of[0].net = 0;
    n->state[0] = OPEN;
    todo[0].part = n->b.rule[0].first;
    while (n_todo && nfa_spend(&n->b.n, 1)) {
        uint32_t rule = todo[n_todo - 1].rule, i = todo[n_todo - 1].part++;
        if (i >= n->b.rule[rule].end) {
            close_rule(n, rule);
            n_todo--;
            continue;
        }
        const nfa_part *p = &n->b.n.part[i];
        if (p->kind != PART_RULE)
            continue;
        if (n->state[p->a] == OPEN)
            n->b.of[p->a].net = 0;
        if (n->state[p->a] != NEW)
            continue;
        n->state[p->a] = OPEN;
        todo[n_todo].rule = p->a;
        todo[n_todo++].part = n->b.rule[p->a].first;
    }
    free(todo);
    return n->b.n.why ? gbnf_why(&n->b, NULL, 0) : XD_OK;
}

static xd_status number_nets(net_build *n)
{
    for (uint32_t i = 0; i < n->b.n_rules; i++) {
        nfa_rule *rule = &n->b.of[i];
        if (rule->net == GRAM_NONE || !rule->productive) {
            rule->net = GRAM_NONE;
            continue;
        }
        if (n->n_nets >= GRAM_MAX_NETS)
            return gbnf_fault(&n->b, n->b.rule[i].name, "more than %d rules are large or need themselves",
                              GRAM_MAX_NETS);
        n->of_net[n->n_nets] = i;
        rule->call = (uint32_t)n->b.n.n_sets;
        rule->net = n->n_nets++;
        nfa_add_range(&n->b.n, GRAM_CALL + rule->net, GRAM_CALL + rule->net);
    }
    return n->b.n.why ? gbnf_why(&n->b, NULL, 0) : XD_OK;
}

/* ---- automata ---- */

static xd_status make_net(net_build *n, uint32_t i)
{
    nfa *r = &n->b.n;
    gram_dfa *d = &n->g->dfa[i];
    uint32_t end = nfa_add_place(r, (nfa_place){.kind = PLACE_MATCH});
    uint32_t match = nfa_add_place(r, (nfa_place){.kind = PLACE_SPLIT, .to = end, .other = end});
    nfa_determinise(r, nfa_emit(r, n->b.of[n->of_net[i]].part, match), match, i, d);
    if (!r->why) {
        n->g->n_dfas++;
        uint64_t joining = XD_MIN(n->left, (uint64_t)JOINING_WORK), left = joining;
        r->why = gram_dfa_finish(d, 0, GRAM_INF, &left);
        n->left -= joining - left;
        r->nomem = r->why && !strcmp(r->why, GRAM_REGEX_NOMEM);
    }
    if (r->why)
        return fault(n, n->of_net[i]);
    /* Behind a number of characters that are free the caller may go on with others, so that only a number counts which no token exceeds. */
    for (uint32_t s = 0; s < d->n_states; s++)
        if (d->free[s] < GRAM_MAX_CHARS)
            d->free[s] = 0;
    gram_net *net = &n->g->net[i];
    net->height = calloc(d->n_states, sizeof *net->height);
    net->ways_out = calloc(d->n_states, sizeof *net->ways_out);
    if (!net->height || !net->ways_out)
        return nomem(n);
    for (uint32_t s = 0; s < d->n_states; s++) /* calls are the last of a state's edges */
        net->ways_out[s] = d->end[s] || (d->first[s] < d->first[s + 1] && d->edge[d->first[s + 1] - 1].lo >= GRAM_CALL);
    return XD_OK;
}

/* Adds the first bytes of the characters from lo to hi. */
static void add_first(gram_net *n, uint32_t lo, uint32_t hi)
{
    static const uint32_t ends[] = {0x7F, 0x7FF, 0xFFFF, NFA_LAST_CHAR}, mark[] = {0, 0xC0, 0xE0, 0xF0};
    for (uint32_t len = 0, begin = 0; len < 4; begin = ends[len++] + 1) {
        uint32_t from = XD_MAX(lo, begin), to = XD_MIN(hi, ends[len]);
        for (uint32_t b = from >> 6 * len; from <= to && b <= to >> 6 * len; b++)
            n->first[(mark[len] | b) / 64] |= (uint64_t)1 << (mark[len] | b) % 64;
    }
}

/* What the network may begin with, from those with which it begins. */
static xd_status find_first(net_build *n, uint32_t i, int depth)
{
    gram_net *net = &n->g->net[i];
    const gram_dfa *d = &n->g->dfa[i];
    const gbnf_rule *rule = &n->b.rule[n->of_net[i]];
    const int shown = (int)XD_MIN(rule->name_len, 40u);
    if (n->state[i] == DONE)
        return XD_OK;
    if (n->state[i] == OPEN)
        return gbnf_fault(
            &n->b, rule->name,
            "the rule '%.*s' begins with a rule that begins with it (left recursion by a detour): write it as a repetition",
            shown, rule->name);
    if (depth > MAX_BEGINNINGS)
        return gbnf_fault(&n->b, rule->name, "more than %d rules begin with one another", MAX_BEGINNINGS);
    n->state[i] = OPEN;
    for (uint32_t e = d->first[0]; e < d->first[1]; e++) {
        if (d->edge[e].lo < GRAM_CALL) {
            add_first(net, d->edge[e].lo, d->edge[e].hi);
            continue;
        }
        for (uint32_t c = d->edge[e].lo - GRAM_CALL; c <= d->edge[e].hi - GRAM_CALL; c++) {
            xd_status st = find_first(n, c, depth + 1);
            if (st)
                return st;
            for (size_t k = 0; k < XD_ARRAY_LEN(net->first); k++)
                net->first[k] |= n->g->net[c].first[k];
        }
    }
    n->state[i] = DONE;
    return XD_OK;
}

/* What an edge and the rest after it need. */
static uint32_t height_by(const net_build *n, uint32_t i, const gram_edge *e)
{
    const gram_dfa *d = &n->g->dfa[i];
    uint32_t after = n->g->net[i].height[e->to], best = GRAM_NONE;
    if (e->lo < GRAM_CALL || after == GRAM_NONE)
        return after;
    const bool last = d->end[e->to] && d->first[e->to] == d->first[e->to + 1];
    for (uint32_t c = e->lo - GRAM_CALL; c <= e->hi - GRAM_CALL; c++)
        if (n->g->net[c].height[0] != GRAM_NONE)
            best = XD_MIN(best, n->g->net[c].height[0] + !last);
    return XD_MAX(after, best);
}

static xd_status find_heights(net_build *n)
{
    for (uint32_t i = 0; i < n->n_nets; i++)
        for (uint32_t s = 0; s < n->g->dfa[i].n_states; s++)
            n->g->net[i].height[s] = n->g->dfa[i].end[s] ? 0 : GRAM_NONE;
    for (bool changed = true; changed && !n->b.n.why;) {
        changed = false;
        for (uint32_t i = n->n_nets; i-- > 0;) {
            const gram_dfa *d = &n->g->dfa[i];
            uint32_t *height = n->g->net[i].height;
            nfa_spend(&n->b.n, d->first[d->n_states]);
            for (uint32_t s = d->n_states; s-- > 0;) {
                uint32_t h = height[s];
                for (uint32_t e = d->first[s]; e < d->first[s + 1] && h; e++)
                    h = XD_MIN(h, height_by(n, i, &d->edge[e]));
                changed |= h != height[s];
                height[s] = h;
            }
        }
    }
    if (n->b.n.why)
        return gbnf_why(&n->b, NULL, 0);
    for (uint32_t i = 0; i < n->n_nets; i++)
        for (uint32_t s = 0; s < n->g->dfa[i].n_states; s++)
            n->g->net[i].most = XD_MAX(n->g->net[i].most, n->g->net[i].height[s]);
    return n->g->net[0].height[0] <= GRAM_MAX_CALLS - 2 /* where it begins */
               ? XD_OK
               : gbnf_fault(&n->b, NULL, "no text ends with less than %d rules within each other", GRAM_MAX_CALLS);
}

static xd_status compile(net_build *n, const char *text, size_t len)
{
    grammar *g = n->g;
    xd_status st = gbnf_read(&n->b, text, len, n->err);
    if (st)
        return st;
    n->b.n.rule = n->b.of;
    n->size = calloc(n->b.n.n_parts + 1, sizeof *n->size);
    n->state = calloc(n->b.n_rules + GRAM_MAX_NETS, 1);
    n->of_net = calloc(GRAM_MAX_NETS, sizeof *n->of_net);
    if (!n->size || !n->state || !n->of_net)
        return nomem(n);
    if ((st = find_ends(n)) || (st = choose(n)) || (st = number_nets(n)))
        return st;
    g->net = calloc(n->n_nets, sizeof *g->net);
    g->dfa = calloc(n->n_nets, sizeof *g->dfa);
    g->node = calloc(1 + n->n_nets, sizeof *g->node);
    if (!g->net || !g->dfa || !g->node)
        return nomem(n);
    g->n_nodes = 1 + n->n_nets;
    g->node[0] = (gram_node){.kind = GRAM_ROOT, .rest = 1};
    for (uint32_t i = 0; i < n->n_nets && !st; i++) {
        g->node[1 + i] = (gram_node){.kind = GRAM_NET, .dfa = i};
        st = make_net(n, i);
    }
    memset(n->state, NEW, n->n_nets);
    for (uint32_t i = 0; i < n->n_nets && !st; i++)
        st = find_first(n, i, 0);
    return st ? st : find_heights(n);
}

static xd_status make(const char *text, size_t len, bool is_regex, grammar **ret, xd_err *err)
{
    xd_err own = {0};
    XD_CLEANUP(grammar_unrefp) grammar *g = calloc(1, sizeof *g);
    net_build n = {.b.is_regex = is_regex, .g = g, .left = BUILD_WORK, .err = &own};
    n.b.n.left = &n.left;
    xd_status st = g ? XD_OK : nomem(&n);
    if (g)
        g->refs = 1;
    if (!st)
        st = compile(&n, text, len);
    free(n.size);
    free(n.state);
    free(n.of_net);
    gbnf_free(&n.b);
    if (st) {
        if (err)
            *err = own;
        return st;
    }
    *ret = XD_TAKE(g);
    return XD_OK;
}

xd_status grammar_new_gbnf(const char *text, size_t len, grammar **ret, xd_err *err)
{
    return make(text, len, false, ret, err);
}

xd_status grammar_new_regex(const char *text, size_t len, grammar **ret, xd_err *err)
{
    return make(text, len, true, ret, err);
}
