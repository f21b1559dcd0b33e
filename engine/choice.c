/* choice.c - one choice of a request: a sampled token becomes text, events, and perhaps the end.
 *
 * Text goes token -> streaming decoder (whole characters) -> stop matcher (holds back what may become a stop string) -> event. The
 * texts of all events of a choice, joined, are its whole answer. Does not know how the token was computed. */
#include <string.h>
#include <xxhash.h>

#include "engine/engine_priv.h"

enum { PRIME_TOKENS = 16 }; /* of the prompt's end: more than any decoder looks back */

xd_status choice_start(choice *c, xd_err *err)
{
    const engine_request *r = c->r;
    c->ids_cap = r->opt.n_prompt + XD_MIN(r->opt.max_tokens, 64u);
    c->seq.ids = malloc(c->ids_cap * sizeof *c->seq.ids);
    if (!c->seq.ids)
        return xd_fail(err, XD_NOMEM, 0, "a sequence of %u tokens", r->opt.n_prompt);
    memcpy(c->seq.ids, r->prompt, r->opt.n_prompt * sizeof *c->seq.ids);
    c->seq.n_ids = c->seq.n_prompt = r->opt.n_prompt;
    c->seq.priority = r->opt.priority;
    c->seq.want_prompt_rows = c->idx == 0 && r->opt.prompt_logprobs >= 0;
    c->seq.held = c->idx > 0;
    c->seq.owner = c;
    if (r->e->c.routes)
        c->salt = XXH3_64bits_withSeed(r->prompt, r->opt.n_prompt * sizeof *r->prompt, c->idx);
    stop_init(&c->stop, r->opt.stop, r->opt.n_stop, r->opt.include_stop_str);
    if (sample_wants_history(&c->params)) {
        c->history = sample_history_new(r->dry);
        bool ok = c->history != NULL;
        for (uint32_t i = 0; ok && i < r->opt.n_prompt; i++)
            ok = sample_history_add(c->history, r->prompt[i], false);
        if (!ok)
            return xd_fail(err, XD_NOMEM, 0, "the token counts of a request");
    }
    if (r->opt.grammar && !(c->grammar = grammar_run_new(r->opt.grammar, r->e->words)))
        return xd_fail(err, XD_NOMEM, 0, "an answer's place in its grammar");
    if (r->opt.grammar && r->opt.lead && !(c->lead = lead_run_new(r->opt.lead, r->e->words)))
        return xd_fail(err, XD_NOMEM, 0, "an answer's place before its grammar");
    if (r->opt.detokenize) {
        c->stream = tok_stream_new(r->e->tok, r->opt.skip_special);
        if (!c->stream)
            return xd_fail(err, XD_NOMEM, 0, "a text stream");
        tok_stream_show(c->stream, r->opt.shown_ids, r->opt.n_shown_ids);
        uint32_t n = XD_MIN(r->opt.n_prompt, (uint32_t)PRIME_TOKENS);
        return tok_stream_prime(c->stream, r->prompt + r->opt.n_prompt - n, n, err);
    }
    return XD_OK;
}

void choice_clear(choice *c)
{
    sample_history_free(c->history);
    grammar_run_free(c->grammar);
    lead_run_free(c->lead);
    tok_stream_free(c->stream);
    stop_clear(&c->stop);
    xd_buf_free(&c->piece);
    xd_buf_free(&c->out);
    free(c->seq.ids);
}

/* min_tokens: ending is not allowed yet. */
static bool bans_ends(const choice *c)
{
    return c->n_out < c->r->opt.min_tokens && c->r->n_banned;
}

bool choice_is_limited(const choice *c)
{
    return c->grammar || bans_ends(c);
}

/* The grammar does not hold yet. */
static bool is_leading(const choice *c)
{
    return c->lead && !lead_run_over(c->lead);
}

static xd_status grammar_limits(choice *c, sample_limits *ret, xd_err *err)
{
    const engine_request *r = c->r;
    ret->allowed = grammar_run_mask(c->grammar);
    if (!ret->allowed)
        return xd_fail(err, XD_NOMEM, 0, "what a grammar allows");
    if (grammar_run_may_end(c->grammar)) {
        ret->also = r->enders;
        ret->n_also = r->n_enders;
    }
    uint32_t words = (r->e->c.hp->vocab + 63) / 64, i = 0;
    while (i < words && !ret->allowed[i])
        i++;
    if (i == words && !ret->n_also)
        return xd_fail_field(err, XD_UNSUPPORTED, r->opt.grammar_field, "unsupported_value",
                             "the model's vocabulary has no token for a character that the answer must have next");
    return XD_OK;
}

xd_status choice_limits(choice *c, sample_limits *ret, xd_err *err)
{
    const engine_request *r = c->r;
    *ret = (sample_limits){0};
    if (bans_ends(c)) {
        ret->banned = r->banned;
        ret->n_banned = r->n_banned;
    }
    if (!c->grammar)
        return XD_OK;
    if (!is_leading(c))
        return grammar_limits(c, ret, err);
    lead_limits l;
    xd_status st = lead_run_limits(c->lead, &l, err);
    if (st)
        return st;
    *ret = l.only ? (sample_limits){.allowed = grammar_vocab_none(r->e->words), .also = l.also, .n_also = l.n_also}
                  : (sample_limits){.banned = l.banned, .n_banned = l.n_banned};
    if (l.or_grammar && !(ret->allowed = grammar_run_mask(c->grammar)))
        return xd_fail(err, XD_NOMEM, 0, "what a grammar allows");
    return XD_OK;
}

static bool contains(const uint32_t *ids, uint32_t n, uint32_t id)
{
    for (uint32_t i = 0; i < n; i++)
        if (ids[i] == id)
            return true;
    return false;
}

static bool append_id(choice *c, uint32_t id)
{
    if (c->seq.n_ids == c->ids_cap) {
        uint32_t cap = c->ids_cap + XD_MAX(c->ids_cap / 2, 64u);
        uint32_t *ids = realloc(c->seq.ids, cap * sizeof *ids);
        if (!ids)
            return false;
        c->seq.ids = ids;
        c->ids_cap = cap;
    }
    c->seq.ids[c->seq.n_ids++] = id;
    return !c->history || sample_history_add(c->history, id, true);
}

/* Moves c->piece through the stop matcher into c->out. The index of the stop that matched, or -1. */
static int match_piece(choice *c)
{
    bool check = c->n_out >= c->r->opt.min_tokens;
    int hit = stop_feed(&c->stop, c->piece.data ? c->piece.data : "", c->piece.len, check, &c->out);
    xd_buf_clear(&c->piece);
    return hit;
}

static void push_done(choice *c, engine_finish why, int stop_idx, int64_t stop_id)
{
    engine_event ev = {.kind = ENGINE_EV_DONE, .choice = c->idx, .finish = why, .stop_id = stop_id};
    ev.stop_text = stop_idx >= 0 ? c->r->stops[stop_idx] : NULL;
    request_push(c->r, &ev, c->out.data, c->out.len);
    xd_buf_clear(&c->out);
    c->done = true;
    c->r->last_finish = why;
}

/* What decoder and matcher still hold belongs to the answer, unless a stop string completes in it. */
static void finish_text(choice *c, engine_finish why, int64_t stop_id)
{
    int hit = -1;
    xd_buf_clear(&c->out);
    if (c->stream) {
        if (tok_stream_flush(c->stream, &c->piece, NULL))
            c->r->out_of_memory = true;
        hit = match_piece(c);
        if (hit < 0)
            stop_flush(&c->stop, &c->out);
    }
    push_done(c, hit >= 0 ? ENGINE_FINISH_STOP : why, hit, hit >= 0 ? -1 : stop_id);
}

void choice_finish(choice *c, engine_finish why)
{
    finish_text(c, why, -1);
}

xd_status choice_token(choice *c, const sample_result *s, bool *ret_ended, xd_err *err)
{
    const engine_request_options *o = &c->r->opt;
    const model_params *hp = c->r->e->c.hp;
    *ret_ended = false;
    if (!append_id(c, s->id))
        return xd_fail(err, XD_NOMEM, 0, "a sequence of %u tokens", c->seq.n_ids);
    c->n_out++;
    bool ends =
        contains(o->stop_ids, o->n_stop_ids, s->id) || (!o->ignore_eos && contains(hp->eos_ids, hp->n_eos, s->id));
    xd_status st = XD_OK;
    int hit = -1;
    xd_buf_clear(&c->out);
    bool shown = c->stream && (!ends || o->include_stop_str);
    if (shown && (st = tok_stream_push(c->stream, s->id, &c->piece, err)))
        return st;
    bool held = c->grammar && !ends;
    if (held && is_leading(c))
        lead_run_push(c->lead, s->id, c->piece.data, shown ? c->piece.len : 0, &held);
    if (held && (st = grammar_run_push(c->grammar, s->id, err)))
        return st;
    if (shown)
        hit = match_piece(c);
    if (c->out.failed || c->piece.failed || c->stop.held.failed)
        return xd_fail(err, XD_NOMEM, 0, "the text of a request");
    engine_event ev = {
        .kind = ENGINE_EV_TOKEN, .choice = c->idx, .token_id = s->id, .token_idx = c->n_out - 1, .stop_id = -1};
    if (o->logprobs >= 0) {
        ev.logprob = s->chosen;
        ev.top = s->top;
        ev.n_top = s->n_top;
    }
    request_push(c->r, &ev, c->out.data, c->out.len);
    if (hit >= 0) {
        xd_buf_clear(&c->out);
        push_done(c, ENGINE_FINISH_STOP, hit, -1);
    } else if (ends) {
        finish_text(c, ENGINE_FINISH_STOP, s->id);
    } else if (c->grammar && !is_leading(c) && grammar_run_must_end(c->grammar)) {
        finish_text(c, ENGINE_FINISH_STOP, -1);
    } else if (c->n_out >= o->max_tokens) {
        finish_text(c, ENGINE_FINISH_LENGTH, -1);
    }
    *ret_ended = c->done;
    return XD_OK;
}
