"""Which token is explained, after which context."""

from typing import Any

import pytest
import torch
from torch import Tensor

import heta_lens
from helpers import zoo
from helpers.asking import cache_of
from helpers.odd_models import hooked
from helpers.refusing import TARGET, N, missing, refusal
from heta_lens import attribute

pytestmark = [
    pytest.mark.usefixtures("unchecked"),
]


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("Paris!", ["'Paris!'", "not a single token", "'Par', 'is', '!'"]),
        ("", ["empty"]),
        (121, ["target=121", "not a token id", "0 to 120"]),
        (-1, ["target=-1", "not a token id", "0 to 120"]),
        (3.0, ["target=3.0", "token id", "text", "pair"]),
        (b"cat", ["target=b'cat'", "token id"]),
        (torch.tensor([1, 2]), ["token id", "pair"]),
        ((5,), ["(5,)", "pair (a, b)"]),
        ((1, 2, 3), ["(1, 2, 3)", "pair (a, b)"]),
        ((5, 5), ["(5, 5)", "itself"]),
        ((5, " cat!"), ["' cat!'", "not a single token"]),
        ((5, 121), ["121", "0 to 120"]),
        ((5, None), ["None", "token id"]),
        (((1, 2), 3), ["(1, 2)", "token id"]),
        (set(), ["an empty set"]),
        ((frozenset(), 5), ["an empty set"]),
        ({5, 121}, ["target=121", "0 to 120"]),
        ({" cat!"}, ["' cat!'", "not a single token"]),
        ({5, 2.5}, ["target=2.5", "token id"]),
        ({(1, 2), 3}, ["(1, 2)", "token id"]),
        ({5, frozenset((6, 7))}, ["frozenset", "token id"]),
        ({5: 0.5}, ["{5: 0.5}", "a set of these"]),
        ([5, 6], ["[5, 6] is a list", "set {a, b}"]),
        (set(range(121)), ["all 121 tokens"]),
        (({5, 6}, 5), ["on both sides"]),
        (({5, 6}, {6, 7}), ["on both sides"]),
        (({5}, 5), ["itself"]),
        (({5, 6}, {6, 5}), ["itself"]),
        ((len, 5), ["a function in a pair", "return the difference"]),
        (dict, ["target=dict is a class"]),
        (torch.nn.Linear, ["target=Linear is a class"]),
    ],
    ids=repr,
)
def test_a_target_that_is_no_token_is_named(cache: Any, target: Any, words: list[str]) -> None:
    assert missing(words, refusal(cache, target)) == ""


def test_a_set_holds_each_token_once_however_it_is_given(cache: Any) -> None:
    """As an id or as text, and as another spelling where it is the only one that there is."""
    cat = attribute(cache, " cat", variant="gs").target
    for given in ({" cat"}, {" cat", cat}, frozenset((cat,)), {torch.tensor(cat), " cat"}):
        assert attribute(cache, given, variant="gs").target == cat
    several = attribute(cache, {" cat", 7, 9}, variant="gs")
    assert several.target == frozenset((cat, 7, 9))
    assert attribute(cache, ({" cat"}, {7, 9}), variant="gs").target == (cat, frozenset((7, 9)))
    assert several.target_text == "any of " + ", ".join(
        repr(cache.model.tokenizer.decode([token])) for token in sorted((cat, 7, 9))
    )


def test_a_set_that_is_possible_may_have_impossible_members(ids: Tensor) -> None:
    model = zoo.bridge("gpt2")

    def forbid(logits: Tensor, hook: Any) -> Tensor:  # noqa: ARG001
        return logits.index_fill(-1, torch.tensor([TARGET, TARGET + 1]), -torch.inf)

    with model.hooks(fwd_hooks=[("unembed.hook_out", forbid)]):
        taken = model.run_with_cache(ids)[1]
        said = refusal(taken, {TARGET, TARGET + 1})
        assert missing(["log p", "-inf", " or ", repr(model.tokenizer.decode([TARGET]))], said) == ""
        found = attribute(taken, {TARGET, TARGET + 2}, method="integrated_gradients", steps=2)
        assert found.scores.isfinite().all()
        torch.testing.assert_close(
            found.scores, attribute(taken, TARGET + 2, method="integrated_gradients", steps=2).scores
        )


def test_a_text_the_tokenizer_does_not_know_is_not_called_one_token(cache: Any) -> None:
    sentence = refusal(cache, "x")  # encodes to a single <unk>
    assert "'x'" in sentence
    assert "not a single token of this model but 1" not in sentence


def test_a_text_needs_a_tokenizer(ids: Tensor) -> None:
    model = zoo.bridge.__wrapped__("gpt2")
    model.tokenizer = None
    assert missing(["' cat'", "no tokenizer", "token id"], refusal(cache_of(model, ids), " cat")) == ""


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("names_filter", [None, heta_lens.names_filter], ids=["full", "filtered"])
def test_a_target_the_model_makes_impossible_is_named_and_all_others_can_be_explained(
    ids: Tensor, names_filter: Any
) -> None:
    model = zoo.bridge("gpt2")

    def forbid(logits: Tensor, hook: Any) -> Tensor:  # noqa: ARG001
        return logits.index_fill(-1, torch.tensor([TARGET]), -torch.inf)

    with model.hooks(fwd_hooks=[("unembed.hook_out", forbid)]):
        taken = model.run_with_cache(ids, names_filter=names_filter)[1]
        assert missing([repr(model.tokenizer.decode([TARGET])), "log p", "-inf"], refusal(taken)) == ""
        assert attribute(taken, TARGET + 1).scores.isfinite().all()


@pytest.mark.parametrize(
    ("position", "words"),
    [
        (N, [f"position={N}", "outside", f"{N} tokens"]),
        (-N - 1, [f"position={-N - 1}", "outside", f"{N} tokens"]),
        (0, ["position=0", "first token", "nothing comes before"]),
        (-N, [f"position={-N}", "first token", "nothing comes before"]),
        (1.5, ["position=1.5"]),
        ("3", ["position='3'"]),
    ],
)
def test_a_position_without_context_is_named(cache: Any, position: Any, words: list[str]) -> None:
    assert missing(words, refusal(cache, None, position=position)) == ""


@pytest.mark.skipif(not zoo.HAS_HOOKED, reason="HookedTransformer was removed in TransformerLens 4")
@pytest.mark.parametrize(("read", "written", "outside"), [(121, 10, 50), (121, 200, 200)], ids=["fewer", "more"])
def test_targets_are_what_a_model_writes_which_may_not_be_what_it_reads(
    read: int, written: int, outside: int, ids: Tensor
) -> None:
    model = hooked("HookedTransformer", d_vocab=read, d_vocab_out=written)
    taken = cache_of(model, ids)
    assert missing([f"target={outside}", "not a token id", f"0 to {written - 1}"], refusal(taken, outside)) == ""
    assert attribute(taken, written - 1, variant="kl_only").target == written - 1
