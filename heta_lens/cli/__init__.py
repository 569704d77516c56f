"""The command ``heta-lens``: `app` runs the subcommands of `attribute`, `evaluate`, `causal`, `lists` and `web`.

Subcommands share the options of `flags` and `questions`, and the output of `views`. A subcommand imports heavy modules
when called.
"""

from heta_lens.cli import attribute, causal, evaluate, lists, web
from heta_lens.cli.app import app

__all__ = ["app", "attribute", "causal", "evaluate", "lists", "web"]
