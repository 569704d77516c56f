"""ARC-JSD: bounds, identities, and where the authors' code differs from their paper."""

import math
from typing import Any

import pytest
import torch

from helpers import zoo
from helpers.ablations import TARGET, found, ids_of
from helpers.asking import predict
from heta_lens._util.numerics import js
from heta_lens.methods.attribot import ArcJsd

NAMES = [param.id for param in zoo.models("-(gpt2|llama|gptj)$")]
BUILD = dict(zoo.KINDS)


def as_in_the_authors_code(log_p: torch.Tensor, log_q: torch.Tensor) -> float:
    """The mean of KL(M ‖ P) and KL(M ‖ Q), where the paper has KL(P ‖ M) and KL(Q ‖ M)."""
    middle = (log_p.exp() + log_q.exp()) / 2
    return float(sum((middle * (middle.log() - one)).sum() for one in (log_p, log_q)) / 2)


def test_the_divergence_is_the_papers_and_not_the_codes() -> None:
    p = torch.tensor([1 - 1e-6, 1e-6], dtype=torch.float64).log()
    assert as_in_the_authors_code(p, p.flip(0)) == pytest.approx(6.21, abs=0.005)
    assert float(js(p, p.flip(0))) == pytest.approx(math.log(2), abs=2e-5) and float(js(p, p.flip(0))) < math.log(2)


@pytest.mark.parametrize("name", NAMES)
def test_each_sentence_is_left_out_of_the_ids(name: str) -> None:
    model, ids = BUILD[name](), ids_of()
    some = found(model, ArcJsd(), ids)
    clean = model(ids)[0, -1].detach().double().log_softmax(-1)
    for score, places in zip(some.diagnostics["source_scores"], some.diagnostics["source_positions"], strict=True):
        left = [k for k in range(ids.shape[1]) if k not in places]
        moved = model(ids[:, left])[0, -1].detach().double().log_softmax(-1)
        middle = (clean.exp() + moved.exp()).log() - math.log(2)
        expected = sum((one.exp() * (one - middle)).sum() for one in (clean, moved)) / 2
        assert score == pytest.approx(float(expected), rel=1e-3, abs=1e-9)
        assert some.scores[list(places)].tolist() == pytest.approx([score / len(places)] * len(places))
    assert some.scores[0] == 0 and not some.signed
    assert all(0 <= score <= math.log(2) for score in some.diagnostics["source_scores"])


def test_no_rounding_exceeds_the_bound() -> None:
    """Where a token decides everything, in a vocabulary that sums round in."""
    model, ids = zoo.bridge.__wrapped__("gpt2"), ids_of()
    model.unembed.weight.data.mul_(1e4)
    scores = found(model, ArcJsd(), ids).diagnostics["source_scores"]
    assert all(score <= math.log(2) for score in scores) and max(scores) > 0.69


def test_a_token_that_is_a_source_has_nothing_to_share() -> None:
    with pytest.warns(UserWarning, match="spread"):
        ArcJsd(source="token", spread="copy")


def test_what_the_model_ignores_scores_nothing() -> None:
    """Without attention, only the last token has an effect; masked ones keep their places."""
    model = zoo.bridge.__wrapped__("gpt2")
    for block in model.blocks:
        block.attn.o.weight.data.zero_()
    scores = found(model, ArcJsd(source="token", ablate="mask"), ids_of()).scores
    assert scores[:-1].abs().max() < 1e-9 < scores[-1]


def test_scores_are_of_no_target() -> None:
    model, ids = zoo.bridge("gpt2"), ids_of()
    some, other = (found(model, ArcJsd(), ids, target) for target in (TARGET, 12))
    assert torch.equal(some.scores, other.scores)
    assert other.diagnostics["note"] == "these scores are the same for every target"


def test_copies_of_a_score_and_the_question() -> None:
    model, ids = zoo.bridge("gpt2"), ids_of()
    last: Any = ((ids.shape[1] - 1, ids.shape[1]),)
    shared, copied = (found(model, ArcJsd(query=last, spread=spread), ids) for spread in ("share", "copy"))
    for score, places in zip(copied.diagnostics["source_scores"], copied.diagnostics["source_positions"], strict=True):
        assert copied.scores[list(places)].tolist() == pytest.approx([score] * len(places))
        assert float(shared.scores[list(places)].sum()) == pytest.approx(score)
    assert copied.scores[-1] == 0 and ArcJsd().work(predict(model, ids, TARGET)) == {"forwards": 4}
