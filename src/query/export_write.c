/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing an export: see export.h, and export_file.h for the layout.
 *
 * The bulk (names, IL maps, code bytes) goes into the memfd as it comes, through one small buffer;
 * only the ranges, some third of the whole, wait in memory to be sorted. So there is never a second
 * copy. It is written with write() and not through a mapping, for two reasons: the last seal is
 * refused while a writable mapping exists, and a machine without memory answers ENOSPC instead of
 * a signal.
 *
 * Texts are shared: the tiers of a method have one name, all methods of a module one path. Whether
 * a text is there already is told by a hash and then by its bytes, which are read back through a
 * mapping for reading (gone before the file is sealed): a target chooses its names, and must not
 * be able to give one method the name of another by a collision.
 *
 * A writer that has failed (not: is full) says so again on every further call.
 */
#include "query/export.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

#include "base/buf.h"
#include "base/caps.h"
#include "base/hash.h"
#include "base/utf.h"
#include "query/export_file.h"

#define WRITE_CHUNK KIB(256)

/* A body until it is sorted. */
struct pending {
	struct range range;
	uint32_t code;
};

struct shared {
	uint32_t ref; /* 0: free */
	uint32_t hash;
};

struct export_writer {
	int fd;
	int error; /* the first failure of our own */
	size_t max_bytes;
	size_t flushed;  /* bytes in the file; out is what follows */
	size_t promised; /* bytes of the tables so far */
	struct buf out;
	const uint8_t *seen;   /* the file, for reading back */
	struct shared *shared; /* open addressing, at most half full */
	size_t n_shared, shared_size;
	struct buf bodies, gaps, mappings, clocks; /* arrays */
	bool any_code;
};

int export_writer_new(struct export_writer **outp, size_t max_bytes)
{
	_cleanup_(export_writer_freep) struct export_writer *w = calloc(1, sizeof(*w));
	static const struct export_header later;
	void *seen;
	int r;

	if (!w)
		return -ENOMEM;
	w->fd = -1;
	w->max_bytes = MIN(max_bytes, (size_t)CAP_EXPORT_BYTES);
	buf_init(&w->out, SIZE_MAX);
	buf_init(&w->bodies, SIZE_MAX);
	buf_init(&w->gaps, SIZE_MAX);
	buf_init(&w->mappings, SIZE_MAX);
	buf_init(&w->clocks, SIZE_MAX);
	if (max_bytes < sizeof(later))
		return -EINVAL;
	w->fd = memfd_create("clrsym-export", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (w->fd < 0)
		return -errno;
	/* address space only: what is past the end of the file is never touched */
	seen = mmap(NULL, w->max_bytes, PROT_READ, MAP_SHARED, w->fd, 0);
	if (seen == MAP_FAILED)
		return -errno;
	w->seen = seen;
	r = buf_append(&w->out, &later, sizeof(later));
	if (r < 0)
		return r;
	*outp = TAKE_PTR(w);
	return 0;
}

static void writer_unmap(struct export_writer *w)
{
	if (w->seen)
		munmap((void *)(uintptr_t)w->seen, w->max_bytes);
	w->seen = NULL;
}

void export_writer_free(struct export_writer *w)
{
	if (!w)
		return;
	writer_unmap(w);
	fd_close(w->fd);
	free(w->shared);
	buf_deinit(&w->out);
	buf_deinit(&w->bodies);
	buf_deinit(&w->gaps);
	buf_deinit(&w->mappings);
	buf_deinit(&w->clocks);
	free(w);
}

/* -- the file ------------------------------------------------------------------------- */

static int writer_fail(struct export_writer *w, int error)
{
	if (!w->error)
		w->error = error;
	return w->error;
}

static int write_at(int fd, const uint8_t *data, size_t n, size_t offset)
{
	while (n) {
		ssize_t done = pwrite(fd, data, n, (off_t)offset);

		if (done < 0 && errno == EINTR)
			continue;
		if (done <= 0)
			return done ? -errno : -EIO;
		data += done;
		n -= (size_t)done;
		offset += (size_t)done;
	}
	return 0;
}

static int writer_flush(struct export_writer *w)
{
	int r = write_at(w->fd, w->out.data, w->out.len, w->flushed);

	if (r < 0)
		return writer_fail(w, r);
	w->flushed += w->out.len;
	buf_clear(&w->out);
	return 0;
}

/* n more bytes at the end, and zeros up to the next unit: everything in the file begins at one. */
static uint8_t *room(struct export_writer *w, size_t n)
{
	size_t padded = n + (-n % EXPORT_UNIT);
	uint8_t *to;
	int r;

	r = buf_reserve(&w->out, padded);
	if (r < 0) {
		writer_fail(w, r);
		return NULL;
	}
	to = w->out.data + w->out.len;
	memset(to + n, 0, padded - n);
	w->out.len += padded;
	return to;
}

/* Nothing may be at NULL. */
static uint8_t *copy(uint8_t *to, const void *from, size_t n)
{
	if (n)
		memcpy(to, from, n);
	return to + n;
}

static int put(struct export_writer *w, const void *data, size_t n)
{
	uint8_t *to = room(w, n);

	if (to)
		copy(to, data, n);
	return w->error;
}

static size_t writer_at(const struct export_writer *w)
{
	return w->flushed + w->out.len;
}

/* Is there room for so much in the heap and in the tables? */
static bool has_room(const struct export_writer *w, size_t heap, size_t tables)
{
	size_t used = writer_at(w) + w->promised;

	return heap <= w->max_bytes && tables <= w->max_bytes - heap &&
	       used <= w->max_bytes - heap - tables;
}

/* -- texts that are shared ------------------------------------------------------------ */

/*
 * Bytes of the file; what is not flushed yet is in the buffer. A record is written to the buffer
 * as a whole, so it is in one of the two.
 */
static bool is_there(const struct export_writer *w, size_t at, const void *data, size_t n)
{
	const uint8_t *there;

	if (at < w->flushed) {
		if (n > w->flushed - at)
			return false;
		there = w->seen + at;
	} else {
		at -= w->flushed;
		if (n > w->out.len - at)
			return false;
		there = w->out.data + at;
	}
	return memcmp(there, data, n) == 0;
}

static int grow_shared(struct export_writer *w)
{
	size_t size = w->shared_size ? 2 * w->shared_size : 1024, i, at;
	struct shared *all;

	if (2 * (w->n_shared + 1) <= w->shared_size)
		return 0;
	all = calloc(size, sizeof(*all));
	if (!all)
		return writer_fail(w, -ENOMEM);
	for (i = 0; i < w->shared_size; i++) {
		if (!w->shared[i].ref)
			continue;
		for (at = w->shared[i].hash & (size - 1); all[at].ref; at = (at + 1) & (size - 1))
			;
		all[at] = w->shared[i];
	}
	free(w->shared);
	w->shared = all;
	w->shared_size = size;
	return 0;
}

/*
 * The record that was just written to the buffer, from mark to its end: taken back if the file has
 * the same already. *refp: where it is.
 */
static int share(struct export_writer *w, size_t mark, uint32_t *refp)
{
	const uint8_t *record;
	size_t n, at;
	uint32_t hash;

	if (grow_shared(w) < 0)
		return w->error;
	record = w->out.data + mark;
	n = w->out.len - mark;
	hash = (uint32_t)(hash_bytes(hash_seed(), record, n) >> 16);
	for (at = hash & (w->shared_size - 1); w->shared[at].ref;
	     at = (at + 1) & (w->shared_size - 1)) {
		if (w->shared[at].hash != hash ||
		    !is_there(w, (size_t)w->shared[at].ref * EXPORT_UNIT, record, n))
			continue;
		w->out.len = mark;
		*refp = w->shared[at].ref;
		return 0;
	}
	*refp = (uint32_t)((w->flushed + mark) / EXPORT_UNIT);
	w->shared[at] = (struct shared){ *refp, hash };
	w->n_shared++;
	return 0;
}

/* A text's length in the file, where a reader expects no longer ones. */
static uint32_t cut(const char *s, size_t len)
{
	return len <= CAP_NAME_LENGTH ? (uint32_t)len : (uint32_t)utf8_cut(s, len, CAP_NAME_LENGTH);
}

static int put_name(struct export_writer *w, const struct range_body *body, uint32_t *refp)
{
	struct range_name head = {
		.ns_len = cut(body->ns, body->ns_len),
		.name_len = cut(body->name, body->name_len),
		.sig_len = cut(body->sig, body->sig_len),
	};
	size_t mark = w->out.len;
	uint8_t *to;

	*refp = 0;
	if (!head.ns_len && !head.name_len && !head.sig_len)
		return 0;
	to = room(w, sizeof(head) + head.ns_len + head.name_len + head.sig_len);
	if (!to)
		return w->error;
	to = copy(to, &head, sizeof(head));
	to = copy(to, body->ns, head.ns_len);
	to = copy(to, body->name, head.name_len);
	copy(to, body->sig, head.sig_len);
	return share(w, mark, refp);
}

/* The NUL behind it is not counted. */
static int put_text(struct export_writer *w, const char *s, size_t size, uint32_t *refp)
{
	uint32_t len = cut(s, size);
	size_t mark = w->out.len;
	uint8_t *to;

	to = room(w, sizeof(len) + len + 1);
	if (!to)
		return w->error;
	to = copy(to, &len, sizeof(len));
	to = copy(to, s, len);
	*to = '\0';
	return share(w, mark, refp);
}

static int put_il(struct export_writer *w, const struct range_body *body, uint32_t *refp)
{
	size_t n = 8 * (size_t)body->n_il;
	uint8_t *to;

	*refp = (uint32_t)(writer_at(w) / EXPORT_UNIT);
	to = room(w, sizeof(body->n_il) + n);
	if (!to)
		return w->error;
	copy(copy(to, &body->n_il, sizeof(body->n_il)), body->il, n);
	return 0;
}

/* -- adding --------------------------------------------------------------------------- */

static int add_to(struct export_writer *w, struct buf *table, const void *data, size_t n,
		  size_t promise)
{
	int r = buf_append(table, data, n);

	if (r < 0)
		return writer_fail(w, r);
	w->promised += promise;
	return w->out.len >= WRITE_CHUNK ? writer_flush(w) : 0;
}

/* What a reader accepts. */
static bool is_valid(const struct range_body *body)
{
	const struct range *r = &body->range;
	uint64_t end;

	return r->size && r->size <= CAP_BODY_BYTES &&
	       !__builtin_add_overflow(r->start, r->size, &end) && r->load <= r->unload &&
	       body->n_il <= CAP_IL_ENTRIES;
}

int export_add(struct export_writer *w, const struct range_body *body, const uint8_t *code)
{
	/* an upper bound; each record may be padded */
	size_t heap = sizeof(struct range_name) + sizeof(struct range_text) +
		      sizeof(struct range_il) + (size_t)body->ns_len + body->name_len +
		      body->sig_len + body->module_len + 8 * (size_t)body->n_il +
		      (code ? body->range.size : 0) + 5 * (size_t)EXPORT_UNIT;
	size_t table = sizeof(struct range) + sizeof(uint32_t);
	struct pending pending = { .range = body->range };

	if (w->error)
		return w->error;
	if (!is_valid(body))
		return EXPORT_E_INVALID;
	pending.range.name = pending.range.module = pending.range.il = 0;
	/* the part with references to code is padded once */
	if (!has_room(w, heap, table + EXPORT_UNIT))
		return EXPORT_E_FULL;
	if (put_name(w, body, &pending.range.name) < 0 ||
	    (body->module &&
	     put_text(w, body->module, body->module_len, &pending.range.module) < 0) ||
	    (body->n_il && put_il(w, body, &pending.range.il) < 0))
		return w->error;
	if (code) {
		pending.code = (uint32_t)(writer_at(w) / EXPORT_UNIT);
		if (put(w, code, body->range.size) < 0)
			return w->error;
		w->any_code = true;
	}
	return add_to(w, &w->bodies, &pending, sizeof(pending), table);
}

int export_add_gap(struct export_writer *w, const struct export_gap *gap)
{
	if (w->error)
		return w->error;
	if (!has_room(w, 0, sizeof(*gap) + EXPORT_UNIT))
		return EXPORT_E_FULL;
	return add_to(w, &w->gaps, gap, sizeof(*gap), sizeof(*gap));
}

int export_add_mapping(struct export_writer *w, uint64_t addr, const char *path, size_t len)
{
	struct export_file_mapping mapping = { .addr = addr };

	if (w->error)
		return w->error;
	len = strnlen(path, len);
	if (!has_room(w, sizeof(struct range_text) + len + 2 * (size_t)EXPORT_UNIT,
		      sizeof(mapping) + EXPORT_UNIT))
		return EXPORT_E_FULL;
	if (put_text(w, path, len, &mapping.path) < 0)
		return w->error;
	return add_to(w, &w->mappings, &mapping, sizeof(mapping), sizeof(mapping));
}

int export_add_clock(struct export_writer *w, const struct export_clock *clock)
{
	if (w->error)
		return w->error;
	if (!has_room(w, 0, sizeof(*clock) + EXPORT_UNIT))
		return EXPORT_E_FULL;
	return add_to(w, &w->clocks, clock, sizeof(*clock), sizeof(*clock));
}

/* -- the end -------------------------------------------------------------------------- */

/* Small, as they are moved a lot. */
struct key {
	uint64_t start;
	uint32_t i; /* of pending */
};

/* Of bodies with one start. So that the same content is always the same file: by end, too. */
static int compare_lives(const void *a, const void *b, void *data)
{
	const struct pending *all = data;
	const struct range *x = &all[((const struct key *)a)->i].range;
	const struct range *y = &all[((const struct key *)b)->i].range;

	if (x->load != y->load)
		return x->load < y->load ? -1 : 1;
	return x->unload < y->unload ? -1 : x->unload > y->unload;
}

/* One pass of a radix sort: stable, by one byte. False: that byte is the same in all. */
static bool sort_by_byte(const struct key *from, struct key *to, size_t n, unsigned int shift)
{
	size_t at[256] = { 0 }, sum = 0, i;

	for (i = 0; i < n; i++)
		at[(uint8_t)(from[i].start >> shift)]++;
	if (at[(uint8_t)(from[0].start >> shift)] == n)
		return false;
	for (i = 0; i < ARRAY_SIZE(at); i++) {
		size_t count = at[i];

		at[i] = sum;
		sum += count;
	}
	for (i = 0; i < n; i++)
		to[at[(uint8_t)(from[i].start >> shift)]++] = from[i];
	return true;
}

/* Half the time of a qsort(). Returns whichever of the two arrays has the result. */
static struct key *sort_keys(struct pending *all, struct key *keys, struct key *other, size_t n)
{
	unsigned int shift;
	size_t i, j;

	for (shift = 0; n && shift < 64; shift += 8) {
		if (sort_by_byte(keys, other, n, shift)) {
			struct key *sorted = other;

			other = keys;
			keys = sorted;
		}
	}
	for (i = 0; i < n; i = j) {
		for (j = i + 1; j < n && keys[j].start == keys[i].start; j++)
			;
		if (j - i > 1)
			qsort_r(&keys[i], j - i, sizeof(*keys), compare_lives, all);
	}
	return keys;
}

static int put_ranges(struct export_writer *w, const struct pending *all, const struct key *keys,
		      size_t n)
{
	size_t i;

	for (i = 0; i < n; i++) {
		if (put(w, &all[keys[i].i].range, sizeof(struct range)) < 0)
			return w->error;
		if (w->out.len >= WRITE_CHUNK && writer_flush(w) < 0)
			return w->error;
	}
	return 0;
}

static int put_code(struct export_writer *w, const struct pending *all, const struct key *keys,
		    size_t n)
{
	uint32_t *to = (uint32_t *)(void *)room(w, n * sizeof(*to));
	size_t i;

	for (i = 0; to && i < n; i++)
		to[i] = all[keys[i].i].code;
	return w->error;
}

static int put_bodies(struct export_writer *w, struct export_part_place *parts)
{
	struct pending *all = (struct pending *)(void *)w->bodies.data;
	size_t n = w->bodies.len / sizeof(*all), i;
	_cleanup_free_ struct key *both = malloc(MAX(2 * n, (size_t)1) * sizeof(*both));
	const struct key *keys;

	if (!both)
		return writer_fail(w, -ENOMEM);
	for (i = 0; i < n; i++)
		both[i] = (struct key){ all[i].range.start, (uint32_t)i };
	keys = sort_keys(all, both, both + n, n);
	parts[EXPORT_RANGES] = (struct export_part_place){ writer_at(w), n };
	if (put_ranges(w, all, keys, n) < 0)
		return w->error;
	parts[EXPORT_CODE] = (struct export_part_place){ writer_at(w), w->any_code ? n : 0 };
	return w->any_code ? put_code(w, all, keys, n) : 0;
}

static int put_table(struct export_writer *w, const struct buf *table, size_t element,
		     struct export_part_place *place)
{
	*place = (struct export_part_place){ writer_at(w), table->len / element };
	return put(w, table->data, table->len);
}

static int put_tables(struct export_writer *w, struct export_part_place *parts)
{
	if (put_bodies(w, parts) < 0 ||
	    put_table(w, &w->gaps, sizeof(struct export_gap), &parts[EXPORT_GAPS]) < 0 ||
	    put_table(w, &w->mappings, sizeof(struct export_file_mapping),
		      &parts[EXPORT_MAPPINGS]) < 0 ||
	    put_table(w, &w->clocks, sizeof(struct export_clock), &parts[EXPORT_CLOCKS]) < 0)
		return w->error;
	return writer_flush(w);
}

int export_finish(struct export_writer *w, const struct export_identity *id, int *fdp)
{
	struct export_header header = {
		.version = EXPORT_VERSION,
		.flags = (id->ended ? EXPORT_ENDED : 0) | (id->complete ? EXPORT_COMPLETE : 0) |
			 (id->with_code ? EXPORT_WITH_CODE : 0) |
			 (id->over_cap ? EXPORT_OVER_CAP : 0),
		.start = id->start,
		.start_ns = id->start_ns,
		.begin_ns = id->begin_ns,
		.attach_ns = id->attach_ns,
		.known_until = id->known_until,
		.horizon = id->horizon,
		.pid = (uint32_t)id->pid,
		.owner = id->owner,
		.machine = id->machine,
		.heap_offset = sizeof(header),
		.heap_bytes = writer_at(w) - sizeof(header),
	};
	int r;

	if (w->error)
		return w->error;
	memcpy(header.magic, EXPORT_MAGIC, sizeof(header.magic));
	r = put_tables(w, header.parts);
	if (r < 0)
		return r;
	header.bytes = w->flushed;
	r = write_at(w->fd, (const uint8_t *)&header, sizeof(header), 0);
	if (r < 0)
		return writer_fail(w, r);
	writer_unmap(w);
	if (fcntl(w->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) < 0)
		return writer_fail(w, -errno);
	/* there is nothing to add to any more */
	writer_fail(w, -EBADF);
	*fdp = TAKE_FD(w->fd);
	return 0;
}
