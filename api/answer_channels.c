/* answer_channels.c - answers of models that write messages with heads (gpt-oss): HEAD, MESSAGE, INPUT of answer.c. */
#include <string.h>

#include "api/answer_priv.h"

/* https://cookbook.openai.com/articles/openai-harmony */
#define CHANNEL   "<|channel|>"
#define BODY      "<|message|>"
#define FUNCTIONS "functions."
enum { MAX_HEAD = 512, N_BODY_ENDS = 5 };
const char *const answer_channel_marks[] = {BODY,        "<|end|>", "<|return|>",    "<|call|>",
                                            "<|start|>", CHANNEL,   "<|constrain|>", NULL};

#define FINAL CHANNEL "final" BODY
const answer_thoughts answer_channel_thought = {
    CHANNEL "analysis" BODY, "<|end|>", {"<|start|>assistant" FINAL, FINAL, NULL}, NULL, NULL};

bool answer_has_channels(const char *source, size_t len)
{
    return memmem(source, len, CHANNEL, strlen(CHANNEL)) && memmem(source, len, BODY, strlen(BODY));
}

/* What follows `mark` in the head, up to white space or another mark; NULL: it has none. */
static const char *word_behind(const char *head, size_t len, const char *mark, size_t *ret_len)
{
    const char *at = memmem(head, len, mark, strlen(mark));
    if (!at)
        return NULL;
    at += strlen(mark);
    size_t n = 0;
    while (at + n < head + len && !json_scan_is_space(at[n]) && at[n] != '<')
        n++;
    *ret_len = n;
    return at;
}

/* <|start|>assistant to=functions.NAME<|channel|>commentary <|constrain|>json, the first two words being the prompt's; the recipient
 * may also stand behind the channel. Messages for tools that the server has not are thoughts. */
static void read_head(answer_reader *a, const char *head, size_t len)
{
    size_t n = 0, n_to = 0;
    const char *channel = word_behind(head, len, CHANNEL, &n), *to = word_behind(head, len, "to=", &n_to);
    const size_t prefix = strlen(FUNCTIONS);
    a->state = MESSAGE;
    a->kind = (channel && n == 8 && !memcmp(channel, "analysis", n)) || to ? ANSWER_THOUGHT : ANSWER_CONTENT;
    a->said = false;
    a->n_messages++;
    if (!a->o.tools || !to || n_to <= prefix || memcmp(to, FUNCTIONS, prefix))
        return;
    xd_buf_clear(&a->function);
    a->failed |= !xd_buf_append(&a->function, to + prefix, n_to - prefix);
    a->state = INPUT;
    a->in_input = false;
}

/* A head has at most MAX_HEAD bytes: so much decides, however the text comes. */
bool answer_step_head(answer_reader *a, bool end)
{
    answer_match m;
    size_t which, p = answer_find(a, a->at, answer_channel_marks, 1, &m, &which), len = a->held.len - a->at;
    const char *head = a->held.data + a->at;
    if (m == YES && p - a->at <= MAX_HEAD) {
        a->at = p + strlen(BODY);
        read_head(a, head, (size_t)(a->held.data + p - head));
        return true;
    }
    if (!end && p - a->at <= MAX_HEAD)
        return false;
    /* None: marks are nothing that anybody should see, text is an answer; but not the end of a line behind a message. */
    len = XD_MIN(len, (size_t)MAX_HEAD);
    bool blank = a->n_messages && answer_after_space(a, a->at) == a->held.len;
    if (memmem(head, len, "<|", 2) || (blank && end))
        a->at += len;
    a->state = MESSAGE;
    a->kind = ANSWER_CONTENT;
    a->said = false;
    return true;
}

bool answer_step_message(answer_reader *a, bool end)
{
    answer_match m;
    size_t which = 0, p = answer_find(a, a->at, answer_channel_marks + 1, N_BODY_ENDS, &m, &which);
    if (m == PERHAPS && end)
        p = a->held.len;
    bool *spoke = &a->spoke[a->kind == ANSWER_THOUGHT];
    if (p > a->at && *spoke && !a->said) {
        const answer_piece line = {.kind = a->kind, .text = "\n", .len = 1};
        a->o.tell(a->o.user, &line);
    }
    *spoke |= p > a->at;
    answer_tell(a, a->kind, a->at, p);
    a->at = p;
    if (m != YES)
        return false;
    const char *mark = answer_channel_marks[1 + which];
    a->at += which < 3 ? strlen(mark) : 0; /* the others belong to the next head */
    a->state = HEAD;
    return true;
}

/* The arguments of a call. What is no object is no call, but what the model says. */
bool answer_step_input(answer_reader *a, bool end)
{
    answer_match m;
    size_t which = 0, p = answer_find(a, a->at, answer_channel_marks + 1, N_BODY_ENDS, &m, &which);
    if (!a->in_input) {
        size_t w = answer_after_space(a, a->at);
        if (w >= p && m != YES && !end)
            return false;
        if ((w < p && a->held.data[w] != '{') || w - a->at > MAX_HELD_SPACE) {
            a->state = MESSAGE;
            a->kind = ANSWER_CONTENT;
            return true;
        }
        if (w >= p && m != YES) { /* cut before it has begun */
            a->at = a->held.len;
            return false;
        }
        answer_tell_call(a, a->function.data, a->function.len, NULL, 0);
        a->in_input = true;
        json_scan_begin(&a->json);
        if (w >= p)
            answer_tell_arguments(a, "{}", 2);
        a->at = XD_MIN(w, p);
    }
    xd_buf_clear(&a->out);
    a->at += json_scan_feed(&a->json, a->held.data + a->at, p - a->at, &a->out);
    a->failed |= a->out.failed;
    answer_tell_arguments(a, a->out.data, a->out.len);
    if (json_scan_done(&a->json) || json_scan_bad(&a->json))
        a->at = m == PERHAPS && end ? a->held.len : p;
    if (m != YES)
        return false;
    a->at = p + (which < 3 ? strlen(answer_channel_marks[1 + which]) : 0);
    a->state = HEAD;
    return true;
}
