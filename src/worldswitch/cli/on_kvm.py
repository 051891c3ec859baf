"""This host's KVM as a machine of ``wsw run``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from worldswitch.kit.running import Failure, Say, Settings, Work, run_here

if TYPE_CHECKING:
    from worldswitch.cli.conditions import Conditions
    from worldswitch.record.result import Cell, Environment


class OnKvm:
    """The real /dev/kvm, as it is: it has no other conditions."""

    def __init__(self, _: Conditions) -> None:
        pass

    def environment(self) -> Environment:
        """This host."""
        from worldswitch.live.environment import here

        return here().environment

    def run(self, work: Sequence[Work], settings: Settings, say: Say) -> Iterator[Cell | Failure]:
        """See :class:`worldswitch.cli.machines.Machine`."""
        return run_here(work, settings, say)
