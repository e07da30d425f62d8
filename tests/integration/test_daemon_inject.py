# SPDX-License-Identifier: Apache-2.0
"""inject, image, map and perf with a daemon: what it has is asked for, and nobody attaches beside it."""
import collections
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time

import perf_truth
import test_inject
from lib import Daemon, Load, Process, Skip, check, map_path, program, read_map
from test_inject import (EVENT, QUICK, Control, cache_of, clrsym, folder, judged, recording, run_shares, shares,
                         used_later)

INTERFACE = "org.clrsym.Symbols."


def socket_of(d):
    return os.path.join(d, "query.sock")


@contextlib.contextmanager
def serving(d, *pids, options=()):
    """A daemon at a socket of its own, attached to these."""
    with Daemon(*pids, options=["--socket", socket_of(d), *options]) as daemon:
        end = time.monotonic() + 10
        while not os.path.exists(socket_of(d)):
            check(daemon.p.poll() is None and time.monotonic() < end, f"no socket: {daemon.errors()[-500:]}")
            time.sleep(0.01)
        if pids:
            daemon.complete(len(pids))
        yield daemon


def ask(d, method, **parameters):
    """One call; returns the parameters of the reply."""
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(20)
        s.connect(socket_of(d))
        s.sendall(json.dumps({"method": INTERFACE + method, "parameters": parameters}).encode() + b"\0")
        text = b""
        while not text.endswith(b"\0"):
            piece = s.recv(1 << 20)
            check(piece, f"{method}: the daemon hung up")
            text += piece
    reply = json.loads(text[:-1])
    check("error" not in reply, f"{method}: {reply}")
    return reply["parameters"]


def start_of(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as f:
        return int(f.read().rpartition(")")[2].split()[19])


class Sessions:
    """How many connections a process's diagnostic socket has, looked at all the time."""

    def __init__(self, pid):
        self.pattern = re.compile(rf" 0001 03 +\d+ .*/dotnet-diagnostic-{pid}-")
        self.most = self.now()
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.look)

    def now(self):
        with open("/proc/net/unix", encoding="utf-8", errors="replace") as f:
            return sum(self.pattern.search(line) is not None for line in f)

    def look(self):
        while not self.over.wait(0.003):
            self.most = max(self.most, self.now())

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *exc):
        self.over.set()
        self.thread.join()


def inject(data, *options, status=0):
    return test_inject.inject(data, None, "--socket", socket_of(os.path.dirname(data)), *options, status=status)


@contextlib.contextmanager
def perf(d, out, pid):
    """clrsym perf, recording already; stopped by the block."""
    with Control(d) as control, \
            Process([program("clrsym"), "perf", "--socket", socket_of(d), "--buildid-dir", cache_of(d), "--", "record",
                     *QUICK, *EVENT, control.option, "-o", out, "-p", str(pid)]) as p:
        control.wait()
        yield p


def quit_load(load):
    load.write("quit")
    load.wait()


# -- the daemon has the process -----------------------------------------------------------------


def test_inject_after_exit():
    """Everything that moves and dies, named when the process is gone: as by clrsym perf."""
    with folder() as d:
        data = os.path.join(d, "perf.data")
        with shares(d, "kinds=ordinary,dynamic,framework,reused,collectible,grow", seconds=1.5) as load, \
                serving(d, load.pid, options=["--keep-code"]):
            with recording(data, "-p", str(load.pid)):
                run_shares(load)
                quit_load(load)
            out, closing = inject(data)
        v = perf_truth.judge(perf_truth.script(out, buildid_dir=cache_of(d)),
                             perf_truth.Log(os.path.join(d, "a.tsv")), perf_truth.raw_dsos(data))
        note = judged(v, unknown=used_later)
        check(v.right["reused"] > 100 and v.reuse() >= 5, f"no test: {v}, {v.reuse()} methods around one address")
        said = re.search(r"(\d+) code bodies hit, (\d+) with their code", closing)
        check(said and int(said[2]) > int(said[1]) // 3, closing)
        return f"{note}, {v.reuse()} methods around one address; {said[0]}"


def test_inject_other_clock_after_exit():
    """perf's own clock, which is measured while the recording is made: by the daemon."""
    with folder() as d:
        data = os.path.join(d, "perf.data")
        with Load("hot", "20") as load, serving(d, load.pid):
            with recording(data, "-p", str(load.pid), clock=()):
                time.sleep(0.4)
                load.p.kill()
                load.wait()
            out, closing = inject(data)
        check("last known state" not in closing, closing)
        mine = [s for s in perf_truth.script(out, buildid_dir=cache_of(d)) if s.pid == load.pid]
        names = collections.Counter(perf_truth.base(s.sym) for s in mine if perf_truth.managed(s.dso))
        total = sum(names.values())
        check(total > 200 and names["Lab.Hot.Chain::Inner"] >= 0.95 * total and not names["[unknown]"],
              f"{names.most_common(4)} of {total}")
        return test_inject.last_line(closing)


def test_no_second_session():
    """inject, image and perf of a process that the daemon has open none; --no-daemon does."""
    with folder() as d:
        data, out = os.path.join(d, "perf.data"), os.path.join(d, "held.data")
        elf = os.path.join(d, "image.elf")
        with shares(d, "kinds=ordinary,reused,grow", seconds=0.6) as load, serving(d, load.pid):
            with Sessions(load.pid) as sessions:
                check(sessions.now() == 1, f"{sessions.now()} sessions of the daemon's")
                with perf(d, out, load.pid) as cp:
                    with recording(data, "-p", str(load.pid)):
                        run_shares(load)
                    cp.signal(signal.SIGINT)
                    check(cp.wait(60) == 0, cp.errors()[-800:])
                inject(data)
                p = clrsym("image", "--socket", socket_of(d), str(load.pid), "-o", elf)
                check(p.returncode == 0, p.stderr)
                check(sessions.most == 1, f"{sessions.most} sessions at once")
            v = perf_truth.judge(perf_truth.script(out, buildid_dir=cache_of(d)),
                                 perf_truth.Log(os.path.join(d, "a.tsv")))
            note = judged(v, unknown=used_later)
            check(v.right["reused"] > 50, f"no test: {v}")
            with Sessions(load.pid) as sessions:
                inject(data, "--no-daemon")
            check(sessions.most > 1, "--no-daemon asked all the same")
        return f"one session; clrsym perf: {note}"


def test_attach_through_the_daemon():
    """A process that the daemon does not have yet: it attaches, for a while."""
    with folder() as d:
        data = os.path.join(d, "perf.data")
        with Load("hot", "30") as load, Load("serve") as other, serving(d, other.pid):
            with recording(data, "-p", str(load.pid)):
                time.sleep(0.3)
            _, closing = inject(data)
            said = re.search(r"(\d+) of (\d+) samples in managed code have a name", closing)
            check(said and int(said[1]) > 200 and int(said[1]) >= 0.98 * int(said[2]), closing)
            has = {p["pid"]: p for p in ask(d, "ListProcesses")["processes"]}
            check(load.pid in has and has[load.pid]["start"] == start_of(load.pid), f"not the daemon's: {has}")
            # and from there on it has it
            load.p.kill()
            load.wait()
            _, again = inject(data)
            check(said[0] in again, f"{again} after {closing}")
        return said[0]


def test_pid_reused():
    """The daemon knows two processes of that pid: each recording gets its own."""
    with folder() as d:
        data, exe = os.path.join(d, "perf.data"), test_inject.workload()
        with Load("serve") as other, Load("hot", "60") as old, serving(d, other.pid, old.pid):
            with recording(data, "-p", str(old.pid)):
                time.sleep(0.3)
                pid, start = old.pid, start_of(old.pid)
                old.p.kill()
                old.wait()
            for _ in range(20):
                try:
                    with open("/proc/sys/kernel/ns_last_pid", "w", encoding="ascii") as f:
                        f.write(str(pid - 1))
                except OSError as e:
                    raise Skip(f"pids cannot be chosen here: {e}") from None
                with Process([exe, "serve"]) as new:
                    if new.pid != pid:
                        continue
                    new.readline(30)
                    check(ask(d, "Attach", pid=pid, wait_ms=20000)["process"]["start"] != start, "not a new one")
                    starts = [p["start"] for p in ask(d, "ListProcesses")["processes"] if p["pid"] == pid]
                    check(len(starts) == 2 and start in starts, f"{starts}: no test")
                    out, closing = inject(data)
                    mine = [s for s in perf_truth.script(out, buildid_dir=cache_of(d)) if s.pid == pid]
                    names = collections.Counter(perf_truth.base(s.sym) for s in mine if perf_truth.managed(s.dso))
                    check(sum(names.values()) > 200 and not names["[unknown]"], f"{names.most_common(3)} {closing}")
                    return f"{names.most_common(1)[0]}"
        raise Skip("the pid was never free at the right moment")


def test_image():
    """Of a process that has exited; with --mapping only while it lives."""
    with folder() as d, Load("serve") as load, serving(d, load.pid):
        args = ["image", "--socket", socket_of(d), str(load.pid), "-o"]

        def symbols(path, *options):
            p = clrsym(*args, path, *options)
            check(p.returncode == 0, p.stderr)
            text = subprocess.run(["readelf", "-W", "-s", path], capture_output=True, text=True, check=True).stdout
            return set(re.findall(r" FUNC .* (\S+)$", text, re.M))
        load.ok("jit 50")
        mapped = symbols(os.path.join(d, "mapped"), "--mapping", "memfd:doublemapper")
        before = symbols(os.path.join(d, "before"))
        # killed: a runtime that ends by itself unloads some of its code before
        load.p.kill()
        load.wait()
        after = symbols(os.path.join(d, "after"))
        p = clrsym(*args, os.path.join(d, "none"), "--mapping", "memfd:doublemapper")
        check(p.returncode == 1 and re.search("--mapping needs the process", p.stderr), p.stderr)
        check(not os.path.exists(os.path.join(d, "none")), "an image all the same")
        new = [s for s in before if "Jit_0000" in s]
        check(len(new) == 50 and set(new) <= mapped, f"{len(new)} of the 50 new methods")
        check(before <= after, f"missing after the exit: {list(before - after)[:3]}")
        return f"{len(before)} symbols, {len(after)} after the exit"


def test_map():
    """Written by the daemon at once; options of its own stay its own; others are mapped as ever."""
    with folder() as d, Load("serve") as load, Load("serve") as other, serving(d, load.pid):
        def run(*args):
            return clrsym("map", "--socket", socket_of(d), *args)
        load.ok("jit 60")
        time.sleep(0.3)  # what the runtime takes to tell
        p = run(str(load.pid))
        said = re.findall(r"^(\S+) (\d+) methods$", p.stdout, re.M)
        check(p.returncode == 0 and map_path(load.pid) in dict(said), f"{p.stdout!r} {p.stderr!r}")
        lines = read_map(map_path(load.pid))
        check(sum("::Jit_0000" in name for _, _, name in lines) == 60, "the map is not of now")
        check(len(lines) == int(dict(said)[map_path(load.pid)]), f"{len(lines)} lines, {p.stdout!r}")
        for options in (["--tiers"], ["--names", "full"], ["--map", "host"]):
            p = run(*options, str(load.pid))
            check(p.returncode == 1 and f"leave out {options[0]}" in p.stderr and not p.stdout, p.stderr)
        p = run("--no-daemon", str(load.pid))
        check(p.returncode == 1 and re.search(r"process \d+ .*keeps its map already", p.stderr), p.stderr)
        p = run("--tiers", str(other.pid))
        check(p.returncode == 0 and map_path(other.pid) in p.stdout, p.stderr)
        check(any("[" in name for _, _, name in read_map(map_path(other.pid))), "no tiers")
        check([q["pid"] for q in ask(d, "ListProcesses")["processes"]] == [load.pid], "one-shot, but it stays")
        return f"{len(lines)} methods"


# -- it fails --------------------------------------------------------------------------------------


class Fake:
    """A daemon that knows a process, and answers its code with whatever it is told to."""

    def __init__(self, d, pid, export, gone=False, listing=None, strange=None):
        self.path, self.export, self.gone, self.listing = socket_of(d), export, gone, listing
        self.process = {"pid": pid, "start": start_of(pid), "uid": 0, "comm": "load", "runtime": "10", "state": "live",
                        "complete": True, "bodies": 1, "precompiled": 0, "retired": 0, "bytes": 1,
                        "known_until": 2**62, "lost": 0, "reason": None}
        self.processes = [strange, self.process] if strange else [self.process]
        self.calls = []
        self.s = socket.socket(socket.AF_UNIX)
        self.s.bind(self.path)
        self.s.listen(8)
        self.thread = threading.Thread(target=self.serve)

    def serve(self):
        while True:
            try:
                c, _ = self.s.accept()
            except OSError:
                return
            with c:
                self.answer(c)

    def answer(self, c):
        while True:
            text = b""
            while not text.endswith(b"\0"):
                piece = c.recv(65536)
                if not piece:
                    return
                text += piece
            method = json.loads(text[:-1])["method"].rpartition(".")[2]
            self.calls.append(method)
            reply = self.export
            if method == "ListProcesses":
                reply = self.listing or {"parameters": {"processes": self.processes}}
            elif self.gone:
                self.close()
            if reply is None:
                return
            c.sendall((reply if isinstance(reply, bytes) else json.dumps(reply).encode()) + b"\0")

    def close(self):
        with contextlib.suppress(OSError):
            os.unlink(self.path)
        with contextlib.suppress(OSError):
            self.s.shutdown(socket.SHUT_RDWR)
        self.s.close()

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *exc):
        self.close()
        self.thread.join()


def test_daemon_fails():
    """Whatever goes wrong with it is said, and nobody attaches behind its back."""
    denied = {"error": "org.varlink.service.PermissionDenied", "parameters": {}}
    cases = {
        "hangs up": (None, {}, "clrsymd has gone"),
        "denies": (denied, {"listing": denied}, "you are not in group clrsym.*--no-daemon"),
        "denies code": (denied, {}, "it is another user's"),
        "has no file": ({"parameters": {"bytes": 1, "bodies": 1, "known_until": 1}}, {}, "makes no sense"),
        "no JSON": (b"hello", {}, "makes no sense"),
        "fails": ({"error": INTERFACE + "Failed", "parameters": {"reason": "no\x1b[31m memory"}}, {}, "no.*memory"),
        "no list": (None, {"listing": {"parameters": {"processes": "x"}}}, "makes no sense"),
        "a strange process": (denied, {"strange": {"pid": "x"}}, "it is another user's"),
        "busy": ({"error": INTERFACE + "Busy", "parameters": {"reason": "a cap"}}, {}, "a cap"),
    }
    with folder() as d:
        data = os.path.join(d, "perf.data")
        notes = []
        with Load("hot", "60") as load:
            with recording(data, "-p", str(load.pid)):
                time.sleep(0.3)
            for name, (export, kw, pattern) in cases.items():
                with Fake(d, load.pid, export, **kw) as fake, Sessions(load.pid) as sessions:
                    p, _ = test_inject.try_inject(d, data, "--socket", socket_of(d))
                check(p.returncode == 1 and re.search(pattern, p.stderr), f"{name}: {p.returncode} {p.stderr}")
                check("\x1b" not in p.stderr, f"{name}: {p.stderr!r}")
                check(not sessions.most, f"{name}: a session beside the daemon")
                check(fake.calls and len(fake.calls) < 20, f"{name}: {fake.calls}")
                notes.append(name)
            # it has certainly gone, and its sessions with it
            with Fake(d, load.pid, None, gone=True):
                _, closing = inject(data)
            check("clrsymd has gone" in closing or "no clrsymd answers" in closing, closing)
            check(re.search(r"\d{3,} of \d+ samples in managed code have a name", closing), closing)
        return ", ".join(notes)


def test_perf_outlives_the_daemon():
    """Killed in the middle of a recording: what it had is attached to."""
    with folder() as d:
        out = os.path.join(d, "perf.data")
        with Load("hot", "60") as load, serving(d, load.pid) as daemon, perf(d, out, load.pid) as cp:
            with Sessions(load.pid) as sessions:
                time.sleep(0.3)
                check(sessions.most == 1, f"{sessions.most} sessions at once")
                daemon.p.kill()
                daemon.wait()
                end = time.monotonic() + 10
                while not (sessions.now() and "clrsymd has gone" in cp.errors()):
                    check(time.monotonic() < end, f"not attached to: {cp.errors()[-500:]}")
                    time.sleep(0.02)
                time.sleep(0.5)
            cp.signal(signal.SIGINT)
            check(cp.wait(60) == 0, cp.errors()[-800:])
            text = cp.errors()
        said = re.search(r"(\d+) of (\d+) samples in managed code have a name", text)
        check(said and int(said[1]) >= 0.98 * int(said[2]) > 500, text)
        return said[0]
