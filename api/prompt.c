/* prompt.c - what a request says before the answer, as token ids: prompts of text or of ids, and chats by the model's template.
 *
 * Special tokens are those that a template wrote, or that a client says it means; the tokenizer's own start token stands there once,
 * whoever wrote it. A text that is far too long for the model is not tokenized to its end. */
#include <string.h>

#include "api/generate.h"
#include "config/log.h"

enum { MAX_PROMPTS = 128 };

/* A text that is far too long is not tokenized to its end, one that is a little too long is: clients are told by how much. */
static void limit_ids(const gen_context *ctx, tok_ids *ids)
{
    ids->max = (size_t)ctx->info->max_model_len * 4 + 4096;
}

/* At least so many tokens are needed for len bytes, however long they are. */
static size_t least_tokens(const gen_context *ctx, size_t len)
{
    size_t longest = 1;
    for (uint32_t id = 0; id < ctx->info->vocab; id++) {
        const char *text = tok_token_text(ctx->tok, id);
        longest = XD_MAX(longest, text ? strlen(text) : 0);
    }
    return len / longest;
}

static xd_status context_exceeded(const gen_context *ctx, const char *how, size_t n, const char *param, xd_err *err)
{
    const char *what = !strcmp(param, "messages") ? GEN_CHAT_TEXTS : param;
    return xd_fail_field(
        err, XD_BAD_REQUEST, param, "context_length_exceeded",
        "This model's maximum context length is %u tokens. However, you sent %s %zu tokens in the %s. Please "
        "reduce the length of the %s.",
        ctx->info->max_model_len, how, n, what, what);
}

static xd_status far_too_long(const gen_context *ctx, const tok_ids *ids, size_t len, xd_status st, const char *param,
                              xd_err *err)
{
    size_t least = st && !strcmp(err->code, TOK_TOO_COSTLY) ? least_tokens(ctx, len) : 0;
    if (least > ctx->info->max_model_len)
        return context_exceeded(ctx, "at least", least, param, err);
    if (st != XD_TOO_LARGE || strcmp(err->code, TOK_TOO_MANY) != 0)
        return st;
    return context_exceeded(ctx, "more than", ids->max, param, err);
}

/* The tokenizer's own start token, if it puts one before every text. */
static xd_status leading_special(const tokenizer *tok, int64_t *ret, xd_err *err)
{
    XD_CLEANUP(tok_ids_free) tok_ids plain = {0};
    XD_CLEANUP(tok_ids_free) tok_ids special = {0};
    xd_status st = tok_encode(tok, "a", 1, 0, &plain, err);
    if (!st)
        st = tok_encode(tok, "a", 1, TOK_ADD_SPECIAL, &special, err);
    if (st)
        return st;
    *ret = special.len > plain.len && plain.len && special.data[0] != plain.data[0] ? (int64_t)special.data[0] : -1;
    return XD_OK;
}

/* Who wrote the start token into a text has it once: twice would shift every position. */
static void drop_second(tok_ids *ids, size_t first, int64_t bos)
{
    if (bos < 0 || ids->len < first + 2 || ids->data[first] != (uint32_t)bos || ids->data[first + 1] != (uint32_t)bos)
        return;
    memmove(ids->data + first, ids->data + first + 1, (ids->len - first - 1) * sizeof *ids->data);
    ids->len--;
}

/* Said once: who renders a chat's template itself wants the special tokens in it, and sees only that the answers are bad. */
static void note_special(const gen_context *ctx, const char *text, size_t len)
{
    enum { LOOK_AT = 2048 }; /* a rendered template begins with one */
    XD_CLEANUP(tok_ids_free) tok_ids ids = {0};
    xd_err ignored;
    if (!ctx->notes || atomic_load(&ctx->notes->said_special))
        return;
    size_t n = XD_MIN(len, (size_t)LOOK_AT);
    n -= xd_utf8_incomplete_tail(text, n);
    if (tok_encode(ctx->tok, text, n, TOK_PARSE_SPECIAL, &ids, &ignored))
        return;
    for (size_t i = 0; i < ids.len; i++) {
        if (!tok_token_is_special(ctx->tok, ids.data[i]) || !notes_first_special(ctx->notes))
            continue;
        xd_log_info(
            "a prompt of /v1/completions holds '%s', which is read as plain text: a client that means the special token "
            "sends \"parse_special\": true, or server.completions_parse_special = yes says so for all",
            tok_token_text(ctx->tok, ids.data[i]));
        return;
    }
}

static xd_status encode_text(const gen_context *ctx, gen_params *p, const json_t *v, const char *name, gen_prompt *ret,
                             xd_err *err)
{
    xd_status st = gen_need_tokenizer(ctx, "prompt", err);
    if (st)
        return st;
    if (!json_string_length(v))
        return gen_bad_value(err, "prompt", "'%s' is empty: at least one token is needed", name);
    /* Special tokens that a client's text holds stay text unless the client says that it means them. */
    unsigned flags = (p->add_special_tokens ? TOK_ADD_SPECIAL : 0u) | (p->parse_special ? TOK_PARSE_SPECIAL : 0u);
    limit_ids(ctx, &ret->ids);
    st = tok_encode(ctx->tok, json_string_value(v), json_string_length(v), flags, &ret->ids, err);
    if (st)
        return far_too_long(ctx, &ret->ids, json_string_length(v), st, "prompt", err);
    if (!p->parse_special)
        note_special(ctx, json_string_value(v), json_string_length(v));
    int64_t bos = -1;
    if (p->parse_special && p->add_special_tokens)
        st = leading_special(ctx->tok, &bos, err);
    if (st)
        return st;
    drop_second(&ret->ids, 0, bos);
    if (p->echo && !(ret->text = strdup(json_string_value(v))))
        return xd_fail(err, XD_NOMEM, 0, "out of memory for the prompt");
    return XD_OK;
}

static xd_status take_ids(const gen_context *ctx, gen_params *p, const json_t *array, const char *name, gen_prompt *ret,
                          xd_err *err)
{
    size_t n = json_array_size(array);
    if (!n)
        return gen_bad_value(err, "prompt", "'%s' is empty: at least one token is needed", name);
    ret->ids.data = calloc(n, sizeof *ret->ids.data);
    if (!ret->ids.data)
        return xd_fail(err, XD_NOMEM, 0, "out of memory for the prompt");
    ret->ids.len = ret->ids.cap = n;
    xd_status st = gen_read_ids(array, name, ctx->info->vocab, ret->ids.data, err);
    if (st || !p->echo || !ctx->tok)
        return st;
    ret->is_ids = true;
    XD_CLEANUP(xd_buf_free) xd_buf text = {0};
    st = tok_decode(ctx->tok, ret->ids.data, n, p->skip_special, &text, err);
    if (!st && !(ret->text = xd_buf_steal(&text, NULL)))
        st = xd_fail(err, XD_NOMEM, 0, "out of memory for the prompt");
    return st;
}

static xd_status one_prompt(const gen_context *ctx, gen_params *p, const json_t *v, const char *name, gen_prompt *ret,
                            xd_err *err)
{
    if (json_is_string(v))
        return encode_text(ctx, p, v, name, ret, err);
    if (json_is_array(v))
        return take_ids(ctx, p, v, name, ret, err);
    return xd_fail_field(err, XD_BAD_REQUEST, "prompt", "invalid_type",
                         "'%s' must be a string or an array of token ids, not %s", name, json_kind_name(v));
}

static xd_status completion_prompts(const gen_context *ctx, gen_params *p, xd_err *err)
{
    const json_t *first = json_array_get(p->prompt, 0);
    bool several = json_is_array(p->prompt) && (json_is_string(first) || json_is_array(first));
    if (json_is_array(p->prompt) && first && !several && !json_is_integer(first))
        return xd_fail_field(err, XD_BAD_REQUEST, "prompt", "invalid_type",
                             "'prompt[0]' must be a string, a token id or an array of token ids, not %s",
                             json_kind_name(first));
    size_t n = several ? json_array_size(p->prompt) : 1;
    if (n > MAX_PROMPTS || n * (size_t)p->n > MAX_PROMPTS)
        return gen_bad_value(err, "prompt", "%zu prompts of %lld choices: at most %d choices in all are allowed", n,
                             (long long)p->n, MAX_PROMPTS);
    p->prompts = calloc(n, sizeof *p->prompts);
    if (!p->prompts)
        return xd_fail(err, XD_NOMEM, 0, "out of memory for prompts");
    p->n_prompts = n;
    for (size_t i = 0; i < n; i++) {
        char name[32] = "prompt";
        if (several)
            snprintf(name, sizeof name, "prompt[%zu]", i);
        xd_status st =
            one_prompt(ctx, p, several ? json_array_get(p->prompt, i) : p->prompt, name, &p->prompts[i], err);
        if (st)
            return st;
    }
    return XD_OK;
}

/* Where the template says nothing of thoughts, a vocabulary that has words of its own for their marks does. */
static answer_thoughts thoughts_of_tokens(const tokenizer *tok)
{
    size_t i = 0;
    answer_thoughts t;
    while ((t = answer_thoughts_row(i++)).open)
        if (!t.leads[0] && tok_token_id(tok, answer_thoughts_token(&t)) >= 0 && tok_token_id(tok, t.close) >= 0)
            break;
    return t;
}

/* Appends the ids of every text in v, until they are more than ids->max. */
static xd_status encode_texts(const gen_context *ctx, const json_t *v, tok_ids *ids, xd_err *err)
{
    xd_status st = XD_OK;
    size_t i;
    const char *key;
    json_t *x;
    if (json_is_string(v))
        return tok_encode(ctx->tok, json_string_value(v), json_string_length(v), 0, ids, err);
    json_array_foreach ((json_t *)(uintptr_t)v, i, x)
        if ((st = encode_texts(ctx, x, ids, err)))
            return st;
    json_object_foreach ((json_t *)(uintptr_t)v, key, x)
        if ((st = encode_texts(ctx, x, ids, err)))
            return st;
    return st;
}

/* A conversation that no context could hold is too much for the template first. Only the length is what its client can do something about. */
static xd_status too_much_to_render(const gen_context *ctx, const chat_request *req, xd_err *err)
{
    XD_CLEANUP(tok_ids_free) tok_ids ids = {.max = ctx->info->max_model_len};
    xd_err why = {0};
    const json_t *const given[] = {req->messages, req->tools, req->documents};
    for (size_t i = 0; i < XD_ARRAY_LEN(given); i++)
        if (encode_texts(ctx, given[i], &ids, &why))
            return strcmp(why.code, TOK_TOO_MANY) != 0 ? err->status
                                                       : context_exceeded(ctx, "more than", ids.max, "messages", err);
    return err->status;
}

xd_status gen_encode_chat(const gen_context *ctx, const chat_request *req, bool add_special, tok_ids *ids,
                          answer_marks *ret_marks, xd_err *err)
{
    xd_status st = gen_need_tokenizer(ctx, "messages", err);
    if (st)
        return st;
    if (!ctx->chat)
        return xd_fail_field(err, XD_BAD_REQUEST, "messages", "no_chat_template",
                             "%s: use /v1/completions, or set model.chat_template", ctx->chat_why);
    XD_CLEANUP(chat_rendered_free) chat_rendered text = {0};
    st = chat_render(ctx->chat, req, &text, err);
    if (st)
        return text.too_much ? too_much_to_render(ctx, req, err) : st;
    if (text.tools_ignored)
        return gen_unsupported(err, "tools", GEN_NO_TOOLS);
    if (text.documents_ignored)
        return gen_unsupported(err, "documents", "the model's chat template does not take 'documents'");
    size_t before = ids->len;
    int64_t bos = -1;
    st = add_special ? leading_special(ctx->tok, &bos, err) : XD_OK;
    if (st)
        return st;
    if (bos >= 0 && !tok_ids_push(ids, (uint32_t)bos))
        return xd_fail(err, XD_NOMEM, 0, "out of memory for the prompt");
    st = tok_encode_trusted(ctx->tok, text.text, text.trusted, text.len, TOK_PARSE_SPECIAL, ids, err);
    if (st)
        return far_too_long(ctx, ids, text.len, st, "messages", err);
    drop_second(ids, before, bos);
    if (ids->len == before)
        return gen_bad_value(err, "messages", "the messages give an empty prompt: at least one token is needed");
    if (ret_marks) {
        *ret_marks = text.marks;
        if (!ret_marks->thoughts.open && !ret_marks->channels)
            ret_marks->thoughts = thoughts_of_tokens(ctx->tok);
    }
    return XD_OK;
}

/* "enable_thinking": false, or DeepSeek's word for it, counts also where a template does not know it; `kwargs`, in which the server's own
 * are, where no field of the request says otherwise. */
static bool wants_thoughts(const gen_params *p, const json_t *kwargs)
{
    return !p->keep_thoughts && p->wish != GEN_THINK_OFF &&
           !gen_switched_off(p->wish == GEN_THINK_ON ? p->template_kwargs : kwargs);
}

/* The words that stand between a thought and what the grammar holds: those that append_tail() of chat.c writes where there is no thought. */
static xd_status make_lead(const gen_context *ctx, gen_params *p, xd_err *err)
{
    const answer_marks *m = &p->marks;
    const answer_thoughts thought = m->channels ? answer_channel_thought : m->thoughts;
    const char *mark = p->must_call ? toolcall_marks_of(m->calls)->lead : "";
    char after[64];
    snprintf(after, sizeof after, "\n\n%s", mark);
    const char *const texts[] = {thought.open, thought.leads[1] ? thought.leads[1] : mark,
                                 thought.leads[1] ? thought.leads[0] : after};
    uint32_t n[3];
    for (size_t i = 0; i < 3; i++) {
        size_t before = p->lead_ids.len;
        xd_status st = tok_encode(ctx->tok, texts[i], strlen(texts[i]), TOK_PARSE_SPECIAL, &p->lead_ids, err);
        if (st)
            return st;
        n[i] = (uint32_t)(p->lead_ids.len - before);
    }
    const uint32_t *ids = p->lead_ids.data;
    p->lead = (lead){.close = thought.close,
                     .in_thought = m->in_thought,
                     .open_ids = ids,
                     .plain_ids = ids + n[0],
                     .after_ids = ids + n[0] + n[1],
                     .n_open = n[0],
                     .n_plain = n[1],
                     .n_after = n[2]};
    return XD_OK;
}

static xd_status chat_prompt(const gen_context *ctx, gen_params *p, xd_err *err)
{
    json_t *kwargs = NULL;
    bool has_switch = false;
    xd_status st = gen_reasoning_kwargs(ctx, p, &kwargs, &has_switch, err);
    if (st)
        return st;
    chat_request req = {.messages = p->messages,
                        .tools = p->tools,
                        .documents = p->documents,
                        .template_kwargs = kwargs,
                        .add_generation_prompt = p->add_generation_prompt,
                        .continue_final_message = p->continue_final_message,
                        .tail = p->must_call ? CHAT_TAIL_CALL
                                : p->grammar ? CHAT_TAIL_ANSWER
                                             : CHAT_TAIL_NONE,
                        .may_think = wants_thoughts(p, kwargs)};
    p->prompts = calloc(1, sizeof *p->prompts);
    st = p->prompts ? XD_OK : xd_fail(err, XD_NOMEM, 0, "out of memory for the prompt");
    if (!st) {
        p->n_prompts = 1;
        limit_ids(ctx, &p->prompts[0].ids);
        st = gen_encode_chat(ctx, &req, p->add_special_tokens, &p->prompts[0].ids, &p->marks, err);
    }
    if (!st && p->wish == GEN_THINK_OFF && !has_switch && !p->grammar && (p->marks.thoughts.open || p->marks.channels))
        st = gen_unsupported(err, p->wish_field, "this model thinks, and its chat template has no switch for that");
    if (!st && p->marks.may_think)
        st = make_lead(ctx, p, err);
    json_decref(kwargs);
    return st;
}

xd_status gen_fail_held(xd_err *err)
{
    return xd_fail_field(err, XD_BAD_REQUEST, "logprobs", "invalid_value",
                         "the response would hold more than %d log-probabilities (tokens x (alternatives + 1)): send "
                         "fewer prompts at once, or ask for fewer alternatives",
                         GEN_MAX_HELD_LOGPROBS);
}

/* Of the prompts it is known before they are computed. */
static xd_status check_echo(const gen_params *p, xd_err *err)
{
    uint64_t held = 0;
    for (size_t i = 0; i < p->n_prompts && p->echo && p->n_logprobs >= 0; i++)
        held += p->prompts[i].ids.len * (uint64_t)p->n * (uint64_t)(p->n_logprobs + 1);
    return held > GEN_MAX_HELD_LOGPROBS ? gen_fail_held(err) : XD_OK;
}

xd_status gen_params_tokenize(const gen_context *ctx, gen_params *p, xd_err *err)
{
    if (p->kind == GEN_CHAT)
        return chat_prompt(ctx, p, err);
    xd_status st = completion_prompts(ctx, p, err);
    return st ? st : check_echo(p, err);
}
