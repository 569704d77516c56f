"""How fast scores are found, against the naive implementation and against cheaper ways."""
