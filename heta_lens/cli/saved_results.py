"""Results that were saved: attributions and spans as safetensors, or the scores of many prompts."""

from pathlib import Path
from typing import NamedTuple

from heta_lens.cli.prompt_running import Explained

MOST = 20  # results of one file that a terminal is worth


class Saved(NamedTuple):
    """A result, the file it is in, and a name for it; of a file of many prompts, the prompt's too."""

    path: Path
    name: str
    result: Explained
    prompt: str | None = None


def saved_results(path: Path, prompt: str | None = None, method: str | None = None) -> list[Saved]:
    """What is in a file; of one that holds many, those of this prompt and method."""
    from heta_lens._util.file_reading import regular_file
    from heta_lens.evaluation.kept_scores import READERS

    path = path.expanduser()
    if path.is_dir() or path.suffix in READERS:
        return _of_scores(path, prompt, method)
    regular_file(path, f"{path}: there is no such file")
    for flag, name in {"--prompt": prompt, "--method": method}.items():
        if name is not None:
            raise ValueError(f"{flag} {name} chooses among the scores of many prompts, and {path} is one attribution")
    return [Saved(path, str(path), load_result(path))]


def load_result(path: Path) -> Explained:
    """The attribution, of a token or of a span, that ``--save`` wrote."""
    from heta_lens import Attribution, SpanAttribution
    from heta_lens._util.file_reading import regular_file
    from heta_lens._util.tensor_storage import OtherKind

    regular_file(path, f"{path}: there is no such file")
    for kind in (Attribution, SpanAttribution):
        try:
            return kind.load(path)
        except OtherKind:
            pass
    raise ValueError(f"{path} is a safetensors file without an attribution: give what --save or attribution.save wrote")


def _of_scores(path: Path, prompt: str | None, method: str | None) -> list[Saved]:
    from heta_lens.evaluation.kept_scores import load_scores

    scores = load_scores(path).of(prompt=prompt, method=method)
    if len(scores) > MOST:
        names = ", ".join(scores.prompts[:3])
        raise ValueError(
            f"{path} holds {len(scores)} attributions, of the prompts {names} …: choose with --prompt and --method"
        )
    named = zip(scores.names, scores, strict=True)
    return [Saved(path, f"{path} {of} {by}", attribution, of) for (of, by), attribution in named]
