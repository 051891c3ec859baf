"""The log of faults in a guest's result area: which page an entry lies on, and how far it is from full."""

from __future__ import annotations

from worldswitch.guest.image import FAULT, FAULT_LOG, MAX_FAULTS, Fault

_PAGE = 4096


def page_of(number: int) -> int:
    """The page of the result area that the entry of fault *number* ends on."""
    return (FAULT_LOG + FAULT.size * (number + 1) - 1) // _PAGE


def room(faults: int) -> int:
    """How many more faults can be logged on the page of the last of *faults*, or at all once the log is full."""
    if faults >= MAX_FAULTS:
        return 1 << 62
    end = (page_of(faults - 1) + 1) * _PAGE - FAULT_LOG
    return max(0, min(end // FAULT.size, MAX_FAULTS) - faults)


def repeat(log: list[Fault], faults: int, times: int) -> None:
    """Log the last *faults* entries again, *times* times, as far as there is room."""
    if faults:
        log += log[-faults:] * min(times, -(-(MAX_FAULTS - len(log)) // faults))
        del log[MAX_FAULTS:]
