/* doc.c - a small program of the build: writes what the option table says as an example file or a man page. */
#include <stdio.h>
#include <string.h>

#include "config/config.h"

int main(int argc, char **argv)
{
    xd_buf out = {0};
    if (argc == 2 && !strcmp(argv[1], "example"))
        conf_print_example(&out);
    else if (argc == 2 && !strcmp(argv[1], "man"))
        conf_print_man(&out);
    else {
        fputs("usage: conf_doc example|man\n", stderr);
        return 2;
    }
    bool ok = !out.failed && fwrite(out.data, 1, out.len, stdout) == out.len && !fflush(stdout);
    xd_buf_free(&out);
    return ok ? 0 : 1;
}
