#!/usr/bin/env python3
"""Makes real parallel text, English to many languages, out of Debian packages.

  debian_corpus.py build RECIPE --out DIR [--langs de,fr,...] [--min-words 3] [--max-words 60]

downloads packages (apt; no root needed), unpacks, reads (debian_texts.py), cleans and splits them, and writes the
OPUS-100 layout: DIR/de-en/opus.de-en-train.de, ...-train.en, ...-dev.*, ...-test.*, and, last, manifest.json. Recipe
`udhr` needs neither apt nor a network. Only the standard library is used. The same packages give the same bytes.
"""

import argparse
import collections
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import unicodedata
from pathlib import Path

import debian_texts as T

# ------------------------------------------------------------------------------------------------
# recipes: package names (Debian 12); every recipe contains the ones before it

OFFICE_HELP = """
    en-us ca cs da de dz el es et eu fi fr gl hi hu id it ja km ko nl om pl pt pt-br ru sl sv tr vi zh-cn zh-tw"""
OFFICE_UI = """
    af am ar as ast be bg bn br bs ca cs cy da de dz el eo es et eu fa fi fr ga gd gl gu gug he hi hr hu id is it
    ja ka kk km kmr kn ko lt lv mk ml mn mr nb ne nl nn nr nso oc om or pa-in pl pt pt-br ro ru rw si sk sl sr ss
    st sv szl ta te tg th tn tr ts ug uk uz ve vi xh zh-cn zh-tw zu"""
RECIPES = {
    "udhr": "",  # udhr.tsv beside this file, nothing else
    "tiny": "sword-text-web sword-text-sparv",  # and the package `udhr` where at hand
    "small": """
    aisleriot audacity-data cinnamon-l10n evolution-common gbrainy gnome-user-docs gnucash-common gramps
    libgtk-3-common pidgin-data shotwell-common vlc-l10n wordpress-l10n""",
    "standard": """
    anjuta-common blender-data brasero-common debian-handbook deja-dup digikam-data epiphany-browser-data
    freeciv-data gcompris-qt-data gimp-data gnome-control-center-data gnome-devel-docs gnome-software-common
    gnumeric-common inkscape installation-guide-amd64 kate5-data kdevelop-l10n kile-l10n kmail kmymoney-common
    konversation-data korganizer krita-l10n libvirt-l10n mate-user-guide mediawiki nautilus-data orca phpmyadmin
    plasma-desktop-data plasma-workspace-data smplayer-l10n tuxpaint-data wesnoth-1.16-dm wesnoth-1.16-httt
    wesnoth-1.16-nr wesnoth-1.16-trow wesnoth-1.16-utbs """
    + " ".join(f"libreoffice-help-{code}" for code in OFFICE_HELP.split())
    + " "
    + " ".join(f"libreoffice-l10n-{code}" for code in OFFICE_UI.split()),
    "full": """
    abiword-common apt aptitude-common bash binutils-common bluefish-data calligra-data cantor coreutils darktable
    dolphin dpkg gajim gcc-12-locales geany-common gettext git gnome-builder gnome-shell-common gnupg-l10n
    gwenview homebank-data kdenlive-data kget kgeography-data kturtle labplot-data libc-l10n libglib2.0-data
    libgtk-4-common libosinfo-l10n lyx-common nextcloud-desktop-l10n okular psi-l10n pspp qttranslations5-l10n
    rhythmbox-data rkward-data skrooge-common step subversion sword-text-kjv synaptic system-config-printer-common
    tellico-data texstudio-l10n umbrello util-linux-locales vim-runtime wesnoth-1.16-data wesnoth-1.16-did
    wesnoth-1.16-dw wesnoth-1.16-ei wesnoth-1.16-l wesnoth-1.16-low wesnoth-1.16-sof wesnoth-1.16-sota
    wesnoth-1.16-sotbe wesnoth-1.16-thot wesnoth-1.16-tsg wesnoth-1.16-ttb zim""",
}


# ------------------------------------------------------------------------------------------------
# cleaning

PLACEHOLDER = re.compile(
    r"%(?:\d+\$)?[-+#0']*\d*(?:\.\d+)?(?:hh|h|ll|l|q|j|z|t|L)?[a-zA-Z]|%L?\d+|%\{[^}]*\}|"
    r"\$\{?\w[\w.]*\}?\|?|\{\{?[\w:.]*\}?\}|@\w+@|\\[nt]"
)
WORD = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*")
SENT_END = re.compile(
    r"(?<=[.!?…])[\"'”’»)]*\s+(?=[^\W\d_a-zа-я]|[\"'“‘«¿¡(]|\d)|"
    r"(?<=[。！？])[”」』）]*|(?<=[।؟۔።၊။])\s+"
)
ABBREV = re.compile(
    r"\b(?:e\.g|i\.e|etc|vs|cf|No|Mr|Mrs|Dr|St|z\.B|u\.a|bzw|p\.ej|ej|tj|np|т\.е|напр|approx|resp)\.$", re.I
)
JUNK = {"translator-credits", "your names", "your emails", "name of translators", "email of translators"}
CJK = {"zh_CN", "zh_TW", "ja", "yue", "wuu", "gan"}


def latin_share(s):
    letters = [c for c in s if c.isalpha()]
    return sum(c < "\u0250" for c in letters) / len(letters) if letters else 0.0


def clean_pair(lang, en, xx, mnemonics=False):
    """The repaired pair, or None."""
    if en.strip().lower() in JUNK or "==" in en[:4]:
        return None
    en, xx = T.visible(en, mnemonics), T.visible(xx, mnemonics)
    if not en or not xx or "\ufffc" in en + xx or en == xx or en.casefold() == xx.casefold():
        return None
    p_en, p_xx = PLACEHOLDER.findall(en), PLACEHOLDER.findall(xx)
    if sorted(p_en) != sorted(p_xx):
        return None
    bare_en, bare_xx = PLACEHOLDER.sub(" ", en), PLACEHOLDER.sub(" ", xx)
    words = WORD.findall(bare_en)
    if not 3 <= len(words) <= 120:
        return None
    if (not bare_en.isascii() and latin_share(bare_en) < 0.9) or sum(c.isalpha() for c in bare_en) < 0.6 * len(en):
        return None
    if sum(c.isalpha() or unicodedata.category(c)[0] == "M" for c in bare_xx) < 0.5 * len(xx):
        return None
    ratio = len(xx) / len(en)
    low, high = (0.12, 1.3) if lang in CJK | {"ko"} else (0.4, 2.6)
    if len(en) < 30:
        low, high = low * 0.7, high * 1.4
    if not low <= ratio <= high:
        return None
    return en, xx


def sentences(s):
    out, start = [], 0
    for m in SENT_END.finditer(s):
        piece = s[start : m.end()].strip()
        if not piece or ABBREV.search(piece):
            continue
        out.append(piece)
        start = m.end()
    if s[start:].strip():
        out.append(s[start:].strip())
    return out


def split_paragraph(en, xx):
    """Sentence pairs when both sides have the same count of sentences, else the whole paragraph."""
    a, b = sentences(en), sentences(xx)
    return list(zip(a, b)) if len(a) == len(b) and len(a) > 1 else [(en, xx)]


# ------------------------------------------------------------------------------------------------
# from packages to pairs


def cleaned(source, kind, paragraphs, mnemonics=False, splits=True):
    """(language, English, foreign), each pair once, without targets in a script that is not the language's usual one."""
    raw, kept = 0, collections.defaultdict(dict)
    for lang, *sides in paragraphs:
        for en, xx in split_paragraph(*sides) if splits else [sides]:
            raw += 1
            pair = clean_pair(lang, en, xx, mnemonics)
            if pair:
                kept[lang][pair] = latin_share(pair[1]) > 0.5
    count = dropped = 0
    for lang in sorted(kept):
        latin = sum(kept[lang].values()) / len(kept[lang])
        for (en, xx), is_latin in kept[lang].items():
            if (latin > 0.8 and not is_latin) or (latin < 0.2 and is_latin):
                dropped += 1
            else:
                count += 1
                yield lang, en, xx
    if raw:
        print(f"{source:28} {kind:12} raw {raw:9,}  kept {count:9,}  wrong script {dropped:6,}", flush=True)


def pairs_of_packages(tree, udhr, wanted):
    """Those of all packages that are unpacked in `tree`, each in a folder of its name, and in the folder `udhr`."""
    english = T.english_help(tree / "libreoffice-help-en-us")
    roots = {root.name: root for root in tree.iterdir() if root.is_dir()}
    if udhr:
        roots["udhr"] = Path(udhr)
    for name, root in sorted(roots.items(), key=lambda item: item[0] + "."):  # pt-br comes before pt
        if name == "udhr":
            yield from cleaned(name, "-", T.declaration(root, wanted))
        elif name in ("sword-text-web", "sword-text-kjv"):
            yield from cleaned(name, "verses", T.spanish_verses(root, tree / "sword-text-sparv"), splits=False)
        elif name.startswith("libreoffice-help"):
            yield from cleaned(name, "office help", T.office_help(root, wanted, english))
        elif name == "mediawiki":
            yield from cleaned(name, "json", T.wiki_messages(root, wanted))
        elif not name.startswith("sword-text"):
            yield from cleaned(name, "mo", T.gettext_catalogs(root, wanted), True)
            yield from cleaned(name, "qm", T.qt_catalogs(root, wanted), True)
            yield from cleaned(name, "documents", T.documents(root, wanted))


def pairs_of_table(path):
    """Those of a file of language, English and foreign, with tabs between them."""
    with open(path, encoding="utf-8", errors="replace") as file:
        rows = (line.rstrip("\n").split("\t") for line in file)
        yield from (row for row in rows if len(row) == 3)


# ------------------------------------------------------------------------------------------------
# build: from a recipe's name to an OPUS-100-like folder

WORK = ".deepnet-work"  # in OUT while it is being built
UDHR = Path(__file__).with_name("udhr.tsv")
SENTENCE = re.compile(r"^(?!.*[%{}<>|\\\\])\S+(?: \S+){5,49}[.!?]$")


def recipe_packages(recipe):
    names = []
    for name, listed in RECIPES.items():
        names += listed.split()
        if name == recipe:
            return names


def fetch(names, debs, tree):
    """Download, unpack each package into its own folder; returns {package: sha256 of the .deb}."""
    debs.mkdir(parents=True, exist_ok=True)
    missing = [n for n in names if not list(debs.glob(n + "_*.deb"))]
    if missing:
        command = ["apt-get", "download", "-q"]
        if os.geteuid() == 0:  # else apt complains that its own user cannot write here
            command += ["-o", "APT::Sandbox::User=root"]
        subprocess.run(command + missing, cwd=debs, check=True, stdout=sys.stderr)
    sums = {}
    for n in names:
        deb = next(iter(sorted(debs.glob(n + "_*.deb"))), None)
        if deb is None:
            sys.exit(f"debian_corpus.py: package {n} could not be downloaded (run apt-get update first?)")
        sums[deb.name] = hashlib.sha256(deb.read_bytes()).hexdigest()
        if not (tree / n).is_dir():
            half = tree.with_name("half")  # a folder has its name only when it is whole
            shutil.rmtree(half, ignore_errors=True)
            half.mkdir(parents=True)
            if subprocess.run(["dpkg", "-x", str(deb), str(half)]).returncode != 0:
                deb.unlink()
                sys.exit(f"debian_corpus.py: {deb.name} is damaged and was removed; run again")
            tree.mkdir(exist_ok=True)
            half.rename(tree / n)
    return sums


def key_of(english):
    return re.sub(r"[\W\d_]+", " ", english.casefold()).strip()


def split_multiway(pairs, langs, wanted):
    """English keys for dev and test: sentences most of the languages have, lowest hash first."""
    have = collections.defaultdict(set)
    for lang in langs:
        for en, _ in pairs[lang]:
            if SENTENCE.match(en):
                have[key_of(en)].add(lang)
    need = max(1, round(0.6 * len(langs))) if len(langs) < 50 else 30
    good = sorted((hashlib.sha256(k.encode()).digest(), k) for k, ls in have.items() if len(ls) >= need)
    n = min(wanted, len(good) // 8)
    return {k for _, k in good[n : 2 * n]}, {k for _, k in good[:n]}


def check_output(out):
    """A corpus is built in a new folder, or in the place of one: files of others keep theirs."""
    try:
        ours = "packages" in json.loads((out / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError, RecursionError):
        ours = (out / WORK).is_dir()  # it was not finished
    if (out / WORK).is_symlink():
        sys.exit(f"debian_corpus.py: {out / WORK} is a symbolic link; remove it")
    if not ours and out.is_dir() and any(out.iterdir()):
        sys.exit(f"debian_corpus.py: {out} holds something else; choose another folder")


def build(args):
    out = Path(args.out)
    check_output(out)
    (out / "manifest.json").unlink(missing_ok=True)  # written last: marks a complete corpus
    work = out / WORK
    chosen = set(args.langs.split(",")) if args.langs else None
    work.mkdir(parents=True, exist_ok=True)
    if args.recipe == "udhr":
        sums = {UDHR.name: hashlib.sha256(UDHR.read_bytes()).hexdigest()}
        found = pairs_of_table(UDHR)
        args.min_pairs = min(args.min_pairs, 40)
    else:
        sums = fetch(recipe_packages(args.recipe), work / "debs", work / "tree")
        found = pairs_of_packages(work / "tree", args.udhr, chosen)
    pairs = collections.defaultdict(dict)  # insertion-ordered: no repeats, same order each time
    for lang, en, xx in found:
        if (chosen is None or lang in chosen) and args.min_words <= len(en.split()) <= args.max_words:
            pairs[lang][(en, xx)] = None
    langs = sorted(l for l in pairs if len(pairs[l]) >= args.min_pairs)
    dev, test = split_multiway(pairs, langs, args.test)
    manifest = {"recipe": args.recipe, "packages": sums, "pairs": {}}
    for lang in langs:
        held = {xx for en, xx in pairs[lang] if key_of(en) in dev or key_of(en) in test}
        a, b = sorted((lang, "en"))
        folder = out / f"{a}-{b}"
        folder.mkdir(exist_ok=True)
        counts = collections.Counter()
        files = {
            (part, side): open(folder / f"opus.{a}-{b}-{part}.{side}", "w", encoding="utf-8")
            for part in ("train", "dev", "test")
            for side in (lang, "en")
        }
        seen = set()  # one reference for each held-out sentence
        for en, xx in pairs[lang]:
            k = key_of(en)
            part = "test" if k in test else "dev" if k in dev else "train"
            if (part == "train" and xx in held) or (part != "train" and k in seen):
                continue
            if part != "train":
                seen.add(k)
            counts[part] += 1
            files[part, "en"].write(en + "\n")
            files[part, lang].write(xx + "\n")
        for f in files.values():
            f.close()
        manifest["pairs"][f"{a}-{b}"] = dict(counts)
    if not args.keep_work:
        shutil.rmtree(work)
    (out / "manifest.json").write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    total = collections.Counter()
    for c in manifest["pairs"].values():
        total.update(c)
    print(f"{out}: {len(langs)} languages, train {total['train']:,}, dev {total['dev']:,}, test {total['test']:,} pairs")


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p = ap.add_subparsers(required=True).add_parser("build")
    p.add_argument("recipe", choices=list(RECIPES))
    p.add_argument("--out", required=True)
    p.add_argument("--langs", help="comma-separated; default: all")
    p.add_argument("--udhr", help="folder of an unpacked `udhr` package, if at hand")
    p.add_argument("--min-words", type=int, default=3)
    p.add_argument("--max-words", type=int, default=60)
    p.add_argument("--min-pairs", type=int, default=1000)
    p.add_argument("--test", type=int, default=1000, help="dev and test sentences at most, shared by the languages")
    p.add_argument("--keep-work", action="store_true", help="leave the downloads in OUT/.deepnet-work")
    args = ap.parse_args()
    for name, value in vars(args).items():
        if isinstance(value, int) and value < 0:
            ap.error(f"{name.replace('_', '-')}: must not be negative")
    try:
        build(args)
    except subprocess.CalledProcessError as error:
        sys.exit(f"debian_corpus.py: {error.cmd[0]} {error.cmd[1]} ended with code {error.returncode}")
    except OSError as error:
        sys.exit(f"debian_corpus.py: {error}")


if __name__ == "__main__":
    main()
