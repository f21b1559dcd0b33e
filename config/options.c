/* options.c - the option table: every setting of expertd is one row here and nowhere else.
 *
 * From the table come the parser of files and flags, range checks, --help, --print-config, the example file and the man
 * page. A row names section and key, how the text is read (conf_type), where it is stored, the default as a user would write
 * it, the range, an optional word that stands for a special number ("auto"), flags, and one sentence of help.
 * The rows of one section stand together, in the order in which the documents list them. Deliberately not here: rules that
 * concern two options (rules.c).
 *
 * Why some defaults are what they are:
 *  - server.host is loopback: an open port without a key is something to ask for.
 *  - fallback: `min_link_gbps` and `min_link_ratio` must both be undercut. 20 GB/s is what operators of a PCIe 5.0 x16 link know;
 *    0.4 of the rate that was measured while the link was healthy keeps a PCIe 3.0 x16 or 4.0 x8 machine from sitting in
 *    fallback for ever.
 *  - pager.max_inserts: a burst of misses in one layer must not push out what the other layers need. */
#include <string.h>

#include "config/options_priv.h"

static const char *const backends[] = {"auto", "cpu", "cuda", NULL};
static const char *const read_aheads[] = {"auto", "yes", "no", NULL};
static const char *const kv_dtypes[] = {"auto", "f16", "f32", "q8_0", NULL};
static const char *const evictions[] = {"lru", "lfu", "lfru", "static", NULL};
static const char *const host_tiers[] = {"auto", "in_place", "pool", NULL};
static const char *const sampling_defaults[] = {"model", "none", NULL};
static const char *const reasoning_formats[] = {"auto", "none", NULL};
static const char *const log_levels[] = {"error", "warn", "info", "debug", NULL};
static const char *const log_formats[] = {"auto", "plain", "json", "journal", NULL};
const char *const conf_force_names[] = {"none", "direct", "fallback", NULL};
static const char *const skews[] = {"balanced", "zipf", "trace", NULL};
static const char *const dtypes[] = {"bf16",  "f16",  "q8_0", "fp8",   "mxfp4",   "int4_g32", "int4_g128",
                                     "nvfp4", "q4_k", "q2_k", "iq3_s", "iq2_xxs", "iq1_s",    NULL};

const conf_section conf_sections[] = {
    {"server", "The HTTP side: where to listen, who may ask, and the limits that a request meets."},
    {"model", "What is served."},
    {"engine", "How requests are computed."},
    {"kv", "The key/value cache of the attention layers."},
    {"memory", "How much of each kind of memory expertd takes, and for what."},
    {"pager", "Which expert pages are kept in device memory."},
    {"fallback", "What happens when the link to the device becomes slow."},
    {"log", "What is logged, and how."},
    {"test", "Injected faults, for tests of expertd itself. Refused unless `allow = yes`."},
};
const size_t conf_sections_count = XD_ARRAY_LEN(conf_sections);

const char *conf_section_name(size_t i)
{
    return i < conf_sections_count ? conf_sections[i].name : NULL;
}

/* The field's C type is checked against the row's type: a wrong pair does not compile. */
#define AT(T, section, field) \
    (offsetof(config, section.field) + 0 * sizeof(char[_Generic(((config *)0)->section.field, T : 1)]))

#define KIB 1024.
#define MIB (1024. * KIB)
#define GIB (1024. * MIB)
#define TIB (1024. * GIB)

#define STRING(s, k, f, def, flags, help)                                                 \
    {                                                                                     \
#s, k, CONF_STRING, AT(char *, s, f), def, 0, 0, NULL, 0, NULL, flags, NULL, help \
    }
#define STRING_ALIAS(s, k, f, def, flags, a, help)                                     \
    {                                                                                  \
#s, k, CONF_STRING, AT(char *, s, f), def, 0, 0, NULL, 0, NULL, flags, a, help \
    }
#define CHOICE(s, k, f, def, names, flags, help)                                           \
    {                                                                                      \
#s, k, CONF_CHOICE, AT(char *, s, f), def, 0, 0, NULL, 0, names, flags, NULL, help \
    }
#define ENUM(s, k, f, def, names, flags, help)                                        \
    {                                                                                 \
#s, k, CONF_ENUM, AT(int, s, f), def, 0, 0, NULL, 0, names, flags, NULL, help \
    }
#define BOOL(s, k, f, def, flags, help)                                               \
    {                                                                                 \
#s, k, CONF_BOOL, AT(bool, s, f), def, 0, 0, NULL, 0, NULL, flags, NULL, help \
    }
#define U32(s, k, f, def, min, max, flags, help)                                             \
    {                                                                                        \
#s, k, CONF_U32, AT(uint32_t, s, f), def, min, max, NULL, 0, NULL, flags, NULL, help \
    }
#define U32_OR(s, k, f, def, min, max, word, flags, help)                                    \
    {                                                                                        \
#s, k, CONF_U32, AT(uint32_t, s, f), def, min, max, word, 0, NULL, flags, NULL, help \
    }
#define I32_OR(s, k, f, def, min, max, word, value, flags, help)                                \
    {                                                                                           \
#s, k, CONF_I32, AT(int32_t, s, f), def, min, max, word, value, NULL, flags, NULL, help \
    }
#define SECONDS(s, k, f, def, min, max, flags, help)                                             \
    {                                                                                            \
#s, k, CONF_SECONDS, AT(uint32_t, s, f), def, min, max, NULL, 0, NULL, flags, NULL, help \
    }
#define SECONDS_OR(s, k, f, def, min, max, word, flags, help)                                    \
    {                                                                                            \
#s, k, CONF_SECONDS, AT(uint32_t, s, f), def, min, max, word, 0, NULL, flags, NULL, help \
    }
#define REAL(s, k, f, def, min, max, flags, help)                                           \
    {                                                                                       \
#s, k, CONF_REAL, AT(double, s, f), def, min, max, NULL, 0, NULL, flags, NULL, help \
    }
#define REAL_OR(s, k, f, def, min, max, word, flags, help)                                  \
    {                                                                                       \
#s, k, CONF_REAL, AT(double, s, f), def, min, max, word, 0, NULL, flags, NULL, help \
    }
#define PERIOD(s, k, f, def, min, max, flags, help)                                                 \
    {                                                                                               \
#s, k, CONF_REAL_SECONDS, AT(double, s, f), def, min, max, NULL, 0, NULL, flags, NULL, help \
    }
#define RATIO(s, k, f, def, min, max, flags, help)                                           \
    {                                                                                        \
#s, k, CONF_RATIO, AT(double, s, f), def, min, max, NULL, 0, NULL, flags, NULL, help \
    }
#define BYTES(s, k, f, def, min, max, flags, help)                                             \
    {                                                                                          \
#s, k, CONF_BYTES, AT(uint64_t, s, f), def, min, max, NULL, 0, NULL, flags, NULL, help \
    }
#define BYTES_AUTO(s, k, f, def, min, max, flags, help)                                           \
    {                                                                                             \
#s, k, CONF_BYTES, AT(uint64_t, s, f), def, min, max, "auto", -1, NULL, flags, NULL, help \
    }

/* clang-format off */
const conf_option conf_options[] = {
    STRING(server, "host", host, "127.0.0.1", 0,
           "Address to listen on. 0.0.0.0 or :: opens the port to the network; set an API key then."),
    U32(server, "port", port, "8080", 0, 65535, 0,
        "TCP port to listen on. 0 takes any free port and logs it."),
    STRING(server, "api_key", api_key, "", CONF_SECRET | CONF_RELOAD,
           "Keys that clients may send as 'Authorization: Bearer KEY' or 'x-api-key: KEY', separated by commas. Empty: no "
           "key is asked for."),
    STRING(server, "api_key_file", api_key_file, "", CONF_PATH | CONF_RELOAD,
           "File with one key a line, added to api_key. It is read again on SIGHUP."),
    STRING(server, "cors_origin", cors_origin, "", CONF_RELOAD,
           "Origin whose web pages may call the API ('https://chat.example.com'), or * for any. Empty: none."),
    STRING(server, "allowed_hosts", allowed_hosts, "", CONF_RELOAD,
           "Names, separated by commas, by which the server may be asked (the Host header), beside IP addresses, localhost and this machine's own name; * for any. Empty: those alone where no API key is asked for, so that no web page gets at a server on loopback by giving its own name that address (DNS rebinding); any name where one is."),
    U32(server, "threads", threads, "4", 1, 256, 0,
        "HTTP threads, and as many that render and tokenize long requests. Computing has its own."),
    U32(server, "max_connections", max_connections, "1024", 1, 65535, 0,
        "Open connections. Beyond it the one that has been idle longest is closed for a new one; where none is idle, that gets 503."),
    BYTES(server, "max_body", max_body_bytes, "16MiB", 4 * KIB, GIB, 0,
          "Largest request body; a larger one is answered with 413."),
    U32(server, "max_queue", max_queue, "256", 1, 1e6, CONF_RELOAD,
        "HTTP requests that may wait for a place in the batch, whatever the number of their prompts; the next one is answered with 429."),
    SECONDS_OR(server, "request_timeout", request_timeout_s, "none", 1, 604800, "none", CONF_RELOAD,
               "Longest time for a whole request."),
    SECONDS_OR(server, "idle_timeout", idle_timeout_s, "2min", 1, 86400, "none", 0,
               "A connection on which nothing moves for so long is closed; a request's header must be there in that time, its body in four times that or at 1 KiB/s."),
    SECONDS_OR(server, "heartbeat", heartbeat_s, "10s", 1, 3600, "none", CONF_RELOAD,
               "While a stream has nothing to say yet, a comment line is sent this often, so that proxies keep it open."),
    SECONDS(server, "drain_timeout", drain_timeout_s, "30s", 0, 86400, CONF_RELOAD,
            "After SIGTERM, running requests have this long to finish."),
    U32(server, "max_n", max_n, "16", 1, 128, CONF_RELOAD,
        "Largest `n` of a request."),
    U32(server, "max_logprobs", max_logprobs, "20", 0, 20, CONF_RELOAD,
        "Largest `top_logprobs` (completions: `logprobs`) of a request."),
    U32(server, "max_stop", max_stop, "16", 1, 256, CONF_RELOAD,
        "Largest number of stop strings of a request."),
    BOOL(server, "completions_parse_special", completions_parse_special, "no", CONF_RELOAD,
         "Special tokens in a prompt of /v1/completions are control tokens unless it says parse_special: false. Clients that render templates themselves need it: SillyTavern's text completion, lm-eval, fill-in-the-middle of editors. Leave it off where prompts hold strangers' text."),
    ENUM(server, "reasoning_format", reasoning_format, "auto", reasoning_formats, CONF_RELOAD,
         "What becomes of a thinking model's thoughts in a chat's answer: `auto` gives them beside the content, as reasoning_content and reasoning; `none` leaves them in the content with the model's own marks. A request's reasoning_format wins."),
    BOOL(server, "admin", admin, "no", 0,
         "Serve the /admin/ endpoints (forcing a fallback state) to clients on the loopback interface."),
    BOOL(server, "status_page", status_page, "yes", 0,
         "Serve a status page at /."),
    BOOL(server, "chat_page", chat_page, "yes", 0,
         "Serve a page to chat on at /chat."),

    STRING_ALIAS(model, "path", path, "", CONF_PATH, "model",
           "Hugging Face directory, GGUF file, or synthetic:NAME (made in memory, for measurements). Empty: the demo model."),
    STRING_ALIAS(model, "served_model_name", served_model_name, "", 0, "alias",
           "Name of the model in the API, or several separated by commas: requests may use any, answers carry the first. Empty: the last part of the path (of a GGUF file without .gguf and the number of a part), or ORG/NAME in Hugging Face's cache."),
    U32_OR(model, "max_model_len", max_model_len, "auto", 16, 1e8, "auto", 0,
           "Most tokens of prompt and answer together. auto: what the model allows and the KV cache holds."),
    BOOL(model, "tokenizer", tokenizer, "yes", 0,
         "Take and give text, where the model has a tokenizer; one that cannot be read is then refused. no: requests are token ids."),
    STRING(model, "chat_template", chat_template, "", CONF_TEMPLATE,
           "Jinja chat template: its file, or its text if it contains '{{' or '{%'. Empty: the model's own."),
    STRING(model, "chat_template_kwargs", chat_template_kwargs, "", CONF_RELOAD,
           "JSON object of variables for the chat template, where a request does not say them itself: {\"enable_thinking\": false} switches thoughts off where the template has that word. A request's chat_template_kwargs, enable_thinking, reasoning_effort and the like win."),
    ENUM(model, "sampling_defaults", sampling_defaults, "model", sampling_defaults, 0,
         "Where a request's missing temperature, top_p and so on come from: the model's generation_config.json, or none."),
    CHOICE(model, "dtype", dtype, "bf16", dtypes, 0,
           "Weight type of a synthetic model. Other models keep the types that they are stored in."),
    ENUM(model, "skew", skew, "balanced", skews, 0,
         "How a synthetic model's router spreads its picks over the experts; trace: as skew_trace was recorded."),
    STRING(model, "skew_trace", skew_trace, "", CONF_PATH,
           "Trace (see pager.trace_file) of a model with as many layers and experts, whose picks a synthetic model repeats while it decodes."),
    U32(model, "seed", seed, "0", 0, UINT32_MAX, 0,
        "Seed of a synthetic model's weights."),

    ENUM(engine, "backend", backend, "auto", backends, 0,
         "Where to compute. auto: the GPU if there is one that can, else the CPU."),
    U32_OR(engine, "threads", threads, "auto", 1, 1024, "auto", 0,
           "Threads that compute on the CPU; with a GPU only where deterministic = no has them do so. auto: one for each CPU that expertd may use."),
    I32_OR(engine, "numa_node", numa_node, "auto", 0, 1023, "auto", -1, 0,
           "NUMA node for expert memory and workers. auto: the GPU's own node."),
    U32(engine, "gpu", gpu, "0", 0, 63, 0,
        "Index of the GPU."),
    U32(engine, "max_num_seqs", max_num_seqs, "32", 1, 4096, 0,
        "Sequences that are computed together; more requests wait."),
    U32_OR(engine, "max_num_batched_tokens", max_num_batched_tokens, "auto", 16, 1 << 20, "auto", 0,
           "Tokens of one step, prompt pieces included. More reads each expert less often; auto: 16384 on a GPU, 512 on the CPU."),
    U32_OR(engine, "max_decode_stall_ms", max_decode_stall_ms, "500", 1, 600000, "none", CONF_RELOAD,
           "A piece of a prompt should not hold up the sequences that are generating for longer than this; where reading the experts over "
           "the link alone takes more than half of it, for longer than twice that reading."),
    BOOL(engine, "enable_prefix_caching", enable_prefix_caching, "yes", 0,
         "Reuse the KV blocks of prompts that begin alike."),
    BOOL(engine, "deterministic", deterministic, "yes", 0,
         "The same request gives the same tokens, bit for bit, whatever else runs and wherever pages lie. no: with a GPU, the CPU may compute "
         "a part of the experts that are not in device memory, beside it, wherever tokens come faster that way. It adds in another order, so "
         "that numbers differ in their last digits, and a token may where two are almost equally likely."),
    BOOL(engine, "self_test", self_test, "yes", 0,
         "Generate one real token before the service is reported ready."),
    STRING(engine, "kernels_disable", kernels_disable, "", 0,
           "CPU features or kernels that must not be used, separated by commas (avx512,avx2): to find which one errs."),

    U32(kv, "block_size", block_size, "16", 1, 1024, 0,
        "Tokens in one KV block, of layers with narrow K and V up to four times as many; a power of two."),
    BYTES_AUTO(kv, "kv_budget", kv_budget, "auto", MIB, 64 * TIB, CONF_OF_MEMORY,
               "Memory for KV blocks. auto: enough for max_num_seqs, within what is left."),
    ENUM(kv, "kv_dtype", kv_dtype, "auto", kv_dtypes, 0,
         "Number format of the KV cache. auto: f32 on the CPU, f16 on a GPU. q8_0: half the memory of f16, 34 bytes for 32 numbers, which are "
         "rounded to 8 bits; heads must have a multiple of 32 of them."),
    BYTES(kv, "swap_space", swap_space, "0", 0, 64 * TIB, CONF_OF_MEMORY,
          "Host memory that takes the KV blocks of preempted sequences, and what of max_model_len is beyond kv_budget. 0: none."),
    BYTES(kv, "state_space", state_space, "2GiB", 0, 64 * TIB, CONF_OF_MEMORY,
          "Models with linear attention: host memory for copies of sequences' states. Prefix caching needs them: a prompt is taken from the cache as far as there is one."),

    BYTES_AUTO(memory, "vram_budget", vram_budget, "auto", 0, 64 * TIB, 0,
               "Device memory in all: trunk, KV cache, workspace and expert pages. auto: gpu_memory_utilization of what is free."),
    RATIO(memory, "gpu_memory_utilization", gpu_memory_utilization, "90%", 0.05, 0.99, 0,
          "Share of the free device memory to take when vram_budget is auto. Leave headroom: drivers slow down near full."),
    RATIO(memory, "expert_vram_share", expert_vram_share, "100%", 0, 1, 0,
          "At most this share of the experts' bytes is kept in device memory, however much is free. 0: all are read from the host."),
    BYTES_AUTO(memory, "host_budget", host_budget, "auto", MIB, 64 * TIB, CONF_OF_MEMORY,
               "Host memory for expert pages. auto: all of them. Less than the model needs an nvme_path."),
    BYTES(memory, "page_size", page_size, "2MiB", 64 * KIB, 64 * MIB, 0,
          "Unit in which expert weights are kept, moved and counted; a power of two."),
    ENUM(memory, "host_tier", host_tier, "auto", host_tiers, 0,
         "Read experts in place from the mapped model file, or from a pool in huge pages. auto: in place where kernels can."),
    STRING(memory, "nvme_path", nvme_path, "", CONF_PATH,
           "Page file on a fast disk for the experts that host_budget does not hold. Empty: no such tier."),
    BOOL(memory, "nvme_checksums", nvme_checksums, "yes", 0,
         "Check every page that comes from disk."),
    BOOL(memory, "nvme_prefetch", nvme_prefetch, "yes", 0,
         "Read ahead the experts that the next layers will probably pick."),
    BOOL(memory, "huge_pages", huge_pages, "yes", 0,
         "Ask for huge pages for the host pool."),

    ENUM(pager, "eviction", eviction, "lfru", evictions, 0,
         "Which page leaves device memory first: least recently used, least frequently, both combined, or static (none)."),
    U32(pager, "max_inserts", max_inserts, "8", 0, 65536, 0,
        "Most pages of one layer that one step may add to device memory."),
    RATIO(pager, "layer_floor", layer_floor, "25%", 0, 1, 0,
          "Share of the page slots that is divided evenly among the layers; the rest goes to whoever needs it."),
    ENUM(pager, "read_ahead", read_ahead, "auto", read_aheads, 0,
         "While a GPU computes what needs nothing from the host, let it read what the next layers will probably want. auto: where it pays."),
    BOOL(pager, "warm_start", warm_start, "yes", 0,
         "Remember which pages were in use and fetch them at the next start, and fill with others what room is left. no: start empty."),
    STRING(pager, "stats_file", stats_file, "", CONF_PATH,
           "Where they are remembered. Empty: in the state directory."),
    SECONDS(pager, "stats_interval", stats_interval_s, "5min", 1, 86400, 0,
            "How often they are written."),
    STRING(pager, "trace_file", trace_file, "", CONF_PATH,
           "Record which experts every token picks, for `expertd bench --trace`; anew at each start. Empty: no recording."),

    BOOL(fallback, "enabled", enabled, "yes", CONF_RELOAD,
         "Watch the link and change to another way of reading experts when it is slow."),
    REAL_OR(fallback, "min_link_gbps", min_link_gbps, "20", 0.1, 1000, "none", CONF_RELOAD,
            "The link is suspect when it is slower than this many GB/s and than min_link_ratio. none: only the ratio counts."),
    RATIO(fallback, "min_link_ratio", min_link_ratio, "40%", 0.01, 1, CONF_RELOAD,
          "The link is suspect below this share of the rate that was measured when it was healthy (see min_link_gbps)."),
    REAL_OR(fallback, "max_token_latency_ms", max_token_latency_ms, "25", 0.1, 60000, "none", CONF_RELOAD,
            "The link is suspect when a token takes this many milliseconds longer than usual."),
    PERIOD(fallback, "window", window_s, "1s", 0.1, 3600, CONF_RELOAD,
           "How long it must be slow before expertd falls back."),
    PERIOD(fallback, "cooldown", cooldown_s, "30s", 0.1, 86400, CONF_RELOAD,
           "How long it must be healthy before expertd returns."),
    PERIOD(fallback, "probe_interval", probe_interval_s, "5s", 0.1, 3600, CONF_RELOAD,
           "How often an idle link is measured."),
    ENUM(fallback, "force", force, "none", conf_force_names, CONF_RELOAD,
         "Stay in one state whatever is measured."),

    ENUM(log, "level", level, "info", log_levels, CONF_RELOAD,
         "How much is logged."),
    ENUM(log, "format", format, "auto", log_formats, 0,
         "auto: journal under systemd, plain lines elsewhere."),
    BOOL(log, "requests", requests, "yes", CONF_RELOAD,
         "Log one line for each request, with the client's address and the tokens of prompt (and how many of them were cached) and answer; for /health, /metrics and the pages only at debug, unless they fail. What failed on this "
         "side is logged in any case, with the reason."),
    BOOL(log, "prompts", prompts, "no", CONF_RELOAD,
         "Log prompts and answers too. They are private: leave this off unless you must."),

    BOOL(test, "allow", allow, "no", 0,
         "Allow the other keys of this section."),
    REAL_OR(test, "link_gbps", link_gbps, "none", 0.001, 10000, "none", CONF_RELOAD,
            "Rate of the CPU backend's simulated link."),
    REAL(test, "link_latency_us", link_latency_us, "0", 0, 1e6, CONF_RELOAD,
         "Latency of the simulated link."),
    STRING(test, "link_profile", link_profile, "", CONF_RELOAD,
           "Rate over time as second:GB/s pairs ('0:50,10:5,20:50')."),
    REAL_OR(test, "disk_gbps", disk_gbps, "none", 0.001, 10000, "none", 0,
            "Rate limit of the NVMe tier."),
    RATIO(test, "disk_error_rate", disk_error_rate, "0", 0, 1, 0,
          "Share of disk reads that fail."),
    RATIO(test, "alloc_error_rate", alloc_error_rate, "0", 0, 1, 0,
          "Share of a request's allocations that fail."),
    RATIO(test, "page_loss_rate", page_loss_rate, "0", 0, 1, 0,
          "Share of disk reads that bring wrong bytes."),
    BYTES(test, "vram_free", vram_free, "0", 0, 64 * TIB, 0,
          "Device memory beyond vram_budget that the CPU backend pretends to have free for a fallback."),
    BYTES(test, "vram_piece", vram_piece, "0", 0, 64 * TIB, 0,
          "A fallback gets no more device memory than this in one piece. 0: no limit."),
    U32(test, "seed", seed, "1", 0, UINT32_MAX, 0,
        "Seed of the injected faults."),
};
/* clang-format on */
const size_t conf_options_count = XD_ARRAY_LEN(conf_options);

/* "max-model-len" and "max_model_len" are the same name. */
static bool same_name(const char *a, const char *b)
{
    for (; *a && *b; a++, b++)
        if ((*a == '-' ? '_' : *a) != (*b == '-' ? '_' : *b))
            return false;
    return *a == *b;
}

/* True when `key` is "section.rest"; *ret_rest points behind the dot. */
static bool has_section(const char *key, const char *section, const char **ret_rest)
{
    size_t n = strlen(section);
    *ret_rest = key + n + 1;
    return !strncmp(key, section, n) && key[n] == '.';
}

const conf_option *conf_find(const char *section, const char *key, size_t *ret_matches)
{
    const conf_option *found = NULL;
    size_t matches = 0;
    for (const conf_option *o = conf_options; o < conf_options + conf_options_count; o++) {
        const char *rest = key;
        if (section) {
            if (strcmp(section, o->section))
                continue;
        } else if (!has_section(key, o->section, &rest)) {
            rest = key;
            if (o->alias && same_name(key, o->alias)) {
                found = o;
                matches = 1;
                break;
            }
        }
        if (same_name(rest, o->key)) {
            found = o;
            matches++;
        }
    }
    if (ret_matches)
        *ret_matches = matches;
    return matches == 1 ? found : NULL;
}

const conf_option *conf_nearest(const char *section, const char *key)
{
    const conf_option *best = NULL;
    size_t best_distance = SIZE_MAX;
    const char *dot = strchr(key, '.');
    for (const conf_option *o = conf_options; o < conf_options + conf_options_count; o++) {
        char full[64];
        snprintf(full, sizeof full, "%s.%s", o->section, o->key);
        size_t distance = 2 * xd_edit_distance(key, dot ? full : o->key);
        if (!dot && o->alias)
            distance = XD_MIN(distance, 2 * xd_edit_distance(key, o->alias));
        /* The unit in a name is easily added or left out: heartbeat_s, max_body_bytes. */
        if (!dot && !strncmp(key, o->key, strlen(o->key)) && key[strlen(o->key)] == '_')
            distance = XD_MIN(distance, 2);
        if (section && strcmp(section, o->section))
            distance++; /* at equal distance the section's own key wins */
        if (distance < best_distance) {
            best_distance = distance;
            best = o;
        }
    }
    return best_distance <= 2 * (strlen(key) / 3) + 1 ? best : NULL;
}

const char *conf_nearest_section(const char *name)
{
    const char *best = NULL;
    size_t best_distance = SIZE_MAX;
    for (size_t i = 0; i < conf_sections_count; i++) {
        size_t distance = xd_edit_distance(name, conf_sections[i].name);
        if (distance < best_distance) {
            best_distance = distance;
            best = conf_sections[i].name;
        }
    }
    return best_distance <= strlen(name) / 3 + 1 ? best : NULL;
}
