"""Results in words: the title, the highest scores, lines on how to read the scores, and the formula of the score."""

from collections.abc import Mapping, Sequence
from math import isnan
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from rich.cells import set_cell_size
from torch import Tensor

from heta_lens._util.target_kinds import Side, described
from heta_lens._util.text import cut, probability, single_line
from heta_lens.attribution import Attribution
from heta_lens.plots.scales import last_row, percent, scaled_tokens, share_note
from heta_lens.span_attribution import SpanAttribution

BAR_CELLS = 30
SIGNED = "have either sign: above 0 speaks for the target"
UNSIGNED = "≥ 0: how much it matters, no direction"
FOR_CONTRASTS = "; leave_one_out with effect='log_prob', or fast, says which token speaks for which of the two"
LAST = " (last)"  # the mark of the token that the prediction is read from
NAMED = 3  # members of a set in a line
ADVICE = {"steps": ": take more steps", "mask": ": more steps hardly help, choose another mask"}

WEIGHTS = {"curvature": "beta", "information": "gamma"}  # the option with the weight of the part
DIVISORS = {"sum": torch.sum, "max": torch.max}  # of the parts, by the option balance
CLOSE = 1e-4  # of the largest score: the precision that a formula must reproduce the scores with


def summary(result: Attribution | SpanAttribution) -> str:
    """Return the title, the highest scores as bars, and the notes."""
    scored = result.summed
    largest = float(scored.scores[scaled_tokens(scored)].abs().max()) or 1.0
    highest, count, row = scored.top(8), int((~scored.hidden).sum()), last_row(scored)
    last, rows = None if row is None else int(scored.positions[row]), []
    for token, score, (position,) in highest:
        mark, share = LAST if position == last else "", abs(score) / largest
        shown = set_cell_size(cut(repr(token), 24 - len(mark)) + mark, 24)
        bar = "█" * round(BAR_CELLS * min(1.0, share)) + "▶" * (share > 1)
        rows.append(f"{position:>5}  {shown} {score:>11.4g}  {bar}")
    some = [f"the {len(rows)} highest of {count} tokens"] if len(rows) < count else []
    return "\n".join([title(scored), *rows, *some, *notes(result)])


def title(result: Attribution | SpanAttribution) -> str:
    """Return the method and the explained target as a question, on a single line."""
    return cut(single_line(f"{result.summed.method}: {question(result.summed)}"), 100)


def question(attribution: Attribution) -> str:
    """Return the target as a question, with the rank of a target that the model does not predict."""
    known = attribution.diagnostics
    remarks = [", ".join(f"{name}={value!r}" for name, value in (known.chosen or {}).items())]
    rank = known.target_rank
    if rank is not None and min(rank if isinstance(rank, tuple) else [rank]) > 1:
        ranks = " and ".join(map(str, rank)) if isinstance(rank, tuple) else rank
        remarks.insert(0, f"rank {ranks}, not predicted")
    target = cut(described(attribution.target, attribution.target_text), 50)
    return single_line(f"why {target}?" + "".join(f" ({remark})" for remark in remarks if remark))


def notes(result: Attribution | SpanAttribution) -> list[str]:
    """Return lines on how to read the scores, and on the ways of a span's score through a reasoning."""
    attribution, known = result.summed, result.summed.diagnostics
    removed, template = known.left_out or 0, known.template_mass
    unknown = ", ".join(map(str, known.unknown or ()))
    shares = known.share or {}
    told = len(shares) > 1 and not any(map(isnan, shares.values()))
    unsigned_contrast = isinstance(attribution.target, tuple) and not attribution.signed
    possible = [
        share_note(attribution),
        _likelihood(attribution) if known.target_rank is not None else "",
        "" if known.target_value is None else f"{attribution.target_text}(logits) = {known.target_value:.4g}",
        f"words without a token, unknown to this model: at {unknown}" if unknown else "",
        f"{removed} token{'s' * (removed > 1)} left out" if removed else "",
        ""
        if template is None or isnan(template)
        else f"tokens of the chat template held {percent(template)} of the score",
        "the score is " + ", ".join(f"{percent(part)} {name}" for name, part in shares.items()) if told else "",
        _unfinished_integral(attribution),
        _most_against(attribution),
        known.note,
        f"scores {SIGNED if attribution.signed else UNSIGNED}{FOR_CONTRASTS if unsigned_contrast else ''}",
    ]
    ways = _ways(result.hop_shares) if isinstance(result, SpanAttribution) and result.reasoning else []
    return [*filter(None, possible), *ways]


def _most_against(attribution: Attribution) -> str:
    """Return the token that speaks most against the target, which is last in a list of the highest scores."""
    scores = attribution.scores * ~attribution.hidden
    if not attribution.signed or not (scores < 0).any():
        return ""
    row = int(scores.argmin())
    token = f"{cut(repr(attribution.tokens[row]), 24)} at {int(attribution.positions[row])}"
    return f"most against the target: {token}, {float(scores[row]):.4g}"


def _unfinished_integral(attribution: Attribution) -> str:
    """Return the error of an integral that misses its due value by more than a tenth, with advice."""
    known = attribution.diagnostics
    gap, due = known.completeness_gap or 0.0, known.completeness_due
    if due is None or gap <= abs(due) / 10:
        return ""
    return f"the integral is {gap:.3g} off {due:.3g}{ADVICE.get(known.completeness_cause or '', '')}"


def _likelihood(attribution: Attribution) -> str:
    """Describe the explained token, or both of a contrast, with probabilities; name hooks on the model."""
    known, pair = attribution.diagnostics, isinstance(attribution.target, tuple)
    texts: Any = known.target_token or (("", "") if pair else "")
    facts: Any = attribution.target, texts, known.target_log_prob, known.target_rank
    targets = zip(*facts, strict=True) if pair else [facts]
    likely = " against ".join(_likely(known.target_members or (), *target) for target in targets)
    return likely + (", under hooks" if known.user_hooks else "")


def _likely(known: Sequence[Mapping[str, Any]], tokens: Side, text: str, log_prob: float, rank: int) -> str:
    if isinstance(tokens, int):
        named = f"token {tokens} {text!r}: " if text else ""
        return f"{named}{probability(log_prob)} (rank {rank})"
    members = sorted((member for member in known if member["id"] in tokens), key=lambda member: -member["log_prob"])
    best = [f"token {member['id']} {member['text']!r}: {probability(member['log_prob'])}" for member in members[:NAMED]]
    named = f"; {', '.join(best)}" if best else ""
    return f"any of {len(tokens)} tokens: {probability(log_prob)} (best rank {rank}{named})"


def _ways(hop_shares: Float[Tensor, "hop"]) -> list[str]:
    straight, once, twice, *more = [*hop_shares.tolist(), 0.0, 0.0]
    by_way = {"one": once, "two": twice, "more": sum(more)}
    return [
        f"{straight:.0%} of the score came straight from the answer, {sum(by_way.values()):.0%} through the reasoning",
        "by the reasoning tokens on the way: " + ", ".join(f"{share:.0%} {name}" for name, share in by_way.items()),
    ]


class Term(NamedTuple):
    """A part of the score with its weight, and the number that the part is divided by first."""

    part: str
    weight: float
    divisor: float | None

    @property
    def words(self) -> str:
        weight = "" if self.weight == 1 else f"{self.weight:.4g} × "
        return f"{weight}{self.part}" + ("" if self.divisor is None else f" / {self.divisor:.4g}")

    def of(self, parts: Mapping[str, Float[Tensor, "pos"]]) -> Float[Tensor, "pos"]:
        """Return the term's summand of the score, including the gate."""
        return parts["gate"].double() * self.weight * parts[self.part].double() / (self.divisor or 1)


def score_formula(attribution: Attribution) -> str:
    """Return ``score = gate × (0.5 × curvature + 0.5 × information)``; empty if the parts do not give the scores."""
    options, parts, balance = attribution.options, attribution.parts, attribution.options.get("balance")
    if options.get("combine") == "geometric" and parts:
        powers = {name: options[weight] / (options["beta"] + options["gamma"]) for name, weight in WEIGHTS.items()}
        factors = ["score = gate", *(f"{name}^{power:.4g}" for name, power in powers.items())]
        return " × ".join(factors) + ", with the sign of information" * attribution.signed
    divided = balance in DIVISORS and len(parts) > 1 and parts.keys() <= {"gate", *WEIGHTS}
    if divided and attribution.diagnostics.left_out:
        return f"the score divides each part by its {balance} over the whole context, of which tokens are left out here"
    if (terms := score_terms(attribution)) is None:
        return ""
    total = " + ".join(term.words for term in terms)
    formula = "score = gate" + (f" × ({total})" if len(terms) > 1 else f" × {total}" if terms else "")
    return formula + (f", where balance={balance!r} divides each part by its {balance}" if divided else "")


def score_terms(attribution: Attribution) -> list[Term] | None:
    """Return the terms whose sum is the score (no term: the gate alone); None if the parts do not give the scores."""
    parts = attribution.parts
    if "gate" not in parts or not parts.keys() <= {"gate", *WEIGHTS}:
        return None
    given = {name: attribution.options.get(option) for name, option in WEIGHTS.items()}
    for weights in (given, {}):  # variants with a single part have the weight 1
        terms = [_term(attribution, name, weights.get(name)) for name in WEIGHTS if name in parts]
        made = torch.stack([term.of(parts) for term in terms]).sum(0) if terms else parts["gate"].double()
        scores = attribution.scores.double()
        if bool(((made - scores).abs() <= CLOSE * scores.abs().max()).all()):
            return terms
    return None


def _term(attribution: Attribution, name: str, weight: object) -> Term:
    part, balance = attribution.parts[name], attribution.options.get("balance")
    divide = DIVISORS.get(balance) if isinstance(balance, str) else None
    divisor = float(divide(part.double())) if divide is not None and part.any() else None
    return Term(name, weight if isinstance(weight, int | float) else 1, divisor)
