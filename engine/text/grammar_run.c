/* grammar_run.c - one answer's place in its grammar, and the mask of what may come next.
 *
 * A mask is a walk over the tries of tokens with the automaton, which leaves a subtree at the first byte that does not fit. Within a
 * string nearly all tokens fit: those that are nothing but plain characters are taken as a whole, and only the odd ones are walked. Masks
 * are kept by the state they belong to, since most states come again and again.
 * Work is counted: where a schema is so ambiguous that a walk would hold the engine up, most of the readings are left out, from this mask on
 * for the rest of the answer, so that no answer costs that much twice. What is left is a smaller choice, never a wrong one. */
#include <string.h>
#include <xxhash.h>

#include "engine/text/grammar_priv.h"
#include "engine/text/tok_priv.h"

enum {
    MAX_WORK = 1 << 17,       /* steps: 1 to 3 ms */
    NET_TIMES = 2,            /* as many for GBNF, where one reading alone may take most tokens byte by byte */
    LAST_TIMES = 2,           /* and as many more for the one reading that is left: tokens beyond that are none */
    PER_STEP = 4,             /* nodes of a walk within a pattern, which needs no frames */
    PATTERN_MOST = 64,        /* threads, below which one that stays in its pattern is walked as all others are */
    FEWER = 16,               /* times, when that is not enough */
    MAX_KEY_BYTES = 128 << 10 /* of a state whose mask is kept */
};

struct grammar_run {
    grammar *g;
    const grammar_vocab *v;
    gram_stack at;   /* the threads as they are */
    gram_stack next; /* what they would become */
    uint32_t *moved; /* of compact() */
    size_t moved_cap;
    xd_buf key;
    uint64_t max_work;
    size_t most; /* threads that are followed */
};

grammar_run *grammar_run_new(grammar *g, const grammar_vocab *v)
{
    grammar_run *r = calloc(1, sizeof *r);
    if (!r)
        return NULL;
    r->g = grammar_ref(g);
    r->v = v;
    r->most = GRAM_MAX_THREADS;
    if (!gram_start(g, &r->at)) {
        grammar_run_free(r);
        return NULL;
    }
    return r;
}

void grammar_run_free(grammar_run *r)
{
    if (!r)
        return;
    gram_stack_free(&r->at);
    gram_stack_free(&r->next);
    free(r->moved);
    xd_buf_free(&r->key);
    grammar_unref(r->g);
    free(r);
}

/* ---- masks ---- */

static void add_bits(const uint32_t *ids, uint32_t n, uint64_t *bits)
{
    for (uint32_t i = 0; i < n; i++)
        bits[ids[i] / 64] |= (uint64_t)1 << ids[i] % 64;
}

/* Adds what the threads [0, n) of r->next accept of t. False: too much work, or out of memory. */
static bool walk(grammar_run *r, const gram_vtrie *t, size_t n, uint64_t *bits)
{
    gram_stack *s = &r->next;
    bool found = false;
    struct {
        size_t from, to, frames;
    } level[GRAM_MAX_TOKEN_BYTES + 1];
    level[0].from = 0;
    level[0].to = n;
    level[0].frames = s->n_frames;
    for (uint32_t i = 1; i < t->n;) {
        const gram_vnode *node = &t->node[i];
        uint32_t d = node->depth;
        s->n_threads = level[d - 1].to;
        s->n_frames = level[d - 1].frames;
        if (s->work > r->max_work && (r->most > 1 || found))
            break;
        gram_step(r->g, s, level[d - 1].from, level[d - 1].to, node->byte);
        if (s->n_threads == level[d - 1].to) {
            i = node->skip;
            continue;
        }
        level[d].from = level[d - 1].to;
        level[d].to = s->n_threads;
        level[d].frames = s->n_frames;
        add_bits(t->id + node->token, node[1].token - node->token, bits);
        found |= node[1].token > node->token;
        i++;
    }
    s->n_frames = level[0].frames;
    s->n_threads = n;
    return (s->work <= r->max_work || r->most == 1) && !s->failed;
}

/* What leads out of a state, as a bit a byte: tried once, for those states that come again and again. */
typedef struct ways_out {
    uint32_t state;
    uint64_t bytes[4];
} ways_out;
enum { WAYS_KEPT = 16 };

static void try_ways(grammar_run *r, const gram_frame *f, ways_out *ret)
{
    gram_stack *s = &r->next;
    const size_t frames = s->n_frames, threads = s->n_threads;
    *ret = (ways_out){.state = (uint32_t)f->b};
    for (int byte = 0; byte < 256; byte++) {
        gram_step_beside(r->g, s, f, 0, 0, (unsigned char)byte);
        ret->bytes[byte / 64] |= (uint64_t)(s->n_threads > threads) << byte % 64;
        s->n_frames = frames;
        s->n_threads = threads;
    }
}

/* The same for a thread within a pattern, of the plain trie: its tokens are whole characters and stay within a string, so that no frames
 * are needed. A network's pattern may be left, for what it calls or for its end: that becomes threads beside it. */
static bool walk_pattern(grammar_run *r, uint32_t thread, const gram_dfa *d, uint32_t state, uint64_t *bits)
{
    const gram_vtrie *t = &r->v->plain;
    gram_stack *s = &r->next;
    gram_frame place = s->frame[thread];
    const bool *leads_out = r->g->net ? r->g->net[r->g->node[place.node].dfa].ways_out : NULL;
    ways_out kept[WAYS_KEPT];
    uint32_t n_kept = 0;
    uint64_t nodes = 0;
    struct {
        uint32_t state, cp, left;
        size_t from, to, frames;
    } level[GRAM_MAX_TOKEN_BYTES + 1];
    level[0].state = state;
    level[0].cp = level[0].left = 0;
    level[0].from = level[0].to = s->n_threads;
    level[0].frames = s->n_frames;
    s->most--; /* the place in the pattern is one more, and the first */
    for (uint32_t i = 1; i < t->n && s->work <= r->max_work;) {
        const gram_vnode *node = &t->node[i];
        uint32_t depth = node->depth, at = level[depth - 1].state, left = level[depth - 1].left, cp = node->byte;
        s->work += !(++nodes % PER_STEP);
        s->n_threads = level[depth].from = level[depth - 1].to;
        s->n_frames = level[depth - 1].frames;
        bool out = leads_out && at != GRAM_NONE && !left && leads_out[at];
        if (out) {
            uint32_t k = 0;
            while (k < n_kept && kept[k].state != at)
                k++;
            place.b = at;
            if (k == n_kept && k < WAYS_KEPT)
                try_ways(r, &place, &kept[n_kept++]);
            out = k == WAYS_KEPT || kept[k].bytes[cp / 64] >> cp % 64 & 1;
        }
        if (out || level[depth - 1].to > level[depth - 1].from)
            gram_step_beside(r->g, s, out ? &place : NULL, level[depth - 1].from, level[depth - 1].to, node->byte);
        if (at == GRAM_NONE) {
            left = 0;
        } else if (left) {
            cp = level[depth - 1].cp << 6 | (cp & 0x3F);
            left--;
        } else if (cp >= 0x80) {
            left = cp >= 0xF0 ? 3 : cp >= 0xE0 ? 2 : 1;
            cp &= 0x3F >> left;
        }
        if (!left && at != GRAM_NONE)
            at = gram_dfa_go(d, at, cp, cp);
        if (at == GRAM_NONE && s->n_threads == level[depth].from) {
            i = node->skip;
            continue;
        }
        level[depth].state = at;
        level[depth].cp = cp;
        level[depth].left = left;
        level[depth].to = s->n_threads;
        level[depth].frames = s->n_frames;
        add_bits(t->id + node->token, node[1].token - node->token, bits);
        i++;
    }
    s->most++;
    s->n_threads = level[0].to;
    s->n_frames = level[0].frames;
    return s->work <= r->max_work && !s->failed;
}

static bool copy_stack(gram_stack *to, const gram_stack *from, size_t most)
{
    if (!tok_grow(&to->frame, &to->frame_cap, from->n_frames, sizeof *to->frame) ||
        !tok_grow(&to->thread, &to->thread_cap, from->n_threads, sizeof *to->thread))
        return false;
    memcpy(to->frame, from->frame, from->n_frames * sizeof *to->frame);
    memcpy(to->thread, from->thread, from->n_threads * sizeof *to->thread);
    to->n_frames = from->n_frames;
    to->n_threads = from->n_threads;
    to->most = most;
    to->work = 0;
    to->failed = false;
    return true;
}

/* What the first r->most threads accept, if no more of what they become are followed. */
static bool mask_of(grammar_run *r, uint64_t *bits)
{
    const grammar_vocab *v = r->v;
    gram_stack *s = &r->next;
    size_t n = XD_MIN(r->at.n_threads, r->most);
    if (!copy_stack(s, &r->at, r->most)) {
        s->failed = true;
        return false;
    }
    memset(bits, 0, v->n_words * sizeof *bits);
    /* One reading must be left. That of a schema takes a step or two for a byte. */
    r->max_work = r->g->net     ? MAX_WORK * NET_TIMES * (r->most == 1 ? LAST_TIMES : 1)
                  : r->most > 1 ? MAX_WORK
                                : UINT64_MAX;
    if (!walk(r, &v->odd, n, bits))
        return false;
    /* Threads within a string take plain tokens unseen; the others come first, to be walked. */
    uint64_t chars = 0;
    size_t others = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t top = s->thread[i];
        uint64_t c = gram_free_chars(r->g, s, top);
        chars = XD_MAX(chars, c);
        if (!c) {
            s->thread[i] = s->thread[others];
            s->thread[others++] = top;
        }
    }
    if (chars >= v->max_chars && chars) {
        for (uint32_t i = 0; i < v->n_words; i++)
            bits[i] |= v->plain_bits[i];
        return true;
    }
    add_bits(v->by_chars, v->chars_end[chars], bits);
    size_t rest = 0;
    for (size_t i = 0; i < others; i++) {
        uint32_t state;
        const gram_dfa *d = gram_pattern_at(r->g, s, s->thread[i], &state);
        if (!d || s->work > r->max_work || (r->g->net && r->most < PATTERN_MOST))
            s->thread[rest++] = s->thread[i];
        else if (!walk_pattern(r, s->thread[i], d, state, bits))
            return false;
    }
    return !rest || walk(r, &v->plain, rest, bits);
}

/* The threads, frame by frame, as bytes: equal for equal states. */
static bool write_key(grammar_run *r)
{
    xd_buf_clear(&r->key);
    xd_buf_append(&r->key, &r->most, sizeof r->most);
    for (size_t i = 0; i < r->at.n_threads; i++) {
        for (uint32_t top = r->at.thread[i]; top; top = r->at.frame[top].parent) {
            gram_frame f = r->at.frame[top];
            f.parent = 0;
            xd_buf_append(&r->key, &f, sizeof f);
        }
        xd_buf_append(&r->key, &(gram_frame){0}, sizeof(gram_frame));
    }
    return !r->key.failed;
}

static void follow_fewer(grammar_run *r, size_t most)
{
    r->most = most;
    r->at.n_threads = XD_MIN(r->at.n_threads, most);
}

const uint64_t *grammar_run_mask(grammar_run *r)
{
    grammar *g = r->g;
    if (!write_key(r))
        return NULL;
    uint64_t hash = XXH3_64bits(r->key.data, r->key.len);
    for (uint32_t i = 0; i < GRAM_N_MASKS; i++) {
        const gram_mask *m = &g->mask[i];
        if (m->key && m->hash == hash && m->key_bytes == r->key.len && !memcmp(m->key, r->key.data, m->key_bytes)) {
            follow_fewer(r, m->most);
            return m->bits;
        }
    }
    gram_mask *m = &g->mask[g->next_mask];
    free(m->key);
    m->key = NULL;
    if (!m->bits)
        m->bits = calloc(r->v->n_words + 1, sizeof *m->bits);
    if (!m->bits)
        return NULL;
    for (; !mask_of(r, m->bits); follow_fewer(r, XD_MAX(r->most / FEWER, 1u)))
        if (r->next.failed)
            return NULL;
    if (r->key.len > MAX_KEY_BYTES)
        return m->bits;
    m->key = malloc(r->key.len);
    if (!m->key)
        return NULL;
    memcpy(m->key, r->key.data, r->key.len);
    m->key_bytes = r->key.len;
    m->hash = hash;
    m->most = r->most;
    g->next_mask = (g->next_mask + 1) % GRAM_N_MASKS;
    return m->bits;
}

/* ---- tokens ---- */

/* Moves the frames that the threads [from, ..) of r->next stand on to r->at. Parents lie before their children. */
static bool compact(grammar_run *r, size_t from)
{
    gram_stack *s = &r->next, *at = &r->at;
    if (!tok_grow(&r->moved, &r->moved_cap, s->n_frames, sizeof *r->moved) ||
        !tok_grow(&at->frame, &at->frame_cap, s->n_frames, sizeof *at->frame) ||
        !tok_grow(&at->thread, &at->thread_cap, s->n_threads - from, sizeof *at->thread))
        return false;
    memset(r->moved, 0, s->n_frames * sizeof *r->moved);
    for (size_t i = from; i < s->n_threads; i++)
        for (uint32_t f = s->thread[i]; f && !r->moved[f]; f = s->frame[f].parent)
            r->moved[f] = 1;
    at->n_frames = 1;
    at->n_threads = 0;
    for (uint32_t f = 1; f < s->n_frames; f++) {
        if (!r->moved[f])
            continue;
        r->moved[f] = (uint32_t)at->n_frames;
        at->frame[at->n_frames] = s->frame[f];
        at->frame[at->n_frames++].parent = r->moved[s->frame[f].parent];
    }
    for (size_t i = from; i < s->n_threads; i++)
        at->thread[at->n_threads++] = r->moved[s->thread[i]];
    return true;
}

/* What the threads of r->next become by this token; where they begin. None: it does not fit. */
static size_t take(grammar_run *r, uint32_t id)
{
    const grammar_vocab *v = r->v;
    size_t from = 0, to = r->next.n_threads;
    for (uint32_t i = v->off[id]; i < v->off[id + 1]; i++) {
        gram_step(r->g, &r->next, from, to, (unsigned char)v->bytes.data[i]);
        from = to;
        to = r->next.n_threads;
    }
    return from;
}

xd_status grammar_run_push(grammar_run *r, uint32_t id, xd_err *err)
{
    gram_stack *s = &r->next;
    if (!grammar_vocab_has(r->v, id))
        return xd_fail(err, XD_INTERNAL, 0, "token %u is no text that a grammar allows", id);
    if (!copy_stack(s, &r->at, r->most))
        return xd_fail(err, XD_NOMEM, 0, "an answer's place in its grammar");
    size_t from = take(r, id);
    /* Where threads are too many, one may be left out for others here that was looked at by itself for the mask. */
    const bool plain = r->v->plain_bits[id / 64] >> id % 64 & 1;
    for (size_t i = 0; plain && i < r->at.n_threads && !s->failed && s->n_threads == from; i++) {
        if (!copy_stack(s, &r->at, r->most))
            return xd_fail(err, XD_NOMEM, 0, "an answer's place in its grammar");
        s->thread[0] = r->at.thread[i];
        s->n_threads = 1;
        from = take(r, id);
    }
    if (!s->failed && s->n_threads == from)
        return xd_fail(err, XD_INTERNAL, 0, "token %u is not what the grammar allows here", id);
    if (s->failed || !compact(r, from))
        return xd_fail(err, XD_NOMEM, 0, "an answer's place in its grammar");
    return XD_OK;
}

bool grammar_run_may_end(const grammar_run *r)
{
    for (size_t i = 0; i < r->at.n_threads; i++)
        if (gram_may_end(r->g, &r->at, r->at.thread[i]))
            return true;
    return false;
}

bool grammar_run_must_end(grammar_run *r)
{
    gram_stack *s = &r->next;
    if (!grammar_run_may_end(r) || !copy_stack(s, &r->at, r->most))
        return false;
    const size_t n = s->n_threads;
    for (int byte = 0; byte < 256 && s->n_threads == n; byte++)
        gram_step(r->g, s, 0, n, (unsigned char)byte);
    return s->n_threads == n && !s->failed;
}
