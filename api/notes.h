/* notes.h - what the operator is told of clients' requests, once: a field that nobody knows, special tokens that are read as text. */
#ifndef API_NOTES_H
#define API_NOTES_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

enum { NOTES_MAX_FIELDS = 64, NOTES_MAX_NAME = 64 };

/* Any thread. */
typedef struct notes {
    pthread_mutex_t lock;
    char *names[NOTES_MAX_FIELDS]; /* [n_names] */
    size_t n_names;
    atomic_bool said_special;
} notes;

void notes_init(notes *n);
void notes_clear(notes *n); /* when nobody uses it any more */
/* Logs the name of a field that has no effect, the first time that it comes; near: one that has, NULL: none is like it. After
 * NOTES_MAX_FIELDS names, and of longer ones, nothing more is said: names come from clients. */
void notes_unknown_field(notes *n, const char *name, const char *near);
/* True once, for whoever asks first. */
bool notes_first_special(notes *n);

#endif
