/* sample.c - penalties, the common filters and the draw, in float64 on the host; the rarer filters: sample_filter.c, DRY: sample_dry.c.
 *
 * Definitions follow transformers' logits processors (repetition penalty, temperature, top_k with ties kept, top_p, min_p) and vLLM
 * (presence and frequency penalty over the output; log probabilities of the raw distribution). Nothing here knows of requests. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/sample_priv.h"

struct sampler {
    uint32_t vocab;
    cand *c;
    filter_typed *typed; /* NULL until somebody asks for typical_p */
    dry_found found;
};

/* Open addressing, power-of-two size, at most half full. */
typedef struct seen {
    uint32_t id_plus_1, n_output;
} seen;
struct sample_history {
    seen *slots;
    uint32_t cap, used;
    sample_dry *dry; /* NULL: none */
    dry_run run;
};

/* Numbers of different use are of different streams, so that none depends on whether another was drawn. */
enum { STREAM_TOKEN, STREAM_XTC };

static double uniform(uint64_t seed, uint64_t index, uint32_t stream)
{
    uint32_t c[4] = {(uint32_t)index, (uint32_t)(index >> 32), stream, 0},
             k[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    for (int r = 0; r < 10; r++) {
        uint64_t a = (uint64_t)c[0] * 0xD2511F53u, b = (uint64_t)c[2] * 0xCD9E8D57u;
        uint32_t n[4] = {(uint32_t)(b >> 32) ^ c[1] ^ k[0], (uint32_t)b, (uint32_t)(a >> 32) ^ c[3] ^ k[1],
                         (uint32_t)a};
        memcpy(c, n, sizeof c);
        k[0] += 0x9E3779B9u;
        k[1] += 0xBB67AE85u;
    }
    uint64_t bits = ((uint64_t)c[0] << 32 | c[1]) >> 11;
    return (double)bits * 0x1p-53;
}

double sample_uniform(uint64_t seed, uint64_t index)
{
    return uniform(seed, index, STREAM_TOKEN);
}

bool sample_wants_history(const sampler_params *p)
{
    return p->repetition_penalty != 1 || p->presence_penalty != 0 || p->frequency_penalty != 0 || p->dry;
}

static bool wants_typical(const sampler_params *p)
{
    return p->typical_p > 0 && p->typical_p < 1;
}

sample_need sample_need_of(const sampler_params *p, int32_t n_logprobs, bool limited)
{
    if (sample_wants_history(p) || p->n_bias || limited)
        return SAMPLE_NEED_ROW;
    if (p->temperature == 0)
        return n_logprobs < 0 ? SAMPLE_NEED_ARGMAX : SAMPLE_NEED_TOP;
    if (p->top_n_sigma > 0 || wants_typical(p) || p->xtc_probability > 0 || p->dynatemp_range > 0)
        return SAMPLE_NEED_ROW;
    /* One candidate beyond top_k shows whether the list holds all ties of the k-th. */
    return p->top_k && p->top_k <= 63 ? SAMPLE_NEED_TOP : SAMPLE_NEED_ROW;
}

sample_history *sample_history_new(sample_dry *dry)
{
    sample_history *h = calloc(1, sizeof *h);
    if (h)
        h->dry = dry;
    return h;
}

void sample_history_free(sample_history *h)
{
    if (!h)
        return;
    free(h->slots);
    dry_run_clear(&h->run);
    free(h);
}

static seen *find_slot(seen *slots, uint32_t cap, uint32_t id)
{
    uint32_t i = (id * 2654435761u) & (cap - 1);
    while (slots[i].id_plus_1 && slots[i].id_plus_1 != id + 1)
        i = (i + 1) & (cap - 1);
    return &slots[i];
}

bool sample_history_add(sample_history *h, uint32_t id, bool is_output)
{
    if (h->used * 2 >= h->cap) {
        uint32_t cap = h->cap ? h->cap * 2 : 64;
        seen *slots = calloc(cap, sizeof *slots);
        if (!slots)
            return false;
        for (uint32_t i = 0; i < h->cap; i++)
            if (h->slots[i].id_plus_1)
                *find_slot(slots, cap, h->slots[i].id_plus_1 - 1) = h->slots[i];
        free(h->slots);
        h->slots = slots;
        h->cap = cap;
    }
    seen *s = find_slot(h->slots, h->cap, id);
    h->used += !s->id_plus_1;
    s->id_plus_1 = id + 1;
    s->n_output += is_output;
    return !h->dry || dry_push(h->dry, &h->run, id);
}

sampler *sampler_new(uint32_t vocab)
{
    sampler *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->vocab = vocab;
    s->c = calloc(vocab ? vocab : 1, sizeof *s->c);
    if (!s->c) {
        free(s);
        return NULL;
    }
    return s;
}

void sampler_free(sampler *s)
{
    if (!s)
        return;
    free(s->c);
    free(s->typed);
    dry_found_clear(&s->found);
    free(s);
}

static xd_status not_finite(xd_err *err)
{
    return xd_fail(err, XD_INTERNAL, 0,
                   "the model produced logits that are not finite numbers: damaged weights or a device fault");
}

int cand_compare(const void *a, const void *b)
{
    const cand *x = a, *y = b;
    if (x->v != y->v)
        return x->v > y->v ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* Puts the k first of cand_compare's order to the front, unordered (quickselect, Hoare's partition). */
static void select_top(cand *c, uint32_t n, uint32_t k)
{
    int64_t lo = 0, hi = n; /* the border lies in [lo, hi] */
    while (hi - lo > 1) {
        cand pivot = c[lo + (hi - lo - 1) / 2];
        int64_t i = lo - 1, j = hi;
        for (;;) {
            do
                i++;
            while (cand_compare(&c[i], &pivot) < 0);
            do
                j--;
            while (cand_compare(&pivot, &c[j]) < 0);
            if (i >= j)
                break;
            cand t = c[i];
            c[i] = c[j];
            c[j] = t;
        }
        if (k == j + 1)
            return;
        if (k < j + 1)
            hi = j + 1;
        else
            lo = j + 1;
    }
}

static xd_status raw_logprobs(sampler *s, const float *logits, int32_t n_logprobs, double *ret_lse, sample_result *ret,
                              xd_err *err)
{
    double max = -INFINITY, sum = 0;
    for (uint32_t i = 0; i < s->vocab; i++) {
        if (!isfinite(logits[i]))
            return not_finite(err);
        max = logits[i] > max ? logits[i] : max;
    }
    for (uint32_t i = 0; n_logprobs >= 0 && i < s->vocab; i++)
        sum += exp(logits[i] - max);
    *ret_lse = max + log(sum);
    ret->n_top = 0;
    if (n_logprobs <= 0)
        return XD_OK;
    uint32_t k = XD_MIN((uint32_t)n_logprobs, XD_MIN(s->vocab, (uint32_t)ENGINE_MAX_TOP_LOGPROBS)), n = 0;
    /* Insertion into a short descending list: ties keep the lower id first because ids ascend. */
    for (uint32_t i = 0; i < s->vocab; i++) {
        if (n == k && !(logits[i] > ret->top[n - 1].logprob))
            continue;
        uint32_t at = n < k ? n++ : n - 1;
        while (at && logits[i] > ret->top[at - 1].logprob) {
            ret->top[at] = ret->top[at - 1];
            at--;
        }
        ret->top[at] = (engine_logprob){.id = i, .logprob = logits[i]};
    }
    for (uint32_t i = 0; i < n; i++) {
        ret->top[i].logprob = (float)(ret->top[i].logprob - *ret_lse);
        ret->top[i].rank = i + 1;
    }
    ret->n_top = n;
    return XD_OK;
}

static void score_chosen(sampler *s, const float *logits, uint32_t id, double lse, sample_result *ret)
{
    uint32_t rank = 1;
    for (uint32_t i = 0; i < s->vocab; i++)
        rank += logits[i] > logits[id];
    ret->chosen = (engine_logprob){.id = id, .logprob = (float)(logits[id] - lse), .rank = rank};
}

xd_status sample_score(sampler *s, const float *logits, uint32_t id, int32_t n_logprobs, sample_result *ret,
                       xd_err *err)
{
    double lse = 0;
    xd_status st = raw_logprobs(s, logits, n_logprobs < 0 ? 0 : n_logprobs, &lse, ret, err);
    if (st)
        return st;
    ret->id = id;
    score_chosen(s, logits, id, lse, ret);
    return XD_OK;
}

/* Draws from c[0..n) whose v are scaled logits; `sorted` descending, else in order of id. */
static uint32_t draw(cand *c, uint32_t n, bool sorted, const sampler_params *p, uint32_t token_idx)
{
    double max = c[0].v, sum = 0;
    for (uint32_t i = 1; i < n && !sorted; i++)
        max = c[i].v > max ? c[i].v : max;
    for (uint32_t i = 0; i < n; i++) {
        c[i].v = exp(c[i].v - max);
        sum += c[i].v;
    }
    if (p->top_p < 1) {
        double before = 0, limit = p->top_p * sum;
        uint32_t keep = 0;
        while (keep < n && (keep == 0 || before < limit))
            before += c[keep++].v;
        n = keep;
    }
    if (p->min_p > 0) {
        uint32_t keep = 0;
        for (uint32_t i = 0; i < n; i++)
            if (c[i].v >= p->min_p) /* the largest is 1 */
                c[keep++] = c[i];
        n = keep;
    }
    if (p->xtc_probability > 0 && uniform(p->seed, token_idx, STREAM_XTC) < p->xtc_probability)
        n = filter_xtc(c, n, p->xtc_threshold, p->dynatemp_range > 0 ? 1 : p->temperature);
    if (p->dynatemp_range > 0)
        filter_heat(c, n, p->temperature, p->dynatemp_range, p->dynatemp_exponent);
    sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += c[i].v;
    double left = sample_uniform(p->seed, token_idx) * sum;
    for (uint32_t i = 0; i < n; i++) {
        left -= c[i].v;
        if (left < 0)
            return c[i].id;
    }
    while (n > 1 && c[n - 1].v <= 0)
        n--;
    return c[n - 1].id; /* rounding left a remainder: the last that has any probability */
}

/* Descending order as far as top_p can reach: sorted in growing parts, for vocabularies are large and nuclei small. */
static uint32_t sort_nucleus(cand *c, uint32_t n, double top_p, double max)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += exp(c[i].v - max);
    for (uint32_t k = 256;; k *= 8) {
        k = XD_MIN(k, n);
        if (k < n)
            select_top(c, n, k);
        double mass = 0;
        for (uint32_t i = 0; i < k; i++)
            mass += exp(c[i].v - max);
        /* The margin keeps rounding from cutting a token that the exact sum would keep. */
        if (k == n || mass > top_p * sum * (1 + 1e-12)) {
            qsort(c, k, sizeof *c, cand_compare);
            return k;
        }
    }
}

/* Keeps the k largest and those equal to the k-th. */
static uint32_t keep_top(cand *c, uint32_t n, uint32_t k)
{
    select_top(c, n, k);
    double kth = c[0].v;
    for (uint32_t i = 1; i < k; i++)
        kth = c[i].v < kth ? c[i].v : kth;
    uint32_t keep = k;
    for (uint32_t i = k; i < n; i++)
        if (c[i].v == kth)
            c[keep++] = c[i];
    return keep;
}

static uint32_t draw_filtered(sampler *s, uint32_t n, const sampler_params *p, uint32_t token_idx)
{
    cand *c = s->c;
    const bool few = p->top_k && p->top_k < n;
    if (few)
        n = keep_top(c, n, p->top_k);
    if (wants_typical(p))
        n = filter_typical(c, n, p->typical_p, s->typed);
    if (few) {
        qsort(c, n, sizeof *c, cand_compare);
        return draw(c, n, true, p, token_idx);
    }
    if (p->top_p >= 1)
        return draw(c, n, false, p, token_idx);
    double max = c[0].v, all = 0;
    for (uint32_t i = 1; i < n; i++)
        max = c[i].v > max ? c[i].v : max;
    for (uint32_t i = 0; i < n; i++)
        all += exp(c[i].v - max);
    uint32_t k = sort_nucleus(c, n, p->top_p, max);
    if (k == n)
        return draw(c, n, true, p, token_idx);
    /* top_p is a share of the whole row's mass, of which only the front is at hand. */
    sampler_params q = *p;
    double share = p->top_p * all, before = 0;
    uint32_t keep = 0;
    while (keep < k && (keep == 0 || before < share))
        before += exp(c[keep++].v - max);
    q.top_p = 1;
    return draw(c, keep, true, &q, token_idx);
}

static double penalised(double v, const seen *e, const sampler_params *p)
{
    v = v < 0 ? v * p->repetition_penalty : v / p->repetition_penalty;
    if (e->n_output)
        v -= (double)p->frequency_penalty * e->n_output + p->presence_penalty;
    return v;
}

static void apply_limits(sampler *s, const sample_limits *l)
{
    cand *c = s->c;
    for (uint32_t i = 0; i < l->n_also && l->allowed; i++) /* kept aside: id says so, v stays */
        if (l->also[i] < s->vocab)
            c[l->also[i]].id = UINT32_MAX;
    for (uint32_t i = 0; i < s->vocab && l->allowed; i++)
        if (!(l->allowed[i / 64] >> i % 64 & 1) && c[i].id == i)
            c[i].v = -INFINITY;
    for (uint32_t i = 0; i < l->n_banned; i++)
        if (l->banned[i] < s->vocab)
            c[l->banned[i]].v = -INFINITY;
}

xd_status sample_row(sampler *s, const sampler_params *p, const sample_history *h, const float *logits,
                     uint32_t token_idx, const sample_limits *limits, int32_t n_logprobs, sample_result *ret,
                     xd_err *err)
{
    double lse = 0;
    xd_status st = raw_logprobs(s, logits, n_logprobs, &lse, ret, err);
    if (st)
        return st;
    cand *c = s->c;
    for (uint32_t i = 0; i < s->vocab; i++)
        c[i] = (cand){.v = logits[i], .id = i};
    for (uint32_t i = 0; h && i < h->cap; i++) {
        const seen *e = &h->slots[i];
        if (e->id_plus_1 && e->id_plus_1 <= s->vocab)
            c[e->id_plus_1 - 1].v = penalised(c[e->id_plus_1 - 1].v, e, p);
    }
    if (h && h->dry) {
        if (!dry_find(h->dry, &h->run, &s->found))
            return xd_fail(err, XD_NOMEM, 0, "finding repetitions in %u tokens", h->run.n);
        for (uint32_t i = 0; i < s->found.n; i++)
            c[s->found.ids[i]].v -= dry_penalty(h->dry, s->found.lengths[i]);
    }
    for (uint32_t i = 0; i < p->n_bias; i++)
        if (p->bias_ids[i] < s->vocab)
            c[p->bias_ids[i]].v += p->bias[i];
    apply_limits(s, limits);
    uint32_t best = 0, n = 0;
    for (uint32_t i = 1; i < s->vocab; i++)
        if (c[i].v > c[best].v)
            best = i;
    if (!isfinite(c[best].v))
        return xd_fail(err, XD_INTERNAL, 0, "no token is left to choose from");
    uint32_t id = best;
    if (p->temperature > 0) {
        if (wants_typical(p) && !s->typed && !(s->typed = calloc(s->vocab, sizeof *s->typed)))
            return xd_fail(err, XD_NOMEM, 0, "how typical each of %u tokens is", s->vocab);
        double temperature = p->dynatemp_range > 0 ? 1 : p->temperature, least = -INFINITY;
        if (p->top_n_sigma > 0)
            least = c[best].v - p->top_n_sigma * filter_sigma(logits, s->vocab);
        for (uint32_t i = 0; i < s->vocab; i++)
            if (c[i].v > -INFINITY && c[i].v >= least)
                c[n++] = (cand){.v = c[i].v / temperature, .id = i};
        id = draw_filtered(s, n, p, token_idx);
    }
    ret->id = id;
    if (n_logprobs >= 0)
        score_chosen(s, logits, id, lse, ret);
    return XD_OK;
}

xd_status sample_top(sampler *s, const sampler_params *p, const uint32_t *ids, const float *values, uint32_t n,
                     float logsumexp, uint32_t token_idx, int32_t n_logprobs, sample_result *ret, xd_err *err)
{
    while (n && ids[n - 1] == UINT32_MAX)
        n--;
    if (!n || !isfinite(logsumexp) || !isfinite(values[0]) || !isfinite(values[n - 1]))
        return not_finite(err);
    uint32_t id = ids[0];
    if (p->temperature > 0) {
        for (uint32_t i = 0; i < n; i++)
            s->c[i] = (cand){.v = (double)values[i] / p->temperature, .id = ids[i]};
        id = draw_filtered(s, n, p, token_idx);
    }
    ret->id = id;
    ret->n_top = 0;
    if (n_logprobs < 0)
        return XD_OK;
    ret->n_top = XD_MIN((uint32_t)n_logprobs, XD_MIN(n, (uint32_t)ENGINE_MAX_TOP_LOGPROBS));
    for (uint32_t i = 0; i < ret->n_top; i++)
        ret->top[i] = (engine_logprob){.id = ids[i], .logprob = values[i] - logsumexp, .rank = i + 1};
    for (uint32_t i = 0, rank = 1; i < n; i++) {
        rank = i && values[i] < values[i - 1] ? i + 1 : rank;
        if (ids[i] == id)
            ret->chosen = (engine_logprob){.id = id, .logprob = values[i] - logsumexp, .rank = rank};
    }
    return XD_OK;
}
