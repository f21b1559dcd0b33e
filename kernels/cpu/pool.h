/* pool.h - the worker threads of the CPU backend: one parallel loop at a time, called by the thread that owns the device. */
#ifndef KERNELS_CPU_POOL_H
#define KERNELS_CPU_POOL_H

#include <stdbool.h>
#include <stdint.h>

typedef struct cpu_pool cpu_pool;

/* One task of a loop. `worker` is 0 (the caller) .. pool_count() - 1 and never runs two tasks at once: index of its scratch. */
typedef void cpu_task_fn(void *ctx, uint32_t task, uint32_t worker);

/* patient: workers spin for about a millisecond before they sleep, rather than for some microseconds.
 * n_threads counts the caller; 0: as many as cores allowed to the process. numa_node -1: all nodes. NULL: no memory or threads. */
cpu_pool *pool_open(uint32_t n_threads, int32_t numa_node, bool patient);
cpu_pool *pool_free(cpu_pool *p); /* joins the workers; returns NULL */
uint32_t pool_count(const cpu_pool *p);

/* Runs fn for tasks 0 .. n_tasks - 1 and returns when all have ended. Tasks are taken in order, one by one. */
void pool_run(cpu_pool *p, uint32_t n_tasks, cpu_task_fn *fn, void *ctx);

#endif
