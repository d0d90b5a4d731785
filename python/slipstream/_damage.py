"""Warnings of captures that are damaged, or whose packets have other times than they give."""

from __future__ import annotations

import warnings
from typing import Optional


class DamageWarning(UserWarning):
    """A capture is damaged; the packets before the damage were used."""


class TimeWarning(UserWarning):
    """Packets have no time, or one before 1970 or after 2554, which was moved to that bound."""


def warn(damage: Optional[str]) -> None:
    """Warns of damage to a capture, in words, if there was any."""
    if damage:
        warnings.warn(f"{damage}; the packets before it were used", DamageWarning, stacklevel=3)


def warn_of_times(file: str, odd: Optional[tuple[int, int]]) -> None:
    """Warns of packets whose times were moved to a bound, and of packets without one."""
    clamped, missing = odd or (0, 0)
    if clamped:
        warnings.warn(f"{file}: the times of {_packets(clamped)} lie before 1970 or after 2554; they were moved to those bounds",
                      TimeWarning, stacklevel=3)
    if missing:
        warnings.warn(f"{file}: the times of {_packets(missing)} are not told; they count as coming with the one before",
                      TimeWarning, stacklevel=3)


def _packets(n: int) -> str:
    return f"{n} packet" if n == 1 else f"{n} packets"
