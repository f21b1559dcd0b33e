/* tok_charsmap.c - SentencePiece's precompiled_charsmap: a double-array trie from byte strings to replacement strings.
 *
 * Layout (all little-endian): trie size in bytes, the trie's 32-bit units, then NUL-terminated replacements. Untrusted:
 * every index is checked at each step. */
#include <stdlib.h>
#include <string.h>

#include "engine/text/tok_priv.h"

struct tok_charsmap {
    uint32_t *unit;
    size_t n_units;
    char *text;
    size_t text_len; /* text[text_len] is NUL */
};

static int base64_value(char c)
{
    static const char set[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *p = c ? strchr(set, c) : NULL;
    return p ? (int)(p - set) : -1;
}

bool tok_base64_decode(const char *s, size_t len, xd_buf *out)
{
    uint32_t acc = 0;
    unsigned bits = 0;
    while (len && s[len - 1] == '=')
        len--;
    for (size_t i = 0; i < len; i++) {
        int v = base64_value(s[i]);
        if (v < 0)
            return false;
        acc = acc << 6 | (uint32_t)v;
        bits += 6;
        if (bits >= 8) {
            bits -= 8;
            xd_buf_putc(out, (char)(acc >> bits));
        }
    }
    return !out->failed;
}

xd_status tok_charsmap_new(const char *base64, size_t len, tok_charsmap **ret, xd_err *err)
{
    xd_buf raw = {0};
    uint32_t size = 0;
    xd_status st = XD_OK;
    tok_charsmap *m = calloc(1, sizeof *m);
    if (!tok_base64_decode(base64, len, &raw) || raw.len < 4)
        st = xd_fail(err, XD_BAD_MODEL, 0, "precompiled_charsmap is not base64 of a character map");
    else
        memcpy(&size, raw.data, 4);
    if (!st && (size % 4 || size > raw.len - 4 || size < 4))
        st = xd_fail(err, XD_BAD_MODEL, 0, "precompiled_charsmap: a trie of %u bytes in %zu", size, raw.len);
    if (!st && m) {
        m->n_units = size / 4;
        m->text_len = raw.len - 4 - size;
        m->unit = malloc(size);
        m->text = malloc(m->text_len + 1);
    }
    if (!st && (!m || !m->unit || !m->text))
        st = xd_fail(err, XD_NOMEM, 0, "precompiled_charsmap");
    if (!st) {
        memcpy(m->unit, raw.data + 4, size);
        memcpy(m->text, raw.data + 4 + size, m->text_len);
        m->text[m->text_len] = 0;
        for (size_t i = 0; i < m->text_len && !st;) {
            int n = xd_utf8_seq(m->text + i, m->text_len - i);
            if (n <= 0)
                st = xd_fail(err, XD_BAD_MODEL, 0, "precompiled_charsmap: a replacement is not UTF-8");
            i += n > 0 ? (size_t)n : 1;
        }
    }
    xd_buf_free(&raw);
    if (st) {
        tok_charsmap_free(m);
        return st;
    }
    *ret = m;
    return XD_OK;
}

void tok_charsmap_free(tok_charsmap *m)
{
    if (!m)
        return;
    free(m->unit);
    free(m->text);
    free(m);
}

static size_t unit_offset(uint32_t u)
{
    return (size_t)(u >> 10) << ((u & (1u << 9)) >> 6);
}

const char *tok_charsmap_get(const tok_charsmap *m, const char *s, size_t len, size_t *ret_len)
{
    size_t pos = unit_offset(m->unit[0]);
    for (size_t i = 0; i < len && s[i]; i++) {
        pos ^= (unsigned char)s[i];
        if (pos >= m->n_units)
            return NULL;
        uint32_t u = m->unit[pos];
        if ((u & ((1u << 31) | 0xFF)) != (unsigned char)s[i])
            return NULL;
        pos ^= unit_offset(u);
        if (!((u >> 8) & 1))
            continue;
        if (pos >= m->n_units) /* the shortest key that matches decides */
            return NULL;
        size_t at = m->unit[pos] & ((1u << 31) - 1);
        if (at >= m->text_len || (at && ((unsigned char)m->text[at] & 0xC0) == 0x80))
            return NULL;
        *ret_len = strlen(m->text + at);
        return m->text + at;
    }
    return NULL;
}
