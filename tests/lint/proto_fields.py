#!/usr/bin/env python3
"""Every message, enum, field and enum value of proto/ has a comment, beside it or above it.

The comment of a number in a specification (a message named ...Spec) also says its default, that it is
required, or at least its unit or range; looked for by such words.
"""

import re
import subprocess
import sys

FIELD = re.compile(r"^\s+(?:repeated |optional )?[\w.<>, ]+ (\w+) = \d+(?: \[.*\])?;(.*)$")
VALUE = re.compile(r"^\s+([A-Z][A-Z0-9_]*) = -?\d+;(.*)$")
NUMBER = re.compile(r"^\s+(?:bool|double|u?int(?:32|64)) ")
SAYS = re.compile(r"default|required|\bonly\b|at (?:least|most)|[<>]=|multiple of|features|rows")
BLOCK = re.compile(r"^\s*(?:message|enum|oneof) (\w+) \{")
mistakes, fields = [], 0
listed = subprocess.run(["git", "ls-files", "proto/*.proto"], encoding="utf-8", capture_output=True)
for path in listed.stdout.split():
    message, lines = "", open(path, encoding="utf-8").read().split("\n")
    for i, line in enumerate(lines):
        above = lines[i - 1].strip().startswith("//") if i else False
        field = FIELD.match(line) or VALUE.match(line)
        if field:
            fields += 1
            if not re.search(r"//\s*\S", field[2]) and not above:
                mistakes.append(f"{path}:{i + 1}: {field[1]} has no comment")
            if message.endswith("Spec") and NUMBER.match(line) and not SAYS.search(field[2]):
                mistakes.append(
                    f"{path}:{i + 1}: {field[1]} says neither default nor unit nor range"
                )
        block = BLOCK.match(line)
        message = block[1] if block else message
        # A message named as its file's subject may be described by the file's opening comment.
        if block and not above and not lines[0].startswith("//"):
            mistakes.append(f"{path}:{i + 1}: {block[1]} has no comment")
print("\n".join(mistakes) or f"proto comments: {fields} fields and values, all described")
sys.exit(bool(mistakes))
