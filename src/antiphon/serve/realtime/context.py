"""What the pipeline is asked for an answer: the messages that it answers, as long as they fit."""

from __future__ import annotations

from antiphon.orchestrator.api import OmniRequest
from antiphon.pipeline.audio import MAX_CLIPS
from antiphon.serve.realtime.answer import Answer
from antiphon.serve.realtime.options import ENTRY, Abilities


def request_of(answer: Answer, abilities: Abilities) -> OmniRequest:
    """With what is known of the answer's context by now."""
    while sum(len(item.clips) for item in answer.context) > MAX_CLIPS and shorten(answer):
        pass
    options = answer.options
    messages = [item.message() for item in answer.context if item.text or item.clips]
    if options.instructions:
        messages.insert(0, {"role": "system", "content": options.instructions})
    return OmniRequest(
        entry=ENTRY,
        messages=messages,
        modalities=options.modalities(abilities),
        sampling=options.sampling(abilities),
        params=options.params(),
        request_id=answer.id,
    )


def shorten(answer: Answer) -> bool:
    """Leave out the oldest messages of an answer's context, if that is allowed and possible.

    A quarter of them at a time: what is left is the beginning of the next answers' contexts, and
    what a stage has computed of it can be used again.
    """
    old = [item for item in answer.context[:-1] if item.role != "system"]
    if not (answer.options.forgets and old):
        return False
    for item in old[: max(1, len(old) // 4)]:
        answer.context.remove(item)
        item.forgotten |= not answer.own_context
    return True
