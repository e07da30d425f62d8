/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * text: JSON written straight into a buffer, for what is written a million times.
 *
 * Output is ASCII alone: whatever is no printable ASCII becomes \uXXXX, so that no name can
 * smuggle a line break or a terminal's control sequence anywhere. Bytes that are no UTF-8, and
 * NUL, become U+FFFD. Errors are the buffer's (see buf.h): a run of calls is tested once at its
 * end.
 */

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

/* "text", quotes included. */
void text_put_string(struct buf *out, const char *s, size_t len);
void text_put_u64(struct buf *out, uint64_t v);
/* A time: the largest is 2^63 - 1, as JSON parsers, ours too, take no larger integers. */
void text_put_time(struct buf *out, uint64_t ns);
/* "0x7f..": addresses and ids; quotes included. */
void text_put_hex(struct buf *out, uint64_t v);
