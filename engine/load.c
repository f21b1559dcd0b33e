/* load.c - what the engine thread does before the first request: opens the model on its device (core.c), its words, scheduler and fallback, tests itself,
 * and tells the operator where the memory goes; and what clients are told of the model. */
#include <limits.h>
#include <string.h>

#include "config/log.h"
#include "engine/engine_priv.h"

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
    const model_tensor *head = model_lm_head(c->m);
    i->head_weights = (uint64_t)head->rows * head->cols;
    for (uint32_t l = 0; l < c->hp->n_layers; l++) {
        const model_layer *y = model_get_layer(c->m, l);
        const model_tensor *parts[] = {&y->q, &y->k, &y->v, &y->o, &y->router};
        for (size_t k = 0; k < XD_ARRAY_LEN(parts); k++)
            i->token_weights += (uint64_t)parts[k]->rows * parts[k]->cols;
        for (size_t k = 0; k < MODEL_DELTA_MATS; k++)
            i->token_weights += (uint64_t)y->delta.in[k].rows * y->delta.in[k].cols;
        i->token_weights +=
            (uint64_t)y->shortconv.in.rows * y->shortconv.in.cols + (uint64_t)y->ssm.in.rows * y->ssm.in.cols;
        i->token_weights += (y->halves ? 2ull : 3ull) * y->top_k * y->d_ff * c->hp->d_model;
    }
    i->matrix_tflops = c->info.matrix_tflops;
    i->memory_gbps = exec_probe_memory(c->x);
}

/* NULL without an error: for `ret_why`. A model without a tokenizer is served to clients that send token ids. One whose tokenizer is there but
 * cannot be read exactly is refused, since its text would be expected: unless the configuration asks for token ids alone. */
static xd_status open_tokenizer(engine *e, const char **ret_why, xd_err *err)
{
    uint32_t n;
    const model_file *files = model_files(e->c.m, &n);
    *ret_why = "the model is synthetic";
    if (n && files[0].anonymous)
        return XD_OK;
    *ret_why = "model.tokenizer = no";
    if (!e->cfg->model.tokenizer)
        return XD_OK;
    xd_err none = {0};
    xd_status st = words_open(e->c.m, &e->tok, &none);
    if (st && st != XD_NOT_FOUND) {
        *err = none;
        xd_wrap(err, "no tokenizer (model.tokenizer = no serves token ids alone)");
        return st;
    }
    *ret_why = "the model carries none"; /* the API says so, once; paths are not for its clients */
    if (st)
        xd_log_debug("no tokenizer: %s", none.msg);
    return XD_OK;
}

static xd_status load_tokenizer(engine *e, xd_err *err)
{
    const char *why;
    xd_status st = open_tokenizer(e, &why, err);
    if (st)
        return st;
    if (!e->tok) {
        snprintf(e->no_tok_why, sizeof e->no_tok_why, "%s", why);
        snprintf(e->no_words_why, sizeof e->no_words_why, "%s", why);
        return XD_OK;
    }
    xd_err none = {0};
    st = grammar_vocab_new(e->tok, e->c.hp->vocab, &e->words, &none);
    if (st && st != XD_UNSUPPORTED) {
        *err = none;
        return st;
    }
    snprintf(e->no_words_why, sizeof e->no_words_why, "%.120s", none.msg);
    tok_gguf g;
    if (model_get_vocabulary(e->c.m, &g)) {
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
static void log_memory(const engine *e, const pager_stats *ps)
{
    const core_plan *p = &e->c.plan;
    const bool paged = ps->disk_reader[0];
    char host[160], states[80], size[32];
    snprintf(host, sizeof host, "%s, %s", e->info.expert_formats,
             ps->in_place ? "in place from the model"
             : paged      ? "a pool over the page file"
                          : "a pool");
    snprintf(states, sizeof states, "of linear layers, f32, %u sequences", e->c.kv_opt.n_states);
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
                {"experts on disk", paged ? ps->disk_bytes : 0, e->cfg->memory.nvme_path},
                {"KV swap", p->kv_swap, ""},
                {"copies of states", p->state_copies, "of prompts' beginnings"}};
    xd_log_info("backend %s (%s): %s", e->c.backend, e->c.backend_why, e->c.info.name);
    xd_log_debug("kernels %s", e->c.info.rows);
    for (size_t i = 0; i < XD_ARRAY_LEN(rows); i++)
        if (rows[i].bytes)
            xd_log_info("memory: %-20s %12s%s%s", rows[i].what, xd_format_bytes(size, sizeof size, rows[i].bytes),
                        *rows[i].note ? "  " : "", rows[i].note);
    if (p->states && !p->state_copies)
        xd_log_warn(
            "no prompt's beginning is taken from the prefix cache: kv.state_space holds no copy of a state (%s)",
            xd_format_bytes(size, sizeof size, e->c.kv_opt.state_bytes));
}

/* From where experts are read, and who does. */
static void log_experts(const engine *e, const pager_stats *ps)
{
    const bool paged = ps->disk_reader[0];
    fallback_status fs;
    fallback_get_status(e->fallback, &fs);
    if (ps->not_in_place[0])
        xd_log_info("experts are not read in place: %s", ps->not_in_place);
    if (*e->cfg->memory.nvme_path && !paged)
        xd_log_warn("memory.nvme_path is not used: memory.host_budget holds all experts");
    if (!e->c.info.unified && !paged)
        xd_log_info("experts are read %s at %.1f GB/s",
                    ps->in_place ? "in place from the mapped model" : "from a pool in host memory", fs.healthy_gbps);
    if (!e->c.cpu)
        return;
    kern_dev_info cpu;
    e->c.cpu->ops->info(e->c.cpu, &cpu);
    xd_log_info("engine.deterministic = no: %s (%u threads) may compute a part of the experts that are not in VRAM",
                cpu.name, cpu.n_units);
}

static void log_limits(const engine *e)
{
    const uint32_t made_for = e->c.hp->max_positions, usual = XD_MIN(made_for, 4096u);
    xd_log_info("context up to %u tokens, %u sequences, %u tokens a step", e->c.max_model_len, e->c.max_seqs,
                e->c.max_tokens);
    const uint32_t original = e->c.hp->long_rope.beyond;
    if (original && core_context(e->cfg, e->c.hp) > original)
        xd_log_info(
            "longrope: the factors are those for more than %u tokens; model.max_model_len = %u gives the others",
            original, original);
    else if (original)
        xd_log_info("longrope: the factors are those for up to %u tokens, since model.max_model_len is not more",
                    original);
    if (e->c.max_model_len < usual && !e->cfg->model.max_model_len)
        xd_log_warn(
            "the KV cache holds %u tokens: longer prompts are refused, though this model takes %u; raise kv.kv_budget",
            e->c.max_model_len, made_for);
    if (e->c.max_model_len > made_for)
        xd_log_warn("model.max_model_len = %u is more than the %u tokens that this model was made for: answers may be "
                    "senseless beyond them",
                    e->c.max_model_len, made_for);
}

static void log_plan(const engine *e)
{
    pager_stats ps;
    pager_get_stats(e->c.pg, &ps);
    log_memory(e, &ps);
    log_experts(e, &ps);
    log_limits(e);
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

xd_status engine_load(engine *e, xd_err *err)
{
    xd_status st = core_open(&e->c, e->cfg, e->cfg->model.path, engine_set_progress, e, err);
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
                        .block_size = kv_whole_tokens(&c->kv_opt),
                        .max_seqs = c->max_seqs,
                        .max_tokens = c->max_tokens,
                        .max_rows = c->max_rows,
                        .chunk = c->chunk};
    if ((st = sched_new(&so, &e->sched, err)))
        return st;
    e->sampler = sampler_new(c->hp->vocab);
    e->run = calloc(c->max_seqs, sizeof *e->run);
    if (!e->sampler || !e->run)
        return xd_fail(err, XD_NOMEM, 0, "the sampler");
    if (e->cfg->engine.self_test) {
        engine_set_progress(e, 1, "self-test");
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
