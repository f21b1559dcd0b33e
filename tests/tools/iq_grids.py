#!/usr/bin/env python3
"""Writes kernels/quant_grids.h anew, from the tables of the `gguf` package (PyPI): iq_grids.py > kernels/quant_grids.h"""
import numpy as np
from gguf import quants

print("""/* quant_grids.h - the weights that the numbers in IQ1, IQ2 and IQ3 blocks stand for (ggml-common.h): an entry has the numbers of eight weights (IQ3:
 * four), two bits each (three), the first lowest. Written by tests/tools/iq_grids.py. */
/* clang-format off */
#ifndef KERNELS_QUANT_GRIDS_H
#define KERNELS_QUANT_GRIDS_H

#include <stdint.h>

#ifdef __CUDACC__
#define KERN_GRID static __device__ const uint16_t
#else
#define KERN_GRID static const uint16_t
#endif""")
for name in ("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S"):
    q = getattr(quants, name)
    q.init_grid()
    grid = q.grid.reshape(q.grid_shape)
    bits = 3 if name.startswith("IQ3") else 2
    number = {int(v): i for i, v in enumerate(q.grid_map)}
    entries = [sum(number[int(v)] << bits * i for i, v in enumerate(row)) for row in grid]
    assert len(set(entries)) == len(entries)
    print(f"\nKERN_GRID kern_grid_{name.lower()}[{len(entries)}] = {{")
    for i in range(0, len(entries), 16):
        print("    " + ", ".join(f"0x{e:04x}" for e in entries[i : i + 16]) + ",")
    print("};")
print("\n#endif")
