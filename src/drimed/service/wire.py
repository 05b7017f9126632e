"""JSON as the service reads and writes it: one text for one value, no NaN, nothing twice."""

from __future__ import annotations

import json
from typing import Any

from drimed.trial.faults import first_twice


class MalformedError(ValueError):
    """A text that is not JSON as it is understood here."""


def written(data: Any) -> bytes:
    """Data as JSON: keys in the order of their definition, so that equal answers are equal bytes."""
    return json.dumps(data, allow_nan=False, separators=(",", ":"), ensure_ascii=False).encode()


def read(text: bytes) -> Any:
    """JSON as data; what has no number, or two values, is refused.

    >>> read(b'{"yield": NaN}')
    Traceback (most recent call last):
    ...
    drimed.service.wire.MalformedError: NaN is not JSON; leave out what is not known
    """
    try:
        data = json.loads(text.decode(), parse_constant=_constant, object_pairs_hook=_object)
        if b"\\u" in text:
            written(data)  # half a character, as \ud800, could not be stored
    except json.JSONDecodeError as error:
        raise MalformedError(f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except UnicodeDecodeError as error:
        raise MalformedError(f"not UTF-8: byte {error.start} cannot be read") from None
    except UnicodeEncodeError:
        raise MalformedError("a text holds half of a surrogate pair") from None
    except RecursionError:
        raise MalformedError("nested too deeply") from None
    except MalformedError:
        raise
    except ValueError as error:  # a number of thousands of digits
        raise MalformedError(str(error)) from None
    return data


def _constant(name: str) -> Any:
    raise MalformedError(f"{name} is not JSON; leave out what is not known")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise MalformedError(f"{first_twice(name for name, _ in pairs)!r} is given twice in one object")
    return made
