/* fake_server.c - the HTTP room around the fake engine: takes expertd's own options, serves until SIGTERM, prints "port N". SIGHUP reloads the
 * settings, and ends the loading of a model that is called so. */
#include <signal.h>

#include "api/api.h"
#include "config/log.h"

static void to_stderr(void *ctx, int level, const char *message, const xd_log_field *fields, size_t n)
{
    (void)ctx, (void)level;
    flockfile(stderr);
    fprintf(stderr, "%s", message);
    for (size_t i = 0; i < n; i++)
        if (!fields[i].is_said)
            fprintf(stderr, " %s=%s", fields[i].key, fields[i].value);
    fprintf(stderr, "\n");
    funlockfile(stderr);
}

int main(int argc, char **argv)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGHUP);
    sigprocmask(SIG_BLOCK, &set, NULL);
    xd_log_set_sink(to_stderr, NULL);
    xd_err err;
    config *cfg = NULL;
    engine *e = NULL;
    api *a = NULL;
    if (conf_load("/dev/null", argc - 1, (const char *const *)argv + 1, &cfg, &err))
        goto fail;
    xd_log_set_level(cfg->log.level);
    const api_options opt_no_engine = {.cfg = cfg, .listen_fd = -1};
    api_options opt = opt_no_engine;
    if (engine_start(cfg, &e, &err))
        goto fail;
    opt.e = e;
    if (api_start(&opt, &a, &err))
        goto fail;
    printf("port %u\n", api_port(a));
    fflush(stdout);
    if (engine_wait_ready(e, NULL, NULL, &err) || api_engine_ready(a, &err))
        goto fail;
    int sig = 0;
    while (!sigwait(&set, &sig) && sig == SIGHUP)
        if (api_reload(a, cfg, &err))
            fprintf(stderr, "%s\n", err.msg);
    api_drain(a);
    engine_drain(e, xd_now_ns() + cfg->server.drain_timeout_s * 1000000000ull);
    api_free(a);
    engine_free(e);
    conf_free(cfg);
    return 0;
fail:
    fprintf(stderr, "%s\n", err.msg);
    api_free(a);
    engine_free(e);
    conf_free(cfg);
    return 1;
}
