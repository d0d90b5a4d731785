"""Inputs of the benchmarks: traffic that `slipstream synth` makes, kept in a temporary directory."""
import subprocess

# name, synth arguments. 60-byte frames at 10 Mpps, as in the book's table of the engine's speed.
COMMON = ["--size", "60", "--rate", "10mpps", "--seed", "7"]
ENGINE = {
    "1k-rr": ["--flows", "1024", "--order", "round-robin"],
    "1k-random": ["--flows", "1024", "--order", "random"],
    "1k-runs": ["--flows", "1024", "--order", "round-robin", "--slf", "16"],
    "64k-1k-active": ["--flows", "65536", "--active", "1024", "--order", "round-robin"],
    "1M-1k-active": ["--flows", "1000000", "--active", "1024", "--order", "round-robin"],
    "1M-random": ["--flows", "1000000", "--order", "random"],
}


def synth(binary, path, arguments):
    """Makes a capture."""
    subprocess.run([binary, "synth", *arguments, path], check=True, stdout=subprocess.DEVNULL)
    return path


def engine_input(binary, directory, name, packets):
    """One of ENGINE, with this many packets."""
    path = f"{directory}/{name}-{packets}.pcap"
    return synth(binary, path, ["--packets", str(packets), *COMMON, *ENGINE[name]])


def snapped_input(binary, directory, packets):
    """What `analyze` is measured on: 10,000 flows, TCP and UDP, snap length 96."""
    arguments = ["--packets", str(packets), "--flows", "10000", "--zipf", "1.1", "--protocol", "mix:0.8"]
    arguments += ["--slf", "1.2", "--train", "geometric", "--rate", "1mpps", "--seed", "7", "--snap-len", "96"]
    return synth(binary, f"{directory}/snap96-{packets}.pcap", arguments)
