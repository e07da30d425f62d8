/* SPDX-License-Identifier: Apache-2.0 */
/*
 * JSON text, written straight into a buffer.
 *
 * Names are plain ASCII nearly always: eight bytes are tested at a time and a run is copied at
 * once; what ends it is decoded and escaped one character at a time. Numbers are written two
 * digits at a step.
 *
 * Invariant: whatever goes in, what comes out is one valid JSON string or number of ASCII, or, when
 * the buffer fails, remembered there as an error.
 */
#include "query/text.h"

#include <stdbool.h>
#include <string.h>

static bool is_plain(uint8_t c)
{
	return c >= 0x20 && c < 0x7f && c != '"' && c != '\\';
}

/* A top bit for each byte of v that is zero; a borrow may add some above one that is. */
static uint64_t zeros(uint64_t v)
{
	return (v - UINT64_C(0x0101010101010101)) & ~v;
}

/* How many bytes from the first on need no escape. */
static size_t plain_run(const char *s, size_t len)
{
	const uint64_t ones = UINT64_C(0x0101010101010101), tops = ones << 7;
	size_t i = 0;

	for (; i + 8 <= len; i += 8) {
		uint64_t v;

		memcpy(&v, s + i, 8);
		/* a top bit for each byte that is not plain; carries only add some */
		if (((v + ones) | v | (v - ones * 0x20) | zeros(v ^ (ones * '"')) |
		     zeros(v ^ (ones * '\\'))) &
		    tops)
			break;
	}
	while (i < len && is_plain((uint8_t)s[i]))
		i++;
	return i;
}

/* The character at s, which has len > 0 bytes, and its length; U+FFFD of one byte: no UTF-8. */
static uint32_t next_character(const uint8_t *s, size_t len, size_t *np)
{
	/* by the first byte: how many follow, its own bits, the least character of that length */
	static const struct {
		uint8_t from, to, n, bits;
		uint32_t least;
	} forms[] = {
		{ 0x00, 0x7f, 0, 0x7f, 0 },
		{ 0xc2, 0xdf, 1, 0x1f, 0x80 },
		{ 0xe0, 0xef, 2, 0x0f, 0x800 },
		{ 0xf0, 0xf4, 3, 0x07, 0x10000 },
	};
	size_t i, k;

	*np = 1;
	for (k = 0; k < ARRAY_SIZE(forms); k++) {
		uint32_t c = s[0] & forms[k].bits;

		if (s[0] < forms[k].from || s[0] > forms[k].to)
			continue;
		for (i = 1; i <= forms[k].n && i < len && (s[i] & 0xc0) == 0x80; i++)
			c = c << 6 | (s[i] & 0x3f);
		if (i <= forms[k].n || c < forms[k].least || c > 0x10ffff ||
		    (c >= 0xd800 && c <= 0xdfff))
			break;
		*np = i;
		return c;
	}
	return 0xfffd;
}

static const char hex_digits[] = "0123456789abcdef";

static void put_unit(struct buf *out, uint32_t unit)
{
	const char text[6] = { '\\',
			       'u',
			       hex_digits[unit >> 12],
			       hex_digits[unit >> 8 & 15],
			       hex_digits[unit >> 4 & 15],
			       hex_digits[unit & 15] };

	buf_append(out, text, sizeof(text));
}

static void put_character(struct buf *out, uint32_t c)
{
	if (c == '"' || c == '\\') {
		const char text[2] = { '\\', (char)c };

		buf_append(out, text, sizeof(text));
	} else if (c < 0x10000) {
		/* many parsers refuse \u0000, ours too */
		put_unit(out, c ? c : 0xfffd);
	} else {
		put_unit(out, 0xd800 + ((c - 0x10000) >> 10));
		put_unit(out, 0xdc00 + ((c - 0x10000) & 0x3ff));
	}
}

void text_put_string(struct buf *out, const char *s, size_t len)
{
	size_t i = 0, n;

	/* so that a plain one, quotes included, makes the buffer grow once at most */
	if (buf_reserve(out, len + 2) < 0)
		return;
	buf_putc(out, '"');
	for (;;) {
		n = plain_run(s + i, len - i);
		buf_append(out, s + i, n);
		i += n;
		if (i == len)
			break;
		put_character(out, next_character((const uint8_t *)s + i, len - i, &n));
		i += n;
	}
	buf_putc(out, '"');
}

void text_put_u64(struct buf *out, uint64_t v)
{
	static const char pairs[] = "00010203040506070809101112131415161718192021222324"
				    "25262728293031323334353637383940414243444546474849"
				    "50515253545556575859606162636465666768697071727374"
				    "75767778798081828384858687888990919293949596979899";
	char digits[20], *p = digits + sizeof(digits);

	for (; v >= 100; v /= 100) {
		p -= 2;
		memcpy(p, pairs + 2 * (v % 100), 2);
	}
	if (v >= 10) {
		p -= 2;
		memcpy(p, pairs + 2 * v, 2);
	} else {
		*--p = (char)('0' + v);
	}
	buf_append(out, p, (size_t)(digits + sizeof(digits) - p));
}

void text_put_time(struct buf *out, uint64_t ns)
{
	text_put_u64(out, MIN(ns, (uint64_t)INT64_MAX));
}

void text_put_hex(struct buf *out, uint64_t v)
{
	char text[20], *p = text + sizeof(text);

	*--p = '"';
	do {
		*--p = hex_digits[v & 15];
		v >>= 4;
	} while (v);
	*--p = 'x';
	*--p = '0';
	*--p = '"';
	buf_append(out, p, (size_t)(text + sizeof(text) - p));
}
