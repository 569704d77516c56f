"""Notes get letters in the order in which they are first needed."""

from heta_lens.evaluation.report.document import Footnotes


def test_a_note_keeps_its_letter() -> None:
    notes = Footnotes()
    assert [notes.letter(note) for note in ("slow", "none", "slow")] == ["a", "b", "a"]
    assert notes.lines() == ["(a) slow", "(b) none"]


def test_after_z_comes_aa() -> None:
    notes = Footnotes()
    letters = [notes.letter(str(number)) for number in range(26 * 27 + 1)]
    assert letters[24:28] == ["y", "z", "aa", "ab"]
    assert letters[26 * 27 - 1 :] == ["zz", "aaa"]
