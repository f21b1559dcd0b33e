/* value.c - values other than strings: truth, equality, order, containers, iteration, and their making from JSON.
 *
 * What Python would refuse (comparing str with int, an unhashable key, len of a generator) is an error with Python's words. */
#include <math.h>
#include <string.h>
#include <xxhash.h>

#include "api/jinja/jinja_priv.h"

/* ---- undefined ---- */

static jx_value undefined(jx *c, jx_undef u)
{
    jx_undef *copy = JX_NEW(c, jx_undef);
    *copy = u;
    return (jx_value){.kind = JX_UNDEFINED, .u = copy};
}

jx_value jx_undefined(jx *c, const char *hint)
{
    return undefined(c, (jx_undef){.hint = hint});
}

jx_value jx_undefined_name(jx *c, const jx_str *name)
{
    return undefined(c, (jx_undef){.name = name});
}

jx_value jx_undefined_attr(jx *c, jx_value of, jx_value name)
{
    jx_undef u = {.of = of.kind == JX_NONE ? "None" : jx_type_name(of)};
    if (name.kind == JX_STR)
        u.name = name.s;
    else
        u.hint = "there is no such element";
    return undefined(c, u);
}

void jx_throw_undefined(jx *c, jx_value v)
{
    const jx_undef *u = v.u;
    int len = u->name ? (int)XD_MIN(u->name->len, (size_t)200) : 0;
    const char *name = u->name ? u->name->data : "";
    if (u->hint)
        jx_error(c, "%s", u->hint);
    if (u->security)
        jx_error(c, "access to attribute '%.*s' of '%s' object is unsafe.", len, name, u->of);
    if (u->of)
        jx_error(c, "'%s%s' has no attribute '%.*s'", u->of, strcmp(u->of, "None") ? " object" : "", len, name);
    jx_error(c, "'%.*s' is undefined", len, name);
}

/* ---- simple properties ---- */

const char *jx_type_name(jx_value v)
{
    switch ((jx_kind)v.kind) {
    case JX_MISSING:
    case JX_UNDEFINED: return "Undefined";
    case JX_NONE: return "NoneType";
    case JX_BOOL: return "bool";
    case JX_INT: return "int";
    case JX_FLOAT: return "float";
    case JX_STR: return v.s->markup ? "Markup" : "str";
    case JX_LIST: return "list";
    case JX_TUPLE: return "tuple";
    case JX_DICT: return "dict";
    case JX_RANGE: return "range";
    case JX_VIEW:
        return v.view->what == JX_KEYS ? "dict_keys" : v.view->what == JX_VALUES ? "dict_values" : "dict_items";
    case JX_ITER: return v.it->type;
    case JX_NAMESPACE: return "Namespace";
    case JX_LOOP: return "LoopContext";
    case JX_MACRO: return "Macro";
    case JX_FUNC: return "function";
    case JX_CYCLER: return "Cycler";
    case JX_JOINER: return "Joiner";
    case JX_SET: return "set";
    case JX_SELF: return "TemplateReference";
    case JX_BLOCK: return "BlockReference";
    }
    return "object";
}

bool jx_is_number(jx_value v)
{
    return v.kind == JX_BOOL || v.kind == JX_INT || v.kind == JX_FLOAT;
}

jx_int jx_as_int(jx_value v)
{
    return v.kind == JX_BOOL ? v.b : v.i;
}

double jx_as_float(jx_value v)
{
    return v.kind == JX_FLOAT ? v.f : (double)jx_as_int(v);
}

jx_int jx_need_int(jx *c, jx_value v)
{
    if (v.kind == JX_UNDEFINED)
        jx_throw_undefined(c, v);
    if (v.kind != JX_BOOL && v.kind != JX_INT)
        jx_error(c, "'%s' object cannot be interpreted as an integer", jx_type_name(v));
    return jx_as_int(v);
}

int64_t jx_need_index(jx *c, jx_value v)
{
    jx_int i = jx_need_int(c, v);
    return i > INT64_MAX ? INT64_MAX : i < INT64_MIN ? INT64_MIN : (int64_t)i;
}

const jx_str *jx_need_str(jx *c, jx_value v, const char *what)
{
    if (v.kind == JX_UNDEFINED)
        jx_error(c, "%s must be str, not Undefined", what);
    if (v.kind != JX_STR)
        jx_error(c, "%s must be str, not %s", what, jx_type_name(v));
    return v.s;
}

jx_int jx_float_to_int(jx *c, double f)
{
    if (isnan(f))
        jx_error(c, "cannot convert float NaN to integer");
    if (isinf(f))
        jx_error(c, "cannot convert float infinity to integer");
    if (fabs(f) >= 0x1p126)
        jx_error(c, "the integer is too large");
    return (jx_int)f;
}

bool jx_len(jx_value v, size_t *ret)
{
    switch ((jx_kind)v.kind) {
    case JX_UNDEFINED: *ret = 0; return true;
    case JX_STR: *ret = v.s->chars; return true;
    case JX_LIST:
    case JX_TUPLE: *ret = v.l->n; return true;
    case JX_SET:
    case JX_DICT: *ret = v.d->n; return true;
    case JX_VIEW: *ret = v.view->d->n; return true;
    case JX_RANGE: *ret = (size_t)v.r->n; return true;
    default: return false;
    }
}

bool jx_truth(jx *c, jx_value v)
{
    (void)c;
    size_t n;
    switch ((jx_kind)v.kind) {
    case JX_MISSING:
    case JX_UNDEFINED:
    case JX_NONE: return false;
    case JX_BOOL: return v.b;
    case JX_INT: return v.i != 0;
    case JX_FLOAT: return v.f != 0;
    default: return jx_len(v, &n) ? n != 0 : true;
    }
}

/* ---- equality and order ---- */

/* The order of an int and a float, exactly: the int may have more digits than a float holds. 2: NaN. */
static int compare_int_float(jx_int i, double f)
{
    if (isnan(f))
        return 2;
    if (fabs(f) >= 0x1p127)
        return f > 0 ? -1 : 1;
    jx_int whole = (jx_int)f;
    if (i != whole)
        return i < whole ? -1 : 1;
    double part = f - (double)whole;
    return part > 0 ? -1 : part < 0;
}

static int compare_numbers(jx_value a, jx_value b)
{
    if (a.kind == JX_FLOAT && b.kind == JX_FLOAT)
        return a.f < b.f ? -1 : a.f > b.f ? 1 : a.f == b.f ? 0 : 2;
    if (b.kind == JX_FLOAT)
        return compare_int_float(jx_as_int(a), b.f);
    if (a.kind == JX_FLOAT) {
        int r = compare_int_float(jx_as_int(b), a.f);
        return r == 2 ? 2 : -r;
    }
    jx_int x = jx_as_int(a), y = jx_as_int(b);
    return (x > y) - (x < y);
}

static bool lists_equal(jx *c, const jx_list *a, const jx_list *b)
{
    if (a->n != b->n)
        return false;
    for (size_t i = 0; a != b && i < a->n; i++)
        if (!jx_equal(c, a->v[i], b->v[i]))
            return false;
    return true;
}

static bool dicts_equal(jx *c, const jx_dict *a, const jx_dict *b)
{
    if (a->n != b->n)
        return false;
    for (size_t i = 0; a != b && i < a->n; i++) {
        const jx_value *v = jx_dict_get(c, b, a->v[i].key);
        if (!v || !jx_equal(c, a->v[i].value, *v))
            return false;
    }
    return true;
}

bool jx_equal(jx *c, jx_value a, jx_value b)
{
    jx_charge(c, 1);
    if (jx_is_number(a) && jx_is_number(b))
        return compare_numbers(a, b) == 0;
    if (jx_is_setlike(a) && jx_is_setlike(b))
        return jx_set_compare(c, a, b) == 0;
    if (a.kind != b.kind)
        return false;
    bool equal;
    switch ((jx_kind)a.kind) {
    case JX_MISSING:
    case JX_UNDEFINED:
    case JX_NONE: return true;
    case JX_STR: jx_charge(c, a.s->len / 1024); return jx_str_eq(a.s, b.s);
    case JX_LIST:
    case JX_TUPLE:
        JX_ENTER(c);
        equal = lists_equal(c, a.l, b.l);
        JX_LEAVE(c);
        return equal;
    case JX_DICT:
        JX_ENTER(c);
        equal = dicts_equal(c, a.d, b.d);
        JX_LEAVE(c);
        return equal;
    case JX_RANGE:
        return a.r->n == b.r->n &&
               (a.r->n == 0 || (a.r->start == b.r->start && (a.r->n == 1 || a.r->step == b.r->step)));
    case JX_FUNC: return a.fn == b.fn || (a.fn->fn == b.fn->fn && a.fn->self.kind == JX_MISSING);
    default: return a.d == b.d; /* identity */
    }
}

int jx_compare(jx *c, jx_value a, jx_value b, const char *op)
{
    jx_charge(c, 1);
    if (a.kind == JX_UNDEFINED || b.kind == JX_UNDEFINED)
        jx_throw_undefined(c, a.kind == JX_UNDEFINED ? a : b);
    if (jx_is_number(a) && jx_is_number(b))
        return compare_numbers(a, b);
    if (a.kind == JX_STR && b.kind == JX_STR) {
        jx_charge(c, XD_MIN(a.s->len, b.s->len) / 1024);
        return jx_str_cmp(a.s, b.s);
    }
    if (jx_is_setlike(a) && jx_is_setlike(b))
        return jx_set_compare(c, a, b);
    if (a.kind != b.kind || (a.kind != JX_LIST && a.kind != JX_TUPLE))
        jx_error(c, "'%s' not supported between instances of '%s' and '%s'", op, jx_type_name(a), jx_type_name(b));
    JX_ENTER(c);
    int r = (a.l->n > b.l->n) - (a.l->n < b.l->n);
    for (size_t i = 0; i < a.l->n && i < b.l->n; i++)
        if (!jx_equal(c, a.l->v[i], b.l->v[i])) {
            r = jx_compare(c, a.l->v[i], b.l->v[i], op);
            break;
        }
    JX_LEAVE(c);
    return r;
}

bool jx_less(jx *c, jx_value a, jx_value b)
{
    return jx_compare(c, a, b, "<") < 0;
}

static void merge_sort(jx *c, jx_pair *v, jx_pair *tmp, size_t n, bool (*before)(jx *c, jx_value a, jx_value b))
{
    if (n < 2)
        return;
    size_t half = n / 2;
    merge_sort(c, v, tmp, half, before);
    merge_sort(c, v + half, tmp, n - half, before);
    memcpy(tmp, v, half * sizeof *v);
    size_t i = 0, j = half, k = 0;
    while (i < half && j < n)
        v[k++] = before(c, v[j].key, tmp[i].key) ? v[j++] : tmp[i++];
    while (i < half)
        v[k++] = tmp[i++];
}

void jx_sort_pairs(jx *c, jx_pair *v, size_t n, bool (*before)(jx *c, jx_value a, jx_value b))
{
    merge_sort(c, v, v + n, n, before);
}

bool jx_contains(jx *c, jx_value in, jx_value item)
{
    if (in.kind == JX_STR) {
        if (item.kind != JX_STR)
            jx_error(c, "'in <string>' requires string as left operand, not %s", jx_type_name(item));
        jx_charge(c, in.s->len / 32);
        return jx_str_find(in.s, item.s, 0) != SIZE_MAX;
    }
    if (in.kind == JX_DICT || in.kind == JX_SET || (in.kind == JX_VIEW && in.view->what == JX_KEYS))
        return jx_dict_get(c, in.kind != JX_VIEW ? in.d : in.view->d, item) != NULL;
    if (!jx_iterable(in))
        jx_error(c, "argument of type '%s' is not iterable", jx_type_name(in));
    jx_iter it = jx_iter_open(c, in);
    jx_value v;
    while (jx_iter_next(c, &it, &v))
        if (jx_equal(c, v, item))
            return true;
    return false;
}

/* ---- lists and dicts ---- */

jx_list *jx_list_new(jx *c, size_t n)
{
    jx_list *l = JX_NEW(c, jx_list);
    l->v = jx_alloc_array(c, n, sizeof *l->v);
    l->n = n;
    jx_charge(c, n / 16);
    return l;
}

jx_value jx_tuple(jx *c, size_t n, ...)
{
    jx_list *l = jx_list_new(c, n);
    va_list ap;
    va_start(ap, n);
    for (size_t i = 0; i < n; i++)
        l->v[i] = va_arg(ap, jx_value);
    va_end(ap);
    return (jx_value){.kind = JX_TUPLE, .l = l};
}

void jx_push(jx *c, jx_vec *l, jx_value v)
{
    jx_charge(c, 1);
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 4;
        l->v = jx_realloc(c, l->v, l->cap * sizeof *l->v, cap * sizeof *l->v);
        l->cap = cap;
    }
    l->v[l->n++] = v;
}

jx_value jx_vec_list(jx *c, const jx_vec *l, jx_kind kind)
{
    jx_list *list = JX_NEW(c, jx_list);
    list->v = l->v;
    list->n = l->n;
    return (jx_value){.kind = (uint8_t)kind, .l = list};
}

static uint64_t hash(jx *c, const jx_dict *d, jx_value v)
{
    uint64_t seed = (uintptr_t)d; /* collisions cannot be prepared */
    switch ((jx_kind)v.kind) {
    case JX_STR: jx_charge(c, v.s->len / 256); return XXH3_64bits_withSeed(v.s->data, v.s->len, seed);
    case JX_BOOL:
    case JX_INT:
    case JX_FLOAT: {
        double f = jx_as_float(v) + 0.0; /* equal numbers have equal hashes; -0.0 is 0.0 */
        return XXH3_64bits_withSeed(&f, sizeof f, seed);
    }
    case JX_TUPLE: {
        uint64_t h = v.l->n;
        JX_ENTER(c);
        for (size_t i = 0; i < v.l->n; i++)
            h = h * 0x9E3779B97F4A7C15u + hash(c, d, v.l->v[i]);
        JX_LEAVE(c);
        return h;
    }
    case JX_LIST:
    case JX_VIEW:
    case JX_SET:
    case JX_DICT: jx_error(c, "unhashable type: '%s'", jx_type_name(v));
    case JX_MISSING:
    case JX_UNDEFINED:
    case JX_NONE: return seed + v.kind;
    default: return (uintptr_t)v.d;
    }
}

jx_dict *jx_dict_new(jx *c, size_t cap)
{
    jx_dict *d = JX_NEW(c, jx_dict);
    d->cap = cap;
    if (cap)
        d->v = jx_alloc_array(c, cap, sizeof *d->v);
    return d;
}

enum { TINY_DICT = 8 }; /* searched linearly */

static void index_add(jx_dict *d, uint64_t h, size_t pos)
{
    uint32_t at = (uint32_t)h & d->mask;
    while (d->index[at])
        at = (at + 1) & d->mask;
    d->index[at] = (uint32_t)pos + 1;
}

static void reindex(jx *c, jx_dict *d)
{
    size_t slots = 4 * TINY_DICT;
    while (slots < 2 * d->cap)
        slots *= 2;
    if (slots > UINT32_MAX)
        jx_error(c, "the dict is too large");
    d->index = jx_alloc_array(c, slots, sizeof *d->index);
    d->mask = (uint32_t)slots - 1;
    for (size_t i = 0; i < d->n; i++)
        index_add(d, hash(c, d, d->v[i].key), i);
}

static jx_pair *lookup(jx *c, const jx_dict *d, jx_value key, uint64_t *ret_hash)
{
    uint64_t h = *ret_hash = d->index || key.kind == JX_LIST || key.kind == JX_DICT || key.kind == JX_VIEW ||
                                     key.kind == JX_SET || key.kind == JX_TUPLE
                                 ? hash(c, d, key)
                                 : 0;
    if (!d->index) {
        for (size_t i = 0; i < d->n; i++)
            if (jx_equal(c, d->v[i].key, key))
                return &d->v[i];
        return NULL;
    }
    for (uint32_t at = (uint32_t)h & d->mask; d->index[at]; at = (at + 1) & d->mask) {
        jx_pair *p = &d->v[d->index[at] - 1];
        if (jx_equal(c, p->key, key))
            return p;
    }
    return NULL;
}

void jx_dict_set(jx *c, jx_dict *d, jx_value key, jx_value value)
{
    uint64_t h;
    jx_pair *p = lookup(c, d, key, &h);
    if (p) {
        p->value = value;
        return;
    }
    if (d->n == d->cap) {
        size_t cap = d->cap ? 2 * d->cap : 4;
        d->v = jx_realloc(c, d->v, d->cap * sizeof *d->v, cap * sizeof *d->v);
        d->cap = cap;
        d->index = NULL;
    }
    d->v[d->n++] = (jx_pair){key, value};
    if (d->index)
        index_add(d, h, d->n - 1);
    else if (d->n > TINY_DICT)
        reindex(c, d);
}

const jx_value *jx_dict_get(jx *c, const jx_dict *d, jx_value key)
{
    uint64_t h;
    jx_pair *p = lookup(c, d, key, &h);
    return p ? &p->value : NULL;
}

jx_range *jx_range_new(jx *c, jx_int start, jx_int stop, jx_int step)
{
    const jx_int limit = (jx_int)1 << 62;
    if (!step)
        jx_error(c, "range() arg 3 must not be zero");
    if (start > limit || start < -limit || stop > limit || stop < -limit || step > limit || step < -limit)
        jx_error(c, "range() arguments are too large");
    jx_range *r = JX_NEW(c, jx_range);
    *r = (jx_range){start, stop, step, 0};
    if (step > 0 && start < stop)
        r->n = (stop - start - 1) / step + 1;
    else if (step < 0 && start > stop)
        r->n = (start - stop - 1) / -step + 1;
    return r;
}

jx_value jx_from_json(jx *c, const json_t *j, bool client)
{
    jx_value v = {.client = client};
    jx_charge(c, 1);
    switch (json_typeof(j)) {
    case JSON_STRING: {
        size_t len = json_string_length(j);
        jx_charge(c, len / 256);
        const char *text = json_string_value(j);
        if (len > 1 && len <= JINJA_INT_DIGITS + 1 && !text[0] && strspn(text + 1, "-0123456789") == len - 1) {
            v.kind = JX_INT;
            if (jx_parse_int(jx_str_view(c, text + 1, len - 1, len - 1, !client), 10, &v.i))
                return v;
        }
        return JX_STRV(jx_str_view(c, text, len, xd_utf8_count(text, len), !client));
    }
    case JSON_INTEGER:
        v.kind = JX_INT;
        v.i = json_integer_value(j);
        return v;
    case JSON_REAL:
        v.kind = JX_FLOAT;
        v.f = json_real_value(j);
        return v;
    case JSON_TRUE:
    case JSON_FALSE:
        v.kind = JX_BOOL;
        v.b = json_is_true(j);
        return v;
    case JSON_NULL: v.kind = JX_NONE; return v;
    case JSON_ARRAY: {
        JX_ENTER(c);
        jx_list *l = jx_list_new(c, json_array_size(j));
        for (size_t i = 0; i < l->n; i++)
            l->v[i] = jx_from_json(c, json_array_get(j, i), client);
        JX_LEAVE(c);
        v.kind = JX_LIST;
        v.l = l;
        return v;
    }
    case JSON_OBJECT: {
        JX_ENTER(c);
        jx_dict *d = jx_dict_new(c, json_object_size(j));
        const char *key;
        json_t *item;
        json_object_foreach ((json_t *)(uintptr_t)j, key, item) /* jansson's iterators take no const */
        {
            size_t len = strlen(key);
            jx_value k = JX_STRV(jx_str_view(c, key, len, xd_utf8_count(key, len), !client));
            jx_dict_set(c, d, k, jx_from_json(c, item, client));
        }
        JX_LEAVE(c);
        v.kind = JX_DICT;
        v.d = d;
        return v;
    }
    }
    return v;
}

/* ---- iteration ---- */

bool jx_iterable(jx_value v)
{
    switch ((jx_kind)v.kind) {
    case JX_UNDEFINED:
    case JX_STR:
    case JX_LIST:
    case JX_TUPLE:
    case JX_DICT:
    case JX_RANGE:
    case JX_VIEW:
    case JX_SET:
    case JX_ITER: return true;
    default: return false;
    }
}

jx_iter jx_iter_open(jx *c, jx_value v)
{
    if (!jx_iterable(v))
        jx_error(c, "'%s' object is not iterable", jx_type_name(v));
    return (jx_iter){.of = v, .inner = v.kind == JX_ITER ? v.it : NULL};
}

static jx_value view_item(jx *c, const jx_dict *d, int what, size_t i)
{
    if (what == JX_KEYS)
        return d->v[i].key;
    return what == JX_VALUES ? d->v[i].value : jx_tuple(c, 2, d->v[i].key, d->v[i].value);
}

bool jx_iter_next(jx *c, jx_iter *it, jx_value *ret)
{
    jx_charge(c, 1);
    if (it->inner)
        return jx_iter_next(c, it->inner, ret);
    if (it->step) {
        JX_ENTER(c);
        it->ended = it->ended || !it->step(c, it->state, ret);
        JX_LEAVE(c);
        return !it->ended;
    }
    jx_value v = it->of;
    size_t n = 0;
    if (v.kind == JX_STR) {
        if (it->pos >= v.s->len)
            return false;
        const char *at = v.s->data + it->pos;
        size_t from = it->pos;
        jx_char(&at, v.s->data + v.s->len);
        it->pos = (size_t)(at - v.s->data);
        *ret = JX_STRV(jx_str_char(c, v.s, from, it->pos));
        return true;
    }
    if (!jx_len(v, &n) || it->pos >= n)
        return false;
    size_t i = it->pos++;
    switch ((jx_kind)v.kind) {
    case JX_LIST:
    case JX_TUPLE: *ret = v.l->v[i]; return true;
    case JX_SET:
    case JX_DICT: *ret = v.d->v[i].key; return true;
    case JX_VIEW: *ret = view_item(c, v.view->d, (int)v.view->what, i); return true;
    case JX_RANGE: *ret = JX_INTV(v.r->start + (jx_int)i * v.r->step); return true;
    default: return false;
    }
}

jx_value jx_generator(jx *c, jx_value list, const char *type)
{
    jx_iter *it = JX_NEW(c, jx_iter);
    *it = (jx_iter){.of = list, .type = type};
    return (jx_value){.kind = JX_ITER, .it = it};
}

jx_value jx_lazy(jx *c, jx_step step, void *state)
{
    jx_iter *it = JX_NEW(c, jx_iter);
    *it = (jx_iter){.step = step, .state = state, .type = "generator"};
    return (jx_value){.kind = JX_ITER, .it = it};
}

jx_value jx_to_list(jx *c, jx_value v, jx_kind kind)
{
    jx_iter it = jx_iter_open(c, v);
    jx_vec l = {0};
    jx_value item;
    while (jx_iter_next(c, &it, &item))
        jx_push(c, &l, item);
    jx_value list = jx_vec_list(c, &l, kind);
    list.client = v.client;
    return list;
}
