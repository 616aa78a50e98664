"""In whatever order things happen, everything has exactly one outcome and nothing is left."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from router_machine import RouterMachine
from session_machine import SessionMachine

from kv_pipelines import VOICES
from routing import STREAMS


class StreamMachine(RouterMachine):
    """Streams in place of parts."""

    topology = STREAMS


class CompanionMachine(RouterMachine):
    """Each sentence is spoken several times, by requests that share what is to be spoken."""

    topology = VOICES
    outputs = st.integers(1, 3)


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
TestCompanions = CompanionMachine.TestCase
TestCompanions.settings = SETTINGS
TestSessions = SessionMachine.TestCase
TestSessions.settings = SETTINGS
TestStreamSessions = StreamSessionMachine.TestCase
TestStreamSessions.settings = SETTINGS
