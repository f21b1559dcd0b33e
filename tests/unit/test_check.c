#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "daemon/check.h"

#define GIB (1ull << 30)

/* A machine on which nothing is to be mended. */
static facts good(void)
{
    return (facts){
        .mem_total_bytes = 128 * GIB,
        .mem_available_bytes = 120 * GIB,
        .cgroup_limit_bytes = FACTS_UNLIMITED,
        .memlock_bytes = FACTS_UNLIMITED,
        .nofile = 65536,
        .max_map_count = 65530,
        .cpus = 16,
        .cpus_usable = 16,
        .avx2 = true,
        .avx512 = true,
        .thp = "madvise",
        .numa_nodes = 1,
        .driver = "570.86.15",
        .cuda_version = 12080,
        .gpus_count = 1,
        .gpus = {{.pci = "0000:1a:00.0", .link_gts = 32, .link_max_gts = 32, .link_width = 16, .link_max_width = 16}},
        .device_tried = true,
        .device_open = true,
        .device_name = "NVIDIA H200",
        .device_pci = "0000:1A:00.0", /* CUDA writes it in capitals */
        .device_gbps = 51,
        .model_open = true,
        .model_bytes = 60 * GIB,
        .expert_bytes = 56 * GIB};
}

static check_level level_of(const facts *f, const char *id, char *mend)
{
    XD_CLEANUP(conf_freep) config *c = NULL;
    cr_assert(!conf_defaults(&c, NULL));
    cr_assert(!conf_set(c, "model.path", "/m", NULL));
    check_line lines[CHECK_MAX_LINES];
    size_t n = check_judge(f, c, lines, XD_ARRAY_LEN(lines));
    for (size_t i = 0; i < n; i++)
        if (!strcmp(lines[i].id, id)) {
            if (mend)
                strcpy(mend, lines[i].mend);
            return lines[i].level;
        }
    cr_assert_fail("no line '%s'", id);
    return CHECK_FAIL;
}

Test(check, a_good_machine_has_nothing_to_mend)
{
    facts f = good();
    XD_CLEANUP(conf_freep) config *c = NULL;
    cr_assert(!conf_defaults(&c, NULL));
    cr_assert(!conf_set(c, "model.path", "/m", NULL));
    check_line lines[CHECK_MAX_LINES];
    size_t n = check_judge(&f, c, lines, XD_ARRAY_LEN(lines));
    cr_assert_gt(n, 10);
    for (size_t i = 0; i < n; i++)
        cr_assert_eq(lines[i].level, CHECK_OK, "%s: %s", lines[i].id, lines[i].what);
}

Test(check, memory_is_compared_with_the_model)
{
    facts f = good();
    f.mem_total_bytes = 80 * GIB; /* less than 1.5 x 60 */
    cr_assert_eq(level_of(&f, "memory", NULL), CHECK_WARN);
    f.mem_total_bytes = 50 * GIB;
    char mend[256];
    cr_assert_eq(level_of(&f, "memory", mend), CHECK_FAIL);
    cr_assert(strstr(mend, "90.00 GiB"), "%s", mend);
    f = good();
    f.cgroup_limit_bytes = 64 * GIB;
    cr_assert_eq(level_of(&f, "cgroup", NULL), CHECK_WARN);
}

Test(check, a_build_without_cuda_says_what_is_missing)
{
    for (uint32_t gpus = 0; gpus < 2; gpus++) {
        facts f = good();
        char mend[sizeof(check_line)];
        f.gpus_count = gpus;
        f.device_open = false;
        snprintf(f.device_why, sizeof f.device_why, "the CUDA module (libexpertd_cuda.so) is not installed");
        cr_assert_eq(level_of(&f, "gpu", mend), CHECK_WARN);
        cr_assert(strstr(mend, "install the CUDA toolkit") && strstr(mend, "./dev build"), "%s", mend);
    }
}

Test(check, locked_memory_matters_with_a_gpu)
{
    facts f = good();
    f.memlock_bytes = 8 << 20;
    cr_assert_eq(level_of(&f, "memlock", NULL), CHECK_FAIL);
    f.gpus_count = 0;
    f.device_open = false;
    cr_assert_eq(level_of(&f, "memlock", NULL), CHECK_WARN);
    cr_assert_eq(level_of(&f, "gpu", NULL), CHECK_WARN);
}

Test(check, a_narrow_link_is_named_but_an_idle_speed_is_not)
{
    facts f = good();
    f.gpus[0].link_gts = 2.5; /* power saving */
    cr_assert_eq(level_of(&f, "link", NULL), CHECK_OK);
    f.gpus[0].link_width = 8;
    cr_assert_eq(level_of(&f, "link", NULL), CHECK_WARN);
}

Test(check, the_measured_link_is_compared_with_the_wire)
{
    facts f = good(); /* 32 GT/s x16: 63 GB/s on the wire */
    f.device_gbps = 30;
    cr_assert_eq(level_of(&f, "link-rate", NULL), CHECK_WARN);
    f.gpus[0].link_max_gts = 16;
    cr_assert_eq(level_of(&f, "link-rate", NULL), CHECK_OK, "a slower slot that does what it can");
    f.device_gbps = 0;
    cr_assert_eq(level_of(&f, "link-rate", NULL), CHECK_WARN);
    f.device_open = false;
    cr_assert_eq(level_of(&f, "gpu", NULL), CHECK_WARN);
    f = good();
    f.gpus_count = 0; /* a container that hides the bus */
    f.driver[0] = 0;
    cr_assert_eq(level_of(&f, "gpu", NULL), CHECK_OK);
    cr_assert_eq(level_of(&f, "driver", NULL), CHECK_WARN);
}

Test(check, a_port_that_cannot_be_had_is_told_by_its_reason)
{
    static const struct {
        int e;
        check_level level;
        const char *mend;
    } cases[] = {{EADDRINUSE, CHECK_WARN, "stop what listens there"},
                 {EACCES, CHECK_WARN, "expertd.socket"},
                 {EADDRNOTAVAIL, CHECK_FAIL, "server.host"}};
    char mend[256];
    for (size_t i = 0; i < XD_ARRAY_LEN(cases); i++) {
        facts f = good();
        f.port_errno = cases[i].e;
        cr_assert_eq(level_of(&f, "port", mend), cases[i].level);
        cr_assert(strstr(mend, cases[i].mend), "%s", mend);
    }
}

Test(check, memory_errors_are_told)
{
    facts f = good();
    f.gpus[0].ecc_known = f.ram_ecc_known = true;
    f.gpus[0].ecc_corrected = f.ram_corrected = 5;
    cr_assert_eq(level_of(&f, "gpu-ecc", NULL), CHECK_OK);
    cr_assert_eq(level_of(&f, "ram-ecc", NULL), CHECK_OK);
    f.gpus[0].ecc_uncorrected = f.ram_uncorrected = 1;
    cr_assert_eq(level_of(&f, "gpu-ecc", NULL), CHECK_WARN);
    cr_assert_eq(level_of(&f, "ram-ecc", NULL), CHECK_WARN);
}

Test(check, the_disk_is_measured_whether_or_not_the_page_file_is_there)
{
    facts f = good();
    f.disk_checked = true;
    f.disk_free_bytes = 100 * GIB;
    f.disk_gbps = 3;
    cr_assert_eq(level_of(&f, "nvme", NULL), CHECK_OK);
    f.disk_bytes = f.expert_bytes;
    f.disk_free_bytes = 10 * GIB; /* less than the experts, and nothing is there yet */
    cr_assert_eq(level_of(&f, "nvme", NULL), CHECK_FAIL);
    f.disk_exists = true;
    cr_assert_eq(level_of(&f, "nvme", NULL), CHECK_OK);
}

Test(check, what_slows_memory_down_is_warned_of)
{
    facts f = good();
    f.swap = f.zram = true;
    cr_assert_eq(level_of(&f, "swap", NULL), CHECK_WARN);
    f = good();
    strcpy(f.thp, "never");
    cr_assert_eq(level_of(&f, "huge-pages", NULL), CHECK_WARN);
    f = good();
    f.numa_nodes = 2;
    f.numa_balancing = true;
    cr_assert_eq(level_of(&f, "numa", NULL), CHECK_WARN);
    f = good();
    strcpy(f.gpus[0].iommu, "DMA-FQ");
    f.gpus[0].switches = 1;
    f.gpus[0].aer_known = true;
    f.gpus[0].aer_nonfatal = 3;
    cr_assert_eq(level_of(&f, "iommu", NULL), CHECK_WARN);
    cr_assert_eq(level_of(&f, "topology", NULL), CHECK_WARN);
    cr_assert_eq(level_of(&f, "aer", NULL), CHECK_WARN);
}

Test(check, what_keeps_it_from_serving_fails)
{
    facts f = good();
    struct {
        const char *id;
        char *error;
        check_level level;
    } faults[] = {{"model", f.model_error, CHECK_FAIL},         {"placement", f.place_error, CHECK_FAIL},
                  {"tokenizer", f.tokenizer_error, CHECK_FAIL}, {"template", f.template_error, CHECK_WARN},
                  {"settings", f.settings_error, CHECK_FAIL},   {"trace", f.trace_error, CHECK_FAIL},
                  {"stats", f.stats_error, CHECK_WARN},         {"engine", f.engine_error, CHECK_FAIL}};
    for (size_t i = 0; i < XD_ARRAY_LEN(faults); i++) {
        strcpy(faults[i].error, "why");
        cr_assert_eq(level_of(&f, faults[i].id, NULL), faults[i].level, "%s", faults[i].id);
        *faults[i].error = 0;
    }
    f.template_configured = true;
    strcpy(f.template_error, "why");
    cr_assert_eq(level_of(&f, "template", NULL), CHECK_FAIL);
    f = good();
    f.paged = true; /* a part on disk: what the RAM must hold is less than the model */
    f.mem_total_bytes = 32 * GIB;
    f.ram_bytes = 30 * GIB;
    cr_assert_eq(level_of(&f, "memory", NULL), CHECK_OK);
    f.ram_bytes = 33 * GIB;
    cr_assert_eq(level_of(&f, "memory", NULL), CHECK_FAIL);
    f = good();
    f.nofile = 256;
    cr_assert_eq(level_of(&f, "files", NULL), CHECK_WARN);
    f = good();
    f.driver[0] = 0;
    f.device_open = false;
    cr_assert_eq(level_of(&f, "driver", NULL), CHECK_FAIL);
}

Test(check, doubtful_settings_are_lines)
{
    facts f = good();
    XD_CLEANUP(conf_freep) config *c = NULL;
    cr_assert(!conf_defaults(&c, NULL));
    cr_assert(!conf_set(c, "engine.threads", "64", NULL));
    check_line lines[CHECK_MAX_LINES];
    size_t n = check_judge(&f, c, lines, XD_ARRAY_LEN(lines));
    cr_assert_str_eq(lines[n - 1].id, "settings");
    cr_assert_eq(lines[n - 1].level, CHECK_WARN);
    cr_assert_str_eq(
        lines[n - 1].what,
        "engine.threads = 64 is more than the 16 CPUs that expertd may use, and slower; auto takes one for each");
}

static void put(const char *root, const char *path, const char *text)
{
    char full[512];
    snprintf(full, sizeof full, "%s%s", root, path);
    for (char *p = full + strlen(root) + 1; (p = strchr(p, '/')); p++) {
        *p = 0;
        mkdir(full, 0755);
        *p = '/';
    }
    FILE *f = fopen(full, "w");
    cr_assert(f && fputs(text, f) >= 0 && !fclose(f), "%s", full);
}

Test(check, groups_of_the_first_version_count_as_well)
{
    static const struct {
        const char *groups, *at, *limit;
        uint64_t want;
    } cases[] = {
        {"12:pids:/x\n4:memory:/docker/abc\n", "/docker/abc", "1073741824\n", GIB},
        {"4:cpu,memory:/a/b\n", "/a", "1073741824\n", GIB},        /* of a group around it */
        {"4:memory:/seen/by/the/host\n", "", "1073741824\n", GIB}, /* a container that mounts its own part alone */
        {"4:memory:/a\n", "/a", "9223372036854771712\n", FACTS_UNLIMITED},
        {"4:memory:/\n0::/\n", "", "1073741824\n", GIB},
        {"4:memory_of_others:/a\n", "/a", "1073741824\n", FACTS_UNLIMITED},
    };
    for (size_t i = 0; i < XD_ARRAY_LEN(cases); i++) {
        char root[] = "/tmp/expertd-facts-XXXXXX", path[128], command[128];
        cr_assert(mkdtemp(root));
        put(root, "/proc/meminfo", "MemTotal:       65536000 kB\n");
        put(root, "/proc/self/cgroup", cases[i].groups);
        snprintf(path, sizeof path, "/sys/fs/cgroup/memory%s/memory.limit_in_bytes", cases[i].at);
        put(root, path, cases[i].limit);
        XD_CLEANUP(conf_freep) config *c = NULL;
        cr_assert(!conf_defaults(&c, NULL));
        facts f;
        facts_read(root, c, &f);
        snprintf(command, sizeof command, "rm -r %s", root);
        cr_assert_eq(system(command), 0);
        cr_assert_eq(f.cgroup_limit_bytes, cases[i].want, "case %zu", i);
    }
}

Test(check, facts_are_read_as_the_kernel_writes_them)
{
    char root[] = "/tmp/expertd-facts-XXXXXX", command[128];
    cr_assert(mkdtemp(root));
    put(root, "/proc/cpuinfo",
        "processor\t: 0\nmodel name\t: Some CPU @ 2GHz\nflags\t\t: fpu avx2 fma avx512f avx512bw\n");
    put(root, "/proc/meminfo",
        "MemTotal:       65536000 kB\nMemFree: 1 kB\nMemAvailable:   60000000 kB\nSwapTotal:       1024 kB\n");
    put(root, "/proc/swaps", "Filename Type Size Used Priority\n/dev/zram0 partition 1024 0 100\n");
    put(root, "/proc/sys/vm/swappiness", "60\n");
    put(root, "/proc/self/cgroup", "0::/system.slice/expertd.service\n");
    put(root, "/sys/fs/cgroup/system.slice/expertd.service/memory.max", "max\n");
    put(root, "/sys/fs/cgroup/system.slice/memory.max", "34359738368\n");
    put(root, "/sys/fs/cgroup/system.slice/expertd.service/cpu.max", "max 100000\n");
    put(root, "/sys/fs/cgroup/system.slice/cpu.max", "50000 100000\n");
    put(root, "/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
    put(root, "/sys/devices/system/node/node0/x", "");
    put(root, "/sys/devices/system/node/node1/x", "");
    put(root, "/sys/devices/system/edac/mc/mc0/ce_count", "3\n");
    put(root, "/sys/devices/system/edac/mc/mc0/ue_count", "0\n");
    put(root, "/sys/devices/system/edac/mc/mc1/ce_count", "4\n");
    put(root, "/sys/devices/system/edac/mc/mc1/ue_count", "1\n");
    put(root, "/proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (root@b)  Thu\nGCC version:  12\n");
    static const char *const gpu = "/sys/bus/pci/devices/0000:1a:00.0";
    static const struct {
        const char *name, *text;
    } files[] = {{"vendor", "0x10de\n"},
                 {"class", "0x030200\n"},
                 {"current_link_speed", "16.0 GT/s PCIe\n"},
                 {"max_link_speed", "32.0 GT/s PCIe\n"},
                 {"current_link_width", "8\n"},
                 {"max_link_width", "16\n"},
                 {"numa_node", "1\n"},
                 {"iommu_group/type", "identity\n"},
                 {"aer_dev_correctable", "RxErr 0\nBadTLP 2\nTOTAL_ERR_COR 12\n"},
                 {"aer_dev_nonfatal", "Undefined 0\nTOTAL_ERR_NONFATAL 1\n"}};
    for (size_t i = 0; i < XD_ARRAY_LEN(files); i++) {
        char path[128];
        snprintf(path, sizeof path, "%s/%s", gpu, files[i].name);
        put(root, path, files[i].text);
    }
    put(root, "/sys/bus/pci/devices/0000:00:1f.0/vendor", "0x8086\n");
    XD_CLEANUP(conf_freep) config *c = NULL;
    cr_assert(!conf_defaults(&c, NULL));
    facts f;
    facts_read(root, c, &f);
    snprintf(command, sizeof command, "rm -r %s", root);
    cr_assert_eq(system(command), 0);
    cr_assert_str_eq(f.cpu_model, "Some CPU @ 2GHz");
    cr_assert(f.avx2 && f.avx512 && !f.amx && f.swap && f.zram && !f.zswap);
    cr_assert_eq(f.mem_total_bytes, 65536000ull * 1024);
    cr_assert_eq(f.mem_available_bytes, 60000000ull * 1024);
    cr_assert_eq(f.swappiness, 60);
    cr_assert_eq(f.cgroup_limit_bytes, 32 * GIB);
    cr_assert_eq(f.cpus_usable, 1); /* half of one */
    cr_assert_str_eq(f.thp, "madvise");
    cr_assert_eq(f.numa_nodes, 2);
    cr_assert_str_eq(f.driver, "570.86.15");
    cr_assert(f.ram_ecc_known && f.ram_corrected == 7 && f.ram_uncorrected == 1);
    cr_assert_eq(f.gpus_count, 1);
    const gpu_facts *g = &f.gpus[0];
    cr_assert_str_eq(g->pci, "0000:1a:00.0");
    cr_assert(g->link_gts == 16 && g->link_max_gts == 32 && g->link_width == 8 && g->link_max_width == 16);
    cr_assert(g->numa_node == 1 && g->aer_known && g->aer_correctable == 12 && g->aer_nonfatal == 1 && !g->aer_fatal);
    cr_assert_str_eq(g->iommu, "identity");
}
