/* fuzz_answer.c - what a model writes: the first byte chooses the form of calls and what is known of thoughts, the second how the text
 * is cut. Told whole and told in pieces it must be the same, each call's arguments must be a JSON object or begin one, and an answer without calls
 * and thoughts must come out as it went in. */
#include <stdlib.h>
#include <string.h>

#include "api/answer.h"
#include "config/util.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct heard {
    xd_buf text[3];   /* by answer_kind, calls with their arguments */
    xd_buf arguments; /* of the last call */
} heard;

/* A JSON object, or the beginning of one, by another reader. */
static void check_arguments(heard *h)
{
    json_error_t e;
    size_t len = h->arguments.len;
    json_t *args = json_loadb(h->arguments.data ? h->arguments.data : "", len, JSON_ALLOW_NUL, &e);
    /* half a word or number is a wrong one to jansson */
    for (size_t cut = 0; !args && json_error_code(&e) == json_error_invalid_syntax && cut < 400 && len > cut; cut++) {
        json_error_t shorter;
        args = json_loadb(h->arguments.data, len - cut, JSON_ALLOW_NUL, &shorter);
        if (json_error_code(&shorter) == json_error_premature_end_of_input)
            e = shorter;
    }
    enum json_error_code code = args ? json_error_unknown : json_error_code(&e);
    if (args ? !json_is_object(args)
             : len && code != json_error_premature_end_of_input && code != json_error_numeric_overflow &&
                   code != json_error_null_byte_in_key && code != json_error_null_character &&
                   code != json_error_invalid_utf8)
        abort();
    json_decref(args);
    xd_buf_clear(&h->arguments);
}

static void hear(void *user, const answer_piece *p)
{
    heard *h = user;
    if (!p->len)
        abort();
    if (p->kind == ANSWER_CALL) {
        check_arguments(h);
        xd_buf_printf(&h->text[ANSWER_CALL], "\n%zu ", p->call_idx);
    }
    if (p->kind == ANSWER_ARGUMENTS)
        xd_buf_append(&h->arguments, p->text, p->len);
    xd_buf_append(&h->text[XD_MIN((unsigned)p->kind, (unsigned)ANSWER_CALL)], p->text, p->len);
    if (p->kind == ANSWER_CALL)
        xd_buf_putc(&h->text[ANSWER_CALL], ' ');
}

static void run(answer_options o, const char *text, size_t len, size_t step, heard *h)
{
    o.tell = hear;
    o.user = h;
    answer_reader *a = answer_new(&o);
    if (!a)
        abort();
    for (size_t at = 0; at < len; at += step)
        if (!answer_feed(a, text + at, XD_MIN(step, len - at)))
            abort();
    if (!answer_end(a))
        abort();
    answer_free(a);
    check_arguments(h);
    xd_buf_free(&h->arguments);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 3)
        return 0;
    json_t *tools = json_loads(
        "[{\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"s\":{\"type\":\"string\"},\"n\":{\"type\":\"number\"}}}}}]",
        0, NULL);
    answer_options o = {.marks.calls = (toolcall_form)(data[0] % (TOOLCALL_BARE + 1)),
                        .marks.thoughts = answer_thoughts_row(data[1] >> 5),
                        .tools = tools,
                        .keep_thoughts = data[1] & 1,
                        .one_call = data[1] & 2,
                        .whole_call = data[0] & 64,
                        .or_json = (data[0] & 64) && (data[1] & 1),
                        .hold_call = (data[0] & 64) && (data[1] & 1) && (data[0] & 128),
                        .marks.may_think = data[0] & 128};
    o.marks.in_thought = o.marks.thoughts.open && (data[1] & 4);
    if (data[0] >= 0xf8)
        o = (answer_options){.marks.channels = true, .tools = data[0] & 1 ? tools : NULL, .one_call = data[1] & 2};
    o.lead = data[1] & 2 ? toolcall_marks_of(o.marks.calls)->lead : NULL;
    heard whole = {0}, pieces = {0};
    const char *text = (const char *)data + 2;
    size_t len = size - 2;
    run(o, text, len, len, &whole);
    run(o, text, len, 1 + (data[1] >> 3), &pieces);
    for (size_t i = 0; i < 3; i++)
        if (whole.text[i].len != pieces.text[i].len ||
            (whole.text[i].len && memcmp(whole.text[i].data, pieces.text[i].data, whole.text[i].len)))
            abort();
    const xd_buf *content = &whole.text[ANSWER_CONTENT];
    bool plain = o.keep_thoughts || !o.marks.thoughts.open ||
                 !(o.marks.in_thought || memmem(text, len, o.marks.thoughts.open, strlen(o.marks.thoughts.open)));
    if (plain && !o.marks.channels && !o.lead && !o.marks.thoughts.leads[0] && (!o.whole_call || o.or_json) &&
        !whole.text[ANSWER_CALL].len && (content->len != len || memcmp(content->data, text, len)))
        abort();
    for (size_t i = 0; i < 3; i++) {
        xd_buf_free(&whole.text[i]);
        xd_buf_free(&pieces.text[i]);
    }
    json_decref(tools);
    return 0;
}
