/* pager.h - residency of expert pages: which lie in VRAM slots, which in host memory, which only on disk.
 *
 * A page is a whole number of rows of one matrix of one expert, at most page_size bytes. The pager owns the page table. It changes
 * only between steps: the engine brackets every step with pager_step_begin() / pager_step_end(), and what a step was given stays
 * true until its end, so a page never moves under a running kernel. Kernels only dereference addresses.
 *
 * Threads: pager_step_*, pager_require* by the engine thread; copies run on the pager's own thread; stats by any thread. */
#ifndef ENGINE_PAGER_H
#define ENGINE_PAGER_H

#include <stdbool.h>
#include <stdint.h>

#include "config/config.h"
#include "config/error.h"
#include "engine/memory/share.h"
#include "engine/model/model.h"
#include "kernels/kernels.h"

typedef struct pager pager;

typedef struct pager_options {
    kern_dev *dev;
    const model *m;
    const config *cfg;    /* memory.*, pager.*, test.* */
    uint64_t arena_bytes; /* VRAM slots; 0: none */
    void (*progress)(void *user, double fraction);
    void *progress_user;
} pager_options;

/* Builds the host tier (in place, or the pool), the arena and the first page table. Errors say how much was needed and how to
 * allow it. Borrows everything in opt until pager_free(). */
xd_status pager_open(const pager_options *opt, pager **ret, xd_err *err) XD_MUST_CHECK;
void pager_free(pager *p);
XD_DEFINE_CLEANUP(pager, pager_free)

/* How a model's experts of one layer are cut: also for inspect and for sizing before a pager exists. */
xd_status pager_geometry(const model_layer *l, uint32_t d_model, uint64_t page_size, kern_expert_geom *ret,
                         xd_err *err) XD_MUST_CHECK;

/* An expert with its pages one after the other, each on 256 bytes: as it lies in a pool or in a page file. */
uint64_t pager_blob_bytes(const kern_expert_geom *g);
/* Do the experts lie in the files as kernels read them? XD_UNSUPPORTED says where not. */
xd_status pager_check_in_place(const model *m, xd_err *err) XD_MUST_CHECK;
/* Can host memory of `budget` bytes, less than there are experts, be a cache over memory.nvme_path? XD_BAD_CONFIG says what it lacks. */
xd_status pager_check_budget(const config *cfg, const model *m, uint64_t budget, xd_err *err) XD_MUST_CHECK;

/* What one layer of a step reads. Device pointers, valid until pager_step_end(). */
typedef struct pager_layer_view {
    kern_expert_geom geom;
    uint32_t n_experts;
    uint64_t *page_addr;    /* [n_experts][geom.pages] */
    uint64_t *fill_addr;    /* [n_experts][geom.pages] or NULL */
    const uint8_t *admit;   /* [n_experts] 0: a missed page of the expert is not kept */
    uint32_t *expert_count; /* [n_experts]: out of the plan operation */
    uint32_t fill_log_base;
} pager_layer_view;

typedef struct pager_view {
    /* These two change with the mode: recorded graphs are then stale. */
    uint64_t arena_begin, arena_end; /* VRAM */
    uint32_t max_inserts;            /* a layer and step */
    const pager_layer_view *layers;  /* [n_layers]; pointers stay the same for the pager's life, contents change between
                                      * steps, so that a recorded graph may hold them */
    uint64_t *free_slots;            /* device [n_free]; the same pointer for ever */
    uint32_t n_free; /* capacity of the list (constant); slots that are not free this step are absent: see free_used */
    uint32_t *free_used; /* device scalar: the step begins with the first usable index and stops at n_free */
    uint32_t *fill_log;  /* device [n_free] */
    uint64_t version;    /* of the page table, for the log and tests */
} pager_view;

/* Adopts finished copies and decisions and uploads what changed. `prefill`: the step streams past the cache (no fill-through for
 * pages that only prompts touch). */
xd_status pager_step_begin(pager *p, bool prefill, const pager_view **ret, xd_err *err) XD_MUST_CHECK;
/* While a step runs, or before it does: does now what its pager_step_end() and the next pager_step_begin() would have to do first. Need
 * not be called. */
void pager_settle(pager *p);
/* The last operation of a step: its counters come to the host. May be recorded with the others. */
xd_status pager_step_fetch(pager *p, xd_err *err) XD_MUST_CHECK;
/* After the device has finished the step, pager_step_fetch() included: counts hits and bytes by tier, makes filled slots
 * resident from the next step, picks promotions and evictions. Never waits for a copy. */
xd_status pager_step_end(pager *p, xd_err *err) XD_MUST_CHECK;

/* Instead of pager_step_end() when the step was given up half-way (a device fault, an injected error): nothing it may have filled is
 * kept, since a plan may have run without its experts. The device must be idle. */
void pager_step_abort(pager *p);
/* Adopts finished copies and starts the next ones while no step runs; cheap. Call it now and then when there is no work. */
void pager_idle(pager *p);

/* True when, in a step with or without prompts, some pages may be neither in VRAM nor in host memory, or have to be brought or divided
 * first: then the engine must call pager_require() between the router and the experts of each layer (and cannot record whole steps). */
bool pager_needs_require(const pager *p, bool prefill);
/* Brings the pages of the experts with expert_touched[e] != 0 [host] into host memory or VRAM and uploads their addresses; faults
 * are read together. Everything that was launched before has ended by then: who knows expert_touched has waited for it. XD_UNAVAILABLE
 * (503) when the disk fails: only experts that could not be read are then left in expert_touched; the step is given up, who needs none
 * of them may run again, and the pages are tried again when they are needed again. */
xd_status pager_require(pager *p, uint32_t layer, uint32_t *expert_touched, xd_err *err) XD_MUST_CHECK;

/* Experts that the layer will likely need (expert_likely[e] != 0): read ahead from disk at lower priority, between two layers or steps.
 * Does nothing without an NVMe tier, and while more of it is wasted than used. */
bool pager_wants_prediction(const pager *p); /* otherwise it would do nothing: the caller need not predict */
void pager_predict(pager *p, uint32_t layer, const uint32_t *expert_likely);

/* Fallback, where experts lie: device memory that is free becomes slots beyond the arena, for all pages where it suffices and
 * memory.expert_vram_share allows it, else as many as fit. Whatever the mode, they are filled in the background, hottest experts first.
 * True: every page has a slot, none lies on disk only, and PAGER_FULL can be had; else *why says what keeps the others out. May be
 * called again; between steps, as those below. */
bool pager_take_spare(pager *p, xd_err *why);
/* The mode is DIRECT then. */
void pager_give_back_spare(pager *p);

/* Fallback, how misses are served. DIRECT: read in place. STAGED: pager_needs_require() becomes true and missing pages are first
 * copied in bulk into staging slots. FULL: each page has a slot, what is missing is on its way there, and steps keep all they read. Fails
 * where not every page has one, or when some lie on disk. SHARED: what a step without prompts misses is divided between kernels, which read
 * it in place, and the caller's CPU (pager_share_layer()); steps with prompts go on as in the mode before, STAGED or DIRECT. After a failure
 * to enter STAGED the mode is DIRECT. */
enum { PAGER_DIRECT, PAGER_STAGED, PAGER_FULL, PAGER_SHARED };
xd_status pager_set_mode(pager *p, int mode, xd_err *err) XD_MUST_CHECK;
int pager_get_mode(const pager *p);
/* PAGER_SHARED, in a step without prompts: pager_share_layer() should be asked, behind pager_require(). */
bool pager_shares(const pager *p, bool prefill);
typedef struct pager_share {
    const uint8_t *on_cpu;     /* [n_experts] not 0: computed by the caller */
    const uint64_t *host_addr; /* [n_experts][geom.pages] of those: where each page lies in host memory, for the CPU */
    const uint64_t *
        fill_addr; /* [host] [n_experts][geom.pages] slots that kernels have to fill; until the next call. NULL: none */
    uint64_t cpu_bytes, link_bytes; /* read by the CPU; by kernels, in place */
} pager_share;
/* Divides the experts with expert_tokens[e] != 0 that are not whole in VRAM by what a byte takes either side; all others are the kernels' too.
 * False: there are none. Clears costs->explore once it was followed. What *ret points to holds until the step ends. Who does not ask may
 * let kernels read all of them in place. */
bool pager_share_layer(pager *p, uint32_t layer, const uint32_t *expert_tokens, share_costs *costs, pager_share *ret);
/* Least time that a simulated link needed for the last step; 0: none is simulated. Engine thread, between steps. */
uint64_t pager_step_link_ns(const pager *p);
uint64_t pager_step_wait_ns(const pager *p); /* what pager_step_end() waited for that */
/* Bytes that a decode step lately missed, whoever read them; 0: not known. Engine thread. */
uint64_t pager_missed_bytes(const pager *p);
/* In a step, by the engine thread: bytes that a decode step read where they lie in host memory, lately (UINT64_MAX: not yet known). 0 while
 * it is not done so, or copies of the pager's use the link. */
uint64_t pager_read_in_place(const pager *p);

/* Rate at which kernels read the host tier now (GB/s), by a short read for which the pager's own copies are held up: engine thread,
 * between steps. An injected link rate counts. XD_UNSUPPORTED when there is nothing to read. */
xd_status pager_probe_link(pager *p, double *ret_gbps, xd_err *err) XD_MUST_CHECK;
/* False where host memory is the device's own memory and no link is simulated: then there is nothing to watch. */
bool pager_has_link(const pager *p);

/* Takes over the test.link_* settings, which may change while running; between steps. */
xd_status pager_reload(pager *p, const config *cfg, xd_err *err) XD_MUST_CHECK;

typedef struct pager_stats {
    uint64_t pages_total, slots_total, slots_used, page_bytes_max;
    uint64_t slot_bytes, slots_spare; /* of slots_total: beyond the arena */
    uint64_t expert_bytes_total, vram_bytes, host_bytes,
        disk_bytes; /* where pages lie now; a page in VRAM counts once, there */
    uint64_t host_capacity_bytes;
    uint64_t hits_vram, hits_host, hits_disk;    /* pages touched, by tier; monotonic */
    uint64_t bytes_vram, bytes_host, bytes_disk; /* read by tier; monotonic */
    uint64_t bytes_cpu;                          /* left to the CPU, which reads them in host memory; monotonic */
    uint64_t promotions, fills, evictions;       /* pages; monotonic */
    uint64_t prefetched_useful_bytes, prefetched_wasted_bytes, predictions, predictions_right;
    uint64_t staged_ahead_useful_bytes,
        staged_ahead_wasted_bytes; /* STAGED: copied for the next layer while one computes */
    uint64_t io_errors,
        checksum_errors; /* reads of the page file that failed or gave wrong bytes, those that went well at the second try too */
    uint64_t loads_repaired; /* experts that the page file gave wrong and the model right */
    uint64_t loads_failed;   /* experts that could not be read at the second try either */
    uint64_t stats_errors;   /* hit statistics that could not be saved */
    uint64_t require_ns;     /* time that steps waited in pager_require(): for the disk, or for staged copies */
    uint64_t stage_ns;       /* of that, for staged copies */
    uint64_t link_wait_ns;   /* time added to steps by a simulated link */
    uint64_t disk_busy_ns;   /* time in which the page file was being read */
    uint64_t step_bytes_host, step_bytes_vram, step_bytes_cpu; /* of the last step */
    uint64_t step_link_ns; /* least time that a simulated link needed for them; 0: none is simulated */
    uint64_t table_version;
    int mode;
    bool filling; /* free slots are being filled in the background */
    bool in_place;
    char not_in_place[160];           /* why the mapped files are not the host tier although that was tried, or "" */
    char policy[16], disk_reader[16]; /* disk_reader: "io_uring", "threads", or "" */
} pager_stats;
void pager_get_stats(pager *p, pager_stats *ret); /* waits while a step waits for the disk */
/* The same for onlookers: never waits; what was last known when a step is waiting. */
void pager_peek_stats(pager *p, pager_stats *ret);
/* What fails no request at once, in words, while it lasts: experts that could not be read when they were last wanted; hit statistics that
 * cannot be saved; a trace that was cut short. False: nothing. Any thread; never waits. */
enum { PAGER_TROUBLE_READ, PAGER_TROUBLE_STATS, PAGER_TROUBLE_TRACE, PAGER_TROUBLES, PAGER_TROUBLE_BYTES = 1024 };
bool pager_get_trouble(pager *p, int kind, char out[PAGER_TROUBLE_BYTES]);
/* Heat map for the status page: [n_layers][n_experts_max] tier (0 disk, 1 host, 2 VRAM, 255 none) and heat 0..255. Any thread. False:
 * not now, since a step is waiting for the disk. */
bool pager_get_map(pager *p, uint8_t *tier, uint8_t *heat);
/* Whether hit statistics of the model with this fingerprint can be saved where they are to be. */
xd_status pager_check_stats(const config *cfg, uint64_t fingerprint, xd_err *err) XD_MUST_CHECK;
/* Saves hit statistics (warm start) now; also done on pager_free(). */
xd_status pager_save_stats(pager *p, xd_err *err) XD_MUST_CHECK;

#endif
