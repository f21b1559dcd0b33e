/* demo.c - finds the small model that comes with the program, so that `expertd` alone has something to serve. */
#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "daemon/daemon_priv.h"

#ifndef XD_DATADIR
#define XD_DATADIR "/usr/share"
#endif

static bool is_model(const char *dir)
{
    char path[PATH_MAX + 64];
    int n = snprintf(path, sizeof path, "%s/config.json", dir);
    return n > 0 && (size_t)n < sizeof path && !access(path, R_OK);
}

xd_status demo_find(xd_buf *out, xd_err *err)
{
    /* Relative to the folder of the executable: build/daemon in a source tree, bin in a bundle or an installed prefix. */
    static const char *const beside[] = {"../../config/demo", "../share/expertd/demo", "share/expertd/demo"};
    char exe[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (n > 0) {
        exe[n] = 0;
        char *slash = strrchr(exe, '/');
        if (slash)
            *slash = 0;
        for (size_t i = 0; i < XD_ARRAY_LEN(beside); i++) {
            char path[PATH_MAX + 32], real[PATH_MAX];
            snprintf(path, sizeof path, "%s/%s", exe, beside[i]);
            if (is_model(path) && realpath(path, real))
                return xd_buf_puts(out, real) ? XD_OK : xd_fail(err, XD_NOMEM, 0, "demo model");
        }
    }
    if (is_model(XD_DATADIR "/expertd/demo"))
        return xd_buf_puts(out, XD_DATADIR "/expertd/demo") ? XD_OK : xd_fail(err, XD_NOMEM, 0, "demo model");
    return xd_fail_field(err, XD_BAD_CONFIG, "model.path", NULL,
                         "no model is set (-m PATH), and the demo model is neither beside the program nor in %s",
                         XD_DATADIR "/expertd/demo");
}
