"""launch/fetch_libtorch.sh among wheels of the test's own: what is not on its list is refused, and the folder that it is
called in has no say."""

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import unittest
import zipfile
from pathlib import Path

LAUNCH = Path(__file__).resolve().parents[2] / "launch"
LIST = "libtorch_wheels.txt"
FILES = {
    "torch": ["torch/lib/libtorch_cpu.so", "torch/include/ATen/ATen.h", "torch/lib/libtorch_python.so"],
    "nvidia-cuda-runtime": ["nvidia/cu13/lib/libcudart.so.13"],
    "nvidia-cuda-cupti": ["nvidia/cu13/lib/libcupti.so.13"],
}


class FetchLibtorch(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        for name in ("launch", "wheels", "cache", "here"):
            (self.folder / name).mkdir()
        self.script = shutil.copy(LAUNCH / "fetch_libtorch.sh", self.folder / "launch")
        self.wheels = self.list_wheels(FILES)

    def list_wheels(self, files):
        """Makes these wheels and the list that pins them."""
        wheels = [self.make_wheel(*item) for item in files.items()]
        lines = [f"{name}==2.11.0 \\\n  --hash=sha256:{'0' * 64} \\\n  --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n"
                 for name, wheel in zip(files, wheels)]  # fmt: skip
        (self.folder / "launch" / LIST).write_text("".join(lines), encoding="utf-8")
        return wheels

    def names(self):
        """All that is ever fetched."""
        arrays = re.findall(r"wheels\+?=\(([^)]*)\)", Path(self.script).read_text(encoding="utf-8"))
        return set(" ".join(arrays).split())

    def make_wheel(self, name, files):
        name = name.replace("-", "_")
        path = self.folder / "wheels" / f"{name}-2.11.0-py3-none-any.whl"
        info = f"{name}-2.11.0.dist-info"
        with zipfile.ZipFile(path, "w") as wheel:
            for file in files:
                wheel.writestr(file, file)
            wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 2.11.0\n")
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        return path

    def fetch(self, *words):
        # Debian's Python imports none of these modules before it is asked to.
        env = {**os.environ, "PATH": f"/usr/bin:{os.environ['PATH']}", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.folder / "wheels"),
               "PIP_CONFIG_FILE": os.devnull, "XDG_CACHE_HOME": str(self.folder / "cache")}  # fmt: skip
        done = subprocess.run([self.script, *words], cwd=self.folder / "here", env=env, encoding="utf-8", capture_output=True)
        return done.returncode, done.stdout + done.stderr

    def fetched(self):
        root = self.folder / "cache/deepnet"
        return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())

    def test_python_takes_no_module_from_the_folder_that_it_is_called_in(self):
        for module in ("pip", "zipfile", "pathlib", "re", "sys"):
            (self.folder / "here" / f"{module}.py").write_text(f"open('ran', 'a').write('{module} ')\n", encoding="utf-8")
        code, said = self.fetch()
        self.assertFalse((self.folder / "here/ran").exists(), said)
        self.assertEqual(code, 0, said)
        wanted = [f"libtorch-2.11.0/{file}" for files in FILES.values() for file in files if "_python" not in file]
        self.assertEqual(self.fetched(), sorted(wanted))

    def test_a_wheel_of_other_bytes_is_refused_and_leaves_nothing(self):
        for wheel in self.wheels:
            genuine = wheel.read_bytes()
            with zipfile.ZipFile(wheel, "a") as archive:
                archive.writestr("torch/lib/libmore.so", "not what was listed")
            code, said = self.fetch()
            self.assertNotEqual(code, 0)
            self.assertRegex(said, "DO NOT MATCH THE HASHES")
            self.assertEqual(list((self.folder / "cache/deepnet").iterdir()), [])
            wheel.write_bytes(genuine)

    def test_what_is_asked_for_is_fetched_where_less_is_there_and_nothing_again(self):
        toolkit = {name: ["nvidia/cu13/lib/" + name] for name in self.names() - set(FILES)}
        toolkit["nvidia-cuda-nvcc"] = ["nvidia/cu13/bin/nvcc", "nvidia/cu13/nvvm/bin/cicc", "nvidia/cu13/lib/libnvvm.so.4"]
        cuda = {**FILES, "torch": [*FILES["torch"], "torch/lib/libtorch_cuda.so"], **toolkit}
        self.list_wheels(cuda)
        root = self.folder / "cache/deepnet/libtorch-2.11.0"
        for name in FILES["torch"]:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).touch()
        self.assertIn("already in", self.fetch()[1])
        for word, more in ("--cuda", "torch/lib/libtorch_cuda.so"), ("--cuda-toolkit", "nvidia/cu13/bin/nvcc"):
            self.assertFalse((root / more).exists())
            code, said = self.fetch(word)
            self.assertEqual((code, "already in" in said), (0, False), said)
            self.assertTrue((root / more).exists())
            self.assertIn("already in", self.fetch(word)[1])
        self.assertEqual(os.readlink(root / "nvidia/cu13/lib/libnvvm.so"), "libnvvm.so.4")
        self.assertEqual(os.readlink(root / "nvidia/cu13/lib64"), "lib")
        for program in ("bin/nvcc", "nvvm/bin/cicc"):
            self.assertTrue(os.access(root / "nvidia/cu13" / program, os.X_OK))

    def test_the_list_has_two_hashes_for_all_that_is_ever_fetched(self):
        names = self.names()
        requirement = r"^([a-z0-9-]+)==[0-9.]+ \\\n  --hash=sha256:[0-9a-f]{64} \\\n  --hash=sha256:[0-9a-f]{64}$"
        text = (LAUNCH / LIST).read_text(encoding="utf-8")
        self.assertEqual(set(re.findall(requirement, text, re.M)), names)
        self.assertEqual(len(names), text.count("=="))
        self.assertEqual(len(set(re.findall(r"[0-9a-f]{64}", text))), 2 * len(names))
