# SPDX-License-Identifier: Apache-2.0
"""What the integration tests share: workloads, the daemon, map files, results."""
import bisect
import contextlib
import fcntl
import os
import re
import select
import shutil
import signal
import subprocess
import tempfile
import time
import traceback

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.join(TOP, "build")
RUNTIMES = ["3.1", "8", "9", "10", "11"]


class Skip(Exception):
    """Something that the test needs is absent here."""


class Failure(Exception):
    pass


def check(condition, why):
    if not condition:
        raise Failure(why)


def tool(name):
    return os.path.join(BUILD, "tests", name)


def program(name):
    return os.path.join(BUILD, name)


def workload(runtime="10", kind="plain"):
    """The published test program; built once, cached below the build folder."""
    if not shutil.which("dotnet"):
        raise Skip("no .NET SDK")
    out = os.path.join(TOP, "build", "workloads", f"{runtime}-{kind}")
    p = subprocess.run([os.path.join(TOP, "tests/workloads/publish"), runtime, kind, out],
                       capture_output=True, text=True)
    if p.returncode:
        raise Failure(f"publish {runtime} {kind}: {(p.stdout + p.stderr)[-2000:]}")
    return os.path.join(out, "load")


class Process:
    """A child with line-wise pipes and deadlines."""

    def __init__(self, argv, env=None, wrap=(), stderr=None, **kw):
        full = dict(os.environ)
        full.update(env or {})
        self.argv = argv
        # Mode "a" would not do: it sets no O_APPEND, and the child's lines would be written wherever
        # the offset that it shares with us stands.
        self.stderr = tempfile.TemporaryFile()
        fcntl.fcntl(self.stderr, fcntl.F_SETFL, os.O_APPEND)
        self.p = subprocess.Popen(list(wrap) + argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                  stderr=self.stderr, env=full, **kw)
        self.rest = b""

    @property
    def pid(self):
        return self.p.pid

    def readline(self, timeout=60):
        end = time.monotonic() + timeout
        while b"\n" not in self.rest:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.p.stdout], [], [], left)[0]:
                raise Failure(f"{os.path.basename(self.argv[0])}: no answer in {timeout} s")
            piece = os.read(self.p.stdout.fileno(), 65536)
            if not piece:
                raise Failure(f"{os.path.basename(self.argv[0])} has ended: {self.errors()[-500:]}")
            self.rest += piece
        line, self.rest = self.rest.split(b"\n", 1)
        return line.decode(errors="replace")

    def write(self, line):
        self.p.stdin.write(line.encode() + b"\n")
        self.p.stdin.flush()

    def ask(self, line, timeout=120):
        self.write(line)
        return self.readline(timeout)

    def errors(self):
        """What the child has said on stderr so far."""
        fd = self.stderr.fileno()
        return os.pread(fd, os.fstat(fd).st_size, 0).decode(errors="replace")

    def wait(self, timeout=60):
        try:
            return self.p.wait(timeout)
        except subprocess.TimeoutExpired:
            raise Failure(f"{os.path.basename(self.argv[0])} does not end") from None

    def signal(self, number):
        self.p.send_signal(number)

    def close(self):
        if self.p.poll() is None:
            self.p.kill()
        self.p.wait()
        for f in (self.p.stdin, self.p.stdout, self.stderr):
            with contextlib.suppress(OSError):
                f.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


class Load(Process):
    """A workload: waits for its "ready PID" line."""

    def __init__(self, *args, runtime="10", kind="plain", **kw):
        super().__init__([workload(runtime, kind)] + list(args), **kw)
        self.ready = self.readline(120)
        check(self.ready.startswith("ready "), f"workload said: {self.ready}")
        self.inner_pid = int(self.ready.split()[1])

    def ok(self, command, timeout=120):
        answer = self.ask(command, timeout)
        check(answer.startswith("ok"), f"{command}: {answer}")
        return answer


class Daemon(Process):
    """clrsymd: with a socket it goes on until a signal, without one until its last target ends.

    The socket belongs in a folder of the test's own: the default path may be a real daemon's. An
    empty one means what systemd hands over.
    """

    def __init__(self, *pids, options=(), socket=None, wrap=(), **kw):
        argv = [program("clrsymd")] + list(options)
        if socket:
            argv += ["--socket", socket]
        elif socket is None and "--socket" not in argv:
            argv.append("--no-socket")
        self.pids, self.socket = pids, socket
        for pid in pids:
            argv += ["-p", str(pid)]
        super().__init__(argv, wrap=wrap, **kw)

    def wait_for(self, pattern, timeout=60, count=1):
        """Waits until stderr matches pattern count times."""
        end = time.monotonic() + timeout
        while True:
            status = self.p.poll()  # before the text: its last words count, too
            text = self.errors()
            n = len(re.findall(pattern, text))
            if n >= count:
                return text
            if status is not None:
                raise Failure(f"clrsymd has ended ({status}), having said {pattern!r} {n} times, not "
                              f"{count}: {self.story(text)}")
            if time.monotonic() > end:
                raise Failure(f"clrsymd said {pattern!r} {n} times in {timeout} s, not {count}: "
                              f"{self.story(text)}")
            time.sleep(0.02)

    def story(self, text):
        """For a failure's message: lines about no pid, and each pid's state, lines and last line."""
        said = {int(pid): [] for pid in self.pids}
        other = []
        for line in text.splitlines():
            m = re.match(r"clrsymd: (?:warning: )?pid (\d+): (.*)", line)
            if m:
                said.setdefault(int(m[1]), []).append(m[2])
            else:
                other.append(line)
        return "".join(f"\n     {l}" for l in other + [
            f"pid {pid} ({state(pid)}): " +
            (f"{len(lines)} lines, the last: {lines[-1]}" if lines else "not a word")
            for pid, lines in said.items()])

    def listening(self, timeout=20):
        """Waits until somebody can connect: the file appears when it is listened on already."""
        end = time.monotonic() + timeout
        while not os.path.exists(self.socket):
            check(self.p.poll() is None, f"clrsymd has ended: {self.errors()[-500:]}")
            check(time.monotonic() < end, f"no socket in {timeout} s")
            time.sleep(0.01)
        return self

    def complete(self, count=1, timeout=90):
        return self.wait_for(r"code bodies .* known", timeout, count)

    def stop(self, timeout=6):
        started = time.monotonic()
        self.signal(signal.SIGTERM)
        status = self.wait(timeout)
        return status, time.monotonic() - started

    def rewrite(self, path, timeout=10):
        """Asks for a new map now; returns when it is in place."""
        before = os.stat(path).st_ino
        self.signal(signal.SIGUSR1)
        end = time.monotonic() + timeout
        while os.stat(path).st_ino == before:
            check(time.monotonic() < end, "SIGUSR1 brought no new map")
            time.sleep(0.01)


class Attach(Process):
    """tests/tools/attach: a target and its code map, asked line by line."""

    def __init__(self, pid, *options, **kw):
        super().__init__([tool("attach")] + list(options) + [str(pid)], **kw)

    def complete(self, timeout=90):
        line = self.readline(timeout)
        check(line.startswith("complete "), f"attach said: {line} {self.errors()[-500:]}")
        return float(line.split()[1]), int(line.split()[2])

    def status(self):
        line = self.ask("status")
        check(line.startswith("status "), f"attach said: {line}")
        return {k: int(v) for k, v in (w.split("=") for w in line.split()[1:])}

    def lookup_many(self, pairs):
        """pairs of (address, ns); yields answers in order."""
        answers = []
        for i in range(0, len(pairs), 500):
            part = pairs[i:i + 500]
            self.p.stdin.write("".join(f"lookup {a:x} {t}\n" for a, t in part).encode())
            self.p.stdin.flush()
            answers += [self.readline() for _ in part]
        return answers


def map_path(pid):
    return f"/tmp/perf-{pid}.map"


LINE = re.compile(rb"([0-9a-f]{1,16}) ([0-9a-f]{1,8}) ([^\x00-\x1f\x7f]{3,300})")


def parse_map(data):
    """[(start, size, name)]; fails on anything that a strict reader would not take."""
    lines = []
    check(not data or data.endswith(b"\n"), "no newline at the end of the map")
    end = 0
    for line in data.split(b"\n")[:-1]:
        m = LINE.fullmatch(line)
        check(m, f"bad line: {line[:200]!r}")
        start, size, name = int(m[1], 16), int(m[2], 16), m[3].decode("utf-8")
        check(size > 0, f"empty range: {line!r}")
        check(start >= end, f"not sorted, or overlapping: {line!r}")
        end = start + size
        lines.append((start, size, name))
    return lines


def read_map(path):
    with open(path, "rb") as f:
        return parse_map(f.read())


def name_at(lines, addr):
    i = bisect.bisect_right(lines, (addr, 1 << 62, "")) - 1
    if i >= 0 and lines[i][0] <= addr < lines[i][0] + lines[i][1]:
        return lines[i][2]
    return None


def fresh_rundown(pid):
    """What a new rundown says: {(start, size): (flags, full name)}; our own decoder reads it."""
    import json
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "rundown.nettrace")
        subprocess.run([tool("drain"), "--rundown-only", "--save-rundown", path, str(pid)],
                       check=True, capture_output=True, timeout=120)
        out = subprocess.run([program("clrsym"), "decode", "--json", path], check=True,
                             capture_output=True, text=True).stdout
    bodies = {}
    for line in out.splitlines():
        o = json.loads(line)
        if o["ev"] == "dcend":
            bodies[int(o["start"], 16), o["size"]] = o
    return bodies


def state(pid):
    """What the kernel says it is doing: "S (sleeping)", "T (stopped)", "gone"."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as f:
            return re.search(r"State:\s+(.*)", f.read())[1]
    except OSError:
        return "gone"


def rss_kb(pid):
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as f:
        return int(re.search(r"VmRSS:\s+(\d+)", f.read())[1])


def run_tests(modules, pattern, quick):
    """Runs every test_* function; returns (passed, failed, skipped).

    What a module's tests share is made by the first that needs it; its teardown() takes it away.
    """
    passed = failed = skipped = 0
    for module in modules:
        run = passed + failed + skipped
        for name, fn in list(vars(module).items()):
            title = f"{module.__name__.removeprefix('test_')}.{name.removeprefix('test_')}"
            if not name.startswith("test_") or not callable(fn) or (pattern and pattern not in title):
                continue
            started = time.monotonic()
            try:
                note = fn() or ""
                passed += 1
                word = "ok  "
            except Skip as e:
                skipped += 1
                word, note = "skip", str(e)
            except Exception as e:  # the others are to run in any case
                failed += 1
                where = traceback.extract_tb(e.__traceback__)[1:]
                place = "".join(f" < {f.name}:{f.lineno}" for f in reversed(where))
                word, note = "FAIL", f"{type(e).__name__}: {e} ({place[3:]})"
            print(f"{word} {title} ({time.monotonic() - started:.1f} s)" +
                  (f": {note}" if note else ""), flush=True)
        if hasattr(module, "teardown") and passed + failed + skipped > run:
            module.teardown()
    return passed, failed, skipped
