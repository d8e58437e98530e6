"""What column addition and subtraction share: digits by place, and the words around the working."""

from __future__ import annotations

import random

PLACES = ("ones", "tens", "hundreds", "thousands")
LEVELS = ((1, 1), (2, 1), (2, 2), (3, 2), (3, 3))  # digits of the two operands
OPENINGS = (
    "Let us go column by column.",
    "Start from the right.",
    "Work from right to left.",
    "We line up the digits.",
    "Take it digit by digit.",
    "Column by column, then.",
    "Begin with the ones.",
    "Here are the steps.",
)
CLOSINGS = (
    "The answer is {n}.",
    "So the answer is {n}.",
    "The result is {n}.",
    "That makes {n}.",
    "Altogether we get {n}.",
    "This gives {n}.",
    "Therefore it is {n}.",
    "In the end: {n}.",
)
LEADS = ("", "", "", "Please ", "Now ", "Quick: ", "Hi, ", "Next: ")


def number(rng: random.Random, digits: int) -> int:
    """A number of exactly so many digits; 0 counts as one digit."""
    return rng.randrange(0 if digits == 1 else 10 ** (digits - 1), 10**digits)


def operands(rng: random.Random, level: int) -> tuple[int, int]:
    """Two numbers of the level's digits, in either order."""
    first, second = (number(rng, digits) for digits in LEVELS[level])
    return (first, second) if rng.random() < 0.5 else (second, first)


def digits(value: int, width: int) -> list[int]:
    """Digits from the ones on, zeros up to `width`."""
    return [value // 10**place % 10 for place in range(width)]


def padded(first: int, second: int) -> tuple[str, str]:
    """Both numbers with leading zeros to one width."""
    width = max(len(str(first)), len(str(second)))
    return str(first).zfill(width), str(second).zfill(width)


def asked(rng: random.Random, forms: tuple[str, ...], first: int, second: int) -> str:
    """A question from `forms`, which hold {a} and {b}, with or without a word before it."""
    lead = rng.choice(LEADS)
    text = rng.choice(forms).format(a=first, b=second)
    return lead + (text[0].lower() + text[1:] if lead else text)
