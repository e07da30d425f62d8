/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A snapshot that somebody else has made, and changes while it is read.
 *
 * The input patches a valid one: after a byte of flags come pieces of 11 bytes, which part of the
 * file, which word of it, and what is there instead. With flag 1 that happens after the snapshot
 * was opened; with flag 2 a thread also writes the same words, each time with other bits
 * turned, as long as questions are asked. Held is memory safety, an end, and that what comes out
 * keeps to its room.
 */
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#include "base/reader.h"
#include "query/snapshot_layout.h"

#define BASE       UINT64_C(0x7f0000000000)
#define N_BODIES   64u
#define MAX_PIECES 256u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool good)
{
	if (!good)
		abort();
}

/* -- A valid one -------------------------------------------------------------------------- */

static struct {
	uint64_t *words; /* writable */
	uint64_t n_words;
	uint64_t parts[6]; /* first words: header, regions, lines, ranges, heap */
	int fd;
} image;

static void fill(struct snapshot_writer *w)
{
	static const uint32_t il[] = { 0, 1, 5, 2, 9, 3 };
	uint32_t i;

	for (i = 0; i < N_BODIES; i++) {
		struct range_body body = {
			.range = { .start = BASE + i * 100, .size = 90, .unload = RANGE_ALIVE },
			.function = "Name.Space.Class::Method(int32)",
			.module = "/app/module.dll",
			.function_len = 31 - i % 4,
			.short_len = 24,
			.module_len = 15,
			.il = il,
			.n_il = 3,
		};

		/* more than fits in a line, and a wide one */
		if (i >= 40) {
			body.range.start = BASE + 8192 + i * 20;
			body.range.size = 16;
		}
		if (i == 1) {
			body.range.start = BASE + 65536 + 77;
			body.range.size = 65536;
		}
		check(!snapshot_put(w, i, &body));
		if (i % 5 == 4)
			check(!snapshot_retire(w, i, 50));
	}
	snapshot_publish(w, 100);
}

/* What there is of the file, holes left out. */
static void copy_file(int fd, uint8_t *to)
{
	off_t at = 0, end;

	while ((at = lseek(fd, at, SEEK_DATA)) >= 0) {
		end = lseek(fd, at, SEEK_HOLE);
		for (; at < end; at += 4096)
			check(pread(fd, to + at, 4096, at) == 4096);
	}
}

static void make_image(void)
{
	static const struct snapshot_identity identity = { .pid = 1, .start = 2 };
	_cleanup_(snapshot_writer_freep) struct snapshot_writer *w = NULL;
	const struct snapshot_region *region;
	const struct snapshot_header *h;
	off_t size;
	uint8_t *to;

	check(!snapshot_writer_new(&w, &identity, 0));
	fill(w);
	size = lseek(snapshot_writer_fd(w), 0, SEEK_END);
	image.fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	check(image.fd >= 0 && !ftruncate(image.fd, size) &&
	      !fcntl(image.fd, F_ADD_SEALS, F_SEAL_SHRINK));
	to = mmap(NULL, (size_t)size, PROT_READ | PROT_WRITE, MAP_SHARED, image.fd, 0);
	check(to != MAP_FAILED);
	copy_file(snapshot_writer_fd(w), to);
	image.words = (void *)to;
	image.n_words = (uint64_t)size / 8;
	h = (const void *)to;
	region = (const void *)(to + h->regions);
	region += region_home(BASE >> SNAPSHOT_REGION_SHIFT, (UINT64_C(1) << h->region_bits) - 1);
	check(region->key);
	image.parts[1] = (uint64_t)((const uint64_t *)(const void *)region - image.words);
	image.parts[2] = region->lines / 8;
	image.parts[3] = h->ranges / 8;
	image.parts[4] = h->heap / 8;
	image.parts[5] = image.parts[2] + SNAPSHOT_CELLS * SNAPSHOT_LINE_WORDS;
}

/* -- Patches ------------------------------------------------------------------------------ */

struct piece {
	uint64_t word, value, was;
};

struct patch {
	struct piece pieces[MAX_PIECES];
	uint32_t n;
	bool stop;
};

static void patch_read(struct patch *p, struct reader *r)
{
	uint64_t word;

	for (p->n = 0; reader_left(r) && p->n < MAX_PIECES; p->n++) {
		word = image.parts[reader_u8(r) % ARRAY_SIZE(image.parts)];
		word += reader_u16(r);
		word %= image.n_words;
		p->pieces[p->n] = (struct piece){
			.word = word,
			.value = reader_u64(r),
			.was = image.words[word],
		};
	}
}

static void patch_apply(const struct patch *p, uint64_t turn)
{
	uint32_t i;

	for (i = 0; i < p->n; i++)
		shared_store(&image.words[p->pieces[i].word], p->pieces[i].value ^ turn);
}

static void patch_undo(const struct patch *p)
{
	uint32_t i;

	for (i = p->n; i; i--)
		shared_store(&image.words[p->pieces[i - 1].word], p->pieces[i - 1].was);
}

static void *scribble(void *data)
{
	struct patch *p = data;
	uint64_t turn = 1;

	while (!__atomic_load_n(&p->stop, __ATOMIC_ACQUIRE)) {
		turn = turn << 7 | turn >> 57;
		patch_apply(p, turn);
		patch_undo(p);
	}
	return NULL;
}

/* -- Questions ---------------------------------------------------------------------------- */

static void ask(const struct snapshot *s, uint64_t addr, uint64_t time)
{
	struct snapshot_found found;
	char name[64], module[16];
	uint32_t short_len = 0, il;
	bool final;
	int r;

	if (snapshot_lookup(s, addr, time, &found, &final))
		return;
	check(addr - found.range.start < found.range.size);
	r = snapshot_name(s, &found, name, sizeof(name), &short_len, module, sizeof(module));
	check(r == 0 || r == SNAPSHOT_E_NONE || r == SNAPSHOT_E_NO_SPACE);
	check(strlen(name) < sizeof(name) && strlen(module) < sizeof(module));
	check(short_len <= strlen(name));
	(void)snapshot_name(s, &found, name, 1, NULL, NULL, 0);
	check(!name[0]);
	if (!snapshot_il(s, &found, (uint32_t)(addr - found.range.start), &il))
		check(il < 0xfffffffd);
}

static void ask_all(const struct patch *after)
{
	static const uint64_t times[] = { 0, 1, 60, UINT64_MAX };
	_cleanup_(snapshot_freep) struct snapshot *s = NULL;
	struct snapshot_identity identity;
	uint64_t addr;
	size_t i;

	if (snapshot_open(&s, image.fd))
		return;
	snapshot_get_identity(s, &identity);
	if (after)
		patch_apply(after, 0);
	for (i = 0; i < ARRAY_SIZE(times); i++) {
		for (addr = BASE; addr < BASE + 10240; addr += 97)
			ask(s, addr, times[i]);
		ask(s, BASE + 65536 + 100, times[i]);
		ask(s, BASE + 65536 + 65600, times[i]);
		ask(s, 0, times[i]);
		ask(s, UINT64_MAX, times[i]);
	}
}

/* -- The target -------------------------------------------------------------------------- */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct patch patch;
	struct reader r;
	pthread_t thread;
	unsigned int i;
	uint8_t flags;

	if (!image.words)
		make_image();
	reader_init(&r, data, size);
	flags = reader_u8(&r);
	patch_read(&patch, &r);
	if (!(flags & 1))
		patch_apply(&patch, 0);
	patch.stop = false;
	if (flags & 2)
		check(!pthread_create(&thread, NULL, scribble, &patch));
	/* against a thread, more than once */
	for (i = 0; i < (flags & 2 ? 5 : 1); i++)
		ask_all(flags & 1 ? &patch : NULL);
	if (flags & 2) {
		__atomic_store_n(&patch.stop, true, __ATOMIC_RELEASE);
		pthread_join(thread, NULL);
	}
	patch_undo(&patch);
	return 0;
}
