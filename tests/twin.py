"""The reframe stage once more, as plainly as it can be said: what the real one must agree with, packet for
packet.

A packet is held until `hold` has passed since the first packet of its train came, or until its train has
`burst` packets. What passes at once (bypass, a flow's first packet with --admit second) first lets its own
flow's train go. Trains that leave at the same instant do so in the order of the policy. Where `capacity`
packets are held, the oldest train leaves before another packet is taken in.
"""

from collections import deque
from itertools import repeat
from operator import attrgetter

FOREVER = float("inf")
BY_DUE = attrgetter("due")


class Train:
    __slots__ = "flow", "kind", "first", "base", "due", "packets", "gone"

    def __init__(self, flow, kind, first, base, due):
        self.flow, self.kind, self.first, self.base, self.due = flow, kind, first, base, due
        self.packets = [first]
        self.gone = False


class Twin:
    """`times` never decrease; `flows` are numbers, None for a packet without a flow; `kinds` index
    `treatments`, which are (hold in ns, burst); None stands for a packet to bypass."""

    def __init__(self, times, flows, kinds, treatments, policy="oldest", second=False, capacity=8192):
        self.second, self.capacity = second, capacity
        self.treatments = treatments
        self.open = {}
        self.lines = [deque() for _ in treatments]
        # No train that is open is due earlier.
        self.soonest = FOREVER
        self.held = 0
        self.now = -1
        self.leaving = []
        self.first_seen, self.seen = first_seen, seen = {}, {}
        self.rank = {"oldest": lambda train: first_seen[train.flow], "waiting": lambda train: train.base,
                     "shortest": lambda train: seen[train.flow]}[policy]
        # What comes out: (packet, time), and the trains: (cause, packets).
        self.out, self.trains = [], []
        # Packets that were not to be held.
        self.bypassed = 0
        for packet, (time, flow, kind) in enumerate(zip(times, flows, kinds)):
            if time >= self.soonest:
                self.pass_time(time)
            elif time > self.now:
                if self.leaving:
                    self.emit()
                self.now = time
            if flow is None:
                self.out.append((packet, time))
            else:
                self.take(packet, time, flow, kind)
        self.pass_time(FOREVER)

    def oldest_of(self, by):
        for line in self.lines:
            while line and line[0].gone:
                line.popleft()
        if len(self.lines) == 1:
            return self.lines[0][0] if self.lines[0] else None
        return min([line[0] for line in self.lines if line], key=by, default=None)

    def pass_time(self, to):
        while self.soonest <= to:
            train = self.oldest_of(BY_DUE)
            self.soonest = train.due if train else FOREVER
            if train is None or train.due > to:
                break
            if train.due > self.now:
                self.emit()
                self.now = train.due
            self.leave(train, "deadline")
        if to > self.now:
            self.emit()
            self.now = to

    def leave(self, train, cause):
        train.gone = True
        del self.open[train.flow]
        self.leaving.append((self.rank(train), train.first, train, cause))

    def emit(self):
        if not self.leaving:
            return
        now = self.now
        for _, _, train, cause in sorted(self.leaving) if len(self.leaving) > 1 else self.leaving:
            packets = train.packets
            self.out.extend(zip(packets, repeat(now)))
            self.trains.append((cause, packets))
            self.held -= len(packets)
        self.leaving = []

    def take(self, packet, time, flow, kind):
        so_far = self.seen.get(flow, 0)
        self.seen[flow] = so_far + 1
        new = so_far == 0
        if new:
            self.first_seen[flow] = time
        train = self.open.get(flow)
        bypass = kind is None or (new and self.second)
        hold, burst = self.treatments[kind or 0]
        if bypass or hold == 0 or burst == 1:
            if train:
                self.leave(train, "bypass")
            if self.leaving:
                self.emit()
            self.out.append((packet, time))
            self.bypassed += bypass
            self.trains.append(("bypass" if bypass else "full" if burst == 1 else "deadline", [packet]))
            return
        if train and train.kind != kind:
            self.leave(train, "bypass")
            self.emit()
            train = None
        if self.held >= self.capacity:
            self.emit()
            while self.held >= self.capacity:
                self.leave(self.oldest_of(lambda t: (t.base, t.first)), "capacity")
                self.emit()
            train = self.open.get(flow)
        self.held += 1
        if train is None:
            self.open[flow] = train = Train(flow, kind, packet, time, time + hold)
            self.lines[kind].append(train)
            self.soonest = min(self.soonest, train.due)
        else:
            train.packets.append(packet)
            if len(train.packets) == burst:
                self.leave(train, "full")
