"""Random workbooks, written part by part, with a plain model of what they show.

A cell is drawn by what a person sees in it. Where that is not what the cell holds (a percentage, thousands, a hidden
row, merged cells), a reader must ask or refuse. Then a workbook may be damaged: a part is cut, a number is none, a
reference leads nowhere. A damaged one must be refused, or read as it was meant.
"""

from __future__ import annotations

import io
import random
import zipfile
from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from xml.sax.saxutils import escape, quoteattr

from tests.trial.drawn_sheets import METRICS, USERS, Drawn, Values

SPACE = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
LINKS = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
NO_FORMAT = "General"
# Formats that show the number itself but for rounding, and formats that show another one or none.
FAITHFUL = (NO_FORMAT, "0", "0.00", "#,##0.0", "0.000", "[Red]0.00;-0.00", "0.0_ ;(0.0)", "0.00E+00", "@", "0.0 €")
STRANGE = (
    "0%",
    "0.00%",
    "0.0,",
    "#,##0,,",
    '0"%"',
    "0\\0",
    ";;;",
    "0;0",
    "[>0]0.0;0",
    '"<"0',
    "# ?/?",
    "yyyy-mm-dd",
    "h:mm",
)
Cell = str  # the XML of one


def workbook(
    cells: Sequence[Sequence[Cell]],
    formats: Sequence[str] = (),
    *,
    texts: Sequence[str] = (),
    rows: Mapping[int, str] | None = None,
    before: str = "",
    after: str = "",
    book: str = "",
) -> bytes:
    """A workbook of cells; `rows` has more attributes of some, counted from 1."""
    places = [[_placed(cell, i, j) for j, cell in enumerate(line) if cell] for i, line in enumerate(cells, 1)]
    lines = (f'<row r="{i}" {(rows or {}).get(i, "")}>{"".join(line)}</row>' for i, line in enumerate(places, 1))
    codes = "".join(f'<numFmt numFmtId="{200 + i}" formatCode={quoteattr(f)}/>' for i, f in enumerate(formats))
    styles = "".join(f'<xf numFmtId="{200 + i}"/>' for i in range(len(formats)))
    kinds = enumerate(("worksheet", "styles", "sharedStrings"), 1)
    styled = f'<numFmts>{codes}</numFmts><cellXfs><xf numFmtId="0"/>{styles}</cellXfs>'
    targets = {"worksheet": "worksheets/sheet1.xml", "styles": "styles.xml", "sharedStrings": "sharedStrings.xml"}
    links = "".join(f'<Relationship Id="r{i}" Type="{LINKS}/{k}" Target="{targets[k]}"/>' for i, k in kinds)
    parts = {
        "xl/workbook.xml": f'<workbook xmlns="{SPACE}" xmlns:r="{LINKS}">{book}<sheets><sheet name="one" sheetId="1" '
        'r:id="r1"/></sheets></workbook>',
        "xl/_rels/workbook.xml.rels": f"<Relationships>{links}</Relationships>",
        "xl/styles.xml": f"<styleSheet>{styled}</styleSheet>",
        "xl/sharedStrings.xml": f"<sst>{''.join(f'<si><t>{escape(text)}</t></si>' for text in texts)}</sst>",
        "xl/worksheets/sheet1.xml": f'<worksheet xmlns="{SPACE}">{before}<sheetData>{"".join(lines)}</sheetData>{after}'
        "</worksheet>",
    }
    return packed(parts)


def packed(parts: Mapping[str, str | bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in parts.items():
            archive.writestr(name, text)
    return out.getvalue()


def unpacked(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def number(value: float | str, style: int = 0) -> Cell:
    return f'<c s="{style}"><v>{value}</v></c>'


def inline(text: str) -> Cell:
    return f'<c t="inlineStr"><is><t>{escape(text)}</t></is></c>'


def shared(at: int) -> Cell:
    return f'<c t="s"><v>{at}</v></c>'


def formula(value: str) -> Cell:
    return f"<c><f>1+1</f>{f'<v>{value}</v>' if value else ''}</c>"


def _placed(cell: Cell, row: int, column: int) -> Cell:
    return cell.replace("<c", f'<c r="{chr(ord("A") + column)}{row}"', 1)


def drawn_workbook(rng: random.Random) -> Drawn:
    """A workbook of outcomes."""
    names, formats = ["decision", "user", *METRICS], [*FAITHFUL, *STRANGE]
    lines, meant, sound, odd = [[inline(name) for name in names]], Values(), True, False
    for decision in rng.sample(range(1, 5000), rng.randint(1, 5)):
        line = [number(decision), shared(decision % len(USERS))]
        for name in METRICS:
            value = round(rng.choice((1, 10, 1000)) * rng.random() * rng.choice((1, 1, -1)), rng.randint(0, 2))
            draw = rng.random()
            if draw < 0.1:
                line.append(rng.choice(("", inline("NA"), inline(""), '<c t="e"><v>#N/A</v></c>')))
                continue
            meant.setdefault(decision, {})[name] = value
            if draw < 0.2:
                line.append(inline(f"{value:.2f}"))
            elif draw < 0.3:
                line.append(formula(repr(value)))
            elif draw < 0.95:
                line.append(number(repr(value), 1 + rng.randrange(len(FAITHFUL))))
            else:
                style = rng.randrange(len(STRANGE))
                odd = odd or not (STRANGE[style] == "0;0" and value >= 0)
                line.append(number(repr(value), 1 + len(FAITHFUL) + style))
        lines.append(line)
    extras: dict[str, str] = {}
    rows: dict[int, str] = {}
    draw = rng.random()
    if draw < 0.05:
        rows, odd = {rng.randint(2, len(lines)): rng.choice(('hidden="1"', 'ht="0" customHeight="1"'))}, True
    elif draw < 0.1:
        first, hidden = rng.choice((1, 3, 4)), rng.choice(('hidden="1"', 'width="0"'))
        extras["before"], odd = f'<cols><col min="{first}" max="4" {hidden}/></cols>', True
    elif draw < 0.15:
        extras["after"], odd = '<mergeCells count="1"><mergeCell ref="C2:C3"/></mergeCells>', True
    elif draw < 0.2:
        lines[-1][2], odd = formula(""), True
    data = workbook(lines, formats, texts=USERS, rows=rows, **extras)
    if odd:
        return Drawn(data, {}, sound=False)
    if rng.random() < 0.2:
        data, sound = damaged(rng, data), False
    return Drawn(data, meant, sound)


def drawn_asked(rng: random.Random) -> Drawn:
    """A workbook of people who join, by what it shows of their names; the age is the outcome that is meant."""
    lines, meant, sound = [[inline(name) for name in ("user", "age", "sex")]], Values(), True
    formats = ["000", "d-mmm", "0.00", "#,##0", ";;;", "yyyy-mm-dd", "0", "0%"]
    for i in range(rng.randint(1, 4)):
        n, age = 100 * rng.randint(1, 9) + i, rng.randint(20, 90)
        day = date(2026, 1, 1) + timedelta(n)
        serial = 46023 + n  # of that day
        plain = [
            (str(n), number(n)),
            (str(n), number(n, 1)),
            (str(day), number(serial, 6)),
            (f"name {n}", inline(f" name {n} ")),
            (f"{n:03}", inline(f"{n:03}")),
        ]
        strange = [
            (f"{n // 100:03}", number(n // 100, 1)),
            (f"{day:%d-%b}", number(serial, 2)),
            (f"{n}.00", number(n, 3)),
            (f"{n * 1000:,}", number(n * 1000, 4)),
            ("", f'<c s="5" t="str"><v>name {n}</v></c>'),
            (str(10**15 + n), number(10**15 + n, 7)),
            ("", '<c t="e"><v>#REF!</v></c>'),
        ]
        is_strange = rng.random() < 0.15
        name, cell = rng.choice(strange if is_strange else plain)
        odd = rng.random() < 0.05
        lines.append([cell, number(age / 100, 8) if odd else number(age), inline("f")])
        sound = sound and not (is_strange or odd)
        meant[name] = {"age": float(age)}
    data = workbook(lines, formats)
    if sound and rng.random() < 0.2:
        data, sound = damaged(rng, data), False
    return Drawn(data, meant, sound)


def damaged(rng: random.Random, data: bytes) -> bytes:
    """A workbook with something wrong in one of its parts, or with an end that is missing."""
    if rng.random() < 0.2:
        return data[: rng.randrange(4, len(data))]
    parts = unpacked(data)
    name = rng.choice(list(parts))
    text = parts[name]
    wrong = rng.choice((
        text[: rng.randrange(len(text))],
        text.replace(b"<v>", b"<v>NaN", 1),
        text.replace(b' t="s"><v>', b' t="s"><v>9', 1),
        text.replace(b'r="C2"', b'r="ZZZZ2"'),
        text.replace(b'r="C2"', b'r="C9"'),
        text.replace(b'r="2"', b'r="1000000000000000000"'),
        text.replace(b's="', b's="99', 1),
        b"<!DOCTYPE x>" + text,
        text.replace(b"Target=", b"Goal="),
        b"\xff" + text,
        text.replace(b"numFmtId", b"number"),
    ))  # fmt: skip
    return packed(parts | {name: wrong})
