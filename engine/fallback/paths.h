/* paths.h - which way of coming at the experts that are not in VRAM gives the quicker tokens: in a fallback that has no room for all of
 * them, and, over a good link, where the CPU may share them. Pure: no clock, no I/O. */
#ifndef ENGINE_PATHS_H
#define ENGINE_PATHS_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/fallback/batch.h"

typedef enum expert_path { PATH_IN_PLACE, PATH_STAGED, PATH_SHARED, N_PATHS } expert_path;

typedef struct paths { /* zeroed: nothing known, nothing allowed */
    bool may[N_PATHS];
    uint32_t refused[N_PATHS]; /* steps until a way that could not be had is asked for again */
    expert_path base;          /* that sharing is compared with: staging in a fallback, else reading in place */
    struct path_time {         /* mean time of decode steps, by log2 of the batch */
        double ms[BATCH_SLOTS];
        uint32_t n[BATCH_SLOTS];
        uint32_t left_out[BATCH_SLOTS]; /* steps of this trial that do not count */
    } time[N_PATHS];
    struct path_choice {
        expert_path best; /* once it is known */
        bool known;       /* for now */
        bool told;        /* the choice has been told before */
        uint32_t held;    /* steps since it was made */
        double ms;        /* of those, decaying mean */
    } choice[BATCH_SLOTS];
} paths;

typedef struct path_verdict { /* a choice that is news */
    expert_path best, other;  /* other: the quickest of those left behind */
    double best_ms, other_ms;
    uint32_t batch_from, batch_to; /* the sequences in a step that it holds for */
} path_verdict;

/* Forgets the times of the two ways that are compared. */
void paths_begin(paths *p, expert_path base);
/* A decode step of `batch` sequences took `ms` on the way `now`. */
void paths_note(paths *p, expert_path now, uint32_t batch, double ms);
/* `way` could not be had just now: the other one is taken until it may be again. */
void paths_refused(paths *p, expert_path way);
/* The way that the next step should take, behind paths_note() of the last one, which took `now`. PATH_IN_PLACE is final where it is not the
 * base: nothing is asked again before paths_begin(). *ret_news: *ret tells something that should be said. */
expert_path paths_next(paths *p, expert_path now, uint32_t batch, bool *ret_news, path_verdict *ret);

#endif
