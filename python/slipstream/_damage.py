"""Warnings of captures that are damaged."""

from __future__ import annotations

import warnings
from typing import Optional


class DamageWarning(UserWarning):
    """A capture is damaged; the packets before the damage were used."""


def warn(damage: Optional[str]) -> None:
    """Warns of damage to a capture, in words, if there was any."""
    if damage:
        warnings.warn(f"{damage}; the packets before it were used", DamageWarning, stacklevel=3)
