/* pager_open.c - the pager's life: which pages there are, the arena, the tables and views of the device, and their end. */
#include <inttypes.h>
#include <string.h>

#include "engine/memory/pager_priv.h"

/* Far more than all layers may add in a step. */
#define OFFER_MAX   8192u
#define OFFER_SHARE 4u /* of the slots: as many as a step may be offered while the cache fills */
#define COPY_QUEUE  4096u
/* 350 000 steps of a model with 48 layers of 128 experts. */
#define TRACE_BYTES_MAX (256ull << 20)

static xd_status open_layers(pager *p, xd_err *err)
{
    const model_params *mp = model_get_params(p->m);
    p->n_layers = mp->n_layers;
    p->layers = calloc(p->n_layers ? p->n_layers : 1, sizeof *p->layers);
    if (!p->layers)
        return xd_fail(err, XD_NOMEM, 0, "pager: layers");
    uint64_t n_pages = 0, n_experts = 0;
    for (uint32_t l = 0; l < p->n_layers; l++) {
        const model_layer *y = model_get_layer(p->m, l);
        pager_layer *pl = &p->layers[l];
        xd_status st = pager_geometry(y, mp->d_model, p->cfg->memory.page_size, &pl->geom, err);
        if (st)
            return st;
        pl->n_experts = y->n_experts;
        pl->blob_bytes = pager_blob_bytes(&pl->geom);
        pl->page_base = (uint32_t)n_pages;
        pl->expert_base = (uint32_t)n_experts;
        n_pages += (uint64_t)y->n_experts * pl->geom.pages;
        n_experts += y->n_experts;
        if (n_pages >= PG_NONE)
            return xd_fail(err, XD_BAD_CONFIG, 0, "more than 2^32 expert pages: raise memory.page_size");
    }
    p->n_pages = (uint32_t)n_pages;
    p->n_experts = (uint32_t)n_experts;
    return XD_OK;
}

static xd_status open_pages(pager *p, xd_err *err)
{
    uint64_t max_page = 0;
    p->pages = calloc(p->n_pages ? p->n_pages : 1, sizeof *p->pages);
    p->expert_layer = calloc(p->n_experts ? p->n_experts : 1, sizeof *p->expert_layer);
    p->expert_vram = calloc(p->n_experts ? p->n_experts : 1, sizeof *p->expert_vram);
    if (!p->pages || !p->expert_layer || !p->expert_vram)
        return xd_fail(err, XD_NOMEM, 0, "pager: %u pages", p->n_pages);
    for (uint32_t l = 0, pg = 0; l < p->n_layers; l++) {
        pager_layer *pl = &p->layers[l];
        const kern_expert_geom *g = &pl->geom;
        for (uint32_t e = 0; e < pl->n_experts; e++) {
            p->expert_layer[pl->expert_base + e] = l;
            for (uint32_t i = 0; i < g->pages; i++, pg++) {
                uint32_t m = i >= g->first_page[2] ? 2 : i >= g->first_page[1];
                uint32_t done = (i - g->first_page[m]) * g->page_rows[m];
                uint32_t rows = XD_MIN(g->page_rows[m], kern_expert_rows(g, (int)m) - done);
                uint32_t bytes = (uint32_t)(rows * g->row_bytes[m]);
                p->pages[pg] =
                    (pager_page){.expert = pl->expert_base + e, .bytes = bytes, .slot = PG_NONE, .copying = PG_NONE};
                max_page = XD_MAX(max_page, bytes);
                pl->expert_bytes += e ? 0 : bytes;
                p->stats.expert_bytes_total += bytes;
            }
        }
    }
    p->slot_bytes = xd_align_up(max_page, 256);
    p->stats.slot_bytes = p->slot_bytes;
    p->stats.pages_total = p->n_pages;
    p->stats.page_bytes_max = max_page;
    return XD_OK;
}

/* Experts of each layer; owned. NULL: no memory. */
static uint32_t *layer_experts(const pager *p)
{
    uint32_t *n = calloc(p->n_layers ? p->n_layers : 1, sizeof *n);
    for (uint32_t l = 0; n && l < p->n_layers; l++)
        n[l] = p->layers[l].n_experts;
    return n;
}

static xd_status open_policy(pager *p, xd_err *err)
{
    XD_CLEANUP(xd_freep) uint32_t *n = layer_experts(p);
    if (!n)
        return xd_fail(err, XD_NOMEM, 0, "pager: policy");
    policy_options po = {.kind = p->cfg->pager.eviction,
                         .n_layers = p->n_layers,
                         .layer_experts = n,
                         .capacity_units = p->n_slots,
                         .layer_floor = p->cfg->pager.layer_floor};
    p->pol = policy_new(&po);
    if (!p->pol)
        return xd_fail(err, XD_NOMEM, 0, "pager: policy of %u experts", p->n_experts);
    snprintf(p->stats.policy, sizeof p->stats.policy, "%s", policy_name(po.kind));
    return XD_OK;
}

static xd_status open_arena(pager *p, uint64_t arena_bytes, xd_err *err)
{
    if (!p->n_pages)
        return XD_OK;
    p->n_slots = p->n_arena_slots = (uint32_t)XD_MIN(arena_bytes / p->slot_bytes, p->n_pages);
    p->arena_bytes = p->n_slots * p->slot_bytes;
    p->stats.slots_total = p->n_slots;
    p->slot_page = malloc(p->n_pages * sizeof *p->slot_page);
    p->free_slot = malloc(p->n_pages * sizeof *p->free_slot);
    if (!p->slot_page || !p->free_slot)
        return xd_fail(err, XD_NOMEM, 0, "pager: %u slots", p->n_slots);
    for (uint32_t s = p->n_slots; s-- > 0;)
        pager_put_free(p, s);
    char a[32];
    if (p->n_slots && p->dev->ops->alloc(p->dev, p->arena_bytes, (void **)&p->arena) != KERN_OK)
        return xd_fail(err, XD_NOMEM, 0,
                       "the expert cache (%u slots of %" PRIu64 " bytes, %s) does not fit into device memory: %s",
                       p->n_slots, p->slot_bytes, xd_format_bytes(a, sizeof a, p->arena_bytes),
                       p->dev->ops->error(p->dev));
    return XD_OK;
}

static xd_status open_tables(pager *p, xd_err *err)
{
    const kern_ops *ops = p->dev->ops;
    uint64_t table_bytes = XD_MAX(p->n_pages, 1u) * sizeof *p->table;
    p->offer_cap = XD_MIN(p->n_slots / OFFER_SHARE, OFFER_MAX);
    if (p->n_slots && !p->offer_cap)
        p->offer_cap = 1;
    p->offer_slot = malloc((p->offer_cap + 1) * sizeof *p->offer_slot);
    p->io_admit_at = table_bytes;
    p->io_offer_at = p->io_admit_at + xd_align_up(p->n_experts, 8);
    p->io_used_at = p->io_offer_at + p->offer_cap * sizeof(uint64_t);
    p->io_log_at = p->io_used_at + 2 * sizeof(uint32_t);
    p->io_counts_at = p->io_log_at + p->offer_cap * sizeof(uint32_t);
    p->io_bytes = p->io_counts_at + p->n_experts * sizeof(uint32_t);
    if (!p->offer_slot)
        return xd_fail(err, XD_NOMEM, 0, "pager: tables");
    if (ops->alloc_host(p->dev, p->io_bytes, (void **)&p->io) || ops->alloc(p->dev, p->io_bytes, (void **)&p->io_dev) ||
        ops->alloc(p->dev, table_bytes, (void **)&p->fill_dev))
        return xd_fail(err, XD_NOMEM, 0, "the page table of %u pages does not fit into device memory: %s", p->n_pages,
                       ops->error(p->dev));
    memset(p->io, 0, p->io_bytes);
    p->table = (uint64_t *)(void *)p->io;
    p->admit = (uint8_t *)p->io + p->io_admit_at;
    p->dirty_lo = UINT32_MAX;
    memset(p->admit, 1, p->n_experts);
    if (ops->upload(p->dev, p->io_dev, p->io, p->io_bytes) || ops->clear(p->dev, p->fill_dev, table_bytes) ||
        ops->sync(p->dev))
        return pager_device_fail(p, err, "clearing the page table");
    p->offer_consumed = true;
    p->offer_first = p->offer_cap;
    for (uint32_t pg = 0; pg < p->n_pages; pg++)
        pager_set_entry(p, pg,
                        p->pages[pg].slot == PG_NONE ? p->pages[pg].host_addr : pager_slot_addr(p, p->pages[pg].slot));
    return XD_OK;
}

static xd_status open_views(pager *p, xd_err *err)
{
    p->layer_views = calloc(p->n_layers ? p->n_layers : 1, sizeof *p->layer_views);
    if (!p->layer_views)
        return xd_fail(err, XD_NOMEM, 0, "pager: views");
    for (uint32_t l = 0; l < p->n_layers; l++) {
        const pager_layer *y = &p->layers[l];
        p->layer_views[l] = (pager_layer_view){
            .geom = y->geom,
            .n_experts = y->n_experts,
            .page_addr = (uint64_t *)(void *)p->io_dev + y->page_base,
            .fill_addr = p->offer_cap ? p->fill_dev + y->page_base : NULL,
            .admit = (const uint8_t *)p->io_dev + p->io_admit_at + y->expert_base,
            .expert_count = (uint32_t *)(void *)(p->io_dev + p->io_counts_at) + y->expert_base,
            .fill_log_base = y->page_base,
        };
    }
    p->view = (pager_view){
        .layers = p->layer_views,
        .free_slots = (uint64_t *)(void *)(p->io_dev + p->io_offer_at),
        .n_free = p->offer_cap,
        .free_used = (uint32_t *)(void *)(p->io_dev + p->io_used_at),
        .fill_log = (uint32_t *)(void *)(p->io_dev + p->io_log_at),
    };
    pager_set_view(p);
    return XD_OK;
}

static xd_status open_trace(pager *p, xd_err *err)
{
    const char *path = p->cfg->pager.trace_file;
    if (!path || !*path)
        return XD_OK;
    XD_CLEANUP(xd_freep) uint32_t *n = layer_experts(p);
    if (!n)
        return xd_fail(err, XD_NOMEM, 0, "pager: trace");
    return trace_writer_open(path, model_fingerprint(p->m), p->n_layers, n, TRACE_BYTES_MAX, &p->tracer, err);
}

xd_status pager_open(const pager_options *opt, pager **ret, xd_err *err)
{
    XD_CLEANUP(pager_freep) pager *p = calloc(1, sizeof *p);
    if (!p)
        return xd_fail(err, XD_NOMEM, 0, "pager handle");
    pthread_mutex_init(&p->lock, NULL);
    pthread_mutex_init(&p->seen_lock, NULL);
    pthread_mutex_init(&p->trouble_lock, NULL);
    p->dev = opt->dev;
    p->m = opt->m;
    p->cfg = opt->cfg;
    kern_dev_info info;
    p->dev->ops->info(p->dev, &info);
    p->unified = info.unified;
    xd_status st;
    if ((st = link_sim_init(&p->sim, p->cfg, xd_now_ns(), err)) || (st = open_layers(p, err)) ||
        (st = open_pages(p, err)) || (st = pager_host_open(p, opt, err)) ||
        (st = open_arena(p, opt->arena_bytes, err)) || (st = open_policy(p, err)) || (st = open_tables(p, err)) ||
        (st = open_views(p, err)) || (st = pager_stage_open(p, err)) || (st = pager_copier_start(p, COPY_QUEUE, err)))
        return st;
    p->stats.host_capacity_bytes = p->host.in_place ? p->stats.expert_bytes_total : p->host.bytes;
    p->stats.in_place = p->host.in_place;
    pager_load_stats(p);
    if ((st = pager_fill_at_start(p, opt, err)) || (st = open_trace(p, err)))
        return st;
    p->opened = true;
    xd_err why; /* saved in the background, much later: said now */
    if (pager_check_stats(p->cfg, model_fingerprint(p->m), &why))
        pager_trouble_begin(p, PAGER_TROUBLE_STATS, "pager.stats_file: %s; the next start will be cold", why.msg);
    if ((st = pager_upload_table(p, err)))
        return st;
    /* Not before: a start that takes its time would save what is not yet loaded over what is to be loaded. */
    pager_copier_save_from_now_on(&p->copier);
    *ret = XD_TAKE(p);
    return XD_OK;
}

void pager_free(pager *p)
{
    if (!p)
        return;
    const kern_ops *ops = p->dev->ops;
    pager_copier_stop(&p->copier);
    trace_writer_close(p->tracer);
    if (p->opened)
        (void)!pager_save_stats(p, NULL); /* lost statistics only make the next start slower, and were told of */
    for (uint32_t i = 0; i < p->n_pieces; i++)
        ops->free(p->dev, p->pieces[i].base);
    void *dev_mem[] = {p->arena, p->fill_dev, p->io_dev};
    for (size_t i = 0; i < XD_ARRAY_LEN(dev_mem); i++)
        if (dev_mem[i])
            ops->free(p->dev, dev_mem[i]);
    if (p->io)
        ops->free_host(p->dev, p->io);
    pager_host_close(p);
    policy_free(p->pol);
    free(p->layers);
    free(p->pages);
    free(p->expert_layer);
    free(p->expert_vram);
    free(p->slot_page);
    free(p->free_slot);
    free(p->offer_slot);
    free(p->layer_views);
    pager_stage_close(p);
    free(p->order);
    pager_share_close(p);
    pthread_mutex_destroy(&p->lock);
    pthread_mutex_destroy(&p->seen_lock);
    pthread_mutex_destroy(&p->trouble_lock);
    free(p);
}
