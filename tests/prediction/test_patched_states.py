"""Effects of states put in at groups of tokens, against one plain run each."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from helpers import zoo
from helpers.asking import plain_embeddings, predict, relative
from heta_lens.methods.leave_one_out import LeaveOneOut
from heta_lens.prediction.patching import effects, values_put

N, TARGET, OTHER = 5, 7, 9

FAMILIES = pytest.mark.parametrize("build", zoo.models("-(gpt2|llama|gptj)$"))


WAYS: list[dict[str, Any]] = [
    {"how": "edge_patch"},
    {"how": "edge_patch", "patterns": "recomputed"},
    {"how": "resid_patch", "layer": 1},
    {"how": "input"},
]

EVERY_WAY = pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(map(str, way.values())))

GROUPS = [[0], [2], [N - 1], [1, 3], [0, 1, 2, 3], [3, N - 1]]


def other_ids(model: Any) -> Tensor:
    return zoo.prompt(model, N, seed=1)


@torch.no_grad()
def likelihood(model: Any, ids: Tensor, hooks: list[Any], n: int) -> Tensor:
    return model.run_with_hooks(ids, fwd_hooks=hooks)[0, n - 1].double().log_softmax(-1)[TARGET]


def standing_in(embeddings: Tensor) -> tuple[str, Any]:
    def put(live: Tensor, hook: Any) -> Tensor:  # noqa: ARG001
        live = live.clone()
        live[0, : len(embeddings)] = embeddings
        return live

    return "hook_embed", put


@torch.no_grad()
def seen(model: Any, ids: Tensor, hooks: list[Any]) -> dict[str, Tensor]:
    kept: dict[str, Tensor] = {}
    suffixes = ("attn.hook_v", "attn.hook_pattern", "hook_resid_pre")
    names = [f"blocks.{layer}.{suffix}" for layer in range(2) for suffix in suffixes]
    keep = [(name, lambda live, hook, name=name: kept.update({name: live[0].clone()})) for name in names]  # noqa: ARG005
    model.run_with_hooks(ids, fwd_hooks=[*hooks, *keep])
    return kept


def mixed_by_loops(pattern: Tensor, values: Tensor) -> Tensor:
    """What each head of one query mixes, of values that several heads may share."""
    heads, shared = len(pattern), len(pattern) // values.shape[1]
    return torch.stack(
        [sum(pattern[h, j] * values[j, h // shared] for j in range(pattern.shape[1])) for h in range(heads)]
    )


def edges_by_hand(
    model: Any, ids: Tensor, hooks: list[Any], clean: Any, moved: Any, group: list[int], n: int, *, frozen: bool
) -> list[Any]:
    """Hooks that make up what the last position mixes, layer by layer: what one attends with depends on those below."""
    for layer in range(2):
        live, name = seen(model, ids, hooks), f"blocks.{layer}.attn.hook_"
        values = clean[name + "v"][:n].clone()
        for i in group:
            values[i] = moved[name + "v"][i]
        values[n - 1] = live[name + "v"][n - 1]
        mixed = mixed_by_loops((clean if frozen else live)[name + "pattern"][:, n - 1, :n], values)

        def mix(live: Tensor, hook: Any, mixed: Tensor = mixed) -> Tensor:  # noqa: ARG001
            live = live.clone()
            live[0, n - 1] = mixed
            return live

        hooks = [*hooks, (name + "z", mix)]
    return hooks


def by_runs(
    model: Any,
    ids: Tensor,
    groups: list[list[int]],
    *,
    how: str,
    mask: Tensor | None = None,
    reference: Tensor | None = None,
    layer: int = 0,
    patterns: str = "frozen",
    n: int = N,
) -> Tensor:
    embeddings, clean, found = plain_embeddings(model, ids), seen(model, ids, []), []
    for group in groups:
        masked = embeddings.clone()
        masked[group] = mask if reference is None else plain_embeddings(model, reference)[group]
        moved = seen(model, ids, [standing_in(masked)]) if reference is None else seen(model, reference, [])
        hooks = [standing_in(masked)]
        if how == "resid_patch":

            def put(live: Tensor, hook: Any, moved: Any = moved, group: Any = group) -> Tensor:  # noqa: ARG001
                live = live.clone()
                live[0, group] = moved[f"blocks.{layer}.hook_resid_pre"][group]
                return live

            hooks = [(f"blocks.{layer}.hook_resid_pre", put)]
        elif how == "edge_patch":
            last = embeddings.clone()
            last[n - 1] = masked[n - 1]
            frozen = patterns == "frozen" and n - 1 not in group
            before = [i for i in group if i < n - 1]
            hooks = edges_by_hand(model, ids, [standing_in(last)], clean, moved, before, n, frozen=frozen)
        found.append(likelihood(model, ids, [], n) - likelihood(model, ids, hooks, n))
    return torch.stack(found)


@pytest.mark.slow
@EVERY_WAY
@FAMILIES
def test_masked_groups_equal_one_run_each(build: Callable[..., Any], way: dict[str, Any]) -> None:
    model = build()
    ids, mask = zoo.prompt(model, N), torch.linspace(-1, 1, 8, dtype=torch.float64)
    expected = by_runs(model, ids, GROUPS, mask=mask, **way)
    assert relative(effects(predict(model, ids, TARGET), mask=mask, groups=GROUPS, **way), expected) < 1e-6
    nothing = torch.zeros(8, dtype=torch.float64)
    single = by_runs(model, ids, [[i] for i in range(N)], mask=nothing, **way)
    assert relative(effects(predict(model, ids, TARGET), **way), single) < 1e-6


@pytest.mark.slow
@EVERY_WAY
@FAMILIES
def test_a_reference_equals_one_run_each(build: Callable[..., Any], way: dict[str, Any]) -> None:
    model = build()
    ids, others = zoo.prompt(model, N), other_ids(model)
    reference = predict(model, others, OTHER)
    found = effects(predict(model, ids, TARGET), reference=reference, groups=GROUPS, **way)
    assert relative(found, by_runs(model, ids, GROUPS, reference=others, **way)) < 1e-6


@pytest.mark.parametrize("build", zoo.models("-(?!(gpt2|llama|gptj)$)"))
def test_edges_equal_one_run_each_on_models_of_other_kinds(build: Callable[..., Any]) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    expected = by_runs(model, ids, GROUPS, how="edge_patch", mask=torch.zeros(8, dtype=torch.float64))
    assert relative(effects(predict(model, ids, TARGET), groups=GROUPS), expected) < 1e-6


@FAMILIES
def test_input_is_leave_one_out(build: Callable[..., Any]) -> None:
    prediction = predict(build(), zoo.prompt(build(), N), TARGET)
    for mask in ("zero", "mean", "vocab_mean", "pad", 6):
        left_out = LeaveOneOut(effect="log_prob", mask=mask)(prediction).scores
        assert relative(effects(prediction, how="input", mask=mask), left_out) < 1e-9


@pytest.mark.parametrize("build", zoo.models(""))
def test_values_are_put_into_models_of_all_kinds_and_only_where_positions_are_known(build: Callable[[], Any]) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    asked = predict(model, ids, TARGET)
    with torch.no_grad(), values_put(asked, [0, 1], asked.values[0], 0):
        torch.testing.assert_close(model(ids)[0, -1].log_softmax(-1), asked.log_probs, check_dtype=False)
        begun = asked.adapter.keys_values(ids[:, :2])
        if len(begun) == asked.adapter.layers:  # others keep none
            with pytest.raises(RuntimeError, match="run the whole text anew, with use_past_kv_cache=False"):
                asked.adapter.run(ids[:, 2:], past=asked.adapter.reuse.resume(begun, 2, N, 1))
    assert asked.adapter.user_hooks() == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"how": "output"}, "how='output' is not one of 'edge_patch', 'resid_patch', 'input'"),
        ({"mask": torch.full((8,), torch.nan)}, "the effect of group 0 is nan"),
        ({"how": "resid_patch"}, "layer=None with how='resid_patch': only how='resid_patch' has a layer"),
        ({"groups": [[0], []]}, "group 1 is empty: name a position"),
        ({"groups": [[0, N]]}, f"position {N} is none of the {N} positions of the context"),
    ],
    ids=str,
)
@pytest.mark.usefixtures("unchecked")
def test_what_makes_no_sense_is_refused(options: dict[str, Any], message: str) -> None:
    model = zoo.bridge("gpt2")
    with pytest.raises(ValueError, match=message):
        effects(predict(model, zoo.prompt(model, N), TARGET), **options)


@pytest.mark.usefixtures("unchecked")
def test_a_reference_that_does_not_fit_is_refused_before_any_run(forwards: Any) -> None:
    model, stranger = zoo.bridge("gpt2"), zoo.bridge("gptj")
    prediction, longer = predict(model, zoo.prompt(model, N), TARGET), predict(model, zoo.prompt(model, N + 1), TARGET)
    elsewhere = predict(stranger, zoo.prompt(stranger, N), TARGET)
    ran = forwards(model)
    with pytest.raises(ValueError, match=f"the reference has {N + 1} tokens, and the prediction {N}"):
        effects(prediction, reference=longer)
    with pytest.raises(ValueError, match="the reference is of another TransformerBridge, not of the same model"):
        effects(prediction, reference=elsewhere)
    for mask in ("mean", 3, torch.zeros(8)):
        with pytest.raises(ValueError, match="mask= and a reference both say what is put in: give only one"):
            effects(prediction, reference=prediction, mask=mask)
    with pytest.raises(ValueError, match="is none of the"):
        effects(prediction, groups=[[N]])
    with pytest.raises(TypeError, match="group 0=1 is not a list of positions"):
        effects(prediction, groups=[1, 2])  # type: ignore[list-item]
    assert not ran


# ------------------------------------------------------------------------------------------------------ changed texts
@torch.no_grad()
def log_prob(model: Any, ids: list[int]) -> Tensor:
    return model(torch.tensor([ids]))[0, -1].double().log_softmax(-1)[TARGET]


@FAMILIES
@torch.no_grad()
def test_a_deleted_group_is_a_run_of_the_shorter_text(build: Any) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    found = effects(predict(model, ids, TARGET), how="delete", groups=GROUPS)
    left = [[token for place, token in enumerate(ids[0].tolist()) if place not in group] for group in GROUPS]
    expected = torch.stack([log_prob(model, ids[0].tolist()) - log_prob(model, rest) for rest in left])
    assert relative(found, expected) < 1e-4


@FAMILIES
@torch.no_grad()
def test_a_resampled_group_is_a_mean_of_runs_of_texts_that_the_model_writes(build: Any) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    found = effects(predict(model, ids, TARGET), how="resample", groups=GROUPS, draws=2, seed=3)
    own, generator = ids[0].tolist(), np.random.default_rng([3, *ids[0].tolist()])
    reached = model(ids)[0, :-1].double().softmax(-1).cumsum(-1)
    expected = torch.zeros(len(GROUPS)).double()
    for _ in range(2):
        points = generator.random(N - 1)
        drawn = [own[0], *(int((row <= point * row[-1]).sum()) for row, point in zip(reached, points, strict=True))]
        for number, group in enumerate(GROUPS):
            text = [drawn[place] if place in group else own[place] for place in range(N)]
            expected[number] += (log_prob(model, own) - log_prob(model, text)) / 2
    assert found[0] == 0 and relative(found, expected) < 1e-4


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"how": "delete", "reference": None}, "how='delete' changes the text"),
        ({"how": "resample", "mask": "mean"}, "how='resample' changes the text"),
        ({"how": "delete", "seed": 1}, "draws= and seed= are for how='resample'"),
        ({"how": "input", "patterns": "recomputed"}, "patterns='recomputed' is for how='edge_patch'"),
        ({"how": "resample", "draws": 0}, "draws=0"),
    ],
)
def test_an_option_of_another_way_is_refused(options: dict[str, Any], named: str) -> None:
    prediction = predict(zoo.bridge("gpt2"), zoo.prompt(zoo.bridge("gpt2"), N), TARGET)
    given = options | ({"reference": prediction} if "reference" in options else {})
    with pytest.raises(ValueError, match=named):
        effects(prediction, **given)
