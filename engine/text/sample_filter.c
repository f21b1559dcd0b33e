/* sample_filter.c - filters that only some clients use, between those of sample.c: typical_p, XTC, dynamic temperature, top_n_sigma.
 *
 * Each is one or a few passes over the candidates, without sorting them: a vocabulary is large, and so may be what is left of it. */
#include "engine/text/sample_priv.h"

#include <math.h>

/* The least surprise that at least `mass` of the probability does not exceed; the largest of all if rounding leaves too little. A
 * quickselect (Hoare's partition) by weight: t is reordered. */
static double typical_bound(filter_typed *t, uint32_t n, double mass)
{
    int64_t lo = 0, hi = n; /* it is one of [lo, hi) */
    double before = 0;
    while (hi - lo > 1) {
        double pivot = t[lo + (hi - lo - 1) / 2].surprise, part = 0;
        int64_t i = lo - 1, j = hi;
        for (;;) {
            do
                i++;
            while (t[i].surprise < pivot);
            do
                j--;
            while (pivot < t[j].surprise);
            if (i >= j)
                break;
            filter_typed swap = t[i];
            t[i] = t[j];
            t[j] = swap;
        }
        for (int64_t k = lo; k <= j; k++)
            part += t[k].p;
        if (before + part >= mass) {
            hi = j + 1;
        } else {
            before += part;
            lo = j + 1;
        }
    }
    return t[lo].surprise;
}

uint32_t filter_typical(cand *c, uint32_t n, double mass, filter_typed *typed)
{
    double max = c[0].v, sum = 0, entropy = 0;
    for (uint32_t i = 1; i < n; i++)
        max = c[i].v > max ? c[i].v : max;
    for (uint32_t i = 0; i < n; i++) {
        typed[i].p = exp(c[i].v - max);
        sum += typed[i].p;
    }
    const double log_sum = max + log(sum);
    for (uint32_t i = 0; i < n; i++) {
        typed[i].p /= sum;
        entropy += typed[i].p * (log_sum - c[i].v);
    }
    for (uint32_t i = 0; i < n; i++)
        typed[i].surprise = fabs(log_sum - c[i].v - entropy);
    const double bound = typical_bound(typed, n, mass);
    uint32_t keep = 0;
    for (uint32_t i = 0; i < n; i++)
        if (fabs(log_sum - c[i].v - entropy) <= bound) /* with ties of the last one, as the reference */
            c[keep++] = c[i];
    return keep;
}

uint32_t filter_xtc(cand *c, uint32_t n, double threshold, double temperature)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += temperature == 1 ? c[i].v : pow(c[i].v, temperature);
    const cand *least = NULL; /* of those that reach the threshold, which are the first in cand_compare's order */
    for (uint32_t i = 0; i < n; i++) {
        double p = temperature == 1 ? c[i].v : pow(c[i].v, temperature);
        if (p >= threshold * sum && (!least || cand_compare(&c[i], least) > 0))
            least = &c[i];
    }
    if (!least)
        return n;
    const cand from = *least;
    uint32_t keep = 0;
    for (uint32_t i = 0; i < n; i++)
        if (cand_compare(&c[i], &from) >= 0)
            c[keep++] = c[i];
    return keep;
}

void filter_heat(cand *c, uint32_t n, double temperature, double range, double exponent)
{
    if (n < 2)
        return;
    const double coldest = fmax(0, temperature - range), hottest = temperature + range;
    double sum = 0, entropy = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += c[i].v;
    const cand *best = c;
    for (uint32_t i = 0; i < n; i++) {
        double p = c[i].v / sum;
        if (p > 0)
            entropy -= p * log(p);
        if (cand_compare(&c[i], best) < 0)
            best = &c[i];
    }
    const cand top = *best;
    const double t = coldest + (hottest - coldest) * pow(fmin(1, entropy / log(n)), exponent);
    for (uint32_t i = 0; i < n; i++)
        if (t < 1e-5) /* as a temperature that is that low: the likeliest */
            c[i].v = c[i].id == top.id;
        else
            c[i].v = pow(c[i].v / top.v, 1 / t);
}

double filter_sigma(const float *logits, uint32_t n)
{
    double mean = 0, squares = 0;
    for (uint32_t i = 0; i < n; i++)
        mean += logits[i];
    mean /= n;
    for (uint32_t i = 0; i < n; i++)
        squares += (logits[i] - mean) * (logits[i] - mean);
    return sqrt(squares / n);
}
