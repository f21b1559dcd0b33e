/* lead.c - a thought before an answer that a grammar holds. See lead.h.
 *
 *   CHOICE --the mark that opens--> THOUGHT --the mark that closes--> AFTER --its words--> OVER
 *      \--the first word, or the grammar's first token----------------------------------->/
 *
 * The end of a thought is found in the text, as whoever reads the answer finds it, since a model may write the mark letter by letter. A token that
 * ends the mark and goes on would begin the answer outside of the grammar: while part of a mark is there, such tokens are banned.
 * Which words must come is for the caller, who knows the model's template. */
#include "engine/text/lead.h"

#include <string.h>

#include "engine/text/grammar_priv.h"
#include "engine/text/tok_priv.h"

typedef enum state { CHOICE, THOUGHT, AFTER, OVER } state;

enum { OPEN = 1, PLAIN = 2 }; /* what a choice may still become */

struct lead_run {
    lead l;
    const grammar_vocab *v;
    state state;
    unsigned may;
    uint32_t pos;   /* CHOICE: tokens of the mark or the words that are there; AFTER: of the words */
    size_t matched; /* THOUGHT: bytes of the mark that closes */
    uint32_t next[2];
    uint32_t *banned;
    size_t banned_cap;
};

lead_run *lead_run_new(const lead *l, const grammar_vocab *v)
{
    lead_run *r = calloc(1, sizeof *r);
    if (!r)
        return NULL;
    r->l = *l;
    r->v = v;
    r->state = l->in_thought ? THOUGHT : CHOICE;
    r->may = OPEN | PLAIN;
    return r;
}

void lead_run_free(lead_run *r)
{
    if (r)
        free(r->banned);
    free(r);
}

bool lead_run_over(const lead_run *r)
{
    return r->state == OVER;
}

/* Appends the tokens of t that begin with the text and are longer: they stand together. */
static bool add_longer(lead_run *r, const gram_vtrie *t, const char *text, size_t len, uint32_t *n)
{
    uint32_t at = 0;
    for (size_t d = 0; d < len; d++) {
        uint32_t end = t->node[at].skip, i = at + 1;
        while (i < end && t->node[i].byte != (uint8_t)text[d])
            i = t->node[i].skip;
        if (i >= end)
            return true;
        at = i;
    }
    uint32_t from = t->node[at + 1].token, to = t->node[t->node[at].skip].token;
    if (!tok_grow(&r->banned, &r->banned_cap, *n + (to - from) + 1, sizeof *r->banned))
        return false;
    memcpy(r->banned + *n, t->id + from, (to - from) * sizeof *r->banned);
    *n += to - from;
    return true;
}

static xd_status thought_limits(lead_run *r, lead_limits *ret, xd_err *err)
{
    ret->banned = r->l.end_ids;
    ret->n_banned = r->l.n_end;
    if (!r->matched)
        return XD_OK;
    const char *rest = r->l.close + r->matched;
    size_t len = strlen(rest);
    bool ok = tok_grow(&r->banned, &r->banned_cap, r->l.n_end + 1, sizeof *r->banned);
    for (uint32_t i = 0; ok && i < r->l.n_end; i++)
        r->banned[i] = r->l.end_ids[i];
    if (!ok || !add_longer(r, &r->v->plain, rest, len, &ret->n_banned) ||
        !add_longer(r, &r->v->odd, rest, len, &ret->n_banned))
        return xd_fail(err, XD_NOMEM, 0, "an answer's place before its grammar");
    ret->banned = r->banned;
    return XD_OK;
}

xd_status lead_run_limits(lead_run *r, lead_limits *ret, xd_err *err)
{
    *ret = (lead_limits){0};
    if (r->state == THOUGHT)
        return thought_limits(r, ret, err);
    ret->only = true;
    ret->also = r->next;
    if (r->state == AFTER) {
        r->next[ret->n_also++] = r->l.after_ids[r->pos];
        return XD_OK;
    }
    if (r->may & OPEN)
        r->next[ret->n_also++] = r->l.open_ids[r->pos];
    if ((r->may & PLAIN) && r->pos < r->l.n_plain)
        r->next[ret->n_also++] = r->l.plain_ids[r->pos];
    ret->or_grammar = !r->pos && !r->l.n_plain;
    return XD_OK;
}

static void enter_after(lead_run *r)
{
    r->pos = 0;
    r->state = r->l.n_after ? AFTER : OVER;
}

static void push_choice(lead_run *r, uint32_t id, bool *ret_grammar)
{
    if (r->pos >= r->l.n_open || r->l.open_ids[r->pos] != id)
        r->may &= ~(unsigned)OPEN;
    if (r->pos >= r->l.n_plain || r->l.plain_ids[r->pos] != id)
        r->may &= ~(unsigned)PLAIN;
    r->pos++;
    *ret_grammar = !r->may;
    if (!r->may || ((r->may & PLAIN) && r->pos == r->l.n_plain))
        r->state = OVER;
    else if ((r->may & OPEN) && r->pos == r->l.n_open)
        r->state = THOUGHT;
}

/* The marks have their first letter nowhere else, so that a mismatch begins anew. */
static void push_text(lead_run *r, const char *text, size_t len)
{
    const char *mark = r->l.close;
    for (size_t i = 0; i < len && r->state == THOUGHT; i++) {
        r->matched = text[i] == mark[r->matched] ? r->matched + 1 : text[i] == mark[0];
        if (!mark[r->matched])
            enter_after(r);
    }
}

void lead_run_push(lead_run *r, uint32_t id, const char *text, size_t len, bool *ret_grammar)
{
    *ret_grammar = false;
    if (r->state == CHOICE)
        push_choice(r, id, ret_grammar);
    else if (r->state == AFTER && ++r->pos == r->l.n_after)
        r->state = OVER;
    else if (r->state == THOUGHT)
        push_text(r, text, len);
}
