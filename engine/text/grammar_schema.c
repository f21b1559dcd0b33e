/* grammar_schema.c - a JSON schema (draft 2020-12, and what drafts 4 to 2019-09 spell otherwise) to a grammar.
 *
 * Each schema becomes one node, once, however often it is referred to; schemas wait in a list, so that neither their depth nor a chain of
 * references is a depth of calls. What a keyword says is enforced, or the schema is refused by the keyword's name. Where the schema leaves
 * a choice open, less may be generated than it allows: properties come in the schema's order; there are no others than the named ones
 * unless additionalProperties asks for them or there are none; without `type` the keywords tell it; each text is written in one way. */
#include <string.h>

#include "engine/text/grammar_build.h"
#include "engine/text/tok_priv.h"

enum { MAX_ONE_OF = 100, REFUSED = 0x8000 };

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
    {"format", TYPE_STRING},
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
    {"propertyNames", TYPE_OBJECT},
    {"required", TYPE_OBJECT},
    {"then", REFUSED},
    {"unevaluatedItems", REFUSED},
    {"unevaluatedProperties", REFUSED},
    {"uniqueItems", TYPE_ARRAY},
};

unsigned schema_types_of_keyword(const char *key)
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

uint32_t schema_node(build *b, const json_t *schema, uint32_t place)
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

/* ---- alternatives ---- */

/* oneOf is anyOf where no value can match two; objects must then have the property that tells them apart. */
static bool is_object_schema(const json_t *s)
{
    const json_t *type = json_object_get(s, "type");
    if (type)
        return json_is_string(type) && !strcmp(json_string_value(type), "object");
    return !json_object_get(s, "enum") && !json_object_get(s, "const") && json_is_array(json_object_get(s, "required"));
}

/* A name that y requires and x does not. */
static const char *asked_by(const json_t *y, const json_t *x)
{
    size_t i, k;
    json_t *name, *other;
    json_array_foreach (json_object_get(y, "required"), i, name) {
        bool both = !json_is_string(name);
        json_array_foreach (json_object_get(x, "required"), k, other)
            both = both || json_equal(name, other);
        if (!both)
            return json_string_value(name);
    }
    return NULL;
}

/* Objects of which each requires what the other does not: told apart where none has what the other requires. */
static bool part(build *b, const json_t **x, const json_t **y, uint32_t place)
{
    const json_t *s[2] = {schema_resolve(b, *x, place), schema_resolve(b, *y, place)};
    if (!s[0] || !s[1] || !is_object_schema(s[0]) || !is_object_schema(s[1]) ||
        !build_spend(b, place,
                     (json_array_size(json_object_get(s[0], "required")) + 1) *
                         (json_array_size(json_object_get(s[1], "required")) + 1) * BUILD_WORK_OF_LOOK))
        return false;
    const char *not_in[2] = {asked_by(s[1], s[0]), asked_by(s[0], s[1])};
    if (!not_in[0] || !not_in[1])
        return false;
    const json_t **ret[2] = {x, y};
    for (int i = 0; i < 2; i++) {
        json_t *copy = json_copy((json_t *)(uintptr_t)s[i]);
        json_t *own =
            json_object_get(copy, "properties") ? json_copy(json_object_get(copy, "properties")) : json_object();
        bool ok = copy && !json_array_append_new(b->made, copy) && own &&
                  !json_object_set_new(own, not_in[i], json_false()) && !json_object_set(copy, "properties", own);
        json_decref(own);
        if (!ok) {
            build_nomem(b);
            return false;
        }
        *ret[i] = copy;
    }
    return true;
}

static xd_status only_one(build *b, const build_job *j, const json_t **branch, size_t n)
{
    const char *tag = NULL;
    if (n > MAX_ONE_OF)
        return build_fault(b, j->place, "oneOf", "has more than %d schemas", MAX_ONE_OF);
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < i; k++) {
            if (schema_disjoint(b, branch[k], branch[i], j->place, &tag))
                continue;
            if (!b->err->status && part(b, &branch[k], &branch[i], j->place))
                continue;
            if (b->err->status)
                return b->err->status;
            return build_fault(b, j->place, "oneOf",
                               "schemas %zu and %zu might both match: give them types that differ, a property with a "
                               "const of its own, or required properties of their own, or use anyOf",
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
    if (n > BUILD_MAX_ALTERNATIVES)
        return build_fault(b, j->place, key, "has more than %d schemas", BUILD_MAX_ALTERNATIVES);
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
        kids[used] = schema_node(b, branch[i], build_place_in(b, j->place, key, NULL, i));
        st = kids[used++] == GRAM_NONE ? b->err->status : XD_OK;
    }
    if (!st)
        st = build_set_kids(b, j->node, kids, used);
    free(branch);
    free(kids);
    return st;
}

/* ---- one schema ---- */

/* patternProperties of one pattern: what its properties must be, and its text. NULL: it is something else. */
static json_t *of_one_pattern(const json_t *schema, const char **ret_pattern)
{
    const json_t *patterns = json_object_get(schema, "patternProperties");
    if (json_object_size(patterns) != 1 || json_object_size(json_object_get(schema, "properties")))
        return NULL;
    void *at = json_object_iter((json_t *)(uintptr_t)patterns);
    *ret_pattern = json_object_iter_key(at);
    return json_object_iter_value(at);
}

/* The same as additionalProperties and propertyNames: there are no others then, since what is not asked for by name does not come. */
static const json_t *with_named_others(build *b, const json_t *schema)
{
    static const char *const all[] = {"", "^", "$", ".*", "^.*", ".*$", "^.*$", "^(.*)$"};
    const char *pattern = NULL;
    json_t *values = of_one_pattern(schema, &pattern), *ret = json_copy((json_t *)(uintptr_t)schema);
    const json_t *names = json_object_get(schema, "propertyNames");
    bool any = false;
    for (size_t i = 0; i < XD_ARRAY_LEN(all); i++)
        any = any || (pattern && !strcmp(pattern, all[i]));
    json_t *pair = any || !names ? NULL : json_pack("{s:[{s:s}, O]}", "allOf", "pattern", pattern, names);
    json_t *only = any ? NULL : pair ? pair : json_pack("{s:s}", "pattern", pattern);
    bool ok = ret && !json_array_append_new(b->made, ret) && !json_object_set(ret, "additionalProperties", values) &&
              !json_object_del(ret, "patternProperties") && (any || !json_object_set(ret, "propertyNames", only));
    json_decref(only);
    if (!ok)
        build_nomem(b);
    return ok ? ret : NULL;
}

static xd_status check_keywords(build *b, const build_job *j)
{
    const char *key, *pattern;
    json_t *v;
    json_object_foreach ((json_t *)(uintptr_t)j->schema, key, v) {
        bool empty = (json_is_object(v) && !json_object_size(v)) || json_is_true(v);
        bool no_effect =
            (!strcmp(key, "unevaluatedProperties") || !strcmp(key, "unevaluatedItems")) && json_is_boolean(v);
        no_effect = no_effect || (empty && strcmp(key, "not") != 0 && strcmp(key, "contains") != 0);
        no_effect = no_effect || (!strcmp(key, "patternProperties") && of_one_pattern(j->schema, &pattern));
        if (schema_types_of_keyword(key) & REFUSED && !no_effect)
            return build_fault(b, j->place, key, "'%.40s' is not supported", key);
    }
    if (json_is_true(json_object_get(j->schema, "nullable")))
        return build_fault(b, j->place, "nullable", "is no JSON Schema: use \"type\": [..., \"null\"]");
    return XD_OK;
}

xd_status schema_join(build *b, build_job *j)
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
        st = schema_join(b, &j);
    if (!st && given != j.schema)
        st = check_keywords(b, &j);
    if (st)
        return st;
    const char *pattern;
    if (of_one_pattern(j.schema, &pattern) && !(j.schema = with_named_others(b, j.schema)))
        return b->err->status;
    if (!schema_constrains(j.schema)) {
        uint32_t any = build_any(b);
        return any == GRAM_NONE ? b->err->status : build_set_kids(b, j.node, &any, 1);
    }
    if (json_object_get(j.schema, "anyOf"))
        return alternatives(b, &j, "anyOf");
    return json_object_get(j.schema, "oneOf") ? alternatives(b, &j, "oneOf") : schema_of_types(b, &j);
}

static xd_status compile(build *b)
{
    if (b->root && build_count(b->root, BUILD_MAX_VALUES) > BUILD_MAX_VALUES)
        return build_fault(b, 0, NULL, "the schema is too large: it has more than %d values", BUILD_MAX_VALUES);
    uint32_t place = build_place_at(b, GRAM_NONE, NULL, 0), root = build_node(b, (gram_node){.kind = GRAM_ROOT}), value;
    if (place == GRAM_NONE || root == GRAM_NONE)
        return b->err->status;
    if (b->root) {
        value = schema_node(b, b->root, place);
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

static xd_status make(const json_t *root, xd_status (*compile_root)(build *), grammar **ret, xd_err *err)
{
    xd_err own = {0};
    XD_CLEANUP(grammar_unrefp) grammar *g = calloc(1, sizeof *g);
    build b = {.g = g, .root = root, .made = json_array(), .any = GRAM_NONE, .work_left = BUILD_WORK, .err = &own};
    xd_status st = g && b.made ? XD_OK : build_nomem(&b);
    if (g)
        g->refs = 1;
    if (!st)
        st = compile_root(&b);
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

xd_status grammar_new(const json_t *schema, grammar **ret, xd_err *err)
{
    return make(schema, compile, ret, err);
}

/* ---- some texts ---- */

/* One of the texts as it is, not as JSON. */
static xd_status compile_choice(build *b)
{
    uint32_t letters = 0;
    size_t i, bytes = 0, n = json_array_size(b->root);
    const json_t *v;
    json_array_foreach ((json_t *)(uintptr_t)b->root, i, v)
        bytes += json_string_length(v);
    if (!n || n > BUILD_MAX_CHOICES)
        return xd_fail_field(b->err, XD_BAD_REQUEST, NULL, "invalid_value", "1 to %d strings are allowed, not %zu",
                             BUILD_MAX_CHOICES, n);
    if (bytes > BUILD_MAX_CHOICE_BYTES)
        return xd_fail_field(b->err, XD_BAD_REQUEST, NULL, "invalid_value",
                             "the strings have %zu bytes together: at most %d are allowed", bytes,
                             BUILD_MAX_CHOICE_BYTES);
    json_array_foreach ((json_t *)(uintptr_t)b->root, i, v)
        if ((letters = build_text(b, letters, json_string_value(v), json_string_length(v))) == GRAM_NONE)
            return b->err->status;
    if (build_node(b, (gram_node){.kind = GRAM_ROOT, .rest = 1}) == GRAM_NONE ||
        build_node(b, (gram_node){.kind = GRAM_LITERALS, .first = letters}) == GRAM_NONE)
        return b->err->status;
    return build_finish(b);
}

xd_status grammar_new_choice(const json_t *choices, grammar **ret, xd_err *err)
{
    return make(choices, compile_choice, ret, err);
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
    for (size_t i = 0; i < g->n_dfas; i++)
        gram_dfa_clear(&g->dfa[i]);
    for (size_t i = 0; i < g->n_dfas && g->net; i++) {
        free(g->net[i].height);
        free(g->net[i].ways_out);
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
    free(g->net);
    free(g->kid);
    xd_buf_free(&g->text);
    free(g);
}
