from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings

from traces import flat, traces
from worldswitch.record.formats import Kind
from worldswitch.record.schema import KNOWN, generated
from worldswitch.record.trace import Columns, Trace

KVM_EXIT_6_1 = {
    "exit_reason": (8, 4),
    "guest_rip": (16, 8),
    "isa": (24, 4),
    "info1": (32, 8),
    "info2": (40, 8),
    "intr_info": (48, 4),
    "error_code": (52, 4),
    "vcpu_id": (56, 4),
}
"""tests/data/svm-6.1-npt/kvm_exit.format."""


def zeros(**kinds: str) -> Columns:
    return {name: np.zeros(1, kind) for name, kind in kinds.items()}


def test_kvm_exit_is_laid_out_as_linux_6_1_does() -> None:
    columns = zeros(
        vcpu_id="u4",
        exit_reason="u4",
        isa="u4",
        guest_rip="u8",
        info1="u8",
        info2="u8",
        intr_info="u4",
        error_code="u4",
    )
    form = generated("kvm_exit", columns, 300)
    assert {field.name: (field.offset, field.size) for field in form.fields} == KVM_EXIT_6_1
    assert (form.system, form.name, form.id) == ("kvm", "kvm_exit", 300)


@pytest.mark.parametrize(
    ("event", "columns", "expected"),
    [
        # arch/x86/kvm/trace.h of 5.10, 6.12 and 7.2
        ("kvm_entry", {"vcpu_id": "u4", "rip": "u8"}, {"vcpu_id": 8, "rip": 16}),
        ("kvm_cr", {"rw": "u4", "cr": "u4", "val": "u8"}, {"rw": 8, "cr": 12, "val": 16}),
        (
            "kvm_msr",
            {"write": "u4", "ecx": "u4", "data": "u8", "exception": "u1"},
            {"ecx": 12, "data": 16, "exception": 24},
        ),
        ("kvm_userspace_exit", {"reason": "u4", "errno": "i4"}, {"reason": 8, "errno": 12}),
        # arch/x86/kvm/mmu/mmutrace.h
        (
            "kvm_mmu_spte_requested",
            {"gfn": "u8", "pfn": "u8", "level": "u1"},
            {"gfn": 8, "pfn": 16, "level": 24},
        ),
    ],
)
def test_offsets_are_the_kernels(event: str, columns: dict[str, str], expected: dict[str, int]) -> None:
    offsets = {field.name: field.offset for field in generated(event, zeros(**columns), 1).fields}
    assert expected.items() <= offsets.items()


def test_a_column_the_kernel_does_not_have_is_kept() -> None:
    form = generated("kvm_cr", zeros(rw="u4", cr="u4", val="u8", extra="u8"), 1)
    assert [field.name for field in form.fields] == ["rw", "cr", "val", "extra"]


def test_mmu_events_are_of_the_system_kvmmmu() -> None:
    assert generated("kvm_mmu_get_page", {}, 1).system == "kvmmmu"
    assert generated("fast_page_fault", {}, 1).system == "kvmmmu"
    assert generated("sched:sched_switch", {}, 1).system == "sched"


def test_texts_become_dynamic_fields() -> None:
    form = generated("what", {"text": np.array(["x"], object)}, 1)
    assert [(field.name, field.kind) for field in form.fields] == [("text", Kind.DYNAMIC)]
    assert '"%s", __get_str(text)' in form.text


def test_names_that_no_format_can_hold_are_replaced() -> None:
    form = generated("kvm_cr:unparsed", {"text": np.array(["x"], object)}, 1)
    assert (form.system, form.name) == ("kvm", "kvm_cr_unparsed")
    assert generated("a b\nID 7", {}, 1).name == "a_b_ID_7"


@pytest.mark.parametrize("event", KNOWN)
def test_fields_never_overlap(event: str) -> None:
    columns = {
        word.split(":")[0]: np.zeros((1, 15), "u1")
        if "[" in word
        else np.zeros(1, word.split(":")[1].replace("b", "?"))
        for word in KNOWN[event].fields.split()
    }
    fields = generated(event, columns, 1).fields
    assert len(fields) == len(columns)
    assert all(a.offset + a.size <= b.offset for a, b in pairwise(fields))


@settings(max_examples=50, deadline=None)
@given(traces())
def test_every_column_gets_a_field_of_its_type(trace: Trace) -> None:
    for batch in trace.batches():
        for name, table in zip(batch.events, batch.tables, strict=True):
            form = generated(name, table, 1)
            assert {field.name for field in form.fields} == set(table)
    assert flat(trace) is not None
