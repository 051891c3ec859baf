"""Programs as TOML: what is written is read back equal, and what cannot be read is told in one sentence."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from generated_programs import programs
from worldswitch.errors import MissingError
from worldswitch.guest import library
from worldswitch.guest import operations as ops
from worldswitch.guest.operations import OPERATIONS
from worldswitch.guest.paths import places
from worldswitch.guest.program import Handler, Layout, Mode, Pages, Program, ProgramError, Space, State, Vcpu
from worldswitch.guest.toml import MAX_BYTES, dumps, load, loads

HEAD = 'name = "mine"\nsummary = "Does something."\nunit = "pass"\n'
EXAMPLES = sorted((Path(__file__).parents[2] / "docs" / "examples").glob("*.toml"))


def body(*lines: str) -> str:
    return f"{HEAD}[[vcpus]]\nbody = [\n" + "".join(f"{line},\n" for line in lines) + "]\n"


@given(programs())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_a_program_written_is_read_back_equal(program: Program) -> None:
    text = dumps(program)
    again = loads(text)
    assert again == program
    assert hash(again) == hash(program)
    assert dumps(again) == text
    assert str(program) == text


def test_the_generated_programs_have_every_operation() -> None:
    words: set[str] = set()

    @given(programs())
    @settings(max_examples=300, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    def collect(program: Program) -> None:
        words.update(place.operation.word for place in places(program))

    collect()
    assert words == set(OPERATIONS)


@pytest.mark.parametrize("name", library.names())
def test_every_shipped_program_is_read_back_equal(name: str) -> None:
    program = library.program(name)
    assert loads(dumps(program)) == program


def test_32_bit_programs_and_layouts_are_read_back_equal() -> None:
    flat = Program("flat", "", "pass", (Vcpu((ops.Nop(),)),), (), Mode.FLAT, State(0x11, 0, 0))
    pae = Program("pae", "", "pass", (Vcpu((ops.Load(0x400000, size=4),)),), mode=Mode.PAE, state=State(efer=0x800))
    bare = Program(
        "bare", "", "write", (Vcpu((ops.WriteCr(0, toggle=("WP",)),)),), (Space("main", (Pages(0, 0, "2M"),)),),
        memory=2 << 20, layout=Layout(0x1000, 0x2000),
    )  # fmt: skip
    for program in (flat, pae, bare):
        assert loads(dumps(program)) == program


def test_what_is_written_has_one_operation_a_line_and_addresses_in_hexadecimal() -> None:
    inner = ops.Repeat(3, (ops.Load(0x400000, size=4), ops.WriteMsr(0xC0000080, 0xD01)))
    handlers = (Handler(14, True, (ops.Clts(),)),)
    vcpu = Vcpu((ops.WriteCr(4, clear=("SMEP",)), inner), handlers=handlers)
    program = Program("p", "", "pass", (vcpu,), (Space("main", (Pages(0x400000, 0x200000),)),))
    shown = dumps(program).split("[[vcpus]]")[1]
    assert (
        shown
        == """
body = [
    { op = "write-cr", cr = 4, clear = ["SMEP"] },
    { op = "repeat", count = 3, body = [
        { op = "load", va = 0x400000, size = 4 },
        { op = "write-msr", msr = "EFER", value = 0xd01 },
    ] },
]

[[vcpus.handlers]]
vector = 14
retry = true
fix = [
    { op = "clts" },
]
"""
    )


def test_registers_take_numbers_and_names_of_bits() -> None:
    names = HEAD + '[state]\ncr0 = ["PE", "ET", "PG", "WP"]\ncr4 = ["PAE", "PGE"]\nefer = ["LME", "LMA", "NXE"]\n'
    program = loads(names + "[[vcpus]]\n")
    assert program.state == State(0x80010011, 0xA0, 0xD00)
    assert loads(HEAD + "[state]\ncr4 = 0xa0\n[[vcpus]]\n").state.cr4 == 0xA0


def test_operations_take_bits_as_masks_and_values_as_bits() -> None:
    program = loads(
        body(
            '{ op = "write-cr", cr = 0, clear = 0x10000 }',
            '{ op = "write-cr", cr = 4, value = ["PAE", "PGE"] }',
            '{ op = "write-msr", msr = "ia32_efer", value = ["LME", "LMA", "NXE", "SCE"] }',
            '{ op = "read-msr", msr = 0xC0000102 }',
        )
    )
    assert program.vcpus[0].body == (
        ops.WriteCr(0, clear=("WP",)),
        ops.WriteCr(4, value=0xA0),
        ops.WriteMsr(0xC0000080, 0xD01),
        ops.ReadMsr(0xC0000102),
    )


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "p.toml: field name is missing"),
        ("name = 3\n", "p.toml: field summary is missing"),
        (HEAD, "p.toml: field vcpus is missing"),
        (HEAD + "vcpu = []\nvcpus = []", "p.toml: unknown field 'vcpu'; nearest: vcpus"),
        (HEAD + "vcpus = []", "p.toml: program: 0 vCPUs are not from 1 to 16"),
        (HEAD + "vcpus = 3", "p.toml: vcpus must be an array, not 3"),
        (HEAD + "vcpus = [3]", "p.toml: vcpu 0: it must be a table, not 3"),
        (HEAD.replace('"mine"', "7") + "vcpus = [{}]", "p.toml: name must be a text, not 7"),
        (HEAD + 'mode = "log"\nvcpus = [{}]', "p.toml: unknown mode 'log'; nearest: long"),
        (HEAD + "huge = 1\nvcpus = [{}]", "p.toml: huge must be true or false, not 1"),
        (HEAD + "memory = true\nvcpus = [{}]", "p.toml: memory must be a whole number, not true"),
        (HEAD + "memory = 1.5\nvcpus = [{}]", "p.toml: memory must be a whole number, not 1.5"),
        (HEAD + 'features = ["smpe"]\nvcpus = [{}]', "p.toml: program: unknown CPUID feature 'smpe'; nearest: .*smep"),
        (body('{ op = "cpud" }'), "p.toml: vcpu 0 body 0: unknown operation 'cpud'; nearest: cpuid"),
        (body('{ opp = "cpuid" }'), "p.toml: vcpu 0 body 0: field op is missing"),
        (body("3"), r"p.toml: vcpu 0 body 0: an operation is a table such as { op = \"cpuid\" }, not 3"),
        (
            body('{ op = "clts" }', '{ op = "cpuid", leef = 1 }'),
            "p.toml: vcpu 0 body 1: unknown field 'leef'; nearest: leaf",
        ),
        (body('{ op = "load" }'), "p.toml: vcpu 0 body 0: field va is missing"),
        (body('{ op = "load", va = "0x4" }'), "vcpu 0 body 0: va must be a whole number, not the text '0x4'"),
        (body('{ op = "load", va = 4, size = 3 }'), "vcpu 0 body 0: size 3 is none of 1, 2, 4, 8"),
        (
            body('{ op = "write-cr", cr = 4, set = ["SMPE"] }'),
            "vcpu 0 body 0: unknown bit of CR4 'SMPE'; nearest: .*SMEP",
        ),
        (body('{ op = "write-cr", cr = 4, value = ["WP"] }'), "vcpu 0 body 0: value: unknown bit of CR4 'WP'"),
        (body('{ op = "write-cr", cr = 0, set = "WP" }'), "set must be an array of names of bits, or a mask"),
        (body('{ op = "read-msr", msr = "LSTR" }'), "unknown model-specific register 'LSTR'; nearest: LSTAR"),
        (
            body('{ op = "repeat", count = 3, body = [{ op = "nop" }, { op = "x" }] }'),
            "vcpu 0 body 0.1: unknown operation 'x'",
        ),
        (
            body('{ op = "repeat", count = 1000000000, body = [{ op = "nop" }] }'),
            "vcpu 0 body 0: count 1000000000 is not",
        ),
        (body('{ op = "\\u001b[2J" }'), r"unknown operation '\\\\x1b\[2J'"),
        (
            HEAD + "[[vcpus]]\n[[vcpus.handlers]]\nvector = 14\nfix = [{ op = 'z' }]",
            "vcpu 0 handler 14 fix 0: unknown operation",
        ),
        (HEAD + "[[vcpus]]\n[[spaces]]\nname = 'a'\npages = [{ va = 0 }]", "space a, pages 0: field pa is missing"),
        ("a = [", "p.toml is not TOML: .*"),
        ("a = 1\na = 2\n", r"p.toml is not TOML: .*line 2"),
        ("a = " + "[" * 5000, "p.toml: it nests too deeply"),
        ("a = " + "9" * 5000, "p.toml: a number or a date in it cannot be"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(text: str, complaint: str) -> None:
    with pytest.raises(ProgramError, match=complaint) as raised:
        loads(text, "p.toml")
    assert "\n" not in str(raised.value)
    assert str(raised.value).isprintable()


def test_blocks_in_blocks_without_end_are_refused() -> None:
    inner = '{ op = "nop" }'
    for _ in range(40):
        inner = f'{{ op = "repeat", count = 1, body = [{inner}] }}'
    with pytest.raises(ProgramError, match=r"blocks are nested deeper than 8"):
        loads(body(inner))


@given(st.text(max_size=200))
def test_any_text_is_a_program_or_refused(text: str) -> None:
    with pytest.raises(ProgramError):
        loads(text)


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3), max_leaves=5
    )
)
def test_any_value_of_any_field_is_taken_or_refused(value: object) -> None:
    shown = str(value).replace("None", "true").replace("'", '"')
    for field in ("va", "stride", "user", "keep"):
        text = (
            body(f'{{ op = "load", va = 1, {field} = {shown} }}')
            if field != "va"
            else body(f'{{ op = "load", va = {shown} }}')
        )
        try:
            tomllib.loads(text)
        except (tomllib.TOMLDecodeError, ValueError):
            continue
        try:
            assert isinstance(loads(text), Program)
        except ProgramError as error:
            assert str(error).isprintable()


def test_files_are_read_and_bad_ones_named(tmp_path: Path) -> None:
    good = tmp_path / "good.toml"
    good.write_text(body('{ op = "nop" }'), encoding="utf-8")
    assert load(good).vcpus[0].body == (ops.Nop(),)
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"name = '\xff'")
    with pytest.raises(ProgramError, match=r"binary.toml is not UTF-8 text \(byte 8\)"):
        load(binary)
    large = tmp_path / "large.toml"
    large.write_bytes(b"#" * (MAX_BYTES + 1))
    with pytest.raises(ProgramError, match=r"large.toml has more than 1 MiB"):
        load(large)
    with pytest.raises(MissingError, match=r"cannot read .*none.toml: No such file"):
        load(tmp_path / "none.toml")
    with pytest.raises(MissingError, match=r"Is a directory"):
        load(tmp_path)


def test_examples_in_the_documents_are_programs() -> None:
    found = [path for path in EXAMPLES if "[[vcpus]]" in path.read_text(encoding="utf-8")]
    assert found
    for path in found:
        assert loads(dumps(load(path))) == load(path)


def test_the_program_shown_in_the_documents_is_one() -> None:
    text = (EXAMPLES[0].parents[1] / "programs.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"^```toml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    body, whole = loads(shown).vcpus[0].body, load(EXAMPLES[0].parent / "wp-toggle.toml")
    assert body == whole.vcpus[0].body
