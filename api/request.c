/* request.c - the fields of /v1/chat/completions and /v1/completions: one table, then the rules that concern several fields.
 *
 * Everything is checked here, before the engine hears of it. What OpenAI, vLLM or llama.cpp know and expertd cannot do yet is refused
 * by name: a parameter that is silently ignored gives answers that nobody asked for. Fields that only inform the provider (user,
 * metadata, store, service_tier, ...) are taken and have no effect. */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "api/generate.h"

enum {
    MAX_STOP_BYTES = 1024,
    MAX_BIAS = 1024,
    DEFAULT_COMPLETION_TOKENS = 16, /* OpenAI's */
    UNLIMITED_TOKENS = -1,          /* llama.cpp's, and what its clients send */
    RANDOM_SEED = -1,               /* llama.cpp's and vLLM's */
};

#define BOTH           (GEN_CHAT | GEN_COMPLETION)
#define AT(f)          offsetof(gen_params, f)
#define INT_MAX_TOKENS 2147483647.0

/* clang-format off */
static const field fields[] = {
    /* name                          kind           where           destination                min      max  why refused */
    {"add_bos_token",                FIELD_BOOL,    GEN_COMPLETION, AT(add_special_tokens),     0,       0,   NULL},
    {"add_generation_prompt",        FIELD_BOOL,    GEN_CHAT,       AT(add_generation_prompt), 0,      0,   NULL},
    {"add_special_tokens",           FIELD_BOOL,    BOTH,           AT(add_special_tokens),    0,       0,   NULL},
    {"allowed_token_ids",            FIELD_REFUSED, BOTH,           0,                         0,       0,   NULL},
    {"audio",                        FIELD_REFUSED, GEN_CHAT,       0,                         0,       0,   "the model writes text"},
    {"bad_words",                    FIELD_REFUSED, BOTH,           0,                         0,       0,   "use logit_bias"},
    {"ban_eos_token",                FIELD_OTHER,   BOTH,           0,                         0,       0,   "ignore_eos"},
    {"banned_strings",               FIELD_REFUSED, BOTH,           0,                         0,       0,   "use logit_bias"},
    {"banned_tokens",                FIELD_REFUSED, BOTH,           0,                         0,       0,   "use logit_bias"},
    {"best_of",                      FIELD_INT,     GEN_COMPLETION, AT(best_of),               1,       INT_MAX_TOKENS, NULL},
    {"cache_salt",                   FIELD_REFUSED, BOTH,           0,                         0,       0,   "all requests share the prefix cache"},
    {"chat_template",                FIELD_REFUSED, GEN_CHAT,       0,                         0,       0,   "a client may not bring a template; set model.chat_template in the configuration"},
    {"chat_template_kwargs",         FIELD_EXACT_OBJECT,GEN_CHAT,       AT(template_kwargs),       0,       0,   NULL},
    {"continue_final_message",       FIELD_BOOL,    GEN_CHAT,       AT(continue_final_message), 0,      0,   NULL},
    {"custom_logit_processor",       FIELD_REFUSED, BOTH,           0,                         0,       0,   NULL},
    {"custom_token_bans",            FIELD_REFUSED, BOTH,           0,                         0,       0,   "use logit_bias"},
    {"documents",                    FIELD_EXACT_ARRAY,GEN_CHAT,       AT(documents),             0,       0,   NULL},
    {"dry_allowed_length",           FIELD_INT,     BOTH,           AT(dry_allowed_length),    0,       INT_MAX_TOKENS, NULL},
    {"dry_base",                     FIELD_REAL,    BOTH,           AT(dry_base),              1,       100, NULL},
    {"dry_multiplier",               FIELD_REAL,    BOTH,           AT(dry_multiplier),        0,       100, NULL},
    {"dry_penalty_last_n",           FIELD_INT,     BOTH,           AT(dry_last_n),            -1,      INT_MAX_TOKENS, NULL},
    {"dry_sequence_breakers",        FIELD_ANY,     BOTH,           AT(dry_sequence_breakers), 0,       0, NULL},
    {"dynamic_temperature",          FIELD_BOOL,    BOTH,           AT(dynamic_temperature),   0,       0, NULL},
    {"dynatemp_exponent",            FIELD_REAL,    BOTH,           AT(dynatemp_exponent),     0,       10, NULL},
    {"dynatemp_high",                FIELD_REAL,    BOTH,           AT(dynatemp_high),         0,       4, NULL},
    {"dynatemp_low",                 FIELD_REAL,    BOTH,           AT(dynatemp_low),          0,       4, NULL},
    {"dynatemp_range",               FIELD_REAL,    BOTH,           AT(dynatemp_range),        0,       10, NULL},
    {"ebnf",                         FIELD_STRING,  BOTH,           AT(ebnf),                  0,       0,   NULL},
    {"echo",                         FIELD_BOOL,    GEN_COMPLETION, AT(echo),                  0,       0,   NULL},
    {"echo",                         FIELD_REFUSED, GEN_CHAT,       0,                         0,       0,   "only /v1/completions echoes"},
    {"enable_thinking",              FIELD_ANY,     GEN_CHAT,       AT(enable_thinking),       0,       0,   NULL},
    {"encoder_repetition_penalty",   FIELD_OFF,     BOTH,           0,                         1,       1,   NULL},
    {"epsilon_cutoff",               FIELD_OFF,     BOTH,           0,                         0,       0,   NULL},
    {"eta_cutoff",                   FIELD_OFF,     BOTH,           0,                         0,       0,   NULL},
    {"extra_body",                   FIELD_OFF,     BOTH,           0,                         0,       0,   "send what is in it at the top of the body, as Python's openai client does"},
    {"format",                       FIELD_OFF,     BOTH,           0,                         0,       0,   "use response_format"},
    {"frequency_penalty",            FIELD_REAL,    BOTH,           AT(frequency_penalty),     -2,      2,   NULL},
    {"function_call",                FIELD_ANY,     GEN_CHAT,       AT(function_call),         0,       0,   NULL},
    {"functions",                    FIELD_REFUSED, GEN_CHAT,       0,                         0,       0,   "use tools"},
    {"grammar",                      FIELD_STRING,  BOTH,           AT(rules),                 0,       0,   NULL},
    {"grammar_lazy",                 FIELD_OFF,     BOTH,           0,                         0,       0,   "a grammar holds from the start"},
    {"grammar_string",               FIELD_STRING,  BOTH,           AT(grammar_string),        0,       0,   NULL},
    {"grammar_triggers",             FIELD_OFF,     BOTH,           0,                         0,       0,   "a grammar holds from the start"},
    {"guidance_scale",               FIELD_OFF,     BOTH,           0,                         1,       1,   NULL},
    {"guided_choice",                FIELD_ARRAY,   BOTH,           AT(guided_choice),         0,       0,   NULL},
    {"guided_grammar",               FIELD_STRING,  BOTH,           AT(guided_grammar),        0,       0,   NULL},
    {"guided_json",                  FIELD_ANY,     BOTH,           AT(guided_json),           0,       0,   NULL},
    {"guided_regex",                 FIELD_STRING,  BOTH,           AT(guided_regex),          0,       0,   NULL},
    {"ignore_eos",                   FIELD_BOOL,    BOTH,           AT(ignore_eos),            0,       0,   NULL},
    {"image_data",                   FIELD_REFUSED, BOTH,           0,                         0,       0,   "the model reads text"},
    {"images",                       FIELD_REFUSED, BOTH,           0,                         0,       0,   "the model reads text"},
    {"include_reasoning",            FIELD_BOOL,    GEN_CHAT,       AT(include_reasoning),     0,       0,   NULL},
    {"include_stop_str_in_output",   FIELD_BOOL,    BOTH,           AT(include_stop_str),      0,       0,   NULL},
    {"instructions",                 FIELD_REFUSED, GEN_CHAT,       0,                         0,       0,   "send a message of the role system"},
    {"instructions",                 FIELD_REFUSED, GEN_COMPLETION, 0,                         0,       0,   "put it into the prompt"},
    {"json_schema",                  FIELD_ANY,     BOTH,           AT(json_schema),           0,       0,   NULL},
    {"logit_bias",                   FIELD_OBJECT,  BOTH,           AT(logit_bias),            0,       0,   NULL},
    {"logits_processors",            FIELD_REFUSED, BOTH,           0,                         0,       0,   NULL},
    {"logprob_token_ids",            FIELD_REFUSED, BOTH,           0,                         0,       0,   NULL},
    {"logprobs",                     FIELD_INT,     GEN_COMPLETION, AT(logprobs),              0,       ENGINE_MAX_TOP_LOGPROBS, NULL},
    {"logprobs",                     FIELD_BOOL,    GEN_CHAT,       AT(want_logprobs),         0,       0,   NULL},
    {"lora",                         FIELD_REFUSED, BOTH,           0,                         0,       0,   "one model is served, as it is"},
    {"max_completion_tokens",        FIELD_INT,     GEN_CHAT,       AT(max_completion_tokens), -1,     INT_MAX_TOKENS, NULL},
    {"max_new_tokens",               FIELD_OTHER,   BOTH,           0,                         -1,      -1,  "max_tokens"},
    {"max_tokens",                   FIELD_INT,     GEN_CHAT,       AT(max_tokens),            -1,      INT_MAX_TOKENS, NULL},
    {"max_tokens",                   FIELD_INT,     GEN_COMPLETION, AT(max_tokens),            -1,      INT_MAX_TOKENS, NULL},
    {"messages",                     FIELD_ARRAY,   GEN_CHAT,       AT(messages),              0,       0,   NULL},
    {"min_length",                   FIELD_OTHER,   BOTH,           0,                         0,       0,   "min_tokens"},
    {"min_new_tokens",               FIELD_OTHER,   BOTH,           0,                         0,       0,   "min_tokens"},
    {"min_p",                        FIELD_REAL,    BOTH,           AT(min_p),                 0,       1,   NULL},
    {"min_tokens",                   FIELD_INT,     BOTH,           AT(min_tokens),            0,       INT_MAX_TOKENS, NULL},
    {"mirostat",                     FIELD_OFF,     BOTH,           0,                         0,       0,   "use temperature with top_p, min_p or typical_p"},
    {"mirostat_mode",                FIELD_OFF,     BOTH,           0,                         0,       0,   "use temperature with top_p, min_p or typical_p"},
    {"modalities",                   FIELD_ARRAY,   GEN_CHAT,       AT(modalities),            0,       0,   NULL},
    {"moderation",                   FIELD_REFUSED, BOTH,           0,                         0,       0,   "the server has no model that moderates"},
    {"model",                        FIELD_STRING,  BOTH,           AT(model),                 0,       0,   NULL},
    {"n",                            FIELD_INT,     BOTH,           AT(n),                     1,       INT_MAX_TOKENS, NULL},
    {"n_predict",                    FIELD_OTHER,   BOTH,           0,                         -1,      -1,  "max_tokens"},
    {"n_probs",                      FIELD_OTHER,   BOTH,           0,                         0,       0,   "logprobs"},
    {"negative_prompt",              FIELD_REFUSED, BOTH,           0,                         0,       0,   NULL},
    {"no_repeat_ngram_size",         FIELD_OFF,     BOTH,           0,                         0,       0,   NULL},
    {"nsigma",                       FIELD_REAL,    BOTH,           AT(nsigma),                -1,      100, NULL},
    {"num_beams",                    FIELD_OFF,     BOTH,           0,                         1,       1,   NULL},
    {"num_predict",                  FIELD_OTHER,   BOTH,           0,                         -1,      -1,  "max_tokens"},
    {"parallel_tool_calls",          FIELD_BOOL,    GEN_CHAT,       AT(parallel_tool_calls),   0,       0,   NULL},
    {"parse_special",                FIELD_BOOL,    GEN_COMPLETION, AT(parse_special),         0,       0,   NULL},
    {"penalty_alpha",                FIELD_OFF,     BOTH,           0,                         0,       0,   NULL},
    {"presence_penalty",             FIELD_REAL,    BOTH,           AT(presence_penalty),      -2,      2,   NULL},
    {"priority",                     FIELD_INT,     BOTH,           AT(priority),              -1000000, 1000000, NULL},
    {"prompt",                       FIELD_ANY,     GEN_COMPLETION, AT(prompt),                0,       0,   NULL},
    {"prompt_embeds",                FIELD_REFUSED, BOTH,           0,                         0,       0,   NULL},
    {"prompt_logprobs",              FIELD_REFUSED, BOTH,           0,                         0,       0,   "use echo with logprobs on /v1/completions"},
    {"random_seed",                  FIELD_OTHER,   BOTH,           0,                         -1,      -1,  "seed"},
    {"reasoning",                    FIELD_OBJECT,  GEN_CHAT,       AT(reasoning),             0,       0,   NULL},
    {"reasoning_budget",             FIELD_OFF,     GEN_CHAT,       0,                         -1,      -1,  "a thought has no limit of its own; enable_thinking says whether there is one"},
    {"reasoning_effort",             FIELD_STRING,  GEN_CHAT,       AT(reasoning_effort),      0,       0,   NULL},
    {"reasoning_format",             FIELD_STRING,  GEN_CHAT,       AT(reasoning_format),      0,       0,   NULL},
    {"regex",                        FIELD_STRING,  BOTH,           AT(regex),                 0,       0,   NULL},
    {"rep_pen",                      FIELD_OTHER,   BOTH,           0,                         1,       1,   "repetition_penalty"},
    {"repeat_penalty",               FIELD_OTHER,   BOTH,           0,                         1,       1,   "repetition_penalty"},
    {"repetition_penalty",           FIELD_REAL,    BOTH,           AT(repetition_penalty),    0.01,    100, NULL},
    {"response_format",              FIELD_OBJECT,  BOTH,           AT(response_format),       0,       0,   NULL},
    {"return_token_ids",             FIELD_BOOL,    BOTH,           AT(return_token_ids),      0,       0,   NULL},
    {"return_tokens_as_token_ids",   FIELD_REFUSED, BOTH,           0,                         0,       0,   "use return_token_ids"},
    {"sampler_seed",                 FIELD_OTHER,   BOTH,           0,                         -1,      -1,  "seed"},
    {"seed",                         FIELD_INT,     BOTH,           AT(seed),                  -9.3e18, 9.3e18, NULL},
    {"separate_reasoning",           FIELD_BOOL,    GEN_CHAT,       AT(separate_reasoning),    0,       0,   NULL},
    {"skip_special_tokens",          FIELD_BOOL,    BOTH,           AT(skip_special),          0,       0,   NULL},
    {"smoothing_factor",             FIELD_OFF,     BOTH,           0,                         0,       0,   NULL},
    {"stop",                         FIELD_ANY,     BOTH,           AT(stop),                  0,       0,   NULL},
    {"stop_sequences",               FIELD_OTHER,   BOTH,           0,                         0,       0,   "stop"},
    {"stop_token_ids",               FIELD_ARRAY,   BOTH,           AT(stop_token_ids),        0,       0,   NULL},
    {"stopping_strings",             FIELD_OTHER,   BOTH,           0,                         0,       0,   "stop"},
    {"store",                        FIELD_BOOL,    GEN_CHAT,       AT(store),                 0,       0,   NULL},
    {"stream",                       FIELD_BOOL,    BOTH,           AT(stream),                0,       0,   NULL},
    {"stream_options",               FIELD_OBJECT,  BOTH,           AT(stream_options),        0,       0,   NULL},
    {"structural_tag",               FIELD_REFUSED, BOTH,           0,                         0,       0,   "use tools, or response_format"},
    {"structured_outputs",           FIELD_OBJECT,  BOTH,           AT(structured_outputs),    0,       0,   NULL},
    {"suffix",                       FIELD_STRING,  GEN_COMPLETION, AT(suffix),                0,       0,   NULL},
    {"temperature",                  FIELD_REAL,    BOTH,           AT(temperature),           0,       2,   NULL},
    {"system",                       FIELD_REFUSED, GEN_CHAT,       0,                         0,       0,   "send a message of the role system"},
    {"system",                       FIELD_REFUSED, GEN_COMPLETION, 0,                         0,       0,   "put it into the prompt"},
    {"t_max_predict_ms",             FIELD_OFF,     BOTH,           0,                         -1,      0,   NULL},
    {"tfs",                          FIELD_OFF,     BOTH,           0,                         1,       1,   NULL},
    {"tfs_z",                        FIELD_OFF,     BOTH,           0,                         1,       1,   NULL},
    {"thinking",                     FIELD_ANY,     GEN_CHAT,       AT(thinking),              0,       0,   NULL},
    {"thinking_token_budget",        FIELD_OFF,     BOTH,           0,                         -1,      -1,  NULL},
    {"timings",                      FIELD_BOOL,    BOTH,           AT(timings),               0,       0,   NULL},
    {"timings_per_token",            FIELD_BOOL,    BOTH,           AT(timings_per_token),     0,       0,   NULL},
    {"tool_choice",                  FIELD_ANY,     GEN_CHAT,       AT(tool_choice),           0,       0,   NULL},
    {"tools",                        FIELD_EXACT_ARRAY,GEN_CHAT,       AT(tools),                 0,       0,   NULL},
    {"top_a",                        FIELD_OFF,     BOTH,           0,                         0,       0,   NULL},
    {"top_k",                        FIELD_INT,     BOTH,           AT(top_k),                 -1,      INT_MAX_TOKENS, NULL},
    {"top_logprobs",                 FIELD_INT,     GEN_CHAT,       AT(top_logprobs),          0,       ENGINE_MAX_TOP_LOGPROBS, NULL},
    {"top_n_sigma",                  FIELD_REAL,    BOTH,           AT(top_n_sigma),           -1,      100, NULL},
    {"top_p",                        FIELD_REAL,    BOTH,           AT(top_p),                 0,       1,   NULL},
    {"truncate_prompt_tokens",       FIELD_OFF,     BOTH,           0,                         -1,      -1,  "a prompt is never cut silently"},
    {"typ_p",                        FIELD_REAL,    BOTH,           AT(typ_p),                 0,       1, NULL},
    {"typical",                      FIELD_REAL,    BOTH,           AT(typical),               0,       1, NULL},
    {"typical_p",                    FIELD_REAL,    BOTH,           AT(typical_p),             0,       1, NULL},
    {"use_beam_search",              FIELD_REFUSED, BOTH,           0,                         0,       0,   NULL},
    {"user",                         FIELD_STRING,  BOTH,           AT(user),                  0,       0,   NULL},
    {"web_search_options",           FIELD_REFUSED, GEN_CHAT,       0,                         0,       0,   NULL},
    {"xtc_probability",              FIELD_REAL,    BOTH,           AT(xtc_probability),       0,       1, NULL},
    {"xtc_threshold",                FIELD_REAL,    BOTH,           AT(xtc_threshold),         0,       1, NULL},
};
/* clang-format on */

xd_status gen_bad_value(xd_err *err, const char *param, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return xd_fail_field(err, XD_BAD_REQUEST, param, "invalid_value", "%s", text);
}

void gen_replace_words(xd_err *err, const char *old, const char *new)
{
    XD_CLEANUP(xd_buf_free) xd_buf msg = {0};
    const char *rest = err->msg;
    for (const char *at; (at = strstr(rest, old)); rest = at + strlen(old))
        xd_buf_printf(&msg, "%.*s%s", (int)(at - rest), rest, new);
    if (rest != err->msg && xd_buf_puts(&msg, rest) && !msg.failed)
        snprintf(err->msg, sizeof err->msg, "%s", msg.data);
}

xd_status gen_unsupported(xd_err *err, const char *param, const char *text)
{
    return xd_fail_field(err, XD_BAD_REQUEST, param, "unsupported_parameter", "%s", text);
}

xd_status gen_check_model(const engine_info *info, const char *model, xd_err *err)
{
    if (!model || strcmp(model, info->model_id) == 0)
        return XD_OK;
    for (uint32_t i = 0; i < info->n_aliases; i++)
        if (strcmp(model, info->aliases[i]) == 0)
            return XD_OK;
    return xd_fail_field(err, XD_NOT_FOUND, "model", "model_not_found",
                         "the model '%.200s' does not exist; this server has '%s'%s", model, info->model_id,
                         info->n_aliases ? ", under other names too: GET /v1/models" : "");
}

xd_status gen_need_tokenizer(const gen_context *ctx, const char *param, xd_err *err)
{
    if (ctx->tok)
        return XD_OK;
    return xd_fail_field(err, XD_BAD_REQUEST, param, "no_tokenizer",
                         "'%s' is text, and this model has no tokenizer (%s): send token ids to /v1/completions", param,
                         ctx->tok_why ? ctx->tok_why : "none was found");
}

/* --- lists -------------------------------------------------------------------------------------------------------- */

static xd_status read_stop(const gen_context *ctx, gen_params *p, xd_err *err)
{
    if (!p->stop)
        return XD_OK;
    bool one = json_is_string(p->stop);
    if (!one && !json_is_array(p->stop))
        return fields_wrong_type(err, "stop", "a string or an array of strings", p->stop);
    size_t n = one ? 1 : json_array_size(p->stop);
    if (n > ctx->max_stop)
        return gen_bad_value(err, "stop", "'stop' has %zu strings: at most %u are allowed", n, ctx->max_stop);
    if (!n)
        return XD_OK;
    xd_status st = gen_need_tokenizer(ctx, "stop", err);
    if (st)
        return st;
    p->stops = calloc(n, sizeof *p->stops);
    if (!p->stops)
        return xd_fail(err, XD_NOMEM, 0, "out of memory for stop strings");
    for (size_t i = 0; i < n; i++) {
        const json_t *s = one ? p->stop : json_array_get(p->stop, i);
        char name[32];
        snprintf(name, sizeof name, one ? "stop" : "stop[%zu]", i);
        if (!json_is_string(s))
            return fields_wrong_type(err, name, "a string", s);
        size_t len = json_string_length(s);
        if (!len || len > MAX_STOP_BYTES)
            return gen_bad_value(err, name, "'%s' must have 1 to %d bytes, not %zu", name, MAX_STOP_BYTES, len);
        p->stops[p->n_stops++] = json_string_value(s);
    }
    return XD_OK;
}

xd_status gen_read_ids(const json_t *array, const char *name, uint32_t vocab, uint32_t *dst, xd_err *err)
{
    size_t i;
    json_t *v;
    json_array_foreach ((json_t *)(uintptr_t)array, i, v) {
        if (!json_is_integer(v))
            return xd_fail_field(err, XD_BAD_REQUEST, name, "invalid_type",
                                 "'%s[%zu]' must be a token id (an integer), not %s", name, i, json_kind_name(v));
        json_int_t id = json_integer_value(v);
        if (id < 0 || id >= vocab)
            return gen_bad_value(err, name, "'%s[%zu]' is %lld: token ids go from 0 to %u", name, i, (long long)id,
                                 vocab - 1);
        dst[i] = (uint32_t)id;
    }
    return XD_OK;
}

static xd_status read_stop_ids(const gen_context *ctx, gen_params *p, xd_err *err)
{
    size_t n = json_array_size(p->stop_token_ids);
    if (!n)
        return XD_OK;
    if (n > ENGINE_MAX_STOP_IDS)
        return gen_bad_value(err, "stop_token_ids", "'stop_token_ids' has %zu ids: at most %d are allowed", n,
                             ENGINE_MAX_STOP_IDS);
    p->stop_ids = calloc(n, sizeof *p->stop_ids);
    if (!p->stop_ids)
        return xd_fail(err, XD_NOMEM, 0, "out of memory for stop_token_ids");
    p->n_stop_ids = (uint32_t)n;
    return gen_read_ids(p->stop_token_ids, "stop_token_ids", ctx->info->vocab, p->stop_ids, err);
}

static xd_status read_bias(const gen_context *ctx, gen_params *p, xd_err *err)
{
    size_t n = json_object_size(p->logit_bias);
    if (!n)
        return XD_OK;
    if (n > MAX_BIAS)
        return gen_bad_value(err, "logit_bias", "'logit_bias' has %zu tokens: at most %d are allowed", n, MAX_BIAS);
    p->bias_ids = calloc(n, sizeof *p->bias_ids);
    p->bias = calloc(n, sizeof *p->bias);
    if (!p->bias_ids || !p->bias)
        return xd_fail(err, XD_NOMEM, 0, "out of memory for logit_bias");
    const char *key;
    json_t *v;
    json_object_foreach ((json_t *)(uintptr_t)p->logit_bias, key, v) {
        size_t digits = strspn(key, "0123456789");
        unsigned long id = strtoul(key, NULL, 10);
        if (!digits || key[digits] || digits > 10 || id >= ctx->info->vocab)
            return gen_bad_value(err, "logit_bias", "'logit_bias' key '%.40s' is not a token id from 0 to %u", key,
                                 ctx->info->vocab - 1);
        if (!json_is_number(v))
            return xd_fail_field(err, XD_BAD_REQUEST, "logit_bias", "invalid_type",
                                 "'logit_bias' of token %lu must be a number, not %s", id, json_kind_name(v));
        double b = json_number_value(v);
        if (!(b >= -100 && b <= 100))
            return gen_bad_value(err, "logit_bias", "'logit_bias' of token %lu must be between -100 and 100, not %g",
                                 id, b);
        p->bias_ids[p->n_bias] = (uint32_t)id;
        p->bias[p->n_bias++] = (float)b;
    }
    return XD_OK;
}

/* --- rules that concern several fields ---------------------------------------------------------------------------------- */

static xd_status check_stream_options(gen_params *p, xd_err *err)
{
    if (!p->stream_options)
        return XD_OK;
    if (!p->stream)
        return gen_bad_value(err, "stream_options", "'stream_options' is for requests with \"stream\": true");
    const json_t *usage = json_object_get(p->stream_options, "include_usage");
    if (usage && !json_is_null(usage) && !json_is_boolean(usage))
        return xd_fail_field(err, XD_BAD_REQUEST, "stream_options.include_usage", "invalid_type",
                             "'stream_options.include_usage' must be a boolean, not %s", json_kind_name(usage));
    p->include_usage = json_is_true(usage);
    return XD_OK;
}

static xd_status check_logprobs(const gen_context *ctx, gen_params *p, xd_err *err)
{
    p->n_logprobs = -1;
    const char *name = p->kind == GEN_CHAT ? "top_logprobs" : "logprobs";
    int64_t n = p->kind == GEN_CHAT ? p->top_logprobs : p->logprobs;
    if (n != FIELD_UNSET_INT && n > ctx->max_logprobs)
        return gen_bad_value(err, name, "'%s' must be between 0 and %u, not %lld", name, ctx->max_logprobs,
                             (long long)n);
    if (p->kind == GEN_CHAT && n != FIELD_UNSET_INT && n > 0 && !p->want_logprobs)
        return gen_bad_value(err, name, "'top_logprobs' needs \"logprobs\": true");
    if (p->kind == GEN_CHAT ? p->want_logprobs : n != FIELD_UNSET_INT)
        p->n_logprobs = n == FIELD_UNSET_INT ? 0 : (int32_t)n;
    return XD_OK;
}

static xd_status check_counts(const gen_context *ctx, gen_params *p, xd_err *err)
{
    if (p->n > ctx->max_n)
        return gen_bad_value(err, "n", "'n' must be between 1 and %u, not %lld", ctx->max_n, (long long)p->n);
    if (p->best_of != FIELD_UNSET_INT && p->best_of != p->n)
        return gen_unsupported(err, "best_of", "'best_of' other than n is not supported");
    if (p->suffix && p->suffix[0])
        return gen_unsupported(err, "suffix", "'suffix' is not supported");
    bool newer_name = p->max_completion_tokens != FIELD_UNSET_INT;
    if (newer_name)
        p->max_tokens = p->max_completion_tokens;
    if (p->kind == GEN_CHAT && p->max_tokens == 0)
        return gen_bad_value(err, newer_name ? "max_completion_tokens" : "max_tokens",
                             "'%s' is 0: an answer has at least one token",
                             newer_name ? "max_completion_tokens" : "max_tokens");
    bool given = p->max_tokens != FIELD_UNSET_INT;
    p->is_usual_length = !given || p->max_tokens == UNLIMITED_TOKENS;
    if (p->is_usual_length)
        p->max_tokens =
            p->kind == GEN_CHAT || given ? (int64_t)UINT32_MAX : XD_MAX(DEFAULT_COMPLETION_TOKENS, p->min_tokens);
    if (p->min_tokens > p->max_tokens)
        return gen_bad_value(err, "min_tokens", "'min_tokens' (%lld) is more than 'max_tokens' (%lld)",
                             (long long)p->min_tokens, (long long)p->max_tokens);
    size_t i;
    json_t *v;
    json_array_foreach ((json_t *)(uintptr_t)p->modalities, i, v) {
        if (!json_is_string(v) || strcmp(json_string_value(v), "text") != 0)
            return gen_unsupported(err, "modalities", "'modalities' other than [\"text\"] are not supported");
    }
    return XD_OK;
}

/* What stands for a field that the client has left out. */
static gen_params unset_params(unsigned kind, const gen_context *ctx)
{
    return (gen_params){.kind = kind,
                        .temperature = NAN,
                        .top_p = NAN,
                        .min_p = NAN,
                        .repetition_penalty = NAN,
                        .top_k = FIELD_UNSET_INT,
                        .typical_p = NAN,
                        .typical = NAN,
                        .typ_p = NAN,
                        .top_n_sigma = NAN,
                        .nsigma = NAN,
                        .xtc_threshold = 0.1,
                        .dynatemp_range = NAN,
                        .dynatemp_low = NAN,
                        .dynatemp_high = NAN,
                        .dynatemp_exponent = 1,
                        .dry_base = 1.75,
                        .dry_allowed_length = 2,
                        .dry_last_n = -1,
                        .n = 1,
                        .best_of = FIELD_UNSET_INT,
                        .max_tokens = FIELD_UNSET_INT,
                        .max_completion_tokens = FIELD_UNSET_INT,
                        .seed = FIELD_UNSET_INT,
                        .logprobs = FIELD_UNSET_INT,
                        .top_logprobs = FIELD_UNSET_INT,
                        .skip_special = true,
                        .add_special_tokens = true,
                        .parse_special = ctx->parse_special,
                        .parallel_tool_calls = true,
                        .include_reasoning = true,
                        .separate_reasoning = true,
                        .add_generation_prompt = true};
}

/* What one field says of another, or the name of which says more than its value. */
static void settle_fields(const json_t *body, gen_params *p)
{
    /* A seed of INT64_MIN would read as absent; nothing is lost by taking its neighbour. */
    if (json_is_integer(json_object_get(body, "seed")) && p->seed == FIELD_UNSET_INT)
        p->seed = FIELD_UNSET_INT + 1;
    if (p->seed == RANDOM_SEED)
        p->seed = FIELD_UNSET_INT;
    p->timings |= p->timings_per_token;
    if (json_object_get(body, "add_generation_prompt") == NULL && p->continue_final_message)
        p->add_generation_prompt = false;
}

static xd_status check_all(const gen_context *ctx, gen_params *p, xd_err *err)
{
    xd_status st = gen_check_model(ctx->info, p->model, err);
    if (!st && p->kind == GEN_CHAT && !p->messages)
        st = xd_fail_field(err, XD_BAD_REQUEST, "messages", "missing_required_parameter", "'messages' is missing");
    if (!st && p->kind == GEN_COMPLETION && !p->prompt)
        st = xd_fail_field(err, XD_BAD_REQUEST, "prompt", "missing_required_parameter", "'prompt' is missing");
    if (st || (st = check_counts(ctx, p, err)) || (st = check_stream_options(p, err)) ||
        (st = gen_check_tool_choice(ctx, p, err)) || (st = gen_read_reasoning(ctx, p, err)) ||
        (st = check_logprobs(ctx, p, err)) || (st = read_stop(ctx, p, err)) || (st = read_stop_ids(ctx, p, err)) ||
        (st = read_bias(ctx, p, err)) || (st = gen_read_sampling(ctx, p, err)))
        return st;
    const uint64_t began_ns = xd_now_ns();
    if (!(st = gen_read_response_format(ctx, p, err)))
        st = gen_read_tool_choice(p, err);
    p->grammar_ns = p->grammar ? xd_now_ns() - began_ns : 0;
    return st;
}

xd_status gen_params_read(const gen_context *ctx, unsigned kind, const json_t *body, gen_params *ret, xd_err *err)
{
    gen_params p = unset_params(kind, ctx);
    xd_status st = fields_read(body, fields, XD_ARRAY_LEN(fields), kind, ctx->notes, &p, err);
    if (!st) {
        settle_fields(body, &p);
        st = check_all(ctx, &p, err);
    }
    if (st) {
        gen_params_free(&p);
        return st;
    }
    *ret = p;
    return XD_OK;
}

void gen_params_free(gen_params *p)
{
    for (size_t i = 0; i < p->n_prompts; i++) {
        tok_ids_free(&p->prompts[i].ids);
        free(p->prompts[i].text);
    }
    free(p->prompts);
    free(p->stops);
    free(p->stop_ids);
    free(p->bias_ids);
    free(p->bias);
    free(p->dry_breakers);
    json_decref(p->dry_list);
    json_decref(p->schema_text);
    tok_ids_free(&p->lead_ids);
    grammar_unref(p->grammar);
    *p = (gen_params){0};
}
