/* linkload.c - a neighbour that uses the GPU's link: what a fallback is tested against on a real machine.
 *
 *   linkload copy|read [GPU]
 *
 * Allocates, prints "ready", and then each line of standard input starts or stops it; the end of input ends it. `copy` streams
 * pinned memory to the device through the copy engine in pieces of 64 MiB; `read` lets kernels read it in place. When it stops it
 * prints the rate that it got. Several processes of it share the link as other tenants would; it needs no part of the daemon but the
 * CUDA module. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/util.h"
#include "kernels/kernels.h"

#define SOURCE_BYTES (1ull << 30)
#define PIECE_BYTES  (64ull << 20)
#define BATCH_PIECES 4u
#define READ_BYTES   (256ull << 20)

typedef struct load {
    kern_dev *dev;
    char *host, *to;
    bool copies;
    uint64_t at;
} load;

/* Some milliseconds of traffic; returns bytes, 0 when the device failed. */
static uint64_t push(load *l)
{
    const kern_ops *ops = l->dev->ops;
    if (!l->copies) {
        double gbps;
        l->at = (l->at + READ_BYTES) % SOURCE_BYTES;
        return ops->probe_read(l->dev, (uint64_t)(uintptr_t)l->host + l->at, READ_BYTES, &gbps) ? 0 : READ_BYTES;
    }
    for (uint32_t i = 0; i < BATCH_PIECES; i++) {
        if (ops->copy_async(l->dev, l->to, l->host + l->at, PIECE_BYTES))
            return 0;
        l->at = (l->at + PIECE_BYTES) % SOURCE_BYTES;
    }
    return ops->copy_wait(l->dev) ? 0 : BATCH_PIECES * PIECE_BYTES;
}

static bool input_waits(void)
{
    struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};
    return poll(&p, 1, 0) != 0;
}

/* False at the end of input. */
static bool next_line(void)
{
    char c;
    while (read(STDIN_FILENO, &c, 1) == 1)
        if (c == '\n')
            return true;
    return false;
}

int main(int argc, char **argv)
{
    char why[256] = "";
    load l = {.copies = argc > 1 && !strcmp(argv[1], "copy")};
    if (argc < 2 || (!l.copies && strcmp(argv[1], "read") != 0)) {
        fputs("usage: linkload copy|read [GPU]\n", stderr);
        return 2;
    }
    kern_options o = {.gpu = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 0, .numa_node = -1};
    if (kern_cuda_open(&o, &l.dev, why, sizeof why)) {
        fprintf(stderr, "linkload: %s\n", why);
        return 1;
    }
    const kern_ops *ops = l.dev->ops;
    if (ops->alloc_host(l.dev, SOURCE_BYTES, (void **)&l.host) || ops->alloc(l.dev, PIECE_BYTES, (void **)&l.to)) {
        fprintf(stderr, "linkload: %s\n", ops->error(l.dev));
        ops->close(l.dev);
        return 1;
    }
    memset(l.host, 1, SOURCE_BYTES);
    setvbuf(stdout, NULL, _IOLBF, 0);
    puts("ready");
    bool failed = false;
    while (!failed && next_line()) {
        uint64_t begin = xd_now_ns(), bytes = 0;
        while (!failed && !input_waits()) {
            uint64_t n = push(&l);
            bytes += n;
            failed = !n;
        }
        printf("%s %.1f GB/s for %.1f s\n", argv[1], (double)bytes / (double)(xd_now_ns() - begin),
               (double)(xd_now_ns() - begin) * 1e-9);
        if (failed || !next_line()) /* the line that stopped it */
            break;
    }
    ops->free(l.dev, l.to);
    ops->free_host(l.dev, l.host);
    ops->close(l.dev);
    return failed;
}
