"""``wsw conform``: what it is asked, what it writes and how it ends. No emulator runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from worldswitch.cli import DONE, FOUND, INTERRUPTED, MISSING, wsw
from worldswitch.conform import session
from worldswitch.conform.generate import USED, program
from worldswitch.conform.seen import Difference
from worldswitch.conform.session import Outcome, Plan, Unequal
from worldswitch.errors import MissingError
from worldswitch.guest.toml import load
from worldswitch.lab import artifacts
from worldswitch.lab.artifacts import KernelFiles

PROGRAM = program(1, 0, USED)


def kernel_files(spec: str, *_: object) -> KernelFiles:
    if spec == "9.9":
        raise MissingError("no kernel 9.9 is fetched; get it with `wsw lab fetch 9.9`")
    return KernelFiles(spec, f"{spec}.100", f"{spec}.0-cloud-amd64", Path("vmlinuz"), Path("modules"), "linux-image")


@pytest.fixture
def machines(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, str], Outcome]:
    """Outcomes by kernel and way to page, which the stand-in of a run gives; others are all equal."""
    told: dict[tuple[str, str], Outcome] = {}

    def conform(plan: Plan, machine: object, mmu: str, *_: object) -> Outcome:
        kernel = machine.kernel.version  # type: ignore[attr-defined]
        ran = len(plan.numbers()) + len(plan.shipped)
        return told.get((kernel, mmu), Outcome(kernel, machine.cpu, mmu, "qemu", ran, ran))  # type: ignore[attr-defined]

    monkeypatch.setattr(session, "conform", conform)
    monkeypatch.setattr(artifacts, "kernel_for", kernel_files)
    monkeypatch.setattr("worldswitch.cli.lab_kit.lab_kit", lambda: None)
    monkeypatch.setattr("worldswitch.lab.emulator.emulator", lambda *_: None)
    return told


def called(*words: str) -> Result:
    return CliRunner().invoke(wsw, ["conform", "-j", "1", *words], standalone_mode=False)


@pytest.mark.usefixtures("machines")
def test_equal_everywhere_is_done(tmp_path: Path) -> None:
    words = ("--kernel", "6.12", "--cpu", "amd", "--programs", "5", "--no-shipped")
    done = called(*words, "-o", str(tmp_path / "table.json"))
    assert done.return_value == DONE
    assert "6.12.100" in done.output
    rows = json.loads((tmp_path / "table.json").read_text())["rows"]
    assert [(row["mmu"], row["run"], row["equal"]) for row in rows] == [("default", 5, 5), ("shadow", 5, 5)]


def test_a_difference_is_found_written_and_can_be_run_again(
    machines: dict[tuple[str, str], Outcome], tmp_path: Path
) -> None:
    found = Outcome("6.12.100", "amd", "default", "qemu", 2, 1)
    found.unequal.append(Unequal("7", PROGRAM, (Difference("exits npf", "3", "4"),)))
    machines["6.12.100", "default"] = found
    done = called("--kernel", "6.12", "--cpu", "amd", "--mmu", "default", "--programs-to", str(tmp_path))
    assert done.return_value == FOUND
    assert "exits npf: model 3, real 4" in done.output
    path = tmp_path / "conform-6.12.100-amd-default-7.toml"
    assert f"wsw run {path} --on model,lab --kernel 6.12.100 --cpu amd --mmu default" in done.output
    assert load(str(path)) == PROGRAM


def test_a_named_difference_is_no_failure(machines: dict[tuple[str, str], Outcome]) -> None:
    found = Outcome("6.12.100", "amd", "default", "qemu", 2, 1)
    found.unequal.append(Unequal("7", PROGRAM, (Difference("exits npf", "3", "4"),), by="a-name"))
    machines["6.12.100", "default"] = found
    done = called("--kernel", "6.12", "--cpu", "amd", "--mmu", "default", "--json")
    assert done.return_value == DONE
    document = json.loads(done.output)
    assert document["rows"][0]["by_name"] == {"a-name": 1}
    assert document["differences"][0]["named"] == "a-name"


@pytest.mark.usefixtures("machines")
def test_a_kernel_that_is_not_here_is_missing_and_the_others_run() -> None:
    done = called("--kernel", "9.9,6.12", "--cpu", "amd", "--mmu", "default", "--programs", "1", "--no-shipped")
    assert done.return_value == MISSING
    assert "wsw lab fetch 9.9" in done.output
    assert "6.12.100" in done.output


def test_an_interrupt_shows_what_is_finished(machines: dict[tuple[str, str], Outcome]) -> None:
    machines["6.12.100", "default"] = Outcome(
        "6.12.100", "amd", "default", "qemu", 3, 3, interrupted=True, why="interrupted"
    )
    done = called("--kernel", "6.12,6.1", "--cpu", "amd", "--mmu", "default")
    assert done.return_value == INTERRUPTED
    assert "6.12.100" in done.output
    assert "6.1.100" not in done.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--cpu", "arm"), "arm"),
        (("--mmu", "shadows"), "shadow"),
        (("--only", "x"), "is not the number of a program"),
        (("--programs-to", "/none/here"), "does not exist"),
        (("-o", "/none/here/table.json"), "cannot be written"),
    ],
)
@pytest.mark.usefixtures("machines")
def test_what_makes_no_sense_is_said_before_anything_runs(words: tuple[str, ...], said: str) -> None:
    done = called("--kernel", "6.12", *words)
    assert done.exception is not None
    assert said in str(done.exception)
