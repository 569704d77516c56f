"""Samples: more for some tokens than for others, and Student's quantile."""

import pytest
import torch
from scipy.stats import t as student

from heta_lens._util.numerics import Samples, student_t


def test_samples_may_be_more_for_some_tokens() -> None:
    drawn = [torch.tensor([1.0, 3.0, 8.0]), torch.tensor([]), torch.tensor([5.0, 7.0])]
    samples = Samples.uneven(drawn)
    assert samples.counts.tolist() == [3, 0, 2]
    assert samples.mean.tolist() == [4, 0, 6]
    expected = [float(torch.tensor([1.0, 3.0, 8.0]).std()) / 3**0.5, 0, float(torch.tensor([5.0, 7.0]).std()) / 2**0.5]
    assert samples.deviations.square().sum(0).sqrt().tolist() == pytest.approx(expected)


def test_even_samples_are_uneven_ones_of_one_length() -> None:
    values = torch.rand(4, 3, dtype=torch.float64)
    one, other = Samples.even(values), Samples.uneven(list(values.T))
    assert torch.equal(one.values, other.values) and torch.equal(one.counts, other.counts)


def test_students_quantile_is_scipys_and_0_where_there_is_no_spread() -> None:
    assert student_t(torch.tensor([3, 10])).tolist() == pytest.approx([student.ppf(0.975, 2), student.ppf(0.975, 9)])
    assert student_t(torch.tensor([0, 1]), 0.5).tolist() == [0, 0]
