/* responses.h - OpenAI's Responses API: a request in the words of chat, the answer in its own. */
#ifndef API_RESPONSES_H
#define API_RESPONSES_H

#include <jansson.h>

#include "api/answer.h"
#include "config/error.h"

/* Makes of a parsed body that of the chat request which means the same: *ret is owned, and shares values with body. Every fault is one of
 * the request. */
xd_status responses_to_chat(const json_t *body, json_t **ret, xd_err *err) XD_MUST_CHECK;
/* A fault of the chat request, in the names that the client has used. */
void responses_name_fault(xd_err *err);

#endif
