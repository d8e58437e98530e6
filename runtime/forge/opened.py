"""A pack opened for forging: described, the BLAS of the process settled, then its trunk loaded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mtrun.lanes.contract import Decision
from mtrun.runtime.errors import PackError
from mtrun.runtime.packs import hub
from mtrun.runtime.packs.families import family_of
from mtrun.runtime.packs.reader import PackDescription, describe

if TYPE_CHECKING:
    import mlx.core as mx

    from mtrun.runtime.forge.train import Vocabulary
    from mtrun.runtime.packs.contract import Trunk
    from mtrun.runtime.packs.head import MtpHead

FAMILIES = ("llama",)  # families whose trunk the MTP head of `packs.head` fits


@dataclass(frozen=True)
class Opened:
    """A pack and where its trunk comes from."""

    pack: PackDescription
    trunk_identity: str
    source_sha256: str  # the file that the trunk was converted from; the trunk's own identity where nothing says
    source: str = ""  # what was written to name it
    threads: int = 1  # of products

    def trunk(self) -> Trunk:
        """The trunk alone as dense float32, on the calling thread. Raises PackError."""
        plain = replace(self.pack, head=Decision(False, "unused", "forging reads the trunk only."))
        return family_of(plain).load(plain).trunk

    @contextmanager
    def served_trunk(self) -> Iterator[Trunk]:
        """The trunk as it is served, with the lanes that the machine supports, on the calling thread. Raises PackError.

        States and rows are then those that the head will meet; native forwards are several times faster than MLX's.
        """
        from mtrun.runtime.config.compose import compose
        from mtrun.runtime.generator import MtpGenerator
        from mtrun.runtime.preparation import prepare

        words = [f"pack={self.source}", "profile=turbo", "draft.depth=0", f"engine.threads={self.threads}"]
        generator = MtpGenerator(prepare(compose(words)))
        try:
            generator.load()
            assert generator.decoder is not None
            yield generator.decoder.parts.trunk
        finally:
            generator.close(keep_streams=True)

    def new_head(self, seed: int) -> MtpHead:
        """A fresh head of the trunk's layer shape; equal seeds give equal weights."""
        import mlx.core as mx

        from mtrun.runtime.packs.llama import build_head

        mx.random.seed(seed)
        return build_head(self.pack.config)

    def own_head(self) -> tuple[dict[str, mx.array], Any]:
        """The pack's own head as dense weights by name, and its draft ids [V'] int32. Raises PackError."""
        import mlx.core as mx

        from mtrun.runtime.packs.llama import build_head, expected_shapes
        from mtrun.runtime.packs.reader import DRAFT_IDS
        from mtrun.runtime.packs.weights import load_head_weights

        weights = load_head_weights(self.pack, expected_shapes(build_head(self.pack.config)))
        ids = weights.pop(DRAFT_IDS, None)
        return weights, mx.arange(self.pack.vocab_size) if ids is None else mx.sort(ids)

    def own_head_sha256(self) -> str:
        """Of the pack's head file. Raises PackError where the pack carries no head that fits."""
        from mtrun.runtime.packs.identity import sha256_file
        from mtrun.runtime.packs.members import HEAD

        if not self.pack.head.ok:
            raise PackError(f"{self.pack.name} has no head to start from ({self.pack.head.reason}): drop --from-own.")
        return sha256_file(self.pack.folder / HEAD)

    def started_head(self) -> tuple[MtpHead, Any]:
        """A head with the pack's own weights, and its draft ids [V'] int32. Raises PackError."""
        from mlx.utils import tree_unflatten

        weights, ids = self.own_head()
        head = self.new_head(0)
        head.update(tree_unflatten(list(weights.items())))
        return head, ids

    def tables(self, ids: Any) -> tuple[mx.array, Vocabulary]:
        """The input embeddings [V, H] and the draft vocabulary of ids [V'] int32; the rest of the trunk is dropped."""
        import mlx.core as mx
        import numpy as np

        from mtrun.runtime.forge.train import Vocabulary

        trunk = self.trunk()
        ids = np.array(ids, dtype=np.int32)
        embedding = trunk.embed(mx.arange(trunk.vocab_size)[None])[0]
        rows = trunk.projection_rows(mx.array(ids))
        mx.eval(embedding, rows)
        return embedding, Vocabulary.of(ids, rows, trunk.vocab_size)


def open_pack(source: str) -> Opened:
    """A name of ours, a folder or a hub id, read without weights and without MLX. Raises PackError."""
    from mtrun.runtime.packs.identity import trunk_identity

    pack = describe(hub.resolve(source))
    if pack.family not in FAMILIES:
        raise PackError(
            f"{pack.name} is a {pack.family} model and forge trains heads for {', '.join(FAMILIES)} models."
        )
    if pack.manifest is None:
        identity = trunk_identity(pack.trunk.values())
        return Opened(pack, identity, identity, source)
    identity = pack.manifest.trunk_identity
    return Opened(pack, identity, pack.manifest.provenance.get("source_sha256", identity), source)


def arm_blas(opened: Opened, threads: int) -> Decision:
    """Installs and proves the lane `cpu_blas`, which has to come before MLX is imported. Says how that ended."""
    from mtrun.kernels.blas.forwarder import BindError
    from mtrun.lanes.cpu_blas import LANE
    from mtrun.runtime.arming import evidence
    from mtrun.runtime.preparation import pack_evidence

    known = evidence.gather(
        threads=threads, law="exact", depth=1, pack=pack_evidence(opened.pack, family_of(opened.pack))
    )
    possible = LANE.supports(known)
    if not possible.ok:
        return possible
    try:
        proof = LANE.prove(LANE.install(None, known), None, known)
    except BindError as error:
        return Decision(False, "not_bound", str(error))
    return Decision(proof.ok, "proved" if proof.ok else "not_proved", proof.reason)
