"""Live trials: ask, tell, and never lose a decision."""

from importlib import resources


def template(name: str = "field") -> str:
    """A commented trial file to start from; that of a field shows every setting."""
    return (resources.files(__name__) / "templates" / f"{name}.toml").read_text(encoding="utf-8")
