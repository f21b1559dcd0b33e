/* grammar_types.c - what a schema says of constants, numbers, strings, arrays and objects, each made a node.
 *
 * Formats that are enforced are patterns; those that are not are annotations, as JSON Schema has it. */
#include <math.h>
#include <string.h>

#include "engine/text/grammar_build.h"
#include "engine/text/tok_priv.h"

enum { MAX_LEAST = 100000, ALL_TYPES = 2 * TYPE_OBJECT - 1 /* what is above them is no type */ };

/* ---- values ---- */

/* A number's shortest text that reads as the same double. */
static void print_real(double v, char out[40])
{
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(out, 40, "%.*g", digits, v);
        if (strtod(out, NULL) == v)
            break;
    }
}

static char *json_text(const json_t *v)
{
    if (!json_is_real(v))
        return json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(17));
    char out[40];
    print_real(json_real_value(v), out);
    return strdup(out);
}

static bool is_of_type(const json_t *v, unsigned types)
{
    switch (json_typeof(v)) {
    case JSON_NULL: return types & TYPE_NULL;
    case JSON_TRUE:
    case JSON_FALSE: return types & TYPE_BOOLEAN;
    case JSON_INTEGER: return types & (TYPE_INTEGER | TYPE_NUMBER);
    case JSON_REAL:
        return types & TYPE_NUMBER || (types & TYPE_INTEGER && floor(json_real_value(v)) == json_real_value(v));
    case JSON_STRING: return types & TYPE_STRING;
    case JSON_ARRAY: return types & TYPE_ARRAY;
    default: return types & TYPE_OBJECT;
    }
}

/* A count; absent: otherwise. */
static xd_status read_count(build *b, const build_job *j, const char *key, uint64_t otherwise, uint64_t *ret)
{
    const json_t *v = json_object_get(j->schema, key);
    *ret = otherwise;
    if (!v)
        return XD_OK;
    double d = json_number_value(v);
    if (!json_is_number(v) || d < 0 || floor(d) != d)
        return build_fault(b, j->place, key, "must be a whole number from 0 on");
    bool least = key[1] == 'i'; /* minItems and so on */
    if (least && d > MAX_LEAST)
        return build_fault(b, j->place, key, "asks for more than %d: no answer is that long", MAX_LEAST);
    *ret = d >= 1e15 ? GRAM_INF : (uint64_t)d;
    return XD_OK;
}

/* Lengths and a pattern beside enum or const choose among the texts. What is about values of other kinds says nothing of this one. */
static xd_status fits_beside(build *b, const build_job *j, const gram_dfa *pattern, const json_t *v, bool *ret)
{
    const char *key, *text = json_is_string(v) ? json_string_value(v) : NULL;
    const char *end = text ? text + json_string_length(v) : NULL;
    json_t *said;
    *ret = true;
    json_object_foreach ((json_t *)(uintptr_t)j->schema, key, said) {
        unsigned about = schema_types_of_keyword(key);
        if (!is_of_type(v, about & ALL_TYPES) || !strcmp(key, "format"))
            continue;
        if (!text)
            return build_fault(b, j->place, key,
                               "beside enum or const is not supported: leave out what does not match");
        if (!strcmp(key, "pattern")) {
            *ret = *ret && string_pattern_has(pattern, text, end);
            continue;
        }
        uint64_t limit, chars = 0;
        xd_status st = read_count(b, j, key, 0, &limit);
        if (st)
            return st;
        for (const char *s = text; s < end; chars++)
            string_next_char(&s);
        *ret = *ret && (key[1] == 'i' ? chars >= limit : chars <= limit);
    }
    return XD_OK;
}

/* enum and const, with the pattern beside them. */
static xd_status chosen(build *b, const build_job *j, const gram_dfa *pattern, unsigned types)
{
    const json_t *some = json_object_get(j->schema, "enum"), *one = json_object_get(j->schema, "const"), *v;
    if (some && !json_is_array(some))
        return build_fault(b, j->place, "enum", "must be an array");
    uint32_t letters = 0;
    size_t n = one ? 1 : json_array_size(some), used = 0;
    for (size_t i = 0; i < n; i++) {
        v = one ? one : json_array_get(some, i);
        bool listed = !one || !some;
        for (size_t k = 0; !listed && k < json_array_size(some); k++)
            listed = json_equal(v, json_array_get(some, k));
        bool fits;
        xd_status st = fits_beside(b, j, pattern, v, &fits);
        if (st)
            return st;
        if (!listed || !fits || !is_of_type(v, types))
            continue;
        char *text = json_text(v);
        letters = text ? build_text(b, letters, text, strlen(text)) : GRAM_NONE;
        if (!text)
            build_nomem(b);
        free(text);
        if (letters == GRAM_NONE)
            return b->err->status;
        used++;
    }
    if (!used)
        return build_fault(b, j->place, one ? "const" : "enum", "no value of it is allowed here");
    b->g->node[j->node] = (gram_node){.kind = GRAM_LITERALS, .first = letters};
    return XD_OK;
}

static xd_status constants(build *b, const build_job *j, unsigned types)
{
    gram_dfa d;
    bool any;
    xd_status st = string_pattern(b, j, false, &d, &any);
    if (st)
        return st;
    st = chosen(b, j, any ? &d : NULL, types);
    gram_dfa_clear(&d);
    return st;
}

xd_status schema_read_counts(build *b, const build_job *j, const char *least, const char *most, gram_node *n)
{
    xd_status st = read_count(b, j, least, 0, &n->min);
    if (!st)
        st = read_count(b, j, most, GRAM_INF, &n->max);
    if (!st && n->min > n->max)
        st = build_fault(b, j->place, least, "is more than %s", most);
    return st;
}

/* ---- numbers ---- */

static xd_status read_number(build *b, const build_job *j, const char *key, char text[40], bool *ret_there)
{
    const json_t *v = json_object_get(j->schema, key);
    *ret_there = v != NULL;
    if (!v)
        return XD_OK;
    if (!json_is_number(v))
        return build_fault(b, j->place, key, "must be a number");
    if (json_is_integer(v))
        snprintf(text, 40, "%lld", (long long)json_integer_value(v));
    else
        print_real(json_real_value(v), text);
    return XD_OK;
}

static const struct {
    const char *key, *draft4; /* in draft 4 a boolean beside it */
    bool is_low, exclusive;
} bounds[] = {{"minimum", "exclusiveMinimum", true, false},
              {"exclusiveMinimum", "", true, true},
              {"maximum", "exclusiveMaximum", false, false},
              {"exclusiveMaximum", "", false, true}};

/* How many digits stand before the point of what is allowed. With those after it there are never more than a double tells apart. */
static void split_digits(const build_job *j, gram_number *n)
{
    double low = NAN, high = NAN;
    for (size_t i = 0; i < XD_ARRAY_LEN(bounds); i++) {
        const json_t *v = json_object_get(j->schema, bounds[i].key);
        if (json_is_number(v))
            *(bounds[i].is_low ? &low : &high) = json_number_value(v);
    }
    double most = XD_MAX(fabs(isnan(low) ? 0 : low), fabs(isnan(high) ? 0 : high));
    uint32_t digits = 1;
    while (digits < 15 && most >= 10) {
        most /= 10;
        digits++;
    }
    if (isnan(low) || isnan(high))
        digits = XD_MAX(digits, 9u);
    n->int_digits = digits;
    n->frac_digits = 15 - digits;
}

static xd_status number(build *b, const build_job *j, uint32_t node, bool integer)
{
    grammar *g = b->g;
    gram_number n = GRAM_ANY_NUMBER;
    char text[40];
    bool there, exact, any = false;
    xd_status st = XD_OK;
    split_digits(j, &n);
    if (integer) {
        n.int_digits = 19;
        n.frac_digits = 0;
        n.lo = INT64_MIN;
        n.hi = INT64_MAX;
    }
    for (size_t i = 0; i < XD_ARRAY_LEN(bounds) && !st; i++) {
        gram_int v;
        const json_t *draft4 = json_object_get(j->schema, bounds[i].draft4);
        bool exclusive = bounds[i].exclusive || json_is_true(draft4);
        if (bounds[i].exclusive && json_is_boolean(json_object_get(j->schema, bounds[i].key)) &&
            json_object_get(j->schema, bounds[i - 1].key))
            continue; /* draft 4: it was looked at with the bound */
        if ((st = read_number(b, j, bounds[i].key, text, &there)) || !there)
            continue;
        any = true;
        if (!gram_number_scale(text, n.frac_digits, &v, &exact)) {
            v = text[0] == '-' ? -GRAM_ALL : GRAM_ALL;
            exact = true;
        }
        if (bounds[i].is_low)
            n.lo = XD_MAX(n.lo, v + (exclusive || !exact));
        else
            n.hi = XD_MIN(n.hi, v - (exclusive && exact));
    }
    if (!st)
        st = read_number(b, j, "multipleOf", text, &there);
    if (!st && there) {
        any = true;
        if (text[0] == '-' || !gram_number_scale(text, n.frac_digits, &n.multiple, &exact) || !exact || n.multiple < 1)
            st = build_fault(b, j->place, "multipleOf",
                             "%s is not supported here: it must be above 0 and have at most %u digits after the point",
                             text, n.frac_digits);
    }
    if (st)
        return st;
    if (!any && !integer)
        n = GRAM_ANY_NUMBER;
    n.exponent = !any && !integer;
    if (!gram_number_possible(&n))
        return build_fault(b, j->place, NULL, "no %s of at most %u digits is within the bounds",
                           integer ? "integer" : "number", integer ? n.int_digits : n.int_digits + n.frac_digits);
    if (!tok_grow(&g->number, &g->number_cap, g->n_numbers + 1, sizeof *g->number))
        return build_nomem(b);
    g->number[g->n_numbers] = n;
    g->node[node] = (gram_node){.kind = GRAM_NUMBER, .rest = (uint32_t)g->n_numbers++};
    return XD_OK;
}

/* ---- strings, arrays ---- */

/* The values that a schema allows where it says so in few words; NULL: they are too many, or it says something else too. */
static const json_t *listed(build *b, const json_t *schema, uint32_t place)
{
    schema = schema ? schema_resolve(b, schema, place) : NULL;
    const json_t *list = json_object_get(schema, "enum"), *one = json_object_get(schema, "const"),
                 *type = json_object_get(schema, "type"), *low = json_object_get(schema, "minimum"),
                 *high = json_object_get(schema, "maximum");
    size_t known = (type != NULL) + (list || one ? (list != NULL) + (one != NULL) : (low != NULL) + (high != NULL));
    const char *key;
    json_t *v;
    json_object_foreach ((json_t *)(uintptr_t)schema, key, v)
        known -= !schema_is_annotation(key); /* the others make it wrap round */
    if (known || (list && one))
        return NULL;
    if (list)
        return json_is_array(list) ? list : NULL;
    json_t *made = NULL;
    if (one) {
        made = json_pack("[O]", one);
    } else if (build_is_text(type, "boolean") && !low && !high) {
        made = json_pack("[b,b]", 0, 1);
    } else if (build_is_text(type, "integer") && json_is_integer(low) && json_is_integer(high)) {
        json_int_t from = json_integer_value(low), to = json_integer_value(high);
        if (from > to || from < INT32_MIN || to > INT32_MAX || to - from > 63)
            return NULL;
        made = json_array();
        for (json_int_t i = from; i <= to; i++)
            json_array_append_new(made, json_integer(i));
    } else {
        return NULL;
    }
    if (!made || json_array_append_new(b->made, made)) {
        build_nomem(b);
        return NULL;
    }
    return made;
}

static bool came_before(const json_t *list, size_t i)
{
    const json_t *v = json_array_get(list, i);
    for (size_t k = 0; k < i; k++)
        if (schema_same_value(json_array_get(list, k), v))
            return true;
    return false;
}

/* Each of a few values once at most. Other items would have to be remembered. */
static xd_status unique_items(build *b, const build_job *j, uint32_t node, gram_node n)
{
    const json_t *items = json_object_get(j->schema, "items");
    const json_t *list = json_object_get(j->schema, "prefixItems") ? NULL : listed(b, items, j->place);
    if (b->err->status)
        return b->err->status;
    uint32_t kids[64];
    unsigned types = list ? schema_types(b, schema_resolve(b, items, j->place), j->place) : 0;
    if (list && !types)
        return b->err->status;
    for (size_t i = 0; list && i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        if (!is_of_type(v, types) || came_before(list, i))
            continue;
        char *text = n.n < XD_ARRAY_LEN(kids) ? json_text(v) : NULL;
        uint32_t letters = text ? build_text(b, 0, text, strlen(text)) : GRAM_NONE;
        free(text);
        if (n.n == XD_ARRAY_LEN(kids))
            list = NULL;
        else if (letters == GRAM_NONE)
            return b->err->status ? b->err->status : build_nomem(b);
        else if ((kids[n.n++] = build_node(b, (gram_node){.kind = GRAM_LITERALS, .first = letters})) == GRAM_NONE)
            return b->err->status;
    }
    if (!list)
        return build_fault(
            b, j->place, "uniqueItems",
            "is supported only for items of at most %zu values: an enum, a boolean, an integer with a minimum and a maximum",
            XD_ARRAY_LEN(kids));
    if (n.min > n.n)
        return build_fault(b, j->place, "minItems", "asks for more items than there are different ones");
    n.max = XD_MIN(n.max, n.n);
    n.unique = true;
    uint32_t count = n.n;
    b->g->node[node] = n;
    return build_set_kids(b, node, kids, count);
}

static xd_status array(build *b, const build_job *j, uint32_t node)
{
    gram_node n = {.kind = GRAM_ARRAY, .rest = GRAM_NONE};
    xd_status st = schema_read_counts(b, j, "minItems", "maxItems", &n);
    if (st)
        return st;
    if (json_is_true(json_object_get(j->schema, "uniqueItems")) && n.max > 1)
        return unique_items(b, j, node, n);
    const char *first_key = "prefixItems", *rest_key = "items";
    if (json_is_array(json_object_get(j->schema, "items"))) { /* before draft 2020-12 */
        first_key = "items";
        rest_key = "additionalItems";
    }
    const json_t *first = json_object_get(j->schema, first_key), *rest = json_object_get(j->schema, rest_key);
    if (first && !json_is_array(first))
        return build_fault(b, j->place, first_key, "must be an array");
    n.n = (uint32_t)XD_MIN(json_array_size(first), n.max);
    if (n.n > BUILD_MAX_ALTERNATIVES)
        return build_fault(b, j->place, first_key, "has more than %d entries", BUILD_MAX_ALTERNATIVES);
    uint32_t *kids = calloc(n.n + 1, sizeof *kids);
    if (!kids)
        return build_nomem(b);
    for (uint32_t i = 0; i < n.n && !st; i++) {
        kids[i] = schema_node(b, json_array_get(first, i), build_place_in(b, j->place, first_key, NULL, i));
        st = kids[i] == GRAM_NONE ? b->err->status : XD_OK;
    }
    /* A tuple whose schema says nothing of more items has no more. */
    if (!rest && json_is_false(json_object_get(j->schema, "unevaluatedItems")))
        rest = json_false();
    bool closed = json_is_false(rest) || (first && !rest && n.min <= n.n) || n.max <= n.n;
    if (!st && !closed) {
        n.rest = rest ? schema_node(b, rest, build_place_at(b, j->place, rest_key, 0)) : build_any(b);
        st = n.rest == GRAM_NONE ? b->err->status : XD_OK;
    }
    if (closed)
        n.max = XD_MIN(n.max, n.n);
    if (!st && n.min > n.max)
        st = build_fault(b, j->place, "minItems", "asks for more items than there may be");
    if (!st) {
        uint32_t first_kid = (uint32_t)b->g->n_kids;
        b->g->node[node] = n;
        st = build_set_kids(b, node, kids, n.n);
        b->g->node[node].first = first_kid;
    }
    free(kids);
    return st;
}

/* ---- objects ---- */

static xd_status add_property(build *b, uint32_t place, const char *name, const json_t *schema, bool required)
{
    grammar *g = b->g;
    if (g->n_props >= GRAM_MAX_KIDS)
        return build_fault(b, 0, NULL, "the schema is too large: it has more than %d properties", GRAM_MAX_KIDS);
    if (!tok_grow(&g->prop, &g->prop_cap, g->n_props + 1, sizeof *g->prop))
        return build_nomem(b);
    json_t *s = json_string(name);
    char *text = s ? json_text(s) : NULL;
    json_decref(s);
    gram_prop p = {.key = (uint32_t)g->text.len, .required = required};
    bool ok = text && xd_buf_puts(&g->text, text) && xd_buf_putc(&g->text, ':');
    free(text);
    if (!ok)
        return build_nomem(b);
    if (g->text.len > GRAM_MAX_BYTES)
        return build_fault(b, 0, NULL, "the schema is too large: its names have more than %d bytes", GRAM_MAX_BYTES);
    p.key_len = (uint32_t)g->text.len - p.key;
    p.node = schema ? schema_node(b, schema, place) : build_any(b);
    if (p.node == GRAM_NONE)
        return b->err->status;
    g->prop[g->n_props++] = p;
    return XD_OK;
}

static bool requires(const json_t *required, const char *name)
{
    size_t i;
    json_t *v;
    json_array_foreach ((json_t *)(uintptr_t)required, i, v)
        if (!strcmp(json_string_value(v), name))
            return true;
    return false;
}

/* What propertyNames says, NULL: nothing. Names are strings, of which it may say just that. */
static const json_t *limit_of_names(build *b, const build_job *j)
{
    const json_t *names = json_object_get(j->schema, "propertyNames");
    const json_t *s = names ? schema_resolve(b, names, j->place) : NULL;
    const char *key;
    json_t *v;
    if (!json_is_object(s))
        return json_is_true(s) ? NULL : names;
    json_object_foreach ((json_t *)(uintptr_t)s, key, v)
        if (!schema_is_annotation(key) && !(build_is_text(v, "string") && !strcmp(key, "type")))
            return names;
    return NULL;
}

/* Names that are texts of a pattern, format or length; those that are required must be such. */
static xd_status name_of_others(build *b, const build_job *j, const json_t *names, gram_node *n)
{
    static const char *const known[] = {"type", "pattern", "format", "minLength", "maxLength"};
    uint32_t place = build_place_at(b, j->place, "propertyNames", 0);
    build_job name = {.schema = names, .place = place, .node = build_node(b, (gram_node){.kind = GRAM_ALT})};
    if (place == GRAM_NONE || name.node == GRAM_NONE)
        return b->err->status;
    xd_status st = schema_join(b, &name);
    if (st)
        return st;
    const json_t *required = json_object_get(j->schema, "required");
    bool limited = json_object_get(name.schema, "minLength") || json_object_get(name.schema, "maxLength");
    const char *key;
    json_t *v;
    size_t i;
    bool ok = json_is_object(name.schema) && !json_object_size(json_object_get(j->schema, "properties")) &&
              !(limited && json_array_size(required));
    json_object_foreach ((json_t *)(uintptr_t)name.schema, key, v) {
        bool is_known = schema_is_annotation(key);
        for (i = 0; i < XD_ARRAY_LEN(known); i++)
            is_known = is_known || !strcmp(key, known[i]);
        ok = ok && is_known && (strcmp(key, "type") != 0 || build_is_text(v, "string"));
    }
    if (!ok)
        return build_fault(b, j->place, "propertyNames",
                           "is supported only as an enum of at most %d or by pattern, format and length, and without "
                           "properties",
                           BUILD_MAX_ALTERNATIVES);
    gram_dfa d = {0};
    bool any = false;
    st = string_node(b, &name, name.node);
    if (!st && json_array_size(required))
        st = string_pattern(b, &name, true, &d, &any);
    json_array_foreach (required, i, v) {
        const char *text = json_string_value(v);
        if (!st && any && !string_pattern_has(&d, text, text + json_string_length(v)))
            st = build_fault(b, j->place, "required", "'%.40s' is required and not allowed by propertyNames", text);
    }
    gram_dfa_clear(&d);
    n->name = name.node;
    return st;
}

static xd_status own_properties(build *b, const build_job *j, gram_node *n, const json_t *others)
{
    const json_t *own = json_object_get(j->schema, "properties"), *required = json_object_get(j->schema, "required");
    if (own && !json_is_object(own))
        return build_fault(b, j->place, "properties", "must be an object");
    if (required && !json_is_array(required))
        return build_fault(b, j->place, "required", "must be an array of strings");
    if (json_object_size(own) > BUILD_MAX_ALTERNATIVES || json_array_size(required) > BUILD_MAX_ALTERNATIVES)
        return build_fault(b, j->place, "properties", "are more than %d", BUILD_MAX_ALTERNATIVES);
    size_t i;
    json_t *v;
    json_array_foreach ((json_t *)(uintptr_t)required, i, v)
        if (!json_is_string(v))
            return build_fault(b, j->place, "required", "must be an array of strings");
    const char *name;
    xd_status st = XD_OK;
    const json_t *names = limit_of_names(b, j);
    if (b->err->status)
        return b->err->status;
    const json_t *list = names && !own ? listed(b, names, j->place) : NULL;
    if (b->err->status)
        return b->err->status;
    if (list && json_array_size(list) <= BUILD_MAX_ALTERNATIVES) {
        json_array_foreach ((json_t *)(uintptr_t)list, i, v) {
            name = json_string_value(v);
            if (name && !came_before(list, i) && !json_is_false(others) && !st)
                st = add_property(b, build_place_at(b, j->place, "additionalProperties", 0), name, others,
                                  requires(required, name));
        }
        others = json_false(); /* there are no others */
    } else if (names && (st = name_of_others(b, j, names, n))) {
        return st;
    }
    json_object_foreach ((json_t *)(uintptr_t)own, name, v) {
        bool needed = requires(required, name);
        if (json_is_false(v) && !needed)
            continue;
        if (!st)
            st = add_property(b, build_place_in(b, j->place, "properties", name, 0), name, v, needed);
    }
    json_array_foreach ((json_t *)(uintptr_t)required, i, v) {
        name = json_string_value(v);
        bool known = json_object_get(own, name) != NULL;
        XD_CLEANUP(xd_freep) char *text = json_text(v); /* named twice */
        size_t len = text ? strlen(text) : 0;
        for (size_t k = n->first; k < b->g->n_props && !known && !st; k++)
            known = text && len + 1 == b->g->prop[k].key_len && !memcmp(text, b->g->text.data + b->g->prop[k].key, len);
        if (!st && !known && json_is_false(others))
            st = build_fault(b, j->place, "required", "'%.40s' is required and not allowed", name);
        if (!st && !known)
            st = add_property(b, build_place_at(b, j->place, "additionalProperties", 0), name, others, true);
    }
    return st;
}

static xd_status object(build *b, const build_job *j, uint32_t node)
{
    grammar *g = b->g;
    gram_node n = {.kind = GRAM_OBJECT, .rest = GRAM_NONE, .first = (uint32_t)g->n_props};
    const json_t *own = json_object_get(j->schema, "properties"),
                 *others = json_object_get(j->schema, "additionalProperties");
    if (!others && json_is_false(json_object_get(j->schema, "unevaluatedProperties")))
        others = json_false();
    xd_status st = schema_read_counts(b, j, "minProperties", "maxProperties", &n);
    if (!st)
        st = own_properties(b, j, &n, others);
    if (st)
        return st;
    n.n = (uint32_t)(g->n_props - n.first);
    uint32_t required = 0;
    for (uint32_t i = n.n; i-- > 0;)
        g->prop[n.first + i].required_from = required += g->prop[n.first + i].required;
    if (required > n.max)
        return build_fault(b, j->place, "maxProperties", "is less than what is required");
    bool open = others ? !json_is_false(others) : !own;
    open = open && (n.name || !limit_of_names(b, j));
    if (open) {
        n.rest = others ? schema_node(b, others, build_place_at(b, j->place, "additionalProperties", 0)) : build_any(b);
        if (n.rest == GRAM_NONE)
            return b->err->status;
        const char *name;
        json_t *v;
        json_object_foreach ((json_t *)(uintptr_t)own, name, v)
            if ((n.names = build_text(b, n.names, name, strlen(name))) == GRAM_NONE)
                return b->err->status;
        for (uint32_t i = 0; i < n.n; i++) { /* required ones that are not among them */
            const gram_prop *p = &g->prop[n.first + i];
            if ((n.names = build_text(b, n.names, g->text.data + p->key + 1, p->key_len - 3)) == GRAM_NONE)
                return b->err->status;
        }
    }
    if (!open && n.min > n.n)
        return build_fault(b, j->place, "minProperties", "is more than the properties that there are");
    if (n.min <= required)
        n.min = 0;
    if (open && n.min > 1) /* names may come twice, and count once */
        return build_fault(b, j->place, "minProperties", "above 1 is supported only for named properties");
    g->node[node] = n;
    return XD_OK;
}

/* ---- all of them ---- */

xd_status schema_of_types(build *b, const build_job *j)
{
    unsigned types = schema_types(b, j->schema, j->place), told = 0;
    if (!types)
        return b->err->status;
    if (json_object_get(j->schema, "enum") || json_object_get(j->schema, "const"))
        return constants(b, j, types);
    const char *key;
    json_t *v;
    json_object_foreach ((json_t *)(uintptr_t)j->schema, key, v)
        told |= schema_types_of_keyword(key);
    told &= types; /* and no mark of refused ones, of which harmless forms may stand here */
    if (!json_object_get(j->schema, "type") && told)
        types = told;
    uint32_t kids[8], n = 0;
    xd_status st = XD_OK;
    for (unsigned bit = 1; bit <= TYPE_OBJECT && !st; bit <<= 1) {
        if (!(types & bit))
            continue;
        uint32_t node = types == bit ? j->node : build_node(b, (gram_node){.kind = GRAM_ALT});
        if (node == GRAM_NONE)
            return b->err->status;
        kids[n++] = node;
        uint32_t letters = 0;
        switch ((json_types)bit) {
        case TYPE_NULL: letters = build_text(b, 0, "null", 4); break;
        case TYPE_BOOLEAN:
            letters = build_text(b, 0, "true", 4);
            letters = letters == GRAM_NONE ? letters : build_text(b, letters, "false", 5);
            break;
        case TYPE_INTEGER: st = number(b, j, node, true); break;
        case TYPE_NUMBER: st = number(b, j, node, false); break;
        case TYPE_STRING: st = string_node(b, j, node); break;
        case TYPE_ARRAY: st = array(b, j, node); break;
        case TYPE_OBJECT: st = object(b, j, node); break;
        }
        if (letters == GRAM_NONE)
            return b->err->status;
        if (letters)
            b->g->node[node] = (gram_node){.kind = GRAM_LITERALS, .first = letters};
    }
    return st || n < 2 ? st : build_set_kids(b, j->node, kids, n);
}
