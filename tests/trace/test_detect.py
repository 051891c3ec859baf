from __future__ import annotations

from scripts import EPT_VIOLATION, NPF, SVM, Event, entry, event, exit_, trace, write_wp
from worldswitch.record.trace import Trace
from worldswitch.trace.account import account
from worldswitch.trace.detect import DETECTORS, ROOT_CHURN, SAME_ADDRESS

ON, OFF = 0x80010033, 0x80000033


def fault(time: int, address: int, tid: int = 1, rip: int = 0x2000) -> list[Event]:
    """A page fault on a page that nothing maps."""
    return [
        exit_(time, tid, EPT_VIOLATION, rip=rip, info1=0x81),
        event(time + 1, "kvm_page_fault", tid, fault_address=address),
        entry(time + 5, tid),
    ]


def detections(made: Trace) -> dict[str, tuple[int, str]]:
    return {seen.id: (seen.count, seen.detail) for seen in account(made).detections}


def test_pages_that_fault_again_after_each_write_are_root_churn() -> None:
    parts = [entry(1), *(fault(10 + 20 * i, 0x1000 * i) for i in range(3))]
    for turn in range(4):
        now = 1000 * (turn + 1)
        parts += [write_wp(now, ON if turn % 2 else OFF), *(fault(now + 20 + 20 * i, 0x1000 * i) for i in range(3))]
    count, detail = detections(trace(*parts))[ROOT_CHURN]
    assert count == 12
    assert "after 4 CR0 writes (3 per write" in detail


def test_faults_on_new_pages_are_no_churn() -> None:
    parts = [entry(1), fault(10, 0x1000), write_wp(100, ON), fault(200, 0x5000), write_wp(300, OFF), fault(400, 0x9000)]
    assert ROOT_CHURN not in detections(trace(*parts))


def test_faults_of_another_vcpu_are_no_churn() -> None:
    parts = [entry(1), entry(2, 2), fault(10, 0x1000, tid=2), write_wp(100, ON), fault(200, 0x1000, tid=2)]
    assert ROOT_CHURN not in detections(trace(*parts))


def test_a_page_that_faults_again_and_again_without_a_write() -> None:
    parts = [entry(1), *(fault(10 + 20 * i, 0x7123) for i in range(20))]
    count, detail = detections(trace(*parts))[SAME_ADDRESS]
    assert count == 20
    assert "0x7000" in detail
    assert "0x2000" in detail


def test_a_page_that_faults_twice_is_usual() -> None:
    assert detections(trace(entry(1), fault(10, 0x7000), fault(30, 0x7000))) == {}


def test_amds_nested_faults_carry_their_address() -> None:
    faults = [
        part
        for i in range(20)
        for part in (exit_(10 + 9 * i, reason=NPF, isa=SVM, info1=6, info2=0x9000), entry(15 + 9 * i))
    ]
    assert detections(trace(entry(1), faults))[SAME_ADDRESS][0] == 20


def test_each_detector_is_described() -> None:
    assert all(text and text[0].islower() for text in DETECTORS.values())
