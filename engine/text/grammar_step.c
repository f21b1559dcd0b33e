/* grammar_step.c - one byte further.
 *
 * A thread is a stack of frames: the value that is being written on top of the objects and arrays that hold it. Where the next value may
 * be one of several, there are several threads. A frame whose child is under way already stands where it will be once the child is
 * done, so that a child's end is nothing but a step down. Between parts of JSON at most one space, or one line end and an indent, may
 * stand: a model that likes blanks cannot write them for ever. None stands before the first: a stop string of a line end would leave nothing.
 *
 * Whether a child may begin depends on how deep it would be and how many frames it needs (node.height), so that no thread is ever led
 * where it could not end. */
#include <string.h>

#include "engine/text/grammar_priv.h"
#include "engine/text/tok_priv.h"

/* frame.state: the phase, and above it what the phase needs. */
enum {
    PHASE_BITS = 0xFF,
    INDENT_PER_LEVEL = 4,
    WORK_OF_DIGIT = 7,        /* divisions of 128 bits */
    MAX_CALLS_OF_BYTE = 20000 /* of networks, on each other's beginnings */
};
typedef enum phase {
    P_OPEN,
    /* ROOT */
    P_OVER,
    /* ARRAY (a: items, b: where they are unique, a bit for each that was there) and OBJECT (a: index of the next property, b: properties so far) */
    P_FIRST, /* after the opening bracket */
    P_NEXT,  /* after a comma */
    P_AFTER, /* after a value */
    P_NAME,  /* within a property's own name; above: bytes of it */
    P_OTHER, /* within another name; a: the letter it has come to, 0: it is none of them; above: UTF-8 */
    P_COLON,
    P_VALUE, /* before a property's value */
    /* STRING (a: characters, b: of a pattern: state | bits of a character << 32; of an escape: its value) */
    P_BODY, /* above: UTF-8 */
    P_ESCAPE,
    P_HEX,       /* above: digits so far */
    P_LOW_SLASH, /* the second half of a surrogate pair */
    P_LOW_U,
    P_LOW_HEX,
} phase;

/* Within the phases that allow blanks: none yet, a space, or a line end and n spaces (BLANK_LINE + n). */
enum { BLANK_SHIFT = 8, BLANK_SPACE = 1, BLANK_LINE = 2 };
/* A character of several bytes: bytes to come, and the limits of the next one. */
enum { UTF8_LEFT_SHIFT = 8, UTF8_LO_SHIFT = 16, UTF8_HI_SHIFT = 24 };

void gram_stack_free(gram_stack *s)
{
    free(s->frame);
    free(s->thread);
    *s = (gram_stack){0};
}

static uint32_t add_frame(gram_stack *s, const gram_frame *f)
{
    if (!tok_grow(&s->frame, &s->frame_cap, s->n_frames + 1, sizeof *s->frame)) {
        s->failed = true;
        return 0;
    }
    s->frame[s->n_frames] = *f;
    return (uint32_t)s->n_frames++;
}

static void add_thread(gram_stack *s, uint32_t top)
{
    if (!top || !tok_grow(&s->thread, &s->thread_cap, s->n_threads + 1, sizeof *s->thread))
        s->failed = true;
    else
        s->thread[s->n_threads++] = top;
}

bool gram_start(const grammar *g, gram_stack *s)
{
    s->n_frames = s->n_threads = 0;
    s->most = GRAM_MAX_THREADS;
    gram_frame none = {0}, root = {.depth = 1};
    add_frame(s, &none);
    const gram_node *n = &g->node[g->node[0].rest];
    if (n->kind != GRAM_NET && n->kind != GRAM_LITERALS) {
        add_thread(s, add_frame(s, &root));
    } else { /* it may be over before it begins: it has already been called */
        root.state = P_OVER;
        gram_frame text = {.node = g->node[0].rest, .depth = 2, .parent = add_frame(s, &root)};
        text.a = n->kind == GRAM_LITERALS ? n->first : 0;
        add_thread(s, add_frame(s, &text));
    }
    return !s->failed;
}

static bool same(gram_stack *s, uint32_t x, uint32_t y)
{
    while (x != y) {
        s->work++;
        const gram_frame *p = &s->frame[x], *q = &s->frame[y];
        if (!x || !y || p->node != q->node || p->state != q->state || p->depth != q->depth || p->a != q->a ||
            p->b != q->b)
            return false;
        x = p->parent;
        y = q->parent;
    }
    return true;
}

typedef struct stepper {
    const grammar *g;
    gram_stack *s;
    size_t out; /* where the threads of this step begin */
    uint32_t calls;
    unsigned char byte;
} stepper;

static bool is_full(const stepper *p)
{
    return p->s->n_threads - p->out >= p->s->most;
}

/* Threads differ until what differs has ended: only then can two have become one. */
static void emit_parent(stepper *p, uint32_t top)
{
    for (size_t i = p->out; i < p->s->n_threads; i++)
        if (same(p->s, p->s->thread[i], top))
            return;
    if (!is_full(p))
        add_thread(p->s, top);
}

static void emit(stepper *p, const gram_frame *f, bool was_parent)
{
    if (is_full(p))
        return;
    uint32_t top = add_frame(p->s, f);
    if (was_parent && top)
        emit_parent(p, top);
    else
        add_thread(p->s, top);
}

static bool fits(const grammar *g, uint32_t node, uint32_t depth)
{
    return node != GRAM_NONE && g->node[node].height <= GRAM_MAX_DEPTH - depth;
}

static void step_thread(stepper *p, uint32_t top);

/* Begins `node` on top of `parent`, which stands where it will be after it, and gives it the byte. */
static void begin(stepper *p, const gram_frame *parent, uint32_t node)
{
    size_t frames = p->s->n_frames, threads = p->s->n_threads;
    const gram_node *n = &p->g->node[node];
    const uint8_t kind = gram_begins(p->byte);
    if (!(n->begins & kind))
        return;
    gram_frame child = {.parent = add_frame(p->s, parent), .depth = parent->depth + 1};
    if (!child.parent)
        return;
    uint32_t n_leaves = n->kind == GRAM_ALT ? n->n : 1;
    for (uint32_t i = 0; i < n_leaves && !is_full(p); i++) {
        size_t mark = p->s->n_frames, had = p->s->n_threads;
        child.node = n->kind == GRAM_ALT ? p->g->kid[n->first + i] : node;
        if (!(p->g->node[child.node].begins & kind) || !fits(p->g, child.node, parent->depth))
            continue;
        child.a = p->g->node[child.node].kind == GRAM_LITERALS ? p->g->node[child.node].first : 0;
        uint32_t at = add_frame(p->s, &child);
        if (at)
            step_thread(p, at);
        if (p->s->n_threads == had)
            p->s->n_frames = mark;
    }
    if (p->s->n_threads == threads)
        p->s->n_frames = frames;
}

/* A blank that may stand here; the frame goes on in the same phase. */
static bool take_blank(stepper *p, const gram_frame *f, bool was_parent)
{
    gram_frame next = *f;
    uint32_t blank = f->state >> BLANK_SHIFT;
    if (p->byte == '\n' && !blank && (f->state & PHASE_BITS) != P_VALUE) /* no line ends after a colon */
        blank = BLANK_LINE;
    else if (p->byte == ' ' && !blank)
        blank = BLANK_SPACE;
    else if (p->byte == ' ' && blank >= BLANK_LINE && blank - BLANK_LINE < INDENT_PER_LEVEL * (f->depth - 1))
        blank++;
    else
        return false;
    next.state = (f->state & PHASE_BITS) | blank << BLANK_SHIFT;
    emit(p, &next, was_parent);
    return true;
}

/* ---- strings ---- */

/* The state bits of a character that begins with this byte; 0: none does. */
static uint32_t utf8_begin(unsigned char b)
{
    uint32_t left = b >= 0xC2 && b <= 0xDF ? 1 : b >= 0xE0 && b <= 0xEF ? 2 : b >= 0xF0 && b <= 0xF4 ? 3 : 0;
    uint32_t lo = b == 0xE0 ? 0xA0 : b == 0xF0 ? 0x90 : 0x80, hi = b == 0xED ? 0x9F : b == 0xF4 ? 0x8F : 0xBF;
    return left ? left << UTF8_LEFT_SHIFT | lo << UTF8_LO_SHIFT | hi << UTF8_HI_SHIFT : 0;
}

/* One byte of a character in progress. False: it does not belong there. */
static bool utf8_next(uint32_t *state, unsigned char b)
{
    uint32_t left = *state >> UTF8_LEFT_SHIFT & 0xFF;
    if (b < (*state >> UTF8_LO_SHIFT & 0xFF) || b > *state >> UTF8_HI_SHIFT)
        return false;
    *state &= PHASE_BITS;
    if (left > 1)
        *state |= (left - 1) << UTF8_LEFT_SHIFT | 0x80u << UTF8_LO_SHIFT | 0xBFu << UTF8_HI_SHIFT;
    return true;
}

/* Characters are counted only as far as the count matters: states that are the same share their masks. */
static void count_char(const gram_node *n, gram_frame *f)
{
    if (n->max != GRAM_INF || f->a < n->min)
        f->a++;
}

/* The bits of a character with one byte more, of which `left` are to come, and the characters that it may still be. */
static uint64_t add_bits(uint64_t bits, unsigned char byte, uint32_t left, uint32_t *lo, uint32_t *hi)
{
    if (byte < 0x80)
        bits = byte;
    else if (byte < 0xC0)
        bits = bits << 6 | (byte & 0x3F);
    else
        bits = byte & (0x3Fu >> left);
    *lo = (uint32_t)bits << 6 * left;
    *hi = *lo + ((1u << 6 * left) - 1);
    if (left == 2 && byte == 0xE0) /* shorter forms and surrogates are no characters */
        *lo = 0x800;
    if (left == 3 && byte == 0xF0)
        *lo = 0x10000;
    if (left == 2 && byte == 0xED)
        *hi = 0xD7FF;
    return bits;
}

/* A raw byte of a character goes through the pattern too. */
static bool pattern_takes(const gram_dfa *d, gram_frame *f, unsigned char byte, uint32_t left)
{
    uint32_t state = (uint32_t)f->b, lo, hi;
    uint64_t bits = add_bits(f->b >> 32, byte, left, &lo, &hi);
    uint32_t to = gram_dfa_go(d, state, lo, hi);
    if (to == GRAM_NONE)
        return false;
    f->b = left ? bits << 32 | state : to;
    return true;
}

static bool take_raw(const grammar *g, const gram_node *n, gram_frame *f, unsigned char byte)
{
    if (f->state >> UTF8_LEFT_SHIFT) {
        if (!utf8_next(&f->state, byte))
            return false;
    } else {
        if (f->a >= n->max || byte < 0x20 || byte == '"' || byte == '\\')
            return false;
        uint32_t bits = byte < 0x80 ? 0 : utf8_begin(byte);
        if (byte >= 0x80 && !bits)
            return false;
        f->state |= bits;
    }
    uint32_t left = f->state >> UTF8_LEFT_SHIFT & 0xFF;
    if (n->dfa != GRAM_NONE && !pattern_takes(&g->dfa[n->dfa], f, byte, left))
        return false;
    if (!left)
        count_char(n, f);
    return true;
}

static bool take_escape(const grammar *g, const gram_node *n, gram_frame *f, unsigned char byte)
{
    static const char letters[] = "\"\\/bfnrt", means[] = "\"\\/\b\f\n\r\t";
    const char *at = byte ? strchr(letters, byte) : NULL;
    f->state = P_BODY;
    if (at && n->dfa != GRAM_NONE) {
        uint32_t c = (unsigned char)means[at - letters], to = gram_dfa_go(&g->dfa[n->dfa], (uint32_t)f->b, c, c);
        if (to == GRAM_NONE)
            return false;
        f->b = to;
    }
    if (at) {
        count_char(n, f);
        return true;
    }
    f->state = P_HEX;
    return byte == 'u' && n->dfa == GRAM_NONE;
}

/* A backslash must have something to come that the pattern takes. */
static bool may_escape(const grammar *g, const gram_node *n, const gram_frame *f)
{
    if (f->a >= n->max)
        return false;
    if (n->dfa == GRAM_NONE)
        return true;
    for (const char *c = "\"\\/\b\f\n\r\t"; *c; c++)
        if (gram_dfa_go(&g->dfa[n->dfa], (uint32_t)f->b, (unsigned char)*c, (unsigned char)*c) != GRAM_NONE)
            return true;
    return false;
}

/* \uXXXX: no NUL, which many readers refuse, and surrogates only in pairs. */
static bool take_hex(const gram_node *n, gram_frame *f, unsigned char byte)
{
    phase ph = f->state & PHASE_BITS;
    uint32_t digits = f->state >> 8;
    uint64_t v = 16;
    if (byte >= '0' && byte <= '9')
        v = byte - '0';
    else if ((byte >= 'a' && byte <= 'f') || (byte >= 'A' && byte <= 'F'))
        v = (byte | 32u) - 'a' + 10;
    if (v == 16)
        return false;
    f->b = f->b << 4 | v;
    digits++;
    if (ph == P_LOW_HEX && ((digits == 1 && v != 0xD) || (digits == 2 && v < 0xC)))
        return false;
    if (ph == P_HEX && ((digits == 2 && f->b >= 0xDC && f->b <= 0xDF) || (digits == 4 && !f->b)))
        return false;
    f->state = ph | digits << 8;
    if (digits < 4)
        return true;
    bool high = ph == P_HEX && f->b >= 0xD800 && f->b <= 0xDBFF;
    f->state = high ? P_LOW_SLASH : P_BODY;
    f->b = 0;
    if (!high)
        count_char(n, f);
    return true;
}

static void step_string(stepper *p, const gram_frame *f, const gram_node *n)
{
    gram_frame next = *f;
    bool ok = false;
    switch ((phase)(f->state & PHASE_BITS)) {
    case P_OPEN:
        ok = p->byte == '"';
        next.state = P_BODY;
        break;
    case P_BODY:
        if (p->byte == '"' && f->state == P_BODY) {
            if (f->a >= n->min && (n->dfa == GRAM_NONE || p->g->dfa[n->dfa].end[(uint32_t)f->b]))
                emit_parent(p, f->parent);
            return;
        }
        if (p->byte == '\\' && f->state == P_BODY) {
            ok = may_escape(p->g, n, f);
            next.state = P_ESCAPE;
        } else {
            ok = take_raw(p->g, n, &next, p->byte);
        }
        break;
    case P_ESCAPE: ok = take_escape(p->g, n, &next, p->byte); break;
    case P_LOW_SLASH:
        ok = p->byte == '\\';
        next.state = P_LOW_U;
        break;
    case P_LOW_U:
        ok = p->byte == 'u';
        next.state = P_LOW_HEX;
        break;
    default: ok = take_hex(n, &next, p->byte); break;
    }
    if (ok)
        emit(p, &next, false);
}

/* ---- arrays ---- */

static uint32_t item_node(const grammar *g, const gram_node *n, uint64_t index)
{
    return index < n->n ? g->kid[n->first + index] : n->rest;
}

static bool may_item(stepper *p, const gram_frame *f, const gram_node *n)
{
    return f->a < n->max && fits(p->g, item_node(p->g, n, n->unique ? 0 : f->a), f->depth);
}

static void step_array(stepper *p, const gram_frame *f, const gram_node *n, bool was_parent)
{
    gram_frame next = *f;
    phase ph = f->state & PHASE_BITS;
    if (ph == P_OPEN) {
        next.state = P_FIRST;
        if (p->byte == '[')
            emit(p, &next, false);
    } else if (p->byte == ']' && ph != P_NEXT) {
        if (f->a >= n->min)
            emit_parent(p, f->parent);
    } else if (p->byte == ',' && ph == P_AFTER) {
        next.state = P_NEXT;
        if (f->state == P_AFTER && may_item(p, f, n))
            emit(p, &next, was_parent);
    } else if (p->byte == ' ' || p->byte == '\n') {
        /* Where neither an item nor the end may follow there is no blank either. */
        if (ph == P_NEXT || f->a >= n->min || (ph == P_FIRST && may_item(p, f, n)))
            take_blank(p, f, was_parent);
    } else if (ph != P_AFTER && may_item(p, f, n)) {
        next.state = P_AFTER;
        if (f->a < XD_MAX(n->n, n->min) || n->max != GRAM_INF)
            next.a++;
        if (!n->unique)
            begin(p, &next, item_node(p->g, n, f->a));
        for (uint32_t i = 0; i < n->n && n->unique; i++) {
            next.b = f->b | (uint64_t)1 << i;
            if (next.b != f->b)
                begin(p, &next, p->g->kid[n->first + i]);
        }
    }
}

/* ---- objects ---- */

static bool counts(const gram_node *n)
{
    return n->min > 0 || n->max != GRAM_INF;
}

/* May property i be the next one, all before it being left out? */
static bool may_property(const grammar *g, const gram_frame *f, const gram_node *n, uint64_t i)
{
    const gram_prop *prop = &g->prop[n->first];
    uint64_t later = i + 1 < n->n ? prop[i + 1].required_from : 0, left = n->n - i - 1;
    return f->b + 1 + later <= n->max && (n->rest != GRAM_NONE || f->b + 1 + left >= n->min) &&
           fits(g, prop[i].node, f->depth);
}

static bool has_required(const grammar *g, const gram_frame *f, const gram_node *n)
{
    return f->a < n->n && g->prop[n->first + f->a].required_from;
}

static bool may_other(const grammar *g, const gram_frame *f, const gram_node *n)
{
    return n->rest != GRAM_NONE && !has_required(g, f, n) && f->b < n->max && fits(g, n->rest, f->depth);
}

static bool may_close(const grammar *g, const gram_frame *f, const gram_node *n)
{
    return !has_required(g, f, n) && f->b >= n->min;
}

static bool may_name(const grammar *g, const gram_frame *f, const gram_node *n)
{
    for (uint64_t i = f->a; i < n->n; i++) {
        if (may_property(g, f, n, i))
            return true;
        if (g->prop[n->first + i].required)
            return false;
    }
    return may_other(g, f, n);
}

/* A quote has come: every name that may stand here begins. */
static void begin_names(stepper *p, const gram_frame *f, const gram_node *n)
{
    gram_frame next = *f;
    for (uint64_t i = f->a; i < n->n; i++) {
        next.a = i;
        next.state = P_NAME | 1u << 8;
        if (may_property(p->g, f, n, i))
            emit(p, &next, false);
        if (p->g->prop[n->first + i].required)
            return;
    }
    if (!may_other(p->g, f, n))
        return;
    if (n->name) { /* a text like others, behind its quote; then the object goes on */
        next.a = n->n;
        next.state = P_COLON;
        gram_frame text = {.node = n->name, .state = P_BODY, .depth = f->depth + 1, .parent = add_frame(p->s, &next)};
        if (text.parent)
            emit(p, &text, false);
        return;
    }
    next.a = n->names;
    next.state = P_OTHER;
    emit(p, &next, false);
}

static uint32_t letter_at(const grammar *g, uint32_t parent, unsigned char byte)
{
    uint32_t i = parent ? g->letter[parent].child : 0;
    while (i && g->letter[i].byte != byte)
        i = g->letter[i].next;
    return i;
}

/* Other names are without escapes, so that none can be one of the object's own in disguise. */
static void step_other_name(stepper *p, const gram_frame *f, const gram_node *n)
{
    gram_frame next = *f;
    if (f->state >> UTF8_LEFT_SHIFT) {
        if (!utf8_next(&next.state, p->byte))
            return;
    } else if (p->byte == '"') {
        if (f->a && p->g->letter[f->a].end)
            return;
        next.a = n->n;
        next.state = P_COLON;
        emit(p, &next, false);
        return;
    } else if (p->byte >= 0x80) {
        uint32_t bits = utf8_begin(p->byte);
        if (!bits)
            return;
        next.state |= bits;
    } else if (p->byte < 0x20 || p->byte == '\\') {
        return;
    }
    next.a = letter_at(p->g, (uint32_t)f->a, p->byte);
    emit(p, &next, false);
}

static void step_object(stepper *p, const gram_frame *f, const gram_node *n, bool was_parent)
{
    const grammar *g = p->g;
    gram_frame next = *f;
    phase ph = f->state & PHASE_BITS;
    switch (ph) {
    case P_OPEN:
        next.state = P_FIRST;
        if (p->byte == '{')
            emit(p, &next, false);
        break;
    case P_FIRST:
    case P_NEXT:
    case P_AFTER:
        if (p->byte == '}' && ph != P_NEXT) {
            if (may_close(g, f, n))
                emit_parent(p, f->parent);
        } else if (p->byte == ',') {
            next.state = P_NEXT;
            if (f->state == P_AFTER && may_name(g, f, n))
                emit(p, &next, was_parent);
        } else if (p->byte == '"' && ph != P_AFTER) {
            begin_names(p, f, n);
        } else if (ph == P_NEXT || may_close(g, f, n) || (ph == P_FIRST && may_name(g, f, n))) {
            take_blank(p, f, was_parent);
        }
        break;
    case P_NAME: {
        const gram_prop *prop = &g->prop[n->first + f->a];
        uint32_t at = f->state >> 8;
        if ((unsigned char)g->text.data[prop->key + at] != p->byte)
            break;
        next.state = at + 1 < prop->key_len ? P_NAME | (at + 1) << 8 : P_VALUE;
        emit(p, &next, false);
        break;
    }
    case P_OTHER: step_other_name(p, f, n); break;
    case P_COLON:
        next.state = P_VALUE;
        if (p->byte == ':')
            emit(p, &next, false);
        break;
    default: /* P_VALUE */
        if (take_blank(p, f, false))
            break;
        next.state = P_AFTER;
        next.a = XD_MIN(f->a + 1, n->n);
        next.b += counts(n);
        begin(p, &next, f->a < n->n ? g->prop[n->first + f->a].node : n->rest);
    }
}

/* ---- networks ---- */

static bool net_fits(const gram_net *n, uint32_t state, uint32_t depth)
{
    return depth <= GRAM_MAX_CALLS && n->height[state] <= GRAM_MAX_CALLS - depth;
}

/* The state to which some character of [lo, hi] leads and which can be brought to an end at this depth. */
static uint32_t net_go(const gram_dfa *d, const gram_net *n, const gram_frame *f, uint32_t lo, uint32_t hi)
{
    uint32_t to = gram_dfa_go(d, (uint32_t)f->b, lo, hi);
    if (to == GRAM_NONE || net_fits(n, to, f->depth))
        return to;
    for (uint32_t e = d->first[(uint32_t)f->b]; e < d->first[(uint32_t)f->b + 1]; e++)
        if (d->edge[e].lo <= hi && d->edge[e].hi >= lo && net_fits(n, d->edge[e].to, f->depth))
            return d->edge[e].to;
    return GRAM_NONE;
}

static bool net_takes(const gram_dfa *d, const gram_net *n, gram_frame *f, unsigned char byte)
{
    uint32_t lo, hi, to;
    if (f->state) {
        if (!utf8_next(&f->state, byte))
            return false;
    } else if (byte >= 0x80 && !(f->state = utf8_begin(byte))) {
        return false;
    }
    uint32_t left = f->state >> UTF8_LEFT_SHIFT & 0xFF;
    uint64_t bits = add_bits(f->b >> 32, byte, left, &lo, &hi);
    to = net_go(d, n, f, lo, hi);
    f->b = left ? bits << 32 | (uint32_t)f->b : to;
    return to != GRAM_NONE;
}

static void net_step(stepper *p, const gram_frame *f);

/* The byte, in the networks that may be called where f is. They begin with each other without a ring, or the grammar would have been refused. */
static void net_calls(stepper *p, const gram_frame *f)
{
    const grammar *g = p->g;
    const gram_node *n = &g->node[f->node];
    const gram_dfa *d = &g->dfa[n->dfa];
    const gram_net *net = &g->net[n->dfa];
    const uint32_t at = (uint32_t)f->b;
    for (uint32_t e = d->first[at + 1]; e-- > d->first[at] && d->edge[e].lo >= GRAM_CALL;) {
        const uint32_t to = d->edge[e].to;
        const bool last = d->end[to] && d->first[to] == d->first[to + 1]; /* nothing to come back for */
        for (uint32_t c = d->edge[e].lo - GRAM_CALL; c <= d->edge[e].hi - GRAM_CALL; c++) {
            gram_frame child = {.node = 1 + c, .parent = f->parent, .depth = f->depth + !last};
            if (!gram_net_begins(&g->net[c], p->byte) || !net_fits(&g->net[c], 0, child.depth) ||
                !net_fits(net, to, f->depth))
                continue;
            if (is_full(p) || p->calls >= MAX_CALLS_OF_BYTE)
                return;
            p->calls++;
            p->s->work++;
            const size_t frames = p->s->n_frames, threads = p->s->n_threads;
            if (!last) {
                gram_frame back = *f;
                back.b = to;
                child.parent = add_frame(p->s, &back);
            }
            if (p->s->failed)
                return;
            net_step(p, &child);
            if (p->s->n_threads == threads)
                p->s->n_frames = frames;
        }
    }
}

/* The byte, for a text that has come to f, which goes on there or calls. */
static void net_step(stepper *p, const gram_frame *f)
{
    const gram_node *n = &p->g->node[f->node];
    gram_frame next = *f;
    if (net_takes(&p->g->dfa[n->dfa], &p->g->net[n->dfa], &next, p->byte))
        emit(p, &next, true);
    if (!f->state)
        net_calls(p, f);
}

static bool net_may_end(const grammar *g, const gram_frame *f)
{
    return !f->state && g->dfa[g->node[f->node].dfa].end[(uint32_t)f->b];
}

/* ---- all ---- */

/* was_parent: what stood on it has ended. */
static void step_from(stepper *p, uint32_t top, bool was_parent)
{
    p->s->work++;
    for (;; was_parent = true) {
        const gram_frame f = p->s->frame[top]; /* a copy: the array moves */
        const gram_node *n = &p->g->node[f.node];
        gram_frame next = f;
        switch (n->kind) {
        case GRAM_ROOT:
            if (f.state == P_OVER)
                return;
            next.state = P_OVER;
            begin(p, &next, n->rest);
            return;
        case GRAM_STRING: step_string(p, &f, n); return;
        case GRAM_ARRAY: step_array(p, &f, n, was_parent); return;
        case GRAM_OBJECT: step_object(p, &f, n, was_parent); return;
        case GRAM_NUMBER:
            p->s->work += WORK_OF_DIGIT;
            if (gram_number_step(&p->g->number[n->rest], &next, p->byte)) {
                emit(p, &next, false);
                return;
            }
            if (!gram_number_may_end(&p->g->number[n->rest], &f))
                return;
            break;
        case GRAM_LITERALS:
            next.a = letter_at(p->g, (uint32_t)f.a, p->byte);
            if (next.a && p->g->letter[next.a].end && !p->g->letter[next.a].child) {
                emit_parent(p, f.parent);
                return;
            }
            if (next.a) {
                emit(p, &next, false);
                return;
            }
            if (!p->g->letter[f.a].end)
                return;
            break;
        case GRAM_NET:
            p->s->work++;
            net_step(p, &f);
            if (is_full(p) || !net_may_end(p->g, &f))
                return;
            break;
        case GRAM_ALT: return;
        }
        top = f.parent; /* the value was whole: the byte belongs to what holds it */
    }
}

static void step_thread(stepper *p, uint32_t top)
{
    step_from(p, top, false);
}

void gram_step_beside(const grammar *g, gram_stack *s, const gram_frame *f, size_t from, size_t to, unsigned char byte)
{
    stepper p = {.g = g, .s = s, .out = s->n_threads, .byte = byte};
    if (f) {
        net_calls(&p, f);
        if (net_may_end(g, f) && !is_full(&p))
            step_from(&p, f->parent, true);
    }
    for (size_t i = from; i < to && !s->failed && !is_full(&p); i++)
        step_thread(&p, s->thread[i]);
}

void gram_step(const grammar *g, gram_stack *s, size_t from, size_t to, unsigned char byte)
{
    gram_step_beside(g, s, NULL, from, to, byte);
}

bool gram_may_end(const grammar *g, const gram_stack *s, uint32_t thread)
{
    for (uint32_t top = thread;; top = s->frame[top].parent) {
        const gram_frame *f = &s->frame[top];
        const gram_node *n = &g->node[f->node];
        if (n->kind == GRAM_ROOT)
            return f->state == P_OVER;
        if (n->kind == GRAM_NET      ? !net_may_end(g, f)
            : n->kind == GRAM_NUMBER ? !gram_number_may_end(&g->number[n->rest], f)
                                     : n->kind != GRAM_LITERALS || !g->letter[f->a].end)
            return false;
    }
}

uint64_t gram_free_chars(const grammar *g, const gram_stack *s, uint32_t thread)
{
    const gram_frame *f = &s->frame[thread];
    const gram_node *n = &g->node[f->node];
    if (n->kind == GRAM_STRING && f->state == P_BODY && n->dfa != GRAM_NONE)
        return g->dfa[n->dfa].free[(uint32_t)f->b];
    if (n->kind == GRAM_NET) {
        bool room = !f->state && f->depth + g->net[n->dfa].most <= GRAM_MAX_CALLS; /* wherever it goes */
        return room ? g->dfa[n->dfa].free[(uint32_t)f->b] : 0;
    }
    if (n->kind == GRAM_STRING && f->state == P_BODY)
        return n->max == GRAM_INF ? GRAM_INF : n->max - f->a;
    return n->kind == GRAM_OBJECT && f->state == P_OTHER ? GRAM_INF : 0;
}

const gram_dfa *gram_pattern_at(const grammar *g, const gram_stack *s, uint32_t thread, uint32_t *ret_state)
{
    const gram_frame *f = &s->frame[thread];
    const gram_node *n = &g->node[f->node];
    *ret_state = (uint32_t)f->b;
    if (n->kind == GRAM_NET) /* where it has room for whatever comes */
        return !f->state && f->depth + g->net[n->dfa].most <= GRAM_MAX_CALLS ? &g->dfa[n->dfa] : NULL;
    return n->kind == GRAM_STRING && f->state == P_BODY && n->dfa != GRAM_NONE ? &g->dfa[n->dfa] : NULL;
}

bool grammar_may_begin(const grammar *g, const char *text, size_t len)
{
    gram_stack s = {.most = GRAM_MAX_THREADS};
    bool ret = gram_start(g, &s);
    size_t from = 0, to = s.n_threads;
    for (size_t i = 0; ret && i < len && to > from && !s.failed; i++) {
        gram_step(g, &s, from, to, (unsigned char)text[i]);
        from = to;
        to = s.n_threads;
    }
    ret = !ret || s.failed || to > from;
    gram_stack_free(&s);
    return ret;
}
