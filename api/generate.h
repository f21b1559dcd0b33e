/* generate.h - completions: the parameters of a request, and the job that a request becomes. */
#ifndef API_GENERATE_H
#define API_GENERATE_H

#include "api/answer.h"
#include "api/api_priv.h"
#include "api/fields.h"
#include "engine/text/grammar.h"
#include "engine/text/lead.h"
#include "engine/text/tokenizer.h"

enum { GEN_COMPLETION = 1, GEN_CHAT = 2 };
#define GEN_CHAT_TEXTS "messages and tools" /* what a chat's prompt is made of, in errors about its length */
enum { GEN_MAX_HELD_LOGPROBS = 1 << 19 };   /* in one response: some 400 MiB as objects while it is made */

typedef struct gen_prompt {
    tok_ids ids;
    char *text;  /* for echo: NUL-terminated; NULL when not needed */
    bool is_ids; /* it came as token ids, and its text was made of them */
} gen_prompt;

typedef enum gen_thinking { GEN_THINK_AS_IT_IS, GEN_THINK_ON, GEN_THINK_OFF } gen_thinking;

/* A request after all checks. Absent integers are FIELD_UNSET_INT, absent reals NAN; pointers borrow from the JSON unless they
 * are under "derived". */
typedef struct gen_params {
    unsigned kind; /* GEN_* */
    const char *model, *suffix, *user, *reasoning_effort, *reasoning_format, *ebnf, *rules, *grammar_string,
        *guided_grammar, *guided_regex, *regex;
    const json_t *messages, *prompt, *stop, *stream_options, *logit_bias, *thinking, *reasoning, *enable_thinking,
        *tools, *tool_choice, *function_call, *response_format, *documents, *template_kwargs, *stop_token_ids,
        *modalities, *dry_sequence_breakers, *structured_outputs, *guided_choice, *guided_json, *json_schema;
    double temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty, typical_p, typical,
        typ_p, top_n_sigma, nsigma, xtc_probability, xtc_threshold, dynatemp_range, dynatemp_low, dynatemp_high,
        dynatemp_exponent, dry_multiplier, dry_base;
    int64_t top_k, n, best_of, max_tokens, max_completion_tokens, min_tokens, seed, logprobs, top_logprobs, priority,
        dry_allowed_length, dry_last_n;
    bool stream, echo, want_logprobs, ignore_eos, skip_special, include_stop_str, return_token_ids,
        add_generation_prompt, continue_final_message, parallel_tool_calls, store, parse_special, add_special_tokens,
        include_reasoning, separate_reasoning, timings, timings_per_token, dynamic_temperature;

    /* derived */
    bool include_usage,
        is_usual_length; /* of the answer: the client has not asked for one, so what is left of the context will do */
    bool keep_thoughts, drop_thoughts; /* in the content; nowhere; neither: beside it */
    gen_thinking wish;                 /* that the model thinks ... */
    const char *wish_field;            /* ... which this field says */
    answer_marks marks;
    int32_t n_logprobs; /* -1 none */
    gen_prompt *prompts;
    size_t n_prompts;
    const char **stops;
    uint32_t *stop_ids, *bias_ids;
    float *bias;
    uint32_t n_stops, n_stop_ids, n_bias;
    const char **dry_breakers; /* what DRY has; lie in the body or in dry_list */
    uint32_t n_dry_breakers;
    json_t *dry_list;
    grammar *grammar;          /* NULL: none */
    const char *grammar_field; /* what asks for it, for messages */
    api_form form;             /* ... and that it is rules, a schema or any object */
    struct lead lead;          /* what comes before its text, if p->marks.may_think; its lists are in lead_ids */
    tok_ids lead_ids;
    uint64_t grammar_ns;   /* what it took to make */
    const json_t *schema;  /* of the answer; NULL: any object */
    json_t *schema_text;   /* ... where it came as text */
    bool must_call;        /* the answer is one call, which the grammar says */
    bool may_call;         /* the answer is one call or what the schema says ... */
    bool alike;            /* ... and this may begin as a call does */
    const char *call_name; /* of this function; NULL: any */
} gen_params;

/* What a body is checked against. */
typedef struct gen_context {
    const engine_info *info;
    const tokenizer *tok;
    const char *tok_why; /* why there is no tokenizer */
    const chat_set *chat;
    const char *chat_why;
    uint32_t max_n, max_logprobs, max_stop;
    notes *notes;                  /* NULL: nobody wants to know */
    bool parse_special;            /* what /v1/completions does unless the request says */
    bool keep_thoughts;            /* what /v1/chat/completions does unless the request says */
    const json_t *template_kwargs; /* variables of the template that a request does not say; NULL: none */
} gen_context;

/* Reads and checks every field; borrows from body. On failure *ret needs no freeing. */
xd_status gen_params_read(const gen_context *ctx, unsigned kind, const json_t *body, gen_params *ret,
                          xd_err *err) XD_MUST_CHECK;
/* That a response would hold too many log-probabilities. */
xd_status gen_fail_held(xd_err *err);
/* Makes prompts[]: renders and tokenizes. */
xd_status gen_params_tokenize(const gen_context *ctx, gen_params *p, xd_err *err) XD_MUST_CHECK;
void gen_params_free(gen_params *p);
/* Reads an array of token ids below `vocab` into dst[json_array_size(array)]. */
xd_status gen_read_ids(const json_t *array, const char *name, uint32_t vocab, uint32_t *dst, xd_err *err) XD_MUST_CHECK;
/* Is `model` absent or the one that is served? */
xd_status gen_check_model(const engine_info *info, const char *model, xd_err *err) XD_MUST_CHECK;
/* Is each of the tools (NULL: none) a function with a name of its own? */
xd_status gen_check_tools(const json_t *tools, xd_err *err) XD_MUST_CHECK;
/* tool_choice, tools and the older function_call: first what they are, then p->grammar of a call that is forced, or of a call or what a schema says (tool_choice.c). */
xd_status gen_check_tool_choice(const gen_context *ctx, gen_params *p, xd_err *err) XD_MUST_CHECK;
xd_status gen_read_tool_choice(gen_params *p, xd_err *err) XD_MUST_CHECK;
/* typical_p, top_n_sigma, XTC, dynamic temperature and DRY: makes one field each of what clients may say in several ways (sampling.c). */
xd_status gen_read_sampling(const gen_context *ctx, gen_params *p, xd_err *err) XD_MUST_CHECK;
/* Makes p->grammar of what response_format or one of the other fields asks for: response_format.c. */
xd_status gen_read_response_format(const gen_context *ctx, gen_params *p, xd_err *err) XD_MUST_CHECK;
/* Whether the model shall think, how long, and what becomes of it: reasoning.c. */
xd_status gen_read_reasoning(const gen_context *ctx, gen_params *p, xd_err *err) XD_MUST_CHECK;
/* Whether variables of the template (NULL: none) switch thoughts off, by any name that templates have for it. */
bool gen_switched_off(const json_t *kwargs);
/* The server's variables for the template, and over them the request's (NULL: none); null is as if absent. Owned. */
xd_status gen_template_kwargs(const gen_context *ctx, const json_t *own, json_t **ret, xd_err *err) XD_MUST_CHECK;
/* The same with what the request's other fields say of thinking, where the template has a variable for it. *ret_switch: the template can
 * be told whether to think. */
xd_status gen_reasoning_kwargs(const gen_context *ctx, const gen_params *p, json_t **ret, bool *ret_switch,
                               xd_err *err) XD_MUST_CHECK;
/* The prompt of a chat request as token ids (also /tokenize). Appends to ids. add_special: the tokenizer's start token comes first where
 * the template did not write it. ret_marks may be NULL. */
xd_status gen_encode_chat(const gen_context *ctx, const chat_request *req, bool add_special, tok_ids *ids,
                          answer_marks *ret_marks, xd_err *err) XD_MUST_CHECK;

/* What this server and its settings check a body of x against; borrows from both. */
gen_context gen_context_of(exchange *x);

/* --- faults of a field: request.c --------------------------------------------------------------------------------- */

/* XD_BAD_REQUEST of the field `param`, of code "invalid_value"; of code "unsupported_parameter". Each returns it. */
xd_status gen_bad_value(xd_err *err, const char *param, const char *fmt, ...) XD_PRINTF(3, 4);
void gen_replace_words(xd_err *err, const char *old, const char *new); /* wherever they stand in its message */
xd_status gen_unsupported(xd_err *err, const char *param, const char *text);
/* Of `tools`, to a template that would leave them out. */
#define GEN_NO_TOOLS \
    "the model's chat template does not take 'tools': send none, or set model.chat_template to one that takes them"
/* Fails where there is none: the field is about text. */
xd_status gen_need_tokenizer(const gen_context *ctx, const char *param, xd_err *err) XD_MUST_CHECK;

/* --- formatting: format.c ----------------------------------------------------------------------------------------- */

/* One entry of chat's logprobs.content. Owned; NULL: out of memory. */
json_t *format_chat_logprob(const tokenizer *tok, const engine_event *ev);
/* The four parallel arrays of a completion's logprobs: an object to which tokens are added. */
json_t *format_completion_logprobs_new(void);
/* *offset: characters of the text before this token; then, with it, unless the text does not show it. False: out of memory. */
bool format_completion_logprob_add(json_t *lp, const tokenizer *tok, const engine_event *ev, bool shown,
                                   size_t *offset);
/* Owned; NULL: out of memory. */
json_t *format_ids(const uint32_t *ids, size_t n);
json_t *format_usage(uint64_t prompt_tokens, uint64_t completion_tokens, uint64_t cached_tokens);

#endif
