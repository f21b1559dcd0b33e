/* link.c - PCIe facts from sysfs (Documentation/ABI/testing/sysfs-bus-pci, sysfs-bus-pci-devices-aer_stats).
 *
 * The best a link can do is the smaller of what the device and the port above it can: a Gen5 card in a Gen4 slot is not degraded. */
#include "engine/fallback/link.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/util.h"

static FILE *open_attr(const char *root, const char *dev, const char *attr)
{
    char path[512];
    int n = snprintf(path, sizeof path, "%s/bus/pci/devices/%s/%s", root, dev, attr);
    return n > 0 && (size_t)n < sizeof path ? fopen(path, "re") : NULL;
}

/* "32.0 GT/s PCIe", "16"; "Unknown" is 0. */
static double read_number(const char *root, const char *dev, const char *attr)
{
    XD_CLEANUP(xd_fclosep) FILE *f = open_attr(root, dev, attr);
    char line[64];
    if (!f || !fgets(line, sizeof line, f) || !isdigit((unsigned char)line[0]))
        return 0;
    return strtod(line, NULL);
}

static uint64_t read_total(const char *root, const char *dev, const char *attr)
{
    XD_CLEANUP(xd_fclosep) FILE *f = open_attr(root, dev, attr);
    char line[128];
    uint64_t v;
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "TOTAL_ERR_%*s %" SCNu64, &v) == 1)
            return v;
    return 0;
}

static double least(double a, double b)
{
    return a > 0 && b > 0 ? fmin(a, b) : fmax(a, b);
}

void link_read(const char *root, const char *id, link_info *ret)
{
    *ret = (link_info){0};
    if (!id[0] || strchr(id, '/'))
        return;
    char port[300];
    snprintf(port, sizeof port, "%s/..", id); /* the link of sysfs leads to the device below its port */
    ret->speed_gts = read_number(root, id, "current_link_speed");
    ret->width = (uint32_t)read_number(root, id, "current_link_width");
    ret->best_speed_gts = least(read_number(root, id, "max_link_speed"), read_number(root, port, "max_link_speed"));
    ret->best_width =
        (uint32_t)least(read_number(root, id, "max_link_width"), read_number(root, port, "max_link_width"));
    ret->aer_correctable = read_total(root, id, "aer_dev_correctable");
    ret->aer_nonfatal = read_total(root, id, "aer_dev_nonfatal");
    ret->aer_fatal = read_total(root, id, "aer_dev_fatal");
    ret->known = ret->speed_gts > 0 && ret->width > 0;
}

double link_wire_gbps(double speed_gts, uint32_t width)
{
    double coding = speed_gts >= 8 ? 128.0 / 130 : 0.8; /* Gen1 and 2 send 10 bits a byte */
    return speed_gts * coding / 8 * width;
}
