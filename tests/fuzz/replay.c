/* replay.c - runs a fuzz target over files and folders, without a fuzzer: the corpus as an ordinary test, with any compiler.
 *
 *   fuzz_TARGET PATH ...      each file, and each file of each folder, in order of name */
#include <dirent.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MOST_S 600 /* an input takes milliseconds; sanitizers are slow, and machines busy */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static unsigned n_inputs;
static const char *running;

static void hangs(int signo)
{
    (void)signo;
    if (write(STDERR_FILENO, running, strlen(running)) > 0)
        (void)!write(STDERR_FILENO, ": hangs\n", 8);
    _exit(1);
}

static void run_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    struct stat sb;
    if (!f || fstat(fileno(f), &sb) || sb.st_size < 0) {
        fprintf(stderr, "cannot read %s\n", path);
        exit(1);
    }
    /* Exactly as large as the input: a sanitizer then sees one byte too far. */
    uint8_t *data = malloc((size_t)sb.st_size + (sb.st_size == 0));
    if (!data || fread(data, 1, (size_t)sb.st_size, f) != (size_t)sb.st_size)
        exit(1);
    fclose(f);
    running = path;
    alarm(MOST_S);
    LLVMFuzzerTestOneInput(data, (size_t)sb.st_size);
    alarm(0);
    free(data);
    n_inputs++;
}

int main(int argc, char **argv)
{
    signal(SIGALRM, hangs);
    for (int i = 1; i < argc; i++) {
        struct dirent **list;
        int n = scandir(argv[i], &list, NULL, alphasort);
        if (n < 0)
            run_file(argv[i]);
        for (int k = 0; k < n; k++) {
            char path[4096];
            struct stat sb;
            snprintf(path, sizeof path, "%s/%s", argv[i], list[k]->d_name);
            if (stat(path, &sb) == 0 && S_ISREG(sb.st_mode))
                run_file(path);
            free(list[k]);
        }
        if (n >= 0)
            free(list);
    }
    printf("%u inputs\n", n_inputs);
    return n_inputs ? 0 : 1;
}
