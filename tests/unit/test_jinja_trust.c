/* Who wrote what: for each operation that carries text, which bytes of its result count as the template's (t) and which as the client's (c). A
 * special token is recognised only in bytes that are the template's, so a c that came out as t would be a control token of the client's. */
#include <criterion/criterion.h>
#include <string.h>

#include "api/jinja/jinja.h"

/* u, v, l, d, n and msg are the client's; s and o the model's own (as bos_token is). */
static const char vars_json[] =
    "{\"u\": \"Cd e\", \"v\": \"x\", \"l\": [\"p\", \"q\"], \"d\": {\"k\": \"w\"}, \"n\": 7, \"msg\": {\"content\": \" <c> \"}, \"f\": \"%s=\","
    " \"g\": \"{}=\", \"users\": [{\"a\": \"r\"}, {\"a\": \"b\"}], \"s\": \"TS\", \"o\": [\"A\", \"B\"]}";
static const char *const untrusted[] = {"u", "v", "l", "d", "n", "msg", "f", "g", "users", NULL};

typedef struct row {
    const char *template, *text, *marks;
} row;

static const row rows[] = {
    /* output and literals */
    {"a{{ u }}b", "aCd eb", "tcccct"},
    {"{{ s }}{{ v }}", "TSx", "ttc"},
    {"{{ 'lit' }}{{ 12 }}{{ n }}", "lit127", "tttttc"},
    {"{{ l }}", "['p', 'q']", "cccccccccc"},
    {"{{ o }}", "['A', 'B']", "tttttttttt"},
    {"{{ [v, 'y'] }}", "['x', 'y']", "tccctttttt"},
    {"{{ (v,) }}", "('x',)", "tccctt"},
    {"{{ {'a': v} }}", "{'a': 'x'}", "ttttttccct"},
    {"{{ d }}", "{'k': 'w'}", "cccccccccc"},
    {"{{ {v: 1} }}", "{'x': 1}", "tccctttt"},
    {"{{ d.keys() }}", "dict_keys(['k'])", "ttttttttttccccct"},
    /* operators */
    {"{{ '<' + v + '>' }}", "<x>", "tct"},
    {"{{ '<' ~ v ~ n ~ 1 }}", "<x71", "tcct"},
    {"{{ v * 3 }}{{ 'y' * 2 }}", "xxxyy", "ccctt"},
    {"{{ ('<' ~ v) * 2 }}", "<x<x", "tctc"},
    {"{{ ('ab' ~ u)[1:4] }}", "bCd", "tcc"},
    {"{{ ('ab' ~ u)[::-1] }}", "e dCba", "cccctt"},
    {"{{ ('a' ~ v)[0] }}{{ ('a' ~ v)[1] }}", "ax", "tc"},
    {"{{ '[%s]' % v }}", "[x]", "tct"},
    {"{{ '[%5s]' % v }}", "[    x]", "tttttct"},
    {"{{ '%d|%d' % (n, 3) }}", "7|3", "ctt"},
    {"{{ '%r' % v }}", "'x'", "ccc"},
    {"{{ f % 'y' }}", "y=", "tc"},
    {"{{ '%(a)s!' % {'a': v} }}", "x!", "ct"},
    {"{{ n + 1 }}{{ 1 + 1 }}", "82", "ct"},
    {"{{ v or 'y' }}{{ '' or 'y' }}", "xy", "ct"},
    {"{{ v if true }}{{ 'y' if true }}", "xy", "ct"},
    {"{{ u[0] }}{{ l[0] }}{{ l[::-1][0] }}{{ d['k'] }}{{ d.k }}", "Cpqww", "ccccc"},
    {"{{ v is defined }}{{ v == 'x' }}", "TrueTrue", "tttttttt"},
    /* statements */
    {"{% for c in u %}<{{ c }}>{% endfor %}", "<C><d>< ><e>", "tcttcttcttct"},
    {"{% for k, w in d.items() %}{{ k }}={{ w }}{% endfor %}", "k=w", "ctc"},
    {"{% set w %}a{{ v }}{% endset %}{{ w }}", "ax", "tc"},
    {"{% set w = 'a' ~ v %}{% set w = w ~ 'b' %}{{ w }}", "axb", "tct"},
    {"{% set ns = namespace(t='') %}{% for c in l %}{% set ns.t = ns.t ~ '-' ~ c %}{% endfor %}{{ ns.t }}", "-p-q",
     "tctc"},
    {"{% macro m(a) %}<{{ a }}>{% endmacro %}{{ m(v) }}{{ m('y') }}", "<x><y>", "tctttt"},
    {"{% macro m() %}({{ caller() }}){% endmacro %}{% call m() %}a{{ v }}{% endcall %}", "(ax)", "ttct"},
    {"{% filter trim %} a{{ v }} {% endfilter %}", "ax", "tc"},
    {"{% with w = v %}{{ w }}{% endwith %}{% block b %}a{{ v }}{% endblock %}", "xax", "ctc"},
    {"{% for x in l recursive %}{{ x }}{% if loop.first and loop.depth == 1 %}{{ loop(['!']) }}{% endif %}{% endfor %}",
     "p!q", "ctc"},
    {"{{ cycler('a', v).next() }}{{ joiner(v)() }}{{ strftime_now('%Y') }}{{ strftime_now(v) }}", "a2026x", "tttttc"},
    /* filters */
    {"{{ u|upper }}{{ 'a'|upper }}{{ ('a' ~ v)|upper }}", "CD EAAX", "cccctcc"},
    {"{{ u|lower }}{{ u|title }}{{ u|capitalize }}", "cd eCd ECd e", "cccccccccccc"},
    {"{{ (' a' ~ v ~ ' ')|trim }}", "ax", "tc"},
    {"{{ v|default('y') }}{{ zz|default(v) }}{{ zz|d('y') }}", "xxy", "cct"},
    {"{{ v|center(5) }}", "  x  ", "ttctt"},
    {"{{ '<'|escape }}{{ msg.content|e }}", "&lt; &lt;c&gt; ", "ttttccccccccccc"},
    {"{{ ('<' ~ msg.content)|forceescape }}", "&lt; &lt;c&gt; ", "ttttccccccccccc"},
    {"{{ v|safe }}{{ v|string }}{{ 'y'|string }}{{ n|string }}", "xxy7", "cctc"},
    {"{{ '%s-%s'|format(v, 'y') }}{{ f|format('y') }}", "x-yy=", "ctttc"},
    {"{{ ('a\\n' ~ v)|indent(2) }}", "a\n  x", "ttttc"},
    {"{{ 'a\\nb'|indent(v) }}", "a\nxb", "ttct"},
    {"{{ v|int }}{{ '5'|int }}{{ '5'|float }}", "055.0", "ttttt"},
    {"{{ l|join('-') }}{{ ['a', v]|join }}{{ o|join(v) }}", "p-qaxAxB", "ctctctct"},
    {"{{ l|first }}{{ l|last }}{{ o|first }}{{ u|first }}{{ u|last }}", "pqACe", "cctcc"},
    {"{{ l|list }}{{ l|length }}", "['p', 'q']2", "cccccccccct"},
    {"{{ l|map('upper')|join }}{{ users|map(attribute='a')|join('+') }}", "PQr+b", "ccctc"},
    {"{{ users|selectattr('a', 'equalto', 'r')|map(attribute='a')|join }}{{ l|reject('equalto', 'p')|join }}", "rq",
     "cc"},
    {"{{ users|sort(attribute='a')|map(attribute='a')|join }}{{ l|sort(reverse=true)|join }}", "brqp", "cccc"},
    {"{{ users|groupby('a')|map('first')|join }}{{ l|unique|join }}{{ l|batch(1)|map('first')|join }}", "brpqpq",
     "cccccc"},
    {"{{ l|slice(2)|map('last')|join }}{{ l|reverse|join }}{{ l|max }}{{ l|min }}{{ [v]|random }}", "pqqpqpx",
     "ccccccc"},
    {"{{ d|items|list }}", "[('k', 'w')]",
     "ttccctt"
     "ccc"
     "tt"},
    {"{{ d|dictsort|map('last')|join }}{{ [v, 'y']|sum(start=[])|length if false }}", "w", "c"},
    {"{{ u|replace('d', 'D') }}{{ 'ab'|replace('a', v) }}{{ ('a' ~ v)|replace('x', 'z') }}", "CD exbaz", "ctcccttt"},
    {"{{ u|reverse }}{{ 'ab'|reverse }}", "e dCba", "cccctt"},
    {"{{ d|tojson }}{{ {'a': v}|tojson }}{{ o|tojson }}", "{\"k\": \"w\"}{\"a\": \"x\"}[\"A\", \"B\"]",
     "ccccttccccttttttcccttttttttttt"},
    {"{{ [v]|tojson(indent=1) }}", "[\n \"x\"\n]",
     "ttt"
     "ccc"
     "tt"},
    {"{{ u|truncate(3, true, '..') }}{{ u|truncate(3, true, '.', 0) }}", "Cd eCd.", "cccccct"},
    {"{{ ['<' ~ v]|pprint }}{{ l|pprint }}", "['<x']['p', 'q']", "tctcctcccccccccc"},
    {"{{ (v ~ '<b>' ~ v ~ '</b>')|striptags }}", "xx", "cc"},
    {"{{ v|urlencode }}{{ ' '|urlencode }}{{ u|urlencode }}", "x%20Cd%20e", "ctttcccccc"},
    {"{{ ('www.' ~ v ~ '.org')|urlize }}", "<a href=\"https://www.x.org\" rel=\"noopener\">www.x.org</a>",
     "tttttttttttttttttttttctttttttttttttttttttttttttctttttttt"},
    {"{{ ('a-' ~ v ~ ' b')|wordwrap(4) }}", "a-x\nb", "ttctt"},
    {"{{ {'k': v}|xmlattr }}", " k=\"x\"",
     "tttt"
     "c"
     "t"},
    {"{{ u|wordcount }}{{ n|abs }}{{ n|round }}{{ n|filesizeformat }}", "2777 Bytes", "tttccccccc"},
    {"{{ u|attr('upper')() }}", "CD E", "cccc"},
    /* methods */
    {"{{ u.upper() }}{{ u.lower() }}{{ u.title() }}{{ u.swapcase() }}{{ u.capitalize() }}{{ u.casefold() }}",
     "CD Ecd eCd EcD ECd ecd e", "cccccccccccccccccccccccc"},
    {"{{ (' a' ~ v ~ ' ').strip() }}{{ ('ay' ~ v).lstrip('a') }}{{ (v ~ 'a').rstrip('a') }}", "axyxx", "tctcc"},
    {"{{ ('a,' ~ u).split(',')|join('|') }}", "a|Cd e", "ttcccc"},
    {"{{ ('a ' ~ v).split()|join('|') }}{{ ('a ' ~ v).rsplit(' ', 1)|last }}", "a|xx", "ttcc"},
    {"{{ ('a\\n' ~ v).splitlines()|join('|') }}", "a|x", "ttc"},
    {"{{ (v ~ '=' ~ 'y').partition('=')|join('|') }}{{ (v ~ '=y').rpartition('=')|first }}", "x|=|yx", "cttttc"},
    {"{{ '-'.join(l) }}{{ v.join('ab') }}", "p-qaxb", "ctctct"},
    {"{{ ('a' ~ v).replace('a', 'b') }}{{ 'ab'.replace('b', v) }}", "bxax", "tctc"},
    {"{{ v.center(3) }}{{ v.ljust(3, '.') }}{{ v.rjust(3, '.') }}{{ 'a'.center(3, v) }}", " x x....xxax",
     "tctcttttcctc"},
    {"{{ v.zfill(3) }}{{ ('a\\t' ~ v).expandtabs(4) }}", "00xa   x", "ttcttttc"},
    {"{{ ('a' ~ v).removeprefix('a') }}{{ ('a' ~ v).removesuffix(v) }}", "xa", "ct"},
    {"{{ 'a{}b{}'.format(v, 'y') }}{{ g.format('y') }}{{ '{:>3}'.format(v) }}", "axbyy=  x", "tctttcttc"},
    {"{{ '{k}'.format_map(d) }}{{ '{0[0]}{0!r}'.format(l) }}", "wp['p', 'q']", "cccccccccccc"},
    {"{{ ('a' ~ v).translate({97: 'b', 120: v}) }}", "bx", "tc"},
    {"{{ d.get('k') }}{{ d.get('z', 'y') }}{{ d.values()|first }}{{ d.keys()|first }}{{ d.items()|first|last }}",
     "wywkw", "ctccc"},
    {"{{ (d.keys() - [])|first }}{{ d.copy().k }}{{ dict(d, a='b').k }}{{ dict(a='b').a }}{{ namespace(a=v).a }}",
     "kwwbx", "ccctc"},
    {"{{ l.copy()|first }}{{ o.index('B') }}{{ l.index('q') }}", "p11", "ctt"},
};

static json_t *vars;

static void check(const row *r)
{
    uint8_t *trusted = NULL;
    jinja_options o = {.now = 1773065107, .ret_trusted = &trusted, .untrusted = untrusted};
    jinja_template *t = NULL;
    xd_buf out = {0};
    xd_err err = {0};
    cr_assert_eq(jinja_compile(r->template, strlen(r->template), "trust", &t, &err), XD_OK, "%s: %s", r->template,
                 err.msg);
    cr_assert_eq(jinja_render(t, vars, &o, &out, &err), XD_OK, "%s: %s", r->template, err.msg);
    char marks[512] = {0};
    for (size_t i = 0; i < out.len && i < sizeof marks - 1; i++)
        marks[i] = trusted[i] ? 't' : 'c';
    cr_assert_str_eq(out.data, r->text, "%s gives %s", r->template, out.data);
    cr_assert(r->marks && !strcmp(marks, r->marks), "%s gives %s marked %s", r->template, out.data, marks);
    xd_buf_free(&out);
    free(trusted);
    jinja_free(t);
}

Test(jinja_trust, every_operation_keeps_apart_who_wrote_what)
{
    vars = json_loads(vars_json, 0, NULL);
    cr_assert(vars);
    for (size_t i = 0; i < XD_ARRAY_LEN(rows); i++)
        check(&rows[i]);
    json_decref(vars);
}
