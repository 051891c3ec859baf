"""What the documents show is true: commands print what stands under them, and Python runs."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OFFLINE = ("analyze", "whatif", "kernels", "rules", "doctor")
ALWAYS_THE_SAME = ("tables", "nx", "rules")


def blocks(language: str) -> list[tuple[Path, str]]:
    return [
        (document, found[2])
        for document in DOCUMENTS
        for found in FENCED.finditer(document.read_text(encoding="utf-8"))
        if found[1] == language
    ]


def shown_commands() -> list[tuple[Path, str, str]]:
    """Commands of ours, with what is shown under them."""
    found = []
    for document, block in blocks(""):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, shown = part.partition("\n")
            if command.startswith("wsw "):
                found.append((document, command, shown.strip("\n")))
    return found


def sessions() -> list[tuple[Path, str, str]]:
    """Commands on recordings that ship: what they print is always the same."""
    return [
        (document, command, shown)
        for document, command, shown in shown_commands()
        if (command.split()[1] in OFFLINE and "tests/data/" in command) or command.split()[1] in ALWAYS_THE_SAME
    ]


def runs() -> list[tuple[Path, str, str]]:
    """Commands that run something on this host's KVM: what they print differs in its numbers."""
    return [one for one in shown_commands() if one[1].split()[1] == "run" and not re.search(r"--on \S*lab", one[1])]


@pytest.mark.parametrize(("document", "command", "shown"), sessions(), ids=lambda value: str(value)[:40])
def test_a_command_prints_what_the_document_shows(document: Path, command: str, shown: str) -> None:
    words = [str(Path(sys.executable).with_name("wsw")), *shlex.split(command)[1:]]
    printed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    lines = [line.rstrip() for line in printed.splitlines()]
    expected = [line.rstrip() for line in shown.splitlines()]
    assert expected == lines[: len(expected)], f"{document.name}: {command}"


def row_heads(text: str) -> list[str]:
    """What each line begins with, up to the first number or gap."""
    return [re.split(r"\s\s+|\s(?=\d)", line)[0] for line in text.splitlines() if not line.startswith("─")]


@pytest.mark.needs("kvm")
@pytest.mark.parametrize(("document", "command", "shown"), runs(), ids=lambda value: str(value)[:40])
def test_a_run_has_the_rows_the_document_shows(document: Path, command: str, shown: str) -> None:
    words = [str(Path(sys.executable).with_name("wsw")), *shlex.split(command)[1:]]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    # 4: a busy host kept counts from settling.
    assert done.returncode in (0, 4), done.stderr
    printed = iter(row_heads(done.stdout))
    # In this order, perhaps with others between.
    assert [head for head in row_heads(shown) if head not in printed] == [], f"{document.name}: {command}"


@pytest.mark.parametrize(("document", "code"), blocks("python"), ids=lambda value: str(value)[:40])
def test_python_in_a_document_runs(document: Path, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    exec(compile(code, str(document), "exec"), {})


def test_every_document_the_readme_links_to_is_there() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_public_names_can_be_imported() -> None:
    import worldswitch

    assert worldswitch.__all__ == sorted(worldswitch.__all__, key=lambda name: (name[0].islower(), name))
    for name in worldswitch.__all__:
        assert getattr(worldswitch, name) is not None
