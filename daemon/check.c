/* check.c - `expertd check`: what this machine can do, what it cannot, and how to mend it.
 *
 * check_judge() is pure: facts in, lines out. "fail" is what would keep expertd from serving as configured, "warn" what makes it
 * slower or less safe. The exit status is 1 when a line fails. */
#include <errno.h>
#include <jansson.h>
#include <stdarg.h>
#include <string.h>

#include "api/api.h"
#include "daemon/check.h"
#include "daemon/daemon_priv.h"
#include "engine/core.h"

#define GIB (1ull << 30)

typedef struct report {
    check_line *lines;
    size_t count, cap;
} report;

static check_line *add(report *r, const char *id, check_level level, const char *means, const char *fmt, ...)
    XD_PRINTF(5, 6);
static check_line *add(report *r, const char *id, check_level level, const char *means, const char *fmt, ...)
{
    check_line *l = &r->lines[r->count < r->cap ? r->count++ : r->cap - 1];
    *l = (check_line){.level = level, .means = means};
    snprintf(l->id, sizeof l->id, "%s", id);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(l->what, sizeof l->what, fmt, ap);
    va_end(ap);
    return l;
}

#define MEND(line, ...) snprintf((line)->mend, sizeof(line)->mend, __VA_ARGS__)
#define SIZE(bytes)     xd_format_bytes((char[32]){0}, 32, bytes)

static void judge_cpu(report *r, const facts *f)
{
    char usable[48] = "";
    if (f->cpus_usable < f->cpus)
        snprintf(usable, sizeof usable, " of which expertd may use %u", f->cpus_usable);
    const char *simd = f->avx512 ? "AVX-512" : f->avx2 ? "AVX2" : "no AVX2";
    check_line *l =
        add(r, "cpu", f->avx2 || f->avx512 ? CHECK_OK : CHECK_WARN,
            "CPU kernels use AVX-512 or AVX2; without them the CPU backend is slow.", "%u CPUs%s, %s%s, %s", f->cpus,
            usable, simd, f->amx ? " and AMX" : "", *f->cpu_model ? f->cpu_model : "unknown model");
    if (l->level)
        MEND(l, "%s", "use a GPU, or a CPU of 2014 or later; in a virtual machine, pass the host's CPU through");
}

static void judge_memory(report *r, const facts *f, const config *cfg)
{
    uint64_t total = XD_MIN(f->mem_total_bytes, f->cgroup_limit_bytes), want = f->model_bytes + f->model_bytes / 2;
    bool paged = f->paged, may_page = *cfg->memory.nvme_path && cfg->memory.host_budget == CONF_AUTO_BYTES;
    uint64_t need = paged ? f->ram_bytes : f->model_bytes;
    if (f->model_bytes) {
        check_line *l =
            add(r, "memory",
                need > total && !may_page                  ? CHECK_FAIL
                : need > total || (!paged && want > total) ? CHECK_WARN
                                                           : CHECK_OK,
                "Experts are read from RAM; about 1.5 x the model leaves room for the KV cache and the system.",
                paged ? "%s of RAM, of which %s are needed with the memory.host_budget that is set"
                      : "%s of RAM for a model of %s",
                SIZE(total), SIZE(need));
        if (l->level && paged)
            MEND(l, "%s", "a smaller memory.host_budget or kv.swap_space");
        else if (l->level &&
                 !strncmp(cfg->model.path, "synthetic:", 10)) /* it is made in memory, whatever lies on disk */
            MEND(l, "add RAM (%s is good), or take a smaller model.dtype or another model", SIZE(want));
        else if (l->level)
            MEND(l, "add RAM (%s is good), use a smaller quantisation, or set memory.host_budget and memory.nvme_path",
                 SIZE(want));
    } else
        add(r, "memory", CHECK_OK, "", "%s of RAM, %s available%s", SIZE(f->mem_total_bytes),
            SIZE(f->mem_available_bytes), *cfg->model.path ? "" : "; set a model (-m) to compare with its size");
    if (f->cgroup_limit_bytes != FACTS_UNLIMITED) {
        bool tight = f->model_bytes && !paged && f->cgroup_limit_bytes < want;
        check_line *l =
            add(r, "cgroup", tight ? CHECK_WARN : CHECK_OK, "A container or slice that exceeds its limit is killed.",
                "memory is limited to %s by a cgroup", SIZE(f->cgroup_limit_bytes));
        if (tight)
            MEND(l, "raise it: MemoryMax=infinity in the unit, or docker run --memory=%lluG",
                 (unsigned long long)(want / GIB + 1));
    }
    uint64_t pinned = f->model_bytes ? f->model_bytes : GIB;
    bool short_lock = f->memlock_bytes != FACTS_UNLIMITED && f->memlock_bytes < pinned;
    check_line *l =
        add(r, "memlock",
            !short_lock     ? CHECK_OK
            : f->gpus_count ? CHECK_FAIL
                            : CHECK_WARN,
            "Memory that the GPU reads must be locked; the CPU backend does not need it.", "locked memory: %s",
            f->memlock_bytes == FACTS_UNLIMITED ? "unlimited" : SIZE(f->memlock_bytes));
    if (short_lock)
        MEND(l, "%s",
             "LimitMEMLOCK=infinity in the unit (the shipped one has it), ulimit -l unlimited in a shell, "
             "--ulimit memlock=-1 for docker");
    if (f->shm_bytes)
        add(r, "shm", CHECK_OK, "", "/dev/shm has %s; expertd does not use it", SIZE(f->shm_bytes));
}

static void judge_kernel(report *r, const facts *f, const config *cfg)
{
    bool known = *f->thp, good = !strcmp(f->thp, "always") || !strcmp(f->thp, "madvise");
    check_line *l = add(r, "huge-pages", good || !known || !cfg->memory.huge_pages ? CHECK_OK : CHECK_WARN,
                        "Huge pages make pinning and reading the host pool faster.", "transparent huge pages: %s",
                        known ? f->thp : "not available");
    if (l->level)
        MEND(l, "%s", "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled");
    bool squeeze = f->zram || f->zswap;
    l = add(r, "swap", squeeze || (f->swap && f->swappiness > 10) ? CHECK_WARN : CHECK_OK,
            "Expert pages that are swapped or compressed away must come back before a token can go on.",
            "%s%s%s, swappiness %d", f->swap ? "swap is on" : "no swap", f->zram ? ", zram" : "",
            f->zswap ? ", zswap" : "", f->swappiness);
    if (l->level)
        MEND(l, "%s",
             squeeze ? "switch zram and zswap off: swapoff /dev/zram0; echo N > /sys/module/zswap/parameters/enabled"
                     : "sysctl vm.swappiness=1");
    if (f->max_map_count) {
        l = add(r, "map-count", f->max_map_count < 65530 ? CHECK_WARN : CHECK_OK,
                "Every registered piece of memory is a mapping.", "vm.max_map_count is %llu",
                (unsigned long long)f->max_map_count);
        if (l->level)
            MEND(l, "%s", "sysctl vm.max_map_count=65530");
    }
    l = add(r, "numa", f->numa_nodes > 1 && f->numa_balancing ? CHECK_WARN : CHECK_OK,
            "Experts should lie on the GPU's own node and stay there.", "%u NUMA node%s%s", XD_MAX(f->numa_nodes, 1u),
            f->numa_nodes > 1 ? "s" : "", f->numa_nodes > 1 && f->numa_balancing ? ", automatic balancing is on" : "");
    if (l->level)
        MEND(l, "%s", "sysctl kernel.numa_balancing=0");
    uint64_t files =
        (uint64_t)cfg->server.max_connections + api_headroom(cfg->server.max_connections) + API_OTHER_FILES;
    l = add(r, "files", f->nofile < files ? CHECK_WARN : CHECK_OK,
            "Every connection is an open file; with fewer files the daemon takes fewer connections.",
            "%llu open files allowed, %llu needed for server.max_connections = %u", (unsigned long long)f->nofile,
            (unsigned long long)files, cfg->server.max_connections);
    if (l->level)
        MEND(l, "LimitNOFILE=%llu in the unit, ulimit -n in a shell, or a smaller server.max_connections",
             (unsigned long long)files);
}

/* Bytes a second of a PCIe link in GB/s: 128b/130b from 8 GT/s on, 8b/10b below. */
static double link_gbps(double gts, uint32_t width)
{
    return gts * width / 8 * (gts < 8 ? 0.8 : 128.0 / 130);
}

static void judge_gpu(report *r, const facts *f, const gpu_facts *g)
{
    double now = link_gbps(g->link_gts, g->link_width), best = link_gbps(g->link_max_gts, g->link_max_width);
    check_line *l;
    if (best > 0) {
        bool narrow = g->link_width < g->link_max_width;
        l = add(
            r, "link", narrow || best < 12 ? CHECK_WARN : CHECK_OK,
            "Decoding runs at the rate of this link. An idle link may drop its speed on purpose; its width should be full.",
            "%s: %.1f GT/s x%u now (%.0f GB/s), at best %.1f GT/s x%u (%.0f GB/s)", g->pci, g->link_gts, g->link_width,
            now, g->link_max_gts, g->link_max_width, best);
        if (narrow)
            MEND(l, "%s",
                 "reseat the card, use a slot wired for its full width, check riser cables and BIOS bifurcation");
        else if (l->level)
            MEND(l, "%s", "use a faster slot; a smaller quantisation also halves the bytes a token needs");
    } else
        add(r, "link", CHECK_WARN, "Decoding runs at the rate of this link.",
            "%s: link speed is not readable (virtual machine?)", g->pci);
    add(r, "topology", g->switches ? CHECK_WARN : CHECK_OK, "Devices behind one switch share its uplink.", "%s: %s%s%s",
        g->pci,
        g->switches  ? "behind a PCIe switch"
        : !*g->chain ? "the way to the device is not visible"
        : strchr(g->chain, '>') != strrchr(g->chain, '>')
            ? "at a root port"
            : "on the root bus, as virtual machines show it; the host's topology is not visible",
        *g->chain ? ": " : "", g->chain);
    bool translated = !strncmp(g->iommu, "DMA", 3);
    l = add(r, "iommu", translated ? CHECK_WARN : CHECK_OK,
            "A translating IOMMU can slow reads of host memory by the GPU.", "%s: IOMMU %s", g->pci,
            *g->iommu ? g->iommu : "off or not visible");
    if (translated)
        MEND(l, "%s", "boot with iommu=pt if the measured link rate is low");
    add(r, "ats", CHECK_OK, "", "%s: ATS %s (expertd pins pages and does not need it)", g->pci,
        g->ats > 0    ? "on"
        : g->ats == 0 ? "off"
                      : "not there or not readable");
    if (g->aer_known) {
        bool bad = g->aer_fatal || g->aer_nonfatal;
        l = add(r, "aer", bad || g->aer_correctable > 1000 ? CHECK_WARN : CHECK_OK,
                "Errors on the link are repeated transfers, or worse.",
                "%s: %llu correctable, %llu non-fatal, %llu fatal", g->pci, (unsigned long long)g->aer_correctable,
                (unsigned long long)g->aer_nonfatal, (unsigned long long)g->aer_fatal);
        if (l->level)
            MEND(l, "%s", "reseat the card, change the riser, or lower the slot's PCIe generation in the BIOS");
    }
    if (g->ecc_known) {
        l = add(r, "gpu-ecc", g->ecc_uncorrected ? CHECK_WARN : CHECK_OK,
                "Uncorrected errors stop kernels or damage results.",
                "%s: %llu corrected and %llu uncorrected memory errors over its life", g->pci,
                (unsigned long long)g->ecc_corrected, (unsigned long long)g->ecc_uncorrected);
        if (l->level)
            MEND(l, "%s", "nvidia-smi -q -d ECC,ROW_REMAPPER says which; a growing count calls for another card");
    } else
        add(r, "gpu-ecc", CHECK_OK, "", "%s: ECC counters are not readable, or the card has none", g->pci);
    if (f->numa_nodes > 1)
        add(r, "gpu-numa", g->numa_node < 0 ? CHECK_WARN : CHECK_OK, "Experts should lie on the GPU's own node.",
            "%s: NUMA node %d", g->pci, g->numa_node);
}

/* The device as the CUDA backend sees it. */
static void judge_device(report *r, const facts *f, const config *cfg)
{
    if (!f->device_tried) {
        add(r, "gpu", CHECK_OK, "", "engine.backend = cpu: no GPU was looked at");
        return;
    }
    if (!f->device_open) {
        bool wanted = cfg->engine.backend == CONF_BACKEND_CUDA || f->gpus_count;
        bool no_module = strstr(f->device_why, "is not installed"); /* it was built without nvcc */
        check_line *l = add(r, "gpu", cfg->engine.backend == CONF_BACKEND_CUDA ? CHECK_FAIL : CHECK_WARN,
                            "Without a GPU the CPU computes everything: complete, but slower.", "%s%s",
                            f->gpus_count ? "a GPU is there but not usable: " : "no GPU: ", f->device_why);
        if (wanted || no_module)
            MEND(l, "%s",
                 no_module
                     ? "for an NVIDIA GPU install the CUDA toolkit (nvcc), version 12 or later, then ./dev build, and "
                       "install anew what was installed"
                 : f->gpus_count ? "see the message; the driver must match its user libraries and be as new as the "
                                   "build's CUDA (the major version counts)"
                                 : "engine.backend = auto, or make the GPU visible (docker run --gpus all)");
        return;
    }
    add(r, "gpu", CHECK_OK, "", "%s, %s of memory, %s free%s%s; model files are %s", f->device_name,
        SIZE(f->device_bytes), SIZE(f->device_free_bytes), *f->device_pci ? ", at " : "", f->device_pci,
        f->device_reads_files ? "read in place" : "copied into a pool first");
    double best = 0;
    for (uint32_t i = 0; i < f->gpus_count; i++)
        if (!strcasecmp(f->gpus[i].pci, f->device_pci))
            best = link_gbps(f->gpus[i].link_max_gts, f->gpus[i].link_max_width);
    bool slow = f->device_gbps > 0 && (best > 0 ? f->device_gbps < 0.6 * best : f->device_gbps < 12);
    char share[64] = "";
    if (best > 0)
        snprintf(share, sizeof share, ", %.0f %% of the wire's %.0f", 100 * f->device_gbps / best, best);
    check_line *l =
        add(r, "link-rate", slow || f->device_gbps <= 0 ? CHECK_WARN : CHECK_OK,
            "This is the rate at which kernels read experts from host memory: about 80 % of the wire is usual.",
            f->device_gbps > 0 ? "kernels read pinned host memory at %.1f GB/s%s"
                               : "reading host memory could not be measured",
            f->device_gbps, share);
    if (l->level)
        MEND(l, "%s",
             f->device_gbps > 0
                 ? "look at the lines above: width, generation, IOMMU; is another program using the link or the memory?"
                 : "raise the memlock limit (see above) and try again");
}

static void judge_gpus(report *r, const facts *f, const config *cfg)
{
    if (f->gpus_count || f->device_open || *f->driver) {
        bool unusable = f->device_tried ? !f->device_open : !f->cuda_version;
        check_line *l =
            add(r, "driver",
                *f->driver && f->cuda_version ? CHECK_OK
                : unusable                    ? CHECK_FAIL
                                              : CHECK_WARN,
                "The CUDA backend needs the kernel driver and libcuda.so.1.",
                "%u GPU%s on the PCIe bus, driver %s, CUDA %d.%d", f->gpus_count, f->gpus_count == 1 ? "" : "s",
                *f->driver ? f->driver : "version not readable", f->cuda_version / 1000, f->cuda_version % 1000 / 10);
        if (l->level)
            MEND(l, "%s", "install the NVIDIA driver and its user libraries of the same version (libcuda1)");
    }
    for (uint32_t i = 0; i < f->gpus_count; i++)
        judge_gpu(r, f, &f->gpus[i]);
    judge_device(r, f, cfg);
    if (f->ram_ecc_known) {
        check_line *l = add(r, "ram-ecc", f->ram_uncorrected ? CHECK_WARN : CHECK_OK,
                            "Experts are computed from RAM: a wrong bit there is a wrong answer.",
                            "%llu corrected and %llu uncorrected memory errors since boot",
                            (unsigned long long)f->ram_corrected, (unsigned long long)f->ram_uncorrected);
        if (l->level)
            MEND(l, "%s", "dmesg names the module; replace it");
    }
}

/* A fault that would end the start, or one that takes something away; nothing is said of what is well. */
static void judge_fault(report *r, const char *id, const char *error, check_level level, const char *means,
                        const char *mend)
{
    if (*error)
        MEND(add(r, id, level, means, "%s", error), "%s", mend);
}

static void judge_model(report *r, const facts *f, const config *cfg)
{
    judge_fault(r, "engine", f->engine_error, CHECK_FAIL, "The daemon would not start with it.",
                "expertd --help engine explains the setting");
    judge_fault(
        r, "settings", f->settings_error, CHECK_FAIL, "The daemon would not start with it.",
        "the line above names the setting; a key file is one that the service's user can read, with one key a line");
    judge_fault(r, "trace", f->trace_error, CHECK_FAIL, "The daemon would not start without its trace.",
                "pager.trace_file: a file that is new, empty or a trace, where the service's user can write");
    judge_fault(r, "stats", f->stats_error, CHECK_WARN,
                "Every start would be cold: experts come into VRAM as they are met.",
                "pager.stats_file: a file that is new or of this kind, where the service's user can write");
    judge_fault(r, "model", f->model_error, CHECK_FAIL, "There is nothing to serve.",
                f->model_unknown
                    ? "model.path: a model of a kind and format that the message names, such as another quantisation"
                    : "model.path: a Hugging Face directory or a GGUF file that the service's user can read");
    if (!f->model_open)
        return;
    add(r, "model", CHECK_OK, "", "%s, %s of weights, of which experts %s", cfg->model.path, SIZE(f->model_bytes),
        SIZE(f->expert_bytes));
    judge_fault(r, "placement", f->place_error, CHECK_FAIL, "The model does not fit these settings.",
                "expertd inspect shows what would lie where");
    judge_fault(r, "tokenizer", f->tokenizer_error, f->tokenizer_missing ? CHECK_WARN : CHECK_FAIL,
                f->tokenizer_missing ? "Text would be answered with 400, prompts of token ids would work."
                                     : "The daemon would not start with it.",
                f->tokenizer_missing ? "put the model's tokenizer.json beside its weights, or set model.tokenizer = no"
                                     : "get the model's own tokenizer.json again, or set model.tokenizer = no");
    judge_fault(
        r, "template", f->template_error, f->template_configured ? CHECK_FAIL : CHECK_WARN,
        f->template_configured ? "The daemon would not start with it." : "/v1/chat/completions would answer 400.",
        f->template_missing ? "put the model's tokenizer_config.json beside its weights, or set model.chat_template"
                            : "model.chat_template: the file of a Jinja template");
}

static void judge_service(report *r, const facts *f, const config *cfg)
{
    if (f->disk_checked) {
        bool bad = *f->disk_error, slow = f->disk_gbps > 0 && f->disk_gbps < 1,
             full = !f->disk_exists && f->disk_free_bytes < f->disk_bytes;
        char rate[48] = "";
        if (f->disk_gbps > 0)
            snprintf(rate, sizeof rate, ", read at %.2f GB/s by one reader", f->disk_gbps);
        check_line *l = add(r, "nvme",
                            bad || full ? CHECK_FAIL
                            : slow      ? CHECK_WARN
                                        : CHECK_OK,
                            "Experts that are not in RAM are read from here.", "%s: %s free%s%s%s",
                            cfg->memory.nvme_path, SIZE(f->disk_free_bytes), rate, bad ? ", " : "", f->disk_error);
        if (l->level)
            MEND(l, "%s",
                 bad    ? "memory.nvme_path must be a writable file on a disk that takes O_DIRECT"
                 : full ? "free space for a copy of the experts, or choose another disk"
                        : "use a local NVMe disk");
    }
    if (cfg->server.port) {
        int e = f->port_errno;
        bool used = e == EADDRINUSE, low = e == EACCES;
        /* In use by expertd itself, and not allowed to whoever checks: neither need stop the service. */
        check_line *l = add(r, "port",
                            !e            ? CHECK_OK
                            : used || low ? CHECK_WARN
                                          : CHECK_FAIL,
                            used  ? "Only one program can listen on a port."
                            : low ? "Ports below 1024 are for root, or for systemd on behalf of others."
                                  : "The daemon listens on an address of this machine.",
                            "%s port %u %s", cfg->server.host, cfg->server.port,
                            !e     ? "is free"
                            : used ? "is in use"
                            : low  ? "is not allowed to this user"
                                   : "is no address of this machine");
        if (l->level)
            MEND(l, "%s",
                 used  ? "another server.port, or stop what listens there (it may be expertd itself)"
                 : low ? "another server.port, or expertd.socket, where systemd opens the port"
                       : "server.host: 127.0.0.1 for this machine alone, 0.0.0.0 for every address");
    }
}

static void add_doubt(void *user, const char *text)
{
    add(user, "settings", CHECK_WARN, "This is allowed, and hardly what was meant.", "%s", text);
}

size_t check_judge(const facts *f, const config *cfg, check_line *lines, size_t cap)
{
    report r = {lines, 0, cap};
    judge_cpu(&r, f);
    judge_memory(&r, f, cfg);
    judge_kernel(&r, f, cfg);
    judge_gpus(&r, f, cfg);
    judge_model(&r, f, cfg);
    judge_service(&r, f, cfg);
    const conf_machine machine = {f->cpus_usable, XD_MIN(f->mem_total_bytes, f->cgroup_limit_bytes)};
    conf_doubt(cfg, &machine, add_doubt, &r);
    return r.count;
}

int check_main(const cli *c, const config *cfg)
{
    static const char *const names[] = {"ok", "warn", "fail"}, *const colours[] = {"\033[32m", "\033[33m", "\033[31m"};
    xd_err err = {0};
    if (c->config_only) { /* itself it has been read by now; the files it names are read again at a reload, too */
        xd_status st = api_check_settings(cfg, &err);
        if (!st)
            st = core_check(cfg, &err);
        if (!st)
            puts("the configuration is well-formed");
        return st ? cli_fail(st, &err) : 0;
    }
    bool colour = isatty(STDOUT_FILENO) && !getenv("NO_COLOR");
    check_line lines[CHECK_MAX_LINES];
    facts f;
    facts_read("", cfg, &f);
    facts_read_model(cfg, &f);
    facts_read_device(cfg, &f);
    size_t n = check_judge(&f, cfg, lines, XD_ARRAY_LEN(lines)), counts[3] = {0};
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) {
        const check_line *l = &lines[i];
        counts[l->level]++;
        if (c->json) {
            json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:s, s:s}", "id", l->id, "status", names[l->level],
                                                  "what", l->what, "means", l->means, "mend", l->mend));
            continue;
        }
        printf("%s%-4s%s  %-10s  %s\n", colour ? colours[l->level] : "", names[l->level], colour ? "\033[0m" : "",
               l->id, l->what);
        if (l->level && *l->means)
            printf("      %-10s  %s\n", "", l->means);
        if (l->level && *l->mend)
            printf("      %-10s  mend: %s\n", "", l->mend);
    }
    if (c->json) {
        json_t *o = json_pack("{s:b, s:I, s:I, s:I, s:O}", "ok", counts[CHECK_FAIL] == 0, "passed",
                              (json_int_t)counts[CHECK_OK], "warnings", (json_int_t)counts[CHECK_WARN], "failures",
                              (json_int_t)counts[CHECK_FAIL], "checks", list);
        json_dumpf(o, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(15));
        putchar('\n');
        json_decref(o);
    } else
        printf("\n%zu ok, %zu to look at, %zu to mend first\n", counts[CHECK_OK], counts[CHECK_WARN],
               counts[CHECK_FAIL]);
    json_decref(list);
    return counts[CHECK_FAIL] ? 1 : 0;
}
