"""The queue of a processor that works in batches: batch sizes, loss and latency, predicted.

>>> from slipstream import model
>>> result = model.solve(rate="11.97mpps", service_base="600ns", service_per_packet="77ns")
>>> result["mean_batch"], result["p_loss"], result["sojourn_ns"]["p99"]
"""

from __future__ import annotations

import json
import math
from typing import Any, Optional, Union

from . import _native

__all__ = ["solve"]

_TIMES = (("ns", 1.0), ("us", 1e3), ("µs", 1e3), ("μs", 1e3), ("ms", 1e6), ("s", 1e9))
_RATES = (("mpps", 1e6), ("kpps", 1e3), ("gpps", 1e9), ("pps", 1.0))


def solve(*, rate: Optional[Union[float, str]] = None, mean: Optional[float] = None, service_base: Union[float, str],
          service_per_packet: Union[float, str], queue: int = 4096, batch: int = 256, slot: Union[float, str] = "1ns",
          interarrival: str = "poisson", cv: Optional[float] = None, empty_poll: Union[float, str] = "100ns",
          service: str = "poisson", start: str = "equilibrium") -> dict[str, Any]:
    """Solves the model for one load; gives what `slipstream model solve --format json` prints.

    rate: packets that come in a second (`11.97e6` or `"11.97mpps"`); or mean: the mean time between packets,
        in slots.
    service_base, service_per_packet: mean time of a batch without its packets, and what a packet adds, in ns
        or with a unit.
    queue, batch: packets that the queue holds, and that a poll takes at most.
    slot: length of a slot. empty_poll: mean time of a poll that finds nothing.
    interarrival: `"deterministic"`, `"poisson"`, `"geometric"`, or `"negbin"` with its coefficient of
        variation `cv`.
    service: `"poisson"` or `"deterministic"`. start: `"renewal"`, `"equilibrium"` or `"exact"`.

    Raises `ValueError` for a setting out of range.
    """
    slot = _number(slot, _TIMES, "a time")
    if (rate is None) == (mean is None):
        raise ValueError("how often do packets come? give either mean (in slots) or rate")
    if rate is not None:
        per_second = _number(rate, _RATES, "a rate of packets")
        if not per_second > 0 or not slot > 0:
            raise ValueError(f"rate={rate!r}, slot={slot!r}: both must be above 0")
        mean = 1e9 / per_second / slot
    times = {"service_base": service_base, "service_per_packet": service_per_packet, "empty_poll": empty_poll}
    times = {name: _number(value, _TIMES, "a time") for name, value in times.items()}
    return json.loads(_native.solve(queue=queue, batch=batch, slot=slot, interarrival=interarrival, mean=mean, cv=cv,
                                    service=service, start=start, **times))


def _number(value: Union[float, str], units: tuple, what: str) -> float:
    """A number, or text with a unit."""
    if not isinstance(value, str):
        number = float(value)
        if not math.isfinite(number) or number < 0:
            raise ValueError(f"{value!r} is out of range")
        return number
    text = value.strip()
    if text == "0":
        return 0.0
    for unit, factor in units:
        if text.lower().endswith(unit):
            try:
                number = float(text[: -len(unit)].rstrip()) * factor
            except ValueError:
                continue
            if math.isfinite(number) and number >= 0:
                return number
            raise ValueError(f"{value!r} is out of range")
    raise ValueError(f"{value!r} is not {what}; write a number and a unit ({', '.join(unit for unit, _ in units)})")
