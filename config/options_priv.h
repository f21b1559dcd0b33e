/* options_priv.h - one row of the option table, for the files of this folder only. */
#ifndef CONFIG_OPTIONS_PRIV_H
#define CONFIG_OPTIONS_PRIV_H

#include "config/config.h"

typedef enum conf_type {
    CONF_STRING,
    CONF_CHOICE, /* char *, one of `names` */
    CONF_ENUM,   /* int, index into `names` */
    CONF_BOOL,
    CONF_U32,
    CONF_I32,
    CONF_SECONDS, /* uint32_t; takes s, min, h */
    CONF_REAL,
    CONF_REAL_SECONDS, /* double; takes ms, s, min, h */
    CONF_RATIO,        /* double; 0.9 or 90% */
    CONF_BYTES,
} conf_type;

enum {
    CONF_RELOAD = 1 << 0,    /* SIGHUP applies it */
    CONF_PATH = 1 << 1,      /* relative to the folder of the file that sets it */
    CONF_TEMPLATE = 1 << 2,  /* a path unless it holds a '{' */
    CONF_SECRET = 1 << 3,    /* never printed */
    CONF_OF_MEMORY = 1 << 4, /* a size that may be a percentage of the RAM */
};

typedef struct conf_option {
    const char *section, *key;
    conf_type type;
    size_t offset;
    const char *def;          /* as it would be written in the file */
    double min, max;          /* numbers only */
    const char *special;      /* a word in place of a number ("auto"), or NULL */
    double special_value;     /* what it is stored as; sizes: CONF_AUTO_BYTES */
    const char *const *names; /* CONF_CHOICE, CONF_ENUM; NULL-terminated */
    unsigned flags;
    const char *alias; /* one more flag name, or NULL */
    const char *help;
} conf_option;

typedef struct conf_section {
    const char *name, *help;
} conf_section;

extern const conf_option conf_options[];
extern const size_t conf_options_count;
extern const conf_section conf_sections[]; /* in the order of the table */
extern const size_t conf_sections_count;

/* The row of `key` ("port" or "server.port", '-' for '_' allowed); NULL `section`: every section, and *ret_matches counts the
 * rows that fit, so a short name that two sections share is told from an unknown one. */
const conf_option *conf_find(const char *section, const char *key, size_t *ret_matches);
/* The known name that is nearest to `key` by edit distance, or NULL when nothing is near. With `section`, at
 * equal distance the names of that section win. */
const conf_option *conf_nearest(const char *section, const char *key);
const char *conf_nearest_section(const char *name);

bool conf_value_is_home(const char *text); /* "~" or "~/...", which only a shell understands */
/* Parses and stores one value. On failure *why says what is wrong ("must be a whole number from 0 to 65535"). */
xd_status conf_value_set(config *c, const conf_option *o, const char *text, xd_buf *why) XD_MUST_CHECK;
void conf_value_format(const config *c, const conf_option *o, xd_buf *out);
void conf_value_allowed(const conf_option *o, xd_buf *out); /* "a whole number from 0 to 65535" */
bool conf_value_equal(const config *a, const config *b, const conf_option *o);

/* Reads the file over *c. */
xd_status conf_read_file(config *c, const char *path, xd_err *err) XD_MUST_CHECK;
/* Fails naming the place ("file:12: " or "") when `key` is no option. */
xd_status conf_unknown(xd_err *err, const char *place, const char *section, const char *key);

#endif
