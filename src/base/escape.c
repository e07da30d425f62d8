/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One decoder of untrusted UTF-8, one list of characters that must never reach a line
 * or a terminal, and a function a sink on top.
 */
#include "base/escape.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* Decodes one character; returns its length in bytes, or 1 with *cp = U+FFFD for a bad byte. */
static size_t utf8_next(const char *s, size_t len, uint32_t *cp)
{
	const uint8_t *p = (const uint8_t *)s;
	static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
	uint32_t c = p[0];
	size_t n, i;

	if (c < 0x80) {
		*cp = c;
		return 1;
	}
	n = c >= 0xf0 && c < 0xf5 ? 4 : c >= 0xe0 && c < 0xf0 ? 3 : c >= 0xc2 && c < 0xe0 ? 2 : 0;
	if (!n || n > len)
		goto bad;
	c &= 0xffu >> (n + 1);
	for (i = 1; i < n; i++) {
		if ((p[i] & 0xc0) != 0x80)
			goto bad;
		c = c << 6 | (p[i] & 0x3f);
	}
	if (c < least[n] || c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff))
		goto bad;
	*cp = c;
	return n;
bad:
	*cp = 0xfffd;
	return 1;
}

static bool unsafe(uint32_t c)
{
	return c < 0x20 || (c >= 0x7f && c < 0xa0) ||       /* C0, DEL, C1 */
	       c == 0x061c || c == 0x200e || c == 0x200f || /* bidi marks */
	       (c >= 0x2028 && c <= 0x202e) ||              /* separators, bidi embedding */
	       (c >= 0x2066 && c <= 0x2069) ||              /* bidi isolates */
	       c == 0xfeff;
}

/* How many bytes from the first on are printable ASCII: eight at a time, as nearly all are. */
static size_t printable(const char *s, size_t len)
{
	const uint64_t ones = UINT64_C(0x0101010101010101), tops = ones << 7;
	size_t i = 0;

	for (; i + 8 <= len; i += 8) {
		uint64_t v;

		memcpy(&v, s + i, 8);
		/* a top bit for each byte above 0x7e or below 0x20; carries only add some */
		if (((v + ones) | v | (v - ones * 0x20)) & tops)
			break;
	}
	while (i < len && s[i] >= 0x20 && s[i] < 0x7f)
		i++;
	return i;
}

int escape_line(struct buf *out, const char *s, size_t len, size_t max)
{
	size_t i = 0, run = 0, used = 0;
	uint32_t c;
	int r;

	/* runs of harmless characters are copied at once */
	while (i < len) {
		size_t n = printable(s + i, MIN(len - i, max - used)), width;
		bool replace;

		i += n;
		used += n;
		if (i == len || used == max)
			break;
		n = utf8_next(s + i, len - i, &c);
		replace = unsafe(c) || (n == 1 && c == 0xfffd);
		width = !replace ? n : c == 0xfffd ? 3 : 1;
		if (used + width > max)
			break;
		used += width;
		if (replace) {
			r = buf_append(out, s + run, i - run);
			if (r < 0)
				return r;
			r = buf_puts(out, c == 0xfffd ? "\xef\xbf\xbd" : "?");
			if (r < 0)
				return r;
			run = i + n;
		}
		i += n;
	}
	return buf_append(out, s + run, i - run);
}

const char *escape_terminal(const char *s, size_t len)
{
	static char ring[4][1024];
	static unsigned int next;
	char *out = ring[next++ % 4], *p = out, *end = out + sizeof(ring[0]) - 16;
	size_t i = 0;
	uint32_t c;

	while (i < len && p < end) {
		size_t n = utf8_next(s + i, len - i, &c);

		if (n == 1 && c == 0xfffd)
			p += sprintf(p, "\\x%02x", (uint8_t)s[i]);
		else if (unsafe(c))
			p += sprintf(p, c < 0x100 ? "\\x%02x" : "\\u{%x}", c);
		else
			p = (char *)memcpy(p, s + i, n) + n;
		i += n;
	}
	if (i < len)
		p = stpcpy(p, "...");
	*p = '\0';
	return out;
}
