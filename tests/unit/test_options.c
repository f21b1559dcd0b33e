#include <criterion/criterion.h>
#include <string.h>
#include <unistd.h>

#include "config/config.h"
#include "config/options_priv.h"

/* A configuration file with the given text, in a fresh folder; the path is owned by the caller. */
static char *make_file(const char *text)
{
    char dir[] = "/tmp/expertd-conf-XXXXXX";
    cr_assert(mkdtemp(dir));
    char *path = NULL;
    cr_assert(asprintf(&path, "%s/t.conf", dir) > 0);
    FILE *f = fopen(path, "w");
    cr_assert(f && fputs(text, f) >= 0 && !fclose(f));
    return path;
}

static void remove_file(char *path)
{
    unlink(path);
    *strrchr(path, '/') = 0;
    rmdir(path);
    free(path);
}

static xd_status load_text(const char *text, config **ret, xd_err *err)
{
    char *path = make_file(text);
    xd_status st = conf_load(path, 0, NULL, ret, err);
    remove_file(path);
    return st;
}

/* The message of a file that must be refused, without the folder in front. */
static const char *refusal(const char *text, xd_err *err)
{
    config *c = NULL;
    cr_assert_eq(load_text(text, &c, err), XD_BAD_CONFIG, "accepted: %s", text);
    const char *name = strstr(err->msg, "t.conf");
    return name ? name : err->msg;
}

static const char *flag_refusal(const char *flag, xd_err *err)
{
    config *c = NULL;
    cr_assert_eq(conf_load("/dev/null", 1, &flag, &c, err), XD_BAD_CONFIG, "accepted: %s", flag);
    return err->msg;
}

Test(options, defaults_are_those_that_the_documents_promise)
{
    XD_CLEANUP(conf_freep) config *c = NULL;
    cr_assert_eq(conf_defaults(&c, NULL), XD_OK);
    cr_assert_str_eq(c->server.host, "127.0.0.1");
    cr_assert_eq(c->server.port, 8080);
    cr_assert_eq(c->server.max_body_bytes, 16u << 20);
    cr_assert_eq(c->server.max_queue, 256);
    cr_assert_eq(c->server.heartbeat_s, 10);
    cr_assert_eq(c->server.drain_timeout_s, 30);
    cr_assert_eq(c->server.idle_timeout_s, 120);
    cr_assert_eq(c->server.request_timeout_s, 0);
    cr_assert_eq(c->engine.max_num_seqs, 32);
    cr_assert_eq(c->engine.numa_node, -1);
    cr_assert_eq(c->kv.block_size, 16);
    cr_assert_eq(c->kv.kv_budget, CONF_AUTO_BYTES);
    cr_assert_eq(c->memory.page_size, 2u << 20);
    cr_assert_eq(c->memory.gpu_memory_utilization, 0.9);
    cr_assert(c->engine.enable_prefix_caching);
    cr_assert_eq(c->pager.eviction, CONF_EVICT_LFRU);
    cr_assert_eq(c->fallback.min_link_gbps, 20);
    cr_assert_eq(c->fallback.max_token_latency_ms, 25);
    cr_assert_eq(c->fallback.window_s, 1);
    cr_assert_eq(conf_check(c, NULL), XD_OK);
}

Test(options, every_row_reads_what_it_writes)
{
    XD_CLEANUP(conf_freep) config *a = NULL;
    XD_CLEANUP(conf_freep) config *b = NULL;
    cr_assert(!conf_defaults(&a, NULL) && !conf_defaults(&b, NULL));
    for (size_t i = 0; i < conf_options_count; i++) {
        const conf_option *o = &conf_options[i];
        double numbers[] = {o->min, o->max, (o->min + o->max) / 3};
        for (size_t k = 0; k < XD_ARRAY_LEN(numbers); k++) {
            char text[64];
            bool real = o->type == CONF_REAL || o->type == CONF_REAL_SECONDS || o->type == CONF_RATIO;
            snprintf(text, sizeof text, real ? "%.17g" : "%.0f", numbers[k]);
            if (strchr(text, 'e'))
                continue;
            const char *value = o->names                 ? o->names[k > 1]
                                : o->type == CONF_STRING ? "a b"
                                : o->type == CONF_BOOL   ? "no"
                                                         : text;
            xd_buf why = {0}, written = {0};
            if (o->type == CONF_BYTES && numbers[k] > 0 && numbers[k] < 1024)
                continue;
            cr_assert_eq(conf_value_set(a, o, value, &why), XD_OK, "%s.%s = %s: %s", o->section, o->key, value,
                         why.data);
            conf_value_format(a, o, &written);
            cr_assert_eq(conf_value_set(b, o, written.data, &why), XD_OK, "%s.%s = %s: %s", o->section, o->key,
                         written.data, why.data);
            cr_assert(conf_value_equal(a, b, o), "%s.%s = %s -> %s", o->section, o->key, value, written.data);
            xd_buf_free(&written);
            xd_buf_free(&why);
        }
    }
}

Test(options, numbers_beyond_the_range_are_refused_in_every_row)
{
    XD_CLEANUP(conf_freep) config *c = NULL;
    cr_assert(!conf_defaults(&c, NULL));
    for (size_t i = 0; i < conf_options_count; i++) {
        const conf_option *o = &conf_options[i];
        if (o->type == CONF_STRING)
            continue;
        static const char *const nonsense[] = {
            "", "banana", "-2", "1e999", "nan", "0x10", "99999999999999999999", "7 parsecs"};
        for (size_t k = 0; k < XD_ARRAY_LEN(nonsense); k++) {
            xd_buf why = {0};
            cr_assert_eq(conf_value_set(c, o, nonsense[k], &why), XD_BAD_CONFIG, "%s.%s took '%s'", o->section, o->key,
                         nonsense[k]);
            cr_assert(why.len > 5);
            xd_buf_free(&why);
        }
    }
}

Test(options, errors_name_file_line_key_and_what_is_allowed)
{
    xd_err e;
    cr_assert_str_eq(refusal("[server]\n\nport = 99999\n", &e),
                     "t.conf:3: [server] port = 99999: must be a whole number from 0 to 65535");
    cr_assert_str_eq(e.param, "server.port");
    cr_assert_str_eq(refusal("# c\n[server]\nprot = 1\n", &e),
                     "t.conf:3: unknown key 'prot' in [server]; did you mean 'port'?");
    cr_assert_str_eq(refusal("[sever]\nport = 1\n", &e), "t.conf:2: unknown section [sever]; did you mean [server]?");
    cr_assert_str_eq(refusal("[model]\nport = 1\n", &e),
                     "t.conf:2: unknown key 'port' in [model]; it belongs to [server]");
    cr_assert_str_eq(refusal("[server]\nheartbeat_s = 1\n", &e),
                     "t.conf:2: unknown key 'heartbeat_s' in [server]; did you mean 'heartbeat'?");
    cr_assert_str_eq(refusal("port = 1\n", &e),
                     "t.conf:1: 'port' stands before the first [section]; 'port' belongs to [server]");
    cr_assert_str_eq(refusal("[server]\nport = 1\nhost = ::\nport = 2\n", &e),
                     "t.conf:4: [server] port is given twice, first in line 2");
    cr_assert_str_eq(refusal("[server]\nhost = \"::\"\n", &e),
                     "t.conf:2: [server] host: values stand without quotes, which would be a part of them");
    cr_assert_str_eq(refusal("[server]\nport = 80 # mine\n", &e),
                     "t.conf:2: [server] port: a comment behind a value begins with ; and not with #");
    cr_assert_str_eq(refusal("[model]\npath = /m\t# mine\n", &e),
                     "t.conf:2: [model] path: a comment behind a value begins with ; and not with #");
    cr_assert_str_eq(
        refusal("[memory]\nnvme_path = ~/pages\n", &e),
        "t.conf:2: [memory] nvme_path = ~/pages: ~ is known to the shell alone, and not behind a =: write the "
        "whole path");
    cr_assert_str_eq(refusal("[server]\nport 8080\n", &e),
                     "t.conf:2: 'port 8080' is neither a [section] nor 'key = value'");
    cr_assert_str_eq(refusal("[server\n", &e), "t.conf:1: '[server': a section looks like [server]");
    cr_assert_str_eq(refusal("[pager]\neviction = random\n", &e),
                     "t.conf:2: [pager] eviction = random: must be one of lru, lfu, lfru, static");
    cr_assert_str_eq(refusal("[kv]\nswap_space = 4\n", &e),
                     "t.conf:2: [kv] swap_space = 4: needs a unit: 4GiB or 4MiB, say");
}

Test(options, a_secret_is_never_quoted)
{
    xd_err e;
    cr_assert(!strstr(refusal("[server]\napi_key = sk-\x01secret\n", &e), "secret"));
    XD_CLEANUP(conf_freep) config *c = NULL;
    const char *flag = "--api-key=sk-secret";
    cr_assert_eq(conf_load("/dev/null", 1, &flag, &c, &e), XD_OK);
    cr_assert_str_eq(c->server.api_key, "sk-secret");
    XD_CLEANUP(xd_buf_free) xd_buf out = {0};
    conf_print(c, &out);
    cr_assert(!strstr(out.data, "sk-secret"));
}

Test(options, flags_win_over_the_file_and_take_every_spelling)
{
    char *path =
        make_file("[server]\nport = 1000 ; a comment\n[engine]\nmax_num_seqs=4\n[memory]\nvram_budget = 1.5GiB\n");
    const char *flags[] = {
        "--server.port=2000",     "--max-model-len",  "4096",           "--model", "/m",
        "--server.admin",         "--no-status-page", "--log.requests", "off",     "--gpu-memory-utilization=85%",
        "--engine.numa_node=auto"};
    XD_CLEANUP(conf_freep) config *c = NULL;
    xd_err e;
    cr_assert_eq(conf_load(path, XD_ARRAY_LEN(flags), flags, &c, &e), XD_OK, "%s", e.msg);
    remove_file(path);
    cr_assert_eq(c->server.port, 2000);
    cr_assert_eq(c->engine.max_num_seqs, 4);
    cr_assert_eq(c->memory.vram_budget, 3ull << 29);
    cr_assert_eq(c->model.max_model_len, 4096);
    cr_assert_str_eq(c->model.path, "/m");
    cr_assert(c->server.admin && !c->server.status_page && !c->log.requests);
    cr_assert_float_eq(c->memory.gpu_memory_utilization, 0.85, 1e-12);
    cr_assert_eq(c->engine.numa_node, -1);
}

Test(options, bad_flags_are_explained)
{
    xd_err e;
    cr_assert_str_eq(flag_refusal("--prot=1", &e), "unknown option '--prot'; did you mean '--server.port'?");
    cr_assert_str_eq(flag_refusal("--threads=1", &e), "'--threads' could be --server.threads or --engine.threads");
    cr_assert_str_eq(flag_refusal("--port=abc", &e), "--server.port=abc: must be a whole number from 0 to 65535");
    cr_assert(strstr(flag_refusal("--model=~/m", &e), "write the whole path"), "%s", e.msg);
    cr_assert_str_eq(flag_refusal("--port", &e), "'--port' needs a value: --port=...");
    cr_assert_str_eq(flag_refusal("8080", &e), "unexpected argument '8080'; options are --section.key=value");
    cr_assert_str_eq(flag_refusal("--zzzzzzzzz", &e), "unknown option '--zzzzzzzzz'; see --help");
}

Test(options, contradictions_are_refused)
{
    static const struct {
        const char *text, *param;
    } cases[] = {
        {"[engine]\nmax_num_seqs = 64\nmax_num_batched_tokens = 32\n", "engine.max_num_batched_tokens"},
        {"[kv]\nblock_size = 24\n", "kv.block_size"},
        {"[memory]\npage_size = 3MiB\n", "memory.page_size"},
        {"[engine]\nbackend = cuda\n[memory]\nvram_budget = 1GiB\n[kv]\nkv_budget = 2GiB\n", "kv.kv_budget"},
        {"[memory]\nnvme_path = /p\n", "memory.host_budget"},
        {"[memory]\nnvme_path = /p\nhost_budget = 1GiB\nhost_tier = in_place\n", "memory.host_tier"},
        {"[fallback]\nenabled = no\nforce = fallback\n", "fallback.force"},
        {"[fallback]\nwindow = 10s\ncooldown = 5s\n", "fallback.cooldown"},
        {"[test]\nlink_gbps = 5\n", "test.allow"},
        {"[test]\nallow = yes\nlink_profile = 5:1,4:2\n", "test.link_profile"},
        {"[model]\ndtype = q8_0\n", "model.dtype"},
        {"[model]\npath = synthetic:\n", "model.path"},
        {"[model]\npath = synthetic:tiny\nskew = trace\n", "model.skew_trace"},
        {"[model]\npath = synthetic:tiny\nskew_trace = /t\n", "model.skew_trace"},
        {"[server]\ncors_origin = example.com\n", "server.cors_origin"},
        {"[server]\ncors_origin = https://\n", "server.cors_origin"},
        {"[server]\ncors_origin = https://example.com/\n", "server.cors_origin"},
        {"[server]\ncors_origin = https://a.example, https://b.example\n", "server.cors_origin"},
        {"[server]\ncors_origin = https://*.example.com\n", "server.cors_origin"},
        {"[server]\nallowed_hosts = a,,b\n", "server.allowed_hosts"},
        {"[server]\nallowed_hosts = a.example b.example\n", "server.allowed_hosts"},
        {"[server]\nallowed_hosts = http://a.example\n", "server.allowed_hosts"},
        {"[server]\nallowed_hosts = a.example:8080\n", "server.allowed_hosts"},
        {"[server]\nallowed_hosts = *.example.com\n", "server.allowed_hosts"},
        {"[server]\nidle_timeout = 5s\n", "server.heartbeat"},
        {"[model]\nserved_model_name = a,,b\n", "model.served_model_name"},
        {"[model]\nserved_model_name = a, b,\n", "model.served_model_name"},
        {"[model]\nserved_model_name = a, b , a\n", "model.served_model_name"},
    };
    for (size_t i = 0; i < XD_ARRAY_LEN(cases); i++) {
        xd_err e;
        refusal(cases[i].text, &e);
        cr_assert_str_eq(e.param, cases[i].param, "%s -> %s", cases[i].text, e.msg);
    }
}

Test(options, lists_have_words_between_commas)
{
    static const struct {
        const char *text, *words; /* each in brackets */
    } rows[] = {{"a", "[a]"}, {"a,b", "[a][b]"}, {" a b ,\tc ", "[a b][c]"},
                {"", "[]"},   {",", "[][]"},     {"org/a, , b,", "[org/a][][b][]"}};
    for (size_t i = 0; i < XD_ARRAY_LEN(rows); i++) {
        XD_CLEANUP(xd_buf_free) xd_buf got = {0};
        const char *word;
        size_t n;
        for (const char *at = rows[i].text; conf_next_word(&at, &word, &n);)
            xd_buf_printf(&got, "[%.*s]", (int)n, word);
        cr_assert_str_eq(got.data, rows[i].words);
    }
    XD_CLEANUP(xd_buf_free) xd_buf name = {0};
    xd_buf_puts(&name, "[model]\nalias = ");
    cr_assert(strstr(refusal(name.data, &(xd_err){0}), "alias")); /* a flag's name, not a key's */
    xd_buf_clear(&name);
    xd_buf_puts(&name, "[model]\nserved_model_name = ok,");
    for (int i = 0; i <= CONF_MAX_NAME; i++)
        xd_buf_putc(&name, 'x');
    xd_buf_putc(&name, '\n');
    cr_assert(strstr(refusal(name.data, &(xd_err){0}), "a name of 256 bytes; 255 are allowed"));
}

Test(options, relative_paths_mean_beside_the_file)
{
    char *path = make_file("[model]\npath = .\nchat_template = my.jinja\n[server]\napi_key_file = /etc/keys\n"
                           "[pager]\nstats_file = ~heat\n");
    XD_CLEANUP(conf_freep) config *c = NULL;
    xd_err e;
    cr_assert_eq(conf_load(path, 0, NULL, &c, &e), XD_OK, "%s", e.msg);
    char want[256];
    int dir = (int)(strrchr(path, '/') - path);
    snprintf(want, sizeof want, "%.*s", dir, path);
    cr_assert_str_eq(c->model.path, want);
    snprintf(want, sizeof want, "%.*s/my.jinja", dir, path);
    cr_assert_str_eq(c->model.chat_template, want);
    cr_assert_str_eq(c->server.api_key_file, "/etc/keys");
    snprintf(want, sizeof want, "%.*s/~heat", dir, path);
    cr_assert_str_eq(c->pager.stats_file, want);
    remove_file(path);
}

Test(options, long_lines_and_indented_lines_arrive_whole)
{
    /* inih alone would cut at 200 bytes and read the rest as another line. */
    char text[4096] = "\xEF\xBB\xBF[model]\nchat_template = ", want[3000] = "";
    for (int i = 0; i < 120; i++)
        snprintf(want + strlen(want), sizeof want - strlen(want), "{%% x%d = '#;' %%} ", i);
    want[strlen(want) - 1] = 0;
    strcat(text, want);
    strcat(text, "\n# a comment that is itself longer than two hundred bytes ");
    memset(text + strlen(text), 'c', 300);
    strcat(text, "\n[server]\nport = 9\nprot = 2\n");
    xd_err e;
    cr_assert_str_eq(refusal(text, &e), "t.conf:6: unknown key 'prot' in [server]; did you mean 'port'?");
    *strstr(text, "prot") = '#';
    XD_CLEANUP(conf_freep) config *c = NULL;
    cr_assert_eq(load_text(text, &c, &e), XD_OK, "%s", e.msg);
    cr_assert_str_eq(c->model.chat_template, want);
    cr_assert_eq(c->server.port, 9);

    XD_CLEANUP(conf_freep) config *d = NULL;
    cr_assert_eq(load_text("[model]\nchat_template = {{ a }}\n  {{ b }}\n\t{{ c }}\n", &d, &e), XD_OK, "%s", e.msg);
    cr_assert_str_eq(d->model.chat_template, "{{ a }}\n{{ b }}\n{{ c }}");
}

Test(options, files_that_are_no_text_are_refused)
{
    xd_err e;
    config *c = NULL;
    cr_assert_eq(conf_load("/nonexistent/x.conf", 0, NULL, &c, &e), XD_BAD_CONFIG);
    cr_assert_str_eq(e.msg, "open configuration file '/nonexistent/x.conf': No such file or directory");
    cr_assert_eq(conf_load("/tmp", 0, NULL, &c, &e), XD_BAD_CONFIG);
    cr_assert_eq(conf_load("/dev/zero", 0, NULL, &c, &e), XD_BAD_CONFIG);
    cr_assert_null(c);
}

Test(options, printed_configuration_reads_back)
{
    const char *flags[] = {"--port=1",       "--swap_space=3GiB",
                           "--eviction=lru", "--min_link_gbps=none",
                           "--window=2.25s", "--chat_template={{ a }}\n{{ b }}",
                           "--model=/m"};
    XD_CLEANUP(conf_freep) config *a = NULL;
    XD_CLEANUP(conf_freep) config *b = NULL;
    xd_err e;
    cr_assert_eq(conf_load("/dev/null", XD_ARRAY_LEN(flags), flags, &a, &e), XD_OK, "%s", e.msg);
    XD_CLEANUP(xd_buf_free) xd_buf out = {0}, changed = {0}, refused = {0};
    conf_print(a, &out);
    cr_assert_eq(load_text(out.data, &b, &e), XD_OK, "%s", e.msg);
    cr_assert_not(conf_diff(a, b, &changed, &refused), "%s%s", changed.data, refused.data);
}

Test(options, reload_tells_what_changes_from_what_waits)
{
    const char *flags[] = {"--log.level=debug", "--port=1", "--api_key=k"};
    XD_CLEANUP(conf_freep) config *a = NULL;
    XD_CLEANUP(conf_freep) config *b = NULL;
    cr_assert_eq(conf_load("/dev/null", 0, NULL, &a, NULL), XD_OK);
    cr_assert_eq(conf_load("/dev/null", 3, flags, &b, NULL), XD_OK);
    XD_CLEANUP(xd_buf_free) xd_buf changed = {0}, refused = {0};
    cr_assert(conf_diff(a, b, &changed, &refused));
    cr_assert_str_eq(changed.data, "server.api_key\nlog.level: info -> debug\n");
    cr_assert_str_eq(refused.data, "server.port: 8080 -> 1\n");
}

Test(options, the_example_file_is_the_one_that_the_table_makes)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/config/expertd.conf", getenv("EXPERTD_SOURCE_ROOT"));
    FILE *f = fopen(path, "r");
    cr_assert(f, "%s", path);
    static char have[1 << 17];
    size_t n = fread(have, 1, sizeof have - 1, f);
    fclose(f);
    XD_CLEANUP(xd_buf_free) xd_buf want = {0};
    conf_print_example(&want);
    cr_assert(n == want.len && !memcmp(have, want.data, n), "config/expertd.conf is out of date: run ./dev fmt");
    XD_CLEANUP(conf_freep) config *c = NULL;
    xd_err e;
    cr_assert_eq(conf_load(path, 0, NULL, &c, &e), XD_OK, "%s", e.msg);
}

static void note_doubt(void *user, const char *text)
{
    xd_buf_printf(user, "%s\n", text);
}

/* The doubts about the defaults with one or two settings changed, on a machine of 2 CPUs and 16 GiB. */
static const char *doubts(const char *key, const char *value, const char *key2, const char *value2, xd_buf *out)
{
    XD_CLEANUP(conf_freep) config *c = NULL;
    cr_assert(!conf_defaults(&c, NULL));
    cr_assert(!key || !conf_set(c, key, value, NULL), "%s = %s", key, value);
    cr_assert(!key2 || !conf_set(c, key2, value2, NULL), "%s = %s", key2, value2);
    xd_buf_free(out);
    conf_doubt(c, &(conf_machine){2, 16ull << 30}, note_doubt, out);
    return out->data ? out->data : "";
}

Test(options, what_is_allowed_and_surely_not_meant_is_said)
{
    XD_CLEANUP(xd_buf_free) xd_buf b = {0};
    cr_assert_str_eq(doubts(NULL, NULL, NULL, NULL, &b), "");
    static const struct {
        const char *key, *value, *key2, *value2, *word; /* word NULL: no doubt */
    } rows[] = {
        {"engine.threads", "1024", NULL, NULL, "engine.threads = 1024 is more than the 2 CPUs"},
        {"engine.threads", "2", NULL, NULL, NULL},
        {"engine.threads", "64", "engine.backend", "cuda", NULL}, /* they do nothing there */
        {"engine.deterministic", "no", NULL, NULL, NULL},
        {"engine.threads", "64", "engine.deterministic", "no", "more than the 2 CPUs"},
        {"engine.deterministic", "no", "fallback.enabled", "no", NULL},
        {"engine.deterministic", "no", "engine.backend", "cpu", "engine.deterministic = no changes nothing"},
        {"server.threads", "256", NULL, NULL, "server.threads = 256"},
        {"server.threads", "16", NULL, NULL, NULL},
        {"server.max_connections", "3", NULL, NULL, "less than server.threads = 4"},
        {"server.host", "0.0.0.0", NULL, NULL, "no API key"},
        {"server.host", "0.0.0.0", "server.api_key", "k", NULL},
        {"server.host", "::1", NULL, NULL, NULL},
        {"kv.swap_space", "10GiB", "memory.host_budget", "8GiB", "18.00 GiB together, and there are 16.00 GiB of RAM"},
        {"kv.swap_space", "8GiB", "memory.host_budget", "8GiB", NULL},
        {"fallback.min_link_ratio", "100%", "fallback.min_link_gbps", "none", "fallback.min_link_ratio = 100%"},
        {"fallback.min_link_ratio", "100%", NULL, NULL, NULL}, /* both must be undercut */
        {"fallback.max_token_latency_ms", "0.1", NULL, NULL, "fallback.max_token_latency_ms = 0.1"},
        {"fallback.max_token_latency_ms", "0.1", "fallback.enabled", "no", NULL},
        {"test.allow", "yes", NULL, NULL, "test.allow"},
    };
    for (size_t i = 0; i < XD_ARRAY_LEN(rows); i++) {
        const char *said = doubts(rows[i].key, rows[i].value, rows[i].key2, rows[i].value2, &b);
        if (rows[i].word)
            cr_assert(strstr(said, rows[i].word), "%s = %s: '%s'", rows[i].key, rows[i].value, said);
        else
            cr_assert_str_eq(said, "", "%s = %s: '%s'", rows[i].key, rows[i].value, said);
    }
    cr_assert(strstr(refusal("[engine]\nthreads = 1025\n", &(xd_err){0}), "1024"));
}
