/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What the attrs of a recording say of its records: where in them the fields are. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/util.h"
#include "perfdata/bytes.h"

/* The first published perf_event_attr; it has grown since, and says its own size. */
#define ATTR_SIZE_MIN 64u
#define ATTR_OFF_SIZE 4u

struct layout {
	uint32_t sample_type; /* only the bits that have a say in where something is */
	uint32_t read_format; /* 0 without READ */
	/* places in a SAMPLE; 0: not recorded */
	uint8_t ip, tid, time;
	uint8_t fixed;   /* where the fields of fixed size end */
	uint8_t trailer; /* size of what other records of the kernel end with */
	/* places in that, counted back from the record's end; 0: not recorded */
	uint8_t trailer_tid, trailer_time;
	bool hidden;   /* samples hold code addresses that are not decoded here */
	bool sampling; /* has a period: not a dummy, no mere member of a group */
	bool use_clockid;
	int32_t clockid;
};

struct id_slot;

struct attrs {
	struct layout *layouts;
	uint32_t n, room;
	bool uniform; /* there are some, and all are alike */
	/* unlike ones can be told apart: all have IDENTIFIER, and all a trailer or none */
	bool identifiers;
	/* id to layout, open addressing */
	struct id_slot *slots;
	uint32_t n_ids, n_slots;
	uint32_t n_added; /* ids, and the same one again */
};

/* The size of a perf_event_attr at bytes (at least 8), ATTR_SIZE_MIN or more; 0 if impossible. */
uint32_t attr_size(const uint8_t *bytes);
/*
 * Each returns 0, -ENOMEM, or PERFDATA_E_CORRUPT over the cap. Ids belong to the last attr; for the
 * cap each call counts.
 */
int attrs_add(struct attrs *a, const uint8_t *attr, uint32_t size);
int attrs_add_id(struct attrs *a, uint64_t id);
void attrs_deinit(struct attrs *a);
const struct layout *attrs_find(const struct attrs *a, uint64_t id);

#define READ_GROUP       8u
#define SAMPLE_READ      (1u << 4)
#define SAMPLE_CALLCHAIN (1u << 5)
/* Bytes of one READ without GROUP; of the head and of each entry with it. */
size_t layout_read_head(const struct layout *l);
size_t layout_read_entry(const struct layout *l);

/* The layout of a SAMPLE, or NULL: no attr, an id not known. */
static inline const struct layout *attrs_of_sample(const struct attrs *a, const uint8_t *bytes,
						   size_t size)
{
	if (likely(a->uniform))
		return a->layouts;
	return size < 16 ? NULL : attrs_find(a, get_le64(bytes + 8));
}

/* The same for the other records of the kernel, which hold the id at their end if at all. */
static inline const struct layout *attrs_of_trailer(const struct attrs *a, const uint8_t *bytes,
						    size_t size)
{
	if (likely(a->uniform))
		return a->layouts;
	if (a->identifiers && !a->layouts[0].trailer)
		return a->layouts;
	return size < 16 ? NULL : attrs_find(a, get_le64(bytes + size - 8));
}
