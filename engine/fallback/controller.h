/* controller.h - the fallback state machine: samples with time stamps in, states out. No threads, no clock, no I/O.
 *
 *            bad sample            most of `window` bad
 *   DIRECT ------------> SUSPECT ------------------------> FALLBACK <-- most of `window` bad --+
 *     ^  ^                  |                                 |                                |
 *     |  +-- else, at the end of `window`                     +-- good sample, ----------> RECOVERING
 *     |                                                           a `cooldown` later than      |
 *     |                                                           the last relapse             |
 *     +------------------------------ good for `cooldown` ------------------------------------'
 */
#ifndef ENGINE_CONTROLLER_H
#define ENGINE_CONTROLLER_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/fallback/batch.h"

typedef enum fallback_state {
    FALLBACK_DIRECT,
    FALLBACK_SUSPECT,
    FALLBACK_FALLBACK,
    FALLBACK_RECOVERING,
} fallback_state;

typedef struct controller_options {
    bool enabled;
    double healthy_gbps;         /* probed when all was well; 0: unknown, then only the absolute limit counts */
    double min_link_gbps;        /* 0: none. Bad is a rate below both limits that are set */
    double min_link_ratio;       /* of healthy_gbps */
    double max_token_latency_ms; /* over the usual time at that batch size; 0: none */
    uint64_t window_ns, cooldown_ns;
    int force; /* CONF_FORCE_* */
} controller_options;

typedef struct controller_sample {
    uint64_t now_ns;
    double link_gbps; /* of a probe or of link-bound reading; NAN: not known */
    double token_ms;  /* time of a decode step; NAN: none */
    uint32_t batch;   /* sequences in that step */
} controller_sample;

typedef struct controller { /* zeroed: DIRECT, nothing known */
    controller_options opt;
    fallback_state state;
    uint64_t since_ns;           /* of the state */
    uint64_t left_fallback_ns;   /* last return to DIRECT; 0: never */
    struct {                     /* FALLBACK and RECOVERING */
        uint64_t good_since_ns;  /* without bad samples since, but for single ones; 0: it is bad */
        uint64_t doubt_since_ns; /* a bad sample, from which on `rates` counts; 0: none */
        uint64_t good_again_ns;  /* in doubt: without a bad sample since; 0: the last one was bad */
        uint64_t relapsed_ns;    /* out of RECOVERING; 0: not in this fallback, or not yet */
    } back;
    uint64_t good_rate_ns; /* the newest link rate was nearly healthy, then; 0: it was not, or none is known */
    bool fell_by_tokens;   /* slow tokens rather than bad rates led to the fallback */
    struct {
        uint32_t n, bad;
    } rates,
        tokens; /* seen in SUSPECT; rates also in doubt on the way back. Separate, since many quick tokens do not make up for a slow link, nor the other way */
    uint32_t backoff; /* the cooldown is doubled so many times */
    double usual_ms[BATCH_SLOTS];
    uint32_t usual_n[BATCH_SLOTS];
} controller;

typedef struct controller_change {
    fallback_state from, to;
    uint64_t now_ns;
    char reason[160];
} controller_change;

/* Keeps the state; a forced state is taken up by the next feed. */
void controller_configure(controller *c, const controller_options *opt);
/* At most one transition a sample. true: *ret says which and why. */
bool controller_feed(controller *c, const controller_sample *s, controller_change *ret);
/* The sample's token is slow and no fresh link rate says that the link is not to blame: measure it, then feed the sample. */
bool controller_wants_rate(const controller *c, const controller_sample *s);
double controller_bad_below_gbps(const controller_options *opt); /* 0: no rate is bad */
double controller_good_above_gbps(const controller_options *opt);
double controller_back_above_gbps(const controller *c); /* what the way back asks for */
const char *fallback_state_name(fallback_state s);      /* "direct", ... */

#endif
