#!/usr/bin/env python3
"""Links in the documentation lead somewhere; docs/clusters.md names only what there is: commands, flags, fields, files,
exit codes, and texts that the program really prints; docs/design/input.md names every file that reads and every variable.
A name that a page quotes beside a file (`Train` (`trainer/trainer.h`)), or with its class (`Trainer::Run`), is there."""

import re
import subprocess
import sys
from pathlib import Path

PAGE = "docs/clusters.md"
INPUT = "docs/design/input.md"
READS = {  # what reads from outside, or makes numbers and messages of bytes
    r"(launch|parallel|trainer)/.*\.(cc|h)": r"getenv|\bifstream\b|std::cin|\brecv\(|\bf?open\(|(MappedFile|LineReader)::Open\("
    r"|\bRead(WholeFile|FileOrPipe|At|JsonText)\(|Parse(TextProto|FromString|FromArray)\(|JsonStringTo\w+\(|SimpleAto\w\("
    r"|from_chars\(|\b(sto(i|l|ul|d|f)|ato(i|l|f)|strto\w+)\(|LoadFromSerializedProto|MPI_Irecv|ncclRecv",
    r"launch/.*\.py": r"\bopen\(|read_(text|bytes)\(|json\.load|environ\b|subprocess\.|urlopen",
    r"launch/.*\.(sh|sbatch|awk)": r"\$\{?(?!ORIGIN)[A-Z]{3}|scontrol|FILENAME",
}
FUZZED = Path("tests/fuzz/corpus")
SHELLS_OWN = {"SECONDS", "PIPESTATUS", "PWD", "USER", "ORIGIN"}  # the last is a linker's
OTHERS = ("mpirun", "ORTE", "SIGTERM", "code 205")  # cells of the table of symptoms that quote another program

mistakes = []
tracked = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], encoding="utf-8", capture_output=True).stdout.split("\n")


def read(pattern):
    """The text of all tracked files whose name matches."""
    return "\n".join(Path(f).read_text(encoding="utf-8") for f in tracked if re.fullmatch(pattern, f) and Path(f).is_file())


def anchors(path):
    heads = re.findall(r"^#+ (.*)", path.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", head).strip().lower().replace(" ", "-") for head in heads}


for name in tracked:
    if not name.endswith(".md") or not Path(name).is_file():
        continue
    for link in re.findall(r"\]\(([^)\s]+)\)", Path(name).read_text(encoding="utf-8")):
        file, _, anchor = link.partition("#")
        if ":" in file:
            continue
        target = Path(name).parent / file if file else Path(name)
        if not target.exists():
            mistakes.append(f"{name}: {link}: there is no such file")
        elif anchor and target.suffix == ".md" and anchor not in anchors(target):
            mistakes.append(f"{name}: {link}: there is no such heading")

code = read(r"(launch|parallel|trainer|tests)/.*\.(h|cc|cu|inc)")
for name in tracked:
    text = Path(name).read_text(encoding="utf-8") if re.fullmatch(r"(docs|launch|tests)/.*\.md|\w+\.md", name) else ""
    for quote, file in re.findall(r"`([\w:.]+)`\s\((?:in )?`((?:launch|parallel|proto|tests|trainer)/[\w./-]+)`", text):
        # A header's name stands for its implementation, too.
        if not re.search(rf"\b{re.split(r':|[.]', quote)[-1]}\b", read(re.escape(re.sub(r"\.\w+$|/$", "", file)) + r"(\.\w+|/.*)?")):
            mistakes.append(f"{name}: `{quote}` (`{file}`): it is not there")
    for scope, member in re.findall(r"`([A-Z]\w+)::(\w+)\(?\)?`", text):
        inside = rf"\b(class|struct|enum) ({scope}\b|class {scope}\b)[^;]*?\{{.*?\b{member}\b"
        if f"{scope}::{member}" not in code and not re.search(inside, code, re.DOTALL):
            mistakes.append(f"{name}: `{scope}::{member}`: there is no such member")

page = Path(PAGE).read_text(encoding="utf-8")
quoted = re.findall(r"`([^`\n]+)`", page) + re.findall(r"^    (.*)", page, re.M)
launch, protos = read(r"launch/.*\.(cc|h)"), read(r"proto/.*\.proto")
for text in quoted:
    for path in re.findall(r"(?<![\w/])(?:launch|tests|docs|proto)/[\w./-]+", text):
        if not Path(path).exists():
            mistakes.append(f"{PAGE}: `{text}`: there is no {path}")
    for command in re.findall(r"\bdeepnet ([a-z]+)", text):
        if f'.name = "{command}"' not in launch:
            mistakes.append(f"{PAGE}: `{text}`: deepnet has no {command}")
    for flag in re.findall(r"--([a-z-]+)", text.partition("deepnet ")[2]):
        if f'"{flag}"' not in launch:
            mistakes.append(f"{PAGE}: `{text}`: deepnet has no --{flag}")
    for field in re.findall(r"(?<![\w/])(?:cluster|compute|data|parallel|train)\.([a-z_]+)\b", text):
        if not re.search(rf"\b{field} = \d+;", protos):
            mistakes.append(f"{PAGE}: `{text}`: no field {field}")

# Adjacent literals are one text; what a program fills in is left out by the page.
sources = re.sub(r'"\s*"', "", read(r"(launch|parallel|trainer)/.*\.cc"))
symptoms = page.partition("## Symptoms")[2]
for cell in re.findall(r"^\| (.*?) \| ", symptoms, re.M):
    if any(word in cell for word in OTHERS):
        continue
    for text in re.findall(r"`([^`]+)`", cell):
        pieces = re.split(r"\b\d+\b", text)
        mistakes += [f"{PAGE}: nothing prints `{p.strip()}`" for p in pieces if p.strip() not in sources]

said = set(re.findall(r"^\| (\d+) \|", read("README.md"), re.M))
listed = page.partition("## What exit codes")[2].partition("\n## ")[0]
here = set(re.findall(r"\d+", " ".join(re.findall(r"^\| ([\d, ]+) \|", listed, re.M)))) - {"205"}
if here != said - {"1"}:
    mistakes.append(f"{PAGE}: exit codes {sorted(here)}, README has {sorted(said)}")

page = Path(INPUT).read_text(encoding="utf-8")
named = set(re.findall(r"`((?:launch|parallel|proto|tests|trainer)/[\w./-]+)", page))
tests = read(r"tests/.*\.cc")
mistakes += [f"{INPUT}: there is no {path}" for path in named if not Path(path).exists()]
mistakes += [f"{INPUT}: there is no test {suite}.{case}" for suite, case in re.findall(r"`([A-Z]\w+)\.([A-Z]\w+)`", page)
             if f"{suite}, {case})" not in tests]  # fmt: skip
fuzzed = set(re.findall(r"`(\w+)`", " ".join(re.findall(r"[Ff]uzzed as ([^|]*)", page))))
mistakes += [f"{INPUT}: {name}: no such target, or it is not named" for name in fuzzed ^ {p.name for p in FUZZED.iterdir()}]
for name in tracked:
    calls = next((READS[pattern] for pattern in READS if re.fullmatch(pattern, name)), "")
    text = Path(name).read_text(encoding="utf-8") if calls and Path(name).is_file() else ""
    if calls and re.search(calls, text) and not {name, name.removesuffix(".h") + ".cc"} & named:
        mistakes.append(f"{INPUT}: {name} reads ({re.search(calls, text)[0]}) and is not named")
    variables = set()
    if name.endswith((".cc", ".h")) and re.search(r"getenv|\bEnvironment\b", text) and not name.startswith("launch/commands/"):
        variables = set(re.findall(r'"([A-Z][A-Z0-9_]{2,})"', re.sub(r'(setenv\("\w+"), "\w+"', r"\1", text)))
    elif not name.endswith((".cc", ".h")):
        variables = set(re.findall(r"\$\{?([A-Z][A-Z0-9_]{2,})|environ(?:\.get\(|\[)\"(\w+)", text)) if text else set()
        variables = {first or second for first, second in variables} - SHELLS_OWN
    mistakes += [f"{INPUT}: {name} reads {v}, which is not named" for v in sorted(variables) if f"`{v}`" not in page]

# The table of operations: a family's files follow from its name, but for those that its cells say instead.
KERNELS = "docs/design/compute.md"
table = read(KERNELS).partition("## Where an operation stands")[2].partition("\n## ")[0]
placed = []
for family, operations, cpu, gpu in re.findall(r"^\| `?(\w+)`? \| (`.*?) \| (.*?) ?\| (.*?) ?\|$", table, re.M):
    placed += re.findall(r"`(\w+)`", operations)
    files = {} if family == "none" else {"native": cpu.startswith("none"), "cuda": gpu.startswith("none")}
    for folder, none in files.items():
        cell = gpu if folder == "cuda" else cpu
        kernel = f"trainer/kernels/{folder}/{family}"
        test = f"tests/gpu/kernels/{family}_test.cc" if folder == "cuda" else f"tests/trainer/kernels/native/{family}_test.cc"
        wanted = [f"{kernel}.h", f"{kernel}.cc", test] if folder == "native" else [f"{kernel}.cu", test]
        if folder == "cuda" and f"{family}.cc" in cell:
            wanted = [f"{kernel}.h", f"{kernel}.cc"]
        wanted += [p if "/" in p else f"trainer/kernels/{folder}/{p}" for p in re.findall(r"`([\w/]+\.\w+)`", cell)]
        missing = [path for path in wanted if not none and not Path(path).exists()]
        mistakes += [f"{KERNELS}: {family}: there is no {path}" for path in missing]
        if none and (there := list(Path().glob(f"{kernel}.*"))):
            mistakes.append(f"{KERNELS}: {family}: there is a {there[0]}")
said = re.findall(r"^  virtual [\w:<> ]+?[ &*](\w+)\(", read(r"trainer/kernels/ops\.h"), re.M)
for operation in sorted(set(placed) ^ set(said)) + [o for o in set(placed) if placed.count(o) > 1]:
    mistakes.append(f"{KERNELS}: {operation}: is not in ops.h, or has no place or two")

for mistake in mistakes:
    print(mistake, file=sys.stderr)
print(f"docs: {len(quoted)} quotations of {PAGE}, {len(named)} files in {INPUT}")
sys.exit(1 if mistakes else 0)
