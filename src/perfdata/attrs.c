/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attrs: the shape of records.
 *
 * What a SAMPLE holds, and what the kernel adds to the end of its other records, follows
 * from sample_type, read_format and sample_id_all of the event that made it. From these the place
 * of each field is worked out once; then a field costs one load. Only the fields before READ have
 * a fixed place; READ and the call chain that follows it count themselves, and nothing behind
 * the chain is of interest here.
 *
 * Most recordings have one shape. Where there are several, IDENTIFIER says which: an id first in
 * a SAMPLE, last in a trailer. (ID, its forerunner at a place that depends on the shape, is not
 * followed: perf has not relied on it since 3.12.) Ids are the file's choice: the hash is keyed,
 * and taken twice: once alone puts ids at a fixed distance from one another into rows of slots. And
 * attrs may all name one list of ids: each one that is read counts, known or not.
 *
 * Format: perf_event.h, PERF_RECORD_SAMPLE and struct sample_id.
 */
#include "perfdata/attrs.h"

#include <errno.h>

#include "base/caps.h"
#include "base/hash.h"
#include "perfdata/perfdata.h"

#define SAMPLE_IP               (1u << 0)
#define SAMPLE_TID              (1u << 1)
#define SAMPLE_TIME             (1u << 2)
#define SAMPLE_ADDR             (1u << 3)
#define SAMPLE_ID               (1u << 6)
#define SAMPLE_CPU              (1u << 7)
#define SAMPLE_PERIOD           (1u << 8)
#define SAMPLE_STREAM_ID        (1u << 9)
#define SAMPLE_BRANCH_STACK     (1u << 11)
#define SAMPLE_STACK_USER       (1u << 13)
#define SAMPLE_IDENTIFIER       (1u << 16)

#define READ_TOTAL_TIME_ENABLED 1u
#define READ_TOTAL_TIME_RUNNING 2u
#define READ_ID                 4u
#define READ_LOST               16u
#define READ_KNOWN              31u

/* perf_event_attr */
#define ATTR_OFF_PERIOD      16u
#define ATTR_OFF_SAMPLE_TYPE 24u
#define ATTR_OFF_READ_FORMAT 32u
#define ATTR_OFF_FLAGS       40u
#define ATTR_OFF_CLOCKID     92u
#define ATTR_SAMPLE_ID_ALL   (UINT64_C(1) << 18)
#define ATTR_USE_CLOCKID     (UINT64_C(1) << 25)

struct id_slot {
	uint64_t id;
	uint32_t layout; /* + 1; 0: empty */
};

/* Eight bytes each, in this order. */
static const uint32_t sample_order[] = {
	SAMPLE_IDENTIFIER, SAMPLE_IP,        SAMPLE_TID, SAMPLE_TIME,   SAMPLE_ADDR,
	SAMPLE_ID,         SAMPLE_STREAM_ID, SAMPLE_CPU, SAMPLE_PERIOD,
};
static const uint32_t trailer_order[] = {
	SAMPLE_TID, SAMPLE_TIME, SAMPLE_ID, SAMPLE_STREAM_ID, SAMPLE_CPU, SAMPLE_IDENTIFIER,
};

uint32_t attr_size(const uint8_t *bytes)
{
	uint32_t size = get_le32(bytes + ATTR_OFF_SIZE);

	if (!size)
		return ATTR_SIZE_MIN;
	return size < ATTR_SIZE_MIN || size > CAP_PERF_ATTR_BYTES || size % 8 ? 0 : size;
}

static void layout_init_sample(struct layout *l)
{
	size_t i;
	uint8_t at = 8;

	for (i = 0; i < ARRAY_SIZE(sample_order); i++) {
		if (!(l->sample_type & sample_order[i]))
			continue;
		switch (sample_order[i]) {
		case SAMPLE_IP: l->ip = at; break;
		case SAMPLE_TID: l->tid = at; break;
		case SAMPLE_TIME: l->time = at; break;
		}
		at += 8;
	}
	l->fixed = at;
}

static void layout_init_trailer(struct layout *l)
{
	size_t i = ARRAY_SIZE(trailer_order);
	uint8_t back = 0;

	while (i--) {
		if (!(l->sample_type & trailer_order[i]))
			continue;
		back += 8;
		switch (trailer_order[i]) {
		case SAMPLE_TID: l->trailer_tid = back; break;
		case SAMPLE_TIME: l->trailer_time = back; break;
		}
	}
	l->trailer = back;
}

static void layout_init(struct layout *l, const uint8_t *attr, uint32_t size)
{
	uint64_t flags = get_le64(attr + ATTR_OFF_FLAGS);
	uint32_t known = SAMPLE_READ | SAMPLE_CALLCHAIN;
	size_t i;

	*l = (struct layout){ 0 };
	for (i = 0; i < ARRAY_SIZE(sample_order); i++)
		known |= sample_order[i];
	l->sample_type = (uint32_t)get_le64(attr + ATTR_OFF_SAMPLE_TYPE) & known;
	if (l->sample_type & SAMPLE_READ)
		l->read_format = (uint32_t)get_le64(attr + ATTR_OFF_READ_FORMAT) & READ_KNOWN;
	layout_init_sample(l);
	if (flags & ATTR_SAMPLE_ID_ALL)
		layout_init_trailer(l);
	l->sampling = get_le64(attr + ATTR_OFF_PERIOD) != 0;
	l->hidden = get_le64(attr + ATTR_OFF_SAMPLE_TYPE) &
		    (SAMPLE_ADDR | SAMPLE_BRANCH_STACK | SAMPLE_STACK_USER);
	if ((flags & ATTR_USE_CLOCKID) && size >= ATTR_OFF_CLOCKID + 4) {
		l->use_clockid = true;
		l->clockid = (int32_t)get_le32(attr + ATTR_OFF_CLOCKID);
	}
}

static bool layout_is_like(const struct layout *a, const struct layout *b)
{
	return a->sample_type == b->sample_type && a->read_format == b->read_format &&
	       a->trailer == b->trailer;
}

int attrs_add(struct attrs *a, const uint8_t *attr, uint32_t size)
{
	struct layout *l;

	if (a->n >= CAP_PERF_ATTRS)
		return PERFDATA_E_CORRUPT;
	if (a->n == a->room) {
		uint32_t room = a->room ? 2 * a->room : 8;
		struct layout *layouts = realloc(a->layouts, room * sizeof(*layouts));

		if (!layouts)
			return -ENOMEM;
		a->layouts = layouts;
		a->room = room;
	}
	l = &a->layouts[a->n];
	layout_init(l, attr, size);
	a->identifiers = (!a->n || a->identifiers) && (l->sample_type & SAMPLE_IDENTIFIER) &&
			 !l->trailer == !a->layouts[0].trailer;
	a->uniform = !a->n || (a->uniform && layout_is_like(a->layouts, l));
	a->n++;
	return 0;
}

/* The slot that holds the id, or the empty one where it belongs. */
static struct id_slot *attrs_slot(struct id_slot *slots, uint32_t n_slots, uint64_t id)
{
	uint64_t seed = hash_seed();
	uint32_t i = (uint32_t)hash_u64(seed, hash_u64(seed, id));

	for (;; i++) {
		struct id_slot *slot = &slots[i & (n_slots - 1)];

		if (!slot->layout || slot->id == id)
			return slot;
	}
}

static int attrs_grow(struct attrs *a)
{
	uint32_t i, n_slots = a->n_slots ? 2 * a->n_slots : 64;
	struct id_slot *slots = calloc(n_slots, sizeof(*slots));

	if (!slots)
		return -ENOMEM;
	for (i = 0; i < a->n_slots; i++)
		if (a->slots[i].layout)
			*attrs_slot(slots, n_slots, a->slots[i].id) = a->slots[i];
	free(a->slots);
	a->slots = slots;
	a->n_slots = n_slots;
	return 0;
}

int attrs_add_id(struct attrs *a, uint64_t id)
{
	struct id_slot *slot;

	if (a->n_added >= CAP_PERF_IDS)
		return PERFDATA_E_CORRUPT;
	/* at most half full */
	if (2 * (a->n_ids + 1) > a->n_slots) {
		int r = attrs_grow(a);

		if (r)
			return r;
	}
	a->n_added++;
	slot = attrs_slot(a->slots, a->n_slots, id);
	if (!slot->layout)
		a->n_ids++;
	*slot = (struct id_slot){ .id = id, .layout = a->n };
	return 0;
}

void attrs_deinit(struct attrs *a)
{
	free(a->layouts);
	free(a->slots);
	*a = (struct attrs){ 0 };
}

const struct layout *attrs_find(const struct attrs *a, uint64_t id)
{
	const struct id_slot *slot;

	if (!a->n || !a->identifiers)
		return NULL;
	/* records that perf itself made at its start have id 0, and the shape of the first attr */
	if (!id)
		return a->layouts;
	if (!a->n_slots)
		return NULL;
	slot = attrs_slot(a->slots, a->n_slots, id);
	return slot->layout ? &a->layouts[slot->layout - 1] : NULL;
}

size_t layout_read_head(const struct layout *l)
{
	return 8 + (l->read_format & READ_TOTAL_TIME_ENABLED ? 8 : 0) +
	       (l->read_format & READ_TOTAL_TIME_RUNNING ? 8 : 0);
}

/* Of a group: its value, and what is kept of each member. */
size_t layout_read_entry(const struct layout *l)
{
	return (l->read_format & READ_GROUP ? 8 : 0) + (l->read_format & READ_ID ? 8 : 0) +
	       (l->read_format & READ_LOST ? 8 : 0);
}
