"""Attributes as OTLP/JSON writes them, read by the type that a value must have.

Integers may be strings or numbers, doubles may be whole numbers, and what is not a finite number
is not there. Encoders differ in all of these.

Source:
    opentelemetry-proto, docs/specification.md, "JSON Protobuf Encoding".
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

Raw = Mapping[str, Any]
"""One attribute's value, such as ``{"intValue": "5"}``."""

MOST_NUMBER = 1e12
"""Of seconds or of tokens per second; what is more is neither, and sums of such would overflow."""

MOST_AMOUNT = 1e30
"""Of bytes or operations."""

MOST_COUNT = 1 << 53
"""Whole numbers above it are not exact as doubles."""

MOST_UNIX_NS = 1 << 62
"""The year 2116."""


def raw_attributes(encoded: Iterable[Raw] | None) -> dict[str, Raw]:
    """Return an attribute list as a mapping from key to undecoded value.

    What has no text for a key is no attribute: keys are sorted and printed.
    """
    return {
        key: item.get("value") or {}
        for item in encoded or ()
        if isinstance(key := item["key"], str)
    }


def number(raw: Raw | None) -> float | None:
    """Return a finite number, or None."""
    if not raw:
        return None
    value = raw.get("doubleValue")
    if value is None:
        value = raw.get("intValue")
    if value is None or isinstance(value, bool):
        return None
    value = float(value)
    return value if math.isfinite(value) else None


def seconds(raw: Raw | None) -> float | None:
    """Return a duration or a rate; one below zero or beyond all reason is not there."""
    value = raw.get("doubleValue") if raw else None
    # As nearly all are written: a file has millions.
    if type(value) is float and 0 <= value <= MOST_NUMBER:
        return value
    return amount(raw, MOST_NUMBER)


def amount(raw: Raw | None, most: float = MOST_AMOUNT) -> float | None:
    """Return a number that is not negative, up to *most*; or None."""
    value = number(raw)
    return value if value is not None and 0 <= value <= most else None


def count(raw: Raw | None) -> int | None:
    """Return a number of things: whole, not negative, within reason; or None."""
    value = whole(raw)
    return value if value is not None and value >= 0 else None


def whole(raw: Raw | None) -> int | None:
    """Return a whole number within reason, or None."""
    if not raw:
        return None
    value = raw.get("intValue")
    found = number(raw) if value is None or isinstance(value, bool) else int(value)
    return None if found is None or abs(found) > MOST_COUNT else int(found)


def unix_ns(encoded: Any) -> int:
    """Return a time, nanoseconds since the epoch.

    Raises:
        ValueError, TypeError: It is none.
    """
    value = int(encoded)
    if not 0 <= value < MOST_UNIX_NS:
        raise ValueError(f"no time: {value}")
    return value


def text(raw: Raw | None) -> str | None:
    """Return a string, or None."""
    value = raw.get("stringValue") if raw else None
    return None if value is None else str(value)


def flag(raw: Raw | None) -> bool | None:
    """Return a truth value, or None."""
    value = raw.get("boolValue") if raw else None
    return value if isinstance(value, bool) else None


def items(raw: Raw | None) -> list[Raw]:
    """Return an array's undecoded values; of what is no array, none."""
    array = raw.get("arrayValue") if raw else None
    return list(array.get("values") or ()) if array else []


def numbers(raw: Raw | None, *, signed: bool = False) -> list[float]:
    """Return an array of durations: finite numbers, not negative unless *signed*.

    Raises:
        ValueError: A value is no duration: an array with a hole tells nothing.
    """
    values = items(raw)
    try:
        # Arrays of thousands of doubles are what most of a file consists of.
        found = [float(item["doubleValue"]) for item in values]
    except KeyError:
        found = [math.nan if (one := number(item)) is None else one for item in values]
    if not all(map(math.isfinite, found)):
        raise ValueError("an array holds something that is not a number")
    if found and min(found) < 0 and not signed:
        raise ValueError("an array holds a negative duration")
    if found and max(map(abs, found)) > MOST_NUMBER:
        raise ValueError("an array holds a duration beyond all reason")
    return found


def counts(raw: Raw | None) -> tuple[int, ...]:
    """Return an array of whole numbers, without what is none."""
    return tuple(value for item in items(raw) if (value := count(item)) is not None)


def texts(raw: Raw | None) -> tuple[str, ...]:
    """Return an array of strings, without what is none."""
    return tuple(value for item in items(raw) if (value := text(item)) is not None)


def scalar(raw: Raw | None) -> str | bool | int | float | None:
    """Return a single value of whatever type it was written with."""
    if not raw:
        return None
    if "intValue" in raw:
        return whole(raw)
    if "boolValue" in raw:
        return flag(raw)
    if "doubleValue" in raw:
        return number(raw)
    return text(raw)


def scalars(raws: Mapping[str, Raw]) -> dict[str, str | bool | int | float]:
    """Return the attributes that hold a single value."""
    return {key: value for key, raw in raws.items() if (value := scalar(raw)) is not None}
