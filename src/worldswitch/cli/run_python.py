"""``wsw run --python``: the calls that do the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from worldswitch.cli import conditions
from worldswitch.kit.running import Settings, Work

if TYPE_CHECKING:
    from worldswitch.cli.conditions import Conditions


def here(work: Sequence[Work], settings: Settings) -> str:
    """Calls of what :func:`worldswitch.kit.running.run_here` is made of."""
    guests = [one.spec for one in work if one.image is not None]
    head: list[str] = []
    body: list[str] = []
    if guests:
        given: dict[str, Any] = {"n": settings.n, "repeat": settings.repeat}
        given["hide"] = [name for name, shown in settings.features.items() if not shown] or None
        given["show"] = [name for name, shown in settings.features.items() if shown] or None
        given["deadline_s"] = settings.deadline
        chosen = ", ".join(f"{name}={value!r}" for name, value in given.items() if value is not None)
        head += ["from worldswitch.cli.work import assembled", "from worldswitch.live.bench import measure"]
        body += [f"for spec in {guests!r}:", f"    print(measure(assembled(spec), {chosen}))"]
    if len(guests) < len(work):
        plan = dict(settings.create_vm) | ({} if settings.repeat is None else {"rounds": settings.repeat})
        chosen = ", ".join(f"{name}={value!r}" for name, value in plan.items())
        head += ["from worldswitch.live import create_vm", "from worldswitch.live.device import Kvm"]
        body += ["with Kvm() as kvm:", f"    print(create_vm.measure(create_vm.Plan({chosen}), kvm).create_ns)"]
    return "\n".join([*head, "", *body])


def on(machine: str, work: Sequence[Work], settings: Settings, asked: Conditions) -> str:
    """The same by the machines' Protocol."""
    asking, running = calls(asked, settings)
    head = ["from pathlib import PosixPath", ""] if "Path(" in asking else []
    return "\n".join(
        [
            *head,
            "from worldswitch.cli.conditions import Conditions",
            "from worldswitch.cli.machines import machines",
            "from worldswitch.cli.work import prepare",
            "from worldswitch.kit.running import Settings",
            "",
            f"work = prepare({[one.spec for one in work]!r})",
            f"for name, machine in machines({machine!r}, {asking}):",
            f"    for cell in machine.run(work, {running}, print):",
            "        print(cell)",
        ]
    )


def calls(asked: Conditions, settings: Settings) -> tuple[str, str]:
    """The calls that make both."""
    from dataclasses import fields

    def call(value: Any, kind: type) -> str:
        given = {one.name: getattr(value, one.name) for one in fields(kind)}
        default = kind()
        chosen = (f"{name}={what!r}" for name, what in given.items() if what != getattr(default, name))
        return f"{kind.__name__}({', '.join(chosen)})"

    return call(asked, conditions.Conditions), call(settings, Settings)
