#include <criterion/criterion.h>

#include "engine/memory/share.h"

enum { MIB = 1 << 20, N = 16 };

static uint32_t divide(double device, double cpu, uint32_t n)
{
    share_item items[N];
    share_costs c = {.ns = {device, cpu}};
    uint32_t k;
    for (uint32_t i = 0; i < n; i++)
        items[i] = (share_item){.expert = i, .tokens = 1, .link_bytes = MIB, .bytes = MIB};
    cr_assert(!share_divide(&c, items, n, &k));
    return k;
}

Test(share, both_sides_take_about_equally_long)
{
    cr_assert_eq(divide(1, 1, 8), 4);
    cr_assert_eq(divide(1, 1, 9), 4, "five and four take as long as four and five");
    cr_assert_eq(divide(3, 1, 8), 2);
    cr_assert_eq(divide(1, 3, 8), 6);
    cr_assert_eq(divide(1000, 1, 8), 0, "a bad link");
    cr_assert_eq(divide(1, 1000, 8), 8, "a slow CPU");
    cr_assert_eq(divide(1, 7, 8), 7);
    cr_assert_eq(divide(2, 1, 1), 0);
    cr_assert_eq(divide(1, 2, 1), 1);
    cr_assert_eq(divide(1, 1, 0), 0);
}

Test(share, what_pays_most_on_the_device_goes_there)
{
    share_item items[] = {{.expert = 0, .tokens = 1, .link_bytes = MIB, .bytes = MIB},
                          {.expert = 1, .tokens = 3, .link_bytes = MIB, .bytes = MIB},
                          {.expert = 2, .tokens = 1, .link_bytes = MIB / 3, .bytes = MIB},
                          {.expert = 3, .tokens = 1, .link_bytes = MIB, .bytes = MIB, .worth = true}};
    share_costs c = {.ns = {1, 1}};
    uint32_t k;
    share_divide(&c, items, 4, &k);
    cr_assert_eq(k, 2);
    static const uint32_t order[] = {3, 2, 1, 0};
    for (int i = 0; i < 4; i++)
        cr_assert_eq(items[i].expert, order[i]);
}

Test(share, what_is_not_known_is_looked_for_with_one_expert)
{
    share_item items[4];
    share_rates r = {0};
    uint32_t k;
    for (uint32_t i = 0; i < 4; i++)
        items[i] = (share_item){.expert = i, .tokens = 1, .link_bytes = MIB, .bytes = MIB};
    share_costs c = share_get(&r, 1);
    cr_assert(c.explore);
    cr_assert(share_divide(&c, items, 4, &k));
    cr_assert_eq(k, 1);
    c.explore = false;
    share_divide(&c, items, 4, &k);
    cr_assert_eq(k, 0, "until then the CPU has all");
    share_note(&r, SHARE_DEVICE, 1, MIB, 90 * MIB);
    cr_assert(share_get(&r, 8).explore, "it may have been bad luck");
    for (int i = 0; i < 4; i++) {
        share_note(&r, SHARE_DEVICE, 1, MIB, 20 * MIB);
        share_note(&r, SHARE_CPU, 1, MIB, MIB);
    }
    c = share_get(&r, 8);
    cr_assert(!c.explore);
    cr_assert_float_eq(c.ns[SHARE_DEVICE], 20, 1e-9, "of another batch is better than nothing");
    for (int i = 0; i < 300; i++) {
        share_note(&r, SHARE_DEVICE, 1, 0, 0);
        share_note(&r, SHARE_CPU, 1, MIB, MIB);
    }
    c = share_get(&r, 1);
    cr_assert(c.explore, "the link may have recovered");
    cr_assert(share_divide(&c, items, 4, &k));
    cr_assert_eq(k, 1);
}

Test(share, a_jump_is_believed_and_noise_is_smoothed)
{
    share_rates r = {0};
    for (int i = 0; i < 50; i++)
        share_note(&r, SHARE_DEVICE, 1, MIB, i % 2 ? MIB * 8 / 10 : MIB * 12 / 10);
    cr_assert_float_eq(share_get(&r, 1).ns[SHARE_DEVICE], 1, 0.05);
    share_note(&r, SHARE_DEVICE, 1, MIB, 50 * MIB);
    cr_assert_float_eq(share_get(&r, 1).ns[SHARE_DEVICE], 50, 1e-9);
    share_note(&r, SHARE_DEVICE, 1, MIB, MIB);
    cr_assert_float_eq(share_get(&r, 1).ns[SHARE_DEVICE], 1, 1e-9);
}

/* A fixed cost a layer, which the mean a byte contains: the division settles where both take equally long. */
Test(share, the_division_settles)
{
    share_rates r = {0};
    uint32_t k = 0;
    for (int step = 0; step < 200; step++) {
        share_item items[N];
        share_costs c = share_get(&r, 1);
        for (uint32_t i = 0; i < N; i++)
            items[i] = (share_item){.expert = i, .tokens = 1, .link_bytes = MIB, .bytes = MIB};
        share_divide(&c, items, N, &k);
        share_note(&r, SHARE_DEVICE, 1, (uint64_t)k * MIB, (uint64_t)k * 20000);
        share_note(&r, SHARE_CPU, 1, (uint64_t)(N - k) * MIB, (uint64_t)(N - k) * 10000 + 30000);
    }
    cr_assert_geq(k, 5);
    cr_assert_leq(k, 7, "20 k = 10 (16 - k) + 30 at k = 6.3");
}
