/* dev.cu - opening a GPU, its memory, streams, graphs and clocks; the table of operations of the CUDA backend.
 *
 * Owns the streams, the registered host ranges and the time marks. Does no mathematics. Only plain allocations are used (no managed
 * memory), and no setting of the card is ever changed.
 * Every entry selects the device first, because the current device belongs to the calling thread and copy_async may come from
 * the pager's. For the same reason the list of registered ranges has a lock: an upload or a copy walks it on one thread while another
 * may add or take out ranges. (That nobody unregisters what a copy still reads is the callers' business: copy_wait() first.) */
#include "kernels/cuda/attn.h"
#include "kernels/cuda/cuda_priv.h"
#include "kernels/cuda/experts.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/overlap.cuh"
#include "kernels/cuda/panels.cuh"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#ifndef XD_CUDA_ARCHS
#define XD_CUDA_ARCHS "?"
#endif

/* Memory is registered in pieces by several threads at once: one piece of hundreds of GiB fails as a whole, and one thread pins only
 * 10 GB/s where pages are small and 12 GB/s of anonymous huge pages, four of them 44 GB/s (H200, 16 cores). */
static const uint64_t REGISTER_PIECE_BYTES = 512ull << 20;
static const uint32_t REGISTER_THREADS = 8;

struct host_range {
    host_range *next;
    void *owner; /* the pointer given to host_register */
    void *base;
};

struct kern_graph {
    cudaGraphExec_t exec;
};

kern_status cuda_fail(cuda_dev *d, cudaError_t e, const char *what)
{
    (void)cudaGetLastError();
    snprintf(d->err, sizeof d->err, "%s: %s", what, cudaGetErrorString(e));
    return e == cudaErrorMemoryAllocation ? KERN_NOMEM : KERN_DEVICE;
}

kern_status cuda_unsupported(cuda_dev *d, const char *what)
{
    snprintf(d->err, sizeof d->err, "%s", what);
    return KERN_UNSUPPORTED;
}

static void unregister_owner(cuda_dev *d, void *owner);

static inline cuda_dev *enter(kern_dev *kd)
{
    cuda_dev *d = cuda_of(kd);
    (void)cudaSetDevice(d->gpu);
    return d;
}

/* --- kernels of this file ----------------------------------------------------------------------------------------------- */

__global__ void mark_kernel(uint64_t *slot)
{
    overlap_begin(slot);
}

/* The begin of a recording: a step's inputs. Host memory is read past the caches, which may hold what lay there before. */
__global__ void fetch_kernel(uint32_t *to, const uint32_t *from, uint32_t n)
{
    overlap_begin();
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        to[i] = __ldcv(from + i);
}

/* The end of a recording: stores to host memory wait for the link, so they are made once, at the end. */
__global__ void publish_kernel(const __grid_constant__ cuda_results r)
{
    overlap_begin(r.last);
    __syncthreads();
    if (blockIdx.x == 0)
        for (uint32_t i = threadIdx.x; i < r.n_marks; i += blockDim.x)
            r.marks_host[i] = __ldcg(r.marks + i);
#pragma unroll 1
    for (uint32_t k = 0; k < r.n; k++)
        for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < r.copy[k].words; i += gridDim.x * blockDim.x)
            r.copy[k].to[i] = __ldcg(r.copy[k].from + i);
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x == 0 && atomicAdd(r.ticket, 1u) == gridDim.x - 1) {
        __threadfence_system(); /* what the other blocks stored comes before `done` for the host, too */
        *r.ticket = 0;
        *reinterpret_cast<volatile uint32_t *>(r.done) = ++*r.n_done;
    }
}

/* Reads n 16-byte words, eight loads in flight a thread. The time is taken here, first block to last: events would add whatever keeps the
 * host from launching the kernel behind the first of them. */
__global__ void __launch_bounds__(256)
    probe_kernel(const uint4 *p, uint64_t n, float *sink, unsigned long long *first_ns, unsigned long long *last_ns)
{
    if (threadIdx.x == 0)
        atomicMin(first_ns, (unsigned long long)global_ns());
    const uint64_t step = (uint64_t)gridDim.x * blockDim.x * 8;
    uint32_t acc = 0;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x * 8 + threadIdx.x; i < n; i += step) {
        uint4 v[8];
#pragma unroll
        for (int j = 0; j < 8; j++) {
            uint64_t k = i + (uint64_t)j * blockDim.x;
            v[j] = k < n ? __ldcs(p + k) : make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (int j = 0; j < 8; j++)
            acc ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
    }
    if (acc == 0x9e3779b9u) /* practically never: keeps the loads alive */
        *sink = 1.0f;
    __syncthreads();
    if (threadIdx.x == 0)
        atomicMax(last_ns, (unsigned long long)global_ns());
}

/* --- device ------------------------------------------------------------------------------------------------------------- */

static void dev_close(kern_dev *kd)
{
    if (!kd)
        return;
    cuda_dev *d = enter(kd);
    if (d->stream)
        cudaStreamSynchronize(d->stream);
    if (d->copy)
        cudaStreamSynchronize(d->copy);
    if (d->side)
        cudaStreamSynchronize(d->side);
    if (d->ahead)
        cudaStreamSynchronize(d->ahead);
    unregister_owner(d, nullptr);
    if (d->marks)
        cudaFreeHost(d->marks);
    if (d->done)
        cudaFreeHost(d->done);
    if (d->sink)
        cudaFree(d->sink);
    if (d->counters)
        cudaFree(d->counters);
    if (d->marks_gpu)
        cudaFree(d->marks_gpu);
    if (d->small)
        cudaFree(d->small);
    if (d->stream)
        cudaStreamDestroy(d->stream);
    if (d->copy)
        cudaStreamDestroy(d->copy);
    if (d->side)
        cudaStreamDestroy(d->side);
    if (d->ahead)
        cudaStreamDestroy(d->ahead);
    if (d->ahead_begun)
        cudaEventDestroy(d->ahead_begun);
    if (d->ahead_done)
        cudaEventDestroy(d->ahead_done);
    for (int i = 0; i < 2; i++) {
        if (d->stage_free[i])
            cudaEventDestroy(d->stage_free[i]);
        if (d->stage_done[i])
            cudaEventDestroy(d->stage_done[i]);
    }
    (void)cudaGetLastError();
    pthread_mutex_destroy(&d->ranges_lock);
    free(d);
}

/* The node that sysfs names for the card; -1 where the machine has one node or does not say. */
static int numa_node_of(const char *bus_id)
{
    char path[128], id[32];
    snprintf(id, sizeof id, "%s", bus_id);
    for (char *c = id; *c; c++)
        if (*c >= 'A' && *c <= 'Z')
            *c = (char)(*c - 'A' + 'a');
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/numa_node", id);
    FILE *f = fopen(path, "re");
    int node = -1;
    if (f) {
        if (fscanf(f, "%d", &node) != 1)
            node = -1;
        fclose(f);
    }
    return node;
}

/* Operations of dense 16-bit products (32-bit sums) a clock and multiprocessor, from NVIDIA's architecture papers; 0: unknown. */
static double matrix_ops_a_clock(const cudaDeviceProp *p)
{
    switch (p->major * 10 + p->minor) {
    case 80: return 2048;
    case 86:
    case 89: return 1024;
    case 90: return 4096;
    case 100: return 8192;
    case 120: return 1024;
    default: return 0;
    }
}

static void dev_info(kern_dev *kd, kern_dev_info *ret)
{
    cuda_dev *d = enter(kd);
    memset(ret, 0, sizeof *ret);
    snprintf(ret->name, sizeof ret->name, "%.63s", d->prop.name);
    snprintf(ret->rows, sizeof ret->rows, "cuda sm_%d%d: linear=stream%s moe=stream%s attention=%s%s", d->prop.major,
             d->prop.minor, d->no_tile ? "" : "+tile", d->no_tile ? "" : "+tile", d->no_attn_mma ? "simple" : "mma",
             d->overlap ? " overlapping" : "");
    size_t free_bytes = 0, total = 0;
    if (cudaMemGetInfo(&free_bytes, &total) == cudaSuccess) {
        ret->memory_bytes = total;
        ret->memory_free_bytes = free_bytes;
    }
    int ro = 0;
    (void)cudaDeviceGetAttribute(&ro, cudaDevAttrHostRegisterReadOnlySupported, d->gpu);
    ret->can_register_readonly = ro != 0;
    ret->can_record = true;
    if (cudaDeviceGetPCIBusId(ret->pci_bus_id, sizeof ret->pci_bus_id, d->gpu) != cudaSuccess)
        ret->pci_bus_id[0] = 0;
    ret->numa_node = ret->pci_bus_id[0] ? numa_node_of(ret->pci_bus_id) : -1;
    ret->n_units = (uint32_t)d->n_sm;
    int khz = 0;
    if (cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, d->gpu) == cudaSuccess)
        ret->matrix_tflops = matrix_ops_a_clock(&d->prop) * d->n_sm * khz * 1e-9;
    (void)cudaGetLastError();
}

static const char *dev_error(kern_dev *kd)
{
    return cuda_of(kd)->err;
}

/* --- memory ------------------------------------------------------------------------------------------------------------- */

static kern_status dev_alloc(kern_dev *kd, uint64_t bytes, void **ret)
{
    cuda_dev *d = enter(kd);
    void *p = nullptr;
    if (!bytes)
        bytes = 1;
    /* Kernels fetch the whole 16-byte units that cover their data: the last one belongs to the allocation too. */
    cudaError_t e = cudaMalloc(&p, (bytes + 255) & ~255ull);
    if (e != cudaSuccess) {
        kern_status st = cuda_fail(d, e, "cudaMalloc");
        size_t free_bytes = 0, total = 0;
        (void)cudaMemGetInfo(&free_bytes, &total);
        (void)cudaGetLastError();
        snprintf(d->err, sizeof d->err, "%.1f MiB of device memory were asked for, %.1f of %.1f MiB are free (%s)",
                 (double)bytes / 1048576, (double)free_bytes / 1048576, (double)total / 1048576, cudaGetErrorString(e));
        return st;
    }
    *ret = p;
    return KERN_OK;
}

static void dev_free(kern_dev *kd, void *p)
{
    enter(kd);
    (void)cudaFree(p);
}

static kern_status dev_alloc_host(kern_dev *kd, uint64_t bytes, void **ret)
{
    cuda_dev *d = enter(kd);
    void *p = nullptr;
    cudaError_t e = cudaHostAlloc(&p, bytes ? bytes : 1, cudaHostAllocMapped | cudaHostAllocPortable);
    if (e != cudaSuccess)
        return cuda_fail(d, e, "pinned host memory");
    *ret = p;
    return KERN_OK;
}

static void dev_free_host(kern_dev *kd, void *p)
{
    enter(kd);
    (void)cudaFreeHost(p);
}

struct host_piece {
    void *base;
    uint64_t bytes;
    cudaError_t e;
};

struct host_work {
    int gpu;
    unsigned flags;
    bool pin; /* register, else unregister */
    host_piece *pieces;
    uint32_t n, next;
};

static void *host_worker(void *arg)
{
    host_work *w = static_cast<host_work *>(arg);
    (void)cudaSetDevice(w->gpu);
    for (uint32_t i; (i = __atomic_fetch_add(&w->next, 1, __ATOMIC_RELAXED)) < w->n;) {
        host_piece *p = &w->pieces[i];
        p->e = w->pin ? cudaHostRegister(p->base, p->bytes, w->flags) : cudaHostUnregister(p->base);
    }
    (void)cudaGetLastError(); /* each thread has its own */
    return nullptr;
}

static void run_pieces(host_work *w)
{
    pthread_t t[REGISTER_THREADS];
    uint32_t started = 0;
    while (started + 1 < REGISTER_THREADS && started + 1 < w->n &&
           !pthread_create(&t[started], nullptr, host_worker, w))
        started++;
    host_worker(w); /* alone when no thread could be had */
    while (started)
        pthread_join(t[--started], nullptr);
}

/* All of `owner`, or of everybody (NULL). */
static void unregister_owner(cuda_dev *d, void *owner)
{
    uint32_t n = 0;
    host_range *taken = nullptr;
    pthread_mutex_lock(&d->ranges_lock);
    for (host_range **pp = &d->ranges; *pp;) {
        host_range *r = *pp;
        if (owner && r->owner != owner) {
            pp = &r->next;
            continue;
        }
        *pp = r->next;
        r->next = taken;
        taken = r;
        n++;
    }
    pthread_mutex_unlock(&d->ranges_lock);
    host_piece *pieces = static_cast<host_piece *>(calloc(n ? n : 1, sizeof *pieces));
    host_work w = {d->gpu, 0, false, pieces, 0, 0};
    while (taken) {
        host_range *r = taken;
        taken = r->next;
        if (pieces)
            pieces[w.n++].base = r->base;
        else
            (void)cudaHostUnregister(r->base);
        free(r);
    }
    if (w.n)
        run_pieces(&w);
    free(pieces);
    (void)cudaGetLastError();
}

/* Notes every piece that was registered; the first error, or cudaSuccess. */
static cudaError_t register_pieces(cuda_dev *d, void *owner, uintptr_t begin, uintptr_t end, unsigned flags,
                                   uintptr_t *ret_bad)
{
    const uint32_t n = (uint32_t)((end - begin + REGISTER_PIECE_BYTES - 1) / REGISTER_PIECE_BYTES);
    host_piece *pieces = static_cast<host_piece *>(calloc(n, sizeof *pieces));
    *ret_bad = begin;
    if (!pieces)
        return cudaErrorMemoryAllocation;
    for (uint32_t i = 0; i < n; i++) {
        const uintptr_t at = begin + i * REGISTER_PIECE_BYTES;
        pieces[i].base = (void *)at;
        pieces[i].bytes = end - at < REGISTER_PIECE_BYTES ? end - at : REGISTER_PIECE_BYTES;
    }
    host_work w = {d->gpu, flags, true, pieces, n, 0};
    run_pieces(&w);
    cudaError_t e = cudaSuccess;
    host_range *made = nullptr, **last = &made;
    for (uint32_t i = 0; i < n; i++) {
        host_range *r = pieces[i].e == cudaSuccess ? static_cast<host_range *>(malloc(sizeof *r)) : nullptr;
        if (pieces[i].e == cudaSuccess && !r) {
            (void)cudaHostUnregister(pieces[i].base);
            pieces[i].e = cudaErrorMemoryAllocation;
        }
        if (r) {
            *r = host_range{nullptr, owner, pieces[i].base};
            *last = r;
            last = &r->next;
        } else if (e == cudaSuccess) {
            e = pieces[i].e;
            *ret_bad = (uintptr_t)pieces[i].base;
        }
    }
    pthread_mutex_lock(&d->ranges_lock);
    *last = d->ranges;
    d->ranges = made;
    pthread_mutex_unlock(&d->ranges_lock);
    free(pieces);
    return e;
}

static kern_status dev_host_register(kern_dev *kd, void *p, uint64_t bytes, bool read_only, uint64_t *ret_addr)
{
    cuda_dev *d = enter(kd);
    if (!p || !bytes)
        return KERN_ARG;
    const uintptr_t page = 4096;
    const uintptr_t begin = (uintptr_t)p & ~(page - 1), end = ((uintptr_t)p + bytes + page - 1) & ~(page - 1);
    unsigned flags = cudaHostRegisterMapped | cudaHostRegisterPortable;
    if (read_only)
        flags |= cudaHostRegisterReadOnly;
    uintptr_t bad;
    cudaError_t e = register_pieces(d, p, begin, end, flags, &bad);
    void *dp = nullptr;
    if (e == cudaSuccess && (e = cudaHostGetDevicePointer(&dp, (void *)begin, 0)) == cudaSuccess &&
        (uintptr_t)dp != begin) {
        unregister_owner(d, p);
        return cuda_unsupported(d,
                                "registered host memory has another address on this GPU: unified addressing is needed");
    }
    if (e != cudaSuccess) {
        unregister_owner(d, p);
        kern_status st = cuda_fail(d, e, "cudaHostRegister");
        snprintf(
            d->err, sizeof d->err,
            "host memory cannot be registered with the GPU: %.1f MiB, at offset %.1f MiB%s: %s (RLIMIT_MEMLOCK must "
            "allow it)",
            (double)bytes / 1048576, (double)(bad - begin) / 1048576, read_only ? ", read-only" : "",
            cudaGetErrorString(e));
        return st;
    }
    *ret_addr = (uint64_t)(uintptr_t)p;
    return KERN_OK;
}

static void dev_host_unregister(kern_dev *kd, void *p)
{
    unregister_owner(enter(kd), p);
}

/* --- streams and graphs ------------------------------------------------------------------------------------------------- */

void cuda_flush_mark(cuda_dev *d)
{
    uint64_t *m = cuda_take_mark(d);
    if (m)
        (void)cuda_start(d, mark_kernel, 1, 1, 0, m);
}

/* How many of the n bytes from `host` on lie before the next registration begins. */
static uint64_t bytes_to_next_range(cuda_dev *d, uintptr_t host, uint64_t n)
{
    pthread_mutex_lock(&d->ranges_lock);
    for (const host_range *r = d->ranges; r; r = r->next)
        if ((uintptr_t)r->base > host && (uintptr_t)r->base - host < n)
            n = (uintptr_t)r->base - host;
    pthread_mutex_unlock(&d->ranges_lock);
    return n;
}

/* One copy must not cross from one registration to the next ("invalid argument"), and a page of weights or a KV block may. */
static cudaError_t copy_pieces(cuda_dev *d, void *dst, const void *src, uint64_t bytes, bool host_is_dst,
                               cudaMemcpyKind kind, cudaStream_t stream)
{
    cudaError_t e = cudaSuccess;
    for (uint64_t at = 0, n; at < bytes && e == cudaSuccess; at += n) {
        const uintptr_t host = (uintptr_t)(host_is_dst ? dst : src) + at;
        n = bytes_to_next_range(d, host, bytes - at);
        e = cudaMemcpyAsync((char *)dst + at, (const char *)src + at, n, kind, stream);
    }
    return e;
}

static kern_status dev_upload(kern_dev *kd, void *dst, const void *src, uint64_t bytes)
{
    cuda_dev *d = enter(kd);
    cuda_flush_mark(d);
    if (d->recording) {
        const uint32_t words = (uint32_t)(bytes / 4), blocks = (words + 255) / 256;
        (void)cuda_start(d, fetch_kernel, blocks < 64 ? blocks : 64, 256, 0, (uint32_t *)dst, (const uint32_t *)src,
                         words);
        d->joined = true; /* kernels may read it before they wait */
        return cuda_launched(d, "upload");
    }
    cudaError_t e = copy_pieces(d, dst, src, bytes, false, cudaMemcpyHostToDevice, d->stream);
    return e == cudaSuccess ? KERN_OK : cuda_fail(d, e, "upload");
}

static kern_status dev_download(kern_dev *kd, void *dst, const void *src, uint64_t bytes)
{
    cuda_dev *d = enter(kd);
    if (d->recording) {
        if (d->results.n == CUDA_MAX_RESULTS)
            return cuda_unsupported(d, "more downloads in a recording than planned");
        d->results.copy[d->results.n++] = {(uint32_t *)dst, (const uint32_t *)src, (uint32_t)(bytes / 4)};
        return KERN_OK;
    }
    cuda_flush_mark(d);
    cudaError_t e = copy_pieces(d, dst, src, bytes, true, cudaMemcpyDeviceToHost, d->stream);
    return e == cudaSuccess ? KERN_OK : cuda_fail(d, e, "download");
}

static kern_status dev_clear(kern_dev *kd, void *dst, uint64_t bytes)
{
    cuda_dev *d = enter(kd);
    cuda_flush_mark(d);
    cudaError_t e = cudaMemsetAsync(dst, 0, bytes, d->stream);
    d->joined = true; /* no kernel: the next one cannot begin while it runs */
    return e == cudaSuccess ? KERN_OK : cuda_fail(d, e, "clear");
}

static kern_status dev_sync(kern_dev *kd)
{
    cuda_dev *d = enter(kd);
    cuda_flush_mark(d);
    cudaError_t e = cudaStreamSynchronize(d->stream);
    return e == cudaSuccess ? KERN_OK : cuda_fail(d, e, "work on the GPU");
}

static kern_status dev_copy_async(kern_dev *kd, void *dst, const void *src, uint64_t bytes)
{
    cuda_dev *d = enter(kd);
    /* No note in d->err: the text belongs to the engine's thread. */
    return copy_pieces(d, dst, src, bytes, false, cudaMemcpyDefault, d->copy) == cudaSuccess ? KERN_OK : KERN_DEVICE;
}

static kern_status dev_copy_wait(kern_dev *kd)
{
    cuda_dev *d = enter(kd);
    return cudaStreamSynchronize(d->copy) == cudaSuccess ? KERN_OK : KERN_DEVICE;
}

static kern_status dev_graph_begin(kern_dev *kd)
{
    cuda_dev *d = enter(kd);
    cuda_flush_mark(d);
    cudaError_t e = cudaStreamBeginCapture(d->stream, cudaStreamCaptureModeThreadLocal);
    d->recording = e == cudaSuccess;
    d->n_recorded_marks = 0;
    d->results.n = 0;
    d->reads_ahead = false;
    d->held_sms = 0;
    return e == cudaSuccess ? KERN_OK : cuda_fail(d, e, "begin of a recording");
}

static kern_status dev_graph_end(kern_dev *kd, kern_graph **ret)
{
    cuda_dev *d = enter(kd);
    cudaGraph_t g = nullptr;
    d->results.last = cuda_take_mark(d);
    d->results.marks = d->marks_gpu;
    d->results.marks_host = d->marks_dev;
    d->results.n_marks = d->n_recorded_marks;
    d->results.ticket = &d->small->result_ticket;
    d->results.n_done = &d->small->n_done;
    d->results.done = d->done;
    uint32_t words = 1;
    for (uint32_t k = 0; k < d->results.n; k++)
        words = d->results.copy[k].words > words ? d->results.copy[k].words : words;
    const uint32_t blocks = (words + 1023) / 1024;
    (void)cuda_start(d, publish_kernel, blocks < 16 ? blocks : 16, 256, 0, d->results);
    if (d->reads_ahead) /* nothing comes behind it, but a recording has one end */
        (void)cudaStreamWaitEvent(d->stream, d->ahead_done, 0);
    d->recording = false;
    d->held_sms = 0;
    cudaError_t e = cudaStreamEndCapture(d->stream, &g);
    if (e != cudaSuccess)
        return cuda_fail(d, e, "end of a recording");
    kern_graph *kg = static_cast<kern_graph *>(calloc(1, sizeof *kg));
    if (!kg) {
        cudaGraphDestroy(g);
        return cuda_fail(d, cudaErrorMemoryAllocation, "recording");
    }
    e = cudaGraphInstantiate(&kg->exec, g, 0);
    cudaGraphDestroy(g);
    if (e != cudaSuccess) {
        free(kg);
        return cuda_fail(d, e, "instantiating a recording");
    }
    *ret = kg;
    return KERN_OK;
}

static kern_status dev_graph_launch(kern_dev *kd, kern_graph *g)
{
    cuda_dev *d = enter(kd);
    cudaError_t e = cudaGraphLaunch(g->exec, d->stream);
    if (e != cudaSuccess)
        return cuda_fail(d, e, "launch of a recording");
    d->n_replays++;
    return KERN_OK;
}

/* The driver tells the end of a stream's work some microseconds later than the work itself can. */
static kern_status dev_graph_wait(kern_dev *kd)
{
    enum { LOOKS = 2048 }; /* before the driver is asked whether all is well */
    cuda_dev *d = enter(kd);
    for (uint32_t i = 1; __atomic_load_n(d->done, __ATOMIC_ACQUIRE) != d->n_replays; i++) {
#ifdef __x86_64__
        __builtin_ia32_pause();
#endif
        if (i % LOOKS)
            continue;
        cudaError_t e = cudaStreamQuery(d->stream);
        if (e == cudaSuccess)
            d->n_replays = __atomic_load_n(d->done, __ATOMIC_ACQUIRE);
        else if (e != cudaErrorNotReady)
            return cuda_fail(d, e, "work on the GPU");
        else
            (void)cudaGetLastError();
    }
    return KERN_OK;
}

static void dev_graph_free(kern_dev *kd, kern_graph *g)
{
    if (!g)
        return;
    enter(kd);
    (void)cudaGraphExecDestroy(g->exec);
    free(g);
}

/* --- measurement -------------------------------------------------------------------------------------------------------- */

static kern_status dev_probe_read(kern_dev *kd, uint64_t addr, uint64_t bytes, double *ret_gbps)
{
    cuda_dev *d = enter(kd);
    const uint64_t first = (addr + 15) & ~15ull, n = (addr + bytes - first) / 16;
    if (bytes < 4096)
        return KERN_ARG;
    /* On a link that others use too, a reader's share grows with what it asks for at a time: beside one stream of copies, all
     * multiprocessors with four blocks each got 46 of 51 GB/s, a quarter of them with one block each 27, and the experts' kernel about
     * 30. The probe must not be better off than that one. */
    cudaPointerAttributes at = {};
    const bool vram =
        cudaPointerGetAttributes(&at, (const void *)first) == cudaSuccess && at.type == cudaMemoryTypeDevice;
    const int blocks = vram ? d->n_sm * 4 : (d->n_sm + 3) / 4;
    /* A short pass first: module load and the first touch of the mapping stay out of the number. */
    unsigned long long *t = d->small->probe_ns, ns[2];
    probe_kernel<<<blocks, 256, 0, d->stream>>>((const uint4 *)first, n < 65536 ? n : 65536, d->sink, t, t + 1);
    cudaError_t e = cudaMemsetAsync(t, 0xff, sizeof *t, d->stream);
    if (e == cudaSuccess)
        e = cudaMemsetAsync(t + 1, 0, sizeof *t, d->stream);
    probe_kernel<<<blocks, 256, 0, d->stream>>>((const uint4 *)first, n, d->sink, t, t + 1);
    if (e == cudaSuccess)
        e = cudaMemcpyAsync(ns, t, sizeof ns, cudaMemcpyDeviceToHost, d->stream);
    if (e == cudaSuccess)
        e = cudaStreamSynchronize(d->stream);
    if (e != cudaSuccess)
        return cuda_fail(d, e, "probe of the read rate");
    *ret_gbps = ns[1] > ns[0] ? (double)n * 16 / (double)(ns[1] - ns[0]) : 0;
    return KERN_OK;
}

static kern_status dev_mark(kern_dev *kd, uint32_t slot)
{
    cuda_dev *d = enter(kd);
    if (slot >= KERN_MARKS)
        return KERN_ARG;
    cuda_flush_mark(d);
    d->mark = (d->recording ? d->marks_gpu : d->marks_dev) + slot;
    if (d->recording && slot >= d->n_recorded_marks)
        d->n_recorded_marks = slot + 1;
    return cuda_launched(d, "mark");
}

static kern_status dev_mark_ns(kern_dev *kd, uint32_t a, uint32_t b, uint64_t *ret_ns)
{
    cuda_dev *d = cuda_of(kd);
    if (a >= KERN_MARKS || b >= KERN_MARKS)
        return KERN_ARG;
    const uint64_t ta = d->marks[a], tb = d->marks[b];
    *ret_ns = tb > ta ? tb - ta : 0;
    return KERN_OK;
}

/* --- opening ------------------------------------------------------------------------------------------------------------ */

/* What linear, attention, rope_kv, moe, delta, shortconv and ssm check at each call, in one place for those who ask first. */
static kern_status dev_takes(kern_dev *kd, const kern_shape *s)
{
    cuda_dev *d = cuda_of(kd);
    if (s->head_dim > (s->v_dim ? ATTN_MAX_LATENT : ATTN_MAX_HEAD))
        return cuda_unsupported(d, s->v_dim ? "latent heads of more than 1024 dimensions"
                                            : "heads of more than 512 dimensions");
    if (s->n_experts > MM_MAX_EXPERTS)
        return cuda_unsupported(d, "more than 1024 experts in a layer");
    if (s->expert_fmt[0] != s->expert_fmt[1])
        return cuda_unsupported(d, "experts whose gate and up are of different formats");
    const char *why = s->delta.n_v_heads      ? cuda_delta_refuses(&s->delta)
                      : s->shortconv.channels ? cuda_shortconv_refuses(&s->shortconv)
                      : s->ssm.n_heads        ? cuda_ssm_refuses(&s->ssm)
                            : s->index_heads  ? cuda_index_refuses(s->index_heads, s->index_dim)
                                              : nullptr;
    if (why)
        return cuda_unsupported(d, why);
    for (uint32_t i = 0; i < s->n_mats; i++) {
        if (!mm_shape_ok(s->mats[i].fmt, s->mats[i].cols, s->mats[i].row_bytes))
            return cuda_unsupported(d, "a matrix whose columns are no multiple of 4 (of a format's block; MXFP4: 64)");
    }
    return KERN_OK;
}

static const kern_ops cuda_ops = {
    dev_close,
    dev_info,
    dev_error,
    dev_takes,
    dev_alloc,
    dev_free,
    dev_alloc_host,
    dev_free_host,
    dev_host_register,
    dev_host_unregister,
    dev_upload,
    dev_download,
    dev_clear,
    dev_sync,
    dev_copy_async,
    dev_copy_wait,
    dev_graph_begin,
    dev_graph_end,
    dev_graph_launch,
    dev_graph_wait,
    dev_graph_free,
    cuda_embed,
    cuda_rmsnorm,
    cuda_layernorm,
    cuda_linear,
    cuda_linear_heads,
    cuda_swiglu,
    cuda_qkv_norm,
    cuda_rope_kv,
    cuda_attention,
    cuda_router,
    cuda_plan,
    cuda_route,
    cuda_moe,
    cuda_argmax,
    cuda_top_logits,
    cuda_attn_scratch_bytes,
    cuda_moe_scratch_bytes,
    cuda_linear_scratch_bytes,
    cuda_delta,
    cuda_delta_scratch_bytes,
    cuda_shortconv,
    cuda_ssm,
    cuda_ssm_scratch_bytes,
    cuda_gate,
    cuda_softcap,
    cuda_index_rope,
    cuda_index,
    cuda_index_scratch_bytes,
    dev_probe_read,
    dev_mark,
    dev_mark_ns,
    cuda_kv_stage,
    cuda_kv_stage_wait,
    cuda_ahead_bytes,
    cuda_ahead_fits,
    cuda_ahead_begin,
    cuda_ahead_end,
    cuda_add,
};

static bool listed(const char *list, const char *word)
{
    const size_t n = strlen(word);
    for (const char *p = list; p && *p;) {
        const char *e = strchr(p, ',');
        const size_t len = e ? (size_t)(e - p) : strlen(p);
        if (len == n && memcmp(p, word, n) == 0)
            return true;
        p = e ? e + 1 : nullptr;
    }
    return false;
}

static kern_status open_failed(cuda_dev *d, kern_status st, cudaError_t e, const char *what, char *why, size_t cap)
{
    snprintf(why, cap, "%s: %s", what, cudaGetErrorString(e));
    dev_close(&d->base);
    return st;
}

#define VERSION(v) (v) / 1000, (v) % 1000 / 10 /* "%d.%d" of CUDA's way to count: 12040 is 12.4 */

/* The one symbol that kernels/cuda_loader.c looks up. */
extern "C" __attribute__((visibility("default"))) kern_status kern_cuda_entry(const kern_options *opt, kern_dev **ret,
                                                                              char *why, size_t cap)
{
    if (listed(opt->disable, "cuda")) {
        snprintf(why, cap, "switched off by the list of disabled kernels");
        return KERN_UNSUPPORTED;
    }
    int n = 0, driver = 0;
    cudaError_t e = cudaGetDeviceCount(&n);
    if (e != cudaSuccess || n == 0) {
        (void)cudaDriverGetVersion(&driver);
        (void)cudaGetLastError();
        if (driver == 0)
            snprintf(why, cap, "no NVIDIA driver (libcuda.so.1) is installed on this machine");
        else
            snprintf(why, cap, "no usable GPU: %s (driver: CUDA %d.%d, this build: %d.%d)", cudaGetErrorString(e),
                     VERSION(driver), VERSION(CUDART_VERSION));
        return KERN_DEVICE;
    }
    if ((int)opt->gpu >= n) {
        snprintf(why, cap, "GPU %u was asked for, but only %d are visible (numbers begin at 0)", opt->gpu, n);
        return KERN_ARG;
    }
    cuda_dev *d = static_cast<cuda_dev *>(calloc(1, sizeof *d));
    if (!d) {
        snprintf(why, cap, "out of memory");
        return KERN_NOMEM;
    }
    d->base.ops = &cuda_ops;
    pthread_mutex_init(&d->ranges_lock, nullptr);
    d->gpu = (int)opt->gpu;
    d->no_tile = listed(opt->disable, "cuda_tile");
    d->no_attn_mma = listed(opt->disable, "cuda_attn_mma");

    if ((e = cudaGetDeviceProperties(&d->prop, d->gpu)) != cudaSuccess || (e = cudaSetDevice(d->gpu)) != cudaSuccess)
        return open_failed(d, KERN_DEVICE, e, "opening the GPU", why, cap);
    cudaFuncAttributes fa;
    e = cudaFuncGetAttributes(&fa, probe_kernel);
    if (e == cudaErrorUnsupportedPtxVersion) {
        (void)cudaDriverGetVersion(&driver);
        snprintf(why, cap,
                 "%s: this build is of CUDA %d.%d, and the driver, of %d.%d, is too old to compile it for sm_%d%d",
                 d->prop.name, VERSION(CUDART_VERSION), VERSION(driver), d->prop.major, d->prop.minor);
        (void)cudaGetLastError();
        dev_close(&d->base);
        return KERN_UNSUPPORTED;
    }
    if (e == cudaErrorNoKernelImageForDevice || e == cudaErrorInvalidDeviceFunction) {
        snprintf(why, cap, "%s has compute capability %d.%d; this build supports %s", d->prop.name, d->prop.major,
                 d->prop.minor, XD_CUDA_ARCHS);
        (void)cudaGetLastError();
        dev_close(&d->base);
        return KERN_UNSUPPORTED;
    }
    if (e != cudaSuccess)
        return open_failed(d, KERN_DEVICE, e, "loading the kernels", why, cap);
    /* One division of L1 and shared memory for all kernels: a kernel that wants another begins only when its multiprocessor is idle. */
    (void)cudaDeviceSetCacheConfig(cudaFuncCachePreferShared);
    d->n_sm = d->prop.multiProcessorCount;
    /* Code made for older chips, compiled when it was loaded, does not wait for the kernel before. */
    d->has_bulk = d->prop.major >= 9 && fa.ptxVersion >= 90;
    if ((e = panels_for_wgmma(&d->wgmma)) != cudaSuccess)
        return open_failed(d, KERN_DEVICE, e, "loading the kernels", why, cap);
    /* Older drivers cannot record that a kernel begins before the one ahead of it has ended. */
    (void)cudaDriverGetVersion(&driver);
    d->overlap = d->has_bulk && driver >= 12030 && !listed(opt->disable, "cuda_overlap");
    d->smem_max = (int)d->prop.sharedMemPerBlockOptin;
    if (listed(opt->disable, "cuda_large_smem") && d->smem_max > CUDA_LEAST_SMEM)
        d->smem_max = CUDA_LEAST_SMEM;

    int least = 0, greatest = 0;
    if ((e = cudaDeviceGetStreamPriorityRange(&least, &greatest)) != cudaSuccess ||
        (e = cudaStreamCreateWithPriority(&d->stream, cudaStreamNonBlocking, greatest)) != cudaSuccess ||
        (e = cudaStreamCreateWithPriority(&d->copy, cudaStreamNonBlocking, least)) != cudaSuccess ||
        (e = cudaHostAlloc((void **)&d->marks, KERN_MARKS * sizeof(uint64_t), cudaHostAllocMapped)) != cudaSuccess ||
        (e = cudaHostGetDevicePointer((void **)&d->marks_dev, d->marks, 0)) != cudaSuccess ||
        (e = cudaHostAlloc((void **)&d->done, sizeof *d->done, cudaHostAllocMapped)) != cudaSuccess ||
        (e = cudaMalloc((void **)&d->sink, 256)) != cudaSuccess ||
        (e = cudaMalloc((void **)&d->counters, WARP_N_COUNTERS * sizeof(uint32_t))) != cudaSuccess ||
        (e = cudaMemset(d->counters, 0, WARP_N_COUNTERS * sizeof(uint32_t))) != cudaSuccess ||
        (e = cudaMalloc((void **)&d->marks_gpu, KERN_MARKS * sizeof(uint64_t))) != cudaSuccess ||
        (e = cudaMalloc((void **)&d->small, sizeof *d->small)) != cudaSuccess ||
        (e = cudaMemset(d->small, 0, sizeof *d->small)) != cudaSuccess)
        return open_failed(d, e == cudaErrorMemoryAllocation ? KERN_NOMEM : KERN_DEVICE, e, "preparing the GPU", why,
                           cap);
    /* As urgent as the rest: it is what the next layer will wait for, and takes next to nothing from this one. */
    if ((e = cudaStreamCreateWithPriority(&d->ahead, cudaStreamNonBlocking, greatest)) == cudaSuccess &&
        (e = cudaEventCreateWithFlags(&d->ahead_begun, cudaEventDisableTiming)) == cudaSuccess &&
        (e = cudaEventCreateWithFlags(&d->ahead_done, cudaEventDisableTiming)) == cudaSuccess)
        e = cudaStreamCreateWithPriority(&d->side, cudaStreamNonBlocking, greatest);
    for (int i = 0; i < 2 && e == cudaSuccess; i++) {
        e = cudaEventCreateWithFlags(&d->stage_free[i], cudaEventDisableTiming);
        if (e == cudaSuccess)
            e = cudaEventCreateWithFlags(&d->stage_done[i], cudaEventDisableTiming);
    }
    if (e != cudaSuccess)
        return open_failed(d, KERN_DEVICE, e, "preparing the GPU", why, cap);
    memset(d->marks, 0, KERN_MARKS * sizeof(uint64_t));
    *d->done = 0;
    *ret = &d->base;
    return KERN_OK;
}
