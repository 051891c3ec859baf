from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldswitch.errors import MissingError, UnknownNameError, UsageError
from worldswitch.live.events import CONTROL_REGISTERS, DEFAULT, choose
from worldswitch.trace.exits import EVENTS

KERNEL = {
    "kvm": ("kvm_cr", "kvm_entry", "kvm_exit", "kvm_pio", "kvm_apic"),
    "kvmmmu": ("kvm_mmu_get_page",),
    "sched": ("sched_switch",),
}


def test_the_default_is_what_the_analysis_reads() -> None:
    assert set(DEFAULT) == set(EVENTS)


def test_the_control_register_set_is_part_of_the_default() -> None:
    assert set(CONTROL_REGISTERS) < set(DEFAULT)


def test_a_set_is_cut_to_what_the_kernel_has() -> None:
    chosen, absent = choose("cr", KERNEL)
    assert chosen == ("kvm:kvm_exit", "kvm:kvm_entry", "kvm:kvm_cr")
    assert absent == ("kvm_emulate_insn", "kvm_page_fault")


def test_all_means_both_of_kvms_systems_and_no_other() -> None:
    chosen, _ = choose("all", KERNEL)
    assert {event.partition(":")[0] for event in chosen} == {"kvm", "kvmmmu"}
    assert len(chosen) == 6


@pytest.mark.parametrize(
    ("word", "event"),
    [
        ("kvm_apic", "kvm:kvm_apic"),
        ("kvm:kvm_apic", "kvm:kvm_apic"),
        ("kvm_mmu_get_page", "kvmmmu:kvm_mmu_get_page"),
        ("sched_switch", "sched:sched_switch"),
    ],
)
def test_an_event_is_found_with_or_without_its_system(word: str, event: str) -> None:
    assert choose(word, KERNEL) == ((event,), ())


def test_sets_and_events_add_up_without_repeats() -> None:
    chosen, _ = choose("cr, kvm_apic,kvm_exit", KERNEL)
    assert chosen == ("kvm:kvm_exit", "kvm:kvm_entry", "kvm:kvm_cr", "kvm:kvm_apic")


def test_an_unknown_event_is_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"'kvm_exti'; nearest: kvm_exit"):
        choose("default,kvm_exti", KERNEL)


@pytest.mark.parametrize("words", ["", " , "])
def test_no_event_at_all_is_refused(words: str) -> None:
    with pytest.raises(UsageError, match="names no event"):
        choose(words, KERNEL)


def test_a_kernel_without_any_of_them_is_told() -> None:
    with pytest.raises(MissingError, match="none of the events cr"):
        choose("cr", {"kvm": ("kvm_apic",)})


@given(st.text(alphabet="kvm_exit:,cr al\n\x1b", max_size=40))
def test_whatever_is_asked_for_only_real_events_come_out(wanted: str) -> None:
    real = {f"{system}:{name}" for system, names in KERNEL.items() for name in names}
    try:
        chosen, _ = choose(wanted, KERNEL)
    except (UsageError, MissingError) as error:
        assert str(error).isprintable()
    else:
        assert set(chosen) <= real
