/* map_file.c - see map_file.h. It does not look at what the file holds. */
#include "engine/model/map_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "config/util.h"

xd_status model_map_file(const char *path, mapped_file *ret, xd_err *err)
{
    XD_CLEANUP(xd_closep) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO would wait */
    if (fd < 0)
        return xd_fail(err, errno == ENOENT ? XD_NOT_FOUND : XD_IO, errno, "open '%s'", path);
    struct stat sb;
    if (fstat(fd, &sb))
        return xd_fail(err, XD_IO, errno, "stat '%s'", path);
    if (!S_ISREG(sb.st_mode) || sb.st_size == 0)
        return xd_fail(err, XD_BAD_MODEL, 0, "'%s' is empty or not a regular file", path);
    uint64_t bytes = (uint64_t)sb.st_size;
    void *base = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED)
        return xd_fail(err, XD_IO, errno, "map '%s' (%llu bytes)", path, (unsigned long long)bytes);
    if (bytes < 4096 && xd_is_lfs_pointer(base, bytes)) {
        munmap(base, bytes);
        return xd_fail(err, XD_BAD_MODEL, 0,
                       "'%s' is a Git LFS pointer, not the file itself: run 'git lfs pull' in its folder", path);
    }
    *ret = (mapped_file){base, bytes, sb.st_dev, sb.st_ino, sb.st_mtim.tv_sec * 1000000000ll + sb.st_mtim.tv_nsec};
    return XD_OK;
}
