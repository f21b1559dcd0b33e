/* chat.c - chat templates: finding them, and learning what they can take. See chat.h; rendering: chat_render.c.
 *
 * Nothing is known about a template by its model's name. What forms of content and arguments it takes is tried out once, when it is
 * opened, with conversations that hold a needle. */
#include <dirent.h>
#include <errno.h>
#include <string.h>

#include "api/chat_priv.h"

enum { MAX_FILE_BYTES = 64 << 20 };

void chat_set_free(chat_set *s)
{
    if (!s)
        return;
    for (size_t i = 0; i < s->n; i++) {
        free(s->templates[i].name);
        jinja_free(s->templates[i].t);
    }
    json_decref(s->specials);
    free(s);
}

/* XD_NOT_FOUND when there is no such file. */
static xd_status read_file(const char *path, xd_buf *ret, xd_err *err)
{
    XD_CLEANUP(xd_fclosep) FILE *f = fopen(path, "rbe");
    if (!f)
        return xd_fail(err, errno == ENOENT || errno == ENOTDIR ? XD_NOT_FOUND : XD_IO, errno, "open '%s'", path);
    char piece[16384];
    for (size_t n; (n = fread(piece, 1, sizeof piece, f)) > 0;) {
        if (ret->len + n > MAX_FILE_BYTES)
            return xd_fail(err, XD_BAD_MODEL, 0, "'%s' is larger than %d MiB", path, MAX_FILE_BYTES >> 20);
        if (!xd_buf_append(ret, piece, n))
            return xd_fail(err, XD_NOMEM, 0, "reading '%s'", path);
    }
    if (ferror(f))
        return xd_fail(err, XD_IO, errno, "read '%s'", path);
    return XD_OK;
}

static xd_status read_json(const char *dir, const char *name, json_t **ret, xd_err *err)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    XD_CLEANUP(xd_buf_free) xd_buf text = {0};
    xd_status st = read_file(path, &text, err);
    if (st)
        return st;
    json_error_t e;
    *ret = json_loadb(text.data ? text.data : "", text.len, JSON_ALLOW_NUL, &e);
    return *ret ? XD_OK : xd_fail(err, XD_BAD_MODEL, 0, "'%s' is not JSON: %s (line %d)", path, e.text, e.line);
}

/* Takes messages and tools. */
static xd_status render_probe(const chat_template *t, json_t *messages, json_t *tools, xd_buf *out)
{
    XD_CLEANUP(jsonp)
    json_t *vars = json_pack("{s:o, s:o, s:n, s:b, s:s, s:s}", "messages", messages, "tools", tools, "documents",
                             "add_generation_prompt", 0, "bos_token", "", "eos_token", "");
    if (!vars)
        return XD_NOMEM;
    jinja_options o = {.max_steps = 1000000, .max_output_bytes = 1 << 20, .now = 1};
    return jinja_render(t->t, vars, &o, out, NULL);
}

static const char needle[] = "xdNeedle7";

/* Renders the messages (owned): does the needle come out, and nothing of Python's view of lists and None? */
static bool shows_needle(const chat_template *t, json_t *messages)
{
    XD_CLEANUP(xd_buf_free) xd_buf out = {0};
    if (!messages || render_probe(t, messages, json_null(), &out) || !out.data)
        return false;
    return strstr(out.data, needle) && !strstr(out.data, "'type'") && !strstr(out.data, "\"type\": \"text\"") &&
           !strstr(out.data, "None");
}

static json_t *plain_message(const char *role)
{
    return json_pack("{s:s, s:s}", "role", role, "content", "hello");
}

/* The given last message, after a user's turn if it is not a user's own. */
static bool probe(const chat_template *t, json_t *last)
{
    json_t *messages = json_pack("[o]", last);
    if (last && json_object_get(last, "tool_calls"))
        json_array_insert_new(messages, 0, plain_message("user"));
    return shows_needle(t, messages);
}

static json_t *probe_call_id(json_t *arguments, json_t *content, const char *id)
{
    return json_pack("{s:s, s:o, s:[{s:s, s:s, s:{s:s, s:o}}]}", "role", "assistant", "content", content, "tool_calls",
                     "id", id, "type", "function", "function", "name", "f", "arguments", arguments);
}

static json_t *probe_call(json_t *arguments, json_t *content)
{
    return probe_call_id(arguments, content, "call00001");
}

/* Does a tool's result come out? Hermes' templates raise unless it has a name, which OpenAI's messages have not. */
static bool probe_result(const chat_template *t, bool with_name)
{
    json_t *m = json_pack("{s:s, s:s, s:s}", "role", "tool", "tool_call_id", "call00001", "content", needle);
    if (m && with_name)
        json_object_set_new(m, "name", json_string("f"));
    return shows_needle(t,
                        json_pack("[o, o, o]", plain_message("user"),
                                  probe_call(t->args_as_text ? json_string("{}") : json_object(), json_string("")), m));
}

static json_t *needle_arguments(bool as_text)
{
    return as_text ? json_sprintf("{\"a\": \"%s\"}", needle) : json_pack("{s:s}", "a", needle);
}

/* Does a call come out that has its result behind it? Some templates look at the last message in another way than at those before it. */
static bool probe_answered_call(const chat_template *t, json_t *content)
{
    json_t *m =
        json_pack("{s:s, s:s, s:s, s:s}", "role", "tool", "tool_call_id", "call00001", "name", "f", "content", "hello");
    return shows_needle(
        t, json_pack("[o, o, o]", plain_message("user"), probe_call(needle_arguments(t->args_as_text), content), m));
}

static json_t *probe_tools(bool described)
{
    json_t *f = json_pack("{s:s, s:{s:s, s:{}}}", "name", "f", "parameters", "type", "object", "properties");
    if (f && described)
        json_object_set_new(f, "description", json_string(""));
    return json_pack("[{s:s, s:o}]", "type", "function", "function", f);
}

/* OpenAI's tools need no description. */
static bool takes_tool(const chat_template *t, bool described)
{
    XD_CLEANUP(xd_buf_free) xd_buf out = {0};
    return !render_probe(t, json_pack("[o]", plain_message("user")), probe_tools(described), &out);
}

/* Does a system message come out beside tools? Some templates take a list of parts in it only where there are none. */
static bool probe_system_with_tools(const chat_template *t, json_t *system)
{
    XD_CLEANUP(xd_buf_free) xd_buf out = {0};
    return !render_probe(t, json_pack("[o, o]", system, plain_message("user")), probe_tools(true), &out) && out.data &&
           strstr(out.data, needle);
}

/* Does a list of parts in a message of this role come out as text, also what is not its first part? It stands where such a message may stand. */
static bool probe_list(const chat_template *t, int role)
{
    json_t *m = json_pack("{s:s, s:[{s:s, s:s}, {s:s, s:s}]}", "role", chat_role_names[role], "content", "type", "text",
                          "text", "hello", "type", "text", "text", needle);
    if (role == ROLE_USER)
        return probe(t, m);
    if (role == ROLE_SYSTEM) {
        bool beside_tools = probe_system_with_tools(t, json_incref(m)) ||
                            !probe_system_with_tools(t, json_pack("{s:s, s:s}", "role", "system", "content", needle));
        return shows_needle(t, json_pack("[o, o]", m, plain_message("user"))) && beside_tools;
    }
    if (role == ROLE_ASSISTANT)
        return shows_needle(t, json_pack("[o, o, o]", plain_message("user"), m, plain_message("user")));
    json_t *arguments = t->args_as_text ? json_string("{}") : json_object();
    if (m)
        json_object_set_new(m, "tool_call_id", json_string("call00001"));
    return shows_needle(t, json_pack("[o, o, o]", plain_message("user"), probe_call(arguments, json_string("")), m));
}

/* Some templates that name the role fail on a message of it. */
static bool probe_developer(const chat_template *t)
{
    json_t *m = json_pack("{s:s, s:s}", "role", "developer", "content", needle);
    return shows_needle(t, json_pack("[o, o]", m, plain_message("user")));
}

static void learn(chat_template *t, const char *source, size_t len)
{
    t->calls = toolcall_form_of(source, len);
    t->thoughts = answer_thoughts_of(source, len);
    t->channels = answer_has_channels(source, len);
    t->describes_tools = !takes_tool(t, false) && takes_tool(t, true);
    bool text_works = probe(t, json_pack("{s:s, s:s}", "role", "user", "content", needle));
    t->list_works[ROLE_USER] = probe_list(t, ROLE_USER);
    t->text_fails = !text_works && t->list_works[ROLE_USER];
    t->developer = memmem(source, len, "developer", 9) && (t->text_fails || probe_developer(t));
    /* Some templates show calls only beside null, some fail on null. */
    bool object_works = probe(t, probe_call(needle_arguments(false), json_string(""))) ||
                        probe(t, probe_call(needle_arguments(false), json_null()));
    t->args_as_text = !object_works && (probe(t, probe_call(needle_arguments(true), json_string(""))) ||
                                        probe(t, probe_call(needle_arguments(true), json_null())));
    bool text_args = t->args_as_text;
    t->null_fails = !probe(t, probe_call(needle_arguments(text_args), json_null())) ||
                    (!probe_answered_call(t, json_null()) && probe_answered_call(t, json_string("")));
    t->names_results = !probe_result(t, false) && probe_result(t, true);
    t->short_ids = probe(t, probe_call(needle_arguments(text_args), json_string(""))) &&
                   !probe(t, probe_call_id(needle_arguments(text_args), json_string(""), "call_0000000000000001"));
    for (int role = ROLE_USER + 1; role < N_ROLES; role++)
        t->list_works[role] = t->text_fails || (t->list_works[ROLE_USER] && probe_list(t, role));
}

static xd_status add_template(chat_set *s, const char *name, const char *text, size_t len, xd_err *err)
{
    if (s->n == CHAT_MAX_TEMPLATES)
        return xd_fail(err, XD_BAD_MODEL, 0, "more than %d chat templates", CHAT_MAX_TEMPLATES);
    chat_template *t = &s->templates[s->n];
    char label[64];
    snprintf(label, sizeof label, "chat template%s%.40s", strcmp(name, "default") ? " " : "",
             strcmp(name, "default") ? name : "");
    xd_status st = jinja_compile(text, len, label, &t->t, err);
    if (st)
        return st;
    s->n++; /* from here chat_set_free() frees it */
    t->name = strdup(name);
    if (!t->name)
        return xd_fail(err, XD_NOMEM, 0, "chat template");
    learn(t, text, len);
    return XD_OK;
}

/* A JSON value that is one template's text or a list of {"name", "template"}. */
static xd_status add_json(chat_set *s, const json_t *j, const char *file, xd_err *err)
{
    if (json_is_string(j))
        return add_template(s, "default", json_string_value(j), json_string_length(j), err);
    size_t i;
    json_t *item;
    json_array_foreach ((json_t *)(uintptr_t)j, i, item) {
        const char *name = json_string_value(json_object_get(item, "name"));
        const json_t *text = json_object_get(item, "template");
        if (!name || !json_is_string(text))
            return xd_fail(err, XD_BAD_MODEL, 0, "%s: chat_template[%zu] has no name or no template", file, i);
        xd_status st = add_template(s, name, json_string_value(text), json_string_length(text), err);
        if (st)
            return st;
    }
    if (!json_is_array(j))
        return xd_fail(err, XD_BAD_MODEL, 0, "%s: chat_template is neither a string nor a list", file);
    return XD_OK;
}

static xd_status add_additional(chat_set *s, const char *dir, xd_err *err)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/additional_chat_templates", dir);
    DIR *d = opendir(path);
    xd_status st = XD_OK;
    for (struct dirent *e; d && !st && (e = readdir(d));) {
        size_t n = strlen(e->d_name);
        if (n <= 6 || strcmp(e->d_name + n - 6, ".jinja"))
            continue;
        char file[4096 + 300], name[256];
        snprintf(file, sizeof file, "%s/%s", path, e->d_name);
        snprintf(name, sizeof name, "%.*s", (int)n - 6, e->d_name);
        XD_CLEANUP(xd_buf_free) xd_buf text = {0};
        st = read_file(file, &text, err);
        if (!st)
            st = add_template(s, name, text.data ? text.data : "", text.len, err);
    }
    if (d)
        closedir(d);
    return st;
}

static xd_status add_text_file(chat_set *s, const char *path, xd_err *err)
{
    XD_CLEANUP(xd_buf_free) xd_buf text = {0};
    xd_status st = read_file(path, &text, err);
    if (st)
        return st;
    snprintf(s->origin, sizeof s->origin, "%s", path);
    return add_template(s, "default", text.data ? text.data : "", text.len, err);
}

/* The first of the directory's sources that exists. */
static xd_status open_dir(chat_set *s, const char *dir, xd_err *err)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/chat_template.jinja", dir);
    xd_status st = add_text_file(s, path, err);
    if (st != XD_NOT_FOUND)
        return st ? st : add_additional(s, dir, err);
    static const char *const files[] = {"chat_template.json", "tokenizer_config.json"};
    for (size_t i = 0; i < XD_ARRAY_LEN(files); i++) {
        XD_CLEANUP(jsonp) json_t *j = NULL;
        st = read_json(dir, files[i], &j, err);
        if (st && st != XD_NOT_FOUND)
            return st;
        const json_t *t = json_object_get(j, "chat_template");
        if (!t || json_is_null(t))
            continue;
        snprintf(s->origin, sizeof s->origin, "%s/%s", dir, files[i]);
        return add_json(s, t, files[i], err);
    }
    return xd_fail(err, XD_NOT_FOUND, 0, "'%s' has no chat template", dir);
}

static bool is_template_text(const char *s)
{
    return strstr(s, "{{") || strstr(s, "{%");
}

static xd_status open_configured(chat_set *s, const char *configured, xd_err *err)
{
    xd_status st;
    if (is_template_text(configured)) {
        snprintf(s->origin, sizeof s->origin, "the configuration");
        st = add_template(s, "default", configured, strlen(configured), err);
    } else {
        st = add_text_file(s, configured, err);
    }
    if (!st || st == XD_NOMEM)
        return st;
    xd_wrap(err, "chat_template of the configuration");
    if (err)
        err->status = XD_BAD_CONFIG;
    return XD_BAD_CONFIG;
}

static const char *const special_names[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                            "pad_token", "cls_token", "mask_token"};

static void take_specials(json_t *into, const json_t *from)
{
    for (size_t i = 0; i < XD_ARRAY_LEN(special_names); i++) {
        const json_t *v = json_object_get(from, special_names[i]);
        if (json_is_object(v))
            v = json_object_get(v, "content");
        if (json_is_string(v) && !json_object_get(into, special_names[i]))
            json_object_set(into, special_names[i], (json_t *)(uintptr_t)v);
    }
}

static xd_status load_specials(chat_set *s, const chat_source *src, xd_err *err)
{
    const char *const own[] = {src->bos_token, src->eos_token, src->unk_token, src->pad_token};
    static const char *const names[] = {"bos_token", "eos_token", "unk_token", "pad_token"};
    s->specials = json_object();
    if (!s->specials)
        return xd_fail(err, XD_NOMEM, 0, "chat template");
    for (size_t i = 0; i < XD_ARRAY_LEN(own); i++)
        if (own[i])
            json_object_set_new(s->specials, names[i], json_string(own[i]));
    static const char *const files[] = {"tokenizer_config.json", "special_tokens_map.json"};
    for (size_t i = 0; src->model_dir && i < XD_ARRAY_LEN(files); i++) {
        XD_CLEANUP(jsonp) json_t *j = NULL;
        xd_status st = read_json(src->model_dir, files[i], &j, err);
        if (st && st != XD_NOT_FOUND)
            return st;
        take_specials(s->specials, j);
    }
    return XD_OK;
}

xd_status chat_set_open(const chat_source *src, chat_set **ret, xd_err *err)
{
    XD_CLEANUP(chat_set_freep) chat_set *s = calloc(1, sizeof *s);
    if (!s)
        return xd_fail(err, XD_NOMEM, 0, "chat template");
    xd_status st = load_specials(s, src, err);
    if (st)
        return st;
    if (src->configured && *src->configured) {
        st = open_configured(s, src->configured, err);
    } else if (src->metadata && *src->metadata) {
        snprintf(s->origin, sizeof s->origin, "the model file's metadata");
        st = add_template(s, "default", src->metadata, strlen(src->metadata), err);
    } else if (src->model_dir) {
        st = open_dir(s, src->model_dir, err);
    } else {
        st = XD_NOT_FOUND;
    }
    if (!st && !s->n)
        st = XD_NOT_FOUND;
    if (st == XD_NOT_FOUND)
        return xd_fail(err, XD_NOT_FOUND, 0, "the model has no chat template");
    if (st)
        return st;
    *ret = XD_TAKE(s);
    return XD_OK;
}

const char *chat_set_origin(const chat_set *s)
{
    return s->origin;
}

bool chat_set_uses(const chat_set *s, const char *name)
{
    for (size_t i = 0; i < s->n; i++)
        if (jinja_uses(s->templates[i].t, name))
            return true;
    return false;
}
