/* tok_norm.c - normalizers: what a tokenizer file does to text before it is cut into pieces.
 *
 * Every step writes its result through emit(), which also carries the trust of the source bytes along: a byte of the result
 * is trusted when all the bytes that it stands for are. Unicode normalization is utf8proc's; stretches that can not change
 * are copied, so that plain text costs a scan. */
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "engine/text/tok_priv.h"

void tok_text_free(tok_text *t)
{
    xd_buf_free(&t->s);
    xd_buf_free(&t->trust);
}

void tok_norm_clear(tok_norm *n)
{
    tok_regex_free(n->re);
    tok_charsmap_free(n->map);
    free(n->text);
    *n = (tok_norm){0};
}

/* Appends bytes that stand for in[a..b). */
static void emit(tok_text *out, const tok_text *in, size_t a, size_t b, const char *bytes, size_t n)
{
    if (n > out->max_bytes - XD_MIN(out->s.len, out->max_bytes)) {
        out->too_large = true;
        return;
    }
    xd_buf_append(&out->s, bytes, n);
    if (!in->track_trust)
        return;
    char trusted = 1;
    for (size_t i = a; i < b; i++)
        trusted &= in->trust.data[i];
    for (size_t i = 0; i < n; i++)
        xd_buf_putc(&out->trust, trusted);
}

static void copy(tok_text *out, const tok_text *in, size_t a, size_t b)
{
    xd_buf_append(&out->s, in->s.data + a, b - a);
    if (in->track_trust)
        xd_buf_append(&out->trust, in->trust.data + a, b - a);
}

static int normalize_options(tok_norm_kind kind)
{
    switch (kind) {
    case TOK_NORM_NFC: return UTF8PROC_COMPOSE;
    case TOK_NORM_NFD: return UTF8PROC_DECOMPOSE;
    case TOK_NORM_NFKC: return UTF8PROC_COMPOSE | UTF8PROC_COMPAT;
    default: return UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT;
    }
}

/* The reference normalizes with Unicode 9 tables: combining classes, compositions and compatibility mappings of characters
 * that came later do not exist for it. */
static bool is_newer_than_reference(uint32_t cp)
{
    static const uint32_t ranges[][2] = {
        {0x7FD, 0x7FD},     {0x898, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},     {0xC3C, 0xC3C},
        {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x1715, 0x1715},   {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},
        {0x32FF, 0x32FF},   {0xA7F2, 0xA7F4},   {0xA82C, 0xA82C},   {0xAB69, 0xAB69},   {0x10781, 0x107BA},
        {0x10D24, 0x10D27}, {0x10EAB, 0x10EAC}, {0x10EFD, 0x10EFF}, {0x10F46, 0x10F50}, {0x10F82, 0x10F85},
        {0x11070, 0x11070}, {0x1133B, 0x1133B}, {0x1145E, 0x1145E}, {0x11839, 0x1183A}, {0x11930, 0x11930},
        {0x11935, 0x11938}, {0x1193D, 0x1193E}, {0x11943, 0x11943}, {0x119E0, 0x119E0}, {0x11A34, 0x11A34},
        {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42}, {0x11D44, 0x11D45}, {0x11D97, 0x11D97},
        {0x11F41, 0x11F42}, {0x16FF0, 0x16FF1}, {0x1E030, 0x1E06D}, {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136},
        {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF}, {0x1F16C, 0x1F16C}, {0x1FBF0, 0x1FBF9},
    };
    return tok_cp_in(ranges, XD_ARRAY_LEN(ranges), cp);
}

/* A character that this normalization neither changes nor joins to what stands before it. Below U+0300 that is so for NFC,
 * and for ASCII always. */
static bool is_stable(uint32_t cp, tok_norm_kind kind)
{
    if (cp < 0x80 || (kind == TOK_NORM_NFC && cp < 0x300))
        return true;
    if (cp == 0x11A7) /* one before the first final consonant: utf8proc 2.8 swallows it after a syllable */
        return true;
    if (cp >= 0x1100 && cp <= 0x11FF) /* Hangul letters compose */
        return false;
    if (cp >= 0xAC00 && cp <= 0xD7A3)
        return kind == TOK_NORM_NFC || kind == TOK_NORM_NFKC;
    if (is_newer_than_reference(cp))
        return true;
    const utf8proc_property_t *p = utf8proc_get_property((utf8proc_int32_t)cp);
    return p->combining_class == 0 && p->decomp_seqindex == UINT16_MAX &&
           (p->comb_index == UINT16_MAX || p->comb_index < 0x8000);
}

/* A character of a stretch under way, and what canonical ordering sorts by. */
typedef struct mark {
    uint32_t cp, at;
    uint8_t ccc;
} mark;
typedef struct marks {
    mark *data;
    size_t cap;
    utf8proc_int32_t *cp;
    size_t n, cp_cap;
    xd_buf utf8;
} marks;

static uint8_t combining_class(uint32_t cp)
{
    return is_newer_than_reference(cp) ? 0 : (uint8_t)utf8proc_get_property((utf8proc_int32_t)cp)->combining_class;
}

static int by_class(const void *pa, const void *pb)
{
    const mark *a = pa, *b = pb;
    return a->ccc != b->ccc ? (a->ccc < b->ccc ? -1 : 1) : a->at < b->at ? -1 : a->at > b->at;
}

/* Sorts each run of marks by class, keeping the order of equals. Not left to utf8proc, whose sort is quadratic: a text of
 * nothing but marks would take minutes. */
static bool order_marks(marks *m)
{
    for (size_t i = 0, end; i < m->n; i = end) {
        bool sorted = true;
        uint8_t last = 0;
        for (end = i; end < m->n; end++) {
            uint8_t ccc = combining_class((uint32_t)m->cp[end]);
            if (!ccc)
                break;
            sorted = sorted && ccc >= last;
            last = ccc;
        }
        size_t n = end - i;
        if (!sorted) {
            if (!tok_grow(&m->data, &m->cap, n, sizeof *m->data))
                return false;
            for (size_t k = 0; k < n; k++)
                m->data[k] = (mark){(uint32_t)m->cp[i + k], (uint32_t)k, combining_class((uint32_t)m->cp[i + k])};
            qsort(m->data, n, sizeof *m->data, by_class);
            for (size_t k = 0; k < n; k++)
                m->cp[i + k] = (utf8proc_int32_t)m->data[k].cp;
        }
        end += n == 0;
    }
    return true;
}

/* Normalizes s[0..len) into m->utf8. */
static bool normalize_stretch(marks *m, tok_norm_kind kind, const char *s, size_t len)
{
    int options = UTF8PROC_STABLE | normalize_options(kind);
    m->n = 0;
    xd_buf_clear(&m->utf8);
    for (size_t i = 0, n; i < len; i += n) {
        uint32_t cp = tok_cp(s + i, &n);
        utf8proc_ssize_t got;
        if (is_newer_than_reference(cp)) {
            if (!tok_grow(&m->cp, &m->cp_cap, m->n + 1, sizeof *m->cp))
                return false;
            m->cp[m->n++] = (utf8proc_int32_t)cp;
            continue;
        }
        for (;;) {
            int boundclass = 0;
            got = utf8proc_decompose_char((utf8proc_int32_t)cp, m->cp + m->n, (utf8proc_ssize_t)(m->cp_cap - m->n),
                                          (utf8proc_option_t)(options & ~UTF8PROC_COMPOSE) | UTF8PROC_DECOMPOSE,
                                          &boundclass);
            if (got < 0)
                return false;
            if ((size_t)got <= m->cp_cap - m->n)
                break;
            if (!tok_grow(&m->cp, &m->cp_cap, m->n + (size_t)got, sizeof *m->cp))
                return false;
        }
        m->n += (size_t)got;
    }
    if (!order_marks(m))
        return false;
    if (options & UTF8PROC_COMPOSE) {
        utf8proc_ssize_t got = utf8proc_normalize_utf32(m->cp, (utf8proc_ssize_t)m->n, (utf8proc_option_t)options);
        if (got < 0)
            return false;
        m->n = (size_t)got;
    }
    for (size_t i = 0; i < m->n; i++) {
        char c[4];
        xd_buf_append(&m->utf8, c, tok_cp_put((uint32_t)m->cp[i], c));
    }
    return !m->utf8.failed;
}

static xd_status unicode_normalize(tok_norm_kind kind, const tok_text *in, tok_text *out, xd_err *err)
{
    const char *s = in->s.data;
    size_t n = in->s.len, i = 0, done = 0, last = 0; /* `last`: start of the last stable character */
    marks m = {0};
    bool ok = tok_grow(&m.cp, &m.cp_cap, 64, sizeof *m.cp);
    while (ok && i < n) {
        size_t len;
        if (is_stable(tok_cp(s + i, &len), kind)) {
            last = i;
            i += len;
            continue;
        }
        size_t a = i > done ? XD_MAX(last, done) : i, b = i;
        while (b < n && !is_stable(tok_cp(s + b, &len), kind))
            b += len;
        copy(out, in, done, a);
        ok = normalize_stretch(&m, kind, s + a, b - a);
        if (ok)
            emit(out, in, a, b, m.utf8.data ? m.utf8.data : "", m.utf8.len);
        done = i = b;
        last = b;
    }
    copy(out, in, done, n);
    free(m.data);
    free(m.cp);
    xd_buf_free(&m.utf8);
    return ok ? XD_OK : xd_fail(err, XD_NOMEM, 0, "normalizing text");
}

/* Marks of Unicode 8, as the reference has them; utf8proc's are newer. */
static bool is_combining_mark(uint32_t cp)
{
    static const uint32_t newer[][2] = {
        {0x7FD, 0x7FD},     {0x898, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},     {0xAFA, 0xAFF},
        {0xB55, 0xB55},     {0xC04, 0xC04},     {0xC3C, 0xC3C},     {0xCF3, 0xCF3},     {0xD00, 0xD00},
        {0xD3B, 0xD3C},     {0xD81, 0xD81},     {0xEBA, 0xEBA},     {0xECE, 0xECE},     {0x1715, 0x1715},
        {0x180F, 0x180F},   {0x1ABF, 0x1ACE},   {0x1CF7, 0x1CF7},   {0x1DF6, 0x1DFA},   {0xA82C, 0xA82C},
        {0xA8FF, 0xA8FF},   {0x10D24, 0x10D27}, {0x10EAB, 0x10EAC}, {0x10EFD, 0x10EFF}, {0x10F46, 0x10F50},
        {0x10F82, 0x10F85}, {0x11070, 0x11070}, {0x11073, 0x11074}, {0x110C2, 0x110C2}, {0x11145, 0x11146},
        {0x111C9, 0x111C9}, {0x111CE, 0x111CF}, {0x11241, 0x11241}, {0x1133B, 0x1133B}, {0x1145E, 0x1145E},
        {0x1182C, 0x1183A}, {0x11930, 0x11935}, {0x11937, 0x11938}, {0x1193B, 0x1193E}, {0x11940, 0x11940},
        {0x11942, 0x11943}, {0x119D1, 0x119D7}, {0x119DA, 0x119E0}, {0x119E4, 0x119E4}, {0x11A01, 0x11A0A},
        {0x11A33, 0x11A39}, {0x11A3B, 0x11A3E}, {0x11A47, 0x11A47}, {0x11A51, 0x11A5B}, {0x11A8A, 0x11A99},
        {0x11D31, 0x11D36}, {0x11D3A, 0x11D3A}, {0x11D3C, 0x11D3D}, {0x11D3F, 0x11D45}, {0x11D47, 0x11D47},
        {0x11D8A, 0x11D8E}, {0x11D90, 0x11D91}, {0x11D93, 0x11D97}, {0x11EF3, 0x11EF6}, {0x11F00, 0x11F01},
        {0x11F03, 0x11F03}, {0x11F34, 0x11F3A}, {0x11F3E, 0x11F42}, {0x13440, 0x13440}, {0x13447, 0x13455},
        {0x16F4F, 0x16F4F}, {0x16F7F, 0x16F87}, {0x16FE4, 0x16FE4}, {0x16FF0, 0x16FF1}, {0x1CF00, 0x1CF2D},
        {0x1CF30, 0x1CF46}, {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF},
        {0x1E4EC, 0x1E4EF}};
    if (cp == 0x1CF2 || cp == 0x1CF3)
        return true;
    if (tok_cp_in(newer, XD_ARRAY_LEN(newer), cp))
        return false;
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return c == UTF8PROC_CATEGORY_MN || c == UTF8PROC_CATEGORY_MC || c == UTF8PROC_CATEGORY_ME;
}

/* Nmt's table: TOK_NONE drops the character. */
static uint32_t nmt_map(uint32_t cp)
{
    if ((cp >= 1 && cp <= 8) || cp == 0xB || (cp >= 0xE && cp <= 0x1F) || cp == 0x7F || cp == 0x8F || cp == 0x9F)
        return TOK_NONE;
    if (cp == 9 || cp == 0xA || cp == 0xC || cp == 0xD || cp == 0x1680 || (cp >= 0x200B && cp <= 0x200F) ||
        cp == 0x2028 || cp == 0x2029 || cp == 0x2581 || cp == 0xFEFF || cp == 0xFFFD)
        return ' ';
    return cp;
}

/* Lower case of Unicode 17. */
static uint32_t lower(uint32_t cp)
{
    static const uint32_t newer[][2] = {{0x1C89, 0x1C8A}, {0xA7CB, 0x264},  {0xA7CC, 0xA7CD}, {0xA7CE, 0xA7CF},
                                        {0xA7D2, 0xA7D3}, {0xA7D4, 0xA7D5}, {0xA7DA, 0xA7DB}, {0xA7DC, 0x19B}};
    if (cp >= 0x10D50 && cp <= 0x10D65)
        return cp + 0x20;
    if (cp >= 0x16EA0 && cp <= 0x16EB8)
        return cp + 0x1B;
    for (size_t i = 0; cp >= 0x1C89 && cp <= 0xA7DC && i < XD_ARRAY_LEN(newer); i++)
        if (newer[i][0] == cp)
            return newer[i][1];
    return (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp);
}

/* The steps that map each character on its own. */
static void map_chars(tok_norm_kind kind, const tok_text *in, tok_text *out)
{
    const char *s = in->s.data;
    for (size_t i = 0, len; i < in->s.len; i += len) {
        uint32_t cp = tok_cp(s + i, &len), to = cp;
        if (kind == TOK_NORM_LOWERCASE)
            to = lower(cp);
        else if (kind == TOK_NORM_STRIP_ACCENTS)
            to = is_combining_mark(cp) ? TOK_NONE : cp;
        else
            to = nmt_map(cp);
        if (to == TOK_NONE) {
            if (i == 0)
                out->at_start = false;
        } else if (kind == TOK_NORM_LOWERCASE && cp == 0x130) { /* the only character whose lower case is two */
            emit(out, in, i, i + len, "i\xCC\x87", 3);
        } else if (to == cp) {
            copy(out, in, i, i + len);
        } else {
            char c[4];
            emit(out, in, i, i + len, c, tok_cp_put(to, c));
        }
    }
}

static void strip(const tok_norm *step, const tok_text *in, tok_text *out)
{
    const char *s = in->s.data;
    size_t a = 0, b = in->s.len, len;
    while (step->left && a < b && tok_cp_is_space(tok_cp(s + a, &len)))
        a += len;
    while (step->right && b > a) {
        size_t p = b - 1;
        while (p > a && ((unsigned char)s[p] & 0xC0) == 0x80)
            p--;
        if (!tok_cp_is_space(tok_cp(s + p, &len)))
            break;
        b = p;
    }
    if (a)
        out->at_start = false;
    copy(out, in, a, b);
}

static xd_status replace(const tok_norm *step, tok_regex_run **run, tok_work_left *left, const tok_text *in,
                         tok_text *out, xd_err *err)
{
    tok_spans spans = {0};
    xd_status st = tok_regex_find(step->re, run, left, in->s.data, in->s.len, &spans, err);
    for (size_t i = 0; !st && i < spans.n; i++) {
        tok_span m = spans.data[i];
        if (!m.match) {
            copy(out, in, m.start, m.end);
            continue;
        }
        size_t len = 0;
        if (m.start < in->s.len)
            tok_cp(in->s.data + m.start, &len);
        /* what replaces several characters stands where the last of them stood */
        if (m.start == 0 && m.end > 0 && (!step->text_len || m.end > len))
            out->at_start = false;
        emit(out, in, m.start, m.end, step->text, step->text_len);
    }
    free(spans.data);
    return st;
}

/* Grapheme by grapheme, then character by character, as the reference does with SentencePiece's table. */
static void precompiled(const tok_charsmap *map, const tok_text *in, tok_text *out)
{
    const char *s = in->s.data;
    size_t n = in->s.len, i = 0, len, rlen;
    while (i < n) {
        size_t b = i;
        utf8proc_int32_t state = 0;
        uint32_t prev = tok_cp(s + i, &len);
        for (b = i + len; b < n; b += len) {
            uint32_t cp = tok_cp(s + b, &len);
            if (utf8proc_grapheme_break_stateful((utf8proc_int32_t)prev, (utf8proc_int32_t)cp, &state))
                break;
            prev = cp;
        }
        const char *r = b - i < 6 ? tok_charsmap_get(map, s + i, b - i, &rlen) : NULL;
        if (r) {
            emit(out, in, i, b, r, rlen);
            i = b;
        }
        for (; i < b; i += len) {
            tok_cp(s + i, &len);
            if ((r = tok_charsmap_get(map, s + i, len, &rlen)))
                emit(out, in, i, i + len, r, rlen);
            else
                copy(out, in, i, i + len);
        }
    }
}

static void byte_level(const tok_text *in, tok_text *out)
{
    for (size_t i = 0; i < in->s.len; i++) {
        char c[4];
        emit(out, in, i, i + 1, c, tok_cp_put(tok_byte_to_cp((unsigned char)in->s.data[i]), c));
    }
}

static bool is_ascii(const xd_buf *s)
{
    for (size_t i = 0; i < s->len; i++)
        if ((unsigned char)s->data[i] >= 0x80)
            return false;
    return true;
}

xd_status tok_norm_run(const tok_norm *steps, size_t n, tok_regex_run **run, tok_work_left *left, tok_text *t,
                       tok_text *tmp, xd_err *err)
{
    for (size_t i = 0; i < n && t->s.len; i++) {
        const tok_norm *step = &steps[i];
        if (!tok_spend(left, 16 + t->s.len / 4))
            return tok_too_long(err, "the normalizer");
        if (step->kind <= TOK_NORM_NFKD && is_ascii(&t->s))
            continue;
        xd_buf_clear(&tmp->s);
        xd_buf_clear(&tmp->trust);
        tmp->max_bytes = t->max_bytes;
        tmp->too_large = false;
        tmp->track_trust = t->track_trust;
        tmp->at_start = t->at_start;
        xd_status st = XD_OK;
        switch (step->kind) {
        case TOK_NORM_NFC:
        case TOK_NORM_NFD:
        case TOK_NORM_NFKC:
        case TOK_NORM_NFKD: st = unicode_normalize(step->kind, t, tmp, err); break;
        case TOK_NORM_LOWERCASE:
        case TOK_NORM_STRIP_ACCENTS:
        case TOK_NORM_NMT: map_chars(step->kind, t, tmp); break;
        case TOK_NORM_STRIP: strip(step, t, tmp); break;
        case TOK_NORM_REPLACE: st = replace(step, run, left, t, tmp, err); break;
        case TOK_NORM_PREPEND:
            emit(tmp, t, 0, 1, step->text, step->text_len);
            copy(tmp, t, 0, t->s.len);
            break;
        case TOK_NORM_BYTE_LEVEL: byte_level(t, tmp); break;
        case TOK_NORM_PRECOMPILED: precompiled(step->map, t, tmp); break;
        }
        if (!st && (tmp->s.failed || tmp->trust.failed))
            st = xd_fail(err, XD_NOMEM, 0, "normalizing text");
        if (!st && (tmp->too_large || tmp->s.len > t->max_bytes))
            st = xd_fail(err, XD_TOO_LARGE, 0, "the normalized text has more than %zu bytes", t->max_bytes);
        if (!st && !tok_spend(left, (step->kind <= TOK_NORM_NFKD ? 6 : 1) * (t->s.len + tmp->s.len)))
            st = tok_too_long(err, "the normalizer");
        if (st)
            return st;
        tok_text swap = *t;
        *t = *tmp;
        *tmp = swap;
    }
    return XD_OK;
}
