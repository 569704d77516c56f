"""Which message of a chat wrote each token of a context, and which tokens are the chat template's own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jaxtyping import Bool, Int
from torch import Tensor

TEMPLATE = "template"  # what tokens of no message are called


@dataclass(frozen=True, eq=False)
class Messages:
    """The messages of a context that is a chat, in their order.

    ``owners`` is the message whose content each token writes, by its index; -1 for the template's own tokens.
    ``places`` are the spans ``(message, start, stop)`` of the contents in the context's text; a message may have none.
    """

    roles: tuple[str, ...]
    places: Int[Tensor, "span 3"]
    owners: Int[Tensor, "pos"]

    @property
    def template(self) -> Bool[Tensor, "pos"]:
        return self.owners < 0

    @property
    def names(self) -> list[str]:
        """Each token's role; the template's own tokens have none."""
        return [TEMPLATE if owner < 0 else self.roles[owner] for owner in self.owners.tolist()]

    def rows(self, numbers: Sequence[int]) -> list[int]:
        """The rows of the tokens of some messages."""
        return [row for row, owner in enumerate(self.owners.tolist()) if owner in numbers]

    def content(self, number: int, text: str) -> str:
        """What a message says, in the context's text; its tool calls each on a line."""
        return "\n".join(text[start:stop] for owner, start, stop in self.places.tolist() if owner == number)

    def kept(self, keep: Bool[Tensor, "pos"]) -> "Messages":
        """The same for some of the tokens."""
        return replace(self, owners=self.owners[keep])

    @classmethod
    def of(cls, fields: "Messages | Mapping[str, Any] | None") -> "Messages | None":
        """From its fields, as a file has them."""
        return cls(**fields) if isinstance(fields, Mapping) else fields
