"""Opening a large model reads little of it: a start from a cold disk must not wait for gigabytes that nobody asked for. argv[1] is the
program, argv[2] the source root."""
import ctypes
import glob
import mmap
import os
import subprocess
import sys
import tempfile
import unittest

EXE, ROOT = sys.argv[1:3]
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
LIBC.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def bytes_in_page_cache(path):
    size = os.path.getsize(path)
    with open(path, "rb") as f:
        p = LIBC.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, f.fileno(), 0)
    pages = (size + mmap.PAGESIZE - 1) // mmap.PAGESIZE
    seen = ctypes.create_string_buffer(pages)
    assert LIBC.mincore(p, size, seen) == 0
    LIBC.munmap(p, size)
    return sum(b & 1 for b in seen.raw) * mmap.PAGESIZE


class Start(unittest.TestCase):
    def test_opening_reads_samples_only(self):
        with tempfile.TemporaryDirectory() as t:
            subprocess.run([sys.executable, os.path.join(ROOT, "tests", "tools", "make_model.py"), t, "--layers", "6", "--jobs", "1",
                            "--sparse"], check=True, stdout=subprocess.DEVNULL)
            out = subprocess.run([EXE, "inspect", t, "-c", "/dev/null"], capture_output=True, text=True, check=True).stdout
            self.assertIn("6 layers", out)
            files = glob.glob(os.path.join(t, "*.safetensors"))
            total, read = sum(map(os.path.getsize, files)), sum(map(bytes_in_page_cache, files))
            self.assertGreater(total, 8e9)  # 6 layers of the published geometry, embedding and head
            # 6 x 128 experts x 3 matrices x 2 samples are 19 MB of pages; with readahead it was 800 MB.
            self.assertLess(read, 100e6)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
