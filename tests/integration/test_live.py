# SPDX-License-Identifier: Apache-2.0
"""The live picture against independent truths, on every runtime."""
import contextlib
import os
import re
import signal
import tempfile
import threading
import time

from lib import (RUNTIMES, Attach, Daemon, Failure, Load, Skip, check, fresh_rundown, map_path,
                 parse_map, read_map)


def same_picture(runtime):
    """After 5 s of JIT work, a GC and 1 s of quiet the map equals a fresh rundown."""
    with Load("serve", runtime=runtime) as load, \
            Daemon(load.pid, options=["--tiers", "--names", "full"]) as daemon:
        daemon.complete()
        end = time.monotonic() + 5
        while time.monotonic() < end:
            load.ok("jit 200")
            load.ok("dyn 50")
            load.ok("alc 4")
            load.ok("tier")
            load.ok("drop")
        load.ok("gc")
        time.sleep(1)
        daemon.rewrite(map_path(load.pid))
        ours = {(a, n): name for a, n, name in read_map(map_path(load.pid))}
        theirs = fresh_rundown(load.pid)
        daemon.stop()
    jitted = {k: o for k, o in theirs.items() if int(o["flags"], 16) & 8}
    missing = [o for k, o in jitted.items() if k not in ours]
    wrong = [(ours[k], o["ns"], o["name"]) for k, o in jitted.items()
             if k in ours and not ours[k].startswith(f"{o['ns']}::{o['name']}"[:200])]
    starts = {k[0] for k in theirs}
    # bodies that the runtime freed without a word: listed, not hidden
    silent = [name for (a, n), name in ours.items()
              if (a, n) not in theirs and "[ReadyToRun]" not in name]
    check(len(jitted) > 500, f"only {len(jitted)} JIT'd bodies: no test")
    check(not missing, f"{len(missing)} of {len(jitted)} bodies missing, e.g. {missing[:2]}")
    check(not wrong, f"{len(wrong)} wrong names, e.g. {wrong[:2]}")
    check(len(starts) == len(theirs), "the rundown itself has two bodies at one start")
    return (f"{len(jitted)} JIT'd bodies equal; unload never sent: {len(silent)}"
            + (f", e.g. {silent[0]}" if silent else ""))


def make(runtime):
    def test():
        return same_picture(runtime)
    return test


for _r in RUNTIMES:
    globals()[f"test_equals_fresh_rundown_{_r}"] = make(_r)


def churn(runtime, seconds):
    """Dynamic code at full speed: the map file and lookups at past times, all the while."""
    with tempfile.TemporaryDirectory() as d:
        log = os.path.join(d, "oracle.tsv")
        with Load("churn", str(seconds), log, "wait", runtime=runtime) as load, \
                Daemon(load.pid) as daemon, Attach(load.pid, "--retired-mb", "2000") as attach:
            daemon.complete()
            attach.complete()
            reads, failures, stop = [0], [], threading.Event()

            def reader():
                while not stop.is_set():
                    try:
                        with open(map_path(load.pid), "rb") as f:
                            parse_map(f.read())
                        reads[0] += 1
                    except (Failure, OSError, UnicodeError) as e:
                        failures.append(str(e))
                        return

            thread = threading.Thread(target=reader)
            thread.start()
            load.write("go")
            done = load.readline(seconds + 60)
            check(done.startswith("done "), f"churn said: {done}")
            time.sleep(0.5)
            stop.set()
            thread.join()
            check(not failures, f"map: {failures[:1]}")
            check(reads[0] > 20, f"only {reads[0]} map reads")
            with open(log, encoding="utf-8") as f:
                tuples = [l.rstrip("\n").split("\t") for l in f]
            step = max(1, len(tuples) // 100000)
            tuples = tuples[::step]
            answers = attach.lookup_many([(int(a, 16), int(t)) for a, t, _ in tuples])
            wrong = [(t, a) for t, a in zip(tuples, answers)
                     if not (a.startswith("hit ") and f"::{t[2]}[" in a)]
            status = attach.status()
            daemon.stop()
    check(len(tuples) > 10000, f"only {len(tuples)} oracle tuples")
    check(not wrong, f"{len(wrong)} of {len(tuples)} lookups wrong, e.g. {wrong[:2]}")
    return (f"{reads[0]} map reads, {len(tuples)} lookups right, "
            f"{status['retired']} retired bodies")


def test_churn_10():
    return churn("10", float(os.environ.get("CLRSYM_CHURN_S", 20)))


def test_churn_8():
    return churn("8", 5)


def test_churn_expires_honestly():
    """With the default bound on what is retired: the right body, or "expired"; never another."""
    with tempfile.TemporaryDirectory() as d:
        log = os.path.join(d, "oracle.tsv")
        with Load("churn", "5", log, "wait") as load, Attach(load.pid, "--retired-mb", "1") as attach:
            attach.complete()
            load.write("go")
            load.readline(60)
            time.sleep(0.5)
            with open(log, encoding="utf-8") as f:
                tuples = [l.rstrip("\n").split("\t") for l in f][::10]
            answers = attach.lookup_many([(int(a, 16), int(t)) for a, t, _ in tuples])
            status = attach.status()
    right = [f"::{t[2]}[" in a for t, a in zip(tuples, answers)]
    bad = [(t, a) for t, a, r in zip(tuples, answers, right) if not r and a != "miss expired"]
    check(not bad, f"{len(bad)} answers neither right nor expired, e.g. {bad[:2]}")
    check(status["expired"] > 0 and right[-1], "nothing expired, or the newest did")
    return f"{sum(right)} right, {len(right) - sum(right)} expired"


def test_lines_join_late():
    """A wider session takes over: IL offsets for code of before and after."""
    with Load("serve") as load, Attach(load.pid) as attach:
        attach.complete()
        load.ok("jit 50")
        check(attach.ask("widen") == "ok", "widen failed")
        end = time.monotonic() + 30
        while attach.status()["il_maps"] < 50 or attach.status()["rundowns"] < 2:
            check(time.monotonic() < end, f"no IL maps: {attach.status()}")
            time.sleep(0.05)
        before = attach.status()["il_maps"]
        load.ok("jit 100")
        time.sleep(0.6)
        status = attach.status()
        check(status["il_maps"] >= before + 100, f"{before} IL maps, then {status['il_maps']}")
        check(status["gaps"] == 0, "events were lost while sessions changed")
        return f"{before} IL maps from the rundown, {status['il_maps'] - before} live"


def test_known_until_follows_delay():
    """A healthy target: a quarter of a second behind now, no more than a little."""
    with Load("serve") as load, Attach(load.pid) as attach:
        attach.complete()
        load.ok("jit 10")
        time.sleep(0.5)
        s = attach.status()
        behind = (s["now"] - s["known_until"]) / 1e9
        delay = max(0.25, 2 * s["max_delay_ns"] / 1e9)
        check(delay - 0.01 < behind < delay + 0.5, f"{behind:.3f} s behind, expected {delay:.3f}")
        return f"{behind:.3f} s behind, largest delay {s['max_delay_ns'] / 1e6:.0f} ms"


@contextlib.contextmanager
def cpu_quota(pid, percent):
    """Puts a process into a cgroup with that much of one CPU (v2 or v1)."""
    for base, quota, text in (("/sys/fs/cgroup", "cpu.max", f"{percent * 1000} 100000"),
                              ("/sys/fs/cgroup/cpu", "cpu.cfs_quota_us", f"{percent * 1000}")):
        group = f"{base}/clrsym-test-{os.getpid()}"
        if os.path.exists(f"{base}/cgroup.procs"):
            try:
                os.mkdir(group)
                with open(f"{group}/{quota}", "w", encoding="ascii") as f:
                    f.write(text)
                break
            except OSError as e:
                raise Skip(f"no CPU controller: {e}") from None
    else:
        raise Skip("no cgroup with a CPU controller")
    try:
        with open(f"{group}/cgroup.procs", "w", encoding="ascii") as f:
            f.write(str(pid))
        yield
    finally:
        with contextlib.suppress(OSError), open(f"{base}/cgroup.procs", "w", encoding="ascii") as f:
            f.write(str(pid))
        os.rmdir(group)


def test_known_until_of_a_starved_target():
    """A twentieth of a CPU for many busy threads: events come late, and the figure follows."""
    with Load("serve") as load, Attach(load.pid) as attach:
        attach.complete()
        with cpu_quota(load.pid, 5):
            load.write("spin 16 2000")
            load.write("jit 20000")
            late, delays, end = [], [], time.monotonic() + 10
            while time.monotonic() < end:
                s = attach.status()
                late.append(s["late"])
                delays.append(s["max_delay_ns"])
                check(s["known_until"] <= s["now"] + 1e6 - 2 * s["max_delay_ns"], f"ahead of the delay: {s}")
                time.sleep(0.02)
    # what comes late makes the figure follow: no event is late at a delay that was known
    grew = [b - a for a, b, d, e in zip(late, late[1:], delays, delays[1:]) if d == e]
    check(not any(grew), f"{sum(grew)} events came later than promised, at a known delay")
    check(delays[-1] > 125e6, f"not starved: largest delay {delays[-1] / 1e6:.0f} ms")
    return f"largest delay {delays[-1] / 1e6:.0f} ms, {late[-1]} events late while it grew"


def test_lookup_soon_after_jit():
    """A method compiled now can be looked up within a second, quiet process or not."""
    with Load("serve") as load, Daemon(load.pid) as daemon:
        daemon.complete()
        first = load.ok("jit 1").split()[-1]
        started = time.monotonic()
        while not any(first in name for _, _, name in read_map(map_path(load.pid))):
            check(time.monotonic() - started < 3, "the map never had the new method")
            time.sleep(0.02)
        return f"in the map file after {time.monotonic() - started:.2f} s"


FOREVER = 2**64 - 1


def kept(attach):
    """What is kept of the bodies' code: ([(start, size, load, unload, name, bytes or "-why")], counts)."""
    bodies = []
    while True:
        word, rest = attach.readline().split(" ", 1)
        if word == "end":
            return bodies, [int(n) for n in rest.split()]
        start, size, load, unload, name, code = rest.split(" ", 5)
        bodies.append((int(start, 16), int(size), int(load), int(unload), name,
                       code if code.startswith("-") else bytes.fromhex(code)))


def settled(attach):
    """The same, when everything that happened up to now is known."""
    status = attach.status()
    while attach.status()["known_until"] < status["now"]:
        time.sleep(0.02)
    attach.write("bodies")
    return kept(attach)


def code_bytes(runtime):
    """The bytes of live bodies equal what the process has there, read by itself."""
    with Load("serve", runtime=runtime) as load, Attach(load.pid, "--code") as attach:
        attach.complete()
        load.ok("jit 300")
        load.ok("dyn 50")
        load.ok("tier")
        time.sleep(0.5)
        bodies, _ = settled(attach)
        new = [b for b in bodies if re.search(r"(Jit|Dyn)_\d{6}$", b[4])]
        # what was there before is read when asked for
        old = [b for b in bodies if b[5] == "-never read" and b[3] == FOREVER][:200]
        for b in old:
            check(attach.ask(f"keep {b[0]:x}") == "ok", f"not read: {b}")
        bodies, counts = settled(attach)
        with open(f"/proc/{load.pid}/mem", "rb", 0) as mem:
            compared = 0
            for start, size, _, unload, name, code in bodies:
                if isinstance(code, str) or unload != FOREVER:
                    continue
                mem.seek(start)
                check(mem.read(size) == code, f"{name}: other bytes than in the process")
                compared += 1
    missing = [b for b in new if isinstance(b[5], str) and b[3] == FOREVER]
    check(len(new) >= 350 and not missing, f"{len(new)} new bodies, without bytes: {missing[:2]}")
    old = {b[:3] for b in old}
    missing = [b for b in bodies if b[:3] in old and isinstance(b[5], str)]
    check(len(old) > 100 and not missing, f"{len(old)} old bodies, without bytes: {missing[:2]}")
    check(counts[4] == 0, f"{counts[4]} bodies could not be read")
    return f"{compared} bodies equal, {counts[0]} bytes"


def test_code_bytes_10():
    return code_bytes("10")


def test_code_bytes_3_1():
    return code_bytes("3.1")


def test_code_bytes_of_the_past():
    """Addresses used again and again: no body has another one's bytes, and most keep theirs."""
    with tempfile.TemporaryDirectory() as d:
        with Load("churn", "4", os.path.join(d, "log"), "wait") as load, \
                Attach(load.pid, "--code", "--retired-mb", "2000") as attach:
            attach.complete()
            load.write("go")
            check(load.readline(60).startswith("done "), "churn did not end")
            time.sleep(0.5)
            bodies, _ = settled(attach)
            # a sudden end takes nothing back, though nothing was compiled for a while
            load.signal(signal.SIGKILL)
            check(attach.readline().startswith("ended exited"), "the end was not seen")
            after, _ = kept(attach)
    ended = {b[:3]: b[5] for b in after}
    lost = [b[:5] for b in bodies if not isinstance(b[5], str) and ended.get(b[:3]) != b[5]]
    check(not lost, f"{len(lost)} bodies lost their bytes: {lost[:2]}")
    freed = with_bytes = 0
    for start, _, _, unload, name, code in bodies:
        made = re.search(r"(Drop|Coll)_(\d{7})$", name)
        if not made:
            continue
        freed += unload != FOREVER
        if isinstance(code, str):
            continue
        with_bytes += unload != FOREVER
        # each method hands its number to the probe; 0 is made without a constant
        number = int(made[2]) | ((1 << 30) if made[1] == "Coll" else 0)
        check(not number or number.to_bytes(4, "little") in code,
              f"{name} at {start:x} has bytes of something else: {code.hex()[:200]}")
    check(freed > 5000 and with_bytes > freed * 0.8, f"{with_bytes} of {freed} freed bodies have bytes")
    return f"{with_bytes} of {freed} freed bodies have their bytes"
