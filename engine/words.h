/* words.h - the tokenizer of a model, wherever it lies. */
#ifndef ENGINE_WORDS_H
#define ENGINE_WORDS_H

#include "engine/model/model.h"

/* From a GGUF file's metadata, or the directory's tokenizer.json; owned by the caller. XD_NOT_FOUND: there is none. Other errors: it
 * cannot be read exactly, or does not fit the model. */
xd_status words_open(const model *m, tokenizer **ret, xd_err *err) XD_MUST_CHECK;

#endif
