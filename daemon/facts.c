/* facts.c - reads what check.c judges. Anything that cannot be read stays at its "unknown" value; nothing here fails. */
#include <ctype.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netdb.h>
#include <sched.h>
#include <stdarg.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "daemon/facts.h"
#include "engine/cgroup.h"
#include "engine/fallback/link.h"

typedef struct text_file {
    char text[1 << 16];
} text_file;

/* Writes a path; "" (which names nothing) when it would be cut. */
static const char *path_of(char *out, size_t cap, const char *fmt, ...) XD_PRINTF(3, 4);
static const char *path_of(char *out, size_t cap, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(out, cap, fmt, ap);
    va_end(ap);
    if (n < 0 || (size_t)n >= cap)
        *out = 0;
    return out;
}

/* The start of root/path as text; "" when it cannot be read. */
static const char *slurp(text_file *t, const char *root, const char *path)
{
    char full[PATH_MAX];
    path_of(full, sizeof full, "%s%s", root, path);
    size_t n = 0;
    XD_CLEANUP(xd_fclosep) FILE *f = fopen(full, "re");
    if (f)
        n = fread(t->text, 1, sizeof t->text - 1, f);
    t->text[n] = 0;
    return t->text;
}

/* The number behind "key" at the start of a line; `fallback` if there is none. */
static uint64_t number_of(const char *text, const char *key, uint64_t fallback)
{
    size_t n = strlen(key);
    for (const char *line = text; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
        if (!strncmp(line, key, n)) {
            const char *p = line + n;
            while (*p && !isdigit((unsigned char)*p) && *p != '\n')
                p++;
            return isdigit((unsigned char)*p) ? strtoull(p, NULL, 10) : fallback;
        }
    return fallback;
}

static bool has_word(const char *text, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = text; (p = strstr(p, word)); p += n)
        if ((p == text || isspace((unsigned char)p[-1])) && (!p[n] || isspace((unsigned char)p[n])))
            return true;
    return false;
}

static void copy_line(char *out, size_t cap, const char *text)
{
    size_t n = strcspn(text, "\n");
    snprintf(out, cap, "%.*s", (int)XD_MIN(n, cap - 1), text);
}

static void read_cpu(const char *root, text_file *t, facts *f)
{
    const char *info = slurp(t, root, "/proc/cpuinfo");
    const char *name = strstr(info, "model name"), *flags = strstr(info, "\nflags");
    if (name && (name = strchr(name, ':')))
        copy_line(f->cpu_model, sizeof f->cpu_model, name + 1 + (name[1] == ' '));
    if (flags) {
        char line[8192];
        copy_line(line, sizeof line, flags + 1);
        f->avx2 = has_word(line, "avx2") && has_word(line, "fma");
        f->avx512 = has_word(line, "avx512f") && has_word(line, "avx512bw");
        f->amx = has_word(line, "amx_tile");
    }
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    f->cpus = n > 0 ? (uint32_t)n : 0;
    cpu_set_t set;
    f->cpus_usable = sched_getaffinity(0, sizeof set, &set) ? f->cpus : (uint32_t)CPU_COUNT(&set);
    f->cpus_usable = XD_MIN(f->cpus_usable, cgroup_cpus(root));
}

static void read_memory(const char *root, text_file *t, facts *f)
{
    const char *mem = slurp(t, root, "/proc/meminfo");
    f->mem_total_bytes = number_of(mem, "MemTotal:", 0) * 1024;
    f->mem_available_bytes = number_of(mem, "MemAvailable:", 0) * 1024;
    f->swap = number_of(mem, "SwapTotal:", 0) > 0;
    f->zram = strstr(slurp(t, root, "/proc/swaps"), "zram") != NULL;
    f->zswap = *slurp(t, root, "/sys/module/zswap/parameters/enabled") == 'Y';
    const char *s = slurp(t, root, "/proc/sys/vm/swappiness");
    f->swappiness = isdigit((unsigned char)*s) ? atoi(s) : -1;
    f->max_map_count = strtoull(slurp(t, root, "/proc/sys/vm/max_map_count"), NULL, 10);
    f->numa_balancing = *slurp(t, root, "/proc/sys/kernel/numa_balancing") == '1';
    const char *thp = strchr(slurp(t, root, "/sys/kernel/mm/transparent_hugepage/enabled"), '[');
    if (thp)
        snprintf(f->thp, sizeof f->thp, "%.*s", (int)XD_MIN(strcspn(thp + 1, "]"), sizeof f->thp - 1), thp + 1);

    char path[PATH_MAX];
    uint64_t limit = cgroup_memory_of(root).limit_bytes;
    f->cgroup_limit_bytes = limit < f->mem_total_bytes ? limit : FACTS_UNLIMITED;
    for (unsigned mc = 0; mc < 64; mc++) {
        path_of(path, sizeof path, "/sys/devices/system/edac/mc/mc%u/ce_count", mc);
        const char *count = slurp(t, root, path);
        if (!isdigit((unsigned char)*count))
            break;
        f->ram_ecc_known = true;
        f->ram_corrected += strtoull(count, NULL, 10);
        path_of(path, sizeof path, "/sys/devices/system/edac/mc/mc%u/ue_count", mc);
        f->ram_uncorrected += strtoull(slurp(t, root, path), NULL, 10);
    }

    char node[64];
    struct stat st;
    char full[PATH_MAX];
    while (f->numa_nodes < 1024) {
        path_of(node, sizeof node, "/sys/devices/system/node/node%u", f->numa_nodes);
        path_of(full, sizeof full, "%s%s", root, node);
        if (stat(full, &st))
            break;
        f->numa_nodes++;
    }
    struct statvfs vfs;
    path_of(full, sizeof full, "%s/dev/shm", root);
    if (!statvfs(full, &vfs))
        f->shm_bytes = (uint64_t)vfs.f_blocks * vfs.f_frsize;
}

/* Walks the PCIe extended capabilities (PCIe base spec 7.6.3) for ATS (id 0x000f); bit 15 of its control word is Enable. Only
 * root may read beyond the first 64 bytes. */
static int read_ats(const char *dir)
{
    char path[PATH_MAX];
    path_of(path, sizeof path, "%s/config", dir);
    XD_CLEANUP(xd_closep) int fd = open(path, O_RDONLY | O_CLOEXEC);
    uint8_t c[4096];
    if (fd < 0 || pread(fd, c, sizeof c, 0) != sizeof c)
        return -1;
    for (unsigned at = 0x100, hops = 0; at >= 0x100 && at <= sizeof c - 8 && hops < 48; hops++) {
        uint32_t head =
            (uint32_t)c[at] | (uint32_t)c[at + 1] << 8 | (uint32_t)c[at + 2] << 16 | (uint32_t)c[at + 3] << 24;
        if ((head & 0xffff) == 0x000f)
            return c[at + 7] >> 7;
        at = head >> 20;
    }
    return -1;
}

static void read_gpu(const char *root, const char *dir, const char *name, text_file *t, gpu_facts *g)
{
    snprintf(g->pci, sizeof g->pci, "%.31s", name);
    link_info link;
    char sysfs[PATH_MAX];
    link_read(path_of(sysfs, sizeof sysfs, "%s/sys", root), name, &link);
    g->link_gts = link.speed_gts;
    g->link_max_gts = link.best_speed_gts;
    g->link_width = link.width;
    g->link_max_width = link.best_width;
    g->aer_correctable = link.aer_correctable;
    g->aer_fatal = link.aer_fatal;
    g->aer_nonfatal = link.aer_nonfatal;
    const char *node = slurp(t, dir, "/numa_node");
    g->numa_node = *node ? atoi(node) : -1;
    copy_line(g->iommu, sizeof g->iommu, slurp(t, dir, "/iommu_group/type"));
    g->ats = read_ats(dir);
    g->aer_known = *slurp(t, dir, "/aer_dev_correctable") != 0;
    /* .../pci0000:00/ROOT_PORT/[SWITCH_UP/SWITCH_DOWN/]DEVICE: two bridges a switch beyond the root port. */
    char real[PATH_MAX];
    uint32_t parts = 0;
    const char *p = realpath(dir, real) ? strstr(real, "/pci") : NULL;
    for (p = p ? strchr(p + 1, '/') : NULL; p; p = strchr(p + 1, '/'))
        parts++;
    g->switches = parts > 2 ? (parts - 2) / 2 : 0;
    const char *bus = parts ? strstr(real, "/pci") : NULL;
    for (size_t n = 0; bus && *bus && n + 4 < sizeof g->chain;) {
        const char *end = strchrnul(bus + 1, '/');
        n += (size_t)snprintf(g->chain + n, sizeof g->chain - n, "%s%.*s", n ? " > " : "", (int)(end - bus - 1),
                              bus + 1);
        bus = end;
    }
}

static void read_gpus(const char *root, text_file *t, facts *f)
{
    char base[PATH_MAX / 2], dir[PATH_MAX];
    path_of(base, sizeof base, "%s/sys/bus/pci/devices", root);
    DIR *d = opendir(base);
    if (d) {
        struct dirent *e;
        while ((e = readdir(d)) && f->gpus_count < XD_ARRAY_LEN(f->gpus)) {
            path_of(dir, sizeof dir, "%s/%s", base, e->d_name);
            if (strncmp(slurp(t, dir, "/vendor"), "0x10de", 6) || strncmp(slurp(t, dir, "/class"), "0x03", 4))
                continue;
            read_gpu(root, dir, e->d_name, t, &f->gpus[f->gpus_count++]);
        }
        closedir(d);
    }
    /* "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build ..." */
    const char *p = strstr(slurp(t, root, "/proc/driver/nvidia/version"), "Module");
    while (p && *p && *p != '\n') {
        size_t n = strspn(p, "0123456789.");
        if (n >= 5 && isspace((unsigned char)p[n]) && memchr(p, '.', n)) {
            snprintf(f->driver, sizeof f->driver, "%.*s", (int)XD_MIN(n, sizeof f->driver - 1), p);
            break;
        }
        p += n ? n : 1;
    }
    void *lib = *root ? NULL : dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (lib) {
        int (*version)(int *) = (int (*)(int *))(uintptr_t)dlsym(lib, "cuDriverGetVersion");
        if (version && version(&f->cuda_version))
            f->cuda_version = 0;
        dlclose(lib);
    }
}

conf_machine facts_read_machine(const char *root)
{
    XD_CLEANUP(xd_freep) text_file *t = malloc(sizeof *t);
    facts f = {0};
    if (!t)
        return (conf_machine){0};
    read_cpu(root, t, &f);
    read_memory(root, t, &f);
    return (conf_machine){f.cpus_usable, XD_MIN(f.mem_total_bytes, f.cgroup_limit_bytes)};
}

uint32_t facts_count_gpus(void)
{
    XD_CLEANUP(xd_freep) text_file *t = malloc(sizeof *t);
    facts f = {0};
    if (t)
        read_gpus("", t, &f);
    return f.gpus_count;
}

/* Sequential O_DIRECT reads of at most 1 GiB or a second, in 8 MiB pieces. */
static double disk_rate(int fd, void *buf, size_t piece, char *why, size_t cap)
{
    uint64_t start = xd_now_ns(), bytes = 0, ns = 0;
    while (bytes < 1ull << 30 && ns < 1000000000u) {
        ssize_t n = pread(fd, buf, piece, (off_t)bytes);
        if (n < 0)
            snprintf(why, cap, "%s", strerror(errno));
        if (n <= 0)
            break;
        bytes += (uint64_t)n;
        ns = xd_now_ns() - start;
    }
    return bytes >= piece && ns ? (double)bytes / (double)ns : 0;
}

/* The page file if there is one; else a nameless file of 256 MiB in its folder, which shows as well whether that can be written. */
static void measure_disk(const char *path, const char *dir, bool exists, facts *f)
{
    enum { PIECE = 8 << 20, PIECES = 32 };
    XD_CLEANUP(xd_freep) void *buf = NULL;
    XD_CLEANUP(xd_closep)
    int fd = exists ? open(path, O_RDONLY | O_DIRECT | O_CLOEXEC)
                    : open(dir, O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);
    if (fd < 0 || posix_memalign(&buf, 4096, PIECE)) {
        snprintf(f->disk_error, sizeof f->disk_error, "%s", strerror(errno));
        return;
    }
    memset(buf, 0x5a, PIECE); /* not zeros: some disks do not store those */
    for (int i = 0; !exists && i < PIECES; i++)
        if (pwrite(fd, buf, PIECE, (off_t)i * PIECE) != PIECE) {
            snprintf(f->disk_error, sizeof f->disk_error, "writing: %s", strerror(errno));
            return;
        }
    if (!exists)
        (void)fdatasync(fd);
    f->disk_gbps = disk_rate(fd, buf, PIECE, f->disk_error, sizeof f->disk_error);
}

static void read_disk(const config *cfg, facts *f)
{
    const char *path = cfg->memory.nvme_path;
    if (!*path)
        return;
    f->disk_checked = true;
    char dir[PATH_MAX];
    path_of(dir, sizeof dir, "%s", path);
    struct statvfs vfs;
    struct stat st;
    f->disk_exists = !stat(path, &st);
    char *slash = strrchr(dir, '/');
    if (slash && slash != dir)
        *slash = 0;
    else
        path_of(dir, sizeof dir, "%s", slash ? "/" : ".");
    if (statvfs(dir, &vfs)) {
        snprintf(f->disk_error, sizeof f->disk_error, "%s", strerror(errno));
        return;
    }
    f->disk_free_bytes = (uint64_t)vfs.f_bavail * vfs.f_frsize;
    if (f->disk_exists && !S_ISREG(st.st_mode))
        snprintf(f->disk_error, sizeof f->disk_error, "not a file");
    else if (f->disk_exists || f->disk_free_bytes > 1ull << 30)
        measure_disk(path, dir, f->disk_exists, f);
}

/* 0, or the errno of listening there. */
static int try_bind(const char *host, uint32_t port)
{
    char service[16];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *list = NULL;
    snprintf(service, sizeof service, "%u", port);
    if (getaddrinfo(host, service, &hints, &list))
        return EADDRNOTAVAIL;
    int on = 1;
    XD_CLEANUP(xd_closep) int fd = socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool ok = fd >= 0 && !setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) &&
              !bind(fd, list->ai_addr, list->ai_addrlen);
    int e = ok ? 0 : errno;
    freeaddrinfo(list);
    return e;
}

void facts_read(const char *root, const config *cfg, facts *ret)
{
    *ret = (facts){.swappiness = -1};
    text_file *t = malloc(sizeof *t);
    if (!t)
        return;
    read_cpu(root, t, ret);
    read_memory(root, t, ret);
    read_gpus(root, t, ret);
    free(t);
    struct rlimit r;
    if (!getrlimit(RLIMIT_MEMLOCK, &r))
        ret->memlock_bytes = r.rlim_cur == RLIM_INFINITY ? FACTS_UNLIMITED : r.rlim_cur;
    if (!getrlimit(RLIMIT_NOFILE, &r))
        ret->nofile = r.rlim_max == RLIM_INFINITY ? FACTS_UNLIMITED : r.rlim_max; /* the daemon raises its own */
    read_disk(cfg, ret);
    ret->port_errno = try_bind(cfg->server.host, cfg->server.port);
}
