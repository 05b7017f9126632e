"""What passes between the rooms: plain data without dependencies.

Trial, service, pages, sheets, exports and client all speak in these records.
"""

from drimed.records.decision import (
    COMPLETE,
    MISSING,
    PARTIAL,
    PENDING,
    STATES,
    Decision,
    Interval,
    Opening,
    Receipt,
    Report,
)
from drimed.records.event import Event, Head, Proof
from drimed.records.fault import Fault, Path
from drimed.records.finding import ENOUGH_SEASONS, Alarm, Checks, Effect, unconfirmed
from drimed.records.look import Claim, Limit, Look
from drimed.records.reading import Page, read
from drimed.records.request import LONGEST_KEY, AmendRequest, AskRequest, Context, Plots, TellRequest
from drimed.records.status import Member, Status

__all__ = [
    "COMPLETE", "ENOUGH_SEASONS", "LONGEST_KEY", "MISSING", "PARTIAL", "PENDING", "STATES", "Alarm",
    "AmendRequest", "AskRequest", "Checks", "Claim", "Context", "Decision", "Effect", "Event", "Fault",
    "Head", "Interval", "Limit", "Look", "Member", "Opening", "Page", "Path", "Plots", "Proof", "Receipt",
    "Report", "Status", "TellRequest", "read", "unconfirmed",
]  # fmt: skip
