/* cgroup.c - see cgroup.h.
 *
 * A container may show the group's path as the host sees it and mount only its own part: then the files lie at the end of the walk, so
 * it always ends at the root of what is mounted. What cannot be read limits nothing. */
#include "engine/cgroup.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "config/util.h"

/* Is the word in a list with commas? An empty list has the empty word. */
static bool is_one_of(const char *list, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = list; p; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL)
        if (!strncmp(p, word, n) && (!p[n] || p[n] == ','))
            return true;
    return false;
}

typedef struct cgroup_walk {
    char group[2048]; /* below /sys/fs/cgroup: "/system.slice/expertd.service", last "" */
    bool begun;
    const char *v1; /* a controller of v1, "memory": its group below /sys/fs/cgroup/memory; NULL: v2 */
} cgroup_walk;

/* From the inside out, beginning with a walk that is zero but for v1; false: that was all. */
static bool next_group(cgroup_walk *w, const char *root)
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
    while (f && fgets(line, sizeof line, f)) { /* "4:cpu,cpuacct:/path"; "0::/path" of v2 */
        line[strcspn(line, "\n")] = 0;
        char *names = strchr(line, ':'), *group = names ? strchr(names + 1, ':') : NULL;
        if (!group)
            continue;
        *group++ = 0;
        if (is_one_of(names + 1, w->v1 ? w->v1 : ""))
            snprintf(w->group, sizeof w->group, "%s", *group == '/' && group[1] ? group : "");
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
    for (cgroup_walk w = {0}; next_group(&w, root);) {
        snprintf(path, sizeof path, "%s/sys/fs/cgroup%s/cpu.max", root, w.group);
        if (read_numbers(path, &quota, &period) == 2)
            least = XD_MIN(least, cpus_of(quota, period));
    }
    for (cgroup_walk w = {.v1 = "cpu"}; next_group(&w, root);) {
        snprintf(path, sizeof path, "%s/sys/fs/cgroup/cpu%s/cpu.cfs_quota_us", root, w.group); /* -1: none */
        bool limited = read_numbers(path, &quota, &ignored) == 1;
        snprintf(path, sizeof path, "%s/sys/fs/cgroup/cpu%s/cpu.cfs_period_us", root, w.group);
        if (limited && read_numbers(path, &period, &ignored) == 1)
            least = XD_MIN(least, cpus_of(quota, period));
    }
    return least;
}

static uint64_t read_limit(const char *path)
{
    XD_CLEANUP(xd_fclosep) FILE *f = fopen(path, "re");
    uint64_t v;
    /* "max" of v2 is no number; v1 has a very large one instead. */
    return f && fscanf(f, "%" SCNu64, &v) == 1 && v < 1ull << 60 ? v : UINT64_MAX;
}

static uint64_t value_of(const char *path, const char *key)
{
    XD_CLEANUP(xd_fclosep) FILE *f = fopen(path, "re");
    char line[256];
    size_t n = strlen(key);
    uint64_t v;
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, key, n) && sscanf(line + n, " %" SCNu64, &v) == 1)
            return v;
    return 0;
}

cgroup_memory cgroup_memory_of(const char *root)
{
    static const struct {
        const char *v1, *limit, *stat, *used[2]; /* used: what cannot be reclaimed, as the page cache can */
    } kinds[] = {{NULL, "%s/sys/fs/cgroup%s/memory.max", "%s/sys/fs/cgroup%s/memory.stat", {"anon ", "unevictable "}},
                 {"memory",
                  "%s/sys/fs/cgroup/memory%s/memory.limit_in_bytes",
                  "%s/sys/fs/cgroup/memory%s/memory.stat",
                  {"total_rss ", "total_unevictable "}}};
    cgroup_memory m = {UINT64_MAX, UINT64_MAX};
    char path[PATH_MAX];
    for (size_t i = 0; i < XD_ARRAY_LEN(kinds); i++)
        for (cgroup_walk w = {.v1 = kinds[i].v1}; next_group(&w, root);) {
            snprintf(path, sizeof path, kinds[i].limit, root, w.group);
            uint64_t limit = read_limit(path);
            if (limit == UINT64_MAX)
                continue;
            snprintf(path, sizeof path, kinds[i].stat, root, w.group);
            uint64_t used = XD_MAX(value_of(path, kinds[i].used[0]), value_of(path, kinds[i].used[1]));
            m.limit_bytes = XD_MIN(m.limit_bytes, limit);
            m.available_bytes = XD_MIN(m.available_bytes, limit > used ? limit - used : 0);
        }
    return m;
}

uint64_t cgroup_ram_bytes(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    uint64_t ram = pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : 0,
             limit = cgroup_memory_of("").limit_bytes;
    return ram ? XD_MIN(ram, limit) : limit == UINT64_MAX ? 0 : limit;
}

static uint64_t meminfo_available(void)
{
    XD_CLEANUP(xd_fclosep) FILE *f = fopen("/proc/meminfo", "re");
    char line[256];
    uint64_t kib;
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %" SCNu64, &kib) == 1)
            return kib * 1024;
    return UINT64_MAX;
}

uint64_t cgroup_available_bytes(void)
{
    uint64_t a = meminfo_available(), b = cgroup_memory_of("").available_bytes;
    return XD_MIN(a, b);
}
