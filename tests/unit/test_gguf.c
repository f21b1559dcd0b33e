/* Files are written by hand so that each fault can be made exactly; whole models from the gguf package are in the golden tests. */
#include <criterion/criterion.h>
#include <string.h>

#include "engine/model/gguf.h"

static void u32(xd_buf *b, uint32_t v)
{
    xd_buf_append(b, &v, 4);
}
static void u64(xd_buf *b, uint64_t v)
{
    xd_buf_append(b, &v, 8);
}

static void str(xd_buf *b, const char *s)
{
    u64(b, strlen(s));
    xd_buf_puts(b, s);
}

static void key(xd_buf *b, const char *name, uint32_t type)
{
    str(b, name);
    u32(b, type);
}

static void head(xd_buf *b, uint64_t tensors, uint64_t keys)
{
    xd_buf_puts(b, "GGUF");
    u32(b, 3);
    u64(b, tensors);
    u64(b, keys);
}

static void tensor(xd_buf *b, const char *name, uint64_t cols, uint64_t rows, uint32_t type, uint64_t offset)
{
    str(b, name);
    u32(b, 2);
    u64(b, cols);
    u64(b, rows);
    u32(b, type);
    u64(b, offset);
}

/* Pads to 32 and adds n data bytes; takes b. */
static xd_status open_file(xd_buf *b, size_t n, gguf **ret, xd_err *err)
{
    while (b->len % 32)
        xd_buf_putc(b, 0);
    while (n--)
        xd_buf_putc(b, 1);
    char path[] = "/tmp/xd_gguf_XXXXXX";
    int fd = mkstemp(path);
    cr_assert(fd >= 0 && write(fd, b->data, b->len) == (ssize_t)b->len);
    close(fd);
    xd_status st = gguf_open(path, ret, err);
    unlink(path);
    xd_buf_free(b);
    return st;
}

Test(gguf, reads_every_kind_of_value)
{
    xd_buf b = {0};
    head(&b, 1, 5);
    key(&b, "a.int", GGUF_I8);
    xd_buf_putc(&b, (char)-3);
    key(&b, "a.real", GGUF_F64);
    double d = 0.5;
    xd_buf_append(&b, &d, 8);
    key(&b, "a.text", GGUF_STRING);
    str(&b, "hello");
    key(&b, "a.texts", GGUF_ARRAY);
    u32(&b, GGUF_STRING);
    u64(&b, 2);
    str(&b, "x");
    str(&b, "yz");
    key(&b, "a.ids", GGUF_ARRAY);
    u32(&b, GGUF_I32);
    u64(&b, 1);
    u32(&b, 7);
    tensor(&b, "t", 32, 2, 8, 0);
    XD_CLEANUP(gguf_freep) gguf *g = NULL;
    xd_err err;
    cr_assert_eq(open_file(&b, 68, &g, &err), XD_OK, "%s", err.msg);
    int64_t i;
    double r;
    cr_assert(!gguf_int(g, "a.int", 0, -5, 5, &i, &err) && i == -3);
    cr_assert_eq(gguf_int(g, "a.int", 0, 0, 5, &i, &err), XD_BAD_MODEL);
    cr_assert_eq(gguf_int(g, "a.text", 0, 0, 5, &i, &err), XD_BAD_MODEL);
    cr_assert(!gguf_int(g, "none", 4, 0, 5, &i, &err) && i == 4);
    cr_assert(!gguf_real(g, "a.real", 0, 0, 1, &r, &err) && r == 0.5);
    cr_assert_str_eq(gguf_string(g, "a.text"), "hello");
    cr_assert_null(gguf_string(g, "a.int"));
    const char *const *texts;
    const int32_t *ids;
    const float *scores;
    cr_assert(gguf_strings(g, "a.texts", &texts) == 2 && !strcmp(texts[1], "yz"));
    cr_assert(gguf_i32s(g, "a.ids", &ids) == 1 && ids[0] == 7);
    cr_assert_eq(gguf_f32s(g, "a.ids", &scores), 0);
    const gguf_tensor *t = gguf_tensor_find(g, "t");
    cr_assert(t && t->fmt == FMT_Q8_0 && t->bytes == 68 && t->dims[1] == 2 && t->dims[2] == 1);
    cr_assert_eq(*(const char *)t->data, 1);
}

Test(gguf, refuses_every_broken_file)
{
    for (int c = 0; c < 15; c++) {
        xd_buf b = {0};
        xd_err err;
        gguf *g = NULL;
        const char *says = "";
        size_t data = 64;
        switch (c) {
        case 0:
            xd_buf_puts(&b, "GGML");
            u32(&b, 3);
            u64(&b, 0);
            u64(&b, 0);
            says = "not a GGUF file";
            break;
        case 1:
            xd_buf_puts(&b, "GGUF");
            u32(&b, 4);
            u64(&b, 0);
            u64(&b, 0);
            says = "version 4";
            break;
        case 2:
            head(&b, 1ull << 40, 0);
            says = "too many";
            break;
        case 3:
            head(&b, 0, UINT64_MAX);
            says = "too many";
            break;
        case 4:
            head(&b, 0, 1);
            u64(&b, UINT64_MAX);
            says = "longer than the file";
            break;
        case 5:
            head(&b, 0, 1);
            key(&b, "k", 13);
            says = "unknown type";
            break;
        case 6:
            head(&b, 0, 1);
            key(&b, "k", GGUF_ARRAY);
            u32(&b, GGUF_ARRAY);
            u64(&b, 1);
            says = "unknown type";
            break;
        case 7:
            head(&b, 0, 1);
            key(&b, "k", GGUF_ARRAY);
            u32(&b, GGUF_F32);
            u64(&b, 1000);
            says = "longer than the file";
            break;
        case 8:
            head(&b, 0, 1);
            key(&b, "k", GGUF_ARRAY);
            u32(&b, GGUF_U8);
            u64(&b, UINT64_MAX);
            says = "too long";
            break;
        case 9:
            head(&b, 0, 1);
            key(&b, "general.alignment", GGUF_U32);
            u32(&b, 48);
            says = "power of two";
            break;
        case 10:
            head(&b, 0, 1);
            key(&b, "general.alignment", GGUF_U32);
            u32(&b, 0);
            says = "from 1 to";
            break;
        case 11:
            head(&b, 1, 0);
            tensor(&b, "t", 32, 2, 8, 0);
            data = 67;
            says = "outside the file";
            break;
        case 12:
            head(&b, 1, 0);
            tensor(&b, "t", 33, 2, 8, 0);
            says = "whole number of blocks";
            break;
        case 13:
            head(&b, 1, 0);
            tensor(&b, "t", 1ull << 40, 1ull << 40, 0, 0);
            says = "overflows";
            break;
        case 14:
            head(&b, 2, 0);
            tensor(&b, "t", 1, 1, 0, 0);
            tensor(&b, "t", 1, 1, 0, 32);
            says = "twice";
            break;
        default: break;
        }
        xd_status st = open_file(&b, data, &g, &err);
        cr_assert(st == XD_BAD_MODEL || st == XD_UNSUPPORTED, "case %d: %d", c, st);
        cr_assert(strstr(err.msg, says), "case %d: %s", c, err.msg);
        cr_assert_null(g);
    }
}

/* Every prefix of a good file is refused (or is still whole), none crashes. */
Test(gguf, survives_truncation_anywhere)
{
    xd_buf whole = {0};
    head(&whole, 1, 2);
    key(&whole, "a", GGUF_STRING);
    str(&whole, "text");
    key(&whole, "b", GGUF_ARRAY);
    u32(&whole, GGUF_STRING);
    u64(&whole, 1);
    str(&whole, "x");
    tensor(&whole, "t", 4, 1, 0, 0);
    for (size_t n = 1; n < whole.len; n++) {
        char path[] = "/tmp/xd_gguf_XXXXXX";
        int fd = mkstemp(path);
        cr_assert(fd >= 0 && write(fd, whole.data, n) == (ssize_t)n);
        close(fd);
        gguf *g = NULL;
        xd_err err;
        cr_assert_eq(gguf_open(path, &g, &err), XD_BAD_MODEL, "%zu bytes", n);
        unlink(path);
    }
    xd_buf_free(&whole);
}
