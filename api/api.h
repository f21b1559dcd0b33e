/* api.h - the HTTP server. Owns sockets, JSON, templates and SSE; talks to the engine by requests and events. */
#ifndef API_API_H
#define API_API_H

#include "config/config.h"
#include "config/error.h"
#include "engine/engine.h"

typedef struct api api;

/* The open files of everything else: the model's, the page file, threads' and journal's. */
enum { API_OTHER_FILES = 128 };

/* Connections beyond server.max_connections that are open for a moment: on their way out, to be refused, or of this machine. */
static inline uint32_t api_headroom(uint32_t max_connections)
{
    return max_connections < 64 ? 16 : max_connections < 1024 ? max_connections / 4 : 256;
}

typedef struct api_options {
    const config *cfg; /* borrowed until api_free() */
    engine *e;         /* may still be loading: /health answers 503 then, other endpoints 503 with Retry-After */
    int listen_fd;     /* from systemd, or -1: bind cfg->server.host:port */
} api_options;

/* Binds and serves until api_free(). XD_IO names address and port. */
xd_status api_start(const api_options *opt, api **ret, xd_err *err) XD_MUST_CHECK;
uint32_t api_port(const api *a); /* the port in use */
/* The engine is READY: loads the chat template and lets requests in. A broken template is a warning, chat then answers 400. */
xd_status api_engine_ready(api *a, xd_err *err) XD_MUST_CHECK;
/* Without a server: would api_start() take its settings (keys, JSON), and api_engine_ready() find a chat template? XD_NOT_FOUND: the model has none;
 * XD_BAD_CONFIG: the configured one is of no use. model_dir and metadata as in engine_info. */
xd_status api_check_settings(const config *cfg, xd_err *err) XD_MUST_CHECK;
xd_status api_check_chat(const config *cfg, const char *model_dir, const char *metadata, xd_err *err) XD_MUST_CHECK;
void api_drain(api *a); /* new requests are answered 503; open streams go on */
/* Takes over keys and limits; cfg is borrowed for the call. On failure all is as before. */
xd_status api_reload(api *a, const config *cfg, xd_err *err) XD_MUST_CHECK;
void api_free(api *a); /* closes all connections */
XD_DEFINE_CLEANUP(api, api_free)

#endif
