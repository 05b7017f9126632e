"""Workbooks (.xlsx): what their cells hold and what they show, read as a stream and within limits.

The work and the memory are bounded by the limit of cells, whatever a file says about itself. Source: ECMA-376, Part 1,
18.2 to 18.4 and 18.8.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from posixpath import join, normpath
from typing import Any, NamedTuple
from xml.parsers import expat

from drimed.errors import InputError

MOST_CELLS = 2_000_000  # of a sheet
BYTES, ELEMENTS = 128, 8  # of the unpacked parts, for each cell that a sheet may have
MOST_PARTS, MOST_STYLES = 2000, 65_536  # files in a workbook, and styles of cells
LAST_ROW, LAST_COLUMN = 1_048_576, 16_384  # that a worksheet has
PIECE, LONGEST_TAG = 65_536, 1_048_576  # bytes that are parsed at a time, and of a tag
LONGEST_FORMAT = 255  # characters that spreadsheet programs allow; the work for one grows with its square
LARGEST_EXACT = 1e15  # whole numbers below it are held as they were typed
MAIN, GENERAL, UNKNOWN = "xl/workbook.xml", "General", "?/?"
CONDITIONAL, NO_ZEROS = "of a condition", ";;"  # formats that cells have beside their own
BUILT_IN = {  # formats that a workbook names by number alone (18.8.30)
    **{0: GENERAL, 1: "0", 2: "0.00", 3: "#,##0", 4: "#,##0.00", 9: "0%", 10: "0.00%", 11: "0.00E+00", 49: "@"},
    **{14: "yyyy-mm-dd", 15: "d-mmm-yy", 16: "d-mmm", 17: "mmm-yy", 18: "h:mm", 19: "h:mm:ss", 20: "h:mm"},
    **{21: "h:mm:ss", 22: "yyyy-mm-dd h:mm", 37: "#,##0;(#,##0)", 38: "#,##0;(#,##0)", 45: "m:ss", 46: "[h]:mm:ss"},
    **{39: "#,##0.00;(#,##0.00)", 40: "#,##0.00;(#,##0.00)", 47: "m:ss.0", 48: "0.0E+0"},
}
TRUE = ("1", "true")
Element = tuple[str, dict[str, str] | None, str]

_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_PLACE = re.compile(r"([A-Z]{1,3})(\d{1,7})", re.ASCII)
_COLUMN = re.compile(r"[A-Z]{1,3}", re.ASCII)
_ESCAPED = re.compile(r"_x([0-9A-Fa-f]{4})_")
_LITERAL = re.compile(r'"([^"]*)"|\\(.)|[_*].|\[(\$?)([^\]]*)\]', re.DOTALL)
_DATE = re.compile(r"y+|m+|d+|h+|s+", re.IGNORECASE)
_DIGITS = re.compile(r"([^0#?.,%]*)([0#?,]*[0#?])(\.[0#?]*)?(,*)(%?)([^0#?.,%]*)")
_POWER = re.compile(r"[0#]+(?:\.[0#]+)?E\+0+")
_AS_PYTHON = {"yyyy": "%Y", "mmm": "%b", "mmmm": "%B", "ddd": "%a", "dddd": "%A"}
_AS_PYTHON |= {"h": "%H", "hh": "%H", "s": "%S", "ss": "%S"}


class Line(NamedTuple):
    number: int  # as a spreadsheet counts, from 1
    cells: list[Any]
    formats: dict[int, str] = {}  # noqa: RUF012  # that change what cells show, by their columns
    hidden: bool = False


@dataclass
class Worksheet:
    """A worksheet with something in it."""

    title: str
    is_hidden: bool
    lines: list[Line] = field(default_factory=list)
    hidden: set[int] = field(default_factory=set)  # columns, from 0


def worksheets(data: bytes, name: str, most: int = MOST_CELLS) -> list[Worksheet]:
    """The worksheets of a file with something in them; formulas by their values, dates as texts."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as packed:
            if MAIN not in packed.namelist():
                raise InputError(f"{name} is not an .xlsx workbook; save it as one, or as CSV")
            if sum(p.file_size for p in packed.infolist()) > BYTES * most or len(packed.infolist()) > MOST_PARTS:
                limit = f"{BYTES * most // 10**6} MB or {MOST_PARTS:,} parts"
                raise InputError(f"{name} has more than {limit} when it is unpacked; save it as CSV")
            return [sheet for sheet in _Reader(packed, most).worksheets() if sheet.lines]
    except InputError:
        raise
    except Exception as error:  # whatever is wrong with the file or a part of it
        raise InputError(
            f"{name} begins like a workbook and is damaged: {str(error) or type(error).__name__}"
        ) from None


class _Reader:
    def __init__(self, packed: zipfile.ZipFile, most: int) -> None:
        self.packed, self.most = packed, most
        self.elements = self.bytes = self.cells = 0  # that were read; one part may be read many times
        self.texts: list[str] = []
        self.formats = [GENERAL]  # by the number of a cell's style
        self.conditional = set[str]()  # numbers of styles that replace formats where a condition holds
        self.start = datetime(1899, 12, 30)  # day 0 of dates

    def worksheets(self) -> Iterator[Worksheet]:
        targets, sheets = dict[str, str](), dict[str, Worksheet]()
        for tag, attributes, _ in self._elements("xl/_rels/workbook.xml.rels"):
            if tag == "Relationship" and attributes:
                part, kind = normpath(join("xl", attributes["Target"])).lstrip("/"), attributes["Type"]
                if kind.endswith("/sharedStrings"):
                    self.texts = list(self._strings(part))
                elif kind.endswith("/styles"):
                    self.formats = list(self._styles(part)) or self.formats
                elif kind.endswith("/worksheet"):
                    targets[attributes["Id"]] = part
        for tag, attributes, _ in self._elements(MAIN):
            if tag == "workbookPr" and attributes and attributes.get("date1904") in TRUE:
                self.start = datetime(1904, 1, 1)
            elif tag == "sheet" and attributes:
                key = next(v for k, v in attributes.items() if k.endswith(":id"))
                sheets[key] = Worksheet(attributes["name"], attributes.get("state", "visible") != "visible")
        for key, sheet in sheets.items():
            if key in targets:
                self._fill(sheet, targets[key])
                yield sheet

    def _elements(self, part: str) -> Iterator[Element]:
        """Beginnings of elements, with their attributes, and ends (None), with the text since the last beginning."""
        parser, found, text = expat.ParserCreate(), list[Element](), list[str]()
        parser.buffer_text = True

        def start(tag: str, attributes: dict[str, str]) -> None:
            self.elements += 1
            if self.elements > ELEMENTS * self.most:
                raise self._too_large()
            text.clear()
            found.append((tag.rpartition(":")[2], attributes, ""))

        def end(tag: str) -> None:
            found.append((tag.rpartition(":")[2], None, "".join(text)))
            text.clear()

        def refuse(*_: object) -> None:
            raise ValueError("a part of it has a document type")  # no workbook has: its entities could be endless

        parser.StartElementHandler, parser.EndElementHandler = start, end
        parser.CharacterDataHandler, parser.StartDoctypeDeclHandler = text.append, refuse
        before = self.bytes
        with self.packed.open(part) as stream:
            while piece := stream.read(PIECE):
                parser.Parse(piece)
                self.bytes += len(piece)
                if self.bytes > BYTES * self.most:
                    raise self._too_large()
                if self.bytes - before - parser.CurrentByteIndex > LONGEST_TAG:
                    raise ValueError("a tag is too long")  # it would be looked through again and again
                yield from found
                found.clear()
            parser.Parse(b"", True)
        yield from found

    def _count(self, cells: int) -> None:
        self.cells += cells
        if self.cells > self.most:
            raise self._too_large()

    def _too_large(self) -> InputError:
        return InputError(f"a workbook may have at most {self.most:,} cells; save it as CSV, or in parts")

    def _strings(self, part: str) -> Iterator[str]:
        """Texts that cells refer to; those that say how others are pronounced are left out."""
        pieces, spoken = list[str](), False
        for tag, attributes, text in self._elements(part):
            if tag == "rPh":
                spoken = attributes is not None
            elif tag == "t" and attributes is None and not spoken:
                pieces.append(text)
            elif tag == "si" and attributes is None:
                yield _unescaped("".join(pieces))
                pieces.clear()

    def _styles(self, part: str) -> Iterator[str]:
        """The formats of the styles of cells; what a number means elsewhere only is not known."""
        own, inside, styles, conditions = dict[int, str](), "", 0, 0
        for tag, attributes, _ in self._elements(part):
            if tag in ("cellXfs", "dxfs", "numFmts"):
                inside = "" if attributes is None else tag
            elif tag == "dxf" and attributes is None:
                conditions += 1
            elif tag == "numFmt" and attributes and inside == "dxfs":
                self.conditional.add(str(conditions))
            elif tag == "numFmt" and attributes:
                own[int(attributes["numFmtId"])] = attributes["formatCode"]
            elif tag == "xf" and attributes is not None and inside == "cellXfs":
                number, styles = int(attributes.get("numFmtId", 0)), styles + 1
                code = own.get(number, BUILT_IN.get(number, UNKNOWN))
                if styles > MOST_STYLES:
                    raise ValueError(f"it has more than {MOST_STYLES:,} styles")
                yield code if len(code) <= LONGEST_FORMAT else UNKNOWN

    def _fill(self, sheet: Worksheet, part: str) -> None:
        row, column, hidden, sized, height, width, zeros = 0, 0, False, 0, 1.0, 1.0, True
        cells, formats, cell, texts = list[Any](), dict[int, str](), dict[str, str](), dict[str, list[str]]()
        area, under = "", set[int]()  # of a condition; ends of the columns in which one changes the format
        seen = set[int]()  # columns that are described, and not hidden
        for tag, attributes, text in self._elements(part):
            if tag == "c" and attributes is not None:
                place, before = _PLACE.fullmatch(attributes.get("r", "")), column
                if "r" in attributes and (place is None or int(place[2]) != row):
                    raise ValueError(f"a cell in row {row} says that it is {attributes['r'][:20]!r}")
                column = _next(None if place is None else _index(place[1]), before, LAST_COLUMN)
                self._count(column - before)
                cells += [""] * (column - before)
                cell, texts = attributes, {}
            elif tag == "c":
                kind, code = cell.get("t", "n"), self.formats[_whole(cell.get("s", "0"))]
                held = {name: "".join(pieces) for name, pieces in texts.items()}
                if "f" in held and not held.get("v") and kind != "str":
                    raise InputError(
                        f"row {row}: the formula {'=' + held['f'][:60]!r} has no value in the file; open it in a "
                        "spreadsheet program and save it again, or write the value"
                    )
                cells[-1] = value = self._value(kind, code, held, f"{letters(column - 1)}{row}")
                if kind == "n" and value == 0 and not zeros:
                    formats[column - 1] = NO_ZEROS
                elif kind in ("n", "d") and code != GENERAL and value != "":
                    formats[column - 1] = code.partition(";")[0] if isinstance(value, str) else code
                elif code.count(";") > 2 and value != "":  # it has one for texts
                    formats[column - 1] = code
            elif attributes is None and tag in ("v", "f", "t"):
                texts.setdefault(tag, []).append(text)
            elif tag == "row" and attributes is not None:
                self._count(1 if row and not cells else 0)  # an empty row before it is as much work as a cell
                row, column = _next(_whole(attributes["r"]) if "r" in attributes else None, row, LAST_ROW), 0
                cells, formats, hidden = [], {}, _is_hidden(attributes, "ht", height)
            elif tag == "row":
                while cells and cells[-1] == "":
                    cells.pop()
                if cells:
                    sheet.lines.append(Line(row, cells, formats, hidden))
            elif tag == "sheetView" and attributes:
                zeros = zeros and attributes.get("showZeros") not in ("0", "false")
            elif tag == "sheetFormatPr" and attributes:
                height = float(attributes.get("defaultRowHeight", 1)) * (attributes.get("zeroHeight") not in TRUE)
                width = float(attributes.get("defaultColWidth", 1))
            elif tag == "col" and attributes and (is_hidden := _is_hidden(attributes, "width", width)) | (not width):
                some = range(_whole(attributes["min"]) - 1, min(_whole(attributes["max"]), LAST_COLUMN))
                sized += len(some)
                if sized > LAST_COLUMN:
                    raise ValueError("a column is described more than once")
                (sheet.hidden if is_hidden else seen).update(some)
            elif tag == "conditionalFormatting" and attributes:
                area = attributes.get("sqref", "")
            elif attributes and (tag == "numFmt" or attributes.get("dxfId") in self.conditional):
                ends = [_index(name) for name in _COLUMN.findall("" if tag == "numFmt" else area)] or [1, LAST_COLUMN]
                under |= {min(ends) - 1, max(ends)}
            elif tag == "mergeCell" and attributes and sheet.lines:
                raise InputError(
                    f"cells {attributes['ref'][:20]} are merged: only the first one has what all of them show; "
                    "separate them, and fill in each"
                )
        sheet.hidden |= set(range(0 if width else LAST_COLUMN)) - seen
        for line in sheet.lines if under else ():
            for i in range(min(under), min(max(under), len(line.cells))):
                if isinstance(line.cells[i], int | float) and not isinstance(line.cells[i], bool):
                    line.formats[i] = CONDITIONAL

    def _value(self, kind: str, code: str, texts: Mapping[str, str], at: str) -> Any:
        """The value of a cell; with a format for dates, as the text of a date."""
        if kind == "inlineStr":
            return _unescaped(texts.get("t", "")).strip()
        text = texts.get("v", "").strip()
        if kind == "s":
            return self.texts[_whole(text)].strip()
        if kind == "b":
            return text == "1"
        if kind == "e" and text != "#N/A":
            raise InputError(f"cell {at} holds the error {text[:40]}; correct it, or leave the cell empty")
        if kind != "n" or not text:
            return _unescaped(text).strip()
        if not _NUMBER.fullmatch(text) or abs(number := float(text)) > 1e308:
            raise InputError(f"cell {at}: the workbook is damaged, {text[:40]!r} is no number")
        if not _is_date(code):
            return int(number) if text.lstrip("+-").isdecimal() and abs(number) < LARGEST_EXACT else number
        try:
            if "[" in code.replace("[$", ""):  # a duration
                return str(timedelta(days=number))
            # The first calendar has a 29 February 1900; days before it are counted without it.
            early = self.start.year == 1899 and 1 <= number < 60
            moment = self.start + timedelta(milliseconds=round(86_400_000 * (number + early)))
        except OverflowError:
            raise InputError(f"cell {at}: {number:g} is no date, and the format {code!r} shows dates") from None
        at_midnight = not (moment.hour or moment.minute or moment.second)
        return str(moment.time() if number < 1 else moment.date() if at_midnight else moment)


def letters(column: int) -> str:
    """The name of a column, counted from 0.

    >>> letters(0), letters(25), letters(26), letters(16_383)
    ('A', 'Z', 'AA', 'XFD')
    """
    name = ""
    while column >= 0:
        name, column = chr(ord("A") + column % 26) + name, column // 26 - 1
    return name


def _index(name: str) -> int:
    """The number of a column, counted from 1."""
    number = 0
    for letter in name:
        number = 26 * number + ord(letter) - ord("A") + 1
    return number


def _whole(text: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise ValueError(f"expected a whole number, got {text[:20]!r}")
    return int(text)


def _next(number: int | None, before: int, last: int) -> int:
    """The number of a row or column, which comes after the one before it."""
    number = before + 1 if number is None else number
    if not before < number <= last:
        raise ValueError(f"row or column {number} is not in its place")
    return number


def _is_hidden(attributes: Mapping[str, str], size: str, default: float) -> bool:
    return attributes.get("hidden") in TRUE or float(attributes.get(size, default)) == 0


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda m: chr(int(m[1], 16)), text) if "_x" in text else text


# Formats


@lru_cache(1000)
def _sections(code: str) -> list[str]:
    """The sections of a format, for positive numbers, negative ones and zero; \0 where it shows more than a number."""

    def literal(match: re.Match[str]) -> str:
        bracket = match[4]
        if bracket is not None and not match[3]:  # a colour, a condition or a duration
            return "" if bracket.isalpha() and len(bracket) > 2 else "\0"
        text = match[1] or match[2] or (bracket or "").partition("-")[0]
        return "\0" if re.search(r"[^\s€$£¥()\-]", text) else text

    return _LITERAL.sub(literal, code).split(";")


@lru_cache(1000)
def _is_date(code: str) -> bool:
    plain = _LITERAL.sub("", code).replace(GENERAL, "")
    return _DATE.search(plain) is not None or re.search(r"\[(h+|m+|s+)\]", code, re.IGNORECASE) is not None


def shown(value: float | str, code: str) -> tuple[str, bool]:
    """What a cell shows, and whether a number as its own, but for rounding.

    >>> shown(0.85, "0%"), shown(1500, "0.0,"), shown(7, "000"), shown(8.66, "0.0"), shown(-3, "0;0")
    (('85%', False), ('1.5', False), ('007', True), ('8.7', True), ('3', False))
    """
    if isinstance(value, bool):
        return str(value).upper(), True
    if isinstance(value, str):
        return _shown_text(value, code)
    if abs(value) >= LARGEST_EXACT:
        return f"{value:.6g}", False
    sections = _sections(code)
    which = 1 if value < 0 and len(sections) > 1 else 2 if value == 0 and len(sections) > 2 else 0
    section = sections[which]
    if _POWER.fullmatch(section):
        return f"{value:g}", True
    before, general, behind = section.replace("@", GENERAL).partition(GENERAL)
    parts, scale, percent = None if general else _DIGITS.fullmatch(section), "", ""
    if "\0" in section or not (general or parts):
        return _unknown(section, code)
    if parts is None:
        digits = f"{abs(value):.0f}" if value == int(value) else f"{abs(value):.10g}"
    else:
        before, whole, point, scale, percent, behind = parts.groups("")
        exact = abs(Decimal(repr(value))).scaleb(2 * len(percent) - 3 * len(scale))
        left, dot, right = f"{exact:.{max(0, len(point) - 1)}f}".partition(".")
        digits = (f"{int(left):,}" if "," in whole else left).zfill(whole.count("0")) + dot + right
    around = re.sub(r"\s", "", before + behind).strip("€$£¥")
    signs = ("-", "()") if which == 1 else ("",)
    sign = "-" if value < 0 and which == 0 else ""
    return f"{before}{sign}{digits}{percent}{behind}".strip(), around in signs and not (scale or percent)


def _unknown(section: str, code: str) -> tuple[str, bool]:
    return (f"something else, in the format {code}" if section.strip() else "nothing"), False


def _shown_text(value: str, code: str) -> tuple[str, bool]:
    """A text, or a date in its format, in English; a time or a duration as it is."""
    if len(sections := _sections(code)) > 3:
        return (value, True) if sections[3].strip() in ("@", GENERAL) else _unknown(sections[3], code)
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return value, True
    return _DATE.sub(lambda m: moment.strftime(_AS_PYTHON.get(m[0].lower(), f"%{m[0][0].lower()}")), code).strip(), True
