/* conn.c - connections: sleeping and waking, peers that go away, clients that are too slow.
 *
 * DESIGN. libmicrohttpd's threads own the sockets; a request that waits for the engine is *suspended*, so no thread waits with
 * it. Two things are missing from a suspended connection: it does not notice that its peer has closed, and nothing times it.
 * One watcher thread supplies both. It holds every socket in an epoll set of its own with EPOLLRDHUP only (so data that arrives
 * never wakes it), and once a second it looks at the clocks of all connections.
 *
 *   IDLE --header complete--> READING --body complete--> WORKING --response sent--> IDLE
 *     \________ too slow _______/ \__ too large or too slow __> LINGER (answered past libmicrohttpd) -> closed
 *
 * 1. A wake-up is never lost: conn_wake() and conn_sleep() decide under conn.lock; a wake-up without a sleeper is kept.
 *    MHD_resume_connection() is called only for a connection that is suspended, and at most once for each suspension.
 * 2. A conn lives from MHD_CONNECTION_NOTIFY_STARTED to _CLOSED; libmicrohttpd closes the socket after _CLOSED, so under
 *    conns_lock a conn in the list has an open socket. Events carry the conn's number, not its address: one that was read before
 *    a close finds nothing afterwards. Engine requests are freed before their conn, and then call conn_wake() no more.
 * 3. A peer that shuts down only its sending side looks the same as one that has gone, and is treated so while the engine works
 *    for it (as nginx and uvicorn do). shutdown() makes libmicrohttpd end the connection whatever state it is in.
 * 4. Lock order: conns_lock, conn.lock, libmicrohttpd's own. conn.lock is held for a few instructions, so the engine thread may
 *    take it in its notify callback.
 * 5. Room for who comes is made at once, or refused at once: at server.max_connections the connection that has been idle longest is
 *    hung up on; where none is idle the newcomer gets 503. So nobody waits in the kernel's queue behind a flood of silent
 *    connections. libmicrohttpd is allowed `headroom` more: for those that are on their way out, and a few from this machine
 *    (health checks). Idle connections are in a list of their own, longest first. */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/tcp.h>
#include <malloc.h>
#include <netdb.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "api/api_priv.h"
#include "config/error.h"
#include "config/log.h"

enum {
    TICK_MS = 1000,
    LINGER_S =
        2, /* without a byte, for a client to read an error while it is still sending: most send all of a body first */
    MAX_LINGER_S = 30, /* in all */
    HEADER_S = 1,      /* half a header that is older is nobody's who means it, when there is no room */
    LOOK_AT = 16,      /* idle connections, to find one to hang up on */
    SAY_FULL_S = 60,
    TRIM_S = 5,          /* between two times that memory is given back: it takes milliseconds */
    BODY_IDLE_TIMES = 4, /* a body may take so many idle time-outs ... */
    MIN_BODY_BYTES_PER_S =
        1024 /* ... and then as long as it is faster than this: else it is an attack or a dead link */
};

struct conn {
    api *a;
    struct MHD_Connection *mc;
    int fd;
    uint64_t id;
    conn *prev, *next, *idle_prev, *idle_next; /* conns_lock, as the next line */
    bool in_idle, taken, refused;

    pthread_mutex_t lock; /* all below */
    conn_phase phase;
    const char *request_id, *cors_origin, *allow; /* of the request that is read or answered */
    bool anthropic;                               /* so too: whose clients asked */
    unsigned raw_status;                          /* what was sent past libmicrohttpd */
    uint64_t phase_since_ns, moved_ns, body_bytes, received_before;
    bool suspended, wake_pending, peer_gone, engine_busy, streaming, ping_due, closing, hung_up;
    uint64_t touched_ns, late_ns; /* late_ns: since when the watcher finds it late; 0: it does not */
};

/* Bytes that the kernel has received on the connection since it was opened. */
static uint64_t received_bytes(int fd)
{
    struct tcp_info info = {0};
    socklen_t len = sizeof info;
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) || len < offsetof(struct tcp_info, tcpi_bytes_received) + 8)
        return 0;
    return info.tcpi_bytes_received;
}

static void wake_locked(conn *c)
{
    c->wake_pending = true;
    if (c->suspended) {
        c->suspended = false;
        MHD_resume_connection(c->mc);
    }
}

void conn_wake(conn *c)
{
    pthread_mutex_lock(&c->lock);
    wake_locked(c);
    pthread_mutex_unlock(&c->lock);
}

bool conn_sleep(conn *c)
{
    pthread_mutex_lock(&c->lock);
    bool sleep = !c->wake_pending && !c->closing && !c->hung_up && !c->ping_due;
    c->wake_pending = false;
    if (sleep) {
        c->suspended = true;
        MHD_suspend_connection(c->mc);
    }
    pthread_mutex_unlock(&c->lock);
    return sleep;
}

static void idle_remove(api *a, conn *c)
{
    if (!c->in_idle)
        return;
    *(c->idle_prev ? &c->idle_prev->idle_next : &a->idle_first) = c->idle_next;
    *(c->idle_next ? &c->idle_next->idle_prev : &a->idle_last) = c->idle_prev;
    c->in_idle = false;
}

static void idle_append(api *a, conn *c)
{
    idle_remove(a, c);
    c->idle_prev = a->idle_last;
    c->idle_next = NULL;
    *(a->idle_last ? &a->idle_last->idle_next : &a->idle_first) = c;
    a->idle_last = c;
    c->in_idle = true;
}

/* With both locks held. */
static bool set_phase_locked(conn *c, conn_phase phase)
{
    if (c->phase == CONN_LINGER)
        return false;
    c->phase = phase;
    c->phase_since_ns = c->moved_ns = xd_now_ns();
    c->body_bytes = 0;
    c->late_ns = 0;
    if (phase == CONN_IDLE)
        c->received_before = received_bytes(c->fd);
    if (phase == CONN_IDLE && !c->hung_up)
        idle_append(c->a, c);
    else
        idle_remove(c->a, c);
    return true;
}

static void lock_both(conn *c)
{
    pthread_mutex_lock(&c->a->conns_lock);
    pthread_mutex_lock(&c->lock);
}

static void unlock_both(conn *c)
{
    pthread_mutex_unlock(&c->lock);
    pthread_mutex_unlock(&c->a->conns_lock);
}

bool conn_begin(conn *c, const char *request_id, const char *cors_origin, const char *allow, bool anthropic)
{
    lock_both(c);
    c->request_id = request_id;
    c->cors_origin = cors_origin;
    c->allow = allow;
    c->anthropic = anthropic;
    bool ok = set_phase_locked(c, CONN_READING);
    unlock_both(c);
    return ok;
}

bool conn_begin_work(conn *c)
{
    lock_both(c);
    bool ok = set_phase_locked(c, CONN_WORKING);
    unlock_both(c);
    return ok;
}

unsigned conn_end(conn *c)
{
    lock_both(c);
    (void)set_phase_locked(c, CONN_IDLE);
    c->request_id = c->cors_origin = c->allow = NULL;
    c->anthropic = false;
    unsigned status = c->raw_status;
    unlock_both(c);
    return status;
}

void conn_count_body(conn *c, size_t bytes)
{
    pthread_mutex_lock(&c->lock);
    c->body_bytes += bytes;
    c->moved_ns = xd_now_ns();
    c->late_ns = 0;
    pthread_mutex_unlock(&c->lock);
}

void conn_set_engine_busy(conn *c, bool busy, bool streaming)
{
    pthread_mutex_lock(&c->lock);
    c->engine_busy = busy;
    c->streaming = streaming;
    c->ping_due = false;
    c->touched_ns = xd_now_ns();
    if (!busy)
        c->wake_pending = false;
    pthread_mutex_unlock(&c->lock);
}

bool conn_peer_gone(conn *c)
{
    pthread_mutex_lock(&c->lock);
    bool gone = c->peer_gone || c->closing || c->hung_up;
    pthread_mutex_unlock(&c->lock);
    return gone;
}

bool conn_take_ping(conn *c)
{
    pthread_mutex_lock(&c->lock);
    bool due = c->ping_due;
    c->ping_due = false;
    pthread_mutex_unlock(&c->lock);
    return due;
}

void conn_touch(conn *c)
{
    pthread_mutex_lock(&c->lock);
    c->touched_ns = xd_now_ns();
    c->ping_due = false;
    pthread_mutex_unlock(&c->lock);
}

/* With both locks held. */
static void hang_up_locked(conn *c)
{
    idle_remove(c->a, c);
    c->a->n_taken -= c->taken;
    c->taken = false;
    c->hung_up = true;
    shutdown(c->fd, SHUT_RDWR);
    wake_locked(c);
}

static void answer_raw_locked(conn *c, const xd_err *err)
{
    if (c->phase == CONN_LINGER)
        return;
    unsigned status;
    json_t *json = reply_error_json(err, c->anthropic, &status);
    char *body = json ? json_dumps(json, JSON_COMPACT) : NULL;
    json_decref(json);
    xd_buf head = {0};
    xd_buf_printf(&head,
                  "HTTP/1.1 %u %s\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n",
                  status, MHD_get_reason_phrase_for(status), body ? strlen(body) : 0);
    if (status == 503)
        xd_buf_puts(&head, "Retry-After: 1\r\n");
    if (status == 401)
        xd_buf_puts(&head, "WWW-Authenticate: " API_CHALLENGE "\r\n");
    if (status == 405 && c->allow)
        xd_buf_printf(&head, "Allow: %s\r\n", c->allow);
    if (c->request_id)
        xd_buf_printf(&head, "x-request-id: %s\r\n", c->request_id);
    if (c->request_id && c->anthropic)
        xd_buf_printf(&head, "request-id: %s\r\n", c->request_id);
    if (c->cors_origin && *c->cors_origin) /* else a page's script sees no more than a failure */
        xd_buf_printf(&head,
                      "Access-Control-Allow-Origin: %s\r\nAccess-Control-Expose-Headers: " API_EXPOSED
                      "\r\nVary: Origin\r\n",
                      c->cors_origin);
    xd_buf_puts(&head, "\r\n");
    xd_buf_puts(&head, body ? body : "");
    /* Nothing was sent on this request before, so a few hundred bytes fit the socket's buffer; if not, the peer is stuck. */
    if (!head.failed)
        (void)!send(c->fd, head.data, head.len, MSG_NOSIGNAL | MSG_DONTWAIT);
    shutdown(c->fd, SHUT_WR);
    free(body);
    xd_buf_free(&head);
    c->raw_status = status;
    c->phase = CONN_LINGER;
    c->phase_since_ns = c->moved_ns = xd_now_ns();
    c->late_ns = 0;
}

void conn_answer_raw(conn *c, const xd_err *err)
{
    pthread_mutex_lock(&c->lock);
    answer_raw_locked(c, err);
    pthread_mutex_unlock(&c->lock);
}

bool conn_is_loopback(struct MHD_Connection *mc)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(mc, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    if (!info || !info->client_addr)
        return false;
    if (info->client_addr->sa_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)(const void *)info->client_addr;
        return ntohl(in->sin_addr.s_addr) >> 24 == 127;
    }
    if (info->client_addr->sa_family == AF_INET6) {
        const struct sockaddr_in6 *in = (const struct sockaddr_in6 *)(const void *)info->client_addr;
        return IN6_IS_ADDR_LOOPBACK(&in->sin6_addr) ||
               (IN6_IS_ADDR_V4MAPPED(&in->sin6_addr) && in->sin6_addr.s6_addr[12] == 127);
    }
    return false;
}

void conn_address(struct MHD_Connection *mc, char *ret, size_t cap)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(mc, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    const struct sockaddr *sa = info ? info->client_addr : NULL;
    socklen_t len = sa && sa->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    ret[0] = 0;
    if (sa && (sa->sa_family == AF_INET || sa->sa_family == AF_INET6) &&
        getnameinfo(sa, len, ret, (socklen_t)cap, NULL, 0, NI_NUMERICHOST) != 0)
        ret[0] = 0;
}

static void time_out_locked(conn *c, const char *what)
{
    xd_err err;
    xd_fail_field(&err, XD_TIMEOUT, NULL, "incomplete_request", "the request's %s did not arrive in time", what);
    answer_raw_locked(c, &err);
    atomic_fetch_add(&c->a->metrics.timeouts, 1);
}

/* The other threads go on while the watcher walks: a phase may have begun after `now` was read. */
static uint64_t since(uint64_t then_ns, uint64_t now)
{
    return now > then_ns ? now - then_ns : 0;
}

/* What has arrived may not have been read yet, when its thread was busy or the whole machine was: so nobody is late of whom there is something
 * to read, and of others it is seen twice. */
static bool stays_late(conn *c, uint64_t now)
{
    int unread = 0;
    if (!ioctl(c->fd, FIONREAD, &unread) && unread > 0)
        c->late_ns = 0;
    else if (!c->late_ns)
        c->late_ns = now;
    return c->late_ns && since(c->late_ns, now) > TICK_MS / 2 * 1000000ull;
}

/* --- room for one more ---------------------------------------------------------------------------------------------- */

/* On which nothing is under way. */
static bool is_merely_open(const conn *c)
{
    return c->phase == CONN_IDLE && !c->hung_up && received_bytes(c->fd) == c->received_before;
}

/* Hangs up on the connection that has been idle longest; else on the oldest half header. conns_lock is held. */
static bool make_room(api *a)
{
    conn *half = NULL;
    bool made = false;
    uint64_t now = xd_now_ns();
    int seen = 0;
    for (conn *c = a->idle_first, *next; c && !made && seen < LOOK_AT; c = next, seen++) {
        next = c->idle_next;
        pthread_mutex_lock(&c->lock);
        made = is_merely_open(c);
        if (made)
            hang_up_locked(c);
        else if (!half && c->phase == CONN_IDLE && since(c->phase_since_ns, now) > HEADER_S * 1000000000ull)
            half = c;
        pthread_mutex_unlock(&c->lock);
    }
    if (!made && half) {
        pthread_mutex_lock(&half->lock);
        time_out_locked(half, "header");
        hang_up_locked(half);
        pthread_mutex_unlock(&half->lock);
        made = true;
    }
    atomic_fetch_add(&a->metrics.evicted, made);
    return made;
}

static void refuse(api *a, conn *c)
{
    xd_err err;
    xd_fail_field(&err, XD_UNAVAILABLE, NULL, "too_many_connections",
                  "%u connections are open and busy: try again later", a->max_connections);
    c->refused = true;
    atomic_fetch_add(&a->metrics.refused, 1);
    pthread_mutex_lock(&c->lock);
    answer_raw_locked(c, &err);
    if (++a->n_refused > a->headroom / 2)
        hang_up_locked(c);
    pthread_mutex_unlock(&c->lock);
}

/* Is there room for c, or can some be made? conns_lock is held. */
static void take_or_refuse(api *a, conn *c, bool is_local)
{
    uint64_t now = xd_now_ns();
    bool full = a->n_taken >= a->max_connections;
    if (full && (!a->said_full_ns || since(a->said_full_ns, now) > SAY_FULL_S * 1000000000ull)) {
        a->said_full_ns = now;
        xd_log_warn("server.max_connections = %u are open: idle ones are closed, and others refused where none is idle",
                    a->max_connections);
    }
    if (full && !make_room(a) && a->n_taken >= a->max_connections + (is_local ? a->headroom / 4 : 0)) {
        refuse(a, c);
        return;
    }
    c->taken = true;
    a->n_taken++;
    idle_append(a, c);
}

/* --- life --------------------------------------------------------------------------------------------------------- */

static void conn_open(api *a, struct MHD_Connection *mc, void **socket_context)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(mc, MHD_CONNECTION_INFO_CONNECTION_FD);
    conn *c = info ? calloc(1, sizeof *c) : NULL;
    *socket_context = c;
    if (!c)
        return; /* its requests are answered 503: exchange.c */
    c->a = a;
    c->mc = mc;
    c->fd = info->connect_fd;
    c->phase_since_ns = xd_now_ns();
    pthread_mutex_init(&c->lock, NULL);

    pthread_mutex_lock(&a->conns_lock);
    c->id = ++a->next_conn_id;
    c->closing = atomic_load(&a->closing);
    c->next = a->conns;
    if (a->conns)
        a->conns->prev = c;
    a->conns = c;
    take_or_refuse(a, c, conn_is_loopback(mc));
    struct epoll_event ev = {.events = EPOLLRDHUP | EPOLLONESHOT, .data.u64 = c->id};
    (void)epoll_ctl(a->watch_epoll_fd, EPOLL_CTL_ADD, c->fd,
                    &ev); /* without it, a close is noticed on the next write */
    pthread_mutex_unlock(&a->conns_lock);
    atomic_fetch_add(&a->metrics.connections, 1);
}

static void conn_close(api *a, conn *c)
{
    pthread_mutex_lock(&a->conns_lock);
    (void)epoll_ctl(a->watch_epoll_fd, EPOLL_CTL_DEL, c->fd, NULL);
    idle_remove(a, c);
    a->n_taken -= c->taken;
    a->n_refused -= c->refused;
    if (c->prev)
        c->prev->next = c->next;
    else
        a->conns = c->next;
    if (c->next)
        c->next->prev = c->prev;
    pthread_mutex_unlock(&a->conns_lock);
    pthread_mutex_destroy(&c->lock);
    free(c);
    atomic_fetch_sub(&a->metrics.connections, 1);
}

void conn_notify(void *cls, struct MHD_Connection *mc, void **socket_context, enum MHD_ConnectionNotificationCode code)
{
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        conn_open(cls, mc, socket_context);
    } else if (*socket_context) {
        conn_close(cls, *socket_context);
        *socket_context = NULL;
    }
}

void conn_wake_all(api *a)
{
    pthread_mutex_lock(&a->conns_lock);
    for (conn *c = a->conns; c; c = c->next) {
        pthread_mutex_lock(&c->lock);
        c->closing = true;
        wake_locked(c);
        pthread_mutex_unlock(&c->lock);
    }
    pthread_mutex_unlock(&a->conns_lock);
}

/* --- the watcher --------------------------------------------------------------------------------------------------- */

static void peer_closed(api *a, uint64_t id)
{
    pthread_mutex_lock(&a->conns_lock);
    conn *c = a->conns;
    while (c && c->id != id)
        c = c->next;
    if (c) {
        pthread_mutex_lock(&c->lock);
        c->peer_gone = true;
        if (c->engine_busy)
            hang_up_locked(c);
        pthread_mutex_unlock(&c->lock);
    }
    pthread_mutex_unlock(&a->conns_lock);
}

static void check_clocks_locked(conn *c, uint64_t now)
{
    api *a = c->a;
    const uint64_t s = 1000000000u;
    uint64_t age = since(c->phase_since_ns, now), idle = a->idle_timeout_s * s;
    if (c->peer_gone && age > s && !c->hung_up && (c->phase == CONN_IDLE || c->phase == CONN_READING)) {
        /* Half a request and then an end: libmicrohttpd may wait for the rest until its own time-out. */
        hang_up_locked(c);
        return;
    }
    switch (c->phase) {
    case CONN_IDLE:
        /* A connection that is merely kept alive is libmicrohttpd's to close; half a header is ours to answer. */
        if (idle && age > idle && received_bytes(c->fd) > c->received_before && stays_late(c, now)) {
            time_out_locked(c, "header");
            idle_remove(a, c);
        }
        break;
    case CONN_READING:
        if (idle && (age > idle * BODY_IDLE_TIMES + c->body_bytes / MIN_BODY_BYTES_PER_S * s ||
                     (since(c->moved_ns, now) > idle && stays_late(c, now))))
            time_out_locked(c, "body");
        break;
    case CONN_LINGER:
        if (!c->hung_up && (age > MAX_LINGER_S * s || (since(c->moved_ns, now) > LINGER_S * s && stays_late(c, now))))
            hang_up_locked(c);
        break;
    case CONN_WORKING:;
        uint64_t heartbeat = atomic_load(&a->heartbeat_s) * s;
        if (c->engine_busy && c->streaming && heartbeat && since(c->touched_ns, now) >= heartbeat) {
            c->ping_due = true;
            wake_locked(c);
        }
        break;
    }
}

/* What millions of small pieces took is free when they are freed, but stays with the process: one large answer would be paid for ever. */
static void trim(api *a, uint64_t now, uint64_t *last_ns)
{
    if (since(*last_ns, now) < TRIM_S * 1000000000ull || !atomic_exchange(&a->trim_due, false))
        return;
    *last_ns = now;
#ifdef __GLIBC__
    malloc_trim(0);
#endif
}

static void *watch(void *arg)
{
    api *a = arg;
    uint64_t trimmed_ns = 0;
    uint64_t next_tick_ns = xd_now_ns() + TICK_MS * 1000000u;
    while (!atomic_load(&a->closing)) {
        struct epoll_event ev[64];
        uint64_t now = xd_now_ns();
        int wait_ms = now >= next_tick_ns ? 0 : (int)((next_tick_ns - now) / 1000000u + 1);
        int n = epoll_wait(a->watch_epoll_fd, ev, XD_ARRAY_LEN(ev), wait_ms);
        for (int i = 0; i < n; i++)
            if (ev[i].data.u64)
                peer_closed(a, ev[i].data.u64);
        now = xd_now_ns();
        if (now < next_tick_ns)
            continue;
        next_tick_ns = now + TICK_MS * 1000000u;
        trim(a, now, &trimmed_ns);
        pthread_mutex_lock(&a->conns_lock);
        for (conn *c = a->conns; c; c = c->next) {
            pthread_mutex_lock(&c->lock);
            check_clocks_locked(c, now);
            pthread_mutex_unlock(&c->lock);
        }
        pthread_mutex_unlock(&a->conns_lock);
    }
    return NULL;
}

xd_status conn_watch_start(api *a, xd_err *err)
{
    a->watch_epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    a->watch_event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct epoll_event ev = {.events = EPOLLIN, .data.u64 = 0};
    if (a->watch_epoll_fd < 0 || a->watch_event_fd < 0 ||
        epoll_ctl(a->watch_epoll_fd, EPOLL_CTL_ADD, a->watch_event_fd, &ev))
        return xd_fail(err, XD_IO, errno, "watching HTTP connections");
    int rc = pthread_create(&a->watcher, NULL, watch, a);
    if (rc)
        return xd_fail(err, XD_NOMEM, rc, "starting the thread that watches HTTP connections");
    a->watching = true;
    return XD_OK;
}

void conn_watch_stop(api *a)
{
    if (a->watching) {
        (void)!write(a->watch_event_fd, &(uint64_t){1}, 8);
        pthread_join(a->watcher, NULL);
        a->watching = false;
    }
    if (a->watch_epoll_fd >= 0)
        close(a->watch_epoll_fd);
    if (a->watch_event_fd >= 0)
        close(a->watch_event_fd);
    a->watch_epoll_fd = a->watch_event_fd = -1;
}
