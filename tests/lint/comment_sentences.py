#!/usr/bin/env python3
"""Counts comment sentences that begin with Of, Whether, Who, What or That and have no main clause.

"Of the step that was just taken." says nothing by itself; "Records the step that was just taken."
does. A sentence is counted if it begins with one of these words and, for What, Who and That, has
fewer than two finite verbs, or, for Of and Whether, none behind a comma. Exit status 1 over LIMIT.
"""

import re
import subprocess
import sys

LIMIT = 0
VERBS = (
    "is are was were has have had does do did can could may might must will would should needs need takes "
    "take holds hold makes make says say goes go comes come keeps keep gives give reads read writes write "
    "waits wait knows know stands stand counts count sends send gets get ends end begins begin fits fit "
    "costs cost stays stay follows follow lies lie wants want becomes become belongs belong sees see "
    "depends depend remains remain fails fail happens happen means mean serves serve uses use sums adds"
).split()
VERB = re.compile(r"\b(" + "|".join(VERBS) + r")\b(?!-)")
START = re.compile(r"(?:Of|Whether|Who|What|That)\b")


def lacks_main_clause(sentence):
    word = sentence.split()[0]
    verbs = len(VERB.findall(sentence))
    if word in ("Of", "Whether"):
        return "," not in sentence or not VERB.search(sentence.split(",", 1)[1])
    if word == "That" and re.match(r"That (is|was|one|way|would|makes|takes|costs|needs|gives|keeps)\b", sentence):
        return False
    return verbs < 2


def comment_blocks(path):
    """Yields (line number, text) of runs of `//` lines and of trailing comments."""
    block, first = [], 0
    for number, line in enumerate(open(path, encoding="utf-8"), 1):
        whole = re.match(r"\s*//+ ?(.*)", line)
        if whole:
            first = first if block else number
            block.append(whole[1])
            continue
        if block:
            yield first, " ".join(block)
            block = []
        trailing = re.search(r"[;,{})] +// (.*)", line)
        if trailing:
            yield number, trailing[1]
    if block:
        yield first, " ".join(block)


listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], encoding="utf-8", capture_output=True)
found = total = 0
for path in sorted(p for p in listed.stdout.split() if re.search(r"\.(h|cc|inc|cu|proto)$", p)):
    for number, text in comment_blocks(path):
        for sentence in re.split(r"(?<=[.:;!?]) +(?=[A-Z])", text):
            total += 1
            if START.match(sentence) and lacks_main_clause(sentence):
                found += 1
                print(f"{path}:{number}: {sentence}")
print(f"comments: {found} of {total} sentences lack a main clause")
sys.exit(found > LIMIT)
