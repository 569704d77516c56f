"""Prompts that depend on what the model predicts are drawn with it; it is loaded once where the work is done here."""

from functools import partial
from typing import Any

import pytest

from helpers.evaluating import demo
from heta_lens.data.instance import Instance
from heta_lens.evaluation import Workers
from heta_lens.evaluation.runner import drawn

PROMPTS = [Instance("a", "The key is in the", " box")]


def draw(**options: Any) -> list[Instance]:
    says = options.get("says")
    return [Instance("a", "The key is in the", says("The key is in the"))] if callable(says) else PROMPTS


def test_other_sources_are_drawn_without_a_model() -> None:
    assert drawn("recall", "unknown", Workers(), partial(draw)) == (PROMPTS, "unknown")
    assert drawn("longra", "unknown", Workers(), partial(draw, says=None)) == (PROMPTS, "unknown")


@pytest.mark.parametrize("count", [1, 2])
def test_a_model_is_loaded_once_and_passed_on_only_to_this_process(count: int) -> None:
    loads: list[int] = []

    def load() -> Any:
        loads.append(1)
        return demo()

    prompts, model = drawn("longra", load, Workers(count), partial(draw))
    assert prompts[0].answer and prompts[0].answer.startswith(" ")
    assert model is (demo() if count == 1 else load) and loads == [1]
