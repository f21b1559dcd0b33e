/* files.h - are the model's files still those that were loaded? */
#ifndef ENGINE_FILES_H
#define ENGINE_FILES_H

#include "engine/model/model.h"

typedef struct files_watch files_watch;
typedef int files_look_fn(const model_file *f); /* model_file_look(), or a test's */

typedef struct files_seen {
    uint32_t n_changed;
    uint64_t age_ns;    /* since the last look ended */
    char warning[4400]; /* about the worst, or about a file system that does not answer; "" */
} files_seen;

/* XD_IO naming a file whose content changed since it was mapped: what was loaded may be a part of the old and a part of the new. */
xd_status files_check_loaded(const model_file *files, uint32_t n, files_look_fn *look, xd_err *err) XD_MUST_CHECK;
/* Looks at the files every `every_ns` in a thread of its own, which logs what changes. Nothing is borrowed. */
xd_status files_watch_start(const model_file *files, uint32_t n, uint64_t every_ns, files_look_fn *look,
                            files_watch **ret, xd_err *err) XD_MUST_CHECK;
void files_watch_peek(files_watch *w, files_seen *ret); /* never waits for a disk; w NULL: nothing to look at */
void files_watch_free(files_watch *w);                  /* nor does this, but for a second */

#endif
