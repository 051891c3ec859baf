"""Smaller programs that still show a difference: delta debugging, many candidates in each start of the machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from worldswitch.errors import WorldswitchError
from worldswitch.guest import operations as ops
from worldswitch.guest.paths import places
from worldswitch.guest.program import Program, Vcpu

Test = Callable[[Sequence[Program]], Sequence[bool]]
"""Which of some programs still show the difference."""
ROUNDS = 14
AT_ONCE = 60
"""Candidates of one program in one round."""


@dataclass(slots=True)
class _Case:
    program: Program
    done: bool = False


def size(program: Program) -> int:
    """What shrinking makes smaller: operations, pages and passes."""
    executed = sum(1 for _ in places(program))
    pages = sum(len(space.pages) + 2 for space in program.spaces)
    return 4 * executed + 2 * pages + program.default_n + len(program.vcpus[0].handlers)


def shrink(programs: Sequence[Program], test: Test, say: Callable[[str], None]) -> list[Program]:
    """Each of *programs* as small as it gets within :data:`ROUNDS` rounds, in which all are tried together."""
    cases = [_Case(program) for program in programs]
    for number in range(ROUNDS):
        active = [case for case in cases if not case.done]
        if not active:
            break
        tried = [list(_candidates(case.program)) for case in active]
        flat = [one for some in tried for one in some]
        say(f"shrinking, round {number + 1}: {len(flat)} candidates of {len(active)} programs")
        verdicts = iter(test(flat))
        for case, some in zip(active, tried, strict=True):
            kept = [one for one, still in zip(some, verdicts_of(verdicts, len(some)), strict=True) if still]
            if kept:
                case.program = min(kept, key=size)
            else:
                case.done = True
    return [case.program for case in cases]


def verdicts_of(verdicts: Iterator[bool], count: int) -> list[bool]:
    """The next *count*."""
    return [next(verdicts) for _ in range(count)]


def _candidates(program: Program) -> Iterator[Program]:
    """Smaller programs, the boldest first; those no guest could run are left out."""
    seen: set[str] = set()
    count = 0
    for make in _changes(program):
        if count >= AT_ONCE:
            return
        try:
            one = make()
        except WorldswitchError:
            continue
        key = str(one)
        if size(one) < size(program) and key not in seen:
            seen.add(key)
            count += 1
            yield one


def _changes(program: Program) -> Iterator[Callable[[], Program]]:
    (vcpu,) = program.vcpus
    n = program.default_n
    for fewer in dict.fromkeys((0, 1, 2, n // 2, n - 1)):
        if 0 <= fewer < n:
            yield lambda fewer=fewer: replace(program, default_n=fewer)
    blocks = ("body", "end", "setup")
    parts = sorted((_pieces(getattr(vcpu, name)), name) for name in blocks)
    del parts
    # The halves of all blocks before their quarters.
    for share in (1, 2, 4, 8, 16, 32, 64, 128):
        for name in blocks:
            block = getattr(vcpu, name)
            yield from (_with(program, vcpu, name, less) for less in _without(block, share))
        if share == 1:
            yield lambda: _again(program, replace(vcpu, handlers=()))
            yield from _spaces(program)
        if share == 4:
            yield from _handlers(program, vcpu)
            yield from _unfolded(program, vcpu)
            yield from _fewer_pages(program)


def _pieces(block: Sequence[ops.Operation]) -> int:
    return len(block)


def _with(program: Program, vcpu: Vcpu, name: str, block: tuple[ops.Operation, ...]) -> Callable[[], Program]:
    return lambda: _again(program, replace(vcpu, **{name: block}))


def _again(program: Program, vcpu: Vcpu) -> Program:
    return replace(program, vcpus=(vcpu,))


def _without(block: tuple[ops.Operation, ...], share: int) -> Iterator[tuple[ops.Operation, ...]]:
    """*block* without each piece of a *share*-th of it in turn."""
    if share > 2 * len(block) or not block:
        return
    length = max(1, len(block) // share)
    if share > 1 and length == max(1, len(block) // (share // 2)):
        return
    for first in range(0, len(block), length):
        yield block[:first] + block[first + length :]


def _spaces(program: Program) -> Iterator[Callable[[], Program]]:
    for i in range(1, len(program.spaces)):
        yield lambda i=i: replace(program, spaces=program.spaces[:i] + program.spaces[i + 1 :])


def _handlers(program: Program, vcpu: Vcpu) -> Iterator[Callable[[], Program]]:
    for i, handler in enumerate(vcpu.handlers):
        rest = vcpu.handlers[:i] + vcpu.handlers[i + 1 :]
        yield lambda rest=rest: _again(program, replace(vcpu, handlers=rest))
        for k in range(len(handler.fix)):
            less = replace(handler, fix=handler.fix[:k] + handler.fix[k + 1 :])
            some = (*vcpu.handlers[:i], less, *vcpu.handlers[i + 1 :])
            yield lambda some=some: _again(program, replace(vcpu, handlers=some))


def _unfolded(program: Program, vcpu: Vcpu) -> Iterator[Callable[[], Program]]:
    """Repeats once or less often, user blocks shorter, walks that stand still."""
    for i, one in enumerate(vcpu.body):
        for other in _simpler(one):
            body = (*vcpu.body[:i], *other, *vcpu.body[i + 1 :])
            yield lambda body=body: _again(program, replace(vcpu, body=body))


def _simpler(one: ops.Operation) -> Iterator[tuple[ops.Operation, ...]]:
    if isinstance(one, ops.Repeat):
        yield one.body
        yield from ((replace(one, body=less),) for less in _without(one.body, len(one.body)) if less)
    if isinstance(one, ops.User):
        yield from ((replace(one, body=less),) for less in _without(one.body, len(one.body)))


def _fewer_pages(program: Program) -> Iterator[Callable[[], Program]]:
    for i, space in enumerate(program.spaces):
        for share in (2, 4, 8, 64):
            length = max(1, len(space.pages) // share)
            for first in range(0, len(space.pages), length):
                less = replace(space, pages=space.pages[:first] + space.pages[first + length :])
                yield lambda i=i, less=less: replace(
                    program, spaces=(*program.spaces[:i], less, *program.spaces[i + 1 :])
                )
