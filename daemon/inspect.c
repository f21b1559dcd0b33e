/* inspect.c - `expertd inspect`: a model's geometry, and where its bytes would go under this configuration.
 *
 * Arithmetic only: no device is opened and no weight is read or made, so it runs on any machine, for any other. What is taken for granted
 * of the machine is said first: a GPU with the memory of memory.vram_budget, or what this one shows. The sizes come from the engine's own
 * rule (core_size); only the workspace is left out, which depends on the device and is shown by the daemon's log at start. */
#include <jansson.h>
#include <string.h>

#include "daemon/daemon_priv.h"
#include "daemon/placement.h"
#include "engine/core.h"

static void row_bytes(const char *name, uint64_t bytes, const char *note)
{
    char text[32];
    printf("  %-26s %12s  %s\n", name, xd_format_bytes(text, sizeof text, bytes), note);
}

static void row_auto(const char *name, const char *note)
{
    printf("  %-26s %12s  %s\n", name, "auto", note);
}

static void print_placement(const placement *p, const config *cfg, uint64_t trunk, uint64_t experts, bool repacks)
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
    const uint32_t least = p->kv_opt.block_size, most = kv_whole_tokens(&p->kv_opt);
    char tokens[32], layers[32] = "";
    snprintf(tokens, sizeof tokens, most > least ? "%u to %u" : "%u", least, most);
    if (p->kv_opt.n_groups > 1)
        snprintf(layers, sizeof layers, " and %u layer%s", p->kv_opt.n_layers, p->kv_opt.n_layers == 1 ? "" : "s");
    snprintf(note, sizeof note, "%s, %s, %llu blocks of %s tokens%s, context up to %u", where, p->kv_name,
             (unsigned long long)p->kv_blocks, tokens, layers, p->context);
    if (p->kv_known)
        row_bytes("KV cache", p->kv, note);
    else if (!p->problem.status)
        row_auto("KV cache", "device memory, in blocks");
    snprintf(note, sizeof note, "%s, f32, for %u sequences (engine.max_num_seqs)", where, cfg->engine.max_num_seqs);
    if (p->states)
        row_bytes("states", p->states, note);
    snprintf(note, sizeof note, "%s, %.0f %% of the experts%s", p->on_cpu ? "RAM, as simulated device memory" : where,
             experts ? 100.0 * (double)p->arena / (double)experts : 0, p->on_cpu ? "" : ", less the workspace");
    if (p->known && (!p->on_cpu || p->arena))
        row_bytes("cached experts", p->arena, note);
    else if (!p->known && !p->problem.status)
        row_auto("cached experts", "device memory: what is left there");
    snprintf(note, sizeof note, "RAM%s",
             p->disk     ? ", a pool over the page file"
             : pool      ? ", a pool"
             : repacks   ? ", a pool: the files' layout is not the kernels'"
             : synthetic ? ""
                         : ", in place from the file where that works");
    row_bytes("experts", p->host, note);
    if (p->disk)
        row_bytes("experts", p->disk, *cfg->memory.nvme_path ? cfg->memory.nvme_path : "nowhere");
    if (cfg->kv.swap_space)
        row_bytes("KV swap space", cfg->kv.swap_space, "RAM");
    if (p->state_copies)
        row_bytes("copies of states", p->state_copies, "RAM, at most (kv.state_space)");
    uint64_t ram = placement_ram_bytes(p, trunk, cfg->kv.swap_space);
    char size[32];
    snprintf(note, sizeof note, "%sthis machine has %s%s", p->on_cpu && !p->kv_known ? "without a KV cache; " : "",
             xd_format_bytes(size, sizeof size, p->ram_bytes),
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

typedef struct facts {
    const model *m;
    const model_params *p;
    uint64_t experts, trunk, largest; /* bytes; largest: expert */
    uint64_t token_experts, token_kv; /* bytes of a token */
    uint32_t context;                 /* tokens: model.max_model_len, or what the model was made for */
    uint64_t context_kv;              /* of so many tokens, in steps that leave room to others */
    uint32_t n_windowed;              /* layers that keep K and V of a window only */
    uint64_t n_experts;               /* where there is a choice */
    uint32_t n_moe_layers, n_dense_layers;
    placement where;
} facts;

static facts facts_of(const model *m, const config *cfg)
{
    facts f = {.m = m, .p = model_get_params(m), .experts = model_expert_bytes(m), .trunk = model_trunk_bytes(m)};
    for (uint32_t l = 0; l < f.p->n_layers; l++) {
        const model_layer *layer = model_get_layer(m, l);
        uint64_t one = 0;
        for (int k = 0; k < MODEL_MATRICES && layer->n_experts; k++)
            one += layer->experts[k].bytes;
        f.token_experts += one * layer->top_k;
        f.n_experts += layer->moe ? layer->n_experts : 0;
        f.largest = XD_MAX(f.largest, one);
        f.n_moe_layers += layer->moe;
        f.n_dense_layers += layer->n_experts && !layer->moe;
    }
    placement_of(m, cfg, &f.where);
    const kv_options *kv = &f.where.kv_opt;
    f.token_kv = kv_token_bytes(kv);
    f.context = core_context(cfg, f.p);
    f.context_kv = kv_block_bytes(kv) * kv_context_blocks(kv, f.context);
    for (uint32_t g = 0; g < kv->n_groups; g++)
        f.n_windowed += kv->window[g] ? kv->n_layers : 0;
    return f;
}

static json_t *placement_json(const placement *w, uint64_t trunk)
{
    return json_pack("{s:s, s:s, s:I, s:I, s:o, s:o, s:o, s:I, s:I, s:s}", "assumed", w->assumed, "device",
                     w->on_cpu ? "cpu" : "gpu", "ram_bytes", (json_int_t)w->ram_bytes, "trunk_bytes", (json_int_t)trunk,
                     "kv_bytes", known(w->kv_known, w->kv), "context", known(w->kv_known, w->context),
                     "vram_expert_bytes", known(w->known, w->arena), "host_bytes", (json_int_t)w->host, "disk_bytes",
                     (json_int_t)w->disk, "problem", w->problem.status ? w->problem.msg : "");
}

static void print_json(const facts *f, const config *cfg)
{
    const model_params *p = f->p;
    json_t *o =
        json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "path",
                  cfg->model.path, "architecture", p->arch, "layers", (json_int_t)p->n_layers, "moe_layers",
                  (json_int_t)f->n_moe_layers, "experts_per_layer", (json_int_t)p->n_experts_max, "experts_per_token",
                  (json_int_t)p->top_k_max, "d_model", (json_int_t)p->d_model, "heads", (json_int_t)p->n_heads,
                  "kv_heads", (json_int_t)p->n_kv_heads, "head_dim", (json_int_t)p->head_dim, "vocabulary",
                  (json_int_t)p->vocab, "context", (json_int_t)p->max_positions, "trunk_bytes", (json_int_t)f->trunk,
                  "expert_bytes", (json_int_t)f->experts, "expert_bytes_per_token", (json_int_t)f->token_experts,
                  "kv_bytes_per_token", (json_int_t)f->token_kv, "largest_expert_bytes", (json_int_t)f->largest);
    if (p->latent.kv_rank)
        json_object_set_new(o, "latent",
                            json_pack("{s:I, s:I, s:I, s:I, s:I}", "kv_rank", (json_int_t)p->latent.kv_rank, "q_rank",
                                      (json_int_t)p->latent.q_rank, "nope_dim", (json_int_t)p->latent.nope_dim,
                                      "rope_dim", (json_int_t)p->latent.rope_dim, "v_dim",
                                      (json_int_t)p->latent.v_dim));
    if (p->index.n_heads)
        json_object_set_new(o, "indexer",
                            json_pack("{s:I, s:I, s:I}", "heads", (json_int_t)p->index.n_heads, "dim",
                                      (json_int_t)p->index.dim, "positions", (json_int_t)p->index.top_k));
    char formats[96];
    json_object_set_new(o, "kv_bytes_of_context", json_integer((json_int_t)f->context_kv));
    json_object_set_new(o, "trunk_formats", json_string(model_formats(f->m, false, formats, sizeof formats)));
    json_object_set_new(o, "expert_formats", json_string(model_formats(f->m, true, formats, sizeof formats)));
    if (p->n_linear)
        json_object_set_new(o, "linear",
                            json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "layers", (json_int_t)p->n_linear,
                                      "key_heads", (json_int_t)p->delta.n_k_heads, "value_heads",
                                      (json_int_t)p->delta.n_v_heads, "key_dim", (json_int_t)p->delta.k_dim,
                                      "value_dim", (json_int_t)p->delta.v_dim, "convolution", (json_int_t)p->delta.conv,
                                      "state_bytes_per_sequence",
                                      (json_int_t)(f->where.states / cfg->engine.max_num_seqs)));
    if (p->n_nextn)
        json_object_set_new(o, "unused_layers", json_integer(p->n_nextn));
    json_object_set_new(o, "placement", placement_json(&f->where, f->trunk));
    json_dumpf(o, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(15));
    putchar('\n');
    json_decref(o);
}

static void print_geometry(const facts *f, const config *cfg)
{
    const model_params *p = f->p;
    printf("%s: %s, %u layers (%u with experts), hidden %u, %u heads (%u KV) of %u, vocabulary %u, context %u\n",
           cfg->model.path, p->arch, p->n_layers, f->n_moe_layers, p->d_model, p->n_heads, p->n_kv_heads, p->head_dim,
           p->vocab, p->max_positions);
    if (p->latent.kv_rank)
        printf("  latent attention: %u + %u numbers are kept of a token and layer, %u with K and V of every head\n",
               p->latent.kv_rank, p->latent.rope_dim,
               p->n_heads * (p->latent.nope_dim + p->latent.rope_dim + p->latent.v_dim));
    if (p->index.n_heads)
        printf("  an indexer of %u heads chooses the %u positions that attention sees; it keeps %u numbers more\n",
               p->index.n_heads, p->index.top_k, p->index.dim);
    if (p->n_linear) {
        char size[32];
        printf("  %s in %u layers: a state of %s a sequence, however long, and no KV cache\n",
               p->shortconv.channels ? "short convolutions"
               : p->ssm.n_heads      ? "Mamba2"
                                     : "linear attention",
               p->n_linear, xd_format_bytes(size, sizeof size, f->where.states / cfg->engine.max_num_seqs));
    }
    if (p->n_nextn)
        printf("  not used: %u layer%s behind the last, for guessing further tokens\n", p->n_nextn,
               p->n_nextn > 1 ? "s" : "");
    const uint32_t dense = f->n_dense_layers;
    if (f->n_moe_layers)
        printf("  experts: %llu in all, %u a layer, %u a token and layer\n", (unsigned long long)f->n_experts,
               p->n_experts_max, p->top_k_max);
    if (f->n_moe_layers && dense)
        printf("  the FFN of %u dense layer%s counts as one expert%s, which every token needs\n", dense,
               dense > 1 ? "s" : "", dense > 1 ? " each" : "");
    if (f->n_moe_layers)
        putchar('\n');
    else
        printf("  a dense model: the FFN of each layer counts as one expert, which every token needs\n\n");
}

static void print_sizes(const facts *f)
{
    char formats[96], note[160];
    snprintf(note, sizeof note, "%s; attention, routers, embeddings: every token needs it",
             model_formats(f->m, false, formats, sizeof formats));
    row_bytes("trunk", f->trunk, note);
    snprintf(note, sizeof note, "%s; a token needs those that are picked for it",
             model_formats(f->m, true, formats, sizeof formats));
    row_bytes("experts", f->experts, note);
    row_bytes("largest expert", f->largest, "");
    row_bytes("expert bytes a token", f->token_experts, "what one token of one sequence reads");
    row_bytes("KV cache a token", f->token_kv, f->where.kv_name);
    snprintf(note, sizeof note, "%u tokens: %u of %u layers keep those of their window and of a step", f->context,
             f->n_windowed, f->p->n_layers);
    if (f->n_windowed)
        row_bytes("KV cache of a context", f->context_kv, note);
}

int inspect_main(const cli *c, const config *cfg)
{
    xd_err err;
    XD_CLEANUP(model_freep) model *m = NULL;
    xd_status st = placement_open_model(cfg, &m, &err);
    if (st)
        return cli_fail(st, &err);
    const facts f = facts_of(m, cfg);
    if (c->json) {
        print_json(&f, cfg);
        return 0;
    }
    print_geometry(&f, cfg);
    print_sizes(&f);
    print_placement(&f.where, cfg, f.trunk, f.experts, model_repacks(m));
    if (f.token_experts) /* a model may have no FFN at all */
        print_bounds(&f.where, f.token_experts);
    return 0;
}
