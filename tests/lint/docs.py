#!/usr/bin/env python3
"""Links in the documentation lead somewhere, and docs/clusters.md names only what there is: commands, flags, fields,
files, exit codes, and texts that the program really prints."""

import re
import subprocess
import sys
from pathlib import Path

PAGE = "docs/clusters.md"
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

for mistake in mistakes:
    print(mistake, file=sys.stderr)
print(f"docs: {len(quoted)} quotations of {PAGE}")
sys.exit(1 if mistakes else 0)
