/* serve.c - the life of the service: start, load, ready, reload, drain, stop.
 *
 * DESIGN. The main thread owns signals, sd_notify and the watchdog, and never waits for the device: it polls a signalfd and a
 * timerfd. Everything else runs in threads of the engine and the API, which inherit the blocked signal mask.
 *
 *   LOADING --phase READY--> SERVING --SIGTERM/SIGINT--> DRAINING --running requests done or deadline--> stop
 *      |  \--phase FAILED--> exit 1 or 66     \--SIGHUP--> reload, SERVING
 *      \--SIGTERM--> stop               a second SIGTERM/SIGINT while DRAINING: exit at once
 *
 * Invariants:
 *  1. The HTTP server starts before the engine is ready: /health answers 503 with the progress meanwhile.
 *  2. READY=1 is sent once, after the engine has generated its self-test token.
 *  3. WATCHDOG=1 is sent only when the engine's heartbeat has moved since the last time, so a hung step is noticed by systemd.
 *  4. While loading, the start timeout is extended only as long as the progress moves (LOAD_STALL_NS).
 *  5. A configuration that the API or engine may still refer to lives until the end (configs[]).
 *  6. After the drain deadline the process ends within STOP_LIMIT_S whatever hangs: SIGALRM is left at its default. */
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <systemd/sd-daemon.h>

#include "api/api.h"
#include "daemon/daemon_priv.h"
#include "daemon/facts.h"
#include "engine/engine.h"

#define NS_PER_S      1000000000ull
#define LOAD_TICK_NS  (NS_PER_S / 10) /* a start takes a second or two where files are used in place */
#define IDLE_TICK_NS  (5 * NS_PER_S)
#define LOAD_STALL_NS (600 * NS_PER_S) /* one step of loading, e.g. pinning a terabyte, may take minutes */
#define STOP_LIMIT_S  20
/* Ctrl-C and timeout(1) signal both the process and its group: what comes so soon after the first is the same wish. */
#define SAME_SIGNAL_NS (NS_PER_S / 10)

typedef struct server {
    const cli *cli;
    const config *cfg; /* in force */
    config **configs;  /* loaded by SIGHUP; freed at the end */
    size_t configs_count;
    engine *engine;
    api *api;
    char address[300]; /* where it listens, for people */
    int signal_fd, timer_fd, drained_fd;
    bool ready, draining, drained;
    xd_status failed;     /* why it cannot serve */
    uint64_t draining_ns; /* since when */
    uint64_t watchdog_ns, last_heartbeat, heartbeat_ns;
    bool hung;
    double last_fraction;
    uint64_t progress_ns;
    int logged_pct;
    pthread_t drain_thread;
    bool drain_started;
} server;

/* ---- notification ---- */

static void arm_timer(server *s, uint64_t period_ns)
{
    struct timespec t = {(time_t)(period_ns / NS_PER_S), (long)(period_ns % NS_PER_S)};
    struct itimerspec it = {.it_interval = t, .it_value = t};
    timerfd_settime(s->timer_fd, 0, &it, NULL);
}

static void feed_watchdog(server *s)
{
    if (!s->watchdog_ns)
        return;
    uint64_t beat = engine_heartbeat(s->engine), now = xd_now_ns();
    if (beat != s->last_heartbeat) {
        s->last_heartbeat = beat;
        s->heartbeat_ns = now;
        s->hung = false;
        sd_notify(0, "WATCHDOG=1");
    } else if (!s->hung && now - s->heartbeat_ns > s->watchdog_ns / 2) {
        s->hung = true;
        xd_log_warn("the engine has not finished a step for %llu s; systemd will restart the service unless it does",
                    (unsigned long long)((now - s->heartbeat_ns) / NS_PER_S));
    }
}

/* ---- loading ---- */

static void cannot_serve(server *s, xd_status why, const char *text)
{
    xd_log_error("cannot serve: %s", text);
    sd_notifyf(0, "STATUS=Cannot serve: %s", text);
    s->failed = why;
}

static void on_ready(server *s)
{
    const engine_info *info = engine_get_info(s->engine);
    xd_err err = {.msg = "unknown reason"};
    xd_status st = api_engine_ready(s->api, &err);
    if (st) { /* e.g. the configured chat template cannot be read: READY would be a lie */
        cannot_serve(s, st, err.msg);
        return;
    }
    s->ready = true;
    const xd_log_field fields[] = {{.key = "MODEL", .value = info->model_id},
                                   {.key = "BACKEND", .value = info->backend}};
    xd_log_with(CONF_LOG_INFO, fields, XD_ARRAY_LEN(fields), "ready: %s (%s, %s) on %s", info->model_id, info->arch,
                info->backend, s->address);
    sd_notifyf(0, "READY=1\nSTATUS=Serving %s on %s (%s)", info->model_id, s->address, info->backend);
    s->last_heartbeat = engine_heartbeat(s->engine);
    s->heartbeat_ns = xd_now_ns();
    uint64_t usec = 0;
    if (sd_watchdog_enabled(0, &usec) > 0) {
        s->watchdog_ns = usec * 1000;
        sd_notify(0, "WATCHDOG=1");
    }
    arm_timer(s, s->watchdog_ns ? XD_MIN(XD_MAX(s->watchdog_ns / 4, NS_PER_S / 10), IDLE_TICK_NS) : IDLE_TICK_NS);
}

static void watch_loading(server *s)
{
    double fraction = 0;
    char what[128] = "";
    engine_phase phase = engine_get_phase(s->engine, &fraction, what, sizeof what);
    uint64_t now = xd_now_ns();
    if (phase == ENGINE_READY) {
        on_ready(s);
    } else if (phase == ENGINE_FAILED) {
        xd_err err = {.msg = "unknown reason"};
        xd_status st = engine_wait_ready(s->engine, NULL, NULL, &err);
        cannot_serve(s, st ? st : XD_INTERNAL, err.msg);
    } else if (phase == ENGINE_LOADING) {
        if (fraction != s->last_fraction) {
            s->last_fraction = fraction;
            s->progress_ns = now;
        }
        int pct = (int)(fraction * 100);
        sd_notifyf(0, "STATUS=Loading %d %%: %s", pct, what);
        if (now - s->progress_ns < LOAD_STALL_NS)
            sd_notify(0, "EXTEND_TIMEOUT_USEC=60000000");
        if (pct >= s->logged_pct + 10) {
            s->logged_pct = pct - pct % 10;
            xd_log_info("loading %d %%: %s", pct, what);
        }
    }
}

static void warn(void *user, const char *text)
{
    (void)user;
    xd_log_warn("%s", text);
}

static bool others_can_read(const char *path)
{
    struct stat sb;
    return !stat(path, &sb) && (sb.st_mode & S_IROTH);
}

/* A key that every user of the machine can read protects from the network alone. */
static void doubt_secrecy(const cli *c, const config *cfg)
{
    const char *path = c->config_path ? c->config_path : CONF_DEFAULT_FILE;
    if (c->shows_key)
        xd_log_warn("an API key stands on the command line, where every user of this machine can read it: use "
                    "server.api_key_file or the environment variable EXPERTD_API_KEY");
    XD_CLEANUP(conf_freep) config *file = NULL;
    xd_err ignored;
    if (*cfg->server.api_key && others_can_read(path) && !conf_load(path, 0, NULL, &file, &ignored) &&
        *file->server.api_key)
        xd_log_warn(
            "%s holds server.api_key and every user of this machine can read it: chmod o-r, or server.api_key_file",
            path);
    if (*cfg->server.api_key_file && others_can_read(cfg->server.api_key_file))
        xd_log_warn("every user of this machine can read server.api_key_file = %s: chmod o-r",
                    cfg->server.api_key_file);
}

static void say_doubts(const cli *c, const config *cfg)
{
    const conf_machine machine = facts_read_machine("");
    conf_doubt(cfg, &machine, warn, NULL);
    doubt_secrecy(c, cfg);
}

/* ---- signals ---- */

static void reload(server *s)
{
    xd_err err;
    XD_CLEANUP(conf_freep) config *next = NULL;
    XD_CLEANUP(xd_buf_free) xd_buf changed = {0}, refused = {0};
    bool demo;
    sd_notifyf(0, "RELOADING=1\nMONOTONIC_USEC=%llu", (unsigned long long)(xd_now_ns() / 1000));
    xd_status st = cli_load_config(s->cli, &next, &demo, &err);
    config **grown = st ? NULL : reallocarray(s->configs, s->configs_count + 1, sizeof *grown);
    s->configs = grown ? grown : s->configs;
    if (st) {
        xd_log_error("reload refused, nothing is changed: %s", err.msg);
    } else if (!grown) {
        xd_log_error("reload refused, nothing is changed: out of memory");
    } else if (api_reload(s->api, next, &err)) { /* first: it refuses keys that cannot be read */
        xd_log_error("reload refused, nothing is changed: %s", err.msg);
    } else {
        conf_diff(s->cfg, next, &changed, &refused);
        char *rest;
        for (char *l = changed.data ? strtok_r(changed.data, "\n", &rest) : NULL; l; l = strtok_r(NULL, "\n", &rest))
            xd_log_info("reload: %s", l);
        for (char *l = refused.data ? strtok_r(refused.data, "\n", &rest) : NULL; l; l = strtok_r(NULL, "\n", &rest))
            xd_log_warn("reload: %s needs a restart", l);
        engine_reload(s->engine, next);
        xd_log_set_level(next->log.level);
        say_doubts(s->cli, next);
        s->cfg = next;
        s->configs[s->configs_count++] = XD_TAKE(next);
        xd_log_info("configuration reloaded");
    }
    if (s->ready)
        sd_notify(0, "READY=1");
}

static void *drain_main(void *arg)
{
    server *s = arg;
    engine_drain(s->engine, xd_now_ns() + s->cfg->server.drain_timeout_s * NS_PER_S);
    eventfd_write(s->drained_fd, 1);
    return NULL;
}

static void begin_stop(server *s, int signo)
{
    if (s->draining && xd_now_ns() - s->draining_ns < SAME_SIGNAL_NS)
        return;
    if (s->draining) {
        xd_log_warn("second %s: stopping at once", strsignal(signo));
        _exit(1);
    }
    s->draining = true;
    s->draining_ns = xd_now_ns();
    xd_log_info("%s: finishing running requests, at most %u s", strsignal(signo), s->cfg->server.drain_timeout_s);
    sd_notifyf(0, "STOPPING=1\nSTATUS=Finishing running requests\nEXTEND_TIMEOUT_USEC=%llu",
               (s->cfg->server.drain_timeout_s + STOP_LIMIT_S + 5ull) * 1000000);
    api_drain(s->api);
    if (!s->ready || pthread_create(&s->drain_thread, NULL, drain_main, s))
        s->drained = true; /* nothing runs while loading */
    else
        s->drain_started = true;
}

static void force(server *s, int state, const char *name)
{
    xd_err err;
    if (engine_force_fallback(s->engine, state, &err))
        xd_log_error("cannot force the %s path: %s", name, err.msg);
    else
        xd_log_warn("the %s path is forced by a signal; set fallback.force and send SIGHUP to change it", name);
}

static void on_signals(server *s)
{
    struct signalfd_siginfo si;
    while (read(s->signal_fd, &si, sizeof si) == sizeof si)
        switch (si.ssi_signo) {
        case SIGHUP: reload(s); break;
        case SIGUSR1: force(s, CONF_FORCE_FALLBACK, "fallback"); break;
        case SIGUSR2: force(s, CONF_FORCE_DIRECT, "direct"); break;
        default: begin_stop(s, (int)si.ssi_signo);
        }
}

/* ---- start and stop ---- */

static xd_status open_fds(server *s, xd_err *err)
{
    sigset_t set;
    sigemptyset(&set);
    static const int signals[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2};
    for (size_t i = 0; i < XD_ARRAY_LEN(signals); i++)
        sigaddset(&set, signals[i]);
    if (pthread_sigmask(SIG_BLOCK, &set, NULL) || signal(SIGPIPE, SIG_IGN) == SIG_ERR ||
        signal(SIGXFSZ, SIG_IGN) == SIG_ERR) /* a file that may not grow is an error of that file */
        return xd_fail(err, XD_INTERNAL, errno, "blocking signals");
    s->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    s->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    s->drained_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (s->signal_fd < 0 || s->timer_fd < 0 || s->drained_fd < 0)
        return xd_fail(err, XD_INTERNAL, errno, "signal and timer descriptors");
    return XD_OK;
}

/* The socket that systemd listens on for us, or -1. */
static xd_status inherited_socket(int *ret, xd_err *err)
{
    int n = sd_listen_fds(1);
    if (n < 0)
        return xd_fail(err, XD_BAD_CONFIG, -n, "sockets handed over by systemd");
    if (n > 1)
        return xd_fail(err, XD_BAD_CONFIG, 0, "systemd handed over %d sockets; expertd.socket must name one", n);
    *ret = n ? SD_LISTEN_FDS_START : -1;
    if (n && sd_is_socket(*ret, AF_UNSPEC, SOCK_STREAM, 1) <= 0)
        return xd_fail(err, XD_BAD_CONFIG, 0, "what systemd handed over is not a listening stream socket");
    return XD_OK;
}

static void set_address(server *s, int inherited_fd)
{
    union {
        struct sockaddr any;
        struct sockaddr_un un;
        struct sockaddr_storage room;
    } at = {0};
    socklen_t len = sizeof at;
    char host[NI_MAXHOST];
    snprintf(host, sizeof host, "%s", s->cfg->server.host);
    if (inherited_fd >= 0 && !getsockname(inherited_fd, &at.any, &len) && at.any.sa_family == AF_UNIX) {
        snprintf(s->address, sizeof s->address, "the socket %.107s", at.un.sun_path);
        return;
    }
    if (inherited_fd >= 0) /* its address wins over server.host */
        (void)!getnameinfo(&at.any, len, host, sizeof host, NULL, 0, NI_NUMERICHOST);
    snprintf(s->address, sizeof s->address, strchr(host, ':') ? "http://[%.256s]:%u" : "http://%.256s:%u", host,
             api_port(s->api));
}

static xd_status start(server *s, bool is_demo, xd_err *err)
{
    int listen_fd = -1;
    xd_status st = open_fds(s, err);
    if (!st)
        st = inherited_socket(&listen_fd, err);
    if (st)
        return st;
    xd_log_info("expertd " XD_VERSION " starts");
    if (is_demo)
        xd_log_info(
            "no model is configured: serving the demo model in %s, which writes fairy-tale English without much sense",
            s->cfg->model.path);
    say_doubts(s->cli, s->cfg);
    st = engine_start(s->cfg, &s->engine, err);
    if (st)
        return st;
    const api_options opt = {.cfg = s->cfg, .e = s->engine, .listen_fd = listen_fd};
    st = api_start(&opt, &s->api, err);
    if (st)
        return st;
    set_address(s, listen_fd);
    if (api_port(s->api))
        xd_log_info("listening on port %u; loading %s", api_port(s->api), s->cfg->model.path);
    else
        xd_log_info("listening on %s; loading %s", s->address, s->cfg->model.path);
    return XD_OK;
}

static void run(server *s)
{
    arm_timer(s, LOAD_TICK_NS);
    s->progress_ns = xd_now_ns();
    while (!s->drained && !s->failed) {
        struct pollfd fds[] = {{s->signal_fd, POLLIN, 0}, {s->timer_fd, POLLIN, 0}, {s->drained_fd, POLLIN, 0}};
        if (poll(fds, XD_ARRAY_LEN(fds), -1) < 0 && errno != EINTR)
            break;
        uint64_t count;
        if (fds[0].revents)
            on_signals(s);
        if (fds[1].revents && read(s->timer_fd, &count, sizeof count) == sizeof count && !s->draining) {
            if (s->ready)
                feed_watchdog(s);
            else
                watch_loading(s);
        } else if (fds[1].revents && s->ready)
            feed_watchdog(s);
        if (fds[2].revents)
            s->drained = true;
    }
}

static void stop(server *s, int status)
{
    if (s->engine && engine_get_phase(s->engine, NULL, NULL, 0) == ENGINE_LOADING) {
        if (!status)
            xd_log_info("stopped while loading");
        _exit(status); /* loading cannot be interrupted, and has nothing to save */
    }
    alarm(STOP_LIMIT_S);
    if (s->drain_started)
        pthread_join(s->drain_thread, NULL);
    api_free(s->api);
    engine_free(s->engine);
    alarm(0);
    for (size_t i = 0; i < s->configs_count; i++)
        conf_free(s->configs[i]);
    free(s->configs);
    xd_closep(&s->signal_fd);
    xd_closep(&s->timer_fd);
    xd_closep(&s->drained_fd);
}

int serve_main(const cli *c, const config *cfg, bool is_demo)
{
    server s = {.cli = c, .cfg = cfg, .signal_fd = -1, .timer_fd = -1, .drained_fd = -1, .last_fraction = -1};
    xd_err err;
    xd_status st = start(&s, is_demo, &err);
    if (st) {
        xd_log_error("%s", err.msg);
        sd_notifyf(0, "STATUS=%s", err.msg);
    } else {
        run(&s);
        st = s.failed;
    }
    int status = cli_status(st);
    stop(&s, status);
    if (!status)
        xd_log_info("stopped");
    return status;
}
