"""Whatever cannot be explained is refused by heta_lens itself, in one sentence that names what is wrong."""

from pathlib import Path
from typing import Any

import pytest

import heta_lens
from heta_lens import attribute

N, TARGET = 6, 7


def refusal(cache: Any, target: Any = TARGET, **options: Any) -> str:
    """The one sentence with which heta_lens, and nothing below it, refuses."""
    with pytest.raises((ValueError, TypeError)) as refused:
        attribute(cache, target, **options)
    assert Path(heta_lens.__file__).parent in Path(refused.traceback[-1].path).parents
    sentence = str(refused.value)
    assert "\n" not in sentence
    assert len(sentence) < 400
    return sentence


def missing(words: list[str], sentence: str) -> str:
    """The sentence, if it lacks one of the words: empty is good."""
    return "" if all(word in sentence for word in words) else sentence
