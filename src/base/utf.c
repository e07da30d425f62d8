/* SPDX-License-Identifier: Apache-2.0 */
/*
 * UTF-16LE to UTF-8.
 *
 * Names are ASCII nearly always and are the bulk of a rundown's bytes, so eight (SSE2,
 * NEON) or four (plain 64-bit words) units are tested and packed at a time; the first unit that is
 * zero or not ASCII ends the run and is taken one by one. Measured on a 39 MB rundown this is what
 * lets the decoder keep up with memory.
 */
#include "base/utf.h"

#include <string.h>

#include "base/util.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#define UTF_STEP 8

/* Packs UTF_STEP units; returns how many leading ones are plain non-zero ASCII. */
static inline unsigned int utf_pack(char *dst, const uint8_t *src)
{
	__m128i v = _mm_loadu_si128((const __m128i *)(const void *)src);
	__m128i high = _mm_and_si128(v, _mm_set1_epi16((short)0xff80));
	__m128i zero = _mm_setzero_si128();
	/* 0xff bytes where the unit is fine: high bits clear and the unit not zero */
	__m128i fine = _mm_andnot_si128(_mm_cmpeq_epi16(v, zero), _mm_cmpeq_epi16(high, zero));
	unsigned int mask = (unsigned int)_mm_movemask_epi8(fine) ^ 0xffffu;

	_mm_storel_epi64((__m128i *)(void *)dst, _mm_packus_epi16(v, zero));
	return mask ? (unsigned int)__builtin_ctz(mask) / 2 : UTF_STEP;
}
#elif defined(__ARM_NEON) && defined(__aarch64__)
#include <arm_neon.h>
#define UTF_STEP 8

static inline unsigned int utf_pack(char *dst, const uint8_t *src)
{
	uint16x8_t v = vreinterpretq_u16_u8(vld1q_u8(src));
	/* v - 1 < 0x7f exactly when 1 <= v <= 0x7f */
	uint16x8_t fine = vcltq_u16(vsubq_u16(v, vdupq_n_u16(1)), vdupq_n_u16(0x7f));
	uint64_t mask = ~vget_lane_u64(vreinterpret_u64_u8(vmovn_u16(fine)), 0);

	vst1_u8((uint8_t *)dst, vmovn_u16(v));
	return mask ? (unsigned int)__builtin_ctzll(mask) / 8 : UTF_STEP;
}
#else
#define UTF_STEP 4

static inline unsigned int utf_pack(char *dst, const uint8_t *src)
{
	unsigned int i;

	for (i = 0; i < UTF_STEP; i++) {
		if (src[2 * i + 1] || src[2 * i] - 1u >= 0x7f)
			break;
		dst[i] = (char)src[2 * i];
	}
	return i;
}
#endif

static inline uint32_t utf_unit(const uint8_t *src, size_t i)
{
	return (uint32_t)src[2 * i] | (uint32_t)src[2 * i + 1] << 8;
}

static inline char *utf_put(char *dst, uint32_t c)
{
	if (c < 0x80) {
		*dst++ = (char)c;
	} else if (c < 0x800) {
		*dst++ = (char)(0xc0 | c >> 6);
		*dst++ = (char)(0x80 | (c & 0x3f));
	} else if (c < 0x10000) {
		*dst++ = (char)(0xe0 | c >> 12);
		*dst++ = (char)(0x80 | (c >> 6 & 0x3f));
		*dst++ = (char)(0x80 | (c & 0x3f));
	} else {
		*dst++ = (char)(0xf0 | c >> 18);
		*dst++ = (char)(0x80 | (c >> 12 & 0x3f));
		*dst++ = (char)(0x80 | (c >> 6 & 0x3f));
		*dst++ = (char)(0x80 | (c & 0x3f));
	}
	return dst;
}

/* The character at unit i (joined with its second half if it has one); moves *ip on. */
static inline uint32_t utf_next(const uint8_t *src, size_t n_units, size_t *ip)
{
	uint32_t c = utf_unit(src, (*ip)++);
	uint32_t low;

	if (c < 0xd800 || c > 0xdfff)
		return c;
	if (c > 0xdbff || *ip >= n_units)
		return 0xfffd;
	low = utf_unit(src, *ip);
	if (low < 0xdc00 || low > 0xdfff)
		return 0xfffd;
	(*ip)++;
	return 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
}

ptrdiff_t utf8_from_u16z(char *dst, const uint8_t *src, size_t n_units, size_t *n_usedp)
{
	char *out = dst;
	size_t i = 0;

	for (;;) {
		uint32_t c;

		while (i + UTF_STEP <= n_units) {
			unsigned int n = utf_pack(out, src + 2 * i);

			/* by a constant: the next load need not wait for this one's outcome */
			if (likely(n == UTF_STEP)) {
				out += UTF_STEP;
				i += UTF_STEP;
				continue;
			}
			out += n;
			i += n;
			break;
		}
		if (i >= n_units)
			return -1;
		c = utf_next(src, n_units, &i);
		if (!c)
			break;
		out = utf_put(out, c);
	}
	*n_usedp = i;
	return out - dst;
}

size_t utf8_from_u16(char *dst, const uint8_t *src, size_t n_units)
{
	char *out = dst;
	size_t i = 0;

	while (i < n_units)
		out = utf_put(out, utf_next(src, n_units, &i));
	return (size_t)(out - dst);
}

size_t utf8_cut(const char *s, size_t len, size_t max)
{
	if (len <= max)
		return len;
	while (max && ((uint8_t)s[max] & 0xc0) == 0x80)
		max--;
	return max;
}
