#!/usr/bin/env python3
"""Tokens per second of layouts against one rank with as many threads, in turns, on a prepared corpus.

  tests/bench/compare_layouts.py --config RECIPE [--set FIELD=VALUE ...] [--ranks 2] [--steps 4]
                                 [--rounds 3] [--layout NAME ...]

Each round trains `steps` steps with one rank of `ranks` threads, then with each layout under
`mpirun -n RANKS`, a thread a rank, each in a folder of its own that is thrown away. What counts is
the steps after the first. Printed: the median rate of each and the median of the ratios to the
neighbouring run of one rank, with their spread; the hash of the weights where it is the same for
all. Needs a built build/release/deepnet and the corpus of the recipe.
"""
import argparse
import statistics
import sys

import short_runs

LAYOUTS = {
    "interleaved": ["parallel.pipeline_parallel_size={n}", "parallel.schedule=interleaved",
                    "parallel.virtual_pipeline_size=2"],
    "1f1b": ["parallel.pipeline_parallel_size={n}", "parallel.schedule=1f1b"],
    "zb-h1": ["parallel.pipeline_parallel_size={n}", "parallel.schedule=zb-h1"],
    "zb-v": ["parallel.pipeline_parallel_size={n}", "parallel.schedule=zb-v",
             "parallel.virtual_pipeline_size=2"],
    "replicas": ["parallel.pipeline_parallel_size=1", "parallel.data_parallel_size={n}"],
}


def train(config, fields, ranks, steps):
    """(tokens per second of source and target over all steps but the first, hash of the weights)"""
    fields = fields + [f"train.steps={steps + 1}", "train.log_every_steps=1"]
    try:
        records, bits = short_runs.train(config, fields, ranks)
    except short_runs.Failed as error:
        sys.exit(str(error))
    first, *_, last = records
    tokens = sum(last[side] - first[side] for side in ("source_tokens", "target_tokens"))
    return tokens / (last["seconds"] - first["seconds"]), bits


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--config", required=True)
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layout", action="append", choices=LAYOUTS, help="default: all")
    args = parser.parse_args()
    names = args.layout or list(LAYOUTS)
    rates = {name: [] for name in ["one rank"] + names}
    ratios = {name: [] for name in names}
    hashes = set()
    for _ in range(args.rounds):
        rate, bits = train(args.config, args.set + [f"compute.threads_per_rank={args.ranks}"], 1,
                           args.steps)
        rates["one rank"].append(rate)
        hashes.add(bits)
        for name in names:
            fields = [field.format(n=args.ranks) for field in LAYOUTS[name]]
            mine, bits = train(args.config, args.set + fields + ["compute.threads_per_rank=1"],
                               args.ranks, args.steps)
            rates[name].append(mine)
            ratios[name].append(mine / rate)
            hashes.add(bits)
    for name, found in rates.items():
        ratio = ratios.get(name)
        print(f"{name:12} {statistics.median(found):9.0f} tokens/s" +
              (f"  {statistics.median(ratio):5.2f} ({min(ratio):.2f}..{max(ratio):.2f})" if ratio
               else ""))
    print("weights", hashes.pop() if len(hashes) == 1 else f"differ: {sorted(hashes)}")


if __name__ == "__main__":
    main()
