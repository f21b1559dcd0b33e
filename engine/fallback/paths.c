/* paths.c - see paths.h.
 *
 * Staging is the better way where a link is bad at small reads. Where others crowd it, kernels may get a larger share than the copy
 * engine. And where it is bad enough, the CPU may be quicker with what is missing, though it shares its memory with the link and each
 * layer pays for the way there and back. Rates of memories and links do not tell which it is; what tokens take does.
 *
 * Each way is tried for a few steps, at each size of the batch. A trial ends early once its steps have taken so long that the rest
 * cannot save it: so a hopeless one costs no more than it takes to see that. The choice between sharing and its base is made anew
 * now and then, with fresh times, since other work comes and goes on a CPU, and sooner when what was chosen takes longer than the
 * other did. In a fallback, reading in place was measured before, on the link that led to it; it is not tried again, but gone back to,
 * for good, when nothing is quicker.
 *
 * Where the base is reading in place, the first steps of each trial do not count: both sides of a shared step have yet to learn their
 * rates. In a fallback that is small beside what steps take. */
#include "engine/fallback/paths.h"

#include <string.h>

#define STEPS    6u  /* of each way */
#define RATIO    1.1 /* in favour of the way that is taken */
#define HOLD     1000u
#define SOONER   64u /* where it no longer is what it was chosen for */
#define LEFT_OUT 2u  /* before them, over a good link */

static bool measured(const paths *p, expert_path way, uint32_t slot)
{
    return p->time[way].n[slot] >= STEPS;
}

/* Measured, or too slow already for its mean to come near that of another that is. */
static bool judged(const paths *p, expert_path way, uint32_t slot)
{
    const struct path_time *t = &p->time[way];
    bool hopeless = false;
    for (int other = 0; other < N_PATHS; other++)
        hopeless = hopeless || (other != (int)way && p->may[other] && measured(p, (expert_path)other, slot) &&
                                t->ms[slot] * t->n[slot] >= STEPS * RATIO * p->time[other].ms[slot]);
    return hopeless || measured(p, way, slot);
}

void paths_begin(paths *p, expert_path base)
{
    p->base = base;
    memset(p->refused, 0, sizeof p->refused);
    p->time[base] = p->time[PATH_SHARED] = (struct path_time){0};
    for (uint32_t i = 0; i < BATCH_SLOTS; i++)
        p->choice[i] = (struct path_choice){.best = p->may[base] ? base : PATH_SHARED};
}

void paths_refused(paths *p, expert_path way)
{
    expert_path other = way == PATH_SHARED ? p->base : PATH_SHARED;
    p->refused[way] = HOLD;
    for (uint32_t i = 0; i < BATCH_SLOTS; i++)
        if (p->choice[i].best == way)
            p->choice[i] = (struct path_choice){.best = other};
}

static bool available(const paths *p, expert_path way)
{
    return p->may[way] && !p->refused[way];
}

void paths_note(paths *p, expert_path now, uint32_t batch, double ms)
{
    uint32_t i = batch_slot(batch);
    struct path_time *t = &p->time[now];
    const struct path_time *other = &p->time[now == PATH_SHARED ? p->base : PATH_SHARED];
    bool hopeless = other->n[i] >= STEPS && ms >= STEPS * RATIO * other->ms[i];
    for (int way = 0; way < N_PATHS; way++)
        p->refused[way] -= p->refused[way] > 0;
    if (p->base == PATH_IN_PLACE && !t->n[i] && t->left_out[i] < LEFT_OUT && !hopeless) {
        t->left_out[i]++;
        return;
    }
    t->n[i]++;
    t->ms[i] += (ms - t->ms[i]) / t->n[i];
    struct path_choice *c = &p->choice[i];
    if (c->known && c->best == now)
        c->ms += c->held ? (ms - c->ms) / 16 : ms - c->ms;
}

static void tell(const paths *p, uint32_t slot, expert_path best, expert_path other, bool *ret_news, path_verdict *ret)
{
    *ret_news = true;
    *ret = (path_verdict){.best = best,
                          .other = other,
                          .best_ms = p->time[best].ms[slot],
                          .other_ms = p->time[other].ms[slot],
                          .batch_from = 1u << slot,
                          .batch_to = (2u << slot) - 1};
}

/* Between sharing and its base, where both can be had. False: `*ret` is to be measured first. */
static bool choose(paths *p, uint32_t slot, expert_path *ret, bool *ret_news, path_verdict *verdict)
{
    struct path_choice *c = &p->choice[slot];
    *ret = c->best;
    if (!available(p, p->base) || !available(p, PATH_SHARED))
        return true;
    expert_path other = c->best == p->base ? PATH_SHARED : p->base;
    bool worse = c->held >= SOONER && c->ms >= RATIO * p->time[other].ms[slot];
    if (c->known && ++c->held < HOLD && !worse)
        return true;
    if (c->known) {
        c->known = false;
        for (int way = 0; way < N_PATHS; way++)
            if (way == (int)p->base || way == PATH_SHARED)
                p->time[way].n[slot] = p->time[way].left_out[slot] = 0;
    }
    if (!judged(p, c->best, slot))
        return false;
    if (!judged(p, other, slot)) {
        *ret = other;
        return false;
    }
    bool better = p->time[c->best].ms[slot] >= RATIO * p->time[other].ms[slot];
    expert_path loser = better ? c->best : other;
    c->best = better ? other : c->best;
    if (better || !c->told)
        tell(p, slot, c->best, loser, ret_news, verdict);
    c->known = c->told = true;
    c->held = 0;
    *ret = c->best;
    return true;
}

expert_path paths_next(paths *p, expert_path now, uint32_t batch, bool *ret_news, path_verdict *ret)
{
    uint32_t i = batch_slot(batch);
    expert_path next;
    bool final = now == PATH_IN_PLACE && p->base != PATH_IN_PLACE;
    *ret_news = false;
    if (final || !choose(p, i, &next, ret_news, ret))
        return final ? now : next;
    if (p->base == PATH_IN_PLACE || !p->may[PATH_IN_PLACE] || !measured(p, PATH_IN_PLACE, i) || !judged(p, next, i) ||
        p->time[next].ms[i] < RATIO * p->time[PATH_IN_PLACE].ms[i])
        return next;
    tell(p, i, PATH_IN_PLACE, next, ret_news, ret);
    return PATH_IN_PLACE;
}
