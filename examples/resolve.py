#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Names addresses of a .NET process: resolve.py PID ADDRESS[@NS]...

ADDRESS: hexadecimal, with 0x. NS: CLOCK_MONOTONIC of the moment meant; without it, the present.
"""
import json
import os
import socket
import sys


def call(method, **parameters):
    s.sendall(json.dumps({"method": f"org.clrsym.Symbols.{method}", "parameters": parameters}).encode() + b"\0")
    text = b""
    while not text.endswith(b"\0"):
        text += s.recv(65536) or sys.exit("clrsymd has gone")
    reply = json.loads(text[:-1])
    if "error" in reply:  # its name says it; PermissionDenied: another user's process
        sys.exit(f"{method}: {reply['error'].rpartition('.')[2]} {reply['parameters'] or ''}")
    return reply["parameters"]


if len(sys.argv) < 3 or not sys.argv[1].isdecimal():
    sys.exit(__doc__)
places = [place.partition("@") for place in sys.argv[2:]]
path = os.environ.get("CLRSYM_SOCKET", "/run/clrsym/query.sock")
with socket.socket(socket.AF_UNIX) as s:
    try:
        s.connect(path)
    except OSError as e:
        sys.exit(f"{path}: {e.strerror} (is clrsymd running, and are you in group clrsym?)")
    # clrsymd names what it is attached to; this attach ends 60 s after the last question
    call("Attach", pid=int(sys.argv[1]), hold_s=60, wait_ms=20000)
    answers = call("Resolve", pid=int(sys.argv[1]), wait_ms=500,
                   addresses=[address for address, _, _ in places], times=[ns or 0 for _, _, ns in places])
for (address, _, _), method, offset, reason in zip(
        places, answers["method"], answers["offset"], answers["reason"]):
    named = method is not None
    print(address, f"{answers['methods'][method]['function']}+{offset:#x}" if named else f"? ({reason})")
