/* policy.c - LRU, LFU with decay, and both combined, as one family.
 *
 * An expert's worth is   score = last + bonus * log2(f)   in steps, where `last` is the step of its last use and f the count of its
 * uses, each halved every `half_life` steps. It is fixed at the time of use and stays comparable, so nothing ages in the background
 * and a victim search reads one number an expert.
 *   lru    bonus 0
 *   lfu    bonus = half_life: exactly the order of exponentially decayed counts (LRFU's "combined recency and frequency",
 *          Lee et al., 2001), with a long half-life
 *   lfru   a shorter half-life and a bonus between the two: each doubling of the frequency is worth some steps of recency
 *   static nothing is ever evicted
 * Scans do little harm to the last three: an expert that was used once has f = 1 and goes first.
 *
 * Victims come from a list of the lowest scores, sorted when it is made and used up before it is made again; an entry that was used
 * meanwhile is skipped. So the cost of a search is spread over many evictions. */
#include "engine/memory/policy.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "config/config.h"

#define LIST_MIN 64u
/* Share of the residents that one list holds: longer lists are made more rarely and are more out of date at their end. */
#define LIST_SHARE 16u

typedef struct policy_entry {
    double score;
    uint32_t id;
} policy_entry;

struct policy {
    int kind;
    uint32_t n, n_layers;
    double half_life, bonus;
    uint32_t now;
    uint32_t *layer; /* [n] */
    uint32_t *last, *units;
    float *freq; /* as of `last` */
    double *score;
    uint64_t *layer_units, floor_units;
    policy_entry *list;
    uint32_t list_n, list_at;
};

static const struct {
    const char *name;
    double half_life, bonus;
} kinds[] = {
    [CONF_EVICT_LRU] = {"lru", 64, 0},
    [CONF_EVICT_LFU] = {"lfu", 1024, 1024},
    /* Of half-lives from 256 to 4096 and bonuses from 32 up to the half-life, on the traces of test_policy_trace.c: longer ones hit
     * no more, and after a shift of traffic they need more steps; shorter ones lose up to a point on skewed traffic. */
    [CONF_EVICT_LFRU] = {"lfru", 512, 128},
    [CONF_EVICT_STATIC] = {"static", 1024, 1024},
};

const char *policy_name(int kind)
{
    return kind >= 0 && (size_t)kind < XD_ARRAY_LEN(kinds) ? kinds[kind].name : "?";
}

policy *policy_new(const policy_options *opt)
{
    XD_CLEANUP(policy_freep) policy *p = calloc(1, sizeof *p);
    if (!p)
        return NULL;
    p->kind = opt->kind;
    double scale = XD_MAX(opt->advances_a_step, 1u);
    p->half_life = kinds[opt->kind].half_life * scale;
    p->bonus = kinds[opt->kind].bonus * scale;
    p->n_layers = opt->n_layers;
    p->now = 1;
    for (uint32_t l = 0; l < opt->n_layers; l++)
        p->n += opt->layer_experts[l];
    size_t n = p->n ? p->n : 1;
    p->layer = calloc(n, sizeof *p->layer);
    p->last = calloc(n, sizeof *p->last);
    p->units = calloc(n, sizeof *p->units);
    p->freq = calloc(n, sizeof *p->freq);
    p->score = calloc(n, sizeof *p->score);
    p->list = calloc(n, sizeof *p->list);
    p->layer_units = calloc(opt->n_layers ? opt->n_layers : 1, sizeof *p->layer_units);
    if (!p->layer || !p->last || !p->units || !p->freq || !p->score || !p->list || !p->layer_units)
        return NULL;
    for (uint32_t l = 0, id = 0; l < opt->n_layers; l++)
        for (uint32_t e = 0; e < opt->layer_experts[l]; e++, id++) {
            p->layer[id] = l;
            p->score[id] = -INFINITY;
        }
    if (opt->n_layers)
        p->floor_units = (uint64_t)((double)opt->capacity_units * opt->layer_floor / opt->n_layers);
    return XD_TAKE(p);
}

void policy_free(policy *p)
{
    if (!p)
        return;
    free(p->layer);
    free(p->last);
    free(p->units);
    free(p->freq);
    free(p->score);
    free(p->list);
    free(p->layer_units);
    free(p);
}

float policy_heat(const policy *p, uint32_t id)
{
    return p->freq[id] * exp2f(-(float)((p->now - p->last[id]) / p->half_life));
}

static void set_freq(policy *p, uint32_t id, float f)
{
    p->freq[id] = f;
    p->last[id] = p->now;
    p->score[id] = p->now + p->bonus * (double)log2f(f);
}

void policy_touch(policy *p, uint32_t id)
{
    if (p->last[id] != p->now || p->freq[id] == 0)
        set_freq(p, id, policy_heat(p, id) + 1);
}

void policy_set_heat(policy *p, uint32_t id, float heat)
{
    if (heat > 0 && isfinite(heat)) {
        set_freq(p, id, heat);
        p->last[id] = p->now - 1; /* may be a victim at once */
        p->score[id] -= 1;
    }
}

void policy_advance(policy *p)
{
    p->now++;
}

void policy_set_units(policy *p, uint32_t id, uint32_t units)
{
    p->layer_units[p->layer[id]] += units;
    p->layer_units[p->layer[id]] -= p->units[id];
    p->units[id] = units;
}

double policy_score(const policy *p, uint32_t id)
{
    return p->score[id];
}

static bool may_go(const policy *p, uint32_t id)
{
    return p->units[id] && p->last[id] != p->now && p->layer_units[p->layer[id]] >= p->floor_units + p->units[id];
}

static bool entry_less(policy_entry a, policy_entry b)
{
    return a.score < b.score || (a.score == b.score && a.id < b.id);
}

static int entry_compare(const void *a, const void *b)
{
    const policy_entry *x = a, *y = b;
    return entry_less(*x, *y) ? -1 : entry_less(*y, *x);
}

/* Hoare's selection: afterwards the k smallest of v[0..n) are v[0..k), in any order. */
static void select_smallest(policy_entry *v, uint32_t n, uint32_t k)
{
    uint32_t lo = 0, hi = n;
    while (hi - lo > 1 && k > lo && k < hi) {
        policy_entry pivot = v[lo + (hi - lo) / 2];
        uint32_t i = lo, j = hi - 1;
        for (;;) {
            while (entry_less(v[i], pivot))
                i++;
            while (entry_less(pivot, v[j]))
                j--;
            if (i >= j)
                break;
            policy_entry t = v[i];
            v[i++] = v[j];
            v[j--] = t;
        }
        uint32_t split = j + 1; /* v[lo..split) <= pivot <= v[split..hi) */
        if (split == hi)
            split--;
        if (k <= split)
            hi = split;
        else
            lo = split;
    }
}

static void make_list(policy *p)
{
    uint32_t n = 0;
    for (uint32_t id = 0; id < p->n; id++)
        if (may_go(p, id))
            p->list[n++] = (policy_entry){p->score[id], id};
    uint32_t k = XD_MIN(n, XD_MAX(LIST_MIN, n / LIST_SHARE));
    select_smallest(p->list, n, k);
    qsort(p->list, k, sizeof *p->list, entry_compare);
    p->list_n = k;
    p->list_at = 0;
}

uint32_t policy_victim(policy *p)
{
    if (p->kind == CONF_EVICT_STATIC)
        return POLICY_NONE;
    for (int fresh = 0;; fresh = 1) {
        while (p->list_at < p->list_n) {
            policy_entry e = p->list[p->list_at++];
            if (e.score == p->score[e.id] && may_go(p, e.id))
                return e.id;
        }
        if (fresh)
            return POLICY_NONE;
        make_list(p);
    }
}
