/* placement.c - see placement.h. Arithmetic only: no device is opened. What is taken for granted of the machine is said: a GPU with the
 * memory of memory.vram_budget, or what this one shows. Only the workspace is left out, which depends on the device. */
#include "daemon/placement.h"

#include "daemon/facts.h"
#include "engine/cgroup.h"
#include "engine/core.h"

xd_status placement_open_model(const config *cfg, model **ret, xd_err *err)
{
    const model_options opt = {
        .path = cfg->model.path, .dtype = cfg->model.dtype, .skew = cfg->model.skew, .geometry_only = true};
    return model_open(&opt, ret, err);
}

static void assume(const config *cfg, placement *ret)
{
    int backend = cfg->engine.backend;
    bool sized = cfg->memory.vram_budget != CONF_AUTO_BYTES;
    char size[32];
    ret->ram_bytes = cgroup_ram_bytes();
    ret->on_cpu = backend == CONF_BACKEND_CPU || (backend == CONF_BACKEND_AUTO && !sized && !facts_count_gpus());
    ret->known = ret->on_cpu || sized;
    if (backend == CONF_BACKEND_CPU)
        snprintf(ret->assumed, sizeof ret->assumed, "on the CPU of this machine (engine.backend = cpu)");
    else if (ret->on_cpu)
        snprintf(
            ret->assumed, sizeof ret->assumed,
            "on the CPU of this machine, which shows no GPU; --memory.vram_budget=12GiB shows one with so much memory");
    else if (sized)
        snprintf(ret->assumed, sizeof ret->assumed, "on a GPU of whose memory expertd may use %s (memory.vram_budget)",
                 xd_format_bytes(size, sizeof size, cfg->memory.vram_budget));
    else
        snprintf(ret->assumed, sizeof ret->assumed,
                 "on a GPU of unknown memory: 'auto' is sized by what is free at the start; --memory.vram_budget=12GiB "
                 "shows it for so much");
}

void placement_of(const model *m, const config *cfg, placement *ret)
{
    const model_params *p = model_get_params(m);
    uint64_t experts = model_expert_bytes(m), trunk = model_trunk_bytes(m), vram = cfg->memory.vram_budget;
    *ret = (placement){0};
    assume(cfg, ret);
    kern_fmt kv_fmt = FMT_F16; /* where the configured one is not possible: what would be */
    (void)!core_kv_format(cfg, p, ret->on_cpu, &kv_fmt, &ret->problem); /* noted there */
    ret->kv_name = kern_fmt_get(kv_fmt).name;
    kv_options *ko = &ret->kv_opt;
    *ko = core_kv_options(cfg, m, core_max_tokens(cfg, p, ret->on_cpu));
    ko->fmt = kv_fmt;
    ret->states = ko->n_states * ko->state_bytes;
    ret->state_copies = kv_copies_bytes(ko);
    const uint64_t first = trunk + ret->states; /* what must be there */
    core_sizes z = {.room = ret->on_cpu || !ret->known ? UINT64_MAX
                            : vram > first             ? vram - first
                                                       : 0,
                    .ram_bytes = ret->ram_bytes,
                    .expert_bytes = experts,
                    .kv_opt = ko,
                    .max_seqs = cfg->engine.max_num_seqs,
                    .model_max_len = p->max_positions,
                    .want_len = cfg->model.max_model_len,
                    .want_kv = cfg->kv.kv_budget,
                    .swap_bytes = cfg->kv.swap_space,
                    .stages = !ret->on_cpu,
                    .want_arena = !ret->on_cpu              ? CONF_AUTO_BYTES
                                  : vram == CONF_AUTO_BYTES ? 0
                                                            : vram};
    /* Without a size of the device's memory there is none of the KV cache, unless it is given. */
    ret->kv_known = ret->known || cfg->kv.kv_budget != CONF_AUTO_BYTES;
    if (ret->kv_known && !ret->problem.status)
        (void)!core_size(&z, &ret->problem); /* noted there */
    if (ret->problem.status)
        ret->known = ret->kv_known = false;
    if (ret->kv_known) {
        ret->kv = z.n_blocks * kv_block_bytes(ko) + z.stage_bytes;
        ret->kv_blocks = z.n_blocks;
        ret->context = z.max_model_len;
        uint64_t most = (uint64_t)((double)experts * cfg->memory.expert_vram_share);
        ret->arena = ret->known ? XD_MIN(z.arena_bytes, most) : 0;
    }
    ret->host = XD_MIN(cfg->memory.host_budget, experts); /* auto is the largest number */
    ret->disk = experts - ret->host;
    kern_expert_geom geom;
    for (uint32_t l = 0; l < p->n_layers && !ret->problem.status; l++)
        (void)!pager_geometry(model_get_layer(m, l), p->d_model, cfg->memory.page_size, &geom, &ret->problem);
    if (cfg->memory.host_tier == CONF_TIER_IN_PLACE && !ret->problem.status && pager_check_in_place(m, &ret->problem))
        xd_wrap(&ret->problem, "memory.host_tier = in_place");
    if (ret->disk && !ret->problem.status)
        (void)!pager_check_budget(cfg, m, ret->host, &ret->problem); /* noted there */
}

uint64_t placement_ram_bytes(const placement *p, uint64_t trunk_bytes, uint64_t swap_bytes)
{
    return p->host + swap_bytes + p->state_copies + (p->on_cpu ? trunk_bytes + p->kv + p->states + p->arena : 0);
}
