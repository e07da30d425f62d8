/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * A growing byte buffer with a cap, and the little-endian writer on top of it.
 *
 * An append that fails (no memory: -ENOMEM, over the cap: -ENOSPC) changes nothing
 * and is remembered in `error`, so a run of appends is tested once at its end.
 */

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "base/util.h"

struct buf {
	uint8_t *data;
	size_t len;
	size_t size; /* allocated */
	size_t cap;  /* never grows beyond */
	int error;   /* first failure, 0 if none */
};

void buf_init(struct buf *b, size_t cap);
void buf_deinit(struct buf *b);
/* Empty again, memory kept, error forgotten. */
void buf_clear(struct buf *b);
/* Room for n more bytes. Returns 0, -ENOMEM or -ENOSPC. */
int buf_reserve(struct buf *b, size_t n);
int buf_append(struct buf *b, const void *data, size_t n);
/* Drops n bytes (at most all) from the front. */
void buf_consume(struct buf *b, size_t n);
int buf_puts(struct buf *b, const char *s);
int buf_putc(struct buf *b, char c);
int buf_printf(struct buf *b, const char *fmt, ...) PRINTF_LIKE(2, 3);
int buf_put_u8(struct buf *b, uint8_t v);
int buf_put_u16(struct buf *b, uint16_t v);
int buf_put_u32(struct buf *b, uint32_t v);
int buf_put_u64(struct buf *b, uint64_t v);
/* NUL-terminates without counting the NUL. NULL if the buffer has failed. */
const char *buf_cstr(struct buf *b);

#define _cleanup_buf_ _cleanup_(buf_deinit)
