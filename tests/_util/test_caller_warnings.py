"""Warnings name the line which called heta_lens, and can be left out of a single call."""

import warnings

import pytest

import heta_lens
from heta_lens._util.python import quietly, warn


def test_a_warning_names_the_line_that_called_heta_lens(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("jaxtyping_packages"):
        pytest.skip("the type checker stands between the caller and heta_lens")
    with pytest.warns(UserWarning, match="probes=3 has no effect") as caught:
        heta_lens.Heta(variant="kl_only", probes=3)
    assert [warning.filename for warning in caught] == [__file__]


def test_a_quiet_call_gives_its_result_and_no_warning() -> None:
    def call() -> int:
        warn("something")
        return 3

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert quietly(call) == 3
    with pytest.warns(UserWarning, match="something"):
        call()
