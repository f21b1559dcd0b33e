/* tok_trie.c - many strings found in a text in one pass: added tokens and Unigram pieces.
 *
 * A trie with failure links (Aho and Corasick): the state after a byte is the longest end of what was read that begins some string, so
 * that no byte is looked at again, whatever the strings have in common. Nodes stand in order of their depth; the
 * children of one stand together, sorted, and are found by bisection. Built once, then only read. */
#include <stdlib.h>
#include <string.h>

#include "engine/text/tok_priv.h"

bool tok_trie_add(tok_trie *t, const char *s, size_t len, uint32_t value)
{
    if (!tok_grow(&t->entry, &t->entry_cap, t->n + 1, sizeof *t->entry))
        return false;
    t->entry[t->n++] = (tok_trie_entry){s, (uint32_t)len, value};
    return true;
}

static int by_value(const tok_trie_entry *a, const tok_trie_entry *b)
{
    return a->value < b->value ? -1 : a->value > b->value;
}

static int compare(const void *pa, const void *pb)
{
    const tok_trie_entry *a = pa, *b = pb;
    int c = memcmp(a->s, b->s, XD_MIN(a->len, b->len));
    if (!c)
        c = a->len < b->len ? -1 : a->len > b->len;
    return c ? c : by_value(a, b);
}

static int compare_backwards(const void *pa, const void *pb)
{
    const tok_trie_entry *a = pa, *b = pb;
    for (uint32_t i = 1; i <= a->len && i <= b->len; i++) {
        unsigned char x = (unsigned char)a->s[a->len - i], y = (unsigned char)b->s[b->len - i];
        if (x != y)
            return x < y ? -1 : 1;
    }
    return a->len != b->len ? (a->len < b->len ? -1 : 1) : by_value(a, b);
}

static unsigned char byte_at(const tok_trie_entry *e, uint32_t depth, bool backwards)
{
    return (unsigned char)e->s[backwards ? e->len - 1 - depth : depth];
}

typedef struct range { /* the sorted strings that a node begins */
    uint32_t lo, hi;
} range;

/* Gives node `at` its value and its children. */
static bool expand(tok_trie *t, uint32_t at, range **ranges, size_t *ranges_cap, bool backwards)
{
    uint32_t depth = t->node[at].depth, lo = (*ranges)[at].lo, hi = (*ranges)[at].hi;
    for (; lo < hi && t->entry[lo].len == depth; lo++) /* of equal strings the last one added stays */
        t->node[at].value = t->entry[lo].value;
    t->node[at].child = t->n_nodes;
    while (lo < hi) {
        unsigned char b = byte_at(&t->entry[lo], depth, backwards);
        uint32_t end = lo + 1;
        while (end < hi && byte_at(&t->entry[end], depth, backwards) == b)
            end++;
        if (!tok_grow(&t->node, &t->node_cap, (size_t)t->n_nodes + 2, sizeof *t->node) ||
            !tok_grow(ranges, ranges_cap, (size_t)t->n_nodes + 2, sizeof **ranges))
            return false;
        (*ranges)[t->n_nodes] = (range){lo, end};
        t->node[t->n_nodes++] =
            (tok_trie_node){.byte = b, .depth = (uint16_t)(depth + 1), .value = TOK_NONE, .fail = at};
        lo = end;
    }
    return true;
}

/* A node's failure link is found through its parent's, which is nearer to the root and done: until then `fail` holds the parent. */
static void link_node(tok_trie *t, uint32_t at)
{
    tok_trie_node *n = &t->node[at];
    uint32_t parent = n->fail;
    n->fail = parent ? tok_trie_step(t, t->node[parent].fail, n->byte) : 0;
    const tok_trie_node *f = &t->node[n->fail];
    n->out = f->value != TOK_NONE ? n->fail : f->out;
}

bool tok_trie_build(tok_trie *t, bool backwards)
{
    range *ranges = NULL;
    size_t ranges_cap = 0;
    bool ok = tok_grow(&t->node, &t->node_cap, 2, sizeof *t->node) && tok_grow(&ranges, &ranges_cap, 2, sizeof *ranges);
    if (t->n)
        qsort(t->entry, t->n, sizeof *t->entry, backwards ? compare_backwards : compare);
    if (ok) {
        t->node[0] = (tok_trie_node){.value = TOK_NONE};
        ranges[0] = (range){0, (uint32_t)t->n};
        t->n_nodes = 1;
    }
    for (uint32_t i = 0; ok && i < t->n_nodes; i++)
        ok = expand(t, i, &ranges, &ranges_cap, backwards);
    if (ok) {
        t->node[t->n_nodes] = (tok_trie_node){.child = t->n_nodes}; /* ends the children of the last one */
        for (uint32_t i = t->node[0].child; i < t->node[1].child; i++)
            t->first[t->node[i].byte] = i;
        for (uint32_t i = 1; i < t->n_nodes; i++)
            link_node(t, i);
    }
    free(ranges);
    free(t->entry);
    t->entry = NULL;
    t->entry_cap = 0;
    return ok;
}

void tok_trie_clear(tok_trie *t)
{
    free(t->entry);
    free(t->node);
    *t = (tok_trie){0};
}

uint32_t tok_trie_step(const tok_trie *t, uint32_t state, unsigned char byte)
{
    for (; state; state = t->node[state].fail) {
        uint32_t lo = t->node[state].child, end = t->node[state + 1].child, hi = end;
        while (lo < hi) {
            uint32_t mid = lo + (hi - lo) / 2;
            if (t->node[mid].byte < byte)
                lo = mid + 1;
            else
                hi = mid;
        }
        if (lo < end && t->node[lo].byte == byte)
            return lo;
    }
    return t->first[byte];
}
