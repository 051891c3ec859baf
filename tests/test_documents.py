"""What the documents show is true: commands print what stands under them, and Python runs."""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tools"))

import docs_commands  # noqa: E402
from docs_commands import ANYTHING, Command, blocks, commands, differs, documents, expected_statuses, printed  # noqa: E402

COMMANDS = [command for document in documents() for command in commands(document)]
ILLUSTRATIONS = ("text", "toml", "json", "yaml", "html", "diff", "ini")
"""Languages of fences that are shown and not run."""


def each(chosen: list[Command]) -> pytest.MarkDecorator:
    """The commands, as parameters; each is skipped where what it needs is not here."""
    return pytest.mark.parametrize(
        "command", [pytest.param(one, marks=pytest.mark.needs(*one.needs), id=one.name) for one in chosen]
    )


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    """``wsw`` sets up its process for one command; this one goes on."""
    thresholds, interval = gc.get_threshold(), sys.getswitchinterval()
    yield
    gc.set_threshold(*thresholds)
    sys.setswitchinterval(interval)


def ran(command: Command, folder: Path) -> docs_commands.Ran:
    """The command's outcome, after those whose files it takes."""
    place = docs_commands.workplace(folder)
    for line in command.first:
        docs_commands.run(line, place)
    outcome = docs_commands.run(command.text, place)
    assert outcome.status in expected_statuses(command), f"{command.name}\n{outcome.err}"
    return outcome


def without_gap(command: Command) -> Sequence[str]:
    """What is shown, without the empty line that sets it off."""
    return command.shown[1:] if command.shown[:1] == ("",) else command.shown


@each([command for command in COMMANDS if not command.needs or command.needs == ("python3",)])
def test_a_command_prints_what_the_document_shows(command: Command, tmp_path: Path) -> None:
    lines = printed(command, ran(command, tmp_path))
    while lines[:1] == [""]:
        lines.pop(0)
    if command.shown:
        assert differs(without_gap(command), lines) == "", command.name


def row_heads(lines: Sequence[str]) -> list[str]:
    """What each line begins with, up to the first number or gap."""
    shown = [line for line in lines if not line.startswith("─") and line.strip() != ANYTHING]
    return [re.split(r"\s\s+|\s(?=\d)", line)[0] for line in shown]


@each([command for command in COMMANDS if {"kvm", "kvm-events"} & {*command.needs}])
def test_a_run_on_kvm_has_the_rows_the_document_shows(command: Command, tmp_path: Path) -> None:
    """Numbers are those of the machine it runs on."""
    heads = iter(row_heads(printed(command, ran(command, tmp_path))))
    # In this order, perhaps with others between.
    assert [head for head in row_heads(without_gap(command)) if head not in heads] == [], command.name


LAB = [command for command in COMMANDS if command.takes_minutes]


@each([command for command in LAB if command.shown])
def test_a_run_in_the_lab_prints_what_the_document_shows(command: Command, tmp_path: Path) -> None:
    lines = printed(command, ran(command, tmp_path))
    assert differs(without_gap(command), lines) == "", command.name


@pytest.mark.parametrize("command", [one for one in LAB if not one.shown], ids=lambda one: one.name)
def test_a_command_of_the_lab_is_understood(command: Command, tmp_path: Path) -> None:
    """Many machines, minutes each: the command line is parsed, and the Python it would be is valid."""
    ours, dashes, theirs = command.text.partition("#")[0].partition(" -- ")
    outcome = docs_commands.run(f"{ours} --python{dashes}{theirs}", docs_commands.workplace(tmp_path))
    assert outcome.status == 0, outcome.err
    compile(outcome.out, command.name, "exec")


@pytest.mark.parametrize("document", documents(), ids=lambda page: page.name)
def test_every_block_says_whether_it_is_run(document: Path) -> None:
    """Commands after ``$``, Python, or a language that says it is only shown."""
    run = {command.start for command in commands(document)}
    unclear = [
        block.text.splitlines()[0]
        for block in blocks(document)
        if block.language not in (*ILLUSTRATIONS, "python")
        and not any(block.start <= start <= block.start + len(block.text) for start in run)
    ]
    assert unclear == [], f"{document.name}: what is only shown is a block of ```text"


def pythons() -> Iterator[object]:
    for page in documents():
        for number, block in enumerate(block for block in blocks(page) if block.language == "python"):
            needs = ("lab-amd",) if "worldswitch.lab" in block.text else ()
            yield pytest.param(page, block.text, id=f"{page.name}-{number}", marks=pytest.mark.needs(*needs))


@pytest.mark.parametrize(("document", "code"), list(pythons()))
def test_python_in_a_document_runs(document: Path, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    exec(compile(code, str(document), "exec"), {})


@pytest.mark.parametrize(
    ("shown", "lines", "difference"),
    [
        (["a", "b"], ["a", "b"], ""),
        (["a"], ["a", "", ""], ""),
        (["a"], ["a", "b"], "nothing more, where 'b' is; write a line …"),
        (["a", "…"], ["a", "b"], ""),
        (["a", "…", "c"], ["a", "b", "b", "c"], ""),
        (["a", "…", "c"], ["a", "b"], "c"),
        (["took … ms, 3"], ["took 17.2 ms, 3"], ""),
        (["took … ms, 3"], ["took 17.2 ms, 4"], "took … ms, 3"),
        (["a.c"], ["abc"], "a.c"),
        (["a", "b"], ["a"], "b"),
        (["…", "b"], ["a", "b", "c"], "nothing more, where 'c' is; write a line …"),
    ],
)
def test_what_counts_as_printed(shown: list[str], lines: list[str], difference: str) -> None:
    assert differs(shown, lines) == difference


def test_commands_are_found_with_what_is_under_them(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```\n$ wsw rules --json > a.json\n$ wsw compare a.json \\\n    b.json\nsame\n```\n"
        "```sh\n# why\nwsw run cr0-wp --save b.json\n```\n```text\n$ wsw top\n```\n"
        "```console\n$ wsw compare b.json\n```\n"
    )
    found = commands(page)
    assert [(one.text, one.shown) for one in found] == [
        ("wsw rules --json > a.json", ()),
        ("wsw compare a.json      b.json", ("same",)),
        ("wsw run cr0-wp --save b.json", ()),
        ("wsw compare b.json", ()),
    ]
    assert [one.first for one in found] == [
        (), ("wsw rules --json > a.json",), (), ("wsw run cr0-wp --save b.json",),
    ]  # fmt: skip
    assert [one.needs for one in found] == [(), (), ("kvm",), ("kvm",)]


def test_every_document_the_readme_links_to_is_there() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_public_names_can_be_imported() -> None:
    import worldswitch

    assert worldswitch.__all__ == sorted(worldswitch.__all__, key=lambda name: (name[0].islower(), name))
    for name in worldswitch.__all__:
        assert getattr(worldswitch, name) is not None
