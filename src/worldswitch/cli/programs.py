"""``wsw programs``: what can be run, with what parameters, and what one unit of it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from worldswitch.cli import options

if TYPE_CHECKING:
    from worldswitch.guest.program import Program

_HOST_PROGRAMS = {
    "create-vm": (
        "VM",
        "--vms --burst --workers --first-run --cgroup",
        "Creates VMs, with idle ones there already and several at once, and times KVM_CREATE_VM: no guest runs.",
    )
}
"""Name -> unit, options of wsw run, sentence."""


@click.command()
@click.argument("name", required=False, metavar="[PROGRAM[:KEY=VALUE,...]|FILE.toml]")
@options.as_json
@options.as_python
def programs(name: str | None, as_json: bool, as_python: bool) -> int:
    """List the programs that wsw run takes; or say all about one, down to its operations as TOML.

    What is printed of one is a TOML file: saved, and changed as one likes, it runs as the shipped one does.
    """
    if as_python:
        click.echo(_python(name))
    elif name is None:
        _list(as_json)
    elif name in _HOST_PROGRAMS:
        _host_program(name, as_json)
    else:
        _one(name, as_json)
    return 0


def _list(as_json: bool) -> None:
    from worldswitch.guest import library

    found = [(name, library.program(name), _parameters(name)) for name in library.names()]
    if as_json:
        documents = [_document(name, program, parameters) for name, program, parameters in found]
        options.print_json({"programs": documents + [_host_document(name) for name in _HOST_PROGRAMS]})
        return
    from worldswitch.report.tables import indented

    rows = [
        (name, program.unit, [f"{key}={_word(value)}" for key, value in parameters.items()], program.summary)
        for name, program, parameters in found
    ]
    rows += [(name, unit, words.split(), sentence) for name, (unit, words, sentence) in _HOST_PROGRAMS.items()]
    for name, unit, words, sentence in sorted(rows):
        click.echo(f"{name} (per {unit}) {' '.join(words)}".rstrip())
        click.echo(indented(sentence))
    click.echo("\nwsw programs PROGRAM shows one with its operations; wsw run PROGRAM:key=value,... runs it.")


def _one(spec: str, as_json: bool) -> None:
    from worldswitch.guest import library
    from worldswitch.guest.check import features

    program = library.program(spec)
    parameters: dict[str, Any] = {}
    if not library.is_file(spec):
        name, given = library.parse(spec)
        parameters = {**_parameters(name), **given}
    if as_json:
        options.print_json({"programs": [_document(spec, program, parameters, as_toml=True)]})
        return
    from worldswitch.report.tables import fields

    head = fields(
        [
            ("needs", ", ".join(sorted(features(program)))),
            *((f"parameter {key}", _word(value)) for key, value in parameters.items()),
        ]
    )
    click.echo("".join(f"# {line}\n" for line in head.splitlines()), nl=False)
    click.echo(str(program), nl=False)


def _parameters(name: str) -> dict[str, Any]:
    from worldswitch.guest import library

    return {parameter.name: parameter.default for parameter in library.parameters(name)}


def _word(value: Any) -> str:
    from worldswitch.guest.library.registry import shown

    return shown(value)


def _document(name: str, program: Program, parameters: dict[str, Any], as_toml: bool = False) -> dict[str, Any]:
    from worldswitch.guest.check import features

    return {
        "name": name,
        "kind": "guest",
        "unit": program.unit,
        "summary": program.summary,
        "parameters": parameters,
        "default_n": program.default_n,
        "mode": str(program.mode),
        "vcpus": len(program.vcpus),
        "features": sorted(features(program)),
        "expect": program.expect,
        "source": program.source,
        **({"toml": str(program)} if as_toml else {}),
    }


def _host_document(name: str) -> dict[str, Any]:
    unit, words, sentence = _HOST_PROGRAMS[name]
    return {"name": name, "kind": "host", "unit": unit, "summary": sentence, "options": words.split()}


def _host_program(name: str, as_json: bool) -> None:
    if as_json:
        options.print_json({"programs": [_host_document(name)]})
        return
    from worldswitch.report.tables import fields, wrapped

    unit, words, sentence = _HOST_PROGRAMS[name]
    click.echo(
        f"{wrapped(sentence)}\n\n{fields([('program', name), ('one unit', unit), ('options', words)])}", nl=False
    )


def _python(name: str | None) -> str:
    if name is None:
        each = [
            "for name in library.names():",
            "    print(name, library.parameters(name), library.program(name).summary)",
        ]
    elif name in _HOST_PROGRAMS:
        return "from worldswitch.live import create_vm\n\nprint(create_vm.__doc__)"
    else:
        each = [f"print(library.program({name!r}))"]
    return "\n".join(["from worldswitch.guest import library", "", *each])
