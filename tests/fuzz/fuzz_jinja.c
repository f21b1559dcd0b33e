/* fuzz_jinja.c - chat templates with contexts. Input: the template's text, then optionally a line "---" and a JSON object of variables.
 *
 * Limits are those of a server that expects an attack: a quarter of a second, 64 MiB. Whatever is rendered must be UTF-8 with a
 * provenance map of zeros and ones. */
#include <jansson.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "api/jinja/jinja.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char default_vars[] =
    "{\"messages\": [{\"role\": \"system\", \"content\": \"S\"}, {\"role\": \"user\", \"content\": \" \\u00e9<b> \"}, {\"role\": \"assistant\","
    "\"content\": null, \"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\": {\"a\": [1, 2.5, true]}}}]}], \"tools\": null,"
    "\"n\": 3, \"s\": \"abc def\", \"l\": [3, 1, 2], \"d\": {\"a\": 1}, \"add_generation_prompt\": true, \"bos_token\": \"<s>\"}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data;
    const char *mark = size ? memmem(text, size, "\n---\n", 5) : NULL;
    size_t len = mark ? (size_t)(mark - text) : size;
    json_t *vars = mark ? json_loadb(mark + 5, size - len - 5, JSON_ALLOW_NUL, NULL) : NULL;
    if (!json_is_object(vars)) {
        json_decref(vars);
        vars = json_loads(default_vars, 0, NULL);
    }
    jinja_template *t = NULL;
    xd_err err;
    if (!jinja_compile(text, len, "fuzz", &t, &err)) {
        uint8_t *trusted = NULL;
        xd_buf out = {0};
        jinja_options o = {.max_time_ns = 250000000, .now = 1773065107, .ret_trusted = &trusted};
        if (!jinja_render(t, vars, &o, &out, &err)) {
            for (size_t i = 0; i < out.len;) {
                int n = xd_utf8_seq(out.data + i, out.len - i);
                if (n <= 0 || trusted[i] > 1)
                    abort();
                i += (size_t)n;
            }
        }
        free(trusted);
        xd_buf_free(&out);
        jinja_free(t);
    }
    json_decref(vars);
    return 0;
}
