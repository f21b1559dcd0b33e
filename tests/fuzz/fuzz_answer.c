/* fuzz_answer.c - what a model writes: the first byte chooses the form of calls and what is known of thoughts, the second how the text
 * is cut. Told whole and told in pieces it must be the same, each call's arguments must be a JSON object, and an answer without calls
 * and thoughts must come out as it went in. */
#include <stdlib.h>
#include <string.h>

#include "api/answer.h"
#include "config/util.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct heard {
    xd_buf text[3]; /* by answer_kind */
    bool held;      /* the grammar answers for the arguments, which may be cut */
} heard;

static void hear(void *user, const answer_piece *p)
{
    heard *h = user;
    if (p->kind != ANSWER_CALL) {
        xd_buf_append(&h->text[p->kind], p->text, p->len);
        return;
    }
    const json_t *f = json_object_get(p->call, "function");
    const char *text = json_string_value(json_object_get(f, "arguments"));
    json_t *args = h->held ? json_object() : json_loads(text, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, NULL);
    if (!json_is_object(args) || (h->held && *text && *text != '{') || !json_string_length(json_object_get(f, "name")))
        abort();
    json_decref(args);
    xd_buf_printf(&h->text[ANSWER_CALL], "%s %s\n", json_string_value(json_object_get(f, "name")),
                  json_string_value(json_object_get(f, "arguments")));
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
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 3)
        return 0;
    json_t *tools = json_loads(
        "[{\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"s\":{\"type\":\"string\"},\"n\":{\"type\":\"number\"}}}}}]",
        0, NULL);
    answer_options o = {.marks.calls = (toolcall_form)(data[0] % (TOOLCALL_BARE + 1)),
                        .marks.thoughts = answer_thoughts_row(data[0] >> 4 & 3),
                        .tools = tools,
                        .keep_thoughts = data[1] & 1,
                        .one_call = data[1] & 2,
                        .whole_call = data[0] & 64,
                        .or_json = (data[0] & 64) && (data[1] & 1)};
    o.marks.in_thought = o.marks.thoughts.open && (data[1] & 4);
    heard whole = {.held = o.whole_call}, pieces = whole;
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
    if (plain && (!o.whole_call || o.or_json) && !whole.text[ANSWER_CALL].len &&
        (content->len != len || memcmp(content->data, text, len)))
        abort();
    for (size_t i = 0; i < 3; i++) {
        xd_buf_free(&whole.text[i]);
        xd_buf_free(&pieces.text[i]);
    }
    json_decref(tools);
    return 0;
}
