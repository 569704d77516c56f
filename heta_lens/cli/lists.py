"""The subcommands ``methods`` and ``metrics``: lists, and descriptions with every option."""

import re
from collections.abc import Iterable, Mapping
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
    from heta_lens.methods.registry import Preset


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
    from heta_lens.metrics.registry import described_metric

    measures = {known: described_metric(known) for known in METRICS}
    about = {known: {"name": known, "measures": measures[known], **metric.about} for known, metric in METRICS.items()}
    if name is not None:
        known = _known("metric", name, METRICS)
        _show_metric(METRICS[known], about[known])
        return
    add(metrics=[*about.values()])
    rows = []
    for known, metric in METRICS.items():
        facts = [
            f"{metric.title}: {metric.variant}",
            f"{metric.better} is better",
            f"cost {_cost(metric)}",
            metric.source,
            _from(metric.origin),
        ]
        rows.append((known, f"{measures[known]}\n{'; '.join(filter(None, facts))}.".lstrip("\n")))
    show_table(["metric", "what it measures"], rows)


def _show_metric(metric: Any, about: Mapping[str, Any]) -> None:
    name = about["name"]
    example = f"heta-lens evaluate recall --limit 10 -m heta,random --metrics {name} --out results"
    add(metrics=[{**about, "example": example}])
    low, high = ("unbounded" if bound is None else f"{bound:g}" for bound in (metric.low, metric.high))
    facts = {
        "measures": about["measures"],
        "what it is": f"{metric.title}: {metric.variant}" if metric.variant else metric.title,
        "from": metric.source,
        "better": metric.better,
        "range": "unbounded" if low == high else f"{low} to {high}",
        "cost": _cost(metric),
        "needs": ", ".join(metric.needs) or "nothing but a prompt",
        "over prompts": metric.aggregate,
        "package": metric.origin,
        "example": example,
    }
    _show_facts(name, facts)


def _cost(metric: Any) -> str:
    return f"{metric.again} × the method" if metric.again else metric.cost


LEGEND = "F: forwards, B: backwards, of N tokens and L layers. ±: above 0 speaks for the target.\n"
EXAMPLE = 'heta-lens attribute "Mia put the key in the" --method {}'
SIGNS = {
    True: ("scores ±", "signed: above 0 speaks for the target"),
    False: ("scores ≥ 0", "≥ 0: how much, not for or against"),
    None: ("", "as the function returns them: signed, if one is below 0"),
}


@command("methods")
def list_methods(*, name: Annotated[str | None, Argument(help="Only this one, with its options.")] = None) -> None:
    """List the methods, or describe one.

    Says what each does, what it costs, and what its scores mean.
    """
    from heta_lens.methods.registry import ALIASES, METHODS, PRESETS

    if name is not None:
        known = name if ":" in name else _known("method", name, [*PRESETS, *METHODS], ALIASES)
        if known in PRESETS:
            _show_preset(known, PRESETS[known])
        else:
            _show_method(known)
        return
    about = [_about(known, method) for known, method in METHODS.items()]
    add(methods=about, presets=[{"name": known, **preset._asdict()} for known, preset in PRESETS.items()])
    presets = [(known, f"{preset.written}\n{preset.when}.") for known, preset in PRESETS.items()]
    show_table(["preset", "what it stands for"], presets)
    say("")
    show(Text(LEGEND))
    show_table(["method", "what it does"], [(of["name"], _method_lines(of)) for of in about])


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


def _method_lines(about: Mapping[str, Any]) -> str:
    aliases = f"also called {', '.join(about['aliases'])}" if about["aliases"] else ""
    adapted = f"adapted: {about['adapted']}" if about["adapted"] else ""
    facts = [SIGNS[about["signed"]][0], f"cost {about['cost']}", aliases, adapted, _from(about["origin"])]
    return f"{about['summary']}\n{'; '.join(filter(None, facts))}."


def _show_method(name: str) -> None:
    from heta_lens import METHODS

    method = METHODS[name]
    takes, options, example = sorted(method().takes), described_options(method), EXAMPLE.format(name)
    about, text = _about(name, method), description(method)
    parts = {"description": text, "takes": takes, "options": [option._asdict() for option in options]}
    add(methods=[{**about, **parts, "example": example}])
    facts = {
        "what it does": about["summary"],
        "paper": about["paper"],
        "adapted": about["adapted"],
        "also called": ", ".join(about["aliases"]),
        "family": about["family"],
        "cost": f"{about['cost']} (F: forwards, B: backwards, of N tokens and L layers)",
        "scores": SIGNS[about["signed"]][1],
        "targets": ", ".join(takes) + (", all with the same scores" if method().ignores_target else ""),
        "package": about["origin"],
        "example": example,
    }
    _show_facts(name, facts)
    if text:
        show(Text(f"\n{text}"))
    if options:
        say("")
        show_table(["option", "type", "default", "what it does"], options)


def _show_preset(name: str, preset: "Preset") -> None:
    example = EXAMPLE.format(name)
    add(presets=[{"name": name, **preset._asdict(), "example": example}])
    facts = {
        "what it is": preset.written,
        "when": preset.when,
        "options": f"those of {preset.method}, which heta-lens methods {preset.method} lists",
        "example": example,
    }
    _show_facts(name, facts)


def _known(kind: str, name: str, names: Iterable[str], short: Mapping[str, str] = {}) -> str:
    """Return the full name of a method or metric; the error of an unknown name proposes a similar name."""
    from heta_lens._util.options import hint

    full, known = short.get(name, name), [*names]
    if full not in known:
        near = hint(name.lower(), [*known, *short]) or f": heta-lens {kind}s lists them"
        raise ValueError(f"there is no {kind} {name!r}{near}")
    return full


def _show_facts(name: str, facts: Mapping[str, str]) -> None:
    say(name, style="bold")
    show_table(["", ""], [(fact, value) for fact, value in facts.items() if value], header=False)


def _from(package: str) -> str:
    return "" if package == "heta_lens" else f"from {package}"
