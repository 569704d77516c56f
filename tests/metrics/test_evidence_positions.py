"""Known spans of a prompt, as tokens."""

from dataclasses import replace

import pytest

from helpers.evaluating import case_of
from heta_lens.data.instance import Instance
from heta_lens.data.suites import suite
from heta_lens.metrics.scores import evidence_positions


@pytest.mark.parametrize("name", ["gold", "support", "question"])
def test_a_span_is_the_tokens_that_write_it(name: str) -> None:
    case = case_of(suite("recall", limit=1)[0])
    positions = evidence_positions(case.instance, case.prediction, name)
    assert positions == case.positions(name) == sorted({*positions})
    wanted = " ".join(case.instance.text[slice(*span)] for span in getattr(case.instance, name))
    assert "".join(case.prediction.written[position] for position in positions).split() == wanted.split()


def test_spans_of_another_text_are_not_looked_for() -> None:
    case = case_of(suite("recall", limit=1)[0])
    other = replace(case, instance=Instance("other", "Something else.", None))
    with pytest.raises(ValueError, match="the tokenizer does not give its text back"):
        evidence_positions(other.instance, other.prediction, "gold")
