"""A tiny pack without a head, chats for it and features of them."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mtrun.runtime.forge import corpus
from mtrun.runtime.forge.extract import FeatureConfig, Plan, claim, extract, origin
from mtrun.runtime.forge.opened import Opened, open_pack
from mtrun.runtime.forge.recipe import TrainConfig
from mtrun.runtime.forge.train import Trainer
from support.tiny_pack import write_tiny_pack

VOCAB = 64


@dataclass(frozen=True)
class Bench:
    """Everything a forge test starts from."""

    pack: Path
    data: Path
    features: Path
    held: Path
    opened: Opened

    def trainer(self, config: TrainConfig, draft_vocab: int = VOCAB) -> Trainer:
        """A trainer that drafts over the first `draft_vocab` ids."""
        embedding, vocabulary = self.opened.tables(np.arange(draft_vocab, dtype=np.int32))
        return Trainer(config, self.opened.new_head(config.seed), embedding, vocabulary)


def write_chats(path: Path, count: int, seed: int) -> Path:
    """`count` chats of 4 to 20 random tokens, answered from the third token on."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(4, 20, count).astype(np.int32)
    response = np.concatenate([np.arange(length) >= 2 for length in lengths])
    ids = rng.integers(0, VOCAB, lengths.sum()).astype(np.uint16)
    np.savez(path, ids=ids, lengths=lengths, response=np.packbits(response))
    return path


def make_features(opened: Opened, data: Path, out: Path, **options: object) -> Path:
    """Shards of `data` in `out`; options as of FeatureConfig."""
    config = FeatureConfig(**{"top": 24, "shard": 16, **options})  # type: ignore[arg-type]
    chats = corpus.read(data, opened.pack.vocab_size, opened.pack.context_length)
    claim(out, origin(config, {"name": opened.pack.name, "trunk_identity": opened.trunk_identity}, data))
    for _ in extract(opened.trunk(), chats, Plan.of(chats, config, out)):
        pass
    return out


def make_bench(root: Path) -> Bench:
    """A pack of one layer, 40 chats to train on and 16 held out, with features of both."""
    pack = write_tiny_pack(root / "pack", vocab=VOCAB, hidden=32, layers=1, head=False, context=64)
    opened = open_pack(str(pack))
    data, held = write_chats(root / "chats.npz", 40, 1), write_chats(root / "held.npz", 16, 2)
    features = make_features(opened, data, root / "features")
    return Bench(pack, data, features, make_features(opened, held, root / "held"), opened)
