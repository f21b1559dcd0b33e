#include <criterion/criterion.h>

#include "engine/fallback/paths.h"

/* Decodes on the chosen way; what a token takes on each is given. Returns the way after that, counts the steps on each and the news. */
typedef struct drive {
    paths p;
    expert_path now, last_way;
    double ms[N_PATHS];
    uint32_t steps[N_PATHS], news;
    path_verdict last;
} drive;

static void begin(drive *d, bool staged, bool cpu)
{
    d->p.may[PATH_STAGED] = staged;
    d->p.may[PATH_SHARED] = cpu;
    d->now = staged ? PATH_STAGED : PATH_SHARED;
    paths_begin(&d->p, PATH_STAGED);
}

static expert_path go(drive *d, uint32_t steps, uint32_t batch)
{
    for (uint32_t i = 0; i < steps; i++) {
        bool news;
        d->steps[d->now]++;
        paths_note(&d->p, d->now, batch, d->ms[d->now]);
        d->now = paths_next(&d->p, d->now, batch, &news, &d->last);
        d->news += news;
    }
    return d->now;
}

static void was_suspected(drive *d, uint32_t steps, uint32_t batch)
{
    d->p.may[PATH_IN_PLACE] = true;
    d->p.base = PATH_STAGED;
    for (uint32_t i = 0; i < steps; i++)
        paths_note(&d->p, PATH_IN_PLACE, batch, d->ms[PATH_IN_PLACE]);
}

Test(paths, without_the_cpu_staging_stays_unless_it_is_slower_than_in_place)
{
    drive d = {.ms = {50, 54, 0}};
    was_suspected(&d, 6, 1);
    begin(&d, true, false);
    cr_assert_eq(go(&d, 3000, 1), PATH_STAGED, "within ten percent");
    cr_assert_eq(d.news, 0);
    d = (drive){.ms = {50, 56, 0}};
    was_suspected(&d, 6, 1);
    begin(&d, true, false);
    cr_assert_eq(go(&d, 5, 1), PATH_STAGED);
    cr_assert_eq(go(&d, 1, 1), PATH_IN_PLACE);
    cr_assert_eq(d.news, 1);
    cr_assert_eq(d.last.best, PATH_IN_PLACE);
    cr_assert_float_eq(d.last.best_ms, 50, 1e-9);
    cr_assert_float_eq(d.last.other_ms, 56, 1e-9);
    cr_assert_eq(go(&d, 3000, 1), PATH_IN_PLACE, "that is final");
    d = (drive){.ms = {50, 500, 0}};
    was_suspected(&d, 5, 1); /* too few to tell */
    begin(&d, true, false);
    cr_assert_eq(go(&d, 3000, 1), PATH_STAGED);
}

Test(paths, the_quickest_wins)
{
    static const struct {
        double ms[N_PATHS];
        expert_path want;
    } rows[] = {{{90, 60, 30}, PATH_SHARED},   {{90, 30, 60}, PATH_STAGED},    {{20, 60, 30}, PATH_IN_PLACE},
                {{20, 30, 60}, PATH_IN_PLACE}, {{90, 30, 28}, PATH_STAGED},    {{90, 30, 27}, PATH_SHARED},
                {{31, 60, 33}, PATH_SHARED},   {{30, 3000, 33}, PATH_IN_PLACE}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        drive d = {.ms = {rows[i].ms[0], rows[i].ms[1], rows[i].ms[2]}};
        was_suspected(&d, 8, 4);
        begin(&d, true, true);
        cr_assert_eq(go(&d, 40, 4), rows[i].want, "row %zu", i);
    }
}

/* A way that takes forty times as long is seen through after one step, and at most six steps of it are ever run in a trial. */
Test(paths, a_hopeless_trial_is_cut_short)
{
    drive d = {.ms = {0, 10, 400}};
    begin(&d, true, true);
    cr_assert_eq(go(&d, 100, 1), PATH_STAGED);
    cr_assert_eq(d.steps[PATH_SHARED], 1);
    d = (drive){.ms = {0, 10, 12}};
    begin(&d, true, true);
    cr_assert_eq(go(&d, 100, 1), PATH_STAGED);
    cr_assert_eq(d.steps[PATH_SHARED], 6);
    cr_assert_eq(d.news, 1, "the first choice is told, either way");
    cr_assert_eq(d.last.other, PATH_SHARED);
}

Test(paths, the_choice_is_made_anew_now_and_then_with_fresh_times)
{
    drive d = {.ms = {0, 40, 20}};
    begin(&d, true, true);
    cr_assert_eq(go(&d, 100, 1), PATH_SHARED);
    d.ms[PATH_SHARED] = 80; /* somebody else works there now */
    cr_assert_eq(go(&d, 100, 1), PATH_STAGED, "sooner than others");
    cr_assert_eq(d.news, 2);
    cr_assert_float_eq(d.last.other_ms, 80, 1e-9);
    d.ms[PATH_SHARED] = 20;
    cr_assert_eq(go(&d, 1100, 1), PATH_SHARED);
    cr_assert_eq(d.news, 3);
    uint32_t before = d.steps[PATH_STAGED];
    cr_assert_eq(go(&d, 10000, 1), PATH_SHARED);
    cr_assert_eq(d.news, 3, "nothing new");
    cr_assert_leq(d.steps[PATH_STAGED] - before, 60, "trials are rare");
}

Test(paths, each_size_of_the_batch_has_its_own_choice)
{
    drive d = {.ms = {0, 40, 20}};
    begin(&d, true, true);
    cr_assert_eq(go(&d, 50, 1), PATH_SHARED);
    cr_assert_eq(d.last.batch_to, 1);
    d.ms[PATH_SHARED] = 90;
    cr_assert_eq(go(&d, 50, 8), PATH_STAGED);
    cr_assert_eq(d.last.batch_from, 8);
    cr_assert_eq(d.last.batch_to, 15);
    cr_assert_eq(d.news, 2);
    for (int i = 0; i < 100; i++) { /* in turn: the choices stand, and are not told again */
        d.ms[PATH_SHARED] = i % 2 ? 90 : 20;
        cr_assert_eq(go(&d, 1, i % 2 ? 8 : 1), i % 2 ? PATH_STAGED : PATH_SHARED);
    }
    cr_assert_eq(d.news, 2);
}

Test(paths, where_nothing_can_be_staged_the_cpu_is_compared_with_in_place)
{
    drive d = {.ms = {50, 0, 40}};
    was_suspected(&d, 6, 1);
    begin(&d, false, true);
    cr_assert_eq(go(&d, 50, 1), PATH_SHARED);
    d = (drive){.ms = {50, 0, 60}};
    was_suspected(&d, 6, 1);
    begin(&d, false, true);
    cr_assert_eq(go(&d, 50, 1), PATH_IN_PLACE);
}

Test(paths, an_operators_fallback_does_not_read_in_place)
{
    drive d = {.ms = {1, 40, 43}};
    was_suspected(&d, 6, 1);
    begin(&d, true, true);
    d.p.may[PATH_IN_PLACE] = false;
    cr_assert_eq(go(&d, 50, 1), PATH_STAGED);
    cr_assert_eq(d.steps[PATH_SHARED], 6, "what may not be taken says nothing of the others");
}

/* Over a good link: in place or shared. What the first steps of a trial take does not count. */
static expert_path go_direct(drive *d, uint32_t steps, uint32_t batch, double first_ms)
{
    for (uint32_t i = 0; i < steps; i++) {
        bool news;
        bool first = d->now != d->last_way || !i;
        d->last_way = d->now;
        d->steps[d->now]++;
        paths_note(&d->p, d->now, batch, first ? first_ms : d->ms[d->now]);
        d->now = paths_next(&d->p, d->now, batch, &news, &d->last);
        d->news += news;
    }
    return d->now;
}

static void begin_direct(drive *d)
{
    d->p.may[PATH_IN_PLACE] = d->p.may[PATH_SHARED] = true;
    d->now = d->last_way = PATH_IN_PLACE;
    paths_begin(&d->p, PATH_IN_PLACE);
}

Test(paths, over_a_good_link_sharing_is_taken_where_it_is_quicker_and_left_again)
{
    drive d = {.ms = {39, 0, 17}};
    begin_direct(&d);
    cr_assert_eq(go_direct(&d, 40, 1, 90), PATH_SHARED);
    cr_assert_eq(d.news, 1);
    cr_assert_eq(d.last.best, PATH_SHARED);
    cr_assert_float_eq(d.last.best_ms, 17, 1e-9);
    cr_assert_float_eq(d.last.other_ms, 39, 1e-9);
    cr_assert_eq(d.steps[PATH_IN_PLACE], 8);
    d.ms[PATH_SHARED] = 80; /* somebody else works there now */
    cr_assert_eq(go_direct(&d, 1100, 1, 90), PATH_IN_PLACE);
    d.ms[PATH_SHARED] = 17;
    cr_assert_eq(go_direct(&d, 1100, 1, 90), PATH_SHARED);
    cr_assert_eq(d.news, 3);
}

Test(paths, over_a_good_link_a_slow_cpu_costs_little)
{
    drive d = {.ms = {10, 0, 9.5}};
    begin_direct(&d);
    cr_assert_eq(go_direct(&d, 900, 1, 12), PATH_IN_PLACE, "within ten percent");
    cr_assert_eq(d.steps[PATH_SHARED], 8);
    d = (drive){.ms = {10, 0, 400}};
    begin_direct(&d);
    cr_assert_eq(go_direct(&d, 900, 1, 400), PATH_IN_PLACE);
    cr_assert_eq(d.steps[PATH_SHARED], 1, "seen through after one step");
}

/* There may be no memory for it at the moment. */
Test(paths, a_way_that_could_not_be_had_is_asked_for_again)
{
    drive d = {.ms = {39, 0, 17}};
    begin_direct(&d);
    uint32_t asked = 0;
    for (int i = 0; i < 900; i++)
        if (go_direct(&d, 1, 1, 39) == PATH_SHARED) {
            asked++;
            paths_refused(&d.p, PATH_SHARED);
            d.now = PATH_IN_PLACE;
        }
    cr_assert_eq(asked, 1, "not at every step: %u", asked);
    cr_assert_eq(d.steps[PATH_SHARED], 0);
    cr_assert_eq(go_direct(&d, 200, 1, 39), PATH_SHARED);
    cr_assert_eq(d.news, 1);
    /* Nothing was missing for a while, and now the way that had been chosen cannot be had. */
    paths_refused(&d.p, PATH_SHARED);
    d.now = PATH_IN_PLACE;
    cr_assert_eq(go_direct(&d, 900, 1, 39), PATH_IN_PLACE);
    cr_assert_eq(go_direct(&d, 200, 1, 39), PATH_SHARED);
    cr_assert_eq(d.news, 2, "said again");
}

Test(paths, a_fallback_goes_on_with_the_way_that_can_be_had)
{
    drive d = {.ms = {0, 40, 10}};
    begin(&d, true, true);
    cr_assert_eq(go(&d, 12, 1), PATH_SHARED);
    d.ms[PATH_SHARED] = 400;
    while (go(&d, 1, 1) == PATH_SHARED)
        cr_assert_lt(d.steps[PATH_SHARED], 3000);
    paths_refused(&d.p, PATH_STAGED);
    d.now = PATH_SHARED;
    cr_assert_eq(go(&d, 900, 1), PATH_SHARED);
    cr_assert_eq(go(&d, 200, 1), PATH_STAGED);
    paths_refused(&d.p, PATH_SHARED);
    paths_begin(&d.p, PATH_STAGED);
    cr_assert_eq(go(&d, 6, 1), PATH_SHARED, "the next fallback asks anew");
}
