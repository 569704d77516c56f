"""Random draws that are the same on every platform."""

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Draw:
    """Draws from a seed by ``random()`` alone, the only generator that Python promises never to change."""

    def __init__(self, seed: str) -> None:
        self.random = random.Random(seed).random

    def below(self, stop: int) -> int:
        return int(self.random() * stop)

    def one(self, items: Sequence[T]) -> T:
        return items[self.below(len(items))]

    def shuffled(self, items: Sequence[T]) -> list[T]:
        keys = [self.random() for _ in items]
        return [items[at] for at in sorted(range(len(items)), key=keys.__getitem__)]

    def some(self, items: Sequence[T], count: int) -> list[T]:
        return self.shuffled(items)[:count]
