/* map_file.h - the one way in which a model file comes into memory. */
#ifndef ENGINE_MAP_FILE_H
#define ENGINE_MAP_FILE_H

#include <stdint.h>

#include "config/error.h"

/* A mapping, and what the file was when it was made: before a byte of it was read. */
typedef struct mapped_file {
    void *base; /* NULL: none */
    uint64_t bytes, device, inode;
    int64_t mtime_ns;
} mapped_file;

/* Maps a regular, non-empty file read-only and shared: the page cache is the only copy, and a device can register the mapping as
 * it is. The caller unmaps ret->base. XD_NOT_FOUND, XD_IO, or XD_BAD_MODEL for something that is no such file. */
xd_status model_map_file(const char *path, mapped_file *ret, xd_err *err) XD_MUST_CHECK;

#endif
