"""Errors are recorded in one sentence, with the place where they were raised."""

import json

import pytest

from heta_lens.evaluation.prompt_evaluation import description, raised_at


def raised(error: type[Exception], message: str) -> Exception:
    try:
        raise error(message)
    except error as caught:
        return caught


def test_errors_written_for_users_speak_for_themselves() -> None:
    assert description(raised(ValueError, "no such thing\nand more")) == "ValueError: no such thing"


def test_other_errors_say_where_they_were_raised() -> None:
    error = raised(RuntimeError, "broken")
    assert raised_at(error).startswith("evaluation/test_failure_descriptions.py:")
    assert description(error) == f"RuntimeError: broken ({raised_at(error)})"
    assert description(raised(KeyError, "")).startswith("KeyError: ''")


def test_the_place_is_outside_of_libraries() -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        json.loads("{")
    assert raised_at(caught.value).startswith("evaluation/test_failure_descriptions.py:") and not raised_at(
        ValueError("never")
    )
