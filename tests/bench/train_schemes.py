#!/usr/bin/env python3
"""Every residual scheme and norm for 100 steps, in one piece and as a pipeline of two stages.

  tests/bench/train_schemes.py [--config launch/recipes/lab/small.textproto] [--set FIELD=VALUE ...]
                               [--layers 6] [--steps 100] [--scheme NAME ...]

Trains each with one rank, then under `mpirun -n 2` with the schedule that the planner chooses, each in a
folder of its own that is thrown away, and prints a table: nats a target token of the first and of the
last ten steps, and whether both layouts ended with the same weights. A scheme that the pipeline refuses is
named with the refusal; exit status 1 if a loss does not fall or weights differ. Needs a built build/release/deepnet and the corpus
of the recipe (that of the quick start). tests/parity/schemes_test.cc holds the same on a smaller corpus.
Paths are relative to the repository.
"""
import argparse
import re
import sys

import short_runs

BAD_CONFIG = 2  # the program's exit code for a layout that a scheme cannot have


def schemes():
    """Each value of the enum Residual; POST_LN with the other norms."""
    text = (short_runs.ROOT / "proto/model.proto").read_text(encoding="utf-8")
    body = re.search(r"enum Residual \{(.*?)\n\}", text, re.S).group(1)
    names = re.findall(r"^  (\w+) = [1-9]\d*;", body, re.M)
    return {name: [f"model.residual={name}"] for name in names} | {
        f"POST_LN, {norm}": ["model.residual=POST_LN", f"model.norm={norm}"]
        for norm in ("RMS_NORM", "BATCH_NORM")}


def train(config, fields, stages):
    """(losses of the first and of the last ten steps, hash of the weights)"""
    records, bits = short_runs.train(
        config, fields + ["train.log_every_steps=10", "optim.virtual_replicas=1",
                          "compute.threads_per_rank=1",
                          f"parallel.pipeline_parallel_size={stages}"], stages)
    return (records[0]["nll"], records[-1]["nll"]), bits


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--config", default="launch/recipes/lab/small.textproto")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE")
    parser.add_argument("--layers", type=int, default=6, help="a side")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--scheme", action="append", choices=schemes(),
                        help="default: all; with quotes where there is a space: 'POST_LN, RMS_NORM'")
    args = parser.parse_args()
    common = args.set + [f"train.steps={args.steps}", f"model.encoder_layers={args.layers}",
                         f"model.decoder_layers={args.layers}"]
    failed = False
    print("| scheme | first ten steps | last ten | two stages |\n|---|---|---|---|")
    for name, fields in schemes().items():
        if args.scheme and name not in args.scheme:
            continue
        try:
            losses, bits = train(args.config, common + fields, 1)
        except short_runs.Failed as error:
            sys.exit(f"{name}: {error}")
        failed |= not losses[1] < losses[0]
        try:
            same = train(args.config, common + fields, 2)[1] == bits
            outcome = "equal weights" if same else "OTHER WEIGHTS"
            failed |= not same
        except short_runs.Failed as error:
            outcome = str(error)
            failed |= error.code != BAD_CONFIG
        print(f"| {name} | {losses[0]:.3f} | {losses[1]:.3f} | {outcome} |", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
