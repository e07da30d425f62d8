/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * A million code bodies to ask for, the C library's bsearch() over their starts as the reference,
 * and how two things are measured against each other: see bench_lookup.c.
 */

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"

#define N_BODIES  1000000u
#define N_MAPS    8u
#define MAX_PAIRS 15u

static uint64_t starts[N_BODIES];
static uint32_t sizes[N_BODIES];

/* An odd number, up to MAX_PAIRS; fewer give a first impression. */
static uint32_t n_pairs = MAX_PAIRS;

static uint64_t rng = 88172645463325252u;

static inline uint32_t draw(uint32_t n)
{
	rng ^= rng << 13;
	rng ^= rng >> 7;
	rng ^= rng << 17;
	return (uint32_t)((rng >> 32) * n >> 32);
}

static inline void make_bodies(void)
{
	uint64_t addr = 0;
	uint32_t i;

	for (i = 0; i < N_BODIES; i++) {
		if (i % (N_BODIES / N_MAPS) == 0)
			addr = 0x7f0000000000u + i / (N_BODIES / N_MAPS) * 0x1234570000u;
		sizes[i] = 32 + draw(481);
		starts[i] = addr;
		addr = (addr + sizes[i] + draw(32) + 15) & ~UINT64_C(15);
	}
}

/* The i-th to come: the mappings grow side by side. */
static inline uint32_t body_order(uint32_t i)
{
	return i % N_MAPS * (N_BODIES / N_MAPS) + i / N_MAPS;
}

static inline int compare_start(const void *key, const void *at)
{
	const uint64_t *a = key, *s = at;

	if (*a < *s)
		return -1;
	/* the last start at or before the address; the last body has no next */
	return s + 1 < starts + N_BODIES && *a >= s[1];
}

static inline int compare_double(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

/* Sorts; the middle half is from *lowp to *highp (may be NULL). */
static inline double median(double *v, double *lowp, double *highp)
{
	qsort(v, n_pairs, sizeof(*v), compare_double);
	if (lowp) {
		*lowp = v[n_pairs / 4];
		*highp = v[n_pairs * 3 / 4];
	}
	return v[n_pairs / 2];
}

/* Takes "--quick" out of a command line of one option. */
static inline void take_quick(int argc, char **argv)
{
	if (argc > 1 && strcmp(argv[1], "--quick") == 0)
		n_pairs = 3;
}

typedef double (*bench_fn)(void *data);

struct bench {
	bench_fn fn;
	void *data;
};

/* Runs a and its reference b in turns; returns the median of the ratios. *ap: median of a (ns). */
static inline double measure_pairs(const char *what, struct bench a, struct bench b, double *ap)
{
	double va[MAX_PAIRS], vb[MAX_PAIRS], ratio[MAX_PAIRS], low, high, r;
	uint32_t i;

	for (i = 0; i < n_pairs; i++) {
		/* whichever goes first has the other's caches: take turns */
		if (i % 2) {
			va[i] = a.fn(a.data);
			vb[i] = b.fn(b.data);
		} else {
			vb[i] = b.fn(b.data);
			va[i] = a.fn(a.data);
		}
		ratio[i] = va[i] / vb[i];
	}
	r = median(ratio, &low, &high);
	*ap = median(va, NULL, NULL);
	printf("%-40s %6.1f ns, reference %6.1f ns, ratio %.3f (%.3f to %.3f)\n", what, *ap,
	       median(vb, NULL, NULL), r, low, high);
	return r;
}
