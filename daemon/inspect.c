/* inspect.c - `expertd inspect`: a model's geometry, and where its bytes would go under this configuration.
 *
 * Arithmetic only: no device is opened and no weight is read or made, so it runs on any machine, for any other. What is taken for granted
 * of the machine is said first: a GPU with the memory of memory.vram_budget, or what this one shows. The sizes come from the engine's own
 * rule (core_size); only the workspace is left out, which depends on the device and is shown by the daemon's log at start. */
#include <jansson.h>
#include <string.h>

#include "daemon/daemon_priv.h"
#include "daemon/facts.h"
#include "engine/core.h"

static void row_bytes(const char *name, uint64_t bytes, const char *note)
{
    char text[32];
    printf("  %-26s %12s  %s\n", name, xd_format_bytes(text, sizeof text, bytes), note);
}

/* Where the bytes go. Experts in VRAM are counted in the host tier (or on disk) too: the cache holds copies. */
typedef struct placement {
    bool on_cpu, known; /* known: the size of the device's memory is given */
    char assumed[200];  /* about the machine */
    uint64_t ram_bytes; /* of this one */
    bool kv_known;
    uint64_t kv_block, kv_blocks, kv, arena, host, disk;
    uint32_t context;
    const char *kv_name;
    xd_err problem; /* status 0: none */
} placement;

static void assume(const config *cfg, placement *ret)
{
    int backend = cfg->engine.backend;
    bool sized = cfg->memory.vram_budget != CONF_AUTO_BYTES;
    char size[32];
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    ret->ram_bytes = pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : 0;
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

static void place(const model *m, const config *cfg, placement *ret)
{
    const model_params *p = model_get_params(m);
    uint64_t experts = model_expert_bytes(m), trunk = model_trunk_bytes(m), vram = cfg->memory.vram_budget;
    *ret = (placement){0};
    assume(cfg, ret);
    bool f32 = cfg->kv.kv_dtype == CONF_KV_F32 || (cfg->kv.kv_dtype == CONF_KV_AUTO && ret->on_cpu);
    ret->kv_name = f32 ? "f32" : "f16";
    const kv_options ko = {.n_layers = p->n_layers,
                           .n_kv_heads = p->n_kv_heads,
                           .head_dim = p->head_dim,
                           .block_size = cfg->kv.block_size,
                           .fmt = f32 ? FMT_F32 : FMT_F16};
    ret->kv_block = kv_block_bytes(&ko);
    core_sizes z = {.room = ret->on_cpu || !ret->known ? UINT64_MAX
                            : vram > trunk             ? vram - trunk
                                                       : 0,
                    .ram_bytes = ret->ram_bytes,
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
    /* Without a size of the device's memory there is none of the KV cache, unless it is given. */
    ret->kv_known = ret->known || cfg->kv.kv_budget != CONF_AUTO_BYTES;
    if (ret->kv_known && core_size(&z, &ret->problem) == XD_OK) {
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

static void row_auto(const char *name, const char *note)
{
    printf("  %-26s %12s  %s\n", name, "auto", note);
}

static void print_placement(const placement *p, const config *cfg, uint64_t trunk, uint64_t experts)
{
    char note[200];
    bool synthetic = !strncmp(cfg->model.path, "synthetic:", 10), pool = cfg->memory.host_tier == CONF_TIER_POOL;
    printf("\nunder this configuration, %s:\n", p->assumed);
    if (p->problem.status)
        printf("  cannot work: %s\n", p->problem.msg);
    const char *where = p->on_cpu ? "RAM" : "device memory";
    snprintf(note, sizeof note, "%s%s", where,
             p->on_cpu && !synthetic ? ", in place from the file where it can be" : "");
    row_bytes("trunk", trunk, note);
    snprintf(note, sizeof note, "%s, %s, %llu blocks of %u tokens, context up to %u", where, p->kv_name,
             (unsigned long long)p->kv_blocks, cfg->kv.block_size, p->context);
    if (p->kv_known)
        row_bytes("KV cache", p->kv, note);
    else
        row_auto("KV cache", "device memory, in blocks");
    snprintf(note, sizeof note, "%s, %.0f %% of the experts%s", p->on_cpu ? "RAM, as simulated device memory" : where,
             experts ? 100.0 * (double)p->arena / (double)experts : 0, p->on_cpu ? "" : ", less the workspace");
    if (!p->known)
        row_auto("cached experts", "device memory: what is left there");
    else if (!p->on_cpu || p->arena)
        row_bytes("cached experts", p->arena, note);
    snprintf(note, sizeof note, "RAM%s",
             p->disk     ? ", a pool over the page file"
             : pool      ? ", a pool"
             : synthetic ? ""
                         : ", in place from the file where that works");
    row_bytes("experts", p->host, note);
    if (p->disk)
        row_bytes("experts", p->disk, *cfg->memory.nvme_path ? cfg->memory.nvme_path : "nowhere");
    if (cfg->kv.swap_space)
        row_bytes("KV swap space", cfg->kv.swap_space, "RAM");
    uint64_t ram = p->host + cfg->kv.swap_space + (p->on_cpu ? trunk + p->kv + p->arena : 0);
    char size[32];
    snprintf(note, sizeof note, "this machine has %s%s", xd_format_bytes(size, sizeof size, p->ram_bytes),
             ram <= p->ram_bytes ? ""
             : p->disk           ? ": too little"
                                 : ": too little (memory.host_budget and memory.nvme_path leave a part on disk)");
    row_bytes("RAM in all", ram, note);
}

/* An upper bound that needs no measurement, for rates that are common. */
static void print_bounds(const placement *p, uint64_t token_bytes)
{
    static const struct {
        double gbps;
        const char *what;
    } links[] = {{51, " (PCIe 5.0 x16)"}, {25, " (4.0 x16)"}, {12, " (3.0 x16)"}},
      ram[] = {{200, ""}, {80, ""}, {40, ""}};
    printf("\ntokens a second of one sequence at most, if %s:",
           p->on_cpu ? "reading experts from RAM is all that takes time"
                     : "no expert is cached and the link is all that takes time");
    for (size_t i = 0; i < XD_ARRAY_LEN(links); i++) {
        double gbps = p->on_cpu ? ram[i].gbps : links[i].gbps, tps = gbps * 1e9 / (double)token_bytes;
        printf("%s %.*f at %.0f GB/s%s", i ? "," : "", tps < 100 ? 1 : 0, tps, gbps, p->on_cpu ? "" : links[i].what);
    }
    printf("\n`expertd bench` measures what this machine reaches\n");
}

static json_t *known(bool is_known, uint64_t v)
{
    return is_known ? json_integer((json_int_t)v) : json_null();
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
                            json_pack("{s:s, s:s, s:I, s:I, s:o, s:o, s:o, s:I, s:I, s:s}", "assumed", where.assumed,
                                      "device", where.on_cpu ? "cpu" : "gpu", "ram_bytes", (json_int_t)where.ram_bytes,
                                      "trunk_bytes", (json_int_t)trunk, "kv_bytes", known(where.kv_known, where.kv),
                                      "context", known(where.kv_known, where.context), "vram_expert_bytes",
                                      known(where.known, where.arena), "host_bytes", (json_int_t)where.host,
                                      "disk_bytes", (json_int_t)where.disk, "problem",
                                      where.problem.status ? where.problem.msg : ""));
        json_dumpf(o, stdout, JSON_INDENT(2));
        putchar('\n');
        json_decref(o);
        return 0;
    }
    printf("%s: %s, %u layers (%u with experts), hidden %u, %u heads (%u KV) of %u, vocabulary %u, context %u\n",
           cfg->model.path, p->arch, p->n_layers, moe_layers, p->d_model, p->n_heads, p->n_kv_heads, p->head_dim,
           p->vocab, p->max_positions);
    if (moe_layers)
        printf("  experts: %llu in all, %u a layer, %u a token and layer\n\n", (unsigned long long)expert_count,
               p->n_experts_max, p->top_k_max);
    else
        printf("  a dense model: the FFN of each layer counts as one expert, which every token needs\n\n");
    row_bytes("trunk", trunk, "attention, routers, embeddings: every token needs it");
    row_bytes("experts", experts, "a token needs those that are picked for it");
    row_bytes("largest expert", largest, "");
    row_bytes("expert bytes a token", token_experts, "what one token of one sequence reads");
    row_bytes("KV cache a token", kv_token, where.kv_name);
    print_placement(&where, cfg, trunk, experts);
    print_bounds(&where, token_experts);
    return 0;
}
