/* link_sim.c - see link_sim.h. The rate of a profile holds from its second until the next point's. */
#include "engine/memory/link_sim.h"

#include <math.h>
#include <string.h>

xd_status link_sim_init(link_sim *s, const config *cfg, uint64_t now_ns, xd_err *err)
{
    *s = (link_sim){.start_ns = now_ns};
    if (!cfg->test.allow)
        return XD_OK;
    s->gbps = cfg->test.link_gbps;
    s->latency_us = cfg->test.link_latency_us;
    const char *at = cfg->test.link_profile ? cfg->test.link_profile : "";
    while (*at) {
        char *end;
        double t = strtod(at, &end), g = 0;
        bool ok = end != at && *end == ':';
        if (ok) {
            at = end + 1;
            g = strtod(at, &end);
            ok = end != at && (*end == ',' || !*end) && isfinite(t) && isfinite(g) && g > 0 && t >= 0 &&
                 s->n_points < LINK_SIM_POINTS && (!s->n_points || t > s->points[s->n_points - 1].at_s);
        }
        if (!ok)
            return xd_fail_field(err, XD_BAD_CONFIG, "test.link_profile", NULL,
                                 "test.link_profile '%s': rising \"seconds:GB/s\" pairs, at most %d, are allowed",
                                 cfg->test.link_profile, LINK_SIM_POINTS);
        s->points[s->n_points].at_s = t;
        s->points[s->n_points++].gbps = g;
        at = *end ? end + 1 : end;
    }
    return XD_OK;
}

double link_sim_gbps(const link_sim *s, uint64_t now_ns)
{
    double t = (double)(now_ns - s->start_ns) * 1e-9, g = s->gbps;
    for (uint32_t i = 0; i < s->n_points && s->points[i].at_s <= t; i++)
        g = s->points[i].gbps;
    return g;
}

double link_sim_read_gbps(const link_sim *s, uint64_t bytes, uint64_t now_ns)
{
    double g = link_sim_gbps(s, now_ns), ns = (g > 0 ? (double)bytes / g : 0) + s->latency_us * 1e3;
    return ns > 0 ? (double)bytes / ns : 0;
}

uint64_t link_sim_ns(const link_sim *s, uint64_t bytes, uint64_t now_ns)
{
    double g = link_sim_gbps(s, now_ns);
    if (!bytes || (g <= 0 && s->latency_us <= 0))
        return 0;
    return (uint64_t)((g > 0 ? (double)bytes / g : 0) + s->latency_us * 1e3);
}
