"""Which two prompts, and which attribution, go together."""

import pytest

from helpers import zoo
from helpers.asking import cache_of, explain
from helpers.patching import TARGET, N, prompts, searched
from heta_lens.causal import patch


@pytest.mark.usefixtures("unchecked")
def test_prompts_that_do_not_go_together_are_refused() -> None:
    model, stranger = zoo.bridge("gpt2"), zoo.bridge("gptj")
    clean, longer = zoo.prompt(model, N), zoo.prompt(model, N + 1)
    with pytest.raises(ValueError, match=f"the corrupted prompt has {N + 1} tokens, and the clean one {N}"):
        patch(cache_of(model, clean), cache_of(model, longer), TARGET)
    with pytest.raises(ValueError, match="the two caches are of two models: take both from the same"):
        patch(cache_of(model, clean), cache_of(stranger, clean), TARGET)
    with pytest.raises(TypeError, match="expected an ActivationCache"):
        patch(cache_of(model, clean), clean, TARGET)
    for wrong in ("tokens", "corrupted_tokens"):
        with pytest.raises(ValueError, match=f"^{wrong}= do not match the cache"):
            patch(cache_of(model, clean), cache_of(model, clean), TARGET, **{wrong: prompts(model)[1]})


def test_an_attribution_of_another_prompt_is_refused() -> None:
    model = zoo.bridge("gpt2")
    for ids in (zoo.prompt(model, N, seed=2), zoo.prompt(model, N + 1)):
        with pytest.raises(ValueError, match=r"this attribution is of neither prompt: it explains '.*give the cache"):
            searched(model, explain(model, ids, TARGET, method="recency"))
