/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recorded streams, damaged: cut at sampled places, and with single bytes flipped at sampled
 * places, through the decoders into a code map. No crash, no hang, no leak; what was whole
 * before the damage is still known. (Small streams are damaged at every byte by the unit tests.)
 */
#include <stdio.h>
#include <string.h>

#include "base/caps.h"
#include "base/clock.h"
#include "codemap/codemap.h"
#include "target/feed.h"
#include "tests/torture/damage.h"

#define N_CUTS  40
#define N_FLIPS 100
/* As the socket delivers them, more or less. */
#define PIECE 40000u

/* How many live bodies a stream leaves, or -1 for a failure of our own. */
static long bodies_of(const uint8_t *bytes, size_t size)
{
	_cleanup_(codemap_freep) struct codemap *map = NULL;
	_cleanup_(feed_freep) struct feed *feed = NULL;
	struct feed_options opts = { .il_maps = true };
	struct codemap_stats stats;
	size_t at;
	int r = 0;

	if (codemap_new(&map, NULL) < 0 || feed_new(&feed, map, &opts) < 0)
		return -1;
	for (at = 0; at < size && r == 0; at += PIECE)
		r = feed_bytes(feed, bytes + at, MIN((size_t)PIECE, size - at), 0);
	codemap_get_stats(map, &stats);
	return r < 0 ? -1 : (long)stats.live;
}

/* Returns how many damaged streams were read, or -1. */
static long torture(const char *path)
{
	size_t size, i, last = 0;
	_cleanup_free_ uint8_t *bytes = read_all(path, &size);
	long whole, n;

	if (!bytes)
		return 0;
	whole = bodies_of(bytes, size);
	for (i = 0; i < N_CUTS; i++) {
		size_t cut = size / N_CUTS * i + draw(size / N_CUTS);

		n = bodies_of(bytes, cut);
		if (n < 0 || n > whole || (size_t)n < last) {
			fprintf(stderr, "%s cut at %zu: %ld bodies of %ld\n", path, cut, n, whole);
			return -1;
		}
		last = (size_t)n;
	}
	for (i = 0; i < N_FLIPS; i++) {
		size_t at = draw(size);
		uint8_t flip = (uint8_t)(1u << draw(8));
		uint64_t begin = clock_now_ns();

		bytes[at] ^= flip;
		n = bodies_of(bytes, size);
		bytes[at] ^= flip;
		if (n < 0 || clock_now_ns() - begin > SEC_NS(20)) {
			fprintf(stderr, "%s with bit %#x of byte %zu: %ld\n", path, flip, at, n);
			return -1;
		}
	}
	return N_CUTS + N_FLIPS;
}

int main(void)
{
	/* rundowns: bodies only come, so a longer prefix never knows fewer */
	static const char *const names[] = {
		"10.0.15/rundown-collect1.nettrace",
		"3.1.3/rundown.nettrace",
		"loss-10.0.15/rundown-many30k-mb4.nettrace",
	};
	const char *dir = getenv("CLRSYM_FIXTURES");
	long n, total = 0;
	char path[4096];
	size_t i;

	for (i = 0; i < ARRAY_SIZE(names); i++) {
		snprintf(path, sizeof(path), "%s/%s", dir ? dir : "build/fixtures", names[i]);
		n = torture(path);
		if (n < 0)
			return 1;
		total += n;
	}
	if (!total)
		printf("skipped: no fixtures\n");
	else
		printf("torture_streams: %ld damaged streams read\n", total);
	return 0;
}
