/* chat.c - chat templates: finding them, preparing a request's messages, rendering. See chat.h. */
#include "api/chat.h"

void chat_rendered_free(chat_rendered *r)
{
    free(r->text);
    free(r->trusted);
    *r = (chat_rendered){0};
}
