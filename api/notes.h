/* notes.h - what the operator is told of clients' requests, once: a field that nobody knows, special tokens that are read as text, a name
 * by which the server may not be asked. */
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
    atomic_bool said_special, said_host;
} notes;

void notes_init(notes *n);
void notes_clear(notes *n); /* when nobody uses it any more */
/* True the first time that a field of this name comes. After NOTES_MAX_FIELDS names, and for longer ones, never: names come from clients. */
bool notes_first_field(notes *n, const char *name);
/* True once, for whoever asks first. */
bool notes_first_special(notes *n);
bool notes_first_host(notes *n); /* ... by a name that is not served */

#endif
