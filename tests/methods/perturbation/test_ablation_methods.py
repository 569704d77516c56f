"""What methods that remove tokens have in common."""

from dataclasses import replace

import pytest
import torch

import heta_lens
from helpers import zoo
from helpers.ablations import FOIL, TARGET, N, found, hooked, ids_of
from helpers.asking import predict, relative
from heta_lens.methods.base import Method
from heta_lens.methods.progressive_inference import ProgressiveInference
from heta_lens.methods.surrogates import ContextCite, KernelShap, Lime

QUICK: dict[str, Method] = {
    "lime": Lime(samples=20),
    "lime, lasso": Lime(samples=30, surrogate="lasso"),
    "kernel_shap": KernelShap(samples=18),
    "kernel_shap, every coalition": KernelShap(),
    "context_cite": ContextCite(samples=12, held_out=4),
    "context_cite, tokens": ContextCite(source="token", ablate="mask", samples=20, held_out=4),
    "progressive_inference": ProgressiveInference(),
    "progressive_inference, multi": ProgressiveInference(passes="multi", samples=5),
}
METHOD = pytest.mark.parametrize("method", QUICK.values(), ids=QUICK.keys())


@pytest.mark.sample(quick=2)
@METHOD
def test_how_many_run_at_once_does_not_matter(method: Method) -> None:
    model = zoo.bridge("gpt2")
    ids = ids_of()[:, :12] if "cite" in method.name else zoo.prompt(model, N)
    one, some = (found(model, replace(method, batch=batch), ids) for batch in (1, 5))
    assert relative(one.scores, some.scores) < 1e-9 and one.scores.any()
    assert one.diagnostics["forwards"] == some.diagnostics["forwards"] <= method.work(predict(model, ids))["forwards"]


@pytest.mark.sample(quick=3)
@METHOD
def test_a_contrast_is_explained_on_any_scale(method: Method) -> None:
    """What is linear in the runs (all but LASSO) is the difference of both tokens' scores."""
    model = zoo.bridge("gpt2")
    both, one, other = (found(model, method, target=target).scores for target in ((TARGET, FOIL), TARGET, FOIL))
    assert both.isfinite().all() and not torch.equal(both, one)
    if "lasso" not in str(method) and method.name != "context_cite":
        assert relative(both, one - other) < 1e-9


@METHOD
def test_nothing_after_the_context_is_read_and_a_cache_of_embeddings_is_enough(method: Method) -> None:
    model, ids = zoo.bridge("llama"), zoo.prompt(zoo.bridge("llama"), N + 2)
    _, cache = model.run_with_cache(ids, names_filter=["hook_embed"])
    part = method(heta_lens.Prediction.from_cache(cache, TARGET, position=N, tokens=ids))
    assert relative(part.scores, found(model, method, ids[:, :N]).scores) < 1e-6


@pytest.mark.sample(quick=3)
@METHOD
def test_hooks_that_know_positions_find_them(method: Method) -> None:
    if method.name == "context_cite" and method.ablate == "remove":
        pytest.skip("refused")
    assert not torch.allclose(found(hooked(), method).scores, found(zoo.bridge("gpt2"), method).scores)


@METHOD
@pytest.mark.parametrize("bos", [True, False])
def test_a_single_token_can_be_explained(method: Method, bos: bool) -> None:
    model = zoo.bridge("gpt2")
    scores = found(model, method, zoo.prompt(model, 2)[:, :1] if bos else zoo.prompt(model, 2)[:, 1:]).scores
    assert scores.shape == (1,) and scores.isfinite().all()
    if bos:
        assert bool(scores[0] == 0) == (getattr(method, "passes", "multi") == "multi")


def test_what_never_reaches_the_prediction_gets_nothing() -> None:
    """Two layers that see three tokens back: what lies more than six before the prediction cannot matter to it."""
    model, n = zoo.bridge("mistral"), 10
    deaf = n - 1 - 2 * (zoo.SLIDING_WINDOW - 1)
    ids = zoo.prompt(model, n)
    scores = found(model, KernelShap(), ids).scores.abs()
    assert scores[:deaf].max() < 1e-9 * scores.max() and (scores[deaf:] > 0).all()
    near_nothing = found(model, Lime(samples=2000, surrogate="lasso"), ids).scores.abs()
    assert near_nothing[:deaf].max() < 0.05 * near_nothing.max()


@pytest.mark.slow
@pytest.mark.parametrize(
    "other",
    [
        Lime(samples=20, keep=0.5),
        Lime(samples=20, width=0.5),
        Lime(samples=20, penalty=2),
        Lime(samples=20, mask="mean"),
        Lime(samples=20, keep_bos=False),
        Lime(samples=20, scale="prob"),
        Lime(samples=20, seed=1),
        Lime(samples=20, surrogate="lasso"),
        KernelShap(samples=18, paired=False),
        KernelShap(samples=18, seed=1),
        KernelShap(samples=18, mask="mean"),
        KernelShap(samples=18, keep_bos=False),
        KernelShap(samples=18, scale="logit"),
        ProgressiveInference(scale="log_odds"),
        ProgressiveInference(passes="multi", samples=5, seed=1),
        ProgressiveInference(passes="multi", samples=5, penalty=1),
        ProgressiveInference(passes="multi", samples=5, mask="mean"),
        ProgressiveInference(passes="multi", samples=5, keep_bos=False),
        ContextCite(samples=12, held_out=4, seed=1),
        ContextCite(samples=12, held_out=4, penalty=0.1),
        ContextCite(samples=12, held_out=4, keep=0.8),
        ContextCite(samples=12, held_out=4, ablate="mask"),
        ContextCite(samples=12, held_out=4, scale="prob"),
        ContextCite(samples=12, held_out=4, spread="copy"),
    ],
)
def test_every_option_changes_something(other: Method) -> None:
    model = zoo.bridge("gpt2")
    usual = {**QUICK, "progressive_inference": QUICK["progressive_inference, multi"]}[other.name]
    if other.name == "progressive_inference" and other.passes == "single":
        usual = QUICK["progressive_inference"]
    ids = ids_of() if other.name == "context_cite" else zoo.prompt(model, 9)
    assert relative(found(model, other, ids).scores, found(model, usual, ids).scores) > 1e-6
