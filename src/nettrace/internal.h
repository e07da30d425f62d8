/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What the files of nettrace share; nobody else includes this. */

#include "base/buf.h"
#include "base/reader.h"
#include "nettrace/nettrace.h"
#include "nettrace/threads.h"

enum nettrace_object {
	OBJECT_TRACE,
	OBJECT_EVENTS,
	OBJECT_METADATA,
	OBJECT_SEQUENCE_POINT,
	OBJECT_STACKS,
	OBJECT_UNKNOWN,
};

/* One step of the framing: takes the bytes it asked for, says what comes next. */
typedef int nettrace_step(struct nettrace *nt, const uint8_t *bytes);

struct nettrace {
	struct nettrace_callbacks callbacks;
	void *data;

	/* framing: nettrace.c */
	nettrace_step *step;
	size_t want;        /* bytes that the step needs in one piece */
	uint64_t skip;      /* bytes to pass over before the step */
	uint64_t offset;    /* of the stream, after the bytes taken */
	struct buf partial; /* the step's bytes, as far as they came in earlier calls */
	enum nettrace_object object;
	int error;
	bool has_header;
	bool ended;

	/* for nettrace_error_text() */
	uint8_t head[8];
	const char *reason;
	int32_t version[2];
	char text[128];

	struct nettrace_header header;
	struct nettrace_stats stats;

	/* contents: block.c */
	struct threads threads;
	struct nettrace_metadata **metadata; /* by id */
	uint32_t n_metadata;                 /* slots */
};

/*
 * The bodies of the blocks. Each returns 0 or a negative errno (own failure, or a
 * callback's); what is wrong with the bytes is counted in nt->stats.
 */
int block_read_events(struct nettrace *nt, const uint8_t *bytes, size_t size);
int block_read_metadata(struct nettrace *nt, const uint8_t *bytes, size_t size);
int block_read_sequence_point(struct nettrace *nt, const uint8_t *bytes, size_t size);
