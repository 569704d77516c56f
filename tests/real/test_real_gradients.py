"""On real models, too, gradients that hold one block's graph at a time give the scores of the whole graph."""

from typing import Any

import pytest

import heta_lens
from benchmarks.real_models import MODELS, PACKAGED
from helpers.asking import cache_of, relative

METHODS: list[tuple[str, dict[str, Any]]] = [
    *(("attn_lrp", {"rule": rule}) for rule in ("attn_lrp", "cp_lrp", "relp")),
    *((method, {}) for method in ("gradient_norm", "input_x_gradient", "gim", "jacobian_scope", "grad_cam")),
]


@pytest.mark.thorough
@pytest.mark.parametrize("packaged", PACKAGED, ids=lambda packaged: packaged.name)
def test_the_scores_are_those_of_the_whole_graph(packaged: Any) -> None:
    if not (MODELS / packaged.name).exists():
        pytest.skip("make real-models makes it")
    model = heta_lens.load_model(MODELS / packaged.name)
    ids = model.to_tokens("Anna put the book in the kitchen. Ben put the pen in the garden. The book is in the")
    cache = cache_of(model, ids)
    for method, options in METHODS:
        whole, by_block = (
            heta_lens.attribute(cache, tokens=ids, method=method, checkpoint=own, **options) for own in (False, True)
        )
        assert by_block.diagnostics.cost.forwards > whole.diagnostics.cost.forwards
        assert relative(by_block.scores, whole.scores) < 1e-5, method
