#include <criterion/criterion.h>
#include <string.h>

#include "config/config.h"
#include "engine/memory/policy.h"

/* Two layers of 8 experts, 4 of each in VRAM; the first layer's were used long ago. Returns how many victims in a row are of the
 * first layer before one of the second is taken. */
static unsigned cold_victims(double floor)
{
    const uint32_t counts[] = {8, 8};
    policy_options o = {
        .kind = CONF_EVICT_LRU, .n_layers = 2, .layer_experts = counts, .capacity_units = 8, .layer_floor = floor};
    policy *p = policy_new(&o);
    cr_assert(p);
    for (uint32_t x = 0; x < 4; x++) {
        policy_touch(p, x);
        policy_set_units(p, x, 1);
    }
    for (int i = 0; i < 10; i++)
        policy_advance(p);
    for (uint32_t x = 8; x < 12; x++) {
        policy_touch(p, x);
        policy_set_units(p, x, 1);
    }
    policy_advance(p);
    unsigned n = 0;
    for (uint32_t v; (v = policy_victim(p)) < 8 && n < 8; n++)
        policy_set_units(p, v, 0);
    policy_free(p);
    return n;
}

Test(policy, lru_knows_the_order_after_any_number_of_steps)
{
    const uint32_t counts[] = {2};
    policy_options o = {.kind = CONF_EVICT_LRU, .n_layers = 1, .layer_experts = counts, .capacity_units = 2};
    policy *p = policy_new(&o);
    cr_assert(p);
    for (uint32_t s = 0; s < (1u << 24) + 2; s++) /* a float no longer tells this step from the next */
        policy_advance(p);
    policy_set_units(p, 0, 1), policy_set_units(p, 1, 1);
    policy_touch(p, 1);
    policy_advance(p);
    policy_touch(p, 0);
    policy_advance(p);
    cr_assert_eq(policy_victim(p), 1);
    policy_free(p);
}

Test(policy, a_layer_keeps_its_floor)
{
    cr_assert_eq(cold_victims(0), 4);   /* all that are cold */
    cr_assert_eq(cold_victims(0.5), 2); /* half of 8 units is divided among two layers */
    cr_assert_eq(cold_victims(1), 0);
}

/* One layer of 8 experts; experts 0-3 are used in every step, 4 and 5 in every fourth, 6 and 7 never. */
static policy *busy(int kind, uint32_t steps)
{
    const uint32_t counts[] = {8};
    policy_options o = {.kind = kind, .n_layers = 1, .layer_experts = counts, .capacity_units = 4};
    policy *p = policy_new(&o);
    cr_assert(p);
    for (uint32_t s = 0; s < steps; s++) {
        for (uint32_t x = 0; x < (s % 4 ? 4 : 6); x++)
            policy_touch(p, x);
        policy_advance(p);
    }
    return p;
}

Test(policy, only_what_is_worth_more_than_the_worst_is_let_in)
{
    uint8_t admit[8];
    memset(admit, 1, sizeof admit);
    policy *p = busy(CONF_EVICT_LFU, 400);
    for (uint32_t x = 0; x < 4; x++)
        policy_set_units(p, x, 1);
    cr_assert(policy_plan(p, 0, admit));
    for (uint32_t x = 0; x < 8; x++)
        cr_assert_eq(admit[x] != 0, x < 4, "%u", x); /* residents are completed, the others used too rarely */
    policy_advance(p), policy_advance(p);
    policy_set_units(p, 0, 0), policy_set_units(p, 1, 0);
    policy_set_units(p, 4, 1), policy_set_units(p, 6, 1);
    policy_plan(p, 0, admit);
    cr_assert(admit[0] && admit[1] && admit[4] && admit[5]); /* all better than 6, which is there */
    policy_advance(p), policy_advance(p);
    policy_plan(p, 3, admit); /* three quarters are free */
    for (uint32_t x = 0; x < 8; x++)
        cr_assert(admit[x]);
    policy_free(p);
}

Test(policy, slots_that_are_free_anyway_take_what_is_better_than_the_worst)
{
    /* Of 16 units 14 are taken, and nothing was missed of late. Expert x of 16 is used in 64 - x of 64 steps, 16 in 56, 17 never. */
    const uint32_t counts[] = {18};
    policy_options o = {.kind = CONF_EVICT_LFU, .n_layers = 1, .layer_experts = counts, .capacity_units = 16};
    uint8_t admit[18];
    memset(admit, 1, sizeof admit);
    policy *p = policy_new(&o);
    cr_assert(p);
    for (uint32_t s = 0; s < 6400; s++) {
        for (uint32_t x = 0; x < 16; x++)
            if (s * 37 % 64 >= x)
                policy_touch(p, x);
        if (s * 37 % 64 >= 8)
            policy_touch(p, 16);
        policy_advance(p);
    }
    for (uint32_t x = 0; x < 14; x++)
        policy_set_units(p, x, 1);
    policy_plan(p, 2, admit);
    cr_assert_eq(admit[16], POLICY_IF_FREE); /* not so much better than expert 13 that it should go */
    cr_assert_eq(admit[15], 0);
    cr_assert_eq(admit[17], 0);
    policy_set_units(p, 14, 1), policy_set_units(p, 15, 1);
    policy_advance(p), policy_advance(p);
    policy_plan(p, 0, admit);
    cr_assert_eq(admit[16], 0);
    policy_free(p);
}

/* What is prepared while a step runs knows nothing of that step's uses. They count all the same. */
Test(policy, uses_after_the_list_was_made_ahead_count)
{
    uint8_t admit[8];
    memset(admit, 1, sizeof admit);
    policy *p = busy(CONF_EVICT_LFU, 400);
    for (uint32_t x = 2; x < 8; x++)
        policy_set_units(p, x, 1);
    policy_plan(p, 0, admit);
    policy_advance(p);
    policy_prepare(p);
    policy_touch(p, 6);
    policy_advance(p);
    cr_assert_eq(policy_victim(p), 7); /* 6 came first, but has just been used */
    cr_assert_eq(policy_victim(p), 4);
    policy_free(p);

    /* A newcomer comes in after as many uses as it would without. */
    uint32_t uses[2] = {0};
    for (int ahead = 0; ahead < 2; ahead++) {
        p = busy(CONF_EVICT_LFU, 400);
        memset(admit, 1, sizeof admit);
        for (uint32_t x = 0; x < 4; x++)
            policy_set_units(p, x, 1);
        for (policy_plan(p, 0, admit); admit[6] != POLICY_WORTH_IT; uses[ahead]++) {
            for (uint32_t i = 0; i < 2; i++) { /* a plan holds for two steps */
                if (ahead)
                    policy_prepare(p);
                policy_touch(p, 6);
                policy_advance(p);
            }
            policy_plan(p, 0, admit);
        }
        policy_free(p);
    }
    cr_assert_gt(uses[0], 4);
    cr_assert_eq(uses[0], uses[1]);
}

Test(policy, a_newcomer_that_is_worth_least_is_the_next_victim)
{
    policy *p = busy(CONF_EVICT_LFU, 400);
    for (uint32_t x = 0; x < 3; x++)
        policy_set_units(p, x, 1);
    uint32_t first = policy_victim(p); /* the list is made now */
    cr_assert_lt(first, 3);
    policy_touch(p, 6);
    policy_set_units(p, 6, 1);
    policy_advance(p);
    cr_assert_eq(policy_victim(p), 6);
    policy_free(p);
}

Test(policy, lfru_learns_what_predicts_the_traffic)
{
    /* Experts 0-31 take turns: each is used in 24 steps running, then rests for the others' turns; 32-35 are used in every second
     * step at random, in the long run more than twice as often. After the turn of a group has begun, recency is right about it. */
    const uint32_t counts[] = {64};
    policy_options o = {.kind = CONF_EVICT_LFRU, .n_layers = 1, .layer_experts = counts, .capacity_units = 8};
    policy *p = policy_new(&o);
    cr_assert(p);
    uint32_t rng = 1;
    for (uint32_t s = 0; s < 174 * 24 + 12; s++) {
        for (uint32_t x = 0; x < 4; x++) {
            policy_touch(p, s / 24 % 8 * 4 + x);
            rng = rng * 1664525u + 1013904223u;
            if (rng >> 31)
                policy_touch(p, 32 + x);
        }
        policy_advance(p);
    }
    uint32_t turn = 174 % 8 * 4, last = (turn + 28) % 32; /* in the middle of a turn */
    policy_set_units(p, last, 1), policy_set_units(p, turn, 1), policy_set_units(p, 32, 1);
    cr_assert_eq(policy_victim(p), last);
    policy_set_units(p, last, 0);
    cr_assert_eq(policy_victim(p), 32);
    policy_free(p);
}

Test(policy, the_bar_counts_units_not_experts)
{
    /* Experts 0-7 are resident with 3 units each, expert x being used in x + 1 of 16 steps; 8 in 4 of 16. Four units are wanted: two
     * experts will go for them, and 8 is worth more than these. */
    const uint32_t counts[] = {9};
    policy_options o = {.kind = CONF_EVICT_LFU, .n_layers = 1, .layer_experts = counts, .capacity_units = 96};
    uint8_t admit[9];
    memset(admit, 1, sizeof admit);
    policy *p = policy_new(&o);
    cr_assert(p);
    for (uint32_t s = 0; s < 640; s++) {
        for (uint32_t x = 0; x < 8; x++)
            if (s % 16 <= x)
                policy_touch(p, x);
        if (s % 16 >= 12)
            policy_touch(p, 8);
        policy_missed(p, 3);
        policy_advance(p);
    }
    for (uint32_t x = 0; x < 8; x++)
        policy_set_units(p, x, 3);
    cr_assert_eq(policy_want(p), 4);
    policy_plan(p, 0, admit);
    cr_assert(admit[8]);
    for (int i = 0; i < 60; i++)
        policy_missed(p, 24);
    policy_advance(p), policy_advance(p);
    policy_plan(p, 0, admit); /* six, the most that can be wanted: two go, the third sets the bar */
    cr_assert(admit[8]);
    policy_free(p);
}

/* One of 64 experts drawn evenly, the first ones more often where `some` is small. */
static uint32_t draw(uint64_t *rng, uint32_t some)
{
    *rng = *rng * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(*rng >> 33) % some;
}

Test(policy, when_uses_are_counted_changes_nothing)
{
    static const int kinds[] = {CONF_EVICT_LFRU, CONF_EVICT_LFU, CONF_EVICT_LRU};
    const uint32_t counts[] = {32, 32};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        policy_options o = {.kind = kinds[k], .n_layers = 2, .layer_experts = counts, .capacity_units = 24};
        policy *at_once = policy_new(&o), *later = policy_new(&o);
        cr_assert(at_once && later);
        uint8_t admit[2][64];
        memset(admit, 1, sizeof admit);
        uint64_t rng = 7 + k;
        uint32_t in[64] = {0}, n_in = 0;
        for (uint32_t step = 0; step < 600; step++) {
            for (uint32_t i = 0, some = step % 3 ? 24 : 64; i < 12; i++) {
                uint32_t x = draw(&rng, some);
                policy_touch(at_once, x);
                policy_settle(at_once);
                policy_touch(later, x);
                if (!in[x] && n_in < 24) {
                    policy_set_units(at_once, x, 1), policy_set_units(later, x, 1);
                    in[x] = 1, n_in++;
                }
                cr_assert_eq(policy_heat(at_once, x), policy_heat(later, x));
            }
            policy_advance(at_once), policy_advance(later);
            policy_settle(at_once);
            if (step % 5 == 0) /* as a step that has time */
                policy_settle(later), policy_prepare(later), policy_prepare(at_once);
            for (uint32_t i = 0; i < 3; i++) {
                uint32_t v = policy_victim(at_once);
                cr_assert_eq(v, policy_victim(later), "kind %d, step %u: %u", kinds[k], step, v);
                if (v == POLICY_NONE)
                    break;
                policy_set_units(at_once, v, 0), policy_set_units(later, v, 0);
                in[v] = 0, n_in--;
            }
            cr_assert_eq(policy_plan(at_once, 3, admit[0]), policy_plan(later, 3, admit[1]));
            cr_assert_arr_eq(admit[0], admit[1], sizeof admit[0]);
        }
        policy_free(at_once);
        policy_free(later);
    }
}
