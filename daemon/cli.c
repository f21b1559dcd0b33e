/* cli.c - the command line: which command, its own options, help; all settings are left to config/.
 *
 * The commands print to stdout; errors go to stderr as "expertd: ..." with the exit status 2 for a wrong command line (an option that
 * does not exist, or a value that it does not take), 78 for a wrong configuration and 66 for a model that cannot be used. */
#include <errno.h>
#include <string.h>

#include "daemon/daemon_priv.h"

typedef struct command {
    const char *name, *arguments, *help, *more; /* more: for its own --help; or NULL */
    int (*run)(const cli *c, const config *cfg);
    bool takes_model, takes_text;
} command;

static const char bench_options[] =
    "      --lengths 128,1024   tokens of the prompts\n"
    "      --concurrency 1,8    requests at once\n"
    "      --tokens 64          tokens of each answer\n"
    "      --sweep KEY=A,B      once for each of these values of a setting; up to four times\n"
    "      --hits 16            instead: the share of pages found in device memory, every 16 tokens\n"
    "      --trace FILE         instead: what each eviction policy would have hit on a recorded trace\n";
static const char check_more[] =
    "It opens the model and all files that serving would open, as whoever runs it, and changes nothing.\n"
    "The exit status is 1 when something must be mended before expertd can serve.\n\n"
    "      --config-only        only whether the configuration is one that a reload would take; 78 if not\n";
static const char inspect_more[] = "No device is opened and no weight is read: it shows any model for any machine.\n";
static const char tokenize_more[] =
    "With one argument that is the text, and the model is the configured one, or the demo.\n";

static const command commands[] = {
    {"serve", "[MODEL]", "serve the model over HTTP until SIGTERM (the default)", NULL, NULL, true, false},
    {"check", "[MODEL] [--json]", "say whether this machine can serve so, and how to mend what it cannot", check_more,
     check_main, true, false},
    {"inspect", "[MODEL] [--json]", "show a model's geometry and where its bytes would go", inspect_more, inspect_main,
     true, false},
    {"bench", "[MODEL] [--json]", "measure tokens a second and the share of the memory's limit", bench_options,
     bench_main, true, false},
    {"tokenize", "[MODEL] TEXT", "show the tokens of a text (- reads standard input)", tokenize_more, tokenize_main,
     true, true},
};

static const command *find_command(const char *name)
{
    for (size_t i = 0; i < XD_ARRAY_LEN(commands); i++)
        if (!strcmp(commands[i].name, name))
            return &commands[i];
    return NULL;
}

/* All but the one that is for tests of expertd itself. */
static void put_sections(xd_buf *out, const char *first, const char *between)
{
    const char *name;
    for (size_t i = 0; (name = conf_section_name(i)); i++)
        if (strcmp(name, "test"))
            xd_buf_printf(out, "%s%s", i ? between : first, name);
}

static void print_help(const char *section, xd_buf *out)
{
    if (section) {
        conf_print_help(out, section);
        return;
    }
    xd_buf_puts(out,
                "expertd " XD_VERSION " - serves Mixture-of-Experts models that are larger than the GPU's memory\n\n"
                "Usage: expertd [COMMAND] [--section.key=value]...\n\nCommands:\n");
    for (size_t i = 0; i < XD_ARRAY_LEN(commands); i++)
        xd_buf_printf(out, "  %-9s%-18s %s\n", commands[i].name, commands[i].arguments, commands[i].help);
    xd_buf_puts(
        out,
        "\nExamples:\n"
        "  expertd                                         serve the small demo model on 127.0.0.1:8080\n"
        "  expertd -m ~/models/Qwen3-30B-A3B               serve a Hugging Face directory\n"
        "  expertd -m model.gguf --api-key-file keys       a GGUF file, for those with a key of that file\n"
        "  expertd check                                   is this machine ready?\n"
        "  expertd inspect model.gguf --vram-budget=12GiB  what would lie where?\n"
        "  expertd bench synthetic:moe-4gb                 how fast is this machine?\n\n"
        "Options:\n"
        "  -m, --model PATH     the model (model.path)\n"
        "  -c, --config FILE    configuration file; default " CONF_DEFAULT_FILE " if it is there\n"
        "      --print-config   show the settings in force, as a configuration file, and exit\n"
        "  -h, --help [SECTION] this text, or the settings of one section\n"
        "      --help all       all settings\n"
        "  -V, --version\n\n"
        "Often set:\n"
        "      --host 0.0.0.0          where to listen; default 127.0.0.1\n"
        "      --port 9000             default 8080\n"
        "      --api-key-file FILE     the keys that clients may send, one a line\n"
        "      --alias NAME            what clients call the model; several with commas\n"
        "      --max-model-len 32768   tokens of prompt and answer together; default what fits\n"
        "      --vram-budget 9GiB      device memory in all; default 90 % of what is free\n\n"
        "Environment:\n"
        "  EXPERTD_API_KEY      server.api_key, in place of the file's; a command line can be read by everybody\n\n"
        "Options of bench:\n");
    xd_buf_puts(out, bench_options);
    xd_buf_puts(
        out,
        "\n"
        "Settings (--section.key=value; the section may be left out where the key is unique, and - is as good as _):\n");
    put_sections(out, "  expertd --help ", "\n  expertd --help ");
    xd_buf_puts(out, "\n\nSee expertd(1), expertd.conf(5).\n");
}

static void print_command_help(const command *cmd, xd_buf *out)
{
    xd_buf_printf(out, "Usage: expertd %s%s%s [--section.key=value]...\n\n%s: %s\n", cmd->name,
                  *cmd->arguments ? " " : "", cmd->arguments, cmd->name, cmd->help);
    if (cmd->more)
        xd_buf_printf(out, "%s", cmd->more);
    xd_buf_puts(out, "\nexpertd --help shows what all commands take, expertd --help all every setting.\n");
}

/* Options with a value that belong to the command line and not to the configuration. */
static const char **own_value(cli *c, const char *name, size_t len)
{
    const struct {
        const char *name;
        const char **slot;
    } own[] = {{"--config", &c->config_path},
               {"-c", &c->config_path},
               {"--trace", &c->trace},
               {"--lengths", &c->lengths},
               {"--concurrency", &c->concurrency},
               {"--tokens", &c->tokens},
               {"--hits", &c->hits}};
    for (size_t i = 0; i < XD_ARRAY_LEN(own); i++)
        if (strlen(own[i].name) == len && !strncmp(own[i].name, name, len))
            return own[i].slot;
    return NULL;
}

/* What a command does not look at is refused: it would seem to have had an effect. */
static xd_status check_own(const cli *c, xd_err *err)
{
    const struct {
        const char *name;
        bool given;
    } of_bench[] = {{"--trace", c->trace},   {"--lengths", c->lengths}, {"--concurrency", c->concurrency},
                    {"--tokens", c->tokens}, {"--hits", c->hits},       {"--sweep", c->n_sweeps}};
    if (c->config_only && strcmp(c->command, "check"))
        return xd_fail(err, XD_BAD_CONFIG, 0, "'--config-only' is for check");
    if (c->json && !strcmp(c->command, "serve"))
        return xd_fail(err, XD_BAD_CONFIG, 0, "'--json' is for check, inspect, bench and tokenize");
    const char *digits = c->config_path ? c->config_path : "";
    if (*digits && !digits[strspn(digits, "0123456789")]) /* llama.cpp's -c */
        return xd_fail(err, XD_BAD_CONFIG, 0,
                       "'-c %s': -c names the configuration file; a context of that length is --max-model-len=%s",
                       digits, digits);
    for (size_t i = 0; i < XD_ARRAY_LEN(of_bench) && strcmp(c->command, "bench"); i++)
        if (of_bench[i].given)
            return xd_fail(err, XD_BAD_CONFIG, 0, "'%s' is for bench", of_bench[i].name);
    return XD_OK;
}

static xd_status take_positional(cli *c, const command *cmd, const char *arg, xd_err *err)
{
    if (cmd->takes_text && !c->text)
        c->text = arg;
    else if (cmd->takes_text && cmd->takes_model && !c->argument) { /* two given: MODEL TEXT */
        c->argument = c->text;
        c->text = arg;
    } else if (!cmd->takes_text && cmd->takes_model && !c->argument)
        c->argument = arg;
    else
        return xd_fail(err, XD_BAD_CONFIG, 0, "unexpected argument '%s'; see expertd --help", arg);
    return XD_OK;
}

/* Every user of the machine can read it there. */
static bool is_key_flag(const char *arg, size_t len)
{
    static const char *const names[] = {"--server.api_key", "--server.api-key", "--api_key", "--api-key"};
    for (size_t i = 0; i < XD_ARRAY_LEN(names); i++)
        if (strlen(names[i]) == len && !strncmp(names[i], arg, len))
            return true;
    return false;
}

static void clear(cli *c)
{
    free(c->flags);
    c->flags = NULL;
}

/* The word that comes first, if it is no flag; *i: the word after it. A command may also stand behind flags: parse(). */
static xd_status take_command(cli *c, int argc, char **argv, int *i, xd_err *err)
{
    if (*i >= argc || argv[*i][0] == '-')
        return XD_OK;
    c->command = argv[(*i)++];
    if (!strcmp(c->command, "help")) { /* as --help */
        c->command = "serve";
        c->help = true;
        c->help_section = *i < argc ? argv[(*i)++] : NULL;
        return XD_OK;
    }
    c->named = find_command(c->command);
    return c->named ? XD_OK
                    : xd_fail(err, XD_BAD_CONFIG, 0, "unknown command '%s'; %s", c->command,
                              strpbrk(c->command, "/.") ? "a model is named by -m"
                                                        : "commands are serve, check, inspect, bench, tokenize");
}

/* As flags, so that settings which depend on them are checked with them. */
static void add_setting(cli *c, const char *name, const char *value)
{
    c->flags[c->flags_count++] = name;
    c->flags[c->flags_count++] = value;
}

static xd_status parse(int argc, char **argv, cli *ret, xd_err *err)
{
    cli c = {.command = "serve"};
    c.flags = calloc((size_t)argc + 4, sizeof *c.flags);
    if (!c.flags)
        return xd_fail(err, XD_NOMEM, 0, "command line");
    const char *key = getenv("EXPERTD_API_KEY");
    if (key && *key) /* it comes first: over the file, under the command line */
        add_setting(&c, "--server.api_key", key);
    int i = 1;
    xd_status st = take_command(&c, argc, argv, &i, err);
    const command *cmd = find_command(c.command), *later;
    bool only_positional = false;
    for (; i < argc && !st; i++) {
        const char *arg = argv[i], *equals = strchr(arg, '='), *instead;
        size_t len = equals ? (size_t)(equals - arg) : strlen(arg);
        bool is_sweep = len == 7 && !strncmp(arg, "--sweep", len);
        const char **slot = is_sweep && c.n_sweeps < CLI_MAX_SWEEPS ? &c.sweeps[c.n_sweeps++] : own_value(&c, arg, len);
        if (!only_positional && !c.named && !c.argument && (later = find_command(arg))) {
            cmd = later;
            c.command = later->name;
            c.named = true;
        } else if (only_positional || arg[0] != '-' || !arg[1])
            st = take_positional(&c, cmd, arg, err);
        else if (!strcmp(arg, "--"))
            only_positional = true;
        else if (is_sweep && !slot)
            st = xd_fail(err, XD_BAD_CONFIG, 0, "at most %d settings can be swept", CLI_MAX_SWEEPS);
        else if (slot && equals)
            *slot = equals + 1;
        else if (slot && i + 1 < argc)
            *slot = argv[++i];
        else if (slot)
            st = xd_fail(err, XD_BAD_CONFIG, 0, "'%s' needs a value", arg);
        else if (!strcmp(arg, "-m")) {
            if (i + 1 >= argc)
                st = xd_fail(err, XD_BAD_CONFIG, 0, "'-m' needs a model");
            else if (!*argv[i + 1])
                st = xd_fail(err, XD_BAD_CONFIG, 0, "'-m' needs a model, and the word behind it is empty");
            c.flags[c.flags_count++] = "--model.path";
        } else if (!strcmp(arg, "-h") || !strcmp(arg, "--help")) {
            c.help = true;
            if (i + 1 < argc && argv[i + 1][0] != '-')
                c.help_section = argv[++i];
        } else if (!strcmp(arg, "-V") || !strcmp(arg, "--version"))
            c.version = true;
        else if (!strcmp(arg, "--print-config"))
            c.print_config = true;
        else if (!strcmp(arg, "--json"))
            c.json = true;
        else if (!strcmp(arg, "--config-only"))
            c.config_only = true;
        else if ((instead = foreign_flag(arg, len)))
            st = xd_fail(err, XD_BAD_CONFIG, 0, "there is no '%.*s' here: %s", (int)len, arg, instead);
        else if (arg[1] != '-')
            st = xd_fail(err, XD_BAD_CONFIG, 0, "unknown option '%s'; see expertd --help", arg);
        else {
            c.flags[c.flags_count++] = arg;
            c.shows_key |= is_key_flag(arg, len);
        }
        /* "--port 9000": the word behind a setting is its value unless it is a flag. */
        bool setting = c.flags_count && c.flags[c.flags_count - 1] == arg;
        if (!st && ((setting && !equals) || !strcmp(arg, "-m")) && i + 1 < argc && argv[i + 1][0] != '-') {
            bool alone = setting && conf_flag_stands_alone(arg + 2, argv[i + 1]);
            if (!alone)
                c.flags[c.flags_count++] = argv[++i];
        }
    }
    if (!st)
        st = check_own(&c, err);
    if (c.argument)
        add_setting(&c, "--model.path", c.argument);
    if (st)
        clear(&c);
    else
        *ret = c;
    return st;
}

xd_status cli_load_config(const cli *c, config **ret, bool *ret_demo, xd_err *err)
{
    XD_CLEANUP(conf_freep) config *cfg = NULL;
    XD_CLEANUP(xd_buf_free) xd_buf demo = {0};
    xd_status st = conf_load(c->config_path, c->flags_count, c->flags, &cfg, err);
    *ret_demo = false;
    if (!st && !*cfg->model.path && strcmp(c->command, "check")) {
        st = demo_find(&demo, err);
        if (!st)
            st = conf_set(cfg, "model.path", demo.data, err);
        *ret_demo = !st;
    }
    if (!st)
        st = conf_check(cfg, err);
    if (!st)
        *ret = XD_TAKE(cfg);
    return st;
}

static bool is_section(const char *name)
{
    const char *known;
    for (size_t i = 0; (known = conf_section_name(i)); i++)
        if (!strcmp(known, name))
            return true;
    return false;
}

static int fail(const xd_err *err, int status)
{
    fprintf(stderr, "expertd: %s\n", err->msg);
    return status;
}

int cli_status(xd_status st)
{
    switch (st) {
    case XD_OK: return 0;
    case XD_BAD_CONFIG: return EXIT_CONFIG;
    case XD_NOT_FOUND:
    case XD_UNSUPPORTED:
    case XD_BAD_MODEL: return EXIT_MODEL;
    default: return 1;
    }
}

int cli_fail(xd_status st, const xd_err *err)
{
    return fail(err, cli_status(st));
}

/* A full disk: half a table is no success. */
static int flush_out(void)
{
    xd_err err;
    errno = 0;
    if (!fflush(stdout) && !ferror(stdout))
        return 0;
    xd_fail(&err, XD_IO, errno, "the output could not be written");
    return fail(&err, 1);
}

static int print_out(xd_buf *out)
{
    xd_err err;
    bool ok = !out->failed;
    errno = 0;
    bool written = fwrite(out->data ? out->data : "", 1, out->len, stdout) == out->len;
    if (ok && !written) {
        xd_fail(&err, XD_IO, errno, "the output could not be written");
        clearerr(stdout); /* said */
        fail(&err, 1);
    }
    xd_buf_free(out);
    return ok && written ? 0 : 1;
}

int cli_run(int argc, char **argv)
{
    cli c;
    xd_err err;
    xd_buf out = {0};
    if (parse(argc, argv, &c, &err))
        return fail(&err, EXIT_USAGE);
    int rc = 0;
    if (c.help) {
        const char *section = c.help_section;
        if (!section && c.named)
            print_command_help(find_command(c.command), &out);
        else if (section && !strcmp(section, "all"))
            conf_print_help(&out, NULL);
        else if (section && !is_section(section)) {
            put_sections(&out, "", ", ");
            xd_fail(&err, XD_BAD_CONFIG, 0, "no help on '%s': sections are %s", section, out.data ? out.data : "");
            rc = fail(&err, EXIT_USAGE);
            xd_buf_free(&out);
        } else
            print_help(section, &out);
        rc = rc ? rc : print_out(&out);
    } else if (c.version) {
        puts("expertd " XD_VERSION);
    } else {
        XD_CLEANUP(conf_freep) config *cfg = NULL;
        bool demo = false;
        if (c.print_config && !conf_load(c.config_path, c.flags_count, c.flags, &cfg, &err)) {
            conf_print(cfg, &out);
            rc = print_out(&out);
        } else if (c.print_config || cli_load_config(&c, &cfg, &demo, &err)) {
            rc = fail(&err, strcmp(err.code, CONF_CODE_COMMAND_LINE) ? EXIT_CONFIG : EXIT_USAGE);
        } else {
            const command *cmd = find_command(c.command);
            bus_error_setup(log_setup(cfg));
            rc = cmd->run ? cmd->run(&c, cfg) : serve_main(&c, cfg, demo);
        }
    }
    clear(&c);
    return rc ? rc : flush_out();
}
