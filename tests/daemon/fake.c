/* fake.c - an engine and an API without a model, so that the daemon's own life can be tested in milliseconds. The name of the
 * synthetic model chooses the behaviour: fine, slow (is loaded when it has been looked at a dozen times), fail, hang (no heartbeat), busy (drains
 * to the deadline). */
#include <stdatomic.h>
#include <string.h>

#include "api/api.h"
#include "engine/engine.h"
#include "engine/text/tokenizer.h"

enum { LOOKS = 12 };

struct engine {
    const config *cfg;
    atomic_uint looks;
};

static bool is(const engine *e, const char *name)
{
    return !strcmp(e->cfg->model.path + strlen("synthetic:"), name);
}

xd_status engine_start(const config *cfg, engine **ret, xd_err *err)
{
    engine *e = calloc(1, sizeof *e);
    if (!e)
        return xd_fail(err, XD_NOMEM, 0, "fake");
    e->cfg = cfg;
    *ret = e;
    return XD_OK;
}

engine_phase engine_get_phase(const engine *ce, double *ret_fraction, char *ret_what, size_t what_cap)
{
    engine *e = (engine *)ce;
    double done = XD_MIN((double)atomic_fetch_add(&e->looks, 1) / LOOKS, 1.0);
    if (ret_fraction)
        *ret_fraction = done;
    if (ret_what)
        snprintf(ret_what, what_cap, "experts");
    if (is(e, "fail"))
        return ENGINE_FAILED;
    return is(e, "slow") && done < 1 ? ENGINE_LOADING : ENGINE_READY;
}

xd_status engine_wait_ready(engine *e, void (*progress)(void *, double, const char *), void *user, xd_err *err)
{
    (void)progress, (void)user;
    return is(e, "fail") ? xd_fail(err, XD_BAD_MODEL, 0, "tensor 'x' is cut off") : XD_OK;
}

void engine_drain(engine *e, uint64_t deadline_ns)
{
    struct timespec t = {(time_t)(deadline_ns / 1000000000u), (long)(deadline_ns % 1000000000u)};
    if (is(e, "busy"))
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
}

void engine_free(engine *e)
{
    free(e);
}

uint64_t engine_heartbeat(const engine *e)
{
    return is(e, "hang") ? 7 : xd_now_ns();
}

const engine_info *engine_get_info(const engine *e)
{
    static const engine_info info = {.model_id = "fake", .arch = "fake_moe", .backend = "none", .vocab = 100};
    (void)e;
    return &info;
}

const struct tokenizer *engine_get_tokenizer(const engine *e, const char **why)
{
    (void)e;
    *why = "fake";
    return NULL;
}

xd_status engine_submit(engine *e, const engine_request_options *opt, engine_request **ret, xd_err *err)
{
    (void)e, (void)opt, (void)ret;
    return xd_fail(err, XD_UNAVAILABLE, 0, "fake");
}

bool engine_request_next(engine_request *r, engine_event *ret)
{
    (void)r, (void)ret;
    return false;
}

bool engine_request_finished(const engine_request *r)
{
    (void)r;
    return true;
}

void engine_request_usage(const engine_request *r, engine_usage *ret)
{
    (void)r;
    *ret = (engine_usage){0};
}

void engine_request_free(engine_request *r)
{
    (void)r;
}

void engine_metrics(engine *e, xd_buf *out)
{
    (void)e, (void)out;
}

xd_status engine_status_json(engine *e, bool with_map, xd_buf *out, xd_err *err)
{
    (void)e, (void)with_map, (void)err;
    return xd_buf_puts(out, "{}") ? XD_OK : XD_NOMEM;
}

xd_status engine_force_fallback(engine *e, int force, xd_err *err)
{
    (void)e, (void)err;
    fprintf(stderr, "forced %d\n", force);
    return XD_OK;
}

double engine_get_link_gbps(engine *e)
{
    (void)e;
    return 0;
}

void engine_observe(engine *e, void (*note)(void *user, const engine_step_facts *facts), void *user)
{
    (void)e;
    (void)note;
    (void)user;
}

void engine_hold(engine *e, bool hold)
{
    (void)e;
    (void)hold;
}

void engine_reload(engine *e, const config *cfg)
{
    (void)e;
    fprintf(stderr, "engine reloaded, level %d\n", cfg->log.level);
}

struct api {
    int listen_fd;
};

xd_status api_start(const api_options *opt, api **ret, xd_err *err)
{
    api *a = calloc(1, sizeof *a);
    if (!a)
        return xd_fail(err, XD_NOMEM, 0, "fake");
    a->listen_fd = opt->listen_fd;
    fprintf(stderr, "listen_fd %d\n", opt->listen_fd);
    *ret = a;
    return XD_OK;
}

uint32_t api_port(const api *a)
{
    (void)a;
    return 4242;
}

xd_status api_engine_ready(api *a, xd_err *err)
{
    (void)a, (void)err;
    return XD_OK;
}

xd_status api_check_settings(const config *cfg, xd_err *err)
{
    (void)cfg, (void)err;
    return XD_OK;
}

xd_status api_check_chat(const config *cfg, const char *model_dir, const char *metadata, xd_err *err)
{
    (void)cfg, (void)model_dir, (void)metadata, (void)err;
    return XD_OK;
}

void api_drain(api *a)
{
    (void)a;
}

xd_status api_reload(api *a, const config *cfg, xd_err *err)
{
    (void)a, (void)cfg, (void)err;
    return XD_OK;
}

void api_free(api *a)
{
    free(a);
}
