"""The command of the wheel (launch/wheel_command.py), among stand-ins for PyTorch and the program."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

COMMAND = Path(__file__).resolve().parents[2] / "launch/wheel_command.py"
START = "import sys, deepnet; sys.exit(deepnet.main())"  # as pip's script does
PROGRAM = """#!/bin/sh
echo "arguments $*"
echo "libraries $LD_LIBRARY_PATH"
grep SigIgn /proc/self/status
"""
IGNORED_BY_PYTHON = 1 << (13 - 1) | 1 << (25 - 1)  # SIGPIPE, SIGXFSZ


class WheelCommand(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.packages = Path(folder.name) / "packages"
        self.other = Path(folder.name) / "other"
        package = self.packages / "deepnet"
        (package / "bin").mkdir(parents=True)
        self.other.mkdir()
        (package / "__init__.py").write_text(COMMAND.read_text(encoding="utf-8").replace("@torch@", "2.11.0"), encoding="utf-8")
        (package / "bin/deepnet").write_text(PROGRAM, encoding="utf-8")
        (package / "bin/deepnet").chmod(0o755)

    def add_torch(self, packages, version):
        (packages / "torch").mkdir()
        (packages / "torch/__init__.py").write_text("raise ImportError('imported')\n", encoding="utf-8")
        (packages / "torch/version.py").write_text(f"__all__ = ['__version__']\n__version__ = '{version}'\n", encoding="utf-8")

    def start(self, *arguments, **environment):
        environment = {"PYTHONPATH": f"{self.packages}:{self.other}", **environment}
        return subprocess.run([sys.executable, "-B", "-c", START, *arguments], env=environment, encoding="utf-8", capture_output=True)

    def test_it_becomes_the_program_with_its_arguments_and_the_default_signals(self):
        self.add_torch(self.packages, "2.11.0+cu130")
        done = self.start("train", "--set", "name=a b")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        arguments, libraries, ignored = done.stdout.rstrip("\n").split("\n")
        self.assertEqual(arguments, "arguments train --set name=a b")
        self.assertEqual(libraries, "libraries ")
        self.assertEqual(int(ignored.split()[1], 16) & IGNORED_BY_PYTHON, 0)

    def test_its_libraries_come_before_those_that_the_environment_names(self):
        self.add_torch(self.packages, "2.11.0")
        done = self.start(LD_LIBRARY_PATH="/toolkit")
        folders = done.stdout.split("\n")[1].removeprefix("libraries ").split(":")
        self.assertEqual(folders[0], str(self.packages / "torch/lib"))
        self.assertEqual(folders[-1], "/toolkit")

    def test_it_finds_pytorch_in_another_folder_of_packages(self):
        self.add_torch(self.other, "2.11.0")
        folders = [self.other / name for name in ("torch/lib", "nvidia/cu13/lib", "nvidia/nccl/lib")]
        self.assertEqual(self.start().stdout.split("\n")[1], "libraries " + ":".join(map(str, folders)))

    def test_without_the_pytorch_that_it_is_linked_with_it_ends_and_says_so(self):
        done = self.start()
        self.assertEqual(done.returncode, 3)
        self.assertRegex(done.stderr, r"needs torch==2\.11\.0 in the same environment; .*python.* has none")
        self.add_torch(self.packages, "2.12.1+cpu")
        done = self.start()
        self.assertEqual(done.returncode, 3)
        self.assertIn("has 2.12.1", done.stderr)
        (self.packages / "torch/version.py").write_bytes(b"\xff")
        done = self.start()
        self.assertEqual(done.returncode, 3)
        self.assertIn("has none", done.stderr)


if __name__ == "__main__":
    unittest.main()
