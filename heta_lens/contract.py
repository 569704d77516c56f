"""The contract of an attribution: what is explained, by what, of which model, what is held fixed, and what a score is.

The five elements are those of the Attribution Contract (Nguyen 2026, arXiv:2605.23080).
"""

from heta_lens._util.target_kinds import described
from heta_lens._util.text import cut, single_line
from heta_lens.attribution import Attribution, Contract
from heta_lens.methods.base import Method
from heta_lens.methods.registry import METHODS
from heta_lens.plots.attribution_text import score_formula
from heta_lens.span_attribution import SpanAttribution

FIXED = {
    "gradient": "the weights and the other tokens; attention and norms move with the embeddings",
    "perturbation": "the weights and the tokens that are not masked; all that follows from them is computed anew",
    "attention": "the one run that is in the cache: nothing is run with another prompt",
    "hidden_states": "the one run that is in the cache: nothing is run with another prompt",
    "generation": "the weights; the model writes its own continuations",
    "control": "everything: the model is not asked",
}
UNITS = {"log_prob": "nats", "log_odds": "nats", "logit": "logits", "prob": "probability", "kl": "nats"}


def contract(result: Attribution | SpanAttribution) -> Contract:
    """Return the contract of an attribution or a span."""
    of, several = result.summed, isinstance(result, SpanAttribution)
    known = (result.steps[0] if isinstance(result, SpanAttribution) else of).diagnostics
    method, target = METHODS.get(of.method.removesuffix("_adapted")), cut(described(of.target, of.target_text), 60)
    if several:
        explained = f"{len(result)} tokens of the text, {target}; scores are added up over them"
    elif known.target_value is not None:
        explained = f"{target}, after {len(of)} tokens"
    else:
        explained = f"the next token after {len(of)}: {target}"
    first = "the first of them" if several else "it"
    left = f"{known.left_out} were left out for display" if known.left_out else ""
    eligible = "; ".join(filter(None, [f"all {len(of)} tokens before {first}, special tokens too", left]))
    hooks = f"{known.user_hooks or 'no'} hook{'s' * (known.user_hooks != 1)} of the user"
    fixed = method and (method.fixed or FIXED.get(method.family))
    return Contract(
        single_line(explained),
        eligible,
        f"next-token prediction by {known.model or 'a model that is not known'}, with {hooks}",
        fixed or "not known of this method",
        _score(of, method),
    )


def _score(of: Attribution, method: type[Method] | None) -> str:
    """Return what the number is: its definition, sign, options, unit and error."""
    doc = (method.__doc__ or "").split("\n\n") if method else []
    definition = score_formula(of) or (" ".join(doc[1].split()).replace("``", "") if doc[1:] else "a function of yours")
    options = ", ".join(f"{name}={value!r}" for name, value in (of.diagnostics.chosen or {}).items())
    scale = of.options.get("effect") or (of.options.get("scale") if of.signed else None)
    known = "" if callable(of.target) else UNITS.get(str(scale), method.unit if method else "")
    unit = f"in {known}" if known else "without a unit: compare within it"
    error = "± one standard error" if of.standard_errors.get("scores") is not None else "without error bars"
    return "; ".join(filter(None, [f"{of.method}: {definition.removesuffix('.')}", options, unit, error]))
