/* core.c - opens device, model, executor, KV cache and pager, and divides the memory among them.
 *
 * The order is trunk, workspace, KV cache, arena: what must be there first, what makes things faster last. A split that cannot work
 * is an error that shows the arithmetic, never a smaller promise made silently. */
#include "engine/core.h"

#include <numa.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

#include "engine/cgroup.h"

enum {
    DEFAULT_CONTEXT = 4096, /* tokens a sequence that `auto` makes room for */
    PREFILL_TOKENS_CPU =
        512, /* max_num_batched_tokens: larger steps gain little where weights are read from RAM anyway */
    PREFILL_TOKENS_GPU = 16384, /* each expert crosses the link once for all of them */
    MIN_ROWS = 32,
    STAGE_SHARE = 4, /* of the KV budget, at most */
};
static const uint64_t DEVICE_HEADROOM = 320ull << 20; /* drivers slow down near full; recordings need some too */

static const char *bytes_text(char out[32], uint64_t n)
{
    return xd_format_bytes(out, 32, n);
}

static uint64_t block_bytes_of(const core_sizes *s)
{
    return kv_block_bytes(s->kv_opt);
}

/* Blocks that the swap space holds. */
static uint64_t swap_blocks(const core_sizes *s)
{
    return s->swap_bytes / xd_align_up(block_bytes_of(s), 4096);
}

/* Room to bring all cold blocks to device memory, a layer at a time: two layers' parts of them, taken from the KV budget. Not more than
 * sequences of full length could ever ask for, and not so much that one of them no longer fits. */
static void take_stage(core_sizes *s, uint64_t kv, uint64_t len_goal)
{
    if (!s->stages)
        return;
    const uint64_t block_bytes = block_bytes_of(s), blocks_a_seq = kv_context_blocks(s->kv_opt, len_goal);
    uint64_t n_host = swap_blocks(s), in_device = s->n_blocks;
    uint64_t spare = in_device + n_host > blocks_a_seq ? in_device + n_host - blocks_a_seq : 0;
    uint64_t most = XD_MIN(kv / STAGE_SHARE, spare < kv / block_bytes ? spare * block_bytes : kv);
    uint64_t blocks = XD_MIN(n_host, blocks_a_seq * s->max_seqs), fit = kv_stage_fit(s->kv_opt, most);
    /* What staging takes from the device's blocks becomes cold too: a few rounds settle it. */
    for (int round = 0; round < 4; round++) {
        uint64_t taken = kv_stage_bytes(s->kv_opt, (uint32_t)XD_MIN(blocks, fit)) / block_bytes + 1;
        uint64_t cold =
            blocks_a_seq * s->max_seqs - XD_MIN(in_device - XD_MIN(taken, in_device), blocks_a_seq * s->max_seqs);
        blocks = XD_MIN(n_host, cold);
    }
    s->stage_blocks = (uint32_t)XD_MIN(blocks, fit);
    s->stage_bytes = kv_stage_bytes(s->kv_opt, s->stage_blocks);
    s->n_blocks = (uint32_t)XD_MIN((kv - s->stage_bytes) / block_bytes, (uint64_t)INT32_MAX);
}

/* Of max_seqs contexts, in steps of any size. */
static uint64_t bytes_of_all(const core_sizes *s, uint64_t tokens)
{
    uint64_t bytes;
    const uint64_t blocks = kv_blocks_of(s->kv_opt, s->max_seqs, tokens, s->kv_opt->step_tokens);
    return xd_mul_u64(&bytes, blocks, block_bytes_of(s)) ? bytes : UINT64_MAX;
}

/* Bytes of the KV cache: what is asked for, or what is left for it beside experts. */
static xd_status size_kv(const core_sizes *s, uint64_t len_goal, uint64_t *ret, xd_err *err)
{
    char a[32], b[32];
    const bool bounded = s->room != UINT64_MAX;
    const uint64_t usual_len = XD_MIN(len_goal, DEFAULT_CONTEXT), kv_full = bytes_of_all(s, len_goal),
                   kv_usual = bytes_of_all(s, usual_len);
    uint64_t kv = s->want_kv;
    /* One whole sequence of the length that was asked for must fit, whatever the shares say; one that cannot has its rest in the swap space. */
    uint64_t one_seq = kv_context_blocks(s->kv_opt, s->want_len ? len_goal : usual_len) * block_bytes_of(s);
    if (kv == CONF_AUTO_BYTES) {
        if (!bounded)
            kv = XD_MIN(kv_usual, s->ram_bytes / 4);
        else if (s->want_arena == CONF_AUTO_BYTES && s->room > s->expert_bytes && s->room - s->expert_bytes >= kv_usual)
            kv = XD_MIN(kv_full, s->room - s->expert_bytes); /* every page fits as well: the rest is for context */
        else
            kv = XD_MIN(kv_usual, s->room / 4);
        if (one_seq <= s->room || !s->swap_bytes)
            kv = XD_MAX(kv, one_seq);
    }
    if (!bounded && s->ram_bytes && kv > s->ram_bytes)
        return xd_fail(err, XD_BAD_CONFIG, 0,
                       "the KV cache needs %s and this machine has %s of memory: lower "
                       "kv.kv_budget or model.max_model_len",
                       bytes_text(a, kv), bytes_text(b, s->ram_bytes));
    if (bounded && kv > s->room)
        return xd_fail(err, XD_BAD_CONFIG, 0,
                       "the KV cache needs %s but only %s are left after trunk and workspace: lower kv.kv_budget, "
                       "model.max_model_len or engine.max_num_batched_tokens, or raise memory.vram_budget",
                       bytes_text(a, kv), bytes_text(b, s->room));
    *ret = kv;
    return XD_OK;
}

/* Blocks in kv bytes and, where a longer context is asked for, in the swap space; and the context that they hold. */
static xd_status size_blocks(core_sizes *s, uint64_t len_goal, uint64_t kv, xd_err *err)
{
    char a[32], b[32], c[32];
    const uint64_t block_bytes = block_bytes_of(s), groups = XD_MAX(s->kv_opt->n_groups, 1u);
    s->n_blocks = (uint32_t)XD_MIN(kv / block_bytes, (uint64_t)INT32_MAX);
    uint64_t most = kv_context_tokens(s->kv_opt, s->n_blocks);
    /* A context that was asked for and is longer than the device's part: the rest lies in the swap space. */
    s->cold = s->n_blocks && s->want_len > most;
    if (s->cold) {
        take_stage(s, kv, len_goal);
        most = kv_context_tokens(s->kv_opt, s->n_blocks + swap_blocks(s));
    }
    if (s->n_blocks < groups)
        return xd_fail(
            err, XD_BAD_CONFIG, 0,
            "one KV block of kv.block_size = %u tokens takes %s and the KV cache may take %s: raise kv.kv_budget",
            s->kv_opt->block_size, bytes_text(a, block_bytes * groups), bytes_text(b, kv));
    if (s->want_len && most < s->want_len)
        return xd_fail(
            err, XD_BAD_CONFIG, 0,
            "model.max_model_len = %u needs %s of KV cache and there are %s, %s of it kv.swap_space: raise kv.kv_budget or "
            "kv.swap_space, or set max_model_len to at most %llu",
            s->want_len, bytes_text(a, kv_context_blocks(s->kv_opt, len_goal) * block_bytes),
            bytes_text(b, kv + s->swap_bytes), bytes_text(c, s->swap_bytes), (unsigned long long)most);
    s->max_model_len = (uint32_t)XD_MIN(len_goal, most);
    return XD_OK;
}

xd_status core_size(core_sizes *s, xd_err *err)
{
    char a[32], b[32], c[32];
    const bool bounded = s->room != UINT64_MAX;
    const uint64_t len_goal = s->want_len ? s->want_len : s->model_max_len;
    uint64_t kv = 0;
    xd_status st;
    if ((st = size_kv(s, len_goal, &kv, err)) || (st = size_blocks(s, len_goal, kv, err)))
        return st;
    uint64_t left = bounded ? s->room - s->n_blocks * block_bytes_of(s) - s->stage_bytes : UINT64_MAX;
    s->arena_bytes = s->want_arena;
    if (s->want_arena == CONF_AUTO_BYTES)
        s->arena_bytes = bounded ? left : 0;
    if (s->arena_bytes > left)
        return xd_fail(err, XD_BAD_CONFIG, 0, "the page arena needs %s, the KV cache takes %s of %s",
                       bytes_text(a, s->arena_bytes), bytes_text(b, kv), bytes_text(c, s->room));
    return XD_OK;
}

/* Is name[0..len) in a list with commas between its words? */
static bool is_listed(const char *list, const char *name, size_t len)
{
    for (const char *p = list; *p;) {
        size_t n = strcspn(p, ",");
        if (n == len && !memcmp(p, name, n))
            return true;
        p += n + (p[n] == ',');
    }
    return false;
}

/* A name that matches nothing would look as if it had helped. */
static xd_status check_disable(const char *list, xd_err *err)
{
    static const char words[] = "avx2,avx512,graphs,cuda,cuda_tile,cuda_attn_mma,cuda_overlap,cuda_large_smem";
    for (const char *p = list; *p;) {
        size_t n = strcspn(p, ",");
        char name[64];
        snprintf(name, sizeof name, "%.*s", (int)XD_MIN(n, sizeof name - 1), p);
        bool is_row = strstr(name, "_avx2") || strstr(name, "_avx512"); /* of the CPU's table */
        if (!is_row && !is_listed(words, p, n))
            return xd_fail(err, XD_BAD_CONFIG, 0,
                           "engine.kernels_disable: '%s' is none of %s, nor a row such as dot_bf16_avx512", name,
                           words);
        p += n + (p[n] == ',');
    }
    return XD_OK;
}

/* More threads than a control group's quota keeps busy are stopped together, in the middle of a step. */
static uint32_t threads_of(const config *cfg)
{
    cpu_set_t set;
    uint32_t quota = cgroup_cpus("");
    bool tight = !cfg->engine.threads && !sched_getaffinity(0, sizeof set, &set) && quota < (uint32_t)CPU_COUNT(&set);
    return tight ? quota : cfg->engine.threads;
}

static xd_status open_backend(core *c, const kern_options *o, xd_err *err)
{
    const config *cfg = c->cfg;
    if (cfg->engine.backend != CONF_BACKEND_CPU) {
        char why[192] = "";
        if (kern_cuda_open(o, &c->dev, why, sizeof why) == KERN_OK) {
            c->backend = "cuda";
            snprintf(c->backend_why, sizeof c->backend_why, "%s",
                     cfg->engine.backend == CONF_BACKEND_CUDA ? "asked for" : "a usable GPU was found");
            return XD_OK;
        }
        if (cfg->engine.backend == CONF_BACKEND_CUDA)
            return xd_fail(err, XD_UNAVAILABLE, 0, "engine.backend = cuda: %s", why); /* a driver may yet come up */
        snprintf(c->backend_why, sizeof c->backend_why, "no GPU: %s", why);
    } else {
        snprintf(c->backend_why, sizeof c->backend_why, "asked for");
    }
    if (kern_cpu_open(o, &c->dev) != KERN_OK)
        return xd_fail(err, XD_NOMEM, 0, "the CPU backend did not start");
    c->backend = "cpu";
    return XD_OK;
}

xd_status core_check(const config *cfg, xd_err *err)
{
    int node = cfg->engine.numa_node;
    if (node >= 0 && (numa_available() < 0 || node > numa_max_node()))
        return xd_fail(err, XD_BAD_CONFIG, 0, "engine.numa_node = %d: this machine has no such node", node);
    return check_disable(cfg->engine.kernels_disable, err);
}

static xd_status open_device(core *c, xd_err *err)
{
    const config *cfg = c->cfg;
    xd_status st = core_check(cfg, err);
    if (st)
        return st;
    kern_options o = {.n_threads = threads_of(cfg),
                      .gpu = cfg->engine.gpu,
                      .numa_node = cfg->engine.numa_node,
                      .disable = cfg->engine.kernels_disable};
    if ((st = open_backend(c, &o, err)))
        return st;
    c->dev->ops->info(c->dev, &c->info);
    if (cfg->engine.deterministic)
        return XD_OK;
    o.helper = true;
    if (c->info.unified)
        c->cpu = c->dev;
    else if (kern_cpu_open(&o, &c->cpu) != KERN_OK)
        return xd_fail(err, XD_NOMEM, 0, "the CPU's kernels, for engine.deterministic = no, did not start");
    return XD_OK;
}

typedef struct stage {
    void (*progress)(void *user, double fraction, const char *what);
    void *user;
    double from, to;
    const char *what;
} stage;

static void on_progress(void *user, double fraction)
{
    stage *s = user;
    if (s->progress)
        s->progress(s->user, s->from + (s->to - s->from) * fraction, s->what);
}

static xd_status open_model(core *c, const char *path, stage *s, xd_err *err)
{
    *s = (stage){s->progress, s->user, 0, 0.1, "opening the model"};
    on_progress(s, 0);
    model_options mo = {.path = path,
                        .dtype = c->cfg->model.dtype,
                        .skew = c->cfg->model.skew,
                        .seed = c->cfg->model.seed,
                        .max_bytes = cgroup_available_bytes(),
                        .progress = on_progress,
                        .progress_user = s};
    xd_status st = model_open(&mo, &c->m, err);
    if (!st)
        c->hp = model_get_params(c->m);
    if (!st && c->cfg->model.skew == CONF_SKEW_TRACE)
        st = routes_open(c->cfg->model.skew_trace, c->m, &c->routes, err);
    return st;
}

xd_status core_check_context(const config *cfg, const model_params *hp, xd_err *err)
{
    uint32_t context = cfg->model.max_model_len;
    if (!hp->rope_grows || context <= hp->max_positions)
        return XD_OK;
    return xd_fail(
        err, XD_UNSUPPORTED, 0,
        "model.max_model_len = %u: this model's rotary frequencies (rope type 'dynamic') or the scale of its "
        "queries (llama_4_scaling_beta) would change beyond %u tokens, which is not possible here",
        context, hp->max_positions);
}

/* auto: float32 where the CPU computes (it is the reference, and converting costs it time), half where memory is dear. */
xd_status core_kv_format(const config *cfg, const model_params *hp, bool on_cpu, kern_fmt *ret, xd_err *err)
{
    static const kern_fmt formats[] = {[CONF_KV_F16] = FMT_F16, [CONF_KV_F32] = FMT_F32, [CONF_KV_Q8_0] = FMT_Q8_0};
    int want = cfg->kv.kv_dtype;
    kern_fmt fmt = formats[want != CONF_KV_AUTO ? want : on_cpu ? CONF_KV_F32 : CONF_KV_F16];
    uint32_t len = kern_fmt_get(fmt).block_len, v_dim = hp->latent.kv_rank;
    const uint32_t head_dim = hp->head_dim % len ? hp->head_dim : hp->full_head_dim;
    const uint32_t odd = head_dim % len ? head_dim : v_dim % len ? v_dim : hp->index.dim;
    if (odd % len)
        return xd_fail(
            err, XD_UNSUPPORTED, 0,
            "kv.kv_dtype = %s keeps K and V in blocks of %u values, and this model's heads have %u: f16 is possible",
            kern_fmt_get(fmt).name, len, odd);
    *ret = fmt;
    return XD_OK;
}

uint32_t core_max_tokens(const config *cfg, const model_params *hp, bool on_cpu)
{
    const uint32_t seqs = cfg->engine.max_num_seqs;
    uint32_t n = cfg->engine.max_num_batched_tokens;
    if (!n)
        n = on_cpu ? PREFILL_TOKENS_CPU : PREFILL_TOKENS_GPU;
    n = XD_MAX(n, seqs); /* every decoding sequence must fit a step */
    return (uint32_t)XD_MIN((uint64_t)n, XD_MAX(seqs * (uint64_t)core_context(cfg, hp), 1u));
}

static xd_status open_exec(core *c, stage *s, xd_err *err)
{
    const config *cfg = c->cfg;
    *s = (stage){s->progress, s->user, 0.1, 0.4, "loading the trunk"};
    c->max_seqs = cfg->engine.max_num_seqs;
    c->max_tokens = core_max_tokens(cfg, c->hp, c->info.unified);
    c->max_rows = XD_MAX(c->max_seqs, MIN_ROWS);
    /* The KV cache is sized after the executor, which needs a bound of the context first. */
    xd_status st = core_check_context(cfg, c->hp, err);
    c->kv_opt = core_kv_options(cfg, c->m, c->max_tokens);
    c->kv_opt.dev = c->dev;
    if (st || (st = core_kv_format(cfg, c->hp, c->info.unified, &c->kv_opt.fmt, err)))
        return st;
    exec_options xo = {.dev = c->dev,
                       .cpu = c->cpu,
                       .m = c->m,
                       .page_size = cfg->memory.page_size,
                       .max_tokens = c->max_tokens,
                       .max_seqs = c->max_seqs,
                       .max_rows = c->max_rows,
                       .max_context = core_context(cfg, c->hp),
                       .block_size = cfg->kv.block_size,
                       .kv_groups = c->kv_opt.n_groups,
                       .record = !is_listed(cfg->engine.kernels_disable, "graphs", strlen("graphs")),
                       .read_ahead = cfg->pager.read_ahead != CONF_AHEAD_NO,
                       .always_ahead = cfg->pager.read_ahead == CONF_AHEAD_YES,
                       .routes = c->routes,
                       .progress = on_progress,
                       .progress_user = s};
    st = exec_open(&xo, &c->x, err);
    if (!st)
        exec_memory(c->x, &c->plan.trunk, &c->plan.workspace);
    if (!st && c->info.unified) /* read where the files are mapped, but for some copies */
        c->plan.trunk = model_trunk_bytes(c->m);
    return st;
}

kv_options core_kv_options(const config *cfg, const model *m, uint32_t max_tokens)
{
    const model_params *hp = model_get_params(m);
    const bool states = hp->n_linear, full = hp->full_kv_heads * hp->full_head_dim > hp->n_kv_heads * hp->head_dim;
    kv_options o = {.step_tokens = max_tokens,
                    .n_kv_heads = full ? hp->full_kv_heads : hp->n_kv_heads, /* each layer has the room of the widest */
                    .head_dim = full ? hp->full_head_dim : hp->head_dim,
                    .v_dim = hp->latent.kv_rank,
                    .index_dim = hp->index.dim,
                    .index_top_k = hp->index.top_k,
                    .block_size = cfg->kv.block_size,
                    .swap_bytes = cfg->kv.swap_space,
                    .prefix_caching = cfg->engine.enable_prefix_caching,
                    .n_states = states ? cfg->engine.max_num_seqs : 0,
                    .state_bytes = states ? hp->n_linear * kv_state_layer_bytes(model_state_floats(hp)) : 0,
                    .state_host_bytes = states ? cfg->kv.state_space : 0};
    uint32_t window[MODEL_MAX_LAYERS], width[MODEL_MAX_LAYERS], n = 0;
    for (uint32_t i = 0; i < hp->n_layers; i++) {
        const model_layer *l = model_get_layer(m, i);
        if (model_keeps_kv(l))
            width[n++] = l->n_kv_heads * l->head_dim;
    }
    kv_set_groups(&o, window, width, model_get_windows(m, window));
    return o;
}

static xd_status divide_memory(core *c, core_sizes *z, xd_err *err)
{
    const config *cfg = c->cfg;
    char a[32], b[32];
    c->plan.states = c->kv_opt.n_states * c->kv_opt.state_bytes;
    uint64_t ram = cgroup_ram_bytes();
    *z = (core_sizes){.room = UINT64_MAX,
                      .ram_bytes = ram ? ram : 1ull << 30,
                      .expert_bytes = model_expert_bytes(c->m),
                      .kv_opt = &c->kv_opt,
                      .max_seqs = c->max_seqs,
                      .model_max_len = c->hp->max_positions,
                      .want_len = cfg->model.max_model_len,
                      .want_kv = cfg->kv.kv_budget,
                      .swap_bytes = cfg->kv.swap_space,
                      /* Where device memory is host memory staging gains nothing; tests go through it all the same. */
                      .stages = !c->info.unified || cfg->test.allow,
                      .want_arena = CONF_AUTO_BYTES};
    if (c->info.unified) {
        /* No memory of its own: a budget, or a share below 100 %, is the size of the simulated arena. */
        double share = cfg->memory.expert_vram_share;
        z->want_arena = cfg->memory.vram_budget != CONF_AUTO_BYTES ? cfg->memory.vram_budget
                        : share < 1                                ? (uint64_t)(share * (double)z->expert_bytes)
                                                                   : 0;
        return core_size(z, err);
    }
    c->plan.device_total = c->info.memory_bytes;
    uint64_t used = c->plan.trunk + c->plan.workspace + c->plan.states;
    c->plan.budget = cfg->memory.vram_budget;
    if (cfg->memory.vram_budget == CONF_AUTO_BYTES) {
        uint64_t spare = (uint64_t)((double)c->info.memory_free_bytes * cfg->memory.gpu_memory_utilization);
        c->plan.budget = spare > DEVICE_HEADROOM ? spare - DEVICE_HEADROOM : 0;
    }
    /* What is short while others have the memory may be enough later. */
    xd_status too_little = cfg->memory.vram_budget == CONF_AUTO_BYTES ? XD_NOMEM : XD_BAD_CONFIG;
    if (used >= c->plan.budget)
        return xd_fail(
            err, too_little, 0,
            "trunk and workspace%s need %s of device memory and the budget is %s: raise memory.vram_budget or lower "
            "engine.max_num_batched_tokens (%u)%s",
            c->plan.states ? " and the states of linear layers" : "", bytes_text(a, used),
            bytes_text(b, c->plan.budget), c->max_tokens, c->plan.states ? " or engine.max_num_seqs" : "");
    z->room = c->plan.budget - used;
    xd_err why;
    return core_size(z, &why) ? xd_fail(err, too_little, 0, "%s", why.msg) : XD_OK;
}

xd_status core_open(core *c, const config *cfg, const char *path,
                    void (*progress)(void *user, double fraction, const char *what), void *user, xd_err *err)
{
    *c = (core){.cfg = cfg};
    stage s = {.progress = progress, .user = user};
    core_sizes z;
    xd_status st;
    if ((st = open_device(c, err)) || (st = open_model(c, path, &s, err)) || (st = open_exec(c, &s, err)) ||
        (st = divide_memory(c, &z, err)))
        goto fail;
    c->max_model_len = z.max_model_len;
    c->chunk = kv_chunk(&c->kv_opt, c->max_model_len);
    c->kv_opt.n_blocks = z.n_blocks;
    c->kv_opt.allow_cold = z.cold;
    c->kv_opt.stage_blocks = z.stage_blocks;
    if ((st = kv_open(&c->kv_opt, &c->kv, err)))
        goto fail;
    s = (stage){progress, user, 0.4, 1.0, "preparing the experts"};
    uint64_t share = (uint64_t)((double)z.expert_bytes * cfg->memory.expert_vram_share);
    if (share >= z.expert_bytes)
        share = z.expert_bytes + z.expert_bytes / 8 + (64ull << 20); /* slots round up */
    uint64_t arena = XD_MIN(z.arena_bytes, share);
    pager_options po = {
        .dev = c->dev, .m = c->m, .cfg = cfg, .arena_bytes = arena, .progress = on_progress, .progress_user = &s};
    if ((st = pager_open(&po, &c->pg, err)))
        goto fail;
    c->plan.kv = z.n_blocks * kv_block_bytes(&c->kv_opt) + z.stage_bytes;
    pager_stats ps;
    pager_get_stats(c->pg, &ps);
    c->plan.arena = ps.slots_total * ps.slot_bytes;
    c->plan.host_experts = ps.host_capacity_bytes;
    c->plan.kv_swap = cfg->kv.swap_space;
    c->plan.state_copies = kv_copies_bytes(&c->kv_opt);
    if ((st = exec_attach(c->x, c->kv, c->pg, err)))
        goto fail;
    return XD_OK;
fail:
    core_close(c);
    return st;
}

void core_close(core *c)
{
    pager_free(c->pg);
    kv_free(c->kv);
    exec_free(c->x);
    routes_free(c->routes);
    model_free(c->m);
    if (c->cpu && c->cpu != c->dev)
        c->cpu->ops->close(c->cpu);
    if (c->dev)
        c->dev->ops->close(c->dev);
    *c = (core){0};
}
