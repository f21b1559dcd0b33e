/* answer_priv.h - the reader of an answer, shared by its files: answer.c (thoughts and content), answer_call.c (calls), answer_channels.c (messages with
 * heads). */
#ifndef API_ANSWER_PRIV_H
#define API_ANSWER_PRIV_H

#include "api/answer.h"
#include "api/json_scan.h"
#include "config/util.h"

enum { MAX_HELD_SPACE = TOOLCALL_MAX_SPACE };

typedef enum answer_state {
    START,
    THOUGHT,
    LEAD,
    CONTENT,
    CALL,
    ARGUMENTS,
    PARAMETERS,
    BEHIND,
    FAULT,
    HEAD,
    MESSAGE,
    INPUT
} answer_state;

struct answer_reader {
    answer_options o;
    answer_state state;
    xd_buf held;
    size_t at; /* held before this has been told */
    size_t body,
        scan; /* CALL: where its inside begins, and how far that was searched. PARAMETERS: how far the next one was, from at */
    const char *close;                /* CALL: its end; NULL: the end of the answer, or the next open mark */
    bool in_json, in_string, escaped; /* CALL: a close mark inside of a JSON string is none */
    bool said;          /* something of this state's text was told: white space before it no longer goes */
    bool called;        /* the last thing told was a call */
    bool told_whole;    /* CALL: only when it is complete does it tell what it is */
    bool no_parameter;  /* PARAMETERS: none was told yet */
    bool again;         /* CALL: not the first in its markup */
    bool sure;          /* with or_json: it is a call */
    toolcall_head head; /* of the call that is being told */
    json_scan json;     /* ARGUMENTS, or BEHIND what is left of their object */
    xd_buf out;         /* arguments on their way */
    size_t n_calls;
    uint64_t id_state;
    bool failed;
    answer_kind kind;    /* MESSAGE: what it is */
    bool spoke[2];       /* of content and thoughts: something was told in a message before */
    xd_buf function;     /* INPUT: the name */
    bool in_input;       /* its arguments are being told */
    uint32_t n_messages; /* whose heads were read */
};

typedef enum answer_match { NO, PERHAPS, YES } answer_match;

/* answer.c: telling */
void answer_tell(answer_reader *a, answer_kind kind, size_t from, size_t to); /* of held; nothing: not told */
/* given: the id that the model wrote, or NULL. Of several calls only the first is told where the client wants one. */
void answer_tell_call(answer_reader *a, const char *name, size_t len, const char *given, size_t given_len);
void answer_tell_arguments(answer_reader *a, const char *text, size_t len);

/* answer.c: looking at held */
size_t answer_after_space(const answer_reader *a, size_t from);
/* Does `mark` stand at this place? PERHAPS: all that is there of it. */
answer_match answer_match_at(const answer_reader *a, size_t at, const char *mark);
/* The first place at or after `from` where one of the marks stands or may come to stand; held.len: none. */
size_t answer_find(const answer_reader *a, size_t from, const char *const *marks, size_t n_marks, answer_match *ret,
                   size_t *ret_which);

/* The states, each in one function. end: no more text comes. False: nothing more can be said until there is more text. */
/* answer_call.c */
void answer_enter_call(answer_reader *a, size_t body, const char *close);
bool answer_step_call(answer_reader *a, bool end);
bool answer_step_arguments(answer_reader *a);
bool answer_step_parameters(answer_reader *a, bool end);
bool answer_step_behind(answer_reader *a, bool end);
bool answer_step_fault(answer_reader *a);
/* answer_channels.c */
bool answer_step_head(answer_reader *a, bool end);
bool answer_step_message(answer_reader *a, bool end);
bool answer_step_input(answer_reader *a, bool end);

#endif
