/* test_golden.c - logits, router choices and greedy tokens of whole models against Hugging Face transformers.
 *
 *   test_golden [--backend=cpu|cuda] [--kv=f16|f32|q8_0] [--disable=LIST] [--cases=N] [--tokens=N] [--cpu-experts] [FOLDER ...]
 *
 * Folders hold a checkpoint and golden.json (see tests/data/golden/README.md). Without any: every folder of EXPERTD_GOLDEN_DIR, else
 * of tests/data/golden, and the demo model. Prints the errors met; fails above 2e-2 of the largest logit. Models of an architecture
 * that is not known are named and left out. --cases and --tokens: only the first cases and greedy tokens, for tools that make everything
 * a thousand times slower. --cpu-experts: half of the experts fit into VRAM, and decode steps leave the others to the CPU. Exit 77: the
 * backend is not there. */
#include <dirent.h>
#include <float.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/core.h"

static const double TOLERANCE = 2e-2;

typedef struct limits { /* of each model */
    uint32_t cases, tokens;
    bool cpu_experts;
} limits;

#define STEP_TOKENS 512 /* engine.max_num_batched_tokens; longer prompts are computed in several steps */
#define MAX_LENGTH  4096

typedef struct picks {                  /* router choices of the prompt: [layer][token * k + pick] */
    uint32_t n_layers, n_tokens, first; /* first: of this step */
    uint32_t k[256];
    uint32_t *ids[256];
} picks;

static void on_router(void *user, uint32_t layer, const uint32_t *ids, const float *weights, uint32_t n_tokens,
                      uint32_t k)
{
    (void)weights;
    picks *p = user;
    if (layer >= XD_ARRAY_LEN(p->ids))
        return;
    p->n_tokens = p->first + n_tokens;
    p->ids[layer] = realloc(p->ids[layer], (size_t)p->n_tokens * k * sizeof(uint32_t));
    memcpy(p->ids[layer] + (size_t)p->first * k, ids, (size_t)n_tokens * k * sizeof(uint32_t));
    p->k[layer] = k;
}

static bool fail(const xd_err *err)
{
    printf("    error: %s\n", err->msg);
    return false;
}

/* Tokens [0, n_tokens) are there. What the cache takes back of them, since no window reaches it, is overwritten where the host can do so. */
static void commit(core *c, kv_seq *s, const uint32_t *ids, uint32_t n_tokens)
{
    const kv_options *opt = kv_get_options(c->kv);
    const uint32_t stride = kv_seq_stride(s);
    uint32_t n, *before = malloc((size_t)opt->n_groups * stride * sizeof *before);
    const uint32_t *blocks = kv_seq_blocks(s, &n);
    memcpy(before, blocks, (size_t)opt->n_groups * stride * sizeof *before);
    kv_seq_commit(c->kv, s, ids, n_tokens);
    kern_kv kv;
    kv_describe(c->kv, 0, &kv);
    for (uint32_t g = 0; c->info.unified && g < opt->n_groups; g++)
        for (uint32_t i = g * stride; i < g * stride + n * opt->block_size / kv_block_tokens(opt, g); i++)
            if (before[i] != blocks[i])
                memset((void *)(uintptr_t)kv.block_addr[before[i]], 0xff, kv_block_bytes(opt));
    free(before);
}

/* Runs ids[pos..n) with logits for the last n_rows; *ret[i] is row i. */
static bool run(core *c, kv_seq *s, const uint32_t *ids, uint32_t pos, uint32_t n, uint32_t n_rows, const float **ret)
{
    xd_err err = {0};
    exec_result res;
    if (kv_seq_reserve(c->kv, s, n)) {
        printf("    error: no KV blocks\n");
        return false;
    }
    exec_run_seq q = {.ids = ids + pos, .pos = pos, .n_tokens = n - pos, .n_rows = n_rows, .want = EXEC_WANT_LOGITS};
    q.blocks = kv_seq_blocks(s, &q.n_blocks);
    q.stride = kv_seq_stride(s);
    q.state = kv_seq_state(s);
    if (exec_run(c->x, &(exec_batch){.seqs = &q, .n_seqs = 1, .prefill = n - pos > 1}, &res, &err))
        return fail(&err);
    commit(c, s, ids, n);
    uint32_t rows[STEP_TOKENS];
    for (uint32_t i = 0; i < n_rows; i++)
        rows[i] = i;
    return exec_fetch_rows(c->x, rows, n_rows, ret, &err) ? fail(&err) : true;
}

static bool same_set(const json_t *want, const uint32_t *got, uint32_t k)
{
    for (uint32_t i = 0; i < k; i++) {
        bool found = false;
        for (size_t j = 0; j < json_array_size(want); j++)
            found = found || json_integer_value(json_array_get(want, j)) == got[i];
        if (!found)
            return false;
    }
    return json_array_size(want) == k;
}

typedef struct tally {
    double worst;
    uint32_t n_logits, router_tokens, router_wrong, greedy, greedy_wrong, ties;
} tally;

/* A disagreement is a tie where the margin of the reference between the last chosen and the first left out is tiny, or where the last
 * chosen has no weight: the reference chooses by probability, and those are all zero there. */
static bool router_tie(const json_t *module, uint32_t token, uint32_t k)
{
    const json_t *f = json_array_get(json_object_get(module, "float"), 0), *row = json_array_get(f, token);
    size_t n = json_array_size(row);
    double v[1024];
    if (n <= k || n > XD_ARRAY_LEN(v))
        return false;
    for (size_t i = 0; i < n; i++)
        v[i] = json_number_value(json_array_get(row, i));
    for (size_t i = 0; i < n; i++)
        for (size_t j = i + 1; j < n; j++)
            if (v[j] > v[i]) {
                double t = v[i];
                v[i] = v[j];
                v[j] = t;
            }
    return v[k - 1] - v[k] <= 2e-3 * fabs(v[0]) || v[k - 1] - v[0] < log(FLT_MIN);
}

static void compare_router(const json_t *by_token, const json_t *module, const picks *p, uint32_t layer, tally *t)
{
    for (uint32_t i = 0; i < json_array_size(by_token) && i < p->n_tokens; i++) {
        t->router_tokens++;
        if (same_set(json_array_get(by_token, i), p->ids[layer] + (size_t)i * p->k[layer], p->k[layer]))
            continue;
        if (module && router_tie(module, i, p->k[layer]))
            t->ties++;
        else
            t->router_wrong++;
    }
}

static void check_router(const json_t *c, const picks *p, tally *t)
{
    const json_t *router = json_object_get(c, "router"), *list = json_object_get(c, "router_topk_ids"), *module;
    const char *name;
    json_object_foreach ((json_t *)router, name, module) {
        const char *at = strstr(name, "layers.");
        uint32_t layer = at ? (uint32_t)strtoul(at + 7, NULL, 10) : UINT32_MAX;
        if (json_object_get(module, "ids") && layer < XD_ARRAY_LEN(p->ids) && p->ids[layer])
            compare_router(json_object_get(module, "ids"), module, p, layer, t);
    }
    for (uint32_t l = 0; l < json_array_size(list) && l < XD_ARRAY_LEN(p->ids); l++)
        compare_router(json_array_get(list, l), NULL, p, l, t);
}

static void check_logits(const json_t *c, double scale, const float **rows, uint32_t n_rows, uint32_t n_prompt,
                         tally *t)
{
    const json_t *pos = json_object_get(c, "logit_positions"), *want = json_object_get(c, "logits");
    for (uint32_t i = 0; i < json_array_size(pos); i++) {
        uint32_t at = (uint32_t)json_integer_value(json_array_get(pos, i)), row = at - (n_prompt - n_rows);
        const json_t *w = json_array_get(want, i);
        for (uint32_t j = 0; j < json_array_size(w); j++, t->n_logits++)
            t->worst = fmax(t->worst, fabs(json_number_value(json_array_get(w, j)) - rows[row][j]) / scale);
    }
    const json_t *top = json_object_get(c, "last_logits_top20"), *ids = json_object_get(top, "ids");
    for (uint32_t j = 0; j < json_array_size(ids); j++, t->n_logits++) {
        double v = json_number_value(json_array_get(json_object_get(top, "values"), j));
        t->worst = fmax(t->worst, fabs(v - rows[n_rows - 1][json_integer_value(json_array_get(ids, j))]) / scale);
    }
}

static uint32_t argmax(const float *v, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (v[i] > v[best])
            best = i;
    return best;
}

static bool run_case(core *c, const json_t *jc, double scale, uint32_t max_tokens, tally *t)
{
    picks p = {.n_layers = c->hp->n_layers};
    const json_t *prompt = json_object_get(jc, "prompt_ids"), *greedy = json_object_get(jc, "greedy_ids"),
                 *margin = json_object_get(jc, "greedy_top2_margin");
    uint32_t n = (uint32_t)json_array_size(prompt), n_greedy = (uint32_t)json_array_size(greedy), ids[MAX_LENGTH];
    uint32_t n_rows = json_array_size(json_object_get(jc, "logit_positions")) > 1 ? n : 1;
    const float *rows[STEP_TOKENS];
    xd_err err = {0};
    kv_seq *s = NULL;
    if (n + n_greedy > XD_ARRAY_LEN(ids) || n_rows > STEP_TOKENS || kv_seq_new(c->kv, &s, &err) ||
        exec_observe_router(c->x, on_router, &p, &err))
        return fail(&err);
    for (uint32_t i = 0; i < n; i++)
        ids[i] = (uint32_t)json_integer_value(json_array_get(prompt, i));
    bool ok = true;
    for (; ok && n - p.first > STEP_TOKENS; p.first += STEP_TOKENS)
        ok = run(c, s, ids, p.first, p.first + STEP_TOKENS, 1, rows);
    ok = ok && run(c, s, ids, p.first, n, n_rows, rows);
    (void)!exec_observe_router(c->x, NULL, NULL, NULL);
    if (ok) {
        check_logits(jc, scale, rows, n_rows, n, t);
        check_router(jc, &p, t);
    }
    n_greedy = XD_MIN(n_greedy, max_tokens);
    const float *last = ok ? rows[n_rows - 1] : NULL;
    for (uint32_t i = 0; ok && i < n_greedy; i++, t->greedy++) {
        uint32_t want = (uint32_t)json_integer_value(json_array_get(greedy, i)), got = argmax(last, c->hp->vocab);
        if (got != want) {
            bool tie = margin && json_number_value(json_array_get(margin, i)) < TOLERANCE * scale;
            t->ties += tie;
            t->greedy_wrong += !tie;
            break; /* from here on the contexts differ */
        }
        ids[n + i] = got;
        if (i + 1 < n_greedy)
            ok = run(c, s, ids, n + i, n + i + 1, 1, &last);
    }
    kv_seq_free(c->kv, s);
    for (size_t i = 0; i < XD_ARRAY_LEN(p.ids); i++)
        free(p.ids[i]);
    return ok;
}

/* Prompts may be longer than the context that config.json tells. */
static bool allow_length(config *cfg, const json_t *golden, const char *dir)
{
    char path[4096], text[32] = "0";
    snprintf(path, sizeof path, "%s/config.json", dir);
    json_t *c = json_load_file(path, 0, NULL), *jc;
    json_int_t context = json_integer_value(json_object_get(c, "max_position_embeddings"));
    json_decref(c);
    size_t longest = 0, i;
    json_array_foreach (json_object_get(golden, "cases"), i, jc)
        longest = XD_MAX(longest, json_array_size(json_object_get(jc, "prompt_ids")) +
                                      json_array_size(json_object_get(jc, "greedy_ids")));
    if (context > 0 && longest > (size_t)context)
        snprintf(text, sizeof text, "%zu", longest);
    xd_err err;
    return conf_set(cfg, "model.max_model_len", text, &err) == XD_OK || fail(&err);
}

/* Where the expected values of a folder are: there, or with the same weights in another file, in the folder without the -gguf. */
static bool find_expected(const char *dir, char *path, size_t cap)
{
    static const char suffix[] = "-gguf";
    size_t n = strlen(dir), tail = sizeof suffix - 1;
    snprintf(path, cap, "%s/golden.json", dir);
    if (access(path, F_OK) && n > tail && !strcmp(dir + n - tail, suffix))
        snprintf(path, cap, "%.*s/golden.json", (int)(n - tail), dir);
    return !access(path, F_OK);
}

/* 0 good, 1 bad, 2 left out, 77 no backend. */
static int run_model(config *cfg, const limits *most, const char *dir)
{
    char path[4200];
    json_error_t je;
    find_expected(dir, path, sizeof path);
    json_t *g = json_load_file(path, 0, &je);
    const char *name = strrchr(dir, '/') ? strrchr(dir, '/') + 1 : dir;
    if (!g) {
        printf("%-18s no readable golden.json: %s\n", name, je.text);
        return 1;
    }
    if (!allow_length(cfg, g, dir)) {
        json_decref(g);
        return 1;
    }
    char gguf[4096];
    struct stat sb;
    snprintf(gguf, sizeof gguf, "%s/model.gguf", dir);
    core c;
    xd_err err = {0};
    xd_status st = core_open(&c, cfg, stat(gguf, &sb) == 0 ? gguf : dir, NULL, NULL, &err);
    if (st) {
        bool backend = strstr(err.msg, "engine.backend") != NULL;
        printf("%-18s %s: %s\n", name, st == XD_UNSUPPORTED ? "left out" : "FAIL", err.msg);
        json_decref(g);
        return backend ? 77 : st == XD_UNSUPPORTED ? 2 : 1;
    }
    tally t = {0};
    if (most->cpu_experts && pager_set_mode(c.pg, PAGER_SHARED, &err))
        printf("%-18s %s\n", name, err.msg);
    const json_t *cases = json_object_get(g, "cases");
    double scale = json_number_value(json_object_get(g, "max_abs_logit"));
    bool ok = true;
    for (size_t i = 0; ok && i < json_array_size(cases) && i < most->cases; i++) {
        const json_t *jc = json_array_get(cases, i), *top = json_object_get(jc, "last_logits_top20");
        double s = scale > 0 ? scale : json_number_value(json_array_get(json_object_get(top, "values"), 0));
        ok = run_case(&c, jc, s, most->tokens, &t);
    }
    pager_stats ps;
    pager_get_stats(c.pg, &ps);
    ok = ok && t.worst < TOLERANCE && !t.router_wrong && !t.greedy_wrong && t.n_logits &&
         most->cpu_experts == (ps.bytes_cpu > 0);
    printf(
        "%-18s %s: largest error %.2e of the largest logit (%u logits), router %u of %u tokens wrong, greedy %u tokens, "
        "%u wrong, %u ties [%s]\n",
        name, ok ? "ok" : "FAIL", t.worst, t.n_logits, t.router_wrong, t.router_tokens, t.greedy, t.greedy_wrong,
        t.ties, c.backend);
    core_close(&c);
    json_decref(g);
    return ok ? 0 : 1;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int run_folder(config *cfg, const limits *most, const char *root, int *ret_n)
{
    struct dirent **list = NULL;
    int n = scandir(root, &list, NULL, by_name), worst = 0;
    for (int i = 0; i < n; i++) {
        char dir[4096], file[4200];
        snprintf(dir, sizeof dir, "%s/%s", root, list[i]->d_name);
        if (list[i]->d_name[0] != '.' && find_expected(dir, file, sizeof file) && worst != 77) {
            int rc = run_model(cfg, most, dir);
            *ret_n += rc != 2;
            worst = rc == 77 ? 77 : rc == 1 ? 1 : worst;
        }
        free(list[i]);
    }
    free(list);
    return worst;
}

int main(int argc, char **argv)
{
    config *cfg = NULL;
    xd_err err = {0};
    const char *root = getenv("EXPERTD_SOURCE_ROOT"), *given = getenv("EXPERTD_GOLDEN_DIR");
    char path[4096];
    int worst = 0, n = 0, n_dirs = 0;
    limits most = {.cases = UINT32_MAX, .tokens = UINT32_MAX};
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (conf_defaults(&cfg, &err) || conf_set(cfg, "engine.backend", "cpu", &err) ||
        conf_set(cfg, "engine.max_num_seqs", "4", &err) ||
        conf_set(cfg, "engine.max_num_batched_tokens", "512", &err) || conf_set(cfg, "kv.kv_dtype", "f32", &err) ||
        conf_set(cfg, "pager.warm_start", "no", &err)) {
        printf("%s\n", err.msg);
        return 1;
    }
    for (int i = 1; i < argc; i++) {
        xd_status st = XD_OK;
        if (strncmp(argv[i], "--backend=", 10) == 0)
            st = conf_set(cfg, "engine.backend", argv[i] + 10, &err);
        else if (strncmp(argv[i], "--kv=", 5) == 0)
            st = conf_set(cfg, "kv.kv_dtype", argv[i] + 5, &err);
        else if (strncmp(argv[i], "--disable=", 10) == 0)
            st = conf_set(cfg, "engine.kernels_disable", argv[i] + 10, &err);
        else if (strcmp(argv[i], "--cpu-experts") == 0) {
            most.cpu_experts = true;
            st = conf_set(cfg, "engine.deterministic", "no", &err);
            st = st ? st : conf_set(cfg, "memory.expert_vram_share", "50%", &err);
        } else if (strncmp(argv[i], "--cases=", 8) == 0)
            most.cases = (uint32_t)strtoul(argv[i] + 8, NULL, 10);
        else if (strncmp(argv[i], "--tokens=", 9) == 0)
            most.tokens = (uint32_t)strtoul(argv[i] + 9, NULL, 10);
        else {
            int rc = run_model(cfg, &most, argv[i]);
            n_dirs++;
            n += rc != 2;
            worst = rc == 77 ? 77 : rc == 1 ? 1 : worst;
        }
        if (st) {
            printf("%s\n", err.msg);
            return 1;
        }
    }
    if (!n_dirs && given) {
        worst = run_folder(cfg, &most, given, &n);
    } else if (!n_dirs) {
        snprintf(path, sizeof path, "%s/tests/data/golden", root ? root : ".");
        worst = run_folder(cfg, &most, path, &n);
        struct stat sb;
        snprintf(path, sizeof path, "%s/config/demo", root ? root : ".");
        if (stat(path, &sb) == 0) {
            int rc = worst == 77 ? 77 : run_model(cfg, &most, path);
            n++;
            worst = rc == 77 ? 77 : rc ? 1 : worst;
        } else {
            printf("demo               left out: %s is not there\n", path);
        }
    }
    conf_free(cfg);
    if (worst == 77)
        return 77;
    printf("%d models, %s\n", n, worst || !n ? "FAIL" : "all within 2e-2");
    return worst || !n ? 1 : 0;
}
