/* batch.h - what steps take is kept by log2 of the number of sequences: 1, 2-3, 4-7, ... Pure. */
#ifndef ENGINE_BATCH_H
#define ENGINE_BATCH_H

#include <stdint.h>

#define BATCH_SLOTS 16u

static inline uint32_t batch_slot(uint32_t n_seqs)
{
    uint32_t i = 0;
    for (; n_seqs > 1 && i + 1 < BATCH_SLOTS; n_seqs /= 2)
        i++;
    return i;
}

#endif
