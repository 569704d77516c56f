"""An attribution in words: its title, its highest scores, and how to read them."""

from collections.abc import Mapping, Sequence
from math import isnan
from typing import Any

from rich.cells import set_cell_size

from heta_lens._util.target_kinds import Side, described
from heta_lens._util.text import cut, probability, single_line
from heta_lens.attribution import Attribution
from heta_lens.plots.scales import held, last, percent, scaling

WIDTH = 30  # of the bars
SIGNED = "have either sign: above 0 speaks for the target"
UNSIGNED = "≥ 0: how much it matters, no direction"
FOR_CONTRASTS = "; leave_one_out with effect='log_prob', or fast, says which token speaks for which of the two"
LAST = " (last)"  # marks the token from which the prediction is read
SHOWN = 3  # other spellings of the target, and members of a set, that are named


def summary(attribution: Attribution) -> str:
    """The title, the highest scores as bars, and the notes."""
    largest = float(attribution.scores[scaling(attribution)].abs().max()) or 1.0
    highest, count, ends = attribution.top(8), int((~attribution.hidden).sum()), last(attribution)
    final = None if ends is None else int(attribution.positions[ends])
    rows = [
        f"{position:>5}  {_named(token, is_last=position == final)} {score:>11.4g}  {_bar(abs(score) / largest)}"
        for token, score, (position,) in highest
    ]
    shown = [f"the {len(rows)} highest of {count} tokens"] if len(rows) < count else []
    return "\n".join([title(attribution), *rows, *shown, *notes(attribution)])


def _named(token: str, *, is_last: bool) -> str:
    mark = LAST if is_last else ""
    return set_cell_size(cut(repr(token), 24 - len(mark)) + mark, 24)


def _bar(share: float) -> str:
    """A bar of the score; one that goes beyond the scale ends in an arrow."""
    return "█" * round(WIDTH * share) if share <= 1 else "█" * WIDTH + "▶"


def title(attribution: Attribution) -> str:
    """The method, and the question that it answers, in one line."""
    return cut(single_line(f"{attribution.method}: {question(attribution)}"), 100)


def question(attribution: Attribution) -> str:
    """What is explained, whether the model predicts it, and what the method chose for it."""
    chosen = ", ".join(f"{name}={value!r}" for name, value in (attribution.diagnostics.chosen or {}).items())
    target = cut(described(attribution.target, attribution.target_text), 50)
    remarks = "".join(f" ({remark})" for remark in (_unexpected(attribution), chosen) if remark)
    return single_line(f"why {target}?{remarks}")


def _unexpected(attribution: Attribution) -> str:
    """A remark, if the model itself would say something else than the target."""
    rank = attribution.diagnostics.target_rank
    if rank is None or min(rank if isinstance(rank, tuple) else [rank]) == 1:
        return ""
    ranks = " and ".join(map(str, rank)) if isinstance(rank, tuple) else rank
    return f"rank {ranks}, not predicted"


def notes(attribution: Attribution) -> list[str]:
    """How to read the scores: how likely the target was, what special tokens hold, which part the score comes from."""
    known = attribution.diagnostics
    removed, template = known.left_out or 0, known.template_mass
    possible = [
        held(attribution),
        _likelihood(attribution) if known.target_rank is not None else "",
        "" if known.target_value is None else f"{attribution.target_text}(logits) = {known.target_value:.4g}",
        _spellings(known.other_spellings or ()),
        _unknown(known.unknown or ()),
        f"{removed} token{'s' * (removed > 1)} left out" if removed else "",
        ""
        if template is None or isnan(template)
        else f"tokens of the chat template held {percent(template)} of the score",
        _shares(known.share or {}),
        _unfinished(attribution),
        _most_against(attribution),
    ]
    return [*filter(None, possible), *meaning(attribution)]


def meaning(attribution: Attribution) -> list[str]:
    """What scores of this method say of the target."""
    sign = SIGNED if attribution.signed else UNSIGNED
    instead = FOR_CONTRASTS if isinstance(attribution.target, tuple) and not attribution.signed else ""
    return [*filter(None, [attribution.diagnostics.note]), f"scores {sign}{instead}"]


def _unknown(positions: Sequence[int]) -> str:
    """Where the model read a word that its tokenizer does not know."""
    return f"words without a token, unknown to this model: at {', '.join(map(str, positions))}" if positions else ""


def _most_against(attribution: Attribution) -> str:
    """What speaks most against the target, which is last in a list of the highest scores."""
    scores = attribution.scores * ~attribution.hidden
    if not attribution.signed or not (scores < 0).any():
        return ""
    row = int(scores.argmin())
    token = f"{cut(repr(attribution.tokens[row]), 24)} at {int(attribution.positions[row])}"
    return f"most against the target: {token}, {float(scores[row]):.4g}"


def _shares(share: Mapping[str, float]) -> str:
    """How much of the score comes from each part."""
    if len(share) < 2 or any(isnan(part) for part in share.values()):
        return ""
    return "the score is " + ", ".join(f"{percent(part)} {name}" for name, part in share.items())


def _unfinished(attribution: Attribution) -> str:
    """By how much an integral misses what it should be, and what to change, if that is known."""
    known = attribution.diagnostics
    gap, due = known.completeness_gap or 0.0, known.completeness_due
    if due is None or gap <= abs(due) / 10:
        return ""
    advice = {"steps": ": take more steps", "mask": ": more steps hardly help, choose another mask"}
    return f"the integral is {gap:.3g} off {due:.3g}{advice.get(known.completeness_cause or '', '')}"


def _likelihood(attribution: Attribution) -> str:
    """Which token was explained (of a contrast: which two), how likely it was, and whether under hooks."""
    known, pair = attribution.diagnostics, isinstance(attribution.target, tuple)
    texts: Any = known.target_token or (("", "") if pair else "")
    facts: Any = attribution.target, texts, known.target_log_prob, known.target_rank
    targets = zip(*facts, strict=True) if pair else [facts]
    likely = " against ".join(_likely(known.target_members or (), *target) for target in targets)
    return likely + (", under hooks" if known.user_hooks else "")


def _likely(known: Sequence[Mapping[str, Any]], tokens: Side, text: str, log_prob: float, rank: int) -> str:
    if not isinstance(tokens, int):
        likeliest = sorted((own for own in known if own["id"] in tokens), key=lambda own: -own["log_prob"])[:SHOWN]
        named = ", ".join(f"token {own['id']} {own['text']!r}: {probability(own['log_prob'])}" for own in likeliest)
        best = f"; {named}" if named else ""
        return f"any of {len(tokens)} tokens: {probability(log_prob)} (best rank {rank}{best})"
    named = f"token {tokens} {text!r}: " if text else ""
    return f"{named}{probability(log_prob)} (rank {rank})"


def _spellings(others: Sequence[Mapping[str, Any]]) -> str:
    """The tokens that write the same as the target and were not taken for it."""
    if not others:
        return ""
    named = [f"{other['text']!r} by token {other['id']} ({probability(other['log_prob'])})" for other in others[:SHOWN]]
    more = [f"{len(others) - SHOWN} more"] if len(others) > SHOWN else []
    return f"also written: {', '.join(named + more)}"
