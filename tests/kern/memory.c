/* memory.c - cases of operations that move bytes: copies over registered host memory, staging of KV blocks. Every byte is compared. */
#include "tests/kern/kc.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE 4096u

static void random_bytes(kc *k, uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)kc_below(k, 256);
}

static void same(kc *k, const char *what, const uint8_t *got, const uint8_t *want, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (got[i] != want[i]) {
            kc_fail(k, "%s: byte %zu of %zu is %u instead of %u", what, i, n, got[i], want[i]);
            return;
        }
}

/* Registers and unregisters a page that nobody copies, again and again. */
typedef struct other {
    kern_dev *dev;
    uint8_t *page;
    kern_status st;
} other;

static void *register_beside(void *arg)
{
    other *o = arg;
    for (int i = 0; i < 20 && !o->st; i++) {
        uint64_t addr;
        o->st = o->dev->ops->host_register(o->dev, o->page, PAGE, false, &addr);
        if (!o->st)
            o->dev->ops->host_unregister(o->dev, o->page);
    }
    return NULL;
}

/* Neighbouring registrations: a copy may begin in one and end in another, while another thread registers other memory. */
void case_copies(kc *k)
{
    const uint32_t pages = kc_between(k, 2, 6), off = kc_below(k, 2 * PAGE - 64),
                   n = kc_between(k, 1, pages * PAGE - off);
    kc_case(k, "copies of %u bytes at %u over %u registrations", n, off, pages);
    const kern_ops *ops = k->dev->ops;
    uint8_t *host = mmap(NULL, (pages + 2) * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint8_t *want = kc_alloc(k, n), *back = kc_alloc(k, n);
    void *dev = NULL;
    uint64_t addr;
    uint32_t registered = 0;
    if (host == MAP_FAILED)
        return;
    kc_run r = kc_begin(k, k->dev);
    for (; registered < pages; registered++) {
        kern_status st = ops->host_register(k->dev, host + registered * PAGE, PAGE, false, &addr);
        kc_status(&r, st);
        if (st)
            break;
    }
    kc_status(&r, ops->alloc(k->dev, n, &dev));
    other o = {.dev = k->dev, .page = host + (pages + 1) * PAGE};
    pthread_t thread;
    const bool beside = registered == pages && !pthread_create(&thread, NULL, register_beside, &o);
    if (dev && registered == pages) {
        random_bytes(k, host, pages * PAGE);
        memcpy(want, host + off, n);
        kc_status(&r, ops->upload(k->dev, dev, host + off, n));
        kc_status(&r, ops->download(k->dev, back, dev, n));
        kc_status(&r, ops->sync(k->dev));
        same(k, "uploaded", back, want, n);
        memset(host, 0, pages * PAGE);
        kc_status(&r, ops->download(k->dev, host + off, dev, n));
        kc_status(&r, ops->sync(k->dev));
        same(k, "downloaded", host + off, want, n);
        random_bytes(k, host + off, n);
        kc_status(&r, ops->copy_async(k->dev, dev, host + off, n));
        kc_status(&r, ops->copy_wait(k->dev));
        kc_status(&r, ops->download(k->dev, back, dev, n));
        kc_status(&r, ops->sync(k->dev));
        same(k, "copied in the background", back, host + off, n);
    }
    if (beside) {
        pthread_join(thread, NULL);
        kc_status(&r, o.st);
    }
    if (dev)
        ops->free(k->dev, dev);
    while (registered)
        ops->host_unregister(k->dev, host + --registered * PAGE);
    munmap(host, (pages + 2) * PAGE);
    kc_end(&r);
}

/* Blocks of several layers in any order; two layers under way at a time, as a step has them. */
void case_kv_stage(kc *k)
{
    const uint32_t n_blocks = kc_between(k, 1, 40), n_list = kc_between(k, 1, n_blocks), n_layers = kc_between(k, 2, 5);
    const uint32_t words = kc_below(k, 3) ? kc_between(k, 1, 300) : kc_between(k, 1000, 3000);
    const uint32_t window = kc_below(k, 2) ? kc_between(k, 1, 200) : 0, block_size = 16, query = n_blocks * block_size;
    kc_case(k, "kv_stage %u of %u blocks, %u layers of %u bytes, window %u", n_list, n_blocks, n_layers, words * 16,
            window);
    const kern_ops *ops = k->dev->ops;
    const uint64_t layer_bytes = words * 16ull, block_bytes = layer_bytes * n_layers;
    uint8_t *cache = kc_alloc(k, n_blocks * block_bytes), *got = kc_alloc(k, n_list * layer_bytes);
    uint8_t *untouched = kc_alloc(k, layer_bytes);
    uint64_t *from = kc_alloc(k, n_blocks * sizeof *from), *to = kc_alloc(k, n_list * sizeof *to);
    kern_kv_stage_entry *list = kc_alloc(k, n_list * sizeof *list);
    random_bytes(k, cache, n_blocks * block_bytes);
    kc_run r = kc_begin(k, k->dev);
    uint8_t *dev_cache = kc_put(&r, cache, n_blocks * block_bytes);
    for (uint32_t i = 0; i < n_blocks; i++)
        from[i] = (uint64_t)(uintptr_t)(dev_cache + i * block_bytes);
    for (uint32_t i = 0; i < n_list; i++)
        list[i] = (kern_kv_stage_entry){(i * 7 + 3) % n_blocks, kc_below(k, n_blocks) * block_size, query};
    const uint32_t first = kc_below(k, n_list), range[2] = {first, kc_between(k, first, n_list)};
    kern_kv_stage_args a = {.from_addr = kc_put(&r, from, n_blocks * sizeof *from),
                            .list = kc_put(&r, list, n_list * sizeof *list),
                            .range = kc_put(&r, range, sizeof range),
                            .block_size = block_size,
                            .window = window,
                            .layer_bytes = layer_bytes,
                            .background = kc_below(k, 2)};
    for (a.layer = 0; a.layer < n_layers && !k->case_failed; a.layer++) {
        a.slot = a.layer % 2;
        uint8_t *area = kc_room(&r, n_list * layer_bytes);
        kc_get(&r, got, area, n_list * layer_bytes); /* what untouched entries keep */
        memcpy(untouched, got, layer_bytes);
        for (uint32_t i = 0; i < n_list; i++)
            to[i] = (uint64_t)(uintptr_t)(area + i * layer_bytes) - a.layer * layer_bytes;
        a.to_addr = kc_put(&r, to, n_list * sizeof *to);
        kc_status(&r, ops->kv_stage(k->dev, &a));
        if (a.background)
            kc_status(&r, ops->kv_stage_wait(k->dev, a.slot));
        kc_get(&r, got, area, n_list * layer_bytes);
        for (uint32_t i = 0; i < n_list; i++) {
            bool seen = !window || list[i].first_pos + block_size > query + 1 - window;
            bool wanted = i >= range[0] && i < range[1] && (seen || query + 1 < window);
            same(k, wanted ? "staged" : "left alone", got + i * layer_bytes,
                 wanted ? cache + list[i].block * block_bytes + a.layer * layer_bytes : untouched, layer_bytes);
        }
    }
    kc_end(&r);
}
