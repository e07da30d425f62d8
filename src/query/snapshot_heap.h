/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The memory of a snapshot that its writer gives out; for the writer alone. */

#include <stddef.h>
#include <stdint.h>

#include "query/snapshot_layout.h"

/* Up to 512 bytes every 16; then eight steps a doubling, up to 512 KiB. */
#define HEAP_CLASSES     113u
#define HEAP_SMALL       512u
#define HEAP_BLOCK_BYTES (512u << 10)

struct heap_class {
	uint32_t *free; /* places, units of 8 bytes */
	uint32_t n_free, size_free, n_blocks;
	uint64_t next, end; /* what is left of the piece that blocks are cut from */
};

struct heap_text {
	uint32_t place, hash, refs; /* place 0: free */
};

struct heap {
	uint8_t *base;      /* of the file */
	uint64_t next, end; /* bytes from there */
	struct heap_class classes[HEAP_CLASSES];
	struct heap_text *texts;
	uint32_t n_texts, mask;
	uint64_t seed;
	size_t private_bytes;
};

int heap_init(struct heap *heap, void *base, uint64_t begin, uint64_t end);
void heap_deinit(struct heap *heap);
/* A block of the heap. Returns 0, -ENOMEM or FULL. */
int heap_alloc(struct heap *heap, size_t bytes, uint32_t *placep, uint32_t *classp);
void heap_free(struct heap *heap, uint32_t place, uint32_t class);
/*
 * Untouched memory (zeros), never given back, in whole cache lines and bytes from the start of the
 * file. From the heap's end, so that a question's pages are few. Returns 0 or FULL.
 */
int heap_lines(struct heap *heap, size_t bytes, uint64_t *offsetp);

/* Two pieces that are stored one after the other: the lengths, then what they are of. */
struct heap_blob {
	const void *head, *text;
	uint32_t head_len, text_len;
};

/* The place of that content, of which there is one copy. Returns 0, -ENOMEM or FULL. */
int heap_share(struct heap *heap, const struct heap_blob *blob, uint32_t *placep);
/* Gives one reference back; place 0 is none. bytes: the length of both pieces. */
void heap_unshare(struct heap *heap, uint32_t place, size_t bytes);
