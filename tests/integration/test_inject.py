# SPDX-License-Identifier: Apache-2.0
"""clrsym inject and clrsym perf with real recordings; names are judged by the program's own log."""
import collections
import contextlib
import functools
import glob
import hashlib
import os
import re
import select
import shutil
import signal
import socket
import stat
import struct
import subprocess
import tempfile
import time

import perf_truth
from lib import (Failure, Load, Process, Skip, check, name_at, program, read_map, tool,
                 workload)

EVENT = ("-e", "cpu-clock", "-F", "4000")
# No copies of every file that was hit into perf's own cache, and no second of waiting at the end.
QUICK = ("-q", "-N", "--no-bpf-event")
# What is still there after the recording: code that never moves, or is never dropped.
STEADY = "kinds=ordinary,generic,once,few,framework,grow"
NOBODY = 65534


def need():
    if not shutil.which("perf"):
        raise Skip("no perf")
    if os.getuid() != 0:
        raise Skip("needs root")


@contextlib.contextmanager
def folder():
    """A directory for one test, with the build-id cache in it."""
    need()
    with tempfile.TemporaryDirectory(prefix="clrsym-inject-") as d:
        yield d


def digest(path):
    """Of a file, or of all files below a directory."""
    h = hashlib.sha256()
    files = [path] if os.path.isfile(path) else sorted(glob.glob(os.path.join(path, "*")))
    for name in files:
        with open(name, "rb") as f:
            h.update(f.read())
    return h.hexdigest()


def clrsym(*args, **kw):
    return subprocess.run([program("clrsym")] + list(args), capture_output=True, text=True,
                          timeout=120, **kw)


def cache_of(d):
    return os.path.join(d, "debug")


def inject(data, out=None, *options, status=0):
    """Injects with a cache beside the file; the input stays as it was. Returns (output, stderr)."""
    out = out or data + ".out"
    before = digest(data)
    p = clrsym("inject", "-i", data, "-o", out, "--buildid-dir", cache_of(os.path.dirname(data)), *options)
    check(p.returncode == status, f"exit status {p.returncode}: {p.stderr[-800:]}")
    check(digest(data) == before, "the input was changed")
    check(not p.stdout, f"stdout: {p.stdout[:200]!r}")
    if status == 0 and os.path.isfile(out):
        check(stat.S_IMODE(os.stat(out).st_mode) == 0o600, f"mode {os.stat(out).st_mode:o}")
    return out, p.stderr


def refused(p, pattern, *outputs):
    """Exit status 1, one line with cause and remedy, nothing left behind."""
    lines = p.stderr.strip().splitlines()
    check(p.returncode == 1, f"exit status {p.returncode}, stderr {p.stderr!r}")
    check(len(lines) == 1 and re.search(pattern, lines[0]), f"not one line like {pattern!r}: {p.stderr!r}")
    check(not p.stdout, f"stdout: {p.stdout[:200]!r}")
    for path in outputs:
        check(not os.path.exists(path), f"{path} was left behind")
        beside = [f for f in os.listdir(os.path.dirname(path)) if f.startswith(os.path.basename(path))]
        check(not beside, f"left behind: {beside}")
    return lines[0]


def last_line(text):
    return text.strip().rpartition("\n")[2]


def children(pid):
    with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as f:
        return [int(c) for c in f.read().split()]
    return []


class Control:
    """perf's control fifos: an answer means that what runs from now on is sampled."""

    def __init__(self, d):
        self.paths = [os.path.join(d, f"{name}-{os.getpid()}-{time.monotonic_ns()}") for name in ("ctl", "ack")]
        for path in self.paths:
            os.mkfifo(path)
        self.fds = [os.open(path, os.O_RDWR | os.O_NONBLOCK) for path in self.paths]
        self.option = f"--control=fifo:{self.paths[0]},{self.paths[1]}"

    def wait(self, timeout=30):
        os.write(self.fds[0], b"ping\n")
        check(select.select([self.fds[1]], [], [], timeout)[0], "perf record does not start")
        os.read(self.fds[1], 100)

    def close(self):
        for fd, path in zip(self.fds, self.paths):
            os.close(fd)
            os.unlink(path)
        self.fds = []

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


@contextlib.contextmanager
def recording(data, *options, clock=("-k", "mono"), **kw):
    """perf record until the end of the block."""
    with Control(os.path.dirname(data)) as control, tempfile.TemporaryFile("w+") as err:
        argv = ["perf", "record", *QUICK, *clock, *EVENT, control.option, "-o", data, *options]
        with subprocess.Popen(argv, stderr=err, **kw) as p:
            try:
                control.wait()
                yield p
            finally:
                p.send_signal(signal.SIGINT)
                p.wait(60)
        err.seek(0)
        text = err.read()
        check(p.returncode in (0, -signal.SIGINT), f"{' '.join(argv)}: {p.returncode} {text[-400:]}")


def shares(d, *options, seconds=0.8, tag="a", **kw):
    """The program under test, waiting; its log is d/TAG.tsv."""
    return Load("shares", str(seconds), os.path.join(d, tag + ".tsv"), "wait", f"tag={tag}", *options, **kw)


def run_shares(load):
    load.write("go")
    done = load.readline(60)
    check(done.startswith("done "), f"shares said: {done}")


def kinds_of(verdict):
    return ", ".join(f"{k} {n}" for k, n in sorted(verdict.right.items()))


def judged(v, least=300, unknown=None):
    """
    The requirement: nothing wrong, and 99.9 % of what lies in known code named. unknown(sample,
    kind): this unnamed one is in code that nobody can know of.
    """
    check(v.total() >= least, f"only {v.total()} samples in managed code: no test ({v})")
    wrong = [(s.sym, f"{s.ip:x}", kind, name) for s, kind, name in v.wrong[:3]]
    check(not v.wrong, f"{v}; wrong e.g. {wrong}")
    lost = [u for u in v.unnamed_samples if not (unknown and unknown(u[0], u[1]))]
    some = collections.Counter(name for _, _, name in lost).most_common(3)
    check(len(lost) <= v.total() // 1000, f"{v}; most of {some}")
    check(v.around <= v.total() // 200 + 2, f"{v.around} samples between rounds: no test")
    hidden = len(v.unnamed_samples) - len(lost)
    return f"{sum(v.right.values())} of {v.total()} right" + (f", {hidden} in code not known" if hidden else "")


def used_later(_sample, kind):
    """Precompiled code that was first used after the attach: no event tells of it."""
    return kind == "framework"


def spin_and_quit(load):
    load.ok("spin 1 300")
    load.write("quit")
    load.wait()


def stays(lines, addr):
    """In a body of the perf map that cannot have come to a used address: any but dynamic methods."""
    name = name_at(lines, addr)
    return name is not None and not name.startswith("dynamicClass::")


def perf_map(pid, d):
    """The code map of a process, as lines, taken aside: perf itself must not find it."""
    p = clrsym("map", str(pid))
    check(p.returncode == 0, p.stderr)
    path = f"/tmp/perf-{pid}.map"
    lines = read_map(path)
    shutil.move(path, os.path.join(d, f"{pid}.map"))
    return lines


# -- every runtime: known shares in known methods -------------------------------------------


def live(runtime="10", kind="plain", env=None, **kw):
    """Recorded, then injected while the process is still there."""
    with folder() as d:
        data = os.path.join(d, "perf.data")
        with shares(d, STEADY + ",dynamic", runtime=runtime, kind=kind, env=env) as load:
            with recording(data, "-p", str(load.pid)):
                run_shares(load)
            out, closing = inject(data)
            lines = perf_map(load.pid, d)
        log = perf_truth.Log(os.path.join(d, "a.tsv"))

        # native code of a single-file program lies in the same file as its precompiled code
        def is_managed(s, dso):
            if os.path.basename(dso) == "load":
                return name_at(lines, s.ip) is not None
            return perf_truth.managed(dso)
        raw = perf_truth.script(data)
        before = perf_truth.judge(raw, log, is_managed=is_managed)
        named = perf_truth.script(out, buildid_dir=cache_of(d))
        check([s[:5] for s in raw] == [s[:5] for s in named], "not the same samples any more")
        v = perf_truth.judge(named, log, {(s.tid, s.ns): s.dso for s in raw}, is_managed)
        check(before.named() == 0, f"named before: {before}")
        # Who attaches afterwards cannot tell whether a dynamic method was there all the time. 3.1 does
        # not list precompiled code that has been compiled again since.
        note = judged(v, unknown=lambda s, k: k == "dynamic" or used_later(s, k) and not stays(lines, s.ip))
        for k in ("ordinary", "generic", "once", "few", "framework", "dynamic"):
            check(v.right[k] + v.unnamed[k] > 20, f"{k}: {v.right[k]} samples: no test")
        lost = [s for s in named if s.pid == log.tid and s.sym == "[unknown]" and stays(lines, s.ip)]
        managed = sum(s.pid == log.tid and name_at(lines, s.ip) is not None for s in named)
        check(len(lost) <= managed // 1000, f"{len(lost)} of {managed} in known bodies have no name, e.g. {lost[:2]}")
        said = re.search(r"(\d+) of (\d+) samples in managed code have a name", closing)
        has = sum(s.pid == log.tid and s.sym != "[unknown]" and name_at(lines, s.ip) is not None for s in named)
        check(said and abs(int(said[1]) - has) <= has // 100 + 2, f"{has} have a name, but: {closing}")
        return f"before 0 %, after: {note} ({kinds_of(v)}); {managed} in known bodies, {len(lost)} without a name"


def test_runtime_3_1():
    return live("3.1")


def test_runtime_8():
    return live("8")


def test_runtime_9():
    return live("9")


def test_runtime_10():
    return live("10")


def test_runtime_11():
    return live("11")


def test_no_write_xor_execute():
    return live(env={"DOTNET_EnableWriteXorExecute": "0"})


def test_ready_to_run():
    return live(kind="r2r")


def test_single_file():
    return live(kind="singlefile")


def test_report():
    """perf report --stdio: the methods of the log, in its order of size."""
    with folder() as d:
        data = os.path.join(d, "perf.data")
        with shares(d, "kinds=ordinary,generic,few") as load:
            with recording(data, "-p", str(load.pid)):
                run_shares(load)
            out, _ = inject(data)
        p = perf_truth.perf("report", "--stdio", "-i", out, "-s", "sym", buildid_dir=cache_of(d))
        check(p.returncode == 0, p.stderr[-500:])
        rows = re.findall(r"^\s+([\d.]+)%\s+\[\.\] (.*?)\s*$", p.stdout, re.M)
        shown = collections.Counter()
        for percent, name in rows:
            shown[perf_truth.base(name)] += float(percent)
        # by the log: of all samples the part that was taken in the method's rounds
        log = perf_truth.Log(os.path.join(d, "a.tsv"))
        rounds = [log.at(s.ns) if s.tid == log.tid else None for s in perf_truth.script(data)]
        for name, n in collections.Counter(r[1] for r in rounds if r).items():
            part = 100 * n / len(rounds)
            check(part > 5 and abs(shown[name] - part) < 3, f"{name}: {shown[name]:.1f} %, by the log {part:.1f} %")
        return f"{rows[0][0]} % {rows[0][1]}"


# -- while the process runs: what moves and dies --------------------------------------------


@contextlib.contextmanager
def clrsym_perf(d, *record):
    """clrsym perf, recording already; stopped by the block."""
    with Control(d) as control, Process([program("clrsym"), "perf", "--buildid-dir", cache_of(d), "--", "record",
                                         *QUICK, *EVENT, control.option, *record]) as p:
        control.wait()
        yield p


def reused(runtime, env=None):
    """Dynamic and collectible code at the same addresses while the heap grows, with clrsym perf."""
    with folder() as d:
        out = os.path.join(d, "perf.data")
        with shares(d, "kinds=ordinary,dynamic,framework,reused,collectible,grow", seconds=2, runtime=runtime,
                    env=env) as load, \
                clrsym_perf(d, "-o", out, "-p", str(load.pid)) as cp:
            run_shares(load)
            cp.signal(signal.SIGINT)
            status = cp.wait(60)
            check(status == 0, f"clrsym perf: {status} {cp.errors()[-800:]}")
            closing = last_line(cp.errors())
        v = perf_truth.judge(perf_truth.script(out, buildid_dir=cache_of(d)),
                             perf_truth.Log(os.path.join(d, "a.tsv")))
        note = judged(v, unknown=used_later)
        check(v.right["reused"] > 100 and v.right["collectible"] > 30, f"no test: {kinds_of(v)}")
        check(v.reuse() >= 12, f"only {v.reuse()} methods around one address: no test")
        check(closing, "no closing line")
        return f"{note} ({kinds_of(v)}), up to {v.reuse()} methods around one address"


def test_reused_addresses_10():
    return reused("10")


def test_reused_addresses_3_1():
    return reused("3.1")


def test_reused_addresses_no_write_xor_execute():
    return reused("10", env={"DOTNET_EnableWriteXorExecute": "0"})


def test_reused_addresses_afterwards():
    """Attached only after the recording: what is at an address now was not there then. No lies."""
    with folder() as d:
        data = os.path.join(d, "perf.data")
        with shares(d) as load:
            with recording(data, "-p", str(load.pid)):
                run_shares(load)
            out, _ = inject(data)
        v = perf_truth.judge(perf_truth.script(out, buildid_dir=cache_of(d)),
                             perf_truth.Log(os.path.join(d, "a.tsv")), perf_truth.raw_dsos(data))
        wrong = collections.Counter(kind for _, kind, _ in v.wrong)
        check(not v.wrong, f"{v}; wrong: {dict(wrong)}, e.g. {v.wrong[:1]}")
        check(v.total() > 300 and v.right["ordinary"] > 50, f"no test: {v}")
        return str(v)


def test_perf_starts_the_program():
    """clrsym perf -- record ... -- PROGRAM: from nothing to a report; the program has ended by then."""
    with folder() as d:
        out, log = os.path.join(d, "perf.data"), os.path.join(d, "a.tsv")
        exe = workload()
        with clrsym_perf(d, "-o", out, "--", exe, "shares", "1.5", log) as cp:
            check(cp.readline(30).startswith("ready"), "the program has no stdout")
            cp.readline(60)
            cp.write("quit")
            status = cp.wait(60)
            check(status == 0, f"clrsym perf: {status} {cp.errors()[-800:]}")
            closing = last_line(cp.errors())
        v = perf_truth.judge(perf_truth.script(out, buildid_dir=cache_of(d)), perf_truth.Log(log))
        return f"{judged(v, unknown=used_later)} ({kinds_of(v)}): {closing}"


def test_perf_other_clock():
    """A clock of the user's choice: times are converted, to the microsecond."""
    with folder() as d:
        out = os.path.join(d, "perf.data")
        with shares(d, "kinds=ordinary,reused,grow", seconds=1) as load, \
                clrsym_perf(d, "-k", "CLOCK_MONOTONIC_RAW", "-o", out, "-p", str(load.pid)) as cp:
            run_shares(load)
            # the best of some tries: nothing came between the two readings
            raw = time.CLOCK_MONOTONIC_RAW
            apart = max(time.clock_gettime_ns(raw) - time.monotonic_ns() for _ in range(1000))
            cp.signal(signal.SIGINT)
            check(cp.wait(60) == 0, cp.errors()[-800:])
        samples = [s._replace(ns=s.ns - apart) for s in perf_truth.script(out, buildid_dir=cache_of(d))]
        v = perf_truth.judge(samples, perf_truth.Log(os.path.join(d, "a.tsv")))
        note = judged(v)
        check(v.right["reused"] > 100, f"no test: {v}")
        return f"{note}, clocks {apart / 1e6:.1f} ms apart"


def test_perf_interrupted():
    """^C reaches clrsym and perf alike: the recording is whole, named, and nothing else is left."""
    with folder() as d:
        out = os.path.join(d, "perf.data")
        with Load("hot", "20") as load, Control(d) as control, \
                Process([program("clrsym"), "perf", "--buildid-dir", cache_of(d), "--", "record", *QUICK, *EVENT,
                         control.option, "-o", out, "-p", str(load.pid)], start_new_session=True) as cp:
            control.wait()
            time.sleep(0.3)
            os.killpg(cp.pid, signal.SIGINT)
            check(cp.wait(30) == 0, cp.errors()[-500:])
            control.close()
            check(sorted(os.listdir(d)) == ["debug", "perf.data"], f"left: {os.listdir(d)}")
            check(stat.S_IMODE(os.stat(out).st_mode) == 0o600, "mode")
            closing = last_line(cp.errors())
        named, _ = unnamed(perf_truth.script(out, buildid_dir=cache_of(d)), load.pid)
        inner = sum(perf_truth.base(s.sym) == "Lab.Hot.Chain::Inner" for s in named)
        check(inner > 200, f"{inner} named")
        return closing


def test_perf_exit_status():
    """The program's own is handed on, perf's complaints are perf's, and no directory stays behind."""
    with folder() as d:
        def run(*args):
            status = clrsym("perf", "--buildid-dir", cache_of(d), "--", *args, cwd=d).returncode
            left = [f for f in os.listdir(d) if f.startswith(".")]
            check(not left, f"{args}: left behind: {left}")
            return status
        check(run("record", *QUICK, *EVENT, "sh", "-c", "exit 3") == 3, "not the program's status")
        check(os.path.exists(os.path.join(d, "perf.data")), "no perf.data")
        check(run("record", *QUICK, *EVENT, "--", "true") == 0 and
              os.path.exists(os.path.join(d, "perf.data.old")), "perf.data.old")
        check(run("record", *QUICK, *EVENT, "sh", "-c", "kill -9 $$") == 137, "killed")
        check(run("record", "--nonsense") not in (0, 2), "perf's own status")
        check(run("report") == 2 and run() == 2, "usage")
        check(run("record", "-o", "no/such/file", "true") == 1, "no such directory")


def test_perf_output_is_safe():
    """What is no file stays what it is; parts of a recording come and go as a whole; a folder of others is no danger."""
    with folder() as d:
        def run(out, *options):
            return clrsym("perf", "--buildid-dir", cache_of(d), "--", "record", *QUICK, *EVENT, *options, "-o", out,
                          "true", cwd=d)
        null = os.path.join(d, "null")
        os.mknod(null, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        p = run(null)
        check(p.returncode == 1 and "neither a file" in p.stderr, p.stderr)
        check(stat.S_ISCHR(os.stat(null).st_mode) and not os.path.exists(null + ".old"), "the device is hurt")
        for _ in range(3):
            p = run("parts", "--threads")
            check(p.returncode == 0, p.stderr)
        check(os.path.exists(os.path.join(d, "parts", "data")) and
              os.path.exists(os.path.join(d, "parts.old", "data")), os.listdir(d))
        # the folder's owner would exchange a work folder in it
        theirs = os.path.join(d, "theirs")
        os.mkdir(theirs, 0o755)
        os.chown(theirs, NOBODY, NOBODY)
        with Process([program("clrsym"), "perf", "--buildid-dir", cache_of(d), "--", "record", *QUICK, *EVENT,
                      "-o", os.path.join(theirs, "out"), "sleep", "0.5"]) as cp:
            seen = set()
            while cp.p.poll() is None:
                seen |= set(os.listdir(theirs))
                time.sleep(0.02)
            check(cp.wait(30) == 0, cp.errors())
        check(not [f for f in seen if "clrsym-perf" in f] and os.path.exists(os.path.join(theirs, "out")), seen)


def test_inject_can_be_stopped():
    """Waiting for input that does not come; a pipe survives the ^C that ends its recording."""
    with folder() as d:
        fifo = os.path.join(d, "fifo")
        os.mkfifo(fifo)
        for number in (signal.SIGTERM, signal.SIGHUP):
            with Process([program("clrsym"), "inject", "-i", fifo, "-o", os.path.join(d, "out")]) as cp:
                time.sleep(0.2)
                cp.signal(number)
                check(cp.wait(5) == 1, cp.errors())
        out = os.path.join(d, "out")
        with subprocess.Popen([program("clrsym"), "inject", "-i", "-", "-o", out, "--buildid-dir", cache_of(d)],
                              stdin=subprocess.PIPE, stderr=subprocess.PIPE) as p:
            piped = subprocess.run(["perf", "record", *QUICK, *EVENT, "-o", "-", "true"], stdout=subprocess.PIPE,
                                   stderr=subprocess.DEVNULL, check=True).stdout
            p.stdin.write(piped[:len(piped) // 2])
            p.stdin.flush()
            time.sleep(0.2)
            p.send_signal(signal.SIGINT)
            time.sleep(0.2)
            p.stdin.write(piped[len(piped) // 2:])
            p.stdin.close()
            check(p.wait(20) == 0, p.stderr.read())
        with open(out, "rb") as f:
            check(f.read() == piped, "the rest of the pipe is lost")


def test_perf_precompiled_code_used_later():
    """Precompiled methods that were first used after the attach: one more rundown names them."""
    with folder() as d:
        out = os.path.join(d, "perf.data")
        with shares(d, "kinds=framework", seconds=1, env={"DOTNET_TieredCompilation": "0"}) as load:
            with clrsym_perf(d, "-o", out, "-p", str(load.pid)) as cp:
                run_shares(load)
                cp.signal(signal.SIGINT)
                check(cp.wait(60) == 0, cp.errors()[-800:])
        return judged(perf_truth.judge(perf_truth.script(out, buildid_dir=cache_of(d)),
                                       perf_truth.Log(os.path.join(d, "a.tsv"))), 200)


def test_two_processes():
    """The same methods, the same mapping names, in one file: each name is its own process's."""
    with folder() as d:
        out = os.path.join(d, "perf.data")
        with shares(d, tag="left") as left, shares(d, tag="right") as right, \
                clrsym_perf(d, "-o", out, "-p", f"{left.pid},{right.pid}") as cp:
            left.write("go")
            right.write("go")
            check(left.readline(60).startswith("done") and right.readline(60).startswith("done"), "done")
            cp.signal(signal.SIGINT)
            check(cp.wait(60) == 0, cp.errors()[-800:])
        samples = perf_truth.script(out, buildid_dir=cache_of(d))
        logs = [perf_truth.Log(os.path.join(d, f"{t}.tsv")) for t in ("left", "right")]
        note = judged(perf_truth.judge(samples, logs), unknown=used_later)
        for log, other in zip(logs, ("right", "left")):
            mixed = [s.sym for s in samples
                     if s.pid == log.tid and re.search(f"(Kept|Reused|Shares)_{other}", s.sym)]
            check(not mixed, f"pid {log.tid} has names of the other: {mixed[:3]}")
        return note


# -- variants of recordings -----------------------------------------------------------------

VARIANTS = {
    "compressed": ["-z"],
    "buildid_mmap": ["--buildid-mmap"],
    "dwarf": ["--call-graph", "dwarf,1024"],
    "frame_pointers": ["-g"],
    "two_events": ["-e", "page-faults"],
    "threads": ["--threads"],
    "all_cpus": ["-a"],
}


@functools.cache
def variants():
    """
    One process that runs on, recorded in every way, each recording injected at once. Judged at the
    end, when the log is there. Returns {variant: note or what went wrong}.
    """
    found, outs = {}, {}
    with folder() as d:
        # without tiers precompiled code stays in use
        with shares(d, STEADY, seconds=60, env={"DOTNET_TieredCompilation": "0"}) as load:
            load.write("go")
            time.sleep(0.5)
            for name, options in VARIANTS.items():
                data = os.path.join(d, name)
                try:
                    who = [] if "-a" in options else ["-p", str(load.pid)]
                    with recording(data, *options, *who):
                        time.sleep(0.3)
                    outs[name] = inject(data)[0]
                except (Failure, subprocess.SubprocessError, OSError) as e:
                    found[name] = e
            lines = perf_map(load.pid, d)
            with contextlib.suppress(OSError):
                load.write("stop")
            for name, out in outs.items():
                found[name] = out
            done = load.readline(90)
            check(done.startswith("done"), done)
        log = perf_truth.Log(os.path.join(d, "a.tsv"))
        for name, out in outs.items():
            try:
                samples = perf_truth.script(out, buildid_dir=cache_of(d))
                # in no method at all: a stub
                note = judged(perf_truth.judge(samples, log), 200,
                              unknown=lambda s, _: name_at(lines, s.ip) is None)
                if name in ("frame_pointers", "dwarf"):
                    note += ", " + managed_frames(out, cache_of(d), log.tid, lines, 20 if name == "dwarf" else 200)
                found[name] = note
            except (Failure, OSError, subprocess.SubprocessError) as e:
                found[name] = e
    return found


def settled(path, quiet=0.3, timeout=30):
    """Waits until a file has content and stays as it is."""
    end, size, since = time.monotonic() + timeout, 0, time.monotonic()
    while not size or time.monotonic() - since < quiet:
        check(time.monotonic() < end, f"{path} is still written to")
        now = os.path.getsize(path) if os.path.exists(path) else 0
        if now != size:
            size, since = now, time.monotonic()
        time.sleep(0.02)


def managed_frames(out, cache, pid, lines, part):
    """
    No frame of a chain in a method without a name. (One part may be in no method at all: return addresses into
    stubs, or an unwinder that was misled.)
    """
    frames = [f for _, p, chain in perf_truth.chains(out, cache) if p == pid for f in chain
              if f[2] != "[unknown]" and perf_truth.managed(f[2])]
    without = [f for f in frames if f[1] == "[unknown]"]
    lost = [(hex(f[0]), name_at(lines, f[0])) for f in without if name_at(lines, f[0])]
    check(frames and not lost, f"{len(lost)} of {len(frames)} frames in methods have no name, e.g. {lost[:3]}")
    check(len(without) <= len(frames) // part,
          f"{len(without)} of {len(frames)} managed frames have no name, e.g. {without[:3]}")
    return f"{len(frames)} managed frames named"


def variant(name):
    def test():
        note = variants().get(name)
        if isinstance(note, Exception):
            raise Failure(str(note))
        return note
    return test


for _v in VARIANTS:
    globals()[f"test_record_{_v}"] = variant(_v)


def test_record_pipe():
    """perf record -o - | clrsym inject -i - -o - | perf script -i -"""
    with folder() as d:
        with shares(d, STEADY, seconds=0.8) as load, Control(d) as control:
            record = subprocess.Popen(["perf", "record", *QUICK, "-k", "mono", *EVENT, control.option, "-p",
                                       str(load.pid), "-o", "-"],
                                      stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            injecting = subprocess.Popen(
                [program("clrsym"), "inject", "-i", "-", "-o", "-", "--buildid-dir", cache_of(d)],
                stdin=record.stdout, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            script = subprocess.Popen(
                ["perf", "--buildid-dir", cache_of(d), "script", "-i", "-", "--ns", "-F",
                 "comm,pid,tid,time,ip,sym,dso"], stdin=injecting.stdout, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, text=True, errors="replace")
            record.stdout.close()
            injecting.stdout.close()
            try:
                control.wait()
                run_shares(load)
                record.send_signal(signal.SIGINT)
                text, errors = script.communicate(timeout=60)
                closing = injecting.stderr.read().decode().strip()
                check(injecting.wait(10) == 0, closing[-500:])
                check(script.returncode == 0, errors[-500:])
            finally:
                for p in (record, injecting, script):
                    p.kill()
                    p.wait()
        samples = perf_truth.parse(text)
        return judged(perf_truth.judge(samples, perf_truth.Log(os.path.join(d, "a.tsv"))), 200)


def test_record_switch_output():
    """Several files of one recording, each injected for itself."""
    with folder() as d:
        data = os.path.join(d, "perf.data")
        with shares(d, STEADY, seconds=0.9) as load:
            with recording(data, "--switch-output", "-p", str(load.pid)) as record:
                load.write("go")
                time.sleep(0.5)
                record.send_signal(signal.SIGUSR2)
                check(load.readline(60).startswith("done"), "done")
            parts = sorted(glob.glob(data + ".2*"))
            check(len(parts) >= 2, f"parts: {parts}")
            outs = [inject(p)[0] for p in parts]
        log = perf_truth.Log(os.path.join(d, "a.tsv"))
        return "; ".join(judged(perf_truth.judge(perf_truth.script(out, buildid_dir=cache_of(d)), log), 100)
                         for out in outs)


def test_record_per_thread():
    """No times in the file: the last known state counts, and that is said."""
    with folder() as d:
        data = os.path.join(d, "perf.data")
        with Load("hot", "20") as load:
            time.sleep(0.4)
            with recording(data, "--per-thread", "-p", str(load.pid), clock=()):
                time.sleep(0.4)
            out, closing = inject(data)
        check("no time" in closing, closing)
        raw = perf_truth.script(data, times=False)
        named = perf_truth.script(out, buildid_dir=cache_of(d), times=False)
        names = collections.Counter(perf_truth.base(n.sym) for r, n in zip(raw, named)
                                    if perf_truth.managed(r.dso) and not r.dso.endswith(".so"))
        total = sum(names.values())
        check(total > 200 and names["Lab.Hot.Chain::Inner"] >= 0.99 * total, f"{names.most_common(4)} of {total}")
        return next(l for l in closing.splitlines() if "no time" in l)


def test_record_default_clock():
    """Without -k mono times cannot be matched afterwards: code that never moved is still named."""
    with folder() as d:
        data = os.path.join(d, "perf.data")
        with Load("hot", "20") as load:
            time.sleep(0.4)
            with recording(data, "-p", str(load.pid), clock=()):
                time.sleep(0.4)
            out, closing = inject(data)
        names = collections.Counter(perf_truth.base(s.sym) for s in perf_truth.script(out, buildid_dir=cache_of(d))
                                    if perf_truth.managed(s.dso))
        total = sum(names.values())
        check(total > 200 and names["Lab.Hot.Chain::Inner"] >= 0.99 * total, f"{names.most_common(4)} of {total}")
        return last_line(closing)


def test_stacks():
    """perf script names every managed frame of a stack, in the right order."""
    with folder() as d:
        data = os.path.join(d, "perf.data")
        with Load("hot", "20") as load:
            time.sleep(0.4)
            with recording(data, "-g", "-p", str(load.pid)):
                time.sleep(0.5)
            out, _ = inject(data)
            pid, lines = load.pid, perf_map(load.pid, d)
        note = managed_frames(out, cache_of(d), pid, lines, 200)
        hot = "Inner Middle Outer Main".split()
        whole = broken = 0
        for _, p, chain in perf_truth.chains(out, cache_of(d)):
            ours = [perf_truth.base(f[1]).rpartition("::")[2] for f in chain if f[1].startswith("Lab.Hot.Chain::")]
            if p == pid and ours and ours[0] == "Inner" and perf_truth.managed(chain[0][2]):
                whole += ours == hot
                broken += ours != hot
        check(whole > 200 and broken <= whole // 50, f"{whole} whole chains, {broken} others")
        return f"{note}, {whole} chains Inner to Main, {broken} cut in a prologue"


def test_annotate():
    """perf annotate prints a JIT'd method's instructions."""
    with folder() as d:
        data = os.path.join(d, "perf.data")
        with shares(d, "kinds=ordinary,few", seconds=0.7) as load:
            with recording(data, "-p", str(load.pid)):
                run_shares(load)
            out, _ = inject(data)
            none, _ = inject(data, data + ".nocode", "--no-code")
        syms = collections.Counter(s.sym for s in perf_truth.script(out, buildid_dir=cache_of(d))
                                   if perf_truth.base(s.sym) == "Lab.Shares.Leaf::Few")
        check(syms, "the method is not there")
        sym = syms.most_common(1)[0][0]

        def instructions(path):
            p = perf_truth.perf("annotate", "--stdio", "-i", path, "-s", sym, buildid_dir=cache_of(d))
            found = re.findall(r"^\s*([\d.]*)\s*:\s+[0-9a-f]+:\s+([a-z]\w*)", p.stdout, re.M)
            return found, (p.stdout + p.stderr)[-1500:]
        found, text = instructions(out)
        mnemonics = collections.Counter(m for _, m in found)
        hot = sum(float(percent or 0) for percent, m in found)
        check(all(mnemonics[m] for m in ("xor", "shl", "sar")), f"{sym}: {mnemonics} {text}")
        check(90 < hot < 110, f"{hot} % on instructions: {text}")
        bare = collections.Counter(m for _, m in instructions(none)[0])
        check(not bare["shl"], f"--no-code has code: {bare}")
        return f"{sym}: {sum(mnemonics.values())} instructions"


# -- what is passed through -------------------------------------------------------------------


def test_nothing_to_do():
    """A recording without .NET comes out byte for byte, as a file and through a pipe."""
    with folder() as d:
        notes = []
        busy = ["--", "sh", "-c", "i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done"]
        for name, options in (("plain", []), ("chains", ["-g"]), ("zipped", ["-z"])):
            data = os.path.join(d, name)
            subprocess.run(["perf", "record", *QUICK, *EVENT, *options, "-o", data, *busy], check=True,
                           capture_output=True)
            out, closing = inject(data)
            check(digest(out) == digest(data), f"{name}: not the same bytes")
            check(not glob.glob(os.path.join(cache_of(d), "clrsym", "*")), "images for nothing")
            notes.append(last_line(closing))
        piped = os.path.join(d, "piped")
        with open(piped, "wb") as f:
            subprocess.run(["perf", "record", *QUICK, *EVENT, "-o", "-", *busy], stdout=f,
                           stderr=subprocess.DEVNULL, check=True)
        with open(piped, "rb") as f:
            p = subprocess.run([program("clrsym"), "inject", "-i", "-", "-o", "-", "--buildid-dir", cache_of(d)],
                               stdin=f, capture_output=True, timeout=60)
        with open(piped, "rb") as f:
            check(p.returncode == 0 and p.stdout == f.read(), f"pipe: {p.stderr[-300:]}")
        return notes[0]


# -- bad input --------------------------------------------------------------------------------


def small_recording(d, name="perf.data"):
    """Of a shell, without .NET."""
    data = os.path.join(d, name)
    subprocess.run(["perf", "record", *QUICK, "-k", "mono", *EVENT, "-o", data, "--", "sh", "-c",
                    "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done"], check=True, capture_output=True)
    return data


def honest(d, data, pid, pattern):
    """Not the recorded program: nothing of it gets a name, and the closing line says why."""
    p, out = try_inject(d, data)
    check(p.returncode in (0, 1), f"exit status {p.returncode}: {p.stderr}")
    line = [l for l in p.stderr.splitlines() if re.search(pattern, l)]
    check(line, f"nothing like {pattern!r}: {p.stderr}")
    if os.path.exists(out):
        lies, others = unnamed(perf_truth.script(out, buildid_dir=cache_of(d)), pid)
        check(len(others) > 100, f"no test: {len(others)} samples")
        check(not lies, f"{len(lies)} samples have names, e.g. {lies[:1]}")
    return line[0]


def try_inject(d, data, *options, **kw):
    out = os.path.join(d, "refused.out")
    return clrsym("inject", "-i", data, "-o", out, "--buildid-dir", cache_of(d), *options, **kw), out


def test_error_not_perf_data():
    with folder() as d:
        notes = []
        small = small_recording(d)
        with open(small, "rb") as f:
            good = f.read()
        cases = {
            "text": (b"hello\n" * 100, r"perf\.data"),
            "empty": (b"", r"perf\.data|empty"),
            "old": (b"PERFFILE" + good[8:], r"version|old|form"),
            "big-endian": (b"2ELIFREP" + good[8:], r"endian|byte order|version|form"),
            "cut": (good[:len(good) // 2], r"offset \d+|byte \d+|at \d+"),
        }
        for name, (content, pattern) in cases.items():
            data = os.path.join(d, name)
            with open(data, "wb") as f:
                f.write(content)
            p, out = try_inject(d, data)
            notes.append(refused(p, pattern, out))
            check(digest(data) == hashlib.sha256(content).hexdigest(), "the input was changed")
        p, out = try_inject(d, os.path.join(d, "absent"))
        notes.append(refused(p, "[Nn]o such file", out))
        p, out = try_inject(d, d)
        notes.append(refused(p, ".", out))
        return notes[0]


def test_error_target_gone():
    """The process has ended before anybody looked."""
    with folder() as d:
        data = os.path.join(d, "perf.data")
        with Load("serve") as load, recording(data, "-p", str(load.pid)):
            spin_and_quit(load)
        p, out = try_inject(d, data)
        return refused(p, rf"{load.pid}.*(exited|gone|ended)", out)


def test_error_no_permission():
    """As nobody, of a process of root's."""
    with folder() as d:
        data = os.path.join(d, "perf.data")
        with Load("hot", "20") as load:
            with recording(data, "-p", str(load.pid)):
                time.sleep(0.2)
            os.chmod(d, 0o777)
            os.chown(data, NOBODY, NOBODY)
            p, out = try_inject(d, data, preexec_fn=lambda: (os.setgid(NOBODY), os.setuid(NOBODY)),
                                env=dict(os.environ, HOME=d, XDG_RUNTIME_DIR=""))
            return refused(p, f"{load.pid}.*(may not be inspected|permission|root)", out)


def test_error_cache():
    """A cache that cannot be written, or is somebody else's."""
    with folder() as d:
        data = os.path.join(d, "perf.data")
        out = os.path.join(d, "refused.out")
        with Load("hot", "20") as load:
            with recording(data, "-p", str(load.pid)):
                time.sleep(0.2)
            foreign = os.path.join(d, "foreign")
            os.mkdir(foreign)
            os.chown(foreign, NOBODY, NOBODY)
            linked = os.path.join(d, "linked")
            os.mkdir(linked)
            os.symlink("/etc", os.path.join(linked, "clrsym"))
            notes = []
            for cache, pattern in (("/proc/clrsym-cache", "/proc/clrsym-cache"), (foreign, "foreign"),
                                   (linked, "linked"), (data, "perf.data")):
                p = clrsym("inject", "-i", data, "-o", out, "--buildid-dir", cache)
                notes.append(refused(p, pattern, out))
        check(not os.listdir(foreign), "something was written into it")
        return notes[1]


def test_error_output():
    with folder() as d:
        data = small_recording(d)
        out = os.path.join(d, "absent", "out")
        line = refused(clrsym("inject", "-i", data, "-o", out), "absent")
        before = digest(data)
        link = os.path.join(d, "link")
        os.symlink(data, link)
        for target in (data, link, "-"):
            refused(clrsym("inject", "-i", data, "-o", target), "-o|no regular file")
        check(digest(data) == before and os.path.islink(link), "the input is hurt")
        p = subprocess.run([program("clrsym"), "inject", "-i", "-", "-o", "-"], input="hello\n" * 100,
                           capture_output=True, text=True, timeout=30)
        refused(p, r"stdin: .*perf\.data")
        for args in (["--nonsense"], ["stray"], ["--trace"]):
            check(clrsym("inject", *args).returncode == 2, f"{args}: not 2")
        return line


# -- who it was -------------------------------------------------------------------------------


def unnamed(samples, pid):
    """(named, unnamed) of a process's samples in managed memory."""
    mine = [s for s in samples if s.pid == pid and perf_truth.managed(s.dso)]
    return [s for s in mine if s.sym != "[unknown]"], [s for s in mine if s.sym == "[unknown]"]


def test_identity_pid_reused():
    """Another .NET process has the pid now: its methods are not the recorded one's."""
    with folder() as d:
        data = os.path.join(d, "perf.data")
        with Load("serve") as old, recording(data, "-p", str(old.pid)):
            pid = old.pid
            spin_and_quit(old)
        exe = workload()
        for _ in range(20):
            try:
                with open("/proc/sys/kernel/ns_last_pid", "w", encoding="ascii") as f:
                    f.write(str(pid - 1))
            except OSError as e:
                raise Skip(f"pids cannot be chosen here: {e}") from None
            with Process([exe, "hot", "20"]) as new:
                if new.pid != pid:
                    continue
                new.readline(30)
                return honest(d, data, pid, rf"{pid}.*(exited|start|later|reused|another)")
        raise Skip("the pid was never free at the right moment")


def test_identity_exec():
    """Another program under the same pid in the middle of the recording: only its own samples are named."""
    with folder() as d:
        data, script = os.path.join(d, "perf.data"), os.path.join(d, "exec.sh")
        with open(script, "w", encoding="ascii") as f:
            f.write(f"rm -f /tmp/dotnet-diagnostic-$$-*\nexec {workload('8')} hot 20\n")
        with Load("serve") as load:
            with recording(data, "-p", str(load.pid)):
                load.ok("spin 1 400")
                before = time.monotonic_ns()
                load.ok(f"exec /bin/sh {script}")
                check(load.readline(60).startswith("ready"), "exec failed")
                after = time.monotonic_ns()
                time.sleep(0.5)
            out, closing = inject(data)
        samples = perf_truth.script(out, buildid_dir=cache_of(d))
        lies, honest = unnamed([s for s in samples if s.ns < before], load.pid)
        named, _ = unnamed([s for s in samples if s.ns > after], load.pid)
        check(len(honest) > 100, f"no test: {len(honest)}")
        check(not lies, f"{len(lies)} samples of the old program have names, e.g. {lies[:1]}")
        inner = sum(s.sym.startswith("Lab.Hot.Chain::Inner") for s in named)
        check(inner > 100, f"{inner} samples of the new program are named; {closing}")
        check(re.search(rf"{load.pid}.*(exec|exited|other)", closing), closing)
        return last_line(closing)


def other_host(data, out):
    """The same recording, of a machine with another name."""
    with open(data, "rb") as f:
        blob = bytearray(f.read())
    at, size = struct.unpack_from("<QQ", blob, 40)
    bits = struct.unpack_from("<4Q", blob, 72)
    features = [b for b in range(256) if bits[b // 64] >> (b % 64) & 1]
    entry = at + size + 16 * features.index(3)  # HOSTNAME
    offset, length = struct.unpack_from("<QQ", blob, entry)
    name = socket.gethostname().encode()
    check(blob[offset + 4:offset + 4 + len(name)] == name, "no host name there")
    blob[offset + 4:offset + 4 + len(name)] = bytes((name[0] ^ 1,)) + name[1:]
    check(length > 4, "feature")
    with open(out, "wb") as f:
        f.write(blob)


def test_identity_other_host():
    with folder() as d:
        data, moved = os.path.join(d, "perf.data"), os.path.join(d, "moved.data")
        with Load("hot", "20") as load:
            with recording(data, "-p", str(load.pid)):
                time.sleep(0.3)
            other_host(data, moved)
            return honest(d, moved, load.pid, "host|machine")


def test_identity_one_of_two():
    """One process has ended, one is there: the one is named, of the other it is said why not."""
    with folder() as d:
        data = os.path.join(d, "perf.data")
        with Load("hot", "20") as stays, Load("serve") as goes:
            with recording(data, "-p", f"{stays.pid},{goes.pid}"):
                spin_and_quit(goes)
            out, closing = inject(data)
        samples = perf_truth.script(out, buildid_dir=cache_of(d))
        named, _ = unnamed(samples, stays.pid)
        lies, honest = unnamed(samples, goes.pid)
        check(len(named) > 100 and len(honest) > 100 and not lies, f"{len(named)} {len(lies)} {len(honest)}")
        line = [l for l in closing.splitlines() if str(goes.pid) in l]
        check(line and re.search("exited|gone|ended", line[0]), closing)
        return line[0]


# -- containers -------------------------------------------------------------------------------


@contextlib.contextmanager
def contained(d, *args):
    """The program with pids and a /tmp of its own; yields (process, host pid). Its log goes to d."""
    exe = workload()
    script = (f"mount --bind {os.path.dirname(exe)} /mnt && mount --bind {d} /media && "
              f"mount -t tmpfs tmpfs /tmp && exec /mnt/load {' '.join(args)}")
    with Process(["sh", "-c", script], wrap=["unshare", "--mount", "--pid", "--fork", "--mount-proc",
                                             "--kill-child"]) as outer:
        line = outer.readline(60)
        check(line.startswith("ready"), line)
        yield outer, children(outer.pid)[0]


def test_container_alive():
    with folder() as d:
        data = os.path.join(d, "perf.data")
        with contained(d, "shares", "0.8", "/media/a.tsv", "wait", STEADY) as (load, pid):
            with recording(data, "-p", str(pid)):
                run_shares(load)
            out, _ = inject(data)
            samples = perf_truth.script(out, buildid_dir=cache_of(d))  # while it is there
        log = perf_truth.Log(os.path.join(d, "a.tsv"), pid)
        note = judged(perf_truth.judge(samples, log), 200)
        judged(perf_truth.judge(perf_truth.script(out, buildid_dir=cache_of(d)), log), 200)  # and after
        return note


def test_container_dead():
    """clrsym perf: the container ends, and its /tmp with it, before the recording does."""
    with folder() as d:
        out = os.path.join(d, "perf.data")
        with contained(d, "shares", "1", "/media/a.tsv", "wait") as (load, pid), \
                clrsym_perf(d, "-o", out, "-p", str(pid)) as cp:
            run_shares(load)
            load.write("quit")
            load.wait()
            if cp.p.poll() is None:
                cp.signal(signal.SIGINT)
            check(cp.wait(60) == 0, cp.errors()[-800:])
        v = perf_truth.judge(perf_truth.script(out, buildid_dir=cache_of(d)),
                             perf_truth.Log(os.path.join(d, "a.tsv"), pid))
        return judged(v, unknown=used_later)


# -- other ways -------------------------------------------------------------------------------


def test_trace():
    """Names from recorded streams, the process long gone."""
    with folder() as d:
        data = os.path.join(d, "perf.data")
        live_file, rundown = os.path.join(d, "live.nettrace"), os.path.join(d, "rundown.nettrace")
        with shares(d, seconds=1) as load:
            with recording(data, "-p", str(load.pid)), \
                    Process([tool("drain"), "--seconds", "3", "--save-live", live_file, "--save-rundown",
                             rundown, str(load.pid)]) as drain:
                settled(rundown)
                run_shares(load)
                check(drain.wait(30) == 0, drain.errors())
            load.write("quit")
            load.wait()
        log = perf_truth.Log(os.path.join(d, "a.tsv"))
        notes = []
        for name, prefix in (("perf.out", ""), ("pid.out", f"{load.pid}=")):
            out, closing = inject(data, os.path.join(d, name), "--trace", prefix + rundown, "--trace",
                                  prefix + live_file)
            v = perf_truth.judge(perf_truth.script(out, buildid_dir=cache_of(d)), log, perf_truth.raw_dsos(data))
            notes.append(judged(v, unknown=used_later))
        p, out = try_inject(d, data, "--trace", data)
        refused(p, "nettrace|trace", out)
        return f"{notes[0]}: {last_line(closing)}"


def test_image_dir():
    """By path instead of by id: no cache at all."""
    with folder() as d:
        data, images = os.path.join(d, "perf.data"), os.path.join(d, "images")
        os.mkdir(images)
        with shares(d, STEADY, seconds=0.6) as load:
            with recording(data, "-p", str(load.pid)):
                run_shares(load)
            out, _ = inject(data, None, "--image-dir", images)
            everything = os.path.join(d, "everything")
            os.mkdir(everything)
            inject(data, data + ".all", "--image-dir", everything, "--all-bodies")
        files = set(os.listdir(images))
        check(files, "no images")
        check(not os.path.exists(os.path.join(cache_of(d), "clrsym")), "the cache was used, too")
        v = perf_truth.judge(perf_truth.script(out, buildid_dir=os.path.join(d, "none")),
                             perf_truth.Log(os.path.join(d, "a.tsv")), perf_truth.raw_dsos(data))
        hit, known = (b"".join(subprocess.run(["readelf", "-W", "-s", f], capture_output=True, check=True).stdout
                               for f in glob.glob(os.path.join(place, "*"))) for place in (images, everything))
        check(b"Lab.Load.Io::ReadLine" in known and b"Lab.Load.Io::ReadLine" not in hit, "--all-bodies")
        return f"{judged(v, 200)}; {hit.count(b' FUNC ')} symbols, of all bodies {known.count(b' FUNC ')}"


def test_map_only():
    """Mappings renamed so that perf takes the perf map."""
    with folder() as d:
        data = os.path.join(d, "perf.data")
        with shares(d, STEADY, seconds=0.6) as load:
            with recording(data, "-p", str(load.pid)):
                run_shares(load)
            raw = perf_truth.raw_dsos(data)
            out, _ = inject(data, None, "--map-only")
            check(clrsym("map", str(load.pid)).returncode == 0, "map")
            try:
                samples = perf_truth.script(out, buildid_dir=os.path.join(d, "none"))
            finally:
                os.unlink(f"/tmp/perf-{load.pid}.map")
        check(not os.path.exists(cache_of(d)) or not os.listdir(cache_of(d)), "the cache was used")
        return judged(perf_truth.judge(samples, perf_truth.Log(os.path.join(d, "a.tsv")), raw), 200)


def test_dry_run():
    with folder() as d:
        data = os.path.join(d, "perf.data")
        with Load("hot", "20") as load:
            with recording(data, "-p", str(load.pid)):
                time.sleep(0.3)
            out, closing = inject(data, None, "--dry-run")
            check(not os.path.exists(out), "an output was written")
            check(not os.path.exists(os.path.join(cache_of(d), "clrsym")), "the cache was written")
            check(closing.strip(), "nothing said")
            return last_line(closing)


def test_cache_and_prune():
    """Layout, modes and repetition of what goes into the cache; prune takes exactly that."""
    with folder() as d:
        data, cache = os.path.join(d, "perf.data"), cache_of(d)
        os.makedirs(os.path.join(cache, ".build-id", "ab"))
        other = os.path.join(cache, ".build-id", "ab", "cd")
        os.symlink("../../elsewhere", other)
        with Load("hot", "20") as load:
            time.sleep(0.4)
            with recording(data, "-p", str(load.pid)):
                time.sleep(0.3)
            _, closing = inject(data)
            check(cache in closing, f"the closing line does not name the cache: {closing}")
            images = glob.glob(os.path.join(cache, "clrsym", "*", "*", "elf"))
            check(images, "no images")
            for path in images:
                check(stat.S_IMODE(os.stat(path).st_mode) == 0o600, f"{path}: mode")
                ident = os.path.basename(os.path.dirname(path))
                link = os.path.join(cache, ".build-id", ident[:2], ident[2:])
                check(os.path.islink(link) and os.path.samefile(os.path.join(link, "elf"), path), link)
            for path, _, _ in os.walk(os.path.join(cache, "clrsym")):
                check(stat.S_IMODE(os.stat(path).st_mode) == 0o700, f"{path}: mode")
            before = {p: os.stat(p).st_ino for p in images}
            inject(data, data + ".again")
            again = glob.glob(os.path.join(cache, "clrsym", "*", "*", "elf"))
            check(len(again) == len(images) and digest(data + ".out") == digest(data + ".again") and
                  all(os.stat(p).st_ino == i for p, i in before.items()), "twice the same is not the same")
        p = clrsym("inject", "--prune", "--buildid-dir", cache)
        check(p.returncode == 0, p.stderr)
        left = [os.path.join(r, f) for r, ds, fs in os.walk(cache) for f in fs + ds
                if os.path.islink(os.path.join(r, f)) or f in fs]
        check(left == [other], f"left: {left}")
        return f"{len(images)} images; {(p.stderr or p.stdout).strip()}"


def test_default_cache_and_output():
    """Without options: perf.data to perf.clrsym.data, the cache where perf looks for it."""
    with folder() as d:
        env = dict(os.environ, HOME=d)
        with Load("hot", "20") as load:
            time.sleep(0.4)
            with recording(os.path.join(d, "perf.data"), "-p", str(load.pid), env=env):
                time.sleep(0.3)
            p = clrsym("inject", cwd=d, env=env)
            check(p.returncode == 0, p.stderr)
        samples = perf_truth.script("perf.clrsym.data", cwd=d, env=env)
        named, _ = unnamed(samples, load.pid)
        inner = sum(perf_truth.base(s.sym) == "Lab.Hot.Chain::Inner" for s in named)
        check(inner > 100, f"{inner} of {len(samples)}")
        check(os.path.join(d, ".debug") in p.stderr, p.stderr)
        return last_line(p.stderr)


def test_image():
    """clrsym image PID -o FILE: an ELF file with the process's methods."""
    with folder() as d, Load("serve") as load:
        load.ok("jit 50")
        path = os.path.join(d, "image.elf")
        p = clrsym("image", str(load.pid), "-o", path)
        check(p.returncode == 0, p.stderr)
        check(stat.S_IMODE(os.stat(path).st_mode) == 0o600, "mode")
        out = subprocess.run(["readelf", "-W", "-s", path], capture_output=True, text=True, check=True).stdout
        check("::Jit_000049" in out, out[-500:])
        return f"{out.count(' FUNC ')} symbols"
