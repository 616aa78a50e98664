"""`antiphon chat [TEXT]`: ask once, or hold a conversation."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from antiphon.cli.arguments import Formatter, add_pipeline_options, add_raw, whole_number
from antiphon.errors import CallerError, EmptyInputError, InputTooLongError, InvalidRequestError

if TYPE_CHECKING:
    from antiphon import AsyncOmni
    from antiphon.cli.lines import LineReader
    from antiphon.cli.pipe import PipeWriter
    from antiphon.cli.setup import Setup
    from antiphon.orchestrator.api import OmniRequest

ENTRY = "chat"
DEFAULT_OUT = Path("reply.wav")

_EXAMPLES = """examples:
  antiphon chat "Why is the sky blue?"
  antiphon chat "Name three rivers." --text-only
  antiphon chat "Why is the sky blue?" --raw | aplay -r 24000 -f S16_LE
  antiphon chat --out talk.wav                 a conversation: talk.wav, talk-2.wav, …
  antiphon chat --deployment mine.yaml --print-config
"""


def add_parser(commands: Any) -> None:
    """Add the command to argparse's sub-commands."""
    parser = commands.add_parser(
        "chat",
        help="ask, and get an answer in text and speech",
        description="Ask, and get an answer in text and speech. \nWithout TEXT: a"
        " conversation, line by line from the terminal or standard input.",
        epilog=_EXAMPLES,
        formatter_class=Formatter,
    )
    parser.add_argument("text", nargs="?", metavar="TEXT", help="the question")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help=f"WAV file for the speech (default: {DEFAULT_OUT}, none with --raw)",
    )
    add_raw(parser)
    parser.add_argument("--text-only", action="store_true", help="no speech")
    parser.add_argument(
        "--max-tokens",
        type=whole_number,
        metavar="N",
        help="longest answer in tokens (default: the pipeline's)",
    )
    add_pipeline_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Everything that needs no engine is checked first."""
    from antiphon.cli.setup import check_installation, check_raw_output, check_text, prepare

    if options.text is not None:
        check_text(options.text)
    if options.text_only and options.out is not None:
        raise InvalidRequestError("--out needs speech; leave out --text-only or --out")
    if options.text_only and options.raw:
        raise InvalidRequestError("--raw needs speech; leave out --text-only or --raw")
    setup = prepare(options)
    if options.print_config:
        sys.stdout.write(setup.config())
        return 0

    from antiphon.cli import signals
    from antiphon.cli.pipe import PipeWriter
    from antiphon.orchestrator.wav import check_output_path

    if options.raw:
        check_raw_output(setup.topology)
    default = None if options.text_only or options.raw else DEFAULT_OUT
    out = options.out or default
    if out is not None:
        check_output_path(out)
    sound = PipeWriter(sys.stdout.fileno()) if options.raw else None
    chat = _Chat(options, setup, out, sound)
    chat.request(options.text or "anything").check(setup.topology)
    check_installation()
    signals.run(chat.run)
    return 0


@dataclass(slots=True)
class _Chat:
    """One question, or a conversation with its history."""

    options: argparse.Namespace
    setup: Setup
    out: Path | None
    sound: PipeWriter | None
    history: list[dict[str, str]] = field(default_factory=list)
    turn: int = 0

    @property
    def modalities(self) -> tuple[str, ...]:
        return ("text",) if self.options.text_only else ("text", "audio")

    def request(self, text: str) -> OmniRequest:
        from antiphon.orchestrator.api import OmniRequest

        sampling: dict[str, dict[str, object]] = {}
        if self.options.max_tokens is not None:
            stage = self.setup.topology.entry(ENTRY).stage
            sampling[stage] = {"max_tokens": self.options.max_tokens}
        return OmniRequest(
            entry=ENTRY,
            text=text,
            messages=list(self.history),
            modalities=self.modalities,
            sampling=sampling,
        )

    async def run(self) -> None:
        from antiphon.cli.lines import LineReader

        lines: LineReader | None = None
        first: str | None = self.options.text
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
            on_progress=progress,
        )
        try:
            with progress:
                await omni.prepare()
                if self.options.text is not None:
                    await omni.check(self.request(self.options.text))
                await omni.start()
            if lines is not None:
                await self.converse(omni, lines, first)
            else:
                await self.ask(omni, self.options.text)
        finally:
            await omni.close()

    async def ask(self, omni: AsyncOmni, text: str) -> None:
        from antiphon.cli.answer import answer, numbered

        file = None if self.out is None else numbered(self.out, self.turn)
        reply = await answer(omni, self.request(text), file, self.sound)
        self.history.append({"role": "user", "content": text})
        self.history.append({"role": "assistant", "content": reply.text})
        self.turn += 1

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
