"""Checks of the Python package's sketches, and of what is saved of them: a part of check_python.py."""

import ipaddress
import math
import resource

from harness import ROOT


class States:
    """These checks, with what `check_python.Checks` has: the package, the binary, a folder."""

    def sketches(self):
        """Every kind: updates, merges and saved states; sizes against a dictionary."""
        s, scratch = self.slipstream, self.scratch
        keys = [f"10.0.{i % 7}.{i * i % 251}" for i in range(5000)]
        truth = {}
        for key in keys:
            truth[key] = truth.get(key, 0) + 1
        for kind in ("count-min", "flow-radar", "space-saving", "rev-sketch", "two-level", "mrac", "fm", "linear-counting", "univmon", "exaloglog",
                     "exaloglog-hip", "exact"):
            more = {"key_bytes": 8, "source_bytes": 4} if kind == "two-level" else {"keep": 50} if kind == "count-min" else {}
            ours = [bytes(map(int, k.split("."))) * (more.get("key_bytes", 4) // 4) for k in keys]
            whole, a, b = (s.Sketch(kind, **more) for _ in range(3))
            whole.update(ours)
            a.update(ours[:2000])
            b.update(b"".join(ours[2000:]))
            a.merge(b)
            assert a.weight == whole.weight == 5000, (kind, a.weight)
            path = scratch / f"{kind}.sketch"
            whole.save(path)
            assert s.Sketch.load(path) == whole and s.Sketch.load(path).kind == kind
            if kind in ("rev-sketch", "two-level", "mrac", "fm", "linear-counting", "exaloglog", "exact"):
                assert a == whole, f"{kind}: merged parts are not the whole"
            data = path.read_bytes()
            self.raises(s.StateError, lambda data=data: s.Sketch.from_bytes(data[:-1]))
            self.raises(s.StateError, lambda data=data: s.Sketch.from_bytes(data[:12] + b"\x44" + data[13:]), "keys of 68 bytes")
            self.raises(s.StateError, lambda data=data: s.Sketch.from_bytes(data[:40] + bytes([data[40] ^ 1]) + data[41:]))
        exact, heavy = s.Sketch("exact"), s.Sketch(task="heavy-hitters")
        exact.update(keys)
        heavy.update(keys, [1] * len(keys))
        assert exact.flow_size(keys[0]).estimate == truth[keys[0]] and exact.cardinality().estimate == len(truth)
        top = {".".join(map(str, flow.key)): flow.estimate for flow in heavy.heavy_hitters(top=10_000)}
        assert top == truth
        sizes = exact.size_distribution()
        assert sum(size * flows for size, flows in sizes.items()) == len(keys)
        entropy = -sum(n / 5000 * math.log2(n / 5000) for n in truth.values())
        assert abs(exact.entropy().estimate - entropy) < 1e-9
        hosts = [f"10.1.{n // 250}.{n % 250}" for n in range(1500)]
        for kind in ("exact", "exaloglog", "exaloglog-hip", "linear-counting"):
            one, other = s.Sketch(kind, memory=1 << 14), s.Sketch(kind, memory=1 << 14)
            one.update(hosts[:1000])
            other.update(hosts[600:])
            sizes = one.set_sizes(other)
            for got, want in zip(sizes, (1500, 400, 600, 500)):
                assert got.lower <= got.estimate <= got.upper and abs(got.estimate - want) < (25 if kind != "exact" else 1e-9), (kind, sizes)
        delays = s.Sketch(task="quantiles")
        assert delays.kind == "ddsketch" and delays.quantile(0.5) is None
        values = [n * n * 1000 for n in range(5000)]
        delays.update(b"1234" * 5000, values)
        for q in (0, 0.25, 0.5, 0.99, 1):
            got = delays.quantile(q)
            assert got.lower <= values[int(q * 4999)] <= got.upper and got.upper <= 1.01 * got.lower, (q, got)
        assert s.Sketch("exaloglog-hip", below=14).shape.endswith("19 bits")
        assert heavy.unlisted == 0 and s.Sketch("fm").unlisted is None
        golden = ROOT / "crates/sketch/tests/golden"
        olds = sorted(golden.glob("*.v1.sketch"))
        assert len(olds) >= 9
        for old in olds:
            assert s.Sketch.load(old).weight > 0, old
        later = exact.copy()
        later.update("10.0.0.1", 2**33)
        assert later.heavy_changes(exact, top=1)[0].estimate == 2**33 and exact != later
        self.raises(s.StateError, lambda: s.Sketch.load(self.campus), str(self.campus))
        self.raises(ValueError, lambda: s.Sketch("exaloglog", below=3))
        self.raises(ValueError, lambda: exact.set_sizes(s.Sketch("exact", seed=2)))
        for call in (lambda: s.Sketch("exactly"), lambda: s.Sketch(task="luck"), lambda: s.Sketch(), lambda: s.Sketch("fm", key_bytes=5),
                     lambda: exact.update(b"abc"), lambda: exact.update(["::1"]), lambda: exact.update("::1"),
                     lambda: exact.update(ipaddress.ip_address("::1")), lambda: exact.update(keys, [1]),
                     lambda: exact.merge(s.Sketch("exact", seed=2)), lambda: exact.merge(s.Sketch("fm")),
                     lambda: s.Sketch("fm").heavy_hitters(), lambda: s.Sketch("count-min", memory=1), lambda: exact.flow_size(b"x")):
            weight = exact.weight
            self.raises(ValueError, call)
            assert exact.weight == weight
        # Whole numbers of any type, and nothing else: numpy's have an index, as these do, and none is an int.
        whole = type("Whole", (), {"__index__": lambda self: 3})()
        weighed = s.Sketch("exact")
        weighed.update("10.0.0.1", whole)
        weighed.update(["10.0.0.1", "10.0.0.2"], [whole, 4])
        assert (weighed.flow_size("10.0.0.1").estimate, weighed.weight) == (6, 10)
        for wrong in (2.7, 3.0, [2.7], [math.nan], ["3"], [None], None, b"\3", bytearray(b"\3")):
            self.raises(TypeError, lambda wrong=wrong: weighed.update(["10.0.0.1"], wrong))
        for wrong in (["10.0.0.1", 5], [whole], whole):
            self.raises(TypeError, lambda wrong=wrong: weighed.update(wrong))
        self.raises(TypeError, lambda: weighed.update([5]), "not builtins.int")
        self.raises(TypeError, lambda: weighed.flow_size(whole), "Whole")
        assert weighed.weight == 10
        for wrong in (math.nan, 2, -1, math.inf):
            self.raises(ValueError, lambda wrong=wrong: delays.quantile(wrong), "quantile")
        pairs = s.Sketch("exact", key_bytes=8)
        pairs.update([bytes([1, 1, 1, 1, 2, 2, 2, n]) for n in range(9)])
        assert [(flow.key, flow.estimate) for flow in pairs.superspreaders(4)] == [(b"\1\1\1\1", 9)]
        assert pairs.superspreaders(1)[0].estimate == pairs.superspreaders(7)[0].estimate == 9
        for wrong in (0, 8, 9):
            self.raises(ValueError, lambda wrong=wrong: pairs.superspreaders(wrong), "1 to 7")
        six = s.Sketch("exact", key_bytes=16)
        six.update("::1")
        assert six.flow_size("::1").estimate == six.weight == 1
        import copy
        import pickle

        assert pickle.loads(pickle.dumps(heavy)) == heavy

        class Named(s.Sketch):
            """A subclass with an attribute of its own; one inside a function can be copied, not pickled."""

        named = Named("exact")
        named.update(keys)
        named.name = "monday"
        for twin in (copy.copy(named), copy.deepcopy(named)):
            assert type(twin) is Named and twin == named and twin.name == "monday", type(twin)
            twin.clear()
        assert named.weight == 5000, "a copy is the sketch itself"

    def states(self):
        """Files of `measure --save`: read here, written here, and read by the command."""
        s, scratch = self.slipstream, self.scratch
        saved, again = scratch / "saved.state", scratch / "again.state"
        for words in (("--sketch", "exact"), ("--sketch", "univmon"), ("--sketch", "space-saving", "--epoch", "100ms")):
            first = self.command("measure", self.campus, "--key", "src", *words, "--save", saved)
            measurement = s.Measurement.load(saved)
            assert len(measurement.epochs) == len(first["epochs"]) and measurement.description["key"] == "src"
            measurement.save(again)
            assert again.read_bytes() == saved.read_bytes(), words
            want = self.command("measure", "query", saved, "--task", "heavy-hitters", "--top", 3)
            for epoch, asked in zip(measurement.epochs, want["epochs"]):
                answers = {answer["key"]: answer["estimate"] for answer in asked["answers"]}
                four = {".".join(map(str, f.key)): f.estimate for f in (epoch.ipv4.heavy_hitters(top=3) if epoch.ipv4 else [])}
                assert answers and all(four.get(key) == size for key, size in answers.items() if ":" not in key), (answers, four)
        # For one accuracy Python and the command make sketches of one size, which add up.
        for kind, task in (("flow-radar", "heavy-hitters"), ("linear-counting", "cardinality")):
            words = ("--task", task, "--sketch", kind, "--key", "src", "--error", 0.02, "--save", saved)
            assert self.command("measure", self.campus, *words)["epochs"]
            four = s.Measurement.load(saved).epochs[0].ipv4
            weight = four.weight
            four.merge(s.Sketch(kind, error=0.02))
            assert four.weight == weight, kind
        old = s.Measurement.load(ROOT / "crates/measure/tests/golden/flow-size.v1.state")
        assert (old.description["tunnel"], old.description["seed"]) == ("unknown", 42)
        old.save(again)
        assert s.Measurement.load(again).description == old.description and s.Measurement.load(again).epochs == old.epochs
        assert old.epochs[0].ipv4.flow_size("10.0.1.19").estimate == 361
        # What Python adds to a state, the command finds there.
        measurement.epochs[0].ipv4.update("203.0.113.9", 10**9)
        measurement.save(again)
        row = self.command("measure", "query", again, "--top", 1)["epochs"][0]["answers"][0]
        assert row["key"] == "203.0.113.9" and row["estimate"] >= 10**9, row
        data = saved.read_bytes()
        for at in [*range(0, 400, 7), len(data) // 2, len(data) - 1]:
            self.raises(s.StateError, lambda at=at: s.Measurement.from_bytes(data[:at]))
            self.raises(s.StateError, lambda at=at: s.Measurement.from_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1:]))
        self.raises(s.StateError, lambda: s.Measurement.load(self.campus), str(self.campus), "byte 0")
        self.raises(s.StateError, lambda: s.Measurement.from_bytes(data[:8] + b"\x09\0" + data[10:]), "version 9", "byte 8", file=None, byte=8)
        for kind, byte in ((s.Measurement, 0), (s.Partial, 0), (s.Sketch, None)):
            self.raises(s.StateError, lambda kind=kind: kind.load(self.campus), str(self.campus), file=str(self.campus), byte=byte)
            self.raises(s.StateError, lambda kind=kind: kind.from_bytes(b"no state"), file=None, byte=byte)
            self.raises(TypeError, lambda kind=kind: kind.from_bytes("no state"), "bytes-like")
        # Anything that has bytes will do, as a memory-mapped file's.
        part, sketch = s.partial(self.campus), measurement.epochs[0].ipv4
        for kind, state in ((s.Measurement, data), (s.Partial, part.to_bytes()), (s.Sketch, sketch.to_bytes())):
            for alike in (bytearray, memoryview):
                assert kind.from_bytes(alike(state)).to_bytes() == state, (kind, alike)
        for call in (lambda: sketch.merge(None), lambda: part.join(None), lambda: s.merge([None]), lambda: s.partials.join([part, None])):
            self.raises(TypeError, call, "NoneType")
        # An error of writing has the name of the file, not that of the one beside it, which is not left.
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
        try:
            for state in (measurement, part, sketch):
                self.raises(OSError, lambda state=state: state.save(self.scratch / "full.state"), filename=str(self.scratch / "full.state"))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert not list(self.scratch.glob("full.state*"))
        # A number has bytes by that name, too.
        for call in (sketch.merge, sketch.set_sizes, sketch.heavy_changes):
            self.raises(TypeError, lambda call=call: call(5), "not with int")
