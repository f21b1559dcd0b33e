/* chat_render.c - a request's conversation as a template writes it: which template, which variables, whose bytes, and the last message that
 * the model is to go on with. See chat.h; messages: chat_messages.c. */
#include <string.h>

#include "api/chat_priv.h"

/* ---- continuing the last message ---- */

/* Appended to the last message's text, so that its end is found in the rendering whatever the template does around it. The space
 * shows whether the template strips content. */
static const char tail_mark[] = "CONTINUE_FINAL_MESSAGE_TAG ";

/* Marks the last message's text and returns that text as it was (owned). */
static xd_status mark_tail(json_t *messages, json_t **ret_text, xd_err *err)
{
    size_t m = json_array_size(messages) - 1;
    json_t *holder = json_array_get(messages, m), *text = json_object_get(holder, "content");
    const char *key = "content";
    if (json_is_array(text) && json_array_size(text)) {
        holder = json_array_get(text, json_array_size(text) - 1);
        text = json_object_get(holder, "text");
        key = "text";
    }
    char param[96];
    snprintf(param, sizeof param, "messages[%zu].content", m);
    if (!json_is_string(text))
        return xd_fail_field(err, XD_BAD_REQUEST, param, "invalid_value",
                             "continue_final_message needs a last message with text");
    XD_CLEANUP(xd_buf_free) xd_buf b = {0};
    xd_buf_append(&b, json_string_value(text), json_string_length(text));
    xd_buf_puts(&b, tail_mark);
    json_t *marked = b.failed ? NULL : json_stringn(b.data, b.len);
    json_incref(text);
    if (!marked || json_object_set_new(holder, key, marked)) {
        json_decref(text);
        return no_memory(err);
    }
    *ret_text = text;
    return XD_OK;
}

/* Bytes of the white space (Python's) that ends text[0..len), 0: none. */
static size_t space_before(const char *text, size_t len)
{
    static const char *const wide[] = {"\xC2\x85", "\u00a0", "\u1680", "\u2000", "\u2001", "\u2002", "\u2003",
                                       "\u2004",   "\u2005", "\u2006", "\u2007", "\u2008", "\u2009", "\u200a",
                                       "\u2028",   "\u2029", "\u202f", "\u205f", "\u3000"};
    unsigned char last = len ? (unsigned char)text[len - 1] : 'x';
    if (last < 0x80)
        return (last >= 9 && last <= 13) || (last >= 0x1C && last <= 0x20);
    for (size_t i = 0; i < XD_ARRAY_LEN(wide); i++) {
        size_t n = strlen(wide[i]);
        if (len >= n && !memcmp(text + len - n, wide[i], n))
            return n;
    }
    return 0;
}

static size_t rstripped(const char *text, size_t len)
{
    for (size_t n; (n = space_before(text, len)); len -= n)
        ;
    return len;
}

/* The text without white space around it is in the rendering. */
static bool is_shown(const xd_buf *rendering, const json_t *text)
{
    const char *s = json_string_value(text);
    size_t len = rstripped(s, json_string_length(text)), from = 0;
    for (size_t n = 1; from < len; from += n) {
        int seq = xd_utf8_seq(s + from, len - from);
        n = seq > 0 ? (size_t)seq : 1;
        if (space_before(s + from, n) != n)
            break;
    }
    return len == from || memmem(rendering->data, rendering->len, s + from, len - from);
}

static xd_status cut_tail(xd_buf *text, const json_t *final, xd_err *err)
{
    size_t len = sizeof tail_mark - 2; /* without the space */
    size_t at = text->len >= len ? text->len - len : 0;
    while (at > 0 && memcmp(text->data + at, tail_mark, len))
        at--;
    if (text->len < len || memcmp(text->data + at, tail_mark, len) || !is_shown(text, final))
        return xd_fail_field(
            err, XD_BAD_REQUEST, "continue_final_message", "invalid_value",
            "continue_final_message: the model's chat template does not show the last message as it is");
    bool stripped = text->len == at + len || text->data[at + len] != ' ';
    text->len = at = stripped ? rstripped(text->data, at) : at;
    text->data[at] = 0;
    return XD_OK;
}

/* ---- rendering ---- */

static size_t last_of(const char *text, size_t len, const char *what)
{
    size_t n = strlen(what);
    for (size_t at = len >= n ? len - n + 1 : 0; at > 0; at--)
        if (!memcmp(text + at - 1, what, n))
            return at;
    return 0;
}

/* Does the template end the prompt with this mark? */
static bool ends_with(const chat_rendered *r, const char *mark)
{
    size_t len = rstripped(r->text, r->len), n = strlen(mark);
    return len >= n && !memcmp(r->text + len - n, mark, n) && !memchr(r->trusted + len - n, 0, n);
}

/* Does the prompt leave the model inside of a thought? The template has opened it, or the message that goes on. */
static bool ends_in_thought(const chat_template *t, const chat_rendered *r, const json_t *final)
{
    const char *open = t->thoughts.open;
    if (!open)
        return false;
    if (json_is_string(final)) {
        const char *s = json_string_value(final);
        size_t len = json_string_length(final);
        return last_of(s, len, open) > last_of(s, len, t->thoughts.close);
    }
    return ends_with(r, open);
}

/* Not where the template has closed an empty thought (enable_thinking is false), or a message that goes on has none. */
static bool may_think(const chat_template *t, const chat_rendered *r, const json_t *final)
{
    if (r->marks.channels)
        return true;
    if (!t->thoughts.open)
        return false;
    return r->marks.in_thought || (!final && !ends_with(r, t->thoughts.close));
}

static bool absent(const json_t *j)
{
    return !j || json_is_null(j);
}

static const chat_template *choose(const chat_set *s, bool tools)
{
    const chat_template *fallback = &s->templates[0];
    for (size_t i = 0; i < s->n; i++) {
        if (tools && !strcmp(s->templates[i].name, "tool_use"))
            return &s->templates[i];
        if (!strcmp(s->templates[i].name, "default"))
            fallback = &s->templates[i];
    }
    return fallback;
}

const char *chat_own_variable(const json_t *kwargs)
{
    static const char *const own[] = {"messages", "tools", "documents", "add_generation_prompt",
                                      "continue_final_message"};
    for (size_t i = 0; i < XD_ARRAY_LEN(own); i++)
        if (json_object_get(kwargs, own[i]))
            return own[i];
    return NULL;
}

static xd_status check_request(const chat_request *r, xd_err *err)
{
    if (!absent(r->tools) && !json_is_array(r->tools))
        return xd_fail_field(err, XD_BAD_REQUEST, "tools", "invalid_type", "tools must be a list");
    if (!absent(r->documents) && !json_is_array(r->documents))
        return xd_fail_field(err, XD_BAD_REQUEST, "documents", "invalid_type", "documents must be a list");
    if (!absent(r->template_kwargs) && !json_is_object(r->template_kwargs))
        return xd_fail_field(err, XD_BAD_REQUEST, "chat_template_kwargs", "invalid_type",
                             "chat_template_kwargs must be an object");
    const char *own = chat_own_variable(r->template_kwargs);
    if (own)
        return xd_fail_field(err, XD_BAD_REQUEST, "chat_template_kwargs", "invalid_value",
                             "chat_template_kwargs.%s: give this as a field of the request itself", own);
    if (r->continue_final_message && r->add_generation_prompt)
        return xd_fail_field(err, XD_BAD_REQUEST, "continue_final_message", "invalid_value",
                             "continue_final_message and add_generation_prompt exclude each other");
    return XD_OK;
}

/* The tools with a description each, if only an empty one. Owned; NULL: out of memory. */
static json_t *described(const json_t *tools)
{
    json_t *copy = json_deep_copy(tools), *tool;
    size_t i;
    bool ok = copy != NULL;
    json_array_foreach (copy, i, tool) {
        json_t *f = json_object_get(tool, "function");
        if (json_is_object(f) && absent(json_object_get(f, "description")))
            ok = ok && !json_object_set_new(f, "description", json_string(""));
    }
    if (ok)
        return copy;
    json_decref(copy);
    return NULL;
}

static json_t *make_vars(const chat_set *s, const chat_template *t, const chat_request *r, json_t *messages)
{
    json_t *vars = json_copy(s->specials);
    XD_CLEANUP(jsonp) json_t *tools = t->describes_tools && !absent(r->tools) ? described(r->tools) : NULL;
    bool failed = !vars || (t->describes_tools && !absent(r->tools) && !tools) ||
                  (!absent(r->template_kwargs) && json_object_update(vars, (json_t *)(uintptr_t)r->template_kwargs)) ||
                  json_object_set(vars, "messages", messages) ||
                  json_object_set_new(vars, "add_generation_prompt", json_boolean(r->add_generation_prompt));
    const json_t *given[] = {tools ? tools : r->tools, r->documents};
    static const char *const names[] = {"tools", "documents"};
    for (size_t i = 0; i < XD_ARRAY_LEN(given) && !failed; i++) {
        json_t *v = absent(given[i]) ? json_null() : (json_t *)(uintptr_t)given[i];
        failed = json_object_set(vars, names[i], v) != 0;
    }
    if (!failed)
        return vars;
    json_decref(vars);
    return NULL;
}

/* The variables that the client wrote: its messages and the like, and every one of its chat_template_kwargs. */
static const char **untrusted_names(const chat_request *r)
{
    size_t n = 3, at = 3;
    if (!absent(r->template_kwargs))
        n += json_object_size(r->template_kwargs);
    const char **names = calloc(n + 1, sizeof *names);
    if (!names)
        return NULL;
    names[0] = "messages";
    names[1] = "tools";
    names[2] = "documents";
    const char *key;
    json_t *v;
    if (!absent(r->template_kwargs))
        json_object_foreach ((json_t *)(uintptr_t)r->template_kwargs, key, v)
            names[at++] = key;
    return names;
}

static xd_status render_vars(const chat_template *t, const json_t *vars, const chat_request *r, xd_buf *out,
                             uint8_t **ret_trusted, bool *ret_too_much, xd_err *err)
{
    const char **untrusted = untrusted_names(r);
    if (!untrusted)
        return no_memory(err);
    jinja_options o = {.ret_trusted = ret_trusted, .untrusted = untrusted, .now = r->now};
    xd_status st = jinja_render(t->t, vars, &o, out, err);
    free(untrusted);
    *ret_too_much = st == XD_TOO_LARGE || st == XD_TIMEOUT;
    if (*ret_too_much) { /* this request's fault: another one may render */
        st = XD_BAD_REQUEST;
        xd_wrap(err, "the conversation is too much for the chat template");
    }
    if (st == XD_BAD_REQUEST && err) {
        err->status = st;
        snprintf(err->param, sizeof err->param, "messages");
    }
    return st;
}

static bool append_tail(chat_rendered *r, chat_tail tail)
{
    XD_CLEANUP(xd_buf_free) xd_buf b = {0};
    const answer_thoughts *t = r->marks.channels ? &answer_channel_thought : &r->marks.thoughts;
    if (t->leads[1])
        xd_buf_puts(&b, t->leads[1]);
    r->marks.channels = false;
    if (r->marks.in_thought)
        xd_buf_printf(&b, "\n%s\n\n", r->marks.thoughts.close);
    if (tail == CHAT_TAIL_CALL)
        xd_buf_puts(&b, toolcall_marks_of(r->marks.calls)->lead);
    r->marks.in_thought = false;
    char *text = b.failed ? NULL : realloc(r->text, r->len + b.len + 1);
    if (!text)
        return false;
    r->text = text;
    uint8_t *trusted = realloc(r->trusted, r->len + b.len + 1);
    if (!trusted)
        return false;
    r->trusted = trusted;
    memcpy(r->text + r->len, b.data ? b.data : "", b.len + 1);
    memset(r->trusted + r->len, 1, b.len);
    r->len += b.len;
    return true;
}

toolcall_form chat_set_calls(const chat_set *s)
{
    return choose(s, true)->calls;
}

bool chat_set_has_channels(const chat_set *s)
{
    return choose(s, true)->channels;
}

xd_status chat_render(const chat_set *s, const chat_request *r, chat_rendered *ret, xd_err *err)
{
    xd_status st = check_request(r, err);
    if (st)
        return st;
    bool tools = !absent(r->tools) && json_array_size(r->tools);
    const chat_template *t = choose(s, tools);
    XD_CLEANUP(jsonp) json_t *messages = NULL;
    XD_CLEANUP(jsonp) json_t *final = NULL;
    st = chat_prepare_messages(t, r->messages, &messages, err);
    if (!st && r->continue_final_message)
        st = mark_tail(messages, &final, err);
    if (st)
        return st;
    XD_CLEANUP(jsonp) json_t *vars = make_vars(s, t, r, messages);
    if (!vars)
        return no_memory(err);
    XD_CLEANUP(xd_buf_free) xd_buf text = {0};
    XD_CLEANUP(xd_freep) uint8_t *trusted = NULL;
    st = render_vars(t, vars, r, &text, &trusted, &ret->too_much, err);
    if (!st && r->continue_final_message)
        st = cut_tail(&text, final, err);
    if (st)
        return st;
    size_t len;
    char *data = xd_buf_steal(&text, &len);
    if (!data)
        return no_memory(err);
    *ret = (chat_rendered){.text = data, .trusted = XD_TAKE(trusted), .len = len};
    ret->tools_ignored = tools && !jinja_uses(t->t, "tools");
    ret->documents_ignored = json_array_size(r->documents) && !jinja_uses(t->t, "documents");
    ret->marks = (answer_marks){.calls = tools ? t->calls : TOOLCALL_NONE,
                                .thoughts = t->thoughts,
                                .channels = t->channels && !final,
                                .in_thought = ends_in_thought(t, ret, final)};
    ret->marks.may_think = r->tail && r->may_think && may_think(t, ret, final);
    if (r->tail && !ret->marks.may_think && !append_tail(ret, r->tail)) {
        chat_rendered_free(ret);
        return no_memory(err);
    }
    return XD_OK;
}

void chat_rendered_free(chat_rendered *r)
{
    free(r->text);
    free(r->trusted);
    *r = (chat_rendered){0};
}
