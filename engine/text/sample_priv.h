/* sample_priv.h - what sample.c has of sample_filter.c. */
#ifndef ENGINE_SAMPLE_PRIV_H
#define ENGINE_SAMPLE_PRIV_H

#include "engine/text/sample.h"

typedef struct cand {
    double v; /* logit, later weight: probability but for a factor */
    uint32_t id;
} cand;
/* Descending; the lower id first on ties. */
int cand_compare(const void *a, const void *b);

/* All keep at least one of n >= 1 candidates and return how many they keep, which are the first ones then. */

typedef struct filter_typed { /* scratch */
    double surprise, p;
} filter_typed;
/* v: logits. typed: [n] */
uint32_t filter_typical(cand *c, uint32_t n, double mass, filter_typed *typed);
/* v: weights exp((logit - largest) / temperature). In their order. */
uint32_t filter_xtc(cand *c, uint32_t n, double threshold, double temperature);
/* v: weights at temperature 1, which become those at the temperature that follows from them. */
void filter_heat(cand *c, uint32_t n, double temperature, double range, double exponent);
/* Standard deviation of a row. */
double filter_sigma(const float *logits, uint32_t n);

#endif
