/* pager_spare.c - filling VRAM in bulk, hottest experts first: the arena at the start, and in a fallback device memory beyond it.
 *
 * DESIGN. When the link is bad, every page in VRAM is one less to bring over it. So a fallback turns into slots what the device has free,
 * beyond the budget: for all pages if that suffices and the configuration allows it, else as many as fit. Slots are numbered through:
 * first those of the arena, then piece after piece. One allocation may fail although memory is free in smaller pieces, so there are
 * several, each as large as can be had.
 *
 * Free slots are filled by the copy thread, some pages at a time, while steps go on: what they find free they take as well, and what they
 * do not find in VRAM is served as the mode says. A fill ends when no slot is free or everybody has been asked; from then on the policy
 * alone decides who stays. Memory is given back between steps: the next one begins with a table that no longer leads there. What the
 * policy then thinks best is moved to the arena before, within the device: so the return does not begin with a cold cache. */
#include <string.h>

#include "engine/memory/pager_priv.h"

/* Drivers slow down when a device is nearly full. */
#define SPARE_HEADROOM (512ull << 20)
/* Copies under way at a time: the other free slots are for what steps read. */
#define FILL_COPIES 1024u
/* Over a disk tier a fault may have to wait for them: their sources are units that it needs. */
#define FILL_COPIES_DISK 16u
/* Copies within the device that are waited for together. */
#define MOVES 64u

/* --- filling ----------------------------------------------------------------------------------------------------- */

bool pager_promote_page(pager *p, uint32_t pg)
{
    pager_page *g = &p->pages[pg];
    if (g->slot != PG_NONE || g->copying != PG_NONE || !g->src || !p->n_free_slots)
        return false;
    uint32_t slot = p->free_slot[p->n_free_slots - 1];
    pager_copy_job job = {
        .page = pg, .slot = slot, .dst = (void *)(uintptr_t)pager_slot_addr(p, slot), .src = g->src, .bytes = g->bytes};
    if (!pager_copier_push(&p->copier, &job, 1))
        return false;
    p->n_free_slots--;
    g->copying = slot;
    p->slot_page[slot] = pg;
    return true;
}

/* Experts of which nothing is known are spread evenly over the layers. */
static int hotter_first(const void *a, const void *b)
{
    const pager_hot *x = a, *y = b;
    if (x->heat != y->heat)
        return x->heat < y->heat ? 1 : -1;
    return x->at != y->at ? (x->at > y->at) - (x->at < y->at) : (x->x > y->x) - (x->x < y->x);
}

/* Returns how many experts are in the order: all, or those of which something is known. */
static uint32_t sort_by_heat(pager *p, bool all)
{
    uint32_t n = 0;
    for (uint32_t x = 0; x < p->n_experts; x++) {
        float heat = policy_heat(p->pol, x);
        if (heat > 0 || all)
            p->order[n++] = (pager_hot){heat, x - p->layers[p->expert_layer[x]].expert_base, x};
    }
    qsort(p->order, n, sizeof *p->order, hotter_first);
    return n;
}

/* At start the link is idle and nobody waits for a token: what earlier runs found hot is copied at full speed, then others as long as
 * there are slots: any expert that lies in VRAM is better than an empty slot, and those of which nothing is known leave first. From
 * disk only what is known to be hot. */
xd_status pager_fill_at_start(pager *p, const pager_options *opt, xd_err *err)
{
    p->order = malloc((p->n_experts + 1u) * sizeof *p->order);
    if (!p->order)
        return xd_fail(err, XD_NOMEM, 0, "pager: order of experts");
    uint32_t n = sort_by_heat(p, p->n_slots == p->n_pages || (p->cfg->pager.warm_start && !p->disk));
    if (p->disk) {
        XD_CLEANUP(xd_freep) uint32_t *order = malloc((n + 1u) * sizeof *order);
        if (!order)
            return xd_fail(err, XD_NOMEM, 0, "pager: order of experts");
        for (uint32_t i = 0; i < n; i++)
            order[i] = p->order[i].x;
        pager_disk_preload(p, order, n);
    }
    for (uint32_t i = 0; i < n && p->n_free_slots; i++) {
        uint32_t first = pager_expert_first_page(p, p->order[i].x);
        for (uint32_t k = 0; k < pager_expert_pages(p, p->order[i].x) && p->n_free_slots && p->pages[first + k].src;
             k++)
            while (!pager_promote_page(p, first + k)) { /* the queue is full */
                pager_copier_drain(&p->copier);
                pager_adopt_copies(p);
                if (opt->progress)
                    opt->progress(opt->progress_user, (double)p->n_slots_used / p->n_slots);
                if (p->pages[first + k].slot != PG_NONE || !p->n_free_slots)
                    break;
            }
    }
    pager_copier_drain(&p->copier);
    pager_adopt_copies(p);
    return XD_OK;
}

void pager_fill_begin(pager *p)
{
    p->n_order = sort_by_heat(p, true);
    p->order_at = 0;
    p->filling = p->n_slots_used < p->n_pages;
}

/* Queues what it can of one expert; false: not all that is missing and can be had. */
static bool promote_expert(pager *p, uint32_t x, uint32_t most, uint32_t *pending)
{
    uint32_t first = pager_expert_first_page(p, x);
    for (uint32_t pg = first; pg < first + pager_expert_pages(p, x); pg++) {
        const pager_page *g = &p->pages[pg];
        if (g->slot != PG_NONE || g->copying != PG_NONE || !g->src)
            continue;
        if (*pending >= most || !pager_promote_page(p, pg))
            return false;
        ++*pending;
    }
    return true;
}

void pager_fill_more(pager *p)
{
    if (!p->filling)
        return;
    uint32_t pending = pager_copier_pending(&p->copier), most = p->disk ? FILL_COPIES_DISK : FILL_COPIES;
    while (p->order_at < p->n_order && promote_expert(p, p->order[p->order_at].x, most, &pending))
        p->order_at++;
    if (pending)
        return;
    if (p->mode == PAGER_FULL) {
        p->filling = p->n_slots_used < p->n_pages;
        p->order_at = 0; /* copies that failed are made again */
    } else {
        p->filling = p->order_at < p->n_order && p->n_free_slots;
    }
}

/* --- memory beyond the arena ------------------------------------------------------------------------------------- */

/* Of a slot that does not lie in the arena. */
uint64_t pager_spare_addr(const pager *p, uint32_t slot)
{
    uint32_t lo = 0, hi = p->n_pieces;
    while (hi - lo > 1) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (p->pieces[mid].first_slot <= slot)
            lo = mid;
        else
            hi = mid;
    }
    return (uint64_t)(uintptr_t)p->pieces[lo].base + (slot - p->pieces[lo].first_slot) * p->slot_bytes;
}

static uint64_t spare_bytes(const pager *p)
{
    return (p->n_slots - p->n_arena_slots) * p->slot_bytes;
}

static uint64_t free_vram(const pager *p)
{
    if (p->unified) {
        uint64_t pretended = p->cfg->test.allow ? p->cfg->test.vram_free : 0;
        return pretended - XD_MIN(spare_bytes(p), pretended);
    }
    kern_dev_info info;
    p->dev->ops->info(p->dev, &info);
    return info.memory_free_bytes > SPARE_HEADROOM ? info.memory_free_bytes - SPARE_HEADROOM : 0;
}

/* Slots in all that the configuration allows. */
static uint32_t slots_allowed(const pager *p)
{
    double share = p->cfg->memory.expert_vram_share;
    if (share >= 1 || !p->n_pages)
        return p->n_pages;
    uint64_t n = (uint64_t)(share * (double)p->stats.expert_bytes_total) / p->slot_bytes;
    return XD_MAX((uint32_t)XD_MIN(n, p->n_pages), p->n_arena_slots);
}

static char *alloc_piece(pager *p, uint64_t bytes)
{
    void *piece = NULL;
    if (p->cfg->test.allow && p->cfg->test.vram_piece && bytes > p->cfg->test.vram_piece)
        return NULL;
    return p->dev->ops->alloc(p->dev, bytes, &piece) == KERN_OK ? piece : NULL;
}

/* What is free is asked for anew each time: others use the device, too. */
static void take_pieces(pager *p, uint32_t want)
{
    uint32_t n = want;
    while (want && p->n_pieces < PG_PIECES) {
        uint64_t room = free_vram(p) / p->slot_bytes; /* asked once: the next answer may be another */
        n = (uint32_t)XD_MIN(XD_MIN(n, want), room);
        if (!n)
            break;
        char *base = alloc_piece(p, n * p->slot_bytes);
        if (!base) {
            n /= 2;
            continue;
        }
        p->pieces[p->n_pieces++] = (pager_piece){base, p->n_slots};
        for (uint32_t s = p->n_slots + n; s-- > p->n_slots;)
            pager_put_free(p, s);
        p->n_slots += n;
        want -= n;
    }
}

static void slots_changed(pager *p)
{
    p->stats.slots_total = p->n_slots;
    p->stats.slots_spare = p->n_slots - p->n_arena_slots;
    policy_set_capacity(p->pol, p->n_slots);
    pager_set_view(p);
}

bool pager_take_spare(pager *p, xd_err *why)
{
    pthread_mutex_lock(&p->lock);
    uint32_t before = p->n_slots, allowed = slots_allowed(p);
    if (allowed > p->n_slots)
        take_pieces(p, allowed - p->n_slots);
    if (p->n_slots != before) {
        slots_changed(p);
        pager_fill_begin(p);
    }
    char a[32], b[32];
    bool all = p->n_slots == p->n_pages && !p->disk;
    if (!all && p->n_slots < allowed)
        (void)!xd_fail(why, XD_NOMEM, 0, "not all expert pages fit into VRAM: %s more are needed and %s are free",
                       xd_format_bytes(a, sizeof a, (p->n_pages - p->n_slots) * p->slot_bytes),
                       xd_format_bytes(b, sizeof b, free_vram(p)));
    else if (!all && allowed < p->n_pages)
        (void)!xd_fail(why, XD_UNSUPPORTED, 0, "memory.expert_vram_share forbids more experts in VRAM");
    else if (!all)
        (void)!xd_fail(why, XD_UNSUPPORTED, 0, "experts that lie on disk come into VRAM as they are used");
    pthread_mutex_unlock(&p->lock);
    return all;
}

static void drop_free_spare_slots(pager *p)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < p->n_free_slots; i++)
        if (p->free_slot[i] < p->n_arena_slots)
            p->free_slot[kept++] = p->free_slot[i];
    p->n_free_slots = kept;
}

/* Copies n pages to the arena slots that were found for them. */
static void move_pages(pager *p, const pager_staged *moves, uint32_t n)
{
    const kern_ops *ops = p->dev->ops;
    kern_status st = KERN_OK;
    for (uint32_t i = 0; i < n && !st; i++) {
        const pager_page *g = &p->pages[moves[i].page];
        st = ops->copy_async(p->dev, (void *)(uintptr_t)pager_slot_addr(p, moves[i].slot),
                             (const void *)(uintptr_t)pager_slot_addr(p, g->slot), g->bytes);
    }
    if (ops->copy_wait(p->dev) != KERN_OK)
        st = KERN_DEVICE;
    for (uint32_t i = 0; i < n; i++)
        if (st) {
            pager_put_free(p, moves[i].slot);
        } else {
            pager_evict_page(p, moves[i].page);
            pager_make_resident(p, moves[i].page, moves[i].slot);
            p->stats.evictions--;
        }
}

/* Of what is resident the policy names those that are worth least until the rest fits into the arena, and the rest is moved there. What
 * it does not name (static, floors), and what could not be moved, goes with the memory. */
static void keep_the_best(pager *p)
{
    policy_set_capacity(p->pol, p->n_arena_slots);
    for (uint32_t x; p->n_slots_used > p->n_arena_slots && (x = policy_victim(p->pol)) != POLICY_NONE;)
        pager_evict_expert(p, x);
    drop_free_spare_slots(p);
    pager_staged moves[MOVES];
    uint32_t n = 0;
    for (uint32_t s = p->n_arena_slots; s < p->n_slots && p->n_free_slots; s++) {
        if (p->slot_page[s] == PG_NONE)
            continue;
        moves[n++] = (pager_staged){p->slot_page[s], p->free_slot[--p->n_free_slots]};
        if (n == MOVES) {
            move_pages(p, moves, n);
            n = 0;
        }
    }
    if (n)
        move_pages(p, moves, n);
}

void pager_drop_spare(pager *p)
{
    p->filling = false;
    if (!p->n_pieces)
        return;
    pager_copier_cancel(&p->copier);
    pager_adopt_copies(p);
    keep_the_best(p);
    for (uint32_t s = p->n_arena_slots; s < p->n_slots; s++)
        if (p->slot_page[s] != PG_NONE)
            pager_evict_page(p, p->slot_page[s]);
    while (p->n_pieces)
        p->dev->ops->free(p->dev, p->pieces[--p->n_pieces].base);
    p->n_slots = p->n_arena_slots;
    slots_changed(p);
}

/* Is there, or may there be later, a page of the host tier at such an address? */
static bool host_between(const pager *p, uint64_t lo, uint64_t hi)
{
    for (uint32_t pg = 0; pg < p->n_pages; pg++)
        if (p->pages[pg].host_addr >= lo && p->pages[pg].host_addr < hi)
            return true;
    return p->disk && pager_disk_between(p, lo, hi);
}

/* Kernels tell VRAM from host memory by one range of addresses. With memory beyond the arena it spans all allocations between which no
 * page of the host happens to lie; slots outside are taken for host memory, which is right but slower. */
void pager_set_view(pager *p)
{
    uint64_t begin = (uint64_t)(uintptr_t)p->arena, end = begin + p->arena_bytes;
    for (uint32_t i = 0; i < p->n_pieces; i++) {
        uint32_t next = i + 1 < p->n_pieces ? p->pieces[i + 1].first_slot : p->n_slots;
        uint64_t lo = (uint64_t)(uintptr_t)p->pieces[i].base;
        uint64_t hi = lo + (next - p->pieces[i].first_slot) * p->slot_bytes;
        if (begin != end) {
            lo = XD_MIN(lo, begin);
            hi = XD_MAX(hi, end);
        }
        if (!host_between(p, lo, hi)) {
            begin = lo;
            end = hi;
        }
    }
    p->view.arena_begin = begin;
    p->view.arena_end = end;
    p->view.max_inserts = p->mode == PAGER_FULL ? p->offer_cap : XD_MIN(p->cfg->pager.max_inserts, p->offer_cap);
}
