#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Judges the names that perf gives to samples by what the program itself wrote down.

"load shares" logs when it was in which method (CLOCK_MONOTONIC, as in "perf record -k mono"). A sample of
that thread well inside a round, with its address in managed code, has that round's name or is wrong.
What managed code is, is read from the recording as perf made it: memory of no file, or a DLL's.

usage: perf_truth.py RAW.data INJECTED.data LOG [BUILDID-DIR]
"""
import bisect
import collections
import re
import subprocess
import sys

GUARD_NS = 20_000  # at both ends of a round: the way into the loop and out of it

Sample = collections.namedtuple("Sample", "comm pid tid ns ip sym dso")
HEAD = re.compile(r"(.*?)\s+(-?\d+)/(-?\d+)\s+(?:(\d+)\.(\d{9}):)?\s+([0-9a-f]+) (.*)")

# perf's names for memory that holds compiled or precompiled code
MANAGED = re.compile(r"//anon|/tmp/perf-\d+\.map|\[anon:.*\]|/?memfd:doublemapper.*|\[\.NET.*\]|"
                     r".*\.dll( \(deleted\))?|\[unknown\]")
# Between a round's two times, but not in its loop: how the loop is entered.
AROUND = re.compile(r"Lab\.Load\.Shares(\+.*)?::.*|System\.String::GetHashCode|"
                    r"System\.Diagnostics\.Stopwatch::(GetTimestamp|QueryPerformanceCounter)|dynamicClass::IL_STUB.*")


class PerfError(OSError):
    """perf itself refused."""


def split_dso(text):
    """"name (dso)": both may hold blanks and parentheses; the dso is the last balanced pair."""
    depth = 0
    for i in range(len(text) - 1, -1, -1):
        depth += (text[i] == ")") - (text[i] == "(")
        if depth == 0:
            return text[:i].rstrip(), text[i + 1:-1]
    return text, ""


def perf(*args, buildid_dir=None, **kw):
    argv = ["perf"] + (["--buildid-dir", buildid_dir] if buildid_dir else []) + list(args)
    return subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=120, **kw)


def script(data, *options, buildid_dir=None, times=True, **kw):
    """The samples of a recording as perf names them, callchains left out."""
    fields = "comm,pid,tid,time,ip,sym,dso" if times else "comm,pid,tid,ip,sym,dso"
    p = perf("script", "-i", data, "--ns", "-G", "-F", fields, *options, buildid_dir=buildid_dir, **kw)
    if p.returncode:
        raise PerfError(f"perf script: {p.stderr[-500:]}")
    return parse(p.stdout)


def parse(text):
    samples = []
    for line in text.splitlines():
        m = HEAD.match(line)
        if m:
            sym, dso = split_dso(m[7])
            ns = int(m[4]) * 10**9 + int(m[5]) if m[4] else 0
            samples.append(Sample(m[1].strip(), int(m[2]), int(m[3]), ns, int(m[6], 16), sym, dso))
    return samples


def chains(data, buildid_dir=None, **kw):
    """[(comm, pid, [(ip, sym, dso)...])], innermost frame first."""
    p = perf("script", "-i", data, "-F", "comm,pid,tid,ip,sym,dso", buildid_dir=buildid_dir, **kw)
    if p.returncode:
        raise PerfError(f"perf script: {p.stderr[-500:]}")
    return parse_chains(p.stdout)


def parse_chains(text):
    found, frames = [], None
    for line in text.splitlines():
        m = re.match(r"\s+([0-9a-f]+) (.*)", line)
        if m and frames is not None:
            frames.append((int(m[1], 16), *split_dso(m[2])))
        elif line.strip():
            m = re.match(r"(.*?)\s+(-?\d+)/(-?\d+)", line)
            frames = []
            if m:
                found.append((m[1].strip(), int(m[2]), frames))
    return found


def managed(dso):
    return MANAGED.fullmatch(dso) is not None


def base(sym):
    """The name without tier and arguments: "A.B`1[C]::M(int32)[Tier0]" is "A.B`1[C]::M"."""
    head, sep, method = sym.partition("::")
    return head + sep + re.split(r"[(\[]", method, maxsplit=1)[0] if sep else sym


class Log:
    """Rounds of one process; host_pid where the program knows itself by another number."""

    def __init__(self, path, host_pid=None):
        self.rounds = []
        with open(path, encoding="utf-8") as f:
            for line in f:
                tid, begin, end, kind, name = line.rstrip("\n").split("\t")
                self.rounds.append((int(begin), int(end), kind, name))
        self.rounds.sort()
        self.begins = [r[0] for r in self.rounds]
        self.tid = host_pid or (int(tid) if self.rounds else 0)

    def at(self, ns):
        """(kind, name) of the round that certainly ran at this time, or None."""
        i = bisect.bisect_right(self.begins, ns) - 1
        if i >= 0 and self.begins[i] + GUARD_NS <= ns <= self.rounds[i][1] - GUARD_NS:
            return self.rounds[i][2:]
        return None


class Verdict:
    """What became of the samples in rounds."""

    def __init__(self):
        self.right = collections.Counter()    # by kind
        self.unnamed = collections.Counter()  # by kind: managed code, no name
        self.wrong = []                       # (sample, kind, expected)
        self.around = 0                       # the code that enters and leaves the loop
        self.native = 0                       # kernel, runtime
        self.by_name = collections.Counter()  # right ones
        self.unnamed_samples = []
        self.tiers = collections.Counter()
        self.where = {}  # first and last address of each right name

    def total(self):
        return sum(self.right.values()) + sum(self.unnamed.values()) + len(self.wrong)

    def named(self):
        return sum(self.right.values()) / max(self.total(), 1)

    def reuse(self):
        """The largest number of methods that were seen around one address."""
        now = most = 0
        for _, step in sorted(e for low, high in self.where.values() for e in ((low, 1), (high, 2))):
            now += 1 if step == 1 else -1
            most = max(most, now)
        return most

    def __str__(self):
        text = (f"{self.total()} samples in rounds: {sum(self.right.values())} right, {len(self.wrong)} wrong, "
                f"{sum(self.unnamed.values())} unnamed")
        if self.unnamed:
            text += " (" + ", ".join(f"{n} {k}" for k, n in sorted(self.unnamed.items())) + ")"
        return text


def judge(samples, logs, raw=None, is_managed=None):
    """
    samples: of the injected file. raw: {(tid, ns): dso} of the recording before. logs: Log or several.
    is_managed(sample, dso) replaces the judgement by the dso.
    """
    v = Verdict()
    logs = {log.tid: log for log in (logs if isinstance(logs, list) else [logs])}
    for s in samples:
        log = logs.get(s.tid)
        expected = log.at(s.ns) if log else None
        if not expected:
            continue
        kind, name = expected
        dso = raw.get((s.tid, s.ns), s.dso) if raw is not None else s.dso
        if s.ip >> 63 or not (is_managed(s, dso) if is_managed else managed(dso)):
            v.native += 1
            if base(s.sym) == name:  # then it was managed after all
                v.right[kind] += 1
                v.native -= 1
        elif s.sym == "[unknown]":
            v.unnamed[kind] += 1
            v.unnamed_samples.append((s, kind, name))
        elif base(s.sym) == name:
            v.right[kind] += 1
            v.by_name[name] += 1
            v.tiers[name, s.sym[len(s.sym.rstrip("]").rpartition("[")[0]):]] += 1
            low, high = v.where.get(name, (s.ip, s.ip))
            v.where[name] = min(low, s.ip), max(high, s.ip)
        elif AROUND.fullmatch(base(s.sym)):
            v.around += 1
        else:
            v.wrong.append((s, kind, name))
    return v


def raw_dsos(data, **kw):
    return {(s.tid, s.ns): s.dso for s in script(data, **kw)}


if __name__ == "__main__":
    raw_file, injected, log_file = sys.argv[1:4]
    cache = sys.argv[4] if len(sys.argv) > 4 else None
    verdict = judge(script(injected, buildid_dir=cache), Log(log_file), raw_dsos(raw_file, buildid_dir=cache))
    print(verdict)
    print("by kind:", dict(verdict.right), "around:", verdict.around, "native:", verdict.native,
          "most methods around one address:", verdict.reuse())
    for (n, tier), count in sorted(verdict.tiers.items()):
        if not n.startswith("dynamicClass"):
            print(f"  {count:6} {n} {tier}")
    for wrong in verdict.wrong[:10]:
        print("wrong:", wrong)
    for unnamed in verdict.unnamed_samples[:10]:
        print("unnamed:", unnamed)
    sys.exit(bool(verdict.wrong))
