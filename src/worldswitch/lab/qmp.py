"""QEMU's control channel: one JSON command, one answer (QEMU Machine Protocol specification)."""

from __future__ import annotations

import json
import socket
import time
from typing import Any

from worldswitch.errors import MissingError, printable

_POLL = 0.004
_ANSWER = 30.0
"""Seconds QEMU gets to answer a command."""

_MIGRATING = frozenset(("none", "setup", "active", "device", "pre-switchover", "wait-unplug"))


class QmpError(MissingError):
    """QEMU refused a command, or closed the channel."""


class Control:
    """QEMU's control channel over a connected socket.

    Raises:
        QmpError: From every method, if QEMU refuses or is gone.
    """

    def __init__(self, channel: socket.socket) -> None:
        channel.settimeout(_ANSWER)
        self._channel = channel
        self._buffer = b""

    def begin(self) -> None:
        """Take the greeting, and have guest memory that is a shared file left out of saved states."""
        self._next()
        self.call("qmp_capabilities")
        capability = {"capability": "x-ignore-shared", "state": True}
        self.call("migrate-set-capabilities", capabilities=[capability])

    def save(self, descriptor: int, until: float) -> None:
        """Stop the machine and write its state to a descriptor of ours."""
        self.call("stop")
        self.call("getfd", descriptor, fdname="state")
        self.call("migrate", uri="fd:state")
        self._migrated(until)

    def restore(self, descriptor: int, until: float) -> None:
        """Load the state from a descriptor of ours, into a machine started to wait for it, and let it run."""
        self.call("getfd", descriptor, fdname="state")
        self.call("migrate-incoming", uri="fd:state")
        self._migrated(until)
        self.call("cont")

    def _migrated(self, until: float) -> None:
        while True:
            status = self.call("query-migrate").get("status", "none")
            if status == "completed":
                return
            if status not in _MIGRATING or time.monotonic() > until:
                raise QmpError(f"QEMU could not move the machine's state: {printable(str(status))}")
            time.sleep(_POLL)

    def call(self, command: str, descriptor: int | None = None, **arguments: Any) -> dict[str, Any]:
        """What QEMU answers to *command*, sent with a *descriptor* of ours if there is one."""
        document: dict[str, Any] = {"execute": command}
        if arguments:
            document["arguments"] = arguments
        try:
            passed = [] if descriptor is None else [descriptor]
            socket.send_fds(self._channel, [json.dumps(document).encode() + b"\n"], passed)
        except OSError as error:
            raise QmpError(f"QEMU closed its control channel at {command}: {error.strerror}") from error
        while True:
            answer = self._next()
            if "return" in answer:
                result = answer["return"]
                return result if isinstance(result, dict) else {}
            if "error" in answer:
                raise QmpError(f"QEMU refused {command}: {printable(str(answer['error'].get('desc')))}")

    def _next(self) -> dict[str, Any]:
        while b"\n" not in self._buffer:
            try:
                data = self._channel.recv(1 << 16)
            except OSError as error:
                raise QmpError(f"QEMU does not answer: {error}") from error
            if not data:
                raise QmpError("QEMU closed its control channel")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        document: dict[str, Any] = json.loads(line)
        return document
