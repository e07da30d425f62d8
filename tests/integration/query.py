#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A client of the query socket, for tests: one connection, requests and replies as they are.

As a program it lends its user, groups and namespaces to a test: it reads one call a line,
["Method", {parameters}] or ["Method", {parameters}, true] with `more` (then the first reply counts),
makes it on a connection of its own, and prints the reply as one line.

usage: query.py SOCKET <calls >replies
"""
import json
import os
import socket
import sys

INTERFACE = "org.clrsym.Symbols"
SERVICE = "org.varlink.service"


class Error(Exception):
    """The server's answer was an error of the interface (short, without the interface's name)."""

    def __init__(self, name, parameters):
        super().__init__(f"{name} {parameters}")
        self.name, self.parameters = name, parameters

    @property
    def short(self):
        return self.name.rsplit(".", 1)[-1]


class Gone(OSError):
    """The server has closed the connection."""


class Client:
    def __init__(self, path, timeout=30):
        self.s = socket.socket(socket.AF_UNIX)
        self.s.settimeout(timeout)
        self.s.connect(path)
        self.rest = b""
        self.fds = []

    def send(self, method, parameters=None, **flags):
        """flags: more, oneway."""
        if "." not in method:
            method = f"{INTERFACE}.{method}"
        call = {"method": method, "parameters": parameters, **flags}
        self.s.sendall(json.dumps(call).encode() + b"\0")

    def message(self):
        """The next message, whatever it is."""
        while b"\0" not in self.rest:
            data, fds, _, _ = socket.recv_fds(self.s, 1 << 18, 4)
            self.fds += fds
            if not data:
                raise Gone("the server has closed the connection")
            self.rest += data
        raw, self.rest = self.rest.split(b"\0", 1)
        return json.loads(raw)

    def reply(self):
        """The next reply's parameters, and whether more follow."""
        m = self.message()
        if "error" in m:
            raise Error(m["error"], m.get("parameters"))
        return m["parameters"], m.get("continues", False)

    def call(self, method, parameters=None):
        self.send(method, parameters)
        return self.reply()[0]

    def call_many(self, method, parameters=None):
        """With `more`: yields each reply's parameters."""
        self.send(method, parameters, more=True)
        more = True
        while more:
            parameters, more = self.reply()
            yield parameters

    def resolve(self, pid, addresses, **more):
        return self.call("Resolve", {"pid": pid, "addresses": addresses, **more})

    def methods(self, pid, **more):
        return [m for r in self.call_many("ListMethods", {"pid": pid, **more}) for m in r["methods"]]

    def take_fd(self):
        return self.fds.pop(0)

    def close(self):
        self.s.close()
        for fd in self.fds:
            os.close(fd)
        self.fds = []

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


def main():
    for line in sys.stdin:
        method, parameters, *more = json.loads(line)
        try:
            with Client(sys.argv[1]) as c:
                c.send(method, parameters, **({"more": True} if more else {}))
                answer = c.message()
        except OSError as e:
            answer = {"os": type(e).__name__}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
