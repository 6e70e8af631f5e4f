#!/usr/bin/env python3
"""Every tests/**/*_test.cc and *_test.py stands in a CMakeLists.txt beside or above it, and none is disabled.

With a build folder as argument, the programs that CMake lists are also compared with ctest's.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

mistakes = []
sources = sorted([*Path("tests").rglob("*_test.cc"), *Path("tests").rglob("*_test.py")])
for source in sources:
    lists = [p / "CMakeLists.txt" for p in source.parents if (p / "CMakeLists.txt").is_file()]
    # A Python test is a module of unittest: its name stands there without the ending.
    name = source.name.removesuffix(".py")
    if not any(name in p.read_text(encoding="utf-8") for p in lists if str(p).startswith("tests")):
        mistakes.append(f"{source}: in no CMakeLists.txt of tests/")
    for number, line in enumerate(source.read_text(encoding="utf-8").split("\n"), 1):
        # A test that needs a GPU may be skipped where there is none; it says so on that line.
        if re.search(r"\bDISABLE[D]_|GTEST_SKI[P]|unittest\.ski[p]|skipTes[t]", line) and "GPU" not in line:
            mistakes.append(f"{source}:{number}: a test that does not run: {line.strip()}")
declared = set()
for path in Path("tests").rglob("CMakeLists.txt"):
    declared |= set(re.findall(r"deepnet_(?:mpi_)?test\((\w+)", path.read_text(encoding="utf-8")))
    prefix = "_".join(path.parent.parts[1:])
    python = re.findall(r"deepnet_python_test\((\w+_test)", path.read_text(encoding="utf-8"))
    declared |= {f"{prefix}_{name}" for name in python}
if len(sys.argv) > 1:
    shown = subprocess.run(
        ["ctest", "--test-dir", sys.argv[1], "--show-only=json-v1"], encoding="utf-8", capture_output=True
    )
    names = {test["name"] for test in json.loads(shown.stdout)["tests"]}
    # A build for the emulated GPU has programs of its own, one of them in place of NCCL's.
    if "gpu_emulated_nccl_test" in names:
        declared.discard("nccl_communicator_test")
    else:
        declared = {name for name in declared if not name.startswith("gpu_")}
    # Programs of several ranks stand there once for each number of ranks and launcher.
    known = names | {re.sub(r"(_tcp)?_(\d+|hosts)$", "", name) for name in names}
    mistakes += [f"{name}: declared, but unknown to ctest" for name in sorted(declared - known)]
print("\n".join(mistakes) or f"test list: {len(sources)} files, {len(declared)} programs, all run")
sys.exit(bool(mistakes))
