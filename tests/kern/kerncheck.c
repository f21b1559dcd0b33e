/* kerncheck.c - checks every row of a backend against the scalar reference, and the reference against numpy.
 *
 *   kerncheck [--backend cpu|cuda] [--seed N] [--rounds N] [--only OP] [--rows SET] [--vectors FILE] [--bench]
 *
 * Each set of rows that the machine can run is a device of its own (opened with the better ones disabled). A case runs on the
 * reference and on that device and is compared within a tolerance (kc.c has them with their reasons); then the device runs it
 * again token by token, in reverse order and with other threads, which must not change a bit (rule 2 of kernels.h). A failure
 * prints the seed and the parameters: --seed repeats it. Exit 77: the backend is not there. */
#include "tests/kern/kc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct options {
    const char *backend, *only, *rows, *vectors;
    uint64_t seed;
    uint32_t rounds;
    bool bench;
} options;

static bool parse(int argc, char **argv, options *o)
{
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(argv[i], "--bench") == 0) {
            o->bench = true;
            continue;
        }
        if (!value)
            return false;
        if (strcmp(argv[i], "--backend") == 0)
            o->backend = value;
        else if (strcmp(argv[i], "--only") == 0)
            o->only = value;
        else if (strcmp(argv[i], "--rows") == 0)
            o->rows = value;
        else if (strcmp(argv[i], "--vectors") == 0)
            o->vectors = value;
        else if (strcmp(argv[i], "--seed") == 0)
            o->seed = strtoull(value, NULL, 10);
        else if (strcmp(argv[i], "--rounds") == 0)
            o->rounds = (uint32_t)strtoul(value, NULL, 10);
        else
            return false;
        i++;
    }
    return strcmp(o->backend, "cpu") == 0 || strcmp(o->backend, "cuda") == 0;
}

static kern_dev *open_cpu(uint32_t n_threads, const char *disable)
{
    kern_options opt = {.n_threads = n_threads, .numa_node = -1, .disable = disable};
    kern_dev *d = NULL;
    if (kern_cpu_open(&opt, &d) != KERN_OK) {
        fprintf(stderr, "kerncheck: the CPU backend does not open\n");
        exit(1);
    }
    return d;
}

static bool check(kc *k, const options *o, const char *label)
{
    kern_dev_info info;
    k->dev->ops->info(k->dev, &info);
    const uint32_t before = k->n_failed;
    k->set = label;
    k->n_cases = k->n_unsupported = 0;
    if (o->vectors && !kc_vectors(k, o->vectors))
        return false;
    uint32_t n_vectors = k->n_cases;
    /* Each case has its own stream of random values, so --only does not change them. */
    for (uint32_t round = 0; round < o->rounds; round++)
        for (uint32_t i = 0; kc_cases[i].name; i++) {
            if (o->only && strcmp(o->only, kc_cases[i].name) != 0)
                continue;
            k->rng = k->seed + ((uint64_t)round << 32) + ((uint64_t)i << 56);
            kc_cases[i].fn(k);
        }
    printf("%s: %u vectors and %u random cases, %u failed, %u unsupported (seed %llu)\n  %s\n", label, n_vectors,
           k->n_cases - n_vectors, k->n_failed - before, k->n_unsupported, (unsigned long long)k->seed, info.rows);
    fflush(stdout);
    kc_case(k, "end"); /* frees the last case's memory */
    return k->n_failed == before;
}

static int run_cpu(kc *k, const options *o)
{
    static const char *const sets[][2] = {{"scalar", "avx512,avx2"}, {"avx2", "avx512"}, {"avx512", NULL}};
    kern_dev_info info, seen = {.rows = ""};
    bool good = true;
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        if (o->rows && strcmp(o->rows, sets[i][0]) != 0)
            continue;
        k->dev = open_cpu(2, sets[i][1]);
        k->other = open_cpu(5, sets[i][1]);
        k->dev->ops->info(k->dev, &info);
        if (strcmp(info.rows, seen.rows) == 0)
            printf("%s: not on this machine\n", sets[i][0]);
        else if (o->bench)
            kc_bench(k->dev, o->only);
        else
            good = check(k, o, sets[i][0]) && good;
        seen = info;
        k->dev->ops->close(k->dev);
        k->other->ops->close(k->other);
    }
    return good ? 0 : 1;
}

/* The same cases as on this chip, without tiles, and as on the chips with the least shared memory: what one can do, all must. */
static int run_cuda(kc *k, const options *o)
{
    static const char *const sets[][2] = {
        {"cuda", NULL}, {"cuda_streams", "cuda_tile"}, {"cuda_small", "cuda_large_smem,cuda_overlap"}};
    bool good = true;
    uint32_t n_unsupported = 0;
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        if (o->rows ? strcmp(o->rows, sets[i][0]) != 0 : o->bench && i > 0)
            continue;
        kern_options opt = {.numa_node = -1, .disable = sets[i][1]};
        char why[512] = "";
        if (kern_cuda_open(&opt, &k->dev, why, sizeof why) != KERN_OK) {
            printf("skipped: no CUDA backend: %s\n", why);
            return 77;
        }
        k->other = k->dev;
        k->cuda = true;
        if (o->bench) {
            kc_bench(k->dev, o->only);
        } else {
            good = check(k, o, sets[i][0]) && good;
            if (i == 0)
                n_unsupported = k->n_unsupported;
            else if (!o->rows && k->n_unsupported != n_unsupported) {
                printf("FAIL %s: %u unsupported on %s\n", sets[i][0], n_unsupported, sets[0][0]);
                k->n_failed++;
                good = false;
            }
        }
        k->dev->ops->close(k->dev);
    }
    return good ? 0 : 1;
}

int main(int argc, char **argv)
{
    options o = {.backend = "cpu", .rounds = 60, .seed = (uint64_t)time(NULL)};
    if (!parse(argc, argv, &o)) {
        fprintf(
            stderr,
            "usage: kerncheck [--backend cpu|cuda] [--seed N] [--rounds N] [--only OP] [--rows SET] [--vectors FILE] [--bench]\n");
        return 2;
    }
    kc k = {.seed = o.seed, .ref = open_cpu(1, "avx512,avx2")};
    int rc = strcmp(o.backend, "cpu") == 0 ? run_cpu(&k, &o) : run_cuda(&k, &o);
    if (!o.bench && rc != 77)
        printf("%u failed in all\n", k.n_failed);
    k.ref->ops->close(k.ref);
    return rc;
}
