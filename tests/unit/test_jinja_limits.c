/* Templates and variables of about a megabyte that try to take for ever, under the limits that a server has by default. Each must end in text
 * or in a clear error, within the limits of steps and of memory; the slowest is printed. tests/tools/jinja_limits.py tries 5000 more.
 *
 * What keeps the time in bounds is that every operation counts its work: no time is asserted here, but a case that forgot to count would
 * run into the limit of the test runner. */
#include <criterion/criterion.h>
#include <string.h>
#include <time.h>

#include "api/jinja/jinja.h"

enum { MB = 1000000, MAX_STEPS = 40000000, MAX_MEMORY = 64 << 20 };

#define EACH(body) "{% for a in l %}" body "{% endfor %}"
#define GROW(expr) "{% set ns = namespace(s='ab', l=[1]) %}" EACH("{% set ns.s = " expr " %}") "{{ ns.s|length }}"
#define NESTED(times) \
    "{% set ns = namespace(s=[1]) %}{% for a in range(" times ") %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}"

static const char *const hostile[] = {
    EACH(EACH(EACH(""))),
    EACH(EACH("{{ x }}")),
    EACH(EACH("ab")),
    EACH("{{ x[loop.index0] }}"),
    EACH("{% set z = x[a:] %}"),
    EACH("{{ loop.changed(x, l) }}"),
    EACH("{{ loop }}"),
    EACH("{% set z = l|sort(reverse=true) %}"),
    EACH("{% set z = l|batch(2)|list %}"),
    EACH("{% set z = dict(l|batch(2)) %}"),
    EACH("{{ '%16000000s' % '' }}"),
    "{% for a in l|select %}{{ loop.length }}{% endfor %}",
    "{% for a in [l] recursive %}{{ loop([l]) }}{% endfor %}",
    GROW("ns.s ~ 'ab'"),
    GROW("'ab' ~ ns.s"),
    GROW("ns.s ~ ns.s"),
    GROW("ns.s ~ x"),
    GROW("ns.s|replace('a', 'aa')"),
    GROW("ns.l + [a]"),
    GROW("ns.s.join(x)"),
    NESTED("40") "{{ ns.s }}",
    NESTED("40") "{{ ns.s|tojson(indent=2) }}",
    NESTED("40") "{{ ns.s == ns.s }}",
    NESTED("14") "{{ ns.s|pprint }}",
    NESTED("40") "{% set t = ns.s %}" NESTED("40") "{{ ns.s == t }}",
    "{% set ns = namespace(s=['a' * 100]) %}{% for a in range(900) %}{% set ns.s = [ns.s] %}{% endfor %}{{ ns.s|pprint }}",
    "{% set ns = namespace(s=l) %}{% for a in range(2000) %}{% set ns.s = ns.s|map('string') %}{% endfor %}{{ ns.s|list|length }}",
    "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}",
    "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "{% macro m(a) %}{{ a }}{{ a }}{% endmacro %}{{ m(m(m(m(m(m(m(m(x)))))))) }}",
    "{{ 'x' * 10 ** 9 }}",
    "{{ [0] * 10 ** 9 }}",
    "{{ x * 100 }}",
    "{{ ([x] * 1000)|join }}",
    "{{ ([x] * 1000)|tojson }}",
    "{{ ([x] * 1000)|string }}",
    "{{ ([x] * 1000)|pprint }}",
    "{{ x|tojson(indent=1000000) }}{{ l|tojson(indent=1000000) }}",
    "{{ range(10 ** 9) }}",
    "{{ 10 ** 10 ** 10 }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '%*d' % (16000000, 1) }}",
    "{{ '{:1000000000}'.format(1) }}",
    "{{ '{:>16000000}'.format(x) }}",
    "{{ x.center(10 ** 12) }}",
    "{{ x.zfill(10 ** 12) }}{{ x.ljust(10 ** 12) }}",
    "{{ x.replace('', x) }}",
    "{{ x|replace('a', x) }}",
    "{{ x.join(x) }}",
    "{{ x.split('a')|length }}{{ x.rsplit('a')|length }}{{ x.rfind('b' ~ 'a' * 1000) }}",
    "{{ x|indent(x) }}",
    "{{ x|indent(1000000, true) }}",
    "{{ x|wordwrap(1) }}",
    "{{ x|wordwrap(1000000, false) }}",
    "{{ x|urlize }}{{ ('a.' * 500000)|urlize }}{{ ('@' * 1000000)|urlize }}{{ ('(' * 1000000)|urlize }}",
    "{{ x|striptags }}{{ ('<' * 1000000)|striptags }}",
    "{{ x|list|sort|join }}{{ x|list|unique|list }}{{ x|list|groupby(0)|list }}",
    "{{ x|batch(1000000000, 'f')|list }}",
    "{{ x|slice(1000000000)|list }}",
    "{{ x|batch(1)|list }}",
    "{{ l|map('string')|map('upper')|map('lower')|join(x) }}",
    "{{ l|sum(start=[]) }}",
    "{{ x ~ x ~ x ~ x ~ x ~ x ~ x ~ x ~ x ~ x ~ x ~ x ~ x ~ x ~ x ~ x ~ x ~ x ~ x ~ x }}",
    "{{ x.translate({97: x}) }}",
    "{{ strftime_now('%c' * 100000) }}",
    "{{ x.upper().lower().title().swapcase().casefold() }}",
};

/* Texts that are hard to compile: a piece that is repeated up to a megabyte, between a beginning and an end. */
static const struct {
    const char *begin, *piece, *end;
} sources[] = {
    {"", "{{a}}", ""},
    {"{{", "1+", "1}}"},
    {"{{", "(", ""},
    {"{{", "[", ""},
    {"{{", "1,", "1}}"},
    {"{{a", ".b", "}}"},
    {"{{a", "|e", "}}"},
    {"{{a", "()", "}}"},
    {"{{a", "[0]", "}}"},
    {"{{1", "~1", "}}"},
    {"{{1", "<1", "}}"},
    {"{{1", " and 1", "}}"},
    {"{{", "-", "1}}"},
    {"{{", "not ", "1}}"},
    {"{{", "1 if ", "1}}"},
    {"{{f(", "a,", ")}}"},
    {"{{", "'a'", "}}"},
    {"{{'", "\\n", "'}}"},
    {"{{", "1", "}}"},
    {"{{", "a", "}}"},
    {"{{{", "1:1,", "}}}"},
    {"{% set ", "a,", "b=1 %}"},
    {"", "{% if a %}", ""},
    {"", "{% if a %}{% endif %}", ""},
    {"", "{% for a in b %}{% endfor %}", ""},
    {"{% if a %}", "{% elif a %}", "{% endif %}"},
    {"", "{##}", ""},
    {"", "{#", ""},
    {"", "{% raw %}", ""},
    {"{% raw %}", "{% ", ""},
    {"", "{{ ", ""},
    {"", " ", "{%- if a %}"},
    {"", "\n", "{%- if a %}"},
    {"", "      {% if 1 %}{% endif %}", ""},
};

static uint64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t slowest_ns;

/* Compiles and renders; whatever comes of it, it is said and within the limits. */
static void run(const char *name, const char *source, size_t len, const json_t *vars)
{
    jinja_template *t = NULL;
    jinja_cost cost = {0};
    jinja_options o = {.now = 1, .ret_cost = &cost};
    xd_buf out = {0};
    xd_err err = {0};
    uint64_t start = cpu_ns();
    xd_status st = jinja_compile(source, len, "hostile", &t, &err);
    if (!st)
        st = jinja_render(t, vars, &o, &out, &err);
    slowest_ns = XD_MAX(slowest_ns, cpu_ns() - start);
    cr_assert(!st || st == XD_BAD_MODEL || st == XD_BAD_REQUEST || st == XD_TOO_LARGE || st == XD_TIMEOUT, "%s", name);
    cr_assert(!st || *err.msg, "%s", name);
    cr_assert_leq(cost.memory_bytes, MAX_MEMORY, "%s", name);
    cr_assert_leq(out.len, 16u << 20, "%s", name);
    cr_assert(st || cost.steps <= MAX_STEPS, "%s: %llu steps", name, (unsigned long long)cost.steps);
    xd_buf_free(&out);
    jinja_free(t);
}

Test(jinja_limits, no_template_renders_for_ever)
{
    json_t *numbers = json_array();
    for (int i = 0; i < 100000; i++)
        json_array_append_new(numbers, json_integer(i));
    static const char *const pieces[] = {"a", "<\xC3\x9F\xE4\xBD\xA0 "};
    for (size_t p = 0; p < XD_ARRAY_LEN(pieces); p++) {
        xd_buf text = {0};
        while (text.len < MB)
            xd_buf_puts(&text, pieces[p]);
        json_t *vars = json_pack("{s:s#, s:O}", "x", text.data, (int)text.len, "l", numbers);
        cr_assert(vars);
        /* all of them with one letter; with other texts those that look at the text */
        for (size_t i = 0; i < XD_ARRAY_LEN(hostile); i++)
            if (p == 0 || (strstr(hostile[i], "{{ x")))
                run(hostile[i], hostile[i], strlen(hostile[i]), vars);
        json_decref(vars);
        xd_buf_free(&text);
    }
    json_decref(numbers);
    printf("slowest rendering: %.0f ms of CPU time\n", (double)slowest_ns / 1e6);
}

Test(jinja_limits, no_template_compiles_for_ever)
{
    json_t *vars = json_pack("{s:i, s:[i]}", "a", 1, "b", 1);
    for (size_t i = 0; i < XD_ARRAY_LEN(sources); i++) {
        xd_buf text = {0};
        xd_buf_puts(&text, sources[i].begin);
        while (text.len < MB)
            xd_buf_puts(&text, sources[i].piece);
        xd_buf_puts(&text, sources[i].end);
        run(sources[i].piece, text.data, text.len, vars);
        xd_buf_free(&text);
    }
    json_decref(vars);
    printf("slowest source: %.0f ms of CPU time\n", (double)slowest_ns / 1e6);
}
