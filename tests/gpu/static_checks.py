#!/usr/bin/env python3
"""What nvcc and ptxas say of every kernel without a GPU: registers, shared memory, occupancy; spills are refused.

  tests/gpu/static_checks.py [--nvcc PATH] [--arch N]... [--out PAGE.md] [FILE.cu...]

Compiles each .cu of trainer/kernels/cuda, or those that are named, for compute capabilities 8.0, 9.0 and 10.0 and prints
a table. --out also writes it as a page. The PTX of 10.0, which programs carry for GPUs that are newer, is assembled for
12.0 too. Exit status 1 if a kernel spills registers, or takes more than 48 KiB of shared memory, or does not compile; 0,
with a word, where there is no nvcc.

Occupancy is what registers, static shared memory and the greatest block (__launch_bounds__) leave room for on a
multiprocessor, with all of its shared memory free for kernels, as cuda_occupancy.h has it.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# As cmake/DeepnetCuda.cmake compiles.
FLAGS = ["-std=c++20", "-O3", "--fmad=false", "--expt-relaxed-constexpr", "-Xcompiler=-Wall", "-I", str(ROOT)]
SHARED_BYTES = {80: 164 << 10, 90: 228 << 10, 100: 228 << 10}  # of a multiprocessor
PTX, NEWER = 100, 120  # the virtual architecture that programs carry, and one that is compiled from it
RESERVED_BYTES = 1 << 10  # of shared memory, for each block
MAX_SHARED_BYTES = 48 << 10
REGISTERS, MAX_WARPS, MAX_BLOCKS, PARTITIONS = 1 << 16, 64, 32, 4


def occupancy(arch, registers, shared, threads):
    """Blocks of a multiprocessor at a time."""
    warps = (threads + 31) // 32
    of_warp = -(-max(registers, 1) * 32 // 256) * 256
    by_registers = REGISTERS // PARTITIONS // of_warp * PARTITIONS // warps
    by_shared = SHARED_BYTES[arch] // (-(-shared // 128) * 128 + RESERVED_BYTES)
    return min(by_registers, by_shared, MAX_WARPS // warps, MAX_BLOCKS)


def short(name):
    name = re.sub(r"\(anonymous namespace\)::|deepnet::cuda::|deepnet::native::", "", name)
    name = re.sub(r"^void ", "", name)
    depth, end = 0, len(name)
    for i, c in enumerate(name):
        depth += (c == "<") - (c == ">")
        if c == "(" and depth == 0:
            end = i
            break
    return re.sub(r"\((?:int|bool|long)\)", "", name[:end])


def demangled(names):
    if not shutil.which("c++filt"):
        return dict(zip(names, names))
    text = subprocess.run(["c++filt"], input="\n".join(names), encoding="utf-8", capture_output=True, check=True).stdout
    return dict(zip(names, text.split("\n")))


def compiled(nvcc, source, arch, folder):
    """The file of the PTX, or the compiler's words as an error."""
    ptx = Path(folder) / f"{source.stem}_{arch}.ptx"
    made = subprocess.run([nvcc, *FLAGS, "-ptx", "-arch", f"compute_{arch}", str(source), "-o", str(ptx)],
                          encoding="utf-8", capture_output=True)
    if made.returncode:
        sys.exit(f"{source}: nvcc says\n{made.stderr}")
    return ptx


def assembled(nvcc, ptx, arch):
    """[(name, {registers, shared, threads, stores, loads, stack})], or the assembler's words as an error."""
    threads = {}
    for entry in re.finditer(r"\.entry (\w+)\(.*?^\{", ptx.read_text(encoding="utf-8"), re.S | re.M):
        bound = re.search(r"\.maxntid (\d+)(?:, (\d+))?(?:, (\d+))?", entry[0])
        threads[entry[1]] = int(bound[1]) * int(bound[2] or 1) * int(bound[3] or 1) if bound else 1024
    ptxas = str(Path(nvcc).resolve().parent / "ptxas")
    made = subprocess.run([ptxas, "-v", "-arch", f"sm_{arch}", str(ptx), "-o", str(ptx.with_suffix(".cubin"))],
                          encoding="utf-8", capture_output=True)
    if made.returncode:
        sys.exit(f"{ptx.stem}: ptxas says\n{made.stderr}")
    found = []
    for part in re.split(r"Compiling entry function '", made.stderr)[1:]:
        number = lambda pattern: int((re.search(pattern, part) or [0, 0])[1])
        name = part[: part.index("'")]
        found.append((name, {
            "registers": number(r"Used (\d+) registers"), "shared": number(r"(\d+) bytes smem"),
            "stack": number(r"(\d+) bytes stack frame"), "stores": number(r"(\d+) bytes spill stores"),
            "loads": number(r"(\d+) bytes spill loads"), "threads": threads[name]}))
    return found


def rows_of(nvcc, sources, archs):
    """Rows of the table, and what is wrong."""
    rows, mistakes = [], []
    with tempfile.TemporaryDirectory() as folder:
        for source in sources:
            table = {}
            for arch in archs:
                ptx = compiled(nvcc, source, arch, folder)
                for real in [arch, NEWER] if arch == PTX else [arch]:
                    for name, found in assembled(nvcc, ptx, real):
                        table.setdefault(name, {})[real] = found
            names = demangled(list(table))
            for name, by_arch in sorted(table.items(), key=lambda item: short(names[item[0]])):
                what = short(names[name])
                first = next(iter(by_arch.values()))
                cells = [source.stem, f"`{what}`", str(first["threads"]), str(first["shared"])]
                for arch in archs:
                    k = by_arch[arch]
                    blocks = occupancy(arch, k["registers"], k["shared"], k["threads"])
                    warps = blocks * ((k["threads"] + 31) // 32)
                    cells.append(f"{k['registers']}, {blocks}, {100 * warps // MAX_WARPS} %")
                    if k["shared"] > MAX_SHARED_BYTES:
                        mistakes.append(f"{source.name}: {what}: {k['shared']} bytes of shared memory")
                    if blocks == 0:
                        mistakes.append(f"{source.name}: {what}: sm_{arch} has no room for a block")
                for arch, k in by_arch.items():
                    if k["stores"] or k["loads"]:
                        mistakes.append(f"{source.name}: {what}: sm_{arch} spills {k['stores']} bytes out and {k['loads']} in")
                rows.append(cells)
    return rows, mistakes


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--nvcc", default=os.environ.get("CUDACXX") or shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc")
    parser.add_argument("--arch", type=int, action="append")
    parser.add_argument("--out", type=Path)
    parser.add_argument("sources", nargs="*", type=Path)
    args = parser.parse_args()
    if not shutil.which(args.nvcc):
        print("no nvcc here: kernels not checked")
        return 0
    archs = args.arch or sorted(SHARED_BYTES)
    sources = args.sources or sorted((ROOT / "trainer/kernels/cuda").glob("*.cu"))
    rows, mistakes = rows_of(args.nvcc, sources, archs)
    head = ["file", "kernel", "threads", "shared bytes"] + [f"sm_{a}" for a in archs]
    lines = ["| " + " | ".join(cells) + " |" for cells in [head, ["---"] * len(head), *rows]]
    print("\n".join(lines))
    if args.out:
        page = [line for line in lines if "__half" not in line]
        version = subprocess.run([args.nvcc, "--version"], encoding="utf-8", capture_output=True).stdout
        release = re.search(r"release ([\d.]+)", version)
        args.out.write_text(
            "# What the compiler says of the kernels for GPUs\n\n"
            f"Made by `tests/gpu/static_checks.py` with nvcc {release[1] if release else '?'}; no GPU was used. Columns of an architecture:\n"
            "registers of a thread, blocks of a multiprocessor at a time, share of its warps. Dynamic shared memory is not\n"
            f"counted. No kernel spills, nor does the PTX of compute_{PTX} when it is assembled for sm_{NEWER}. Kernels of __half\n"
            "are left out: they are near those of __nv_bfloat16.\n\n" + "\n".join(page) + "\n", encoding="utf-8")
    for mistake in mistakes:
        print(mistake, file=sys.stderr)
    print(f"{len(rows)} kernels of {len(sources)} files, {len(mistakes)} mistakes")
    return bool(mistakes)


if __name__ == "__main__":
    sys.exit(main())
