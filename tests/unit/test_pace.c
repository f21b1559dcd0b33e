/* test_pace.c - the length of prompt pieces beside decoding sequences, on machines that are given by two numbers. */
#include <criterion/criterion.h>

#include "engine/schedule/pace.h"

/* A machine on which a step takes fixed + each * tokens, and a prompt that never ends. Returns the last step's time in ms. */
static double settle(double seed_ms, double fixed_ms, double each_us, uint32_t first, uint32_t stall_ms, uint32_t most,
                     uint32_t *ret_n)
{
    pace p;
    pace_init(&p, seed_ms * 1e6);
    uint32_t n = first;
    double ms = 0;
    for (int i = 0; i < 30; i++) {
        ms = fixed_ms + each_us * 1e-3 * n;
        pace_note(&p, n, (uint64_t)(ms * 1e6));
        uint32_t limit = pace_limit(&p, stall_ms);
        n = limit && limit < most ? limit : most;
    }
    *ret_n = n;
    return ms;
}

Test(pace, a_step_takes_about_what_was_asked_where_it_can)
{
    uint32_t n;
    double ms = settle(0, 20, 100, 512, 500, 16384, &n);
    cr_assert(ms > 480 && ms < 520, "%.0f ms with %u tokens", ms, n);
    ms = settle(0, 200, 100, 2048, 500, 16384, &n);
    cr_assert(ms > 480 && ms < 520, "%.0f ms with %u tokens", ms, n);
}

Test(pace, where_reading_the_experts_takes_longer_pieces_do_not_shrink)
{
    uint32_t n;
    double ms = settle(600, 600, 50, 2048, 500, 16384, &n);
    cr_assert(ms > 1100 && ms < 1300, "%.0f ms with %u tokens", ms, n);
    /* Nothing known beforehand, and a first piece that tells nothing of the slope. */
    ms = settle(0, 600, 50, 64, 500, 16384, &n);
    cr_assert(ms > 1000 && ms < 1300, "%.0f ms with %u tokens", ms, n);
}

Test(pace, noise_and_equal_pieces_leave_it_sane)
{
    pace p;
    pace_init(&p, 0);
    cr_assert_eq(pace_limit(&p, 500), 0, "nothing is known");
    for (int i = 0; i < 1000; i++)
        pace_note(&p, 256, 300000000 + (uint64_t)(i % 7) * 1000000);
    uint32_t n = pace_limit(&p, 500);
    cr_assert(n >= 256 && n <= 1024, "%u", n);
    cr_assert_eq(pace_limit(&p, 0), 0, "no limit was asked for");
    /* Longer pieces were quicker: a slope below nothing is none. */
    pace_init(&p, 0);
    pace_note(&p, 100, 900000000);
    pace_note(&p, 1000, 100000000);
    n = pace_limit(&p, 500);
    cr_assert(n >= 16 && n <= 4000, "%u", n);
    cr_assert_geq(pace_fixed_ns(&p), 0.0);
}

Test(pace, it_follows_a_change)
{
    pace p;
    pace_init(&p, 600e6);
    for (int i = 0; i < 20; i++)
        pace_note(&p, 4096 + 100 * (i % 3), 800000000);
    cr_assert(pace_fixed_ns(&p) > 100e6);
    for (int i = 0; i < 60; i++)
        pace_note(&p, 1000 + 1000 * (i % 3), (uint64_t)(1000 + 1000 * (i % 3)) * 100000);
    cr_assert(pace_fixed_ns(&p) < 20e6, "%.0f", pace_fixed_ns(&p));
    uint32_t n = pace_limit(&p, 500);
    cr_assert(n > 4500 && n < 5300, "%u", n);
}
