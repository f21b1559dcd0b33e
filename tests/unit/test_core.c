#include <criterion/criterion.h>
#include <string.h>

#include "engine/core.h"

/* The geometry of Qwen3-30B-A3B: 98304 bytes of KV a token. */
static const kv_options geometry = {.n_layers = 48, .n_kv_heads = 4, .head_dim = 128, .block_size = 16, .fmt = FMT_F16};

static core_sizes sizes(uint32_t want_len, uint64_t kv, uint64_t swap)
{
    return (core_sizes){.room = 100ull << 30,
                        .expert_bytes = 30ull << 30,
                        .max_seqs = 1,
                        .model_max_len = 1u << 18,
                        .want_len = want_len,
                        .want_kv = kv,
                        .want_arena = CONF_AUTO_BYTES,
                        .swap_bytes = swap,
                        .kv_opt = &geometry,
                        .stages = true};
}

static void check(const core_sizes *s, uint64_t kv)
{
    uint64_t host = s->swap_bytes / kv_block_bytes(&geometry);
    cr_assert_leq(s->n_blocks * kv_block_bytes(&geometry) + s->stage_bytes, kv);
    cr_assert_geq((s->n_blocks + host) * geometry.block_size, s->want_len);
    cr_assert_eq(s->stage_bytes, kv_stage_bytes(&geometry, s->stage_blocks));
    cr_assert_eq(s->max_model_len, s->want_len);
}

Test(core, a_context_within_the_budget_needs_no_staging)
{
    core_sizes s = sizes(16384, 2ull << 30, 4ull << 30);
    cr_assert_eq(core_size(&s, NULL), XD_OK);
    cr_assert(!s.cold);
    cr_assert_eq(s.stage_blocks, 0);
}

Test(core, a_budget_below_one_block_names_what_to_raise)
{
    for (uint32_t want = 0; want <= 4096; want += 4096) {
        core_sizes s = sizes(want, 1 << 20, 0); /* a block takes 1.5 MiB */
        xd_err err;
        cr_assert_eq(core_size(&s, &err), XD_BAD_CONFIG);
        cr_assert_str_eq(err.msg,
                         "one KV block of kv.block_size = 16 tokens takes 1.50 MiB and the KV cache may take 1.00 MiB: "
                         "raise kv.kv_budget");
    }
}

Test(core, all_cold_blocks_of_one_sequence_can_be_staged_for_a_twentieth_of_the_budget)
{
    const uint64_t kv = 6ull << 30;
    core_sizes s = sizes(131072, kv, 16ull << 30);
    cr_assert_eq(core_size(&s, NULL), XD_OK);
    check(&s, kv);
    cr_assert(s.cold);
    cr_assert_geq(s.stage_blocks, 131072 / 16 - s.n_blocks);
    cr_assert_leq(s.stage_bytes, kv / 20);
}

Test(core, a_context_beyond_what_is_left_lies_in_the_swap_space_without_a_budget_too)
{
    core_sizes s = sizes(131072, CONF_AUTO_BYTES, 16ull << 30); /* 12 GiB */
    s.room = 9ull << 30;
    cr_assert_eq(core_size(&s, NULL), XD_OK);
    check(&s, s.room);
    cr_assert(s.cold);
    cr_assert_gt(s.arena_bytes, s.room / 2);
    s.swap_bytes = 2ull << 30;
    xd_err err;
    cr_assert_eq(core_size(&s, &err), XD_BAD_CONFIG);
    cr_assert_not_null(strstr(err.msg, "raise kv.kv_budget or kv.swap_space"), "%s", err.msg);
    s.swap_bytes = 0;
    cr_assert_eq(core_size(&s, &err), XD_BAD_CONFIG);
    cr_assert_not_null(strstr(err.msg, "12.00 GiB but only 9.00 GiB are left"), "%s", err.msg);
}

Test(core, staging_takes_at_most_a_quarter_of_the_budget)
{
    const uint64_t kv = 256ull << 20;
    core_sizes s = sizes(131072, kv, 64ull << 30);
    cr_assert_eq(core_size(&s, NULL), XD_OK);
    check(&s, kv);
    cr_assert_gt(s.stage_blocks, 0);
    cr_assert_leq(s.stage_bytes, kv / 4);
}

Test(core, staging_never_makes_a_sequence_too_long)
{
    const uint64_t block = kv_block_bytes(&geometry);
    for (uint64_t more = 0; more < 200; more += 20) {
        const uint64_t kv = 1024 * block;
        core_sizes s = sizes(32768, kv, (1024 + more) * block);
        cr_assert_eq(core_size(&s, NULL), XD_OK, "%lu blocks to spare", (unsigned long)more);
        check(&s, kv);
    }
}

Test(core, without_a_device_of_its_own_nothing_is_staged)
{
    core_sizes s = sizes(131072, 6ull << 30, 16ull << 30);
    s.stages = false;
    cr_assert_eq(core_size(&s, NULL), XD_OK);
    cr_assert(s.cold);
    cr_assert_eq(s.stage_bytes, 0);
}
