/* grammar_schema.c - a JSON schema (draft 2020-12, and what drafts 4 to 2019-09 spell otherwise) to a grammar.
 *
 * Each schema becomes one node, once, however often it is referred to; schemas wait in a list, so that neither their depth nor a chain of
 * references is a depth of calls. What a keyword says is enforced, or the schema is refused by the keyword's name. Where the schema leaves
 * a choice open, less may be generated than it allows: properties come in the schema's order; there are no others than the named ones
 * unless additionalProperties asks for them or there are none; without `type` the keywords tell it; each text is written in one way. */
#include <math.h>
#include <string.h>

#include "engine/text/grammar_build.h"
#include "engine/text/tok_priv.h"

enum { MAX_LEAST = 100000, MAX_ALTERNATIVES = 1000, MAX_ONE_OF = 100, REFUSED = 0x8000 };

/* Sorted by name. What is not here and no annotation is unknown to JSON Schema, which says: no effect. */
static const struct {
    const char *name;
    unsigned types;
} keywords[] = {
    {"$dynamicRef", REFUSED},
    {"$recursiveRef", REFUSED},
    {"additionalItems", TYPE_ARRAY},
    {"additionalProperties", TYPE_OBJECT},
    {"contains", REFUSED},
    {"dependencies", REFUSED},
    {"dependentRequired", REFUSED},
    {"dependentSchemas", REFUSED},
    {"else", REFUSED},
    {"exclusiveMaximum", TYPE_NUMBER},
    {"exclusiveMinimum", TYPE_NUMBER},
    {"format", 0},
    {"if", REFUSED},
    {"items", TYPE_ARRAY},
    {"maxItems", TYPE_ARRAY},
    {"maxLength", TYPE_STRING},
    {"maxProperties", TYPE_OBJECT},
    {"maximum", TYPE_NUMBER},
    {"minItems", TYPE_ARRAY},
    {"minLength", TYPE_STRING},
    {"minProperties", TYPE_OBJECT},
    {"minimum", TYPE_NUMBER},
    {"multipleOf", TYPE_NUMBER},
    {"not", REFUSED},
    {"pattern", TYPE_STRING},
    {"patternProperties", REFUSED},
    {"prefixItems", TYPE_ARRAY},
    {"properties", TYPE_OBJECT},
    {"propertyNames", REFUSED},
    {"required", TYPE_OBJECT},
    {"then", REFUSED},
    {"unevaluatedItems", REFUSED},
    {"unevaluatedProperties", REFUSED},
    {"uniqueItems", TYPE_ARRAY},
};

static unsigned types_of_keyword(const char *key)
{
    for (size_t i = 0; i < XD_ARRAY_LEN(keywords); i++)
        if (!strcmp(keywords[i].name, key))
            return keywords[i].types;
    return 0;
}

/* ---- schemas and their nodes ---- */

static build_memo *memo_slot(build *b, const json_t *schema)
{
    size_t i = (size_t)xd_mix64((uintptr_t)schema) & (b->memo_cap - 1);
    while (b->memo[i].schema && b->memo[i].schema != schema)
        i = (i + 1) & (b->memo_cap - 1);
    return &b->memo[i];
}

static bool memo_grow(build *b)
{
    if (b->n_memo * 2 < b->memo_cap)
        return true;
    build_memo *old = b->memo;
    size_t old_cap = b->memo_cap;
    b->memo_cap = old_cap ? old_cap * 2 : 256;
    b->memo = calloc(b->memo_cap, sizeof *b->memo);
    if (!b->memo) {
        b->memo = old;
        b->memo_cap = old_cap;
        return false;
    }
    for (size_t i = 0; i < old_cap; i++)
        if (old[i].schema)
            *memo_slot(b, old[i].schema) = old[i];
    free(old);
    return true;
}

/* The node that the schema has or will have; GRAM_NONE after a fault. */
static uint32_t node_for(build *b, const json_t *schema, uint32_t place)
{
    if (place == GRAM_NONE)
        return GRAM_NONE;
    if (!(schema = schema_resolve(b, schema, place)))
        return GRAM_NONE;
    if (json_is_true(schema) || (json_is_object(schema) && !schema_constrains(schema)))
        return build_any(b);
    if (!memo_grow(b) || !tok_grow(&b->job, &b->job_cap, b->n_jobs + 1, sizeof *b->job)) {
        build_nomem(b);
        return GRAM_NONE;
    }
    build_memo *m = memo_slot(b, schema);
    if (m->schema)
        return m->node;
    uint32_t node = build_node(b, (gram_node){.kind = GRAM_ALT});
    if (node == GRAM_NONE)
        return node;
    *m = (build_memo){.schema = schema, .node = node};
    b->n_memo++;
    b->job[b->n_jobs++] = (build_job){.schema = schema, .node = node, .place = place};
    return node;
}

static uint32_t place_in(build *b, uint32_t place, const char *keyword, const char *key, size_t index)
{
    uint32_t at = build_place_at(b, place, keyword, 0);
    return at == GRAM_NONE ? at : build_place_at(b, at, key, index);
}

static xd_status set_kids(build *b, uint32_t node, const uint32_t *kids, uint32_t n)
{
    b->g->node[node].first = (uint32_t)b->g->n_kids;
    b->g->node[node].n = n;
    for (uint32_t i = 0; i < n; i++)
        if (!build_kid(b, kids[i]))
            return b->err->status;
    return XD_OK;
}

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

/* enum and const. */
static xd_status constants(build *b, const build_job *j, unsigned types)
{
    const json_t *some = json_object_get(j->schema, "enum"), *one = json_object_get(j->schema, "const"), *v;
    const char *key;
    json_t *ignored;
    json_object_foreach ((json_t *)(uintptr_t)j->schema, key, ignored)
        if (types_of_keyword(key))
            return build_fault(b, j->place, key,
                               "beside enum or const is not supported: leave out what does not match");
    if (some && !json_is_array(some))
        return build_fault(b, j->place, "enum", "must be an array");
    uint32_t letters = 0;
    size_t n = one ? 1 : json_array_size(some), used = 0;
    for (size_t i = 0; i < n; i++) {
        v = one ? one : json_array_get(some, i);
        bool listed = !one || !some;
        for (size_t k = 0; !listed && k < json_array_size(some); k++)
            listed = json_equal(v, json_array_get(some, k));
        if (!listed || !is_of_type(v, types))
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

static xd_status read_counts(build *b, const build_job *j, const char *least, const char *most, gram_node *n)
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
    const char *key;
    bool is_low, exclusive;
} bounds[] = {{"minimum", true, false},
              {"exclusiveMinimum", true, true},
              {"maximum", false, false},
              {"exclusiveMaximum", false, true}};

/* How many digits stand before the point of what is allowed. With those after it there are never more than a double tells apart. */
static void split_digits(const build_job *j, gram_number *n)
{
    double low = NAN, high = NAN;
    for (size_t i = 0; i < XD_ARRAY_LEN(bounds); i++) {
        const json_t *v = json_object_get(j->schema, bounds[i].key);
        if (v)
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
        if ((st = read_number(b, j, bounds[i].key, text, &there)) || !there)
            continue;
        any = true;
        if (!gram_number_scale(text, n.frac_digits, &v, &exact)) {
            v = text[0] == '-' ? -GRAM_ALL : GRAM_ALL;
            exact = true;
        }
        if (bounds[i].is_low)
            n.lo = XD_MAX(n.lo, v + (bounds[i].exclusive || !exact));
        else
            n.hi = XD_MIN(n.hi, v - (bounds[i].exclusive && exact));
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

static xd_status string(build *b, const build_job *j, uint32_t node)
{
    gram_node n = {.kind = GRAM_STRING, .dfa = GRAM_NONE};
    xd_status st = read_counts(b, j, "minLength", "maxLength", &n);
    if (!st && json_object_get(j->schema, "pattern"))
        st = build_fault(b, j->place, "pattern", "is not supported");
    if (!st)
        b->g->node[node] = n;
    return st;
}

static xd_status array(build *b, const build_job *j, uint32_t node)
{
    gram_node n = {.kind = GRAM_ARRAY, .rest = GRAM_NONE};
    xd_status st = read_counts(b, j, "minItems", "maxItems", &n);
    if (st)
        return st;
    if (json_is_true(json_object_get(j->schema, "uniqueItems")) && n.max > 1)
        return build_fault(b, j->place, "uniqueItems", "is not supported");
    const char *first_key = "prefixItems", *rest_key = "items";
    if (json_is_array(json_object_get(j->schema, "items"))) { /* before draft 2020-12 */
        first_key = "items";
        rest_key = "additionalItems";
    }
    const json_t *first = json_object_get(j->schema, first_key), *rest = json_object_get(j->schema, rest_key);
    if (first && !json_is_array(first))
        return build_fault(b, j->place, first_key, "must be an array");
    n.n = (uint32_t)XD_MIN(json_array_size(first), n.max);
    if (n.n > MAX_ALTERNATIVES)
        return build_fault(b, j->place, first_key, "has more than %d entries", MAX_ALTERNATIVES);
    uint32_t *kids = calloc(n.n + 1, sizeof *kids);
    if (!kids)
        return build_nomem(b);
    for (uint32_t i = 0; i < n.n && !st; i++) {
        kids[i] = node_for(b, json_array_get(first, i), place_in(b, j->place, first_key, NULL, i));
        st = kids[i] == GRAM_NONE ? b->err->status : XD_OK;
    }
    /* A tuple whose schema says nothing of more items has no more. */
    bool closed = json_is_false(rest) || (first && !rest && n.min <= n.n) || n.max <= n.n;
    if (!st && !closed) {
        n.rest = rest ? node_for(b, rest, build_place_at(b, j->place, rest_key, 0)) : build_any(b);
        st = n.rest == GRAM_NONE ? b->err->status : XD_OK;
    }
    if (closed)
        n.max = XD_MIN(n.max, n.n);
    if (!st && n.min > n.max)
        st = build_fault(b, j->place, "minItems", "asks for more items than there may be");
    if (!st) {
        uint32_t first_kid = (uint32_t)b->g->n_kids;
        b->g->node[node] = n;
        st = set_kids(b, node, kids, n.n);
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
    p.node = schema ? node_for(b, schema, place) : build_any(b);
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

static xd_status own_properties(build *b, const build_job *j, gram_node *n, const json_t *others)
{
    const json_t *own = json_object_get(j->schema, "properties"), *required = json_object_get(j->schema, "required");
    if (own && !json_is_object(own))
        return build_fault(b, j->place, "properties", "must be an object");
    if (required && !json_is_array(required))
        return build_fault(b, j->place, "required", "must be an array of strings");
    if (json_object_size(own) > MAX_ALTERNATIVES || json_array_size(required) > MAX_ALTERNATIVES)
        return build_fault(b, j->place, "properties", "are more than %d", MAX_ALTERNATIVES);
    size_t i;
    json_t *v;
    json_array_foreach ((json_t *)(uintptr_t)required, i, v)
        if (!json_is_string(v))
            return build_fault(b, j->place, "required", "must be an array of strings");
    const char *name;
    xd_status st = XD_OK;
    json_object_foreach ((json_t *)(uintptr_t)own, name, v) {
        bool needed = requires(required, name);
        if (json_is_false(v) && !needed)
            continue;
        if (!st)
            st = add_property(b, place_in(b, j->place, "properties", name, 0), name, v, needed);
    }
    json_array_foreach ((json_t *)(uintptr_t)required, i, v) {
        name = json_string_value(v);
        bool known = json_object_get(own, name) != NULL;
        for (size_t k = n->first; k < b->g->n_props && !known && !st; k++) {
            char *text = json_text(v); /* named twice */
            known = text && strlen(text) + 1 == b->g->prop[k].key_len &&
                    !memcmp(text, b->g->text.data + b->g->prop[k].key, strlen(text));
            free(text);
        }
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
    xd_status st = read_counts(b, j, "minProperties", "maxProperties", &n);
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
    if (open) {
        n.rest = others ? node_for(b, others, build_place_at(b, j->place, "additionalProperties", 0)) : build_any(b);
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

/* ---- alternatives ---- */

static xd_status of_types(build *b, const build_job *j)
{
    unsigned types = schema_types(b, j->schema, j->place), told = 0;
    if (!types)
        return b->err->status;
    if (json_object_get(j->schema, "enum") || json_object_get(j->schema, "const"))
        return constants(b, j, types);
    const char *key;
    json_t *v;
    json_object_foreach ((json_t *)(uintptr_t)j->schema, key, v)
        told |= types_of_keyword(key);
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
        case TYPE_STRING: st = string(b, j, node); break;
        case TYPE_ARRAY: st = array(b, j, node); break;
        case TYPE_OBJECT: st = object(b, j, node); break;
        }
        if (letters == GRAM_NONE)
            return b->err->status;
        if (letters)
            b->g->node[node] = (gram_node){.kind = GRAM_LITERALS, .first = letters};
    }
    return st || n < 2 ? st : set_kids(b, j->node, kids, n);
}

/* oneOf is anyOf where no value can match two; objects must then have the property that tells them apart. */
static xd_status only_one(build *b, const build_job *j, const json_t **branch, size_t n)
{
    const char *tag = NULL;
    if (n > MAX_ONE_OF)
        return build_fault(b, j->place, "oneOf", "has more than %d schemas", MAX_ONE_OF);
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < i; k++) {
            if (schema_disjoint(b, branch[k], branch[i], j->place, &tag))
                continue;
            if (b->err->status)
                return b->err->status;
            return build_fault(b, j->place, "oneOf",
                               "schemas %zu and %zu might both match: give them types that differ, or a property with "
                               "a const of its own, or use anyOf",
                               k, i);
        }
    }
    if (!tag)
        return XD_OK;
    json_t *must = json_pack("{s:[s]}", "required", tag);
    if (!must || json_array_append_new(b->made, must))
        return build_nomem(b);
    for (size_t i = 0; i < n; i++) {
        const json_t *s = schema_resolve(b, branch[i], j->place);
        if (!s)
            return b->err->status;
        if (json_object_get(json_object_get(s, "properties"), tag) && !(branch[i] = schema_merge(b, s, must, j->place)))
            return b->err->status;
    }
    return XD_OK;
}

static xd_status alternatives(build *b, const build_job *j, const char *key)
{
    const json_t *list = json_object_get(j->schema, key), *beside = schema_without(b, j->schema, key);
    size_t n = json_array_size(list);
    if (!json_is_array(list) || !n)
        return build_fault(b, j->place, key, "must be an array that is not empty");
    if (n > MAX_ALTERNATIVES)
        return build_fault(b, j->place, key, "has more than %d schemas", MAX_ALTERNATIVES);
    if (!beside)
        return b->err->status;
    const json_t **branch = calloc(n, sizeof *branch);
    uint32_t *kids = calloc(n, sizeof *kids);
    xd_status st = branch && kids ? XD_OK : build_nomem(b);
    bool joined = schema_constrains(beside);
    for (size_t i = 0; i < n && !st; i++) {
        branch[i] = json_array_get(list, i);
        if (joined && !(branch[i] = schema_merge(b, beside, branch[i], j->place)))
            st = b->err->status;
    }
    if (!st && !strcmp(key, "oneOf"))
        st = only_one(b, j, branch, n);
    uint32_t used = 0;
    for (size_t i = 0; i < n && !st; i++) {
        if (json_is_false(branch[i]))
            continue;
        kids[used] = node_for(b, branch[i], place_in(b, j->place, key, NULL, i));
        st = kids[used++] == GRAM_NONE ? b->err->status : XD_OK;
    }
    if (!st)
        st = set_kids(b, j->node, kids, used);
    free(branch);
    free(kids);
    return st;
}

/* ---- one schema ---- */

static xd_status check_keywords(build *b, const build_job *j)
{
    const char *key;
    json_t *v;
    json_object_foreach ((json_t *)(uintptr_t)j->schema, key, v) {
        bool empty = (json_is_object(v) && !json_object_size(v)) || json_is_true(v);
        bool no_effect =
            (!strcmp(key, "unevaluatedProperties") || !strcmp(key, "unevaluatedItems")) && json_is_boolean(v);
        no_effect = no_effect || (empty && strcmp(key, "not") != 0 && strcmp(key, "contains") != 0);
        if (types_of_keyword(key) & REFUSED && !no_effect)
            return build_fault(b, j->place, key, "is not supported");
    }
    if (json_is_true(json_object_get(j->schema, "nullable")))
        return build_fault(b, j->place, "nullable", "is no JSON Schema: use \"type\": [..., \"null\"]");
    return XD_OK;
}

/* Joins what must hold together until there is one schema. */
static xd_status join(build *b, build_job *j)
{
    for (;;) {
        const json_t *all = json_object_get(j->schema, "allOf"), *s = NULL;
        if (json_object_get(j->schema, "$ref")) {
            json_t *ref = json_pack("{s:O}", "$ref", json_object_get(j->schema, "$ref"));
            if (!ref || json_array_append_new(b->made, ref))
                return build_nomem(b);
            if (!(s = schema_without(b, j->schema, "$ref")) || !(s = schema_merge(b, ref, s, j->place)))
                return b->err->status;
        } else if (all) {
            if (!json_is_array(all))
                return build_fault(b, j->place, "allOf", "must be an array");
            s = schema_without(b, j->schema, "allOf");
            for (size_t i = 0; i < json_array_size(all) && s; i++)
                s = schema_merge(b, s, json_array_get(all, i), j->place);
            if (!s)
                return b->err->status;
        } else {
            return XD_OK;
        }
        j->schema = s;
        if (!json_is_object(s) || ++b->merges > BUILD_MAX_MERGES)
            return build_fault(b, j->place, NULL, "what must hold together here allows nothing, or refers to itself");
    }
}

static xd_status one_schema(build *b, build_job j)
{
    if (json_is_false(j.schema))
        return build_fault(b, j.place, NULL, "false allows nothing");
    if (!json_is_object(j.schema))
        return build_fault(b, j.place, NULL, "a schema must be an object or a boolean");
    xd_status st = check_keywords(b, &j);
    const json_t *given = j.schema;
    if (!st)
        st = join(b, &j);
    if (!st && given != j.schema)
        st = check_keywords(b, &j);
    if (st)
        return st;
    if (!schema_constrains(j.schema)) {
        uint32_t any = build_any(b);
        return any == GRAM_NONE ? b->err->status : set_kids(b, j.node, &any, 1);
    }
    if (json_object_get(j.schema, "anyOf"))
        return alternatives(b, &j, "anyOf");
    return json_object_get(j.schema, "oneOf") ? alternatives(b, &j, "oneOf") : of_types(b, &j);
}

static size_t count_values(const json_t *v, size_t limit)
{
    size_t n = 1, i;
    const char *key;
    json_t *x;
    if (json_is_object(v)) {
        json_object_foreach ((json_t *)(uintptr_t)v, key, x)
            n += n < limit ? count_values(x, limit - n) : 1;
    } else {
        json_array_foreach ((json_t *)(uintptr_t)v, i, x)
            n += n < limit ? count_values(x, limit - n) : 1;
    }
    return n;
}

static xd_status compile(build *b)
{
    if (b->root && count_values(b->root, BUILD_MAX_VALUES) > BUILD_MAX_VALUES)
        return build_fault(b, 0, NULL, "the schema is too large: it has more than %d values", BUILD_MAX_VALUES);
    uint32_t place = build_place_at(b, GRAM_NONE, NULL, 0), root = build_node(b, (gram_node){.kind = GRAM_ROOT}), value;
    if (place == GRAM_NONE || root == GRAM_NONE)
        return b->err->status;
    if (b->root) {
        value = node_for(b, b->root, place);
    } else {
        uint32_t any = build_any(b);
        value = any == GRAM_NONE ? any : build_node(b, (gram_node){.kind = GRAM_OBJECT, .max = GRAM_INF, .rest = any});
    }
    if (value == GRAM_NONE)
        return b->err->status;
    b->g->node[0].rest = value;
    while (b->job_done < b->n_jobs) {
        xd_status st = one_schema(b, b->job[b->job_done++]);
        if (st)
            return st;
    }
    return build_finish(b);
}

xd_status grammar_new(const json_t *schema, grammar **ret, xd_err *err)
{
    xd_err own = {0};
    XD_CLEANUP(grammar_unrefp) grammar *g = calloc(1, sizeof *g);
    build b = {.g = g, .root = schema, .made = json_array(), .any = GRAM_NONE, .err = &own};
    xd_status st = g && b.made ? XD_OK : build_nomem(&b);
    if (g)
        g->refs = 1;
    if (!st)
        st = compile(&b);
    json_decref(b.made);
    free(b.place);
    free(b.job);
    free(b.memo);
    if (st) {
        if (err)
            *err = own;
        return st;
    }
    *ret = XD_TAKE(g);
    return XD_OK;
}

grammar *grammar_ref(grammar *g)
{
    atomic_fetch_add(&g->refs, 1);
    return g;
}

void grammar_unref(grammar *g)
{
    if (!g || atomic_fetch_sub(&g->refs, 1) != 1)
        return;
    for (size_t i = 0; i < g->n_dfas; i++) {
        free(g->dfa[i].first);
        free(g->dfa[i].edge);
        free(g->dfa[i].end);
    }
    for (size_t i = 0; i < GRAM_N_MASKS; i++) {
        free(g->mask[i].key);
        free(g->mask[i].bits);
    }
    free(g->node);
    free(g->prop);
    free(g->letter);
    free(g->number);
    free(g->dfa);
    free(g->kid);
    xd_buf_free(&g->text);
    free(g);
}
