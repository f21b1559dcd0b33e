/* rows.c - picks, once at open, the version of each row that this machine runs best. */
#include "kernels/cpu/cpu_priv.h"

#include <stdio.h>
#ifdef KERN_X86_ROWS
#include <cpuid.h>
#endif

/* Is `name` an element of the comma-separated list? */
static bool listed(const char *list, const char *name)
{
    size_t len = strlen(name);
    for (const char *p = list; p && *p;) {
        p += strspn(p, ", ");
        size_t n = strcspn(p, ", ");
        if (n == len && strncmp(p, name, n) == 0)
            return true;
        p += n;
    }
    return false;
}

#ifdef KERN_X86_ROWS
/* clang of Debian 12 does not know the name in __builtin_cpu_supports(). */
static bool has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

static uint32_t machine_caps(const char *disable)
{
    uint32_t caps = 0;
#ifdef KERN_X86_ROWS
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c() && !listed(disable, "avx2"))
        caps |= CPU_CAP_AVX2;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq") && !listed(disable, "avx512"))
        caps |= CPU_CAP_AVX512;
#endif
    (void)listed; /* unused where no row can be disabled by cap */
    (void)disable;
    return caps;
}

static void take(cpu_rows *rows, const cpu_row *table, uint32_t count, uint32_t caps, const char *disable,
                 const cpu_row *chosen[])
{
    for (uint32_t i = 0; i < count; i++) {
        const cpu_row *row = &table[i];
        void (**slot)(void) = (void (**)(void))(void *)((char *)rows + row->offset);
        bool last_resort = row->needs == 0; /* the reference cannot be disabled: something must run */
        if ((row->needs & ~caps) || (!last_resort && listed(disable, row->name)))
            continue;
        memcpy(slot, &row->fn, sizeof row->fn);
        chosen[row->offset / sizeof row->fn] = row;
    }
}

void rows_choose(cpu_rows *rows, const char *disable, char *ret_names, size_t cap)
{
    uint32_t caps = machine_caps(disable);
    const cpu_row *chosen[sizeof(cpu_rows) / sizeof(void *)] = {0};
    memset(rows, 0, sizeof *rows);
    take(rows, cpu_rows_ref, cpu_rows_ref_count, caps, disable, chosen);
#ifdef KERN_X86_ROWS
    take(rows, cpu_rows_avx2, cpu_rows_avx2_count, caps, disable, chosen);
    take(rows, cpu_rows_avx512, cpu_rows_avx512_count, caps, disable, chosen);
#endif

    size_t len = 0;
    ret_names[0] = '\0';
    for (size_t i = 0; i < sizeof chosen / sizeof *chosen; i++) {
        if (!chosen[i] ||
            (i * sizeof(void *) >= offsetof(cpu_rows, decode) && i * sizeof(void *) < offsetof(cpu_rows, attn_pv)))
            continue; /* decoding goes with the dot products */
        int n = snprintf(ret_names + len, cap - len, "%s%s", len ? " " : "", chosen[i]->name);
        if (n < 0 || (size_t)n >= cap - len) {
            ret_names[len] = '\0'; /* whole names only */
            break;
        }
        len += (size_t)n;
    }
}
