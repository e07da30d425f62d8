# SPDX-License-Identifier: Apache-2.0
"""The query socket on real processes: what it answers, to whom, and what it bears.

Most tests share one daemon (root's, with the groups it looks for) and a few targets; `world()` makes
them when the first test asks.
"""
import atexit
import collections
import contextlib
import functools
import grp
import json
import mmap
import os
import random
import re
import resource
import select
import shutil
import signal
import socket
import stat
import statistics
import struct
import subprocess
import tempfile
import threading
import time

import query
from lib import TOP, Daemon, Failure, Load, Process, Skip, check, program, rss_kb, workload
from query import Client, Error

OWNER, OTHER, ADMIN, STRANGER = 51234, 51235, 51236, 51237
NONE = 4194303  # a pid that is nobody's


# -- what the tests share -----------------------------------------------------------------


class World:
    def __init__(self):
        if os.getuid() != 0:
            raise Skip("needs root")
        self.stack = contextlib.ExitStack()
        self.dir = self.stack.enter_context(tempfile.TemporaryDirectory(prefix="clrsym-query-"))
        os.chmod(self.dir, 0o755)
        self.client = os.path.join(self.dir, "query.py")
        shutil.copy(query.__file__, self.client)
        self.groups = [self.group("clrsym"), self.group("clrsym-admin")]
        self.socket = os.path.join(self.dir, "q")
        self.load = self.stack.enter_context(Load("serve"))
        self.owned = self.target("--reuid", str(OWNER), "--regid", str(OWNER), "--clear-groups")
        # what set-uid programs look like: another effective than real user
        self.setuid = self.target("--ruid", str(OWNER), "--euid", "0")
        self.setuid_owner = self.target("--ruid", str(OTHER), "--euid", str(OWNER))
        pids = [t.pid for t in (self.load, self.owned, self.setuid, self.setuid_owner)]
        self.daemon = self.stack.enter_context(Daemon(*pids, socket=self.socket))
        self.daemon.complete(len(pids))
        self.root = self.stack.enter_context(Client(self.socket))
        self.begin_stalling()

    def group(self, name):
        """Its number; made for the tests, and removed after them, where it is absent."""
        with contextlib.suppress(KeyError):
            return grp.getgrnam(name).gr_gid
        subprocess.run(["groupadd", "--system", name], check=True, capture_output=True)
        self.stack.callback(subprocess.run, ["groupdel", name], capture_output=True)
        return grp.getgrnam(name).gr_gid

    def begin_stalling(self):
        """Clients of whom test_stalled_clients() sees, some other tests later, what became of them."""
        self.stalled_since = time.monotonic()
        self.half, self.deaf, self.idle = (
            self.stack.enter_context(contextlib.closing(raw(self.socket))) for _ in range(3))
        self.half.sendall(HEAD)
        call = {"method": f"{query.INTERFACE}.ListMethods", "parameters": {"pid": self.load.pid}}
        self.deaf.sendall((json.dumps(call).encode() + b"\0") * 10)

    def target(self, *user):
        return self.stack.enter_context(Load("serve", wrap=["setpriv", *user, "--"]))

    def user(self, uid, *groups):
        """A client program of another user, by argv."""
        supplementary = ["--groups", ",".join(map(str, groups))] if groups else ["--clear-groups"]
        return Process(["python3", self.client, self.socket], stderr=None,
                       wrap=["setpriv", "--reuid", str(uid), "--regid", str(uid), *supplementary, "--"])


_world = []


def world():
    if not _world:
        _world.append(World())
    return _world[0]


def teardown():
    while _world:
        _world.pop().stack.close()


atexit.register(teardown)  # groups do not stay behind a ^C


def ask(user, method, parameters=None, more=False):
    """A call by a client program: ("ok", reply) or (the error's short name, parameters)."""
    call = [method if "." in method else f"{query.INTERFACE}.{method}", parameters]
    answer = json.loads(user.ask(json.dumps(call + [True] * more), 30))
    if "os" in answer:
        return answer["os"], None
    if "error" in answer:
        return answer["error"].rsplit(".", 1)[-1], answer.get("parameters")
    return "ok", answer["parameters"]


def expect(error, fn, *args, **parameters):
    """fn fails with this error of the interface."""
    try:
        answer = fn(*args)
    except Error as e:
        check(e.short == error, f"{e} instead of {error}")
        for k, v in parameters.items():
            check(e.parameters.get(k) == v, f"{e}: {k} is not {v}")
        return e
    raise Failure(f"{args}: an answer instead of {error}: {str(answer)[:200]}")


def until(fn, timeout=10, what="it"):
    end = time.monotonic() + timeout
    while not (v := fn()):
        check(time.monotonic() < end, f"{what} did not come in {timeout} s")
        time.sleep(0.02)
    return v


def new_method(w, load=None, command="jit 1"):
    """Compiles one; returns it as ListMethods has it."""
    load = load or w.load
    name = load.ok(command).split()[-1]
    return until(lambda: next((m for m in w.root.methods(load.pid) if m["name"] == name), None),
                 what=name)


def name_of(reply, i=0):
    n = reply["method"][i]
    return None if n is None else reply["methods"][n]["name"]


def now():
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


# -- introspection and the wire ------------------------------------------------------------


def test_introspection():
    w = world()
    info = w.root.call(f"{query.SERVICE}.GetInfo")
    check(set(info) == {"vendor", "product", "version", "url", "interfaces"}, f"GetInfo: {info}")
    check(set(info["interfaces"]) >= {query.SERVICE, query.INTERFACE}, f"GetInfo: {info}")
    for interface in (query.SERVICE, query.INTERFACE, query.INTERFACE.lower()):
        text = w.root.call(f"{query.SERVICE}.GetInterfaceDescription",
                           {"interface": interface})["description"]
        check(f"interface {interface.lower()}" in text.lower(), f"{interface}: {text[:200]}")
    described = set(re.findall(r"^method (\w+)", text, re.M))
    check(len(described) == 11, f"{described}")
    for name in described:  # what is described is there
        try:
            w.root.call(name, {"pid": NONE})
        except Error as e:
            check(e.short not in ("MethodNotFound", "InterfaceNotFound"), f"{name}: {e}")
    # the name that lower-case parsers see is as good
    check(w.root.call(f"{query.INTERFACE.lower()}.Status")["pid"] == w.daemon.pid, "Status")
    expect("InterfaceNotFound", w.root.call, f"{query.SERVICE}.GetInterfaceDescription",
           {"interface": "a.b"}, interface="a.b")
    expect("InterfaceNotFound", w.root.call, "a.b.C", interface="a.b")
    expect("MethodNotFound", w.root.call, "Nonsense", method=f"{query.INTERFACE}.Nonsense")
    expect("ExpectedMore", w.root.call, "Monitor", {"pid": w.load.pid})
    for method, parameters, bad in (
            ("Resolve", {"addresses": [1]}, "pid"),
            ("Resolve", {"pid": w.load.pid, "adresses": [1]}, "adresses"),
            ("Resolve", {"pid": w.load.pid, "addresses": [1], "stacks": [[1]]}, None),
            ("Resolve", {"pid": w.load.pid, "addresses": ["0xyz"]}, "addresses"),
            ("Resolve", {"pid": w.load.pid, "addresses": ["7f0000000000"]}, "addresses"),
            ("Resolve", {"pid": w.load.pid, "addresses": [-1]}, "addresses"),
            ("Resolve", {"pid": w.load.pid, "addresses": [1.5]}, "addresses"),
            ("Resolve", {"pid": w.load.pid, "addresses": ["0x11112222333344445"]}, "addresses"),
            ("Resolve", {"pid": w.load.pid, "addresses": [1], "times": [1, 2]}, "times"),
            ("Resolve", {"pid": w.load.pid, "addresses": [1], "time": 1, "times": [1]}, None),
            ("Resolve", {"pid": w.load.pid, "addresses": [1], "time": "0x10"}, "time"),
            ("Resolve", {"pid": w.load.pid, "addresses": [1], "wait_ms": 501}, "wait_ms"),
            ("Resolve", {"pid": w.load.pid, "addresses": [1], "caller": 1}, "caller"),
            ("Resolve", {"pid": w.load.pid, "addresses": [1] * 16385}, "addresses"),
            ("ListMethods", {"pid": "1"}, "pid"),
            ("ListMethods", {"pid": w.load.pid, "retired": "yes"}, "retired"),
            ("Export", {"pid": w.load.pid, "from": "x"}, "from"),
            ("Attach", {"pid": w.load.pid, "hold_s": 10**9}, "hold_s"),
            ("ListProcesses", {"pid": 1}, "pid"),
            ("Status", {"pid": 1}, "pid"),
            (f"{query.SERVICE}.GetInfo", {"x": 1}, "x"),
            (f"{query.SERVICE}.GetInterfaceDescription", None, "interface"),
            (f"{query.SERVICE}.GetInterfaceDescription", {"interface": query.SERVICE, "x": 1}, "x")):
        expect("InvalidParameter", w.root.call, method, parameters, **({"parameter": bad} if bad else {}))
    expect("NotAttached", w.root.call, "ListMethods", {"pid": NONE})
    expect("NoSuchProcess", w.root.call, "Attach", {"pid": NONE})
    return f"{len(described)} methods"


def test_connection():
    """Half-closed clients, oneway calls, requests sent ahead, null members."""
    w = world()
    with Client(w.socket) as c:
        for i in range(200):
            c.send("Resolve", {"pid": w.load.pid, "start": None, "addresses": list(range(1, i + 2))})
        c.send("Status", {}, oneway=True)
        c.send("ListMethods", {"pid": w.load.pid}, oneway=True)
        c.send("Status")
        c.s.shutdown(socket.SHUT_WR)
        for i in range(200):
            n = len(c.reply()[0]["method"])
            check(n == i + 1, f"reply {i} has {n} answers")
        check("uptime_ms" in c.reply()[0], "the oneway calls were answered")
        with contextlib.suppress(query.Gone):
            raise Failure(f"one reply too many: {c.message()}")
    # a call that waits when its client says it will write no more
    with Client(w.socket) as c:
        c.send("Resolve", {"pid": w.load.pid, "addresses": [1], "time": now(), "wait_ms": 500})
        c.s.shutdown(socket.SHUT_WR)
        check(c.reply()[0]["final"], "not held")
    # a call in pieces, two calls in one piece
    with Client(w.socket) as c:
        for b in b'{"method":"org.clrsym.Symbols.Status"}\0':
            c.s.send(bytes([b]))
        c.s.sendall(b'{"method":"org.clrsym.Symbols.Status","parameters":null}\0' * 2)
        check(all("pid" in c.reply()[0] for _ in range(3)), "Status")


# -- Resolve -------------------------------------------------------------------------------


def test_resolve():
    w = world()
    m = new_method(w)
    pid, start, name = w.load.pid, int(m["start"], 16), m["name"]
    ticks = int(open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[19])
    check(set(m) == {"method_id", "ns", "name", "sig", "module", "tier", "start", "size", "version",
                     "load", "unload", "function"}, f"members: {sorted(m)}")
    check(m["unload"] is None and m["load"] > 0 and m["ns"].startswith("Lab.Fresh"), f"{m}")
    check(m["function"].startswith(f"{m['ns']}::{name}("), f"function: {m['function']}")
    forms = [start, hex(start), f"0x{start:X}", f"0x{start:016x}", start + 1, hex(start + m["size"] - 1)]
    r = w.root.resolve(pid, forms)
    check(len(r["methods"]) == 1 and r["method"] == [0] * len(forms), f"one method, once: {r}")
    check(r["methods"][0] == m, f"not as ListMethods has it: {r['methods'][0]} {m}")
    check(r["offset"] == [0, 0, 0, 0, 1, m["size"] - 1] and r["reason"] == [None] * len(forms), f"{r}")
    check(not r["final"], "the last known state is not final")
    # 2^63 and above are strings
    r = w.root.resolve(pid, ["0xffffffff81000000", "0xffffffffffffffff", 2**63 - 1])
    check(r["reason"] == ["unmapped"] * 3 and r["method"] == [None] * 3, f"{r}")
    # the edges of a body; a return address behind its last instruction
    end = start + m["size"]
    r = w.root.resolve(pid, [start - 1, end])
    check(name not in (name_of(r, 0), name_of(r, 1)), f"{r}")
    r = w.root.resolve(pid, [end, start], caller=True)
    check(name_of(r, 0) == name and r["offset"][0] == m["size"] and name_of(r, 1) != name, f"{r}")
    # stacks: all but the first are callers
    r = w.root.call("Resolve", {"pid": pid, "stacks": [[end, end], [start], [], [start, start + 1]],
                                "times": [now(), str(now()), 0, now()]})
    check([name_of(r, i) == name for i in range(5)] == [False, True, True, True, True], f"stacks: {r}")
    # times
    t = m["load"]
    for at in (t, str(t)):
        r = w.root.resolve(pid, [start], time=at)
        check(name_of(r) == name, f"at its load time: {r}")
    r = w.root.resolve(pid, [start] * 3, times=[t - 10**9, t + 1, str(t + 2)])
    check(r["reason"][0] and [name_of(r, i) for i in (1, 2)] == [name] * 2, f"before its load time: {r}")
    until(lambda: w.root.resolve(pid, [start], time=t)["final"], 5, "a final answer")
    # held
    t = now()
    r = w.root.resolve(pid, [start], time=t)
    check(not r["final"] and r["known_until"] < t and name_of(r) == name, f"at once: {r}")
    began = time.monotonic()
    r = w.root.resolve(pid, [start], time=now(), wait_ms=500)
    took = time.monotonic() - began
    check(r["final"] and r["known_until"] > t and name_of(r) == name and took < 0.6, f"held {took:.3f} s: {r}")
    began = time.monotonic()
    r = w.root.resolve(pid, [start], time=now() + 10**10, wait_ms=100)
    check(not r["final"] and 0.08 < time.monotonic() - began < 0.4, f"a time to come: {r}")
    # identity
    check(name_of(w.root.resolve(pid, [start], start=ticks)) == name, "with its start time")
    r = w.root.resolve(pid, [start], start=ticks + 1)
    check(r["reason"] == ["not attached"] and not r["methods"], f"another start time: {r}")
    expect("NotAttached", w.root.call, "ListMethods", {"pid": pid, "start": ticks + 1})
    r = w.root.resolve(pid, [])
    check(r["method"] == [] and r["methods"] == [], f"no addresses: {r}")
    return f"final after {took * 1000:.0f} ms"


def mappings(pid):
    """[(start, end, permissions, path)]"""
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as f:
        rows = [l.rstrip("\n").split(None, 5) for l in f]
    return [(*(int(x, 16) for x in r[0].split("-")), r[1], r[5] if len(r) > 5 else "") for r in rows]


def test_reasons():
    w = world()
    pid = w.load.pid
    found = {}

    def reason(addr, **more):
        r = w.root.resolve(pid, [addr], **more)
        check(r["method"][0] is not None or r["reason"][0], f"neither: {r}")
        return r["reason"][0]

    maps = mappings(pid)
    found["unmapped"] = reason(4096)
    found["native"] = reason(next(s for s, _, p, f in maps if "x" in p and f.endswith("libcoreclr.so")))
    check(reason(next(s for s, _, p, f in maps if "x" in p and "libc.so" in f)) == "native", "libc")
    heaps = [(s, e) for s, e, p, f in maps if "x" in p and ("doublemapper" in f or not f)]
    # a heap of stubs has no methods; one with methods has gaps between them
    words = collections.Counter(
        r for s, e in heaps for r in w.root.resolve(pid, list(range(s, e, 4096))[:16384])["reason"] if r)
    found["stub"] = next((r for r in words if r == "stub"), None)
    m = new_method(w)
    start = int(m["start"], 16)
    heap = next((s, e) for s, e in heaps + [(start & ~0xffff, start + 0x10000)] if s <= start < e)
    found["not announced"] = next(
        (r for r in w.root.resolve(pid, list(range(heap[0], min(heap[1], heap[0] + 16 * 16000), 16)))["reason"]
         if r == "not announced"), None)
    found["not loaded yet"] = reason(start, time=m["load"] - 10**6)
    found["expired"] = reason(start, time=1)
    # a DynamicMethod that has come and gone
    d = new_method(w, command="dyn 1")
    w.load.ok("drop")
    w.load.ok("gc")

    def gone():
        return next((x for x in w.root.methods(pid, retired=True)
                     if x["name"] == d["name"] and x["unload"]), None)

    d = until(gone, what="the unload")
    where = int(d["start"], 16)
    found["retired"] = reason(where)
    check(reason(where, time=d["unload"] + 1) == "retired", "just after its end")
    check(name_of(w.root.resolve(pid, [where], time=d["unload"] - 1)) == d["name"], "just before its end")
    check(all(x["name"] != d["name"] for x in w.root.methods(pid)), "listed as alive")
    found["not attached"] = w.root.resolve(NONE, [4096])["reason"][0]
    wrong = {k: v for k, v in found.items() if v != k}
    check(not wrong, f"other words: {wrong}; heaps: {words}")
    return ", ".join(found)


def test_data_lost():
    """A buffer that overflows while nobody reads: addresses of that time say so, and when it began."""
    with tempfile.TemporaryDirectory() as d, Load("serve") as load, \
            Daemon(load.pid, socket=f"{d}/q", options=["--buffer-mb", "1", "--map", "off"]) as daemon:
        daemon.complete()
        with Client(f"{d}/q") as c:
            daemon.signal(signal.SIGSTOP)
            before = now()
            load.ok("jit 12000", 300)
            after = now()
            daemon.signal(signal.SIGCONT)
            time.sleep(0.3)
            load.ok("jit 10")
            daemon.wait_for("dropped .* events", 30)

            def lost():
                ticks = [before + i * (after - before) // 199 for i in range(200)]
                r = c.resolve(load.pid, [4096] * 200, times=ticks)["reason"]
                return [(t, x) for t, x in zip(ticks, r) if x.startswith("data lost at ")] or None

            said = until(lost, 30, "data lost")
            for t, text in said:
                at = int(text.split()[-1])
                check(at <= t, f"lost from {at} on, asked for {t}")
            known = c.resolve(load.pid, [4096], time=after)
            daemon.wait_for("gap is filled", 60)
            new = load.ok("jit 1").split()[-1]
            until(lambda: any(m["name"] == new for m in c.methods(load.pid)), what="life after it")
            check(c.resolve(load.pid, [4096])["reason"] == ["unmapped"], "lost now, too")
            # the methods whose events were lost are known by the second rundown
            names = {m["name"] for m in c.methods(load.pid)}
            missing = [i for i in range(12010) if f"Jit_{i:06d}" not in names]
            check(not missing, f"{len(missing)} methods missing")
    return f"{len(said)} of 200 times in the gap; meanwhile final: {known['final']}"


# -- truth under churn ---------------------------------------------------------------------


class Probe:
    """What libprobe.so notes in its process, read while it does: address, time, number."""

    def __init__(self, pid):
        path, base = next((f, s) for s, _, _, f in mappings(pid) if f.endswith("/libprobe.so"))
        names = dict((l.split()[2], int(l.split()[0], 16)) for l in
                     subprocess.run(["nm", path], capture_output=True, text=True).stdout.splitlines()
                     if len(l.split()) == 3)
        if not {"records", "used"} <= set(names):
            raise Skip("libprobe.so has no symbols")
        self.mem = open(f"/proc/{pid}/mem", "rb", 0)
        self.used = base + names["used"]
        self.records = self.number(base + names["records"])

    def number(self, at):
        return struct.unpack("<Q", os.pread(self.mem.fileno(), 8, at))[0]

    def newest(self, n):
        """The last n that are whole: [(address, ns, name)]."""
        used = self.number(self.used) - 1
        n = min(n, used)
        raw = os.pread(self.mem.fileno(), 24 * n, self.records + 24 * (used - n)) if n > 0 else b""
        return [(a, t, ("Coll_" if i >> 30 & 1 else "Drop_") + f"{i & ~(1 << 30):07d}")
                for a, t, i in struct.iter_unpack("<QQQ", raw) if a and t]

    def close(self):
        self.mem.close()


class Tally:
    """Answers against the truth."""

    def __init__(self):
        self.right = self.provisional = self.final = 0
        self.wrong, self.misses = [], collections.Counter()

    def add(self, truth, reply):
        for i, (addr, at, name) in enumerate(truth):
            final = reply["final"] or at <= reply["known_until"]
            got = name_of(reply, i)
            self.final += final
            self.provisional += not final
            if got == name:
                self.right += 1
            elif final and got:
                self.wrong.append((hex(addr), at, name, got))
            elif final:
                reason = reply["reason"][i]
                self.misses["data lost" if reason.startswith("data lost") else reason] += 1

    def __str__(self):
        return (f"{self.right} right of {self.final} final and {self.provisional} provisional, "
                f"misses {dict(self.misses)}")


def ask_truth(client, pid, truth, tally, chunk=4096, **more):
    for i in range(0, len(truth), chunk):
        part = truth[i:i + chunk]
        tally.add(part, client.resolve(pid, [a for a, _, _ in part], times=[t for _, t, _ in part],
                                       caller=True, **more))


def ask_newest(client, load, probe, done):
    """While it churns: about what ran just now, at once and held."""
    at_once, held, asked = Tally(), Tally(), []
    while not done():
        truth = probe.newest(64)
        ask_truth(client, load.pid, truth, at_once)
        asked += truth
        if len(asked) % (64 * 50) < 64:
            ask_truth(client, load.pid, probe.newest(64), held, wait_ms=500)
    return at_once, held, asked


def test_churn_truth():
    """Addresses that change hands all the time, asked for at once, later, and after the end."""
    wanted = int(os.environ.get("CLRSYM_QUERIES", 200000))
    seconds = float(os.environ.get("CLRSYM_QUERY_CHURN_S", 4))
    with tempfile.TemporaryDirectory() as d, Load("churn", str(seconds), f"{d}/log", "wait") as load, \
            Daemon(load.pid, socket=f"{d}/q", options=["--map", "off"]) as daemon:
        daemon.complete()
        with contextlib.closing(Probe(load.pid)) as probe, Client(f"{d}/q") as c:
            load.write("go")
            time.sleep(0.2)
            at_once, held, asked = ask_newest(
                c, load, probe, lambda: select.select([load.p.stdout], [], [], 0)[0])
            line = load.readline(60)
            check(line.startswith("done "), line)
            with open(f"{d}/log", encoding="ascii") as f:
                rows = [l.rstrip("\n").split("\t") for l in f]
            truth = [(int(a, 16), int(t), n) for a, t, n in rows]
            asked += random.Random(1).choices(truth, k=max(0, wanted - len(asked)))
            until(lambda: c.resolve(load.pid, [1], time=truth[-1][1])["final"], 10, "the last event")
            later, after = Tally(), Tally()
            began = time.monotonic()
            ask_truth(c, load.pid, asked, later)
            rate = len(asked) / (time.monotonic() - began)
            load.write("quit")
            load.wait()
            until(lambda: c.call("ListProcesses")["processes"][0]["state"] == "ended", 10, "the end")
            ask_truth(c, load.pid, asked[::4], after)
    for what, tally in (("at once", at_once), ("held", held), ("later", later), ("after the end", after)):
        check(not tally.wrong, f"{what}: {len(tally.wrong)} wrong and final: {tally.wrong[:3]}")
        check(set(tally.misses) <= {"expired", "data lost"}, f"{what}: {tally}")
    check(at_once.provisional and later.final >= wanted and not later.provisional, f"{at_once}; {later}")
    check(after.final and not after.provisional and after.right, f"after the end: {after}")
    check(held.final, f"nothing held became final: {held}")
    return (f"at once: {at_once}; held: {held}; later: {later}; after the end: {after}; "
            f"{rate:.0f} a second")


def churn_before_attach():
    """A tally; None when the runtime crashed under the rundown, as it may (docs/NOTES.md)."""
    with tempfile.TemporaryDirectory() as d, Load("churn", "2", f"{d}/log", "wait") as load:
        load.write("go")
        time.sleep(1)
        with Daemon(load.pid, socket=f"{d}/q", options=["--map", "off"]) as daemon, \
                Client(daemon.listening().socket, timeout=60) as c:
            try:
                line = load.readline(60)
            except Failure:
                check(load.wait() == -signal.SIGSEGV, "load has ended")
                return None
            daemon.complete()
            check(line.startswith("done "), line)
            with open(f"{d}/log", encoding="ascii") as f:
                truth = [(int(a, 16), int(t), n) for a, t, n in (l.rstrip("\n").split("\t") for l in f)]
            until(lambda: c.resolve(load.pid, [1], time=truth[-1][1])["final"], 10, "the last event")
            tally = Tally()
            ask_truth(c, load.pid, truth, tally)
            load.write("quit")
            return tally


def test_churn_before_attach():
    """What a rundown found in addresses that change hands is no answer for the times before it."""
    for crashes in range(4):
        tally = churn_before_attach()
        if tally:
            break
    check(tally, "the runtime crashed each time")
    check(not tally.wrong, f"{len(tally.wrong)} wrong and final: {tally.wrong[:3]}")
    check(tally.right and tally.misses["not loaded yet"], f"no test: {tally}")
    return f"{tally}" + (f"; the runtime crashed {crashes} times before" if crashes else "")


def reuse(pid, tries=500):
    """A process of ours under that number."""
    for _ in range(tries):
        with open("/proc/sys/kernel/ns_last_pid", "w", encoding="ascii") as f:
            f.write(str(pid - 1))
        p = subprocess.Popen(["sleep", "60"])
        if p.pid == pid:
            return p
        p.kill()
        p.wait()
    raise Skip("the number is not to be had")


def test_exit_and_pid_reused():
    """An exit loses nothing, whoever notices it first; and its number may be another's afterwards."""
    if os.geteuid():
        raise Skip("root only")
    for stopped in (False, True):
        with tempfile.TemporaryDirectory() as d, Load("serve") as load, \
                Daemon(load.pid, socket=f"{d}/q", options=["--map", "off"]) as daemon, \
                Client(daemon.listening().socket) as c:
            daemon.complete()
            m = next(m for m in c.methods(load.pid) if m["tier"] == "ReadyToRun")
            pid, at = load.pid, int(m["start"], 16)
            ticks = c.call("ListProcesses")["processes"][0]["start"]
            if stopped:
                daemon.signal(signal.SIGSTOP)
            before = now()
            load.write("quit")
            load.wait()
            if stopped:
                time.sleep(0.1)
                daemon.signal(signal.SIGCONT)
            p = until(lambda: next((p for p in c.call("ListProcesses")["processes"]
                                    if p["state"] == "ended"), None), what="the end")
            check(before <= p["known_until"] <= now(), f"stopped {stopped}: {p}")
            r = c.resolve(pid, [at, 16], time=before)
            check(r["final"] and name_of(r) == m["name"] and r["reason"][1] == "unmapped", f"{stopped}: {r}")
            check(name_of(c.resolve(pid, [at])) == m["name"], "while nobody else has the number")
            other = reuse(pid)
            try:
                for more in ({"time": now()}, {}):
                    r = c.resolve(pid, [at], **more)
                    check(r["reason"] == ["not attached"] and not r["final"], f"another's number: {r}")
                check(name_of(c.resolve(pid, [at], start=ticks)) == m["name"], "by its start time")
                expect("NotAttached", c.call, "ListMethods", {"pid": pid})
            finally:
                other.kill()
                other.wait()


# -- changes as they come ------------------------------------------------------------------


def test_exit_unloads_nothing():
    """In an orderly exit runtimes from 8 on announce the unload of everything: it is not believed."""
    w = world()
    for runtime in ("3.1", "8", "10"):
        with Load("serve", runtime=runtime) as load:
            w.root.call("Attach", {"pid": load.pid, "wait_ms": 20000})
            m = new_method(w, load, "jit 3")
            load.write("quit")
            load.wait()
            until(lambda pid=load.pid: any(p["pid"] == pid and p["state"] == "ended"
                                           for p in w.root.call("ListProcesses")["processes"]), what="the end")
            left = {x["start"] for x in w.root.methods(load.pid)}
            check(m["start"] in left, f"{runtime}: {m['name']} counts as unloaded after the exit")
            modules = w.root.call("ListModules", {"pid": load.pid})["modules"]
            check(all(x["unload"] is None for x in modules), f"{runtime}: modules count as unloaded")


class Monitor:
    """A Monitor's changes, taken by a thread: [(moment, change, method)]."""

    def __init__(self, path, pid):
        self.client = Client(path, timeout=None)
        self.client.send("Monitor", {"pid": pid}, more=True)
        check(self.client.reply() == ({"changes": []}, True), "the first reply of Monitor")
        self.changes, self.seen, self.ended = [], {}, False
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        more = True
        try:
            while more:
                parameters, more = self.client.reply()
                moment = time.monotonic()
                for x in parameters["changes"]:
                    m = x["method"] or {}
                    self.changes.append((moment, x["change"], m))
                    self.seen.setdefault((x["change"], m.get("name")), (moment, m))
            self.ended = True
        except (OSError, Error):
            pass

    def close(self):
        with contextlib.suppress(OSError):
            self.client.s.shutdown(socket.SHUT_RDWR)
        self.thread.join(5)
        self.client.close()


def test_monitor():
    w = world()
    with Load("serve") as load:
        w.root.call("Attach", {"pid": load.pid, "wait_ms": 20000})
        m = Monitor(w.socket, load.pid)
        jit = [f"Jit_{i:06d}" for i in range(300)]
        load.ok("jit 300")
        until(lambda: all(("load", n) in m.seen for n in jit), what="loads")
        load.ok("dyn 50")
        until(lambda: ("load", "Dyn_000049") in m.seen, what="loads of dynamic methods")
        load.ok("drop")
        load.ok("gc")
        # bodies of what was still being used may stay
        until(lambda: sum(("unload", f"Dyn_{i:06d}") in m.seen for i in range(50)) > 45, what="unloads")
        # what it says is what ListMethods says
        gone = m.seen["unload", "Dyn_000000"][1]
        check(gone["unload"] and gone == next(x for x in w.root.methods(load.pid, retired=True)
                                              if x["name"] == "Dyn_000000"), f"{gone}")
        twice = [n for n, k in collections.Counter(x["name"] for _, c, x in m.changes if c == "load" and
                                                   x["name"].startswith(("Jit_", "Dyn_"))).items() if k > 1]
        check(not twice, f"loaded twice: {twice[:5]}")
        load.write("quit")
        until(lambda: m.ended, what="the end of the Monitor")
        count = collections.Counter(c for _, c, _ in m.changes)
        m.close()
        # it is gone, and what is known of it is there
        check(w.root.resolve(load.pid, [gone["start"]], time=gone["unload"] - 1)["methods"], "no answers")
        load.wait()
        expect("NoSuchProcess", w.root.call, "Attach", {"pid": load.pid})
    return str(dict(count))


def test_jit_latency():
    """From a method's first call until its name can be had, at random moments."""
    n = int(os.environ.get("CLRSYM_JITS", 200))
    w = world()
    calls, dice = {}, random.Random(2)
    with contextlib.closing(Monitor(w.socket, w.load.pid)) as m:
        for _ in range(n):
            name = w.load.ok("jit 1").split()[-1]
            calls[name] = time.monotonic()
            time.sleep(dice.uniform(0, 0.096))
        until(lambda: all(("load", x) in m.seen for x in calls), what="the last ones")
        late, unknown = [], 0
        for name, at in calls.items():
            moment, method = m.seen["load", name]
            late.append(max(0, moment - at) * 1000)
        for name in list(calls)[-20:]:
            unknown += name_of(w.root.resolve(w.load.pid, [m.seen["load", name][1]["start"]])) != name
    check(not unknown, f"{unknown} methods not known to Resolve")
    late.sort()
    p99 = late[int(len(late) * 0.99)]
    check(p99 <= 1000, f"p99 {p99:.0f} ms: five times what is promised")
    return (f"{n} methods: median {statistics.median(late):.0f} ms, p99 {p99:.0f} ms (budget: 200), "
            f"most {late[-1]:.0f} ms")


# -- who may what --------------------------------------------------------------------------


def matrix_calls(target):
    """Every method that takes a process, and two that are like another method."""
    p = {"pid": target}
    return [("Resolve", {**p, "addresses": [4096]}), ("ListModules", p), ("ListMethods", p), ("Snapshot", p),
            ("Export", p), ("Export", {**p, "code": True}), ("WriteMap", p), ("Monitor", p),
            ("Detach", p), ("Attach", p), ("Detach", p)]


def matrix_expected(method, parameters, may_see, may_read, attached):
    if not may_see:
        return "denied" if method == "Resolve" else "PermissionDenied"
    if parameters.get("code") and not may_read:
        return "PermissionDenied"
    if method == "Detach" and not attached:
        return "NotYours"
    return "ok"


def test_who_may_what():
    """root, owner, other, administrator and stranger, each with every method and each target."""
    w = world()
    gid, admin_gid = w.groups
    targets = {"root's": w.load.pid, "owner's": w.owned.pid, "set-uid": w.setuid.pid,
               "set-uid to owner": w.setuid_owner.pid}
    cells = 0
    with contextlib.ExitStack() as stack:
        users = {"root": w.user(0), "owner": w.user(OWNER, gid), "other": w.user(OTHER, gid),
                 "admin": w.user(ADMIN, gid, admin_gid), "primary": None, "stranger": w.user(STRANGER)}
        # the group as the primary one
        users["primary"] = Process(["python3", w.client, w.socket],
                                   wrap=["setpriv", "--reuid", str(OWNER), "--regid", str(gid),
                                         "--clear-groups", "--"])
        for u in users.values():
            stack.enter_context(u)
        for who, user in users.items():
            if who == "stranger":
                for method, p in [("Status", None), (f"{query.SERVICE}.GetInfo", None)] + \
                        matrix_calls(w.load.pid):
                    check(ask(user, method, p)[0] == "PermissionError", f"a stranger may {method}")
                    cells += 1
                continue
            is_owner = who in ("owner", "primary")
            for method in ("Status", f"{query.SERVICE}.GetInfo"):
                check(ask(user, method)[0] == "ok", f"{who}: {method}")
            listed = {p["pid"] for p in ask(user, "ListProcesses")[1]["processes"]} & set(targets.values())
            expected = set(targets.values()) if who in ("root", "admin") else \
                {w.owned.pid} if is_owner else set()
            check(listed == expected, f"{who} is listed {listed}, not {expected}")
            for what, target in targets.items():
                may_see, attached = target in expected, False
                may_read = who == "root" or (is_owner and target == w.owned.pid)
                for method, p in matrix_calls(target):
                    got, reply = ask(user, method, p, method in ("Monitor", "ListMethods"))
                    if method == "Resolve" and got == "ok":
                        got = "denied" if reply["reason"] == ["denied"] else "ok"
                    want = matrix_expected(method, p, may_see, may_read, attached)
                    check(got == want, f"{who}, {what} target: {method} {p}: {got}, not {want}")
                    attached = method == "Attach"
                    cells += 1
        # another one's Attach stays
        with Load("serve", wrap=["setpriv", "--reuid", str(OWNER), "--regid", str(OWNER),
                                 "--clear-groups", "--"]) as load:
            p = {"pid": load.pid}
            check(ask(users["other"], "Attach", p)[0] == "PermissionDenied", "other attaches")
            check(ask(users["owner"], "Attach", {**p, "wait_ms": 20000})[0] == "ok", "owner attaches")
            check(ask(users["other"], "Detach", p)[0] == "PermissionDenied", "other detaches")
            check(ask(users["admin"], "Detach", p)[0] == "NotYours", "admin detaches the owner's")
            check(ask(users["admin"], "Attach", p)[0] == "ok", "admin attaches, too")
            check(ask(users["owner"], "Detach", p)[0] == "ok", "owner detaches")
            time.sleep(0.2)
            check(ask(users["admin"], "ListMethods", p)[0] == "ok", "the admin's is undone")
            check(ask(users["admin"], "Detach", p)[0] == "ok", "admin detaches")
            until(lambda: ask(users["admin"], "ListMethods", p)[0] == "NotAttached", what="the stop")
            check(load.ok("jit 1"), "the target is hurt")
    return f"{cells} cells"


def test_pid_namespaces():
    w = world()
    files = w.dir
    script = (f"sleep 600 | '{workload()}' serve >{files}/inner & exec python3 {w.client} {w.socket}")
    unshare = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
    with Process(["sh", "-c", script], wrap=unshare) as inside, \
            Process(["python3", w.client, w.socket], wrap=unshare) as beside:
        inner = int(until(lambda: os.path.exists(f"{files}/inner") and open(f"{files}/inner").read(),
                          30, "the target inside").split()[1])
        outer = until(lambda: next((int(p) for p in os.listdir("/proc") if p.isdigit() and
                                    nspid(p)[1:] == [inner] and
                                    b"serve" in open(f"/proc/{p}/cmdline", "rb").read()), None))
        got, reply = ask(inside, "Attach", {"pid": inner, "wait_ms": 20000})
        check(got == "ok" and reply["process"]["pid"] == inner, f"{got} {reply}")
        got, reply = ask(inside, "ListProcesses")
        check([p["pid"] for p in reply["processes"]] == [inner], f"listed inside: {reply}")
        got, reply = ask(inside, "ListMethods", {"pid": inner})
        check(got == "ok" and len(reply["methods"]) > 50, f"{got}")
        m = reply["methods"][0]
        for _ in range(2):  # found, and remembered
            got, reply = ask(inside, "Resolve", {"pid": inner, "addresses": [m["start"]]})
            check(got == "ok" and reply["methods"], f"{got} {reply}")
        # ours means nothing there
        for method in ("ListMethods", "Attach", "Detach"):
            got, _ = ask(inside, method, {"pid": w.load.pid})
            check(got == "NoSuchProcess", f"{method} of a process outside: {got}")
        got, reply = ask(inside, "Resolve", {"pid": w.load.pid, "addresses": [4096]})
        check(got == "ok" and reply["reason"] == ["not attached"], f"{got} {reply}")
        # nor does its number in another namespace, or here
        got, _ = ask(beside, "ListMethods", {"pid": inner})
        check(got == "NoSuchProcess", f"from a namespace beside: {got}")
        check(not ask(beside, "ListProcesses")[1]["processes"], "listed beside")
        if not os.path.exists(f"/proc/{inner}"):
            expect("NotAttached", w.root.call, "ListMethods", {"pid": inner})
        r = w.root.resolve(outer, [m["start"]])
        check(r["methods"] and r["methods"][0]["name"] == m["name"], f"by our number: {r}")
        check(outer in [p["pid"] for p in w.root.call("ListProcesses")["processes"]], "not listed here")
    return f"{inner} inside is {outer} here"


def nspid(pid):
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as f:
        return [int(n) for n in re.search(r"NSpid:\s+(.*)", f.read())[1].split()]
    return []


# -- attaching, the end, another program -----------------------------------------------------


def test_attach_and_hold():
    w = world()
    with Load("serve") as held, Load("serve") as used, Load("serve") as kept, Process(["sleep", "60"]) as sleep:
        expect("CannotAttach", w.root.call, "Attach", {"pid": sleep.pid, "wait_ms": 1000})
        r = w.root.call("Attach", {"pid": held.pid, "hold_s": 1, "wait_ms": 20000})
        check(r["process"]["complete"] and r["process"]["state"] == "live", f"{r}")
        w.root.call("Attach", {"pid": used.pid, "hold_s": 2, "wait_ms": 20000})
        w.root.call("Attach", {"pid": kept.pid, "wait_ms": 20000})

        def attached():
            return {p["pid"] for p in w.root.call("ListProcesses")["processes"]}

        began = time.monotonic()
        while held.pid in attached():
            check(time.monotonic() - began < 8, "the hold does not end")
            w.root.resolve(used.pid, [4096])  # use keeps it
            time.sleep(0.1)
        while time.monotonic() - began < 3.5:
            w.root.resolve(used.pid, [4096])
            time.sleep(0.1)
        check({used.pid, kept.pid} <= attached(), "what is used, or held for good, has gone")
        w.root.call("Detach", {"pid": kept.pid})
        until(lambda: kept.pid not in attached(), what="the end of the sessions")
        # free for others again
        p = subprocess.run([program("clrsym"), "map", "--no-daemon", str(kept.pid)], capture_output=True,
                           text=True)
        check(p.returncode == 0, p.stderr)
        r = w.root.call("Attach", {"pid": kept.pid, "wait_ms": 20000})
        check(r["process"]["complete"], "not attached again")
        w.root.call("Detach", {"pid": kept.pid})
        until(lambda: used.pid not in attached(), 8, "the end of the other hold")


def test_exec():
    """Another program under the same pid: a new picture, nothing of the old one."""
    w = world()
    with Load("serve") as load:
        w.root.call("Attach", {"pid": load.pid, "wait_ms": 20000})
        m = new_method(w, load)
        monitor = Monitor(w.socket, load.pid)
        launcher = os.path.join(w.dir, "exec.sh")
        with open(launcher, "w", encoding="ascii") as f:
            f.write(f"rm -f /tmp/dotnet-diagnostic-$$-*\nexec {workload('8')} serve\n")
        at = now()
        load.ok(f"exec /bin/sh {launcher}")
        check(load.readline(60).startswith("ready"), "exec failed")
        name = load.ok("dyn 1").split()[-1]

        def there():
            with contextlib.suppress(Error):
                return any(x["name"] == name for x in w.root.methods(load.pid))

        until(there, 30, "the new program")
        names = {x["name"] for x in w.root.methods(load.pid, retired=True)}
        check(m["name"] not in names, "the old program's method is listed")
        for t in (0, m["load"] + 1, at):
            r = w.root.resolve(load.pid, [m["start"]], time=t)
            check(name_of(r) != m["name"], f"the old program answers at {t}")
        until(lambda: ("resync", None) in monitor.seen, what="the resync")
        monitor.close()
        runtime = next(p["runtime"] for p in w.root.call("ListProcesses")["processes"] if p["pid"] == load.pid)
        check(runtime.startswith("8."), runtime)


@contextlib.contextmanager
def client_as(path, uid, gid):
    """A connection of another user: the daemon looks at who connects when it accepts."""
    try:
        os.setegid(gid)
        os.seteuid(uid)
        c = Client(path)
        c.call("Status")
    finally:
        os.seteuid(0)
        os.setegid(0)
    with c:
        yield c


def test_monitor_of_what_became_anothers():
    """A process that execs a set-uid program is its user's no more: its Monitor ends."""
    w = world()
    env = os.path.join(w.dir, "env")
    shutil.copy("/usr/bin/env", env)
    os.chmod(env, 0o4755)
    launcher = os.path.join(w.dir, "suid.sh")
    with open(launcher, "w", encoding="ascii") as f:
        f.write(f"rm -f /tmp/dotnet-diagnostic-$$-*\nexec {env} {workload('8')} serve\n")
    with w.target("--reuid", str(OWNER), "--regid", str(OWNER), "--clear-groups") as load, \
            client_as(w.socket, OWNER, w.groups[0]) as c:
        c.call("Attach", {"pid": load.pid, "wait_ms": 20000})
        c.send("Monitor", {"pid": load.pid}, more=True)
        check(c.message()["continues"], "the Monitor began")
        load.ok(f"exec /bin/sh {launcher}")
        check(load.readline(60).startswith("ready"), "exec failed")
        if "\t0\t" not in open(f"/proc/{load.pid}/status", encoding="ascii").read().split("Uid:")[1].split("\n")[0]:
            raise Skip("no set-uid programs in the temporary folder")
        seen = []
        while True:
            m = c.message()
            if "error" in m:
                break
            seen += [x["method"]["name"] for x in m["parameters"]["changes"] if x["method"]]
            check(m.get("continues"), f"ended without a word: {m}")
        check(m["error"].endswith("PermissionDenied"), f"{m}")
        check("Program" not in seen, f"told of the set-uid program: {seen[:5]}")


# -- what comes with an fd -----------------------------------------------------------------


def check_sealed(fd):
    st = os.fstat(fd)
    for what, fn in (("grown", lambda: os.ftruncate(fd, st.st_size + 4096)),
                     ("cut", lambda: os.ftruncate(fd, 0)),
                     ("written", lambda: os.pwrite(fd, b"x", 0)),
                     ("mapped for writing", lambda: mmap.mmap(fd, 4096)),
                     ("opened for writing", lambda: os.pwrite(
                         os.open(f"/proc/self/fd/{fd}", os.O_RDWR), b"x", 0))):
        try:
            fn()
        except OSError:
            continue
        raise Failure(f"it can be {what}")
    return st.st_size


def test_fds_are_sealed():
    w = world()
    with Client(w.socket) as c:
        r = c.call("Export", {"pid": w.load.pid, "wait_ms": 2000})
        fd = c.take_fd()
        size = check_sealed(fd)
        check(size == r["bytes"] and r["bodies"] > 500, f"{r}, {size} bytes")
        check(os.pread(fd, 7, 0) == b"clrsymX", "not an export")
        os.close(fd)
        r = c.call("Export", {"pid": w.load.pid, "code": True})
        coded = r["bytes"]
        os.close(c.take_fd())
        check(coded > size, "no code in it")
        began = now()
        r = c.call("Export", {"pid": w.load.pid, "from": began, "to": str(began + 1), "wait_ms": 10000})
        check(r["known_until"] >= began, f"{r}")
        os.close(c.take_fd())
        r = c.call("Snapshot", {"pid": w.load.pid})
        fd = c.take_fd()
        check(check_sealed(fd) == r["bytes"], f"{r}")
        # it is kept up to date
        view = mmap.mmap(fd, r["bytes"], prot=mmap.PROT_READ)
        name = w.load.ok("jit 1").split()[-1].encode()
        known = struct.unpack_from("<Q", view, 128)[0]
        until(lambda: view.find(name) >= 0, what="the method in the snapshot")
        until(lambda: struct.unpack_from("<Q", view, 128)[0] > known, what="its known_until")
        view.close()
        os.close(fd)
    return f"export {size >> 10} KB, with code {coded >> 10} KB"


# -- clients that mean harm ------------------------------------------------------------------


def caps():
    """The numbers of src/base/caps.h that are written out there."""
    units = {"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "SEC_NS": 10**9, "MS_NS": 10**6}
    with open(os.path.join(TOP, "src/base/caps.h"), encoding="ascii") as f:
        text = f.read()
    return {m[1]: int(m[3]) * units[m[2]] if m[2] else int(m[3]) for m in
            re.finditer(r"#define (\w+)\s+(?:(\w+)\()?(\d+)u?\)?", text)}


@contextlib.contextmanager
def children(uid, gid, fns):
    """Each function in a process of its own, as another user; ended at the end."""
    pids = []
    for fn in fns:
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                os.setgroups([])
                os.setresgid(gid, gid, gid)
                os.setresuid(uid, uid, uid)
                fn()
                status = 0
            except OSError:
                status = 2
            finally:
                os._exit(status)
        pids.append(pid)
    try:
        yield pids
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def raw(path):
    s = socket.socket(socket.AF_UNIX)
    s.settimeout(20)
    s.connect(path)
    return s


def pour(s, pieces):
    """Sends as long as somebody takes it; returns what is answered."""
    with contextlib.suppress(OSError):
        for piece in pieces:
            s.sendall(piece)
    with contextlib.suppress(OSError):
        return s.recv(4096)
    return b""


HEAD = b'{"method":"org.clrsym.Symbols.Resolve","parameters":{"pid":1,"addresses":['
BAD_REQUESTS = {
    "no JSON": lambda: [b"hello\0"],
    "half JSON": lambda: [HEAD + b"\0"],
    "an array": lambda: [b"[1,2]\0"],
    "a number": lambda: [b"5\0"],
    "no method": lambda: [b'{"parameters":{}}\0'],
    "a method that is none": lambda: [b'{"method":5}\0'],
    "a surrogate": lambda: [b'{"method":"\\ud800"}\0'],
    "bad UTF-8": lambda: [b'{"method":"\xff\xfe"}\0'],
    "nothing": lambda: [b"\0" * 1000],
    "64 MB string": lambda: [b'{"method":"'] + [b"x" * (1 << 20)] * 64 + [b'"}\0'],
    "64 MB without end": lambda: [b" " * (1 << 20)] * 64,
    "100,000 deep": lambda: [HEAD + b"[" * 100000 + b"]" * 100000 + b"]}}\0"],
    "100,000 objects deep": lambda: [b'{"a":' * 100000 + b"1" + b"}" * 100000 + b"\0"],
    "300,000 values": lambda: [HEAD + b",".join([b"1"] * 300000) + b"]}}\0"],
    "100,000 arrays": lambda: [HEAD + b",".join([b"[]"] * 100000) + b"]}}\0"],
    "40,000 members": lambda: [b'{"method":"a.b","parameters":{' +
                               b",".join(b'"%d":1' % i for i in range(40000)) + b"}}\0"],
    "2^63, no string": lambda: [HEAD + b"9223372036854775808]}}\0"],
    "a huge number": lambda: [HEAD + b"9" * 100000 + b"]}}\0"],
}


def test_bad_requests():
    """An error and a closed connection, at once; the daemon keeps its size."""
    w = world()
    before = rss_kb(w.daemon.pid)
    for what, pieces in BAD_REQUESTS.items():
        with contextlib.closing(raw(w.socket)) as s:
            s.settimeout(3)
            answer = pour(s, pieces())
            check(b'"error"' in answer, f"{what}: {answer[:200]}")
        check(w.root.call("Status")["pid"] == w.daemon.pid, f"{what}: the daemon has gone")
    grown = rss_kb(w.daemon.pid) - before
    check(grown < 32 << 10, f"{grown} KB more")
    return f"{len(BAD_REQUESTS)} kinds, {grown} KB more"


class Pace:
    """How long one client's requests take."""

    def __init__(self, client, pid):
        self.client, self.pid = client, pid

    def measure(self, n=150):
        took = []
        for _ in range(n):
            began = time.perf_counter()
            self.client.resolve(self.pid, [4096, 8192])
            took.append((time.perf_counter() - began) * 1e6)
        took.sort()
        return took[n // 2], took[n * 95 // 100]


def attack_requests(path, pid):
    def run():
        while True:
            for pieces in list(BAD_REQUESTS.values()):
                with contextlib.closing(raw(path)) as s:
                    pour(s, pieces())
    return run


def attack_deaf(path, pid):
    """Many who ask for much and read none of it."""
    def run():
        mine = []
        call = b'{"method":"org.clrsym.Symbols.ListMethods","parameters":{"pid":%d}}\0' % pid
        while True:
            with contextlib.suppress(OSError):
                s = raw(path)
                s.sendall(call * 20)
                mine.append(s)
            time.sleep(0.005)
            mine = mine[-200:]
    return run


def attack_half(path, pid):
    def run():
        mine = []
        while True:
            with contextlib.suppress(OSError):
                s = raw(path)
                s.sendall(HEAD + b"1," * 400000)
                mine.append(s)
            mine = mine[-300:]
            time.sleep(0.005)
    return run


def attack_batches(path, pid):
    def run():
        with Client(path) as c:
            addresses = [4096 * i for i in range(1, 16000)]
            while True:
                c.resolve(pid, addresses)
    return run


def attack_many(path, pid):
    """10,000 connections of one user, most of which are refused; they come again and again."""
    def run():
        open_ = []
        while True:
            with contextlib.suppress(OSError):
                s = socket.socket(socket.AF_UNIX)
                s.setblocking(False)
                s.connect(path)
                open_.append(s)
            if len(open_) >= 10000:
                time.sleep(0.2)
                for s in open_:
                    s.close()
                open_ = []
            elif len(open_) % 64 == 0:
                time.sleep(0.001)
    return run


def test_hostile_clients():
    """One user's attacks: another one's requests take what they took, and memory has its cap."""
    w = world()
    cap = caps()
    # what user memory may be, and what glibc and the code map's own growth add
    limit = rss_kb(w.daemon.pid) + (cap["CAP_QUERY_USER_MEMORY"] >> 10) + (48 << 10)
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    said, bad = [], []
    with Client(w.socket) as c:
        pace = Pace(c, w.load.pid)
        pace.measure()
        calm = pace.measure(400)
        for attack, n in ((attack_requests, 2), (attack_deaf, 1), (attack_half, 1), (attack_batches, 2),
                          (attack_many, 1)):
            with children(OWNER, w.groups[0], [attack(w.socket, w.owned.pid)] * n):
                time.sleep(0.3)
                connected, most, rounds = 0, 0, []
                end = time.monotonic() + 1.2
                while time.monotonic() < end or len(rounds) < 3:
                    rounds.append(pace.measure(60))
                    began = time.monotonic()
                    with Client(w.socket) as another:
                        another.call("Status")
                    connected = max(connected, time.monotonic() - began)
                    most = max(most, rss_kb(w.daemon.pid))
            worst = statistics.median(r[0] for r in rounds), statistics.median(r[1] for r in rounds)
            name = attack.__name__.removeprefix("attack_")
            said.append(f"{name} {worst[0]:.0f}/{worst[1]:.0f} us, {most >> 10} MB")
            check(connected < 1, f"{name}: a new client waited {connected:.2f} s")
            if worst[0] > 5 * calm[0] + 300:
                bad.append(name)
            check(most < limit, f"{name}: {most} KB, more than {limit}")
        status = c.call("Status")
        until(lambda: c.call("Status")["clients"] < 10, 15, "the end of their connections")
        check(c.methods(w.owned.pid), "the target is lost")
    text = f"calm {calm[0]:.0f}/{calm[1]:.0f} us (median/95%); " + ", ".join(said)
    check(not bad, f"slower than 5 times: {bad}; {text}")
    return text + f"; {status['dropped']} dropped"


def test_stalled_clients():
    """Who leaves a request half sent, or a reply not taken, is dropped after 10 s; who just waits is not."""
    w = world()
    time.sleep(max(0, w.stalled_since + caps()["CAP_QUERY_STALL_NS"] / 1e9 + 1 - time.monotonic()))
    w.half.settimeout(2)
    check(w.half.recv(100) == b"", "half a request is still waited for")
    taken = 0
    with contextlib.suppress(ConnectionResetError):
        while piece := w.deaf.recv(1 << 20):
            taken += len(piece)
    check(0 < taken < 1 << 20, f"{taken} bytes are there for who takes nothing")
    w.idle.sendall(b'{"method":"org.clrsym.Symbols.Status"}\0')
    check(b"uptime_ms" in w.idle.recv(4096), "an idle client was dropped")
    return f"{taken} bytes waited in the socket"


def test_idle_clients():
    """1,000 connections that do nothing cost nothing but their memory."""
    w = world()

    def cpu():
        with open(f"/proc/{w.daemon.pid}/schedstat", encoding="ascii") as f:
            return int(f.read().split()[0]) / 1e6

    def second():
        before = cpu()
        time.sleep(1)
        return cpu() - before

    alone = second()
    before = w.root.call("Status")["client_bytes"]
    with contextlib.ExitStack() as stack:
        for _ in range(1000):
            stack.enter_context(contextlib.closing(raw(w.socket)))
        until(lambda: w.root.call("Status")["clients"] > 1000, what="the connections")
        each = (w.root.call("Status")["client_bytes"] - before) / 1000
        crowded = second()
    check(crowded < alone + 5, f"{crowded:.1f} ms CPU a second with 1,000 clients, {alone:.1f} without")
    return f"{alone:.1f} and {crowded:.1f} ms CPU a second, {each:.0f} bytes each"


# -- the socket file -----------------------------------------------------------------------


def refused(path, pattern, **kw):
    with Daemon(socket=path, **kw) as daemon:
        check(daemon.wait(20) == 1, f"exit status {daemon.p.returncode}")
        check(re.search(pattern, daemon.errors()), f"said: {daemon.errors()}")


def test_socket_file():
    """kill -9 under load, and what may lie at the path."""
    w = world()
    with tempfile.TemporaryDirectory() as d:
        path = f"{d}/q"
        with Daemon(socket=path) as daemon:
            daemon.listening()
            mode = os.stat(path)
            check(stat.S_IMODE(mode.st_mode) == 0o660 and mode.st_gid == w.groups[0], f"{mode}")
            refused(path, "another clrsymd listens there")
            with Load("serve") as load, Client(path) as c:
                c.call("Attach", {"pid": load.pid, "wait_ms": 20000})
                errors, calls = [], [0] * 4

                def client(i):
                    try:
                        with Client(path) as mine:
                            while True:
                                mine.resolve(load.pid, list(range(1, 2000)), wait_ms=5)
                                calls[i] += 1
                    except OSError as e:
                        errors.append(e)

                threads = [threading.Thread(target=client, args=(i,)) for i in range(4)]
                for t in threads:
                    t.start()
                until(lambda: all(n > 3 for n in calls), what="load")
                daemon.signal(signal.SIGKILL)
                daemon.wait()
                for t in threads:
                    t.join(5)
                check(len(errors) == 4, f"{len(errors)} of 4 clients have an error: {errors}")
                check(stat.S_ISSOCK(os.stat(path).st_mode), "no stale socket: no test")
                with contextlib.suppress(ConnectionRefusedError):
                    raise Failure(f"somebody answers: {Client(path)}")
                with Daemon(socket=path) as second, contextlib.ExitStack() as stack:
                    until(lambda: not path_is_dead(path), what="the new daemon")
                    c = stack.enter_context(Client(path))
                    r = c.call("Attach", {"pid": load.pid, "wait_ms": 20000})
                    check(r["process"]["complete"] and c.methods(load.pid), f"{r}")
                    status, _ = second.stop()
                    check(status == 0 and not os.path.exists(path), f"status {status}, or the file stays")
        with open(path, "w", encoding="ascii") as f:
            f.write("mine")
        refused(path, "no socket; it is left alone")
        check(open(path, encoding="ascii").read() == "mine", "the file was changed")
        os.unlink(path)
        os.symlink("/tmp/elsewhere", path)
        refused(path, "no socket; it is left alone")
        os.unlink(path)
        dead = socket.socket(socket.AF_UNIX)
        dead.bind(path)
        os.chown(path, OTHER, OTHER)
        dead.close()
        refused(path, "another user's socket")
        check(os.stat(path).st_uid == OTHER, "another user's socket has gone")
        os.unlink(path)
        # somebody who is no clrsymd
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as live:
            live.bind(path)
            live.listen()
            refused(path, "somebody listens there already")
        refused(f"{d}/{'x' * 200}", "too long")
        # a name is not taken over that changed hands meanwhile
        os.unlink(path)
        with Daemon(socket=path) as daemon:
            daemon.listening()
            os.unlink(path)
            with open(path, "w", encoding="ascii") as f:
                f.write("new")
            check(daemon.stop()[0] == 0, "stop")
            check(open(path, encoding="ascii").read() == "new", "another one's file was removed")


def path_is_dead(path):
    try:
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as s:
            s.connect(path)
            return False
    except OSError:
        return True


def test_systemd_activation():
    """A parent that binds and listens: connections wait until the daemon is there."""
    world()
    with tempfile.TemporaryDirectory() as d, contextlib.closing(socket.socket(socket.AF_UNIX)) as s:
        s.bind(f"{d}/q")
        s.listen(16)
        saved = None
        with contextlib.suppress(OSError):
            saved = os.dup(3)
        with Client(f"{d}/q") as early:
            early.send("Status")
            try:
                os.dup2(s.fileno(), 3, inheritable=True)
                daemon = Daemon(socket="", env={"LISTEN_FDS": "1"}, pass_fds=(3,),
                                wrap=["sh", "-c", 'LISTEN_PID=$$ exec "$@"', "sh"])
            finally:
                os.dup2(saved, 3) if saved is not None else os.close(3)
                os.close(saved) if saved is not None else None
            with daemon:
                check(early.reply()[0]["pid"] == daemon.pid, "Status")
                status, _ = daemon.stop()
                check(status == 0 and os.path.exists(f"{d}/q"), "systemd's file is not ours to remove")


# -- other people's clients -----------------------------------------------------------------


def test_go_client():
    """The varlink library that Debian packages for Go introspects and calls the socket."""
    if not shutil.which("go") or not os.path.isdir("/usr/share/gocode/src/github.com/varlink/go"):
        raise Skip("no Go, or not its varlink library")
    w = world()
    m = new_method(w)
    ask_go = os.path.join(w.dir, "ask")
    env = dict(os.environ, GO111MODULE="off", GOPATH="/usr/share/gocode", GOFLAGS="",
               GOCACHE=os.path.join(TOP, "build", "go"))
    p = subprocess.run(["go", "build", "-o", ask_go, os.path.join(TOP, "tests/go/ask.go")], env=env,
                       capture_output=True, text=True, timeout=120)
    check(p.returncode == 0, p.stderr)
    p = subprocess.run([ask_go, w.socket, str(w.load.pid), m["start"]], capture_output=True, text=True)
    check(p.returncode == 0, p.stderr)
    said = collections.defaultdict(list)
    for line in p.stdout.splitlines():
        word, rest = line.split(" ", 1)
        said[word].append(rest)
    check(said["service"][0].startswith("clrsym clrsymd ") and query.INTERFACE in said["service"][0], p.stdout)
    check({l.split()[0] for l in said["interface"]} == {query.SERVICE, query.INTERFACE.lower()}, p.stdout)
    check(len(said["method"]) == 11 and "Resolve 8 7" in said["method"], p.stdout)
    check(f"{w.load.pid} load true" in said["process"], p.stdout)
    check(said["answer"] == [m["function"], "- unmapped"], p.stdout)
    n, pieces = map(int, said["methods"][0].split())
    check(n > 512 and pieces > 1, p.stdout)
    check(said["error"] == [f"{query.INTERFACE}.NotAttached"] and
          said["missing"] == [f"{query.INTERFACE}.Nonsense"], p.stdout)
    return f"{n} methods in {pieces} pieces"


def example(interpreter, name):
    if not shutil.which(interpreter):
        raise Skip(f"no {interpreter}")
    w = world()
    m = new_method(w)
    at = int(m["start"], 16) + 5
    run = functools.partial(subprocess.run, capture_output=True, text=True, timeout=30,
                            env=dict(os.environ, CLRSYM_SOCKET=w.socket))
    argv = [interpreter, os.path.join(TOP, "examples", name)]
    p = run(argv + [str(w.load.pid), f"{at:#x}", f"{at:#x}@{now()}", f"{at:#x}@1", "0x1000"])
    lines = p.stdout.splitlines()
    check(p.returncode == 0 and lines[:2] == [f"{at:#x} {m['function']}+0x5"] * 2, p.stdout + p.stderr)
    check(lines[2].startswith(f"{at:#x} ? (") and lines[3:] == ["0x1000 ? (unmapped)"], p.stdout)
    p = run(argv + [str(w.load.pid), "nonsense"])
    check(p.returncode == 1 and "InvalidParameter" in p.stderr, p.stdout + p.stderr)
    p = run(argv + [str(w.load.pid), "0x1000"], env=dict(os.environ, CLRSYM_SOCKET=f"{w.dir}/none"))
    check(p.returncode == 1 and "is clrsymd running" in p.stderr, f"no daemon: {p.stderr}")
    p = run(argv)
    check(p.returncode == 1 and "PID ADDRESS[@NS]" in p.stderr and "Error" not in p.stderr, p.stderr)
    # attached to by the program itself
    with Load("serve") as other:
        p = run(argv + [str(other.pid), "0x1000"])
        check(p.returncode == 0 and p.stdout == "0x1000 ? (unmapped)\n", p.stdout + p.stderr)


def test_example_python():
    example("python3", "resolve.py")


def test_example_node():
    example("node", "resolve.mjs")


def test_example_sampler():
    """The libbpf sampler names the call chain that its target runs, at the samples' own times."""
    if os.geteuid() or not shutil.which("clang"):
        raise Skip("needs root and clang")
    if not os.path.exists("/usr/include/bpf/libbpf.h"):
        raise Skip("no libbpf-dev")
    build = os.path.dirname(program("clrsym"))
    p = subprocess.run(["make", "-C", TOP, f"O={build}", f"TOP={build}", "examples"],
                       capture_output=True, text=True, timeout=300)
    check(p.returncode == 0, f"make examples: {p.stderr[-500:]}")
    with tempfile.TemporaryDirectory() as d, Load("hot", "60") as load, Daemon(socket=f"{d}/q") as daemon:
        daemon.listening()
        p = subprocess.run([f"{build}/examples/sampler", str(load.pid), "2", "199"], capture_output=True,
                           text=True, timeout=60, env=dict(os.environ, CLRSYM_SOCKET=f"{d}/q"))
        if p.returncode and re.search("perf_event_open|BPF program", p.stderr):
            raise Skip(p.stderr.strip())
        check(p.returncode == 0, p.stderr)
        named = sum(int(l.rsplit(" ", 1)[1]) for l in p.stdout.splitlines() if
                    re.search(r"Lab\.Hot\.Chain::Outer;(Lab\.Hot\.Chain::Middle;)?Lab\.Hot\.Chain::", l))
        total = sum(int(l.rsplit(" ", 1)[1]) for l in p.stdout.splitlines())
        check(total > 100 and named > 0.8 * total, f"{named} of {total} stacks: {p.stdout[:500]}")
    return f"{named} of {total} stacks"


# -- the end --------------------------------------------------------------------------------


def test_daemon_stops():
    """SIGTERM with clients of all kinds: Monitors get their last reply, the file goes, status 0."""
    w = world()
    with contextlib.closing(Monitor(w.socket, w.load.pid)) as monitor, Client(w.socket) as c, \
            Client(w.socket) as waits:
        c.call("Snapshot", {"pid": w.load.pid})
        waits.send("Resolve", {"pid": w.load.pid, "addresses": [1], "time": now() + 10**10, "wait_ms": 500})
        status, took = w.daemon.stop()
        check(status == 0, f"status {status}: {w.daemon.errors()[-2000:]}")
        check(took < 5.5 and not os.path.exists(w.socket), f"{took:.1f} s, or the file stays")
        monitor.thread.join(5)
        check(not monitor.thread.is_alive(), "the Monitor goes on")
        check(w.load.ok("jit 1"), "the target is hurt")
    ended = monitor.ended
    teardown()  # the world has ended
    return f"{took:.2f} s; the Monitor " + ("had its last reply" if ended else "was cut off")
