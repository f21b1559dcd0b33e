/* pager_stage.c - modes, and what happens between the router and the experts of a layer when pages are not read in place.
 *
 * STAGED is the traditional path for a link that is bad at small reads: the missed pages of a layer are copied into VRAM in bulk
 * before its experts run. A decode miss takes a victim's slot and stays. A prompt's miss, and what exceeds the cap on insertions,
 * goes through a few staging slots and is forgotten when the next layer comes. What finds no slot is read in place as ever. Copies,
 * table and kernels are in one stream, so that order alone keeps them apart. */
#include <string.h>

#include "engine/memory/pager_priv.h"

/* Staging takes at most this share of the arena from the cache. */
#define STAGE_SHARE 4u

void pager_unstage(pager *p)
{
    for (uint32_t i = 0; i < p->n_staged; i++) {
        uint32_t pg = p->stage_page[i];
        if (p->pages[pg].slot == PG_NONE) /* else it became resident meanwhile */
            pager_set_entry(p, pg, p->pages[pg].host_addr);
        p->slot_page[p->stage_slot[i]] = PG_NONE;
    }
    p->n_staged = 0;
}

bool pager_needs_require(const pager *p)
{
    return p->disk || p->mode == PAGER_STAGED || p->mode == PAGER_CPU;
}

static xd_status copy_in(pager *p, uint32_t pg, uint32_t slot, xd_err *err)
{
    const pager_page *g = &p->pages[pg];
    if (p->dev->ops->upload(p->dev, (void *)(uintptr_t)pager_slot_addr(p, slot), g->src, g->bytes))
        return pager_device_fail(p, err, "staging a page");
    return XD_OK;
}

static xd_status stage_page(pager *p, uint32_t pg, bool keep, xd_err *err)
{
    xd_status st = XD_OK;
    if (keep)
        pager_make_room(p, 1);
    if (keep && p->n_free_slots) {
        uint32_t slot = p->free_slot[p->n_free_slots - 1];
        if ((st = copy_in(p, pg, slot, err)))
            return st;
        p->n_free_slots--;
        pager_make_resident(p, pg, slot);
        p->stats.promotions++;
        p->staged_in_pages++;
        p->staged_in_bytes += p->pages[pg].bytes;
    } else if (p->n_staged < p->n_stage) {
        uint32_t slot = p->stage_slot[p->n_staged];
        if ((st = copy_in(p, pg, slot, err)))
            return st;
        p->stage_page[p->n_staged++] = pg;
        p->slot_page[slot] = pg;
        pager_set_entry(p, pg, pager_slot_addr(p, slot));
    }
    return st;
}

static xd_status stage_layer(pager *p, uint32_t layer, const uint32_t *touched, xd_err *err)
{
    const pager_layer *y = &p->layers[layer];
    /* First all are marked as used, so that none of them is the victim of another. */
    if (!p->step_prefill)
        for (uint32_t e = 0; e < y->n_experts; e++)
            if (touched[e])
                policy_touch(p->pol, y->expert_base + e);
    uint32_t kept = 0;
    for (uint32_t e = 0; e < y->n_experts; e++) {
        if (!touched[e])
            continue;
        uint32_t first = y->page_base + e * y->geom.pages;
        for (uint32_t pg = first; pg < first + y->geom.pages; pg++) {
            if (p->pages[pg].slot != PG_NONE)
                continue;
            bool keep = !p->step_prefill && kept < p->cfg->pager.max_inserts;
            xd_status st = stage_page(p, pg, keep, err);
            if (st)
                return st;
            kept += keep;
        }
    }
    return XD_OK;
}

xd_status pager_require(pager *p, uint32_t layer, uint32_t *expert_touched, xd_err *err)
{
    if (!p->in_step || layer >= p->n_layers)
        return xd_fail(err, XD_INTERNAL, 0, "pager: layer %u is required outside of a step", layer);
    pthread_mutex_lock(&p->lock);
    uint64_t begin_ns = xd_now_ns();
    pager_unstage(p);
    xd_status st = p->disk ? pager_disk_require(p, layer, expert_touched, err) : XD_OK;
    uint64_t there_ns = xd_now_ns();
    bool stages = p->mode == PAGER_STAGED || (p->mode == PAGER_CPU && p->step_prefill);
    if (!st && stages)
        st = stage_layer(p, layer, expert_touched, err);
    xd_status up = pager_upload_table(p, st ? NULL : err);
    uint64_t end_ns = xd_now_ns();
    p->stats.require_ns += end_ns - begin_ns;
    p->stats.stage_ns += stages ? end_ns - there_ns : 0;
    pthread_mutex_unlock(&p->lock);
    return st ? st : up;
}

/* --- modes ------------------------------------------------------------------------------------------------------- */

static void give_back_stage(pager *p)
{
    while (p->n_stage)
        pager_put_free(p, p->stage_slot[--p->n_stage]);
}

xd_status pager_stage_open(pager *p, xd_err *err)
{
    for (uint32_t l = 0; l < p->n_layers; l++)
        p->stage_cap = XD_MAX(p->stage_cap, p->layers[l].n_experts * p->layers[l].geom.pages);
    p->stage_slot = malloc((p->stage_cap + 1u) * sizeof *p->stage_slot);
    p->stage_page = malloc((p->stage_cap + 1u) * sizeof *p->stage_page);
    if (!p->stage_slot || !p->stage_page)
        return xd_fail(err, XD_NOMEM, 0, "pager: %u staging slots", p->stage_cap);
    return XD_OK;
}

static xd_status take_stage(pager *p, xd_err *err)
{
    uint32_t want = XD_MIN(p->stage_cap, p->n_slots / STAGE_SHARE);
    if (!want)
        return xd_fail(err, XD_NOMEM, 0, "staging needs at least %u VRAM slots, there are %u: raise memory.vram_budget",
                       STAGE_SHARE, p->n_slots);
    pager_make_room(p, want);
    /* The policy may have refused (static, floors). */
    for (uint32_t s = 0; s < p->n_slots && p->n_free_slots < want; s++) {
        uint32_t pg = p->slot_page[s];
        if (pg != PG_NONE && p->pages[pg].slot == s)
            pager_put_free(p, pager_evict_page(p, pg));
    }
    while (p->n_stage < want && p->n_free_slots)
        p->stage_slot[p->n_stage++] = p->free_slot[--p->n_free_slots];
    return XD_OK;
}

xd_status pager_set_mode(pager *p, int mode, xd_err *err)
{
    if (mode == p->mode)
        return XD_OK;
    if (p->in_step)
        return xd_fail(err, XD_INTERNAL, 0, "pager: the mode changes inside a step");
    if (mode == PAGER_FULL && (p->n_slots < p->n_pages || p->disk))
        return xd_fail(err, XD_UNSUPPORTED, 0, "only %u of %u expert pages have a place in VRAM%s", p->n_slots,
                       p->n_pages, p->disk ? ", and some may lie on disk" : "");
    pthread_mutex_lock(&p->lock);
    xd_status st = mode == PAGER_CPU ? pager_cpu_open(p, err) : XD_OK;
    if (!st) {
        bool stages = mode == PAGER_STAGED || mode == PAGER_CPU;
        if (!stages)
            give_back_stage(p);
        p->mode = PAGER_DIRECT;
        xd_status staged = stages && !p->n_stage ? take_stage(p, err) : XD_OK;
        if (mode == PAGER_STAGED) /* PAGER_CPU goes on without: what its prompts miss is then read in place */
            st = staged;
    }
    if (!st)
        p->mode = mode;
    if (p->mode == PAGER_FULL) { /* nobody decides there who may come in: everybody may */
        memset(p->admit, 1, p->n_experts);
        p->admit_changed = true;
        pager_fill_begin(p);
    }
    pager_set_view(p);
    pthread_mutex_unlock(&p->lock);
    return st;
}

void pager_give_back_spare(pager *p)
{
    (void)!pager_set_mode(p, PAGER_DIRECT, NULL);
    pthread_mutex_lock(&p->lock);
    pager_drop_spare(p);
    pthread_mutex_unlock(&p->lock);
}

int pager_get_mode(const pager *p)
{
    return p->mode;
}
