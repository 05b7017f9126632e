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


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (ConfigError, ValueError),
        (InputError, ValueError),
        (ShapeError, InputError),
        (UnknownNameError, InputError),
        (MissingExtraError, ImportError),
    ],
)
def test_errors_are_also_what_python_would_raise(error: type[Exception], builtin: type[Exception]) -> None:
    assert issubclass(error, builtin)


def test_an_unknown_name_lists_what_is_known_and_suggests_the_nearest() -> None:
    message = str(UnknownNameError("drift", "gradul", ["none", "periodic", "gradual"]))
    assert message == "unknown drift 'gradul'; did you mean 'gradual'? Known: gradual, none, periodic"


def test_a_name_like_no_other_gets_no_suggestion() -> None:
    message = str(UnknownNameError("drift", "xyz", ["none", "gradual"]))
    assert message == "unknown drift 'xyz'. Known: gradual, none"


def test_a_missing_extra_says_how_to_install_it() -> None:
    assert str(MissingExtraError("matplotlib", "sim")) == (
        "matplotlib is needed here; install it with: pip install 'drimed[sim]'"
    )
