/* rules.c - contradictions between options, which are refused, and doubts, which are only said: what no row of the table can see alone.
 *
 * Refused is only what is wrong whatever the machine and the model are. Whether the sizes fit this machine is said by the engine when it
 * plans, with the arithmetic shown. A doubt is about a setting that works, but so badly that nobody can have meant it. */
#include <stdarg.h>
#include <string.h>

#include "config/options_priv.h"

static bool is_pow2(uint64_t n)
{
    return n && !(n & (n - 1));
}

#define REFUSE(key, ...) return xd_fail_field(err, XD_BAD_CONFIG, key, NULL, key ": " __VA_ARGS__)

/* Browsers compare the header with their own origin byte by byte: a slash at the end, or a list, matches nobody. */
static bool is_origin(const char *text)
{
    size_t scheme = !strncmp(text, "http://", 7) ? 7 : !strncmp(text, "https://", 8) ? 8 : 0;
    return scheme && text[scheme] && !strpbrk(text + scheme, "/, *?#@\t");
}

static xd_status check_hosts(const config *c, xd_err *err)
{
    const char *word;
    size_t n;
    if (!*c->server.allowed_hosts)
        return XD_OK;
    for (const char *at = c->server.allowed_hosts; conf_next_word(&at, &word, &n);) {
        if (!n)
            REFUSE("server.allowed_hosts", "has an empty name between its commas");
        if (n > CONF_MAX_NAME)
            REFUSE("server.allowed_hosts", "has a name of %zu bytes; %d are allowed", n, CONF_MAX_NAME);
        if (memchr(word, ' ', n) || memchr(word, '\t', n))
            REFUSE("server.allowed_hosts", "'%.*s' is no name: a comma stands between two", (int)n, word);
        if (memchr(word, ':', n) || memchr(word, '/', n) || memchr(word, '[', n))
            REFUSE(
                "server.allowed_hosts",
                "takes names alone, as gpu.example.com, without scheme and port, not '%.*s'; addresses are always allowed",
                (int)n, word);
        if (memchr(word, '*', n) && n > 1)
            REFUSE("server.allowed_hosts", "'%.*s': each name is given in full; * alone allows any", (int)n, word);
    }
    return XD_OK;
}

static xd_status check_server(const config *c, xd_err *err)
{
    if (!*c->server.host)
        REFUSE("server.host", "must name an address; 0.0.0.0 listens on all");
    const char *origin = c->server.cors_origin;
    if (*origin && strcmp(origin, "*") && !is_origin(origin))
        REFUSE("server.cors_origin",
               "must be *, or one origin as browsers send it, http[s]://host[:port] without a path, not '%s'", origin);
    if (c->server.idle_timeout_s && c->server.heartbeat_s >= c->server.idle_timeout_s)
        REFUSE("server.heartbeat", "must be shorter than server.idle_timeout (%u s), or quiet streams are cut",
               c->server.idle_timeout_s);
    return check_hosts(c, err);
}

bool conf_next_word(const char **at, const char **ret, size_t *ret_len)
{
    if (!*at)
        return false;
    const char *comma = strchr(*at, ','), *end = comma ? comma : *at + strlen(*at);
    *ret = *at + strspn(*at, " \t");
    while (end > *ret && (end[-1] == ' ' || end[-1] == '\t'))
        end--;
    *ret_len = end > *ret ? (size_t)(end - *ret) : 0;
    *at = comma ? comma + 1 : NULL;
    return true;
}

static xd_status check_names(const config *c, xd_err *err)
{
    const char *word, *other;
    size_t n, n_other;
    if (!*c->model.served_model_name)
        return XD_OK;
    for (const char *at = c->model.served_model_name; conf_next_word(&at, &word, &n);) {
        if (!n)
            REFUSE("model.served_model_name", "has an empty name between its commas");
        if (n > CONF_MAX_NAME)
            REFUSE("model.served_model_name", "has a name of %zu bytes; %d are allowed", n, CONF_MAX_NAME);
        for (const char *rest = at; conf_next_word(&rest, &other, &n_other);)
            if (n == n_other && !memcmp(word, other, n))
                REFUSE("model.served_model_name", "names '%.*s' twice", (int)n, word);
    }
    return XD_OK;
}

static xd_status check_model(const config *c, xd_err *err)
{
    bool synthetic = !strncmp(c->model.path, "synthetic:", 10);
    if (synthetic && !c->model.path[10])
        REFUSE("model.path", "synthetic: needs a name, as in synthetic:qwen3-30b-a3b");
    if (!synthetic && strcmp(c->model.dtype, "bf16"))
        REFUSE("model.dtype", "is for synthetic models only; '%s' keeps the types it is stored in",
               *c->model.path ? c->model.path : "the demo model");
    if (!synthetic && c->model.skew != CONF_SKEW_BALANCED)
        REFUSE("model.skew", "is for synthetic models only; a trained router decides for itself");
    if (!*c->model.skew_trace != (c->model.skew != CONF_SKEW_TRACE))
        REFUSE("model.skew_trace", "and skew = trace belong together");
    return check_names(c, err);
}

static xd_status check_sizes(const config *c, xd_err *err)
{
    if (c->engine.max_num_batched_tokens && c->engine.max_num_batched_tokens < c->engine.max_num_seqs)
        REFUSE("engine.max_num_batched_tokens",
               "%u is less than engine.max_num_seqs (%u): each sequence needs a token a step",
               c->engine.max_num_batched_tokens, c->engine.max_num_seqs);
    if (!is_pow2(c->kv.block_size))
        REFUSE("kv.block_size", "must be a power of two (8, 16, 32), not %u", c->kv.block_size);
    if (!is_pow2(c->memory.page_size))
        REFUSE("memory.page_size", "must be a power of two (1MiB, 2MiB, 4MiB)");
    /* The CPU has no memory of its own: there vram_budget is the simulated arena's alone. */
    if (c->engine.backend == CONF_BACKEND_CUDA && c->memory.vram_budget != CONF_AUTO_BYTES &&
        c->kv.kv_budget != CONF_AUTO_BYTES && c->memory.vram_budget && c->kv.kv_budget > c->memory.vram_budget)
        REFUSE("kv.kv_budget", "is larger than memory.vram_budget, of which it is a part");
    if (*c->memory.nvme_path && c->memory.host_tier == CONF_TIER_IN_PLACE)
        REFUSE("memory.host_tier", "in_place reads the mapped model file; a page file (memory.nvme_path) needs a pool");
    if (*c->memory.nvme_path && c->memory.host_budget == CONF_AUTO_BYTES)
        REFUSE("memory.host_budget",
               "must be given with memory.nvme_path: auto keeps all experts in memory, and the disk is idle");
    return XD_OK;
}

static xd_status check_fallback(const config *c, xd_err *err)
{
    if (c->fallback.force == CONF_FORCE_FALLBACK && !c->fallback.enabled)
        REFUSE("fallback.force", "fallback contradicts fallback.enabled = no");
    if (c->fallback.cooldown_s < c->fallback.window_s)
        REFUSE("fallback.cooldown", "must not be shorter than fallback.window, or the state flaps");
    return XD_OK;
}

static xd_status check_test(const config *c, xd_err *err)
{
    bool used = c->test.link_gbps > 0 || c->test.link_latency_us > 0 || *c->test.link_profile ||
                c->test.disk_gbps > 0 || c->test.disk_error_rate > 0 || c->test.alloc_error_rate > 0 ||
                c->test.page_loss_rate > 0;
    if (used && !c->test.allow)
        REFUSE("test.allow", "must be yes for the other keys of [test]: they make expertd fail on purpose");
    const char *p = c->test.link_profile;
    for (double last = -1; *p;) {
        double at, rate;
        int n = 0;
        if (sscanf(p, "%lf:%lf%n", &at, &rate, &n) != 2 || !(at > last) || !(rate >= 0) || (p[n] && p[n] != ','))
            REFUSE("test.link_profile", "must be rising second:GB/s pairs such as 0:50,10:5, not '%s'",
                   c->test.link_profile);
        last = at;
        p += n + (p[n] == ',');
    }
    return XD_OK;
}

xd_status conf_check(const config *c, xd_err *err)
{
    xd_status (*const rules[])(const config *, xd_err *) = {check_server, check_model, check_sizes, check_fallback,
                                                            check_test};
    for (size_t i = 0; i < XD_ARRAY_LEN(rules); i++) {
        xd_status st = rules[i](c, err);
        if (st)
            return st;
    }
    return XD_OK;
}

/* --- doubts --------------------------------------------------------------------------------------------------------- */

typedef struct listener {
    void (*say)(void *user, const char *text);
    void *user;
} listener;

static void doubt(const listener *l, const char *fmt, ...) XD_PRINTF(2, 3);
static void doubt(const listener *l, const char *fmt, ...)
{
    char text[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    l->say(l->user, text);
}

static void doubt_server(const config *c, const listener *l)
{
    const char *host = c->server.host;
    bool local = !strcmp(host, "localhost") || !strcmp(host, "::1") || !strncmp(host, "127.", 4);
    if (!local && !*c->server.api_key && !*c->server.api_key_file)
        doubt(l, "server.host = %s opens the API to the network and no API key is set", host);
    if (c->server.max_connections < c->server.threads)
        doubt(l, "server.max_connections = %u is less than server.threads = %u, each of which takes one: %u are taken",
              c->server.max_connections, c->server.threads, c->server.threads);
}

static void doubt_threads(const config *c, const conf_machine *m, const listener *l)
{
    bool compute = c->engine.backend != CONF_BACKEND_CUDA || !c->engine.deterministic;
    if (m->cpus && c->engine.threads > m->cpus && compute)
        doubt(l,
              "engine.threads = %u is more than the %u CPUs that expertd may use, and slower; auto takes one for each",
              c->engine.threads, m->cpus);
    if (m->cpus && c->server.threads > 16 && c->server.threads > 8 * m->cpus)
        doubt(
            l,
            "server.threads = %u is far more than the %u CPUs that expertd may use; they only move bytes, 4 are plenty",
            c->server.threads, m->cpus);
}

static void doubt_memory(const config *c, const conf_machine *m, const listener *l)
{
    char want[32], have[32];
    uint64_t host = c->memory.host_budget == CONF_AUTO_BYTES ? 0 : c->memory.host_budget, sum = host + c->kv.swap_space;
    if (m->ram_bytes && sum > m->ram_bytes)
        doubt(l, "memory.host_budget and kv.swap_space are %s together, and there are %s of RAM",
              xd_format_bytes(want, sizeof want, sum), xd_format_bytes(have, sizeof have, m->ram_bytes));
}

static void doubt_sharing(const config *c, const listener *l)
{
    if (!c->engine.deterministic && c->engine.backend == CONF_BACKEND_CPU && !c->test.allow)
        doubt(l, "engine.deterministic = no changes nothing with engine.backend = cpu: it lets the CPU help a GPU");
}

static void doubt_fallback(const config *c, const listener *l)
{
    if (!c->fallback.enabled)
        return;
    if (c->fallback.min_link_ratio > 0.95 && (c->fallback.min_link_gbps <= 0 || c->fallback.min_link_gbps > 64))
        doubt(
            l,
            "fallback.min_link_ratio = %.0f%% takes the usual ups and downs of a link for a fault; 40%% is the default",
            100 * c->fallback.min_link_ratio);
    if (c->fallback.max_token_latency_ms > 0 && c->fallback.max_token_latency_ms < 1)
        doubt(
            l,
            "fallback.max_token_latency_ms = %g takes the usual ups and downs of a token's time for a fault; 25 is the default",
            c->fallback.max_token_latency_ms);
}

void conf_doubt(const config *c, const conf_machine *m, void (*say)(void *user, const char *text), void *user)
{
    const listener l = {say, user};
    doubt_server(c, &l);
    doubt_threads(c, m, &l);
    doubt_memory(c, m, &l);
    doubt_sharing(c, &l);
    doubt_fallback(c, &l);
    if (c->test.allow)
        doubt(&l, "test.allow = yes: the keys of [test] make expertd fail on purpose");
}
