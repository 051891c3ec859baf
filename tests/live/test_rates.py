"""Rates of two samples made by hand. What is expected is computed in the comments."""

from __future__ import annotations

from worldswitch.live.folders import Reading
from worldswitch.live.rates import between, told
from worldswitch.live.reasons import NOT_TOLD
from worldswitch.live.sampling import Sample

S = 10**9


def reading(at_ns: int, name: str = "7-11", inode: int = 5, reasons=None, vcpus=None, **counters: int) -> Reading:
    return Reading(name, inode, 7, "vmm", at_ns, counters, vcpus or {}, 1, reasons)


def sample(*readings: Reading, at_ns: int = 0, traced: bool = False) -> Sample:
    return Sample(at_ns or readings[0].at_ns, readings, traced=traced)


def test_a_rate_is_what_was_counted_over_the_time_between_the_vms_own_readings() -> None:
    before = sample(reading(1 * S, exits=100, pages_4k=7), at_ns=1)
    (vm,) = between(before, sample(reading(3 * S, exits=700, pages_4k=3), at_ns=9 * S)).vms
    # (700 - 100) / (3 s - 1 s); a state has a value and no rate.
    assert (vm.rates, vm.totals, vm.states) == ({"exits": 300.0}, {"exits": 700}, {"pages_4k": 3})
    assert (vm.seconds, vm.new, vm.reset) == (2.0, False, False)


def test_a_counter_set_to_0_has_grown_since_then_and_the_vm_says_so() -> None:
    before = sample(reading(S, exits=1_000, io_exits=10))
    (vm,) = between(before, sample(reading(2 * S, exits=40, io_exits=15))).vms
    assert vm.rates == {"exits": 40.0, "io_exits": 5.0}
    assert vm.reset


def test_a_state_that_falls_is_no_reset() -> None:
    (vm,) = between(sample(reading(S, nx_lpage_splits=9)), sample(reading(2 * S, nx_lpage_splits=1))).vms
    assert not vm.reset


def test_the_first_sample_has_states_and_no_rates() -> None:
    rates = between(None, sample(reading(S, exits=5, pages_2m=2)))
    (vm,) = rates.vms
    assert (rates.seconds, vm.new, vm.rates, vm.states) == (0.0, True, {}, {"pages_2m": 2})


def test_vms_come_and_go() -> None:
    before = sample(reading(S, "7-11", exits=1), reading(S, "8-11", exits=1))
    rates = between(before, sample(reading(2 * S, "8-11", exits=3), reading(2 * S, "9-11", exits=500)))
    assert rates.gone == ("7-11",)
    assert [(vm.name, vm.new, vm.rates) for vm in rates.vms] == [("8-11", False, {"exits": 2.0}), ("9-11", True, {})]
    assert rates.total("exits") == 2.0


def test_another_vm_of_the_same_name_is_new_not_reset() -> None:
    """A VMM that ended and one that got its thread's number and descriptor: another folder, another inode."""
    rates = between(sample(reading(S, inode=5, exits=900)), sample(reading(2 * S, inode=6, exits=3)))
    assert [(vm.new, vm.reset, vm.rates) for vm in rates.vms] == [(True, False, {})]
    assert rates.gone == ()


def test_a_counter_that_comes_later_has_no_rate_yet() -> None:
    (vm,) = between(sample(reading(S, exits=1)), sample(reading(2 * S, exits=2, pf_taken=77))).vms
    assert vm.rates == {"exits": 1.0}


def test_each_vcpu_has_its_rates() -> None:
    before = sample(reading(S, exits=30, vcpus={0: {"exits": 10}, 1: {"exits": 20}}))
    after = sample(reading(2 * S, exits=75, vcpus={0: {"exits": 15}, 1: {"exits": 60}, 2: {"exits": 9}}))
    (vm,) = between(before, after).vms
    assert vm.vcpus == {0: {"exits": 5.0}, 1: {"exits": 40.0}}


def test_reasons_of_trace_events_are_what_grew() -> None:
    one = sample(reading(S, exits=0, reasons={(0, "HLT"): 4, (0, "CPUID"): 9}), traced=True)
    two = sample(reading(3 * S, exits=90, reasons={(0, "HLT"): 10, (0, "CPUID"): 9, (1, "HLT"): 2}), traced=True)
    (vm,) = between(one, two).vms
    # (10 - 4) / 2 s, nothing, and (2 - 0) / 2 s.
    assert vm.reasons == {(0, "HLT"): 3.0, (1, "HLT"): 1.0}
    assert vm.by_reason() == {"HLT": 4.0}
    assert vm.traced


def test_the_sample_that_tracing_begins_at_has_no_reasons() -> None:
    (vm,) = between(sample(reading(S, exits=0)), sample(reading(2 * S, exits=9, reasons={(0, "HLT"): 9}))).vms
    assert (vm.reasons, vm.traced) == ({}, True)


def test_statistics_tell_reasons_and_interrupts_are_one() -> None:
    rates = {"exits": 100.0, "io_exits": 20.0, "halt_exits": 30.0, "irq_exits": 10.0}
    assert told(rates) == {"interrupt": 10.0, "IO": 20.0, "HLT": 30.0, NOT_TOLD: 40.0}


def test_reasons_of_all_vms_are_added_the_most_first() -> None:
    before = sample(*(reading(S, f"{n}-1", exits=0, halt_exits=0, io_exits=0) for n in (7, 8)))
    after = sample(*(reading(2 * S, f"{n}-1", exits=n, halt_exits=1, io_exits=n - 1) for n in (7, 8)))
    assert list(between(before, after).by_reason().items()) == [("IO", 13.0), ("HLT", 2.0)]
