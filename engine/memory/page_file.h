/* page_file.h - the NVMe tier's file: every expert as one blob of pages, made once from the model, with a checksum for each. */
#ifndef ENGINE_PAGE_FILE_H
#define ENGINE_PAGE_FILE_H

#include <stdbool.h>
#include <stdint.h>

#include "config/error.h"
#include "config/util.h"

typedef struct page_file page_file;

typedef struct page_file_options {
    const char *path;
    uint64_t fingerprint; /* of the model and of how its experts are cut */
    uint32_t n_blobs;
    uint64_t blob_bytes; /* room for each; a multiple of 4096 */
    /* Writes blob x into out [blob_bytes], which is zeroed. */
    void (*make)(void *user, uint32_t x, void *out);
    void *user;
    void (*progress)(void *user, double fraction);
    void *progress_user;
    bool (*cancelled)(void *user); /* asked between blobs; NULL: never. For tests and shutdown */
} page_file_options;

/* Opens the file, or makes it, or goes on making it where an earlier run was interrupted. A file that is not a page file is never
 * overwritten (XD_BAD_CONFIG). XD_IO: the disk errs or is full (with the numbers). XD_UNAVAILABLE: another process is making it;
 * XD_BAD_CONFIG also: one reads it, and it would have to be made anew. */
xd_status page_file_open(const page_file_options *opt, page_file **ret, xd_err *err) XD_MUST_CHECK;
void page_file_free(page_file *f);
XD_DEFINE_CLEANUP(page_file, page_file_free)

/* Puts a damaged blob right: `blob` has the bytes that its checksum is of. 0, or an errno. Any thread. */
int page_file_rewrite(page_file *f, uint32_t x, const void *blob);

int page_file_fd(const page_file *f);                        /* O_DIRECT where the file system can */
uint64_t page_file_offset(const page_file *f, uint32_t x);   /* where blob x begins, in bytes */
uint64_t page_file_checksum(const page_file *f, uint32_t x); /* XXH3 of the whole blob */

#endif
