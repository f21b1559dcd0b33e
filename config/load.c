/* load.c - a whole configuration: defaults, then the file, then the flags, then the rules.
 *
 * Flags are "--section.key=value", "--section.key value", and "--key ..." where only one section has that key. A yes/no option
 * may stand alone ("--server.admin") or be negated ("--no-status-page"). The command line's own options (--help, --config)
 * are not known here: daemon/cli.c takes them out before. */
#include <errno.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "config/options_priv.h"

xd_status conf_defaults(config **ret, xd_err *err)
{
    XD_CLEANUP(conf_freep) config *c = calloc(1, sizeof *c);
    if (!c)
        return xd_fail(err, XD_NOMEM, 0, "configuration");
    for (size_t i = 0; i < conf_options_count; i++) {
        xd_status st = conf_value_set(c, &conf_options[i], conf_options[i].def, NULL);
        if (st)
            return xd_fail(err, st, 0, "default of %s.%s", conf_options[i].section, conf_options[i].key);
    }
    *ret = XD_TAKE(c);
    return XD_OK;
}

void conf_free(config *c)
{
    if (!c)
        return;
    for (size_t i = 0; i < conf_options_count; i++)
        if (conf_options[i].type == CONF_STRING || conf_options[i].type == CONF_CHOICE)
            free(*(char **)((char *)c + conf_options[i].offset));
    free(c);
}

xd_status conf_unknown(xd_err *err, const char *place, const char *section, const char *key)
{
    XD_CLEANUP(xd_buf_free) xd_buf hint = {0};
    bool flag = !section;
    const conf_option *near = conf_nearest(section && *section ? section : NULL, key);
    const conf_option *elsewhere = conf_find(NULL, key, NULL);
    bool known_section = false;
    for (size_t i = 0; section && i < conf_sections_count; i++)
        known_section |= !strcmp(section, conf_sections[i].name);
    if (section && *section && !known_section) {
        const char *s = conf_nearest_section(section);
        xd_buf_printf(&hint, "%sunknown section [%s]", place, section);
        if (s)
            xd_buf_printf(&hint, "; did you mean [%s]?", s);
        else {
            xd_buf_puts(&hint, "; the sections are");
            for (size_t i = 0; i < conf_sections_count; i++)
                xd_buf_printf(&hint, "%s %s", i ? "," : "", conf_sections[i].name);
        }
    } else if (section && !*section) {
        xd_buf_printf(&hint, "%s'%s' stands before the first [section]", place, key);
        if (near)
            xd_buf_printf(&hint, "; '%s' belongs to [%s]", near->key, near->section);
    } else if (!flag) {
        xd_buf_printf(&hint, "%sunknown key '%s' in [%s]", place, key, section);
        if (elsewhere)
            xd_buf_printf(&hint, "; it belongs to [%s]", elsewhere->section);
        else if (near && !strcmp(near->section, section))
            xd_buf_printf(&hint, "; did you mean '%s'?", near->key);
        else if (near)
            xd_buf_printf(&hint, "; did you mean '%s' of [%s]?", near->key, near->section);
    } else {
        xd_buf_printf(&hint, "%sunknown option '--%s'", place, key);
        if (near)
            xd_buf_printf(&hint, "; did you mean '--%s.%s'?", near->section, near->key);
        else
            xd_buf_puts(&hint, "; see --help");
    }
    char name[64];
    snprintf(name, sizeof name, "%s%s%s", section ? section : "", section && *section ? "." : "", key);
    xd_status st = hint.data ? xd_fail_field(err, XD_BAD_CONFIG, name, NULL, "%s", hint.data)
                             : xd_fail(err, XD_NOMEM, 0, "configuration");
    return st;
}

static xd_status set_flag(config *c, const conf_option *o, const char *value, xd_err *err)
{
    XD_CLEANUP(xd_buf_free) xd_buf why = {0};
    xd_status st = conf_value_set(c, o, value, &why);
    char name[64];
    snprintf(name, sizeof name, "%s.%s", o->section, o->key);
    if (st == XD_BAD_CONFIG)
        return xd_fail_field(err, st, name, NULL, "--%s=%s: %s", name, o->flags & CONF_SECRET ? "..." : value,
                             why.data ? why.data : "not allowed");
    return st ? xd_fail(err, st, 0, "--%s", name) : XD_OK;
}

/* "threads" is in several sections: names them. */
static xd_status ambiguous(xd_err *err, const char *key)
{
    XD_CLEANUP(xd_buf_free) xd_buf names = {0};
    for (size_t i = 0; i < conf_sections_count; i++) {
        const conf_option *o = conf_find(conf_sections[i].name, key, NULL);
        if (o)
            xd_buf_printf(&names, "%s--%s.%s", names.len ? " or " : "", o->section, o->key);
    }
    return xd_fail_field(err, XD_BAD_CONFIG, key, NULL, "'--%s' could be %s", key, names.data ? names.data : "several");
}

static xd_status find_flag(const char *key, const conf_option **ret, xd_err *err)
{
    size_t matches = 0;
    *ret = conf_find(NULL, key, &matches);
    if (*ret)
        return XD_OK;
    return matches > 1 ? ambiguous(err, key) : conf_unknown(err, "", NULL, key);
}

xd_status conf_set(config *c, const char *key, const char *value, xd_err *err)
{
    const conf_option *o = NULL;
    xd_status st = find_flag(key, &o, err);
    return st ? st : set_flag(c, o, value, err);
}

static bool is_bool_word(const char *s)
{
    static const char *const words[] = {"yes", "no", "true", "false", "on", "off", "1", "0"};
    for (size_t i = 0; s && i < XD_ARRAY_LEN(words); i++)
        if (!strcasecmp(s, words[i]))
            return true;
    return false;
}

bool conf_flag_stands_alone(const char *key, const char *next)
{
    const conf_option *o = conf_find(NULL, key, NULL);
    if (!o && !strncmp(key, "no-", 3) && (o = conf_find(NULL, key + 3, NULL)))
        return o->type == CONF_BOOL;
    return o && o->type == CONF_BOOL && !is_bool_word(next);
}

static xd_status read_flags(config *c, int argc, const char *const *argv, xd_err *err)
{
    for (int i = 0; i < argc; i++) {
        const char *arg = argv[i];
        if (strncmp(arg, "--", 2) || !arg[2])
            return xd_fail(err, XD_BAD_CONFIG, 0, "unexpected argument '%s'; options are --section.key=value", arg);
        const char *equals = strchr(arg, '=');
        XD_CLEANUP(xd_freep)
        char *key = equals ? strndup(arg + 2, (size_t)(equals - arg) - 2) : strdup(arg + 2);
        if (!key)
            return xd_fail(err, XD_NOMEM, 0, "command line");
        const char *value = equals ? equals + 1 : NULL;
        const conf_option *o = NULL;
        size_t matches = 0;
        if (!value && !strncmp(key, "no-", 3)) {
            o = conf_find(NULL, key + 3, &matches);
            if (o && o->type == CONF_BOOL)
                value = "no";
            else
                o = NULL;
        }
        xd_status st = o ? XD_OK : find_flag(key, &o, err);
        if (st)
            return st;
        if (!value && o->type == CONF_BOOL)
            value = i + 1 < argc && is_bool_word(argv[i + 1]) ? argv[++i] : "yes";
        if (!value) {
            if (i + 1 >= argc)
                return xd_fail_field(err, XD_BAD_CONFIG, key, NULL, "'%s' needs a value: %s=...", arg, arg);
            value = argv[++i];
        }
        st = set_flag(c, o, value, err);
        if (st)
            return st;
    }
    return XD_OK;
}

/* "[::1]", as it stands in an address of the web: the brackets belong to that. */
static void unwrap_host(char *host)
{
    size_t n = strlen(host);
    if (n > 2 && host[0] == '[' && host[n - 1] == ']') {
        memmove(host, host + 1, n - 2);
        host[n - 2] = 0;
    }
}

xd_status conf_load(const char *path, int argc, const char *const *argv, config **ret, xd_err *err)
{
    XD_CLEANUP(conf_freep) config *c = NULL;
    xd_status st = conf_defaults(&c, err);
    if (!st && (path || !access(CONF_DEFAULT_FILE, F_OK)))
        st = conf_read_file(c, path ? path : CONF_DEFAULT_FILE, err);
    if (!st && (st = read_flags(c, argc, argv, err)) && err)
        snprintf(err->code, sizeof err->code, "%s", CONF_CODE_COMMAND_LINE);
    if (!st) {
        unwrap_host(c->server.host);
        st = conf_check(c, err);
    }
    if (!st)
        *ret = XD_TAKE(c);
    return st;
}

bool conf_diff(const config *old_conf, const config *new_conf, xd_buf *changed, xd_buf *refused)
{
    bool any = false;
    for (const conf_option *o = conf_options; o < conf_options + conf_options_count; o++) {
        if (conf_value_equal(old_conf, new_conf, o))
            continue;
        any = true;
        xd_buf *out = o->flags & CONF_RELOAD ? changed : refused;
        xd_buf_printf(out, "%s.%s", o->section, o->key);
        if (!(o->flags & CONF_SECRET)) {
            xd_buf_puts(out, ": ");
            conf_value_format(old_conf, o, out);
            xd_buf_puts(out, " -> ");
            conf_value_format(new_conf, o, out);
        }
        xd_buf_putc(out, '\n');
    }
    return any;
}
