"""The command line: the only place that prints."""

from drimed.errors import ConfigError


def names(option: str, text: str) -> list[str]:
    """The names of an option, separated by commas."""
    found = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not found:
        raise ConfigError(f"give at least one name with {option}, or leave it out for the default")
    return found
