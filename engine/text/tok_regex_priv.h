/* tok_regex_priv.h - what the two halves of a pattern's life share: its translation and its matching. */
#ifndef ENGINE_TOK_REGEX_PRIV_H
#define ENGINE_TOK_REGEX_PRIV_H

#include "engine/text/tok_priv.h"

/* Callouts that the translation puts into patterns, and their numbers. */
#define TOK_CALL_START "(?C1)" /* a place where a match may begin is tried */
#define TOK_CALL_STEP  "(?C2)"
#define TOK_CALL_BACK  "(?C3)" /* a group's text is about to be compared */
enum { TOK_START_CALLOUT = 1, TOK_BACK_CALLOUT = 3 };

/* Appends Oniguruma's pattern [len] in pcre2's syntax to out (empty, the caller's in any case); the pattern ends in a NUL. XD_UNSUPPORTED
 * says what cannot be translated, and where. */
xd_status tok_regex_translate(const char *pattern, size_t len, xd_buf *out, xd_err *err) XD_MUST_CHECK;

#endif
