"""What happens at the edge `hear` of the `voice` pipeline, from hearing to the thinker.

Each window that was heard brings its transcript, the first one the conversation as well. The edge
joins: all of them come to one request of the thinker, whose prompt is made when the last is there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from antiphon.core.prompt_plan import PromptPlan
from antiphon.errors import AdapterError, EmptyInputError
from antiphon.models.chat import ChatFormat
from antiphon.models.voice.adapters import TEXT, payload_text, text_field
from antiphon.models.voice.dialogue import Conversation, thinker_prompt
from antiphon.models.voice.entries import CONVERSATION
from antiphon.payload.adapters import Input, OutputNeeds, StageContext, StepRows
from antiphon.payload.types import Payload, Scalar
from antiphon.pipeline.detokenize import Detokenizer, load_tokenizer


class HearOutput:
    """Hearing's end: the transcript of a window, empty if nothing was said."""

    needs = OutputNeeds(requires_token_updates=True)

    def __init__(self, context: StageContext) -> None:
        self._tokenizer = load_tokenizer(context.model)

    def open(self, uid: str, params: Mapping[str, Scalar]) -> Hearer:
        return Hearer(Detokenizer(self._tokenizer), params.get(CONVERSATION))


class Hearer:
    """One window. `conversation`: None but for the first."""

    def __init__(self, detokenizer: Detokenizer, conversation: Scalar | None) -> None:
        self._detokenizer = detokenizer
        self._conversation = conversation
        self._text = ""

    def on_tokens(self, token_ids: Sequence[int]) -> list[Payload]:
        self._text += self._detokenizer.feed(token_ids)
        return []

    def on_rows(self, rows: StepRows) -> list[Payload]:
        return []

    def on_end(self) -> list[Payload]:
        fields = {TEXT: text_field(self._text)}
        if self._conversation is not None:
            fields[CONVERSATION] = text_field(str(self._conversation))
        return [Payload(fields)]


class HearInput:
    """The thinker's end."""

    def __init__(self, context: StageContext) -> None:
        self._chat = ChatFormat(Path(context.model))

    def open(self, uid: str, params: Mapping[str, Scalar]) -> HeardConversation:
        return HeardConversation(self._chat)


class HeardConversation:
    """One request: what has been heard of its conversation so far."""

    def __init__(self, chat: ChatFormat) -> None:
        self._chat = chat
        self._conversation: Conversation | None = None
        self._transcripts: list[str] = []

    def on_payload(self, payload: Payload, *, last: bool) -> Input:
        """The thinker's prompt, with the last of the windows.

        Raises EmptyInputError if the last message says nothing, InputTooLongError as
        `thinker_prompt`.
        """
        if self._conversation is None:
            self._conversation = Conversation.from_json(payload_text(payload, CONVERSATION))
        self._transcripts.append(payload_text(payload))
        if not last:
            return Input()
        messages = self._conversation.with_transcripts(self._transcripts)
        if not messages[-1].content:
            raise EmptyInputError(
                "nothing was heard in the audio: speak English and nearer to the microphone, or"
                " give a text"
            )
        return Input(PromptPlan(tuple(thinker_prompt(self._chat, messages))))

    def on_end(self) -> Input:
        raise AdapterError("the last window has brought nothing, not even an empty transcript")
