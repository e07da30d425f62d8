/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What lies at an address without a method: see place.h.
 *
 * The mappings are one sorted array; neighbours that are not executable are joined, as nothing is
 * asked about them but that they are there. Paths are kept of executable files alone, each once. So
 * the table's size is bounded by what proc_each_mapping() reads at the most (CAP_MAPS_BYTES of
 * text).
 *
 * When to read again. Every answer may be out of date, but not alike: where nothing executable was,
 * code may be now (memory is committed, a library loaded), and that is what questions without a
 * method are mostly about. What was code of a file or of the runtime nearly always stays that. So
 * the former answers stand for PLACE_REFRESH_NS, the latter for REFRESH_LATE times that. Reading
 * costs the process, too (its memory map is locked meanwhile): never more than one part in
 * READ_SHARE of the time goes into it, whatever the process has mapped. How many questions come
 * makes no difference.
 *
 * A process that exits or executes another program loses its mappings while they are being read,
 * and the kernel does not say so: the list just ends. It counts only when the process has the same
 * program before and after.
 */
#include "target/place.h"

#include <errno.h>
#include <string.h>

#include "base/buf.h"
#include "base/caps.h"
#include "base/clock.h"
#include "base/hash.h"

#define REFRESH_LATE 50u
#define READ_SHARE   20u

struct place {
	uint64_t start, end;
	uint32_t path;            /* in paths; of the executable mapping of a file */
	enum place_kind kind : 8; /* CODE_HEAP: the runtime's, whichever of the two it is */
};

struct table {
	struct place *items;
	size_t n, size;
	uint32_t *files; /* items with a path */
	size_t n_files, files_size;
	struct buf paths; /* NUL-terminated, one after the other */
	/* while it is being read: paths by content, offset + 1 */
	uint32_t *known;
	size_t n_known, known_size;
};

struct places {
	struct table table;
	bool read;         /* there has been a table */
	uint64_t tried_ns; /* 0: never */
	uint64_t cost_ns;  /* of that */
};

static void table_deinit(struct table *t)
{
	free(t->items);
	free(t->files);
	free(t->known);
	buf_deinit(&t->paths);
	*t = (struct table){ 0 };
}

int places_new(struct places **outp)
{
	struct places *p = calloc(1, sizeof(*p));

	if (!p)
		return -ENOMEM;
	*outp = p;
	return 0;
}

void places_free(struct places *p)
{
	if (!p)
		return;
	table_deinit(&p->table);
	free(p);
}

/* -- of what kind a mapping is -------------------------------------------------------- */

static bool begins(const char *s, size_t len, const char *with)
{
	return len >= strlen(with) && memcmp(s, with, strlen(with)) == 0;
}

static bool ends(const char *s, size_t len, const char *with)
{
	return len >= strlen(with) && strncasecmp(s + len - strlen(with), with, strlen(with)) == 0;
}

static enum place_kind kind_of(const struct proc_mapping *m)
{
	static const char deleted[] = " (deleted)";
	const char *path = m->path;
	size_t len = m->path_len;

	if (!m->executable)
		return PLACE_DATA;
	/* with a name that the process gave it (prctl PR_SET_VMA_ANON_NAME), too */
	if (!len || begins(path, len, "[anon"))
		return PLACE_CODE_HEAP;
	if (*path != '/')
		return PLACE_NATIVE;
	if (begins(path, len, "/memfd:doublemapper"))
		return PLACE_CODE_HEAP;
	if (ends(path, len, deleted))
		len -= strlen(deleted);
	return ends(path, len, ".dll") || ends(path, len, ".exe") ? PLACE_PRECOMPILED
								  : PLACE_NATIVE;
}

/* -- reading -------------------------------------------------------------------------- */

/* Room for one more. */
static int reserve(void *arrayp, size_t element, size_t n, size_t *sizep)
{
	size_t size = *sizep ? *sizep + *sizep / 2 : 64;
	void *more;

	if (n < *sizep)
		return 0;
	more = realloc(*(void **)arrayp, size * element);
	if (!more)
		return -ENOMEM;
	*(void **)arrayp = more;
	*sizep = size;
	return 0;
}

static uint32_t *known_slot(struct table *t, const char *path, size_t len)
{
	size_t at = hash_bytes(hash_seed(), path, len) & (t->known_size - 1);

	for (; t->known[at]; at = (at + 1) & (t->known_size - 1)) {
		const char *there = (const char *)t->paths.data + t->known[at] - 1;

		if (strlen(there) == len && memcmp(there, path, len) == 0)
			break;
	}
	return &t->known[at];
}

static int grow_known(struct table *t)
{
	size_t size = t->known_size ? 2 * t->known_size : 64, i;
	uint32_t *old = t->known;

	if (2 * (t->n_known + 1) <= t->known_size)
		return 0;
	t->known = calloc(size, sizeof(*t->known));
	if (!t->known) {
		t->known = old;
		return -ENOMEM;
	}
	i = t->known_size;
	t->known_size = size;
	while (i--) {
		const char *path = (const char *)t->paths.data + old[i] - 1;

		if (old[i])
			*known_slot(t, path, strlen(path)) = old[i];
	}
	free(old);
	return 0;
}

static int intern(struct table *t, const char *path, size_t len, uint32_t *pathp)
{
	uint32_t *slot;

	if (grow_known(t) < 0)
		return -ENOMEM;
	slot = known_slot(t, path, len);
	if (!*slot) {
		size_t at = t->paths.len;

		if (buf_append(&t->paths, path, len) < 0 || buf_putc(&t->paths, '\0') < 0)
			return -ENOMEM;
		*slot = (uint32_t)at + 1;
		t->n_known++;
	}
	*pathp = *slot - 1;
	return 0;
}

static int read_mapping(void *data, const struct proc_mapping *m)
{
	struct table *t = data;
	struct place place = { .start = m->start, .end = m->end, .kind = kind_of(m) };
	struct place *last = t->n ? &t->items[t->n - 1] : NULL;

	if (last && last->end > m->start)
		return 0; /* mappings changed while they were read: the first word counts */
	if (last && last->end == m->start && last->kind == PLACE_DATA && place.kind == PLACE_DATA) {
		last->end = m->end;
		return 0;
	}
	if (reserve(&t->items, sizeof(*t->items), t->n, &t->size) < 0)
		return -ENOMEM;
	if (m->path_len && *m->path == '/' &&
	    (place.kind == PLACE_NATIVE || place.kind == PLACE_PRECOMPILED)) {
		if (intern(t, m->path, strnlen(m->path, m->path_len), &place.path) < 0 ||
		    reserve(&t->files, sizeof(*t->files), t->n_files, &t->files_size) < 0)
			return -ENOMEM;
		t->files[t->n_files++] = (uint32_t)t->n;
	}
	t->items[t->n++] = place;
	return 0;
}

static int table_read(struct table *t, const struct proc *proc)
{
	uint64_t before, after;
	int r, result;

	buf_init(&t->paths, CAP_MAPS_BYTES);
	r = proc_exec_id(proc, &before);
	if (r)
		return r;
	r = proc_each_mapping(proc, read_mapping, t, &result);
	if (r || result)
		return r ? r : result;
	r = proc_exec_id(proc, &after);
	if (r)
		return r;
	free(TAKE_PTR(t->known));
	t->known_size = 0;
	return t->n && before == after ? 0 : PROC_E_GONE;
}

int places_refresh(struct places *p, const struct proc *proc, uint64_t now_ns)
{
	_cleanup_(table_deinit) struct table table = { 0 };
	uint64_t begin = clock_now_ns();
	int r;

	r = table_read(&table, proc);
	p->cost_ns = clock_now_ns() - begin;
	p->tried_ns = now_ns;
	if (r)
		return r;
	table_deinit(&p->table);
	p->table = table;
	table = (struct table){ 0 };
	p->read = true;
	return 0;
}

/* -- questions ------------------------------------------------------------------------ */

static const struct place *find(const struct table *t, uint64_t addr)
{
	size_t lo = 0, hi = t->n;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (t->items[mid].end <= addr)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo < t->n && t->items[lo].start <= addr ? &t->items[lo] : NULL;
}

static bool is_due(const struct places *p, const struct place *place, uint64_t now_ns)
{
	bool may_be_code = !place || place->kind == PLACE_DATA;
	uint64_t wait =
		MAX(PLACE_REFRESH_NS * (may_be_code ? 1u : REFRESH_LATE), p->cost_ns * READ_SHARE);

	return !p->tried_ns || (now_ns > p->tried_ns && now_ns - p->tried_ns >= wait);
}

/* Live ones only: what was unloaded has its own answers as long as it is remembered. */
static bool has_methods(const struct codemap *map, const struct place *place)
{
	const struct codemap_body *body = codemap_next(map, place->start);

	return body && codemap_body_range(body).start < place->end;
}

static enum place_kind answer(const struct places *p, const struct codemap *map,
			      const struct place *place)
{
	if (!p->read)
		return PLACE_UNKNOWN;
	if (!place)
		return PLACE_UNMAPPED;
	if (place->kind == PLACE_CODE_HEAP && !has_methods(map, place))
		return PLACE_STUB;
	/* a single-file program has its managed images inside its own file */
	if (place->kind == PLACE_NATIVE && has_methods(map, place))
		return PLACE_PRECOMPILED;
	return place->kind;
}

int places_find(struct places *p, const struct proc *proc, const struct codemap *map, uint64_t addr,
		uint64_t now_ns, enum place_kind *kindp)
{
	const struct place *place = find(&p->table, addr);

	if (is_due(p, place, now_ns)) {
		int r = places_refresh(p, proc, now_ns);

		if (r < 0)
			return r;
		place = find(&p->table, addr);
	}
	*kindp = answer(p, map, place);
	return 0;
}

bool places_file(const struct places *p, size_t i, uint64_t *addrp, const char **pathp)
{
	const struct place *place;

	if (i >= p->table.n_files)
		return false;
	place = &p->table.items[p->table.files[i]];
	*addrp = place->start;
	*pathp = (const char *)p->table.paths.data + place->path;
	return true;
}

size_t places_memory(const struct places *p)
{
	const struct table *t = &p->table;

	return sizeof(*p) + t->size * sizeof(*t->items) + t->files_size * sizeof(*t->files) +
	       t->paths.size;
}
