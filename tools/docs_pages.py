"""Pages of the documentation that are made from the code: rules, support, commands and the programming interface.

Each function gives a page as Markdown. Nothing here is committed as a page; ``docs_hook`` hands them to MkDocs.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from worldswitch.cli import COMMANDS, wsw
from worldswitch.conform import table
from worldswitch.errors import WorldswitchError
from worldswitch.kvm.facts import Fact, Kernel, debian_names, facts, kernel, lines
from worldswitch.kvm.policy import Mmu, Policy, Vendor
from worldswitch.kvm.rules import Rule, rules

ROOT = Path(__file__).resolve().parent.parent
CONFORMANCE = ROOT / "docs" / "conformance.json"
COMMIT = "https://git.kernel.org/linus/"
MESSAGE = "https://lore.kernel.org/r/"

TOPICS = {
    "ownership": "Who owns a control-register bit",
    "control_registers": "Writes to control registers",
    "validity": "What is refused",
    "intercepts": "What exits",
    "register_writes": "After a write",
    "roles": "Roles",
    "roots": "Roots of page tables",
    "permissions": "Rights",
    "guest_walk": "Walks of the guest's page tables",
    "tdp": "Two-dimensional paging",
    "shadow_pages": "Shadow pages",
    "shadow": "Shadow paging",
    "host": "The host's part",
    "cet": "CET",
    "nx": "NX huge pages",
    "nx_recovery": "Recovery of NX huge pages",
    "rcu_sync": "Locks behind a grace period",
    "vmcreate": "Creating VMs",
    "nested": "Guests of guests",
}
"""Module of ``worldswitch.kvm`` that holds rules -> what its section is called, in the page's order."""

INTERFACE: Mapping[str, tuple[str, Sequence[str]]] = {
    "traces": (
        "Traces",
        ("worldswitch.trace", "worldswitch.record.trace", "worldswitch.trace.account", "worldswitch.trace.whatif"),
    ),
    "kernels": ("Kernels and rules", ("worldswitch.kvm.facts", "worldswitch.kvm.policy", "worldswitch.kvm.rules")),
    "programs": (
        "Guest programs",
        ("worldswitch.guest.program", "worldswitch.guest.operations", "worldswitch.guest.library",
         "worldswitch.guest.toml"),
    ),
    "model": ("The model", ("worldswitch.kvm.vcpu", "worldswitch.kvm.host", "worldswitch.kvm.nested")),
    "results": (
        "Results and costs",
        ("worldswitch.record.result", "worldswitch.record.resultfile", "worldswitch.stats.compare",
         "worldswitch.costs.atoms", "worldswitch.costs.create_vm"),
    ),
    "creating": ("Creating VMs", ("worldswitch.kvm.vmcreate", "worldswitch.simulation.create_vm")),
    "nx": ("NX huge pages", ("worldswitch.kvm.nx", "worldswitch.simulation.nx_fleet")),
    "lab": ("The lab", ("worldswitch.lab.artifacts", "worldswitch.lab.jobs", "worldswitch.lab.machine")),
    "doctor": ("The doctor", ("worldswitch.host.finding", "worldswitch.host.diagnosis")),
    "basics": ("Errors and units", ("worldswitch.errors", "worldswitch.units")),
}  # fmt: skip
"""Page of the programming interface -> its title and its modules."""


def pages() -> dict[str, str]:
    """All pages made here: path below ``docs`` to Markdown."""
    made = {"rules-reference.md": rules_page(), "support.md": support_page(), "commands.md": commands_page()}
    made |= {f"api/{name}.md": interface_page(title, modules) for name, (title, modules) in INTERFACE.items()}
    made["api/index.md"] = interface_overview()
    return made


def plain(text: str) -> str:
    """*text* with no sign that Markdown would take for its own."""
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", text)


def linked(text: str) -> str:
    """*text* as Markdown, its commits and message ids as links to where they can be read."""

    def link(found: re.Match[str]) -> str:
        if found["commit"]:
            return f"commit [`{found['commit']}`]({COMMIT}{found['commit']})"
        return f"[Message-ID {plain(found['message'])}]({MESSAGE}{found['message']})"

    pattern = re.compile(r"commit (?P<commit>[0-9a-f]{12})\b|Message-ID (?P<message>[^\s,;()]+@[^\s,;()]+[^\s,;().])")
    parts, end = [], 0
    for found in pattern.finditer(text):
        parts += [plain(text[end : found.start()]), link(found)]
        end = found.end()
    return "".join([*parts, plain(text[end:])])


# ---- rules --------------------------------------------------------------------------------------------------------


def rules_page() -> str:
    """Every rule: what it says, since when, its source, and the tests that name it."""
    known = list(rules().values())
    named = tests_that_name(rule.id for rule in known)
    by_topic: dict[str, list[Rule]] = defaultdict(list)
    for rule in known:
        by_topic[rule.function.__module__.rpartition(".")[2]].append(rule)
    unverified = sum(not rule.verified for rule in known)
    parts = [
        "# Every rule\n",
        f"What KVM does, as far as this project says anything about it: {len(known)} rules, "
        f"{len(known) - unverified} of them held against a running KVM, {unverified} read in the source only and "
        "marked *unverified*. This page is made from the registry that the model, the what-if and the doctor call. "
        "[Rules](rules.md) tells how to read one; `wsw rules ID` prints it.\n",
    ]
    for topic in [*TOPICS, *sorted({*by_topic} - {*TOPICS})]:
        if topic in by_topic:
            parts.append(f"## {TOPICS.get(topic, topic)}\n")
            parts += [_rule(rule, named[rule.id]) for rule in by_topic[topic]]
    return "\n".join(parts)


def _rule(rule: Rule, named: Sequence[str]) -> str:
    tests = [rule.tested, *(file for file in named if file != rule.tested.partition("::")[0])]
    rows = [
        ("since", rule.first_release),
        ("until", rule.until),
        ("facts", ", ".join(f"[`{name}`](support.md#{name})" for name in rule.depends)),
        ("function", f"`{rule.where}`"),
        ("tests", ", ".join(f"`{test}`" for test in tests)),
        ("unverified", plain(rule.unverified)),
    ]
    shown = "\n".join(f"- **{name}**: {value}" for name, value in rows if value)
    return f"### {rule.id} {{ #{rule.id} }}\n\n{plain(rule.sentence)}\n\n{shown}\n- **source**: {linked(rule.source)}\n"


def tests_that_name(ids: Iterable[str]) -> dict[str, list[str]]:
    """Rule to the files of tests that have its id as a word, in order of their names."""
    wanted = {name: re.compile(rf"(?<![\w-]){re.escape(name)}(?![\w-])") for name in ids}
    found: dict[str, list[str]] = {name: [] for name in wanted}
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        text = file.read_text(encoding="utf-8")
        for name, pattern in wanted.items():
            if pattern.search(text):
                found[name].append(str(file.relative_to(ROOT)))
    return found


# ---- support ------------------------------------------------------------------------------------------------------


def support_page() -> str:
    """Which kernels, processors and ways to page are modelled, how far reality agreed, and every fact."""
    rows = table.load(CONFORMANCE)
    unverified = [fact for fact in facts().values() if not fact.verified]
    return "\n".join(
        [
            "# Support matrix\n",
            "What this project knows of each kernel's KVM, and how far a real kernel agreed. Made from the facts and "
            "from [runs of `wsw conform`](conform.md).\n",
            "## Kernels, processors, MMUs\n",
            _matrix(rows),
            "\n*default* is what the kernel does unless told otherwise. A share is that of random and shipped programs "
            "that did the same on the model and on a real kernel of that line: equal, or different in a way that has a "
            "name and a reason; how many there were is in the next table. *modelled* means that the rules answer for "
            "it and no programs were run on a real kernel of that line. – means that the kernel has no such MMU.\n",
            "## Conformance runs\n",
            "Each row is one machine in the lab. What its columns mean, and what is known of the differences: "
            "[Is the model right?](conform.md)\n",
            table.markdown(rows),
            "## Distribution kernels told from their names\n",
            f"Debian's names of {', '.join(f'{base}-N' for base in debian_names())} are looked up in a table; of other "
            "distributions the doctor reads the version strings, and everywhere `--from` and `--kernel` state a "
            "kernel.\n",
            "## Facts by kernel\n",
            f"{len(facts())} facts, {len(unverified)} of them not confirmed in every part (**?**; the reason stands "
            "with each below). ● means that the kernel has it.\n",
            _fact_matrix(),
            "\n## Each fact\n",
            *(_fact(fact) for fact in facts().values()),
        ]
    )


def _matrix(rows: Sequence[Mapping[str, Any]]) -> str:
    columns = [(vendor, mmu) for vendor in Vendor for mmu in Mmu]
    head = ["kernel", "stands for", "facts", *(f"{vendor} {mmu}" for vendor, mmu in columns)]
    body = []
    for line in lines():
        known = kernel(line)
        confirmed = sum(facts()[name].verified for name in known.facts)
        cells = [_cell(known, line, vendor, mmu, rows) for vendor, mmu in columns]
        body.append([line, str(known), f"{len(known.facts)}, {confirmed} confirmed", *cells])
    return _markdown(head, body)


def _cell(known: Kernel, line: str, vendor: Vendor, mmu: Mmu, rows: Sequence[Mapping[str, Any]]) -> str:
    """What is known of one kernel on one processor with one MMU."""
    try:
        Policy.of(known, vendor, mmu)
    except WorldswitchError:
        return "–"
    is_default = Policy.of(known, vendor).mmu is mmu
    names = {str(mmu), "default"} if is_default else {str(mmu)}
    ran = [
        one
        for one in rows
        if f"{one['kernel']}.".startswith(f"{line}.") and one["cpu"] == vendor and one["mmu"] in names and one["run"]
    ]
    share = sum(one["equal"] + one["named"] for one in ran) / sum(one["run"] for one in ran) if ran else None
    text = "modelled" if share is None else f"{_percent(share)} of {sum(one['run'] for one in ran):,}"
    return f"{text}, *default*" if is_default else text


def _percent(share: float) -> str:
    """A share, never rounded up to all."""
    return "100 %" if share == 1 else f"{min(share, 0.9994) * 100:.1f} %"


def _fact_matrix() -> str:
    known = {line: kernel(line) for line in lines()}
    body = [
        [f"[`{fact.id}`](#{fact.id})" + ("" if fact.verified else " **?**"),
         *("●" if fact.id in one.facts else " " for one in known.values())]
        for fact in facts().values()
    ]  # fmt: skip
    return _markdown(["fact", *known], body)


def _fact(fact: Fact) -> str:
    rows = [
        ("backports", ", ".join(fact.backports.values())),
        ("until", f"v{fact.until}" if fact.until else ""),
        ("taken back in", ", ".join(fact.removed.values())),
        ("commit", f"[`{fact.commit}`]({COMMIT}{fact.commit})" if fact.commit and not fact.since else ""),
        ("read in", linked(fact.source)),
        ("**?** not confirmed" if not fact.proposed else "proposed, in no kernel", plain(fact.why)),
    ]
    shown = "\n".join(f"- {name}: {value}" for name, value in rows if value)
    return f"### {fact.id} {{ #{fact.id} }}\n\n{linked(fact.statement)}\n\n{shown}\n"


def _markdown(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (head, ["---"] * len(head), *body))


# ---- commands -----------------------------------------------------------------------------------------------------


def commands_page() -> str:
    """Every command's own help."""
    parts = [
        "# Commands\n",
        "What `wsw COMMAND --help` prints. Exit status: 0 done (findings are results, not failures); 1 only from "
        "`compare`, `conform`, `tables --check` and where `--fail-on` asked; 2 usage; 3 something needed is missing; "
        "4 measured, but not stable. Results go to standard output, all else to standard error.\n",
    ]
    for name, words, command in every_command():
        anchor = "-".join(words)
        level = "#" * (len(words) + 1)
        with click.Context(command, info_name=name, max_content_width=100, terminal_width=100) as context:
            context.help_option_names = ["-h", "--help"]
            shown = command.get_help(context).rstrip()
        parts.append(f"{level} {name} {{ #{anchor} }}\n\n```text\n{shown}\n```\n")
    return "\n".join(parts)


def every_command() -> Iterator[tuple[str, tuple[str, ...], click.Command]]:
    """Name as it is typed, its words after ``wsw``, and the command; groups come before what is in them."""
    context = click.Context(wsw, info_name="wsw")
    for name in sorted(COMMANDS):
        command = wsw.get_command(context, name)
        assert command is not None
        yield f"wsw {name}", (name,), command
        if isinstance(command, click.Group):
            for inner in command.list_commands(context):
                found = command.get_command(context, inner)
                assert found is not None
                yield f"wsw {name} {inner}", (name, inner), found


# ---- programming interface ----------------------------------------------------------------------------------------


def interface_page(title: str, modules: Sequence[str]) -> str:
    """The public names of some modules, from their docstrings."""
    return f"# {title}\n\n" + "\n".join(
        f"::: {module}\n    options:\n      toc_label: {module.removeprefix('worldswitch.')}\n" for module in modules
    )


def interface_overview() -> str:
    """Where each public name is described."""
    import worldswitch

    rows = []
    for name in worldswitch.__all__:
        thing = getattr(worldswitch, name)
        page, module = _home(name, thing)
        link = f"[`{name}`]({page}.md#{module}.{name})"
        rows.append([link, f"`{module.removeprefix('worldswitch.')}`", _first_sentence(thing)])
    listed = "".join(
        f"- [{title}]({page}.md): {', '.join(f'`{module}`' for module in modules)}\n"
        for page, (title, modules) in INTERFACE.items()
    )
    return (
        "# Programming interface\n\nThese names are imported from `worldswitch` itself; `--python` of any command "
        "prints the calls it makes.\n\n"
        + _markdown(["name", "in `worldswitch`", "what it is"], rows)
        + "\nEverything below is typed, prints nothing and never exits; errors are "
        "[`WorldswitchError`](basics.md#worldswitch.errors.WorldswitchError).\n\n" + listed
    )


def _home(name: str, thing: Any) -> tuple[str, str]:
    """The page and module that a public name is described under: where it is made, else where it is offered."""
    offered = [
        (page, module)
        for page, (_, modules) in INTERFACE.items()
        for module in modules
        if getattr(import_module(module), name, None) is thing
    ]
    return next((one for one in offered if one[1] == thing.__module__), offered[0])


def _first_sentence(thing: object) -> str:
    """The first line of a docstring, from its own markup to Markdown."""
    line = (thing.__doc__ or "").strip().partition("\n")[0]
    return re.sub(r":\w+:`~?([^`]+)`|``([^`]+)``", r"`\1\2`", line)
