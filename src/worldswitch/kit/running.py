"""Programs run one after the other on this host's KVM, each giving a cell or the reason why not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from worldswitch.errors import MissingError, UsageError, WorldswitchError
from worldswitch.kit.words import DEADLINE, HOST_PROGRAMS, features, seconds

if TYPE_CHECKING:
    from worldswitch.guest.image import Image
    from worldswitch.live.device import Kvm
    from worldswitch.live.environment import Here
    from worldswitch.record.result import Cell

Say = Callable[[str], None]
"""Shows how far it is, if it is time to; a :class:`Told` in any case."""


class Told(str):
    """A sentence that is not about how far it is, and stays."""

    __slots__ = ()


@dataclass(frozen=True)
class Work:
    """One program to run.

    Attributes:
        spec: As it was asked for.
        image: Assembled; None for a host program.
    """

    spec: str
    image: Image | None


@dataclass(frozen=True)
class Settings:
    """How to run, the same on every machine.

    Attributes:
        n: Passes of a program's body; None is the program's own default.
        repeat: Runs that count, after warm-ups; None is the default of what runs it.
        features: CPUID feature -> whether the guest is shown it; others are as the machine has them.
        deadline: Seconds one run of a guest may take.
        create_vm: Options of the host program of that name: vms, burst, workers, first_run, cgroup.
    """

    n: int | None = None
    repeat: int | None = None
    features: Mapping[str, bool] = field(default_factory=dict)
    deadline: float = DEADLINE
    create_vm: Mapping[str, Any] = field(default_factory=dict)


def settings_of(
    work: Sequence[Work],
    n: int | None,
    repeat: int | None,
    sets: Iterable[str],
    deadline: str | None,
    create: Mapping[str, Any],
    on: Sequence[str] = ("kvm",),
) -> Settings:
    """The settings that the words of a command line mean; *create* has create-vm's options, None or False if not given.

    Args:
        on: The machines to run on.

    Raises:
        UsageError: A word means nothing, or is for a program or machine that is not among those to run.
    """
    sets = list(sets)
    _refuse_unheeded(
        work, on, {"-n": n, "--repeat": repeat, "--set cpuid.FEATURE": sets or None, "--deadline": deadline}
    )
    given = {name: value for name, value in create.items() if value is not None and value is not False}
    if given and not any(one.spec in HOST_PROGRAMS for one in work):
        name = next(iter(given)).replace("_", "-")
        raise UsageError(f"--{name} is for the program create-vm, which is not among those to run")
    return Settings(n, repeat, features(sets), DEADLINE if deadline is None else seconds(deadline), given)


def _refuse_unheeded(work: Sequence[Work], on: Sequence[str], given: Mapping[str, Any]) -> None:
    """Refuse an option that nothing among those to run would take notice of."""
    guests = any(one.spec not in HOST_PROGRAMS for one in work)
    timed = any(machine != "model" for machine in on)
    for option, value in given.items():
        if value is None:
            continue
        if option != "--repeat" and not guests:
            instead = "; --repeat says how many rounds, --burst how many VMs in each" if option == "-n" else ""
            raise UsageError(f"{option} is for guest programs, and for create-vm none runs{instead}")
        if option == "--deadline" and not timed:
            raise UsageError("--deadline is for guests that really run; the model ends by itself, so leave it out")
        if option == "--repeat" and not timed and all(one.spec not in HOST_PROGRAMS for one in work):
            raise UsageError("--repeat is for runs that take time; the model counts the same each time: leave it out")


class Failure(NamedTuple):
    """A program that did not come to its end; the others go on."""

    spec: str
    error: WorldswitchError


def run_here(work: Sequence[Work], settings: Settings, say: Say) -> Iterator[Cell | Failure]:
    """A cell for each program as soon as it is finished, or why there is none.

    Raises:
        MissingError: There is no KVM that could run any of them.
        KeyboardInterrupt: Ctrl-C; what was finished has been given.
    """
    from worldswitch.live.device import Kvm
    from worldswitch.live.environment import here

    host = here()
    with Kvm() as kvm:
        for one in work:
            try:
                if one.image is None:
                    yield from _create_vm(kvm, settings, host, say)
                else:
                    yield _guest(kvm, one.image, settings, host, say)
            except WorldswitchError as error:
                yield Failure(one.spec, error)


def _create_vm(kvm: Kvm, settings: Settings, host: Here, say: Say) -> Iterator[Cell]:
    from worldswitch.live.cells import CREATE_VM, creations_cell
    from worldswitch.live.create_vm import INTERRUPTED, Plan, measure

    options = dict(settings.create_vm)
    if settings.repeat is not None:
        options["rounds"] = settings.repeat

    def progress(what: str, done: int, total: int) -> None:
        say(f"{CREATE_VM}: {done:,} of {total:,} {what}")

    found = measure(Plan(**options), kvm, progress)
    yield creations_cell(found, host)
    if found.stopped == INTERRUPTED:
        raise KeyboardInterrupt
    if found.stopped:
        raise MissingError(found.stopped)


def _guest(kvm: Kvm, image: Image, settings: Settings, host: Here, say: Say) -> Cell:
    from worldswitch.live.bench import REPEAT, measure
    from worldswitch.live.cells import program_cell

    def progress(done: int, foreseen: int) -> None:
        say(f"{image.name}: {done:,} of about {foreseen:,} runs")

    found = measure(
        image,
        n=settings.n,
        repeat=REPEAT if settings.repeat is None else settings.repeat,
        hide=[name for name, shown in settings.features.items() if not shown],
        show=[name for name, shown in settings.features.items() if shown],
        deadline_s=settings.deadline,
        on_progress=progress,
        kvm=kvm,
    )
    return program_cell(image, found, settings.features, host)
