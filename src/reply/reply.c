/* SPDX-License-Identifier: Apache-2.0 */
/* From the code map to the query interface: see reply.h. */
#include "reply/reply.h"

#include <inttypes.h>
#include <stdio.h>

#include "clr/clr.h"

int reply_method(const struct codemap_info *info, struct buf *function, struct query_method *m)
{
	int r;

	buf_clear(function);
	r = names_append(function, &info->name, NAMES_FULL, false);
	if (r < 0)
		return r;
	*m = (struct query_method){
		.method_id = info->method_id,
		.start = info->start,
		/* of an open past only a bound is known */
		.load = info->open_past ? 0 : info->load,
		.unload = info->unload,
		.size = info->size,
		.version = (uint32_t)info->version,
		.tier = names_tier(info->flags),
		.ns = info->name.ns,
		.ns_len = info->name.ns_len,
		.name = info->name.name,
		.name_len = info->name.name_len,
		.sig = info->name.sig,
		.sig_len = info->name.sig_len,
		.function = (const char *)function->data,
		.function_len = function->len,
		.module = info->module_path,
		.module_len = info->module_path_len,
	};
	return 0;
}

int64_t reply_il(const struct codemap *map, const struct codemap_body *body, uint32_t offset)
{
	uint32_t il;

	/* prolog, epilog, no mapping: no place in the IL */
	if (codemap_il_lookup(map, body, offset, &il) || il >= CLR_IL_EPILOG)
		return -1;
	return il;
}

/* Where the gap began that a time lies in. */
static uint64_t gap_of(const struct codemap *map, uint64_t time)
{
	uint64_t from, to;
	size_t i;

	for (i = 0; codemap_gap_at(map, i, &from, &to); i++)
		if (time >= from && time <= to)
			return from;
	return time;
}

/* What is there says more than that nothing was announced; NULL: it does not. */
static const char *place_word(enum place_kind kind)
{
	switch (kind) {
	case PLACE_UNMAPPED:
	case PLACE_DATA: return QUERY_REASON_UNMAPPED;
	case PLACE_NATIVE: return QUERY_REASON_NATIVE;
	case PLACE_STUB: return QUERY_REASON_STUB;
	case PLACE_UNKNOWN:
	case PLACE_PRECOMPILED:
	case PLACE_CODE_HEAP: break;
	}
	return NULL;
}

int reply_reason(const struct codemap *map, struct places *places, const struct proc *proc,
		 uint64_t addr, uint64_t time, enum codemap_miss miss, uint64_t now_ns,
		 char text[REPLY_REASON_SIZE])
{
	const char *word = codemap_miss_text(miss), *place = NULL;
	enum place_kind kind;
	int r;

	if (miss == CODEMAP_MISS_UNKNOWN && places) {
		r = places_find(places, proc, map, addr, now_ns, &kind);
		if (r < 0)
			return r;
		place = place_word(kind);
	}
	if (miss == CODEMAP_MISS_LOST)
		snprintf(text, REPLY_REASON_SIZE, "%s at %" PRIu64, word, gap_of(map, time));
	else
		snprintf(text, REPLY_REASON_SIZE, "%s", place ? place : word);
	return 0;
}
