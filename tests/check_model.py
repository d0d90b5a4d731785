#!/usr/bin/env python3
"""`slipstream model` and `recommend` against other computations: references, NumPy, a poll log, bad input.

usage: check_model.py [target/release/slipstream] [--only TEXT]
"""

import json
import math
import os
import sys
from pathlib import Path

import numpy as np

try:
    from scipy import linalg, stats
except ImportError:
    stats = None

import harness
from harness import Case, Run

ROOT = Path(__file__).resolve().parent.parent

SERVICE = ("--service-base", "600ns", "--service-per-packet", "77ns", "--empty-poll", "100ns")


def reference(binary, case, _scratch):
    """A case of the exact results, computed by another program."""
    words = ["model", "solve", "--queue", 4096, "--batch", 256, "--slot", "1ns", "--start", "equilibrium", *SERVICE,
             "--mean", repr(case["mean_interarrival_slots"]), "--format", "json"]
    name = case["interarrival"]
    words += ["--interarrival", "negbin", "--cv", name[2:]] if name.startswith("nb") else ["--interarrival", name]
    run = Run(binary, words)
    got, c = run.json(), Case()
    for key in ("mean_batch", "mean_queue"):
        c.close(got[key], case[key], key, 1e-6)
    c.check(abs(got["p_loss"] - case["p_loss"]) <= 1e-6 * case["p_loss"] + 1e-15, f"p_loss {got['p_loss']}")
    c.check(abs(got["sd_batch"] - case["sd_batch"]) <= 1e-6 * case["sd_batch"] + 1e-9, f"sd_batch {got['sd_batch']}")
    apart = np.abs(np.array(got["batch_pmf"]) - np.array(case["batch_pmf"])).max()
    c.check(apart < 1e-9, f"batch_pmf: {apart}")
    c.check(len(got["queue_pmf"]) == 4097, "a probability for every state")
    yield run.command, c.wrong


def poisson(mean, n):
    k = np.arange(n)
    return np.exp(k * math.log(mean) - mean - np.array([math.lgamma(i + 1) for i in k]))


def interarrival(kind, mean, cv, n):
    """Probabilities of 0, 1, … n − 1 slots, by the textbook."""
    k = np.arange(n)
    if kind == "poisson":
        return poisson(mean, n)
    if kind == "geometric":
        return np.where(k > 0, (1 - 1 / mean) ** (k - 1.0) / mean, 0)
    if kind == "deterministic":
        low, share = int(mean), mean - int(mean)
        return np.where(k == low, 1 - share, 0) + np.where(k == low + 1, share, 0)
    p = mean / (cv * mean) ** 2
    r = mean * p / (1 - p)
    log = [math.lgamma(i + r) - math.lgamma(r) - math.lgamma(i + 1) + r * math.log(p) + i * math.log1p(-p) for i in k]
    return np.exp(log)


def arrivals(a, services, start, most):
    """P(n packets come during a service), by convolution of interarrival times."""
    n = len(services[0])
    mean = (np.arange(len(a)) * a).sum()
    first = a[:n] if start == "renewal" else np.append(0, np.cumsum(a[::-1])[::-1][1:n] / mean)
    at_least, s = [np.ones(len(services))], first
    for _ in range(most + 1):
        at_least.append(services @ np.cumsum(s))
        s = np.convolve(s, a[:n])[:n]
    return -np.diff(np.array(at_least), axis=0).T


def interarrival_scipy(kind, mean, cv, n):
    """The same by SciPy; the deterministic one is not in it."""
    k = np.arange(n)
    if kind == "poisson":
        return stats.poisson.pmf(k, mean)
    if kind == "geometric":
        return stats.geom.pmf(k, 1 / mean)
    if kind == "negbin":
        p = mean / (cv * mean) ** 2
        return stats.nbinom.pmf(k, mean * p / (1 - p), p)
    return interarrival(kind, mean, cv, n)


def textbook(binary, job, _scratch):
    """A small queue, solved densely: all by NumPy, or distributions and solution by SciPy."""
    kind, cv, load, start, by_scipy = job
    distribution = interarrival_scipy if by_scipy else interarrival
    service = (lambda m, n: stats.poisson.pmf(np.arange(n), m)) if by_scipy else poisson
    solve = linalg.solve if by_scipy else np.linalg.solve
    queue, batch, n = 60, 12, 700
    means = [20] + [60 + 8 * i for i in range(1, batch + 1)]
    mean = means[-1] / batch / load
    a = distribution(kind, mean, cv, 6000)
    x = arrivals(a, np.array([service(m, n) for m in means]), start, 160)
    p = np.zeros((queue + 1, queue + 1))
    lost = np.zeros(queue + 1)
    for i in range(queue + 1):
        taken = min(i, batch)
        for k, q in enumerate(x[taken]):
            p[i, min(queue, i - taken + k)] += q
            lost[i] += q * max(0, i - taken + k - queue)
    m = p.T - np.eye(queue + 1)
    m[-1] = 1
    q = solve(m, np.append(np.zeros(queue), 1))
    sizes = np.minimum(np.arange(queue + 1), batch)
    pmf = np.bincount(sizes, q)
    came = q @ (x[sizes] @ np.arange(x.shape[1]))
    words = ["model", "solve", "--queue", queue, "--batch", batch, "--slot", "1ns", "--start", start, "--mean", repr(mean),
             "--service-base", "60ns", "--service-per-packet", "8ns", "--empty-poll", "20ns", "--format", "json",
             "--interarrival", kind, *(["--cv", cv] if kind == "negbin" else [])]
    run = Run(binary, words)
    got, c = run.json(), Case()
    apart = np.abs(np.array(got["batch_pmf"]) - pmf).max()
    c.check(apart < 1e-9, f"batch_pmf: {apart}")
    c.close(got["mean_batch"], pmf @ np.arange(batch + 1), "mean_batch", 1e-7)
    c.close(got["mean_queue"], q @ np.arange(queue + 1), "mean_queue", 1e-7)
    loss = q @ lost / came
    c.check(abs(got["p_loss"] - loss) <= 1e-6 * loss + 1e-13, f"p_loss: {got['p_loss']}, expected {loss}")
    cycle = pmf @ np.array(means)
    c.close(got["throughput_pps"], pmf @ np.arange(batch + 1) / cycle * 1e9, "throughput_pps", 1e-7)
    c.close(got["utilization"], 1 - pmf[0] * means[0] / cycle, "utilization", 1e-7)
    for key in ("wait_ns", "sojourn_ns"):
        d = got[key]
        c.check(0 <= d["p50"] <= d["p90"] <= d["p99"] and d["mean"] > 0, f"{key}: {d}")
    c.check(got["sojourn_ns"]["mean"] > got["wait_ns"]["mean"], "a service takes time")
    yield run.command, c.wrong


def polls(binary, where, scratch):
    """The polls of a real router: about 1008 ns a batch and 71.3 ns a packet."""
    log = where / "../model/vpp_batches_excerpt.csv"
    lines = [line.split(",") for line in log.read_text().splitlines() if line[0].isdigit()]
    rows = [tuple(map(int, line)) for line in lines]
    pairs = [(a[3], (b[2] - a[2]) / 3.393) for a, b in zip(rows, rows[1:]) if a[:2] == b[:2]]
    slope, base = np.polyfit(*np.array(pairs).T, 1)
    run = Run(binary, ["model", "fit", log, "--format", "json"])
    got, c = run.json(), Case()
    c.close(got["service_base_ns"], base, "service_base_ns", 1e-6)
    c.close(got["service_per_packet_ns"], slope, "service_per_packet_ns", 1e-6)
    c.check(abs(got["service_base_ns"] - 1008) < 1 and abs(got["service_per_packet_ns"] - 71.3) < 0.1, "about 1008 + 71.3")
    c.check(0.998 < got["r_squared"] < 0.999, f"r_squared {got['r_squared']}")
    c.equal(got["services"], len(pairs), "services")
    yield run.command, c.wrong
    page = scratch / "page.html"
    run = Run(binary, ["model", "compare", log, "--frame-bytes", 64, "--report", page, "--format", "json"])
    got, c = run.json(), Case()
    c.equal([r["rate"] for r in got["rates"]], ["5000", "8000", "10000"], "rates")
    for r in got["rates"]:
        v = np.array([row[3] for row in rows if str(row[0]) == r["rate"]])
        p = np.bincount(v, minlength=257) / len(v)
        q = np.array(r["predicted_batch_pmf"])
        middle = (p + q) / 2
        with np.errstate(divide="ignore", invalid="ignore"):
            jsd = (np.nansum(np.where(p > 0, p * np.log(p / middle), 0)) + np.nansum(np.where(q > 0, q * np.log(q / middle), 0))) / 2
        c.close(r["jsd"], jsd, f"jsd at {r['rate']}", 1e-6)
        c.close(r["relative_error"], abs(v.mean() - r["predicted_mean_batch"]) / v.mean(), "relative_error", 1e-6)
    text = page.read_text()
    c.check("<svg" in text and not any(w in text for w in ("src=", "href=", "<script", "@import")), "a page with charts, complete in itself")
    yield run.command, c.wrong


def hold(binary, _job, scratch):
    """What `recommend` says of every hold is what `reframe`, the costs and `model solve` say; and the choice
    is the best of them."""
    trace = ROOT / "traces" / "campus.pcap.gz"
    costs = {"per_train_ns": 500, "per_packet_ns": 200, "per_batch_ns": 300, "per_held_packet_ns": 60, "empty_poll_ns": 90,
             "per_train_error_ns": 20, "per_packet_error_ns": 5, "error_correlation": -0.5}
    (scratch / "costs.json").write_text(json.dumps(costs))
    page = scratch / "hold.html"
    words = ["recommend", trace, "--costs", scratch / "costs.json", "--holds", "0,16us,64us,128us", "--queue", 512, "--batch", 32,
             "--format", "json"]
    run = Run(binary, [*words, "--load", 1.1, "--report", page])
    got, c = run.json(), Case()
    rate = 1.1e9 / (500 / got["holds"][0]["slf"] + 200 + 300 / 32)
    c.close(got["offered_pps"], rate, "offered_pps", 1e-9)
    c.check("<svg" in page.read_text() and "recommended: " in page.read_text(), "a page with charts and a mark")
    for row in got["holds"]:
        held = Run(binary, ["reframe", trace, "null", "--hold", f"{row['hold_ns']}ns", "--format", "json"]).json()
        c.close(row["slf"], held["slf_out"], f"SLF at {row['hold_ns']}", 1e-9)
        each = 500 / row["slf"] + 200 + (60 if row["hold_ns"] else 0)
        c.close(row["packet_ns"], each, "packet_ns", 1e-9)
        error = math.sqrt((20 / row["slf"]) ** 2 + 5**2 - 2 * 0.5 * 20 / row["slf"] * 5)
        c.close(row["packet_error_ns"], error, "packet_error_ns", 1e-9)
        c.close(row["capacity_pps"], 32e9 / (300 + 32 * each), "capacity_pps", 1e-9)
        a = got["interarrival"]
        solved = Run(binary, ["model", "solve", "--queue", 512, "--batch", 32, "--slot", "10ns", "--mean", repr(a["mean_slots"]),
                              "--interarrival", a["process"], "--cv", repr(a["cv"]), "--service-base", "300ns",
                              "--service-per-packet", f"{each!r}ns", "--empty-poll", "90ns", "--format", "json"]).json()
        for key in ("p_loss", "throughput_pps", "load"):
            c.close(row[key], solved[key], key, 1e-6)
        c.close(row["mean_latency_ns"], solved["sojourn_ns"]["mean"] + held["delay_ns"]["mean"], "mean_latency_ns", 1e-6)
        c.check(row["p99_latency_ns"] >= solved["sojourn_ns"]["p99"] and row["p99_latency_ns"] >= row["mean_latency_ns"] / 2, "p99")
    most = max(r["throughput_pps"] for r in got["holds"])
    equal = [r for r in got["holds"] if r["throughput_pps"] >= most * 0.999]
    c.equal(got["recommended"]["hold_ns"], min(equal, key=lambda r: r["mean_latency_ns"])["hold_ns"], "the choice")
    analyzed = Run(binary, ["analyze", "--frontier", "--window", "16us,64us,128us", "--format", "json", trace]).json()["frontier"]
    c.equal({key: got["frontier"][key] for key in analyzed}, analyzed, "the frontier, as analyze has it")
    chosen = next(b for b in analyzed["holds"] if b["hold_ns"] == got["recommended"]["hold_ns"])
    price = got["recommended"]["price"]
    c.check(f"{chosen['mean_delay_ns'] / 1e3:.1f} µs on average" in price, f"the price of {chosen['hold_ns']} ns: {price}")
    c.check("--admit adaptive --budget price=" in price and "future were known" in price, f"the other holds' price: {price}")
    text = page.read_text()
    c.check(price.split(":")[1].split(",")[0].strip() in text and "adaptive hold" in text and "future known" in text, "the frontier in the page")
    table = Run(binary, [*words[:-2], "--load", 1.1]).stdout.decode()
    c.check(price in " ".join(table.split()) and "Mean delay at equal mean train" in table, "the frontier in the table")
    yield run.command, c.wrong
    run = Run(binary, [*words, "--aim", "capacity", "--p99", "100us"])
    got, c = run.json(), Case()
    kept = [r for r in got["holds"] if r["p99_latency_ns"] <= 1e5]
    most = max(r["capacity_pps"] for r in kept)
    c.equal(got["recommended"]["hold_ns"], min(r["hold_ns"] for r in kept if r["capacity_pps"] >= most * 0.99), "the choice")
    c.close(got["offered_pps"], got["trace_pps"], "at the trace's own rate")
    c.close(got["trace_pps"], (got["packets"] - 1) / got["duration_ns"] * 1e9, "trace_pps", 1e-9)
    yield run.command, c.wrong
    for more, word in ((["--p99", "1ns"], "no hold keeps"), (["--load", "0"], "above 0"), (["--cv", "2", "--interarrival", "poisson"], "--cv"),
                       (["--holds", "5s"], "hold"), (["--slot", "0"], "slot"), (["--interarrival", "empirical", "--slot", "1ns", "--rate", "1pps"], "slot")):
        run, c = Run(binary, [*words, *more]), Case()
        c.equal(run.status, 2, "exit status")
        c.check(word in run.stderr and "panicked" not in run.stderr, f"{word!r} is not in {run.stderr!r}")
        yield run.command, c.wrong


BAD = (
    (["solve", "--mean", "80", "--batch", "300", "--queue", "200"], "queue"),
    (["solve", "--mean", "nan"], "number above zero"),
    (["solve", "--mean=-5"], "-5"),
    (["solve", "--rate=-1mpps"], "-1mpps"),
    (["solve", "--rate", "0pps"], "no packet"),
    (["solve"], "--mean"),
    (["solve", "--mean", "80", "--interarrival", "negbin"], "--cv"),
    (["solve", "--mean", "80", "--interarrival", "negbin", "--cv", "0.01"], "variation"),
    (["solve", "--mean", "80", "--cv", "0.5"], "--cv"),
    (["solve", "--mean", "0.5", "--interarrival", "geometric"], "between 1"),
    (["solve", "--mean", "80", "--slot", "0"], "slot"),
    (["solve", "--mean", "80", "--slot", "0.5"], "unit"),
    (["solve", "--mean", "80", "--start", "exact"], "exact"),
    (["solve", "--mean", "80", "--interarrival", "empirical"], "--interarrivals"),
    (["sweep", "--loads", "0"], "above 0"),
    (["sweep", "--loads", "0.5", "--processes", "pareto"], "pareto"),
    (["dimension", "--rate", "100mpps", "--max-cores", "2"], "no configuration"),
    (["dimension", "--rate", "100mpps", "--max-cores", "1"], "with 1 core the least loss"),
)
LOGS = (
    ("", "no poll"),
    ("time_ns,batch\n", "no poll"),
    ("time_ns,batch\n5,1\n4,1\n", "order"),
    ("time_ns,batch\n5,1\n", "two"),
    ("time_ns,batch\n5,1\n6,1\n7,1\n", "two sizes"),
    ("time_ns,batch\n5,x\n", "line 2"),
    ("what,is,this\n", "time_ns"),
)


def bad(binary, _job, scratch):
    """What can't be answered is refused with a reason, on stderr, with status 2."""
    runs = [(Run(binary, ["model", *words, *SERVICE]), word) for words, word in BAD]
    zero = ["--service-base", "600ns", "--service-per-packet", "77ns", "--empty-poll", "0"]
    runs.append((Run(binary, ["model", "solve", "--mean", "80", *zero]), "above zero"))
    for i, (text, word) in enumerate(LOGS):
        (scratch / f"{i}.csv").write_text(text)
        runs += [(Run(binary, ["model", verb, scratch / f"{i}.csv"]), word) for verb in ("fit", "compare")]
    for run, word in runs:
        c = Case()
        c.equal(run.status, 2, "exit status")
        c.equal(run.stdout, b"", "stdout")
        c.check(word in run.stderr and "panicked" not in run.stderr, f"{word!r} is not in {run.stderr!r}")
        yield run.command, c.wrong


def judge(binary, job, scratch):
    kind, what = job
    yield from {"reference": reference, "textbook": textbook, "polls": polls, "hold": hold, "bad": bad}[kind](binary, what, scratch)


def jobs(where):
    for case in json.loads((where / "../model/ref1.json").read_text())["cases"]:
        yield "reference", case
    for kind, cv in (("deterministic", None), ("poisson", None), ("geometric", None), ("negbin", 0.6), ("negbin", 1.7)):
        for load in (0.3, 0.9, 1.0, 1.3):
            for start in ("equilibrium", "renewal"):
                for by_scipy in (False, True) if stats else (False,):
                    yield "textbook", (kind, cv, load, start, by_scipy)
    if not stats:
        print("SciPy is not installed: what it would say is not compared")
        if os.environ.get("CI"):
            sys.exit("SciPy must be installed where CI is set")
    yield "polls", where
    yield "hold", None
    yield "bad", None


if __name__ == "__main__":
    harness.main(__doc__.splitlines()[0], jobs, judge)
