/* status.c - the engine seen from outside: metrics text and the JSON picture of /health and the status page.
 *
 * Reads only what other rooms offer to any thread (statistics of pager and KV cache) and counters; never waits for a step. */
#include <jansson.h>
#include <string.h>

#include "engine/engine_priv.h"

static const char *const phase_names[] = {"loading", "ready", "draining", "failed"};
static const char *const pager_modes[] = {"direct", "staged", "full", "shared"}; /* by PAGER_* */

/* Sequences run by the scheduler change under its own thread; these two are published under the lock. */
typedef struct seen {
    engine_phase phase;
    double fraction;
    uint32_t n_live, n_queued;
    char what[64];
    xd_err failure;
} seen;

static seen look(engine *e)
{
    seen s;
    pthread_mutex_lock(&e->lock);
    s.phase = e->phase;
    s.fraction = e->fraction;
    s.n_live = e->n_live;
    s.n_queued = e->n_queued;
    memcpy(s.what, e->what, sizeof s.what);
    s.failure = e->failure;
    pthread_mutex_unlock(&e->lock);
    return s;
}

static bool is_loaded(const seen *s)
{
    return s->phase == ENGINE_READY || s->phase == ENGINE_DRAINING;
}

static void gauge(xd_buf *out, const char *name, const char *help, double v)
{
    metrics_head(out, name, "gauge", help);
    metrics_sample(out, name, "", v);
}

static void counter(xd_buf *out, const char *name, const char *help, double v)
{
    metrics_head(out, name, "counter", help);
    metrics_sample(out, name, "", v);
}

static void by_tier(xd_buf *out, const char *name, const char *kind, const char *help, uint64_t vram, uint64_t host,
                    uint64_t disk)
{
    metrics_head(out, name, kind, help);
    metrics_sample(out, name, "tier=\"vram\"", (double)vram);
    metrics_sample(out, name, "tier=\"host\"", (double)host);
    metrics_sample(out, name, "tier=\"disk\"", (double)disk);
}

/* Host memory counts where steps use what lies there; blocks that only wait there are the swap space's. */
static void kv_by_tier(xd_buf *out, const char *name, const char *help, uint64_t vram, uint64_t host)
{
    metrics_head(out, name, "gauge", help);
    metrics_sample(out, name, "tier=\"vram\"", (double)vram);
    metrics_sample(out, name, "tier=\"host\"", (double)host);
}

static void pager_metrics(engine *e, xd_buf *out)
{
    pager_stats p;
    pager_peek_stats(e->c.pg, &p);
    by_tier(out, "expert_page_hits_total", "counter", "Expert pages that steps touched, by where they lay.",
            p.hits_vram, p.hits_host, p.hits_disk);
    by_tier(out, "expert_read_bytes_total", "counter", "Expert bytes that steps read, by where they lay.", p.bytes_vram,
            p.bytes_host, p.bytes_disk);
    counter(out, "expert_cpu_bytes_total", "Expert bytes in host memory that the CPU computed with.",
            (double)p.bytes_cpu);
    by_tier(out, "expert_resident_bytes", "gauge", "Expert bytes by where they lie now.", p.vram_bytes, p.host_bytes,
            p.disk_bytes);
    counter(out, "expert_pages_promoted_total", "Pages copied into VRAM in the background.", (double)p.promotions);
    counter(out, "expert_pages_filled_total", "Pages kept by the kernel that streamed them.", (double)p.fills);
    counter(out, "expert_pages_evicted_total", "Pages that gave up their VRAM slot.", (double)p.evictions);
    gauge(out, "expert_pages", "Expert pages of the model.", (double)p.pages_total);
    gauge(out, "host_tier_bytes", "Host memory that expert pages may take.", (double)p.host_capacity_bytes);
    gauge(out, "arena_slots", "Page slots in VRAM.", (double)p.slots_total);
    gauge(out, "arena_slots_spare", "Of the page slots in VRAM, those that a fallback took from what was free.",
          (double)p.slots_spare);
    gauge(out, "arena_slots_used", "Page slots in VRAM that hold a page.", (double)p.slots_used);
    counter(out, "prefetch_useful_bytes_total", "Bytes read ahead from disk and then used.",
            (double)p.prefetched_useful_bytes);
    counter(out, "prefetch_wasted_bytes_total", "Bytes read ahead from disk and never used.",
            (double)p.prefetched_wasted_bytes);
    counter(out, "prefetch_predictions_total", "Experts that were predicted for a layer, to be read ahead from disk.",
            (double)p.predictions);
    counter(out, "prefetch_predictions_right_total",
            "Experts predicted for reading ahead from disk that the layer then picked.", (double)p.predictions_right);
    counter(out, "staged_ahead_useful_bytes_total",
            "Expert bytes staged for a prompt's next layer while one computed, and then used.",
            (double)p.staged_ahead_useful_bytes);
    counter(out, "staged_ahead_wasted_bytes_total",
            "Expert bytes staged for a prompt's next layer while one computed, and not used.",
            (double)p.staged_ahead_wasted_bytes);
    counter(out, "disk_busy_seconds_total", "Time in which the page file was being read.",
            (double)p.disk_busy_ns * 1e-9);
    counter(out, "expert_io_errors_total",
            "Reads of the page file that failed, those that went well when tried again too.", (double)p.io_errors);
    counter(out, "expert_checksum_errors_total",
            "Reads of the page file that gave wrong bytes (checksum), those that went well when tried again too.",
            (double)p.checksum_errors);
    counter(out, "expert_loads_repaired_total",
            "Experts whose pages were damaged on disk: read from the model again, and written anew.",
            (double)p.loads_repaired);
    counter(out, "expert_loads_failed_total",
            "Experts that could not be read when tried again either: requests got 503.", (double)p.loads_failed);
    counter(out, "stats_save_errors_total", "Times that pager.stats_file could not be written.",
            (double)p.stats_errors);
    char trouble[PAGER_TROUBLE_BYTES];
    gauge(out, "trace_cut", "1 when recording pager.trace_file ended before the daemon does: see /health.",
          pager_get_trouble(e->c.pg, PAGER_TROUBLE_TRACE, trouble));
}

static void kv_metrics(engine *e, xd_buf *out)
{
    kv_stats k;
    kv_get_stats(e->c.kv, &k);
    kv_by_tier(
        out, "kv_blocks",
        "Blocks of a group of layers that steps can use, by where they lie: of kv.block_size tokens of the widest, of others up to four times as many.",
        k.tier[0].total, k.tier[1].total);
    kv_by_tier(out, "kv_blocks_used", "KV blocks that sequences own, by where they lie.", k.tier[0].used,
               k.tier[1].used);
    kv_by_tier(out, "kv_blocks_cached", "KV blocks without an owner whose content is kept, by where they lie.",
               k.tier[0].cached, k.tier[1].cached);
    counter(out, "prefix_cache_queries_tokens_total", "Prompt tokens looked up in the prefix cache.",
            (double)k.prefix_queries_tokens);
    counter(out, "prefix_cache_hits_tokens_total", "Prompt tokens found in the prefix cache.",
            (double)k.prefix_hits_tokens);
    counter(out, "kv_window_released_blocks_total",
            "KV blocks that sequences gave back while they went on, since their layers' window is past them.",
            (double)k.window_released);
    counter(out, "kv_evictions_total", "Cached KV blocks given to others.", (double)k.evictions);
    counter(out, "kv_swapped_out_blocks_total", "KV blocks moved to swap space.", (double)k.swapped_out);
    counter(out, "kv_swapped_in_blocks_total", "KV blocks moved back from swap space.", (double)k.swapped_in);
    gauge(out, "state_slots", "States of linear layers that device memory holds: one a running sequence.",
          k.states_total);
    gauge(out, "state_slots_used", "States of linear layers that sequences own.", k.states_used);
    gauge(out, "state_copies", "Copies of states that kv.state_space holds.", k.state_copies_total);
    gauge(out, "state_copies_used", "Copies of states, of prompts' beginnings and of sequences that wait.",
          k.state_copies_used);
    counter(out, "state_copies_kept_total", "States kept behind prompts' beginnings.", (double)k.states_kept);
    counter(out, "state_copies_found_total", "Prompts that began with a state that was kept.", (double)k.states_found);
    gauge(out, "kv_swap_blocks", "KV blocks that swap space holds.", (double)k.swap_blocks_total);
    gauge(out, "kv_swap_blocks_used", "KV blocks in swap space, kept prefixes included.", (double)k.swap_blocks_used);
}

static void plan_metrics(const engine *e, xd_buf *out)
{
    const core_plan *p = &e->c.plan;
    const struct {
        const char *label;
        uint64_t bytes;
    } rows[] = {{"part=\"trunk\"", p->trunk},
                {"part=\"workspace\"", p->workspace},
                {"part=\"kv\"", p->kv},
                {"part=\"states\"", p->states},
                {"part=\"arena\"", p->arena},
                {"part=\"kv_swap\"", p->kv_swap},
                {"part=\"state_copies\"", p->state_copies}};
    metrics_head(out, "memory_planned_bytes", "gauge", "Memory taken at the start, by what for.");
    for (size_t i = 0; i < XD_ARRAY_LEN(rows); i++)
        metrics_sample(out, "memory_planned_bytes", rows[i].label, (double)rows[i].bytes);
}

/* Without samples where there is no PCIe device. */
static void pcie_metrics(const link_info *l, xd_buf *out)
{
    const struct {
        const char *name, *kind, *help, *label;
        double value;
    } rows[] = {
        {"pcie_transfers_per_second", "gauge", "PCIe transfers a second and lane.", "when=\"now\"", l->speed_gts * 1e9},
        {"pcie_transfers_per_second", "", "", "when=\"best\"", l->best_speed_gts * 1e9},
        {"pcie_lanes", "gauge", "PCIe lanes.", "when=\"now\"", l->width},
        {"pcie_lanes", "", "", "when=\"best\"", l->best_width},
        {"pcie_errors_total", "counter", "PCIe errors that the device reported (AER).", "kind=\"correctable\"",
         (double)l->aer_correctable},
        {"pcie_errors_total", "", "", "kind=\"nonfatal\"", (double)l->aer_nonfatal},
        {"pcie_errors_total", "", "", "kind=\"fatal\"", (double)l->aer_fatal},
    };
    for (size_t i = 0; i < XD_ARRAY_LEN(rows); i++) {
        if (rows[i].kind[0])
            metrics_head(out, rows[i].name, rows[i].kind, rows[i].help);
        if (l->known)
            metrics_sample(out, rows[i].name, rows[i].label, rows[i].value);
    }
}

static void link_metrics(engine *e, xd_buf *out)
{
    fallback_status f;
    fallback_get_status(e->fallback, &f);
    metrics_head(out, "fallback_state", "gauge", "1 for the state that the fallback controller is in.");
    for (int i = FALLBACK_DIRECT; i <= FALLBACK_RECOVERING; i++) {
        char label[48];
        snprintf(label, sizeof label, "state=\"%s\"", fallback_state_name((fallback_state)i));
        metrics_sample(out, "fallback_state", label, f.state == (fallback_state)i);
    }
    metrics_head(out, "fallback_entered_total", "counter", "Times that each fallback state was entered.");
    for (int i = FALLBACK_DIRECT; i <= FALLBACK_RECOVERING; i++) {
        char label[48];
        snprintf(label, sizeof label, "state=\"%s\"", fallback_state_name((fallback_state)i));
        metrics_sample(out, "fallback_entered_total", label, (double)f.entered[i]);
    }
    metrics_head(out, "expert_path", "gauge", "1 for the way in which experts outside of VRAM are read now.");
    for (size_t i = 0; i < XD_ARRAY_LEN(pager_modes); i++) {
        char label[48];
        snprintf(label, sizeof label, "mode=\"%s\"", pager_modes[i]);
        metrics_sample(out, "expert_path", label, f.pager_mode == (int)i);
    }
    static const char *const ways[N_PATHS] = {"path=\"in_place\"", "path=\"staged\"", "path=\"shared\""};
    metrics_head(out, "fallback_token_seconds", "gauge",
                 "Time of a decode step on each path, as they were compared in this state; 0: not known.");
    for (int i = 0; i < N_PATHS; i++)
        metrics_sample(out, "fallback_token_seconds", ways[i], f.token_ms[i] * 1e-3);
    gauge(out, "fallback_forced", "1 while the state is forced: by fallback.force, a signal or /admin/fallback.",
          f.force != CONF_FORCE_NONE);
    gauge(out, "fallback_watching", "1 when there is a link that is watched.", f.watching);
    counter(out, "fallback_transitions_total", "Changes of the fallback state.", (double)f.transitions);
    counter(out, "link_probes_total", "Probes of the link's rate.", (double)f.probes);
    gauge(out, "link_read_bytes_per_second", "Rate at which kernels read host memory, as last known; 0: not yet.",
          f.link_gbps * 1e9);
    gauge(out, "link_healthy_bytes_per_second", "Rate at which kernels read host memory when all was well.",
          f.healthy_gbps * 1e9);
    gauge(out, "link_suspect_below_bytes_per_second", "A rate below this is suspect; 0: none is.",
          f.bad_below_gbps * 1e9);
    pcie_metrics(&f.link, out);
}

void engine_metrics(engine *e, xd_buf *out)
{
    seen s = look(e);
    metrics_head(out, "phase", "gauge", "1 for the phase the engine is in.");
    for (size_t i = 0; i < XD_ARRAY_LEN(phase_names); i++) {
        char label[40];
        snprintf(label, sizeof label, "phase=\"%s\"", phase_names[i]);
        metrics_sample(out, "phase", label, s.phase == (engine_phase)i);
    }
    gauge(out, "requests_running", "Requests that take part in steps.", s.n_live - s.n_queued);
    gauge(out, "requests_waiting", "Requests that wait for their first step.", s.n_queued);
    metrics_print(e->metrics, out);
    counter(out, "preemptions_total", "Sequences that gave up their KV blocks and went on later.",
            (double)atomic_load(&e->preemptions));
    if (!is_loaded(&s))
        return;
    char kinds[288];
    snprintf(kinds, sizeof kinds, "architecture=\"%s\",experts=\"%s\",trunk=\"%s\"", e->info.arch,
             e->info.expert_formats, e->info.trunk_formats);
    metrics_head(out, "model_info", "gauge", "Family of the model and formats of its weights, always 1.");
    metrics_sample(out, "model_info", kinds, 1);
    files_seen files;
    files_watch_peek(e->files, &files);
    gauge(out, "model_files_changed", "Files of the model that are no longer what was loaded: see /health.",
          files.n_changed);
    gauge(out, "model_files_look_age_seconds", "Time since the model's files were last looked at.",
          (double)files.age_ns * 1e-9);
    kv_metrics(e, out);
    pager_metrics(e, out);
    link_metrics(e, out);
    plan_metrics(e, out);
}

static json_t *plan_json(const core_plan *p)
{
    const struct {
        const char *what;
        uint64_t bytes;
    } rows[] = {{"device_total", p->device_total}, {"budget", p->budget},   {"trunk", p->trunk},
                {"workspace", p->workspace},       {"kv", p->kv},           {"arena", p->arena},
                {"host_experts", p->host_experts}, {"kv_swap", p->kv_swap}, {"states", p->states},
                {"state_copies", p->state_copies}};
    json_t *a = json_array();
    for (size_t i = 0; i < XD_ARRAY_LEN(rows); i++)
        json_array_append_new(a, json_pack("{s:s, s:I}", "what", rows[i].what, "bytes", (json_int_t)rows[i].bytes));
    return a;
}

static json_t *pager_json(engine *e)
{
    pager_stats p;
    pager_peek_stats(e->c.pg, &p);
    return json_pack("{s:I, s:I, s:I, s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:s}",
                     "pages_total", (json_int_t)p.pages_total, "slots_total", (json_int_t)p.slots_total, "slots_spare",
                     (json_int_t)p.slots_spare, "filling", p.filling, "slots_used", (json_int_t)p.slots_used,
                     "vram_bytes", (json_int_t)p.vram_bytes, "host_bytes", (json_int_t)p.host_bytes, "disk_bytes",
                     (json_int_t)p.disk_bytes, "hits_vram", (json_int_t)p.hits_vram, "hits_host",
                     (json_int_t)p.hits_host, "hits_disk", (json_int_t)p.hits_disk, "bytes_vram",
                     (json_int_t)p.bytes_vram, "bytes_host", (json_int_t)p.bytes_host, "bytes_disk",
                     (json_int_t)p.bytes_disk, "promotions", (json_int_t)p.promotions, "fills", (json_int_t)p.fills,
                     "evictions", (json_int_t)p.evictions, "in_place", p.in_place, "policy", p.policy);
}

static json_t *kv_json(engine *e)
{
    kv_stats k;
    kv_get_stats(e->c.kv, &k);
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:i, s:i, s:i}", "blocks_total",
                     (json_int_t)k.blocks_total, "blocks_used", (json_int_t)k.blocks_used, "blocks_cached",
                     (json_int_t)k.blocks_cached, "prefix_queries_tokens", (json_int_t)k.prefix_queries_tokens,
                     "prefix_hits_tokens", (json_int_t)k.prefix_hits_tokens, "swap_blocks_total",
                     (json_int_t)k.swap_blocks_total, "swap_blocks_used", (json_int_t)k.swap_blocks_used,
                     "states_total", (json_int_t)k.states_total, "states_used", (json_int_t)k.states_used,
                     "state_copies_total", (json_int_t)k.state_copies_total, "state_copies_used",
                     (json_int_t)k.state_copies_used, "window_released_blocks", (json_int_t)k.window_released,
                     "block_size", (int)e->c.kv_opt.block_size, "block_size_most", (int)kv_whole_tokens(&e->c.kv_opt),
                     "groups", (int)e->c.kv_opt.n_groups);
}

static json_t *fallback_json(engine *e)
{
    fallback_status f;
    fallback_get_status(e->fallback, &f);
    return json_pack(
        "{s:s, s:b, s:s, s:i, s:s, s:{s:f, s:f, s:f}, s:f, s:f, s:f, s:I, s:s, s:s, s:b, s:f, s:f, s:i, s:i, s:f}",
        "state", fallback_state_name(f.state), "watching", f.watching, "forced", conf_force_names[f.force],
        "pager_mode", f.pager_mode, "path", pager_modes[f.pager_mode], "token_ms", "in_place",
        f.token_ms[PATH_IN_PLACE], "staged", f.token_ms[PATH_STAGED], "shared", f.token_ms[PATH_SHARED], "link_gbps",
        f.link_gbps, "healthy_gbps", f.healthy_gbps, "bad_below_gbps", f.bad_below_gbps, "transitions",
        (json_int_t)f.transitions, "reason", f.reason, "problem", f.problem, "link_known", f.link.known, "link_gts",
        f.link.speed_gts, "link_best_gts", f.link.best_speed_gts, "link_width", (int)f.link.width, "link_best_width",
        (int)f.link.best_width, "full_load_s", (double)f.full_load_ns * 1e-9);
}

/* Tier and heat of every expert as text, one character each: small enough to be polled by a page. */
static json_t *map_json(engine *e)
{
    size_t n = (size_t)e->c.hp->n_layers * e->c.hp->n_experts_max;
    XD_CLEANUP(xd_freep) uint8_t *tier = malloc(n), *heat = malloc(n);
    if (!tier || !heat)
        return NULL;
    if (!pager_get_map(e->c.pg, tier, heat))
        return NULL;
    json_t *rows = json_array();
    for (uint32_t l = 0; l < e->c.hp->n_layers; l++) {
        json_t *row = json_array();
        for (uint32_t x = 0; x < model_get_layer(e->c.m, l)->n_experts; x++) {
            size_t at = (size_t)l * e->c.hp->n_experts_max + x;
            json_array_append_new(row, json_pack("[i, i]", (int)tier[at], (int)heat[at]));
        }
        json_array_append_new(rows, row);
    }
    return rows;
}

/* All that an operator should look at, in one text. */
static void set_warning(engine *e, const files_seen *files, json_t *o)
{
    XD_CLEANUP(xd_buf_free) xd_buf all = {0};
    char trouble[PAGER_TROUBLE_BYTES];
    if (*files->warning)
        xd_buf_puts(&all, files->warning);
    for (int i = 0; i < PAGER_TROUBLES; i++)
        if (pager_get_trouble(e->c.pg, i, trouble))
            xd_buf_printf(&all, "%s%s", all.len ? "; " : "", trouble);
    if (all.data)
        json_object_set_new(o, "warning", json_string(all.data));
}

double engine_get_link_gbps(engine *e)
{
    fallback_status f;
    fallback_get_status(e->fallback, &f);
    return f.healthy_gbps;
}

xd_status engine_status_json(engine *e, bool with_map, xd_buf *out, xd_err *err)
{
    seen s = look(e);
    json_t *o =
        json_pack("{s:s, s:f, s:s, s:i, s:i, s:I}", "phase", phase_names[s.phase], "progress", s.fraction, "doing",
                  s.phase == ENGINE_FAILED ? s.failure.msg : s.what, "requests_running", (int)(s.n_live - s.n_queued),
                  "requests_waiting", (int)s.n_queued, "heartbeat", (json_int_t)engine_heartbeat(e));
    if (o && is_loaded(&s)) {
        const engine_info *i = &e->info;
        files_seen files;
        files_watch_peek(e->files, &files);
        set_warning(e, &files, o);
        json_object_set_new(
            o, "files",
            json_pack("{s:i, s:f}", "changed", (int)files.n_changed, "looked_s_ago", (double)files.age_ns * 1e-9));
        json_object_set_new(o, "model",
                            json_pack("{s:s, s:s, s:s, s:s, s:s, s:i, s:i, s:i, s:i, s:i, s:b}", "id", i->model_id,
                                      "arch", i->arch, "dtype", i->dtype, "expert_formats", i->expert_formats,
                                      "trunk_formats", i->trunk_formats, "max_model_len", (int)i->max_model_len,
                                      "vocab", (int)i->vocab, "layers", (int)i->n_layers, "experts", (int)i->n_experts,
                                      "top_k", (int)i->top_k, "tokenizer", e->tok != NULL));
        json_object_set_new(o, "backend",
                            json_pack("{s:s, s:s, s:s, s:s}", "name", i->backend, "why", i->backend_why, "device",
                                      e->c.info.name, "kernels", e->c.info.rows));
        json_object_set_new(o, "plan", plan_json(&e->c.plan));
        json_object_set_new(o, "limits",
                            json_pack("{s:i, s:i, s:i}", "max_num_seqs", (int)e->c.max_seqs, "max_num_batched_tokens",
                                      (int)e->c.max_tokens, "max_queue", (int)e->max_queue));
        json_object_set_new(o, "kv", kv_json(e));
        json_object_set_new(o, "pager", pager_json(e));
        json_object_set_new(o, "fallback", fallback_json(e));
        json_object_set_new(o, "generated_tokens",
                            json_integer((json_int_t)metrics_get(e->metrics, METRIC_GENERATED_TOKENS)));
        json_object_set_new(o, "prompt_tokens",
                            json_integer((json_int_t)metrics_get(e->metrics, METRIC_PROMPT_TOKENS)));
        json_object_set_new(o, "preemptions", json_integer((json_int_t)atomic_load(&e->preemptions)));
        json_t *map = with_map ? map_json(e) : NULL;
        if (map)
            json_object_set_new(o, "map", map);
    }
    char *text = o ? json_dumps(o, JSON_COMPACT) : NULL;
    json_decref(o);
    if (text)
        xd_buf_puts(out, text);
    free(text);
    return text && !out->failed ? XD_OK : xd_fail(err, XD_NOMEM, 0, "the status text");
}
