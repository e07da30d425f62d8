# SPDX-License-Identifier: Apache-2.0
"""blazesym's alternative ELF files, made by clrsym image: examples/blazesym.c and its callback."""
import bisect
import json
import os
import random
import shutil
import subprocess
import tempfile

from lib import TOP, Load, check, program, tool

MANAGED = ("memfd:doublemapper", "System.Private.CoreLib.dll")


def run(argv, **kw):
    p = subprocess.run(argv, capture_output=True, text=True, timeout=60, **kw)
    check(p.returncode == 0, f"{argv}: exit {p.returncode}: {p.stderr[-500:]}")
    return p


def methods(pid):
    """(start, size, name) of each code body, named as clrsym image does."""
    out = run([program("clrsym"), "methods", "--json", "--no-daemon", str(pid)]).stdout
    found = [json.loads(line) for line in out.splitlines()]
    return {(int(m["start"], 16), m["size"],
             f"{m['ns']}::{m['name']}[{m['tier']}]") for m in found if m["unload"] is None}


def mappings(pid):
    """(start, end, last component) of what can be executed and has a file."""
    with open(f"/proc/{pid}/maps", encoding="utf-8") as f:
        lines = [line.split(maxsplit=5) for line in f]
    return [(*(int(n, 16) for n in l[0].split("-")),
             os.path.basename(l[5].rstrip("\n").removesuffix(" (deleted)")))
            for l in lines if len(l) == 6 and "x" in l[1]]


def without_code(addrs, bodies):
    ends = sorted((start, start + size) for start, size, _ in bodies)
    starts = [start for start, _ in ends]
    for addr in addrs:
        i = bisect.bisect(starts, addr) - 1
        if i < 0 or addr >= ends[i][1]:
            yield addr


def parse(out):
    """{address: name or None}"""
    pairs = [line.split(" ", 1) for line in out.splitlines()]
    return {int(addr, 16): None if name.startswith("?") else name for addr, name in pairs}


def with_callback(clrsym, pid, addrs):
    out = run([tool("elfoffset"), clrsym, str(pid)], input="".join(f"{a:#x}\n" for a in addrs)).stdout
    return parse(out)


def with_blazesym(clrsym, pid, addrs):
    """The example itself, where make examples builds it; else None."""
    top = os.path.dirname(program("clrsym"))
    example = f"{top}/examples/blazesym"
    make = ["make", "-s", "-C", TOP, f"O={top}", f"TOP={top}"]
    if "examples/blazesym.c" not in run(make + ["-n", "-B", "examples"]).stdout:
        return None
    run(make + [example])
    out = run([example, str(pid)] + [f"{a:x}" for a in addrs], env=dict(os.environ, CLRSYM=clrsym)).stdout
    return {a: n and n.rsplit("+", 1)[0] for a, n in parse(out).items()}


def counting(folder):
    """A clrsym that writes down what it is called with."""
    path = os.path.join(folder, "clrsym")
    with open(path, "w", encoding="utf-8") as f:
        f.write(f'#!/bin/sh\necho "$@" >>{folder}/calls\nexec {program("clrsym")} "$@" --no-daemon\n')
    os.chmod(path, 0o755)
    return path


def compare(answers, expected, unnamed):
    wrong = [(hex(a), n, answers.get(a)) for a, n in expected.items() if answers.get(a) != n]
    check(not wrong, f"{len(wrong)} of {len(expected)} wrong: {wrong[:3]}")
    wrong = [(hex(a), answers[a]) for a in unnamed if answers[a]]
    check(not wrong, f"{len(wrong)} of {len(unnamed)} places without code have a name: {wrong[:3]}")


def test_names():
    """Both kinds of code, first to last byte, and nothing beside them; each file made once."""
    # what is there stays as it is; attaching still adds to it, by running new code
    with tempfile.TemporaryDirectory() as d, Load("serve", env={"DOTNET_TC_CallCounting": "0"}) as load:
        load.ok("jit 60")
        clrsym = counting(d)
        bodies = methods(load.pid)
        expected, others, count = {}, [], dict.fromkeys(MANAGED, 0)
        for low, high, file in mappings(load.pid):
            if file not in MANAGED:
                continue
            for start, size, name in bodies:
                if low <= start < high:
                    count[file] += 1
                    expected.update((a, name) for a in (start, start + size // 2, start + size - 1))
            # the first: before all symbols
            others += [low] + [random.randrange(low, high) for _ in range(20)]
        check(min(count.values()) >= 50, f"too few: {count}")
        addrs = list(dict.fromkeys(list(expected) + others))
        ways = {"the callback": with_callback(clrsym, load.pid, addrs)}
        with open(f"{d}/calls", encoding="utf-8") as f:
            calls = f.read().splitlines()
        check(sorted(os.path.basename(c.split(" -o ")[0]) for c in calls) == sorted(MANAGED) and
              all(c.startswith(f"image {load.pid} --mapping /") for c in calls), f"calls: {calls}")
        answers = with_blazesym(clrsym, load.pid, addrs)
        if answers is not None:
            ways["blazesym"] = answers
        unnamed = list(without_code(others, methods(load.pid)))
        for answers in ways.values():
            compare(answers, expected, unnamed)
    note = "" if "blazesym" in ways else "; blazesym is not installed"
    return f"{len(expected)} addresses, {count}, {len(unnamed)} gaps, with {' and '.join(ways)}{note}"


def test_no_image():
    """Where clrsym fails, and for files that are not managed, blazesym does what it always does."""
    with tempfile.TemporaryDirectory() as d, Load("serve") as load:
        first = {name: low for low, _, name in reversed(mappings(load.pid))}
        addrs = [first[MANAGED[1]], first[MANAGED[1]] + 1, first["libc.so.6"], 0x1000]
        for clrsym in (shutil.which("false"), f"{d}/none"):
            answers = with_callback(clrsym, load.pid, addrs)
            check(list(answers.values()) == [None] * 4, f"{answers}")
