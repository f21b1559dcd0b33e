/* hf_config.h - typed, checked reading of Hugging Face JSON configuration files, and of objects that other formats are turned into. */
#ifndef ENGINE_HF_CONFIG_H
#define ENGINE_HF_CONFIG_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "config/error.h"

/* Loads a JSON object of at most 64 MiB. XD_NOT_FOUND when the file does not exist. *ret is owned. */
xd_status hf_load(const char *path, json_t **ret, xd_err *err) XD_MUST_CHECK;

/* Each reader takes `key` from object `o`; absent or null gives `fallback`. A wrong type or a value outside [min, max] is
 * XD_BAD_MODEL with the key, as hf_name() has it, and the range. `file` is for the message. */
xd_status hf_u32(const json_t *o, const char *file, const char *key, uint32_t fallback, uint32_t min, uint32_t max,
                 uint32_t *ret, xd_err *err) XD_MUST_CHECK;
xd_status hf_real(const json_t *o, const char *file, const char *key, double fallback, double min, double max,
                  double *ret, xd_err *err) XD_MUST_CHECK;
xd_status hf_bool(const json_t *o, const char *file, const char *key, bool fallback, bool *ret,
                  xd_err *err) XD_MUST_CHECK;
/* NULL when absent, null or not a string. Borrowed from o. */
const char *hf_string(const json_t *o, const char *key);
bool hf_has(const json_t *o, const char *key); /* present and not null */

/* Says that `key` of object o is called `name` in the file that the user has, which messages then name. */
xd_status hf_call(json_t *o, const char *key, const char *name, xd_err *err) XD_MUST_CHECK;
/* That name, or key itself. Borrowed. */
const char *hf_name(const json_t *o, const char *key);

#endif
