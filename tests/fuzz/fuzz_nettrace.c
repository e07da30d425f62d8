/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stream from a hostile runtime, its events decoded.
 *
 * Held besides memory safety: the bytes cause no failure of our own; and it makes no difference
 * in which pieces they come. Inputs are plain streams (so captures are seeds); the sizes
 * of the pieces follow from the input.
 */
#include <string.h>

#include "base/hash.h"
#include "clr/clr.h"
#include "nettrace/nettrace.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct run {
	struct clr_decoder decoder;
	uint64_t digest; /* of all that was delivered */
	uint64_t n_lost;
};

static void check(bool good)
{
	if (!good)
		abort();
}

static void run_digest(struct run *run, const void *data, size_t n)
{
	run->digest = hash_bytes(run->digest, data, n);
}

static void run_digest_u64(struct run *run, uint64_t v)
{
	run_digest(run, &v, sizeof(v));
}

static void run_digest_string(struct run *run, const struct clr_string *s)
{
	check(strlen(s->s) == s->len);
	run_digest(run, s->s, s->len);
}

static int on_header(void *data, const struct nettrace_header *h)
{
	check(h->qpc_frequency);
	run_digest(data, h, sizeof(*h));
	return 0;
}

static int on_metadata(void *data, struct nettrace_metadata *m)
{
	run_digest(data, m->provider, strlen(m->provider));
	run_digest_u64(data, (uint64_t)m->id << 32 | m->event_id);
	m->user = clr_layout_find(m->provider, m->event_id);
	return 0;
}

static int on_event(void *data, const struct nettrace_event *e)
{
	struct run *run = data;
	struct clr_event event;
	int r;

	run_digest_u64(run, e->timestamp);
	run_digest_u64(run, e->thread_id);
	run_digest_u64(run, e->capture_thread);
	run_digest_u64(run, (uint64_t)e->sequence << 1 | e->sorted);
	run_digest(run, e->payload, e->payload_size);

	r = clr_decode(&run->decoder, e->metadata->user, e->metadata->version, e->payload,
		       e->payload_size, &event);
	check(r >= 0);
	check((r == CLR_E_UNKNOWN) == !e->metadata->user);
	if (r)
		return 0;
	switch (event.kind) {
	case CLR_METHOD_LOAD:
	case CLR_METHOD_UNLOAD:
	case CLR_METHOD_RUNDOWN:
		run_digest_string(run, &event.method.ns);
		run_digest_string(run, &event.method.name);
		run_digest_string(run, &event.method.sig);
		break;
	case CLR_IL_MAP:
		run_digest(run, event.il_map.il_offsets, 4 * (size_t)event.il_map.n);
		run_digest(run, event.il_map.native_offsets, 4 * (size_t)event.il_map.n);
		break;
	default: break;
	}
	return 0;
}

static int on_lost(void *data, uint64_t n, uint64_t from, uint64_t to)
{
	struct run *run = data;

	check(n);
	run->n_lost += n;
	run_digest_u64(run, from ^ to);
	return 0;
}

static int on_point(void *data, uint64_t timestamp)
{
	run_digest_u64(data, timestamp);
	return 0;
}

static int decode(struct run *run, struct nettrace_stats *stats, const uint8_t *data, size_t size,
		  uint32_t seed)
{
	static const struct nettrace_callbacks callbacks = {
		.header = on_header,
		.metadata = on_metadata,
		.event = on_event,
		.lost = on_lost,
		.sequence_point = on_point,
	};
	_cleanup_(nettrace_freep) struct nettrace *nt = NULL;
	size_t done = 0, n;
	int r;

	*run = (struct run){ 0 };
	clr_decoder_init(&run->decoder);
	check(!nettrace_new(&nt, &callbacks, run));
	do {
		n = size - done;
		if (seed) {
			seed = seed * 1103515245 + 12345;
			n = MIN(n, 1 + (seed >> 16) % (seed % 7 ? 16u : 4096u));
		}
		r = nettrace_feed(nt, data + done, n);
		check(r >= 0);
		done += n;
	} while (!r && done < size);
	r = nettrace_finish(nt);
	check(r >= 0);
	check(*nettrace_error_text(nt, r));
	*stats = *nettrace_get_stats(nt);
	check(stats->bytes <= size);
	check(stats->lost == run->n_lost);
	clr_decoder_deinit(&run->decoder);
	return r;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct nettrace_stats whole_stats, pieces_stats;
	struct run whole, pieces;
	uint32_t seed = 1 + (uint32_t)hash_bytes(1, data, size);

	check(decode(&whole, &whole_stats, data, size, 0) ==
	      decode(&pieces, &pieces_stats, data, size, seed ? seed : 1));
	check(whole.digest == pieces.digest);
	check(!memcmp(&whole_stats, &pieces_stats, sizeof(whole_stats)));
	return 0;
}
