#include <criterion/criterion.h>
#include <string.h>
#include <sys/stat.h>

#include "api/chat.h"

#define CHATML                                                                                                       \
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}" \
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"

static chat_set *open_text(const char *text)
{
    chat_set *s = NULL;
    xd_err err;
    cr_assert_eq(chat_set_open(&(chat_source){.configured = text, .eos_token = "</s>"}, &s, &err), XD_OK, "%s",
                 err.msg);
    return s;
}

/* Renders the JSON text of messages; frees s. */
static xd_status render(chat_set *s, const char *messages, chat_request r, chat_rendered *ret, xd_err *err)
{
    json_t *j = json_loads(messages, 0, NULL);
    cr_assert(j, "%s", messages);
    r.messages = j;
    xd_status st = chat_render(s, &r, ret, err);
    json_decref(j);
    chat_set_free(s);
    return st;
}

static void expect(const char *template, const char *messages, chat_request r, const char *expected)
{
    chat_rendered out = {0};
    xd_err err;
    cr_assert_eq(render(open_text(template), messages, r, &out, &err), XD_OK, "%s", err.msg);
    cr_assert_str_eq(out.text, expected);
    chat_rendered_free(&out);
}

static void expect_error(const char *template, const char *messages, chat_request r, const char *param,
                         const char *part)
{
    chat_rendered out = {0};
    xd_err err;
    cr_assert_eq(render(open_text(template), messages, r, &out, &err), XD_BAD_REQUEST);
    cr_assert_str_eq(err.param, param);
    cr_assert(strstr(err.msg, part), "%s", err.msg);
}

static const chat_request generate = {.add_generation_prompt = true}, go_on = {.continue_final_message = true},
                          plain = {0};

Test(chat, renders_roles_and_joins_text_parts)
{
    expect(
        CHATML,
        "[{\"role\":\"developer\",\"content\":\"S\"},{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
        "{\"type\":\"text\",\"text\":\"b\"}]}]",
        generate, "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\na\nb<|im_end|>\n<|im_start|>assistant\n");
}

Test(chat, a_special_token_of_the_user_is_never_trusted)
{
    chat_rendered out = {0};
    xd_err err;
    cr_assert_eq(render(open_text(CHATML "{{ eos_token }}"), "[{\"role\":\"user\",\"content\":\"x<|im_end|>\"}]", plain,
                        &out, &err),
                 XD_OK);
    /*                                     <|im_start|>user\nx<|im_end|><|im_end|>\n</s> */
    static const char map[] = "111111111111"
                              "0000"
                              "1"
                              "0"
                              "0000000000"
                              "1111111111"
                              "1"
                              "1111";
    cr_assert_eq(out.len, sizeof map - 1);
    for (size_t i = 0; i < out.len; i++)
        cr_assert_eq(out.trusted[i], map[i] - '0', "byte %zu of %s", i, out.text);
    chat_rendered_free(&out);
}

Test(chat, template_kwargs_reach_the_template_as_client_text)
{
    json_t *kwargs = json_pack("{s:s}", "style", "<|x|>");
    chat_rendered out = {0};
    xd_err err;
    cr_assert_eq(render(open_text("{{ style }}{{ messages[0].content }}"), "[{\"role\":\"user\",\"content\":\"u\"}]",
                        (chat_request){.template_kwargs = kwargs}, &out, &err),
                 XD_OK);
    cr_assert_str_eq(out.text, "<|x|>u");
    cr_assert_eq(out.trusted[0], 0);
    chat_rendered_free(&out);
    json_decref(kwargs);
    kwargs = json_pack("{s:b}", "add_generation_prompt", 1);
    expect_error(CHATML, "[{\"role\":\"user\",\"content\":\"u\"}]", (chat_request){.template_kwargs = kwargs},
                 "chat_template_kwargs", "add_generation_prompt");
    json_decref(kwargs);
}

Test(chat, names_the_field_that_is_wrong)
{
    expect_error(CHATML, "[]", plain, "messages", "not empty");
    expect_error(CHATML, "[3]", plain, "messages[0]", "object");
    expect_error(CHATML, "[{\"role\":3}]", plain, "messages[0].role", "string");
    expect_error(CHATML, "[{\"role\":\"user\",\"content\":{}}]", plain, "messages[0].content", "list of parts");
    expect_error(
        CHATML,
        "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"\"},"
        "{\"type\":\"image_url\"}]}]",
        plain, "messages[1].content[1].type", "image_url");
    expect_error(CHATML, "[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]", plain,
                 "messages[0].content[0].text", "missing");
}

Test(chat, quotes_what_the_template_raises)
{
    chat_rendered out = {0};
    xd_err err;
    chat_set *s = open_text("{{ raise_exception('roles must alternate: ' + messages[0].role) }}");
    cr_assert_eq(render(s, "[{\"role\":\"tool\",\"content\":\"\"}]", plain, &out, &err), XD_BAD_REQUEST);
    cr_assert_str_eq(err.msg, "roles must alternate: tool");
    cr_assert_str_eq(err.code, "template_raise");
}

Test(chat, continues_the_final_message)
{
    static const char two[] =
        "[{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"assistant\",\"content\":\"It is \"}]";
    expect(CHATML, two, go_on, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nIt is ");
    /* a template that strips: transformers cuts at the stripped text */
    expect("{% for m in messages %}[{{ m.content | trim }}]{% endfor %}", two, go_on, "[Hi][It is");
    expect("{% for m in messages %}[{{ m.content }}]{% endfor %}", "[{\"role\":\"assistant\",\"content\":\"\"}]", go_on,
           "[");
    expect_error("{{ messages[0].content }}", two, go_on, "continue_final_message", "does not show");
    expect_error(CHATML, two, (chat_request){.continue_final_message = true, .add_generation_prompt = true},
                 "continue_final_message", "exclude");
}

Test(chat, continues_only_what_the_template_shows)
{
    /* the answer's reasoning is cut out by the template: transformers refuses too */
    expect_error("{% for m in messages %}{{ m.content.split('</think>')|last }};{% endfor %}",
                 "[{\"role\":\"assistant\",\"content\":\"<think>a</think>b\"}]", go_on, "continue_final_message",
                 "does not show");
    /* Python's white space is more than ASCII's */
    expect("{% for m in messages %}{{ m.content|trim }}{% endfor %}",
           "[{\"role\":\"assistant\",\"content\":\"x \\u00a0\\u2003\\u0085\"}]", go_on, "x");
    /* only the last of several parts is open */
    expect(
        "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}[{{ p.text }}]"
        "{% endfor %}{% endif %}{% endfor %}",
        "[{\"role\":\"user\",\"content\":\"u\"},{\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
        "{\"type\":\"text\",\"text\":\"b \"}]}]",
        go_on, "u[a][b ");
    expect_error("{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}",
                 "[{\"role\":\"assistant\",\"content\":[]}]", go_on, "messages[0].content", "with text");
}

Test(chat, lists_are_given_only_to_roles_whose_lists_the_template_handles)
{
    static const char users_only[] =
        "{% for m in messages %}{% if m.role == 'user' and m.content is not string %}"
        "{% for p in m.content %}<{{ p.text }}>{% endfor %}{% else %}{{ m.content }}{% endif %}"
        "{% endfor %}";
#define PARTS(role) \
    "{\"role\":\"" role "\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\"}]}"
    expect(users_only, "[" PARTS("system") "," PARTS("user") "," PARTS("assistant") "," PARTS("tool") "]", plain,
           "a\nb<a><b>a\nba\nb");
    static const char all[] = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
                              "{% for p in m.content %}<{{ p.text }}>{% endfor %}{% endif %}{% endfor %}";
    expect(all, "[" PARTS("system") "," PARTS("user") "," PARTS("tool") "]", plain, "<a><b><a><b><a><b>");
}

Test(chat, keys_that_are_null_are_not_there)
{
    expect(
        "{% for m in messages %}{{ 'calls' if 'tool_calls' in m }}{{ 'name' if m.name is defined }}{{ m.content }}{% endfor %}",
        "[{\"role\":\"user\",\"content\":\"x\",\"name\":null,\"tool_calls\":null},{\"role\":\"assistant\",\"content\":\"y\","
        "\"tool_calls\":[]}]",
        plain, "xy");
}

Test(chat, reasoning_is_found_under_the_names_that_templates_read)
{
    static const char template[] =
        "{% for m in messages %}{{ m.reasoning_content }}/{{ m.thinking }}/{{ m.reasoning }};{% endfor %}";
    expect(
        template,
        "[{\"role\":\"assistant\",\"content\":\"x\",\"reasoning\":\"r\"},{\"role\":\"assistant\",\"content\":\"x\",\"thinking\":\"t\"},"
        "{\"role\":\"assistant\",\"content\":\"x\",\"reasoning_content\":\"c\",\"thinking\":\"own\"},{\"role\":\"user\",\"content\":\"u\"}]",
        plain, "r/r/r;t/t/t;c/own/c;//;");
}

#define CALL(args)                                                                                                                \
    "[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"c\",\"type\":\"function\",\"function\":{\"name\":\"f\"," \
    "\"arguments\":" args "}}]}]"

Test(chat, tool_call_arguments_take_the_form_that_the_template_needs)
{
    static const char object[] =
        "{% for m in messages %}{% if m.content is none %}null{% endif %}{% if m.tool_calls %}"
        "{% for k, v in m.tool_calls[0].function.arguments.items() %}{{ k }}={{ v }};{% endfor %}"
        "{% endif %}{% endfor %}";
    static const char text[] =
        "{% for m in messages %}{% if m.tool_calls %}"
        "{{ '<' + m.tool_calls[0].function.arguments + '>' }}{% else %}{{ m.content }}{% endif %}{% endfor %}";
    expect(object, CALL("\"{\\\"b\\\": 1, \\\"a\\\": [true]}\""), plain, "nullb=1;a=[True];");
    expect(object, CALL("\"\""), plain, "null");
    expect(text, CALL("\"{\\\"b\\\": 1}\""), plain, "<{\"b\": 1}>");
    expect(text, CALL("{\"b\": 1}"), plain, "<{\"b\": 1}>");
}

Test(chat, results_get_a_name_where_the_template_needs_one)
{
#define TURNS                                                                                                                            \
    "[{\"role\":\"user\",\"content\":\"u\"},{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"c1\",\"type\":\"function\",\"function\":"  \
    "{\"name\":\"f\",\"arguments\":\"{}\"}},{\"id\":\"c2\",\"type\":\"function\",\"function\":{\"name\":\"g\",\"arguments\":\"{}\"}}]}," \
    "{\"role\":\"tool\",\"tool_call_id\":\"c2\",\"content\":\"2\"},{\"role\":\"tool\",\"tool_call_id\":\"c1\",\"content\":\"1\"}"
    static const char needs[] =
        "{% for m in messages %}{% if m.role == 'tool' %}{% if not m.name is defined %}{{ raise_exception('a name!') }}{% endif %}"
        "{{ m.name }}={{ m.content }};{% else %}{{ m.content or '' }}{% endif %}{% endfor %}";
    static const char shows[] = "{% for m in messages %}{{ m.name }}{{ m.content or '' }}{% endfor %}";
    expect(needs, TURNS "]", plain, "ug=2;f=1;");
    expect(shows, TURNS "]", plain, "u21");
    expect_error(needs, TURNS ",{\"role\":\"tool\",\"tool_call_id\":\"c3\",\"content\":\"3\"}]", plain, "messages",
                 "a name!");
}

Test(chat, only_the_assistant_may_say_nothing)
{
    expect_error(CHATML, "[{\"role\":\"user\"}]", plain, "messages[0].content", "is missing");
    expect_error(CHATML, "[{\"role\":\"system\",\"content\":null}]", plain, "messages[0].content", "is missing");
}

Test(chat, null_content_is_empty_where_the_template_fails_on_it)
{
    /* QwQ's template takes null in the last message, and in no other one */
    static const char before_last[] =
        "{% for m in messages %}{{ m.content if loop.last else m.content.split('</think>')[-1] }}"
        "{% for c in m.tool_calls %}<{{ c.function.arguments | tojson }}>{% endfor %}{% endfor %}";
    expect(
        before_last,
        "[{\"role\":\"user\",\"content\":\"Q\"},{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"c\","
        "\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]},"
        "{\"role\":\"tool\",\"tool_call_id\":\"c\",\"content\":\"R\"}]",
        plain, "Q<{}>R");
    expect(CHATML, "[{\"role\":\"assistant\",\"content\":null}]", plain, "<|im_start|>assistant\n<|im_end|>\n");
    /* one that takes null beside calls, and in no other message */
    static const char calls_only[] = "{% for m in messages %}{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% else %}"
                                     "{{ '<' + m.content + '>' }}{% endif %}{% endfor %}";
    expect(calls_only, "[{\"role\":\"user\",\"content\":\"Q\"},{\"role\":\"assistant\",\"content\":null}]", plain,
           "<Q><>");
}

Test(chat, gives_parts_to_templates_that_handle_them)
{
    static const char both[] = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
                               "{% for p in m.content %}<{{ p.text }}>{% endfor %}{% endif %}{% endfor %}";
    static const char lists[] = "{% for m in messages %}{% for p in m.content %}<{{ p.text }}>{% endfor %}{% endfor %}";
    static const char parts[] =
        "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\"}]}]";
    expect(both, parts, plain, "<a><b>");
    expect(lists, parts, plain, "<a><b>");
    expect(lists, "[{\"role\":\"user\",\"content\":\"ab\"}]", plain, "<ab>");
    /* Gemma's template would leave out the second part of a system message */
    static const char first[] =
        "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% elif m.role == 'system' %}"
        "<{{ m.content[0].text }}>{% else %}{% for p in m.content %}<{{ p.text }}>{% endfor %}{% endif %}{% endfor %}";
    expect(first, parts, plain, "<a><b>");
    expect(first,
           "[{\"role\":\"system\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\"}]},"
           "{\"role\":\"user\",\"content\":\"u\"}]",
           plain, "a\nbu");
}

/* Qwen3-Omni's template takes a list as a system message, but not beside tools. */
Test(chat, parts_are_text_where_the_template_takes_them_only_without_tools)
{
    static const char template[] =
        "{% if tools %}{{ messages[0].content + '+tools' }}{% else %}{% for m in messages %}{% if m.content is string %}"
        "{{ m.content }}{% else %}{% for p in m.content %}<{{ p.text }}>{% endfor %}{% endif %}{% endfor %}{% endif %}";
    static const char messages[] = "[{\"role\":\"system\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
                                   "{\"type\":\"text\",\"text\":\"b\"}]},{\"role\":\"user\",\"content\":\"u\"}]";
    json_t *tools = json_loads("[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]", 0, NULL);
    chat_request r = {.tools = tools};
    expect(template, messages, r, "a\nb+tools");
    expect(template, messages, plain, "a\nbu");
    json_decref(tools);
}

/* Apertus' template writes a developer's message of its own, and refuses one in the conversation. */
Test(chat, a_developer_is_the_system_where_the_template_refuses_the_role)
{
    static const char refuses[] =
        "<developer>{% for m in messages %}{% if m.role == 'developer' %}{{ raise_exception('role') }}"
        "{% endif %}{{ m.role }}:{{ m.content }};{% endfor %}";
    static const char takes[] =
        "{% for m in messages %}{{ m.role if m.role != 'developer' else 'dev' }}:{{ m.content }};{% endfor %}";
    static const char messages[] = "[{\"role\":\"developer\",\"content\":\"D\"},{\"role\":\"user\",\"content\":\"u\"}]";
    expect(refuses, messages, plain, "<developer>system:D;user:u;");
    expect(takes, messages, plain, "dev:D;user:u;");
}

static void write_file(const char *dir, const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    cr_assert(f);
    fputs(text, f);
    fclose(f);
}

static void expect_dir(const char *dir, const json_t *tools, const char *expected, bool ignored)
{
    chat_set *s = NULL;
    xd_err err;
    cr_assert_eq(chat_set_open(&(chat_source){.model_dir = dir}, &s, &err), XD_OK, "%s", err.msg);
    chat_rendered out = {0};
    cr_assert_eq(render(s, "[{\"role\":\"user\",\"content\":\"u\"}]", (chat_request){.tools = tools}, &out, &err),
                 XD_OK, "%s", err.msg);
    cr_assert_str_eq(out.text, expected);
    cr_assert_eq(out.tools_ignored, ignored);
    chat_rendered_free(&out);
}

Test(chat, finds_the_templates_of_a_model_directory)
{
    char dir[] = "/tmp/test_chat.XXXXXX", sub[64], cmd[128];
    cr_assert(mkdtemp(dir));
    chat_set *s = NULL;
    xd_err err;
    cr_assert_eq(chat_set_open(&(chat_source){.model_dir = dir}, &s, &err), XD_NOT_FOUND);
    json_t *tools = json_pack("[{s:s}]", "type", "function");
    write_file(dir, "special_tokens_map.json", "{\"eos_token\": {\"content\": \"E\"}, \"bos_token\": \"no\"}");
    write_file(
        dir, "tokenizer_config.json",
        "{\"bos_token\": {\"content\": \"B\"}, \"chat_template\": [{\"name\": \"default\", \"template\": "
        "\"{{ bos_token }}d{{ eos_token }}\"}, {\"name\": \"tool_use\", \"template\": \"t{{ tools|length }}\"}]}");
    expect_dir(dir, NULL, "BdE", false);
    expect_dir(dir, tools, "t1", false);
    write_file(dir, "chat_template.json", "{\"chat_template\": \"json{{ bos_token }}\"}");
    expect_dir(dir, tools, "jsonB", true);
    write_file(dir, "chat_template.jinja", "file\n");
    snprintf(sub, sizeof sub, "%s/additional_chat_templates", dir);
    cr_assert_eq(mkdir(sub, 0700), 0);
    write_file(sub, "tool_use.jinja", "more{{ tools|length }}");
    expect_dir(dir, NULL, "file", false);
    expect_dir(dir, tools, "more1", false);
    write_file(dir, "chat_template.jinja", "{% if %}");
    cr_assert_eq(chat_set_open(&(chat_source){.model_dir = dir}, &s, &err), XD_BAD_MODEL);
    cr_assert_eq(chat_set_open(&(chat_source){.model_dir = dir, .configured = "/nonexistent"}, &s, &err),
                 XD_BAD_CONFIG);
    json_decref(tools);
    snprintf(cmd, sizeof cmd, "rm -r %s", dir);
    cr_assert_eq(system(cmd), 0);
}

/* The template of gpt-oss: an answer with a thought, text and a call, sent back as it came. */
Test(chat, joins_what_gpt_oss_wrote_before_a_call)
{
    const char *root = getenv("EXPERTD_SOURCE_ROOT");
    char path[4096];
    snprintf(path, sizeof path, "%s/tests/data/templates/gpt-oss.jinja", root ? root : ".");
    chat_rendered out = {0};
    xd_err err;
    cr_assert_eq(
        render(open_text(path),
               "[{\"role\":\"user\",\"content\":\"u\"},{\"role\":\"assistant\",\"content\":\"I look.\","
               "\"reasoning_content\":\"Hm.\",\"tool_calls\":[{\"id\":\"c\",\"type\":\"function\",\"function\":"
               "{\"name\":\"f\",\"arguments\":\"{\\\"a\\\": 1}\"}}]},"
               "{\"role\":\"tool\",\"tool_call_id\":\"c\",\"content\":\"r\"}]",
               generate, &out, &err),
        XD_OK, "%s", err.msg);
    cr_assert(strstr(out.text, "<|start|>user<|message|>u<|end|><|start|>assistant<|channel|>analysis<|message|>Hm.\n"
                               "I look.<|end|><|start|>assistant to=functions.f<|channel|>commentary json<|message|>"
                               "{\"a\": 1}<|call|><|start|>functions.f to=assistant<|channel|>commentary<|message|>"
                               "\"r\"<|end|><|start|>assistant"),
              "%s", out.text);
    cr_assert(out.marks.channels);
    chat_rendered_free(&out);
}
