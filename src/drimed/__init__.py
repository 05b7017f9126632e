"""Experiments that learn which treatment is best for each user and keep every user about as well off as the control.

The public interface is what `__init__.pyi` names (docs/api.md); everything else may change. A name is imported when it
is first used, so that `import drimed` costs nothing. Start with:

>>> from drimed import make, simulate
>>> make("dri_med").rule.temperature
2.0
"""

_EXTRAS = ("trial", "client", "evaluation")  # parts that need an extra of the same name


def _homes() -> dict[str, tuple[str, str]]:
    """Public name -> its module and its name there."""
    homes = {}
    with open(f"{__path__[0]}/__init__.pyi", encoding="utf-8") as stub:
        for line in stub:
            match line.split():
                case ["from", home, "import", inside, "as", name]:
                    homes[name] = home, inside
                case [name, "=", alias]:
                    homes[name] = homes.pop(alias)
    return homes


_HOMES = _homes()
__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name == "__version__":
        value = import_module("importlib.metadata").version("drimed")
    elif name in _HOMES:
        home, inside = _HOMES[name]
        try:
            module = import_module(home)
            value = vars(module)[inside] if inside in vars(module) else import_module(f"{home}.{inside}")
        except ModuleNotFoundError as error:
            part, missing = f"{home}.{inside}".split(".")[1], str(error.name)
            if part not in _EXTRAS or missing.startswith("drimed"):
                raise
            from drimed.errors import MissingExtraError

            raise MissingExtraError(missing, part) from error
    else:
        raise AttributeError(f"module 'drimed' has no attribute {name!r}; the public names are in drimed.__all__")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
