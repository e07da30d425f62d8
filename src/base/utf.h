/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * UTF-16LE to UTF-8, for strings that a runtime sends.
 *
 * Runtimes do not check their strings: a lone surrogate becomes U+FFFD, so what
 * comes out is always valid UTF-8 (and never holds a NUL before its end).
 */

#include <stddef.h>
#include <stdint.h>

/* Bytes of UTF-8 that one UTF-16 unit can need (a pair needs 4 for 2 units). */
#define UTF8_PER_UNIT 3

/*
 * Reads the zero-terminated string at src, of at most n_units units, into dst, which
 * holds at least UTF8_PER_UNIT * n_units + UTF_SLACK bytes. The terminator is consumed,
 * not written. *n_usedp is the number of units consumed, terminator included.
 * Returns the number of bytes written, or -1 when no terminator is there.
 */
#define UTF_SLACK 16
ptrdiff_t utf8_from_u16z(char *dst, const uint8_t *src, size_t n_units, size_t *n_usedp);

/* The same for exactly n_units units, zeros included. */
size_t utf8_from_u16(char *dst, const uint8_t *src, size_t n_units);

/* Length of the longest prefix of s, at most max bytes, that cuts no character. */
size_t utf8_cut(const char *s, size_t len, size_t max);
