"""Which nvcc kernels/cuda/meson.build takes, and what it has it compile: fake programs that answer as the real ones do."""
import os
import re
import shutil
import subprocess
import tempfile
import unittest

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
MAXWELL_TO_HOPPER = "50 52 53 60 61 62 70 72 75 80 86 87 89 90"
KNOWN = {"11.8": MAXWELL_TO_HOPPER, "12.0": MAXWELL_TO_HOPPER, "12.4": MAXWELL_TO_HOPPER,
         "13.0": "75 80 86 87 88 89 90 100 110 103 120 121"}  # what `nvcc --list-gpu-arch` of each says
NVCC = """case $1 in
--version) echo "nvcc: NVIDIA (R) Cuda compiler driver
Copyright (c) 2005-2022 NVIDIA Corporation
Cuda compilation tools, release {0}, V{0}.89" ;;
--list-gpu-arch) printf 'compute_%s\\n' {1} ;;
esac
"""


class Nvcc(unittest.TestCase):
    def setUp(self):
        """A project of kernels/cuda alone."""
        self.dir = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.dir)
        os.mkdir(self.dir + "/kernels")
        for name in ("kernels/cuda", "meson_options.txt"):
            os.symlink(os.path.join(ROOT, name), os.path.join(self.dir, name))
        self.write("meson.build", "project('x')\nsubdir('kernels/cuda')\nmessage('have_cuda: @0@'.format(have_cuda))\n")

    def write(self, name, text):
        path = os.path.join(self.dir, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        os.chmod(path, 0o755)

    def setup(self, version, archs, cuda="enabled", gpus=""):
        """(exit status, all output, the options of nvcc for one file or None)."""
        self.write("bin/nvcc", "#!/bin/sh\n" + NVCC.format(version, KNOWN[version]))
        self.write("bin/nvidia-smi", f"#!/bin/sh\nprintf '%s\\n' {gpus}\n" if gpus else "#!/bin/sh\necho no driver\nexit 9\n")
        build = tempfile.mkdtemp(dir=self.dir)
        r = subprocess.run(["meson", "setup", build, self.dir, f"-Dcuda={cuda}", f"-Dgpu_archs={archs}"], capture_output=True, text=True,
                           check=False, env={**os.environ, "PATH": self.dir + "/bin:" + os.environ["PATH"]})
        if r.returncode:
            return r.returncode, r.stdout + r.stderr, None
        with open(build + "/build.ninja", encoding="utf-8") as f:
            found = re.search(r"COMMAND = (\S*/nvcc .*/small\.cu) ", f.read().replace("$ ", " "))
        return 0, r.stdout + r.stderr, found and found[1]

    def codes(self, *args, **more):
        status, text, command = self.setup(*args, **more)
        self.assertEqual((0, True), (status, "have_cuda: true" in text), text)
        return re.findall(r"arch=(\w+),code=(\w+)", command), command

    def test_too_old(self):
        status, text, _ = self.setup("11.8", "all")
        self.assertNotEqual(0, status)
        self.assertIn(f"{self.dir}/bin/nvcc is of CUDA 11.8, and 12.0 is the oldest", text)
        self.assertIn("-Dcuda=disabled", text)

    def test_too_old_is_left_out_where_cuda_may_be(self):
        status, text, command = self.setup("11.8", "all", cuda="auto")
        self.assertEqual((0, None), (status, command), text)
        self.assertIn("WARNING", text)
        self.assertIn("12.0 is the oldest", text)
        self.assertIn("have_cuda: false", text)

    def test_all_is_what_nvcc_knows(self):
        hopper = [("compute_80", "sm_80"), ("compute_86", "sm_86"), ("compute_89", "sm_89"), ("compute_90a", "sm_90a")]
        codes, command = self.codes("12.0", "all")
        self.assertEqual(hopper + [("compute_90", "compute_90")], codes)
        self.assertNotIn("-lineinfo", command)
        codes, command = self.codes("13.0", "all")
        self.assertEqual(hopper + [("compute_100", "sm_100"), ("compute_120", "sm_120"), ("compute_120", "compute_120")], codes)
        self.assertIn("-lineinfo", command)

    def test_a_list(self):
        codes, _ = self.codes("12.4", "80, 90")
        self.assertEqual([("compute_80", "sm_80"), ("compute_90a", "sm_90a"), ("compute_90", "compute_90")], codes)

    def test_native_is_what_is_there(self):
        codes, command = self.codes("12.4", "native", gpus="7.5 9.0 9.0 8.9")
        self.assertEqual([("compute_90a", "sm_90a"), ("compute_89", "sm_89")], codes)
        self.assertIn("sm_90, sm_89", command)
        self.assertNotIn("and later", command)

    def test_native_without_a_gpu(self):
        for gpus, says in (("7.5", "no GPU of compute capability 8.0 or later"), ("", "nvidia-smi")):
            status, text, _ = self.setup("13.0", "native", gpus=gpus)
            self.assertNotEqual(0, status)
            self.assertIn(says, text)

    def test_a_gpu_newer_than_nvcc(self):
        status, text, _ = self.setup("12.4", "native", gpus="12.0")
        self.assertNotEqual(0, status)
        self.assertIn("nvcc of CUDA 12.4 does not know sm_120", text)
        self.assertIn("-Dgpu_archs=all", text)
        status, text, _ = self.setup("12.4", "80,120")
        self.assertNotEqual(0, status)
        self.assertNotIn("-Dgpu_archs=all", text)


if __name__ == "__main__":
    unittest.main()
