/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each allocation of writing an export and of opening one fails in turn: the answer is -ENOMEM, a
 * writer that has failed goes on saying so, and neither memory nor an fd is left.
 */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/caps.h"
#include "query/export.h"

void torture_arm(unsigned long n);
unsigned long torture_count(void);

/* As many as it takes for every table to grow. */
#define N_BODIES 2000u

static void check(bool good, const char *what, unsigned long n)
{
	if (good)
		return;
	fprintf(stderr, "torture_export: allocation %lu: %s\n", n, what);
	exit(EXIT_FAILURE);
}

static size_t count_fds(void)
{
	DIR *fds = opendir("/proc/self/fd");
	size_t n = 0;

	while (fds && readdir(fds))
		n++;
	if (fds)
		closedir(fds);
	return n;
}

static int add_all(struct export_writer *w)
{
	static const uint32_t il[] = { 0, 0, 4, 7 };
	static const uint8_t code[16];
	char name[32];
	int r = 0;
	uint32_t i;

	for (i = 0; i < N_BODIES && r == 0; i++) {
		struct range_body body = {
			.range = { .start = 0x1000 + 16 * i, .size = 16, .unload = RANGE_ALIVE },
			.ns = "Lab",
			.ns_len = 3,
			.name = name,
			.module = "/app.dll",
			.module_len = 8,
			.il = il,
			.n_il = 2,
		};

		body.name_len = (uint32_t)snprintf(name, sizeof(name), "M%u", i);
		r = export_add(w, &body, code);
		if (r == 0)
			r = export_add_gap(w, &(struct export_gap){ i, i });
		if (r == 0)
			r = export_add_mapping(w, i, "/app.so", 7);
		if (r == 0)
			r = export_add_clock(w, &(struct export_clock){ .clock_ns = i });
	}
	return r;
}

static int write_and_read(unsigned long n)
{
	_cleanup_(export_writer_freep) struct export_writer *w = NULL;
	_cleanup_(export_freep) struct export *e = NULL;
	const struct export_identity identity = { .pid = 1 };
	_cleanup_close_ int fd = -1;
	int r, again;

	r = export_writer_new(&w, MIB(16));
	if (r < 0)
		return r;
	r = add_all(w);
	again = export_finish(w, &identity, &fd);
	check(r == 0 || again == r, "a writer has forgotten its failure", n);
	r = again;
	if (r == 0)
		r = export_open(&e, fd);
	check(r < 0 || export_n_bodies(e) == N_BODIES, "bodies are missing", n);
	return r;
}

int main(void)
{
	size_t fds = count_fds();
	unsigned long n;
	int r;

	for (n = 1;; n++) {
		torture_arm(n);
		r = write_and_read(n);
		torture_arm(0);
		check(count_fds() == fds, "an fd is left", n);
		if (!r)
			break;
		check(r == -ENOMEM, "not -ENOMEM", n);
	}
	check(n > 20, "fewer allocations than expected", n);
	return EXIT_SUCCESS;
}
