"""One running voice pipeline, stages in processes of their own, for all end-to-end tests."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from antiphon import AsyncOmni
from judge import Judge


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def voice() -> AsyncIterator[AsyncOmni]:
    before = dict(os.environ)
    async with AsyncOmni("voice") as omni:
        assert dict(os.environ) == before  # the caller's environment is the caller's
        yield omni


@pytest.fixture(scope="session")
def judge() -> Judge:
    return Judge()
