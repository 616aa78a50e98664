"""A conversation over `/v1/realtime`: what each event of the caller does to it. No input or output.

Events for the caller go to `emit`. What has to be done about the pipeline is returned as commands;
whoever does it says how it went: `on_text`, `on_sound` and `finish` of the answer, `heard` and
`not_heard` of a sound.
"""

from __future__ import annotations

from antiphon.errors import AntiphonError
from antiphon.serve.errors import RETRY_AFTER_S, ApiError, api_error
from antiphon.serve.realtime.answer import Answer, Emit, Outcome, Phase, failure
from antiphon.serve.realtime.client_events import (
    BufferAppend,
    BufferClear,
    BufferCommit,
    ClientEvent,
    ItemCreate,
    ItemDelete,
    ItemRetrieve,
    ItemTruncate,
    MessageGiven,
    OutputBufferClear,
    ReferenceGiven,
    ResponseCancel,
    ResponseCreate,
    ResponseGiven,
    SessionUpdate,
    head_of,
    parse,
)
from antiphon.serve.realtime.commands import Begin, Cancel, Command, Forget, Listen
from antiphon.serve.realtime.history import History, Item, Part
from antiphon.serve.realtime.items import check_hears, item_of
from antiphon.serve.realtime.options import Abilities, Options, overridden, updated
from antiphon.serve.realtime.server_events import (
    BufferCleared,
    BufferCommitted,
    Duration,
    Error,
    ErrorBody,
    ItemAdded,
    ItemDeleted,
    ItemDone,
    ItemRetrieved,
    ItemTruncated,
    SessionBody,
    SessionCreated,
    SessionUpdated,
    TranscriptionCompleted,
    TranscriptionFailed,
)
from antiphon.serve.realtime.settings import RealtimeSettings
from antiphon.serve.realtime.sound import InputBuffer, from_base64
from antiphon.serve.service import new_id


class Conversation:
    """One caller's. Not thread-safe. `max_audio_s` bounds the input buffer, in seconds."""

    def __init__(
        self, abilities: Abilities, settings: RealtimeSettings, max_audio_s: float, emit: Emit
    ) -> None:
        self.abilities = abilities
        self.answer: Answer | None = None  # that is under way
        self.closing = False  # no further answers are begun
        self._id, self._session_id = new_id("conv"), new_id("sess")
        self._options = Options(output=abilities.outputs[0])
        self._buffer = InputBuffer(max_audio_s)
        self._history = History(settings.max_items, settings.max_bytes)
        self._largest_item = settings.max_unsent_bytes // 2
        self._emit = emit

    def open(self) -> None:
        """The first event."""
        self._emit(SessionCreated(session=self._session()))

    def receive(self, message: str) -> list[Command]:
        """An event of the caller's; one that cannot be served is answered with an `error` event."""
        event_id = None
        try:
            head = head_of(message)
            event_id = head.event_id
            return self._handle(parse(head, message))
        except ApiError as error:
            self.refuse(error, event_id)
        except AntiphonError as error:
            self.refuse(api_error(error), event_id)
        return []

    def refuse(self, error: ApiError, event_id: str | None = None) -> None:
        """Tell the caller what is wrong; the conversation goes on."""
        body = ErrorBody(
            type=error.type,
            code=error.code,
            message=error.detail,
            param=error.param,
            event_id=event_id,
        )
        self._emit(Error(error=body))

    # --- what the pipeline does ---------------------------------------------------------------

    def finished(self, answer: Answer, outcome: Outcome) -> None:
        """The pipeline is done with an answer. Harmless if it has been finished."""
        answer.finish(outcome)
        if self.answer is answer:
            self.answer = None

    def heard(self, listen: Listen, text: str) -> None:
        """What is said in a sound."""
        listen.part.text = text.strip()
        if self.abilities.reads_transcripts:
            listen.part.heard, listen.part.clip = True, None  # nobody needs the sound any more
        if listen.announced and self._history.find(listen.item.id) is listen.item:
            self._emit(
                TranscriptionCompleted(
                    item_id=listen.item.id,
                    content_index=listen.item.parts.index(listen.part),
                    transcript=listen.part.text,
                    usage=Duration(listen.clip.seconds),
                )
            )

    def not_heard(self, listen: Listen, error: AntiphonError) -> None:
        """A sound could not be written down; an answer to it has to hear it itself."""
        if listen.announced and self._history.find(listen.item.id) is listen.item:
            self._emit(
                TranscriptionFailed(
                    item_id=listen.item.id,
                    content_index=listen.item.parts.index(listen.part),
                    error=failure(api_error(error)),
                )
            )

    # --- the caller's events ------------------------------------------------------------------

    def _handle(self, event: ClientEvent) -> list[Command]:
        match event:
            case SessionUpdate():
                self._options = updated(self._options, event.session, self.abilities)
                self._emit(SessionUpdated(session=self._session()))
            case BufferAppend():
                check_hears(self.abilities, "audio")
                self._buffer.append(from_base64(event.audio, "audio"))
            case BufferClear():
                self._buffer.clear()
                self._emit(BufferCleared())
            case BufferCommit():
                return self._commit()
            case ItemCreate():
                return self._create_item(event)
            case ItemRetrieve():
                self._retrieve(self._history.get(event.item_id))
            case ItemDelete():
                return self._delete(self._settled(event.item_id))
            case ItemTruncate():
                self._truncate(event)
            case ResponseCreate():
                return self._create_response(event.response or ResponseGiven())
            case ResponseCancel():
                return self._cancel(event)
            case OutputBufferClear():
                pass
        return []

    def _session(self) -> SessionBody:
        return self._options.session_body(self._session_id, self.abilities)

    def _commit(self) -> list[Command]:
        self._history.check_room(self._buffer.size)
        part = Part("input_audio", clip=self._buffer.commit())
        item = Item(new_id("item"), "user", [part])
        previous = self._history.insert(self._history.place(None), item)
        self._emit(BufferCommitted(previous_item_id=previous, item_id=item.id))
        return self._announce(item, previous)

    def _create_item(self, event: ItemCreate) -> list[Command]:
        if event.item.id is not None and self._history.find(event.item.id) is not None:
            raise ApiError(
                400,
                f"there is an item {event.item.id!r} already; choose another id",
                code="item_already_exists",
                param="item.id",
            )
        item = item_of(event.item, self.abilities, "item")
        self._history.check_room(item.size)
        index = self._history.place(event.previous_item_id)
        return self._announce(item, self._history.insert(index, item))

    def _announce(self, item: Item, previous: str | None) -> list[Command]:
        """A message of the caller's is in the conversation, whole; its sounds are listened to."""
        self._emit(ItemAdded(previous_item_id=previous, item=item.body()))
        self._emit(ItemDone(previous_item_id=previous, item=item.body()))
        wanted = self._options.transcription
        if not (wanted or self.abilities.reads_transcripts):
            return []
        return [Listen(item, p, p.clip, wanted) for p in item.parts if p.clip is not None]

    def _settled(self, id: str) -> Item:
        """An item that does not change any more. Raises ApiError."""
        item = self._history.get(id)
        if item.status == "in_progress":
            raise ApiError(
                400,
                f"the item {id} is being made; send response.cancel first",
                code="item_in_progress",
                param="item_id",
            )
        return item

    def _retrieve(self, item: Item) -> None:
        if item.size > self._largest_item:
            raise ApiError(
                400,
                f"the item has {item.size} bytes, which is more than is sent at once",
                code="item_too_large",
                param="item_id",
            )
        self._emit(ItemRetrieved(item=item.body(whole=True)))

    def _delete(self, item: Item) -> list[Command]:
        self._history.remove(item)
        self._emit(ItemDeleted(item_id=item.id))
        return [Forget(item)]

    def _truncate(self, event: ItemTruncate) -> None:
        item = self._settled(event.item_id)
        item.truncate(event.content_index, event.audio_end_ms)
        self._emit(ItemTruncated(item_id=item.id, content_index=0, audio_end_ms=event.audio_end_ms))

    # --- answers ------------------------------------------------------------------------------

    def _create_response(self, given: ResponseGiven) -> list[Command]:
        if self.answer is not None:
            raise ApiError(
                400,
                f"the conversation has the active response {self.answer.id}; wait for its"
                " response.done, or send response.cancel",
                code="conversation_already_has_active_response",
            )
        if self.closing:
            raise ApiError(
                503,
                "the server is stopping; connect again later",
                code="server_draining",
                retry_after_s=RETRY_AFTER_S,
            )
        kept = given.conversation != "none"
        if kept:
            self._history.check_room()
        options = overridden(self._options, given, self.abilities)
        answer = self.answer = Answer(
            id=new_id("resp"),
            item=Item(new_id("item"), "assistant", status="in_progress"),
            options=options,
            context=self._context(given),
            conversation=self._id if kept else None,
            emit=self._emit,
            added=self._answer_added if kept else _ignore,
            done=self._answer_done if kept else _ignore,
            own_context=given.input is not None,
            metadata=given.metadata,
        )
        answer.create()
        return [Begin(answer)]

    def _context(self, given: ResponseGiven) -> list[Item]:
        if given.input is None:
            return self._history.context()
        context = []
        for index, one in enumerate(given.input):
            match one:
                case ReferenceGiven():
                    context.append(self._settled(one.id))
                case MessageGiven():
                    context.append(item_of(one, self.abilities, f"response.input[{index}]"))
        return context

    def _answer_added(self, item: Item) -> None:
        previous = self._history.insert(self._history.place(None), item)
        self._emit(ItemAdded(previous_item_id=previous, item=item.body()))

    def _answer_done(self, item: Item) -> None:
        self._emit(ItemDone(previous_item_id=self._history.before(item), item=item.body()))

    def _cancel(self, event: ResponseCancel) -> list[Command]:
        answer = self.answer
        if answer is None or answer.phase is Phase.CANCELLING:
            raise ApiError(400, "there is no response to cancel", code="response_cancel_not_active")
        if event.response_id not in (None, answer.id):
            raise ApiError(
                400,
                f"the active response is {answer.id}; {event.response_id!r} is not",
                code="response_cancel_not_active",
                param="response_id",
            )
        answer.cancel()
        return [Cancel(answer)]


def _ignore(item: Item) -> None:
    """An answer outside the conversation leaves nothing in it."""
