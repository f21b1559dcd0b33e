/* link.h - what the PCIe link of the device is like, from sysfs: generation and width now and at best, error counters. */
#ifndef ENGINE_LINK_H
#define ENGINE_LINK_H

#include <stdbool.h>
#include <stdint.h>

typedef struct link_info {
    bool known;                       /* false: no PCI device, or sysfs does not tell */
    double speed_gts, best_speed_gts; /* GT/s a lane; best: what device and port can both do */
    uint32_t width, best_width;
    uint64_t aer_correctable, aer_nonfatal, aer_fatal; /* totals since boot */
} link_info;

/* pci_bus_id "0000:1a:00.0"; sysfs_root "/sys" (tests give another). */
void link_read(const char *sysfs_root, const char *pci_bus_id, link_info *ret);
/* Bytes a second that the wire carries at best, in GB/s, before the protocol's overhead (about 0.8 of it is reached). */
double link_wire_gbps(double speed_gts, uint32_t width);

#endif
