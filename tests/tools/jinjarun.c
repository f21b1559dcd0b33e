/* jinjarun.c - renders templates for compare_jinja.py: one JSON object a line on stdin, one on stdout.
 *
 * With "chat": {"messages", "add_generation_prompt", "continue_final_message"} the request goes through chat_render().
 *
 * In: {"template": text, "vars": {...}}; without "template" the last one is used again, without "vars" the last ones. Out: {"text": ...}, or {"error": message,
 * "stage": "compile" | "render", "code": ...}. Each rendering is done twice, with and without the map of who wrote what: both texts
 * must be the same. With "cost": true it is done once, with the map, and the answer is what compiling and rendering took: CPU time in ms,
 * steps, and the peak of resident memory beyond what was there before. The clock stands at 2026-03-09 14:05:07, as in the fixtures. */
#include <jansson.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "api/chat.h"
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
        answer =
            json_pack("{s:s, s:s, s:s}", "error", "differs with and without provenance", "stage", "bug", "code", "");
    else if (st)
        answer = failure("render", &err);
    else
        answer = json_pack("{s:s%}", "text", a.data ? a.data : "", a.len);
    free(trusted);
    xd_buf_free(&a);
    xd_buf_free(&b);
    return answer;
}

static json_t *chat(const char *template, const json_t *request)
{
    chat_set *set = NULL;
    xd_err err = {0};
    if (chat_set_open(&(chat_source){.configured = template, .bos_token = "<s>", .eos_token = "</s>"}, &set, &err))
        return failure("compile", &err);
    chat_request r = {.messages = json_object_get(request, "messages"),
                      .add_generation_prompt = json_is_true(json_object_get(request, "add_generation_prompt")),
                      .continue_final_message = json_is_true(json_object_get(request, "continue_final_message")),
                      .now = 1773065107};
    chat_rendered out = {0};
    json_t *answer =
        chat_render(set, &r, &out, &err) ? failure("render", &err) : json_pack("{s:s%}", "text", out.text, out.len);
    chat_rendered_free(&out);
    chat_set_free(set);
    return answer;
}

/* In KiB: the resident set now ("VmRSS") or its peak since the last reset ("VmHWM"). */
static long resident_kib(const char *key)
{
    char line[256];
    long kib = 0;
    FILE *f = fopen("/proc/self/status", "re");
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, key, strlen(key)))
            kib = strtol(line + strlen(key) + 1, NULL, 10);
    if (f)
        fclose(f);
    return kib;
}

static uint64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static json_t *cost_of(const char *source, size_t len, const json_t *vars)
{
    malloc_trim(0);
    long before = resident_kib("VmRSS");
    FILE *reset = fopen("/proc/self/clear_refs", "we");
    if (reset) {
        fputs("5", reset);
        fclose(reset);
    }
    uint8_t *trusted = NULL;
    jinja_cost cost = {0};
    xd_err err = {0};
    jinja_options o = {.now = 1773065107, .ret_trusted = &trusted, .ret_cost = &cost};
    xd_buf out = {0};
    jinja_template *t = NULL;
    uint64_t start = cpu_ns();
    xd_status st = jinja_compile(source, len, "test", &t, &err);
    uint64_t compiled = cpu_ns();
    if (!st)
        st = jinja_render(t, vars, &o, &out, &err);
    uint64_t end = cpu_ns();
    json_t *answer =
        json_pack("{s:f, s:f, s:f, s:I, s:I, s:s}", "compile_ms", (double)(compiled - start) / 1e6, "render_ms",
                  (double)(end - compiled) / 1e6, "peak_mib", (double)(resident_kib("VmHWM") - before) / 1024, "steps",
                  (json_int_t)cost.steps, "output", (json_int_t)out.len, "error", st ? err.msg : "");
    jinja_free(t);
    free(trusted);
    xd_buf_free(&out);
    return answer;
}

int main(void)
{
    jinja_template *t = NULL;
    json_t *vars = NULL;
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
        bool cost = json_is_true(json_object_get(in, "cost"));
        if (json_object_get(in, "vars")) {
            json_decref(vars);
            vars = json_incref(json_object_get(in, "vars"));
        }
        const json_t *request = json_object_get(in, "chat");
        if (source && !cost && !request) {
            jinja_free(t);
            t = NULL;
            compile_error = (xd_err){0};
            if (jinja_compile(json_string_value(source), json_string_length(source), "test", &t, &compile_error))
                t = NULL;
        }
        json_t *out = cost      ? cost_of(json_string_value(source), json_string_length(source), vars)
                      : request ? chat(json_string_value(source), request)
                      : t       ? render(t, vars)
                                : failure("compile", &compile_error);
        json_dumpf(out, stdout, JSON_COMPACT);
        putchar('\n');
        fflush(stdout);
        json_decref(out);
        json_decref(in);
    }
    jinja_free(t);
    json_decref(vars);
    free(line);
    return 0;
}
