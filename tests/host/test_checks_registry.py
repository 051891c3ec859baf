"""What holds of all checks: ids, sources, documents, and that no profile trades safety silently."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from host.machines import VULNERABILITIES, changed, machine, made
from worldswitch.costs.published import published
from worldswitch.host.checks import gains
from worldswitch.host.finding import (
    BootParameter,
    DropIn,
    Finding,
    Profile,
    Remove,
    Run,
    Severity,
    Write,
    registered,
)
from worldswitch.kvm import facts, rules

DOCUMENT = Path(__file__).parents[2] / "docs" / "doctor-findings.md"
SOURCE = re.compile(r"(Documentation|arch|virt|kernel|lib)/|https://|Intel SDM|AMD APM|Message-ID")


def test_there_are_at_least_25_checks_and_no_id_twice():
    ids = [check.id for check in registered()]
    assert len(ids) == len(set(ids)) >= 25


@pytest.mark.parametrize("check", registered(), ids=lambda check: check.id)
def test_each_check_names_a_rule_a_fact_or_a_source(check):
    assert check.rule in rules.rules() or check.rule in facts.facts() or SOURCE.match(check.rule), check.rule


def test_the_document_has_each_check_in_a_line():
    rows = [line.split(" | ")[0].strip("| `") for line in DOCUMENT.read_text().splitlines() if line.startswith("| `")]
    assert rows == [check.id for check in registered()]
    text = DOCUMENT.read_text()
    for check in registered():
        assert f"| `{check.id}` | {check.about} | {check.rule} |" in text


_VALUES = {
    "kvm.nx_huge_pages": ["Y", "N", "never", "auto", "rubbish"],
    "kvm.nx_huge_pages_recovery_ratio": ["0", "1", "60"],
    "kvm.nx_huge_pages_recovery_period_ms": ["0", "100"],
    "kvm.tdp_mmu": ["Y", "N"],
    "kvm.halt_poll_ns": ["0", "200000", "9999999", "x"],
    "kvm.min_timer_period_us": ["0", "10", "200"],
    "kvm.ignore_msrs": ["Y", "N"],
    "kvm.force_emulation_prefix": ["0", "1", "Y"],
    "kvm_intel.ept": ["Y", "N"],
    "kvm_amd.npt": ["1", "0"],
    "kvm_intel.vmentry_l1d_flush": ["cond", "never"],
    "kvm_intel.nested": ["Y", "N"],
    "/proc/cmdline": [
        "mitigations=off", "quiet", "spec_rstack_overflow=ibpb", "kvm.nx_huge_pages=never", "mitigations=auto,nosmt",
        "kvm-intel.vmentry_l1d_flush=never nospectre_v2", "",
    ],
    "/proc/self/mountinfo": [
        "", "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,favordynmods",
        "30 23 0:26 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset",
    ],
    f"{VULNERABILITIES}/itlb_multihit": ["Not affected", "KVM: Vulnerable", "KVM: Mitigation: Split huge pages"],
    f"{VULNERABILITIES}/l1tf": [
        "Not affected", "Mitigation: PTE Inversion; VMX: vulnerable", "Mitigation: PTE Inversion; VMX: EPT disabled",
        "Mitigation: PTE Inversion; VMX: conditional cache flushes, SMT vulnerable",
    ],
    f"{VULNERABILITIES}/mds": ["Vulnerable; SMT vulnerable", "Mitigation: Clear CPU buffers; SMT vulnerable"],
    f"{VULNERABILITIES}/spec_rstack_overflow": ["Mitigation: IBPB", "Mitigation: Safe RET", "Vulnerable"],
    "/sys/devices/system/cpu/smt/active": ["0", "1"],
    "/sys/kernel/mm/ksm/run": ["0", "1", "2", "x"],
    "/sys/kernel/mm/transparent_hugepage/enabled": ["[always] madvise never", "always madvise [never]", ""],
    "/sys/kernel/debug/kvm/nx_lpage_splits": ["0", "10000"],
    "/sys/kernel/debug/kvm/pages_2m": ["0", "5"],
    "/sys/kernel/debug/kvm/pages_4k": ["0", "900000"],
}  # fmt: skip
_KERNELS = ["5.4.69", "5.10.177", "5.10.223", "5.15.106", "6.1.20", "6.1.190", "6.4.10", "6.12.117", "6.18.3", "7.2.13",
            "5.14.0-362.el9.x86_64", "junk"]  # fmt: skip


_MORE = [
    "/proc/irq/default_smp_affinity", "/sys/devices/system/cpu/isolated", "/sys/devices/system/cpu/nohz_full",
    "/sys/devices/system/cpu/cpu0/cpuidle/state3/latency", "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
    "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages",
    "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages",
    "/sys/module/haltpoll/parameters/guest_halt_poll_ns", "/sys/class/dmi/id/product_name", "/sys/kernel/realtime",
    f"{VULNERABILITIES}/l1tf", "/sys/kernel/debug/kvm/halt_poll_fail_ns", "/sys/kernel/debug/kvm/halt_poll_success_ns",
]  # fmt: skip


@st.composite
def hosts(draw):
    """Files of an Intel or AMD host with anything odd about it."""
    files = machine(draw(st.sampled_from(["intel", "amd"])), draw(st.sampled_from(_KERNELS)), draw(st.booleans()))
    names = draw(st.lists(st.sampled_from(sorted(_VALUES)), max_size=8, unique=True))
    changes = [(name, draw(st.sampled_from([*_VALUES[name], None]))) for name in names]
    gone = draw(st.lists(st.sampled_from(sorted(files)), max_size=5))
    return changed(files, *changes, *((path, None) for path in gone))


def _all(host, profile):
    for check in registered():
        said = check.examine(host, profile)
        if said is not None:
            yield from [said] if isinstance(said, Finding) else said


def _given(steps):
    """What steps set, as text."""
    for step in steps:
        if isinstance(step, Write):
            yield f"{step.path}={step.value}"
        elif isinstance(step, DropIn):
            yield step.text
        elif isinstance(step, BootParameter) and not step.remove:
            yield step.parameter
        elif isinstance(step, Run):
            yield " ".join(step.argv)


WEAKENING = re.compile(
    r"nx_huge_pages=(never|off|N|0)\b|mitigations=(off|auto,no_)|vmentry_l1d_flush=(never|cond)|no(spectre|spec|pti)|"
    r"(spectre_v2|l1tf|mds|retbleed|vmscape|tsa|spec_rstack_overflow|spec_store_bypass_disable)=off|ksm/run=1|"
    r"smt/control=on|nested=1|force_emulation_prefix=1|ignore_msrs=1|min_timer_period_us=(1?\d?\d)\b|0666"
)


@given(
    files=hosts(),
    odd=st.lists(
        st.tuples(st.sampled_from(sorted({*machine(), *machine("amd"), *_MORE})), st.text(max_size=60)), max_size=6
    ),
    profile=st.sampled_from(Profile),
)
def test_no_text_of_any_file_stops_a_check(files, odd, profile):
    assert list(_all(made(changed(files, *odd)), profile))


GIVEN_UP = re.compile(r"mitigations=off|vmentry_l1d_flush=never|no(spectre|pti)|nx_huge_pages=(off|N|0)")


@given(files=hosts())
def test_the_hardened_profile_never_weakens(files):
    for finding in _all(made(files), Profile.HARDENED):
        for text in _given(finding.fix.steps):
            assert not WEAKENING.search(text), (finding.id, text)


@given(files=hosts(), profile=st.sampled_from(Profile))
def test_nobody_is_told_to_give_up_a_mitigation_that_the_processor_needs(files, profile):
    host = made(files)
    bug = files.get(f"{VULNERABILITIES}/itlb_multihit", "") != "Not affected"
    for finding in _all(host, profile):
        for text in _given(finding.fix.steps):
            assert not re.search(
                r"mitigations=off|vmentry_l1d_flush=never|no(spectre|pti)|nx_huge_pages=(off|N|0)", text
            )
            assert not (bug and "nx_huge_pages=never" in text and "itlb_multihit" in str(host.cpu.bugs)), finding


@given(files=hosts(), profile=st.sampled_from(Profile))
def test_every_finding_is_whole(files, profile):
    """Evidence; a gain with formula, inputs and origin, or why not; and with each fix its risk and undoing."""
    for finding in _all(made(files), profile):
        assert finding.title and not finding.title.endswith(".")
        assert finding.evidence and all(one.path and one.value for one in finding.evidence), finding
        if finding.gain.amount is not None:
            assert finding.gain.formula and finding.gain.inputs and finding.gain.origin, finding
            assert finding.gain.amount.low <= finding.gain.amount.mid <= finding.gain.amount.high
        elif finding.severity > Severity.INFO and finding.fix.steps:
            assert finding.gain.unknown, finding
        if finding.fix.steps:
            assert finding.risk and finding.undo.steps, finding
        if finding.severity > Severity.INFO:
            assert finding.fix.steps or finding.gain.unknown, finding


@given(files=hosts(), profile=st.sampled_from(Profile))
def test_the_undoing_takes_back_what_the_fix_did(files, profile):
    """Each file written is written back, each drop-in removed, each boot parameter taken back."""
    host = made(files)
    for finding in _all(host, profile):
        fix, undo = finding.fix.steps, finding.undo.steps
        for step in fix:
            if isinstance(step, DropIn):
                assert Remove(step.path) in undo, finding
            elif isinstance(step, BootParameter):
                assert step._replace(remove=not step.remove) in undo, finding
            elif isinstance(step, Write) and "never" not in step.value:
                (back,) = [one for one in undo if isinstance(one, Write) and one.path == step.path]
                assert back.value != step.value, finding


def test_published_figures_are_those_of_the_published_tables():
    tables = {table.id: table for table in published().tables}
    known = [*gains.CR0_WP.values(), gains.CR0_WP_AMD, gains.CET, *gains.TDP_TO_LEGACY.values(), *gains.SHADOW]
    for one in known:
        table = tables[one.table]
        seconds = {cell.seconds for cell in table.cells}
        assert {one.before, one.after} <= seconds
        assert one.source.removeprefix("Message-ID ") in table.source
