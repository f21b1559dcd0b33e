/* link_sim.h - an injected link rate ([test] section): how tests get a link that drops, flaps and recovers without broken hardware. */
#ifndef ENGINE_LINK_SIM_H
#define ENGINE_LINK_SIM_H

#include <stdint.h>

#include "config/config.h"
#include "config/error.h"

#define LINK_SIM_POINTS 64

typedef struct link_sim {
    double gbps, latency_us; /* gbps 0: as it is */
    struct {
        double at_s, gbps;
    } points[LINK_SIM_POINTS];
    uint32_t n_points;
    uint64_t start_ns;
} link_sim;

/* Reads test.link_*; without test.allow nothing is simulated. XD_BAD_CONFIG for a profile that is not "seconds:GB/s,...". */
xd_status link_sim_init(link_sim *s, const config *cfg, uint64_t now_ns, xd_err *err) XD_MUST_CHECK;
double link_sim_gbps(const link_sim *s, uint64_t now_ns); /* 0: no limit */
double link_sim_read_gbps(const link_sim *s, uint64_t bytes,
                          uint64_t now_ns); /* the same for one read, latency included */
/* How long `bytes` take over the simulated link; 0 when nothing is simulated. */
uint64_t link_sim_ns(const link_sim *s, uint64_t bytes, uint64_t now_ns);

#endif
