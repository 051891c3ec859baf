"""What runs in the lab's guest: every image of its folder once or more often, in a fresh VM each time.

A program of its own, by the guest's Python, with the field kit to run images: ``python3 agent.py KIT TIMES COUNT``.
It prints one JSON document a line for each of the images ``0.img`` to ``COUNT - 1``: ``runs``, each with ``exits`` by
reason, KVM's statistics, and what the guest left behind; or ``error``.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

DEADLINE = 20.0
"""Seconds of the guest's time after which a program that still runs is stopped."""

DELIVERY, ADDRESS = 3, 3
"""KVM_INTERNAL_ERROR_DELIVERY_EV, and which of its data is the address (x86.c, kvm_prepare_event_vectoring_exit)."""
_EXIT = re.compile(r" kvm_exit: (?:vcpu \d+ )?reason (.+?) rip ")
_MOV_DR = re.compile(r"(?:read|write)_dr\d+$|DR_ACCESS$")


def main(kit: str, times: int, count: int) -> None:
    """Run the images and print what came of each."""
    sys.path.insert(0, kit)
    from worldswitch.live import reasons
    from worldswitch.live.cpuid import offered
    from worldswitch.live.device import Kvm

    with Kvm() as kvm, reasons.tracer() as tracer:
        _print({"features": sorted(name for name, there in offered(kvm).items() if there)})
        for number in range(count):
            _print(_image(kvm, tracer, Path(f"{number}.img").read_bytes(), times))


def _image(kvm: Any, tracer: Any, data: bytes, times: int) -> dict[str, Any]:
    from worldswitch.errors import WorldswitchError
    from worldswitch.guest.image import Image

    try:
        image = Image.from_bytes(data)
        return {"runs": [_run(kvm, tracer, image) for _ in range(times)]}
    except WorldswitchError as error:
        return {"error": str(error), "kind": type(error).__name__}


def _run(kvm: Any, tracer: Any, image: Any) -> dict[str, Any]:
    from worldswitch.live.errors import InternalErrorError
    from worldswitch.live.machine import run_image

    try:
        outcome = run_image(kvm, image, image.default_n, deadline_s=DEADLINE, around=tracer.on)
    except InternalErrorError as error:
        ended = f"internal error {error.suberror}"
        if error.suberror == DELIVERY and len(error.data) > ADDRESS:
            ended += f" at {error.data[ADDRESS]:#x}"
        return {**_exits(tracer), "counters": {}, "userspace": {}, "report": None, "ended": ended}
    (report, *_) = outcome.reports
    found = None
    if report is not None:
        log = [[one.operation, one.vector, one.error_code, one.cr2, one.rip] for one in report.log]
        found = {
            "passes": report.passes, "faults": report.faults, "retries": report.retries, "log": log,
            "values": report.values,
        }  # fmt: skip
    counted = {"counters": outcome.counters, "userspace": outcome.userspace_exits}
    return {**_exits(tracer), **counted, "report": found, "ended": ""}


def _exits(tracer: Any) -> dict[str, Any]:
    from worldswitch.live import reasons

    exits = tracer.exits()
    if exits is None:
        return {"exits": None, "interrupted": []}
    text = tracer.text()
    for reason, count in reasons.made_by_interrupts(text).items():
        exits[reason] -= count
    return {"exits": exits, "interrupted": _interrupted(text)}


def _interrupted(text: str) -> list[int]:
    """Numbers of exits, from 0, before which interrupts came since the last; those they made themselves aside."""
    from worldswitch.live.reasons import INTERRUPTS

    found: list[int] = []
    number, last = 0, ""
    for reason in _EXIT.findall(text):
        if reason in INTERRUPTS:
            if number not in found[-1:]:
                found.append(number)
        elif not (_MOV_DR.match(reason) and _MOV_DR.match(last)):
            number, last = number + 1, reason
    return found


def _print(document: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(document, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
