"""Products that pass through one block at a time equal those of the whole graph, and hold less memory."""

from typing import Any

import pytest
import torch

from helpers import zoo
from helpers.asking import predict
from heta_lens import Heta
from heta_lens._util.work import Allocations
from heta_lens.methods.heta.curvature import whole_segment
from heta_lens.methods.heta.hessian import BlockwiseHessian, uncounted
from heta_lens.model.batching import Batches


@pytest.mark.both_lines
@pytest.mark.parametrize("build", zoo.models())
@pytest.mark.parametrize(("layer", "place"), [(None, 0), (None, 4), (0, 3)])
def test_products_equal_those_of_the_whole_graph(build: Any, layer: int | None, place: int) -> None:
    model = build()
    prediction = predict(model, zoo.prompt(model, 9), 7)
    with prediction.running():
        segment = whole_segment(prediction, layer)
        whole = segment.hessian_from(Batches(3), uncounted, place)
        blockwise = segment.hessian_from(Batches(3), uncounted, place, checkpoint=True)
        assert isinstance(blockwise, BlockwiseHessian)
        directions = torch.randn(4, *whole.like.shape, generator=torch.Generator().manual_seed(0)).to(whole.like)
        for own, places in ((directions, slice(None)), (directions[:, 1:3], slice(1, 3)), (directions[:, 2], 2)):
            expected = whole.matmat(own, places)
            off = (blockwise.matmat(own, places) - expected).abs().max() / expected.abs().max()
            assert off < 1e-5  # some norms compute in float32


@pytest.mark.parametrize("build", zoo.models("bridge-gpt2|hooked-llama"))
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"groups": 3},
        {"support": "row"},
        {"norm": "entrywise"},
        {"interactions": True, "groups": None},
        {"variant": "ls", "layers": 2},
        {"variant": "lr", "rank": 4},
        {"variant": "win", "window": 4, "window_mode": "restrict"},
        {"variant": "win", "window": 4, "window_mode": "chunk"},
        {"tolerance": 0.5},
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:probes=10 were too few:UserWarning")
def test_scores_are_the_same(build: Any, options: dict[str, Any]) -> None:
    model = build()
    prediction = predict(model, zoo.prompt(model, 9), 7)
    whole, blockwise = Heta(**options)(prediction), Heta(**options, checkpoint=True)(prediction)
    torch.testing.assert_close(blockwise.scores, whole.scores, rtol=1e-6, atol=0)
    assert blockwise.options["checkpoint"] and blockwise.diagnostics["hvps"] == whole.diagnostics["hvps"]


@pytest.mark.parametrize("build", zoo.models("bridge-gpt2"))
def test_a_single_layer_has_no_blocks_to_take_apart(build: Any) -> None:
    model = build()
    prediction = predict(model, zoo.prompt(model, 9), 7)
    options: dict[str, Any] = {"variant": "ls", "layers": 1}
    whole, blockwise = Heta(**options)(prediction), Heta(**options, checkpoint=True)(prediction)
    assert torch.equal(blockwise.scores, whole.scores)


@pytest.mark.slow
def test_more_layers_need_hardly_more_memory() -> None:
    def held(layers: int, checkpoint: bool) -> int:
        model = zoo.bridge("gpt2", d_model=16, n_layers=layers)
        prediction = predict(model, zoo.prompt(model, 40), 7)
        with prediction.running(), Allocations() as allocations:
            operator = whole_segment(prediction).hessian_from(Batches(2), uncounted, 0, checkpoint=checkpoint)
            operator.matmat(operator.like.new_ones(2, *operator.like.shape))
        return allocations.most

    more_of_a_graph, more_of_blocks = (held(8, way) - held(4, way) for way in (False, True))
    assert more_of_blocks < more_of_a_graph / 8


@pytest.mark.parametrize("build", zoo.models("bridge-gpt2"))
def test_what_it_does_not_go_with_is_refused(build: Any) -> None:
    with pytest.raises(ValueError, match="does not go with variant='gn'"):
        Heta(variant="gn", checkpoint=True)
    with pytest.raises(ValueError, match="does not go with window_mode='frozen'"):
        Heta(variant="win", checkpoint=True)
    model = build()
    with model.hooks([("blocks.0.hook_resid_post", lambda value, hook: 1.0 * value)]):  # noqa: ARG005
        prediction = predict(model, zoo.prompt(model, 5), 7)
        with pytest.raises(ValueError, match="checkpoint=True runs blocks one at a time, but hooks on the model"):
            Heta(checkpoint=True)(prediction)
