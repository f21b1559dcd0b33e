/* toolcall.h - how models write tool calls: which form a chat template teaches, and what one piece of such markup says. */
#ifndef API_TOOLCALL_H
#define API_TOOLCALL_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "config/error.h"

typedef enum toolcall_form {
    TOOLCALL_NONE, /* calls cannot be told from text */
    TOOLCALL_TAG, /* <tool_call>...</tool_call> around JSON (Hermes, Qwen), <function=...> (Qwen3-Coder) or <arg_key> (GLM) */
    TOOLCALL_FUNCTION, /* as TAG, for models that now and then forget the outer tag around <function=...> */
    TOOLCALL_MISTRAL,  /* [TOOL_CALLS][{...}] and [TOOL_CALLS]name[ARGS]{...} */
    TOOLCALL_DEEPSEEK, /* <｜tool▁calls▁begin｜>... with or without a ```json fence */
    TOOLCALL_LIST,     /* <|tool_call|>[{...}] (Granite) */
    TOOLCALL_BARE,     /* an answer that is one JSON object, perhaps after <|python_tag|> (Llama 3) */
} toolcall_form;

typedef struct toolcall_marks {
    const char *name; /* for the log */
    const char *open;
    const char *close; /* NULL: the call goes on to the end of the answer, or to the next open */
    const char *lead;  /* what a model writes before the JSON of one call; "": nothing that is sure */
    const char *const
        *specials; /* NULL-terminated: tokens that tokenizers may count as special; they must be shown all the same */
} toolcall_marks;

/* By the marks that stand in a template's source: nothing is known about models by name. */
toolcall_form toolcall_form_of(const char *source, size_t len);
const toolcall_marks *toolcall_marks_of(toolcall_form form);

enum { TOOLCALL_MAX_SPACE = 256 }; /* where white space may stand: what is longer is text */

/* Can this, or what it goes on to, be the inside of a call? Told by its first characters, white space left out: text that only mentions a
 * mark need not wait for the end of a call that never comes. */
bool toolcall_may_begin(toolcall_form form, const char *text, size_t len);
/* The request's function of that name, or NULL. */
const json_t *toolcall_function(const json_t *tools, const char *name);

/* Reads what stands between the marks. *ret is an owned array of {"name": text, "arguments": text of a JSON object} with one member
 * or more. `tools` are the request's, for the types of arguments that are not written as JSON.
 * XD_BAD_REQUEST: it is no call; XD_NOMEM. */
xd_status toolcall_read(toolcall_form form, const char *text, size_t len, const json_t *tools,
                        json_t **ret) XD_MUST_CHECK;

/* Reads an answer that was held to {"name", "arguments"} with a name of the request's. Where the token limit came first, what there is of a
 * call counts once the name is whole, and "arguments" is the text of what there is of them, perhaps "". */
xd_status toolcall_read_held(const char *text, size_t len, const json_t *tools, json_t **ret) XD_MUST_CHECK;
/* Can an answer that begins like this be such a call, and not other JSON? *ret_sure: it is one as far as its arguments. */
bool toolcall_may_be_held(const char *text, size_t len, const json_t *tools, bool *ret_sure);

/* What the bodies in other notations than JSON share with it: toolcall_xml.c. */
/* Appends {"name", "arguments"} to list; *ret_end: the bytes that were read. */
xd_status toolcall_read_function(const char *text, size_t len, const json_t *tools, json_t *list,
                                 size_t *ret_end) XD_MUST_CHECK;
xd_status toolcall_read_arg_keys(const char *text, size_t len, const json_t *tools, json_t *list) XD_MUST_CHECK;

#endif
