/* tok_regex.c - the regular expressions of tokenizer files, run by pcre2 (JIT). What they are written in is Oniguruma's syntax, see
 * tok_regex_syntax.c. What matching costs is counted by callouts (tok_work_left). Literal patterns are searched as such. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/tok_regex_priv.h"

enum {
    MAX_PATTERN_BYTES = 16384,
    MATCH_LIMIT = 10 * 1000 * 1000, /* Oniguruma's own retry limit */
    JIT_STACK_BYTES = 32 << 20,
};

struct tok_regex {
    char *literal; /* not NULL: this text, and no pattern */
    size_t len;
    pcre2_code *code;
    bool jit;
};

struct tok_regex_run {
    tok_work_left *left;
    PCRE2_SIZE at;       /* where the last callout was */
    uint64_t start_cost; /* of the pattern under way */
    pcre2_match_context *ctx;
    pcre2_match_data *data;
    pcre2_jit_stack *stack; /* made when the default one is too small */
};

static xd_status compile(const char *pattern, size_t len, const char *original, tok_regex **ret, xd_err *err)
{
    tok_regex *r = calloc(1, sizeof *r);
    pcre2_compile_context *cc = pcre2_compile_context_create(NULL);
    xd_status st = XD_OK;
    if (!r || !cc) {
        st = xd_fail(err, XD_NOMEM, 0, "regular expression");
    } else {
        r->len = len;
        pcre2_set_newline(cc, PCRE2_NEWLINE_LF);
        int code;
        PCRE2_SIZE at;
        r->code = pcre2_compile((PCRE2_SPTR)pattern, len, PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &code, &at, cc);
        if (!r->code) {
            char msg[120] = "";
            pcre2_get_error_message(code, (PCRE2_UCHAR *)msg, sizeof msg);
            st = xd_fail(err, XD_UNSUPPORTED, 0, "regular expression '%.200s': %s", original, msg);
        } else {
            r->jit = pcre2_jit_compile(r->code, PCRE2_JIT_COMPLETE) == 0;
        }
    }
    pcre2_compile_context_free(cc);
    if (st) {
        free(r);
        return st;
    }
    *ret = r;
    return XD_OK;
}

xd_status tok_regex_new(const char *pattern, size_t len, tok_regex **ret, xd_err *err)
{
    if (len > MAX_PATTERN_BYTES || memchr(pattern, 0, len))
        return xd_fail(err, XD_UNSUPPORTED, 0, "a regular expression of %zu bytes%s; at most %d are possible", len,
                       len > MAX_PATTERN_BYTES ? "" : ", one of which is zero", MAX_PATTERN_BYTES);
    XD_CLEANUP(xd_buf_free) xd_buf out = {0};
    xd_status st = tok_regex_translate(pattern, len, &out, err);
    return st ? st : compile(out.data ? out.data : "", out.len, pattern, ret, err);
}

xd_status tok_regex_new_literal(const char *text, size_t len, tok_regex **ret, xd_err *err)
{
    if (!len) /* matches between any two characters */
        return tok_regex_new("", 0, ret, err);
    tok_regex *r = calloc(1, sizeof *r);
    if (r)
        r->literal = malloc(len);
    if (!r || !r->literal) {
        free(r);
        return xd_fail(err, XD_NOMEM, 0, "a pattern of %zu bytes", len);
    }
    memcpy(r->literal, text, len);
    r->len = len;
    *ret = r;
    return XD_OK;
}

void tok_regex_free(tok_regex *r)
{
    if (!r)
        return;
    pcre2_code_free(r->code);
    free(r->literal);
    free(r);
}

void tok_regex_run_free(tok_regex_run *run)
{
    if (!run)
        return;
    pcre2_match_data_free(run->data);
    pcre2_match_context_free(run->ctx);
    pcre2_jit_stack_free(run->stack);
    free(run);
}

/* What lies between two callouts is paid for by how far the match moved. */
static int count(pcre2_callout_block *c, void *data)
{
    tok_regex_run *run = data;
    PCRE2_SIZE at = c->current_position, moved = at > run->at ? at - run->at : run->at - at;
    uint64_t cost = 5 + moved * 2;
    if (c->callout_number == TOK_START_CALLOUT)
        cost = run->start_cost;
    else if (c->callout_number == TOK_BACK_CALLOUT)
        cost += (at - c->start_match) / 4;
    run->at = at;
    return tok_spend(run->left, cost) ? 0 : PCRE2_ERROR_CALLOUT;
}

static tok_regex_run *run_new(void)
{
    tok_regex_run *run = calloc(1, sizeof *run);
    if (!run)
        return NULL;
    run->ctx = pcre2_match_context_create(NULL);
    run->data = pcre2_match_data_create(1, NULL);
    if (!run->ctx || !run->data) {
        tok_regex_run_free(run);
        return NULL;
    }
    pcre2_set_match_limit(run->ctx, MATCH_LIMIT);
    pcre2_set_heap_limit(run->ctx, JIT_STACK_BYTES / 1024);
    pcre2_set_callout(run->ctx, count, run);
    return run;
}

bool tok_spans_push(tok_spans *s, size_t start, size_t end, bool match)
{
    if (s->n == s->cap && !tok_grow(&s->data, &s->cap, s->n + 1, sizeof *s->data))
        return false;
    s->data[s->n++] = (tok_span){(uint32_t)start, (uint32_t)end, match};
    return true;
}

static int match_at(const tok_regex *r, tok_regex_run *run, const char *s, size_t len, size_t at)
{
    if (!r->jit)
        return pcre2_match(r->code, (PCRE2_SPTR)s, len, at, PCRE2_NO_UTF_CHECK, run->data, run->ctx);
    int rc = pcre2_jit_match(r->code, (PCRE2_SPTR)s, len, at, PCRE2_NO_UTF_CHECK, run->data, run->ctx);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT && !run->stack) {
        run->stack = pcre2_jit_stack_create(32 << 10, JIT_STACK_BYTES, NULL);
        if (run->stack) {
            pcre2_jit_stack_assign(run->ctx, NULL, run->stack);
            rc = pcre2_jit_match(r->code, (PCRE2_SPTR)s, len, at, PCRE2_NO_UTF_CHECK, run->data, run->ctx);
        }
    }
    return rc;
}

static bool find_literal(const tok_regex *r, const char *s, size_t len, tok_spans *ret)
{
    bool ok = true;
    for (size_t at = 0; ok && at < len;) {
        const char *hit = memmem(s + at, len - at, r->literal, r->len);
        size_t a = hit ? (size_t)(hit - s) : len;
        if (a > at)
            ok = tok_spans_push(ret, at, a, false);
        if (hit)
            ok = ok && tok_spans_push(ret, a, a + r->len, true);
        at = a + r->len;
    }
    return ok;
}

xd_status tok_regex_find(const tok_regex *r, tok_regex_run **run, tok_work_left *left, const char *s, size_t len,
                         tok_spans *ret, xd_err *err)
{
    static const char what[] = "the tokenizer's regular expression";
    bool ok = true;
    if (!len)
        return tok_spans_push(ret, 0, 0, false) ? XD_OK : xd_fail(err, XD_NOMEM, 0, "tokenizing");
    if (r->literal)
        return find_literal(r, s, len, ret) ? XD_OK : xd_fail(err, XD_NOMEM, 0, "tokenizing");
    if (!*run && !(*run = run_new()))
        return xd_fail(err, XD_NOMEM, 0, "regular expression");
    (*run)->left = left;
    (*run)->start_cost = 3 + r->len / 64;
    const PCRE2_SIZE *ov = pcre2_get_ovector_pointer((*run)->data);
    size_t prev = 0, at = 0, last_end = SIZE_MAX;
    while (ok && at <= len) {
        (*run)->at = at;
        int rc = tok_spend(left, 8) ? match_at(r, *run, s, len, at) : PCRE2_ERROR_CALLOUT;
        if (rc == PCRE2_ERROR_NOMATCH)
            break;
        if (rc == PCRE2_ERROR_CALLOUT || rc == PCRE2_ERROR_MATCHLIMIT)
            return tok_too_long(err, what);
        if (rc < 0)
            return xd_fail(err, rc == PCRE2_ERROR_NOMEMORY ? XD_NOMEM : XD_UNSUPPORTED, 0,
                           "%s fails on this text (pcre2 error %d)", what, rc);
        size_t a = ov[0], b = ov[1];
        if (a > b) /* \K in a lookahead */
            return xd_fail(err, XD_UNSUPPORTED, 0, "%s matches backwards", what);
        if (a == b && b == last_end) { /* an empty match right after a match does not count */
            size_t n = 1;
            if (at < len)
                tok_cp(s + at, &n);
            at += n;
            continue;
        }
        at = last_end = b;
        if (a < prev)
            return xd_fail(err, XD_UNSUPPORTED, 0, "%s matches backwards", what);
        if (prev != a)
            ok = tok_spans_push(ret, prev, a, false);
        ok = ok && tok_spans_push(ret, a, b, true);
        prev = b;
    }
    if (ok && prev != len)
        ok = tok_spans_push(ret, prev, len, false);
    return ok ? XD_OK : xd_fail(err, XD_NOMEM, 0, "tokenizing");
}
