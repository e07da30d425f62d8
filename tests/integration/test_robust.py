# SPDX-License-Identifier: Apache-2.0
"""Targets that stall, die, are replaced, lose events or were never any."""
import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time

from lib import (TOP, Attach, Daemon, Load, Process, Skip, check, map_path, program, read_map,
                 workload)


def clrsym(*args, **kw):
    return subprocess.run([program("clrsym")] + list(args), capture_output=True, text=True,
                          timeout=60, **kw)


def one_line_error(p, pattern):
    lines = p.stderr.strip().splitlines()
    check(p.returncode == 1, f"exit status {p.returncode}, stderr {p.stderr!r}")
    check(len(lines) == 1 and re.search(pattern, lines[0]), f"not one line like {pattern!r}: {p.stderr!r}")
    check(not p.stdout, f"stdout: {p.stdout!r}")
    return lines[0]


# -- bad input ---------------------------------------------------------------------------


def test_error_no_such_process():
    p = clrsym("map", "4194303")
    return one_line_error(p, "no such process")


def test_error_not_dotnet():
    with Process(["sleep", "60"]) as sleep:
        line = one_line_error(clrsym("map", str(sleep.pid)), r"not a \.NET process")
        check(not os.path.exists(map_path(sleep.pid)), "a map was written")
        return line


def test_error_diagnostics_off():
    notes = []
    for variable in ("DOTNET_EnableDiagnostics", "DOTNET_EnableDiagnostics_IPC"):
        with Load("idle", env={variable: "0"}) as load:
            notes.append(one_line_error(clrsym("map", str(load.pid)), variable))
            check(not os.path.exists(map_path(load.pid)), "a map was written")
    return notes[0]


def test_error_no_permission():
    if os.getuid() != 0:
        raise Skip("needs root to become another user")
    with Load("idle") as load:
        p = clrsym("map", str(load.pid), preexec_fn=lambda: (os.setgid(65534), os.setuid(65534)),
                   env=dict(os.environ, XDG_RUNTIME_DIR=""))
        return one_line_error(p, "may not be inspected by uid 65534")


def test_error_native_aot():
    with Load("idle", runtime="10", kind="aot") as load:
        line = one_line_error(clrsym("map", str(load.pid)), "NativeAOT")
        check(not os.path.exists(map_path(load.pid)), "a map was written")
        return line


def test_error_usage():
    for args in ([], ["map"], ["map", "x"], ["map", "1", "2"], ["nonsense"], ["decode"], ["resolve"],
                 ["map", "--names", "odd", "1"]):
        check(clrsym(*args).returncode == 2, f"{args}: not 2")
    check(clrsym("--version").returncode == 0 and clrsym("--help").returncode == 0, "help")


def test_single_file_works():
    with Load("serve", runtime="10", kind="singlefile") as load:
        load.ok("jit 20")
        p = clrsym("map", str(load.pid))
        check(p.returncode == 0, p.stderr)
        names = [n for _, _, n in read_map(map_path(load.pid))]
        check(any("::Jit_000005" in n for n in names), "emitted methods are missing")
        return f"{len(names)} methods"


def test_ps():
    with Load("idle") as ten, Load("idle", runtime="3.1") as three, \
            Load("idle", env={"DOTNET_EnableDiagnostics": "0"}) as off:
        out = clrsym("ps").stdout
        rows = {int(l.split()[0]): l for l in out.splitlines() if re.match(r" *\d", l)}
        check("10.0.15" in rows[ten.pid] and "yes" in rows[ten.pid], out)
        check("3.x" in rows[three.pid] and "yes" in rows[three.pid], out)
        check("no" in rows[off.pid].split(), out)


# -- many targets, slow targets ------------------------------------------------------------


@contextlib.contextmanager
def stale_sockets(n, pid):
    """n sockets that nobody listens on, of the same pid and of others."""
    paths = []
    for i in range(n):
        path = f"/tmp/dotnet-diagnostic-{pid if i % 2 else 100000 + i}-{1000 + i}-socket"
        s = socket.socket(socket.AF_UNIX)
        s.bind(path)
        s.close()
        os.chmod(path, 0o600)
        paths.append(path)
    try:
        yield
    finally:
        for path in paths:
            os.unlink(path)


def test_stale_sockets():
    """500 stale sockets beside the live one: attach adds less than 100 ms."""
    with Load("serve") as load:
        def attach():
            with Attach(load.pid) as a:
                ms = a.complete()[0]
                a.ask("quit")
                return ms
        for _attempt in range(3):  # noise only ever adds: a round without it is the answer
            plain, stale = [], []
            for _ in range(5):
                plain.append(attach())
                with stale_sockets(500, load.pid):
                    stale.append(attach())
            added = sorted(stale)[2] - sorted(plain)[2]
            if added < 100:
                break
        check(added < 100, f"500 stale sockets add {added:.0f} ms")
        return f"median {sorted(plain)[2]:.0f} ms, with 500 stale sockets {sorted(stale)[2]:.0f} ms"


def test_one_of_twenty_stopped():
    """19 complete within 1.2 times the run without the stopped one; SIGTERM ends in under 5 s."""
    with contextlib.ExitStack() as stack:
        loads = [stack.enter_context(Load("serve")) for _ in range(20)]
        pids = [l.pid for l in loads]

        def run(which, count):
            started = time.monotonic()
            with Daemon(*which) as daemon:
                daemon.complete(count, 60)
                took = time.monotonic() - started
                status, stopped = daemon.stop()
                check(status == 0, f"exit status {status}: {daemon.errors()[-300:]}")
            return took, stopped
        run(pids[1:], 19)  # warm
        for _attempt in range(4):  # noise only ever adds: a round without it is the answer
            without, with_ = [], []
            for _ in range(3):
                without.append(run(pids[1:], 19)[0])
                loads[0].signal(signal.SIGSTOP)
                took, stopped = run(pids, 19)
                loads[0].signal(signal.SIGCONT)
                with_.append(took)
                check(stopped < 5, f"SIGTERM took {stopped:.1f} s")
            ratio = sorted(with_)[1] / sorted(without)[1]
            if ratio < 1.2:
                break
        check(ratio < 1.2, f"the others took {ratio:.2f} times as long")
        return f"ratio {ratio:.2f}, SIGTERM {stopped:.1f} s"


def test_stops_in_the_middle():
    """SIGTERM while attaching: everything started is stopped, and the target can be attached again."""
    with Load("serve") as load:
        for delay in (0.0, 0.02, 0.05, 0.1, 0.2, 0.4):
            with Daemon(load.pid) as daemon:
                time.sleep(delay + 0.05)
                _, took = daemon.stop()
                check(took < 5, f"SIGTERM took {took:.1f} s")
        check(load.ok("jit 1"), "the target is hurt")
        with Daemon(load.pid) as daemon:
            daemon.complete()


def test_killed_daemon():
    """kill -9 leaves a whole map, and the sessions free themselves."""
    with Load("serve") as load:
        for _ in range(int(os.environ.get("CLRSYM_KILLS", 5))):
            with Daemon(load.pid) as daemon:
                daemon.complete()
                load.ok("jit 100")
                time.sleep(0.3)
                daemon.signal(signal.SIGKILL)
                daemon.wait()
                read_map(map_path(load.pid))
        load.ok("jit 10")


def test_one_keeper():
    with Load("serve") as load, Daemon(load.pid) as daemon:
        daemon.complete()
        p = clrsym("map", str(load.pid))
        return one_line_error(p, f"process {daemon.pid} .*keeps its map")


def test_exit_and_leftovers():
    """The daemon ends with its last target; its map stays and goes at the next start."""
    with Load("serve") as load, Daemon(load.pid) as daemon:
        daemon.complete()
        path = map_path(load.pid)
        load.write("quit")
        check(daemon.wait(20) == 0, f"exit status, {daemon.errors()[-300:]}")
        lines = read_map(path)
        check(len(lines) > 50, "the map of the dead target has lost its lines")
        load.wait()
    with Load("serve") as other, Daemon(other.pid) as daemon:
        daemon.complete()
        check(not os.path.exists(path), "a stale map of ours is still there")


# -- other programs, lost events ------------------------------------------------------------


def test_exec():
    """One .NET program exec'ed over another: nothing is carried over.

    The old program leaves its socket's file behind, and no runtime binds over one: without somebody
    who removes it (here a shell in between) the new program has no diagnostic port at all.
    """
    with Load("serve") as load, Daemon(load.pid) as daemon:
        load.ok("jit 300")
        daemon.complete()
        path = map_path(load.pid)
        daemon.rewrite(path)
        check(any("::Jit_000123" in n for _, _, n in read_map(path)), "no emitted method before")
        launcher = os.path.join(os.path.dirname(path), f"exec-{load.pid}.sh")
        with open(launcher, "w", encoding="ascii") as f:
            f.write(f"rm -f /tmp/dotnet-diagnostic-$$-*\nexec {workload('8')} serve\n")
        load.ok(f"exec /bin/sh {launcher}")
        check(load.readline(60).startswith("ready"), "exec failed")
        os.unlink(launcher)
        daemon.complete(count=2)
        load.ok("dyn 20")
        time.sleep(0.5)
        daemon.rewrite(path)
        names = [n for _, _, n in read_map(path)]
        check(not any("::Jit_" in n for n in names), "methods of the old program are still there")
        check(any("Dyn_" in n for n in names), "methods of the new one are not")
        text = daemon.errors()
        check(".NET 10.0.15" in text and ".NET 8.0.34" in text, text)


def test_exec_of_something_else():
    with Load("serve") as load, Daemon(load.pid) as daemon:
        daemon.complete()
        load.ok(f"exec {shutil.which('sleep')} 100")
        time.sleep(1)
        check(not os.path.exists(map_path(load.pid)), "the old program's map is still there")
        daemon.wait(60)
        return daemon.errors().strip().splitlines()[-1]


def test_gap_is_healed():
    """A 1 MB buffer and a burst: seen, reported, healed by one more rundown."""
    with Load("serve") as load, \
            Daemon(load.pid, options=["--buffer-mb", "1", "--min-rundown-gap", "1"]) as daemon:
        daemon.complete()
        daemon.signal(signal.SIGSTOP)  # nobody reads: the buffer must overflow
        last = load.ok("jit 30000", 300).split()[-1]
        daemon.signal(signal.SIGCONT)
        time.sleep(1)
        last = load.ok("jit 10").split()[-1]  # a jump shows at the thread's next event
        text = daemon.wait_for("dropped .* events", 30)
        daemon.wait_for("gap is filled", 90)
        time.sleep(0.5)
        daemon.rewrite(map_path(load.pid))
        names = {n.split("::")[-1] for _, _, n in read_map(map_path(load.pid))}
        expected = [f"Jit_{i:06d}" for i in range(int(last.split("_")[1]) + 1)]
        missing = [n for n in expected if n not in names]
        check(not missing, f"{len(missing)} of {len(expected)} methods missing after the gap was filled")
        return re.search(r"dropped (\d+) events", text)[0]


def test_own_perf_map_is_left_alone():
    """The runtime writes its own map: not ours to touch, said once."""
    with Load("serve", env={"DOTNET_PerfMapEnabled": "3"}) as load:
        path = map_path(load.pid)
        before = os.stat(path).st_ino
        line = one_line_error(clrsym("map", str(load.pid)), "keeps a perf map of its own")
        with Daemon(load.pid) as daemon:
            daemon.complete()
            daemon.signal(signal.SIGUSR1)
            time.sleep(0.3)
            daemon.stop()
        check(os.stat(path).st_ino == before, "the runtime's map was replaced")
        return line


def test_suspended_at_startup():
    """A runtime that waits for a resume: never resumed by us, never hurt, others unharmed."""
    exe = workload()
    with Process([exe, "serve"], env={"DOTNET_DefaultDiagnosticPortSuspend": "1"}) as load, \
            Load("serve") as other:
        time.sleep(1)
        with Daemon(load.pid, other.pid) as daemon:
            daemon.wait_for(rf"pid {other.pid}: .NET .* known")
            time.sleep(1)
            _, took = daemon.stop()
            check(took < 5.2, f"SIGTERM took {took:.1f} s")
            note = [l for l in daemon.errors().splitlines() if f"pid {load.pid}:" in l]
        check(load.p.poll() is None, "the suspended target died")
        return note[-1] if note else ""


# -- namespaces -----------------------------------------------------------------------------


def test_container():
    """pid and mount namespaces with a private /tmp: maps inside (both numbers) and outside."""
    exe = workload()
    # the program may lie below the /tmp that goes
    script = (f"mount --bind {os.path.dirname(exe)} /mnt && mount -t tmpfs tmpfs /tmp && "
              "exec /mnt/load serve")
    with Process(["sh", "-c", script], wrap=["unshare", "--mount", "--pid", "--fork", "--mount-proc",
                                             "--kill-child"]) as outer:
        line = outer.readline(60)
        check(line.startswith("ready"), line)
        inner = int(line.split()[1])
        # the child of unshare
        with open(f"/proc/{outer.pid}/task/{outer.pid}/children", encoding="ascii") as f:
            pid = int(f.read().split()[0])
        outer.ask("jit 20")
        p = clrsym("map", str(pid))
        check(p.returncode == 0, p.stderr)
        for path in (f"/proc/{pid}/root/tmp/perf-{inner}.map", f"/proc/{pid}/root/tmp/perf-{pid}.map",
                     map_path(pid)):
            names = [n for _, _, n in read_map(path)]
            check(any("Jit_000007" in n for n in names), f"{path}: no emitted method")
            st = os.stat(path)
            check(st.st_uid == 0 and st.st_mode & 0o7777 == 0o644, f"{path}: owner or mode")
        return p.stdout.replace("\n", "; ")


def test_perf_map_names_bpftrace_frames():
    """A bpftrace user stack in which every frame inside an announced body is named."""
    if not shutil.which("bpftrace") or os.getuid() != 0:
        raise Skip("needs bpftrace and root")
    with Load("hot", "60") as load, tempfile.TemporaryDirectory() as d, Daemon(load.pid) as daemon:
        daemon.complete()
        with open(os.path.join(d, "stacks"), "w", encoding="ascii") as out:
            subprocess.run(["bpftrace", "-e",
                            f"profile:hz:199 /pid == {load.pid}/ {{ @[ustack] = count(); }} "
                            "interval:s:3 { exit(); }"], stdout=out, stderr=subprocess.DEVNULL,
                           timeout=90, check=True)
        p = subprocess.run([os.path.join(TOP, "tests/integration/named-frames.py"),
                            map_path(load.pid), out.name], capture_output=True, text=True)
        check(p.returncode == 0, p.stdout + p.stderr)
        with open(out.name, encoding="utf-8", errors="replace") as f:
            check("Lab.Hot.Chain::Inner" in f.read(), "no frame of the hot chain")
        return p.stdout.strip()
