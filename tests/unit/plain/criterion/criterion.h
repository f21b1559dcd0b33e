/* criterion.h - a stand-in for Criterion under ThreadSanitizer, whose memory layout Criterion's sandbox cannot start in.
 *
 * It has the macros that the tests here use, with the same meaning: each test runs in a process of its own, a suite has init and fini,
 * a failed assertion ends the test. One test file a program, so that everything may live in this header. */
#ifndef PLAIN_CRITERION_H
#define PLAIN_CRITERION_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define PLAIN_SKIPPED 77

typedef struct plain_test {
    const char *suite, *name;
    void (*run)(void);
    void (*init)(void), (*fini)(void);
    struct plain_test *next;
} plain_test;

static plain_test *plain_tests, *plain_suites;

static inline void plain_add(plain_test **list, plain_test *t)
{
    while (*list)
        list = &(*list)->next;
    *list = t;
}

#define Test(s, n, ...)                                                                              \
    static void s##_##n##_run(void);                                                                 \
    static plain_test s##_##n##_test = {.suite = #s, .name = #n, .run = s##_##n##_run, __VA_ARGS__}; \
    __attribute__((constructor)) static void s##_##n##_add(void)                                     \
    {                                                                                                \
        plain_add(&plain_tests, &s##_##n##_test);                                                    \
    }                                                                                                \
    static void s##_##n##_run(void)
#define TestSuite(s, ...)                                        \
    static plain_test s##_suite = {.suite = #s, __VA_ARGS__};    \
    __attribute__((constructor)) static void s##_suite_add(void) \
    {                                                            \
        plain_add(&plain_suites, &s##_suite);                    \
    }                                                            \
    struct plain_semicolon_follows

/* A message that may be absent. */
#define PLAIN_SAY(...) (fprintf(stderr, "    " __VA_ARGS__), fputc('\n', stderr))
#define cr_assert(cond, ...)                                                     \
    do {                                                                         \
        if (!(cond)) {                                                           \
            fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #cond); \
            PLAIN_SAY(__VA_ARGS__);                                              \
            fflush(NULL);                                                        \
            _exit(1);                                                            \
        }                                                                        \
    } while (0)
#define cr_assert_fail(...)                cr_assert(0, __VA_ARGS__)
#define cr_assert_not(a, ...)              cr_assert(!(a), __VA_ARGS__)
#define cr_assert_null(a, ...)             cr_assert((a) == NULL, __VA_ARGS__)
#define cr_assert_not_null(a, ...)         cr_assert((a) != NULL, __VA_ARGS__)
#define cr_assert_eq(a, b, ...)            cr_assert((a) == (b), __VA_ARGS__)
#define cr_assert_neq(a, b, ...)           cr_assert((a) != (b), __VA_ARGS__)
#define cr_assert_lt(a, b, ...)            cr_assert((a) < (b), __VA_ARGS__)
#define cr_assert_leq(a, b, ...)           cr_assert((a) <= (b), __VA_ARGS__)
#define cr_assert_gt(a, b, ...)            cr_assert((a) > (b), __VA_ARGS__)
#define cr_assert_geq(a, b, ...)           cr_assert((a) >= (b), __VA_ARGS__)
#define cr_assert_str_eq(a, b, ...)        cr_assert(strcmp(a, b) == 0, __VA_ARGS__)
#define cr_assert_arr_eq(a, b, n, ...)     cr_assert(memcmp(a, b, n) == 0, __VA_ARGS__)
#define cr_assert_float_eq(a, b, eps, ...) cr_assert(fabs((double)(a) - (double)(b)) <= (double)(eps), __VA_ARGS__)
#define cr_skip_test(...)       \
    do {                        \
        PLAIN_SAY(__VA_ARGS__); \
        fflush(NULL);           \
        _exit(PLAIN_SKIPPED);   \
    } while (0)

static inline int plain_run(const plain_test *t)
{
    const plain_test *s = plain_suites;
    while (s && strcmp(s->suite, t->suite))
        s = s->next;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(1800); /* a hang must end; sanitizers are slow */
        void (*init)(void) = t->init ? t->init
                             : s     ? s->init
                                     : NULL,
             (*fini)(void) = t->fini ? t->fini
                             : s     ? s->fini
                                     : NULL;
        if (init)
            init();
        t->run();
        if (fini)
            fini();
        exit(0); /* by way of the sanitizer's own exit code */
    }
    int status = 1;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int main(void)
{
    unsigned n = 0, failed = 0;
    for (const plain_test *t = plain_tests; t; t = t->next) {
        int rc = plain_run(t);
        n++;
        failed += rc != 0 && rc != PLAIN_SKIPPED;
        if (rc)
            printf("%s %s::%s (%d)\n", rc == PLAIN_SKIPPED ? "skip" : "FAIL", t->suite, t->name, rc);
    }
    printf("%u tests, %u failed\n", n, failed);
    return failed || !n;
}

#endif
