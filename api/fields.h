/* fields.h - JSON bodies: parsing with limits, and reading an object's fields by a table with exact type checks. */
#ifndef API_FIELDS_H
#define API_FIELDS_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "api/notes.h"
#include "config/error.h"

#define FIELD_UNSET_INT INT64_MIN /* an integer field that the client left out; an unset real is NAN */

typedef enum field_kind {
    FIELD_BOOL,         /* bool */
    FIELD_INT,          /* int64_t within [min, max]; 40.0 is one, a number with a fraction is not */
    FIELD_REAL,         /* double within [min, max] */
    FIELD_STRING,       /* const char *, NUL-terminated UTF-8, borrowed from the JSON */
    FIELD_ARRAY,        /* const json_t *, borrowed */
    FIELD_OBJECT,       /* const json_t *, borrowed */
    FIELD_EXACT_ARRAY,  /* the same, for templates: integers beyond 64 bits in it are as jinja.h says */
    FIELD_EXACT_OBJECT, /* so too */
    FIELD_ANY,          /* const json_t *, borrowed: the caller checks */
    /* Known, not supported: 400 with `why`, unless the value switches it off, as many clients send it: null, false, "", [] */
    FIELD_REFUSED,
    FIELD_OFF,   /* ... or {}, or a number within [min, max] */
    FIELD_OTHER, /* ... or a number within [min, max], or what the field says whose name here is `why` */
} field_kind;

typedef struct field {
    const char *name;
    field_kind kind;
    unsigned where; /* the endpoints (bits) that have it */
    size_t offset;  /* of the destination; left alone when the field is absent or null */
    double min, max;
    const char *why;
} field;

/* Parses a request body: ill-formed UTF-8 is replaced by U+FFFD; objects with duplicate keys, more than 100 levels or 2 million values are
 * refused, and names with NUL characters. The top must be an object. All faults are XD_BAD_REQUEST. *ret is owned. Other NUL characters and numbers that no type holds become strings
 * that begin with NUL: fields_read() refuses the field in which one stands, so fields that have no effect may hold them. */
xd_status body_parse(const char *body, size_t len, json_t **ret, xd_err *err) XD_MUST_CHECK;
/* The same of a field whose text is JSON: faults name it, and what no type holds is one. err is not NULL. */
xd_status fields_parse_text(const char *name, const char *text, json_t **ret, xd_err *err) XD_MUST_CHECK;

/* Reads all fields of obj that the table has for `where` into dst. Unknown ones are ignored, with a note (NULL: none). */
xd_status fields_read(const json_t *obj, const field *table, size_t n, unsigned where, notes *said, void *dst,
                      xd_err *err) XD_MUST_CHECK;

/* Fails over a value that is not what it must be ("a string"); NULL: it is missing. */
xd_status fields_wrong_type(xd_err *err, const char *name, const char *want, const json_t *v);
/* "a string", "an integer", ... */
const char *json_kind_name(const json_t *v);

#endif
