"""Ask a running mtrun server with the official OpenAI client and show which law made the answer.

pip install openai
python examples/openai_chat.py "Why is the sky blue?"
python examples/openai_chat.py --url http://127.0.0.1:8383/v1 --max-tokens 80 "Name three rivers."
"""

from __future__ import annotations

import argparse
import sys

import openai


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("question", nargs="?", default="Tell me about the sea in three sentences.")
    parser.add_argument("--url", default="http://127.0.0.1:8383/v1", help="base URL of the server")
    parser.add_argument("--key", default="none", help="the server's API key, if it has one")
    parser.add_argument("--max-tokens", type=int, default=120)
    parser.add_argument("--seed", type=int, default=None, help="the same seed gives the same answer")
    return parser.parse_args()


def main() -> int:
    given = arguments()
    client = openai.OpenAI(base_url=given.url, api_key=given.key, timeout=300.0, max_retries=0)
    try:
        model = client.models.list().data[0].id
        stream = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": given.question}],
            max_tokens=given.max_tokens,
            seed=given.seed,
            stream=True,
            stream_options={"include_usage": True},
        )
        report(stream)
    except openai.APIConnectionError:
        print(f"No server answers at {given.url}: start one with `make run`, or pass --url.", file=sys.stderr)
        return 1
    except openai.APIError as error:
        print(f"The server refused: {error.message}", file=sys.stderr)
        return 1
    return 0


def report(stream: openai.Stream[openai.types.chat.ChatCompletionChunk]) -> None:
    """Print the text as it comes, then the law, the counts and the usage."""
    told: dict = {}
    usage = None
    for chunk in stream:
        for choice in chunk.choices:
            print(choice.delta.content or "", end="", flush=True)
        told = (chunk.model_extra or {}).get("mtrun", told)  # in the chunk that carries finish_reason
        usage = chunk.usage or usage
    print("\n")
    law = told["acceptance"]
    dials = {"rule": law["rule"]} if law["rule"] else {}
    dials |= law["parameters"]
    exact = "distribution-exact" if law["distribution_exact"] else "NOT distribution-exact"
    print("law:   ", law["law"], *(f"{name}={value}" for name, value in dials.items()), f"({exact})")
    print("engaged:" if law["engaged"] else "stood aside:", law["reason"])
    print("counts:", ", ".join(f"{name}={value}" for name, value in told["counts"].items()))
    print("rates: ", ", ".join(f"{name}={_figure(value)}" for name, value in told["rates"].items()))
    if usage is not None:
        speed = told["timings"]["tokens_per_second"]
        tokens = f"{usage.prompt_tokens} prompt + {usage.completion_tokens} completion tokens"
        print(f"usage:  {tokens}, {_figure(speed)} tok/s")


def _figure(value: float | list[float] | None) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(_figure, value)) + "]"
    return "n/a" if value is None else f"{value:.3f}"


if __name__ == "__main__":
    sys.exit(main())
