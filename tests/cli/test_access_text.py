"""What is said of a run of the access program."""

from __future__ import annotations

from worldswitch.cli.access_text import access_cases, access_document, is_access
from worldswitch.guest.library.access import cases
from worldswitch.record.result import Cell, FaultSeen

CASES = cases(())
FAULTS = [FaultSeen(case.operation, 14, case.error_code, case.va, 0) for case in CASES if case.error_code is not None]


def cell(*faults: FaultSeen, features: str = "none") -> Cell:
    return Cell({"on": "kvm", "program": "access", "parameters": {"features": features}}, n=1, faults=faults)


def test_all_is_well() -> None:
    shown = access_cases(cell(*FAULTS))
    assert ["all", str(len(CASES)), str(len(FAULTS)), str(len(CASES))] in [line.split() for line in shown.splitlines()]
    assert "Not as the manuals say" not in shown
    assert "- 264 cases need smep\n" in shown
    document = access_document(cell(*FAULTS))
    assert (document["cases"], document["agree"], document["disagree"]) == (len(CASES), len(CASES), [])
    assert document["left_out"] == {"smep": 264, "smap": 660, "pku": 924}


def test_a_missing_a_wrong_and_a_stray_fault_are_named() -> None:
    _, wrong, *right = FAULTS
    other = FaultSeen(wrong.operation, 14, wrong.error_code ^ 4, wrong.cr2, 0)
    stray = FaultSeen("vcpu 0 setup 3", 13, 0, 0, 0)
    shown = access_cases(cell(other, stray, *right))
    assert (
        "Not as the manuals say\n- supervisor fetch of U W NX, WP=1: no fault; the manuals: #PF 0x11 at 0x40000000\n"
        in shown
    )
    assert "- user fetch of U W NX, WP=1: #PF 0x11 at 0x40000000; the manuals: #PF 0x15 at 0x40000000\n" in shown
    assert "- vcpu 0 setup 3, which is no case: #GP 0x0 at 0x0\n" in shown
    document = access_document(cell(other, stray, *right))
    assert (document["cases"], document["agree"]) == (len(CASES), len(CASES) - 2)
    assert document["strays"] == [{"operation": "vcpu 0 setup 3", "vector": 13, "error_code": 0, "cr2": 0}]


def test_with_all_features_nothing_is_left_out() -> None:
    assert "Left out" not in access_cases(cell(features="all"))
    assert access_document(cell(features="smap+smep"))["features"] == ["smep", "smap"]
    assert "wsw run access:features=smep+smap+pku" in access_cases(cell(features="smep+smap"))


def test_another_program_of_that_name_is_not_judged() -> None:
    assert is_access(cell())
    assert not is_access(Cell({"on": "kvm", "program": "access", "parameters": {}}))
    assert not is_access(Cell({"on": "kvm", "program": "cr0-wp", "parameters": {"features": "none"}}))
