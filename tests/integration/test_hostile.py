# SPDX-License-Identifier: Apache-2.0
"""Runtimes that lie, stall and flood: the fake runtime plays them."""
import os
import re
import struct
import subprocess
import tempfile
import time

from lib import TOP, Daemon, Process, check, map_path, program, read_map, rss_kb, tool

RUNDOWN = os.path.join(TOP, "build/fixtures/10.0.15/rundown.nettrace")
LIVE = os.path.join(TOP, "build/fixtures/10.0.15/live.nettrace")


class Fake(Process):
    def __init__(self, *options, version="10.0.15", **kw):
        super().__init__([tool("fakert"), "--version", version, "--maps-coreclr"] + list(options), **kw)
        line = self.readline(20)
        check(line.startswith("ready "), line)


def clrsym_map(pid, *options, timeout=40):
    return subprocess.run([program("clrsym"), "map"] + list(options) + [str(pid)],
                          capture_output=True, text=True, timeout=timeout)


def requests(log):
    """[(command, payload)] that the fake runtime got."""
    with open(log, encoding="ascii") as f:
        rows = [l.split() for l in f]
    return [(int(r[1], 16), b"" if r[2] == "-" else bytes.fromhex(r[2])) for r in rows]


def test_recorded_rundown_becomes_a_map():
    with Fake("--rundown", RUNDOWN, "--rebase") as fake:
        p = clrsym_map(fake.pid)
        check(p.returncode == 0, p.stderr)
        lines = read_map(map_path(fake.pid))
        check(len(lines) > 3000, f"{len(lines)} lines")
        return f"{len(lines)} methods"


def u16z(s):
    data = (s + "\0").encode("utf-16-le")
    return struct.pack("<I", len(s) + 1) + data


def test_what_is_sent():
    """Exact masks on the wire, nothing but the allowed commands, for each version."""
    runtime = "Microsoft-Windows-DotNETRuntime"
    for version, live, rundown in (("3.1", 0x0203, 0x0203), ("8.0.34", 0x0203, 0x0203),
                                   ("9.0.23", 0x0205, 0x0205), ("10.0.15", 0x0206, 0x0206),
                                   ("11.0.0", 0x0206, 0x0206)):
        with tempfile.TemporaryDirectory() as d, \
                Fake("--rundown", RUNDOWN, "--rebase", "--log", d + "/log", version=version) as fake:
            p = clrsym_map(fake.pid)
            check(p.returncode == 0, f"{version}: {p.stderr}")
            seen = requests(d + "/log")
        commands = [c for c, _ in seen]
        check(set(commands) <= {0x0400, 0x0404, 0x0201, live, rundown}, f"{version}: sent {commands}")
        sessions = [(c, data) for c, data in seen if c in (live, rundown)]
        check(len(sessions) == 2, f"{version}: {len(sessions)} sessions")
        check(commands.count(0x0201) == 2, f"{version}: {commands.count(0x0201)} stops")
        a, b = (data for _, data in sessions)
        check(struct.pack("<QI", 0x98, 5) + u16z(runtime) in a, f"{version}: live keywords")
        if live == 0x0206:
            ids = (141, 142, 143, 144, 151, 152, 153, 154, 155, 156, 157)
            check(a.endswith(struct.pack("<BI11I", 1, 11, *ids)), f"{version}: event filter")
            check(struct.pack("<IIIQB", 0, 64, 1, 0x38, 0) == b[:21], f"{version}: rundown head")
        elif live == 0x0205:
            check(struct.pack("<IIQB", 64, 1, 0x38, 0) == b[:17], f"{version}: rundown head")
        else:
            check(struct.pack("<IIB", 64, 1, 1) == b[:9], f"{version}: rundown head")
            check(struct.pack("<IIB", 64, 1, 0) == a[:9], f"{version}: live head")


def expect_failure(pattern, *options, limit=12):
    with Fake(*options) as fake:
        started = time.monotonic()
        p = clrsym_map(fake.pid)
        took = time.monotonic() - started
        check(p.returncode == 1, f"{options}: exit status {p.returncode}: {p.stderr}")
        check(re.search(pattern, p.stderr), f"{options}: {p.stderr}")
        check(took < limit, f"{options}: {took:.1f} s")
        check(not os.path.exists(map_path(fake.pid)), f"{options}: a map was written")


def test_no_answer():
    expect_failure("does not answer", "--stall", "accept")


def test_no_reply():
    expect_failure("does not answer", "--stall", "reply")


def test_closed_without_reply():
    expect_failure("closed the connection", "--close-after", "request")


def test_garbage_reply():
    expect_failure("not of the diagnostic protocol", "--garbage")
    expect_failure("not of the diagnostic protocol", "--http")


def test_garbage_stream():
    expect_failure("not a nettrace stream", "--garbage=stream")


def test_refused():
    expect_failure("refused.*FAIL", "--error", "80004005", "--only", "live")


def test_nothing_announced():
    """A rundown that cannot be had, or says nothing: an error, and no empty map."""
    expect_failure("announced none of its code", "--error", "80004005", "--only", "rundown")
    expect_failure("announced none of its code", "--garbage=stream", "--only", "rundown")


def test_interrupted():
    """SIGTERM in the middle of a rundown: no map that looks whole and is not."""
    with Fake("--rundown", RUNDOWN, "--stall", "stream") as fake, \
            Process([program("clrsym"), "map", str(fake.pid)]) as p:
        time.sleep(1)
        p.signal(15)
        check(p.wait(10) == 1, "exit status")
        check("interrupted" in p.errors(), p.errors())
        check(not os.path.exists(map_path(fake.pid)), "a map was written")


def test_suspended():
    expect_failure("suspended", "--suspended")


def test_stream_that_stops_dead():
    """The rundown stalls in mid-stream: given up at the stop's deadline, others unharmed."""
    with Fake("--rundown", RUNDOWN, "--stall", "stream") as fake, \
            Fake("--rundown", RUNDOWN, "--rebase") as good, Daemon(fake.pid, good.pid) as daemon:
        daemon.wait_for(rf"pid {good.pid}: .* known")
        status, took = daemon.stop()
        check(status == 0 and took < 5.2, f"status {status} after {took:.1f} s")


def test_cut_stream_keeps_what_came():
    """The connection breaks in the middle of the rundown: every whole block counts."""
    with Fake("--rundown", RUNDOWN, "--rebase", "--close-after", "800000", "--only", "rundown") as fake:
        p = clrsym_map(fake.pid)
        check(p.returncode == 0, p.stderr)
        check("incomplete" in p.stderr, p.stderr)
        lines = read_map(map_path(fake.pid))
        check(len(lines) > 500, f"{len(lines)} lines")
        return f"{len(lines)} methods from the first 800,000 bytes"


def test_flood():
    """Gigabytes of filler: memory stays flat, the others are served."""
    total = int(os.environ.get("CLRSYM_FLOOD_BYTES", 500_000_000))
    with Fake("--flood", str(total), "--only", "live", "--rundown", RUNDOWN) as fake, \
            Fake("--rundown", RUNDOWN, "--rebase") as good, Daemon(fake.pid, good.pid) as daemon:
        daemon.wait_for(rf"pid {good.pid}: .* known", 120)
        peak, end = 0, time.monotonic() + 6 + total / 3e8
        while time.monotonic() < end:
            peak = max(peak, rss_kb(daemon.pid))
            time.sleep(0.05)
        check(peak < 120_000, f"{peak} KB")
        status, took = daemon.stop()
        check(status == 0 and took < 5.2, f"status {status} after {took:.1f} s")
        return f"{total / 1e6:.0f} MB, at most {peak / 1000:.0f} MB resident"


def test_drip():
    """A few bytes a second cost nobody anything."""
    with Fake("--drip", "50", "--rundown", RUNDOWN) as fake, \
            Fake("--rundown", RUNDOWN, "--rebase") as good, Daemon(fake.pid, good.pid) as daemon:
        started = time.monotonic()
        daemon.wait_for(rf"pid {good.pid}: .* known", 20)
        check(time.monotonic() - started < 10, "the other target waited")
        _, took = daemon.stop()
        check(took < 5.2, f"SIGTERM took {took:.1f} s")


def test_killed_in_session():
    """The target dies by SIGKILL: the map keeps its last state, the daemon ends in good order."""
    with Fake("--rundown", RUNDOWN, "--rebase", "--live", LIVE) as fake, Daemon(fake.pid) as daemon:
        daemon.complete()
        time.sleep(0.5)
        fake.signal(9)
        check(daemon.wait(20) == 0, daemon.errors())
        check(len(read_map(map_path(fake.pid))) > 3000, "the map lost its lines")


def test_rundown_is_repeated_once():
    """Lost events in the rundown: one retry with a larger buffer, and the second answer counts."""
    lossy = os.path.join(TOP, "build/fixtures/loss-10.0.15/rundown-many30k-mb4.nettrace")
    with tempfile.TemporaryDirectory() as d, \
            Fake("--rundown", lossy, "--second-stream", RUNDOWN, "--log", d + "/log") as fake:
        p = clrsym_map(fake.pid)
        check(p.returncode == 0, p.stderr)
        check("once more" in p.stderr, p.stderr)
        rundowns = [data for c, data in requests(d + "/log") if c == 0x0206 and
                    struct.unpack_from("<Q", data, 12)[0] == 0x38]
        sizes = [struct.unpack_from("<I", data, 4)[0] for data in rundowns]
        check(len(sizes) == 2 and sizes[0] == 64 and 64 < sizes[1] <= 1024, f"buffers {sizes} MB")
        return f"buffers of {sizes} MB"
