/* pager_disk.c - the third tier: the host pool as a cache over a page file on NVMe.
 *
 * DESIGN. The pool has units of one expert each. An expert is on disk only, being loaded into a unit, or in a unit:
 *
 *     DISK --fault or prefetch--> LOADING --read and checked--> HOST --victim--> DISK
 *               ^--------------------'  read failed twice, or wrong bytes twice and the model no longer has the right ones
 *
 * Invariants
 *  1. Only the engine thread changes states, between the router and the experts of a layer, or between steps: the stream has ended
 *     whatever read the units before. A unit is handed to the disk only after its old pages lost their addresses.
 *  2. The experts that the layer at hand needs are touched in the host policy, and a victim is never one that was touched since the
 *     last require: kernels that were just launched keep their pages.
 *  3. A page in VRAM needs no unit; when VRAM gives it up after its unit went, it is on disk.
 *  4. A unit that a background copy reads from is not given away: the copies are waited for first.
 *  5. Failed loads change nothing but counters; the page is tried again when it is needed again. What the file damaged is made anew
 *     from the model (remake_blob) and is then like any other load.
 * Faults of one layer are pushed together and waited for together. Prefetch uses the same reader at lower priority and switches itself
 * off while more of its bytes are wasted than used. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <xxhash.h>

#include "config/log.h"
#include "engine/memory/pager_priv.h"

/* Prefetches not yet used: a few faults' worth. */
#define PREFETCH_MAX   32u
#define PREFETCH_SHARE 8u /* of the units at most */
#define JUDGE_EXPERTS  32u
#define OFF_STEPS      512u
#define RETRY_TOLD_NS  60000000000u

typedef struct pager_disk {
    page_file *file;
    disk_io *io;
    policy *pol;                                   /* time is one require */
    uint32_t n_units, n_free, n_loading, n_unused; /* n_unused: prefetched, loaded or loading, not needed so far */
    uint32_t *free_unit;
    uint32_t *expert_unit; /* [n_experts] PG_NONE: DISK */
    uint8_t *loading;      /* [n_experts] */
    uint8_t *prefetched;   /* [n_experts] by prediction, not needed so far */
    uint8_t *predicted;    /* [n_experts] for the next time its layer comes */
    int *failed;           /* [n_experts] errno of the last load, for the require that waits for it */
    uint8_t *lost;         /* [n_experts] the last load that ended had failed */
    uint8_t *remade;       /* [n_experts] the log has told that its blob was made anew */
    uint32_t n_lost;
    int lost_error;                                  /* of the latest of them */
    uint64_t retries, retries_told, retries_told_ns; /* reads that went well at the second try */
    uint64_t judged_useful, judged_wasted;
    uint32_t judged, off_steps;
} pager_disk;

static bool on_disk_only(const pager *p, uint32_t x)
{
    return p->disk->expert_unit[x] == PG_NONE;
}

static bool all_in_vram(const pager *p, uint32_t x)
{
    return p->expert_vram[x] == pager_expert_pages(p, x);
}

static uint64_t expert_bytes(const pager *p, uint32_t x)
{
    uint64_t n = 0;
    uint32_t first = pager_expert_first_page(p, x);
    for (uint32_t i = 0; i < pager_expert_pages(p, x); i++)
        n += p->pages[first + i].bytes;
    return n;
}

/* Gives (unit != PG_NONE) or takes the host addresses of an expert's pages. */
static void set_addresses(pager *p, uint32_t x, uint32_t unit)
{
    uint32_t first = pager_expert_first_page(p, x);
    uint64_t at = 0;
    for (uint32_t i = 0; i < pager_expert_pages(p, x); i++) {
        pager_page *g = &p->pages[first + i];
        g->src = unit == PG_NONE ? NULL : (char *)hostmem_ptr(p->host.pool, unit) + at;
        g->host_addr = unit == PG_NONE ? 0 : hostmem_addr(p->host.pool, unit) + at;
        if (g->slot == PG_NONE)
            pager_set_entry(p, first + i, g->host_addr);
        at += xd_align_up(g->bytes, 256);
    }
}

static void judge(pager_disk *d, uint64_t bytes, bool useful)
{
    *(useful ? &d->judged_useful : &d->judged_wasted) += bytes;
    if (++d->judged < JUDGE_EXPERTS)
        return;
    if (d->judged_wasted > d->judged_useful)
        d->off_steps = OFF_STEPS;
    d->judged = 0;
    d->judged_useful = d->judged_wasted = 0;
}

static void no_longer_waiting(pager *p, uint32_t x, bool useful)
{
    pager_disk *d = p->disk;
    if (!d->prefetched[x])
        return;
    d->prefetched[x] = 0;
    d->n_unused--;
    uint64_t bytes = expert_bytes(p, x);
    *(useful ? &p->stats.prefetched_useful_bytes : &p->stats.prefetched_wasted_bytes) += bytes;
    judge(d, bytes, useful);
}

static uint32_t take_unit(pager *p)
{
    pager_disk *d = p->disk;
    if (d->n_free)
        return d->free_unit[--d->n_free];
    uint32_t x = policy_victim(d->pol);
    if (x == POLICY_NONE)
        return PG_NONE;
    if (pager_copier_pending(&p->copier))
        pager_copier_drain(&p->copier);
    uint32_t unit = d->expert_unit[x];
    set_addresses(p, x, PG_NONE);
    d->expert_unit[x] = PG_NONE;
    policy_set_units(d->pol, x, 0);
    no_longer_waiting(p, x, false);
    return unit;
}

static const char *read_error(int e, char *buf, size_t cap)
{
    return e == EBADMSG
               ? "wrong bytes (checksum), which the model's files no longer hold either; delete the page file, it is made anew"
               : strerror_r(e, buf, cap);
}

/* Once for each expert: a disk that damages many pages should not fill the log, too. */
static void note_remade(pager *p, uint32_t x, const disk_request *r)
{
    pager_disk *d = p->disk;
    char why[96];
    p->stats.loads_repaired++;
    if (d->remade[x])
        return;
    d->remade[x] = 1;
    uint32_t l = p->expert_layer[x];
    xd_log_warn(
        "page file '%s': layer %u, expert %u gave wrong bytes (checksum): it was read from the model again, and %s%s",
        p->cfg->memory.nvme_path, l, x - p->layers[l].expert_base,
        r->not_rewritten ? "could not be written anew: " : "written anew",
        r->not_rewritten ? strerror_r(r->not_rewritten, why, sizeof why) : "");
}

/* A load has ended. What could not be read shows while it lasts; what could, at the second try, once a minute: a disk says so before it
 * dies. */
static void note_load(pager *p, uint32_t x, const disk_request *r)
{
    pager_disk *d = p->disk;
    char why[96];
    const char *path = p->cfg->memory.nvme_path;
    p->stats.io_errors += r->n_failed;
    p->stats.checksum_errors += r->n_wrong;
    p->stats.loads_failed += r->error != 0;
    if (r->remade)
        note_remade(p, x, r);
    bool lost = r->error != 0;
    if (lost != d->lost[x]) {
        d->lost[x] = lost;
        d->n_lost += lost ? 1 : -1u;
        d->lost_error = lost ? r->error : d->lost_error;
        if (d->n_lost)
            pager_trouble_begin(
                p, PAGER_TROUBLE_READ,
                "page file '%s': %u experts could not be read when they were last wanted (%s): requests that "
                "need them are answered with 503",
                path, d->n_lost, read_error(d->lost_error, why, sizeof why));
        else
            pager_trouble_end(p, PAGER_TROUBLE_READ,
                              "page file: every expert that could not be read has been read since");
    }
    if (lost || !r->met || r->remade)
        return;
    d->retries++;
    uint64_t now = xd_now_ns();
    if (d->retries_told && now - d->retries_told_ns < RETRY_TOLD_NS)
        return;
    xd_log_warn("page file '%s': %" PRIu64 " reads failed and went well when tried again, the last with: %s", path,
                d->retries - d->retries_told, read_error(r->met, why, sizeof why));
    d->retries_told = d->retries;
    d->retries_told_ns = now;
}

static void adopt_loads(pager *p)
{
    pager_disk *d = p->disk;
    disk_request r[32];
    uint32_t n;
    while ((n = disk_io_take(d->io, r, XD_ARRAY_LEN(r))))
        for (uint32_t i = 0; i < n; i++) {
            uint32_t x = r[i].blob, unit = d->expert_unit[x];
            d->loading[x] = 0;
            d->n_loading--;
            d->failed[x] = r[i].error;
            note_load(p, x, &r[i]);
            if (r[i].error) {
                d->expert_unit[x] = PG_NONE;
                d->free_unit[d->n_free++] = unit;
                if (d->prefetched[x]) {
                    d->prefetched[x] = 0;
                    d->n_unused--;
                }
                continue;
            }
            p->stats.bytes_disk += expert_bytes(p, x);
            set_addresses(p, x, unit);
            policy_set_units(d->pol, x, 1);
        }
}

static bool start_load(pager *p, uint32_t x, bool urgent)
{
    pager_disk *d = p->disk;
    uint32_t unit = take_unit(p);
    if (unit == PG_NONE)
        return false;
    if (!disk_io_push(d->io, x, hostmem_ptr(p->host.pool, unit), urgent)) {
        d->free_unit[d->n_free++] = unit;
        return false;
    }
    d->expert_unit[x] = unit;
    d->loading[x] = 1;
    d->failed[x] = 0;
    d->n_loading++;
    return true;
}

/* --- faults ------------------------------------------------------------------------------------------------------ */

static void note_prediction(pager *p, uint32_t x, bool touched)
{
    pager_disk *d = p->disk;
    if (d->predicted[x]) {
        d->predicted[x] = 0;
        p->stats.predictions++;
        p->stats.predictions_right += touched;
    }
}

static xd_status fail_load(const pager *p, uint32_t layer, uint32_t x, xd_err *err)
{
    int e = p->disk->failed[x];
    if (e == EBADMSG)
        return xd_fail(
            err, XD_UNAVAILABLE, 0,
            "layer %u, expert %u: the page file gave wrong bytes (checksum) and the model's files no longer hold "
            "the right ones: delete the page file '%s'; it is made anew",
            layer, x - p->layers[layer].expert_base, p->cfg->memory.nvme_path);
    return xd_fail(err, XD_UNAVAILABLE, e, "layer %u, expert %u: reading the page file", layer,
                   x - p->layers[layer].expert_base);
}

xd_status pager_disk_require(pager *p, uint32_t layer, uint32_t *touched, xd_err *err)
{
    pager_disk *d = p->disk;
    const pager_layer *y = &p->layers[layer];
    adopt_loads(p);
    policy_advance(d->pol);
    for (uint32_t e = 0; e < y->n_experts; e++) {
        uint32_t x = y->expert_base + e;
        note_prediction(p, x, touched[e] != 0);
        if (touched[e] && !all_in_vram(p, x))
            policy_touch(d->pol, x);
    }
    for (uint32_t e = 0; e < y->n_experts; e++) {
        uint32_t x = y->expert_base + e;
        if (!touched[e] || all_in_vram(p, x))
            continue;
        if (on_disk_only(p, x) || d->loading[x]) {
            p->stats.hits_disk += y->geom.pages - p->expert_vram[x];
            p->disk_in_pages += y->geom.pages - p->expert_vram[x];
        }
        no_longer_waiting(p, x, true);
        if (d->loading[x])
            disk_io_hurry(d->io, x);
        /* When prefetches hold all units, they have to arrive before one can be given away. */
        while (on_disk_only(p, x) && !start_load(p, x, true)) {
            if (!d->n_loading)
                return xd_fail(err, XD_NOMEM, 0,
                               "layer %u needs more experts at once than the host pool's %u: raise memory.host_budget",
                               layer, d->n_units);
            disk_io_wait(d->io);
            adopt_loads(p);
        }
    }
    xd_status st = XD_OK;
    for (uint32_t e = 0; e < y->n_experts; e++) {
        uint32_t x = y->expert_base + e;
        if (!touched[e] || all_in_vram(p, x))
            continue;
        while (d->loading[x]) {
            disk_io_wait(d->io);
            adopt_loads(p);
        }
        if (on_disk_only(p, x) && !st)
            st = fail_load(p, layer, x, err);
    }
    for (uint32_t e = 0; st && e < y->n_experts; e++) {
        uint32_t x = y->expert_base + e;
        touched[e] = touched[e] && on_disk_only(p, x) && !all_in_vram(p, x);
    }
    return st;
}

bool pager_wants_prediction(const pager *p)
{
    return p->disk && p->cfg->memory.nvme_prefetch && !p->disk->off_steps;
}

void pager_predict(pager *p, uint32_t layer, const uint32_t *expert_likely)
{
    pager_disk *d = p->disk;
    if (!d || !p->cfg->memory.nvme_prefetch || layer >= p->n_layers)
        return;
    pthread_mutex_lock(&p->lock);
    adopt_loads(p);
    const pager_layer *y = &p->layers[layer];
    uint32_t limit = XD_MAX(XD_MIN(PREFETCH_MAX, d->n_units / PREFETCH_SHARE), 1u);
    for (uint32_t e = 0; e < y->n_experts; e++) {
        uint32_t x = y->expert_base + e;
        if (!expert_likely[e])
            continue;
        d->predicted[x] = 1;
        if (d->off_steps || !on_disk_only(p, x) || all_in_vram(p, x) || d->n_unused >= limit)
            continue;
        if (!start_load(p, x, false))
            break;
        d->prefetched[x] = 1;
        d->n_unused++;
    }
    pthread_mutex_unlock(&p->lock);
}

void pager_disk_step(pager *p)
{
    adopt_loads(p);
    if (p->disk->off_steps)
        p->disk->off_steps--;
}

bool pager_disk_has(const pager *p, uint32_t x)
{
    return !on_disk_only(p, x) && !p->disk->loading[x];
}

bool pager_disk_between(const pager *p, uint64_t lo, uint64_t hi)
{
    for (uint32_t u = 0; u < p->disk->n_units; u++)
        if (hostmem_addr(p->host.pool, u) >= lo && hostmem_addr(p->host.pool, u) < hi)
            return true;
    return false;
}

const char *pager_disk_reader(const pager *p)
{
    return disk_io_name(p->disk->io);
}

uint64_t pager_disk_busy_ns(const pager *p)
{
    return disk_io_busy_ns(p->disk->io);
}

/* --- life -------------------------------------------------------------------------------------------------------- */

static void make_blob(void *user, uint32_t x, void *out)
{
    const pager *p = user;
    uint32_t l = p->expert_layer[x], e = x - p->layers[l].expert_base;
    const pager_page *pages = &p->pages[pager_expert_first_page(p, x)];
    char *at = out;
    for (uint32_t i = 0; i < p->layers[l].geom.pages; i++) {
        pager_read_page(p, l, e, i, at);
        at += xd_align_up(pages[i].bytes, 256);
    }
}

/* For a reading thread: what it looks at never changes. A model file that was written to or cut short since the start is left alone; it
 * has other bytes, or none, which would end the process. */
static bool remake_blob(void *user, uint32_t x, void *out)
{
    const pager *p = user;
    uint32_t n;
    const model_file *files = model_files(p->m, &n);
    for (uint32_t i = 0; i < n; i++)
        if (model_file_look(&files[i]) >= MODEL_FILE_WRITTEN)
            return false;
    make_blob(user, x, out);
    return true;
}

/* The same model cut in another way needs another file. */
static uint64_t file_fingerprint(const pager *p)
{
    uint64_t h = model_fingerprint(p->m);
    for (uint32_t l = 0; l < p->n_layers; l++) {
        const kern_expert_geom *g = &p->layers[l].geom;
        const uint64_t cut[] = {g->fmt[0],       g->fmt[1],       g->fmt[2],       g->pages,
                                g->page_rows[0], g->page_rows[1], g->page_rows[2], p->layers[l].n_experts};
        h = XXH3_64bits_withSeed(cut, sizeof cut, h);
    }
    return h;
}

static xd_status open_units(pager *p, uint64_t budget, uint64_t unit, int numa_node, xd_err *err)
{
    pager_disk *d = p->disk;
    d->n_units = (uint32_t)XD_MIN(budget / unit, p->n_experts); /* at least one layer's: see pager_check_budget() */
    hostmem_options ho = {.dev = p->dev,
                          .n_units = d->n_units,
                          .unit_bytes = unit,
                          .numa_node = numa_node,
                          .huge_pages = p->cfg->memory.huge_pages,
                          .what = "the expert pool over the NVMe tier",
                          .key = "memory.host_budget"};
    xd_status st = hostmem_open(&ho, &p->host.pool, err);
    if (st || (st = hostmem_register(p->host.pool, err)))
        return st;
    for (uint32_t u = d->n_units; u-- > 0;)
        d->free_unit[d->n_free++] = u;
    p->host.bytes = d->n_units * unit;
    p->host.probe_addr = hostmem_addr(p->host.pool, 0);
    p->host.probe_bytes = hostmem_run_bytes(p->host.pool);
    return XD_OK;
}

xd_status pager_disk_open(pager *p, const pager_options *opt, uint64_t budget, int numa_node, xd_err *err)
{
    pager_disk *d = p->disk = calloc(1, sizeof *d);
    size_t n = p->n_experts + 1u;
    if (!d)
        return xd_fail(err, XD_NOMEM, 0, "NVMe tier");
    d->free_unit = calloc(n, sizeof *d->free_unit);
    d->expert_unit = malloc(n * sizeof *d->expert_unit);
    d->loading = calloc(n, 1);
    d->prefetched = calloc(n, 1);
    d->predicted = calloc(n, 1);
    d->failed = calloc(n, sizeof *d->failed);
    d->lost = calloc(n, 1);
    d->remade = calloc(n, 1);
    XD_CLEANUP(xd_freep) uint32_t *counts = calloc(p->n_layers + 1u, sizeof *counts);
    if (!d->free_unit || !d->expert_unit || !d->loading || !d->prefetched || !d->predicted || !d->failed || !d->lost ||
        !d->remade || !counts)
        return xd_fail(err, XD_NOMEM, 0, "NVMe tier of %u experts", p->n_experts);
    uint64_t unit = 4096;
    for (uint32_t l = 0; l < p->n_layers; l++) {
        unit = XD_MAX(unit, xd_align_up(p->layers[l].blob_bytes, 4096));
        counts[l] = p->layers[l].n_experts;
    }
    for (uint32_t x = 0; x < p->n_experts; x++)
        d->expert_unit[x] = PG_NONE;
    policy_options po = {/* A pool that never changes would fault for ever. */
                         .kind = p->cfg->pager.eviction == CONF_EVICT_STATIC ? CONF_EVICT_LFRU : p->cfg->pager.eviction,
                         .n_layers = p->n_layers,
                         .layer_experts = counts,
                         .advances_a_step = p->n_layers};
    d->pol = policy_new(&po);
    if (!d->pol)
        return xd_fail(err, XD_NOMEM, 0, "NVMe tier: policy");
    xd_status st = open_units(p, budget, unit, numa_node, err);
    if (st)
        return st;
    page_file_options fo = {.path = p->cfg->memory.nvme_path,
                            .fingerprint = file_fingerprint(p),
                            .n_blobs = p->n_experts,
                            .blob_bytes = unit,
                            .make = make_blob,
                            .user = p,
                            .progress = opt->progress,
                            .progress_user = opt->progress_user};
    if ((st = page_file_open(&fo, &d->file, err)))
        return st;
    bool inject = p->cfg->test.allow;
    disk_io_options io = {.file = d->file,
                          .blob_bytes = unit,
                          .max_requests = d->n_units,
                          .checksums = p->cfg->memory.nvme_checksums,
                          .remake = remake_blob,
                          .user = p,
                          .gbps = inject ? p->cfg->test.disk_gbps : 0,
                          .error_rate = inject ? p->cfg->test.disk_error_rate : 0,
                          .loss_rate = inject ? p->cfg->test.page_loss_rate : 0,
                          .seed = p->cfg->test.seed};
    return disk_io_open(&io, &d->io, err);
}

/* Reads the hottest experts of earlier runs, while nobody waits. */
void pager_disk_preload(pager *p, const uint32_t *hottest_first, uint32_t n)
{
    pager_disk *d = p->disk;
    for (uint32_t i = 0; i < n && d->n_free; i++)
        if (on_disk_only(p, hottest_first[i]) && !start_load(p, hottest_first[i], true))
            break;
    while (d->n_loading) {
        disk_io_wait(d->io);
        adopt_loads(p);
    }
    for (uint32_t i = 0; i < n; i++)
        policy_set_heat(d->pol, hottest_first[i], policy_heat(p->pol, hottest_first[i]));
}

void pager_disk_close(pager *p)
{
    pager_disk *d = p->disk;
    if (!d)
        return;
    disk_io_free(d->io); /* before the memory it reads into goes */
    page_file_free(d->file);
    policy_free(d->pol);
    free(d->free_unit);
    free(d->expert_unit);
    free(d->loading);
    free(d->prefetched);
    free(d->predicted);
    free(d->failed);
    free(d->lost);
    free(d->remade);
    free(d);
    p->disk = NULL;
}
