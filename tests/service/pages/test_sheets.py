"""Uploaded and pasted sheets of every kind: one reader for all of them."""

from __future__ import annotations

import re

import httpx
import pytest

from drimed.trial.tables import sheet
from tests.service.pages.visiting import Visitor, readable

TELL = "/trials/small/tell"


@pytest.fixture(autouse=True)
def _asked(http: httpx.Client) -> None:
    http.post("/v1/trials/small/ask", json={}).raise_for_status()


def outcomes(http: httpx.Client) -> list[object]:
    return [http.get(f"/v1/trials/small/decisions/{n}").raise_for_status().json()["outcome"] for n in (1, 2)]


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("h.csv", b"sep=;\r\nDecision;YIELD;Notes\r\n1;8,7;wet\r\n\r\n2;9,25;\r\n"),
        ("h.txt", "decision\tyield\n1\t8.7\n2\t9.25\n".encode("utf-16")),
        ("h.csv", "decision,yield,comment\n1,8.7,Käfer\n2,9.25,\n".encode("cp1252")),
        ("h.xlsx", sheet([{"decision": 1, "yield": 8.7}, {"decision": 2, "yield": 9.25}], ".xlsx")),
    ],
)
def test_every_kind_of_sheet_is_taken(visitor: Visitor, http: httpx.Client, name: str, data: bytes) -> None:
    assert "2 outcomes recorded" in visitor.done(visitor.send(TELL, {"how": "sheet"}, file=(name, data)))
    assert outcomes(http) == [{"yield": 8.7}, {"yield": 9.25}]


def test_what_is_copied_from_a_spreadsheet_is_taken(visitor: Visitor, http: httpx.Client) -> None:
    text = 'decision\tyield\tnotes\r\n1\t8,7\t12" pipe\r\n2\t9,25\t\r\n'
    visitor.done(visitor.send(TELL, {"how": "sheet", "text": text}))
    assert outcomes(http) == [{"yield": 8.7}, {"yield": 9.25}]


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("h.csv", b'decision,yield\n1,"8.7\n2,9.25\n', "row 2: the cells cannot be told apart"),
        ("h.xlsx", b"PK\x03\x04rest", "damaged"),
        ("h.csv", b"decision,user\n1,north\n", "no outcomes"),
    ],
)
def test_what_leaves_a_doubt_is_refused_and_nothing_is_recorded(
    visitor: Visitor, http: httpx.Client, name: str, data: bytes, said: str
) -> None:
    answer = visitor.send(TELL, {"how": "sheet"}, file=(name, data))
    assert answer.status_code == httpx.codes.UNPROCESSABLE_ENTITY
    assert said in readable(answer.text)
    assert outcomes(http) == [None, None]


def test_a_workbook_with_unlikely_values_is_shown_and_confirmed(visitor: Visitor, http: httpx.Client) -> None:
    data = sheet([{"decision": 1, "yield": 87}, {"decision": 2, "yield": 9.25}], ".xlsx")
    asked = visitor.send(TELL, {"how": "sheet"}, file=("h.xlsx", data))
    assert "yield 87 is outside 0 to 10" in readable(asked.text)
    mark = re.search(r'name="confirm" value="([^"]+)"', asked.text)
    assert mark is not None
    text = "decision,yield\n1,87\n2,9.25\n"
    assert text.strip() in asked.text
    visitor.done(visitor.send(TELL, {"how": "sheet", "text": text, "confirm": mark[1]}))
    assert outcomes(http) == [{"yield": 87.0}, {"yield": 9.25}]
