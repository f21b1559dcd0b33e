/* exchange.c - one HTTP request from its header to its completion: checks before the body, the body, the handler, the log line.
 *
 * libmicrohttpd calls exchange_handle() once with the header, then with pieces of the body, then with none left, and again after
 * each wake-up until a response is queued. An error that the header decides, or a body over the limit, is answered at once. libmicrohttpd would close the
 * connection with it, and a response that is sent while the client still sends is then lost to most clients (their unread bytes make the
 * kernel reset the connection): so where a body is on its way the answer goes past it, and what still comes is read and thrown away. */
#include <ctype.h>
#include <string.h>

#include "api/api_priv.h"
#include "config/log.h"

static const char *header(const exchange *x, const char *name)
{
    return MHD_lookup_connection_value(x->mc, MHD_HEADER_KIND, name);
}

/* A client's own request id is echoed when it is harmless in a log and a header; else one is made. */
static void set_request_id(exchange *x)
{
    const char *given = header(x, "x-request-id");
    size_t n = given ? strlen(given) : 0;
    bool sane = n > 0 && n <= 64;
    for (size_t i = 0; sane && i < n; i++)
        sane = isalnum((unsigned char)given[i]) || strchr("._:-", given[i]);
    if (sane) {
        memcpy(x->id, given, n + 1);
        return;
    }
    uint64_t z = x->a->id_salt + atomic_fetch_add(&x->a->next_id, 1) * XD_MIX64_STEP;
    snprintf(x->id, sizeof x->id, "req-%016llx", (unsigned long long)xd_mix64(z));
}

/* A browser lets any page send what has no Content-Type, or a form's: without asking (by OPTIONS) whether that page may. */
static xd_status check_media_type(const exchange *x, xd_err *err)
{
    const char *type = header(x, "Content-Type"), *encoding = header(x, "Content-Encoding");
    if (encoding && strcasecmp(encoding, "identity") != 0)
        return xd_fail(err, XD_MEDIA_TYPE, 0, "Content-Encoding '%.40s' is not supported: send the body as it is",
                       encoding);
    const char *origin = header(x, "Origin"), *allowed = x->settings->cors_origin;
    if (!type && origin && strcmp(allowed, "*") != 0 && strcmp(allowed, origin) != 0)
        return xd_fail(err, XD_MEDIA_TYPE, 0,
                       "a request of a web page ('%.80s') needs the header 'Content-Type: application/json'", origin);
    if (!type)
        return XD_OK;
    size_t n = strcspn(type, "; \t");
    if (n == 16 && strncasecmp(type, "application/json", n) == 0)
        return XD_OK;
    return xd_fail(err, XD_MEDIA_TYPE, 0,
                   "Content-Type is '%.80s': add the header 'Content-Type: application/json' (curl -H)", type);
}

typedef struct framing {
    unsigned lengths, codings, hosts;
    bool chunked, blank; /* blank: one before a colon */
} framing;

static enum MHD_Result see_header(void *cls, enum MHD_ValueKind kind, const char *key, const char *value)
{
    (void)kind;
    framing *f = cls;
    const size_t len = strlen(key);
    f->blank |= len && (key[len - 1] == ' ' || key[len - 1] == '\t');
    if (strcasecmp(key, "Content-Length") == 0)
        f->lengths++;
    else if (strcasecmp(key, "Host") == 0)
        f->hosts++;
    else if (strcasecmp(key, "Transfer-Encoding") == 0) {
        f->codings++;
        f->chunked = value && strcasecmp(value, "chunked") == 0;
    }
    return MHD_YES;
}

/* Where a proxy in front may see the end of a body, or the host, elsewhere than we do, the next request on the connection could be
 * anybody's (RFC 9112, 6.3, 5.1 and 3.2): such a request is refused and nothing that follows it is read. */
static xd_status check_framing(const exchange *x, const char *version, xd_err *err)
{
    framing f = {0};
    MHD_get_connection_values(x->mc, MHD_HEADER_KIND, see_header, &f);
    if (f.lengths > 1 || f.codings > 1 || (f.lengths && f.codings))
        return xd_fail(err, XD_BAD_REQUEST, 0,
                       "the length of the body is given more than once: one Content-Length or Transfer-Encoding");
    if (f.codings && !f.chunked)
        return xd_fail(err, XD_BAD_REQUEST, 0, "the only Transfer-Encoding that is taken is 'chunked'");
    if (f.blank) /* "Content-Length : 5" is a length to some */
        return xd_fail(err, XD_BAD_REQUEST, 0, "a blank stands before a header's colon");
    if (!f.hosts && strcmp(version, "HTTP/1.1") == 0)
        return xd_fail(err, XD_BAD_REQUEST, 0, "the header 'Host' is missing");
    if (f.hosts > 1)
        return xd_fail(err, XD_BAD_REQUEST, 0, "the header 'Host' is given more than once");
    return XD_OK;
}

static xd_status check_host(const exchange *x, xd_err *err)
{
    const char *host = header(x, "Host");
    if (api_host_ok(x->settings, host))
        return XD_OK;
    xd_status st = xd_fail_field(err, XD_FORBIDDEN, NULL, "host_not_allowed",
                                 "this server does not answer to the host name '%.80s': add it to the setting "
                                 "server.allowed_hosts%s, or ask by IP address",
                                 host, x->settings->n_keys ? "" : ", set an API key");
    if (notes_first_host(&x->a->notes))
        xd_log_warn("%s (said once)", err->msg);
    return st;
}

/* Everything that the header alone decides. */
static xd_status check_header(exchange *x, const char *method, xd_err *err)
{
    const api_route *r = x->route;
    bool hidden = r && (((r->flags & ROUTE_PAGE) && !x->settings->status_page) ||
                        ((r->flags & ROUTE_CHAT) && !x->settings->chat_page) ||
                        ((r->flags & ROUTE_ADMIN) && !x->settings->admin));
    if (hidden || (!r && !x->allow[0])) {
        x->allow[0] = 0;
        return api_route_missing(method, x->path, err);
    }
    if (!r)
        return xd_fail_field(err, XD_BAD_METHOD, NULL, "method_not_allowed", "'%.200s' takes %s, not %.16s", x->path,
                             x->allow, method);
    if ((r->flags & ROUTE_ADMIN) && !conn_is_loopback(x->mc))
        return xd_fail(err, XD_FORBIDDEN, 0, "'%s' is for clients on this machine", r->path);
    const char *authorization = header(x, "Authorization"), *key = header(x, "x-api-key");
    if (!(r->flags & ROUTE_OPEN) && !api_auth_ok(x->settings, authorization, key))
        return xd_fail_field(err, XD_UNAUTHORIZED, NULL, "invalid_api_key",
                             authorization || key ? "the API key is not valid"
                                                  : "an API key is needed: Authorization: Bearer KEY");
    if (strcmp(r->method, "POST") == 0)
        return check_media_type(x, err);
    return XD_OK;
}

/* Anthropic's clients say a version of that API whatever they ask for; its path alone tells those that do not. */
static bool is_anthropic(const exchange *x)
{
    static const char messages[] = "/v1/messages";
    size_t n = strlen(messages);
    return header(x, "anthropic-version") || (!strncmp(x->path, messages, n) && (!x->path[n] || x->path[n] == '/'));
}

/* "http://host/path", as a client writes to a proxy, is "/path" (RFC 9112, 3.2.2). */
static const char *path_of(const char *url)
{
    size_t scheme = strncasecmp(url, "http://", 7) == 0 ? 7 : strncasecmp(url, "https://", 8) == 0 ? 8 : 0;
    if (!scheme)
        return url;
    url += scheme;
    url += strcspn(url, "/");
    return *url ? url : "/";
}

static exchange *exchange_new(api *a, struct MHD_Connection *mc, conn *c, const char *url, const char *method)
{
    exchange *x = calloc(1, sizeof *x);
    xd_buf path = {0};
    url = path_of(url);
    if (!x || !xd_utf8_sanitize(&path, url, XD_MIN(strlen(url), (size_t)2048)) || !xd_buf_puts(&path, "")) {
        xd_buf_free(&path);
        free(x);
        return NULL;
    }
    x->a = a;
    x->c = c;
    x->mc = mc;
    x->settings = api_settings_ref(a);
    x->path = xd_buf_steal(&path, NULL);
    x->started_ns = xd_now_ns();
    snprintf(x->method, sizeof x->method, "%s", method);
    set_request_id(x);
    x->route = api_route_find(method, x->path, x->allow, sizeof x->allow);
    x->anthropic = is_anthropic(x);
    const char *id = x->route ? strstr(x->route->path, "{id}") : NULL;
    if (id)
        x->path_rest = x->path + (id - x->route->path);
    x->body_limit = x->route && x->route->body_limit ? x->route->body_limit : x->settings->max_body_bytes;
    atomic_fetch_add(&a->metrics.in_flight, 1);
    return x;
}

static enum MHD_Result take_header(exchange *x, const char *method, const char *version)
{
    x->head_seen = true;
    if (!conn_begin(x->c, x->id, x->settings->cors_origin, x->allow, x->anthropic))
        return MHD_NO;
    if (check_framing(x, version, &x->early)) {
        conn_answer_raw(x->c, &x->early);
        return MHD_YES; /* when the body is said to be complete, the connection is closed */
    }
    if (!check_host(x, &x->early) && strcmp(method, "OPTIONS") != 0)
        (void)check_header(x, method, &x->early);
    const char *length = header(x, "Content-Length");
    if (!x->early.status && length && strtoull(length, NULL, 10) > x->body_limit)
        xd_fail(&x->early, XD_TOO_LARGE, 0, "the body has %.20s bytes: at most %llu are taken", length,
                (unsigned long long)x->body_limit);
    bool has_body = header(x, "Transfer-Encoding") || (length && strtoull(length, NULL, 10));
    if (x->early.status && has_body && !header(x, "Expect")) {
        conn_answer_raw(x->c, &x->early);
        return MHD_YES; /* when the body is through, or nothing of it comes for a while, the connection is closed */
    }
    if (x->early.status && header(x, "Expect")) {
        if (!conn_begin_work(x->c))
            return MHD_NO;
        x->working = true;
        return reply_error(x, &x->early);
    }
    return MHD_YES;
}

static enum MHD_Result take_body(exchange *x, const char *data, size_t len)
{
    conn_count_body(x->c, len);
    atomic_fetch_add(&x->a->metrics.rx_bytes, len);
    x->body_seen += len;
    if (x->body_seen > x->body_limit) {
        if (!x->early.status)
            xd_fail(&x->early, XD_TOO_LARGE, 0, "the body is too large: at most %llu bytes are taken",
                    (unsigned long long)x->body_limit);
        conn_answer_raw(x->c, &x->early);
        xd_buf_free(&x->body);
    } else if (!x->early.status && !xd_buf_append(&x->body, data, len)) {
        xd_fail(&x->early, XD_NOMEM, 0, "out of memory for the body");
        xd_buf_free(&x->body);
    }
    return MHD_YES;
}

static enum MHD_Result answer(exchange *x)
{
    if (!x->working) {
        if (!conn_begin_work(x->c))
            return MHD_NO; /* answered already */
        x->working = true;
        if (x->early.status)
            return reply_error(x, &x->early);
        if (strcmp(x->method, "OPTIONS") == 0) {
            if (!x->allow[0])
                snprintf(x->allow, sizeof x->allow, "GET, HEAD, POST, OPTIONS");
            return reply_bytes(x, 204, NULL, &(xd_buf){0});
        }
        xd_err err;
        if ((x->route->flags & ROUTE_READY) && atomic_load(&x->a->draining)) {
            xd_fail_field(&err, XD_UNAVAILABLE, NULL, "draining", "the server is shutting down");
            return reply_error(x, &err);
        }
        if ((x->route->flags & ROUTE_READY) && !atomic_load(&x->a->ready)) {
            double fraction = 0;
            char what[200] = "";
            if (engine_get_phase(x->a->e, &fraction, what, sizeof what) == ENGINE_FAILED)
                xd_fail_field(&err, XD_UNAVAILABLE, NULL, "model_failed", "the model could not be loaded: %s", what);
            else
                xd_fail_field(&err, XD_UNAVAILABLE, NULL, "loading", "the model is loading (%.0f %%)", fraction * 100);
            return reply_error(x, &err);
        }
    }
    if (x->route->prepare && !x->prepared) {
        enum MHD_Result ret;
        if (!work_run(x->a->work, x, x->route->prepare, x->body_seen, &ret))
            return ret;
        x->prepared = true;
        if (x->early.status)
            return reply_error(x, &x->early);
    }
    return x->route->handler(x);
}

enum MHD_Result exchange_handle(void *cls, struct MHD_Connection *mc, const char *url, const char *method,
                                const char *version, const char *data, size_t *data_len, void **ctx)
{
    exchange *x = *ctx;
    if (!x) {
        const union MHD_ConnectionInfo *info = MHD_get_connection_info(mc, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
        if (!info || !info->socket_context)
            return MHD_NO; /* no memory when the connection came in */
        *ctx = x = exchange_new(cls, mc, info->socket_context, url, method);
        if (!x)
            return MHD_NO;
    }
    if (!x->head_seen)
        return take_header(x, method, version);
    if (*data_len) {
        enum MHD_Result ret = take_body(x, data, *data_len);
        *data_len = 0;
        return ret;
    }
    return answer(x);
}

enum { MAX_LOG_FIELDS = 16, NUMBER_CHARS = 32 };

/* The fields of a request's line; numbers as text. */
typedef struct log_fields {
    xd_log_field v[MAX_LOG_FIELDS];
    char numbers[MAX_LOG_FIELDS][NUMBER_CHARS];
    size_t n;
} log_fields;

static void put_text(log_fields *f, const char *key, const char *value, bool is_said)
{
    if (value && *value)
        f->v[f->n++] = (xd_log_field){.key = key, .value = value, .is_said = is_said};
}

static void put_number(log_fields *f, const char *key, double value, int decimals, bool is_said)
{
    char *text = f->numbers[f->n];
    snprintf(text, NUMBER_CHARS, "%.*f", decimals, value);
    f->v[f->n++] = (xd_log_field){.key = key, .value = text, .is_number = true, .is_said = is_said};
}

static void log_line(const exchange *x, int level, unsigned status, uint64_t took_ns, const gen_tokens *tokens,
                     api_form form)
{
    char address[64];
    log_fields f = {.n = 0};
    conn_address(x->mc, address, sizeof address);
    put_text(&f, "METHOD", x->method, true);
    put_text(&f, "PATH", x->path, true);
    put_number(&f, "STATUS", status, 0, true);
    put_number(&f, "MS", (double)took_ns / 1e6, 1, true);
    put_text(&f, "REQUEST_ID", x->id, false);
    put_text(&f, "CLIENT", address, false);
    if (tokens) {
        put_number(&f, "PROMPT_TOKENS", (double)tokens->prompt, 0, false);
        put_number(&f, "CACHED_TOKENS", (double)tokens->cached, 0, false);
        put_number(&f, "COMPLETION_TOKENS", (double)tokens->completion, 0, false);
        if (tokens->first_token_ns)
            put_number(&f, "FIRST_TOKEN_MS", (double)tokens->first_token_ns / 1e6, 1, false);
        if (tokens->prompt_per_s > 0)
            put_number(&f, "PROMPT_TOKENS_PER_SECOND", tokens->prompt_per_s, 1, false);
        if (tokens->completion_per_s > 0)
            put_number(&f, "COMPLETION_TOKENS_PER_SECOND", tokens->completion_per_s, 1, false);
        put_text(&f, "FINISH_REASON", tokens->finish, false);
    }
    if (form != API_FORM_NONE)
        put_text(&f, "FORM", api_form_names[form], false);
    xd_log_with(level, f.v, f.n, "%s %s %u %.1f ms%s%s", x->method, x->path, status, (double)took_ns / 1e6,
                x->fault.status ? ": " : "", x->fault.msg);
}

enum { LARGE_BYTES = 1 << 20, MANY_BYTES = 16 << 20 };

void exchange_completed(void *cls, struct MHD_Connection *mc, void **ctx, enum MHD_RequestTerminationCode why)
{
    (void)mc;
    api *a = cls;
    exchange *x = *ctx;
    if (!x)
        return;
    *ctx = NULL;
    work_take_back(a->work, x);
    bool aborted = why != MHD_REQUEST_TERMINATED_COMPLETED_OK;
    uint64_t engine_ns = x->gen && !aborted ? gen_engine_ns(x->gen) : 0;
    gen_tokens tokens;
    api_form form = x->gen ? gen_form(x->gen) : API_FORM_NONE;
    bool counted = x->gen && gen_count_tokens(x->gen, &tokens);
    uint64_t freed = x->body_seen + (counted ? gen_whole_bytes(x->gen) : 0) + (x->gen ? gen_held_bytes(x->gen) : 0);
    gen_free(x->gen); /* before the conn may go: no notify comes after it */
    if (x->working)
        conn_set_engine_busy(x->c, false, false);
    unsigned raw_status = conn_end(x->c);

    uint64_t took_ns = xd_now_ns() - x->started_ns;
    if (engine_ns && engine_ns < took_ns)
        atomic_fetch_add(&a->metrics.outside_us, (took_ns - engine_ns) / 1000);
    unsigned status = raw_status ? raw_status : x->status && !(aborted && x->gen) ? x->status : 499;
    if (aborted && status == 499)
        atomic_fetch_add(&a->metrics.client_gone, 1);
    api_metrics_count(&a->metrics, x->route ? (size_t)(x->route - api_routes) : api_routes_count, status, took_ns);
    if (atomic_fetch_sub(&a->metrics.in_flight, 1) == 1 && atomic_load(&a->draining)) {
        pthread_mutex_lock(&a->lock);
        pthread_cond_broadcast(&a->flushed);
        pthread_mutex_unlock(&a->lock);
    }
    if (x->settings->log_requests || x->fault.status) {
        /* Probes and scrapers ask every few seconds: what they get is of interest only when it is not 200. */
        bool probe = x->route && (x->route->flags & ROUTE_OPEN) && status == 200;
        int level = x->fault.status ? CONF_LOG_ERROR : probe ? CONF_LOG_DEBUG : CONF_LOG_INFO;
        log_line(x, level, status, took_ns, counted ? &tokens : NULL, form);
    }
    if (freed > LARGE_BYTES || atomic_fetch_add(&a->freed_bytes, freed) + freed > MANY_BYTES) {
        atomic_store(&a->freed_bytes, 0);
        atomic_store(&a->trim_due, true);
    }
    xd_buf_free(&x->body);
    xd_buf_free(&x->answer);
    api_settings_unref(x->settings);
    free(x->path);
    free(x);
}
