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
    TOOLCALL_FUNCTION,  /* as TAG, for models that now and then forget the outer tag around <function=...> */
    TOOLCALL_MISTRAL,   /* [TOOL_CALLS][{...}] and [TOOL_CALLS]name[ARGS]{...} */
    TOOLCALL_DEEPSEEK,  /* <｜tool▁calls▁begin｜>... with or without a ```json fence */
    TOOLCALL_KIMI,      /* <|tool_calls_section_begin|>, in it functions.NAME:NUMBER and JSON */
    TOOLCALL_SOLAR,     /* <|tool_calls|>, in it an id, a name and JSON */
    TOOLCALL_SEED,      /* <seed:tool_call><function=... */
    TOOLCALL_MINIMAX,   /* <minimax:tool_call><invoke name=... */
    TOOLCALL_DSML,      /* DeepSeek V3.2: <｜DSML｜function_calls><｜DSML｜invoke name=... */
    TOOLCALL_DSML_V4,   /* the same in <｜DSML｜tool_calls> */
    TOOLCALL_HUNYUAN,   /* <tool_calls:opensource>, in it <tool_call:opensource> and <arg_key:opensource> */
    TOOLCALL_LIST,      /* <|tool_call|>[{...}] (Granite) */
    TOOLCALL_CALLS,     /* <tool_calls>[{...}] or one object a line (Hunyuan-A13B, MiniMax-M1, Jamba) */
    TOOLCALL_NEMOTRON,  /* <TOOLCALL>[{...}] */
    TOOLCALL_GIGACHAT,  /* <|function_call|>{...} */
    TOOLCALL_GIGACHAT3, /* function call<|role_sep|>{...}, a message of its own */
    TOOLCALL_GEMMA,     /* <|tool_call>call:NAME{key:<|"|>text<|"|>} */
    TOOLCALL_BARE,      /* an answer that is one JSON object, perhaps after <|python_tag|> (Llama 3) */
} toolcall_form;

typedef enum toolcall_tags { /* how arguments are written */
                             TOOLCALL_JSON,
                             TOOLCALL_PARAMETERS,   /* <parameter=KEY>VALUE</parameter>, up to </function> */
                             TOOLCALL_INVOKE,       /* <parameter name="KEY">VALUE</parameter>, up to </invoke> */
                             TOOLCALL_DSML_INVOKE,  /* the same with ｜DSML｜, and whether the value is a string */
                             TOOLCALL_HUNYUAN_KEYS, /* as below, with :opensource, up to </tool_call:opensource> */
                             TOOLCALL_ARG_KEYS /* <arg_key>KEY</arg_key><arg_value>VALUE</arg_value>, up to the call's close mark */
} toolcall_tags;

typedef struct toolcall_marks {
    const char *name; /* for the log */
    const char *open;
    const char *close; /* NULL: the call goes on to the end of the answer, or to the next open */
    const char *lead;  /* what a model writes before the JSON of one call; "": nothing that is sure */
    const char *const
        *specials; /* NULL-terminated: tokens that tokenizers may count as special; they must be shown all the same */
    toolcall_tags tags; /* of every call between the marks; JSON: or as the call itself shows */
} toolcall_marks;

/* By the marks that stand in a template's source: nothing is known about models by name. */
toolcall_form toolcall_form_of(const char *source, size_t len);
const toolcall_marks *toolcall_marks_of(toolcall_form form); /* static */

enum { TOOLCALL_MAX_SPACE = 256 }; /* where white space may stand: what is longer is text */

/* Can this, or what it goes on to, be the inside of a call? Told by its first characters, white space left out: text that only mentions a
 * mark need not wait for the end of a call that never comes. */
bool toolcall_may_begin(toolcall_form form, const char *text, size_t len);
/* The request's function of that name, or NULL. */
const json_t *toolcall_function(const json_t *tools, const char *name);
const json_t *toolcall_function_n(const json_t *tools, const char *name, size_t len);

/* Reads what stands between the marks. *ret is an owned array of {"name": text, "arguments": text of a JSON object} with one member
 * or more; "id" too, where the model's own must come back to it. `tools` are the request's, for the types of arguments that are not written as JSON.
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
} toolcall_found; /* MORE: it needs more text */
typedef struct toolcall_head {
    const json_t *function; /* of the request's tools */
    const char *id; /* the model's own, id_len bytes of the text, where its template wants that back; else NULL */
    size_t id_len;
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

/* Calls whose arguments are JSON and stand one after the other, each with marks of its own, which are tokens. */
typedef struct toolcall_section {
    const char *begin;
    const char *name; /* before it stands an id; NULL: none does */
    const char *args; /* between the name and the arguments */
    const char *end;
} toolcall_section;

/* NULL: calls of this form are written in another way. */
const toolcall_section *toolcall_section_of(toolcall_form form);
/* Kimi's functions.NAME:NUMBER holds the name. */
void toolcall_name_of_id(const char **name, size_t *len);

/* What stands around a call whose arguments are between tags. All "": the form's own marks do, and nothing between name and arguments. */
typedef struct toolcall_tag_marks {
    const char *begin, *name_end, *end;
} toolcall_tag_marks;

const toolcall_tag_marks *toolcall_tag_marks_of(toolcall_tags kind);
const char *toolcall_parameter_mark(toolcall_tags kind); /* how each argument begins */

/* What the bodies in other notations than JSON share with it: toolcall_xml.c. */
/* Appends {"name", "arguments"} to list; *ret_end: the bytes that were read. XD_BAD_REQUEST: it is no call; XD_NOMEM. */
xd_status toolcall_read_function(toolcall_tags kind, const char *text, size_t len, const json_t *tools, json_t *list,
                                 size_t *ret_end) XD_MUST_CHECK;
/* Appends one call likewise: its name, then <arg_key> and <arg_value>. XD_BAD_REQUEST: it is none; XD_NOMEM. */
xd_status toolcall_read_arg_keys(const char *text, size_t len, const json_t *tools, json_t *list) XD_MUST_CHECK;
/* The whole inside of a call of TOOLCALL_GEMMA: toolcall_gemma.c. XD_BAD_REQUEST: it is none; XD_NOMEM. */
xd_status toolcall_read_gemma(const char *text, size_t len, json_t *list) XD_MUST_CHECK;

#endif
