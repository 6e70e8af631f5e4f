"""Downloads over HTTP that survive a slow, cut or lying server.

A file grows as NAME.part beside NAME.part.json, which says where it came from and which version it is; a later call
goes on at its end, if the server gives ranges of that same version. It is renamed to NAME once its size and SHA-256
are right. Only the standard library is used.
"""

import hashlib
import http.client
import json
import os
import re
import shutil
import sys
import time
import urllib.error
import urllib.request

LEAST_RATE = 1024  # bytes a second; a connection that gives less for a whole time-out is given up
NOT_THERE = (401, 403, 404, 410)


class Trouble(Exception):
    """What ends the program, with its exit code."""

    def __init__(self, message, code=4):
        super().__init__(message)
        self.code = code


class NotThere(Trouble):
    """No server has the file."""


class Corrupt(Exception):
    """The file is not what it should be, or cannot be unpacked."""


def say(text):
    """Says it on standard error, without what moves a cursor or sets a title: servers and archives choose words of it."""
    print("".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in str(text)), file=sys.stderr, flush=True)


def read_notes(path):
    """The object in a file of JSON that an earlier call wrote; {} if there is none, or it is damaged."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def number_in(pattern, text):
    """The number that `pattern` has as a group in a header's whole text, or None."""
    found = re.fullmatch(pattern, text or "")
    return int(found[1]) if found else None


def length_of(answer):
    """The Content-Length of an answer, or None: it has none."""
    text = answer.headers["Content-Length"]
    length = number_in("([0-9]{1,18})", text)
    if text and length is None:
        raise ConnectionError(f"the server says a Content-Length of '{text[:40]}'")
    return length


def megabytes(count):
    return f"{count / 1e6:,.1f} MB"


def check_space(folder, needed, what):
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise Trouble(f"{folder}: {what} takes {megabytes(needed)}, free are {megabytes(free)}")


def open_url(url, timeout, headers=None, method="GET"):
    try:
        request = urllib.request.Request(url, headers={"User-Agent": "deepnet-fetch", **(headers or {})}, method=method)
        return urllib.request.urlopen(request, timeout=timeout)
    except ValueError as error:  # of an address, perhaps one that a server leads to
        raise http.client.InvalidURL(f"no address: {error}") from error


def remote_size(urls, timeout):
    """The size that the first answering server gives, or None."""
    for url in urls:
        try:
            with open_url(url, timeout, method="HEAD") as answer:
                length = length_of(answer)
        except (OSError, http.client.HTTPException):
            continue
        if length is not None:
            return length
    return None


class Part:
    """NAME.part and what is known of it."""

    def __init__(self, target):
        self.path = target.with_name(target.name + ".part")
        self.note_path = target.with_name(target.name + ".part.json")

    def bytes(self):
        return self.path.stat().st_size if self.path.exists() else 0

    def note(self):
        """What start() has written, as far as it can stand in a header."""
        notes = read_notes(self.note_path)
        return {k: v for k, v in notes.items() if isinstance(v, str) and re.fullmatch("[ -~\xa0-\xff]*", v)}

    def start(self, url, answer):
        """Forgets what there is: what follows comes from `answer`."""
        self.path.unlink(missing_ok=True)
        note = {"url": url, "etag": answer.headers["ETag"], "modified": answer.headers["Last-Modified"]}
        self.note_path.write_text(json.dumps(note), encoding="utf-8")

    def remove(self):
        self.path.unlink(missing_ok=True)
        self.note_path.unlink(missing_ok=True)


def range_headers(part, url, known_sum):
    """Headers that ask for the rest of `part`; none where it may be of another file than that of `url`."""
    note = part.note()
    if part.bytes() == 0 or not (note.get("url") == url or known_sum):
        return {}
    headers = {"Range": f"bytes={part.bytes()}-"}
    etag = note.get("etag")
    version = etag if etag and not etag.startswith("W/") else note.get("modified")
    if version and note.get("url") == url:
        headers["If-Range"] = version  # another version comes whole
    elif not known_sum:
        return {}  # nothing would tell that the file has changed
    return headers


def fetch_once(url, part, size, known_sum, timeout):
    """One connection's worth of `part`, which is whole when this returns."""
    headers = range_headers(part, url, known_sum)
    try:
        answer = open_url(url, timeout, headers)
    except urllib.error.HTTPError as error:
        total = number_in(".*/([0-9]{1,18})", error.headers.get("Content-Range"))
        if error.code == 416 and total == part.bytes() > 0:
            return
        if error.code == 416:
            part.remove()
        raise
    with answer:
        begin = number_in("bytes ([0-9]{1,18})-.*", answer.headers["Content-Range"])
        if answer.status != 206 or begin != part.bytes():
            if answer.status == 206:
                part.remove()
                raise ConnectionError("the server sent another range than it was asked for")
            part.start(url, answer)
        copy(answer, part, size, timeout)


def copy(answer, part, size, timeout):
    length = length_of(answer)
    total = None if length is None else part.bytes() + length
    if size and total and total != size:
        part.remove()
        raise Corrupt(f"the server has {total:,} bytes, it should be {size:,}")
    check_space(part.path.parent, length or 0, part.path.name)
    done, window, told = part.bytes(), [time.monotonic(), 0], time.monotonic()
    with open(part.path, "ab") as file:
        while piece := answer.read1(1 << 16):
            try:
                file.write(piece)
            except OSError as error:
                raise Trouble(f"cannot write {part.path}: {error.strerror}") from error
            done += len(piece)
            window[1] += len(piece)
            now = time.monotonic()
            if now - window[0] > timeout:
                if window[1] < LEAST_RATE * (now - window[0]):
                    raise TimeoutError(f"{window[1]} bytes in {now - window[0]:.1f} s")
                window = [now, 0]
            if now - told > 30:
                say(f"  {part.path.name}: {megabytes(done)}" + (f" of {megabytes(total)}" if total else ""))
                told = now
    if total is not None and done < total:
        raise ConnectionError(f"cut after {done:,} of {total:,} bytes")


def check(path, size, sha256):
    if size and path.stat().st_size != size:
        raise Corrupt(f"it has {path.stat().st_size:,} bytes, it should be {size:,}")
    if sha256:
        with open(path, "rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != sha256:
            raise Corrupt(f"its SHA-256 is {found}, it should be {sha256}")


def download(urls, target, size, sha256, options):
    """Leaves the file at `target`. `urls` are servers of the same file, the preferred one first.

    Fails with NotThere if no server has it; with Trouble if none answers `options.retries` times in a row, or if what
    they give is corrupt, each time from the start.
    """
    part, urls, turn, failures, corrupt = Part(target), list(urls), 0, 0, 0
    while True:
        url = urls[turn % len(urls)]
        before = part.bytes()
        wait = 0
        try:
            fetch_once(url, part, size, sha256 is not None, options.timeout)
            check(part.path, size, sha256)
            break
        except Corrupt as error:
            part.remove()
            corrupt += 1
            if corrupt > len(urls):
                raise Trouble(f"{url}: corrupt again: {error}") from error
            say(f"{url}: corrupt: {error}; fetching it anew")
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, urllib.error.HTTPError) and error.code in NOT_THERE:
                say(f"{url}: {error}")
                urls.remove(url)
                if not urls:
                    raise NotThere(f"{url.rsplit('/', 1)[1]}: no server has it; the last one said: {error}") from error
                continue
            failures = failures + 1 if part.bytes() <= before else 1
            if failures > options.retries:
                raise Trouble(f"{url}: given up after {failures} tries: {error or type(error).__name__}") from error
            wait = min(60, options.pause * 2 ** min(failures - 1, 60))
            asked = number_in("([0-9]{1,18})", (getattr(error, "headers", None) or {}).get("Retry-After"))
            wait = max(wait, min(600, asked or 0))
            say(f"{url}: {error or type(error).__name__}; again in {wait:.1f} s")
        turn += 1
        time.sleep(wait)
    with open(part.path, "rb") as file:
        os.fsync(file.fileno())
    os.replace(part.path, target)
    part.note_path.unlink(missing_ok=True)
