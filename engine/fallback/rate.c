/* rate.c - see rate.h.
 *
 * A step's experts take the time of its bytes on the link and that of everything else, the base: launches, what lies in VRAM. The base
 * hardly changes while the batch stays the same, so it is learnt while the link is good, and then tells the link's share. Where that
 * is the smaller part even on a healthy link, nothing can be said about the link. A step that is slow beyond doubt teaches no base:
 * else a link that stays bad would become the usual. */
#include "engine/fallback/rate.h"

#include <math.h>

#define BASE_STEPS     16u /* before a base is trusted */
#define BASE_GAIN      0.1
#define BASE_MIN_RATIO 0.8 /* of the healthy rate: a step below it is slow for the link's sake */

void rate_note_exact(rate_meter *m, double bytes, double link_ns)
{
    m->bytes += bytes;
    m->ns += link_ns;
}

void rate_note(rate_meter *m, double healthy_gbps, uint32_t batch, double bytes, double link_ns)
{
    uint32_t i = batch_slot(batch);
    double base_ns = m->base[i].ns, least_ns = bytes / healthy_gbps;
    double beyond_ns = fmax(link_ns - least_ns, 0), read_ns = fmax(link_ns - base_ns, least_ns);
    if (m->base[i].n < BASE_STEPS) {
        m->base[i].ns += (beyond_ns - base_ns) / ++m->base[i].n;
        return;
    }
    bool by_link = least_ns >= base_ns;
    if (by_link)
        rate_note_exact(m, bytes, read_ns);
    if (beyond_ns < base_ns || !by_link || bytes >= BASE_MIN_RATIO * healthy_gbps * read_ns)
        m->base[i].ns += BASE_GAIN * (beyond_ns - base_ns);
}

bool rate_take(rate_meter *m, double of_bytes, double *ret_gbps)
{
    bool known = m->ns > 0 && m->bytes >= 0.5 * of_bytes;
    if (known)
        *ret_gbps = m->bytes / m->ns;
    m->bytes = m->ns = 0;
    return known;
}
