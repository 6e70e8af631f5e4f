#!/usr/bin/env python3
"""TensorBoard's own readers against metrics.jsonl, and Prometheus's own check.

  monitoring_check.py [--build build/release]

A run is trained, stopped by force and resumed; what the tensorboard package then shows of its folder must be the figures and
sample translations of metrics.jsonl, each step once, and its file must parse with nothing left over. promtool, beside the Python that runs this, must find nothing
to say about train.prometheus_file. Exit status 1 where not.
"""

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
from tensorboard.compat.proto import event_pb2
from tensorboard.plugins.text import text_plugin
from tensorboard.util import tensor_util

WORDS = "the a cat dog *bird* <house> tree_of river sees finds likes old_one new big small in on under".split()
RUN = """name: "peer" folder: "run" seed: 1
  model { encoder_layers: 2 decoder_layers: 2 d_model: 32 ffn_dim: 64 num_heads: 2 residual: DEEPNORM }
  data { folder: "data" microbatch { max_target_tokens: 300 max_sentences: 40 } }
  optim { learning_rate: 3e-3 warmup_steps: 20 }
  train { steps: 40 log_every_steps: 1 checkpoint_every_steps: 15 validate_every_steps: 10 validate_sentences: 8
          prometheus_file: "run.prom" }
  decode { beam_size: 1 max_tokens: 20 }
  prepare { text { tsv_file: "train.tsv" source_language: "en" target_language: "xx" }
            text { tsv_file: "dev.tsv" source_language: "en" target_language: "xx" split: "dev" }
            tokenizer { vocab_size: 100 } }"""
failures = []


def report(what, good, figures):
    print(f"{'ok  ' if good else 'FAIL'}  {what}: {figures}", flush=True)
    if not good:
        failures.append(what)


def train(deepnet, root, kill_at=None):
    """The run; ended by a signal that it cannot catch once metrics.jsonl has step `kill_at`."""
    words = [deepnet, "train", "--config", root / "run.textproto", "--root", root, "--log-seconds", "0"]
    process = subprocess.Popen([str(w) for w in words], stderr=subprocess.PIPE, encoding="utf-8")
    for line in process.stderr:
        if kill_at and f"step {kill_at} " in line:
            process.kill()
            break
    process.communicate()
    if process.returncode != (-signal.SIGKILL if kill_at else 0):
        sys.exit(f"train ended with {process.returncode}: {line}")


def make(deepnet, root):
    generator = random.Random(1)
    for name, lines in (("train", 2000), ("dev", 20)):
        with open(root / f"{name}.tsv", "w", encoding="utf-8") as file:
            for _ in range(lines):
                words = generator.choices(WORDS, k=generator.randint(2, 9))
                file.write(f"{' '.join(words)}\t{' '.join(w[::-1] for w in words)}\n")
    (root / "run.textproto").write_text(RUN, encoding="utf-8")
    subprocess.run([deepnet, "prepare", "--config", root / "run.textproto", "--root", root], check=True, capture_output=True)
    train(deepnet, root, kill_at=27)
    with open(max((root / "run/tensorboard").iterdir()), "ab") as file:
        file.write(b"\x30\0\0")  # torn
    train(deepnet, root)


def expected_scalars(records):
    """{tag: {step: value}} without the tags that are always zero."""
    tags = {}
    for record in records:
        rows = [(f"{record['kind']}/", "", record)] + [("", "/" + d["direction"], d) for d in record.get("directions", [])]
        for before, after, row in rows:
            for name, value in row.items():
                number = isinstance(value, (int, float)) or value in ("NaN", "Infinity", "-Infinity")
                if number and name not in ("step", "sentences"):
                    tags.setdefault(before + name + after, {})[record["step"]] = float(value)
    return {tag: steps for tag, steps in tags.items() if any(steps.values())}


def without_leading_zeros(steps):
    shown, seen = {}, False
    for step in sorted(steps):
        seen = seen or steps[step] != 0
        if seen:
            shown[step] = steps[step]
    return shown


def check(root):
    folder, records = root / "run/tensorboard", []
    for line in (root / "run/metrics.jsonl").read_text(encoding="utf-8").rstrip("\n").split("\n"):
        records.append(json.loads(line))
    accumulator = EventAccumulator(str(folder), size_guidance={"tensors": 0}, tensor_size_guidance={"scalars": 0, "text": 0})
    accumulator.Reload()
    tags = accumulator.Tags()["tensors"]
    shown = {tag: [(e.step, tensor_util.make_ndarray(e.tensor_proto)) for e in accumulator.Tensors(tag)] for tag in tags}

    expected, points, wrong = expected_scalars(records), 0, []
    for tag, steps in expected.items():
        found = [(step, float(value)) for step, value in shown.get(tag, [])]
        points += len(found)
        # A start leaves out zeros before the first other value, and several saves may end at one step.
        if not set(without_leading_zeros(steps)) >= {step for step, _ in found} or len(found) != len({s for s, _ in found}):
            wrong.append(f"{tag}: steps {[s for s, _ in found]}")
        missing = [s for s, v in steps.items() if v != 0 and s not in dict(found)]
        different = [s for s, v in found if not numpy.isclose(v, steps[s], rtol=1e-6, equal_nan=True)]
        if missing or different:
            wrong.append(f"{tag}: missing {missing}, different {different}")
    unknown = [t for t in tags if t not in expected and not t.startswith("sample/")]
    report("figures", not wrong and not unknown and points > 300, wrong or unknown or f"{points} of {len(expected)} tags are equal")

    samples = {}
    for record in records:
        for s in record.get("samples", []):
            samples.setdefault(f"sample/{s['direction']}.{s['line']}", []).append((record["step"], s))
    good = len(samples) == 3
    for tag, rows in samples.items():
        good &= [step for step, _ in rows] == [step for step, _ in shown.get(tag, [])] == [10, 20, 30, 40]
        for (_, s), (_, texts) in zip(rows, shown.get(tag, [])):
            page = text_plugin.text_array_to_html(texts, enable_markdown=True)
            for name in ("source", "reference", "translation"):
                text = s[name].replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
                good &= f"<strong>{name}</strong> {text}" in page.replace("</p>", " ").replace("  ", " ")
    report("samples", good, f"{len(samples)} tags; {next(iter(shown[next(iter(samples))]))[1].tolist()}")

    leftover = []
    for file in sorted(folder.iterdir()):
        for bytes_ in RawEventFileLoader(str(file)).Load():
            event = event_pb2.Event.FromString(bytes_)
            again = event_pb2.Event.FromString(bytes_)
            again.DiscardUnknownFields()
            leftover += [] if again == event else [file.name]
    said = subprocess.run([Path(sys.executable).parent / "promtool", "check", "metrics"], encoding="utf-8", capture_output=True,
                          stdin=open(root / "run.prom", encoding="utf-8"))  # fmt: skip
    figures = sum(not line.startswith("#") for line in (root / "run.prom").read_text(encoding="utf-8").rstrip("\n").split("\n"))
    report("promtool", said.returncode == 0 and not said.stderr and figures > 20, said.stderr or f"{figures} figures")
    report("proto fields", not leftover, f"{len(list(folder.iterdir()))} files, unknown fields in {leftover or 'none'}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", default="build/release")
    deepnet = Path(parser.parse_args().build).absolute() / "deepnet"
    with tempfile.TemporaryDirectory(prefix="tensorboard-") as folder:
        make(deepnet, Path(folder))
        check(Path(folder))
    sys.exit(bool(failures))


main()
