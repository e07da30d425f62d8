#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every capture decodes to exactly its truth, and every sampled address to ClrMD's method.

usage: corpus.py BUILD_DIR FIXTURE_DIR

The truth files hold what the runtime vendor's own parser (TraceEvent) made of the same bytes, one
JSON object a line; lines are compared as multisets. For the ips-* sets the addresses were sampled by
perf and resolved by ClrMD in the stopped process.
"""
import collections
import json
import os
import subprocess
import sys

build, fixtures = sys.argv[1:3]
clrsym = os.path.join(build, "clrsym")
passed = failed = 0


def result(ok, name, why=""):
    global passed, failed
    passed, failed = passed + ok, failed + (not ok)
    print(("ok   " if ok else "FAIL ") + name + (": " + why if why else ""), flush=True)


def normal(o):
    """The peer's known mistakes, taken out of both sides (tests/fixtures/README.md)."""
    if o.get("event") == "Method/MethodDetails":
        return {k: o[k] for k in ("ev", "event", "id", "v", "ts", "MethodID", "TypeID", "MethodToken")}
    if o["ev"] == "summary":
        counts = {}
        for k, n in o["counts"].items():
            if k.startswith("Provider(92f528a6-"):
                k = "Microsoft-DotNETCore-EventPipe/" + k.split("/", 1)[1]
            counts[k] = n
        o = dict(o, counts=counts)
    return o


def lines(stream):
    return collections.Counter(json.dumps(normal(json.loads(l)), sort_keys=True) for l in stream)


def decode(name, path, truth):
    p = subprocess.run([clrsym, "decode", "--json", path], capture_output=True, text=True)
    ours = lines(p.stdout.splitlines())
    with open(truth, encoding="utf-8") as f:
        theirs = lines(f)
    if ours == theirs:
        result(p.returncode == 0, name, "" if p.returncode == 0 else p.stderr.strip())
        return
    missing, extra = theirs - ours, ours - theirs
    result(False, name, f"{sum(missing.values())} missing, {sum(extra.values())} extra")
    for title, some in (("missing", missing), ("extra", extra)):
        for line in list(some)[:2]:
            print(f"     {title}: {line[:400]}")


def methods(name, path):
    """The final map: as many live bodies as the rundown has distinct ones, each with its module."""
    p = subprocess.run([clrsym, "decode", "--methods", "--json", path], capture_output=True, text=True)
    answers = [json.loads(l) for l in p.stdout.splitlines()]
    with open(path[:-len(".nettrace")] + ".truth.jsonl", encoding="utf-8") as f:
        truth = [json.loads(l) for l in f]
    bodies = {(o["start"], o["size"], o["ns"], o["name"], o["sig"]) for o in truth if o["ev"] == "dcend"}
    ours = {(a["start"], a["size"], a["ns"], a["name"], a["sig"]) for a in answers}
    paths = {o["ModuleILPath"] for o in truth if o.get("event") == "Loader/ModuleDCStop"}
    odd = {a["module"] for a in answers if a["module"] is not None} - paths
    result(p.returncode == 0 and ours == bodies and not odd, name,
           f"{len(ours)} bodies, {len(ours ^ bodies)} different, {len(odd)} odd modules {sorted(odd)[:2]}")


def ips(name, folder):
    """Each address with in_hot true resolves, at its samples' times, to ClrMD's method."""
    samples = []
    with open(os.path.join(folder, "ips.truth.jsonl"), encoding="utf-8") as f:
        next(f)
        for l in f:
            o = json.loads(l)
            if o.get("method") and o.get("in_hot"):
                samples += [(o, o["first_ts"]), (o, o["last_ts"])]
    asked = "".join(f"{o['ip']}@{ts}\n" for o, ts in samples)
    traces = []
    for t in ("rundown-before", "live", "rundown-after"):
        traces += ["--trace", os.path.join(folder, t + ".nettrace")]
    p = subprocess.run([clrsym, "resolve", "--json"] + traces + ["-"], input=asked,
                       capture_output=True, text=True)
    answers = [json.loads(l) for l in p.stdout.splitlines()]
    wrong = [(o["ip"], ts, o["method_desc"], a.get("method_id", a.get("reason")))
             for (o, ts), a in zip(samples, answers)
             if int(a.get("method_id", "0x0"), 16) != int(o["method_desc"], 16)]
    ok = p.returncode == 0 and len(answers) == len(samples) > 0 and not wrong
    result(ok, name, f"{len(samples)} lookups, {len(wrong)} wrong" +
           (f", e.g. {wrong[0]}" if wrong else "") + (p.stderr.strip() if p.returncode else ""))


for name in sorted(os.listdir(fixtures)):
    folder = os.path.join(fixtures, name)
    for f in sorted(os.listdir(folder)):
        if f.endswith(".nettrace"):
            decode(f"decode {name}/{f}", os.path.join(folder, f),
                   os.path.join(folder, f[:-len(".nettrace")] + ".truth.jsonl"))
    if os.path.exists(os.path.join(folder, "rundown.nettrace")):
        methods(f"final map of {name}", os.path.join(folder, "rundown.nettrace"))
    if name.startswith("ips-"):
        ips(f"resolve {name}", folder)

print(f"corpus: {passed} passed, {failed} failed")
sys.exit(failed != 0)
