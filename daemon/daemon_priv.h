/* daemon_priv.h - the commands of the expertd program and what they share. */
#ifndef DAEMON_PRIV_H
#define DAEMON_PRIV_H

#include <stdbool.h>
#include <stdio.h>

#include "config/config.h"
#include "config/error.h"
#include "config/log.h"

enum {
    /* The unit does not restart after these. */
    EXIT_USAGE = 2,
    EXIT_MODEL = 66,  /* EX_NOINPUT of sysexits.h: there is no such model, or it cannot be used */
    EXIT_CONFIG = 78, /* EX_CONFIG */
};

#define CLI_MAX_SWEEPS 4

/* A command line taken apart. Strings are borrowed from argv; `flags` is owned. */
typedef struct cli {
    const char *command; /* "serve", "check", ... */
    bool named;          /* it stands there, and is not only the default */
    const char *config_path;
    const char *argument; /* MODEL of inspect, bench, tokenize; or NULL */
    const char *text;     /* second argument: TEXT of tokenize; or NULL */
    bool json;            /* --json */
    bool config_only;     /* check --config-only */
    bool shows_key;       /* a key stands on the command line */
    bool help, version, print_config;
    const char *help_section;           /* --help SECTION */
    const char *trace;                  /* bench --trace FILE */
    const char *lengths;                /* bench --lengths 128,2048 */
    const char *concurrency;            /* bench --concurrency 1,8 */
    const char *tokens;                 /* bench --tokens 64 */
    const char *hits;                   /* bench --hits 16 */
    const char *sweeps[CLI_MAX_SWEEPS]; /* bench --sweep KEY=A,B */
    int n_sweeps;
    const char **flags; /* settings, for conf_load() */
    int flags_count;
} cli;

/* Runs the command; the result is the exit status. */
int cli_run(int argc, char **argv);
/* The exit status of what failed so, the same for all commands; cli_fail() also says to stderr what failed. */
int cli_status(xd_status st);
int cli_fail(xd_status st, const xd_err *err);
/* What to do instead of a flag that other servers have; NULL: it is none of them. */
const char *foreign_flag(const char *name, size_t len);

/* Loads the configuration that the command line asks for, with MODEL in place of model.path; the demo model is found where none
 * is set (then *ret_demo is true). */
xd_status cli_load_config(const cli *c, config **ret, bool *ret_demo, xd_err *err) XD_MUST_CHECK;

int serve_main(const cli *c, const config *cfg, bool is_demo);
int check_main(const cli *c, const config *cfg);
int inspect_main(const cli *c, const config *cfg);
int bench_main(const cli *c, const config *cfg);
int tokenize_main(const cli *c, const config *cfg);

/* Folder of the demo model that came with this program: beside the executable in a build tree or a bundle, else the installed
 * one. Appends to out; XD_NOT_FOUND names the places. */
xd_status demo_find(xd_buf *out, xd_err *err) XD_MUST_CHECK;

/* From here on a mapped file that cannot be read any more is named before the process ends, in the log's form (CONF_LOGFMT_*). */
void bus_error_setup(int log_format);

/* Sends log messages to the journal, to stderr as plain lines, or to stderr as JSON (log.format); returns which. */
int log_setup(const config *cfg);

#endif
