/* stop.h - finds stop strings in a stream of text and holds back what might become one.
 *
 * The match that ends first wins; of those that end together, the longest. The result does not depend on how the text is cut
 * into pieces. Nothing of a stop string is given out (unless asked for), and all that is given out, joined, is the text up to it. */
#ifndef ENGINE_STOP_H
#define ENGINE_STOP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config/util.h"

typedef struct stop_matcher {
    const char *const *stops; /* borrowed, none of them empty */
    uint32_t n_stops;
    bool include; /* the stop string itself is given out */
    xd_buf held;
} stop_matcher;

/* For one text; end it with stop_clear(). */
void stop_init(stop_matcher *m, const char *const *stops, uint32_t n_stops, bool include);
void stop_clear(stop_matcher *m); /* frees what is held */
/* Takes a piece and appends what became certain to out. Returns the index of the stop that matched, or -1; after a match the
 * matcher holds nothing. `check` false: the text goes through unsearched (min_tokens not reached yet). Out of memory shows in
 * out->failed or held.failed. */
int stop_feed(stop_matcher *m, const char *text, size_t len, bool check, xd_buf *out);
/* The end of the text: what was held back is certain now. */
void stop_flush(stop_matcher *m, xd_buf *out);

#endif
