/* toolcall.h - how models write tool calls: which form a chat template teaches, and what one piece of such markup says. */
#ifndef API_TOOLCALL_H
#define API_TOOLCALL_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "config/error.h"
#include "config/util.h"

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
const json_t *toolcall_function_n(const json_t *tools, const char *name, size_t len);

/* Reads what stands between the marks. *ret is an owned array of {"name": text, "arguments": text of a JSON object} with one member
 * or more. `tools` are the request's, for the types of arguments that are not written as JSON.
 * XD_BAD_REQUEST: it is no call; XD_NOMEM. */
xd_status toolcall_read(toolcall_form form, const char *text, size_t len, const json_t *tools,
                        json_t **ret) XD_MUST_CHECK;

/* Reads an answer that was held to {"name", "arguments"} with a name of the request's. Where the token limit came first, what there is of a
 * call counts once the name is whole, and "arguments" is the text of what there is of them, perhaps "". */
xd_status toolcall_read_held(const char *text, size_t len, const json_t *tools, json_t **ret) XD_MUST_CHECK;

/* --- calls that are still being written: toolcall_head.c --- */

typedef enum toolcall_found {
    TOOLCALL_NOT,
    TOOLCALL_MORE,
    TOOLCALL_FOUND
} toolcall_found;            /* MORE: it needs more text */
typedef enum toolcall_tags { /* how arguments are written */
                             TOOLCALL_JSON,
                             TOOLCALL_PARAMETERS, /* <parameter=KEY>VALUE</parameter>, up to </function> */
                             TOOLCALL_ARG_KEYS /* <arg_key>KEY</arg_key><arg_value>VALUE</arg_value>, up to the call's close mark */
} toolcall_tags;
typedef struct toolcall_head {
    const json_t *function; /* of the request's tools */
    toolcall_tags tags;
    size_t arguments; /* where they begin in the text: JSON at a brace, others at or before their first mark */
    bool in_object;   /* they are a member of an object, which goes on behind them */
    bool in_list;     /* and that is an item of a list */
} toolcall_head;

/* Does a call of one of the tools begin here whose arguments can be handed on as they are written? form TOOLCALL_NONE: of an answer that is
 * held to {"name", "arguments"}. before: of the call before it in the same markup; NULL: it is the first. */
toolcall_found toolcall_find_head(toolcall_form form, const char *text, size_t len, const json_t *tools,
                                  const toolcall_head *before, toolcall_head *ret);
/* Behind a call: does another one begin in the same markup? *ret_end: how much of the text belongs to the one before. */
toolcall_found toolcall_find_next(toolcall_form form, bool in_list, const char *text, size_t len, size_t *ret_end);

/* The next argument between tags: toolcall_xml.c. FOUND: it was appended to args as JSON, with what stands before it in an object; *ret_used bytes
 * of the text were it. *scanned is 0 at first, and remembers how far a value was searched for its end while there is MORE to come. NOT: there
 * is none here, or args has failed. */
toolcall_found toolcall_read_parameter(toolcall_tags kind, const json_t *function, const char *text, size_t len,
                                       bool first, size_t *scanned, xd_buf *args, size_t *ret_used);

#define TOOLCALL_DS(x)         "<\xEF\xBD\x9C" x "\xEF\xBD\x9C>" /* fullwidth bars */
#define TOOLCALL_DS_CALL_BEGIN TOOLCALL_DS("tool\u2581call\u2581begin")
#define TOOLCALL_DS_CALL_END   TOOLCALL_DS("tool\u2581call\u2581end")
#define TOOLCALL_DS_SEP        TOOLCALL_DS("tool\u2581sep")

/* What the bodies in other notations than JSON share with it: toolcall_xml.c. */
/* Appends {"name", "arguments"} to list; *ret_end: the bytes that were read. */
xd_status toolcall_read_function(const char *text, size_t len, const json_t *tools, json_t *list,
                                 size_t *ret_end) XD_MUST_CHECK;
xd_status toolcall_read_arg_keys(const char *text, size_t len, const json_t *tools, json_t *list) XD_MUST_CHECK;

#endif
