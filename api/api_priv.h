/* api_priv.h - what the files of api/ share: server, connection, exchange. See api.c for the threads and conn.c for the locks. */
#ifndef API_API_PRIV_H
#define API_API_PRIV_H

#include <jansson.h>
#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "api/api.h"
#include "api/chat.h"
#include "api/notes.h"
#include "config/util.h"

/* --- settings ---------------------------------------------------------------------------------------------------- */

/* What the room needs of the configuration; immutable, swapped as a whole by api_reload(). */
typedef struct api_settings {
    atomic_uint refs;
    char **keys; /* [n_keys] */
    size_t n_keys;
    char *cors_origin, *allowed_hosts, *listen_host;
    char machine[256];       /* its name; "": it has none */
    json_t *template_kwargs; /* an object */
    uint64_t max_body_bytes;
    uint32_t request_timeout_s;
    uint32_t max_n, max_logprobs, max_stop;
    bool admin, status_page, chat_page, log_requests, log_prompts, completions_parse_special, keep_thoughts;
} api_settings;

xd_status api_settings_new(const config *cfg, api_settings **ret, xd_err *err) XD_MUST_CHECK;
void api_settings_unref(api_settings *s);
XD_DEFINE_CLEANUP(api_settings, api_settings_unref)
/* Is one of the keys in these headers, Authorization and x-api-key (NULL: not sent)? All keys are compared in full, whatever matches. No
 * keys: yes. */
bool api_auth_ok(const api_settings *s, const char *authorization, const char *api_key);
/* May a request with this Host header (NULL: without one) be answered, or may it be a web page's whose name was rebound (hosts.c)? */
bool api_host_ok(const api_settings *s, const char *host);

/* What an answer may be held to. */
typedef enum api_form {
    API_FORM_JSON_OBJECT,
    API_FORM_JSON_SCHEMA,
    API_FORM_TOOL,         /* a forced call */
    API_FORM_TOOL_OR_JSON, /* a call, or what a schema says */
    API_FORM_GRAMMAR,
    API_FORM_NONE
} api_form;
extern const char *const api_form_names[API_FORM_NONE];

/* --- metrics ----------------------------------------------------------------------------------------------------- */

enum { API_MAX_ROUTES = 24, API_N_STATUS = 20, API_N_BUCKETS = 12 };
typedef struct api_metrics {
    atomic_uint_fast64_t requests[API_MAX_ROUTES + 1][API_N_STATUS]; /* the last row: no such route */
    atomic_uint_fast64_t duration_bucket[API_MAX_ROUTES + 1][API_N_BUCKETS + 1];
    atomic_uint_fast64_t duration_us[API_MAX_ROUTES + 1];
    atomic_uint_fast64_t rx_bytes, tx_stream_bytes, client_gone, timeouts, heartbeats, outside_us, refused, evicted,
        tool_calls, grammar_ns;
    atomic_uint_fast64_t constrained[API_FORM_NONE];
    atomic_int_fast64_t connections, in_flight, streams;
} api_metrics;

void api_metrics_count(api_metrics *m, size_t route_idx, unsigned status, uint64_t duration_ns);
void api_metrics_print(const api_metrics *m, xd_buf *out); /* Prometheus text */
json_t *api_metrics_json(const api_metrics *m);            /* owned; for the status page */

/* --- server ------------------------------------------------------------------------------------------------------ */

typedef struct conn conn;
typedef struct exchange exchange;
typedef struct work work;
typedef struct api_route api_route;

struct api {
    engine *e;
    struct MHD_Daemon *http;
    int listen_fd;
    uint32_t port;
    uint32_t idle_timeout_s;
    atomic_uint heartbeat_s;

    pthread_mutex_t lock; /* settings, chat */
    api_settings *settings;
    chat_set *chat;     /* set once by api_engine_ready() */
    char chat_why[800]; /* why there is none */
    char *chat_template;

    work *work;
    atomic_bool ready, draining, closing;
    atomic_bool trim_due;             /* a large request has ended, or many: conn.c's watcher gives their memory back */
    atomic_uint_fast64_t freed_bytes; /* by requests since trim_due was set, about */
    api_metrics metrics;
    notes notes;
    atomic_uint_fast64_t next_id;
    uint64_t id_salt;

    /* the watcher: conn.c */
    pthread_t watcher;
    bool watching;
    int watch_epoll_fd, watch_event_fd;
    pthread_mutex_t conns_lock;
    pthread_cond_t flushed;               /* with lock: no exchange is in flight any more, while draining */
    conn *conns, *idle_first, *idle_last; /* under conns_lock, as all below */
    uint32_t max_connections, headroom, n_taken, n_refused; /* taken: and not hung up on; refused: and not closed yet */
    uint64_t next_conn_id, said_full_ns;
};

api_settings *api_settings_ref(api *a);

/* --- connections: conn.c ----------------------------------------------------------------------------------------- */

typedef enum conn_phase {
    CONN_IDLE,    /* between requests, or a request's header is coming in */
    CONN_READING, /* a request's body is coming in */
    CONN_WORKING, /* a request is being answered */
    CONN_LINGER,  /* an error went out by conn_answer_raw(); what still comes is thrown away */
} conn_phase;

xd_status conn_watch_start(api *a, xd_err *err) XD_MUST_CHECK;
void conn_watch_stop(api *a);
/* Wakes every connection and lets none sleep again. */
void conn_wake_all(api *a);
/* MHD_NotifyConnectionCallback. */
void conn_notify(void *cls, struct MHD_Connection *mc, void **socket_context, enum MHD_ConnectionNotificationCode code);

/* Any thread, also the engine's: makes conn_sleep() return false, now or the next time. */
void conn_wake(conn *c);
/* HTTP thread, inside a libmicrohttpd callback: true: the connection is suspended, the callback must return at once and will be
 * called again; false: there was a wake-up since the last call, look again. */
bool conn_sleep(conn *c);
/* HTTP thread: IDLE -> READING -> WORKING -> IDLE. The texts live until conn_end(). False: the connection lingers, nothing may be
 * sent on it any more. */
bool conn_begin(conn *c, const char *request_id, const char *cors_origin, const char *allow, bool anthropic);
bool conn_begin_work(conn *c);
unsigned conn_end(conn *c);                  /* the status that conn_answer_raw() or the watcher has sent, or 0 */
void conn_count_body(conn *c, size_t bytes); /* progress while READING */
/* While set, the peer's close ends the exchange at once, and silence asks for heartbeats. */
void conn_set_engine_busy(conn *c, bool busy, bool streaming);
bool conn_peer_gone(conn *c);
bool conn_take_ping(conn *c); /* a heartbeat is due */
void conn_touch(conn *c);     /* something was written */
/* Sends a complete error response past libmicrohttpd, which cannot answer before a body has ended, and lets the connection
 * linger. Nothing when it lingers already. */
void conn_answer_raw(conn *c, const xd_err *err);
bool conn_is_loopback(struct MHD_Connection *mc);
/* The peer's address as text, "" if it cannot be told. A proxy's, where there is one: what it says of its clients is not believed. */
void conn_address(struct MHD_Connection *mc, char *ret, size_t cap);

/* --- routes ------------------------------------------------------------------------------------------------------ */

enum {
    ROUTE_OPEN = 1,   /* no key needed */
    ROUTE_READY = 2,  /* needs a READY engine */
    ROUTE_PREFIX = 4, /* its {id} is all that follows, slashes too; else one part of the path */
    ROUTE_ADMIN = 8,  /* only when configured, only from loopback */
    ROUTE_PAGE = 16,  /* only with the status page */
    ROUTE_CHAT = 32,  /* only with the chat page */
};

typedef enum MHD_Result (*api_handler)(exchange *x);
/* What takes time. It may run on any thread, and sees nothing of libmicrohttpd. */
typedef xd_status (*api_prepare)(exchange *x, xd_err *err);

struct api_route {
    const char *method, *path;
    unsigned flags;
    uint64_t body_limit; /* 0: server.max_body_bytes */
    api_prepare prepare; /* runs before the handler; NULL: nothing */
    api_handler handler;
};

extern const api_route api_routes[];
extern const size_t api_routes_count;

/* Finds the route; NULL: *ret_allow is filled ("GET, HEAD") when the path exists with other methods, else empty. */
const api_route *api_route_find(const char *method, const char *path, char *ret_allow, size_t allow_cap);
/* The 404 of a path that is in no route, with what may have been meant. */
xd_status api_route_missing(const char *method, const char *path, xd_err *err);

/* --- one request and its response: exchange.c, reply.c ------------------------------------------------------------ */

typedef struct gen gen;

typedef enum work_state { WORK_NONE, WORK_WAITING, WORK_RUNNING, WORK_DONE } work_state;

struct exchange {
    api *a;
    conn *c;
    struct MHD_Connection *mc;
    api_settings *settings;
    const api_route *route; /* NULL: none */
    const char *path_rest;  /* of the path from where the route has {id} on; NULL: it has none */
    char *path;
    char method[8];
    char id[72]; /* x-request-id */
    char allow[64];
    uint64_t started_ns;
    unsigned status; /* 0: not answered yet */
    xd_err early;    /* status != XD_OK: the answer, once the body is read and prepare() has run */
    xd_buf body;
    uint64_t body_seen, body_limit;
    bool head_seen, working, prepared;
    bool anthropic;  /* of Anthropic's API: its errors, its models, its header with the request's id */
    bool hopeless;   /* the same request would end in the same way */
    work_state work; /* work.c, as the next */
    exchange *next_waiting;
    api_prepare job;
    size_t job_bytes;
    gen *gen;      /* completions */
    xd_buf answer; /* of an endpoint that makes it while it prepares */
    xd_err fault;  /* what went wrong on our side, for the log; status XD_OK: nothing */
};

/* MHD_AccessHandlerCallback and MHD_RequestCompletedCallback. */
enum MHD_Result exchange_handle(void *cls, struct MHD_Connection *mc, const char *url, const char *method,
                                const char *version, const char *data, size_t *data_len, void **ctx);
void exchange_completed(void *cls, struct MHD_Connection *mc, void **ctx, enum MHD_RequestTerminationCode why);

/* Each queues the response and returns the handler's value. */
#define API_CHALLENGE "Bearer realm=\"expertd\""
#define API_EXPOSED   "x-request-id, request-id, x-should-retry, Retry-After" /* what a page's script may read, too */
enum MHD_Result reply_error(exchange *x, const xd_err *err);
void reply_note_fault(exchange *x, const xd_err *err);                  /* kept for the log where it is one of ours */
enum MHD_Result reply_json(exchange *x, unsigned status, json_t *body); /* takes body; NULL: out of memory */
enum MHD_Result reply_bytes(exchange *x, unsigned status, const char *content_type, xd_buf *b); /* takes the bytes */
enum MHD_Result reply_page(exchange *x, const char *html, const char *policy); /* both live as long as the program */
enum MHD_Result reply_stream(exchange *x, MHD_ContentReaderCallback read, void *cls);
/* Owned; in OpenAI's shape, or Anthropic's. */
json_t *reply_error_json(const xd_err *err, bool anthropic, unsigned *ret_status);
#define API_NO_THREADS "thread_unsupported_request" /* a code that Anthropic's clients look for, in `details` */

/* Appends the JSON to b; takes body, NULL is out of memory: so b.failed says. */
void reply_dump(json_t *body, xd_buf *b);

/* --- threads for what takes long: work.c ------------------------------------------------------------------ */

enum { WORK_HERE_BYTES = 16 << 10 }; /* a few milliseconds at 5 MB/s */

xd_status work_start(unsigned n_threads, work **ret, xd_err *err) XD_MUST_CHECK;
void work_free(work *w); /* every exchange must have been taken back */
/* HTTP thread, inside a libmicrohttpd callback: runs a job that is about so many bytes, at once if they are few, else on another thread.
 * True: it has run, and its error is in x->early. False: the callback must return *ret, and call this again when it is called again. */
bool work_run(work *w, exchange *x, api_prepare job, size_t bytes, enum MHD_Result *ret);
void work_take_back(work *w, exchange *x); /* from here on no other thread touches x; may wait for one that does */

/* --- handlers ---------------------------------------------------------------------------------------------------- */

xd_status prepare_chat(exchange *x, xd_err *err);
xd_status prepare_completions(exchange *x, xd_err *err);
xd_status prepare_count_tokens(exchange *x, xd_err *err);
xd_status prepare_input_tokens(exchange *x, xd_err *err);
xd_status prepare_messages(exchange *x, xd_err *err);
xd_status prepare_responses(exchange *x, xd_err *err);
xd_status prepare_tokenize(exchange *x, xd_err *err);
xd_status prepare_detokenize(exchange *x, xd_err *err);
enum MHD_Result handle_generate(exchange *x); /* what one of the first three has made of the request */
enum MHD_Result handle_answer(exchange *x);   /* x->answer */
enum MHD_Result handle_models(exchange *x);
enum MHD_Result handle_model(exchange *x);
enum MHD_Result handle_no_compact(exchange *x);
enum MHD_Result handle_no_response(exchange *x); /* what was answered before: it is not kept */
enum MHD_Result handle_health(exchange *x);
enum MHD_Result handle_metrics(exchange *x);
enum MHD_Result handle_chat_page(exchange *x);
enum MHD_Result handle_status_page(exchange *x);
enum MHD_Result handle_status_json(exchange *x);
enum MHD_Result handle_version(exchange *x);
enum MHD_Result handle_admin_fallback(exchange *x);

typedef struct gen_tokens {
    uint64_t prompt, cached, completion;
    uint64_t first_token_ns;               /* from the request's arrival; 0: there was none */
    double prompt_per_s, completion_per_s; /* 0: cannot be said */
    const char *finish;                    /* of the first choice, NULL: it has not finished */
} gen_tokens;
/* Of a request that the engine took, also of one that was left; false: it took none. */
bool gen_count_tokens(gen *g, gen_tokens *ret);
api_form gen_form(const gen *g); /* of the answer */
/* Time that the engine spent on an answered completion, from submission to the end; 0: it was not answered. */
uint64_t gen_engine_ns(const gen *g);
size_t gen_whole_bytes(const gen *g); /* of the answer, about; after gen_count_tokens() */
size_t gen_held_bytes(
    const gen *g);     /* the most that its log-probabilities have taken, about; also while it is not answered */
void gen_free(gen *g); /* cancels what still runs; NULL is fine */

#endif
