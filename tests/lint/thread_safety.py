#!/usr/bin/env python3
"""Clang's analysis of thread safety on the torch-free files with a mutex: what is ABSL_GUARDED_BY one is
used with it held.

    tests/lint/thread_safety.py BUILD_FOLDER

BUILD_FOLDER is a torch-free build without DEEPNET_UNITY: its compile_commands.json says how files are
compiled. Exit status 1 on a finding.
"""

import concurrent.futures
import json
import os
import re
import shlex
import shutil
import subprocess
import sys

MUTEX = re.compile(r"MutexLock|_GUARDED_BY")


def has_mutex(path):
    names = (path, re.sub(r"\.cc$", ".h", path))
    return any(os.path.exists(p) and MUTEX.search(open(p, encoding="utf-8").read()) for p in names)


def check(entry):
    words = shlex.split(re.sub(r" -Winvalid-pch -include \S+", "", entry["command"]))
    flags = [w for w in words[1:] if w.startswith(("-D", "-I", "-std")) or w in ("-isystem",) or os.path.isabs(w)]
    command = ["clang++", "-fsyntax-only", "-Wthread-safety", "-Werror=thread-safety", *flags]
    return subprocess.run(command, cwd=entry["directory"], encoding="utf-8", stderr=subprocess.PIPE)


if not shutil.which("clang++"):
    sys.exit(print("clang++ is not here: thread safety is not checked"))
entries = json.load(open(sys.argv[1] + "/compile_commands.json", encoding="utf-8"))
if any("/Unity/" in e["file"] for e in entries):
    sys.exit(f"{sys.argv[1]}: configure it with -DDEEPNET_UNITY=OFF")
entries = [e for e in entries if "/tests/" not in e["file"] and has_mutex(e["file"])]
with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    results = list(pool.map(check, entries))
failed = [result.stderr for result in results if result.returncode != 0]
print("".join(failed) or f"thread safety: {len(entries)} files with a mutex, each field used with its own held")
sys.exit(bool(failed))
