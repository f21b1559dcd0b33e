/* pager_stage.c - modes, and what happens between the router and the experts of a layer when pages are not read in place.
 *
 * STAGED is the traditional path for a link that is bad at small reads: the missed pages of a layer are copied into VRAM in bulk
 * before its experts run. A decode miss takes a victim's slot and stays. A prompt's miss, and what exceeds the cap on insertions,
 * goes through a few staging slots and is forgotten when the next layer comes. What finds no slot is read in place as ever. These copies,
 * table and kernels are in one stream, so that order alone keeps them apart.
 *
 * Double buffer. A prompt's step that needs most experts of a layer will need most of the next layer's. Staging slots that the layer at
 * hand leaves free are given to the copy thread, which brings pages of the next layer while this one computes. No events are needed:
 *  1. When a layer requires its pages, the host has waited for its counts, so all kernels of earlier layers have ended: whatever slot is
 *     free then has no reader, and none gets one before it is in the table.
 *  2. The next require waits for the copy thread before it puts such a slot into the table. Only then a kernel is launched that reads it.
 *  3. What no longer can be used (experts that were not picked, a step's end) leaves its slot only after the copy thread is done with it.
 * The present layer goes first: it has its slots before the next one is given any. Decode steps are not read ahead for: next to copies over
 * a bad link the experts of a few tokens compute in no time, so there is nothing to hide, and each wrong guess costs as much as a miss. */
#include <string.h>

#include "engine/memory/pager_priv.h"

/* Staging takes at most this share of the slots from the cache. */
#define STAGE_SHARE 4u
/* A step that touched this share of a layer's experts is taken to need the next layer whole. */
#define MOST_EXPERTS 0.75
#define AHEAD_JOBS   64u

static void free_staged(pager *p, pager_staged *s)
{
    p->slot_page[s->slot] = PG_NONE;
    p->stage_free[p->n_stage_free++] = s->slot;
}

static void put_staged(pager *p, uint32_t pg, uint32_t slot)
{
    p->stage_now[p->n_stage_now++] = (pager_staged){pg, slot};
    p->slot_page[slot] = pg;
    pager_set_entry(p, pg, pager_slot_addr(p, slot));
}

static void unstage_layer(pager *p)
{
    while (p->n_stage_now) {
        pager_staged *s = &p->stage_now[--p->n_stage_now];
        pager_set_entry(p, s->page, p->pages[s->page].host_addr);
        free_staged(p, s);
    }
}

/* --- the next layer's pages -------------------------------------------------------------------------------------- */

/* False: its queue is full; the pages are not brought then. */
static bool push_ahead(pager *p, const pager_copy_job *jobs, uint32_t *n)
{
    bool pushed = pager_copier_push(&p->copier, jobs, *n);
    for (; !pushed && *n; --*n)
        free_staged(p, &p->stage_next[--p->n_stage_next]);
    *n = 0;
    return pushed;
}

/* Gives the copy thread pages that the layer will probably want. It has no other work: so who waits for it waits for these alone. */
static void stage_ahead(pager *p, uint32_t layer)
{
    if (!p->step_prefill || p->disk || layer == p->n_layers || p->filling || pager_copier_pending(&p->copier))
        return;
    const pager_layer *y = &p->layers[layer];
    if (y->n_experts > 1 && !p->step_is_wide)
        return;
    pager_copy_job jobs[AHEAD_JOBS];
    uint32_t n = 0, end = y->page_base + y->n_experts * y->geom.pages;
    for (uint32_t pg = y->page_base; pg < end && p->n_stage_free; pg++) {
        const pager_page *g = &p->pages[pg];
        if (g->slot != PG_NONE)
            continue;
        uint32_t slot = p->stage_free[--p->n_stage_free];
        p->stage_next[p->n_stage_next++] = (pager_staged){pg, slot};
        p->slot_page[slot] = pg;
        jobs[n++] = (pager_copy_job){.page = pg,
                                     .slot = slot,
                                     .dst = (void *)(uintptr_t)pager_slot_addr(p, slot),
                                     .src = g->src,
                                     .bytes = g->bytes,
                                     .staged = true};
        if (n == AHEAD_JOBS && !push_ahead(p, jobs, &n))
            return;
    }
    push_ahead(p, jobs, &n);
}

void pager_staged_failed(pager *p, uint32_t slot)
{
    for (uint32_t i = 0; i < p->n_stage_next; i++)
        if (p->stage_next[i].slot == slot)
            p->stage_next[i].page = PG_NONE;
}

/* What was brought for the layer is there; of other experts than the touched ones nothing is kept. */
static void adopt_ahead(pager *p, uint32_t layer, const uint32_t *touched)
{
    if (!p->n_stage_next)
        return;
    pager_copier_drain(&p->copier);
    pager_adopt_copies(p);
    while (p->n_stage_next) {
        pager_staged *s = &p->stage_next[--p->n_stage_next];
        const pager_page *g = s->page == PG_NONE ? NULL : &p->pages[s->page];
        bool useful = g && p->expert_layer[g->expert] == layer && touched[g->expert - p->layers[layer].expert_base];
        if (g)
            *(useful ? &p->stats.staged_ahead_useful_bytes : &p->stats.staged_ahead_wasted_bytes) += g->bytes;
        if (useful)
            put_staged(p, s->page, s->slot);
        else
            free_staged(p, s);
    }
}

/* The step is over, or given up. */
void pager_unstage(pager *p)
{
    unstage_layer(p);
    if (!p->n_stage_next)
        return;
    pager_copier_cancel(&p->copier);
    pager_adopt_copies(p);
    while (p->n_stage_next)
        free_staged(p, &p->stage_next[--p->n_stage_next]);
}

/* --- the present layer's ----------------------------------------------------------------------------------------- */

bool pager_stages(const pager *p, bool prefill)
{
    return p->mode == PAGER_STAGED || (p->mode == PAGER_SHARED && prefill && p->n_stage);
}

bool pager_needs_require(const pager *p, bool prefill)
{
    return p->disk || pager_stages(p, prefill) || pager_shares(p, prefill);
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
    } else if (p->n_stage_free) {
        uint32_t slot = p->stage_free[p->n_stage_free - 1];
        if ((st = copy_in(p, pg, slot, err)))
            return st;
        p->n_stage_free--;
        put_staged(p, pg, slot);
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
    uint32_t kept = 0, n_touched = 0;
    for (uint32_t e = 0; e < y->n_experts; e++) {
        if (!touched[e])
            continue;
        n_touched++;
        uint32_t first = y->page_base + e * y->geom.pages;
        for (uint32_t pg = first; pg < first + y->geom.pages; pg++) {
            if (p->pages[pg].slot != PG_NONE || p->table[pg] != p->pages[pg].host_addr) /* there, or staged ahead */
                continue;
            bool keep = !p->step_prefill && kept < p->cfg->pager.max_inserts;
            xd_status st = stage_page(p, pg, keep, err);
            if (st)
                return st;
            kept += keep;
        }
    }
    if (y->n_experts > 1)
        p->step_is_wide = n_touched >= MOST_EXPERTS * y->n_experts;
    return XD_OK;
}

xd_status pager_require(pager *p, uint32_t layer, uint32_t *expert_touched, xd_err *err)
{
    if (!p->in_step || layer >= p->n_layers)
        return xd_fail(err, XD_INTERNAL, 0, "pager: layer %u is required outside of a step", layer);
    bool stages = pager_stages(p, p->step_prefill);
    if (!p->disk && !stages) /* all of it is where it can be read, and is only to be divided */
        return XD_OK;
    pthread_mutex_lock(&p->lock);
    uint64_t begin_ns = xd_now_ns();
    unstage_layer(p);
    adopt_ahead(p, layer, expert_touched);
    uint64_t disk_begin_ns = xd_now_ns();
    xd_status st = p->disk ? pager_disk_require(p, layer, expert_touched, err) : XD_OK;
    uint64_t disk_ns = xd_now_ns() - disk_begin_ns;
    if (!st && stages)
        st = stage_layer(p, layer, expert_touched, err);
    xd_status up = pager_upload_table(p, st ? NULL : err);
    if (!st && !up && stages)
        stage_ahead(p, layer + 1);
    uint64_t all_ns = xd_now_ns() - begin_ns;
    p->stats.require_ns += all_ns;
    p->stats.stage_ns += stages ? all_ns - disk_ns : 0;
    pthread_mutex_unlock(&p->lock);
    return st ? st : up;
}

/* --- modes ------------------------------------------------------------------------------------------------------- */

static void give_back_stage(pager *p)
{
    while (p->n_stage_free)
        pager_put_free(p, p->stage_free[--p->n_stage_free]);
    p->n_stage = 0;
}

static uint32_t layer_pages(const pager *p)
{
    uint32_t most = 0;
    for (uint32_t l = 0; l < p->n_layers; l++)
        most = XD_MAX(most, p->layers[l].n_experts * p->layers[l].geom.pages);
    return most;
}

xd_status pager_stage_open(pager *p, xd_err *err)
{
    uint32_t cap = XD_MIN(2 * layer_pages(p), p->n_pages);
    p->stage_free = malloc((cap + 1u) * sizeof *p->stage_free);
    p->stage_now = malloc((cap + 1u) * sizeof *p->stage_now);
    p->stage_next = malloc((cap + 1u) * sizeof *p->stage_next);
    if (!p->stage_free || !p->stage_now || !p->stage_next)
        return xd_fail(err, XD_NOMEM, 0, "pager: %u staging slots", cap);
    return XD_OK;
}

void pager_stage_close(pager *p)
{
    free(p->stage_free);
    free(p->stage_now);
    free(p->stage_next);
}

/* One layer may miss all it has; two layers in turn miss what has no slot, on average. */
static uint32_t stage_want(const pager *p)
{
    uint32_t two_layers = p->n_layers ? 2 * ((p->n_pages - p->n_slots + p->n_layers - 1) / p->n_layers) : 0;
    uint32_t most = layer_pages(p);
    return XD_MIN(XD_MIN(XD_MAX(most, two_layers), XD_MIN(2 * most, p->n_pages)), p->n_slots / STAGE_SHARE);
}

static xd_status take_stage(pager *p, xd_err *err)
{
    uint32_t want = stage_want(p);
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
    while (p->n_stage < want && p->n_free_slots) {
        p->stage_free[p->n_stage_free++] = p->free_slot[--p->n_free_slots];
        p->n_stage++;
    }
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
    xd_status st = mode == PAGER_SHARED ? pager_share_open(p, err) : XD_OK;
    if (!st) {
        if (mode != PAGER_STAGED && mode != PAGER_SHARED) /* the latter goes on with it, or without */
            give_back_stage(p);
        p->mode = PAGER_DIRECT;
        if (mode == PAGER_STAGED && !p->n_stage)
            st = take_stage(p, err);
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
