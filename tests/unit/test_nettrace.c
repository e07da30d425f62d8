/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stream's meaning is written down as text, one line a callback, and compared as text: so
 * "the same in any split" and "what was complete before the cut" are string comparisons.
 */
#include "nettrace/nettrace.h"

#include <check.h>
#include <errno.h>
#include <inttypes.h>

#include "base/caps.h"
#include "tests/unit/stream.h"

#define TEST_CAP MIB(64)

/* -- The log of a decoder ---------------------------------------------------------------- */

struct log {
	struct buf text;
	int fail_at; /* the callback that fails, counted down; 0: none */
};

static int log_result(struct log *log)
{
	return log->fail_at && !--log->fail_at ? -ECANCELED : 0;
}

static int log_header(void *data, const struct nettrace_header *h)
{
	struct log *log = data;

	buf_printf(&log->text, "header %u-%u-%u %u:%u:%u.%u sync %" PRIu64 " hz %" PRIu64, h->year,
		   h->month, h->day, h->hour, h->minute, h->second, h->millisecond, h->sync_qpc,
		   h->qpc_frequency);
	buf_printf(&log->text, " ptr %u pid %u cpus %u rate %u\n", h->pointer_size, h->process_id,
		   h->n_processors, h->sampling_rate_ns);
	return log_result(log);
}

static int log_metadata(void *data, struct nettrace_metadata *m)
{
	struct log *log = data;

	buf_printf(&log->text, "metadata %u %s/%u/v%u\n", m->id, m->provider, m->event_id,
		   m->version);
	m->user = m;
	return log_result(log);
}

static int log_event(void *data, const struct nettrace_event *e)
{
	struct log *log = data;
	uint32_t sum = 0, i;

	ck_assert_ptr_eq(e->metadata->user, e->metadata);
	for (i = 0; i < e->payload_size; i++)
		sum = sum * 31 + e->payload[i];
	buf_printf(&log->text, "event %u t %" PRIu64 " of %" PRIu64 " by %" PRIu64, e->metadata->id,
		   e->timestamp, e->thread_id, e->capture_thread);
	buf_printf(&log->text, " #%u%s %u bytes %08x\n", e->sequence, e->sorted ? " sorted" : "",
		   e->payload_size, sum);
	return log_result(log);
}

static int log_lost(void *data, uint64_t n, uint64_t from, uint64_t to)
{
	struct log *log = data;

	buf_printf(&log->text, "lost %" PRIu64 " in %" PRIu64 "..%" PRIu64 "\n", n, from, to);
	return log_result(log);
}

static int log_point(void *data, uint64_t timestamp)
{
	struct log *log = data;

	buf_printf(&log->text, "point %" PRIu64 "\n", timestamp);
	return log_result(log);
}

static const struct nettrace_callbacks log_callbacks = {
	.header = log_header,
	.metadata = log_metadata,
	.event = log_event,
	.lost = log_lost,
	.sequence_point = log_point,
};

/* One decoder and what came out of it. */
struct decoder {
	struct nettrace *nt;
	struct log log;
};

static void decoder_init(struct decoder *d)
{
	*d = (struct decoder){ 0 };
	buf_init(&d->log.text, TEST_CAP);
	ck_assert_int_eq(nettrace_new(&d->nt, &log_callbacks, &d->log), 0);
}

static void decoder_deinit(struct decoder *d)
{
	nettrace_free(d->nt);
	buf_deinit(&d->log.text);
}

#define _cleanup_decoder_ _cleanup_(decoder_deinit)

/*
 * The pieces are fed from allocations of their exact size, so that a sanitizer sees any read
 * past their end, and nobody can rely on bytes of an earlier call.
 */
static int decoder_feed(struct decoder *d, const uint8_t *bytes, size_t n)
{
	_cleanup_free_ uint8_t *piece = malloc(n ? n : 1);

	memcpy(piece, bytes, n);
	return nettrace_feed(d->nt, piece, n);
}

static int decoder_feed_in(struct decoder *d, const uint8_t *bytes, size_t n, size_t chunk)
{
	int r = 0;
	size_t done;

	for (done = 0; !r && done < n; done += chunk)
		r = decoder_feed(d, bytes + done, MIN(chunk, n - done));
	return r;
}

static const char *decoder_text(struct decoder *d)
{
	return buf_cstr(&d->log.text);
}

static const struct nettrace_stats *decoder_stats(struct decoder *d)
{
	return nettrace_get_stats(d->nt);
}

#define HEADER_LINE \
	"header 2025-11-29 13:14:15.167 sync 123456789 hz 1000000000 ptr 8 pid 4711 cpus 2 rate " \
	"1000000\n"

/* -- A stream with a bit of everything ------------------------------------------------- */

static void sample_stream(struct buf *s)
{
	_cleanup_buf_ struct buf block;
	struct stream_last last = { 0 };
	uint8_t payload[300];
	size_t i;

	buf_init(&block, TEST_CAP);
	for (i = 0; i < sizeof(payload); i++)
		payload[i] = (uint8_t)i;

	stream_begin(s);
	block_begin(&block, true);
	block_metadata(&block, 1, STREAM_RUNTIME, 143, 1);
	block_metadata(&block, 2, STREAM_RUNTIME, 143, 2);
	stream_block(s, "MetadataBlock", &block);

	buf_clear(&block);
	buf_puts(&block, "stacks");
	stream_block(s, "StackBlock", &block);

	block_begin(&block, true);
	block_event(&block, &last, &(struct stream_event){ 1, 1, 100, 1000, true, payload, 300 });
	block_event(&block, &last, &(struct stream_event){ 2, 2, 100, 2000, true, payload, 2 });
	/* of a thread whose events are older: the timestamp runs backwards */
	block_event(&block, &last, &(struct stream_event){ 1, 1, 200, 500, true, payload, 0 });
	block_event(&block, &last, &(struct stream_event){ 1, 4, 100, 2500, false, payload, 1 });
	stream_block(s, "EventBlock", &block);

	block_point(&block, 3000, 2);
	block_point_thread(&block, 100, 4);
	block_point_thread(&block, 200, 3);
	stream_block(s, "SPBlock", &block);

	buf_clear(&block);
	buf_puts(&block, "whatever");
	stream_block(s, "FutureBlock", &block);
	stream_end(s);
	ck_assert_int_eq(s->error, 0);
}

static const char sample_text[] =
	HEADER_LINE "metadata 1 Microsoft-Windows-DotNETRuntime/143/v1\n"
		    "metadata 2 Microsoft-Windows-DotNETRuntime/143/v2\n"
		    "event 1 t 1000 of 100 by 100 #1 300 bytes efdfdc96\n"
		    "event 2 t 2000 of 100 by 100 #2 2 bytes 00000001\n"
		    "event 1 t 500 of 200 by 200 #1 0 bytes 00000000\n"
		    "lost 1 in 2000..2500\n"
		    "event 1 t 2500 of 100 by 100 #4 sorted 1 bytes 00000000\n"
		    "lost 2 in 500..3000\n"
		    "point 3000\n";

START_TEST(test_sample)
{
	_cleanup_decoder_ struct decoder d;
	_cleanup_buf_ struct buf s;
	const struct nettrace_stats *stats;

	buf_init(&s, TEST_CAP);
	sample_stream(&s);
	decoder_init(&d);
	ck_assert_ptr_null(nettrace_get_header(d.nt));
	ck_assert_int_eq(decoder_feed(&d, s.data, s.len), 0);
	ck_assert_str_eq(decoder_text(&d), sample_text);
	ck_assert(nettrace_ended(d.nt));
	ck_assert(nettrace_at_boundary(d.nt));
	ck_assert_int_eq(nettrace_finish(d.nt), 0);
	ck_assert_uint_eq(nettrace_get_header(d.nt)->process_id, 4711);

	/* what follows the end tag is none of ours */
	ck_assert_int_eq(decoder_feed(&d, s.data, s.len), 0);
	ck_assert_str_eq(decoder_text(&d), sample_text);

	stats = decoder_stats(&d);
	ck_assert_uint_eq(stats->bytes, s.len);
	ck_assert_uint_eq(stats->blocks, 5);
	ck_assert_uint_eq(stats->unknown_blocks, 1);
	ck_assert_uint_eq(stats->events, 4);
	ck_assert_uint_eq(stats->lost, 3);
	ck_assert_uint_eq(stats->bad_blocks + stats->bad_metadata + stats->orphan_events, 0);
	ck_assert_uint_eq(stats->last_timestamp, 3000);
}
END_TEST

/* The same meaning, whatever the reads were. */
START_TEST(test_splits)
{
	_cleanup_buf_ struct buf s;
	size_t chunk, at;

	buf_init(&s, TEST_CAP);
	sample_stream(&s);
	for (chunk = 1; chunk < s.len; chunk += chunk < 40 ? 1 : 97) {
		_cleanup_decoder_ struct decoder d;

		decoder_init(&d);
		ck_assert_int_eq(decoder_feed_in(&d, s.data, s.len, chunk), 0);
		ck_assert_str_eq(decoder_text(&d), sample_text);
		ck_assert_uint_eq(decoder_stats(&d)->bytes, s.len);
	}
	for (at = 0; at <= s.len; at++) {
		_cleanup_decoder_ struct decoder d;

		decoder_init(&d);
		ck_assert_int_eq(decoder_feed(&d, s.data, at), 0);
		ck_assert_int_eq(decoder_feed(&d, s.data, 0), 0);
		ck_assert_int_eq(decoder_feed(&d, s.data + at, s.len - at), 0);
		ck_assert_str_eq(decoder_text(&d), sample_text);
	}
}
END_TEST

/* Cut at each byte: what was complete has been delivered, and the cut is told. */
START_TEST(test_cuts)
{
	_cleanup_buf_ struct buf s;
	size_t at, n_boundaries = 0;

	buf_init(&s, TEST_CAP);
	sample_stream(&s);
	for (at = 0; at < s.len; at++) {
		_cleanup_decoder_ struct decoder d;
		size_t n;

		decoder_init(&d);
		ck_assert_int_eq(decoder_feed(&d, s.data, at), 0);
		n = strlen(decoder_text(&d));
		ck_assert(!strncmp(decoder_text(&d), sample_text, n));
		ck_assert(!n || sample_text[n - 1] == '\n');
		ck_assert(!nettrace_ended(d.nt));
		if (nettrace_at_boundary(d.nt)) {
			n_boundaries++;
			ck_assert_int_eq(nettrace_finish(d.nt), 0);
		} else {
			ck_assert_int_eq(nettrace_finish(d.nt),
					 at < 8 ? NETTRACE_E_NOT_NETTRACE : NETTRACE_E_TRUNCATED);
		}
	}
	ck_assert_uint_eq(n_boundaries, 6); /* after each object */
}
END_TEST

/* Any one byte wrong: never a failure of our own, never more than the stream could hold. */
START_TEST(test_flips)
{
	static const uint8_t masks[] = { 0x01, 0x80, 0xff };
	_cleanup_buf_ struct buf s;
	size_t at, i;

	buf_init(&s, TEST_CAP);
	sample_stream(&s);
	for (at = 0; at < s.len; at++) {
		for (i = 0; i < ARRAY_SIZE(masks); i++) {
			_cleanup_decoder_ struct decoder whole, pieces;
			int r;

			s.data[at] ^= masks[i];
			decoder_init(&whole);
			decoder_init(&pieces);
			r = decoder_feed(&whole, s.data, s.len);
			ck_assert_int_ge(r, 0);
			ck_assert_int_eq(decoder_feed_in(&pieces, s.data, s.len, 5), r);
			ck_assert_str_eq(decoder_text(&pieces), decoder_text(&whole));
			if (r)
				ck_assert_int_eq(decoder_feed(&whole, s.data, s.len), r);
			ck_assert_uint_gt(strlen(nettrace_error_text(whole.nt, r)), 0);
			s.data[at] ^= masks[i];
		}
	}
}
END_TEST

/* -- Bytes as a runtime sent them -------------------------------------------------------- */

/*
 * Copied by hand from captures: a metadata blob with flag 0x02 (8.0), one
 * without and its short follower (3.1), events that leave out what has not changed.
 */
static const uint8_t golden_metadata[] = {
	20,
	0,
	1,
	0,
	0,
	0,
	0,
	0,
	0,
	0,
	0,
	0,
	0,
	0,
	0,
	0,
	0,
	0,
	0,
	0,
	/* 0xc6: capture, thread, sorted, payload size; the sequence delta is -1 */
	0xc6,
	0xff,
	0xff,
	0xff,
	0xff,
	0x0f,
	0,
	0xff,
	0xff,
	0xff,
	0xff,
	0x0f,
	0,
	0x05,
	28,
	/* id 1, "A", event 5, "", keywords 0x10, version 2 */
	1,
	0,
	0,
	0,
	'A',
	0,
	0,
	0,
	5,
	0,
	0,
	0,
	0,
	0,
	0x10,
	0,
	0,
	0,
	0,
	0,
	0,
	0,
	2,
	0,
	0,
	0,
	4,
	0,
	/* 0xc4, then 0x40: as 3.1 writes them */
	0xc4,
	0,
	0,
	26,
	2,
	0,
	0,
	0,
	0xac,
	0x20,
	0,
	0,
	6,
	0,
	0,
	0,
	0,
	0,
	0,
	0,
	0,
	0,
	0,
	0,
	0,
	0,
	0,
	0,
	0,
	0,
	0x40,
	0,
	3,
	0,
	0,
	0,
	0x3d,
	0xd8,
	0,
	0,
	7,
	0,
	0,
	0,
	0,
	0,
	0,
	0,
	0,
	0,
	0,
	0,
	0,
	0,
	9,
	0,
	0,
	0,
};

static const uint8_t golden_events[] = {
	24,
	0,
	1,
	0,
	1,
	2,
	3,
	4,
	5,
	6,
	7,
	8,
	9,
	10,
	11,
	12,
	13,
	14,
	15,
	16,
	17,
	18,
	19,
	20,
	/* id 1, sequence 0 + 1, thread 300, processor unknown; stack 1; t 128; 2 bytes */
	0xcf,
	1,
	0,
	0xac,
	2,
	0xff,
	0xff,
	0xff,
	0xff,
	0x0f,
	0xac,
	2,
	1,
	0x80,
	1,
	2,
	'x',
	'y',
	/* nothing new but the time */
	0x40,
	5,
	'z',
	'z',
	/* another id, both GUIDs, unsorted, no payload, time 33 back: -33 in 10 bytes */
	0xb1,
	2,
	0xdf,
	0xff,
	0xff,
	0xff,
	0xff,
	0xff,
	0xff,
	0xff,
	0xff,
	1,
	'g',
	'g',
	'g',
	'g',
	'g',
	'g',
	'g',
	'g',
	'g',
	'g',
	'g',
	'g',
	'g',
	'g',
	'g',
	'g',
	'h',
	'h',
	'h',
	'h',
	'h',
	'h',
	'h',
	'h',
	'h',
	'h',
	'h',
	'h',
	'h',
	'h',
	'h',
	'h',
	0,
	/* of another thread: its own sequence, by delta from the last one: 3 -> 1 is -3 + 1 */
	0x06,
	0xfd,
	0xff,
	0xff,
	0xff,
	0x0f,
	7,
	0,
	8,
	0,
};

START_TEST(test_golden)
{
	_cleanup_decoder_ struct decoder d;
	_cleanup_buf_ struct buf s;

	buf_init(&s, TEST_CAP);
	stream_begin(&s);
	stream_block_bytes(&s, "MetadataBlock", golden_metadata, sizeof(golden_metadata));
	stream_block_bytes(&s, "EventBlock", golden_events, sizeof(golden_events));
	decoder_init(&d);
	ck_assert_int_eq(decoder_feed(&d, s.data, s.len), 0);
	ck_assert_str_eq(decoder_text(&d),
			 HEADER_LINE "metadata 1 A/5/v2\n"
				     "metadata 2 \xe2\x82\xac/6/v0\n"
				     "metadata 3 \xef\xbf\xbd/7/v9\n"
				     "event 1 t 128 of 300 by 300 #1 sorted 2 bytes 00000f01\n"
				     "event 1 t 133 of 300 by 300 #2 sorted 2 bytes 00000f40\n"
				     "event 2 t 100 of 300 by 300 #3 0 bytes 00000000\n"
				     "event 2 t 100 of 8 by 7 #1 0 bytes 00000000\n");
	ck_assert_uint_eq(decoder_stats(&d)->bad_blocks, 0);
}
END_TEST

START_TEST(test_plain_blobs)
{
	_cleanup_decoder_ struct decoder d;
	_cleanup_buf_ struct buf s, block;
	struct buf cut;

	buf_init(&s, TEST_CAP);
	buf_init(&block, TEST_CAP);
	stream_begin(&s);
	block_begin(&block, true);
	block_metadata(&block, 1, "P", 1, 0);
	stream_block(&s, "MetadataBlock", &block);
	block_begin(&block, false);
	block_plain_event(&block, &(struct stream_event){ 1, 1, 9, 50, false, "abcde", 5 });
	block_plain_event(&block, &(struct stream_event){ 1, 2, 9, 40, true, "ab", 2 });
	stream_block(&s, "EventBlock", &block);
	/* the padding of the last blob may be missing, a byte of its payload not */
	cut = block;
	cut.len -= 2;
	stream_block(&s, "EventBlock", &cut);
	cut.len -= 1;
	stream_block(&s, "EventBlock", &cut);

	decoder_init(&d);
	ck_assert_int_eq(decoder_feed(&d, s.data, s.len), 0);
	ck_assert_uint_eq(decoder_stats(&d)->events, 5);
	ck_assert_uint_eq(decoder_stats(&d)->bad_blocks, 1);
	ck_assert_ptr_nonnull(strstr(decoder_text(&d),
				     "event 1 t 50 of 9 by 9 #1 sorted 5 bytes 0584f463\n"
				     "event 1 t 40 of 9 by 9 #2 2 bytes 00000c21\n"));
}
END_TEST

/* -- What is refused ------------------------------------------------------------------- */

#define BYTES(s) s, sizeof(s) - 1

static const struct {
	const char *bytes;
	size_t n;
	int error;
	const char *text;
} refused[] = {
	{ BYTES(""), NETTRACE_E_NOT_NETTRACE, "not a nettrace stream (empty)" },
	{ BYTES("GET"), NETTRACE_E_NOT_NETTRACE, "not a nettrace stream (starts with 47 45 54)" },
	{ BYTES("HTTP/1.1 400 Bad Request\r\n"), NETTRACE_E_NOT_NETTRACE,
	  "not a nettrace stream (starts with 48 54 54 50 2f 31 2e 31)" },
	{ BYTES("\x14\0\0\0!FastSerialization.1"), NETTRACE_E_FORMAT_V3,
	  "NetPerf stream (format V3), only nettrace V4 can be read" },
	{ BYTES("Nettrace\0\0\0\0\6\0\0\0\0\0\0\0"), NETTRACE_E_FORMAT_V6,
	  "nettrace stream of format V6, only V4 can be read" },
	{ BYTES("Nettrace\0\0\0\0\7\0\0\0\1\0\0\0"), NETTRACE_E_VERSION,
	  "nettrace stream of version 7/1, only V4 can be read" },
	{ BYTES("Nettrace\x15\0\0\0!FastSerialization.1"), NETTRACE_E_CORRUPT,
	  "corrupt stream before byte 12: no serializer name after the magic" },
	{ BYTES("Nettrace\x14\0\0\0!FastSerialization.2"), NETTRACE_E_CORRUPT,
	  "corrupt stream before byte 32: unknown serializer" },
	{ BYTES("Nettrace\x14\0\0\0!FastSerialization.1\5\5\1\5\0\0\0\5\0\0\0\5\0\0\0Trace\6"),
	  NETTRACE_E_VERSION, "nettrace stream of version 5/5, only V4 can be read" },
	{ BYTES("Nettrace\x14\0\0\0!FastSerialization.1\5\5\1\3\0\0\0\0\0\0\0\5\0\0\0Trace\6"),
	  NETTRACE_E_VERSION, "nettrace stream of version 3/0, only V4 can be read" },
	{ BYTES("Nettrace\x14\0\0\0!FastSerialization.1\5\5\1\2\0\0\0\2\0\0\0\7\0\0\0SPBlock\6"),
	  NETTRACE_E_CORRUPT, "corrupt stream before byte 55: no Trace object at the start" },
	{ BYTES("Nettrace\x14\0\0\0!FastSerialization.1\5\5\1\4\0\0\0\4\0\0\0\0\0\0\0"),
	  NETTRACE_E_CORRUPT,
	  "corrupt stream before byte 47: object type name of an impossible length" },
	{ BYTES("Nettrace\x14\0\0\0!FastSerialization.1\5\5\1\4\0\0\0\4\0\0\0\xff\xff\xff\xff"),
	  NETTRACE_E_CORRUPT,
	  "corrupt stream before byte 47: object type name of an impossible length" },
	{ BYTES("Nettrace\x14\0\0\0!FastSerialization.1\5\4\1\4\0\0\0\4\0\0\0\5\0\0\0Trace\6"),
	  NETTRACE_E_CORRUPT, "corrupt stream before byte 47: broken object type" },
	{ BYTES("Nettrace\x14\0\0\0!FastSerialization.1\2"), NETTRACE_E_CORRUPT,
	  "corrupt stream before byte 33: no object where one must begin" },
	{ BYTES("Nettrace\x14\0\0\0!FastSerialization.1\5"), NETTRACE_E_TRUNCATED,
	  "stream cut inside an object at byte 33" },
};

START_TEST(test_refused)
{
	_cleanup_decoder_ struct decoder d;
	int r;

	decoder_init(&d);
	r = decoder_feed(&d, (const uint8_t *)refused[_i].bytes, refused[_i].n);
	ck_assert_int_eq(nettrace_finish(d.nt), refused[_i].error);
	ck_assert(!r || r == refused[_i].error);
	ck_assert_str_eq(nettrace_error_text(d.nt, refused[_i].error), refused[_i].text);
	ck_assert_str_eq(decoder_text(&d), "");
	/* and it stays so */
	ck_assert_int_eq(decoder_feed(&d, (const uint8_t *)"\5\5\1", 3), r);
}
END_TEST

/* Framing that is lost after a good start: what came before it counts. */
static const struct {
	const char *bytes;
	size_t n;
	const char *reason;
} broken[] = {
	{ BYTES("\5\5\1\2\0\0\0\2\0\0\0\x0a\0\0\0EventBlock\6\xff\xff\xff\xff\0\0\0\0"),
	  "block of an impossible size" },
	{ BYTES("\5\5\1\2\0\0\0\2\0\0\0\x0a\0\0\0EventBlock\6\0\0\0\x7f\0\0\0\0"),
	  "block of an impossible size" },
	{ BYTES("\5\5\1\2\0\0\0\2\0\0\0\4\0\0\0What\6\1\0\0\x01\0\0\0\0"),
	  "block of an impossible size" },
	{ BYTES("\5\5\1\2\0\0\0\2\0\0\0\4\0\0\0What\7"), "unfinished object type" },
	{ BYTES("\5\5\1\2\0\0\0\2\0\0\0\4\0\0\0What\6\0\0\0\0\0\0\0\0\0\0\0\0"),
	  "unfinished object" },
	{ BYTES("\5\5\1\4\0\0\0\4\0\0\0\5\0\0\0Trace\6"), "second Trace object" },
	{ BYTES("HTTP"), "no object where one must begin" },
};

START_TEST(test_broken_framing)
{
	_cleanup_decoder_ struct decoder d;
	_cleanup_buf_ struct buf s;

	buf_init(&s, TEST_CAP);
	sample_stream(&s);
	s.len--;
	buf_append(&s, broken[_i].bytes, broken[_i].n);
	decoder_init(&d);
	ck_assert_int_eq(decoder_feed_in(&d, s.data, s.len, 64), NETTRACE_E_CORRUPT);
	ck_assert_str_eq(decoder_text(&d), sample_text);
	ck_assert_ptr_nonnull(
		strstr(nettrace_error_text(d.nt, NETTRACE_E_CORRUPT), broken[_i].reason));
	ck_assert_int_eq(nettrace_finish(d.nt), NETTRACE_E_CORRUPT);
}
END_TEST

START_TEST(test_clock_without_frequency)
{
	_cleanup_decoder_ struct decoder d;
	_cleanup_buf_ struct buf s;

	buf_init(&s, TEST_CAP);
	stream_begin(&s);
	memset(s.data + 32 + 21 + 24, 0, 8);
	decoder_init(&d);
	ck_assert_int_eq(decoder_feed(&d, s.data, s.len), NETTRACE_E_CORRUPT);
	ck_assert_str_eq(decoder_text(&d), "");
	ck_assert_ptr_null(nettrace_get_header(d.nt));
}
END_TEST

/* -- Corrupt contents --------------------------------------------------------------------- */

/* Ends of an event block that cannot be read; what is before them is delivered. */
static const struct {
	const char *bytes;
	size_t n;
	bool always; /* also with more bytes behind them */
} bad_tails[] = {
	{ BYTES("\x80\1\5abcd"), false },                /* payload longer than the block */
	{ BYTES("\x80\1\xff\xff\xff\xff\x0f"), true },   /* the same, 4 GiB */
	{ BYTES("\x80\1\xff\xff\xff\xff\xff\1"), true }, /* integer too long */
	{ BYTES("\1\x80\x80\x80\x80\x80\0\0"), true },   /* the same */
	{ BYTES("\0\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\0"), true },
	{ BYTES("\0"), false },                                    /* no timestamp */
	{ BYTES("\0\x80"), false },                                /* half a timestamp */
	{ BYTES("\x30\1ggggggggggggggggrrrrrrrrrrrrrrr"), false }, /* GUID cut short */
	{ BYTES("\2\1\x80"), false },
};

/* Near the end of a block headers are read another way than far from it: bytes may follow. */
static void check_bad_tail(const char *bytes, size_t n, size_t n_following)
{
	_cleanup_decoder_ struct decoder d;
	_cleanup_buf_ struct buf s, block;
	struct stream_last last = { 0 };

	buf_init(&s, TEST_CAP);
	buf_init(&block, TEST_CAP);
	stream_begin(&s);
	block_begin(&block, true);
	block_metadata(&block, 1, "P", 1, 0);
	stream_block(&s, "MetadataBlock", &block);
	block_begin(&block, true);
	block_event(&block, &last, &(struct stream_event){ 1, 1, 9, 50, false, "abc", 3 });
	buf_append(&block, bytes, n);
	while (n_following--)
		buf_put_u8(&block, 0xff);
	stream_block(&s, "EventBlock", &block);
	last = (struct stream_last){ 0 };
	block_begin(&block, true);
	block_event(&block, &last, &(struct stream_event){ 1, 2, 9, 60, false, "abc", 3 });
	stream_block(&s, "EventBlock", &block);
	stream_end(&s);

	decoder_init(&d);
	ck_assert_int_eq(decoder_feed(&d, s.data, s.len), 0);
	ck_assert_str_eq(decoder_text(&d),
			 HEADER_LINE "metadata 1 P/1/v0\n"
				     "event 1 t 50 of 9 by 9 #1 sorted 3 bytes 00017862\n"
				     "event 1 t 60 of 9 by 9 #2 sorted 3 bytes 00017862\n");
	ck_assert_uint_eq(decoder_stats(&d)->bad_blocks, 1);
	ck_assert(nettrace_ended(d.nt));
}

START_TEST(test_bad_tail)
{
	check_bad_tail(bad_tails[_i].bytes, bad_tails[_i].n, 0);
	if (bad_tails[_i].always)
		check_bad_tail(bad_tails[_i].bytes, bad_tails[_i].n, 200);
}
END_TEST

static const struct {
	const char *type;
	const char *bytes;
	size_t n;
	bool bad;
} small_blocks[] = {
	{ "EventBlock", BYTES(""), true },
	{ "EventBlock", BYTES("\x14\0\1"), true },
	{ "EventBlock", BYTES("\x14\0\1\0-------------1"), true },      /* header cut */
	{ "EventBlock", BYTES("\x14\0\1\0--------||||||||"), false },   /* no event */
	{ "EventBlock", BYTES("\x16\0\1\0--------||||||||.."), false }, /* longer header */
	{ "EventBlock", BYTES("\x16\0\1\0--------||||||||"), true },    /* longer than the block */
	{ "EventBlock", BYTES("\0\0\1\0--------||||||||"), true },
	{ "EventBlock", BYTES("\x04\0\1\0--------||||||||"), true },
	{ "MetadataBlock", BYTES("\x14\0"), true },
	{ "SPBlock", BYTES(""), true },
	{ "SPBlock", BYTES("tttttttt\0\0\0\0"), false },
	{ "SPBlock", BYTES("tttttttt\1\0\0\0iiiiiiiisss"), true },
	{ "SPBlock", BYTES("tttttttt\xff\xff\xff\xffiiiiiiiissss"), true },
	{ "StackBlock", BYTES(""), false },
	{ "NoBlock", BYTES(""), false },
};

START_TEST(test_small_blocks)
{
	_cleanup_decoder_ struct decoder d;
	_cleanup_buf_ struct buf s;

	buf_init(&s, TEST_CAP);
	stream_begin(&s);
	stream_block_bytes(&s, small_blocks[_i].type, small_blocks[_i].bytes, small_blocks[_i].n);
	stream_end(&s);
	decoder_init(&d);
	ck_assert_int_eq(decoder_feed_in(&d, s.data, s.len, 3), 0);
	ck_assert(nettrace_ended(d.nt));
	ck_assert_uint_eq(decoder_stats(&d)->blocks, 1);
	ck_assert_uint_eq(decoder_stats(&d)->bad_blocks, small_blocks[_i].bad);
}
END_TEST

START_TEST(test_large_events)
{
	const size_t size = 200000;
	_cleanup_free_ uint8_t *payload = malloc(size);
	_cleanup_decoder_ struct decoder d, pieces;
	_cleanup_buf_ struct buf s, block;
	struct stream_last last = { 0 };

	memset(payload, 'p', size);
	buf_init(&s, TEST_CAP);
	buf_init(&block, TEST_CAP);
	stream_begin(&s);
	block_begin(&block, true);
	block_metadata(&block, 1, "P", 1, 0);
	stream_block(&s, "MetadataBlock", &block);
	block_begin(&block, true);
	block_event(&block, &last, &(struct stream_event){ 1, 1, 9, 50, false, payload, size });
	block_event(&block, &last, &(struct stream_event){ 1, 2, 9, 51, false, payload, 70000 });
	stream_block(&s, "EventBlock", &block);
	/* a skipped block is not kept: this one is as large as a block may be */
	block.len = 0;
	while (block.len + size <= CAP_BLOCK_BYTES)
		buf_append(&block, payload, size);
	stream_block(&s, "UnknownBlock", &block);
	stream_end(&s);

	decoder_init(&d);
	decoder_init(&pieces);
	ck_assert_int_eq(decoder_feed(&d, s.data, s.len), 0);
	ck_assert_int_eq(decoder_feed_in(&pieces, s.data, s.len, 4099), 0);
	ck_assert_str_eq(decoder_text(&d), decoder_text(&pieces));
	ck_assert_uint_eq(decoder_stats(&d)->events, 2);
	ck_assert_uint_eq(decoder_stats(&d)->unknown_blocks, 1);
	ck_assert(nettrace_ended(d.nt) && nettrace_ended(pieces.nt));
}
END_TEST

/* -- Metadata ---------------------------------------------------------------------------- */

START_TEST(test_metadata)
{
	_cleanup_decoder_ struct decoder d;
	_cleanup_buf_ struct buf s, block;
	struct stream_last last = { 0 };
	char name[CAP_PROVIDER_NAME + 2];

	memset(name, 'n', sizeof(name) - 1);
	name[sizeof(name) - 1] = '\0';
	buf_init(&s, TEST_CAP);
	buf_init(&block, TEST_CAP);
	stream_begin(&s);
	block_begin(&block, true);
	block_metadata(&block, 0, "zero", 1, 0);
	block_metadata(&block, CAP_METADATA_IDS, "last", 1, 0);
	block_metadata(&block, CAP_METADATA_IDS + 1, "beyond", 1, 0);
	block_metadata(&block, 0xffffffff, "far beyond", 1, 0);
	block_metadata(&block, 7, name, 1, 0);     /* too long by one */
	block_metadata(&block, 8, name + 1, 1, 0); /* just not too long */
	block_metadata(&block, 9, "first", 1, 0);
	block_metadata(&block, 9, "second", 2, 0);
	block_metadata(&block, 10, "", 3, 0);
	buf_append(&block, "\xc4\0\0\x06\1\0\0\0A\0", 10); /* record cut short */
	stream_block(&s, "MetadataBlock", &block);
	block_begin(&block, true);
	block_event(&block, &last, &(struct stream_event){ 9, 1, 9, 50, false, "", 0 });
	block_event(&block, &last, &(struct stream_event){ 11, 2, 9, 50, false, "", 0 });
	block_event(&block, &last, &(struct stream_event){ 0xffffffff, 3, 9, 5, false, "", 0 });
	block_event(&block, &last, &(struct stream_event){ 0, 3, 9, 5, false, "", 0 });
	block_event(&block, &last, &(struct stream_event){ 9, 4, 9, 50, false, "", 0 });
	stream_block(&s, "EventBlock", &block);

	decoder_init(&d);
	ck_assert_int_eq(decoder_feed(&d, s.data, s.len), 0);
	ck_assert_uint_eq(decoder_stats(&d)->bad_metadata, 6);
	ck_assert_uint_eq(decoder_stats(&d)->orphan_events, 3);
	ck_assert_uint_eq(decoder_stats(&d)->events, 2);
	ck_assert_uint_eq(decoder_stats(&d)->lost, 0);
	ck_assert_ptr_nonnull(strstr(decoder_text(&d), "metadata 9 first/1/v0\n"));
	ck_assert_ptr_nonnull(strstr(decoder_text(&d), "metadata 10 /3/v0\n"));
}
END_TEST

/* -- Lost events --------------------------------------------------------------------------- */

/* Steps: events 1 to 999,999 a thread; points and threads marked. */
enum step_kind { STEP_STOP, STEP_EVENT, STEP_POINT, STEP_ABSENT };

struct step {
	enum step_kind kind;
	uint64_t thread;
	uint32_t sequence;
};

#define E(thread, sequence) \
	{ \
		STEP_EVENT, thread, sequence \
	}
#define P(thread, sequence) \
	{ \
		STEP_POINT, thread, sequence \
	} /* a point of this thread only */
#define NOBODY \
	{ \
		STEP_ABSENT, 0, 0 \
	} /* a point without a thread */

static const struct {
	const char *what;
	struct step steps[8];
	uint64_t lost;
} losses[] = {
	{ "none", { E(1, 1), E(1, 2), E(2, 1), E(1, 3), E(2, 2), P(1, 3) }, 0 },
	{ "before the first", { E(1, 4) }, 3 },
	{ "a jump", { E(1, 1), E(1, 5), E(1, 6) }, 3 },
	{ "a jump in each", { E(1, 1), E(2, 1), E(1, 3), E(2, 11) }, 10 },
	{ "at the end", { E(1, 1), P(1, 11) }, 10 },
	{ "all of a thread", { E(1, 1), P(2, 7) }, 7 },
	{ "not twice: point, then event", { E(1, 1), P(1, 5), E(1, 6) }, 4 },
	{ "not twice: two points", { E(1, 1), P(1, 5), P(1, 5), P(1, 5) }, 4 },
	{ "before and after a point", { E(1, 1), P(1, 5), E(1, 8) }, 6 },
	{ "a point behind", { E(1, 1), E(1, 2), E(1, 3), P(1, 2), E(1, 4) }, 0 },
	{ "wrap around",
	  { E(1, 1), P(1, 0x7fffffff), P(1, 0xfffffffe), E(1, 0xffffffff), E(1, 0), E(1, 1),
	    E(1, 3), P(1, 4) },
	  0xfffffffd + 2 },
	{ "recycled id", { E(1, 1), E(1, 2), E(1, 3), E(1, 1), E(1, 2) }, 0 },
	{ "recycled id, first lost", { E(1, 1), E(1, 2), E(1, 3), E(1, 2) }, 1 },
	{ "recycled id, both in a point", { E(1, 1), E(1, 2), E(1, 3), E(1, 1), P(1, 3) }, 0 },
	{ "recycled id, lost at the end", { E(1, 1), E(1, 2), E(1, 1), P(1, 4) }, 3 },
	{ "forgotten thread starts anew", { E(1, 1), E(1, 2), NOBODY, NOBODY, E(1, 1) }, 0 },
	{ "seen since: not forgotten", { E(1, 1), NOBODY, E(1, 2), NOBODY, E(1, 3) }, 0 },
	{ "listed: not forgotten", { E(1, 1), P(1, 1), P(1, 1), P(1, 1), E(1, 2) }, 0 },
	{ "absent once: not forgotten", { E(1, 1), NOBODY, E(1, 3) }, 1 },
};

START_TEST(test_lost)
{
	_cleanup_decoder_ struct decoder d;
	_cleanup_buf_ struct buf s, block;
	const struct step *step = losses[_i].steps;
	uint64_t n_events = 0;

	buf_init(&s, TEST_CAP);
	buf_init(&block, TEST_CAP);
	stream_begin(&s);
	block_begin(&block, true);
	block_metadata(&block, 1, "P", 1, 0);
	stream_block(&s, "MetadataBlock", &block);
	for (; step < losses[_i].steps + 8 && step->kind != STEP_STOP; step++) {
		struct stream_last last = { 0 };

		if (step->kind == STEP_EVENT) {
			block_begin(&block, true);
			block_event(&block, &last,
				    &(struct stream_event){ 1, step->sequence, step->thread, 50,
							    false, "", 0 });
			stream_block(&s, "EventBlock", &block);
			n_events++;
		} else {
			block_point(&block, 60, step->kind == STEP_POINT);
			if (step->kind == STEP_POINT)
				block_point_thread(&block, step->thread, step->sequence);
			stream_block(&s, "SPBlock", &block);
		}
	}
	decoder_init(&d);
	ck_assert_int_eq(decoder_feed(&d, s.data, s.len), 0);
	ck_assert_uint_eq(decoder_stats(&d)->events, n_events);
	ck_assert_msg(decoder_stats(&d)->lost == losses[_i].lost, "%s: %" PRIu64 " lost",
		      losses[_i].what, decoder_stats(&d)->lost);
}
END_TEST

static void add_threads(struct buf *block, uint64_t first, uint32_t n, uint32_t sequence)
{
	struct stream_last last = { 0 };
	uint32_t i;

	block_begin(block, true);
	for (i = 0; i < n; i++)
		block_event(block, &last,
			    &(struct stream_event){ 1, sequence, first + i, 5, false, "", 0 });
}

/* Threads come and go: none that lives is forgotten, none that is gone is kept. */
START_TEST(test_thread_table)
{
	static const struct nettrace_callbacks callbacks;
	_cleanup_(nettrace_freep) struct nettrace *nt = NULL;
	_cleanup_buf_ struct buf s, block;
	uint32_t i;

	buf_init(&s, TEST_CAP);
	buf_init(&block, TEST_CAP);
	stream_begin(&s);
	block_begin(&block, true);
	block_metadata(&block, 1, "P", 1, 0);
	stream_block(&s, "MetadataBlock", &block);
	/* eight generations of 20,000 threads, and 1000 that outlive them */
	for (i = 1; i <= 8; i++) {
		add_threads(&block, i * 100000, 20000, 1);
		stream_block(&s, "EventBlock", &block);
		add_threads(&block, 1, 1000, i);
		stream_block(&s, "EventBlock", &block);
		block_point(&block, 60, 0);
		stream_block(&s, "SPBlock", &block);
	}
	ck_assert_int_eq(nettrace_new(&nt, &callbacks, NULL), 0);
	ck_assert_int_eq(nettrace_feed(nt, s.data, s.len), 0);
	ck_assert_uint_eq(nettrace_get_stats(nt)->events, 8 * 21000);
	ck_assert_uint_eq(nettrace_get_stats(nt)->lost, 0);
	ck_assert_uint_eq(nettrace_get_stats(nt)->untracked, 0);
}
END_TEST

/* More threads at once than there is room for: their events still come. */
START_TEST(test_thread_cap)
{
	static const struct nettrace_callbacks callbacks;
	_cleanup_(nettrace_freep) struct nettrace *nt = NULL;
	_cleanup_buf_ struct buf s, block;
	uint32_t i;

	buf_init(&s, TEST_CAP);
	buf_init(&block, TEST_CAP);
	stream_begin(&s);
	block_begin(&block, true);
	block_metadata(&block, 1, "P", 1, 0);
	stream_block(&s, "MetadataBlock", &block);
	add_threads(&block, 1, CAP_THREADS + 10, 1);
	stream_block(&s, "EventBlock", &block);
	add_threads(&block, 1, CAP_THREADS, 3); /* one lost in each */
	stream_block(&s, "EventBlock", &block);
	for (i = 0; i < 2; i++) { /* all gone */
		block_point(&block, 60, 0);
		stream_block(&s, "SPBlock", &block);
	}
	add_threads(&block, UINT64_C(1) << 40, 100, 2); /* and one lost in each of these */
	stream_block(&s, "EventBlock", &block);

	ck_assert_int_eq(nettrace_new(&nt, &callbacks, NULL), 0);
	ck_assert_int_eq(nettrace_feed(nt, s.data, s.len), 0);
	ck_assert_uint_eq(nettrace_get_stats(nt)->events, 2 * CAP_THREADS + 110);
	ck_assert_uint_eq(nettrace_get_stats(nt)->untracked, 10);
	ck_assert_uint_eq(nettrace_get_stats(nt)->lost, CAP_THREADS + 100);
}
END_TEST

/* -- Callbacks --------------------------------------------------------------------------- */

START_TEST(test_callback_fails)
{
	_cleanup_buf_ struct buf s;
	int n_lines = 0, i;
	const char *p;

	for (p = sample_text; *p; p++)
		n_lines += *p == '\n';
	buf_init(&s, TEST_CAP);
	sample_stream(&s);
	for (i = 1; i <= n_lines; i++) {
		_cleanup_decoder_ struct decoder d;
		size_t n;

		decoder_init(&d);
		d.log.fail_at = i;
		ck_assert_int_eq(decoder_feed(&d, s.data, s.len), -ECANCELED);
		n = strlen(decoder_text(&d));
		ck_assert_int_eq(decoder_feed(&d, s.data, s.len), -ECANCELED);
		ck_assert_int_eq(nettrace_finish(d.nt), -ECANCELED);
		ck_assert_uint_eq(strlen(decoder_text(&d)), n);
		ck_assert(!strncmp(decoder_text(&d), sample_text, n));
	}
}
END_TEST

START_TEST(test_no_callbacks)
{
	static const struct nettrace_callbacks callbacks;
	_cleanup_(nettrace_freep) struct nettrace *nt = NULL;
	_cleanup_buf_ struct buf s;

	buf_init(&s, TEST_CAP);
	sample_stream(&s);
	ck_assert_int_eq(nettrace_new(&nt, &callbacks, NULL), 0);
	ck_assert_int_eq(nettrace_feed(nt, s.data, s.len), 0);
	ck_assert_uint_eq(nettrace_get_stats(nt)->events, 4);
	ck_assert_uint_eq(nettrace_get_stats(nt)->lost, 3);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("nettrace");
	TCase *tc = tcase_create("nettrace");
	SRunner *runner;
	int n_failed;

	tcase_add_test(tc, test_sample);
	tcase_add_test(tc, test_splits);
	tcase_add_test(tc, test_cuts);
	tcase_add_test(tc, test_flips);
	tcase_add_test(tc, test_golden);
	tcase_add_test(tc, test_plain_blobs);
	tcase_add_loop_test(tc, test_refused, 0, ARRAY_SIZE(refused));
	tcase_add_loop_test(tc, test_broken_framing, 0, ARRAY_SIZE(broken));
	tcase_add_test(tc, test_clock_without_frequency);
	tcase_add_loop_test(tc, test_bad_tail, 0, ARRAY_SIZE(bad_tails));
	tcase_add_loop_test(tc, test_small_blocks, 0, ARRAY_SIZE(small_blocks));
	tcase_add_test(tc, test_large_events);
	tcase_add_test(tc, test_metadata);
	tcase_add_loop_test(tc, test_lost, 0, ARRAY_SIZE(losses));
	tcase_add_test(tc, test_thread_table);
	tcase_add_test(tc, test_thread_cap);
	tcase_add_test(tc, test_callback_fails);
	tcase_add_test(tc, test_no_callbacks);
	tcase_set_timeout(tc, 120);
	suite_add_tcase(suite, tc);

	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	n_failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return n_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
