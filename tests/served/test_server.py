"""The served path: the real command, a real port, the official client."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import openai
import pytest

from mtrun.lanes.catalogue import LANE_NAMES
from mtrun.runtime.packs.tokenizer import PackTokenizer
from support.served_process import Process

HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def turbo(serve: Callable[..., Process]) -> Process:
    return serve("profile=turbo")


@pytest.fixture(scope="module")
def cascade(serve: Callable[..., Process]) -> Process:
    return serve("profile=cascade-tokenv3", "cascade.alpha=0.9")


def client(process: Process) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{process.url}/v1", api_key="none", max_retries=0)


def model(process: Process) -> str:
    return client(process).models.list().data[0].id


def states(audit: dict) -> dict[str, str]:
    return {lane["lane"]: lane["state"] for lane in audit["lanes"]}


def test_the_verdict_table_is_printed_before_the_port_opens(turbo: Process) -> None:
    text = "\n".join(turbo.output)
    assert text.index("lane ") < text.index(f"\n{len(LANE_NAMES)} lanes:") < text.index("mtrun serves")
    for lane in LANE_NAMES:
        assert f"\n{lane} " in text


def test_armed_lanes_become_engaged_by_traffic_and_health_tells_the_same_story(serve: Callable[..., Process]) -> None:
    process = serve("profile=turbo")
    before = states(process.get("/verdicts"))
    process.chat(max_tokens=16, seed=1)
    process.chat(max_tokens=16)  # a seed keeps the configured depth, so only this one engages `cost_depth`
    audit = process.get("/verdicts")
    after = states(audit)
    armed = {lane for lane, state in before.items() if state == "armed"}
    assert {"frspec", "draft_prescatter", "block_verify", "batched_target_rows"} <= armed
    engaged = {lane for lane, state in after.items() if state == "engaged"}
    served_for = {lane["lane"] for lane in audit["lanes"] if lane["served_by"] in engaged}
    assert engaged | served_for == armed
    assert not engaged & served_for
    assert states(process.get("/health")["lanes"]) == after


def test_the_official_client_streams_what_it_gets_whole(cascade: Process) -> None:
    asked = {"model": model(cascade), "messages": HELLO, "max_tokens": 24, "seed": 7}
    whole = client(cascade).chat.completions.create(**asked)
    stream = client(cascade).chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage


def test_every_reply_names_its_law_and_carries_its_counts(cascade: Process) -> None:
    reply = cascade.chat(max_tokens=24, seed=3)
    law, counts = reply.json()["mtrun"]["acceptance"], reply.json()["mtrun"]["counts"]
    assert (law["law"], law["rule"], law["parameters"]) == ("cascade", "tokenv3", {"alpha": 0.9})
    assert law["distribution_exact"] is False
    assert law["engaged"] is True
    assert counts["accepted"] + counts["resamples"] == counts["positions"] > 0
    assert "law=cascade" in reply.headers["x-mtrun-acceptance"]
    greedy = cascade.chat(max_tokens=8, temperature=0).json()["mtrun"]["acceptance"]
    assert greedy["engaged"] is False
    assert greedy["distribution_exact"] is True


def test_greedy_requests_are_the_same_on_every_profile_and_equal_plain_decoding(
    turbo: Process, cascade: Process, serve: Callable[..., Process]
) -> None:
    stock = serve("profile=exact-stock", "draft.depth=0")
    prompts = ["hello", "the cat", "one two three", "def add", "system", "?"]
    for prompt in prompts:
        texts = {process.chat(prompt, max_tokens=60, temperature=0).json()["choices"][0]["message"]["content"]
                 for process in (turbo, cascade, stock)}  # fmt: skip
        assert len(texts) == 1


def test_seeds_repeat_and_unseeded_replies_differ(turbo: Process) -> None:
    def text(**fields: object) -> str:
        return turbo.chat(max_tokens=30, temperature=1, **fields).json()["choices"][0]["message"]["content"]

    assert text(seed=1) == text(seed=1) != text(seed=2)
    assert len({text() for _ in range(5)}) == 5


def test_a_biased_token_never_appears_at_any_verified_position(turbo: Process, tiny: Path) -> None:
    tokenizer = PackTokenizer(tiny)
    names = [tokenizer.decode([token], skip_special_tokens=False) for token in range(tokenizer.vocab_size)]
    asked = {"prompt": [40, 41, 42], "max_tokens": 40, "temperature": 0, "logprobs": 0, "ignore_eos": True}

    def tokens(**fields: object) -> list[str]:
        reply = turbo.post("/v1/completions", {**asked, **fields}).json()
        return reply["choices"][0]["logprobs"]["tokens"]

    common = max((name for name in tokens() if names.count(name) == 1), key=tokens().count)
    assert common not in tokens(logit_bias={str(names.index(common)): -100})
    assert set(tokens(logit_bias={str(names.index(common)): 100})) == {common}


def test_counter_identities_hold_over_two_hundred_served_requests(cascade: Process) -> None:
    for seed in range(200):
        counts = cascade.chat(max_tokens=8, seed=seed).json()["mtrun"]["counts"]
        assert counts["accepted"] + counts["resamples"] == counts["positions"]
        assert counts["resamples"] <= counts["deferred"] <= counts["positions"]
        assert counts["deferred"] == counts["coin_accepted"] + counts["resamples"]
        assert counts["resamples"] + counts["bonus"] == counts["cycles"]
        assert counts["emitted"] == counts["accepted"] + counts["cycles"]
    totals = cascade.get("/health")["counts"]
    assert totals["accepted"] + totals["resamples"] == totals["positions"]


def test_one_verdict_line_a_request_and_never_its_content(cascade: Process) -> None:
    cascade.chat("a very secret word", max_tokens=5)
    assert "[cascade-accept] NOT distribution-exact rule=tokenv3 alpha=0.9" in cascade.log[-1]
    assert "kept_draft_rate=" in cascade.log[-1]
    assert "secret" not in "".join(cascade.log)


def test_a_refusal_reaches_the_official_client_as_its_own_exception(turbo: Process) -> None:
    with pytest.raises(openai.NotFoundError):
        client(turbo).chat.completions.create(model="../../etc", messages=HELLO)
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client(turbo).chat.completions.create(model=model(turbo), messages=HELLO, temperature=9)
