"""Templates, style and files of pages that stand alone."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from functools import cache
from importlib import resources
from pathlib import Path

from drimed.errors import InputError, MissingExtraError
from drimed.formatting import amount, counted, moment, percent, short, span
from drimed.outputs import replacing

try:
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
except ImportError as error:
    raise MissingExtraError("jinja2", "trial") from error

PAGE = "index.html"


def environment(*packages: str) -> Environment:
    """The templates of this package, after those of others; everything is escaped."""
    loaders = [PackageLoader(package, "templates") for package in (*packages, "drimed.reports")]
    made = Environment(
        loader=ChoiceLoader(loaders), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    made.filters |= {"short": short, "moment": moment, "percent": percent}
    made.globals |= {"counted": counted, "amount": amount, "span": span}
    return made


@cache
def style() -> str:
    return text_of("static/pages.css")


def text_of(file: str) -> str:
    return resources.files("drimed.reports").joinpath(file).read_text(encoding="utf-8")


def write_files(out: Path, files: Mapping[str, bytes], *, force: bool) -> Path:
    """Write files into a folder, all of them or none; returns the page among them."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write to {out}: {error.strerror or error}") from None
    with ExitStack() as stack:
        beside = {name: stack.enter_context(replacing(out / name, force=force)) for name in files}
        for name, data in files.items():
            beside[name].write_bytes(data)
    return out / PAGE
