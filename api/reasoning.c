/* reasoning.c - what a request says about the model's thoughts: whether there are any, and what becomes of them.
 *
 * Each server and each provider has a name of its own for the same switch, and clients send whichever they know. All of them end here in
 * one wish, which the model's template is told under the name that it has for it. A wish that nothing can fulfil is an error: a
 * client that has switched thinking off must not pay for thoughts. Does not tell thoughts from answers: answer.c. */
#include <string.h>

#include "api/generate.h"

/* What becomes of a model's thoughts: the words of llama.cpp and of Groq, and the switches of vLLM and SGLang. */
static xd_status read_form(const gen_context *ctx, gen_params *p, xd_err *err)
{
    static const struct {
        const char *word;
        bool keep, drop;
    } words[] = {{"auto", false, false}, {"deepseek", false, false}, {"parsed", false, false},
                 {"none", true, false},  {"raw", true, false},       {"hidden", false, true}};
    p->keep_thoughts = ctx->keep_thoughts;
    const char *word = p->reasoning_format;
    size_t i = 0;
    while (word && i < XD_ARRAY_LEN(words) && strcmp(words[i].word, word) != 0)
        i++;
    if (i == XD_ARRAY_LEN(words))
        return gen_bad_value(err, "reasoning_format", "'reasoning_format' must be \"auto\", \"none\" or \"hidden\"");
    if (word) {
        p->keep_thoughts = words[i].keep;
        p->drop_thoughts = words[i].drop;
    }
    p->keep_thoughts |= !p->separate_reasoning;
    p->drop_thoughts |= !p->include_reasoning;
    return XD_OK;
}

static xd_status wish(gen_params *p, const char *name, bool on, xd_err *err)
{
    const gen_thinking w = on ? GEN_THINK_ON : GEN_THINK_OFF;
    if (p->wish != GEN_THINK_AS_IT_IS && p->wish != w)
        return gen_bad_value(err, name, "'%s' says the opposite of '%s'", name, p->wish_field);
    p->wish = w;
    p->wish_field = name;
    return XD_OK;
}

/* v: a boolean, or absent. */
static xd_status wish_of(gen_params *p, const char *name, const json_t *v, xd_err *err)
{
    if (!v || json_is_null(v))
        return XD_OK;
    return json_is_boolean(v) ? wish(p, name, json_is_true(v), err) : fields_wrong_type(err, name, "a boolean", v);
}

static xd_status refuse_limit(const char *name, const json_t *v, xd_err *err)
{
    if (!v || json_is_null(v))
        return XD_OK;
    char text[128];
    snprintf(text, sizeof text, "'%s' is not supported: a thought has no limit of its own", name);
    return gen_unsupported(err, name, text);
}

/* DeepSeek's, GLM's and Anthropic's {"type": "disabled"}; some clients send a boolean. */
static xd_status read_thinking(gen_params *p, xd_err *err)
{
    const json_t *v = p->thinking;
    if (!v)
        return XD_OK;
    if (!json_is_object(v) && !json_is_boolean(v))
        return fields_wrong_type(err, "thinking", "an object or a boolean", v);
    if (json_is_boolean(v))
        return wish_of(p, "thinking", v, err);
    const char *type = json_string_value(json_object_get(v, "type"));
    if (type && !strcmp(type, "disabled"))
        return wish(p, "thinking", false, err);
    if (!type || (strcmp(type, "enabled") && strcmp(type, "auto") && strcmp(type, "adaptive")))
        return gen_bad_value(err, "thinking.type", "'thinking.type' must be \"enabled\", \"disabled\" or \"auto\"");
    xd_status st = refuse_limit("thinking.budget_tokens", json_object_get(v, "budget_tokens"), err);
    return st || strcmp(type, "enabled") ? st : wish(p, "thinking", true, err);
}

/* OpenRouter's, and the one of OpenAI's other API. */
static xd_status read_reasoning(gen_params *p, xd_err *err)
{
    const json_t *effort = json_object_get(p->reasoning, "effort"), *exclude = json_object_get(p->reasoning, "exclude");
    if (effort && !json_is_null(effort) && !json_is_string(effort))
        return fields_wrong_type(err, "reasoning.effort", "a string", effort);
    if (exclude && !json_is_null(exclude) && !json_is_boolean(exclude))
        return fields_wrong_type(err, "reasoning.exclude", "a boolean", exclude);
    if (json_is_string(effort) && !p->reasoning_effort)
        p->reasoning_effort = json_string_value(effort);
    p->drop_thoughts |= json_is_true(exclude);
    xd_status st = refuse_limit("reasoning.max_tokens", json_object_get(p->reasoning, "max_tokens"), err);
    return st ? st : wish_of(p, "reasoning.enabled", json_object_get(p->reasoning, "enabled"), err);
}

bool gen_switched_off(const json_t *kwargs)
{
    return json_is_false(json_object_get(kwargs, "enable_thinking")) ||
           json_is_false(json_object_get(kwargs, "thinking"));
}

/* Who asks for an effort wants thoughts; what the template makes of that is its affair until the server has switched them off for those
 * who say nothing. "minimal" is for those who want few or none. */
static bool wants_effort(const char *effort)
{
    return effort && strcmp(effort, "none") != 0 && strcmp(effort, "minimal") != 0;
}

static bool has_variable(const gen_context *ctx, const char *name)
{
    return ctx->chat && chat_set_uses(ctx->chat, name);
}

xd_status gen_read_reasoning(const gen_context *ctx, gen_params *p, xd_err *err)
{
    xd_status st = read_form(ctx, p, err);
    if (!st)
        st = wish_of(p, "enable_thinking", p->enable_thinking, err);
    if (!st)
        st = read_thinking(p, err);
    if (!st)
        st = read_reasoning(p, err);
    if (!st && p->reasoning_effort && !strcmp(p->reasoning_effort, "none") && !has_variable(ctx, "reasoning_effort"))
        st = wish(p, "reasoning_effort", false, err);
    if (!st && p->wish == GEN_THINK_AS_IT_IS && wants_effort(p->reasoning_effort) &&
        gen_switched_off(ctx->template_kwargs))
        st = wish(p, "reasoning_effort", true, err);
    p->keep_thoughts &= !p->drop_thoughts;
    return st;
}

/* The name that the template has for the switch; NULL: none. */
static const char *switch_of(const gen_context *ctx)
{
    return has_variable(ctx, "enable_thinking") ? "enable_thinking" : has_variable(ctx, "thinking") ? "thinking" : NULL;
}

xd_status gen_template_kwargs(const gen_context *ctx, const json_t *own, json_t **ret, xd_err *err)
{
    json_t *kwargs = json_object(), *v;
    const json_t *layers[] = {ctx->template_kwargs, own};
    const char *name;
    bool ok = kwargs != NULL;
    for (size_t i = 0; i < XD_ARRAY_LEN(layers); i++)
        json_object_foreach ((json_t *)(uintptr_t)layers[i], name, v)
            ok = ok && (json_is_null(v) || !json_object_set(kwargs, name, v));
    if (!ok) {
        json_decref(kwargs);
        return xd_fail(err, XD_NOMEM, 0, "out of memory for the prompt");
    }
    *ret = kwargs;
    return XD_OK;
}

xd_status gen_reasoning_kwargs(const gen_context *ctx, const gen_params *p, json_t **ret, bool *ret_switch, xd_err *err)
{
    const char *name = switch_of(ctx);
    bool effort = p->reasoning_effort && has_variable(ctx, "reasoning_effort");
    const json_t *own = name ? json_object_get(p->template_kwargs, name) : NULL;
    bool think = p->wish != GEN_THINK_AS_IT_IS && name && (!own || json_is_null(own));
    *ret_switch = name != NULL;
    json_t *kwargs = NULL;
    xd_status st = gen_template_kwargs(ctx, p->template_kwargs, &kwargs, err);
    if (st)
        return st;
    if ((effort && json_object_set_new(kwargs, "reasoning_effort", json_string(p->reasoning_effort))) ||
        (think && json_object_set_new(kwargs, name, json_boolean(p->wish == GEN_THINK_ON)))) {
        json_decref(kwargs);
        return xd_fail(err, XD_NOMEM, 0, "out of memory for the prompt");
    }
    *ret = kwargs;
    return XD_OK;
}
