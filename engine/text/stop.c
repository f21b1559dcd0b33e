/* stop.c - a direct search: stop strings are few and short, pieces a few bytes, so that every end position is compared with every
 * stop. Works on bytes; pieces and stops are whole UTF-8 characters, hence so is every cut. */
#include "engine/text/stop.h"

#include <string.h>

void stop_init(stop_matcher *m, const char *const *stops, uint32_t n_stops, bool include)
{
    *m = (stop_matcher){.stops = stops, .n_stops = n_stops, .include = include};
}

void stop_clear(stop_matcher *m)
{
    xd_buf_free(&m->held);
}

static int match_at_end(const stop_matcher *m, const char *text, size_t end, size_t *ret_len)
{
    int best = -1;
    *ret_len = 0;
    for (uint32_t i = 0; i < m->n_stops; i++) {
        size_t n = strlen(m->stops[i]);
        if (n <= end && n > *ret_len && memcmp(text + end - n, m->stops[i], n) == 0) {
            best = (int)i;
            *ret_len = n;
        }
    }
    return best;
}

/* Length of the longest end of text that begins a stop string. */
static size_t possible_prefix(const stop_matcher *m, const char *text, size_t len)
{
    size_t best = 0;
    for (uint32_t i = 0; i < m->n_stops; i++) {
        size_t n = strlen(m->stops[i]);
        for (size_t k = XD_MIN(n - 1, len); k > best; k--) {
            if (memcmp(text + len - k, m->stops[i], k) == 0) {
                best = k;
                break;
            }
        }
    }
    return best;
}

int stop_feed(stop_matcher *m, const char *text, size_t len, bool check, xd_buf *out)
{
    if (!m->n_stops || !check) {
        stop_flush(m, out);
        xd_buf_append(out, text, len);
        return -1;
    }
    size_t old = m->held.len;
    if (!xd_buf_append(&m->held, text, len))
        return -1;
    for (size_t end = old + 1; end <= m->held.len; end++) {
        size_t n;
        int hit = match_at_end(m, m->held.data, end, &n);
        if (hit >= 0) {
            xd_buf_append(out, m->held.data, m->include ? end : end - n);
            xd_buf_clear(&m->held);
            return hit;
        }
    }
    size_t keep = m->held.len ? possible_prefix(m, m->held.data, m->held.len) : 0, sure = m->held.len - keep;
    if (sure) {
        xd_buf_append(out, m->held.data, sure);
        memmove(m->held.data, m->held.data + sure, keep);
        m->held.len = keep;
        m->held.data[keep] = 0;
    }
    return -1;
}

void stop_flush(stop_matcher *m, xd_buf *out)
{
    if (m->held.len)
        xd_buf_append(out, m->held.data, m->held.len);
    xd_buf_clear(&m->held);
}
