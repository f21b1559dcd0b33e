/* test_sched.c - the scheduler over a real KV cache, with a model that only counts: who runs, who waits, who gives way. */
#include "sched_rig.h"

static world *make(uint32_t n_blocks, uint32_t max_seqs, uint32_t max_tokens, uint32_t max_rows, uint64_t swap_bytes)
{
    return world_open((kv_options){.n_blocks = n_blocks, .swap_bytes = swap_bytes},
                      (sched_options){.max_seqs = max_seqs, .max_tokens = max_tokens, .max_rows = max_rows});
}

static sched_seq *add_of(world *w, uint32_t i, uint32_t n_prompt, uint64_t group)
{
    return add_shared(w, i, n_prompt, 0, 0, group);
}

static sched_seq *add(world *w, uint32_t i, uint32_t n_prompt)
{
    return add_of(w, i, n_prompt, 0);
}

/* Runs a step as the engine does: whoever has all its tokens computed gets another one. Returns tokens of the step. */
static uint32_t step(world *w, uint32_t limit)
{
    uint32_t n, tokens = 0;
    const sched_entry *e = sched_form(w->s, limit, true, &n);
    sched_commit(w->s);
    for (uint32_t i = 0; i < n; i++) {
        tokens += e[i].n_tokens;
        if (e[i].pos + e[i].n_tokens == e[i].seq->n_ids) {
            cr_assert_geq(e[i].n_rows, 1);
            e[i].seq->n_ids++;
        }
    }
    return tokens;
}

Test(sched, decodes_first_then_fills_the_step_with_prompt)
{
    world *w = make(64, 8, 16, 8, 0);
    add(w, 0, 3);
    cr_assert_eq(step(w, 0), 3);
    add(w, 1, 40);
    uint32_t n;
    const sched_entry *e = sched_form(w->s, 0, true, &n);
    cr_assert_eq(n, 2);
    cr_assert_eq(e[0].seq, &w->q[0]);
    cr_assert_eq(e[0].n_tokens, 1);
    cr_assert_eq(e[1].n_tokens, 15);
    cr_assert_eq(e[1].n_rows, 0, "no logits before the prompt's end");
    done(w);
}

Test(sched, a_long_prompt_holds_decodes_up_no_longer_than_allowed)
{
    world *w = make(64, 8, 64, 8, 0);
    add(w, 0, 3);
    step(w, 0);
    add(w, 1, 40);
    cr_assert_eq(step(w, 8), 1 + 8);
    cr_assert_eq(w->q[1].n_computed, 8);
    done(w);
}

Test(sched, nobody_joins_while_newcomers_are_held_off_and_any_runs)
{
    world *w = make(64, 8, 64, 8, 0);
    add(w, 0, 3);
    step(w, 0);
    add(w, 1, 5);
    uint32_t n;
    const sched_entry *e = sched_form(w->s, 0, false, &n);
    cr_assert(n == 1 && e[0].seq == &w->q[0]);
    e = sched_form(w->s, 0, false, &n); /* the step failed: nothing was committed, and it is formed again */
    cr_assert(n == 1 && e[0].seq == &w->q[0] && e[0].pos == 3);
    sched_remove(w->s, &w->q[0]);
    e = sched_form(w->s, 0, false, &n);
    cr_assert(n == 1 && e[0].seq == &w->q[1], "nothing runs: waiting helps nobody");
    done(w);
}

Test(sched, lower_priority_number_goes_first_then_arrival)
{
    world *w = make(64, 1, 64, 8, 0);
    add(w, 0, 3);
    add(w, 1, 3);
    w->q[2].priority = 0;
    sched_seq *late = &w->q[2];
    *late = (sched_seq){.order = 2, .priority = -1, .ids = w->ids[2], .n_ids = 3, .n_prompt = 3};
    cr_assert_eq(sched_add(w->s, late, NULL), XD_OK);
    uint32_t n;
    const sched_entry *e = sched_form(w->s, 0, true, &n);
    cr_assert_eq(n, 1);
    cr_assert_eq(e[0].seq, late);
    sched_commit(w->s);
    sched_remove(w->s, late);
    e = sched_form(w->s, 0, true, &n);
    cr_assert_eq(e[0].seq, &w->q[0]);
    done(w);
}

Test(sched, groups_take_turns_when_places_are_given)
{
    world *w = make(64, 1, 64, 8, 0);
    const uint32_t groups[] = {7, 7, 7, 8, 8, 0, 0}, want[] = {0, 3, 5, 6, 1, 4, 2};
    for (uint32_t i = 0; i < XD_ARRAY_LEN(groups); i++)
        add_of(w, i, 3, groups[i]);
    for (uint32_t i = 0; i < XD_ARRAY_LEN(want); i++) {
        uint32_t n;
        const sched_entry *e = sched_form(w->s, 0, true, &n);
        cr_assert_eq(n, 1);
        cr_assert_eq(e[0].seq, &w->q[want[i]], "place %u", i);
        sched_commit(w->s);
        sched_remove(w->s, e[0].seq);
    }
    done(w);
}

Test(sched, a_newcomer_takes_a_place_of_a_group_that_has_many_and_it_comes_back_where_it_was)
{
    world *w = make(64, 4, 64, 8, 0);
    for (uint32_t i = 0; i < 10; i++)
        add_of(w, i, 5, 7);
    cr_assert_eq(step(w, 0), 4 * 5);
    cr_assert_eq(step(w, 0), 4);
    sched_seq *late = add_of(w, 10, 3, 8);
    cr_assert_eq(step(w, 0), 3 + 3);
    cr_assert_eq(late->n_computed, 3);
    cr_assert_eq(w->q[3].n_preempted, 1);
    cr_assert_eq(w->q[3].n_computed, 6, "it lost its place, not its work");
    for (int i = 0; i < 4; i++)
        cr_assert_eq(step(w, 0), 4, "nobody gives way again");
    sched_remove(w->s, late);
    cr_assert_eq(step(w, 0), 4);
    cr_assert_eq(w->q[3].n_computed, 7, "it goes on, before the others of its group");
    sched_stats st;
    sched_get_stats(w->s, &st);
    cr_assert_eq(st.paused, 1);
    cr_assert_eq(st.preempted_swap + st.preempted_recompute, 0);
    done(w);
}

Test(sched, single_sequences_that_keep_coming_do_not_starve_a_group)
{
    world *w = make(64, 2, 64, 8, 0);
    for (uint32_t i = 0; i < 4; i++)
        add_of(w, i, 3, 7);
    uint32_t next = 4, n_ended = 0;
    for (uint32_t turns = 0; n_ended < 4; turns++) {
        if (turns % 2) { /* as many as there are places for without the group */
            cr_assert_lt(next, 60, "the group does not get on");
            add(w, next++, 3);
        }
        step(w, 0);
        for (uint32_t i = 0; i < next; i++) {
            if (w->q[i].state == SCHED_RUNNING && w->q[i].n_ids >= 6) {
                n_ended += i < 4;
                sched_remove(w->s, &w->q[i]);
            }
        }
    }
    done(w);
}

Test(sched, the_youngest_gives_way_and_comes_back)
{
    world *w = make(8, 8, 64, 8, 0); /* 32 tokens in all */
    add(w, 0, 12);
    add(w, 1, 12);
    cr_assert_eq(step(w, 0), 24);
    while (!w->q[1].n_preempted)
        cr_assert_gt(step(w, 0), 0);
    cr_assert_eq(w->q[0].n_preempted, 0);
    cr_assert_eq(w->q[1].n_computed, 0, "recomputed from the start");
    uint32_t had = w->q[1].n_ids;
    for (int i = 0; i < 4; i++)
        step(w, 0);
    cr_assert_eq(w->q[1].n_ids, had, "waits while there is no room");
    sched_remove(w->s, &w->q[0]);
    cr_assert_eq(step(w, 0), had);
    cr_assert_eq(w->q[1].n_ids, had + 1);
    done(w);
}

Test(sched, a_swapped_sequence_goes_on_where_it_was)
{
    world *w = make(8, 8, 64, 8, 1 << 20);
    add(w, 0, 12);
    add(w, 1, 12);
    while (!w->q[1].n_preempted)
        cr_assert_gt(step(w, 0), 0);
    uint32_t computed = w->q[1].n_computed;
    cr_assert_gt(computed, 0);
    sched_stats st;
    sched_get_stats(w->s, &st);
    cr_assert_eq(st.preempted_swap, 1);
    sched_remove(w->s, &w->q[0]);
    cr_assert_eq(step(w, 0), 1);
    cr_assert_eq(w->q[1].n_computed, computed + 1);
    done(w);
}

Test(sched, rows_of_prompt_logits_never_exceed_what_there_is)
{
    world *w = make(64, 8, 64, 8, 0);
    sched_seq *q = &w->q[0];
    *q = (sched_seq){.order = 0, .ids = w->ids[0], .n_ids = 30, .n_prompt = 30, .want_prompt_rows = true};
    cr_assert_eq(sched_add(w->s, q, NULL), XD_OK);
    uint32_t n, rows = 0;
    while (q->n_ids == 30) {
        const sched_entry *e = sched_form(w->s, 0, true, &n);
        cr_assert_eq(n, 1);
        cr_assert_leq(e[0].n_rows, 8);
        rows += e[0].n_rows;
        sched_commit(w->s);
        if (q->n_computed == 30)
            q->n_ids++;
    }
    cr_assert_eq(rows, 30);
    done(w);
}

Test(sched, choices_share_the_full_blocks_of_the_prompt)
{
    world *w = make(64, 8, 64, 8, 0);
    add(w, 0, 18);
    sched_seq *b = add(w, 1, 18);
    memcpy(w->ids[1], w->ids[0], sizeof w->ids[0]);
    b->held = true;
    cr_assert_eq(step(w, 0), 18);
    sched_fork(w->s, &w->q[0], b);
    cr_assert_eq(b->n_computed, 16);
    cr_assert_eq(step(w, 0), 1 + 2, "one decode, and what lies beyond the shared blocks");
    done(w);
}

/* The property behind continuous batching: with random arrivals and departures in a tight cache every sequence ends, whatever is
 * preempted on the way, and no block is lost. */
Test(sched, every_sequence_ends_in_a_tight_cache)
{
    for (uint64_t seed = 1; seed <= 60; seed++) {
        world *w = make(12, 6, 24, 8, seed % 3 == 0 ? 1 << 14 : 0); /* 48 tokens; the longest sequence has 40 */
        uint64_t s = seed;
        uint32_t goal[24], n_done = 0, added = 0;
        bool ended[24] = {false};
        for (uint32_t turn = 0; n_done < 24; turn++) {
            cr_assert_lt(turn, 5000, "seed %llu: no progress", (unsigned long long)seed);
            s = s * 6364136223846793005u + 1442695040888963407u;
            if (added < 24 && (s >> 40) % 3 == 0) {
                uint32_t prompt = 1 + (uint32_t)(s >> 33) % 25;
                goal[added] = prompt + 1 + (uint32_t)(s >> 50) % 15;
                add_of(w, added++, prompt, seed % 2 ? (s >> 55) % 4 : 0);
            }
            sched_stats st;
            sched_get_stats(w->s, &st);
            if (!step(w, (s >> 20) % 2 ? 5 : 0))
                cr_assert_eq(st.n_running + st.n_waiting, 0, "seed %llu: a step could be formed",
                             (unsigned long long)seed);
            for (uint32_t i = 0; i < added; i++) {
                if (!ended[i] && w->q[i].n_ids >= goal[i]) {
                    ended[i] = true;
                    n_done++;
                    sched_remove(w->s, &w->q[i]);
                }
            }
        }
        done(w);
    }
}

/* Two groups of layers, one with a window; blocks for n_seqs sequences of `tokens` in steps of `chunk`, as the engine sizes them. */
static world *make_windows(uint32_t n_seqs, uint32_t tokens, uint32_t window, uint32_t chunk, uint64_t swap_bytes)
{
    kv_options ko = {.n_groups = 2,
                     .window = {0, window},
                     .block_size = RIG_BLOCK,
                     .swap_bytes = swap_bytes,
                     .prefix_caching = true};
    ko.n_blocks = (uint32_t)kv_blocks_of(&ko, n_seqs, tokens, chunk);
    return world_open(ko, (sched_options){.max_seqs = 6, .max_tokens = 64, .max_rows = 8, .chunk = chunk});
}

Test(sched, a_prompts_chunk_takes_the_blocks_that_are_free_before_anybody_gives_way)
{
    world *w = make_windows(2, 60, 8, 8, 0); /* 30 blocks without a window, 2 * 4 - 1 + 2 with one */
    add(w, 0, 48);
    cr_assert_eq(step(w, 0), 48, "all blocks are free: 24 of them");
    cr_assert_eq(stats(w).window_released, 9);
    add(w, 1, 60);
    uint32_t n;
    const sched_entry *e =
        sched_form(w->s, 0, true, &n); /* of 39 the first has 12 + 3, and takes two for its token 49 */
    cr_assert(n == 2 && e[0].n_tokens == 1 && e[1].n_tokens == 11 * RIG_BLOCK, "%u tokens", e[1].n_tokens);
    sched_commit(w->s);
    w->q[0].n_ids++;
    cr_assert_eq(step(w, 0), 1 + 16, "the rest");
    sched_stats st;
    sched_get_stats(w->s, &st);
    cr_assert_eq(st.preempted_recompute + st.preempted_swap, 0);
    done(w);
}

Test(sched, a_chunk_that_is_certain_to_fit_is_never_made_smaller)
{
    world *w = make_windows(1, 60, 8, 8, 0); /* 15 + 5 blocks */
    add(w, 0, 60);
    uint32_t most = 0, least = UINT32_MAX;
    while (w->q[0].n_computed < 60) {
        const uint32_t n = step(w, 0);
        most = XD_MAX(most, n);
        least = w->q[0].n_computed < 60 ? XD_MIN(least, n) : least;
    }
    cr_assert_eq(most, 40, "20 blocks for both groups");
    cr_assert_geq(least, 8);
    done(w);
}

Test(sched, for_a_chunk_that_is_certain_to_fit_others_give_way)
{
    world *w = make_windows(1, 60, 8, 8, 0); /* 15 + 5 blocks */
    add(w, 1, 24);
    cr_assert_eq(step(w, 0), 24);
    w->q[0] = (sched_seq){.order = 0, .priority = -1, .ids = w->ids[0], .n_ids = 60, .n_prompt = 60};
    cr_assert_eq(sched_add(w->s, &w->q[0], NULL), XD_OK);
    cr_assert_eq(step(w, 0), 1 + 16, "9 blocks were free");
    uint32_t n;
    const sched_entry *e = sched_form(w->s, 0, true, &n); /* 3 are, for 4 tokens */
    cr_assert(n == 1 && e[0].seq == &w->q[0] && e[0].n_tokens == 8);
    cr_assert_eq(w->q[1].n_preempted, 1);
    done(w);
}

/* With a pool that holds one of the longest sequences and not a block more; where it is cold, most of it in host memory. */
static void run_where_one_fits(uint64_t seed, bool windows, bool cold)
{
    enum { N = 12, LONGEST = 60 };
    kv_options ko = {.n_groups = windows ? 2 : 1,
                     .window = {0, windows ? 1 + (uint32_t)(seed % 19) : 0},
                     .block_size = RIG_BLOCK,
                     .prefix_caching = true,
                     .allow_cold = cold};
    const uint32_t chunk = 1 + seed % 11, n_blocks = (uint32_t)kv_blocks_of(&ko, 1, LONGEST, chunk);
    ko.n_blocks = cold ? 6 : n_blocks;
    ko.swap_bytes = (cold ? n_blocks - ko.n_blocks : seed % 3 ? 0 : 16) * 4096ull;
    world *w = world_open(
        ko, (sched_options){.max_seqs = 6, .max_tokens = 64, .max_rows = 8, .chunk = windows ? chunk : UINT32_MAX});
    uint64_t s = seed;
    uint32_t goal[N], n_done = 0, added = 0;
    bool ended[N] = {false};
    for (uint32_t turn = 0; n_done < N; turn++) {
        cr_assert_lt(turn, 20000, "seed %llu: no progress", (unsigned long long)seed);
        s = s * 6364136223846793005u + 1442695040888963407u;
        if (added < N && (s >> 40) % 3 == 0) {
            const uint32_t prompt = 1 + (uint32_t)(s >> 33) % (LONGEST - 10);
            goal[added] = seed % 2 ? LONGEST : prompt + 1 + (uint32_t)(s >> 50) % 9;
            add_shared(w, added++, prompt, (uint32_t)(s >> 45) % 30, 0, seed % 5 ? 0 : (s >> 55) % 4);
        }
        sched_stats st;
        sched_get_stats(w->s, &st);
        if (!step(w, (s >> 20) % 2 ? 5 : 0))
            cr_assert_eq(st.n_running + st.n_waiting, 0, "seed %llu: a step could be formed", (unsigned long long)seed);
        for (uint32_t i = 0; i < added; i++)
            if (!ended[i] && w->q[i].n_ids >= goal[i]) {
                ended[i] = true;
                n_done++;
                sched_remove(w->s, &w->q[i]);
            }
    }
    done(w);
}

Test(sched, every_sequence_ends_where_only_one_fits)
{
    for (uint64_t seed = 1; seed <= 80; seed++)
        for (int windows = 0; windows < 2; windows++)
            run_where_one_fits(seed, windows, false);
}

/* What is swapped lies in blocks that others need: they got nothing for it, and all went round for ever. */
Test(sched, every_sequence_ends_where_only_one_fits_and_most_of_it_is_cold)
{
    for (uint64_t seed = 1; seed <= 80; seed++)
        for (int windows = 0; windows < 2; windows++)
            run_where_one_fits(seed, windows, true);
}
