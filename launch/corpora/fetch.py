#!/usr/bin/env python3
"""Fetches a public corpus and lays it out as `deepnet prepare` takes it.

  fetch.py opus100 --langs de,fr           OUT/opus-100-corpus/v1.0/{supervised,zero-shot}/de-en/opus.de-en-train.de
  fetch.py ccmatrix --pairs de-en          OUT/ccmatrix/de-en/opus.de-en-train.{de,en,scores}
  fetch.py flores --langs de,fr            OUT/flores/de-en/opus.de-en-{dev,test}.de
  fetch.py wmt17                           OUT/wmt17/{train,valid,test,newstest2017}.{en,de}
  fetch.py CORPUS ... --list               what it would fetch, and how much

It can be interrupted and run again: what is there stays, a download goes on where it stopped. Exit codes are those of
`deepnet`: 2 for a wrong command line, 4 for data that is missing, damaged or does not fit, 75 if it was interrupted.
"""

import argparse
import collections
import contextlib
import dataclasses
import fcntl
import gzip
import itertools
import json
import os
import re
import shutil
import signal
import sys
import tarfile
import zipfile
from pathlib import Path

import download
from download import Corrupt, NotThere, Trouble, say

TABLE = Path(__file__).resolve().parent / "archives.tsv"
UNPACKED = 4  # text takes at most this many times the bytes of its archive

ABOUT = {
    "opus100": """\
license   none of its own: a sample of OPUS, whose texts keep the terms of their sources
cite      Zhang, Williams, Titov, Sennrich: Improving Massively Multilingual Neural Machine Translation and Zero-Shot
          Translation, ACL 2020, arXiv:2004.11867
          Tiedemann: Parallel Data, Tools and Interfaces in OPUS, LREC 2012
source    https://opus.nlpl.eu/opus-100.php""",
    "ccmatrix": """\
license   none of its own: mined from Common Crawl, whose terms of use hold; LICENSE in each archive
cite      Schwenk, Wenzek, Edunov, Grave, Joulin, Fan: CCMatrix: Mining Billions of High-Quality Parallel Sentences on
          the Web, ACL 2021, arXiv:1911.04944
          Fan et al.: Beyond English-Centric Multilingual Machine Translation, arXiv:2010.11125
          Tiedemann: Parallel Data, Tools and Interfaces in OPUS, LREC 2012
source    https://opus.nlpl.eu/CCMatrix.php""",
    "flores": """\
license   CC BY-SA 4.0; for evaluation, not for training
cite      NLLB Team: No Language Left Behind, arXiv:2207.04672
          Goyal et al.: The FLORES-101 Evaluation Benchmark, TACL 2022, arXiv:2106.03193
source    https://github.com/facebookresearch/flores (FLORES-200)""",
    "wmt17": """\
license   for research, by the task's page; for other uses ask the owners of Europarl, Common Crawl, News Commentary
cite      Bojar et al.: Findings of the 2017 Conference on Machine Translation (WMT17), 2017, W17-4717
source    http://www.statmt.org/wmt17/translation-task.html""",
}
CCMATRIX = "https://object.pouta.csc.fi/OPUS-CCMatrix/v1/moses/"

# FLORES-200's codes of languages that OPUS calls by two letters; of the others the tag is the code itself.
FLORES_CODES = dict(
    word.split(":")
    for word in """
    af:afr_Latn ak:aka_Latn am:amh_Ethi ar:arb_Arab as:asm_Beng ay:ayr_Latn az:azj_Latn ba:bak_Cyrl be:bel_Cyrl
    bg:bul_Cyrl bm:bam_Latn bn:ben_Beng bo:bod_Tibt bs:bos_Latn ca:cat_Latn cs:ces_Latn cy:cym_Latn da:dan_Latn
    de:deu_Latn dz:dzo_Tibt ee:ewe_Latn el:ell_Grek en:eng_Latn eo:epo_Latn es:spa_Latn et:est_Latn eu:eus_Latn
    fa:pes_Arab ff:fuv_Latn fi:fin_Latn fj:fij_Latn fo:fao_Latn fr:fra_Latn ga:gle_Latn gd:gla_Latn gl:glg_Latn
    gn:grn_Latn gu:guj_Gujr ha:hau_Latn he:heb_Hebr hi:hin_Deva hr:hrv_Latn ht:hat_Latn hu:hun_Latn hy:hye_Armn
    id:ind_Latn ig:ibo_Latn is:isl_Latn it:ita_Latn ja:jpn_Jpan jv:jav_Latn ka:kat_Geor ki:kik_Latn kk:kaz_Cyrl
    km:khm_Khmr kn:kan_Knda ko:kor_Hang ku:kmr_Latn ky:kir_Cyrl lb:ltz_Latn lg:lug_Latn li:lim_Latn ln:lin_Latn
    lo:lao_Laoo lt:lit_Latn lv:lvs_Latn mg:plt_Latn mi:mri_Latn mk:mkd_Cyrl ml:mal_Mlym mn:khk_Cyrl mr:mar_Deva
    ms:zsm_Latn mt:mlt_Latn my:mya_Mymr nb:nob_Latn ne:npi_Deva nl:nld_Latn nn:nno_Latn no:nob_Latn ny:nya_Latn
    oc:oci_Latn om:gaz_Latn or:ory_Orya pa:pan_Guru pl:pol_Latn ps:pbt_Arab pt:por_Latn qu:quy_Latn rn:run_Latn
    ro:ron_Latn ru:rus_Cyrl rw:kin_Latn sa:san_Deva sc:srd_Latn sd:snd_Arab sg:sag_Latn si:sin_Sinh sk:slk_Latn
    sl:slv_Latn sm:smo_Latn sn:sna_Latn so:som_Latn sq:als_Latn sr:srp_Cyrl ss:ssw_Latn st:sot_Latn su:sun_Latn
    sv:swe_Latn sw:swh_Latn ta:tam_Taml te:tel_Telu tg:tgk_Cyrl th:tha_Thai ti:tir_Ethi tk:tuk_Latn tl:tgl_Latn
    tn:tsn_Latn tr:tur_Latn ts:tso_Latn tt:tat_Cyrl tw:twi_Latn ug:uig_Arab uk:ukr_Cyrl ur:urd_Arab uz:uzn_Latn
    vi:vie_Latn wo:wol_Latn xh:xho_Latn yi:ydd_Hebr yo:yor_Latn zh:zho_Hans zu:zul_Latn""".split()
)


@dataclasses.dataclass
class Archive:
    """A file to fetch, and which of its members become which files of OUT."""

    url: str
    size: int | None  # None: only the server knows
    sha256: str | None
    members: dict  # of the archive -> path under OUT
    optional: dict = dataclasses.field(default_factory=dict)  # likewise; not every archive has them
    may_lack: bool = False  # passed over if no server has it

    @property
    def name(self):
        return self.url.rsplit("/", 1)[1]


# ------------------------------------------------------------------------------------------------
# what each corpus consists of


def read_table(options, keys):
    """{what `keys` has as a group in an address: (address, size, SHA-256)} of a corpus's rows."""
    table = {}
    for number, line in enumerate(Path(options.archives).read_bytes().removesuffix(b"\n").split(b"\n"), 1):
        row = re.fullmatch(rb"([a-z0-9]+)\t(https?://[!-~]+)\t([0-9]{1,18})\t([0-9a-f]{64})", line)
        if not row:
            raise Trouble(f"{options.archives}:{number}: not a corpus, an address, a size and a SHA-256, with tabs between them")
        name, url, size, sha256 = (field.decode() for field in row.groups())
        if name == options.corpus:
            key = re.search(keys, url)
            if not key:
                raise Trouble(f"{options.archives}:{number}: no archive of {name}: {url}")
            table[key[1]] = (url, int(size), sha256)
    return table


def row_of(table, key, options):
    if key not in table:
        raise Trouble(f"{options.archives}: no archive '{key}' of {options.corpus}")
    return table[key]


def pair_of(text):
    languages = text.split("-")
    if len(languages) != 2 or languages[0] == languages[1] or not all(map(is_tag, languages)):
        raise Trouble(f"--pairs: '{text}' is not a pair like de-en", 2)
    return "-".join(sorted(languages))


def is_tag(text):
    return re.fullmatch(r"[A-Za-z][A-Za-z0-9]*(_[A-Za-z0-9]+)*", text) is not None


def wanted_pairs(options):
    """The pairs asked for, None for all. --langs means every pair of them and English."""
    if options.pairs:
        return list(dict.fromkeys(pair_of(text) for text in options.pairs.split(",")))
    if not options.langs:
        return None
    languages = set(options.langs.split(","))
    for language in languages:
        if not is_tag(language):
            raise Trouble(f"--langs: '{language}' is not a language's tag", 2)
    return ["-".join(pair) for pair in itertools.combinations(sorted(languages | {"en"}), 2)]


def opus100_files(kind, pair, split):
    """Members of an archive of OPUS-100, which are called so under OUT too."""
    names = [f"opus-100-corpus/v1.0/{kind}/{pair}/opus.{pair}-{split}.{language}" for language in pair.split("-")]
    return {name: name for name in names}


def opus100(options):
    table = read_table(options, r"/opus-100-corpus-(zeroshot|[a-z]+-[a-z]+)-v1\.0\.tar\.gz$")
    tested = ["-".join(pair) for pair in itertools.combinations(["ar", "de", "fr", "nl", "ru", "zh"], 2)]
    pairs = wanted_pairs(options)
    unknown = [pair for pair in pairs or [] if pair not in table and pair not in tested]
    if unknown and options.pairs:
        raise Trouble(f"--pairs: opus100 has no {', '.join(unknown)}", 2)
    known = set("-".join([*table, *tested]).split("-"))
    strange = sorted(set(options.langs.split(",")) - known) if options.langs else []
    if strange:
        raise Trouble(f"--langs: opus100 has no {', '.join(strange)}", 2)
    archives = []
    for pair, (url, size, sha256) in table.items():
        if pair != "zeroshot" and (pairs is None or pair in pairs):
            # Five small languages have no dev and test sets.
            sets = opus100_files("supervised", pair, "dev") | opus100_files("supervised", pair, "test")
            archives.append(Archive(url, size, sha256, opus100_files("supervised", pair, "train"), sets))
    chosen = [opus100_files("zero-shot", pair, "test") for pair in tested if pairs is None or pair in pairs]
    if chosen:
        archives.append(Archive(*row_of(table, "zeroshot", options), {name: name for files in chosen for name in files}))
    return archives


def ccmatrix(options):
    pairs = wanted_pairs(options)
    if pairs is None:
        raise Trouble("ccmatrix needs --langs or --pairs: all of it is 1,197 pairs of 90 languages", 2)
    archives = []
    for pair in pairs:
        ends = [*pair.split("-"), "scores"]
        members = {f"CCMatrix.{pair}.{end}": f"ccmatrix/{pair}/opus.{pair}-train.{end}" for end in ends}
        archives.append(Archive(f"{CCMATRIX}{pair}.txt.zip", None, None, members, may_lack=not options.pairs))
    return archives


def flores_code(tag):
    code = FLORES_CODES.get(tag, tag)
    if not re.fullmatch(r"[a-z]{3}_[A-Z][a-z]{3}", code):
        raise Trouble(f"flores has no '{tag}': two letters, or a code of FLORES-200 like ace_Arab", 2)
    return code


def flores_pairs(options):
    return wanted_pairs(options) or ["-".join(sorted([tag, "en"])) for tag in FLORES_CODES if tag not in ("en", "nb")]


def flores(options):
    codes = sorted({flores_code(tag) for pair in flores_pairs(options) for tag in pair.split("-")})
    files = [f"{split}/{code}.{split}" for split in ("dev", "devtest") for code in codes]
    row = row_of(read_table(options, r"/(flores200_dataset)\.tar\.gz$"), "flores200_dataset", options)
    return [Archive(*row, {f"flores200_dataset/{file}": f"flores200/{file}" for file in files})]


def link_flores(options):
    """Makes OUT/<into>/<pair>/opus.<pair>-{dev,test}.<xx> links to the texts of the languages."""
    for pair in flores_pairs(options):
        folder = options.out / options.into / pair
        folder.mkdir(parents=True, exist_ok=True)
        for tag, (split, name) in itertools.product(pair.split("-"), [("dev", "dev"), ("devtest", "test")]):
            target = os.path.relpath(options.out / "flores200" / split / f"{flores_code(tag)}.{split}", folder)
            link = folder / f"opus.{pair}-{name}.{tag}"
            if not (link.is_symlink() and os.readlink(link) == target):
                link.unlink(missing_ok=True)
                link.symlink_to(target)


WMT17_TRAINING = ("europarl-v7", "commoncrawl", "news-commentary-v12")
WMT17_TESTS = {"test": "newstest2014", "newstest2017": "newstest2017"}


def wmt17(options):
    if options.pairs or options.langs:
        raise Trouble("wmt17 is en-de: it takes neither --langs nor --pairs", 2)
    members = collections.defaultdict(dict)
    for language in ("de", "en"):
        for name, archive in zip(WMT17_TRAINING, ("europarl-v7", "commoncrawl", "nc-v12")):
            folder = "" if name == "commoncrawl" else "training/"
            members[archive][f"{folder}{name}.de-en.{language}"] = f"wmt17/parts/{name}.{language}"
        members["dev"][f"dev/newstest2013.{language}"] = f"wmt17/valid.{language}"
        for name, test in WMT17_TESTS.items():
            side = "src" if language == "de" else "ref"
            members["dev"][f"dev/{test}-deen-{side}.{language}.sgm"] = f"wmt17/{name}.{language}"
    table = read_table(options, r"[-/](europarl-v7|commoncrawl|nc-v12|dev)\.tgz$")
    return [Archive(*row_of(table, key, options), members[key]) for key in members]


def join_wmt17(options):
    """Makes wmt17/train.{en,de} of the parts, unless they are there."""
    folder = options.out / "wmt17"
    for language in ("de", "en"):
        parts = [folder / "parts" / f"{name}.{language}" for name in WMT17_TRAINING]
        target = folder / f"train.{language}"
        size = sum(part.stat().st_size for part in parts)
        if target.exists() and target.stat().st_size == size:
            continue
        download.check_space(folder, size, target.name)
        with replaced(target) as file:
            for part in parts:
                with open(part, "rb") as source:
                    shutil.copyfileobj(source, file, 1 << 20)


CORPORA = {
    "opus100": (opus100, None),
    "ccmatrix": (ccmatrix, None),
    "flores": (flores, link_flores),
    "wmt17": (wmt17, join_wmt17),
}


# ------------------------------------------------------------------------------------------------
# unpacking


@contextlib.contextmanager
def replaced(path):
    """A file that gets the name `path` once it is whole and on disk."""
    part = path.with_name(path.name + ".part")
    with open(part, "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def members_of(path):
    """(name, size, stream or None if it is no plain file) of an archive, in its order."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                plain = not info.is_dir() and (info.external_attr >> 28) in (0, 8)
                with archive.open(info) if plain else contextlib.nullcontext() as stream:
                    yield info.filename, info.file_size, stream
    else:
        with tarfile.open(path, "r|*") as archive:
            for info in archive:
                yield info.name, info.size, archive.extractfile(info) if info.isreg() else None


def copy_text(stream, file):
    """Copies a text, whose last line gets its end, and returns the number of lines."""
    lines, last = 0, b"\n"
    while piece := stream.read(1 << 20):
        lines += piece.count(b"\n")
        last = piece[-1:]
        file.write(piece)
    if last == b"\n":
        return lines
    file.write(b"\n")
    return lines + 1


def copy_segments(stream, file):
    """Copies the segments of a test set in SGML as they stand there, and returns their number."""
    lines = 0
    for line in stream:
        line = line.strip()
        if line.startswith(b"<seg"):
            found = re.fullmatch(rb"<seg[^>]*>(.*)</seg>", line)
            if not found:
                raise Corrupt(f"a segment that is no line: {line[:60]!r}")
            file.write(found[1].strip() + b"\n")
            lines += 1
    return lines


def unpack(path, archive, out):
    """Writes the wanted members of the file `path` and returns {path under out: bytes}."""
    wanted = {**archive.members, **archive.optional}
    lines, sizes = {}, {}
    try:
        for name, size, stream in members_of(path):
            name = name.removeprefix("./")
            if name.startswith("/") or ".." in name.split("/"):
                raise Trouble(f"{archive.name}: the member '{name}' would be written outside of its folder")
            if name not in wanted or stream is None:
                continue
            target = out / wanted[name]
            target.parent.mkdir(parents=True, exist_ok=True)
            download.check_space(target.parent, size, target.name)
            with replaced(target) as file:
                copy = copy_segments if name.endswith(".sgm") else copy_text
                lines[wanted[name]], sizes[wanted[name]] = copy(stream, file), file.tell()
    except (Trouble, Corrupt):
        raise
    except Exception as error:  # of a reader of what anybody may have made
        if isinstance(error, OSError) and not isinstance(error, gzip.BadGzipFile):
            raise Trouble(f"{error.filename or archive.name}: {error.strerror or error}") from error
        raise Corrupt(f"it cannot be unpacked: {error or type(error).__name__}") from error
    for name, target in archive.members.items():
        if target not in sizes:
            raise Corrupt(f"it has no {name}")
    for (first, count), (second, other) in itertools.pairwise(sorted(lines.items())):
        if first.rsplit(".", 1)[0] == second.rsplit(".", 1)[0] and count != other:
            raise Corrupt(f"{first} has {count:,} lines, {second} has {other:,}")
    return sizes


# ------------------------------------------------------------------------------------------------
# the command


def record_of(archive, options):
    return options.work / f"{options.corpus}.{archive.name}.json"


def recorded(archive, options):
    """({path under OUT: bytes}, SHA-256) of what an earlier call has unpacked."""
    record = download.read_notes(record_of(archive, options))
    files = record.get("files")
    return files if isinstance(files, dict) else {}, record.get("sha256")


def is_done(archive, options):
    """True if all that is wanted of `archive` is there, as it was written."""
    files, sha256 = recorded(archive, options)
    wanted = [path for path in [*archive.members.values(), *archive.optional.values()] if path in files]
    if set(archive.members.values()) - set(wanted) or sha256 != archive.sha256:
        return False
    paths = [(options.out / path, files[path]) for path in wanted]
    return all(path.is_file() and path.stat().st_size == size for path, size in paths)


def servers(archive, options):
    return [base.rstrip("/") + "/" + archive.name for base in options.url] or [archive.url]


def fetch(archive, options):
    """Downloads and unpacks one archive; an archive that cannot be unpacked is fetched once more."""
    path = options.work / f"{options.corpus}.{archive.name}"
    for attempt in (1, 2):
        if not path.exists():
            download.download(servers(archive, options), path, archive.size, archive.sha256, options)
        try:
            sizes = unpack(path, archive, options.out)
            break
        except Corrupt as error:
            path.unlink()
            if attempt == 2 or archive.sha256:
                raise Trouble(f"{archive.name}: {error}") from error
            say(f"{archive.name}: corrupt: {error}; fetching it anew")
    files = {**recorded(archive, options)[0], **sizes}
    record = {"url": archive.url, "bytes": path.stat().st_size, "sha256": archive.sha256, "files": files}
    with replaced(record_of(archive, options)) as file:
        file.write(json.dumps(record, indent=1).encode())
    if not options.keep:
        path.unlink()


@contextlib.contextmanager
def locked(folder):
    with open(folder / "lock", "a", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Trouble(f"{folder}: another fetch.py is at work there") from error
        except OSError as error:  # no locks on this file system
            say(f"warning: {folder}: no lock: {error.strerror}")
        yield


def fetch_all(archives, options):
    options.work = options.out / ".fetch"
    options.work.mkdir(parents=True, exist_ok=True)
    with locked(options.work):
        left = [archive for archive in archives if not is_done(archive, options)]
        known = [archive.size or 0 for archive in left]
        download.check_space(options.out, sum(known) * UNPACKED + max(known, default=0), "about what is missing")
        size = download.megabytes(sum(known)) if all(known) else "of sizes that the server will tell"
        say(f"{options.corpus}: {len(left)} of {len(archives)} archives to fetch, {size}")
        passed = 0
        for archive in left:
            try:
                fetch(archive, options)
            except NotThere as error:
                if not archive.may_lack:
                    raise
                passed += 1
                say(f"{error}: passed over")
                continue
            say(f"{archive.name}: done")
        if archives and passed == len(archives):
            raise Trouble(f"{options.corpus} has none of what was asked for")
        finish = CORPORA[options.corpus][1]
        if finish:
            finish(options)


def list_archives(archives, options):
    total, unknown = 0, 0
    for archive in archives:
        size = archive.size or download.remote_size(servers(archive, options), options.timeout)
        total += size or 0
        unknown += size is None
        told = f"{size:>14,}" if size else f"{'?':>14}"
        print(f"{told}  {'SHA-256' if archive.sha256 else 'size only':9}  {servers(archive, options)[0]}")
    print(f"{total:>14,}  bytes" + (f", and {unknown} archives that no server tells the size of" if unknown else ""))


def parse(words):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", choices=CORPORA)
    parser.add_argument("--out", type=Path, default=Path("corpus"), help="folder; default corpus, as in the recipes")
    parser.add_argument("--langs", help="de,fr: every pair of these and English; default all (not ccmatrix)")
    parser.add_argument("--pairs", help="de-en,de-fr: these pairs")
    parser.add_argument("--into", default="flores", metavar="FOLDER",
                        help="flores: folder of OUT for the pairs; ccmatrix gives that corpus dev and test sets")
    parser.add_argument("--list", action="store_true",
                        help="print archives, sizes, license and citation; fetch nothing")
    parser.add_argument("--url", action="append", default=[], metavar="BASE",
                        help="take BASE/ARCHIVE instead of the public address; again for further mirrors")
    parser.add_argument("--archives", default=TABLE, metavar="FILE",
                        help="addresses, sizes and SHA-256 of another packing; default archives.tsv beside this script")
    parser.add_argument("--keep", action="store_true", help="keep archives in OUT/.fetch after unpacking")
    parser.add_argument("--timeout", type=float, default=60, metavar="SECONDS",
                        help="give up a connection that says nothing, or less than 1 KiB/s, for so long; default 60")
    parser.add_argument("--retries", type=int, default=8, help="tries without progress before giving up; default 8")
    parser.add_argument("--pause", type=float, default=1, metavar="SECONDS",
                        help="before the first retry; doubles up to 60; default 1")
    options = parser.parse_args(words)
    if options.langs and options.pairs:
        parser.error("--langs or --pairs, not both")
    for flag, low, high in ("timeout", 0.001, 1e6), ("pause", 0, 1e6), ("retries", 0, 1e6):
        if not low <= getattr(options, flag) <= high:
            parser.error(f"--{flag}: from {low:g} to {high:,.0f}")
    if any(not re.match(r"https?://", base) for base in options.url):
        parser.error("--url: an address that begins with http:// or https://")
    if options.into != "flores" and (options.corpus != "flores" or not is_tag(options.into)):
        parser.error("--into: a folder's name, with flores only")
    return options


def stop(signum, frame):
    raise KeyboardInterrupt


def main(words=None):
    signal.signal(signal.SIGTERM, stop)
    options = parse(words)
    try:
        archives = CORPORA[options.corpus][0](options)
        if options.list:
            list_archives(archives, options)
        else:
            fetch_all(archives, options)
        print(ABOUT[options.corpus])
    except Trouble as error:
        say(f"error: {error}")
        return error.code
    except OSError as error:
        say(f"error: {error}")
        return 4
    except KeyboardInterrupt:
        say("stopped: run the same command again to go on")
        return 75
    return 0


if __name__ == "__main__":
    sys.exit(main())
