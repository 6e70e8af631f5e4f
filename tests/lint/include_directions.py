#!/usr/bin/env python3
"""Who may include whom, and no circles. Prints each violation; exit status 1 if there is any.

A folder may include itself and what stands in its row. A row names folders, or single headers where
only a seam is shared. `launch` and `tests` may include everything.
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
    + ["parallel/comm", "parallel/plan"]
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


def folder_of(path):
    return max((f for f in ALLOWED if path.startswith(f + "/")), key=len, default=None)


def circles(graph, node, path, done):
    if node in path:
        yield path[path.index(node) :] + [node]
    elif node not in done:
        for other in graph.get(node, []):
            yield from circles(graph, other, path + [node], done)
        done.add(node)


mistakes, graph = [], {}
listed = subprocess.run(
    ["git", "ls-files", "-co", "--exclude-standard"], encoding="utf-8", capture_output=True
)
for path in sorted(p for p in listed.stdout.split() if re.search(r"\.(h|cc|inc|cu)$", p)):
    for number, line in enumerate(open(path, encoding="utf-8"), 1):
        match = re.match(r'\s*#\s*include\s*([<"])([^>"]+)', line)
        if match and match[1] == '"' and folder_of(match[2]):
            graph.setdefault(path, []).append(match[2])
            own = folder_of(path)
            if not any(match[2] == a or match[2].startswith(a + "/") for a in ALLOWED[own] + [own]):
                mistakes.append(f"{path}:{number}: {own} may not include {match[2]}")
        for pattern, homes in OUTSIDE.items():
            if match and re.match(pattern, match[2]) and not path.startswith(tuple(homes)):
                mistakes.append(f"{path}:{number}: {match[2]} belongs to {', '.join(homes)}")
done = set()
for node in list(graph):
    mistakes += ["circle: " + " -> ".join(c) for c in circles(graph, node, [], done)]
print("\n".join(mistakes) or f"include directions: {len(graph)} files, all as the table says")
sys.exit(bool(mistakes))
