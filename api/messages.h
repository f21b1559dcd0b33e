/* messages.h - Anthropic's Messages API: a request in the words of chat, the answer in its own. */
#ifndef API_MESSAGES_H
#define API_MESSAGES_H

#include <jansson.h>

#include "config/error.h"

/* Makes of a parsed body that of the chat request which means the same: *ret is owned, and shares values with body. Every fault is one of
 * the request. max_tokens may be missing: only an answer needs it. */
xd_status messages_to_chat(const json_t *body, json_t **ret, xd_err *err) XD_MUST_CHECK;
/* Its part in messages_turns.c: sets the chat's messages, and whether its answer goes on with the last; system may be NULL. */
xd_status messages_read_turns(const json_t *system, const json_t *messages, json_t *chat, xd_err *err) XD_MUST_CHECK;
/* A fault of the chat request, in the names that the client has used. */
void messages_name_fault(const json_t *body, xd_err *err);

#endif
