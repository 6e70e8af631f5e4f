"""Made-up results of every experiment: Post-LN fails from 18 layers on, ReZero diverges from 50 on."""

import math
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "launch" / "lab"))

import experiments as E  # noqa: E402  found by the path above
import results as R  # noqa: E402

START, FREQUENCIES = 8.9, 6.15


def diverges(cell):
    return cell.series == "rezero" and cell.x >= 50


def final_nll(cell):
    if cell.series.startswith("post-ln") and cell.x >= 18:
        return FREQUENCIES + 0.01
    return 5.9 - 0.06 * math.log10(max(1.0, cell.x)) + len(cell.series) * 0.02 + 0.013 * cell.seed


def steps_of(cell):
    end, loss = 120 if diverges(cell) else 300, final_nll(cell)
    return [
        {"kind": "train", "step": s, "nll": loss + (START - loss) * math.exp(-(s - 10) / 45), "seconds": 0.1 * s}
        for s in range(10, end + 1, 10)
    ]


def instruments_of(cell):
    growth = 0.2 if cell.series == "deepnet" else 1.0
    records = []
    for step in range(1, 31):
        names = [f"decoder.layers.{layer}" for layer in range(int(cell.x))]
        norms = [math.exp(-growth * (cell.x - 1 - layer) / 4) for layer in range(int(cell.x))]
        update = growth * (1 - math.exp(-step / 6)) * cell.x**growth
        records.append(
            {
                "kind": "instruments",
                "step": step,
                "model_update": update,
                "layers": [
                    {"name": n, "gradient_norm": g, "weight_norm": 2.0, "update_norm": 0.1} for n, g in zip(names, norms)
                ],
                "sublayers": [
                    {"name": f"{n}.{block}", "norm_input": 8 + growth * step * 0.1, "stream_share": 0.5}
                    for n in names
                    for block in ("self_attn", "ffn")
                ],
            }
        )
    return records


def test_of(cell, matrix):
    languages = ("en", "es", "fr", "it")
    pairs = [(a, b) for a in languages for b in languages if a != b and (matrix or (a, b) == ("es", "en"))]
    loss = final_nll(cell)
    return {
        "kind": "evaluate",
        "nll": loss,
        "bleu": 0.3,
        "spbleu": 4.2,
        "directions": [
            {"direction": f"{a}-{b}", "sentences": 200, "nll": loss, "spbleu": float(ord(a[0]) % 7 + ord(b[1]) % 5)}
            for a, b in pairs
        ],
    }


def sample_cell(experiment, cell):
    done = {
        "name": cell.name,
        "group": cell.group,
        "series": cell.series,
        "x": cell.x,
        "y": cell.y,
        "seed": cell.seed,
        "recipe": cell.recipe,
        "sets": list(cell.sets),
        "commands": [f"deepnet train --config {cell.recipe}"],
        "run": {},
        "status": R.DIVERGED if diverges(cell) else R.DONE,
        "exit_code": 7 if diverges(cell) else 0,
        "error": "",
        "parameters": 1234567,
        "seconds": 31.0,
        "steps": steps_of(cell),
        "instruments": instruments_of(cell),
        "validations": [{"step": 300, "nll": final_nll(cell) + 0.05}],
    }
    if not diverges(cell):
        done["test"] = test_of(cell, experiment.name == "table3")
    return done


def sample_result(name, seeds=1):
    experiment = E.make_experiment(name, seeds=seeds)
    cells = [sample_cell(experiment, cell) for cell in experiment.cells]
    return {
        "experiment": name,
        "size": "small",
        "version": "0.1.0",
        "machine": "2 cores, 1 a run",
        "seeds": seeds,
        "command": f"launch/lab/lab.py run {name}",
        "cells_planned": len(cells),
        "cells": cells,
        "data": {
            "folder": "runs/quickstart/data",
            "pairs": 130931,
            "vocabulary_size": 4008,
            "languages": ["en", "es", "fr", "it"],
            "word_frequency_nll": FREQUENCIES,
            "word_frequency_dev_nll": FREQUENCIES,
            "word_frequency_test_nll": FREQUENCIES,
        },
    }
