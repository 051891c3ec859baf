"""A plan on a machine that answers as the model does, but for a fault of its own: found, shrunken, counted. No emulator
runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from worldswitch.conform import batch
from worldswitch.conform.session import Outcome, Plan, conform, features_of, host_of
from worldswitch.guest import library
from worldswitch.guest import operations as ops
from worldswitch.guest.image import Image
from worldswitch.guest.paths import places
from worldswitch.guest.program import Program
from worldswitch.kvm.offers import offers
from worldswitch.kvm.policy import Policy
from worldswitch.kvm.vcpu import run
from worldswitch.lab import machine as lab
from worldswitch.lab.artifacts import KernelFiles
from worldswitch.lab.failures import MachineCrashed
from worldswitch.lab.jobs import About, Job, JobResult

MODEL = "EPYC,+svm,+npt"
POLICY = Policy.of("6.12", "amd", "default", [])
Change = Callable[[Program, dict[str, Any]], None]


class Stand:
    """Stands in for a machine of the lab: runs each program on the model and changes what it says.

    Programs are told by their names, which sessions give the images.
    """

    def __init__(self, change: Change | None = None) -> None:
        self.change = change
        self.known: dict[bytes, Program] = {}
        self.starts: list[int] = []
        self.ends: set[str] = set()
        self.stop_after: int | None = None

    def note(self, program: Program, image: Image) -> None:
        self.known[image.to_bytes()] = program

    def __call__(self, machine: lab.Machine, jobs: Sequence[Job], **_: Any) -> lab.Run:
        (job,) = jobs
        if self.stop_after is not None and len(self.starts) >= self.stop_after:
            raise KeyboardInterrupt
        times, count = int(job.argv[-2]), int(job.argv[-1])
        self.starts.append(count)
        programs = [self.known[bytes(job.files[f"{i}.img"])] for i in range(count)]
        if self.ends & {one.name for one in programs}:
            raise MachineCrashed("it crashed", (), "running")
        lines = [json.dumps({"features": ["smep", "smap", "fsgsbase"]})]
        lines += [json.dumps({"runs": [self.answer(one)] * times}) for one in programs]
        about = About("6.12.117", "#1", "quiet", {})
        return lab.Run([JobResult(0, "\n".join(lines).encode(), b"")], about, "qemu 7.2", True, 1.0)

    def answer(self, program: Program) -> dict[str, Any]:
        found = run(program, POLICY, host=host_of("amd"))
        (report,) = found.reports
        document: dict[str, Any] = {"exits": dict(found.exits_by_reason), "counters": dict(found.counters)}
        document["exits"]["interrupt"] = 7
        document["report"], document["ended"], document["interrupted"] = None, found.ended, []
        if report is not None:
            log = [[f.operation, f.vector, f.error_code, f.cr2, f.rip] for f in report.log]
            document["report"] = {
                "passes": report.passes, "faults": report.faults, "retries": report.retries, "log": log,
                "values": dict(report.values),
            }  # fmt: skip
        if self.change:
            self.change(program, document)
        return document


@pytest.fixture
def stand(monkeypatch: pytest.MonkeyPatch) -> Stand:
    found = Stand()
    monkeypatch.setattr(batch.lab, "run", found)
    from worldswitch.conform import session

    real = session.assemble

    def noted(program: Program) -> Image:
        image = real(program)
        found.note(program, image)
        return image

    monkeypatch.setattr(session, "assemble", noted)
    return found


def conformed(plan: Plan) -> Outcome:
    kernel = KernelFiles("6.12", "6.12.117", "6.12.117-cloud-amd64", Path("vmlinuz"), Path("modules"), "linux-image")
    return conform(plan, lab.Machine(kernel, "amd"), "default", MODEL, lambda _: None)


def test_what_the_model_says_is_equal_interrupts_aside(stand: Stand) -> None:
    found = conformed(Plan(30, shipped=("cr0-wp", "cpuid")))
    assert (found.ran, found.equal, found.unequal) == (32, 32, [])
    assert found.statistics_equal == found.statistics_ran == 32
    assert stand.starts == [32]


def test_what_an_emulator_gets_wrong_is_used_by_no_program_and_counted(stand: Stand) -> None:
    """Bochs 3.0's protection keys: cpu/paging.cc, handle_pkeys, against the SDM, volume 3, section 4.6.2."""
    kernel = KernelFiles("6.12", "6.12.117", "6.12.117-cloud-amd64", Path("vmlinuz"), Path("modules"), "linux-image")
    found = conform(Plan(0, shipped=("pkru",)), lab.Machine(kernel, "intel"), "default", "tigerlake", lambda _: None)
    assert (found.ran, found.failed, stand.starts) == (0, {}, [])
    assert found.left_out == {"the emulator gets a feature wrong that it needs": 1}
    intel = Policy.of("6.12", "intel", "default", [])
    assert offers(intel, "pku")
    assert "pku" not in features_of(intel, "tigerlake")


def one_exit_more_by_clts(program: Program, document: dict[str, Any]) -> None:
    if any(isinstance(place.operation, ops.Clts) for place in places(program)):
        document["exits"]["hlt"] += 1


def test_a_difference_is_shrunken_to_what_it_takes(stand: Stand) -> None:
    stand.change = one_exit_more_by_clts
    found = conformed(Plan(40, minimize=1))
    assert len(found.unexplained) > 1
    first = found.unexplained[0]
    assert first.minimal is not None
    assert [place.operation for place in places(first.minimal)] == [ops.Clts()]
    assert [str(one) for one in first.minimal_found] == ["exits hlt: model 1, real 2"]
    assert len(first.minimal.spaces) == 1
    assert found.unexplained[1].minimal is None


def test_a_program_that_differs_once_is_run_again(stand: Stand) -> None:
    answers = iter((True, False, False))

    def once(program: Program, document: dict[str, Any]) -> None:
        if program.name == "random-1-3" and next(answers, False):
            document["exits"]["hlt"] += 1

    stand.change = once
    found = conformed(Plan(5))
    assert (found.ran, found.equal, found.rescued) == (5, 5, 1)
    assert stand.starts == [5, 1]


def test_a_program_that_ends_the_machine_takes_no_other_with_it(stand: Stand) -> None:
    stand.ends = {"random-1-2"}
    found = conformed(Plan(6))
    assert (found.ran, found.equal) == (5, 5)
    assert list(found.failed) == ["2"]


def test_an_interrupt_keeps_what_is_finished(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worldswitch.conform.session.MOST", 4)
    stand.stop_after = 2
    found = conformed(Plan(20))
    assert (found.ran, found.interrupted, found.why) == (8, True, "interrupted")


def test_a_fault_code_that_the_emulator_gets_wrong_has_a_name(stand: Stand) -> None:
    def without_p(_: Program, document: dict[str, Any]) -> None:
        for fault in document["report"]["log"]:
            if fault[1] == 14 and fault[2] & 8:
                fault[2] &= ~1

    stand.change = without_p
    found = conformed(Plan(60))
    assert found.unequal
    assert {one.by for one in found.unequal} == {"emulated-rsvd-without-p"}
    assert found.unexplained == []


def as_the_emulator_has_lmsw(program: Program) -> dict[str, int]:
    host = replace(host_of("amd"), lmsw_exits=False)
    return dict(run(program, POLICY, host=host).exits_by_reason)


@pytest.mark.parametrize("more", [0, 1], ids=["exactly", "one exit less"])
def test_the_named_difference_of_lmsw_holds_for_exactly_its_exits(stand: Stand, more: int) -> None:
    def selective(program: Program, document: dict[str, Any]) -> None:
        exits = as_the_emulator_has_lmsw(program)
        if exits != {name: count for name, count in document["exits"].items() if name != "interrupt"}:
            document["exits"] = {**exits, "hlt": exits["hlt"] - more}

    stand.change = selective
    found = conformed(Plan(60, minimize=0))
    assert found.unequal
    assert {one.by for one in found.unequal} == ({""} if more else {"emulated-lmsw-selective"})


def test_a_shipped_program_the_guest_lacks_a_feature_for_is_not_run(stand: Stand) -> None:
    found = conformed(Plan(0, shipped=("cr4-cet", "cr0-wp")))
    assert found.ran == 1
    assert sum(found.left_out.values()) == 1
    assert "cr4-cet" in library.names()


def test_an_end_that_kvm_makes_is_a_difference_and_not_a_failure(stand: Stand) -> None:
    def ended(program: Program, document: dict[str, Any]) -> None:
        if program.name == "random-1-1":
            document["report"], document["ended"] = None, "internal error 3 at 0x1000"

    stand.change = ended
    found = conformed(Plan(3, minimize=0))
    assert (found.ran, found.equal, found.failed) == (3, 2, {})
    (one,) = found.unexplained
    assert [str(each) for each in one.found] == ["end: model the program's, real internal error 3 at 0x1000"]
