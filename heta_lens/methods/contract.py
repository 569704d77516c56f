"""The contract of an attribution: what is explained, by what, of which model, what is held fixed, and what a score is.

The five elements are those of the Attribution Contract (Nguyen 2026, arXiv:2605.23080).
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from heta_lens._util.target_kinds import Activation, described
from heta_lens._util.text import counted, cut, single_line
from heta_lens.attribution import Attribution, Contract
from heta_lens.methods.base import LOADED, Method
from heta_lens.methods.registry import METHODS
from heta_lens.plots.titles_and_notes import score_formula
from heta_lens.span_attribution import SpanAttribution

FIXED = {
    "gradient": "the weights and the other tokens; attention and norms move with the embeddings",
    "perturbation": "the weights and the tokens that are left as they are; all that follows from them is computed anew",
    **dict.fromkeys(("attention", "hidden_states"), "the one run that is in the cache: no other prompt is run"),
    "generation": "the weights; the model writes its own continuations",
    "control": "everything: the model is not asked",
}
UNITS = {"log_prob": "nats", "log_odds": "nats", "logit": "logits", "prob": "probability", "kl": "nats"}


def contract(result: Attribution | SpanAttribution) -> Contract:
    """Return the contract of an attribution or a span."""
    of, steps = result.summed, result.steps if isinstance(result, SpanAttribution) else (result.summed,)
    known, name = steps[0].diagnostics, of.method.removesuffix("_adapted")
    method = _method(name, of.options)
    target, context = cut(described(of.target, of.target_text), 60), counted(len(of) + (known.left_out or 0), "token")
    if isinstance(result, SpanAttribution):
        explained = f"{target}, at {counted(len(result), 'token')} of the text; scores are added up over them"
    elif known.target_value is not None:
        explained = f"{target}, after {context}"
    else:
        explained = f"the next token after {context}: {target}"
    hooks = f"{known.user_hooks or 'no'} hook{'s' * (known.user_hooks != 1)} of the user"
    read = all(isinstance(step.target, Activation) for step in steps)
    return Contract(
        single_line(explained),
        _eligible(steps[0], context, "the first of them" if isinstance(result, SpanAttribution) else "it"),
        f"{'an activation of' if read else 'next-token prediction by'} {_model(of)}, with {hooks}",
        (method and (method.fixed or FIXED.get(method.family))) or "not known of this method",
        _score(of, steps, method, unit(result)),
    )


def unit(result: Attribution | SpanAttribution) -> str:
    """Return the unit of the scores, such as nats; empty without a unit."""
    of, steps = result.summed, result.steps if isinstance(result, SpanAttribution) else (result.summed,)
    method = _method(of.method.removesuffix("_adapted"), of.options)
    if any(callable(step.target) for step in steps):  # a number of the user's, or of the model's
        return ""
    scale = of.options.get("effect") or (of.options.get("scale") if of.signed else None)
    return UNITS.get(str(scale), method.unit if method else "")


def _method(name: str, options: Mapping[str, Any]) -> type[Method] | None:
    """Return the method of a name, with its options; a user's function may have a method's name, and has none.

    Only listed names and loaded classes are looked up: a file must not make a module be imported.
    """
    method = METHODS[name] if name in [*METHODS] else LOADED.get(name)
    own = {entry.name for entry in fields(method)} - {"progress"} if method else {*()}
    return method if not own or own & options.keys() else None


def _model(of: Attribution) -> str:
    facts = of.options.get("model", {})
    if "weights" not in facts:
        return "a model that is not known"
    name = facts["name"] or "a model without a name"
    return f"{name} ({facts['kind']}, {facts['layers']} layers, weights {facts['weights']})"


def _eligible(step: Attribution, context: str, target: str) -> str:
    """Return which tokens may get a score: sources, or all but what the method keeps as it is."""
    known, kept = step.diagnostics, step.options.get("keep_bos") and not step.scores[0]
    sources = known.of_method.get("source_positions")
    if sources is not None:
        parts = f"which share the scores of {counted(len(sources), 'source')}"
        eligible = f"{sum(map(len, sources))} of the {context} before {target}, {parts}"
    else:
        of_template = known.masked_together is not None and step.template.any()
        left = "the first" if kept else "the chat template's" if of_template else ""
        special = f"but {left}, which the method keeps, with a score of 0" if left else "special tokens too"
        eligible = f"all {context} before {target}, {special}"
    return eligible + (f"; left out for display: {known.left_out}" if known.left_out else "")


def _score(of: Attribution, steps: Sequence[Attribution], method: type[Method] | None, known: str) -> str:
    """Return what the number is: its definition, sign, options, unit and error."""
    doc = (method.__doc__ or "").split("\n\n") if method else []
    formula = score_formula(steps[0])
    definition = formula or (" ".join(doc[1].split()).replace("``", "") if doc[1:] else "a function of yours")
    own = any(callable(step.target) for step in steps)  # a number of the user's, or of the model's, without a scale
    scales = {} if own else {name: of.options[name] for name in ("scale", "effect") if name in of.options}
    chosen = {**scales, **(of.diagnostics.chosen or {})}
    options = ", ".join(f"{name}={value!r}" for name, value in chosen.items())
    unit = f"in {known}" if known else "without a unit: compare within it"
    error = "± one standard error" if of.standard_errors.get("scores") is not None else "without error bars"
    return "; ".join(filter(None, [f"{of.method}: {definition.removesuffix('.')}", options, unit, error]))
