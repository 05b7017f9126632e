from __future__ import annotations

import time
import tomllib

import pytest

from drimed.errors import SpecError
from drimed.trial import lines

TEXT = '''\
# a comment
name = "t"   # 2
about = """
several
lines"""     # 3 to 5

[arms]
old = {about = "inline"}
"new one" = {}
[metrics.yield]
range = [
  0,         # 12
  12,
]
[arms.third]
map = [
  [1.0, 2.0],
  [3.0,
   "x"],     # 19
]
[[guardrails]]
metric = "yield"
[[guardrails]]
metric = "cost"
'''


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("name",), 2),
        (("about",), 5),  # where it ends: before that it is not there
        (("arms",), 7),
        (("arms", "old"), 8),
        (("arms", "old", "about"), 8),
        (("arms", "new one"), 9),
        (("metrics",), 10),
        (("metrics", "yield", "range"), 11),
        (("metrics", "yield", "range", 0), 12),
        (("metrics", "yield", "range", 1), 13),
        (("arms", "third"), 15),
        (("arms", "third", "map", 0, 1), 17),
        (("arms", "third", "map", 1, 0), 18),
        (("arms", "third", "map", 1, 1), 19),
        (("guardrails", 0, "metric"), 22),
        (("guardrails", 1), 23),
        (("guardrails", 1, "metric"), 24),
    ],
)
def test_a_value_is_found_on_its_line(path: tuple[str | int, ...], line: int) -> None:
    assert lines.line_of(TEXT, path) == line


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("arms", "old", "map"), 8),
        (("metrics", "yield", "range", 7), 11),
        (("name", "x"), 2),
        (("nothing", "here"), None),
    ],
)
def test_a_value_that_is_not_there_is_pointed_at_by_what_should_hold_it(
    path: tuple[str | int, ...], line: int | None
) -> None:
    assert lines.line_of(TEXT, path) == line


def test_the_whole_file_has_no_line() -> None:
    assert lines.line_of(TEXT, ()) is None


def test_every_value_of_a_long_file_is_found_and_fast() -> None:
    """A file of a thousand users: what halves the file takes milliseconds, what reads all beginnings takes a minute."""
    text = "".join(f'[users.u{i}]\ngroup = "g"\n' for i in range(1000))
    start = time.perf_counter()
    for i in (0, 1, 499, 998, 999):
        assert lines.line_of(text, ("users", f"u{i}")) == 2 * i + 1
        assert lines.line_of(text, ("users", f"u{i}", "group")) == 2 * i + 2
    assert time.perf_counter() - start < 20


def test_halving_agrees_with_reading_every_beginning() -> None:
    def slowly(path: tuple[str | int, ...]) -> int:
        rows = TEXT.splitlines()
        for n in range(1, len(rows) + 1):
            for closing in ("", "\n]", "\n]]"):
                try:
                    data = tomllib.loads("\n".join(rows[:n]) + closing)
                    for step in path:
                        data = data[step]  # type: ignore[index]  # a number stands for a place in a list
                    return n
                except (tomllib.TOMLDecodeError, KeyError, IndexError):
                    continue
        raise AssertionError(path)

    paths: list[tuple[str | int, ...]] = [("arms", "third", "map", i, j) for i in range(2) for j in range(2)]
    paths += [("metrics", "yield"), ("guardrails", 0), ("arms", "new one"), ("about",)]
    for path in paths:
        assert lines.line_of(TEXT, path) == slowly(path)


def test_text_that_is_not_toml_has_the_line_of_the_fault() -> None:
    with pytest.raises(SpecError) as error:
        lines.parse(TEXT.replace('metric = "cost"', "metric cost"))
    assert error.value.faults[0].line == 24
    assert "(at line" not in str(error.value)
