/* test_gbnf.c - grammars in GBNF against lark's Earley parser, which has said of each text whether it belongs (tests/data/gbnf,
 * tests/tools/gbnf_vectors.py), and against themselves: a mask is what a run takes. */
#include <time.h>

#include "grammar_words.h"

#define VECTORS "tests/data/gbnf/vectors.json.gz"

static grammar *compile(const char *rules)
{
    grammar *g = NULL;
    xd_err err = {0};
    cr_assert_eq(grammar_new_gbnf(rules, strlen(rules), &g, &err), XD_OK, "%s: %s", rules, err.msg);
    return g;
}

Test(gbnf, takes_what_an_earley_parser_takes)
{
    words w = open_words(SMALL);
    json_t *all = read_vectors(VECTORS), *one, *pair;
    size_t i, k, n = 0, taken = 0;
    json_array_foreach (all, i, one) {
        grammar *g = compile(json_string_value(json_object_get(one, "grammar")));
        json_array_foreach (json_object_get(one, "texts"), k, pair) {
            const json_t *text = json_array_get(pair, 0);
            bool want = json_is_true(json_array_get(pair, 1));
            cr_assert_eq(is_whole(&w, g, json_string_value(text), json_string_length(text)), want, "%s: '%s'",
                         json_string_value(json_object_get(one, "name")), json_string_value(text));
            n++;
            taken += want;
        }
        grammar_unref(g);
    }
    printf("%zu grammars, %zu texts, %zu of them taken\n", json_array_size(all), n, taken);
    cr_assert_gt(n, 1500u);
    json_decref(all);
    close_words(&w);
}

/* Every token of a large vocabulary at some places. */
Test(gbnf, a_mask_has_the_tokens_whose_bytes_fit)
{
    static const struct {
        const char *rules, *text;
    } places[] = {
        {"root ::= [^\\n]* \"\\n\"", "ab"},
        {"root ::= \"(\" root \")\" | [a-z ]+ | \"\"", "(("},
        {"root ::= e\ne ::= e [-+*/] e | \"(\" e \")\" | [0-9]+", "(1+2"},
        {"root ::= (\"x\" | [a-z]+ \", \"?){3} [\\u4e00-\\u9fff]*", "xab, c"},
        {"root ::= t*\nt ::= \"\\\"\" [^\"\\\\\\x7F\\x00-\\x1F]* \"\\\"\" | \"\\n\" t \"}\"", "\n\n\"a"},
        {"root ::= [a-f] root [a-h ]? | [^c] | \"\"", "ab"},
    };
    words w = open_words(LARGE);
    for (size_t i = 0; i < XD_ARRAY_LEN(places); i++) {
        grammar *g = compile(places[i].rules);
        check_mask(&w, g, places[i].rules, places[i].text);
        grammar_unref(g);
    }
    close_words(&w);
}

Test(gbnf, faults_say_where_and_what_was_expected)
{
    static const struct {
        const char *rules, *message;
    } faults[] = {
        {"", "there is no rule 'root', which says what the whole answer is"},
        {"a ::= \"x\"", "there is no rule 'root', which says what the whole answer is"},
        {"root ::= a\n  b ::= \"x\"", "line 1, column 10: there is no rule 'a'"},
        {"root ::= \"x\"\nroot ::= \"y\"", "line 2, column 1: the rule 'root' is there already"},
        {"root = \"x\"", "line 1, column 6: expected '::=' after a rule's name, not '='"},
        {"# no\n\n ::= \"x\"", "line 3, column 2: expected a rule's name, not ':'"},
        {"root ::= \"x", "line 1, column 10: this \" has no \" that ends it"},
        {"root ::= [a-", "line 1, column 10: this [ has no ] that ends it"},
        {"root ::= []", "line 1, column 10: there is no character between [ and ]"},
        {"root ::= [z-a]", "line 1, column 11: the range ends before it begins"},
        {"root ::= \"\\q\"",
         "line 1, column 12: expected an escape: \\n \\r \\t \\\\ \\\" \\[ \\] \\- \\^ \\xXX \\uXXXX \\UXXXXXXXX, not 'q'"},
        {"root ::= \"\\x4\"", "line 1, column 14: expected 2 hexadecimal digits, not '\"'"},
        {"root ::= \"\\uD800\"", "line 1, column 11: \\uD800 is no character: those beyond U+FFFF are \\UXXXXXXXX"},
        {"root ::= (\"x\" | \"y\"", "line 1, column 10: this ( has no )"},
        {"root ::= (\"x\"\nb ::= \"y\"", "line 1, column 10: this ( has no ) before the next rule"},
        {"root ::= \"x\")",
         "line 1, column 13: expected '|', a name, a text, a class of characters or a group, not ')'"},
        {"root ::= *", "line 1, column 10: '*' repeats what stands before it, and there is nothing"},
        {"root ::= \"x\"{2", "line 1, column 15: expected '}', not the end"},
        {"root ::= \"x\"{,2}", "line 1, column 14: expected a number, not ','"},
        {"root ::= \"x\"{3,2}", "line 1, column 13: at least 3 repetitions, and at most 2"},
        {"root ::= \"x\"{2,99999}",
         "line 1, column 16: more than 5000 repetitions: leave the number out for any number of them"},
        {"root ::= <think> .*",
         "line 1, column 10: tokens (<name>, <[id]>, !<...>) are not supported: say the text that they stand for"},
        {"root ::= !<[10]>*",
         "line 1, column 10: tokens (<name>, <[id]>, !<...>) are not supported: say the text that they stand for"},
        {"root ::= \"x\" root", "no text of the rule 'root' ever comes to an end"},
        {"root ::= root", "no text of the rule 'root' ever comes to an end"},
        {"root ::= \"\\x00\"", "no text of the rule 'root' ever comes to an end"},
        {"root ::= a\na ::= b \"x\" | \"1\"\nb ::= a \"y\" | b \"z\"",
         "line 2, column 1: the rule 'a' begins with a rule that begins with it (left recursion by a detour): write it as a repetition"},
        {"root ::= \"\xC3\xA9\" &",
         "line 1, column 14: expected '|', a name, a text, a class of characters or a group, not '&'"},
    };
    for (size_t i = 0; i < XD_ARRAY_LEN(faults); i++) {
        grammar *g = NULL;
        xd_err err = {0};
        cr_assert_eq(grammar_new_gbnf(faults[i].rules, strlen(faults[i].rules), &g, &err), XD_BAD_REQUEST, "%s",
                     faults[i].rules);
        cr_assert_str_eq(err.msg, faults[i].message, "%s: %s", faults[i].rules, err.msg);
        cr_assert_str_eq(err.code, "invalid_grammar");
    }
}

static const char *take_all(const words *w, const char *rules, const char *yes, const char *no)
{
    grammar *g = compile(rules);
    const char *wrong = !is_whole(w, g, yes, strlen(yes)) ? yes : is_whole(w, g, no, strlen(no)) ? no : NULL;
    grammar_unref(g);
    return wrong;
}

Test(gbnf, small_matters_of_the_notation)
{
    static const struct {
        const char *rules, *yes, *no;
    } cases[] = {
        {"root::=\"a\"#x\n", "a", ""},
        {"root ::= \"a\" |", "", "b"},
        {"root ::= |\n\n \"a\"\n", "a", "\n"},
        {"root ::= a_b-C9 unused_1?\na_b-C9 ::= \"1\"\nunused_1 ::= \"2\"\nnever ::= never2 \"x\"\nnever2 ::= \"y\"",
         "12", "2"},
        {"root ::= \"a\"\r\n\t| \"b\"\r\nx ::= root", "b", "a\r"},
        {"root ::= [-a]+ [a-]+", "--a", "x"},
        {"root ::= [^a-c\\]]", "d", "]"},
        {"root ::= \"\\x41\\u00e9\\U0001F600\\t\\\\\\\"\\[\\]\"", "A\xC3\xA9\xF0\x9F\x98\x80\t\\\"[]", "A"},
        {"root ::= \"ab\"{2}", "abab", "abb"},
        {"root ::= \"a\"{ 1 , 2 } \"b\"{0} [c]{2,}", "accc", "aaac"},
        {"root ::= .", "\n", "ab"},
        {"root ::= (\"a\"?)*+ \"\"", "aa", "b"},
        {"root ::= dead | \"x\" dead | \"y\"\ndead ::= \"q\" dead", "y", "x"},
    };
    words w = open_words(SMALL);
    for (size_t i = 0; i < XD_ARRAY_LEN(cases); i++) {
        const char *wrong = take_all(&w, cases[i].rules, cases[i].yes, cases[i].no);
        cr_assert(!wrong, "%s: '%s'", cases[i].rules, wrong);
    }
    close_words(&w);
}

/* What is written here is deeper, longer or more ambiguous than anybody needs: it is refused, or answered within a bounded number of steps. */
Test(gbnf, hostile_grammars_are_refused_or_followed)
{
    xd_buf b[8] = {{0}};
    xd_buf_puts(&b[0], "root ::= ");
    for (int i = 0; i < 60; i++)
        xd_buf_puts(&b[0], "(");
    for (int i = 0; i < 500; i++) /* each begins with the next, and is copied into it until it is too large */
        xd_buf_printf(&b[1], "%s%d ::= r%d r%d | \"x\"\n", i ? "r" : "root ::= r1\nr", i, i + 1, i + 1);
    xd_buf_puts(&b[1], "r500 ::= \"y\"\n");
    xd_buf_puts(&b[2], "root ::= ([a-c] | \"a\"){5000} ((\"x\" | \"y\")* \"x\" (\"x\" | \"y\"){20})");
    xd_buf_puts(&b[3], "root ::= ((((\"a\"{5000}){5000}){5000}){5000})");
    xd_buf_puts(&b[4], "root ::= root root root | . root . | . | \"\"");
    xd_buf_puts(&b[5], "root ::= \"a\" r \"b\"\nr ::= \"a\" r \"b\" | \"ab\"");
    for (int i = 0; i < 1500; i++) /* rings */
        xd_buf_printf(&b[6], "%s%d ::= \"a\" r%d r%d | [b-d] r%d | \"x\"\n", i ? "r" : "root ::= r0\nr", i,
                      (i * 7 + 1) % 1500, (i * 3 + 2) % 1500, (i + 1) % 1500);
    for (int i = 0; i < 12000; i++)
        xd_buf_printf(&b[7], "%s%d ::= \"x\"\n", i ? "r" : "root ::= \"y\"\nr", i);
    words w = open_words(LARGE);
    for (size_t i = 0; i < XD_ARRAY_LEN(b); i++) {
        grammar *g = NULL;
        xd_err err = {0};
        xd_status st = grammar_new_gbnf(b[i].data, b[i].len, &g, &err);
        printf("hostile %zu: %s\n", i, st ? err.msg : "followed");
        cr_assert(st == XD_OK || st == XD_BAD_REQUEST);
        if (!st) {
            grammar_run *r = grammar_run_new(g, w.v);
            for (int k = 0; k < 300; k++) {
                const uint64_t *mask = grammar_run_mask(r);
                uint32_t id = 0;
                while (id < w.n && !(mask[id / 64] >> id % 64 & 1))
                    id++;
                if (id == w.n)
                    break;
                cr_assert_eq(grammar_run_push(r, id, &err), XD_OK, "%zu: %s", i, err.msg);
            }
            grammar_run_free(r);
        }
        grammar_unref(g);
        xd_buf_free(&b[i]);
    }
    close_words(&w);
}

/* Where rules have called each other as often as they may, there is a way to the end. */
Test(gbnf, the_last_call_that_is_allowed_can_end)
{
    words w = open_words(SMALL);
    grammar *g = compile("root ::= \"(\" root \")\" | \"\"");
    grammar_run *r = grammar_run_new(g, w.v);
    xd_err err;
    uint32_t depth = 0;
    while (depth < 10000 && !grammar_run_push(r, w.byte_id['('], &err))
        depth++;
    cr_assert(depth > 300 && depth < 400, "%u", depth);
    for (uint32_t i = 0; i < depth; i++)
        cr_assert_eq(grammar_run_push(r, w.byte_id[')'], &err), XD_OK);
    cr_assert(grammar_run_must_end(r));
    grammar_run_free(r);
    grammar_unref(g);
    g = compile("root ::= r \"c\"*\nr ::= \"a\" r | \"b\""); /* the last thing in a rule needs no way back: no limit */
    r = grammar_run_new(g, w.v);
    for (int i = 0; i < 5000; i++)
        cr_assert_eq(grammar_run_push(r, w.byte_id['a'], &err), XD_OK);
    cr_assert_eq(grammar_run_push(r, w.byte_id['b'], &err), XD_OK);
    cr_assert_eq(grammar_run_push(r, w.byte_id['c'], &err), XD_OK);
    cr_assert(grammar_run_may_end(r));
    grammar_run_free(r);
    grammar_unref(g);
    close_words(&w);
}

static double cpu_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

/* Not a limit, a figure: what a token's mask costs on the way through a text. */
Test(gbnf, the_cost_of_masks_is_told)
{
    static const char *const texts[] = {
        "{\"name\": \"Till\", \"tags\": [\"a long text with some words\", 12.5, null, {\"deep\": [[true]]}]}",
        "int main(int x){int y=1;while(y<x){y=y*2;if(y==64){return y;}}//done\nreturn f(y, 3)+(x-1);}"};
    static const char *const names[] = {"json.gbnf", "program.gbnf"};
    words w = open_words(LARGE);
    json_t *all = read_vectors(VECTORS), *one;
    size_t i;
    json_array_foreach (all, i, one) {
        for (size_t k = 0; k < XD_ARRAY_LEN(names); k++) {
            if (strcmp(json_string_value(json_object_get(one, "name")), names[k]) != 0)
                continue;
            double t0 = cpu_ms(), made, most = 0;
            grammar *g = compile(json_string_value(json_object_get(one, "grammar")));
            made = cpu_ms() - t0;
            tok_ids ids = {0};
            xd_err err = {0};
            cr_assert_eq(tok_encode(w.tok, texts[k], strlen(texts[k]), 0, &ids, &err), XD_OK);
            grammar_run *r = grammar_run_new(g, w.v);
            t0 = cpu_ms();
            for (size_t t = 0; t < ids.len; t++) {
                double before = cpu_ms();
                cr_assert(grammar_run_mask(r));
                most = XD_MAX(most, cpu_ms() - before);
                cr_assert_eq(grammar_run_push(r, ids.data[t], &err), XD_OK, "%s, token %zu: %s", names[k], t, err.msg);
            }
            printf("%s: made in %.2f ms, %zu tokens, %.3f ms of CPU a token, at most %.2f\n", names[k], made, ids.len,
                   (cpu_ms() - t0) / (double)ids.len, most);
            cr_assert(grammar_run_may_end(r));
            grammar_run_free(r);
            grammar_unref(g);
            tok_ids_free(&ids);
        }
    }
    json_decref(all);
    close_words(&w);
}
