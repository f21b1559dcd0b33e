/* print.c - the option table in words: --print-config, the example file, --help and expertd.conf(5).
 *
 * All four are derived from the same rows, so none can lag behind. Nothing here writes to a file or the terminal. */
#include <ctype.h>
#include <string.h>

#include "config/options_priv.h"

/* Appends `text` in lines of at most `width` columns, each after `prefix`. */
static void put_wrapped(xd_buf *out, const char *prefix, const char *text, size_t width)
{
    size_t col = 0;
    while (*text) {
        size_t word = strcspn(text, " ");
        if (col && col + 1 + word > width) {
            xd_buf_putc(out, '\n');
            col = 0;
        }
        xd_buf_puts(out, col ? " " : prefix);
        col = col ? col + 1 : strlen(prefix);
        xd_buf_append(out, text, word);
        col += word;
        text += word;
        while (*text == ' ')
            text++;
    }
    xd_buf_putc(out, '\n');
}

/* The help, what may be written, and what happens on SIGHUP, as comment lines. */
static void put_comment(xd_buf *out, const conf_option *o)
{
    XD_CLEANUP(xd_buf_free) xd_buf allowed = {0};
    put_wrapped(out, "# ", o->help, 100);
    if (o->type != CONF_STRING) {
        conf_value_allowed(o, &allowed);
        if (o->flags & CONF_RELOAD)
            xd_buf_puts(&allowed, "; SIGHUP applies a change");
        if (allowed.data)
            put_wrapped(out, "# ", allowed.data, 100);
    } else if (o->flags & CONF_RELOAD)
        xd_buf_puts(out, "# SIGHUP applies a change\n");
}

/* Whether the file form can carry this text: inih strips blanks, drops comment lines, and ends a value at " ;". */
static bool fits_in_file(const char *text)
{
    if (strstr(text, " ;") || strstr(text, "\t;"))
        return false;
    for (const char *line = text; *line;) {
        size_t n = strcspn(line, "\n");
        bool first = line == text;
        if (!n || isspace((unsigned char)line[0]) || isspace((unsigned char)line[n - 1]) || line[0] == ';' ||
            (!first && line[0] == '#'))
            return false;
        line += n;
        if (*line && !*++line)
            return false;
    }
    return true;
}

static void put_value(xd_buf *out, const config *c, const conf_option *o)
{
    XD_CLEANUP(xd_buf_free) xd_buf value = {0};
    conf_value_format(c, o, &value);
    const char *text = value.data ? value.data : "";
    if (o->flags & CONF_SECRET && *text) {
        xd_buf_printf(out, "#%s = (set, not shown)\n", o->key);
        return;
    }
    if (!fits_in_file(text)) {
        xd_buf_printf(out, "#%s = (set; cannot be written in this form, only as a flag)\n", o->key);
        return;
    }
    xd_buf_printf(out, "%s =%s", o->key, *text ? " " : "");
    for (const char *p = text; *p; p++) {
        xd_buf_putc(out, *p);
        if (*p == '\n')
            xd_buf_puts(out, "    ");
    }
    xd_buf_putc(out, '\n');
}

void conf_print(const config *c, xd_buf *out)
{
    const char *section = "";
    for (const conf_option *o = conf_options; o < conf_options + conf_options_count; o++) {
        if (strcmp(section, o->section)) {
            section = o->section;
            xd_buf_printf(out, "%s[%s]\n", out->len ? "\n" : "", section);
        }
        put_comment(out, o);
        put_value(out, c, o);
    }
}

static const char *section_help(const char *name)
{
    for (size_t i = 0; i < conf_sections_count; i++)
        if (!strcmp(conf_sections[i].name, name))
            return conf_sections[i].help;
    return "";
}

void conf_print_example(xd_buf *out)
{
    const char *section = "";
    xd_buf_puts(
        out,
        "# expertd.conf - settings of expertd, see expertd.conf(5). Every key is shown with its default, commented out.\n"
        "# `expertd --print-config` shows what is in force, `expertd --section.key=value` overrides a line.\n");
    for (const conf_option *o = conf_options; o < conf_options + conf_options_count; o++) {
        if (!strcmp(o->section, "test"))
            continue;
        if (strcmp(section, o->section)) {
            section = o->section;
            xd_buf_putc(out, '\n');
            put_wrapped(out, "# ", section_help(section), 100);
            xd_buf_printf(out, "[%s]\n", section);
        }
        xd_buf_putc(out, '\n');
        put_comment(out, o);
        xd_buf_printf(out, "#%s =%s%s\n", o->key, *o->def ? " " : "", o->def);
    }
}

void conf_print_help(xd_buf *out, const char *section)
{
    const char *current = "";
    for (const conf_option *o = conf_options; o < conf_options + conf_options_count; o++) {
        if (section ? strcmp(section, o->section) : !strcmp("test", o->section))
            continue;
        if (strcmp(current, o->section)) {
            current = o->section;
            xd_buf_printf(out, "%s%s - %s\n", out->len ? "\n" : "", current, section_help(current));
        }
        XD_CLEANUP(xd_buf_free) xd_buf allowed = {0};
        xd_buf_printf(out, "  --%s.%s", o->section, o->key);
        if (o->alias)
            xd_buf_printf(out, ", --%s", o->alias);
        if (*o->def)
            xd_buf_printf(out, "  [%s]", o->def);
        xd_buf_putc(out, '\n');
        put_wrapped(out, "      ", o->help, 100);
        if (o->type != CONF_STRING && o->type != CONF_BOOL) {
            conf_value_allowed(o, &allowed);
            if (allowed.data)
                put_wrapped(out, "      ", allowed.data, 100);
        }
    }
}

/* Roff reads '\' everywhere and '.' or "'" at the start of a line as its own; a bare '-' may become a hyphen. */
static void put_roff(xd_buf *out, const char *text)
{
    if (*text == '.' || *text == '\'')
        xd_buf_puts(out, "\\&");
    for (; *text; text++) {
        if (*text == '\\')
            xd_buf_puts(out, "\\e");
        else if (*text == '-')
            xd_buf_puts(out, "\\-");
        else
            xd_buf_putc(out, *text);
    }
}

void conf_print_man(xd_buf *out)
{
    xd_buf_puts(
        out,
        ".TH EXPERTD.CONF 5 \"\" \"expertd " XD_VERSION "\" \"File formats\"\n"
        ".SH NAME\nexpertd.conf \\- settings of the expertd inference daemon\n"
        ".SH SYNOPSIS\n.I " CONF_DEFAULT_FILE "\n"
        ".SH DESCRIPTION\n"
        "The file has sections in brackets and lines of the form\n.IR key \" = \" value .\n"
        "Lines that begin with # or ; are comments, and so is what follows a blank and a ; in a line. An indented line\n"
        "continues the value of the line before it.\n.PP\n"
        "Every key is also a flag of\n.BR expertd (1):\n.BI \\-\\-section.key= value\\fR,\n"
        "or\n.BI \\-\\-key= value\nwhere only one section has that key. A flag wins over the file, the file over the default.\n"
        ".PP\nSizes take units: 24GiB, 512MiB (binary) or 24GB (decimal); sizes of host memory also 80%, a share of the RAM.\n"
        "Times take ms, s, min and h; a bare number is seconds. Shares are written 90% or 0.9. Yes and no may also be\n"
        "true and false, on and off, 1 and 0. A relative path means a path beside the file that names it; on the command\n"
        "line it means what it means to the shell.\n"
        ".PP\nAn unknown key, a value out of range, the same key twice, or two settings that contradict each other\n"
        "stop the start with a message that names the file, the line, the key, and what is allowed.\n"
        ".PP\nOn SIGHUP the file is read again. Changes of the keys marked\n.I reloadable\nare applied at once; others\n"
        "are named in the log and wait for a restart. A file with an error changes nothing.\n");
    const char *section = "";
    for (const conf_option *o = conf_options; o < conf_options + conf_options_count; o++) {
        if (strcmp(section, o->section)) {
            section = o->section;
            xd_buf_printf(out, ".SH [%s]\n", section);
            put_roff(out, section_help(section));
            xd_buf_putc(out, '\n');
        }
        XD_CLEANUP(xd_buf_free) xd_buf allowed = {0};
        xd_buf_printf(out, ".TP\n.B %s\n", o->key);
        put_roff(out, o->help);
        xd_buf_puts(out, "\nValue: ");
        conf_value_allowed(o, &allowed);
        put_roff(out, allowed.data ? allowed.data : "");
        xd_buf_puts(out, ".\nDefault: ");
        put_roff(out, *o->def ? o->def : "empty");
        xd_buf_puts(out, o->flags & CONF_RELOAD ? ".\n.IR Reloadable .\n" : ".\n");
    }
    xd_buf_puts(out, ".SH FILES\n.I " CONF_DEFAULT_FILE "\n.SH SEE ALSO\n.BR expertd (1)\n");
}
