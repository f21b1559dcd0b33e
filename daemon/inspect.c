/* inspect.c - `expertd inspect`: a model's geometry, and where its bytes would go under this configuration.
 *
 * Arithmetic only: nothing is allocated and no device is opened, so it runs on any machine. The engine's own plan at start is
 * what counts; it adds the workspace of the device. */
#include <jansson.h>
#include <string.h>

#include "daemon/daemon_priv.h"
#include "engine/model/model.h"

static void row_bytes(const char *name, uint64_t bytes, const char *note)
{
    char text[32];
    printf("  %-26s %12s  %s\n", name, xd_format_bytes(text, sizeof text, bytes), note);
}

int inspect_main(const cli *c, const config *cfg)
{
    xd_err err;
    XD_CLEANUP(model_freep) model *m = NULL;
    const model_options opt = {
        .path = cfg->model.path, .dtype = cfg->model.dtype, .skew = cfg->model.skew, .seed = cfg->model.seed};
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
    uint64_t kv_scalar = cfg->kv.kv_dtype == CONF_KV_F32 ? 4 : 2;
    uint64_t kv_token = (uint64_t)p->n_layers * 2 * p->n_kv_heads * p->head_dim * kv_scalar;
    uint32_t context = cfg->model.max_model_len ? cfg->model.max_model_len : p->max_positions;
    uint64_t kv_full = kv_token * context, vram = cfg->memory.vram_budget;
    uint64_t kv = cfg->kv.kv_budget == CONF_AUTO_BYTES ? kv_full : cfg->kv.kv_budget;
    bool bounded = vram != CONF_AUTO_BYTES;
    uint64_t cached = !bounded ? 0 : vram > trunk + kv ? XD_MIN(vram - trunk - kv, experts) : 0;
    double cached_pct = experts ? 100.0 * (double)cached / (double)experts : 0;
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
        if (bounded)
            json_object_set_new(o, "expert_bytes_in_vram", json_integer((json_int_t)cached));
        json_dumpf(o, stdout, JSON_INDENT(2));
        putchar('\n');
        json_decref(o);
        return 0;
    }
    char note[160];
    printf("%s: %s, %u layers (%u with experts), hidden %u, %u heads (%u KV) of %u, vocabulary %u, context %u\n",
           cfg->model.path, p->arch, p->n_layers, moe_layers, p->d_model, p->n_heads, p->n_kv_heads, p->head_dim,
           p->vocab, p->max_positions);
    printf("  experts: %llu in all, %u a layer, %u a token\n\n", (unsigned long long)expert_count, p->n_experts_max,
           p->top_k_max);
    row_bytes("trunk", trunk, "device memory: every token needs it");
    row_bytes("experts", experts, "host memory, read over the link; the hottest in device memory");
    row_bytes("largest expert", largest, "");
    row_bytes("expert bytes a token", token_experts, "what one token of one sequence reads");
    row_bytes("KV cache a token", kv_token, kv_scalar == 4 ? "f32" : "f16");
    snprintf(note, sizeof note, "%u tokens", context);
    row_bytes("KV cache, one full context", kv_full, note);
    if (bounded) {
        printf("\nmemory.vram_budget:\n");
        row_bytes("device memory", vram, "");
        if (vram < trunk + kv)
            printf("  too small: trunk and KV cache need %s\n", xd_format_bytes((char[32]){0}, 32, trunk + kv));
        snprintf(note, sizeof note, "%.0f %% of the experts, before workspace", cached_pct);
        row_bytes("for expert pages", cached, note);
    }
    printf(
        "\ntokens a second of one sequence if the link alone limits, nothing cached: %.1f at 51 GB/s, %.1f at 25, %.1f at 12\n",
        51e9 / (double)token_experts, 25e9 / (double)token_experts, 12e9 / (double)token_experts);
    return 0;
}
