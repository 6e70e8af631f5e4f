#!/usr/bin/env python3
"""Training steps of this program and of plain PyTorch, side by side, in turns.

  tests/bench/compare_steps.py [--shapes ABCD] [--rounds 3] [--steps 4] [--kinds f32,bf16]

Each round runs `deepnet bench step` and tests/bench/pytorch_baseline.py once per shape and kind, one
after the other on the same machine. Printed per shape: the median rate of each, the median of the
ratios of neighbouring runs against the faster kind of PyTorch, their spread, and peak memory.
Needs a built build/release/deepnet and a Python that imports torch.
"""
import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run(command):
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, encoding="utf-8")
    return json.loads(done.stdout.strip().split("\n")[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shapes", default="ABCD")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", default="4")
    parser.add_argument("--kinds", default="f32,bf16", help="of PyTorch")
    args = parser.parse_args()
    print("shape     ours tok/s  PyTorch tok/s   ratio (min..max)   ours MiB  PyTorch MiB")
    for shape in args.shapes:
        ours, theirs, ratios = [], [], []
        for _ in range(args.rounds):
            mine = run(["build/release/deepnet", "bench", "step", "--shape", shape, "--steps",
                        args.steps, "--json"])
            peers = [run([sys.executable, "tests/bench/pytorch_baseline.py", "--one", f"{shape}:{kind}",
                          "--steps", args.steps]) for kind in args.kinds.split(",")]
            best = max(peers, key=lambda peer: peer["tok_s"])
            ours.append(mine)
            theirs.append(best)
            ratios.append(mine["tokens_per_second"] / best["tok_s"])
        rate = statistics.median(r["tokens_per_second"] for r in ours)
        peer = statistics.median(r["tok_s"] for r in theirs)
        print(f"{shape:5} {rate:14.0f} {peer:14.0f} {statistics.median(ratios):7.2f}"
              f" ({min(ratios):.2f}..{max(ratios):.2f})"
              f" {max(r['peak_resident_bytes'] for r in ours) / 2**20:12.0f}"
              f" {min(r['peak_mb'] for r in theirs):12}", flush=True)


if __name__ == "__main__":
    main()
