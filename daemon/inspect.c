/* inspect.c - `expertd inspect`: a model's geometry, and where its bytes would go under this configuration.
 *
 * Arithmetic only: no device is opened and no weight is read or made, so it runs on any machine. The sizes come from the engine's own
 * rule (core_size); only the workspace is left out, which depends on the device and is shown by the daemon's log at start. */
#include <jansson.h>
#include <string.h>

#include "daemon/daemon_priv.h"
#include "engine/core.h"

static void row_bytes(const char *name, uint64_t bytes, const char *note)
{
    char text[32];
    printf("  %-26s %12s  %s\n", name, xd_format_bytes(text, sizeof text, bytes), note);
}

/* Where the bytes go. Experts in VRAM are counted in the host tier (or on disk) too: the cache holds copies. */
typedef struct placement {
    bool on_cpu, known; /* known: the size of the device's memory is given */
    uint64_t kv_block, kv_blocks, kv, arena, host, disk;
    uint32_t context;
    const char *kv_name;
    xd_err problem; /* status 0: none */
} placement;

static void place(const model *m, const config *cfg, placement *ret)
{
    const model_params *p = model_get_params(m);
    uint64_t experts = model_expert_bytes(m), trunk = model_trunk_bytes(m), vram = cfg->memory.vram_budget;
    *ret = (placement){.on_cpu = cfg->engine.backend == CONF_BACKEND_CPU};
    ret->known = ret->on_cpu || vram != CONF_AUTO_BYTES;
    bool f32 = cfg->kv.kv_dtype == CONF_KV_F32 || (cfg->kv.kv_dtype == CONF_KV_AUTO && ret->on_cpu);
    ret->kv_name = f32 ? "f32" : "f16";
    const kv_options ko = {.n_layers = p->n_layers,
                           .n_kv_heads = p->n_kv_heads,
                           .head_dim = p->head_dim,
                           .block_size = cfg->kv.block_size,
                           .fmt = f32 ? FMT_F32 : FMT_F16};
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    ret->kv_block = kv_block_bytes(&ko);
    core_sizes z = {.room = ret->on_cpu || !ret->known ? UINT64_MAX
                            : vram > trunk             ? vram - trunk
                                                       : 0,
                    .ram_bytes = (uint64_t)pages * (uint64_t)page,
                    .expert_bytes = experts,
                    .block_bytes = ret->kv_block,
                    .block_size = cfg->kv.block_size,
                    .max_seqs = cfg->engine.max_num_seqs,
                    .model_max_len = p->max_positions,
                    .want_len = cfg->model.max_model_len,
                    .want_kv = cfg->kv.kv_budget,
                    .swap_bytes = cfg->kv.swap_space,
                    .kv_opt = ret->on_cpu ? NULL : &ko,
                    .want_arena = !ret->on_cpu              ? CONF_AUTO_BYTES
                                  : vram == CONF_AUTO_BYTES ? 0
                                                            : vram};
    if (core_size(&z, &ret->problem) == XD_OK) {
        ret->kv = (uint64_t)z.n_blocks * z.block_bytes + z.stage_bytes;
        ret->kv_blocks = z.n_blocks;
        ret->context = z.max_model_len;
        uint64_t most = (uint64_t)((double)experts * cfg->memory.expert_vram_share);
        ret->arena = ret->known ? XD_MIN(z.arena_bytes, most) : 0;
    }
    ret->host = XD_MIN(cfg->memory.host_budget, experts); /* auto is the largest number */
    ret->disk = experts - ret->host;
    if (ret->disk && !*cfg->memory.nvme_path && !ret->problem.status)
        xd_fail(&ret->problem, XD_BAD_CONFIG, 0,
                "memory.host_budget holds only a part of the experts: set memory.nvme_path to a file on a fast disk");
}

static void print_placement(const placement *p, const config *cfg, uint64_t trunk, uint64_t experts)
{
    char note[200];
    printf("\nunder this configuration:\n");
    if (p->problem.status)
        printf("  cannot work: %s\n", p->problem.msg);
    const char *where = p->on_cpu ? "RAM" : "device memory";
    snprintf(note, sizeof note, "%s%s", where, p->on_cpu ? ", read in place from the file where it can be" : "");
    row_bytes("trunk", trunk, note);
    snprintf(note, sizeof note, "%s, %s, %llu blocks of %u tokens, context up to %u", where, p->kv_name,
             (unsigned long long)p->kv_blocks, cfg->kv.block_size, p->context);
    row_bytes("KV cache", p->kv, note);
    if (p->known) {
        snprintf(note, sizeof note, "%s, %.0f %% of the experts%s", p->on_cpu ? "RAM, as simulated VRAM" : where,
                 experts ? 100.0 * (double)p->arena / (double)experts : 0, p->on_cpu ? "" : ", less the workspace");
        row_bytes("cached experts", p->arena, note);
    } else
        printf("  %-26s %12s  %s\n", "cached experts", "auto",
               "device memory: what is free there; --memory.vram_budget=12GiB shows a size");
    snprintf(note, sizeof note, "host memory%s",
             p->disk                                       ? ", a pool over the page file"
             : cfg->memory.host_tier == CONF_TIER_POOL     ? ", a pool"
             : !strncmp(cfg->model.path, "synthetic:", 10) ? ""
                                                           : ", the model's file in place where that works");
    row_bytes("experts", p->host, note);
    if (p->disk)
        row_bytes("experts", p->disk, *cfg->memory.nvme_path ? cfg->memory.nvme_path : "nowhere");
    if (cfg->kv.swap_space)
        row_bytes("KV swap space", cfg->kv.swap_space, "host memory");
}

int inspect_main(const cli *c, const config *cfg)
{
    xd_err err;
    XD_CLEANUP(model_freep) model *m = NULL;
    const model_options opt = {
        .path = cfg->model.path, .dtype = cfg->model.dtype, .skew = cfg->model.skew, .geometry_only = true};
    if (model_open(&opt, &m, &err)) {
        fprintf(stderr, "expertd: %s\n", err.msg);
        return 1;
    }
    const model_params *p = model_get_params(m);
    uint64_t experts = model_expert_bytes(m), trunk = model_trunk_bytes(m), token_experts = 0, expert_count = 0,
             largest = 0;
    uint32_t moe_layers = 0;
    for (uint32_t l = 0; l < p->n_layers; l++) {
        const model_layer *layer = model_get_layer(m, l);
        uint64_t one = 0;
        for (int k = 0; k < MODEL_MATRICES; k++)
            one += layer->experts[k].bytes;
        token_experts += one * layer->top_k;
        expert_count += layer->n_experts;
        largest = XD_MAX(largest, one);
        moe_layers += layer->moe;
    }
    placement where;
    place(m, cfg, &where);
    uint64_t kv_token = where.kv_block / cfg->kv.block_size;
    if (c->json) {
        json_t *o =
            json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "path",
                      cfg->model.path, "architecture", p->arch, "layers", (json_int_t)p->n_layers, "moe_layers",
                      (json_int_t)moe_layers, "experts_per_layer", (json_int_t)p->n_experts_max, "experts_per_token",
                      (json_int_t)p->top_k_max, "d_model", (json_int_t)p->d_model, "heads", (json_int_t)p->n_heads,
                      "kv_heads", (json_int_t)p->n_kv_heads, "head_dim", (json_int_t)p->head_dim, "vocabulary",
                      (json_int_t)p->vocab, "context", (json_int_t)p->max_positions, "trunk_bytes", (json_int_t)trunk,
                      "expert_bytes", (json_int_t)experts, "expert_bytes_per_token", (json_int_t)token_experts,
                      "kv_bytes_per_token", (json_int_t)kv_token, "largest_expert_bytes", (json_int_t)largest);
        json_object_set_new(o, "placement",
                            json_pack("{s:I, s:I, s:I, s:I, s:I, s:s}", "trunk_bytes", (json_int_t)trunk, "kv_bytes",
                                      (json_int_t)where.kv, "host_bytes", (json_int_t)where.host, "disk_bytes",
                                      (json_int_t)where.disk, "context", (json_int_t)where.context, "problem",
                                      where.problem.status ? where.problem.msg : ""));
        if (where.known)
            json_object_set_new(json_object_get(o, "placement"), "vram_expert_bytes",
                                json_integer((json_int_t)where.arena));
        json_dumpf(o, stdout, JSON_INDENT(2));
        putchar('\n');
        json_decref(o);
        return 0;
    }
    printf("%s: %s, %u layers (%u with experts), hidden %u, %u heads (%u KV) of %u, vocabulary %u, context %u\n",
           cfg->model.path, p->arch, p->n_layers, moe_layers, p->d_model, p->n_heads, p->n_kv_heads, p->head_dim,
           p->vocab, p->max_positions);
    printf("  experts: %llu in all, %u a layer, %u a token\n\n", (unsigned long long)expert_count, p->n_experts_max,
           p->top_k_max);
    row_bytes("trunk", trunk, "device memory: every token needs it");
    row_bytes("experts", experts, "host memory, read over the link; the hottest in device memory");
    row_bytes("largest expert", largest, "");
    row_bytes("expert bytes a token", token_experts, "what one token of one sequence reads");
    row_bytes("KV cache a token", kv_token, where.kv_name);
    print_placement(&where, cfg, trunk, experts);
    printf(
        "\ntokens a second of one sequence if the link alone limits, nothing cached: %.1f at 51 GB/s, %.1f at 25, %.1f at 12\n",
        51e9 / (double)token_experts, 25e9 / (double)token_experts, 12e9 / (double)token_experts);
    return 0;
}
