/* fuzz_request.c - the body of a completion request: the first byte chooses the endpoint (8: /v1/responses, 64: /v1/messages), the rest is JSON. Parses, checks all
 * fields, makes the prompts (with the tests' byte tokenizer). Whatever passes must obey the limits that the engine relies on. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "api/generate.h"
#include "api/messages.h"
#include "api/responses.h"
#include "tests/api/fake.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const gen_context *ctx, const gen_params *p)
{
    bool ok = p->n >= 1 && p->n <= ctx->max_n && p->n_stops <= ctx->max_stop &&
              p->n_logprobs <= (int32_t)ctx->max_logprobs && p->max_tokens >= 0 && p->max_tokens <= UINT32_MAX &&
              p->min_tokens >= 0 && p->min_tokens <= p->max_tokens && !(p->temperature < 0) && !(p->temperature > 2) &&
              !(p->top_p > 1) && p->n_prompts >= 1 && !(p->typical_p <= 0) && !(p->typical_p > 1) &&
              p->top_n_sigma >= 0 && p->top_n_sigma <= 100 && p->dynatemp_range >= 0 && p->dynatemp_range <= 10 &&
              p->n_dry_breakers <= ENGINE_MAX_DRY_BREAKERS;
    for (uint32_t i = 0; i < p->n_dry_breakers; i++)
        ok = ok && p->dry_breakers[i][0] && strlen(p->dry_breakers[i]) <= ENGINE_MAX_DRY_BREAKER_BYTES;
    for (uint32_t i = 0; i < p->n_bias; i++)
        ok = ok && p->bias_ids[i] < ctx->info->vocab && isfinite(p->bias[i]);
    for (uint32_t i = 0; i < p->n_stop_ids; i++)
        ok = ok && p->stop_ids[i] < ctx->info->vocab;
    for (uint32_t i = 0; i < p->n_stops; i++)
        ok = ok && p->stops[i][0];
    for (size_t i = 0; i < p->n_prompts; i++) {
        ok = ok && p->prompts[i].ids.len >= 1;
        for (size_t k = 0; k < p->prompts[i].ids.len; k++)
            ok = ok && p->prompts[i].ids.data[k] < ctx->info->vocab;
    }
    if (!ok)
        abort();
}

enum { RESPONSES = 8, MESSAGES = 64 };

/* Of an API that is told in chat's words every fault has that API's names, and is still text. */
static void check_named(const json_t *asked, unsigned words, xd_err *err)
{
    if (words == RESPONSES)
        responses_name_fault(asked, err);
    else if (words == MESSAGES)
        messages_name_fault(asked, err);
    bool is_chats = (words == RESPONSES && !strncmp(err->param, "messages", 8)) ||
                    (words == MESSAGES && strstr(err->param, "].function.")) ||
                    (words && !strncmp(err->param, "response_format.", 16));
    if (is_chats || !err->msg[0] || !memchr(err->msg, 0, sizeof err->msg) || !memchr(err->param, 0, sizeof err->param))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const engine_info info = {.model_id = "fake", .max_model_len = 4096, .vocab = 512};
    if (!size)
        return 0;
    tokenizer *tok = fake_tok_new(data[0] & 1);
    if (!tok)
        return 0;
    const gen_context ctx = {.info = &info,
                             .tok = data[0] & 2 ? NULL : tok,
                             .chat_why = "none",
                             .max_n = 8,
                             .max_logprobs = 20,
                             .max_stop = 4};
    json_t *body = NULL, *asked = NULL;
    gen_params p = {0};
    xd_err err;
    xd_status st = body_parse((const char *)data + 1, size - 1, &body, &err);
    const unsigned words = data[0] & MESSAGES ? MESSAGES : data[0] & RESPONSES;
    if (!st && words) { /* it becomes a chat */
        json_t *chat = NULL;
        st = words == MESSAGES ? messages_to_chat(body, &chat, &err) : responses_to_chat(body, &chat, &err);
        asked = body;
        body = chat;
    }
    if (!st)
        st = gen_params_read(&ctx, words || data[0] & 4 ? GEN_CHAT : GEN_COMPLETION, body, &p, &err);
    if (!st)
        st = gen_params_tokenize(&ctx, &p, &err);
    if (!st)
        check(&ctx, &p);
    else
        check_named(asked, words, &err);
    gen_params_free(&p);
    json_decref(body);
    json_decref(asked);
    tok_free(tok);
    return 0;
}
