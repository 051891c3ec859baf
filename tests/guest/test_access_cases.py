"""Real page faults against the architecture's: every access case this host's KVM can run; by name those it cannot."""

from __future__ import annotations

import pytest

from worldswitch.guest import library
from worldswitch.guest.assemble import assemble
from worldswitch.guest.image import MAX_FAULTS, Fault
from worldswitch.guest.library.access import FEATURES, cases, judge, left_out, spec_for
from worldswitch.guest.paths import places
from worldswitch.x86.access import Kind


def test_there_are_enough_cases_without_and_with_features() -> None:
    plain, every = cases(()), cases(FEATURES)
    assert len(plain) >= 60
    assert len(every) > len(plain)
    assert len({str(case) for case in every}) == len(every)
    assert {case.kind for case in plain} == set(Kind)
    assert {case.user for case in plain} == {True, False}
    codes = {case.error_code for case in every}
    # Nothing, absent, each of W, U, I with P, reserved, key: SDM volume 3, section 4.7.
    assert {None, 0, 2, 4, 6, 16, 20, 1, 3, 5, 7, 17, 21, 9, 11, 13, 15, 25, 29, 33, 35, 37, 39} <= codes


def test_each_case_is_the_operation_at_its_path() -> None:
    program = library.program("access:features=all")
    operations = {place.path: place.operation for place in places(program)}
    words = {Kind.READ: "load", Kind.WRITE: "store", Kind.FETCH: "fetch"}
    for case in cases(FEATURES):
        operation = operations[case.operation]
        assert (operation.word, operation.va, operation.user) == (words[case.kind], case.va, case.user)  # type: ignore[attr-defined]


def test_the_log_has_room_for_every_fault() -> None:
    assert sum(case.error_code is not None for case in cases(FEATURES)) <= MAX_FAULTS


def test_what_a_host_cannot_do_is_counted_by_name() -> None:
    missing = left_out(("smep", "la57"))
    assert list(missing) == ["smap", "pku"]
    assert all(count >= 60 for count in missing.values())
    assert spec_for(("smep", "pku", "la57")) == "access:features=smep+pku"
    assert spec_for(()) == "access"


def test_a_case_agrees_only_with_its_fault() -> None:
    faulting = next(case for case in cases(()) if case.error_code is not None)
    quiet = next(case for case in cases(()) if case.error_code is None)
    code = faulting.error_code or 0
    fault = Fault(faulting.operation, 14, code, faulting.va, 0)
    assert judge([faulting, quiet], [fault]).agrees
    for wrong in (
        [Fault(faulting.operation, 13, code, faulting.va, 0)],
        [Fault(faulting.operation, 14, code ^ 1, faulting.va, 0)],
        [Fault(faulting.operation, 14, code, faulting.va + 8, 0)],
        [fault, fault],
        [],
    ):
        assert not judge([faulting], wrong).verdicts[0].agrees
    assert not judge([quiet], [Fault(quiet.operation, 14, 0, quiet.va, 0)]).agrees


def test_a_fault_of_what_is_no_case_is_told_apart() -> None:
    stray = Fault("vcpu 0 setup 0", 14, 0, 0, 0)
    assert judge(cases(()), [stray]).strays == (stray,)
    assert not judge([], [stray]).agrees


@pytest.mark.needs("kvm")
def test_real_faults_are_those_of_the_architecture(capsys: pytest.CaptureFixture[str]) -> None:
    from worldswitch.live.cpuid import offered
    from worldswitch.live.device import Kvm
    from worldswitch.live.machine import run_image

    with Kvm() as kvm:
        host = [name for name, is_there in offered(kvm).items() if is_there and name in FEATURES]
        outcome = run_image(kvm, assemble(library.program(spec_for(host))), 1)
    report = outcome.reports[0]
    assert report is not None
    assert report.passes == 1
    verdicts, strays = judge(cases(host), report.log)
    assert strays == ()
    with capsys.disabled():
        missing = ", ".join(f"{name} ({count} cases)" for name, count in left_out(host).items()) or "nothing"
        print(f"\naccess cases on this KVM: {len(verdicts)} run; left out for want of {missing}")
    assert len(verdicts) >= 60
    assert [str(v.case) + f": {v.seen}, not {v.case.error_code}" for v in verdicts if not v.agrees] == []
