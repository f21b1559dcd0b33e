/* hostmem.c - the host tier's memory.
 *
 * Why not the device's own pinned allocator: cudaHostAlloc runs at 2.3 GB/s, while an anonymous mapping with huge pages that is
 * filled first and registered afterwards reaches 11 GB/s and zeroes nothing twice. One registration of hundreds of GiB fails, so it
 * is made in chunks of at most 8 GiB that end on unit boundaries. What is asked for is compared with what the machine has before
 * anything is touched: the kernel's own answer to too much would be the OOM killer. */
#include "engine/memory/hostmem_priv.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <numa.h>
#include <numaif.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "engine/cgroup.h"

#define CHUNK_BYTES_MAX (8ull << 30)
#define HUGE_BYTES      (2ull << 20)
/* Left to everything else when we check whether the request fits. */
#define HEADROOM_BYTES (256ull << 20)

struct hostmem {
    kern_dev *dev;
    char *base;
    uint64_t n_units, unit_bytes, bytes, chunk_units;
    uint64_t *chunk_addr;
    uint32_t n_chunks, n_registered;
    const char *what, *key;
};

static void bind_to_node(void *base, uint64_t bytes, int node)
{
    if (node < 0 || numa_available() < 0 || node > numa_max_node())
        return;
    unsigned long mask[16] = {0};
    const unsigned bits = 8 * sizeof mask[0];
    if ((unsigned)node >= XD_ARRAY_LEN(mask) * bits)
        return;
    mask[(unsigned)node / bits] |= 1ul << ((unsigned)node % bits);
    /* Preferred, not bound: a node that is full must not fail the start. Refusal (seccomp) only costs locality. */
    (void)!mbind(base, bytes, MPOL_PREFERRED, mask, XD_ARRAY_LEN(mask) * bits, 0);
}

xd_status hostmem_open(const hostmem_options *opt, hostmem **ret, xd_err *err)
{
    XD_CLEANUP(hostmem_freep) hostmem *h = calloc(1, sizeof *h);
    if (!h)
        return xd_fail(err, XD_NOMEM, 0, "%s: handle", opt->what);
    h->dev = opt->dev;
    h->what = opt->what;
    h->key = opt->key;
    h->n_units = opt->n_units;
    h->unit_bytes = xd_align_up(opt->unit_bytes ? opt->unit_bytes : 1, 4096);
    h->chunk_units = XD_MAX(CHUNK_BYTES_MAX / h->unit_bytes, 1u);
    if (!xd_mul_u64(&h->bytes, h->n_units, h->unit_bytes) || h->bytes > (uint64_t)INT64_MAX)
        return xd_fail(err, XD_NOMEM, 0, "%s: the size overflows", opt->what);

    uint64_t avail = cgroup_available_bytes();
    char need_s[32], have_s[32], keep_s[32];
    if (avail != UINT64_MAX && h->bytes > (avail > HEADROOM_BYTES ? avail - HEADROOM_BYTES : 0)) {
        return xd_fail(err, XD_NOMEM, 0,
                       "%s needs %s of host memory (%" PRIu64 " x %" PRIu64
                       " bytes), but %s are available and %s are kept "
                       "free: lower %s, or free memory",
                       h->what, xd_format_bytes(need_s, sizeof need_s, h->bytes), h->n_units, h->unit_bytes,
                       xd_format_bytes(have_s, sizeof have_s, avail),
                       xd_format_bytes(keep_s, sizeof keep_s, HEADROOM_BYTES), h->key);
    }
    h->n_chunks = (uint32_t)((h->n_units + h->chunk_units - 1) / h->chunk_units);
    h->chunk_addr = calloc(h->n_chunks ? h->n_chunks : 1, sizeof *h->chunk_addr);
    if (!h->chunk_addr)
        return xd_fail(err, XD_NOMEM, 0, "%s: table", h->what);
    if (h->bytes) {
        void *p = mmap(NULL, h->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED)
            return xd_fail(err, XD_NOMEM, errno, "%s: mapping %s of host memory", h->what,
                           xd_format_bytes(need_s, sizeof need_s, h->bytes));
        h->base = p;
        if (opt->huge_pages && h->bytes >= HUGE_BYTES)
            madvise(p, h->bytes, MADV_HUGEPAGE); /* a refusal costs speed only */
        bind_to_node(p, h->bytes, opt->numa_node);
    }
    *ret = XD_TAKE(h);
    return XD_OK;
}

xd_status hostmem_register(hostmem *h, xd_err *err)
{
    for (; h->n_registered < h->n_chunks; h->n_registered++) {
        uint64_t first = h->n_registered * h->chunk_units;
        uint64_t bytes = XD_MIN(h->chunk_units, h->n_units - first) * h->unit_bytes;
        kern_status st = h->dev->ops->host_register(h->dev, h->base + first * h->unit_bytes, bytes, false,
                                                    &h->chunk_addr[h->n_registered]);
        if (st == KERN_OK)
            continue;
        struct rlimit rl = {0};
        getrlimit(RLIMIT_MEMLOCK, &rl);
        char need_s[32], lim_s[32];
        return xd_fail(
            err, XD_NOMEM, 0,
            "%s: pinning %s of host memory failed (%s); the locked-memory limit (RLIMIT_MEMLOCK) is %s: raise it "
            "(LimitMEMLOCK=infinity, ulimit -l unlimited) or lower %s",
            h->what, xd_format_bytes(need_s, sizeof need_s, h->bytes), h->dev->ops->error(h->dev),
            rl.rlim_cur == RLIM_INFINITY ? "unlimited" : xd_format_bytes(lim_s, sizeof lim_s, rl.rlim_cur), h->key);
    }
    return XD_OK;
}

void hostmem_free(hostmem *h)
{
    if (!h)
        return;
    for (uint32_t i = 0; i < h->n_registered; i++)
        h->dev->ops->host_unregister(h->dev, h->base + i * h->chunk_units * h->unit_bytes);
    if (h->base)
        munmap(h->base, h->bytes);
    free(h->chunk_addr);
    free(h);
}

xd_status hostmem_open_near(kern_dev *dev, uint64_t n_units, uint64_t unit_bytes, const char *what, const char *key,
                            hostmem **ret, xd_err *err)
{
    kern_dev_info info;
    dev->ops->info(dev, &info);
    const hostmem_options o = {.dev = dev,
                               .n_units = n_units,
                               .unit_bytes = unit_bytes,
                               .numa_node = info.numa_node,
                               .huge_pages = true,
                               .what = what,
                               .key = key};
    XD_CLEANUP(hostmem_freep) hostmem *h = NULL;
    xd_status st = hostmem_open(&o, &h, err);
    if (st || (st = hostmem_register(h, err)))
        return st;
    *ret = XD_TAKE(h);
    return XD_OK;
}

void *hostmem_ptr(const hostmem *h, uint64_t unit)
{
    return h->base + unit * h->unit_bytes;
}

uint64_t hostmem_addr(const hostmem *h, uint64_t unit)
{
    return h->chunk_addr[unit / h->chunk_units] + unit % h->chunk_units * h->unit_bytes;
}

uint64_t hostmem_unit_bytes(const hostmem *h)
{
    return h->unit_bytes;
}

uint64_t hostmem_run_bytes(const hostmem *h)
{
    return XD_MIN(h->chunk_units, h->n_units) * h->unit_bytes;
}
