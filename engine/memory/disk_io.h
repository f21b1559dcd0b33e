/* disk_io.h - reads blobs of a page file in the background: urgent ones first, each checked against its checksum. io_uring where the
 * kernel allows it, else threads with pread. */
#ifndef ENGINE_DISK_IO_H
#define ENGINE_DISK_IO_H

#include "engine/memory/page_file.h"

typedef struct disk_io disk_io;

typedef struct disk_io_options {
    page_file *file;
    uint64_t blob_bytes;
    uint32_t max_requests;
    bool checksums;
    /* Makes blob x anew in out [blob_bytes], where the file gave wrong bytes twice; what then has the right checksum is delivered, and
     * written to the file. False: it cannot. Called by a reading thread. NULL: wrong bytes are an error. */
    bool (*remake)(void *user, uint32_t x, void *out);
    void *user;
    bool force_threads; /* as if io_uring were not permitted */
    /* Injected faults. */
    double gbps, error_rate, loss_rate; /* 0: none; a lost page is one whose bytes are wrong */
    uint32_t seed;
} disk_io_options;

typedef struct disk_request {
    uint32_t blob;
    void *dst; /* [blob_bytes], 4096-byte aligned */
    bool urgent;
    int error;                  /* out: 0, an errno, or EBADMSG for a wrong checksum */
    int met;                    /* out: the same of the last try that failed; 0: none did */
    uint32_t n_failed, n_wrong; /* out: tries that failed, and that gave wrong bytes */
    bool remade;                /* out: the bytes are not those that were read */
    int not_rewritten;          /* out: remade, and the file could not be mended: an errno */
} disk_request;

/* Starts the reading threads; opt->file is borrowed. XD_NOMEM. */
xd_status disk_io_open(const disk_io_options *opt, disk_io **ret, xd_err *err) XD_MUST_CHECK;
void disk_io_free(disk_io *d); /* waits for what runs */
XD_DEFINE_CLEANUP(disk_io, disk_io_free)
const char *disk_io_name(const disk_io *d); /* "io_uring" or "threads" */
/* Time in which at least one read was running, since the start; any thread. */
uint64_t disk_io_busy_ns(disk_io *d);

/* One thread owns the following four. */
bool disk_io_push(disk_io *d, uint32_t blob, void *dst,
                  bool urgent);                /* false: max_requests are pending or not taken yet */
void disk_io_hurry(disk_io *d, uint32_t blob); /* a pending request becomes urgent */
uint32_t disk_io_take(disk_io *d, disk_request *out, uint32_t cap); /* finished ones; does not wait */
void disk_io_wait(disk_io *d); /* until something is finished and not taken, or nothing is pending */

#endif
