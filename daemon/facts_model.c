/* facts_model.c - would this configuration serve? The model and the files that the daemon reads and writes, looked at with the very code
 * that serving uses, so that there is no second opinion. Nothing is written, and no weight is read but for the samples of the model's
 * fingerprint. */
#include <string.h>

#include "api/api.h"
#include "daemon/facts.h"
#include "daemon/placement.h"
#include "engine/core.h"
#include "engine/memory/trace.h"
#include "engine/words.h"

#define NOTE(out, err) snprintf(out, sizeof(out), "%s", (err).msg)

static void read_text(const model *m, const config *cfg, facts *f)
{
    xd_err err = {0};
    XD_CLEANUP(tok_freep) tokenizer *t = NULL;
    xd_status st = cfg->model.tokenizer ? words_open(m, &t, &err) : XD_OK;
    f->tokenizer_missing = st == XD_NOT_FOUND;
    if (st)
        NOTE(f->tokenizer_error, err);
    st = api_check_chat(cfg, model_dir(m), model_chat_template(m), &err);
    f->template_missing = st == XD_NOT_FOUND;
    f->template_configured = st == XD_BAD_CONFIG;
    if (st)
        NOTE(f->template_error, err);
}

static void read_placement(const model *m, const config *cfg, facts *f)
{
    placement p;
    placement_of(m, cfg, &p);
    if (p.problem.status || core_check_context(cfg, model_get_params(m), &p.problem))
        NOTE(f->place_error, p.problem);
    f->expert_bytes = model_expert_bytes(m);
    f->model_bytes = f->expert_bytes + model_trunk_bytes(m);
    f->paged = p.disk > 0;
    f->disk_bytes = p.disk ? f->expert_bytes : 0; /* the page file holds them all */
    f->ram_bytes = placement_ram_bytes(&p, model_trunk_bytes(m), cfg->kv.swap_space);
}

void facts_read_model(const config *cfg, facts *f)
{
    xd_err err = {0};
    XD_CLEANUP(model_freep) model *m = NULL;
    bool synthetic = !strncmp(cfg->model.path, "synthetic:", 10);
    if (core_check(cfg, &err))
        NOTE(f->engine_error, err);
    if (api_check_settings(cfg, &err))
        NOTE(f->settings_error, err);
    if (*cfg->pager.trace_file && trace_check_path(cfg->pager.trace_file, &err))
        NOTE(f->trace_error, err);
    if (!*cfg->model.path)
        return;
    if (placement_open_model(cfg, &m, &err)) {
        NOTE(f->model_error, err);
        f->model_unknown = err.status == XD_UNSUPPORTED;
        return;
    }
    f->model_open = true;
    if (pager_check_stats(cfg, model_fingerprint(m), &err))
        NOTE(f->stats_error, err);
    read_placement(m, cfg, f);
    if (!synthetic)
        read_text(m, cfg, f);
}
