"""A sequence whose items are computed when they are accessed."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


class Lazy(Sequence[T]):
    """Items that are computed each time they are accessed: all at once they may be more than fits."""

    def __init__(self, count: int, of: Callable[[int], T]) -> None:
        self.places, self.of = range(count), of

    def __len__(self) -> int:
        return len(self.places)

    def __iter__(self) -> Iterator[T]:
        return map(self.of, self.places)

    def __getitem__(self, place: Any) -> Any:
        return self.of(self.places[place])
