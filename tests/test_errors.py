from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldswitch import errors
from worldswitch.errors import UnknownNameError, WorldswitchError, printable


@given(st.text())
def test_printable_text_is_printable(text: str) -> None:
    assert printable(text).isprintable()


@given(st.text(st.characters(categories=["L", "N", "P"])))
def test_plain_text_stays(text: str) -> None:
    assert printable(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [("\x1b[31m", "\\x1b[31m"), ("a\nb", "a\\nb"), ("\x9b", "\\x9b"), ("\u202e", "\\u202e"), ("\ud800", "\\ud800")],
)
def test_what_steers_a_terminal_is_spelled_out(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_an_unknown_name_is_told_with_the_nearest() -> None:
    error = UnknownNameError("event", "kvm_exti", ["kvm_exit", "kvm_entry"], "Look again.")
    assert str(error) == "unknown event 'kvm_exti'; nearest: kvm_exit, kvm_entry. Look again."
    twice = UnknownNameError("event", "kvm_exti", ["kvm_exit", "kvm_exit", "kvm_entry"])
    assert str(twice) == "unknown event 'kvm_exti'; nearest: kvm_exit, kvm_entry"


def test_every_error_is_ours_and_a_builtin_one() -> None:
    leaves = {"UsageError": ValueError, "UnknownNameError": LookupError, "TraceFormatError": ValueError}
    leaves |= {"NotTold": ValueError, "MissingError": OSError}
    for name, builtin in leaves.items():
        assert issubclass(getattr(errors, name), (WorldswitchError,))
        assert issubclass(getattr(errors, name), builtin)
