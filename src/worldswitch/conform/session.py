"""All programs on one machine of the lab and on the model of it: how many are equal, and what differs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from worldswitch.conform.batch import MOST, Ran, Rig
from worldswitch.conform.generate import USED, program
from worldswitch.conform.named import Expect, explained
from worldswitch.conform.seen import Difference, Seen, differences, not_compared, of_model, statistics_differences
from worldswitch.conform.shrink import shrink
from worldswitch.errors import MissingError, WorldswitchError
from worldswitch.guest.assemble import assemble
from worldswitch.guest.check import features as needed
from worldswitch.guest.program import Program
from worldswitch.kvm.host import Host
from worldswitch.kvm.machine import NotModelled
from worldswitch.kvm.offers import offers
from worldswitch.kvm.policy import Policy
from worldswitch.kvm.vcpu import run

if TYPE_CHECKING:
    from worldswitch.guest.image import Image
    from worldswitch.lab.machine import Machine

Say = Callable[[str], None]
AGAIN = 2
"""How often a program that differs is run again; it differs if it does each time."""
SHIPPED_PASSES = 20
_LACKING = "processor or KVM there lacks a feature it needs"
_EMULATED = {
    "EPYC,+svm,+npt": ("smep", "smap", "fsgsbase"),
    "corei7_skylake_x": ("smep", "smap", "fsgsbase", "pcid", "invpcid", "umip"),
    "tigerlake": ("smep", "smap", "fsgsbase", "pcid", "invpcid", "umip", "shstk"),
}
"""The emulators' processor models -> what they have of :data:`~worldswitch.conform.generate.USED`, and get right."""
_WRONG = {"tigerlake": frozenset({"pku"})}
"""The emulators' processor models -> what they have and get wrong, so no program uses it. Bochs 3.0 (cpu/paging.cc,
handle_pkeys) goes by the mode of an access where the SDM (volume 3, section 4.6.2) goes by the page's: CPL 0 reads user
pages whose key is closed, and with the guest's PKRU the host may not write to its own stack after an exit."""
_WRONG_THERE = "the emulator gets a feature wrong that it needs"


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be run.

    Attributes:
        programs: How many random programs of *seed*, from number *first* on; *only*: just those numbers.
        shipped: Specs of shipped programs.
        minimize: How many differences are shrunken, the first of them.
    """

    programs: int = 200
    seed: int = 1
    first: int = 0
    only: tuple[int, ...] = ()
    shipped: tuple[str, ...] = ()
    minimize: int = 5

    def numbers(self) -> Sequence[int]:
        """The random programs' numbers."""
        return self.only or range(self.first, self.first + self.programs)


@dataclass(frozen=True, slots=True)
class Unequal:
    """A program that differs.

    Attributes:
        name: Its spec or number.
        minimal: The same difference in a smaller program, if one was looked for.
        by: Id of the named difference, empty if there is none.
    """

    name: str
    program: Program
    found: tuple[Difference, ...]
    minimal: Program | None = None
    minimal_found: tuple[Difference, ...] = ()
    by: str = ""


@dataclass(slots=True)
class Outcome:
    """What came of a plan on one machine.

    Attributes:
        ran, equal: Programs run, and those equal to the model in all that is compared.
        rescued: Those of *equal* that differed at first and were equal when they ran again.
        statistics_ran, statistics_equal: The same for KVM's statistics, of those that are equal otherwise.
        unequal: The others.
        left_out: Why programs were not run -> how many.
        failed: Programs the machine gave nothing for -> why.
        starts, executed, seconds: Starts of the machine, programs run in them, repetitions and those of shrinking
            included, and their wall time.
        why: Why nothing ran, or not all.
    """

    kernel: str
    cpu: str
    mmu: str
    emulator: str = ""
    ran: int = 0
    equal: int = 0
    statistics_ran: int = 0
    statistics_equal: int = 0
    unequal: list[Unequal] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    statistics: dict[str, int] = field(default_factory=dict)
    starts: int = 0
    executed: int = 0
    seconds: float = 0.0
    interrupted: bool = False
    missing: bool = False
    why: str = ""
    rescued: int = 0

    @property
    def unexplained(self) -> list[Unequal]:
        """The differences without a name."""
        return [one for one in self.unequal if not one.by]


@dataclass(slots=True)
class _Item:
    name: str
    program: Program
    image: Image
    expected: Seen
    ignored: Mapping[str, int]

    def differences(self, real: Seen) -> tuple[Difference, ...]:
        return differences(self.expected, real, self.ignored)


def features_of(policy: Policy, model: str) -> frozenset[str]:
    """Features that random programs may use: the emulated processor has them, and KVM offers them to guests."""
    return frozenset(name for name in _EMULATED.get(model, USED) if offers(policy, name))


def host_of(cpu: str) -> Host:
    """The conditions in the lab: no huge pages; QEMU's SVM has neither decode assists nor the next RIP."""
    bare = cpu == "amd"
    return Host(huge_pages=False, decode_assists=not bare, next_rip=not bare)


def expect_without(one: Program, policy: Policy, image: Image, real: Seen) -> Expect:
    """What the model says on :func:`host_of` without fields of it, interrupted where *real* was."""

    def expect(without: frozenset[str]) -> Seen:
        host = replace(host_of(policy.vendor), **dict.fromkeys(without, False))
        return of_model(run(one, policy, image=image, host=host, interrupted=real.interrupted))

    return expect


def conform(plan: Plan, machine: Machine, mmu: str, model: str, say: Say) -> Outcome:
    """Run the plan on *machine*, which pages by *mmu* on the emulated processor *model*.

    A Ctrl-C ends it with what is finished; so does a machine that does not boot.

    Raises:
        UsageError: There is no model of this machine.
    """
    policy = Policy.of(machine.kernel.version, machine.cpu, mmu, [])
    found = Outcome(machine.kernel.version, machine.cpu, mmu)
    rig = Rig(machine, say)
    bench = _Bench(policy, rig, found, host_of(machine.cpu), say, _WRONG.get(model, frozenset()))
    try:
        bench.run(plan, features_of(policy, model))
    except KeyboardInterrupt:
        found.interrupted, found.why = True, "interrupted"
    except MissingError as error:
        found.missing, found.why = not found.ran, str(error).splitlines()[0]
    found.starts, found.executed, found.emulator = rig.starts, rig.executed, rig.emulator
    found.seconds = round(rig.seconds, 1)
    return found


class _Bench:
    def __init__(
        self, policy: Policy, rig: Rig, found: Outcome, host: Host, say: Say, wrong: frozenset[str] = frozenset()
    ) -> None:
        self.policy, self.rig, self.found, self.host, self.say, self.wrong = policy, rig, found, host, say, wrong

    def run(self, plan: Plan, features: frozenset[str]) -> None:
        batch: list[_Item] = []
        numbers = plan.numbers()
        total = len(plan.shipped) + len(numbers)
        for item in self._items(plan, features, numbers):
            batch.append(item)
            if len(batch) == MOST:
                self._batch(batch, total)
                batch = []
        if batch:
            self._batch(batch, total)
        self._minimize(plan.minimize)

    def _items(self, plan: Plan, features: frozenset[str], numbers: Sequence[int]) -> Iterator[_Item]:
        from worldswitch.guest import library

        for spec in plan.shipped:
            shipped = library.program(spec)
            shipped = replace(shipped, default_n=min(shipped.default_n, SHIPPED_PASSES))
            if self.wrong & needed(shipped):
                self._left_out(_WRONG_THERE)
            elif (item := self._item(spec, shipped)) is not None:
                yield item
        for number in numbers:
            if (item := self._item(str(number), program(plan.seed, number, features))) is not None:
                yield item

    def _item(self, name: str, one: Program) -> _Item | None:
        try:
            return self._expect(name, one)
        except NotModelled as error:
            self._left_out(f"not followed by the model: {error}")
        except MissingError:
            self._left_out(_LACKING)
        return None

    def _expect(self, name: str, one: Program) -> _Item:
        image = assemble(one)
        expected = of_model(run(one, self.policy, image=image, host=self.host))
        return _Item(name, one, image, expected, not_compared(one))

    def _left_out(self, why: str) -> None:
        self.found.left_out[why] = self.found.left_out.get(why, 0) + 1

    def _batch(self, items: Sequence[_Item], total: int) -> None:
        found = self.found
        suspects = []
        for item, ran in zip(items, self.rig.run([item.image for item in items]), strict=True):
            if ran.lacking:
                self._left_out(_LACKING)
            elif ran.error:
                found.failed[item.name] = ran.error
            elif item.differences(ran.runs[0]):
                suspects.append((item, ran.runs))
            else:
                self._equal(item, ran)
        for item, runs in self._again(suspects):
            if (clean := next((one for one in runs if not item.differences(one)), None)) is not None:
                self._equal(item, Ran((clean,)))
                found.rescued += 1
                continue
            found.ran += 1
            least = min(runs, key=lambda one: len(item.differences(one)))
            # An interrupt may have come into any one run.
            by = next(filter(None, (self._name(item, one) for one in runs)), "")
            found.unequal.append(Unequal(item.name, item.program, item.differences(least), by=by))
        self.say(
            f"{found.kernel} {found.cpu} {found.mmu}: {found.ran:,} of {total:,} run, {found.equal:,} equal, "
            f"{len(found.unexplained)} unexplained"
        )

    def _again(self, suspects: Sequence[tuple[_Item, tuple[Seen, ...]]]) -> Iterator[tuple[_Item, tuple[Seen, ...]]]:
        """Those that differ, with more runs of each."""
        more = self.rig.run([item.image for item, _ in suspects], AGAIN) if suspects else iter(())
        for (item, runs), ran in zip(suspects, more, strict=True):
            yield item, runs + ran.runs

    def _equal(self, item: _Item, ran: Ran) -> None:
        self.found.ran += 1
        self.found.equal += 1
        real = ran.runs[0]
        if real.statistics:
            self.found.statistics_ran += 1
            found = statistics_differences(item.expected, real)
            self.found.statistics_equal += not found
            for one in found:
                name = one.what.partition(" ")[2]
                self.found.statistics[name] = self.found.statistics.get(name, 0) + 1

    def _name(self, item: _Item, real: Seen) -> str:
        """Ids of the named differences that are all that differs."""
        place = (self.found.kernel, self.found.cpu, self.found.mmu)
        expect = expect_without(item.program, self.policy, item.image, real)
        try:
            return explained(expect, real, item.ignored, place)
        except NotModelled:
            return ""

    def _minimize(self, most: int) -> None:
        """Shrink the first differences that have no name."""
        places = [i for i, one in enumerate(self.found.unequal) if not one.by][:most]
        if not places:
            return
        unequal = [self.found.unequal[i] for i in places]
        kinds = [one.found[0].kind for one in unequal]
        smaller = shrink([one.program for one in unequal], partial(self._still, kinds), self.say)
        for i, one in zip(places, smaller, strict=True):
            (found,) = self._differences([one])
            self.found.unequal[i] = replace(self.found.unequal[i], minimal=one, minimal_found=found)

    def _still(self, kinds: Sequence[str], programs: Sequence[tuple[int, Program]]) -> list[bool]:
        """Whether each still differs in the first of what the one it was made of differs in (*kinds*)."""
        found = self._differences([one for _, one in programs])
        return [any(one.kind == kinds[case] for one in some) for (case, _), some in zip(programs, found, strict=True)]

    def _differences(self, programs: Sequence[Program]) -> list[tuple[Difference, ...]]:
        """What still differs in each and has no name; nothing where model or machine give no answer."""
        items: list[_Item | None] = []
        for one in programs:
            try:
                items.append(self._expect("", one))
            except WorldswitchError:
                items.append(None)
        known = [item for item in items if item is not None]
        answers = iter(list(self.rig.run([item.image for item in known])))
        return [self._unnamed(item, next(answers)) if item is not None else () for item in items]

    def _unnamed(self, item: _Item, ran: Ran) -> tuple[Difference, ...]:
        found = item.differences(ran.runs[0]) if ran.runs else ()
        return () if found and self._name(item, ran.runs[0]) else found
