/* pace.h - how many prompt tokens a step may hold while others decode, from what steps took.
 *
 * A step with a piece of a prompt takes `fixed + each * tokens`: however short the piece, nearly every expert is read once, and where
 * experts are read over a link that alone may be most of the time. Halving the piece then halves nothing, and a rate in tokens a
 * second, taken as if the time were all proportional, shrinks the pieces step by step until each reads all experts for a few tokens.
 * So both numbers are learnt, by least squares over the last steps.
 *
 * Threads: none of its own; one caller at a time. */
#ifndef ENGINE_PACE_H
#define ENGINE_PACE_H

#include <stdint.h>

typedef struct pace {
    double w, n, t, nn, nt; /* decayed sums over steps: count, tokens, ns, tokens^2, tokens * ns */
    uint32_t n_max;         /* the longest piece seen */
} pace;

/* `fixed_ns`: what is known of the fixed part before the first step, 0 if nothing is. */
void pace_init(pace *p, double fixed_ns);
/* After a step with n_tokens, prompt pieces among them, that took step_ns. */
void pace_note(pace *p, uint32_t n_tokens, uint64_t step_ns);
/* The fixed part of a step with a piece of a prompt, in ns. */
double pace_fixed_ns(const pace *p);
/* Tokens that a step may hold so that it takes about stall_ms. Where the fixed part is more than half of that, the piece whose own
 * time equals the fixed part: then the step takes twice the least that it can. 0: no limit (stall_ms is 0, or nothing is known). */
uint32_t pace_limit(const pace *p, uint32_t stall_ms);

#endif
