/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names addresses of a .NET process with blazesym, native and managed alike:
 *
 *     blazesym PID ADDRESS...
 *
 * blazesym (from version 0.1.8 of its C library on) asks its process_dispatch callback for each
 * mapping that has a file, and looks for symbols in the ELF file that the callback names: that is
 * where those of managed code come from, see blazesym-image.c. The names are those that code had
 * when the symbolizer first met its mapping. For addresses of the past, and for processes whose
 * code changes all the while, ask clrsymd instead: sampler.c does.
 *
 * Code of a process that runs with DOTNET_EnableWriteXorExecute=0 is in no file. blazesym looks for
 * it in /tmp/perf-PID.map, which `clrsym map` writes.
 */
#include <blazesym.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "blazesym-image.h"

static bool parse(const char *text, int base, uint64_t max, uint64_t *outp)
{
	char *end;

	errno = 0;
	*outp = strtoull(text, &end, base);
	return *text && !*end && !errno && *outp <= max;
}

static void print(uint64_t addr, const struct blaze_sym *sym)
{
	if (sym->name)
		printf("0x%" PRIx64 " %s+0x%zx\n", addr, sym->name, sym->offset);
	else
		printf("0x%" PRIx64 " ? (%s)\n", addr, blaze_symbolize_reason_str(sym->reason));
}

static blaze_symbolizer *new_symbolizer(struct images *images)
{
	struct blaze_symbolizer_dispatch dispatch = {
		.dispatch_cb = images_dispatch,
		.ctx = images,
	};
	/* dispatch is only read from in the call */
	struct blaze_symbolizer_opts opts = {
		.type_size = sizeof(opts),
		.demangle = true,
		.process_dispatch = &dispatch,
	};

	return blaze_symbolizer_new_opts(&opts);
}

static bool print_some(blaze_symbolizer *symbolizer, uint32_t pid, const uint64_t *addrs, size_t n)
{
	struct blaze_symbolize_src_process src = {
		.type_size = sizeof(src),
		.pid = pid,
		.debug_syms = true,
		.perf_map = true,
	};
	const struct blaze_syms *syms;
	size_t i;

	syms = blaze_symbolize_process_abs_addrs(symbolizer, &src, addrs, n);
	for (i = 0; syms && i < n; i++)
		print(addrs[i], &syms->syms[i]);
	blaze_syms_free(syms);
	return syms;
}

/* A file that blazesym cannot read, say an assembly without any code, makes the whole call fail. */
static void print_all(blaze_symbolizer *symbolizer, uint32_t pid, const uint64_t *addrs, size_t n)
{
	size_t i;

	if (print_some(symbolizer, pid, addrs, n))
		return;
	for (i = 0; i < n; i++) {
		if (!print_some(symbolizer, pid, &addrs[i], 1))
			printf("0x%" PRIx64 " ? (%s)\n", addrs[i], blaze_err_str(blaze_err_last()));
	}
}

int main(int argc, char **argv)
{
	size_t n = argc > 2 ? (size_t)argc - 2 : 0, i;
	uint64_t *addrs = calloc(n + 1, sizeof(*addrs)), pid = 0;
	bool valid = addrs && n && parse(argv[1], 10, INT32_MAX, &pid) && pid;
	blaze_symbolizer *symbolizer;
	struct images *images;

	for (i = 0; valid && i < n; i++)
		valid = parse(argv[i + 2], 16, UINT64_MAX, &addrs[i]);
	if (!valid) {
		fprintf(stderr, "usage: blazesym PID ADDRESS... (hexadecimal)\n");
		free(addrs);
		return 2;
	}
	images = images_new(getenv("CLRSYM") ? getenv("CLRSYM") : "clrsym");
	symbolizer = images ? new_symbolizer(images) : NULL;
	if (symbolizer)
		print_all(symbolizer, (uint32_t)pid, addrs, n);
	else
		fprintf(stderr, "blazesym: %s\n",
			images ? blaze_err_str(blaze_err_last()) : strerror(errno));
	blaze_symbolizer_free(symbolizer);
	images_free(images);
	free(addrs);
	return symbolizer ? 0 : 1;
}
