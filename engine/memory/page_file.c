/* page_file.c - making, resuming and checking the page file.
 *
 * Layout: header (4096 bytes) | checksums, 8 bytes a blob, padded to 4096 | blobs.
 * The header says how many blobs are complete. It is rewritten, as one block with a checksum of its own, only after the blobs and
 * their checksums have been synced: whenever the machine stops, what the header promises is there. A torn header begins anew.
 * A complete file's header also carries the hash of the table of checksums, so that with the length everything is covered.
 *
 * Who reads a file holds a shared lock on it (flock), who makes it an exclusive one: a second process, a benchmark beside the service
 * say, never writes what the first one reads. Where a file system knows no locks there are none. */
#include "engine/memory/page_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <xxhash.h>

#define PAGE_FILE_MAGIC   0x3145474150445458ull /* "XTDPAGE1" */
#define PAGE_FILE_VERSION 1u
#define BLOCK             4096ull
/* Written between two syncs: a crash loses at most so much work. */
#define SYNC_BYTES (256ull << 20)

typedef struct page_header {
    uint64_t magic, fingerprint, blob_bytes;
    uint32_t version, n_blobs, n_done, pad;
    uint64_t table_hash; /* of all checksums; valid when n_done == n_blobs */
    uint64_t hash;       /* XXH3 of the header before this field */
} page_header;
_Static_assert(sizeof(page_header) == 56, "file layout");

struct page_file {
    int fd;         /* for reading: past the page cache where the file system can */
    int writing_fd; /* holds the lock, too */
    uint32_t n_blobs;
    uint64_t blob_bytes, data_at;
    uint64_t *sums;
};

static uint64_t header_hash(const page_header *h)
{
    return XXH3_64bits(h, offsetof(page_header, hash));
}

static xd_status pwrite_all(int fd, const void *data, uint64_t n, uint64_t at, const char *path, xd_err *err)
{
    const char *p = data;
    while (n) {
        ssize_t k = pwrite(fd, p, n, (off_t)at);
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return xd_fail(err, XD_IO, k ? errno : ENOSPC, "writing the page file '%s'", path);
        p += k;
        at += (uint64_t)k;
        n -= (uint64_t)k;
    }
    return XD_OK;
}

static bool pread_all(int fd, void *data, uint64_t n, uint64_t at)
{
    char *p = data;
    while (n) {
        ssize_t k = pread(fd, p, n, (off_t)at);
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return false;
        p += k;
        at += (uint64_t)k;
        n -= (uint64_t)k;
    }
    return true;
}

static uint64_t table_bytes(const page_file *f)
{
    return xd_align_up(f->n_blobs * sizeof *f->sums, BLOCK);
}

static uint64_t file_bytes(const page_file *f)
{
    return f->data_at + f->n_blobs * f->blob_bytes;
}

/* Syncs what was written, then says so in the header. */
static xd_status commit(page_file *f, const page_file_options *opt, page_header *h, uint32_t n_done, xd_err *err)
{
    xd_status st = pwrite_all(f->fd, f->sums, f->n_blobs * sizeof *f->sums, BLOCK, opt->path, err);
    if (st)
        return st;
    if (fdatasync(f->fd))
        return xd_fail(err, XD_IO, errno, "syncing the page file '%s'", opt->path);
    h->n_done = n_done;
    h->table_hash = XXH3_64bits(f->sums, f->n_blobs * sizeof *f->sums);
    h->hash = header_hash(h);
    char block[BLOCK] = {0};
    memcpy(block, h, sizeof *h);
    if ((st = pwrite_all(f->fd, block, sizeof block, 0, opt->path, err)))
        return st;
    if (fdatasync(f->fd))
        return xd_fail(err, XD_IO, errno, "syncing the page file '%s'", opt->path);
    return XD_OK;
}

/* The disk's room is taken before a byte is written. A file of other pages, or of another length, goes first. */
static xd_status reserve(page_file *f, const page_file_options *opt, const page_header *h, xd_err *err)
{
    struct stat sb;
    struct statvfs v;
    if (h->n_done == 0 && ftruncate(f->fd, 0))
        return xd_fail(err, XD_IO, errno, "emptying the page file '%s'", opt->path);
    if (fstat(f->fd, &sb) || fstatvfs(f->fd, &v))
        return xd_fail(err, XD_IO, errno, "looking at the page file '%s'", opt->path);
    uint64_t need = file_bytes(f), there = (uint64_t)sb.st_blocks * 512, left = (uint64_t)v.f_bavail * v.f_frsize;
    int e = need > there && need - there > left ? ENOSPC : posix_fallocate(f->fd, 0, (off_t)need);
    if (e == ENOSPC || e == EFBIG || e == EDQUOT) {
        char a[32], b[32];
        if (h->n_done == 0) /* a part of it would only be in the way */
            (void)!ftruncate(f->fd, 0);
        return xd_fail(err, XD_IO, e, "the page file '%s' needs %s and its disk has %s left", opt->path,
                       xd_format_bytes(a, sizeof a, need > there ? need - there : need),
                       xd_format_bytes(b, sizeof b, left));
    }
    if (e && ftruncate(f->fd, (off_t)need)) /* a file system that cannot reserve */
        return xd_fail(err, XD_IO, errno, "growing the page file '%s'", opt->path);
    return XD_OK;
}

static xd_status make_blobs(page_file *f, const page_file_options *opt, page_header *h, xd_err *err)
{
    xd_status st = reserve(f, opt, h, err);
    if (st)
        return st;
    XD_CLEANUP(xd_freep) char *blob = aligned_alloc(BLOCK, f->blob_bytes);
    if (!blob)
        return xd_fail(err, XD_NOMEM, 0, "page file: a blob of %" PRIu64 " bytes", f->blob_bytes);
    uint64_t unsynced = 0;
    for (uint32_t x = h->n_done; x < f->n_blobs; x++) {
        if (opt->cancelled && opt->cancelled(opt->user))
            return xd_fail(err, XD_CANCELLED, 0, "making the page file '%s' was interrupted at blob %u of %u",
                           opt->path, x, f->n_blobs);
        memset(blob, 0, f->blob_bytes);
        opt->make(opt->user, x, blob);
        f->sums[x] = XXH3_64bits(blob, f->blob_bytes);
        st = pwrite_all(f->fd, blob, f->blob_bytes, page_file_offset(f, x), opt->path, err);
        unsynced += f->blob_bytes;
        if (!st && (unsynced >= SYNC_BYTES || x + 1 == f->n_blobs)) {
            st = commit(f, opt, h, x + 1, err);
            unsynced = 0;
            if (opt->progress)
                opt->progress(opt->progress_user, (double)(x + 1) / f->n_blobs);
        }
        if (st)
            return st;
    }
    return XD_OK;
}

/* What an existing file is good for: *h is left as it is when the file's work can be used, else reset. */
static xd_status inspect(page_file *f, const page_file_options *opt, page_header *h, xd_err *err)
{
    struct stat sb;
    if (fstat(f->fd, &sb) || !S_ISREG(sb.st_mode))
        return xd_fail(err, XD_BAD_CONFIG, 0, "memory.nvme_path '%s' is not a regular file", opt->path);
    page_header old = {0};
    const page_header fresh = {.magic = PAGE_FILE_MAGIC,
                               .fingerprint = opt->fingerprint,
                               .blob_bytes = opt->blob_bytes,
                               .version = PAGE_FILE_VERSION,
                               .n_blobs = opt->n_blobs};
    *h = fresh;
    if (sb.st_size == 0)
        return XD_OK;
    char block[BLOCK];
    bool read = (uint64_t)sb.st_size >= BLOCK && pread_all(f->fd, block, sizeof block, 0);
    if (read)
        memcpy(&old, block, sizeof old);
    /* All zero: allocated, and stopped before the first blob was synced. */
    bool blank = read && old.magic == 0 && old.hash == 0 && old.fingerprint == 0;
    if (!blank && old.magic != PAGE_FILE_MAGIC)
        return xd_fail(err, XD_BAD_CONFIG, 0, "memory.nvme_path '%s' holds something else: it is not overwritten",
                       opt->path);
    bool ours = old.hash == header_hash(&old) && old.version == fresh.version && old.fingerprint == fresh.fingerprint &&
                old.blob_bytes == fresh.blob_bytes && old.n_blobs == fresh.n_blobs && old.n_done <= old.n_blobs &&
                (uint64_t)sb.st_size == file_bytes(f) &&
                pread_all(f->fd, f->sums, f->n_blobs * sizeof *f->sums, BLOCK) &&
                /* Sums beyond n_done may have been written by the run that was interrupted. */
                (old.n_done < old.n_blobs || old.table_hash == XXH3_64bits(f->sums, f->n_blobs * sizeof *f->sums));
    if (ours)
        *h = old;
    else
        memset(f->sums, 0, f->n_blobs * sizeof *f->sums);
    return XD_OK;
}

static bool try_lock(int fd, int kind)
{
    return !flock(fd, kind | LOCK_NB) || errno != EWOULDBLOCK;
}

/* flock() lets go of the one kind of lock before it takes the other: whoever came between has changed the file, or keeps us out. */
static xd_status make_alone(page_file *f, const page_file_options *opt, page_header *h, xd_err *err)
{
    if (!try_lock(f->fd, LOCK_EX))
        return xd_fail(
            err, XD_BAD_CONFIG, 0,
            "memory.nvme_path '%s' is in use by another process and does not hold the pages of this model in "
            "pages of memory.page_size: name another file",
            opt->path);
    xd_status st = inspect(f, opt, h, err);
    if (!st && h->n_done < h->n_blobs)
        st = make_blobs(f, opt, h, err);
    if (!st && !try_lock(f->fd, LOCK_SH))
        st = xd_fail(err, XD_UNAVAILABLE, 0, "the page file '%s' was taken by another process", opt->path);
    return st;
}

static int open_direct(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
    XD_CLEANUP(xd_freep) char *probe = aligned_alloc(BLOCK, BLOCK);
    if (fd >= 0 && (!probe || pread(fd, probe, BLOCK, 0) != (ssize_t)BLOCK)) {
        close(fd);
        fd = -1;
    }
    return fd;
}

xd_status page_file_open(const page_file_options *opt, page_file **ret, xd_err *err)
{
    XD_CLEANUP(page_file_freep) page_file *f = calloc(1, sizeof *f);
    if (!f)
        return xd_fail(err, XD_NOMEM, 0, "page file");
    *f = (page_file){.fd = -1, .writing_fd = -1, .n_blobs = opt->n_blobs, .blob_bytes = opt->blob_bytes};
    f->data_at = BLOCK + table_bytes(f);
    f->sums = calloc(opt->n_blobs + 1u, sizeof *f->sums);
    if (!f->sums)
        return xd_fail(err, XD_NOMEM, 0, "page file: %u checksums", opt->n_blobs);
    f->fd = f->writing_fd = open(opt->path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (f->fd < 0) /* what another try would not mend is the configuration's fault */
        return xd_fail(err, errno == EIO || errno == ENOSPC || errno == ENOMEM ? XD_IO : XD_BAD_CONFIG, errno,
                       "opening the page file '%s' (memory.nvme_path)", opt->path);
    page_header h;
    if (!try_lock(f->fd, LOCK_SH))
        return xd_fail(err, XD_UNAVAILABLE, 0, "the page file '%s' is being made by another process", opt->path);
    xd_status st = inspect(f, opt, &h, err);
    if (!st && h.n_done < h.n_blobs)
        st = make_alone(f, opt, &h, err);
    if (st)
        return st;
    int direct = open_direct(opt->path);
    if (direct >= 0)
        f->fd = direct;
    *ret = XD_TAKE(f);
    return XD_OK;
}

void page_file_free(page_file *f)
{
    if (!f)
        return;
    if (f->fd != f->writing_fd)
        close(f->fd);
    if (f->writing_fd >= 0)
        close(f->writing_fd);
    free(f->sums);
    free(f);
}

int page_file_fd(const page_file *f)
{
    return f->fd;
}

uint64_t page_file_offset(const page_file *f, uint32_t x)
{
    return f->data_at + x * f->blob_bytes;
}

uint64_t page_file_checksum(const page_file *f, uint32_t x)
{
    return f->sums[x];
}

/* The file is complete: the same bytes go where they were, and neither header nor table changes. */
int page_file_rewrite(page_file *f, uint32_t x, const void *blob)
{
    xd_err err = {0};
    if (pwrite_all(f->writing_fd, blob, f->blob_bytes, page_file_offset(f, x), "", &err))
        return err.sys_errno;
    return fdatasync(f->writing_fd) ? errno : 0;
}
