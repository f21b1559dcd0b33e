/* responses_priv.h - what responses_request.c and responses_tools.c share. */
#ifndef API_RESPONSES_PRIV_H
#define API_RESPONSES_PRIV_H

#include "api/responses.h"
#include "api/translate.h"

/* Each sets its field of the chat body; NULL: the client has not said it. */
xd_status responses_read_tools(const json_t *tools, json_t *chat, xd_err *err) XD_MUST_CHECK;
xd_status responses_read_tool_choice(const json_t *choice, json_t *chat, xd_err *err) XD_MUST_CHECK;
/* The name of a function as the model knows it; owned, NULL: out of memory. namespace_ may be NULL. */
json_t *responses_flat_name(const json_t *namespace_, const json_t *name);
/* Where the chat's i-th tool stands in the client's list; false: nowhere. */
enum { TOOL_PLACE_CHARS = 64 };
bool responses_tool_place(const json_t *tools, size_t i, char ret[static TOOL_PLACE_CHARS]);

#endif
