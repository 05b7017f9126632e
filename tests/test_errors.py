from __future__ import annotations

import inspect

import pytest

from drimed import errors
from drimed.errors import (
    ConfigError,
    DrimedError,
    InputError,
    MissingExtraError,
    NumericalError,
    ShapeError,
    UnknownNameError,
)

ALL = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, Exception)]


def test_one_base_catches_every_error_of_the_package() -> None:
    assert {ConfigError, InputError, ShapeError, UnknownNameError, NumericalError, MissingExtraError} <= set(ALL)
    assert all(issubclass(c, DrimedError) for c in ALL)


def test_every_error_is_drawn_in_the_docstring() -> None:
    for c in ALL:
        assert c.__name__ in (errors.__doc__ or "")


def test_errors_are_also_what_python_would_raise() -> None:
    assert all(issubclass(error, ValueError) for error in (ConfigError, InputError, ShapeError, UnknownNameError))
    assert issubclass(MissingExtraError, ImportError)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (UnknownNameError("arm", "nwe", ["old", "new"]), "unknown arm 'nwe'; did you mean 'new'? Known: new, old"),
        (UnknownNameError("drift", "xyz", ["none", "gradual"]), "unknown drift 'xyz'. Known: gradual, none"),
        (MissingExtraError("polars", "sim"), "polars is needed here; install it with: pip install 'drimed[sim]'"),
    ],
)
def test_an_error_says_what_to_do(error: DrimedError, message: str) -> None:
    assert str(error) == message
