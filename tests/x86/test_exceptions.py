"""Expected values: Intel SDM volume 3, "Protected-Mode Exceptions and Interrupts" and "Page-Fault Error Code"."""

from __future__ import annotations

import pytest

from worldswitch.x86.exceptions import error_bits, exception_name


@pytest.mark.parametrize(("vector", "name"), [(0, "#DE"), (6, "#UD"), (13, "#GP"), (14, "#PF"), (21, "#CP")])
def test_exceptions_have_the_manuals_names(vector: int, name: str) -> None:
    assert exception_name(vector) == name


@pytest.mark.parametrize("vector", [9, 15, 22, 255])
def test_a_vector_without_a_name_is_a_number(vector: int) -> None:
    assert exception_name(vector) == f"vector {vector}"


@pytest.mark.parametrize(
    ("code", "bits"), [(0, ""), (1, "P"), (0b111, "P W U"), (0b10100, "U I"), (1 << 5 | 1, "P PK"), (1 << 6, "SS")]
)
def test_an_error_code_names_its_bits(code: int, bits: str) -> None:
    assert error_bits(code) == bits
