/* test_kv_state.c - states of linear layers in the KV cache and the scheduler. A state is the sum of its tokens in order: here a hash of them. On the CPU a device
 * address is a host pointer, so the tests play the model: each token finds the hash of all before it, and leaves the next one. */
#include "sched_rig.h"

typedef struct sizes {
    uint32_t blocks, seqs, tokens, copies, swap;
    bool no_prefix;
} sizes;

static world *make(sizes z)
{
    return world_open((kv_options){.n_blocks = z.blocks,
                                   .swap_bytes = z.swap * 4096ull,
                                   .prefix_caching = !z.no_prefix,
                                   .n_states = z.seqs,
                                   .state_host_bytes = z.copies * 4096ull},
                      (sched_options){.max_seqs = z.seqs, .max_tokens = z.tokens ? z.tokens : 64, .max_rows = 64});
}

static sched_seq *add(world *w, uint32_t i, uint32_t n_prompt, uint32_t n_shared, uint32_t family)
{
    return add_shared(w, i, n_prompt, n_shared, family, 0);
}

static uint64_t next_hash(uint64_t h, uint32_t id)
{
    return (h ^ (id + 1)) * 1099511628211u;
}

static uint64_t hash(const uint32_t *ids, uint32_t n)
{
    uint64_t h = 0;
    for (uint32_t i = 0; i < n; i++)
        h = next_hash(h, ids[i]);
    return h;
}

/* The step as a model would run it; `until`: it fails when so many tokens have been through. */
static bool run(world *w, const sched_entry *e, uint32_t n, uint32_t until)
{
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t slot = kv_seq_state(e[i].seq->kv);
        uint64_t *state = (uint64_t *)(void *)(w->states + slot * w->state_bytes);
        void *keep[SCHED_KEEP];
        for (uint32_t k = 0; k < e[i].n_keep; k++) {
            cr_assert_gt(e[i].keep[k], e[i].pos);
            cr_assert_leq(e[i].keep[k], e[i].pos + e[i].n_tokens);
            keep[k] = kv_seq_keep(w->kv, e[i].seq->kv, e[i].keep[k]);
        }
        for (uint32_t t = e[i].pos; t < e[i].pos + e[i].n_tokens; t++) {
            const uint64_t before = t ? *state : 0;
            cr_assert_eq(before, hash(e[i].seq->ids, t), "token %u of sequence %llu finds another state", t,
                         (unsigned long long)e[i].seq->order);
            if (!until--)
                return false;
            *state = next_hash(before, e[i].seq->ids[t]);
            for (uint32_t k = 0; k < e[i].n_keep; k++)
                if (keep[k] && e[i].keep[k] == t + 1)
                    memcpy(keep[k], state, sizeof *state);
        }
    }
    return true;
}

/* Returns the tokens of the step. */
static uint32_t step(world *w, uint32_t until)
{
    uint32_t n, tokens = 0;
    const sched_entry *e = sched_form(w->s, 0, true, &n);
    if (!run(w, e, n, until)) {
        sched_fail(w->s);
        return n;
    }
    sched_commit(w->s);
    for (uint32_t i = 0; i < n; i++) {
        tokens += e[i].n_tokens;
        if (e[i].pos + e[i].n_tokens == e[i].seq->n_ids)
            e[i].seq->n_ids++;
    }
    return tokens;
}

static void finish(world *w, sched_seq *q, uint32_t n_tokens)
{
    while (q->n_ids < q->n_prompt + n_tokens)
        cr_assert(step(w, UINT32_MAX));
    sched_remove(w->s, q);
}

Test(kv_state, a_prompt_begins_where_a_state_was_kept)
{
    world *w = make((sizes){.blocks = 256, .seqs = 4, .copies = 16});
    finish(w, add(w, 0, 41, 0, 0), 3);
    cr_assert_eq(stats(w).states_kept, 1, "16 tokens or more before the end");
    /* The next turn of the chat: that prompt, its answer, and more. */
    sched_seq *q = add(w, 1, 70, 0, 0);
    memcpy(w->ids[1], w->ids[0], 44 * sizeof(uint32_t));
    finish(w, q, 3);
    cr_assert_eq(q->n_cached, 24);
    cr_assert_eq(stats(w).states_found, 1);
    /* The same prompt again. */
    q = add(w, 2, 41, 0, 0);
    memcpy(w->ids[2], w->ids[0], 41 * sizeof(uint32_t));
    finish(w, q, 3);
    cr_assert_eq(q->n_cached, 40, "where the second parted from the first");
    done(w);
}

Test(kv_state, a_beginning_that_prompts_have_in_common_is_kept_when_the_second_comes)
{
    world *w = make((sizes){.blocks = 256, .seqs = 4, .copies = 16});
    for (uint32_t i = 0; i < 3; i++) {
        sched_seq *q = add(w, i, 80, 40, 7);
        finish(w, q, 2);
        cr_assert_eq(q->n_cached, i < 2 ? 0 : 40, "prompt %u: %u tokens", i, q->n_cached);
    }
    cr_assert_eq(stats(w).states_kept, 4, "three ends, and where the second parted from the first");
    done(w);
}

Test(kv_state, prompts_that_are_cut_keep_the_same)
{
    world *w = make((sizes){.blocks = 256, .seqs = 2, .tokens = 7, .copies = 16});
    for (uint32_t i = 0; i < 3; i++) {
        sched_seq *q = add(w, i, 80, 40, 7);
        finish(w, q, 2);
        cr_assert_eq(q->n_cached, i < 2 ? 0 : 40);
    }
    done(w);
}

Test(kv_state, without_room_for_copies_nothing_is_found)
{
    world *w = make((sizes){.blocks = 256, .seqs = 4});
    for (uint32_t i = 0; i < 3; i++) {
        sched_seq *q = add(w, i, 80, 70, 7);
        finish(w, q, 2);
        cr_assert_eq(q->n_cached, 0);
    }
    cr_assert_eq(stats(w).states_kept, 0);
    done(w);
}

Test(kv_state, the_copy_that_was_asked_for_least_lately_goes)
{
    world *w = make((sizes){.blocks = 256, .seqs = 1, .copies = 2});
    uint32_t next = 0;
    sched_seq *q;
    for (uint32_t family = 0; family < 2; family++)
        finish(w, add(w, next++, 60, 60, family), 1);
    finish(w, q = add(w, next++, 60, 60, 0), 1); /* now family 1 is the older one */
    cr_assert_eq(q->n_cached, 44);
    finish(w, add(w, next++, 60, 60, 2), 1);
    finish(w, q = add(w, next++, 60, 60, 0), 1);
    cr_assert_eq(q->n_cached, 44);
    finish(w, q = add(w, next++, 60, 60, 1), 1);
    cr_assert_eq(q->n_cached, 0, "the blocks are there, the state is not");
    done(w);
}

Test(kv_state, a_copy_is_of_no_use_without_the_blocks)
{
    world *w = make((sizes){.blocks = 20, .seqs = 1, .copies = 8});
    finish(w, add(w, 0, 60, 60, 0), 1);
    finish(w, add(w, 1, 70, 70, 1), 1); /* pushes out what the first has left */
    sched_seq *q;
    finish(w, q = add(w, 2, 60, 60, 0), 1);
    cr_assert_eq(q->n_cached, 0);
    done(w);
}

Test(kv_state, a_swapped_sequence_takes_its_state_along)
{
    world *w = make((sizes){.blocks = 16, .seqs = 2, .copies = 4, .swap = 32, .no_prefix = true});
    add(w, 0, 20, 0, 0);
    add(w, 1, 20, 0, 0);
    for (int i = 0; i < 60 && !w->q[1].n_preempted; i++)
        step(w, UINT32_MAX);
    cr_assert(w->q[1].n_preempted);
    cr_assert(kv_seq_is_swapped(w->q[1].kv));
    kv_stats k = stats(w);
    cr_assert_eq(k.states_used, 1);
    cr_assert_eq(k.state_copies_used, 1);
    const uint32_t computed = w->q[1].n_computed;
    sched_remove(w->s, &w->q[0]);
    step(w, UINT32_MAX);
    cr_assert_gt(w->q[1].n_computed, computed, "it goes on where it was");
    cr_assert_eq(stats(w).state_copies_used, 0);
    done(w);
}

Test(kv_state, where_no_copy_is_free_it_is_computed_again)
{
    world *w = make((sizes){.blocks = 16, .seqs = 2, .swap = 32, .no_prefix = true});
    add(w, 0, 20, 0, 0);
    add(w, 1, 20, 0, 0);
    for (int i = 0; i < 60 && !w->q[1].n_preempted; i++)
        step(w, UINT32_MAX);
    cr_assert(w->q[1].n_preempted);
    cr_assert_eq(w->q[1].n_computed, 0);
    sched_remove(w->s, &w->q[0]);
    finish(w, &w->q[1], 30);
    done(w);
}

Test(kv_state, who_gives_up_its_place_gives_up_its_state)
{
    world *w = make((sizes){.blocks = 256, .seqs = 4, .copies = 4, .swap = 32, .no_prefix = true});
    for (uint32_t i = 0; i < 10; i++)
        add_shared(w, i, 5, 0, 0, 7);
    step(w, UINT32_MAX);
    step(w, UINT32_MAX);
    add_shared(w, 10, 3, 0, 0, 8);
    for (int i = 0; i < 40; i++)
        step(w, UINT32_MAX); /* run() finds every state wrong that is another's */
    sched_stats st;
    sched_get_stats(w->s, &st);
    cr_assert(st.paused);
    cr_assert_eq(stats(w).states_used, 4);
    done(w);
}

Test(kv_state, after_a_step_that_failed_no_token_counts_twice)
{
    world *w = make((sizes){.blocks = 256, .seqs = 3, .copies = 8});
    for (uint32_t i = 0; i < 3; i++)
        add(w, i, 30 + i, 0, 0);
    for (uint32_t i = 0; i < 12; i++)
        step(w, i % 3 == 1 ? i : UINT32_MAX); /* in the middle of a prompt, and of a step that decodes */
    for (uint32_t i = 0; i < 3; i++)
        finish(w, &w->q[i], 10);
    done(w);
}

static uint32_t below(uint64_t *state, uint32_t n)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33) % n;
}

/* All of it at once, with little room of every kind. */
Test(kv_state, every_token_finds_the_state_of_those_before_it)
{
    uint64_t found = 0, swapped = 0, again = 0, paused = 0;
    for (uint32_t seed = 0; seed < 60; seed++) {
        uint64_t r = seed * 7919 + 1;
        sizes z = {.blocks = 24 + below(&r, 40), .seqs = 1 + below(&r, 5), .tokens = 5 + below(&r, 60)};
        z.copies = below(&r, 6);
        z.swap = below(&r, 2) ? below(&r, 40) : 0;
        z.no_prefix = !below(&r, 6);
        world *w = make(z);
        for (uint32_t steps = 0, added = 0; steps < 400; steps++) {
            if (added < RIG_SEQS && !below(&r, 3)) {
                const uint32_t n = 1 + below(&r, 70), shared = below(&r, 2) ? below(&r, n + 1) : 0;
                add_shared(w, added++, n, shared, below(&r, 3), below(&r, 4) ? 0 : 5);
            }
            step(w, below(&r, 12) ? UINT32_MAX : below(&r, 40));
            for (uint32_t i = 0; i < added; i++)
                if (w->q[i].state != SCHED_NEW && (w->q[i].n_ids > w->q[i].n_prompt + 12 || !below(&r, 200)))
                    sched_remove(w->s, &w->q[i]);
        }
        sched_stats st;
        sched_get_stats(w->s, &st);
        found += stats(w).states_found;
        swapped += st.preempted_swap;
        again += st.preempted_recompute;
        paused += st.paused;
        done(w);
    }
    cr_assert(found > 100 && swapped > 100 && again > 100 && paused, "%llu, %llu, %llu, %llu",
              (unsigned long long)found, (unsigned long long)swapped, (unsigned long long)again,
              (unsigned long long)paused);
}
