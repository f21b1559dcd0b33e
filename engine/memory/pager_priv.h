/* pager_priv.h - the pager's state, shared by its files: pager.c (steps, residency, statistics), pager_open.c (its life), pager_link.c (the link's rate),
 * pager_spare.c (bulk filling, memory beyond the arena), pager_stage.c (modes, staging), pager_share.c (experts left to the CPU), pager_host.c (the host
 * tier), pager_disk.c (the disk), pager_copy.c (the copy thread), pager_trouble.c (what the operator is told), pager_warm.c (what a next start knows). */
#ifndef ENGINE_PAGER_PRIV_H
#define ENGINE_PAGER_PRIV_H

#include <pthread.h>
#include <stdatomic.h>

#include "engine/memory/disk_io.h"
#include "engine/memory/hostmem_priv.h"
#include "engine/memory/link_sim.h"
#include "engine/memory/pager.h"
#include "engine/memory/policy.h"
#include "engine/memory/share.h"
#include "engine/memory/trace.h"

#define PG_NONE   UINT32_MAX
#define PG_PIECES 32u

typedef struct pager_layer {
    kern_expert_geom geom;
    uint32_t n_experts, page_base, expert_base;
    uint64_t expert_bytes; /* of one expert's pages */
    uint64_t blob_bytes;   /* one expert with its pages one after the other, each on 256 bytes */
} pager_layer;

/* A page: fixed facts, and where it is. */
typedef struct pager_page {
    uint32_t expert; /* over all layers */
    uint32_t bytes;
    uint32_t slot;      /* VRAM slot, or PG_NONE */
    uint32_t copying;   /* slot that a running copy fills, or PG_NONE */
    const void *src;    /* host copy, or NULL while it is only on disk */
    uint64_t host_addr; /* the same for kernels, or 0 */
} pager_page;

typedef struct pager_copy_job {
    uint32_t page, slot;
    void *dst;
    const void *src;
    uint64_t bytes;
    bool staged; /* for a layer of this step: the slot is not the page's */
    bool failed;
} pager_copy_job;

/* The copy thread: jobs in, finished jobs out. */
typedef struct pager_copier {
    kern_dev *dev;
    pager *owner;                          /* for pager_save_stats() */
    uint64_t save_interval_ns, save_at_ns; /* save_at_ns 0: not yet */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake, idle;
    pager_copy_job *queue, *done;             /* [cap] each */
    uint32_t n_queue, n_running, n_done, cap; /* n_running: of the queue's front, being copied */
    uint64_t batch_bytes;                     /* at most, but always one job */
    bool started, stop, busy, held, saving;
} pager_copier;

typedef struct pager_piece { /* device memory beyond the arena */
    char *base;
    uint32_t first_slot; /* up to the next piece's */
} pager_piece;

typedef struct pager_staged {
    uint32_t page, slot;
} pager_staged;

typedef struct pager_hot {
    float heat;
    uint32_t at, x; /* the expert's place in its layer; among all */
} pager_hot;

typedef struct pager_host { /* the host tier */
    struct pager_reg {
        void *base;
        uint64_t bytes;
    } * regs;
    uint32_t n_regs;
    hostmem *pool;
    bool in_place;
    uint64_t bytes;                   /* of the tier */
    uint64_t probe_addr, probe_bytes; /* the largest run that kernels can read */
} pager_host;

typedef struct pager_trouble {
    char text[PAGER_TROUBLE_BYTES]; /* "": none */
    uint64_t told_ns;
} pager_trouble;

struct pager {
    kern_dev *dev;
    const model *m;
    const config *cfg;
    uint32_t n_layers, n_experts, n_pages;
    pager_layer *layers;
    uint32_t *expert_layer; /* [n_experts] */
    uint32_t *expert_vram;  /* [n_experts] pages in VRAM */
    pager_page *pages;      /* [n_pages] */
    policy *pol;
    pager_host host;
    struct pager_disk *disk; /* NULL: no NVMe tier */
    uint64_t disk_in_pages;  /* faults of this step */

    /* arena */
    char *arena;
    uint64_t slot_bytes, arena_bytes;
    uint32_t n_slots, n_slots_used; /* n_slots: those of all pieces included */
    uint32_t n_arena_slots, n_pieces;
    pager_piece pieces[PG_PIECES];
    uint32_t *slot_page; /* [n_pages] page that lies there or is being copied there, or PG_NONE */
    uint32_t *free_slot; /* stack of slots that hold nothing */
    uint32_t n_free_slots;

    /* What the device reads. Mirrors are pinned host memory that only changes while no step runs, so an upload may still be in the
     * stream when the next kernel is launched. */
    uint64_t *fill_dev; /* [n_pages], written by the plan operation */
    /* One block: [n_pages] u64 page table | [n_experts] u8 admitted or not, padded | [offer_cap] u64 slots offered to the step | u32 free_used,
     * pad | [offer_cap] u32 fill_log | u32 counts of all experts. The step's input and its output are then one copy each. */
    char *io_dev, *io;
    uint64_t *table;             /* the first part of io */
    uint32_t dirty_lo, dirty_hi; /* entries of the table that may differ from the device's */
    uint8_t *admit;              /* the second part */
    uint64_t io_bytes, io_admit_at, io_offer_at, io_used_at, io_log_at, io_counts_at;
    uint32_t *offer_slot; /* [offer_cap] the offers as slot numbers */
    uint32_t offer_cap, offer_first;
    bool offer_consumed; /* the device has moved free_used */
    bool admit_changed;  /* since it was uploaded */

    pager_layer_view *layer_views;
    pager_view view;
    bool in_step, step_prefill, decode_known;
    double decode_host_bytes; /* of a decode step, decaying mean */
    uint64_t step_started_ns, step_wait_ns;
    /* STAGED: n_stage slots for pages of the layer that is about to run, and of the next one. Each is free, or holds a page that the
     * table shows, or a page of the next layer that the copy thread brings. */
    uint32_t *stage_free;
    pager_staged *stage_now, *stage_next;
    uint32_t n_stage, n_stage_free, n_stage_now, n_stage_next;
    bool step_is_wide;                         /* the last layer with a choice needed most of its experts */
    uint64_t staged_in_pages, staged_in_bytes; /* made resident by require in this step */
    /* PAGER_SHARED: experts that this step leaves to the CPU, and their pages' places in host memory; NULL before it was ever entered. */
    uint8_t *on_cpu;          /* [n_experts] */
    uint64_t *cpu_addr;       /* [n_pages] */
    share_item *share_items;  /* of a layer */
    uint64_t *share_fill;     /* of a layer: slots that the device fills */
    pager_staged *share_kept; /* [n_pages] what the step's device part will leave there */
    uint32_t n_share_kept;
    bool share_copies; /* the device got nothing in the last step: copies bring what should be in VRAM */

    /* A fill under way: experts before order_at have all been asked for. */
    pager_hot *order; /* [n_experts] */
    uint32_t n_order, order_at;
    bool filling;

    trace_writer *tracer;
    pager_copier copier;
    bool opened; /* all of pager_open() succeeded: there are statistics worth saving */
    int mode;
    link_sim sim;
    uint64_t probe_at;
    double probed_gbps; /* by the last probe; 0: none yet */
    bool unified;

    /* What stats and the map read; the engine thread has it for the whole of a step's begin and end, to bring pages and to count uses. */
    pthread_mutex_t lock;
    pager_stats stats;
    pthread_mutex_t seen_lock;    /* after lock */
    pager_stats seen;             /* as pager_get_stats() last told it */
    pthread_mutex_t trouble_lock; /* a leaf */
    pager_trouble troubles[PAGER_TROUBLES];
    atomic_uint_fast64_t stats_errors;
};

/* pager.c: residency, for the engine thread */
void pager_set_entry(pager *p, uint32_t pg, uint64_t addr);
void pager_make_resident(pager *p, uint32_t pg, uint32_t slot);
void pager_put_free(pager *p, uint32_t slot);
void pager_adopt_copies(pager *p);
uint32_t pager_evict_page(pager *p, uint32_t pg); /* the slot is the caller's */
void pager_evict_expert(pager *p, uint32_t x);    /* its slots are free then */
/* Starts the copy of a page into a free slot; false: no slot, no room in the queue, or nothing to do. */
bool pager_promote_page(pager *p, uint32_t pg);
void pager_make_room(pager *p, uint32_t want_free);
uint64_t pager_slot_addr(const pager *p, uint32_t slot);
uint32_t pager_expert_first_page(const pager *p, uint32_t x);
uint32_t pager_expert_pages(const pager *p, uint32_t x);
xd_status pager_upload_table(pager *p, xd_err *err);
xd_status pager_device_fail(const pager *p, xd_err *err, const char *what);

/* pager_spare.c */
xd_status pager_fill_at_start(pager *p, const pager_options *opt, xd_err *err) XD_MUST_CHECK;
void pager_fill_begin(pager *p); /* free slots are filled from now on */
void pager_fill_more(pager *p);  /* between steps */
uint64_t pager_spare_addr(const pager *p, uint32_t slot);
void pager_drop_spare(pager *p); /* nobody reads there, and nothing is staged there */
void pager_set_view(pager *p);   /* what follows from the mode and the pieces */

/* pager_stage.c */
xd_status pager_stage_open(pager *p, xd_err *err) XD_MUST_CHECK;
void pager_stage_close(pager *p);
bool pager_stages(const pager *p, bool prefill); /* steps with or without prompts have their misses staged */
void pager_unstage(pager *p);
void pager_staged_failed(pager *p, uint32_t slot); /* its copy for the next layer */

/* pager_share.c */
xd_status pager_share_open(pager *p, xd_err *err) XD_MUST_CHECK;
void pager_share_close(pager *p);
uint32_t pager_share_room(const pager *p); /* slots that should be free before a step */
/* The step is over, or given up: what it kept is resident, or its slots are free again. */
void pager_share_end(pager *p, bool completed);

/* pager_host.c */
xd_status pager_host_open(pager *p, const pager_options *opt, xd_err *err) XD_MUST_CHECK;
void pager_host_close(pager *p);
void pager_read_page(const pager *p, uint32_t layer, uint32_t expert, uint32_t page, void *to);

/* pager_disk.c */
xd_status pager_disk_open(pager *p, const pager_options *opt, uint64_t budget, int numa_node,
                          xd_err *err) XD_MUST_CHECK;
void pager_disk_close(pager *p);
xd_status pager_disk_require(pager *p, uint32_t layer, uint32_t *touched, xd_err *err) XD_MUST_CHECK;
void pager_disk_step(pager *p);                                    /* between steps */
bool pager_disk_has(const pager *p, uint32_t x);                   /* the expert is in host memory */
bool pager_disk_between(const pager *p, uint64_t lo, uint64_t hi); /* the pool has units at such addresses */
void pager_disk_preload(pager *p, const uint32_t *hottest_first, uint32_t n);
const char *pager_disk_reader(const pager *p);
uint64_t pager_disk_busy_ns(const pager *p);

/* pager_trouble.c */
void pager_trouble_begin(pager *p, int kind, const char *fmt, ...) XD_PRINTF(3, 4);
void pager_trouble_end(pager *p, int kind, const char *how);

/* pager_warm.c */
bool pager_load_stats(pager *p);     /* false: nothing there that fits this model */
bool pager_try_save_stats(pager *p); /* false: somebody holds the lock; nothing was done */

/* pager_copy.c */
xd_status pager_copier_start(pager *p, uint32_t cap, xd_err *err) XD_MUST_CHECK;
void pager_copier_save_from_now_on(pager_copier *c); /* the statistics, at intervals */
void pager_copier_stop(pager_copier *c);
/* False: no room for all, or the statistics are being saved: none is queued. */
bool pager_copier_push(pager_copier *c, const pager_copy_job *jobs, uint32_t n);
uint32_t pager_copier_take(pager_copier *c, pager_copy_job *out, uint32_t cap);
uint32_t pager_copier_pending(pager_copier *c); /* queued, running, or done but not taken */
void pager_copier_drain(pager_copier *c);       /* waits until nothing is queued or running */
void pager_copier_cancel(pager_copier *c);      /* the same, and what has not begun has failed */
void pager_copier_hold(pager_copier *c); /* waits for what is running; nothing begins before pager_copier_go_on() */
void pager_copier_go_on(pager_copier *c, double link_gbps); /* what the link gives now; 0: not known */

#endif
