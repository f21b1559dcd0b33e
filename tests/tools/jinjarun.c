/* jinjarun.c - renders templates for compare_jinja.py: one JSON object a line on stdin, one on stdout.
 *
 * In: {"template": text, "vars": {...}}; without "template" the last one is used again. Out: {"text": ...}, or {"error": message,
 * "stage": "compile" | "render", "code": ...}. Each rendering is done twice, with and without the map of who wrote what: both texts
 * must be the same. The clock stands at 2026-03-09 14:05:07, as in the fixtures. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/jinja/jinja.h"

static json_t *failure(const char *stage, const xd_err *err)
{
    return json_pack("{s:s, s:s, s:s}", "error", err->msg, "stage", stage, "code", err->code);
}

static json_t *render(const jinja_template *t, const json_t *vars)
{
    uint8_t *trusted = NULL;
    xd_err err = {0};
    jinja_options plain = {.now = 1773065107}, tracked = {.now = 1773065107, .ret_trusted = &trusted};
    xd_buf a = {0}, b = {0};
    xd_status st = jinja_render(t, vars, &plain, &a, &err), st2 = jinja_render(t, vars, &tracked, &b, &err);
    json_t *answer;
    if (st != st2 || a.len != b.len || (a.len && memcmp(a.data, b.data, a.len)))
        answer = json_pack("{s:s, s:s, s:s}", "error", "differs with and without provenance", "stage", "bug", "code", "");
    else if (st)
        answer = failure("render", &err);
    else
        answer = json_pack("{s:s%}", "text", a.data ? a.data : "", a.len);
    free(trusted);
    xd_buf_free(&a);
    xd_buf_free(&b);
    return answer;
}

int main(void)
{
    jinja_template *t = NULL;
    xd_err compile_error = {0};
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    while ((n = getline(&line, &cap, stdin)) > 0) {
        json_error_t e;
        json_t *in = json_loadb(line, (size_t)n, JSON_ALLOW_NUL, &e);
        if (!in) {
            fprintf(stderr, "not JSON: %s\n", e.text);
            return 1;
        }
        const json_t *source = json_object_get(in, "template");
        if (source) {
            jinja_free(t);
            t = NULL;
            compile_error = (xd_err){0};
            if (jinja_compile(json_string_value(source), json_string_length(source), "test", &t, &compile_error))
                t = NULL;
        }
        json_t *out = t ? render(t, json_object_get(in, "vars")) : failure("compile", &compile_error);
        json_dumpf(out, stdout, JSON_COMPACT);
        putchar('\n');
        fflush(stdout);
        json_decref(out);
        json_decref(in);
    }
    jinja_free(t);
    free(line);
    return 0;
}
