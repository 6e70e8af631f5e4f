#!/usr/bin/env python3
"""Runs libFuzzer on what the program reads from outside (tests/fuzz/inputs.h), two targets at a time.

  tests/fuzz/run.py [--seconds S | --runs N] [--seed N] [--build FOLDER] [TARGET...]

  --seconds   of each target, a quarter of them with inputs of up to a MiB; default 60
  --runs      executions of each target instead, for instance 1000000; a thousandth as many with such inputs
  --seed      of what libFuzzer draws; default one of its own, and inputs that are read quickly are drawn more often
  --build     tree of the preset `fuzz`; default build/fuzz, configured and built first

Needs clang with libFuzzer. Inputs that reach new code stay in FOLDER/corpus/TARGET and corpus_large/TARGET, from where
the next run goes on. A target fails if it crashes, if AddressSanitizer or UndefinedBehaviorSanitizer finds a mistake,
if one input takes longer than 10 s, one allocation more than 64 MiB (129 where a zstandard window of 128 is read), or
the process more than 1 GiB. Put the input that it names, made smaller by `fuzzer --target=TARGET -minimize_crash=1
FILE`, into tests/fuzz/corpus/TARGET.
"""

import argparse
import concurrent.futures
import math
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "tests/fuzz/corpus"
MAX_BYTES = {"sentencepiece": 8192, "shard": 16384, "safetensors": 8192, "safetensors_index": 8192}  # else 4096
MAX_LARGE_BYTES = 1 << 20  # kMaxInputBytes of inputs.h
LARGE_SHARE = 0.25  # of the time
MALLOC_MIB = {"lines": 129, "tsv": 129}  # else 64
PRESENT = {  # files of the project that are examples, too
    "config_textproto": ["launch/recipes/quickstart.textproto", "launch/recipes/deepnet_1000l.textproto"],
    "corpus_manifest": ["tests/golden/run-v1/corpus/manifest.textproto"],
    "hf_config": ["tests/golden/export-v1/config.json"],
    "sentencepiece": ["tests/golden/run-v1/corpus/tokenizer.model"],
    "vocab_json": ["tests/golden/export-v1/vocab.json"],
}  # fmt: skip


def run_target(name, large, limits, build):
    """Returns a line of the table, and True if the target failed."""
    grown = build / ("corpus_large" if large else "corpus") / name
    grown.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as scratch:
        present = Path(scratch) / "present"
        present.mkdir()
        for path in PRESENT.get(name, []):
            (present / Path(path).name).write_bytes((ROOT / path).read_bytes())
        if large:
            subprocess.run([build / "tests/fuzz/fuzzer", f"--write-large={present}"], cwd=ROOT, check=True)
        command = [
            build / "tests/fuzz/fuzzer", f"--target={name}", *limits, "-timeout=10",
            f"-malloc_limit_mb={MALLOC_MIB.get(name, 64)}", "-rss_limit_mb=1024",
            f"-max_len={MAX_LARGE_BYTES if large else MAX_BYTES.get(name, 4096)}", "-print_final_stats=1", "-verbosity=1",
            f"-artifact_prefix={build}/{name}-", grown, EXAMPLES / name, present,
        ]  # fmt: skip
        environment = dict(os.environ, TMPDIR=scratch, UBSAN_OPTIONS="halt_on_error=1:print_stacktrace=1")
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, encoding="utf-8",
                              errors="replace")
    failed = done.returncode != 0
    stats = dict(re.findall(r"^stat::(\w+):\s+(\d+)$", done.stderr, re.MULTILINE))
    coverage = re.findall(r" cov: (\d+) ", done.stderr)
    figures = [stats.get(key, "") for key in ("number_of_executed_units", "average_exec_per_sec", "peak_rss_mb")]
    line = "{:26}{:>12}{:>10}{:>10}{:>10}".format(name + " large" * large, *figures, coverage[-1] if coverage else "")
    if failed:
        line += "  FAILED\n" + done.stderr[-4000:]
    return line, failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="TARGET")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--runs", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--build", type=Path, default=ROOT / "build/fuzz")
    arguments = parser.parse_args()
    known = sorted(folder.name for folder in EXAMPLES.iterdir())
    for name in arguments.targets:
        if name not in known:
            parser.error(f"no target '{name}'; there are: {', '.join(known)}")
    build = arguments.build.resolve()
    subprocess.run(["cmake", "--preset", "fuzz", "-B", build], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", build, "--target", "fuzzer"], check=True, stdout=subprocess.DEVNULL)
    drawn = f"-seed={arguments.seed}" if arguments.seed else "-entropic_scale_per_exec_time=1"

    def run(name, large):
        runs = arguments.runs and (arguments.runs // 1000 + 100 if large else arguments.runs)
        seconds = math.ceil(arguments.seconds * (LARGE_SHARE if large else 1 - LARGE_SHARE))
        return run_target(name, large, [f"-runs={runs}" if runs else f"-max_total_time={seconds}", drawn], build)

    print("{:26}{:>12}{:>10}{:>10}{:>10}".format("target", "executions", "a second", "MiB", "coverage"), flush=True)
    failures = 0
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        names = [name for name in arguments.targets or known for _ in (False, True)]
        for done in pool.map(run, names, [False, True] * (len(names) // 2)):
            print(done[0], flush=True)
            failures += done[1]
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
