"""Tables of perf kvm stat, kvm_stat and kvm-unit-tests."""

# ruff: noqa: E501 - lines of tools are as long as they are

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from texts import read
from worldswitch.errors import TraceFormatError
from worldswitch.trace.readers import tooltables

DATA = Path(__file__).parents[2] / "data"


def rows(text: str | bytes, table: str):
    trace, source = read(text, reader=tooltables.ToolTables)
    columns = trace.table(table)
    names = tooltables.COLUMNS[table]
    return [
        dict(zip(names, values, strict=True)) for values in zip(*(columns[n].tolist() for n in names), strict=True)
    ], source


def test_perf_kvm_stat_report_as_recorded():
    data = (DATA / "vmx-5.10-ept" / "kvmstat.txt").read_bytes()
    assert tooltables.sniff(data)
    found, source = rows(data, "perf_kvm_stat")
    assert found[0] == {
        "kind": "VM-EXIT",
        "name": "CR_ACCESS",
        "samples": 300,
        "samples_percent": 97.40,
        "time_percent": 97.07,
        "min_ns": 79740.0,
        "max_ns": 129780.0,
        "mean_ns": pytest.approx(81520.0),
        "spread_percent": 0.60,
    }
    assert [row["name"] for row in found] == ["CR_ACCESS", "EPT_VIOLATION"]
    assert source.meta.events == {"perf_kvm_stat": 2}


def test_names_of_two_words():
    found, _ = rows((DATA / "svm-5.10-shadow" / "kvmstat.txt").read_bytes(), "perf_kvm_stat")
    assert [row["name"] for row in found] == ["write_cr0", "cr0_sel_write", "interrupt", "PF excp"]


def test_each_section_has_its_kind():
    found, _ = rows(
        """
      VM-EXIT    Samples  Samples%     Time%    Min Time    Max Time         Avg time
          HLT         10   100.00%   100.00%      1.00us      3.00us      2.00us ( +-   1.00% )

Total Samples:10, Total events handled time:20.00us.

  MMIO Access    Samples  Samples%     Time%    Min Time    Max Time         Avg time
0xfee00380:W          7    70.00%    60.00%      0.50us      0.90us      0.70us ( +-   5.00% )

IO Port Access    Samples  Samples%     Time%    Min Time    Max Time         Avg time
   0x3f8:POUT          3    30.00%    40.00%      2.00us      2.00us      2.00us ( +-   0.00% )
""",
        "perf_kvm_stat",
    )
    assert [(row["kind"], row["name"], row["samples"]) for row in found] == [
        ("VM-EXIT", "HLT", 10),
        ("MMIO Access", "0xfee00380:W", 7),
        ("IO Port Access", "0x3f8:POUT", 3),
    ]


def test_columns_in_another_order_and_missing():
    found, _ = rows(
        "Event name    Samples  Sample%  Max Time  Mean Time\n  HLT   5  50.00%  3ms  2us\n", "perf_kvm_stat"
    )
    assert (found[0]["max_ns"], found[0]["mean_ns"]) == (3e6, 2e3)
    assert math.isnan(found[0]["min_ns"])


# tools/kvm/kvm_stat/kvm_stat: batch() prints '%-42s%10d%10d', StdFormat and CSVFormat the logs


def test_kvm_stat_batch():
    text = "kvm_ack_irq                                        0         0\nkvm_exit                                       12345        67\nkvm_exit(HLT)                                    600         6\n"
    assert tooltables.sniff(text.encode())
    found, source = rows(text, "kvm_stat")
    assert found == [
        {"name": "kvm_ack_irq", "total": 0, "delta": 0},
        {"name": "kvm_exit", "total": 12345, "delta": 67},
        {"name": "kvm_exit(HLT)", "total": 600, "delta": 6},
    ]
    assert source.meta.skipped_lines == 0


def test_kvm_stat_logs():
    found, _ = rows(
        "kvm_entry kvm_exit kvm_msr \n         1         2         3\n         4         5         6\n", "kvm_stat"
    )
    assert [(row["name"], row["total"], row["delta"]) for row in found[3:]] == [
        ("kvm_entry", -1, 4),
        ("kvm_exit", -1, 5),
        ("kvm_msr", -1, 6),
    ]


def test_kvm_stat_csv_has_a_clock():
    trace, _ = read(
        "timestamp,kvm_entry,kvm_exit\n2026-01-02 03:04:05,4,5\n2026-01-02 03:04:06,6,7\n", reader=tooltables.ToolTables
    )
    table = trace.table("kvm_stat")
    assert table["delta"].tolist() == [4, 5, 6, 7]
    assert (table["time"] - table["time"][0]).tolist() == [0, 0, 10**9, 10**9]


def test_kvm_stat_on_a_terminal():
    found, _ = rows(
        "kvm statistics - summary\n\n Event                Total %Total CurAvg/s\n kvm_exit              2342   24.3       12\n",
        "kvm_stat",
    )
    assert found == [{"name": "kvm_exit", "total": 2342, "delta": 12}]


# kvm-unit-tests, x86/vmexit.c: printf("%s %d\n")


def test_kvm_unit_tests():
    text = "enabling apic\npaging enabled\ncr0 = 80010011\ncpuid 1234\nvmcall 1200\nmmio-no-eventfd:pci-mem 4000\ntoggle_cr0_wp 2222\n"
    assert tooltables.sniff(text.encode())
    found, source = rows(text, "kvm_unit_tests")
    assert [(row["name"], row["cycles"]) for row in found] == [
        ("cpuid", 1234),
        ("vmcall", 1200),
        ("mmio-no-eventfd:pci-mem", 4000),
        ("toggle_cr0_wp", 2222),
    ]
    assert source.meta.skipped_lines == 3


def test_a_mail_with_a_table_and_a_trace_is_a_trace():
    table = (DATA / "vmx-5.10-ept" / "kvmstat.txt").read_bytes()
    assert not tooltables.sniff(table + b"\n a-1 [000] .... 1.5: kvm_exit: vcpu 0 reason HLT rip 0x1\n")


def test_selection():
    text = "cpuid 1234\nvmcall 1200\n"
    trace, source = read(text, {"kvm_exit": None}, tooltables.ToolTables)
    assert (len(trace), source.meta.events) == (0, {"kvm_unit_tests": 2})
    trace, _ = read(text, {"kvm_unit_tests": ("cycles",)}, tooltables.ToolTables)
    assert "name" not in trace.table("kvm_unit_tests")


@pytest.mark.parametrize(
    "file", ["vmx-5.10-ept/trace.txt", "svm-6.1-npt/strace.txt", "README.md", "pasted/vmx-broken-after-time.eml"]
)
def test_sniff_leaves_other_texts_alone(file):
    assert not tooltables.sniff((DATA / file).read_bytes())


PARTS = [
    "VM-EXIT    Samples  Samples%     Time%    Min Time    Max Time         Avg time",
    "HLT         10   100.00%   100.00%      1.00us      3.00us      2.00us ( +-   1.00% )",
    "Total Samples:10, Total events handled time:20.00us.",
    "kvm_exit 1 2",
    "kvm_entry kvm_exit",
    "timestamp,kvm_exit",
    "2026-01-02 03:04:05,4,5",
    "9999-99-99 99:99:99 1",
    "cpuid 12",
    "vmcall 999999999999999999999",
]


@settings(max_examples=80)
@given(
    st.lists(st.one_of(st.sampled_from(PARTS), st.text(max_size=20)), max_size=8),
    st.integers(0, 150),
    st.text(max_size=4),
)
def test_mutated_lines_never_crash(lines, at, put):
    text = "\n".join(lines)
    text = text[:at] + put + text[at + 1 :] or "\n"
    tooltables.sniff(text.encode("utf-8", "surrogatepass"))
    read(text.encode("utf-8", "surrogatepass"), reader=tooltables.ToolTables)


@settings(max_examples=60)
@given(st.binary(max_size=300))
def test_any_bytes_raise_nothing_else(data):
    tooltables.sniff(data)
    try:
        read(data, reader=tooltables.ToolTables)
    except TraceFormatError:
        assert not data or data[:2] in (b"\x1f\x8b", b"\x28\xb5", b"\xfd7")
