"""In whatever order things happen, everything has exactly one outcome and nothing is left."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from router_machine import RouterMachine
from session_machine import SessionMachine

from routing import STREAMS


class StreamMachine(RouterMachine):
    """Streams in place of parts."""

    topology = STREAMS


class StreamSessionMachine(SessionMachine):
    """Streams in place of parts."""

    topology = STREAMS


SETTINGS = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


TestParts = RouterMachine.TestCase
TestParts.settings = SETTINGS
TestStreams = StreamMachine.TestCase
TestStreams.settings = SETTINGS
TestSessions = SessionMachine.TestCase
TestSessions.settings = SETTINGS
TestStreamSessions = StreamSessionMachine.TestCase
TestStreamSessions.settings = SETTINGS
