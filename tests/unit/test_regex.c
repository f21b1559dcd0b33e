/* test_regex.c - regular expressions against Python's re.fullmatch, which has said of each text whether it matches (tests/data/regex,
 * tests/tools/regex_vectors.py), and answers that are one of some texts. */
#include <sys/resource.h>
#include <time.h>

#include "engine/text/grammar_priv.h"
#include "grammar_words.h"

#define VECTORS "tests/data/regex/vectors.json.gz"

static grammar *compile(const char *regex)
{
    grammar *g = NULL;
    xd_err err = {0};
    cr_assert_eq(grammar_new_regex(regex, strlen(regex), &g, &err), XD_OK, "%s: %s", regex, err.msg);
    return g;
}

/* choices: JSON */
static xd_status choose(const char *choices, grammar **ret, xd_err *err)
{
    json_t *list = json_loads(choices, 0, NULL);
    xd_status st = grammar_new_choice(list, ret, err);
    json_decref(list);
    return st;
}

static grammar *compile_choice(const char *choices)
{
    grammar *g = NULL;
    xd_err err = {0};
    cr_assert_eq(choose(choices, &g, &err), XD_OK, "%s: %s", choices, err.msg);
    return g;
}

Test(regex, takes_what_python_matches)
{
    words w = open_words(SMALL);
    json_t *all = read_vectors(VECTORS), *list = json_object_get(all, "expressions"), *one, *pair;
    size_t i, k, n = 0, taken = 0;
    json_array_foreach (list, i, one) {
        const char *regex = json_string_value(json_object_get(one, "regex"));
        grammar *g = compile(regex);
        json_array_foreach (json_object_get(one, "texts"), k, pair) {
            const json_t *text = json_array_get(pair, 0);
            bool want = json_is_true(json_array_get(pair, 1));
            cr_assert_eq(is_whole(&w, g, json_string_value(text), json_string_length(text)), want, "%s: '%s'", regex,
                         json_string_value(text));
            n++;
            taken += want;
        }
        grammar_unref(g);
    }
    printf("%zu expressions, %zu texts, %zu of them taken\n", json_array_size(list), n, taken);
    cr_assert_gt(n, 10000u);
    json_decref(all);
    close_words(&w);
}

/* Is all of [lo, hi] in the ranges, which are sorted and apart? */
static bool is_within(const json_t *ranges, uint32_t lo, uint32_t hi)
{
    size_t i;
    const json_t *range;
    json_array_foreach ((json_t *)(uintptr_t)ranges, i, range)
        if (json_integer_value(json_array_get(range, 1)) >= (json_int_t)lo)
            return json_integer_value(json_array_get(range, 0)) <= (json_int_t)lo &&
                   json_integer_value(json_array_get(range, 1)) >= (json_int_t)hi;
    return false;
}

/* Whatever version of Unicode Python has: no character comes that it does not find in the class, and of ASCII all do that it finds. */
Test(regex, a_class_has_no_character_that_is_not_in_pythons)
{
    json_t *all = read_vectors(VECTORS), *one;
    size_t i;
    json_array_foreach (json_object_get(all, "classes"), i, one) {
        const char *regex = json_string_value(json_array_get(one, 0));
        const json_t *ranges = json_array_get(one, 1);
        grammar *g = compile(regex);
        const gram_dfa *d = &g->dfa[0];
        uint32_t n = 0;
        for (uint32_t e = d->first[0]; e < d->first[1]; e++) {
            /* Surrogates are cut out of what is spelt; Python's classes have them. */
            cr_assert(is_within(ranges, d->edge[e].lo, d->edge[e].hi), "%s has U+%04X to U+%04X", regex, d->edge[e].lo,
                      d->edge[e].hi);
            n += d->edge[e].hi - d->edge[e].lo + 1;
        }
        for (uint32_t c = 1; c < 0x80; c++) {
            bool want = is_within(ranges, c, c), maybe = strpbrk(regex, "sS") && c >= 0x1C && c <= 0x1F;
            cr_assert(maybe || (gram_dfa_go(d, 0, c, c) != GRAM_NONE) == want, "%s: U+%04X", regex, c);
        }
        printf("%s: %u characters, %u edges\n", regex, n, d->first[1]);
        grammar_unref(g);
    }
    json_decref(all);
}

Test(regex, a_mask_has_the_tokens_whose_bytes_fit)
{
    static const char *const places[][2] = {
        {"(?P<year>\\d{4})-(0[1-9]|1[0-2])", "19"},
        {"[\\w ,.-]{1,100}", "Ein "},
        {".{0,6}", "abc"},
        {"[^\\n\"]*\"\\n", "x"},
        {"\xC3\xA9+[\xE4\xB8\x80-\xE9\xBE\xA5]{2}", "\xC3\xA9\xE4\xB8"}, /* in the middle of a character */
        {"(yes|no|the|there|then)( (yes|no))*", "the"},
        {"\\W+", "!"},
    };
    words w = open_words(LARGE);
    for (size_t i = 0; i < XD_ARRAY_LEN(places); i++) {
        grammar *g = compile(places[i][0]);
        check_mask(&w, g, places[i][0], places[i][1]);
        grammar_unref(g);
    }
    grammar *g =
        compile_choice("[\"yes\", \"yes please\", \"no\", \"\xE4\xB8\xAD\xE6\x96\x87\", \"\xE4\xB8\xAD\xE5\x9B\xBD\"]");
    check_mask(&w, g, "choice", "");
    check_mask(&w, g, "choice", "yes");
    check_mask(&w, g, "choice", "\xE4\xB8\xAD");
    grammar_unref(g);
    close_words(&w);
}

Test(regex, an_answer_may_end_where_the_whole_matches)
{
    static const struct {
        const char *regex, *text;
        bool may, must;
    } cases[] = {
        {"yes|no", "ye", false, false},
        {"yes|no", "yes", true, true},
        {"yes( please)?", "yes", true, false},
        {"yes( please)?", "yes ", false, false},
        {"yes( please)?", "yes please", true, true},
        {"", "", true, true},
        {"a*", "", true, false},
        {"a+", "", false, false},
        {"\xC3\xA9", "\xC3", false, false},
        {"[\xC3\xA9\xC3\xA8]?", "\xC3\xA9", true, true},
        {"^a$", "a", true, true},
        {"\\d{2,3}", "12", true, false},
    };
    words w = open_words(SMALL);
    for (size_t i = 0; i < XD_ARRAY_LEN(cases); i++) {
        grammar *g = compile(cases[i].regex);
        grammar_run *r = run_at(&w, g, cases[i].text, strlen(cases[i].text), true);
        cr_assert(r, "%s", cases[i].regex);
        cr_assert_eq(grammar_run_may_end(r), cases[i].may, "%s: '%s'", cases[i].regex, cases[i].text);
        cr_assert_eq(grammar_run_must_end(r), cases[i].must, "%s: '%s'", cases[i].regex, cases[i].text);
        grammar_run_free(r);
        grammar_unref(g);
    }
    close_words(&w);
}

Test(regex, a_choice_is_one_of_its_texts_and_may_begin_another)
{
    static const char choices[] =
        "[\"yes\", \"yes please\", \"\", \"no\", \"\\\"no\\\"\", \"\xF0\x9F\x99\x82\", \"a\\nb\", \"no\"]";
    static const struct {
        const char *text;
        bool may, must;
    } cases[] = {{"", true, false},          {"y", false, false},
                 {"yes", true, false},       {"yes ", false, false},
                 {"yes please", true, true}, {"no", true, true},
                 {"\"no", false, false},     {"\"no\"", true, true},
                 {"\xF0\x9F", false, false}, {"\xF0\x9F\x99\x82", true, true},
                 {"a\nb", true, true}};
    static const char *const others[] = {"yes!", "yesyes", "no ", " no", "x", "YES", "null", "a b", "\xF0\x9F\x99\x83"};
    words w = open_words(SMALL);
    grammar *g = compile_choice(choices);
    for (size_t i = 0; i < XD_ARRAY_LEN(cases); i++) {
        grammar_run *r = run_at(&w, g, cases[i].text, strlen(cases[i].text), true);
        cr_assert(r, "%s", cases[i].text);
        cr_assert_eq(grammar_run_may_end(r), cases[i].may, "%s", cases[i].text);
        cr_assert_eq(grammar_run_must_end(r), cases[i].must, "%s", cases[i].text);
        grammar_run_free(r);
    }
    for (size_t i = 0; i < XD_ARRAY_LEN(others); i++)
        cr_assert(!is_whole(&w, g, others[i], strlen(others[i])), "%s", others[i]);
    grammar_unref(g);
    g = compile_choice("[\"\"]");
    grammar_run *r = grammar_run_new(g, w.v);
    cr_assert(grammar_run_must_end(r));
    grammar_run_free(r);
    grammar_unref(g);
    close_words(&w);
}

Test(regex, faults_say_where_and_what)
{
    static const struct {
        const char *regex, *message;
    } faults[] = {
        {"a(b", "character 2: the regular expression has a ( without its )"},
        {"\xC3\xA9(b", "character 2: the regular expression has a ( without its )"},
        {"ab)c", "character 3: the regular expression has a ) without its ("},
        {"a\n[b", "character 3: the regular expression has a [ without its ]"},
        {"[]", "character 1: the regular expression has a [ without its ]"},
        {"[z-a]", "character 2: the regular expression has a range whose end is before its beginning"},
        {"[a-\\d]", "character 2: the regular expression has a range that begins or ends with \\d, \\w or \\s"},
        {"[\\w-z]", "character 2: the regular expression has a range that begins or ends with \\d, \\w or \\s"},
        {"ab\\", "character 3: the regular expression ends with a backslash"},
        {"\\q", "character 1: the regular expression has an escape that is not supported"},
        {"\\x4", "character 1: the regular expression has an escape that is not supported"},
        {"\\ud800", "character 1: the regular expression has an escape that is not supported"},
        {"\\0", "character 1: the regular expression has an octal escape, which is not supported: write \\x and two "
                "hexadecimal digits"},
        {"a|*", "character 3: the regular expression repeats nothing"},
        {"{2}", "character 1: the regular expression repeats nothing"},
        {"a**", "character 3: the regular expression repeats what is repeated already: put it in a group first, as in "
                "(?:a{2}){3}"},
        {"a{2}{3}", "character 5: the regular expression repeats what is repeated already: put it in a group first, as "
                    "in (?:a{2}){3}"},
        {"a{3,2}", "character 2: the regular expression repeats a part at least more often than at most"},
        {"a{1000000}", "character 2: the regular expression repeats a part more than 5000 times: leave the number out "
                       "for any number of them"},
        {"x(?=a)", "character 2: the regular expression looks ahead ((?= or (?!), which is not supported"},
        {"x(?!a)", "character 2: the regular expression looks ahead ((?= or (?!), which is not supported"},
        {"(?<=a)x", "character 1: the regular expression looks behind ((?<= or (?<!), which is not supported"},
        {"(?<!a)x", "character 1: the regular expression looks behind ((?<= or (?<!), which is not supported"},
        {"(a)\\1", "character 4: the regular expression refers back to a group, which is not supported"},
        {"(?P<a>b)(?P=a)", "character 9: the regular expression refers back to a group ((?P=), which is not supported"},
        {"(?i)yes", "character 1: the regular expression sets flags ((?i), (?s:...)), which is not supported: write "
                    "[Aa] for either case, [\\s\\S] for any character"},
        {"(?s:.)", "character 1: the regular expression sets flags ((?i), (?s:...)), which is not supported: write "
                   "[Aa] for either case, [\\s\\S] for any character"},
        {"(?>a)", "character 1: the regular expression has an atomic group ((?>), which is not supported"},
        {"(a)?(?(1)b)",
         "character 5: the regular expression has a condition on a group ((?(1)), which is not supported"},
        {"(?#a)", "character 1: the regular expression has a comment ((?#), which is not supported: leave it out"},
        {"(?&a)", "character 1: the regular expression has a (? that begins no group: (?:...) and (?P<name>...) do"},
        {"a*+b", "character 3: the regular expression repeats possessively (*+, ++, ?+, }+), which is not supported"},
        {"\\bx", "character 1: the regular expression has a word boundary (\\b), which is not supported"},
        {"\\p{L}", "character 1: the regular expression has a character property (\\p), which is not supported: write "
                   "its ranges, as in [A-Za-z\\u00C0-\\u024F]"},
        {"[[:alpha:]]", "character 2: the regular expression has a class by name ([:alpha:]), which is not supported: "
                        "write its ranges, as in [A-Za-z]"},
        {"a$b", "the regular expression matches no text that may stand here"},
        {"\\x00", "the regular expression matches no text"},
        {"((a{100}){100}){100}", "the regular expression is too large: smaller counts ({m,n}) would help"},
        {"(a|b)*a(a|b){30}",
         "the regular expression is too complex: smaller counts ({m,n}) or fewer alternatives would help"},
    };
    for (size_t i = 0; i < XD_ARRAY_LEN(faults); i++) {
        grammar *g = NULL;
        xd_err err = {0};
        cr_assert_eq(grammar_new_regex(faults[i].regex, strlen(faults[i].regex), &g, &err), XD_BAD_REQUEST, "%s",
                     faults[i].regex);
        cr_assert_str_eq(err.msg, faults[i].message, "%s: %s", faults[i].regex, err.msg);
        cr_assert_str_eq(err.code, "invalid_regex");
    }
}

static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static size_t peak_bytes(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (size_t)u.ru_maxrss << 10;
}

/* It was looked for [:alpha:] to the end of the letters from each of them on: 20 s. */
Test(regex, a_class_of_very_many_letters_takes_no_time)
{
    enum { N = 250000 };
    XD_CLEANUP(xd_buf_free) xd_buf s = {0};
    xd_buf_puts(&s, "[");
    for (int i = 0; i < N; i++)
        xd_buf_puts(&s, "a");
    xd_buf_puts(&s, "]");
    double before = cpu_seconds();
    grammar_unref(compile(s.data));
    cr_assert_lt(cpu_seconds() - before, 2);
}

static void check_too_complex(const char *regex)
{
    grammar *g = NULL;
    xd_err err = {0};
    size_t before = peak_bytes();
    cr_assert_eq(grammar_new_regex(regex, strlen(regex), &g, &err), XD_BAD_REQUEST);
    cr_assert(strstr(err.msg, "is too complex"), "%s", err.msg);
    size_t took = peak_bytes() - before;
    cr_assert_lt(took, (size_t)100 << 20, "%zu MiB", took >> 20);
}

/* The limits of all its places' ranges were put together before they were counted: 750 MiB. */
Test(regex, a_large_class_that_is_repeated_takes_no_memory)
{
    XD_CLEANUP(xd_buf_free) xd_buf s = {0};
    xd_buf_puts(&s, "(?:[");
    for (uint32_t c = 0x1000; c < 0xAC00; c += 2) {
        xd_buf_putc(&s, (char)(0xE0 | c >> 12));
        xd_buf_putc(&s, (char)(0x80 | (c >> 6 & 63)));
        xd_buf_putc(&s, (char)(0x80 | (c & 63)));
    }
    xd_buf_puts(&s, "]?){4900}");
    check_too_complex(s.data);
}

/* Each \W is 80 ranges, which are sorted among all others. */
Test(regex, sorting_ranges_is_counted)
{
    XD_CLEANUP(xd_buf_free) xd_buf s = {0};
    xd_buf_puts(&s, "[");
    for (int i = 0; i < 40000; i++)
        xd_buf_puts(&s, "\\W");
    xd_buf_puts(&s, "]");
    check_too_complex(s.data);
}

Test(regex, limits_of_choices)
{
    grammar *g = NULL;
    xd_err err = {0};
    cr_assert_eq(choose("[]", &g, &err), XD_BAD_REQUEST);
    cr_assert_str_eq(err.msg, "1 to 10000 strings are allowed, not 0");
    json_t *many = json_array(), *large = json_array();
    for (int i = 0; i < 10001; i++)
        json_array_append_new(many, json_sprintf("%d", i));
    for (int i = 0; i < 129; i++)
        json_array_append_new(large, json_sprintf("%01024d", i));
    cr_assert_eq(grammar_new_choice(many, &g, &err), XD_BAD_REQUEST);
    cr_assert_str_eq(err.msg, "1 to 10000 strings are allowed, not 10001");
    cr_assert_eq(grammar_new_choice(large, &g, &err), XD_BAD_REQUEST);
    cr_assert_str_eq(err.msg, "the strings have 132096 bytes together: at most 131072 are allowed");
    json_array_remove(many, 0);
    json_array_remove(large, 0);
    cr_assert_eq(grammar_new_choice(many, &g, &err), XD_OK);
    grammar_unref(g);
    cr_assert_eq(grammar_new_choice(large, &g, &err), XD_OK);
    grammar_unref(g);
    json_decref(many);
    json_decref(large);
}
