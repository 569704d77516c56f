"""A prompt's text as tokens, refused where the model has none for it."""

import pytest

import heta_lens
from heta_lens.model import tokenizer


def test_encoding_keeps_the_text_and_begins_it() -> None:
    model = heta_lens.load_demo_model()
    ids = tokenizer.encode(model, "Mia put the key\n in  the drawer.")
    assert model.tokenizer.decode(ids[0]) == "<bos> Mia put the key in the drawer."


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Mia put the elephant in the fridge.", "no token for 'elephant': it knows 375, each a word"),
        ("Mia sold the elephant; Leo ate.", "no token for 'sold', 'elephant', ';', 'ate': it knows"),
        ("  ", "the text is empty"),
        ("Mia " * 1024, "1025 tokens long, and this model reads 1024 at most"),
        ("Mia " * 3000, "3001 tokens long"),
        ("Mia \udcff", "not valid UTF-8 at character 4"),
    ],
)
def test_text_that_cannot_be_read_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tokenizer.encode(heta_lens.load_demo_model(), text)
