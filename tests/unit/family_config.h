/* family_config.h - models of a configuration without weights: opened as synthetic ones, and refused by name. Between make_dir() and
 * remove_dir() of scratch.h. */
#ifndef TESTS_UNIT_FAMILY_CONFIG_H
#define TESTS_UNIT_FAMILY_CONFIG_H

#include <criterion/criterion.h>
#include <string.h>

#include "engine/model/model.h"
#include "tests/unit/scratch.h"

static inline xd_status open_synthetic(const char *text, bool geometry_only, model **ret, xd_err *err)
{
    char path[160];
    snprintf(path, sizeof path, "synthetic:%s", put("config.json", text, strlen(text)));
    return model_open(&(model_options){.path = path, .geometry_only = geometry_only}, ret, err);
}

static inline xd_status open_config(const char *text, model **ret, xd_err *err)
{
    return open_synthetic(text, true, ret, err);
}

typedef struct refused {
    const char *config, *says;
} refused;

static inline void refuse(const refused *cases, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        model *m = NULL;
        xd_err err;
        xd_status st = open_config(cases[i].config, &m, &err);
        cr_assert(st == XD_UNSUPPORTED || st == XD_BAD_MODEL, "%s: %d", cases[i].config, st);
        cr_assert(st && strstr(err.msg, cases[i].says), "%s -> %s", cases[i].config, st ? err.msg : "");
        model_free(m);
    }
}

#endif
