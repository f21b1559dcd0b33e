/* format.c - the parts of response bodies: token strings, log-probabilities in both endpoints' shapes, usage.
 *
 * A token may be part of a character. Its string is then its bytes written out (chat: "\xe2\x80", completions: "bytes:\xe2\x80",
 * as OpenAI's), which keeps different tokens apart; chat's "bytes" array always has the exact bytes. */
#include <math.h>
#include <string.h>

#include "api/generate.h"

/* JSON has no infinity; OpenAI writes an impossible token so. */
#define LOGPROB_FLOOR (-9999.0)

static json_t *logprob_value(float lp)
{
    if (isnan(lp))
        return json_null();
    return json_real(lp < LOGPROB_FLOOR ? LOGPROB_FLOOR : (double)lp);
}

/* The string of a token, and its bytes. */
static bool token_string(const tokenizer *tok, uint32_t id, const char *prefix, xd_buf *ret, xd_buf *ret_bytes)
{
    if (!tok || !tok_token_bytes(tok, id, ret_bytes))
        return xd_buf_printf(ret, "token_id:%u", id);
    if (xd_utf8_valid(ret_bytes->data ? ret_bytes->data : "", ret_bytes->len))
        return xd_buf_append(ret, ret_bytes->data, ret_bytes->len) && xd_buf_puts(ret, "");
    xd_buf_puts(ret, prefix);
    for (size_t i = 0; i < ret_bytes->len; i++)
        xd_buf_printf(ret, "\\x%02x", (unsigned char)ret_bytes->data[i]);
    return !ret->failed;
}

static json_t *string_of(const xd_buf *b)
{
    return b->failed ? NULL : json_stringn(b->data ? b->data : "", b->len);
}

static json_t *chat_entry(const tokenizer *tok, uint32_t id, float logprob)
{
    XD_CLEANUP(xd_buf_free) xd_buf text = {0};
    XD_CLEANUP(xd_buf_free) xd_buf bytes = {0};
    if (!token_string(tok, id, "", &text, &bytes) || bytes.failed)
        return NULL;
    json_t *list = tok ? json_array() : json_null();
    for (size_t i = 0; tok && i < bytes.len; i++)
        if (json_array_append_new(list, json_integer((unsigned char)bytes.data[i]))) {
            json_decref(list);
            return NULL;
        }
    return json_pack("{s:o, s:o, s:o}", "token", string_of(&text), "logprob", logprob_value(logprob), "bytes", list);
}

json_t *format_chat_logprob(const tokenizer *tok, const engine_event *ev)
{
    json_t *top = json_array();
    json_t *entry = chat_entry(tok, ev->token_id, ev->logprob.logprob);
    bool ok = top && entry;
    for (uint32_t i = 0; ok && i < ev->n_top; i++)
        ok = !json_array_append_new(top, chat_entry(tok, ev->top[i].id, ev->top[i].logprob));
    if (!ok || json_object_set(entry, "top_logprobs", top)) {
        json_decref(entry);
        entry = NULL;
    }
    json_decref(top);
    return entry;
}

json_t *format_completion_logprobs_new(void)
{
    return json_pack("{s:[], s:[], s:[], s:[]}", "text_offset", "token_logprobs", "tokens", "top_logprobs");
}

bool format_completion_logprob_add(json_t *lp, const tokenizer *tok, const engine_event *ev, bool shown, size_t *offset)
{
    XD_CLEANUP(xd_buf_free) xd_buf text = {0};
    XD_CLEANUP(xd_buf_free) xd_buf bytes = {0};
    if (!token_string(tok, ev->token_id, "bytes:", &text, &bytes) || bytes.failed)
        return false;
    json_t *top = isnan(ev->logprob.logprob) ? json_null() : json_object();
    bool ok = top && !json_array_append_new(json_object_get(lp, "tokens"), string_of(&text)) &&
              !json_array_append_new(json_object_get(lp, "token_logprobs"), logprob_value(ev->logprob.logprob)) &&
              !json_array_append_new(json_object_get(lp, "text_offset"), json_integer((json_int_t)*offset));
    *offset += shown ? xd_utf8_count(bytes.data, bytes.len) : 0;
    for (uint32_t i = 0; ok && json_is_object(top) && i < ev->n_top; i++) {
        XD_CLEANUP(xd_buf_free) xd_buf t = {0};
        XD_CLEANUP(xd_buf_free) xd_buf b = {0};
        ok = token_string(tok, ev->top[i].id, "bytes:", &t, &b) &&
             !json_object_setn_new_nocheck(top, t.data, t.len, logprob_value(ev->top[i].logprob));
    }
    /* The token that was taken is always there, as OpenAI's. */
    if (ok && json_is_object(top) && !json_object_get(top, text.data))
        ok = !json_object_setn_new_nocheck(top, text.data, text.len, logprob_value(ev->logprob.logprob));
    return !json_array_append_new(json_object_get(lp, "top_logprobs"), top) && ok;
}

json_t *format_ids(const uint32_t *ids, size_t n)
{
    json_t *list = json_array();
    for (size_t i = 0; list && i < n; i++)
        if (json_array_append_new(list, json_integer(ids[i]))) {
            json_decref(list);
            return NULL;
        }
    return list;
}

json_t *format_usage(uint64_t prompt, uint64_t completion, uint64_t cached)
{
    return json_pack("{s:I, s:I, s:I, s:{s:I}}", "prompt_tokens", (json_int_t)prompt, "completion_tokens",
                     (json_int_t)completion, "total_tokens", (json_int_t)(prompt + completion), "prompt_tokens_details",
                     "cached_tokens", (json_int_t)cached);
}
