/* damaged.h - golden models with something else in one place of a file, and what is said when they are opened. Between make_dir() and
 * remove_dir() of scratch.h. */
#ifndef TESTS_UNIT_DAMAGED_H
#define TESTS_UNIT_DAMAGED_H

#include <criterion/criterion.h>
#include <string.h>

#include "config/util.h"
#include "engine/model/model.h"
#include "tests/unit/scratch.h"

/* In config.json or in the header of model.safetensors, `from` at or behind `at` becomes `to`, of the same length; or the tensor `at` begins
 * with other bytes. */
typedef struct damage {
    const char *golden, *at, *from, *to, *says;
    const void *value;
    size_t value_bytes;
    bool in_config;
    const struct damage *also; /* one more */
} damage;
#define DAMAGED(of, where, is, becomes, text)                              \
    {                                                                      \
        .golden = of, .at = where, .from = is, .to = becomes, .says = text \
    }
#define MISCONFIGURED(of, where, is, becomes, text)                                           \
    {                                                                                         \
        .golden = of, .at = where, .from = is, .to = becomes, .says = text, .in_config = true \
    }

/* NULL: the model has no such file. */
static inline void *read_golden(const char *golden, const char *name, size_t *ret_bytes)
{
    const char *root = getenv("EXPERTD_SOURCE_ROOT");
    char path[4096];
    snprintf(path, sizeof path, "%s/tests/data/golden/%s/%s", root ? root : ".", golden, name);
    FILE *f = fopen(path, "rb");
    *ret_bytes = 0;
    if (!f)
        return NULL;
    cr_assert(!fseek(f, 0, SEEK_END), "%s", path);
    *ret_bytes = (size_t)ftell(f);
    char *data = malloc(*ret_bytes + 1);
    rewind(f);
    cr_assert(data && fread(data, 1, *ret_bytes, f) == *ret_bytes && !fclose(f));
    return data;
}

static inline void do_damage(const damage *d, char *config, size_t config_bytes, char *file)
{
    uint64_t header;
    memcpy(&header, file, sizeof header);
    char *text = d->in_config ? config : file + 8, *end = d->in_config ? config + config_bytes : file + 8 + header;
    char *place = memmem(text, (size_t)(end - text), d->at, strlen(d->at));
    if (place && d->from)
        place = memmem(place, (size_t)(end - place), d->from, strlen(d->from));
    cr_assert(place, "%s: %s %s", d->golden, d->at, d->from ? d->from : "");
    if (d->from) {
        cr_assert_eq(strlen(d->from), strlen(d->to));
        memcpy(place, d->to, strlen(d->to));
    } else {
        const char *offset = strstr(place, "\"data_offsets\":[");
        cr_assert(offset);
        memcpy(end + strtoull(offset + 16, NULL, 10), d->value, d->value_bytes);
    }
}

static inline xd_status open_damaged(const damage *d, xd_err *err)
{
    size_t n, bytes;
    char *config = read_golden(d->golden, "config.json", &n),
         *file = read_golden(d->golden, "model.safetensors", &bytes);
    cr_assert(config && file, "%s", d->golden);
    for (const damage *each = d; each; each = each->also)
        do_damage(each, config, n, file);
    put("config.json", config, n);
    put("model.safetensors", file, bytes);
    char *told = read_golden(d->golden, "hf_quant_config.json", &n);
    if (told)
        put("hf_quant_config.json", told, n);
    free(told);
    free(config);
    free(file);
    model *m = NULL;
    xd_status st = model_open(&(model_options){.path = dir}, &m, err);
    model_free(m);
    return st;
}

static inline void refuse_damaged(const damage *bad, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        xd_err err;
        xd_status st = open_damaged(&bad[i], &err);
        cr_assert(st == XD_BAD_MODEL || st == XD_UNSUPPORTED, "%s: %d", bad[i].says, st);
        cr_assert(st && strstr(err.msg, bad[i].says), "%s -> %s", bad[i].says, st ? err.msg : "");
    }
}

#endif
