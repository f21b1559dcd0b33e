/* util.h - what every room uses: cleanup macros, checked arithmetic, growable byte buffer, clock.
 * A leaf like error.h; no state. */
#ifndef XD_UTIL_H
#define XD_UTIL_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* XD_CLEANUP(f) T *p: f(&p) runs when p leaves its scope. XD_TAKE(p) yields p and leaves NULL behind. */
#define XD_CLEANUP(f) __attribute__((cleanup(f)))
#define XD_TAKE(p)                  \
    (__extension__({                \
        __auto_type xd_take_ = (p); \
        (p) = NULL;                 \
        xd_take_;                   \
    }))
#define XD_DEFINE_CLEANUP(T, f)    \
    static inline void f##p(T **p) \
    {                              \
        if (*p)                    \
            f(*p);                 \
    }
static inline void xd_freep(void *p)
{
    free(*(void **)p);
}
static inline void xd_closep(const int *fd)
{
    if (*fd >= 0)
        close(*fd);
}
static inline void xd_fclosep(FILE **f)
{
    if (*f)
        fclose(*f);
}

#define XD_ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))
/* Evaluate their arguments twice: no calls that may answer differently. */
#define XD_MIN(a, b) ((a) < (b) ? (a) : (b))
#define XD_MAX(a, b) ((a) > (b) ? (a) : (b))

/* The mixing of splitmix64 (Steele, Lea, Flood 2014): distinct for distinct z. A generator is xd_mix64(state += XD_MIX64_STEP). */
#define XD_MIX64_STEP 0x9e3779b97f4a7c15u
static inline uint64_t xd_mix64(uint64_t z)
{
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Checked arithmetic on sizes that come from outside: false on overflow, *ret then undefined. */
static inline bool xd_mul_size(size_t *ret, size_t a, size_t b)
{
    return !__builtin_mul_overflow(a, b, ret);
}
static inline bool xd_add_size(size_t *ret, size_t a, size_t b)
{
    return !__builtin_add_overflow(a, b, ret);
}
static inline bool xd_mul_u64(uint64_t *ret, uint64_t a, uint64_t b)
{
    return !__builtin_mul_overflow(a, b, ret);
}
static inline bool xd_add_u64(uint64_t *ret, uint64_t a, uint64_t b)
{
    return !__builtin_add_overflow(a, b, ret);
}
static inline uint64_t xd_align_up(uint64_t n, uint64_t pow2)
{
    return (n + pow2 - 1) & ~(pow2 - 1);
}

/* Monotonic time in nanoseconds: the only clock used for durations. */
static inline uint64_t xd_now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* A growable byte buffer. {0} is an empty one. After an allocation failed `failed` stays true, the content is kept as it
 * was, and further appends do nothing, so a caller may append many times and check once. `data` is NUL-terminated
 * (the NUL is not counted) whenever it is not NULL. */
typedef struct xd_buf {
    char *data;
    size_t len, cap;
    bool failed;
} xd_buf;

/* Each returns false where the buffer has failed, now or before. */
bool xd_buf_reserve(xd_buf *b, size_t extra_bytes);
bool xd_buf_append(xd_buf *b, const void *data, size_t len);
bool xd_buf_puts(xd_buf *b, const char *s);
bool xd_buf_putc(xd_buf *b, char c);
bool xd_buf_printf(xd_buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void xd_buf_clear(xd_buf *b); /* keeps the memory */
void xd_buf_free(xd_buf *b);  /* also resets to {0}; takes any state */
char *xd_buf_steal(xd_buf *b,
                   size_t *ret_len); /* returns owned NUL-terminated bytes ("" when empty); NULL when failed */

/* Length in bytes (1..4) of the well-formed UTF-8 sequence at s (Unicode table 3-7), 0 if it is ill-formed and
 * -1 if it is a proper prefix of one that the end cut off. len must be > 0. */
int xd_utf8_seq(const char *s, size_t len);
bool xd_utf8_valid(const char *s, size_t len); /* an empty text is */
/* Characters that begin in these bytes. */
size_t xd_utf8_count(const char *s, size_t len);
/* Appends s with every maximal ill-formed subpart replaced by U+FFFD (Unicode 3.9, table 3-8). */
bool xd_utf8_sanitize(xd_buf *out, const char *s, size_t len);
/* Bytes at the end of s that are an incomplete but so far well-formed sequence (0..3): hold them back when streaming. */
size_t xd_utf8_incomplete_tail(const char *s, size_t len);

/* Edits (insert, delete, replace, swap of neighbours) that turn a into b; names are short, so long ones are cut. */
size_t xd_edit_distance(const char *a, const char *b);

/* A condition variable whose timed waits go by xd_now_ns()'s clock, which nobody sets. */
void xd_cond_init(pthread_cond_t *c);

/* Whether a file that begins with `magic` may be written over what lies at `path`: nothing, an empty file, or one of the same kind. What
 * cannot be told (no right to read) may not. */
bool xd_is_own_file(const char *path, uint64_t magic);

/* Sizes for people: "24GiB", "512 MiB", "1.5GB", "4096". false when malformed or too large for 64 bits. */
bool xd_parse_bytes(const char *text, uint64_t *ret);
/* Writes e.g. "1.50 GiB" into out and returns out. */
char *xd_format_bytes(char *out, size_t cap, uint64_t bytes);
/* What Git leaves in place of a large file until `git lfs pull`. */
bool xd_is_lfs_pointer(const void *data, size_t n);

#endif
