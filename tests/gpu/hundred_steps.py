#!/usr/bin/env python3
"""Trains 6 + 6 layers for 100 steps on the CPU and on the emulated GPU and compares every step's loss.

  tests/gpu/hundred_steps.py PROGRAM CORPUS [--out FOLDER] [--steps N] [--only TYPE]

PROGRAM is deepnet_on_emulated_gpu of a build for the emulated GPU, CORPUS a folder as launch/quickstart.sh
builds it (corpus/small; `launch/corpora/debian_corpus.py build small --langs es,fr,it --out CORPUS`). The
recipe is the quick start's with 6 + 6 layers of width 64, dropout, and microbatches of 122 tokens. Float32 and bfloat16 are each compared with the
CPU's float32 run; the emulated GPU's layouts must give one weights' hash. Prints a table; exit status 1
where a loss is beyond its bound or a hash differs. Takes about ten minutes on two cores.
"""

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / "launch/recipes/quickstart.textproto"
SETTINGS = ["model.encoder_layers=6", "model.decoder_layers=6", "model.d_model=64", "model.ffn_dim=256", "model.num_heads=2",
            "model.dropout=0.1", "data.folder=data", "data.microbatch.max_source_tokens=122",
            "data.microbatch.max_target_tokens=122", "data.microbatch.max_sentences=16", "optim.virtual_replicas=2", "compute.threads_per_rank=1",
            "train.log_every_steps=1", "train.validate_every_steps=-1", "train.validate_sentences=1", "decode.beam_size=1",
            "decode.max_tokens=2", "train.max_train_minutes=0",
            "train.checkpoint_every_minutes=0"]
# Stages, replicas, schedule.
LAYOUTS = [(1, 1, ""), (2, 2, "zb-h1")]
# The greatest relative difference from the CPU's float32 loss at any step.
BOUNDS = {"FLOAT32": 1e-5, "BFLOAT16": 1e-3}


def run(words):
    done = subprocess.run([str(word) for word in words], cwd=ROOT, encoding="utf-8", stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}\n{done.stdout}")
    return done.stdout


def train(arguments, device, dtype, layout):
    """Returns the losses and the weights' hash."""
    stages, replicas, schedule = layout
    folder = f"{device}-{dtype}-{stages}x{replicas}{schedule}".lower()
    settings = [*SETTINGS, f"folder={folder}", f"compute.device={device}", f"compute.dtype={dtype}", f"train.steps={arguments.steps}",
                f"parallel.pipeline_parallel_size={stages}", f"parallel.data_parallel_size={replicas}"]
    if schedule:
        settings.append(f"parallel.schedule={schedule}")
    words = ["tests/mpi/mpirun.sh", stages * replicas] if stages * replicas > 1 else []
    words += [arguments.program, "train", "--config", RECIPE, "--root", arguments.out]
    for setting in settings:
        words += ["--set", setting]
    log = run(words)
    text = (arguments.out / folder / "metrics.jsonl").read_text(encoding="utf-8")
    lines = (json.loads(line) for line in text.split("\n") if line)
    return [line["loss"] for line in lines if line["kind"] == "train"], re.search(r"weights (\w+)", log)[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("program", type=Path)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/hundred_steps"))
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--only", choices=BOUNDS, help="this type only")
    arguments = parser.parse_args()
    for name in ("program", "corpus", "out"):
        setattr(arguments, name, getattr(arguments, name).resolve())
    if not (arguments.out / "data").exists():
        run([arguments.program, "prepare", "--config", RECIPE, "--root", arguments.out, "--set", "data.folder=data",
             "--set", f"prepare.opus100_folder={arguments.corpus}"])
    expected, _ = train(arguments, "cpu", "FLOAT32", (1, 1, ""))
    failed = False
    print("| type | stages x replicas, schedule | first loss | last loss | greatest relative difference from the CPU | weights |\n"
          "| --- | --- | --- | --- | --- | --- |\n"
          f"| CPU, FLOAT32 | 1 x 1 | {expected[0]:.6f} | {expected[-1]:.6f} | | |", flush=True)
    for dtype in [arguments.only] if arguments.only else BOUNDS:
        hashes = set()
        for layout in LAYOUTS:
            losses, weights = train(arguments, "cuda", dtype, layout)
            differences = [abs(a - b) / b for a, b in zip(losses, expected, strict=True)]
            worst = max(differences)
            hashes.add(weights)
            failed |= len(losses) != arguments.steps or worst > BOUNDS[dtype] or len(hashes) > 1
            print(f"| {dtype} | {layout[0]} x {layout[1]} {layout[2]} | {losses[0]:.6f} | {losses[-1]:.6f} "
                  f"| {worst:.2g} (step {differences.index(worst) + 1}) | {weights} |", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
