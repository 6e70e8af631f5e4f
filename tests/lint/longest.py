#!/usr/bin/env python3
"""Holds the limits of growth, and prints the longest files and functions.

The product is what trainer, parallel, proto and launch hold of C++, CUDA and proto files. What is over a limit
today stands in EXCEPTIONS with its size, above which it fails. That list only shrinks: an exception that is no
longer needed fails too. TOTALS are of the whole: who needs more of one takes away elsewhere, or argues in the
commit that raises it.
"""

import collections
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

LIMITS = {
    "lines of a .cc file": 500,
    "lines of a kernel's file": 1000,  # trainer/kernels
    "fields of a class": 20,
    "virtual functions of a class": 30,
    "files of a folder": 35,
    "lines of README": 180,
}
PARAMETERS = 6  # so many and more are a struct, but for those of TOTALS
EXCEPTIONS = {
    ("files of a folder", "trainer/kernels/native"): 46,
    ("files of a folder", "trainer/model"): 38,
    ("lines of a .cc file", "parallel/comm/nccl_communicator.cc"): 681,
    ("lines of a .cc file", "parallel/comm/sockets.cc"): 647,
    ("lines of a .cc file", "parallel/comm/tcp_communicator.cc"): 645,
    ("lines of a .cc file", "trainer/bench/bench.cc"): 662,
    ("lines of a .cc file", "trainer/doctor/kernel_check.cc"): 634,
}
TOTALS = {
    "lines of the product": 68496,
    "files of the product": 484,
    "functions of many parameters": 16,
    "functions over 60 lines": 0,
    "words of the documentation": 58500,
}

PRODUCT = ("trainer/", "parallel/", "proto/", "launch/")


def parameters(signature):
    """Returns the number of parameters of "(const T<A, B>& x, int y)"."""
    inside = signature[1 : signature.rindex(")")]
    while (shorter := re.sub(r"<[^<>]*>|\([^()]*\)|\{[^{}]*\}", "", inside)) != inside:
        inside = shorter
    return inside.count(",") + bool(inside.strip())


def tracked(*patterns):
    return subprocess.run(["git", "ls-files", *patterns], encoding="utf-8", capture_output=True).stdout.split()


product = [p for p in tracked("*.h", "*.cc", "*.cu", "*.inc", "*.proto") if p.startswith(PRODUCT)]
sizes = {p: len(Path(p).read_text(encoding="utf-8").split("\n")) - 1 for p in product}
command = ["ctags", "--output-format=json", "--fields=+neSZ", "--kinds-C++=cfmp", "-I", "ABSL_GUARDED_BY+", "-f", "-"]
if not shutil.which("ctags"):
    print("limits: ctags is not here: not run")
    sys.exit(0)
found = subprocess.run([*command, *(p for p in product if not p.endswith(".proto"))], encoding="utf-8", capture_output=True)
tags = [json.loads(line) for line in found.stdout.rstrip("\n").split("\n")]
functions = [t for t in tags if t["kind"] == "function" and "end" in t]
spans = sorted(((t["end"] - t["line"] + 1, f'{t["path"]}: {t["name"]}') for t in functions), reverse=True)

measured = collections.defaultdict(collections.Counter)  # limit -> what -> size
for path, size in sizes.items():
    if not path.endswith(".proto"):
        measured["lines of a kernel's file" if path.startswith("trainer/kernels/") else "lines of a .cc file"][path] = size
    measured["files of a folder"][str(Path(path).parent)] += 1
for tag in tags:
    owner = f'{tag["path"]}: {tag.get("scope", "").rpartition("::")[2]}'
    if tag.get("scopeKind") == "class" and tag["kind"] == "member":
        measured["fields of a class"][owner] += 1
    if tag["kind"] in ("function", "prototype") and re.match(r"/\^\s*virtual (?!~)", tag["pattern"]):
        measured["virtual functions of a class"][owner] += 1
measured["lines of README"]["README.md"] = len(Path("README.md").read_text(encoding="utf-8").split("\n")) - 1
totals = {
    "lines of the product": sum(sizes.values()),
    "files of the product": len(product),
    "functions of many parameters": sum(parameters(t.get("signature", "()")) >= PARAMETERS for t in functions),
    "functions over 60 lines": sum(span > 60 for span, _ in spans),
    "words of the documentation": sum(len(Path(p).read_text(encoding="utf-8").split()) for p in tracked("*.md")),
}

mistakes = [f"{total}: {size}, at most {TOTALS.get(total, 0)}" for total, size in totals.items() if size > TOTALS.get(total, 0)]
over = {(limit, what): size for limit, of in measured.items() for what, size in of.items() if size > LIMITS[limit]}
for (limit, what), size in over.items():
    if size > EXCEPTIONS.get((limit, what), 0):
        mistakes.append(f"{what}: {size} {limit}, at most {EXCEPTIONS.get((limit, what), LIMITS[limit])}")
mistakes += [f"{what}: keeps to the limit of {limit}: take its exception out" for limit, what in EXCEPTIONS.keys() - over.keys()]
for mistake in mistakes:
    print(mistake, file=sys.stderr)
if "--exceptions" in sys.argv:  # what the two tables would be today
    print("EXCEPTIONS = {", *(f'    ("{limit}", "{what}"): {size},' for (limit, what), size in sorted(over.items())), "}", sep="\n")
    print("TOTALS = {", *(f'    "{total}": {size},' for total, size in totals.items()), "}", sep="\n")
print(", ".join(f"{size} {total}" for total, size in totals.items()))
longest = sorted((size, path) for path, size in sizes.items())
print("longest: " + ", ".join(f"{path} {size}" for size, path in longest[:-6:-1]))
print("longest functions: " + ", ".join(f"{name} {size}" for size, name in spans[:5]))
sys.exit(bool(mistakes))
