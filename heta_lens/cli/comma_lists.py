"""Arguments that name several things, with commas between them: ``-m lime,random``."""


def listed(given: list[str] | None, default: list[str]) -> list[str]:
    """What was given, one by one or with commas between (those in brackets belong to an option)."""
    return [part.strip() for entry in given or default for part in _split(entry) if part.strip()]


def _split(entry: str) -> list[str]:
    parts, depth = [""], 0
    for letter in entry:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts
