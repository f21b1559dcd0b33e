/* pager.c - residency of expert pages, the page table, and what a step is given. pager_priv.h says what the other files do.
 *
 * DESIGN
 * The life of a page's place in VRAM (a page always keeps its host copy, so every edge to `host` is free):
 *
 *             offered slot filled by a step (step_end)
 *     host ------------------------------------------------> resident
 *      |  \--push--> copying --copy done, adopted (step_begin)--^  |
 *      |\                                                          | evicted (step_begin, require)
 *      | \--require in STAGED mode--> staged --next layer--> host  |
 *      ^-----------------------------------------------------------'
 *
 * Invariants
 *  1. The table the device sees changes only in step_begin, and in require (between two layers, in stream order). Between begin and
 *     end every entry that a kernel may read points to bytes that do not change.
 *  2. slot_page[s] == g exactly when pages[g].slot == s or pages[g].copying == s or g is staged in s. Every other slot is on the free
 *     stack (or waits in stage_free).
 *  3. A slot is written only after its last reader's step ended: it is unmapped in step_begin, when the step before has ended; or in
 *     stream order behind its readers (require).
 *  4. Offered slots belong to the step. What it consumed is learnt in step_end and becomes visible to the next
 *     step; a step that was given up leaves nothing behind.
 *  5. The engine thread owns all of this; the copy thread sees only jobs. `lock` protects what stats and the map read.
 *  6. Lock order: `lock`, then the copier's or `seen_lock`. The copy thread, for whom the engine may wait with `lock` in hand, only tries it.
 * Statistics are attributed with the residency the step had: counts are read before fills are applied. */
#include "engine/memory/pager.h"

#include <errno.h>
#include <string.h>

#include "engine/memory/pager_priv.h"

/* What lies apart by no more than this is uploaded by one copy: a copy costs some microseconds, 100 KiB only two more. */
#define UPLOAD_GAP (256ull << 10)
uint64_t pager_slot_addr(const pager *p, uint32_t slot)
{
    if (slot < p->n_arena_slots)
        return (uint64_t)(uintptr_t)p->arena + slot * p->slot_bytes;
    return pager_spare_addr(p, slot);
}

static uint32_t *io_used(const pager *p)
{
    return (uint32_t *)(void *)(p->io + p->io_used_at);
}

xd_status pager_device_fail(const pager *p, xd_err *err, const char *what)
{
    return xd_fail(err, XD_INTERNAL, 0, "pager: %s: %s", what, p->dev->ops->error(p->dev));
}

/* --- residency --------------------------------------------------------------------------------------------------- */

void pager_set_entry(pager *p, uint32_t pg, uint64_t addr)
{
    p->table[pg] = addr;
    p->dirty_lo = XD_MIN(p->dirty_lo, pg);
    p->dirty_hi = XD_MAX(p->dirty_hi, pg + 1);
}

static void count_resident(pager *p, uint32_t pg, int sign)
{
    pager_page *g = &p->pages[pg];
    p->expert_vram[g->expert] += (uint32_t)sign;
    p->n_slots_used += (uint32_t)sign;
    p->stats.vram_bytes += (uint64_t)((int64_t)g->bytes * sign);
    policy_set_units(p->pol, g->expert, p->expert_vram[g->expert]);
}

void pager_make_resident(pager *p, uint32_t pg, uint32_t slot)
{
    p->pages[pg].slot = slot;
    p->slot_page[slot] = pg;
    pager_set_entry(p, pg, pager_slot_addr(p, slot));
    count_resident(p, pg, 1);
}

void pager_put_free(pager *p, uint32_t slot)
{
    p->slot_page[slot] = PG_NONE;
    p->free_slot[p->n_free_slots++] = slot;
}

/* Unmaps; the slot belongs to the caller. */
uint32_t pager_evict_page(pager *p, uint32_t pg)
{
    uint32_t slot = p->pages[pg].slot;
    count_resident(p, pg, -1);
    p->pages[pg].slot = PG_NONE;
    p->slot_page[slot] = PG_NONE;
    pager_set_entry(p, pg, p->pages[pg].host_addr);
    p->stats.evictions++;
    return slot;
}

uint32_t pager_expert_first_page(const pager *p, uint32_t x)
{
    const pager_layer *y = &p->layers[p->expert_layer[x]];
    return y->page_base + (x - y->expert_base) * y->geom.pages;
}

uint32_t pager_expert_pages(const pager *p, uint32_t x)
{
    return p->layers[p->expert_layer[x]].geom.pages;
}

void pager_evict_expert(pager *p, uint32_t x)
{
    uint32_t first = pager_expert_first_page(p, x);
    for (uint32_t pg = first; pg < first + pager_expert_pages(p, x); pg++)
        if (p->pages[pg].slot != PG_NONE)
            pager_put_free(p, pager_evict_page(p, pg));
}

/* Frees slots until `want` are free or nobody may go. */
void pager_make_room(pager *p, uint32_t want)
{
    while (p->n_free_slots < want) {
        uint32_t x = policy_victim(p->pol);
        if (x == POLICY_NONE)
            return;
        pager_evict_expert(p, x);
    }
}

/* --- copies behind the scenes ------------------------------------------------------------------------------------ */

void pager_adopt_copies(pager *p)
{
    pager_copy_job jobs[64];
    uint32_t n;
    while ((n = pager_copier_take(&p->copier, jobs, XD_ARRAY_LEN(jobs))))
        for (uint32_t i = 0; i < n; i++) {
            pager_page *g = &p->pages[jobs[i].page];
            if (jobs[i].staged) {
                if (jobs[i].failed)
                    pager_staged_failed(p, jobs[i].slot);
                continue;
            }
            g->copying = PG_NONE;
            if (jobs[i].failed || g->slot != PG_NONE) { /* a step was faster */
                pager_put_free(p, jobs[i].slot);
                continue;
            }
            pager_make_resident(p, jobs[i].page, jobs[i].slot);
            p->stats.promotions++;
        }
}

/* --- uploads ----------------------------------------------------------------------------------------------------- */

static xd_status upload(pager *p, uint64_t from, uint64_t to, xd_err *err)
{
    if (from < to && p->dev->ops->upload(p->dev, p->io_dev + from, p->io + from, to - from))
        return pager_device_fail(p, err, "uploading the page table");
    return XD_OK;
}

/* The table's changes, and [from, to) behind them, which may be nothing. */
static xd_status upload_changes(pager *p, uint64_t from, uint64_t to, xd_err *err)
{
    uint64_t lo = p->dirty_lo * sizeof *p->table, hi = p->dirty_hi * sizeof *p->table;
    bool changed = lo < hi, together = changed && from < to && from - hi <= UPLOAD_GAP;
    xd_status st = upload(p, lo, together ? to : hi, err);
    if (!st && !together)
        st = upload(p, from, to, err);
    if (st || !changed)
        return st;
    p->dirty_lo = UINT32_MAX;
    p->dirty_hi = 0;
    p->view.version++;
    return XD_OK;
}

xd_status pager_upload_table(pager *p, xd_err *err)
{
    return upload_changes(p, 0, 0, err);
}

/* Hands the top n free slots to the step: until its end they belong to the offer, and require may use what is left of the stack. With them
 * goes the table. */
static xd_status upload_offers(pager *p, uint32_t n, xd_err *err)
{
    uint64_t *offer = (uint64_t *)(void *)(p->io + p->io_offer_at);
    uint32_t first = p->offer_cap - n;
    bool changed = p->offer_consumed || p->admit_changed || first != p->offer_first;
    for (uint32_t i = first; i < p->offer_cap; i++) {
        p->offer_slot[i] = p->free_slot[--p->n_free_slots];
        uint64_t a = pager_slot_addr(p, p->offer_slot[i]);
        changed = changed || offer[i] != a;
        offer[i] = a;
    }
    p->offer_first = first;
    *io_used(p) = first;
    p->offer_consumed = changed; /* until the device has it */
    uint64_t from = p->admit_changed ? p->io_admit_at : p->io_offer_at + first * sizeof *offer;
    xd_status st = upload_changes(p, from, changed ? p->io_used_at + sizeof(uint32_t) : 0, err);
    if (!st)
        p->offer_consumed = p->admit_changed = false;
    return st;
}

/* Takes back what is left, last one first: the next step is then offered the same slots in the same order, and nothing is uploaded. */
static void take_back_offers(pager *p)
{
    for (uint32_t i = p->offer_cap; i-- > p->offer_first;)
        if (p->offer_slot[i] != PG_NONE)
            pager_put_free(p, p->offer_slot[i]);
}

/* --- a step ------------------------------------------------------------------------------------------------------ */

static bool may_push_out(const pager *p)
{
    return p->n_slots && p->n_slots - p->n_stage < p->n_pages;
}

xd_status pager_step_begin(pager *p, bool prefill, const pager_view **ret, xd_err *err)
{
    if (p->in_step)
        return xd_fail(err, XD_INTERNAL, 0, "pager: a step begins inside another");
    pthread_mutex_lock(&p->lock);
    pager_adopt_copies(p);
    if (p->disk)
        pager_disk_step(p);
    pager_fill_more(p);
    /* FULL has a slot for every page: nothing is pushed out, and steps keep all that they read anyway. On a busy link that is the
     * quicker way, since kernels get a larger share of it than the copy engine. In STAGED what the plan still takes for missing is in
     * VRAM when the experts run: kernels would not fill a slot from there. */
    bool staged = pager_stages(p, prefill), shared = pager_shares(p, prefill);
    uint32_t want = p->mode == PAGER_FULL ? p->offer_cap
                    : staged              ? 0
                    : shared              ? pager_share_room(p)
                                          : XD_MIN(policy_want(p->pol), p->offer_cap);
    /* Where the CPU shares, slots are given out layer by layer. */
    uint32_t offer = staged || shared ? 0 : prefill ? want : p->offer_cap;
    /* A prompt sees many experts once: it may use what is free anyway, but pushes nobody out. Nor does anyone where each page has
     * a slot: what is missing then is on its way. */
    if (!prefill && may_push_out(p)) {
        pager_make_room(p, want);
        p->admit_changed = policy_plan(p->pol, p->n_free_slots, p->admit) || p->admit_changed;
    }
    xd_status st = upload_offers(p, XD_MIN(offer, p->n_free_slots), err);
    if (st)
        take_back_offers(p);
    else {
        p->in_step = true;
        p->step_prefill = prefill;
        p->step_started_ns = xd_now_ns();
        p->staged_in_pages = 0;
        p->staged_in_bytes = 0;
        p->disk_in_pages = 0;
        p->step_is_wide = false;
        if (p->mode == PAGER_SHARED)
            memset(p->on_cpu, 0, p->n_experts);
        p->stats.step_bytes_host = p->stats.step_bytes_vram = p->stats.step_bytes_cpu = 0;
        *ret = &p->view;
    }
    pthread_mutex_unlock(&p->lock);
    return st;
}

/* Returns the pages it missed. */
static uint32_t count_expert(pager *p, const pager_layer *y, uint32_t x)
{
    uint32_t pages = y->geom.pages, there = p->expert_vram[x];
    uint64_t bytes = there == pages ? y->expert_bytes : 0;
    if (there && there < pages) { /* only then its pages have to be looked at */
        const pager_page *g = &p->pages[pager_expert_first_page(p, x)];
        for (uint32_t i = 0; i < pages; i++)
            bytes += g[i].slot != PG_NONE ? g[i].bytes : 0;
    }
    if (p->mode == PAGER_SHARED && p->on_cpu[x]) { /* all of it, whatever part lies in VRAM */
        p->stats.hits_host += pages;
        p->stats.step_bytes_cpu += y->expert_bytes;
    } else {
        p->stats.hits_vram += there;
        p->stats.hits_host += pages - there;
        p->stats.step_bytes_vram += bytes;
        p->stats.step_bytes_host += y->expert_bytes - bytes;
    }
    if (!p->step_prefill)
        policy_touch(p->pol, x);
    return pages - there;
}

static void count_step(pager *p)
{
    const uint32_t *counts = (const uint32_t *)(const void *)(p->io + p->io_counts_at);
    uint32_t wanted = 0;
    for (uint32_t l = 0, x = 0; l < p->n_layers; l++) {
        const pager_layer *y = &p->layers[l];
        uint32_t missed = 0;
        for (uint32_t e = 0; e < y->n_experts; e++, x++)
            if (counts[x]) {
                uint32_t n = count_expert(p, y, x);
                missed += p->admit[x] == POLICY_WORTH_IT ? n : 0;
            }
        wanted += XD_MIN(missed, p->view.max_inserts);
    }
    /* What require copied was a miss, although it lies in VRAM by now. */
    p->stats.hits_vram -= p->staged_in_pages;
    p->stats.hits_host += p->staged_in_pages - p->disk_in_pages;
    p->stats.step_bytes_vram -= p->staged_in_bytes;
    p->stats.step_bytes_host += p->staged_in_bytes;
    p->stats.bytes_vram += p->stats.step_bytes_vram;
    p->stats.bytes_host += p->stats.step_bytes_host;
    p->stats.bytes_cpu += p->stats.step_bytes_cpu;
    if (p->tracer)
        trace_writer_step(p->tracer, counts, p->step_prefill);
    if (p->step_prefill)
        return;
    policy_missed(p->pol, wanted);
    double bytes = (double)(p->stats.step_bytes_host + p->stats.step_bytes_cpu);
    p->decode_host_bytes += p->decode_known ? (bytes - p->decode_host_bytes) / 16 : bytes;
    p->decode_known = true;
}

static void apply_fills(pager *p)
{
    const uint32_t *log = (const uint32_t *)(const void *)(p->io + p->io_log_at);
    uint32_t used = XD_MIN(*io_used(p), p->offer_cap);
    for (uint32_t i = p->offer_first; i < used; i++) {
        p->offer_consumed = true;
        if (log[i] < p->n_pages && p->pages[log[i]].slot == PG_NONE) {
            pager_make_resident(p, log[i], p->offer_slot[i]);
            p->offer_slot[i] = PG_NONE;
            p->stats.fills++;
        }
    }
    take_back_offers(p);
}

/* A simulated link is as slow as it is said to be, so that everything above sees it. */
static void wait_until(uint64_t ns)
{
    struct timespec ts = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, NULL) == EINTR)
        ;
}

void pager_settle(pager *p)
{
    pthread_mutex_lock(&p->lock);
    policy_settle(p->pol);
    pthread_mutex_unlock(&p->lock);
    /* Without the lock: what others read of the policy does not change any more. */
    if (may_push_out(p))
        policy_prepare(p->pol);
}

xd_status pager_step_fetch(pager *p, xd_err *err)
{
    if (p->dev->ops->download(p->dev, p->io + p->io_used_at, p->io_dev + p->io_used_at, p->io_bytes - p->io_used_at))
        return pager_device_fail(p, err, "reading the step's counters");
    return XD_OK;
}

xd_status pager_step_end(pager *p, xd_err *err)
{
    if (!p->in_step)
        return xd_fail(err, XD_INTERNAL, 0, "pager: no step to end");
    pthread_mutex_lock(&p->lock);
    count_step(p);
    apply_fills(p);
    pager_unstage(p);
    pager_share_end(p, true);
    if (!p->step_prefill)
        policy_advance(p->pol);
    p->in_step = false;
    uint64_t wait_ns = link_sim_ns(&p->sim, p->stats.step_bytes_host, p->step_started_ns), now = xd_now_ns();
    p->stats.step_link_ns = wait_ns;
    p->step_wait_ns = p->step_started_ns + wait_ns - XD_MIN(now, p->step_started_ns + wait_ns);
    p->stats.link_wait_ns += p->step_wait_ns;
    pthread_mutex_unlock(&p->lock);
    if (wait_ns)
        wait_until(p->step_started_ns + wait_ns);
    return XD_OK;
}

void pager_step_abort(pager *p)
{
    if (!p->in_step)
        return;
    pthread_mutex_lock(&p->lock);
    p->offer_consumed = true;
    take_back_offers(p);
    pager_unstage(p);
    pager_share_end(p, false);
    p->in_step = false;
    pthread_mutex_unlock(&p->lock);
}

void pager_idle(pager *p)
{
    if (p->in_step)
        return;
    pthread_mutex_lock(&p->lock);
    pager_adopt_copies(p);
    pager_fill_more(p);
    pthread_mutex_unlock(&p->lock);
}

uint64_t pager_read_in_place(const pager *p)
{
    if (p->mode != PAGER_DIRECT || p->disk || p->filling || p->n_slots_used == p->n_pages)
        return 0;
    return p->decode_known ? (uint64_t)p->decode_host_bytes : UINT64_MAX;
}

uint64_t pager_step_link_ns(const pager *p)
{
    return p->stats.step_link_ns;
}

uint64_t pager_step_wait_ns(const pager *p)
{
    return p->step_wait_ns;
}

uint64_t pager_missed_bytes(const pager *p)
{
    return p->decode_known ? (uint64_t)p->decode_host_bytes : 0;
}

/* --- statistics -------------------------------------------------------------------------------------------------- */

static void tell_stats(pager *p, pager_stats *ret)
{
    *ret = p->stats;
    ret->slots_used = p->n_slots_used;
    ret->host_bytes = p->stats.expert_bytes_total - p->stats.vram_bytes;
    for (uint32_t pg = 0; p->disk && pg < p->n_pages; pg++)
        if (p->pages[pg].slot == PG_NONE && !p->pages[pg].src)
            ret->disk_bytes += p->pages[pg].bytes;
    ret->host_bytes -= ret->disk_bytes;
    if (p->disk) {
        snprintf(ret->disk_reader, sizeof ret->disk_reader, "%s", pager_disk_reader(p));
        ret->disk_busy_ns = pager_disk_busy_ns(p);
    }
    ret->stats_errors = atomic_load(&p->stats_errors);
    ret->filling = p->filling;
    ret->table_version = p->view.version;
    ret->mode = p->mode;
    pthread_mutex_lock(&p->seen_lock);
    p->seen = *ret;
    pthread_mutex_unlock(&p->seen_lock);
}

void pager_get_stats(pager *p, pager_stats *ret)
{
    pthread_mutex_lock(&p->lock);
    tell_stats(p, ret);
    pthread_mutex_unlock(&p->lock);
}

void pager_peek_stats(pager *p, pager_stats *ret)
{
    if (!pthread_mutex_trylock(&p->lock)) {
        tell_stats(p, ret);
        pthread_mutex_unlock(&p->lock);
        return;
    }
    pthread_mutex_lock(&p->seen_lock);
    *ret = p->seen;
    pthread_mutex_unlock(&p->seen_lock);
}

bool pager_get_map(pager *p, uint8_t *tier, uint8_t *heat)
{
    const uint32_t width = model_get_params(p->m)->n_experts_max;
    memset(tier, 255, (size_t)p->n_layers * width);
    memset(heat, 0, (size_t)p->n_layers * width);
    if (pthread_mutex_trylock(&p->lock))
        return false;
    float max = 0;
    for (uint32_t x = 0; x < p->n_experts; x++)
        max = XD_MAX(max, policy_heat(p->pol, x));
    for (uint32_t x = 0; x < p->n_experts; x++) {
        uint32_t l = p->expert_layer[x];
        size_t at = (size_t)l * width + (x - p->layers[l].expert_base);
        tier[at] = p->expert_vram[x] == pager_expert_pages(p, x) ? 2 : !p->disk || pager_disk_has(p, x);
        heat[at] = max > 0 ? (uint8_t)(policy_heat(p->pol, x) / max * 255) : 0;
    }
    pthread_mutex_unlock(&p->lock);
    return true;
}
