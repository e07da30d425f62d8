/* SPDX-License-Identifier: Apache-2.0 */
/*
 * decompress: what `perf record -z` wrote.
 *
 * perf feeds the ring buffers through one zstd stream and cuts its output into COMPRESSED records;
 * neither the cuts in the input (the ring's end) nor those in the output respect records. So there
 * is one decoder for the whole file, and a record may be put together from two of them. The stream
 * is flushed at each record's end but never ended.
 *
 * Output goes into a buffer of fixed size, and the decoder is asked for more only when that holds
 * no whole record any more: memory stays the same whatever the ratio. zstd's own memory is
 * bounded by the window that is allowed.
 */
#include "perfdata/decompress.h"

#include <errno.h>
#include <string.h>
#include <zstd.h>
#include <zstd_errors.h>

#include "base/caps.h"
#include "perfdata/state.h"

#define PLAIN_SIZE ((size_t)PERF_WINDOW)

int decoder_feed(struct decoder *d, const uint8_t *bytes, size_t n, uint64_t offset)
{
	if (!d->plain)
		d->plain = malloc(PLAIN_SIZE);
	if (!d->stream) {
		d->stream = ZSTD_createDCtx();
		if (d->stream)
			ZSTD_DCtx_setParameter(d->stream, ZSTD_d_windowLogMax,
					       CAP_PERF_ZSTD_WINDOW_LOG);
	}
	if (!d->plain || !d->stream)
		return -ENOMEM;
	d->in = bytes;
	d->in_left = n;
	d->offset = offset;
	return 0;
}

static int decoder_fill(struct decoder *d)
{
	ZSTD_inBuffer in = { .src = d->in, .size = d->in_left };
	ZSTD_outBuffer out = { .dst = d->plain, .size = PLAIN_SIZE };
	size_t r;

	d->len -= d->head;
	memmove(d->plain, d->plain + d->head, d->len);
	d->head = 0;
	out.pos = d->len;
	r = ZSTD_decompressStream(d->stream, &out, &in);
	if (ZSTD_isError(r)) {
		if (ZSTD_getErrorCode(r) == ZSTD_error_memory_allocation)
			return -ENOMEM;
		return DECODER_E_REFUSED;
	}
	d->len = out.pos;
	d->in += in.pos;
	d->in_left -= in.pos;
	d->holding = out.pos == out.size;
	return 0;
}

int decoder_next(struct decoder *d, struct perfdata_record *rec)
{
	for (;;) {
		const uint8_t *bytes = d->plain + d->head;
		size_t left = d->len - d->head, size;
		int r;

		size = left < RECORD_HEADER ? SIZE_MAX : get_le16(bytes + 6);
		if (size < RECORD_HEADER)
			return DECODER_E_SIZE;
		if (size <= left) {
			rec->type = get_le32(bytes);
			rec->misc = get_le16(bytes + 4);
			rec->size = (uint16_t)size;
			rec->bytes = bytes;
			rec->payload = 0;
			rec->offset = d->offset;
			d->head += size;
			switch (rec->type) {
			case PERFDATA_ATTR:
			case PERFDATA_TRACING_DATA:
			case PERFDATA_AUXTRACE:
			case PERFDATA_COMPRESSED:
			case PERFDATA_COMPRESSED2: return DECODER_E_TYPE;
			}
			return 0;
		}
		if (!d->in_left && !d->holding)
			return DECODER_DRY;
		r = decoder_fill(d);
		if (r)
			return r;
	}
}

size_t decoder_left(const struct decoder *d)
{
	return d->len - d->head;
}

void decoder_deinit(struct decoder *d)
{
	ZSTD_freeDCtx(d->stream);
	free(d->plain);
	*d = (struct decoder){ 0 };
}
