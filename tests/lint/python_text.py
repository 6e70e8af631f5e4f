#!/usr/bin/env python3
"""Python reads and writes text as UTF-8, whatever the user's locale, and a line of it ends with a line feed.

Each call that opens text names its encoding. str.splitlines() also cuts at U+2028, U+0085, form feeds and others,
which stand within the lines that the program writes.
"""

import ast
import subprocess
import sys
from pathlib import Path

STREAMS = {"run", "Popen", "check_output", "check_call", "call"}


def constant(node):
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def opens_text(call):
    """True if `call` opens text and does not say of which encoding."""
    named = {k.arg: k.value for k in call.keywords}
    if "encoding" in named or None in named:
        return False
    words = [constant(a) for a in call.args]
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name in ("read_text", "write_text"):
        return len(words) < (1 if name == "read_text" else 2)
    if name in STREAMS:
        return "text" in named or "universal_newlines" in named
    mode = constant(named["mode"]) if "mode" in named else None
    if name == "open" and isinstance(call.func, ast.Name):
        mode = mode or (words[1] if len(words) > 1 else "r")
    elif name == "open":  # Path.open(), gzip.open() and others, which open bytes if no mode is there
        modes = [w for w in words if w and set(w) <= set("rwaxbt+")]
        mode = mode or (modes[-1] if modes else "b" if words else "r")
        mode = mode if "t" in mode or len(words) < 2 else "b"
    elif name in ("NamedTemporaryFile", "TemporaryFile", "fdopen"):
        mode = mode or next((w for w in words if w), "b")
    return bool(mode) and "b" not in mode and "|" not in mode and ":" not in mode


def main():
    command = ["git", "ls-files", "-co", "--exclude-standard", "*.py"]
    files = subprocess.run(command, capture_output=True, encoding="utf-8", check=True).stdout.split()
    mistakes = []
    for path in filter(Path.is_file, map(Path, files)):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and opens_text(node):
                mistakes.append(f"{path}:{node.lineno}: text without its encoding")
            if isinstance(node, ast.Attribute) and node.attr == "splitlines":
                mistakes.append(f"{path}:{node.lineno}: splitlines() cuts within lines: split(\"\\n\")")
    print("\n".join(mistakes) or f"encodings: {len(files)} files of Python")
    sys.exit(bool(mistakes))


main()
