/* cgroup.h - the control group (v2) of this process and those around it, each of which may limit it. */
#ifndef ENGINE_CGROUP_H
#define ENGINE_CGROUP_H

#include <stdbool.h>
#include <stdint.h>

typedef struct cgroup_walk {
    char group[2048]; /* below /sys/fs/cgroup: "/system.slice/expertd.service", last "" */
    bool begun;
} cgroup_walk;

/* From the inside out, beginning with a zeroed walk; false: that was all. /proc lies below `root`, "" in real life. */
bool cgroup_next(cgroup_walk *w, const char *root);
/* How many CPUs the tightest quota keeps busy, rounded up (v1 too); UINT32_MAX: there is none. */
uint32_t cgroup_cpus(const char *root);

#endif
