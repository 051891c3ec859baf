"""CET for guests. Expected: kvm_initialize_cpu_caps, vmx_set_cpu_caps, svm_set_cpu_caps, __kvm_set_msr and the MSR
intercepts of 7.2.13; and what real KVM of 7.2.13 did in the lab with the programs beside this file (cet_lab.toml)."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldswitch.guest import toml
from worldswitch.kvm.cet import CET_MSRS, Offer, exists, offered, passed_through, refuses
from worldswitch.kvm.facts import kernel
from worldswitch.kvm.host import Host
from worldswitch.kvm.offers import offers
from worldswitch.kvm.policy import Policy
from worldswitch.kvm.vcpu import run
from worldswitch.x86.msrs import MSRS, refuses_cet

HERE = Path(__file__).parent
BOTH, SHSTK, IBT, NONE = (frozenset(f) for f in (("SHSTK", "IBT"), ("SHSTK",), ("IBT",), ()))
U_CET, S_CET, TABLE = MSRS["U_CET"], MSRS["S_CET"], MSRS["INTERRUPT_SSP_TABLE_ADDR"]
POINTERS = [MSRS[f"PL{ring}_SSP"] for ring in range(4)]
INTEL, AMD = Offer(amd=False, tdp=True), Offer(amd=True, tdp=True)


@pytest.mark.parametrize(
    ("version", "host", "expected"),
    [
        ("7.2.13", INTEL, BOTH),
        ("7.3-rc7", INTEL, BOTH),
        ("6.18.0", INTEL, BOTH),
        ("6.12.117", INTEL, NONE),
        ("5.10.223", INTEL, NONE),
        ("7.2.13", INTEL._replace(cet=False), NONE),
        ("7.2.13", INTEL._replace(unrestricted_guest=False), NONE),
        ("7.2.13", INTEL._replace(tdp=False, unrestricted_guest=False), NONE),
        ("7.2.13", INTEL._replace(smaller_maxphyaddr=True), NONE),
        ("7.2.13", AMD, SHSTK),
        ("7.2.13", AMD._replace(tdp=False), NONE),
        ("6.12.117", AMD, NONE),
    ],
)
def test_what_is_offered(version: str, host: Offer, expected: frozenset[str]) -> None:
    """Rule cet-offered."""
    assert offered(kernel(version), host) == expected


@pytest.mark.parametrize(
    ("cpu", "mmu", "settings", "expected"),
    [
        ("intel", "default", [], BOTH),
        ("intel", "legacy", [], None),
        ("intel", "shadow", [], NONE),
        ("intel", "default", ["kvm_intel.cet=0"], NONE),
        ("intel", "default", ["cpuid.shstk=0"], IBT),
        ("intel", "default", ["cpuid.ibt=0"], SHSTK),
        ("amd", "default", [], SHSTK),
        ("amd", "default", ["cpuid.shstk=0"], NONE),
    ],
)
def test_what_a_guest_gets(cpu: str, mmu: str, settings: list[str], expected: frozenset[str] | None) -> None:
    assert Policy.of("7.2", cpu, mmu, settings).cet == (BOTH if expected is None else expected)


def test_which_registers_there_are() -> None:
    """Rule cet-msrs."""
    for features in (BOTH, SHSTK):
        assert all(exists(features, msr) for msr in CET_MSRS)
    assert [msr for msr in sorted(CET_MSRS) if exists(IBT, msr)] == [U_CET, S_CET]
    assert not any(exists(NONE, msr) for msr in CET_MSRS)


# Value, then refused with both features, SHSTK alone, IBT alone.
CONTROLS = [
    (0x0, "nnn"),
    (0x3, "nny"),
    (0x4, "nyn"),
    (0x3C, "nyn"),
    (0x40, "yyy"),
    (0x200, "yyy"),
    (0x400, "nyn"),
    (0x800, "nyn"),
    (0xC00, "yyy"),
    (0x1000, "yyy"),
    (0x3000, "yyy"),
    (0x4000, "nyn"),
    (0xFFFF_8000_0000_0000, "nyn"),
]


@pytest.mark.parametrize(("value", "expected"), CONTROLS)
def test_values_that_kvm_refuses(value: int, expected: str) -> None:
    """Rule cet-msr-refused."""
    for msr in (U_CET, S_CET):
        assert "".join("ny"[refuses(features, msr, value)] for features in (BOTH, SHSTK, IBT)) == expected
    for pointer in POINTERS:
        assert [refuses(BOTH, pointer, v) for v in (0, 4, 2, 1, 1 << 47, (1 << 47) - 4, 1 << 63)] == [
            False, False, True, True, True, False, True,
        ]  # fmt: skip
    assert [refuses(BOTH, TABLE, v) for v in (0, 1, 1 << 47, -1 << 47 & (1 << 64) - 1)] == [False, False, True, False]


def test_which_registers_exit() -> None:
    """Rule cet-msrs-passed."""
    for features in (BOTH, SHSTK):
        assert [msr for msr in sorted(CET_MSRS) if not passed_through(features, msr)] == [TABLE]
    assert [msr for msr in sorted(CET_MSRS) if passed_through(IBT, msr)] == [U_CET, S_CET]
    assert not any(passed_through(NONE, msr) for msr in CET_MSRS)


@given(st.sampled_from(sorted(CET_MSRS)), st.integers(0, 2**64 - 1) | st.integers(0, 2**16))
def test_what_kvm_takes_the_processor_takes(msr: int, value: int) -> None:
    """Pointers and tables whole; whether the bitmap of U_CET and S_CET is canonical KVM leaves to it."""
    if msr in (U_CET, S_CET):
        value &= (1 << 47) - 1
    if not refuses(BOTH, msr, value):
        assert not refuses_cet(msr, value)


RUNS = tomllib.loads((HERE / "cet_lab.toml").read_text())["run"]
LAB = Host(huge_pages=False, decode_assists=False, next_rip=False)


@pytest.mark.parametrize("found", RUNS, ids=lambda one: f"{one['program']}-{one['name']}")
def test_it_does_what_real_kvm_did(found: dict[str, Any]) -> None:
    program = toml.loads((HERE / "programs" / f"{found['program']}.toml").read_text())
    policy = Policy.of(found["kernel"], found["cpu"], found["mmu"], found["settings"])
    none, once = (run(program, policy, n, host=LAB) for n in (0, 1))
    report = once.reports[0]
    assert report is not None
    body = [(int(fault.operation.rpartition(" ")[2]), fault.vector, fault.error_code) for fault in report.log]
    assert [number for number, _, _ in body] == found["gp"]
    assert {(vector, code) for _, vector, code in body} <= {(13, 0)}
    kept = [i for i, one in enumerate(program.vcpus[0].body) if getattr(one, "keep", False)]
    assert [report.values.get(f"vcpu 0 body {i}", 0) for i in kept] == found["values"]
    exits = {r: n - none.exits_by_reason.get(r, 0) for r, n in once.exits_by_reason.items()}
    assert {reason: count for reason, count in exits.items() if count} == found["exits"]


def test_cpuid_is_what_real_kvm_showed() -> None:
    """KVM_GET_SUPPORTED_CPUID in the lab's Bochs, 2026-11-30, asked by worldswitch.live.cpuid.offered."""
    names = ("shstk", "ibt", "pku")
    for version, mmu, settings, seen in (
        ("7.2.13", "default", [], {"shstk", "ibt", "pku"}),
        ("7.2.13", "shadow", [], set()),
        ("7.2.13", "default", ["kvm_intel.cet=0"], {"pku"}),
        ("7.2.13", "default", ["unrestricted_guest=0"], {"pku"}),
        ("7.2.13", "default", ["allow_smaller_maxphyaddr=1"], {"pku"}),
        ("6.12.117", "default", [], {"pku"}),
    ):
        policy = Policy.of(version, "intel", mmu, settings)
        assert {name for name in names if offers(policy, name)} == seen


# KVM_SET_MSRS of 7.2.13 in the lab's Bochs, 2026-11-30: refused or not, by the guest's features.
SET_VALUES = [0, 0x1, 0x2, 0x3, 0x4, 0x3C, 0x40, 0x200, 0x400, 0x800, 0xC00, 0x1000, 0x2000, 0x3000, 0x4000]
SET_VALUES += [0x7FFF_FFFF_FFFC, 0x7FFF_FFFF_F000, 1 << 47, 0xFFFF_8000_0000_0000, 1 << 63, 0xFFFF_FFFF_FFFF_FFFC]
SET_MSRS = [
    (BOTH, U_CET, "nnnnnnyynnyyyynyynnny"),
    (BOTH, S_CET, "nnnnnnyynnyyyynyynnny"),
    (BOTH, POINTERS[0], "nyyynnnnnnnnnnnnnynyn"),
    (BOTH, POINTERS[3], "nyyynnnnnnnnnnnnnynyn"),
    (BOTH, TABLE, "nnnnnnnnnnnnnnnnnynyn"),
    (SHSTK, U_CET, "nnnnyyyyyyyyyyyyyyyyy"),
    (SHSTK, S_CET, "nnnnyyyyyyyyyyyyyyyyy"),
    (SHSTK, POINTERS[0], "nyyynnnnnnnnnnnnnynyn"),
    (SHSTK, POINTERS[3], "nyyynnnnnnnnnnnnnynyn"),
    (SHSTK, TABLE, "nnnnnnnnnnnnnnnnnynyn"),
    (IBT, U_CET, "nyyynnyynnyyyynyynnny"),
    (IBT, S_CET, "nyyynnyynnyyyynyynnny"),
]


@pytest.mark.parametrize(("features", "msr", "refused"), SET_MSRS, ids=range(len(SET_MSRS)))
def test_values_that_real_kvm_refused_from_userspace(features: frozenset[str], msr: int, refused: str) -> None:
    assert "".join("ny"[refuses(features, msr, value)] for value in SET_VALUES) == refused
