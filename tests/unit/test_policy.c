#include <criterion/criterion.h>

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

Test(policy, a_layer_keeps_its_floor)
{
    cr_assert_eq(cold_victims(0), 4);   /* all that are cold */
    cr_assert_eq(cold_victims(0.5), 2); /* half of 8 units is divided among two layers */
    cr_assert_eq(cold_victims(1), 0);
}
