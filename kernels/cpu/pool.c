/* pool.c - worker threads with a start latency of a microsecond while a step runs and no cost when the daemon is idle.
 *
 * DESIGN. A loop is published by storing (generation, tasks not taken) into one 64-bit word, `head`. Workers and the caller take
 * tasks by compare-and-swap on it, so a worker that wakes late takes nothing of a loop that is over and nobody has to wait for it: the
 * caller only waits until every task that was *taken* has ended (`left`).
 *
 * Invariants
 *  1. fn, ctx, n_tasks change only while no task is left. A worker reads them after it saw generation g and before it takes a task
 *     of g; if taking succeeds, loop g had a task left all the while, hence what was read belongs to g. (They are atomics
 *     because a late worker may read them while they change; it then finds no task of g to take. This is why `head` counts
 *     down: a count up would be compared with an n_tasks that may be the next loop's.)
 *  2. `left` is set to n_tasks before `head` is stored, and each taken task decrements it once.
 *  3. Sleep: a worker counts itself in `sleepers`, looks at `head` once more, and waits on `wake`; the caller stores `head`, looks
 *     at `sleepers`, and then changes `wake`. Both orders are seq_cst, so one of them sees the other (Dekker). The caller's
 *     own wait for `left` works in the same way with `caller_waits`.
 *
 * Workers spin before they sleep: longer than the gaps between the operations of a step, far shorter than the gaps between
 * requests. */
#include "kernels/cpu/pool.h"

#include <linux/futex.h>
#include <numa.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* About 20 us on current cores (a pause is 40-140 cycles). */
#define SPIN_ROUNDS 1000
/* Of patient workers, who wait for another device's part of a layer: to wake them would take them as long as they had slept. */
#define PATIENT_ROUNDS (40 * SPIN_ROUNDS)
#define MAX_THREADS    1024

typedef struct worker {
    cpu_pool *pool;
    pthread_t thread;
    uint32_t index;
    int cpu; /* -1: not pinned */
} worker;

struct cpu_pool {
    _Alignas(64) _Atomic uint64_t head; /* generation << 32 | tasks not taken */
    _Alignas(64) _Atomic uint32_t left; /* tasks of the loop that have not ended; also the caller's futex */
    _Alignas(64) _Atomic uint32_t wake; /* the workers' futex */
    _Atomic uint32_t sleepers;
    _Atomic bool caller_waits;
    _Atomic bool quit;
    _Atomic uint32_t n_tasks;
    _Atomic(cpu_task_fn *) fn;
    _Atomic(void *) ctx;
    uint32_t n_threads, n_started, spin_rounds;
    worker workers[];
};

static void futex_wait(_Atomic uint32_t *word, uint32_t seen)
{
    syscall(SYS_futex, (uint32_t *)word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, int count)
{
    syscall(SYS_futex, (uint32_t *)word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void run_tasks(cpu_pool *p, uint32_t generation, uint32_t worker_index)
{
    cpu_task_fn *fn = atomic_load(&p->fn);
    void *ctx = atomic_load(&p->ctx);
    uint32_t n_tasks = atomic_load(&p->n_tasks);
    for (;;) {
        uint64_t head = atomic_load(&p->head);
        do {
            if ((uint32_t)(head >> 32) != generation || (uint32_t)head == 0)
                return;
        } while (!atomic_compare_exchange_weak(&p->head, &head, head - 1));
        fn(ctx, n_tasks - (uint32_t)head, worker_index);
        if (atomic_fetch_sub(&p->left, 1) == 1 && atomic_load(&p->caller_waits))
            futex_wake(&p->left, 1);
    }
}

static void wait_for_loop(cpu_pool *p, uint32_t done_generation)
{
    for (uint32_t i = 0; i < p->spin_rounds; i++) {
        if ((uint32_t)(atomic_load_explicit(&p->head, memory_order_relaxed) >> 32) != done_generation)
            return;
        relax();
    }
    atomic_fetch_add(&p->sleepers, 1);
    uint32_t seen = atomic_load(&p->wake);
    while ((uint32_t)(atomic_load(&p->head) >> 32) == done_generation && !atomic_load(&p->quit)) {
        futex_wait(&p->wake, seen);
        seen = atomic_load(&p->wake);
    }
    atomic_fetch_sub(&p->sleepers, 1);
}

static void *worker_main(void *arg)
{
    worker *w = arg;
    cpu_pool *p = w->pool;
    pthread_setname_np(pthread_self(), "xd-kernel");
    if (w->cpu >= 0) {
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET((size_t)w->cpu, &one);
        /* A cgroup change may have taken the core away since: then it runs unpinned, which is only slower. */
        (void)pthread_setaffinity_np(pthread_self(), sizeof one, &one);
    }
    uint32_t done = 0;
    while (!atomic_load(&p->quit)) {
        wait_for_loop(p, done);
        uint32_t generation = (uint32_t)(atomic_load(&p->head) >> 32);
        if (generation != done)
            run_tasks(p, generation, w->index);
        done = generation;
    }
    return NULL;
}

/* The cores of the process, cut to the node's where they share some. Returns their number. */
static uint32_t allowed_cpus(int32_t numa_node, int *ret_cpus, uint32_t cap)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) < 0)
        return 0;
    if (numa_node >= 0 && numa_available() >= 0 && numa_node <= numa_max_node()) {
        struct bitmask *mask = numa_allocate_cpumask();
        if (mask && numa_node_to_cpus(numa_node, mask) == 0) {
            cpu_set_t near;
            CPU_ZERO(&near);
            for (size_t i = 0; i < CPU_SETSIZE && i < mask->size; i++)
                if (numa_bitmask_isbitset(mask, (unsigned)i) && CPU_ISSET(i, &set))
                    CPU_SET(i, &near);
            if (CPU_COUNT(&near) > 0)
                set = near;
        }
        if (mask)
            numa_free_cpumask(mask);
    }
    uint32_t n = 0;
    for (int i = 0; i < CPU_SETSIZE && n < cap; i++)
        if (CPU_ISSET((size_t)i, &set))
            ret_cpus[n++] = i;
    return n;
}

cpu_pool *pool_open(uint32_t n_threads, int32_t numa_node, bool patient)
{
    int cpus[MAX_THREADS];
    uint32_t n_cpus = allowed_cpus(numa_node, cpus, MAX_THREADS);
    if (n_threads == 0)
        n_threads = n_cpus ? n_cpus : 1;
    if (n_threads > MAX_THREADS)
        n_threads = MAX_THREADS;

    size_t bytes = sizeof(cpu_pool) + n_threads * sizeof(worker);
    cpu_pool *p = aligned_alloc(64, (bytes + 63) & ~(size_t)63);
    if (!p)
        return NULL;
    memset(p, 0, bytes);
    p->n_threads = n_threads;
    p->spin_rounds = patient ? PATIENT_ROUNDS : SPIN_ROUNDS;
    for (uint32_t i = 1; i < n_threads; i++) {
        worker *w = &p->workers[i];
        /* Worker 0 is the caller, which the scheduler keeps off the cores where pinned workers are busy. With more threads than
         * cores (tests) pinning would only stack them. */
        *w = (worker){.pool = p, .index = i, .cpu = n_threads <= n_cpus ? cpus[i] : -1};
        if (pthread_create(&w->thread, NULL, worker_main, w) != 0)
            return pool_free(p);
        p->n_started = i;
    }
    return p;
}

cpu_pool *pool_free(cpu_pool *p)
{
    if (!p)
        return NULL;
    atomic_store(&p->quit, true);
    atomic_fetch_add(&p->wake, 1);
    /* A spinning worker sees no new generation: it ends its spin, finds quit and leaves. */
    futex_wake(&p->wake, MAX_THREADS);
    for (uint32_t i = 1; i <= p->n_started; i++)
        pthread_join(p->workers[i].thread, NULL);
    free(p);
    return NULL;
}

uint32_t pool_count(const cpu_pool *p)
{
    return p->n_threads;
}

void pool_run(cpu_pool *p, uint32_t n_tasks, cpu_task_fn *fn, void *ctx)
{
    if (n_tasks <= 1 || p->n_threads == 1) {
        for (uint32_t i = 0; i < n_tasks; i++)
            fn(ctx, i, 0);
        return;
    }
    atomic_store(&p->fn, fn);
    atomic_store(&p->ctx, ctx);
    atomic_store(&p->n_tasks, n_tasks);
    atomic_store(&p->left, n_tasks);
    uint32_t generation = (uint32_t)(atomic_load(&p->head) >> 32) + 1;
    atomic_store(&p->head, (uint64_t)generation << 32 | n_tasks);
    if (atomic_load(&p->sleepers) > 0) {
        atomic_fetch_add(&p->wake, 1);
        uint32_t wanted = n_tasks - 1 < p->n_threads ? n_tasks - 1 : p->n_threads;
        futex_wake(&p->wake, (int)wanted);
    }

    run_tasks(p, generation, 0);
    for (uint32_t i = 0; i < p->spin_rounds && atomic_load_explicit(&p->left, memory_order_acquire); i++)
        relax();
    if (atomic_load(&p->left) == 0)
        return;
    atomic_store(&p->caller_waits, true);
    for (uint32_t left; (left = atomic_load(&p->left)) != 0;)
        futex_wait(&p->left, left);
    atomic_store(&p->caller_waits, false);
}
