"""Random names from all of Unicode, and texts that have made trouble elsewhere."""

from __future__ import annotations

import random
import sys

TROUBLE = [
    "north ", "ｎorth", "Mu\u0308ller", "nor\u200bth", "\u202enorth", "a\x1b[31mb", "\x9b2J",
    "[bold]x[/]", "[/x]", "x[a]", "=1+1", "+1", "-1", "@SUM(1)", "＝1+1", "'=1", '"', "a,b",
    "a;b", "a\tb", "a\nb", "a\x00b", "NA", "-", "N/A", "1,234", "\ud800", "\ufeffx",
    "decision", "Notes", "x" * 101, "", " ", "\u3164", "☀\ufe0f", "👩\u200d🌾", "ǅ", "ß", "İ", "ﬁ",
    "½", "m²", "µ", "Ω", "\u0301x", "<script>", "&amp;", "{{ x }}", "%s", "$(x)", "\\",
    "\\u202e", "CON", "..", "nan", "inf", "1e5", "TRUE", "2024-05-01", "\u2066x\u2069",
    "e\u0301", "\u1100\u1161\u11a8", "שלום", "日本", "\U000e0041",
]  # fmt: skip
_RANGES = [(0x20, 0x7F), (0xA0, 0x250), (0x300, 0x370), (0x2000, 0x2070), (0xFE00, 0xFF00), (0xFF00, 0x10000)]


def names(rng: random.Random, n: int) -> list[str]:
    """Names that a person or a program could hand in."""
    found = [rng.choice(TROUBLE) for _ in range(n // 4)]
    while len(found) < n:
        found.append("".join(_character(rng) for _ in range(rng.randint(1, 8))))
    return found


def _character(rng: random.Random) -> str:
    low, high = rng.choice([*_RANGES, (0, sys.maxunicode + 1)])
    return chr(rng.randrange(low, high))
