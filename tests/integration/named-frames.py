#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks bpftrace stacks against a perf map: no frame inside an announced body may be without a name.

usage: named-frames.py MAP STACKS
"""
import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import lib  # noqa: E402

bodies = lib.read_map(sys.argv[1])
names = {name for _, _, name in bodies}
with open(sys.argv[2], encoding="utf-8", errors="replace") as f:
    frames = [l.strip() for l in f if l.startswith(" ")]
raw = [int(f, 16) for f in frames if re.fullmatch(r"0x[0-9a-f]+", f)]
managed = [f for f in frames if re.sub(r"\+\d+$", "", f) in names]
unnamed = [a for a in raw if lib.name_at(bodies, a)]
print(f"{len(frames)} different frames: {len(managed)} managed and named, {len(unnamed)} managed "
      f"without a name, {len(raw) - len(unnamed)} outside all managed code without a name")
sys.exit(0 if managed and not unnamed else 1)
