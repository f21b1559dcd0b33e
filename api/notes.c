/* notes.c - see notes.h. What is said about a client's request goes to the log once for a name and a bounded number of times in all,
 * since the same client sends the same request all day, and a hostile one a new name each time. Does not decide what is worth a note. */
#include "api/notes.h"

#include <stdlib.h>
#include <string.h>

void notes_init(notes *n)
{
    pthread_mutex_init(&n->lock, NULL);
}

void notes_clear(notes *n)
{
    for (size_t i = 0; i < n->n_names; i++)
        free(n->names[i]);
    pthread_mutex_destroy(&n->lock);
}

bool notes_first_field(notes *n, const char *name)
{
    if (strlen(name) > NOTES_MAX_NAME)
        return false;
    pthread_mutex_lock(&n->lock);
    bool known = n->n_names == NOTES_MAX_FIELDS;
    for (size_t i = 0; i < n->n_names && !known; i++)
        known = strcmp(n->names[i], name) == 0;
    char *copy = known ? NULL : strdup(name);
    if (copy)
        n->names[n->n_names++] = copy;
    pthread_mutex_unlock(&n->lock);
    return copy != NULL;
}

bool notes_first_special(notes *n)
{
    return !atomic_exchange(&n->said_special, true);
}

bool notes_first_host(notes *n)
{
    return !atomic_exchange(&n->said_host, true);
}
