/* SPDX-License-Identifier: Apache-2.0 */
/* clang-format off */
/*
 * perfcopy: a perf.data file through reader and writer, for tests and benches.
 *
 *   perfcopy [--part-of MAIN] [--twice] IN OUT
 *
 * Every record is parsed and written again; "-" is stdin (spooled) or stdout. --part-of: IN is a
 * part of the directory whose main file is MAIN. --twice: each COMM record is written twice, which
 * changes all sizes and offsets but nothing that perf shows. Prints "RECORDS SAMPLES SECONDS" to
 * stderr; the seconds include reading and writing.
 */
/* clang-format on */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "perfdata/perfdata.h"

struct copy {
	uint64_t n_records, n_samples, sum;
	bool twice;
};

static int spool(void)
{
	char bytes[65536];
	int fd = memfd_create("spool", MFD_CLOEXEC);
	ssize_t n;

	while (fd >= 0 && (n = read(STDIN_FILENO, bytes, sizeof(bytes))) > 0)
		if (write(fd, bytes, (size_t)n) != n)
			return fd_close(fd);
	return fd;
}

static int copy_parse(struct copy *c, const struct perfdata *p, const struct perfdata_record *rec)
{
	struct perfdata_sample sample;
	struct perfdata_mmap m;
	struct perfdata_task task;
	struct perfdata_id id;
	int r = 0;

	switch (rec->type) {
	case PERFDATA_SAMPLE:
		c->n_samples++;
		r = perfdata_parse_sample(p, rec, &sample);
		c->sum += r ? 0 : sample.ip + sample.id.time + sample.n_chain;
		return r;
	case PERFDATA_MMAP:
	case PERFDATA_MMAP2: r = perfdata_parse_mmap(p, rec, &m); break;
	case PERFDATA_COMM:
	case PERFDATA_FORK:
	case PERFDATA_EXIT: r = perfdata_parse_task(p, rec, &task); break;
	}
	return r ? r : perfdata_parse_id(p, rec, &id);
}

static int copy_records(struct copy *c, struct perfdata *p, struct perfdata_writer *w)
{
	struct perfdata_record rec;
	int r;

	for (;;) {
		r = perfdata_next(p, &rec);
		if (r)
			return r == PERFDATA_E_END ? perfdata_writer_finish(w) : r;
		c->n_records++;
		r = copy_parse(c, p, &rec);
		if (!r)
			r = perfdata_write_record(w, &rec);
		if (!r && c->twice && rec.type == PERFDATA_COMM)
			r = perfdata_write_bytes(w, rec.bytes, rec.size);
		if (r)
			return r;
	}
}

static int copy(struct copy *c, int in, int out, int main_fd)
{
	_cleanup_(perfdata_freep) struct perfdata *directory = NULL, *p = NULL;
	_cleanup_(perfdata_writer_freep) struct perfdata_writer *w = NULL;
	int r = 0;

	if (main_fd >= 0)
		r = perfdata_open(&directory, main_fd, NULL);
	if (!r)
		r = perfdata_open(&p, in, directory);
	if (!r)
		r = perfdata_writer_new(&w, p, out);
	if (!r)
		r = copy_records(c, p, w);
	if (r)
		fprintf(stderr, "perfcopy: %s\n",
			p ? perfdata_error_text(p, r) : strerror(r < 0 ? -r : EINVAL));
	return r;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "part-of", required_argument, NULL, 'p' },
		{ "twice", no_argument, NULL, 't' },
		{ 0 },
	};
	_cleanup_close_ int in = -1, out = -1, main_fd = -1;
	uint64_t start_ns;
	struct copy c = { 0 };
	int o, r;

	while ((o = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (o == 't')
			c.twice = true;
		else if (o == 'p')
			main_fd = open(optarg, O_RDONLY | O_CLOEXEC);
		else
			return 2;
	}
	if (argc - optind != 2)
		return 2;
	in = strcmp(argv[optind], "-") ? open(argv[optind], O_RDONLY | O_CLOEXEC) : spool();
	out = strcmp(argv[optind + 1], "-")
		      ? open(argv[optind + 1], O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600)
		      : dup(STDOUT_FILENO);
	if (in < 0 || out < 0) {
		perror("perfcopy");
		return EXIT_FAILURE;
	}
	start_ns = clock_now_ns();
	r = copy(&c, in, out, main_fd);
	fprintf(stderr, "%" PRIu64 " %" PRIu64 " %.6f\n", c.n_records, c.n_samples,
		(double)(clock_now_ns() - start_ns) / 1e9);
	/* the sum keeps the parsing from being optimised away */
	return r || c.sum == 1 ? EXIT_FAILURE : EXIT_SUCCESS;
}
