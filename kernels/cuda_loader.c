/* cuda_loader.c - finds and opens the CUDA backend at run time.
 *
 * The backend is a shared module of its own, so that the daemon links and starts where no CUDA library and no GPU exist. It is looked
 * for beside the executable (../lib/expertd, ../lib/<triplet>/expertd by way of the compiled-in path, and the build tree), never
 * along LD_LIBRARY_PATH: a daemon must not load whatever lies there. */
#include "kernels/kernels.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MODULE "libexpertd_cuda.so"

typedef kern_status (*cuda_entry_fn)(const kern_options *opt, kern_dev **ret, char *why, size_t cap);

static void *open_at(const char *dir, const char *rest, char *why, size_t cap)
{
    char path[PATH_MAX];
    if ((size_t)snprintf(path, sizeof path, "%s%s/" MODULE, dir, rest) >= sizeof path)
        return NULL;
    if (access(path, F_OK) < 0)
        return NULL;
    void *so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!so)
        snprintf(why, cap, "%s", dlerror());
    return so;
}

kern_status kern_cuda_open(const kern_options *opt, kern_dev **ret, char *why, size_t cap)
{
    static const char *const beside[] = {"/../lib/expertd", "/../kernels/cuda", "/../../kernels/cuda", ""};
    void *so = NULL;
    snprintf(why, cap, "the CUDA module (" MODULE ") is not installed");
    char exe[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (n > 0) {
        exe[n] = 0;
        char *slash = strrchr(exe, '/');
        if (slash)
            *slash = 0;
        for (size_t i = 0; !so && i < sizeof beside / sizeof *beside; i++)
            so = open_at(exe, beside[i], why, cap);
    }
#ifdef XD_MODULE_DIR
    if (!so)
        so = open_at(XD_MODULE_DIR, "", why, cap);
#endif
    if (!so)
        return KERN_UNSUPPORTED;
    cuda_entry_fn entry = NULL;
    *(void **)&entry = dlsym(so, "kern_cuda_entry"); /* the form POSIX gives for functions */
    if (!entry) {
        snprintf(why, cap, MODULE " has no entry point: it belongs to another version");
        dlclose(so);
        return KERN_UNSUPPORTED;
    }
    /* On success the module stays for the life of the process: the device's functions are in it. */
    kern_status st = entry(opt, ret, why, cap);
    if (st != KERN_OK)
        dlclose(so);
    return st;
}
