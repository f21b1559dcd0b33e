/* pager_share.c - PAGER_SHARED: a decode step's experts that are not whole in VRAM are divided between the device, whose kernels read them
 * in place, and the CPU, which reads them in host memory.
 *
 * This file says who gets which (share.c), and where the pages lie; who computes is the caller's business. What lies on disk has been
 * brought to host memory before (pager_disk_require), so neither side meets a page that is not there. A page that is being copied into
 * VRAM keeps its host copy: whether the copy is done matters to nobody before the next step.
 *
 * What the device reads may be kept (fill-through). The device's own plan does not know which experts it will be given, so the slots are
 * given out here: they are taken from the free ones, belong to the step like those that it is offered otherwise, and become
 * resident at its end. Where the device gets nothing (a bad link) nothing would ever come into VRAM; then missed experts that are worth
 * a slot are copied behind the steps' backs, a few at a time. */
#include <string.h>

#include "engine/memory/pager_priv.h"

#define COPIES 16u /* under way at most */

xd_status pager_share_open(pager *p, xd_err *err)
{
    if (p->on_cpu)
        return XD_OK;
    uint32_t experts = 1, pages = 1;
    for (uint32_t l = 0; l < p->n_layers; l++) {
        experts = XD_MAX(experts, p->layers[l].n_experts);
        pages = XD_MAX(pages, p->layers[l].n_experts * p->layers[l].geom.pages);
    }
    p->on_cpu = calloc(XD_MAX(p->n_experts, 1u), 1);
    p->cpu_addr = calloc(XD_MAX(p->n_pages, 1u), sizeof *p->cpu_addr);
    p->share_items = malloc(experts * sizeof *p->share_items);
    p->share_fill = malloc(pages * sizeof *p->share_fill);
    p->share_kept = malloc(XD_MAX(p->n_pages, 1u) * sizeof *p->share_kept);
    if (p->on_cpu && p->cpu_addr && p->share_items && p->share_fill && p->share_kept)
        return XD_OK;
    pager_share_close(p);
    return xd_fail(err, XD_NOMEM, 0, "pager: table of %u pages for the CPU", p->n_pages);
}

void pager_share_close(pager *p)
{
    free(p->on_cpu);
    free(p->cpu_addr);
    free(p->share_items);
    free(p->share_fill);
    free(p->share_kept);
    p->on_cpu = NULL;
    p->cpu_addr = NULL;
    p->share_items = NULL;
    p->share_fill = NULL;
    p->share_kept = NULL;
}

bool pager_shares(const pager *p, bool prefill)
{
    return p->mode == PAGER_SHARED && !prefill;
}

/* Notes where the expert's pages lie; false: some are nowhere in host memory. */
static bool in_host_memory(pager *p, uint32_t x)
{
    uint32_t first = pager_expert_first_page(p, x);
    for (uint32_t i = first; i < first + pager_expert_pages(p, x); i++) {
        if (!p->pages[i].src)
            return false;
        p->cpu_addr[i] = (uint64_t)(uintptr_t)p->pages[i].src;
    }
    return true;
}

static share_item item_of(const pager *p, uint32_t x, uint32_t e, uint32_t tokens)
{
    share_item it = {.expert = e, .tokens = tokens, .worth = p->admit[x] == POLICY_WORTH_IT && p->n_free_slots};
    uint32_t first = pager_expert_first_page(p, x);
    for (uint32_t i = first; i < first + pager_expert_pages(p, x); i++) {
        it.bytes += p->pages[i].bytes;
        it.link_bytes += p->pages[i].slot == PG_NONE ? p->pages[i].bytes : 0;
    }
    return it;
}

/* Slots for what the device reads of the expert and is to keep, as many as the layer may still have. */
static void keep(pager *p, uint32_t x, uint64_t *fill, uint32_t *inserts)
{
    uint32_t first = pager_expert_first_page(p, x);
    for (uint32_t i = 0; p->admit[x] && i < pager_expert_pages(p, x); i++) {
        const pager_page *g = &p->pages[first + i];
        if (g->slot != PG_NONE || *inserts == p->view.max_inserts || !p->n_free_slots)
            continue;
        uint32_t slot = p->free_slot[--p->n_free_slots];
        p->share_kept[p->n_share_kept++] = (pager_staged){first + i, slot};
        fill[i] = pager_slot_addr(p, slot);
        ++*inserts;
    }
}

bool pager_share_layer(pager *p, uint32_t layer, const uint32_t *expert_tokens, share_costs *costs, pager_share *ret)
{
    if (!p->in_step || !pager_shares(p, p->step_prefill) || layer >= p->n_layers)
        return false;
    const pager_layer *y = &p->layers[layer];
    uint32_t n = 0, n_device, inserts = 0, pages = y->geom.pages;
    *ret = (pager_share){.on_cpu = p->on_cpu + y->expert_base, .host_addr = p->cpu_addr + y->page_base};
    pthread_mutex_lock(&p->lock);
    for (uint32_t e = 0; e < y->n_experts; e++) {
        uint32_t x = y->expert_base + e;
        if (expert_tokens[e] && p->expert_vram[x] != pages && in_host_memory(p, x))
            p->share_items[n++] = item_of(p, x, e, expert_tokens[e]);
    }
    if (share_divide(costs, p->share_items, n, &n_device))
        costs->explore = false;
    for (uint32_t i = 0; i < n; i++) {
        const share_item *it = &p->share_items[i];
        p->on_cpu[y->expert_base + it->expert] = i >= n_device;
        ret->cpu_bytes += i < n_device ? 0 : it->bytes;
        ret->link_bytes += i < n_device ? it->link_bytes : 0;
    }
    if (n_device && p->view.n_free && p->n_free_slots) {
        memset(p->share_fill, 0, (size_t)y->n_experts * pages * sizeof *p->share_fill);
        for (uint32_t i = 0; i < n_device; i++)
            keep(p, y->expert_base + p->share_items[i].expert, p->share_fill + (size_t)p->share_items[i].expert * pages,
                 &inserts);
        ret->fill_addr = inserts ? p->share_fill : NULL;
    }
    pthread_mutex_unlock(&p->lock);
    return n > 0;
}

uint32_t pager_share_room(const pager *p)
{
    uint32_t want = XD_MIN(policy_want(p->pol), p->offer_cap);
    return p->share_copies ? XD_MIN(want, COPIES) : want;
}

void pager_share_end(pager *p, bool completed)
{
    for (uint32_t i = 0; i < p->n_share_kept; i++) {
        const pager_staged *k = &p->share_kept[i];
        if (completed && p->pages[k->page].slot == PG_NONE) {
            pager_make_resident(p, k->page, k->slot);
            p->stats.fills++;
        } else {
            pager_put_free(p, k->slot);
        }
    }
    p->n_share_kept = 0;
    if (!completed || !pager_shares(p, p->step_prefill))
        return;
    p->share_copies = !p->stats.step_bytes_host;
    if (!p->share_copies)
        return;
    uint32_t pending = pager_copier_pending(&p->copier);
    for (uint32_t x = 0; x < p->n_experts && pending < COPIES; x++) {
        if (!p->on_cpu[x] || p->admit[x] != POLICY_WORTH_IT)
            continue;
        uint32_t first = pager_expert_first_page(p, x), end = first + pager_expert_pages(p, x);
        for (uint32_t pg = first; pg < end && pending < COPIES; pg++)
            pending += pager_promote_page(p, pg);
    }
}
