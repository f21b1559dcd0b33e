/* in_time.h - for loops that wait for what another thread does: no machine is too busy for them, and what never comes has a name. */
#ifndef TESTS_UNIT_IN_TIME_H
#define TESTS_UNIT_IN_TIME_H

#include <criterion/criterion.h>

#include "config/util.h"

/* The third part of such a loop: for (uint64_t begin = xd_now_ns(); !there; in_time(begin, "it")) */
static inline void in_time(uint64_t begin_ns, const char *what)
{
    cr_assert_lt(xd_now_ns() - begin_ns, 180000000000u, "three minutes, and this has not come: %s", what);
}

#endif
