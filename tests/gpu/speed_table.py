#!/usr/bin/env python3
"""Prints the table of tests/gpu/speed.sh from the logs of its parts. Exit status 1 where runs of one type differ.

  tests/gpu/speed_table.py LOG_FOLDER
"""

import json
import re
import sys
from pathlib import Path

LOGS = Path(sys.argv[1])


def read(path):
    """The JSON object of a log, or nothing where its part failed."""
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    try:
        return json.loads(text[text.index("{") :])
    except ValueError:
        return None


def pytorch_of(shape):
    """tokens/s by kind of batches."""
    found = {path.stem.split("-", 2)[2]: read(path) for path in LOGS.glob(f"pytorch-{shape}-*.json")}
    return {kind: record["tokens_per_second"] for kind, record in sorted(found.items()) if record}


def order_of(path):
    return [int(number) for number in re.findall(r"\d+", path.stem)[:3]], path.stem


def rows():
    yield "| layers a side, d, tokens a side | tokens/s | ms a step | MFU | best product, TFLOP/s | GiB | PyTorch, tokens/s | ratio to its best |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for path in sorted(LOGS.glob("step-*.json"), key=order_of):
        _, shape, *variant = path.stem.split("-")
        record, peers = read(path), pytorch_of(shape)
        name = ", ".join(shape.split("_") + [word.replace("_", " ") for word in variant])
        if record is None:
            yield f"| {name} | failed | | | | | | |"
            continue
        speed = record["tokens_per_second"]
        beside = ", ".join(f"{kind} {rate:,.0f}" for kind, rate in peers.items())
        ratio = f"{speed / max(peers.values()):.2f}" if peers else ""
        yield (
            f"| {name} | {speed:,.0f} | {1e3 * record['seconds_per_step']:.2f} | {100 * record['mfu']:.1f} % "
            f"| {record['ceiling_gflops'] / 1e3:.0f} | {record['peak_device_bytes'] / 2**30:.2f} | {beside} | {ratio} |"
        )


def weights(name):
    log = LOGS / f"train-{name}"
    text = log.with_suffix(".err").read_text(encoding="utf-8") + log.read_text(encoding="utf-8") if log.is_file() else ""
    return (re.findall(r"weights ([0-9a-f]{16})", text) or ["-"])[-1]


def main():
    for name in ("device", "doctor"):
        text = (LOGS / name).read_text(encoding="utf-8") if (LOGS / name).is_file() else ""
        print("\n".join(text.split("\n")[:2]) + "\n")
    decode = read(LOGS / "decode.json")
    if decode:
        print(f"decode: {decode['sentences_per_second']:,.0f} sentences/s, {decode['tokens_per_second']:,.0f} tokens/s")
    hashes = {name: weights(name) for name in ("one", "again", "graphs")}
    print("weights: " + ", ".join(f"{name} {found}" for name, found in hashes.items()) + "\n")
    print("\n".join(rows()))
    return len(set(hashes.values())) > 1


sys.exit(main())
