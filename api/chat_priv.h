/* chat_priv.h - what chat.c knows of templates, for chat_messages.c and chat_render.c. */
#ifndef API_CHAT_PRIV_H
#define API_CHAT_PRIV_H

#include "api/chat.h"
#include "api/jinja/jinja.h"

/* Many templates take lists of parts from users only. */
enum { ROLE_USER, ROLE_SYSTEM, ROLE_ASSISTANT, ROLE_TOOL, N_ROLES };
extern const char *const chat_role_names[N_ROLES];

typedef struct chat_template {
    char *name;
    jinja_template *t;
    bool text_fails;          /* string content does not reach the prompt, but a list of parts does */
    bool list_works[N_ROLES]; /* a list of text parts reaches the prompt as text */
    bool args_as_text;        /* tool call arguments must be JSON text */
    bool null_fails;          /* null content is an error or is printed as a word */
    bool developer;           /* knows the role */
    bool names_results;       /* a tool's result must have its function's name */
    bool describes_tools;     /* fails on a tool without a description */
    bool short_ids;           /* calls must have ids of nine letters and digits */
    toolcall_form calls;      /* how it shows calls of tools */
    answer_thoughts thoughts;
    bool channels; /* answer_has_channels() */
} chat_template;

enum { CHAT_MAX_TEMPLATES = 32 };
struct chat_set {
    chat_template templates[CHAT_MAX_TEMPLATES];
    size_t n;
    char origin[4200];
    json_t *specials; /* bos_token ... as strings */
};

static inline void jsonp(json_t **j)
{
    json_decref(*j);
}

static inline xd_status no_memory(xd_err *err)
{
    return xd_fail(err, XD_NOMEM, 0, "rendering the chat");
}

/* A copy of the messages as the template needs them: chat_messages.c. Owned. */
xd_status chat_prepare_messages(const chat_template *t, const json_t *messages, json_t **ret,
                                xd_err *err) XD_MUST_CHECK;

#endif
