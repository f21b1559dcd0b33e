/* settings.c - what the HTTP room keeps of the configuration, and the check of API keys.
 *
 * One immutable copy is shared by reference count: a request keeps the one it began with, api_reload() swaps in a new one. So are the JSON
 * values in it, whose counts jansson changes atomically. */
#include <errno.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "api/api_priv.h"

enum { MAX_KEYS = 4096, MAX_KEY_BYTES = 512, MAX_KEY_FILE_BYTES = 1 << 20 };

/* Adds each non-empty word of `text` between separators; in a file, one a line, '#' begins a comment. None at all is an error: whoever
 * wrote something there did not mean to let everybody in. */
static xd_status add_keys(api_settings *s, const char *text, char separator, const char *from, xd_err *err)
{
    const char separators[] = {separator, 0};
    size_t before = s->n_keys;
    while (*text) {
        size_t n = strcspn(text, separators);
        const char *word = text;
        text += n + (text[n] != 0);
        while (n && (*word == ' ' || *word == '\t'))
            word++, n--;
        while (n && (word[n - 1] == ' ' || word[n - 1] == '\t' || word[n - 1] == '\r'))
            n--;
        if (!n || (separator == '\n' && word[0] == '#'))
            continue;
        if (n > MAX_KEY_BYTES || s->n_keys >= MAX_KEYS)
            return xd_fail(err, XD_BAD_CONFIG, 0, "%s: at most %d keys of at most %d bytes", from, MAX_KEYS,
                           MAX_KEY_BYTES);
        char **keys = reallocarray(s->keys, s->n_keys + 1, sizeof *keys);
        if (!keys)
            return xd_fail(err, XD_NOMEM, 0, "API keys");
        s->keys = keys;
        keys[s->n_keys] = strndup(word, n);
        if (!keys[s->n_keys])
            return xd_fail(err, XD_NOMEM, 0, "API keys");
        s->n_keys++;
    }
    return s->n_keys > before ? XD_OK : xd_fail(err, XD_BAD_CONFIG, 0, "%s holds no key", from);
}

static xd_status add_key_file(api_settings *s, const char *path, xd_err *err)
{
    XD_CLEANUP(xd_fclosep) FILE *f = fopen(path, "re");
    if (!f)
        return xd_fail(err, XD_BAD_CONFIG, errno, "server.api_key_file: open '%s'", path);
    XD_CLEANUP(xd_freep) char *text = malloc(MAX_KEY_FILE_BYTES + 1);
    if (!text)
        return xd_fail(err, XD_NOMEM, 0, "API keys");
    size_t n = fread(text, 1, MAX_KEY_FILE_BYTES + 1, f);
    if (ferror(f) || n > MAX_KEY_FILE_BYTES || memchr(text, 0, n))
        return xd_fail(err, XD_BAD_CONFIG, 0, "server.api_key_file: '%s' is not a text file of at most %d bytes", path,
                       MAX_KEY_FILE_BYTES);
    text[n] = 0;
    char from[PATH_MAX + 64];
    snprintf(from, sizeof from, "server.api_key_file: '%s'", path);
    bool marked = n >= 3 && !memcmp(text, "\xEF\xBB\xBF", 3); /* as some editors begin a file */
    return add_keys(s, text + (marked ? 3 : 0), '\n', from, err);
}

/* No more than JSON is known of it here: which variables there are is the template's affair (api.c). */
static xd_status read_template_kwargs(const char *text, json_t **ret, xd_err *err)
{
    static const char name[] = "model.chat_template_kwargs";
    json_error_t e;
    json_t *v = *text ? json_loads(text, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &e) : json_object();
    if (!v && !*text)
        return xd_fail(err, XD_NOMEM, 0, "HTTP settings");
    const char *own = chat_own_variable(v), *why = v ? NULL : e.text;
    if (why && (json_error_code(&e) == json_error_null_character || json_error_code(&e) == json_error_null_byte_in_key))
        why = "it holds a NUL character (\\u0000)"; /* jansson's words are for those who call it */
    if (json_is_object(v) && !own) {
        *ret = v;
        return XD_OK;
    }
    if (own)
        xd_fail_field(err, XD_BAD_CONFIG, name, NULL, "%s: '%s' is what each request says itself", name, own);
    else
        xd_fail_field(
            err, XD_BAD_CONFIG, name, NULL,
            "%s must be a JSON object such as {\"enable_thinking\": false} (in a shell between single quotes), not '%.100s'%s%s",
            name, text, why ? ": " : "", why ? why : "");
    json_decref(v);
    return XD_BAD_CONFIG;
}

xd_status api_settings_new(const config *cfg, api_settings **ret, xd_err *err)
{
    XD_CLEANUP(api_settings_unrefp) api_settings *s = calloc(1, sizeof *s);
    if (!s)
        return xd_fail(err, XD_NOMEM, 0, "HTTP settings");
    atomic_init(&s->refs, 1);
    s->max_body_bytes = cfg->server.max_body_bytes;
    s->request_timeout_s = cfg->server.request_timeout_s;
    s->max_n = cfg->server.max_n;
    s->max_logprobs = XD_MIN(cfg->server.max_logprobs, (uint32_t)ENGINE_MAX_TOP_LOGPROBS);
    s->max_stop = cfg->server.max_stop;
    s->admin = cfg->server.admin;
    s->status_page = cfg->server.status_page;
    s->chat_page = cfg->server.chat_page;
    s->completions_parse_special = cfg->server.completions_parse_special;
    s->keep_thoughts = cfg->server.reasoning_format == CONF_REASONING_NONE;
    s->log_requests = cfg->log.requests;
    s->log_prompts = cfg->log.prompts;
    if (gethostname(s->machine, sizeof s->machine - 1))
        s->machine[0] = 0;
    s->cors_origin = strdup(cfg->server.cors_origin);
    s->allowed_hosts = strdup(cfg->server.allowed_hosts);
    s->listen_host = strdup(cfg->server.host);
    if (!s->cors_origin || !s->allowed_hosts || !s->listen_host)
        return xd_fail(err, XD_NOMEM, 0, "HTTP settings");
    const char *keys = cfg->server.api_key;
    xd_status st = keys && *keys ? add_keys(s, keys, ',', "server.api_key", err) : XD_OK;
    if (!st && cfg->server.api_key_file && cfg->server.api_key_file[0])
        st = add_key_file(s, cfg->server.api_key_file, err);
    if (!st)
        st = read_template_kwargs(cfg->model.chat_template_kwargs, &s->template_kwargs, err);
    if (st)
        return st;
    *ret = XD_TAKE(s);
    return XD_OK;
}

void api_settings_unref(api_settings *s)
{
    if (!s || atomic_fetch_sub(&s->refs, 1) != 1)
        return;
    for (size_t i = 0; i < s->n_keys; i++)
        free(s->keys[i]);
    free(s->keys);
    json_decref(s->template_kwargs);
    free(s->cors_origin);
    free(s->allowed_hosts);
    free(s->listen_host);
    free(s);
}

api_settings *api_settings_ref(api *a)
{
    pthread_mutex_lock(&a->lock);
    api_settings *s = a->settings;
    atomic_fetch_add(&s->refs, 1);
    pthread_mutex_unlock(&a->lock);
    return s;
}

/* Compares the whole of `key` whatever the first difference, so that the time taken says nothing about the content. */
static bool key_equal(const char *key, const char *given, size_t given_len)
{
    size_t len = strlen(key);
    volatile unsigned diff = len != given_len;
    for (size_t i = 0; i < len; i++)
        diff |= (unsigned char)key[i] ^ (unsigned char)given[given_len ? i % given_len : 0];
    return !diff;
}

/* NULL: there is none. */
static bool is_key(const api_settings *s, const char *given)
{
    bool ok = false;
    if (!given)
        return false;
    while (*given == ' ')
        given++;
    size_t len = strlen(given);
    while (len && given[len - 1] == ' ')
        len--;
    for (size_t i = 0; i < s->n_keys; i++)
        ok |= key_equal(s->keys[i], given, len);
    return ok;
}

bool api_auth_ok(const api_settings *s, const char *authorization, const char *api_key)
{
    bool bearer = authorization && strncasecmp(authorization, "Bearer ", 7) == 0;
    return !s->n_keys | is_key(s, bearer ? authorization + 7 : NULL) | is_key(s, api_key);
}
