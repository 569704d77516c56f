"""GIM next to its authors' package, wherever that is installed: ``make oracles`` does so."""

import pytest

from helpers import zoo
from helpers.asking import predict, relative
from heta_lens.methods.relevance import Gim

gim = pytest.importorskip("gim")
TARGET, BLANK = 7, 3


@pytest.mark.parametrize("temperature", [1.0, 2.0])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_scores_are_theirs(family: str, temperature: float) -> None:
    model = zoo.hooked(family)
    ids = zoo.prompt(model, 9)
    theirs = gim.explain(model, ids, target_token_id=TARGET, baseline_token_id=BLANK, softmax_temperature=temperature)
    model.zero_grad()
    ours = Gim(mask=BLANK, temperature=temperature)(predict(model, ids, TARGET)).scores
    assert relative(ours, theirs) < 1e-9


def test_the_blank_is_theirs() -> None:
    from gim.explain import _infer_baseline_token_id

    model = zoo.hooked("gpt2")
    prediction = predict(model, zoo.prompt(model, 5), TARGET)
    assert prediction.adapter.tokenizer.stand_in("space") == _infer_baseline_token_id(model.tokenizer)
