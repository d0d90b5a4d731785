"""Huge pages for DPDK, as many as are needed for a while."""

import contextlib
import time
from pathlib import Path

WANTED = Path("/proc/sys/vm/nr_hugepages")
FREE = Path("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")


@contextlib.contextmanager
def huge_pages(count):
    """Sees to `count` pages of 2 MiB; it takes root. Afterwards there are as many as before."""
    before = int(WANTED.read_text())
    try:
        WANTED.write_text(str(count))
        for _ in range(20):
            if int(WANTED.read_text()) == count:
                break
            # Memory that is in pieces is put together when it is asked for again.
            Path("/proc/sys/vm/compact_memory").write_text("1")
            time.sleep(0.2)
            WANTED.write_text(str(count))
        else:
            raise AssertionError(f"there are {WANTED.read_text().strip()} huge pages, not {count}: too little memory in one piece")
        yield
    finally:
        WANTED.write_text(str(before))


def free():
    """Pages of 2 MiB that nobody has."""
    return int(FREE.read_text())
