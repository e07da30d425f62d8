# SPDX-License-Identifier: Apache-2.0
"""The tests' own means, where a mistake of theirs would look like one of the program's."""
from lib import Process, check


def test_errors_are_whole():
    """What a child says on stderr arrives whole, however often it is read meanwhile."""
    lines = 20000
    with Process(["sh", "-c", f"i=0; while [ $i -lt {lines} ]; do echo $i >&2; i=$((i + 1)); done"]) as p:
        text, reads = "", 0
        while p.p.poll() is None:
            before, text = text, p.errors()
            reads += 1
            check(text.startswith(before), f"read {reads} has lost what was read before")
        check(p.errors() == "".join(f"{i}\n" for i in range(lines)), "lines are missing")
        return f"{lines} lines, read {reads} times"
