"""Options of a suite on a command line."""

import pytest

from heta_lens.cli.flags import INSTEAD, suite_options


def test_options_are_read_as_keywords() -> None:
    assert suite_options(["hops=2", "voice=cleft", "wordings=more"]) == {
        "hops": 2,
        "voice": "cleft",
        "wordings": "more",
    }
    assert suite_options([]) == {}


@pytest.mark.parametrize("name", INSTEAD)
def test_what_the_command_has_itself_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"-o {name}=1 is not an option of a suite: {INSTEAD[name]}"):
        suite_options([f"{name}=1"])
