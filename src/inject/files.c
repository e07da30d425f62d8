/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Precompiled code: methods at fixed offsets of files that programs map.
 *
 * A file has one image, with all that the programs of one owner know of it, and every record of
 * such a program that shows code of it points there. Of one owner, because who announces code says
 * what others would see: one user's process must not name the code of another's. And of DLLs, or
 * the program's own file (a single-file program holds its DLLs): nobody's libc is a .NET method.
 */
#include "inject/state.h"

#include <errno.h>
#include <string.h>

#include "base/hash.h"

#define IMAGE_PAGE UINT64_C(4096)

/* -- which file is where --------------------------------------------------------------- */

/* A record's range and its place in the order of time. */
struct placed {
	uint64_t lo, hi;
	uint32_t map, rank;
};

static int placed_compare(const void *ap, const void *bp)
{
	const struct placed *a = ap, *b = bp;

	return a->lo < b->lo ? -1 : a->lo > b->lo;
}

static int u64_compare(const void *ap, const void *bp)
{
	const uint64_t *a = ap, *b = bp;

	return *a < *b ? -1 : *a > *b;
}

/* A heap of those that reach the address at hand, the latest on top. */
struct heap {
	VEC(struct placed) v;
};

static bool heap_push(struct heap *h, const struct placed *p)
{
	size_t i;

	if (!VEC_ROOM(&h->v))
		return false;
	for (i = h->v.n++; i && h->v.items[(i - 1) / 2].rank < p->rank; i = (i - 1) / 2)
		h->v.items[i] = h->v.items[(i - 1) / 2];
	h->v.items[i] = *p;
	return true;
}

static void heap_pop(struct heap *h)
{
	struct placed last = h->v.items[--h->v.n];
	size_t i = 0, child;

	while ((child = 2 * i + 1) < h->v.n) {
		if (child + 1 < h->v.n && h->v.items[child].rank < h->v.items[child + 1].rank)
			child++;
		if (h->v.items[child].rank <= last.rank)
			break;
		h->v.items[i] = h->v.items[child];
		i = child;
	}
	if (h->v.n)
		h->v.items[i] = last;
}

/* May a file hold precompiled code? */
static bool is_code_file(const struct inject *inj, const struct map_record *m)
{
	const char *name = inject_name(inj, m->name);
	const char *slash = strrchr(name, '/');

	return m->class == MAP_FILE &&
	       (inject_is_dll(name) || (*name == '/' && !strstr(slash, ".so")));
}

static int place_add(struct program *p, uint64_t lo, uint64_t hi, uint32_t map)
{
	struct placed_file *last = p->files.n ? &p->files.items[p->files.n - 1] : NULL;

	if (last && last->map == map && last->hi == lo) {
		last->hi = hi;
		return 0;
	}
	if (!VEC_ROOM(&p->files))
		return -ENOMEM;
	p->files.items[p->files.n++] =
		(struct placed_file){ .lo = lo, .hi = hi, .map = map, .image = NO_INDEX };
	return 0;
}

/* From one border of a record to the next, the latest record that is there. */
static int place_sweep(struct inject *inj, struct program *p, const struct placed *all, size_t n,
		       const uint64_t *borders)
{
	struct heap heap = { 0 };
	size_t i, next = 0;
	int r = 0;

	for (i = 0; i + 1 < 2 * n && r == 0; i++) {
		while (next < n && all[next].lo <= borders[i] && r == 0)
			r = heap_push(&heap, &all[next++]) ? 0 : -ENOMEM;
		while (heap.v.n && heap.v.items[0].hi <= borders[i])
			heap_pop(&heap);
		if (r == 0 && heap.v.n && borders[i] < borders[i + 1] &&
		    is_code_file(inj, &inj->maps.items[heap.v.items[0].map]))
			r = place_add(p, borders[i], borders[i + 1], heap.v.items[0].map);
	}
	free(heap.v.items);
	return r;
}

/* Where the program's files with code are, sorted by address: the last state counts. */
static int place_files(struct inject *inj, struct program *p)
{
	_cleanup_free_ struct placed *all = NULL;
	_cleanup_free_ uint64_t *borders = NULL;
	size_t n = 0;
	uint32_t i;

	for (i = p->first_map; i != NO_INDEX; i = inj->maps.items[i].next)
		n++;
	all = malloc((n + 1) * sizeof(*all));
	borders = malloc((2 * n + 1) * sizeof(*borders));
	if (!all || !borders)
		return -ENOMEM;
	n = 0;
	for (i = p->first_map; i != NO_INDEX; i = inj->maps.items[i].next) {
		const struct map_record *m = &inj->maps.items[i];

		all[n] = (struct placed){ m->addr, m->addr + m->len, i, (uint32_t)n };
		borders[2 * n] = m->addr;
		borders[2 * n + 1] = m->addr + m->len;
		n++;
	}
	vec_sort(all, n, sizeof(*all), placed_compare);
	vec_sort(borders, 2 * n, sizeof(*borders), u64_compare);
	p->files_placed = true;
	return place_sweep(inj, p, all, n, borders);
}

static struct placed_file *file_at(struct program *p, uint64_t addr)
{
	size_t lo = 0, hi = p->files.n;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (p->files.items[mid].hi <= addr)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo < p->files.n && p->files.items[lo].lo <= addr ? &p->files.items[lo] : NULL;
}

/* -- images ---------------------------------------------------------------------------- */

static uint32_t *image_slot(const struct inject *inj, const struct map_record *m, uint32_t owner)
{
	uint64_t h = hash_bytes(hash_seed() ^ owner, m->inode, sizeof(m->inode));
	uint32_t mask = inj->n_image_slots - 1, i = (uint32_t)hash_u64(h, m->name) & mask;

	for (; inj->image_slots[i] != NO_INDEX; i = (i + 1) & mask) {
		const struct image *image = &inj->images.items[inj->image_slots[i]];

		if (image->owner == owner && image->key.name == m->name &&
		    memcmp(image->key.inode, m->inode, sizeof(m->inode)) == 0)
			break;
	}
	return &inj->image_slots[i];
}

static int image_slots_grow(struct inject *inj)
{
	uint32_t n = inj->n_image_slots ? inj->n_image_slots * 2 : 256, i;
	uint32_t *slots = malloc(n * sizeof(*slots));

	if (!slots)
		return -ENOMEM;
	memset(slots, 0xff, n * sizeof(*slots));
	free(inj->image_slots);
	inj->image_slots = slots;
	inj->n_image_slots = n;
	for (i = 0; i < inj->images.n; i++) {
		const struct image *image = &inj->images.items[i];

		if (image->is_file)
			*image_slot(inj, &image->key, image->owner) = i;
	}
	return 0;
}

/* NO_INDEX: no image, over the cap. Returns 0 or -ENOMEM. */
static int file_image(struct inject *inj, const struct program *p, const struct map_record *m,
		      uint32_t *indexp)
{
	struct image *image;
	uint32_t *slot;
	int r;

	if (inj->images.n * 2 >= inj->n_image_slots) {
		r = image_slots_grow(inj);
		if (r < 0)
			return r;
	}
	slot = image_slot(inj, m, p->code.owner);
	*indexp = *slot;
	if (*slot != NO_INDEX || inj->images.n >= CAP_INJECT_IMAGES)
		return 0;
	image = inject_image_new(inj, p->code.machine, inject_name(inj, m->name));
	if (!image)
		return -ENOMEM;
	image->is_file = true;
	image->owner = p->code.owner;
	image->key = *m;
	*indexp = *slot = (uint32_t)(image - inj->images.items);
	return 0;
}

/* A single-file program maps DLLs as parts of itself. */
static int also_managed(struct program *p, const struct placed_file *file)
{
	if (spans_hold(p->managed.items, p->managed.n, file->lo, file->hi))
		return 0;
	if (!VEC_ROOM(&p->more_managed))
		return -ENOMEM;
	p->more_managed.items[p->more_managed.n++] = (struct span){ file->lo, file->hi };
	return 0;
}

int inject_file_body(struct inject *inj, uint32_t program, const struct codemap_body *body,
		     const struct codemap_info *info, bool hit, bool *takenp)
{
	struct program *p = &inj->programs.items[program];
	const struct map_record *m;
	struct placed_file *file;
	struct image *image;
	int r = 0;

	*takenp = false;
	if (!p->files_placed)
		r = place_files(inj, p);
	file = r == 0 ? file_at(p, info->start) : NULL;
	if (!file)
		return r;
	*takenp = true;
	m = &inj->maps.items[file->map];
	if (file->image == NO_INDEX) {
		r = file_image(inj, p, m, &file->image);
		if (r == 0)
			r = also_managed(p, file);
		if (r < 0 || file->image == NO_INDEX)
			return r;
	}
	image = &inj->images.items[file->image];
	image->wanted |= hit || inj->opts.all_bodies;
	if (!VEC_ROOM(&image->symbols))
		return -ENOMEM;
	image->symbols.items[image->symbols.n++] = (struct file_symbol){
		.addr = info->start - m->addr + m->pgoff,
		.size = info->size,
		.program = program,
		.body = body,
		.hit = hit,
	};
	return 0;
}

static int symbol_compare(const void *ap, const void *bp)
{
	const struct file_symbol *a = ap, *b = bp;

	if (a->addr != b->addr)
		return a->addr < b->addr ? -1 : 1;
	/* of several programs' views of one method, one that was hit: it may have bytes */
	return (int)b->hit - (int)a->hit;
}

int inject_file_image(struct inject *inj, struct image *image)
{
	struct file_symbol *symbols = image->symbols.items;
	size_t i, n = image->symbols.n;
	uint64_t end = 0;
	bool bytes;
	int r = 0;

	vec_sort(symbols, n, sizeof(*symbols), symbol_compare);
	image->shift = (symbols[0].addr & ~(IMAGE_PAGE - 1)) - ELF_IMAGE_BASE;
	/* what lies between two bodies with bytes is zeros on disk */
	bytes = symbols[n - 1].addr - symbols[0].addr <= CAP_FILE_TEXT;
	for (i = 0; i < n && r == 0; i++) {
		const struct file_symbol *s = &symbols[i];

		if (s->addr < end)
			continue;
		end = s->addr + s->size;
		r = inject_image_add(inj, image, &inj->programs.items[s->program].code, s->body,
				     s->addr - image->shift, s->hit, bytes && s->hit);
	}
	return r;
}

/* -- records --------------------------------------------------------------------------- */

/* Does a mapping show code of the image? A single-file program maps its native code, too. */
static bool shows(const struct image *image, const struct map_record *m)
{
	size_t lo = 0, hi = image->symbols.n;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (image->symbols.items[mid].addr < m->pgoff)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo < image->symbols.n && image->symbols.items[lo].addr - m->pgoff < m->len;
}

/* The owner of all programs whose code is known, if it is one and the same. */
static bool sole_owner(const struct inject *inj, uint32_t *ownerp)
{
	bool any = false;
	size_t i;

	for (i = 0; i < inj->programs.n; i++) {
		const struct program *p = &inj->programs.items[i];

		if (!p->has_code)
			continue;
		if (any && p->code.owner != *ownerp)
			return false;
		*ownerp = p->code.owner;
		any = true;
	}
	return any;
}

static int program_records(struct inject *inj, const struct program *p, uint32_t owner)
{
	uint32_t i;
	int r = 0;

	for (i = p->first_map; i != NO_INDEX && r == 0; i = inj->maps.items[i].next) {
		const struct map_record *m = &inj->maps.items[i];
		uint32_t index = m->class == MAP_FILE ? *image_slot(inj, m, owner) : NO_INDEX;
		const struct image *image = index == NO_INDEX ? NULL : &inj->images.items[index];

		if (image && image->wanted && shows(image, m))
			r = inject_edit(inj, m->seq, index, false, m->addr, m->len,
					m->pgoff - image->shift);
	}
	return r;
}

int inject_file_records(struct inject *inj)
{
	uint32_t owner = 0;
	bool sole = sole_owner(inj, &owner);
	size_t i;
	int r = 0;

	if (!inj->n_image_slots)
		return 0;
	for (i = 0; i < inj->programs.n && r == 0; i++) {
		const struct program *p = &inj->programs.items[i];

		/* whose a program without code was is not known */
		if (p->has_code || sole)
			r = program_records(inj, p, p->has_code ? p->code.owner : owner);
	}
	return r;
}
