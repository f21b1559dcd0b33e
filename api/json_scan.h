/* json_scan.h - one JSON object that comes in pieces: as much of it as is certain, and where it ends or stops being one. */
#ifndef API_JSON_SCAN_H
#define API_JSON_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config/util.h"

enum { JSON_SCAN_MAX_DEPTH = 256 };

/* What JSON allows between its parts. */
static inline bool json_scan_is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

typedef struct json_scan {
    uint8_t state; /* json_scan.c */
    bool is_key;   /* the string that is being read */
    uint8_t n_held, n_literal;
    char held[12]; /* of an escape that is not whole: a surrogate pair has 12 bytes */
    const char *literal;
    uint32_t depth;
    uint64_t in_array[JSON_SCAN_MAX_DEPTH / 64]; /* a bit a level */
} json_scan;

/* Makes s ready: before an object; within one (rest), behind the value of one of its members. */
void json_scan_begin(json_scan *s);
void json_scan_begin_rest(json_scan *s);
/* Takes bytes (whole characters) up to the object's end or its first fault; how many. What is certain of them goes to out (may be NULL): as
 * it is, but that control characters within strings, which models write for line ends, are escaped, and that half a surrogate pair
 * becomes \ufffd. An escape comes as one piece. */
size_t json_scan_feed(json_scan *s, const char *text, size_t len, xd_buf *out);
bool json_scan_done(const json_scan *s); /* the object has ended */
bool json_scan_bad(const json_scan *s);  /* what came next is no JSON */

#endif
