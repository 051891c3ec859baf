"""Many images in one start of a machine of the lab."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import resources

from worldswitch.conform.seen import Seen, of_agent
from worldswitch.guest.image import Image
from worldswitch.lab import initramfs
from worldswitch.lab import machine as lab
from worldswitch.lab.failures import MachineError
from worldswitch.lab.jobs import Job
from worldswitch.lab.machine import Machine
from worldswitch.live.errors import NoFeatureError

Say = Callable[[str], None]
MOST = 200
"""Images of one start."""
_EACH = 6.0
"""Seconds of wall time that a start has for each run of an image, besides those for booting."""


@dataclass(frozen=True, slots=True)
class Ran:
    """What came of one image: the runs, or why there are none; *lacking*: the guest there lacks features it needs."""

    runs: tuple[Seen, ...] = ()
    error: str = ""
    lacking: bool = False


@dataclass(slots=True)
class Rig:
    """Starts one machine again and again.

    Attributes:
        features: CPUID features its KVM offers to guests; empty before the first start.
        starts, seconds, executed: Starts so far, their wall time, programs run in them.
    """

    machine: Machine
    say: Say
    features: frozenset[str] = frozenset()
    starts: int = 0
    seconds: float = 0.0
    executed: int = 0
    emulator: str = ""
    failures: list[str] = field(default_factory=list)

    def run(self, images: Sequence[Image], times: int = 1) -> Iterator[Ran]:
        """What came of each image, run *times* times; as each start ends.

        A start that comes to no end is divided, so that a program that ends it takes no other with it.

        Raises:
            MissingError: The machine does not boot, or something of it is not here.
        """
        for first in range(0, len(images), MOST):
            yield from self._divided(images[first : first + MOST], times)

    def _divided(self, images: Sequence[Image], times: int) -> Iterator[Ran]:
        try:
            yield from self._start(images, times)
        except MachineError as error:
            if error.stage != "running":
                raise
            if len(images) < 2:
                self.failures.append(str(error))
                yield Ran(error=f"the machine did not come to its end: {str(error).splitlines()[0]}")
                return
            middle = len(images) // 2
            yield from self._divided(images[:middle], times)
            yield from self._divided(images[middle:], times)

    def _start(self, images: Sequence[Image], times: int) -> list[Ran]:
        files: dict[str, bytes] = {f"{i}.img": image.to_bytes() for i, image in enumerate(images)}
        files["agent.py"] = resources.files(__package__).joinpath("agent.py").read_bytes()
        argv = ("python3", "-I", "-S", "agent.py", f"/{initramfs.KIT}", str(times), str(len(images)))
        limit = lab.DEADLINE[self.machine.cpu] + _EACH * len(images) * times
        done = lab.run(self.machine, [Job(argv, dict(files))], deadline=limit, progress=self.say)
        self.starts += 1
        self.seconds += done.seconds
        self.executed += len(images) * times
        self.emulator = done.emulator
        lines = done.results[0].stdout.splitlines()
        found = [json.loads(line) for line in lines]
        if not found or "features" not in found[0]:
            said = done.results[0].stderr.decode(errors="replace").strip().splitlines()
            raise MachineError(f"the guest ran no program: {said[-1] if said else 'it said nothing'}", (), "ready")
        self.features = frozenset(found.pop(0)["features"])
        ran = [_ran(one) for one in found]
        return ran + [Ran(error="the guest ended before it")] * (len(images) - len(ran))


def _ran(document: dict[str, object]) -> Ran:
    if "error" in document:
        return Ran(error=str(document["error"]), lacking=document["kind"] == NoFeatureError.__name__)
    runs = document["runs"]
    assert isinstance(runs, list)
    return Ran(tuple(of_agent(one) for one in runs))
