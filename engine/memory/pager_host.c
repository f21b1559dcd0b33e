/* pager_host.c - the host tier: where the pages lie that are not in VRAM.
 *
 * In place: the model's own mappings are registered and read as they are; nothing is copied, a restart costs milliseconds. Pool:
 * every expert is copied once into its blob in anonymous memory with huge pages (pages one after the other, each on 256 bytes),
 * filled by several threads, registered afterwards. The pool is taken where the device cannot read file mappings, and where the
 * configuration asks for it. */
#include <inttypes.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/vfs.h>

#include "engine/cgroup.h"
#include "engine/memory/pager_priv.h"

#define REG_BYTES_MAX (8ull << 30) /* one registration of hundreds of GiB fails */
#define SYS_PAGE      4096ull
#define FILL_THREADS  16

/* --- in place ---------------------------------------------------------------------------------------------------- */

typedef struct span {
    uint64_t lo, hi;
} span;

static const model_file *file_of(const model *m, const void *p, uint32_t *ret_idx)
{
    uint32_t n;
    const model_file *f = model_files(m, &n);
    for (uint32_t i = 0; i < n; i++)
        if ((const char *)p >= (const char *)f[i].base && (const char *)p < (const char *)f[i].base + f[i].bytes) {
            *ret_idx = i;
            return &f[i];
        }
    return NULL;
}

/* The part of each file that holds experts, on system pages. */
static xd_status expert_spans(const pager *p, span *spans, xd_err *err)
{
    xd_status st = pager_check_in_place(p->m, err);
    if (st)
        return st;
    for (uint32_t l = 0; l < p->n_layers; l++) {
        const model_layer *y = model_get_layer(p->m, l);
        for (uint32_t i = 0; i < y->n_experts * MODEL_MATRICES; i++) {
            uint32_t f = 0;
            const model_file *file = file_of(p->m, y->experts[i].data, &f);
            if (!file)
                return xd_fail(err, XD_INTERNAL, 0, "layer %u: an expert lies in no file of the model", l);
            /* safetensors may begin anywhere (a header of odd length); a GPU reads whole numbers. */
            kern_fmt fmt = y->experts[i].fmt;
            uint32_t number = fmt == FMT_F32 ? 4 : fmt == FMT_Q4_K || fmt == FMT_Q5_K ? 16 : 2;
            if (!p->unified && (uintptr_t)y->experts[i].data % number)
                return xd_fail(err, XD_UNSUPPORTED, 0, "layer %u: weights of %u bytes begin at an odd place of '%s'", l,
                               number, file->path);
            uint64_t off = (uint64_t)((const char *)y->experts[i].data - (const char *)file->base);
            span *s = &spans[f];
            s->lo = XD_MIN(s->lo, off & ~(SYS_PAGE - 1));
            s->hi = XD_MAX(s->hi, XD_MIN(xd_align_up(off + y->experts[i].bytes, SYS_PAGE), file->bytes));
        }
    }
    return XD_OK;
}

/* Registers one span in chunks; the chunks must be neighbours for the device too, since a page may lie across two. */
static kern_status register_span(pager *p, const pager_options *opt, const model_file *f, span s, uint64_t total,
                                 uint64_t *ret_delta)
{
    for (uint64_t at = s.lo; at < s.hi; at += REG_BYTES_MAX) {
        uint64_t addr, bytes = XD_MIN(REG_BYTES_MAX, s.hi - at);
        void *base = (char *)f->base + at;
        kern_status st = p->dev->ops->host_register(p->dev, base, bytes, !f->anonymous, &addr);
        if (st)
            return st;
        p->host.regs[p->host.n_regs].base = base;
        p->host.regs[p->host.n_regs++].bytes = bytes;
        uint64_t delta = addr - (uint64_t)(uintptr_t)base;
        if (at != s.lo && delta != *ret_delta)
            return KERN_UNSUPPORTED;
        *ret_delta = delta;
        if (bytes > p->host.probe_bytes) {
            p->host.probe_addr = addr;
            p->host.probe_bytes = bytes;
        }
        p->host.bytes += bytes;
        if (opt->progress)
            opt->progress(opt->progress_user, (double)p->host.bytes / (double)total);
    }
    return KERN_OK;
}

static void unregister_all(pager *p)
{
    if (p->host.n_regs)
        p->host.bytes = 0;
    while (p->host.n_regs)
        p->dev->ops->host_unregister(p->dev, p->host.regs[--p->host.n_regs].base);
}

static uint32_t matrix_of(const kern_expert_geom *g, uint32_t page)
{
    return page >= g->first_page[2] ? 2 : page >= g->first_page[1];
}

static const char *page_in_file(const pager *p, uint32_t layer, uint32_t expert, uint32_t page)
{
    const kern_expert_geom *g = &p->layers[layer].geom;
    uint32_t m = matrix_of(g, page);
    const model_tensor *t = &model_get_layer(p->m, layer)->experts[expert * MODEL_MATRICES + m];
    return (const char *)t->data + (uint64_t)(page - g->first_page[m]) * g->page_rows[m] * g->row_bytes[m];
}

void pager_read_page(const pager *p, uint32_t layer, uint32_t expert, uint32_t page, void *to)
{
    const kern_expert_geom *g = &p->layers[layer].geom;
    uint32_t m = matrix_of(g, page), first = (page - g->first_page[m]) * g->page_rows[m],
             rows = kern_expert_rows(g, (int)m);
    model_copy_rows(model_get_layer(p->m, layer), expert, m, first, XD_MIN(g->page_rows[m], rows - first), to);
}

/* Files that are memory already (tmpfs; a synthetic model): registering them takes no more, and MemAvailable does not count them. */
static bool is_memory(const char *path)
{
    struct statfs s;
    return !statfs(path, &s) && (s.f_type == TMPFS_MAGIC || s.f_type == RAMFS_MAGIC || s.f_type == HUGETLBFS_MAGIC);
}

static xd_status open_in_place(pager *p, const pager_options *opt, xd_err *err)
{
    uint32_t n_files;
    const model_file *files = model_files(p->m, &n_files);
    uint64_t n_regs = 0, total = 0, taken = 0;
    XD_CLEANUP(xd_freep) span *spans = malloc((n_files ? n_files : 1) * sizeof *spans);
    XD_CLEANUP(xd_freep) uint64_t *delta = calloc(n_files ? n_files : 1, sizeof *delta);
    if (!spans || !delta)
        return xd_fail(err, XD_NOMEM, 0, "host tier: table of files");
    for (uint32_t i = 0; i < n_files; i++)
        spans[i] = (span){UINT64_MAX, 0};
    xd_status st = expert_spans(p, spans, err);
    if (st)
        return st;
    for (uint32_t i = 0; i < n_files; i++)
        if (spans[i].hi) {
            n_regs += (spans[i].hi - spans[i].lo) / REG_BYTES_MAX + 1;
            total += spans[i].hi - spans[i].lo;
            taken += files[i].anonymous || is_memory(files[i].path) ? 0 : spans[i].hi - spans[i].lo;
        }
    /* Where registering pins, what does not fit would end in the OOM killer's hands. */
    char a[32], b[32];
    uint64_t avail = cgroup_available_bytes();
    if (!p->unified && avail != UINT64_MAX && taken > avail)
        return xd_fail(err, XD_NOMEM, 0, "the experts' %s do not fit into the %s of host memory that are available",
                       xd_format_bytes(a, sizeof a, taken), xd_format_bytes(b, sizeof b, avail));
    p->host.regs = calloc(n_regs ? n_regs : 1, sizeof *p->host.regs);
    if (!p->host.regs)
        return xd_fail(err, XD_NOMEM, 0, "host tier: table of registrations");
    for (uint32_t i = 0; i < n_files; i++)
        if (spans[i].hi && register_span(p, opt, &files[i], spans[i], total, &delta[i]) != KERN_OK) {
            return xd_fail(err, XD_NOMEM, 0, "registering %s of '%s' in place failed: %s",
                           xd_format_bytes(a, sizeof a, spans[i].hi - spans[i].lo), files[i].path,
                           p->dev->ops->error(p->dev));
        }
    for (uint32_t l = 0, pg = 0; l < p->n_layers; l++)
        for (uint32_t e = 0; e < p->layers[l].n_experts; e++)
            for (uint32_t i = 0; i < p->layers[l].geom.pages; i++, pg++) {
                uint32_t f = 0;
                const char *src = page_in_file(p, l, e, i);
                file_of(p->m, src, &f);
                p->pages[pg].src = src;
                p->pages[pg].host_addr = (uint64_t)(uintptr_t)src + delta[f];
            }
    p->host.in_place = true;
    return XD_OK;
}

/* --- pool -------------------------------------------------------------------------------------------------------- */

typedef struct fill_job {
    pager *p;
    uint32_t next; /* expert over all layers, taken atomically */
    const pager_options *opt;
} fill_job;

/* The page cache keeps what was copied; this process need not: else its resident memory would be twice the model. */
static void let_go(const pager *p, const void *data, uint64_t bytes)
{
    uint32_t idx;
    const model_file *f = file_of(p->m, data, &idx);
    uintptr_t lo = xd_align_up((uintptr_t)data, SYS_PAGE), hi = ((uintptr_t)data + bytes) & ~(SYS_PAGE - 1);
    if (f && !f->anonymous && lo < hi)
        madvise((void *)lo, hi - lo, MADV_DONTNEED);
}

static void fill_expert(pager *p, uint32_t x)
{
    uint32_t l = p->expert_layer[x], e = x - p->layers[l].expert_base;
    pager_page *pages = &p->pages[p->layers[l].page_base + e * p->layers[l].geom.pages];
    for (uint32_t i = 0; i < p->layers[l].geom.pages; i++)
        pager_read_page(p, l, e, i, (void *)(uintptr_t)pages[i].src);
    const model_layer *y = model_get_layer(p->m, l);
    for (uint32_t i = 0; i < MODEL_MATRICES; i++) {
        const model_tensor *t = &y->experts[e * MODEL_MATRICES + i];
        let_go(p, t->data, model_stored_bytes(y, i));
        let_go(p, t->scales, model_scale_bytes(t));
    }
}

static void *fill_main(void *arg)
{
    fill_job *j = arg;
    for (;;) {
        uint32_t x = __atomic_fetch_add(&j->next, 1, __ATOMIC_RELAXED);
        if (x >= j->p->n_experts)
            return NULL;
        fill_expert(j->p, x);
        if (j->opt->progress && x % 64 == 0)
            j->opt->progress(j->opt->progress_user, (double)x / j->p->n_experts);
    }
}

static xd_status open_pool(pager *p, const pager_options *opt, int numa_node, xd_err *err)
{
    kern_dev_info info;
    p->dev->ops->info(p->dev, &info);
    uint64_t unit = 0;
    for (uint32_t l = 0; l < p->n_layers; l++)
        unit = XD_MAX(unit, p->layers[l].blob_bytes);
    hostmem_options ho = {.dev = p->dev,
                          .n_units = p->n_experts,
                          .unit_bytes = unit,
                          .numa_node = numa_node,
                          .huge_pages = p->cfg->memory.huge_pages,
                          .what = "the expert pool",
                          .key = "memory.host_budget with memory.nvme_path set"};
    xd_status st = hostmem_open(&ho, &p->host.pool, err);
    if (st)
        return st;
    p->host.bytes = p->n_experts * hostmem_unit_bytes(p->host.pool);
    for (uint32_t x = 0; x < p->n_experts; x++) {
        const pager_layer *y = &p->layers[p->expert_layer[x]];
        pager_page *pages = &p->pages[y->page_base + (x - y->expert_base) * y->geom.pages];
        char *at = hostmem_ptr(p->host.pool, x);
        for (uint32_t i = 0; i < y->geom.pages; i++) {
            pages[i].src = at;
            at += xd_align_up(pages[i].bytes, 256);
        }
    }
    fill_job job = {.p = p, .opt = opt};
    pthread_t t[FILL_THREADS];
    uint32_t n = XD_MIN((uint32_t)FILL_THREADS, XD_MAX(info.n_units, 1u)), started = 0;
    while (started + 1 < n && !pthread_create(&t[started], NULL, fill_main, &job))
        started++;
    fill_main(&job); /* alone when no thread could be had */
    while (started)
        pthread_join(t[--started], NULL);
    if ((st = hostmem_register(p->host.pool, err)))
        return st;
    p->host.probe_addr = p->n_experts ? hostmem_addr(p->host.pool, 0) : 0;
    p->host.probe_bytes = hostmem_run_bytes(p->host.pool);
    for (uint32_t x = 0; x < p->n_experts; x++) {
        const pager_layer *y = &p->layers[p->expert_layer[x]];
        pager_page *pages = &p->pages[y->page_base + (x - y->expert_base) * y->geom.pages];
        for (uint32_t i = 0; i < y->geom.pages; i++)
            pages[i].host_addr = hostmem_addr(p->host.pool, x) +
                                 (uint64_t)((const char *)pages[i].src - (const char *)hostmem_ptr(p->host.pool, x));
    }
    return XD_OK;
}

/* Bytes of host memory that experts may take, when they are fewer than there are experts; 0: all of them may. */
static uint64_t short_budget(const pager *p, bool in_place_is_free)
{
    uint64_t budget = p->cfg->memory.host_budget, need = p->stats.expert_bytes_total;
    bool has_file = p->cfg->memory.nvme_path && *p->cfg->memory.nvme_path;
    if (budget != CONF_AUTO_BYTES)
        return budget < need ? XD_MAX(budget, 1u) : 0;
    uint64_t avail = cgroup_available_bytes();
    if (in_place_is_free || !has_file || avail == UINT64_MAX || avail / 8 * 7 > need)
        return 0;
    return avail / 8 * 7;
}

xd_status pager_host_open(pager *p, const pager_options *opt, xd_err *err)
{
    kern_dev_info info;
    p->dev->ops->info(p->dev, &info);
    int numa_node = p->cfg->engine.numa_node >= 0 ? p->cfg->engine.numa_node : info.numa_node;
    uint32_t n_files;
    const model_file *files = model_files(p->m, &n_files);
    bool can = true, anonymous = false;
    for (uint32_t i = 0; i < n_files; i++) {
        can = can && (files[i].anonymous || info.can_register_readonly);
        anonymous = anonymous || files[i].anonymous;
    }
    uint64_t budget = short_budget(p, anonymous);
    if (budget) {
        xd_status st = pager_check_budget(p->cfg, p->m, budget, err);
        return st ? st : pager_disk_open(p, opt, budget, numa_node, err);
    }
    if (p->cfg->memory.host_tier == CONF_TIER_IN_PLACE || (p->cfg->memory.host_tier == CONF_TIER_AUTO && can)) {
        xd_err why = {0};
        xd_status st = open_in_place(p, opt, &why);
        if (!st)
            return XD_OK;
        unregister_all(p);
        if (p->cfg->memory.host_tier == CONF_TIER_IN_PLACE)
            return xd_fail(err, st, 0, "memory.host_tier = in_place: %s; with auto or pool the experts are copied",
                           why.msg);
        snprintf(p->stats.not_in_place, sizeof p->stats.not_in_place, "%.159s", why.msg);
    }
    return open_pool(p, opt, numa_node, err);
}

void pager_host_close(pager *p)
{
    pager_disk_close(p);
    unregister_all(p);
    free(p->host.regs);
    hostmem_free(p->host.pool);
}
