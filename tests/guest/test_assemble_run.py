"""Assembled programs as processors run them: this host's KVM, and QEMU's emulator for what the host lacks.

Expected vectors and error codes are the architecture's: Intel SDM volume 3, sections 4.6 (access rights), 4.7 (error
codes of #PF), 6.15 (exceptions) and 17.3.1.4 (single-step).
"""

from __future__ import annotations

import pytest

from emulated_guest import run_emulated
from worldswitch.guest import operations as ops
from worldswitch.guest.assemble import assemble
from worldswitch.guest.image import MAX_FAULTS, Report
from worldswitch.guest.program import Handler, Layout, Mode, Pages, Program, Space, State, Vcpu
from worldswitch.live.device import Kvm
from worldswitch.live.machine import run_image

READ_ONLY, SUPERVISOR, USER, ABSENT = 0x400000, 0x401000, 0x402000, 0x404000
SPACE = Space(
    "main",
    (
        Pages(READ_ONLY, 0x200000, flags=()),
        Pages(SUPERVISOR, 0x201000),
        Pages(USER, 0x202000, count=2, flags=("W", "U")),
        Pages(ABSENT, 0x204000, present=False),
    ),
)
PF, GP, DB = 14, 13, 1
OPEN = Handler(PF, True, (ops.WriteEntry("main", READ_ONLY, set=("W",)), ops.Invlpg(READ_ONLY)))
PAE = {"mode": Mode.PAE, "state": State(0x80050033, 0x20, 0x800)}
FLAT = {"mode": Mode.FLAT, "state": State(0x50033, 0, 0), "spaces": (Space("main"),)}

MACHINES = [
    pytest.param("kvm", marks=pytest.mark.needs("kvm")),
    pytest.param("qemu", marks=pytest.mark.needs("qemu-system-x86_64")),
]


def make(*body: ops.Operation, handlers=(), setup=(), end=(), **more) -> Program:
    more.setdefault("spaces", (SPACE,))
    return Program("test", "A test.", "pass", (Vcpu(body, setup, end, tuple(handlers)),), **more)


def on_kvm(program: Program, n: int) -> Report:
    with Kvm() as kvm:
        (report,) = run_image(kvm, assemble(program), n).reports
    assert report is not None
    return report


@pytest.fixture(params=MACHINES)
def run(request, tmp_path):
    """Runs a program n times on one machine."""
    if request.param == "kvm":
        return on_kvm
    return lambda program, n: run_emulated(tmp_path, assemble(program), n)


@pytest.fixture
def emulate(tmp_path):
    return lambda program, n: run_emulated(tmp_path, assemble(program), n)


def brief(report: Report) -> list[tuple[str, int, int, int]]:
    """Path without its head, vector, error code and CR2 of each fault."""
    return [(f.operation.removeprefix("vcpu 0 body "), f.vector, f.error_code, f.cr2) for f in report.log]


def test_no_passes(run):
    report = run(make(ops.Store(SUPERVISOR, value=1)), 0)
    assert (report.passes, report.faults) == (0, 0)


def test_passes_cycles_and_values(run):
    report = run(make(ops.Store(SUPERVISOR + 8, value=0x1122334455667788), ops.Load(SUPERVISOR + 8, keep=True)), 7)
    assert (report.passes, report.faults, report.values) == (7, 0, {"vcpu 0 body 1": 0x1122334455667788})
    assert report.cycles > 0


def test_faults_are_told_and_skipped(run):
    body = (
        ops.Load(0x12345678000, keep=True), ops.Store(READ_ONLY, value=1), ops.Load(SUPERVISOR, user=True),
        ops.Store(READ_ONLY, user=True), ops.Load(ABSENT), ops.Store(USER, user=True), ops.Fetch(ABSENT + 5),
        ops.Load(0x8000_0000_0000_0000),
    )  # fmt: skip
    report = run(make(*body), 2)
    # The instruction bit of the error code is there with NXE: SDM volume 3, section 4.7.
    once = [
        ("0", PF, 0, 0x12345678000), ("1", PF, 3, READ_ONLY), ("2", PF, 5, SUPERVISOR), ("3", PF, 7, READ_ONLY),
        ("4", PF, 0, ABSENT), ("6", PF, 0x10, ABSENT + 5), ("7", GP, 0, 0),
    ]  # fmt: skip
    assert brief(report) == once * 2
    assert (report.passes, report.faults, report.retries) == (2, 14, 0)
    assert report.values == {"vcpu 0 body 0": 0}


def test_write_protect_is_obeyed_while_it_is_on(run):
    store = ops.Store(READ_ONLY, value=3)
    report = run(make(ops.WriteCr(0, clear=("WP",)), store, ops.WriteCr(0, set=("WP",)), store), 1)
    assert brief(report) == [("3", PF, 3, READ_ONLY)]


def test_a_fix_and_one_retry(run):
    report = run(make(ops.Store(READ_ONLY, value=0x55), ops.Load(READ_ONLY, keep=True), handlers=[OPEN]), 3)
    assert brief(report) == [("0", PF, 3, READ_ONLY)]
    assert (report.passes, report.retries, report.values["vcpu 0 body 1"]) == (3, 1, 0x55)


def test_a_fix_without_retry_helps_the_next_pass(run):
    handler = Handler(PF, False, OPEN.fix)
    report = run(make(ops.Load(READ_ONLY, keep=True), ops.Store(READ_ONLY, value=0x55), handlers=[handler]), 3)
    assert (report.faults, report.retries, report.values["vcpu 0 body 0"]) == (1, 0, 0x55)


def test_a_retry_that_does_not_help_is_one_retry(run):
    report = run(make(ops.Store(READ_ONLY), handlers=[Handler(PF, True)]), 2)
    assert (report.passes, report.faults, report.retries) == (2, 4, 2)


def test_faults_in_a_fix_are_told_and_skipped(run):
    fix = (ops.Store(READ_ONLY), ops.Repeat(2, (ops.Store(READ_ONLY + 8),)), *OPEN.fix)
    report = run(make(ops.Store(READ_ONLY, value=1), handlers=[Handler(PF, True, fix)]), 2)
    within = "vcpu 0 handler 14 fix"
    assert brief(report) == [
        ("0", PF, 3, READ_ONLY), (f"{within} 0", PF, 3, READ_ONLY), *[(f"{within} 1.0", PF, 3, READ_ONLY + 8)] * 2,
    ]  # fmt: skip
    assert (report.passes, report.retries) == (2, 1)


def test_a_fix_leaves_the_operation_its_registers(run):
    fix = (ops.Cpuid(1), ops.Repeat(3, (ops.Nop(),)), *OPEN.fix)
    stores = ops.Repeat(4, (ops.Store(READ_ONLY, stride=8, span=4, value=0x77),))
    close = ops.WriteEntry("main", READ_ONLY, clear=("W",))
    body = (stores, ops.Load(READ_ONLY + 24, keep=True), close, ops.Invlpg(READ_ONLY))
    report = run(make(*body, handlers=[Handler(PF, True, fix)]), 3)
    assert brief(report) == [("0.0", PF, 3, READ_ONLY)] * 3
    assert report.values["vcpu 0 body 1"] == 0x77


def test_user_blocks_go_on_behind_a_fault(run):
    block = ops.User(
        (
            ops.Cpuid(keep=True), ops.Load(SUPERVISOR), ops.Nop(), ops.Load(USER, keep=True), ops.Fetch(USER + 0x1000),
            ops.Store(READ_ONLY + 4, size=4),
        )
    )  # fmt: skip
    report = run(make(block, setup=(ops.Store(USER, value=0xABC),)), 3)
    assert brief(report) == [("0.1", PF, 5, SUPERVISOR), ("0.5", PF, 7, READ_ONLY + 4)] * 3
    assert report.values["vcpu 0 body 0.3"] == 0xABC
    assert report.values["vcpu 0 body 0.0"] >> 32 in (0x756E6547, 0x68747541), "GenuineIntel or AuthenticAMD"


def test_a_user_access_is_tried_again_after_its_fix(run):
    fix = (ops.WriteEntry("main", SUPERVISOR, set=("U",)), ops.Invlpg(SUPERVISOR))
    body = (ops.Store(SUPERVISOR, value=9, user=True), ops.Load(SUPERVISOR, keep=True, user=True))
    report = run(make(*body, handlers=[Handler(PF, True, fix)]), 2)
    assert brief(report) == [("0", PF, 7, SUPERVISOR)]
    assert (report.retries, report.values["vcpu 0 body 1"]) == (1, 9)


@pytest.mark.parametrize("user", [False, True])
def test_a_single_step_is_one_debug_exception(run, user):
    report = run(make(ops.SingleStep(user), ops.Nop(3)), 4)
    assert brief(report) == [("0", DB, 0, 0)] * 4


def test_strides_and_repeats_survive_faults_and_user_blocks(run):
    store = ops.Store(READ_ONLY, stride=8, span=4, value=5)
    nested: tuple[ops.Operation, ...] = (store, ops.Load(SUPERVISOR, stride=16, span=2, user=True))
    for _ in range(3):
        nested = (ops.Repeat(2, nested),)
    report = run(make(ops.Repeat(3, nested), ops.Store(READ_ONLY, stride=0x100, span=8)), 2)
    inner = [(PF, 3, READ_ONLY), (PF, 5, SUPERVISOR), (PF, 3, READ_ONLY + 8), (PF, 5, SUPERVISOR + 16)]
    expected = [*inner * 12, (PF, 3, READ_ONLY), *inner * 12, (PF, 3, READ_ONLY + 0x100)]
    assert [(f.vector, f.error_code, f.cr2) for f in report.log] == expected


def test_the_value_believed_follows_the_writes_that_worked(run):
    body = (
        ops.WriteCr(0, set=("TS",)), ops.ReadCr(0, keep=True), ops.Clts(), ops.WriteCr(0, toggle=("WP",)),
        ops.ReadCr(0, keep=True), ops.Lmsw(0xB), ops.WriteCr(0, toggle=("WP",)), ops.ReadCr(0, keep=True),
        ops.WriteCr(4, set=("PGE",)), ops.ReadCr(4, keep=True), ops.WriteCr(8, value=5), ops.ReadCr(8, keep=True),
    )  # fmt: skip
    report = run(make(*body), 1)
    assert report.faults == 0
    assert list(report.values.values()) == [0x8005003B, 0x80040033, 0x8005003B, 0xA0, 5]


@pytest.mark.needs("kvm")
def test_a_write_that_faults_is_not_believed():
    """Bit 15 of CR4 is reserved."""
    body = (
        ops.WriteCr(4, set=("bit 15",)), ops.WriteCr(4, set=("PGE",)), ops.ReadCr(4, keep=True),
        ops.WriteCr(0, clear=("PG",)), ops.WriteCr(0, clear=("AM",)), ops.ReadCr(0, keep=True),
    )  # fmt: skip
    report = on_kvm(make(*body), 1)
    assert brief(report) == [("0", GP, 0, 0), ("3", GP, 0, 0)]
    assert list(report.values.values()) == [0xA0, 0x80010033]


def test_page_table_entries_are_read_and_written(run):
    body = (
        ops.Load(SUPERVISOR), ops.ReadEntry("main", SUPERVISOR), ops.ReadEntry("main", SUPERVISOR, level=2),
        ops.WriteEntry("main", ABSENT, set=("P", "W"), pa=0x202000), ops.Store(ABSENT + 16, value=0x99),
        ops.Load(USER + 16, keep=True), ops.ReadEntry("main", ABSENT),
    )  # fmt: skip
    report = run(make(*body), 1)
    assert report.faults == 0
    assert report.values["vcpu 0 body 1"] == 0x201000 | 0x23, "P, W, and A by the processor"
    assert report.values["vcpu 0 body 2"] & 0xF87 == 0x7, "P, W and U"
    assert report.values["vcpu 0 body 5"] == 0x99
    assert report.values["vcpu 0 body 6"] == 0x202000 | 0x63


def test_spaces_are_switched(run):
    other = Space("other", (Pages(SUPERVISOR, 0x203000),))
    body = (
        ops.Store(SUPERVISOR, value=1), ops.SwitchSpace("other"), ops.Store(SUPERVISOR, value=2), ops.Load(USER),
        ops.SwitchSpace("main"), ops.Load(SUPERVISOR, keep=True), ops.Load(USER + 0x1000, keep=True),
    )  # fmt: skip
    report = run(make(*body, spaces=(SPACE, other)), 2)
    assert brief(report) == [("3", PF, 0, USER)] * 2
    assert report.values == {"vcpu 0 body 5": 1, "vcpu 0 body 6": 2}


def test_more_faults_than_the_log_holds(run):
    report = run(make(ops.Repeat(4, (ops.Store(READ_ONLY),))), 300)
    assert (report.passes, report.faults, len(report.log)) == (300, 1200, MAX_FAULTS)


@pytest.mark.needs("kvm")
def test_unknown_msrs_and_ports():
    report = on_kvm(make(ops.ReadMsr(0x12345, keep=True), ops.WriteMsr(0x12345, 1), ops.Out(0x80, 1), ops.In(0x80)), 2)
    assert brief(report) == [("0", GP, 0, 0), ("1", GP, 0, 0)] * 2


@pytest.mark.needs("kvm")
def test_several_vcpus_meet_again_and_again():
    body = (ops.Meet(), ops.Store(USER, value=1), ops.Meet(), ops.Load(USER, keep=True), ops.Load(ABSENT))
    other = (ops.Meet(), ops.Nop(), ops.Meet(), ops.Load(USER, keep=True), ops.Load(0x12345678000))
    program = Program("smp", "Three.", "pass", (Vcpu(body), Vcpu(other), Vcpu(other)), spaces=(SPACE,))
    with Kvm() as kvm:
        reports = run_image(kvm, assemble(program), 20).reports
    assert [report.passes for report in reports] == [20] * 3
    assert [report.faults for report in reports] == [20] * 3
    assert [list(report.values.values()) for report in reports] == [[1]] * 3
    assert reports[1].log[0].operation == "vcpu 1 body 4"


@pytest.mark.needs("kvm")
def test_the_recorded_program_runs():
    body = (ops.WriteCr(0, toggle=("WP",)),)
    recorded = make(
        *body, spaces=(Space("main", (Pages(0, 0, "2M"),)),), state=State(0x80050033, 0x20, 0x500), memory=2 << 20,
        layout=Layout(0x1000, 0x2000),
    )  # fmt: skip
    image = assemble(recorded)
    with Kvm() as kvm:
        outcomes = [run_image(kvm, image, n) for n in (0, 100)]
    assert [outcome.reports for outcome in outcomes] == [(None,)] * 2
    assert [outcome.userspace_exits for outcome in outcomes] == [{"HLT": 1}] * 2


PAE_BODY = (
    ops.Store(READ_ONLY, value=1, size=4), ops.Load(USER, size=4, keep=True, user=True),
    ops.Load(SUPERVISOR, size=4, user=True),
    ops.User((ops.Nop(), ops.Load(SUPERVISOR + 4, size=4), ops.Cpuid(keep=True))), ops.SingleStep(),
    ops.SingleStep(user=True), ops.WriteCr(0, toggle=("WP",)), ops.Store(READ_ONLY, value=1, size=4),
    ops.WriteCr(0, toggle=("WP",)),
    ops.Repeat(3, (ops.Store(READ_ONLY, size=4, stride=4, span=2, user=True),)), ops.ReadEntry("main", READ_ONLY),
    ops.ReadMsr(0xC0000080, keep=True), ops.WriteEntry("main", READ_ONLY, toggle=("NX",)), ops.Meet(),
)  # fmt: skip


@pytest.mark.needs("qemu-system-x86_64")
def test_pae(emulate):
    report = emulate(make(*PAE_BODY, setup=(ops.Store(USER, value=0x1234, size=4),), **PAE), 3)
    once = [
        ("0", PF, 3, READ_ONLY), ("2", PF, 5, SUPERVISOR), ("3.1", PF, 5, SUPERVISOR + 4), ("4", DB, 0, 0),
        ("5", DB, 0, 0), ("9.0", PF, 7, READ_ONLY), ("9.0", PF, 7, READ_ONLY + 4), ("9.0", PF, 7, READ_ONLY),
    ]  # fmt: skip
    assert brief(report) == once * 3
    assert report.passes == 3
    assert report.values["vcpu 0 body 1"] == 0x1234
    assert report.values["vcpu 0 body 3.2"] >> 32 in (0x756E6547, 0x68747541)
    assert report.values["vcpu 0 body 10"] & ~0x60 == 0x200001, "the third pass: NX toggled twice"
    assert report.values["vcpu 0 body 11"] == 0x800


@pytest.mark.needs("qemu-system-x86_64")
def test_pae_fix_and_retry(emulate):
    store, load = ops.Store(READ_ONLY, value=0x55, size=4), ops.Load(READ_ONLY, size=4, keep=True)
    report = emulate(make(store, load, handlers=[OPEN], **PAE), 3)
    assert brief(report) == [("0", PF, 3, READ_ONLY)]
    assert (report.passes, report.retries, report.values["vcpu 0 body 1"]) == (3, 1, 0x55)


@pytest.mark.needs("qemu-system-x86_64")
def test_flat(emulate):
    body = (
        ops.Store(0x201000, value=0x66, size=4), ops.Load(0x201000, size=4, keep=True, user=True), ops.Fetch(0x202000),
        ops.SingleStep(), ops.SingleStep(user=True), ops.WriteCr(0, toggle=("WP",)), ops.ReadCr(0, keep=True),
    )  # fmt: skip
    report = emulate(make(*body, **FLAT), 3)
    assert brief(report) == [("3", DB, 0, 0), ("4", DB, 0, 0)] * 3
    assert report.values["vcpu 0 body 1"] == 0x66
    assert report.values["vcpu 0 body 6"] == 0x40033


@pytest.mark.needs("kvm")
def test_flat_on_kvm():
    body = (ops.Store(0x201000, value=0x66, size=4), ops.Load(0x201000, size=4, keep=True), ops.ReadMsr(0x12345))
    report = on_kvm(make(*body, ops.WriteCr(0, toggle=("WP",)), **FLAT), 3)
    assert brief(report) == [("2", GP, 0, 0)] * 3
    assert report.values["vcpu 0 body 1"] == 0x66


@pytest.mark.needs("qemu-system-x86_64")
def test_five_levels(emulate):
    high = 0x00FF_0000_0040_0000
    space = Space("main", (Pages(high, 0x200000), Pages(0x400000, 0x201000, flags=("U",))))
    body = (
        ops.Store(high, value=7), ops.Load(high, keep=True), ops.Load(high + 0x1000),
        ops.Load(0x400000, user=True), ops.ReadEntry("main", high, level=5), ops.ReadEntry("main", high, level=1),
    )  # fmt: skip
    report = emulate(make(*body, spaces=(space,), state=State(cr4=0x1020)), 2)
    assert brief(report) == [("2", PF, 0, high + 0x1000)] * 2
    assert report.values["vcpu 0 body 1"] == 7
    assert report.values["vcpu 0 body 4"] & 7 == 7
    assert report.values["vcpu 0 body 5"] == 0x200063


@pytest.mark.needs("qemu-system-x86_64")
def test_smep_smap_and_protection_keys(emulate):
    space = Space("main", (Pages(USER, 0x202000, flags=("W", "U")), Pages(0x500000, 0x203000, flags=("W", "U"), key=3)))
    body = (
        ops.Load(USER), ops.Stac(), ops.Load(USER), ops.Clac(), ops.Store(USER), ops.Fetch(USER + 8),
        ops.Load(0x500000, user=True), ops.WritePkru(0b01 << 6), ops.Load(0x500000, user=True), ops.ReadPkru(keep=True),
        ops.WritePkru(0b10 << 6), ops.Load(0x500000, user=True), ops.Store(0x500000, user=True), ops.WritePkru(0),
    )  # fmt: skip
    report = emulate(make(*body, spaces=(space,), state=State(cr4=0x700020)), 2)
    once = [
        ("0", PF, 1, USER), ("4", PF, 3, USER), ("5", PF, 0x11, USER + 8), ("8", PF, 0x25, 0x500000),
        ("12", PF, 0x27, 0x500000),
    ]  # fmt: skip
    assert brief(report) == once * 2
    assert report.values["vcpu 0 body 9"] == 0b01 << 6


@pytest.mark.needs("qemu-system-x86_64")
def test_alignment_check_is_the_programs_own(emulate):
    """STAC in a fix reaches the operation tried again and what follows it, through CPL 3 and a skipped fault."""
    body = (
        ops.Load(USER), ops.Load(USER), ops.Load(ABSENT, user=True), ops.SingleStep(), ops.Load(USER), ops.Clac(),
    )  # fmt: skip
    handler = Handler(PF, True, (ops.Stac(),))
    report = emulate(make(*body, handlers=[handler], state=State(cr4=0x200020)), 2)
    once = [("0", PF, 1, USER), ("2", PF, 4, ABSENT), ("2", PF, 4, ABSENT), ("3", DB, 0, 0)]
    assert brief(report) == once * 2
    assert report.retries == 4
