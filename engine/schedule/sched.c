/* sched.c - see sched.h. Two sorted arrays: running (at most max_seqs) and waiting; both by priority, then turn, then arrival,
 * so that the last is the first to give way and a preempted sequence comes back before those that stand behind it.
 *
 * Invariants: 1. a sequence is in exactly one array; 2. only running sequences are in a step; 3. a waiting sequence may hold blocks
 * (a matched or forked prefix, or swapped ones) and loses them before a running one is preempted; 4. after sched_form every entry
 * has its blocks reserved. */
#include "engine/schedule/sched.h"

#include <string.h>

typedef struct seq_list {
    sched_seq **v;
    uint32_t n, cap;
} seq_list;

struct sched {
    sched_options opt;
    seq_list running, waiting;
    sched_entry *batch;
    uint32_t n_batch, tokens_left, rows_left;
    uint64_t turn; /* the lowest that ran when it was last looked at; never goes back */
    sched_stats stats;
};

static bool goes_before(const sched_seq *a, const sched_seq *b)
{
    if (a->priority != b->priority)
        return a->priority < b->priority;
    return a->turn != b->turn ? a->turn < b->turn : a->order < b->order;
}

static bool list_reserve(seq_list *l, uint32_t n)
{
    if (n <= l->cap)
        return true;
    uint32_t cap = XD_MAX(n, l->cap * 2);
    sched_seq **v = realloc(l->v, cap * sizeof(sched_seq *));
    if (!v)
        return false;
    l->v = v;
    l->cap = cap;
    return true;
}

/* Room was reserved before. */
static void list_insert(seq_list *l, sched_seq *q)
{
    uint32_t at = l->n;
    while (at && goes_before(q, l->v[at - 1]))
        at--;
    memmove(&l->v[at + 1], &l->v[at], (l->n - at) * sizeof(sched_seq *));
    l->v[at] = q;
    l->n++;
}

static void list_remove(seq_list *l, const sched_seq *q)
{
    for (uint32_t i = 0; i < l->n; i++) {
        if (l->v[i] == q) {
            memmove(&l->v[i], &l->v[i + 1], (l->n - i - 1) * sizeof(sched_seq *));
            l->n--;
            return;
        }
    }
}

xd_status sched_new(const sched_options *opt, sched **ret, xd_err *err)
{
    XD_CLEANUP(sched_freep) sched *s = calloc(1, sizeof *s);
    if (!s)
        return xd_fail(err, XD_NOMEM, 0, "the scheduler");
    s->opt = *opt;
    s->batch = calloc(opt->max_seqs, sizeof *s->batch);
    if (!s->batch || !list_reserve(&s->running, opt->max_seqs) || !list_reserve(&s->waiting, opt->max_seqs))
        return xd_fail(err, XD_NOMEM, 0, "the scheduler's lists for %u sequences", opt->max_seqs);
    *ret = XD_TAKE(s);
    return XD_OK;
}

void sched_free(sched *s)
{
    if (!s)
        return;
    free(s->running.v);
    free(s->waiting.v);
    free(s->batch);
    free(s);
}

/* The next turn of its group: behind the group's others, and never before what runs now. */
static uint64_t next_turn(sched *s, const sched_seq *seq)
{
    const seq_list *lists[] = {&s->running, &s->waiting};
    uint64_t lowest = UINT64_MAX, last = 0;
    for (size_t k = 0; k < XD_ARRAY_LEN(lists); k++) {
        for (uint32_t i = 0; i < lists[k]->n; i++) {
            const sched_seq *q = lists[k]->v[i];
            if (k == 0)
                lowest = XD_MIN(lowest, q->turn);
            if (seq->group && q->group == seq->group)
                last = XD_MAX(last, q->turn);
        }
    }
    if (lowest != UINT64_MAX)
        s->turn = XD_MAX(s->turn, lowest);
    return XD_MAX(s->turn, last) + 1;
}

xd_status sched_add(sched *s, sched_seq *seq, xd_err *err)
{
    /* Room for the running ones too: preemption must never fail. */
    if (!list_reserve(&s->waiting, s->waiting.n + s->running.n + 1))
        return xd_fail(err, XD_NOMEM, 0, "the queue of %u sequences", s->waiting.n + 1);
    seq->turn = next_turn(s, seq);
    list_insert(&s->waiting, seq);
    seq->state = SCHED_WAITING;
    return XD_OK;
}

static void unbatch(sched *s, const sched_seq *seq)
{
    for (uint32_t i = 0; i < s->n_batch; i++) {
        if (s->batch[i].seq == seq) {
            s->tokens_left += s->batch[i].n_tokens;
            s->rows_left += s->batch[i].n_rows;
            memmove(&s->batch[i], &s->batch[i + 1], (s->n_batch - i - 1) * sizeof *s->batch);
            s->n_batch--;
            return;
        }
    }
}

void sched_remove(sched *s, sched_seq *seq)
{
    unbatch(s, seq);
    if (seq->state == SCHED_RUNNING)
        list_remove(&s->running, seq);
    else if (seq->state == SCHED_WAITING)
        list_remove(&s->waiting, seq);
    seq->state = SCHED_NEW;
    if (seq->kv)
        kv_seq_free(s->opt.kv, seq->kv);
    seq->kv = NULL;
}

static bool holds_blocks(const sched_seq *q)
{
    uint32_t n = 0;
    if (q->kv && !kv_seq_is_swapped(q->kv))
        kv_seq_blocks(q->kv, &n);
    return n > 0;
}

static void drop_blocks(sched *s, sched_seq *q)
{
    kv_seq_drop(s->opt.kv, q->kv);
    q->n_computed = 0;
}

static void make_wait(sched *s, sched_seq *q)
{
    list_remove(&s->running, q);
    list_insert(&s->waiting, q);
    q->state = SCHED_WAITING;
    q->n_preempted++;
}

/* False: they will have to be computed again. */
static bool give_up_blocks(sched *s, sched_seq *q)
{
    if (q->n_computed && kv_seq_swap_out(s->opt.kv, q->kv) == XD_OK)
        return true;
    drop_blocks(s, q);
    return false;
}

static void preempt(sched *s, sched_seq *q)
{
    unbatch(s, q);
    make_wait(s, q);
    if (give_up_blocks(s, q))
        s->stats.preempted_swap++;
    else
        s->stats.preempted_recompute++;
}

/* Frees the blocks of the least important holder. False: only `q` itself is left. */
static bool make_room(sched *s, const sched_seq *q, bool from_running)
{
    for (uint32_t i = s->waiting.n; i-- > 0;) {
        if (s->waiting.v[i] != q && holds_blocks(s->waiting.v[i])) {
            drop_blocks(s, s->waiting.v[i]);
            return true;
        }
    }
    if (!from_running || !s->running.n || s->running.v[s->running.n - 1] == q)
        return false;
    preempt(s, s->running.v[s->running.n - 1]);
    return true;
}

/* How many tokens of q the step takes, up to `limit`. */
static uint32_t chunk_of(const sched *s, const sched_seq *q, uint32_t limit)
{
    uint32_t n = XD_MIN(q->n_ids - q->n_computed, XD_MIN(limit, s->tokens_left));
    if (s->opt.chunk && n > s->opt.chunk) {
        const uint64_t most = kv_seq_most(s->opt.kv, q->kv); /* n_computed or more */
        n = (uint32_t)XD_MIN((uint64_t)n, XD_MAX(most - q->n_computed, (uint64_t)s->opt.chunk));
    }
    if (q->want_prompt_rows && q->n_computed < q->n_prompt)
        n = XD_MIN(n, s->rows_left);
    return s->rows_left ? n : 0;
}

static void put(sched *s, sched_seq *q, uint32_t n)
{
    bool ends = q->n_computed + n == q->n_ids;
    uint32_t rows = q->want_prompt_rows && q->n_computed < q->n_prompt ? n : ends;
    sched_entry *e = &s->batch[s->n_batch++];
    *e = (sched_entry){.seq = q, .pos = q->n_computed, .n_tokens = n, .n_rows = rows};
    for (uint32_t i = 0; i < SCHED_KEEP; i++)
        if (q->keep[i] > e->pos && q->keep[i] <= e->pos + n)
            e->keep[e->n_keep++] = q->keep[i];
    s->tokens_left -= n;
    s->rows_left -= rows;
}

static bool is_decoding(const sched_seq *q)
{
    return q->n_ids - q->n_computed == 1 && q->n_ids > q->n_prompt;
}

static bool in_batch(const sched *s, const sched_seq *q)
{
    for (uint32_t i = 0; i < s->n_batch; i++)
        if (s->batch[i].seq == q)
            return true;
    return false;
}

/* False: q itself had to give way. */
static bool run_one(sched *s, sched_seq *q, uint32_t limit, uint32_t *ret_n)
{
    uint32_t n = chunk_of(s, q, limit);
    *ret_n = 0;
    if (!n)
        return true;
    while (kv_seq_reserve(s->opt.kv, q->kv, q->n_computed + n)) {
        if (!make_room(s, q, true)) {
            preempt(s, q);
            return false;
        }
    }
    /* Making room may have taken others out of the step, never added to it. */
    put(s, q, n);
    *ret_n = n;
    return true;
}

/* Decoding ones (or the others) among the running, oldest first. Preemption shortens the list from its end only. */
static bool run_running(sched *s, bool decoding, uint32_t *limit)
{
    bool all = true;
    for (uint32_t i = 0; i < s->running.n && s->tokens_left; i++) {
        sched_seq *q = s->running.v[i];
        uint32_t before = s->running.n, n;
        if (is_decoding(q) != decoding || in_batch(s, q))
            continue;
        if (!run_one(s, q, decoding ? 1 : *limit, &n)) {
            all = false;
            break;
        }
        if (!decoding)
            *limit -= n;
        all = all && s->running.n == before;
    }
    return all;
}

/* q has been matched. */
static void choose_keep(const sched *s, sched_seq *q)
{
    const uint32_t bs = s->opt.block_size, known = kv_seq_known(q->kv);
    if (!kv_has_state(s->opt.kv))
        return;
    const uint32_t end = q->n_prompt > SCHED_TAIL ? (q->n_prompt - SCHED_TAIL) / bs * bs : 0;
    q->keep[0] = known > q->n_computed && known < end ? known : 0;
    q->keep[1] = end > q->n_computed ? end : 0;
}

/* Brings a waiting sequence's KV into a state in which it can run. */
static bool prepare(sched *s, sched_seq *q)
{
    if (!q->kv && kv_seq_new(s->opt.kv, &q->kv, NULL))
        return false;
    if (kv_seq_is_swapped(q->kv)) {
        while (kv_seq_swap_in(s->opt.kv, q->kv))
            if (!make_room(s, q, false))
                return false;
    } else if (!holds_blocks(q) && !q->want_prompt_rows) {
        q->n_computed = kv_seq_match(s->opt.kv, q->kv, q->ids, q->n_ids);
        choose_keep(s, q);
    }
    if (!q->is_cached_known)
        q->n_cached = XD_MIN(q->n_computed, q->n_prompt);
    q->is_cached_known = true;
    return true;
}

static void admit(sched *s, uint32_t limit)
{
    for (uint32_t i = 0;
         i < s->waiting.n && s->running.n < s->opt.max_seqs && s->tokens_left && s->rows_left && limit;) {
        sched_seq *q = s->waiting.v[i];
        if (q->held) {
            i++;
            continue;
        }
        if (!prepare(s, q))
            return;
        uint32_t n = chunk_of(s, q, limit);
        while (n && kv_seq_reserve(s->opt.kv, q->kv, q->n_computed + n)) {
            if (!make_room(s, q, false)) {
                /* What was matched stays findable in the cache; swapped-in blocks stay its own. */
                if (!q->n_preempted && holds_blocks(q))
                    drop_blocks(s, q);
                return;
            }
        }
        if (!n)
            return;
        list_remove(&s->waiting, q);
        list_insert(&s->running, q);
        q->state = SCHED_RUNNING;
        put(s, q, n);
        limit -= n;
        /* make_room() may have changed the list before i only by content, not by order: go on at the same place. */
    }
}

/* All places are taken, and the group of the last one runs two turns or more ahead of who waits first: it gives up its place, keeps its
 * blocks while nobody needs them (not its state, of which there is one for each place), and comes back in its turn. One a step: the place
 * is then taken in the same step. */
static void make_place(sched *s)
{
    const sched_seq *first = sched_first_waiting(s);
    if (!first || s->running.n < s->opt.max_seqs)
        return;
    sched_seq *last = s->running.v[s->running.n - 1];
    if (first->priority != last->priority || first->turn + 2 > last->turn)
        return;
    make_wait(s, last);
    if (kv_has_state(s->opt.kv))
        (void)give_up_blocks(s, last);
    s->stats.paused++;
}

const sched_entry *sched_form(sched *s, uint32_t max_prefill_tokens, bool newcomers, uint32_t *ret_n)
{
    s->n_batch = 0;
    s->tokens_left = s->opt.max_tokens;
    s->rows_left = s->opt.max_rows;
    if (newcomers)
        make_place(s);
    bool room = run_running(s, true, NULL);
    uint32_t limit = s->n_batch && max_prefill_tokens ? max_prefill_tokens : UINT32_MAX;
    room = room && run_running(s, false, &limit);
    /* Whoever was preempted in this step must not push back in at once. */
    if (room && (newcomers || !s->n_batch))
        admit(s, limit);
    *ret_n = s->n_batch;
    return s->batch;
}

void sched_fail(sched *s)
{
    for (uint32_t i = 0; kv_has_state(s->opt.kv) && i < s->n_batch; i++) {
        make_wait(s, s->batch[i].seq);
        drop_blocks(s, s->batch[i].seq);
        s->stats.preempted_recompute++;
    }
}

void sched_commit(sched *s)
{
    for (uint32_t i = 0; i < s->n_batch; i++) {
        sched_seq *q = s->batch[i].seq;
        q->n_computed = s->batch[i].pos + s->batch[i].n_tokens;
        kv_seq_commit(s->opt.kv, q->kv, q->ids, q->n_computed);
    }
    s->n_batch = 0; /* sequences may now be removed while the caller still reads the entries */
}

void sched_fork(sched *s, const sched_seq *from, sched_seq *to)
{
    to->held = false;
    if (to->want_prompt_rows || !from->kv || to->kv || kv_seq_is_swapped(from->kv) || to->n_prompt < 2)
        return;
    if (kv_seq_new(s->opt.kv, &to->kv, NULL))
        return;
    to->n_computed = kv_seq_fork(s->opt.kv, from->kv, to->kv, to->n_prompt - 1);
    to->n_cached = from->n_cached;
    to->is_cached_known = true;
}

void sched_get_stats(const sched *s, sched_stats *ret)
{
    *ret = s->stats;
    ret->n_running = s->running.n;
    ret->n_waiting = s->waiting.n;
}

sched_seq *sched_first_waiting(const sched *s)
{
    for (uint32_t i = 0; i < s->waiting.n; i++)
        if (!s->waiting.v[i]->held)
            return s->waiting.v[i];
    return NULL;
}
