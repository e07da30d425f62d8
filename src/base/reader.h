/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The bounded reader: a cursor over bytes that somebody else wrote.
 *
 * All integers are little-endian. A read past the end yields zero (or an empty
 * span), sets `bad` and moves to the end; callers may therefore read a whole
 * record and test `bad` once. Wire bytes are never cast to structs.
 */

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/util.h"

struct reader {
	const uint8_t *p;
	const uint8_t *end;
	bool bad;
};

static inline void reader_init(struct reader *r, const void *data, size_t size)
{
	r->p = data;
	r->end = r->p + size;
	r->bad = false;
}

static inline size_t reader_left(const struct reader *r)
{
	return (size_t)(r->end - r->p);
}

/* Borrows n bytes of the input; NULL (and bad) if there are fewer. */
static inline const uint8_t *reader_bytes(struct reader *r, size_t n)
{
	const uint8_t *p = r->p;

	if (unlikely(n > reader_left(r))) {
		r->bad = true;
		r->p = r->end;
		return NULL;
	}
	r->p += n;
	return p;
}

#define READER_DEFINE(name, type, swap) \
	static inline type reader_##name(struct reader *r) \
	{ \
		const uint8_t *p = reader_bytes(r, sizeof(type)); \
		type v; \
\
		if (unlikely(!p)) \
			return 0; \
		memcpy(&v, p, sizeof(v)); \
		return swap(v); \
	}

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define READER_SAME(v) (v)
READER_DEFINE(u8, uint8_t, READER_SAME)
READER_DEFINE(u16, uint16_t, READER_SAME)
READER_DEFINE(u32, uint32_t, READER_SAME)
READER_DEFINE(u64, uint64_t, READER_SAME)
#else
#define READER_SAME(v) (v)
READER_DEFINE(u8, uint8_t, READER_SAME)
READER_DEFINE(u16, uint16_t, __builtin_bswap16)
READER_DEFINE(u32, uint32_t, __builtin_bswap32)
READER_DEFINE(u64, uint64_t, __builtin_bswap64)
#endif
#undef READER_SAME
#undef READER_DEFINE

static inline void reader_skip(struct reader *r, size_t n)
{
	reader_bytes(r, n);
}

/*
 * Unsigned LEB128, low group first, as nettrace writes it: at most 5 bytes for 32
 * bits and 10 for 64. Bits beyond the type are dropped; a longer run is bad.
 */
static inline uint64_t reader_varint(struct reader *r, unsigned int max_bytes)
{
	uint64_t v = 0;
	unsigned int i;

	for (i = 0; i < max_bytes && r->p < r->end; i++) {
		uint8_t b = *r->p++;

		v |= (uint64_t)(b & 0x7f) << (7 * i);
		if (!(b & 0x80))
			return v;
	}
	r->bad = true;
	r->p = r->end;
	return 0;
}

static inline uint32_t reader_varu32(struct reader *r)
{
	return (uint32_t)reader_varint(r, 5);
}

static inline uint64_t reader_varu64(struct reader *r)
{
	return reader_varint(r, 10);
}
