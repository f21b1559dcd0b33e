/* state.c - linear layers (Gated DeltaNet, Mamba2, short convolutions): the products on both sides of the state, and when what is known of a sequence
 * is kept.
 *
 * A layer's input products make one row of what its operation takes for each token. Those of Gated DeltaNet are q, k, v, z, b, a. Files have
 * their matrices in two orders; where the rows of a key head lie together they are copied, head by head, when the trunk is loaded. On a device
 * all that have one format become one matrix.
 *
 * Segments. A long step goes in pieces, which bounds the workspaces; and where the state behind a token inside a prompt's chunk is to be kept
 * (exec_keep), the state takes the tokens up to there, is copied to the host in stream order, and takes the others. The products are the
 * same, and so are the bits: the operation goes token by token. So a step is cut into segments, each one call of the operation; what they
 * need is packed with the step's other inputs. A recorded step has a token of each sequence, and nothing is kept. */
#include <math.h>
#include <string.h>

#include "engine/exec/exec_priv.h"

/* --- loading ------------------------------------------------------------------------------------------------------- */

static const char what[] = "a matrix of linear attention", of_conv[] = "a convolution";

uint32_t exec_state_width(const model_params *hp)
{
    return hp->shortconv.channels ? kern_shortconv_width(&hp->shortconv)
           : hp->ssm.n_heads      ? kern_ssm_width(&hp->ssm)
                                  : kern_delta_width(&hp->delta);
}

uint32_t exec_state_out_width(const model_params *hp)
{
    return hp->shortconv.channels ? hp->shortconv.channels
           : hp->ssm.n_heads      ? kern_ssm_inner(&hp->ssm)
                                  : hp->delta.n_v_heads * hp->delta.v_dim;
}

uint64_t exec_state_scratch_bytes(const exec *x, uint32_t n_tokens)
{
    const kern_ops *ops = x->dev->ops;
    return x->hp->shortconv.channels ? 0
           : x->hp->ssm.n_heads      ? ops->ssm_scratch_bytes(x->dev, n_tokens, &x->hp->ssm)
                                     : ops->delta_scratch_bytes(x->dev, n_tokens, &x->hp->delta);
}

/* With its rows by key heads it lies nowhere as it is needed. */
static bool is_copied(const exec *x, const model_layer *ml, const model_tensor *t)
{
    return exec_copies(x, t) || t == &ml->delta.in[MODEL_DELTA_QKVZ] || t == &ml->delta.in[MODEL_DELTA_BA];
}

uint64_t exec_state_trunk_bytes(const exec *x, const model_layer *ml)
{
    const kern_delta_geom *g = &x->hp->delta;
    const kern_shortconv_geom *sc = &x->hp->shortconv;
    if (!ml->linear)
        return 0;
    if (sc->channels)
        return xd_align_up((uint64_t)sc->channels * sc->conv * sizeof(float), 256) +
               (exec_copies(x, &ml->shortconv.in) ? xd_align_up(ml->shortconv.in.bytes, 256) : 0);
    if (x->hp->ssm.n_heads) {
        const model_tensor *vectors[] = {&ml->ssm.conv, &ml->ssm.conv_bias, &ml->ssm.dt_bias, &ml->ssm.dt_bias,
                                         &ml->ssm.skip, &ml->ssm.norm}; /* rates of decay are as many as dt_bias */
        uint64_t sum = exec_copies(x, &ml->ssm.in) ? xd_align_up(ml->ssm.in.bytes, 256) : 0;
        for (size_t i = 0; i < XD_ARRAY_LEN(vectors); i++)
            sum += xd_align_up((uint64_t)vectors[i]->rows * vectors[i]->cols * sizeof(float), 256);
        return sum;
    }
    uint64_t n = xd_align_up((uint64_t)kern_delta_channels(g) * g->conv * sizeof(float), 256) +
                 xd_align_up(g->n_v_heads * sizeof(float), 256) +
                 xd_align_up(kern_delta_decays(g) * sizeof(float), 256) + xd_align_up(g->v_dim * sizeof(float), 256);
    for (int i = 0; i < MODEL_DELTA_MATS; i++) {
        const model_tensor *t = &ml->delta.in[i];
        if (t->data && is_copied(x, ml, t))
            n += xd_align_up(t->bytes, 256) + 256; /* what is one here may become a part of another */
    }
    return n;
}

uint32_t exec_state_mats(const model_layer *ml, kern_mat *ret)
{
    uint32_t n = 0;
    for (int i = 0; i < EXEC_STATE_MATS; i++) {
        const model_tensor *t = i < MODEL_DELTA_MATS    ? &ml->delta.in[i]
                                : i == MODEL_DELTA_MATS ? &ml->shortconv.in
                                                        : &ml->ssm.in;
        if (t->data)
            ret[n++] = (kern_mat){NULL, kern_row_bytes(t->fmt, t->cols), t->rows, t->cols, t->fmt};
    }
    return n;
}

/* Adds part `first`, of n rows in each key head's `width`, of all key heads; or a matrix that is the part. */
static uint32_t add_part(exec_rows *rows, uint32_t n_rows, const kern_delta_geom *g, const model_tensor *grouped,
                         uint32_t width, uint32_t first, uint32_t n, const model_tensor *flat)
{
    if (!grouped->data) {
        if (flat)
            rows[n_rows++] = (exec_rows){flat, 0, flat->rows};
        return n_rows;
    }
    for (uint32_t h = 0; h < g->n_k_heads; h++)
        rows[n_rows++] = (exec_rows){grouped, h * width + first, n};
    return n_rows;
}

/* In the order of a row of x. */
static uint32_t list_rows(const kern_delta_geom *g, const model_layer *ml, exec_rows *rows)
{
    const model_tensor *in = ml->delta.in, *qkvz = &in[MODEL_DELTA_QKVZ], *ba = &in[MODEL_DELTA_BA];
    const uint32_t per = g->n_v_heads / g->n_k_heads, v = per * g->v_dim, width = 2 * (g->k_dim + v);
    uint32_t n = 0;
    const bool apart = in[MODEL_DELTA_K].data;
    n = add_part(rows, n, g, qkvz, width, 0, g->k_dim, &in[MODEL_DELTA_QKV]);
    n = add_part(rows, n, g, qkvz, width, g->k_dim, g->k_dim, apart ? &in[MODEL_DELTA_K] : NULL);
    n = add_part(rows, n, g, qkvz, width, 2 * g->k_dim, v, apart ? &in[MODEL_DELTA_V] : NULL);
    n = add_part(rows, n, g, qkvz, width, 2 * g->k_dim + v, v, &in[MODEL_DELTA_Z]);
    n = add_part(rows, n, g, ba, 2 * per, 0, per, &in[MODEL_DELTA_B]);
    return add_part(rows, n, g, ba, 2 * per, per, per, &in[MODEL_DELTA_A]);
}

/* What comes before the matrix. */
static const model_tensor *low_of(const model_layer *ml, const model_tensor *t)
{
    const model_tensor *low = t == &ml->delta.in[MODEL_DELTA_Z]   ? &ml->delta.in[MODEL_DELTA_Z_LOW]
                              : t == &ml->delta.in[MODEL_DELTA_A] ? &ml->delta.in[MODEL_DELTA_A_LOW]
                                                                  : NULL;
    return low && low->data ? low : NULL;
}

static xd_status load_delta_in(exec *x, const model_layer *ml, exec_layer *l, xd_err *err)
{
    const kern_delta_geom *g = &x->hp->delta;
    XD_CLEANUP(xd_freep) exec_rows *rows = malloc(6ull * g->n_k_heads * sizeof *rows);
    if (!rows)
        return xd_fail(err, XD_NOMEM, 0, "rows of %s", what);
    const uint32_t n = list_rows(g, ml, rows);
    xd_status st = XD_OK;
    for (uint32_t i = 0, k; i < n && !st; i += k) {
        const bool copied = is_copied(x, ml, rows[i].t);
        const model_tensor *low = low_of(ml, rows[i].t);
        for (k = 1; copied && !low && i + k < n && exec_same_kind(rows[i].t, rows[i + k].t) &&
                    is_copied(x, ml, rows[i + k].t) && !low_of(ml, rows[i + k].t);)
            k++;
        kern_mat *to = &l->state.in[l->state.n_in++];
        st = copied ? exec_load_rows(x, &rows[i], k, to, what, err) : exec_load_matrix(x, rows[i].t, to, what, err);
        if (!st && low)
            st = exec_load_matrix(x, low, &l->state.low[l->state.n_in - 1], what, err);
    }
    return st;
}

/* -exp(a_log), unless a file has that ready. */
static xd_status load_decay(exec *x, const model_tensor *a_log, const model_tensor *ready, exec_layer *l, float *tmp,
                            uint32_t tmp_cap, xd_err *err)
{
    if (!a_log->data)
        return exec_load_vector(x, ready, tmp, tmp_cap, &l->state.neg_exp_a, "rates of decay", err);
    exec_to_float(tmp, a_log, a_log->cols);
    for (uint32_t i = 0; i < a_log->cols; i++)
        tmp[i] = (float)-exp((double)tmp[i]);
    return exec_upload_values(x, tmp, a_log->cols, &l->state.neg_exp_a, "rates of decay", err);
}

static xd_status load_delta(exec *x, const model_layer *ml, exec_layer *l, float *tmp, uint32_t tmp_cap, xd_err *err)
{
    const model_tensor *a_log = &ml->delta.a_log, *conv[] = {&ml->delta.conv, &ml->delta.conv_k, &ml->delta.conv_v};
    exec_rows parts[XD_ARRAY_LEN(conv)];
    uint32_t n = 0;
    xd_status st;
    for (size_t i = 0; i < XD_ARRAY_LEN(conv); i++)
        if (conv[i]->data)
            parts[n++] = (exec_rows){conv[i], 0, conv[i]->rows * conv[i]->cols};
    if ((st = load_delta_in(x, ml, l, err)) ||
        (st = exec_load_values(x, parts, n, tmp, tmp_cap, &l->state.conv, of_conv, err)) ||
        (st = exec_load_vector(x, &ml->delta.dt_bias, tmp, tmp_cap, &l->state.dt_bias, "biases of time steps", err)) ||
        (st = exec_load_vector(x, &ml->delta.norm, tmp, tmp_cap, &l->state.norm, "a norm of linear attention", err)))
        return st;
    return load_decay(x, a_log, &ml->delta.neg_exp_a, l, tmp, tmp_cap, err);
}

static xd_status load_ssm(exec *x, const model_layer *ml, exec_layer *l, float *tmp, uint32_t tmp_cap, xd_err *err)
{
    const struct {
        const model_tensor *t;
        float **to;
        const char *what;
    } vectors[] = {{&ml->ssm.conv, &l->state.conv, of_conv},
                   {&ml->ssm.conv_bias, &l->state.conv_bias, "biases of a convolution"},
                   {&ml->ssm.dt_bias, &l->state.dt_bias, "biases of time steps"},
                   {&ml->ssm.skip, &l->state.skip, "weights of what passes a state by"},
                   {&ml->ssm.norm, &l->state.norm, "a norm behind a state"}};
    l->state.n_in = 1;
    xd_status st = exec_load_matrix(x, &ml->ssm.in, &l->state.in[0], "a matrix before a state", err);
    for (size_t i = 0; i < XD_ARRAY_LEN(vectors) && !st; i++)
        st = exec_load_vector(x, vectors[i].t, tmp, tmp_cap, vectors[i].to, vectors[i].what, err);
    return st ? st : load_decay(x, &ml->ssm.a_log, &ml->ssm.neg_exp_a, l, tmp, tmp_cap, err);
}

xd_status exec_state_load(exec *x, const model_layer *ml, exec_layer *l, float *tmp, uint32_t tmp_cap, xd_err *err)
{
    xd_status st;
    if (x->hp->ssm.n_heads)
        return load_ssm(x, ml, l, tmp, tmp_cap, err);
    if (!x->hp->shortconv.channels)
        return load_delta(x, ml, l, tmp, tmp_cap, err);
    l->state.n_in = 1;
    st = exec_load_matrix(x, &ml->shortconv.in, &l->state.in[0], "a matrix before a convolution", err);
    return st ? st : exec_load_vector(x, &ml->shortconv.conv, tmp, tmp_cap, &l->state.conv, of_conv, err);
}

/* --- a step's segments --------------------------------------------------------------------------------------------- */

xd_status exec_state_open(exec *x, xd_err *err)
{
    exec_state *d = &x->state;
    if (!x->hp->n_linear)
        return XD_OK;
    d->layer_bytes = kv_state_layer_bytes(model_state_floats(x->hp));
    d->cap = x->opt.max_tokens / EXEC_STATE_TOKENS + 1 + EXEC_MAX_KEEP * x->opt.max_seqs;
    d->segments = calloc(d->cap, sizeof *d->segments);
    return d->segments ? XD_OK : xd_fail(err, XD_NOMEM, 0, "segments of a step");
}

void exec_state_close(exec *x)
{
    free(x->state.segments);
}

uint64_t exec_state_words(const exec *x)
{
    const exec_options *o = &x->opt;
    if (!x->hp->n_linear)
        return 0;
    const uint64_t segments = o->max_tokens / EXEC_STATE_TOKENS + 1 + EXEC_MAX_KEEP * (uint64_t)o->max_seqs;
    return o->max_seqs + segments * (o->max_seqs + 1ull);
}

static const void *state_of(const exec *x, uint32_t slot)
{
    return (const char *)x->state.base + slot * x->state.slot_bytes;
}

void exec_state_step(exec *x, const exec_batch *b, exec_shape *s)
{
    exec_state *d = &x->state;
    uint32_t at = 0, first = 0, seq = 0, keep = 0; /* first: of the sequence */
    d->n = 0;
    while (at < s->n_tokens) {
        exec_segment *g = &d->segments[d->n++];
        uint32_t end = XD_MIN(at - at % EXEC_STATE_TOKENS + EXEC_STATE_TOKENS, s->n_tokens);
        *g = (exec_segment){.first = at};
        /* The next token behind which something is kept. */
        while (!s->recorded && seq < b->n_seqs && keep == b->seqs[seq].n_keep) {
            first += b->seqs[seq++].n_tokens;
            keep = 0;
        }
        if (!s->recorded && seq < b->n_seqs && first + b->seqs[seq].keep[keep].after <= end) {
            const exec_run_seq *q = &b->seqs[seq];
            end = first + q->keep[keep].after;
            g->state = state_of(x, q->state);
            g->keep = q->keep[keep++].to;
        }
        g->n = end - at;
        at = end;
    }
    s->run_words = s->recorded ? 0 : d->n * (s->n_seqs + 1);
}

void exec_state_pack(const exec *x, const exec_batch *b, const exec_shape *s, const exec_layout *in)
{
    uint32_t *w = x->in_host;
    for (uint32_t i = 0; i < s->n_seqs; i++)
        w[in->seq_slot + i] = i < b->n_seqs ? b->seqs[i].state : 0;
    for (uint32_t k = 0; k < x->state.n && !s->recorded; k++) {
        exec_segment *g = &x->state.segments[k];
        g->runs = in->runs + k * (s->n_seqs + 1);
        uint32_t first = 0;
        for (uint32_t i = 0; i <= s->n_seqs; i++) {
            w[g->runs + i] = XD_MIN(XD_MAX(first, g->first) - g->first, g->n);
            first += i < s->n_seqs ? b->seqs[i].n_tokens : 0;
        }
    }
}

/* --- a layer ------------------------------------------------------------------------------------------------------- */

/* Tokens [first, first + n) of the step, from x->x to x->qkv. */
static xd_status project(exec *x, const exec_layer *l, uint32_t first, uint32_t n, xd_err *err)
{
    const kern_ops *ops = x->dev->ops;
    const uint32_t d = x->hp->d_model;
    float *y = x->qkv;
    for (uint32_t i = 0; i < l->state.n_in; y += l->state.in[i++].rows) {
        kern_linear_args a = {.y = y,
                              .x = (i ? x->h : x->x) + (size_t)first * d,
                              .w = l->state.in[i],
                              .n_tokens = n,
                              .x_stride = d,
                              .y_stride = exec_state_width(x->hp),
                              .norm = i ? NULL : l->attn_norm,
                              .normed = x->h + (size_t)first * d,
                              .norm_eps = x->hp->rms_eps,
                              .scratch = x->scratch};
        if (l->state.low[i].data) { /* by way of where the state's operation will put what it leaves */
            kern_linear_args low = a;
            low.w = l->state.low[i];
            low.y = x->attn;
            a.x = x->attn;
            a.x_stride = low.y_stride = low.w.rows;
            RUN(ops->linear(x->dev, &low));
        }
        RUN(ops->linear(x->dev, &a));
    }
    return XD_OK;
}

/* A segment of the piece that begins at token `piece`, from x->qkv to x->attn. */
static xd_status run_segment(exec *x, uint32_t layer, const exec_shape *s, const exec_segment *g, uint32_t piece,
                             xd_err *err)
{
    const kern_ops *ops = x->dev->ops;
    const exec_layer *l = &x->layers[layer];
    const model_params *hp = x->hp;
    const exec_layout in = exec_layout_of(x, s);
    const uint32_t width = exec_state_width(hp), at = g->first - piece;
    const uint64_t layer_at = model_get_layer(x->m, layer)->ordinal * x->state.layer_bytes;
    const uint32_t *token_seq = x->in_dev + in.token_seq + g->first, *token_pos = x->in_dev + in.token_pos + g->first,
                   *run_start = s->recorded ? NULL : x->in_dev + g->runs;
    const float *row = x->qkv + (size_t)at * width;
    float *y = x->attn + (size_t)at * exec_state_out_width(hp);
    if (hp->shortconv.channels)
        RUN(ops->shortconv(x->dev, &(kern_shortconv_args){.y = y,
                                                          .x = row,
                                                          .n_tokens = g->n,
                                                          .x_stride = width,
                                                          .geom = hp->shortconv,
                                                          .conv_w = l->state.conv,
                                                          .token_seq = token_seq,
                                                          .token_pos = token_pos,
                                                          .seq_slot = x->in_dev + in.seq_slot,
                                                          .run_start = run_start,
                                                          .n_seqs = s->n_seqs,
                                                          .state = (char *)x->state.base + layer_at,
                                                          .slot_bytes = x->state.slot_bytes}));
    else if (hp->ssm.n_heads)
        RUN(ops->ssm(x->dev, &(kern_ssm_args){.y = y,
                                              .x = row,
                                              .n_tokens = g->n,
                                              .x_stride = width,
                                              .geom = hp->ssm,
                                              .conv_w = l->state.conv,
                                              .conv_bias = l->state.conv_bias,
                                              .neg_exp_a = l->state.neg_exp_a,
                                              .dt_bias = l->state.dt_bias,
                                              .skip = l->state.skip,
                                              .norm = l->state.norm,
                                              .norm_eps = hp->ssm_eps,
                                              .token_seq = token_seq,
                                              .token_pos = token_pos,
                                              .seq_slot = x->in_dev + in.seq_slot,
                                              .run_start = run_start,
                                              .n_seqs = s->n_seqs,
                                              .state = (char *)x->state.base + layer_at,
                                              .slot_bytes = x->state.slot_bytes,
                                              .scratch = x->state.scratch}));
    else
        RUN(ops->delta(x->dev, &(kern_delta_args){.y = y,
                                                  .x = row,
                                                  .n_tokens = g->n,
                                                  .x_stride = width,
                                                  .geom = hp->delta,
                                                  .conv_w = l->state.conv,
                                                  .neg_exp_a = l->state.neg_exp_a,
                                                  .dt_bias = l->state.dt_bias,
                                                  .norm = l->state.norm,
                                                  .norm_eps = hp->rms_eps,
                                                  .token_seq = token_seq,
                                                  .token_pos = token_pos,
                                                  .seq_slot = x->in_dev + in.seq_slot,
                                                  .run_start = run_start,
                                                  .n_seqs = s->n_seqs,
                                                  .state = (char *)x->state.base + layer_at,
                                                  .slot_bytes = x->state.slot_bytes,
                                                  .scratch = x->state.scratch}));
    if (g->state)
        RUN(ops->download(x->dev, (char *)g->keep + layer_at, (const char *)g->state + layer_at,
                          model_state_floats(hp) * sizeof(float)));
    return XD_OK;
}

xd_status exec_state_layer(exec *x, uint32_t layer, const exec_shape *s, xd_err *err)
{
    const kern_ops *ops = x->dev->ops;
    const exec_layer *l = &x->layers[layer];
    const uint32_t d = x->hp->d_model;
    const exec_segment *g = x->state.segments, *end = g + x->state.n;
    xd_status st;
    for (uint32_t first = 0, n; first < s->n_tokens; first += n) {
        n = XD_MIN(s->n_tokens - first, (uint32_t)EXEC_STATE_TOKENS);
        if ((st = project(x, l, first, n, err)))
            return st;
        for (; g < end && g->first < first + n; g++)
            if ((st = run_segment(x, layer, s, g, first, err)))
                return st;
        RUN(ops->linear(x->dev, &(kern_linear_args){.y = x->x + (size_t)first * d,
                                                    .x = x->attn,
                                                    .w = l->o,
                                                    .bias = l->o_bias,
                                                    .n_tokens = n,
                                                    .x_stride = exec_state_out_width(x->hp),
                                                    .y_stride = d,
                                                    .accumulate = true,
                                                    .scratch = x->scratch}));
    }
    return XD_OK;
}
