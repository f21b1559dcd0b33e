/* disk_io.c - see disk_io.h.
 *
 * DESIGN. Requests stand in a fixed array and are cut into pieces of 1 MiB; whoever reads asks for the next piece (urgent requests
 * first, oldest first) and reports it. With io_uring one thread keeps up to DEPTH pieces in flight; otherwise THREADS threads read
 * one piece each. Prefetch has at most PREFETCH_PIECES in flight, so that a fault never waits behind much of it.
 *
 * Invariants: 1. `lock` protects all requests. 2. A request is finished when all its pieces are; the reader that finishes it checks
 * the sum outside of the lock - nobody else touches dst until the request is taken. 3. A failed or wrong read is tried once more
 * before it is reported. 4. Bytes that are wrong at the second try, too, are made anew where somebody can (remake), by the reader. */
#include "engine/memory/disk_io.h"

#include <errno.h>
#include <liburing.h>
#include <pthread.h>
#include <string.h>
#include <xxhash.h>

#define PIECE_BYTES     (1ull << 20)
#define DEPTH           64u
#define THREADS         8u
#define PREFETCH_PIECES 4u
#define TRIES           2

enum { REQ_FREE, REQ_PENDING, REQ_DONE };

typedef struct request {
    disk_request r;
    int state, tries;
    uint64_t issued, finished; /* bytes */
    uint64_t order;
} request;

typedef struct piece {
    request *q;
    uint64_t at, bytes;
} piece;

struct disk_io {
    disk_io_options opt;
    int fd;
    request *reqs;
    uint64_t next_order, rng;
    uint32_t n_pending, n_done, prefetch_in_flight, n_reading;
    uint64_t busy_ns, busy_since_ns; /* of the disk: time in which n_reading was not 0 */
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    bool stop, use_ring, ring_open;
    struct io_uring ring;
    pthread_t threads[THREADS];
    uint32_t n_threads;
};

static double chance(disk_io *d)
{
    d->rng = d->rng * 6364136223846793005u + 1442695040888963407u;
    return (double)(d->rng >> 11) / 9007199254740992.0;
}

/* --- pieces; called with the lock held --------------------------------------------------------------------------- */

static void reading_begins(disk_io *d)
{
    if (!d->n_reading++)
        d->busy_since_ns = xd_now_ns();
}

static void reading_ends(disk_io *d)
{
    if (!--d->n_reading)
        d->busy_ns += xd_now_ns() - d->busy_since_ns;
}

static bool next_piece(disk_io *d, piece *ret)
{
    request *best = NULL;
    if (d->stop)
        return false;
    for (uint32_t i = 0; i < d->opt.max_requests; i++) {
        request *q = &d->reqs[i];
        if (q->state != REQ_PENDING || q->issued == d->opt.blob_bytes ||
            (!q->r.urgent && d->prefetch_in_flight >= PREFETCH_PIECES))
            continue;
        if (!best || (q->r.urgent != best->r.urgent ? q->r.urgent : q->order < best->order))
            best = q;
    }
    if (!best)
        return false;
    *ret = (piece){best, best->issued, XD_MIN(PIECE_BYTES, d->opt.blob_bytes - best->issued)};
    best->issued += ret->bytes;
    d->prefetch_in_flight += !best->r.urgent;
    reading_begins(d);
    return true;
}

static void throttle(const disk_io *d, uint64_t bytes)
{
    uint64_t ns = (uint64_t)((double)bytes / d->opt.gbps);
    struct timespec ts = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
    while (nanosleep(&ts, &ts) && errno == EINTR)
        ;
}

static bool is_right(const disk_io *d, const request *q)
{
    return XXH3_64bits(q->r.dst, d->opt.blob_bytes) == page_file_checksum(d->opt.file, q->r.blob);
}

/* Without the lock: nobody else touches the request. */
static void remake(const disk_io *d, request *q)
{
    memset(q->r.dst, 0, d->opt.blob_bytes);
    if (!d->opt.remake(d->opt.user, q->r.blob, q->r.dst) || !is_right(d, q))
        return;
    q->r.remade = true;
    q->r.error = 0;
    q->r.not_rewritten = page_file_rewrite(d->opt.file, q->r.blob, q->r.dst);
}

/* The last piece of a request has arrived: checks it, without the lock. */
static void finish(disk_io *d, request *q)
{
    if (!q->r.error && chance(d) < d->opt.error_rate)
        q->r.error = EIO;
    if (!q->r.error && chance(d) < d->opt.loss_rate)
        ((uint8_t *)q->r.dst)[d->rng % d->opt.blob_bytes] ^= 0x40;
    if (d->opt.gbps > 0) {
        reading_begins(d); /* a slow disk is a busy one */
        pthread_mutex_unlock(&d->lock);
        throttle(d, d->opt.blob_bytes);
        pthread_mutex_lock(&d->lock);
        reading_ends(d);
    }
    pthread_mutex_unlock(&d->lock);
    int wrong = 0;
    if (!q->r.error && d->opt.checksums && !is_right(d, q))
        wrong = EBADMSG;
    pthread_mutex_lock(&d->lock);
    if (wrong)
        q->r.error = wrong;
    if (q->r.error) {
        q->r.met = q->r.error;
        *(wrong ? &q->r.n_wrong : &q->r.n_failed) += 1;
    }
    if (q->r.error && ++q->tries < TRIES && !d->stop) {
        q->r.error = 0;
        q->issued = q->finished = 0;
        pthread_cond_broadcast(&d->work);
        return;
    }
    if (q->r.error == EBADMSG && d->opt.remake && !d->stop) {
        pthread_mutex_unlock(&d->lock);
        remake(d, q);
        pthread_mutex_lock(&d->lock);
    }
    q->state = REQ_DONE;
    d->n_pending--;
    d->n_done++;
    pthread_cond_broadcast(&d->done);
}

static void piece_done(disk_io *d, const piece *p, bool was_prefetch, int error)
{
    d->prefetch_in_flight -= was_prefetch;
    reading_ends(d);
    p->q->finished += p->bytes;
    if (error)
        p->q->r.error = error;
    if (p->q->finished == d->opt.blob_bytes)
        finish(d, p->q);
}

/* --- io_uring ---------------------------------------------------------------------------------------------------- */

typedef struct slot {
    piece p;
    uint64_t got; /* bytes that earlier, short reads brought */
    bool prefetch, busy;
} slot;

static void submit_slot(disk_io *d, slot *s)
{
    struct io_uring_sqe *e = io_uring_get_sqe(&d->ring); /* never NULL: DEPTH entries, DEPTH slots */
    uint64_t at = s->p.at + s->got;
    io_uring_prep_read(e, d->fd, (char *)s->p.q->r.dst + at, (unsigned)(s->p.bytes - s->got),
                       page_file_offset(d->opt.file, s->p.q->r.blob) + at);
    io_uring_sqe_set_data(e, s);
}

static void *ring_main(void *arg)
{
    disk_io *d = arg;
    slot slots[DEPTH] = {0};
    uint32_t busy = 0;
    pthread_mutex_lock(&d->lock);
    for (;;) {
        for (uint32_t i = 0; i < DEPTH && busy < DEPTH; i++)
            if (!slots[i].busy && next_piece(d, &slots[i].p)) {
                slots[i].prefetch = !slots[i].p.q->r.urgent;
                slots[i].busy = true;
                slots[i].got = 0;
                busy++;
                submit_slot(d, &slots[i]);
            }
        if (!busy) {
            if (d->stop)
                break;
            pthread_cond_wait(&d->work, &d->lock);
            continue;
        }
        pthread_mutex_unlock(&d->lock);
        io_uring_submit_and_wait(&d->ring, 1);
        pthread_mutex_lock(&d->lock);
        struct io_uring_cqe *c;
        while (!io_uring_peek_cqe(&d->ring, &c)) {
            slot *s = io_uring_cqe_get_data(c);
            int res = c->res;
            io_uring_cqe_seen(&d->ring, c);
            if (res > 0 && (s->got += (uint64_t)res) < s->p.bytes) {
                submit_slot(d, s);
                continue;
            }
            if (res == -EINTR || res == -EAGAIN) {
                submit_slot(d, s);
                continue;
            }
            s->busy = false;
            busy--;
            piece_done(d, &s->p, s->prefetch, res > 0 ? 0 : res ? -res : EIO);
        }
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

/* --- threads ----------------------------------------------------------------------------------------------------- */

static int read_piece(const disk_io *d, const piece *p)
{
    for (uint64_t got = 0; got < p->bytes;) {
        ssize_t n = pread(d->fd, (char *)p->q->r.dst + p->at + got, p->bytes - got,
                          (off_t)(page_file_offset(d->opt.file, p->q->r.blob) + p->at + got));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n ? errno : EIO;
        got += (uint64_t)n;
    }
    return 0;
}

static void *thread_main(void *arg)
{
    disk_io *d = arg;
    pthread_mutex_lock(&d->lock);
    for (;;) {
        piece p;
        if (next_piece(d, &p)) {
            bool prefetch = !p.q->r.urgent;
            pthread_mutex_unlock(&d->lock);
            int error = read_piece(d, &p);
            pthread_mutex_lock(&d->lock);
            piece_done(d, &p, prefetch, error);
            pthread_cond_broadcast(&d->work); /* prefetch may go on */
            continue;
        }
        if (d->stop)
            break;
        pthread_cond_wait(&d->work, &d->lock);
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

/* --- the owner's side -------------------------------------------------------------------------------------------- */

xd_status disk_io_open(const disk_io_options *opt, disk_io **ret, xd_err *err)
{
    XD_CLEANUP(disk_io_freep) disk_io *d = calloc(1, sizeof *d);
    if (!d)
        return xd_fail(err, XD_NOMEM, 0, "disk reader");
    d->opt = *opt;
    d->fd = page_file_fd(opt->file);
    d->rng = opt->seed;
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->work, NULL);
    pthread_cond_init(&d->done, NULL);
    d->reqs = calloc(opt->max_requests, sizeof *d->reqs);
    if (!d->reqs)
        return xd_fail(err, XD_NOMEM, 0, "disk reader: %u requests", opt->max_requests);
    /* Containers often forbid io_uring (seccomp): threads do the same, only with more of them. */
    d->use_ring = d->ring_open = !opt->force_threads && !io_uring_queue_init(DEPTH, &d->ring, 0);
    uint32_t want = d->use_ring ? 1 : THREADS;
    while (d->n_threads < want) {
        int e = pthread_create(&d->threads[d->n_threads], NULL, d->use_ring ? ring_main : thread_main, d);
        if (e && !d->n_threads)
            return xd_fail(err, XD_NOMEM, e, "starting the disk reader");
        if (e)
            break;
        pthread_setname_np(d->threads[d->n_threads++], "xd-disk");
    }
    *ret = XD_TAKE(d);
    return XD_OK;
}

void disk_io_free(disk_io *d)
{
    if (!d)
        return;
    pthread_mutex_lock(&d->lock);
    d->stop = true;
    pthread_cond_broadcast(&d->work);
    pthread_mutex_unlock(&d->lock);
    while (d->n_threads)
        pthread_join(d->threads[--d->n_threads], NULL);
    if (d->ring_open)
        io_uring_queue_exit(&d->ring);
    pthread_mutex_destroy(&d->lock);
    pthread_cond_destroy(&d->work);
    pthread_cond_destroy(&d->done);
    free(d->reqs);
    free(d);
}

const char *disk_io_name(const disk_io *d)
{
    return d->use_ring ? "io_uring" : "threads";
}

uint64_t disk_io_busy_ns(disk_io *d)
{
    pthread_mutex_lock(&d->lock);
    uint64_t ns = d->busy_ns + (d->n_reading ? xd_now_ns() - d->busy_since_ns : 0);
    pthread_mutex_unlock(&d->lock);
    return ns;
}

bool disk_io_push(disk_io *d, uint32_t blob, void *dst, bool urgent)
{
    bool ok = false;
    pthread_mutex_lock(&d->lock);
    for (uint32_t i = 0; i < d->opt.max_requests && !ok; i++)
        if (d->reqs[i].state == REQ_FREE) {
            d->reqs[i] = (request){
                .r = {.blob = blob, .dst = dst, .urgent = urgent}, .state = REQ_PENDING, .order = d->next_order++};
            d->n_pending++;
            ok = true;
        }
    pthread_cond_broadcast(&d->work);
    pthread_mutex_unlock(&d->lock);
    return ok;
}

void disk_io_hurry(disk_io *d, uint32_t blob)
{
    pthread_mutex_lock(&d->lock);
    for (uint32_t i = 0; i < d->opt.max_requests; i++)
        if (d->reqs[i].state == REQ_PENDING && d->reqs[i].r.blob == blob)
            d->reqs[i].r.urgent = true;
    pthread_cond_broadcast(&d->work);
    pthread_mutex_unlock(&d->lock);
}

uint32_t disk_io_take(disk_io *d, disk_request *out, uint32_t cap)
{
    uint32_t n = 0;
    pthread_mutex_lock(&d->lock);
    for (uint32_t i = 0; d->n_done && i < d->opt.max_requests && n < cap; i++)
        if (d->reqs[i].state == REQ_DONE) {
            out[n++] = d->reqs[i].r;
            d->reqs[i].state = REQ_FREE;
            d->n_done--;
        }
    pthread_mutex_unlock(&d->lock);
    return n;
}

void disk_io_wait(disk_io *d)
{
    pthread_mutex_lock(&d->lock);
    while (!d->n_done && d->n_pending)
        pthread_cond_wait(&d->done, &d->lock);
    pthread_mutex_unlock(&d->lock);
}
