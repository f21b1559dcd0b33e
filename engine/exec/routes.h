/* routes.h - picks of experts taken from a recorded trace instead of the router: a synthetic model then has the locality of the model
 * that was recorded. Immutable once open: any thread may ask. */
#ifndef ENGINE_ROUTES_H
#define ENGINE_ROUTES_H

#include "config/error.h"
#include "config/util.h"
#include "engine/model/model.h"

typedef struct routes routes;

/* XD_BAD_CONFIG when the trace is of other layers or experts than m, or holds no decode step. */
xd_status routes_open(const char *path, const model *m, routes **ret, xd_err *err) XD_MUST_CHECK;
void routes_free(routes *r);
XD_DEFINE_CLEANUP(routes, routes_free)

/* The top_k experts of the layer, all different, for the token at `pos` of the timeline `salt`: out[0..top_k). A timeline begins somewhere
 * in the trace and goes on through its decode steps, one a position. A step that touched more experts (it had several sequences)
 * gives some of them, one that touched fewer is filled up. */
void routes_pick(const routes *r, uint64_t salt, uint32_t pos, uint32_t layer, uint32_t *out);

#endif
