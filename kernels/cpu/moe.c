/* moe.c - the routed experts of a layer: sorting (token, pick) pairs by expert, and the expert networks over their pages.
 *
 * DESIGN. Two loops over the pool.
 *  1. Task (touched expert, block of rows): gate and up rows for all tokens of the bucket, then what they become into `hidden`, one row a
 *     pair in the order of `pairs`.
 *  2. Task (block of rows of d_model): down rows of every touched expert for its pairs, then each token's picks are
 *     weighed and added in order. Working across the experts, a task owns its columns of y: no locks, no order of arrival.
 * Both give even work to all threads with a single token, read each weight once a step, and keep a block's rows in cache while
 * the tokens of the bucket pass over it. Where a page is to be filled, the task that reads rows also stores them: the blocks
 * of a page cover all its rows, so it arrives whole. */
#include "kernels/cpu/cpu_priv.h"

/* A loop ends when its last task does: each thread should have so many, down to blocks of so many rows. */
#define TASKS_EACH 8
#define LEAST_ROWS 8
/* Pairs a dot call gets at most. */
#define PAIR_GROUP 64
#define NOWHERE    UINT32_MAX

kern_status cpu_plan(kern_dev *dev, const kern_plan_args *a)
{
    (void)dev;
    uint32_t n_tokens = a->n_live ? MIN(*a->n_live, a->n_tokens) : a->n_tokens, n_pairs = n_tokens * a->top_k;
    memset(a->expert_count, 0, a->n_experts * sizeof *a->expert_count);
    for (uint32_t i = 0; i < n_pairs; i++)
        a->expert_count[a->ids[i]]++;
    uint32_t start = 0;
    for (uint32_t e = 0; e < a->n_experts; e++) {
        a->expert_start[e] = start;
        start += a->expert_count[e];
    }
    /* expert_start serves as the cursor of each expert and is one expert ahead afterwards: shift it back. */
    for (uint32_t i = 0; i < n_pairs; i++)
        a->pairs[a->expert_start[a->ids[i]]++] = i;
    memmove(a->expert_start + 1, a->expert_start, a->n_experts * sizeof *a->expert_start);
    a->expert_start[0] = 0;

    if (!a->fill_addr)
        return KERN_OK;
    memset(a->fill_addr, 0, (size_t)a->n_experts * a->pages * sizeof *a->fill_addr);
    uint32_t inserts = 0;
    for (uint32_t e = 0; e < a->n_experts; e++) {
        if (a->expert_count[e] == 0 || (a->admit && !a->admit[e]))
            continue;
        for (uint32_t p = 0; p < a->pages; p++) {
            size_t i = (size_t)e * a->pages + p;
            if (inserts == a->max_inserts || *a->free_used >= a->n_free)
                return KERN_OK;
            if (a->page_addr[i] >= a->arena_begin && a->page_addr[i] < a->arena_end)
                continue;
            a->fill_addr[i] = a->free_slots[*a->free_used];
            a->fill_log[*a->free_used] = a->fill_log_base + (uint32_t)i;
            ++*a->free_used;
            inserts++;
        }
    }
    return KERN_OK;
}

typedef struct moe_job {
    const kern_moe_args *a;
    const cpu_rows *rows;
    cpu_dot_fn *dot[3];
    uint32_t n_touched, n_live, n_pairs, n_workers;
    uint32_t block[2]; /* rows of a task of either loop, at most CPU_ROW_BLOCK */
    uint32_t *touched; /* [n_touched] expert ids */
    uint32_t *place;   /* [n_live * top_k] where in `pairs` the pair token * top_k + pick is, or NOWHERE */
    float *hidden;     /* [n_pairs][d_ff] */
    float *workspace;  /* [workers][workspace_floats] */
    size_t workspace_floats;
} moe_job;

static uint32_t div_up(uint32_t a, uint32_t b)
{
    return a / b + (a % b != 0);
}

static size_t workspace_floats(size_t n_pairs)
{
    return MAX(n_pairs, (size_t)2 * PAIR_GROUP) * CPU_ROW_BLOCK;
}

/* Stores rows [first, first + n_rows) of matrix m where their pages are to be filled. */
static void fill_rows(const moe_job *j, uint32_t expert, uint32_t m, uint32_t first, uint32_t n_rows)
{
    const kern_moe_args *a = j->a;
    if (!a->fill_addr)
        return;
    const kern_expert_geom *g = &a->geom;
    for (uint32_t r = first, n; r < first + n_rows; r += n) {
        uint32_t page = r / g->page_rows[m], in_page = r % g->page_rows[m];
        n = MIN(first + n_rows - r, g->page_rows[m] - in_page);
        size_t i = (size_t)expert * g->pages + g->first_page[m] + page;
        uint64_t at = in_page * g->row_bytes[m];
        if (a->fill_addr[i])
            memcpy((uint8_t *)(uintptr_t)a->fill_addr[i] + at, (const uint8_t *)(uintptr_t)a->page_addr[i] + at,
                   n * g->row_bytes[m]);
    }
}

static const uint8_t *row_at(const moe_job *j, uint32_t expert, uint32_t m, uint32_t row)
{
    const kern_expert_geom *g = &j->a->geom;
    uint64_t page = j->a->page_addr[(size_t)expert * g->pages + g->first_page[m] + row / g->page_rows[m]];
    return (const uint8_t *)(uintptr_t)page + row % g->page_rows[m] * g->row_bytes[m];
}

/* Dot products of rows [first, first + n_rows) of matrix m with the vectors x: y[i * CPU_ROW_BLOCK + r]. Rows may cross pages. `next` is
 * where this thread reads on. */
static void dot_rows(const moe_job *j, uint32_t expert, uint32_t m, uint32_t first, uint32_t n_rows, float *y,
                     const float *const *x, uint32_t n_x, const uint8_t *next)
{
    const kern_expert_geom *g = &j->a->geom;
    uint32_t cols = m == 2 ? g->d_ff : g->d_model;
    for (uint32_t r = first, n; r < first + n_rows; r += n) {
        n = MIN(first + n_rows - r, g->page_rows[m] - r % g->page_rows[m]);
        j->dot[m](y + (r - first), CPU_ROW_BLOCK, row_at(j, expert, m, r), g->row_bytes[m], n, x, n_x, cols,
                  r + n < first + n_rows ? row_at(j, expert, m, r + n) : next);
    }
}

/* The task that this thread will probably take next, when all go equally fast. */
static bool next_task(const moe_job *j, uint32_t task, uint32_t n_tasks, uint32_t *ret)
{
    *ret = task + j->n_workers;
    return *ret < n_tasks;
}

/* Adds an expert's bias to rows [first, first + n_rows) of n_x results; bias [n_experts][stride] may be NULL. */
static void add_bias(float *y, const float *bias, uint32_t expert, uint32_t stride, uint32_t first, uint32_t n_rows,
                     uint32_t n_x)
{
    for (uint32_t i = 0; bias && i < n_x; i++)
        for (uint32_t r = 0; r < n_rows; r++)
            y[(size_t)i * CPU_ROW_BLOCK + r] += bias[(size_t)expert * stride + first + r];
}

static void activate(const moe_job *j, float *y, const float *gate, const float *up, uint32_t n)
{
    if (j->a->act == KERN_RELU2) {
        cpu_relu2(y, gate, n);
        cpu_relu2(y + j->a->geom.d_ff / 2, up, n);
    } else if (j->a->act == KERN_SWIGLU_CLAMPED)
        j->rows->clamped(y, gate, up, n, j->a->act_alpha, j->a->act_limit);
    else if (j->a->act == KERN_SWIGLU_LIMITED)
        j->rows->limited(y, gate, up, n, j->a->act_limit);
    else
        (j->a->act == KERN_GEGLU ? j->rows->geglu : j->rows->swiglu)(y, gate, up, n);
}

static void gate_up_task(void *ctx, uint32_t task, uint32_t worker)
{
    const moe_job *j = ctx;
    const kern_moe_args *a = j->a;
    const kern_expert_geom *g = &a->geom;
    const uint32_t rows = kern_expert_rows(g, 0), block = j->block[0], n_blocks = div_up(rows, block);
    uint32_t expert = j->touched[task / n_blocks], first = task % n_blocks * block, n_rows = MIN(block, rows - first),
             then;
    float *gate = j->workspace + worker * j->workspace_floats, *up = gate + (size_t)PAIR_GROUP * CPU_ROW_BLOCK;
    const uint8_t *next = NULL;
    if (next_task(j, task, j->n_touched * n_blocks, &then))
        next = row_at(j, j->touched[then / n_blocks], 0, then % n_blocks * block);

    const float *x[PAIR_GROUP];
    for (uint32_t i0 = a->expert_start[expert]; i0 < a->expert_start[expert + 1]; i0 += PAIR_GROUP) {
        uint32_t n = MIN(PAIR_GROUP, a->expert_start[expert + 1] - i0);
        for (uint32_t i = 0; i < n; i++)
            x[i] = a->x + (size_t)(a->pairs[i0 + i] / a->top_k) * g->d_model;
        dot_rows(j, expert, 0, first, n_rows, gate, x, n, row_at(j, expert, 1, first));
        dot_rows(j, expert, 1, first, n_rows, up, x, n, next);
        add_bias(gate, a->gate_bias, expert, g->d_ff, first, n_rows, n);
        add_bias(up, a->up_bias, expert, g->d_ff, first, n_rows, n);
        for (uint32_t i = 0; i < n; i++)
            activate(j, j->hidden + (size_t)(i0 + i) * g->d_ff + first, gate + (size_t)i * CPU_ROW_BLOCK,
                     up + (size_t)i * CPU_ROW_BLOCK, n_rows);
    }
    fill_rows(j, expert, 0, first, n_rows);
    fill_rows(j, expert, 1, first, n_rows);
}

static void down_task(void *ctx, uint32_t task, uint32_t worker)
{
    const moe_job *j = ctx;
    const kern_moe_args *a = j->a;
    const kern_expert_geom *g = &a->geom;
    uint32_t block = j->block[1], first = task * block, n_rows = MIN(block, g->d_model - first), then;
    float *down = j->workspace + worker * j->workspace_floats; /* [n_pairs][CPU_ROW_BLOCK] */

    const float *x[PAIR_GROUP];
    for (uint32_t e = 0; e < j->n_touched; e++) {
        uint32_t expert = j->touched[e];
        const uint8_t *next = NULL;
        if (e + 1 < j->n_touched)
            next = row_at(j, j->touched[e + 1], 2, first);
        else if (next_task(j, task, div_up(g->d_model, block), &then))
            next = row_at(j, j->touched[0], 2, then * block);
        for (uint32_t i0 = a->expert_start[expert]; i0 < a->expert_start[expert + 1]; i0 += PAIR_GROUP) {
            uint32_t n = MIN(PAIR_GROUP, a->expert_start[expert + 1] - i0);
            for (uint32_t i = 0; i < n; i++)
                x[i] = j->hidden + (size_t)(i0 + i) * g->d_ff;
            dot_rows(j, expert, 2, first, n_rows, down + (size_t)i0 * CPU_ROW_BLOCK, x, n, next);
            add_bias(down + (size_t)i0 * CPU_ROW_BLOCK, a->down_bias, expert, g->d_model, first, n_rows, n);
        }
        fill_rows(j, expert, 2, first, n_rows);
    }

    for (uint32_t t = 0; t < j->n_live; t++) {
        float sum[CPU_ROW_BLOCK] = {0};
        for (uint32_t k = 0; k < a->top_k; k++) {
            uint32_t pair = t * a->top_k + k;
            if (j->place[pair] == NOWHERE)
                continue;
            const float *out = down + (size_t)j->place[pair] * CPU_ROW_BLOCK;
            for (uint32_t r = 0; r < n_rows; r++)
                sum[r] += a->weights[pair] * out[r];
        }
        for (uint32_t r = 0; r < n_rows; r++)
            a->y[(size_t)t * g->d_model + first + r] += sum[r];
    }
}

uint64_t cpu_moe_scratch_bytes(kern_dev *dev, uint32_t max_tokens, uint32_t top_k, uint32_t n_experts,
                               const kern_expert_geom *geom)
{
    (void)n_experts;
    uint64_t n_pairs = (uint64_t)max_tokens * top_k;
    uint64_t floats = n_pairs * geom->d_ff + pool_count(cpu_of(dev)->pool) * (uint64_t)workspace_floats(n_pairs);
    return n_pairs * 2 * sizeof(uint32_t) + floats * sizeof(float);
}

static uint32_t block_for(uint32_t rows, uint32_t times, uint32_t n_workers)
{
    uint32_t block = CPU_ROW_BLOCK;
    while (block > LEAST_ROWS && n_workers > 1 && (uint64_t)times * div_up(rows, block) < TASKS_EACH * n_workers)
        block /= 2;
    return block;
}

kern_status cpu_moe(kern_dev *dev, const kern_moe_args *a)
{
    cpu_dev *d = cpu_of(dev);
    const kern_expert_geom *g = &a->geom;
    if (!kern_moe_act_is_known(a))
        return cpu_fail(d, KERN_UNSUPPORTED, "experts: activation %d", (int)a->act);
    moe_job j = {.a = a, .rows = &d->rows, .n_pairs = a->expert_start[a->n_experts]};
    for (int m = 0; m < 3; m++) {
        uint32_t cols = m == 2 ? g->d_ff : g->d_model;
        if ((unsigned)g->fmt[m] >= FMT_COUNT || !kern_cols_fit(g->fmt[m], cols))
            return cpu_fail(d, KERN_UNSUPPORTED, "experts: %u columns in format %d", cols, (int)g->fmt[m]);
        j.dot[m] = d->rows.dot[g->fmt[m]];
    }
    j.n_workers = pool_count(d->pool);
    if (j.n_pairs == 0)
        return KERN_OK;
    j.n_live = a->n_live ? MIN(*a->n_live, a->n_tokens) : a->n_tokens;
    uint32_t n_picks = j.n_live * a->top_k;
    j.touched = a->scratch;
    j.place = j.touched + n_picks; /* no more experts are touched than there are pairs */
    j.hidden = (float *)(void *)(j.place + n_picks);
    j.workspace = j.hidden + (size_t)j.n_pairs * g->d_ff;
    j.workspace_floats = workspace_floats(j.n_pairs);
    for (uint32_t e = 0; e < a->n_experts; e++)
        if (a->expert_start[e] != a->expert_start[e + 1])
            j.touched[j.n_touched++] = e;
    if (j.n_pairs < n_picks)
        memset(j.place, 0xff, n_picks * sizeof *j.place); /* NOWHERE */
    for (uint32_t i = 0; i < j.n_pairs; i++)
        j.place[a->pairs[i]] = i;

    const uint32_t rows = kern_expert_rows(g, 0);
    j.block[0] = block_for(rows, j.n_touched, j.n_workers);
    j.block[1] = block_for(g->d_model, 1, j.n_workers);
    pool_run(d->pool, j.n_touched * div_up(rows, j.block[0]), gate_up_task, &j);
    pool_run(d->pool, div_up(g->d_model, j.block[1]), down_task, &j);
    return KERN_OK;
}
