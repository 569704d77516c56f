"""The scores of many prompts by several methods, kept in a folder as they are computed."""

from collections.abc import Mapping
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

from heta_lens.data.prompt_sources import Source, prompts
from heta_lens.evaluation.engines.workers import Workers
from heta_lens.evaluation.kept_scores import SCORES, KeptScores, load_scores
from heta_lens.evaluation.prompt_drawing import drawn
from heta_lens.evaluation.prompt_evaluation import Methods, explainers
from heta_lens.evaluation.runner import HERE, evaluate
from heta_lens.evaluation.shards import Shard


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
) -> KeptScores:
    """Explain every prompt by every method; one forward per prompt serves all methods.

    The scores go to ``scores.jsonl`` in the folder ``out``, each as soon as it is finished; what failed is recorded in
    ``records.jsonl`` and stops nothing. Interrupted runs resume. What is explained of a prompt is the first token of
    its answer, or without one the model's own next token.

    Args:
        model: a TransformerLens model, the name of one, a folder, or a function that loads it. Of several workers
            each loads its own, so that they cannot be given a model.
        source: a suite, a file, ``hf:NAME`` or prompts; see `data.prompts`.
        methods: their names, with options as in ``"lime samples=200"``; ready ones; or functions of yours.
        out: the folder where scores are kept; it is made if it does not exist.
        fields: which column is which field, as in ``{"text": "question"}``.
        split: which split of a suite or data set.
        limit: how many prompts at most.
        seed: which prompts of a suite are drawn.
        retry_failed: repeat what raised an error, instead of leaving it failed.
        progress: show a progress bar, or lines now and then where none can be drawn.
        facts: what else to keep about this run, such as the name of the model.
        workers: how many share the work, and where; by default it is done here.
        shard: do only the prompts of this shard, into a folder of its own inside ``out``. `merge` joins them.
        options: those of the suite, and ``path``, the file that it is read from.

    Example:
        scores = heta_lens.attribute_dataset(model, "prompts.csv", ["heta", "leave_one_out"], out="scores")
        scores["prompts-0", "heta"].plot()
    """
    entries = explainers(methods)
    draw = partial(prompts, source, fields=fields, split=split, limit=limit, seed=seed, **options)
    instances, model = drawn(source, model, workers, draw)
    folder = Path(out).expanduser()
    how = {"facts": facts, "progress": progress, "retry_failed": retry_failed, "workers": workers, "shard": shard}
    evaluate(model, instances, entries, (), folder, **how)
    folder = folder / shard.folder if shard else folder
    return load_scores(folder) if (folder / SCORES).exists() else KeptScores(())
