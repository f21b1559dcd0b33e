/* cgroup.h - the control groups of this process, v2 and v1, and those around them, each of which may limit it. */
#ifndef ENGINE_CGROUP_H
#define ENGINE_CGROUP_H

#include <stdint.h>

/* /proc and /sys lie below `root`, "" in real life. */
/* How many CPUs the tightest quota keeps busy, rounded up; UINT32_MAX: there is none. */
uint32_t cgroup_cpus(const char *root);
typedef struct cgroup_memory {
    uint64_t limit_bytes,
        available_bytes; /* the tightest, UINT64_MAX: there is none; available: less what cannot be reclaimed */
} cgroup_memory;
cgroup_memory cgroup_memory_of(const char *root);
/* Memory of this machine, or of the groups if that is less; 0: unknown. */
uint64_t cgroup_ram_bytes(void);
/* What this process could still take: MemAvailable, and less where the groups allow less; UINT64_MAX: unknown. */
uint64_t cgroup_available_bytes(void);

#endif
