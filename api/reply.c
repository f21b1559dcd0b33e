/* reply.c - responses: bodies, the headers that every response carries, and the shapes of errors, OpenAI's and Anthropic's. */
#include <string.h>

#include "api/api_priv.h"

enum { STREAM_BLOCK_BYTES = 16 << 10, RETRY_BUSY_S = 1, RETRY_UNAVAILABLE_S = 5 };

static bool add(struct MHD_Response *r, const char *name, const char *value)
{
    return MHD_add_response_header(r, name, value) == MHD_YES;
}

/* What a web page may send: what its browser asks for, since clients add headers of their own (OpenAI's: x-stainless-*), and "*" would
 * not cover Authorization. */
static const char *allowed_headers(const exchange *x)
{
    static const char name_chars[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_, ";
    const char *asked = MHD_lookup_connection_value(x->mc, MHD_HEADER_KIND, "Access-Control-Request-Headers");
    bool sane = asked && *asked && strlen(asked) <= 2048 && !asked[strspn(asked, name_chars)];
    return sane ? asked : "Authorization, Content-Type, x-request-id";
}

static void add_cors(const exchange *x, struct MHD_Response *r)
{
    const char *origin = x->settings->cors_origin;
    if (!origin[0])
        return;
    add(r, "Access-Control-Allow-Origin", origin);
    add(r, "Access-Control-Expose-Headers", API_EXPOSED);
    if (strcmp(origin, "*") != 0)
        add(r, "Vary", "Origin");
    if (strcmp(x->method, "OPTIONS") == 0) {
        add(r, "Access-Control-Allow-Methods", x->allow);
        add(r, "Access-Control-Allow-Headers", allowed_headers(x));
        add(r, "Access-Control-Max-Age", "86400");
    }
}

/* Takes r. */
static enum MHD_Result queue(exchange *x, unsigned status, const char *content_type, struct MHD_Response *r)
{
    if (!r)
        return MHD_NO; /* no memory even for an error: the connection is closed */
    if (content_type)
        add(r, "Content-Type", content_type);
    add(r, "x-request-id", x->id);
    if (x->anthropic)
        add(r, "request-id", x->id);
    add_cors(x, r);
    if (x->allow[0] && (status == 405 || status == 204))
        add(r, "Allow", x->allow);
    if (status == 401)
        add(r, "WWW-Authenticate", API_CHALLENGE);
    if (x->hopeless) /* OpenAI's clients send a request again after 408 and 5xx unless they are told this */
        add(r, "x-should-retry", "false");
    else if (status == 429 || status == 503) {
        char s[16];
        snprintf(s, sizeof s, "%d", status == 429 ? RETRY_BUSY_S : RETRY_UNAVAILABLE_S);
        add(r, "Retry-After", s);
    }
    if (status == 408)
        add(r, "Connection", "close");
    x->status = status;
    enum MHD_Result ret = MHD_queue_response(x->mc, status, r);
    MHD_destroy_response(r);
    return ret;
}

enum MHD_Result reply_bytes(exchange *x, unsigned status, const char *content_type, xd_buf *b)
{
    size_t len;
    char *data = xd_buf_steal(b, &len);
    if (!data) {
        xd_err err;
        xd_fail(&err, XD_NOMEM, 0, "out of memory for the response");
        return reply_error(x, &err);
    }
    struct MHD_Response *r = MHD_create_response_from_buffer(len, data, MHD_RESPMEM_MUST_FREE);
    if (!r)
        free(data);
    return queue(x, status, content_type, r);
}

enum MHD_Result reply_page(exchange *x, const char *html, const char *policy)
{
    struct MHD_Response *r =
        MHD_create_response_from_buffer(strlen(html), (void *)(uintptr_t)html, MHD_RESPMEM_PERSISTENT);
    if (r) {
        add(r, "Content-Security-Policy", policy);
        add(r, "X-Frame-Options", "DENY"); /* frame-ancestors, for older browsers */
        add(r, "X-Content-Type-Options", "nosniff");
        add(r, "Referrer-Policy", "no-referrer");
        add(r, "Cache-Control", "no-cache");
    }
    return queue(x, 200, "text/html; charset=utf-8", r);
}

static int dump_piece(const char *data, size_t len, void *out)
{
    return xd_buf_append(out, data, len) ? 0 : -1;
}

void reply_dump(json_t *body, xd_buf *b)
{
    if (!body || json_dump_callback(body, dump_piece, b, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(9)))
        b->failed = true;
    json_decref(body);
}

enum MHD_Result reply_json(exchange *x, unsigned status, json_t *body)
{
    xd_buf b = {0};
    reply_dump(body, &b);
    xd_buf_putc(&b, '\n');
    return reply_bytes(x, status, "application/json", &b);
}

/* What went wrong, for programs, where nobody has said it more exactly. */
static const char *default_code(xd_status status)
{
    switch (status) {
    case XD_FORBIDDEN: return "forbidden";
    case XD_TIMEOUT: return "request_timeout";
    case XD_TOO_LARGE: return "request_too_large";
    case XD_MEDIA_TYPE: return "unsupported_media_type";
    case XD_BUSY: return "queue_full";
    case XD_NOMEM: return "out_of_memory";
    case XD_UNAVAILABLE: return "unavailable";
    case XD_BAD_REQUEST:
    case XD_UNSUPPORTED: return "invalid_request";
    default: return "internal_error";
    }
}

/* Where Anthropic has another word than OpenAI. */
static const char *anthropic_type(xd_status status)
{
    int http = xd_status_http(status);
    return status == XD_TOO_LARGE ? "request_too_large"
           : http == 503          ? "overloaded_error"
           : http >= 500          ? "api_error"
                                  : xd_status_name(status);
}

json_t *reply_error_json(const xd_err *err, bool anthropic, unsigned *ret_status)
{
    *ret_status = (unsigned)xd_status_http(err->status);
    json_t *json = json_pack("{s:{s:s, s:s, s:o, s:o}}", "error", "message", err->msg, "type",
                             anthropic ? anthropic_type(err->status) : xd_status_name(err->status), "param",
                             err->param[0] ? json_string(err->param) : json_null(), "code",
                             json_string(err->code[0] ? err->code : default_code(err->status)));
    if (!anthropic || !json)
        return json;
    bool ok = !json_object_set_new(json, "type", json_string("error"));
    if (!strcmp(err->code, API_NO_THREADS))
        ok = ok && !json_object_set_new(json_object_get(json, "error"), "details",
                                        json_pack("{s:s, s:[s]}", "error_code", err->code, "unsupported", "thread"));
    if (ok)
        return json;
    json_decref(json);
    return NULL;
}

void reply_note_fault(exchange *x, const xd_err *err)
{
    if (xd_status_http(err->status) >= 500 && !err->code[0])
        x->fault = *err;
}

enum MHD_Result reply_error(exchange *x, const xd_err *err)
{
    unsigned status;
    reply_note_fault(x, err);
    x->hopeless = err->status == XD_TIMEOUT || strcmp(err->code, "model_failed") == 0;
    json_t *json = reply_error_json(err, x->anthropic, &status);
    xd_buf b = {0};
    if (!json || json_dump_callback(json, dump_piece, &b, JSON_COMPACT)) {
        xd_buf_clear(&b);
        xd_buf_puts(
            &b,
            "{\"error\":{\"message\":\"out of memory\",\"type\":\"server_error\",\"param\":null,\"code\":\"out_of_memory\"}}");
    }
    json_decref(json);
    xd_buf_putc(&b, '\n');
    size_t len;
    char *data = xd_buf_steal(&b, &len);
    struct MHD_Response *r = data ? MHD_create_response_from_buffer(len, data, MHD_RESPMEM_MUST_FREE) : NULL;
    if (!r)
        free(data);
    return queue(x, status, "application/json", r);
}

enum MHD_Result reply_stream(exchange *x, MHD_ContentReaderCallback read, void *cls)
{
    struct MHD_Response *r = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK_BYTES, read, cls, NULL);
    if (r) {
        add(r, "Cache-Control", "no-cache");
        add(r, "X-Accel-Buffering", "no"); /* nginx would hold tokens back */
    }
    return queue(x, 200, "text/event-stream; charset=utf-8", r);
}
