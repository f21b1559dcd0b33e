/* responses.h - OpenAI's Responses API: a request in the words of chat, the answer in its own. */
#ifndef API_RESPONSES_H
#define API_RESPONSES_H

#include <jansson.h>
#include <stddef.h>

#include "config/error.h"

/* Makes of a parsed body that of the chat request which means the same: *ret is owned, and shares values with body. Every fault is one of
 * the request. */
xd_status responses_to_chat(const json_t *body, json_t **ret, xd_err *err) XD_MUST_CHECK;
/* A fault of the chat request, in the names that the client has used in body. */
void responses_name_fault(const json_t *body, xd_err *err);
/* The function of a namespace of the request's tools that the model knows by this name: both borrowed, NULL where it is of none. */
void responses_find_name(const json_t *tools, const char *flat, size_t len, const json_t **ret_namespace,
                         const json_t **ret_name);

#endif
