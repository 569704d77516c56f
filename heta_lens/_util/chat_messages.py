"""The messages of a chat: the message that each token of a context belongs to, and the chat template's tokens."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from jaxtyping import Bool, Int
from torch import Tensor

TEMPLATE = "template"  # the role of tokens that belong to no message


@dataclass(frozen=True, eq=False)
class Messages:
    """The messages of a context that is a chat, in order.

    ``owners`` has for each token the index of the message whose content the token writes, and -1 for the template's
    tokens. ``places`` are the spans ``(message, start, stop)`` of the contents in the text; a message may have none.
    """

    roles: tuple[str, ...]
    places: Int[Tensor, "span 3"]
    owners: Int[Tensor, "pos"]

    @property
    def template(self) -> Bool[Tensor, "pos"]:
        """A mask of the tokens that the chat template wrote."""
        return self.owners < 0

    @property
    def names(self) -> list[str]:
        """The roles of the tokens, with `TEMPLATE` for the template's tokens."""
        return [TEMPLATE if owner < 0 else self.roles[owner] for owner in self.owners.tolist()]

    def rows(self, numbers: Sequence[int]) -> list[int]:
        """Return the rows of the tokens that belong to the numbered messages."""
        return [row for row, owner in enumerate(self.owners.tolist()) if owner in numbers]

    def content(self, number: int, text: str) -> str:
        """Return the content of a message in the context's text, with each tool call on a line."""
        return "\n".join(text[start:stop] for owner, start, stop in self.places.tolist() if owner == number)

    def kept(self, keep: Bool[Tensor, "pos"]) -> "Messages":
        """Return the messages of the tokens in ``keep``."""
        return replace(self, owners=self.owners[keep])
