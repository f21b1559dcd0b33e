/* pace.c - see pace.h. The fit is an ordinary weighted least squares line; its sums fade by a tenth a step, so that it follows a tier
 * that fills or a link that slows. What is known beforehand is one more point, at no tokens. */
#include "engine/schedule/pace.h"

#include "config/util.h"

enum { LEAST_TOKENS = 16, GROWTH = 4 };
static const double FADE = 0.9;

void pace_init(pace *p, double fixed_ns)
{
    *p = (pace){.w = fixed_ns > 0, .t = fixed_ns};
}

void pace_note(pace *p, uint32_t n_tokens, uint64_t step_ns)
{
    /* A handful of tokens touches a part of the experts only: another line. */
    if (n_tokens < LEAST_TOKENS)
        return;
    double n = n_tokens, t = (double)step_ns;
    p->w = p->w * FADE + 1;
    p->n = p->n * FADE + n;
    p->t = p->t * FADE + t;
    p->nn = p->nn * FADE + n * n;
    p->nt = p->nt * FADE + n * t;
    if (n_tokens > p->n_max)
        p->n_max = n_tokens;
}

/* ns = *ret_fixed + *ret_each * tokens, neither below zero. */
static void fit(const pace *p, double *ret_fixed, double *ret_each)
{
    *ret_fixed = p->w > 0 ? p->t / p->w : 0;
    *ret_each = 0;
    if (p->n <= 0)
        return;
    double n = p->n / p->w, t = p->t / p->w;
    double var = p->nn / p->w - n * n, cov = p->nt / p->w - n * t;
    /* Pieces of one length say nothing of the slope: taken for all slope, the next piece differs. A slope below nothing is noise. */
    double each = var <= 1e-6 * n * n ? t / n : cov > 0 ? XD_MIN(cov / var, t / n) : 0;
    *ret_fixed = t - each * n;
    *ret_each = each;
}

double pace_fixed_ns(const pace *p)
{
    double fixed, each;
    fit(p, &fixed, &each);
    return fixed;
}

uint32_t pace_limit(const pace *p, uint32_t stall_ms)
{
    if (!stall_ms || !p->n_max)
        return 0;
    double fixed, each, stall = stall_ms * 1e6;
    fit(p, &fixed, &each);
    double own = fixed > stall / 2 ? fixed : stall - fixed;
    /* A slope of nothing would allow anything: the next piece is at most a few times what was tried. */
    double most = (double)GROWTH * p->n_max, n = each * most > own ? own / each : most;
    return n < LEAST_TOKENS ? LEAST_TOKENS : n > 1e6 ? 0 : (uint32_t)n;
}
