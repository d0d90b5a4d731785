"""Packet locality: what is it in your traffic, and what would holding packets for microseconds gain?

>>> import slipstream
>>> result = slipstream.analyze("traces/campus.pcap.gz")
>>> result.total.ip.slf                      # packets a run of one flow
1.2334...
>>> result.plot().save("locality.html", inline=True)  # needs altair and vl-convert-python

Everything here gives the numbers of the command `slipstream`, digit for digit: `to_dict()` of a result is
what the command prints with `--format json`. Python's lock is released while there is work.

- `analyze`: what locality has a trace, and what would holding gain?
- `reframe`: packets of a flow back to back, from a capture to another.
- `synth`: traffic with a known locality.
- `model.solve`: batch sizes, loss and latency of a processor that works in batches.
- `spans`, `partial`, `merge`: parts of a trace analysed one by one, on several machines, with the result of
  the whole.
- `packets`: the packets of a capture as Arrow's record batches.
- `slipstream.spark` (import it): captures as DataFrames of Spark, and the analysis over a cluster.
- `Sketch`, `Measurement`: measurement in little memory; states that the command reads and writes.
"""

from . import model
from ._native import CaptureError, PartialError, StateError, __version__
from ._damage import DamageWarning, TimeWarning
from ._traffic import analyze, reframe, reframe_settings, synth
from ._packets import packets
from .partials import Partial, merge, partial, spans
from .results import Analysis, Distribution, Sequence, Trace, Window
from .sketches import Change, Estimate, Flow, SetSizes, Sketch
from .states import Epoch, Measurement

# A state in memory has no file, and not everything that is wrong is so in one place.
CaptureError.file = CaptureError.byte = StateError.file = StateError.byte = None

__all__ = [
    "Analysis",
    "CaptureError",
    "Change",
    "DamageWarning",
    "Distribution",
    "Epoch",
    "Estimate",
    "Flow",
    "Measurement",
    "Partial",
    "PartialError",
    "Sequence",
    "SetSizes",
    "Sketch",
    "StateError",
    "TimeWarning",
    "Trace",
    "Window",
    "__version__",
    "analyze",
    "merge",
    "model",
    "packets",
    "partial",
    "reframe",
    "reframe_settings",
    "spans",
    "synth",
]
