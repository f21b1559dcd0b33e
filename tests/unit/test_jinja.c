/* Every rendering that the reference (Python jinja2 set up as transformers does) made for the fixtures' templates and snippets, byte for
 * byte. EXPERTD_FIXTURES_DIR names another folder of the same layout. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <jansson.h>
#include <string.h>

#include "api/jinja/jinja.h"

static const char *fixtures_dir(void)
{
    static char path[4096];
    const char *dir = getenv("EXPERTD_FIXTURES_DIR"), *root = getenv("EXPERTD_SOURCE_ROOT");
    if (dir && *dir)
        return dir;
    snprintf(path, sizeof path, "%s/tests/data", root ? root : ".");
    return path;
}

static json_t *load(const char *path)
{
    json_error_t err;
    json_t *j = json_load_file(path, 0, &err);
    cr_assert(j, "%s: %s", path, err.text);
    return j;
}

static char *read_file(const char *path, size_t *len)
{
    FILE *f = fopen(path, "rb");
    cr_assert(f, "%s", path);
    xd_buf b = {0};
    char piece[4096];
    for (size_t n; (n = fread(piece, 1, sizeof piece, f)) > 0;)
        xd_buf_append(&b, piece, n);
    fclose(f);
    return xd_buf_steal(&b, len);
}

/* An error message is one line: that is how the template's own message arrives. */
static void one_line(char *s)
{
    for (; *s; s++)
        if (*s == '\n' || *s == '\t')
            *s = ' ';
}

/* Prints what differs; returns the number of differences (0 or 1). */
static int check(const char *where, const char *source, size_t len, const json_t *c)
{
    const char *id = json_string_value(json_object_get(c, "id"));
    const json_t *expected = json_object_get(c, "expected"), *error = json_object_get(c, "error");
    const char *kind = json_string_value(json_object_get(error, "kind"));
    jinja_options opt = {.now = 1773065107}; /* 2026-03-09 14:05:07 */
    uint8_t *trusted = NULL;
    opt.ret_trusted = &trusted;
    xd_buf out = {0};
    xd_err err = {0};
    jinja_template *t = NULL;
    xd_status st = jinja_compile(source, len, "test", &t, &err);
    bool compiled = !st;
    if (compiled)
        st = jinja_render(t, json_object_get(c, "vars"), &opt, &out, &err);
    int bad = 0;
    if (expected) {
        bad = st || out.len != json_string_length(expected) ||
              memcmp(out.data ? out.data : "", json_string_value(expected), out.len);
    } else {
        bad = !st || (compiled && st != XD_BAD_REQUEST);
        if (!bad && !strcmp(kind, "raise")) {
            char *message = strdup(json_string_value(json_object_get(error, "message")));
            one_line(message);
            bad = strcmp(err.msg, message) || strcmp(err.code, "template_raise");
            free(message);
        }
    }
    if (bad)
        fprintf(stderr, "DIFFERS %s/%s\n  expected: %s%s\n  got: %s %s\n", where, id,
                expected ? json_string_value(expected) : kind,
                expected ? "" : json_string_value(json_object_get(error, "message")), st ? "error" : "",
                st ? err.msg : out.data);
    xd_buf_free(&out);
    free(trusted);
    jinja_free(t);
    return bad;
}

Test(jinja, renders_every_template_as_the_reference)
{
    char path[8192];
    snprintf(path, sizeof path, "%s/templates", fixtures_dir());
    DIR *d = opendir(path);
    cr_assert(d, "%s", path);
    int bad = 0, n = 0;
    for (struct dirent *e; (e = readdir(d));) {
        size_t name_len = strlen(e->d_name);
        if (name_len < 11 || strcmp(e->d_name + name_len - 11, ".cases.json"))
            continue;
        snprintf(path, sizeof path, "%s/templates/%s", fixtures_dir(), e->d_name);
        json_t *file = load(path);
        snprintf(path, sizeof path, "%s/templates/%s", fixtures_dir(),
                 json_string_value(json_object_get(file, "file")));
        size_t len;
        char *source = read_file(path, &len);
        size_t i;
        json_t *c;
        json_array_foreach (json_object_get(file, "cases"), i, c) {
            bad += check(e->d_name, source, len, c);
            n++;
        }
        free(source);
        json_decref(file);
    }
    closedir(d);
    printf("%d template renderings, %d differ\n", n, bad);
    cr_assert(n > 0);
    cr_assert_eq(bad, 0);
}

Test(jinja, agrees_with_the_reference_on_every_snippet)
{
    char path[8192];
    snprintf(path, sizeof path, "%s/jinja/cases.json", fixtures_dir());
    json_t *file = load(path), *c;
    int bad = 0;
    size_t i;
    json_array_foreach (json_object_get(file, "cases"), i, c) {
        const json_t *source = json_object_get(c, "template");
        bad += check("cases", json_string_value(source), json_string_length(source), c);
    }
    printf("%zu snippets, %d differ\n", i, bad);
    json_decref(file);
    cr_assert_eq(bad, 0);
}

/* Each filter, test, method, format and slice on values of several types: what the reference makes of it, written by
 * tests/tools/compare_jinja.py. null: it fails. */
Test(jinja, agrees_with_the_reference_on_every_operation)
{
    char path[8192];
    const char *root = getenv("EXPERTD_SOURCE_ROOT"), *other = getenv("EXPERTD_FIXTURES_DIR");
    if (other && *other)
        cr_skip_test("the fixtures of another folder are asked for");
    snprintf(path, sizeof path, "%s/tests/data/jinja/generated.json", root ? root : ".");
    json_t *file = load(path), *c;
    int bad = 0;
    size_t i;
    json_array_foreach (json_object_get(file, "cases"), i, c) {
        const char *expression = json_string_value(json_array_get(c, 0));
        const json_t *expected = json_array_get(c, 1);
        xd_buf source = {0};
        xd_buf_puts(&source, "{{ ");
        xd_buf_puts(&source, expression);
        xd_buf_puts(&source, " }}");
        json_t *row = json_is_null(expected)
                          ? json_pack("{s:s, s:O, s:{s:s, s:s}}", "id", expression, "vars",
                                      json_object_get(file, "vars"), "error", "kind", "runtime", "message", "")
                          : json_pack("{s:s, s:O, s:O}", "id", expression, "vars", json_object_get(file, "vars"),
                                      "expected", expected);
        cr_assert(row && source.data);
        bad += check("generated", source.data, source.len, row);
        json_decref(row);
        xd_buf_free(&source);
    }
    printf("%zu operations, %d differ\n", i, bad);
    json_decref(file);
    cr_assert(i > 0);
    cr_assert_eq(bad, 0);
}
