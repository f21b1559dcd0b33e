/* model_dir.c - a model from a Hugging Face directory: finds the shards, gives every tensor its role, and checks types and shapes.
 * Which names and hyper-parameters a family has is arch.c; the container is safetensors.c. A tensor of a layer that nobody took is
 * refused: it would change what the model computes. */
#include <string.h>
#include <sys/stat.h>

#include "engine/model/hf_config.h"
#include "engine/model/model_priv.h"

static xd_status open_shard(model *m, const char *name, xd_err *err)
{
    if (strchr(name, '/') || !strcmp(name, ".."))
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: shard name '%s' leaves the directory", m->dir, name);
    char path[4200];
    if (snprintf(path, sizeof path, "%s/%s", m->dir, name) >= (int)sizeof path)
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: shard name too long", m->dir);
    for (uint32_t i = 0; i < m->n_shards; i++)
        if (!strcmp(safetensors_path(m->shards[i]), path))
            return XD_OK;
    safetensors **grown = realloc(m->shards, (m->n_shards + 1) * sizeof *grown);
    if (!grown)
        return xd_fail(err, XD_NOMEM, 0, "list of shards");
    m->shards = grown;
    xd_status st = safetensors_open(path, &m->shards[m->n_shards], err);
    if (!st)
        m->n_shards++;
    return st;
}

/* The index only lists the shards: where a tensor is, their own headers tell. */
static xd_status open_indexed(model *m, xd_err *err)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", m->dir);
    json_t *index;
    xd_status st = hf_load(path, &index, err);
    if (st == XD_NOT_FOUND)
        return xd_fail(err, XD_NOT_FOUND, 0, "'%s' has neither model.safetensors nor model.safetensors.index.json",
                       m->dir);
    if (st)
        return st;
    const char *tensor;
    json_t *file;
    json_t *map = json_object_get(index, "weight_map");
    if (!json_is_object(map))
        st = xd_fail(err, XD_BAD_MODEL, 0, "%s: no weight_map object", path);
    json_object_foreach (map, tensor, file) {
        if (st)
            break;
        st = json_is_string(file) ? open_shard(m, json_string_value(file), err)
                                  : xd_fail(err, XD_BAD_MODEL, 0, "%s: the file of '%s' is not a string", path, tensor);
    }
    json_decref(index);
    return st;
}

/* A single file comes before an index, as in transformers. */
static xd_status open_shards(model *m, xd_err *err)
{
    xd_status st = open_shard(m, "model.safetensors", err);
    if (st == XD_NOT_FOUND)
        st = open_indexed(m, err);
    if (st)
        return st;
    m->files = calloc(m->n_shards, sizeof *m->files);
    if (!m->files)
        return xd_fail(err, XD_NOMEM, 0, "list of files");
    m->n_files = m->n_shards;
    for (uint32_t i = 0; i < m->n_shards; i++) {
        m->files[i] = model_file_of(safetensors_path(m->shards[i]), safetensors_map(m->shards[i]));
    }
    return XD_OK;
}

const char *model_stored_name(const model *m, const char *name, char *out, size_t cap)
{
    if (m->head && !strcmp(name, "lm_head.weight"))
        return m->head;
    for (size_t i = 0; m->names && m->names[i][0]; i++) {
        const char *usual = m->names[i][0], *at = strstr(name, usual);
        if (!at)
            continue;
        snprintf(out, cap, "%.*s%s%s", (int)(at - name), name, m->names[i][1], at + strlen(usual));
        name = out;
        break;
    }
    if (!m->prefix || strncmp(name, "model.", 6))
        return name;
    char rest[256];
    snprintf(rest, sizeof rest, "%s", name + 6);
    snprintf(out, cap, "%s%s", m->prefix, rest);
    return out;
}

const safetensors_entry *model_find_tensor(const model *m, const char *name, const char **ret_path)
{
    char stored[256];
    name = model_stored_name(m, name, stored, sizeof stored);
    for (uint32_t i = 0; i < m->n_shards; i++) {
        const safetensors_entry *e = safetensors_take(m->shards[i], name);
        if (e) {
            *ret_path = safetensors_path(m->shards[i]);
            return e;
        }
    }
    return NULL;
}

static xd_status format_of(const safetensors_entry *e, const char *path, kern_fmt *ret, xd_err *err)
{
    *ret = !strcmp(e->dtype, "BF16")  ? FMT_BF16
           : !strcmp(e->dtype, "F16") ? FMT_F16
           : !strcmp(e->dtype, "F32") ? FMT_F32
                                      : FMT_COUNT;
    return *ret == FMT_COUNT ? xd_fail(err, XD_UNSUPPORTED, 0, "%s: tensor '%s' is %s; BF16, F16 and F32 can be read",
                                       path, e->name, e->dtype)
                             : XD_OK;
}

/* Takes tensor `name` as [rows][cols] (rows 1: a vector). */
static xd_status take(const model *m, const char *name, uint32_t rows, uint32_t cols, bool optional, model_tensor *ret,
                      xd_err *err)
{
    const char *path = NULL;
    const safetensors_entry *e = model_find_tensor(m, name, &path);
    kern_fmt fmt = FMT_COUNT;
    char shape[192], stored[256];
    const char *plain = name;
    name = model_stored_name(m, name, stored, sizeof stored);
    if (!e || (m->four.order == MODEL_NVFP4 && !strcmp(e->dtype, "U8"))) {
        bool found;
        xd_status st = model_take_four_bits(m, plain, rows, cols, ret, &found, err);
        if (st || found)
            return st;
    }
    if (!e)
        return optional ? XD_OK : xd_fail(err, XD_BAD_MODEL, 0, "%s: tensor '%s' is missing", m->dir, name);
    const bool fp8 = m->fp8.suffix && !strcmp(e->dtype, "F8_E4M3") && e->n_dims == 2;
    xd_status st = fp8 ? XD_OK : format_of(e, path, &fmt, err);
    if (st)
        return st;
    const bool channels = e->n_dims == 3 && e->shape[1] == 1; /* a convolution of each channel for itself */
    const bool alone =
        rows == 1 && e->n_dims == 4 && e->shape[0] * e->shape[1] * e->shape[3] == 1; /* Kimi-Linear's A_log */
    bool fits = alone                         ? e->shape[2] == cols
                : rows == 1 && e->n_dims == 1 ? e->shape[0] == cols
                : channels                    ? e->shape[0] == rows && e->shape[2] == cols
                                              : e->n_dims == 2 && e->shape[0] == rows && e->shape[1] == cols;
    if (!fits && rows == 1)
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: tensor '%s' has the wrong shape: %s, config.json needs [%u]", path,
                       name, safetensors_shape(e, shape, sizeof shape), cols);
    if (!fits)
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: tensor '%s' has the wrong shape: %s, config.json needs [%u, %u]",
                       path, name, safetensors_shape(e, shape, sizeof shape), rows, cols);
    *ret = (model_tensor){.data = e->data, .bytes = e->bytes, .rows = rows, .cols = cols, .fmt = fp8 ? FMT_FP8 : fmt};
    return fp8 ? model_take_scales(m, plain, path, ret, err) : XD_OK;
}

void model_halve(model_tensor *gate, model_tensor *up)
{
    const model_tensor both = *up;
    *gate = model_some_rows(&both, 0, both.rows / 2);
    *up = model_some_rows(&both, both.rows / 2, both.rows / 2);
}

#define PACKED(m) "model.layers.%u.mlp.experts." m "_proj"

/* Takes the experts' tensor [n_experts][parts * rows][cols] as matrices [rows][cols]; those of expert e begin at ret[e * MODEL_MATRICES]. */
static xd_status take_packed(const model *m, uint32_t layer, const char *pattern, uint32_t n_experts, uint32_t parts,
                             uint32_t rows, uint32_t cols, model_tensor *ret, xd_err *err)
{
    char plain[192], shape[192], stored[256];
    const char *path = NULL;
    kern_fmt fmt = FMT_FP8;
    snprintf(plain, sizeof plain, pattern, layer);
    const safetensors_entry *e = model_find_tensor(m, plain, &path);
    const char *name = model_stored_name(m, plain, stored, sizeof stored);
    if (!e)
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: tensor '%s' is missing", m->dir, name);
    const bool fp8 = m->fp8.suffix && parts == 1 && strstr(plain, ".weight") && !strcmp(e->dtype, "F8_E4M3");
    xd_status st = fp8 ? XD_OK : format_of(e, path, &fmt, err);
    if (st)
        return st;
    if (e->n_dims != 3 || e->shape[0] != n_experts || e->shape[1] != (uint64_t)parts * rows || e->shape[2] != cols)
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: tensor '%s' has the wrong shape: %s, config.json needs [%u, %u, %u]",
                       path, name, safetensors_shape(e, shape, sizeof shape), n_experts, parts * rows, cols);
    const uint64_t each = e->bytes / n_experts / parts, bytes = fp8 ? kern_row_bytes(FMT_FP8, cols) * rows : each;
    for (uint32_t i = 0; i < n_experts * parts; i++)
        ret[(size_t)(i / parts) * MODEL_MATRICES + i % parts] = (model_tensor){
            .data = (const char *)e->data + i * each, .bytes = bytes, .rows = rows, .cols = cols, .fmt = fmt};
    return fp8 ? model_take_stacked_scales(m, plain, path, n_experts, MODEL_MATRICES, ret, err) : XD_OK;
}

/* One of two that lie among each other, `apart` numbers: 1 has the values of `t` two numbers apart, from the first or the second on. */
static model_tensor half_of(const model_tensor *t, uint32_t which, uint32_t apart, uint32_t rows, uint32_t cols)
{
    return (model_tensor){.data = (const char *)t->data + (size_t)which * apart * kern_fmt_get(t->fmt).block_bytes,
                          .bytes = t->bytes / 2,
                          .rows = rows,
                          .cols = cols,
                          .fmt = t->fmt,
                          .step = apart == 1 ? 2 : 1};
}

/* Bytes [n_experts][rows][blocks][item], or without the last when it is 1. */
static xd_status take_bytes(const model *m, uint32_t layer, const char *what, uint32_t n_experts, uint32_t rows,
                            uint32_t blocks, uint32_t item, const uint8_t **ret, xd_err *err)
{
    char name[96];
    const char *path = NULL;
    snprintf(name, sizeof name, "model.layers.%u.mlp.experts.%s", layer, what);
    const safetensors_entry *e = model_find_tensor(m, name, &path);
    if (!e)
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: tensor '%s' is missing", m->dir, name);
    if (strcmp(e->dtype, "U8") || e->n_dims != (item > 1 ? 4 : 3) || e->shape[0] != n_experts || e->shape[1] != rows ||
        e->shape[2] != blocks || (item > 1 && e->shape[3] != item))
        return xd_fail(err, XD_BAD_MODEL, 0,
                       "%s: tensor '%s' has the wrong type or shape, config.json needs U8 [%u, %u, %u%s]", path, name,
                       n_experts, rows, blocks, item > 1 ? ", 16" : "");
    *ret = e->data;
    return XD_OK;
}

/* gpt-oss in MXFP4: four tensors with the blocks and the scales of all experts; of gate and up the rows in turn. */
static xd_status take_mxfp4(const model *m, uint32_t l, uint32_t n, uint32_t ff, model_tensor *experts, xd_err *err)
{
    enum { BLOCK = 16 };
    const uint32_t d = m->params.d_model, in = d / 32, out = ff / 32;
    const uint8_t *gate_up, *gate_up_scales, *down, *down_scales;
    xd_status st;
    if (d % 32 || ff % 32)
        return xd_fail(err, XD_BAD_MODEL, 0,
                       "%s: MXFP4 needs multiples of 32, config.json says hidden_size %u and intermediate_size %u",
                       m->dir, d, ff);
    if ((st = take_bytes(m, l, "gate_up_proj_blocks", n, 2 * ff, in, BLOCK, &gate_up, err)) ||
        (st = take_bytes(m, l, "gate_up_proj_scales", n, 2 * ff, in, 1, &gate_up_scales, err)) ||
        (st = take_bytes(m, l, "down_proj_blocks", n, d, out, BLOCK, &down, err)) ||
        (st = take_bytes(m, l, "down_proj_scales", n, d, out, 1, &down_scales, err)))
        return st;
    for (uint32_t e = 0; e < n; e++)
        for (uint32_t k = 0; k < MODEL_MATRICES; k++) {
            const bool is_down = k == MODEL_DOWN;
            const size_t first = is_down ? (size_t)e * d * out : ((size_t)e * 2 * ff + k) * in; /* block */
            model_tensor *t = &experts[(size_t)e * MODEL_MATRICES + k];
            *t = (model_tensor){.data = (is_down ? down : gate_up) + first * BLOCK,
                                .scales = (is_down ? down_scales : gate_up_scales) + first,
                                .rows = is_down ? d : ff,
                                .cols = is_down ? ff : d,
                                .fmt = FMT_MXFP4};
            t->bytes = kern_row_bytes(t->fmt, t->cols) * t->rows;
        }
    return XD_OK;
}

/* Two tensors with the matrices of all experts, transposed, gate and up among each other as half_of() has them. */
static xd_status take_paired(const model *m, uint32_t l, uint32_t n, uint32_t ff, uint32_t apart, model_tensor *experts,
                             xd_err *err)
{
    const uint32_t d = m->params.d_model;
    xd_status st;
    /* rows and cols of take_packed() as they are in the file */
    if ((st = take_packed(m, l, PACKED("gate_up"), n, 1, d, 2 * ff, experts, err)) ||
        (st = take_packed(m, l, PACKED("down"), n, 1, ff, d, experts + MODEL_DOWN, err)))
        return st;
    for (uint32_t e = 0; e < n; e++) {
        model_tensor *t = experts + (size_t)e * MODEL_MATRICES;
        const model_tensor both = t[MODEL_GATE];
        t[MODEL_GATE] = half_of(&both, 0, apart, ff, d);
        t[MODEL_UP] = half_of(&both, 1, apart, ff, d);
        t[MODEL_DOWN].rows = d;
        t[MODEL_DOWN].cols = ff;
    }
    return XD_OK;
}

static xd_status take_gpt_oss(model *m, uint32_t l, xd_err *err)
{
    const uint32_t d = m->params.d_model;
    model_layer *y = &m->layers[l];
    const uint32_t n = y->n_experts, ff = y->d_ff;
    model_tensor *experts = m->experts + (y->experts - m->experts), bias = {0};
    char name[96];
    xd_status st = m->mxfp4 ? take_mxfp4(m, l, n, ff, experts, err) : take_paired(m, l, n, ff, 1, experts, err);
    if (st)
        return st;
    y->layout = m->mxfp4 ? MODEL_PAIRED_MXFP4 : MODEL_PAIRED;
    snprintf(name, sizeof name, "model.layers.%u.mlp.experts.gate_up_proj_bias", l);
    if ((st = take(m, name, n, 2 * ff, false, &bias, err)))
        return st;
    snprintf(name, sizeof name, "model.layers.%u.mlp.experts.down_proj_bias", l);
    if ((st = take(m, name, n, d, false, &y->expert_bias[MODEL_DOWN], err)))
        return st;
    y->expert_bias[MODEL_GATE] = half_of(&bias, 0, 1, n, ff);
    y->expert_bias[MODEL_UP] = half_of(&bias, 1, 1, n, ff);
    return XD_OK;
}

/* One tensor a matrix, or, as transformers 5 holds them and may save them, all experts' gate and up in one, gate first, and down in another:
 * then the router that was in a block_sparse_moe has the newer name too. */
static xd_status take_experts(model *m, const model_arch *a, uint32_t l, xd_err *err)
{
    static const char *const dense[MODEL_MATRICES] = {"gate", "up", "down"};
    const uint32_t d = m->params.d_model;
    model_layer *y = &m->layers[l];
    model_tensor *experts = m->experts + (y->experts - m->experts);
    char name[192];
    const char *path, *gate_up = PACKED("gate_up"), *down = PACKED("down"), *router = a->router;
    xd_status st;
    if (!y->n_experts)
        return XD_OK;
    if (a->gpt_oss && (st = take_gpt_oss(m, l, err)))
        return st;
    snprintf(name, sizeof name, gate_up, l);
    const safetensors_entry *both = y->moe && !a->gpt_oss ? model_find_tensor(m, name, &path) : NULL;
    bool packed = both != NULL;
    /* Those that fit as they are stay so, as in transformers. */
    const bool turned = packed && a->turned && both->n_dims == 3 &&
                        (a->turned == MODEL_TURNS || both->shape[1] != 2ull * y->d_ff || both->shape[2] != d);
    if (packed && !strstr(router, ".mlp."))
        router = "model.layers.%u.mlp.gate.weight";
    if (!packed && y->moe && a->gate_up) {
        gate_up = a->gate_up;
        down = a->down;
        packed = true;
    }
    for (int k = 0; a->stacked && y->moe && k < MODEL_MATRICES; k++) {
        const bool is_down = k == MODEL_DOWN;
        if ((st = take_packed(m, l, a->experts[k], y->n_experts, 1, is_down ? d : y->d_ff, is_down ? y->d_ff : d,
                              experts + k, err)))
            return st;
        packed = true;
    }
    if (turned) {
        if ((st = take_paired(m, l, y->n_experts, y->d_ff, y->d_ff, experts, err)))
            return st;
        y->layout = MODEL_TURNED;
    } else if (packed && !(a->stacked && y->moe) &&
               ((st = take_packed(m, l, gate_up, y->n_experts, 2, y->d_ff, d, experts, err)) ||
                (st = take_packed(m, l, down, y->n_experts, 1, d, y->d_ff, experts + MODEL_DOWN, err))))
        return st;
    for (uint32_t e = 0; e < y->n_experts; e++) {
        for (int k = 0; k < MODEL_MATRICES; k++) {
            if (y->moe)
                snprintf(name, sizeof name, a->experts[k], l, e);
            else
                snprintf(name, sizeof name, "model.layers.%u.mlp.%s_proj.weight", l, dense[k]);
            uint32_t rows = k == MODEL_DOWN ? d : y->d_ff, cols = k == MODEL_DOWN ? y->d_ff : d;
            model_tensor *t = &experts[(size_t)e * MODEL_MATRICES + (size_t)k];
            if (!packed && !a->gpt_oss && !(y->halves && k == MODEL_GATE) &&
                (st = take(m, name, rows, cols, false, t, err)))
                return st;
            if (y->halves && k == MODEL_UP)
                model_halve(t - 1, t);
            if (t->data && t->fmt != experts[k].fmt)
                return xd_fail(err, XD_UNSUPPORTED, 0,
                               "%s: '%s' is stored in another type than the layer's first expert", m->dir, name);
        }
    }
    for (int k = 0; k < MODEL_MATRICES; k++)
        y->expert_fmt[k] = experts[k].fmt;
    for (int k = 0; k < MODEL_MATRICES; k++)
        if (experts[k].scale.rows)
            y->layout = MODEL_APART;
    if (!y->moe)
        return XD_OK;
    snprintf(name, sizeof name, router, l);
    if ((st = take(m, name, y->n_experts, d, false, &y->router, err)) || !m->choice_bias)
        return st;
    snprintf(name, sizeof name, a->choice_bias, l);
    return take(m, name, 1, y->n_experts, a->norms == MODEL_NORMS_EXPERTS, &y->choice_bias, err);
}

/* Granite's: gate over up in one matrix. */
static xd_status take_shared_joined(const model *m, const char *prefix, model_layer *y, xd_err *err)
{
    const uint32_t d = m->params.d_model, ff = y->d_ff_shared;
    model_tensor both = {0};
    char name[192];
    snprintf(name, sizeof name, "%s.input_linear.weight", prefix);
    xd_status st = take(m, name, 2 * ff, d, false, &both, err);
    if (st)
        return st;
    y->shared[MODEL_UP] = both;
    model_halve(&y->shared[MODEL_GATE], &y->shared[MODEL_UP]);
    snprintf(name, sizeof name, "%s.output_linear.weight", prefix);
    return take(m, name, d, ff, false, &y->shared[MODEL_DOWN], err);
}

static xd_status take_shared(model *m, const model_arch *a, uint32_t l, xd_err *err)
{
    static const char *const names[MODEL_MATRICES] = {"gate", "up", "down"};
    const uint32_t d = m->params.d_model;
    model_layer *y = &m->layers[l];
    char prefix[96], name[192];
    xd_status st = XD_OK;
    if (!y->d_ff_shared)
        return XD_OK;
    snprintf(prefix, sizeof prefix, a->shared, l);
    if (a->shared_joined)
        return take_shared_joined(m, prefix, y, err);
    for (int k = 0; k < MODEL_MATRICES && !st; k++) {
        if (y->halves && k == MODEL_GATE)
            continue;
        snprintf(name, sizeof name, "%s.%s_proj.weight", prefix, names[k]);
        st = take(m, name, k == MODEL_DOWN ? d : y->d_ff_shared, k == MODEL_DOWN ? y->d_ff_shared : d, false,
                  &y->shared[k], err);
        if (!st && y->halves && k == MODEL_UP)
            model_halve(&y->shared[MODEL_GATE], &y->shared[MODEL_UP]);
    }
    if (st || !a->shared_gate)
        return st;
    snprintf(name, sizeof name, a->shared_gate, l);
    return take(m, name, 1, d, false, &y->shared_gate, err);
}

/* All of what has `place` in its name. */
static xd_status take_parts(const model *m, uint32_t l, const char *place, const model_part *parts, size_t n,
                            xd_err *err)
{
    xd_status st = XD_OK;
    char name[192];
    for (size_t i = 0; i < n && !st; i++) {
        if (!parts[i].name)
            continue;
        snprintf(name, sizeof name, "model.layers.%u.%s.%s", l, place, parts[i].name);
        st = take(m, name, parts[i].rows, parts[i].cols, false, parts[i].to, err);
    }
    return st;
}

static xd_status take_delta(const model *m, const model_arch *a, uint32_t l, model_layer *y, xd_err *err)
{
    const kern_delta_geom *g = &m->params.delta;
    const bool grouped = a->delta == MODEL_DELTA_GROUPED;
    const uint32_t d = m->params.d_model, nv = g->n_v_heads, v = nv * g->v_dim, channels = kern_delta_channels(g);
    const model_part parts[] = {
        {grouped ? "in_proj_qkvz.weight" : NULL, channels + v, d, &y->delta.in[MODEL_DELTA_QKVZ]},
        {grouped ? "in_proj_ba.weight" : NULL, 2 * nv, d, &y->delta.in[MODEL_DELTA_BA]},
        {grouped ? NULL : "in_proj_qkv.weight", channels, d, &y->delta.in[MODEL_DELTA_QKV]},
        {grouped ? NULL : "in_proj_z.weight", v, d, &y->delta.in[MODEL_DELTA_Z]},
        {grouped ? NULL : "in_proj_b.weight", nv, d, &y->delta.in[MODEL_DELTA_B]},
        {grouped ? NULL : "in_proj_a.weight", nv, d, &y->delta.in[MODEL_DELTA_A]},
        {"conv1d.weight", channels, g->conv, &y->delta.conv},
        {"A_log", 1, nv, &y->delta.a_log},
        {"dt_bias", 1, nv, &y->delta.dt_bias},
        {"norm.weight", 1, g->v_dim, &y->delta.norm},
        {"out_proj.weight", d, v, &y->o},
    };
    return take_parts(m, l, "linear_attn", parts, XD_ARRAY_LEN(parts), err);
}

static xd_status take_kda(const model *m, uint32_t l, model_layer *y, xd_err *err)
{
    const kern_delta_geom *g = &m->params.delta;
    const uint32_t d = m->params.d_model, n = g->n_v_heads, all = n * g->k_dim;
    const model_part parts[] = {
        {"q_proj.weight", all, d, &y->delta.in[MODEL_DELTA_QKV]},
        {"k_proj.weight", all, d, &y->delta.in[MODEL_DELTA_K]},
        {"v_proj.weight", all, d, &y->delta.in[MODEL_DELTA_V]},
        {"g_a_proj.weight", g->v_dim, d, &y->delta.in[MODEL_DELTA_Z_LOW]},
        {"g_b_proj.weight", all, g->v_dim, &y->delta.in[MODEL_DELTA_Z]},
        {"b_proj.weight", n, d, &y->delta.in[MODEL_DELTA_B]},
        {"f_a_proj.weight", g->k_dim, d, &y->delta.in[MODEL_DELTA_A_LOW]},
        {"f_b_proj.weight", all, g->k_dim, &y->delta.in[MODEL_DELTA_A]},
        {"q_conv1d.weight", all, g->conv, &y->delta.conv},
        {"k_conv1d.weight", all, g->conv, &y->delta.conv_k},
        {"v_conv1d.weight", all, g->conv, &y->delta.conv_v},
        {"A_log", 1, n, &y->delta.a_log},
        {"dt_bias", 1, all, &y->delta.dt_bias},
        {"o_norm.weight", 1, g->v_dim, &y->delta.norm},
        {"o_proj.weight", d, all, &y->o},
    };
    return take_parts(m, l, "self_attn", parts, XD_ARRAY_LEN(parts), err);
}

static xd_status take_shortconv(const model *m, uint32_t l, model_layer *y, xd_err *err)
{
    const uint32_t d = m->params.d_model;
    const model_part parts[] = {
        {"in_proj.weight", 3 * d, d, &y->shortconv.in},
        {"conv.weight", d, m->params.shortconv.conv, &y->shortconv.conv},
        {"out_proj.weight", d, d, &y->o},
    };
    return take_parts(m, l, "conv", parts, XD_ARRAY_LEN(parts), err);
}

void model_cut_qkv(model_layer *y, const model_tensor *all, bool biases, uint32_t q, uint32_t kv)
{
    model_tensor *to[] = {biases ? &y->q_bias : &y->q, biases ? &y->k_bias : &y->k, biases ? &y->v_bias : &y->v};
    model_tensor rows = *all; /* a bias is as many rows of one value */
    if (biases)
        rows.rows = all->cols, rows.cols = 1;
    for (uint32_t i = 0, at = 0; all->data && i < XD_ARRAY_LEN(to); at += i++ ? kv : q) {
        *to[i] = model_some_rows(&rows, at, i ? kv : q);
        if (biases)
            to[i]->cols = to[i]->rows, to[i]->rows = 1;
    }
}

static xd_status take_ssm(const model *m, uint32_t l, model_layer *y, xd_err *err)
{
    const kern_ssm_geom *g = &m->params.ssm;
    const uint32_t d = m->params.d_model, inner = kern_ssm_inner(g), channels = kern_ssm_channels(g);
    const model_part parts[] = {
        {"in_proj.weight", kern_ssm_width(g), d, &y->ssm.in},
        {"conv1d.weight", channels, g->conv, &y->ssm.conv},
        {m->conv_bias ? "conv1d.bias" : NULL, 1, channels, &y->ssm.conv_bias},
        {"A_log", 1, g->n_heads, &y->ssm.a_log},
        {"D", 1, g->n_heads, &y->ssm.skip},
        {"dt_bias", 1, g->n_heads, &y->ssm.dt_bias},
        {"norm.weight", 1, inner, &y->ssm.norm},
        {"out_proj.weight", d, inner, &y->o},
    };
    return take_parts(m, l, "mamba", parts, XD_ARRAY_LEN(parts), err);
}

static xd_status take_layer(model *m, const model_arch *a, uint32_t l, xd_err *err)
{
    enum { NEVER, MAYBE, MUST };
    const model_params *p = &m->params;
    model_layer *y = &m->layers[l];
    const bool latent = a->latent, low = p->latent.q_rank;
    const uint32_t d = p->d_model, kv = y->n_kv_heads * y->head_dim, rank = p->latent.kv_rank,
                   q_rank = p->latent.q_rank;
    const uint32_t q = y->n_heads * (latent     ? p->latent.nope_dim + p->latent.rope_dim
                                     : p->gated ? 2 * y->head_dim
                                                : y->head_dim);
    const uint32_t o = y->n_heads * (latent ? p->latent.v_dim : y->head_dim);
    const bool asked = m->attention_bias && a->bias == MODEL_BIAS_ASKED;
    const int o_bias = !asked ? NEVER : a->gpt_oss || a->layer_norms ? MUST : MAYBE;
    const bool qkv_must = a->bias == MODEL_BIAS_QKV || (a->bias == MODEL_BIAS_QKV_ASKED && m->attention_bias);
    const int qkv_bias = qkv_must ? MUST : o_bias, norms = m->qk_norm ? MUST : NEVER,
              gpt_oss = a->gpt_oss ? MUST : NEVER;
    const bool k_is_v = model_k_is_v(m, y), joined = a->joined_qkv;
    model_tensor all = {0}, all_biases = {0};
    const int norm_bias = a->layer_norms ? MUST : NEVER, index = y->index.own ? MUST : NEVER;
    const bool around = a->norms == MODEL_NORMS_AROUND, experts = a->norms == MODEL_NORMS_EXPERTS,
               behind = a->norms != MODEL_NORMS_BEFORE && !experts;
    const int own_norms = a->norms == MODEL_NORMS_OWN ? MUST : NEVER, of_experts = y->moe ? own_norms : NEVER,
              before = a->norms == MODEL_NORMS_BEHIND ? NEVER : MUST;
    const struct {
        const char *name;
        uint32_t rows, cols;
        int there;
        model_tensor *to;
    } parts[] = {
        {"input_layernorm.weight", 1, d, before, y->ffn_alone ? &y->ffn_norm : &y->attn_norm},
        {"input_layernorm.bias", 1, d, norm_bias, &y->attn_norm_bias},
        {"self_attn.q_proj.weight", q, d, low || joined ? NEVER : MUST, &y->q},
        {"self_attn.k_proj.weight", kv, d, latent || joined ? NEVER : MUST, &y->k},
        {"self_attn.v_proj.weight", kv, d, latent || joined || k_is_v ? NEVER : MUST, &y->v},
        {"self_attn.o_proj.weight", d, o, MUST, &y->o},
        {"self_attn.q_proj.bias", 1, q, latent || joined ? NEVER : qkv_bias, &y->q_bias},
        {"self_attn.k_proj.bias", 1, kv, latent || joined ? NEVER : qkv_bias, &y->k_bias},
        {"self_attn.v_proj.bias", 1, kv, latent || joined || k_is_v ? NEVER : qkv_bias, &y->v_bias},
        {"self_attn.query_key_value.weight", q + 2 * kv, d, joined ? MUST : NEVER, &all},
        {"self_attn.query_key_value.bias", 1, q + 2 * kv, joined ? qkv_bias : NEVER, &all_biases},
        {"self_attn.o_proj.bias", 1, d, o_bias, &y->o_bias},
        {"self_attn.q_norm.weight", 1, p->wide_qk_norm ? q : y->head_dim, norms, &y->q_norm},
        {"self_attn.k_norm.weight", 1, p->wide_qk_norm ? kv : y->head_dim, norms, &y->k_norm},
        {"self_attn.sinks", 1, y->n_heads, a->sinks ? MUST : gpt_oss, &y->sinks},
        {"self_attn.q_a_proj.weight", q_rank, d, low ? MUST : NEVER, &y->latent.q_a},
        {"self_attn.q_a_proj.bias", 1, q_rank, low ? o_bias : NEVER, &y->latent.q_a_bias},
        {"self_attn.q_a_layernorm.weight", 1, q_rank, low ? MUST : NEVER, &y->latent.q_a_norm},
        {"self_attn.q_b_proj.weight", q, q_rank, low ? MUST : NEVER, &y->q},
        {"self_attn.kv_a_proj_with_mqa.weight", p->head_dim, d, latent ? MUST : NEVER, &y->latent.kv_a},
        {"self_attn.kv_a_proj_with_mqa.bias", 1, p->head_dim, latent ? o_bias : NEVER, &y->latent.kv_a_bias},
        {"self_attn.kv_a_layernorm.weight", 1, rank, latent ? MUST : NEVER, &y->latent.kv_a_norm},
        {"self_attn.kv_b_proj.weight", y->n_heads * (p->latent.nope_dim + p->latent.v_dim), rank, latent ? MUST : NEVER,
         &y->latent.kv_b},
        {"self_attn.indexer.wq_b.weight", p->index.n_heads * p->index.dim, q_rank, index, &y->index.q},
        {"self_attn.indexer.wk.weight", p->index.dim, d, index, &y->index.k},
        {"self_attn.indexer.k_norm.weight", 1, p->index.dim, index, &y->index.k_norm},
        {"self_attn.indexer.k_norm.bias", 1, p->index.dim, index, &y->index.k_norm_bias},
        {"self_attn.indexer.weights_proj.weight", p->index.n_heads, d, index, &y->index.weights},
        {"self_attn.gate_proj.weight", model_gate_rows(m, y), d, a->gate ? MUST : NEVER, &y->gate},
        {"post_attention_layernorm.weight", 1, d, a->apart ? NEVER : MUST, behind ? &y->attn_post_norm : &y->ffn_norm},
        {"post_attention_layernorm.bias", 1, d, norm_bias, &y->ffn_norm_bias},
        {around ? "pre_mlp_layernorm.weight" : "pre_feedforward_layernorm.weight", 1, d, behind ? before : NEVER,
         &y->ffn_norm},
        {around || experts ? "post_mlp_layernorm.weight" : "post_feedforward_layernorm.weight", 1, d,
         behind || (experts && y->moe) ? MUST
         : experts                     ? MAYBE
                                       : NEVER,
         &y->ffn_post_norm},
        {"layer_scalar", 1, 1, own_norms, &y->out_scale},
        {"router.scale", 1, d, of_experts, &y->router_norm},
        {"router.per_expert_scale", 1, y->n_experts, of_experts, &y->expert_scale},
        {"pre_feedforward_layernorm_2.weight", 1, d, of_experts, &y->expert_norm},
        {"post_feedforward_layernorm_1.weight", 1, d, of_experts, &y->shared_post_norm},
        {"post_feedforward_layernorm_2.weight", 1, d, of_experts, &y->expert_post_norm},
        {"mlp.router.bias", 1, y->n_experts, gpt_oss, &y->router_bias},
    };
    xd_status st;
    char name[192];
    for (size_t i = 0; i < XD_ARRAY_LEN(parts); i++) {
        snprintf(name, sizeof name, "model.layers.%u.%s", l, parts[i].name);
        const bool of_attention = !strncmp(parts[i].name, "self_attn.", 10);
        if (parts[i].there != NEVER && !((y->linear || y->ffn_alone) && of_attention) &&
            (st = take(m, name, parts[i].rows, parts[i].cols, parts[i].there == MAYBE, parts[i].to, err)))
            return st;
    }
    if (experts && !y->moe) /* there is one of which no use is made */
        y->ffn_post_norm = (model_tensor){0};
    if (k_is_v) {
        y->v = y->k;
        y->v_bias = y->k_bias;
    }
    if (joined) {
        model_cut_qkv(y, &all, false, q, kv);
        model_cut_qkv(y, &all_biases, true, q, kv);
    }
    if ((st = !y->linear                     ? XD_OK
              : a->shortconv                 ? take_shortconv(m, l, y, err)
              : a->ssm                       ? take_ssm(m, l, y, err)
              : a->delta == MODEL_DELTA_KIMI ? take_kda(m, l, y, err)
                                             : take_delta(m, a, l, y, err)) ||
        (st = take_shared(m, a, l, err)))
        return st;
    return take_experts(m, a, l, err);
}

/* Tied, a file has one of the two, or both alike; where they differ, config.json is wrong about it (transformers 5 decides so too). */
static xd_status take_embedding(model *m, bool tied, xd_err *err)
{
    const model_params *p = &m->params;
    model_tensor *embed = &m->embed, *head = &m->lm_head;
    xd_status st;
    if ((st = take(m, "lm_head.weight", p->vocab, p->d_model, tied, head, err)) ||
        (st = take(m, "model.embed_tokens.weight", p->vocab, p->d_model, tied && head->data, embed, err)))
        return st;
    if (!embed->data)
        *embed = *head;
    if (!head->data ||
        (tied && head->fmt == embed->fmt && !head->scales && !memcmp(head->data, embed->data, head->bytes)))
        *head = *embed;
    return XD_OK;
}

/* The name of a layer's tensor from "layers." on; NULL: it is another. */
static const char *of_layer(const model *m, const char *name)
{
    const char *prefix = m->prefix ? m->prefix : "model.";
    const size_t n = strlen(prefix);
    return !strncmp(name, prefix, n) && !strncmp(name + n, "layers.", 7) ? name + n : NULL;
}

/* Is it (its name from there on) a tensor of one of the layers behind the last one that only guess further tokens? */
static bool is_nextn(const model *m, const char *name)
{
    unsigned layer;
    return sscanf(name, "layers.%u.", &layer) == 1 && layer >= m->params.n_layers &&
           layer - m->params.n_layers < m->params.n_nextn;
}

/* A tensor of a layer that nobody asked for changes what the model computes where it comes from. */
static xd_status check_all_taken(const model *m, const model_arch *a, xd_err *err)
{
    for (uint32_t i = 0; i < m->n_shards; i++)
        for (uint32_t k = 0; k < safetensors_count(m->shards[i]); k++) {
            const safetensors_entry *e = safetensors_at(m->shards[i], k);
            const char *of = of_layer(m, e->name);
            if (!e->taken && of && !strstr(of, ".rotary_emb.inv_freq") && !is_nextn(m, of) && !model_is_of_no_use(m, e))
                return xd_fail(err, XD_UNSUPPORTED, 0,
                               "%s: tensor '%s' has no place in a %s model as config.json describes it",
                               safetensors_path(m->shards[i]), e->name, a->model_type);
        }
    return XD_OK;
}

static xd_status take_all(model *m, const model_arch *a, bool tied, xd_err *err)
{
    const model_params *p = &m->params;
    xd_status st;
    if ((st = take_embedding(m, tied, err)) ||
        (st = take(m, "model.norm.weight", 1, p->d_model, false, &m->final_norm, err)) ||
        (a->layer_norms && (st = take(m, "model.norm.bias", 1, p->d_model, false, &m->final_norm_bias, err))) ||
        (m->head_bias && (st = take(m, "lm_head.bias", 1, p->vocab, false, &m->lm_head_bias, err))))
        return st;
    for (uint32_t l = 0; l < p->n_layers; l++)
        if ((st = take_layer(m, a, l, err)))
            return st;
    /* A layer left out would give answers, and nobody would know what is wrong with them. */
    char beyond[64];
    const char *path;
    snprintf(beyond, sizeof beyond, "model.layers.%u.input_layernorm.weight", p->n_layers + p->n_nextn);
    if (model_find_tensor(m, beyond, &path))
        return xd_fail(err, XD_BAD_MODEL, 0, "%s has layer %u (from 0), config.json says num_hidden_layers = %u", path,
                       p->n_layers + p->n_nextn, p->n_layers);
    return check_all_taken(m, a, err);
}

static bool has_snapshots(const char *path)
{
    char dir[4200];
    struct stat info;
    return snprintf(dir, sizeof dir, "%s/snapshots", path) < (int)sizeof dir && !stat(dir, &info) &&
           S_ISDIR(info.st_mode);
}

/* ModelOpt tells how in a file of its own, and in newer versions in config.json too. */
static xd_status add_hf_quant_config(json_t *config, const char *dir, xd_err *err)
{
    char file[4200];
    XD_CLEANUP(json_decrefp) json_t *told = NULL;
    if (hf_has(config, "quantization_config"))
        return XD_OK;
    snprintf(file, sizeof file, "%s/hf_quant_config.json", dir);
    xd_status st = hf_load(file, &told, err);
    if (st)
        return st == XD_NOT_FOUND ? XD_OK : st;
    json_t *q = json_object_get(told, "quantization");
    if (!json_is_object(q))
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: 'quantization' must be an object", file);
    return json_object_set_new(q, "quant_method", json_string("modelopt")) ||
                   json_object_set(config, "quantization_config", q)
               ? xd_fail(err, XD_NOMEM, 0, "configuration")
               : XD_OK;
}

xd_status model_open_dir(model *m, const char *path, xd_err *err)
{
    m->dir = strdup(path);
    if (!m->dir)
        return xd_fail(err, XD_NOMEM, 0, "handle for '%s'", path);
    char file[4200];
    if (snprintf(file, sizeof file, "%s/config.json", path) >= 4097)
        return xd_fail(err, XD_BAD_MODEL, 0, "the model's path is too long");
    json_t *config;
    xd_status st = hf_load(file, &config, err);
    if (st == XD_NOT_FOUND)
        return xd_fail(err, XD_NOT_FOUND, 0, "'%s' is not a model directory: it has no config.json%s", path,
                       has_snapshots(path)
                           ? "; this is Hugging Face's cache, the models are the directories in its snapshots/"
                           : "");
    if (st)
        return st;
    bool tied;
    const model_arch *a = NULL;
    if (!(st = add_hf_quant_config(config, path, err)))
        st = model_arch_of(m, config, file, &a, err);
    if (!st)
        m->params.norm_offset = a->centred ? 1 : 0;
    if (!st && !(st = model_read_params(m, a, config, file, err)) &&
        !(st = model_read_defaults(m, config, file, err)) && !(st = open_shards(m, err)) &&
        !(st = hf_bool(config, file, "tie_word_embeddings", false, &tied, err)))
        st = take_all(m, a, tied, err);
    json_decref(config);
    return st;
}
