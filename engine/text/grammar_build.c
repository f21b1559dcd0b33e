/* grammar_build.c - nodes of a grammar: made within limits, joined, and proved to come to an end.
 *
 * Limits are on what is built, not on what a schema says: a count of a thousand million items is one number here. What a node needs at
 * least (its height, in frames) is found in rounds, as many as frames are allowed: a node that has none after them needs itself, or too
 * many, and the schema is refused if it is the root. */
#include "engine/text/grammar_build.h"

#include <stdio.h>
#include <string.h>

#include "engine/text/tok_priv.h"

xd_status build_nomem(build *b)
{
    return xd_fail(b->err, XD_NOMEM, 0, "out of memory for a grammar");
}

/* The last steps to a place; there may be thousands. */
static void print_place(const build *b, uint32_t place, xd_buf *out)
{
    uint32_t steps[16], n = 0;
    for (; place && place != GRAM_NONE && n < XD_ARRAY_LEN(steps); place = b->place[place].parent)
        steps[n++] = place;
    if (place && place != GRAM_NONE)
        xd_buf_puts(out, "...");
    while (n) {
        const build_place *p = &b->place[steps[--n]];
        if (p->key)
            xd_buf_printf(out, "%s%.40s", out->len ? "." : "", p->key);
        else
            xd_buf_printf(out, "[%zu]", p->index);
    }
}

xd_status build_fault(build *b, uint32_t place, const char *key, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    xd_buf where = {0};
    print_place(b, place, &where);
    if (key)
        xd_buf_printf(&where, "%s%.40s", where.len ? "." : "", key);
    xd_status st = xd_fail_field(b->err, XD_BAD_REQUEST, where.len ? where.data : NULL, "invalid_json_schema", "%s%s%s",
                                 where.len ? where.data : "", where.len ? ": " : "", text);
    xd_buf_free(&where);
    return st;
}

bool build_spend(build *b, uint32_t place, uint64_t n)
{
    if (n > b->work_left) {
        build_fault(b, place, NULL, "joins schemas that are too large");
        return false;
    }
    b->work_left -= n;
    return true;
}

size_t build_count(const json_t *v, size_t limit)
{
    size_t n = 1, i;
    const char *key;
    json_t *x;
    if (json_is_object(v)) {
        json_object_foreach ((json_t *)(uintptr_t)v, key, x)
            n += n < limit ? build_count(x, limit - n) : 1;
    } else {
        json_array_foreach ((json_t *)(uintptr_t)v, i, x)
            n += n < limit ? build_count(x, limit - n) : 1;
    }
    return n;
}

uint32_t build_place_at(build *b, uint32_t parent, const char *key, size_t index)
{
    if (!tok_grow(&b->place, &b->place_cap, b->n_places + 1, sizeof *b->place)) {
        build_nomem(b);
        return GRAM_NONE;
    }
    b->place[b->n_places] = (build_place){.parent = parent, .key = key, .index = index};
    return (uint32_t)b->n_places++;
}

uint32_t build_node(build *b, gram_node n)
{
    grammar *g = b->g;
    if (g->n_nodes >= GRAM_MAX_NODES) {
        build_fault(b, 0, NULL, "the schema is too large: it has more than %d parts", GRAM_MAX_NODES);
        return GRAM_NONE;
    }
    if (!tok_grow(&g->node, &g->node_cap, g->n_nodes + 1, sizeof *g->node)) {
        build_nomem(b);
        return GRAM_NONE;
    }
    n.height = GRAM_NONE;
    g->node[g->n_nodes] = n;
    return (uint32_t)g->n_nodes++;
}

static bool add_kid(build *b, uint32_t node)
{
    grammar *g = b->g;
    if (node == GRAM_NONE)
        return false;
    if (g->n_kids >= GRAM_MAX_KIDS) {
        build_fault(b, 0, NULL, "the schema is too large: it has more than %d alternatives", GRAM_MAX_KIDS);
        return false;
    }
    if (!tok_grow(&g->kid, &g->kid_cap, g->n_kids + 1, sizeof *g->kid)) {
        build_nomem(b);
        return false;
    }
    g->kid[g->n_kids++] = node;
    return true;
}

uint32_t build_place_in(build *b, uint32_t place, const char *keyword, const char *key, size_t index)
{
    uint32_t at = build_place_at(b, place, keyword, 0);
    return at == GRAM_NONE ? at : build_place_at(b, at, key, index);
}

xd_status build_set_kids(build *b, uint32_t node, const uint32_t *kids, uint32_t n)
{
    b->g->node[node].first = (uint32_t)b->g->n_kids;
    b->g->node[node].n = n;
    for (uint32_t i = 0; i < n; i++)
        if (!add_kid(b, kids[i]))
            return b->err->status;
    return XD_OK;
}

static uint32_t new_letter(build *b, unsigned char byte)
{
    grammar *g = b->g;
    if (g->n_letters >= GRAM_MAX_BYTES) {
        build_fault(b, 0, NULL, "the schema is too large: its names and constants have more than %d bytes",
                    GRAM_MAX_BYTES);
        return GRAM_NONE;
    }
    if (!tok_grow(&g->letter, &g->letter_cap, g->n_letters + 2, sizeof *g->letter)) {
        build_nomem(b);
        return GRAM_NONE;
    }
    if (!g->n_letters)
        g->letter[g->n_letters++] = (gram_letter){0};
    g->letter[g->n_letters] = (gram_letter){.byte = byte};
    return (uint32_t)g->n_letters++;
}

uint32_t build_text(build *b, uint32_t letters, const char *text, size_t len)
{
    uint32_t root = letters ? letters : new_letter(b, 0), at = root;
    for (size_t i = 0; i < len && at != GRAM_NONE; i++) {
        gram_letter *l = b->g->letter;
        uint32_t child = l[at].child;
        while (child && l[child].byte != (unsigned char)text[i])
            child = l[child].next;
        if (!child) {
            child = new_letter(b, (unsigned char)text[i]);
            if (child != GRAM_NONE) {
                l = b->g->letter;
                l[child].next = l[at].child;
                l[at].child = child;
            }
        }
        at = child;
    }
    if (at == GRAM_NONE)
        return GRAM_NONE;
    b->g->letter[at].end = true;
    return root;
}

uint32_t build_any(build *b)
{
    static const char *const words[] = {"true", "false", "null"};
    grammar *g = b->g;
    if (b->any != GRAM_NONE)
        return b->any;
    uint32_t any = build_node(b, (gram_node){.kind = GRAM_ALT}), letters = 0;
    for (size_t i = 0; i < XD_ARRAY_LEN(words) && letters != GRAM_NONE; i++)
        letters = build_text(b, letters, words[i], strlen(words[i]));
    if (any == GRAM_NONE || letters == GRAM_NONE)
        return GRAM_NONE;
    if (!tok_grow(&g->number, &g->number_cap, g->n_numbers + 1, sizeof *g->number)) {
        build_nomem(b);
        return GRAM_NONE;
    }
    g->number[g->n_numbers++] = GRAM_ANY_NUMBER;
    const gram_node kids[] = {
        {.kind = GRAM_OBJECT, .max = GRAM_INF, .rest = any},
        {.kind = GRAM_ARRAY, .max = GRAM_INF, .rest = any},
        {.kind = GRAM_STRING, .max = GRAM_INF, .dfa = GRAM_NONE},
        {.kind = GRAM_NUMBER, .rest = (uint32_t)g->n_numbers - 1},
        {.kind = GRAM_LITERALS, .first = letters},
    };
    uint32_t first = (uint32_t)g->n_kids;
    for (size_t i = 0; i < XD_ARRAY_LEN(kids); i++)
        if (!add_kid(b, build_node(b, kids[i])))
            return GRAM_NONE;
    g->node[any].first = first;
    g->node[any].n = XD_ARRAY_LEN(kids);
    return b->any = any;
}

/* ---- the end ---- */

/* The leaves below each node of alternatives, each once, in order. */
static xd_status flatten(build *b)
{
    grammar *g = b->g;
    size_t n_alts = g->n_nodes;
    uint32_t *seen = calloc(g->n_nodes, sizeof *seen), *todo = NULL;
    size_t todo_cap = 0;
    xd_status st = seen ? XD_OK : build_nomem(b);
    uint32_t *first = calloc(g->n_nodes, sizeof *first), *count = calloc(g->n_nodes, sizeof *count);
    if (!st && (!first || !count))
        st = build_nomem(b);
    for (uint32_t i = 0; i < n_alts && !st; i++) {
        if (g->node[i].kind != GRAM_ALT)
            continue;
        size_t n_todo = 0;
        first[i] = (uint32_t)g->n_kids;
        if (!tok_grow(&todo, &todo_cap, 1, sizeof *todo)) {
            st = build_nomem(b);
            break;
        }
        todo[n_todo++] = i;
        seen[i] = i + 1;
        while (n_todo && !st) {
            const gram_node *n = &g->node[todo[--n_todo]];
            if (n->kind != GRAM_ALT) {
                if (!add_kid(b, (uint32_t)(n - g->node)))
                    st = b->err->status;
                continue;
            }
            for (uint32_t k = n->n; k-- > 0 && !st;) { /* the first one comes off the stack first */
                uint32_t kid = g->kid[n->first + k];
                if (seen[kid] == i + 1)
                    continue;
                seen[kid] = i + 1;
                if (!tok_grow(&todo, &todo_cap, n_todo + 1, sizeof *todo))
                    st = build_nomem(b);
                else
                    todo[n_todo++] = kid;
            }
        }
        count[i] = (uint32_t)(g->n_kids - first[i]);
    }
    for (uint32_t i = 0; i < n_alts && !st; i++) {
        if (g->node[i].kind == GRAM_ALT) {
            g->node[i].first = first[i];
            g->node[i].n = count[i];
        }
    }
    free(seen);
    free(todo);
    free(first);
    free(count);
    return st;
}

static uint32_t higher(uint32_t most, uint32_t h)
{
    return XD_MAX(most, h);
}

static uint32_t object_height(const grammar *g, const gram_node *n)
{
    const gram_prop *p = n->n ? &g->prop[n->first] : NULL;
    uint32_t required = n->n ? p[0].required_from : 0, h = 0, least = GRAM_NONE;
    bool all = n->min > required && n->rest == GRAM_NONE, one = n->min > required && !all;
    for (uint32_t i = 0; i < n->n; i++) {
        if (p[i].required || all)
            h = higher(h, g->node[p[i].node].height);
        least = XD_MIN(least, g->node[p[i].node].height);
    }
    if (one)
        h = higher(h, XD_MIN(least, g->node[n->rest].height));
    return h == GRAM_NONE ? h : h + 1;
}

static uint32_t height_of(const grammar *g, const gram_node *n)
{
    uint32_t h = 0;
    switch (n->kind) {
    case GRAM_ALT:
        h = GRAM_NONE;
        for (uint32_t i = 0; i < n->n; i++)
            h = XD_MIN(h, g->node[g->kid[n->first + i]].height);
        return h;
    case GRAM_OBJECT: return object_height(g, n);
    case GRAM_ARRAY:
        for (uint32_t i = 0; i < n->n && i < n->min; i++)
            h = higher(h, g->node[g->kid[n->first + i]].height);
        if (n->min > n->n)
            h = higher(h, g->node[n->rest].height);
        return h == GRAM_NONE ? h : h + 1;
    case GRAM_ROOT: return g->node[n->rest].height;
    default: return 1;
    }
}

static uint8_t begins_of(const grammar *g, const gram_node *n)
{
    uint8_t ret = 0;
    switch (n->kind) {
    case GRAM_STRING: return gram_begins('"');
    case GRAM_NUMBER: return gram_begins('0');
    case GRAM_ARRAY: return gram_begins('[');
    case GRAM_OBJECT: return gram_begins('{');
    case GRAM_LITERALS:
        for (uint32_t i = g->letter[n->first].child; i; i = g->letter[i].next)
            ret |= gram_begins(g->letter[i].byte);
        return ret;
    case GRAM_ALT: /* of leaves, which have theirs by now */
        for (uint32_t i = 0; i < n->n; i++)
            ret |= g->node[g->kid[n->first + i]].begins;
        return ret;
    case GRAM_ROOT:
    case GRAM_NET: break;
    }
    return ret;
}

xd_status build_finish(build *b)
{
    grammar *g = b->g;
    xd_status st = flatten(b);
    if (st)
        return st;
    for (int alts = 0; alts < 2; alts++)
        for (size_t i = 0; i < g->n_nodes; i++)
            if ((g->node[i].kind == GRAM_ALT) == alts)
                g->node[i].begins = begins_of(g, &g->node[i]);
    bool changed = true;
    for (int round = 0; round <= GRAM_MAX_DEPTH && changed; round++) {
        changed = false;
        for (size_t i = g->n_nodes; i-- > 0;) {
            uint32_t h = height_of(g, &g->node[i]);
            changed = changed || h != g->node[i].height;
            g->node[i].height = h;
        }
    }
    if (g->node[0].height > GRAM_MAX_DEPTH - 1)
        return build_fault(b, 0, NULL,
                           "no value of this schema ends within %d levels: something in it needs itself, or too much",
                           GRAM_MAX_DEPTH);
    return XD_OK;
}
