/* config.h - every setting of expertd, in one struct made from one table (options.c).
 *
 * Order of precedence: built-in default < configuration file (INI) < command line (--section.key=value). The table also makes
 * --help, --print-config, the example file and the man page. A config is immutable once loaded; SIGHUP loads a second one and
 * conf_diff() says what may change while running. */
#ifndef CONFIG_CONFIG_H
#define CONFIG_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "config/error.h"
#include "config/util.h"

#ifndef CONF_SYSCONFDIR
#define CONF_SYSCONFDIR "/etc"
#endif
#define CONF_DEFAULT_FILE CONF_SYSCONFDIR "/expertd/expertd.conf"

#define CONF_AUTO_BYTES UINT64_MAX /* value of a size option set to `auto` */

enum { CONF_BACKEND_AUTO, CONF_BACKEND_CPU, CONF_BACKEND_CUDA };
enum { CONF_KV_AUTO, CONF_KV_F16, CONF_KV_F32, CONF_KV_Q8_0 };
enum { CONF_AHEAD_AUTO, CONF_AHEAD_YES, CONF_AHEAD_NO };
enum { CONF_EVICT_LRU, CONF_EVICT_LFU, CONF_EVICT_LFRU, CONF_EVICT_STATIC };
enum { CONF_TIER_AUTO, CONF_TIER_IN_PLACE, CONF_TIER_POOL };
enum { CONF_DEFAULTS_MODEL, CONF_DEFAULTS_NONE };
enum { CONF_REASONING_AUTO, CONF_REASONING_NONE };
enum { CONF_LOG_ERROR, CONF_LOG_WARN, CONF_LOG_INFO, CONF_LOG_DEBUG };
enum { CONF_LOGFMT_AUTO, CONF_LOGFMT_PLAIN, CONF_LOGFMT_JSON, CONF_LOGFMT_JOURNAL };
enum { CONF_FORCE_NONE, CONF_FORCE_DIRECT, CONF_FORCE_FALLBACK };
enum { CONF_SKEW_BALANCED, CONF_SKEW_ZIPF, CONF_SKEW_TRACE };

extern const char *const conf_force_names[]; /* by CONF_FORCE_* */

typedef struct config {
    struct {
        char *host;          /* address to listen on; loopback by default */
        uint32_t port;       /* 0: any free port, logged */
        char *api_key;       /* comma-separated keys, or "" */
        char *api_key_file;  /* one key a line; re-read on SIGHUP */
        char *cors_origin;   /* "" none, "*" or one origin */
        char *allowed_hosts; /* list, see conf_next_word(); "*": any */
        uint32_t threads;    /* HTTP threads */
        uint32_t max_connections;
        uint64_t max_body_bytes;
        uint32_t max_queue;                     /* waiting requests beyond which 429 is answered */
        uint32_t request_timeout_s;             /* whole request, 0 none */
        uint32_t idle_timeout_s;                /* connection without progress */
        uint32_t heartbeat_s;                   /* SSE comment interval while nothing is generated */
        uint32_t drain_timeout_s;               /* SIGTERM: time for running requests */
        uint32_t max_n, max_logprobs, max_stop; /* per-request caps */
        bool admin;                             /* POST /admin/... on loopback */
        bool status_page;
        bool chat_page;
        bool completions_parse_special;
        int reasoning_format; /* CONF_REASONING_* */
    } server;
    struct {
        char *path;                 /* directory, file, "synthetic:NAME", or "" for the demo model */
        char *served_model_name;    /* list, see conf_next_word(); "" : last part of the path */
        uint32_t max_model_len;     /* 0: from the model, limited by memory */
        bool tokenizer;             /* no: token ids only */
        char *chat_template;        /* template text or file, "" : the model's own */
        char *chat_template_kwargs; /* JSON object, "" : none */
        int sampling_defaults;      /* CONF_DEFAULTS_* */
        char *dtype;                /* synthetic models: bf16, f16, q8_0 */
        int skew;                   /* synthetic routing: CONF_SKEW_* */
        char *skew_trace;           /* trace file of CONF_SKEW_TRACE, or "" */
        uint32_t seed;              /* synthetic weights */
    } model;
    struct {
        int backend;
        uint32_t threads;  /* CPU workers, 0: cores */
        int32_t numa_node; /* -1: the GPU's, or any */
        uint32_t gpu;      /* device index */
        uint32_t max_num_seqs;
        uint32_t max_num_batched_tokens; /* 0: 16384 on a GPU with experts off the device, else 512 */
        uint32_t max_decode_stall_ms;    /* a prefill chunk should not hold up decodes longer, 0 none */
        bool enable_prefix_caching;
        bool deterministic;
        bool self_test;        /* one real token before READY */
        char *kernels_disable; /* comma-separated caps or row names */
    } engine;
    struct {
        uint32_t block_size; /* tokens a KV block */
        uint64_t kv_budget;  /* bytes, auto */
        int kv_dtype;
        uint64_t swap_space;  /* host bytes for preempted KV blocks */
        uint64_t state_space; /* and for copies of linear layers' states */
    } kv;
    struct {
        uint64_t vram_budget; /* bytes in all, auto: gpu_memory_utilization of what is free */
        double gpu_memory_utilization;
        double expert_vram_share; /* of the experts' bytes, at most, in VRAM */
        uint64_t host_budget;     /* bytes for expert pages in RAM, auto: all */
        uint64_t page_size;
        int host_tier;   /* CONF_TIER_* */
        char *nvme_path; /* page file, "" : no NVMe tier */
        bool nvme_checksums;
        bool nvme_prefetch;
        bool huge_pages;
    } memory;
    struct {
        int eviction;         /* CONF_EVICT_* */
        uint32_t max_inserts; /* pages kept a layer and step */
        double layer_floor;   /* share of the arena that is divided evenly among layers */
        int read_ahead;       /* CONF_AHEAD_* */
        bool warm_start;
        char *stats_file; /* "" : state directory */
        uint32_t stats_interval_s;
        char *trace_file; /* record routing, "" : off */
    } pager;
    struct {
        bool enabled;
        double min_link_gbps;        /* 0: relative rule only */
        double min_link_ratio;       /* of the probed healthy rate */
        double max_token_latency_ms; /* over baseline */
        double window_s, cooldown_s, probe_interval_s;
        int force; /* CONF_FORCE_* */
    } fallback;
    struct {
        int level, format;
        bool requests; /* one line a request */
        bool prompts;  /* log prompts and outputs: off, private */
    } log;
    struct { /* fault injection; refused unless `allow` */
        bool allow;
        double link_gbps; /* CPU backend: simulated link, 0 unlimited */
        double link_latency_us;
        char *link_profile; /* "0:50,10:5,20:50": seconds:GB/s */
        double disk_gbps;
        double disk_error_rate, alloc_error_rate, page_loss_rate;
        uint64_t vram_free;  /* CPU backend: what a fallback may take beyond the arena */
        uint64_t vram_piece; /* larger allocations of it fail; 0: none does */
        uint32_t seed;
    } test;
} config;

#define CONF_CODE_COMMAND_LINE "command_line" /* xd_err.code of what is wrong with a flag */
/* Parses `argc` flags ("--key=value", "--section.key=value", "--section.key value") over the file `path` (NULL: the default
 * file when it exists). Unknown keys, bad values and contradictions are XD_BAD_CONFIG naming file, line, key and what is
 * allowed, with the nearest known key. *ret is owned by the caller. */
xd_status conf_load(const char *path, int argc, const char *const *argv, config **ret, xd_err *err) XD_MUST_CHECK;
/* All options at their defaults, no file read. *ret is owned. XD_NOMEM. */
xd_status conf_defaults(config **ret, xd_err *err) XD_MUST_CHECK;
/* Sets one option as the command line would ("server.port", "9000"). */
xd_status conf_set(config *c, const char *key, const char *value, xd_err *err) XD_MUST_CHECK;
/* True when "--key" is complete without the word that follows it: a yes/no setting, unless that word is yes or no. */
bool conf_flag_stands_alone(const char *key, const char *next);
/* Contradictions between options; conf_load() has called it. */
xd_status conf_check(const config *c, xd_err *err) XD_MUST_CHECK;
/* What a machine gives to this process; 0: unknown. */
typedef struct conf_machine {
    uint32_t cpus;      /* by affinity and control group */
    uint64_t ram_bytes; /* by the machine and control group */
} conf_machine;
/* Settings that are allowed and surely not meant: say(user, text) for each, with the reason and what to set instead. */
void conf_doubt(const config *c, const conf_machine *m, void (*say)(void *user, const char *text), void *user);
void conf_free(config *c);
XD_DEFINE_CLEANUP(config, conf_free)

#define CONF_MAX_NAME 255 /* bytes of one name in served_model_name */
/* The words of a list with commas, without blanks around them: *ret_len bytes from *ret on, which may be 0. `at` moves on; false at
 * the end. */
bool conf_next_word(const char **at, const char **ret, size_t *ret_len);

/* Compares; appends to `changed` a line for each option that differs and may change while running, and to `refused` one
 * for each that needs a restart: "section.key: old -> new". Returns true when anything differs. */
bool conf_diff(const config *old_conf, const config *new_conf, xd_buf *changed, xd_buf *refused);

void conf_print(const config *c, xd_buf *out);          /* a valid file with every key, its help and its value */
void conf_print_example(xd_buf *out);                   /* the same with defaults, commented out */
void conf_print_help(xd_buf *out, const char *section); /* NULL: all sections */
void conf_print_man(xd_buf *out);                       /* expertd.conf(5), roff */
/* Sections in the order of the table; NULL behind the last. */
const char *conf_section_name(size_t i);

#endif
