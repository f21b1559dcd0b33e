/* pager_cpu.c - PAGER_CPU: a decode step's experts that are not whole in VRAM are left to the CPU, which reads them in host memory.
 *
 * This file says which experts those are and where their pages lie; who computes them is the caller's business. What lies on disk has
 * been brought to host memory before (pager_disk_require), so the CPU never meets a page that is not there. A page that is being
 * copied into VRAM keeps its host copy: whether the copy is done matters to nobody before the next step.
 *
 * Nothing of a step fills slots then. So that VRAM goes on following the traffic, missed experts that are worth a slot are copied behind
 * the steps' backs, a few at a time: the link is slow, and the CPU wants the same memory. */
#include <string.h>

#include "engine/memory/pager_priv.h"

#define CPU_COPIES 16u /* under way at most */

xd_status pager_cpu_open(pager *p, xd_err *err)
{
    if (p->on_cpu)
        return XD_OK;
    p->on_cpu = calloc(XD_MAX(p->n_experts, 1u), 1);
    p->cpu_addr = calloc(XD_MAX(p->n_pages, 1u), sizeof *p->cpu_addr);
    if (p->on_cpu && p->cpu_addr)
        return XD_OK;
    pager_cpu_close(p);
    return xd_fail(err, XD_NOMEM, 0, "pager: table of %u pages for the CPU", p->n_pages);
}

void pager_cpu_close(pager *p)
{
    free(p->on_cpu);
    free(p->cpu_addr);
    p->on_cpu = NULL;
    p->cpu_addr = NULL;
}

bool pager_wants_cpu(const pager *p)
{
    return p->mode == PAGER_CPU && p->in_step && !p->step_prefill;
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

bool pager_leave_to_cpu(pager *p, uint32_t layer, const uint32_t *expert_touched, pager_cpu_share *ret)
{
    if (!pager_wants_cpu(p) || layer >= p->n_layers)
        return false;
    const pager_layer *y = &p->layers[layer];
    bool any = false;
    pthread_mutex_lock(&p->lock);
    for (uint32_t e = 0; e < y->n_experts; e++) {
        uint32_t x = y->expert_base + e;
        bool left = expert_touched[e] && p->expert_vram[x] != y->geom.pages && in_host_memory(p, x);
        p->on_cpu[x] = left;
        any = any || left;
    }
    pthread_mutex_unlock(&p->lock);
    *ret = (pager_cpu_share){.left = p->on_cpu + y->expert_base, .host_addr = p->cpu_addr + y->page_base};
    return any;
}

uint32_t pager_cpu_room(const pager *p)
{
    return XD_MIN(policy_want(p->pol), CPU_COPIES);
}

void pager_cpu_promote(pager *p)
{
    uint32_t pending = pager_copier_pending(&p->copier);
    for (uint32_t x = 0; x < p->n_experts && pending < CPU_COPIES; x++) {
        if (!p->on_cpu[x] || p->admit[x] != POLICY_WORTH_IT)
            continue;
        uint32_t first = pager_expert_first_page(p, x), end = first + pager_expert_pages(p, x);
        for (uint32_t pg = first; pg < end && pending < CPU_COPIES; pg++)
            pending += pager_promote_page(p, pg);
    }
}
