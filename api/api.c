/* api.c - the server: listening socket, libmicrohttpd's threads, start and end. See api.h.
 *
 * Threads: libmicrohttpd's pool (sockets, JSON, templates, event streams), as many for long requests (work.c), and the watcher (conn.c).
 * The engine's thread only ever calls conn_wake(). Requests are handed to the engine and their events taken by the thread of the request's connection. */
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdarg.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "api/api_priv.h"
#include "config/log.h"

enum { CONNECTION_POOL_BYTES = 32 << 10, BACKLOG = 1024, TIMEOUT_SLACK_S = 3 };
/* For the last bytes of answers, when stopping. In rounds, so that a pause of the whole process, or a busy machine, counts for little. */
enum { FLUSH_ROUNDS = 20, FLUSH_ROUND_NS = 100000000 };

static const char *how_to_mend(int error)
{
    return error == EADDRINUSE ? " (set server.port to another; 0 takes any that is free)"
           : error == EACCES   ? " (below 1024 are root's: set server.port to another, or let expertd.socket open it)"
           : error == EADDRNOTAVAIL ? " (server.host is no address of this machine; 0.0.0.0 and :: are all of them)"
                                    : "";
}

static xd_status listen_on(const char *host, uint32_t port, int *ret, xd_err *err)
{
    char service[16];
    snprintf(service, sizeof service, "%u", port);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV}, *list = NULL;
    int rc = getaddrinfo(host && host[0] ? host : NULL, service, &hints, &list);
    if (rc) /* a name server that is not up yet says EAI_AGAIN */
        return xd_fail(err, rc == EAI_NONAME ? XD_BAD_CONFIG : XD_IO, 0, "server.host '%s': %s", host,
                       gai_strerror(rc));
    int saved = 0, fd = -1;
    for (struct addrinfo *i = list; i && fd < 0; i = i->ai_next) {
        fd = socket(i->ai_family, i->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, i->ai_protocol);
        if (fd < 0) {
            saved = errno;
            continue;
        }
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
        if (bind(fd, i->ai_addr, i->ai_addrlen) || listen(fd, BACKLOG)) {
            saved = errno;
            close(fd);
            fd = -1;
        }
    }
    freeaddrinfo(list);
    if (fd < 0)
        return xd_fail(err, XD_IO, saved, "listen on %s port %u%s", host, port, how_to_mend(saved));
    *ret = fd;
    return XD_OK;
}

static uint32_t port_of(int fd)
{
    union {
        struct sockaddr sa;
        struct sockaddr_in in;
        struct sockaddr_in6 in6;
        struct sockaddr_storage ss;
    } addr = {0};
    socklen_t len = sizeof addr;
    if (getsockname(fd, &addr.sa, &len))
        return 0;
    return addr.sa.sa_family == AF_INET    ? ntohs(addr.in.sin_port)
           : addr.sa.sa_family == AF_INET6 ? ntohs(addr.in6.sin6_port)
                                           : 0;
}

static void log_mhd(void *cls, const char *fmt, va_list ap) XD_PRINTF(2, 0);
static void log_mhd(void *cls, const char *fmt, va_list ap)
{
    (void)cls;
    /* These are the clients' broken requests and closed sockets: of interest only when looking for them. */
    if (!xd_log_enabled(CONF_LOG_DEBUG))
        return;
    char text[512];
    vsnprintf(text, sizeof text, fmt, ap);
    text[strcspn(text, "\n")] = 0;
    xd_log_debug("http: %s", text);
}

/* A connection that comes when no file can be opened any more is neither taken nor refused, and keeps the threads busy. So the soft
 * limit is raised as far as it may be, and where that is too little fewer connections are taken. */
static void share_files(api *a, unsigned wanted, unsigned least)
{
    a->max_connections = wanted;
    a->headroom = api_headroom(wanted);
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r) || r.rlim_cur == RLIM_INFINITY)
        return;
    rlim_t need = (rlim_t)wanted + a->headroom + API_OTHER_FILES;
    if (r.rlim_cur < need) {
        struct rlimit more = {.rlim_cur = XD_MIN(need, r.rlim_max), .rlim_max = r.rlim_max};
        if (!setrlimit(RLIMIT_NOFILE, &more))
            r = more;
    }
    if (r.rlim_cur >= need)
        return;
    unsigned n = r.rlim_cur > API_OTHER_FILES + least ? (unsigned)r.rlim_cur - API_OTHER_FILES : least;
    a->headroom = n / 4;
    a->max_connections = XD_MAX(n - a->headroom, least);
    xd_log_warn("%llu open files are allowed: at most %u connections instead of server.max_connections = %u",
                (unsigned long long)r.rlim_cur, a->max_connections, wanted);
}

/* A NUL in a path would end it early: it stays "%00", which no path has. */
static size_t unescape(void *cls, struct MHD_Connection *mc, char *s)
{
    (void)cls, (void)mc;
    return strstr(s, "%00") ? strlen(s) : MHD_http_unescape(s);
}

xd_status api_start(const api_options *opt, api **ret, xd_err *err)
{
    const config *cfg = opt->cfg;
    XD_CLEANUP(api_freep) api *a = calloc(1, sizeof *a);
    if (!a)
        return xd_fail(err, XD_NOMEM, 0, "the HTTP server");
    a->e = opt->e;
    a->listen_fd = a->watch_epoll_fd = a->watch_event_fd = -1;
    pthread_mutex_init(&a->lock, NULL);
    pthread_mutex_init(&a->conns_lock, NULL);
    xd_cond_init(&a->flushed);
    notes_init(&a->notes);
    a->idle_timeout_s = cfg->server.idle_timeout_s;
    atomic_init(&a->heartbeat_s, cfg->server.heartbeat_s);
    snprintf(a->chat_why, sizeof a->chat_why, "the model has no chat template");
    a->chat_template = strdup(cfg->model.chat_template ? cfg->model.chat_template : "");
    if (!a->chat_template)
        return xd_fail(err, XD_NOMEM, 0, "the HTTP server");
    if (getrandom(&a->id_salt, sizeof a->id_salt, 0) != sizeof a->id_salt)
        a->id_salt = xd_now_ns();
    json_object_seed(0); /* must not happen first in two threads at once */

    xd_status st = api_settings_new(cfg, &a->settings, err);
    if (!st && opt->listen_fd >= 0)
        a->listen_fd = opt->listen_fd;
    else if (!st)
        st = listen_on(cfg->server.host, cfg->server.port, &a->listen_fd, err);
    if (!st)
        st = conn_watch_start(a, err);
    if (st)
        return st;
    /* One worker may take the connection that woke another up: none may then block in accept(). systemd's socket does block. */
    int fl = fcntl(a->listen_fd, F_GETFL);
    if (fl < 0 || fcntl(a->listen_fd, F_SETFL, fl | O_NONBLOCK))
        return xd_fail(err, XD_IO, errno, "preparing the listening socket");
    a->port = port_of(a->listen_fd);

    unsigned threads = XD_MAX(cfg->server.threads, 1u);
    st = work_start(threads, &a->work, err);
    if (st)
        return st;
    /* The pool's threads share the limit. Where it is reached libmicrohttpd stops accepting, so it is told a larger one, and conn.c decides
     * who goes. */
    share_files(a, XD_MAX(cfg->server.max_connections, threads), threads);
    unsigned timeout_s = cfg->server.idle_timeout_s ? cfg->server.idle_timeout_s + TIMEOUT_SLACK_S : 0;
    /* Not strict: it would refuse a request without Host by a header that it sends twice; exchange.c does that. */
    a->http = MHD_start_daemon(
        MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG, (uint16_t)a->port, NULL, NULL,
        exchange_handle, a, MHD_OPTION_EXTERNAL_LOGGER, log_mhd, NULL, MHD_OPTION_UNESCAPE_CALLBACK, unescape, NULL,
        MHD_OPTION_STRICT_FOR_CLIENT, 0, MHD_OPTION_LISTEN_SOCKET, a->listen_fd, MHD_OPTION_THREAD_POOL_SIZE, threads,
        MHD_OPTION_CONNECTION_LIMIT, a->max_connections + a->headroom, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        (size_t)CONNECTION_POOL_BYTES, MHD_OPTION_CONNECTION_TIMEOUT, timeout_s, MHD_OPTION_NOTIFY_COMPLETED,
        exchange_completed, a, MHD_OPTION_NOTIFY_CONNECTION, conn_notify, a, MHD_OPTION_END);
    if (!a->http)
        return xd_fail(err, XD_IO, errno, "starting the HTTP server on port %u", a->port);
    a->listen_fd = -1; /* libmicrohttpd closes it */
    *ret = XD_TAKE(a);
    return XD_OK;
}

uint32_t api_port(const api *a)
{
    return a->port;
}

/* A name that is misspelt, or another model's, would do nothing in silence. */
static void warn_of_variables(api *a)
{
    api_settings *s = api_settings_ref(a);
    const char *name;
    json_t *v;
    json_object_foreach (s->template_kwargs, name, v)
        if (a->chat && !chat_set_uses(a->chat, name))
            xd_log_warn("model.chat_template_kwargs: the chat template has no variable '%s'", name);
    api_settings_unref(s);
}

xd_status api_engine_ready(api *a, xd_err *err)
{
    const engine_info *info = engine_get_info(a->e);
    chat_source src = {.model_dir = info->model_dir[0] ? info->model_dir : NULL,
                       .configured = a->chat_template[0] ? a->chat_template : NULL,
                       .metadata = info->chat_template,
                       .bos_token = info->bos_token,
                       .eos_token = info->eos_token};
    chat_set *chat = NULL;
    xd_err why = {0};
    xd_status st = chat_set_open(&src, &chat, &why);
    pthread_mutex_lock(&a->lock);
    a->chat = chat;
    if (st)
        snprintf(a->chat_why, sizeof a->chat_why, "%s", why.msg);
    pthread_mutex_unlock(&a->lock);
    if (!st) {
        warn_of_variables(a);
        bool tools = chat_set_uses(chat, "tools");
        const char *calls = chat_set_has_channels(chat) ? "channels" : toolcall_marks_of(chat_set_calls(chat))->name;
        xd_log_info("chat template: %s (%s%s)", chat_set_origin(chat), tools ? "tool calls: " : "takes no tools",
                    tools ? calls : "");
    } else if (st == XD_NOT_FOUND)
        xd_log_warn("no chat template: /v1/chat/completions will answer 400");
    else if (st == XD_BAD_CONFIG || st == XD_NOMEM) {
        if (err)
            *err = why;
        return st;
    } else
        xd_log_warn("%s: /v1/chat/completions will answer 400", why.msg);
    const char *tok_why = NULL;
    if (!engine_get_tokenizer(a->e, &tok_why))
        xd_log_warn("no tokenizer (%s): text will be answered with 400, only token ids are taken", tok_why);
    atomic_store(&a->ready, true);
    return XD_OK;
}

xd_status api_check_settings(const config *cfg, xd_err *err)
{
    api_settings *s = NULL;
    xd_status st = api_settings_new(cfg, &s, err);
    api_settings_unref(s);
    return st;
}

xd_status api_check_chat(const config *cfg, const char *model_dir, const char *metadata, xd_err *err)
{
    chat_source src = {.model_dir = *model_dir ? model_dir : NULL,
                       .configured = *cfg->model.chat_template ? cfg->model.chat_template : NULL,
                       .metadata = metadata};
    chat_set *chat = NULL;
    xd_status st = chat_set_open(&src, &chat, err);
    chat_set_free(chat);
    return st;
}

void api_drain(api *a)
{
    atomic_store(&a->draining, true);
}

xd_status api_reload(api *a, const config *cfg, xd_err *err)
{
    api_settings *s = NULL, *old;
    xd_status st = api_settings_new(cfg, &s, err);
    if (st)
        return st;
    pthread_mutex_lock(&a->lock);
    old = a->settings;
    a->settings = s;
    pthread_mutex_unlock(&a->lock);
    api_settings_unref(old);
    atomic_store(&a->heartbeat_s, cfg->server.heartbeat_s);
    warn_of_variables(a);
    return XD_OK;
}

/* The engine is done with a request before the last bytes of its answer are sent: those get a moment, slow readers no more. */
static void wait_flushed(api *a)
{
    pthread_mutex_lock(&a->lock);
    atomic_store(&a->draining, true);
    for (int round = 0; round < FLUSH_ROUNDS && atomic_load(&a->metrics.in_flight); round++) {
        uint64_t until_ns = xd_now_ns() + FLUSH_ROUND_NS;
        struct timespec until = {(time_t)(until_ns / 1000000000u), (long)(until_ns % 1000000000u)};
        pthread_cond_timedwait(&a->flushed, &a->lock, &until);
    }
    pthread_mutex_unlock(&a->lock);
}

void api_free(api *a)
{
    if (!a)
        return;
    if (a->http)
        wait_flushed(a);
    atomic_store(&a->closing, true);
    /* libmicrohttpd aborts when it is stopped with suspended connections: none sleeps from here on. */
    conn_wake_all(a);
    if (a->http)
        MHD_stop_daemon(a->http);
    work_free(a->work);
    conn_watch_stop(a);
    if (a->listen_fd >= 0)
        close(a->listen_fd);
    chat_set_free(a->chat);
    api_settings_unref(a->settings);
    free(a->chat_template);
    notes_clear(&a->notes);
    pthread_cond_destroy(&a->flushed);
    pthread_mutex_destroy(&a->conns_lock);
    pthread_mutex_destroy(&a->lock);
    free(a);
}
