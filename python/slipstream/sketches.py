"""Sketches: small summaries of streams of keys, which can be asked, merged and saved."""

from __future__ import annotations

import ipaddress
import operator
from collections.abc import Iterable
from typing import Any, NamedTuple, Optional, Union

from . import _native
from ._files import Bytes, Path, as_bytes, of_file, read, replace, whole_number

Key = Union[bytes, str, ipaddress.IPv4Address, ipaddress.IPv6Address]

# The sketch that each task is for, as the command chooses it.
_OF_TASK = {
    "flow-size": "count-min",
    "heavy-hitters": "space-saving",
    "heavy-changes": "rev-sketch",
    "superspreaders": "two-level",
    "size-distribution": "mrac",
    "cardinality": "linear-counting",
    "entropy": "univmon",
    "quantiles": "ddsketch",
}


class Estimate(NamedTuple):
    """A figure with the interval in which the truth lies."""

    estimate: float
    lower: float
    upper: float


class SetSizes(NamedTuple):
    """How many keys two sketches have together, share, and have alone."""

    union: Estimate
    intersection: Estimate
    only_first: Estimate
    only_second: Estimate


class Flow(NamedTuple):
    """A key and its size."""

    key: bytes
    estimate: int
    lower: int
    upper: int


class Change(NamedTuple):
    """A key and the change of its size, later minus earlier."""

    key: bytes
    estimate: int
    lower: int
    upper: int


class Sketch:
    """A sketch over keys of a fixed number of bytes: 4 (an IPv4 address), 8, 13, 16, 32 or 37.

    kind: `count-min`, `flow-radar`, `space-saving`, `rev-sketch`, `two-level`, `mrac`, `fm`,
        `linear-counting`, `univmon`, `exaloglog`, `exaloglog-hip`, `ddsketch`, or `exact`; or else task:
        `flow-size`, `heavy-hitters`, `heavy-changes`, `superspreaders`, `size-distribution`, `cardinality`,
        `entropy` or `quantiles`, and the sketch is the one that is best for it.
    memory: bytes that its tables may take (not of "exact", whose table grows with the keys); or else error,
        confidence and flows: the accuracy wanted, and the keys expected.
    seed: of its hashes; sketches are merged only where it is the same. Where an adversary may choose keys,
        take a secret one.
    keep: of count-min, the keys that it keeps to list the heaviest.
    source_bytes: of two-level, the bytes of a key that are the source.
    below: of exaloglog-hip, the events that a register keeps below its highest one, 1 to 16: with 6, the
        default, the error in memory is the least, with 14 that of a saved state.

    A key is bytes, or an address (as text, or of `ipaddress`).

    >>> sketch = Sketch(task="heavy-hitters", memory=1 << 16)
    >>> sketch.update(["10.0.0.1", "10.0.0.2", "10.0.0.1"])
    >>> sketch.heavy_hitters(top=1)
    [Flow(key=b'\\n\\x00\\x00\\x01', estimate=2, lower=2, upper=2)]
    """

    __slots__ = ("_native",)

    def __init__(self, kind: Optional[str] = None, *, task: Optional[str] = None, key_bytes: int = 4, memory: int = 1 << 20,
                 error: Optional[float] = None, confidence: float = 0.95, flows: int = 200_000, seed: int = 1, keep: int = 0,
                 source_bytes: int = 0, below: Optional[int] = None) -> None:
        if (kind is None) == (task is None):
            raise ValueError("name either the kind of a sketch or the task")
        if task is not None:
            if task not in _OF_TASK:
                raise ValueError(f"there is no task {task!r}; there are {', '.join(_OF_TASK)}")
            kind = _OF_TASK[task]
        accuracy = None if error is None else (error, confidence, whole_number("flows", flows))
        below = None if below is None else whole_number("below", below, 32)
        self._native = _native.Sketch(kind, whole_number("key_bytes", key_bytes), memory=whole_number("memory", memory), accuracy=accuracy,
                                      seed=whole_number("seed", seed), keep=whole_number("keep", keep),
                                      source_len=whole_number("source_bytes", source_bytes), below=below)

    @classmethod
    def _of(cls, native: _native.Sketch) -> Sketch:
        sketch = cls.__new__(cls)
        sketch._native = native
        return sketch

    @classmethod
    def from_bytes(cls, state: Bytes) -> Sketch:
        """The sketch of a saved state; raises `StateError` for anything else."""
        return cls._of(_native.Sketch.load(as_bytes(state)))

    @classmethod
    def load(cls, path: Path) -> Sketch:
        """The sketch of a file that `save` wrote; raises `StateError`, which names it, for anything else."""
        state = read(path)
        try:
            return cls.from_bytes(state)
        except _native.StateError as error:
            raise of_file(path, error) from None

    def to_bytes(self) -> bytes:
        """Its state. The layout is that of the Rust crate `slipstream-sketch`: little-endian, with version
        and checksum."""
        return self._native.save()

    def save(self, path: Path) -> None:
        """Writes its state to a file, which is replaced as a whole or not at all."""
        replace(path, self.to_bytes())

    def update(self, keys: Union[Key, Iterable[Key]], weight: Union[int, Iterable[int]] = 1) -> None:
        """Adds to one key or to many: a weight for all, or one for each. Weights are whole numbers; others
        raise `TypeError`. Many at once are much faster: as a list, or as bytes in which they stand one
        behind the other (`numpy_array.tobytes()`)."""
        if isinstance(keys, (bytearray, memoryview)):
            keys = bytes(keys)
        elif not isinstance(keys, bytes):
            if isinstance(keys, (str, ipaddress.IPv4Address, ipaddress.IPv6Address)):
                keys = [keys]
            keys = [_key(key) for key in keys]
            wrong = next((key for key in keys if len(key) != self.key_bytes), None)
            if wrong is not None:
                raise ValueError(f"a key of {len(wrong)} bytes, where they have {self.key_bytes}")
            keys = b"".join(keys)
        # Bytes are numbers to Python, and nobody's weights.
        if isinstance(weight, (bytes, bytearray)):
            raise TypeError(f"weights are whole numbers, not {type(weight).__name__}")
        # An array with one element has an index, too, but it is a weight for each.
        if isinstance(weight, Iterable):
            weights = list(map(operator.index, weight))
            for extreme in (min, max) if weights else ():
                whole_number("weight", extreme(weights))
            self._native.update(keys, 0, weights)
        else:
            self._native.update(keys, whole_number("weight", weight), None)

    def merge(self, other: Sketch) -> None:
        """Adds another sketch of the same kind, shape and seed: afterwards this one has seen both streams."""
        self._native.merge(_checked(other).to_bytes())

    def copy(self) -> Sketch:
        """An independent copy."""
        return self._of(self._native.copy())

    def clear(self) -> None:
        """Forgets everything that was put in."""
        self._native.clear()

    def flow_size(self, key: Key) -> Estimate:
        """The size of one key."""
        return Estimate(*self._native.flow_size(_key(key)))

    def heavy_hitters(self, top: int = 20, threshold: int = 1) -> list[Flow]:
        """The heaviest keys, in descending order."""
        return [Flow(key, *size) for key, size in self._native.heavy_hitters(*_most(threshold, top))]

    def heavy_changes(self, earlier: Sketch, top: int = 20, threshold: int = 1) -> list[Change]:
        """The keys that changed most since an earlier state, in descending order of the change."""
        return [Change(key, *size) for key, size in self._native.heavy_changes(_checked(earlier).to_bytes(), *_most(threshold, top))]

    def superspreaders(self, source_bytes: int, top: int = 20, threshold: int = 1) -> list[Flow]:
        """Of keys that are pairs: the sources with the most distinct counterparts."""
        return [Flow(key, *size) for key, size in self._native.superspreaders(whole_number("source_bytes", source_bytes), *_most(threshold, top))]

    def size_distribution(self) -> dict[int, float]:
        """How many keys have which size, estimated."""
        return dict(self._native.size_distribution())

    def cardinality(self) -> Estimate:
        """The number of distinct keys."""
        return Estimate(*self._native.cardinality())

    def set_sizes(self, other: Sketch) -> SetSizes:
        """How many distinct keys this sketch and another of its kind, shape and seed have together, share,
        and have alone."""
        return SetSizes(*(Estimate(*size) for size in self._native.set_sizes(_checked(other).to_bytes())))

    def quantile(self, q: float) -> Optional[Estimate]:
        """Of ddsketch, whose values are the weights of updates (sizes, delays in nanoseconds): the value at q
        (0 the least, 1 the greatest) of all in ascending order, with certain bounds; None of no values."""
        value = self._native.quantile(q)
        return None if value is None else Estimate(*value)

    def entropy(self) -> Estimate:
        """The entropy of the weight over keys, in bits."""
        return Estimate(*self._native.entropy())

    def second_moment(self) -> Estimate:
        """The sum of squared weights."""
        return Estimate(*self._native.second_moment())

    unlisted = property(lambda self: self._native.unlisted,
                        doc="The most that a key may weigh that `heavy_hitters` leaves out, however many are wanted; None where nothing bounds it.")
    kind = property(lambda self: self._native.kind, doc="Which sketch.")
    key_bytes = property(lambda self: self._native.key_len, doc="Bytes of a key.")
    seed = property(lambda self: self._native.seed, doc="The seed of its hashes.")
    shape = property(lambda self: self._native.shape, doc="Its parameters in words; equal for sketches that can be merged.")
    weight = property(lambda self: self._native.weight, doc="All weight that was put in.")
    memory_bytes = property(lambda self: self._native.memory_bytes, doc="Bytes of its tables.")
    saturated = property(lambda self: self._native.saturated, doc="True where it is so full that answers are worse than stated.")

    def __repr__(self) -> str:
        return f"<slipstream.Sketch {self.kind}, keys of {self.key_bytes} bytes, {self.memory_bytes} bytes, weight {self.weight}>"

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, Sketch) and self.to_bytes() == other.to_bytes()

    __hash__ = None

    def __reduce__(self) -> tuple:
        # A subclass's objects have attributes of their own, too.
        return type(self).from_bytes, (self.to_bytes(),), getattr(self, "__dict__", None)


def _checked(other: Sketch) -> Sketch:
    # Numbers have `to_bytes`, too.
    if not isinstance(other, Sketch):
        raise TypeError(f"a sketch goes with a sketch, not with {type(other).__name__}")
    return other


def _most(threshold: int, top: int) -> tuple[int, int]:
    """The least size of keys that are listed, and how many are."""
    return whole_number("threshold", threshold), whole_number("top", top)


def _key(key: Key) -> bytes:
    if isinstance(key, bytes):
        return key
    if isinstance(key, str):
        key = ipaddress.ip_address(key)
    if not isinstance(key, (ipaddress.IPv4Address, ipaddress.IPv6Address)):
        raise TypeError(f"a key is bytes or an address, not {type(key).__module__}.{type(key).__qualname__}")
    return key.packed
