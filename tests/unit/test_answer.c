#include <criterion/criterion.h>
#include <string.h>

#include "api/answer.h"
#include "config/util.h"

/* The expected values are written by hand from what OpenAI's API says of the three fields. */

static const answer_thoughts think = {.open = "<think>", .close = "</think>"}, none = {.open = NULL};

static const char tools_text[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{"
    "\"s\":{\"type\":\"string\"},\"n\":{\"type\":\"integer\"},\"b\":{\"type\":\"boolean\"},\"o\":{\"type\":\"object\"},"
    "\"a\":{\"type\":\"array\"},\"sn\":{\"type\":[\"string\",\"null\"]},\"any\":{\"anyOf\":[{\"type\":\"number\"},"
    "{\"type\":\"string\"}]},\"e\":{\"enum\":[1,2]}}}}}]";

typedef struct seen {
    xd_buf all; /* "<T>thought<C>content<F>name arguments", neighbours of a kind joined */
    answer_kind last;
    bool any, ids_ok;
    size_t n_calls;
    size_t id_len;
} seen;

static void hear(void *user, const answer_piece *p)
{
    seen *s = user;
    static const char *const names[] = {"<C>", "<T>", "<F>", ""};
    if (!s->any || s->last != p->kind || p->kind == ANSWER_CALL)
        xd_buf_puts(&s->all, names[p->kind]);
    s->any = true;
    s->last = p->kind;
    cr_assert(p->len);
    xd_buf_append(&s->all, p->text, p->len);
    cr_assert_eq(p->id != NULL, p->kind == ANSWER_CALL);
    if (p->kind == ANSWER_ARGUMENTS)
        cr_assert_eq(p->call_idx + 1, s->n_calls);
    if (p->kind != ANSWER_CALL)
        return;
    cr_assert_eq(p->call_idx, s->n_calls++);
    s->id_len = strlen(p->id);
    cr_assert(s->id_len);
    xd_buf_putc(&s->all, ' ');
}

/* Feeds text in pieces of `step` bytes, the first one of `first`. Owned. */
static char *told(answer_options o, const char *text, size_t len, size_t first, size_t step, size_t *ret_id_len)
{
    seen s = {0};
    o.tell = hear;
    o.user = &s;
    answer_reader *a = answer_new(&o);
    cr_assert(a);
    for (size_t at = 0, n = first; at < len; at += n, n = step) {
        n = XD_MIN(n, len - at);
        cr_assert(answer_feed(a, text + at, n));
    }
    cr_assert(answer_end(a));
    answer_free(a);
    if (ret_id_len)
        *ret_id_len = s.id_len;
    return xd_buf_steal(&s.all, NULL);
}

static void expect_opt(answer_options o, const char *text, size_t len, const char *expected)
{
    json_t *tools = json_loads(tools_text, 0, NULL);
    o.tools = tools;
    for (size_t cut = 1; cut <= len + 1; cut++) { /* in two at every byte; then whole; then byte by byte */
        char *got = told(o, text, len, cut, cut > len ? 1 : len, NULL);
        cr_assert_str_eq(got, expected, "cut at %zu of '%s': '%s'", cut, text, got);
        free(got);
    }
    char *got = told(o, text, len, 1, 1, NULL);
    cr_assert_str_eq(got, expected, "byte by byte '%s'", text);
    free(got);
    json_decref(tools);
}

static void expect(toolcall_form form, const char *text, const char *expected)
{
    expect_opt((answer_options){.marks.calls = form, .marks.thoughts = think}, text, strlen(text), expected);
}

#define DS(x) "<\xEF\xBD\x9C" x "\xEF\xBD\x9C>"
#define DSB   DS("tool\u2581calls\u2581begin")
#define DSE   DS("tool\u2581calls\u2581end")
#define DCB   DS("tool\u2581call\u2581begin")
#define DCE   DS("tool\u2581call\u2581end")
#define SEP   DS("tool\u2581sep")

#define CALL_A "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"s\": \"x\"}}\n</tool_call>"
#define CALL_B "<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>"

/* Each token looked at all of the blanks again. */
Test(answer, a_brace_before_pages_of_blanks_is_text_at_once)
{
    for (int form = TOOLCALL_TAG; form <= TOOLCALL_BARE; form++) {
        seen s = {0};
        answer_reader *a = answer_new(&(answer_options){.marks.calls = (toolcall_form)form, .tell = hear, .user = &s});
        const char *open = form == TOOLCALL_BARE ? "" : toolcall_marks_of((toolcall_form)form)->open;
        char text[800];
        int n = snprintf(text, sizeof text, "<C>%s{%600s", open, "");
        cr_assert(answer_feed(a, text + 3, (size_t)n - 3));
        cr_assert(s.all.data && strchr(s.all.data, '{'), "form %d waits", form);
        cr_assert(answer_end(a));
        cr_assert_str_eq(s.all.data, text);
        answer_free(a);
        xd_buf_free(&s.all);
    }
}

Test(answer, tells_hermes_calls_from_text)
{
    expect(TOOLCALL_TAG, "Hello.", "<C>Hello.");
    expect(TOOLCALL_TAG, CALL_A, "<F>f {\"s\": \"x\"}");
    expect(TOOLCALL_TAG, " Let me see.\n\n" CALL_A "\n" CALL_B "\n", "<C> Let me see.<F>f {\"s\": \"x\"}<F>g {}");
    expect(TOOLCALL_TAG, CALL_A "\nDone <b>now</b>.\n", "<F>f {\"s\": \"x\"}<C>Done <b>now</b>.\n");
    expect(TOOLCALL_TAG, "A\n" CALL_A " B " CALL_B " C", "<C>A<F>f {\"s\": \"x\"}<C> B<F>g {}<C> C");
    /* keys in another order, other names, arguments as text, none at all */
    expect(TOOLCALL_TAG, "<tool_call>{\"arguments\":{\"a\":[1,{\"b\":\"}\"}]},\"name\":\"f\"}</tool_call>",
           "<F>f {\"a\":[1,{\"b\":\"}\"}]}");
    expect(TOOLCALL_TAG, "<tool_call>{\"name\":\"f\",\"parameters\":{\"n\":1e2}}</tool_call>", "<F>f {\"n\":1e2}");
    expect(TOOLCALL_TAG, "<tool_call>{\"name\":\"f\",\"arguments\":\"{\\\"n\\\": 1}\"}</tool_call>", "<F>f {\"n\": 1}");
    expect(TOOLCALL_TAG, "<tool_call>{\"name\":\"f\"}</tool_call>", "<F>f {}");
    expect(TOOLCALL_TAG, "<tool_call>[{\"name\":\"f\"},{\"name\":\"g\",\"arguments\":null}]</tool_call>",
           "<F>f {}<F>g {}");
    /* numbers that no C type holds are the model's own */
    expect(TOOLCALL_TAG,
           "<tool_call>{\"name\":\"f\",\"arguments\":{\"n\":123456789012345678901234567890,\"x\":0.10}}</tool_call>",
           "<F>f {\"n\":123456789012345678901234567890,\"x\":0.10}");
    /* the end of the answer ends a call, and a close mark inside of a string does not */
    expect(TOOLCALL_TAG, "<tool_call>{\"name\":\"f\",\"arguments\":{\"n\":1}}", "<F>f {\"n\":1}");
    expect(TOOLCALL_TAG, "<tool_call>{\"name\":\"f\",\"arguments\":{\"n\":1}}\n</tool", "<F>f {\"n\":1}");
    expect(TOOLCALL_TAG, "<tool_call>{\"name\":\"f\",\"arguments\":{\"s\":\"\\\"</tool_call>\\\\\"}}</tool_call>x",
           "<F>f {\"s\":\"\\\"</tool_call>\\\\\"}<C>x");
}

Test(answer, what_is_no_call_stays_text)
{
    static const char *const texts[] = {"<tool_call>",
                                        "<tool_call>{",
                                        "a <tool_call>{\"name\":\"g\",\"arguments\":{\"s\":\"x",
                                        "<tool_call></tool_call>",
                                        "<tool_call>{\"name\":\"g\",\"arguments\":{bad}}</tool_call>",
                                        "x <tool_call>{\"name\":3}</tool_call> y\n",
                                        "<tool_call>{\"name\":\"\"}</tool_call>",
                                        "<tool_call>{\"arguments\":{}}</tool_call>",
                                        "<tool_call>null</tool_call>",
                                        "<tool_call>[]</tool_call>",
                                        "<tool_call>[3]</tool_call>",
                                        "<tool_call>{\"name\":\"f\",\"arguments\":[1]}</tool_call>",
                                        "<tool_call>{\"name\":\"f\",\"arguments\":\"[1]\"}</tool_call>",
                                        "<tool_call>{\"name\":\"f\"} {\"name\":\"g\"}</tool_call>",
                                        "</tool_call>",
                                        "<tool_cal",
                                        "a </tool_call> b <tool_",
                                        "<tool_call>{\"name\":\"g\",\"arguments\":{\"s\":\"\xff\"}}</tool_call>",
                                        "<tool_call>\xc3\x28</tool_call>",
                                        "<tool_call>a b</tool_call>",
                                        "<tool_call>{\"name\":\"g\",\"arguments\":{\"n\":1e999}}</tool_call>",
                                        "<tool_call><function=g><parameter=s>x</function></tool_call>",
                                        "<tool_call><function=f>x</function></tool_call>",
                                        "<tool_call><function=></function></tool_call>",
                                        "<tool_call><function=f></tool_call>",
                                        "  \n",
                                        " ",
                                        "<<<tool_call",
                                        "<tool_call>g<arg_key>s</arg_key></tool_call>",
                                        "<tool_call>g<arg_key>s</arg_key><arg_value>x</tool_call>"};
    for (size_t i = 0; i < XD_ARRAY_LEN(texts); i++) {
        char expected[200];
        snprintf(expected, sizeof expected, "<C>%s", texts[i]);
        expect(TOOLCALL_TAG, texts[i], expected);
        expect(TOOLCALL_FUNCTION, texts[i], expected);
    }
    expect(TOOLCALL_TAG, "", "");
    /* one bad call does not hide the next */
    expect(TOOLCALL_TAG, "<tool_call>{\"name\" \"f\"}</tool_call>\n" CALL_B,
           "<C><tool_call>{\"name\" \"f\"}</tool_call><F>g {}");
    expect(TOOLCALL_TAG, CALL_B "\n<tool_call>{\"name\" \"f\"}</tool_call>\n",
           "<F>g {}<C><tool_call>{\"name\" \"f\"}</tool_call>\n");
    expect(TOOLCALL_NONE, CALL_A, "<C>" CALL_A);
}

/* steps: a piece of text, and all that was told once it was there; and so on. */
static void expect_steps(answer_options o, const char *const *steps, size_t n)
{
    json_t *tools = json_loads(tools_text, 0, NULL);
    seen s = {0};
    o.tools = tools;
    o.tell = hear;
    o.user = &s;
    answer_reader *a = answer_new(&o);
    for (size_t i = 0; i < n; i += 2) {
        cr_assert(answer_feed(a, steps[i], strlen(steps[i])));
        cr_assert_str_eq(s.all.data ? s.all.data : "", steps[i + 1], "after '%s': '%s'", steps[i], s.all.data);
    }
    cr_assert(answer_end(a));
    cr_assert_str_eq(s.all.data, steps[n - 1]);
    answer_free(a);
    xd_buf_free(&s.all);
    json_decref(tools);
}

Test(answer, arguments_are_told_while_they_are_written)
{
    static const char *const hermes[] = {"A <tool_call>\n{\"na",
                                         "<C>A",
                                         "me\": \"f\", \"arguments\": ",
                                         "<C>A",
                                         "{",
                                         "<C>A<F>f {",
                                         "\"s\": \"x",
                                         "<C>A<F>f {\"s\": \"x",
                                         "</tool_call>",
                                         "<C>A<F>f {\"s\": \"x</tool_call>",
                                         "\\",
                                         "<C>A<F>f {\"s\": \"x</tool_call>",
                                         "n\"}",
                                         "<C>A<F>f {\"s\": \"x</tool_call>\\n\"}",
                                         "}\n</tool",
                                         "<C>A<F>f {\"s\": \"x</tool_call>\\n\"}",
                                         "_call> B",
                                         "<C>A<F>f {\"s\": \"x</tool_call>\\n\"}<C> B"};
    expect_steps((answer_options){.marks.calls = TOOLCALL_TAG}, hermes, XD_ARRAY_LEN(hermes));
    static const char *const mistral[] = {"[TOOL_CALLS]f[ARGS]",
                                          "",
                                          "{\"n\":1",
                                          "<F>f {\"n\":1",
                                          "2}",
                                          "<F>f {\"n\":12}",
                                          "[TOOL_CALLS]f[CALL_ID]x[ARGS]{",
                                          "<F>f {\"n\":12}<F>f {",
                                          "}",
                                          "<F>f {\"n\":12}<F>f {}"};
    expect_steps((answer_options){.marks.calls = TOOLCALL_MISTRAL}, mistral, XD_ARRAY_LEN(mistral));
    static const char *const list[] = {"[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"n\":",
                                       "<F>f {\"n\":",
                                       " 1}, \"id\": \"]}\"}",
                                       "<F>f {\"n\": 1}",
                                       ", {\"name\": \"f\", \"arguments\": {",
                                       "<F>f {\"n\": 1}<F>f {",
                                       "}}] x",
                                       "<F>f {\"n\": 1}<F>f {}<C>x"};
    expect_steps((answer_options){.marks.calls = TOOLCALL_MISTRAL}, list, XD_ARRAY_LEN(list));
    static const char *const deepseek[] = {DSB DCB "function" SEP "f",
                                           "",
                                           "\n```json\n{\"n\"",
                                           "<F>f {\"n\"",
                                           ": 3}\n``",
                                           "<F>f {\"n\": 3}",
                                           "`" DCE "\n" DCB "function" SEP "f\n```json\n{}",
                                           "<F>f {\"n\": 3}<F>f {}",
                                           "\n```" DCE DSE,
                                           "<F>f {\"n\": 3}<F>f {}"};
    expect_steps((answer_options){.marks.calls = TOOLCALL_DEEPSEEK}, deepseek, XD_ARRAY_LEN(deepseek));
    static const char *const bare[] = {"{\"name\": \"f\", \"parameters\": {\"s\": \"",
                                       "<F>f {\"s\": \"",
                                       ";\"}}",
                                       "<F>f {\"s\": \";\"}",
                                       "; {\"name\": \"f\", \"parameters\": {",
                                       "<F>f {\"s\": \";\"}<F>f {",
                                       "}}",
                                       "<F>f {\"s\": \";\"}<F>f {}"};
    expect_steps((answer_options){.marks.calls = TOOLCALL_BARE}, bare, XD_ARRAY_LEN(bare));
    static const char *const coder[] = {"<tool_call>\n<function=f>\n<para",
                                        "",
                                        "meter=",
                                        "<F>f ",
                                        "n>\n1\n</parameter",
                                        "<F>f ",
                                        ">",
                                        "<F>f {\"n\": 1",
                                        "\n<parameter=s>\n</para\nmeter>\n</parameter>\n",
                                        "<F>f {\"n\": 1, \"s\": \"</para\\nmeter>\"",
                                        "</function>\n</tool_call>",
                                        "<F>f {\"n\": 1, \"s\": \"</para\\nmeter>\"}"};
    expect_steps((answer_options){.marks.calls = TOOLCALL_FUNCTION}, coder, XD_ARRAY_LEN(coder));
    static const char *const glm[] = {"<tool_call>f\n<arg",
                                      "",
                                      "_key>",
                                      "<F>f ",
                                      "n</arg_key>\n<arg_value>1</arg_value",
                                      "<F>f ",
                                      ">",
                                      "<F>f {\"n\": 1",
                                      "\n</tool_call>\n.",
                                      "<F>f {\"n\": 1}<C>."};
    expect_steps((answer_options){.marks.calls = TOOLCALL_TAG}, glm, XD_ARRAY_LEN(glm));
    static const char *const held[] = {"{\"name\": \"f\", \"arguments\": {\"s\"", "<F>f {\"s\"", ": 1}}",
                                       "<F>f {\"s\": 1}"};
    expect_steps((answer_options){.whole_call = true}, held, XD_ARRAY_LEN(held));
    expect_steps((answer_options){.whole_call = true, .or_json = true}, held, XD_ARRAY_LEN(held));
    answer_options o = {.whole_call = true, .or_json = true, .hold_call = true};
    static const char held_whole[] = "{\"name\": \"f\", \"arguments\": {\"s\": 1}}",
                      other[] = "{\"name\": \"f\", \"arguments\": {}, \"x\": 1}";
    expect_opt(o, held_whole, strlen(held_whole), "<F>f {\"s\": 1}");
    expect_opt(o, other, strlen(other), "<C>{\"name\": \"f\", \"arguments\": {}, \"x\": 1}");
}

/* One after the other in the same markup, told as they come or whole. */
Test(answer, calls_in_one_markup)
{
    expect(TOOLCALL_TAG,
           "<tool_call>{\"name\":\"f\",\"arguments\":{}}\n{\"name\":\"f\",\"arguments\":{\"n\":2}}</tool_call>.",
           "<F>f {}<F>f {\"n\":2}<C>.");
    expect(
        TOOLCALL_TAG,
        "<tool_call>[{\"name\":\"f\",\"arguments\":{}}, {\"name\":\"g\",\"arguments\":{\"n\":2}}, {\"name\":\"f\"}]</tool_call>.",
        "<F>f {}<F>g {\"n\":2}<F>f {}<C>.");
    expect(TOOLCALL_LIST,
           "<|tool_call|>[{\"name\":\"f\",\"arguments\":{}},{\"name\":\"f\",\"arguments\":{}}]<|/tool_call|>",
           "<F>f {}<F>f {}");
    expect(TOOLCALL_DEEPSEEK, DSB DCB "f" SEP "{\"n\": 3}" DCE DCB "g" SEP "{}" DCE DCB "f" SEP "{}" DCE DSE ".",
           "<F>f {\"n\": 3}<F>g {}<F>f {}<C>.");
    /* a close mark that was forgotten */
    expect(TOOLCALL_TAG, "<tool_call>{\"name\":\"f\",\"arguments\":{}} Yes.", "<F>f {}<C>Yes.");
    expect(TOOLCALL_TAG,
           "<tool_call>{\"name\":\"f\",\"arguments\":{}<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>",
           "<F>f {}<F>f {}");
    expect_opt((answer_options){.marks.calls = TOOLCALL_MISTRAL, .one_call = true},
               "[TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]f[ARGS]{\"n\":1}x", 48, "<F>f {}<C>x");
}

/* What was told cannot be taken back: arguments end where they stop being JSON, and the next call is one again. */
Test(answer, a_fault_in_the_arguments_ends_them)
{
    expect(TOOLCALL_TAG, "<tool_call>{\"name\":\"f\",\"arguments\":{\"n\": undefined}}</tool_call> x " CALL_A,
           "<F>f {\"n\": <C>x<F>f {\"s\": \"x\"}");
    expect(TOOLCALL_MISTRAL, "[TOOL_CALLS]f[ARGS]{'n':1}[TOOL_CALLS]f[ARGS]{}", "<F>f {<F>f {}");
    expect(TOOLCALL_TAG, "<tool_call>{\"name\":\"f\",\"arguments\":{\"n\": 01}}", "<F>f {\"n\": 0");
    expect(TOOLCALL_TAG, "<tool_call>{\"name\":\"f\",\"arguments\":{\"s\": \"\\x\"}}</tool_call>", "<F>f {\"s\": \"");
    /* what models write in code, and half a character */
    expect(TOOLCALL_TAG, "<tool_call>{\"name\":\"f\",\"arguments\":{\n\"s\": \"a\n\tb\x01\"}}</tool_call>",
           "<F>f {\n\"s\": \"a\\n\\tb\\u0001\"}");
    expect(
        TOOLCALL_TAG,
        "<tool_call>{\"name\":\"f\",\"arguments\":{\"s\": \"\\ud83d\\uDE42 \\ud83d \\ude42\\ud83d\\n\\ud83d\\u0041\\ud83d\"}}</tool_call>",
        "<F>f {\"s\": \"\\ud83d\\uDE42 \\ufffd \\ufffd\\ufffd\\n\\ufffd\\u0041\\ufffd\"}");
}

/* Behind a thought the JSON of a forced call, with the mark that the model would write before it. */
Test(answer, a_forced_call_may_come_behind_a_thought)
{
    answer_options o = {.marks = {.thoughts = think, .may_think = true, .calls = TOOLCALL_TAG},
                        .whole_call = true,
                        .lead = "<tool_call>\n"};
    static const char call[] = "<think>\nHm {\n</think>\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"s\": 1}}";
    expect_opt(o, call, sizeof call - 1, "<T>Hm {<F>f {\"s\": 1}");
    expect_opt(o, call + 23, sizeof call - 24, "<F>f {\"s\": 1}");
    expect_opt(o, call, 44, "<T>Hm {");
    o.marks.in_thought = true;
    expect_opt(o, call + 8, sizeof call - 9, "<T>Hm {<F>f {\"s\": 1}");
    o.lead = NULL;
    o.or_json = true;
    static const char json[] = "Hm.</think>\n\n{\"a\": 1}";
    expect_opt(o, json, sizeof json - 1, "<T>Hm.<C>{\"a\": 1}");
    o.whole_call = o.or_json = false;
    o.marks.calls = TOOLCALL_NONE;
    expect_opt(o, json, sizeof json - 1, "<T>Hm.<C>{\"a\": 1}");
}

#define FN(body) "<tool_call>\n<function=f>\n" body "</function>\n</tool_call>"
#define P(k, v)  "<parameter=" k ">\n" v "\n</parameter>\n"

Test(answer, arguments_between_tags_take_the_types_of_the_tool)
{
    expect(TOOLCALL_FUNCTION, FN(P("s", "3") P("n", "3") P("b", "True") P("o", "{\"k\": [1]}") P("a", "[\"x\"]")),
           "<F>f {\"s\": \"3\", \"n\": 3, \"b\": true, \"o\": {\"k\": [1]}, \"a\": [\"x\"]}");
    expect(TOOLCALL_FUNCTION, "I look.\n" FN(P("s", "\"q\" <b>\n\n  two\n")),
           "<C>I look.<F>f {\"s\": \"\\\"q\\\" <b>\\n\\n  two\\n\"}");
    expect(TOOLCALL_FUNCTION, FN(P("sn", "null") P("sn2", "null")), "<F>f {\"sn\": null, \"sn2\": null}");
    expect(TOOLCALL_FUNCTION, FN(P("sn", "12") P("any", "12") P("any", "1x") P("e", "2")),
           "<F>f {\"sn\": \"12\", \"any\": 12, \"any\": \"1x\", \"e\": 2}");
    /* what does not fit its type is text, what has none is what it looks like */
    expect(TOOLCALL_FUNCTION, FN(P("n", "three") P("x", "[1") P("y", "{\"z\":1}")),
           "<F>f {\"n\": \"three\", \"x\": \"[1\", \"y\": {\"z\":1}}");
    expect(TOOLCALL_FUNCTION, FN(""), "<F>f {}");
    expect(TOOLCALL_FUNCTION, FN(P("n", "1")) FN(P("n", "2")), "<F>f {\"n\": 1}<F>f {\"n\": 2}");
    /* the outer tag forgotten, whole or in part */
    expect(TOOLCALL_FUNCTION, "ok\n<function=f>\n" P("n", "1") "</function>\n</tool_call>\n", "<C>ok<F>f {\"n\": 1}");
    expect(TOOLCALL_FUNCTION, "<function=f>" P("n", "1") "</function><function=f></function> <function=g></function>.",
           "<F>f {\"n\": 1}<F>f {}<C><function=g></function>.");
    /* cut: the arguments that are whole */
    expect(TOOLCALL_FUNCTION, "<function=f>" P("n", "1"), "<F>f {\"n\": 1");
    expect(TOOLCALL_FUNCTION, FN(P("n", "1") "<parameter=s>\nx\n</parameter"), "<F>f {\"n\": 1");
    expect(TOOLCALL_FUNCTION, "<function=g>" P("n", "1"), "<C><function=g>" P("n", "1"));
    expect(TOOLCALL_FUNCTION, FN(P("n", "1") "oh ") ".", "<F>f {\"n\": 1<C>.");
    expect(TOOLCALL_TAG, "<function=f></function>", "<C><function=f></function>");
    /* GLM */
    expect(TOOLCALL_TAG,
           "<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>it's \"3\"</arg_value>\n<arg_key>n</arg_key>\n"
           "<arg_value>3</arg_value>\n</tool_call>\n<tool_call>f\n</tool_call>",
           "<F>f {\"s\": \"it's \\\"3\\\"\", \"n\": 3}<F>f {}");
}

Test(answer, tells_mistral_calls)
{
    expect(
        TOOLCALL_MISTRAL,
        "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"n\": 1}, \"id\": \"abc123XYZ\"}, {\"name\": \"g\", \"arguments\": {}}]",
        "<F>f {\"n\": 1}<F>g {}");
    expect(TOOLCALL_MISTRAL, "I see. [TOOL_CALLS]f[ARGS]{\"s\": \"[TOOL_CALLS]\"}[TOOL_CALLS]g[ARGS]{}",
           "<C>I see.<F>f {\"s\": \"[TOOL_CALLS]\"}<F>g {}");
    expect(TOOLCALL_MISTRAL, "[TOOL_CALLS]f[CALL_ID]abc123XYZ[ARGS]{\"n\":1}", "<F>f {\"n\":1}");
    expect(TOOLCALL_MISTRAL, "[TOOL_CALLS]f{\"n\":1}", "<F>f {\"n\":1}");
    expect(TOOLCALL_MISTRAL, "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\"",
           "<C>[TOOL_CALLS] [{\"name\": \"f\", \"arguments\"");
    expect(TOOLCALL_MISTRAL, "[TOOL_CALLS]f[ARGS]{\"n\":", "<F>f {\"n\":");
    expect(TOOLCALL_MISTRAL, "[TOOL_CALLS]g[ARGS]{\"n\":", "<C>[TOOL_CALLS]g[ARGS]{\"n\":");
    expect(TOOLCALL_MISTRAL, "[TOOL_CALLS]f[TOOL_CALLS]g[ARGS]{}", "<C>[TOOL_CALLS]f<F>g {}");
    expect(TOOLCALL_MISTRAL, "[TOOL_CAL [x]", "<C>[TOOL_CAL [x]");
    /* ids of the form that its template takes */
    size_t len;
    static const char one[] = "[TOOL_CALLS][{\"name\":\"f\",\"arguments\":{},\"id\":\"abc\"}]";
    free(told((answer_options){.marks.calls = TOOLCALL_MISTRAL}, one, strlen(one), 3, 3, &len));
    cr_assert_eq(len, 9);
}

Test(answer, tells_deepseek_calls)
{
    expect(TOOLCALL_DEEPSEEK,
           "Wait.\n" DSB DCB "function" SEP "f\n```json\n{\"s\": \"```\"}\n```" DCE "\n" DCB "function" SEP
           "g\n```json\n{}\n```" DCE DSE,
           "<C>Wait.<F>f {\"s\": \"```\"}<F>g {}");
    expect(TOOLCALL_DEEPSEEK, DSB DCB "f" SEP "{\"n\": 3}" DCE DCB "g" SEP "{}" DCE DSE, "<F>f {\"n\": 3}<F>g {}");
    expect(TOOLCALL_DEEPSEEK, DSB DCB "f" SEP "{\"n\": 3}" DCE, "<F>f {\"n\": 3}");
    expect(TOOLCALL_DEEPSEEK, DSB DCB "f" SEP "{\"n\": 3}", "<F>f {\"n\": 3}");
    expect(TOOLCALL_DEEPSEEK, DSB DCB "f" SEP "{\"n\":", "<F>f {\"n\":");
    expect(TOOLCALL_DEEPSEEK, DSB DCB "g" SEP "{\"n\":", "<C>" DSB DCB "g" SEP "{\"n\":");
    expect(TOOLCALL_DEEPSEEK, DSB "f" DSE "x", "<C>" DSB "f" DSE "x");
    expect(TOOLCALL_DEEPSEEK, DSB DSE, "<C>" DSB DSE);
    expect(TOOLCALL_DEEPSEEK, "<\xEF\xBD\x9Ctool x", "<C><\xEF\xBD\x9Ctool x");
}

#define KS           "<|tool_calls_section_begin|>"
#define KE           "<|tool_calls_section_end|>"
#define KC(id, args) "<|tool_call_begin|>" id "<|tool_call_argument_begin|>" args "<|tool_call_end|>"
#define SC(id, name, args) \
    "<|tool_call:begin|>" id "<|tool_call:name|>" name "<|tool_call:args|>" args "<|tool_call:end|>"

/* https://huggingface.co/moonshotai/Kimi-K2-Instruct/blob/main/docs/tool_call_guidance.md, and Solar Open's template */
Test(answer, tells_calls_with_marks_of_their_own)
{
    expect(TOOLCALL_KIMI, "I look." KS KC("functions.f:0", "{\"s\": \"</x>\"}") KC("functions.g:1", "{}") KE,
           "<C>I look.<F>f {\"s\": \"</x>\"}<F>g {}");
    expect(TOOLCALL_KIMI, KS "\n" KC(" functions.f:12 ", " {\"n\": 1}\n") "\n" KC("f:1", "{}") "\n" KE "\n",
           "<F>f {\"n\": 1}<F>f {}");
    expect(TOOLCALL_KIMI, KS KC("functions.g:0", "{}") KC("functions.f:1", "{\"n\": 1}") KE "Done.",
           "<F>g {}<F>f {\"n\": 1}<C>Done.");
    expect(TOOLCALL_KIMI, KS "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"n\":", "<F>f {\"n\":");
    expect(TOOLCALL_KIMI, KS KC("functions.f:0", "[1]") KE, "<C>" KS KC("functions.f:0", "[1]") KE);
    expect(TOOLCALL_KIMI, KS "x" KE, "<C>" KS "x" KE);
    expect(TOOLCALL_SOLAR, "<|tool_calls|>" SC("a1b2c3d4e5", "f", "{\"n\": 3}") SC("x", "g", "{}") "<|calls|>",
           "<F>f {\"n\": 3}<F>g {}");
    expect(TOOLCALL_SOLAR, "<|tool_calls|><|tool_call:begin|>f<|calls|>",
           "<C><|tool_calls|><|tool_call:begin|>f<|calls|>");
}

/* A thought that is not closed before calls; its id comes back to the model as it was, since it holds the function's name. */
Test(answer, kimis_calls_end_a_thought_and_keep_their_ids)
{
    static const char text[] = "Hm." KS KC("functions.f:7", "{\"n\": 1}") KE;
    answer_options o = {.marks = {.calls = TOOLCALL_KIMI, .thoughts = think, .in_thought = true}};
    expect_opt(o, text, strlen(text), "<T>Hm.<F>f {\"n\": 1}");
    size_t len;
    for (size_t step = 1; step < sizeof text; step += 13) {
        free(told(o, text, strlen(text), step, step, &len));
        cr_assert_eq(len, strlen("functions.f:7"), "%zu bytes at a time: %zu", step, len);
    }
    static const char known[] = "<|tool_calls_section_begin|>" KC("functions.g:7", "{}") KE;
    free(told(o, known, strlen(known), 3, 3, &len));
    cr_assert_eq(len, strlen("functions.g:7"));
    o.marks.calls = TOOLCALL_TAG;
    expect_opt(o, "a <tool_call> b</think>c", 24, "<T>a <tool_call> b<C>c");
}

#define IP(k, v) "<parameter name=\"" k "\">" v "</parameter>\n"
#define DM         \
    "\xEF\xBD\x9C" \
    "DSML\xEF\xBD\x9C"
#define DP(k, s, v)    "<" DM "parameter name=\"" k "\" string=\"" s "\">" v "</" DM "parameter>\n"
#define DI(name, body) "<" DM "invoke name=\"" name "\">\n" body "</" DM "invoke>\n"
#define HK(k, v)       "<arg_key:opensource>" k "</arg_key:opensource>\n<arg_value:opensource>" v "</arg_value:opensource>\n"
#define HC(name, body) "<tool_call:opensource>" name "<tool_sep:opensource>\n" body "</tool_call:opensource>\n"

Test(answer, tells_several_calls_between_two_marks)
{
    expect(TOOLCALL_MINIMAX,
           "I look.\n<minimax:tool_call>\n<invoke name=\"f\">\n" IP("s", "3") IP("n", "3")
               IP("o", "{\"k\": [1]}") "</invoke>\n<invoke name=\"f\">\n</invoke>\n</minimax:tool_call>\n",
           "<C>I look.<F>f {\"s\": \"3\", \"n\": 3, \"o\": {\"k\": [1]}}<F>f {}");
    expect(TOOLCALL_MINIMAX,
           "<minimax:tool_call><invoke name=\"g\">" IP("x", "1") "</invoke><invoke name=\"f\">" IP(
               "s", "a\n\nb") "</invoke></minimax:tool_call>Done.",
           "<F>g {\"x\": 1}<F>f {\"s\": \"a\\n\\nb\"}<C>Done.");
    expect(TOOLCALL_MINIMAX, "<minimax:tool_call><invoke name=\"f\">" IP("n", "1") "<parameter name=\"s\">x",
           "<F>f {\"n\": 1");
    expect(TOOLCALL_MINIMAX, "Write <minimax:tool_call> first.", "<C>Write <minimax:tool_call> first.");
    expect(TOOLCALL_DSML,
           "Hm.\n\n<" DM "function_calls>\n" DI("f", DP("s", "true", "3") DP("n", "false", "3") DP("x", "true", "{}"))
               DI("f", "") DI("g", DP("x", "false", "[1]")) "</" DM "function_calls>",
           "<C>Hm.<F>f {\"s\": \"3\", \"n\": 3, \"x\": \"{}\"}<F>f {}<F>g {\"x\": [1]}");
    /* white space is the value's own */
    expect(TOOLCALL_DSML_V4, "<" DM "tool_calls>\n" DI("f", DP("s", "true", "\n a\n")) "</" DM "tool_calls>",
           "<F>f {\"s\": \"\\n a\\n\"}");
    expect(TOOLCALL_HUNYUAN,
           "<tool_calls:opensource>\n" HC("f", HK("s", "3") HK("n", "3")) HC("f", "")
               HC("g", HK("x", "y")) "</tool_calls:opensource>",
           "<F>f {\"s\": \"3\", \"n\": 3}<F>f {}<F>g {\"x\": \"y\"}");
    expect(TOOLCALL_SEED,
           "<seed:tool_call>\n<function=f>\n<parameter=n>3</parameter>\n</function>\n</seed:tool_call>\n"
           "<seed:tool_call>\n<function=f>\n<parameter=o>{'a': 1}</parameter></function></seed:tool_call>",
           "<F>f {\"n\": 3}<F>f {\"o\": \"{'a': 1}\"}");
}

/* The notation: format_argument() of Gemma 4's chat template. */
Test(answer, tells_calls_without_quotes)
{
#define Q        "<|\"|>"
#define GC(body) "<|tool_call>call:" body "<tool_call|>"
    expect(TOOLCALL_GEMMA, GC("f{n:3,s:" Q "Den \"Helder\", {x}" Q "}"),
           "<F>f {\"n\":3,\"s\":\"Den \\\"Helder\\\", {x}\"}");
    expect(TOOLCALL_GEMMA, "A tide." GC("f{o:{a:[1,null,true,-2.5e3],b c:" Q Q ",d:{}}}") GC("g{}"),
           "<C>A tide.<F>f {\"o\":{\"a\":[1,null,true,-2.5e3],\"b c\":\"\",\"d\":{}}}<F>g {}");
    /* with the keys of a declaration, in JSON's quotes, and white space where it says nothing */
    expect(TOOLCALL_GEMMA, GC("f{ " Q "n" Q " : 3 , \"s\" : \"a\\\"}b\" }"), "<F>f {\"n\":3,\"s\":\"a\\\"}b\"}");
    expect(TOOLCALL_GEMMA, GC("f{s:" Q "a\nb\\" Q ",o:None}"), "<F>f {\"s\":\"a\\nb\\\\\",\"o\":null}");
    expect(TOOLCALL_GEMMA, "<|tool_call>call:f{n:1}", "<F>f {\"n\":1}"); /* the answer's end is its own */
    /* what is no call is text: a word, what does not end, what follows, no name */
    expect(TOOLCALL_GEMMA, GC("f{s:word}"), "<C>" GC("f{s:word}"));
    expect(TOOLCALL_GEMMA, "<|tool_call>call:f{n:1,s:" Q "a", "<C><|tool_call>call:f{n:1,s:" Q "a");
    expect(TOOLCALL_GEMMA, GC("f{n:1} x"), "<C>" GC("f{n:1} x"));
    expect(TOOLCALL_GEMMA, GC("{n:1}"), "<C>" GC("{n:1}"));
    expect(TOOLCALL_GEMMA, "<|tool_call> writes a call", "<C><|tool_call> writes a call");
}

Test(answer, tells_lists_and_bare_objects)
{
    expect(TOOLCALL_LIST, "<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"n\": 1}}]", "<F>f {\"n\": 1}");
    expect(TOOLCALL_LIST, "<|tool_call|>[{\"name\": \"f\"}]<|/tool_call|>", "<F>f {}");
    expect(TOOLCALL_LIST, "<|tool_call|>[f]", "<C><|tool_call|>[f]");
    expect(TOOLCALL_CALLS,
           "A\n<tool_calls>[{\"name\": \"f\", \"arguments\": {\"n\": 1}}, {\"name\": \"g\"}]</tool_calls>",
           "<C>A<F>f {\"n\": 1}<F>g {}");
    expect(TOOLCALL_CALLS,
           "<tool_calls>\n{\"name\": \"f\", \"arguments\": {\"n\": 1}}\n{\"name\": \"g\", \"arguments\": {}}\n"
           "{\"name\": \"f\", \"arguments\": {}}\n</tool_calls>",
           "<F>f {\"n\": 1}<F>g {}<F>f {}");
    expect(TOOLCALL_NEMOTRON, "<TOOLCALL>[{\"name\": \"f\", \"arguments\": {\"n\": 1}}]</TOOLCALL>", "<F>f {\"n\": 1}");
    expect(TOOLCALL_GIGACHAT, "Yes.<|function_call|>{\"name\": \"f\", \"arguments\": {\"n\": 1}}",
           "<C>Yes.<F>f {\"n\": 1}");
    expect(TOOLCALL_GIGACHAT, "<|function_call|>{\"name\": \"g\", \"arguments\": {}}<|function_call|>{\"name\": \"f\"}",
           "<F>g {}<F>f {}");
    expect(TOOLCALL_GIGACHAT3, "Yes.\n\nfunction call<|role_sep|>\n{\"name\": \"f\", \"arguments\": {\"n\": 1}}",
           "<C>Yes.<F>f {\"n\": 1}");
    expect(TOOLCALL_BARE, "{\"name\": \"f\", \"parameters\": {\"n\": 1}}", "<F>f {\"n\": 1}");
    expect(TOOLCALL_BARE, "\n<|python_tag|>{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"f\"}", "<F>f {}<F>f {}");
    /* JSON that is an answer: no mark, and no tool of that name */
    expect(TOOLCALL_BARE, "{\"name\": \"Ada\", \"parameters\": {}}", "<C>{\"name\": \"Ada\", \"parameters\": {}}");
    expect(TOOLCALL_BARE, "{}", "<C>{}");
    expect(TOOLCALL_BARE, "\n{ x", "<C>\n{ x");
    expect(TOOLCALL_BARE, "<think>a</think> { x {", "<T>a<C>{ x {");
    expect(TOOLCALL_BARE, "It is {\"name\": \"f\"}", "<C>It is {\"name\": \"f\"}");
    expect(TOOLCALL_BARE, "{\"name\": \"f\"} yes", "<C>{\"name\": \"f\"} yes");
}

static void expect_thought(bool open, bool keep, const char *text, const char *expected)
{
    expect_opt(
        (answer_options){
            .marks.calls = TOOLCALL_TAG, .marks.thoughts = think, .marks.in_thought = open, .keep_thoughts = keep},
        text, strlen(text), expected);
}

Test(answer, tells_thoughts_from_content)
{
    expect_thought(false, false, "<think>\nHm, 2.\n\nYes.\n</think>\n\nTwo.", "<T>Hm, 2.\n\nYes.<C>Two.");
    expect_thought(true, false, "\nHm.\n</think>\n\nTwo.\n", "<T>Hm.<C>Two.\n");
    expect_thought(true, false, "<think>Hm.</think>Two.", "<T>Hm.<C>Two.");
    expect_thought(false, false, "Two <think>x</think>.", "<C>Two <think>x</think>.");
    expect_thought(false, false, "\n\n<think>\n\n</think>\n\nTwo.", "<C>Two.");
    expect_thought(true, false, "Hm, it never ends </thin", "<T>Hm, it never ends </thin");
    expect_thought(true, false, "Hm " CALL_B " hm</think>" CALL_A, "<T>Hm " CALL_B " hm<F>f {\"s\": \"x\"}");
    expect_thought(false, false, "<thin", "<C><thin");
    expect_thought(true, false, "", "");
    expect_thought(false, true, "<think>\nHm.\n</think>\n\nTwo.", "<C><think>\nHm.\n</think>\n\nTwo.");
    expect_thought(true, true, "\nHm " CALL_B "</think>\n" CALL_A, "<C>\nHm " CALL_B "</think><F>f {\"s\": \"x\"}");
    expect_opt((answer_options){.marks.thoughts = none}, "<think>a</think>b", 17, "<C><think>a</think>b");
    expect_opt((answer_options){.marks.thoughts = {"[THINK]", "[/THINK]"}}, "[THINK]a[/THINK]b", 17, "<T>a<C>b");
}

/* Gemma 4's mark is a token and a word; without thinking its template has written an empty thought already. */
Test(answer, tells_thoughts_in_a_channel)
{
    static const char source[] = "{{- '<|channel>thought\\n' + thinking_text + '\\n<channel|>' -}}";
    answer_options o = {.marks = {.calls = TOOLCALL_GEMMA, .thoughts = answer_thoughts_of(source, strlen(source))}};
    static const struct {
        const char *text, *expected;
    } rows[] = {
        {"<|channel>thought\nHm.\n<channel|>Yes.", "<T>Hm.<C>Yes."},
        {"<|channel>thought\n<channel|>Yes.", "<C>Yes."},
        {"<|channel>thought\nHm.\n<channel|>" GC("f{n:1}"), "<T>Hm.<F>f {\"n\":1}"},
        {"Yes.", "<C>Yes."},
        {"<|channel>other", "<C><|channel>other"},
    };
    for (size_t i = 0; i < XD_ARRAY_LEN(rows); i++)
        expect_opt(o, rows[i].text, strlen(rows[i].text), rows[i].expected);
    cr_assert_str_eq(answer_thoughts_token(&o.marks.thoughts), "<|channel>");
}

/* Solar Open's words for the parts of an answer; its own end is a token that stops it. */
Test(answer, words_between_a_thought_and_its_answer_are_not_told)
{
    static const char source[] = "{{- \"<|begin|>assistant<|think|>\" + message.reasoning + \"<|end|>\" }}";
    answer_options o = {.marks = {.calls = TOOLCALL_SOLAR, .thoughts = answer_thoughts_of(source, strlen(source))}};
    static const struct {
        const char *text, *expected;
    } rows[] = {
        {"<|think|>Hm.<|end|><|begin|>assistant<|content|>Yes.", "<T>Hm.<C>Yes."},
        {"<|content|>Yes <|content|>.", "<C>Yes <|content|>."},
        {"<|begin|>assistant<|content|>Yes.", "<C>Yes."},
        {"Yes.", "<C>Yes."},
        {"<|think|>Hm.<|end|><|begin|>assistant<|tool_calls|>" SC("x", "f", "{\"n\": 1}"), "<T>Hm.<F>f {\"n\": 1}"},
        {"<|think|>Hm.", "<T>Hm."},
        {"<|think|>Hm.<|end|><|begin|>assis", "<T>Hm."},
    };
    for (size_t i = 0; i < XD_ARRAY_LEN(rows); i++)
        expect_opt(o, rows[i].text, strlen(rows[i].text), rows[i].expected);
    o.keep_thoughts = true;
    expect_opt(o, rows[0].text, strlen(rows[0].text), "<C><|think|>Hm.<|end|><|begin|>assistant<|content|>Yes.");
}

/* Ernie 4.5's and Granite 3.3's answers have tags of their own; what vLLM's parser gives. */
Test(answer, tags_around_an_answer_are_not_told)
{
    static const char source[] =
        "'<think>\\n' + reasoning + '\\n</think>\\n\\n<response>\\n' + content + '\\n</response>\\n'";
    answer_options o = {
        .marks = {.calls = TOOLCALL_TAG, .thoughts = answer_thoughts_of(source, strlen(source)), .in_thought = true}};
    static const struct {
        const char *text, *expected;
    } rows[] = {
        {"abc\n</think>\n\n<response>\ndef\n</response>\n", "<T>abc<C>def"},
        {"abc\n</think>\ndef", "<T>abc<C>def"},
        {"a</think><response>b\n\nc</response>", "<T>a<C>b\n\nc"},
        {"a</think><response>Write </response> last. </response>", "<T>a<C>Write </response> last."},
        {"a</think><response>b</response>\n" CALL_A, "<T>a<C>b<F>f {\"s\": \"x\"}"},
        {"a</think>\n\n" CALL_A, "<T>a<F>f {\"s\": \"x\"}"},
        {"a</think><response>b</resp", "<T>a<C>b</resp"},
        {"a</think><response>b\n", "<T>a<C>b\n"},
    };
    for (size_t i = 0; i < XD_ARRAY_LEN(rows); i++)
        expect_opt(o, rows[i].text, strlen(rows[i].text), rows[i].expected);
    o.keep_thoughts = true;
    expect_opt(o, rows[0].text, strlen(rows[0].text), "<C>abc\n</think>\n\n<response>\ndef\n</response>\n");
}

Test(answer, long_white_space_is_not_held)
{
    char text[1200];
    memset(text, ' ', sizeof text);
    memcpy(text, "a", 1);
    strcpy(text + 1100, CALL_B);
    char expected[1200];
    memset(expected, ' ', sizeof expected);
    memcpy(expected, "<C>a", 4);
    strcpy(expected + 3 + 1100 - 256, "<F>g {}");
    expect_opt((answer_options){.marks.calls = TOOLCALL_TAG}, text, strlen(text), expected);
}

Test(answer, only_one_call_where_the_client_wants_one)
{
    expect_opt((answer_options){.marks.calls = TOOLCALL_TAG, .one_call = true}, CALL_A CALL_B, strlen(CALL_A CALL_B),
               "<F>f {\"s\": \"x\"}");
}

Test(answer, an_answer_that_is_held_to_a_call_needs_no_marks)
{
    for (int form = TOOLCALL_NONE; form <= TOOLCALL_BARE; form++) {
        answer_options o = {.marks.calls = (toolcall_form)form, .whole_call = true};
        static const char call[] = "{\"name\": \"f\", \"arguments\": {\"s\": \"[TOOL_CALLS]</tool_call>\"}}",
                          cut[] = "{\n \"name\": \"f\",\n \"arguments\": {\"s\": \"}\\\"";
        expect_opt(o, call, sizeof call - 1, "<F>f {\"s\": \"[TOOL_CALLS]</tool_call>\"}");
        expect_opt(o, call, sizeof call - 2, "<F>f {\"s\": \"[TOOL_CALLS]</tool_call>\"}");
        /* Cut: as much of the arguments as there is, once the name is whole. */
        expect_opt(o, cut, sizeof cut - 1, "<F>f {\"s\": \"}\\\"");
        for (size_t n = 0; n < sizeof "{\n \"name\": \"f"; n++)
            expect_opt(o, cut, n, "");
        for (size_t n = sizeof "{\n \"name\": \"f"; n < sizeof "{\n \"name\": \"f\",\n \"arguments\":"; n++)
            expect_opt(o, cut, n, "<F>f ");
        expect_opt(o, "", 0, "");
    }
}

/* ... and where other JSON may come it is told from that. */
Test(answer, an_answer_that_is_held_to_a_call_or_other_json)
{
    for (int form = TOOLCALL_NONE; form <= TOOLCALL_BARE; form++) {
        answer_options o = {.marks.calls = (toolcall_form)form, .whole_call = true, .or_json = true};
        static const char call[] = "{\"name\": \"f\", \"arguments\": {\"s\": \"[TOOL_CALLS]</tool_call>\"}}",
                          *const others[] = {"{\"name\": \"f\"}",
                                             "{\"name\": \"g\", \"arguments\": {}}",
                                             "{\"n\": {}}",
                                             "{\"name\": [\"f\"], \"arguments\": {}}",
                                             "[1]",
                                             "{ }",
                                             "{\"name\": \"f",
                                             "{\"name\": \"f\", \"x\": 1}",
                                             "{\"s\": \"[TOOL_CALLS]f[ARGS]{}\"}",
                                             "{\"name\": \"f\", \"arguments\": []}"};
        expect_opt(o, call, sizeof call - 1, "<F>f {\"s\": \"[TOOL_CALLS]</tool_call>\"}");
        expect_opt(o, call, sizeof "{\"name\": \"f\", \"arguments\": {\"s" - 1, "<F>f {\"s");
        for (size_t i = 0; i < XD_ARRAY_LEN(others); i++) {
            char want[100];
            snprintf(want, sizeof want, "<C>%s", others[i]);
            expect_opt(o, others[i], strlen(others[i]), want);
        }
        expect_opt(o, "", 0, "");
    }
}

/* Text that only mentions a mark is told when that shows, and hides no call. */
Test(answer, a_mark_that_opens_no_call_holds_nothing_up)
{
    expect(TOOLCALL_TAG, "`<tool_call>` opens one: " CALL_B, "<C>`<tool_call>` opens one:<F>g {}");
    expect(TOOLCALL_TAG, "<tool_call><tool_call>{\"name\":\"f\"}</tool_call></tool_call>", "<C><tool_call><F>f {}");
    expect(TOOLCALL_TAG, "<tool_call> { x <tool_call>{\"name\":\"f\"}", "<C><tool_call> { x<F>f {}");
    expect(TOOLCALL_MISTRAL, "The mark [TOOL_CALLS] \"x\" [TOOL_CALLS]f[ARGS]{}",
           "<C>The mark [TOOL_CALLS] \"x\"<F>f {}");
    expect(TOOLCALL_BARE, "<|python_tag|>print(1)", "<C><|python_tag|>print(1)");
    seen s = {0};
    answer_reader *a = answer_new(&(answer_options){.marks.calls = TOOLCALL_TAG, .tell = hear, .user = &s});
    cr_assert(answer_feed(a, "a <tool_call>\n{ ", 16));
    cr_assert_str_eq(s.all.data, "<C>a");
    cr_assert(answer_feed(a, "x", 1));
    cr_assert_str_eq(s.all.data, "<C>a <tool_call>\n{ x");
    answer_free(a);
    xd_buf_free(&s.all);
}

/* Megabytes of markup, in small pieces: the time is linear, or this would not end. */
Test(answer, hostile_markup_takes_linear_time)
{
    static const char *const units[] = {"<tool_call>",
                                        "<tool_call>{\"",
                                        "</tool_call>\"",
                                        "<tool_call>{\"name\":\"f\"}",
                                        "<",
                                        " ",
                                        "\n<tool_cal",
                                        "<function=f>",
                                        "<tool_call>[[[[",
                                        "<think>",
                                        "<tool_call><function=f><parameter=s>x",
                                        "</parameter><parameter=s>",
                                        "<tool_call>f<arg_key>s</arg_key><arg_value>",
                                        "<parameter=s>"};
    enum { BYTES = 1 << 20 };
    json_t *tools = json_loads(tools_text, 0, NULL);
    for (size_t i = 0; i < XD_ARRAY_LEN(units); i++)
        for (int form = TOOLCALL_TAG; form <= TOOLCALL_BARE; form++) {
            XD_CLEANUP(xd_buf_free) xd_buf b = {0};
            xd_buf_puts(&b, toolcall_marks_of(form)->open);
            while (b.len < BYTES)
                xd_buf_puts(&b, units[i]);
            char *got = told((answer_options){.marks.calls = form, .marks.thoughts = think, .tools = tools}, b.data,
                             b.len, 5, 5, NULL);
            cr_assert(strlen(got) > 0);
            free(got);
        }
    json_decref(tools);
}

static answer_thoughts thoughts_in(const char *source)
{
    return answer_thoughts_of(source, strlen(source));
}

Test(answer, forms_are_found_by_their_marks)
{
    static const struct {
        const char *source;
        toolcall_form form;
    } rows[] = {{"{{ messages }}", TOOLCALL_NONE},
                {"'<tool_call>\\n{\"name\": \"'", TOOLCALL_TAG},
                {"<tool_call>\\n<function=", TOOLCALL_FUNCTION},
                {"[TOOL_CALLS]", TOOLCALL_MISTRAL},
                {DSB, TOOLCALL_DEEPSEEK},
                {"<|tool_call|>", TOOLCALL_LIST},
                {"<|tool_calls_section_begin|>", TOOLCALL_KIMI},
                {"<|tool_calls|><|tool_call:begin|>", TOOLCALL_SOLAR},
                {"<seed:tool_call>\n<function=x>", TOOLCALL_SEED},
                {"{%- set toolcall_begin_token = '<minimax:tool_call>' -%} <tool_calls>", TOOLCALL_MINIMAX},
                {"<" DM "function_calls>" DSB, TOOLCALL_DSML},
                {"'" DM "' '</' + dsml_token + 'function_calls>'", TOOLCALL_DSML},
                {"'" DM "' ~ 'tool_calls'", TOOLCALL_DSML_V4},
                {"'function call' '<|role_sep|>'", TOOLCALL_GIGACHAT3},
                {"set HYTK = ':opensource' '<tool_sep{}>'.format(HYTK)", TOOLCALL_HUNYUAN},
                {"<tool_calls>", TOOLCALL_CALLS},
                {"<TOOLCALL>", TOOLCALL_NEMOTRON},
                {"<|function_call|>", TOOLCALL_GIGACHAT},
                {"'<|tool_call>call:' + name '}<tool_call|>'", TOOLCALL_GEMMA},
                {"ipython {\"name\": x, \"parameters\": y}", TOOLCALL_BARE}};
    for (size_t i = 0; i < XD_ARRAY_LEN(rows); i++)
        cr_assert_eq(toolcall_form_of(rows[i].source, strlen(rows[i].source)), rows[i].form, "%s", rows[i].source);
    cr_assert_str_eq(thoughts_in("x</think>").open, "<think>");
    cr_assert_null(thoughts_in("x<thin>").open);
    cr_assert_str_eq(thoughts_in("'<|channel>thought\\n' + text").close, "<channel|>");
    cr_assert_null(thoughts_in("<|system|><|end|>").open);
    /* what a tool answered stands in MiniMax's template in tags that are no answer's */
    cr_assert_null(thoughts_in("<think> '<response>' ~ message.content").end);
    cr_assert(thoughts_in("between <think></think> and <response></response>").end);
    cr_assert_str_eq(thoughts_in("<seed:think>").close, "</seed:think>");
    cr_assert_str_eq(thoughts_in("'<think{}>'").close, "</think:opensource>");
}

#define A "<|channel|>analysis<|message|>"
#define F "<|start|>assistant<|channel|>final<|message|>"
#define W "<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>"

/* The notation: https://cookbook.openai.com/articles/openai-harmony */
Test(answer, tells_channels_apart)
{
    static const struct {
        const char *text, *expected;
    } cases[] = {
        {A "Hm.<|end|>" F "Hi.<|return|>", "<T>Hm.<C>Hi."},
        {A "Hm.<|end|>" F "Hi.", "<T>Hm.<C>Hi."},
        {A "Hm.", "<T>Hm."},
        {A "Hm.<|e", "<T>Hm.<|e"}, /* nothing but text: marks are whole tokens */
        {A, ""},
        {"<|channel|>ana", ""},
        {"<|channel|>final<|message|>a < b <|x|> {}<|return|>", "<C>a < b <|x|> {}"},
        {A "one<|end|><|start|>assistant" A "two<|end|>" F "a<|end|>" F "b", "<T>one\ntwo<C>a\nb"},
        {A "x<|end|>" F "y<|return|>\n", "<T>x<C>y"},
        {A "x<|start|>assistant<|channel|>final<|message|>y", "<T>x<C>y"}, /* an end is missing */
        {"Plain text.", "<C>Plain text."},
        {"<|channel|>commentary<|message|>I look it up.<|end|>" W "{\"n\": 1}<|call|>",
         "<C>I look it up.<F>f {\"n\": 1}"},
        {A "Call.<|end|>" W "{\"n\": \"<|\", \"s\": {}}<|call|>", "<T>Call.<F>f {\"n\": \"<|\", \"s\": {}}"},
        {A "Call.<|end|><|start|>assistant to=functions.f<|channel|>commentary json<|message|> {}", "<T>Call.<F>f {}"},
        {W "{\"n\": 1}<|call|><|start|>assistant to=functions.g<|channel|>commentary<|message|>{}<|call|>",
         "<F>f {\"n\": 1}<F>g {}"},
        {W "<|call|>", "<F>f {}"},
        {W "{\"n\": 1 oops}<|call|>" F "y", "<F>f {\"n\": 1 <C>y"},
        {W "{\"n\": [1", "<F>f {\"n\": [1"},
        {W, ""},
        {W "no object<|call|>", "<C>no object"},
        {"<|channel|>analysis to=python code<|message|>1+1<|call|>", "<T>1+1"},
    };
    for (size_t i = 0; i < XD_ARRAY_LEN(cases); i++)
        expect_opt((answer_options){.marks = {.channels = true}}, cases[i].text, strlen(cases[i].text),
                   cases[i].expected);
}

/* An answer that is held to a form is the text of the final channel, whether a thought comes before it or not. */
Test(answer, tells_a_thought_in_its_channel_from_a_form)
{
    answer_options o = {.marks = {.thoughts = answer_channel_thought, .may_think = true}};
    static const char text[] =
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>{\"a\": 1}";
    expect_opt(o, text, sizeof text - 1, "<T>Hm.<C>{\"a\": 1}");
    expect_opt(o, text, 60, "<T>Hm.");
    expect_opt(o, text + 58, sizeof text - 59, "<C>{\"a\": 1}");
    o.whole_call = true;
    static const char call[] =
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>{\"name\": \"f\", \"arguments\": {}}";
    expect_opt(o, call, sizeof call - 1, "<T>Hm.<F>f {}");
}

Test(answer, finds_channels_in_a_template)
{
    static const char oss[] = "{{- \"<|start|>assistant<|channel|>analysis<|message|>\" + message.thinking }}",
                      other[] = "<|im_start|>assistant<|message|>";
    cr_assert(answer_has_channels(oss, sizeof oss - 1));
    cr_assert_not(answer_has_channels(other, sizeof other - 1));
}
