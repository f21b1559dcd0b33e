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
 * more than a few times, whatever the model writes: calls remember how far they were scanned, and long white space is not held. What the
 * markup between two marks means: toolcall.c. */
#include "api/answer.h"

#include <stdio.h>
#include <string.h>

#include "api/json_scan.h"
#include "config/util.h"

enum { MAX_HELD_SPACE = TOOLCALL_MAX_SPACE, ID_CHARS = 24, MISTRAL_ID_CHARS = 9, MAX_GIVEN_ID = 128, N_OPEN = 2 };

typedef enum state {
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
} state;

struct answer_reader {
    answer_options o;
    state state;
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

/* https://cookbook.openai.com/articles/openai-harmony */
#define CHANNEL   "<|channel|>"
#define BODY      "<|message|>"
#define FUNCTIONS "functions."
enum { MAX_HEAD = 512, N_BODY_ENDS = 5 };
const char *const answer_channel_marks[] = {BODY,        "<|end|>", "<|return|>",    "<|call|>",
                                            "<|start|>", CHANNEL,   "<|constrain|>", NULL};

#define FINAL CHANNEL "final" BODY
const answer_thoughts answer_channel_thought = {
    CHANNEL "analysis" BODY, "<|end|>", {"<|start|>assistant" FINAL, FINAL, NULL}, NULL};

bool answer_has_channels(const char *source, size_t len)
{
    return memmem(source, len, CHANNEL, strlen(CHANNEL)) && memmem(source, len, BODY, strlen(BODY));
}

static const struct {
    answer_thoughts t;
    const char *signs[2]; /* one of them in a template's source says so; NULL: the mark itself */
} rows[] = {
    /* Ernie 4.5, Granite 3.3 */
    {{"<think>", "</think>", {"<response>"}, "</response>"}, {"<response>\\n", "<response></response>"}},
    {{"<think>", "</think>", {NULL}, NULL}, {NULL}},
    {{"[THINK]", "[/THINK]", {NULL}, NULL}, {NULL}},
    {{"<seed:think>", "</seed:think>", {NULL}, NULL}, {NULL}},
    /* Hunyuan: the template puts the marks together */
    {{"<think:opensource>", "</think:opensource>", {NULL}, NULL}, {"<think{}>", NULL}},
    /* Solar Open */
    {{"<|think|>", "<|end|>", {"<|begin|>assistant<|content|>", "<|content|>", "<|begin|>assistant"}, NULL},
     {"<|begin|>assistant<|think|>", "<|begin|>assistant<|think|>"}},
    {{NULL, NULL, {NULL}, NULL}, {NULL}},
};

answer_thoughts answer_thoughts_row(size_t i)
{
    return rows[XD_MIN(i, XD_ARRAY_LEN(rows) - 1)].t;
}

static bool shows(const char *source, size_t len, const char *sign, const char *mark)
{
    sign = sign ? sign : mark;
    return memmem(source, len, sign, strlen(sign));
}

answer_thoughts answer_thoughts_of(const char *source, size_t len)
{
    size_t i = 0;
    while (rows[i].t.open && !shows(source, len, rows[i].signs[0], rows[i].t.open) &&
           !shows(source, len, rows[i].signs[1], rows[i].t.close))
        i++;
    return rows[i].t;
}

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

static void tell(answer_reader *a, answer_kind kind, size_t from, size_t to)
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

/* given: the model's own, or NULL. */
static void tell_call(answer_reader *a, const char *name, size_t len, const char *given, size_t given_len)
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

static void tell_arguments(answer_reader *a, const char *text, size_t len)
{
    const answer_piece p = {.kind = ANSWER_ARGUMENTS, .text = text, .len = len, .call_idx = a->n_calls - 1};
    if (len && !is_dropped(a))
        a->o.tell(a->o.user, &p);
}

/* What toolcall.c has read. */
static void tell_whole_call(answer_reader *a, const json_t *read)
{
    const json_t *name = json_object_get(read, "name"), *arguments = json_object_get(read, "arguments"),
                 *id = json_object_get(read, "id");
    tell_call(a, json_string_value(name), json_string_length(name), json_string_value(id), json_string_length(id));
    tell_arguments(a, json_string_value(arguments), json_string_length(arguments));
}

/* ---- looking ---- */

static size_t after_space(const answer_reader *a, size_t from)
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

typedef enum match { NO, PERHAPS, YES } match;

/* Does `mark` stand at this place? PERHAPS: all that is there of it. */
static match match_at(const answer_reader *a, size_t at, const char *mark)
{
    size_t n = strlen(mark), have = a->held.len - at;
    if (memcmp(a->held.data + at, mark, XD_MIN(n, have)))
        return NO;
    return have < n ? PERHAPS : YES;
}

/* The first place at or after `from` where one of the marks stands or may come to stand; held.len: none. */
static size_t find(const answer_reader *a, size_t from, const char *const *marks, size_t n_marks, match *ret,
                   size_t *ret_which)
{
    for (size_t i = from; i < a->held.len; i++)
        for (size_t k = 0; k < n_marks; k++)
            if (a->held.data[i] == marks[k][0] && (*ret = match_at(a, i, marks[k])) != NO) {
                *ret_which = k;
                return i;
            }
    *ret = NO;
    return a->held.len;
}

/* ---- states: each does one thing; false: nothing more can be said until there is more text ---- */

static void enter(answer_reader *a, state s)
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
    size_t w = after_space(a, a->at);
    match m = w - a->at > MAX_HELD_SPACE ? NO : w < a->held.len ? match_at(a, w, a->o.marks.thoughts.open) : PERHAPS;
    if (m == PERHAPS && !end)
        return false;
    if (m == YES) { /* also where the prompt has opened one already: some models do it again */
        size_t to = w + strlen(a->o.marks.thoughts.open);
        if (a->o.keep_thoughts)
            tell(a, ANSWER_CONTENT, a->at, to);
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
    match m;
    /* Kimi forgets the end of a thought before calls, and their mark is a token, which says nothing else. */
    const toolcall_form calls = a->o.whole_call ? TOOLCALL_NONE : a->o.marks.calls;
    const char *const marks[] = {a->o.marks.thoughts.close, toolcall_marks_of(calls)->open};
    size_t which = 0, from = a->said || a->o.keep_thoughts ? a->at : after_space(a, a->at);
    size_t p = find(a, from, marks, calls == TOOLCALL_KIMI ? 2 : 1, &m, &which);
    size_t behind = m == YES && which == 0 ? p + strlen(marks[0]) : p;
    if (m == PERHAPS && end)
        p = behind = a->held.len;
    size_t to = a->o.keep_thoughts ? behind : before_space(a, from, p);
    tell(a, a->o.keep_thoughts ? ANSWER_CONTENT : ANSWER_THOUGHT, from, to);
    a->at = m == YES ? behind : to;
    if (m != YES)
        return false;
    enter_answer(a);
    a->said = a->o.keep_thoughts;
    a->called = !a->o.keep_thoughts; /* white space after a thought goes, as after a call */
    return true;
}

static void enter_call(answer_reader *a, size_t body, const char *close)
{
    a->state = CALL;
    a->body = a->scan = body;
    a->close = close;
    a->in_json = a->in_string = a->escaped = a->told_whole = a->again = false;
}

/* Before an answer where a model, or the form that it is held to, has words for its beginning. */
static bool at_lead(answer_reader *a, bool end)
{
    const char *const *own = a->o.marks.thoughts.leads;
    const char *const leads[] = {a->o.lead, own[0], own[1], own[2]};
    size_t w = after_space(a, a->at), to = a->at;
    match m = NO;
    for (size_t i = 0; i < XD_ARRAY_LEN(leads) && m == NO; i++) {
        if (!leads[i] || !*leads[i])
            continue;
        m = w < a->held.len ? match_at(a, w, leads[i]) : PERHAPS;
        to = m == YES ? w + strlen(leads[i]) : to;
    }
    if (m == PERHAPS && !end)
        return false;
    a->at = m == PERHAPS ? a->held.len : to;
    if (a->o.whole_call)
        enter_call(a, a->at, NULL);
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
static match stray_close(const answer_reader *a, size_t w)
{
    const char *close = toolcall_marks_of(a->o.marks.calls)->close;
    return a->n_calls && a->called && close ? match_at(a, w, close) : NO;
}

/* At p stands what ends an answer. It is that where nothing follows but white space, or a call. */
static bool at_answer_end(answer_reader *a, size_t p, const char *const *opens, size_t n_opens, bool end)
{
    size_t behind = p + strlen(a->o.marks.thoughts.end), next = after_space(a, behind);
    match m = next == a->held.len ? PERHAPS : NO;
    for (size_t i = 0; i < n_opens && m == NO; i++)
        m = match_at(a, next, opens[i]);
    if (next - behind > MAX_HELD_SPACE)
        m = NO;
    if (m == PERHAPS && !end)
        return false;
    if (m == NO)
        tell(a, ANSWER_CONTENT, a->at, behind);
    a->called |= m != NO; /* white space behind it goes, as behind a call */
    a->at = behind;
    return true;
}

/* White space goes where a call follows, where the answer ends after a call, and between the first content and what was before it. */
static bool in_content(answer_reader *a, bool end)
{
    const char *marks[N_OPEN + 1], *answer_end = a->o.keep_thoughts ? NULL : a->o.marks.thoughts.end;
    size_t n_opens = open_marks(a, marks), n_marks = n_opens, which = 0, w = after_space(a, a->at);
    if (answer_end)
        marks[n_marks++] = answer_end;
    bool first = a->called && !a->said;
    if (w - a->at > MAX_HELD_SPACE && !first) {
        bool called = a->called;
        tell(a, ANSWER_CONTENT, a->at, w - MAX_HELD_SPACE);
        a->called = called;
        a->at = w - MAX_HELD_SPACE;
    }
    if (w == a->held.len) {
        if (!a->called && (end || !n_marks))
            tell(a, ANSWER_CONTENT, a->at, w);
        else if (!first && !end)
            return false;
        a->at = w;
        return false;
    }
    match m = stray_close(a, w);
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
        enter_call(a, w, NULL);
        return true;
    }
    size_t p = find(a, w, marks, n_marks, &m, &which);
    if (m == PERHAPS && end) {
        p = a->held.len;
        m = NO;
    }
    size_t to = n_marks && !(end && m == NO) ? before_space(a, w, p) : p;
    if (to > w) {
        tell(a, ANSWER_CONTENT, first ? w : a->at, to);
        a->at = to;
    }
    if (m != YES)
        return false;
    if (which == n_opens)
        return at_answer_end(a, p, marks, n_opens, end);
    enter_call(a, which ? p : p + strlen(marks[which]),
               which ? "</function>" : toolcall_marks_of(a->o.marks.calls)->close);
    return true;
}

/* The end of the call's inside: held.len while it is not there. */
static size_t find_close(answer_reader *a, match *ret)
{
    const char *open = toolcall_marks_of(a->o.marks.calls)->open;
    bool until_next = a->o.marks.calls != TOOLCALL_BARE;
    const char *mark = a->close ? a->close : until_next && !a->o.whole_call ? open : NULL;
    bool tagged = a->o.marks.calls == TOOLCALL_TAG || a->o.marks.calls == TOOLCALL_FUNCTION ||
                  toolcall_marks_of(a->o.marks.calls)->tags;
    *ret = NO;
    for (; mark && a->scan < a->held.len; a->scan++) {
        char c = a->held.data[a->scan];
        if (a->in_string) {
            a->in_string = a->escaped || c != '"';
            a->escaped = !a->escaped && c == '\\';
        } else if (c == mark[0] && (*ret = match_at(a, a->scan, mark)) != NO) {
            return a->scan;
        } else if (c == '"') {
            a->in_string = a->in_json;
        } else if (c == '{') {
            /* Between tags quotes are text like any other. */
            a->in_json = a->in_json || !tagged || after_space(a, a->body) == a->scan;
        }
    }
    return a->held.len;
}

/* The marks of an outer tag were forgotten: the names must be the request's, or it is text that explains how calls look. */
static bool all_known(const answer_reader *a, const json_t *list)
{
    size_t i;
    const json_t *call;
    json_array_foreach ((json_t *)(uintptr_t)list, i, call)
        if (!toolcall_function(a->o.tools, json_string_value(json_object_get(call, "name"))))
            return false;
    return true;
}

/* Whatever the state was: this is no call. */
static void tell_no_call(answer_reader *a, size_t to)
{
    tell(a, ANSWER_CONTENT, a->called && !a->said ? after_space(a, a->at) : a->at, to);
    a->at = to;
    a->said = true; /* also where nothing was: a brace that opened no call does not open it again */
    a->state = CONTENT;
}

/* The head is known: the rest is told as it comes. */
static void begin_arguments(answer_reader *a, const toolcall_head *head)
{
    const json_t *name = json_object_get(head->function, "name");
    a->head = *head;
    a->at = a->body + head->arguments;
    a->state = head->tags == TOOLCALL_JSON ? ARGUMENTS : PARAMETERS;
    a->scan = 0;
    a->no_parameter = true;
    json_scan_begin(&a->json);
    tell_call(a, json_string_value(name), json_string_length(name), head->id, head->id_len);
    a->called = true;
}

/* Is this a call whose arguments can be told as they come? MORE: that shows later. */
static toolcall_found look_for_head(answer_reader *a, bool end, toolcall_head *ret)
{
    if (a->told_whole)
        return TOOLCALL_NOT;
    toolcall_form form = a->o.whole_call ? TOOLCALL_NONE : a->o.marks.calls;
    const char *text = a->held.data ? a->held.data + a->body : "";
    toolcall_found found =
        toolcall_find_head(form, text, a->held.len - a->body, a->o.tools, a->again ? &a->head : NULL, ret);
    if (found == TOOLCALL_MORE && end)
        found = TOOLCALL_NOT;
    a->told_whole = found == TOOLCALL_NOT;
    return found;
}

/* Reads the inside of a call that is complete. An item of a list whose first items were told is a list again. */
static xd_status read_whole(answer_reader *a, size_t len, json_t **ret)
{
    const char *text = a->held.data ? a->held.data + a->body : "";
    if (a->o.whole_call)
        return toolcall_read_held(text, len, a->o.tools, ret);
    if (!a->again || !a->head.in_list)
        return toolcall_read(a->o.marks.calls, text, len, a->o.tools, ret);
    XD_CLEANUP(xd_buf_free) xd_buf list = {0};
    if (!xd_buf_putc(&list, '[') || !xd_buf_append(&list, text, len))
        return XD_NOMEM;
    return toolcall_read(a->o.marks.calls, list.data, list.len, a->o.tools, ret);
}

static bool in_call(answer_reader *a, bool end)
{
    match m;
    size_t w = a->o.whole_call ? a->held.len : after_space(a, a->body);
    if (!a->o.whole_call && !a->again &&
        (w - a->body > MAX_HELD_SPACE || !toolcall_may_begin(a->o.marks.calls, a->held.data + w, a->held.len - w))) {
        tell_no_call(a, a->body);
        return true;
    }
    toolcall_head head;
    toolcall_found found = a->sure ? TOOLCALL_NOT : look_for_head(a, end, &head);
    if (found == TOOLCALL_MORE)
        return false;
    a->sure |= a->o.hold_call && found == TOOLCALL_FOUND;
    if (found == TOOLCALL_FOUND && !a->sure) {
        begin_arguments(a, &head);
        return true;
    }
    if (a->o.or_json && !a->sure) {
        tell_no_call(a, a->held.len);
        return true;
    }
    size_t p = find_close(a, &m);
    if (m != YES && !end)
        return false;
    /* What the end has left of a close mark is no part of the call. */
    size_t behind = m != YES ? a->held.len : a->close ? p + strlen(a->close) : p;
    bool function = a->close && !strcmp(a->close, "</function>");
    json_t *list = NULL;
    xd_status st = read_whole(a, (function ? behind : p) - a->body, &list);
    a->failed |= st == XD_NOMEM;
    if (!st && (!function || all_known(a, list))) {
        for (size_t i = 0; i < json_array_size(list); i++)
            tell_whole_call(a, json_array_get(list, i));
        a->called = true;
        a->at = behind;
        a->state = CONTENT;
    } else if (a->o.whole_call && !a->o.or_json) { /* cut before its name was whole: of no use to anybody */
        a->at = behind;
        a->state = CONTENT;
    } else {
        tell_no_call(a, behind);
    }
    json_decref(list);
    return true;
}

static bool in_arguments(answer_reader *a)
{
    xd_buf_clear(&a->out);
    a->at += json_scan_feed(&a->json, a->held.data + a->at, a->held.len - a->at, &a->out);
    a->failed |= a->out.failed;
    tell_arguments(a, a->out.data, a->out.len);
    if (json_scan_bad(&a->json) || (json_scan_done(&a->json) && a->o.whole_call)) {
        a->state = FAULT; /* or all that there was to tell */
        return true;
    }
    if (!json_scan_done(&a->json))
        return false;
    a->state = BEHIND;
    if (a->head.in_object)
        json_scan_begin_rest(&a->json);
    return true;
}

/* Arguments between tags, one at a time. */
static bool in_parameters(answer_reader *a, bool end)
{
    const char *text = a->held.data + a->at;
    size_t len = a->held.len - a->at, used = 0;
    xd_buf_clear(&a->out);
    toolcall_found found =
        toolcall_read_parameter(a->head.tags, a->head.function, text, len, a->no_parameter, &a->scan, &a->out, &used);
    a->failed |= a->out.failed;
    if (found == TOOLCALL_FOUND) {
        tell_arguments(a, a->out.data, a->out.len);
        a->no_parameter = false;
        a->scan = 0;
        a->at += used;
        return true;
    }
    if (found == TOOLCALL_NOT) {
        const toolcall_marks *form = toolcall_marks_of(a->o.marks.calls);
        const char *own = toolcall_tag_marks_of(a->head.tags)->end, *mark = *own ? own : form->close;
        size_t w = after_space(a, a->at);
        match m = match_at(a, w, mark);
        if (m == YES) {
            tell_arguments(a, a->no_parameter ? "{}" : "}", a->no_parameter ? 2 : 1);
            a->at = w + strlen(own);
            a->state = form->tags ? BEHIND : CONTENT;
            return true;
        }
        if (m == NO) {
            a->state = FAULT;
            return true;
        }
    }
    if (end)
        a->at = a->held.len; /* half an argument is none */
    return false;
}

/* What is left of a call's markup; then its end, or the next one in the same markup. */
static bool behind_arguments(answer_reader *a, bool end)
{
    if (a->head.in_object && !json_scan_done(&a->json) && !json_scan_bad(&a->json)) {
        a->at += json_scan_feed(&a->json, a->held.data + a->at, a->held.len - a->at, NULL);
        if (!json_scan_done(&a->json) && !json_scan_bad(&a->json))
            return false;
    }
    size_t n = 0;
    toolcall_found found =
        toolcall_find_next(a->o.marks.calls, a->head.in_list, a->held.data + a->at, a->held.len - a->at, &n);
    if (found == TOOLCALL_MORE && !end)
        return false;
    a->at = found == TOOLCALL_MORE ? a->held.len : a->at + n;
    if (found == TOOLCALL_FOUND) {
        enter_call(a, a->at, a->close);
        a->again = true;
    } else {
        a->state = CONTENT;
    }
    return true;
}

/* The model went on with something that is no JSON: nobody can read that as arguments, and it is no text either. */
static bool in_fault(answer_reader *a)
{
    const char *next = a->close ? a->close : toolcall_marks_of(a->o.marks.calls)->open;
    match m = NO;
    size_t which;
    a->at = a->o.whole_call ? a->held.len : find(a, a->at, &next, 1, &m, &which);
    if (m != YES)
        return false;
    a->at += a->close ? strlen(a->close) : 0;
    a->state = CONTENT;
    return true;
}

/* ---- messages with heads ---- */

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
static bool at_head(answer_reader *a, bool end)
{
    match m;
    size_t which, p = find(a, a->at, answer_channel_marks, 1, &m, &which), len = a->held.len - a->at;
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
    bool blank = a->n_messages && after_space(a, a->at) == a->held.len;
    if (memmem(head, len, "<|", 2) || (blank && end))
        a->at += len;
    a->state = MESSAGE;
    a->kind = ANSWER_CONTENT;
    a->said = false;
    return true;
}

static bool in_message(answer_reader *a, bool end)
{
    match m;
    size_t which = 0, p = find(a, a->at, answer_channel_marks + 1, N_BODY_ENDS, &m, &which);
    if (m == PERHAPS && end)
        p = a->held.len;
    bool *spoke = &a->spoke[a->kind == ANSWER_THOUGHT];
    if (p > a->at && *spoke && !a->said) {
        const answer_piece line = {.kind = a->kind, .text = "\n", .len = 1};
        a->o.tell(a->o.user, &line);
    }
    *spoke |= p > a->at;
    tell(a, a->kind, a->at, p);
    a->at = p;
    if (m != YES)
        return false;
    const char *mark = answer_channel_marks[1 + which];
    a->at += which < 3 ? strlen(mark) : 0; /* the others belong to the next head */
    a->state = HEAD;
    return true;
}

/* The arguments of a call. What is no object is no call, but what the model says. */
static bool in_input(answer_reader *a, bool end)
{
    match m;
    size_t which = 0, p = find(a, a->at, answer_channel_marks + 1, N_BODY_ENDS, &m, &which);
    if (!a->in_input) {
        size_t w = after_space(a, a->at);
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
        tell_call(a, a->function.data, a->function.len, NULL, 0);
        a->in_input = true;
        json_scan_begin(&a->json);
        if (w >= p)
            tell_arguments(a, "{}", 2);
        a->at = XD_MIN(w, p);
    }
    xd_buf_clear(&a->out);
    a->at += json_scan_feed(&a->json, a->held.data + a->at, p - a->at, &a->out);
    a->failed |= a->out.failed;
    tell_arguments(a, a->out.data, a->out.len);
    if (json_scan_done(&a->json) || json_scan_bad(&a->json))
        a->at = m == PERHAPS && end ? a->held.len : p;
    if (m != YES)
        return false;
    a->at = p + (which < 3 ? strlen(answer_channel_marks[1 + which]) : 0);
    a->state = HEAD;
    return true;
}

static bool go_on(answer_reader *a, bool end)
{
    switch (a->state) {
    case START: return at_start(a, end);
    case THOUGHT: return in_thought(a, end);
    case LEAD: return at_lead(a, end);
    case CONTENT: return in_content(a, end);
    case ARGUMENTS: return in_arguments(a);
    case PARAMETERS: return in_parameters(a, end);
    case BEHIND: return behind_arguments(a, end);
    case FAULT: return in_fault(a);
    case HEAD: return at_head(a, end);
    case MESSAGE: return in_message(a, end);
    case INPUT: return in_input(a, end);
    default: return in_call(a, end);
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
