/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each allocation of decoding a stream fails in turn, once with the stream in one piece and
 * once in small ones: the answer is -ENOMEM and stays so, and nothing leaks (the
 * sanitizer build tells). What was delivered before is a beginning of what the stream holds.
 */
#include <errno.h>
#include <stdio.h>

#include "base/caps.h"
#include "clr/clr.h"
#include "nettrace/nettrace.h"
#include "tests/unit/stream.h"

/* Enough to make every table grow more than once. */
#define N_METADATA 200
#define N_THREADS  300

void torture_arm(unsigned long n);
unsigned long torture_count(void);

struct run {
	struct clr_decoder decoder;
	unsigned long n_events;
};

static void check(bool good, const char *what, unsigned long n)
{
	if (good)
		return;
	fprintf(stderr, "torture_decode: allocation %lu: %s\n", n, what);
	exit(EXIT_FAILURE);
}

static void make_stream(struct buf *s)
{
	_cleanup_buf_ struct buf block, payload;
	struct stream_last last = { 0 };
	uint32_t i;

	buf_init(&block, CAP_BLOCK_BYTES);
	buf_init(&payload, CAP_BLOCK_BYTES);
	stream_begin(s);
	block_begin(&block, true);
	for (i = 1; i <= N_METADATA; i++)
		block_metadata(&block, i, STREAM_RUNTIME, 143, 1);
	stream_block(s, "MetadataBlock", &block);

	block_begin(&block, true);
	for (i = 1; i <= N_THREADS; i++) {
		uint32_t k;

		buf_clear(&payload);
		for (k = 0; k < 36; k++)
			buf_put_u8(&payload, (uint8_t)k);
		for (k = 0; k < i; k++)
			buf_put_u16(&payload, 'n');
		for (k = 0; k < 4; k++)
			buf_put_u16(&payload, 0);
		block_event(&block, &last,
			    &(struct stream_event){ 1 + i % N_METADATA, 1, i, 50, false,
						    payload.data, payload.len });
	}
	stream_block(s, "EventBlock", &block);
	block_point(&block, 60, 1);
	block_point_thread(&block, N_THREADS + 1, 1);
	stream_block(s, "SPBlock", &block);
	stream_end(s);
	check(!s->error && !block.error && !payload.error, "cannot make the stream", 0);
}

static int on_metadata(void *data, struct nettrace_metadata *metadata)
{
	(void)data;
	metadata->user = clr_layout_find(metadata->provider, metadata->event_id);
	return 0;
}

static int on_event(void *data, const struct nettrace_event *e)
{
	struct run *run = data;
	struct clr_event event;
	int r;

	r = clr_decode(&run->decoder, e->metadata->user, e->metadata->version, e->payload,
		       e->payload_size, &event);
	if (r)
		return r;
	check(event.method.ns.len == ++run->n_events, "wrong event", 0);
	return 0;
}

static int decode(const struct buf *s, size_t chunk, unsigned long n)
{
	static const struct nettrace_callbacks callbacks = {
		.metadata = on_metadata,
		.event = on_event,
	};
	_cleanup_(nettrace_freep) struct nettrace *nt = NULL;
	struct run run = { 0 };
	size_t done;
	int r;

	clr_decoder_init(&run.decoder);
	r = nettrace_new(&nt, &callbacks, &run);
	check(!r == !!nt, "half a decoder", n);
	for (done = 0; !r && done < s->len; done += chunk)
		r = nettrace_feed(nt, s->data + done, MIN(chunk, s->len - done));
	if (nt) {
		check(nettrace_feed(nt, s->data, s->len) == r, "the failure is forgotten", n);
		check(nettrace_finish(nt) == r, "the failure is forgotten at the end", n);
	}
	if (!r) {
		check(nettrace_ended(nt), "not to the end", n);
		check(run.n_events == N_THREADS, "events missing", n);
		check(nettrace_get_stats(nt)->lost == 1, "loss missing", n);
	}
	clr_decoder_deinit(&run.decoder);
	return r;
}

/* A decoder that ran out of memory for one event can do the next. */
static void decode_after_failure(void)
{
	static const uint8_t payload[38 + 6];
	struct clr_decoder decoder;
	struct clr_event event;
	int r;

	clr_decoder_init(&decoder);
	torture_arm(1);
	r = clr_decode(&decoder, clr_layout_find(CLR_PROVIDER_RUNTIME, 143), 1, payload,
		       sizeof(payload), &event);
	check(r == -ENOMEM, "not -ENOMEM from clr_decode()", 1);
	r = clr_decode(&decoder, clr_layout_find(CLR_PROVIDER_RUNTIME, 143), 1, payload,
		       sizeof(payload), &event);
	check(!r, "the decoder remembers", 1);
	torture_arm(0);
	clr_decoder_deinit(&decoder);
}

int main(void)
{
	static const size_t chunks[] = { SIZE_MAX / 2, 100 };
	_cleanup_buf_ struct buf s;
	unsigned long total = 0, n_allocations, n;
	size_t i;

	buf_init(&s, CAP_BLOCK_BYTES);
	make_stream(&s);
	for (i = 0; i < ARRAY_SIZE(chunks); i++) {
		torture_arm(0);
		check(!decode(&s, chunks[i], 0), "does not decode at all", 0);
		n_allocations = torture_count();
		check(n_allocations > N_METADATA, "the shim counts nothing", 0);
		for (n = 1; n <= n_allocations; n++) {
			torture_arm(n);
			check(decode(&s, chunks[i], n) == -ENOMEM, "not -ENOMEM", n);
		}
		torture_arm(0);
		total += n_allocations;
	}
	decode_after_failure();
	printf("torture_decode: %lu allocations failed in turn\n", total + 1);
	return EXIT_SUCCESS;
}
