"""Which token writes a text after a context: the candidates, in order."""

from helpers.decoders import SMILE, concatenating, stripping
from heta_lens.model.tokenizer import Match, appended, best_match, matches


def test_what_a_token_adds_depends_on_what_comes_before():
    decode = stripping([" a", " b"])
    assert list(appended(decode, [0], [0, 1])) == [(0, " a"), (1, " b")]
    assert list(appended(decode, [], [0, 1])) == [(0, "a"), (1, "b")]


def test_a_token_that_completes_a_character_is_written_as_it_is_alone():
    assert list(appended(concatenating([SMILE[:3], SMILE[3:]]), [0], [1])) == [(1, "�")]


def test_exact_matches_come_before_likely_ones_and_bytes_last() -> None:
    decode = concatenating([" a", "a", " a", " a", "b"])
    found = matches(decode, range(5), [-3.0, -1.0, -2.0, -0.1, -0.5], [4], " a", lambda token: token == 3)
    assert found == [Match(2, True, False), Match(0, True, False), Match(1, False, False), Match(3, True, True)]


def test_the_first_is_taken_and_what_writes_as_exactly_is_named() -> None:
    exact, likely = [Match(2, True, False), Match(0, True, False), Match(1, False, False)], [Match(1, False, False)]
    assert best_match(exact) == (2, (0,))
    assert best_match(likely) == (1, ())
