#!/usr/bin/env python3
"""Writes parallel text from JSON lines, Parquet, Arrow files and Hugging Face's saved datasets as TSV for `prepare --tsv -`.

  to_tsv.py de-en/*.parquet --source translation.de --target translation.en |
    deepnet prepare --tsv - --from de --to en --set data.folder=data/de-en

FILE is *.parquet, *.arrow, *.jsonl or *.json (an object a line; .gz too, and .zst with pyarrow), or a folder that
datasets.Dataset.save_to_disk or Hugging Face's cache has written. A dot in a column's name goes into a structure. Rows
are written as they are read, in the order of the files. A tab or an end of a line inside a text becomes a space; a row
without source, target or score is left out; both are counted at the end. All but JSON needs `pip install pyarrow`.
Exit codes are those of `deepnet`: 2 for a wrong command line, 4 for data that is missing, damaged or does not fit.
"""

import argparse
import gzip
import importlib
import io
import json
import os
import re
import sys
import zlib
from pathlib import Path

SEPARATORS = re.compile(r"[\t\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")


class BadData(Exception):
    """A file cannot be read as what it is; the text names it."""


def arrow(module="pyarrow"):
    """Returns a module of pyarrow, which JSON does without."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise BadData("pyarrow is not installed: pip install pyarrow") from None


def files_of(path):
    """Returns the files of a saved dataset, in their order, or the file itself."""
    if not path.is_dir():
        return [path]
    state = path / "state.json"
    if state.exists():
        try:
            names = [file["filename"] for file in json.loads(state.read_bytes())["_data_files"]]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise BadData(f"{state}: not the state of a saved dataset: {error}") from None
        for name in names:
            if not isinstance(name, str) or not re.fullmatch(r"[^/\0]+", name) or name in (".", ".."):
                raise BadData(f"{state}: filename {json.dumps(name)}: must be the name of a file beside it")
        return [path / name for name in names]
    found = sorted(path.glob("*.arrow")) or sorted(path.glob("*.parquet"))
    if not found:
        splits = sorted(file.parent.name for file in path.glob("*/*.arrow"))
        raise BadData(f"{path}: no .arrow and no .parquet file" + (f"; name a split: {', '.join(splits)}" if splits else ""))
    return found


def rows_of_json(path):
    """Returns the objects of a file with one a line."""
    if path.suffix == ".zst":
        stream = io.BufferedReader(arrow().input_stream(str(path)))
    else:
        stream = gzip.open(path) if path.suffix == ".gz" else path.open("rb")
    number = 0
    try:
        with stream:
            for number, line in enumerate(stream, 1):
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise BadData(f"{path}:{number}: not an object")
                yield row
    except (OSError, EOFError, zlib.error) as error:
        raise BadData(f"{path}: after line {number}: {error}") from None
    except (ValueError, RecursionError) as error:
        raise BadData(f"{path}:{number}: {error}") from None


def batches_of(path, columns):
    """Returns the record batches of a Parquet or Arrow file."""
    if path.suffix == ".parquet":
        file = arrow("pyarrow.parquet").ParquetFile(path)
        names, there = {column.split(".")[0] for column in columns}, file.schema_arrow.names
        for name in sorted(names.difference(there)):
            raise BadData(f"{path}: no column '{name}'; there are: {', '.join(there)}")
        yield from file.iter_batches(columns=[name for name in there if name in names])
        return
    ipc = arrow("pyarrow.ipc")
    with arrow().memory_map(str(path)) as source:
        try:
            yield from ipc.open_stream(source)  # what Hugging Face writes
        except arrow().ArrowInvalid:
            file = ipc.open_file(source)
            yield from (file.get_batch(i) for i in range(file.num_record_batches))


def rows_of(path, columns):
    """Returns the rows of a file as dictionaries."""
    if re.search(r"\.jsonl?(\.gz|\.zst)?$", path.name):
        yield from rows_of_json(path)
    elif path.suffix in (".parquet", ".arrow"):
        try:
            for batch in batches_of(path, columns):
                yield from batch.to_pylist()
        except (arrow().ArrowException, ValueError, OverflowError) as error:  # the latter of values that Python has not
            raise BadData(f"{path}: {error}") from None
    else:
        raise BadData(f"{path}: not .parquet, .arrow, .jsonl or .json")


def value_of(row, column, place):
    """Returns the value of a column whose name may go into structures by dots, or None."""
    value = row
    for name in column.split("."):
        if value is None:
            return None
        if not isinstance(value, dict) or name not in value:
            there = f"; there are: {', '.join(value)}" if isinstance(value, dict) else ""
            raise BadData(f"{place}: no column '{column}'{there}")
        value = value[name]
    return value


def write(paths, columns, out):
    """Writes all rows. Returns how many were written, left out, and had separators replaced."""
    written = left_out = replaced = 0
    for path in paths:
        for number, row in enumerate(rows_of(path, columns), 1):
            place = f"{path}, row {number}"
            values = [value_of(row, column, place) for column in columns]
            if None in values:
                left_out += 1
                continue
            for column, value in zip(columns[:2], values):
                if not isinstance(value, str):
                    raise BadData(f"{place}: '{column}' is {type(value).__name__}, not text")
            texts = [SEPARATORS.sub(" ", str(value)) for value in values]
            replaced += any(text != str(value) for text, value in zip(texts, values))
            out.write("\t".join(texts).encode("utf-8", "replace") + b"\n")
            written += 1
    return written, left_out, replaced


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--source", required=True, metavar="COLUMN", help="column of the source text")
    parser.add_argument("--target", required=True, metavar="COLUMN", help="column of its translation")
    parser.add_argument("--score", metavar="COLUMN", help="column of a score, for --score-threshold of `deepnet prepare`")
    arguments = parser.parse_args()
    columns = [arguments.source, arguments.target] + ([arguments.score] if arguments.score else [])
    try:
        paths = [file for path in arguments.files for file in files_of(path)]
        written, left_out, replaced = write(paths, columns, sys.stdout.buffer)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing more is written at the end
        return 4
    except (BadData, OSError, EOFError) as error:
        # A name in a file may hold what moves a cursor or sets a title.
        print("error: " + "".join(c if c.isprintable() else "\ufffd" for c in str(error)), file=sys.stderr)
        return 4
    print(f"{written:,} rows; {left_out:,} without a value left out; {replaced:,} with a tab or an end of a line", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
