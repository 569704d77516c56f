"""The subcommands ``methods`` and ``metrics``: lists, and descriptions with every option."""

import re
from collections.abc import Mapping
from dataclasses import MISSING, fields
from inspect import cleandoc
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from rich.text import Text
from typer import Argument

from heta_lens.cli.app import add, command, say, show
from heta_lens.cli.views import show_table

if TYPE_CHECKING:
    from heta_lens import Method


class OptionDescription(NamedTuple):
    name: str
    type: str
    default: str
    help: str


def described_options(method: type) -> list[OptionDescription]:
    """Return the options of a method except ``progress``, the documented options first."""
    kinds, helps = get_type_hints(method, include_extras=True), documented(method.__doc__ or "")
    options = {field.name: _default(field) for field in fields(method) if field.name != "progress"}
    return [
        OptionDescription(name, type_text(kinds[name]), options[name], helps.get(name, ""))
        for name in dict.fromkeys([*helps, *options])
        if name in options
    ]


def description(method: type) -> str:
    """Return the text of a docstring between the title and the options."""
    before = re.split(r"^(?:- ``|Cost: |Adapted: )", cleandoc(method.__doc__ or ""), maxsplit=1, flags=re.MULTILINE)[0]
    return "\n\n".join(" ".join(part.replace("`", "").split()) for part in before.split("\n\n")[1:]).strip()


def documented(docstring: str) -> dict[str, str]:
    """Return the line of every option; the options of ``- ``a``, ``b``: …`` share a line, and the line names them."""
    lines: dict[str, str] = {}
    for entry in re.split(r"\n(?=- ``)", cleandoc(docstring)):
        head, colon, text = entry.partition(": ")
        if entry.startswith("- ``") and colon:
            line, names = " ".join(text.split("\n\n")[0].replace("``", "").split()), re.findall(r"``(\w+)``", head)
            shared = f"{', '.join(names)}: " if len(names) > 1 else ""
            lines |= dict.fromkeys(names, shared + line)
    return lines


WORDS = {"NoneType": "none", "SupportsIndex": "a token id", "Tensor": "a vector", "bool": "True or False"}


def type_text(kind: Any) -> str:
    """Return an annotation in words: ``int ≥ 1 or none``, ``ridge or lasso``."""
    if get_origin(kind) is Literal:
        return " or ".join(map(str, get_args(kind)))
    if hasattr(kind, "__metadata__"):
        base, *checks = get_args(kind)
        bounds = " ".join(f"≥ {check.least:g}" for check in checks if hasattr(check, "least"))
        return re.sub(r"\b(int|float)\b", rf"\1 {bounds}", type_text(base), count=1) if bounds else type_text(base)
    if get_origin(kind) in (Union, UnionType):
        parts = get_args(kind)
        kept = [part for part in parts if not (part is int and float in parts)]  # a float may be a whole number
        return " or ".join(dict.fromkeys(map(type_text, kept)))
    name = getattr(kind, "__name__", str(kind))
    return WORDS.get(name, name)


def _default(field: Any) -> str:
    if field.default is MISSING:
        return "required" if field.default_factory is MISSING else str(field.default_factory())
    return "none" if field.default is None else str(field.default)


@command("metrics")
def list_metrics(
    *, name: Annotated[str | None, Argument(help="Only this one, with all that is known of it.")] = None
) -> None:
    """List the metrics, or describe one.

    Says what each measures, which direction is better, and what it costs beside the attribution.
    """
    from heta_lens.metrics import METRICS
    from heta_lens.metrics.registry import described_metric, metric_named

    chosen = METRICS if name is None else dict([metric_named(name)])
    about = [{"name": known, "measures": described_metric(known), **metric.about} for known, metric in chosen.items()]
    add(metrics=about)
    if name is not None:
        about[0]["example"] = f"heta-lens evaluate recall --limit 10 -m heta,random --metrics {name} --out results"
        _show_facts(about[0])
        return
    rows = []
    for of in about:
        cost = f"{of['again']} × the method" if of["again"] else of["cost"]
        facts = f"{of['title']}: {of['variant']}", f"{of['better']} is better", f"cost {cost}", of["source"], _from(of)
        rows.append((of["name"], f"{of['measures']}\n{'; '.join(filter(None, facts))}.".lstrip("\n")))
    show_table(["metric", "what it measures"], rows)


LEGEND = "F: forwards, B: backwards, of N tokens and L layers. ±: above 0 speaks for the target.\n"
EXAMPLE = 'heta-lens attribute "Mia put the key in the" --method {}'
SIGNS = {True: "±", False: "≥ 0", None: "as the function returns them"}


@command("methods")
def list_methods(*, name: Annotated[str | None, Argument(help="Only this one, with its options.")] = None) -> None:
    """List the methods, or describe one.

    Says what each does, what it costs, and what its scores mean.
    """
    from heta_lens._util.presets import PRESETS, RECOMMENDED
    from heta_lens.methods.registry import ALIASES, METHODS, method_of

    if name is not None and name in PRESETS:
        preset = {"name": name, **PRESETS[name]._asdict(), "example": EXAMPLE.format(name)}
        add(presets=[preset])
        _show_facts(preset | {"options": PRESETS[name].written})
        return
    if name is not None:
        method_of(name, {})  # refuses an unknown name
        _show_method(ALIASES.get(name, name))
        return
    about = [_about(known, method) for known, method in METHODS.items()]
    add(methods=about, presets=[{"name": known, **preset._asdict()} for known, preset in PRESETS.items()])
    written = {known: f"{preset.written}\n" for known, preset in PRESETS.items()}
    show_table(
        ["recommended", "for"], [(known, f"{written.get(known, '')}{use}.") for known, use in RECOMMENDED.items()]
    )
    show(Text(f"\n{LEGEND}"))
    families: dict[str, list[tuple[str, str]]] = {}
    for of in about:
        aliases = f"also called {', '.join(of['aliases'])}" if of["aliases"] else ""
        adapted = f"adapted: {of['adapted']}" if of["adapted"] else ""
        facts = f"scores {SIGNS[of['signed']]}", f"cost {of['cost']}", aliases, adapted, _from(of)
        row = of["name"], f"{of['summary']}\n{'; '.join(filter(None, facts))}."
        families.setdefault(of["family"].replace("_", " "), []).append(row)
    for family, rows in families.items():
        show_table([f"family: {family}", "what it does"], rows)
        say("")


def _about(name: str, method: "type[Method]") -> dict[str, Any]:
    from heta_lens import METHODS

    return {
        "name": name,
        "aliases": METHODS.aliases(name),
        "summary": cleandoc(method.__doc__ or "").partition("\n")[0],
        "paper": getattr(method, "paper", ""),
        "adapted": getattr(method, "adapted", ""),
        "cost": method.cost,
        "signed": None if method.family == "function" else method.signed,
        "family": method.family,
        "origin": METHODS.origin(name),
    }


def _show_method(name: str) -> None:
    from heta_lens import METHODS

    method = METHODS[name]
    about = {**_about(name, method), "takes": sorted(method().takes), "example": EXAMPLE.format(name)}
    text, options = description(method), described_options(method)
    add(methods=[{**about, "description": text, "options": [option._asdict() for option in options]}])
    _show_facts(about | {"signed": SIGNS[about["signed"]]})
    show(Text(f"\n{LEGEND}\n{text}\n"))
    if options:
        show_table(["option", "type", "default", "what it does"], options)


def _show_facts(facts: Mapping[str, Any]) -> None:
    say(facts["name"], style="bold")
    known = {fact: value for fact, value in facts.items() if fact != "name" and value not in ("", [], None)}
    rows = [(fact, ", ".join(value) if isinstance(value, list) else str(value)) for fact, value in known.items()]
    show_table(["", ""], rows, header=False)


def _from(about: Mapping[str, Any]) -> str:
    return "" if about["origin"] == "heta_lens" else f"from {about['origin']}"
