"""Numbers, times and counts as people read them."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Sequence
from datetime import datetime
from math import inf

RETIRED = " (retired)"  # behind the name of an arm
NOT_KNOWN = "not known yet"  # in place of a number or a range that rests on nothing
ENDLESS = 1e40  # no outcome and no sum of them is so large: nothing is known
NOTHING = 1e-40  # and none is so small: what is left of numbers that cancel, or a chance that is none


def short(value: float) -> str:
    """Three figures, no exponent, and a minus sign instead of a hyphen.

    >>> [short(v) for v in (0.49732, -26.21, 1777.8)]
    ['0.497', '−26.2', '1,778']
    >>> short(-1e50), short(-2.43e-50)
    ('−∞', '0')
    """
    value = 0.0 if abs(value) <= NOTHING else value
    if abs(value) >= ENDLESS:
        return "−∞" if value < 0 else "∞"
    return (f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}").replace("-", "−")


def known(value: float) -> str:
    """A number, or that it is not known.

    >>> known(-26.21), known(1e50)
    ('−26.2', 'not known yet')
    """
    return NOT_KNOWN if abs(value) >= ENDLESS else short(value)


def span(low: float | None, high: float | None) -> str:
    """A range; None: an end that is not known.

    >>> span(-26.21, 3.5), span(None, None)
    ('−26.2 to 3.5', 'not known yet')
    """
    low, high = -inf if low is None else low, inf if high is None else high
    return NOT_KNOWN if low <= -ENDLESS and high >= ENDLESS else f"{short(low)} to {short(high)}"


def number(value: float) -> str:
    """A number as it was given.

    >>> number(-22500.0), number(0.05)
    ('−22,500', '0.05')
    """
    return f"{value:,.12g}".replace("-", "−")


def amount(value: float, unit: str) -> str:
    """A number with its unit, if it has one.

    >>> amount(-26.21, "EUR/ha"), amount(1777.8, "")
    ('−26.2 EUR/ha', '1,778')
    """
    return f"{short(value)} {unit}" if unit else short(value)


def measured(name: str, unit: str) -> str:
    """The name of a metric, with its unit, if it has one.

    >>> measured("yield", "t/ha"), measured("score", "")
    ('yield (t/ha)', 'score')
    """
    return f"{name} ({unit})" if unit else name


def percent(share: float) -> str:
    """A share in per cent; a small one is not shown as 0 %, nor a large one as 100 %.

    >>> [percent(p) for p in (0.0, 1e-50, 0.001, 0.42, 0.999, 1.0)]
    ['0 %', '0 %', '< 1 %', '42 %', '> 99 %', '100 %']
    """
    return "< 1 %" if NOTHING < share < 0.005 else "> 99 %" if 0.995 <= share < 1 else f"{100 * share:.0f} %"


def moment(time: str) -> str:
    """A time without its fractions.

    >>> moment("2026-04-02T08:15:30.123456+00:00")
    '2026-04-02 08:15 UTC'
    """
    return datetime.fromisoformat(time).strftime("%Y-%m-%d %H:%M UTC")


def counted(n: int, what: str) -> str:
    """A number and its noun.

    >>> counted(1, "user"), counted(0, "user"), counted(1200, "decision")
    ('1 user', '0 users', '1,200 decisions')
    """
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def marked(arm: str, retired: Collection[str]) -> str:
    """An arm's name, and whether it is retired.

    >>> marked("late", ["late"]), marked("early", ["late"])
    ('late (retired)', 'early')
    """
    return f"{arm}{RETIRED}" if arm in retired else arm


def listed(names: Sequence[str], most: int = 5, last: str = " and ") -> str:
    """Some names, with `last` before the last one; of many, the first ones.

    >>> listed(["a", "b"]), listed(["a", "b", "c"], 2), listed(["a", "b"], last=", ")
    ('a and b', 'a, b and 1 more', 'a, b')
    """
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most:,} more"
    return last.join([*filter(None, [", ".join(names[:-1])]), *names[-1:]])


def visible(text: str) -> str:
    """A text for a terminal: characters that would do something there instead of being seen are written out.

    >>> visible("north\\x1b[31m\\u202e")
    'north\\\\x1b[31m\\\\u202e'
    """
    acting = ("Cc", "Cf", "Cs", "Zl", "Zp")  # categories of Unicode
    seen = (c if c == "\n" or unicodedata.category(c) not in acting else ascii(c)[1:-1] for c in text)
    return text if text.isprintable() else "".join(seen)
