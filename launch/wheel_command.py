"""The command `deepnet` of the wheel that launch/wheel.sh makes: becomes the program, on the PyTorch of this environment."""

import importlib.util
import os
import re
import signal
import sys

TORCH = "@torch@"  # the release that the program is linked with


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    spec = importlib.util.find_spec("torch")  # PyTorch itself stays unread
    torch = os.path.dirname(spec.origin) if spec and spec.origin else ""
    found = re.search(r"__version__ = '([^'+]*)", _read(os.path.join(torch, "version.py")))
    if not found or found[1] != TORCH:
        print(f"error: deepnet needs torch=={TORCH} in the same environment; {sys.executable} has "
              f"{found[1] if found else 'none'}", file=sys.stderr)  # fmt: skip
        return 3
    # The program's own paths lead to packages beside it, but come after what the environment names.
    packages, named = os.path.dirname(torch), os.environ.get("LD_LIBRARY_PATH")
    if named or packages != os.path.dirname(here):
        folders = [os.path.join(packages, name) for name in ("torch/lib", "nvidia/cu13/lib", "nvidia/nccl/lib")]
        os.environ["LD_LIBRARY_PATH"] = ":".join(folders + ([named] if named else []))
    for name in ("SIGPIPE", "SIGXFSZ"):  # which Python ignores, and the program would too
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    program = os.path.join(here, "bin", "deepnet")
    os.execv(program, [program, *sys.argv[1:]])


def _read(path):
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, ValueError):
        return ""
