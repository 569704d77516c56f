"""Options written as NAME=VALUE are read as Python values, or as the text they are."""

import pytest

from heta_lens._util.options import keywords, written


def test_values_are_of_the_kind_they_are_written_as() -> None:
    assert keywords(["probes=20", "support=row", "beta=0.5", "layers=[1, 2]", "tolerance=None"]) == {
        "probes": 20,
        "support": "row",
        "beta": 0.5,
        "layers": [1, 2],
        "tolerance": None,
    }


@pytest.mark.parametrize("written", ["probes", "=20", "probes=", "two words=1"])
def test_what_names_no_option_is_refused(written: str) -> None:
    with pytest.raises(ValueError, match="is not of the form NAME=VALUE, like probes=20"):
        keywords([written])


def test_an_option_that_is_given_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="option 'x' is given twice: give it once, as x=2"):
        keywords(["x=1", "y=1", "x=2"])


@pytest.mark.parametrize("value", ["(" * 100_000, "-" * 100_000 + "1", "{[]: 1}", "9" * 5000, "1is", "1e999("])
def test_what_reads_as_no_value_is_text(value: str) -> None:
    assert keywords([f"x={value}"]) == {"x": value}


def test_an_option_that_no_file_can_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="option 'x' is not valid UTF-8 at character 1"):
        keywords(["x=a\udcff"])


def test_options_are_written_as_a_call_has_them() -> None:
    assert written({"variant": "ls", "layers": 2}) == "variant='ls', layers=2"
    assert (written({}), written({}, "lime"), written({"seed": 1}, "lime")) == (
        "HETA with its defaults",
        "lime",
        "lime(seed=1)",
    )
