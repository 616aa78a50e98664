"""`antiphon chat [TEXT]`: ask once, or hold a conversation."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from antiphon.cli.arguments import (
    Formatter,
    add_pipeline_options,
    add_raw,
    add_voice,
    spoken_params,
    whole_number,
)
from antiphon.cli.outputs import PICTURE, SOUND, Outputs, choose_outputs
from antiphon.errors import CallerError, EmptyInputError, InputTooLongError, InvalidRequestError

if TYPE_CHECKING:
    from antiphon import AsyncOmni
    from antiphon.cli.lines import LineReader
    from antiphon.cli.pipe import PipeWriter
    from antiphon.cli.setup import Setup
    from antiphon.orchestrator.api import OmniRequest
    from antiphon.pipeline.audio import AudioClip

ENTRY = "chat"

_EXAMPLES = """examples:
  antiphon chat "Why is the sky blue?"
  antiphon chat "Name three rivers." --text-only
  antiphon chat "Why is the sky blue?" --raw | aplay -r 24000 -f S16_LE
  antiphon chat --out talk.wav                 a conversation: talk.wav, talk-2.wav, …
  antiphon chat --pipeline split "Name three rivers."
  antiphon chat --pipeline imagine "Describe the ocean." --n 3 --out sea.png
                                               sea.png, sea-2.png, sea-3.png
  antiphon chat --audio question.wav           what is asked there, answered in text and speech
  antiphon chat --pipeline qwen3-omni --model FOLDER "What is said here?" --audio speech.wav
  antiphon chat --deployment mine.yaml --print-config
"""


def add_parser(commands: Any) -> None:
    """Add the command to argparse's sub-commands."""
    parser = commands.add_parser(
        "chat",
        help="ask in text and audio, and get an answer in text, speech and pictures",
        description="Ask, and get an answer in all that the pipeline gives: text, speech, pictures."
        "\nWithout TEXT and --audio: a conversation, line by line from the terminal or standard"
        " input.",
        epilog=_EXAMPLES,
        formatter_class=Formatter,
    )
    parser.add_argument("text", nargs="?", metavar="TEXT", help="the question")
    parser.add_argument(
        "--audio",
        type=Path,
        action="append",
        metavar="FILE",
        help="WAV file that is heard before TEXT, or in place of it; may be given several times"
        " (for pipelines that take audio)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="file for the speech (.wav) or the pictures (.png); the speech of further turns and"
        " further pictures get numbers: NAME-2, NAME-3, … (default, as far as the pipeline gives"
        f" them: {SOUND}, none with --raw, and {PICTURE})",
    )
    add_raw(parser)
    add_voice(parser)
    parser.add_argument(
        "--text-only", action="store_true", help="only text: no speech and no pictures"
    )
    parser.add_argument(
        "--max-tokens",
        type=whole_number,
        metavar="N",
        help="longest answer in tokens (default: the pipeline's)",
    )
    parser.add_argument(
        "--n",
        type=whole_number,
        default=1,
        metavar="N",
        help="pictures for each question, at most 16; for pipelines that can make several",
    )
    add_pipeline_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Everything that needs no engine is checked first."""
    from antiphon.cli.setup import check_installation, check_raw_output, check_text, prepare

    if options.text is not None:
        check_text(options.text)
    if options.text_only and options.out is not None:
        raise InvalidRequestError("--out needs speech or pictures; leave out --text-only or --out")
    if options.text_only and options.raw:
        raise InvalidRequestError("--raw needs speech; leave out --text-only or --raw")
    setup = prepare(options)
    if options.print_config:
        sys.stdout.write(setup.config())
        return 0

    from antiphon.cli import signals
    from antiphon.cli.answer import numbered
    from antiphon.cli.pipe import PipeWriter
    from antiphon.orchestrator.files import check_output_path
    from antiphon.pipeline.audio import as_clips

    outputs = choose_outputs(
        setup.topology, ENTRY, out=options.out, text_only=options.text_only, raw=options.raw
    )
    if options.raw:
        check_raw_output(setup.topology)
    sound = PipeWriter(sys.stdout.fileno()) if options.raw else None
    clips = as_clips(options.audio or ())
    chat = Chat(options, setup, outputs, sound, clips)
    chat.request("anything" if chat.question is None else chat.question).check(setup.topology)
    if outputs.sound is not None:
        check_output_path(outputs.sound)
    if outputs.picture is not None:
        for index in range(options.n):
            check_output_path(numbered(outputs.picture, index))
    check_installation()
    signals.run(chat.run)
    return 0


@dataclass(slots=True)
class Chat:
    """One question, or a conversation with its history."""

    options: argparse.Namespace
    setup: Setup
    outputs: Outputs
    sound: PipeWriter | None
    clips: list[AudioClip] = field(default_factory=list)  # heard before the one question
    history: list[dict[str, str]] = field(default_factory=list)
    turn: int = 0
    pictures: int = 0  # so far

    @property
    def question(self) -> str | None:
        """What is asked once, an empty text if it is in the audio; None: a conversation is held."""
        text: str | None = self.options.text
        return "" if text is None and self.clips else text

    @property
    def modalities(self) -> tuple[str, ...]:
        """What is asked for: with clips also what was heard, where the pipeline writes it down."""
        possible = self.setup.topology.outputs_from(ENTRY, heard=bool(self.clips))
        heard = tuple(modality for modality in possible if modality == "transcript")
        return (*heard, *self.outputs.modalities)

    @property
    def inputs(self) -> tuple[str, ...]:
        """What requests bring: what hears is started for sounds alone."""
        return ("audio",) if self.clips else ("text",)

    def request(self, text: str) -> OmniRequest:
        from antiphon.orchestrator.api import OmniRequest

        sampling: dict[str, dict[str, object]] = {}
        if self.options.max_tokens is not None:
            sampling[self.writer()] = {"max_tokens": self.options.max_tokens}
        return OmniRequest(
            entry=ENTRY,
            text=text,
            audio=self.clips,
            messages=list(self.history),
            modalities=self.modalities,
            n=self.options.n,
            sampling=sampling,
            params=spoken_params(self.options),
        )

    def writer(self) -> str:
        from antiphon.pipeline.topology import writer

        topology = self.setup.topology
        return writer(topology.path_from(ENTRY, self.modalities, heard=bool(self.clips))).name

    async def run(self) -> None:
        from antiphon.cli.lines import LineReader

        lines: LineReader | None = None
        first = question = self.question
        if first is None:
            lines = LineReader(sys.stdin.fileno())
            if not sys.stdin.isatty() and (first := await lines.line()) is None:
                raise EmptyInputError("standard input is empty; give something to answer")
        from antiphon import AsyncOmni
        from antiphon.cli.progress import StageProgress

        progress = StageProgress(self.options.progress, verbose=self.options.verbose)
        omni = AsyncOmni(
            self.setup.topology,
            deployment=self.setup.deployment,
            entries=(ENTRY,),
            modalities=self.modalities,
            inputs=self.inputs,
            on_progress=progress,
        )
        try:
            with progress:
                await omni.prepare()
                if question is not None:
                    await omni.check(self.request(question))
                await omni.start()
            if lines is not None:
                await self.converse(omni, lines, first)
            elif question is not None:
                await self.ask(omni, question)
        finally:
            await omni.close()

    async def ask(self, omni: AsyncOmni, text: str) -> None:
        from antiphon.cli.answer import answer, numbered

        sound, picture = self.outputs.sound, self.outputs.picture
        file = None if sound is None else numbered(sound, self.turn)
        reply = await answer(
            omni,
            self.request(text),
            file,
            self.sound,
            picture=picture,
            pictures_before=self.pictures,
        )
        if "text" in self.outputs.modalities:  # else there is no answer to go on from
            self.history.append({"role": "user", "content": text})
            self.history.append({"role": "assistant", "content": reply.text})
        self.turn += 1
        self.pictures += len(reply.images)

    async def converse(self, omni: AsyncOmni, lines: LineReader, text: str | None) -> None:
        """Answer line after line; a question that cannot be answered ends only a script."""
        terminal = sys.stdin.isatty()
        while True:
            if text is None:
                if terminal:
                    shown = sys.stdout if self.sound is None else sys.stderr
                    print("> ", end="", file=shown, flush=True)
                text = await lines.line()
                if text is None:
                    return
            try:
                await self.ask(omni, text)
            except CallerError as error:
                if not terminal:
                    raise
                print(f"antiphon: error: {error}", file=sys.stderr)
                if isinstance(error, InputTooLongError):
                    self.history.clear()  # grown over the model's length: start afresh
            text = None
