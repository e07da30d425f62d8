/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading an export: see export.h, and export_file.h for the layout.
 *
 * The file may have been made by anyone. What makes it possible to check it once and then to trust
 * it are its seals: without F_SEAL_WRITE its maker could change what has been checked, without
 * F_SEAL_SHRINK take away the memory under our hands (SIGBUS). Both are the kernel's word, and
 * nobody can take a seal off.
 *
 * The check is one pass over the tables, each element in a bounded time: that a reference leads
 * into the heap, and that what is there ends in the heap, too. It never looks at all of a text or
 * an IL map: as many ranges as the maker likes may share one, and the pass would not be linear. So
 * texts are any bytes, and an IL map's entries in any order.
 */
#include "query/export.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/caps.h"
#include "query/export_file.h"

struct export
{
	const uint8_t *data;
	size_t size;
	size_t heap, heap_end; /* offsets */
	struct export_identity identity;
	const struct range *ranges;
	const uint32_t *code; /* NULL: none */
	const struct export_gap *gaps;
	const struct export_file_mapping *mappings;
	const struct export_clock *clocks;
	size_t n_ranges, n_gaps, n_mappings, n_clocks;
};

/* -- opening -------------------------------------------------------------------------- */

/* n bytes in the heap, from a place on that a reference leads to? */
static bool in_heap(const struct export *e, uint32_t ref, uint64_t skip, uint64_t n)
{
	uint64_t at = (uint64_t)ref * EXPORT_UNIT;

	return at >= e->heap && at <= e->heap_end && skip <= e->heap_end - at &&
	       n <= e->heap_end - at - skip;
}

static const void *at_ref(const struct export *e, uint32_t ref)
{
	return e->data + (size_t)ref * EXPORT_UNIT;
}

static bool check_name(const struct export *e, uint32_t ref)
{
	const struct range_name *name = at_ref(e, ref);

	if (!ref)
		return true;
	return in_heap(e, ref, 0, sizeof(*name)) && name->ns_len <= CAP_NAME_LENGTH &&
	       name->name_len <= CAP_NAME_LENGTH && name->sig_len <= CAP_NAME_LENGTH &&
	       !name->function_len && !name->short_len &&
	       in_heap(e, ref, sizeof(*name),
		       (uint64_t)name->ns_len + name->name_len + name->sig_len);
}

static bool check_text(const struct export *e, uint32_t ref)
{
	const struct range_text *text = at_ref(e, ref);

	/* and the NUL */
	return in_heap(e, ref, 0, sizeof(*text)) && text->len <= CAP_NAME_LENGTH &&
	       in_heap(e, ref, sizeof(*text), (uint64_t)text->len + 1) && !text->text[text->len];
}

static bool check_il(const struct export *e, uint32_t ref)
{
	const struct range_il *il = at_ref(e, ref);

	if (!ref)
		return true;
	return in_heap(e, ref, 0, sizeof(*il)) && il->n && il->n <= CAP_IL_ENTRIES &&
	       in_heap(e, ref, sizeof(*il), (uint64_t)il->n * sizeof(il->entries[0]));
}

static bool check_range(const struct export *e, size_t i)
{
	const struct range *r = &e->ranges[i], *before = i ? r - 1 : NULL;
	uint64_t end;

	if (!r->size || r->size > CAP_BODY_BYTES ||
	    __builtin_add_overflow(r->start, r->size, &end) || r->load > r->unload)
		return false;
	if (before &&
	    (before->start > r->start || (before->start == r->start && before->load > r->load)))
		return false;
	if (e->code && e->code[i] && !in_heap(e, e->code[i], 0, r->size))
		return false;
	return check_name(e, r->name) && (!r->module || check_text(e, r->module)) &&
	       check_il(e, r->il);
}

static bool check_content(const struct export *e)
{
	size_t i;

	for (i = 0; i < e->n_ranges; i++)
		if (!check_range(e, i))
			return false;
	for (i = 0; i < e->n_gaps; i++)
		if (e->gaps[i].from > e->gaps[i].to)
			return false;
	for (i = 0; i < e->n_mappings; i++)
		if (!check_text(e, e->mappings[i].path))
			return false;
	return true;
}

/* A table: false when it is not in the file as a whole. */
static bool find_part(const struct export *e, const struct export_part_place *place, size_t element,
		      const void **partp, size_t *np)
{
	if (place->offset % EXPORT_UNIT || place->offset > e->size ||
	    place->n > (e->size - place->offset) / element)
		return false;
	*partp = e->data + place->offset;
	*np = place->n;
	return true;
}

static bool find_parts(struct export *e, const struct export_header *h)
{
	const void *ranges, *code, *gaps, *mappings, *clocks;
	size_t n_code;

	if (!find_part(e, &h->parts[EXPORT_RANGES], sizeof(*e->ranges), &ranges, &e->n_ranges) ||
	    !find_part(e, &h->parts[EXPORT_CODE], sizeof(*e->code), &code, &n_code) ||
	    !find_part(e, &h->parts[EXPORT_GAPS], sizeof(*e->gaps), &gaps, &e->n_gaps) ||
	    !find_part(e, &h->parts[EXPORT_MAPPINGS], sizeof(*e->mappings), &mappings,
		       &e->n_mappings) ||
	    !find_part(e, &h->parts[EXPORT_CLOCKS], sizeof(*e->clocks), &clocks, &e->n_clocks))
		return false;
	if (n_code && n_code != e->n_ranges)
		return false;
	e->ranges = ranges;
	e->code = n_code ? code : NULL;
	e->gaps = gaps;
	e->mappings = mappings;
	e->clocks = clocks;
	return true;
}

static bool check_header(struct export *e)
{
	const struct export_header *h = (const void *)e->data;

	if (memcmp(h->magic, EXPORT_MAGIC, sizeof(h->magic)) != 0 || h->version != EXPORT_VERSION ||
	    h->bytes != e->size || h->pid > INT32_MAX || h->machine > UINT16_MAX)
		return false;
	if (h->heap_offset < sizeof(*h) || h->heap_offset > e->size ||
	    h->heap_bytes > e->size - h->heap_offset)
		return false;
	e->heap = h->heap_offset;
	e->heap_end = h->heap_offset + h->heap_bytes;
	e->identity = (struct export_identity){
		.start = h->start,
		.start_ns = h->start_ns,
		.begin_ns = h->begin_ns,
		.attach_ns = h->attach_ns,
		.known_until = h->known_until,
		.horizon = h->horizon,
		.pid = (pid_t)h->pid,
		.owner = h->owner,
		.machine = (uint16_t)h->machine,
		.ended = h->flags & EXPORT_ENDED,
		.complete = h->flags & EXPORT_COMPLETE,
		.with_code = h->flags & EXPORT_WITH_CODE,
		.over_cap = h->flags & EXPORT_OVER_CAP,
	};
	return find_parts(e, h);
}

int export_open(struct export **outp, int fd)
{
	_cleanup_(export_freep) struct export *e = NULL;
	const int needed = F_SEAL_WRITE | F_SEAL_SHRINK;
	int seals = fcntl(fd, F_GET_SEALS);
	struct stat st;
	void *data;

	/* EINVAL: not a memory file */
	if (seals < 0 && errno != EINVAL)
		return -errno;
	if (seals < 0 || (seals & needed) != needed)
		return EXPORT_E_INVALID;
	if (fstat(fd, &st) < 0)
		return -errno;
	if (st.st_size < (off_t)sizeof(struct export_header) ||
	    (uint64_t)st.st_size > CAP_EXPORT_BYTES)
		return EXPORT_E_INVALID;
	e = calloc(1, sizeof(*e));
	if (!e)
		return -ENOMEM;
	/* private: before 6.7 a shared one counts as writable if the fd is, and is refused */
	data = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	if (data == MAP_FAILED)
		return -errno;
	e->data = data;
	e->size = (size_t)st.st_size;
	if (!check_header(e) || !check_content(e))
		return EXPORT_E_INVALID;
	*outp = TAKE_PTR(e);
	return 0;
}

void export_free(struct export *e)
{
	if (!e)
		return;
	if (e->data)
		munmap((void *)(uintptr_t)e->data, e->size);
	free(e);
}

/* -- what is in it -------------------------------------------------------------------- */

const struct export_identity *export_get_identity(const struct export *e)
{
	return &e->identity;
}

size_t export_n_bodies(const struct export *e)
{
	return e->n_ranges;
}

void export_body(const struct export *e, size_t i, struct range_body *body)
{
	const struct range *r = &e->ranges[i];

	*body = (struct range_body){ .range = *r, .ns = "", .name = "", .sig = "" };
	if (r->name) {
		const struct range_name *name = at_ref(e, r->name);

		body->ns = name->text;
		body->ns_len = name->ns_len;
		body->name = body->ns + name->ns_len;
		body->name_len = name->name_len;
		body->sig = body->name + name->name_len;
		body->sig_len = name->sig_len;
	}
	if (r->module) {
		const struct range_text *path = at_ref(e, r->module);

		body->module = path->text;
		body->module_len = path->len;
	}
	if (r->il) {
		const struct range_il *il = at_ref(e, r->il);

		body->il = il->entries;
		body->n_il = il->n;
	}
}

const uint8_t *export_code(const struct export *e, size_t i)
{
	return e->code && e->code[i] ? at_ref(e, e->code[i]) : NULL;
}

size_t export_find(const struct export *e, uint64_t start, uint64_t load)
{
	size_t lo = 0, hi = e->n_ranges;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;
		const struct range *r = &e->ranges[mid];

		if (r->start < start || (r->start == start && r->load < load))
			lo = mid + 1;
		else
			hi = mid;
	}
	if (lo == e->n_ranges || e->ranges[lo].start != start || e->ranges[lo].load != load)
		return SIZE_MAX;
	return lo;
}

size_t export_n_gaps(const struct export *e)
{
	return e->n_gaps;
}

struct export_gap export_gap_at(const struct export *e, size_t i)
{
	return e->gaps[i];
}

size_t export_n_mappings(const struct export *e)
{
	return e->n_mappings;
}

uint64_t export_mapping(const struct export *e, size_t i, const char **pathp)
{
	const struct range_text *path = at_ref(e, e->mappings[i].path);

	*pathp = path->text;
	return e->mappings[i].addr;
}

size_t export_n_clocks(const struct export *e)
{
	return e->n_clocks;
}

struct export_clock export_clock_at(const struct export *e, size_t i)
{
	return e->clocks[i];
}
