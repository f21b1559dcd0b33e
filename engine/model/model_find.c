/* model_find.c - what a path given as the model stands for: a GGUF file, told by its first bytes and not by its name, or a directory; of
 * a directory, whether it is a Hugging Face checkpoint or only holds a GGUF file. Nothing is opened for good here. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config/util.h"
#include "engine/model/model_priv.h"

static bool ends_in_gguf(const char *name)
{
    size_t n = strlen(name);
    return n > 5 && !strcasecmp(name + n - 5, ".gguf");
}

/* Names mean nothing in caches of content (blobs/ of Hugging Face, Ollama). */
static bool begins_as_gguf(const char *path)
{
    char head[64];
    XD_CLEANUP(xd_closep) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    ssize_t n = fd < 0 ? 0 : read(fd, head, sizeof head);
    return n >= 4 && (!memcmp(head, "GGUF", 4) || xd_is_lfs_pointer(head, (size_t)n));
}

/* NAME-00002-of-00003.gguf belongs to another file. */
static bool is_later_part(const char *name)
{
    unsigned no, count;
    int end = 0;
    size_t n = strlen(name);
    const char *tail = name + n - strlen("-00002-of-00003.gguf");
    return tail > name && sscanf(tail, "-%5u-of-%5u.%n", &no, &count, &end) == 2 && end == 16 && no != 1;
}

static bool has_file(const char *dir, const char *name)
{
    char path[4400];
    struct stat sb;
    return snprintf(path, sizeof path, "%s/%s", dir, name) < (int)sizeof path && !stat(path, &sb);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static xd_status only_one(const char *dir, char **names, size_t n, char **ret_file, xd_err *err)
{
    XD_CLEANUP(xd_buf_free) xd_buf list = {0};
    if (n == 1) {
        if (asprintf(ret_file, "%s/%s", dir, names[0]) >= 0)
            return XD_OK;
        *ret_file = NULL; /* it may hold anything */
        return xd_fail(err, XD_NOMEM, 0, "a file of '%s'", dir);
    }
    qsort(names, n, sizeof *names, by_name);
    for (size_t i = 0; i < n && i < 8; i++)
        xd_buf_printf(&list, "%s%s", i ? ", " : "", names[i]);
    return xd_fail(err, XD_UNSUPPORTED, 0, "'%s' holds %zu GGUF files, name one of them: %s%s", dir, n,
                   list.data ? list.data : "", n > 8 ? ", ..." : "");
}

/* Repositories of GGUF files often have the original's config.json beside them: it is the weights that count. */
static xd_status find_in_dir(const char *dir, char **ret_file, xd_err *err)
{
    if (has_file(dir, "model.safetensors") || has_file(dir, "model.safetensors.index.json"))
        return XD_OK;
    DIR *d = opendir(dir);
    if (!d)
        return XD_OK; /* who opens it says why it cannot be */
    char **names = NULL;
    size_t n = 0;
    xd_status st = XD_OK;
    for (const struct dirent *e; !st && (e = readdir(d));) {
        /* A projector for images is no model. */
        if (!ends_in_gguf(e->d_name) || is_later_part(e->d_name) || !strncasecmp(e->d_name, "mmproj", 6))
            continue;
        char **grown = reallocarray(names, n + 1, sizeof *grown);
        names = grown ? grown : names;
        if (!grown || !(names[n] = strdup(e->d_name)))
            st = xd_fail(err, XD_NOMEM, 0, "files of '%s'", dir);
        else
            n++;
    }
    closedir(d);
    if (!st && n)
        st = only_one(dir, names, n, ret_file, err);
    while (n)
        free(names[--n]);
    free(names);
    return st;
}

xd_status model_find(const char *path, char **ret_file, xd_err *err)
{
    struct stat info;
    if (stat(path, &info)) {
        int e = errno;
        /* NAME, ORG/NAME or an address, as other servers take to download it. */
        const char *slash = strchr(path, '/');
        bool hub = e == ENOENT && (strstr(path, "://") || (!ends_in_gguf(path) && !strchr("./~", path[0]) &&
                                                           (!slash || !strchr(slash + 1, '/'))));
        return xd_fail(err, XD_NOT_FOUND, e, "model '%s'%s", path,
                       hub ? " (a path is needed, nothing is downloaded)" : "");
    }
    *ret_file = NULL;
    if (S_ISDIR(info.st_mode))
        return find_in_dir(path, ret_file, err);
    if (!S_ISREG(info.st_mode))
        return xd_fail(err, XD_UNSUPPORTED, 0, "model '%s' is neither a directory nor a regular file", path);
    /* By its name: what is wrong with its content is said by who reads it. */
    if (!ends_in_gguf(path) && !begins_as_gguf(path))
        return xd_fail(err, XD_UNSUPPORTED, 0,
                       "model '%s' is neither a directory nor a GGUF file; of a Hugging Face model, name the directory",
                       path);
    *ret_file = strdup(path);
    return *ret_file ? XD_OK : xd_fail(err, XD_NOMEM, 0, "handle for '%s'", path);
}
