"""Scores of a data set: every prompt explained by every method."""

from collections.abc import Mapping
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

from heta_lens.data.prompt_sources import Source, prompts
from heta_lens.evaluation.prompt_evaluation import Methods, explainers
from heta_lens.evaluation.runner import HERE, drawn, evaluate
from heta_lens.evaluation.saved_scores import SavedScores, load_scores
from heta_lens.evaluation.shards import Shard
from heta_lens.evaluation.workers import Workers


def attribute_dataset(
    model: Any,
    source: Source,
    methods: Methods = "heta",
    *,
    out: str | PathLike[str],
    fields: Mapping[str, str] | None = None,
    split: str | None = None,
    limit: int | None = None,
    seed: int = 0,
    retry_failed: bool = False,
    progress: bool = True,
    facts: Mapping[str, Any] | None = None,
    workers: Workers = HERE,
    shard: Shard | None = None,
    **options: Any,
) -> SavedScores:
    """Explain every prompt by every method; a forward per prompt serves all methods.

    The scores go to ``run.sqlite`` in the folder ``out`` as soon as they are computed; failures are recorded there too,
    and stop nothing. Interrupted runs resume. The explained token of a prompt is the first token of
    the answer, or without an answer the model's own next token.

    Args:
        source: a suite, a file, ``hf:NAME`` or prompts; see `data.prompts`.
        out: the folder of the scores; it is made if it does not exist.
        fields: the columns of the fields, as in ``{"text": "question"}``.
        split: the split of a suite or data set.
        limit: the largest number of prompts.
        seed: the seed that draws the prompts of a suite.
        options: options of the suite, and ``path``, the file of the suite.

    The other arguments are those of `evaluation.evaluate`.

    Example:
        scores = heta_lens.attribute_dataset(model, "prompts.csv", ["heta", "leave_one_out"], out="scores")
        scores["prompts-0", "heta"].plot()
    """
    entries = explainers(methods)  # refuses a wrong name before a model is loaded
    draw = partial(prompts, source, fields=fields, split=split, limit=limit, seed=seed, **options)
    instances, model = drawn(source, model, workers, draw)
    folder = Path(out).expanduser()
    how = {"facts": facts, "progress": progress, "retry_failed": retry_failed, "workers": workers, "shard": shard}
    evaluate(model, instances, entries, (), folder, **how)
    folder = folder / shard.folder if shard else folder
    return load_scores(folder)
