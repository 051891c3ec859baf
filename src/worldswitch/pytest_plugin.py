"""pytest plugin: exit budgets in a VMM's or kernel's own tests. Imports nothing heavy until a test asks for something.

Tests take the fixture ``worldswitch``, or import the functions from here. Where a machine is missing (no /dev/kvm, no
kernel fetched for the lab) a test is skipped with the reason; ``--worldswitch-require kvm,lab`` makes that a failure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import pytest

if TYPE_CHECKING:
    from worldswitch.budget.exits import Exits
    from worldswitch.guest.program import Program

T = TypeVar("T")
_MACHINES = ("kvm", "lab", "model")
_OPTION = "--worldswitch-require"
_required: set[str] = set()


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--worldswitch-require``."""
    parser.getgroup("worldswitch", "exit budgets of guest programs").addoption(
        _OPTION,
        action="append",
        default=[],
        metavar="MACHINE,...",
        help="Fail a test that cannot have this machine (kvm, lab) instead of skipping it; all means each.",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Remember what is required, for functions that have no fixture."""
    words = {word.strip() for text in config.getoption(_OPTION) for word in text.split(",") if word.strip()}
    unknown = sorted(words - {*_MACHINES, "all"})
    if unknown:
        raise pytest.UsageError(f"{_OPTION} {unknown[0]}: there are {', '.join(_MACHINES)} and all")
    _required.clear()
    _required.update(_MACHINES if "all" in words else words)


def exits_of(program: str | Path | Program, on: str = "model", **where: Any) -> Exits:
    """The exits of a pass of *program*: see :func:`worldswitch.budget.exits.exits_of`."""
    from worldswitch.budget import exits

    return _or_skip(on, lambda: exits.exits_of(program, on, **where))


def assert_exits(program: str | Path | Program, at_most: Mapping[str, float], on: str = "model", **where: Any) -> Exits:
    """Fail if there are more exits than *at_most* allows: see :func:`worldswitch.budget.check.assert_exits`."""
    __tracebackhide__ = True
    from worldswitch.budget import check

    return _or_skip(on, lambda: check.assert_exits(program, at_most, on, **where))


def assert_no_exits(
    program: str | Path | Program,
    reason: str | None = None,
    *,
    reasons: Iterable[str] = (),
    on: str = "model",
    **where: Any,
) -> Exits:
    """Fail if there is any exit, or one of these reasons: see :func:`worldswitch.budget.check.assert_no_exits`."""
    __tracebackhide__ = True
    from worldswitch.budget import check

    return _or_skip(on, lambda: check.assert_no_exits(program, reason, reasons=reasons, on=on, **where))


def _or_skip(on: str, found: Callable[[], T]) -> T:
    """What *found* gives; the test is skipped where the machine is missing or cannot tell, failed if it is required."""
    __tracebackhide__ = True
    from worldswitch.errors import MissingError, NotTold

    try:
        return found()
    except AssertionError as over:
        failure = str(over)
    except (MissingError, NotTold) as error:
        _missing(on, str(error))
    pytest.fail(failure, pytrace=False)


def _missing(on: str, why: str) -> NoReturn:
    __tracebackhide__ = True
    if on in _required:
        pytest.fail(f"{_OPTION} asks for {on}, and it cannot be had: {why}", pytrace=False)
    pytest.skip(f"{on}: {why}")


class Budgets:
    """What the fixture gives: the functions of this module."""

    exits_of = staticmethod(exits_of)
    assert_exits = staticmethod(assert_exits)
    assert_no_exits = staticmethod(assert_no_exits)


@pytest.fixture(scope="session")
def worldswitch() -> type[Budgets]:
    """``exits_of``, ``assert_exits`` and ``assert_no_exits``."""
    return Budgets
