#!/usr/bin/env python3
"""Makes man pages and shell completion out of what `deepnet --help` prints, which comes from the flags' own tables.

  launch/help_pages.py --program build/release/deepnet --out DIR

DIR/man/man1/deepnet.1, deepnet-train.1, ..., DIR/bash-completion/completions/deepnet, DIR/zsh/site-functions/_deepnet:
the folders of /usr/share.
"""

import argparse
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Flag:
    name: str  # "--config"
    value: str  # "FILE"; empty: a switch
    help: str  # one line


@dataclass
class Page:
    words: tuple  # ("checkpoint", "list"); () is the program itself
    summary: str = ""
    usage: str = ""
    description: list = field(default_factory=list)  # paragraphs
    flags: list = field(default_factory=list)
    commands: list = field(default_factory=list)  # (name, summary)
    epilogue: list = field(default_factory=list)  # paragraphs behind the tables


def read_help(program, words):
    text = subprocess.run([program, *words, "--help"], check=True, capture_output=True, encoding="utf-8").stdout
    return parse_help(words, text)


def parse_help(words, text):
    page = Page(words)
    blocks = text.rstrip("\n").split("\n\n")
    page.summary = blocks[0].partition(": ")[2]
    for block in blocks[1:]:
        if block.startswith("Usage: "):
            page.usage = block.removeprefix("Usage: ")
        elif block.startswith("Flags:\n"):
            page.flags = parse_flags(block.split("\n")[1:])
        elif block.startswith("Commands:\n"):
            page.commands = [tuple(line.split(None, 1)) for line in block.split("\n")[1:]]
        else:
            (page.epilogue if page.commands or page.flags else page.description).append(" ".join(block.split()))
    if not page.summary or not page.usage or not (page.flags or page.commands) or not all(len(row) == 2 for row in page.commands):
        raise ValueError(f"'{' '.join(words)} --help' has another form than this script reads")
    return page


def parse_flags(lines):
    flags = []
    for line in lines:
        start = re.match(r"  (--[a-z0-9-]+)(?: (\S+(?: \S+)*))?(?:  +(.*))?$", line)
        if start:
            flags.append(Flag(start[1], start[2] or "", start[3] or ""))
        elif flags:
            flags[-1].help = f"{flags[-1].help} {line.strip()}".strip()
    return flags


def read_all(program, words=()):
    """The page of `words` and of all commands below, depth first."""
    page = read_help(program, words)
    pages = [page]
    for name, _ in page.commands:
        pages += read_all(program, (*words, name))
    return pages


# --- man pages ---------------------------------------------------------------------------------------


def roff(text):
    """Text as troff prints it: backslashes and dashes escaped, no line begins with a control character."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", text, flags=re.M)


def page_name(words):
    return "-".join(("deepnet", *words))


def man_page(page, pages, version, day):
    lines = [f'.TH {page_name(page.words).upper()} 1 "{day}" "{version}" "deepnet"']
    lines += [".SH NAME", roff(f"{page_name(page.words)} - {page.summary[:1].lower() + page.summary[1:].rstrip('.')}")]
    lines += [".SH SYNOPSIS", ".B " + roff(page.usage)]
    lines += [".SH DESCRIPTION"] if page.description else []
    for paragraph in page.description:
        lines += [".PP", roff(paragraph)]
    if page.commands:
        lines.append(".SH COMMANDS")
        for name, summary in page.commands:
            lines += [".TP", f".B {roff(name)}", roff(summary)]
    if page.flags:
        lines.append(".SH OPTIONS")
        for flag in page.flags:
            lines += [".TP", f".BR {roff(flag.name)}" + (f' " \\fI{roff(flag.value)}\\fR"' if flag.value else ""), roff(flag.help)]
    if not page.words:
        lines.append(".SH NOTES")
        for paragraph in page.epilogue:
            lines += [".PP", roff(paragraph)]
    others = [page_name(other.words) for other in pages if other.words[:-1] == page.words[: len(other.words) - 1] and other != page]
    lines += [".SH SEE ALSO", ", ".join(f"\\fB{roff(name)}\\fR(1)" for name in others)]
    return "\n".join(lines) + "\n"


# --- completion --------------------------------------------------------------------------------------


def choices(flag):
    """The words that a flag allows; [] where it is free."""
    return flag.value.split("|") if re.fullmatch(r"[a-z0-9_-]+(\|[a-z0-9_-]+)+", flag.value) else []


def bash_completion(pages):
    """A function that knows the words before the cursor: commands, flags, their values, else files."""
    groups, flags, values = [], [], []
    for page in pages:
        key = " ".join(page.words)
        if page.commands:
            names = " ".join(name for name, _ in page.commands)
            groups.append(f'    "{key}") words="{names}{"" if page.words else " --version"} --help" ;;')
        else:
            flags.append(f'    "{key}") words="{" ".join(flag.name for flag in page.flags)}" ;;')
            values += [f'    "{key} {flag.name}") words="{" ".join(choices(flag))}" ;;' for flag in page.flags if choices(flag)]
    return f"""# bash completion of deepnet; made by launch/help_pages.py from its --help.
_deepnet() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD - 1]}} command="" words="" word
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD - 1}}"; do
    [[ $word != -* ]] || break
    command="${{command:+$command }}$word"
    case $command in
{chr(10).join('      "' + " ".join(page.words) + '") ;;' for page in pages if page.commands and page.words)}
      *) break ;;
    esac
  done
  case "$command $before" in
{chr(10).join(values)}
  esac
  [[ -n $words ]] || case $command in
{chr(10).join(groups)}
  esac
  [[ -n $words || $current != -* ]] || case $command in
{chr(10).join(flags)}
  esac
  if [[ -n $words ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
  else
    mapfile -t COMPREPLY < <(compgen -f -- "$current")
  fi
}}
complete -o filenames -F _deepnet deepnet
"""


def zsh_text(text):
    return re.sub(r"([\[\]:'\\])", r"\\\1", text).replace("\\'", "'\\''")


def zsh_completion(pages):
    """Functions of zsh's own form, with the help of each word beside it."""
    functions = []
    for page in pages:
        name = "_" + "_".join(("deepnet", *page.words))
        if page.commands:
            rows = "\n".join(f"    '{command}:{zsh_text(summary)}'" for command, summary in page.commands)
            cases = "\n".join(f"      {command}) _{'_'.join(('deepnet', *page.words, command))} ;;" for command, _ in page.commands)
            body = f"""  local -a commands=(
{rows}
  )
  _arguments -C '--help[Print help.]' '1: :->command' '*:: :->rest'
  case $state in
    command) _describe command commands ;;
    rest) case $words[1] in
{cases}
    esac ;;
  esac"""
        else:
            specs = [zsh_flag(flag) for flag in page.flags] + ["'*:file:_files'"]
            body = "  _arguments \\\n    " + " \\\n    ".join(specs)
        functions.append(f"{name}() {{\n{body}\n}}")
    return "#compdef deepnet\n# Made by launch/help_pages.py from its --help.\n\n" + "\n\n".join(functions) + '\n\n_deepnet "$@"\n'


def zsh_flag(flag):
    often = "*" if "May be repeated." in flag.help else ""
    action = f"({' '.join(choices(flag))})" if choices(flag) else "_files" if re.search("FILE|FOLDER|CHECKPOINT", flag.value) else ""
    return f"'{often}{flag.name}[{zsh_text(flag.help)}]" + (f":{zsh_text(flag.value)}:{action}'" if flag.value else "'")


# --- writing -----------------------------------------------------------------------------------------


def write_all(program, out):
    seconds = os.environ.get("SOURCE_DATE_EPOCH", time.time())
    try:
        day = time.strftime("%Y-%m-%d", time.gmtime(int(seconds)))
    except (ValueError, OverflowError, OSError) as error:
        raise ValueError(f"SOURCE_DATE_EPOCH: '{seconds}': {error}") from error
    pages = read_all(program)
    done = subprocess.run([program, "--version"], check=True, capture_output=True, encoding="utf-8")
    version = done.stdout.split("\n")[0]
    texts = {f"man/man1/{page_name(page.words)}.1": man_page(page, pages, version, day) for page in pages}
    texts["bash-completion/completions/deepnet"] = bash_completion(pages)
    texts["zsh/site-functions/_deepnet"] = zsh_completion(pages)
    for name, text in texts.items():
        path = Path(out) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return len(texts)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build/release/deepnet", metavar="FILE", help="default: %(default)s")
    parser.add_argument("--out", required=True, metavar="DIR", help="where they go")
    options = parser.parse_args()
    try:
        write_all(options.program, options.out)
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
