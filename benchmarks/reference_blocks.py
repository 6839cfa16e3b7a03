"""The blocks of the reference: recipes, methods, members and commands, made of the code."""

import dataclasses
import inspect
from pathlib import Path

from benchmarks.blocks import block, markdown


@block
def recipe_fields(root: Path) -> list[str]:
    from gcn_lpa.recipes import DEFAULT, Recipe

    rows = []
    for spec in dataclasses.fields(Recipe):
        if spec.name == "origin":
            continue
        choices = ", ".join(f"`{one}`" for one in spec.metadata["choices"])
        text = escaped(spec.metadata["help"]) + (f": {choices}" if choices else "")
        rows.append([f"`{spec.name}`", value(spec.default), value(getattr(DEFAULT, spec.name)), text])
    return markdown(["field", "unless set", "`default`, many labels", "what"], rows)


@block
def methods(root: Path) -> list[str]:
    from gcn_lpa.methods.registry import METHODS

    return markdown(["method", "what"], [[f"`{name}`", escaped(method.note)] for name, method in METHODS.items()])


@block
def members(root: Path) -> list[str]:
    """The settings in which a member differs from the first one of the default, or from its method in a comparison."""
    from gcn_lpa.methods.registry import MEMBERS, METHODS, SHARED
    from gcn_lpa.recipes import DEFAULT

    first = DEFAULT.replace(members="", votes=False)
    rows = []
    for name, make in MEMBERS.items():
        made, fields = make(first), [spec.name for spec in dataclasses.fields(first) if spec.name != "origin"]
        like = first if made.method == first.method else METHODS[made.method].fair(first)
        changed = {field: getattr(made, field) for field in fields if getattr(made, field) != getattr(like, field)}
        if like is not first:
            own = {field: setting for field, setting in changed.items() if field == "l2" or field not in SHARED}
            changed = {"method": made.method, **own}
        rows.append([f"`{name}`", ", ".join(f"`{field}={setting}`" for field, setting in changed.items())])
    return markdown(["member", "settings unlike the first member's"], rows)


def value(given: object) -> str:
    return f"`{given}`" if given not in (None, "") else "–"


def escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


@block
def cases(root: Path) -> list[str]:
    """The members of `default` and `quick` by what the columns are and how many labels there are."""
    from gcn_lpa.recipes import AMOUNTS, COLUMNS, Case, recipe_for

    rows = []
    for columns in COLUMNS:
        for labels in AMOUNTS:
            default, quick = (recipe_for(Case(labels=labels, columns=columns), name) for name in ("default", "quick"))
            kind = {"none": "no columns", "words": "words"}.get(columns, f"a {columns}")
            first = f"{default.propagation}, {default.edges} edges"
            rows.append([f"{kind}, {labels}", first, *(f"`{one.members or 'none'}`" for one in (default, quick))])
    return markdown(["columns, labels", "`default`, first member", "beside it", "`quick`, beside hop columns or hops"], rows)


@block
def commands(root: Path) -> list[str]:
    from gcn_lpa.cli.app import app

    rows = []
    for command in app.registered_commands:
        name = command.name or command.callback.__name__.replace("_", "-")
        rows.append([f"`{name}`", inspect.cleandoc(command.callback.__doc__).split("\n")[0].rstrip(".")])
    return markdown(["command", "what it does"], rows)


@block
def flags(root: Path) -> list[str]:
    """Every flag of every command but those of recipes."""
    import typer

    from gcn_lpa.cli.app import app
    from gcn_lpa.recipes import Recipe

    fields = {spec.name for spec in dataclasses.fields(Recipe)}
    lines: list[str] = []
    for name, command in sorted(typer.main.get_command(app).commands.items()):
        rows = [
            ["`" + ", ".join(p.opts) + "`", escaped(p.help or "")]
            for p in command.params
            if p.param_type_name == "option" and p.name not in fields and p.name != "help"
        ]
        places = [p.metavar or p.name.upper() for p in command.params if p.param_type_name == "argument"]
        lines += [
            f"### {name}",
            "",
            f"`{' '.join(['gcn-lpa', name, *places])}`",
            "",
            *markdown(["flag", "what"], rows),
            "",
        ]
    return lines[:-1]
