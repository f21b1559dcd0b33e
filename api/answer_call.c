/* answer_call.c - a call in an answer, from its open mark to what is behind it: CALL, ARGUMENTS, PARAMETERS, BEHIND, FAULT of answer.c. What its markup
 * means: toolcall.c; whether its arguments can be told as they come: toolcall_head.c. */
#include <string.h>

#include "api/answer_priv.h"

void answer_enter_call(answer_reader *a, size_t body, const char *close)
{
    a->state = CALL;
    a->body = a->scan = body;
    a->close = close;
    a->in_json = a->in_string = a->escaped = a->told_whole = a->again = false;
}

/* What toolcall.c has read. */
static void tell_whole_call(answer_reader *a, const json_t *read)
{
    const json_t *name = json_object_get(read, "name"), *arguments = json_object_get(read, "arguments"),
                 *id = json_object_get(read, "id");
    answer_tell_call(a, json_string_value(name), json_string_length(name), json_string_value(id),
                     json_string_length(id));
    answer_tell_arguments(a, json_string_value(arguments), json_string_length(arguments));
}

/* The end of the call's inside: held.len while it is not there. */
static size_t find_close(answer_reader *a, answer_match *ret)
{
    const char *open = toolcall_marks_of(a->o.marks.calls)->open;
    bool until_next = a->o.marks.calls != TOOLCALL_BARE;
    const char *mark = a->close ? a->close : until_next && !a->o.whole_call ? open : NULL;
    bool tagged = a->o.marks.calls == TOOLCALL_TAG || a->o.marks.calls == TOOLCALL_FUNCTION ||
                  a->o.marks.calls == TOOLCALL_GEMMA || toolcall_marks_of(a->o.marks.calls)->tags;
    *ret = NO;
    for (; mark && a->scan < a->held.len; a->scan++) {
        char c = a->held.data[a->scan];
        if (a->in_string) {
            a->in_string = a->escaped || c != '"';
            a->escaped = !a->escaped && c == '\\';
        } else if (c == mark[0] && (*ret = answer_match_at(a, a->scan, mark)) != NO) {
            return a->scan;
        } else if (c == '"') {
            a->in_string = a->in_json;
        } else if (c == '{') {
            /* Between tags quotes are text like any other. */
            a->in_json = a->in_json || !tagged || answer_after_space(a, a->body) == a->scan;
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
    answer_tell(a, ANSWER_CONTENT, a->called && !a->said ? answer_after_space(a, a->at) : a->at, to);
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
    answer_tell_call(a, json_string_value(name), json_string_length(name), head->id, head->id_len);
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

bool answer_step_call(answer_reader *a, bool end)
{
    answer_match m;
    size_t w = a->o.whole_call ? a->held.len : answer_after_space(a, a->body);
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

bool answer_step_arguments(answer_reader *a)
{
    xd_buf_clear(&a->out);
    a->at += json_scan_feed(&a->json, a->held.data + a->at, a->held.len - a->at, &a->out);
    a->failed |= a->out.failed;
    answer_tell_arguments(a, a->out.data, a->out.len);
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
bool answer_step_parameters(answer_reader *a, bool end)
{
    const char *text = a->held.data + a->at;
    size_t len = a->held.len - a->at, used = 0;
    xd_buf_clear(&a->out);
    toolcall_found found =
        toolcall_read_parameter(a->head.tags, a->head.function, text, len, a->no_parameter, &a->scan, &a->out, &used);
    a->failed |= a->out.failed;
    if (found == TOOLCALL_FOUND) {
        answer_tell_arguments(a, a->out.data, a->out.len);
        a->no_parameter = false;
        a->scan = 0;
        a->at += used;
        return true;
    }
    if (found == TOOLCALL_NOT) {
        const toolcall_marks *form = toolcall_marks_of(a->o.marks.calls);
        const char *own = toolcall_tag_marks_of(a->head.tags)->end, *mark = *own ? own : form->close;
        size_t w = answer_after_space(a, a->at);
        answer_match m = answer_match_at(a, w, mark);
        if (m == YES) {
            answer_tell_arguments(a, a->no_parameter ? "{}" : "}", a->no_parameter ? 2 : 1);
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
bool answer_step_behind(answer_reader *a, bool end)
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
        answer_enter_call(a, a->at, a->close);
        a->again = true;
    } else {
        a->state = CONTENT;
    }
    return true;
}

/* The model went on with something that is no JSON: nobody can read that as arguments, and it is no text either. */
bool answer_step_fault(answer_reader *a)
{
    const char *next = a->close ? a->close : toolcall_marks_of(a->o.marks.calls)->open;
    answer_match m = NO;
    size_t which;
    a->at = a->o.whole_call ? a->held.len : answer_find(a, a->at, &next, 1, &m, &which);
    if (m != YES)
        return false;
    a->at += a->close ? strlen(a->close) : 0;
    a->state = CONTENT;
    return true;
}
