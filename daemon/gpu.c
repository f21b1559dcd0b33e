/* gpu.c - what only the GPU's own libraries can tell `expertd check`: the device as the CUDA backend sees it, the rate at which it
 * reads host memory, ECC counters, and memory in use.
 *
 * Opening the device takes a second and some memory on it, and works beside a running expertd. ECC counters come from the driver's
 * management library (libnvidia-ml.so.1, NVIDIA's NVML reference), loaded at run time; without it they stay unknown. */
#include <dlfcn.h>
#include <string.h>
#include <sys/mman.h>

#include "daemon/facts.h"
#include "kernels/kernels.h"

enum { PROBE_BYTES = 256 << 20, PROBES = 3 };

static double probe(kern_dev *d)
{
    double best = 0;
    void *p = mmap(NULL, PROBE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return 0;
    madvise(p, PROBE_BYTES, MADV_HUGEPAGE);
    memset(p, 1, PROBE_BYTES);
    uint64_t addr;
    if (d->ops->host_register(d, p, PROBE_BYTES, false, &addr) == KERN_OK) {
        for (int i = 0; i < PROBES; i++) {
            double gbps = 0;
            if (d->ops->probe_read(d, addr, PROBE_BYTES, &gbps) == KERN_OK && gbps > best)
                best = gbps;
        }
        d->ops->host_unregister(d, p);
    }
    munmap(p, PROBE_BYTES);
    return best;
}

/* The error types and counters of nvml.h. */
enum { NVML_CORRECTED, NVML_UNCORRECTED };
enum { NVML_AGGREGATE = 1 };

typedef struct nvml {
    void *lib;
    int (*end)(void);
    int (*by_bus)(const char *pci_bus_id, void **ret_device);
} nvml;

static bool nvml_open(nvml *ret)
{
    int (*init)(void) = NULL;
    *ret = (nvml){.lib = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)};
    if (!ret->lib)
        return false;
    *(void **)&init = dlsym(ret->lib, "nvmlInit_v2");
    *(void **)&ret->end = dlsym(ret->lib, "nvmlShutdown");
    *(void **)&ret->by_bus = dlsym(ret->lib, "nvmlDeviceGetHandleByPciBusId_v2");
    if (init && ret->end && ret->by_bus && !init())
        return true;
    dlclose(ret->lib);
    return false;
}

static void nvml_close(nvml *n)
{
    n->end();
    dlclose(n->lib);
}

static void read_ecc(facts *f)
{
    nvml n;
    int (*total)(void *, int, int, unsigned long long *) = NULL;
    if (!nvml_open(&n))
        return;
    *(void **)&total = dlsym(n.lib, "nvmlDeviceGetTotalEccErrors");
    if (total) {
        for (uint32_t i = 0; i < f->gpus_count; i++) {
            gpu_facts *g = &f->gpus[i];
            void *dev = NULL;
            unsigned long long corrected = 0, uncorrected = 0;
            g->ecc_known = !n.by_bus(g->pci, &dev) && !total(dev, NVML_CORRECTED, NVML_AGGREGATE, &corrected) &&
                           !total(dev, NVML_UNCORRECTED, NVML_AGGREGATE, &uncorrected);
            g->ecc_corrected = corrected;
            g->ecc_uncorrected = uncorrected;
        }
    }
    nvml_close(&n);
}

/* nvmlMemory_v2_t of nvml.h: the first version counts what the driver keeps for itself as used. */
typedef struct nvml_memory {
    unsigned version;
    unsigned long long total, reserved, free, used;
} nvml_memory;

uint64_t gpu_used_bytes(const char *pci_bus_id)
{
    nvml n;
    nvml_memory m = {.version = sizeof m | 2u << 24};
    void *dev = NULL;
    int (*memory)(void *, nvml_memory *) = NULL;
    if (!nvml_open(&n))
        return 0;
    *(void **)&memory = dlsym(n.lib, "nvmlDeviceGetMemoryInfo_v2");
    bool known = memory && !n.by_bus(pci_bus_id, &dev) && !memory(dev, &m);
    nvml_close(&n);
    return known ? m.used : 0;
}

void facts_read_device(const config *cfg, facts *f)
{
    if (cfg->engine.backend == CONF_BACKEND_CPU)
        return;
    const kern_options o = {.gpu = cfg->engine.gpu, .numa_node = -1, .disable = cfg->engine.kernels_disable};
    kern_dev *d = NULL;
    f->device_tried = true;
    if (kern_cuda_open(&o, &d, f->device_why, sizeof f->device_why) == KERN_OK) {
        kern_dev_info info;
        d->ops->info(d, &info);
        f->device_open = true;
        snprintf(f->device_name, sizeof f->device_name, "%s", info.name);
        snprintf(f->device_pci, sizeof f->device_pci, "%s", info.pci_bus_id);
        f->device_bytes = info.memory_bytes;
        f->device_free_bytes = info.memory_free_bytes;
        f->device_reads_files = info.can_register_readonly;
        f->device_gbps = probe(d);
        d->ops->close(d);
    }
    read_ecc(f);
}
