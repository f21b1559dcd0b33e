/* fuzz_jinja.c - chat templates with contexts. Input: the template's text, then optionally a line "---" and a JSON object of variables.
 *
 * The limits are far below a server's: what is looked for are wrong memory accesses, not slow loops. Whatever is rendered must be
 * UTF-8 with a provenance map of zeros and ones, and errors must say something. */
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

static void check_utf8(const char *s, size_t len)
{
    for (size_t i = 0; i < len;) {
        int n = xd_utf8_seq(s + i, len - i);
        if (n <= 0)
            abort();
        i += (size_t)n;
    }
}

static void check_error(xd_status st, const xd_err *err)
{
    if (st != err->status || (!*err->msg && strcmp(err->code, "template_raise")))
        abort();
    check_utf8(err->msg, strlen(err->msg));
}

/* With and without the provenance map the text is the same. */
static void check_render(const jinja_template *t, const json_t *vars)
{
    uint8_t *trusted = NULL;
    xd_buf plain = {0}, tracked = {0};
    xd_err err = {0};
    jinja_options o = {.max_output_bytes = 1 << 20,
                       .max_memory_bytes = 16 << 20,
                       .max_time_ns = 250000000,
                       .max_steps = 200000,
                       .now = 1773065107};
    xd_status st = jinja_render(t, vars, &o, &plain, &err);
    if (st)
        check_error(st, &err);
    o.ret_trusted = &trusted;
    xd_status st2 = jinja_render(t, vars, &o, &tracked, &err);
    if (st2)
        check_error(st2, &err);
    if (!st2)
        check_utf8(tracked.data, tracked.len);
    for (size_t i = 0; !st2 && i < tracked.len; i++)
        if (trusted[i] > 1)
            abort();
    if (!st && !st2 && (plain.len != tracked.len || (plain.len && memcmp(plain.data, tracked.data, plain.len))))
        abort();
    free(trusted);
    xd_buf_free(&plain);
    xd_buf_free(&tracked);
}

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
    xd_err err = {0};
    xd_status st = jinja_compile(text, len, "fuzz", &t, &err);
    if (st)
        check_error(st, &err);
    else
        check_render(t, vars);
    jinja_free(t);
    json_decref(vars);
    return 0;
}
