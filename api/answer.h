/* answer.h - a chat model's text, as it comes, told apart: what it thought, what it says, which tools it calls. */
#ifndef API_ANSWER_H
#define API_ANSWER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "api/toolcall.h"

/* How a model marks its thoughts; learned from its template or its tokens. */
typedef struct answer_thoughts {
    const char *open, *close; /* both static; NULL: it does not think, or nothing says so */
    /* What a model writes between a thought and its answer, where it has words for that: before an answer, before an answer without a thought (NULL:
     * the first may be left out, also where the answer is held to a form), before a call. */
    const char *leads[3];
    const char *end;   /* what stands behind an answer, or NULL */
    const char *token; /* that `open` begins with; NULL: it is one */
} answer_thoughts;

static inline const char *answer_thoughts_token(const answer_thoughts *t)
{
    return t->token ? t->token : t->open;
}

/* By a mark in a template's source. */
answer_thoughts answer_thoughts_of(const char *source, size_t len);
answer_thoughts answer_thoughts_row(size_t i); /* the i-th known pair; {NULL} behind the last */

/* What a prompt's template says of the answer to come. */
typedef struct answer_marks {
    answer_thoughts thoughts;
    bool in_thought; /* the prompt ends inside of one */
    bool may_think;  /* of an answer that is held to a form: a thought may come before it */
    bool channels;   /* messages of their own for thoughts, calls and the answer, told by their heads (gpt-oss) */
    toolcall_form calls;
} answer_marks;

/* A template that writes messages with heads. */
bool answer_has_channels(const char *source, size_t len);
/* Of an answer that is held to a form: how a message that is a thought begins and ends, and what begins the answer behind it, or at once. */
extern const answer_thoughts answer_channel_thought;
/* Tokens that tell the messages apart, and may be special: NULL-terminated. */
extern const char *const answer_channel_marks[];

typedef enum answer_kind { ANSWER_CONTENT, ANSWER_THOUGHT, ANSWER_CALL, ANSWER_ARGUMENTS } answer_kind;

typedef struct answer_piece {
    answer_kind kind;
    const char *
        text; /* len bytes of whole characters; of a call: its function's name. Arguments: some more of the last call's */
    size_t len;
    const char *id; /* of a call, else NULL */
    size_t call_idx;
} answer_piece;

typedef struct answer_options {
    answer_marks marks;
    bool keep_thoughts;  /* they stay in the content, marks and all */
    const json_t *tools; /* the request's; borrowed, must outlive the reader */
    bool one_call;       /* calls after the first are dropped */
    bool
        whole_call; /* the answer is the JSON of a call, without marks. Where it ends too early the call has part of its arguments, or is dropped
                      * if not even its name is whole */
    const char *
        lead; /* may_think only: what may stand behind a thought, or where one would, beside the thoughts' own; NULL: nothing */
    bool or_json;   /* whole_call only: so, or other JSON, which is content */
    bool hold_call; /* or_json only: the other JSON may begin as a call does, so only the end tells */
    uint64_t seed;  /* of the calls' ids */
    void (*tell)(void *user, const answer_piece *piece);
    void *user;
} answer_options;

typedef struct answer_reader answer_reader;

/* NULL: out of memory. opt is copied. */
answer_reader *answer_new(const answer_options *opt);
void answer_free(answer_reader *a); /* NULL is fine */

/* Each tells what became certain. The pieces of an answer are the same in sum however its text is cut into feeds: marks of thoughts
 * and of well-formed calls are in none of them, and neither is white space around these; everything else is told as it was written,
 * markup that is no call included. Arguments in sum are a JSON object, or the beginning of one where the answer ends in them or the model
 * went on with something that is no JSON; this is told nowhere, up to the call's end. false: out of memory. */
bool answer_feed(answer_reader *a, const char *text, size_t len) XD_MUST_CHECK;
bool answer_end(answer_reader *a) XD_MUST_CHECK;
bool answer_in_arguments(const answer_reader *a); /* so far, or at the end: those of the last call are not whole */
bool answer_in_thought(const answer_reader *a);   /* the next text belongs to one */

#endif
