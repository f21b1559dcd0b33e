/* test_stop.c - stop strings: nothing of them leaks, and the result does not depend on how the text was cut. */
#include <criterion/criterion.h>
#include <string.h>

#include "engine/text/stop.h"

/* The definition, over the whole text: the match that ends first, the longest of those. */
static int reference(const char *text, const char *const *stops, uint32_t n, size_t *ret_cut)
{
    for (size_t end = 1; end <= strlen(text); end++) {
        int best = -1;
        size_t len = 0;
        for (uint32_t i = 0; i < n; i++) {
            size_t k = strlen(stops[i]);
            if (k <= end && k > len && strncmp(text + end - k, stops[i], k) == 0) {
                best = (int)i;
                len = k;
            }
        }
        if (best >= 0) {
            *ret_cut = end - len;
            return best;
        }
    }
    *ret_cut = strlen(text);
    return -1;
}

static uint32_t next(uint64_t *s)
{
    *s = *s * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*s >> 33);
}

Test(stop, any_cut_of_the_text_gives_the_text_before_the_first_stop)
{
    uint64_t seed = 3;
    for (int round = 0; round < 20000; round++) {
        char text[40], words[3][6];
        const char *stops[3];
        uint32_t n_text = next(&seed) % 39, n_stops = 1 + next(&seed) % 3;
        for (uint32_t i = 0; i < n_text; i++)
            text[i] = (char)('a' + next(&seed) % 2);
        text[n_text] = 0;
        for (uint32_t i = 0; i < n_stops; i++) {
            uint32_t n = 1 + next(&seed) % 5;
            for (uint32_t j = 0; j < n; j++)
                words[i][j] = (char)('a' + next(&seed) % 2 + (next(&seed) % 8 == 0));
            words[i][n] = 0;
            stops[i] = words[i];
        }
        size_t cut;
        int want = reference(text, stops, n_stops, &cut), got = -1;
        stop_matcher m;
        xd_buf out = {0};
        stop_init(&m, stops, n_stops, false);
        for (uint32_t at = 0; at < n_text && got < 0;) {
            uint32_t n = 1 + next(&seed) % 4;
            n = n > n_text - at ? n_text - at : n;
            got = stop_feed(&m, text + at, n, true, &out);
            cr_assert_leq(out.len, cut, "leaked past the stop");
            at += n;
        }
        if (got < 0)
            stop_flush(&m, &out);
        cr_assert_eq(got, want);
        cr_assert_eq(out.len, cut);
        cr_assert(cut == 0 || memcmp(out.data, text, cut) == 0);
        stop_clear(&m);
        xd_buf_free(&out);
    }
}

Test(stop, the_stop_string_is_given_out_when_asked_for)
{
    const char *const stops[] = {"END"};
    stop_matcher m;
    xd_buf out = {0};
    stop_init(&m, stops, 1, true);
    cr_assert_eq(stop_feed(&m, "one E", 5, true, &out), -1);
    cr_assert_str_eq(out.data, "one ");
    cr_assert_eq(stop_feed(&m, "ND two", 6, true, &out), 0);
    cr_assert_str_eq(out.data, "one END");
    stop_clear(&m);
    xd_buf_free(&out);
}

Test(stop, text_before_min_tokens_is_not_searched)
{
    const char *const stops[] = {"a"};
    stop_matcher m;
    xd_buf out = {0};
    stop_init(&m, stops, 1, false);
    cr_assert_eq(stop_feed(&m, "banana", 6, false, &out), -1);
    cr_assert_eq(stop_feed(&m, "xa", 2, true, &out), 0);
    cr_assert_str_eq(out.data, "bananax");
    stop_clear(&m);
    xd_buf_free(&out);
}
