#!/usr/bin/env python3
"""Finds the places where a mistake makes no test fail, by thousands of small mistakes in one build.

  tests/schemata.py build TREE PATTERN [TARGET...]   writes switchable mutants into the .cc files of TREE whose path
                                                     has PATTERN (a regular expression); builds it, or these targets
  tests/schemata.py cover TREE                       runs all tests that are built; notes which mutants each reaches
  tests/schemata.py run TREE [PATTERN [COUNT]]       COUNT mutants, drawn at random, each against tests that reach it
  tests/schemata.py report TREE [PATTERN]            shares of each folder; mutants that nothing reached, that lived

TREE is another clone without uncommitted changes: its sources are rewritten, its build/release is made. Each mutant is
a condition of its own in the program (mutant schemata: Untch, Offutt and Harrold, 1993), which DEEPNET_MUTANT=<id> in a
test's environment switches on: a relation or operator is another, a condition is negated, a statement is left out. A
survivor may be equivalent to the code: somebody decides. A test that does not end counts as red; tests whose status
alone does not say whether they pass (PASS_REGULAR_EXPRESSION) are not asked. tests/mutants.py keeps mistakes for which
a test was written.
"""

import collections
import concurrent.futures
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

OTHER = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "&&": "||", "||": "&&", "+": "-", "-": "+",
         "*": "/", "/": "*", "%": "*", "std::min": "std::max", "std::max": "std::min"}
RELATIONS = ("<", "<=", ">", ">=", "==", "!=", "&&", "||")
OPERATOR = re.compile(r"(?<=[\w)\]>]) (<=|>=|==|!=|&&|\|\||<|>|\+|-|\*|/|%) (?=[\w(\-!*&~])|\b(std::(?:min|max))\b")
# A line that begins so is no statement of its own, or one that is there to find mistakes.
KEYWORDS = re.compile(r"(return|if|for|while|switch|do|case|default|else|using|namespace|struct|class|template|public|private|"
                      r"protected|static|constexpr|break|goto|enum|typedef|friend|explicit|virtual|inline|extern|try|catch|"
                      r"throw|union|operator|static_assert|mutable)\b|[A-Z_]+\(")
STATEMENT = re.compile(r"RETURN_IF_ERROR\(|\+\+|--|[*(]*[A-Za-z_][\w:.>\-\[\]()*&<]*?(\(|\s(=|[+\-*/|&]=|<<=)\s)")
DECLARATION = re.compile(r"(const |auto\b)|(const )?[\w:<>,&* ]*[\w>&*]\s+[&*]?\w+\s*=\s")
COVERAGE_BYTES = 1 << 17  # a mutant each
SECONDS = 30  # of tests for a mutant, but for the first one
EXCLUDED = {"long", "root", "browser", "peers", "bundle", "slurm", "lab", "perfetto"}
SWITCH = f"""#pragma once
#include <cstdlib>
#include <fcntl.h>
#include <sys/mman.h>
inline bool Mutant(int id) {{
  static const int active = std::getenv("DEEPNET_MUTANT") ? std::atoi(std::getenv("DEEPNET_MUTANT")) : -1;
  static char* const reached = []() -> char* {{
    const char* path = std::getenv("DEEPNET_COVERAGE");
    const int file = path ? ::open(path, O_RDWR) : -1;
    if (file < 0) return nullptr;
    return static_cast<char*>(::mmap(nullptr, {COVERAGE_BYTES}, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
  }}();
  if (reached) reached[id] = 1;
  return id == active;
}}
"""


def masked(text):
    """Returns `text` with as many characters: comments are blanks; strings and characters are underscores."""
    words = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])+\'', re.S)

    def mask(found):
        return re.sub(r"[^\n]", " " if found[0].startswith("/") else "_", found[0])

    return words.sub(mask, text)


def closing(text, begin):
    """Returns the place of the bracket that closes that at `begin`."""
    depth = 0
    for place in range(begin, len(text)):
        depth += (text[place] in "([{") - (text[place] in ")]}")
        if depth == 0:
            return place
    raise ValueError("a bracket without its end")


def split_at(text, begin, end, separator):
    """Returns the parts (begin, end) of [begin, end) between separators outside of brackets."""
    parts, depth = [], 0
    for place in range(begin, end):
        depth += (text[place] in "([{") - (text[place] in ")]}")
        if text[place] == separator and depth == 0:
            parts.append((begin, place))
            begin = place + 1
    return [*parts, (begin, end)]


class Source:
    """A file, and what is put into it: mutants that compile, each with the place that an error would name."""

    def __init__(self, path, text, ids, refused):
        self.path, self.text, self.mask, self.ids, self.refused = path, text, masked(text), ids, refused
        self.mutants, self.choices, self.deletions = [], [], []
        self.find()

    def line(self, place):
        return self.text.count("\n", 0, place) + 1

    def flat(self, begin, end):
        """Returns the code of [begin, end) without comments in one line."""
        code = "".join(t if m != " " or t.isspace() else " " for t, m in zip(self.text[begin:end], self.mask[begin:end]))
        return " ".join(code.split())

    def add(self, begin, end, place, change):
        """Returns the id of a mutant of the code at [begin, end), or None where it is known not to compile."""
        key = f"{self.path}:{place}:{change}"
        if key in self.refused:
            return None
        self.mutants.append({"id": self.ids.setdefault(key, len(self.ids)), "key": key, "file": self.path,
                             "line": self.line(place), "lines": [self.line(begin), self.line(end)], "change": change})
        return self.mutants[-1]["id"]

    def expression(self, begin, end, condition=False):
        """Adds the mutants of an expression: each operator is another one; a condition without a relation is negated."""
        while begin < end and self.text[begin].isspace():
            begin += 1
        code = self.mask[begin:end]
        if begin == end or "{" in code or len(split_at(self.mask, begin, end, ",")) > 1:
            return
        operators = [m.span(m.lastindex) for m in OPERATOR.finditer(code)]
        if '"' in self.text[begin:end] or "std::string" in code:  # text has no difference
            operators = [(a, b) for a, b in operators if code[a:b] != "+"]
        variants = []
        for a, b in operators:
            changed = f"{self.flat(begin, begin + a)} {OTHER[code[a:b]]} {self.flat(begin + b, end)}"
            variants.append((self.add(begin, end, begin + a, changed), changed))
        if condition and not any(code[a:b] in RELATIONS for a, b in operators):
            changed = f"!({self.flat(begin, end)})"
            variants.append((self.add(begin, end, begin, changed), changed))
        variants = [(i, changed) for i, changed in variants if i is not None]
        if variants:
            self.choices.append((begin, end, variants))

    def find(self):
        for found in re.finditer(r"\b(if|while|for) \(", self.mask):
            begin = found.end()
            parts = split_at(self.mask, begin, closing(self.mask, begin - 1), ";")
            if found[1] == "for":
                if len(parts) == 3:
                    self.expression(*parts[1])
            elif not re.search(r"[^=!<>]=[^=]", self.mask[slice(*parts[-1])]):
                self.expression(*parts[-1], condition=True)
        for found in re.finditer(r"\breturn ", self.mask):
            end = self.statement_end(found.end())
            value = self.mask[found.end() : end].strip()
            if value in ("true", "false"):
                changed = "false" if value == "true" else "true"
                mutant = self.add(found.end(), end, found.end(), f"return {changed}")
                if mutant is not None:
                    self.choices.append((found.end(), end, [(mutant, changed)]))
            else:
                self.expression(found.end(), end)
        for found in re.finditer(r"(?m)^ +(?=[A-Za-z_*(+\-])", self.mask):
            if re.search(r"([;{}]|(case [^:;]*|default):)$", self.mask[: found.start()].rstrip()[-200:]):
                self.statement(found.end())

    def statement_end(self, begin):
        depth = 0
        for place in range(begin, len(self.mask)):
            depth += (self.mask[place] in "([{") - (self.mask[place] in ")]}")
            if self.mask[place] == ";" and depth == 0:
                return place
            if depth < 0:
                break
        return begin

    def statement(self, begin):
        """Adds the mutants of the statement at `begin`: its value is another, or it is left out."""
        end = self.statement_end(begin)
        code = self.mask[begin:end]
        if end == begin or KEYWORDS.match(code) and not code.startswith("RETURN_IF_ERROR"):
            return
        assigned = re.search(r"(?<![=!<>*/|&])=\s", code)
        if DECLARATION.match(code):
            if assigned and "{" not in code[: assigned.start()] and "constexpr" not in code:
                self.expression(begin + assigned.end(), end)
            return
        if re.match(r"[A-Za-z_][\w:<>,*&()]* [&*]?\w+(\(|\{|$)", code) or not STATEMENT.match(code):
            return
        if assigned and "{" not in code:
            self.expression(begin + assigned.end(), end)
        mutant = self.add(begin, end, begin, f"without {self.flat(begin, end)[:120]}")
        if mutant is not None:
            self.deletions.append((begin, end + 1, mutant))

    def instrumented(self):
        """Returns the text with its switches; lines keep their numbers."""
        insertions, last = [], -1
        for begin, end, variants in sorted(self.choices, key=lambda c: (c[0], -c[1])):
            if begin < last:  # within another one
                gone = {mutant for mutant, _ in variants}
                self.mutants = [m for m in self.mutants if m["id"] not in gone]
                continue
            last = end
            insertions.append((begin, 3, "(" + "".join(f"Mutant({i}) ? ({changed}) : " for i, changed in variants) + "("))
            insertions.append((end, 0, "))"))
        for begin, end, mutant in self.deletions:
            insertions += [(begin, 2, f"if (!Mutant({mutant})) {{ "), (end, 1, " }")]
        text, done = '#include "mutant.h"\n#line 1\n' if insertions else "", 0
        for place, _, code in sorted(insertions):
            text += self.text[done:place] + code
            done = place
        return text + self.text[done:]


class Tree:
    def __init__(self, folder):
        self.root = Path(folder).resolve()
        self.build = self.root / "build/release"
        self.notes = self.root / "build/schemata"  # mutants.json, tests.json, results.json, coverage of each test
        self.notes.mkdir(parents=True, exist_ok=True)

    def read(self, name, otherwise):
        path = self.notes / name
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else otherwise

    def write(self, name, value):
        (self.notes / name).write_text(json.dumps(value), encoding="utf-8")

    def original(self, path):
        return subprocess.run(["git", "show", f"HEAD:{path}"], cwd=self.root, encoding="utf-8", capture_output=True, check=True).stdout

    def tests(self):
        """Returns name -> (command, folder, environment, whether others need it) of the tests that run anywhere."""
        shown = subprocess.run(["ctest", "--test-dir", self.build, "--show-only=json-v1"], encoding="utf-8", capture_output=True)
        tests = {}
        for test in json.loads(shown.stdout)["tests"]:
            has = {p["name"]: p["value"] for p in test.get("properties", [])}
            is_built = "command" in test and Path(test["command"][0]).exists()
            if is_built and not EXCLUDED & set(has.get("LABELS", [])) and not test["name"].endswith("_bench"):
                environment = dict(e.split("=", 1) for e in has.get("ENVIRONMENT", []))
                tests[test["name"]] = (test["command"], has.get("WORKING_DIRECTORY"), environment, "FIXTURES_SETUP" in has)
        return tests


def run_test(test, seconds, **environment):
    """Returns whether the test passed within `seconds`, and how long it took."""
    command, folder, own, _ = test
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        places = {"TMPDIR": scratch, "TEST_TMPDIR": scratch}
        with subprocess.Popen(command, cwd=folder, env={**os.environ, **places, **own, **environment}, stdin=subprocess.DEVNULL,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True) as process:
            try:
                passed = process.wait(seconds) == 0
            except subprocess.TimeoutExpired:
                passed = False
            try:
                os.killpg(process.pid, signal.SIGKILL)  # what the test began and left
            except ProcessLookupError:
                pass
    return passed, time.monotonic() - begin


def build(tree, pattern, *targets):
    changed = subprocess.run(["git", "diff", "HEAD", "--name-only"], cwd=tree.root, encoding="utf-8", capture_output=True).stdout
    if tree.root == Path(__file__).resolve().parents[1] or changed and not (tree.root / "mutant.h").exists():
        sys.exit(f"{tree.root}: not a clone of its own without changes")
    subprocess.run(["git", "checkout", "--quiet", "."], cwd=tree.root, check=True)  # mutants of an earlier build
    for note in tree.notes.iterdir():
        note.unlink()
    files = subprocess.run(["git", "ls-files", "*.cc"], cwd=tree.root, encoding="utf-8", capture_output=True).stdout.split()
    files = [f for f in files if not f.startswith("tests/") and re.search(pattern, f)]
    (tree.root / "mutant.h").write_text(SWITCH, encoding="utf-8")
    subprocess.run(["cmake", "--preset", "release", "-DCMAKE_CXX_FLAGS=-w"], cwd=tree.root, check=True, stdout=subprocess.DEVNULL)
    ids, refused = {}, set()
    while True:
        mutants = []
        for path in files:
            source = Source(path, tree.original(path), ids, refused)
            text = source.instrumented()
            if (tree.root / path).read_text(encoding="utf-8") != text:
                (tree.root / path).write_text(text, encoding="utf-8")
            mutants += source.mutants
        print(f"{len(files)} files, {len(mutants)} mutants", flush=True)
        if len(ids) > COVERAGE_BYTES:
            sys.exit("too many mutants: take fewer files")
        command = ["cmake", "--build", tree.build, "--parallel", str(os.cpu_count()), "--target", *(targets or ["all"])]
        done = subprocess.run([*command, "--", "-k", "0"], cwd=tree.root, encoding="utf-8", capture_output=True)
        tree.write("mutants.json", mutants)
        if done.returncode == 0:
            return
        wrong = collections.defaultdict(set)
        for path, line in re.findall(r"([\w./-]+\.cc):(\d+):\d+: error", done.stdout):
            wrong[os.path.relpath(tree.build / path, tree.root)].add(int(line))
        before = len(refused)
        refused |= {m["key"] for m in mutants if any(m["lines"][0] <= n <= m["lines"][1] for n in wrong[m["file"]])}
        if len(refused) == before:
            sys.exit(done.stdout[-4000:])


def cover(tree):
    tests = tree.tests()
    results = {}

    def one(name):
        reached = tree.notes / name
        reached.write_bytes(bytes(COVERAGE_BYTES))
        results[name] = run_test(tests[name], 1800, DEEPNET_COVERAGE=str(reached))

    for needed in (True, False):
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(one, [name for name, test in tests.items() if test[3] == needed]))
    tree.write("tests.json", results)
    print("red without a mutant, so not asked:", *(name for name, (passed, _) in results.items() if not passed))


def reached_by(tree):
    """Returns the mutants of `tree`, each with the tests that reach it: first those of its name, then the quickest."""
    results = tree.read("tests.json", {})
    coverage = {name: (tree.notes / name).read_bytes() for name, (passed, _) in results.items() if passed}
    mutants = tree.read("mutants.json", [])
    for mutant in mutants:
        stem = Path(mutant["file"]).stem
        tests = [name for name, reached in coverage.items() if reached[mutant["id"]]]
        mutant["tests"] = sorted(tests, key=lambda name: (stem not in name, results[name][1]))
    return mutants, {name: seconds for name, (_, seconds) in results.items()}


def run(tree, pattern="", count="1000"):
    tests = tree.tests()
    mutants, seconds = reached_by(tree)
    results = tree.read("results.json", {})
    left = [m for m in mutants if re.search(pattern, m["file"]) and m["key"] not in results]
    random.Random(1).shuffle(left)

    def one(mutant):
        spent, asked, killer = 0, [], None
        for name in mutant["tests"]:
            if asked and spent + seconds[name] > SECONDS:
                break
            asked.append(name)
            spent += seconds[name]
            if not run_test(tests[name], 30 + 6 * seconds[name], DEEPNET_MUTANT=str(mutant["id"]))[0]:
                killer = name
                break
        results[mutant["key"]] = {"asked": asked, "killer": killer}

    chosen = left[: int(count)]
    for begin in range(0, len(chosen), 50):
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(one, chosen[begin : begin + 50]))
        tree.write("results.json", results)
    report(tree, pattern)


def report(tree, pattern=""):
    results = tree.read("results.json", {})
    shares = collections.defaultdict(collections.Counter)
    for mutant in sorted(reached_by(tree)[0], key=lambda m: (m["file"], m["line"])):
        if not re.search(pattern, mutant["file"]):
            continue
        result = results.get(mutant["key"])
        share = shares[str(Path(mutant["file"]).parent)]
        share.update(mutants=1, unreached=not mutant["tests"], tried=result is not None, killed=bool(result and result["killer"]))
        if not mutant["tests"] or result and not result["killer"]:
            seen = f"lives with {', '.join(result['asked'])}" if mutant["tests"] else "is reached by no test"
            print(f"{mutant['file']}:{mutant['line']}: {mutant['id']}: {mutant['change']} | {seen}")
    for folder, share in sorted(shares.items()):
        print(f"{folder:28}" + "".join(f"{share[name]:6} {name}" for name in ("mutants", "unreached", "tried", "killed")))


if __name__ == "__main__":
    if len(sys.argv) < 3 + (sys.argv[1:2] == ["build"]) or sys.argv[1] not in ("build", "cover", "run", "report"):
        sys.exit(__doc__)
    {"build": build, "cover": cover, "run": run, "report": report}[sys.argv[1]](Tree(sys.argv[2]), *sys.argv[3:])
