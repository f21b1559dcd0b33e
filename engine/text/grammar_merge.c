/* grammar_merge.c - schemas that refer to others, that must hold together (allOf, what stands beside $ref or anyOf), or of which only one
 * may hold (oneOf).
 *
 * Both of two schemas hold where one schema holds that has the keywords of both, the stricter value of each. Where that cannot be said in
 * one schema the request is refused: nothing is dropped. */
#include <string.h>

#include "engine/text/grammar_build.h"

bool schema_is_annotation(const char *key)
{
    static const char *const words[] = {
        "$anchor",         "$comment",         "$defs",    "$id",         "$schema",    "$vocabulary",
        "contentEncoding", "contentMediaType", "default",  "definitions", "deprecated", "description",
        "discriminator",   "example",          "examples", "readOnly",    "title",      "writeOnly",
    };
    for (size_t i = 0; i < XD_ARRAY_LEN(words); i++)
        if (!strcmp(key, words[i]))
            return true;
    return key[0] == 'x' && key[1] == '-';
}

bool schema_constrains(const json_t *schema)
{
    if (!json_is_object(schema))
        return json_is_false(schema);
    const char *key;
    json_t *v;
    json_object_foreach ((json_t *)(uintptr_t)schema, key, v)
        if (!schema_is_annotation(key))
            return true;
    return false;
}

unsigned schema_types(build *b, const json_t *schema, uint32_t place)
{
    static const struct {
        const char *name;
        unsigned types;
    } names[] = {{"null", TYPE_NULL},     {"boolean", TYPE_BOOLEAN}, {"integer", TYPE_INTEGER}, {"number", TYPE_NUMBER},
                 {"string", TYPE_STRING}, {"array", TYPE_ARRAY},     {"object", TYPE_OBJECT}};
    const json_t *type = json_object_get(schema, "type");
    unsigned all = TYPE_NULL | TYPE_BOOLEAN | TYPE_NUMBER | TYPE_STRING | TYPE_ARRAY | TYPE_OBJECT, ret = 0;
    if (!type)
        return all;
    size_t n = json_is_array(type) ? json_array_size(type) : 1;
    for (size_t i = 0; i < n; i++) {
        const json_t *t = json_is_array(type) ? json_array_get(type, i) : type;
        unsigned bit = 0;
        for (size_t k = 0; k < XD_ARRAY_LEN(names) && json_is_string(t); k++)
            if (!strcmp(names[k].name, json_string_value(t)))
                bit = names[k].types;
        if (!bit) {
            build_fault(b, place, "type",
                        "must be one of null, boolean, integer, number, string, array, object, or a list of "
                        "them");
            return 0;
        }
        ret |= bit;
    }
    if (!ret)
        build_fault(b, place, "type", "an empty list of types allows nothing");
    return ret & TYPE_NUMBER ? ret & ~(unsigned)TYPE_INTEGER : ret;
}

/* ---- $ref ---- */

static int hex(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}

/* One step of a JSON pointer within a URI fragment: %XX, then ~1 and ~0. False: malformed. */
static bool pointer_step(const char *s, size_t len, xd_buf *ret)
{
    xd_buf_clear(ret);
    for (size_t i = 0; i < len; i++) {
        char c = s[i];
        if (c == '%') {
            int hi = i + 2 < len ? hex(s[i + 1]) : -1, lo = hi < 0 ? -1 : hex(s[i + 2]);
            if (lo < 0 || !(hi || lo))
                return false;
            c = (char)(hi * 16 + lo);
            i += 2;
        }
        xd_buf_putc(ret, c);
    }
    size_t to = 0;
    for (size_t i = 0; i < ret->len; i++, to++) {
        char c = ret->data[i];
        if (c == '~') {
            if (i + 1 >= ret->len || (ret->data[i + 1] != '0' && ret->data[i + 1] != '1'))
                return false;
            c = ret->data[++i] == '0' ? '~' : '/';
        }
        ret->data[to] = c;
    }
    if (ret->data)
        ret->data[ret->len = to] = 0;
    return !ret->failed;
}

/* The schema that calls itself so. No deeper than a reader of JSON lets it be. */
static const json_t *anchored(const json_t *at, const char *name)
{
    const json_t *ret = NULL;
    const char *key;
    json_t *v;
    size_t i;
    const json_t *anchor = json_object_get(at, "$anchor");
    if (json_is_string(anchor) && !strcmp(json_string_value(anchor), name))
        return at;
    if (json_is_array(at)) {
        json_array_foreach ((json_t *)(uintptr_t)at, i, v)
            if ((ret = anchored(v, name)))
                return ret;
        return NULL;
    }
    json_object_foreach ((json_t *)(uintptr_t)at, key, v)
        if (strcmp(key, "enum") != 0 && strcmp(key, "const") != 0 && strcmp(key, "default") != 0 &&
            strcmp(key, "examples") != 0 && (ret = anchored(v, name)))
            return ret;
    return NULL;
}

static const json_t *pointed_at(build *b, const char *ref, uint32_t place)
{
    const json_t *at = b->root, *id = json_object_get(at, "$id");
    XD_CLEANUP(xd_buf_free) xd_buf step = {0};
    const char *own = json_is_string(id) ? json_string_value(id) : "";
    size_t own_len = strcspn(own, "#");
    if (ref[0] != '#' && own_len && !strncmp(ref, own, own_len) && (!ref[own_len] || ref[own_len] == '#'))
        ref = ref[own_len] ? ref + own_len : "#";
    if (ref[0] != '#') {
        build_fault(b, place, "$ref",
                    "'%.80s' is not within this schema: only \"#...\" and its own $id can be followed", ref);
        return NULL;
    }
    if (ref[1] && ref[1] != '/') {
        if (!build_spend(b, place, build_count(at, BUILD_MAX_VALUES) * BUILD_WORK_OF_LOOK))
            return NULL;
        if (!(at = anchored(at, ref + 1)))
            build_fault(b, place, "$ref", "there is no $anchor '%.80s'", ref + 1);
        return at;
    }
    for (const char *p = ref + 1; *p && at;) {
        size_t len = strcspn(++p, "/");
        if (!pointer_step(p, len, &step)) {
            at = NULL;
            break;
        }
        const char *name = step.data ? step.data : "";
        if (json_is_array(at))
            at = *name >= '0' && *name <= '9' ? json_array_get(at, strtoul(name, NULL, 10)) : NULL;
        else
            at = json_object_get(at, name);
        p += len;
    }
    if (!at)
        build_fault(b, place, "$ref", "there is nothing at '%.80s'", ref);
    return at;
}

const json_t *schema_resolve(build *b, const json_t *schema, uint32_t place)
{
    for (int hops = 0; hops < BUILD_MAX_HOPS; hops++) {
        const json_t *ref = json_object_get(schema, "$ref");
        if (!ref)
            return schema;
        if (!json_is_string(ref)) {
            build_fault(b, place, "$ref", "must be a string");
            return NULL;
        }
        const char *key;
        json_t *v;
        json_object_foreach ((json_t *)(uintptr_t)schema, key, v)
            if (strcmp(key, "$ref") != 0 && !schema_is_annotation(key))
                return schema;
        schema = pointed_at(b, json_string_value(ref), place);
        if (!schema)
            return NULL;
    }
    build_fault(b, place, "$ref", "leads to itself, or through more than %d others", BUILD_MAX_HOPS);
    return NULL;
}

/* ---- allOf ---- */

static json_t *keep(build *b, json_t *v)
{
    if (!v || json_array_append_new(b->made, v)) {
        build_nomem(b);
        return NULL;
    }
    return v;
}

const json_t *schema_without(build *b, const json_t *schema, const char *key)
{
    json_t *copy = json_copy((json_t *)(uintptr_t)schema);
    if (copy)
        json_object_del(copy, key);
    return keep(b, copy);
}

bool schema_same_value(const json_t *x, const json_t *y)
{
    return json_equal(x, y) || (json_is_number(x) && json_is_number(y) && json_number_value(x) == json_number_value(y));
}

static bool has(const json_t *array, const json_t *v)
{
    size_t i;
    json_t *x;
    json_array_foreach ((json_t *)(uintptr_t)array, i, x)
        if (schema_same_value(x, v))
            return true;
    return false;
}

/* Before each value of one is looked for among those of the other. */
static bool spend_pairs(build *b, uint32_t place, const json_t *x, const json_t *y)
{
    uint64_t by_x = (uint64_t)build_count(x, BUILD_MAX_VALUES) * (json_array_size(y) + 1);
    uint64_t by_y = (uint64_t)build_count(y, BUILD_MAX_VALUES) * (json_array_size(x) + 1);
    return build_spend(b, place, XD_MIN(by_x, by_y) * BUILD_WORK_OF_LOOK);
}

static json_t *both_all_of(json_t *x, json_t *y)
{
    if (json_is_false(x) || json_is_false(y))
        return json_false();
    return json_equal(x, y) ? json_incref(x) : json_pack("{s:[O,O]}", "allOf", x, y);
}

static json_t *joined_objects(json_t *x, json_t *y)
{
    json_t *ret = json_copy(x), *v;
    const char *key;
    json_object_foreach (y, key, v) {
        json_t *old = json_object_get(ret, key);
        if (json_object_set_new(ret, key, old ? both_all_of(old, v) : json_incref(v))) {
            json_decref(ret);
            return NULL;
        }
    }
    return ret;
}

static json_t *common(const json_t *x, const json_t *y)
{
    json_t *ret = json_array(), *v;
    size_t i;
    json_array_foreach ((json_t *)(uintptr_t)x, i, v)
        if (has(y, v))
            json_array_append(ret, v);
    return ret;
}

static json_t *united(const json_t *x, const json_t *y)
{
    json_t *ret = json_copy((json_t *)(uintptr_t)x), *v;
    size_t i;
    json_array_foreach ((json_t *)(uintptr_t)y, i, v)
        if (!has(ret, v))
            json_array_append(ret, v);
    return ret;
}

static json_t *type_names(unsigned types)
{
    static const char *const names[] = {"null", "boolean", "integer", "number", "string", "array", "object"};
    json_t *ret = json_array();
    for (size_t i = 0; i < XD_ARRAY_LEN(names); i++)
        if (types & 1u << i)
            json_array_append_new(ret, json_string(names[i]));
    return ret;
}

bool schema_is_made(const build *b, const json_t *list)
{
    size_t i;
    json_t *v;
    json_array_foreach (b->made, i, v)
        if (v == list)
            return true;
    return false;
}

/* Texts that must all hold, as a list: no schema can say that in one. */
static json_t *listed_patterns(build *b, json_t *x, json_t *y)
{
    json_t *list = json_is_array(x) ? json_copy(x) : json_pack("[O]", x);
    bool ok = list && !(json_is_array(y) ? json_array_extend(list, y) : json_array_append(list, y));
    if (!ok)
        json_decref(list);
    return json_incref(keep(b, ok ? list : NULL));
}

/* The value of a keyword that both have; NULL: there is no one value for both. */
static json_t *merge_keyword(build *b, const char *key, json_t *x, json_t *y, const json_t *sx, const json_t *sy,
                             uint32_t place)
{
    static const char *const larger[] = {"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"};
    static const char *const smaller[] = {"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"};
    if (json_equal(x, y))
        return json_incref(x);
    for (size_t i = 0; i < XD_ARRAY_LEN(larger) && json_is_number(x) && json_is_number(y); i++) {
        bool x_more = json_number_value(x) > json_number_value(y);
        if (!strcmp(key, larger[i]))
            return json_incref(x_more ? x : y);
        if (!strcmp(key, smaller[i]))
            return json_incref(x_more ? y : x);
    }
    if (!strcmp(key, "properties") && json_is_object(x) && json_is_object(y))
        return joined_objects(x, y);
    bool lists = json_is_array(x) && json_is_array(y), unite = !strcmp(key, "required") || !strcmp(key, "allOf");
    if (lists && unite) /* which looks for them among its own, too */
        return spend_pairs(b, place, x, y) && spend_pairs(b, place, y, y) ? united(x, y) : NULL;
    if (lists && !strcmp(key, "enum"))
        return spend_pairs(b, place, x, y) ? common(x, y) : NULL;
    if (!strcmp(key, "items") || !strcmp(key, "additionalProperties"))
        return both_all_of(x, y);
    if (!strcmp(key, "pattern") && (json_is_string(x) || schema_is_made(b, x)) &&
        (json_is_string(y) || schema_is_made(b, y)))
        return listed_patterns(b, x, y);
    if (!strcmp(key, "type")) {
        unsigned tx = schema_types(b, sx, place), ty = schema_types(b, sy, place), t = tx & ty;
        if ((tx & TYPE_INTEGER && ty & TYPE_NUMBER) || (ty & TYPE_INTEGER && tx & TYPE_NUMBER))
            t |= TYPE_INTEGER;
        return tx && ty && t ? type_names(t) : NULL;
    }
    return NULL;
}

/* Which properties a schema leaves to additionalProperties depends on its own properties: joined with others it would mean another thing. */
static bool closes_other(const json_t *x, const json_t *y)
{
    const json_t *more = json_object_get(x, "additionalProperties");
    if (!more || json_is_true(more) || !schema_constrains(more))
        return false;
    const json_t *own = json_object_get(x, "properties");
    const char *key;
    json_t *v;
    json_object_foreach (json_object_get(y, "properties"), key, v)
        if (!json_object_get(own, key))
            return true;
    return false;
}

const json_t *schema_merge(build *b, const json_t *x, const json_t *y, uint32_t place)
{
    if (!(x = schema_resolve(b, x, place)) || !(y = schema_resolve(b, y, place)))
        return NULL;
    if (!schema_constrains(y) || x == y)
        return x;
    if (!schema_constrains(x))
        return y;
    if (!json_is_object(x) || !json_is_object(y)) {
        build_fault(b, place, NULL, "a schema must be an object or a boolean that allows something");
        return NULL;
    }
    if (++b->merges > BUILD_MAX_MERGES) {
        build_fault(b, place, NULL, "the schema leads to itself, or joins others more than %d times", BUILD_MAX_MERGES);
        return NULL;
    }
    if (closes_other(x, y) || closes_other(y, x)) {
        build_fault(b, place, "additionalProperties",
                    "cannot be joined with the properties of another schema that must hold too: put them into one");
        return NULL;
    }
    uint64_t n = build_count(x, BUILD_MAX_VALUES) + build_count(y, BUILD_MAX_VALUES);
    if (!build_spend(b, place, n * BUILD_WORK_OF_COPY))
        return NULL;
    json_t *ret = keep(b, json_copy((json_t *)(uintptr_t)x)), *v;
    const char *key;
    json_object_foreach ((json_t *)(uintptr_t)y, key, v) {
        json_t *old = json_object_get(ret, key);
        if (!ret || (old && schema_is_annotation(key)))
            continue;
        json_t *both = old ? merge_keyword(b, key, old, v, x, y, place) : json_incref(v);
        if (!both) {
            if (!b->err->status)
                build_fault(b, place, key, "has two values that must both hold: this is not supported");
            return NULL;
        }
        if (json_object_set_new(ret, key, both)) {
            build_nomem(b);
            return NULL;
        }
    }
    return ret;
}

/* ---- oneOf ---- */

/* Values that the schema is limited to by const or enum: a list (owned), or NULL. */
static json_t *limited_to(const json_t *schema)
{
    json_t *one = json_object_get(schema, "const"), *some = json_object_get(schema, "enum");
    return one ? json_pack("[O]", one) : json_is_array(some) ? json_incref(some) : NULL;
}

/* Types that values which match may have: those that are told, else those of the values that are listed. */
static unsigned types_that_match(build *b, const json_t *schema, uint32_t place)
{
    json_t *values = json_object_get(schema, "type") ? NULL : limited_to(schema), *v;
    if (!values)
        return schema_types(b, schema, place);
    unsigned ret = 0;
    size_t i;
    json_array_foreach (values, i, v)
        ret |= json_is_null(v)      ? TYPE_NULL
               : json_is_boolean(v) ? TYPE_BOOLEAN
               : json_is_number(v)  ? TYPE_NUMBER
               : json_is_string(v)  ? TYPE_STRING
               : json_is_array(v)   ? TYPE_ARRAY
                                    : TYPE_OBJECT;
    json_decref(values);
    return ret ? ret : schema_types(b, schema, place);
}

static bool no_common_value(build *b, const json_t *x, const json_t *y, uint32_t place)
{
    json_t *vx = limited_to(x), *vy = limited_to(y);
    json_t *both = vx && vy && spend_pairs(b, place, vx, vy) ? common(vx, vy) : NULL;
    bool ret = both && !json_array_size(both);
    json_decref(both);
    json_decref(vx);
    json_decref(vy);
    return ret;
}

bool schema_disjoint(build *b, const json_t *x, const json_t *y, uint32_t place, const char **ret_tag)
{
    if (!(x = schema_resolve(b, x, place)) || !(y = schema_resolve(b, y, place)))
        return false;
    unsigned tx = types_that_match(b, x, place), ty = types_that_match(b, y, place);
    if (!tx || !ty)
        return false;
    bool numbers = (tx & TYPE_INTEGER && ty & TYPE_NUMBER) || (ty & TYPE_INTEGER && tx & TYPE_NUMBER);
    if ((!(tx & ty) && !numbers) || no_common_value(b, x, y, place))
        return true;
    const json_t *own = json_object_get(x, "properties");
    if ((tx & ty) != TYPE_OBJECT || numbers || !build_spend(b, place, json_object_size(own) * BUILD_WORK_OF_LOOK))
        return false;
    const char *key;
    json_t *v;
    json_object_foreach ((json_t *)(uintptr_t)own, key, v) {
        const json_t *other = json_object_get(json_object_get(y, "properties"), key);
        if ((*ret_tag && strcmp(*ret_tag, key) != 0) || !other)
            continue;
        const json_t *rx = schema_resolve(b, v, place), *ry = rx ? schema_resolve(b, other, place) : NULL;
        if (!ry)
            return false;
        if (no_common_value(b, rx, ry, place)) {
            *ret_tag = key;
            return true;
        }
        if (b->err->status)
            return false;
    }
    return false;
}
