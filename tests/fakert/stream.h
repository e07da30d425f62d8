/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The streams that the fake runtime sends: recorded ones, the empty one, and filler.
 *
 * A session's bytes have three parts: the head (up to the end of the Trace object), which
 * a runtime sends at once; the body; and the tail (the last sequence point and the end tag),
 * which it sends when the session is stopped.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

struct stream {
	struct buf bytes;
	size_t head;                /* end of the Trace object */
	size_t tail;                /* where the bytes of the stop begin */
	uint64_t first_ns, last_ns; /* of its blocks; 0 if it has none */
};

/* A recorded stream. Bytes of another kind are taken too: half of them are the head. */
int stream_load(struct stream *s, const char *path);
/* A stream without an event. */
int stream_empty(struct stream *s);
void stream_deinit(struct stream *s);

/*
 * The recorded stream as if this process had sent it, shift_ns later than it was recorded:
 * block times, the first event time of each block, sequence points; and the Trace object
 * says that the session begins now.
 */
int stream_shift(struct stream *out, const struct stream *in, int64_t shift_ns);
/* The end of the objects, from `from` on and before the tail, whose events are past at now_ns. */
size_t stream_due(const struct stream *s, size_t from, uint64_t now_ns);

/*
 * Appends valid objects to bytes that are at `offset` of their stream: a block of about
 * 64 KiB that means nothing (every other one of a type that no reader knows), and the end.
 */
int stream_put_filler(struct buf *out, size_t offset, unsigned int n);
int stream_put_end(struct buf *out, size_t offset);
