/* translate.h - what making a chat request of another API's request needs, whichever API it is. */
#ifndef API_TRANSLATE_H
#define API_TRANSLATE_H

#include <stdbool.h>
#include <string.h>

#include "api/fields.h"
#include "config/util.h"

static inline bool is_absent(const json_t *v)
{
    return !v || json_is_null(v);
}

static inline bool is_text(const json_t *v, const char *text)
{
    return json_is_string(v) && !strcmp(json_string_value(v), text);
}

xd_status translate_no_memory(xd_err *err); /* XD_NOMEM, which it returns */
/* A member that must be a string; *ret borrows. */
xd_status translate_need_string(const json_t *holder, const char *where, const char *key, const json_t **ret,
                                xd_err *err) XD_MUST_CHECK;
/* What chat has under the same name: all that the API's own table has not. */
xd_status translate_rest(const json_t *body, const field *own, size_t n, json_t *chat, xd_err *err) XD_MUST_CHECK;

/* Appends a tool, which stands at `where` of the client's request, to the list of the chat request's. */
typedef xd_status (*translate_tool)(const json_t *tool, const char *where, json_t *list, xd_err *err);
/* "tools", which may be NULL. */
xd_status translate_tools(const json_t *tools, translate_tool read, json_t *chat, xd_err *err) XD_MUST_CHECK;

/* Appends what the chat's name at `text` is in the client's request; returns how much of text it was, 0: it is no other. */
typedef size_t (*translate_name)(const json_t *body, const char *text, xd_buf *out);
/* By a table of chat's names and the client's, longer names first. */
size_t translate_name_by(const char *const names[][2], size_t n, const char *text, xd_buf *out);
/* A fault of the chat request, in the names that the client has used in body. */
void translate_fault(translate_name rename, const json_t *body, xd_err *err);

#endif
