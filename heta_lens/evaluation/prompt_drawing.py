"""Draws the prompts of a source, which may depend on what the model itself predicts."""

from functools import partial
from typing import Any

from heta_lens.data.instance import Instance
from heta_lens.evaluation.engines.worker_setup import loaded
from heta_lens.evaluation.engines.workers import Workers
from heta_lens.model.prompt_encoding import next_word

NEEDS_MODEL = "longra"  # the suite of what a model answers with the distraction and without


def drawn(source: Any, model: Any, workers: Workers, draw: "partial[list[Instance]]") -> tuple[list[Instance], Any]:
    """The prompts, and the model: loaded, if that was needed and the work is done in this process."""
    if source != NEEDS_MODEL or "says" in draw.keywords:
        return draw(), model
    ready = loaded(model)
    return draw(says=partial(next_word, ready)), ready if workers.here else model
