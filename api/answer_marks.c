/* answer_marks.c - how models mark their thoughts: one row a notation. */
#include <string.h>

#include "api/answer.h"
#include "config/util.h"

static const struct {
    answer_thoughts t;
    const char *signs[2]; /* one of them in a template's source says so; NULL: the mark itself */
} rows[] = {
    /* Ernie 4.5, Granite 3.3 */
    {{"<think>", "</think>", {"<response>"}, "</response>", NULL}, {"<response>\\n", "<response></response>"}},
    {{"<think>", "</think>", {NULL}, NULL, NULL}, {NULL}},
    {{"[THINK]", "[/THINK]", {NULL}, NULL, NULL}, {NULL}},
    {{"<seed:think>", "</seed:think>", {NULL}, NULL, NULL}, {NULL}},
    /* Hunyuan: the template puts the marks together */
    {{"<think:opensource>", "</think:opensource>", {NULL}, NULL, NULL}, {"<think{}>", NULL}},
    /* Gemma 4 */
    {{"<|channel>thought\n", "<channel|>", {NULL}, NULL, "<|channel>"}, {"<|channel>thought", "<|channel>thought"}},
    /* Solar Open */
    {{"<|think|>", "<|end|>", {"<|begin|>assistant<|content|>", "<|content|>", "<|begin|>assistant"}, NULL, NULL},
     {"<|begin|>assistant<|think|>", "<|begin|>assistant<|think|>"}},
    {{NULL, NULL, {NULL}, NULL, NULL}, {NULL}},
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
