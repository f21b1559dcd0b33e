/* rate.h - the rate of the link as the experts' kernels get it, from steps that were not made for measuring. No clock, no I/O. */
#ifndef ENGINE_RATE_H
#define ENGINE_RATE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/fallback/batch.h"

typedef struct rate_meter { /* zeroed: nothing known */
    struct {
        double ns; /* what the experts of a step take without the link */
        uint32_t n;
    } base[BATCH_SLOTS];
    double bytes, ns; /* of the steps since the last take whose rate is known */
} rate_meter;

/* A decode step of `batch` sequences read `bytes` over a link that gives healthy_gbps at best; its experts took link_ns in all.
 * Learns the base of that batch, and counts the step where its rate is known. */
void rate_note(rate_meter *m, double healthy_gbps, uint32_t batch, double bytes, double link_ns);
/* A step whose time on the link is known from elsewhere. */
void rate_note_exact(rate_meter *m, double bytes, double link_ns);
/* The rate of what was counted, when that is at least half of `of_bytes`; begins anew. */
bool rate_take(rate_meter *m, double of_bytes, double *ret_gbps);

#endif
