#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Names addresses of a .NET process: resolve.py PID ADDRESS[@NS]...

ADDRESS: hexadecimal, with 0x. NS: CLOCK_MONOTONIC of the moment meant; without it, the present.
"""
import json
import os
import socket
import sys

places = [place.partition("@") for place in sys.argv[2:]]
call = {"method": "org.clrsym.Symbols.Resolve", "parameters": {
    "pid": int(sys.argv[1]), "wait_ms": 500,
    "addresses": [address for address, _, _ in places], "times": [ns or 0 for _, _, ns in places]}}
with socket.socket(socket.AF_UNIX) as s:
    s.connect(os.environ.get("CLRSYM_SOCKET", "/run/clrsym/query.sock"))
    s.sendall(json.dumps(call).encode() + b"\0")
    text = b""
    while not text.endswith(b"\0"):
        text += s.recv(65536) or sys.exit("clrsymd has gone")
reply = json.loads(text[:-1])
if "error" in reply:
    sys.exit(f"{reply['error']} {reply['parameters']}")
answers = reply["parameters"]
for (address, _, _), method, offset, reason in zip(
        places, answers["method"], answers["offset"], answers["reason"]):
    named = method is not None
    print(address, f"{answers['methods'][method]['function']}+{offset:#x}" if named else f"? ({reason})")
