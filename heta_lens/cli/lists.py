"""The options of a method as its class declares and documents them: type, default and what each does."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from difflib import get_close_matches
from inspect import cleandoc
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import typer
from rich.text import Text

from heta_lens.cli.app import add, command, errors_in_a_line, say, show
from heta_lens.cli.views import TextTable, text_table

if TYPE_CHECKING:
    from heta_lens import Method
    from heta_lens.methods.registry import Preset


class OptionDescription(NamedTuple):
    name: str
    type: str
    default: str
    help: str


def described_options(method: type) -> list[OptionDescription]:
    """Every option of a method but ``progress``, in the order of its docstring, which begins with its own."""
    kinds, helps = get_type_hints(method, include_extras=True), documented(method.__doc__ or "")
    order = {name: place for place, name in enumerate(helps)}
    own = [field for field in fields(method) if field.name != "progress"]
    own.sort(key=lambda field: order.get(field.name, len(order)))
    return [
        OptionDescription(field.name, type_text(kinds[field.name]), _default(field), helps.get(field.name, ""))
        for field in own
    ]


def description(method: type) -> str:
    """What the docstring says after its title and before its options."""
    before = re.split(r"^(?:- ``|Cost: |Adapted: )", cleandoc(method.__doc__ or ""), maxsplit=1, flags=re.MULTILINE)[0]
    return "\n\n".join(" ".join(part.replace("`", "").split()) for part in before.split("\n\n")[1:]).strip()


def documented(docstring: str) -> Mapping[str, str]:
    """By the name of an option, its line: those that ``- ``a``, ``b``: …`` names share it, which it then says."""
    lines: dict[str, str] = {}
    for entry in re.split(r"\n(?=- ``)", cleandoc(docstring)):
        head, colon, text = entry.partition(": ")
        if entry.startswith("- ``") and colon:
            line, names = " ".join(text.split("\n\n")[0].replace("``", "").split()), re.findall(r"``(\w+)``", head)
            shared = f"{', '.join(names)}: " if len(names) > 1 else ""
            lines |= dict.fromkeys(names, shared + line)
    return lines


def type_text(kind: Any) -> str:
    """An annotation for people: ``int ≥ 1 or none``, ``ridge or lasso``."""
    if get_origin(kind) is Literal:
        return " or ".join(map(str, get_args(kind)))
    if hasattr(kind, "__metadata__"):
        base, *checks = get_args(kind)
        return _bounded(type_text(base), " ".join(filter(None, map(_bound, checks))))
    if get_origin(kind) in (Union, UnionType):
        return _union(get_args(kind))
    name = getattr(kind, "__name__", str(kind))
    return WORDS.get(name, name)


WORDS = {"NoneType": "none", "SupportsIndex": "a token id", "Tensor": "a vector", "bool": "True or False"}


def _bounded(words: str, bound: str) -> str:
    """The bound stands behind the number that it is of."""
    return re.sub(r"\b(int|float)\b", rf"\1 {bound}", words, count=1) if bound else words


def _union(parts: tuple[Any, ...]) -> str:
    """A float may be given as a whole number too, which goes without saying."""
    kept = [part for part in parts if not (part is int and float in parts)]
    return " or ".join(dict.fromkeys(map(type_text, kept)))


def _bound(check: Any) -> str:
    """The least value of a number, if this is what is checked."""
    least = getattr(check, "least", None)
    return "" if least is None else f"≥ {least:g}"


def _default(field: Any) -> str:
    if field.default is MISSING:
        return "required" if field.default_factory is MISSING else str(field.default_factory())
    return "none" if field.default is None else str(field.default)


# -------------------------------------------------------------------------------------------------------- list command
# ``heta-lens methods`` and ``heta-lens metrics``: what there is to choose from, and all about each.


LEGEND = "F: forwards, B: backwards, of N tokens and L layers. ±: above 0 speaks for the target.\n"
SIGNS = {
    True: ("scores ±", "signed: above 0 speaks for the target"),
    False: ("scores ≥ 0", "≥ 0: how much, not for or against"),
    None: ("", "as the function returns them: signed, if one is below 0"),
}


@command("metrics")
def list_metrics(
    name: Annotated[str | None, typer.Argument(help="Only this one, with all that is known of it.")] = None,
) -> None:
    """List the metrics, or describe one.

    Says what each measures, which direction is better, and what it costs beside the attribution.
    """
    from heta_lens.metrics import METRICS
    from heta_lens.metrics.registry import described_metric

    with errors_in_a_line():
        if name is not None:
            _show_metric(_known("metric", name, METRICS))
            return
        add(
            metrics=[
                {"name": each, "measures": described_metric(each), **metric.about} for each, metric in METRICS.items()
            ]
        )
        rows = {each: _metric_lines(each, metric) for each, metric in METRICS.items()}
        show(_list("metric", "what it measures", rows))


@command("methods")
def list_methods(
    name: Annotated[str | None, typer.Argument(help="Only this one, with its options.")] = None,
) -> None:
    """List the methods, or describe one.

    Says what each does, what it costs, and what its scores mean.
    """
    from heta_lens.methods.registry import ALIASES, METHODS, PRESETS

    with errors_in_a_line():
        if name is not None:
            known = name if ":" in name else _known("method", name, [*PRESETS, *METHODS], ALIASES)
            _show_preset(known, PRESETS[known]) if known in PRESETS else _show_method(known)
            return
        about = [_about(each, method) for each, method in METHODS.items()]
        add(methods=about, presets=[{"name": each, **preset._asdict()} for each, preset in PRESETS.items()])
        presets = {each: [preset.written, f"{preset.when}."] for each, preset in PRESETS.items()}
        show(_list("preset", "what it stands for", presets))
        say("")
        show(Text(LEGEND))
        show(_list("method", "what it does", {each["name"]: _method_lines(each) for each in about}))


def _known(kind: str, name: str, names: Iterable[str], short: Mapping[str, str] = {}) -> str:
    """The full name; what is none is refused with those that are near."""
    full = short.get(name, name)
    if full not in [*names]:
        every, lower = [*names, *short], name.lower()
        near = [lower] if lower in every else get_close_matches(lower, every, n=3, cutoff=0.6)
        way = f"did you mean {' or '.join(map(repr, near))}?" if near else f"heta-lens {kind}s lists them"
        raise ValueError(f"there is no {kind} {name!r}: {way}")
    return full


# ------------------------------------------------------------------------------------------ one metric
def _show_metric(name: str) -> None:
    from heta_lens.metrics import METRICS
    from heta_lens.metrics.registry import described_metric

    metric = METRICS[name]
    add(metrics=[{"name": name, "measures": described_metric(name), **metric.about, "example": _metric_example(name)}])
    low, high = ("unbounded" if bound is None else f"{bound:g}" for bound in (metric.low, metric.high))
    facts = {
        "measures": described_metric(name),
        "what it is": metric.title + (f": {metric.variant}" if metric.variant else ""),
        "from": metric.source,
        "better": metric.better,
        "range": "unbounded" if low == high else f"{low} to {high}",
        "cost": _metric_cost(metric),
        "needs": ", ".join(metric.needs) or "nothing but a prompt",
        "over prompts": metric.aggregate,
        "package": metric.origin,
        "example": _metric_example(name),
    }
    _show_facts(name, facts)


def _metric_cost(metric: Any) -> str:
    return f"{metric.again} × the method" if metric.again else metric.cost


def _metric_example(name: str) -> str:
    return f"heta-lens evaluate recall --limit 10 -m heta,random --metrics {name} --out results"


# ------------------------------------------------------------------------------------------ one method
def _show_method(name: str) -> None:
    from heta_lens import METHODS

    method = METHODS[name]
    ready, about, options = method(), _about(name, method), described_options(method)
    example = _method_example(name, method)
    add(
        methods=[
            {
                **about,
                "description": description(method),
                "takes": sorted(ready.takes),
                "options": [option._asdict() for option in options],
                "example": example,
            }
        ]
    )
    facts = {
        "what it does": about["summary"],
        "paper": about["paper"],
        "adapted": about["adapted"],
        "also called": ", ".join(about["aliases"]),
        "family": about["family"],
        "cost": f"{about['cost']} (F: forwards, B: backwards, of N tokens and L layers)",
        "scores": SIGNS[about["signed"]][1],
        "targets": ", ".join(sorted(ready.takes)) + (", all with the same scores" if ready.ignores_target else ""),
        "package": about["origin"],
        "example": example,
    }
    _show_facts(name, facts)
    if text := description(method):
        show(Text(f"\n{text}"))
    if options:
        say("")
        show(text_table(["option", "type", "default", "what it does"], options))


def _show_preset(name: str, preset: "Preset") -> None:
    example = f'heta-lens attribute "Mia put the key in the" --method {name}'
    add(presets=[{"name": name, **preset._asdict(), "example": example}])
    facts = {
        "what it is": preset.written,
        "when": preset.when,
        "options": f"those of {preset.method}, which heta-lens methods {preset.method} lists",
        "example": example,
    }
    _show_facts(name, facts)


def _method_example(name: str, method: "type[Method]") -> str:
    known = {field.name: field for field in described_options(method)}
    scaled = [known[option] for option in method.scaled_by if option in known]
    option = f" -o {scaled[0].name}={scaled[0].default if scaled[0].default.isdecimal() else 50}" if scaled else ""
    return f'heta-lens attribute "Mia put the key in the" --method {name}{option}'


def _show_facts(name: str, facts: Mapping[str, str]) -> None:
    say(name, style="bold")
    show(text_table(["", ""], [(what, value) for what, value in facts.items() if value], header=False))


# ------------------------------------------------------------------------------------------ the lists
def _about(name: str, method: "type[Method]") -> dict[str, Any]:
    from heta_lens import METHODS

    return {
        "name": name,
        "aliases": METHODS.aliases(name),
        "summary": _summary(method),
        "paper": getattr(method, "paper", ""),
        "adapted": getattr(method, "adapted", ""),
        "cost": method.cost,
        "signed": None if method.family == "function" else method.signed,
        "family": method.family,
        "origin": METHODS.origin(name),
    }


def _method_lines(about: Mapping[str, Any]) -> list[str]:
    aliases = f"also called {', '.join(about['aliases'])}" if about["aliases"] else ""
    adapted = f"adapted: {about['adapted']}" if about["adapted"] else ""
    facts = [SIGNS[about["signed"]][0], f"cost {about['cost']}", aliases, adapted]
    return [about["summary"], _facts([*facts, _origin(about["origin"])])]


def _metric_lines(name: str, metric: Any) -> list[str]:
    from heta_lens.metrics.registry import described_metric

    facts = [metric.variant, f"{metric.better} is better", f"cost {_metric_cost(metric)}", metric.source]
    return [
        *filter(None, [described_metric(name)]),
        _facts([f"{metric.title}: {facts[0]}", *facts[1:], _origin(metric.origin)]),
    ]


def _facts(facts: Iterable[str]) -> str:
    return "; ".join(filter(None, facts)) + "."


def _origin(package: str) -> str:
    return "" if package == "heta_lens" else f"from {package}"


def _summary(method: type) -> str:
    """The first line of a method's docstring: its name and what it does."""
    return cleandoc(method.__doc__ or "").partition("\n")[0]


def _list(kind: str, title: str, entries: Mapping[str, Iterable[str]]) -> TextTable:
    """A name in each row, and beside it what it is: lines that are as wide as the terminal lets them be."""
    return text_table([kind, title], [(name, "\n".join(lines)) for name, lines in entries.items()])
