/* grammar_dfa.c - automata over characters: joined, limited in length, cut back to what has an end.
 *
 * A schema that limits a pattern's length needs to know at each character whether an end is still in reach: the count becomes a part of
 * the state. */
#include <string.h>
#include <xxhash.h>

#include "engine/text/grammar_build.h"
#include "engine/text/tok_priv.h"

enum { MAX_STATES = 60000 };

void gram_dfa_clear(gram_dfa *d)
{
    free(d->first);
    free(d->edge);
    free(d->end);
    free(d->free);
    *d = (gram_dfa){0};
}

/* d joined with a count from min to max. The count stops where it no longer matters. */
static const char *limit(gram_dfa *d, uint64_t min, uint64_t max, uint64_t *work_left)
{
    uint64_t top = max == GRAM_INF ? min : max;
    if (!top && max == GRAM_INF)
        return NULL;
    uint64_t edges = (top < MAX_STATES ? top + 1 : MAX_STATES) * XD_MAX(d->first[d->n_states], 1u);
    if (top >= MAX_STATES || (top + 1) * d->n_states > MAX_STATES || edges > *work_left / BUILD_WORK_OF_EDGE)
        return "is too complex together with the limits of its length";
    *work_left -= edges * BUILD_WORK_OF_EDGE;
    uint32_t n = d->n_states, layers = (uint32_t)top + 1, n_edges = d->first[n];
    gram_dfa l = {.n_states = n * layers,
                  .first = calloc((size_t)n * layers + 1, sizeof *l.first),
                  .edge = calloc((size_t)n_edges * layers + 1, sizeof *l.edge),
                  .end = calloc((size_t)n * layers, sizeof *l.end)};
    if (!l.first || !l.edge || !l.end) {
        gram_dfa_clear(&l);
        return GRAM_REGEX_NOMEM;
    }
    uint32_t at = 0;
    for (uint32_t c = 0; c < layers; c++) {
        uint32_t next = c < top ? c + 1 : c;
        for (uint32_t s = 0; s < n; s++) {
            l.first[c * n + s] = at;
            l.end[c * n + s] = d->end[s] && c >= min;
            for (uint32_t e = d->first[s]; e < d->first[s + 1] && !(c == top && max != GRAM_INF); e++)
                l.edge[at++] = (gram_edge){d->edge[e].lo, d->edge[e].hi, next * n + d->edge[e].to};
        }
    }
    l.first[n * layers] = at;
    gram_dfa_clear(d);
    *d = l;
    return NULL;
}

/* ---- as few states as can be ---- */

typedef struct
    look { /* of a state: equal for states that cannot be told apart so far; 128 bits are never equal by chance */
    XXH128_hash_t hash;
    uint32_t state;
} look;

static int compare_looks(const void *x, const void *y)
{
    const look *a = x, *b = y;
    int c = XXH128_cmp(&a->hash, &b->hash);
    return c ? c : (a->state > b->state) - (a->state < b->state);
}

/* The ways out of s, by the classes that they lead to, neighbours joined; how many. */
static uint32_t ways(const gram_dfa *d, uint32_t s, const uint32_t *class, gram_edge *ret)
{
    uint32_t n = 0;
    for (uint32_t e = d->first[s]; e < d->first[s + 1]; e++) {
        gram_edge w = {d->edge[e].lo, d->edge[e].hi, class[d->edge[e].to]};
        if (n && ret[n - 1].to == w.to && ret[n - 1].hi + 1 == w.lo)
            ret[n - 1].hi = w.hi;
        else
            ret[n++] = w;
    }
    return n;
}

/* Moore's rounds: classes of states are split until those of a class look alike. A class has the number of its first state among the firsts. */
static const char *join_states(gram_dfa *d, uint64_t *work_left)
{
    uint32_t n = d->n_states, n_classes = 0, before = 0;
    uint32_t *class = calloc((size_t)n + 1, sizeof *class), *rank = calloc((size_t)n + 1, sizeof *rank);
    look *looks = calloc((size_t)n + 1, sizeof *looks);
    gram_edge *way = calloc((size_t)d->first[n] + 1, sizeof *way);
    const char *why = class && rank && looks && way ? NULL : GRAM_REGEX_NOMEM;
    for (uint32_t s = 0; s < n && !why; s++)
        class[s] = d->end[s];
    do {
        uint64_t cost = (uint64_t)d->first[n] + n;
        if (why || cost > *work_left) /* good enough as it is */
            break;
        *work_left -= cost;
        before = n_classes;
        for (uint32_t s = 0; s < n; s++) {
            uint32_t n_ways = ways(d, s, class, way);
            looks[s] = (look){XXH3_128bits_withSeed(way, n_ways * sizeof *way, class[s]), s};
        }
        qsort(looks, n, sizeof *looks, compare_looks);
        n_classes = 0;
        for (uint32_t i = 0; i < n; i++) /* the first of each class */
            rank[looks[i].state] =
                i && XXH128_isEqual(looks[i].hash, looks[i - 1].hash) ? rank[looks[i - 1].state] : looks[i].state;
        for (uint32_t s = 0; s < n; s++)
            class[s] = rank[s] == s ? n_classes++ : class[rank[s]];
    } while (n_classes != before);
    const bool any = n_classes > 0; /* or there was no work left for a first round */
    if (!why && any && n_classes == before && n_classes < n) {
        uint32_t at = 0, c = 0;
        for (uint32_t s = 0; s < n; s++) {
            if (rank[s] != s)
                continue;
            uint32_t n_ways = ways(d, s, class, way), end = d->end[s];
            memcpy(d->edge + at, way, n_ways * sizeof *way); /* never beyond what was read */
            d->first[c] = at;
            d->end[c++] = end;
            at += n_ways;
        }
        d->first[c] = at;
        d->n_states = c;
    }
    free(class);
    free(rank);
    free(looks);
    free(way);
    return why;
}

/* Drops what leads to no end. */
static const char *trim(gram_dfa *d)
{
    uint32_t n = d->n_states, n_edges = d->first[n], n_todo = 0;
    uint32_t *into = calloc((size_t)n + 2, sizeof *into), *from = calloc((size_t)n_edges + 1, sizeof *from),
             *todo = calloc((size_t)n + 1, sizeof *todo);
    bool *live = calloc((size_t)n + 1, sizeof *live);
    const char *why = into && from && todo && live ? NULL : GRAM_REGEX_NOMEM;
    if (!why) {
        for (uint32_t e = 0; e < n_edges; e++)
            into[d->edge[e].to + 2]++;
        for (uint32_t s = 1; s <= n; s++)
            into[s + 1] += into[s];
        for (uint32_t s = 0; s < n; s++)
            for (uint32_t e = d->first[s]; e < d->first[s + 1]; e++)
                from[into[d->edge[e].to + 1]++] = s;
        for (uint32_t s = 0; s < n; s++)
            if (d->end[s]) {
                live[s] = true;
                todo[n_todo++] = s;
            }
        while (n_todo) {
            uint32_t s = todo[--n_todo];
            for (uint32_t k = into[s]; k < into[s + 1]; k++) {
                if (!live[from[k]]) {
                    live[from[k]] = true;
                    todo[n_todo++] = from[k];
                }
            }
        }
        uint32_t at = 0;
        for (uint32_t s = 0, e = 0; s < n; s++) {
            uint32_t end = d->first[s + 1];
            d->first[s] = at;
            for (; e < end; e++)
                if (live[d->edge[e].to])
                    d->edge[at++] = d->edge[e];
        }
        d->first[n] = at;
        if (!live[0])
            why = "matches no text that may stand here";
    }
    free(into);
    free(from);
    free(todo);
    free(live);
    return why;
}

/* Where every character that a plain token may hold leads from s, if that is one state; else GRAM_NONE. */
static uint32_t where_all_go(const gram_dfa *d, uint32_t s)
{
    static const uint32_t stretch[][2] = {{0x20, 0x21},   {0x23, 0x5B},     {0x5D, 0x7E},
                                          {0xA0, 0x2027}, {0x202A, 0xD7FF}, {0xE000, 0x10FFFF}};
    uint32_t to = GRAM_NONE;
    for (size_t i = 0; i < XD_ARRAY_LEN(stretch); i++) {
        bool inside = false;
        for (uint32_t e = d->first[s]; e < d->first[s + 1] && !inside; e++) {
            inside = d->edge[e].lo <= stretch[i][0] && d->edge[e].hi >= stretch[i][1] &&
                     (to == GRAM_NONE || to == d->edge[e].to);
            to = inside ? d->edge[e].to : to;
        }
        if (!inside)
            return GRAM_NONE;
    }
    return to;
}

/* How many characters each state takes whatever they are, and no more than these: along the one way out of each, from its end or its ring
 * backwards. */
static const char *count_free(gram_dfa *d)
{
    uint32_t n = d->n_states;
    uint32_t *way = calloc((size_t)n + 1, sizeof *way), *path = calloc((size_t)n + 1, sizeof *path);
    uint8_t *seen = calloc((size_t)n + 1, 1);         /* 1: on the way, 2: counted */
    bool *last = calloc((size_t)n + 1, sizeof *last); /* nothing but the end may come after these characters */
    d->free = calloc((size_t)n + 1, sizeof *d->free);
    bool ok = way && path && seen && last && d->free;
    for (uint32_t s = 0; s < n && ok; s++)
        way[s] = where_all_go(d, s);
    for (uint32_t s = 0; s < n && ok; s++) {
        uint32_t len = 0, at = s;
        while (at != GRAM_NONE && !seen[at]) {
            seen[at] = 1;
            path[len++] = at;
            at = way[at];
        }
        uint64_t count = at == GRAM_NONE ? 0 : seen[at] == 1 ? GRAM_INF : d->free[at] + (d->free[at] < GRAM_INF);
        bool ends = at != GRAM_NONE ? last[at] : len && d->first[path[len - 1]] == d->first[path[len - 1] + 1];
        while (len) {
            at = path[--len];
            seen[at] = 2;
            last[at] = ends;
            d->free[at] = count;
            count += count < GRAM_INF;
        }
    }
    /* Where some characters may follow those that are free, longer tokens have to be looked at: only a count that no token exceeds says it
     * all. */
    for (uint32_t s = 0; s < n && ok; s++)
        if (!last[s] && d->free[s] < GRAM_MAX_CHARS)
            d->free[s] = 0;
    free(way);
    free(path);
    free(seen);
    free(last);
    return ok ? NULL : GRAM_REGEX_NOMEM;
}

/* ---- two that must both hold ---- */

typedef struct pairs { /* states of the product, in the order in which they were found */
    uint32_t (*pair)[2];
    uint32_t *slot; /* open addressing: a pair's number + 1 */
    size_t n, cap, n_slots;
} pairs;

static uint32_t number_of(pairs *p, uint32_t x, uint32_t y)
{
    uint64_t at = xd_mix64((uint64_t)x << 32 | y) & (p->n_slots - 1);
    for (; p->slot[at]; at = (at + 1) & (p->n_slots - 1))
        if (p->pair[p->slot[at] - 1][0] == x && p->pair[p->slot[at] - 1][1] == y)
            return p->slot[at] - 1;
    if (p->n >= MAX_STATES || !tok_grow(&p->pair, &p->cap, p->n + 1, sizeof *p->pair))
        return GRAM_NONE;
    p->pair[p->n][0] = x;
    p->pair[p->n][1] = y;
    p->slot[at] = (uint32_t)++p->n;
    return (uint32_t)p->n - 1;
}

const char *gram_dfa_both(gram_dfa *x, const gram_dfa *y, uint64_t *work_left)
{
    pairs p = {.n_slots = 2 * 65536, .slot = calloc(2 * 65536, sizeof *p.slot)};
    gram_dfa d = {0};
    size_t n_edges = 0, edge_cap = 0, first_cap = 0, end_cap = 0;
    const char *why = p.slot && number_of(&p, 0, 0) == 0 ? NULL : GRAM_REGEX_NOMEM;
    for (size_t s = 0; s < p.n && !why; s++) {
        uint32_t a = p.pair[s][0], b = p.pair[s][1], i = x->first[a], k = y->first[b];
        if (!tok_grow(&d.first, &first_cap, s + 2, sizeof *d.first) ||
            !tok_grow(&d.end, &end_cap, s + 1, sizeof *d.end))
            why = GRAM_REGEX_NOMEM;
        else {
            d.first[s] = (uint32_t)n_edges;
            d.end[s] = x->end[a] && y->end[b];
        }
        while (!why && i < x->first[a + 1] && k < y->first[b + 1]) {
            const gram_edge *e = &x->edge[i], *f = &y->edge[k];
            uint32_t lo = XD_MAX(e->lo, f->lo), hi = XD_MIN(e->hi, f->hi);
            if (lo <= hi) {
                uint32_t to = number_of(&p, e->to, f->to);
                if (to == GRAM_NONE || *work_left < BUILD_WORK_OF_EDGE)
                    why = "is too complex together with another pattern or format";
                else if (!tok_grow(&d.edge, &edge_cap, n_edges + 1, sizeof *d.edge))
                    why = GRAM_REGEX_NOMEM;
                else {
                    *work_left -= BUILD_WORK_OF_EDGE;
                    d.edge[n_edges++] = (gram_edge){lo, hi, to};
                }
            }
            if (e->hi < f->hi)
                i++;
            else
                k++;
        }
    }
    free(p.pair);
    free(p.slot);
    if (!why) {
        d.n_states = (uint32_t)p.n;
        d.first[p.n] = (uint32_t)n_edges;
        if (!d.edge && !tok_grow(&d.edge, &edge_cap, 1, sizeof *d.edge))
            why = GRAM_REGEX_NOMEM;
    }
    if (why) {
        gram_dfa_clear(&d);
        return why;
    }
    gram_dfa_clear(x);
    *x = d;
    return NULL;
}

const char *gram_dfa_finish(gram_dfa *d, uint64_t min, uint64_t max, uint64_t *work_left)
{
    const char *why = join_states(d, work_left);
    if (!why)
        why = limit(d, min, max, work_left);
    if (!why)
        why = trim(d);
    return why ? why : count_free(d);
}
