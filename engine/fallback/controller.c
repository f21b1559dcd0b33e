/* controller.c - when to leave direct reading and when to come back.
 *
 * Hysteresis in three ways. A rate is good again only well above the rate that was bad. One bad sample makes SUSPECT, which changes
 * nothing; it takes a window of mostly bad ones to fall back. And direct reading returns only after a cooldown of good samples, which
 * doubles when the last return did not last: so there is at most one fallback a cooldown, and fewer on a link that flaps.
 *
 * On the way back a window is counted from a bad sample on, as in SUSPECT. When most of it is bad the link has relapsed. Else a single
 * bad sample was a hiccup and counts for nothing; after more of them the cooldown begins anew. While that is not decided, nothing is.
 * After a relapse RECOVERING is not entered again before a cooldown, for those who read the log. This makes nobody wait: the cooldown of
 * good samples runs in FALLBACK as well.
 *
 * Slow tokens count as bad only against the usual time at the same batch size, which is learnt from direct steps that were not
 * suspicious. They are a symptom with many causes (a busy machine, a hot device), so a link rate that was nearly the healthy one
 * within the last window acquits the link: another path would not help. They decide where the rate is not known, or lies between.
 * They say nothing about the way back, where the path is another one: but when they have led to the fallback, the way back asks for
 * nearly the healthy rate too, since less would lead to slow tokens again. */
#include "engine/fallback/controller.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "config/config.h"

#define GOOD_OVER_BAD   1.25 /* a recovered link is this much faster than the limit */
#define GOOD_MAX_RATIO  0.9  /* but what the healthy link itself reaches is always good */
#define ACQUIT_RATIO    0.8  /* of the healthy rate: slow tokens have another cause */
#define BAD_SHARE       0.7  /* of the samples of a window */
#define MIN_BAD         2u   /* a single sample never decides */
#define BACKOFF_MAX     3u
#define BACKOFF_FORGET  4u /* cooldowns in DIRECT after which an old fallback no longer counts */
#define USUAL_GAIN      0.05
#define USUAL_MIN_STEPS 16u

const char *fallback_state_name(fallback_state s)
{
    static const char *const names[] = {"direct", "suspect", "fallback", "recovering"};
    return (unsigned)s < sizeof names / sizeof names[0] ? names[s] : "?";
}

double controller_bad_below_gbps(const controller_options *o)
{
    double relative = o->healthy_gbps > 0 && o->min_link_ratio > 0 ? o->min_link_ratio * o->healthy_gbps : 0;
    if (relative > 0 && o->min_link_gbps > 0)
        return fmin(relative, o->min_link_gbps);
    return relative > 0 ? relative : o->min_link_gbps;
}

double controller_good_above_gbps(const controller_options *o)
{
    double bad = controller_bad_below_gbps(o), good = bad * GOOD_OVER_BAD;
    if (o->healthy_gbps > 0)
        good = fmax(fmin(good, o->healthy_gbps * GOOD_MAX_RATIO), bad);
    return good;
}

static double acquits_above_gbps(const controller_options *o)
{
    return fmax(controller_good_above_gbps(o), ACQUIT_RATIO * o->healthy_gbps);
}

void controller_configure(controller *c, const controller_options *opt)
{
    c->opt = *opt;
}

static bool slow_token(const controller *c, const controller_sample *s)
{
    uint32_t i = batch_slot(s->batch);
    return c->opt.max_token_latency_ms > 0 && s->token_ms == s->token_ms && c->usual_n[i] >= USUAL_MIN_STEPS &&
           s->token_ms > c->usual_ms[i] + c->opt.max_token_latency_ms;
}

static bool link_is_acquitted(const controller *c, uint64_t now_ns)
{
    return c->good_rate_ns && now_ns - c->good_rate_ns <= c->opt.window_ns;
}

bool controller_wants_rate(const controller *c, const controller_sample *s)
{
    bool direct = c->state == FALLBACK_DIRECT || c->state == FALLBACK_SUSPECT;
    return c->opt.enabled && c->opt.force == CONF_FORCE_NONE && direct && slow_token(c, s) &&
           !link_is_acquitted(c, s->now_ns);
}

static void learn(controller *c, const controller_sample *s)
{
    if (s->token_ms != s->token_ms)
        return;
    uint32_t i = batch_slot(s->batch);
    double gain = fmax(USUAL_GAIN, 1.0 / (c->usual_n[i] + 1));
    c->usual_ms[i] += gain * (s->token_ms - c->usual_ms[i]);
    c->usual_n[i] += c->usual_n[i] < USUAL_MIN_STEPS;
}

static bool change(controller *c, fallback_state to, uint64_t now, controller_change *ret, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));

static bool change(controller *c, fallback_state to, uint64_t now, controller_change *ret, const char *fmt, ...)
{
    *ret = (controller_change){.from = c->state, .to = to, .now_ns = now};
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(ret->reason, sizeof ret->reason, fmt, ap);
    va_end(ap);
    c->state = to;
    c->since_ns = now;
    memset(&c->rates, 0, sizeof c->rates);
    memset(&c->tokens, 0, sizeof c->tokens);
    if (to == FALLBACK_FALLBACK)
        memset(&c->back, 0, sizeof c->back);
    return true;
}

static uint64_t cooldown(const controller *c)
{
    return c->opt.cooldown_ns << c->backoff;
}

static void count(controller *c, const controller_sample *s, bool bad_rate, bool slow)
{
    if (s->link_gbps == s->link_gbps) {
        c->rates.n++;
        c->rates.bad += bad_rate;
    }
    if (s->token_ms == s->token_ms) {
        c->tokens.n++;
        c->tokens.bad += slow;
    }
}

static bool feed_direct(controller *c, const controller_sample *s, bool bad_rate, bool slow, controller_change *ret)
{
    if (!bad_rate && !slow) {
        learn(c, s); /* slow ones of an acquitted link too: what a busy machine takes becomes the usual */
        return false;
    }
    if (c->left_fallback_ns && s->now_ns - c->left_fallback_ns > BACKOFF_FORGET * cooldown(c))
        c->backoff = 0;
    uint32_t i = batch_slot(s->batch);
    bool r = slow ? change(c, FALLBACK_SUSPECT, s->now_ns, ret, "a token took %.1f ms, usual are %.1f ms", s->token_ms,
                           c->usual_ms[i])
                  : change(c, FALLBACK_SUSPECT, s->now_ns, ret, "the link gave %.1f GB/s, the limit is %.1f GB/s",
                           s->link_gbps, controller_bad_below_gbps(&c->opt));
    count(c, s, bad_rate, slow);
    return r;
}

static bool mostly_bad(uint32_t n, uint32_t bad)
{
    return bad >= MIN_BAD && bad >= BAD_SHARE * n;
}

static bool feed_suspect(controller *c, const controller_sample *s, bool bad_rate, bool slow, controller_change *ret)
{
    count(c, s, bad_rate, slow);
    uint32_t nr = c->rates.n, br = c->rates.bad, nt = c->tokens.n, bt = c->tokens.bad;
    bool bad = mostly_bad(nr, br) || mostly_bad(nt, bt);
    /* A single bad rate is refuted by another rate, not by tokens: after a pause (the machine was too busy) that one may come late. */
    if (s->now_ns - c->since_ns < c->opt.window_ns || (!bad && (br ? nr : nr + nt) < MIN_BAD))
        return false;
    double secs = (double)(s->now_ns - c->since_ns) * 1e-9;
    if (!bad)
        return change(c, FALLBACK_DIRECT, s->now_ns, ret,
                      "passing: in %.1f s %u of %u link rates and %u of %u tokens were bad", secs, br, nr, bt, nt);
    if (c->left_fallback_ns && c->backoff < BACKOFF_MAX)
        c->backoff++;
    c->fell_by_tokens = !mostly_bad(nr, br);
    return change(c, FALLBACK_FALLBACK, s->now_ns, ret, "in %.1f s %u of %u link rates and %u of %u tokens were bad",
                  secs, br, nr, bt, nt);
}

double controller_back_above_gbps(const controller *c)
{
    return c->fell_by_tokens ? acquits_above_gbps(&c->opt) : controller_good_above_gbps(&c->opt);
}

/* Takes a rate into account on the way back. True: the link has relapsed. */
static bool has_relapsed(controller *c, const controller_sample *s, bool good)
{
    if (good && !c->back.doubt_since_ns) {
        c->back.good_since_ns = c->back.good_since_ns ? c->back.good_since_ns : s->now_ns;
        return false;
    }
    if (!c->back.doubt_since_ns) {
        c->back.doubt_since_ns = s->now_ns;
        c->rates.n = c->rates.bad = 0;
    }
    c->rates.n++;
    c->rates.bad += !good;
    c->back.good_again_ns = !good ? 0 : c->back.good_again_ns ? c->back.good_again_ns : s->now_ns;
    if (s->now_ns - c->back.doubt_since_ns < c->opt.window_ns || c->rates.n < MIN_BAD)
        return false;
    c->back.doubt_since_ns = 0;
    if (c->rates.bad >= MIN_BAD)
        c->back.good_since_ns = c->back.good_again_ns;
    return mostly_bad(c->rates.n, c->rates.bad);
}

static bool feed_fallback(controller *c, const controller_sample *s, bool good, controller_change *ret)
{
    if (!good && !c->back.good_since_ns)
        return false;
    if (has_relapsed(c, s, good))
        c->back.good_since_ns = 0;
    if (!c->back.good_since_ns || c->back.doubt_since_ns ||
        (c->back.relapsed_ns && s->now_ns - c->back.relapsed_ns < cooldown(c)))
        return false;
    return change(c, FALLBACK_RECOVERING, s->now_ns, ret, "the link gives %.1f GB/s again", s->link_gbps);
}

static bool feed_recovering(controller *c, const controller_sample *s, bool good, controller_change *ret)
{
    uint64_t doubt_since_ns = c->back.doubt_since_ns;
    if (has_relapsed(c, s, good)) {
        bool r = change(c, FALLBACK_FALLBACK, s->now_ns, ret,
                        "in %.1f s %u of %u link rates were below the %.1f GB/s that are needed",
                        (double)(s->now_ns - doubt_since_ns) * 1e-9, c->rates.bad, c->rates.n,
                        controller_back_above_gbps(c));
        c->back.relapsed_ns = s->now_ns;
        return r;
    }
    if (!c->back.good_since_ns || c->back.doubt_since_ns || s->now_ns - c->back.good_since_ns < cooldown(c))
        return false;
    c->left_fallback_ns = s->now_ns;
    return change(c, FALLBACK_DIRECT, s->now_ns, ret, "the link was good for %.1f s",
                  (double)(s->now_ns - c->back.good_since_ns) * 1e-9);
}

static bool feed_forced(controller *c, const controller_sample *s, controller_change *ret)
{
    fallback_state to = !c->opt.enabled || c->opt.force == CONF_FORCE_DIRECT ? FALLBACK_DIRECT : FALLBACK_FALLBACK;
    memset(&c->back, 0, sizeof c->back);
    if (c->state == to)
        return false;
    return change(c, to, s->now_ns, ret, c->opt.enabled ? "forced by the operator" : "switched off");
}

bool controller_feed(controller *c, const controller_sample *s, controller_change *ret)
{
    if (!c->opt.enabled || c->opt.force != CONF_FORCE_NONE)
        return feed_forced(c, s, ret);
    bool rate_known = s->link_gbps == s->link_gbps;
    bool bad_rate = rate_known && s->link_gbps < controller_bad_below_gbps(&c->opt);
    bool good_rate = rate_known && s->link_gbps >= controller_back_above_gbps(c);
    if (rate_known)
        c->good_rate_ns = s->link_gbps >= acquits_above_gbps(&c->opt) ? s->now_ns : 0;
    bool slow = !bad_rate && slow_token(c, s) && !link_is_acquitted(c, s->now_ns);

    switch (c->state) {
    case FALLBACK_DIRECT: return feed_direct(c, s, bad_rate, slow, ret);
    case FALLBACK_SUSPECT: return feed_suspect(c, s, bad_rate, slow, ret);
    case FALLBACK_FALLBACK: return rate_known && feed_fallback(c, s, good_rate, ret);
    case FALLBACK_RECOVERING: return rate_known && feed_recovering(c, s, good_rate, ret);
    }
    return false;
}
