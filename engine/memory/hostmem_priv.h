/* hostmem_priv.h - large anonymous host memory that kernels can read: huge pages, bound to a NUMA node, registered in chunks. */
#ifndef ENGINE_HOSTMEM_PRIV_H
#define ENGINE_HOSTMEM_PRIV_H

#include <stdbool.h>
#include <stdint.h>

#include "config/error.h"
#include "config/util.h"
#include "kernels/kernels.h"

typedef struct hostmem hostmem;

typedef struct hostmem_options {
    kern_dev *dev;
    uint64_t n_units, unit_bytes; /* unit_bytes is rounded up to 4096: a unit never straddles two registrations */
    int numa_node;                /* -1: anywhere */
    bool huge_pages;
    const char *what, *key; /* for messages: "expert pool", "memory.host_budget" */
} hostmem_options;

/* Reserves address space; nothing is touched or registered yet. XD_NOMEM shows the arithmetic when it cannot fit. */
xd_status hostmem_open(const hostmem_options *opt, hostmem **ret, xd_err *err) XD_MUST_CHECK;
/* Registers all of it: after filling, so that pages are zeroed and placed only once. */
xd_status hostmem_register(hostmem *h, xd_err *err) XD_MUST_CHECK;
/* Both, for what needs no filling: in huge pages on the device's NUMA node. */
xd_status hostmem_open_near(kern_dev *dev, uint64_t n_units, uint64_t unit_bytes, const char *what, const char *key,
                            hostmem **ret, xd_err *err) XD_MUST_CHECK;
void hostmem_free(hostmem *h);
XD_DEFINE_CLEANUP(hostmem, hostmem_free)

/* Where unit `unit` lies for the host. */
void *hostmem_ptr(const hostmem *h, uint64_t unit);
uint64_t hostmem_addr(const hostmem *h, uint64_t unit); /* for kernels; after hostmem_register() */
uint64_t hostmem_unit_bytes(const hostmem *h);
uint64_t hostmem_run_bytes(const hostmem *h); /* from unit 0 on, within one registration */

#endif
