#!/usr/bin/env python3
"""Prints the ten longest files and functions and the size of the product, to see growth; never fails.

The product is what trainer, parallel, proto and launch hold of C++, CUDA and proto files.
"""

import json
import shutil
import subprocess

PRODUCT = ("trainer/", "parallel/", "proto/", "launch/")


def lines_of(path):
    with open(path, encoding="utf-8") as file:
        return sum(1 for _ in file)


listed = subprocess.run(
    ["git", "ls-files", "*.h", "*.cc", "*.cu", "*.inc", "*.proto"], encoding="utf-8", capture_output=True
)
sizes = sorted(((lines_of(p), p) for p in listed.stdout.split() if p.startswith(PRODUCT)), reverse=True)
files = [path for _, path in sizes if not path.endswith(".proto")]
print(f"product: {sum(size for size, _ in sizes)} lines with proto, {len(files)} files of C++ and CUDA")
print("longest files:")
for size, path in sizes[:10]:
    print(f"  {size:5} {path}")
if files and shutil.which("ctags"):
    command = ["ctags", "--output-format=json", "--fields=+ne", "--kinds-C++=f", "-f", "-", *files]
    tags = subprocess.run(command, encoding="utf-8", capture_output=True).stdout.rstrip("\n").split("\n")
    found = [json.loads(tag) for tag in tags]
    spans = [(t["end"] - t["line"] + 1, f'{t["path"]}: {t["name"]}') for t in found if "end" in t]
    print(f"longest of {len(spans)} functions, {sum(s > 60 for s, _ in spans)} over 60 lines:")
    for size, name in sorted(spans, reverse=True)[:10]:
        print(f"  {size:5} {name}")
