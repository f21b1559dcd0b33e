/* tokbench.c - tokenizes files with one tokenizer.json or GGUF file: tokbench TOKENIZER TEXT IDS_OUT
 *
 * The C side of tests/tools/compare_tokenizers.py and compare_gguf.py. TEXT is cut at NUL bytes into separate texts; IDS_OUT gets, for each, the
 * number of ids and the ids (32-bit, native). Prints the speed, and fails when a text does not survive the round trip that
 * byte-level tokenizers promise (given a fourth argument "roundtrip"). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/model/model_priv.h"
#include "engine/text/tokenizer.h"

static bool read_file(const char *path, xd_buf *b)
{
    XD_CLEANUP(xd_fclosep) FILE *f = fopen(path, "rb");
    size_t n;
    do {
        if (!f || !xd_buf_reserve(b, 1 << 20))
            return false;
        n = fread(b->data + b->len, 1, 1 << 20, f);
        b->len += n;
    } while (n);
    return true;
}

static xd_status load(const char *path, tokenizer **ret, xd_err *err)
{
    size_t n = strlen(path);
    if (n > 5 && !strcmp(path + n - 5, ".gguf")) {
        XD_CLEANUP(gguf_freep) gguf *g = NULL;
        tok_gguf v;
        xd_status st = gguf_open(path, &g, err);
        if (!st)
            st = model_gguf_vocabulary(g, &v, err);
        return st ? st : tok_from_gguf(&v, ret, err);
    }
    struct stat sb;
    if (!stat(path, &sb) && S_ISDIR(sb.st_mode))
        return tok_from_dir(path, ret, err);
    xd_buf json = {0};
    xd_status st = read_file(path, &json) ? tok_from_json(json.data, json.len, ret, err)
                                          : xd_fail(err, XD_IO, 0, "cannot read '%s'", path);
    xd_buf_free(&json);
    return st;
}

int main(int argc, char **argv)
{
    xd_buf text = {0}, back = {0};
    xd_err err = {0};
    tokenizer *t = NULL;
    if (argc < 4 || !read_file(argv[2], &text)) {
        fprintf(stderr, "usage: tokbench TOKENIZER.json|GGUF|DIR TEXT IDS_OUT [roundtrip]\n");
        return 2;
    }
    if (load(argv[1], &t, &err)) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    XD_CLEANUP(xd_fclosep) FILE *out = fopen(argv[3], "wb");
    uint64_t spent = 0;
    size_t total = 0, broken = 0;
    tok_ids ids = {0};
    for (size_t i = 0; out && i < text.len;) {
        const char *end = memchr(text.data + i, 0, text.len - i);
        size_t n = end ? (size_t)(end - text.data) - i : text.len - i;
        ids.len = 0;
        uint64_t start = xd_now_ns();
        if (tok_encode(t, text.data + i, n, TOK_PARSE_SPECIAL, &ids, &err)) {
            fprintf(stderr, "%s\n", err.msg);
            return 1;
        }
        spent += xd_now_ns() - start;
        uint32_t count = (uint32_t)ids.len;
        fwrite(&count, sizeof count, 1, out);
        fwrite(ids.data, sizeof *ids.data, ids.len, out);
        total += ids.len;
        xd_buf_clear(&back);
        if (argc > 4) {
            if (tok_decode(t, ids.data, ids.len, false, &back, &err))
                return 1;
            broken += back.len != n || (n && memcmp(back.data, text.data + i, n));
        }
        i += n + 1;
    }
    printf("%zu bytes, %zu ids, %.2f MB/s, %zu texts do not come back\n", text.len, total,
           (double)text.len * 1e3 / (double)spent, broken);
    tok_ids_free(&ids);
    tok_free(t);
    xd_buf_free(&text);
    xd_buf_free(&back);
    return broken != 0;
}
