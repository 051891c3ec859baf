"""Traces as people paste them. The shapes are from public mails, issues and chats; see tests/data/README.md."""

# ruff: noqa: E501 - lines of tools are as long as they are

from __future__ import annotations

import html
import quopri
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from texts import read
from worldswitch.errors import TraceFormatError
from worldswitch.record.trace import Trace
from worldswitch.trace.readers import pasted
from worldswitch.trace.readers.source import Input

DATA = Path(__file__).parents[2] / "data"

CLEAN = """\
 qemu-system-x86-9928  [022] d..1.   379.260650: kvm_entry: vcpu 1, rip 0x400430
 qemu-system-x86-9928  [022] d..1.   379.260656: kvm_exit: vcpu 1 reason EPT_VIOLATION rip 0x400433 info1 0x0000000000000181 info2 0x0000000080000301 intr_info 0x00000000 error_code 0x00000000
 qemu-system-x86-9928  [022] .....   379.260660: kvm_page_fault: vcpu 1 rip 0x400433 address 0x0000000000001050 error_code 0x181
 qemu-system-x86-9928  [022] .....   379.260661: kvm_emulate_insn: 0:400433:0f 22 c0 (prot64)
 qemu-system-x86-9928  [022] .....   379.260662: kvm_cr: cr_write 0 = 0x80010033
 qemu-system-x86-9928  [022] .....   379.260663: kvm_msr: msr_write 6e0 = 0x1fb1e5ac1f9
 qemu-system-x86-9928  [022] .....   379.260664: kvm_pio: pio_read at 0x3f8 size 1 count 1 val 0x31
 qemu-system-x86-9928  [022] .....   379.260665: kvm_cpuid: func 0 idx 1 rax 16 rbx 756e6547 rcx 6c65746e rdx 49656e69, cpuid entry found
 qemu-system-x86-9928  [022] .....   379.260666: kvm_inj_exception: #DB [reinjected]
 qemu-system-x86-9928  [022] .....   379.260667: kvm_userspace_exit: reason KVM_EXIT_INTERNAL_ERROR (17)
 qemu-system-x86-9928  [022] d..1.   379.260670: kvm_entry: vcpu 1, rip 0x400433
"""


def pasted_trace(text: str | bytes):
    return read(text, reader=pasted.Pasted)


def tables(trace: Trace):
    return {
        event: {name: column.tolist() for name, column in trace.table(event).items() if name != "seq"}
        for event in trace.events
    }


EXPECTED = tables(pasted_trace(CLEAN)[0])


def same(text: str | bytes, comm: str = "qemu-system-x86"):
    trace, source = pasted_trace(text)
    assert tables(trace) == EXPECTED
    assert source.meta.comms == {9928: comm}
    assert source.meta.malformed == 0
    assert pasted.sniff(text.encode() if isinstance(text, str) else text)


def wrapped(text: str, width: int, prefix: str = "", rest: str = "") -> str:
    """As a mail client breaks long lines: after any word, blanks kept where they do not fall on the break."""
    lines = []
    for line in text.splitlines():
        now = ""
        for word in line.strip().split(" "):
            if now.strip() and len(now) + 1 + len(word) > width:
                lines.append(prefix + now.rstrip())
                now = rest + word
            else:
                now = f"{now} {word}" if now else word
        lines.append(prefix + now)
    return "\n".join(lines) + "\n"


def test_a_clean_text_reads_as_the_text_reader_reads_it():
    trace, _ = read(CLEAN)
    assert tables(trace) == EXPECTED
    assert len(trace) == 11
    same(CLEAN)


@pytest.mark.parametrize("quote", ["> ", ">", ">> ", "> > > ", ">>>>> ", "AB> ", "  > ", "| "])
def test_quoted(quote):
    same("".join(f"{quote}{line}\n" for line in CLEAN.splitlines()))


@pytest.mark.parametrize("width", [*range(34, 130, 7)])
def test_broken_after_any_word(width):
    same(wrapped(CLEAN, width))


def test_perf_script_broken_in_its_head():
    trace, source = pasted_trace(
        "         qemu-kvm 12345/12347 [003]\n123.456789:                      kvm:kvm_exit: vcpu 0 reason MSR_WRITE rip\n"
        "0xffffffff81234567 info1 0x0000000000000000 info2 0x0000000000000000\nintr_info 0x00000000 error_code 0x00000000\n"
        " qemu-kvm 12345/12347 [003] 123.456799: kvm:kvm_entry: vcpu\n0\n"
    )
    assert [trace.table("kvm_exit")[name][0] for name in ("pid", "tid", "cpu", "exit_reason")] == [12345, 12347, 3, 32]
    assert source.meta.skipped_lines == 0


def test_broken_between_name_and_cpu():
    trace, source = pasted_trace("qemu-5665\n [000] d..1 280.971123: kvm_exit: reason HLT rip 0x1 info 0 0\n")
    assert trace.table("kvm_exit")["tid"].tolist() == [5665]
    assert source.meta.skipped_lines == 0


def test_prose_that_ends_like_a_head_takes_no_event():
    same("see the commit abc-123\n" + CLEAN)
    same("I had qemu-9928  [022]\n" + CLEAN)


@pytest.mark.parametrize("width", [40, 66, 76])
def test_quoted_and_broken(width):
    same(wrapped(CLEAN, width, prefix=">> "))
    same(wrapped(CLEAN, width, rest="    "))


def test_broken_with_the_rest_left_unquoted():
    lines = wrapped(CLEAN, 72).splitlines()
    same("".join(("> " if "[022]" in line else "") + line + "\n" for line in lines))


def test_html():
    same("<html><body><p>See:</p><pre>\n" + html.escape(CLEAN) + "</pre><br>Thanks</body></html>")
    same("<div>" + "<br>".join(html.escape(line) for line in CLEAN.splitlines()) + "</div>")
    same("<span class='x'>" + html.escape("> " + CLEAN.replace("\n", "\n> ")) + "</span>")
    same(CLEAN.replace("#DB", "&#35;DB").replace(" ", "&nbsp;"))


def test_quoted_printable():
    mail = b"Content-Transfer-Encoding: quoted-printable\n\nIt isn=E2=80=99t so:\n\n" + quopri.encodestring(
        CLEAN.encode()
    )
    same(mail)


def test_quoted_printable_is_told_without_its_header():
    same(quopri.encodestring(("caf\u00e9:\n" + CLEAN).encode()))


def test_an_equals_sign_at_a_break_is_no_quoted_printable():
    trace, _ = pasted_trace(" a-1 [000] .... 1.5: kvm_cr: cr_write 0 =\n0x80010033\n")
    assert trace.table("kvm_cr")["val"].tolist() == [0x80010033]


def test_blanks_that_are_none():
    same(CLEAN.replace("  ", "\u00a0\u00a0"))
    same(CLEAN.replace("  ", "\u00ef\u00bf\u00bd "))
    same(CLEAN.replace("  ", " \t"))
    same(CLEAN.replace("kvm_exit", "\u200bkvm_exit"))
    same(CLEAN.replace("  ", " \u00a0").encode("latin-1"))


def test_markdown():
    same("Trace:\n\n```\n" + CLEAN + "```\n\nBye")
    same("".join(f"    {line}\n" for line in CLEAN.splitlines()))
    same("".join(f"- {line.strip()}\n" for line in CLEAN.splitlines()))
    same("".join(f"* `{line.strip()}`\n" for line in CLEAN.splitlines()))


def test_line_numbers_and_chat_clocks():
    lines = CLEAN.splitlines()
    same("".join(f"{k:4}: {line}\n" for k, line in enumerate(lines)))
    same("".join(f"{k:6}\t{line.strip()}\n" for k, line in enumerate(lines)))
    same("".join(f"{k} | {line}\n" for k, line in enumerate(lines)))
    same("".join(f"[10:23:45] <nick> {line.strip()}\n" for line in lines))
    same("".join(f"2021-12-12 16:11:10.214139 {line.strip()}\n" for line in lines))


def test_diff_marks():
    same("".join(f"+{line}\n" for line in CLEAN.splitlines()))


def test_escape_codes():
    same("".join(f"\x1b[01;31m{line}\x1b[0m\n" for line in CLEAN.splitlines()))


def test_prose_between_events_is_counted_and_never_joined():
    lines = CLEAN.splitlines()
    text = "Hi all,\n\nthis is what we see:\n\n"
    text += (
        lines[0]
        + "\nThe guest then does its thing, and\n"
        + "\n\nNow look:\n".join(lines[1:])
        + "\n\nAny idea?\nkvm_exit is odd.\n"
    )
    same(text)
    assert pasted_trace(text)[1].meta.skipped_lines == 2 + 1 + 9 + 2


def test_cut_ends():
    trace, source = pasted_trace(
        " a-1 [000] .... 1.5: kvm_exit: vcpu 0 reason HLT rip 0x10 info1 ...\n[...]\n a-1 [000] .... 1.6: kvm_entry: vcpu 0 [...]\n"
    )
    assert trace.table("kvm_exit")["exit_reason"].tolist() == [12]
    assert trace.table("kvm_entry")["vcpu_id"].tolist() == [0]
    assert (source.meta.skipped_lines, source.meta.malformed) == (0, 0)


def test_events_without_anything_before_them():
    trace, _ = pasted_trace(
        "  kvm_exit:             reason EXIT_NPF rip 0xffffffffffbbe119 info\n"
        "    200000006 1ab000\n"
        "  kvm_nested_vmexit:    vcpu 0 reason npf rip 0xffffffffffbbe119 info1\n"
        "    0x0000000200000006 info2 0x00000000001ab000 intr_info 0x00000000\n"
        "    error_code 0x00000000\n"
        "  kvm_nested_intercepts: cr_read: 0000 cr_write: 0010 excp: 40060002\n"
        "    intercepts: fd44bfeb 0000217f 00000000\n"
        "  kvm_entry:            vcpu 0, rip 0x7ffbb280\n"
    )
    assert trace.table("kvm_exit")["info2"].tolist() == [0x1AB000]
    assert trace.table("kvm_nested_vmexit")["info2"].tolist() == [0x1AB000]
    assert trace.table("kvm_nested_intercepts")["intercept2"].tolist() == [0x217F]
    assert trace.table("kvm_entry")["rip"].tolist() == [0x7FFBB280]


def test_a_hexadecimal_number_without_digits_is_a_number_where_one_is_due():
    trace, _ = pasted_trace(
        " <...>-62567 [030] 2758596.349038: kvm_page_fault:       address\nfeeeeeee error_code 784\n"
    )
    assert trace.table("kvm_page_fault")["fault_address"].tolist() == [0xFEEEEEEE]


def test_labels_before_events():
    trace, source = pasted_trace(
        "       CPU 0/KVM-7289    [023] d....  2925.640961: kvm_entry: vcpu 0\n"
        " A:  L1 Writes DR6\n"
        "       CPU 0/KVM-7289    [023] d....  2925.640963: <hack>: Set DRs, DR6 = 0xffff0ff1\n"
        " B:        CPU 0/KVM-7289    [023] d....  2925.640967: kvm_exit: vcpu 0 reason EXTERNAL_INTERRUPT intr_info 0x800000ec\n"
    )
    assert trace.table("kvm_exit")["intr_info"].tolist() == [0x800000EC]
    assert source.meta.comms == {7289: "CPU 0/KVM"}


def test_perf_trace():
    trace, _ = pasted_trace(
        "     1.500 qemu-system-x86/1234 kvm:kvm_exit(exit_reason: 10, guest_rip: 4096, isa: 1, info1: 18)\n"
        "     2.000 ( ): qemu-system-x86/1234 kvm:kvm_entry(vcpu_id: 3, rip: 4096)\n"
    )
    table = trace.table("kvm_exit")
    assert [table[name][0] for name in ("time", "tid", "exit_reason", "guest_rip", "info1")] == [
        1500000,
        1234,
        10,
        4096,
        18,
    ]


# The three posts


def post(name: str):
    with Input.open(DATA / "pasted" / name) as file:
        assert pasted.sniff(file.head)
        source = pasted.Pasted(file)
        return Trace.read(source), source.meta


def test_post_with_lines_broken_after_the_time():
    trace, meta = post("vmx-broken-after-time.eml")
    assert meta.events == {"tracing_mark_write": 2, "kvm_exit": 6, "kvm_entry": 6, "kvm_ack_irq": 1}
    exits = trace.table("kvm_exit")
    # EXTERNAL_INTERRUPT 1, IO_INSTRUCTION 30, PENDING_INTERRUPT 7: SDM volume 3, appendix C
    assert exits["exit_reason"].tolist() == [1, 30, 1, 30, 30, 7]
    assert exits["info1"].tolist() == [0, 0x640008, 0, 0x600048, 0xA00040, 0]
    assert set(exits["tid"].tolist()) == {5665}
    assert meta.malformed == 0


def test_post_in_quoted_printable_quoted_and_broken():
    trace, meta = post("vmx-nested-quoted-printable.eml")
    assert meta.events == {
        "kvm_exit": 3,
        "kvm_nested_vmexit": 1,
        "kvm_inj_exception": 3,
        "kvm_entry": 2,
        "kvm_page_fault": 1,
        "kvm_emulate_insn": 2,
    }
    exits = trace.table("kvm_exit")
    assert exits["exit_reason"].tolist() == [0, 48, 48]
    assert exits["info1"].tolist() == [0x4000, 0x181, 0x1AA]
    assert exits["info2"].tolist() == [0, 0x80000301, 0x80000301]
    assert trace.table("kvm_emulate_insn")["failed"].tolist() == [0, 1]
    assert trace.table("kvm_inj_exception")["reinjected"].tolist() == [False, True, False]
    assert meta.malformed == 0


def test_post_of_an_amd_host_flowed_and_full_of_rubble():
    trace, meta = post("svm-flowed-no-break-spaces.eml")
    assert meta.events == {"kvm_page_fault": 4, "kvm_entry": 4, "kvm_exit": 4, "rcu_utilization": 1}
    exits = trace.table("kvm_exit")
    assert exits["isa"].tolist() == [2] * 4
    assert exits["exit_reason"].tolist() == [0x400, 0x400, 0x400, 0x60]
    assert exits["info2"].tolist() == [0xF88EB2FF8] * 3 + [0]
    assert trace.table("rcu_utilization")["text"].tolist() == ["Start context switch"]
    assert meta.comms == {14414: "CPU", 1365880: "CPU"}
    assert meta.malformed == 0


@pytest.mark.parametrize(
    "file", ["svm-6.1-npt/strace.txt", "svm-6.1-npt/kvmstat.txt", "svm-6.1-npt/ran.txt", "README.md"]
)
def test_sniff_leaves_other_texts_alone(file):
    assert not pasted.sniff((DATA / file).read_bytes())


@settings(max_examples=60)
@given(st.binary(max_size=400))
def test_any_bytes_raise_nothing_else(data):
    pasted.sniff(data)
    try:
        pasted_trace(data)
    except TraceFormatError:
        assert not data or data[:2] in (b"\x1f\x8b", b"\x28\xb5", b"\xfd7")


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.sampled_from([*CLEAN.splitlines(), "prose", ">", "```", "&lt;b&gt;", "=", "reason", "0x1 info1", ""]),
        max_size=8,
    ),
    st.integers(10, 90),
)
def test_no_mixture_and_no_break_crashes_or_loses_an_event(lines, width):
    whole = "".join(f"{line}\n" for line in lines) or "\n"
    events = sum("[022]" in line for line in lines)
    trace, _ = pasted_trace(whole)
    assert len(trace) == events
    pasted_trace(wrapped(whole, width) or "\n")
