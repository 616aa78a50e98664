"""What is in deploy/ fits the program: linted, and every option is one that `serve` has."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

from antiphon.cli.main import build_parser
from source import ROOT

DOCKERFILE = ROOT / "deploy" / "docker" / "Dockerfile.cpu"
UNIT = ROOT / "deploy" / "systemd" / "antiphon.service"


def test_the_dockerfile_is_clean() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run(
        [hadolint, DOCKERFILE], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_the_dockerfile_copies_what_is_there() -> None:
    copies = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE.read_text(), re.MULTILINE)
    sources = [source for copy in copies for source in copy.split()]
    assert sources
    assert [source for source in sources if not (ROOT / source).exists()] == []


def test_the_container_starts_a_command_that_exists() -> None:
    text = DOCKERFILE.read_text()
    start = [
        word
        for line in re.findall(r"^(?:ENTRYPOINT|CMD) (\[.*\])$", text, re.MULTILINE)
        for word in json.loads(line)
    ]
    options = build_parser().parse_args(start[start.index("antiphon") + 1 :])
    assert (options.command, options.host, options.pipeline) == ("serve", "0.0.0.0", "voice")  # noqa: S104


def test_the_unit_starts_a_command_that_exists() -> None:
    sections = re.findall(r"^\[(\w+)\]$", UNIT.read_text(), re.MULTILINE)
    assert sections == ["Unit", "Service", "Install"]
    (command,) = re.findall(r"^ExecStart=(.+)$", UNIT.read_text(), re.MULTILINE)
    options = build_parser().parse_args(shlex.split(command)[1:])
    assert (options.command, options.host) == ("serve", "127.0.0.1")
