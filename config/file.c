/* file.c - reads a configuration file over a config.
 *
 * inih splits lines into section, key and value. Its line buffer holds 200 bytes and its handler is not told line numbers, so
 * the lines come from our reader: it counts them, refuses what is no INI line with its number, and hands a longer line over in
 * pieces, which inih takes for continuations of one value (a piece may begin only with a letter or digit, since inih strips
 * blanks and drops what looks like a comment). Lines that the user continues by indenting are joined with a newline.
 *
 * A value ends at " ;" as inih's comments do. The same key twice in one file is an error: the second one is usually a mistake
 * that nobody sees. */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <ini.h>
#include <string.h>
#include <sys/stat.h>

#include "config/options_priv.h"

enum { MAX_FILE_BYTES = 1 << 20 };

typedef struct reader {
    config *conf;
    const char *path;
    char *dir; /* of the file, for relative paths */
    char *text;
    size_t len, pos;
    unsigned line;                 /* of the text handed out last, from 1 */
    bool in_piece;                 /* the next piece is the rest of a long line */
    bool continues;                /* the line handed out last continues the value before it */
    bool joined_by_line;           /* ... because the user indented it */
    const conf_option *at;         /* whose value is being collected */
    unsigned at_line, joined_line; /* joined_line: the first indented one that continues it; 0: none */
    xd_buf value;
    unsigned *seen_line; /* per option, 0: not seen */
    xd_status status;    /* of the first failure, in *err */
    xd_err *err;
} reader;

static void fail(reader *r, unsigned line, const char *param, const char *fmt, ...) XD_PRINTF(4, 5);
static void fail(reader *r, unsigned line, const char *param, const char *fmt, ...)
{
    if (r->status)
        return;
    va_list ap;
    va_start(ap, fmt);
    r->status = xd_vfail(r->err, XD_BAD_CONFIG, 0, fmt, ap);
    va_end(ap);
    if (r->err) {
        snprintf(r->err->param, sizeof r->err->param, "%s", param);
        xd_wrap(r->err, "%s:%u", r->path, line);
    }
}

static void check_line(reader *r, const char *line, size_t len)
{
    while (len && isspace((unsigned char)line[len - 1]))
        len--;
    if (r->line == 1 && len >= 3 && !memcmp(line, "\xEF\xBB\xBF", 3)) {
        line += 3;
        len -= 3;
    }
    if (!len)
        return;
    bool indented = isspace((unsigned char)*line);
    while (isspace((unsigned char)*line)) {
        line++;
        len--;
    }
    if (*line == '#' || *line == ';')
        return;
    if (memchr(line, 0, len))
        fail(r, r->line, "", "a zero byte: this is not a text file");
    else if (*line == '[' && !indented) {
        if (!memchr(line, ']', len))
            fail(r, r->line, "", "'%.*s': a section looks like [server]", (int)XD_MIN(len, 40u), line);
    } else if (!(indented && r->at) && !memchr(line, '=', len) && !memchr(line, ':', len))
        fail(r, r->line, "", "'%.*s' is neither a [section] nor 'key = value'", (int)XD_MIN(len, 40u), line);
}

/* fgets() for inih: at most num - 1 bytes of the next line or of the piece that is left of it. */
static char *read_line(char *out, int num, void *user)
{
    reader *r = user;
    if (r->pos >= r->len || r->status)
        return NULL;
    const char *line = r->text + r->pos;
    const char *nl = memchr(line, '\n', r->len - r->pos);
    size_t full = nl ? (size_t)(nl - line) + 1 : r->len - r->pos, room = (size_t)num - 1, take = full;
    bool first = !r->in_piece;
    if (first) {
        r->line++;
        check_line(r, line, full);
        if (r->status)
            return NULL;
    }
    const char *start = line;
    while (*start == ' ' || *start == '\t')
        start++;
    r->joined_by_line = first && start > line;
    r->continues = !first || (start > line && r->at);
    bool comment = first && (*start == '#' || *start == ';');
    r->in_piece = false;
    if (!first)
        *out++ = ' ', room--; /* inih reads an indented line as a continuation */
    if (full > room) {
        take = room;
        if (!comment) {
            while (take && !(isalnum((unsigned char)line[take]) && !isspace((unsigned char)line[take - 1])))
                take--;
            if (!take) {
                fail(r, r->line, "", "the line is too long");
                return NULL;
            }
            r->in_piece = true;
        }
    }
    memcpy(out, line, take);
    out[take] = 0;
    r->pos += comment ? full : take;
    return first ? out : out - 1;
}

/* A relative path in a file means a path beside that file. */
static bool resolve(const reader *r, const conf_option *o, const char *value, xd_buf *out)
{
    bool is_path = (o->flags & CONF_PATH) || ((o->flags & CONF_TEMPLATE) && !strchr(value, '{'));
    if (is_path && !strcmp(value, "."))
        xd_buf_puts(out, r->dir);
    else if (is_path && *value && *value != '/' && !conf_value_is_home(value) && strncmp(value, "synthetic:", 10))
        xd_buf_printf(out, "%s/%s", r->dir, value);
    else
        xd_buf_puts(out, value);
    return !out->failed;
}

/* Stores the value that has been collected. */
static void finish_value(reader *r)
{
    const conf_option *o = r->at;
    r->at = NULL;
    if (!o || r->status)
        return;
    XD_CLEANUP(xd_buf_free) xd_buf text = {0}, why = {0};
    const char *value = r->value.data ? r->value.data : "";
    char name[64];
    snprintf(name, sizeof name, "%s.%s", o->section, o->key);
    size_t len = strlen(value);
    if (len > 1 && (*value == '"' || *value == '\'') && value[len - 1] == *value) {
        fail(r, r->at_line, name, "[%s] %s: values stand without quotes, which would be a part of them", o->section,
             o->key);
        return;
    }
    if (!strchr(value, '{') && (strstr(value, " #") || strstr(value, "\t#"))) { /* a template may hold one */
        fail(r, r->at_line, name, "[%s] %s: a comment behind a value begins with ; and not with #", o->section, o->key);
        return;
    }
    xd_status st = !r->value.failed && resolve(r, o, value, &text)
                       ? conf_value_set(r->conf, o, text.data ? text.data : "", &why)
                       : XD_NOMEM;
    if (st == XD_BAD_CONFIG && r->joined_line && strchr(text.data ? text.data : "", '\n'))
        fail(
            r, r->joined_line, name,
            "the line is indented, and so continues the value of '%s' in line %u, which takes one line: begin it at the "
            "margin",
            o->key, r->at_line);
    else if (st == XD_BAD_CONFIG)
        fail(r, r->at_line, name, "[%s] %s = %s: %s", o->section, o->key, o->flags & CONF_SECRET ? "..." : value,
             why.data ? why.data : "not allowed");
    else if (st)
        r->status = xd_fail(r->err, st, 0, "%s:%u: %s", r->path, r->at_line, name);
}

static int on_value(void *user, const char *section, const char *key, const char *value)
{
    reader *r = user;
    if (r->status)
        return 0;
    if (r->continues && r->at) {
        if (r->joined_by_line) {
            xd_buf_putc(&r->value, '\n');
            r->joined_line = r->joined_line ? r->joined_line : r->line;
        }
        xd_buf_puts(&r->value, value);
        return 1;
    }
    finish_value(r);
    if (r->status)
        return 0;
    const conf_option *o = *section ? conf_find(section, key, NULL) : NULL;
    if (!o) {
        char place[512];
        snprintf(place, sizeof place, "%s:%u: ", r->path, r->line);
        r->status = conf_unknown(r->err, place, section, key);
        return 0;
    }
    unsigned *seen = &r->seen_line[o - conf_options];
    if (*seen) {
        char name[64];
        snprintf(name, sizeof name, "%s.%s", o->section, o->key);
        fail(r, r->line, name, "[%s] %s is given twice, first in line %u", o->section, o->key, *seen);
        return 0;
    }
    *seen = r->line;
    r->at = o;
    r->at_line = r->line;
    r->joined_line = 0;
    xd_buf_clear(&r->value);
    xd_buf_puts(&r->value, value);
    return 1;
}

/* What a shell's <(...) and - behind another program's pipe look like: whoever names these means to wait. */
static bool is_own_descriptor(const char *path)
{
    return !strncmp(path, "/dev/fd/", 8) || !strncmp(path, "/proc/self/fd/", 14) || !strcmp(path, "/dev/stdin");
}

static xd_status read_whole(const char *path, char **ret, size_t *ret_len, xd_err *err)
{
    struct stat st;
    if (!stat(path, &st) && S_ISFIFO(st.st_mode) &&
        !is_own_descriptor(path)) /* opening it would wait, maybe for ever */
        return xd_fail(err, XD_BAD_CONFIG, 0, "configuration file '%s' is a pipe", path);
    XD_CLEANUP(xd_closep) int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0)
        return xd_fail(err, XD_BAD_CONFIG, errno, "open configuration file '%s'", path);
    if (S_ISDIR(st.st_mode))
        return xd_fail(err, XD_BAD_CONFIG, 0, "configuration file '%s' is a directory", path);
    XD_CLEANUP(xd_buf_free) xd_buf text = {0};
    for (;;) {
        if (text.len > MAX_FILE_BYTES)
            return xd_fail(err, XD_BAD_CONFIG, 0, "configuration file '%s' is larger than 1 MiB", path);
        if (!xd_buf_reserve(&text, 65536))
            return xd_fail(err, XD_NOMEM, 0, "reading configuration file '%s'", path);
        ssize_t n = read(fd, text.data + text.len, 65535);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return xd_fail(err, XD_BAD_CONFIG, errno, "read configuration file '%s'", path);
        if (!n)
            break;
        text.len += (size_t)n;
        text.data[text.len] = 0;
    }
    *ret = xd_buf_steal(&text, ret_len);
    return *ret ? XD_OK : xd_fail(err, XD_NOMEM, 0, "reading configuration file '%s'", path);
}

xd_status conf_read_file(config *c, const char *path, xd_err *err)
{
    XD_CLEANUP(xd_freep) char *text = NULL;
    XD_CLEANUP(xd_freep) char *dir = NULL;
    XD_CLEANUP(xd_freep) unsigned *seen_line = calloc(conf_options_count, sizeof *seen_line);
    reader r = {.conf = c, .path = path, .seen_line = seen_line, .err = err};
    xd_status st = read_whole(path, &text, &r.len, err);
    if (st)
        return st;
    const char *slash = strrchr(path, '/');
    dir = !slash ? strdup(".") : strndup(path, slash == path ? 1 : (size_t)(slash - path));
    if (!dir || !seen_line)
        return xd_fail(err, XD_NOMEM, 0, "reading configuration file '%s'", path);
    r.text = text;
    r.dir = dir;
    int bad_line = ini_parse_stream(read_line, &r, on_value, &r);
    finish_value(&r);
    xd_buf_free(&r.value);
    if (!r.status && bad_line)
        return xd_fail(err, XD_BAD_CONFIG, 0, "configuration file '%s' is not in INI form", path);
    return r.status;
}
