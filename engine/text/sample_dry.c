/* sample_dry.c - see sample_dry.h. The end of a sequence is compared with all that went before by the Z algorithm, from behind.
 *
 * A breaker counts wherever it stands in the text, also across tokens: which tokens a client's string would become alone says nothing of
 * how it is cut within a text. All are looked for at once (Aho and Corasick, CACM 1975), so that neither their number nor what they have in
 * common makes a long prompt expensive. Nothing here knows of logits; a sequence's state is its ids and what follows from them, so that
 * one computed again after a preemption has the same. */
#include "engine/text/sample_dry.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { KNOWN = 1, BREAKS = 2 };

struct sample_dry {
    double multiplier, base;
    uint32_t allowed_length, last_n, max_exponent;
    uint16_t (*next)[256]; /* [n_states], 0 where the text has the beginning of none; NULL: there are no breakers */
    uint8_t *ends;         /* [n_states] a breaker has just ended */
    bool borrows;          /* both are another's; nothing changes in them once they are made */
    const tokenizer *tok;
    uint32_t vocab;
    uint8_t *verdicts; /* [vocab] of tokens that were asked about: whether a whole breaker is in one */
    xd_buf text;
};

enum { MAX_STATES = 1 + ENGINE_MAX_DRY_BREAKERS * ENGINE_MAX_DRY_BREAKER_BYTES };
_Static_assert(MAX_STATES <= UINT16_MAX, "states are 16 bits");

/* Where a breaker cannot go on, the longest end of what was read that begins one does. States come in order of their length. */
static void link_states(sample_dry *d, uint16_t *queue, uint16_t *shorter)
{
    uint32_t n = 1;
    queue[0] = 0;
    for (uint32_t i = 0; i < n; i++) {
        const uint16_t from = queue[i];
        for (uint32_t byte = 0; byte < 256; byte++) {
            const uint16_t to = d->next[from][byte], other = from ? d->next[shorter[from]][byte] : 0;
            if (!to) {
                d->next[from][byte] = other;
                continue;
            }
            shorter[to] = other;
            d->ends[to] |= d->ends[other];
            queue[n++] = to;
        }
    }
}

static bool read_breakers(sample_dry *d, const char *const *breakers, uint32_t n)
{
    size_t most = 1;
    for (uint32_t i = 0; i < n; i++)
        most += strlen(breakers[i]);
    if (most == 1)
        return true;
    uint16_t *queue = calloc(most, sizeof *queue), *shorter = calloc(most, sizeof *shorter), n_states = 1;
    d->next = calloc(most, sizeof *d->next);
    d->ends = calloc(most, sizeof *d->ends);
    bool ok = most <= MAX_STATES && queue && shorter && d->next && d->ends;
    for (uint32_t i = 0; ok && i < n; i++) {
        uint16_t at = 0;
        for (const char *s = breakers[i]; *s; s++) {
            uint16_t *to = &d->next[at][(uint8_t)*s];
            if (!*to)
                *to = n_states++;
            at = *to;
        }
        d->ends[at] = at != 0;
    }
    if (ok)
        link_states(d, queue, shorter);
    free(queue);
    free(shorter);
    return ok;
}

sample_dry *sample_dry_new(const engine_sampling *s, const tokenizer *tok, uint32_t vocab, const sample_dry *like)
{
    XD_CLEANUP(sample_dry_freep) sample_dry *d = calloc(1, sizeof *d);
    if (!d || !(d->verdicts = calloc(vocab, 1)))
        return NULL;
    if (like) {
        d->next = like->next;
        d->ends = like->ends;
        d->borrows = true;
    } else if (!read_breakers(d, s->dry_breakers, s->n_dry_breakers))
        return NULL;
    d->multiplier = s->dry_multiplier;
    d->base = s->dry_base;
    d->allowed_length = s->dry_allowed_length;
    d->last_n = s->dry_last_n;
    d->tok = tok;
    d->vocab = vocab;
    /* llama.cpp's bound, the logarithm of the largest float: beyond it a token is as good as banned. */
    d->max_exponent = d->base > 1.000001 ? (uint32_t)(88.7228391 / log(d->base)) : UINT32_MAX;
    return XD_TAKE(d);
}

void sample_dry_free(sample_dry *d)
{
    if (!d)
        return;
    if (!d->borrows) {
        free(d->next);
        free(d->ends);
    }
    free(d->verdicts);
    xd_buf_free(&d->text);
    free(d);
}

/* Moves *state over the text of a token; an id without one adds nothing. false: out of memory. */
static bool read_token(sample_dry *d, uint32_t id, uint16_t *state, bool *ret_breaks)
{
    xd_buf_clear(&d->text);
    if (!tok_token_bytes(d->tok, id, &d->text) && tok_token_text(d->tok, id))
        return false;
    *ret_breaks = false;
    for (size_t i = 0; i < d->text.len; i++) {
        *state = d->next[*state][(uint8_t)d->text.data[i]];
        *ret_breaks |= d->ends[*state];
    }
    return true;
}

/* Of `id`, which is below d->vocab; false: out of memory. */
static bool holds_breaker(sample_dry *d, uint32_t id, bool *ret)
{
    if (d->next && !d->verdicts[id]) {
        uint16_t state = 0;
        bool yes;
        if (!read_token(d, id, &state, &yes))
            return false;
        d->verdicts[id] = KNOWN | (yes ? BREAKS : 0);
    }
    *ret = d->verdicts[id] & BREAKS;
    return true;
}

bool dry_push(sample_dry *d, dry_run *r, uint32_t id)
{
    if (r->n == r->cap) {
        uint32_t cap = XD_MAX(r->cap + r->cap / 2, 256u), *ids = realloc(r->ids, cap * sizeof *ids);
        if (!ids)
            return false;
        r->ids = ids;
        r->cap = cap;
    }
    bool yes = false;
    if (d->next && !read_token(d, id, &r->state, &yes))
        return false;
    r->ids[r->n++] = id;
    r->n_unbroken = yes ? 0 : r->n_unbroken + 1;
    return true;
}

void dry_run_clear(dry_run *r)
{
    free(r->ids);
    *r = (dry_run){0};
}

static bool make_room(dry_found *f, uint32_t vocab, uint32_t n)
{
    if (!f->longest)
        f->longest = calloc(vocab, sizeof *f->longest);
    if (!f->ids)
        f->ids = calloc(vocab, sizeof *f->ids);
    if (!f->lengths)
        f->lengths = calloc(vocab, sizeof *f->lengths);
    if (f->common_cap < n) {
        free(f->common);
        f->common_cap = n + n / 2;
        f->common = malloc(f->common_cap * sizeof *f->common);
        if (!f->common)
            f->common_cap = 0;
    }
    return f->longest && f->ids && f->lengths && f->common;
}

static inline uint32_t behind(const uint32_t *last, uint32_t i)
{
    return last[-(ptrdiff_t)i];
}

/* Drops those that are never penalised and empties f->longest. */
static bool keep_penalised(sample_dry *d, dry_found *f)
{
    uint32_t kept = 0;
    bool ok = true;
    for (uint32_t i = 0; i < f->n; i++) {
        uint32_t id = f->ids[i], length = f->longest[id] - 1;
        bool exempt = false;
        f->longest[id] = 0;
        ok = ok && holds_breaker(d, id, &exempt);
        if (exempt)
            continue;
        f->ids[kept] = id;
        f->lengths[kept++] = length;
    }
    f->n = kept;
    return ok;
}

bool dry_find(sample_dry *d, const dry_run *r, dry_found *f)
{
    f->n = 0;
    const uint32_t n = XD_MIN(r->n, d->last_n), most = XD_MIN(n, r->n_unbroken);
    if (n < 2 || most < d->allowed_length)
        return true;
    if (!make_room(f, d->vocab, n))
        return false;
    /* s: the sequence from behind. common[k]: how many of its first tokens stand at k too, at most `most`, which keeps every box
     * [left, right) of known repetition valid, merely shorter. */
    const uint32_t *s = r->ids + r->n - 1;
    uint32_t left = 0, right = 0;
    for (uint32_t k = 1; k < n; k++) {
        uint32_t same = k < right ? XD_MIN(f->common[k - left], right - k) : 0;
        while (same < most && k + same < n && behind(s, same) == behind(s, k + same))
            same++;
        if (k + same > right) {
            left = k;
            right = k + same;
        }
        f->common[k] = same;
        uint32_t next = behind(s, k - 1);
        if (same < d->allowed_length || next >= d->vocab || f->longest[next] > same)
            continue;
        if (!f->longest[next])
            f->ids[f->n++] = next;
        f->longest[next] = same + 1;
    }
    return keep_penalised(d, f);
}

void dry_found_clear(dry_found *f)
{
    free(f->ids);
    free(f->lengths);
    free(f->common);
    free(f->longest);
    *f = (dry_found){0};
}

double dry_penalty(const sample_dry *d, uint32_t length)
{
    return d->multiplier * pow(d->base, XD_MIN(length - d->allowed_length, d->max_exponent));
}
