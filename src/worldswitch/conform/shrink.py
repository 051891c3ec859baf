"""Smaller programs that still show a difference: delta debugging, many candidates in each start of the machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from worldswitch.errors import WorldswitchError
from worldswitch.guest import operations as ops
from worldswitch.guest.paths import places
from worldswitch.guest.program import Program, Vcpu

Test = Callable[[Sequence[tuple[int, Program]]], Sequence[bool]]
"""Which of some programs still show the difference of the one each was made of, told by its place."""
ROUNDS, SECONDS = 24, 150.0
AT_ONCE = 30
"""Candidates of one program in one round."""
BLOCKS = ("body", "end", "setup")
Removal = Mapping[str, frozenset[int]]
"""Block -> places of the operations taken out of it."""


class _Candidate(NamedTuple):
    program: Program
    removal: Removal


@dataclass(slots=True, eq=False)
class _Case:
    """A program on its way down; *share*: pieces blocks are cut into; *promising*: what could go, each alone."""

    program: Program
    share: int = 1
    promising: list[Removal] = field(default_factory=list)
    done: bool = False

    def judge(self, tried: Sequence[_Candidate], verdicts: Sequence[bool]) -> None:
        """Take the smallest that still shows the difference; finer pieces where none does."""
        kept = [one for one, still in zip(tried, verdicts, strict=True) if still]
        self.promising = []
        if not kept:
            self.done = self.share > max(len(block) for block in _blocks(self.program).values())
            self.share *= 2
            return
        best = min(kept, key=lambda one: size(one.program))
        alone = [one.removal for one in kept if one.removal and one is not best]
        # Each of them could go alone; perhaps all, or every other one, can go at once.
        more = [_shifted(_union(some), best.removal) for some in (alone, alone[::2]) if some]
        self.promising = [one for one in more if any(one.values())]
        self.program = best.program


def size(program: Program) -> int:
    """What shrinking makes smaller: operations, pages and passes."""
    executed = sum(1 for _ in places(program))
    pages = sum(len(space.pages) + 2 for space in program.spaces)
    return 4 * executed + 2 * pages + program.default_n + len(program.vcpus[0].handlers)


def shrink(programs: Sequence[Program], test: Test, say: Callable[[str], None]) -> list[Program]:
    """Each of *programs* as small as it gets within :data:`ROUNDS` rounds, in which all are tried together.

    No round begins after :data:`SECONDS`.
    """
    cases = [_Case(program) for program in programs]
    until = time.monotonic() + SECONDS
    for number in range(ROUNDS):
        active = [case for case in cases if not case.done]
        if not active or time.monotonic() > until:
            break
        tried = [list(_candidates(case)) for case in active]
        flat = [(cases.index(case), one.program) for case, some in zip(active, tried, strict=True) for one in some]
        say(f"shrinking, round {number + 1}: {len(flat)} candidates of {len(active)} programs")
        verdicts = list(test(flat)) if flat else []
        for case, some in zip(active, tried, strict=True):
            case.judge(some, verdicts[: len(some)])
            verdicts = verdicts[len(some) :]
    return [case.program for case in cases]


def _candidates(case: _Case) -> Iterator[_Candidate]:
    """Smaller programs, the boldest first; those no guest could run are left out."""
    seen: set[str] = set()
    smallest = size(case.program)
    for make, removal in _changes(case):
        if len(seen) >= AT_ONCE:
            return
        try:
            one = make()
        except WorldswitchError:
            continue
        key = str(one)
        if size(one) < smallest and key not in seen:
            seen.add(key)
            yield _Candidate(one, removal)


def _changes(case: _Case) -> Iterator[tuple[Callable[[], Program], Removal]]:
    program, share = case.program, case.share
    (vcpu,) = program.vcpus
    for removal in case.promising:
        yield _without(program, removal), removal
    n = program.default_n
    for fewer in dict.fromkeys((0, 1, 2, n // 2)):
        if fewer < n:
            yield _to(program, default_n=fewer), {}
    if share <= 2:
        yield _to(program, vcpus=(replace(vcpu, handlers=()),)), {}
        yield from ((one, {}) for one in _spaces(program))
    for name, block in _blocks(program).items():
        for piece in _pieces(len(block), share):
            removal = {name: piece}
            yield _without(program, removal), removal
    yield from ((one, {}) for one in (*_handlers(program, vcpu), *_simpler(program, vcpu), *_pages(program, share)))


def _blocks(program: Program) -> dict[str, tuple[ops.Operation, ...]]:
    return {name: getattr(program.vcpus[0], name) for name in BLOCKS}


def _to(program: Program, **changes: object) -> Callable[[], Program]:
    return lambda: replace(program, **changes)  # type: ignore[arg-type]


def _without(program: Program, removal: Removal) -> Callable[[], Program]:
    blocks = {
        name: tuple(one for i, one in enumerate(block) if i not in removal[name])
        for name, block in _blocks(program).items()
        if name in removal
    }
    return lambda: replace(program, vcpus=(_block_vcpu(program.vcpus[0], blocks),))


def _block_vcpu(vcpu: Vcpu, blocks: Mapping[str, tuple[ops.Operation, ...]]) -> Vcpu:
    body, setup, end = (blocks.get(name, getattr(vcpu, name)) for name in ("body", "setup", "end"))
    return replace(vcpu, body=body, setup=setup, end=end)


def _pieces(length: int, share: int) -> Iterator[frozenset[int]]:
    """The places of a block of *length*, cut into *share* pieces; none where single places were tried before."""
    step = -(-length // share)
    if not length or (share > 1 and step == -(-length // (share // 2))):
        return
    for first in range(0, length, step):
        yield frozenset(range(first, min(first + step, length)))


def _union(removals: Sequence[Removal]) -> Removal:
    return {name: frozenset().union(*(one.get(name, frozenset()) for one in removals)) for name in BLOCKS}


def _shifted(removal: Removal, gone: Removal) -> Removal:
    """*removal* as it is named once what is *gone* is gone."""
    found = {}
    for name, places_ in removal.items():
        out = gone.get(name, frozenset())
        found[name] = frozenset(i - sum(1 for k in out if k < i) for i in places_ - out)
    return found


def _spaces(program: Program) -> Iterator[Callable[[], Program]]:
    for i in range(1, len(program.spaces)):
        yield _to(program, spaces=program.spaces[:i] + program.spaces[i + 1 :])


def _handlers(program: Program, vcpu: Vcpu) -> Iterator[Callable[[], Program]]:
    for i, handler in enumerate(vcpu.handlers):
        others = [(*vcpu.handlers[:i], *vcpu.handlers[i + 1 :])]
        for k in range(len(handler.fix)):
            less = replace(handler, fix=handler.fix[:k] + handler.fix[k + 1 :])
            others.append((*vcpu.handlers[:i], less, *vcpu.handlers[i + 1 :]))
        yield from (_to(program, vcpus=(replace(vcpu, handlers=some),)) for some in others)


def _simpler(program: Program, vcpu: Vcpu) -> Iterator[Callable[[], Program]]:
    """Repeats unrolled or shorter, user blocks shorter."""
    for i, one in enumerate(vcpu.body):
        for other in _instead(one):
            yield _to(program, vcpus=(replace(vcpu, body=(*vcpu.body[:i], *other, *vcpu.body[i + 1 :])),))


def _instead(one: ops.Operation) -> Iterator[tuple[ops.Operation, ...]]:
    if isinstance(one, ops.Repeat):
        yield one.body
    if isinstance(one, ops.Repeat | ops.User) and len(one.body) > 1:
        yield from ((replace(one, body=one.body[:i] + one.body[i + 1 :]),) for i in range(len(one.body)))


def _pages(program: Program, share: int) -> Iterator[Callable[[], Program]]:
    for i, space in enumerate(program.spaces):
        for piece in _pieces(len(space.pages), share):
            less = replace(space, pages=tuple(one for k, one in enumerate(space.pages) if k not in piece))
            yield _to(program, spaces=(*program.spaces[:i], less, *program.spaces[i + 1 :]))
