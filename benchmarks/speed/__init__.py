"""How fast scores are found, against the literal loop and against cheaper ways."""
