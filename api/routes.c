/* routes.c - the route table: what can be asked, and what holds before a handler runs. One row a method and path; OPTIONS and
 * HEAD follow from the rows. */
#include <string.h>

#include "api/api_priv.h"

enum { SMALL_BODY_BYTES = 4096 };

const api_route api_routes[] = {
    /* method path                    flags                        body limit        prepare  handler */
    {"GET", "/", ROUTE_OPEN | ROUTE_PAGE, SMALL_BODY_BYTES, NULL, handle_status_page},
    {"POST", "/admin/fallback", ROUTE_ADMIN | ROUTE_READY, SMALL_BODY_BYTES, NULL, handle_admin_fallback},
    {"GET", "/chat", ROUTE_OPEN | ROUTE_CHAT, SMALL_BODY_BYTES, NULL, handle_chat_page},
    {"POST", "/detokenize", ROUTE_READY, 0, prepare_detokenize, handle_answer},
    {"GET", "/health", ROUTE_OPEN, SMALL_BODY_BYTES, NULL, handle_health},
    {"GET", "/metrics", ROUTE_OPEN, SMALL_BODY_BYTES, NULL, handle_metrics},
    {"GET", "/status.json", ROUTE_OPEN | ROUTE_PAGE, SMALL_BODY_BYTES, NULL, handle_status_json},
    {"POST", "/tokenize", ROUTE_READY, 0, prepare_tokenize, handle_answer},
    {"POST", "/v1/chat/completions", ROUTE_READY, 0, prepare_chat, handle_generate},
    {"POST", "/v1/completions", ROUTE_READY, 0, prepare_completions, handle_generate},
    {"POST", "/v1/messages", ROUTE_READY, 0, prepare_messages, handle_generate},
    {"POST", "/v1/messages/count_tokens", ROUTE_READY, 0, prepare_count_tokens, handle_answer},
    {"GET", "/v1/models", ROUTE_READY, SMALL_BODY_BYTES, NULL, handle_models},
    {"GET", "/v1/models/{id}", ROUTE_READY | ROUTE_PREFIX, SMALL_BODY_BYTES, NULL, handle_model},
    {"POST", "/v1/responses", ROUTE_READY, 0, prepare_responses, handle_generate},
    {"POST", "/v1/responses/compact", 0, 0, NULL, handle_no_compact},
    {"POST", "/v1/responses/input_tokens", ROUTE_READY, 0, prepare_input_tokens, handle_answer},
    {"GET", "/v1/responses/{id}", 0, SMALL_BODY_BYTES, NULL, handle_no_response},
    {"DELETE", "/v1/responses/{id}", 0, SMALL_BODY_BYTES, NULL, handle_no_response},
    {"POST", "/v1/responses/{id}/cancel", 0, SMALL_BODY_BYTES, NULL, handle_no_response},
    {"GET", "/v1/responses/{id}/input_items", 0, SMALL_BODY_BYTES, NULL, handle_no_response},
    {"GET", "/version", ROUTE_OPEN, SMALL_BODY_BYTES, NULL, handle_version},
};
const size_t api_routes_count = XD_ARRAY_LEN(api_routes);
_Static_assert(XD_ARRAY_LEN(api_routes) <= API_MAX_ROUTES, "metrics have a slot for each route");

static bool path_matches(const api_route *r, const char *path)
{
    const char *pattern = r->path, *id = strstr(pattern, "{id}");
    if (id) {
        size_t before = (size_t)(id - pattern);
        if (strncmp(path, pattern, before) != 0 || !path[before])
            return false;
        if (r->flags & ROUTE_PREFIX)
            return true;
        path += before;
        size_t len = strcspn(path, "/");
        if (!len)
            return false;
        path += len;
        pattern = id + strlen("{id}");
    }
    size_t n = strlen(pattern);
    if (strncmp(path, pattern, n) != 0)
        return false;
    return !path[n] || (n != 1 && strcmp(path + n, "/") == 0); /* one slash at the end is forgiven */
}

const api_route *api_route_find(const char *method, const char *path, char *ret_allow, size_t allow_cap)
{
    const char *want = strcmp(method, "HEAD") == 0 ? "GET" : method;
    xd_buf allow = {0};
    const api_route *found = NULL;
    for (size_t i = 0; i < api_routes_count; i++) {
        const api_route *r = &api_routes[i];
        if (!path_matches(r, path))
            continue;
        if (strcmp(r->method, want) == 0)
            found = r;
        xd_buf_printf(&allow, "%s%s%s", allow.len ? ", " : "", r->method,
                      strcmp(r->method, "GET") == 0 ? ", HEAD" : "");
    }
    if (allow.len)
        xd_buf_puts(&allow, ", OPTIONS");
    snprintf(ret_allow, allow_cap, "%s", allow.data && !allow.failed ? allow.data : "");
    xd_buf_free(&allow);
    return found;
}
