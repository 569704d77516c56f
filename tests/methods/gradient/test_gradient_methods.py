"""What all methods that follow gradients have in common."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from helpers import zoo
from helpers.asking import plain_embeddings, predict, relative
from helpers.gradients import OTHER, TARGET, N, along, midpoints, on, plain, scores, slope, with_row
from heta_lens.methods.base import Method
from heta_lens.methods.gradients import GradCam, GradientNorm, InputXGradient
from heta_lens.methods.integrated_gradients import (
    DiscretizedIntegratedGradients,
    IntegratedGradients,
    SequentialIntegratedGradients,
)
from heta_lens.methods.leave_one_out import LeaveOneOut

EVERY: list[Method] = [
    IntegratedGradients(steps=2),
    SequentialIntegratedGradients(steps=2),
    DiscretizedIntegratedGradients(steps=2, neighbours=20),
    InputXGradient(),
    GradientNorm(),
    GradCam(layer=0),
    LeaveOneOut(),
]
METHOD = pytest.mark.parametrize("method", EVERY, ids=lambda method: method.name)


@METHOD
def test_kinds_of_model_agree(method: Method) -> None:
    if not zoo.HAS_HOOKED:
        pytest.skip("there is one kind of model")
    one, other = (scores(method, model, zoo.prompt(model, N)) for model in (zoo.hooked("gpt2"), zoo.bridge("gpt2")))
    assert relative(one, other) < 1e-9


@pytest.mark.sample(quick=3)
@METHOD
def test_a_contrast_is_the_difference_where_scores_are_linear_in_g(method: Method) -> None:
    if method.name in ("gradient_norm", "grad_cam"):
        pytest.skip("not linear in g")
    if isinstance(method, LeaveOneOut):
        method = LeaveOneOut(effect="log_prob")
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N)
    both, first, second = (scores(method, model, ids, target) for target in ((TARGET, OTHER), TARGET, OTHER))
    assert relative(both, first - second) < 1e-9


def test_hooks_of_the_users_stay_active() -> None:
    model = zoo.bridge("gpt2")
    ids, name = zoo.prompt(model, N), "blocks.0.hook_resid_post"
    model.hook_dict[name].add_hook(lambda live, hook: 0.5 * live)  # noqa: ARG005
    try:
        embeddings, g, asked = plain_embeddings(model, ids), plain(model, ids), predict(model, ids, TARGET)
        gradient = slope(g, embeddings)
        one = scores(SequentialIntegratedGradients(steps=1, rule="middle"), model, ids)
        without = with_row(embeddings, 3, torch.zeros_like(embeddings[0]))
        expected = along(g, without, embeddings, midpoints(1))[3]
        mapped = GradCam(layer=0)(asked).scores
        halved_states = model.run_with_cache(ids, names_filter=[name])[1][name][0]
    finally:
        model.reset_hooks(including_permanent=True)
    assert relative(scores(InputXGradient(), model, ids), (gradient * embeddings).sum(-1)) > 1e-3
    assert relative(one[3:4], expected[None]) < 1e-9

    def rest(states: Tensor) -> Tensor:
        replace = [(name, lambda live, hook: states[None])]  # noqa: ARG005
        return on(model.run_with_hooks(ids, fwd_hooks=replace)[0, -1], TARGET, "log_prob")

    assert relative(mapped, (halved_states @ slope(rest, halved_states).mean(0)).relu()) < 1e-9


@pytest.mark.parametrize(
    "method",
    [SequentialIntegratedGradients(steps=2), DiscretizedIntegratedGradients(steps=2), IntegratedGradients(steps=2)],
    ids=lambda method: method.name,
)
def test_hooks_see_one_prompt_and_change_nothing_else(method: Method) -> None:
    """A hook that does nothing takes prefix reuse and batches away: every run is whole and on its own."""
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N)
    before = scores(method, model, ids)
    seen: set[tuple[int, ...]] = set()
    model.hook_dict["blocks.0.hook_resid_pre"].add_hook(lambda live, hook: seen.add(tuple(live.shape[:2])))  # noqa: ARG005
    try:
        under = scores(method, model, ids)
    finally:
        model.reset_hooks(including_permanent=True)
    assert relative(under, before) < 1e-9 and seen == {(1, N)}


def test_what_it_costs_is_foreseen() -> None:
    model = zoo.bridge("gpt2")
    asked = predict(model, zoo.prompt(model, N), TARGET)
    for method in (*EVERY, SequentialIntegratedGradients(steps=2, keep_bos=False)):
        work, found = method.work(asked), method(asked).diagnostics
        assert 0 < found["forwards"] <= work["forwards"]
        assert found["backwards"] <= work.get("backwards", 0)
    assert found["forwards"] == work["forwards"] == 2 * N + N + 1 and found["backwards"] == work["backwards"] == 2 * N


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GradCam(layer=-1), "layer=-1 must be at least 0"),
        (lambda: GradCam(layer=1.5), "layer=1.5 must be a whole number"),
        (lambda: GradCam(elementwise=1), "elementwise=1 must be True or False"),
        (lambda: SequentialIntegratedGradients(steps=0), "steps=0 must be at least 1"),
        (lambda: SequentialIntegratedGradients(rule="simpson"), "rule='simpson' is not one of 'gauss_legendre'"),
        (lambda: DiscretizedIntegratedGradients(neighbours=0), "neighbours=0 must be at least 1"),
        (lambda: DiscretizedIntegratedGradients(factor=-1), "factor=-1 must be at least 0"),
        (lambda: DiscretizedIntegratedGradients(strategy="best"), "strategy='best' is not one of 'greedy', 'maxcount'"),
    ],
)
def test_wrong_options_are_refused(make: Callable[[], Method], message: str, unchecked: None) -> None:  # noqa: ARG001
    with pytest.raises((ValueError, TypeError), match=message):
        make()


def test_what_this_model_has_not_is_refused_before_any_work() -> None:
    model = zoo.bridge("gpt2")
    asked = predict(model, zoo.prompt(model, N), TARGET)
    with pytest.raises(ValueError, match="layer=2 is none of the layers 0 to 1 this model has"):
        GradCam(layer=2)(asked)
    for kind in (IntegratedGradients, SequentialIntegratedGradients, DiscretizedIntegratedGradients):
        with pytest.raises(ValueError, match="mask=1000 is not a token id of this model"):
            kind(mask=1000)(asked)
