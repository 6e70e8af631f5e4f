#!/usr/bin/env python3
"""Draws depth_loss.svg from the second table of docs/benchmarks/depth_2026-11-22.md.

    /usr/bin/python3 docs/design/pictures/depth_loss.py     (Debian: python3-matplotlib)
"""

import re
from pathlib import Path

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams["svg.hashsalt"] = "deepnet"
import matplotlib.pyplot as plt  # noqa: E402

HERE = Path(__file__).parent
ROWS = {  # first words of a row: label, colour
    "DEEPNORM, 500 + 500": ("500 + 500 layers, DeepNorm", "#1f77b4"),
    "POST_LN, 100 + 100": ("100 + 100 layers, Post-LN", "#d62728"),
}
FREQUENCIES = 6.13  # training loss of word frequencies alone, same table

figure, axes = plt.subplots(figsize=(8, 3.2))
for line in (HERE / "../../benchmarks/depth_2026-11-22.md").read_text(encoding="utf-8").split("\n"):
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    if cells[0] in ROWS and len(cells) == 12:
        label, colour = ROWS[cells[0]]
        losses = [float(cell) for cell in cells[1:11]]
        assert all(re.fullmatch(r"\d\.\d\d", cell) for cell in cells[1:11])
        axes.plot(range(50, 501, 50), losses, marker="o", markersize=4, color=colour, label=label)
axes.axhline(FREQUENCIES, color="#777", linestyle="--", linewidth=1)
axes.text(55, FREQUENCIES - 0.04, "word frequencies alone", color="#777", va="top", fontsize=9)
axes.set_xlabel("step")
axes.set_ylabel("nats a target token")
axes.set_xlim(40, 510)
axes.spines[["top", "right"]].set_visible(False)
axes.legend(frameon=False)
figure.tight_layout()
figure.savefig(HERE / "depth_loss.svg", metadata={"Date": None})
