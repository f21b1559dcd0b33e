#include <criterion/criterion.h>
#include <math.h>

#include "engine/fallback/rate.h"

/* A device whose experts take base_ms, and the time of their bytes on a link; the rate that the meter then tells, NAN where it knows
 * none. */
static double after(rate_meter *m, uint32_t steps, double base_ms, double gbytes, double gbps)
{
    double got = NAN;
    for (uint32_t i = 0; i < steps; i++)
        rate_note(m, 50, 4, gbytes * 1e9, base_ms * 1e6 + gbytes / gbps * 1e9);
    rate_take(m, gbytes * 1e9 * steps, &got);
    return got;
}

Test(rate, tells_what_the_kernels_get_once_the_base_is_known)
{
    rate_meter m = {0};
    cr_assert(isnan(after(&m, 10, 4, 1, 50)), "nothing is known yet");
    after(&m, 20, 4, 1, 50);
    cr_assert_float_eq(after(&m, 10, 4, 1, 50), 50, 0.01);
    cr_assert_float_eq(after(&m, 10, 4, 1, 25), 25, 0.01);
    cr_assert_float_eq(after(&m, 10, 4, 0.4, 10), 10, 0.01, "another number of misses");
}

Test(rate, a_link_that_stays_bad_does_not_become_the_usual)
{
    rate_meter m = {0};
    after(&m, 100, 4, 1, 50);
    for (int i = 0; i < 1000; i++)
        cr_assert_float_eq(after(&m, 10, 4, 1, 20), 20, 0.01);
    cr_assert_float_eq(after(&m, 10, 4, 1, 50), 50, 0.01);
}

Test(rate, few_misses_say_nothing_about_the_link)
{
    rate_meter m = {0};
    after(&m, 100, 4, 1, 50);
    cr_assert(isnan(after(&m, 100, 4, 0.05, 50)));
    cr_assert(isnan(after(&m, 100, 4, 0, 50)));
}

Test(rate, a_base_that_grows_with_the_work_is_followed)
{
    rate_meter m = {0};
    after(&m, 100, 4, 1, 50);
    for (double base = 4; base < 12; base += 0.5)
        cr_assert_gt(after(&m, 100, base, 1, 50), 45);
}

Test(rate, batches_have_bases_of_their_own)
{
    rate_meter m = {0};
    double got = 0;
    after(&m, 100, 4, 1, 50);
    for (int i = 0; i < 10; i++)
        rate_note(&m, 50, 64, 1e9, 60e6);
    cr_assert(!rate_take(&m, 10e9, &got));
}

Test(rate, what_is_known_must_be_half_of_what_was_read)
{
    rate_meter m = {0};
    double got = 0;
    rate_note_exact(&m, 1e9, 25e6);
    cr_assert(!rate_take(&m, 3e9, &got));
    rate_note_exact(&m, 1e9, 25e6);
    cr_assert(rate_take(&m, 2e9, &got));
    cr_assert_float_eq(got, 40, 1e-9);
    cr_assert(!rate_take(&m, 0, &got), "and begins anew");
}
