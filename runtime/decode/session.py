"""One request's decoding state, and the cycle that moves it: primary -> draft -> verify -> judge -> commit -> repair.

Invariants after every step: the trunk's caches hold all committed tokens but the last (the primary of the next cycle);
the head has been told every verified pair (hidden of a position, token that followed).
"""

from __future__ import annotations

from typing import Any

from mtrun.kernels.arrays import evaluate
from mtrun.kernels.rows import RowFilter, RowsFilter, filter_rows
from mtrun.runtime.acceptance.counts import Counts
from mtrun.runtime.acceptance.law import AcceptanceLaw
from mtrun.runtime.decode import rollback
from mtrun.runtime.decode.draft import Drafted, Drafter, Pairs
from mtrun.runtime.decode.keys import Keys, Use
from mtrun.runtime.decode.penalties import Adjuster
from mtrun.runtime.decode.verify import Outcome, Verify, VerifyCycle, uniforms
from mtrun.runtime.packs.contract import Caches, Trunk, TrunkOut


def no_draft(xp: Any) -> Drafted:
    """What a plain step judges, as an array of module `xp`: built where it is used, since MLX arrays have a thread."""
    return Drafted(xp.array([], dtype=xp.int32), None)


class Session:
    """Decoding state of one request, in arrays of the trunk's own module. Lives and dies on the inference thread."""

    def __init__(
        self,
        *,
        trunk: Trunk,
        caches: Caches,
        drafter: Drafter | None,
        verify: Verify,
        law: AcceptanceLaw,
        how: RowFilter,
        draft_how: RowFilter,
        adjust: Adjuster,
        keys: Keys,
        target_rows: RowsFilter = filter_rows,
    ) -> None:
        self.trunk, self.caches, self.drafter = trunk, caches, drafter
        self.xp = trunk.xp
        self.verify, self.law, self.how, self.draft_how = verify, law, how, draft_how
        self.adjust, self.keys, self.target_rows = adjust, keys, target_rows
        self.counts = Counts()
        self.reforwards: dict[str, int] = {}  # reason -> cycles whose kept rows had to be read again
        self.length = 0  # tokens in the trunk's caches
        self.primary = -1  # the last committed token, not yet in the caches
        self.cycle = 0
        self.drafted = 0  # drafts of the last step
        self.drafted_by: str | None = None  # the source of those drafts
        self.last_logits: Any = None  # [k + 1, V] adjusted rows of the tokens just emitted

    def prefill(self, tokens: list[int], following: int | None) -> None:
        """Reads a chunk of the prompt; `following` is the prompt token after it, None for the last chunk."""
        last = following is None
        out = self.trunk.forward(self._ids([tokens]), self.caches, "last" if last else "none")
        self.length += len(tokens)
        if not last:
            self._observe(out.hidden, [*tokens[1:], following])
            if self.drafter is not None:
                self.drafter.catch_up()
            evaluate(out.hidden)
            return
        assert out.logits is not None
        rows = self.adjust(out.logits, None)
        first = self._judge(no_draft(self.xp), rows).token
        self._observe(out.hidden, [*tokens[1:], first])
        self._commit([first], rows)

    def step(self, depth: int) -> list[int]:
        """One cycle with `depth` drafts (0 = plain decoding); returns the committed tokens, 1 to depth + 1 of them."""
        drafted = self._draft(depth)
        self.drafted = drafted.tokens.shape[0]
        self.drafted_by = drafted.source if self.drafted else None
        fed = self.xp.concatenate([self._ids([self.primary]), drafted.tokens])[None]  # [1, D + 1]
        before = rollback.mark(self.caches)
        out = self.trunk.forward(fed, self.caches, "all")
        assert out.logits is not None
        rows = self.adjust(out.logits, self._preceding(drafted.tokens))
        outcome = self._judge(drafted, rows)
        self.counts.verify_calls += 1
        copied = self.drafted_by == "copied"
        self.counts.record(self.drafted, outcome.kept, outcome.deferred, outcome.divergence, copied)
        out = self._roll_back(before, fed, out, outcome.kept + 1)
        tokens = [*outcome.drafts[: outcome.kept], outcome.token]
        self._observe(out.hidden[:, : len(tokens)], tokens)
        self._commit(tokens, rows)
        self.length += len(tokens)
        return tokens

    @property
    def source(self) -> str | None:
        """Where drafts of the next cycle would come from; None = nothing can be drafted."""
        return None if self.drafter is None else self.drafter.source

    def _draft(self, depth: int) -> Drafted:
        if depth == 0 or self.drafter is None:
            return no_draft(self.xp)
        coins = self._uniforms(Use.DRAFT, depth)
        return self.drafter.draft(depth, self.draft_how, self.adjust, coins)

    def _judge(self, drafted: Drafted, rows: Any) -> Outcome:
        """Draws this cycle's uniforms, used or not, so that two laws under one seed stay paired."""
        depth = drafted.tokens.shape[0]
        cycle = VerifyCycle(
            logits=rows,
            drafts=drafted.tokens,
            draft_rows=drafted.rows,
            how=self.how,
            law=self.law,
            coins=self._uniforms(Use.COIN, depth),
            residual_uniform=self._uniforms(Use.RESIDUAL, 1),
            bonus_uniform=self._uniforms(Use.BONUS, 1),
            target_rows=self.target_rows,
        )
        self.cycle += 1
        return self.verify(cycle)

    def _uniforms(self, use: Use, count: int) -> Any:
        """[count] uniforms of this cycle in the accumulation dtype."""
        return uniforms(self.keys.uniforms(use, self.cycle, count), self.xp)

    def _ids(self, tokens: list[Any]) -> Any:
        """Token ids as an int32 array of the shape of the nested list."""
        return self.xp.array(tokens, dtype=self.xp.int32)

    def _preceding(self, drafts: Any) -> Any:
        """[D + 1, D] int32: row i sees drafts 0..i-1, the rest is -1. None where no row needs it."""
        xp, depth = self.xp, drafts.shape[0]
        if depth == 0 or not self.adjust.counting:
            return None
        visible = xp.arange(depth + 1)[:, None] > xp.arange(depth)[None]
        return xp.where(visible, drafts[None], -1)

    def _roll_back(self, before: rollback.Mark, fed: Any, out: TrunkOut, keep: int) -> TrunkOut:
        plan = rollback.plan(self.caches, before, fed.shape[1], keep)
        rollback.apply(self.caches, before, plan)
        if not plan.reforward:
            return out
        assert plan.reason is not None
        self.reforwards[plan.reason] = self.reforwards.get(plan.reason, 0) + 1
        return self.trunk.forward(fed[:, :keep], self.caches, "none")

    def _observe(self, hidden: Any, tokens: list[int]) -> None:
        if self.drafter is not None:
            self.drafter.observe(Pairs(hidden, tokens))

    def _commit(self, tokens: list[int], rows: Any) -> None:
        self.adjust.commit(tokens)
        self.primary = tokens[-1]
        self.last_logits = rows[: len(tokens)]
