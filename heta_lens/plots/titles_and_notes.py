"""Results in words: titles, the prediction, notes on the scores, and the formula of the score."""

from math import exp, isnan, log
from typing import Any, NamedTuple

from jaxtyping import Float
from torch import Tensor

from heta_lens._util.presets import NO_SIGNS, as_preset
from heta_lens._util.python import provided
from heta_lens._util.target_kinds import Activation, Side, described, of_logits, sides
from heta_lens._util.text import counted, cut, probability, single_line, visible
from heta_lens.attribution import Attribution, ends
from heta_lens.plots.scales import percent, share_note
from heta_lens.span_attribution import SpanAttribution

SIGNED = "have either sign: above 0 speaks for the target"
SIGNED_IN_VAIN = "have either sign, which predicts effects no better than if every token spoke for the target"
UNSIGNED = "≥ 0: how much it matters, no direction"
FOR_CONTRASTS = "; leave_one_out says which token speaks for which of the two"

WEIGHTS = {"curvature": "beta", "information": "gamma"}  # the option with the weight of the part


class Predicted(NamedTuple):
    """The next tokens with their probabilities: the target, or both sides of a contrast, and what else was likely."""

    targets: list[tuple[str, str]]
    others: list[tuple[str, str]]


def title(result: Attribution | SpanAttribution) -> str:
    """Return the method and the explained target as a question, on a single line."""
    return cut(single_line(f"{name_of(result.summed)[0]}: {question(result.summed)}"), 100)


def question(attribution: Attribution) -> str:
    """Return the target as a question, with the rank of a target that the model does not predict."""
    known = attribution.diagnostics
    remarks = [", ".join(f"{name}={value!r}" for name, value in name_of(attribution)[1].items())]
    rank = known.target_rank
    if rank is not None and min(rank if isinstance(rank, tuple) else [rank]) > 1:
        ranks = " and ".join(map(str, rank)) if isinstance(rank, tuple) else rank
        remarks.insert(0, f"rank {ranks}, not predicted")
    target = cut(described(attribution.target, attribution.target_text), 50)
    return single_line(f"why {target}?" + "".join(f" ({remark})" for remark in remarks if remark))


def name_of(attribution: Attribution) -> tuple[str, dict[str, Any]]:
    """Return the method or preset, and further options."""
    return as_preset(attribution.method, attribution.diagnostics.chosen or {})


def kicker(attribution: Attribution) -> str:
    """Return the line above the question: the method or preset with further options, and the model."""
    name, options = name_of(attribution)
    written = "".join(f", {option}={value!r}" for option, value in options.items())
    return " · ".join(filter(None, [name + written, attribution.options.get("model", {}).get("name")]))


def scale_name(result: Attribution | SpanAttribution) -> str:
    """Return what the numbers of a scale are: the scores of a method or preset, with the unit if there is one."""
    unit = provided("contract").unit(result)
    return f"score of {name_of(result.summed)[0]}" + f" in {unit}" * bool(unit)


def headline(attribution: Attribution) -> str:
    """Return the question without options, which have another place on a page."""
    target, texts = attribution.target, attribution.target_text
    if callable(target):
        return f"Why {described(target, texts)}?"
    both = zip(sides(target), texts if isinstance(texts, tuple) else (texts,), strict=True)
    written = [own if isinstance(side, frozenset) else f"“{bare(own)}”" for side, own in both]
    rank = attribution.diagnostics.target_rank
    unlikely = f" (rank {rank}, not predicted)" if isinstance(rank, int) and rank > 1 else ""
    return f"Why {cut(' rather than '.join(written), 120)}{unlikely}?"


def bare(token: str) -> str:
    """Return a token without spaces around it, and a token of white space in a visible form."""
    return token.strip(" ") if token.strip() else visible(token)


def predicted(attribution: Attribution) -> Predicted:
    """Return what stands at the end of the prompt: the target, and the next candidates down to 0.1 %, at least one."""
    known, texts = attribution.diagnostics, attribution.target_text
    texts = texts if isinstance(texts, tuple) else (texts,)
    logs, ranks = (
        value if isinstance(value, tuple) else (value,) * len(texts)
        for value in (known.target_log_prob, known.target_rank)
    )
    targets = [
        (bare(text), "" if log is None else percent(exp(log)) + (f" · rank {rank}" if (rank or 1) > 1 else ""))
        for text, log, rank in zip(texts, logs, ranks, strict=True)
    ]
    if known.target_value is not None:
        targets = [(bare(texts[0]), f"{known.target_value:.4g}")]
    known_texts = {*texts, *(text for text, _ in known.candidates or () if any(repr(text) in own for own in texts))}
    of_tokens = () if callable(attribution.target) else known.candidates or ()
    others = [(text, exp(log)) for text, log in of_tokens if text not in known_texts]
    return Predicted(
        targets, [(bare(text), percent(p)) for row, (text, p) in enumerate(others) if not row or p >= 1e-3]
    )


def notes(result: Attribution | SpanAttribution) -> list[str]:
    """Return lines on how to read the scores, and on the ways of a span's score through a reasoning."""
    attribution, known = result.summed, result.summed.diagnostics
    removed = known.left_out or 0
    unknown = ", ".join(map(str, known.unknown or ()))
    shares = known.share or {}
    terms = [f"{percent(part)} {part_name(attribution, name)}" for name, part in shares.items()]
    told = len(shares) > 1 and not any(map(isnan, shares.values()))
    unit = provided("contract").unit(result)
    unsigned_contrast = isinstance(attribution.target, tuple) and not attribution.signed
    possible = [
        share_note(attribution),
        _likelihood(attribution) if known.target_rank is not None else "",
        _other_spelling(attribution),
        "" if known.target_value is None else f"{of_logits(attribution.target)} = {known.target_value:.4g}",
        f"words without a token, unknown to this model: at {unknown}" if unknown else "",
        f"{counted(removed, 'token')} left out" if removed else "",
        f"the {'whole ' * bool(removed)}score is {', '.join(terms)}" if told else "",
        search_note(attribution),
        _unfinished_integral(attribution),
        _most_against(attribution),
        known.note,
        f"scores{f' in {unit}' * bool(unit)} {_direction(attribution)}{FOR_CONTRASTS if unsigned_contrast else ''}",
    ]
    ways = _ways(result.hop_shares) if isinstance(result, SpanAttribution) and result.reasoning else []
    return [*filter(None, possible), *ways]


def _direction(attribution: Attribution) -> str:
    if not attribution.signed:
        return UNSIGNED
    return SIGNED_IN_VAIN if in_vain(attribution) else SIGNED


def in_vain(attribution: Attribution) -> bool:
    """Return whether the signs of the scores are no evidence."""
    return name_of(attribution)[0] in NO_SIGNS


def search_note(attribution: Attribution) -> str:
    """Return how many tokens a search measured alone, and what is left undivided; "" without a search."""
    together = attribution.diagnostics.masked_together
    if together is None:
        return ""
    told = [f"{int(attribution.measured.sum()):,} of {len(attribution):,} tokens measured alone"]
    if kept := int(attribution.template.sum()):
        told.append(f"{kept:,} of the template kept as they are")
    if together:
        unit = "" if isinstance(attribution.target, Activation) or attribution.method == "gilot" else " nats"
        most = max(moved for *_, moved in together)
        told.append(f"the rest in {counted(len(together), 'span')}, the largest moves {most:.2g}{unit}")
    return "; ".join(told)


def _most_against(attribution: Attribution) -> str:
    """Return what speaks most against the target, which is last in a list of the highest scores."""
    lowest = min(attribution.top(len(attribution)), key=lambda own: own.score, default=None)
    if lowest is None or lowest.score >= 0 or _direction(attribution) != SIGNED:
        return ""
    return f"most against the target: {cut(repr(lowest.text), 24)} at {ends(lowest.positions)}, {lowest.score:.4g}"


def _unfinished_integral(attribution: Attribution) -> str:
    """Return the error of an integral that misses its due value by more than a tenth, with advice."""
    known = attribution.diagnostics
    gap, due = known.completeness_gap or 0.0, known.completeness_due
    if due is None or gap <= abs(due) / 10:
        return ""
    return f"the integral is {gap:.3g} off {due:.3g}: take more steps, or another mask"


def _likelihood(attribution: Attribution) -> str:
    """Describe the explained token, or both of a contrast, with probabilities; name hooks on the model."""
    known, pair = attribution.diagnostics, isinstance(attribution.target, tuple)
    texts: Any = known.target_token or (("", "") if pair else "")
    facts: Any = attribution.target, texts, known.target_log_prob, known.target_rank
    targets = zip(*facts, strict=True) if pair else [facts]
    return " against ".join(_likely(*target) for target in targets) + (", under hooks" if known.user_hooks else "")


def _other_spelling(attribution: Attribution) -> str:
    """Name the target with the leading space added or removed, if that is a candidate, and ten times as likely."""
    known, text = attribution.diagnostics, attribution.target_text
    if not isinstance(text, str) or not isinstance(known.target_log_prob, float):
        return ""
    other = text[1:] if text.startswith(" ") else f" {text}"
    for rank, (candidate, log_prob) in enumerate(known.candidates or (), 1):
        if candidate == other and log_prob > known.target_log_prob + log(10):
            return f"{other!r} is more likely (rank {rank}) than {text!r} (rank {known.target_rank})"
    return ""


def _likely(tokens: Side, text: str, log_prob: float, rank: int) -> str:
    if isinstance(tokens, frozenset):
        return f"any of {len(tokens)} tokens: {probability(log_prob)} (best rank {rank})"
    named = f"token {tokens} {text!r}: " if text else ""
    return f"{named}{probability(log_prob)} (rank {rank})"


def _ways(hop_shares: Float[Tensor, "hop"]) -> list[str]:
    straight, once, twice, *more = [*hop_shares.tolist(), 0.0, 0.0]
    by_way = {"one": once, "two": twice, "more": sum(more)}
    return [
        f"{straight:.0%} of the score came straight from the answer, {sum(by_way.values()):.0%} through the reasoning",
        "by the reasoning tokens on the way: " + ", ".join(f"{share:.0%} {name}" for name, share in by_way.items()),
    ]


def score_formula(attribution: Attribution) -> str:
    """Return HETA's ``score = gate × (0.5 × curvature + 0.5 × information)``; empty for scores of other methods."""
    options, parts = attribution.options, attribution.parts
    if attribution.method != "heta" or "gate" not in parts:
        return ""
    weights = {part_name(attribution, name): options.get(of, 1) for name, of in WEIGHTS.items() if name in parts}
    gate = [name for name in named_parts(attribution) if name == "gate"]
    if options.get("combine") == "geometric":
        factors = gate + [f"{name}^{weight / sum(weights.values()):.4g}" for name, weight in weights.items()]
        return f"score = {' × '.join(factors)}" + ", with the sign of information" * attribution.signed
    if options.get("variant") in ("hessian_only", "kl_only"):
        weights = dict.fromkeys(weights, 1)
    terms = [name if weight == 1 else f"{weight:.4g} × {name}" for name, weight in weights.items()]
    added = [f"({' + '.join(terms)})"] if gate and len(terms) > 1 else [" + ".join(terms)] if terms else []
    balance = options.get("balance", "none")
    divided = f", where balance={balance!r} divides each part by its {balance} in the context" * (balance != "none")
    return f"score = {' × '.join(gate + added)}{divided}"


def named_parts(attribution: Attribution) -> dict[str, Float[Tensor, "pos"]]:
    """Return the parts of the score by their shown names, without a gate that is off."""
    shown = ((name, part) for name, part in attribution.parts.items() if name != "gate" or (part != 1).any())
    return {part_name(attribution, name): part for name, part in shown}


def part_name(attribution: Attribution, name: str) -> str:
    """Return what a part holds: a variant of HETA has squared gradients in the place of the curvature."""
    return "squared gradient" if name == "curvature" and attribution.options.get("variant") == "gs" else name
