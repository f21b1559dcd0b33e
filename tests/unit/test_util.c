#include <criterion/criterion.h>
#include <string.h>

#include "config/error.h"
#include "config/util.h"

Test(util, replaces_each_ill_formed_subpart_once)
{
    /* Unicode 15, table 3-8: 61 F1 80 80 E1 80 C2 62 80 63 80 BF 64 has six replacements. */
    static const char in[] = "\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64";
    xd_buf out = {0};
    cr_assert(xd_utf8_sanitize(&out, in, sizeof in - 1));
    cr_assert_str_eq(out.data, "a\uFFFD\uFFFD\uFFFDb\uFFFDc\uFFFD\uFFFDd");
    xd_buf_free(&out);
}

Test(util, error_text_is_one_clean_line)
{
    xd_err err;
    cr_assert_eq(xd_fail(&err, XD_IO, 2, "open '%s'", "a\n\x01\xFF"), XD_IO);
    cr_assert_str_eq(err.msg, "open 'a ?\uFFFD': No such file or directory");
    xd_wrap(&err, "loading");
    cr_assert_str_eq(err.msg, "loading: open 'a ?\uFFFD': No such file or directory");
}

Test(util, out_of_memory_is_said_whatever_was_tried)
{
    xd_err err;
    xd_fail(&err, XD_NOMEM, 0, "taking a request");
    cr_assert_str_eq(err.msg, "taking a request: out of memory");
    xd_fail(&err, XD_NOMEM, 0, "the KV cache has no room for this request");
    cr_assert_str_eq(err.msg, "the KV cache has no room for this request");
    xd_fail(&err, XD_NOMEM, 12, "starting a thread");
    cr_assert_str_eq(err.msg, "starting a thread: Cannot allocate memory");
    char longest[2 * sizeof err.msg];
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = 0;
    xd_fail(&err, XD_NOMEM, 0, "%s", longest);
    cr_assert_eq(strlen(err.msg), sizeof err.msg - 1);
}

Test(util, sizes_take_units_and_refuse_nonsense)
{
    uint64_t n;
    cr_assert(xd_parse_bytes("24GiB", &n) && n == 24ull << 30);
    cr_assert(xd_parse_bytes("1.5 GB", &n) && n == 1500000000u);
    cr_assert(xd_parse_bytes("18446744073709551615", &n) && n == UINT64_MAX);
    static const char *const bad[] = {
        "", "-1", "x", "1.", "1 parsec", "18446744073709551616", "17179869184GiB", "99999999999999999999T"};
    for (size_t i = 0; i < XD_ARRAY_LEN(bad); i++)
        cr_assert_not(xd_parse_bytes(bad[i], &n), "%s", bad[i]);
}

Test(util, holds_back_only_incomplete_characters)
{
    cr_assert_eq(xd_utf8_incomplete_tail("a\xF0\x9F\x98", 4), 3);
    cr_assert_eq(xd_utf8_incomplete_tail("a\xF0\x9F\x98\x80", 5), 0);
    cr_assert_eq(xd_utf8_incomplete_tail("a\x80\x80", 3), 0);
    cr_assert_eq(xd_utf8_incomplete_tail("\xC3", 1), 1);
    cr_assert_eq(xd_utf8_incomplete_tail("\xC1", 1), 0);
}
