"""How the documentation becomes a site: `make docs`."""

from __future__ import annotations

import dataclasses
import inspect
import re
from importlib.metadata import version as installed
from pathlib import Path
from types import ModuleType

from sphinx.application import Sphinx

import drimed

HERE = Path(__file__).parent

project = "drimed"
author = "the authors of drimed"
version = release = installed("drimed")
extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["__pycache__"]

myst_heading_anchors = 4  # links to headings, with the names that forges give them

autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_type_aliases = {name: name for name in ("FloatArray", "IntArray", "BoolArray")}
autodoc_member_order = "bysource"
python_use_unqualified_type_names = True
maximum_signature_line_length = 80
add_module_names = False
default_role = "code"  # `name` in a docstring

html_theme = "furo"
html_title = f"drimed {release}"
html_favicon = "../src/drimed/service/pages/static/icon.svg"
html_copy_source = False
html_show_search_summary = False  # it would have to fetch the pages, which browsers do not do from a folder
html_show_sphinx = False
html_show_copyright = False
html_theme_options = {"navigation_with_keys": True}


def reference(app: Sphinx, docname: str, source: list[str]) -> None:
    """Fill the reference with the names of api.md, section by section, from their docstrings."""
    if docname != "reference":
        return
    app.env.note_dependency(str(HERE / "api.md"))
    parts = []
    for section in re.split(r"^## ", (HERE / "api.md").read_text(encoding="utf-8"), flags=re.M)[1:]:
        rows = re.findall(r"^\| (`.*?) \| (.*) \|$", section, re.M)
        entries = [entry(name, about) for row, about in rows for name in re.findall(r"`(\w+)`", row)]
        if entries:
            parts += [f"## {section.splitlines()[0]}", "```{eval-rst}", *entries, "```"]
    source[0] = source[0].replace("<!-- names -->", "\n".join(parts))


def entry(name: str, about: str) -> str:
    """The directive that documents a public name."""
    value = getattr(drimed, name)
    if isinstance(value, ModuleType):
        own = ", ".join(set(getattr(value, "__all__", ())) & set(drimed.__all__))  # they have an entry of their own
        return f".. automodule:: {value.__name__}\n   :members:\n   :exclude-members: {own}\n\n"
    if inspect.isclass(value) and issubclass(value, Exception):
        return f".. autoexception:: drimed.{name}\n\n"
    if inspect.isclass(value):
        fields = "   :undoc-members:\n" if dataclasses.is_dataclass(value) else ""
        return f".. autoclass:: drimed.{name}\n   :members:\n{fields}\n"
    if inspect.isroutine(value):
        return f".. autofunction:: drimed.{name}\n\n"
    return f".. py:data:: drimed.{name}\n\n   {about}\n\n"  # a value has no docstring of its own


def as_written(_app: Sphinx, _what: str, _name: str, _of: object, _options: object, lines: list[str]) -> None:
    """Docstrings are plain text: |x| is a size, and a * a product."""
    code = False
    for i, line in enumerate(lines):
        code = line.lstrip().startswith(">>>") or (code and bool(line.strip()))
        if not code:
            parts = line.split("`")
            parts[::2] = [re.sub(r"([|*])", r"\\\1", part) for part in parts[::2]]
            lines[i] = "`".join(parts)


def setup(app: Sphinx) -> None:
    """Hook in."""
    app.connect("source-read", reference)
    app.connect("autodoc-process-docstring", as_written)
