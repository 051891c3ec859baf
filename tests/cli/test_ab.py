"""``wsw run --compare A,B``: turns, pairs, a verdict; and options that nothing would heed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from click.testing import CliRunner

from worldswitch.cli import ab, machines, wsw
from worldswitch.cli.compare_text import to_json
from worldswitch.cli.conditions import Conditions
from worldswitch.errors import MissingError, WorldswitchError
from worldswitch.kit.running import Failure, Say, Settings, Work
from worldswitch.record.result import Cell, Environment, Metric
from worldswitch.record.resultfile import load


class Host:
    """A machine that grows slower all the while, by more than pcid changes, and gives what it is told to."""

    turn = 0
    asked: ClassVar[list[tuple[bool, int | None]]] = []
    step = 20.0
    end: BaseException | None = None

    def __init__(self, _: Conditions) -> None:
        pass

    def environment(self) -> Environment:
        return Environment()

    def run(self, work: Sequence[Work], settings: Settings, say: Say) -> Iterator[Cell | Failure]:
        if Host.end is not None and Host.turn == 8:
            if isinstance(Host.end, KeyboardInterrupt):
                raise Host.end
            yield Failure("cpuid", Host.end)  # type: ignore[arg-type]
            return
        pcid = settings.features["pcid"]
        Host.asked.append((pcid, settings.repeat))
        value = 1000.0 * (1 + Host.turn / Host.step) * (1.05 if pcid else 1.0)
        Host.turn += 1
        yield Cell(
            {"on": "kvm", "program": "cpuid", "cpuid": dict(settings.features)},
            n=10,
            per_op={"exits": 1},
            metrics=(Metric("tsc", "ns", (value,)),),
        )


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type[Host]:
    Host.turn, Host.asked, Host.end, Host.step = 0, [], None, 20.0
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(machines._HOMES, "kvm", (__name__, "Host"))
    return Host


def run(*words: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(wsw, ["run", *words], standalone_mode=False, catch_exceptions=True)
    if isinstance(done.exception, WorldswitchError):
        raise done.exception
    assert done.exception is None, done.exception
    return done.return_value, done.stdout, done.stderr


PCID = ("cpuid", "--compare", "cpuid.pcid=0,cpuid.pcid=1")


def test_turns_are_a_b_b_a_with_one_run_each(host: type[Host]) -> None:
    run(*PCID, "--repeat", "3")
    assert host.asked == [(False, 1), (True, 1), (True, 1), (False, 1), (False, 1), (True, 1)]


def test_five_percent_are_told_through_a_drift_of_five_percent_a_turn(host: type[Host]) -> None:
    status, text, _ = run(*PCID)
    assert status == 1
    assert "cpuid.pcid True against False" in text
    assert "slower !" in text
    assert "A and B took turns" in text


def test_both_are_kept_and_compared_again_as_pairs(host: type[Host]) -> None:
    status, text, _ = run(*PCID, "--save", "both.json", "--junit", "v.xml", "--json")
    found = json.loads(text)["comparison"]
    (time,) = found["pairs"][0]["times"]
    assert (status, time["pairs"], time["verdict"]) == (1, ab.TURNS, "slower")
    kept = load("both.json")
    assert [len(cell.metrics[0].turns) for cell in kept.cells] == [ab.TURNS, ab.TURNS]
    again = CliRunner().invoke(wsw, ["compare", "both.json", "--json"], standalone_mode=False)
    assert json.loads(again.stdout) == found
    assert '<failure message="slower' in Path("v.xml").read_text()


def test_what_was_finished_before_an_interrupt_is_kept(host: type[Host]) -> None:
    host.end = KeyboardInterrupt()
    status, _, said = run(*PCID, "--save", "both.json")
    assert (status, said) == (130, "wsw: interrupted; what was finished is shown\n")
    assert [len(cell.metrics[0].values) for cell in load("both.json").cells] == [4, 4]


def test_what_was_finished_before_a_failure_is_compared(host: type[Host]) -> None:
    host.end = MissingError("no more")
    status, text, said = run(*PCID)
    assert (status, said) == (3, "wsw: no more\n")
    assert "cpuid.pcid True against False" in text


def test_counts_that_differ_between_turns_are_not_steady() -> None:
    cells = [Cell({"on": "kvm", "program": "p"}, per_op={"exits": n}) for n in (2, 2, 3)]
    assert ab.joined(cells[:2], [0, 3]).steady
    joined = ab.joined(cells, [0, 3, 4])
    assert not joined.steady
    assert "did not all count the same" in joined.notes[0]


def test_the_time_is_the_median_of_all_turns() -> None:
    cells = [
        Cell({"on": "kvm", "program": "p"}, metrics=(Metric("tsc", "ns", (v,)),), time_ns=(v, v, v))  # type: ignore[arg-type]
        for v in (3.0, 1.0, 2.0, 5.0, 4.0)
    ]
    found = ab.joined(cells, range(5)).time_ns
    assert found == (1.0, 3.0, 5.0)


def test_on_the_model_counts_are_exact_and_what_follows_from_the_kernel_is_passed_over() -> None:
    """5.10 has another MMU by default, so two conditions differ; facts/mmu: 5.10 unloads roots at a write of CR0.WP."""
    words = ("cr0-wp", "--on", "model", "--cpu", "intel", "--compare")
    status, text, _ = run(*words, "5.10,6.12")
    assert status == 0
    assert ["root_loads", "2", "0", "-2", "fewer"] in [line.split() for line in text.splitlines()]
    assert run(*words, "6.12,5.10")[0] == 1


def test_settings_are_compared_on_the_model() -> None:
    _, text, _ = run("cr0-wp", "--on", "model", "--kernel", "6.1", "--compare", "mmu=tdp,mmu=shadow", "--json")
    (pair,) = json.loads(text)["comparison"]["pairs"]
    assert pair["compared"] == {"name": "mmu", "a": "tdp", "b": "shadow"}


def test_python_prints_calls_that_do_the_same() -> None:
    words = ("cr0-wp", "--on", "model", "--cpu", "intel", "--compare", "5.10,6.12")
    program = run(*words, "--python")[1]
    scope: dict[str, Any] = {}
    exec(program, scope)
    expected = json.loads(run(*words, "--json")[1])["comparison"]
    assert to_json(ab.compared(scope["result"], "kernel"))["pairs"] == expected["pairs"]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--compare", "6.1"), "is not two"),
        (("--compare", "6.1,6.1", "--on", "model"), "names the same twice"),
        (("--compare", "mmu=tdp,cpu=amd", "--on", "model"), "differs in mmu and in cpu"),
        (("--compare", "mmu=tdp,mmu=npt", "--on", "model", "--kernel", "6.1"), "unknown mmu 'npt'"),
        (("--compare", "=1,=2"), "is not NAME=VALUE"),
        (("--compare", "5.10,6.1"), "this host runs one kernel"),
        (("--compare", "nx_huge_pages=never,nx_huge_pages=force"), "on kvm only cpuid.FEATURE"),
        (("--compare", "5.10,6.1", "--on", "model,lab"), "on one machine"),
        (("--compare", "5.10,6.1", "--on", "model", "--kernel", "6.12"), "kernel is given twice"),
        (("--compare", "5.10,6.1", "--on", "model", "--cpu", "amd,intel"), "give --cpu one value"),
        (("--compare", "cpuid.pcid=0,cpuid.pcid=1", "--set", "cpuid.pcid=0"), "given twice"),
        (("--compare", "cpuid.pcid=0,cpuid.pcid=1", "--repeat", "0"), "measures no times"),
        (("--compare", "5.10,6.1", "--on", "model", "--trace", "x"), "leave one of them out"),
        (("--junit", "x.xml"), "only --compare gives some"),
    ],
)
def test_what_cannot_be_compared(words: tuple[str, ...], why: str) -> None:
    with pytest.raises(WorldswitchError) as refused:
        run("cpuid", *words)
    assert why in str(refused.value)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("cpuid", "--on", "model", "--kernel", "6.1", "--repeat", "3"), "the model counts the same each time"),
        (("cpuid", "--on", "model", "--kernel", "6.1", "--deadline", "3s"), "the model ends by itself"),
        (("create-vm", "-n", "5"), "for create-vm none runs; --repeat says"),
        (("create-vm", "--deadline", "5s"), "for create-vm none runs"),
        (("create-vm", "--set", "cpuid.pcid=0"), "for create-vm none runs"),
        (("create-vm", "--on", "model", "--kernel", "6.1", "-n", "5"), "for create-vm none runs"),
        (("create-vm", "--on", "model", "--kernel", "6.1", "--set", "sim.cpus=0"), "nothing runs without a CPU"),
    ],
)
def test_options_that_nothing_would_heed_are_refused(words: tuple[str, ...], why: str) -> None:
    with pytest.raises(WorldswitchError) as refused:
        run(*words)
    assert why in str(refused.value)


def test_repeat_is_heeded_by_create_vm_on_the_model() -> None:
    words = ("create-vm", "--on", "model", "--kernel", "6.1", "--burst", "2", "--repeat", "3", "--json")
    assert json.loads(run(*words)[1])["results"][0]["n"] == 6


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--junit", "/"), "give --junit the name of a file"),
        (("--junit", "/nowhere/x.xml"), "or --junit elsewhere"),
        (("--junit", "x.json", "--save", "./x.json"), "name the same file"),
    ],
)
def test_files_that_cannot_be_are_refused_before_anything_runs(
    words: tuple[str, ...], why: str, host: type[Host]
) -> None:
    with pytest.raises(WorldswitchError, match=why):
        run("cpuid", "--on", "kvm", "--compare", "cpuid.pcid=0,cpuid.pcid=1", *words)
    assert host.turn == 0


def test_what_the_cells_have_to_say_is_told_as_in_any_run(tmp_path: Path) -> None:
    costs = tmp_path / "costs.toml"
    costs.write_text('[[costs]]\nevent = "exit.cr"\nlow = 1\nmid = 2\nhigh = 3\nunit = "ns"\norigin = "made up"\n')
    words = ("cr0-wp", "--on", "model", "--cpu", "amd", "--compare", "6.1.28,6.12", "--costs", str(costs))
    _, told, _ = run(*words)
    assert "no time: root_reload.tdp has no cost" in told


def test_times_by_the_same_costs_are_compared_on_the_model(tmp_path: Path) -> None:
    atoms = {"exit.cr": 1000, "exit.violation": 2000, "root_reload.tdp": 500}
    costs = tmp_path / "costs.toml"
    costs.write_text(
        "".join(
            f'[[costs]]\nevent = "{name}"\nlow = {ns}\nmid = {ns}\nhigh = {ns}\nunit = "ns"\norigin = "made up"\n'
            for name, ns in atoms.items()
        )
    )
    words = ("cr0-wp", "--on", "model", "--cpu", "amd", "--compare", "6.1.28,6.12", "--costs", str(costs), "--json")
    found = json.loads(run(*words)[1])
    (time,) = found["comparison"]["pairs"][0]["times"]
    before, after = (one["per_op"] for one in found["results"])
    # Both sides exit twice for CR0; 6.1.28 reloads its roots twice, and each of its other exits is a page fault.
    reloads = [before["root_unloads"], after["root_unloads"]]
    faults = [before["exits_by_reason"]["npf"], after["exits_by_reason"].get("npf", 0)]
    expected = [2 * 1000 + 2000 * fault + 500 * reload for fault, reload in zip(faults, reloads, strict=True)]
    assert [time["a"]["median"], time["b"]["median"]] == pytest.approx(expected)
    assert time["verdict"] == "faster"
