/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Text of a target (names, paths, command lines) made safe for where it goes.
 *
 * The source may hold escape sequences, bidirectional controls, newlines, markup; for the
 * sinks below one function each. Input need not be valid UTF-8: bad bytes become U+FFFD
 * (counted as one character each). Output is always valid UTF-8.
 */

#include <stddef.h>

#include "base/buf.h"

/*
 * For a field of a line (perf map, TSV): C0/C1 controls, DEL, NUL, line and paragraph
 * separators (U+2028, U+2029) and bidirectional controls become '?'. At most max bytes are
 * appended; no character is cut.
 */
int escape_line(struct buf *out, const char *s, size_t len, size_t max);

/*
 * For a terminal or the journal: as above, but shown as \xNN or \u{NNNN} so that nothing
 * is hidden. Returns a NUL-terminated string held in one of four rotating static buffers
 * (long text is cut with "..."): for log lines.
 */
const char *escape_terminal(const char *s, size_t len);
