/* tok_bpe.c - byte-pair merging: a piece's characters become initial ids, then the pair of lowest rank (the leftmost of
 * equals) is merged until none is left.
 *
 * Short pieces are scanned for the best pair at each merge; long ones use a heap of (rank, position), which keeps a megabyte
 * of one letter at n log n. Pieces repeat, so a call over much text keeps a direct-mapped table of earlier pieces: an entry
 * only points back at the piece's bytes and at its ids in the output. */
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "engine/text/tok_priv.h"

enum {
    SHORT_SYMBOLS = 24,
    LARGE_PIECE = 1 << 16,
    CACHE_MIN_PIECES = 64,
    CACHE_MAX_SLOTS = 1 << 14,
};

typedef struct symbol {
    uint32_t id;        /* TOK_NONE: merged into the one before */
    int32_t prev, next; /* -1: none */
} symbol;

typedef struct cache_slot {
    uint64_t hash;
    uint32_t off, len, ids_at, ids_n; /* len 0: empty */
} cache_slot;

typedef struct bpe_mem {
    symbol *sym;
    size_t sym_cap, n;
    uint64_t *heap;
    size_t heap_cap, heap_n;
    cache_slot *cache;
    size_t cache_cap;
} bpe_mem;

static void bpe_mem_free(void *p)
{
    bpe_mem *m = p;
    free(m->sym);
    free(m->heap);
    free(m->cache);
    free(m);
}

bool tok_bpe_reserve(tok_bpe *b, size_t n_merges)
{
    unsigned bits = 4;
    while (((size_t)1 << bits) < n_merges * 2)
        bits++;
    b->merges = malloc(sizeof *b->merges << bits);
    if (!b->merges)
        return false;
    b->shift = 64 - bits;
    b->seed = tok_hash_seed();
    for (size_t i = 0; i < (size_t)1 << bits; i++)
        b->merges[i] = (tok_merge_slot){.rank = TOK_NONE};
    return true;
}

static inline tok_merge_slot *merge_slot(const tok_bpe *b, uint32_t left, uint32_t right)
{
    uint64_t pair = (uint64_t)left << 32 | right;
    size_t mask = ((size_t)1 << (64 - b->shift)) - 1;
    uint64_t h = (pair ^ b->seed) * 0x9E3779B97F4A7C15u;
    h ^= h >> 32;
    for (size_t i = (h * 0x9E3779B97F4A7C15u) >> b->shift;; i = (i + 1) & mask)
        if (b->merges[i].rank == TOK_NONE || b->merges[i].pair == pair)
            return &b->merges[i];
}

void tok_bpe_put(tok_bpe *b, uint32_t left, uint32_t right, uint32_t rank, uint32_t id)
{
    tok_merge_slot *s = merge_slot(b, left, right);
    *s = (tok_merge_slot){(uint64_t)left << 32 | right, rank, id};
    b->n_merges++;
}

void tok_bpe_finish(tok_bpe *b, const tok_vocab *v)
{
    for (uint32_t cp = 0; cp < XD_ARRAY_LEN(b->char_id); cp++) {
        char c[4];
        b->char_id[cp] = tok_vocab_get(v, c, tok_cp_put(cp, c));
    }
    tok_byte_tokens(v, b->byte_id);
}

void tok_bpe_clear(tok_bpe *b)
{
    free(b->merges);
    free(b->prefix);
    free(b->suffix);
    *b = (tok_bpe){0};
}

static bool push_symbol(bpe_mem *m, uint32_t id)
{
    if (m->n == m->sym_cap && !tok_grow(&m->sym, &m->sym_cap, m->n + 1, sizeof *m->sym))
        return false;
    m->sym[m->n].id = id;
    m->n++;
    return true;
}

/* The id of a character with the prefix and suffix that its place asks for. */
static uint32_t affixed_id(const tok_bpe *b, const tok_vocab *v, const char *s, size_t len, bool first, bool last,
                           bool *ok)
{
    xd_buf t = {0};
    if (!first && b->prefix)
        xd_buf_append(&t, b->prefix, b->prefix_len);
    xd_buf_append(&t, s, len);
    if (last && b->suffix)
        xd_buf_append(&t, b->suffix, b->suffix_len);
    *ok = !t.failed;
    uint32_t id = t.failed ? TOK_NONE : tok_vocab_get(v, t.data, t.len);
    xd_buf_free(&t);
    return id;
}

/* The initial symbols of a piece. A pending unknown is written only before the next known character: as the reference,
 * also when bytes of another character went before it. */
static xd_status initial_symbols(const tok_bpe *b, const tok_vocab *v, bpe_mem *m, const char *s, size_t len,
                                 xd_err *err)
{
    bool unk = false, ok = true, affixes = b->prefix_len || b->suffix_len;
    m->n = 0;
    if (len > LARGE_PIECE && !b->byte_fallback) { /* one symbol a character at most: no room to spare for megabytes */
        size_t chars = 0;
        for (size_t i = 0; i < len; i++)
            chars += ((unsigned char)s[i] & 0xC0) != 0x80;
        ok = tok_grow(&m->sym, &m->sym_cap, chars, sizeof *m->sym);
    }
    for (size_t i = 0, n; ok && i < len; i += n) {
        uint32_t cp = tok_cp(s + i, &n);
        uint32_t id;
        if (affixes)
            id = affixed_id(b, v, s + i, n, i == 0, i + n == len, &ok);
        else
            id = cp < XD_ARRAY_LEN(b->char_id) ? b->char_id[cp] : tok_vocab_get(v, s + i, n);
        if (id != TOK_NONE) {
            if (unk)
                ok = push_symbol(m, b->unk_id);
            unk = false;
            ok = ok && push_symbol(m, id);
            continue;
        }
        if (b->byte_fallback) {
            size_t k = 0;
            while (k < n && b->byte_id[(unsigned char)s[i + k]] != TOK_NONE)
                k++;
            if (k == n) {
                for (k = 0; ok && k < n; k++)
                    ok = push_symbol(m, b->byte_id[(unsigned char)s[i + k]]);
                continue;
            }
        }
        if (!b->has_unk)
            continue;
        if (b->unk_id == TOK_NONE)
            return xd_fail(err, XD_UNSUPPORTED, 0,
                           "the text has an unknown character and the unk_token is not in the vocabulary");
        if (unk && !b->fuse_unk)
            ok = push_symbol(m, b->unk_id);
        unk = true;
    }
    if (ok && unk)
        ok = push_symbol(m, b->unk_id);
    return ok ? XD_OK : xd_fail(err, XD_NOMEM, 0, "tokenizing");
}

static bool merge_short(const tok_bpe *b, bpe_mem *m, tok_ids *out)
{
    uint32_t id[SHORT_SYMBOLS], rank[SHORT_SYMBOLS], to[SHORT_SYMBOLS];
    size_t n = m->n;
    for (size_t i = 0; i < n; i++)
        id[i] = m->sym[i].id;
    for (size_t i = 0; i + 1 < n; i++) {
        const tok_merge_slot *s = merge_slot(b, id[i], id[i + 1]);
        rank[i] = s->rank;
        to[i] = s->id;
    }
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (rank[i] < rank[best])
                best = i;
        if (rank[best] == TOK_NONE)
            break;
        id[best] = to[best];
        for (size_t i = best + 1; i + 1 < n; i++) {
            id[i] = id[i + 1];
            rank[i] = rank[i + 1];
            to[i] = to[i + 1];
        }
        n--;
        for (size_t i = best ? best - 1 : 0; i <= best && i + 1 < n; i++) {
            const tok_merge_slot *s = merge_slot(b, id[i], id[i + 1]);
            rank[i] = s->rank;
            to[i] = s->id;
        }
    }
    for (size_t i = 0; i < n; i++)
        if (!tok_ids_push(out, id[i]))
            return false;
    return true;
}

/* A 4-ary heap: half the levels of a binary one, and its children share a cache line. */
static void sift_down(uint64_t *h, size_t n, size_t i)
{
    uint64_t x = h[i];
    for (;;) {
        size_t c = 4 * i + 1, best = c;
        if (c >= n)
            break;
        for (size_t k = c + 1; k < n && k < c + 4; k++)
            if (h[k] < h[best])
                best = k;
        if (h[best] >= x)
            break;
        h[i] = h[best];
        i = best;
    }
    h[i] = x;
}

static bool heap_push(bpe_mem *m, uint64_t x)
{
    if (m->heap_n == m->heap_cap && !tok_grow(&m->heap, &m->heap_cap, m->heap_n + 1, sizeof *m->heap))
        return false;
    size_t i = m->heap_n++;
    while (i && m->heap[(i - 1) / 4] > x) {
        m->heap[i] = m->heap[(i - 1) / 4];
        i = (i - 1) / 4;
    }
    m->heap[i] = x;
    return true;
}

static bool push_pair(const tok_bpe *b, bpe_mem *m, int32_t at)
{
    const tok_merge_slot *s = merge_slot(b, m->sym[at].id, m->sym[m->sym[at].next].id);
    return s->rank == TOK_NONE || heap_push(m, (uint64_t)s->rank << 32 | (uint32_t)at);
}

static bool merge_long(const tok_bpe *b, bpe_mem *m, tok_ids *out)
{
    size_t n = m->n;
    m->heap_n = 0;
    for (size_t i = 0; i < n; i++) {
        m->sym[i].prev = (int32_t)i - 1;
        m->sym[i].next = i + 1 < n ? (int32_t)i + 1 : -1;
    }
    if (!tok_grow(&m->heap, &m->heap_cap, n, sizeof *m->heap))
        return false;
    for (size_t i = 0; i + 1 < n; i++) {
        const tok_merge_slot *s = merge_slot(b, m->sym[i].id, m->sym[i + 1].id);
        if (s->rank != TOK_NONE)
            m->heap[m->heap_n++] = (uint64_t)s->rank << 32 | i;
    }
    for (size_t i = m->heap_n / 4 + 1; i-- > 0;)
        if (i < m->heap_n)
            sift_down(m->heap, m->heap_n, i);
    while (m->heap_n) {
        uint64_t top = m->heap[0];
        m->heap[0] = m->heap[--m->heap_n];
        if (m->heap_n)
            sift_down(m->heap, m->heap_n, 0);
        int32_t at = (int32_t)(uint32_t)top;
        symbol *s = &m->sym[at];
        if (s->id == TOK_NONE || s->next < 0)
            continue;
        const tok_merge_slot *slot = merge_slot(b, s->id, m->sym[s->next].id);
        if (slot->rank != (uint32_t)(top >> 32)) /* the pair that was meant is gone */
            continue;
        symbol *right = &m->sym[s->next];
        s->id = slot->id;
        s->next = right->next;
        right->id = TOK_NONE;
        if (s->next >= 0)
            m->sym[s->next].prev = at;
        if ((s->prev >= 0 && !push_pair(b, m, s->prev)) || (s->next >= 0 && !push_pair(b, m, at)))
            return false;
    }
    for (int32_t i = 0; i >= 0; i = m->sym[i].next)
        if (!tok_ids_push(out, m->sym[i].id))
            return false;
    return true;
}

static xd_status encode_piece(const tok_bpe *b, const tok_vocab *v, bpe_mem *m, tok_work_left *left, const char *s,
                              size_t len, tok_ids *out, xd_err *err)
{
    bool ok = true;
    if (b->ignore_merges) {
        uint32_t id = tok_vocab_get(v, s, len);
        if (id != TOK_NONE)
            return tok_ids_push(out, id) ? XD_OK : xd_fail(err, XD_NOMEM, 0, "tokenizing");
    }
    xd_status st = initial_symbols(b, v, m, s, len, err);
    if (st)
        return st;
    if (!tok_spend(left, len + m->n * 32))
        return tok_too_long(err, "merging");
    if (m->n > SHORT_SYMBOLS)
        ok = merge_long(b, m, out);
    else if (m->n)
        ok = merge_short(b, m, out);
    return ok ? XD_OK : xd_fail(err, XD_NOMEM, 0, "tokenizing");
}

/* Slots for this many pieces, emptied; 0: not worth it, or no memory for it. */
static size_t cache_prepare(bpe_mem *m, size_t n_pieces)
{
    if (n_pieces < CACHE_MIN_PIECES)
        return 0;
    size_t slots = CACHE_MIN_PIECES;
    while (slots < n_pieces && slots < CACHE_MAX_SLOTS)
        slots *= 2;
    if (!tok_grow(&m->cache, &m->cache_cap, slots, sizeof *m->cache))
        return 0;
    memset(m->cache, 0, slots * sizeof *m->cache);
    return slots;
}

xd_status tok_bpe_encode(const tok_bpe *b, const tok_vocab *v, tok_work *w, tok_ids *out, xd_err *err)
{
    if (!w->model_mem) {
        w->model_mem = calloc(1, sizeof(bpe_mem));
        w->model_mem_free = bpe_mem_free;
        if (!w->model_mem) {
            w->model_mem_free = NULL;
            return xd_fail(err, XD_NOMEM, 0, "tokenizing");
        }
    }
    bpe_mem *m = w->model_mem;
    const char *text = w->text.s.data;
    size_t slots = cache_prepare(m, w->pieces.n);
    for (size_t i = 0; i < w->pieces.n; i++) {
        tok_piece p = w->pieces.data[i];
        const char *s = text + p.off;
        cache_slot *c = NULL;
        uint64_t hash = 0;
        if (slots && p.len < 256) {
            hash = XXH3_64bits(s, p.len);
            c = &m->cache[hash & (slots - 1)];
            if (c->hash == hash && c->len == p.len && !memcmp(text + c->off, s, p.len)) {
                if (out->cap - out->len < c->ids_n &&
                    !tok_grow(&out->data, &out->cap, out->len + c->ids_n, sizeof *out->data))
                    return xd_fail(err, XD_NOMEM, 0, "tokenizing");
                if (c->ids_n)
                    memcpy(out->data + out->len, out->data + c->ids_at, c->ids_n * sizeof *out->data);
                out->len += c->ids_n;
                xd_status st = tok_ids_check(out, err);
                if (st)
                    return st;
                continue;
            }
        }
        size_t before = out->len;
        xd_status st = encode_piece(b, v, m, &w->left, s, p.len, out, err);
        if (!st)
            st = tok_ids_check(out, err);
        if (st)
            return st;
        if (c && out->len < UINT32_MAX)
            *c = (cache_slot){hash, p.off, p.len, (uint32_t)before, (uint32_t)(out->len - before)};
    }
    return XD_OK;
}
