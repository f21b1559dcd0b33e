/* fallback.h - watches the link and leads the pager through the fallback states. The engine holds one, tells it of every step, and
 * lets it act between steps; what it decides takes effect with the next step.
 *
 * Threads: everything by the engine thread, except fallback_get_status() and fallback_force(). */
#ifndef ENGINE_FALLBACK_H
#define ENGINE_FALLBACK_H

#include "config/config.h"
#include "engine/fallback/controller.h"
#include "engine/fallback/link.h"
#include "engine/fallback/paths.h"
#include "engine/memory/pager.h"

typedef struct fallback fallback;

typedef struct fallback_options {
    kern_dev *dev;
    pager *pages;
    bool cpu;               /* the CPU may share experts (PAGER_SHARED), whenever tokens come faster that way */
    const config *cfg;      /* fallback.*, for the call; later fallback_reload() */
    const char *sysfs_root; /* NULL: "/sys" */
    /* A change of state, for the log; on the engine thread. */
    void (*on_change)(void *user, const controller_change *change);
    /* How experts are read from now on, in words; likewise. May be NULL. */
    void (*on_path)(void *user, const char *text);
    void *user;
} fallback_options;

/* Probes the healthy rate (some milliseconds). Where there is no link to watch it stays in DIRECT and costs nothing. */
xd_status fallback_open(const fallback_options *opt, fallback **ret, xd_err *err) XD_MUST_CHECK;
void fallback_free(fallback *f);
XD_DEFINE_CLEANUP(fallback, fallback_free)

typedef struct fallback_step_info {
    uint64_t step_ns;     /* whole step, less waiting for the disk: copies and the CPU's work count */
    uint64_t link_ns;     /* time in which experts were read, when measured; 0: unknown */
    uint64_t early_bytes; /* of experts that had been read before that time */
    uint32_t n_decode;    /* sequences that decoded */
    bool decode_only;     /* no prompt tokens in it */
    bool link_mixed;      /* link_ns is not the link's alone: it read more than experts, or waited for the host */
    bool odd;             /* it took longer than others like it will: no trial of anything */
    bool shared;          /* the CPU had a part of it, beside link_ns */
} fallback_step_info;

/* After pager_step_end(). */
void fallback_step(fallback *f, const fallback_step_info *s);
/* Between steps, and about ten times a second when there are none: probes when it is time to, feeds the state machine, sets the
 * pager's mode. */
void fallback_tick(fallback *f);

void fallback_force(fallback *f, int force); /* CONF_FORCE_*; any thread */
/* Takes over cfg's fallback.* (and test.* of a simulated link), a forced state included; cfg only for the call. */
void fallback_reload(fallback *f, const config *cfg);

typedef struct fallback_status {
    fallback_state state;
    bool watching; /* false: no link, or switched off */
    int force, pager_mode;
    double link_gbps, healthy_gbps; /* last known; 0: not yet */
    double bad_below_gbps;
    link_info link;
    uint64_t since_ns, transitions, probes;
    uint64_t entered[4]; /* times each state was entered */
    /* Mean of decode steps of the last batch size on each way, in this state (in place: since the last suspicion); 0: not known. */
    double token_ms[N_PATHS];
    uint64_t full_load_ns; /* what loading everything into VRAM took in this fallback; 0: not done, or not tried */
    char reason[160];      /* of the last change, or "" */
    char problem[256];     /* why the pager could not do what the state asks, or "" */
} fallback_status;
void fallback_get_status(fallback *f, fallback_status *ret); /* any thread */

#endif
