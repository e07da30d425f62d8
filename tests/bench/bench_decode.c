/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How fast a stream becomes structs: bench_decode FILE [rounds]
 *
 * Each round decodes the whole file from memory, fed in reads of the size that the daemon uses,
 * every payload to its struct and every string to UTF-8; and copies the same bytes with
 * memcpy() as the reference; and makes a code map of them, as an attach without line numbers does.
 * The three alternate, so that all see the same machine.
 */
#include <inttypes.h>
#include <string.h>
#include <time.h>

#include "base/caps.h"
#include "base/util.h"
#include "clr/clr.h"
#include "nettrace/nettrace.h"
#include "target/feed.h"

#define DEFAULT_ROUNDS 21

struct run {
	struct clr_decoder decoder;
	uint64_t events;
	uint64_t methods;
	uint64_t text_bytes;
	uint64_t failed;
	uint64_t checksum; /* of what was decoded, so that nothing is left out */
};

static double now_s(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static void run_add(struct run *run, uint64_t v)
{
	run->checksum = (run->checksum ^ v) * 0x9e3779b97f4a7c15u;
}

static void run_add_string(struct run *run, const struct clr_string *s)
{
	run->text_bytes += s->len;
	run_add(run, s->len + ((uint64_t)(uint8_t)s->s[s->len / 2] << 32));
}

static int on_metadata(void *data UNUSED, struct nettrace_metadata *metadata)
{
	metadata->user = clr_layout_find(metadata->provider, metadata->event_id);
	return 0;
}

static int on_event(void *data, const struct nettrace_event *e)
{
	struct run *run = data;
	struct clr_event event;
	int r;

	run->events++;
	r = clr_decode(&run->decoder, e->metadata->user, e->metadata->version, e->payload,
		       e->payload_size, &event);
	if (r) {
		run->failed++;
		return r < 0 ? r : 0;
	}
	switch (event.kind) {
	case CLR_METHOD_LOAD:
	case CLR_METHOD_UNLOAD:
	case CLR_METHOD_RUNDOWN:
		run->methods++;
		run_add(run, event.method.start + event.method.version);
		run_add_string(run, &event.method.ns);
		run_add_string(run, &event.method.name);
		run_add_string(run, &event.method.sig);
		break;
	case CLR_IL_MAP: run_add(run, event.il_map.method_id + event.il_map.n); break;
	default: run_add(run, event.id); break;
	}
	return 0;
}

static int decode(const uint8_t *bytes, size_t size, struct run *run)
{
	static const struct nettrace_callbacks callbacks = {
		.metadata = on_metadata,
		.event = on_event,
	};
	_cleanup_(nettrace_freep) struct nettrace *nt = NULL;
	size_t done = 0;
	int r;

	r = nettrace_new(&nt, &callbacks, run);
	while (!r && done < size) {
		size_t n = MIN(size - done, READ_CHUNK);

		r = nettrace_feed(nt, bytes + done, n);
		done += n;
	}
	if (!r)
		r = nettrace_finish(nt);
	if (r)
		fprintf(stderr, "bench_decode: %s\n",
			nt ? nettrace_error_text(nt, r) : "no memory");
	return r;
}

static int make_map(const uint8_t *bytes, size_t size, struct codemap_stats *stats)
{
	struct codemap_options map_opts = { .no_il_maps = true };
	_cleanup_(codemap_freep) struct codemap *map = NULL;
	_cleanup_(feed_freep) struct feed *feed = NULL;
	struct feed_options opts = { 0 };
	size_t done = 0;
	int r;

	r = codemap_new(&map, &map_opts);
	if (!r)
		r = feed_new(&feed, map, &opts);
	while (!r && done < size) {
		size_t n = MIN(size - done, READ_CHUNK);

		r = feed_bytes(feed, bytes + done, n, 0);
		done += n;
	}
	if (!r)
		codemap_get_stats(map, stats);
	return r;
}

static uint8_t *load(const char *path, size_t *sizep)
{
	_cleanup_fclose_ FILE *f = fopen(path, "rb");
	_cleanup_free_ uint8_t *bytes = NULL;
	long size;

	if (!f || fseek(f, 0, SEEK_END) || (size = ftell(f)) <= 0 || fseek(f, 0, SEEK_SET))
		return NULL;
	bytes = malloc((size_t)size);
	if (!bytes || fread(bytes, 1, (size_t)size, f) != (size_t)size)
		return NULL;
	*sizep = (size_t)size;
	return TAKE_PTR(bytes);
}

static int compare_doubles(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static void print_rate(const char *what, double *seconds, size_t n, size_t size)
{
	double gb = (double)size / 1e9;

	qsort(seconds, n, sizeof(*seconds), compare_doubles);
	printf("%s %.2f GB/s (median of %zu; %.2f to %.2f)\n", what, gb / seconds[n / 2], n,
	       gb / seconds[n - 1], gb / seconds[0]);
}

int main(int argc, char **argv)
{
	_cleanup_free_ uint8_t *bytes = NULL, *copy = NULL;
	_cleanup_free_ double *decode_s = NULL, *copy_s = NULL, *map_s = NULL;
	struct codemap_stats stats = { 0 };
	struct run run = { 0 };
	size_t size = 0, rounds, i;

	if (argc < 2) {
		fprintf(stderr, "usage: bench_decode FILE [rounds]\n");
		return 2;
	}
	rounds = argc > 2 ? strtoul(argv[2], NULL, 10) : DEFAULT_ROUNDS;
	rounds = MAX(rounds, (size_t)1);
	bytes = load(argv[1], &size);
	if (!bytes) {
		fprintf(stderr, "bench_decode: cannot read %s\n", argv[1]);
		return 1;
	}
	copy = malloc(size);
	decode_s = calloc(rounds, sizeof(*decode_s));
	copy_s = calloc(rounds, sizeof(*copy_s));
	map_s = calloc(rounds, sizeof(*map_s));
	if (!copy || !decode_s || !copy_s || !map_s)
		return 1;
	memset(copy, 1, size); /* its pages are not what is measured */

	for (i = 0; i < rounds; i++) {
		double start = now_s();
		int r;

		run = (struct run){ 0 };
		clr_decoder_init(&run.decoder);
		r = decode(bytes, size, &run);
		clr_decoder_deinit(&run.decoder);
		if (r)
			return 1;
		decode_s[i] = now_s() - start;

		start = now_s();
		memcpy(copy, bytes, size);
		__asm__ volatile("" : : "r"(copy) : "memory");
		copy_s[i] = now_s() - start;

		start = now_s();
		if (make_map(bytes, size, &stats))
			return 1;
		map_s[i] = now_s() - start;
	}

	print_rate("decode", decode_s, rounds, size);
	print_rate("memcpy", copy_s, rounds, size);
	print_rate("into a map", map_s, rounds, size);
	printf("%zu bodies, %.1f ms, %.3f us a body beside decoding\n", stats.live,
	       map_s[rounds / 2] * 1e3,
	       (map_s[rounds / 2] - decode_s[rounds / 2]) * 1e6 /
		       (double)MAX(stats.live, (size_t)1));
	printf("ratio %.2f\n", copy_s[rounds / 2] / decode_s[rounds / 2]);
	printf("%zu bytes, %" PRIu64 " events (%" PRIu64 " not decoded), %" PRIu64
	       " methods, %.0f ns an event, %" PRIu64 " bytes of text, checksum %016" PRIx64 "\n",
	       size, run.events, run.failed, run.methods,
	       run.events ? decode_s[rounds / 2] / (double)run.events * 1e9 : 0, run.text_bytes,
	       run.checksum);
	return 0;
}
