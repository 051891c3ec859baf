"""The commands that the documents show: found, run, and held against what stands under them.

A fence without a language, or ``console``, holds commands after ``$ `` and what each prints. ``sh`` holds commands
alone. ``text`` is shown and never run: diagrams, and what needs root, a network or a terminal. In what a command
prints, a line ``…`` stands for any lines, and ``…`` within a line for anything. Run as a program, this writes into
the pages named what their commands print today:

    .venv/bin/python tools/docs_commands.py docs/tutorial.md
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
WSW = Path(sys.executable).with_name("wsw")
ANYTHING = "…"
"""What stands for whatever a command prints there."""
DONE, FOUND, USAGE, MISSING, UNSTABLE = 0, 1, 2, 3, 4
"""Exit statuses of ``wsw``."""

_FENCE = re.compile(r"^```([\w-]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SHELL = re.compile(r"[|<>;&*$`]")
_MACHINES = ("kvm", "lab", "model")


class Block(NamedTuple):
    """A fence of a document: its language, what is in it, and where that begins in the document's text."""

    document: Path
    language: str
    text: str
    start: int


class Command(NamedTuple):
    """A command, what is shown under it, and which commands of its document it needs the files of.

    Attributes:
        document: The page.
        text: The command as it would be typed.
        shown: The lines under it.
        start: Where these lines begin in the page's text, and where they end.
        end: See ``start``.
        first: The commands that write the files it names, in their order.
    """

    document: Path
    text: str
    shown: tuple[str, ...]
    start: int
    end: int
    first: tuple[str, ...] = ()

    @property
    def words(self) -> list[str]:
        """The command's words, comments left out."""
        return shlex.split(self.text, comments=True)

    @property
    def name(self) -> str:
        """Page and command, as a test is named."""
        return f"{self.document.name}: {' '.join(self.text.split())[:80]}"

    @property
    def needs(self) -> tuple[str, ...]:
        """What a machine needs to run it: names of ``tests/conftest.py``'s ABILITIES."""
        return tuple(dict.fromkeys(need for line in (*self.first, self.text) for need in _needs(line)))

    @property
    def takes_minutes(self) -> bool:
        """Whether it boots machines in the lab: it is parsed, and run only if asked for."""
        return any(need.startswith("lab") for need in self.needs)


class Ran(NamedTuple):
    """What a command printed, and its status."""

    status: int
    out: str
    err: str


def documents() -> list[Path]:
    """The pages whose commands are run."""
    pages = sorted((ROOT / "docs").glob("*.md")) + sorted((ROOT / "docs" / "guides").glob("*.md"))
    return [ROOT / "README.md", *pages]


def blocks(document: Path) -> Iterator[Block]:
    """Every fence of a page."""
    text = document.read_text(encoding="utf-8")
    for found in _FENCE.finditer(text):
        yield Block(document, found[1], found[2], found.start(2))


def commands(document: Path) -> list[Command]:
    """Every command of a page that can be run, in order."""
    found: list[Command] = []
    for block in blocks(document):
        for text, start, end in _typed(block):
            shown = block.text[start - block.start : end - block.start].rstrip("\n")
            first = tuple(one.text for one in found if any(name in text for name in _written(one.text)))
            found.append(Command(document, text, tuple(shown.splitlines()), start, end, first))
    return found


def _typed(block: Block) -> Iterator[tuple[str, int, int]]:
    """The commands of a fence, and where what they print begins and ends."""
    if block.language == "sh":
        for line in re.finditer(r"^(?!#)\S.*$", block.text, re.MULTILINE):
            yield line[0], block.start + line.end(), block.start + line.end()
    if block.language not in ("", "console"):
        return
    prompts = list(re.finditer(r"^\$ ((?:.*\\\n)*.*)\n", block.text, re.MULTILINE))
    ends = [*(prompt.start() for prompt in prompts[1:]), len(block.text)][: len(prompts)]
    for prompt, end in zip(prompts, ends, strict=True):
        yield prompt[1].replace("\\\n", " "), block.start + prompt.end(), block.start + end


def _written(line: str) -> list[str]:
    """The files a command makes, as far as its words tell."""
    words = shlex.split(line, comments=True)
    after = {">", "-o", "--save", "--trace", "--snapshot", "--costs-to"}
    return [word for before, word in pairwise(words) if before in after and not word.startswith("/")]


def _needs(line: str) -> Iterator[str]:
    words = shlex.split(line, comments=True)
    if "wsw.pyz" in words:
        yield "python3"
    words = words[next((i for i, word in enumerate(words) if word in ("wsw", "wsw.pyz")), len(words)) + 1 :]
    verb = words[0] if words else ""
    if {"--python", "--help"} & {*words}:
        return
    if verb == "run":
        named = _option(words, "--on") or ("kvm" if "--build" not in words else "lab")
        if "kvm" in named.split(","):
            yield "kvm"
        if "lab" in named.split(","):
            yield from (f"lab-{cpu}" for cpu in (_option(words, "--cpu") or "amd").split(","))
    elif verb == "record":
        yield "kvm-events"
    elif verb == "conform" and not {"--show", "--table"} & {*words}:
        yield from (f"lab-{cpu}" for cpu in (_option(words, "--cpu") or "amd,intel").split(","))
    elif verb == "lab":
        yield "lab"


def _option(words: Sequence[str], name: str) -> str:
    return next((after for before, after in pairwise(words) if before == name), "")


def workplace(folder: Path) -> Path:
    """An empty folder for a page's commands, with this project's files under the names the pages use."""
    for name in ("tests", "docs", "src"):
        (folder / name).symlink_to(ROOT / name)
    return folder


def run(line: str, folder: Path) -> Ran:
    """What a command prints that is run in *folder*: by the shell if it needs one or a device, else in this process."""
    words = shlex.split(line, comments=True)
    if _SHELL.search(line) or words[0] != "wsw" or any(_needs(line)):
        path = f"{WSW.parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["sh", "-c", line], cwd=folder, capture_output=True, check=False, env={**os.environ, "PATH": path}
        )
        return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())
    return _here(words[1:], folder)


def _here(words: list[str], folder: Path) -> Ran:
    """The command in this process, which has imported everything already."""
    from worldswitch.cli import main

    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    status: object = None
    with contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(words)
        except SystemExit as ended:
            status = ended.code
    printed = [stream.buffer.getvalue().decode() for stream in (out, err)]  # type: ignore[attr-defined]
    return Ran(status if isinstance(status, int) else DONE, *printed)


def expected_statuses(command: Command) -> tuple[int, ...]:
    """The exit statuses that fit what the page shows."""
    if command.shown and command.shown[0].startswith("wsw: "):
        return USAGE, MISSING
    words = {*command.words}
    statuses = (DONE, UNSTABLE) if "kvm" in command.needs else (DONE,)
    return (*statuses, FOUND) if "--fail-on" in words or "compare" in words else statuses


def printed(command: Command, ran: Ran) -> list[str]:
    """The lines a terminal would show where the page shows some: an error's, or what it printed."""
    return [line.rstrip() for line in (ran.err if USAGE in expected_statuses(command) else ran.out).splitlines()]


def differs(shown: Sequence[str], lines: Sequence[str], *, whole: bool = True) -> str:
    """The first shown line that is not printed, empty if there is none.

    Args:
        shown: What a page shows, with ``…`` for what it leaves open.
        lines: What was printed.
        whole: What is printed after the last shown line is a difference too.
    """
    at, skipping = 0, False
    for line in shown:
        if line.strip() == ANYTHING:
            skipping = True
            continue
        pattern = re.compile(".*".join(re.escape(part) for part in line.rstrip().split(ANYTHING)))
        while skipping and at < len(lines) and not pattern.fullmatch(lines[at]):
            at += 1
        if at == len(lines) or not pattern.fullmatch(lines[at]):
            return line if line.strip() else f"an empty line, where {lines[at]!r} is" if at < len(lines) else "its end"
        at, skipping = at + 1, False
    if whole and not skipping and any(lines[at:]):
        return f"nothing more, where {next(line for line in lines[at:] if line)!r} is; write a line {ANYTHING}"
    return ""


def filled(document: Path) -> str:
    """The page's text with what its commands print today; those that need a device, or show nothing, are left."""
    text = document.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        place = workplace(Path(folder))
        new = []
        for command in commands(document):
            if command.needs:
                continue
            lines = printed(command, run(command.text, place))
            if command.shown and ANYTHING not in "".join(command.shown):
                new.append((command, "\n".join(lines).strip("\n") + "\n"))
    for command, lines_ in reversed(new):
        ending = re.search(r"\n*\Z", text[command.start : command.end])
        gap = "\n" * max(len(ending[0]) - 1, 0) if ending else ""
        opening = "\n" if text[command.start] == "\n" else ""
        text = text[: command.start] + opening + lines_ + gap + text[command.end :]
    return text


if __name__ == "__main__":
    for name in sys.argv[1:]:
        Path(name).write_text(filled(Path(name).resolve()), encoding="utf-8")
