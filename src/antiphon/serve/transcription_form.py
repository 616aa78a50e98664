"""The form that `/v1/audio/transcriptions` takes: OpenAI's fields, and a file."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field, ValidationError, model_validator
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request

from antiphon.pipeline.suggest import did_you_mean
from antiphon.serve.errors import ApiError, wrong
from antiphon.serve.strict import Body

_FILE = "file"
_MAX_FIELDS = 32
_MAX_FIELD_BYTES = 1 << 16  # of one, the file aside
_FORMATS = ("json", "text")
_WITHOUT_TIMES = ("srt", "vtt", "verbose_json", "diarized_json")
# Fields that are refused, with the values that ask for nothing.
_UNSUPPORTED = {
    "chunking_strategy": ("auto",),
    "include": (),
    "keywords": (),
    "known_speaker_names": (),
    "known_speaker_references": (),
    "languages": (),
    "timestamp_granularities": (),
}


class TranscriptionForm(Body):
    """All fields but the file; numbers and truth are words in a form."""

    model_config = ConfigDict(strict=False, extra="forbid", allow_inf_nan=False)

    model: Annotated[str, Field(max_length=256)]
    language: Annotated[str, Field(max_length=64)] | None = None
    prompt: str | None = None
    response_format: str = "json"
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    stream: bool = False

    @model_validator(mode="after")
    def _check(self) -> TranscriptionForm:
        """Raises ApiError."""
        given = self.response_format
        if given in _WITHOUT_TIMES:
            raise wrong(
                "response_format",
                f"{given} has times, which this server does not know: ask for json or text",
            )
        if given not in _FORMATS:
            raise wrong("response_format", f"is {given[:64]!r}{did_you_mean(given[:64], _FORMATS)}")
        return self


FORM_SCHEMA: dict[str, Any] = {
    "required": True,
    "content": {
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "required": [_FILE, "model"],
                "properties": {
                    _FILE: {"type": "string", "format": "binary", "description": "The sound."},
                    "model": {"type": "string"},
                    "language": {"type": "string"},
                    "prompt": {"type": "string"},
                    "response_format": {"type": "string", "enum": list(_FORMATS)},
                    "temperature": {"type": "number", "minimum": 0, "maximum": 1},
                    "stream": {"type": "boolean"},
                },
            }
        }
    },
}


async def read_form(request: Request) -> tuple[TranscriptionForm, bytes]:
    """The fields and the file. Raises ApiError for what is no such form."""
    form = await _form(request)
    try:
        file = await _file(form)
    finally:
        await form.close()
    fields: dict[str, str] = {}
    for key, value in form.multi_items():
        name = key.removesuffix("[]")  # how clients name a list's items
        if key == _FILE:
            continue
        if not isinstance(value, str):
            raise wrong(name[:64], "is a file; the sound alone is one, as the field file")
        if name in _UNSUPPORTED:
            _refuse(name, value)
        elif name in fields:
            raise wrong(name[:64], "is given twice; give it once")
        else:
            fields[name] = value
    try:
        return TranscriptionForm.model_validate(fields), file
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        raise wrong(name, f"is not right: {first['msg']}") from None


async def _form(request: Request) -> FormData:
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        raise ApiError(
            400, "the body is no form; send it as multipart/form-data", code="invalid_form"
        )
    try:
        return await request.form(
            max_files=1, max_fields=_MAX_FIELDS, max_part_size=_MAX_FIELD_BYTES
        )
    except ApiError:
        raise  # too large, too slow
    except HTTPException as error:
        raise ApiError(
            400, f"the form cannot be read: {error.detail}", code="invalid_form"
        ) from None
    except ValueError as error:  # a charset or a name that is none
        raise ApiError(400, f"the form cannot be read: {error}", code="invalid_form") from None


async def _file(form: FormData) -> bytes:
    file = form.get(_FILE)
    if file is None:
        raise wrong(_FILE, "is missing; send the sound as a file")
    if not isinstance(file, UploadFile):
        raise wrong(_FILE, "is text; send the sound as a file, with a file name")
    return await file.read()


def _refuse(name: str, value: str) -> None:
    """Raise ApiError unless the value asks for nothing."""
    if value not in _UNSUPPORTED[name]:
        raise wrong(name, "is not supported; leave it out", "unsupported_parameter")
