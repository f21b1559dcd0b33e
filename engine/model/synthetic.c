/* synthetic.c - models without files, for measuring: known geometries, random weights made in place in seconds.
 *
 * All tensors lie in one anonymous mapping with huge pages, each expert as one contiguous [gate|up|down] block on a 128-byte
 * boundary. Filling it must run at memory speed, so random numbers are drawn once into a table of a few MiB, and every row is a
 * copy of a run of the table that begins at a place hashed from (tensor, row): rows differ, and a seed gives the same model on
 * every machine and with any number of threads.
 *
 * Scales: embeddings have a standard deviation of 4, so that a token's own direction outweighs what the random layers add and
 * routing stays spread over the experts. With zipf skew, dimension 0 of every embedding is a constant and column 0 of the router
 * a bias of -ln(rank): popular experts differ from layer to layer. */
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>

#include "config/config.h"
#include "engine/model/hf_config.h"
#include "engine/model/model_priv.h"

/* Prime, so that runs that begin at hashed places do not line up with rows. In blocks of 32 weights. */
#define TABLE_BLOCKS 65521u
#define EMBED_STD    4.0f
#define BIAS_INPUT   16.0f
#define BIAS_STD     0.1f
#define MAX_THREADS  64
#define MAX_STDS     12 /* standard deviations of a model: DeepSeek has nine */

static const struct {
    const char *name, *config;
} geometries[] = {
    {"qwen3-30b-a3b",
     "{\"model_type\":\"qwen3_moe\",\"hidden_size\":2048,\"num_hidden_layers\":48,\"num_attention_heads\":32,"
     "\"num_key_value_heads\":4,\"head_dim\":128,\"num_experts\":128,\"num_experts_per_tok\":8,"
     "\"moe_intermediate_size\":768,\"intermediate_size\":6144,\"norm_topk_prob\":true,\"vocab_size\":151936,"
     "\"max_position_embeddings\":262144,\"rope_theta\":10000000.0}"},
    {"qwen3-235b-a22b",
     "{\"model_type\":\"qwen3_moe\",\"hidden_size\":4096,\"num_hidden_layers\":94,\"num_attention_heads\":64,"
     "\"num_key_value_heads\":4,\"head_dim\":128,\"num_experts\":128,\"num_experts_per_tok\":8,"
     "\"moe_intermediate_size\":1536,\"intermediate_size\":12288,\"norm_topk_prob\":true,\"vocab_size\":151936,"
     "\"max_position_embeddings\":262144,\"rope_theta\":5000000.0}"},
    {"mixtral-8x7b",
     "{\"model_type\":\"mixtral\",\"hidden_size\":4096,\"num_hidden_layers\":32,\"num_attention_heads\":32,"
     "\"num_key_value_heads\":8,\"head_dim\":128,\"num_local_experts\":8,\"num_experts_per_tok\":2,"
     "\"intermediate_size\":14336,\"vocab_size\":32000,\"max_position_embeddings\":32768,\"rope_theta\":1000000.0}"},
    {"gpt-oss-20b",
     "{\"model_type\":\"gpt_oss\",\"hidden_size\":2880,\"num_hidden_layers\":24,\"num_attention_heads\":64,"
     "\"num_key_value_heads\":8,\"head_dim\":64,\"num_local_experts\":32,\"num_experts_per_tok\":4,"
     "\"intermediate_size\":2880,\"sliding_window\":128,\"vocab_size\":201088,\"max_position_embeddings\":131072,"
     "\"rope_theta\":150000.0}"},
    {"deepseek-v2-lite",
     "{\"model_type\":\"deepseek_v2\",\"hidden_size\":2048,\"num_hidden_layers\":27,\"num_attention_heads\":16,"
     "\"kv_lora_rank\":512,\"q_lora_rank\":null,\"qk_nope_head_dim\":128,\"qk_rope_head_dim\":64,\"v_head_dim\":128,"
     "\"n_routed_experts\":64,\"num_experts_per_tok\":6,\"n_shared_experts\":2,\"moe_intermediate_size\":1408,"
     "\"first_k_dense_replace\":1,\"intermediate_size\":10944,\"norm_topk_prob\":false,\"vocab_size\":102400,"
     "\"max_position_embeddings\":163840,\"rope_theta\":10000.0,\"rope_scaling\":{\"type\":\"yarn\",\"factor\":40,"
     "\"original_max_position_embeddings\":4096,\"beta_fast\":32,\"beta_slow\":1,\"mscale\":0.707,"
     "\"mscale_all_dim\":0.707}}"},
    {"qwen3-next-80b-a3b",
     "{\"model_type\":\"qwen3_next\",\"hidden_size\":2048,\"num_hidden_layers\":48,\"num_attention_heads\":16,"
     "\"num_key_value_heads\":2,\"head_dim\":256,\"num_experts\":512,\"num_experts_per_tok\":10,"
     "\"moe_intermediate_size\":512,\"shared_expert_intermediate_size\":512,\"vocab_size\":151936,"
     "\"max_position_embeddings\":262144,\"rope_theta\":10000000.0}"},
    {"qwen3.5-35b-a3b",
     "{\"model_type\":\"qwen3_5_moe_text\",\"hidden_size\":2048,\"num_hidden_layers\":40,"
     "\"num_attention_heads\":16,\"num_key_value_heads\":2,\"head_dim\":256,\"num_experts\":256,"
     "\"num_experts_per_tok\":8,\"moe_intermediate_size\":512,\"shared_expert_intermediate_size\":512,"
     "\"vocab_size\":248320,\"max_position_embeddings\":262144,\"rope_parameters\":{\"rope_type\":\"default\","
     "\"rope_theta\":10000000.0,\"partial_rotary_factor\":0.25}}"},
    {"gemma-4-26b-a4b",
     "{\"model_type\":\"gemma4_text\",\"hidden_size\":2816,\"num_hidden_layers\":30,\"num_attention_heads\":16,"
     "\"num_key_value_heads\":8,\"num_global_key_value_heads\":2,\"head_dim\":256,\"global_head_dim\":512,"
     "\"attention_k_eq_v\":true,\"enable_moe_block\":true,\"num_experts\":128,\"top_k_experts\":8,"
     "\"moe_intermediate_size\":704,\"intermediate_size\":2112,\"hidden_size_per_layer_input\":0,"
     "\"sliding_window\":1024,\"final_logit_softcapping\":30.0,\"vocab_size\":262144,"
     "\"max_position_embeddings\":262144}"},
    {"phi-3.5-moe",
     "{\"model_type\":\"phimoe\",\"hidden_size\":4096,\"num_hidden_layers\":32,\"num_attention_heads\":32,"
     "\"num_key_value_heads\":8,\"num_local_experts\":16,\"num_experts_per_tok\":2,\"intermediate_size\":6400,"
     "\"attention_bias\":true,\"lm_head_bias\":true,\"vocab_size\":32064,\"max_position_embeddings\":131072,"
     "\"rope_theta\":10000.0}"},
    {"nemotron-3-nano-30b-a3b",
     "{\"model_type\":\"nemotron_h\",\"hidden_size\":2688,\"num_hidden_layers\":52,\"num_attention_heads\":32,"
     "\"num_key_value_heads\":2,\"head_dim\":128,\"n_routed_experts\":128,\"num_experts_per_tok\":6,"
     "\"moe_intermediate_size\":1856,\"moe_shared_expert_intermediate_size\":3712,\"routed_scaling_factor\":2.5,"
     "\"mamba_num_heads\":64,\"mamba_head_dim\":64,\"n_groups\":8,\"ssm_state_size\":128,\"vocab_size\":131072,"
     "\"hybrid_override_pattern\":\"MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME\","
     "\"max_position_embeddings\":262144}"},
    /* 4.8 GB of experts in BF16: enough to leave every cache, small enough for a laptop. */
    {"moe-4gb", "{\"model_type\":\"qwen3_moe\",\"hidden_size\":2048,\"num_hidden_layers\":8,\"num_attention_heads\":16,"
                "\"num_key_value_heads\":4,\"head_dim\":128,\"num_experts\":64,\"num_experts_per_tok\":8,"
                "\"moe_intermediate_size\":768,\"intermediate_size\":6144,\"norm_topk_prob\":true,\"vocab_size\":32000,"
                "\"max_position_embeddings\":32768,\"rope_theta\":1000000.0}"},
    {"tiny", "{\"model_type\":\"qwen3_moe\",\"hidden_size\":256,\"num_hidden_layers\":4,\"num_attention_heads\":8,"
             "\"num_key_value_heads\":2,\"head_dim\":32,\"num_experts\":16,\"num_experts_per_tok\":4,"
             "\"moe_intermediate_size\":128,\"intermediate_size\":512,\"norm_topk_prob\":true,\"vocab_size\":4096,"
             "\"max_position_embeddings\":4096,\"rope_theta\":10000.0}"},
};

static json_t *named_config(const char *name)
{
    for (size_t i = 0; i < XD_ARRAY_LEN(geometries); i++)
        if (!strcmp(geometries[i].name, name))
            return json_loads(geometries[i].config, 0, NULL);
    return NULL;
}

static const char *geometry_names(char *out, size_t cap)
{
    size_t n = 0;
    for (size_t i = 0; i < XD_ARRAY_LEN(geometries) && n < cap; i++)
        n += (size_t)snprintf(out + n, cap - n, "%s%s", i ? ", " : "", geometries[i].name);
    return out;
}

/* --- random numbers ------------------------------------------------------------------------------------------------ */

/* A hash of a counter. */
static uint64_t mix(uint64_t x)
{
    return xd_mix64(x + XD_MIX64_STEP);
}

static uint16_t to_bf16(float v)
{
    uint32_t u;
    memcpy(&u, &v, 4);
    return (uint16_t)((u + 0x7FFF + ((u >> 16) & 1)) >> 16);
}

/* Normal halves only: the scales used here lie between 2^-14 and 2^15. */
static uint16_t to_f16(float v)
{
    uint32_t u;
    memcpy(&u, &v, 4);
    uint32_t sign = (u >> 16) & 0x8000, magnitude = u & 0x7FFFFFFF;
    if (magnitude < 0x38800000) /* below 2^-14 */
        return (uint16_t)sign;
    magnitude += 0xFFF + ((magnitude >> 13) & 1);
    return (uint16_t)(sign | ((magnitude - 0x38000000) >> 13));
}

static void store(void *to, kern_fmt fmt, uint32_t i, float v)
{
    if (fmt == FMT_F32)
        ((float *)to)[i] = v;
    else
        ((uint16_t *)to)[i] = fmt == FMT_BF16 ? to_bf16(v) : to_f16(v);
}

/* Bytes of a table's block: of 32 weights, or of one block of the format where that has more. */
static uint32_t table_block_bytes(kern_fmt fmt)
{
    const kern_fmt_info f = kern_fmt_get(fmt);
    return f.block_bytes * XD_MAX(32 / f.block_len, 1u);
}

/* Any quants, and scales that give them about the standard deviation; their mean is 0. */
static void random_block(char *at, kern_fmt fmt, float std, uint64_t seed)
{
    unsigned char *b = (unsigned char *)at;
    for (uint32_t i = 0; i < kern_fmt_get(fmt).block_bytes; i++)
        b[i] = (unsigned char)(mix(seed ^ i) >> 56);
    if (fmt == FMT_MXFP4) { /* the sixteen numbers have a deviation of 2.93 */
        b[0] = (unsigned char)(127 + lrintf(log2f(std / 2.93f)));
        return;
    }
    if (fmt == FMT_FP8) { /* numbers from 2 to 30 and their negatives have a deviation of 13.5 */
        const float d = std / 13.5f;
        memcpy(b, &d, sizeof d);
        for (uint32_t i = offsetof(kern_fp8_block, q); i < sizeof(kern_fp8_block); i++)
            b[i] = (unsigned char)((b[i] & 0x87) | (8 + (b[i] >> 3 & 3)) << 3);
        return;
    }
    if (fmt == FMT_NVFP4) { /* all sixteens have a scale of 1 */
        const float d = std / 2.93f;
        memcpy(b, &d, sizeof d);
        memset(b + offsetof(kern_nvfp4_block, scales), 0x38, sizeof(((kern_nvfp4_block *)0)->scales));
        return;
    }
    if (fmt == FMT_INT4_G32 || fmt == FMT_INT4_G128) {
        /* 0 .. 15 less 8 have a deviation of 4.61 and a mean of -0.5, which scales of either sign make 0 on the whole */
        const uint16_t d = to_bf16(b[0] & 1 ? std / 4.61f : -std / 4.61f);
        const uint32_t head = (uint32_t)d << 16 | 8 << 8;
        for (uint32_t g = 0; g < 4 && fmt == FMT_INT4_G32; g++) {
            memcpy(b + 2 * g, &d, sizeof d);
            b[offsetof(kern_int4_g32_block, more) + g] = 8;
        }
        if (fmt == FMT_INT4_G128)
            memcpy(b, &head, sizeof head);
        return;
    }
    if (fmt == FMT_Q2_K) { /* all sixteens have a scale of 8 and a minimum of 12; 0 .. 3 have a deviation of 1.12 */
        kern_q2_k_block q = {.d = to_f16(std / (8 * 1.118f)), .dmin = to_f16(std / (8 * 1.118f))};
        memset(b, 0xc8, sizeof q.scales);
        memcpy(b + offsetof(kern_q2_k_block, d), &q.d, 2 * sizeof q.d);
        return;
    }
    if (fmt == FMT_IQ2_XXS || fmt == FMT_IQ3_S || fmt == FMT_IQ1_S) { /* the deviation of blocks of any bits */
        const uint16_t d = to_f16(std / (fmt == FMT_IQ2_XXS ? 53.4f : fmt == FMT_IQ3_S ? 140.4f : 7.2f));
        memcpy(b, &d, sizeof d);
        return;
    }
    /* Q4_K: all groups have a scale and a minimum of 32; 0 .. 15 have a deviation of 4.61. */
    kern_q4_k_block q = {.d = to_f16(std / (32 * 4.61f)), .dmin = to_f16(std / (32 * 4.61f) * 7.5f)};
    memset(q.scales, 0xa0, 8);
    memcpy(b, &q, offsetof(kern_q4_k_block, qs));
}

/* TABLE_BLOCKS blocks of weights of the given standard deviation (uniform distribution). NULL: out of memory. */
static char *make_table(kern_fmt fmt, float std, uint64_t seed)
{
    const uint32_t block_bytes = table_block_bytes(fmt);
    const float range = std * 1.7320508f; /* a uniform variable on +-r has r / sqrt(3) */
    char *table = malloc((size_t)TABLE_BLOCKS * block_bytes);
    for (uint32_t b = 0; table && b < TABLE_BLOCKS; b++) {
        char *at = table + (size_t)b * block_bytes;
        if (fmt > FMT_Q8_0) {
            random_block(at, fmt, std, seed ^ (uint64_t)b * 256);
            continue;
        }
        kern_q8_0_block q = {.d = to_f16(range / 127)};
        for (uint32_t i = 0; i < 32; i++) {
            float unit = (float)(int64_t)(mix(seed ^ ((uint64_t)b * 32 + i)) >> 40) * 0x1p-23f - 1; /* [-1, 1) */
            if (fmt == FMT_Q8_0)
                q.qs[i] = (int8_t)lrintf(unit * 127);
            else
                store(at, fmt, i, unit * range);
        }
        if (fmt == FMT_Q8_0)
            memcpy(at, &q, sizeof q);
    }
    return table;
}

/* --- the plan: every tensor with its place ---------------------------------------------------------------------------- */

typedef struct job {
    model_tensor *tensor;
    uint64_t offset;
    float std; /* 0: all ones (norms) */
    uint64_t id;
} job;

typedef struct plan {
    job *jobs;
    size_t n, cap;
    uint64_t bytes;
    float stds[MAX_STDS];
    char *tables[MAX_STDS][2]; /* by std, by format: 0 BF16, 1 the experts' */
    uint32_t n_stds;
    kern_fmt expert_fmt;
    char *base;
    uint64_t seed;
    atomic_size_t next;
    atomic_uint_fast64_t done_bytes;
    const model_options *opt;
} plan;

static bool plan_add(plan *p, model_tensor *t, uint32_t rows, uint32_t cols, kern_fmt fmt, float std)
{
    if (p->n == p->cap)
        return false;
    uint64_t align = 128;
    p->bytes = xd_align_up(p->bytes, align);
    *t = (model_tensor){.bytes = kern_row_bytes(fmt, cols) * rows, .rows = rows, .cols = cols, .fmt = fmt};
    p->jobs[p->n] = (job){.tensor = t, .offset = p->bytes, .std = std, .id = p->n};
    p->n++;
    return xd_add_u64(&p->bytes, p->bytes, t->bytes);
}

/* A matrix that every token is multiplied with: as files of the format have it. Q8_0 is the only one whose files have all in one format; those
 * in FP8 have all but the head. */
static kern_fmt trunk_fmt(const plan *p, uint32_t cols)
{
    const bool whole = p->expert_fmt == FMT_Q8_0 || p->expert_fmt == FMT_FP8;
    return whole && cols % 32 == 0 ? p->expert_fmt : FMT_BF16;
}

static bool plan_latent(plan *p, const model_params *h, model_layer *y)
{
    const uint32_t d = h->d_model, low = h->latent.q_rank, rank = h->latent.kv_rank;
    const uint32_t q = h->n_heads * (h->latent.nope_dim + h->latent.rope_dim);
    const float in = 1 / sqrtf((float)d);
    if (low && (!plan_add(p, &y->latent.q_a, low, d, trunk_fmt(p, d), in) ||
                !plan_add(p, &y->latent.q_a_norm, 1, low, FMT_BF16, 0)))
        return false;
    if (y->index.own &&
        (!plan_add(p, &y->index.q, h->index.n_heads * h->index.dim, low, trunk_fmt(p, low), 1 / sqrtf((float)low)) ||
         !plan_add(p, &y->index.k, h->index.dim, d, trunk_fmt(p, d), in) ||
         !plan_add(p, &y->index.k_norm, 1, h->index.dim, FMT_BF16, 0) ||
         !plan_add(p, &y->index.k_norm_bias, 1, h->index.dim, FMT_BF16, BIAS_STD) ||
         !plan_add(p, &y->index.weights, h->index.n_heads, d, FMT_BF16, in)))
        return false;
    return plan_add(p, &y->q, q, low ? low : d, trunk_fmt(p, low ? low : d), low ? 1 / sqrtf((float)low) : in) &&
           plan_add(p, &y->latent.kv_a, h->head_dim, d, trunk_fmt(p, d), in) &&
           plan_add(p, &y->latent.kv_a_norm, 1, rank, FMT_BF16, 0) &&
           plan_add(p, &y->latent.kv_b, h->n_heads * (h->latent.nope_dim + h->latent.v_dim), rank, FMT_BF16,
                    1 / sqrtf((float)rank));
}

/* A step of a head forgets about half of what it knows. */
static bool plan_delta(plan *p, const model_params *h, model_layer *y)
{
    const kern_delta_geom *g = &h->delta;
    const uint32_t d = h->d_model, v = g->n_v_heads * g->v_dim, channels = kern_delta_channels(g);
    const float in = 1 / sqrtf((float)d);
    return plan_add(p, &y->delta.in[MODEL_DELTA_QKV], channels, d, trunk_fmt(p, d), in) &&
           plan_add(p, &y->delta.in[MODEL_DELTA_Z], v, d, trunk_fmt(p, d), in) &&
           plan_add(p, &y->delta.in[MODEL_DELTA_B], g->n_v_heads, d, FMT_BF16, in) &&
           plan_add(p, &y->delta.in[MODEL_DELTA_A], g->n_v_heads, d, FMT_BF16, in) &&
           plan_add(p, &y->delta.conv, channels, g->conv, FMT_BF16, 0.5f) &&
           plan_add(p, &y->delta.a_log, 1, g->n_v_heads, FMT_BF16, BIAS_STD) &&
           plan_add(p, &y->delta.dt_bias, 1, g->n_v_heads, FMT_BF16, BIAS_STD) &&
           plan_add(p, &y->delta.norm, 1, g->v_dim, FMT_BF16, 0) &&
           plan_add(p, &y->o, d, v, trunk_fmt(p, v), 1 / sqrtf((float)v));
}

static bool plan_kda(plan *p, const model_params *h, model_layer *y)
{
    const kern_delta_geom *g = &h->delta;
    const uint32_t d = h->d_model, all = g->n_v_heads * g->v_dim;
    const float in = 1 / sqrtf((float)d), low = 1 / sqrtf((float)g->v_dim);
    return plan_add(p, &y->delta.in[MODEL_DELTA_QKV], kern_delta_channels(g), d, trunk_fmt(p, d), in) &&
           plan_add(p, &y->delta.in[MODEL_DELTA_Z_LOW], g->v_dim, d, trunk_fmt(p, d), in) &&
           plan_add(p, &y->delta.in[MODEL_DELTA_Z], all, g->v_dim, trunk_fmt(p, g->v_dim), low) &&
           plan_add(p, &y->delta.in[MODEL_DELTA_B], g->n_v_heads, d, FMT_BF16, in) &&
           plan_add(p, &y->delta.in[MODEL_DELTA_A_LOW], g->k_dim, d, trunk_fmt(p, d), in) &&
           plan_add(p, &y->delta.in[MODEL_DELTA_A], kern_delta_decays(g), g->k_dim, trunk_fmt(p, g->k_dim), low) &&
           plan_add(p, &y->delta.conv, kern_delta_channels(g), g->conv, FMT_BF16, 0.5f) &&
           plan_add(p, &y->delta.a_log, 1, g->n_v_heads, FMT_BF16, BIAS_STD) &&
           plan_add(p, &y->delta.dt_bias, 1, kern_delta_decays(g), FMT_BF16, BIAS_STD) &&
           plan_add(p, &y->delta.norm, 1, g->v_dim, FMT_BF16, 0) &&
           plan_add(p, &y->o, d, all, trunk_fmt(p, all), 1 / sqrtf((float)all));
}

static bool plan_ssm(plan *p, const model *m, model_layer *y)
{
    const kern_ssm_geom *g = &m->params.ssm;
    const uint32_t d = m->params.d_model, inner = kern_ssm_inner(g), channels = kern_ssm_channels(g);
    return plan_add(p, &y->ssm.in, kern_ssm_width(g), d, trunk_fmt(p, d), 1 / sqrtf((float)d)) &&
           plan_add(p, &y->ssm.conv, channels, g->conv, FMT_BF16, 0.5f) &&
           (!m->conv_bias || plan_add(p, &y->ssm.conv_bias, 1, channels, FMT_BF16, BIAS_STD)) &&
           plan_add(p, &y->ssm.a_log, 1, g->n_heads, FMT_BF16, BIAS_STD) &&
           plan_add(p, &y->ssm.skip, 1, g->n_heads, FMT_BF16, 0) &&
           plan_add(p, &y->ssm.dt_bias, 1, g->n_heads, FMT_BF16, BIAS_STD) &&
           plan_add(p, &y->ssm.norm, 1, inner, FMT_BF16, 0) &&
           plan_add(p, &y->o, d, inner, trunk_fmt(p, inner), 1 / sqrtf((float)inner));
}

static bool plan_shortconv(plan *p, const model_params *h, model_layer *y)
{
    const uint32_t d = h->d_model;
    const float in = 1 / sqrtf((float)d);
    return plan_add(p, &y->shortconv.in, 3 * d, d, trunk_fmt(p, d), in) &&
           plan_add(p, &y->shortconv.conv, d, h->shortconv.conv, FMT_BF16, 0.5f) &&
           plan_add(p, &y->o, d, d, trunk_fmt(p, d), in);
}

static bool plan_attention(plan *p, const model *m, model_layer *y)
{
    const model_params *h = &m->params;
    const uint32_t d = h->d_model, kv = y->n_kv_heads * y->head_dim, q = y->n_heads * y->head_dim * (h->gated ? 2 : 1);
    const float in = 1 / sqrtf((float)d);
    return plan_add(p, &y->q, q, d, trunk_fmt(p, d), in) && plan_add(p, &y->k, kv, d, trunk_fmt(p, d), in) &&
           (model_k_is_v(m, y) || plan_add(p, &y->v, kv, d, trunk_fmt(p, d), in));
}

/* Norms that a family has beyond those of all. */
static bool plan_own_norms(plan *p, const model_params *h, model_layer *y)
{
    model_tensor *of_all[] = {&y->attn_post_norm, &y->ffn_post_norm},
                 *of_moe[] = {&y->router_norm, &y->expert_norm, &y->expert_post_norm, &y->shared_post_norm};
    const bool own = model_arch_find(h->arch)->norms == MODEL_NORMS_OWN, of_experts = own && y->moe;
    bool ok = (!own || plan_add(p, &y->out_scale, 1, 1, FMT_BF16, 0)) &&
              (!of_experts || plan_add(p, &y->expert_scale, 1, y->n_experts, FMT_BF16, 0));
    for (size_t i = 0; ok && i < XD_ARRAY_LEN(of_all); i++)
        ok = plan_add(p, of_all[i], 1, h->d_model, FMT_BF16, 0);
    for (size_t i = 0; ok && of_experts && i < XD_ARRAY_LEN(of_moe); i++)
        ok = plan_add(p, of_moe[i], 1, h->d_model, FMT_BF16, 0);
    return ok;
}

static bool plan_model(plan *p, model *m)
{
    const model_params *h = &m->params;
    const uint32_t d = h->d_model;
    const float in = 1 / sqrtf((float)d);
    const model_arch *a = model_arch_find(h->arch);
    bool ok = plan_add(p, &m->embed, h->vocab, d, FMT_BF16, EMBED_STD) &&
              plan_add(p, &m->final_norm, 1, d, FMT_BF16, 0) &&
              (!a->layer_norms || plan_add(p, &m->final_norm_bias, 1, d, FMT_BF16, BIAS_STD)) &&
              (!m->head_bias || plan_add(p, &m->lm_head_bias, 1, h->vocab, FMT_BF16, BIAS_STD)) &&
              plan_add(p, &m->lm_head, h->vocab, d, p->expert_fmt == FMT_FP8 ? FMT_BF16 : trunk_fmt(p, d), in);
    for (uint32_t l = 0; ok && l < h->n_layers; l++) {
        model_layer *y = &m->layers[l];
        const bool latent = h->latent.kv_rank;
        const uint32_t kv = y->n_kv_heads * y->head_dim;
        const uint32_t q = y->n_heads * (latent ? h->latent.nope_dim + h->latent.rope_dim : y->head_dim);
        const uint32_t o = y->n_heads * (latent ? h->latent.v_dim : y->head_dim);
        const bool before = a->norms != MODEL_NORMS_BEHIND;
        ok = (!before || plan_add(p, y->ffn_alone ? &y->ffn_norm : &y->attn_norm, 1, d, FMT_BF16, 0)) &&
             (y->ffn_alone                         ? true
              : y->linear && h->shortconv.channels ? plan_shortconv(p, h, y)
              : y->linear && h->ssm.n_heads        ? plan_ssm(p, m, y)
              : y->linear && h->delta.by_channel   ? plan_kda(p, h, y)
              : y->linear                          ? plan_delta(p, h, y)
              : latent                             ? plan_latent(p, h, y)
                                                   : plan_attention(p, m, y)) &&
             (y->linear || y->ffn_alone || plan_add(p, &y->o, d, o, trunk_fmt(p, o), 1 / sqrtf((float)o))) &&
             (!before || a->apart || plan_add(p, &y->ffn_norm, 1, d, FMT_BF16, 0));
        if (ok && m->qk_norm && !y->linear)
            ok = plan_add(p, &y->q_norm, 1, h->wide_qk_norm ? q : y->head_dim, FMT_BF16, 0) &&
                 plan_add(p, &y->k_norm, 1, h->wide_qk_norm ? kv : y->head_dim, FMT_BF16, 0);
        if (ok && y->moe && a->norms == MODEL_NORMS_EXPERTS)
            ok = plan_add(p, &y->ffn_post_norm, 1, d, FMT_BF16, 0);
        else if (ok && a->norms != MODEL_NORMS_BEFORE && a->norms != MODEL_NORMS_EXPERTS)
            ok = plan_own_norms(p, h, y);
        if (ok && a->layer_norms)
            ok = plan_add(p, &y->attn_norm_bias, 1, d, FMT_BF16, BIAS_STD) &&
                 plan_add(p, &y->ffn_norm_bias, 1, d, FMT_BF16, BIAS_STD);
        const bool o_bias = a->gpt_oss || (a->layer_norms && m->attention_bias);
        if (ok && (a->bias == MODEL_BIAS_QKV || o_bias || (a->bias == MODEL_BIAS_QKV_ASKED && m->attention_bias)))
            ok = plan_add(p, &y->q_bias, 1, q, FMT_BF16, BIAS_STD) &&
                 plan_add(p, &y->k_bias, 1, kv, FMT_BF16, BIAS_STD) &&
                 plan_add(p, &y->v_bias, 1, kv, FMT_BF16, BIAS_STD);
        if (ok && a->gate)
            ok = plan_add(p, &y->gate, model_gate_rows(m, y), d, trunk_fmt(p, d), in);
        if (ok && (a->gpt_oss || a->sinks))
            ok = plan_add(p, &y->sinks, 1, y->n_heads, FMT_BF16, BIAS_STD);
        if (ok && o_bias)
            ok = plan_add(p, &y->o_bias, 1, d, FMT_BF16, BIAS_STD);
        if (ok && a->gpt_oss)
            ok = plan_add(p, &y->router_bias, 1, y->n_experts, FMT_BF16, BIAS_STD);
        for (int k = 0; ok && a->gpt_oss && k < MODEL_MATRICES; k++)
            ok = plan_add(p, &y->expert_bias[k], y->n_experts, k == MODEL_DOWN ? d : y->d_ff, FMT_BF16, BIAS_STD);
        if (ok && y->moe)
            ok = plan_add(p, &y->router, y->n_experts, d, FMT_BF16,
                          a->norms == MODEL_NORMS_OWN ? in / h->router_scale : in);
        if (ok && y->moe && m->choice_bias)
            ok = plan_add(p, &y->choice_bias, 1, y->n_experts, FMT_BF16, BIAS_STD);
        const uint32_t shared_rows = y->halves ? y->d_ff_shared / 2 : y->d_ff_shared;
        if (ok && y->d_ff_shared)
            ok = plan_add(p, &y->shared[MODEL_GATE], shared_rows, d, trunk_fmt(p, d), in) &&
                 plan_add(p, &y->shared[MODEL_UP], shared_rows, d, trunk_fmt(p, d), in) &&
                 plan_add(p, &y->shared[MODEL_DOWN], d, y->d_ff_shared, trunk_fmt(p, y->d_ff_shared),
                          1 / sqrtf((float)y->d_ff_shared));
        if (ok && y->d_ff_shared && a->shared_gate)
            ok = plan_add(p, &y->shared_gate, 1, d, FMT_BF16, in);
    }
    for (uint32_t l = 0; ok && l < h->n_layers; l++) {
        model_layer *y = &m->layers[l];
        for (int k = 0; k < MODEL_MATRICES; k++)
            y->expert_fmt[k] = p->expert_fmt;
        model_tensor *e = m->experts + (y->experts - m->experts);
        const uint32_t rows = y->halves ? y->d_ff / 2 : y->d_ff;
        for (size_t i = 0; ok && i < (size_t)y->n_experts * MODEL_MATRICES; i++) {
            bool down = i % MODEL_MATRICES == MODEL_DOWN;
            ok = plan_add(p, &e[i], down ? d : rows, down ? y->d_ff : d, p->expert_fmt,
                          down ? 1 / sqrtf((float)y->d_ff) : in);
        }
    }
    return ok;
}

/* --- filling ----------------------------------------------------------------------------------------------------------- */

static char **table_of(plan *p, float std, kern_fmt fmt)
{
    uint32_t i = 0;
    while (i < p->n_stds && p->stds[i] != std)
        i++;
    if (i == XD_ARRAY_LEN(p->stds))
        return NULL;
    if (i == p->n_stds)
        p->stds[p->n_stds++] = std;
    return &p->tables[i][fmt != FMT_BF16];
}

static bool make_tables(plan *p)
{
    for (size_t i = 0; i < p->n; i++) {
        if (p->jobs[i].std == 0)
            continue;
        char **table = table_of(p, p->jobs[i].std, p->jobs[i].tensor->fmt);
        if (!table || (!*table && !(*table = make_table(p->jobs[i].tensor->fmt, p->jobs[i].std,
                                                        mix(p->seed + (uint64_t)(table - p->tables[0]))))))
            return false;
    }
    return true;
}

static void fill_row(plan *p, const job *j, uint32_t row, char *to)
{
    const model_tensor *t = j->tensor;
    uint64_t bytes = kern_row_bytes(t->fmt, t->cols);
    if (j->std == 0) {
        for (uint32_t i = 0; i < t->cols; i++)
            store(to, t->fmt, i, 1);
        return;
    }
    const char *table = *table_of(p, j->std, t->fmt);
    const uint64_t table_bytes = (uint64_t)TABLE_BLOCKS * table_block_bytes(t->fmt);
    uint64_t at = mix(p->seed ^ (j->id << 32 | row)) % TABLE_BLOCKS * (table_bytes / TABLE_BLOCKS);
    for (uint64_t done = 0; done < bytes;) {
        uint64_t n = XD_MIN(bytes - done, table_bytes - at);
        memcpy(to + done, table + at, n);
        done += n;
        at = 0;
    }
}

static void *fill_worker(void *arg)
{
    plan *p = arg;
    for (size_t i; (i = atomic_fetch_add(&p->next, 1)) < p->n;) {
        const job *j = &p->jobs[i];
        uint64_t row_bytes = kern_row_bytes(j->tensor->fmt, j->tensor->cols);
        for (uint32_t r = 0; r < j->tensor->rows; r++)
            fill_row(p, j, r, p->base + j->offset + r * row_bytes);
        uint64_t done = atomic_fetch_add(&p->done_bytes, j->tensor->bytes) + j->tensor->bytes;
        if (p->opt->progress)
            p->opt->progress(p->opt->progress_user, (double)done / (double)p->bytes);
    }
    return NULL;
}

static void fill(plan *p)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    pthread_t threads[MAX_THREADS];
    int n = 0;
    while (n < XD_MIN(cores - 1, MAX_THREADS) && !pthread_create(&threads[n], NULL, fill_worker, p))
        n++;
    fill_worker(p);
    while (n > 0)
        pthread_join(threads[--n], NULL);
}

static void skew_zipf(model *m, uint64_t seed)
{
    const model_params *h = &m->params;
    for (uint32_t t = 0; t < h->vocab; t++)
        store((char *)m->embed.data + (uint64_t)t * kern_row_bytes(FMT_BF16, h->d_model), FMT_BF16, 0, BIAS_INPUT);
    /* After the norm dimension 0 is about BIAS_INPUT / rms. */
    const float rms = sqrtf(EMBED_STD * EMBED_STD + BIAS_INPUT * BIAS_INPUT / (float)h->d_model);
    for (uint32_t l = 0; l < h->n_layers; l++) {
        model_layer *y = &m->layers[l];
        for (uint32_t e = 0; y->moe && e < y->n_experts; e++) {
            /* A bijection of the ids, different in every layer: multiply by an odd number modulo a power of two, skip what is outside. */
            uint32_t pow2 = 1, rank = e;
            while (pow2 < y->n_experts)
                pow2 *= 2;
            uint32_t odd = (uint32_t)(mix(seed + l) | 1) & (pow2 - 1);
            do
                rank = rank * odd & (pow2 - 1);
            while (rank >= y->n_experts);
            store((char *)y->router.data + (uint64_t)e * kern_row_bytes(FMT_BF16, h->d_model), FMT_BF16, 0,
                  -logf((float)(rank + 1)) * rms / BIAS_INPUT / (y->router_norm.data ? h->router_scale : 1));
        }
    }
}

/* Gives every tensor of m (params read) memory and random values. */
static xd_status make(model *m, const model_options *opt, kern_fmt fmt, xd_err *err)
{
    const model_params *h = &m->params;
    const uint32_t block = kern_fmt_get(fmt).block_len, hidden = kern_cols_fit(fmt, 32) ? 32 : block;
    const char *name = kern_fmt_get(fmt).name, *other = hidden > 32 ? "; q8_0 and mxfp4 need multiples of 32" : "";
    if (h->d_model % hidden)
        return xd_fail(err, XD_BAD_CONFIG, 0,
                       "a synthetic %s model needs a hidden_size that is a multiple of %u, not %u%s", name, hidden,
                       h->d_model, other);
    for (uint32_t l = 0; l < h->n_layers; l++)
        if (!kern_cols_fit(fmt, m->layers[l].d_ff))
            return xd_fail(
                err, XD_BAD_CONFIG, 0,
                "a synthetic %s model needs intermediate sizes that are multiples of %u, not %u (layer %u)%s", name,
                block, m->layers[l].d_ff, l, other);
    plan p = {.expert_fmt = fmt, .opt = opt, .seed = mix(opt->seed + 1)};
    p.cap = 6 + (size_t)h->n_layers * 28;
    for (uint32_t l = 0; l < h->n_layers; l++)
        p.cap += (size_t)m->layers[l].n_experts * MODEL_MATRICES;
    xd_status st = XD_OK;
    m->files = calloc(1, sizeof *m->files);
    p.jobs = calloc(p.cap, sizeof *p.jobs);
    if (!m->files || !p.jobs) {
        st = xd_fail(err, XD_NOMEM, 0, "plan of the synthetic model");
    } else if (!plan_model(&p, m)) {
        st = xd_fail(err, XD_BAD_CONFIG, 0, "the synthetic model's size overflows");
    } else if (!opt->geometry_only && !make_tables(&p)) {
        st = xd_fail(err, XD_NOMEM, 0, "random tables of the synthetic model");
    } else {
        p.bytes = xd_align_up(p.bytes, 2u << 20);
        char size[32], most[32];
        int prot = opt->geometry_only ? PROT_READ : PROT_READ | PROT_WRITE; /* what nobody wrote is one page of zeros */
        bool fits = opt->geometry_only || !opt->max_bytes || p.bytes <= opt->max_bytes;
        void *base = fits ? mmap(NULL, p.bytes, prot, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) : MAP_FAILED;
        if (!fits) {
            st = xd_fail(err, XD_NOMEM, 0,
                         "the synthetic model's %s in %s are made in memory, of which %s are available: a smaller "
                         "model.dtype or another model may fit",
                         xd_format_bytes(size, sizeof size, p.bytes), kern_fmt_get(fmt).name,
                         xd_format_bytes(most, sizeof most, opt->max_bytes));
        } else if (base == MAP_FAILED) {
            st = xd_fail(err, XD_NOMEM, errno, "memory for the synthetic model (%s)",
                         xd_format_bytes(size, sizeof size, p.bytes));
        } else {
            if (!opt->geometry_only)
                madvise(base, p.bytes, MADV_HUGEPAGE); /* only a wish: without it everything works, slower */
            m->files[0] = (model_file){.path = "(synthetic)", .base = base, .bytes = p.bytes, .anonymous = true};
            m->n_files = 1;
            p.base = base;
            for (size_t i = 0; i < p.n; i++)
                p.jobs[i].tensor->data = p.base + p.jobs[i].offset;
            for (uint32_t l = 0; l < h->n_layers; l++)
                if (model_k_is_v(m, &m->layers[l]))
                    m->layers[l].v = m->layers[l].k;
            if (!opt->geometry_only)
                fill(&p);
            if (!opt->geometry_only && opt->skew == CONF_SKEW_ZIPF)
                skew_zipf(m, p.seed);
        }
    }
    for (size_t i = 0; i < XD_ARRAY_LEN(p.tables); i++) {
        free(p.tables[i][0]);
        free(p.tables[i][1]);
    }
    free(p.jobs);
    return st;
}

xd_status model_open_synthetic(model *m, const model_options *opt, xd_err *err)
{
    const char *name = opt->path + strlen("synthetic:"), *dtype = opt->dtype && *opt->dtype ? opt->dtype : "bf16";
    static const kern_fmt made[] = {FMT_BF16,  FMT_F16,  FMT_Q8_0, FMT_FP8,   FMT_MXFP4,   FMT_INT4_G32, FMT_INT4_G128,
                                    FMT_NVFP4, FMT_Q4_K, FMT_Q2_K, FMT_IQ3_S, FMT_IQ2_XXS, FMT_IQ1_S};
    kern_fmt fmt = FMT_COUNT;
    for (size_t i = 0; i < XD_ARRAY_LEN(made); i++)
        if (!strcmp(kern_fmt_get(made[i]).name, dtype))
            fmt = made[i];
    if (fmt == FMT_COUNT)
        return xd_fail(
            err, XD_BAD_CONFIG, 0,
            "model.dtype '%s' is not known: bf16, f16, q8_0, fp8, mxfp4, int4_g32, int4_g128, nvfp4, q4_k, q2_k, iq3_s, iq2_xxs or iq1_s",
            dtype);
    m->dir = strdup("");
    if (!m->dir)
        return xd_fail(err, XD_NOMEM, 0, "handle for '%s'", opt->path);
    char known[256];
    json_t *json = named_config(name);
    xd_status st = XD_OK;
    if (!json && (st = hf_load(name, &json, err)))
        return st == XD_NOT_FOUND
                   ? xd_fail(err, XD_NOT_FOUND, 0, "'%s' is neither a known geometry (%s) nor a config.json", name,
                             geometry_names(known, sizeof known))
                   : st;
    const model_arch *a = NULL;
    if (!(st = model_arch_of(m, json, name, &a, err)) && !(st = model_read_params(m, a, json, name, err)) &&
        !(st = model_read_defaults(m, json, name, err)))
        st = make(m, opt, fmt, err);
    json_decref(json);
    return st;
}
