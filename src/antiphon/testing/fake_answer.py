"""What a stage without an engine brings by itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from antiphon.testing.fake_stage import FakeStage


@dataclass(frozen=True, slots=True)
class Answer:
    """What an automatic stage does with a request whose input is there, to its end.

    It gives `token_ids` one by one, then `samples` of audio, then a black `picture` of this height
    and width, then on each edge as many payloads as `parts` says, and finishes; of a session, each
    segment.
    """

    token_ids: tuple[int, ...] = ()
    samples: tuple[float, ...] = ()  # -1 to 1
    picture: tuple[int, int] | None = None
    parts: int = 1  # payloads per outgoing edge; 0: an explicit empty end


def bring(stage: FakeStage, uid: str, answer: Answer) -> None:
    """Everything that the request `uid` of a stage brings."""
    submit = stage.live[uid]
    if submit.waits_for is not None and not stage.store.holds(uid):
        answer = Answer(parts=0)  # its input was empty
    for token in answer.token_ids:
        stage.tokens(uid, token)
    if answer.samples:
        stage.audio(uid, answer.samples, finish=None)
    if answer.picture is not None:
        stage.image(uid, np.zeros((*answer.picture, 3), np.uint8), finish=None)
    for edge in submit.edges:
        for index in range(max(1, answer.parts)):
            stage.ref(uid, edge, end=index >= answer.parts - 1, empty=answer.parts == 0)
    if uid in stage.sessions:
        stage.end_segment(uid)
    else:
        stage.finish(uid)
