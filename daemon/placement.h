/* placement.h - the configured model as far as it can be known without a device: its files opened and checked, and where its bytes would
 * go. What `inspect` shows and `check` judges; the sizes come from the engine's own rule (core_size). */
#ifndef DAEMON_PLACEMENT_H
#define DAEMON_PLACEMENT_H

#include "config/config.h"
#include "engine/memory/kv.h"
#include "engine/model/model.h"

/* Opens model.path as serving does - every header, every tensor's type, shape and range - but takes no memory for a synthetic one. */
xd_status placement_open_model(const config *cfg, model **ret, xd_err *err) XD_MUST_CHECK;

/* Where the bytes go. Experts in VRAM are counted in the host tier (or on disk) too: the cache holds copies. */
typedef struct placement {
    bool on_cpu, known; /* known: the size of the device's memory is given, and what must be there fits */
    char assumed[200];  /* about the machine */
    uint64_t ram_bytes; /* of this one */
    bool kv_known;
    kv_options kv_opt; /* without a number of blocks */
    uint64_t kv_blocks, kv, states, state_copies, arena, host, disk;
    uint32_t context;
    const char *kv_name;
    xd_err problem; /* status 0: none */
} placement;

/* Always fills *ret; what cannot work is its problem. */
void placement_of(const model *m, const config *cfg, placement *ret);
/* Memory of this machine that all of it takes. */
uint64_t placement_ram_bytes(const placement *p, uint64_t trunk_bytes, uint64_t swap_bytes);

#endif
