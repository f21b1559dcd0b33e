/* test_tok_vectors.c - every vector of the tokenizer fixtures: encode, decode, streaming decode.
 *
 * Expected values come from the reference library. The folder is $EXPERTD_FIXTURES_DIR/tokenizers, else tests/data/tokenizers.
 * Every difference is listed (the first of each kind in full). */
#include <dirent.h>
#include <jansson.h>
#include <string.h>

#include "tok_file.h"

static tok_ids to_ids(const json_t *list)
{
    tok_ids ids = {0};
    for (size_t i = 0; i < json_array_size(list); i++)
        cr_assert(tok_ids_push(&ids, (uint32_t)json_integer_value(json_array_get(list, i))));
    return ids;
}

static size_t failures, checks;

static void complain(const char *name, const char *what, const char *cat, size_t i, const char *detail)
{
    failures++;
    if (failures <= 40)
        fprintf(stderr, "%s: %s %zu (%s): %s\n", name, what, i, cat ? cat : "", detail);
}

static void check_ids(const char *name, const char *what, const char *cat, size_t i, const tok_ids *got,
                      const json_t *want)
{
    checks++;
    tok_ids w = to_ids(want);
    if (w.len != got->len || (w.len && memcmp(w.data, got->data, w.len * sizeof *w.data))) {
        size_t k = 0;
        while (k < w.len && k < got->len && w.data[k] == got->data[k])
            k++;
        char d[160];
        snprintf(d, sizeof d, "at %zu: got %ld want %ld (%zu and %zu ids)", k, k < got->len ? (long)got->data[k] : -1,
                 k < w.len ? (long)w.data[k] : -1, got->len, w.len);
        complain(name, what, cat, i, d);
    }
    tok_ids_free(&w);
}

static void check_decode(const tokenizer *t, const char *name, const char *what, const char *cat, size_t i,
                         const tok_ids *ids, bool skip, const json_t *want)
{
    if (!json_is_string(want))
        return;
    checks++;
    xd_buf b = {0};
    cr_assert(tok_decode(t, ids->data, ids->len, skip, &b, NULL) == XD_OK);
    if (b.len != json_string_length(want) || memcmp(b.data ? b.data : "", json_string_value(want), b.len)) {
        xd_buf d = {0};
        xd_buf_printf(&d, "got '%.300s' want '%.300s'", b.data ? b.data : "", json_string_value(want));
        complain(name, what, cat, i, d.data);
        xd_buf_free(&d);
    }
    xd_buf_free(&b);
}

static void check_stream(const tokenizer *t, const char *name, size_t i, const json_t *o)
{
    tok_ids ids = to_ids(json_object_get(o, "ids"));
    bool skip = json_is_true(json_object_get(o, "skip_special_tokens"));
    const char *cat = json_string_value(json_object_get(o, "cat"));
    const json_t *full = json_object_get(o, "full");
    xd_buf all = {0};
    tok_stream *s = tok_stream_new(t, skip);
    cr_assert(s);
    for (size_t k = 0; k <= ids.len; k++) {
        size_t had = all.len;
        if (k < ids.len)
            cr_assert(tok_stream_push(s, ids.data[k], &all, NULL) == XD_OK);
        else
            cr_assert(tok_stream_flush(s, &all, NULL) == XD_OK);
        for (size_t p = had; p < all.len;) {
            int n = xd_utf8_seq(all.data + p, all.len - p);
            if (n <= 0) {
                complain(name, "stream", cat, i, "a broken character");
                break;
            }
            p += (size_t)n;
        }
    }
    checks++;
    if (json_is_string(full) &&
        (all.len != json_string_length(full) || memcmp(all.data ? all.data : "", json_string_value(full), all.len)))
        complain(name, "stream", cat, i, "the pieces are not the whole text");
    check_decode(t, name, "stream full", cat, i, &ids, skip, full);
    tok_stream_free(s);
    tok_ids_free(&ids);
    xd_buf_free(&all);
}

static void run_vectors(const tokenizer *t, const char *name, const json_t *v)
{
    const json_t *list = json_object_get(v, "encode");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *o = json_array_get(list, i), *text = json_object_get(o, "text");
        const char *cat = json_string_value(json_object_get(o, "cat"));
        tok_ids plain = {0}, special = {0};
        xd_err err = {0};
        if (tok_encode(t, json_string_value(text), json_string_length(text), TOK_PARSE_SPECIAL, &plain, &err) ||
            tok_encode(t, json_string_value(text), json_string_length(text), TOK_PARSE_SPECIAL | TOK_ADD_SPECIAL,
                       &special, &err))
            complain(name, "encode", cat, i, err.msg);
        check_ids(name, "encode", cat, i, &plain, json_object_get(o, "ids"));
        check_ids(name, "encode special", cat, i, &special, json_object_get(o, "ids_special"));
        tok_ids want = to_ids(json_object_get(o, "ids"));
        check_decode(t, name, "decode", cat, i, &want, true, json_object_get(o, "decode"));
        check_decode(t, name, "decode all", cat, i, &want, false, json_object_get(o, "decode_all"));
        tok_ids_free(&want);
        tok_ids_free(&plain);
        tok_ids_free(&special);
    }
    list = json_object_get(v, "decode");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *o = json_array_get(list, i);
        const char *cat = json_string_value(json_object_get(o, "cat"));
        tok_ids ids = to_ids(json_object_get(o, "ids"));
        check_decode(t, name, "decode list", cat, i, &ids, true, json_object_get(o, "decode"));
        check_decode(t, name, "decode list all", cat, i, &ids, false, json_object_get(o, "decode_all"));
        tok_ids_free(&ids);
    }
    list = json_object_get(v, "stream");
    for (size_t i = 0; i < json_array_size(list); i++)
        check_stream(t, name, i, json_array_get(list, i));
}

Test(tok_vectors, equal_the_reference)
{
    const char *root = getenv("EXPERTD_FIXTURES_DIR"), *src = getenv("EXPERTD_SOURCE_ROOT");
    char dir[2048], path[4096];
    if (root && *root)
        snprintf(dir, sizeof dir, "%s/tokenizers", root);
    else
        snprintf(dir, sizeof dir, "%s/tests/data/tokenizers", src ? src : ".");
    DIR *d = opendir(dir);
    cr_assert(d, "no folder %s", dir);
    size_t n = 0;
    const struct dirent *e;
    while ((e = readdir(d))) {
        const char *dot = strstr(e->d_name, ".tokenizer.json");
        if (!dot)
            continue;
        char name[256];
        snprintf(name, sizeof name, "%.*s", (int)(dot - e->d_name), e->d_name);
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        size_t len, vlen;
        char *json = read_gz(path, &len);
        snprintf(path, sizeof path, "%s/%s.vectors.json.gz", dir, name);
        char *vectors = read_gz(path, &vlen);
        if (!vectors) {
            path[strlen(path) - 3] = 0;
            vectors = read_gz(path, &vlen);
        }
        cr_assert(json && vectors, "%s: no tokenizer or no vectors", name);
        json_t *v = json_loadb(vectors, vlen, JSON_ALLOW_NUL, NULL);
        cr_assert(v, "%s: vectors", name);
        tokenizer *t = NULL;
        xd_err err = {0};
        size_t before = failures, checked = checks;
        uint64_t start = xd_now_ns();
        if (tok_from_json(json, len, &t, &err)) {
            complain(name, "load", "", 0, err.msg);
        } else {
            uint64_t loaded = xd_now_ns();
            run_vectors(t, name, v);
            fprintf(stderr, "%s (%s): loaded in %.0f ms, %zu checks, %zu differences\n", name, tok_kind(t),
                    (double)(loaded - start) / 1e6, checks - checked, failures - before);
        }
        tok_free(t);
        json_decref(v);
        free(json);
        free(vectors);
        n++;
    }
    closedir(d);
    cr_assert(n > 0, "no tokenizers in %s", dir);
    cr_assert_eq(failures, 0u, "%zu differences", failures);
}
