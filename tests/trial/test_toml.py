from __future__ import annotations

import time
import tomllib
from typing import Any

import pytest

from drimed.errors import SpecError
from drimed.records import Fault, Path
from drimed.trial.spec import parse_toml, with_lines


def lines_of(text: str, paths: list[Path]) -> list[int | None]:
    return [fault.line for fault in with_lines(text, [Fault(path, "") for path in paths])]


@pytest.mark.parametrize(
    ("text", "path", "line"),
    [
        ("'a.b' = 1\n\"c\\u0064\" = 2\n", ("cd",), 2),
        ("x = {a.b = [1, {c = '''\n]}'''}], d = 2} # e = 3\ny = 4\n", ("x", "d"), 1),
        ("x = {a = [1, {c = '''\n]}'''}], d = 2} # e = 3\ny = 4\n", ("y",), 3),
        ('s = """a"""" # "\nt = \'\'\'\'\'\'\nu = 1979-05-27 07:32:00\nv = -1.5e+3\nw = 0\n', ("w",), 5),
        ("[[a]]\n[[a.b]]\n[[a]]\n[[a.b]]\n[a.b.c]\nd = 1\n", ("a", 1, "b", 0, "c", "d"), 6),
        ("a = [\n  1, # ]\n  # 2,\n  [2,\n   3],\n]\r\nb = 1\n", ("a", 1, 1), 1),
        ("[ a . 'b' ]\nc . d = 1\n", ("a", "b", "c", "d"), 2),
    ],
)
def test_strings_comments_and_dots_do_not_mislead(text: str, path: Path, line: int) -> None:
    data: Any = tomllib.loads(text)
    for step in path:
        data = data[step]
    assert lines_of(text, [path]) == [line]


@pytest.mark.parametrize("key", ["a" + ".a" * 50_000, '"a"' + " . 'a'" * 20_000])
@pytest.mark.parametrize("form", ["{} = 1", "[{}]", "[[{}]]", "x = {{b = 1, {} = 1}}"])
def test_a_key_of_very_many_parts_is_refused_at_once(key: str, form: str) -> None:
    start = time.perf_counter()
    with pytest.raises(SpecError, match="line 2: a key must have at most 20 parts"):
        parse_toml("\n" + form.format(key))
    assert time.perf_counter() - start < 5


@pytest.mark.parametrize(
    ("text", "said"), [("a = " + "9" * 5000, "too many digits"), ("a = " + "[" * 5000, "nested too deeply")]
)
def test_what_is_too_much_for_the_reader_is_refused(text: str, said: str) -> None:
    with pytest.raises(SpecError, match=f"not TOML: .*{said}"):
        parse_toml(text)


def test_text_that_is_not_toml_has_the_line_of_the_fault() -> None:
    with pytest.raises(SpecError) as error:
        parse_toml('name = "t"\n\nmetric cost\n')
    assert error.value.faults[0].line == 3
    assert "(at line" not in str(error.value)


@pytest.mark.parametrize(("heading", "quotes"), [("[users.Gut-Süd]", 1), ("[users.the mill]", 1), ("[users.mill", 0)])
def test_a_heading_that_needs_quotes_is_said_to(heading: str, quotes: int) -> None:
    with pytest.raises(SpecError) as error:
        parse_toml(f'name = "t"\n{heading}\n')
    (fault,) = error.value.faults
    assert fault.line == 2
    assert fault.message.startswith("not TOML: Expected ']' at the end of a table declaration")
    assert fault.message.count("is written in quotes") == quotes
