"""From the bytes of a file to its text: which encoding it has, and whether it is text at all."""

from __future__ import annotations

import codecs

from drimed.errors import InputError

# What files begin with that are often called .csv and are none.
_OTHERS = {
    b"%PDF": "a PDF",
    b"\xd0\xcf\x11\xe0": "in the format of old spreadsheet programs (.xls)",
    b"PK\x03\x04": "a ZIP archive",
    b"SQLite format 3\x00": "a SQLite database",
    b"PAR1": "a Parquet file",
    b"\x1f\x8b": "a compressed file",
    b"\x89PNG": "an image",
    b"\xff\xd8\xff": "an image",
}
_MARKS = {  # byte order marks
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF32_LE: "utf-32",  # before UTF-16, with which it begins
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_SHOWN = {"utf-8": "UTF-8", "utf-16": "UTF-16", "utf-32": "UTF-32"}
SAVE = "save it as text in UTF-8 (in spreadsheet programs: “CSV UTF-8”)"


def decode(data: bytes, name: str) -> tuple[str, str]:
    """The text of a file, and its encoding where it was assumed and not known: then it is Windows-1252."""
    _refuse_others(data, name)
    for mark, encoding in _MARKS.items():
        if data.startswith(mark):
            return _strict(data, encoding, name), ""
    if b"\x00" in data:
        raise InputError(f"{name} is not a text: it has bytes that are zero; {SAVE}")
    try:
        return data.decode("utf-8"), ""
    except UnicodeDecodeError as error:
        try:
            return _without_controls(data.decode("cp1252"), name), "Windows-1252"
        except UnicodeDecodeError:
            raise InputError(f"{name} is neither UTF-8 (see byte {error.start}) nor Windows-1252; {SAVE}") from None


def decode_utf(data: bytes, name: str) -> str:
    """The text of a file that a program reads: nothing is assumed about its encoding."""
    _refuse_others(data, name)
    for mark, encoding in _MARKS.items():
        if data.startswith(mark):
            return _strict(data, encoding, name)
    return _strict(data, "utf-8", name)


def _refuse_others(data: bytes, name: str) -> None:
    for start, what in _OTHERS.items():
        if data.startswith(start):
            raise InputError(f"{name} is {what} and not a text; {SAVE}")


def _strict(data: bytes, encoding: str, name: str) -> str:
    try:
        return data.decode(encoding).removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{name} is not {_SHOWN[encoding]}: byte {error.start} cannot be read; save it as UTF-8"
        ) from None


def _without_controls(text: str, name: str) -> str:
    """A text in an assumed encoding; control characters say that it is none."""
    if any(c < " " and c not in "\t\r\n" for c in text):
        raise InputError(f"{name} is not a text: it has control characters; {SAVE}")
    return text
