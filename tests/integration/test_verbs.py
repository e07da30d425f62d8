# SPDX-License-Identifier: Apache-2.0
"""The verbs that ask: resolve, methods, modules, watch, filter, ps; a daemon's answers and our own."""
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time

from lib import Daemon, Load, Process, Skip, check, map_path, program

CHAIN = ["Lab.Hot.Chain::Inner", "Lab.Hot.Chain::Middle", "Lab.Hot.Chain::Outer",
         "Lab.Hot.Chain::Main"]


def clrsym(*args, **kw):
    return subprocess.run([program("clrsym"), *map(str, args)], capture_output=True, timeout=60, **kw)


def answer(*args, **kw):
    p = clrsym(*args, **kw)
    check(p.returncode == 0, f"{args}: exit {p.returncode}: {p.stderr.decode()[-500:]}")
    return p.stdout.decode()


def objects(*args, **kw):
    return [json.loads(l) for l in answer(*args, "--json", **kw).splitlines()]


@contextlib.contextmanager
def daemon(*pids):
    """A daemon with a socket of its own, and the options that lead to it."""
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "query.sock")
        with Daemon(*pids, socket=path, options=["--map", "off"]) as p:
            yield p.listening(), ["--socket", path]


def need(name):
    if not shutil.which(name):
        raise Skip(f"no {name}")


OWN = ["--no-daemon"]


def without(o, *names):
    return {k: v for k, v in o.items() if k not in names}


def test_daemon_and_own_agree():
    """The same process asked both ways: the same methods, modules and answers."""
    with Load("serve") as load, daemon() as (_, there):
        load.ok("jit 40")
        load.ok("alc 2")
        load.ok("drop")
        load.ok("gc")
        time.sleep(0.3)
        # the program's own first versions: the framework's code is recompiled all the while
        ours, theirs = ({(o["start"], o["function"]): o for o in objects("methods", *how, load.pid)
                         if o["ns"].startswith("Lab.") and not o["version"]}
                        # the daemon attaches when it is asked
                        for how in (OWN, there))
        check(len(ours) > 60 and set(ours) == set(theirs), f"{len(ours)}, different: {set(ours) ^ set(theirs)}")
        table = answer("methods", *there, load.pid).splitlines()
        check(table[0].split() == ["START", "SIZE", "TIER", "METHOD"] and
              sum("Jit_0000" in l for l in table) == 40, f"table: {table[:2]}")
        at = table[0].index("METHOD")
        check(all(re.match(r"  +\S+ +\d+  \w+ +$", l[:at]) and l[at] != " " for l in table[1:]), "columns")
        check("UNLOADED" in answer("methods", *there, "--retired", load.pid).splitlines()[0], "no times")

        mine = [without(o, "load", "unload") for o in objects("modules", *OWN, load.pid) if not o["unload"]]
        other = [without(o, "load", "unload") for o in objects("modules", *there, load.pid) if not o["unload"]]
        key = lambda o: (o["kind"], o["id"])  # noqa: E731
        check(sorted(mine, key=key) == sorted(other, key=key) and len(mine) > 5, f"{mine}\n{other}")
        libs = [o for o in mine if o["name"].endswith("/load.dll")]
        check(len(libs) == 1 and re.fullmatch(r"[0-9a-f-]{36}", libs[0]["pdb_id"]), f"{libs}")
        check("/load.dll" in answer("modules", *there, load.pid), "table")

        some = [o for o in ours.values() if re.search(r"Jit_0000\d\d", o["name"])]
        now = time.monotonic_ns()
        asked = "".join(f"{a:x}\n0x{a:x}@{now}\n" for o in some
                        for a in [int(o["start"], 16) + o["size"] // 2])
        asked += "1234\n"
        replies = [[json.loads(l) for l in answer("resolve", *how, "-p", load.pid, "--json",
                                                  input=asked.encode()).splitlines()] for how in (OWN, there)]
        check(len(replies[0]) == 2 * len(some) + 1, f"{len(replies[0])} answers")
        for a, b in zip(*replies):
            check(without(a, "il_offset", "final", "load") == without(b, "il_offset", "final", "load"),
                  f"{a}\n{b}")
        names = [a["name"] for a in replies[0][:-1]]
        check(names == [o["name"] for o in some for _ in range(2)], "wrong names")
        check(replies[0][-1]["reason"] == "unmapped", f"{replies[0][-1]}")
        keys = ["addr", "time", "method_id", "ns", "name", "sig", "module", "tier", "start", "size"]
        check(list(replies[1][0])[:10] == keys, f"{list(replies[1][0])}")
        check(any("il_offset" in a for a in replies[0]), "no IL offsets of our own attach")
        final = [a["final"] for a in replies[1] if a.get("time")]
        check(all(final), f"{final.count(False)} answers are not final")

        rows = {o["pid"]: o for o in objects("ps", *there)}
        check(rows[load.pid].get("daemon") == "attached", f"{rows[load.pid]}")
        check("daemon" not in {o["pid"]: o for o in objects("ps", *OWN)}[load.pid], "ps --no-daemon")
        line = next(l for l in answer("ps", *there).splitlines() if l.split()[0] == str(load.pid))
        check(line.split()[2:4] == ["yes", "attached"], line)
        # its code is known for a while after its end
        load.close()
        row = {o["pid"]: o for o in objects("ps", *there)}[load.pid]
        check(row["daemon"] == "ended" and not row["attachable"] and "exited" in row["reason"], f"{row}")
        check(row["runtime"] == rows[load.pid]["runtime"] and row["command"], f"{row}")
        line = next(l for l in answer("ps", *there).splitlines() if l.split()[0] == str(load.pid))
        check(line.split()[2:4] == ["no", "ended"], line)
        check(load.pid not in {o["pid"] for o in objects("ps", *OWN)}, "ps --no-daemon: ended")
    return f"{len(ours)} methods, {len(mine)} modules, {len(replies[0])} addresses"


def test_resolve_callers():
    """A return address behind a method's last instruction is its own, with --caller."""
    with Load("serve") as load, daemon(load.pid) as (_, there):
        m = next(m for m in objects("methods", *there, str(load.pid), "--json") if m["tier"] == "ReadyToRun")
        end = int(m["start"], 16) + m["size"]
        for how in (there, OWN):
            a, = objects("resolve", *how, "-p", str(load.pid), "--json", "--caller", f"{end:x}")
            check(a["function"] == m["function"] and a["offset"] == m["size"], f"{a}")
            a, = objects("resolve", *how, "-p", str(load.pid), "--json", f"{end:x}")
            check(a.get("function") != m["function"], f"{a}")


def watched(load, how):
    with Process([program("clrsym"), "watch", "--json", *how, str(load.pid)]) as watch:
        end = time.monotonic() + 20
        while "watching" not in watch.errors():
            check(time.monotonic() < end and watch.p.poll() is None, f"{watch.errors()}")
            time.sleep(0.01)
        load.ok("dyn 3")
        seen = {}
        while sum(n.startswith("Dyn_") for n in seen.get("load", [])) < 3:
            o = json.loads(watch.readline(10))
            seen.setdefault(o["change"], []).append(o["name"])
        load.ok("drop")
        load.ok("gc")
        while sum(n.startswith("Dyn_") for n in seen.get("unload", [])) < 3:
            o = json.loads(watch.readline(10))
            seen.setdefault(o["change"], []).append(o["name"])
            check(o["change"] != "unload" or o["unload"] > o["load"], f"{o}")
        watch.signal(signal.SIGINT)
        check(watch.wait(10) == 0, f"after ^C: {watch.errors()}")
    return sum(map(len, seen.values()))


def test_watch():
    with Load("serve") as load, daemon(load.pid) as (_, there):
        n = [watched(load, how) for how in (OWN, there)]
        with Process([program("clrsym"), "watch", *there, str(load.pid)]) as text, \
                Process([program("clrsym"), "watch", *OWN, str(load.pid)]) as own:
            end = time.monotonic() + 20
            while not all("watching" in w.errors() for w in (text, own)):
                check(time.monotonic() < end, text.errors() + own.errors())
                time.sleep(0.01)
            load.ok("jit 1")
            for w in (text, own):
                head, line = w.readline(10), w.readline(10)
                check(head.split() == ["TIME", "CHANGE", "START", "SIZE", "TIER", "METHOD"], head)
                m = re.fullmatch(r" *\d+\.\d{6}  load +[0-9a-f]+ +(\d+)  (\w+) +(\S.*)", line)
                check(m and m.start(2) == head.index("TIER") and m.start(3) == head.index("METHOD"), f"{head}\n{line}")
                check(m.end(1) == head.index("SIZE") + 4, f"{head}\n{line}")
            load.write("quit")
            for w in (text, own):
                check(w.wait(10) == 0, f"after the process's end: {w.errors()}")
    return f"{n[0]} and {n[1]} changes"


@contextlib.contextmanager
def hot():
    with Load("hot", "60") as load:
        yield load


def chains(text, name):
    """The stacks of a text, each as the list of what name() finds in a line of it."""
    stacks, last = [], False
    for line in text.splitlines():
        found = name(line)
        if found:
            if not last:
                stacks.append([])
            stacks[-1].append(found)
        last = bool(found)
    return stacks


def check_chains(stacks, what):
    # at first a replaced frame (OSR) is there twice, in the place of its caller
    good = [s for s in stacks if [m for m in CHAIN if m in s] == list(dict.fromkeys(s)) and s[-1] == CHAIN[-1]]
    check(len(stacks) > 3 and len(good) >= 0.9 * len(stacks),
          f"{what}: {len(good)} of {len(stacks)} stacks are the chain, e.g. {[s for s in stacks if s not in good][:3]}")
    return len(stacks)


def filtered(text, *args):
    p = clrsym("filter", *args, input=text)
    check(p.returncode == 0, f"filter: {p.stderr.decode()[-500:]}")
    return p.stdout.decode(), p.stderr.decode()


def test_filter_bpftrace():
    """Stacks of bpftrace: all of its forms, as a pipe, with our own attach and through a daemon."""
    need("bpftrace")
    with hot() as load, daemon(load.pid) as (_, there):
        script = f"profile:hz:99 /pid == {load.pid}/ {{ @[ustack(perf)] = count(); }} interval:s:1 {{ exit(); }}"
        # 0.17 hangs now and then, or has lost the stacks by the time when it prints
        for _ in range(3):
            p = subprocess.run(["timeout", "-s", "KILL", "8", "bpftrace", "-e", script],
                               capture_output=True, timeout=60)
            text = p.stdout
            if text.count(b"@[\n\t") > 3:
                break
        else:
            raise Skip(f"bpftrace brings no stacks here: {p.returncode} {p.stderr.decode()[-200:]}")
        # the other forms, as it prints them (tests/fixtures/filter)
        text += b"".join(re.sub(rb"^\t[0-9a-f]+ 0x([0-9a-f]+) .*", rb"    0x\1", l) for l in text.splitlines(True))
        check(not os.path.exists(map_path(load.pid)) and b"Chain" not in text, "there is a map: no test")
        ours, _ = filtered(text, *OWN, "-p", load.pid)
        theirs, _ = filtered(text, *there, "-p", load.pid)
        check(ours == theirs, "the daemon's answers differ")
        n = check_chains(chains(ours, lambda l: (re.fullmatch(
            r"\t[0-9a-f]+ (Lab\.Hot\.\S+)\+\d+ \(/\S+/load\.dll\)", l) or [0, 0])[1]), "ustack(perf)")
        check_chains(chains(ours, lambda l: (re.fullmatch(r" {4}(Lab\.Hot\.\S+)\+\d+", l) or [0, 0])[1]), "ustack")
        raw = "\n".join(re.sub(r"^ +0x", "", l) for l in text.decode().splitlines())
        named, _ = filtered(raw.encode(), *there, "-p", load.pid, "--tiers", "--names", "full")
        check_chains(chains(named, lambda l: (re.fullmatch(r"(Lab\.Hot\.\S+)\(\S+\)\[\w+\]\+\d+", l) or [0, 0])[1]),
                     "ustack(raw)")
        check([re.sub(r"\S+\+\d+( \(\S+\))?|0x\S+( \(\S+\))?", "", l) for l in ours.splitlines()] ==
              [re.sub(r"\S+\+\d+( \(\S+\))?|0x\S+( \(\S+\))?", "", l) for l in text.decode().splitlines()],
              "other text than addresses has changed")
    return f"{n} stacks"


def perf(*args):
    p = subprocess.run(["perf", *args], capture_output=True, timeout=60)
    check(p.returncode == 0, f"perf {args}: {p.stderr.decode()[-300:]}")
    return p.stdout


def frame(line):
    m = re.fullmatch(r"\t +[0-9a-f]+ (Lab\.Hot\.[^+ ]+)\+0x[0-9a-f]+ \(/memfd:doublemapper \(deleted\)\)", line)
    return m and m[1]


def only_names_differ(before, after):
    """Whatever has a name now (of any method, now and then one of the runtime's library) had none."""
    before, after = before.splitlines(), after.splitlines()
    for x, y in zip(before, after):
        head, unknown, tail = x.partition("[unknown]")
        if not (y.startswith(head) and y.endswith(tail) if unknown else x == y):
            return False
    return len(before) == len(after)


def test_filter_perf():
    """perf script: names by pid and time; offsets back to addresses; nothing else changes."""
    need("perf")
    with tempfile.TemporaryDirectory() as d, hot() as load, daemon() as (server, there):
        data = os.path.join(d, "perf.data")
        perf("record", "-k", "mono", "-g", "-F", "199", "-p", str(load.pid), "-o", data, "--", "sleep", "0.4")
        text = perf("script", "--header", "-i", data)
        ours, said = filtered(text, *OWN)
        check("clock" not in said, said)
        n = check_chains(chains(ours, frame), "perf script")
        theirs, _ = filtered(text, *there, "-p", load.pid)
        check(ours == theirs, "the daemon's answers differ")
        check(only_names_differ(text.decode(), ours), "other text than names has changed")
        # a recording whose clock is not told of
        other, said = filtered(text[text.index(b"\nload"):], *there)
        check(said.count("clock is not known") == 1, said)
        check_chains(chains(other, frame), "without a clock")
        _, said = filtered(text[text.index(b"\nload"):], *there, "--time-is-mono")
        check("clock" not in said, said)
        # one address a line
        perf("record", "-k", "mono", "-F", "199", "-p", str(load.pid), "-o", data + "1", "--", "sleep", "0.2")
        single, _ = filtered(perf("script", "-F", "+pid", "-i", data + "1"), *there, "--time-is-mono")
        lines = [l for l in single.splitlines() if "doublemapper" in l]
        check(len(lines) > 10 and all("Lab.Hot.Chain::Inner+0x" in l for l in lines), lines[:1])
        # after its end only the daemon knows, and the recording's own mappings tell where
        text = perf("script", "--show-mmap-events", "--header", "-i", data)
        load.close()
        late, said = filtered(text, *there)
        check_chains(chains(late, frame), "after the end")
        check("--show-mmap-events" not in said, said)
        late, said = filtered(perf("script", "--header", "-i", data), *there)
        check(said.count("--show-mmap-events") == 1 and f"pid {load.pid} has exited" in said, said)
        check("doublemapper" in late and not list(filter(None, map(frame, late.splitlines()))), "named all the same")
        late, said = filtered(text, *OWN)
        check(late.encode() == text and "had exited" in said, said)
        check(server.stop()[0] == 0, "the daemon's end")
    return f"{n} stacks"


def passed(text, *args):
    """Its text and its peak memory."""
    with tempfile.TemporaryFile() as out, \
            subprocess.Popen([program("clrsym"), "filter", *args], stdin=subprocess.PIPE, stdout=out,
                             stderr=subprocess.DEVNULL) as p:
        p.stdin.write(text)
        p.stdin.flush()
        end = time.monotonic() + 20
        while os.fstat(out.fileno()).st_size < text.rindex(b"\n"):
            check(time.monotonic() < end and p.poll() is None, f"filter {args}: no text")
            time.sleep(0.01)
        with open(f"/proc/{p.pid}/status", encoding="ascii", errors="replace") as f:
            kb = int(re.search(r"VmHWM:\s+(\d+)", f.read())[1])
        p.stdin.close()
        check(p.wait(10) == 0, f"filter {args}: {p.returncode}")
        out.seek(0)
        return out.read(), kb


def test_filter_passes():
    """What it does not understand comes out as it went in, in bounded memory."""
    noise = os.urandom(1 << 19).replace(b"0x", b"  ")
    text = (b"\t7f00 [unknown]\n" + noise + b"\nx" * 10 + b"0x12345 0x7fffffff0000\r\n\n\n" +
            b"y" * (16 << 20) + b"0x7f0000000000\n" + b"\t" * 300000 + b"\n\0\n" + noise +
            b"load 1 1.000000: x:\n\t  1234 [unknown] (/a)\n\n0x7f00000000")
    with hot() as load:
        for args in (["-p", str(load.pid)], []):
            out, kb = passed(text, *OWN, *args)
            check(out == text, f"{args}: other text")
            check(kb < 16 << 10 or "/san" in program(""), f"{args}: {kb} KB for a line of 16 MB")
        # who does not say the process gets a word
        for some, n in ((b"@[\n\t7f0000001234 0x7f0000001234 ([unknown])\n\t7f0000001235 0x7f0000001235 ([unknown])\n", 1),
                        (b"at 0x7f0000001234\n", 1), (b"load 1 1.000000: x:\n\t 12 [unknown] (/a)\n\n0x7f0000001234\n", 0),
                        (b"plain text\n", 0)):
            out, said = filtered(some, *OWN)
            check(out.encode() == some and said.count("use -p PID") == n, f"{some}: {said}")
            check("use -p" not in filtered(some, *OWN, "-p", load.pid)[1], "with -p")
        # an answer comes before the next line
        with Process([program("clrsym"), "filter", *OWN, "-p", str(load.pid)]) as f:
            check(f.ask("one") == "one" and f.ask("two") == "two", "not line by line")
            inner = next(o for o in objects("methods", *OWN, load.pid) if o["name"] == "Inner")
            check(f.ask(f"at {inner['start']}, {inner['start']}.") ==
                  "at Lab.Hot.Chain::Inner+0x0, Lab.Hot.Chain::Inner+0x0.", "no name")
            f.signal(signal.SIGINT)
            check(f.ask("three") == "three", "^C has ended it")
            f.p.stdin.close()
            check(f.wait(10) == 0, f.errors())
    return f"{len(text) >> 20} MB through {kb} KB"


def test_help():
    """Every verb's own, whichever way it is asked for."""
    verbs = re.findall(r"^  (\w+) ", answer("--help"), re.M)
    check(len(verbs) == 11, f"{verbs}")
    for verb in verbs:
        text = answer("help", verb)
        check(text.startswith("Usage: ") and f"clrsym {verb}" in text.splitlines()[0], text)
        check(text == answer(verb, "--help") and "Exit status: " in text, text)
        check(max(map(len, text.splitlines())) <= 100, f"{verb}: a long line")
    p = clrsym("help", "nonsense")
    check(p.returncode == 2 and b"no verb 'nonsense'" in p.stderr, f"{p}")
    return f"{len(verbs)} verbs"


def test_not_in_the_group():
    """Who may not connect is told what to do about it; who asks about another's process, that it is one."""
    if os.geteuid():
        raise Skip("needs root")
    with tempfile.TemporaryDirectory() as d, Load("serve") as load, \
            Daemon(load.pid, socket=f"{d}/q", options=["--map", "off"]) as server:
        server.listening()
        os.chmod(d, 0o755)
        user = {"user": 65534, "group": 65534, "extra_groups": []}
        os.chmod(f"{d}/q", 0o600)
        for verb in (["methods", load.pid], ["ps"], ["map", load.pid]):
            p = clrsym(*verb, "--socket", f"{d}/q", **user)
            said = p.stderr.decode()
            check("you are not in group clrsym" in said and "usermod -aG clrsym" in said, f"{verb}: {said}")
    return said.splitlines()[0]


def test_failures():
    """One line with the cause, and an exit status."""
    def fails(why, *args, status=1):
        p = clrsym(*args)
        said = p.stderr.decode()
        check(p.returncode == status and re.search(why, said) and len(said.splitlines()) <= 2,
              f"{args}: exit {p.returncode}: {said}")
        check(p.stdout == b"", f"{args}: {p.stdout[:100]}")

    with subprocess.Popen(["sleep", "60"]) as other, Load("serve") as load, daemon(load.pid) as (server, there):
        try:
            for verb in (["methods"], ["modules"], ["watch"], ["resolve", "1234", "-p"], ["filter", "-p"]):
                for how in (OWN, there):
                    fails("no such process|has exited", *verb, 999999999, *how)
                    fails(rf"pid {other.pid}: .*\S", *verb, other.pid, *how)
            for verb in ("map", "image", "methods", "modules", "watch"):
                fails("one PID", verb, status=2)
                fails("'abc' is no process id", verb, "abc", status=2)
                fails("'-1' is no process id", verb, "-p", "-1", status=2)
                fails("not both", verb, "-p", load.pid, load.pid, status=2)
            for verb in ("resolve", "filter"):
                fails("'0' is no process id", verb, "-p", "0", status=2)
            check(answer("modules", *there, "-p", load.pid) == answer("modules", *there, load.pid), "-p PID")
            fails("-p PID or --trace", "resolve", "1234", status=2)
            fails("--trace or -p, not both", "resolve", "--trace", "/nonexistent", "-p", load.pid, status=2)
            # before any is answered
            fails("not an address: xyz", "resolve", *there, "-p", load.pid, "1234", "xyz", "1234", status=2)
            p = clrsym("resolve", *there, "-p", load.pid, "-", input=b"1234\nxyz\n1234\n")
            check(p.returncode == 2 and p.stdout == b"1234 ? (unmapped)\n", f"{p}")
            # attached to by another daemon, which is the one to be asked
            with daemon() as (_, other_there):
                fails(r"keeps its map already \(ask that one: --socket PATH\)", "methods", *other_there, load.pid)
            fails(r"keeps its map already \(ask that one: --socket PATH\)", "map", *OWN, load.pid)
            p = clrsym("methods", "--socket", "/nonexistent/x", load.pid)
            check(p.returncode == 0 and b"no clrsymd answers there" in p.stderr, f"{p.stderr}")
            # the daemon dies in the middle
            start = objects("methods", *there, load.pid)[0]["start"]
            with Process([program("clrsym"), "watch", *there, str(load.pid)]) as watch, \
                    Process([program("clrsym"), "filter", *there, "-p", str(load.pid)]) as f:
                check("+0x0" in f.ask(start), "no name")
                end = time.monotonic() + 20
                while "watching" not in watch.errors():
                    check(time.monotonic() < end, watch.errors())
                    time.sleep(0.01)
                server.signal(signal.SIGKILL)
                check(watch.wait(10) == 1 and "clrsymd has gone" in watch.errors(), watch.errors())
                check(f.ask(start) == start, "an answer from nowhere")
                f.p.stdin.close()
                check(f.wait(10) == 1 and f.errors().count("clrsymd has gone") == 1, f.errors())
        finally:
            other.kill()
