/* grammar_nfa.c - a tree of parts to an automaton of places (Thompson), that to sets of its places (the subset construction).
 *
 * Patterns of schemas (grammar_regex.c) and rules of GBNF (grammar_gbnf.c) become such trees; grammar_dfa.c goes on from there. All of it pays
 * from one budget: what would cost more is refused.
 * Within a schema's text control characters that JSON has no short escape for are no characters. In texts of their own (`raw`) all are but
 * NUL, and beyond the characters stand the symbols of the networks that may be called: a call is a step like one over a character. */
#include "engine/text/grammar_nfa.h"

#include <string.h>
#include <xxhash.h>

#include "engine/text/tok_priv.h"

enum {
    MAX_PLACES = 10000,
    MAX_STATES = 20000,
    SLOTS_OF_WORK = 16, /* cleared in the time of a step */
    WORK_OF_SORTED = 8  /* of each that is sorted among others */
};

static const char too_complex[] = "is too complex: smaller counts ({m,n}) or fewer alternatives would help";

bool nfa_spend(nfa *r, uint64_t n)
{
    if (n > *r->left && !r->why)
        r->why = too_complex;
    if (!r->why)
        *r->left -= n;
    return !r->why;
}

bool nfa_room(nfa *r, void *array, size_t *cap, size_t need, size_t bytes)
{
    if (tok_grow(array, cap, need, bytes))
        return true;
    r->nomem = true;
    r->why = "out of memory";
    return false;
}

uint32_t nfa_add_part(nfa *r, nfa_part p)
{
    if (!nfa_spend(r, 1) || !nfa_room(r, &r->part, &r->part_cap, r->n_parts + 1, sizeof *r->part))
        return 0;
    r->part[r->n_parts] = p;
    return (uint32_t)r->n_parts++;
}

void nfa_add_range(nfa *r, uint32_t lo, uint32_t hi)
{
    if (lo <= hi && nfa_spend(r, 1) && nfa_room(r, &r->set, &r->set_cap, r->n_sets + 1, sizeof *r->set))
        r->set[r->n_sets++] = (nfa_range){lo, hi};
}

static int by_lo(const void *x, const void *y)
{
    const nfa_range *a = x, *b = y;
    return a->lo < b->lo ? -1 : a->lo > b->lo;
}

void nfa_tidy(nfa *r, size_t from, bool negate)
{
    if (r->why || !nfa_spend(r, (r->n_sets - from) * WORK_OF_SORTED))
        return;
    if (r->n_sets > from)
        qsort(r->set + from, r->n_sets - from, sizeof *r->set, by_lo);
    size_t to = from;
    for (size_t i = from; i < r->n_sets; i++) {
        if (to > from && r->set[i].lo <= r->set[to - 1].hi + 1)
            r->set[to - 1].hi = XD_MAX(r->set[to - 1].hi, r->set[i].hi);
        else
            r->set[to++] = r->set[i];
    }
    r->n_sets = to;
    if (!negate)
        return;
    uint32_t next = 0;
    for (size_t i = from; i < to; i++) {
        nfa_range one = r->set[i];
        if (one.lo > next)
            nfa_add_range(r, next, one.lo - 1);
        next = one.hi + 1;
    }
    nfa_add_range(r, next, NFA_LAST_CHAR);
    if (r->why)
        return;
    memmove(r->set + from, r->set + to, (r->n_sets - to) * sizeof *r->set);
    r->n_sets -= to - from;
}

/* ---- places ---- */

uint32_t nfa_add_place(nfa *r, nfa_place p)
{
    if (r->n_places >= MAX_PLACES && !r->why)
        r->why = "is too large: smaller counts ({m,n}) would help";
    if (!nfa_spend(r, 1) || !nfa_room(r, &r->place, &r->place_cap, r->n_places + 1, sizeof *r->place))
        return 0;
    r->place[r->n_places] = p;
    return (uint32_t)r->n_places++;
}

/* Built from the end. Concatenations and alternatives are lists to the left, which are walked:
 * calls are only as deep as groups are. */
uint32_t nfa_emit(nfa *r, uint32_t i, uint32_t to)
{
    while (nfa_spend(r, 1)) {
        const nfa_part p = r->part[i];
        switch (p.kind) {
        case PART_EMPTY: return to;
        case PART_SET: return nfa_add_place(r, (nfa_place){.kind = PLACE_SET, .a = p.a, .b = p.b, .to = to});
        case PART_BEGIN: return nfa_add_place(r, (nfa_place){.kind = PLACE_BEGIN, .to = to});
        case PART_END: return nfa_add_place(r, (nfa_place){.kind = PLACE_END, .to = to});
        case PART_CAT:
            to = nfa_emit(r, p.b, to);
            i = p.a;
            continue;
        case PART_ALT: {
            uint32_t others = nfa_emit(r, p.b, to);
            for (i = p.a; !r->why && r->part[i].kind == PART_ALT; i = r->part[i].a)
                others = nfa_add_place(
                    r, (nfa_place){.kind = PLACE_SPLIT, .to = nfa_emit(r, r->part[i].b, to), .other = others});
            return nfa_add_place(r, (nfa_place){.kind = PLACE_SPLIT, .to = nfa_emit(r, i, to), .other = others});
        }
        case PART_RULE: {
            const nfa_rule *rule = &r->rule[p.a];
            if (rule->productive && rule->net == GRAM_NONE) {
                i = rule->part;
                continue;
            }
            uint32_t n = rule->productive; /* what has no end is no way at all */
            uint32_t call =
                nfa_add_place(r, (nfa_place){.kind = PLACE_SET, .a = rule->call, .b = rule->call + n, .to = to});
            return rule->nullable ? nfa_add_place(r, (nfa_place){.kind = PLACE_SPLIT, .to = call, .other = to}) : call;
        }
        case PART_REPEAT:
            if (p.max == UINT32_MAX) {
                uint32_t loop = nfa_add_place(r, (nfa_place){.kind = PLACE_SPLIT, .other = to});
                uint32_t body = nfa_emit(r, p.a, loop);
                if (!r->why)
                    r->place[loop].to = body;
                to = p.min ? body : loop; /* one of `min` is in the loop */
            } else {
                uint32_t end = to;
                for (uint32_t k = p.min; k < p.max && !r->why; k++)
                    to = nfa_add_place(r, (nfa_place){.kind = PLACE_SPLIT, .to = nfa_emit(r, p.a, to), .other = end});
            }
            for (uint32_t k = p.max == UINT32_MAX; k < p.min && !r->why; k++)
                to = nfa_emit(r, p.a, to);
            return to;
        }
    }
    return 0;
}

/* ---- states ---- */

/* Adds to the set under way what is reached from place i without a character. True: the match. */
static bool reach(nfa *r, uint32_t i, bool begin, bool end, uint32_t *set, size_t *n)
{
    bool match = false;
    size_t n_todo = 0;
    r->todo[n_todo++] = i;
    while (n_todo && nfa_spend(r, 1)) {
        uint32_t at = r->todo[--n_todo];
        const nfa_place *p = &r->place[at];
        if (r->mark[at] == r->stamp)
            continue;
        r->mark[at] = r->stamp;
        match = match || p->kind == PLACE_MATCH;
        if (p->kind == PLACE_SPLIT) {
            r->todo[n_todo++] = p->other;
            r->todo[n_todo++] = p->to;
        } else if (p->kind == PLACE_BEGIN ? begin : p->kind == PLACE_END && end) {
            r->todo[n_todo++] = p->to;
        } else if (p->kind != PLACE_BEGIN) {
            set[(*n)++] = at; /* an END waits: it passes at the end only */
        }
    }
    return match;
}

static int by_id(const void *x, const void *y)
{
    uint32_t a = *(const uint32_t *)x, b = *(const uint32_t *)y;
    return a < b ? -1 : a > b;
}

/* The state of a set of places; a new one where there is none yet. */
static uint32_t state_of(nfa *r, uint32_t *set, size_t n)
{
    qsort(set, n, sizeof *set, by_id);
    nfa_spend(r, n * 4);
    uint64_t h = XXH3_64bits(set, n * sizeof *set);
    for (size_t i = h & (r->n_slots - 1); r->slot[i]; i = (i + 1) & (r->n_slots - 1)) {
        uint32_t s = r->slot[i] - 1;
        if (r->first[s + 1] - r->first[s] == n && !memcmp(r->member + r->first[s], set, n * sizeof *set))
            return s;
    }
    if (r->n_states >= MAX_STATES && !r->why)
        r->why = too_complex;
    if (r->why || !nfa_room(r, &r->member, &r->member_cap, r->n_members + n, sizeof *r->member) ||
        !nfa_room(r, &r->first, &r->first_cap, r->n_states + 2, sizeof *r->first) ||
        !nfa_room(r, &r->accepts, &r->accepts_cap, r->n_states + 1, sizeof *r->accepts))
        return 0;
    uint32_t s = (uint32_t)r->n_states++;
    if (n)
        memcpy(r->member + r->n_members, set, n * sizeof *set);
    r->first[0] = 0;
    r->first[s + 1] = (uint32_t)(r->n_members += n);
    size_t at = h & (r->n_slots - 1);
    while (r->slot[at])
        at = (at + 1) & (r->n_slots - 1);
    r->slot[at] = s + 1;
    return s;
}

static bool accepts(nfa *r, uint32_t s)
{
    bool match = false;
    size_t n = 0;
    uint32_t *scratch = r->todo + 3 * r->n_places;
    r->stamp++;
    for (uint32_t i = r->first[s]; i < r->first[s + 1]; i++)
        match |= reach(r, r->member[i], false, true, scratch, &n);
    return match;
}

static bool is_spellable(const nfa *r, uint32_t cp)
{
    if (r->raw)
        return cp && (cp < 0xD800 || cp > 0xDFFF);
    return cp >= 0x20 ? cp < 0xD800 || cp > 0xDFFF : cp == '\b' || cp == '\t' || cp == '\n' || cp == '\f' || cp == '\r';
}

static void add_edge(nfa *r, size_t first, uint32_t lo, uint32_t hi, uint32_t to)
{
    if (r->n_edges > first && r->edge[r->n_edges - 1].to == to && r->edge[r->n_edges - 1].hi + 1 == lo) {
        r->edge[r->n_edges - 1].hi = hi;
        return;
    }
    if (nfa_spend(r, BUILD_WORK_OF_EDGE) && nfa_room(r, &r->edge, &r->edge_cap, r->n_edges + 1, sizeof *r->edge))
        r->edge[r->n_edges++] = (gram_edge){lo, hi, to};
}

/* Is the character in the ranges of the place? They are sorted and apart. */
static bool has_char(nfa *r, const nfa_place *p, uint32_t cp)
{
    uint32_t from = p->a, to = p->kind == PLACE_SET ? p->b : p->a;
    nfa_spend(r, 1);
    while (from < to && nfa_spend(r, 1)) {
        uint32_t mid = from + (to - from) / 2;
        if (r->set[mid].hi < cp)
            from = mid + 1;
        else
            to = mid;
    }
    return p->kind == PLACE_SET && from < p->b && r->set[from].lo <= cp;
}

/* Where state s goes by which characters: the limits of all its ranges cut the characters into stretches that are all alike. */
static void expand(nfa *r, uint32_t s, uint32_t **cuts, size_t *cuts_cap, uint32_t *set)
{
    static const uint32_t fixed[] = {0, 1, 8, 9, 10, 11, 12, 13, 14, 0x20, 0xD800, 0xE000};
    const uint32_t last = r->raw ? GRAM_CALL + GRAM_MAX_NETS - 1 : NFA_LAST_CHAR;
    size_t n = 0, first_edge = r->n_edges;
    if (!nfa_spend(r, XD_ARRAY_LEN(fixed) * WORK_OF_SORTED) ||
        !nfa_room(r, cuts, cuts_cap, XD_ARRAY_LEN(fixed) + 1, sizeof **cuts))
        return;
    memcpy(*cuts, fixed, sizeof fixed);
    n = XD_ARRAY_LEN(fixed);
    for (uint32_t m = r->first[s]; m < r->first[s + 1]; m++) {
        const nfa_place *p = &r->place[r->member[m]];
        const uint32_t ranges = p->kind == PLACE_SET ? p->b - p->a : 0;
        /* Before there is room for them: many places may share one class of many ranges. */
        if (!nfa_spend(r, 1 + 2 * (uint64_t)ranges * WORK_OF_SORTED) ||
            !nfa_room(r, cuts, cuts_cap, n + 2 * (size_t)ranges + 1, sizeof **cuts))
            return;
        for (uint32_t i = p->a; i < p->a + ranges; i++) {
            (*cuts)[n++] = r->set[i].lo;
            (*cuts)[n++] = r->set[i].hi + 1;
        }
    }
    qsort(*cuts, n, sizeof **cuts, by_id);
    (*cuts)[n] = last + 1;
    for (size_t c = 0; c < n && nfa_spend(r, 1); c++) {
        uint32_t lo = (*cuts)[c], hi = (*cuts)[c + 1] - 1;
        if (lo >= (*cuts)[c + 1] || lo > last || !is_spellable(r, lo))
            continue;
        size_t size = 0;
        r->stamp++;
        for (uint32_t m = r->first[s]; m < r->first[s + 1]; m++) {
            const nfa_place *p = &r->place[r->member[m]];
            if (p->kind == PLACE_MATCH && !r->raw) /* found: anything may follow */
                reach(r, r->member[m], false, false, set, &size);
            else if (has_char(r, p, lo))
                reach(r, p->to, false, false, set, &size);
        }
        if (size)
            add_edge(r, first_edge, lo, hi, state_of(r, set, size));
    }
}

/* Does the network begin with a call of itself at this place? */
static bool is_own_call(const nfa *r, uint32_t place, uint32_t own)
{
    const nfa_place *p = &r->place[place];
    return p->kind == PLACE_SET && p->b == p->a + 1 && r->set[p->a].lo == GRAM_CALL + own &&
           r->set[p->a].hi == r->set[p->a].lo;
}

/* The ways on from an end hang on `match`: the match itself at the end of a row of SPLITs. Is `to` one of them? */
static bool goes_on(const nfa *r, uint32_t match, uint32_t to)
{
    for (; r->place[match].kind == PLACE_SPLIT; match = r->place[match].to)
        if (r->place[match].other == to)
            return true;
    return false;
}

/* The places of the start, *n of them. A := A x | y is the same as y x x x...: what follows a call of the network itself at its very start may
 * follow its end, and the call is none. That holds at the start only: a place of its own tells it from where steps may lead back. */
static void start_set(nfa *r, uint32_t start, uint32_t match, uint32_t own, uint32_t *set, size_t *n)
{
    for (bool again = true; again && !r->why;) {
        size_t found = 0;
        again = false;
        *n = 0;
        r->stamp++;
        reach(r, start, true, false, set, &found);
        for (size_t i = 0; i < found; i++) {
            if (!r->raw || !is_own_call(r, set[i], own)) {
                set[(*n)++] = set[i];
                continue;
            }
            uint32_t to = r->place[set[i]].to;
            if (goes_on(r, match, to))
                continue;
            uint32_t way = nfa_add_place(r, (nfa_place){.kind = PLACE_SPLIT, .to = r->place[match].to, .other = to});
            r->place[match].to = way;
            again = true;
        }
        if (*n < found && !again) {
            uint32_t mark = nfa_add_place(r, (nfa_place){.kind = PLACE_SET});
            set[(*n)++] = mark;
        }
    }
}

static void forget_states(nfa *r)
{
    free(r->member);
    free(r->first);
    free(r->slot);
    free(r->edge);
    free(r->edge_first);
    free(r->accepts);
    free(r->mark);
    free(r->todo);
    r->member = r->first = r->slot = r->edge_first = r->mark = r->todo = NULL;
    r->edge = NULL;
    r->accepts = NULL;
    r->n_members = r->member_cap = r->n_states = r->first_cap = r->n_slots = r->n_edges = r->edge_cap =
        r->edge_first_cap = r->accepts_cap = r->n_places = 0;
    r->stamp = 0;
}

void nfa_determinise(nfa *r, uint32_t start, uint32_t match, uint32_t own, gram_dfa *ret)
{
    if (r->why)
        return;
    r->n_slots = 65536;
    size_t most = 2 * r->n_places + 2; /* start_set() may add as many as there are */
    uint32_t *cuts = NULL, *set = calloc(2 * most, sizeof *set);
    size_t cuts_cap = 0, n = 0;
    r->mark = calloc(most, sizeof *r->mark);
    r->todo = calloc(most, 4 * sizeof *r->todo);
    r->slot = calloc(r->n_slots, sizeof *r->slot);
    if (!r->mark || !r->todo || !r->slot || !set) {
        r->nomem = true;
        r->why = "out of memory";
    } else if (nfa_spend(r, r->n_slots / SLOTS_OF_WORK)) {
        start_set(r, start, match, own, set, &n);
        state_of(r, set, n);
    }
    for (uint32_t s = 0; s < r->n_states && !r->why; s++) {
        if (!nfa_room(r, &r->edge_first, &r->edge_first_cap, s + 2, sizeof *r->edge_first))
            break;
        r->edge_first[s] = (uint32_t)r->n_edges;
        expand(r, s, &cuts, &cuts_cap, set);
        r->accepts[s] = accepts(r, s);
        r->edge_first[s + 1] = (uint32_t)r->n_edges;
    }
    if (!r->why && !r->edge)
        nfa_room(r, &r->edge, &r->edge_cap, 1, sizeof *r->edge);
    if (!r->why)
        *ret = (gram_dfa){.n_states = (uint32_t)r->n_states,
                          .first = XD_TAKE(r->edge_first),
                          .edge = XD_TAKE(r->edge),
                          .end = XD_TAKE(r->accepts)};
    free(cuts);
    free(set);
    forget_states(r);
}

void nfa_free(nfa *r)
{
    free(r->part);
    free(r->set);
    free(r->place);
    forget_states(r);
}
