"""Pydantic's findings about a trial file as sentences, each with its path."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import BaseModel as _Model
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from drimed.errors import UnknownNameError
from drimed.records import Fault, Path
from drimed.trial.spec import ARM, SHARES, TOO_LARGE, TrialSpec

# What each of pydantic's findings means to somebody who writes a trial file.
_WORDS = {
    "missing": "is missing",
    "string_type": "must be text in quotes",
    "string_unicode": "must be text of whole characters, without lone surrogates",
    "float_type": "must be a number",
    "int_type": "must be a whole number",
    "finite_number": "must be a finite number",
    "greater_than": "must be above {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than": "must be below {lt:g}",
    "less_than_equal": "must be at most {le:g}",
    "literal_error": "must be {expected}",
    "dict_type": "must be a table of names and values",
    "model_type": "must be a table of fields",
    "list_type": "must be a list in brackets",
    "tuple_type": "must be a list of two numbers",
    "union_tag_not_found": "must be the name of an arm, or a table of arms and their shares",
}
NAME_RULE = (
    "must be a name: 1 to 100 characters, no quotes, slashes, commas or semicolons, and in front no space and none of "
    "= + - @, which spreadsheets take for a formula"
)
_TRIAL_NAME_RULE = "must be 1 to 100 letters, digits, dots, dashes and underscores, the first a letter or digit"


def readable(error: ValidationError, kind: type[_Model] = TrialSpec) -> list[Fault]:
    """Pydantic's findings about a trial, or another part of it, as sentences."""
    return [_sentence(found, kind) for found in error.errors(include_url=False)]


def _sentence(found: ErrorDetails, kind: type[_Model]) -> Fault:
    loc = found["loc"][:-1] if found["loc"][-1:] == ("[key]",) else found["loc"]
    path = tuple(p for p in loc if p not in (ARM, SHARES))
    what, context = found["type"], found.get("ctx", {})
    if what == "extra_forbidden":
        return Fault(path, str(UnknownNameError("field", str(path[-1]), fields_at(kind, path[:-1]))))
    if what in ("string_pattern_mismatch", "string_too_short", "string_too_long"):
        words = _TRIAL_NAME_RULE if path == ("name",) else NAME_RULE
    elif what in ("too_short", "too_long"):
        words = "must have two numbers, the lowest and the highest" if path[-1] == "range" else "must not be empty"
    elif what == "value_error":
        words = found["msg"].removeprefix("Value error, ")
    elif what == "float_type" and isinstance(found["input"], int) and not isinstance(found["input"], bool):
        words = TOO_LARGE
    elif path == ("guardrails",):
        words = "must be a list: one table under [[guardrails]] for each"
    elif path == ("policy",):
        words = 'must be a table with a name and settings, such as {name = "dri_med"}'
    else:
        words = _WORDS.get(what, found["msg"][:1].lower() + found["msg"][1:]).format(**context)
    return Fault(path, words if what == "missing" or ", got " in words else f"{words}, got {short(found['input'])}")


def fields_at(root: type[_Model], path: Path) -> Iterable[str]:
    """The fields that the part of the file at `path` may have."""
    kind: object = root
    for step in path:
        if isinstance(kind, type) and issubclass(kind, _Model):
            field = kind.model_fields.get(str(step))
            kind = None if field is None else field.annotation
        else:
            kind = _member(kind)
    while kind is not None and not (isinstance(kind, type) and issubclass(kind, _Model)):
        kind = _member(kind)
    return () if kind is None else kind.model_fields


def _member(annotation: object) -> object:
    """What a list or a table of something holds."""
    inside = getattr(annotation, "__args__", ())
    return inside[-1] if inside else None


def short(value: object) -> str:
    """A value as a message shows it."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # thousands of digits, or of lists in lists
        return "something too long to show"
    return text if len(text) <= 60 else text[:57] + "..."
