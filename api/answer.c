/* answer.c - telling thoughts, content and tool calls apart while a model writes. See answer.h.
 *
 *   START --open mark--> THOUGHT --close mark--> CONTENT --open mark--> CALL --it is one--> ARGUMENTS --> BEHIND --> CONTENT or CALL
 *     \--anything else--------------------------->/          \--told whole, or no call--> CONTENT
 *
 * Of a model that writes messages with heads (gpt-oss's channels) instead:
 *
 *   HEAD --its end--> MESSAGE or INPUT (of a call) --a mark--> HEAD
 *
 * Text waits in `held` until it is certain what it is: half of a mark, white space that may stand before one, the head of a call. Once
 * the head says which of the request's tools is called, arguments are told as they are written (toolcall_head.c says where that is
 * possible); other calls wait until they are whole, and what turns out to be none is told as content, so nothing is lost. No byte is looked at
 * more than a few times, whatever the model writes: calls remember how far they were scanned, and long white space is not held.
 *
 * Here: telling, looking, and what is no call. CALL and what follows it: answer_call.c. Messages with heads: answer_channels.c. The marks of
 * thoughts: answer_marks.c. What the markup between two marks means: toolcall.c. */
#include "api/answer_priv.h"

#include <stdio.h>
#include <string.h>

enum { ID_CHARS = 24, MISTRAL_ID_CHARS = 9, MAX_GIVEN_ID = 128, N_OPEN = 2 };

answer_reader *answer_new(const answer_options *opt)
{
    answer_reader *a = calloc(1, sizeof *a);
    if (!a)
        return NULL;
    a->o = *opt;
    a->id_state = opt->seed;
    if (opt->whole_call && !opt->marks.may_think)
        a->state = LEAD;
    else if (opt->marks.channels)
        a->state = HEAD;
    return a;
}

void answer_free(answer_reader *a)
{
    if (!a)
        return;
    xd_buf_free(&a->held);
    xd_buf_free(&a->out);
    xd_buf_free(&a->function);
    free(a);
}

/* ---- telling ---- */

void answer_tell(answer_reader *a, answer_kind kind, size_t from, size_t to)
{
    if (from >= to)
        return;
    const answer_piece p = {.kind = kind, .text = a->held.data + from, .len = to - from};
    a->said = true;
    a->called = false;
    a->o.tell(a->o.user, &p);
}

/* Mistral's templates refuse ids that have not exactly nine letters and digits; the others are OpenAI's in form. */
static void make_id(answer_reader *a, char *ret)
{
    static const char chars[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    bool mistral = a->o.marks.calls == TOOLCALL_MISTRAL;
    size_t n = 0;
    for (const char *c = mistral ? "" : "call_"; *c; c++)
        ret[n++] = *c;
    for (int i = 0; i < (mistral ? MISTRAL_ID_CHARS : ID_CHARS); i++)
        ret[n++] = chars[xd_mix64(a->id_state += XD_MIX64_STEP) % (sizeof chars - 1)];
    ret[n] = 0;
}

/* Of several calls only the first where the client wants one. */
static bool is_dropped(const answer_reader *a)
{
    return a->o.one_call && a->n_calls > 1;
}

void answer_tell_call(answer_reader *a, const char *name, size_t len, const char *given, size_t given_len)
{
    a->n_calls++;
    if (is_dropped(a))
        return;
    char id[MAX_GIVEN_ID + 1];
    if (given && given_len <= MAX_GIVEN_ID)
        snprintf(id, sizeof id, "%.*s", (int)given_len, given);
    else
        make_id(a, id);
    const answer_piece p = {.kind = ANSWER_CALL, .text = name, .len = len, .id = id, .call_idx = a->n_calls - 1};
    a->o.tell(a->o.user, &p);
}

void answer_tell_arguments(answer_reader *a, const char *text, size_t len)
{
    const answer_piece p = {.kind = ANSWER_ARGUMENTS, .text = text, .len = len, .call_idx = a->n_calls - 1};
    if (len && !is_dropped(a))
        a->o.tell(a->o.user, &p);
}

/* ---- looking ---- */

size_t answer_after_space(const answer_reader *a, size_t from)
{
    while (from < a->held.len && json_scan_is_space(a->held.data[from]))
        from++;
    return from;
}

/* Where the white space before `to` begins; not before `from`. */
static size_t before_space(const answer_reader *a, size_t from, size_t to)
{
    size_t least = to - from > MAX_HELD_SPACE ? to - MAX_HELD_SPACE : from;
    while (to > least && json_scan_is_space(a->held.data[to - 1]))
        to--;
    return to;
}

answer_match answer_match_at(const answer_reader *a, size_t at, const char *mark)
{
    size_t n = strlen(mark), have = a->held.len - at;
    if (memcmp(a->held.data + at, mark, XD_MIN(n, have)))
        return NO;
    return have < n ? PERHAPS : YES;
}

size_t answer_find(const answer_reader *a, size_t from, const char *const *marks, size_t n_marks, answer_match *ret,
                   size_t *ret_which)
{
    for (size_t i = from; i < a->held.len; i++)
        for (size_t k = 0; k < n_marks; k++)
            if (a->held.data[i] == marks[k][0] && (*ret = answer_match_at(a, i, marks[k])) != NO) {
                *ret_which = k;
                return i;
            }
    *ret = NO;
    return a->held.len;
}

/* ---- states: each does one thing; false: nothing more can be said until there is more text ---- */

static void enter(answer_reader *a, answer_state s)
{
    a->state = s;
    a->said = false;
}

/* What comes when the model has thought, or does not. */
static void enter_answer(answer_reader *a)
{
    bool leads = a->o.lead || (a->o.marks.thoughts.leads[0] && !a->o.keep_thoughts);
    enter(a, a->o.whole_call || leads ? LEAD : CONTENT);
}

static bool at_start(answer_reader *a, bool end)
{
    if (!a->o.marks.thoughts.open) {
        enter_answer(a);
        return true;
    }
    size_t w = answer_after_space(a, a->at);
    answer_match m = w - a->at > MAX_HELD_SPACE ? NO
                     : w < a->held.len          ? answer_match_at(a, w, a->o.marks.thoughts.open)
                                                : PERHAPS;
    if (m == PERHAPS && !end)
        return false;
    if (m == YES) { /* also where the prompt has opened one already: some models do it again */
        size_t to = w + strlen(a->o.marks.thoughts.open);
        if (a->o.keep_thoughts)
            answer_tell(a, ANSWER_CONTENT, a->at, to);
        a->at = to;
    }
    if (m == YES || a->o.marks.in_thought)
        enter(a, THOUGHT);
    else
        enter_answer(a);
    return true;
}

static bool in_thought(answer_reader *a, bool end)
{
    answer_match m;
    /* Kimi forgets the end of a thought before calls, and their mark is a token, which says nothing else. */
    const toolcall_form calls = a->o.whole_call ? TOOLCALL_NONE : a->o.marks.calls;
    const char *const marks[] = {a->o.marks.thoughts.close, toolcall_marks_of(calls)->open};
    size_t which = 0, from = a->said || a->o.keep_thoughts ? a->at : answer_after_space(a, a->at);
    size_t p = answer_find(a, from, marks, calls == TOOLCALL_KIMI ? 2 : 1, &m, &which);
    size_t behind = m == YES && which == 0 ? p + strlen(marks[0]) : p;
    if (m == PERHAPS && end)
        p = behind = a->held.len;
    size_t to = a->o.keep_thoughts ? behind : before_space(a, from, p);
    answer_tell(a, a->o.keep_thoughts ? ANSWER_CONTENT : ANSWER_THOUGHT, from, to);
    a->at = m == YES ? behind : to;
    if (m != YES)
        return false;
    enter_answer(a);
    a->said = a->o.keep_thoughts;
    a->called = !a->o.keep_thoughts; /* white space after a thought goes, as after a call */
    return true;
}

/* Before an answer where a model, or the form that it is held to, has words for its beginning. */
static bool at_lead(answer_reader *a, bool end)
{
    const char *const *own = a->o.marks.thoughts.leads;
    const char *const leads[] = {a->o.lead, own[0], own[1], own[2]};
    size_t w = answer_after_space(a, a->at), to = a->at;
    answer_match m = NO;
    for (size_t i = 0; i < XD_ARRAY_LEN(leads) && m == NO; i++) {
        if (!leads[i] || !*leads[i])
            continue;
        m = w < a->held.len ? answer_match_at(a, w, leads[i]) : PERHAPS;
        to = m == YES ? w + strlen(leads[i]) : to;
    }
    if (m == PERHAPS && !end)
        return false;
    a->at = m == PERHAPS ? a->held.len : to;
    if (a->o.whole_call)
        answer_enter_call(a, a->at, NULL);
    else
        a->state = CONTENT;
    return true;
}

/* The open marks of this form. */
static size_t open_marks(const answer_reader *a, const char *ret[static N_OPEN])
{
    size_t n = 0;
    if (a->o.marks.calls == TOOLCALL_NONE || a->o.or_json)
        return 0;
    ret[n++] = toolcall_marks_of(a->o.marks.calls)->open;
    if (a->o.marks.calls == TOOLCALL_FUNCTION)
        ret[n++] = "<function=";
    return n;
}

/* Behind a call: the close mark of an outer tag that was never opened. */
static answer_match stray_close(const answer_reader *a, size_t w)
{
    const char *close = toolcall_marks_of(a->o.marks.calls)->close;
    return a->n_calls && a->called && close ? answer_match_at(a, w, close) : NO;
}

/* At p stands what ends an answer. It is that where nothing follows but white space, or a call. */
static bool at_answer_end(answer_reader *a, size_t p, const char *const *opens, size_t n_opens, bool end)
{
    size_t behind = p + strlen(a->o.marks.thoughts.end), next = answer_after_space(a, behind);
    answer_match m = next == a->held.len ? PERHAPS : NO;
    for (size_t i = 0; i < n_opens && m == NO; i++)
        m = answer_match_at(a, next, opens[i]);
    if (next - behind > MAX_HELD_SPACE)
        m = NO;
    if (m == PERHAPS && !end)
        return false;
    if (m == NO)
        answer_tell(a, ANSWER_CONTENT, a->at, behind);
    a->called |= m != NO; /* white space behind it goes, as behind a call */
    a->at = behind;
    return true;
}

/* White space goes where a call follows, where the answer ends after a call, and between the first content and what was before it. */
static bool in_content(answer_reader *a, bool end)
{
    const char *marks[N_OPEN + 1], *answer_end = a->o.keep_thoughts ? NULL : a->o.marks.thoughts.end;
    size_t n_opens = open_marks(a, marks), n_marks = n_opens, which = 0, w = answer_after_space(a, a->at);
    if (answer_end)
        marks[n_marks++] = answer_end;
    bool first = a->called && !a->said;
    if (w - a->at > MAX_HELD_SPACE && !first) {
        bool called = a->called;
        answer_tell(a, ANSWER_CONTENT, a->at, w - MAX_HELD_SPACE);
        a->called = called;
        a->at = w - MAX_HELD_SPACE;
    }
    if (w == a->held.len) {
        if (!a->called && (end || !n_marks))
            answer_tell(a, ANSWER_CONTENT, a->at, w);
        else if (!first && !end)
            return false;
        a->at = w;
        return false;
    }
    answer_match m = stray_close(a, w);
    if (m == PERHAPS && !end)
        return false;
    if (m == PERHAPS) { /* what the end has left of it */
        a->at = a->held.len;
        return false;
    }
    if (m == YES) {
        a->at = w + strlen(toolcall_marks_of(a->o.marks.calls)->close);
        return true;
    }
    if (a->o.marks.calls == TOOLCALL_BARE && !a->said && !a->n_calls && a->held.data[w] == '{') {
        answer_enter_call(a, w, NULL);
        return true;
    }
    size_t p = answer_find(a, w, marks, n_marks, &m, &which);
    if (m == PERHAPS && end) {
        p = a->held.len;
        m = NO;
    }
    size_t to = n_marks && !(end && m == NO) ? before_space(a, w, p) : p;
    if (to > w) {
        answer_tell(a, ANSWER_CONTENT, first ? w : a->at, to);
        a->at = to;
    }
    if (m != YES)
        return false;
    if (which == n_opens)
        return at_answer_end(a, p, marks, n_opens, end);
    answer_enter_call(a, which ? p : p + strlen(marks[which]),
                      which ? "</function>" : toolcall_marks_of(a->o.marks.calls)->close);
    return true;
}

static bool go_on(answer_reader *a, bool end)
{
    switch (a->state) {
    case START: return at_start(a, end);
    case THOUGHT: return in_thought(a, end);
    case LEAD: return at_lead(a, end);
    case CONTENT: return in_content(a, end);
    case ARGUMENTS: return answer_step_arguments(a);
    case PARAMETERS: return answer_step_parameters(a, end);
    case BEHIND: return answer_step_behind(a, end);
    case FAULT: return answer_step_fault(a);
    case HEAD: return answer_step_head(a, end);
    case MESSAGE: return answer_step_message(a, end);
    case INPUT: return answer_step_input(a, end);
    default: return answer_step_call(a, end);
    }
}

static bool run(answer_reader *a, bool end)
{
    while (!a->failed && (a->at < a->held.len || a->state == CALL || a->state == LEAD) && go_on(a, end))
        ;
    /* What was told goes when it is half of what is held, so that each byte moves once or twice. */
    if (a->at * 2 > a->held.len && a->state != CALL) {
        memmove(a->held.data, a->held.data + a->at, a->held.len - a->at);
        a->held.len -= a->at;
        a->at = 0;
    }
    return !a->failed && !a->held.failed;
}

bool answer_feed(answer_reader *a, const char *text, size_t len)
{
    return xd_buf_append(&a->held, text, len) && run(a, false);
}

bool answer_end(answer_reader *a)
{
    return run(a, true);
}

bool answer_in_arguments(const answer_reader *a)
{
    bool in_input = a->state == INPUT && a->in_input && !json_scan_done(&a->json);
    return a->state == ARGUMENTS || a->state == PARAMETERS || in_input;
}

bool answer_in_thought(const answer_reader *a)
{
    bool in_message = a->state == MESSAGE && a->kind == ANSWER_THOUGHT;
    return a->state == THOUGHT || in_message || (a->state == START && a->o.marks.in_thought);
}
