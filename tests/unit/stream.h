/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Writes nettrace streams, right and wrong ones, for tests of what reads them. Written from
 * the format's description, independently of the reader. Nothing here is checked: the
 * buffers' error is.
 */

#include <string.h>

#include "base/buf.h"

#define STREAM_RUNTIME "Microsoft-Windows-DotNETRuntime"
#define STREAM_RUNDOWN "Microsoft-Windows-DotNETRuntimeRundown"

static inline void stream_u16z(struct buf *b, const char *ascii)
{
	do
		buf_put_u16(b, (uint8_t)*ascii);
	while (*ascii++);
}

static inline void stream_varint(struct buf *b, uint64_t v)
{
	for (; v >= 0x80; v >>= 7)
		buf_put_u8(b, (uint8_t)(v | 0x80));
	buf_put_u8(b, (uint8_t)v);
}

/* -- Framing -------------------------------------------------------------------------- */

static inline void stream_magic(struct buf *b)
{
	buf_puts(b, "Nettrace");
	buf_put_u32(b, 20);
	buf_puts(b, "!FastSerialization.1");
}

static inline void stream_object_head(struct buf *b, const char *type, uint32_t version,
				      uint32_t min_version)
{
	buf_append(b, "\5\5\1", 3);
	buf_put_u32(b, version);
	buf_put_u32(b, min_version);
	buf_put_u32(b, (uint32_t)strlen(type));
	buf_puts(b, type);
	buf_put_u8(b, 6);
}

static inline void stream_trace(struct buf *b)
{
	static const uint16_t date[8] = { 2025, 11, 6, 29, 13, 14, 15, 167 };
	size_t i;

	stream_object_head(b, "Trace", 4, 4);
	for (i = 0; i < 8; i++)
		buf_put_u16(b, date[i]);
	buf_put_u64(b, 123456789);
	buf_put_u64(b, 1000000000);
	buf_put_u32(b, 8);
	buf_put_u32(b, 4711);
	buf_put_u32(b, 2);
	buf_put_u32(b, 1000000);
	buf_put_u8(b, 6);
}

static inline void stream_begin(struct buf *b)
{
	stream_magic(b);
	stream_trace(b);
}

static inline void stream_pad(struct buf *b)
{
	while (b->len % 4 && !b->error)
		buf_put_u8(b, 0);
}

static inline void stream_block_bytes(struct buf *b, const char *type, const void *bytes, size_t n)
{
	stream_object_head(b, type, 2, 2);
	buf_put_u32(b, (uint32_t)n);
	stream_pad(b);
	buf_append(b, bytes, n);
	buf_put_u8(b, 6);
}

static inline void stream_block(struct buf *b, const char *type, const struct buf *body)
{
	stream_block_bytes(b, type, body->data, body->len);
}

static inline void stream_end(struct buf *b)
{
	buf_put_u8(b, 1);
}

/* -- Blocks --------------------------------------------------------------------------- */

static inline void block_begin(struct buf *b, bool compressed)
{
	buf_clear(b);
	buf_put_u16(b, 20);
	buf_put_u16(b, compressed);
	buf_put_u64(b, 0);
	buf_put_u64(b, 0);
}

struct stream_event {
	uint32_t metadata_id;
	uint32_t sequence;
	uint64_t thread; /* captures and is spoken of */
	uint64_t timestamp;
	bool unsorted;
	const void *payload;
	size_t size;
};

/* The fields of the block's last event, as far as the next may leave them out. */
struct stream_last {
	uint32_t sequence;
	uint64_t timestamp;
};

/* A compressed event that spells out everything but GUIDs. */
static inline void block_event(struct buf *b, struct stream_last *last,
			       const struct stream_event *e)
{
	buf_put_u8(b, 0x8f | (e->unsorted ? 0 : 0x40));
	stream_varint(b, e->metadata_id);
	stream_varint(b, e->sequence - last->sequence - (e->metadata_id != 0));
	stream_varint(b, e->thread);
	stream_varint(b, 0xffffffff);
	stream_varint(b, e->thread);
	stream_varint(b, 3);
	stream_varint(b, e->timestamp - last->timestamp);
	stream_varint(b, e->size);
	buf_append(b, e->payload, e->size);
	last->sequence = e->sequence;
	last->timestamp = e->timestamp;
}

static inline void block_plain_event(struct buf *b, const struct stream_event *e)
{
	static const uint8_t guids[32];

	buf_put_u32(b, (uint32_t)(76 + e->size));
	buf_put_u32(b, e->metadata_id | (e->unsorted ? 0x80000000u : 0));
	buf_put_u32(b, e->sequence);
	buf_put_u64(b, e->thread);
	buf_put_u64(b, e->thread);
	buf_put_u32(b, 0xffffffff);
	buf_put_u32(b, 3);
	buf_put_u64(b, e->timestamp);
	buf_append(b, guids, sizeof(guids));
	buf_put_u32(b, (uint32_t)e->size);
	buf_append(b, e->payload, e->size);
	stream_pad(b);
}

static inline void stream_metadata_payload(struct buf *b, uint32_t id, const char *provider,
					   uint32_t event_id, uint32_t version)
{
	buf_put_u32(b, id);
	stream_u16z(b, provider);
	buf_put_u32(b, event_id);
	stream_u16z(b, "");
	buf_put_u64(b, 0);
	buf_put_u32(b, version);
	buf_put_u32(b, 5);
	buf_put_u32(b, 0);
}

/* A metadata blob as 8.0 and later write it; block_begin() comes first. */
static inline void block_metadata(struct buf *b, uint32_t id, const char *provider,
				  uint32_t event_id, uint32_t version)
{
	_cleanup_buf_ struct buf payload;

	buf_init(&payload, b->cap);
	stream_metadata_payload(&payload, id, provider, event_id, version);
	buf_put_u8(b, 0xc6);
	stream_varint(b, 0xffffffff);
	stream_varint(b, 0);
	stream_varint(b, 0xffffffff);
	stream_varint(b, 0);
	stream_varint(b, 0);
	stream_varint(b, payload.len);
	buf_append(b, payload.data, payload.len);
}

static inline void block_point(struct buf *b, uint64_t timestamp, uint32_t n_threads)
{
	buf_clear(b);
	buf_put_u64(b, timestamp);
	buf_put_u32(b, n_threads);
}

static inline void block_point_thread(struct buf *b, uint64_t id, uint32_t sequence)
{
	buf_put_u64(b, id);
	buf_put_u32(b, sequence);
}
