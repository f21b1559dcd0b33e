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
 *    take it in its notify callback. */
#include <errno.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include "api/api_priv.h"
#include "config/error.h"

enum {
    TICK_MS = 1000,
    PATIENCE_S = 120,           /* with an idle connection, while there is room for more */
    LINGER_S = 2,               /* for a client to read an error while it is still sending */
    MIN_BODY_BYTES_PER_S = 1024 /* a body slower than this after the idle time-out is an attack or a dead link */
};

struct conn {
    api *a;
    struct MHD_Connection *mc;
    int fd;
    uint64_t id;
    conn *prev, *next; /* conns_lock */

    pthread_mutex_t lock; /* all below */
    conn_phase phase;
    const char *request_id; /* of the request that is read or answered */
    unsigned raw_status;    /* what was sent past libmicrohttpd */
    uint64_t phase_since_ns, body_bytes, received_before;
    bool suspended, wake_pending, peer_gone, engine_busy, streaming, ping_due, closing, hung_up;
    uint64_t touched_ns;
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

static bool set_phase_locked(conn *c, conn_phase phase)
{
    if (c->phase == CONN_LINGER)
        return false;
    c->phase = phase;
    c->phase_since_ns = xd_now_ns();
    c->body_bytes = 0;
    if (phase == CONN_IDLE)
        c->received_before = received_bytes(c->fd);
    return true;
}

bool conn_begin(conn *c, const char *request_id)
{
    pthread_mutex_lock(&c->lock);
    c->request_id = request_id;
    bool ok = set_phase_locked(c, CONN_READING);
    pthread_mutex_unlock(&c->lock);
    return ok;
}

bool conn_begin_work(conn *c)
{
    pthread_mutex_lock(&c->lock);
    bool ok = set_phase_locked(c, CONN_WORKING);
    pthread_mutex_unlock(&c->lock);
    return ok;
}

unsigned conn_end(conn *c)
{
    pthread_mutex_lock(&c->lock);
    (void)set_phase_locked(c, CONN_IDLE);
    c->request_id = NULL;
    unsigned status = c->raw_status;
    pthread_mutex_unlock(&c->lock);
    return status;
}

void conn_count_body(conn *c, size_t bytes)
{
    pthread_mutex_lock(&c->lock);
    c->body_bytes += bytes;
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

int conn_fd(const conn *c)
{
    return c->fd;
}

static void hang_up_locked(conn *c)
{
    c->hung_up = true;
    shutdown(c->fd, SHUT_RDWR);
    wake_locked(c);
}

static void answer_raw_locked(conn *c, const xd_err *err)
{
    if (c->phase == CONN_LINGER)
        return;
    unsigned status;
    json_t *json = reply_error_json(err, &status);
    char *body = json ? json_dumps(json, JSON_COMPACT) : NULL;
    json_decref(json);
    xd_buf head = {0};
    xd_buf_printf(&head,
                  "HTTP/1.1 %u %s\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n",
                  status, MHD_get_reason_phrase_for(status), body ? strlen(body) : 0);
    if (c->request_id)
        xd_buf_printf(&head, "x-request-id: %s\r\n", c->request_id);
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
    c->phase_since_ns = xd_now_ns();
}

void conn_answer_raw(conn *c, const xd_err *err)
{
    pthread_mutex_lock(&c->lock);
    answer_raw_locked(c, err);
    pthread_mutex_unlock(&c->lock);
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

static void time_out_locked(conn *c, const char *what)
{
    xd_err err;
    xd_fail(&err, XD_TIMEOUT, 0, "the request's %s did not arrive in time", what);
    answer_raw_locked(c, &err);
    atomic_fetch_add(&c->a->metrics.timeouts, 1);
}

/* The other threads go on while the watcher walks: a phase may have begun after `now` was read. */
static uint64_t since(uint64_t then_ns, uint64_t now)
{
    return now > then_ns ? now - then_ns : 0;
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
        if (idle && age > idle && received_bytes(c->fd) > c->received_before)
            time_out_locked(c, "header");
        break;
    case CONN_READING:
        if (idle && age > idle + c->body_bytes / MIN_BODY_BYTES_PER_S * s)
            time_out_locked(c, "body");
        break;
    case CONN_LINGER:
        if (age > LINGER_S * s && !c->hung_up)
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

/* Connections that are merely kept open give way when they take up nearly all of server.max_connections: else who comes next, a
 * health probe say, waits in the kernel's queue until they time out. Patience shrinks by the second; the longest idle go first. */
static uint64_t next_patience_s(const api *a, uint64_t patience_s)
{
    uint64_t open = (uint64_t)atomic_load(&a->metrics.connections);
    return open * 8 < a->max_connections * 7ull ? PATIENCE_S : XD_MAX(patience_s / 4, 1u);
}

static bool is_merely_open(const conn *c)
{
    return c->phase == CONN_IDLE && !c->hung_up && received_bytes(c->fd) == c->received_before;
}

static void *watch(void *arg)
{
    api *a = arg;
    uint64_t patience_s = PATIENCE_S;
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
        patience_s = next_patience_s(a, patience_s);
        pthread_mutex_lock(&a->conns_lock);
        for (conn *c = a->conns; c; c = c->next) {
            pthread_mutex_lock(&c->lock);
            check_clocks_locked(c, now);
            if (patience_s < PATIENCE_S && since(c->phase_since_ns, now) > patience_s * 1000000000u &&
                is_merely_open(c))
                hang_up_locked(c);
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
