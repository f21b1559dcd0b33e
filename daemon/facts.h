/* facts.h - what this machine is, as the kernel tells it: read once, judged by check.c. */
#ifndef DAEMON_FACTS_H
#define DAEMON_FACTS_H

#include <stdbool.h>
#include <stdint.h>

#include "config/config.h"

#define FACTS_UNLIMITED UINT64_MAX

typedef struct gpu_facts {
    char pci[32];                  /* "0000:1a:00.0" */
    double link_gts, link_max_gts; /* transfers a second and lane, 0 unknown */
    uint32_t link_width, link_max_width;
    int numa_node;     /* -1 unknown */
    uint32_t switches; /* bridges between the root port and the device */
    char chain[96];    /* "pci0000:00 > 0000:00:01.0 > 0000:1a:00.0", "" unknown */
    char iommu[32];    /* group type: "identity", "DMA", ...; "" none */
    int ats;           /* 1 on, 0 off, -1 no such capability or unreadable */
    uint64_t aer_correctable, aer_fatal, aer_nonfatal;
    bool aer_known;
    uint64_t ecc_corrected, ecc_uncorrected; /* over the card's life */
    bool ecc_known;
} gpu_facts;

typedef struct facts {
    uint64_t mem_total_bytes, mem_available_bytes, cgroup_limit_bytes, memlock_bytes, shm_bytes;
    uint64_t nofile, max_map_count;
    char cpu_model[96];
    uint32_t cpus, cpus_usable; /* usable: by affinity and the CPU quota of the control group, rounded up */
    bool avx2, avx512, amx;
    int swappiness; /* -1 unknown */
    bool swap, zram, zswap;
    char thp[16]; /* chosen word of transparent_hugepage/enabled, "" unknown */
    uint32_t numa_nodes;
    bool numa_balancing;
    char driver[32];  /* NVIDIA kernel module version, "" none */
    int cuda_version; /* of libcuda, 12040 for 12.4; 0 none */
    gpu_facts gpus[16];
    uint32_t gpus_count;
    bool device_tried, device_open; /* the CUDA backend */
    char device_why[192];           /* why it did not open */
    char device_name[64], device_pci[32];
    uint64_t device_bytes, device_free_bytes;
    bool device_reads_files;                 /* mapped files can be registered in place */
    double device_gbps;                      /* measured rate of reading pinned host memory; 0: not measured */
    uint64_t ram_corrected, ram_uncorrected; /* of the memory controllers, since boot */
    bool ram_ecc_known;
    /* The configured model, by facts_read_model(). Faults are the messages with which serving would end; "" none. */
    bool model_open; /* all below is known */
    char model_error[768], place_error[768];
    bool model_unknown; /* model_error: it can be read, but is of a kind or format that is not supported */
    uint64_t model_bytes, expert_bytes; /* weights; of these, experts */
    uint64_t ram_bytes;                 /* of this machine, that serving would take; in place from files, too */
    bool paged;                         /* a part of the experts lies on disk only */
    uint64_t disk_bytes;                /* of the page file */
    bool tokenizer_missing, template_missing;
    char tokenizer_error[768], template_error[768];
    bool template_configured; /* model.chat_template is set: its faults are the configuration's */
    /* Other files of the configuration. */
    char settings_error[768], stats_error[768], trace_error[768], engine_error[768];
    uint64_t disk_free_bytes;
    bool disk_checked, disk_exists;
    char disk_error[128];
    double disk_gbps; /* 0: not measured */
    int port_errno;   /* why server.port cannot be listened on; 0: it can */
} facts;

/* Reads /proc and /sys below `root` ("" in real life, a made-up tree in tests), and the limits of this process. */
void facts_read(const char *root, const config *cfg, facts *ret);
/* Opens the configured model and the files that serving it would need, by the code with which serving does; takes no memory for weights. */
void facts_read_model(const config *cfg, facts *f);
/* CPUs and memory of facts_read() alone. */
conf_machine facts_read_machine(const char *root);
/* NVIDIA GPUs on this machine's PCIe bus, usable or not. */
uint32_t facts_count_gpus(void);
/* Adds what the GPU's own libraries tell; opens the device unless the configuration asks for the CPU. */
void facts_read_device(const config *cfg, facts *f);
/* Bytes of the GPU's memory that are in use, by all processes, as the driver counts them; 0: unknown. */
uint64_t gpu_used_bytes(const char *pci_bus_id);

#endif
