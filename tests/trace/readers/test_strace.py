"""strace's output. Forms: strace(1) and a recording of strace 6.1."""

# ruff: noqa: E501 - lines of tools are as long as they are

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from texts import read
from worldswitch.errors import TraceFormatError
from worldswitch.record.trace import Trace
from worldswitch.trace.readers import strace
from worldswitch.trace.readers.source import Input

DATA = Path(__file__).parents[2] / "data"


def rows(text: str, *names: str):
    trace, source = read(text, reader=strace.Strace)
    if not len(trace):
        return [], source
    table = trace.table("ioctl")
    return [*zip(*(table[name].tolist() for name in names), strict=True)], source


FORMS = {
    "plain": ("ioctl(3, KVM_CREATE_VM, 0) = 4", -1, 0, -1),
    "-T": ("ioctl(3, KVM_CREATE_VM, 0)              = 4 <0.190937>", -1, 0, 190937000),
    "-t": ("01:02:03 ioctl(3, KVM_CREATE_VM, 0) = 4", -1, 3723 * 10**9, -1),
    "-tt -T": ("01:02:03.000004 ioctl(3, KVM_CREATE_VM, 0) = 4 <0.000001>", -1, 3723 * 10**9 + 4000, 1000),
    "-ttt": ("1700000000.123456 ioctl(3, KVM_CREATE_VM, 0) = 4", -1, 1700000000123456000, -1),
    "-r": ("     0.000123 ioctl(3, KVM_CREATE_VM, 0) = 4", -1, 123000, -1),
    "-f": ("[pid  1234] ioctl(3, KVM_CREATE_VM, 0) = 4", 1234, 0, -1),
    "-f -o": ("1234  ioctl(3, KVM_CREATE_VM, 0) = 4", 1234, 0, -1),
    "-f -tt -T": ("1234 01:02:03.000004 ioctl(3, KVM_CREATE_VM, 0) = 4 <0.5>", 1234, 3723 * 10**9 + 4000, 500000000),
    "-y": ("ioctl(3</dev/kvm>, KVM_CREATE_VM, 0) = 4<anon_inode:kvm-vm> <0.000001>", -1, 0, 1000),
    "-n": ("[  16] ioctl(3, KVM_CREATE_VM, 0) = 4", -1, 0, -1),
    "-i": ("[00007f77cf0b5c1b] ioctl(3, KVM_CREATE_VM, 0) = 4", -1, 0, -1),
    "-f -ttt -n -i": (
        "[pid 12] 1700000000.5 [  16] [00007f77cf0b5c1b] ioctl(3, KVM_CREATE_VM, 0) = 4",
        12,
        1700000000500000000,
        -1,
    ),
    "ns": ("01:02:03.000000004 ioctl(3, KVM_CREATE_VM, 0) = 4 <0.000000007>", -1, 3723 * 10**9 + 4, 7),
}


@pytest.mark.parametrize("form", FORMS)
def test_options(form):
    line, tid, time, duration = FORMS[form]
    found, source = rows(line + "\n", "request", "fd", "result", "errno", "tid", "time", "duration_ns")
    assert found == [("KVM_CREATE_VM", 3, 4, "", tid, time, duration)]
    assert (source.meta.events, source.meta.skipped_lines) == ({"ioctl": 1}, 0)
    assert strace.sniff(line.encode())


def test_a_failure_has_its_errno():
    found, _ = rows(
        "ioctl(13<anon_inode:kvm-vcpu:0>, KVM_RUN, 0) = -1 EINTR (Interrupted system call) <0.003>\n",
        "result",
        "errno",
        "duration_ns",
    )
    assert found == [(-1, "EINTR", 3000000)]


def test_a_result_with_leading_zeros_is_decimal():
    assert rows("ioctl(3, KVM_RUN, 0) = 010\n", "result")[0] == [(10,)]


def test_requests_strace_has_no_name_for():
    found, _ = rows(
        "ioctl(3, _IOC(_IOC_NONE, 0xae, 0x80, 0), 0) = 0\nioctl(3, 0xae01, 0) = 4\nioctl(3, _IOC(_IOC_READ|_IOC_WRITE, 0xae, 0xfe, 0x8), 0x1) = 0\n"
        "ioctl(1, TCGETS, {B38400 opost}) = 0\nioctl(1, _IOC(_IOC_NONE, 0x12, 0xae, 0), 0) = 0\n",
        "request",
    )
    # 0x80 and 0x01: include/uapi/linux/kvm.h
    assert found == [("KVM_RUN",), ("KVM_CREATE_VM",), ("KVM ioctl 0xfe",)]


def test_calls_another_thread_interrupts_are_put_together():
    found, source = rows(
        "[pid 11] 10:00:00.000001 ioctl(13, KVM_RUN <unfinished ...>\n"
        "[pid 12] 10:00:00.000002 ioctl(14, KVM_RUN, 0) = 0 <0.000001>\n"
        "[pid 11] 10:00:00.000009 <... ioctl resumed>, 0) = 0 <0.000008>\n",
        "tid",
        "time",
        "duration_ns",
    )
    start = 36000 * 10**9
    assert found == [(11, start + 1000, 8000), (12, start + 2000, 1000)]
    assert source.meta.events == {"ioctl": 2}


def test_a_call_that_never_returns_is_counted_and_has_no_row():
    found, source = rows(
        "1 ioctl(3, KVM_CREATE_VM, 0) = 4\n1 ioctl(13, KVM_RUN <unfinished ...>\n+++ killed by SIGKILL +++\n", "request"
    )
    assert (len(found), source.meta.events) == (1, {"ioctl": 2})


def test_other_lines():
    _, source = rows(
        'strace: Process 12 attached\n--- SIGCHLD {si_signo=SIGCHLD} ---\n+++ exited with 0 +++\nread(3, "x", 1) = 1\nexit_group(0) = ?\n'
        "% time     seconds  usecs/call     calls    errors syscall\n 90.00    0.1          1         1           ioctl\n",
        "request",
    )
    assert (source.meta.events, source.meta.skipped_lines) == ({"syscall": 2}, 3)


def test_midnight():
    found, _ = rows("23:59:59 ioctl(3, KVM_CREATE_VM, 0) = 4\n00:00:01 ioctl(3, KVM_CREATE_VM, 0) = 4\n", "time")
    assert found[1][0] - found[0][0] == 2 * 10**9


def test_relative_times_and_durations_add_up():
    assert [t for (t,) in rows("0.5 close(3) = 0\n0.25 ioctl(3, KVM_CREATE_VM, 0) = 4\n", "time")[0]] == [750000000]
    assert [t for (t,) in rows("close(3) = 0 <0.5>\nioctl(3, KVM_CREATE_VM, 0) = 4 <0.1>\n", "time")[0]] == [500000000]


def test_selection():
    text = "ioctl(3, KVM_CREATE_VM, 0) = 4\n"
    trace, _ = read(text, {"ioctl": ("request",)}, strace.Strace)
    assert set(trace.table("ioctl")) == {"seq", "time", "cpu", "tid", "pid", "request"}
    trace, source = read(text, {"kvm_exit": None}, strace.Strace)
    assert (len(trace), source.meta.events) == (0, {"ioctl": 1})


def test_the_recording():
    with Input.open(DATA / "svm-6.1-npt" / "strace.txt") as file:
        assert strace.sniff(file.head)
        source = strace.Strace(file)
        table = Trace.read(source).table("ioctl")
    # counted with grep -c 'KVM_', and the file's lines but for the last, "+++ exited with 0 +++"
    assert source.meta.events == {"ioctl": 21, "syscall": 425}
    assert table["request"].tolist()[:6] == ["KVM_CREATE_VM"] * 6
    assert table["duration_ns"].tolist()[:3] == [190937000, 24181000, 15309000]
    assert source.meta.skipped_lines == 0


@pytest.mark.parametrize(
    "file", ["vmx-5.10-ept/trace.txt", "svm-6.1-npt/kvmstat.txt", "README.md", "pasted/vmx-broken-after-time.eml"]
)
def test_sniff_leaves_other_texts_alone(file):
    assert not strace.sniff((DATA / file).read_bytes())


SEEDS = [line for line, *_ in FORMS.values()] + [
    "[pid 1] ioctl(13, KVM_RUN <unfinished ...>",
    "[pid 1] <... ioctl resumed>, 0) = 0 <0.1>",
]


@settings(max_examples=80)
@given(
    st.lists(st.one_of(st.sampled_from(SEEDS), st.text(max_size=30)), max_size=6),
    st.integers(0, 200),
    st.text(max_size=5),
)
def test_mutated_lines_never_crash(lines, at, put):
    text = "\n".join(lines) or "\n"
    rows(text[:at] + put + text[at + 2 :] or "\n", "request")


@settings(max_examples=60)
@given(st.binary(max_size=300))
def test_any_bytes_raise_nothing_else(data):
    strace.sniff(data)
    try:
        read(data, reader=strace.Strace)
    except TraceFormatError:
        assert not data or data[:2] in (b"\x1f\x8b", b"\x28\xb5", b"\xfd7")
