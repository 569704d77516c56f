"""Decoders of all kinds of tokenizers; an id is an index in their pieces."""

from collections.abc import Sequence

from tokenizers import Tokenizer, decoders, models

from heta_lens.model.tokenizer import Decode

SMILE = "😀".encode()
PIECES = ["<bos>", "The", " cat", " ", "  ", "\n", "x", "é", SMILE, SMILE[:2], SMILE[2:], b" " + SMILE[:3], SMILE[3:]]


# ------------------------------------------------------------------------------- decoders: an id is an index in pieces
def concatenating(pieces: Sequence[str | bytes]) -> Decode:
    """Bytes put after each other, as byte-level BPE does."""
    raw = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]
    return lambda ids: b"".join(raw[token] for token in ids).decode(errors="replace")


def stripping(pieces: Sequence[str | bytes]) -> Decode:
    """The same without the first space of all, as SentencePiece does."""
    decode = concatenating(pieces)
    return lambda ids: decode(ids).removeprefix(" ")


def joining(pieces: Sequence[str]) -> Decode:
    """Words put after each other with spaces between, as a word-level tokenizer does."""
    return lambda ids: " ".join(pieces[token] for token in ids)


def real(decoder: decoders.Decoder, pieces: Sequence[str]) -> Decode:
    tokenizer = Tokenizer(models.WordLevel({piece: token for token, piece in enumerate(pieces)}, unk_token=pieces[0]))
    tokenizer.decoder = decoder
    return lambda ids: tokenizer.decode(list(ids), skip_special_tokens=False)


def byte_fallback() -> decoders.Decoder:
    """Llama 2's."""
    spaces = decoders.Replace("▁", " ")
    return decoders.Sequence([spaces, decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])


def counting(decode: Decode) -> tuple[Decode, list[int]]:
    """``decode``, and the list of how many tokens each call was given."""
    calls: list[int] = []

    def counted(ids: Sequence[int]) -> str:
        calls.append(len(ids))
        return decode(ids)

    return counted, calls
