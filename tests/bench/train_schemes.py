#!/usr/bin/env python3
"""Every residual scheme and norm for 100 steps, in one piece and as a pipeline of two stages.

  tests/bench/train_schemes.py [--config launch/recipes/lab/small.textproto] [--set FIELD=VALUE ...]
                               [--layers 6] [--steps 100] [--scheme NAME ...]

Trains each with one rank, then under `mpirun -n 2` with 1F1B, each in a folder of its own that is thrown
away, and prints a table: nats a target token of the first and of the last ten steps, and whether both
layouts ended with the same weights. A scheme that the pipeline refuses is named with the refusal; exit
status 1 if a loss does not fall or weights differ. Needs a built build/release/deepnet and the corpus
of the recipe (that of the quick start). tests/parity/schemes_test.cc holds the same on a smaller one.
"""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Open MPI: as root too, and without binding or counting cores.
MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
       "OMPI_MCA_hwloc_base_binding_policy": "none", "OMPI_MCA_rmaps_base_oversubscribe": "1"}


def schemes():
    """Each value of the enum Residual; POST_LN with the other norms."""
    text = (ROOT / "proto/model.proto").read_text()
    body = re.search(r"enum Residual \{(.*?)\n\}", text, re.S).group(1)
    names = re.findall(r"^  (\w+) = [1-9]\d*;", body, re.M)
    return {name: [f"model.residual={name}"] for name in names} | {
        f"POST_LN, {norm}": ["model.residual=POST_LN", f"model.norm={norm}"]
        for norm in ("RMS_NORM", "BATCH_NORM")}


def train(config, fields, stages):
    """(losses of the first and of the last ten steps, hash of the weights), or the error."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["mpirun", "-n", str(stages)] if stages > 1 else []
        command += ["build/release/deepnet", "train", "--config", config]
        fields = fields + [f"folder={folder}/run", "train.log_every_steps=10",
                           "train.validate_every_steps=-1", "train.validate_sentences=1",
                           "decode.beam_size=1", "decode.max_tokens=4", "optim.virtual_replicas=1",
                           "compute.threads_per_rank=1",
                           f"parallel.pipeline_parallel_size={stages}"]
        for field in fields:
            command += ["--set", field]
        done = subprocess.run(command, cwd=ROOT, env={**os.environ, **MPI}, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode != 0:
            errors = re.findall(r"^error: (.*)$", done.stdout, re.M)
            return None, errors[0] if errors else done.stdout
        records = [json.loads(line) for line in open(f"{folder}/run/metrics.jsonl")]
        losses = [record["nll"] for record in records if record["kind"] == "train"]
        return (losses[0], losses[-1]), re.findall(r"weights (\w+)", done.stdout)[-1]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--config", default="launch/recipes/lab/small.textproto")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE")
    parser.add_argument("--layers", type=int, default=6, help="a side")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--scheme", action="append", choices=schemes(), help="default: all")
    args = parser.parse_args()
    common = args.set + [f"train.steps={args.steps}", f"model.encoder_layers={args.layers}",
                         f"model.decoder_layers={args.layers}"]
    failed = False
    print("| scheme | first ten steps | last ten | two stages |\n|---|---|---|---|")
    for name in args.scheme or schemes():
        losses, bits = train(args.config, common + schemes()[name], 1)
        if losses is None:
            sys.exit(f"{name}: {bits}")
        piped, piped_bits = train(args.config, common + schemes()[name], 2)
        same = "equal weights" if bits == piped_bits else "OTHER WEIGHTS"
        failed |= not losses[1] < losses[0] or (piped is not None and bits != piped_bits)
        print(f"| {name} | {losses[0]:.3f} | {losses[1]:.3f} | "
              f"{same if piped is not None else piped_bits} |", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
