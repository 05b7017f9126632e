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
from drimed.records.event import Event, Head, Proof, read_body
from drimed.records.fault import Fault, Path
from drimed.records.finding import Alarm, Checks, Effect
from drimed.records.look import Claim, Limit, Look
from drimed.records.reading import Page, read
from drimed.records.status import Member, Status

__all__ = [
    "COMPLETE", "MISSING", "PARTIAL", "PENDING", "STATES", "Alarm", "Checks", "Claim", "Decision", "Effect", "Event",
    "Fault", "Head", "Interval", "Limit", "Look", "Member", "Opening", "Page", "Path", "Proof", "Receipt", "Report",
    "Status", "read", "read_body",
]  # fmt: skip
