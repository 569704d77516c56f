"""The command ``heta-lens``: `app` is the command itself, and `attribute`, `evaluate`, `causal` and `lists` add the
subcommands. `flags`, `questions` and `views` hold the options and outputs that several subcommands share.

Each command imports what it needs when it is called.
"""

from heta_lens.cli import attribute, causal, evaluate, lists
from heta_lens.cli.app import app

__all__ = ["app", "attribute", "causal", "evaluate", "lists"]
