/* pager_link.c - the link to host memory: whether there is one, how fast it is, and one that is simulated (link_sim.h). */
#include <math.h>

#include "engine/memory/pager_priv.h"

/* A probe takes 0.6 ms of a PCIe 5.0 x16 link, and about a millisecond of one that was slower than that when it was probed last. */
#define PROBE_BYTES     (32ull << 20)
#define PROBE_MIN_BYTES (4ull << 20)
#define PROBE_NS        1e6
#define PROBE_MAX_READS 8u

bool pager_has_link(const pager *p)
{
    return p->host.probe_bytes && (!p->unified || p->sim.gbps > 0 || p->sim.latency_us > 0 || p->sim.n_points);
}

xd_status pager_reload(pager *p, const config *cfg, xd_err *err)
{
    link_sim sim;
    xd_status st = link_sim_init(&sim, cfg, p->sim.start_ns, err);
    if (!st)
        p->sim = sim;
    return st;
}

static xd_status probe_read(pager *p, double *ret_gbps, xd_err *err)
{
    double want = p->probed_gbps > 0 ? p->probed_gbps * PROBE_NS : PROBE_BYTES, best = 0, gbps;
    uint64_t all = XD_MAX((uint64_t)fmin(want, PROBE_BYTES), PROBE_MIN_BYTES), bytes = XD_MIN(p->host.probe_bytes, all);
    /* A small host tier is read several times: what it costs to begin would be taken for the link. */
    for (uint32_t n = 0; n == 0 || (n * bytes < all && n < PROBE_MAX_READS); n++) {
        if (p->probe_at + bytes > p->host.probe_bytes)
            p->probe_at = 0;
        if (p->dev->ops->probe_read(p->dev, p->host.probe_addr + p->probe_at, bytes, &gbps))
            return pager_device_fail(p, err, "probing the link");
        p->probe_at += bytes; /* another part each time: no cache helps */
        best = XD_MAX(best, gbps);
    }
    *ret_gbps = p->probed_gbps = best;
    return XD_OK;
}

xd_status pager_probe_link(pager *p, double *ret_gbps, xd_err *err)
{
    if (!p->host.probe_bytes)
        return xd_fail(err, XD_UNSUPPORTED, 0, "there is no host tier to probe");
    double sim = link_sim_read_gbps(&p->sim, PROBE_BYTES, xd_now_ns()), gbps = sim;
    /* Memory read at a simulated rate needs no reading. */
    if (!p->unified || sim <= 0) {
        pager_copier_hold(&p->copier); /* copies made behind the steps' backs would be taken for somebody else's */
        xd_status st = probe_read(p, &gbps, err);
        pager_copier_go_on(&p->copier, p->probed_gbps);
        if (st)
            return st;
        gbps = sim > 0 ? XD_MIN(gbps, sim) : gbps;
    }
    *ret_gbps = gbps;
    return XD_OK;
}
