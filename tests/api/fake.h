/* fake.h - the byte tokenizer of the fake engine. */
#ifndef TESTS_API_FAKE_H
#define TESTS_API_FAKE_H

#include <stdbool.h>

#include "engine/text/tokenizer.h"

tokenizer *fake_tok_new(bool add_bos);

#endif
