/* tok_file.h - tokenizers in the tree, gzipped or not. Included by one .c file of a test program. */
#ifndef TESTS_TOK_FILE_H
#define TESTS_TOK_FILE_H

#include <criterion/criterion.h>
#include <stdlib.h>
#include <zlib.h>

#include "engine/text/tokenizer.h"

/* The whole file, owned; NULL when there is none. */
static inline char *read_gz(const char *path, size_t *ret_len)
{
    gzFile f = gzopen(path, "rb");
    if (!f)
        return NULL;
    xd_buf b = {0};
    int n;
    while (xd_buf_reserve(&b, 1 << 20) && (n = gzread(f, b.data + b.len, 1 << 20)) > 0)
        b.len += (size_t)n;
    gzclose(f);
    return xd_buf_steal(&b, ret_len);
}

/* Names of both begin at the root of the source tree. */
static inline char *read_source_gz(const char *name, size_t *ret_len)
{
    const char *root = getenv("EXPERTD_SOURCE_ROOT");
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", root ? root : ".", name);
    char *text = read_gz(path, ret_len);
    cr_assert(text, "%s", path);
    return text;
}

static inline tokenizer *open_tok(const char *name)
{
    size_t len;
    char *json = read_source_gz(name, &len);
    tokenizer *t = NULL;
    xd_err err = {0};
    cr_assert_eq(tok_from_json(json, len, &t, &err), XD_OK, "%s: %s", name, err.msg);
    free(json);
    return t;
}

#endif
