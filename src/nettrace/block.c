/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nettrace: what is inside the blocks.
 *
 * Event and metadata blocks share one shape: a header, then event blobs up to the end. In
 * compressed blobs (the only kind that runtimes write) a field that is absent keeps the value it
 * had in the blob before, so the parse of a block is one struct blob carried along; it starts
 * from zero in each block, which makes every block readable by itself. Therefore a
 * corrupt blob costs the rest of its block and nothing more.
 *
 * This is the hot loop of a rundown. The header of a compressed blob is at most
 * BLOB_HEADER_MAX bytes; it is read without looking at the end, which the caller has made sure
 * of: near the end of the block it is read from a copy with zeros behind it, and zeros
 * end every variable-length integer. Whether it really was there is decided by its length
 * afterwards.
 *
 * Format: NetTraceFormat.md, "EventBlock Object" to "SequencePointBlock Object", corrected where
 * runtimes and TraceEvent do otherwise: metadata blobs may carry flag CAPTURE, and bit 31
 * of the metadata id of an uncompressed blob means "not sorted".
 */
#include <errno.h>
#include <string.h>

#include "base/caps.h"
#include "base/utf.h"
#include "nettrace/internal.h"

#define BLOCK_HEADER_MIN      20u
#define BLOCK_FLAG_COMPRESSED 0x1u

#define BLOB_METADATA_ID      0x01u
#define BLOB_CAPTURE          0x02u
#define BLOB_THREAD           0x04u
#define BLOB_STACK            0x08u
#define BLOB_ACTIVITY         0x10u
#define BLOB_RELATED          0x20u
#define BLOB_SORTED           0x40u
#define BLOB_PAYLOAD_SIZE     0x80u

#define BLOB_UNSORTED_ID      0x80000000u

#define VARU32_MAX            5
#define VARU64_MAX            10
#define GUID_SIZE             16

#define BLOB_HEADER_MAX       (1 + 5 * VARU32_MAX + 3 * VARU64_MAX + 2 * GUID_SIZE)

#define SEQUENCE_POINT_THREAD 12u

#define METADATA_MIN_SLOTS    64u

struct blob {
	uint32_t metadata_id;
	uint32_t sequence;
	uint64_t capture_thread;
	uint64_t thread_id;
	uint64_t timestamp;
	uint32_t payload_size;
	bool sorted;
	const uint8_t *payload;
};

/* What to do with each blob of a block. */
typedef int blob_handler(struct nettrace *nt, const struct blob *blob);

/* -- Blobs ---------------------------------------------------------------------------- */

/*
 * One unsigned LEB128 integer of at most max bytes; bits past 64 are dropped. Reads up to max
 * bytes. A longer one sets *badp.
 */
static inline const uint8_t *varint_read(const uint8_t *p, int max, uint64_t *vp, bool *badp)
{
	uint64_t v = *p++;
	int i;

	if (likely(v < 0x80)) {
		*vp = v;
		return p;
	}
	v &= 0x7f;
	for (i = 1; i < max; i++) {
		uint8_t b = *p++;

		v |= (uint64_t)(b & 0x7f) << (7 * i);
		if (b < 0x80) {
			*vp = v;
			return p;
		}
	}
	*vp = 0;
	*badp = true;
	return p;
}

/*
 * Brings the blob up to date by the header at p, of which BLOB_HEADER_MAX bytes can be read.
 * Returns the end of the header, NULL if it makes no sense.
 */
static inline const uint8_t *blob_read_header(struct blob *blob, const uint8_t *p)
{
	uint32_t flags = *p++;
	bool bad = false;
	uint64_t v;

	if (flags & BLOB_METADATA_ID) {
		p = varint_read(p, VARU32_MAX, &v, &bad);
		blob->metadata_id = (uint32_t)v;
	}
	if (flags & BLOB_CAPTURE) {
		p = varint_read(p, VARU32_MAX, &v, &bad);
		blob->sequence += (uint32_t)v;
		p = varint_read(p, VARU64_MAX, &blob->capture_thread, &bad);
		p = varint_read(p, VARU32_MAX, &v, &bad); /* processor */
	}
	if (blob->metadata_id)
		blob->sequence++;
	if (flags & BLOB_THREAD)
		p = varint_read(p, VARU64_MAX, &blob->thread_id, &bad);
	if (flags & BLOB_STACK)
		p = varint_read(p, VARU32_MAX, &v, &bad);
	/* a thread that started earlier than the one before makes this wrap around */
	p = varint_read(p, VARU64_MAX, &v, &bad);
	blob->timestamp += v;
	if (flags & BLOB_ACTIVITY)
		p += GUID_SIZE;
	if (flags & BLOB_RELATED)
		p += GUID_SIZE;
	blob->sorted = flags & BLOB_SORTED;
	if (flags & BLOB_PAYLOAD_SIZE) {
		p = varint_read(p, VARU32_MAX, &v, &bad);
		blob->payload_size = (uint32_t)v;
	}
	return bad ? NULL : p;
}

/* Reads one blob; false if there is none to be had. */
static inline bool blob_read_compressed(struct blob *blob, struct reader *r)
{
	size_t left = reader_left(r);
	const uint8_t *end;
	size_t n;

	if (likely(left >= BLOB_HEADER_MAX)) {
		end = blob_read_header(blob, r->p);
		if (unlikely(!end))
			return false;
		n = (size_t)(end - r->p);
	} else {
		uint8_t padded[BLOB_HEADER_MAX] = { 0 };

		memcpy(padded, r->p, left);
		end = blob_read_header(blob, padded);
		if (!end)
			return false;
		n = (size_t)(end - padded);
	}
	reader_skip(r, n);
	blob->payload = reader_bytes(r, blob->payload_size);
	return !r->bad;
}

static bool blob_read_plain(struct blob *blob, struct reader *r)
{
	const uint8_t *start = r->p;
	uint32_t size, id;
	struct reader in;

	size = reader_u32(r);
	reader_init(&in, r->p, MIN((size_t)size, reader_left(r)));
	id = reader_u32(&in);
	blob->metadata_id = id & ~BLOB_UNSORTED_ID;
	blob->sorted = !(id & BLOB_UNSORTED_ID);
	blob->sequence = reader_u32(&in);
	blob->thread_id = reader_u64(&in);
	blob->capture_thread = reader_u64(&in);
	reader_skip(&in, 4 + 4); /* processor, stack */
	blob->timestamp = reader_u64(&in);
	reader_skip(&in, 2 * GUID_SIZE);
	blob->payload_size = reader_u32(&in);
	blob->payload = reader_bytes(&in, blob->payload_size);
	reader_skip(r, size);
	/* padded to 4; the last blob of a block may go without */
	reader_skip(r, MIN(-(size_t)(r->p - start) & 3, reader_left(r)));
	return !r->bad && !in.bad;
}

static inline int block_read_blobs(struct nettrace *nt, const uint8_t *bytes, size_t size,
				   blob_handler *handle)
{
	struct blob blob = { 0 };
	struct reader r;
	uint16_t header_size, flags;
	int error;

	reader_init(&r, bytes, size);
	header_size = reader_u16(&r);
	flags = reader_u16(&r);
	reader_skip(&r, header_size - 4u);
	if (header_size < BLOCK_HEADER_MIN || r.bad) {
		nt->stats.bad_blocks++;
		return 0;
	}
	while (reader_left(&r)) {
		if (unlikely(!(flags & BLOCK_FLAG_COMPRESSED ? blob_read_compressed(&blob, &r)
							     : blob_read_plain(&blob, &r)))) {
			nt->stats.bad_blocks++;
			return 0;
		}
		error = handle(nt, &blob);
		if (unlikely(error))
			return error;
	}
	return 0;
}

/* -- Events --------------------------------------------------------------------------- */

static int nettrace_report_lost(struct nettrace *nt, uint32_t n, uint64_t from, uint64_t to)
{
	nt->stats.lost += n;
	return nt->callbacks.lost ? nt->callbacks.lost(nt->data, n, from, to) : 0;
}

static int event_track(struct nettrace *nt, const struct blob *blob)
{
	struct thread *thread;
	uint64_t from;
	uint32_t lost;
	int r;

	r = threads_get(&nt->threads, blob->capture_thread, &thread);
	if (r < 0)
		return r;
	if (!thread) {
		nt->stats.untracked++;
		return 0;
	}
	from = thread->timestamp;
	lost = thread_see_event(thread, blob->sequence, blob->timestamp);
	return lost ? nettrace_report_lost(nt, lost, from, blob->timestamp) : 0;
}

static inline int event_handle(struct nettrace *nt, const struct blob *blob)
{
	struct thread *last = nt->threads.last;
	struct nettrace_event event;
	int r;

	if (unlikely(!blob->metadata_id)) { /* not an event: the runtime does not count it */
		nt->stats.orphan_events++;
		return 0;
	}
	if (likely(last && last->id == blob->capture_thread &&
		   last->sequence + 1 == blob->sequence)) {
		last->sequence = blob->sequence;
		last->timestamp = blob->timestamp;
	} else {
		r = event_track(nt, blob);
		if (r)
			return r;
	}

	if (unlikely(blob->metadata_id >= nt->n_metadata || !nt->metadata[blob->metadata_id])) {
		nt->stats.orphan_events++;
		return 0;
	}
	nt->stats.events++;
	nt->stats.last_timestamp = MAX(nt->stats.last_timestamp, blob->timestamp);
	if (!nt->callbacks.event)
		return 0;
	event = (struct nettrace_event){
		.metadata = nt->metadata[blob->metadata_id],
		.timestamp = blob->timestamp,
		.thread_id = blob->thread_id,
		.capture_thread = blob->capture_thread,
		.sequence = blob->sequence,
		.payload_size = blob->payload_size,
		.payload = blob->payload,
		.sorted = blob->sorted,
	};
	return nt->callbacks.event(nt->data, &event);
}

int block_read_events(struct nettrace *nt, const uint8_t *bytes, size_t size)
{
	return block_read_blobs(nt, bytes, size, event_handle);
}

/* -- Metadata ------------------------------------------------------------------------- */

/* The metadata record with its name behind it. */
struct metadata_record {
	struct nettrace_metadata metadata;
	char provider[];
};

/* Borrows a zero-terminated string of 16-bit units; *n_unitsp does not count the zero. */
static const uint8_t *reader_u16z(struct reader *r, size_t *n_unitsp)
{
	const uint8_t *start = r->p;
	size_t n = 0;

	while (!r->bad && reader_u16(r))
		n++;
	*n_unitsp = n;
	return start;
}

static int metadata_make_room(struct nettrace *nt, uint32_t id)
{
	struct nettrace_metadata **metadata;
	uint32_t n = MAX(nt->n_metadata, METADATA_MIN_SLOTS);

	if (id < nt->n_metadata)
		return 0;
	while (n <= id)
		n *= 2;
	metadata = realloc(nt->metadata, n * sizeof(*metadata));
	if (!metadata)
		return -ENOMEM;
	memset(metadata + nt->n_metadata, 0, (n - nt->n_metadata) * sizeof(*metadata));
	nt->metadata = metadata;
	nt->n_metadata = n;
	return 0;
}

/*
 * i32 id · u16z provider · i32 event id · u16z event name · i64 keywords · i32 version · level and
 * fields, which native events lack and nobody here needs.
 */
static int metadata_handle(struct nettrace *nt, const struct blob *blob)
{
	_cleanup_free_ struct metadata_record *record = NULL;
	uint32_t id, event_id, version;
	const uint8_t *provider;
	size_t n_units, n_skipped;
	struct reader r;
	int error;

	reader_init(&r, blob->payload, blob->payload_size);
	id = reader_u32(&r);
	provider = reader_u16z(&r, &n_units);
	event_id = reader_u32(&r);
	reader_u16z(&r, &n_skipped);
	reader_skip(&r, 8);
	version = reader_u32(&r);
	if (r.bad || !id || id > CAP_METADATA_IDS || n_units > CAP_PROVIDER_NAME ||
	    (id < nt->n_metadata && nt->metadata[id])) {
		nt->stats.bad_metadata++;
		return 0;
	}

	error = metadata_make_room(nt, id);
	if (error)
		return error;
	record = malloc(sizeof(*record) + UTF8_PER_UNIT * n_units + 1);
	if (!record)
		return -ENOMEM;
	record->provider[utf8_from_u16(record->provider, provider, n_units)] = '\0';
	record->metadata = (struct nettrace_metadata){
		.id = id,
		.event_id = event_id,
		.version = version,
		.provider = record->provider,
	};
	nt->metadata[id] = &TAKE_PTR(record)->metadata;
	return nt->callbacks.metadata ? nt->callbacks.metadata(nt->data, nt->metadata[id]) : 0;
}

int block_read_metadata(struct nettrace *nt, const uint8_t *bytes, size_t size)
{
	return block_read_blobs(nt, bytes, size, metadata_handle);
}

/* -- Sequence points ------------------------------------------------------------------ */

/* i64 timestamp · u32 n · n × { u64 thread, u32 its last sequence number } */
int block_read_sequence_point(struct nettrace *nt, const uint8_t *bytes, size_t size)
{
	struct reader r;
	uint64_t timestamp;
	uint32_t n, i;
	int error;

	reader_init(&r, bytes, size);
	timestamp = reader_u64(&r);
	n = reader_u32(&r);
	if (r.bad || n > reader_left(&r) / SEQUENCE_POINT_THREAD) {
		nt->stats.bad_blocks++;
		return 0;
	}
	for (i = 0; i < n; i++) {
		uint64_t id = reader_u64(&r);
		uint32_t sequence = reader_u32(&r);
		struct thread *thread;
		uint32_t lost;

		error = threads_get(&nt->threads, id, &thread);
		if (error)
			return error;
		lost = thread ? thread_see_point(thread, sequence) : 0;
		if (!lost)
			continue;
		error = nettrace_report_lost(nt, lost, thread->timestamp, timestamp);
		if (error)
			return error;
	}
	threads_expire(&nt->threads);
	nt->stats.last_timestamp = MAX(nt->stats.last_timestamp, timestamp);
	return nt->callbacks.sequence_point ? nt->callbacks.sequence_point(nt->data, timestamp) : 0;
}
