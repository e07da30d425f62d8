/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A sealed file that anybody may have made, read as an export.
 *
 * Held besides memory safety: what was opened is all there, to the last byte of each text, IL map
 * and piece of code, the bodies are in order, and each is found again.
 */
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

#include "base/hash.h"
#include "query/export.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool good)
{
	if (!good)
		abort();
}

/* Reads every byte. */
static uint64_t touch(uint64_t digest, const void *data, size_t n)
{
	return n ? hash_bytes(digest, data, n) : digest;
}

static uint64_t read_bodies(const struct export *e, uint64_t digest)
{
	struct range_body body, before = { 0 };
	size_t i, found;

	for (i = 0; i < export_n_bodies(e); i++) {
		const uint8_t *code = export_code(e, i);

		export_body(e, i, &body);
		check(body.range.start >= before.range.start);
		check(body.range.start > before.range.start ||
		      body.range.load >= before.range.load);
		digest = touch(digest, body.ns, body.ns_len);
		digest = touch(digest, body.name, body.name_len);
		digest = touch(digest, body.sig, body.sig_len);
		digest = touch(digest, body.module, body.module_len);
		digest = touch(digest, body.il, 8 * (size_t)body.n_il);
		digest = touch(digest, code, code ? body.range.size : 0);
		found = export_find(e, body.range.start, body.range.load);
		check(found <= i);
		before = body;
	}
	return digest;
}

static uint64_t read_rest(const struct export *e, uint64_t digest)
{
	const char *path;
	size_t i;

	for (i = 0; i < export_n_gaps(e); i++)
		check(export_gap_at(e, i).from <= export_gap_at(e, i).to);
	for (i = 0; i < export_n_mappings(e); i++) {
		digest ^= export_mapping(e, i, &path);
		digest = touch(digest, path, strlen(path));
	}
	for (i = 0; i < export_n_clocks(e); i++)
		digest ^= export_clock_at(e, i).clock_ns;
	return digest;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static volatile uint64_t sink UNUSED;
	_cleanup_close_ int fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	_cleanup_(export_freep) struct export *e = NULL;
	int r;

	check(fd >= 0 && write(fd, data, size) == (ssize_t)size);
	check(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK) == 0);
	r = export_open(&e, fd);
	check(r == 0 || r == EXPORT_E_INVALID);
	if (r == 0)
		sink = read_rest(e, read_bodies(e, export_get_identity(e)->start));
	return 0;
}
