#!/usr/bin/env python3
"""parallel/ knows no model: the words of one kind of model may not stand in its code or comments.

What a layer costs, keeps and uses is reported by the model through parallel/plan/inventory.h.
"""

import re
import subprocess
import sys

WORDS = re.compile(
    r"(?i:transformer|attention|encoder|decoder|feed.?forward|softmax|embedding|vocabulary|dropout"
    r"|\baten|libtorch|[qkv]_proj|self_attn|layer_?norm)|\bffn|kFfn|\bk(Query|Key|Value|NormGain)\b"
    r"|\btrainer/\w|LayerKind::|Role::"
)
ALLOWED = re.compile(r"kDropout|Dropout:")  # a stream of random numbers in parallel/base/philox.h

listed = subprocess.run(
    ["git", "ls-files", "-co", "--exclude-standard", "parallel/*.h", "parallel/*.cc"],
    encoding="utf-8", capture_output=True, check=True,
)
mistakes = []
files = listed.stdout.split()
for path in files:
    try:
        lines = open(path, encoding="utf-8").read().split("\n")
    except FileNotFoundError:
        continue  # removed, not yet committed
    for number, line in enumerate(lines, 1):
        match = WORDS.search(ALLOWED.sub("", line))
        if match:
            mistakes.append(f"{path}:{number}: {match[0]}: {line.strip()}")
print("\n".join(mistakes) or f"words of parallel/: {len(files)} files, none names a kind of model")
sys.exit(bool(mistakes))
