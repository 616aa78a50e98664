"""Names of units, which are requests at stages.

    3fa80c221.0      part 0 of a request; of a session: its unit at the stage where it enters
    3fa80c221t4.0    part 0 of segment 4 of a session, at a stage further on

The first part of a name is the router's own and hexadecimal: it has no "t".
"""

from __future__ import annotations


def unit_uid(root: str, part: int) -> str:
    """The name of one part of a request or segment."""
    return f"{root}.{part}"


def segment_root(session: str, segment: int) -> str:
    """What the names of a segment's units begin with."""
    return f"{session}t{segment}"


def root_of(uid: str) -> str:
    """The request, session or segment that a unit's name begins with."""
    return uid.rpartition(".")[0]


def session_of(root: str) -> str:
    """The session that a segment belongs to; of other roots what they are."""
    return root.partition("t")[0]


def segment_of(root: str) -> int:
    """The segment that the name of its units begins with; -1 for other roots."""
    number = root.rpartition("t")[2]
    return int(number) if "t" in root and number.isdecimal() else -1


def part_of(uid: str) -> int:
    """The part that a unit's name ends with; -1 if it names none."""
    part = uid.rpartition(".")[2]
    return int(part) if part.isdecimal() else -1
