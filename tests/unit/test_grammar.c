/* test_grammar.c - masks against oracles that know nothing of the automaton, for every token of real tokenizers.
 *
 * Two oracles. Of a small language all texts are written down: a token is allowed if and only if some text goes on with it. Of JSON in
 * general jansson judges: a token is allowed only if the text with it can be completed to what jansson reads, which is tried with
 * a list of completions; and it is not forbidden unless a rule of our own (blanks, digits, escapes) forbids it. */
#include "grammar_words.h"

static grammar *compile(const char *schema)
{
    json_t *s = schema ? json_loads(schema, JSON_DECODE_ANY, NULL) : NULL;
    cr_assert(s || !schema, "%s", schema);
    grammar *g = NULL;
    xd_err err = {0};
    cr_assert_eq(grammar_new(s, &g, &err), XD_OK, "%s: %s", schema, err.msg);
    json_decref(s);
    return g;
}

/* ---- languages of which all texts are known ---- */

/* Every text that `form` stands for: ~ is a blank that may be a space or nothing, ^ one that may be a line end and up to 4 spaces too, | ends one. */
static void spell(const char *form, xd_buf *so_far, xd_buf *ret)
{
    size_t len = so_far->len;
    for (; *form && *form != '|' && *form != '~' && *form != '^'; form++)
        xd_buf_putc(so_far, *form);
    if (!*form || *form == '|') {
        xd_buf_append(ret, so_far->data, so_far->len + 1); /* with its NUL */
        so_far->len = len;
        return;
    }
    static const char *const blanks[] = {"", " ", "\n", "\n ", "\n  ", "\n   ", "\n    "};
    size_t here = so_far->len;
    for (size_t i = 0; i < (*form == '~' ? 2 : XD_ARRAY_LEN(blanks)); i++) {
        xd_buf_puts(so_far, blanks[i]);
        spell(form + 1, so_far, ret);
        so_far->len = here;
    }
    so_far->len = len;
}

static bool begins(const xd_buf *texts, const char *s, size_t len, bool *ret_whole, bool *ret_more)
{
    bool found = false;
    *ret_whole = *ret_more = false;
    for (const char *t = texts->data; t < texts->data + texts->len; t += strlen(t) + 1) {
        size_t n = strlen(t);
        if (n < len || memcmp(t, s, len) != 0)
            continue;
        found = true;
        *ret_whole = *ret_whole || n == len;
        *ret_more = *ret_more || n > len;
    }
    return found;
}

/* Checks all tokens and both ends at this beginning; then at every beginning one byte longer, each once, but not deep into blanks: there
 * are as many of these places as there are ways to indent. */
static size_t check_from(const words *w, grammar *g, const xd_buf *all, const char *s, size_t len, int blanks)
{
    bool whole, more, unused[2];
    XD_CLEANUP(xd_buf_free) xd_buf texts = {0}; /* those that begin so */
    for (const char *t = all->data; t < all->data + all->len; t += strlen(t) + 1)
        if (strlen(t) >= len && !memcmp(t, s, len))
            xd_buf_append(&texts, t, strlen(t) + 1);
    grammar_run *r = run_at(w, g, s, len, true);
    cr_assert(r, "'%.*s' is refused", (int)len, s);
    cr_assert(begins(&texts, s, len, &whole, &more));
    cr_assert_eq(grammar_run_may_end(r), whole, "the end after '%.*s'", (int)len, s);
    cr_assert_eq(grammar_run_must_end(r), whole && !more, "the end after '%.*s'", (int)len, s);
    const uint64_t *mask = grammar_run_mask(r);
    for (uint32_t id = 0; id < w->n; id++) {
        XD_CLEANUP(xd_buf_free) xd_buf t = {0};
        bool allowed = mask[id / 64] >> id % 64 & 1, right = false;
        if (grammar_vocab_has(w->v, id)) {
            xd_buf_append(&t, s, len);
            cr_assert(tok_token_bytes(w->tok, id, &t));
            right = begins(&texts, t.data, t.len, &unused[0], &unused[1]);
        }
        cr_assert_eq(allowed, right, "token %u '%s' after '%.*s'", id, t.data ? t.data : "", (int)len, s);
    }
    grammar_run_free(r);
    size_t n = 1;
    for (int byte = 1; byte < 256; byte++) {
        char next[256];
        int b = blanks + (byte == ' ' || byte == '\n');
        memcpy(next, s, len);
        next[len] = (char)byte;
        if (b <= 2 && begins(&texts, next, len + 1, &unused[0], &unused[1]))
            n += check_from(w, g, &texts, next, len + 1, b);
    }
    return n;
}

static const struct {
    const char *schema, *texts;
} languages[] = {
    {"{\"enum\":[\"a\",\"ab\",\"b\\\"\\\\\\n\",1,12,null]}", "\"a\"|\"ab\"|\"b\\\"\\\\\\n\"|1|12|null"},
    {"{\"const\":\"gr\xC3\xB6\xC3\x9F"
     "e \xF0\x9F\x99\x82\"}",
     "\"gr\xC3\xB6\xC3\x9F"
     "e \xF0\x9F\x99\x82\""},
    {"{\"type\":\"integer\",\"minimum\":-11,\"maximum\":2}", "-1|-2|-3|-4|-5|-6|-7|-8|-9|-10|-11|0|1|2"},
    {"{\"type\":\"integer\",\"multipleOf\":35,\"exclusiveMinimum\":0,\"maximum\":200}", "35|70|105|140|175"},
    {"{\"type\":\"array\",\"items\":{\"const\":0},\"minItems\":1,\"maxItems\":2}", "[^0^]|[^0,^0^]"},
    {"{\"type\":\"object\",\"properties\":{\"a\":{\"const\":1},\"ab\":{\"const\":2},\"c\":{\"const\":3}},\"required\":[\"ab\"],"
     "\"maxProperties\":2}",
     "{^\"ab\":~2^}|{^\"a\":~1,^\"ab\":~2^}|{^\"ab\":~2,^\"c\":~3^}"},
    {"{\"anyOf\":[{\"type\":\"boolean\"},{\"const\":\"true\"},{\"type\":\"null\"},{\"const\":true}]}",
     "true|false|\"true\"|null"},
};

static size_t check_languages(const char *name, size_t n)
{
    words w = open_words(name);
    size_t places = 0;
    for (size_t i = 0; i < n; i++) {
        XD_CLEANUP(xd_buf_free) xd_buf texts = {0};
        XD_CLEANUP(xd_buf_free) xd_buf scratch = {0};
        for (const char *form = languages[i].texts; form; form = strchr(form, '|') ? strchr(form, '|') + 1 : NULL)
            spell(form, &scratch, &texts);
        grammar *g = compile(languages[i].schema);
        places += check_from(&w, g, &texts, "", 0, 0);
        grammar_unref(g);
    }
    close_words(&w);
    return places;
}

Test(grammar, allows_exactly_the_texts_of_a_language_with_bytes_as_letters)
{
    printf("%zu places\n",
           check_languages("tests/data/tokenizers/mini_bytelevel.tokenizer.json", XD_ARRAY_LEN(languages)));
}

Test(grammar, allows_exactly_the_texts_of_a_language_with_sentencepiece)
{
    printf("%zu places\n",
           check_languages("tests/data/tokenizers/mini_spm_first.tokenizer.json", XD_ARRAY_LEN(languages)));
}

Test(grammar, allows_exactly_the_texts_of_a_language_with_a_large_vocabulary)
{
    printf("%zu places\n", check_languages("tests/data/tokenizers/qwen3.tokenizer.json.gz", 2));
}

/* ---- JSON in general ---- */

static bool reads(const xd_buf *b)
{
    json_t *v = json_loadb(b->data, b->len, JSON_REJECT_DUPLICATES, NULL);
    bool ok = json_is_object(v);
    json_decref(v);
    return ok;
}

/* Can something be put behind s so that jansson reads it? */
static bool completes(const char *s, size_t len)
{
    static const char *const ends[] = {
        "00\\udc00\"",
        "00\\udc00\":0",
        "0\\udc00\"",
        "0\\udc00\":0",
        "\\udc00\"",
        "",
        "0",
        "\"",
        "\":0",
        "\"\":0",
        ":0",
        "null",
        "rue",
        "ue",
        "e",
        "alse",
        "lse",
        "se",
        "ull",
        "ll",
        "l",
        "n\"",
        "n\":0",
        "u0041\"",
        "u0041\":0",
        "0041\"",
        "0041\":0",
        "041\"",
        "041\":0",
        "41\"",
        "41\":0",
        "1\"",
        "1\":0",
        "\\udc00\"",
        "\\udc00\":0",
        "udc00\"",
        "udc00\":0",
        "dc00\"",
        "dc00\":0",
        "c00\"",
        "c00\":0",
        "00\"",
        "00\":0",
        "\x80\"",
        "\x80\":0",
        "\xA0\x80\"",
        "\xA0\x80\":0",
        "\x80\x80\"",
        "\x80\x80\":0",
        "\xA0\x80\x80\"",
        "\xA0\x80\x80\":0",
        "\x80\x80\x80\"",
        "\x80\x80\x80\":0",
        "{}",
    };
    char close[256];
    size_t depth = 0;
    bool text = false, escape = false;
    if (memchr(s, 0, len)) /* jansson takes a NUL after a number for its end */
        return false;
    for (size_t i = 0; i < len; i++) {
        if (text) {
            bool was = escape;
            escape = !escape && s[i] == '\\';
            text = was || s[i] != '"';
        } else if (s[i] == '"') {
            text = true;
        } else if ((s[i] == '{' || s[i] == '[') && depth < sizeof close) {
            close[depth++] = s[i] == '{' ? '}' : ']';
        } else if ((s[i] == '}' || s[i] == ']') && (!depth || close[--depth] != s[i])) {
            return false;
        }
    }
    XD_CLEANUP(xd_buf_free) xd_buf b = {0};
    for (size_t i = 0; i < XD_ARRAY_LEN(ends); i++) {
        xd_buf_clear(&b);
        xd_buf_append(&b, s, len);
        xd_buf_puts(&b, ends[i]);
        for (size_t k = depth; k-- > 0;)
            xd_buf_putc(&b, close[k]);
        if (reads(&b))
            return true;
    }
    return false;
}

static void check_json_at(const words *w, grammar *g, const char *s, size_t *n_allowed)
{
    grammar_run *r = run_at(w, g, s, strlen(s), true);
    cr_assert(r, "'%s' is refused", s);
    const uint64_t *mask = grammar_run_mask(r);
    for (uint32_t id = 0; id < w->n; id++) {
        XD_CLEANUP(xd_buf_free) xd_buf t = {0};
        bool allowed = mask[id / 64] >> id % 64 & 1;
        *n_allowed += allowed;
        if (!grammar_vocab_has(w->v, id)) {
            cr_assert_not(allowed, "token %u is no text", id);
            continue;
        }
        xd_buf_puts(&t, s);
        cr_assert(tok_token_bytes(w->tok, id, &t));
        bool ours =
            strpbrk(t.data + strlen(s), " \n\t\r\\0123456789.eE+-:") != NULL; /* rules of our own may forbid it */
        if (allowed || !ours)
            cr_assert_eq(completes(t.data, t.len), allowed, "token %u '%s' (%02x) after '%s'", id, t.data + strlen(s),
                         (unsigned char)t.data[strlen(s)], s);
    }
    grammar_run_free(r);
}

Test(grammar, json_is_what_another_reader_takes)
{
    static const char *const at[] = {
        "",
        "{",
        "{\"",
        "{\"a",
        "{\"\xF0\x9F",
        "{\"a\"",
        "{\"a\":",
        "{\"a\": t",
        "{\"a\":[",
        "{\"a\":[1",
        "{\"a\":[-",
        "{\"a\":[0.",
        "{\"a\":[1.5e",
        "{\"a\":\"x",
        "{\"a\":\"\xE2",
        "{\"a\":\"\xE2\x82",
        "{\"a\":\"\xED",
        "{\"a\":\"\xF4",
        "{\"a\":\"\\",
        "{\"a\":\"\\u",
        "{\"a\":\"\\u000",
        "{\"a\":\"\\ud",
        "{\"a\":\"\\ud83d",
        "{\"a\":\"\\ud83d\\u",
        "{\"a\":\"\\ud83d\\ud",
        "{\"a\":{\"b\":[[{\"c\":\"d\"",
        "{\"a\":{\"b\":[[{\"c\":\"d\"}]]}",
        "{\n    \"a\": 1,\n",
    };
    const char *const names[] = {"config/demo/tokenizer.json", "tests/data/tokenizers/mini_spm_first.tokenizer.json",
                                 "tests/data/tokenizers/qwen3.tokenizer.json.gz"};
    grammar *g = compile(NULL);
    for (size_t k = 0; k < XD_ARRAY_LEN(names); k++) {
        words w = open_words(names[k]);
        size_t n = 0, places = 0;
        for (size_t i = k == 2; i < XD_ARRAY_LEN(at); i += k == 2 ? 4 : 1, places++)
            check_json_at(&w, g, at[i], &n);
        printf("%s: %zu places, %u tokens, %zu allowed in all\n", names[k], places, w.n, n);
        close_words(&w);
        grammar_unref(g);
        g = compile(NULL); /* masks are kept with a grammar, by one vocabulary */
    }
    grammar_unref(g);
}

Test(grammar, blanks_are_bounded)
{
    words w = open_words("config/demo/tokenizer.json");
    grammar *g = compile("{\"type\":\"array\",\"items\":{\"type\":\"object\"}}");
    static const struct {
        const char *text;
        bool right;
    } rows[] = {
        {" [", false},
        {"  [", false},
        {"\n[", false},
        {"\n\n[", false},
        {"\n [", false},
        {"[ ", true},
        {"[  ", false},
        {"[\n    {", true},
        {"[\n     ", false},
        {"[\n\n", false},
        {"[\t", false},
        {"[{}\n]", true},
        {"[{} ,", false},
        {"[{}, {}", true},
        {"[{},\n    {\n        \"", true},
        {"[{\n         ", false},
        {"[{\"a\": 1", true},
        {"[{\"a\":  ", false},
        {"[{\"a\":\n", false},
        {"[{\"a\" :", false},
        {"[] ", false},
        {"[]\n", false},
    };
    for (size_t i = 0; i < XD_ARRAY_LEN(rows); i++) {
        grammar_run *r = run_at(&w, g, rows[i].text, strlen(rows[i].text), true);
        cr_assert_eq(r != NULL, rows[i].right, "'%s'", rows[i].text);
        grammar_run_free(r);
    }
    grammar_unref(g);
    close_words(&w);
}

Test(grammar, an_ambiguous_schema_costs_a_bounded_walk_and_stays_right)
{
    words w = open_words("tests/data/tokenizers/qwen3.tokenizer.json.gz");
    json_t *schema = json_object(), *any = json_array();
    for (int i = 0; i < 900; i++)
        json_array_append_new(any, json_pack("{s:s, s:i}", "type", "string", "maxLength", i + 20));
    json_object_set_new(schema, "anyOf", any);
    grammar *g = NULL;
    xd_err err;
    cr_assert_eq(grammar_new(schema, &g, &err), XD_OK);
    json_decref(schema);
    grammar_run *r = run_at(&w, g, "\"abc", 4, true);
    uint32_t n = 0;
    const uint64_t *mask = grammar_run_mask(r);
    for (uint32_t id = 0; id < w.n; id++) {
        XD_CLEANUP(xd_buf_free) xd_buf t = {0};
        if (mask[id / 64] >> id % 64 & 1) {
            n++;
            cr_assert(tok_token_bytes(w.tok, id, &t));
            const char *end = memchr(t.data, '"', t.len);
            cr_assert(!end || end == t.data + t.len - 1 || (end > t.data && end[-1] == '\\'), "'%s'", t.data);
        }
    }
    cr_assert_gt(n, 100000);
    grammar_run_free(r);
    grammar_unref(g);
    close_words(&w);
}

static grammar_run *push_text(const words *w, grammar *g, const char *text, size_t len)
{
    grammar_run *r = grammar_run_new(g, w->v);
    xd_err err;
    for (size_t i = 0; i < len; i++)
        cr_assert_eq(grammar_run_push(r, w->byte_id[(unsigned char)text[i]], &err), XD_OK, "%zu: %s", i, err.msg);
    return r;
}

/* Each bracket can be read in a hundred ways: two of them in ten thousand. That took 27 s and 2 GB for four. */
Test(grammar, readings_that_multiply_are_followed_up_to_a_limit)
{
    enum { DEEP = 40 };
    words w = open_words("tests/data/tokenizers/qwen3.tokenizer.json.gz");
    json_t *any = json_pack("[{s:s}]", "type", "null");
    for (int i = 0; i < 100; i++)
        json_array_append_new(
            any, json_pack("{s:s, s:{s:s}, s:i}", "type", "array", "items", "$ref", "#", "maxItems", i + 9));
    json_t *schema = json_pack("{s:o}", "anyOf", any);
    grammar *g = NULL;
    xd_err err;
    cr_assert_eq(grammar_new(schema, &g, &err), XD_OK);
    json_decref(schema);
    char text[2 * DEEP + 8] = "";
    memset(text, '[', DEEP);
    memcpy(text + DEEP, "null", 4);
    memset(text + DEEP + 4, ']', DEEP);
    grammar_run *r = push_text(&w, g, text, strlen(text));
    cr_assert(grammar_run_may_end(r));
    grammar_run_free(r);
    /* What the mask allows is taken. */
    r = push_text(&w, g, text, 6);
    uint64_t *mask = calloc((w.n + 63) / 64, sizeof *mask);
    memcpy(mask, grammar_run_mask(r), (w.n + 63) / 64 * sizeof *mask);
    uint32_t n = 0;
    for (uint32_t id = 0; id < w.n; id++) {
        if (!(mask[id / 64] >> id % 64 & 1))
            continue;
        cr_assert_eq(grammar_run_push(r, id, &err), XD_OK, "token %u: %s", id, err.msg);
        n++;
        grammar_run_free(r);
        r = push_text(&w, g, text, 6);
    }
    cr_assert_gt(n, 10);
    free(mask);
    grammar_run_free(r);
    grammar_unref(g);
    close_words(&w);
}

static json_t *numbers(int from, int n)
{
    json_t *list = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(list, json_integer(from + i));
    return list;
}

/* Lists of 20 000 values took half a minute to compare, and objects of 45 000 properties a gigabyte to join. */
Test(grammar, what_joining_schemas_costs_is_bounded)
{
    json_t *many = json_object(), *names = json_array(), *all = json_array(), *one_of = json_array();
    for (int i = 0; i < 20000; i++) {
        char name[16];
        snprintf(name, sizeof name, "p%d", i);
        json_object_set_new(many, name, json_true());
        json_array_append_new(names, json_string(name));
    }
    json_array_append_new(all, json_pack("{s:o}", "properties", many));
    for (int i = 0; i < 400; i++)
        json_array_append_new(all, json_pack("{s:{s:b}}", "properties", "q", 1));
    for (int i = 0; i < 30; i++)
        json_array_append_new(one_of, json_pack("{s:o}", "enum", numbers(i * 1500, 1500)));
    json_t *schemas[] = {
        json_pack("{s:[{s:o},{s:o}]}", "allOf", "enum", numbers(0, 20000), "enum", numbers(20000, 20000)),
        json_pack("{s:[{s:[s]},{s:o}]}", "allOf", "required", "a", "required", names),
        json_pack("{s:o}", "allOf", all),
        json_pack("{s:o}", "oneOf", one_of),
    };
    for (size_t i = 0; i < XD_ARRAY_LEN(schemas); i++) {
        grammar *g = NULL;
        xd_err err = {0};
        cr_assert(schemas[i]);
        cr_assert_eq(grammar_new(schemas[i], &g, &err), XD_BAD_REQUEST);
        cr_assert_str_eq(err.msg, "joins schemas that are too large");
        json_decref(schemas[i]);
    }
}

Test(grammar, tokens_that_do_not_fit_leave_the_run_as_it_was)
{
    words w = open_words("config/demo/tokenizer.json");
    grammar *g = compile("{\"const\":12}");
    grammar_run *r = run_at(&w, g, "1", 1, true);
    xd_err err;
    cr_assert_eq(grammar_run_push(r, w.byte_id['3'], &err), XD_INTERNAL);
    cr_assert_eq(grammar_run_push(r, w.n + 5, &err), XD_INTERNAL);
    cr_assert_eq(grammar_run_push(r, (uint32_t)tok_token_id(w.tok, "<|im_end|>"), &err), XD_INTERNAL);
    cr_assert_not(grammar_run_may_end(r));
    cr_assert_eq(grammar_run_push(r, w.byte_id['2'], &err), XD_OK);
    cr_assert(grammar_run_must_end(r));
    grammar_run_free(r);
    grammar_unref(g);
    close_words(&w);
}

Test(grammar, runs_share_masks_and_do_not_disturb_each_other)
{
    words w = open_words("config/demo/tokenizer.json");
    grammar *g = compile("{\"type\":\"object\",\"additionalProperties\":{\"type\":\"string\"}}");
    grammar_run *a = run_at(&w, g, "{\"x\":\"y", 7, true), *b = run_at(&w, g, "{\"other\": \"longer text", 22, true);
    const uint64_t *mask = grammar_run_mask(a);
    cr_assert_eq(grammar_run_mask(b), mask, "the same state has the same mask");
    grammar_run_free(a);
    for (int i = 0; i < 100; i++) { /* other states come and go */
        char text[32];
        int len = snprintf(text, sizeof text, "{\n%*s\"a\":\"", i % 5, "");
        grammar_run_free(run_at(&w, g, text, (size_t)len, true));
    }
    mask = grammar_run_mask(b);
    cr_assert(mask[w.byte_id['"'] / 64] >> w.byte_id['"'] % 64 & 1);
    cr_assert_not(mask[w.byte_id['\n'] / 64] >> w.byte_id['\n'] % 64 & 1);
    grammar_run_free(b);
    grammar_unref(g);
    close_words(&w);
}

Test(grammar, a_decoder_that_does_not_join_is_refused)
{
    char path[4096];
    const char *root = getenv("EXPERTD_SOURCE_ROOT");
    snprintf(path, sizeof path, "%s/config/demo/tokenizer.json", root ? root : ".");
    json_t *j = json_load_file(path, 0, NULL);
    json_object_set_new(j, "decoder", json_null());
    char *text = json_dumps(j, 0);
    tokenizer *t = NULL;
    grammar_vocab *v = NULL;
    xd_err err;
    cr_assert_eq(tok_from_json(text, strlen(text), &t, &err), XD_OK);
    cr_assert_eq(grammar_vocab_new(t, 4096, &v, &err), XD_UNSUPPORTED);
    tok_free(t);
    free(text);
    json_decref(j);
}

/* Masks take shortcuts (whole sets of plain tokens, patterns without frames); taking a token goes byte by byte. */
Test(grammar, masks_are_what_push_takes)
{
    static const struct {
        const char *schema, *text;
    } rows[] = {
        {"{\"type\":\"string\",\"maxLength\":5}", "\"abc"},
        {"{\"type\":\"string\",\"minLength\":4,\"maxLength\":6}", "\"a\xC3\xA9"},
        {"{\"type\":\"string\",\"pattern\":\"^[A-Za-z ]+$\"}", "\"abc"},
        {"{\"type\":\"string\",\"pattern\":\"^[A-Za-z ]+$\",\"maxLength\":6}", "\"abc"},
        {"{\"type\":\"string\",\"pattern\":\"^.*$\"}", "\"abc"},
        {"{\"type\":\"string\",\"pattern\":\"^\\\\S.*$\",\"maxLength\":7}", "\"abc"},
        {"{\"type\":\"string\",\"pattern\":\"\\\\S\"}", "\" "},
        {"{\"type\":\"string\",\"pattern\":\"^[^a-f]+$\"}", "\"x\xE2"},
        {"{\"type\":\"string\",\"pattern\":\"^(..)*$\"}", "\"xyz"},
        {"{\"type\":\"string\",\"pattern\":\"^a.{2}[a-z ]+$\"}", "\"a"},
        {"{\"type\":\"string\",\"pattern\":\"^.{3}e.{70}$\"}", "\"a"},
        {"{\"type\":\"string\",\"pattern\":\"^.{3}e.{70}$\"}", "\"abce"},
        {"{\"type\":\"string\",\"pattern\":\"^([\xC3\xA0-\xC3\xBF]|t|th|the|\\\\n)*$\"}", "\"t"},
        {"{\"type\":\"string\",\"format\":\"email\"}", "\"a"},
        {"{\"anyOf\":[{\"type\":\"string\",\"maxLength\":3},{\"type\":\"string\",\"pattern\":\"^[a-z]+$\"},{\"enum\":[\"The end\"]}]}",
         "\""},
        {"{\"type\":\"object\",\"properties\":{\"the\":{\"type\":\"null\"}},\"additionalProperties\":{\"type\":\"null\"}}",
         "{\"th"},
        {"{\"type\":\"object\",\"additionalProperties\":{\"type\":\"null\"}}", "{\"x\xF0"},
        {"{\"type\":\"array\",\"items\":{\"type\":\"number\",\"maximum\":37.5}}", "[3"},
        {"true", ""},
    };
    const char *const names[] = {"config/demo/tokenizer.json", "tests/data/tokenizers/mini_spm_legacy.tokenizer.json"};
    for (size_t k = 0; k < XD_ARRAY_LEN(names); k++) {
        words w = open_words(names[k]);
        for (size_t i = 0; i < XD_ARRAY_LEN(rows); i++) {
            grammar *g = compile(rows[i].schema);
            const size_t len = strlen(rows[i].text);
            grammar_run *r = run_at(&w, g, rows[i].text, len, true);
            cr_assert(r, "%s %s", rows[i].schema, rows[i].text);
            uint64_t mask[128];
            cr_assert_lt(w.n, 64 * XD_ARRAY_LEN(mask));
            memcpy(mask, grammar_run_mask(r), (w.n + 63) / 64 * sizeof *mask);
            uint32_t n = 0;
            for (uint32_t id = 0; id < w.n; id++) {
                xd_err err;
                bool allowed = mask[id / 64] >> id % 64 & 1, taken = grammar_run_push(r, id, &err) == XD_OK;
                cr_assert_eq(allowed, taken, "%s after %s: token %u", rows[i].schema, rows[i].text, id);
                n += taken;
                if (taken) {
                    grammar_run_free(r);
                    r = run_at(&w, g, rows[i].text, len, true);
                }
            }
            cr_assert_gt(n, 0);
            grammar_run_free(r);
            grammar_unref(g);
        }
        close_words(&w);
    }
}
