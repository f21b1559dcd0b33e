#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "config/config.h"
#include "engine/fallback/controller.h"

/* A script is a list of "from this second on the link gives so much"; samples come every 100 ms. The transitions are written as
 * letters with the second in which they happened. */
typedef struct point {
    double at_s, gbps;
} point;

static controller_options options(void)
{
    return (controller_options){.enabled = true,
                                .healthy_gbps = 50,
                                .min_link_gbps = 20,
                                .min_link_ratio = 0.4,
                                .max_token_latency_ms = 25,
                                .window_ns = 1500000000u,
                                .cooldown_ns = 10000000000u};
}

static void run(controller *c, const point *pts, size_t n, double until_s, double token_ms, char *out, size_t cap)
{
    out[0] = 0;
    for (int i = 0; i * 0.1 < until_s - 1e-9; i++) {
        double t = i * 0.1, g = NAN;
        for (size_t k = 0; k < n && pts[k].at_s <= t + 1e-9; k++)
            g = pts[k].gbps;
        controller_sample s = {
            .now_ns = (uint64_t)((1000 + t) * 1e9 + 0.5), .link_gbps = g, .token_ms = token_ms, .batch = 1};
        controller_change ch;
        if (controller_feed(c, &s, &ch)) {
            cr_assert_gt(strlen(ch.reason), 0);
            snprintf(out + strlen(out), cap - strlen(out), "%s%c%.1f", *out ? " " : "", "DSFR"[ch.to], t);
        }
    }
}

#define SCRIPT(want, until, ...)                                                   \
    do {                                                                           \
        static const point pts_[] = {__VA_ARGS__};                                 \
        controller c_ = {0};                                                       \
        controller_options o_ = options();                                         \
        controller_configure(&c_, &o_);                                            \
        char got_[512];                                                            \
        run(&c_, pts_, sizeof pts_ / sizeof *pts_, until, NAN, got_, sizeof got_); \
        cr_assert_str_eq(got_, want);                                              \
    } while (0)

Test(controller, a_healthy_link_changes_nothing)
{
    SCRIPT("", 100, {0, 50});
    SCRIPT("", 100, {0, 21});
}

Test(controller, a_sudden_drop_falls_back_within_two_seconds_and_recovers_after_the_cooldown)
{
    SCRIPT("S5.0 F6.5", 60, {0, 50}, {5, 3});
    SCRIPT("S5.0 F6.5 R20.0 D30.0", 60, {0, 50}, {5, 3}, {20, 50});
}

Test(controller, a_slow_decline_falls_back_below_the_limit)
{
    SCRIPT("S8.0 F9.5", 60, {0, 50}, {2, 40}, {4, 30}, {6, 22}, {8, 19}, {10, 15});
}

Test(controller, one_bad_sample_only_makes_suspicious)
{
    SCRIPT("S5.0 D6.5", 60, {0, 50}, {5, 1}, {5.1, 50});
}

Test(controller, between_bad_and_good_nothing_moves)
{
    /* 22 GB/s is not bad (limit 20), but not 1.25 times the limit either: the fallback stays. */
    SCRIPT("S5.0 F6.5", 100, {0, 50}, {5, 3}, {20, 22});
}

Test(controller, a_bad_while_in_recovering_starts_the_cooldown_again)
{
    /* Ten of sixteen samples are not most of them. */
    SCRIPT("S5.0 F6.5 R20.0 D36.0", 60, {0, 50}, {5, 3}, {20, 50}, {25, 3}, {26, 50});
    SCRIPT("S5.0 F6.5 R20.0 D32.2", 60, {0, 50}, {5, 3}, {20, 50}, {22, 3}, {22.2, 50});
}

Test(controller, a_relapse_while_recovering_is_seen_within_two_seconds)
{
    SCRIPT("S5.0 F6.5 R20.0 F26.5 R36.5 D40.0", 60, {0, 50}, {5, 3}, {20, 50}, {25, 3}, {30, 50});
    /* Not bad by the limit (20), but less than the way back asks for (25). */
    SCRIPT("S5.0 F6.5 R20.0 F26.5 R36.5 D42.0", 60, {0, 50}, {5, 3}, {20, 50}, {25, 22}, {32, 50});
}

Test(controller, single_bad_samples_while_recovering_are_harmless)
{
    SCRIPT("S5.0 F6.5 R20.0 D30.0", 60, {0, 50}, {5, 3}, {20, 50}, {20.1, 1}, {20.2, 50}, {22, 22}, {22.1, 50}, {25, 3},
           {25.1, 50}, {28, 1}, {28.1, 50});
    /* Whether it is one or the first of many is seen after the window. */
    SCRIPT("S5.0 F6.5 R20.0 D31.4", 60, {0, 50}, {5, 3}, {20, 50}, {29.9, 3}, {30, 50});
    SCRIPT("S5.0 F6.5 R20.0 F31.4", 60, {0, 50}, {5, 3}, {20, 50}, {29.9, 3});
}

Test(controller, after_a_relapse_recovering_is_entered_a_cooldown_later_and_the_way_back_takes_no_longer)
{
    SCRIPT("S5.0 F6.5 R20.0 F22.0 R32.0 D32.5", 60, {0, 50}, {5, 3}, {20, 50}, {20.5, 3}, {22.5, 50});
    /* A good sample of a bad link, then: not every one is told. */
    SCRIPT("S5.0 F6.5 R20.0 F21.6 R32.0 F33.6 R44.0", 45, {0, 50}, {5, 3}, {20, 50}, {20.1, 3}, {22, 50}, {22.1, 3},
           {27, 50}, {27.1, 3}, {32, 50}, {32.1, 3}, {37, 50}, {37.1, 3}, {44, 50}, {44.1, 3});
    /* A bad sample while it waits is harmless, too. */
    SCRIPT("S5.0 F6.5 R20.0 F22.0 R32.0 D32.5", 60, {0, 50}, {5, 3}, {20, 50}, {20.5, 3}, {22.5, 50}, {24, 3},
           {24.1, 50});
}

Test(controller, flapping_falls_back_at_most_once_a_cooldown_and_ever_more_rarely)
{
    static point pts[400];
    for (size_t i = 0; i < 400; i++)
        pts[i] = (point){(double)i * 2, i % 2 ? 3 : 50}; /* two seconds bad, two good */
    controller c = {0};
    controller_options o = options();
    o.cooldown_ns = 1900000000u; /* shorter than a good phase: the worst case */
    controller_configure(&c, &o);
    uint64_t last_ns = 0, n_fallbacks = 0;
    for (int i = 0; i < 8000; i++) {
        controller_sample s = {.now_ns = 1000000000u + (uint64_t)i * 100000000u, .token_ms = NAN};
        s.link_gbps = pts[i / 20].gbps;
        controller_change ch;
        if (controller_feed(&c, &s, &ch) && ch.from == FALLBACK_SUSPECT && ch.to == FALLBACK_FALLBACK) {
            cr_assert(!last_ns || ch.now_ns - last_ns >= o.cooldown_ns);
            last_ns = ch.now_ns;
            n_fallbacks++;
        }
    }
    cr_assert_eq(n_fallbacks, 2, "the doubled cooldown is longer than a good phase: it stays in fallback");
}

Test(controller, slower_machines_are_judged_by_their_own_healthy_rate)
{
    controller_options o = options();
    o.healthy_gbps = 12; /* PCIe 3.0 x16 */
    cr_assert_float_eq(controller_bad_below_gbps(&o), 4.8, 1e-9);
    cr_assert_float_eq(controller_good_above_gbps(&o), 6, 1e-9);
    o.min_link_ratio = 0;
    cr_assert_float_eq(controller_bad_below_gbps(&o), 20, 1e-9);
    o.min_link_gbps = 0;
    cr_assert_float_eq(controller_bad_below_gbps(&o), 0, 1e-9);
}

Test(controller, slow_tokens_count_against_the_usual_time_of_their_batch)
{
    controller c = {0};
    controller_options o = options();
    controller_configure(&c, &o);
    static const point good[] = {{0, 50}};
    char got[256];
    run(&c, good, 1, 10, 30, got, sizeof got);
    cr_assert_str_eq(got, "");
    controller_change ch;
    controller_sample s = {.now_ns = 1020000000000u, .link_gbps = NAN, .token_ms = 200, .batch = 32};
    cr_assert(!controller_feed(&c, &s, &ch), "another batch size has another usual time");
    s.batch = 1;
    cr_assert(controller_feed(&c, &s, &ch));
    cr_assert_eq(ch.to, FALLBACK_SUSPECT);
    s.now_ns += 1600000000u;
    cr_assert(controller_feed(&c, &s, &ch));
    cr_assert_eq(ch.to, FALLBACK_FALLBACK);
}

/* Seen on a busy machine: nothing was measured for longer than the window, and then a token came before the next rate did. */
Test(controller, a_bad_rate_is_confirmed_or_refuted_by_another_rate)
{
    for (int bad = 0; bad < 2; bad++) {
        controller c = {0};
        controller_options o = options();
        controller_configure(&c, &o);
        controller_change ch;
        controller_sample rate = {.now_ns = 1000000000000u, .link_gbps = 5, .token_ms = NAN};
        cr_assert(controller_feed(&c, &rate, &ch));
        cr_assert_eq(ch.to, FALLBACK_SUSPECT);
        controller_sample token = {.now_ns = rate.now_ns, .link_gbps = NAN, .token_ms = 10, .batch = 1};
        for (int i = 0; i < 10; i++) {
            token.now_ns += 2 * o.window_ns;
            cr_assert(!controller_feed(&c, &token, &ch));
        }
        rate.now_ns = token.now_ns;
        rate.link_gbps = bad ? 5 : 50;
        cr_assert(controller_feed(&c, &rate, &ch));
        cr_assert_eq(ch.to, bad ? FALLBACK_FALLBACK : FALLBACK_DIRECT);
    }
}

/* What one slow token in three does, and all of them, while a rate is known every 200 ms. */
static void run_slow(double gbps, int every, char *got, size_t cap)
{
    controller c = {0};
    controller_options o = options();
    controller_configure(&c, &o);
    got[0] = 0;
    for (int i = 0; i < 2000; i++) {
        controller_change ch;
        controller_sample s = {.now_ns = 1000000000000u + (uint64_t)i * 10000000u, .link_gbps = NAN, .batch = 1};
        s.token_ms = i >= 200 && i % every == 0 ? 400 : 10;
        bool wants = controller_wants_rate(&c, &s);
        if (i % 20 == 0 || wants) {
            controller_sample rate = {.now_ns = s.now_ns, .link_gbps = i < 200 ? 50 : gbps, .token_ms = NAN};
            if (controller_feed(&c, &rate, &ch))
                snprintf(got + strlen(got), cap - strlen(got), "%c%d ", "DSFR"[ch.to], i);
        }
        cr_assert(i >= 200 || !wants);
        if (controller_feed(&c, &s, &ch))
            snprintf(got + strlen(got), cap - strlen(got), "%c%d ", "DSFR"[ch.to], i);
    }
}

Test(controller, slow_tokens_of_a_busy_machine_do_not_look_like_a_bad_link)
{
    char got[256];
    run_slow(50, 1, got, sizeof got);
    cr_assert_str_eq(got, "");
    run_slow(50, 3, got, sizeof got);
    cr_assert_str_eq(got, "");
    /* Between the limits (20 and 25 GB/s) the link is no excuse. */
    run_slow(22, 1, got, sizeof got);
    cr_assert_str_eq(got, "S200 F350 ");
}

Test(controller, many_ordinary_tokens_do_not_hide_a_slow_link)
{
    /* A fast model behind a dead link: tokens are no slower than 25 ms over usual, the link is far below its limit. */
    controller c = {0};
    controller_options o = options();
    controller_configure(&c, &o);
    char got[64] = "";
    for (int i = 0; i < 4000; i++) {
        controller_sample s = {.now_ns = (uint64_t)(1000 + i) * 1000000u, .link_gbps = NAN, .token_ms = 3, .batch = 1};
        controller_change ch;
        if (i % 50 == 0) {
            s.link_gbps = i < 1000 ? 50 : 1;
            s.token_ms = NAN;
        }
        if (controller_feed(&c, &s, &ch))
            snprintf(got + strlen(got), sizeof got - strlen(got), "%c%d ", "DSFR"[ch.to], i);
    }
    cr_assert_str_eq(got, "S1000 F2500 ");
}

Test(controller, the_operator_decides)
{
    controller c = {0};
    controller_options o = options();
    controller_change ch;
    controller_sample s = {.now_ns = 1, .link_gbps = 50, .token_ms = NAN};
    o.force = CONF_FORCE_FALLBACK;
    controller_configure(&c, &o);
    cr_assert(controller_feed(&c, &s, &ch) && ch.to == FALLBACK_FALLBACK);
    s.now_ns += 100000000000u;
    cr_assert(!controller_feed(&c, &s, &ch), "a healthy link does not end a forced fallback");
    o.force = CONF_FORCE_DIRECT;
    controller_configure(&c, &o);
    s.link_gbps = 1;
    cr_assert(controller_feed(&c, &s, &ch) && ch.to == FALLBACK_DIRECT);
    cr_assert(!controller_feed(&c, &s, &ch), "nor does a bad one end a forced direct path");
    o.force = CONF_FORCE_NONE;
    controller_configure(&c, &o);
    cr_assert(controller_feed(&c, &s, &ch) && ch.to == FALLBACK_SUSPECT);
    o.enabled = false;
    controller_configure(&c, &o);
    cr_assert(controller_feed(&c, &s, &ch) && ch.to == FALLBACK_DIRECT);
}

/* Beside another user of the link: not bad by the limit (20), far from healthy (50), and the tokens suffer. */
Test(controller, slow_tokens_on_a_half_healthy_link_fall_back_until_it_is_nearly_healthy)
{
    controller c = {0};
    controller_options o = options();
    controller_configure(&c, &o);
    char got[512];
    run(&c, (const point[]){{0, 50}}, 1, 5, 80, got, sizeof got);
    cr_assert_str_eq(got, "");
    uint64_t later_ns = 0;
    for (int i = 0; c.state != FALLBACK_FALLBACK; i++) {
        controller_sample s = {
            .now_ns = (uint64_t)((1010 + i * 0.1) * 1e9), .link_gbps = 28, .token_ms = 120, .batch = 1};
        controller_change ch;
        controller_feed(&c, &s, &ch);
        cr_assert_lt(i, 20, "within two seconds");
        later_ns = s.now_ns;
    }
    const double rates[] = {28, 39, 41};
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++) {
        controller_sample s = {.now_ns = later_ns += 100000000u, .link_gbps = rates[i], .token_ms = NAN};
        controller_change ch;
        cr_assert_eq(controller_feed(&c, &s, &ch), i == 2, "%g GB/s", rates[i]);
    }
    cr_assert_eq(c.state, FALLBACK_RECOVERING);
}

Test(controller, slow_tokens_on_a_nearly_healthy_link_are_not_its_fault)
{
    controller c = {0};
    controller_options o = options();
    controller_configure(&c, &o);
    char got[512];
    run(&c, (const point[]){{0, 50}}, 1, 5, 80, got, sizeof got);
    run(&c, (const point[]){{0, 42}}, 1, 20, 120, got, sizeof got);
    cr_assert_str_eq(got, "");
}

/* Whatever the link does, who reads the log sees each state of the way back at most once a cooldown, and it ends only after as long a
 * time with no more than one bad sample a window. */
Test(controller, any_noise_flaps_at_most_once_a_cooldown)
{
    enum { STEPS = 3000, COOLDOWN = 100, WINDOW = 15 };
    static uint8_t bad[STEPS];
    uint64_t rng = 1, n_direct = 0, n_relapses = 0;
    for (int round = 0; round < 300; round++) {
        controller c = {0};
        controller_options o = options();
        controller_configure(&c, &o);
        int last[4] = {-STEPS, -STEPS, -STEPS, -STEPS}, bad_pct = round % 100, phase = 1 + round * 7 % 200;
        for (int i = 0; i < STEPS; i++) {
            rng = rng * 6364136223846793005u + 1442695040888963407u;
            bad[i] = i < 40 || (i / phase % 2 && (int)((rng >> 33) % 100) < bad_pct);
            controller_sample s = {
                .now_ns = 1000000000000u + (uint64_t)i * 100000000u, .link_gbps = bad[i] ? 3 : 50, .token_ms = NAN};
            controller_change ch;
            if (!controller_feed(&c, &s, &ch) || ch.to == FALLBACK_SUSPECT || ch.from == FALLBACK_SUSPECT)
                continue;
            cr_assert_geq(i - last[ch.to], COOLDOWN, "round %d: %s", round, fallback_state_name(ch.to));
            last[ch.to] = i;
            n_relapses += ch.to == FALLBACK_FALLBACK;
            if (ch.to != FALLBACK_DIRECT)
                continue;
            n_direct++;
            int n_bad = 0;
            for (int k = i - COOLDOWN + 1; k <= i; k++)
                n_bad += bad[k];
            cr_assert_leq(n_bad, (COOLDOWN + WINDOW - 1) / WINDOW, "round %d", round);
        }
    }
    cr_assert_gt(n_direct, 100, "%llu", (unsigned long long)n_direct);
    cr_assert_gt(n_relapses, 100, "%llu", (unsigned long long)n_relapses);
}
