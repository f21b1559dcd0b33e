/* self_test.c - a prompt and a token before the first request: what would make every answer wrong keeps the engine from READY.
 *
 * It finds weights or devices that give no finite numbers, and a device that does not give the same bits twice: the token is computed
 * with launched operations, then as a step that is recorded, then by replaying it, while the pages it misses move into VRAM in
 * between. It does not know what the right logits are: that is what the golden tests are for. */
#include <math.h>
#include <string.h>

#include "engine/engine_priv.h"

enum { PROMPT_TOKENS = 8 };

static void ignore_picks(void *user, uint32_t layer, const uint32_t *ids, const float *weights, uint32_t n_tokens,
                         uint32_t top_k)
{
    (void)user, (void)layer, (void)ids, (void)weights, (void)n_tokens, (void)top_k;
}

static xd_status run_one(const core *c, kv_seq *s, exec_run_seq q, const float **ret_logits, xd_err *err)
{
    exec_result res;
    uint32_t row = 0;
    q.blocks = kv_seq_blocks(s, &q.n_blocks);
    q.stride = kv_seq_stride(s);
    q.state = kv_seq_state(s);
    q.n_rows = 1;
    q.want = EXEC_WANT_LOGITS;
    xd_status st = exec_run(c->x, &(exec_batch){.seqs = &q, .n_seqs = 1, .prefill = q.pos == 0}, &res, err);
    return st ? st : exec_fetch_rows(c->x, &row, 1, ret_logits, err);
}

static xd_status check_numbers(const float *logits, uint32_t vocab, uint32_t *ret_best, xd_err *err)
{
    uint32_t best = 0;
    float least = INFINITY;
    for (uint32_t i = 0; i < vocab; i++) {
        if (!isfinite(logits[i]))
            return xd_fail(err, XD_BAD_MODEL, 0, "logit %u is not a finite number: damaged weights or a device fault",
                           i);
        least = fminf(least, logits[i]);
        best = logits[i] > logits[best] ? i : best;
    }
    if (!(logits[best] > least))
        return xd_fail(err, XD_BAD_MODEL, 0, "all logits are %g: the weights are empty or the device computes nothing",
                       (double)logits[best]);
    *ret_best = best;
    return XD_OK;
}

/* The token behind the prompt again and again. What is known of the sequence must be the same each time: a state, which would have it twice, is made
 * anew. */
static xd_status check_bits(const core *c, kv_seq *s, const uint32_t *ids, uint32_t pos, uint32_t token, xd_err *err)
{
    static const char *const ways[] = {"launched", "recorded", "replayed"};
    uint32_t vocab = c->hp->vocab;
    XD_CLEANUP(xd_freep) float *first = malloc(vocab * sizeof *first);
    if (!first)
        return xd_fail(err, XD_NOMEM, 0, "logits of the self-test");
    for (size_t i = 0; i < XD_ARRAY_LEN(ways); i++) {
        const float *logits;
        xd_status st = XD_OK;
        if (i && kv_has_state(c->kv))
            st = run_one(c, s, (exec_run_seq){.ids = ids, .n_tokens = pos}, &logits, err);
        if (!st)
            st = exec_observe_router(c->x, i ? NULL : ignore_picks, NULL, err); /* an observed step is launched */
        if (st || (st = run_one(c, s, (exec_run_seq){.ids = &token, .pos = pos, .n_tokens = 1}, &logits, err))) {
            (void)!exec_observe_router(c->x, NULL, NULL, NULL);
            return st;
        }
        if (!i)
            memcpy(first, logits, vocab * sizeof *first);
        for (uint32_t k = 0; i && k < vocab; k++)
            if (memcmp(&first[k], &logits[k], sizeof *first) != 0)
                return xd_fail(
                    err, XD_INTERNAL, 0,
                    "%s computed the same token twice and logit %u was %.9g (%s) and then %.9g (%s): a faulty "
                    "device, or kernels that are not deterministic; try engine.kernels_disable = graphs",
                    c->info.name, k, (double)first[k], ways[0], (double)logits[k], ways[i]);
    }
    return XD_OK;
}

xd_status engine_self_test(engine *e, xd_err *err)
{
    const core *c = &e->c;
    kv_seq *s = NULL;
    uint32_t ids[PROMPT_TOKENS], best = 0, room = XD_MIN((uint32_t)PROMPT_TOKENS + 1, c->max_model_len);
    uint32_t n = XD_MAX(XD_MIN(room - 1, XD_MIN((uint32_t)PROMPT_TOKENS, c->max_tokens)), 1u);
    xd_status st = kv_seq_new(c->kv, &s, err);
    if (st)
        return st;
    for (uint32_t i = 0; i < n; i++)
        ids[i] = i ? i * 7919u % c->hp->vocab : (c->hp->bos_id >= 0 ? (uint32_t)c->hp->bos_id : 0);
    const float *logits = NULL;
    if ((st = kv_seq_reserve(c->kv, s, room)))
        xd_fail(err, st, 0, "the KV cache has no room for %u tokens", room);
    if (!st)
        st = run_one(c, s, (exec_run_seq){.ids = ids, .n_tokens = n}, &logits, err);
    if (!st)
        st = check_numbers(logits, c->hp->vocab, &best, err);
    if (!st && n < room)
        st = check_bits(c, s, ids, n, best, err);
    kv_seq_free(c->kv, s);
    return st ? xd_wrap(err, "self-test") : XD_OK;
}
