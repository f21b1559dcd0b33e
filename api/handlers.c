/* handlers.c - the small endpoints: models, tokenize and detokenize, health, metrics, status, version, admin. */
#include <string.h>
#include <time.h>

#include "api/generate.h"
#include "config/log.h"

static enum MHD_Result out_of_memory(exchange *x)
{
    xd_err err;
    xd_fail(&err, XD_NOMEM, 0, "out of memory for the response");
    return reply_error(x, &err);
}

/* --- models ---------------------------------------------------------------------------------------------------------- */

static json_t *model_json(const exchange *x, const char *name)
{
    const engine_info *info = engine_get_info(x->a->e);
    if (!x->anthropic)
        return json_pack("{s:s, s:s, s:I, s:s, s:s, s:I, s:[]}", "id", name, "object", "model", "created",
                         (json_int_t)info->created_unix_s, "owned_by", "expertd", "root", info->model_id,
                         "max_model_len", (json_int_t)info->max_model_len, "permission");
    char created[32] = "";
    time_t t = (time_t)info->created_unix_s;
    struct tm utc;
    if (gmtime_r(&t, &utc))
        strftime(created, sizeof created, "%Y-%m-%dT%H:%M:%SZ", &utc);
    return json_pack("{s:s, s:s, s:s, s:s, s:I, s:I}", "type", "model", "id", name, "display_name", name, "created_at",
                     created, "max_input_tokens", (json_int_t)info->max_model_len, "max_tokens",
                     (json_int_t)info->max_model_len);
}

enum MHD_Result handle_models(exchange *x)
{
    const engine_info *info = engine_get_info(x->a->e);
    const char *last = info->n_aliases ? info->aliases[info->n_aliases - 1] : info->model_id;
    json_t *list = json_array();
    json_array_append_new(list, model_json(x, info->model_id));
    for (uint32_t i = 0; i < info->n_aliases; i++)
        json_array_append_new(list, model_json(x, info->aliases[i]));
    if (json_array_size(list) != info->n_aliases + 1u) { /* jansson takes a NULL for a failure: some memory was short */
        json_decref(list);
        return out_of_memory(x);
    }
    return reply_json(x, 200,
                      x->anthropic ? json_pack("{s:o, s:b, s:s, s:s}", "data", list, "has_more", 0, "first_id",
                                               info->model_id, "last_id", last)
                                   : json_pack("{s:s, s:o}", "object", "list", "data", list));
}

enum MHD_Result handle_model(exchange *x)
{
    xd_err err;
    if (gen_check_model(engine_get_info(x->a->e), x->path_rest, &err))
        return reply_error(x, &err);
    return reply_json(x, 200, model_json(x, x->path_rest));
}

enum MHD_Result handle_no_response(exchange *x)
{
    xd_err err;
    xd_fail_field(&err, XD_NOT_FOUND, NULL, "response_not_found",
                  "there is no response '%.*s': nothing is stored here (answers say \"store\": false)",
                  (int)XD_MIN(strcspn(x->path_rest, "/"), (size_t)100), x->path_rest);
    return reply_error(x, &err);
}

enum MHD_Result handle_no_compact(exchange *x)
{
    xd_err err;
    xd_fail_field(&err, XD_NOT_FOUND, NULL, "unknown_url",
                  "there is no '%s' here: a conversation is not made shorter; leave out the oldest items of input",
                  x->route->path);
    return reply_error(x, &err);
}

/* --- tokenize, detokenize: vLLM's shapes --------------------------------------------------------------------------------- */

typedef struct tokenize_params {
    const char *model, *prompt, *content;
    const json_t *messages, *tools, *template_kwargs, *tokens;
    bool add_special_tokens, add_generation_prompt, continue_final_message, return_token_strs, skip_special_tokens,
        parse_special, with_pieces, add_special;
} tokenize_params;

enum { TOKENIZE = 1, DETOKENIZE = 2 };
#define AT(f) offsetof(tokenize_params, f)
static const field tokenize_fields[] = {
    {"add_generation_prompt", FIELD_BOOL, TOKENIZE, AT(add_generation_prompt), 0, 0, NULL},
    {"add_special", FIELD_BOOL, TOKENIZE, AT(add_special), 0, 0, NULL},
    {"add_special_tokens", FIELD_BOOL, TOKENIZE, AT(add_special_tokens), 0, 0, NULL},
    {"chat_template", FIELD_REFUSED, TOKENIZE, 0, 0, 0, "a client may not bring a template"},
    {"chat_template_kwargs", FIELD_EXACT_OBJECT, TOKENIZE, AT(template_kwargs), 0, 0, NULL},
    {"content", FIELD_STRING, TOKENIZE, AT(content), 0, 0, NULL},
    {"continue_final_message", FIELD_BOOL, TOKENIZE, AT(continue_final_message), 0, 0, NULL},
    {"messages", FIELD_ARRAY, TOKENIZE, AT(messages), 0, 0, NULL},
    {"model", FIELD_STRING, TOKENIZE | DETOKENIZE, AT(model), 0, 0, NULL},
    {"parse_special", FIELD_BOOL, TOKENIZE, AT(parse_special), 0, 0, NULL},
    {"prompt", FIELD_STRING, TOKENIZE, AT(prompt), 0, 0, NULL},
    {"return_token_strs", FIELD_BOOL, TOKENIZE, AT(return_token_strs), 0, 0, NULL},
    {"skip_special_tokens", FIELD_BOOL, DETOKENIZE, AT(skip_special_tokens), 0, 0, NULL},
    {"tokens", FIELD_ARRAY, DETOKENIZE, AT(tokens), 0, 0, NULL},
    {"tools", FIELD_EXACT_ARRAY, TOKENIZE, AT(tools), 0, 0, NULL},
    {"with_pieces", FIELD_BOOL, TOKENIZE, AT(with_pieces), 0, 0, NULL},
};

static xd_status read_tokenize(exchange *x, const gen_context *ctx, unsigned where, json_t **ret_body,
                               tokenize_params *p, xd_err *err)
{
    *p = (tokenize_params){.add_special_tokens = true, .add_generation_prompt = true};
    xd_status st = body_parse(x->body.data, x->body.len, ret_body, err);
    if (!st)
        st = fields_read(*ret_body, tokenize_fields, XD_ARRAY_LEN(tokenize_fields), where, &x->a->notes, p, err);
    if (!st)
        st = gen_check_model(ctx->info, p->model, err);
    if (!st && !ctx->tok)
        st = xd_fail_field(err, XD_BAD_REQUEST, NULL, "no_tokenizer", "this model has no tokenizer (%s)",
                           ctx->tok_why ? ctx->tok_why : "none was found");
    return st;
}

/* llama.cpp's: the token's text, or its bytes where they are no whole characters. */
static void write_piece(const gen_context *ctx, uint32_t id, xd_buf *out)
{
    XD_CLEANUP(xd_buf_free) xd_buf bytes = {0};
    const char *text = tok_token_bytes(ctx->tok, id, &bytes) ? bytes.data : tok_token_text(ctx->tok, id);
    size_t len = bytes.len ? bytes.len : text ? strlen(text) : 0;
    xd_buf_puts(out, ",\"piece\":");
    if (!len || xd_utf8_valid(text, len)) {
        reply_dump(json_stringn(len ? text : "", len), out);
    } else {
        for (size_t i = 0; i < len; i++)
            xd_buf_printf(out, "%s%u", i ? "," : "[", (unsigned char)text[i]);
        xd_buf_putc(out, ']');
    }
    xd_buf_putc(out, '}');
}

/* Written piece by piece: as JSON values, the ids of a 16 MiB text would take half a gigabyte and seconds. */
static void write_tokens(const gen_context *ctx, const tokenize_params *p, const tok_ids *ids, xd_buf *out)
{
    xd_buf_printf(out, "{\"count\":%zu,\"max_model_len\":%u,\"tokens\":[", ids->len, ctx->info->max_model_len);
    for (size_t i = 0; i < ids->len; i++) {
        char text[12], *at = text + sizeof text;
        uint32_t id = ids->data[i];
        do
            *--at = (char)('0' + id % 10);
        while (id /= 10);
        if (i)
            xd_buf_putc(out, ',');
        if (p->with_pieces)
            xd_buf_puts(out, "{\"id\":");
        xd_buf_append(out, at, (size_t)(text + sizeof text - at));
        if (p->with_pieces)
            write_piece(ctx, ids->data[i], out);
    }
    xd_buf_putc(out, ']');
    if (p->return_token_strs)
        xd_buf_puts(out, ",\"token_strs\":[");
    for (size_t i = 0; p->return_token_strs && i < ids->len; i++) {
        const char *s = tok_token_text(ctx->tok, ids->data[i]);
        if (i)
            xd_buf_putc(out, ',');
        reply_dump(s ? json_string(s) : json_null(), out);
    }
    xd_buf_puts(out, p->return_token_strs ? "]}" : "}");
}

xd_status prepare_tokenize(exchange *x, xd_err *err)
{
    gen_context ctx = gen_context_of(x);
    XD_CLEANUP(json_decrefp) json_t *body = NULL;
    XD_CLEANUP(json_decrefp) json_t *kwargs = NULL;
    XD_CLEANUP(tok_ids_free) tok_ids ids = {0};
    tokenize_params p;
    xd_status st = read_tokenize(x, &ctx, TOKENIZE, &body, &p, err);
    if (!st && !!p.prompt + !!p.content + !!p.messages > 1)
        st = xd_fail_field(err, XD_BAD_REQUEST, p.messages ? "messages" : "content", "invalid_value",
                           "give one of 'prompt' ('content' is another name of it) and 'messages'");
    else if (!st && !p.prompt && !p.content && !p.messages)
        st = xd_fail_field(err, XD_BAD_REQUEST, "prompt", "missing_required_parameter", "give 'prompt' or 'messages'");
    if (!st && p.content) { /* llama.cpp's name, with its defaults */
        p.prompt = p.content;
        p.add_special_tokens = p.add_special;
        p.parse_special |= !json_object_get(body, "parse_special");
    }
    if (!st && p.prompt)
        st = tok_encode(ctx.tok, p.prompt, strlen(p.prompt),
                        (p.add_special_tokens ? TOK_ADD_SPECIAL : 0u) | (p.parse_special ? TOK_PARSE_SPECIAL : 0u),
                        &ids, err);
    else if (!st)
        st = gen_check_tools(p.tools, err);
    if (!st && !p.prompt)
        st = gen_template_kwargs(&ctx, p.template_kwargs, &kwargs, err);
    if (!st && !p.prompt) {
        chat_request req = {.messages = p.messages,
                            .tools = p.tools,
                            .template_kwargs = kwargs,
                            .add_generation_prompt = p.add_generation_prompt && !p.continue_final_message,
                            .continue_final_message = p.continue_final_message};
        st = gen_encode_chat(&ctx, &req, p.add_special_tokens, &ids, NULL, err);
    }
    if (!st)
        write_tokens(&ctx, &p, &ids, &x->answer);
    return st;
}

xd_status prepare_detokenize(exchange *x, xd_err *err)
{
    gen_context ctx = gen_context_of(x);
    XD_CLEANUP(json_decrefp) json_t *body = NULL;
    XD_CLEANUP(xd_buf_free) xd_buf text = {0};
    tokenize_params p;
    xd_status st = read_tokenize(x, &ctx, DETOKENIZE, &body, &p, err);
    if (!st && !p.tokens)
        st = xd_fail_field(err, XD_BAD_REQUEST, "tokens", "missing_required_parameter", "'tokens' is missing");
    size_t n = st ? 0 : json_array_size(p.tokens);
    XD_CLEANUP(xd_freep) uint32_t *ids = calloc(n + 1, sizeof *ids);
    if (!st && !ids)
        st = xd_fail(err, XD_NOMEM, 0, "out of memory for the tokens");
    if (!st)
        st = gen_read_ids(p.tokens, "tokens", ctx.info->vocab, ids, err);
    if (!st)
        st = tok_decode(ctx.tok, ids, n, p.skip_special_tokens, &text, err);
    if (!st)
        reply_dump(json_pack("{s:o}", "prompt", json_stringn(text.data ? text.data : "", text.len)), &x->answer);
    return st;
}

enum MHD_Result handle_answer(exchange *x)
{
    xd_buf_putc(&x->answer, '\n');
    return reply_bytes(x, 200, "application/json", &x->answer);
}

/* --- looking on --------------------------------------------------------------------------------------------------------- */

/* The common part of /health and /status.json; *ret_ready says whether requests are served. */
static json_t *health_json(exchange *x, bool with_map, bool *ret_ready)
{
    double fraction = 0;
    char what[400] = "";
    engine_phase phase = engine_get_phase(x->a->e, &fraction, what, sizeof what);
    if (phase == ENGINE_READY && atomic_load(&x->a->draining))
        phase = ENGINE_DRAINING;
    if (phase == ENGINE_READY && !atomic_load(&x->a->ready)) {
        phase = ENGINE_LOADING;
        snprintf(what, sizeof what, "chat template");
    }
    *ret_ready = phase == ENGINE_READY;
    static const char *const names[] = {[ENGINE_LOADING] = "loading",
                                        [ENGINE_READY] = "ready",
                                        [ENGINE_DRAINING] = "draining",
                                        [ENGINE_FAILED] = "failed"};
    json_t *json = json_pack("{s:s, s:s}", "status", names[phase], "version", XD_VERSION);
    if (json && phase == ENGINE_LOADING)
        json_object_set_new(json, "progress", json_real(fraction));
    if (json && what[0] && phase != ENGINE_READY)
        json_object_set_new(json, phase == ENGINE_FAILED ? "reason" : "what", json_string(what));
    if (json && (phase == ENGINE_READY || phase == ENGINE_DRAINING)) {
        json_object_set_new(json, "model", json_string(engine_get_info(x->a->e)->model_id));
        XD_CLEANUP(xd_buf_free) xd_buf text = {0};
        xd_err err;
        if (!engine_status_json(x->a->e, with_map, &text, &err) && !text.failed)
            json_object_set_new(json, "engine", json_loadb(text.data ? text.data : "", text.len, 0, NULL));
    }
    return json;
}

enum MHD_Result handle_health(exchange *x)
{
    bool ready;
    json_t *json = health_json(x, false, &ready);
    return reply_json(x, ready ? 200 : 503, json);
}

enum MHD_Result handle_status_json(exchange *x)
{
    bool ready;
    json_t *json = health_json(x, true, &ready);
    if (json)
        json_object_set_new(json, "http", api_metrics_json(&x->a->metrics));
    return reply_json(x, 200, json);
}

enum MHD_Result handle_metrics(exchange *x)
{
    xd_buf out = {0};
    api_metrics_print(&x->a->metrics, &out);
    engine_metrics(x->a->e, &out);
    return reply_bytes(x, 200, "text/plain; version=0.0.4; charset=utf-8", &out);
}

/* Made by embed.py. */
extern const char api_chat_html[], api_chat_csp[], api_status_html[], api_status_csp[];

enum MHD_Result handle_chat_page(exchange *x)
{
    return reply_page(x, api_chat_html, api_chat_csp);
}

enum MHD_Result handle_status_page(exchange *x)
{
    return reply_page(x, api_status_html, api_status_csp);
}

enum MHD_Result handle_version(exchange *x)
{
    return reply_json(x, 200, json_pack("{s:s}", "version", XD_VERSION));
}

/* --- admin ---------------------------------------------------------------------------------------------------------------- */

enum MHD_Result handle_admin_fallback(exchange *x)
{
    static const char *const names[] = {
        [CONF_FORCE_NONE] = "none", [CONF_FORCE_DIRECT] = "direct", [CONF_FORCE_FALLBACK] = "fallback"};
    struct {
        const char *state;
    } p = {NULL};
    static const field fields[] = {{"state", FIELD_STRING, 1, 0, 0, 0, NULL}};
    XD_CLEANUP(json_decrefp) json_t *body = NULL;
    xd_err err;
    xd_status st = body_parse(x->body.data, x->body.len, &body, &err);
    if (!st)
        st = fields_read(body, fields, XD_ARRAY_LEN(fields), 1, &x->a->notes, &p, &err);
    size_t i = 0;
    while (!st && i < XD_ARRAY_LEN(names) && (!p.state || strcmp(names[i], p.state) != 0))
        i++;
    if (!st && i == XD_ARRAY_LEN(names))
        st = xd_fail_field(&err, XD_BAD_REQUEST, "state", "invalid_value",
                           "'state' must be \"none\", \"direct\" or \"fallback\"");
    if (!st)
        st = engine_force_fallback(x->a->e, (int)i, &err);
    if (st)
        return reply_error(x, &err);
    xd_log_info("fallback state forced to %s by a client", names[i]);
    return reply_json(x, 200, json_pack("{s:s}", "state", names[i]));
}
