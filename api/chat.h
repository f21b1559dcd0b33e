/* chat.h - from an OpenAI chat request to the prompt text that a model was trained on.
 *
 * A chat_set holds a model's compiled chat templates and its special token strings; it is immutable once opened, so any
 * thread may render from it. */
#ifndef API_CHAT_H
#define API_CHAT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "api/answer.h"
#include "config/error.h"
#include "config/util.h"

typedef struct chat_set chat_set;

/* Where templates come from, the first that exists wins: `configured`; `metadata`; then in model_dir chat_template.jinja (with
 * additional_chat_templates/NAME.jinja), chat_template.json, tokenizer_config.json (one string, or a list of named ones).
 * Special token strings: the fields here, else tokenizer_config.json, else special_tokens_map.json. Every pointer is borrowed
 * for the call and may be NULL. */
typedef struct chat_source {
    const char *model_dir; /* a Hugging Face directory */
    const char
        *configured; /* the configuration's chat_template: a template's text (it has "{{" or "{%") or a file's path */
    const char *metadata;                                      /* GGUF's tokenizer.chat_template */
    const char *bos_token, *eos_token, *unk_token, *pad_token; /* GGUF's */
} chat_source;

/* XD_NOT_FOUND: there is no template (the model can still complete plain text). XD_BAD_MODEL: one does not compile.
 * XD_BAD_CONFIG: the configured one cannot be read or does not compile. */
xd_status chat_set_open(const chat_source *src, chat_set **ret, xd_err *err) XD_MUST_CHECK;
void chat_set_free(chat_set *s); /* NULL is fine */
XD_DEFINE_CLEANUP(chat_set, chat_set_free)

const char *chat_set_origin(const chat_set *s);  /* where the templates came from, for the log */
toolcall_form chat_set_calls(const chat_set *s); /* how the template for requests with tools shows calls */
bool chat_set_has_channels(const chat_set *s);   /* messages with heads tell calls and thoughts */
/* True if a template mentions the variable ("tools", "enable_thinking", ...): without it the parameter has no effect. */
bool chat_set_uses(const chat_set *s, const char *name);
/* The first of these variables (NULL, or no object: none) that is not for chat_template_kwargs to say: messages, tools and the like. */
const char *chat_own_variable(const json_t *kwargs);

/* What stands behind the template's own end, where an answer is held to a form: an open thought is closed, and the mark that opens a call
 * is written, for the answer to begin with the JSON. */
typedef enum chat_tail { CHAT_TAIL_NONE, CHAT_TAIL_ANSWER, CHAT_TAIL_CALL } chat_tail;

/* The parts of a request body, already parsed JSON, borrowed. NULL or JSON null means absent. */
typedef struct chat_request {
    const json_t *messages;  /* array of {"role", "content", ...}; required */
    const json_t *tools;     /* array */
    const json_t *documents; /* array */
    const json_t
        *template_kwargs;        /* object: more variables for the template; those of chat_own_variable() are refused */
    bool add_generation_prompt;  /* the template opens the assistant's turn */
    bool continue_final_message; /* the prompt ends inside the last message; excludes add_generation_prompt */
    chat_tail tail;
    bool may_think; /* with a tail: not where the answer may begin with a thought, which ret->marks then says */
    time_t now;     /* the template's clock, 0: the real one */
} chat_request;

typedef struct chat_rendered {
    char *text; /* NUL-terminated UTF-8 */
    uint8_t
        *trusted; /* one byte per byte of text, for tok_encode_trusted(): 1 written by the template, 0 by the client */
    size_t len;
    bool tools_ignored, documents_ignored; /* they were given, but the chosen template does not mention them */
    bool too_much;      /* why it failed: this request took more steps, time or memory than a rendering may */
    answer_marks marks; /* what the chosen template shows of the answer's form */
} chat_rendered;

/* What becomes of a request's messages before the template sees them, so that one request works with every model:
 *  - content parts of type "text" are handed on as a list to templates that handle lists in messages of that role, else joined by newlines;
 *    string content is made a list for templates that handle only lists. Other part types are refused.
 *  - role "developer" becomes "system" where the template does not know it.
 *  - tool_calls' arguments, JSON text in OpenAI's form, are parsed; they stay text where the template fails on an object.
 *  - empty content beside tool_calls becomes null, as OpenAI's API gives it, where the template takes null: some leave the calls out
 *    for any text.
 *  - null content becomes "" where the template fails on null, or no calls stand beside it; other keys whose value is null are dropped, and so is an empty tool_calls.
 *  - what the model thought, under any of the names reasoning_content, thinking and reasoning, is found under all of them.
 *  - ids of calls become nine letters and digits where the template takes no others (Mistral's), the same ids the same ones.
 *  - a tool's result gets the name of its call's function where the template fails without one.
 *  - a tool without a description gets an empty one where the template fails on that.
 * What a template handles was found out by rendering small conversations when it was opened.
 *
 * Renders. Every fault of the request or of the template on this request is an XD_BAD_REQUEST that names the field (err->param,
 * like "messages[2].content[0].type"); what the template raises is quoted, code "template_raise". */
xd_status chat_render(const chat_set *s, const chat_request *req, chat_rendered *ret, xd_err *err) XD_MUST_CHECK;
void chat_rendered_free(chat_rendered *r); /* also resets to {0} */

#endif
