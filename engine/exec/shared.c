/* shared.c - shared experts: a dense FFN that every token has beside its picks. Its weights are of the trunk, so that it costs no bytes of the
 * link, and what it adds comes before the picks: in one order, whatever the batch and wherever pages lie. */
#include "engine/exec/exec_priv.h"

static xd_status build_piece(exec *x, uint32_t layer, uint32_t first, uint32_t n, xd_err *err)
{
    const kern_ops *ops = x->dev->ops;
    const exec_layer *l = &x->layers[layer];
    const float limit = model_get_layer(x->m, layer)->shared_limit;
    const uint32_t d = x->hp->d_model, d_ff = l->shared_down.cols, rows = x->hp->act == KERN_RELU2 ? d_ff / 2 : d_ff;
    const bool apart = l->shared_post_norm;
    const kern_linear_args of_x = {
        .x = exec_ffn_input(x, layer) + (size_t)first * d, .n_tokens = n, .x_stride = d, .scratch = x->scratch};
    kern_linear_args a = of_x;
    a.y_stride = 2 * rows;
    for (uint32_t i = 0; i < l->n_shared; i++) {
        a.y = x->shared_gate_up + i * rows;
        a.w = l->shared[i];
        RUN(ops->linear(x->dev, &a));
    }
    if (l->shared_gate.data) {
        a = of_x;
        a.y = x->shared_gate;
        a.y_stride = 1;
        a.w = l->shared_gate;
        RUN(ops->linear(x->dev, &a));
    }
    RUN(ops->swiglu(x->dev, &(kern_swiglu_args){.y = x->shared_act,
                                                .gate_up = x->shared_gate_up,
                                                .n_tokens = n,
                                                .dim = rows,
                                                .row_gate = l->shared_gate.data ? x->shared_gate : NULL,
                                                .act = exec_act(x, limit),
                                                .act_limit = limit}));
    RUN(ops->linear(x->dev,
                    &(kern_linear_args){.y = (apart ? x->add_shared : exec_ffn_sum(x, layer)) + (size_t)first * d,
                                        .x = x->shared_act,
                                        .w = l->shared_down,
                                        .n_tokens = n,
                                        .x_stride = d_ff,
                                        .y_stride = d,
                                        .accumulate = !apart,
                                        .scratch = x->scratch}));
    return XD_OK;
}

xd_status exec_build_shared(exec *x, uint32_t layer, const exec_shape *s, xd_err *err)
{
    const exec_layer *l = &x->layers[layer];
    xd_status st = XD_OK;
    for (uint32_t first = 0; l->n_shared && first < s->n_tokens && !st; first += EXEC_SHARED_TOKENS)
        st = build_piece(x, layer, first, XD_MIN(s->n_tokens - first, (uint32_t)EXEC_SHARED_TOKENS), err);
    return st;
}
