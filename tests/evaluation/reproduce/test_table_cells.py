"""Cells: settings compared, and what is missing."""

from typing import Any

import numpy as np
import pytest

from heta_lens.evaluation.reproduce.cells import SEEDS, Figure, Measure, changed, figure
from heta_lens.evaluation.run_folder import Record
from heta_lens.metrics import relative_change


def test_settings_are_compared_as_their_figures_say() -> None:
    values = np.array([[2.0, 2.1, 1.9]]).repeat(SEEDS, 1)
    assert changed(["mean"], 3, False, values) == pytest.approx([10.0])
    mean = relative_change([2.0, 2.1, 1.9], [0.0, 0.0, 0.0], reduce="mean", reference=2.0)
    assert changed(["mean"], 3, True, values) == pytest.approx([mean])
    pairs = np.stack([np.exp(values), np.ones_like(values)], -1).reshape(1, -1)
    assert changed(["log_ratio"], 3, False, pairs) == pytest.approx([10.0])
    assert changed(["mean"], 3, False, np.zeros((1, 9))) == pytest.approx([0.0])
    around = np.array([[-1.0, 0.0, 1.0]]).repeat(SEEDS, 1)
    assert np.isnan(changed(["mean"], 3, False, around)).all()


def test_what_is_missing_is_said() -> None:
    def record(number: int, value: Any, **more: Any) -> Record:
        return Record(
            f"{number}", "heta", values={"f1": value}, reasons={} if value is not None else {"f1": "no"}, **more
        )

    measure = Measure("f1", ("one", "other"), times=10)
    whole = figure(measure, {"one": [record(0, 0.5), record(1, 1.0)], "other": [record(2, 0.0), record(3, 0.5)]}, {})
    assert whole.estimate.value == pytest.approx(5.0) and whole.estimate.n == 4 and whole.notes == ()
    assert whole.estimate.low <= 5.0 <= whole.estimate.high
    part = figure(measure, {"one": [record(0, 0.5), record(1, None)], "other": [record(2, 0.0)]}, {})
    assert part.estimate.value == pytest.approx(2.5) and "no (1 of 2 prompts)" in part.notes
    assert "of one prompt, and so without an interval" in part.notes
    none = figure(measure, {"one": [record(0, None)], "other": [record(2, 0.0)]}, {})
    assert none.estimate is None and none.notes == ("no (1 of 1 prompts)",)
    unread = figure(measure, {"one": [record(0, 0.5)]}, {"other": "not there"})
    assert unread.estimate is None and unread.notes == ("not there",)


def test_opposite_infinities_have_no_mean() -> None:
    def records(own: float, random: float) -> list[Record]:
        return [Record(f"{number}", "heta", values={"soft_nc": (own, random)}) for number in range(3)]

    measure = Measure("soft_nc", ("one", "other"))
    none = figure(measure, {"one": records(0.0, 1.0), "other": records(1.0, 0.0)}, {})
    assert none == Figure(None, ("no mean: it is infinite in one data set, and minus that in another",))
    one = figure(measure, {"one": records(0.0, 1.0), "other": records(1.0, 2.0)}, {})
    assert one.estimate is not None and one.estimate.value == -np.inf
