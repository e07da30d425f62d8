/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recordings under bad conditions: each allocation fails in turn, the file ends at each byte, bytes
 * of it change at random.
 *
 * Wherever it was: a failed allocation says -ENOMEM; bytes only ever lead to positive codes with a
 * text; what is written from a file that could be read to its end can be read to its end; nothing
 * leaks (run with SAN=1).
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/hash.h"
#include "perfdata/perfdata.h"

void torture_arm(unsigned long n);
unsigned long torture_count(void);

#define FIXTURES    "tests/fixtures/perfdata/"
#define N_MUTATIONS 10000u
/* A mutated size may leave a file of many small records; the first of them tell enough. */
#define MAX_RECORDS 3000u

static const char *const names[] = {
	"plain.data", "chains.data", "compressed.data",      "mixed.data",
	"group.data", "pipe.data",   "pipe-compressed.data", "killed.data",
};

static const char *doing;
static unsigned long place;

static void check(bool good, const char *what)
{
	if (good)
		return;
	fprintf(stderr, "torture_perfdata: %s %lu: %s\n", doing, place, what);
	exit(EXIT_FAILURE);
}

static void parse(const struct perfdata *p, const struct perfdata_record *rec)
{
	static uint8_t out[PERFDATA_MAX_RECORD];
	struct perfdata_edit edit = { .build_id = out, .name = "[.NET]" };
	struct perfdata_sample s;
	struct perfdata_mmap m;
	struct perfdata_task t;
	struct perfdata_id id;

	check(perfdata_parse_id(p, rec, &id) >= 0, "id");
	switch (rec->type) {
	case PERFDATA_SAMPLE: check(perfdata_parse_sample(p, rec, &s) >= 0, "sample"); break;
	case PERFDATA_MMAP:
	case PERFDATA_MMAP2:
		if (perfdata_parse_mmap(p, rec, &m))
			break;
		check(perfdata_edit_mmap(p, rec, &edit, out) >= 72, "edit");
		break;
	case PERFDATA_COMM:
	case PERFDATA_FORK:
	case PERFDATA_EXIT: check(perfdata_parse_task(p, rec, &t) >= 0, "task"); break;
	}
}

/* From in to out, each COMM twice. Returns the code that ended it, PERFDATA_E_END when done. */
static int copy(struct perfdata *p, int out, uint64_t *np)
{
	_cleanup_(perfdata_writer_freep) struct perfdata_writer *w = NULL;
	struct perfdata_record rec;
	int r;

	r = perfdata_writer_new(&w, p, out);
	if (r)
		return r;
	for (*np = 0; *np < MAX_RECORDS;) {
		r = perfdata_next(p, &rec);
		if (r)
			break;
		parse(p, &rec);
		++*np;
		r = perfdata_write_record(w, &rec);
		if (!r && rec.type == PERFDATA_COMM) {
			++*np;
			r = perfdata_write_bytes(w, rec.bytes, rec.size);
		}
		if (r)
			return r;
	}
	if (r == PERFDATA_E_END && (r = perfdata_writer_finish(w)) == 0)
		r = PERFDATA_E_END;
	return r;
}

static uint64_t count(int fd)
{
	_cleanup_(perfdata_freep) struct perfdata *p = NULL;
	struct perfdata_record rec;
	uint64_t n = 0;
	int r;

	check(perfdata_open(&p, fd, NULL) == 0, "the output is no file");
	while (!(r = perfdata_next(p, &rec)))
		n++;
	check(r == PERFDATA_E_END, "the output has no end");
	return n;
}

/* Everything that is done with a file. Returns the code that ended it. */
static int run(int fd, bool verify)
{
	_cleanup_close_ int out = memfd_create("out", MFD_CLOEXEC);
	_cleanup_(perfdata_freep) struct perfdata *p = NULL;
	uint64_t n = 0;
	int r;

	check(out >= 0, "memfd");
	r = perfdata_open(&p, fd, NULL);
	check(r >= 0 ? p != NULL : !p, "perfdata_open");
	if (!r)
		r = copy(p, out, &n);
	check(r <= 0 || *perfdata_error_text(p, r), "no text");
	check(r != PERFDATA_E_END || !verify || count(out) == n,
	      "another number of records in the output");
	return r;
}

static int open_fixture(const char *name)
{
	char path[256];
	int fd;

	snprintf(path, sizeof(path), FIXTURES "%s", name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	doing = name;
	check(fd >= 0, "cannot be opened");
	return fd;
}

/* Returns the number of allocations. */
static unsigned long fail_allocations(int fd)
{
	int r;

	for (place = 1;; place++) {
		torture_arm(place);
		r = run(fd, false);
		if (torture_count() < place)
			break;
		check(r == -ENOMEM, "an allocation failed unnoticed");
	}
	torture_arm(0);
	check(r == PERFDATA_E_END, "not read to its end");
	return place - 1;
}

static void cut(const uint8_t *bytes, size_t size)
{
	_cleanup_close_ int fd = memfd_create("cut", MFD_CLOEXEC);

	check(fd >= 0 && write(fd, bytes, size) == (ssize_t)size, "memfd");
	for (place = size - 1; place; place--) {
		int r;

		check(ftruncate(fd, (off_t)place) == 0, "ftruncate");
		r = run(fd, true);
		check(r > 0, "own failure, or endless");
	}
}

static uint64_t random_next(uint64_t *state)
{
	*state = *state * 6364136223846793005u + 1442695040888963407u;
	return *state >> 33;
}

/* One to four bytes, or eight as an interesting number, somewhere; often in the header. */
static void mutate(uint8_t *bytes, size_t size, uint64_t *state)
{
	static const uint64_t numbers[] = { 0,    1,     7,          8,         16,        104,
					    4096, 65528, UINT32_MAX, INT64_MAX, UINT64_MAX };
	uint64_t n = 1 + random_next(state) % 4;
	size_t reach = random_next(state) % 3 ? size : MIN(size, (size_t)512);

	while (n--) {
		size_t at = random_next(state) % reach;

		if (random_next(state) % 2 || at + 8 > size)
			bytes[at] = (uint8_t)random_next(state);
		else
			memcpy(bytes + (at & ~(size_t)7),
			       &numbers[random_next(state) % ARRAY_SIZE(numbers)], 8);
	}
}

/* Returns how many could be read to their end all the same. */
static unsigned long mutations(const uint8_t *bytes, size_t size, unsigned int n, uint64_t seed)
{
	_cleanup_close_ int fd = memfd_create("mutation", MFD_CLOEXEC);
	_cleanup_free_ uint8_t *changed = malloc(size);
	unsigned long n_read = 0;

	check(fd >= 0 && changed, "memory");
	for (place = 0; place < n; place++) {
		int r;

		memcpy(changed, bytes, size);
		mutate(changed, size, &seed);
		check(pwrite(fd, changed, size, 0) == (ssize_t)size, "pwrite");
		r = run(fd, true);
		check(r >= 0, "own failure");
		n_read += r == PERFDATA_E_END;
	}
	return n_read;
}

int main(void)
{
	unsigned long n_allocations = 0, n_read = 0;
	size_t i;

	/* the seed is drawn once: not a matter of this test */
	hash_seed();
	for (i = 0; i < ARRAY_SIZE(names); i++) {
		_cleanup_close_ int fd = open_fixture(names[i]);
		_cleanup_free_ uint8_t *bytes = NULL;
		struct stat st;
		size_t size;

		check(fstat(fd, &st) == 0, "fstat");
		size = (size_t)st.st_size;
		bytes = malloc(size);
		check(bytes && pread(fd, bytes, size, 0) == st.st_size, "read");
		n_allocations += fail_allocations(fd);
		cut(bytes, size);
		n_read += mutations(bytes, size, N_MUTATIONS / ARRAY_SIZE(names), i + 1);
	}
	check(n_read > N_MUTATIONS / 10, "hardly a mutation was read");
	printf("torture_perfdata: %lu allocations, %u mutations of which %lu were read\n",
	       n_allocations, N_MUTATIONS, n_read);
	return 0;
}
