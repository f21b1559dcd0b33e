/* policy.c - what an expert is worth: four counts of its uses that fade at different rates.
 *
 * Each use adds one to counts that lose half of themselves in 4, 32, 256 and 2048 steps. Divided by what a use in every step would make of
 * them they are four estimates of one thing, the chance that the expert is used in a step: by what just happened, by what the text at
 * hand is about, and by what the model uses at all. Which of them is right depends on the traffic:
 *   lru    the step of the last use alone
 *   lfu    the slowest count alone: the best there is where uses are independent of each other
 *   lfru   a weighted sum. The weights are those that would have told best what the next eight steps use (least squares over recent
 *          steps, none negative, fading), so that it is nearly lru, nearly lfu, or between, as the traffic is, and changes with it
 *   static nothing is ever evicted
 * (Frequency and recency as the two ends of one scale: LRFU, Lee et al., 2001. There the place on the scale is set by hand.)
 *
 * Admission. A page that is read from the host can be kept for nothing, but some other page has to go. Keeping all that is missed
 * lets each step's rare experts push out each other and the next common ones, the more the more sequences run. So an expert is only
 * let in where one more use makes it worth more than those that would go next. Slots that are free anyway take others as well, down to
 * the worth of the worst that is there: nobody has to go for them.
 *
 * Counts are kept in units that grow instead of being halved all the time: nothing ages in the background. Victims come from a list
 * of the lowest worths, sorted when it is made and used up before it is made again; what was used meanwhile is skipped, what came in
 * meanwhile and is worth as little is put in. So the cost of a search is spread over many evictions.
 *
 * The device waits while this is computed between two steps. So passes over all experts are few and such that the compiler makes vectors
 * of them or that they have no branches; of a use only what victims and the bar for admission need is noted at once, and what it adds to the
 * counts, like the begin of learning, can wait until the next uses come (policy_settle); and the list for the next step can be made while
 * this one runs, without this one's uses (policy_prepare).
 *
 * What did not help, on replays: a fifth estimate from which experts followed which at the next token (it knows a good deal about the demo
 * model, but few experts change places in a step, and who goes on account of one step is missed in the others); sums of squares that count
 * experts near the bar more; a higher bar in layers that miss more than max_inserts lets in; to learn from the decoding rows of steps
 * that hold a part of a prompt as well (0.2 points where a third or half of the steps do, and less where many sequences are local).
 * What would: slots that are offered with their page still in them, for layers behind the page's own, gain 0.4 points on average, up to 3
 * with several local sequences. The operation that fills slots takes them from one list for all layers. */
#include "engine/memory/policy.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "config/config.h"

#define LIST_MIN 64u
/* Share of the residents that one list holds: longer lists are made more rarely and are more out of date at their end. */
#define LIST_SHARE 16u
#define LIST_SLACK 0.25f
/* Steps after which the list and the bar for admission are made anew. Every step
 * would hit up to half a point more, every eighth up to 7 points less (small caches, local traffic). */
#define PLAN_STEPS 2u
/* Free slots kept over what recent steps could have filled, and how fast that estimate follows. A slot that waits to be filled is a
 * page less in VRAM, so nothing is kept free when nothing is missed. */
#define WANT_SLACK  1.25
#define MISSES_GAIN 0.125
/* At most one unit in so many is kept free. With an eighth, 8 local sequences hit 2 points less in a quarter of their experts, with a
 * quarter 8, where max_inserts does not bind; elsewhere it makes no difference. */
#define WANT_SHARE 16u
/* A newcomer must be worth so much more than what goes for it: experts that are worth the same would change places for ever, and
 * each change waits in a free slot first. */
#define MARGIN 1.2f

enum { RATES = 4, SLOWEST = RATES - 1 };
/* On the traces of test_policy_trace.c: three counts (4, 64, 1024) hit up to a point less where topics change, and are later back after
 * a shift; a shorter first one gains up to half a point on local traffic and loses as much on others. */
static const double half_lives[RATES] = {4, 32, 256, 2048};
static const double first_weights[RATES] = {0.1, 0.2, 0.3, 0.4};
/* The estimates of every eighth step are compared with the uses of the eight from there on, and count half after 256 steps. Who comes in
 * stays for some steps: weights that were right about the next one alone made too much of what had just happened, and changed the cache
 * for nothing (up to 1.2 points less on even traffic; with 16 steps, up to a point less on local traffic in small caches). */
#define LEARN_STEPS 8u
#define LEARN_FADE  0.9785720620877 /* 2 ^ (-8 / 256) */
#define RIDGE       1e-3            /* estimates that agree would leave the weights undetermined */
#define SOLVE_TURNS 32
#define UNIT_MAX    1e12

typedef struct policy_entry {
    float worth;
    uint32_t id, last; /* no longer true when the expert was used after `last` */
} policy_entry;

struct policy {
    int kind;
    uint32_t n, n_layers, step_len;
    uint32_t now;
    uint32_t *layer; /* [n] */
    uint32_t *first; /* [n_layers + 1] of each layer's experts */
    uint32_t *last, *units, units_max;
    float *count[RATES];              /* [n] each, in p->unit */
    float *worth;                     /* [n] as list_made */
    float *used_worth, use_worth;     /* [n] as list_made: the worth after one more use, and what that adds */
    double decay[RATES], unit[RATES]; /* of one advance; what a use adds now */
    double young[RATES];              /* share of the count's memory that lies before the first step */
    double coef[RATES];               /* of a count in a rate */
    double weight[RATES];
    float scale[RATES]; /* weight x coef: of a count in the worth */
    /* Least squares over all experts: sums of estimate times estimate, and of estimate times used or not. */
    double a[RATES][RATES], b[RATES];
    /* Uses that are not in the counts yet: of step uses_of, when a use added uses_unit. Once they were counted, no other use of that step
     * waits. */
    uint32_t *uses, n_uses, uses_of; /* [n] */
    bool uses_counted;
    double uses_unit[RATES];
    float (*estimate)[RATES]; /* [n] when the steps began that are learnt from */
    bool learning, learn_due;
    double layer_floor;
    uint64_t *layer_units, floor_units, capacity_units;
    policy_entry *list, *sort_room;
    uint32_t *gathered; /* [n + 1] */
    uint32_t list_n, list_at, list_made, planned;
    bool weighed;     /* worth[] is that of now */
    bool list_is_new; /* made after the last plan */
    float list_bar;   /* somewhat above the worth of the list's last */
    double misses_ewma;
};

static const char *const names[] = {
    [CONF_EVICT_LRU] = "lru", [CONF_EVICT_LFU] = "lfu", [CONF_EVICT_LFRU] = "lfru", [CONF_EVICT_STATIC] = "static"};

const char *policy_name(int kind)
{
    return kind >= 0 && (size_t)kind < XD_ARRAY_LEN(names) ? names[kind] : "?";
}

static void set_scale(policy *p)
{
    for (int k = 0; k < RATES; k++) {
        p->coef[k] = (1 - p->decay[k]) / (p->unit[k] * (1 - p->young[k] * p->decay[k]));
        p->scale[k] = (float)(p->weight[k] * p->coef[k]);
    }
}

void policy_set_capacity(policy *p, uint64_t units)
{
    p->capacity_units = units;
    p->floor_units = p->n_layers ? (uint64_t)((double)units * p->layer_floor / p->n_layers) : 0;
}

policy *policy_new(const policy_options *opt)
{
    XD_CLEANUP(policy_freep) policy *p = calloc(1, sizeof *p);
    if (!p)
        return NULL;
    p->kind = opt->kind;
    p->step_len = XD_MAX(opt->advances_a_step, 1u);
    p->n_layers = opt->n_layers;
    p->layer_floor = opt->layer_floor;
    p->now = 1;
    for (uint32_t l = 0; l < opt->n_layers; l++)
        p->n += opt->layer_experts[l];
    size_t n = p->n ? p->n : 1;
    p->layer = calloc(n, sizeof *p->layer);
    p->first = calloc(p->n_layers + 1ull, sizeof *p->first);
    p->last = calloc(n, sizeof *p->last);
    p->units = calloc(n, sizeof *p->units);
    p->worth = calloc(n, sizeof *p->worth);
    p->used_worth = calloc(n, sizeof *p->used_worth);
    p->estimate = calloc(n, sizeof *p->estimate);
    p->list = calloc(n + 1, sizeof *p->list);
    p->sort_room = calloc(n, sizeof *p->sort_room);
    p->gathered = calloc(n + 1, sizeof *p->gathered);
    p->uses = calloc(n, sizeof *p->uses);
    p->layer_units = calloc(opt->n_layers ? opt->n_layers : 1, sizeof *p->layer_units);
    if (!p->layer || !p->first || !p->last || !p->units || !p->worth || !p->used_worth || !p->estimate || !p->list ||
        !p->sort_room || !p->gathered || !p->uses || !p->layer_units)
        return NULL;
    for (int k = 0; k < RATES; k++)
        if (!(p->count[k] = calloc(n, sizeof *p->count[k])))
            return NULL;
    for (uint32_t l = 0; l < opt->n_layers; l++) {
        p->first[l + 1] = p->first[l] + opt->layer_experts[l];
        for (uint32_t id = p->first[l]; id < p->first[l + 1]; id++)
            p->layer[id] = l;
    }
    for (int k = 0; k < RATES; k++) {
        p->decay[k] = exp2(-1 / (half_lives[k] * p->step_len));
        p->unit[k] = p->young[k] = 1;
        p->weight[k] = p->kind == CONF_EVICT_LFRU ? first_weights[k] : k == SLOWEST;
    }
    set_scale(p);
    policy_set_capacity(p, opt->capacity_units);
    return XD_TAKE(p);
}

void policy_free(policy *p)
{
    if (!p)
        return;
    free(p->layer);
    free(p->first);
    free(p->last);
    free(p->units);
    for (int k = 0; k < RATES; k++)
        free(p->count[k]);
    free(p->worth);
    free(p->used_worth);
    free(p->estimate);
    free(p->list);
    free(p->sort_room);
    free(p->gathered);
    free(p->uses);
    free(p->layer_units);
    free(p);
}

/* --- worth ------------------------------------------------------------------------------------------------------- */

/* Counted from the list's making: a float holds no more than 24 bits of a step's number, and that number wraps around. */
static float recency(const policy *p, uint32_t id)
{
    return (float)(int32_t)(p->last[id] - p->list_made);
}

/* With a use that waits. */
static float count_of(const policy *p, int k, uint32_t id)
{
    bool waits = p->n_uses && p->last[id] == p->uses_of;
    return p->count[k][id] + (waits ? (float)p->uses_unit[k] : 0.0f);
}

static float worth(const policy *p, uint32_t id)
{
    if (p->kind == CONF_EVICT_LRU)
        return recency(p, id);
    float sum = 0;
    for (int k = 0; k < RATES; k++)
        sum += count_of(p, k, id) * p->scale[k];
    return sum;
}

float policy_heat(const policy *p, uint32_t id)
{
    return (float)((double)count_of(p, SLOWEST, id) / p->unit[SLOWEST]);
}

/* --- uses -------------------------------------------------------------------------------------------------------- */

/* Where none waits n_uses is not written: policy_heat() may read it in another thread meanwhile (pager_settle). */
static void count_uses(policy *p)
{
    p->uses_counted = true;
    if (!p->n_uses)
        return;
    for (uint32_t i = 0; i < p->n_uses; i++) {
        uint32_t id = p->uses[i];
        for (int k = 0; k < RATES; k++) {
            if (p->learning)
                p->b[k] += (double)p->estimate[id][k];
            p->count[k][id] += (float)p->uses_unit[k];
        }
    }
    p->n_uses = 0;
}

/* --- learning ---------------------------------------------------------------------------------------------------- */

/* Before the uses of the steps that are learnt from are known: the estimates for each of them. */
static void learn_begin(policy *p)
{
    double sum[RATES][RATES] = {0};
    for (uint32_t id = 0; id < p->n; id++) { /* all sums in one pass: each waits for its last addition */
        double count[RATES];
        for (int k = 0; k < RATES; k++) {
            count[k] = (double)p->count[k][id];
            p->estimate[id][k] = p->count[k][id] * (float)p->coef[k];
            for (int j = 0; j <= k; j++)
                sum[k][j] += count[k] * count[j];
        }
    }
    for (int k = 0; k < RATES; k++) {
        p->b[k] *= LEARN_FADE;
        for (int j = 0; j <= k; j++) {
            p->a[k][j] = p->a[k][j] * LEARN_FADE + LEARN_STEPS * sum[k][j] * p->coef[k] * p->coef[j];
            p->a[j][k] = p->a[k][j];
        }
    }
    p->learning = true;
}

void policy_settle(policy *p)
{
    count_uses(p);
    if (p->learn_due)
        learn_begin(p);
    p->learn_due = false;
}

/* Minimises |estimates x weights - uses|^2 over weights that are not negative, one weight at a time. */
static void learn_end(policy *p)
{
    for (int turn = 0; turn < SOLVE_TURNS; turn++)
        for (int k = 0; k < RATES; k++) {
            double ridge = RIDGE * p->a[k][k], rest = p->b[k] + ridge * first_weights[k];
            for (int j = 0; j < RATES; j++)
                if (j != k)
                    rest -= p->a[k][j] * p->weight[j];
            if (p->a[k][k] > 0)
                p->weight[k] = XD_MAX(rest / (p->a[k][k] + ridge), 0.0);
        }
}

void policy_touch(policy *p, uint32_t id)
{
    if (p->last[id] == p->now)
        return;
    if (p->uses_of != p->now) {
        policy_settle(p);
        p->uses_of = p->now;
        p->uses_counted = false;
        memcpy(p->uses_unit, p->unit, sizeof p->uses_unit);
    }
    p->last[id] = p->now;
    p->used_worth[id] += p->use_worth; /* a list that was made ahead knows of this use as well */
    p->weighed = false;
    p->uses[p->n_uses++] = id;
    if (p->uses_counted)
        count_uses(p);
}

void policy_set_heat(policy *p, uint32_t id, float heat)
{
    if (!(heat > 0) || !isfinite(heat))
        return;
    policy_settle(p);
    p->count[SLOWEST][id] = heat * (float)p->unit[SLOWEST];
    p->last[id] = p->now - 1; /* may be a victim at once */
    p->weighed = false;
    p->young[SLOWEST] = 0; /* the count remembers all that it can */
    set_scale(p);
}

static void rescale(policy *p, int k)
{
    count_uses(p);
    for (uint32_t id = 0; id < p->n; id++)
        p->count[k][id] *= (float)(1 / p->unit[k]);
    p->unit[k] = 1;
}

void policy_advance(policy *p)
{
    if (p->learn_due) /* before the uses that it learns from */
        policy_settle(p);
    p->now++;
    p->weighed = false;
    for (int k = 0; k < RATES; k++) {
        p->unit[k] /= p->decay[k];
        p->young[k] *= p->decay[k];
        if (p->unit[k] > UNIT_MAX)
            rescale(p, k);
    }
    bool learn = p->kind == CONF_EVICT_LFRU && p->now % (LEARN_STEPS * p->step_len) == 0;
    if (learn && p->learning) {
        count_uses(p);
        learn_end(p);
    }
    set_scale(p);
    p->learn_due = learn;
}

/* --- victims ----------------------------------------------------------------------------------------------------- */

static bool may_go(const policy *p, uint32_t id)
{
    return (p->units[id] != 0) & (p->last[id] != p->now) &
           (p->layer_units[p->layer[id]] >= p->floor_units + p->units[id]);
}

static bool entry_less(policy_entry a, policy_entry b)
{
    return a.worth < b.worth || (a.worth == b.worth && a.id < b.id);
}

/* As an integer that sorts as the float does. */
static uint32_t sort_key(float worth)
{
    uint32_t bits;
    memcpy(&bits, &worth, sizeof bits);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/* By worth, those that are worth the same as they were: radix sort, byte by byte from the least one. */
static void sort_entries(policy_entry *v, policy_entry *room, uint32_t n)
{
    enum { BYTES = 4 };
    uint32_t start[BYTES][256] = {0};
    for (uint32_t i = 0; i < n; i++)
        for (int b = 0; b < BYTES; b++)
            start[b][sort_key(v[i].worth) >> (8 * b) & 255]++;
    for (int b = 0; b < BYTES; b++) {
        for (uint32_t i = 0, sum = 0; i < 256; i++) {
            uint32_t count = start[b][i];
            start[b][i] = sum;
            sum += count;
        }
        for (uint32_t i = 0; i < n; i++)
            room[start[b][sort_key(v[i].worth) >> (8 * b) & 255]++] = v[i];
        policy_entry *t = v;
        v = room;
        room = t;
    }
}

/* Weighted counts of all, added as worth() does: the compiler makes vectors of it. */
static void weigh_counts(const policy *p, const float scale[RATES], float start, float *restrict ret)
{
    _Static_assert(RATES == 4, "counts that are added here");
    const float *restrict a = p->count[0], *restrict b = p->count[1], *restrict c = p->count[2];
    const float *restrict d = p->count[3], s0 = scale[0], s1 = scale[1], s2 = scale[2], s3 = scale[3];
    for (uint32_t id = 0; id < p->n; id++)
        ret[id] = start + a[id] * s0 + b[id] * s1 + c[id] * s2 + d[id] * s3;
}

/* worth() of all. */
static void all_worths(policy *p)
{
    if (p->weighed) /* a step's second list */
        return;
    p->weighed = true;
    count_uses(p);
    if (p->kind != CONF_EVICT_LRU)
        weigh_counts(p, p->scale, 0, p->worth);
    else
        for (uint32_t id = 0; id < p->n; id++)
            p->worth[id] = recency(p, id);
}

/* A use makes up for what a count loses in a step, and adds the less the more the expert is used anyway. */
static void all_used_worths(policy *p)
{
    float scale[RATES];
    p->use_worth = 0;
    for (int k = 0; k < RATES; k++) {
        scale[k] = p->scale[k] * (float)p->decay[k];
        p->use_worth += p->scale[k] * (float)p->unit[k];
    }
    weigh_counts(p, scale, p->use_worth, p->used_worth);
}

/* Ids of those who may go and are worth no more than `bar`, in their order. Returns their number, and that of all who may go. */
static uint32_t gather(policy *p, float bar, uint32_t *ret_all)
{
    const uint32_t *restrict units = p->units, *restrict last = p->last, now = p->now;
    const float *restrict worths = p->worth;
    uint32_t *restrict to = p->gathered, n = 0, all = 0;
    for (uint32_t l = 0; l < p->n_layers; l++) {
        uint64_t above = p->layer_units[l] - XD_MIN(p->layer_units[l], p->floor_units);
        uint32_t most = (uint32_t)XD_MIN(above, (uint64_t)UINT32_MAX);
        for (uint32_t id = p->first[l]; id < p->first[l + 1]; id++) {  /* no branch: who may go is as good as random */
            uint32_t may = (units[id] - 1 < most) & (last[id] != now); /* may_go() */
            to[n] = id;
            n += may & (worths[id] <= bar);
            all += may;
        }
    }
    *ret_all = all;
    return n;
}

static uint32_t list_length(uint32_t n)
{
    return XD_MIN(n, XD_MAX(LIST_MIN, n / LIST_SHARE));
}

/* Whoever was used last is worth most, or nobody has to go: nobody is kept out. */
static bool admits_all(const policy *p)
{
    return p->kind == CONF_EVICT_LRU || p->kind == CONF_EVICT_STATIC;
}

/* Worths change little from list to list: most of the time those below the last one's bar are enough, and few are sorted. */
static void make_list(policy *p)
{
    uint32_t all;
    p->list_made = p->now;
    p->list_is_new = true;
    all_worths(p);
    if (!admits_all(p))
        all_used_worths(p);
    uint32_t n = gather(p, p->list_bar, &all), k = list_length(all);
    if (n < k)
        n = gather(p, INFINITY, &all);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t id = p->gathered[i];
        p->list[i] = (policy_entry){p->worth[id], id, p->last[id]};
    }
    sort_entries(p->list, p->sort_room, n);
    p->list_n = k;
    p->list_at = 0;
    if (k)
        p->list_bar = p->list[k - 1].worth + LIST_SLACK * fabsf(p->list[k - 1].worth);
}

static bool list_is_old(const policy *p, uint32_t now)
{
    return now - p->list_made >= PLAN_STEPS * p->step_len;
}

void policy_prepare(policy *p)
{
    if (p->kind != CONF_EVICT_STATIC && list_is_old(p, p->now + p->step_len))
        make_list(p);
}

/* The list's next who may still go; list_n: none. */
static uint32_t list_next(const policy *p, uint32_t at)
{
    while (at < p->list_n && !(p->list[at].last == p->last[p->list[at].id] && may_go(p, p->list[at].id)))
        at++;
    return at;
}

/* Who has just come in and is worth no more than the list's last has its place there. */
static void list_newcomer(policy *p, uint32_t id)
{
    policy_entry e = {worth(p, id), id, p->last[id]};
    if (p->list_at == p->list_n || !entry_less(e, p->list[p->list_n - 1]))
        return;
    uint32_t lo = p->list_at, hi = p->list_n;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (entry_less(p->list[mid], e))
            lo = mid + 1;
        else
            hi = mid;
    }
    if (p->list_at) { /* what was used up leaves room in front */
        memmove(p->list + p->list_at - 1, p->list + p->list_at, (lo - p->list_at) * sizeof e);
        p->list_at--;
        p->list[lo - 1] = e;
    } else {
        uint32_t behind = p->list_n - lo;
        if (p->list_n == p->n) /* full: the last, which is worth most, falls out */
            behind--;
        else
            p->list_n++;
        memmove(p->list + lo + 1, p->list + lo, behind * sizeof e);
        p->list[lo] = e;
    }
}

void policy_set_units(policy *p, uint32_t id, uint32_t units)
{
    bool came = units && !p->units[id];
    p->layer_units[p->layer[id]] += units;
    p->layer_units[p->layer[id]] -= p->units[id];
    p->units[id] = units;
    p->units_max = XD_MAX(p->units_max, units);
    if (came)
        list_newcomer(p, id);
}

uint32_t policy_victim(policy *p)
{
    if (p->kind == CONF_EVICT_STATIC)
        return POLICY_NONE;
    bool fresh = list_is_old(p, p->now);
    if (fresh)
        make_list(p);
    p->list_at = list_next(p, p->list_at);
    if (p->list_at == p->list_n && !fresh) {
        make_list(p);
        p->list_at = list_next(p, p->list_at);
    }
    return p->list_at < p->list_n ? p->list[p->list_at++].id : POLICY_NONE;
}

/* --- newcomers --------------------------------------------------------------------------------------------------- */

static uint64_t most_wanted(const policy *p)
{
    return XD_MAX(p->capacity_units / WANT_SHARE, 1u);
}

uint32_t policy_want(const policy *p)
{
    return (uint32_t)XD_MIN(p->misses_ewma * WANT_SLACK + 0.5, (double)most_wanted(p));
}

void policy_missed(policy *p, uint32_t units)
{
    p->misses_ewma += MISSES_GAIN * (units - p->misses_ewma);
}

bool policy_plan(policy *p, uint32_t n_free, uint8_t *admit)
{
    if (admits_all(p) || (!p->list_is_new && p->planned && p->now - p->planned < PLAN_STEPS * p->step_len))
        return false;
    uint32_t first = list_next(p, p->list_at);
    if (!p->list_is_new || (p->list_n && first == p->list_n)) {
        make_list(p);
        first = 0;
    }
    p->planned = p->now;
    p->list_is_new = false;
    uint32_t want = policy_want(p), at = first;
    bool any = first < p->list_n;
    if (n_free <= want && any) /* those before will have gone when all that is wanted has come */
        for (uint32_t gone = p->units[p->list[at].id], next;
             gone <= want && (next = list_next(p, at + 1)) < p->list_n;) {
            at = next;
            gone += p->units[p->list[at].id];
        }
    /* A cache that is still filling takes everybody. What is freed comes in whole experts: up to one too many. */
    bool all = n_free > most_wanted(p) + p->units_max || !any;
    float bar = all ? -1 : p->list[at].worth * MARGIN;
    float room_bar = n_free > want && any ? p->list[first].worth : INFINITY;
    const float *restrict used = p->used_worth;
    const uint32_t *restrict units = p->units;
    uint8_t *restrict to = admit, differs = 0;
    for (uint32_t id = 0, n = p->n; id < n; id++) {
        uint8_t worth_it = used[id] > bar, fits = (used[id] > room_bar) | (units[id] != 0);
        uint8_t yes = (uint8_t)(worth_it * POLICY_WORTH_IT + (fits & !worth_it) * POLICY_IF_FREE); /* no branch */
        differs |= yes ^ to[id];
        to[id] = yes;
    }
    return differs;
}
