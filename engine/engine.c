/* engine.c - the engine thread: loads, tests itself, serves, drains, ends.
 *
 * DESIGN. All state of scheduler, KV cache, pager and device belongs to the engine thread. Others talk to it by the inbox (a list
 * under `lock`, bounded by max_queue calls), by atomic flags in requests (cancelled) and by one job at a time (engine_call). It answers by
 * events in the requests' own queues. It sleeps on `wake` while nothing is to be done, turning once a second so that a watchdog
 * sees it alive and the link monitor gets its tick.
 *
 * States: LOADING -> READY -> DRAINING, and FAILED from any of them (load error, lost device). */
#include "engine/engine_priv.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "config/log.h"

static void set_progress(void *user, double fraction, const char *what)
{
    engine *e = user;
    pthread_mutex_lock(&e->lock);
    e->fraction = fraction;
    snprintf(e->what, sizeof e->what, "%s", what);
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
    atomic_fetch_add(&e->heartbeat, 1); /* loading counts as being alive */
}

void engine_set_failed(engine *e, const xd_err *error)
{
    pthread_mutex_lock(&e->lock);
    e->phase = ENGINE_FAILED;
    e->failure = *error;
    e->failed = true;
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
}

static void take_limits(engine *e, const config *cfg)
{
    e->max_queue = cfg->server.max_queue;
    e->max_decode_stall_ms = cfg->engine.max_decode_stall_ms;
    e->max_n = cfg->server.max_n;
    e->max_logprobs = cfg->server.max_logprobs;
    e->max_stop = cfg->server.max_stop;
}

static const char *last_part(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

/* model-Q8_0.gguf and model-Q8_0-00001-of-00002.gguf are the model model-Q8_0. */
static void drop_gguf_suffix(char *name)
{
    static const char part[] = "-00001-of-00002";
    size_t n = strlen(name);
    if (n <= 5 || strcasecmp(name + n - 5, ".gguf") != 0)
        return;
    name[n -= 5] = 0;
    unsigned no, count;
    int end = 0;
    char *tail = n < sizeof part ? NULL : name + n - (sizeof part - 1);
    if (tail && sscanf(tail, "-%5u-of-%5u%n", &no, &count, &end) == 2 && end == sizeof part - 1)
        *tail = 0;
}

/* The last part of the path; in Hugging Face's cache, .../models--ORG--NAME/snapshots/REVISION, that would be a hash: ORG/NAME then. */
static void name_of_path(const char *given, char *out, size_t cap)
{
    char path[PATH_MAX], whole[PATH_MAX];
    snprintf(path, sizeof path, "%s", given);
    for (size_t n = strlen(path); n > 1 && path[n - 1] == '/'; n--)
        path[n - 1] = 0;
    const char *last = last_part(path);
    if ((!strcmp(last, ".") || !strcmp(last, "..")) && realpath(path, whole))
        last = last_part(strcpy(path, whole));
    size_t parent = (size_t)(last - path) - (last > path); /* where the slash before it stands */
    snprintf(out, cap, "%s", last);
    drop_gguf_suffix(out);
    if (parent < 10 || strncmp(path + parent - 10, "/snapshots", 10) != 0)
        return;
    path[parent - 10] = 0;
    const char *repo = last_part(path);
    if (strncmp(repo, "models--", 8) != 0 || !repo[8])
        return;
    repo += 8;
    const char *dashes = strstr(repo, "--"); /* old models have no ORG */
    snprintf(out, cap, "%.*s%s%s", dashes ? (int)(dashes - repo) : 0, repo, dashes ? "/" : "",
             dashes ? dashes + 2 : repo);
}

static xd_status name_model(engine *e, xd_err *err)
{
    engine_info *i = &e->info;
    const char *at = e->cfg->model.served_model_name, *word;
    size_t n;
    if (!*at)
        return XD_OK; /* fill_info() takes the path */
    for (bool first = true; conf_next_word(&at, &word, &n); first = false) {
        if (first) {
            snprintf(i->model_id, sizeof i->model_id, "%.*s", (int)n, word);
            continue;
        }
        char **grown = reallocarray(e->aliases, i->n_aliases + 1, sizeof *grown);
        if (grown)
            e->aliases = grown;
        if (!grown || !(grown[i->n_aliases] = strndup(word, n)))
            return xd_fail(err, XD_NOMEM, 0, "the model's names");
        i->n_aliases++;
    }
    i->aliases = (const char *const *)e->aliases;
    return XD_OK;
}

static void fill_info(engine *e)
{
    const core *c = &e->c;
    engine_info *i = &e->info;
    const config *cfg = e->cfg;
    char name[sizeof i->model_id];
    name_of_path(cfg->model.path, name, sizeof name);
    if (!i->model_id[0])
        snprintf(i->model_id, sizeof i->model_id, "%s", name);
    snprintf(i->arch, sizeof i->arch, "%s", c->hp->arch);
    model_formats(c->m, true, i->expert_formats, sizeof i->expert_formats);
    model_formats(c->m, false, i->trunk_formats, sizeof i->trunk_formats);
    snprintf(i->dtype, sizeof i->dtype, "%.*s", (int)strcspn(i->expert_formats, " "), i->expert_formats);
    snprintf(i->backend, sizeof i->backend, "%s", c->backend);
    snprintf(i->backend_why, sizeof i->backend_why, "%s", c->backend_why);
    snprintf(i->model_dir, sizeof i->model_dir, "%s", model_dir(c->m));
    i->created_unix_s = (uint64_t)time(NULL);
    i->max_model_len = c->max_model_len;
    i->vocab = c->hp->vocab;
    i->n_layers = c->hp->n_layers;
    for (uint32_t l = 0; l < c->hp->n_layers; l++) {
        i->n_experts = XD_MAX(i->n_experts, model_get_layer(c->m, l)->n_experts);
        i->top_k = XD_MAX(i->top_k, model_get_layer(c->m, l)->top_k);
    }
    i->is_demo = strcmp(name, "demo") == 0 && strcmp(i->model_id, "demo") == 0;
}

static void fill_costs(engine *e)
{
    const core *c = &e->c;
    engine_info *i = &e->info;
    bool tied = model_lm_head(c->m)->data == model_embed(c->m)->data;
    uint64_t embed = model_embed(c->m)->bytes;
    snprintf(i->pci_bus_id, sizeof i->pci_bus_id, "%s", c->info.pci_bus_id);
    i->trunk_step_bytes = model_trunk_bytes(c->m) - (tied ? 0 : embed);
    i->kv_token_bytes = kv_block_bytes(&c->kv_opt) / c->kv_opt.block_size;
    const model_tensor *head = model_lm_head(c->m);
    i->head_weights = (uint64_t)head->rows * head->cols;
    for (uint32_t l = 0; l < c->hp->n_layers; l++) {
        const model_layer *y = model_get_layer(c->m, l);
        const model_tensor *parts[] = {&y->q, &y->k, &y->v, &y->o, &y->router};
        for (size_t k = 0; k < XD_ARRAY_LEN(parts); k++)
            i->token_weights += (uint64_t)parts[k]->rows * parts[k]->cols;
        for (size_t k = 0; k < MODEL_DELTA_MATS; k++)
            i->token_weights += (uint64_t)y->delta.in[k].rows * y->delta.in[k].cols;
        i->token_weights += 3ull * y->top_k * y->d_ff * c->hp->d_model;
    }
    i->matrix_tflops = c->info.matrix_tflops;
    i->memory_gbps = exec_probe_memory(c->x);
}

/* A model without a tokenizer is served to clients that send token ids. One whose tokenizer is there but cannot be read exactly is
 * refused, since its text would be expected: unless the configuration asks for token ids alone. */
static xd_status load_tokenizer(engine *e, xd_err *err)
{
    const char *why = "the model is synthetic";
    uint32_t n;
    const model_file *files = model_files(e->c.m, &n);
    bool synthetic = n && files[0].anonymous;
    xd_err none = {0};
    if (!synthetic && e->cfg->model.tokenizer) {
        xd_status st = words_open(e->c.m, &e->tok, &none);
        if (st && st != XD_NOT_FOUND) {
            *err = none;
            xd_wrap(err, "no tokenizer (model.tokenizer = no serves token ids alone)");
            return st;
        }
        why = "the model carries none"; /* the API says so, once; paths are not for its clients */
        if (st)
            xd_log_debug("no tokenizer: %s", none.msg);
    } else if (!synthetic)
        why = "model.tokenizer = no";
    if (!e->tok) {
        snprintf(e->no_tok_why, sizeof e->no_tok_why, "%s", why);
        snprintf(e->no_words_why, sizeof e->no_words_why, "%s", why);
    } else {
        xd_status st = grammar_vocab_new(e->tok, e->c.hp->vocab, &e->words, &none);
        if (st && st != XD_UNSUPPORTED) {
            *err = none;
            return st;
        }
        snprintf(e->no_words_why, sizeof e->no_words_why, "%.120s", none.msg);
    }
    tok_gguf g;
    if (e->tok && model_get_vocabulary(e->c.m, &g)) {
        e->info.chat_template = model_chat_template(e->c.m);
        e->info.bos_token = g.bos_id < 0 ? NULL : tok_token_text(e->tok, (uint32_t)g.bos_id);
        e->info.eos_token = g.eos_id < 0 ? NULL : tok_token_text(e->tok, (uint32_t)g.eos_id);
    }
    return XD_OK;
}

static void on_fallback_change(void *user, const controller_change *c)
{
    (void)user;
    int level = c->to == FALLBACK_SUSPECT || c->to == FALLBACK_FALLBACK ? CONF_LOG_WARN : CONF_LOG_INFO;
    xd_log(level, "link: %s -> %s: %s", fallback_state_name(c->from), fallback_state_name(c->to), c->reason);
}

static void on_fallback_path(void *user, const char *text)
{
    (void)user;
    xd_log_info("link: %s", text);
}

/* Where the memory goes, as a table for the operator. */
static void log_plan(const engine *e)
{
    const core_plan *p = &e->c.plan;
    pager_stats ps;
    fallback_status fs;
    pager_get_stats(e->c.pg, &ps);
    fallback_get_status(e->fallback, &fs);
    bool paged = ps.disk_reader[0];
    const char *file = e->cfg->memory.nvme_path;
    char host[160];
    snprintf(host, sizeof host, "%s, %s", e->info.expert_formats,
             ps.in_place ? "in place from the model"
             : paged     ? "a pool over the page file"
                         : "a pool");
    char states[80];
    snprintf(states, sizeof states, "of linear attention, f32, %u sequences", e->c.kv_opt.n_states);
    const struct {
        const char *what;
        uint64_t bytes;
        const char *note;
    } rows[] = {{"budget", p->budget, ""},
                {"trunk", p->trunk, e->info.trunk_formats},
                {"workspace", p->workspace, ""},
                {"KV cache", p->kv, kern_fmt_get(e->c.kv_opt.fmt).name},
                {"states", p->states, states},
                {"arena", p->arena, ""},
                {"experts on the host", p->host_experts, host},
                {"experts on disk", paged ? ps.disk_bytes : 0, file},
                {"KV swap", p->kv_swap, ""},
                {"copies of states", p->state_copies, "of prompts' beginnings"}};
    xd_log_info("backend %s (%s): %s", e->c.backend, e->c.backend_why, e->c.info.name);
    xd_log_debug("kernels %s", e->c.info.rows);
    for (size_t i = 0; i < XD_ARRAY_LEN(rows); i++) {
        char size[32];
        if (rows[i].bytes)
            xd_log_info("memory: %-20s %12s%s%s", rows[i].what, xd_format_bytes(size, sizeof size, rows[i].bytes),
                        *rows[i].note ? "  " : "", rows[i].note);
    }
    char one[32];
    if (p->states && !p->state_copies)
        xd_log_warn(
            "no prompt's beginning is taken from the prefix cache: kv.state_space holds no copy of a state (%s)",
            xd_format_bytes(one, sizeof one, e->c.kv_opt.state_bytes));
    if (ps.not_in_place[0])
        xd_log_info("experts are not read in place: %s", ps.not_in_place);
    if (*file && !paged)
        xd_log_warn("memory.nvme_path is not used: memory.host_budget holds all experts");
    if (!e->c.info.unified && !paged)
        xd_log_info("experts are read %s at %.1f GB/s",
                    ps.in_place ? "in place from the mapped model" : "from a pool in host memory", fs.healthy_gbps);
    if (e->c.cpu) {
        kern_dev_info cpu;
        e->c.cpu->ops->info(e->c.cpu, &cpu);
        xd_log_info("engine.deterministic = no: %s (%u threads) may compute a part of the experts that are not in VRAM",
                    cpu.name, cpu.n_units);
    }
    xd_log_info("context up to %u tokens, %u sequences, %u tokens a step", e->c.max_model_len, e->c.max_seqs,
                e->c.max_tokens);
    uint32_t usual = XD_MIN(e->c.hp->max_positions, 4096u);
    if (e->c.max_model_len < usual && !e->cfg->model.max_model_len)
        xd_log_warn(
            "the KV cache holds %u tokens: longer prompts are refused, though this model takes %u; raise kv.kv_budget",
            e->c.max_model_len, e->c.hp->max_positions);
    if (e->c.max_model_len > e->c.hp->max_positions)
        xd_log_warn("model.max_model_len = %u is more than the %u tokens that this model was made for: answers may be "
                    "senseless beyond them",
                    e->c.max_model_len, e->c.hp->max_positions);
}

/* What is known of a prompt's step before the first: the bytes of the experts that have no slot in VRAM, over the link's rate. */
static void know_pace(engine *e)
{
    pager_stats ps;
    fallback_status fs;
    pager_get_stats(e->c.pg, &ps);
    fallback_get_status(e->fallback, &fs);
    uint64_t slots = ps.slots_total * ps.page_bytes_max;
    double bytes = slots < ps.expert_bytes_total ? (double)(ps.expert_bytes_total - slots) : 0;
    pace_init(&e->pace, fs.healthy_gbps > 0 ? bytes / fs.healthy_gbps : 0);
}

static xd_status watch_files(engine *e, xd_err *err)
{
    static const uint64_t every_ns = 5000000000ull;
    uint32_t n;
    const model_file *files = model_files(e->c.m, &n);
    if (!n || files[0].anonymous)
        return XD_OK;
    xd_status st = files_check_loaded(files, n, model_file_look, err);
    return st ? st : files_watch_start(files, n, every_ns, model_file_look, &e->files, err);
}

static xd_status load(engine *e, xd_err *err)
{
    xd_status st = core_open(&e->c, e->cfg, e->cfg->model.path, set_progress, e, err);
    if (st)
        return st;
    if ((st = name_model(e, err)))
        return st;
    fill_info(e);
    fill_costs(e);
    if ((st = load_tokenizer(e, err)))
        return st;
    const core *c = &e->c;
    sched_options so = {.kv = c->kv,
                        .block_size = c->kv_opt.block_size,
                        .max_seqs = c->max_seqs,
                        .max_tokens = c->max_tokens,
                        .max_rows = c->max_rows};
    if ((st = sched_new(&so, &e->sched, err)))
        return st;
    e->sampler = sampler_new(c->hp->vocab);
    e->run = calloc(c->max_seqs, sizeof *e->run);
    if (!e->sampler || !e->run)
        return xd_fail(err, XD_NOMEM, 0, "the sampler");
    if (e->cfg->engine.self_test) {
        set_progress(e, 1, "self-test");
        if ((st = engine_self_test(e, err)))
            return st;
    }
    fallback_options fo = {.dev = c->dev,
                           .pages = c->pg,
                           .cpu = c->cpu != NULL,
                           .cfg = e->cfg,
                           .on_change = on_fallback_change,
                           .on_path = on_fallback_path,
                           .user = e};
    if ((st = fallback_open(&fo, &e->fallback, err)))
        return st;
    if ((st = watch_files(e, err)))
        return st;
    know_pace(e);
    pager_get_stats(c->pg, &e->seen_pager); /* what the self-test read is no step's */
    log_plan(e);
    return XD_OK;
}

/* An idle engine turns once a second: for the watchdog, and so that the link is looked at. In doubt, and while pages are brought into
 * VRAM, it looks more often. */
static uint64_t idle_ns(const engine *e)
{
    fallback_status s = {0};
    if (e->fallback)
        fallback_get_status(e->fallback, &s);
    return s.state != FALLBACK_DIRECT ? 100000000u : 1000000000u;
}

static struct timespec in_ns(uint64_t ns)
{
    uint64_t t = xd_now_ns() + ns;
    return (struct timespec){.tv_sec = (time_t)(t / 1000000000u), .tv_nsec = (long)(t % 1000000000u)};
}

/* Requests that come together should run together: where a prompt's step reads experts for a long time however short it is, a step that
 * would begin with nothing else running waits a hundredth of that time, counted from the arrival of the first, for those that come
 * behind it. 0: no waiting. */
static uint64_t gather_until(const engine *e)
{
    enum { MOST_NS = 5000000, LEAST_NS = 500000 };
    double ns = pace_fixed_ns(&e->pace) / 100;
    sched_stats ss;
    sched_get_stats(e->sched, &ss);
    if (!e->live || e->failed || ss.n_running || ns < LEAST_NS)
        return 0;
    uint64_t first = UINT64_MAX;
    for (const engine_request *r = e->live; r; r = r->next)
        first = XD_MIN(first, r->started ? 0 : r->submit_ns);
    return first + (uint64_t)XD_MIN(ns, (double)MOST_NS);
}

/* Takes what others left; sleeps while there is nothing, or until `until_ns` if only more requests could change anything. False: the
 * engine ends. */
static bool take_inbox(engine *e, uint64_t until_ns)
{
    uint64_t now = xd_now_ns(), idle = idle_ns(e);
    pthread_mutex_lock(&e->lock);
    if ((!e->live || until_ns > now) && (!e->inbox || e->held) && !e->stop && !e->job) {
        struct timespec until = in_ns(e->live ? until_ns - now : idle);
        pthread_cond_timedwait(&e->wake, &e->lock, &until);
        e->paused = true;
    }
    engine_job *job = e->job;
    bool go_on = !e->stop;
    if (!e->held || e->cancel_all || e->stop) {
        engine_request **end = &e->live;
        while (*end)
            end = &(*end)->next;
        *end = e->inbox;
        e->inbox = NULL;
        e->inbox_tail = &e->inbox;
    }
    pthread_mutex_unlock(&e->lock);
    if (job) {
        engine_notify(e); /* it may take its time */
        job->run(e, job->user);
        e->paused = true;
        pthread_mutex_lock(&e->lock);
        job->done = true;
        e->job = NULL;
        pthread_cond_broadcast(&e->changed);
        pthread_mutex_unlock(&e->lock);
    }
    return go_on;
}

/* New requests enter the scheduler here, on its own thread. */
static void admit_new(engine *e)
{
    for (engine_request *r = e->live, *next; r; r = next) {
        next = r->next;
        xd_err error = {0};
        for (uint32_t i = 0; !r->admitted && i < r->opt.n && !error.status; i++) {
            r->choices[i].seq.order = r->order + i;
            r->choices[i].seq.group = r->first->order + 1;
            if (sched_add(e->sched, &r->choices[i].seq, &error))
                break;
        }
        r->admitted = true;
        if (error.status)
            engine_end_request(e, r, &error);
    }
}

static void *engine_main(void *arg)
{
    engine *e = arg;
    xd_err error = {0};
    if (load(e, &error)) {
        engine_set_failed(e, &error);
    } else {
        pthread_mutex_lock(&e->lock);
        e->phase = e->phase == ENGINE_LOADING ? ENGINE_READY : e->phase;
        e->fraction = 1;
        snprintf(e->what, sizeof e->what, "ready");
        pthread_cond_broadcast(&e->changed);
        pthread_mutex_unlock(&e->lock);
    }
    uint64_t until = 0;
    while (take_inbox(e, until)) {
        atomic_fetch_add(&e->heartbeat, 1);
        if (e->failed) {
            engine_fail_all(e, &e->failure);
            continue;
        }
        admit_new(e);
        engine_reap(e);
        until = gather_until(e);
        if (until > xd_now_ns()) {
            engine_notify(e);
            continue;
        }
        if (e->live)
            engine_step(e);
        else
            pager_idle(e->c.pg);
        if (e->fallback)
            fallback_tick(e->fallback);
    }
    xd_err ending = {0};
    xd_fail(&ending, XD_UNAVAILABLE, 0, "the server is shutting down");
    engine_fail_all(e, &ending);
    return NULL;
}

xd_status engine_start(const config *cfg, engine **ret, xd_err *err)
{
    engine *e = calloc(1, sizeof *e);
    if (!e)
        return xd_fail(err, XD_NOMEM, 0, "the engine");
    e->cfg = cfg;
    e->inbox_tail = &e->inbox;
    take_limits(e, cfg);
    snprintf(e->what, sizeof e->what, "starting");
    pthread_mutex_init(&e->lock, NULL);
    xd_cond_init(&e->wake);
    xd_cond_init(&e->changed);
    e->metrics = metrics_new();
    int rc = e->metrics ? pthread_create(&e->thread, NULL, engine_main, e) : 0;
    if (!e->metrics || rc) {
        engine_free(e);
        return xd_fail(err, XD_NOMEM, rc, "starting the engine thread");
    }
    e->thread_started = true;
    *ret = e;
    return XD_OK;
}

xd_status engine_wait_ready(engine *e, void (*progress)(void *user, double fraction, const char *what), void *user,
                            xd_err *err)
{
    pthread_mutex_lock(&e->lock);
    while (e->phase == ENGINE_LOADING) {
        struct timespec until = in_ns(500000000);
        while (e->phase == ENGINE_LOADING && pthread_cond_timedwait(&e->changed, &e->lock, &until) == 0)
            ;
        double fraction = e->fraction;
        char what[sizeof e->what];
        memcpy(what, e->what, sizeof what);
        pthread_mutex_unlock(&e->lock);
        if (progress)
            progress(user, fraction, what);
        pthread_mutex_lock(&e->lock);
    }
    xd_status st = e->phase == ENGINE_FAILED ? e->failure.status : XD_OK;
    if (st && err)
        *err = e->failure;
    pthread_mutex_unlock(&e->lock);
    return st;
}

void engine_drain(engine *e, uint64_t deadline_ns)
{
    pthread_mutex_lock(&e->lock);
    if (e->phase == ENGINE_READY)
        e->phase = ENGINE_DRAINING;
    while (e->n_live && xd_now_ns() < deadline_ns) {
        struct timespec until = {.tv_sec = (time_t)(deadline_ns / 1000000000u),
                                 .tv_nsec = (long)(deadline_ns % 1000000000u)};
        pthread_cond_timedwait(&e->changed, &e->lock, &until);
    }
    e->cancel_all = true;
    while (e->n_live)
        pthread_cond_wait(&e->changed, &e->lock);
    pthread_mutex_unlock(&e->lock);
}

void engine_free(engine *e)
{
    if (!e)
        return;
    pthread_mutex_lock(&e->lock);
    e->stop = true;
    pthread_cond_broadcast(&e->wake);
    pthread_mutex_unlock(&e->lock);
    if (e->thread_started)
        pthread_join(e->thread, NULL);
    files_watch_free(e->files);
    fallback_free(e->fallback);
    sched_free(e->sched);
    sampler_free(e->sampler);
    free(e->run);
    grammar_vocab_free(e->words);
    tok_free(e->tok);
    core_close(&e->c);
    for (uint32_t i = 0; i < e->info.n_aliases; i++)
        free(e->aliases[i]);
    free(e->aliases);
    metrics_free(e->metrics);
    pthread_cond_destroy(&e->wake);
    pthread_cond_destroy(&e->changed);
    pthread_mutex_destroy(&e->lock);
    free(e);
}

engine_phase engine_get_phase(const engine *ce, double *ret_fraction, char *ret_what, size_t what_cap)
{
    engine *e = (engine *)ce; /* for its lock */
    pthread_mutex_lock(&e->lock);
    engine_phase p = e->phase;
    if (ret_fraction)
        *ret_fraction = e->fraction;
    if (ret_what && what_cap)
        snprintf(ret_what, what_cap, "%s", p == ENGINE_FAILED ? e->failure.msg : e->what);
    pthread_mutex_unlock(&e->lock);
    return p;
}

uint64_t engine_heartbeat(const engine *e)
{
    return atomic_load(&e->heartbeat);
}

const engine_info *engine_get_info(const engine *e)
{
    return &e->info;
}

const struct tokenizer *engine_get_tokenizer(const engine *e, const char **why)
{
    if (!e->tok && why)
        *why = e->no_tok_why;
    return e->tok;
}

void engine_count_queued(engine *e, engine_request *r)
{
    e->n_queued++;
    e->n_calls_queued += !r->first->n_call_queued++;
}

void engine_uncount_queued(engine *e, engine_request *r)
{
    e->n_queued--;
    e->n_calls_queued -= !--r->first->n_call_queued;
}

xd_status engine_submit(engine *e, const engine_request_options *opt, engine_request **ret, xd_err *err)
{
    static const char *const why_not[] = {
        [ENGINE_LOADING] = "the model is still loading", [ENGINE_DRAINING] = "the server is shutting down"};
    pthread_mutex_lock(&e->lock);
    engine_phase phase = e->phase;
    xd_err failure = e->failure;
    pthread_mutex_unlock(&e->lock);
    if (phase != ENGINE_READY) {
        metrics_add(e->metrics, METRIC_REJECTED_UNAVAILABLE, 1);
        return xd_fail(err, XD_UNAVAILABLE, 0, "%s", phase == ENGINE_FAILED ? failure.msg : why_not[phase]);
    }
    engine_request *r;
    xd_status st = request_new(e, opt, &r, err);
    if (st) {
        metrics_add(e->metrics, st == XD_NOMEM ? METRIC_REJECTED_NOMEM : METRIC_REJECTED_INVALID, 1);
        return st;
    }
    pthread_mutex_lock(&e->lock);
    if (e->phase != ENGINE_READY)
        st = xd_fail(err, XD_UNAVAILABLE, 0, "the server is shutting down");
    else if (!opt->with && e->n_calls_queued >= e->max_queue)
        st = xd_fail_field(
            err, XD_BUSY, NULL, "queue_full",
            "%u requests (of %u prompts) are waiting, as many as server.max_queue allows: try again later",
            e->n_calls_queued, e->n_queued);
    if (!st) {
        r->refs = 2;
        r->order = e->next_order;
        e->next_order += r->opt.n;
        *e->inbox_tail = r;
        e->inbox_tail = &r->next;
        e->n_live++;
        engine_count_queued(e, r);
        pthread_cond_signal(&e->wake);
    }
    pthread_mutex_unlock(&e->lock);
    if (st) {
        metrics_add(e->metrics, st == XD_BUSY ? METRIC_REJECTED_BUSY : METRIC_REJECTED_UNAVAILABLE, 1);
        request_unref(r);
        return st;
    }
    *ret = r;
    return XD_OK;
}

void engine_call(engine *e, void (*f)(engine *e, void *user), void *user)
{
    engine_job job = {.run = f, .user = user};
    pthread_mutex_lock(&e->lock);
    while (e->job)
        pthread_cond_wait(&e->changed, &e->lock);
    e->job = &job;
    pthread_cond_signal(&e->wake);
    while (!job.done)
        pthread_cond_wait(&e->changed, &e->lock);
    pthread_mutex_unlock(&e->lock);
}

typedef struct observer {
    void (*note)(void *user, const engine_step_facts *facts);
    void *user;
} observer;

static void set_observer(engine *e, void *user)
{
    const observer *o = user;
    e->observe = o->note;
    e->observe_user = o->user;
}

void engine_observe(engine *e, void (*note)(void *user, const engine_step_facts *facts), void *user)
{
    engine_call(e, set_observer, &(observer){note, user});
}

void engine_hold(engine *e, bool hold)
{
    pthread_mutex_lock(&e->lock);
    e->held = hold;
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->lock);
}

static void reload_fallback(engine *e, void *user)
{
    const config *cfg = user;
    fallback_status s;
    fallback_get_status(e->fallback, &s);
    if (s.force != cfg->fallback.force) /* by a signal, say: the file's word is the last one */
        xd_log_warn("reload: fallback.force = %s takes the place of '%s', which was forced",
                    conf_force_names[cfg->fallback.force], conf_force_names[s.force]);
    fallback_reload(e->fallback, cfg);
}

void engine_reload(engine *e, const config *cfg)
{
    pthread_mutex_lock(&e->lock);
    take_limits(e, cfg);
    bool ready = e->phase == ENGINE_READY || e->phase == ENGINE_DRAINING;
    pthread_mutex_unlock(&e->lock);
    if (ready && e->fallback)
        engine_call(e, reload_fallback, (void *)cfg);
}

xd_status engine_force_fallback(engine *e, int force, xd_err *err)
{
    if (engine_get_phase(e, NULL, NULL, 0) != ENGINE_READY || !e->fallback)
        return xd_fail(err, XD_UNAVAILABLE, 0, "the engine is not ready");
    if (force == CONF_FORCE_FALLBACK && !pager_has_link(e->c.pg))
        return xd_fail(err, XD_UNSUPPORTED, 0,
                       "there is no link that could be avoided: the CPU reads the experts itself");
    fallback_force(e->fallback, force);
    return XD_OK;
}
