/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Records out of COMPRESSED ones. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct perfdata_record;
struct ZSTD_DCtx_s;

enum decoder_result {
	DECODER_DRY = 1, /* wants the next COMPRESSED record */
	DECODER_E_REFUSED,
	DECODER_E_SIZE, /* a record smaller than its header */
	DECODER_E_TYPE, /* a record that cannot be inside */
};

struct decoder {
	struct ZSTD_DCtx_s *stream;
	uint8_t *plain;
	size_t head, len;  /* bytes [head, len) of plain wait */
	const uint8_t *in; /* borrowed: what is left of the COMPRESSED record */
	size_t in_left;
	bool holding; /* zstd may have more without more input */
	uint64_t offset;
};

/* n compressed bytes of the record at offset, kept in place until DECODER_DRY. 0 or -ENOMEM. */
int decoder_feed(struct decoder *d, const uint8_t *bytes, size_t n, uint64_t offset);
/* The next record; bytes until the next call. Returns 0, -ENOMEM or a code. */
int decoder_next(struct decoder *d, struct perfdata_record *rec);
/* Bytes of an unfinished record. */
size_t decoder_left(const struct decoder *d);
/* Gives everything back; it is as new then. */
void decoder_deinit(struct decoder *d);
