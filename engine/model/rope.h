/* rope.h - rotary frequencies from a checkpoint's configuration. */
#ifndef ENGINE_ROPE_H
#define ENGINE_ROPE_H

#include "engine/model/hf_config.h"
#include "engine/model/model.h"

/* Fills p->rot_dim, inv_freq and rope_scale from `rope_theta` + `rope_scaling` or from `rope_parameters`. p->head_dim and
 * p->max_positions are set. Formulas: transformers modeling_rope_utils (default, dynamic, linear, llama3, yarn); others are XD_UNSUPPORTED.
 * default_theta: the architecture's when the file is silent. partial: it may rotate a part of each head only. */
xd_status rope_read(const json_t *config, const char *file, double default_theta, bool partial, model_params *p,
                    xd_err *err) XD_MUST_CHECK;

/* By what latent attention multiplies Q and K each, besides the rotation: 1, or of mscale_all_dim in scaled types. */
xd_status rope_latent_factor(const json_t *config, const char *file, double *ret, xd_err *err) XD_MUST_CHECK;

#endif
