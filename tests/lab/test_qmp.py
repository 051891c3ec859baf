"""QEMU's control channel against a stand-in at its other end."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from worldswitch.lab.qmp import Control, QmpError

GREETING = {"QMP": {"version": {}, "capabilities": []}}


def against(answer: Callable[[dict[str, Any]], list[dict[str, Any]]], use: Callable[[Control], Any]) -> list[str]:
    """Run *use* with a channel whose other end answers; the commands it was sent, and "fd" where one came with it."""
    ours, theirs = socket.socketpair()
    seen: list[str] = []

    def serve() -> None:
        theirs.sendall(json.dumps(GREETING).encode() + b"\r\n")
        buffer = b""
        while True:
            try:
                data, passed, _, _ = socket.recv_fds(theirs, 4096, 1)
            except OSError:
                return
            if not data:
                return
            for descriptor in passed:
                seen.append("fd")
                os.close(descriptor)
            buffer += data
            while b"\n" in buffer:
                line, _, buffer = buffer.partition(b"\n")
                command = json.loads(line)
                seen.append(command["execute"])
                for document in answer(command):
                    theirs.sendall(json.dumps(document).encode() + b"\r\n")

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with ours:
            use(Control(ours))
    finally:
        thread.join()
        theirs.close()
    return seen


def agree(command: dict[str, Any]) -> list[dict[str, Any]]:
    event = {"event": "STOP", "timestamp": {}}
    return [event, {"return": {"status": "completed"} if command["execute"] == "query-migrate" else {}}]


def test_a_state_is_saved_to_a_descriptor_of_ours():
    def use(control: Control) -> None:
        control.begin()
        control.save(0, time.monotonic() + 5)

    sent = ["qmp_capabilities", "migrate-set-capabilities", "stop", "fd", "getfd", "migrate", "query-migrate"]
    assert against(agree, use) == sent


def test_a_state_is_restored_and_the_machine_runs():
    def use(control: Control) -> None:
        control.begin()
        control.restore(0, time.monotonic() + 5)

    assert against(agree, use)[-1] == "cont"


def test_a_refusal_is_told():
    def refuse(command: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"error": {"class": "GenericError", "desc": "no\x1b such thing"}}]

    with pytest.raises(QmpError, match=r"refused qmp_capabilities: no\\x1b such thing"):
        against(refuse, lambda control: control.begin())


def test_a_failed_migration_is_told():
    def fail(command: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"return": {"status": "failed"} if command["execute"] == "query-migrate" else {}}]

    with pytest.raises(QmpError, match="failed"):
        against(fail, lambda control: control.save(0, time.monotonic() + 5))


def test_a_closed_channel_is_told():
    ours, theirs = socket.socketpair()
    theirs.close()
    with ours, pytest.raises(QmpError, match="closed"):
        Control(ours).begin()
