/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nettrace: the framing of the stream.
 *
 * "Nettrace", u32 20, "!FastSerialization.1", then objects until a null tag:
 *
 *	05 05 01 · i32 version · i32 oldest reader · i32 length · type name · 06 · body · 06
 *
 * The body of the Trace object is 48 bytes. Every other type, known or not, has
 * i32 size · padding to a stream offset that is a multiple of 4 · size bytes.
 * (NetTraceFormat.md, "Nettrace" version 4.)
 *
 * The framing is a chain of steps. A step names the number of bytes it wants in one piece
 * and the function that takes them; that function names the next step. If the caller's buffer
 * holds the piece it is used in place, so a block that lies within one read is never copied;
 * otherwise it is put together in `partial`. Blocks that nobody reads are passed over without
 * being kept. All state between two calls is in struct nettrace: any split of the bytes gives
 * the same events.
 *
 * Nothing can be read after broken framing, as only the sizes lead from object to object.
 * Contents are another matter: see block.c.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/caps.h"
#include "nettrace/internal.h"

#define TAG_NULL                 1
#define TAG_BEGIN_PRIVATE_OBJECT 5
#define TAG_END_OBJECT           6

#define SERIALIZER               "!FastSerialization.1"
#define SERIALIZER_LENGTH        20u

/* Versions that this reader knows. */
#define TRACE_VERSION 4
#define BLOCK_VERSION 2

#define TRACE_BODY    48u

static nettrace_step step_magic, step_serializer_length, step_serializer, step_v6_version, step_tag,
	step_object, step_name, step_trace, step_size, step_body, step_object_end;

static const struct {
	const char *name;
	enum nettrace_object object;
	int32_t version;
} known_objects[] = {
	{ "Trace", OBJECT_TRACE, TRACE_VERSION },
	{ "EventBlock", OBJECT_EVENTS, BLOCK_VERSION },
	{ "MetadataBlock", OBJECT_METADATA, BLOCK_VERSION },
	{ "SPBlock", OBJECT_SEQUENCE_POINT, BLOCK_VERSION },
	{ "StackBlock", OBJECT_STACKS, BLOCK_VERSION },
};

static void nettrace_expect(struct nettrace *nt, nettrace_step *step, size_t want)
{
	nt->step = step;
	nt->want = want;
}

static int nettrace_corrupt(struct nettrace *nt, const char *reason)
{
	nt->reason = reason;
	return NETTRACE_E_CORRUPT;
}

static int step_magic(struct nettrace *nt, const uint8_t *bytes)
{
	memcpy(nt->head, bytes, sizeof(nt->head));
	if (!memcmp(bytes, "Nettrace", 8)) {
		nettrace_expect(nt, step_serializer_length, 4);
		return 0;
	}
	/* NetPerf starts with what comes second here */
	if (!memcmp(bytes, "\x14\0\0\0!Fas", 8))
		return NETTRACE_E_FORMAT_V3;
	return NETTRACE_E_NOT_NETTRACE;
}

static int step_serializer_length(struct nettrace *nt, const uint8_t *bytes)
{
	struct reader r;

	reader_init(&r, bytes, 4);
	switch (reader_u32(&r)) {
	case SERIALIZER_LENGTH: nettrace_expect(nt, step_serializer, SERIALIZER_LENGTH); return 0;
	case 0: /* from V6 on: a zero, then the version */
		nettrace_expect(nt, step_v6_version, 8);
		return 0;
	default: return nettrace_corrupt(nt, "no serializer name after the magic");
	}
}

static int step_v6_version(struct nettrace *nt, const uint8_t *bytes)
{
	struct reader r;

	reader_init(&r, bytes, 8);
	nt->version[0] = (int32_t)reader_u32(&r);
	nt->version[1] = (int32_t)reader_u32(&r);
	return nt->version[0] == 6 ? NETTRACE_E_FORMAT_V6 : NETTRACE_E_VERSION;
}

static int step_serializer(struct nettrace *nt, const uint8_t *bytes)
{
	if (memcmp(bytes, SERIALIZER, SERIALIZER_LENGTH))
		return nettrace_corrupt(nt, "unknown serializer");
	nettrace_expect(nt, step_tag, 1);
	return 0;
}

static int step_tag(struct nettrace *nt, const uint8_t *bytes)
{
	switch (bytes[0]) {
	case TAG_NULL: nt->ended = true; return 0;
	case TAG_BEGIN_PRIVATE_OBJECT: nettrace_expect(nt, step_object, 2 + 3 * 4); return 0;
	default: return nettrace_corrupt(nt, "no object where one must begin");
	}
}

static int step_object(struct nettrace *nt, const uint8_t *bytes)
{
	struct reader r;
	uint32_t length;

	reader_init(&r, bytes, 2 + 3 * 4);
	if (reader_u8(&r) != TAG_BEGIN_PRIVATE_OBJECT || reader_u8(&r) != TAG_NULL)
		return nettrace_corrupt(nt, "broken object type");
	nt->version[0] = (int32_t)reader_u32(&r);
	nt->version[1] = (int32_t)reader_u32(&r);
	length = reader_u32(&r);
	if (!length || length > CAP_OBJECT_NAME)
		return nettrace_corrupt(nt, "object type name of an impossible length");
	nettrace_expect(nt, step_name, length + 1);
	return 0;
}

static int step_name(struct nettrace *nt, const uint8_t *bytes)
{
	size_t length = nt->want - 1, i;

	if (bytes[length] != TAG_END_OBJECT)
		return nettrace_corrupt(nt, "unfinished object type");

	nt->object = OBJECT_UNKNOWN;
	for (i = 0; i < ARRAY_SIZE(known_objects); i++) {
		if (strlen(known_objects[i].name) != length ||
		    memcmp(known_objects[i].name, bytes, length))
			continue;
		nt->object = known_objects[i].object;
		if (nt->version[0] < known_objects[i].version ||
		    nt->version[1] > known_objects[i].version)
			return NETTRACE_E_VERSION;
	}

	if ((nt->object == OBJECT_TRACE) == nt->has_header)
		return nettrace_corrupt(nt, nt->has_header ? "second Trace object"
							   : "no Trace object at the start");
	if (nt->object == OBJECT_TRACE)
		nettrace_expect(nt, step_trace, TRACE_BODY);
	else
		nettrace_expect(nt, step_size, 4 + (-(nt->offset + 4) & 3));
	return 0;
}

static int step_trace(struct nettrace *nt, const uint8_t *bytes)
{
	struct nettrace_header *h = &nt->header;
	struct reader r;

	reader_init(&r, bytes, TRACE_BODY);
	h->year = reader_u16(&r);
	h->month = reader_u16(&r);
	h->day_of_week = reader_u16(&r);
	h->day = reader_u16(&r);
	h->hour = reader_u16(&r);
	h->minute = reader_u16(&r);
	h->second = reader_u16(&r);
	h->millisecond = reader_u16(&r);
	h->sync_qpc = reader_u64(&r);
	h->qpc_frequency = reader_u64(&r);
	h->pointer_size = reader_u32(&r);
	h->process_id = reader_u32(&r);
	h->n_processors = reader_u32(&r);
	h->sampling_rate_ns = reader_u32(&r);
	if (!h->qpc_frequency) /* users divide by it */
		return nettrace_corrupt(nt, "clock without a frequency");

	nt->has_header = true;
	nettrace_expect(nt, step_object_end, 1);
	return nt->callbacks.header ? nt->callbacks.header(nt->data, h) : 0;
}

static int step_size(struct nettrace *nt, const uint8_t *bytes)
{
	struct reader r;
	uint32_t size;

	reader_init(&r, bytes, nt->want);
	size = reader_u32(&r);
	if (size > CAP_BLOCK_BYTES) /* negative ones, too */
		return nettrace_corrupt(nt, "block of an impossible size");

	switch (nt->object) {
	case OBJECT_EVENTS:
	case OBJECT_METADATA:
	case OBJECT_SEQUENCE_POINT: nettrace_expect(nt, step_body, size); return 0;
	case OBJECT_UNKNOWN: nt->stats.unknown_blocks++; break;
	default: break;
	}
	nt->stats.blocks++;
	nt->skip = size;
	nettrace_expect(nt, step_object_end, 1);
	return 0;
}

static int step_body(struct nettrace *nt, const uint8_t *bytes)
{
	size_t size = nt->want;

	nt->stats.blocks++;
	nettrace_expect(nt, step_object_end, 1);
	switch (nt->object) {
	case OBJECT_EVENTS: return block_read_events(nt, bytes, size);
	case OBJECT_METADATA: return block_read_metadata(nt, bytes, size);
	default: return block_read_sequence_point(nt, bytes, size);
	}
}

static int step_object_end(struct nettrace *nt, const uint8_t *bytes)
{
	if (bytes[0] != TAG_END_OBJECT)
		return nettrace_corrupt(nt, "unfinished object");
	nettrace_expect(nt, step_tag, 1);
	return 0;
}

/*
 * The bytes that the step wants, in one piece; NULL as long as some are missing. They are
 * valid until the next call.
 */
static int nettrace_take(struct nettrace *nt, struct reader *in, const uint8_t **bytesp)
{
	size_t n = MIN(nt->skip, reader_left(in));
	int r;

	*bytesp = NULL;
	reader_skip(in, n);
	nt->skip -= n;
	nt->offset += n;
	if (nt->skip)
		return 0;

	if (!nt->partial.len && reader_left(in) >= nt->want) {
		*bytesp = reader_bytes(in, nt->want);
	} else {
		n = MIN(nt->want - nt->partial.len, reader_left(in));
		r = buf_append(&nt->partial, reader_bytes(in, n), n);
		if (r < 0)
			return r;
		if (nt->partial.len < nt->want)
			return 0;
		*bytesp = nt->partial.data;
	}
	nt->offset += nt->want;
	return 0;
}

int nettrace_feed(struct nettrace *nt, const void *bytes, size_t n)
{
	struct reader in;
	const uint8_t *p;

	if (!n)
		return nt->error;
	reader_init(&in, bytes, n);
	while (!nt->error && !nt->ended) {
		nt->error = nettrace_take(nt, &in, &p);
		if (nt->error || !p)
			break;
		nt->error = nt->step(nt, p);
		buf_clear(&nt->partial);
	}
	nt->stats.bytes = nt->offset + nt->partial.len;
	return nt->error;
}

int nettrace_finish(const struct nettrace *nt)
{
	if (nt->error)
		return nt->error;
	if (nettrace_at_boundary(nt))
		return 0;
	return nt->step == step_magic ? NETTRACE_E_NOT_NETTRACE : NETTRACE_E_TRUNCATED;
}

int nettrace_new(struct nettrace **outp, const struct nettrace_callbacks *callbacks, void *data)
{
	struct nettrace *nt = calloc(1, sizeof(*nt));

	if (!nt)
		return -ENOMEM;
	nt->callbacks = *callbacks;
	nt->data = data;
	buf_init(&nt->partial, CAP_BLOCK_BYTES);
	threads_init(&nt->threads);
	nettrace_expect(nt, step_magic, sizeof(nt->head));
	*outp = nt;
	return 0;
}

void nettrace_free(struct nettrace *nt)
{
	uint32_t i;

	if (!nt)
		return;
	for (i = 0; i < nt->n_metadata; i++)
		free(nt->metadata[i]);
	free(nt->metadata);
	threads_deinit(&nt->threads);
	buf_deinit(&nt->partial);
	free(nt);
}

bool nettrace_ended(const struct nettrace *nt)
{
	return nt->ended;
}

bool nettrace_at_boundary(const struct nettrace *nt)
{
	return nt->ended || (nt->has_header && nt->step == step_tag);
}

const struct nettrace_header *nettrace_get_header(const struct nettrace *nt)
{
	return nt->has_header ? &nt->header : NULL;
}

const struct nettrace_stats *nettrace_get_stats(const struct nettrace *nt)
{
	return &nt->stats;
}

static void nettrace_describe_head(struct nettrace *nt)
{
	bool whole = nt->step != step_magic || nt->error;
	const uint8_t *head = whole ? nt->head : nt->partial.data;
	size_t n = whole ? sizeof(nt->head) : nt->partial.len;
	char hex[3 * sizeof(nt->head) + 1] = "";
	size_t i;

	for (i = 0; i < n; i++)
		snprintf(hex + 3 * i, sizeof(hex) - 3 * i, " %02x", head[i]);
	if (n)
		snprintf(nt->text, sizeof(nt->text), "not a nettrace stream (starts with%s)", hex);
	else
		snprintf(nt->text, sizeof(nt->text), "not a nettrace stream (empty)");
}

const char *nettrace_error_text(struct nettrace *nt, int error)
{
	switch (error) {
	case 0: return "no error";
	case NETTRACE_E_NOT_NETTRACE: nettrace_describe_head(nt); return nt->text;
	case NETTRACE_E_FORMAT_V3:
		return "NetPerf stream (format V3), only nettrace V4 can be read";
	case NETTRACE_E_FORMAT_V6: return "nettrace stream of format V6, only V4 can be read";
	case NETTRACE_E_VERSION:
		snprintf(nt->text, sizeof(nt->text),
			 "nettrace stream of version %" PRId32 "/%" PRId32 ", only V4 can be read",
			 nt->version[0], nt->version[1]);
		return nt->text;
	case NETTRACE_E_CORRUPT:
		snprintf(nt->text, sizeof(nt->text), "corrupt stream before byte %" PRIu64 ": %s",
			 nt->offset, nt->reason ? nt->reason : "unknown");
		return nt->text;
	case NETTRACE_E_TRUNCATED:
		snprintf(nt->text, sizeof(nt->text), "stream cut inside an object at byte %" PRIu64,
			 nt->stats.bytes);
		return nt->text;
	default: return error < 0 ? strerror(-error) : "unknown error";
	}
}
