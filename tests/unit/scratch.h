/* scratch.h - a directory for one test, and files in it. Included by one .c file of a test program. */
#ifndef TESTS_SCRATCH_H
#define TESTS_SCRATCH_H

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>

static char dir[64];

static void make_dir(void)
{
    snprintf(dir, sizeof dir, "/tmp/xd_unit_XXXXXX");
    cr_assert(mkdtemp(dir));
}

static void remove_dir(void)
{
    char cmd[128];
    snprintf(cmd, sizeof cmd, "rm -rf %s", dir);
    cr_assert_eq(system(cmd), 0);
}

/* Writes a file; the path is good until the next call. */
static const char *put(const char *name, const void *data, size_t len)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    cr_assert(f && fwrite(data, 1, len, f) == len && !fclose(f));
    return path;
}

#endif
