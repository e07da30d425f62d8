/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nettrace V4 as far as the fake runtime has to know it. Format: NetTraceFormat.md of
 * microsoft/perfview (V4).
 *
 * Times inside a block are deltas, the first one from zero. So a shift by any amount changes
 * one variable-length number a block, the block's size with it, and with that the padding of
 * what follows: a shifted stream is written anew, object by object.
 */
#include "tests/fakert/stream.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "base/caps.h"
#include "base/clock.h"
#include "base/reader.h"

#define STREAM_CAP    GIB(2)
#define STREAM_FILLER KIB(64)
#define TRACE_BODY    48u
#define SP_BODY       12u

#define TAG_NULL      1u
#define TAG_BEGIN     5u
#define TAG_END       6u

static const char stream_magic[] = "Nettrace\x14\0\0\0!FastSerialization.1";
#define STREAM_MAGIC_SIZE (sizeof(stream_magic) - 1)

enum object_kind {
	OBJECT_END,
	OBJECT_TRACE,
	OBJECT_EVENTS, /* and metadata, which is framed alike */
	OBJECT_SEQUENCE_POINT,
	OBJECT_OTHER,
};

struct object {
	enum object_kind kind;
	size_t at, name_end, body, body_size, end; /* offsets in the stream */
};

static bool name_is(const uint8_t *name, size_t n, const char *want)
{
	return n == strlen(want) && !memcmp(name, want, n);
}

/* The object at `at`; false at the end of the bytes, whole or not. */
static bool object_next(const struct buf *b, size_t at, struct object *o)
{
	const uint8_t *name;
	struct reader r;
	uint32_t n;

	if (at >= b->len)
		return false;
	*o = (struct object){ .kind = OBJECT_OTHER, .at = at };
	reader_init(&r, b->data + at, b->len - at);
	if (b->data[at] == TAG_NULL) {
		o->kind = OBJECT_END;
		o->end = at + 1;
		return true;
	}
	reader_skip(&r, 3 + 8); /* tags, versions */
	n = reader_u32(&r);
	name = reader_bytes(&r, n);
	reader_skip(&r, 1);
	if (r.bad)
		return false;
	o->name_end = (size_t)(r.p - b->data);
	if (name_is(name, n, "Trace")) {
		o->kind = OBJECT_TRACE;
		o->body_size = TRACE_BODY;
	} else {
		o->body_size = reader_u32(&r);
		reader_skip(&r, -(size_t)(r.p - b->data) & 3);
		if (name_is(name, n, "EventBlock") || name_is(name, n, "MetadataBlock"))
			o->kind = OBJECT_EVENTS;
		else if (name_is(name, n, "SPBlock"))
			o->kind = OBJECT_SEQUENCE_POINT;
	}
	o->body = (size_t)(r.p - b->data);
	reader_skip(&r, o->body_size);
	if (reader_u8(&r) != TAG_END || r.bad)
		return false;
	o->end = (size_t)(r.p - b->data);
	return true;
}

/* First and last time of an object that has times. */
static bool object_times(const struct buf *b, const struct object *o, uint64_t *firstp,
			 uint64_t *lastp)
{
	struct reader r;

	reader_init(&r, b->data + o->body, o->body_size);
	if (o->kind == OBJECT_EVENTS) {
		reader_skip(&r, 4);
		*firstp = reader_u64(&r);
		*lastp = reader_u64(&r);
	} else if (o->kind == OBJECT_SEQUENCE_POINT) {
		*firstp = *lastp = reader_u64(&r);
	} else {
		return false;
	}
	return !r.bad;
}

static void stream_scan(struct stream *s)
{
	const struct buf *b = &s->bytes;
	size_t at = STREAM_MAGIC_SIZE, point = 0, point_end = 0;
	uint64_t first, last;
	struct object o;

	s->head = b->len / 2;
	s->tail = b->len;
	s->first_ns = s->last_ns = 0;
	if (b->len < STREAM_MAGIC_SIZE || memcmp(b->data, stream_magic, STREAM_MAGIC_SIZE))
		return;
	for (; object_next(b, at, &o); at = o.end) {
		if (o.kind == OBJECT_TRACE)
			s->head = o.end;
		if (o.kind == OBJECT_END) {
			s->tail = point_end == at ? point : at;
			break;
		}
		if (o.kind == OBJECT_SEQUENCE_POINT) {
			point = at;
			point_end = o.end;
		}
		if (object_times(b, &o, &first, &last)) {
			if (!s->first_ns || first < s->first_ns)
				s->first_ns = first;
			s->last_ns = MAX(s->last_ns, last);
		}
	}
}

int stream_load(struct stream *s, const char *path)
{
	_cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
	struct stat st;
	ssize_t n;
	int r;

	*s = (struct stream){ 0 };
	buf_init(&s->bytes, STREAM_CAP);
	if (fd < 0 || fstat(fd, &st) < 0)
		return -errno;
	/* one byte more than there is, to see the end */
	r = buf_reserve(&s->bytes, (size_t)st.st_size + 1);
	if (r < 0)
		return r;
	while ((n = read(fd, s->bytes.data + s->bytes.len, s->bytes.size - s->bytes.len)) > 0) {
		s->bytes.len += (size_t)n;
		r = buf_reserve(&s->bytes, 1);
		if (r < 0)
			return r;
	}
	if (n < 0)
		return -errno;
	stream_scan(s);
	return 0;
}

void stream_deinit(struct stream *s)
{
	buf_deinit(&s->bytes);
	*s = (struct stream){ 0 };
}

/* -- Writing -------------------------------------------------------------------------- */

/*
 * Where an object goes: the buffer holds the stream from `base` on, for the padding counts
 * from the stream's first byte.
 */
struct writer {
	struct buf *out;
	size_t base;
};

static void put_name(struct writer *w, const char *name, uint32_t version)
{
	static const uint8_t begin[] = { TAG_BEGIN, TAG_BEGIN, TAG_NULL };

	buf_append(w->out, begin, sizeof(begin));
	buf_put_u32(w->out, version);
	buf_put_u32(w->out, version);
	buf_put_u32(w->out, (uint32_t)strlen(name));
	buf_puts(w->out, name);
	buf_put_u8(w->out, TAG_END);
}

static void put_size(struct writer *w, size_t size)
{
	buf_put_u32(w->out, (uint32_t)size);
	while (!w->out->error && (w->base + w->out->len) & 3)
		buf_put_u8(w->out, 0);
}

static void put_varint(struct buf *out, uint64_t v)
{
	for (; v > 0x7f; v >>= 7)
		buf_put_u8(out, (uint8_t)(v | 0x80));
	buf_put_u8(out, (uint8_t)v);
}

/* A session of this process that begins now. */
static void put_trace_body(struct buf *out)
{
	struct timespec now;
	struct tm tm;

	clock_gettime(CLOCK_REALTIME, &now);
	gmtime_r(&now.tv_sec, &tm);
	buf_put_u16(out, (uint16_t)(tm.tm_year + 1900));
	buf_put_u16(out, (uint16_t)(tm.tm_mon + 1));
	buf_put_u16(out, (uint16_t)tm.tm_wday);
	buf_put_u16(out, (uint16_t)tm.tm_mday);
	buf_put_u16(out, (uint16_t)tm.tm_hour);
	buf_put_u16(out, (uint16_t)tm.tm_min);
	buf_put_u16(out, (uint16_t)tm.tm_sec);
	buf_put_u16(out, (uint16_t)(now.tv_nsec / 1000000));
	buf_put_u64(out, clock_now_ns());
	buf_put_u64(out, SEC_NS(1)); /* ticks a second */
	buf_put_u32(out, sizeof(void *));
	buf_put_u32(out, (uint32_t)getpid());
	buf_put_u32(out, (uint32_t)sysconf(_SC_NPROCESSORS_ONLN));
	buf_put_u32(out, 1000000); /* sampling interval, ns */
}

int stream_put_filler(struct buf *out, size_t offset, unsigned int n)
{
	struct writer w = { out, offset - out->len };
	static const uint8_t zeros[STREAM_FILLER];

	if (n & 1) {
		put_name(&w, "FillerBlock", 2);
		put_size(&w, sizeof(zeros));
		buf_append(out, zeros, sizeof(zeros));
	} else {
		/* stacks without frames; ids may go round, as nothing uses them */
		put_name(&w, "StackBlock", 2);
		put_size(&w, sizeof(zeros));
		buf_put_u32(out, 1 + n * (uint32_t)(sizeof(zeros) / 4 - 2));
		buf_put_u32(out, (uint32_t)(sizeof(zeros) / 4 - 2));
		buf_append(out, zeros, sizeof(zeros) - 8);
	}
	return buf_put_u8(out, TAG_END);
}

int stream_put_end(struct buf *out, size_t offset)
{
	struct writer w = { out, offset - out->len };

	put_name(&w, "SPBlock", 2);
	put_size(&w, SP_BODY);
	buf_put_u64(out, clock_now_ns());
	buf_put_u32(out, 0); /* no threads */
	buf_put_u8(out, TAG_END);
	return buf_put_u8(out, TAG_NULL);
}

int stream_empty(struct stream *s)
{
	struct writer w = { &s->bytes, 0 };
	int r;

	*s = (struct stream){ 0 };
	buf_init(&s->bytes, STREAM_CAP);
	buf_append(&s->bytes, stream_magic, STREAM_MAGIC_SIZE);
	put_name(&w, "Trace", 4);
	put_trace_body(&s->bytes);
	buf_put_u8(&s->bytes, TAG_END);
	r = stream_put_end(&s->bytes, s->bytes.len);
	stream_scan(s);
	return r;
}

/* -- Moving in time ------------------------------------------------------------------- */

/* An EventBlock or MetadataBlock: its two times, then the first blob's delta from zero. */
static int shift_events(struct buf *out, const uint8_t *body, size_t size, uint64_t shift)
{
	struct reader r;
	uint16_t header_size, flags;
	uint8_t blob;
	uint64_t first, last, time;
	const uint8_t *rest, *before;

	reader_init(&r, body, size);
	header_size = reader_u16(&r);
	flags = reader_u16(&r);
	first = reader_u64(&r);
	last = reader_u64(&r);
	if (r.bad || header_size < 20 || header_size > size || !(flags & 1))
		return -EINVAL;
	buf_append(out, body, 4);
	buf_put_u64(out, first + shift);
	buf_put_u64(out, last + shift);
	rest = r.p;
	reader_skip(&r, header_size - 20u);
	if (!reader_left(&r))
		return buf_append(out, rest, (size_t)(r.p - rest));

	blob = reader_u8(&r);
	if (blob & 0x01)
		reader_varu32(&r); /* metadata id */
	if (blob & 0x02) {
		reader_varu32(&r); /* sequence */
		reader_varu64(&r); /* capture thread */
		reader_varu32(&r); /* processor */
	}
	if (blob & 0x04)
		reader_varu64(&r); /* thread */
	if (blob & 0x08)
		reader_varu32(&r); /* stack */
	before = r.p;
	time = reader_varu64(&r);
	if (r.bad)
		return -EINVAL;
	buf_append(out, rest, (size_t)(before - rest));
	put_varint(out, time + shift);
	return buf_append(out, r.p, reader_left(&r));
}

static int shift_object(struct writer *w, const struct buf *in, const struct object *o,
			uint64_t shift)
{
	_cleanup_buf_ struct buf body;
	uint64_t time, same;
	int r = 0;

	buf_init(&body, STREAM_CAP);
	if (o->kind == OBJECT_TRACE) {
		put_trace_body(&body);
	} else if (o->kind == OBJECT_EVENTS) {
		r = shift_events(&body, in->data + o->body, o->body_size, shift);
		if (r < 0)
			return r;
	} else if (o->kind == OBJECT_SEQUENCE_POINT && object_times(in, o, &time, &same)) {
		buf_put_u64(&body, time + shift);
		buf_append(&body, in->data + o->body + 8, o->body_size - 8);
	} else {
		buf_append(&body, in->data + o->body, o->body_size);
	}
	if (body.error)
		return body.error;
	buf_append(w->out, in->data + o->at, o->name_end - o->at);
	if (o->kind != OBJECT_TRACE)
		put_size(w, body.len);
	buf_append(w->out, body.data, body.len);
	return buf_put_u8(w->out, TAG_END);
}

int stream_shift(struct stream *out, const struct stream *in, int64_t shift_ns)
{
	struct writer w = { &out->bytes, 0 };
	size_t at = MIN(STREAM_MAGIC_SIZE, in->bytes.len);
	struct object o;
	int r;

	*out = (struct stream){ 0 };
	buf_init(&out->bytes, STREAM_CAP);
	buf_append(&out->bytes, in->bytes.data, at);
	for (; object_next(&in->bytes, at, &o) && o.kind != OBJECT_END; at = o.end) {
		r = shift_object(&w, &in->bytes, &o, (uint64_t)shift_ns);
		if (r < 0)
			return r;
	}
	/* the end tag, or whatever a broken recording ends with */
	r = buf_append(&out->bytes, in->bytes.data + at, in->bytes.len - at);
	stream_scan(out);
	return r;
}

size_t stream_due(const struct stream *s, size_t from, uint64_t now_ns)
{
	uint64_t first, last;
	struct object o;

	while (from < s->tail && object_next(&s->bytes, from, &o)) {
		if (object_times(&s->bytes, &o, &first, &last) && last > now_ns)
			break;
		from = o.end;
	}
	return from;
}
