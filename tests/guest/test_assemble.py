"""Images read back by capstone and by the manual's formats; how they run is tested in test_assemble_run.py."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from disassembly import code_at, instructions, pieces, text
from worldswitch.guest import library
from worldswitch.guest import operations as ops
from worldswitch.guest.assemble import assemble
from worldswitch.guest.image import AREA_SIZE, Image
from worldswitch.guest.layout import OWN_MEMORY, WINDOWS
from worldswitch.guest.paths import places
from worldswitch.guest.program import Handler, Layout, Mode, Pages, Program, ProgramError, Space, State, Vcpu

WINDOW = WINDOWS[Mode.LONG]
PAE = State(0x80050033, 0x20, 0x800)
FLAT = State(0x50033, 0, 0)
DATA = Space("main", (Pages(0x400000, 0x200000, count=8, flags=("W", "U")),))


def program(*body: ops.Operation, spaces=(DATA,), mode=Mode.LONG, state=None, setup=(), handlers=(), **more) -> Program:
    state = state or {Mode.LONG: State(), Mode.PAE: PAE, Mode.FLAT: FLAT}[mode]
    spaces = (Space("main"),) if mode is Mode.FLAT else spaces
    vcpu = Vcpu(body=body, setup=setup, handlers=handlers)
    return Program("test", "A test.", "pass", (vcpu,), spaces=spaces, mode=mode, state=state, **more)


RECORDED = Program(
    "recorded", "Write CR0 with WP toggled.", "write", (Vcpu(body=(ops.WriteCr(0, toggle=("WP",)),)),),
    spaces=(Space("main", (Pages(0, 0, "2M"),)),), state=State(0x80050033, 0x20, 0x500), memory=2 << 20,
    layout=Layout(code=0x1000, tables=0x2000),
)  # fmt: skip

MNEMONICS = {
    ops.Load: {"mov", "movzx"}, ops.Store: {"mov"}, ops.Fetch: {"call"}, ops.WriteCr: {"mov"}, ops.ReadCr: {"mov"},
    ops.SwitchSpace: {"mov"}, ops.Clts: {"clts"}, ops.Lmsw: {"lmsw"}, ops.ReadMsr: {"rdmsr"}, ops.WriteMsr: {"wrmsr"},
    ops.Invlpg: {"invlpg"}, ops.Invpcid: {"invpcid"}, ops.WriteEntry: {"mov"}, ops.ReadEntry: {"mov"},
    ops.Stac: {"stac"}, ops.Clac: {"clac"}, ops.WritePkru: {"wrpkru"}, ops.ReadPkru: {"rdpkru"}, ops.Cpuid: {"cpuid"},
    ops.Vmcall: {"vmcall"}, ops.In: {"in"}, ops.Out: {"out"}, ops.Hlt: {"hlt"}, ops.ReadDr: {"mov"},
    ops.WriteDr: {"mov"}, ops.SingleStep: {"nop"}, ops.Nop: {"nop"}, ops.User: {"int3"}, ops.Repeat: {"inc"},
    ops.Meet: {"pause"},
}  # fmt: skip


def what(operation: ops.Operation) -> str | None:
    """A part of the operand text of the instruction that does the work, where the mnemonic says too little."""
    if isinstance(operation, ops.WriteCr | ops.ReadCr):
        return f"cr{operation.cr}"
    if isinstance(operation, ops.SwitchSpace):
        return "cr3"
    if isinstance(operation, ops.ReadDr | ops.WriteDr):
        return f"dr{operation.dr}"
    if isinstance(operation, ops.Load | ops.Store):
        return {1: "byte ptr", 2: "word ptr", 4: "dword ptr", 8: "qword ptr"}[operation.size]
    return None


@pytest.mark.parametrize("name", library.names())
def test_what_capstone_reads_in_a_shipped_image_is_what_the_program_says(name):
    shipped = library.program(name)
    image = assemble(shipped)
    by_path: dict[str, list] = {}
    for path, found in pieces(image):
        by_path.setdefault(path, []).extend(found)
    operations = {place.path: place.operation for place in places(shipped)}
    assert set(by_path) == set(operations)
    for path, operation in operations.items():
        words = MNEMONICS[type(operation)]
        part = what(operation)
        assert any(i.mnemonic in words and (part is None or part in i.op_str) for i in by_path[path]), path


def test_every_operation_is_known_to_the_table():
    assert set(MNEMONICS) == set(ops.OPERATIONS.values())


def test_a_toggle_is_an_exclusive_or_into_a_scratch_register_and_a_write():
    image = assemble(program(ops.WriteCr(0, toggle=("WP",)), ops.WriteCr(4, set=("PGE",), clear=("DE",))))
    resume, *rest = text(image, "vcpu 0 body 0")
    assert resume.startswith("mov r15, 0xffffffffffc")
    assert rest == ["mov rax, r12", "xor rax, 0x10000", "mov cr0, rax", "mov r12, rax"]
    assert text(image, "vcpu 0 body 1")[1:] == [
        "mov rax, r13", "and rax, 0xfffffffffffffff7", "or rax, 0x80", "mov cr4, rax", "mov r13, rax",
    ]  # fmt: skip


def test_the_control_registers_are_not_read_but_by_read_cr():
    body = (ops.WriteCr(0, toggle=("WP",)), ops.WriteCr(4, toggle=("PGE",)), ops.Clts(), ops.Lmsw(0xB))
    image = assemble(program(*body))
    code = max(image.segments, key=lambda s: s.gpa == image.entries[0].rip - WINDOW)
    found = instructions(image, image.entries[0].rip, len(code.data))
    assert not [i for i in found if i.mnemonic == "mov" and i.op_str.endswith((", cr0", ", cr4"))]


def test_operations_that_cannot_fault_have_no_prologue():
    body = (ops.Nop(3), ops.Cpuid(1), ops.Invlpg(0x400000), ops.Out(0x80, 7), ops.ReadCr(0))
    image = assemble(program(*body))
    assert text(image, "vcpu 0 body 0") == ["nop"] * 3
    assert text(image, "vcpu 0 body 1") == ["mov eax, 1", "mov ecx, 0", "cpuid"]
    assert text(image, "vcpu 0 body 2") == ["mov eax, 0x400000", "invlpg byte ptr [rax]"]
    assert text(image, "vcpu 0 body 3") == ["mov edx, 0x80", "mov eax, 7", "out dx, al"]
    assert text(image, "vcpu 0 body 4") == ["mov rax, cr0"]


def test_values_of_all_widths():
    image = assemble(
        program(
            ops.Store(0x400000, value=0x12, size=1), ops.Store(0x400000, value=0x1234, size=2),
            ops.Store(0xFFFF900000000000, value=0x123456789ABCDEF0), ops.WriteMsr(0xC0000100, 0xFFFF900000001234),
            ops.SwitchSpace("main", pcid=5, noflush=True), ops.WriteCr(8, value=3), ops.Vmcall(9, (1, 2, 3, 4)),
            ops.Invpcid(1, pcid=7, va=0x5000), state=State(cr4=0x20020),
        )
    )  # fmt: skip
    assert text(image, "vcpu 0 body 0")[1:] == ["mov eax, 0x400000", "mov edx, 0x12", "mov byte ptr [rax], dl"]
    assert text(image, "vcpu 0 body 1")[3] == "mov word ptr [rax], dx"
    wide = ["movabs rax, 0xffff900000000000", "movabs rdx, 0x123456789abcdef0", "mov qword ptr [rax], rdx"]
    assert text(image, "vcpu 0 body 2")[1:] == wide
    assert text(image, "vcpu 0 body 3")[1:] == [
        "mov ecx, 0xc0000100", "mov eax, 0x1234", "mov edx, 0xffff9000", "wrmsr",
    ]  # fmt: skip
    root = image.entries[0].cr3
    assert text(image, "vcpu 0 body 4")[1:] == [f"movabs rax, {1 << 63 | root | 5:#x}", "mov cr3, rax"]
    assert text(image, "vcpu 0 body 5")[1:] == ["mov eax, 3", "mov cr8, rax"]
    assert text(image, "vcpu 0 body 6")[1:] == [
        "mov eax, 9", "mov ebx, 1", "mov ecx, 2", "mov edx, 3", "mov esi, 4", "vmcall",
    ]  # fmt: skip
    assert code_at(image, image.vmcalls[0] + WINDOW, 3) == b"\x0f\x01\xc1"
    invpcid = text(image, "vcpu 0 body 7")[1:]
    assert (invpcid[0], invpcid[2]) == ("mov eax, 1", "invpcid rax, xmmword ptr [rdx]")
    descriptor = int(invpcid[1].split(", ")[1], 16)
    assert code_at(image, descriptor, 16) == struct.pack("<QQ", 7, 0x5000)


def test_a_stride_uses_the_pass_of_the_innermost_repeat():
    image = assemble(
        program(
            ops.Load(0x400000, stride=4096, span=8),
            ops.Repeat(2, (ops.Repeat(3, (ops.Load(0x400000, stride=64, span=4),)),)),
        )
    )
    assert text(image, "vcpu 0 body 0")[1:4] == ["mov rcx, r14", "and rcx, 7", "mov eax, 0x1000"]
    assert text(image, "vcpu 0 body 1.0.0")[1:3] == ["mov rcx, r9", "and rcx, 3"]


def test_a_page_table_entry_is_changed_by_one_store():
    write = ops.WriteEntry("main", 0x400000, set=("NX",), clear=("W",), toggle=("U",), key=3)
    image = assemble(program(write))
    found = text(image, "vcpu 0 body 0")
    assert sum(line.startswith("mov qword ptr [") for line in found) == 1
    assert found[1:-1] == [
        "movabs rcx, 0x87fffffffffffffd", "and rax, rcx", "movabs rcx, 0x9800000000000000", "or rax, rcx", "xor rax, 4",
    ]  # fmt: skip


def test_descriptor_tables_as_the_manual_has_them():
    image = assemble(program(ops.User((ops.Nop(),))))
    (entry,) = image.entries
    gdt = struct.unpack("<7Q", code_at(image, entry.gdt[0], 56))
    assert gdt[:5] == (0, 0xAF9B000000FFFF, 0xCF93000000FFFF, 0xAFFB000000FFFF, 0xCFF3000000FFFF)
    low, high = gdt[5:]
    base = (low >> 16 & 0xFFFFFF) | (low >> 56) << 24 | high << 32
    assert (base, low & 0xFFFF, low >> 40 & 0xFF) == (*entry.tss, 0x89)
    assert struct.unpack("<Q", code_at(image, entry.tss[0] + 4, 8)) == (entry.rsp,)
    assert entry.idt[1] == 32 * 16 - 1
    gates = [struct.unpack("<HHBBHII", code_at(image, entry.idt[0] + 16 * v, 16)) for v in range(32)]
    assert {gate[1] for gate in gates} == {8}
    assert [gate[3] for gate in gates] == [0x8E] * 3 + [0xEE] + [0x8E] * 28
    for vector, (low, _, _, _, middle, high, _) in enumerate(gates):
        at = low | middle << 16 | high << 32
        number = f"push {vector:#x}" if vector > 9 else f"push {vector}"
        # The error code that these do not push: SDM volume 3, table 6-1; APM volume 2, table 8-1.
        expected = [number] if vector in (8, 10, 11, 12, 13, 14, 17, 21, 29, 30) else ["push 0", number]
        if vector != 3:
            found = instructions(image, at, 5 * len(expected))
            assert [f"{i.mnemonic} {i.op_str}" for i in found] == expected


def test_own_memory_is_for_cpl_0_but_for_code_and_stack_of_cpl_3():
    image = assemble(program(ops.Load(0x400000, user=True)))
    window = next(s for s in image.segments if len(s.data) == 4096 and s.data[:8] == struct.pack("<Q", 0x63))
    entries = struct.unpack("<512Q", window.data)
    assert [entry & ~7 for entry in entries] == [page << 12 | 0x60 for page in range(512)]
    assert sum(entry & 4 > 0 for entry in entries) == 2
    (code,) = [address for address, _, _ in image.listing if entries[(address - WINDOW) >> 12] & 4]
    assert text(image, "vcpu 0 body 0")[-2:] == ["mov ecx, 0xffffffff", "int3"]
    assert code > image.entries[0].rip


def test_several_vcpus_share_nothing_but_the_barrier():
    vcpu = Vcpu(body=(ops.Meet(), ops.Load(0x400000, keep=True)))
    image = assemble(Program("two", "Two.", "pass", (vcpu, vcpu), spaces=(DATA,)))
    one, two = image.entries
    assert one.keeps == ("vcpu 0 body 1",) and two.keeps == ("vcpu 1 body 1",)
    assert abs(one.area - two.area) >= AREA_SIZE
    assert len({one.gdt[0], two.gdt[0], one.idt[0], two.idt[0], one.tss[0], two.tss[0], one.rsp, two.rsp}) == 8
    assert one.cr3 == two.cr3
    meet = [text(image, f"vcpu {number} body 0") for number in (0, 1)]
    assert meet[0][:3] == meet[1][:3]
    assert meet[0][2].startswith("lock xadd dword ptr")


def test_the_image_comes_back_from_its_bytes():
    image = assemble(program(ops.Load(0x400000, keep=True), ops.User((ops.Cpuid(keep=True),)), ops.Vmcall()))
    assert image.listing and image.operations
    assert Image.from_bytes(image.to_bytes()) == image


def test_the_operation_at_an_address_is_the_innermost():
    image = assemble(program(ops.Nop(), ops.Repeat(2, (ops.Cpuid(), ops.Clts()))))
    starts = {path: address for address, _, path in image.listing}
    assert image.operation_at(starts["vcpu 0 body 1.1"]) == "vcpu 0 body 1.1"
    assert image.operation_at(starts["vcpu 0 body 1"]) == "vcpu 0 body 1"
    assert image.operation_at(starts["vcpu 0 body 1.0"] - 1) == "vcpu 0 body 1"
    assert image.operation_at(image.entries[0].end) is None


def test_the_recorded_program():
    """Memory of the VM that recordings were made of: tables, code address, registers."""
    image = assemble(RECORDED)
    memory = bytearray(RECORDED.memory)
    for segment in image.segments:
        memory[segment.gpa : segment.gpa + len(segment.data)] = segment.data
    quads = {at: value for at in range(0x2000, 0x5000, 8) if (value := struct.unpack_from("<Q", memory, at)[0])}
    assert quads == {0x2000: 0x3003, 0x3000: 0x4003, 0x4000: 0x83}
    (entry,) = image.entries
    assert (entry.rip, entry.cr0, entry.cr3, entry.cr4, entry.efer) == (0x1000, 0x80050033, 0x2000, 0x20, 0x500)
    assert (entry.area, entry.gdt, entry.idt, entry.tss) == (None, (0, 0), (0, 0), (0, 0))
    assert not any(memory[0x5000:]) and not any(memory[:0x1000])
    assert text(image, "vcpu 0 body 0") == ["mov rax, r12", "xor rax, 0x10000", "mov cr0, rax", "mov r12, rax"]
    assert image.regions[0].size == 2 << 20
    assert memory[entry.end - 1] == 0xF4


@pytest.mark.parametrize("mode", [Mode.PAE, Mode.FLAT])
def test_32_bit_code(mode):
    image = assemble(
        program(
            ops.WriteCr(0, toggle=("WP",)), ops.Load(0x400000, size=4, keep=True), ops.ReadMsr(0x10, keep=True),
            ops.Repeat(2, (ops.Store(0x400000, stride=4, span=2, size=4, value=1),)), ops.Cpuid(keep=True), mode=mode,
            memory=8 << 20,
        )
    )  # fmt: skip
    for _, found in pieces(image):
        assert not [i for i in found if "r1" in i.op_str or "rax" in i.op_str]
    found = text(image, "vcpu 0 body 0")
    assert found[0].startswith("mov ebp, ") and found[2:4] == ["xor eax, 0x10000", "mov cr0, eax"]
    (entry,) = image.entries
    gdt = struct.unpack("<6Q", code_at(image, entry.gdt[0], 48))
    assert gdt[1] == 0xCF9B000000FFFF and gdt[3] == 0xCFFB000000FFFF
    assert struct.unpack("<II", code_at(image, entry.tss[0] + 4, 8)) == (entry.rsp, 0x10)
    assert entry.cr3 == (0 if mode is Mode.FLAT else entry.cr3 & ~0x1F) and not entry.long


def test_fetched_pages_are_returns():
    spaces = (Space("main", (Pages(0x400000, 0x200000, count=4), Pages(0x800000, 0x400000, "2M", count=2, flags=()))),)
    body = (
        ops.Fetch(0x400000, stride=4096, span=2), ops.Fetch(0x800010, stride=2 << 20, span=2),
        ops.WriteEntry("main", 0x400000, pa=0x203000),
    )  # fmt: skip
    image = assemble(program(*body, spaces=spaces, memory=8 << 20))
    filled = {s.gpa: s.data for s in image.segments if s.gpa >= OWN_MEMORY}
    assert filled == {
        **dict.fromkeys((2097152, 2101248, 2109440), b"\xc3" * 4096),
        **dict.fromkeys((4194320, 6291472), b"\xc3"),
    }


def test_many_fetched_pages_make_no_large_image():
    spaces = (Space("main", (Pages(0x40000000, 0x200000, count=16384),)),)
    image = assemble(program(ops.Fetch(0x40000000, stride=4096, span=16384), spaces=spaces, memory=80 << 20))
    assert sum(len(s.data) for s in image.segments if s.gpa >= OWN_MEMORY) == 16384


def test_huge_memory_is_a_region_of_its_own():
    image = assemble(program(ops.Nop(), memory=8 << 20, huge=True))
    assert [(r.gpa, r.size, r.huge) for r in image.regions] == [(0, 2 << 20, False), (2 << 20, 6 << 20, True)]


def test_too_large_for_its_own_memory():
    body = tuple(ops.Nop(4096) for _ in range(600))
    with pytest.raises(ProgramError, match=r"test needs 2\d\d\d KiB .* has 2048 KiB"):
        assemble(program(*body))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layout": Layout(0x1000, 0x2000, bare=False)}, "bare = false is not supported"),
        ({"layout": Layout(0x2010, 0x2000)}, "overlaps its page tables"),
        ({"layout": Layout(0x1000, 0x1FF000)}, "beyond its 0x200000 bytes"),
    ],
)
def test_impossible_layouts(changes, message):
    with pytest.raises(ProgramError, match=message):
        assemble(replace(RECORDED, **changes))


def test_bare_repeats_have_three_registers():
    nested: ops.Operation = ops.Nop()
    for _ in range(4):
        nested = ops.Repeat(2, (nested,))
    with pytest.raises(ProgramError, match=r"vcpu 0 body 0\.0\.0\.0 is a repeat in 3 others"):
        assemble(replace(RECORDED, vcpus=(Vcpu(body=(nested,)),)))


def test_names_of_handlers():
    handler = Handler(14, True, (ops.WriteEntry("main", 0x400000, set=("W",)), ops.Store(0x400000, value=1)))
    image = assemble(program(ops.Store(0x400000, value=2), handlers=(handler,)))
    assert "vcpu 0 handler 14 fix 1" in image.operations.values()
    assert "vcpu 0 body 0" in image.operations.values()
