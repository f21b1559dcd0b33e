/* check.h - judges a machine: pure logic over facts. */
#ifndef DAEMON_CHECK_H
#define DAEMON_CHECK_H

#include "daemon/facts.h"

typedef enum check_level { CHECK_OK, CHECK_WARN, CHECK_FAIL } check_level;

typedef struct check_line {
    char id[24];
    check_level level;
    char what[1024];   /* what was found */
    const char *means; /* why it matters; "" when ok says enough */
    char mend[256];    /* what to do; "" when nothing is */
} check_line;

#define CHECK_MAX_LINES 64
/* Fills lines and returns how many. */
size_t check_judge(const facts *f, const config *cfg, check_line *lines, size_t cap);

#endif
