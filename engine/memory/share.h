/* share.h - how a layer's experts that are not in VRAM are divided between the device, which reads them over the link, and the CPU.
 * Pure: no clock, no I/O. */
#ifndef ENGINE_SHARE_H
#define ENGINE_SHARE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/fallback/batch.h"

enum { SHARE_DEVICE, SHARE_CPU, SHARE_SIDES };

/* What a byte takes on each side, as steps of each size have lately shown. Zeroed: nothing known. */
typedef struct share_rates {
    struct share_rate {
        double ns[BATCH_SLOTS]; /* a byte; 0: not known */
        uint32_t last;          /* slot that was noted last */
        uint32_t idle;          /* steps since */
        uint32_t noted;         /* times, the first few */
    } side[SHARE_SIDES];
} share_rates;

/* A step of `batch` sequences in which that side read `bytes` in `ns`; 0 bytes: it had nothing to do. */
void share_note(share_rates *r, int side, uint32_t batch, uint64_t bytes, uint64_t ns);

/* What a step goes by. */
typedef struct share_costs {
    double ns[SHARE_SIDES]; /* a byte; 0: not known */
    bool explore; /* the device is to have an expert of one layer in any case, or the CPU, that its rate may be known */
} share_costs;
/* For a step of `batch` sequences: by those of its size, else by the last that were noted. */
share_costs share_get(const share_rates *r, uint32_t batch);

typedef struct share_item { /* an expert that is not whole in VRAM */
    uint32_t expert, tokens;
    uint64_t link_bytes, bytes; /* to be read by the device, by the CPU */
    bool worth;                 /* would be kept in VRAM if the device read it */
} share_item;

/* Puts the items in an order of which the first *ret_device are the device's: so that the side that takes longer takes as little as
 * possible. Those that are worth a place in VRAM, then those of which the link has least to bring, then those of most tokens go
 * there first. Returns whether c->explore was followed. */
bool share_divide(const share_costs *c, share_item *items, uint32_t n, uint32_t *ret_device);

#endif
