#!/usr/bin/env python3
"""Prints the page of tests/gpu/first_hour.sh from the logs of its parts. Exit status 1 where layouts differ.

  tests/gpu/first_hour_page.py LOG_FOLDER
"""

import datetime
import json
import re
import sys
from pathlib import Path

LOGS = Path(sys.argv[1])
KERNELS_SHOWN = 12
LOSS_BOUND = {"FLOAT32": 1e-5, "BFLOAT16": 1e-3}  # relative to the CPU's float32
mistakes = []


def read(path):
    """The JSON object of a log, or nothing where its part failed."""
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    try:
        return json.loads(text[text.index("{") :])
    except ValueError:
        return None


def records(name):
    found = [read(LOGS / f"{name}_{number}.json") for number in range(1, 100)]
    return [record for record in found if record is not None]


def shown(value, form, none="-"):
    return form % value if value else none


def parity():
    yield "| run | last loss | weights | tokens/s | MFU |"
    yield "| --- | --- | --- | --- | --- |"
    for log in sorted(LOGS.glob("parity_*.err")):
        text = log.read_text(encoding="utf-8") + log.with_suffix("").read_text(encoding="utf-8")
        losses = re.findall(r"loss ([\d.]+)", text)
        rates = re.findall(r"([\d,]+) tokens/s", text)
        shares = re.findall(r"MFU ([\d.]+ %)", text)
        weights = re.findall(r"weights ([0-9a-f]{16})", text)
        name = log.name.removeprefix("parity_").removesuffix(".err")
        last = [found[-1] if found else "-" for found in (losses, weights, rates, shares)]
        yield "| " + " | ".join([name, *last]) + " |"


def losses(folder):
    path = LOGS / folder / "metrics.jsonl"
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    lines = [json.loads(line) for line in text.split("\n") if line]
    return [line["loss"] for line in lines if line["kind"] == "train"]


def verdicts():
    for dtype, bound in LOSS_BOUND.items():
        logs = [log for log in LOGS.glob(f"parity_*_{dtype}.err")]
        found = [re.findall(r"weights ([0-9a-f]{16})", log.read_text(encoding="utf-8")) for log in logs]
        hashes = {h for of_log in found for h in of_log}
        cpu, gpu = losses("cpu"), losses(f"one-{dtype}")
        apart = max((abs(a - b) / b for a, b in zip(gpu, cpu)), default=1.0)
        good = all(found) and len(hashes) == 1 and len(gpu) == len(cpu) and apart <= bound
        if not good:
            mistakes.append(dtype)
        yield (
            f"{dtype}: {len(logs)} runs, {len(hashes)} weights; losses at most {apart:.1e} from the CPU's (bound {bound:.0e}): "
            f"{'as it must be' if good else '**wrong**'}."
        )
        yield ""


def steps():
    yield "| shape | tokens/s | ms a step | predicted ms | GFLOP/s | best product, GFLOP/s | MFU | peak MiB |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    predicted = {r["name"].split("/", 1)[1]: r.get("predicted_seconds_per_step", 0) for r in records("kernels")}
    for r in records("step"):
        shape = r["name"].split("/", 1)[1]
        yield (
            f"| {shape} | {r['tokens_per_second']:.0f} | {1e3 * r['seconds_per_step']:.2f} "
            f"| {shown(1e3 * predicted.get(shape, 0), '%.2f')} | {r['gflops']:.0f} | {r['ceiling_gflops']:.0f} "
            f"| {shown(100 * r['mfu'], '%.1f %%')} | {r['peak_device_bytes'] / 2**20:.0f} |"
        )


def kernels(record):
    yield f"{record['name']}, {record['dtype']}: {1e3 * record['seconds_per_step']:.2f} ms a step while kernels are timed."
    yield ""
    yield "| kernel | launches | us each | ms a step | predicted ms | share |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for k in record["kernels"][:KERNELS_SHOWN]:
        yield (
            f"| {k['name']} | {k['calls_per_step']:.0f} | {1e6 * k['seconds_per_call']:.2f} "
            f"| {1e3 * k['calls_per_step'] * k['seconds_per_call']:.3f} "
            f"| {shown(1e3 * k.get('predicted_seconds_per_step', 0), '%.3f')} | {100 * k['share']:.1f} % |"
        )
    yield ""


def page():
    devices = {r["device"] for r in records("step")}
    yield f"# The first hour on a GPU, {datetime.date.today()}"
    yield ""
    yield f"`tests/gpu/first_hour.sh` at commit {(LOGS / 'commit').read_text(encoding='utf-8').strip()} on {', '.join(sorted(devices)) or '?'}."
    if any("Emulated" in device for device in devices):
        yield "**A rehearsal on the emulated GPU: its times mean nothing.**"
    yield ""
    yield "| part | | seconds |"
    yield "| --- | --- | --- |"
    yield (LOGS / "parts").read_text(encoding="utf-8").strip()
    yield ""
    for name in ("doctor", "doctor_ranks"):
        if (LOGS / name).is_file():
            said = (path.read_text(encoding="utf-8").strip() for path in (LOGS / name, LOGS / f"{name}.err"))
            yield "```\n" + next(filter(None, said), "") + "\n```"
            yield ""
    yield "## Parity"
    yield ""
    yield "Runs of one type must have one weights' hash."
    yield ""
    yield from verdicts()
    yield from parity()
    yield ""
    yield "## Steps"
    yield ""
    yield from steps()
    yield ""
    decode = read(LOGS / "decode.json")
    if decode:
        yield f"Decoding ({decode['name']}): {decode['sentences_per_second']:.1f} sentences/s, {decode['tokens_per_second']:.0f} tokens/s."
        yield ""
    yield "## Kernels"
    yield ""
    for record in records("kernels"):
        yield from kernels(record)


print("\n".join(page()))
sys.exit(bool(mistakes))
