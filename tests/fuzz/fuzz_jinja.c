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

/* Contexts for templates that bring none; which one is decided by the template's length. */
static const char *const contexts[] = {
    "{\"messages\": [{\"role\": \"system\", \"content\": \"S\"}, {\"role\": \"user\", \"content\": \" \\u00e9<b> \"}, {\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{\"id\": \"c1\", \"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": {\"a\": [1, 2.5, true]}}}]}, {\"role\": \"tool\", \"tool_call_id\": \"c1\", \"name\": \"f\", \"content\": \"{\\\"r\\\": 1}\"}], \"tools\": null, \"n\": 3, \"s\": \"abc def\", \"l\": [3, 1, 2], \"d\": {\"a\": 1}, \"add_generation_prompt\": true, \"bos_token\": \"<s>\"}",
    "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"one\"}, {\"type\": \"image\"}, {\"type\": \"text\", \"text\": \"two\\nthree \"}]}, {\"role\": \"assistant\", \"reasoning_content\": \"r\", \"content\": \"<think>t</think>x\"}, {\"role\": \"user\", \"content\": \"\"}], \"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"get_weather\", \"description\": \"D \\\"q\\\"\", \"parameters\": {\"type\": \"object\", \"properties\": {\"city\": {\"type\": \"string\", \"enum\": [\"a\", \"b\"]}, \"n\": {\"type\": [\"integer\", \"null\"], \"default\": 1e+22}}, \"required\": [\"city\"]}}}], \"documents\": [{\"title\": \"T\", \"text\": \"X\"}], \"add_generation_prompt\": false, \"eos_token\": \"</s>\", \"enable_thinking\": false, \"s\": \"\\u00dfe\\u0130\\u03a3 \\u01c5\\ud83d\\ude00\", \"t\": \" pad\\t\\r\\n\", \"l\": [], \"e\": [], \"n\": -7, \"f\": 2.5, \"big\": 9223372036854775807, \"none\": null, \"d\": {\"k\": {\"x\": [{}]}, \"items\": 1}}",
    "{\"s\": \"Hello World\", \"t\": \"a,b,,c\", \"u\": \"\\u0663\\u00bd\\u1e9e\", \"num\": \"42\", \"html\": \"<a href='x'>&amp;</a>\", \"long\": \"word word word word word word word word word word word word \", \"i\": 7, \"n\": -3, \"zero\": 0, \"f\": -0.0, \"h\": 1e+300, \"yes\": true, \"no\": false, \"none\": null, \"l\": [3, 1, 2], \"m\": [\"b\", \"A\", \"c\", \"B\"], \"mix\": [1, \"1\", null, true, 2.0, [1], {\"a\": 1}], \"d\": {\"a\": 1, \"b\": \"two\", \"c\": [1, 2]}, \"users\": [{\"name\": \"Zed\", \"age\": 30, \"tags\": [\"x\"]}, {\"name\": \"amy\", \"age\": 25}], \"messages\": [{\"role\": \"user\", \"content\": \"hi <|x|>\"}], \"fmt\": \"%s-%05d\", \"braces\": \"{} {0!r:>9} {a[0]}\"}",
    "{\"messages\": [], \"url\": \"see http://example.com/a?b=1, (www.x.org) or me@mail.org.\", \"multi\": \"one\\ntwo\\r\\n\\u2028three\\n\", \"s\": \"-12_3\", \"l\": [[1, [2]], [3]], \"v\": {\"\": 0}, \"x\": \"\", \"n\": 1, \"d\": {}}",
};

static json_t *default_vars(size_t size)
{
    static json_t *parsed[XD_ARRAY_LEN(contexts)];
    json_t **j = &parsed[size % XD_ARRAY_LEN(contexts)];
    if (!*j)
        *j = json_loads(contexts[size % XD_ARRAY_LEN(contexts)], 0, NULL);
    return json_incref(*j);
}

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
    jinja_options o = {.max_output_bytes = 1 << 18,
                       .max_memory_bytes = 4 << 20,
                       .max_time_ns = 250000000,
                       .max_steps = 50000,
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
        vars = default_vars(size);
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
