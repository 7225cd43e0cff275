"""Ways to spoil an input: its bytes, its text, or the values that it was made from."""

import copy
from collections.abc import Callable
from random import Random
from typing import Any

NUMBERS = (0, 1, -1, 2, 7, 8, 255, 256, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32, 2**40, 2**40 + 1,
           2**53, 2**63 - 1, 2**63, 2**64 - 1, -(2**31), -(2**63))  # fmt: skip
STRINGS = ("", "0", "-1", "00", "1_0", " 1", "+1", "\u0661", "9" * 20, "9" * 5000, "a" * 300, "/",
           "..", "\0", "\ud800", "\N{SNOWMAN}", "[", "{}", "null", "NaN", "[" * 2000, "dense",
           "planes/1 []", "planes/2 x", "affine/1(bits=4,group=64)", "turbo-mse/1")  # fmt: skip
OTHERS: tuple[Any, ...] = (None, True, False, 0.5, 1e308, 10**30, 10**400, [], {}, [[]], {"": 0})


def spoil_bytes(rng: Random, data: bytes) -> bytes:
    """Return the input after a few changes that know nothing of its structure."""
    for _ in range(rng.choice((1, 1, 1, 2, 4, 8))):
        data = rng.choice(_BYTE_CHANGES)(rng, data)
    return data


def spoil_text(rng: Random, text: str) -> str:
    """Return a text after one change."""
    at, end = sorted((rng.randint(0, len(text)), rng.randint(0, len(text))))
    kind = rng.randrange(6)
    if kind == 0:
        return text[:at] + text[end:]
    if kind == 1:
        return text[:at] + rng.choice(STRINGS) + text[at:]
    if kind == 2:
        return text[:at] + str(rng.choice(NUMBERS)) + text[end:]
    if kind == 3:
        return text[:end] + text[at:end] * rng.choice((1, 2, 100)) + text[end:]
    if kind == 4:
        return text.upper()
    return text[:at] + chr(rng.choice((0, 10, 32, 45, 47, 95, 0x660, 0xD800, 0x1F600))) + text[end:]


def spoil_value(rng: Random, value: Any) -> Any:
    """Return plain values (maps, lists, scalars) with a few of them changed; the input stays."""
    holder = [copy.deepcopy(value)]
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        places = list(_places(holder))
        if places:
            _change(rng, *rng.choice(places), places)
    return holder[0] if holder else None


def any_value(rng: Random) -> Any:
    """Return a scalar or a small container that somebody may send."""
    kind = rng.randrange(4)
    if kind == 0:
        return rng.choice(NUMBERS) + rng.choice((0, 0, 1, -1))
    if kind == 1:
        return rng.choice(STRINGS)
    if kind == 2:
        return copy.deepcopy(rng.choice(OTHERS))
    return nested(rng.choice((2, 30, 100)), rng.choice((list, dict)))


def nested(depth: int, kind: type) -> Any:
    """Return lists or maps inside each other."""
    value: Any = kind()
    for _ in range(depth):
        value = [value] if kind is list else {"a": value}
    return value


def _places(value: Any) -> Any:
    """Yield every container with each of its keys."""
    keys = list(value) if isinstance(value, dict) else range(len(value))
    for key in keys:
        yield value, key
        if isinstance(value[key], dict | list):
            yield from _places(value[key])


def _change(rng: Random, container: Any, key: Any, places: list[Any]) -> None:
    if key not in container if isinstance(container, dict) else key >= len(container):
        return
    old = container[key]
    kind = rng.randrange(8)
    if kind == 0 and len(places) > 1:
        del container[key]
    elif kind == 1 and isinstance(container, dict):
        container[rng.choice(STRINGS)] = container.pop(key)
    elif kind == 2 and isinstance(container, list):
        container.insert(key, copy.deepcopy(old))
    elif kind == 3:
        other, where = rng.choice(places)
        if where in other if isinstance(other, dict) else where < len(other):
            container[key] = copy.deepcopy(other[where])
    elif kind == 4 and isinstance(old, str):
        container[key] = spoil_text(rng, old)
    elif kind == 5 and isinstance(old, int):
        container[key] = old + rng.choice((1, -1, 8, 2**32))
    elif kind == 6 and isinstance(old, str) and old.isdecimal():
        container[key] = str(rng.choice(NUMBERS))
    else:
        container[key] = any_value(rng)


def _flip(rng: Random, data: bytes) -> bytes:
    if not data:
        return data
    spoilt = bytearray(data)
    spoilt[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(spoilt)


def _set(rng: Random, data: bytes) -> bytes:
    if not data:
        return rng.randbytes(8)
    at = rng.randrange(len(data))
    return (
        data[:at] + bytes([rng.choice((0, 1, 0x20, 0x22, 0x5B, 0x7B, 0x7F, 0xFF))]) + data[at + 1 :]
    )


def _truncate(rng: Random, data: bytes) -> bytes:
    return data[: rng.randint(0, len(data))]


def _extend(rng: Random, data: bytes) -> bytes:
    return data + rng.choice((b"\0", b" ", b"[", rng.randbytes(8))) * rng.choice((1, 8, 4096))


def _number(rng: Random, data: bytes) -> bytes:
    width = rng.choice((1, 2, 4, 8))
    order = "little" if rng.random() < 0.5 else "big"
    number = (rng.choice(NUMBERS) % 2 ** (8 * width)).to_bytes(width, order)
    at = rng.choice((0, rng.randint(0, len(data))))
    return data[:at] + number + data[at + width :]


def _cut(rng: Random, data: bytes) -> bytes:
    at = rng.randint(0, len(data))
    return data[:at] + data[at + rng.choice((1, 2, 16)) :]


def _double(rng: Random, data: bytes) -> bytes:
    at = rng.randint(0, len(data))
    width = rng.choice((1, 4, 64))
    return data[:at] + data[at : at + width] * rng.choice((2, 3, 1000)) + data[at + width :]


def _noise(rng: Random, data: bytes) -> bytes:
    at = rng.randint(0, len(data))
    return data[:at] + rng.randbytes(rng.choice((1, 4, 32))) + data[at:]


_BYTE_CHANGES: tuple[Callable[[Random, bytes], bytes], ...] = (
    _flip, _flip, _set, _truncate, _extend, _number, _number, _cut, _double, _noise,
)  # fmt: skip
