/* jinja.h - the part of Jinja2 (3.1) that chat templates use, with the environment that Hugging Face transformers sets up:
 * trim_blocks, lstrip_blocks, loopcontrols, raise_exception, strftime_now, tojson without HTML escaping, {% generation %},
 * sandboxed. Semantics are Python's (True, None, 1.0, repr of lists and dicts).
 *
 * A jinja_template is immutable after compilation; any thread may render it. */
#ifndef API_JINJA_H
#define API_JINJA_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "config/error.h"
#include "config/util.h"

typedef struct jinja_template jinja_template;

/* Compiles source[0..len). `name` (borrowed for the call) is used in messages. Syntax errors: XD_BAD_MODEL with the line. */
xd_status jinja_compile(const char *source, size_t len, const char *name, jinja_template **ret,
                        xd_err *err) XD_MUST_CHECK;
void jinja_free(jinja_template *t); /* NULL is fine */
XD_DEFINE_CLEANUP(jinja_template, jinja_free)

/* What a rendering took, also one that failed. */
typedef struct jinja_cost {
    uint64_t steps;      /* see max_steps */
    size_t memory_bytes; /* see max_memory_bytes */
} jinja_cost;

typedef struct jinja_options {
    size_t max_output_bytes; /* 0: 16 MiB */
    size_t max_memory_bytes; /* 0: 64 MiB: all values made while rendering */
    uint64_t max_time_ns;    /* 0: 0.8 s of this thread's CPU time */
    uint64_t max_steps;      /* 0: 40 million; a step is an evaluated node, or as much work on data (some 15 ns) */
    jinja_cost *ret_cost;    /* NULL: not wanted */
    time_t now;              /* clock of strftime_now, seconds since 1970 in local time; 0: the real one */
    /* Strings whose origin is the client (message contents and the like) can be tracked: when not NULL, *ret_trusted receives a
     * malloc'ed array, one byte for each output byte: 1 written by the template's own literals, 0 derived from `vars`
     * under one of `untrusted` keys (see below). Strings made from both keep the distinction byte by byte where they are
     * concatenated, sliced or stripped; any other operation on a client string yields client bytes. */
    uint8_t **ret_trusted;
    /* Top-level variables that the client controls ("messages", "tools", "documents", ...), NULL-terminated; NULL: all are. */
    const char *const *untrusted;
} jinja_options;

/* An integer beyond 64 bits in `vars` is a JSON string: NUL, then its digits, of which so many fit for certain (with a sign). */
#define JINJA_INT_DIGITS 38

/* Renders with the object `vars` (borrowed). Appends to out. A call of raise_exception() is XD_BAD_REQUEST with err->code
 * "template_raise" and exactly the template's message; other failures are XD_BAD_REQUEST with code "template_error" and the line;
 * limits are XD_TOO_LARGE or XD_TIMEOUT. opt may be NULL. */
xd_status jinja_render(const jinja_template *t, const json_t *vars, const jinja_options *opt, xd_buf *out,
                       xd_err *err) XD_MUST_CHECK;

/* True if the template's source mentions `name` as a variable at top level ("tools", "enable_thinking"): lets the API say
 * that a parameter has no effect. */
bool jinja_uses(const jinja_template *t, const char *name);

/* A number as Python writes it, in JSON too; returns the length. */
size_t jx_float_repr(char out[32], double f);

#endif
