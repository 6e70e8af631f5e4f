#!/usr/bin/env python3
"""Who may include whom, and no circles. Prints each violation; exit status 1 if there is any.

A folder may include itself and what stands in its row. A row names folders, or single headers where
only a seam is shared. `launch` and `tests` may include everything. A header and the file of its name
are one room (x.h, x.cc, x.inc, x.cu): rooms that include each other, be it by others, are a knot.
"""

import re
import subprocess
import sys

BASE = ["parallel/base", "proto"]
PARALLEL = ["parallel/exec", "parallel/comm", "parallel/plan"] + BASE
ALLOWED = {
    "proto": [],
    "parallel/base": ["proto"],
    "parallel/plan": BASE,
    "parallel/comm": BASE,
    "parallel/exec": PARALLEL,
    "trainer/kernels": BASE,
    "trainer/model": ["trainer/kernels", "trainer/data/microbatch.h"] + PARALLEL,
    "trainer/data": ["parallel/comm"] + BASE,
    "trainer/optim": ["trainer/kernels", "trainer/model/parameters.h"] + PARALLEL,
    "trainer/checkpoint": ["parallel/comm", "parallel/plan"] + BASE,
    "trainer/decode": ["trainer/model", "trainer/data", "trainer/kernels/native/sampling.h"]
    + ["trainer/kernels/aten.h", "parallel/comm", "parallel/plan"]
    + BASE,
    "trainer/eval": ["trainer/decode", "trainer/data"] + BASE,
    "trainer": ["trainer"] + PARALLEL,
    "launch": ["launch", "trainer"] + PARALLEL,
    "tests": ["tests", "launch", "trainer"] + PARALLEL,
}
OUTSIDE = {  # angle-bracket headers that belong to a few folders only
    r"mpi\.h": ["parallel/comm/mpi_"],
    r"(ATen|c10|torch)/": ["parallel/exec", "trainer", "launch", "tests"],
    r"(cuda|cublas|nccl)": ["parallel/comm/nccl_", "trainer/kernels", "tests/gpu"],
}

# Today's knots; the list may only shrink. The table of kernels is one with its kernels by design.
KNOTS = [
    {"tests/gpu/emulated/" + room for room in ("device", "machine", "memory")},
]
KERNEL_TABLE = "trainer/kernels/native/kernel_table"


def folder_of(path):
    return max((f for f in ALLOWED if path.startswith(f + "/")), key=len, default=None)


def room_of(path):
    return re.sub(r"\.\w+$", "", path)


def knots(graph):
    """Sets of rooms each of which leads to every other one: Tarjan's components."""
    number, low, stack = {}, {}, []

    def visit(room):
        number[room] = low[room] = len(number)
        stack.append(room)
        for other in graph.get(room, ()):
            if other not in number:
                yield from visit(other)
            if other in stack:
                low[room] = min(low[room], low[other])
        if low[room] == number[room]:
            at = stack.index(room)
            knot = set(stack[at:])
            del stack[at:]
            if len(knot) > 1:
                yield knot

    for room in list(graph):
        if room not in number:
            yield from visit(room)


mistakes, graph = [], {}
listed = subprocess.run(
    ["git", "ls-files", "-co", "--exclude-standard"], encoding="utf-8", capture_output=True
)
for path in sorted(p for p in listed.stdout.split() if re.search(r"\.(h|cc|inc|cu)$", p)):
    for number, line in enumerate(open(path, encoding="utf-8"), 1):
        match = re.match(r'\s*#\s*include\s*([<"])([^>"]+)', line)
        if match and match[1] == '"' and folder_of(match[2]):
            if room_of(path) != room_of(match[2]):
                graph.setdefault(room_of(path), set()).add(room_of(match[2]))
            own = folder_of(path)
            if not any(match[2] == a or match[2].startswith(a + "/") for a in ALLOWED[own] + [own]):
                mistakes.append(f"{path}:{number}: {own} may not include {match[2]}")
        for pattern, homes in OUTSIDE.items():
            if match and re.match(pattern, match[2]) and not path.startswith(tuple(homes)):
                mistakes.append(f"{path}:{number}: {match[2]} belongs to {', '.join(homes)}")
left = list(KNOTS)
for knot in knots(graph):
    if knot in left:
        left.remove(knot)
    elif KERNEL_TABLE not in knot or any("/native/" not in room for room in knot):
        mistakes.append("knot: " + " <-> ".join(sorted(knot)))
mistakes += ["untied, take it off the list: " + " <-> ".join(sorted(knot)) for knot in left]
print("\n".join(mistakes) or f"include directions: {len(graph)} rooms, all as the table says")
sys.exit(bool(mistakes))
