"""Where an operation stands in a program: ``"vcpu 0 body 3.1"`` is the second operation in the fourth of the body."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from worldswitch.guest.operations import Operation, Repeat, User
from worldswitch.guest.program import Program, Vcpu


class Place(NamedTuple):
    """An operation and where it stands.

    Attributes:
        path: Such as ``"vcpu 0 setup 2"`` or ``"vcpu 1 handler 14 fix 0"``.
        times: How often the repeats around it run it in one pass.
        depth: How many blocks are around it.
        in_user: Inside a ``User`` block.
        in_handler: Inside a handler's fix.
    """

    path: str
    operation: Operation
    times: int = 1
    depth: int = 0
    in_user: bool = False
    in_handler: bool = False


def places(program: Program) -> Iterator[Place]:
    """Every operation of the program, blocks before what is in them."""
    for number, vcpu in enumerate(program.vcpus):
        yield from vcpu_places(number, vcpu)


def vcpu_places(number: int, vcpu: Vcpu) -> Iterator[Place]:
    """Every operation of one vCPU."""
    for part in ("setup", "body", "end"):
        yield from _inside(getattr(vcpu, part), Place(f"vcpu {number} {part}", Operation()), " ")
    for handler in vcpu.handlers:
        outer = Place(f"vcpu {number} handler {handler.vector} fix", Operation(), in_handler=True)
        yield from _inside(handler.fix, outer, " ")


def _inside(block: tuple[Operation, ...], outer: Place, joint: str) -> Iterator[Place]:
    for index, operation in enumerate(block):
        place = outer._replace(path=f"{outer.path}{joint}{index}", operation=operation)
        yield place
        if isinstance(operation, Repeat):
            inner = place._replace(times=place.times * operation.count, depth=place.depth + 1)
            yield from _inside(operation.body, inner, ".")
        elif isinstance(operation, User):
            yield from _inside(operation.body, place._replace(depth=place.depth + 1, in_user=True), ".")
