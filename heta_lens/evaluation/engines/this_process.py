"""The engine of one process: it works through the prompts one by one."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from heta_lens.evaluation.prompt_evaluation import Identity, Outcome, PromptEvaluator, Task


@dataclass(frozen=True, eq=False)
class ThisProcess:
    """Works through prompts in their order; each method's outcome is there as soon as it is finished."""

    evaluator: PromptEvaluator

    @property
    def identity(self) -> Identity:
        return self.evaluator.identity

    def outcomes(self, tasks: Sequence[Task]) -> Iterator[Outcome]:
        for task in tasks:
            yield from self.evaluator.outcomes(task)
