/* request.c - a request's handle: its copied options, its queue of events, and the checks at submission.
 *
 * The engine thread pushes events, one consumer takes them. The queue grows with the tokens of the request and is bounded by them
 * (max_tokens), so a slow consumer never holds the engine up. The request lives while either side holds a reference. */
#include <math.h>
#include <string.h>
#include <sys/random.h>

#include "engine/engine_priv.h"

static void *copy_array(const void *from, size_t n, size_t size)
{
    void *p = calloc(n ? n : 1, size);
    if (p && n)
        memcpy(p, from, n * size);
    return p;
}

/* test.alloc_error_rate: the choice is a function of the seed and the number of the allocation. */
static bool alloc_fails(engine *e)
{
    double rate = e->cfg->test.allow ? e->cfg->test.alloc_error_rate : 0;
    if (rate <= 0)
        return false;
    uint64_t n = atomic_fetch_add(&e->n_allocs, 1) + ((uint64_t)e->cfg->test.seed << 32);
    return (double)(xd_mix64(n * XD_MIX64_STEP) >> 11) * 0x1p-53 < rate;
}

static float or_default(float v, float def, float otherwise)
{
    if (!isnan(v))
        return v;
    return isnan(def) ? otherwise : def;
}

static void resolve_sampling(const engine *e, const engine_sampling *s, sampler_params *ret)
{
    const model_params *hp = e->c.hp;
    bool from_model = e->cfg->model.sampling_defaults == CONF_DEFAULTS_MODEL;
    float temperature = from_model && hp->defaults.do_sample_off ? 0 : from_model ? hp->defaults.temperature : NAN;
    int32_t top_k = s->top_k >= 0 ? s->top_k : from_model ? hp->defaults.top_k : 0;
    ret->temperature = or_default(s->temperature, temperature, 1);
    ret->top_p = or_default(s->top_p, from_model ? hp->defaults.top_p : NAN, 1);
    ret->top_p = XD_MAX(ret->top_p, 1e-9f); /* 0, as OpenAI allows: the likeliest token alone */
    ret->min_p = or_default(s->min_p, from_model ? hp->defaults.min_p : NAN, 0);
    ret->repetition_penalty = or_default(s->repetition_penalty, from_model ? hp->defaults.repetition_penalty : NAN, 1);
    ret->top_k = top_k > 0 ? (uint32_t)top_k : 0;
    ret->presence_penalty = s->presence_penalty;
    ret->frequency_penalty = s->frequency_penalty;
    ret->n_bias = s->n_bias;
    ret->seed = s->seed;
    ret->top_n_sigma = s->top_n_sigma;
    ret->typical_p = or_default(s->typical_p, from_model ? hp->defaults.typical_p : NAN, 1);
    ret->xtc_probability = s->xtc_probability;
    ret->xtc_threshold = s->xtc_threshold;
    ret->dynatemp_range = s->dynatemp_range;
    ret->dynatemp_exponent = s->dynatemp_exponent;
    /* Below this, dividing logits by it overflows nothing but means greedy anyway (vLLM's bound is 1e-5). */
    if (ret->temperature < 1e-5f)
        ret->temperature = 0;
}

static bool wants_dry(const engine_sampling *s)
{
    return s->dry_multiplier > 0 && s->dry_last_n > 0;
}

static xd_status check_dry(const engine *e, const engine_sampling *s, xd_err *err)
{
    static const char field[] = "dry_sequence_breakers";
    if (!wants_dry(s) || !s->n_dry_breakers)
        return XD_OK;
    if (!e->tok)
        return xd_fail_field(err, XD_BAD_REQUEST, field, "invalid_value",
                             "%s are text, and this model has no tokenizer", field);
    if (s->n_dry_breakers > ENGINE_MAX_DRY_BREAKERS)
        return xd_fail_field(err, XD_BAD_REQUEST, field, "invalid_value", "at most %d %s", ENGINE_MAX_DRY_BREAKERS,
                             field);
    for (uint32_t i = 0; i < s->n_dry_breakers; i++) {
        size_t len = strlen(s->dry_breakers[i]);
        if (!len || len > ENGINE_MAX_DRY_BREAKER_BYTES)
            return xd_fail_field(err, XD_BAD_REQUEST, field, "invalid_value", "each of %s has 1 to %d bytes, not %zu",
                                 field, ENGINE_MAX_DRY_BREAKER_BYTES, len);
    }
    return XD_OK;
}

static xd_status check_sampling(const engine *e, const engine_sampling *s, xd_err *err)
{
    const struct {
        const char *name;
        float v, min, max;
        bool may_be_unset;
    } reals[] = {
        {"temperature", s->temperature, 0, 100, true},
        {"top_p", s->top_p, 0, 1, true},
        {"min_p", s->min_p, 0, 1, true},
        {"repetition_penalty", s->repetition_penalty, 1e-3f, 1e3f, true},
        {"presence_penalty", s->presence_penalty, -2, 2, true},
        {"frequency_penalty", s->frequency_penalty, -2, 2, true},
        {"top_n_sigma", s->top_n_sigma, 0, 100, false},
        {"typical_p", s->typical_p, 0, 1, true},
        {"xtc_probability", s->xtc_probability, 0, 1, false},
        {"xtc_threshold", s->xtc_threshold, 0, 1, false},
        {"dynatemp_range", s->dynatemp_range, 0, 100, false},
        {"dynatemp_exponent", s->dynatemp_exponent, 0, 100, false},
        {"dry_multiplier", s->dry_multiplier, 0, 100, false},
        {"dry_base", s->dry_multiplier > 0 ? s->dry_base : 1, 1, 100, false},
    };
    for (size_t i = 0; i < XD_ARRAY_LEN(reals); i++) {
        float v = reals[i].v;
        if (!(v >= reals[i].min && v <= reals[i].max) && !(isnan(v) && reals[i].may_be_unset))
            return xd_fail_field(err, XD_BAD_REQUEST, reals[i].name, "invalid_value", "%s must lie in %g..%g, got %g",
                                 reals[i].name, (double)reals[i].min, (double)reals[i].max, (double)v);
    }
    for (uint32_t i = 0; i < s->n_bias; i++) {
        if (s->bias_ids[i] >= e->info.vocab || !(s->bias[i] >= -100 && s->bias[i] <= 100))
            return xd_fail_field(err, XD_BAD_REQUEST, "logit_bias", "invalid_value",
                                 "logit_bias wants token ids below %u with values in -100..100", e->info.vocab);
    }
    return check_dry(e, s, err);
}

static xd_status check_request(const engine *e, const engine_request_options *o, xd_err *err)
{
    const uint32_t max_n = atomic_load(&e->max_n), max_stop = atomic_load(&e->max_stop);
    uint32_t max_len = e->info.max_model_len;
    if (!o->n_prompt)
        return xd_fail_field(err, XD_BAD_REQUEST, "prompt", "invalid_value", "the prompt is empty");
    for (uint32_t i = 0; i < o->n_prompt; i++)
        if (o->prompt_ids[i] >= e->info.vocab)
            return xd_fail_field(err, XD_BAD_REQUEST, "prompt", "invalid_value",
                                 "prompt token %u is %u: ids of this model lie below %u", i, o->prompt_ids[i],
                                 e->info.vocab);
    uint32_t want = o->max_tokens == UINT32_MAX ? 1 : o->max_tokens;
    if ((uint64_t)o->n_prompt + want > max_len)
        return xd_fail_field(
            err, XD_BAD_REQUEST, o->n_prompt + 1ull > max_len ? "prompt" : "max_tokens", "context_length_exceeded",
            /* OpenAI's words, by which clients know what to do */
            "This model's maximum context length is %u tokens. However, you requested %llu tokens (%u in the "
            "prompt, %u in the completion). Please reduce the length of the prompt or of the completion.",
            max_len, (unsigned long long)o->n_prompt + want, o->n_prompt, want);
    if (!o->n || o->n > max_n)
        return xd_fail_field(err, XD_BAD_REQUEST, "n", "invalid_value", "n must lie in 1..%u, got %u", max_n, o->n);
    uint32_t max_lp = atomic_load(&e->max_logprobs);
    max_lp = XD_MIN(max_lp, (uint32_t)ENGINE_MAX_TOP_LOGPROBS);
    if (o->logprobs > (int32_t)max_lp || o->prompt_logprobs > (int32_t)max_lp)
        return xd_fail_field(err, XD_BAD_REQUEST, "logprobs", "invalid_value", "at most %u log probabilities a token",
                             max_lp);
    if (o->n_stop > max_stop || o->n_stop_ids > ENGINE_MAX_STOP_IDS)
        return xd_fail_field(err, XD_BAD_REQUEST, "stop", "invalid_value",
                             "at most %u stop strings and %d stop token ids", max_stop, ENGINE_MAX_STOP_IDS);
    for (uint32_t i = 0; i < o->n_stop; i++) {
        if (!o->stop[i][0])
            return xd_fail_field(err, XD_BAD_REQUEST, "stop", "invalid_value", "a stop string is empty");
        if (strlen(o->stop[i]) > 1024)
            return xd_fail_field(err, XD_BAD_REQUEST, "stop", "invalid_value",
                                 "a stop string is longer than 1024 bytes");
    }
    if (o->n_stop && (!e->tok || !o->detokenize))
        return xd_fail_field(err, XD_BAD_REQUEST, "stop", "invalid_value",
                             "stop strings need text, and %s; use stop_token_ids",
                             e->tok ? "detokenize is off" : "this model has no tokenizer");
    if (o->grammar && !e->words)
        return xd_fail_field(err, XD_BAD_REQUEST, o->grammar_field, "unsupported_parameter",
                             "answers of a given form need text that is made of tokens, and %s", e->no_words_why);
    if (o->max_tokens != UINT32_MAX && o->min_tokens > o->max_tokens)
        return xd_fail_field(err, XD_BAD_REQUEST, "min_tokens", "invalid_value", "min_tokens %u is above max_tokens %u",
                             o->min_tokens, o->max_tokens);
    return check_sampling(e, &o->sampling, err);
}

/* The lists of tokens become one array. What would end the answer has no place in a thought: what was asked for is not there yet. */
static bool copy_lead(engine_request *r, const lead *l)
{
    if (!l)
        return true;
    const model_params *hp = r->e->c.hp;
    r->lead = *l;
    r->lead.end_ids = hp->eos_ids;
    r->lead.n_end = hp->n_eos;
    r->lead_close = strdup(l->close);
    r->lead_ids = calloc((size_t)l->n_open + l->n_plain + l->n_after + 1, sizeof *r->lead_ids);
    if (!r->lead_close || !r->lead_ids)
        return false;
    uint32_t *at = r->lead_ids;
    const uint32_t **lists[] = {&r->lead.open_ids, &r->lead.plain_ids, &r->lead.after_ids};
    const uint32_t n[] = {l->n_open, l->n_plain, l->n_after};
    for (size_t i = 0; i < XD_ARRAY_LEN(lists); at += n[i], i++) {
        if (n[i])
            memcpy(at, *lists[i], n[i] * sizeof *at);
        *lists[i] = at;
    }
    r->lead.close = r->lead_close;
    r->opt.lead = &r->lead;
    return true;
}

static bool copy_options(engine_request *r, const engine_request_options *o)
{
    r->opt = *o;
    r->prompt = copy_array(o->prompt_ids, o->n_prompt, sizeof *r->prompt);
    r->stop_ids = copy_array(o->stop_ids, o->n_stop_ids, sizeof *r->stop_ids);
    r->shown_ids = copy_array(o->shown_ids, o->n_shown_ids, sizeof *r->shown_ids);
    r->bias_ids = copy_array(o->sampling.bias_ids, o->sampling.n_bias, sizeof *r->bias_ids);
    r->bias = copy_array(o->sampling.bias, o->sampling.n_bias, sizeof *r->bias);
    r->stops = calloc(o->n_stop + 1, sizeof *r->stops);
    r->choices = calloc(o->n, sizeof *r->choices);
    r->banned = calloc(o->n_stop_ids + XD_ARRAY_LEN(r->e->c.hp->eos_ids), sizeof *r->banned);
    r->enders = calloc(o->n_stop_ids + XD_ARRAY_LEN(r->e->c.hp->eos_ids), sizeof *r->enders);
    r->opt.grammar = o->grammar ? grammar_ref(o->grammar) : NULL;
    if (!r->prompt || !r->stop_ids || !r->shown_ids || !r->bias_ids || !r->bias || !r->stops || !r->choices ||
        !r->banned || !r->enders || !copy_lead(r, o->lead))
        return false;
    for (uint32_t i = 0; i < o->n_stop; i++) {
        r->stops[i] = strdup(o->stop[i]);
        if (!r->stops[i])
            return false;
    }
    r->opt.prompt_ids = r->prompt;
    r->opt.stop_ids = r->stop_ids;
    r->opt.shown_ids = r->shown_ids;
    r->opt.stop = (const char *const *)r->stops;
    if (o->max_tokens == UINT32_MAX)
        r->opt.max_tokens = r->e->info.max_model_len - o->n_prompt;
    r->opt.min_tokens = XD_MIN(o->min_tokens, r->opt.max_tokens);
    r->opt.detokenize = o->detokenize && r->e->tok;
    /* min_tokens keeps every token that would end the answer from being chosen. */
    for (uint32_t i = 0; i < o->n_stop_ids; i++)
        r->banned[r->n_banned++] = o->stop_ids[i];
    for (uint32_t i = 0; i < r->e->c.hp->n_eos && !o->ignore_eos; i++)
        r->banned[r->n_banned++] = r->e->c.hp->eos_ids[i];
    for (uint32_t i = 0; i < r->n_banned && r->opt.grammar; i++)
        if (!grammar_vocab_has(r->e->words, r->banned[i]))
            r->enders[r->n_enders++] = r->banned[i];
    return true;
}

xd_status request_new(engine *e, const engine_request_options *opt, engine_request **ret, xd_err *err)
{
    xd_status st = check_request(e, opt, err);
    if (st)
        return st;
    engine_request *r = alloc_fails(e) ? NULL : calloc(1, sizeof *r);
    if (!r)
        return xd_fail(err, XD_NOMEM, 0, "taking a request");
    r->e = e;
    r->refs = 1;
    r->first = r;
    if (opt->with) {
        r->first = opt->with->first;
        atomic_fetch_add(&r->first->refs, 1);
    }
    pthread_mutex_init(&r->lock, NULL);
    pthread_mutex_init(&r->notify_lock, NULL);
    if (!copy_options(r, opt)) {
        request_unref(r);
        return xd_fail(err, XD_NOMEM, 0, "taking a request of %u prompt tokens", opt->n_prompt);
    }
    resolve_sampling(e, &opt->sampling, &r->params);
    r->params.bias_ids = r->bias_ids;
    r->params.bias = r->bias;
    if (wants_dry(&opt->sampling)) {
        r->params.dry = true;
        r->dry = sample_dry_new(&opt->sampling, e->tok, e->info.vocab, r->first->dry);
        if (!r->dry) {
            request_unref(r);
            return xd_fail(err, XD_NOMEM, 0, "what may break a repetition");
        }
    }
    if (!opt->sampling.has_seed && getrandom(&r->params.seed, sizeof r->params.seed, 0) != sizeof r->params.seed)
        r->params.seed = xd_now_ns();
    r->submit_ns = xd_now_ns();
    r->n_open = opt->n;
    r->usage.submitted_ns = r->submit_ns;
    r->usage.prompt_tokens = opt->n_prompt;
    for (uint32_t i = 0; i < opt->n; i++) {
        choice *c = &r->choices[i];
        c->r = r;
        c->idx = i;
        c->params = r->params;
        c->params.seed += i;
        if ((st = choice_start(c, err))) {
            request_unref(r);
            return st;
        }
    }
    *ret = r;
    return XD_OK;
}

void request_unref(engine_request *r)
{
    if (atomic_fetch_sub(&r->refs, 1) != 1)
        return;
    if (r->first != r)
        request_unref(r->first);
    while (r->head) {
        event_node *n = r->head;
        r->head = n->next;
        free(n);
    }
    free(r->current);
    for (uint32_t i = 0; r->choices && i < r->opt.n; i++)
        choice_clear(&r->choices[i]);
    sample_dry_free(r->dry);
    for (uint32_t i = 0; r->stops && i < r->opt.n_stop; i++)
        free(r->stops[i]);
    free(r->prompt);
    free(r->stop_ids);
    free(r->shown_ids);
    free(r->bias_ids);
    free(r->bias);
    free(r->banned);
    free(r->enders);
    free(r->lead_close);
    free(r->lead_ids);
    grammar_unref(r->opt.grammar);
    free(r->stops);
    free(r->choices);
    pthread_mutex_destroy(&r->lock);
    pthread_mutex_destroy(&r->notify_lock);
    free(r);
}

void request_push(engine_request *r, const engine_event *ev, const char *text, size_t len)
{
    event_node *n = alloc_fails(r->e) ? NULL : malloc(sizeof *n + len + 1);
    if (!n) {
        r->out_of_memory = true;
        return;
    }
    n->next = NULL;
    n->ev = *ev;
    if (len)
        memcpy(n->text, text, len);
    n->text[len] = 0;
    n->ev.text = n->text;
    n->ev.text_len = len;
    if (ev->n_top)
        memcpy(n->top, ev->top, ev->n_top * sizeof *n->top);
    n->ev.top = n->top;
    pthread_mutex_lock(&r->lock);
    if (r->head)
        r->tail->next = n;
    else
        r->head = n;
    r->tail = n;
    pthread_mutex_unlock(&r->lock);
    r->dirty = true;
}

/* Needs no memory: engine_request_next() makes the event from r->error. */
void request_push_error(engine_request *r, const xd_err *error)
{
    pthread_mutex_lock(&r->lock);
    r->error = *error;
    r->ended = true;
    pthread_mutex_unlock(&r->lock);
    r->dirty = true;
}

void request_notify(engine_request *r)
{
    if (!r->dirty)
        return;
    r->dirty = false;
    pthread_mutex_lock(&r->notify_lock);
    if (!r->notify_off && r->opt.notify)
        r->opt.notify(r->opt.user);
    pthread_mutex_unlock(&r->notify_lock);
}

/* --- the consumer's side ----------------------------------------------------------------------------------------- */

bool engine_request_next(engine_request *r, engine_event *ret)
{
    bool got = true;
    pthread_mutex_lock(&r->lock);
    free(r->current);
    r->current = r->head;
    if (r->head) {
        r->head = r->head->next;
        *ret = r->current->ev;
    } else if (r->error.status && !r->error_taken) {
        *ret = (engine_event){.kind = ENGINE_EV_ERROR, .stop_id = -1, .text = "", .error = &r->error};
        r->error_taken = true;
    } else {
        got = false;
    }
    pthread_mutex_unlock(&r->lock);
    return got;
}

bool engine_request_finished(const engine_request *cr)
{
    engine_request *r = (engine_request *)cr; /* the lock is no part of what is read */
    pthread_mutex_lock(&r->lock);
    bool done = r->ended && !r->head && (!r->error.status || r->error_taken);
    pthread_mutex_unlock(&r->lock);
    return done;
}

void engine_request_usage(const engine_request *cr, engine_usage *ret)
{
    engine_request *r = (engine_request *)cr;
    pthread_mutex_lock(&r->lock);
    *ret = r->usage;
    pthread_mutex_unlock(&r->lock);
}

void engine_request_free(engine_request *r)
{
    if (!r)
        return;
    pthread_mutex_lock(&r->notify_lock);
    r->notify_off = true;
    pthread_mutex_unlock(&r->notify_lock);
    atomic_store(&r->cancelled, true);
    request_unref(r); /* the engine's own reference goes when it next looks at its requests: at most one step */
}
