"""Cost atoms: no figure without an origin, sums with their limits, and files that come back equal."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldswitch.costs.atoms import UNITS, Atom, Costs, dumps, load, loads
from worldswitch.errors import MissingError, UsageError, WorldswitchError
from worldswitch.record.result import Spread

CR = Atom("exit.cr", 400, 500, 700, "ns", "a mail")
RELOAD = Atom("root_reload.tdp", 700, 800, 900, "ns", "a mail")
STEP = Atom("work.ssdd", 6000, 7000, 8000, "ns", "a mail", ("exit.dr",))
CPUID = Atom("exit.cpuid", 1500, 1600, 1700, "cycles", "a run")
COSTS = Costs((CR, RELOAD, STEP, CPUID))

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip)
LIMITS = st.lists(st.floats(0, 1e12), min_size=3, max_size=3).map(sorted)
ATOMS = st.builds(
    lambda event, limits, unit, origin, covers: Atom(event, *map(_six, limits), unit, origin, tuple(covers)),
    TEXT,
    LIMITS,
    st.sampled_from(UNITS),
    TEXT,
    st.lists(TEXT, max_size=2),
)


def _six(value: float) -> float:
    """As files hold it."""
    return float(f"{value:.6g}")


def test_times_add_up_and_limits_too() -> None:
    found = COSTS.price({"exit.cr": 8, "root_reload.tdp": 2})
    assert found.time == Spread(8 * 400 + 2 * 700, 8 * 500 + 2 * 800, 8 * 700 + 2 * 900)
    assert found.unpriced == {} and set(found.used) == {CR, RELOAD}


def test_there_is_no_time_while_an_event_has_no_cost() -> None:
    found = COSTS.price({"exit.cr": 8, "exit.hlt": 1})
    assert found.time is None and found.unpriced == {"exit.hlt": "has no cost"}


def test_cycles_of_no_known_length_are_no_time() -> None:
    found = COSTS.price({"exit.cpuid": 1})
    assert found.time is None and "cycles" in found.unpriced["exit.cpuid"]


def test_what_another_cost_covers_is_not_added_again() -> None:
    assert COSTS.price({"work.ssdd": 1, "exit.dr": 1}).time == Spread(6000, 7000, 8000)
    assert COSTS.price({"exit.dr": 1}).time is None


def test_a_guests_own_work_may_lack_a_cost() -> None:
    assert COSTS.price({"work.cr0-wp": 1, "exit.cr": 2}).time == Spread(800, 1000, 1400)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ((1, 2, 3, "ns", " "), "no origin"),
        ((1, 2, 3, "us", "a mail"), "unit is one of ns, cycles"),
        ((3, 2, 1, "ns", "a mail"), "does not hold"),
        ((-1, 2, 3, "ns", "a mail"), "does not hold"),
        ((1, 2, float("inf"), "ns", "a mail"), "does not hold"),
        ((1, float("nan"), 3, "ns", "a mail"), "does not hold"),
    ],
)
def test_what_is_no_cost_is_refused(values: tuple[float, float, float, str, str], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        Atom("exit.cr", *values)


def test_one_cost_for_each_event() -> None:
    with pytest.raises(UsageError, match=r"exit\.cr has more than one cost"):
        Costs((CR, CR))


@given(st.lists(ATOMS, unique_by=lambda atom: atom.event))
def test_files_come_back_equal(atoms: list[Atom]) -> None:
    if atoms:
        assert loads(dumps(Costs(tuple(atoms)))) == Costs(tuple(atoms))


@given(st.text())
def test_any_text_is_costs_or_refused(text: str) -> None:
    try:
        loads(text)
    except WorldswitchError as error:
        assert str(error).startswith("costs")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no 'costs'"),
        ("[[costs]]\nevent = 'exit.cr'\nlow = 1\nmid = 2\nhigh = 3\nunit = 'ns'\n", "no 'origin'"),
        ("[[costs]]\nevent = 1\nlow = 1\nmid = 2\nhigh = 3\nunit = 'ns'\norigin = 'x'\n", "1 is no string"),
        ("costs = 3\n", "no file of costs"),
        ("costs = ", "no file of costs"),
    ],
)
def test_what_is_no_file_of_costs_is_told(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        loads(text, "mine.toml")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="No such file"):
        load(tmp_path / "none.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="it is no text"):
        load(tmp_path / "binary.toml")
