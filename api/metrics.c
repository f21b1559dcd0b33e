/* metrics.c - counters of the HTTP side. Plain atomics: a few additions a request. They only ever grow (gauges aside), whoever
 * reads them. The engine's metrics are appended by the handler of /metrics. */

#include <string.h>

#include "api/api_priv.h"

/* Statuses with a slot of their own; anything else counts in the last slot under its class's first code. */
static const unsigned statuses[API_N_STATUS] = {200, 204, 400, 401, 403, 404, 405, 408, 413, 415,
                                                429, 431, 499, 500, 501, 503, 505, 0,   0,   0};
static const double bounds_s[API_N_BUCKETS] = {0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 10, 30, 60, 300};

void api_metrics_count(api_metrics *m, size_t route, unsigned status, uint64_t duration_ns)
{
    size_t slot = 0;
    /* Endpoints are told apart by their paths: methods of one stand together in the table. */
    while (route > 0 && route < api_routes_count && !strcmp(api_routes[route - 1].path, api_routes[route].path))
        route--;
    while (slot < API_N_STATUS && statuses[slot] != status)
        slot++;
    if (slot == API_N_STATUS)
        slot = 13; /* no handler answers such a status: count it as the server's fault */
    atomic_fetch_add_explicit(&m->requests[route][slot], 1, memory_order_relaxed);
    size_t b = 0;
    while (b < API_N_BUCKETS && (double)duration_ns > bounds_s[b] * 1e9)
        b++;
    atomic_fetch_add_explicit(&m->duration_bucket[route][b], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&m->duration_us[route], duration_ns / 1000, memory_order_relaxed);
}

const char *const api_form_names[API_FORM_NONE] = {[API_FORM_JSON_OBJECT] = "json_object",
                                                   [API_FORM_JSON_SCHEMA] = "json_schema",
                                                   [API_FORM_TOOL] = "tool",
                                                   [API_FORM_TOOL_OR_JSON] = "tool_or_json",
                                                   [API_FORM_GRAMMAR] = "grammar"};

static const char *route_label(size_t i)
{
    return i < api_routes_count ? api_routes[i].path : "other";
}

static void head(xd_buf *out, const char *name, const char *type, const char *help)
{
    xd_buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

void api_metrics_print(const api_metrics *m, xd_buf *out)
{
    head(out, "expertd_build_info", "gauge", "Version of expertd, always 1.");
    xd_buf_printf(out, "expertd_build_info{version=\"%s\"} 1\n", XD_VERSION);

    head(out, "expertd_http_requests_total", "counter", "HTTP requests that were answered, by endpoint and status.");
    for (size_t r = 0; r <= api_routes_count; r++)
        for (size_t s = 0; s < API_N_STATUS; s++) {
            uint64_t n = m->requests[r][s];
            if (n)
                xd_buf_printf(out, "expertd_http_requests_total{endpoint=\"%s\",status=\"%u\"} %llu\n", route_label(r),
                              statuses[s], (unsigned long long)n);
        }

    head(out, "expertd_http_request_duration_seconds", "histogram",
         "Time from a request's header to the end of its response.");
    for (size_t r = 0; r <= api_routes_count; r++) {
        uint64_t sum = 0;
        for (size_t b = 0; b <= API_N_BUCKETS; b++)
            sum += m->duration_bucket[r][b];
        if (!sum)
            continue;
        sum = 0;
        const char *label = route_label(r);
        for (size_t b = 0; b <= API_N_BUCKETS; b++) {
            sum += m->duration_bucket[r][b];
            if (b < API_N_BUCKETS)
                xd_buf_printf(out, "expertd_http_request_duration_seconds_bucket{endpoint=\"%s\",le=\"%g\"} %llu\n",
                              label, bounds_s[b], (unsigned long long)sum);
            else
                xd_buf_printf(out, "expertd_http_request_duration_seconds_bucket{endpoint=\"%s\",le=\"+Inf\"} %llu\n",
                              label, (unsigned long long)sum);
        }
        xd_buf_printf(out, "expertd_http_request_duration_seconds_sum{endpoint=\"%s\"} %.6f\n", label,
                      (double)m->duration_us[r] / 1e6);
        xd_buf_printf(out, "expertd_http_request_duration_seconds_count{endpoint=\"%s\"} %llu\n", label,
                      (unsigned long long)sum);
    }

    head(out, "expertd_constrained_requests_total", "counter",
         "Requests whose answers were held to a form: JSON, a grammar, an expression, a choice, a forced call.");
    for (size_t f = 0; f < API_FORM_NONE; f++)
        xd_buf_printf(out, "expertd_constrained_requests_total{form=\"%s\"} %llu\n", api_form_names[f],
                      (unsigned long long)m->constrained[f]);

    const struct {
        const char *name, *type, *help;
        double value;
    } rows[] = {
        {"expertd_tool_calls_total", "counter", "Tool calls that answers made, those cut by the token limit included.",
         (double)m->tool_calls},
        {"expertd_grammar_build_seconds_total", "counter",
         "Time spent on making grammars of forms, for the requests that were taken.", (double)m->grammar_ns / 1e9},
        {"expertd_http_connections", "gauge", "Open HTTP connections.", (double)m->connections},
        {"expertd_http_in_flight", "gauge", "Requests that are being answered.", (double)m->in_flight},
        {"expertd_http_streams", "gauge", "Event streams that are open.", (double)m->streams},
        {"expertd_http_received_bytes_total", "counter", "Bytes of request bodies.", (double)m->rx_bytes},
        {"expertd_http_stream_bytes_total", "counter", "Bytes of event streams.", (double)m->tx_stream_bytes},
        {"expertd_http_heartbeats_total", "counter", "Heartbeat comments sent in event streams.",
         (double)m->heartbeats},
        {"expertd_http_outside_engine_seconds_total", "counter",
         "Time of answered completions outside of the engine: reading, templates, tokens, writing to the client.",
         (double)m->outside_us / 1e6},
        {"expertd_http_client_gone_total", "counter", "Requests whose client went away before the end.",
         (double)m->client_gone},
        {"expertd_http_timeouts_total", "counter", "Requests that did not arrive in time.", (double)m->timeouts},
        {"expertd_http_connections_refused_total", "counter",
         "Connections beyond server.max_connections that were answered with 503.", (double)m->refused},
        {"expertd_http_connections_evicted_total", "counter",
         "Idle connections that were closed to make room for others.", (double)m->evicted},
    };
    for (size_t i = 0; i < XD_ARRAY_LEN(rows); i++) {
        head(out, rows[i].name, rows[i].type, rows[i].help);
        xd_buf_printf(out, "%s %.15g\n", rows[i].name, rows[i].value);
    }
}

json_t *api_metrics_json(const api_metrics *m)
{
    uint64_t total = 0, errors = 0;
    for (size_t r = 0; r <= api_routes_count; r++)
        for (size_t s = 0; s < API_N_STATUS; s++) {
            total += m->requests[r][s];
            /* /health says 503 while loading: that is its answer, not a failure. */
            bool failed = statuses[s] >= 500 && (r == api_routes_count || api_routes[r].handler != handle_health);
            errors += failed ? m->requests[r][s] : 0;
        }
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I}", "connections", (json_int_t)m->connections, "in_flight",
                     (json_int_t)m->in_flight, "streams", (json_int_t)m->streams, "requests", (json_int_t)total,
                     "errors", (json_int_t)errors, "client_gone", (json_int_t)m->client_gone);
}
