"""Programs are frozen values."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import pytest

from worldswitch.errors import UsageError
from worldswitch.guest.operations import Nop, Repeat, User, WriteCr
from worldswitch.guest.paths import places
from worldswitch.guest.program import Handler, Program, ProgramError, Vcpu


def program() -> Program:
    inner = Repeat(3, (Nop(), User((Nop(2),))))
    vcpu = Vcpu(
        (WriteCr(0, clear=("WP",)), inner), setup=(Nop(3),), end=(Nop(4),), handlers=(Handler(14, fix=(Nop(5),)),)
    )
    return Program("p", "Does little.", "pass", (vcpu, Vcpu()))


def test_equal_programs_are_equal_and_hash_alike() -> None:
    assert program() == program()
    assert len({program(), program()}) == 1
    assert replace(program(), memory=8 << 20) != program()


def test_a_program_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        program().name = "other"  # type: ignore[misc]


def test_a_program_prints_itself_as_toml() -> None:
    assert str(program()).startswith('name = "p"\nsummary = "Does little."\nunit = "pass"\n')


def test_a_bad_program_cannot_be_made_or_replaced() -> None:
    with pytest.raises(ProgramError, match=r"vcpu 0 body 0: unknown bit of CR0"):
        Program("p", "", "pass", (Vcpu((WriteCr(0, set=("WQ",)),)),))
    with pytest.raises(UsageError, match=r"memory: 0x1 bytes"):
        replace(program(), memory=1)


def test_every_operation_has_a_place_and_the_times_it_runs() -> None:
    found = [(place.path, place.operation.word, place.times, place.in_user) for place in places(program())]
    assert found == [
        ("vcpu 0 setup 0", "nop", 1, False),
        ("vcpu 0 body 0", "write-cr", 1, False),
        ("vcpu 0 body 1", "repeat", 1, False),
        ("vcpu 0 body 1.0", "nop", 3, False),
        ("vcpu 0 body 1.1", "user", 3, False),
        ("vcpu 0 body 1.1.0", "nop", 3, True),
        ("vcpu 0 end 0", "nop", 1, False),
        ("vcpu 0 handler 14 fix 0", "nop", 1, False),
    ]
