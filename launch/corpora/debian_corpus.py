#!/usr/bin/env python3
"""Real parallel text (English <-> many languages) built from distribution packages.

  debian_corpus.py build RECIPE --out DIR [--langs de,fr,...] [--min-words 3] [--max-words 60]
      everything in one go (Debian, apt; no root needed): download, unpack, extract, split, and
      write the OPUS-100 layout: DIR/de-en/opus.de-en-train.de, ...-train.en, ...-dev.*,
      ...-test.*, and, last, manifest.json. Recipe `udhr` needs neither apt nor a network.
  debian_corpus.py packages udhr|tiny|small|standard|full
  debian_corpus.py extract --tree DIR [--ddtp DIR] [--udhr DIR] --out DIR
  debian_corpus.py stats   --out DIR [--only REGEX]
  debian_corpus.py samples --out DIR --source NAME --langs de,ja,ar,sw [-n 5]

--tree  folder with one unpacked package (`dpkg -x`) per sub-folder; the sub-folder's name is the
        source's name in every figure.
--ddtp  folder with the package manager's Translation-* indexes (plain text or .lz4).
--udhr  the unpacked `udhr` package (declaration/*.html).

Each extractor yields (source, language, english, foreign); `clean_pair` repairs or rejects;
`extract` writes DIR/<source>.tsv (language, english, foreign), each pair once per source.
Only the standard library is used. Everything is deterministic: sorted walks, hash-keyed splits.
"""

import argparse
import collections
import hashlib
import html
import html.parser
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import unicodedata
import xml.etree.ElementTree as ET
import zlib
from pathlib import Path

# ------------------------------------------------------------------------------------------------
# recipes: package names (Debian 12); every recipe contains the ones before it

OFFICE_HELP = (
    "en-us ca cs da de dz el es et eu fi fr gl hi hu id it ja km ko nl om pl pt pt-br ru sl "
    "sv tr vi zh-cn zh-tw"
)
OFFICE_UI = (
    "af am ar as ast be bg bn br bs ca cs cy da de dz el eo es et eu fa fi fr ga gd gl gu gug "
    "he hi hr hu id is it ja ka kk km kmr kn ko lt lv mk ml mn mr nb ne nl nn nr nso oc om or "
    "pa-in pl pt pt-br ro ru rw si sk sl sr ss st sv szl ta te tg th tn tr ts ug uk uz ve vi "
    "xh zh-cn zh-tw zu"
)
RECIPES = {
    "udhr": "",  # udhr.tsv beside this file, nothing else
    "tiny": "sword-text-web sword-text-sparv",  # and the package `udhr` where at hand
    "small": "aisleriot audacity-data cinnamon-l10n evolution-common gbrainy gnome-user-docs "
    "gnucash-common gramps libgtk-3-common pidgin-data shotwell-common vlc-l10n "
    "wordpress-l10n",
    "standard": "anjuta-common blender-data brasero-common debian-handbook deja-dup "
    "digikam-data epiphany-browser-data freeciv-data gcompris-qt-data gimp-data "
    "gnome-control-center-data gnome-devel-docs gnome-software-common "
    "gnumeric-common inkscape installation-guide-amd64 kate5-data kdevelop-l10n "
    "kile-l10n kmail kmymoney-common konversation-data korganizer krita-l10n "
    "libvirt-l10n mate-user-guide mediawiki nautilus-data orca phpmyadmin "
    "plasma-desktop-data plasma-workspace-data smplayer-l10n tuxpaint-data "
    "wesnoth-1.16-dm wesnoth-1.16-httt wesnoth-1.16-nr wesnoth-1.16-trow "
    "wesnoth-1.16-utbs "  # and the package manager's Translation-* indexes
    + " ".join("libreoffice-help-" + c for c in OFFICE_HELP.split())
    + " "
    + " ".join("libreoffice-l10n-" + c for c in OFFICE_UI.split()),
    "full": "abiword-common apt aptitude-common bash binutils-common bluefish-data "
    "calligra-data cantor coreutils darktable dolphin dpkg gajim gcc-12-locales "
    "geany-common gettext git gnome-builder gnome-shell-common gnupg-l10n gwenview "
    "homebank-data kdenlive-data kget kgeography-data kturtle labplot-data libc-l10n "
    "libglib2.0-data libgtk-4-common libosinfo-l10n lyx-common nextcloud-desktop-l10n "
    "okular psi-l10n pspp qttranslations5-l10n rhythmbox-data rkward-data "
    "skrooge-common step subversion sword-text-kjv synaptic "
    "system-config-printer-common tellico-data texstudio-l10n umbrello "
    "util-linux-locales vim-runtime wesnoth-1.16-data wesnoth-1.16-did "
    "wesnoth-1.16-dw wesnoth-1.16-ei wesnoth-1.16-l wesnoth-1.16-low wesnoth-1.16-sof "
    "wesnoth-1.16-sota wesnoth-1.16-sotbe wesnoth-1.16-thot wesnoth-1.16-tsg "
    "wesnoth-1.16-ttb zim",
}


# ------------------------------------------------------------------------------------------------
# languages

RENAMED = {"no": "nb", "iw": "he", "in": "id", "mo": "ro", "tl": "fil", "ji": "yi"}
NO_LANGUAGE = {"en", "eng", "qt", "qqq", "tlh", "und", "zxx", "roa", "map", "bat", "fiu"}
SUBTAG = {"latin": "Latn", "cyrillic": "Cyrl", "devanagari": "Deva", "ec": "Cyrl", "el": "Latn"}
PLAIN = {"", "valencia", "euro", "ijekavian"}
OWN_SCRIPT = {
    "sr": "Cyrl",
    "kk": "Cyrl",
    "tt": "Cyrl",
    "tg": "Cyrl",
    "ku": "Latn",
    "ug": "Arab",
    "crh": "Latn",
    "ks": "Arab",
    "uz": "Latn",
    "be": "Cyrl",
    "az": "Latn",
    "pa": "Guru",
    "mn": "Cyrl",
    "bs": "Latn",
    "sd": "Arab",
    "ms": "Latn",
    "ha": "Latn",
    "ky": "Cyrl",
    "sat": "Olck",
    "mni": "Mtei",
    "hi": "Deva",
}


def norm_lang(tag, wanted=None):
    """'pt-br', 'de_AT', 'sr@latin.UTF-8' -> 'pt_BR', 'de', 'sr_Latn'; '' = leave out.

    Regions are merged (except pt_BR and the two ways to write Chinese), scripts are kept apart,
    dialects and spelling variants (de-formal, be-tarask) are left out, and so is what is not in
    `wanted`, where that is given.
    """
    lang = any_lang(tag)
    return lang if wanted is None or lang in wanted else ""


def any_lang(tag):
    base, _, modifier = tag.split(".")[0].replace("-", "_").partition("@")
    lang, *rest = base.split("_")
    lang, script, region = lang.lower(), "", ""
    for part in rest + [modifier]:
        low = part.lower()
        part = SUBTAG.get(low, part) if len(part) > 2 or lang == "sr" else part
        if low in PLAIN:
            continue
        if len(part) == 4 and part.isalpha():
            script = part.title()
        elif len(part) == 2 or part.isdigit():
            region = part.upper()
        else:
            return ""
    lang = RENAMED.get(lang, lang)
    if lang in NO_LANGUAGE or not re.fullmatch(r"[a-z]{2,3}", lang):
        return ""
    if lang == "zh":
        return "zh_TW" if script == "Hant" or region in ("TW", "HK", "MO") else "zh_CN"
    if lang == "pt" and region == "BR":
        return "pt_BR"
    return lang if script in ("", OWN_SCRIPT.get(lang)) else lang + "_" + script


# ------------------------------------------------------------------------------------------------
# cleaning

TAG = re.compile(r"<[^<>]{1,400}>")
MNEMONIC_PAREN = re.compile(r"\s*\([&_~]\w\)")
PLACEHOLDER = re.compile(
    r"%(?:\d+\$)?[-+#0']*\d*(?:\.\d+)?(?:hh|h|ll|l|q|j|z|t|L)?[a-zA-Z]|%L?\d+|%\{[^}]*\}|"
    r"\$\{?\w[\w.]*\}?\|?|\{\{?[\w:.]*\}?\}|@\w+@|\\[nt]"
)
SPACE = re.compile(r"[\s\u200b\ufeff]+")
WORD = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*")
SENT_END = re.compile(
    r"(?<=[.!?…])[\"'”’»)]*\s+(?=[^\W\d_a-zа-я]|[\"'“‘«¿¡(]|\d)|"
    r"(?<=[。！？])[”」』）]*|(?<=[।؟۔።၊။])\s+"
)
ABBREV = re.compile(
    r"\b(?:e\.g|i\.e|etc|vs|cf|No|Mr|Mrs|Dr|St|z\.B|u\.a|bzw|p\.ej|ej|tj|np|т\.е|напр|"
    r"approx|resp)\.$",
    re.I,
)
JUNK = {
    "translator-credits",
    "your names",
    "your emails",
    "name of translators",
    "email of translators",
}
CJK = {"zh_CN", "zh_TW", "ja", "yue", "wuu", "gan"}
NOSPACE = CJK | {"th", "lo", "km", "my", "bo", "dz"}


def visible(s, mnemonics):
    s = TAG.sub(" " if "<br" in s else "", s) if "<" in s else s
    s = html.unescape(s) if "&" in s else s
    if mnemonics:
        s = MNEMONIC_PAREN.sub("", s)
        s = re.sub(r"&(?=[^\W_])", "", s)
        if s.count("_") == 1:
            s = re.sub(r"_(?=[^\W\d_])", "", s)
        s = re.sub(r"~(?=[^\W\d_])", "", s)
    s = s if s.isascii() else unicodedata.normalize("NFC", s)
    if not s.isprintable():
        s = "".join(
            c if unicodedata.category(c)[0] != "C" or c in "\u200c\u200d" else " " for c in s
        )
    return SPACE.sub(" ", s).strip(" \t•*·")


def latin_share(s):
    letters = [c for c in s if c.isalpha()]
    return sum(c < "\u0250" for c in letters) / len(letters) if letters else 0.0


def clean_pair(lang, en, xx, mnemonics=False, min_words=3, max_words=120):
    """The repaired pair, or None."""
    if en.strip().lower() in JUNK or "==" in en[:4]:
        return None
    en, xx = visible(en, mnemonics), visible(xx, mnemonics)
    if not en or not xx or "\ufffc" in en + xx or en == xx or en.casefold() == xx.casefold():
        return None
    p_en, p_xx = PLACEHOLDER.findall(en), PLACEHOLDER.findall(xx)
    if sorted(p_en) != sorted(p_xx):
        return None
    bare_en, bare_xx = PLACEHOLDER.sub(" ", en), PLACEHOLDER.sub(" ", xx)
    words = WORD.findall(bare_en)
    if not min_words <= len(words) <= max_words:
        return None
    if (not bare_en.isascii() and latin_share(bare_en) < 0.9) or sum(
        c.isalpha() for c in bare_en
    ) < 0.6 * len(en):
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
# gettext catalogs


def read_mo(path):
    data = path.read_bytes()
    if len(data) < 20:
        return
    order = "<" if data[:4] == b"\xde\x12\x04\x95" else ">"
    _, _, count, o_off, t_off = struct.unpack(order + "5I", data[:20])
    for i in range(count):
        ol, oo = struct.unpack_from(order + "2I", data, o_off + 8 * i)
        tl, to = struct.unpack_from(order + "2I", data, t_off + 8 * i)
        msgid, msgstr = data[oo : oo + ol], data[to : to + tl]
        if not msgid:
            continue
        try:
            yield msgid.decode("utf-8"), msgstr.decode("utf-8")
        except UnicodeDecodeError:
            continue


def mo_lang(path):
    m = re.search(r"/(?:locale|translations|resource|lang)/([^/]+)/LC_MESSAGES/", path)
    if m:
        return m.group(1)
    m = re.search(r"/languages(?:/.*)?[-/]([a-z]{2,3}(?:_[A-Z]{2})?)\.mo$", path)
    return m.group(1) if m else ""


def extract_mo(source, root, wanted=None):
    for path in sorted(root.rglob("*.mo")):
        lang = norm_lang(mo_lang(str(path)), wanted)
        if not lang or path.is_symlink():
            continue
        for msgid, msgstr in read_mo(path):
            msgid = msgid.split("\x04")[-1]
            ids, strs = msgid.split("\0"), msgstr.split("\0")
            if "wesnoth" in source:
                ids = [s.split("^", 1)[-1] for s in ids]
            pairs = [(ids[0], strs[0])] if len(ids) == 1 or len(strs) > 1 else []
            if len(ids) == 2:
                pairs.append((ids[1], strs[-1]))
            for en, xx in pairs:
                blocks_en, blocks_xx = en.split("\n\n"), xx.split("\n\n")
                if len(blocks_en) != len(blocks_xx):
                    blocks_en, blocks_xx = [en], [xx]
                for a, b in zip(blocks_en, blocks_xx):
                    a, b = visible(a, True), visible(b, True)
                    for c, d in split_paragraph(a, b):
                        yield lang, c, d


# ------------------------------------------------------------------------------------------------
# Qt catalogs (.qm): a tag-length-value list per message


def read_qm(path):
    data = path.read_bytes()
    if data[:4] != b"\x3c\xb8\x64\x18":
        return
    pos = 16
    while pos + 5 <= len(data):
        tag, size = data[pos], struct.unpack_from(">I", data, pos + 1)[0]
        body = data[pos + 5 : pos + 5 + size]
        pos += 5 + size
        if tag != 0x69:
            continue
        p, translations, src = 0, [], None
        while p < len(body):
            t = body[p]
            p += 1
            if t == 1:
                if src and translations:
                    yield src, translations
                translations, src = [], None
            elif t in (2, 3, 4, 6, 7, 8):
                n = struct.unpack_from(">I", body, p)[0]
                p += 4
                if n == 0xFFFFFFFF:
                    n = 0
                raw = body[p : p + n]
                p += n
                if t == 3:
                    translations.append(raw.decode("utf-16-be", "replace"))
                elif t == 6:
                    src = raw.decode("utf-8", "replace")
            elif t == 5:
                p += 4
            else:
                break


def extract_qm(source, root, wanted=None):
    for path in sorted(root.rglob("*.qm")):
        m = re.search(r"_([a-z]{2,3}(?:[_@]\w+)?)\.qm$", path.name)
        lang = norm_lang(m.group(1), wanted) if m else ""
        if lang:
            for src, tr in read_qm(path):
                for c, d in split_paragraph(visible(src, True), visible(tr[-1], True)):
                    yield lang, c, d


# ------------------------------------------------------------------------------------------------
# office help: every paragraph has an id that all languages share

LO_BLOCK = re.compile(r'<(p|h\d) id="((?:par|hd)_[^"]+)"[^>]*>(.*?)</\1>', re.S)


def lo_blocks(path):
    text = path.read_text("utf-8", "replace")
    return {m.group(2): visible(m.group(3), False) for m in LO_BLOCK.finditer(text)}


def extract_lohelp(source, root, english, wanted=None):
    for top in sorted(root.glob("usr/share/libreoffice/help/*/text")):
        lang = norm_lang(top.parent.name, wanted)
        if not lang:
            continue
        for path in sorted(top.rglob("*.html")):
            rel = str(path.relative_to(top))
            en = english.get(rel)
            if en:
                for key, xx in lo_blocks(path).items():
                    if en.get(key, xx) != xx:
                        for c, d in split_paragraph(en[key], xx):
                            yield lang, c, d


# ------------------------------------------------------------------------------------------------
# documents: Mallard, DocBook and HTML whose translations keep the original's structure

BLOCK = {
    "para",
    "simpara",
    "p",
    "title",
    "desc",
    "term",
    "entry",
    "subtitle",
    "phrase",
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "dt",
    "td",
    "th",
    "li",
    "dd",
    "figcaption",
    "caption",
    "item",
    "listitem",
}
SKIP = {
    "info",
    "articleinfo",
    "bookinfo",
    "credit",
    "legalnotice",
    "programlisting",
    "screen",
    "pre",
    "code",
    "script",
    "style",
    "revhistory",
    "authorgroup",
    "nav",
    "synopsis",
    "literallayout",
    "media",
}
XML_ENT = {"amp", "lt", "gt", "quot", "apos"}


def local(tag):
    return tag.rsplit("}", 1)[-1] if isinstance(tag, str) else ""


def inner_text(e):
    """Text of an element; keys of a shortcut joined by '+'; a link without text marked U+FFFC."""
    tag, parts = local(e.tag), [e.text or ""]
    for i, d in enumerate(e):
        parts.append(("+" if i and tag in ("keyseq", "keycombo") else "") + inner_text(d))
        parts.append(d.tail if d.tail and not (tag in ("keyseq", "keycombo")) else "")
    text = "".join(parts)
    return text if text.strip() or tag not in ("link", "xref", "include") else "\ufffc"


def parse_xml(path):
    text = path.read_text("utf-8", "replace")
    entities = dict(re.findall(r'<!ENTITY\s+(\w+)\s+"([^"<%&]*)"', text))
    text = re.sub(r"<\?xml.*?\?>", "", text, count=1, flags=re.S)
    text = re.sub(r"<!DOCTYPE[^\[>]*(\[.*?\]\s*)?>", "", text, count=1, flags=re.S)

    def sub(m):
        n = m.group(1)
        if n in XML_ENT or n.startswith("#"):
            return m.group(0)
        u = html.unescape("&" + n + ";")
        return entities.get(n) or (u if not u.startswith("&") else "\ufffc" if "-" in n else n)

    text = re.sub(r"&([\w.#-]+);", sub, text)
    try:
        return ET.fromstring(text)
    except ET.ParseError:
        return None


def xml_blocks(root):
    """[(group, tag, text)]: leaf blocks in order, grouped by the nearest ancestor's id."""
    out = []

    def has_block(e):
        return any(local(d.tag) in BLOCK for d in e.iter() if d is not e)

    def walk(e, group):
        tag = local(e.tag)
        if tag == "info":  # Mallard: keep only the page's description
            for d in e:
                if local(d.tag) == "desc":
                    out.append((group, "desc", visible(inner_text(d), False)))
            return
        if tag in SKIP:
            return
        for k, v in e.attrib.items():
            if local(k) == "id":
                group = v
        if tag in BLOCK and not has_block(e):
            out.append((group, tag, visible(inner_text(e), False)))
            return
        for d in e:
            walk(d, group)

    walk(root, "")
    return out


class HtmlBlocks(html.parser.HTMLParser):
    """Leaf blocks of a page; the group is always ''."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.out, self.buf, self.tag, self.skip = [], [], None, 0

    def flush(self):
        text = visible("".join(self.buf), False)
        if self.tag and text:
            self.out.append(("", self.tag, text))
        self.buf, self.tag = [], None

    def handle_starttag(self, tag, attrs):
        if tag in SKIP and tag != "code":
            self.skip += 1
        elif tag in BLOCK or tag == "div":
            self.flush()
            self.tag = tag if tag in BLOCK else "p" if ("class", "para") in attrs else None

    def handle_endtag(self, tag):
        if tag in SKIP and tag != "code":
            self.skip = max(0, self.skip - 1)
        elif tag in BLOCK or tag in ("ul", "ol", "dl", "table", "div"):
            self.flush()

    def handle_data(self, data):
        if not self.skip and self.tag:
            self.buf.append(data)


def html_blocks(path):
    p = HtmlBlocks()
    p.feed(path.read_text("utf-8", "replace"))
    p.flush()
    return p.out


def align_blocks(en, xx):
    """Pairs of texts, group by group where the tag sequences agree."""
    a, b = collections.defaultdict(list), collections.defaultdict(list)
    for g, t, s in en:
        a[g].append((t, s))
    for g, t, s in xx:
        b[g].append((t, s))
    for g, seq in a.items():
        other = b.get(g, [])
        if [t for t, _ in seq] == [t for t, _ in other]:
            for (_, s), (_, u) in zip(seq, other):
                yield s, u


def extract_docs(source, root, wanted=None):
    """Folders that differ only in the language: .../C|en|en-US/rel against .../<lang>/rel."""
    files = [
        p
        for p in sorted(root.rglob("*"))
        if p.suffix in (".page", ".xml", ".docbook", ".html") and p.is_file()
    ]
    pattern = re.compile(
        r"^(.*/(?:help|HTML|html|doc/[^/]+|debian-handbook/html|gimp/[\d.]+/help))/([^/]+)/(.+)$"
    )
    index = {}
    for p in files:
        m = pattern.match(str(p))
        if m:
            rel = re.sub(r"\.[a-z]{2}(?:[-_][A-Za-z]{2,4})?\.(html)$", r".\1", m.group(3))
            index.setdefault((m.group(1), rel), {})[m.group(2)] = p
    for key in sorted(index):
        versions = index[key]
        origin = next((versions[k] for k in ("C", "en", "en-US", "en_US") if k in versions), None)
        if not origin:
            continue
        blocks = {}
        for tag, p in versions.items():
            lang = norm_lang(tag, wanted)
            if p != origin and not lang:
                continue
            if p.suffix == ".html":
                blocks[tag] = html_blocks(p)
            else:
                tree = parse_xml(p)
                blocks[tag] = xml_blocks(tree) if tree is not None else []
        origin_tag = next(t for t, p in versions.items() if p == origin)
        for tag in sorted(blocks):
            if tag != origin_tag:
                for s, u in align_blocks(blocks[origin_tag], blocks[tag]):
                    if s != u:
                        for c, d in split_paragraph(s, u):
                            yield norm_lang(tag, wanted), c, d


# ------------------------------------------------------------------------------------------------
# wiki software: one JSON file per language and component, shared keys


def wiki_text(s):
    s = re.sub(r"\[\[(?:[^\]|]*\|)?([^\]|]*)\]\]", r"\1", s)
    s = re.sub(r"\[(?:https?:)?//\S+ ([^\]]*)\]", r"\1", s)
    return re.sub(r"'{2,}|<nowiki ?/?>|__\w+__|^[:#*;]+ *", "", s)


def extract_json_i18n(source, root, wanted=None):
    def load(p):
        try:
            return {k: v for k, v in json.loads(p.read_text("utf-8")).items() if isinstance(v, str)}
        except (ValueError, AttributeError, RecursionError):
            return {}

    for origin in sorted(root.rglob("i18n/**/en.json")):
        en = load(origin)
        for p in sorted(origin.parent.glob("*.json")):
            lang = norm_lang(p.stem, wanted)
            if lang:
                for k, v in load(p).items():
                    if k in en and "{{" not in en[k] + v and "|" not in wiki_text(en[k]):
                        lines_en, lines_xx = en[k].split("\n"), v.split("\n")
                        if len(lines_en) != len(lines_xx):
                            continue
                        for a, b in zip(lines_en, lines_xx):
                            for c, d in split_paragraph(
                                visible(wiki_text(a), False), visible(wiki_text(b), False)
                            ):
                                yield lang, c, d


# ------------------------------------------------------------------------------------------------
# locale data: names of emoji and symbols


def extract_annotations(source, root, wanted=None):
    def load(p):
        try:
            tree = ET.parse(p).getroot()
        except ET.ParseError:
            return {}
        return {
            a.get("cp"): a.text
            for a in tree.iter("annotation")
            if a.get("type") == "tts" and a.text
        }

    for folder in sorted(root.rglob("annotations*")):
        if not (folder / "en.xml").is_file():
            continue
        en = load(folder / "en.xml")
        for p in sorted(folder.glob("*.xml")):
            lang = norm_lang(p.stem, wanted)
            if lang and "_" not in p.stem.replace("pt_PT", "").replace("zh_Hant", "").replace(
                "sr_Latn", ""
            ):
                for cp, name in load(p).items():
                    if cp in en and "↑" not in name:
                        yield lang, en[cp], name


# ------------------------------------------------------------------------------------------------
# SWORD modules: verses share an index (King James order)


def read_sword(root):
    verses = {}
    for index in sorted(root.rglob("*.bz[vV]")):
        stem = str(index)[:-1]
        body, blocks = Path(stem + "z").read_bytes(), Path(stem + "s").read_bytes()
        starts = [struct.unpack_from("<3I", blocks, i) for i in range(0, len(blocks), 12)]
        opened, data = {}, index.read_bytes()
        for n in range(len(data) // 10):
            block, start, size = struct.unpack_from("<IIH", data, 10 * n)
            if not size:
                continue
            if block not in opened:
                off, length, _ = starts[block]
                opened[block] = zlib.decompress(body[off : off + length])
            verses[index.name[:2], n] = opened[block][start : start + size].decode(
                "utf-8", "replace"
            )
    for index in sorted(root.rglob("[no]t.vss")):
        body, data = index.with_suffix("").read_bytes(), index.read_bytes()
        for n in range(len(data) // 6):
            start, size = struct.unpack_from("<IH", data, 6 * n)
            if size:
                verses[index.name[:2], n] = body[start : start + size].decode("utf-8", "replace")
    return verses


def verse_text(s):
    s = re.sub(r"<note\b.*?</note>|<title\b.*?</title>|<RF>.*?<Rf>|<[^>]*>", "", s, flags=re.S)
    return visible(s, False)


# ------------------------------------------------------------------------------------------------
# package descriptions: Translation-<lang> indexes, joined on the English text's md5


def read_index(path):
    if path.suffix == ".lz4":
        return subprocess.run(
            ["/usr/lib/apt/apt-helper", "cat-file", str(path)], check=True, capture_output=True
        ).stdout.decode("utf-8", "replace")
    return path.read_text("utf-8", "replace")


BULLET = re.compile(r"(?:[-*+o•–]|\d+[.)]) +")


def index_entries(text):
    for stanza in text.split("\n\n"):
        md5 = re.search(r"^Description-md5: (\w+)", stanza, re.M)
        body = re.search(r"^Description-[A-Za-z_]+: (.*)", stanza, re.M | re.S)
        body = body if body and not body.group(0).startswith("Description-md5") else None
        if not body:
            for m in re.finditer(r"^Description-(?!md5)[A-Za-z_]+: (.*)", stanza, re.M | re.S):
                body = m
        if md5 and body:
            lines, paras, shape = body.group(1).split("\n"), [], ""
            for line in lines[1:]:
                text, indented = line.strip(), line.startswith("  ")
                bullet = indented and BULLET.match(text)
                if text in (".", ""):
                    shape = ""
                elif bullet or not shape or indented != (shape == "indented"):
                    paras.append(text[bullet.end() :] if bullet else text)
                    shape = "indented" if indented else "plain"
                else:
                    paras[-1] += " " + text
            yield md5.group(1), lines[0], paras


def extract_ddtp(folder, wanted=None):
    files = {}
    for p in sorted(folder.glob("*Translation-*")):
        m = re.search(r"Translation-([A-Za-z_%0-9]+?)(\.lz4)?$", p.name)
        if m and "security" not in p.name:
            files[m.group(1).replace("%5f", "_")] = p
    en = {md5: (title, paras) for md5, title, paras in index_entries(read_index(files["en"]))}
    for tag in sorted(files):
        lang = norm_lang(tag, wanted)
        if not lang:
            continue
        for md5, title, paras in index_entries(read_index(files[tag])):
            if md5 in en and "<trans>" not in title:
                yield lang, en[md5][0], title
                if len(paras) == len(en[md5][1]):
                    for s, u in zip(en[md5][1], paras):
                        if "<trans>" not in u:
                            for c, d in split_paragraph(visible(s, False), visible(u, False)):
                                yield lang, c, d


# ------------------------------------------------------------------------------------------------
# Universal Declaration of Human Rights


def udhr_blocks(path):
    text = path.read_text("utf-8", "replace")
    out = {}
    for m in re.finditer(r'<(header|article)(?: data-number="(\d+)")?>(.*?)</\1>', text, re.S):
        out[m.group(2) or "0"] = [
            visible(s, False) for s in re.findall(r"<p>(.*?)</p>", m.group(3), re.S)
        ]
    lang = re.search(r'<html[^>]* lang="([^"]+)"', text)
    return (lang.group(1) if lang else path.stem), out


# The standard text of a language that has several, none of them numbered.
UDHR_STANDARD = {
    "de": "deu_1996",
    "el": "ell_monotonic",
    "ha": "hau_NG",
    "oc": "lnc",
    "qu": "quz",
    "ro": "ron_2006",
}


def extract_udhr(folder, wanted=None):
    """Pairs of each language's standard text, never of two texts of one language.

    A numbered file (068.html: "French (Welche)") is a dialect or another version.
    """
    _, en = udhr_blocks(folder / "declaration/eng.html")
    texts = {}
    for p in sorted((folder / "declaration").glob("*.html"), key=lambda p: (p.stem.isdigit(), p)):
        tag, xx = udhr_blocks(p)
        if p.stem in UDHR_STANDARD.values():
            tag = tag.split("-")[0]
        if not re.fullmatch(r"[a-z]{2,3}(-[A-Z][a-z]{3}|-[A-Z]{2})?", tag):
            continue
        lang = norm_lang(tag, wanted)
        if lang and UDHR_STANDARD.get(lang, p.stem) == p.stem:
            texts.setdefault(lang, xx)
    for lang, xx in texts.items():
        for k, seq in en.items():
            if len(seq) == len(xx.get(k, [])):
                for s, u in zip(seq, xx[k]):
                    for c, d in split_paragraph(s, u):
                        yield lang, c, d


# ------------------------------------------------------------------------------------------------
# commands


def write(source, kind, pairs, out, mnemonics=False, min_words=3):
    """Clean, drop repeats and targets in a script that is not the language's usual one, append."""
    raw, kept = 0, collections.defaultdict(dict)
    for lang, en, xx in pairs:
        raw += 1
        pair = clean_pair(lang, en, xx, mnemonics, min_words)
        if pair:
            kept[lang][pair] = latin_share(pair[1]) > 0.5
    count = dropped = 0
    with open(out / (source + ".tsv"), "a", encoding="utf-8") as f:
        for lang in sorted(kept):
            latin = sum(kept[lang].values()) / len(kept[lang])
            for (en, xx), is_latin in kept[lang].items():
                if (latin > 0.8 and not is_latin) or (latin < 0.2 and is_latin):
                    dropped += 1
                else:
                    count += 1
                    f.write(f"{lang}\t{en}\t{xx}\n")
    if raw:
        print(
            f"{source:28} {kind:12} raw {raw:9,}  kept {count:9,}  wrong script {dropped:6,}",
            flush=True,
        )


def extract(args):
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    trees = sorted(p for p in Path(args.tree).iterdir() if p.is_dir()) if args.tree else []
    if args.only:
        trees = [t for t in trees if re.search(args.only, t.name)]
    for t in trees:
        (out / (t.name + ".tsv")).unlink(missing_ok=True)
    english_help, bibles = {}, {}
    en_help = Path(args.tree or ".") / "libreoffice-help-en-us"
    if any(t.name.startswith("libreoffice-help") for t in trees) and en_help.is_dir():
        for top in en_help.glob("usr/share/libreoffice/help/en-US/text"):
            english_help = {
                str(p.relative_to(top)): lo_blocks(p) for p in sorted(top.rglob("*.html"))
            }
    for t in trees:
        if t.name.startswith("sword-text"):
            bibles[t.name] = read_sword(t)
        elif t.name.startswith("libreoffice-help"):
            write(t.name, "office help", extract_lohelp(t.name, t, english_help, args.wanted), out)
        elif t.name.startswith("unicode-cldr"):
            write(
                t.name, "annotations", extract_annotations(t.name, t, args.wanted), out, min_words=2
            )
        elif t.name == "mediawiki":
            write(t.name, "json", extract_json_i18n(t.name, t, args.wanted), out)
        else:
            write(t.name, "mo", extract_mo(t.name, t, args.wanted), out, True)
            write(t.name, "qm", extract_qm(t.name, t, args.wanted), out, True)
            write(t.name, "documents", extract_docs(t.name, t, args.wanted), out)
    if "sword-text-sparv" in bibles:
        for name in ("sword-text-web", "sword-text-kjv"):
            if name in bibles:
                write(
                    name,
                    "verses",
                    (
                        ("es", verse_text(v), verse_text(bibles["sword-text-sparv"][k]))
                        for k, v in sorted(bibles[name].items())
                        if k in bibles["sword-text-sparv"]
                    ),
                    out,
                )
    for name, folder, fn in (
        ("package-descriptions", args.ddtp, extract_ddtp),
        ("udhr", args.udhr, extract_udhr),
    ):
        if folder:
            (out / (name + ".tsv")).unlink(missing_ok=True)
            write(name, "-", fn(Path(folder), args.wanted), out)


def rows(out, wanted=None):
    for p in sorted(Path(out).glob("*.tsv")):
        if wanted is None or re.search(wanted, p.stem):
            with open(p, encoding="utf-8", errors="replace") as f:
                for line in f:
                    parts = line.rstrip("\n").split("\t")
                    if len(parts) == 3:
                        yield p.stem, parts[0], parts[1], parts[2]


def split_of(english):
    """train / valid / test from the English side only, so no English sentence is on two sides."""
    key = re.sub(r"[\W\d_]+", " ", english.casefold()).strip()
    n = int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big") % 1000
    return "valid" if n < 5 else "test" if n < 10 else "train"


def tokens(lang, s):
    if lang in NOSPACE:
        return sum(c.isalpha() for c in s) // 2 + 1
    return len(s.split())


def stats(args):
    by_lang, seen = collections.Counter(), collections.defaultdict(set)
    by_source = collections.defaultdict(collections.Counter)
    toks, splits, long8, english = (
        collections.Counter(),
        collections.Counter(),
        collections.Counter(),
        set(),
    )
    lang8 = collections.Counter()
    for source, lang, en, xx in rows(args.out, args.only):
        by_source[source][lang] += 1
        key = hash((en, xx))
        if key in seen[lang]:
            continue
        seen[lang].add(key)
        by_lang[lang] += 1
        n = len(en.split())
        toks["en"] += n
        toks["xx"] += tokens(lang, xx)
        long8[source] += n >= 8
        lang8[lang] += n >= 8
        h = hash(en)
        if h not in english:
            english.add(h)
            splits["english " + split_of(en)] += 1
        splits[split_of(en)] += 1
    total = sum(by_lang.values())
    print(
        f"unique pairs {total:,}; english sentences {len(english):,}; "
        f"tokens en {toks['en']:,} xx {toks['xx']:,}"
    )
    print("pairs with >= 8 english words:", f"{sum(lang8.values()):,}")
    for k in (100, 1000, 5000, 20000, 50000, 100000):
        print(
            f"languages with >= {k:,} pairs: {sum(v >= k for v in by_lang.values())}"
            f"   (counting only pairs of >= 8 words: {sum(v >= k for v in lang8.values())})"
        )
    print("splits", dict(splits))
    print("languages:", " ".join(f"{k}:{v}" for k, v in by_lang.most_common()))
    for s, c in sorted(by_source.items(), key=lambda kv: -sum(kv[1].values())):
        t = sum(c.values())
        print(
            f"{s:28} pairs {t:9,} langs {len(c):4} >=1k {sum(v >= 1000 for v in c.values()):4} "
            f">=8 words {100 * long8[s] / t:4.0f}% (new only)  best {c.most_common(1)[0]}"
        )


def samples(args):
    picked = collections.defaultdict(list)
    for source, lang, en, xx in rows(args.out, args.source):
        if lang in args.langs.split(",") and len(en.split()) >= args.min_words:
            picked[lang].append((hashlib.md5((en + args.seed).encode()).hexdigest(), en, xx))
    for lang in args.langs.split(","):
        print("##", args.source, lang)
        for _, en, xx in sorted(picked[lang])[: args.n]:
            print("-", en, "\n ", xx)


def packages(args):
    for name, names in RECIPES.items():
        print("\n".join(names.split()))
        if name == args.recipe:
            break


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
            sys.exit(
                f"debian_corpus.py: package {n} could not be downloaded (run apt-get update first?)"
            )
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
    good = sorted(
        (hashlib.sha256(k.encode()).digest(), k) for k, ls in have.items() if len(ls) >= need
    )
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
    shutil.rmtree(work / "tsv", ignore_errors=True)
    if args.recipe == "udhr":
        sums = {UDHR.name: hashlib.sha256(UDHR.read_bytes()).hexdigest()}
        (work / "tsv").mkdir(parents=True, exist_ok=True)
        shutil.copy(UDHR, work / "tsv")
        args.min_pairs = min(args.min_pairs, 40)
    else:
        sums = fetch(recipe_packages(args.recipe), work / "debs", work / "tree")
        extract(
            argparse.Namespace(
                tree=str(work / "tree"),
                ddtp=None,
                udhr=args.udhr,
                out=str(work / "tsv"),
                only=None,
                wanted=chosen,
            )
        )
    pairs = collections.defaultdict(dict)  # insertion-ordered: no repeats, same order each time
    for _, lang, en, xx in rows(work / "tsv"):
        if (chosen is None or lang in chosen) and args.min_words <= len(
            en.split()
        ) <= args.max_words:
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
    print(
        f"{out}: {len(langs)} languages, train {total['train']:,}, dev {total['dev']:,}, "
        f"test {total['test']:,} pairs"
    )


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    sub = ap.add_subparsers(dest="cmd", required=True)
    p = sub.add_parser("extract")
    for a in ("--tree", "--ddtp", "--udhr", "--only"):
        p.add_argument(a)
    p.add_argument("--out", required=True)
    p.set_defaults(wanted=None)
    p = sub.add_parser("build")
    p.add_argument("recipe", choices=list(RECIPES))
    p.add_argument("--out", required=True)
    p.add_argument("--langs", help="comma-separated; default: all")
    p.add_argument("--udhr", help="folder of an unpacked `udhr` package, if at hand")
    p.add_argument("--min-words", type=int, default=3)
    p.add_argument("--max-words", type=int, default=60)
    p.add_argument("--min-pairs", type=int, default=1000)
    p.add_argument(
        "--test",
        type=int,
        default=1000,
        help="at most this many dev and test sentences, shared by the languages",
    )
    p.add_argument("--keep-work", action="store_true", help="leave the downloads in OUT/.deepnet-work")
    p = sub.add_parser("packages")
    p.add_argument("recipe", choices=list(RECIPES))
    p = sub.add_parser("stats")
    p.add_argument("--out", required=True)
    p.add_argument("--only")
    p = sub.add_parser("samples")
    for a in ("--out", "--source", "--langs"):
        p.add_argument(a, required=True)
    p.add_argument("-n", type=int, default=5)
    p.add_argument("--min-words", type=int, default=5)
    p.add_argument("--seed", default="")
    args = ap.parse_args()
    for name, value in vars(args).items():
        if isinstance(value, int) and value < 0:
            ap.error(f"{name.replace('_', '-')}: must not be negative")
    commands = {"extract": extract, "packages": packages, "stats": stats, "samples": samples, "build": build}
    try:
        commands[args.cmd](args)
    except subprocess.CalledProcessError as error:
        sys.exit(f"debian_corpus.py: {error.cmd[0]} {error.cmd[1]} ended with code {error.returncode}")
    except (OSError, re.error) as error:
        sys.exit(f"debian_corpus.py: {error}")


if __name__ == "__main__":
    main()
