/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a code body costs: bytes by malloc's own count, or by the map's own, which knows what it
 * maps itself, whichever is more; less the distinct name text.
 *
 * 100,000 and 1,000,000 live bodies, every one with its own name of some 40 characters;
 * namespaces and signatures repeat as in real programs. --all-distinct gives each body its own
 * namespace too. The reference is the budget: 96 bytes a body.
 */
#include <malloc.h>
#include <string.h>

#include "codemap/codemap.h"

#define BUDGET 96.0

static size_t allocated(void)
{
	struct mallinfo2 m = mallinfo2();

	return m.uordblks + m.hblkhd;
}

static uint32_t rng = 2463534242u;

static uint32_t draw(uint32_t n)
{
	rng ^= rng << 13;
	rng ^= rng >> 17;
	rng ^= rng << 5;
	return rng % n;
}

static double measure(uint32_t n, bool all_distinct)
{
	static const char *const sigs[] = {
		"void  ()",
		"instance void  ()",
		"class System.String  (int32,class System.String)",
		"instance class System.Threading.Tasks.Task`1<bool>  (class System.Object)",
	};
	_cleanup_(codemap_freep) struct codemap *map = NULL;
	size_t before = allocated(), used, text;
	uint64_t addr = 0x7f0000000000u;
	struct codemap_stats stats;
	char ns[96], name[96];
	double per_body;
	uint32_t i;

	if (codemap_new(&map, NULL) != 0)
		abort();
	for (i = 0; i < n; i++) {
		struct codemap_load load = {
			.method_id = 0x7e0000000000u + (uint64_t)i * 24,
			.module_id = 0x7d0000000000u + i / 5000 * 4096,
			.start = addr,
			.time = i + 1,
			.size = 32 + draw(481),
			.flags = 0x208,
			.token = 0x6000000 + i,
			.ns = ns,
			.name = name,
			.sig = sigs[i % ARRAY_SIZE(sigs)],
		};

		load.ns_len = (uint32_t)sprintf(ns, "Company.Product.Module%u.Service%u", i / 2000,
						all_distinct ? i : i / 12);
		load.name_len =
			(uint32_t)sprintf(name, "HandleIncomingCustomerRequest%06uAsync", i);
		load.sig_len = (uint32_t)strlen(load.sig);
		if (codemap_load(map, &load, NULL) != 0)
			abort();
		addr = (addr + load.size + draw(32) + 15) & ~UINT64_C(15);
	}
	used = allocated() - before;
	codemap_get_stats(map, &stats);
	used = MAX(used, stats.bytes);
	text = stats.name_bytes;
	per_body = (double)(used - text) / n;
	printf("%7u bodies: %.1f bytes a body beside %.1f of distinct text (map's own count "
	       "%.1f)\n",
	       n, per_body, (double)text / n, (double)(stats.bytes - text) / n);
	return per_body;
}

int main(int argc, char **argv)
{
	bool all_distinct = argc > 1 && strcmp(argv[1], "--all-distinct") == 0, good;
	double small = measure(100000, all_distinct), large = measure(1000000, all_distinct);

	good = small <= BUDGET && large <= BUDGET;
	printf("budget: %.1f bytes a body (<= %.0f): %s\n", MAX(small, large), BUDGET,
	       good ? "kept" : "MISSED");
	return 0; /* printed, not asserted: machines are noisy */
}
