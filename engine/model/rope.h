/* rope.h - rotary frequencies from a checkpoint's configuration. */
#ifndef ENGINE_ROPE_H
#define ENGINE_ROPE_H

#include "engine/model/hf_config.h"
#include "engine/model/model.h"

/* Fills p->ropes[0] from `rope_theta` + `rope_scaling` or from `rope_parameters`. p->head_dim, p->full_head_dim
 * and p->max_positions are set. Formulas: transformers modeling_rope_utils (default, dynamic, linear, llama3, longrope, proportional, yarn); others are XD_UNSUPPORTED.
 * default_theta: the architecture's when the file is silent. `known`: what it may say, of the following. */
enum {
    ROPE_PARTIAL = 1, /* a part of each head alone may be rotated */
    /* `rope_parameters` has an object for full_attention, of ropes[0], and one for sliding_attention, of ropes[1]; one that is missing leaves
     * rot_dim 0 */
    ROPE_BY_TYPE = 2,
    ROPE_LONG = 4, /* default, or longrope with short_mscale and long_mscale (Phi-3.5-MoE): p->long_rope, too */
};
xd_status rope_read(const json_t *config, const char *file, double default_theta, unsigned known, model_params *p,
                    xd_err *err) XD_MUST_CHECK;

/* By what latent attention multiplies Q and K each, besides the rotation: 1, or of mscale_all_dim in scaled types. */
xd_status rope_latent_factor(const json_t *config, const char *file, double *ret, xd_err *err) XD_MUST_CHECK;

/* As rope_read(), into ropes[n], but with the base theta whatever the file says. */
xd_status rope_read_based(const json_t *config, const char *file, double theta, bool partial, model_params *p,
                          uint32_t n, xd_err *err) XD_MUST_CHECK;

/* ropes[0] once more where the type is "dynamic" with an `alpha`, which only Hunyuan knows: a larger base, whatever the length. */
xd_status rope_read_alpha(const json_t *config, const char *file, double default_theta, model_params *p,
                          xd_err *err) XD_MUST_CHECK;

/* Layers with ropes[n] are not rotated at all. */
void rope_make_still(model_params *p, uint32_t n);

/* Queries that grow with their position, as Llama 4's (llama_4_scaling_beta, which must be told): how many positions are before that; 0: all. */
xd_status rope_plain_queries(const json_t *config, const char *file, uint32_t *ret, xd_err *err) XD_MUST_CHECK;

#endif
