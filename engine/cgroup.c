/* cgroup.c - see cgroup.h.
 *
 * A container may show the group's path as the host sees it and mount only its own part: then the files lie at the end of the walk, so
 * it always ends at the root of what is mounted. What cannot be read limits nothing. */
#include "engine/cgroup.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "config/util.h"

bool cgroup_next(cgroup_walk *w, const char *root)
{
    if (w->begun) {
        char *slash = strrchr(w->group, '/');
        if (slash)
            *slash = 0;
        return slash != NULL;
    }
    char path[PATH_MAX], line[sizeof w->group];
    w->begun = true;
    w->group[0] = 0;
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    XD_CLEANUP(xd_fclosep) FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, "0::/", 4)) {
            line[strcspn(line, "\n")] = 0;
            snprintf(w->group, sizeof w->group, "%s", line[4] ? line + 3 : "");
        }
    return true;
}

/* A quota of 150 ms in every 100 keeps two CPUs busy, one of them half of the time. */
static uint32_t cpus_of(double quota_us, double period_us)
{
    return quota_us > 0 && period_us > 0 ? (uint32_t)fmin(ceil(quota_us / period_us), UINT32_MAX) : UINT32_MAX;
}

static uint32_t read_numbers(const char *path, double *a, double *b)
{
    XD_CLEANUP(xd_fclosep) FILE *f = fopen(path, "re");
    int n = f ? fscanf(f, "%lf %lf", a, b) : 0; /* "max" is no number */
    return n > 0 ? (uint32_t)n : 0;
}

uint32_t cgroup_cpus(const char *root)
{
    char path[PATH_MAX];
    double quota, period, ignored;
    uint32_t least = UINT32_MAX;
    for (cgroup_walk w = {0}; cgroup_next(&w, root);) {
        snprintf(path, sizeof path, "%s/sys/fs/cgroup%s/cpu.max", root, w.group);
        if (read_numbers(path, &quota, &period) == 2)
            least = XD_MIN(least, cpus_of(quota, period));
    }
    snprintf(path, sizeof path, "%s/sys/fs/cgroup/cpu/cpu.cfs_quota_us", root); /* v1; -1: none */
    bool v1 = read_numbers(path, &quota, &ignored) == 1;
    snprintf(path, sizeof path, "%s/sys/fs/cgroup/cpu/cpu.cfs_period_us", root);
    if (v1 && read_numbers(path, &period, &ignored) == 1)
        least = XD_MIN(least, cpus_of(quota, period));
    return least;
}
