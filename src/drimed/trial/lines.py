"""Where in a TOML text a value stands, so that an error can point at its line.

tomllib reads values and forgets places. Once it has read a text, the text is sound, and its words alone tell where each
value begins. Names are in their one form (`drimed.trial.names`), as they are in what is read.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator
from typing import Any

from drimed.errors import SpecError
from drimed.records import Fault, Path
from drimed.trial.names import tidy

MOST_PARTS = 20  # of a key with dots; tomllib takes time with the square of them
_LINE = re.compile(r"\(at line (\d+), column (\d+)\)")
_HEADING = re.compile(r"\s*\[([^\[\]\"'#]+)\]")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
# Strings and comments are one word each, also those that do not end.
_WORD = re.compile(
    r'"""(?:\\.|[^\\])*?(?:"{3,5}|\Z)|' + r"'''.*?(?:'{3,5}|\Z)|" + r'"(?:\\[^\n]|[^"\\\n])*"?|' + r"'[^'\n]*'?|"
    r"#[^\n]*|[\w-]+|[^ \t\r]",
    re.DOTALL,
)


def parse(text: str) -> dict[str, Any]:
    """The data, or a SpecError that says where the text is not TOML."""
    _refuse_long_keys(text)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = _LINE.search(str(error))
        line = int(found[1]) if found else None
        message = _LINE.sub("", str(error)).strip() + _needs_quotes(text, line)
        raise SpecError([Fault((), f"not TOML: {message}", line)]) from None
    except ValueError:
        raise SpecError([Fault((), "not TOML: a number has too many digits")]) from None
    except RecursionError:
        raise SpecError([Fault((), "not TOML: lists or tables are nested too deeply")]) from None


def _needs_quotes(text: str, line: int | None) -> str:
    """What to do about a heading with other letters than a to z, which TOML takes in quotes only."""
    heading = None if line is None else _HEADING.match(text.split("\n")[line - 1])
    parts = heading[1].strip().split(".") if heading else []
    quoted = [part if _BARE.fullmatch(part) else f'"{part}"' for part in parts]
    if quoted == parts:
        return ""
    return f"; a name with spaces, or letters other than a to z, is written in quotes: [{'.'.join(quoted)}]"


def lines_of(text: str, paths: Iterable[Path]) -> list[int | None]:
    """The lines of the values at `paths`, or of the deepest parts of the paths that are there.

    >>> lines_of('name = "t"\\n[arms.a]\\nmap = [\\n  [1],\\n  [2],\\n]\\n', [("arms", "a", "map", 1), ("arms", "b")])
    [5, 2]
    """
    paths = list(paths)
    found = _Places(text, {path[:n] for path in paths for n in range(1, len(path) + 1)}).lines
    return [next((found[p[:n]] for n in range(len(p), 0, -1) if p[:n] in found), None) for p in paths]


def _refuse_long_keys(text: str) -> None:
    dots, joined = 0, False
    for word, line in _words(text):
        if word == ".":
            dots, joined = dots + 1, True
            if dots >= MOST_PARTS:
                raise SpecError([Fault((), f"a key must have at most {MOST_PARTS} parts with dots between them", line)])
        else:
            dots, joined = dots if joined else 0, False


def _words(text: str) -> Iterator[tuple[str, int]]:
    """Words and the lines on which they begin."""
    line = 1
    for found in _WORD.finditer(text):
        word = found[0]
        yield word, line
        line += word.count("\n")


class _Places:
    """The lines on which those values begin that are wanted, read from a sound text."""

    def __init__(self, text: str, wanted: set[Path]) -> None:
        self.lines: dict[Path, int] = {}
        self._wanted = wanted
        self._words = ((word, line) for word, line in _words(text) if word[0] != "#")
        self._tables: dict[Path, int] = {}  # how many of each [[list of tables]] there are
        self._word, self._line = "", 1
        self._next()
        self._file()

    def _next(self) -> None:
        self._word, self._line = next(self._words, ("", self._line))

    def _file(self) -> None:
        table: Path = ()
        while self._word:
            if self._word == "[":
                table = self._header()
            elif self._word == "\n":
                self._next()
            else:
                self._pair(table)

    def _header(self) -> Path:
        line = self._line
        self._next()
        several = self._word == "["
        if several:
            self._next()
        path: Path = ()
        keys = self._key()
        for n, key in enumerate(keys, 1):
            path = (*path, key)
            self._note(path, line)
            if several and n == len(keys):
                self._tables[path] = self._tables.get(path, 0) + 1
            if path in self._tables:
                path = (*path, self._tables[path] - 1)
                self._note(path, line)
        while self._word == "]":
            self._next()
        return path

    def _pair(self, path: Path) -> None:
        line = self._line
        for key in self._key():
            path = (*path, key)
            self._note(path, line)
        self._next()  # the equals sign
        self._value(path)

    def _key(self) -> list[str]:
        parts = []
        while self._word not in ("=", "]"):
            if self._word != ".":
                parts.append(tidy(_unquoted(self._word)))
            self._next()
        return parts

    def _value(self, path: Path) -> None:
        if self._word == "[":
            self._list(path)
        elif self._word == "{":
            self._next()
            while self._word != "}":
                if self._word in (",", "\n"):
                    self._next()
                else:
                    self._pair(path)
            self._next()
        else:
            while self._word not in ("", ",", "]", "}", "\n"):
                self._next()

    def _list(self, path: Path) -> None:
        self._next()
        n = 0
        while self._word != "]":
            if self._word in (",", "\n"):
                self._next()
            else:
                self._note((*path, n), self._line)
                self._value((*path, n))
                n += 1
        self._next()

    def _note(self, path: Path, line: int) -> None:
        if path in self._wanted:
            self.lines.setdefault(path, line)


def _unquoted(key: str) -> str:
    if key[0] not in "\"'":
        return key
    return str(tomllib.loads(f"key = {key}")["key"]) if "\\" in key else key[1:-1]
