/* core.h - everything a model needs to run, opened in the right order and sized to the memory there is: device, model, executor,
 * KV cache, pager. What the engine thread, the golden tests and the benchmark start from. No requests. */
#ifndef ENGINE_CORE_H
#define ENGINE_CORE_H

#include "config/config.h"
#include "config/error.h"
#include "config/util.h"
#include "engine/exec/exec.h"
#include "engine/memory/kv.h"
#include "engine/memory/pager.h"
#include "engine/model/model.h"

/* Where memory goes. Device rows are bytes of VRAM (of RAM where there is no other memory). */
typedef struct core_plan {
    uint64_t device_total, budget, trunk, workspace, kv, states, arena; /* budget 0: not bounded by device memory */
    uint64_t host_experts, kv_swap, state_copies;
} core_plan;

typedef struct core {
    const config *cfg;
    kern_dev *dev;
    kern_dev_info info;
    kern_dev *cpu;       /* for a part of missing experts; NULL: engine.deterministic = yes. May be dev */
    const char *backend; /* "cpu", "cuda" */
    char backend_why[256];
    model *m;
    const model_params *hp;
    routes *routes; /* NULL: routers pick */
    exec *x;
    kv_cache *kv;
    kv_options kv_opt;
    pager *pg;
    core_plan plan;
    uint32_t max_model_len, max_tokens, max_seqs, max_rows;
    uint32_t chunk; /* tokens of one sequence that a step can always take: kv_chunk() */
} core;

/* Opens all of it; `path` is the model's. progress gets a fraction and what is being done. cfg and path are borrowed for the
 * core's life. On failure nothing is left open. */
xd_status core_open(core *c, const config *cfg, const char *path,
                    void (*progress)(void *user, double fraction, const char *what), void *user,
                    xd_err *err) XD_MUST_CHECK;
void core_close(core *c); /* takes any state, {0} too */
/* The settings of engine.* that a machine can refuse; core_open() has asked. XD_BAD_CONFIG says why. */
xd_status core_check(const config *cfg, xd_err *err) XD_MUST_CHECK;
/* Positions that a sequence may have, if memory does not set a lower limit: what the executor is made for. */
static inline uint32_t core_context(const config *cfg, const model_params *hp)
{
    return cfg->model.max_model_len ? cfg->model.max_model_len : hp->max_positions;
}
/* What the KV cache keeps of this model, and how, under this configuration; without device, format and number of blocks. max_tokens: of a step. */
kv_options core_kv_options(const config *cfg, const model *m, uint32_t max_tokens);
/* Most tokens of a step: engine.max_num_batched_tokens, within reason. */
uint32_t core_max_tokens(const config *cfg, const model_params *hp, bool on_cpu);
/* Likewise, whether this model can have the context that is asked for: XD_UNSUPPORTED. */
xd_status core_check_context(const config *cfg, const model_params *hp, xd_err *err) XD_MUST_CHECK;
/* The format of kv.kv_dtype; XD_UNSUPPORTED: this model's heads cannot be kept in it. on_cpu: 'auto' depends on it. */
xd_status core_kv_format(const config *cfg, const model_params *hp, bool on_cpu, kern_fmt *ret,
                         xd_err *err) XD_MUST_CHECK;

/* The sizing of KV and arena: pure arithmetic, so that `inspect` and tests can ask without a device. room: bytes of device memory
 * left after trunk and workspace (UINT64_MAX: not bounded, use ram_bytes). XD_BAD_CONFIG shows the arithmetic and what would fit. */
typedef struct core_sizes {
    uint64_t room, ram_bytes, expert_bytes;
    const kv_options *kv_opt; /* what the cache keeps; borrowed */
    uint32_t max_seqs, model_max_len;
    uint32_t want_len;                /* max_model_len of the configuration, 0: auto */
    uint64_t want_kv, want_arena;     /* CONF_AUTO_BYTES: auto */
    uint64_t swap_bytes;              /* kv.swap_space */
    bool stages;                      /* cold blocks are staged */
    uint32_t n_blocks, max_model_len; /* out */
    bool cold;                        /* out: sequences use the swap space as blocks that steps read from there */
    uint32_t stage_blocks;            /* out: of these, staged at a time; their memory is a part of the KV budget */
    uint64_t stage_bytes;             /* out */
    uint64_t arena_bytes;             /* out */
} core_sizes;
/* Fills what is marked as out. */
xd_status core_size(core_sizes *s, xd_err *err) XD_MUST_CHECK;

#endif
