"""Live trials: ask, tell, and never lose a decision."""

from importlib import resources


def template() -> str:
    """A commented trial file to start from."""
    return (resources.files(__name__) / "template.toml").read_text(encoding="utf-8")
