/* test_identity.c - a request's tokens and log probabilities are the same bits whatever happens around it.
 *
 *   test_identity [--backend=cpu|cuda] [--kv=FORMAT] [--disable=LIST] [--only=PART_OF_A_NAME] [MODEL_DIR]
 *
 * Four probes (greedy with log probabilities; seeded top-k/top-p; seeded over the whole row with penalties; DRY, XTC and the other
 * filters of the host) run alone, among 31 others, with 0, 10 and 100 % of the expert pages in VRAM, with and without reading ahead
 * (which the CPU does not do), with preemption by recomputation and by swapping, with prefix caching on (cold and warm) and off, in
 * prompt chunks of 16, 64 and 512 tokens, and as choices of one request. Then again with prompts that begin alike. Exit 77: no backend. */
#include "tests/golden/client.h"

enum { N_OTHERS = 31 };

typedef struct setup {
    const char *name;
    double vram;        /* share of the expert bytes */
    const char *chunk;  /* engine.max_num_batched_tokens */
    uint32_t kv_tokens; /* room of the KV cache */
    bool prefix, others, no_graphs, no_ahead, twice, swap, want_preemption, want_cached, want_vram_hits, want_ahead;
} setup;

static const setup setups[] = {
    {.name = "alone", .chunk = "512", .kv_tokens = 40 * MAX_LEN, .no_ahead = true},
    {.name = "read ahead", .chunk = "512", .kv_tokens = 40 * MAX_LEN, .want_ahead = true},
    {.name = "read ahead, 25 % in VRAM",
     .vram = 0.25,
     .chunk = "512",
     .kv_tokens = 40 * MAX_LEN,
     .twice = true,
     .want_ahead = true},
    {.name = "read ahead, 50 % in VRAM",
     .vram = 0.5,
     .chunk = "512",
     .kv_tokens = 40 * MAX_LEN,
     .twice = true,
     .want_ahead = true},
    {.name = "read ahead, 75 % in VRAM",
     .vram = 0.75,
     .chunk = "512",
     .kv_tokens = 40 * MAX_LEN,
     .twice = true,
     .want_ahead = true},
    {.name = "among 31 others", .chunk = "512", .kv_tokens = 40 * MAX_LEN, .others = true},
    {.name = "10 % of the pages in VRAM",
     .vram = 0.1,
     .chunk = "512",
     .kv_tokens = 40 * MAX_LEN,
     .others = true,
     .want_vram_hits = true},
    {.name = "100 % of the pages in VRAM",
     .vram = 1.0,
     .chunk = "512",
     .kv_tokens = 40 * MAX_LEN,
     .twice = true,
     .want_vram_hits = true},
    {.name = "preempted, recomputed",
     .chunk = "512",
     .kv_tokens = 5 * MAX_LEN / 2,
     .others = true,
     .want_preemption = true},
    {.name = "preempted, swapped",
     .chunk = "512",
     .kv_tokens = 5 * MAX_LEN / 2,
     .others = true,
     .swap = true,
     .want_preemption = true},
    {.name = "prefix caching, cold and warm",
     .chunk = "512",
     .kv_tokens = 40 * MAX_LEN,
     .prefix = true,
     .twice = true,
     .want_cached = true},
    {.name = "prefix caching, preempted",
     .chunk = "64",
     .kv_tokens = 5 * MAX_LEN / 2,
     .prefix = true,
     .others = true,
     .want_preemption = true},
    {.name = "steps not recorded", .chunk = "512", .kv_tokens = 40 * MAX_LEN, .others = true, .no_graphs = true},
    {.name = "chunks of 16", .chunk = "16", .kv_tokens = 40 * MAX_LEN},
    {.name = "chunks of 64", .chunk = "64", .kv_tokens = 40 * MAX_LEN, .others = true},
};

/* Prompts that have 40 tokens in common, no whole number of blocks: requests meet in the cache where they part. */
static const setup alike[] = {
    {.name = "a common beginning", .chunk = "512", .kv_tokens = 40 * MAX_LEN},
    {.name = "a common beginning, cached",
     .chunk = "512",
     .kv_tokens = 40 * MAX_LEN,
     .prefix = true,
     .want_cached = true},
    {.name = "a common beginning, among others",
     .chunk = "64",
     .kv_tokens = 40 * MAX_LEN,
     .prefix = true,
     .others = true,
     .twice = true,
     .want_cached = true},
    {.name = "a common beginning, preempted",
     .chunk = "64",
     .kv_tokens = 5 * MAX_LEN / 2,
     .prefix = true,
     .others = true,
     .swap = true,
     .want_preemption = true,
     .want_cached = true},
};

static const char *disabled = "", *kv_dtype = "auto"; /* engine.kernels_disable and kv.kv_dtype of every set-up */

/* False: one of the others failed. */
static bool run_round(engine *e, const setup *s, answer *out)
{
    bool ok = true;
    engine_request *r[N_PROBES + N_OTHERS] = {0};
    if (!s->others) {
        for (uint32_t i = 0; i < N_PROBES; i++)
            finish(submit(e, i, 1, PROMPT), &out[i], 0);
        return ok;
    }
    if (s->want_preemption) /* who is through before the last one comes leaves room: they begin together */
        engine_hold(e, true);
    /* Half of the others come first, so that the probes are neither the oldest nor the youngest. */
    for (uint32_t i = 0; i < N_OTHERS / 2; i++)
        r[N_PROBES + i] = submit(e, N_PROBES + i, 1, PROMPT);
    for (uint32_t i = 0; i < N_PROBES; i++)
        r[i] = submit(e, i, 1, PROMPT);
    for (uint32_t i = N_OTHERS / 2; i < N_OTHERS; i++)
        r[N_PROBES + i] = submit(e, N_PROBES + i, 1, PROMPT);
    if (s->want_preemption)
        engine_hold(e, false);
    answer ignored;
    for (uint32_t i = 0; i < N_PROBES + N_OTHERS; i++) {
        ignored = (answer){0};
        finish(r[i], i < N_PROBES ? &out[i] : &ignored, 0);
        ok = ok && !ignored.failed;
    }
    return ok;
}

typedef struct sizes { /* of the first engine: what shares are computed from */
    json_int_t trunk, workspace, states, experts, kv_bytes_per_token;
    json_int_t more; /* workspace and states of as many sequences as set-ups with preemption have */
    bool device, reads_ahead;
} sizes;

static xd_status configure(config **ret, const setup *s, const sizes *z, const char *backend, const char *model,
                           xd_err *err)
{
    char kv[32], vram[32], len[16];
    snprintf(len, sizeof len, "%d", MAX_LEN);
    xd_status st;
    if ((st = conf_defaults(ret, err)) || (st = conf_set(*ret, "engine.backend", backend, err)) ||
        (st = conf_set(*ret, "model.path", model, err)) || (st = conf_set(*ret, "model.max_model_len", len, err)) ||
        (st = conf_set(*ret, "model.tokenizer", "no", err)) ||
        (st = conf_set(*ret, "engine.max_num_seqs", s->want_preemption ? "32" : "16", err)) ||
        (st = conf_set(*ret, "engine.max_num_batched_tokens", s->chunk, err)) ||
        (st = conf_set(*ret, "engine.enable_prefix_caching", s->prefix ? "yes" : "no", err)) ||
        (st = conf_set(*ret, "pager.read_ahead", s->no_ahead && z ? "no" : "yes", err)) ||
        (st = conf_set(*ret, "kv.kv_dtype", kv_dtype, err)) || (st = conf_set(*ret, "kv.block_size", "16", err)) ||
        (st = conf_set(*ret, "pager.warm_start", "no", err)) ||
        (st = conf_set(*ret, "engine.kernels_disable", s->no_graphs ? "graphs" : disabled, err)) ||
        (st = conf_set(*ret, "kv.swap_space", s->swap ? "64MiB" : "0", err)))
        return st;
    if (!z)
        return XD_OK;
    json_int_t kv_bytes = XD_MAX(z->kv_bytes_per_token * s->kv_tokens, (json_int_t)1 << 20);
    json_int_t budget = (json_int_t)((double)z->experts * s->vram);
    if (z->device)
        budget += z->trunk + z->workspace + z->states + (s->want_preemption ? z->more : 0) + kv_bytes;
    /* 100 % must hold every page, rounded up to slots. */
    if (s->vram >= 1)
        budget += z->experts / 4 + (1 << 20);
    snprintf(kv, sizeof kv, "%lld", (long long)kv_bytes);
    snprintf(vram, sizeof vram, "%lld", (long long)budget);
    if ((st = conf_set(*ret, "kv.kv_budget", kv, err)))
        return st;
    return conf_set(*ret, "memory.vram_budget", vram, err);
}

static bool run_setup(const setup *s, const sizes *z, const char *backend, const char *model, const answer *want,
                      answer *got)
{
    XD_CLEANUP(conf_freep) config *cfg = NULL;
    xd_err err = {0};
    engine *e = NULL;
    if (configure(&cfg, s, z, backend, model, &err) || engine_start(cfg, &e, &err) ||
        engine_wait_ready(e, NULL, NULL, &err)) {
        printf("%-32s FAIL: %s\n", s->name, err.msg);
        engine_free(e);
        return false;
    }
    bool ok = true;
    uint32_t cached = 0, preemptions = 0;
    for (int round = 0; round < (s->twice ? 2 : 1); round++) {
        memset(got, 0, N_PROBES * sizeof *got);
        ok = run_round(e, s, got) && ok;
        for (uint32_t i = 0; i < N_PROBES; i++) {
            char what[64];
            snprintf(what, sizeof what, "probe %u, round %d", i, round + 1);
            ok = same(want ? &want[i] : &got[i], &got[i], what) && ok;
            cached += got[i].cached;
            preemptions += got[i].preemptions;
        }
    }
    json_int_t hits = number(e, "pager", "hits_vram"), all = number(e, NULL, "preemptions"),
               left = number(e, "kv", "blocks_used");
    if (s->want_preemption && !all) {
        printf("    nothing was preempted\n");
        ok = false;
    }
    if (s->swap && !(metric(e, "kv_swapped_in_blocks_total") > 0)) {
        printf("    no KV block came back from swap space\n");
        ok = false;
    }
    if (s->want_cached != (cached > 0)) {
        printf("    %u prompt tokens came from the cache\n", cached);
        ok = ok && !s->want_cached && s->prefix;
    }
    if (s->want_vram_hits && !hits) {
        printf("    no page was read from VRAM\n");
        ok = false;
    }
    double useful = metric(e, "read_ahead_useful_bytes_total"), wasted = metric(e, "read_ahead_wasted_bytes_total");
    if (z->reads_ahead && s->want_ahead && !(metric(e, "read_ahead_predictions_total") > 0)) {
        printf("    nothing was read ahead\n");
        ok = false;
    }
    if (useful + wasted > 0)
        printf("    read ahead: %.0f KiB used, %.0f not, %.0f of %.0f predictions right, given up in %.0f steps\n",
               useful / 1024, wasted / 1024, metric(e, "read_ahead_predictions_right_total"),
               metric(e, "read_ahead_predictions_total"), metric(e, "read_ahead_given_up_total"));
    if (left) {
        printf("    %lld KV blocks are still owned\n", (long long)left);
        ok = false;
    }
    printf("%-32s %s: %u of %lld preemptions were the probes', %u cached tokens, %lld page hits in VRAM\n", s->name,
           ok ? "ok" : "FAIL", preemptions, (long long)all, cached, (long long)hits);
    engine_free(e);
    return ok;
}

/* Choices of one request: choice i is what a request with seed + i gives. */
static bool run_choices(const sizes *z, const char *backend, const char *model)
{
    XD_CLEANUP(conf_freep) config *cfg = NULL;
    xd_err err = {0};
    engine *e = NULL;
    if (configure(&cfg, &setups[0], z, backend, model, &err) || engine_start(cfg, &e, &err) ||
        engine_wait_ready(e, NULL, NULL, &err)) {
        printf("choices FAIL: %s\n", err.msg);
        engine_free(e);
        return false;
    }
    bool ok = true;
    for (uint32_t which = 1; which < N_PROBES; which += 2) {
        answer alone = {0}, first = {0};
        finish(submit(e, which, 1, PROMPT), &alone, 0);
        finish(submit(e, which, 4, PROMPT), &first, 0);
        ok = same(&alone, &first, "choice 0 of 4") && ok;
    }
    printf("%-32s %s\n", "choices of one request", ok ? "ok" : "FAIL");
    engine_free(e);
    return ok;
}

/* A look at an engine: what shares are computed from. */
static int look(sizes *z, const setup *s, const char *backend, const char *model, const char *read_ahead)
{
    XD_CLEANUP(conf_freep) config *cfg = NULL;
    xd_err err = {0};
    engine *e = NULL;
    if (configure(&cfg, s, NULL, backend, model, &err) || conf_set(cfg, "pager.read_ahead", read_ahead, &err) ||
        engine_start(cfg, &e, &err) || engine_wait_ready(e, NULL, NULL, &err)) {
        bool missing = strstr(err.msg, "engine.backend") != NULL;
        printf("%s: %s\n", missing ? "skipped" : "FAIL", err.msg);
        engine_free(e);
        return missing ? 77 : 1;
    }
    z->trunk = number(e, "plan", "trunk");
    z->workspace = number(e, "plan", "workspace");
    z->states = number(e, "plan", "states");
    z->experts = number(e, "plan", "host_experts");
    z->device = number(e, "plan", "device_total") > 0;
    json_int_t blocks = number(e, "kv", "blocks_total"), size = number(e, "kv", "block_size");
    const json_int_t groups = number(e, "kv", "groups"); /* of layers: a token has a block in each */
    z->kv_bytes_per_token = blocks && size ? number(e, "plan", "kv") * groups / (blocks * size) : 1;
    engine_free(e);
    return 0;
}

/* A device that reads ahead needs memory for it. */
static int measure(sizes *z, const char *backend, const char *model)
{
    const setup many = {.name = "many sequences", .chunk = "512", .want_preemption = true};
    sizes without, with_many;
    int rc = look(&without, &setups[0], backend, model, "no");
    if (rc || (rc = look(&with_many, &many, backend, model, "yes")) ||
        (rc = look(z, &setups[0], backend, model, "yes")))
        return rc;
    z->more = with_many.workspace + with_many.states - z->workspace - z->states;
    z->reads_ahead = z->device && z->workspace > without.workspace;
    if (z->device && !z->reads_ahead)
        printf("nothing is read ahead on this device, which takes compute capability 9.0\n");
    return 0;
}

int main(int argc, char **argv)
{
    const char *backend = "cpu", *only = "", *root = getenv("EXPERTD_SOURCE_ROOT");
    char model[4096];
    snprintf(model, sizeof model, "%s/tests/data/golden/qwen3_moe", root ? root : ".");
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "--backend=", 10) == 0)
            backend = argv[i] + 10;
        else if (strncmp(argv[i], "--disable=", 10) == 0)
            disabled = argv[i] + 10;
        else if (strncmp(argv[i], "--kv=", 5) == 0)
            kv_dtype = argv[i] + 5;
        else if (strncmp(argv[i], "--only=", 7) == 0)
            only = argv[i] + 7;
        else
            snprintf(model, sizeof model, "%s", argv[i]);
    }
    sizes z = {0};
    int rc = measure(&z, backend, model);
    if (rc)
        return rc;
    answer want[N_PROBES], got[N_PROBES];
    bool ok = true;
    for (size_t i = 0; i < XD_ARRAY_LEN(setups); i++)
        if (!i || strstr(setups[i].name, only))
            ok = run_setup(&setups[i], &z, backend, model, i ? want : NULL, i ? got : want) && ok;
    ok = run_choices(&z, backend, model) && ok;
    common = 40;
    for (size_t i = 0; i < XD_ARRAY_LEN(alike); i++)
        if (!i || strstr(alike[i].name, only))
            ok = run_setup(&alike[i], &z, backend, model, i ? want : NULL, i ? got : want) && ok;
    printf("%s\n", ok ? "identical in every set-up" : "FAIL");
    return ok ? 0 : 1;
}
