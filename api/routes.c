/* routes.c - the route table: what can be asked, and what holds before a handler runs. One row a method and path; OPTIONS and
 * HEAD follow from the rows. Of a path that is in none it says what may have been meant. */
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

/* --- paths that are not there ----------------------------------------------------------------------------------------- */

static bool is_public(const char *method, const char *path)
{
    char allow[64];
    const api_route *r = api_route_find(method, path, allow, sizeof allow);
    return r && !(r->flags & (ROUTE_PAGE | ROUTE_CHAT | ROUTE_ADMIN));
}

/* Most paths that are not there come of a client's base URL without /v1, with it twice or with another server's prefix, or of a name that
 * lacks a letter. NULL: nothing like it is here. */
static const char *path_meant(const char *method, const char *path, char with[static 64])
{
    static const char *const prefixes[] = {"/v1/", "/api/", "/openai/", "/anthropic/"};
    int n = snprintf(with, 64, "/v1%s", path);
    if (n > 0 && n < 64 && is_public(method, with))
        return with;
    for (size_t i = 0; i < XD_ARRAY_LEN(prefixes); i++) {
        size_t len = strlen(prefixes[i]);
        if (strncmp(path, prefixes[i], len) != 0)
            continue;
        if (is_public(method, path + len - 1))
            return path + len - 1;
        n = snprintf(with, 64, "/v1/%s", path + len);
        if (n > 0 && n < 64 && is_public(method, with))
            return with;
    }
    size_t least = 3, behind_v1 = strncmp(path, "/v1/", 4) == 0 ? 3 : 0;
    const char *best = NULL;
    for (size_t i = 0; i < api_routes_count && strlen(path) >= 6; i++) {
        const char *p = api_routes[i].path;
        size_t skip = !behind_v1 && strncmp(p, "/v1/", 4) == 0 ? 3 : 0;
        size_t d = is_public(method, p) ? xd_edit_distance(path, p + skip) : least;
        if (d < least) {
            least = d;
            best = p;
        }
    }
    return best;
}

/* What users of other servers look for. A name that ends in a slash stands for all below it. */
static const struct {
    const char *paths, *said;
} elsewhere[] = {
    {"/v1", "it is what clients take as their base URL, of which GET /v1/models shows that it is right"},
    {"/ping /ready /readyz /livez /health_generate /load", "GET /health says whether requests are served"},
    {"/props /slots /get_model_info /get_server_info /server_info /v1/engines /v1/internal/",
     "GET /v1/models says what is served and its context, GET /health what it does"},
    {"/generate /generate_stream /infill", "POST /v1/completions lets a text go on"},
    {"/apply-template", "POST /tokenize with messages shows a chat's tokens"},
    {"/v1/chat", "POST /v1/chat/completions answers a chat"},
    {"/v1/complete", "POST /v1/messages answers a chat"},
    {"/api/chat /api/generate /api/tags /api/show /api/ps /api/pull /api/embed /api/embeddings",
     "this is no Ollama; tell the client that it is an OpenAI-compatible server whose base URL ends in /v1"},
    {"/v1/embeddings /embeddings /embedding /v1/rerank /rerank /v2/rerank /pooling /score /classify /v1/moderations "
     "/v1/audio/ /v1/images/ /v1/realtime",
     "a model that reads and writes text is served"},
    {"/v1/files /v1/batches /v1/messages/batches /v1/conversations /v1/assistants /v1/threads /v1/vector_stores",
     "nothing is stored"},
    {"/docs /redoc /openapi.json", "docs/api.md of expertd's sources lists what is here"},
};

static const char *said_of(const char *path)
{
    for (size_t i = 0; i < XD_ARRAY_LEN(elsewhere); i++)
        for (const char *at = elsewhere[i].paths; *at; at += strspn(at, " ")) {
            size_t n = strcspn(at, " "), len = strlen(path);
            bool below = at[n - 1] == '/';
            if (!strncmp(path, at, n) && (below || len == n || (len == n + 1 && path[n] == '/')))
                return elsewhere[i].said;
            at += n;
        }
    return NULL;
}

/* "//v1/models": a base URL with a slash at its end, and a client that adds one. */
static void merge_slashes(const char *path, xd_buf *out)
{
    for (size_t i = 0; path[i]; i++)
        if (path[i] != '/' || !i || path[i - 1] != '/')
            xd_buf_putc(out, path[i]);
}

xd_status api_route_missing(const char *method, const char *path, xd_err *err)
{
    char with[64];
    XD_CLEANUP(xd_buf_free) xd_buf merged = {0};
    merge_slashes(path, &merged);
    const char *plain = merged.data && !merged.failed ? merged.data : path, *said = said_of(plain);
    if (said)
        return xd_fail_field(err, XD_NOT_FOUND, NULL, "unknown_url", "there is no '%.200s' here (%.8s): %s", path,
                             method, said);
    const char *meant = strcmp(plain, path) && is_public(method, plain) ? plain : path_meant(method, plain, with);
    return meant ? xd_fail_field(err, XD_NOT_FOUND, NULL, "unknown_url",
                                 "there is no '%.200s' here (%.8s); did you mean '%.64s'?", path, method, meant)
                 : xd_fail_field(err, XD_NOT_FOUND, NULL, "unknown_url", "there is no '%.200s' here (%.8s)", path,
                                 method);
}
