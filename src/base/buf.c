/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Growing buffers. Growth is by half again, so that a buffer that follows a stream
 * settles; the cap is the caller's promise about what outside bytes may cost.
 */
#include "base/buf.h"

#include <errno.h>
#include <string.h>

void buf_init(struct buf *b, size_t cap)
{
	*b = (struct buf){ .cap = cap };
}

void buf_deinit(struct buf *b)
{
	free(b->data);
	*b = (struct buf){ .cap = b->cap };
}

void buf_clear(struct buf *b)
{
	b->len = 0;
	b->error = 0;
}

static int buf_fail(struct buf *b, int error)
{
	if (!b->error)
		b->error = error;
	return error;
}

int buf_reserve(struct buf *b, size_t n)
{
	size_t want, size;
	uint8_t *data;

	if (b->error)
		return b->error;
	if (n > b->cap || b->len > b->cap - n)
		return buf_fail(b, -ENOSPC);
	want = b->len + n;
	if (want <= b->size)
		return 0;
	size = MAX(b->size + b->size / 2, (size_t)64);
	size = MIN(MAX(size, want), b->cap);
	data = realloc(b->data, size);
	if (!data)
		return buf_fail(b, -ENOMEM);
	b->data = data;
	b->size = size;
	return 0;
}

int buf_append(struct buf *b, const void *data, size_t n)
{
	int r = buf_reserve(b, n);

	if (r < 0)
		return r;
	if (n)
		memcpy(b->data + b->len, data, n);
	b->len += n;
	return 0;
}

void buf_consume(struct buf *b, size_t n)
{
	n = MIN(n, b->len);
	b->len -= n;
	if (b->len)
		memmove(b->data, b->data + n, b->len);
}

int buf_puts(struct buf *b, const char *s)
{
	return buf_append(b, s, strlen(s));
}

int buf_putc(struct buf *b, char c)
{
	return buf_append(b, &c, 1);
}

int buf_printf(struct buf *b, const char *fmt, ...)
{
	va_list ap;
	int n, r;

	va_start(ap, fmt);
	n = vsnprintf(NULL, 0, fmt, ap);
	va_end(ap);
	if (n < 0)
		return buf_fail(b, -EINVAL);
	r = buf_reserve(b, (size_t)n + 1);
	if (r < 0)
		return r;
	va_start(ap, fmt);
	vsnprintf((char *)b->data + b->len, (size_t)n + 1, fmt, ap);
	va_end(ap);
	b->len += (size_t)n;
	return 0;
}

static int buf_put_le(struct buf *b, uint64_t v, size_t n)
{
	uint8_t bytes[8];
	size_t i;

	for (i = 0; i < n; i++)
		bytes[i] = (uint8_t)(v >> (8 * i));
	return buf_append(b, bytes, n);
}

int buf_put_u8(struct buf *b, uint8_t v)
{
	return buf_put_le(b, v, 1);
}

int buf_put_u16(struct buf *b, uint16_t v)
{
	return buf_put_le(b, v, 2);
}

int buf_put_u32(struct buf *b, uint32_t v)
{
	return buf_put_le(b, v, 4);
}

int buf_put_u64(struct buf *b, uint64_t v)
{
	return buf_put_le(b, v, 8);
}

const char *buf_cstr(struct buf *b)
{
	if (buf_putc(b, '\0') < 0)
		return NULL;
	b->len--;
	return (const char *)b->data;
}
