/* fallback.c - samples for the state machine, and its decisions for the pager.
 *
 * What counts is the rate that the experts' kernels get: beside other users of the link it is not what a probe gets, which runs alone
 * on the device. Where decode steps read more over the link than they do otherwise, that rate is known: the bytes, over the time
 * beyond what steps of that batch take when the link is good (their base, which is learnt). In other steps bytes over time is only a
 * lower bound, low on a healthy link with few misses. So a high figure proves that the link is good and costs nothing; a low one
 * proves nothing, but when it falls sharply against its own recent level, a probe is made at once. So it is when a token is slow.
 * Otherwise the link is probed every probe_interval, and often while the state is not DIRECT. A probe is 32 MiB read between two
 * steps. */
#include "engine/fallback/fallback.h"

#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <string.h>

#include "engine/fallback/rate.h"

#define PASSIVE_NS          100000000u /* reading time that makes one passive sample */
#define SUSPECT_WAIT_NS     200000000u /* between probes while in doubt */
#define SLOW_TOKEN_PROBE_NS 50000000u  /* at most 2 % of the time goes into asking after slow tokens */
#define DROP_RATIO          0.6        /* a passive rate below this share of its recent level calls for a probe */
#define PASSIVE_GAIN        0.2
#define SYSFS_NS            5000000000u
#define START_PROBES        3
#define WORTH_TRYING        0.1 /* share of a step that what it misses takes on the link: sharing may gain something */
#define WORTH_STAYING       0.05

struct fallback {
    pager *pages;
    void (*on_change)(void *, const controller_change *);
    void (*on_path)(void *, const char *);
    void *user;
    char sysfs_root[256], pci_bus_id[32];
    controller ctl;
    bool watching, want_probe, cpu;
    uint64_t probe_interval_ns, last_probe_ns, last_sysfs_ns;
    uint64_t acc_bytes, acc_ns, n_probes;
    double passive_gbps; /* recent level of the lower bound */
    rate_meter rate;
    paths paths;            /* in place: while suspicious, since direct was left; others: since the last fallback */
    paths direct;           /* in state DIRECT: in place or shared */
    uint32_t batch;         /* of the last decode step */
    bool fell;              /* the pager was asked for another path */
    uint64_t load_since_ns; /* loading into VRAM since; 0: not under way */
    pthread_mutex_t lock;   /* status, force */
    fallback_status status;
    int force;
};

static uint64_t ns_of(double s)
{
    return (uint64_t)(s * 1e9);
}

static bool is_direct(const fallback *f)
{
    return f->ctl.state == FALLBACK_DIRECT || f->ctl.state == FALLBACK_SUSPECT;
}

static void configure(fallback *f, const config *cfg)
{
    controller_options o = {.enabled = cfg->fallback.enabled,
                            .healthy_gbps = f->ctl.opt.healthy_gbps,
                            .min_link_gbps = cfg->fallback.min_link_gbps,
                            .min_link_ratio = cfg->fallback.min_link_ratio,
                            .max_token_latency_ms = cfg->fallback.max_token_latency_ms,
                            .window_ns = ns_of(cfg->fallback.window_s),
                            .cooldown_ns = ns_of(cfg->fallback.cooldown_s),
                            .force = cfg->fallback.force};
    controller_configure(&f->ctl, &o);
    f->probe_interval_ns = ns_of(cfg->fallback.probe_interval_s);
    f->force = o.force;
}

static void publish(fallback *f, const controller_change *change)
{
    fallback_status *s = &f->status;
    s->state = f->ctl.state;
    s->watching = f->watching && f->ctl.opt.enabled;
    s->force = f->ctl.opt.force;
    s->probes = f->n_probes;
    s->healthy_gbps = f->ctl.opt.healthy_gbps;
    s->bad_below_gbps = s->watching ? controller_bad_below_gbps(&f->ctl.opt) : 0;
    s->pager_mode = pager_get_mode(f->pages);
    for (int i = 0; i < N_PATHS; i++) {
        const struct path_time *t = &(s->state == FALLBACK_DIRECT ? &f->direct : &f->paths)->time[i];
        s->token_ms[i] = t->n[batch_slot(f->batch)] ? t->ms[batch_slot(f->batch)] : 0;
    }
    if (change) {
        s->since_ns = change->now_ns;
        s->transitions++;
        s->entered[change->to]++;
        snprintf(s->reason, sizeof s->reason, "%s", change->reason);
    }
}

static void tell_path(fallback *f, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void tell_path(fallback *f, const char *fmt, ...)
{
    char text[320];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (f->on_path)
        f->on_path(f->user, text);
}

/* A part of the experts has no place in VRAM. */
static void tell_part(fallback *f, const char *why)
{
    pager_stats st;
    char spare[32];
    pager_get_stats(f->pages, &st);
    if (st.slots_spare)
        tell_path(
            f,
            "%s of free VRAM are taken: %.0f %% of the expert pages have a place there; others are copied in bulk "
            "before they are used (%.150s)",
            xd_format_bytes(spare, sizeof spare, st.slots_spare * st.slot_bytes),
            100 * (double)st.slots_total / (double)st.pages_total, why);
    else
        tell_path(f, "missing experts are copied in bulk before they are used (%.200s)", why);
}

/* Not everything fits: staged copies, or sharing with the CPU where there is not even room for them. */
static xd_status take_path(fallback *f, const char *why, xd_err *err)
{
    xd_err no_stage = {0};
    xd_status st = pager_set_mode(f->pages, PAGER_STAGED, &no_stage);
    f->paths.may[PATH_STAGED] = !st;
    f->paths.may[PATH_SHARED] = f->cpu && (!st || !pager_set_mode(f->pages, PAGER_SHARED, NULL));
    paths_begin(&f->paths, PATH_STAGED);
    if (!st)
        tell_part(f, why);
    else if (f->paths.may[PATH_SHARED])
        tell_path(f, "missing experts are shared by link and CPU (%.200s)", no_stage.msg);
    else
        *err = no_stage;
    return f->paths.may[PATH_SHARED] ? XD_OK : st;
}

/* What the state asks of the pager: everything in VRAM if it fits, else as much as fits and another path. A refusal is remembered, and asked
 * again only with the next change. */
static void apply(fallback *f)
{
    bool fall = f->ctl.state == FALLBACK_FALLBACK || f->ctl.state == FALLBACK_RECOVERING;
    if (fall == f->fell)
        return;
    f->fell = fall;
    xd_err err = {0}, no_room = {0};
    xd_status st = XD_OK;
    f->load_since_ns = 0;
    if (fall) {
        f->load_since_ns = xd_now_ns();
        bool all = pager_take_spare(f->pages, &no_room);
        st = all ? pager_set_mode(f->pages, PAGER_FULL, &err) : take_path(f, no_room.msg, &err);
        if (!all) {
            pager_stats ps;
            pager_get_stats(f->pages, &ps);
            if (!ps.filling)
                f->load_since_ns = 0;
        }
    } else {
        pager_give_back_spare(f->pages);
    }
    pthread_mutex_lock(&f->lock);
    f->status.full_load_ns = 0;
    snprintf(f->status.problem, sizeof f->status.problem, "%.255s", st ? err.msg : "");
    pthread_mutex_unlock(&f->lock);
}

static void feed(fallback *f, double gbps, double token_ms, uint32_t batch)
{
    controller_sample s = {.now_ns = xd_now_ns(), .link_gbps = gbps, .token_ms = token_ms, .batch = batch};
    controller_change change;
    bool changed = controller_feed(&f->ctl, &s, &change);
    if (changed && change.from == FALLBACK_DIRECT)
        f->paths.time[PATH_IN_PLACE] = (struct path_time){0};
    if (changed) {
        /* What was read before the change says nothing of the link after it: a few bytes of a bad time, read again after a pause, would
         * make the link suspect anew. */
        f->acc_bytes = f->acc_ns = 0;
        f->rate.bytes = f->rate.ns = 0;
        apply(f);
    }
    pthread_mutex_lock(&f->lock);
    if (gbps == gbps)
        f->status.link_gbps = gbps;
    publish(f, changed ? &change : NULL);
    pthread_mutex_unlock(&f->lock);
    if (changed && f->on_change)
        f->on_change(f->user, &change);
}

static void probe(fallback *f)
{
    double gbps, again = 0;
    f->want_probe = false;
    f->last_probe_ns = xd_now_ns();
    if (pager_probe_link(f->pages, &gbps, NULL) != XD_OK)
        return;
    /* An idle link sleeps in a lower generation until traffic wakes it: a bad figure after a pause is asked for once more. */
    double enough = is_direct(f) ? controller_good_above_gbps(&f->ctl.opt) : controller_back_above_gbps(&f->ctl);
    if (gbps < enough && pager_probe_link(f->pages, &again, NULL) != XD_OK)
        return;
    gbps = XD_MAX(gbps, again);
    if (gbps > f->ctl.opt.healthy_gbps)
        f->ctl.opt.healthy_gbps = gbps;
    f->last_probe_ns = xd_now_ns();
    f->n_probes++;
    feed(f, gbps, NAN, 0);
}

static void tell_choice(fallback *f, const paths *p, const path_verdict *v)
{
    static const char *const is[] = {"read in place after all", "copied in bulk", "shared by link and CPU"};
    static const char *const with[] = {"in place", "with bulk copies", "shared"};
    char batch[64] = "";
    bool final = v->best == PATH_IN_PLACE && p->base != PATH_IN_PLACE;
    if (!final && v->batch_to == 1)
        snprintf(batch, sizeof batch, "while one sequence runs, ");
    else if (!final)
        snprintf(batch, sizeof batch, "while %u to %u sequences run, ", v->batch_from, v->batch_to);
    tell_path(f, "%smissing experts are %s: a token took %.1f ms, %s %.1f ms", batch,
              v->best == PATH_IN_PLACE && !final ? "read in place" : is[v->best], v->best_ms, with[v->other],
              v->other_ms);
}

static void take_way(fallback *f, paths *p, expert_path now, uint32_t batch)
{
    static const int modes[] = {PAGER_DIRECT, PAGER_STAGED, PAGER_SHARED};
    path_verdict news;
    bool is_news;
    expert_path next = paths_next(p, now, batch, &is_news, &news);
    if (next != now && pager_set_mode(f->pages, modes[next], NULL)) {
        paths_refused(p, next);
        is_news = false;
    }
    if (is_news)
        tell_choice(f, p, &news);
}

/* The state stays what it is while the path changes: what tokens take decides. Where an operator holds the fallback, it does not go back
 * to reading in place. */
static void compare_paths(fallback *f, const fallback_step_info *s)
{
    paths *p = &f->paths;
    int mode = pager_get_mode(f->pages);
    double ms = (double)s->step_ns * 1e-6;
    if (f->ctl.state == FALLBACK_SUSPECT && mode == PAGER_DIRECT)
        paths_note(p, PATH_IN_PLACE, s->n_decode, ms);
    /* Beside the copies that fill VRAM, tokens tell too little. */
    if (is_direct(f) || f->load_since_ns || (mode != PAGER_STAGED && mode != PAGER_SHARED))
        return;
    expert_path now = mode == PAGER_SHARED ? PATH_SHARED : PATH_STAGED;
    p->may[PATH_IN_PLACE] = f->ctl.opt.force == CONF_FORCE_NONE;
    paths_note(p, now, s->n_decode, ms);
    take_way(f, p, now, s->n_decode);
}

/* Over a good link, too, tokens may come faster when the CPU takes a part of what is missing. A step that misses little gains nothing: it
 * reads in place, which is recorded as a whole. */
static void compare_direct(fallback *f, const fallback_step_info *s)
{
    int mode = pager_get_mode(f->pages);
    double ms = (double)s->step_ns * 1e-6, healthy = f->ctl.opt.healthy_gbps;
    if (f->ctl.state != FALLBACK_DIRECT || f->fell || (mode != PAGER_DIRECT && mode != PAGER_SHARED))
        return;
    double link_ms = healthy > 0 ? (double)pager_missed_bytes(f->pages) / healthy * 1e-6 : 0;
    if (mode == PAGER_DIRECT && link_ms < WORTH_TRYING * ms)
        return;
    if (mode == PAGER_SHARED && link_ms < WORTH_STAYING * f->direct.time[PATH_IN_PLACE].ms[batch_slot(s->n_decode)]) {
        (void)!pager_set_mode(f->pages, PAGER_DIRECT, NULL);
        return;
    }
    if (s->odd)
        return;
    expert_path now = mode == PAGER_SHARED ? PATH_SHARED : PATH_IN_PLACE;
    paths_note(&f->direct, now, s->n_decode, ms);
    take_way(f, &f->direct, now, s->n_decode);
}

/* Until then what is missing crosses the bad link as before, beside the copies: the end of that is worth a line. */
static void watch_load(fallback *f)
{
    pager_stats st;
    if (!f->load_since_ns)
        return;
    pager_get_stats(f->pages, &st);
    bool full = st.mode == PAGER_FULL;
    if (full ? st.slots_used < st.pages_total : st.filling)
        return;
    uint64_t ns = xd_now_ns() - f->load_since_ns;
    char size[32], of[32];
    f->load_since_ns = 0;
    xd_format_bytes(size, sizeof size, st.vram_bytes);
    if (full) {
        pthread_mutex_lock(&f->lock);
        f->status.full_load_ns = ns;
        pthread_mutex_unlock(&f->lock);
        tell_path(f, "all %s of experts lie in VRAM after %.2f s: steps no longer use the link", size,
                  (double)ns * 1e-9);
    } else if (st.slots_spare) {
        tell_path(f, "%s of the experts' %s lie in VRAM after %.2f s", size,
                  xd_format_bytes(of, sizeof of, st.expert_bytes_total), (double)ns * 1e-9);
    }
}

static uint64_t probe_wait_ns(const fallback *f)
{
    switch (f->ctl.state) {
    case FALLBACK_SUSPECT:
    case FALLBACK_RECOVERING: return XD_MIN((uint64_t)SUSPECT_WAIT_NS, f->ctl.opt.window_ns / 4);
    case FALLBACK_FALLBACK: return XD_MIN(f->probe_interval_ns, f->ctl.opt.cooldown_ns / 8);
    default: return f->probe_interval_ns;
    }
}

/* Takes a step's rate into account where it is known. */
static void weigh_step(fallback *f, const fallback_step_info *s, const pager_stats *st, uint64_t read_bytes)
{
    double bytes = (double)read_bytes, healthy = f->ctl.opt.healthy_gbps;
    if (st->step_link_ns) /* a simulated link says it itself */
        rate_note_exact(&f->rate, bytes, (double)st->step_link_ns);
    else if (s->decode_only && s->n_decode && s->link_ns && !s->link_mixed && !s->shared && healthy > 0)
        rate_note(&f->rate, healthy, s->n_decode, bytes, (double)s->link_ns);
}

/* While steps read in place: what theirs says of the link. A sample without a byte says nothing. */
static void listen(fallback *f, const fallback_step_info *s)
{
    pager_stats st;
    pager_get_stats(f->pages, &st);
    uint64_t bytes = st.step_bytes_host - XD_MIN(s->early_bytes, st.step_bytes_host);
    if (s->shared && !bytes) /* the CPU had all */
        return;
    weigh_step(f, s, &st, bytes);
    f->acc_bytes += bytes;
    f->acc_ns += XD_MAX(s->link_ns ? s->link_ns : s->step_ns, st.step_link_ns);
    if (f->acc_ns < PASSIVE_NS)
        return;
    double gbps = (double)f->acc_bytes / (double)f->acc_ns;
    bool sure = rate_take(&f->rate, (double)f->acc_bytes, &gbps);
    f->want_probe = f->want_probe || (!sure && f->acc_bytes && gbps < DROP_RATIO * f->passive_gbps);
    f->passive_gbps += PASSIVE_GAIN * (gbps - f->passive_gbps);
    f->acc_bytes = f->acc_ns = 0;
    if (sure || gbps >= controller_good_above_gbps(&f->ctl.opt)) {
        if (!f->want_probe)
            f->last_probe_ns = xd_now_ns(); /* as good as a probe */
        feed(f, gbps, NAN, 0);
    }
}

void fallback_step(fallback *f, const fallback_step_info *s)
{
    if (!f->watching)
        return;
    bool decode = s->decode_only && s->n_decode;
    if (decode && f->cpu) {
        f->batch = s->n_decode;
        compare_direct(f, s);
        pthread_mutex_lock(&f->lock);
        publish(f, NULL);
        pthread_mutex_unlock(&f->lock);
    }
    if (!f->ctl.opt.enabled)
        return;
    int mode = pager_get_mode(f->pages); /* in which the step ran */
    if (is_direct(f))
        listen(f, s);
    if (!decode)
        return;
    /* What a shared step takes says little of the link, and would be a wrong usual time for those that read in place. */
    double ms = s->shared && is_direct(f) ? NAN : (double)s->step_ns * 1e-6;
    controller_sample token = {.now_ns = xd_now_ns(), .link_gbps = NAN, .token_ms = ms, .batch = s->n_decode};
    if (controller_wants_rate(&f->ctl, &token) && token.now_ns - f->last_probe_ns >= SLOW_TOKEN_PROBE_NS)
        probe(f);
    f->batch = s->n_decode;
    if (pager_get_mode(f->pages) == mode)
        compare_paths(f, s);
    feed(f, NAN, ms, s->n_decode);
}

/* An operator's word may change the state, and in a fallback that has gone back to reading in place it takes the other path again. */
static void obey(fallback *f)
{
    if (f->ctl.opt.force == CONF_FORCE_FALLBACK && f->fell && pager_get_mode(f->pages) == PAGER_DIRECT) {
        f->fell = false;
        apply(f);
    }
    feed(f, NAN, NAN, 0);
}

void fallback_tick(fallback *f)
{
    uint64_t now = xd_now_ns();
    watch_load(f);
    pthread_mutex_lock(&f->lock);
    bool forced = f->ctl.opt.force != f->force;
    f->ctl.opt.force = f->force;
    pthread_mutex_unlock(&f->lock);
    if (forced)
        obey(f);
    if (!f->watching || !f->ctl.opt.enabled)
        return;
    if (now - f->last_sysfs_ns >= SYSFS_NS) {
        link_info li;
        link_read(f->sysfs_root, f->pci_bus_id, &li);
        f->last_sysfs_ns = now;
        pthread_mutex_lock(&f->lock);
        /* A link that trained down is a reason to look, not a proof: idle links do it on purpose. */
        if (li.known && f->status.link.known &&
            (li.width < f->status.link.width || li.speed_gts < f->status.link.speed_gts))
            f->want_probe = true;
        f->status.link = li;
        pthread_mutex_unlock(&f->lock);
    }
    if (f->want_probe || now - f->last_probe_ns >= probe_wait_ns(f))
        probe(f);
}

void fallback_force(fallback *f, int force)
{
    pthread_mutex_lock(&f->lock);
    f->force = force;
    pthread_mutex_unlock(&f->lock);
}

void fallback_reload(fallback *f, const config *cfg)
{
    xd_err err = {0};
    xd_status st = pager_reload(f->pages, cfg, &err); /* a simulated link may change too */
    pthread_mutex_lock(&f->lock);
    configure(f, cfg);
    f->watching = pager_has_link(f->pages);
    if (st)
        snprintf(f->status.problem, sizeof f->status.problem, "%.255s", err.msg);
    pthread_mutex_unlock(&f->lock);
    obey(f);
}

void fallback_get_status(fallback *f, fallback_status *ret)
{
    pthread_mutex_lock(&f->lock);
    *ret = f->status;
    pthread_mutex_unlock(&f->lock);
}

xd_status fallback_open(const fallback_options *opt, fallback **ret, xd_err *err)
{
    XD_CLEANUP(fallback_freep) fallback *f = calloc(1, sizeof *f);
    if (!f)
        return xd_fail(err, XD_NOMEM, 0, "fallback controller");
    pthread_mutex_init(&f->lock, NULL);
    f->pages = opt->pages;
    f->on_change = opt->on_change;
    f->on_path = opt->on_path;
    f->user = opt->user;
    f->cpu = opt->cpu;
    kern_dev_info info;
    opt->dev->ops->info(opt->dev, &info);
    snprintf(f->pci_bus_id, sizeof f->pci_bus_id, "%.31s", info.pci_bus_id);
    snprintf(f->sysfs_root, sizeof f->sysfs_root, "%s", opt->sysfs_root ? opt->sysfs_root : "/sys");
    f->watching = pager_has_link(f->pages);
    f->direct.may[PATH_IN_PLACE] = f->direct.may[PATH_SHARED] = true;
    paths_begin(&f->direct, PATH_IN_PLACE);
    paths_begin(&f->paths, PATH_STAGED);
    configure(f, opt->cfg);
    link_read(f->sysfs_root, f->pci_bus_id, &f->status.link);
    f->last_sysfs_ns = f->last_probe_ns = xd_now_ns();
    for (int i = 0; i < START_PROBES && f->watching; i++) { /* switched off, too: others ask for the rate */
        double gbps;
        xd_status st = pager_probe_link(f->pages, &gbps, err);
        if (st)
            return xd_wrap(err, "measuring the healthy link");
        f->ctl.opt.healthy_gbps = XD_MAX(f->ctl.opt.healthy_gbps, gbps);
        f->status.link_gbps = gbps;
    }
    publish(f, NULL);
    f->status.since_ns = xd_now_ns();
    if (f->ctl.opt.force != CONF_FORCE_NONE)
        feed(f, NAN, NAN, 0);
    *ret = XD_TAKE(f);
    return XD_OK;
}

void fallback_free(fallback *f)
{
    if (!f)
        return;
    pthread_mutex_destroy(&f->lock);
    free(f);
}
