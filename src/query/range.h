/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * range: the one fixed record of a code body that leaves the daemon, in snapshots and exports.
 *
 * Position-independent, of one cache line, in the machine's own byte order (it never leaves the
 * machine). References are offsets from the start of the file in units of 8 bytes; 0 is "none".
 * Readers check every one of them after loading it once: the file may be anybody's.
 */

#include <stdint.h>

#define RANGE_ALIVE UINT64_MAX

/* flags: the runtime's MethodFlags in the low 10 bits, and */
#define RANGE_FLAG_COLD      0x10000000u
#define RANGE_FLAG_OPEN_PAST 0x40000000u /* load is a lower bound, known from a rundown */
#define RANGE_FLAG_FREEABLE  0x80000000u /* open past, and its address may have been another's */

struct range {
	uint64_t start;
	uint64_t load;      /* ns: the earliest time for which it is an answer */
	uint64_t unload;    /* ns, or RANGE_ALIVE; the one field that changes, by one store */
	uint64_t announced; /* ns: its first announcement */
	uint64_t method;    /* method id in the low 48 bits, native code version above */
	uint32_t size, flags;
	uint32_t name;   /* struct range_name */
	uint32_t module; /* struct range_text: path */
	uint32_t il;     /* struct range_il */
	uint32_t token;
};

_Static_assert(sizeof(struct range) == 64, "a range is one cache line");

/*
 * The texts of one method, UTF-8, one after the other, the lengths before. A snapshot has the
 * spelled name only (function; its first short_len bytes are the short form), an export the raw
 * parts only.
 */
struct range_name {
	uint32_t ns_len, name_len, sig_len;
	uint32_t function_len, short_len;
	char text[];
};

struct range_text {
	uint32_t len;
	char text[];
};

/* Sorted by native offset. il: an IL offset, or a special value from 0xfffffffd on. */
struct range_il {
	uint32_t n;
	struct {
		uint32_t native, il;
	} entries[];
};

static inline uint64_t range_method_id(const struct range *r)
{
	return r->method & ((UINT64_C(1) << 48) - 1);
}

static inline uint32_t range_version(const struct range *r)
{
	return (uint32_t)(r->method >> 48);
}

/* A body as it goes into a file; texts and IL map are copied. */
struct range_body {
	struct range range; /* references are filled in by the writer */
	const char *ns, *name, *sig, *function, *module;
	uint32_t ns_len, name_len, sig_len, function_len, short_len, module_len;
	const void *il; /* n_il pairs of native, IL offset (uint32_t each); NULL: none */
	uint32_t n_il;
};
